// SPDX-License-Identifier: MIT

//! Mapped memory of buffer objects.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use nix::libc::off_t;
use nix::sys::mman::{self, MRemapFlags, MapFlags, ProtFlags};

use crate::raw::Errno;

/// A mapping, unmapped when dropped. The GPU and other processes may write to it at any time: every
/// access is a volatile one of its own.
#[derive(Debug)]
pub struct Mapping {
    /// Page aligned.
    base: NonNull<u8>,
    /// Bytes; every access is checked against it.
    len: usize,
}

// SAFETY: the memory belongs to the process, not to a thread.
#[expect(unsafe_code, reason = "a pointer to memory of the process")]
unsafe impl Send for Mapping {}
// SAFETY: accesses are volatile and may race with those of the GPU as they are.
#[expect(unsafe_code, reason = "a pointer to memory of the process")]
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file for reading and writing, shared.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> Result<Self, Errno> {
        Self::with(
            file,
            offset,
            len,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_SHARED,
        )
    }

    /// Maps with these rights and flags.
    ///
    /// # Errors
    ///
    /// The errno.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn with(
        file: impl AsFd,
        offset: u64,
        len: usize,
        rights: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self, Errno> {
        let length = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        let offset = off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: without an address and without MAP_FIXED nothing that is mapped is replaced.
        let base = unsafe { mman::mmap(None, length, rights, flags, file, offset)? };
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// Bytes of the mapping.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For system calls that take an address.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    #[track_caller]
    fn at<T>(&self, offset: usize) -> NonNull<T> {
        let size = size_of::<T>();
        assert!(
            offset % size == 0 && offset <= self.len && size <= self.len - offset,
            "offset {offset:#x} of a mapping of {:#x} bytes",
            self.len
        );
        #[expect(unsafe_code, reason = "a pointer into the mapping")]
        // SAFETY: the offset is inside.
        unsafe {
            self.base.add(offset).cast()
        }
    }

    /// Reads 64 bits.
    #[track_caller]
    #[expect(unsafe_code, reason = "memory that others write")]
    pub fn read(&self, offset: usize) -> u64 {
        // SAFETY: the mapping is there, aligned, and any bits are a number.
        unsafe { self.at::<u64>(offset).read_volatile() }
    }

    /// Writes 64 bits.
    #[track_caller]
    #[expect(unsafe_code, reason = "memory that others write")]
    pub fn write(&self, offset: usize, value: u64) {
        // SAFETY: the mapping is there and aligned. Without the right to write this is a fault,
        // which ends the process.
        unsafe { self.at::<u64>(offset).write_volatile(value) }
    }

    /// Reads 32 bits.
    #[track_caller]
    #[expect(unsafe_code, reason = "memory that others write")]
    pub fn read32(&self, offset: usize) -> u32 {
        // SAFETY: as for `read`.
        unsafe { self.at::<u32>(offset).read_volatile() }
    }

    /// Writes 32 bits.
    #[track_caller]
    #[expect(unsafe_code, reason = "memory that others write")]
    pub fn write32(&self, offset: usize, value: u32) {
        // SAFETY: as for `write`.
        unsafe { self.at::<u32>(offset).write_volatile(value) }
    }

    /// Reads a byte.
    #[track_caller]
    #[expect(unsafe_code, reason = "memory that others write")]
    pub fn read8(&self, offset: usize) -> u8 {
        // SAFETY: as for `read`.
        unsafe { self.at::<u8>(offset).read_volatile() }
    }

    /// Writes words one after the other.
    #[track_caller]
    pub fn write_words(&self, offset: usize, words: &[u32]) {
        for (n, word) in words.iter().enumerate() {
            self.write32(offset + 4 * n, *word);
        }
    }

    /// Fills all of it with 64-bit values made from their offset.
    pub fn fill(&self, value: impl Fn(usize) -> u64) {
        for offset in (0..self.len).step_by(8) {
            self.write(offset, value(offset));
        }
    }

    /// The first offset, a multiple of 8, at which the memory is not what `value` makes from it,
    /// with what is there.
    pub fn differs(&self, value: impl Fn(usize) -> u64) -> Option<(usize, u64)> {
        (0..self.len)
            .step_by(8)
            .map(|offset| (offset, self.read(offset)))
            .find(|(offset, seen)| *seen != value(*offset))
    }

    /// Asserts that all of it is what `value` makes from the offset.
    #[track_caller]
    pub fn expect(&self, what: &str, value: impl Fn(usize) -> u64) {
        if let Some((offset, seen)) = self.differs(&value) {
            panic!(
                "{what}: offset {offset:#x} is {seen:#018x}, not {:#018x}",
                value(offset)
            );
        }
    }

    /// Has the kernel read the beginning of a file into the mapping; how many bytes.
    ///
    /// # Errors
    ///
    /// The errno.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn read_from(&self, file: impl AsFd) -> Result<usize, Errno> {
        // SAFETY: the range is this mapping's, in which any bytes may appear.
        let read = unsafe {
            nix::libc::pread(
                file.as_fd().as_raw_fd(),
                self.base.as_ptr().cast(),
                self.len,
                0,
            )
        };
        Errno::result(read).map(isize::unsigned_abs)
    }

    /// Unmaps `len` bytes from `offset` on; what is left is a mapping before and one behind.
    ///
    /// # Errors
    ///
    /// The errno.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn punch(self, offset: usize, len: usize) -> Result<(Self, Self), Errno> {
        let hole = self.at::<u8>(offset);
        let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
        let tail_len = self.len.checked_sub(end).ok_or(Errno::EINVAL)?;
        let whole = std::mem::ManuallyDrop::new(self);
        // SAFETY: the range is this mapping's, which is given up.
        unsafe { mman::munmap(hole.cast(), len)? };
        let head = Self {
            base: whole.base,
            len: offset,
        };
        let tail = Self {
            // SAFETY: inside of what was the mapping, or right behind it.
            base: unsafe { whole.base.add(end) },
            len: tail_len,
        };
        Ok((head, tail))
    }

    /// Moves or resizes the mapping.
    ///
    /// # Errors
    ///
    /// The errno; the mapping is then as it was.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn remap(&mut self, len: usize, flags: MRemapFlags) -> Result<(), Errno> {
        // SAFETY: the mapping is this one, which is then at its new place.
        let base = unsafe { mman::mremap(self.base.cast(), self.len, len, flags, None)? };
        self.base = base.cast();
        self.len = len;
        Ok(())
    }

    /// mlock().
    ///
    /// # Errors
    ///
    /// The errno.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn keep_in_memory(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is there; its content does not change.
        unsafe { mman::mlock(self.base.cast(), self.len) }
    }

    /// Changes what may be done with the mapping.
    ///
    /// # Errors
    ///
    /// The errno.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn protect(&self, rights: ProtFlags) -> Result<(), Errno> {
        // SAFETY: the range is this mapping's; an access without the right ends the process.
        unsafe { mman::mprotect(self.base.cast(), self.len, rights) }
    }
}

impl Drop for Mapping {
    #[expect(unsafe_code, reason = "a system call")]
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range is this mapping's, and nobody has it any more.
            let _ = unsafe { mman::munmap(self.base.cast(), self.len) };
        }
    }
}
