// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Page tables and the GART (manual section 5).
//!
//! A process' table has four levels of 4 KiB tables with 512 entries of 8 bytes, little endian.
//! Level 3 is the root.
//!
//! | level | bits of the address | an entry is |
//! |---|---|---|
//! | 3 | 47:39 | a table |
//! | 2 | 38:30 | a table |
//! | 1 | 29:21 | a table, or a 2 MiB page if [`Entry::LARGE`] |
//! | 0 | 20:12 | a 4 KiB page, or one of the 16 equal entries of a 64 KiB page if `LARGE` |
//!
//! A table or a page lies in VRAM (the entry holds its GPU-physical address) or in system memory
//! (it holds the bus address and has [`Entry::SYSTEM`]). The GART is a flat table in system memory
//! of entries of the same form, without `LARGE`; all of them have `SYSTEM`.
//!
//! # Examples
//!
//! ```
//! use skua_spec::address::{BusAddr, GpuPhys, GpuVa};
//! use skua_spec::mmu::{index, Entry, PageSize, Target, ROOT_LEVEL};
//!
//! // A writable page of system memory, whose accesses snoop, and the entry of the root table that
//! // leads to it.
//! let page = Entry::page(Target::System(BusAddr(0x1234_5000)), PageSize::Size4K, true, true);
//! assert_eq!(page.0, 0x1234_500f);
//! assert!(page.is_valid() && page.is_writable() && !page.is_malformed(0));
//! assert_eq!(index(GpuVa(0x0080_0000_0000), ROOT_LEVEL), 1);
//!
//! // A table entry has no write bit.
//! let table = Entry::table(Target::Vram(GpuPhys(0x8_0000_0000_1000)));
//! assert!(!table.is_malformed(ROOT_LEVEL));
//! assert!(Entry(table.0 | Entry::WRITE).is_malformed(ROOT_LEVEL));
//! ```

use super::address::{BusAddr, GpuPhys, GpuVa};

/// Entries of a table.
pub const ENTRIES: usize = 512;
/// Levels of a process' table.
pub const LEVELS: u32 = 4;
/// The level of the root table.
pub const ROOT_LEVEL: u32 = 3;
/// Bits of the address that one level translates.
pub const LEVEL_BITS: u32 = 9;
/// Entries of level 0 that make a 64 KiB page.
pub const ENTRIES_PER_64K: usize = 16;

/// Size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB: one entry of level 0.
    Size4K,
    /// 64 KiB: 16 equal entries of level 0.
    Size64K,
    /// 2 MiB: one entry of level 1.
    Size2M,
}

impl PageSize {
    /// The sizes that a leaf entry can have, the largest first.
    pub const ALL: [Self; 3] = [Self::Size2M, Self::Size64K, Self::Size4K];

    /// The level of the tables that hold its entries.
    pub const fn level(self) -> u32 {
        match self {
            Self::Size4K | Self::Size64K => 0,
            Self::Size2M => 1,
        }
    }

    /// log2 of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Size4K => 12,
            Self::Size64K => 16,
            Self::Size2M => 21,
        }
    }

    /// Bytes of the page.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }
}

/// Where the target of an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// In VRAM, at this GPU-physical address.
    Vram(GpuPhys),
    /// In system memory, at this bus address.
    System(BusAddr),
}

