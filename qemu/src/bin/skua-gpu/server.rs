// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the vfio-user connection asks, passed on to the device.
//!
//! Guest memory arrives as ranges of bus addresses with a file descriptor each. All ranges of one file share one
//! mapping of it: behind an IOMMU every page is a range of its own, and the host has limits for mappings
//! and descriptors. A range without a descriptor (a ROM, another device's BAR) cannot be reached; an access to it is a
//! bus error, which the device reports.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use skua_gpu::bus::Backing;
use skua_gpu::device::Device;
use skua_spec::pci;
use vfio_bindings::bindings::vfio::{
    vfio_region_info, vfio_region_sparse_mmap_area, VFIO_IRQ_INFO_EVENTFD,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion, SparseArea};
use vm_memory::{FileOffset, MmapRegion};

use crate::config::{self, Config};
use crate::msix::Msix;

/// The device behind a connection.
pub(crate) struct Server {
    device: Device,
    config: Config,
    msix: Arc<Msix>,
    vram: File,
    /// Mappings of guest memory, by device and inode of the file.
    files: HashMap<(u64, u64), Arc<MmapRegion>>,
}

impl Server {
    /// A server for `device`, whose VRAM is in `vram` and whose interrupts go to `msix`.
    pub(crate) fn new(device: Device, msix: Arc<Msix>, vram: File) -> Self {
        Self {
            config: Config::new(device.vectors()),
            device,
            msix,
            vram,
            files: HashMap::new(),
        }
    }

    /// Serves one connection on a new socket at `path`, until it ends.
    pub(crate) fn serve(mut self, path: &Path) -> Result<(), vfio_user::Error> {
        let server = vfio_user::Server::new(path, true, self.irqs(), self.regions())?;
        server.run(&mut self)
    }

    fn irqs(&self) -> Vec<IrqInfo> {
        (0..VFIO_PCI_NUM_IRQS)
            .map(|index| IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD,
                count: if index == VFIO_PCI_MSIX_IRQ_INDEX {
                    self.device.vectors()
                } else {
                    0
                },
            })
            .collect()
    }

    fn regions(&self) -> Vec<ServerRegion> {
        let access = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        (0..VFIO_PCI_NUM_REGIONS)
            .map(|index| {
                let (size, flags) = match index {
                    pci::BAR_REGS => (pci::BAR_REGS_SIZE, access),
                    pci::BAR_VRAM => (
                        self.device.vram().bytes(),
                        access | VFIO_REGION_INFO_FLAG_MMAP,
                    ),
                    VFIO_PCI_CONFIG_REGION_INDEX => (config::SIZE as u64, access),
                    _ => (0, 0),
                };
                let is_vram = index == pci::BAR_VRAM;
                ServerRegion {
                    region_info: vfio_region_info {
                        argsz: size_of::<vfio_region_info>() as u32,
                        flags,
                        index,
                        size,
                        ..Default::default()
                    },
                    sparse_areas: if is_vram {
                        vec![SparseArea {
                            area: vfio_region_sparse_mmap_area { offset: 0, size },
                        }]
                    } else {
                        Vec::new()
                    },
                    mmap_fd: is_vram.then(|| self.vram.as_raw_fd()),
                }
            })
            .collect()
    }

    /// The mapping of all of `file`, made when it is first met or when the file has grown.
    fn mapping(&mut self, file: File) -> io::Result<Arc<MmapRegion>> {
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino());
        let bytes = usize::try_from(metadata.len()).map_err(io::Error::other)?;
        if let Some(region) = self.files.get(&key).filter(|region| region.size() >= bytes) {
            return Ok(Arc::clone(region));
        }
        let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes)
            .map(Arc::new)
            .map_err(io::Error::other)?;
        self.files.insert(key, Arc::clone(&region));
        Ok(region)
    }
}

impl ServerBackend for Server {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), io::Error> {
        match region {
            pci::BAR_REGS => self.device.read(offset, data),
            // Mapped by QEMU; what is trapped all the same (a debugger) is served.
            pci::BAR_VRAM => {
                data.fill(0xff);
                if let Some(slice) = self.device.vram().slice(offset, data.len() as u64) {
                    slice.copy_to(data);
                }
            }
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        match region {
            pci::BAR_REGS => self.device.write(offset, data),
            pci::BAR_VRAM => {
                if let Some(slice) = self.device.vram().slice(offset, data.len() as u64) {
                    slice.copy_from(data);
                }
            }
            VFIO_PCI_CONFIG_REGION_INDEX => {
                self.config.write(offset, data);
                self.device.set_bus_master(self.config.is_bus_master());
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> Result<(), io::Error> {
        let Some(file) = fd else {
            tracing::debug!(address, size, "a range without memory: not reachable");
            return Ok(());
        };
        let backing = Backing {
            region: self.mapping(file)?,
            offset,
            readable: flags.contains(DmaMapFlags::READ),
            writable: flags.contains(DmaMapFlags::WRITE),
        };
        tracing::debug!(address, size, offset, ?flags, "dma_map");
        if let Err(error) = self.device.dma_map(address, size, backing) {
            tracing::warn!(address, size, ?error, "a range was not mapped");
        }
        Ok(())
    }

    fn dma_unmap(
        &mut self,
        flags: DmaUnmapFlags,
        address: u64,
        size: u64,
    ) -> Result<(), io::Error> {
        tracing::debug!(address, size, ?flags, "dma_unmap");
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.device.dma_unmap_all();
        } else {
            self.device.dma_unmap(address, size);
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), io::Error> {
        self.device.reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> Result<(), io::Error> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let end = start.saturating_add(count);
        if end > self.device.vectors() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        if count == 0 {
            self.msix.clear();
        } else if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            // Vectors for which no descriptor came are taken theirs.
            let missing = (count as usize).saturating_sub(fds.len());
            let fds = fds.into_iter().map(Some);
            self.msix
                .assign(start, fds.chain((0..missing).map(|_| None)));
        }
        Ok(())
    }
}
