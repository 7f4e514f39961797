// SPDX-License-Identifier: MIT

//! A dma-buf: memory of any driver, shared by descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use skua_uapi as uapi;

use crate::{
    error::{Error, Result},
    mapping::Mapping,
    sys::{self, Map},
};

/// A dma-buf, such as [`crate::Bo::export`] makes.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor; the memory lives as long as one of it does.
    fd: OwnedFd,
}

/// What the CPU is about to do with a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CpuAccess {
    /// It reads what the device has written.
    Read = uapi::DMA_BUF_SYNC_READ,
    /// It writes what the device reads.
    Write = uapi::DMA_BUF_SYNC_WRITE,
    /// Caches are made good in both directions.
    ReadWrite = uapi::DMA_BUF_SYNC_RW,
}

impl DmaBuf {
    /// In bytes, as the exporter says.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the descriptor is no dma-buf.
    pub fn size(&self) -> Result<u64> {
        rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::End(0)).map_err(|errno| Error::System {
            name: "lseek",
            errno,
        })
    }

    /// Maps all of the buffer for the CPU, to be written only if it is `writable`.
    ///
    /// # Errors
    ///
    /// What mmap() says, and the exporter in it.
    pub fn map(&self, writable: bool) -> Result<Mapping> {
        let len = usize::try_from(self.size()?)
            .map_err(|_| Error::Argument("larger than the address space"))?;
        Map::new(self.fd.as_fd(), 0, len, writable)
            .map(Mapping::new)
            .map_err(|errno| Error::System {
                name: "mmap",
                errno,
            })
    }

    /// Does something between the beginning and the end of a CPU access, as dma-bufs want it.
    ///
    /// # Errors
    ///
    /// What the exporter says.
    pub fn with_cpu_access<T>(
        &self,
        access: CpuAccess,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let sync = |flags| {
            let mut argument = uapi::dma_buf_sync {
                flags: u64::from(access as u32 | flags),
            };
            sys::restart(|| sys::call(self.fd.as_fd(), &mut argument)).map_err(|errno| {
                Error::Ioctl {
                    name: "DMA_BUF_SYNC",
                    errno,
                }
            })
        };
        sync(uapi::DMA_BUF_SYNC_START)?;
        let result = f();
        sync(uapi::DMA_BUF_SYNC_END)?;
        result
    }
}

impl From<OwnedFd> for DmaBuf {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<DmaBuf> for OwnedFd {
    fn from(dma_buf: DmaBuf) -> Self {
        dma_buf.fd
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
