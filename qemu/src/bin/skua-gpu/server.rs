// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The vfio-user side: regions, interrupts and guest memory of one connection.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::{memfd_create, MemfdFlags};
use skua_gpu::bus::Backing;
use skua_gpu::device::Device;
use skua_gpu::events::Events;
use skua_gpu::interrupt::Interrupts;
use skua_gpu::options::{Options, Stepping};
use skua_gpu::repeats::Repeats;
use skua_gpu::vram::{Aperture, Vram};
use skua_spec::config;
use skua_spec::pci::{BAR_HOST_APERTURE, BAR_REGS, BAR_REGS_SIZE, BAR_VRAM};
use vfio_bindings::bindings::vfio::{
    vfio_region_info, vfio_region_sparse_mmap_area, VFIO_IRQ_INFO_EVENTFD,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};

use crate::config_space::ConfigSpace;
use crate::control;
use crate::guest_memory::GuestMemory;
use crate::vectors::Vectors;
use crate::Cli;

/// Serves one connection with a device of these options.
pub(crate) fn serve(cli: &Cli) -> Result<()> {
    let (socket, layout) = (cli.socket.as_path(), cli.layout()?);
    remove_stale(socket)?;
    let options = Options {
        engines: cli.engines.clone(),
        paging_va: cli.paging_va,
        gart_pages: cli.gart_pages,
        preemption: cli.preemption()?,
        stepping: if cli.deterministic {
            Stepping::Clock
        } else {
            Stepping::Threads
        },
        speed: cli.speed,
    };
    let home = memory_file("skua-vram", layout.bytes).context("VRAM")?;
    let aperture_bytes = layout.aperture.map_or(0, Aperture::bytes);
    let slots = memory_file("skua-aperture", aperture_bytes).context("aperture")?;
    let vram = Vram::from_files(layout, home.try_clone()?, slots.try_clone()?).context("VRAM")?;
    // CAST: at most eight engines.
    let count = options.engines.len() as u32 + 1;
    let vectors = Arc::new(Vectors::new(count));
    let interrupts: Arc<dyn Interrupts> = Arc::<Vectors>::clone(&vectors);
    let device = Arc::new(Device::new(&options, Arc::new(vram), interrupts)?);
    if !cli.lie.is_empty() {
        device.lie(&cli.lie)?;
    }
    if let Some(path) = &cli.events {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        device.record(Events::new(Box::new(file), cli.events_max, &cli.engines)?);
    }
    if let Some(path) = &cli.control {
        control::listen(path, &device)?;
    }
    let bars = [
        (BAR_REGS, BAR_REGS_SIZE, None),
        (BAR_VRAM, layout.visible, Some(&home)),
        (BAR_HOST_APERTURE, aperture_bytes, Some(&slots)),
    ]
    .map(|(index, size, file)| (index, size, file.filter(|_| !layout.trapped)));
    let server = Server::new(socket, true, irqs(count), regions(&bars))?;
    tracing::info!(socket = %socket.display(), ?layout, "ready");
    let mut backend = Backend {
        config: ConfigSpace::new(count, layout.visible, aperture_bytes),
        memory: GuestMemory::default(),
        vectors,
        device,
        refused: Repeats::default(),
    };
    server.run(&mut backend)?;
    Ok(())
}

/// Removes a socket that a server left which is no more.
fn remove_stale(socket: &Path) -> io::Result<()> {
    if !socket.exists() {
        return Ok(());
    }
    match UnixStream::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(socket)
        }
        _ => Err(io::Error::from(io::ErrorKind::AddrInUse)),
    }
}

