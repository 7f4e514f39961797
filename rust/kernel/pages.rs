// SPDX-License-Identifier: GPL-2.0

//! System memory of GEM objects: pages of the object's own inode of shmem, and their DMA addresses.
//!
//! # Model
//!
//! An object has an inode of shmem from its first pages on, which can be swapped; no file, and no
//! name, which are as much memory again. [`Pages`] are all its pages, present and pinned. They own
//! a reference to the inode, not to the object, so they may be dropped anywhere that may sleep,
//! before or after it; dropped, they may be swapped out, and the next [`Pages::get`] finds the
//! content again. The driver does not read or write them: clients and devices do, at any time.
//!
//! [`DmaMap`] makes them reachable by a device. It holds the pages, so they cannot be swapped out
//! under the device; and it is in a [`DevresSet`], so it is gone when the device is unbound. The
//! order of a drop is therefore: unmap from the device, then unpin.
//!
//! C header: `include/drm/drm_gem.h`, `include/linux/dma-mapping.h`.

use super::{
    devres::{
        DevresItem,
        DevresSet, //
    },
    drm_driver::DriverExt,
    gem::{
        self,
        GemExt, //
    },
    shim, //
};
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    drm::gem::{
        BaseObject,
        Object, //
    },
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// The page frame number of a page.
///
/// # Safety
///
/// `page` must be valid.
pub(super) unsafe fn frame_number(page: *mut bindings::page) -> usize {
    // SAFETY: By the safety requirements.
    unsafe { shim::skua_page_to_pfn(page) }
}

/// How the CPU caches pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caching {
    /// Cached, as other memory.
    WriteBack,
    /// Not: stores are combined on their way to memory, and loads come from there.
    WriteCombined,
}

/// All pages of one object, in memory and pinned there.
///
/// # Examples
///
/// ```ignore
/// let pages = Pages::get(&*obj, Caching::WriteBack)?;
/// let map = DmaMap::new(&dev.resources, parent, &pages)?;
/// for segment in map.access(parent)?.segments() {
///     table.map(segment.address, segment.len)?;
/// }
/// ```
///
/// # Invariants
///
/// `array` is what `drm_gem_get_pages()` returned for `inode` and `size`, of which `inode` is a
/// reference of ours: `size / PAGE_SIZE` pages, each with a reference. They are cached as `caching`
/// says, for all who map them.
pub(crate) struct Pages {
    /// A reference to the shmem inode whose they are.
    inode: NonNull<bindings::inode>,
    /// Each with a reference, in the order of their offsets.
    array: NonNull<*mut bindings::page>,
    /// Bytes, a multiple of the page size.
    size: usize,
    /// How the CPU maps them.
    caching: Caching,
}

