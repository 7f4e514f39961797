// SPDX-License-Identifier: GPL-2.0

//! What the device says of itself at probe, checked once.
//!
//! Nothing the device says is trusted further than these checks: a device with another
//! identification, a version that this driver does not know, or figures that contradict each other,
//! is refused with one line in the log.

use crate::{
    hardware::registers::Registers,
    policy::{
        miniport::{
            AdapterInfo,
            HostAperture,
            Segment,
            SegmentKind,
            APERTURE_SEGMENT,
            SYSTEM_SEGMENT,
            VRAM_SEGMENT, //
        },
        scheduling_caps::{
            can_be_stopped,
            granularity,
            SchedulingCaps, //
        },
        segments::{
            check,
            Contradiction,
            SegmentFlags, //
        }, //
    },
    spec::{
        address::{
            GpuPhys,
            PAGE_SIZE,
            PHYS_BITS,
            VA_BITS, //
        },
        aperture::{
            PageSize,
            MAX_PAGES, //
        },
        command::EngineKind,
        number::EngineIndex,
        pci::MAX_ENGINES,
        preemption,
        regs, //
    }, //
};
use kernel::{
    device,
    prelude::*, //
};

/// Pages of the GART window that the driver uses for itself; what for, [`crate::hardware::shared`]
/// says.
pub(crate) const GART_PAGES: u32 = 16 + 128 + MAX_ENGINES * 16;

/// Most pages of the GART window.
const MAX_GART_PAGES: u32 = 1 << 16;

/// VRAM is a multiple of this.
const VRAM_UNIT: u64 = 2 << 20;

/// The CPU host aperture of one device.
#[derive(Clone, Copy)]
pub(crate) struct ApertureCaps {
    /// Size of a page, of the aperture and of VRAM.
    pub(crate) page: PageSize,
    /// Pages, 1 to [`MAX_PAGES`]; together they are the size of the BAR.
    pub(crate) pages: u32,
}

impl ApertureCaps {
    /// Bytes of BAR4: all pages together.
    pub(crate) fn bytes(&self) -> u64 {
        self.page.bytes().saturating_mul(self.pages.into())
    }
}

/// The largest save area that there is room for in an address space.
const MAX_SAVE_SIZE: u32 = 4 << 20;

/// The kind of an engine, and where its work can be stopped for other work.
#[derive(Clone, Copy)]
pub(crate) struct EngineCaps {
    /// Whether it computes or copies.
    pub(crate) kind: EngineKind,
    /// Where commands that draw can be stopped.
    graphics: preemption::Level,
    /// Where commands that do not draw can be stopped.
    compute: preemption::Level,
}

impl EngineCaps {
    /// Whether it can be stopped before all is done, whatever it does.
    pub(crate) fn stops(&self) -> bool {
        let draws = (self.kind == EngineKind::Compute).then_some(self.graphics);
        can_be_stopped(Iterator::chain(draws.into_iter(), [self.compute]))
    }
}

/// The first minor version whose engines can be stopped: what an older one has in the fields for
/// that means nothing (row 2.05).
const PREEMPTION_SINCE: u16 = 3;
/// The first that says itself what scheduling it is made for.
const SCHEDULING_SINCE: u16 = 5;
/// The first whose contexts have queues, and whose engines can wait with interrupts.
const QUEUES_SINCE: u16 = 6;