/// An entry of a page table or of the GART.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    /// The entry translates; without it all other bits are ignored.
    pub const VALID: u64 = 1 << 0;
    /// Pages only: the GPU may write.
    pub const WRITE: u64 = 1 << 1;
    /// System pages only: the access snoops the CPU's caches.
    pub const SNOOP: u64 = 1 << 2;
    /// The target is system memory.
    pub const SYSTEM: u64 = 1 << 3;
    /// Level 1: a 2 MiB page. Level 0: part of a 64 KiB page.
    pub const LARGE: u64 = 1 << 4;
    /// GART only: the page stands for none, and accesses are counted.
    pub const DUMMY: u64 = 1 << 5;
    /// Bits of the target's address.
    pub const ADDRESS: u64 = ((1 << super::address::PHYS_BITS) - 1) & !0xfff;
    /// Bits that are zero in a valid entry of a page table.
    pub const RESERVED: u64 = !(Self::ADDRESS | 0x1f);

    /// An entry that does not translate.
    pub const INVALID: Self = Self(0);

    /// An entry that points at a table, or names the root table in a context descriptor.
    pub const fn table(target: Target) -> Self {
        match target {
            Target::Vram(a) => Self((a.0 & Self::ADDRESS) | Self::VALID),
            Target::System(a) => Self((a.0 & Self::ADDRESS) | Self::VALID | Self::SYSTEM),
        }
    }

    /// An entry that points at a page of `size` whose address is a multiple of the size.
    ///
    /// `snoop` has a meaning for system memory only, and is dropped for VRAM. For
    /// [`PageSize::Size64K`] the same entry is stored 16 times, at an index that is a multiple of
    /// 16.
    pub const fn page(target: Target, size: PageSize, write: bool, snoop: bool) -> Self {
        let mut bits = Self::table(target).0;
        if write {
            bits |= Self::WRITE;
        }
        if snoop && bits & Self::SYSTEM != 0 {
            bits |= Self::SNOOP;
        }
        if !matches!(size, PageSize::Size4K) {
            bits |= Self::LARGE;
        }
        Self(bits)
    }

    /// An entry of the GART for the system page at `bus`.
    pub const fn gart(bus: BusAddr, write: bool, snoop: bool) -> Self {
        Self::page(Target::System(bus), PageSize::Size4K, write, snoop)
    }

    /// An entry of the GART that shows the system page at `bus`, which cannot be written, where
    /// nothing is mapped.
    pub const fn dummy(bus: BusAddr) -> Self {
        Self(Self::gart(bus, false, true).0 | Self::DUMMY)
    }

    /// Whether [`Self::DUMMY`] is set.
    pub const fn is_dummy(self) -> bool {
        self.0 & Self::DUMMY != 0
    }

    /// Whether a valid entry breaks a rule of manual section 5 for the GART: a reserved bit is set,
    /// `SYSTEM` is missing, or `LARGE` or, beside `DUMMY`, `WRITE` is set.
    pub const fn is_malformed_for_gart(self) -> bool {
        let page = Self(self.0 & !Self::DUMMY);
        page.is_malformed(0)
            || page.is_large()
            || self.0 & Self::SYSTEM == 0
            || (self.is_dummy() && self.is_writable())
    }

    /// Whether the entry translates.
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether the GPU may write to the page.
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether an access of the page snoops the CPU's caches.
    pub const fn is_snooped(self) -> bool {
        self.0 & Self::SNOOP != 0
    }

    /// Whether [`Self::LARGE`] is set.
    pub const fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }

    /// Where the entry points; meaningful if it is valid.
    pub const fn target(self) -> Target {
        let address = self.0 & Self::ADDRESS;
        if self.0 & Self::SYSTEM != 0 {
            Target::System(BusAddr(address))
        } else {
            Target::Vram(GpuPhys(address))
        }
    }

    /// The entry for a smaller page of `size` within the large one that this entry maps, beginning
    /// at its 4 KiB page number `page` (below [`ENTRIES`], a multiple of `size`). It translates the
    /// same addresses as this one did, with the same rights.
    pub const fn part(self, page: usize, size: PageSize) -> Self {
        // CAST: below ENTRIES. No overflow: a large page is aligned and within the address's bits.
        let offset = page as u64 * PageSize::Size4K.bytes();
        let large = match size {
            PageSize::Size4K => 0,
            PageSize::Size64K | PageSize::Size2M => Self::LARGE,
        };
        Self((self.0 & !Self::LARGE).saturating_add(offset) | large)
    }

    /// Whether a valid entry breaks a rule of manual section 5 for `level` (0 to 3): a reserved bit
    /// is set, `SNOOP` stands without `SYSTEM`, a table entry has `WRITE`, `SNOOP` or (above level
    /// 1) `LARGE`, or a large page is not aligned.
    pub const fn is_malformed(self, level: u32) -> bool {
        if self.0 & Self::RESERVED != 0 {
            return true;
        }
        if self.0 & Self::SNOOP != 0 && self.0 & Self::SYSTEM == 0 {
            return true;
        }
        let page = level == 0 || (level == 1 && self.is_large());
        if !page {
            return self.0 & (Self::WRITE | Self::SNOOP | Self::LARGE) != 0;
        }
        if !self.is_large() {
            return false;
        }
        let size = if level == 0 {
            PageSize::Size64K
        } else {
            PageSize::Size2M
        };
        self.0 & Self::ADDRESS & (size.bytes() - 1) != 0
    }
}

/// Index of the entry for `va` in its table of `level` (0 to 3).
pub const fn index(va: GpuVa, level: u32) -> usize {
    let shift = super::address::PAGE_SHIFT + (level & 3) * LEVEL_BITS;
    // CAST: nine bits.
    ((va.0 >> shift) & (ENTRIES as u64 - 1)) as usize
}

/// Bytes that one entry of `level` (0 to 3) covers.
pub const fn entry_span(level: u32) -> u64 {
    1 << (super::address::PAGE_SHIFT + (level & 3) * LEVEL_BITS)
}

/// Bytes that one table of `level` (0 to 3) covers.
pub const fn table_span(level: u32) -> u64 {
    entry_span(level) << LEVEL_BITS
}
