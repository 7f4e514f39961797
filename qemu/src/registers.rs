// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which register is at an offset, and the values that the driver wrote (manual section 2).
//!
//! An access is first decoded to a [`Register`]; [`crate::device`] then says what it does.

use skua_spec::regs::{self, engine};

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// [`regs::ID`]
    Id,
    /// [`regs::VERSION`]
    Version,
    /// [`regs::CAPS`]
    Caps,
    /// [`regs::MMU_CAPS`]
    MmuCaps,
    /// [`regs::VRAM_SIZE_LO`]
    VramSizeLo,
    /// [`regs::VRAM_SIZE_HI`]
    VramSizeHi,
    /// [`regs::VRAM_BASE_LO`]
    VramBaseLo,
    /// [`regs::VRAM_BASE_HI`]
    VramBaseHi,
    /// [`regs::VRAM_VISIBLE_LO`]
    VramVisibleLo,
    /// [`regs::VRAM_VISIBLE_HI`]
    VramVisibleHi,
    /// [`regs::GART_BASE_LO`]
    GartBaseLo,
    /// [`regs::GART_BASE_HI`]
    GartBaseHi,
    /// [`regs::GART_MAX_PAGES`]
    GartMaxPages,
    /// [`regs::DISPATCH_CAPS`]
    DispatchCaps,
    /// [`regs::SHARED_CAPS`]
    SharedCaps,
    /// [`regs::TICK_HZ`]
    TickHz,
    /// [`regs::DEVICE_CTRL`]
    DeviceCtrl,
    /// [`regs::DEVICE_STATUS`]
    DeviceStatus,
    /// [`regs::SCRATCH`]
    Scratch,
    /// [`regs::STATUS_LO`]
    StatusLo,
    /// [`regs::STATUS_HI`]
    StatusHi,
    /// [`regs::STATUS_CTRL`]
    StatusCtrl,
    /// [`regs::GART_TABLE_LO`]
    GartTableLo,
    /// [`regs::GART_TABLE_HI`]
    GartTableHi,
    /// [`regs::GART_PAGES`]
    GartPages,
    /// [`regs::INVALIDATE`]
    Invalidate,
    /// [`regs::FAULT_GET`]
    FaultGet,
    /// [`regs::SNAPSHOT`]
    Snapshot,
    /// A register of an engine.
    Engine(u32, EngineRegister),
}

/// A register of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineRegister {
    /// [`engine::INFO`]
    Info,
    /// [`engine::STATUS`]
    Status,
    /// [`engine::RING_BASE_LO`]
    RingBaseLo,
    /// [`engine::RING_BASE_HI`]
    RingBaseHi,
    /// [`engine::RING_SIZE`]
    RingSize,
    /// [`engine::HEAD`]
    Head,
    /// [`engine::TAIL`]
    Tail,
    /// [`engine::DOORBELL`]
    Doorbell,
    /// [`engine::CTRL`]
    Ctrl,
}

impl Register {
    /// The register at `offset` of BAR0 of a device with `engines` engines.
    pub const fn decode(offset: u64, engines: u32) -> Option<Self> {
        if offset > u32::MAX as u64 {
            return None;
        }
        // CAST: just checked.
        let offset = offset as u32;
        if offset >= regs::ENGINE_BASE {
            let index = (offset - regs::ENGINE_BASE) / regs::ENGINE_STRIDE;
            if index >= engines {
                return None;
            }
            let inside = (offset - regs::ENGINE_BASE) % regs::ENGINE_STRIDE;
            return match EngineRegister::decode(inside) {
                Some(register) => Some(Self::Engine(index, register)),
                None => None,
            };
        }
        Some(match offset {
            regs::ID => Self::Id,
            regs::VERSION => Self::Version,
            regs::CAPS => Self::Caps,
            regs::MMU_CAPS => Self::MmuCaps,
            regs::VRAM_SIZE_LO => Self::VramSizeLo,
            regs::VRAM_SIZE_HI => Self::VramSizeHi,
            regs::VRAM_BASE_LO => Self::VramBaseLo,
            regs::VRAM_BASE_HI => Self::VramBaseHi,
            regs::VRAM_VISIBLE_LO => Self::VramVisibleLo,
            regs::VRAM_VISIBLE_HI => Self::VramVisibleHi,
            regs::GART_BASE_LO => Self::GartBaseLo,
            regs::GART_BASE_HI => Self::GartBaseHi,
            regs::GART_MAX_PAGES => Self::GartMaxPages,
            regs::DISPATCH_CAPS => Self::DispatchCaps,
            regs::SHARED_CAPS => Self::SharedCaps,
            regs::TICK_HZ => Self::TickHz,
            regs::DEVICE_CTRL => Self::DeviceCtrl,
            regs::DEVICE_STATUS => Self::DeviceStatus,
            regs::SCRATCH => Self::Scratch,
            regs::STATUS_LO => Self::StatusLo,
            regs::STATUS_HI => Self::StatusHi,
            regs::STATUS_CTRL => Self::StatusCtrl,
            regs::GART_TABLE_LO => Self::GartTableLo,
            regs::GART_TABLE_HI => Self::GartTableHi,
            regs::GART_PAGES => Self::GartPages,
            regs::INVALIDATE => Self::Invalidate,
            regs::FAULT_GET => Self::FaultGet,
            regs::SNAPSHOT => Self::Snapshot,
            _ => return None,
        })
    }
}

impl EngineRegister {
    const fn decode(offset: u32) -> Option<Self> {
        Some(match offset {
            engine::INFO => Self::Info,
            engine::STATUS => Self::Status,
            engine::RING_BASE_LO => Self::RingBaseLo,
            engine::RING_BASE_HI => Self::RingBaseHi,
            engine::RING_SIZE => Self::RingSize,
            engine::HEAD => Self::Head,
            engine::TAIL => Self::Tail,
            engine::DOORBELL => Self::Doorbell,
            engine::CTRL => Self::Ctrl,
            _ => return None,
        })
    }
}

/// A 64-bit quantity in two registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The low half.
    pub lo: u32,
    /// The high half.
    pub hi: u32,
}

impl Pair {
    /// The quantity.
    pub const fn value(self) -> u64 {
        self.lo as u64 | ((self.hi as u64) << 32)
    }
}

/// What the driver wrote to one engine's registers.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineFile {
    /// GPU-physical address of the ring.
    pub ring_base: Pair,
    /// Bytes of the ring.
    pub ring_size: u32,
}

/// What the driver wrote. The reset values are all zero.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// [`regs::SCRATCH`]
    pub scratch: u32,
    /// Bus address of the status page.
    pub status: Pair,
    /// Whether the status page is enabled.
    pub status_enabled: bool,
    /// Bus address of the GART's table.
    pub gart_table: Pair,
    /// Entries of the GART's table.
    pub gart_pages: u32,
    /// [`regs::FAULT_GET`]
    pub fault_get: u32,
    /// Invalidation requests.
    pub invalidations: u32,
    /// Counter snapshots.
    pub snapshots: u32,
    /// The engines.
    pub engines: Vec<EngineFile>,
}

impl File {
    /// The reset values of a device with `engines` engines.
    pub fn new(engines: usize) -> Self {
        Self {
            engines: vec![EngineFile::default(); engines],
            ..Self::default()
        }
    }
}
