// SPDX-License-Identifier: GPL-2.0

//! A page of memory with a 64-bit value that the kernel changes, and userspace and devices read.
//!
//! # Model
//!
//! An object that has a [`ValuePage`] can be [exported](export) as a file descriptor: an anonymous
//! inode's, which keeps the object, and the module. The file is open for reading alone and cannot
//! be opened anew, so the core refuses every way to a shared mapping that can be written,
//! mprotect() included. A private one, which could, is refused here. A mapping has its own
//! reference to the page.
//!
//! A device reads it through a [`ValueMap`], which holds whoever has the page.
//!
//! # Examples
//!
//! ```ignore
//! static OPERATIONS: FileOperations<Counter> = FileOperations::new::<MyModule>();
//!
//! impl Exported for Counter {
//!     const NAME: &'static CStr = c"[counter]";
//!
//!     fn operations() -> &'static FileOperations<Self> {
//!         &OPERATIONS
//!     }
//!
//!     fn page(&self) -> &ValuePage {
//!         &self.page
//!     }
//! }
//!
//! let counter = Arc::new(Counter { page: ValuePage::new(0)? }, GFP_KERNEL)?;
//! args.fd = value_page::export(counter.clone(), true)?;
//! // Whoever has it mapped reads 1 from now on.
//! counter.page.set(1);
//! ```
//!
//! C headers: `include/linux/anon_inodes.h`, `include/linux/dma-mapping.h`, `include/linux/fs.h`.

use super::{
    devres::{
        DevresItem,
        DevresSet, //
    },
    pages::{
        raw,
        Segment, //
    },
    shim, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    error::{
        from_err_ptr,
        from_result, //
    },
    fs::file::{
        File,
        FileDescriptorReservation,
        LocalFile, //
    },
    mm::virt::{
        flags,
        VmaNew, //
    },
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    ModuleMetadata, //
};

/// Of mappings for devices: no copies, nor caches to be flushed.
// CAST: a bit.
const ATTRIBUTES: c_ulong = bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// A page whose first 64 bits are a value; the rest is zero.
pub(crate) struct ValuePage(Page);

impl ValuePage {
    /// A page with this value, accounted to the caller's control group. `ENOMEM`.
    pub(crate) fn new(value: u64) -> Result<Self> {
        let page = Self(Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?);
        page.set(value);
        Ok(page)
    }

    fn value(&self) -> &Atomic<u64> {
        // SAFETY: A page that was not asked for as high memory has an address, which is valid and
        // aligned as long as the page is ours; it is only accessed through this, or read by
        // userspace.
        unsafe { Atomic::from_ptr(shim::skua_page_address(self.0.as_ptr()).cast()) }
    }

    /// The value that is in the page now.
    pub(crate) fn get(&self) -> u64 {
        self.value().load(Acquire)
    }

    /// Changes the value. What was done before is seen by who sees it.
    pub(crate) fn set(&self, value: u64) {
        self.value().store(value, Release);
    }
}

/// The page of a value, mapped for a device to read, which sees each change.
///
/// # Invariants
///
/// `address` is where `dev` finds the page of `owner`, mapped for it.
pub(crate) struct ValueMap<T> {
    /// DMA address of the page's first byte.
    address: u64,
    /// The device whose address it is.
    dev: ARef<Device>,
    /// Who has the page: it is unmapped before that can go.
    _owner: Arc<T>,
}

impl<T: AsRef<ValuePage> + Send + Sync + 'static> ValueMap<T> {
    /// Maps the page of `owner` for `dev`, until the result is dropped or `dev`, the device of
    /// `set`, is unbound.
    ///
    /// Sleeps. `EOPNOTSUPP` if the device does not reach all memory: it would see a copy of what it
    /// does not; `ENOMEM`.
    pub(crate) fn new(
        set: &DevresSet,
        dev: &Device<Bound>,
        owner: &Arc<T>,
    ) -> Result<DevresItem<Self>> {
        // SAFETY: The device is bound.
        if unsafe { bindings::dma_addressing_limited(raw(dev)) } {
            return Err(EOPNOTSUPP);
        }
        let page = (**owner).as_ref().0.as_ptr();
        // SAFETY: The device is bound; the page is the owner's.
        let address = unsafe {
            bindings::dma_map_page_attrs(
                raw(dev),
                page,
                0,
                PAGE_SIZE,
                bindings::dma_data_direction::DMA_TO_DEVICE,
                ATTRIBUTES,
            )
        };
        // SAFETY: The device is bound, and the address what mapping for it returned.
        if unsafe { shim::skua_dma_mapping_error(raw(dev), address) } {
            return Err(ENOMEM);
        }
        let dev_ref: &Device = dev;
        // INVARIANT: As just mapped.
        let map = Self {
            address,
            dev: dev_ref.into(),
            _owner: owner.clone(),
        };
        set.insert(dev, Ok::<_, Error>(map))
    }
}

impl<T> ValueMap<T> {
    /// Where the device finds the page.
    pub(crate) fn segment(&self) -> Segment {
        Segment {
            address: self.address,
            // CAST: a small number.
            len: PAGE_SIZE as u64,
        }
    }
}

impl<T> Drop for ValueMap<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the page is mapped there for this device.
        unsafe {
            bindings::dma_unmap_page_attrs(
                raw(&self.dev),
                self.address,
                PAGE_SIZE,
                bindings::dma_data_direction::DMA_TO_DEVICE,
                ATTRIBUTES,
            );
        }
    }
}

