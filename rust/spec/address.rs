// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every kind of address has a type of its own (manual section 4).
//!
//! | type | names a byte of | who forms it |
//! |---|---|---|
//! | [`GpuVa`] | a process' address space, 48 bits, through its page tables | userspace |
//! | [`GpuPhys`] | the GPU's physical space: the VRAM window and the GART window | the driver |
//! | [`VramOffset`] | VRAM, from its start, 40 bits | the driver's allocator |
//! | [`BusAddr`] | the bus: what the platform's DMA mapping returned | the kernel's DMA API |
//!
//! A GPU-physical address never equals the bus address of the same byte, on purpose.
//!
//! # Examples
//!
//! ```
//! use skua_spec::address::{GpuVa, PAGE_SIZE};
//!
//! let start = GpuVa(0x7f00_0000_0000);
//! let end = start.checked_add(0x3000).expect("it does not wrap");
//! assert!(start.range_is_valid(0x3000) && end.is_aligned(PAGE_SIZE));
//! assert_eq!(end.checked_sub(start), Some(0x3000));
//! // Virtual addresses have 48 bits.
//! assert!(!GpuVa(1 << 48).range_is_valid(1));
//! ```

/// Bytes of the smallest page, of VRAM and of the GART.
pub const PAGE_SIZE: u64 = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bits of a GPU virtual address.
pub const VA_BITS: u32 = 48;
/// Bits of a bus address or a GPU-physical address that an entry can hold.
pub const PHYS_BITS: u32 = 52;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The address `bytes` further on, or `None` where that is beyond 2^64.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(v) => Some(Self(v)),
                    None => None,
                }
            }

            /// Bytes from `base` up to here, or `None` where `base` lies behind.
            pub const fn checked_sub(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }

            /// Whether the address is a multiple of `align`, which is a power of two.
            pub const fn is_aligned(self, align: u64) -> bool {
                self.0 & align.wrapping_sub(1) == 0
            }
        }
    };
}

address! {
    /// GPU virtual address: meaningful in one process' address space.
    GpuVa
}
address! {
    /// GPU-physical address: in the VRAM window or in the GART window.
    GpuPhys
}
address! {
    /// Offset in VRAM in bytes.
    VramOffset
}
address! {
    /// Bus address: as the platform's IOMMU, if any, sees it.
    BusAddr
}

impl GpuVa {
    /// Whether `bytes` bytes from here on lie in the 48-bit space; zero bytes do if the address
    /// does.
    pub const fn range_is_valid(self, bytes: u64) -> bool {
        match self.0.checked_add(bytes) {
            Some(end) => self.0 < 1 << VA_BITS && end <= 1 << VA_BITS,
            None => false,
        }
    }
}