/// The capabilities of one device.
pub(crate) struct Caps {
    /// Hardware version; the major one is [`regs::VERSION_MAJOR`].
    pub(crate) version: regs::VERSION,
    /// Whether contexts have queues of packets, or rings have all that there is of a packet; and
    /// whether interrupts can be moderated.
    pub(crate) has_queues: bool,
    /// The engines, by number: 1 to [`MAX_ENGINES`], of which at least one copies.
    pub(crate) engines: KVec<EngineCaps>,
    /// Bytes of VRAM: a multiple of [`VRAM_UNIT`], not 0.
    pub(crate) vram_size: u64,
    /// GPU-physical address of VRAM: a multiple of the page size, clear of the GART window.
    pub(crate) vram_base: GpuPhys,
    /// Bytes of VRAM, from its start, that the CPU can see: a power of two, the size of the BAR, or
    /// 0.
    pub(crate) vram_visible: u64,
    /// The window of the CPU on the rest of VRAM, if there is one; not if all is visible.
    pub(crate) aperture: Option<ApertureCaps>,
    /// Whether the CPU may have that cached (row 0.16); then nothing else of VRAM is visible.
    pub(crate) cached_aperture: bool,
    /// GPU-physical address of the GART window.
    pub(crate) gart_base: GpuPhys,
    /// Its pages, [`GART_PAGES`] to [`MAX_GART_PAGES`], the driver's own and those of the aperture
    /// segment.
    pub(crate) gart_pages: u32,
    /// log2 of the number of address space identifiers, 2 to 16: some are not for clients.
    pub(crate) asid_bits: u32,
    /// Bits of a bus address that the device can hold, 32 to [`PHYS_BITS`].
    pub(crate) bus_bits: u32,
    /// Most threads of a group.
    pub(crate) group_threads: u32,
    /// Threads of a wave; the driver only reports it.
    pub(crate) wave_threads: u32,
    /// Most bytes of shared memory of a group.
    pub(crate) shared_bytes: u32,
    /// Ticks in a nominal second; not 0.
    pub(crate) tick_hz: u32,
    /// Bytes of a context's save area; 0 if it has none, and no engine can be stopped.
    pub(crate) save_size: u32,
    /// MiB that the paging process' address space is to have; 0 for any.
    paging_va: u32,
    /// What scheduling it is made for, as it says or as follows from the rest; nobody has checked
    /// it.
    scheduling: u32,
}

/// Refuses the device with a line in the log.
fn refuse(dev: &device::Device, what: &CStr, value: u64) -> Error {
    dev_err!(dev, "not a usable Skua GPU: {} is {:#x}\n", what, value);
    EINVAL
}

/// What is said of the CPU host aperture, if there is one. `EINVAL`, `ENODEV`.
fn read_aperture(dev: &device::Device, regs: &Registers) -> Result<Option<ApertureCaps>> {
    let shift = regs.read(regs::APERTURE_CAPS)?.page_shift();
    let pages = regs.read(regs::APERTURE_PAGES)?.pages();
    if (shift, pages) == (0, 0) {
        return Ok(None);
    }
    let page = PageSize::from_shift(shift)
        .ok_or_else(|| refuse(dev, c"the shift of the aperture's pages", shift.into()))?;
    if !(1..=MAX_PAGES).contains(&pages) {
        return Err(refuse(
            dev,
            c"the number of the aperture's pages",
            pages.into(),
        ));
    }
    Ok(Some(ApertureCaps { page, pages }))
}

/// What a device is made for that does not say so.
fn scheduling_of(preempts: bool) -> u32 {
    let always = SchedulingCaps::MULTI_ENGINE_AWARE | SchedulingCaps::CANCEL_COMMAND_AWARE;
    match preempts {
        // It needs nothing patched without that either, but then must not say so.
        true => always | SchedulingCaps::PREEMPTION_AWARE | SchedulingCaps::NO_DMA_PATCHING,
        false => always,
    }
}

