// SPDX-License-Identifier: MIT

//! Other drivers that take and give dma-bufs.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use skua_uapi::*;

use crate::client::own;
use crate::raw::ioctl;
use crate::{skip, Errno};

/// A primary node of vgem. Skips the test if there is none.
pub fn vgem() -> File {
    for n in 0..16 {
        let path = format!("/dev/dri/card{n}");
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
            continue;
        };
        let mut name = [0_u8; 16];
        let mut version = drm_version {
            name_len: 16,
            name: name.as_mut_ptr().cast(),
            ..Default::default()
        };
        if ioctl(&file, DRM_IOCTL_VERSION, &mut version).is_ok() && name.starts_with(b"vgem") {
            return file;
        }
    }
    skip("the kernel has no vgem")
}

/// Has vgem import a dma-buf; the handle there.
///
/// # Errors
///
/// The errno.
pub fn import_by_vgem(vgem: &File, dma_buf: &OwnedFd) -> Result<u32, Errno> {
    let mut prime = drm_prime_handle {
        handle: 0,
        flags: 0,
        fd: dma_buf.as_fd().as_raw_fd(),
    };
    ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &mut prime)?;
    Ok(prime.handle)
}

/// Has what a dma-buf is of be written to by another driver until a sync file signals.
#[track_caller]
pub fn write_until(dma_buf: &OwnedFd, sync_file: &OwnedFd) {
    let mut argument = dma_buf_import_sync_file {
        flags: DMA_BUF_SYNC_WRITE,
        fd: sync_file.as_fd().as_raw_fd(),
    };
    ioctl(dma_buf, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &mut argument).expect("IMPORT_SYNC_FILE");
}

/// Memory of the system's heap. Skips the test if the kernel has none.
pub fn heap(size: u64) -> OwnedFd {
    try_heap(size).unwrap_or_else(|| skip("the kernel has no system heap"))
}

/// Memory of the system's heap, if the kernel has one.
pub fn try_heap(size: u64) -> Option<OwnedFd> {
    #[repr(C)]
    struct Allocation {
        len: u64,
        fd: u32,
        fd_flags: u32,
        heap_flags: u64,
    }
    let device = File::open("/dev/dma_heap/system").ok()?;
    let mut argument = Allocation {
        len: size,
        fd: 0,
        fd_flags: 0x8_0002, // O_CLOEXEC | O_RDWR
        heap_flags: 0,
    };
    // _IOWR('H', 0, struct dma_heap_allocation_data)
    ioctl(&device, 0xc018_4800, &mut argument).expect("DMA_HEAP_IOCTL_ALLOC");
    Some(own(i32::try_from(argument.fd).expect("a descriptor")))
}
