// SPDX-License-Identifier: GPL-2.0

//! Page faults on a mapped GEM object, and what is mapped when the device is gone.
//!
//! # Model
//!
//! The rules are TTM's (`drivers/gpu/drm/ttm/ttm_bo_vm.c`), made for memory that moves:
//!
//! 1. The reservation lock is tried; if it is taken, the fault waits for it without mmap_lock and
//!    is done again (`VM_FAULT_RETRY`), unless it may not be (`FAULT_FLAG_RETRY_NOWAIT`, second
//!    try).
//! 2. Pages that the object has given back to its inode are brought into memory, and kernel fences
//!    (moves, clears) waited for, by the same rules: neither with the lock held.
//! 3. If the device is registered, the driver maps the page: [`GemExt::fault`](super::gem::GemExt),
//!    with the lock held and the device kept from being unbound. It may have the memory moved
//!    instead ([`FaultError::Again`]): then it goes on with 2.
//! 4. If the device is unplugged, the object's system pages stay mapped, and what was in device
//!    memory becomes a zeroed dummy page of the object, never `SIGBUS`: a program does not die when
//!    the device goes ("Requirements for Memory Maps", `drm-uapi.rst`).
//! 5. If it is neither, its registration is under way: nothing is mapped, and the access is done
//!    again.
//!
//! # Writes that are to be noticed
//!
//! The driver may have device memory mapped read-only. The first write to it then removes the
//! object's mappings (`pfn_mkwrite`) and is done again: it faults, and says that it is a write
//! ([`VmFault::is_write`]), under the reservation lock. So there is no moment at which a page that
//! was not to be written becomes writable without the driver. Children of a fork have the entries
//! of their parents, and `mprotect()` does not make one writable that was never written, since
//! `vma_wants_writenotify()` is true for these mappings.
//!
//! # Why a mapped page stays valid
//!
//! Page table entries made here hold no reference to what they point at. They point at
//!
//! - the object's own system pages, which leave the object's [`Backing`](super::gem::Backing) only
//!   through [`gem::replace`](super::gem::replace), which unmaps the object first, under the lock
//!   that a fault holds;
//! - a BAR of the object's own device, whose mappings `drm_dev_unplug()` removes before the BAR is
//!   released, and which a fault can only add while the device is registered;
//! - the dummy page, which lives as long as the object.
//!
//! An object outlives its mappings, since each holds a reference to it.
//!
//! # Examples
//!
//! ```ignore
//! // In `GemExt::fault()`, for an object in device memory:
//! for ahead in 0..fault::window(fault, obj.size(), 16) {
//!     let offset = range.page_offset(fault.page() + ahead).ok_or(FaultError::Sigbus)?;
//!     match fault.map_bar(ahead, &data.vram, offset, true) {
//!         // What is mapped ahead is a guess.
//!         Err(_) if ahead > 0 => break,
//!         mapped => mapped?,
//!     }
//! }
//! ```

use super::{
    bar::MemoryBar,
    pages::{
        self,
        Pages, //
    },
    shim, //
};
use core::marker::PhantomData;
use kernel::{
    bindings,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::SetOnce,
    types::NotThreadSafe, //
};

/// The end of a fault that maps nothing more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultError {
    /// The access is repeated, and faults again if nothing was mapped: a signal is pending, or
    /// another thread has resolved the fault.
    NoPage,
    /// The access is beyond the object, or its content is lost.
    Sigbus,
    /// No memory for the mapping.
    Oom,
    /// The memory is being moved to where it can be mapped: wait for the object's kernel fences,
    /// and ask the driver again.
    Again,
}

/// Errors on the way to a page: `ENOMEM` is out-of-memory, interruption repeats the access.
impl From<Error> for FaultError {
    fn from(error: Error) -> Self {
        if error == ENOMEM {
            Self::Oom
        } else if error == EINTR || error == ERESTARTSYS || error == EAGAIN {
            Self::NoPage
        } else {
            Self::Sigbus
        }
    }
}

/// A page fault on an object that is being handled.
///
/// # Invariants
///
/// - `raw` is a valid `vm_fault` of a `VM_PFNMAP` mapping of `obj`, which is not a private writable
///   one. mmap_lock (or the vma's) is held for reading, and the reservation lock of `obj`.
/// - Where the driver sees it, the device is registered.
pub(crate) struct VmFault<'a> {
    /// The access, and the mapping in which it is.
    raw: *mut bindings::vm_fault,
    /// What is mapped there, locked.
    obj: *mut bindings::drm_gem_object,
    /// As long as the C handler runs that was given `raw`.
    _life: PhantomData<&'a ()>,
    /// The locks are held by this thread.
    _not_send: NotThreadSafe,
}