// SAFETY: Inodes and pages are reference counted atomically; the array is never written.
unsafe impl Send for Pages {}
// SAFETY: As above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Brings all pages of `obj` into memory and pins them, `caching` as long as they are pinned.
    /// New pages are zero.
    ///
    /// Sleeps. `ENOMEM`; `EBUSY` if they are to be write-combined and somebody else has got them
    /// so; `EINVAL` for an imported object, whose memory is the exporter's.
    pub(crate) fn get<T: GemExt>(obj: &Object<T>, caching: Caching) -> Result<Arc<Self>>
    where
        T::Driver: DriverExt<Gem = T>,
    {
        if gem::is_imported(obj) {
            return Err(EINVAL);
        }
        let inode = gem::inode(obj)?;
        let size = obj.size();
        // SAFETY: `inode` is one of shmem, for `size` bytes, whole pages.
        let array =
            from_err_ptr(unsafe { shim::skua_pages_get(inode.as_ptr(), u64::try_from(size)?) })?;
        let array = NonNull::new(array).ok_or(ENOMEM)?;
        // SAFETY: The object holds a reference to the inode.
        unsafe { bindings::ihold(inode.as_ptr()) };
        // INVARIANT: As just obtained: a page is cached by default.
        let mut pages = Self {
            inode,
            array,
            size,
            caching: Caching::WriteBack,
        };
        if caching == Caching::WriteCombined {
            // SAFETY: The array has so many pages, which nobody has mapped.
            let set = to_result(unsafe { shim::skua_pages_set_wc(array.as_ptr(), pages.count()) });
            // It says that something was invalid: the type that the pages have already.
            set.map_err(|_| EBUSY)?;
            // INVARIANT: As just set.
            pages.caching = caching;
        }
        Ok(Arc::new(pages, GFP_KERNEL_ACCOUNT)?)
    }

    /// How many pages it has, of [`PAGE_SIZE`] bytes.
    pub(super) fn count(&self) -> usize {
        self.size / PAGE_SIZE
    }

    /// Whether the CPU has them write-combined.
    pub(super) fn is_write_combined(&self) -> bool {
        self.caching == Caching::WriteCombined
    }

    /// Page `index`, valid as long as `self`.
    pub(super) fn page(&self, index: usize) -> Option<*mut bindings::page> {
        if index >= self.count() {
            return None;
        }
        // SAFETY: `index` is within the array by the type invariant.
        Some(unsafe { *self.array.as_ptr().add(index) })
    }

    /// The page frame number of page `index`.
    pub(super) fn frame_number(&self, index: usize) -> Option<usize> {
        let page = self.page(index)?;
        // SAFETY: The page is valid by the type invariant.
        Some(unsafe { frame_number(page) })
    }

    /// A scatter-gather table of the pages, not mapped to any device, for
    /// `drm_gem_object_funcs.get_sg_table`; the caller frees it.
    pub(super) fn sg_table(
        &self,
        dev: *mut bindings::drm_device,
    ) -> Result<*mut bindings::sg_table> {
        let count = u32::try_from(self.count())?;
        // SAFETY: `dev` is null or valid; the array has `count` pages.
        from_err_ptr(unsafe { bindings::drm_prime_pages_to_sg(dev, self.array.as_ptr(), count) })
    }
}

#[cfg(CONFIG_KUNIT = "y")]
impl Pages {
    /// Copies from `offset` to `to`, or back if it is to `write`. `EINVAL` beyond the end.
    fn copy(&self, offset: usize, bytes: *mut u8, count: usize, write: bool) -> Result {
        let end = offset.checked_add(count).filter(|end| *end <= self.size);
        end.ok_or(EINVAL)?;
        // SAFETY: The pages are there by the type invariant. Of `bytes`, so many may be read, or
        // written if they are to be; the C code looks at each as it is, whoever writes the pages.
        unsafe {
            shim::skua_kunit_pages_copy(self.array.as_ptr(), offset, bytes.cast(), count, write);
        }
        Ok(())
    }

    /// Copies from `offset` to `to`. `EINVAL` beyond the end.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        self.copy(offset, to.as_mut_ptr(), to.len(), false)
    }

    /// Copies `from` to `offset`. `EINVAL` beyond the end.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> Result {
        self.copy(offset, from.as_ptr().cast_mut(), from.len(), true)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_write_combined() {
            // SAFETY: By the type invariant. Nobody has them mapped any more.
            unsafe { shim::skua_pages_set_wb(self.array.as_ptr(), self.count()) };
        }
        // SAFETY: By the type invariant. The pages may have been written by a device or a client.
        unsafe {
            // CAST: The size came from a `usize` that was converted before.
            shim::skua_pages_put(
                self.inode.as_ptr(),
                self.size as u64,
                self.array.as_ptr(),
                true,
            );
            bindings::iput(self.inode.as_ptr());
        }
    }
}

/// A stretch of memory as a device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    /// DMA address of its first byte.
    pub(crate) address: u64,
    /// Length in bytes.
    pub(crate) len: u64,
}

