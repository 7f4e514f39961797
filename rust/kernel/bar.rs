// SPDX-License-Identifier: GPL-2.0

//! A PCI BAR of device memory that userspace maps, write-combined or cached.
//!
//! [`kernel::pci::Bar`] maps a whole BAR uncached, which suits registers. Device memory wants
//! write-combining, or caches where the device keeps them coherent. The kernel itself accesses
//! nothing of it: it says what a mapping of these addresses is, and page faults make it
//! ([`VmFault::map_bar`](super::fault::VmFault::map_bar)).
//!
//! Write-combined writes may be held back and reordered: [`write_barrier`] before telling the
//! device to look.
//!
//! # Examples
//!
//! ```ignore
//! let vram = MemoryBar::new(pdev, 2, c"skua-vram", Caching::WriteCombined)?;
//! // In a page fault, the third page of it.
//! fault.map_bar(0, &vram, 2 * PAGE_SIZE, true)?;
//! ```
//!
//! C header: `include/linux/pci.h`, `include/linux/io.h`.

use super::{
    pages::Caching,
    shim, //
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    page::PAGE_SIZE,
    pci,
    prelude::*, //
};

/// What keeps the mappings of a range of one kind.
enum Reservation {
    /// Nothing but the range itself.
    WriteCombined,
    /// A mapping of the kernel's own, cached, which nobody accesses.
    WriteBack(NonNull<c_void>),
}

// SAFETY: Any thread may remove the mapping, and nobody accesses it.
unsafe impl Send for Reservation {}
// SAFETY: As above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// `EBUSY`, `ENOMEM`.
    ///
    /// # Safety
    ///
    /// The bytes must be those of a region that the caller has requested.
    unsafe fn new(phys: u64, whole: u64, caching: Caching) -> Result<Self> {
        match caching {
            Caching::WriteCombined => {
                // SAFETY: By the safety requirements.
                to_result(unsafe { shim::skua_reserve_wc(phys, whole) })?;
                Ok(Self::WriteCombined)
            }
            Caching::WriteBack => {
                // SAFETY: By the safety requirements.
                let mapping = unsafe { shim::skua_reserve_cached(phys, whole) };
                Ok(Self::WriteBack(NonNull::new(mapping).ok_or(ENOMEM)?))
            }
        }
    }
}

/// A BAR, requested for `'a`, during which the device is bound.
///
/// # Invariants
///
/// Region `num` of `pdev` was requested, and `reservation` is that of its bytes.
pub(crate) struct MemoryBar<'a> {
    /// The device whose region is claimed.
    pdev: &'a pci::Device<Bound>,
    /// Number of the region, 0 to 5.
    num: c_int,
    /// The CPU physical address of its start.
    phys: u64,
    /// Bytes of the BAR, of which drivers may have mapped a part.
    whole: u64,
    /// How it is mapped.
    reservation: Reservation,
}

/// The C device. `pci::Device` is a transparent wrapper of it.
fn raw(pdev: &pci::Device<Bound>) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is `repr(transparent)` over `Opaque<pci_dev>`.
    core::ptr::from_ref(pdev)
        .cast_mut()
        .cast::<bindings::pci_dev>()
}

impl<'a> MemoryBar<'a> {
    /// Requests BAR `num`, for mappings of this kind.
    ///
    /// Cached is uncached where the machine has no caches for such addresses (x86: MTRRs).
    ///
    /// `EINVAL` if there is no such memory BAR; `EBUSY`, `ENOMEM`.
    pub(crate) fn new(
        pdev: &'a pci::Device<Bound>,
        num: u32,
        name: &'static CStr,
        caching: Caching,
    ) -> Result<Self> {
        let whole = pdev.resource_len(num)?;
        let phys = pdev.resource_start(num)?;
        if whole == 0 {
            return Err(EINVAL);
        }
        let num = c_int::try_from(num)?;

        // SAFETY: The device is valid, `num` was checked by `resource_len()`, `name` is static.
        to_result(unsafe { bindings::pci_request_region(raw(pdev), num, name.as_char_ptr()) })?;
        // SAFETY: The bytes of a region that was requested above.
        let reservation = unsafe { Reservation::new(phys, whole, caching) }.inspect_err(|_| {
            // SAFETY: The region was requested above.
            unsafe { bindings::pci_release_region(raw(pdev), num) };
        })?;
        // INVARIANT: As just requested and reserved.
        Ok(Self {
            pdev,
            num,
            phys,
            whole,
            reservation,
        })
    }

    /// Whether the CPU has it write-combined.
    pub(super) fn is_write_combined(&self) -> bool {
        matches!(self.reservation, Reservation::WriteCombined)
    }

    /// Bytes of the whole BAR: what [`VmFault::map_bar`](super::fault::VmFault::map_bar) can reach.
    pub(crate) fn whole(&self) -> u64 {
        self.whole
    }

    /// The C device that the BAR belongs to.
    pub(super) fn device(&self) -> *mut bindings::device {
        // SAFETY: The device is valid; only a field's address is taken.
        unsafe { &raw mut (*raw(self.pdev)).dev }
    }

    /// The page frame of the page at `offset` bytes, [`None`] if unaligned or beyond the BAR.
    pub(super) fn frame_number(&self, offset: usize) -> Option<usize> {
        let end = u64::try_from(offset.checked_add(PAGE_SIZE)?).ok()?;
        if offset % PAGE_SIZE != 0 || end > self.whole {
            return None;
        }
        let phys = self.phys.checked_add(u64::try_from(offset).ok()?)?;
        usize::try_from(phys).ok().map(|phys| phys / PAGE_SIZE)
    }
}

impl Drop for MemoryBar<'_> {
    fn drop(&mut self) {
        match self.reservation {
            // SAFETY: By the type invariant the reservation is ours to release.
            Reservation::WriteCombined => unsafe { shim::skua_free_wc(self.phys, self.whole) },
            // SAFETY: Likewise.
            Reservation::WriteBack(mapping) => unsafe {
                shim::skua_free_cached(mapping.as_ptr());
            },
        }
        // SAFETY: By the type invariant the region is ours to release; the device is still bound.
        unsafe { bindings::pci_release_region(raw(self.pdev), self.num) };
    }
}

/// `wmb()`: writes before it, write-combined ones too, are visible to devices before writes after
/// it.
pub(crate) fn write_barrier() {
    // SAFETY: No requirements.
    unsafe { shim::skua_wmb() };
}
