// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a device is made with.

use std::time::Instant;

use skua_spec::command::EngineKind;
use skua_spec::number::EngineIndex;
use skua_spec::pci::MAX_ENGINES;
use skua_spec::preemption::Level;

use crate::device::TICK_HZ;
use crate::engine::pace::Brake;
use crate::gart;

/// Alignment of the size of VRAM: the largest page.
pub const VRAM_ALIGN: u64 = 2 << 20;
/// Most bytes of VRAM: what a BAR and the GPU-physical window have room for.
pub const VRAM_MAX: u64 = 1 << 40;
/// What BAR2 shows of VRAM is a multiple of this: the smallest size of a resizable BAR.
pub const VISIBLE_UNIT: u64 = 1 << 20;

/// How an engine is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preemption {
    /// Where commands that draw can be stopped.
    pub graphics: Level,
    /// Where commands that do not draw can be stopped.
    pub compute: Level,
    /// A state is as large as the largest, whatever lives.
    pub full: bool,
}

/// Who has the engines work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stepping {
    /// A thread for each: what they do side by side depends on the host.
    #[default]
    Threads,
    /// One thread for all, by the device clock (manual section 3).
    Clock,
    /// [`Device::advance`](crate::device::Device::advance) alone, by the device clock: it says at
    /// what time of it registers are accessed.
    Caller,
}

/// What a device is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The engines, in order; 1 to [`MAX_ENGINES`].
    pub engines: Vec<EngineKind>,
    /// What PAGING_VA reads as, in MiB.
    pub paging_va: u32,
    /// What GART_MAX_PAGES reads as, at most [`gart::MAX_PAGES`].
    pub gart_pages: u32,
    /// What GRAPHICS and COMPUTE of INFO read as, by engine; or one for all.
    pub preemption: Vec<Preemption>,
    /// Nothing that a register shows.
    pub stepping: Stepping,
    /// How fast engines are at most, in percent of [`TICK_HZ`], 1 to 100; as fast as the host
    /// without.
    pub speed: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engines: vec![EngineKind::Compute, EngineKind::Copy],
            paging_va: 0,
            gart_pages: gart::MAX_PAGES,
            preemption: vec![Preemption::default()],
            stepping: Stepping::default(),
            speed: None,
        }
    }
}

impl Options {
    /// Whether a device can be made with these options.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_ENGINES as usize).contains(&self.engines.len())
            && [1, self.engines.len()].contains(&self.preemption.len())
            && self.gart_pages <= gart::MAX_PAGES
            && self
                .speed
                .is_none_or(|percent| (1..=100).contains(&percent))
    }

    /// What an engine has done so far, from now on, if it is to be slower than the host.
    pub(crate) fn brake(&self) -> Option<Brake> {
        let brake = |percent| Brake::new(TICK_HZ / 100 * percent, Instant::now());
        self.speed.map(brake)
    }

    /// How an engine of a device with these options is preempted.
    pub(crate) fn preemption(&self, engine: EngineIndex) -> Preemption {
        let own = self.preemption.get(engine.index());
        own.or(self.preemption.first()).copied().unwrap_or_default()
    }
}