/// The mapped part of a scatter-gather table, in order.
///
/// # Safety
///
/// `table` must be mapped for DMA and stay so for `'a`.
pub(super) unsafe fn segments<'a>(
    table: *mut bindings::sg_table,
) -> impl Iterator<Item = Segment> + 'a {
    // SAFETY: By the safety requirements.
    let (mut entry, mut left) = unsafe { ((*table).sgl, (*table).nents) };
    core::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        // SAFETY: By the safety requirements, `nents` entries follow `sgl`.
        let segment = unsafe {
            Segment {
                address: bindings::sg_dma_address(entry),
                len: u64::from(bindings::sg_dma_len(entry)),
            }
        };
        if left > 0 {
            // SAFETY: As above, `entry` is not the last.
            entry = unsafe { bindings::sg_next(entry) };
        }
        Some(segment)
    })
}

/// Pages mapped for DMA by a device, in both directions.
///
/// # Invariants
///
/// `table` is exclusively owned, describes `pages`, and is mapped for `dev`.
pub(crate) struct DmaMap {
    /// Mapped for `dev`, owned.
    table: NonNull<bindings::sg_table>,
    /// The device whose addresses the table has.
    dev: ARef<Device>,
    /// What is mapped: unmapped before they can go.
    _pages: Arc<Pages>,
}

// SAFETY: The mapping may be undone from any thread.
unsafe impl Send for DmaMap {}
// SAFETY: The table is never written after it was mapped.
unsafe impl Sync for DmaMap {}

/// The C device. `Device` is a transparent wrapper of it.
pub(super) fn raw<C: kernel::device::DeviceContext>(dev: &Device<C>) -> *mut bindings::device {
    // CAST: `Device` is `repr(transparent)` over `Opaque<device>`.
    ptr::from_ref(dev).cast_mut().cast::<bindings::device>()
}

impl DmaMap {
    /// Maps `pages` for `dev`, until the result is dropped or `dev`, the device of `set`, is
    /// unbound.
    ///
    /// Sleeps. `ENOMEM`; `EIO` or `EINVAL` if the device cannot reach the pages.
    pub(crate) fn new(
        set: &DevresSet,
        dev: &Device<Bound>,
        pages: &Arc<Pages>,
    ) -> Result<DevresItem<Self>> {
        let table = NonNull::new(pages.sg_table(ptr::null_mut())?).ok_or(ENOMEM)?;
        // SAFETY: The device is bound, the table is ours.
        let ret = to_result(unsafe {
            bindings::dma_map_sgtable(
                raw(dev),
                table.as_ptr(),
                bindings::dma_data_direction::DMA_BIDIRECTIONAL,
                0,
            )
        });
        if let Err(error) = ret {
            // SAFETY: The table was allocated by `drm_prime_pages_to_sg()` and is not mapped.
            unsafe { free_table(table) };
            return Err(error);
        }
        let dev_ref: &Device = dev;
        // INVARIANT: As just mapped.
        let map = Self {
            table,
            dev: dev_ref.into(),
            _pages: pages.clone(),
        };
        set.insert(dev, Ok::<_, Error>(map))
    }

    /// Where the device finds the pages, in order. Together as long as the pages are.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        // SAFETY: By the type invariant the table is mapped as long as `self`.
        unsafe { segments(self.table.as_ptr()) }
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the table is mapped for this device.
        unsafe {
            bindings::dma_unmap_sgtable(
                raw(&self.dev),
                self.table.as_ptr(),
                bindings::dma_data_direction::DMA_BIDIRECTIONAL,
                0,
            );
        }
        // SAFETY: It is not mapped any more and ours.
        unsafe { free_table(self.table) };
    }
}

/// Frees a table; the pages that it lists stay.
///
/// # Safety
///
/// `table` must have been allocated by `drm_prime_pages_to_sg()`, be owned and not mapped.
unsafe fn free_table(table: NonNull<bindings::sg_table>) {
    // SAFETY: By the safety requirements.
    unsafe {
        bindings::sg_free_table(table.as_ptr());
        bindings::kfree(table.as_ptr().cast());
    }
}
