// SPDX-License-Identifier: GPL-2.0

//! What the device says of itself at probe, checked once.
//!
//! Nothing the device says is trusted further than these checks: a device with another identification, a
//! version that this driver does not know, or figures that contradict each other, is refused with one
//! line in the log.

use crate::{
    hardware::registers::Registers,
    spec::{
        address::{
            GpuPhys,
            PAGE_SIZE,
            PHYS_BITS,
            VA_BITS, //
        },
        command::EngineKind,
        pci::MAX_ENGINES,
        regs, //
    }, //
};
use kernel::{
    device,
    prelude::*, //
};

/// Pages of the GART window that the driver uses: rings and context descriptors.
pub(crate) const GART_PAGES: u32 = 256;

/// The capabilities of one device.
pub(crate) struct Caps {
    /// Major version in bits 31:16, minor in 15:0.
    pub(crate) version: u32,
    /// The engines, in order.
    pub(crate) engines: KVec<EngineKind>,
    /// Bytes of VRAM.
    pub(crate) vram_size: u64,
    /// GPU-physical address of VRAM.
    pub(crate) vram_base: GpuPhys,
    /// Bytes of VRAM, from its start, that the CPU can see.
    pub(crate) vram_visible: u64,
    /// GPU-physical address of the GART window.
    pub(crate) gart_base: GpuPhys,
    /// log2 of the number of address space identifiers.
    pub(crate) asid_bits: u32,
    /// Bits of a bus address that the device can hold.
    pub(crate) bus_bits: u32,
    /// Most threads of a group.
    pub(crate) group_threads: u32,
    /// Threads of a wave.
    pub(crate) wave_threads: u32,
    /// Most bytes of shared memory of a group.
    pub(crate) shared_bytes: u32,
    /// Ticks in a nominal second; not 0.
    pub(crate) tick_hz: u32,
}

/// Refuses the device with a line in the log.
fn refuse(dev: &device::Device, what: &CStr, value: u64) -> Error {
    dev_err!(dev, "not a usable Skua GPU: {} is {:#x}\n", what, value);
    EINVAL
}

impl Caps {
    /// Reads and checks the capabilities. `EINVAL` for a device that cannot be driven; `ENODEV` if it is
    /// gone.
    pub(crate) fn read(dev: &device::Device, regs: &Registers) -> Result<Self> {
        let id = regs.read(regs::ID)?;
        if id != regs::ID_VALUE {
            return Err(refuse(dev, c"the identification", id.into()));
        }
        let version = regs.read(regs::VERSION)?;
        if version >> 16 != regs::VERSION_MAJOR {
            return Err(refuse(dev, c"the version", version.into()));
        }

        let count = regs.read(regs::CAPS)? & 0xff;
        if !(1..=MAX_ENGINES).contains(&count) {
            return Err(refuse(dev, c"the number of engines", count.into()));
        }
        let mut engines = KVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
        for index in 0..count {
            let info = regs.read_engine(index, regs::engine::INFO)?;
            let kind = EngineKind::from_u32(info & 0xff)
                .ok_or_else(|| refuse(dev, c"an engine's kind", info.into()))?;
            engines.push(kind, GFP_KERNEL)?;
        }
        if !engines.contains(&EngineKind::Copy) {
            return Err(refuse(dev, c"the number of copy engines", 0));
        }

        let mmu = regs.read(regs::MMU_CAPS)?;
        let (va_bits, bus_bits, asid_bits) = (mmu & 0xff, (mmu >> 8) & 0xff, (mmu >> 16) & 0xff);
        if va_bits != VA_BITS
            || !(32..=PHYS_BITS).contains(&bus_bits)
            || !(1..=16).contains(&asid_bits)
        {
            return Err(refuse(dev, c"the MMU's capabilities", mmu.into()));
        }

        let vram_size = regs.read_pair(regs::VRAM_SIZE_LO)?;
        let vram_base = regs.read_pair(regs::VRAM_BASE_LO)?;
        let vram_visible = regs.read_pair(regs::VRAM_VISIBLE_LO)?;
        let gart_base = regs.read_pair(regs::GART_BASE_LO)?;
        let gart_pages = regs.read(regs::GART_MAX_PAGES)?;
        if vram_size == 0
            || vram_size % PAGE_SIZE != 0
            || vram_visible > vram_size
            || vram_size > 1 << PHYS_BITS
        {
            return Err(refuse(dev, c"the size of VRAM", vram_size));
        }
        let end = |base: u64, size: u64| {
            base.checked_add(size)
                .filter(|end| base % PAGE_SIZE == 0 && *end <= 1 << PHYS_BITS)
        };
        let vram_end =
            end(vram_base, vram_size).ok_or_else(|| refuse(dev, c"VRAM's base", vram_base))?;
        let gart_end = end(gart_base, u64::from(gart_pages) * PAGE_SIZE)
            .ok_or_else(|| refuse(dev, c"the GART's base", gart_base))?;
        if vram_base < gart_end && gart_base < vram_end {
            return Err(refuse(dev, c"the GART's base, within VRAM,", gart_base));
        }
        if gart_pages < GART_PAGES {
            return Err(refuse(dev, c"the GART's size", gart_pages.into()));
        }

        let dispatch = regs.read(regs::DISPATCH_CAPS)?;
        let tick_hz = regs.read(regs::TICK_HZ)?;
        if tick_hz == 0 {
            return Err(refuse(dev, c"the frequency of ticks", 0));
        }

        Ok(Self {
            version,
            engines,
            vram_size,
            vram_base: GpuPhys(vram_base),
            vram_visible,
            gart_base: GpuPhys(gart_base),
            asid_bits,
            bus_bits,
            group_threads: dispatch & 0xffff,
            wave_threads: (dispatch >> 16) & 0xff,
            shared_bytes: regs.read(regs::SHARED_CAPS)?,
            tick_hz,
        })
    }
}
