// SPDX-License-Identifier: MIT

//! The stages in which the driver mends what went wrong, each as long as a lie lasts, or a
//! time-out.

use crate::events::Trace;
use crate::function::Function;

/// What the driver waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// That an engine makes room for somebody more important.
    Asked,
    /// That it stops what is overdue.
    Overdue,
    /// The engine is being reset.
    EngineReset,
    /// The adapter is being reset.
    AdapterReset,
}

impl Stage {
    /// What the device leaves undone.
    pub fn lies(self) -> &'static str {
        match self {
            Self::Asked | Self::Overdue => "preempt-never",
            Self::EngineReset => "preempt-never engine-reset-never",
            Self::AdapterReset => "preempt-never engine-reset-never adapter-reset-never",
        }
    }

    /// What tells [`Self::is_now`].
    ///
    /// # Panics
    ///
    /// If the kernel does not trace.
    #[track_caller]
    pub fn trace() -> Trace {
        Trace::of(&["skua_preempt", "skua_reset"])
    }

    /// Whether it is this one, and no later one.
    ///
    /// # Panics
    ///
    /// If the driver does not tell.
    #[track_caller]
    pub fn is_now(self, trace: &Trace) -> bool {
        let events = trace.events();
        let has = |name| events.iter().any(|event| event.name == name);
        let (resets_adapter, _) = Function::first().quarantine();
        match self {
            Self::Asked | Self::Overdue => has("skua_preempt") && !has("skua_reset"),
            Self::EngineReset => has("skua_reset") && !resets_adapter,
            Self::AdapterReset => resets_adapter,
        }
    }
}
