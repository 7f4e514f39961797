// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The CPU host aperture (manual section 10): BAR4, each page of which shows a page of VRAM that
//! BAR2 does not.
//!
//! Its table is flat, in system memory: entry `n` is for page `n`. The device reads an entry when a
//! flush names its page ([`struct@super::regs::APERTURE_FLUSH`]), and at no other time.
//!
//! # Examples
//!
//! ```
//! use skua_spec::address::VramOffset;
//! use skua_spec::aperture::{Entry, PageSize};
//!
//! let entry = Entry::page(VramOffset(0x12_3000));
//! assert_eq!(entry.0, 0x12_3001);
//! assert!(!entry.is_malformed(PageSize::Size4K));
//! assert!(entry.is_malformed(PageSize::Size64K));
//! assert_eq!(Entry::NONE.offset(), None);
//! ```

use super::address::VramOffset;

/// Most pages of an aperture: as many as a flush can name.
pub const MAX_PAGES: u32 = 1 << 16;

/// Bits of an offset in VRAM.
const OFFSET_BITS: u32 = 40;

/// Size of an aperture's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageSize {
    /// 4 KiB.
    Size4K = 12,
    /// 64 KiB.
    Size64K = 16,
}

impl PageSize {
    /// The size with this log2 of its bytes.
    pub const fn from_shift(shift: u8) -> Option<Self> {
        match shift {
            12 => Some(Self::Size4K),
            16 => Some(Self::Size64K),
            _ => None,
        }
    }

    /// log2 of the bytes of a page.
    pub const fn shift(self) -> u8 {
        // CAST: what it is represented by.
        self as u8
    }

    /// Bytes of a page.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }
}

/// An entry of the aperture's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    /// Bytes of an entry.
    pub const SIZE: u64 = 8;
    /// The page shows something. Without it all other bits are ignored.
    pub const VALID: u64 = 1 << 0;
    /// The page shows nothing.
    pub const NONE: Self = Self(0);

    /// The page of the aperture shows the page of VRAM at `offset`, a multiple of its size.
    pub const fn page(offset: VramOffset) -> Self {
        Self(offset.0 | Self::VALID)
    }

    /// Where in VRAM the page is that is shown, if one is.
    pub const fn offset(self) -> Option<VramOffset> {
        if self.0 & Self::VALID == 0 {
            return None;
        }
        Some(VramOffset(self.0 & !Self::VALID))
    }

    /// Whether a valid entry has a bit set that must be zero.
    pub const fn is_malformed(self, size: PageSize) -> bool {
        match self.offset() {
            Some(offset) => !offset.is_aligned(size.bytes()) || offset.0 >= 1 << OFFSET_BITS,
            None => false,
        }
    }
}
