// SPDX-License-Identifier: MIT

//! The system calls and accesses that Rust cannot check: `ioctl`, `mmap`, and memory that a device
//! shares.
//!
//! This is the one file of the crate with `unsafe` in it.
//!
//! # Shared memory
//!
//! Bytes behind a [`Map`] can change at any time: the GPU writes them, and so may another process.
//! So no reference to them ever exists, and every access is a volatile one of 1, 2, 4 or 8 aligned
//! bytes. The region is created by the kernel and never handed to Rust's allocator or to code that
//! accesses it in another way, so that it is, in the terms of [`core::ptr::read_volatile`], memory
//! outside of all Rust allocations; what changes it is no data race of this program. Aligned
//! accesses of these sizes do not tear on the architectures that the driver knows.

#![expect(unsafe_code, reason = "the only file that has to")]

use std::{
    ffi::c_void,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

use rustix::{
    io::Errno,
    ioctl::{Ioctl, IoctlOutput, Opcode},
    mm::{MapFlags, ProtFlags},
};
use skua_uapi as uapi;

/// An ioctl whose number is only known when the program runs.
struct Call {
    /// The ioctl's number, which says the size and direction of its argument too.
    request: u32,
    /// What the kernel reads and writes; it has to suit `request`.
    argument: *mut c_void,
}

// SAFETY: `ioctl` below hands the caller's promise on that `argument` suits `request`. The output
// is read by the caller alone.
unsafe impl Ioctl for Call {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        // CAST: widens on every architecture that the driver knows.
        self.request as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<IoctlOutput> {
        Ok(out)
    }
}

/// Calls any ioctl, once, with whatever argument.
///
/// # Errors
///
/// What the kernel says, EINTR and EAGAIN included.
///
/// # Safety
///
/// For `request`, `argument` must be what the kernel expects of it: valid for reads and writes of
/// the size in the number, and each pointer in it valid for what the ioctl does with it; or else an
/// address at which this process has no memory.
pub unsafe fn ioctl(fd: BorrowedFd<'_>, request: u32, argument: *mut c_void) -> Result<i32, Errno> {
    // SAFETY: by the caller's promise the kernel accesses only what it may.
    unsafe { rustix::ioctl::ioctl(fd, Call { request, argument }) }
}

/// The argument of an ioctl that can be called with any value of it.
///
/// # Safety
///
/// The kernel writes to no address that stands in the argument: it may read at such addresses, and
/// write to the argument itself.
pub unsafe trait Argument: sealed::Sealed {
    /// The ioctl's number, with the size of the structure.
    const REQUEST: u32;
    /// The ioctl's name, without `DRM_IOCTL_`.
    const NAME: &'static str;
}

macro_rules! arguments {
    ($($type:ident: $request:ident, $name:literal;)*) => { $(
        impl sealed::Sealed for uapi::$type {}
        // SAFETY: of the structure's members none is the address of something that the ioctl
        // writes, by its documentation.
        unsafe impl Argument for uapi::$type {
            const REQUEST: u32 = uapi::$request;
            const NAME: &'static str = $name;
        }
        const _: () = assert!(size_of::<uapi::$type>() == argument_size(uapi::$request));
    )* };
}

/// The bytes that an ioctl's number says its argument has.
pub const fn argument_size(request: u32) -> usize {
    ((request >> SIZE_SHIFT) & SIZE_MAX) as usize
}

/// An ioctl's number with another size of its argument, of 14 bits.
pub const fn with_size(request: u32, size: usize) -> u32 {
    // CAST: what is more than 14 bits is cut.
    (request & !(SIZE_MAX << SIZE_SHIFT)) | ((size as u32 & SIZE_MAX) << SIZE_SHIFT)
}

/// Where the size stands in an ioctl's number.
const SIZE_SHIFT: u32 = 16;
/// The largest size that can stand there.
const SIZE_MAX: u32 = (1 << 14) - 1;

// Without QUERY, SYNCOBJ_QUERY, VERSION and FILE_INFO, which write where the argument points to.
arguments! {
    drm_skua_bo_create: DRM_IOCTL_SKUA_BO_CREATE, "SKUA_BO_CREATE";
    drm_skua_bo_mmap_offset: DRM_IOCTL_SKUA_BO_MMAP_OFFSET, "SKUA_BO_MMAP_OFFSET";
    drm_skua_bo_info: DRM_IOCTL_SKUA_BO_INFO, "SKUA_BO_INFO";
    drm_skua_bo_destroy: DRM_IOCTL_SKUA_BO_DESTROY, "SKUA_BO_DESTROY";
    drm_skua_make_resident: DRM_IOCTL_SKUA_MAKE_RESIDENT, "SKUA_MAKE_RESIDENT";
    drm_skua_evict: DRM_IOCTL_SKUA_EVICT, "SKUA_EVICT";
    drm_skua_bo_lock: DRM_IOCTL_SKUA_BO_LOCK, "SKUA_BO_LOCK";
    drm_skua_bo_unlock: DRM_IOCTL_SKUA_BO_UNLOCK, "SKUA_BO_UNLOCK";
    drm_skua_bo_set_priority: DRM_IOCTL_SKUA_BO_SET_PRIORITY, "SKUA_BO_SET_PRIORITY";
    drm_skua_bo_offer: DRM_IOCTL_SKUA_BO_OFFER, "SKUA_BO_OFFER";
    drm_skua_bo_reclaim: DRM_IOCTL_SKUA_BO_RECLAIM, "SKUA_BO_RECLAIM";
    drm_skua_device_create: DRM_IOCTL_SKUA_DEVICE_CREATE, "SKUA_DEVICE_CREATE";
    drm_skua_device_destroy: DRM_IOCTL_SKUA_DEVICE_DESTROY, "SKUA_DEVICE_DESTROY";
    drm_skua_device_state: DRM_IOCTL_SKUA_DEVICE_STATE, "SKUA_DEVICE_STATE";
    drm_skua_device_mark_error: DRM_IOCTL_SKUA_DEVICE_MARK_ERROR, "SKUA_DEVICE_MARK_ERROR";
    drm_skua_vm_create: DRM_IOCTL_SKUA_VM_CREATE, "SKUA_VM_CREATE";
    drm_skua_vm_destroy: DRM_IOCTL_SKUA_VM_DESTROY, "SKUA_VM_DESTROY";
    drm_skua_vm_bind: DRM_IOCTL_SKUA_VM_BIND, "SKUA_VM_BIND";
    drm_skua_context_create: DRM_IOCTL_SKUA_CONTEXT_CREATE, "SKUA_CONTEXT_CREATE";
    drm_skua_context_destroy: DRM_IOCTL_SKUA_CONTEXT_DESTROY, "SKUA_CONTEXT_DESTROY";
    drm_skua_context_set_priority: DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY, "SKUA_CONTEXT_SET_PRIORITY";
    drm_skua_set_priority_class: DRM_IOCTL_SKUA_SET_PRIORITY_CLASS, "SKUA_SET_PRIORITY_CLASS";
    drm_skua_context_alloc: DRM_IOCTL_SKUA_CONTEXT_ALLOC, "SKUA_CONTEXT_ALLOC";
    drm_skua_context_free: DRM_IOCTL_SKUA_CONTEXT_FREE, "SKUA_CONTEXT_FREE";
    drm_skua_context_state: DRM_IOCTL_SKUA_CONTEXT_STATE, "SKUA_CONTEXT_STATE";
    drm_skua_submit: DRM_IOCTL_SKUA_SUBMIT, "SKUA_SUBMIT";
    drm_skua_fence_create: DRM_IOCTL_SKUA_FENCE_CREATE, "SKUA_FENCE_CREATE";
    drm_skua_fence_destroy: DRM_IOCTL_SKUA_FENCE_DESTROY, "SKUA_FENCE_DESTROY";
    drm_skua_fence_export: DRM_IOCTL_SKUA_FENCE_EXPORT, "SKUA_FENCE_EXPORT";
    drm_skua_fence_import: DRM_IOCTL_SKUA_FENCE_IMPORT, "SKUA_FENCE_IMPORT";
    drm_skua_fence_signal: DRM_IOCTL_SKUA_FENCE_SIGNAL, "SKUA_FENCE_SIGNAL";
    drm_skua_fence_wait: DRM_IOCTL_SKUA_FENCE_WAIT, "SKUA_FENCE_WAIT";
    drm_skua_fence_eventfd: DRM_IOCTL_SKUA_FENCE_EVENTFD, "SKUA_FENCE_EVENTFD";
    drm_get_cap: DRM_IOCTL_GET_CAP, "GET_CAP";
    drm_gem_close: DRM_IOCTL_GEM_CLOSE, "GEM_CLOSE";
    drm_syncobj_create: DRM_IOCTL_SYNCOBJ_CREATE, "SYNCOBJ_CREATE";
    drm_syncobj_destroy: DRM_IOCTL_SYNCOBJ_DESTROY, "SYNCOBJ_DESTROY";
    drm_syncobj_wait: DRM_IOCTL_SYNCOBJ_WAIT, "SYNCOBJ_WAIT";
    drm_syncobj_timeline_wait: DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, "SYNCOBJ_TIMELINE_WAIT";
    drm_syncobj_transfer: DRM_IOCTL_SYNCOBJ_TRANSFER, "SYNCOBJ_TRANSFER";
    drm_syncobj_eventfd: DRM_IOCTL_SYNCOBJ_EVENTFD, "SYNCOBJ_EVENTFD";
    dma_buf_sync: DMA_BUF_IOCTL_SYNC, "DMA_BUF_SYNC";
    sync_merge_data: SYNC_IOC_MERGE, "SYNC_MERGE";
}

/// Calls an ioctl once, with any value of its argument.
///
/// # Errors
///
/// What the kernel says, EINTR and EAGAIN included.
pub fn call<T: Argument>(fd: BorrowedFd<'_>, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: the size in the number is that of `T` (asserted where the trait is implemented), and
    // the kernel writes nowhere else by the contract of `Argument`.
    unsafe { ioctl(fd, T::REQUEST, ptr::from_mut(argument).cast()) }
}

/// Calls QUERY once: `size` as given, the answer to `answer` or nowhere; returns the size.
///
/// # Errors
///
/// What the kernel says, EINTR and EAGAIN included.
///
/// # Panics
///
/// If there is an `answer` that is shorter than `size`.
pub fn query(
    fd: BorrowedFd<'_>,
    kind: u32,
    size: u32,
    answer: Option<&mut [u8]>,
) -> Result<u32, Errno> {
    let mut argument = uapi::drm_skua_query {
        type_: kind,
        size,
        pointer: match answer {
            Some(answer) => {
                assert!(size as usize <= answer.len());
                answer.as_mut_ptr().expose_provenance() as u64
            }
            None => 0,
        },
    };
    // SAFETY: the kernel writes the argument, whose size is that in the number, and at most `size`
    // bytes at `pointer`, which the slice has.
    unsafe {
        ioctl(
            fd,
            uapi::DRM_IOCTL_SKUA_QUERY,
            ptr::from_mut(&mut argument).cast(),
        )
    }?;
    Ok(argument.size)
}

/// Name of the driver behind a DRM node.
pub(crate) fn driver_name(fd: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut name = [0_u8; 64];
    let mut argument = uapi::drm_version {
        name: name.as_mut_ptr().cast(),
        name_len: name.len() as _,
        ..Default::default()
    };
    restart(|| {
        // SAFETY: the kernel writes the argument and at most `name_len` bytes at `name`; the other
        // strings have no room.
        unsafe {
            ioctl(
                fd,
                uapi::DRM_IOCTL_VERSION,
                ptr::from_mut(&mut argument).cast(),
            )
        }
    })?;
    // The length that came back is that of the whole name.
    let len = usize::try_from(argument.name_len).map_or(name.len(), |len| len.min(name.len()));
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Points of timeline syncobjs: the last signalled ones, or, by `flags`, the last submitted.
pub(crate) fn syncobj_query(
    fd: BorrowedFd<'_>,
    handles: &[u32],
    flags: u32,
) -> Result<Vec<u64>, Errno> {
    let mut points = vec![0; handles.len()];
    let mut argument = timeline_array(handles, &mut points, flags)?;
    restart(|| {
        // SAFETY: the kernel reads `count_handles` handles and writes as many points; both arrays
        // have as many.
        unsafe {
            ioctl(
                fd,
                uapi::DRM_IOCTL_SYNCOBJ_QUERY,
                ptr::from_mut(&mut argument).cast(),
            )
        }
    })?;
    Ok(points)
}

/// Signals points of timeline syncobjs.
pub(crate) fn syncobj_timeline_signal(
    fd: BorrowedFd<'_>,
    handles: &[u32],
    points: &mut [u64],
) -> Result<(), Errno> {
    assert_eq!(handles.len(), points.len());
    let mut argument = timeline_array(handles, points, 0)?;
    restart(|| {
        // SAFETY: the kernel reads `count_handles` of both arrays, which have as many.
        unsafe {
            ioctl(
                fd,
                uapi::DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL,
                ptr::from_mut(&mut argument).cast(),
            )
        }
    })?;
    Ok(())
}

fn timeline_array(
    handles: &[u32],
    points: &mut [u64],
    flags: u32,
) -> Result<uapi::drm_syncobj_timeline_array, Errno> {
    Ok(uapi::drm_syncobj_timeline_array {
        handles: handles.as_ptr().expose_provenance() as u64,
        points: points.as_mut_ptr().expose_provenance() as u64,
        count_handles: u32::try_from(handles.len()).map_err(|_| Errno::INVAL)?,
        flags,
    })
}

/// Resets or signals binary syncobjs: `request` is `DRM_IOCTL_SYNCOBJ_RESET` or `_SIGNAL`.
pub(crate) fn syncobj_array(
    fd: BorrowedFd<'_>,
    request: u32,
    handles: &[u32],
) -> Result<(), Errno> {
    assert!(matches!(
        request,
        uapi::DRM_IOCTL_SYNCOBJ_RESET | uapi::DRM_IOCTL_SYNCOBJ_SIGNAL
    ));
    let mut argument = uapi::drm_syncobj_array {
        handles: handles.as_ptr().expose_provenance() as u64,
        count_handles: u32::try_from(handles.len()).map_err(|_| Errno::INVAL)?,
        pad: 0,
    };
    restart(|| {
        // SAFETY: the kernel reads `count_handles` handles, which the slice has.
        unsafe { ioctl(fd, request, ptr::from_mut(&mut argument).cast()) }
    })?;
    Ok(())
}

/// Calls an ioctl, again when a signal comes first; gives back what became of its argument.
///
/// # Safety
///
/// `T` must be the argument that `request` tells, and the ioctl write to no address that stands in
/// it.
unsafe fn exchange<T>(fd: BorrowedFd<'_>, request: u32, mut argument: T) -> Result<T, Errno> {
    // SAFETY: by the caller's promise the argument is all that the kernel accesses.
    restart(|| unsafe { ioctl(fd, request, ptr::from_mut(&mut argument).cast()) })?;
    Ok(argument)
}

/// Makes a descriptor of a handle, by PRIME or for a syncobj.
pub(crate) fn handle_to_fd(
    fd: BorrowedFd<'_>,
    object: Exchange,
    handle: u32,
    flags: u32,
) -> Result<OwnedFd, Errno> {
    let raw = match object {
        Exchange::Bo => {
            let argument = uapi::drm_prime_handle {
                handle,
                flags,
                fd: -1,
            };
            // SAFETY: it is this ioctl's argument, without addresses.
            unsafe { exchange(fd, uapi::DRM_IOCTL_PRIME_HANDLE_TO_FD, argument)? }.fd
        }
        Exchange::Syncobj => {
            let argument = uapi::drm_syncobj_handle {
                handle,
                flags,
                fd: -1,
                ..Default::default()
            };
            // SAFETY: as above.
            unsafe { exchange(fd, uapi::DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD, argument)? }.fd
        }
    };
    if raw < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel has just opened the descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Makes a descriptor of a monitored fence, closed by execve().
pub(crate) fn fence_export(fd: BorrowedFd<'_>, fence: u32) -> Result<OwnedFd, Errno> {
    let mut argument = uapi::drm_skua_fence_export {
        fence,
        flags: uapi::DRM_SKUA_FENCE_EXPORT_CLOEXEC,
        fd: -1,
        pad: 0,
    };
    restart(|| call(fd, &mut argument))?;
    if argument.fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel has just opened the descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(argument.fd) })
}

/// Makes a handle of a descriptor, by PRIME or for a syncobj. With the flag for a sync file,
/// `handle` is the syncobj that takes its fence.
pub(crate) fn fd_to_handle(
    fd: BorrowedFd<'_>,
    object: Exchange,
    descriptor: BorrowedFd<'_>,
    handle: u32,
    flags: u32,
) -> Result<u32, Errno> {
    Ok(match object {
        Exchange::Bo => {
            let argument = uapi::drm_prime_handle {
                handle: 0,
                flags: 0,
                fd: descriptor.as_raw_fd(),
            };
            // SAFETY: it is this ioctl's argument, without addresses.
            unsafe { exchange(fd, uapi::DRM_IOCTL_PRIME_FD_TO_HANDLE, argument)? }.handle
        }
        Exchange::Syncobj => {
            let argument = uapi::drm_syncobj_handle {
                handle,
                flags,
                fd: descriptor.as_raw_fd(),
                ..Default::default()
            };
            // SAFETY: as above.
            unsafe { exchange(fd, uapi::DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE, argument)? }.handle
        }
    })
}

/// What crosses processes as a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// A buffer object, as a dma-buf.
    Bo,
    /// A syncobj, or the fence in it as a sync file.
    Syncobj,
}