/// Memory that QEMU can map.
fn memory_file(name: &str, bytes: u64) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// All regions: each of `bars` has its index, its size (0 if it is not there) and the memory that
/// QEMU maps for it.
fn regions(bars: &[(u32, u64, Option<&File>)]) -> Vec<ServerRegion> {
    let rw = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let bar = bars
                .iter()
                .find(|(bar, size, _)| *bar == index && *size != 0);
            let (size, flags, file) = match bar {
                Some((_, size, Some(file))) => (*size, rw | VFIO_REGION_INFO_FLAG_MMAP, Some(file)),
                Some((_, size, None)) => (*size, rw, None),
                None if index == VFIO_PCI_CONFIG_REGION_INDEX => (config::SIZE as u64, rw, None),
                None => (0, 0, None),
            };
            let area = vfio_region_sparse_mmap_area { offset: 0, size };
            ServerRegion {
                region_info: vfio_region_info {
                    // CAST: the size of a small structure.
                    argsz: size_of::<vfio_region_info>() as u32,
                    flags,
                    index,
                    size,
                    ..Default::default()
                },
                sparse_areas: file.map(|_| SparseArea { area }).into_iter().collect(),
                mmap_fd: file.map(|file| file.as_raw_fd()),
            }
        })
        .collect()
}

fn irqs(vectors: u32) -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
            IrqInfo {
                index,
                flags: if msix { VFIO_IRQ_INFO_EVENTFD } else { 0 },
                count: if msix { vectors } else { 0 },
            }
        })
        .collect()
}

struct Backend {
    /// Told of all that the guest does to it.
    device: Arc<Device>,
    /// What the guest has set of BARs, MSI-X and power.
    config: ConfigSpace,
    /// The files behind what QEMU has mapped for the device.
    memory: GuestMemory,
    /// The event descriptors that QEMU gave for MSI-X.
    vectors: Arc<Vectors>,
    /// Ranges that were not mapped.
    refused: Repeats,
}

impl Backend {
    /// Makes a range of a file known to the device.
    fn map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: File,
    ) -> Result<()> {
        let (readable, writable) = (
            flags.contains(DmaMapFlags::READ),
            flags.contains(DmaMapFlags::WRITE),
        );
        let end = offset.checked_add(size).context("its end wraps")?;
        let backing = Backing {
            region: self.memory.region(file, end, writable)?,
            offset,
            readable,
            writable,
        };
        self.device.dma_map(address, size, backing)?;
        Ok(())
    }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            BAR_REGS | BAR_VRAM | BAR_HOST_APERTURE if !self.config.is_awake() => data.fill(0xff),
            BAR_REGS => self.device.read(offset, data),
            BAR_VRAM => self.device.read_vram(offset, data),
            BAR_HOST_APERTURE => self.device.read_aperture(offset, data),
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            _ => data.fill(0xff),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            BAR_REGS | BAR_VRAM | BAR_HOST_APERTURE if !self.config.is_awake() => {}
            BAR_REGS => self.device.write(offset, data),
            BAR_VRAM => self.device.write_vram(offset, data),
            BAR_HOST_APERTURE => self.device.write_aperture(offset, data),
            VFIO_PCI_CONFIG_REGION_INDEX => {
                let stays_master = || self.device.stays_master();
                let effect = self.config.write(offset, data, stays_master);
                self.device.set_bus_master(effect.master);
                if effect.reset {
                    self.device.reset();
                }
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
    ) -> io::Result<()> {
        // Regions without a descriptor (ROMs, other devices' BARs) cannot be reached: an access is
        // a bus error.
        let Some(file) = fd else {
            tracing::debug!(address, size, "no descriptor");
            return Ok(());
        };
        tracing::debug!(address, size, offset, ?flags, "map");
        // An error would end QEMU. What is not mapped is a bus error when it is used.
        if let Err(error) = self.map(flags, offset, address, size, file) {
            if let Some(times) = self.refused.count() {
                tracing::warn!(times, address, size, %error, "a range was not mapped");
            }
        }
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(address, size, ?flags, "unmap");
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.device.dma_unmap_all();
        } else {
            self.device.dma_unmap(address, size);
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config.reset();
        self.device.set_bus_master(false);
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
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            // A run without descriptors takes them away.
            self.vectors.set(start, count, fds);
        } else if count == 0 {
            self.vectors.set(0, u32::MAX, Vec::new());
        } else {
            for vector in start..start.saturating_add(count).min(self.device.vectors()) {
                self.vectors.raise(vector);
            }
        }
        Ok(())
    }
}