/// What can be given to other processes as a file, whose mappings show its page.
pub(crate) trait Exported: Send + Sync + Sized + 'static {
    /// What `/proc/PID/fd` shows, as "anon_inode:NAME".
    const NAME: &'static CStr;

    /// The static that tells files of this type from all others.
    fn operations() -> &'static FileOperations<Self>;

    /// The page that a file's mappings show.
    fn page(&self) -> &ValuePage;
}

/// The operations of files of one type.
///
/// # Invariants
///
/// Only [`export`] makes files with them, with the address of an `Arc<T>` in their private data.
pub(crate) struct FileOperations<T>(bindings::file_operations, PhantomData<fn(T)>);

// SAFETY: The structure holds function pointers and that of the module, and is never written.
unsafe impl<T> Sync for FileOperations<T> {}

impl<T: Exported> FileOperations<T> {
    /// The operations of a module, which files keep loaded.
    pub(crate) const fn new<M: ModuleMetadata>() -> Self {
        let mut operations: bindings::file_operations = pin_init::zeroed();
        operations.owner = M::THIS_MODULE.as_ptr();
        operations.release = Some(release::<T>);
        operations.mmap = Some(mmap::<T>);
        Self(operations, PhantomData)
    }
}

/// `file_operations.release`.
///
/// # Safety
///
/// `file` must be one that [`export`] made for a `T`, and be gone after this.
unsafe extern "C" fn release<T: Exported>(
    _inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: By the requirements the private data are an `Arc<T>` that nobody else takes.
    drop(unsafe { Arc::from_raw((*file).private_data.cast::<T>()) });
    0
}

/// `file_operations.mmap`.
///
/// # Safety
///
/// `file` must be one that [`export`] made for a `T`, `vma` a new mapping of it, with mmap_lock
/// held for writing.
unsafe extern "C" fn mmap<T: Exported>(
    file: *mut bindings::file,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: The file has the object as long as it is open, which it is for this call.
        let object = unsafe { &*(*file).private_data.cast::<T>() };
        // SAFETY: By the requirements.
        let (vma, offset) = unsafe { (VmaNew::from_raw(vma), (*vma).vm_pgoff) };
        let is_shared = vma.flags() & flags::MAYSHARE != 0;
        if !is_shared || offset != 0 || vma.end() - vma.start() > PAGE_SIZE {
            return Err(EINVAL);
        }
        vma.set_dontexpand();
        vma.set_mixedmap()
            .vm_insert_page(vma.start(), &object.page().0)?;
        Ok(0)
    })
}

/// Makes a descriptor of `object` for the calling process, with `O_CLOEXEC` or not. `EMFILE`,
/// `ENFILE`, `ENOMEM`.
pub(crate) fn export<T: Exported>(object: Arc<T>, cloexec: bool) -> Result<i32> {
    let flags = if cloexec { bindings::O_CLOEXEC } else { 0 };
    let descriptor = FileDescriptorReservation::get_unused_fd_flags(flags)?;
    let number = i32::try_from(descriptor.reserved_fd())?;
    let raw = Arc::into_raw(object);
    // SAFETY: Name and operations are static. INVARIANT: The private data are an `Arc<T>`.
    let file = from_err_ptr(unsafe {
        shim::anon_inode_getfile(
            T::NAME.as_char_ptr(),
            &raw const T::operations().0,
            raw.cast_mut().cast(),
            // CAST: a small number.
            bindings::O_RDONLY as c_int,
        )
    })
    .inspect_err(|_| {
        // SAFETY: There is no file that has it.
        drop(unsafe { Arc::from_raw(raw) });
    })?;
    // SAFETY: The file is new, its reference ours, and nobody reads or writes at its position.
    let file = unsafe { ARef::from_raw(NonNull::new_unchecked(file.cast::<File>())) };
    descriptor.fd_install(file);
    Ok(number)
}

/// The object that a descriptor of the calling process is of. `EBADF` if there is none, `EINVAL` if
/// it is another file's.
pub(crate) fn import<T: Exported>(descriptor: i32) -> Result<Arc<T>> {
    let file = LocalFile::fget(u32::try_from(descriptor).map_err(|_| EBADF)?)?;
    let raw = file.as_ptr();
    // SAFETY: The file is referenced; its operations never change.
    if !core::ptr::eq(unsafe { (*raw).f_op }, &raw const T::operations().0) {
        return Err(EINVAL);
    }
    // SAFETY: By the invariant of the operations; the file keeps its own reference, which is not
    // dropped here.
    let object = ManuallyDrop::new(unsafe { Arc::from_raw((*raw).private_data.cast::<T>()) });
    Ok(Arc::clone(&object))
}

#[kunit_tests(skua_value_page)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_value_and_zeroes() -> Result {
        let page = ValuePage::new(7)?;
        assert_eq!(page.get(), 7);
        page.set(u64::MAX);
        assert_eq!(page.get(), u64::MAX);
        // SAFETY: The page is ours, and its second word inside.
        let behind: u64 = unsafe {
            shim::skua_page_address(page.0.as_ptr())
                .cast::<u64>()
                .add(1)
                .read()
        };
        assert_eq!(behind, 0);
        Ok(())
    }
}