impl Caps {
    /// Reads and checks the capabilities. `EINVAL` for a device that cannot be driven; `ENODEV` if
    /// it is gone.
    pub(crate) fn read(dev: &device::Device, regs: &Registers) -> Result<Self> {
        let id = regs.read(regs::ID)?;
        if id != regs::ID::SKUA {
            return Err(refuse(dev, c"the identification", id.bits()));
        }
        let version = regs.read(regs::VERSION)?;
        if version.major() != regs::VERSION_MAJOR {
            return Err(refuse(dev, c"the version", version.bits()));
        }

        let count = regs.read(regs::CAPS)?.engines();
        if !(1..=MAX_ENGINES).contains(&count.into()) {
            return Err(refuse(dev, c"the number of engines", count.into()));
        }
        let scheduling = match version.minor() >= SCHEDULING_SINCE {
            true => Some(regs.read(regs::SCHEDULING)?),
            false => None,
        };
        let preempts = match scheduling {
            Some(stated) => stated.preemption(),
            None => version.minor() >= PREEMPTION_SINCE,
        };
        let mut engines = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for index in EngineIndex::ALL.into_iter().take(count.into()) {
            let info = regs.read_engine(index, regs::engine::INFO)?;
            let kind = info
                .kind()
                .ok_or_else(|| refuse(dev, c"an engine's kind", info.bits()))?;
            let levels = match preempts {
                true => info.graphics().zip(info.compute()),
                false => Some((preemption::Level::None, preemption::Level::None)),
            };
            let (graphics, compute) =
                levels.ok_or_else(|| refuse(dev, c"an engine's preemption", info.bits()))?;
            let engine = EngineCaps {
                kind,
                graphics,
                compute,
            };
            engines.push(engine, GFP_KERNEL)?;
        }
        if !engines.iter().any(|engine| engine.kind == EngineKind::Copy) {
            return Err(refuse(dev, c"the number of copy engines", 0));
        }

        let mmu = regs.read(regs::MMU_CAPS)?;
        let bus_bits = u32::from(mmu.bus_bits());
        if u32::from(mmu.va_bits()) != VA_BITS
            || !(32..=PHYS_BITS).contains(&bus_bits)
            || !(2..=16).contains(&mmu.asid_bits())
        {
            return Err(refuse(dev, c"the MMU's capabilities", mmu.bits()));
        }

        let vram_size = regs.read(regs::VRAM_SIZE)?.bytes();
        let vram_base = regs.read(regs::VRAM_BASE)?.address();
        let vram_visible = regs.read(regs::VRAM_VISIBLE)?.bytes();
        let gart_base = regs.read(regs::GART_BASE)?.address();
        let gart_pages = regs.read(regs::GART_MAX_PAGES)?.pages();
        // More than an address space has room for means nothing.
        if vram_size == 0 || vram_size % VRAM_UNIT != 0 || vram_size > 1 << VA_BITS {
            return Err(refuse(dev, c"the size of VRAM", vram_size));
        }
        // It is the size of a BAR, or there is none.
        let is_bar = vram_visible.is_power_of_two() && vram_visible >= PAGE_SIZE;
        if vram_visible > vram_size || (vram_visible != 0 && !is_bar) {
            return Err(refuse(dev, c"the size of visible VRAM", vram_visible));
        }
        let aperture = read_aperture(dev, regs)?;
        let end = |base: GpuPhys, size: u64| {
            base.checked_add(size)
                .filter(|end| base.is_aligned(PAGE_SIZE) && end.0 <= 1 << PHYS_BITS)
        };
        end(vram_base, vram_size).ok_or_else(|| refuse(dev, c"VRAM's base", vram_base.0))?;
        end(gart_base, u64::from(gart_pages) * PAGE_SIZE)
            .ok_or_else(|| refuse(dev, c"the GART's base", gart_base.0))?;
        if !(GART_PAGES..=MAX_GART_PAGES).contains(&gart_pages) {
            return Err(refuse(dev, c"the GART's size", gart_pages.into()));
        }

        let dispatch = regs.read(regs::DISPATCH_CAPS)?;
        let save_size = regs.read(regs::SAVE_SIZE)?.bytes();
        let least = u32::from(engines.iter().any(EngineCaps::stops));
        if !(least..=MAX_SAVE_SIZE).contains(&save_size) {
            return Err(refuse(dev, c"the size of a save area", save_size.into()));
        }
        let tick_hz = regs.read(regs::TICK_HZ)?.hz();
        if tick_hz == 0 {
            return Err(refuse(dev, c"the frequency of ticks", 0));
        }

        let scheduling = match scheduling {
            Some(stated) => stated.word(),
            None => scheduling_of(engines.iter().any(EngineCaps::stops)),
        };

        let caps = Self {
            version,
            has_queues: version.minor() >= QUEUES_SINCE,
            engines,
            vram_size,
            vram_base,
            vram_visible,
            aperture,
            cached_aperture: regs.read(regs::APERTURE_CAPS)?.cached(),
            gart_base,
            // Before version 1.2 no page table leads there.
            gart_pages: match version.minor() {
                0 | 1 => GART_PAGES,
                _ => gart_pages,
            },
            asid_bits: mmu.asid_bits().into(),
            bus_bits,
            group_threads: dispatch.group_threads().into(),
            wave_threads: dispatch.wave_threads().into(),
            shared_bytes: regs.read(regs::SHARED_CAPS)?.bytes(),
            tick_hz,
            save_size,
            paging_va: regs.read(regs::PAGING_VA)?.megabytes(),
            scheduling,
        };
        check(&caps.segments()).map_err(|contradiction| {
            let Contradiction { segment, what } = contradiction;
            dev_err!(dev, "not a usable Skua GPU: segment {} {}\n", segment, what);
            EINVAL
        })?;
        Ok(caps)
    }