/// The fences of a sync file.
pub(crate) fn sync_file_fences(fd: BorrowedFd<'_>) -> Result<Vec<uapi::sync_fence_info>, Errno> {
    let mut fences: Vec<uapi::sync_fence_info> = Vec::new();
    loop {
        let mut argument = uapi::sync_file_info {
            num_fences: u32::try_from(fences.len()).map_err(|_| Errno::INVAL)?,
            sync_fence_info: if fences.is_empty() {
                0
            } else {
                fences.as_mut_ptr().expose_provenance() as u64
            },
            ..Default::default()
        };
        restart(|| {
            // SAFETY: the kernel writes the argument and at most `num_fences` elements, which the
            // vector has.
            unsafe {
                ioctl(
                    fd,
                    uapi::SYNC_IOC_FILE_INFO,
                    ptr::from_mut(&mut argument).cast(),
                )
            }
        })?;
        let count = argument.num_fences as usize;
        if fences.is_empty() && count > 0 {
            fences.resize(count, uapi::sync_fence_info::default());
        } else {
            // Fences that ended meanwhile may have left the file.
            fences.truncate(count);
            return Ok(fences);
        }
    }
}

/// Calls until it is no signal that came first, as libdrm's drmIoctl() does.
pub(crate) fn restart<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return result,
        }
    }
}

