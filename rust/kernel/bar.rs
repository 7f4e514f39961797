// SPDX-License-Identifier: GPL-2.0

//! A PCI BAR of device memory that userspace maps, write-combined.
//!
//! [`kernel::pci::Bar`] maps a whole BAR uncached, which suits registers. Device memory wants
//! write-combining. The kernel itself maps nothing of it: it says what a mapping of these addresses
//! is, and page faults make it ([`VmFault::map_bar`](super::fault::VmFault::map_bar)).
//!
//! Write-combined writes may be held back and reordered: [`write_barrier`] before telling the
//! device to look.
//!
//! # Examples
//!
//! ```ignore
//! let vram = WcBar::new(pdev, 2, c"skua-vram")?;
//! // In a page fault, the third page of it.
//! fault.map_bar(0, &vram, 2 * PAGE_SIZE, true)?;
//! ```
//!
//! C header: `include/linux/pci.h`, `include/linux/io.h`.

use super::shim;
use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    page::PAGE_SIZE,
    pci,
    prelude::*, //
};

/// A BAR, requested for `'a`, during which the device is bound.
///
/// # Invariants
///
/// Region `num` of `pdev` was requested, and its bytes were reserved for write-combined mappings.
pub(crate) struct WcBar<'a> {
    /// The device whose region is claimed.
    pdev: &'a pci::Device<Bound>,
    /// Number of the region, 0 to 5.
    num: c_int,
    /// The CPU physical address of its start.
    phys: u64,
    /// Bytes of the BAR, of which drivers may have mapped a part.
    whole: u64,
}

/// The C device. `pci::Device` is a transparent wrapper of it.
fn raw(pdev: &pci::Device<Bound>) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is `repr(transparent)` over `Opaque<pci_dev>`.
    core::ptr::from_ref(pdev)
        .cast_mut()
        .cast::<bindings::pci_dev>()
}

impl<'a> WcBar<'a> {
    /// Requests BAR `num`, for write-combined mappings.
    ///
    /// `EINVAL` if there is no such memory BAR; `EBUSY`, `ENOMEM`.
    pub(crate) fn new(pdev: &'a pci::Device<Bound>, num: u32, name: &'static CStr) -> Result<Self> {
        let whole = pdev.resource_len(num)?;
        let phys = pdev.resource_start(num)?;
        if whole == 0 {
            return Err(EINVAL);
        }
        let num = c_int::try_from(num)?;

        // SAFETY: The device is valid, `num` was checked by `resource_len()`, `name` is static.
        to_result(unsafe { bindings::pci_request_region(raw(pdev), num, name.as_char_ptr()) })?;
        // SAFETY: The bytes of a region that was requested above.
        let reserved = to_result(unsafe { shim::skua_reserve_wc(phys, whole) });
        if let Err(error) = reserved {
            // SAFETY: The region was requested above.
            unsafe { bindings::pci_release_region(raw(pdev), num) };
            return Err(error);
        }
        // INVARIANT: As just requested and reserved.
        Ok(Self {
            pdev,
            num,
            phys,
            whole,
        })
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

impl Drop for WcBar<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reservation and the region are ours to release; the
        // device is still bound.
        unsafe {
            shim::skua_free_wc(self.phys, self.whole);
            bindings::pci_release_region(raw(self.pdev), self.num);
        }
    }
}

/// `wmb()`: writes before it, write-combined ones too, are visible to devices before writes after
/// it.
pub(crate) fn write_barrier() {
    // SAFETY: No requirements.
    unsafe { shim::skua_wmb() };
}
