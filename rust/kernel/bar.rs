// SPDX-License-Identifier: GPL-2.0

//! A PCI BAR of device memory, mapped write-combined.
//!
//! [`kernel::pci::Bar`] maps a whole BAR uncached, which suits registers. Device memory wants
//! write-combining, may be mapped in part, and its pages are mapped to userspace too. Accesses are
//! checked at run time: `EINVAL` beyond the mapping.
//!
//! Write-combined writes may be held back and reordered: [`WcBar::flush`] before telling the device
//! to look.
//!
//! # Examples
//!
//! ```ignore
//! // Of a BAR that userspace maps, the driver itself needs one page.
//! let vram = WcBar::new(pdev, 2, PAGE_SIZE, c"skua-vram")?;
//! vram.fill(0, PAGE_SIZE, 0)?;
//! vram.write32(8, tail)?;
//! // What was written is there before the device looks.
//! vram.flush();
//! ```
//!
//! C header: `include/linux/pci.h`, `include/linux/io.h`.

use super::shim;
use core::ptr::NonNull;
use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    page::PAGE_SIZE,
    pci,
    prelude::*, //
};

/// A mapped BAR, requested and mapped for `'a`, during which the device is bound.
///
/// # Invariants
///
/// - `base` is a write-combined mapping of `len` bytes of BAR `num` of `pdev`, from its start.
/// - `phys` is the CPU physical address of the BAR, of whose `whole` bytes the region was
///   requested.
pub(crate) struct WcBar<'a> {
    pdev: &'a pci::Device<Bound>,
    num: c_int,
    base: NonNull<c_void>,
    len: usize,
    phys: u64,
    whole: u64,
}

// SAFETY: The mapping may be used and released from any thread.
unsafe impl Send for WcBar<'_> {}
// SAFETY: Shared access to device memory is what it is for; accesses are volatile, and concurrent
// ones have no effect on Rust's memory.
unsafe impl Sync for WcBar<'_> {}

/// The C device. `pci::Device` is a transparent wrapper of it.
fn raw(pdev: &pci::Device<Bound>) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is `repr(transparent)` over `Opaque<pci_dev>`.
    core::ptr::from_ref(pdev)
        .cast_mut()
        .cast::<bindings::pci_dev>()
}

impl<'a> WcBar<'a> {
    /// Requests BAR `num` and maps its first `len` bytes, or all of it if `len` is 0.
    ///
    /// `EINVAL` if there is no such memory BAR or it is smaller; `EBUSY`, `ENOMEM`.
    pub(crate) fn new(
        pdev: &'a pci::Device<Bound>,
        num: u32,
        len: usize,
        name: &'static CStr,
    ) -> Result<Self> {
        let whole = pdev.resource_len(num)?;
        let phys = pdev.resource_start(num)?;
        let len = if len == 0 {
            usize::try_from(whole)?
        } else {
            len
        };
        if whole == 0 || u64::try_from(len)? > whole {
            return Err(EINVAL);
        }
        let num = c_int::try_from(num)?;

        // SAFETY: The device is valid, `num` was checked by `resource_len()`, `name` is static.
        to_result(unsafe { bindings::pci_request_region(raw(pdev), num, name.as_char_ptr()) })?;
        // SAFETY: As above, and `len` is within the BAR.
        let base = unsafe { bindings::pci_iomap_wc_range(raw(pdev), num, 0, len) };
        let Some(base) = NonNull::new(base) else {
            // SAFETY: The region was requested above.
            unsafe { bindings::pci_release_region(raw(pdev), num) };
            return Err(ENOMEM);
        };
        // INVARIANT: As just mapped.
        Ok(Self {
            pdev,
            num,
            base,
            len,
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

#[expect(
    dead_code,
    reason = "the CPU reaches VRAM through clients' mappings until objects move"
)]
impl WcBar<'_> {
    /// Bytes from the BAR's start that the CPU has mapped here.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of `count` bytes at `offset`, aligned to `align`.
    fn at(&self, offset: usize, count: usize, align: usize) -> Result<*mut u8> {
        let end = offset.checked_add(count).ok_or(EINVAL)?;
        if end > self.len || offset % align != 0 {
            return Err(EINVAL);
        }
        // SAFETY: `offset` is within the mapping (or one past it, if `count` is 0).
        Ok(unsafe { self.base.as_ptr().cast::<u8>().add(offset) })
    }

    /// Reads 32 bits (little endian) at a 4-byte aligned offset.
    pub(crate) fn read32(&self, offset: usize) -> Result<u32> {
        let at = self.at(offset, 4, 4)?;
        // SAFETY: `at` is 4 mapped bytes, aligned.
        Ok(u32::from_le(unsafe { at.cast::<u32>().read_volatile() }))
    }

    /// Reads 64 bits (little endian) at an 8-byte aligned offset.
    pub(crate) fn read64(&self, offset: usize) -> Result<u64> {
        let at = self.at(offset, 8, 8)?;
        // SAFETY: `at` is 8 mapped bytes, aligned.
        Ok(u64::from_le(unsafe { at.cast::<u64>().read_volatile() }))
    }

    /// Writes 32 bits (little endian) at a 4-byte aligned offset.
    pub(crate) fn write32(&self, offset: usize, value: u32) -> Result {
        let at = self.at(offset, 4, 4)?;
        // SAFETY: `at` is 4 mapped bytes, aligned.
        unsafe { at.cast::<u32>().write_volatile(value.to_le()) };
        Ok(())
    }

    /// Writes 64 bits (little endian) at an 8-byte aligned offset.
    pub(crate) fn write64(&self, offset: usize, value: u64) -> Result {
        let at = self.at(offset, 8, 8)?;
        // SAFETY: `at` is 8 mapped bytes, aligned.
        unsafe { at.cast::<u64>().write_volatile(value.to_le()) };
        Ok(())
    }

    /// Fills `count` bytes at `offset` with `value`.
    pub(crate) fn fill(&self, offset: usize, count: usize, value: u8) -> Result {
        let at = self.at(offset, count, 1)?;
        // SAFETY: `at` is `count` mapped bytes.
        unsafe { shim::skua_memset_io(at.cast(), c_int::from(value), count) };
        Ok(())
    }

    /// Copies `from` to `offset`.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result {
        let at = self.at(offset, from.len(), 1)?;
        // SAFETY: `at` is as many mapped bytes as `from` has.
        unsafe { shim::skua_memcpy_toio(at.cast(), from.as_ptr().cast(), from.len()) };
        Ok(())
    }

    /// Copies from `offset` to `to`.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let at = self.at(offset, to.len(), 1)?;
        // SAFETY: `at` is as many mapped bytes as `to` has.
        unsafe { shim::skua_memcpy_fromio(to.as_mut_ptr().cast(), at.cast(), to.len()) };
        Ok(())
    }

    /// Has all earlier writes leave the CPU before any later one.
    pub(crate) fn flush(&self) {
        write_barrier();
    }
}

impl Drop for WcBar<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the mapping and the region are ours to release; the device
        // is still bound.
        unsafe {
            bindings::pci_iounmap(raw(self.pdev), self.base.as_ptr());
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