/// A shared mapping of a file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Map {
    /// The address of the first byte, that of a page.
    start: NonNull<u8>,
    /// Bytes; not 0.
    len: usize,
    /// Whether it may be written to: a write to one that may not is a SIGSEGV.
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Map {}
// SAFETY: all accesses are volatile ones of memory outside of all Rust allocations, see the head of
// the file: two threads that access the same bytes see what two devices would.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes of `fd` from `offset` on, shared.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: the kernel chooses an address where nothing is mapped yet.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                fd.as_fd(),
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            writable,
        })
    }

    /// In bytes, as it was asked for.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether it may be written.
    pub(crate) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address of the first byte.
    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Reads a word, or `None` if it is not in the mapping or not aligned.
    pub(crate) fn read<T: Word>(&self, offset: usize) -> Option<T> {
        let at = self.at::<T>(offset, 1)?;
        // SAFETY: `at` checked range and alignment; the mapping is readable and lives as long as
        // `self`. Any bytes are a value of `T` by the contract of `Word`.
        Some(unsafe { at.read_volatile() })
    }

    /// Writes a word; `None` if it is not in the mapping, not aligned, or not writable.
    pub(crate) fn write<T: Word>(&self, offset: usize, value: T) -> Option<()> {
        if !self.writable {
            return None;
        }
        let at = self.at::<T>(offset, 1)?;
        // SAFETY: `at` checked range and alignment; the mapping is writable and lives as long as
        // `self`.
        unsafe { at.write_volatile(value) };
        Some(())
    }

    /// Reads words to `to`.
    pub(crate) fn copy_to<T: Word>(&self, offset: usize, to: &mut [T]) -> Option<()> {
        let at = self.at::<T>(offset, to.len())?;
        for (i, word) in to.iter_mut().enumerate() {
            // SAFETY: `at` checked all `to.len()` words, and `i` is below that.
            *word = unsafe { at.add(i).read_volatile() };
        }
        Some(())
    }

    /// Writes the words of `from`.
    pub(crate) fn copy_from<T: Word>(&self, offset: usize, from: &[T]) -> Option<()> {
        if !self.writable {
            return None;
        }
        let at = self.at::<T>(offset, from.len())?;
        for (i, word) in from.iter().enumerate() {
            // SAFETY: `at` checked all `from.len()` words, and `i` is below that.
            unsafe { at.add(i).write_volatile(*word) };
        }
        Some(())
    }

    /// The address of `count` words, all of them in the mapping and aligned.
    fn at<T: Word>(&self, offset: usize, count: usize) -> Option<*mut T> {
        let end = count
            .checked_mul(size_of::<T>())?
            .checked_add(offset)
            .filter(|end| *end <= self.len)?;
        debug_assert!(end <= self.len);
        // The start of a mapping is a page's: aligned for every word.
        if offset % align_of::<T>() != 0 {
            return None;
        }
        // SAFETY: `offset <= end <= len`, so that the result is in the mapping or just behind it.
        Some(unsafe { self.start.as_ptr().add(offset) }.cast())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and as `self` goes nobody has its address any
        // more but who was warned by `as_ptr`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        // Fails only if a split would need more mappings than allowed; ours is not split.
        debug_assert!(unmapped.is_ok());
    }
}

/// A plain number that can be read from and written to shared memory at once.
///
/// # Safety
///
/// Any bytes are a value of the type, and its size is 1, 2, 4 or 8 and its alignment.
pub unsafe trait Word: Copy + Default + sealed::Sealed + 'static {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! word {
    ($($type:ty)*) => { $(
        impl sealed::Sealed for $type {}
        const _: () = assert!(size_of::<$type>() <= 8 && align_of::<$type>() == size_of::<$type>());
        // SAFETY: a plain number; its size was asserted above.
        unsafe impl Word for $type {}
    )* };
}
word!(u8 i8 u16 i16 u32 i32 f32 u64 i64 f64);
