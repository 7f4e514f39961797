// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What scheduling a GPU and its miniport are made for, as the miniport says it once, before it is
//! set up.
//!
//! # Examples
//!
//! ```
//! use skua_policy::scheduling_caps::{Refused, SchedulingCaps};
//!
//! let caps = SchedulingCaps::MULTI_ENGINE_AWARE | SchedulingCaps::PREEMPTION_AWARE;
//! assert!(SchedulingCaps::new(caps).is_ok_and(SchedulingCaps::is_preemption_aware));
//! assert_eq!(SchedulingCaps::new(SchedulingCaps::PREEMPTION_AWARE), Err(Refused));
//! ```

use crate::spec::preemption::Level;

#[cfg(test)]
mod tests;

/// Capabilities that contradict each other, or that mean nothing: such a miniport is not set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What the scheduler may count on (`DXGK_VIDSCHCAPS`), without contradictions (row 2.04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingCaps(u32);

impl SchedulingCaps {
    /// Each engine has a queue and reports of its own.
    pub const MULTI_ENGINE_AWARE: u32 = 1 << 0;
    /// Engines are stopped in the midst of packets when they are asked to; without it, never
    /// (row 2.03).
    pub const PREEMPTION_AWARE: u32 = 1 << 2;
    /// All addresses in commands are virtual: nothing in them is patched.
    pub const NO_DMA_PATCHING: u32 = 1 << 3;
    /// It is told of packets that no engine will see (row 2.23).
    pub const CANCEL_COMMAND_AWARE: u32 = 1 << 4;

    /// All that there are; bit 1, of which this core makes nothing, is `VSyncPowerSaveAware`.
    const KNOWN: u32 = 0x1f;
    /// Each flag that means nothing without others, and those.
    const NEEDS: [(u32, u32); 3] = [
        (Self::PREEMPTION_AWARE, Self::MULTI_ENGINE_AWARE),
        (
            Self::NO_DMA_PATCHING,
            Self::PREEMPTION_AWARE | Self::MULTI_ENGINE_AWARE,
        ),
        (Self::CANCEL_COMMAND_AWARE, Self::MULTI_ENGINE_AWARE),
    ];

    /// The capabilities with these bits, if each has what it needs and there are no others.
    pub fn new(value: u32) -> Result<Self, Refused> {
        let has = |bits| value & bits == bits;
        let is_complete = |(cap, needs)| !has(cap) || has(needs);
        match value & !Self::KNOWN == 0 && Self::NEEDS.into_iter().all(is_complete) {
            true => Ok(Self(value)),
            false => Err(Refused),
        }
    }

    /// Whether engines may be asked to stop.
    pub fn is_preemption_aware(self) -> bool {
        self.0 & Self::PREEMPTION_AWARE != 0
    }

    /// Whether the miniport is told of what is cancelled before an engine was given it.
    pub fn is_cancel_command_aware(self) -> bool {
        self.0 & Self::CANCEL_COMMAND_AWARE != 0
    }
}

/// Whether an engine may be asked to stop, which works at one type of work at a time: if it stops
/// within each of those that it can run. Else it would not answer while it works at another, and be
/// reset for that.
pub fn can_be_stopped(types: impl Iterator<Item = Level>) -> bool {
    granularity(types) != Level::None
}

/// How finely an adapter's work of one type can be preempted (`D3DKMDT_PREEMPTION_CAPS`, row 2.06):
/// as the coarsest of the engines that can run it, whichever it gets to; [`Level::None`] if there
/// is no such engine.
pub fn granularity(engines: impl Iterator<Item = Level>) -> Level {
    engines.min().unwrap_or(Level::None)
}