    /// How finely what draws, and what computes, can be preempted (row 2.06).
    pub(crate) fn preemption(&self) -> [preemption::Level; 2] {
        [
            |engine: &EngineCaps| engine.graphics,
            |engine: &EngineCaps| engine.compute,
        ]
        .map(|of| {
            let engines = self.engines.iter();
            let able = engines.filter(|engine| engine.kind == EngineKind::Compute);
            granularity(able.map(of))
        })
    }

    /// See [`Miniport::query_segments`](crate::policy::miniport::Miniport::query_segments).
    pub(crate) fn segments(&self) -> [Segment; 3] {
        let vram = SegmentKind::Memory {
            base: self.vram_base,
            bytes: self.vram_size,
            cpu_visible: self.vram_visible,
            host_aperture: self.aperture.map(|aperture| HostAperture {
                pages: aperture.pages,
                page_bytes: aperture.page.bytes(),
            }),
        };
        let visible = match self.vram_visible == self.vram_size {
            true => SegmentFlags::CPU_VISIBLE,
            false => SegmentFlags::NONE,
        };
        let host = match self.aperture {
            Some(_) => SegmentFlags::SUPPORTS_CPU_HOST_APERTURE,
            None => SegmentFlags::NONE,
        };
        let cached = match self.cached_aperture {
            true => SegmentFlags::SUPPORTS_CACHED_CPU_HOST_APERTURE,
            false => SegmentFlags::NONE,
        };
        [
            Segment {
                id: SYSTEM_SEGMENT,
                flags: SegmentFlags::NONE,
                kind: SegmentKind::System,
            },
            Segment {
                id: VRAM_SEGMENT,
                flags: visible.with(host).with(cached),
                kind: vram,
            },
            Segment {
                id: APERTURE_SEGMENT,
                flags: SegmentFlags::APERTURE.with(SegmentFlags::CACHE_COHERENT),
                kind: SegmentKind::Aperture {
                    base: self.gart_base,
                    pages: self.gart_pages.into(),
                    own: GART_PAGES.into(),
                },
            },
        ]
    }
}

impl AdapterInfo for Caps {
    type Error = Error;

    fn query_paging_va(&self, adapter: u32) -> Result<u32> {
        match adapter {
            0 => Ok(self.paging_va),
            _ => Err(EINVAL),
        }
    }

    fn query_scheduling_caps(&self) -> u32 {
        self.scheduling
    }
}