impl VmFault<'_> {
    /// A fault on `obj`, as long as it is being handled.
    ///
    /// # Safety
    ///
    /// The type invariants must hold as long as the result exists.
    pub(super) unsafe fn new(
        raw: *mut bindings::vm_fault,
        obj: *mut bindings::drm_gem_object,
    ) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            raw,
            obj,
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Whether the fault is on `obj`.
    pub(super) fn is_of(&self, obj: *mut bindings::drm_gem_object) -> bool {
        core::ptr::eq(self.obj, obj)
    }

    /// The page of the object that is accessed, from 0.
    pub(crate) fn page(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_fault_page(self.raw, self.obj) }
    }

    /// How many pages of the mapping follow that page: what may be mapped ahead.
    pub(crate) fn pages_after(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_fault_pages_after(self.raw) }
    }

    /// The user address that is accessed.
    #[expect(dead_code, reason = "what a fault is about, whole")]
    pub(crate) fn address(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { (*self.raw).__bindgen_anon_1.address }
    }

    /// Whether the access is a write.
    pub(crate) fn is_write(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { (*self.raw).flags & bindings::fault_flag_FAULT_FLAG_WRITE != 0 }
    }

    /// Maps device memory, as the BAR's is: the page of `bar` at `offset` (bytes, page aligned), at
    /// the accessed page plus `ahead` pages. Unless it is `writable`, the first write faults as if
    /// nothing were mapped.
    ///
    /// [`FaultError::Sigbus`] if `ahead` is beyond the mapping, `offset` beyond the BAR, or the BAR
    /// not of this object's device.
    pub(crate) fn map_bar(
        &self,
        ahead: usize,
        bar: &MemoryBar<'_>,
        offset: usize,
        writable: bool,
    ) -> Result<(), FaultError> {
        // SAFETY: By the type invariant the object is valid, and so is its device.
        let parent = unsafe { (*(*self.obj).dev).dev };
        if !core::ptr::eq(parent, bar.device()) {
            return Err(FaultError::Sigbus);
        }
        let pfn = bar.frame_number(offset).ok_or(FaultError::Sigbus)?;
        // SAFETY: The frame is the BAR's, of a device that is registered (type invariant): it is
        // unmapped by `drm_dev_unplug()` before the BAR is released.
        unsafe { self.insert(ahead, pfn, bar.is_write_combined(), true, writable) }
    }

    /// Maps page `page` of `pages`, cached as those are, at the accessed page plus `ahead` pages.
    ///
    /// # Safety
    ///
    /// `pages` must not be released before the object is unmapped.
    pub(super) unsafe fn map_pages(
        &self,
        ahead: usize,
        pages: &Pages,
        page: usize,
    ) -> Result<(), FaultError> {
        let pfn = pages.frame_number(page).ok_or(FaultError::Sigbus)?;
        // SAFETY: By the safety requirements.
        unsafe { self.insert(ahead, pfn, pages.is_write_combined(), false, true) }
    }

    /// Maps the object's dummy page at the accessed page.
    ///
    /// # Safety
    ///
    /// `dummy` must live as long as the object.
    pub(super) unsafe fn map_dummy(&self, dummy: &DummyPage) -> Result<(), FaultError> {
        let pfn = dummy.frame_number()?;
        // SAFETY: By the safety requirements.
        unsafe { self.insert(0, pfn, false, false, true) }
    }

    /// Maps the frame `pfn`, write-combined if `wc`; `io` if it is no memory of the system;
    /// read-only unless `write`, whatever the mapping allows.
    ///
    /// # Safety
    ///
    /// Clients may access the frame `pfn` through a mapping of this object, until it is unmapped.
    unsafe fn insert(
        &self,
        ahead: usize,
        pfn: usize,
        wc: bool,
        io: bool,
        write: bool,
    ) -> Result<(), FaultError> {
        if ahead > self.pages_after() {
            return Err(FaultError::Sigbus);
        }
        // SAFETY: By the type invariant this is a pfn mapping that is locked and not a private
        // writable one; the address is within it as just checked. The frame may be mapped by the
        // safety requirements.
        let ret = unsafe { shim::skua_fault_insert(self.raw, ahead, pfn, wc, io, write) };
        if ret & bindings::vm_fault_reason_VM_FAULT_OOM != 0 {
            Err(FaultError::Oom)
        } else if ret & VM_FAULT_ERROR != 0 {
            Err(FaultError::Sigbus)
        } else {
            Ok(())
        }
    }
}

/// `VM_FAULT_ERROR` of `include/linux/mm_types.h`.
const VM_FAULT_ERROR: u32 = bindings::vm_fault_reason_VM_FAULT_OOM
    | bindings::vm_fault_reason_VM_FAULT_SIGBUS
    | bindings::vm_fault_reason_VM_FAULT_SIGSEGV
    | bindings::vm_fault_reason_VM_FAULT_HWPOISON
    | bindings::vm_fault_reason_VM_FAULT_HWPOISON_LARGE
    | bindings::vm_fault_reason_VM_FAULT_FALLBACK;

/// A zeroed page that an object is mapped to when its memory is gone with the device.
///
/// One per object, made when first needed, so that clients who cannot see each other's objects
/// cannot meet in it. Charged to who needs it first.
pub(super) struct DummyPage(SetOnce<Page>);

impl DummyPage {
    /// Of a device for which nobody has needed the page yet.
    pub(super) const fn new() -> Self {
        Self(SetOnce::new())
    }

    /// The page's frame, made now if need be. `ENOMEM`.
    ///
    /// The caller holds the object's reservation lock, so nobody else makes it at the same time.
    fn frame_number(&self) -> Result<usize> {
        if self.0.as_ref().is_none() {
            self.0
                .populate(Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?);
        }
        let page = self.0.as_ref().ok_or(ENOMEM)?;
        // SAFETY: The page is valid.
        Ok(unsafe { pages::frame_number(page.as_ptr()) })
    }
}

/// The number of pages from the accessed one to the end of the mapping, limited to `most`: what is
/// worth mapping at once.
pub(crate) fn window(fault: &VmFault<'_>, size: usize, most: usize) -> usize {
    let behind = (size / PAGE_SIZE).saturating_sub(fault.page());
    fault.pages_after().saturating_add(1).min(behind).min(most)
}
