// SPDX-License-Identifier: MIT

//! The stages of what takes the driver some time, most of them while it mends what went wrong, each
//! as long as a lie lasts, or a time-out.

use skua_guest::host::Lies;

use crate::events::Trace;
use crate::function::Function;
use crate::suite::eventually;

/// What the driver waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// That an engine makes room for somebody more important.
    Asked,
    /// The same; it saves the state of who runs.
    Saving,
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
            Self::Saving => "end-late=500",
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
        Trace::of(&["skua_preempt", "skua_preempted", "skua_reset"])
    }

    /// Whether it is this one, and no later one.
    ///
    /// # Panics
    ///
    /// If the driver, or the device, does not tell.
    #[track_caller]
    pub fn is_now(self, trace: &Trace, lies: &Lies) -> bool {
        let events = trace.events();
        let has = |name| events.iter().any(|event| event.name == name);
        let (resets_adapter, _) = Function::first().quarantine();
        match self {
            Self::Asked | Self::Overdue => has("skua_preempt") && !has("skua_reset"),
            Self::Saving => {
                let is_saved = lies.told("end-late").expect("gpu-told") > 0;
                has("skua_preempt") && is_saved && !has("skua_preempted")
            }
            Self::EngineReset => has("skua_reset") && !resets_adapter,
            Self::AdapterReset => resets_adapter,
        }
    }
}

/// What engines do for the driver itself, each some time before it says so.
pub struct Paging {
    trace: Trace,
    /// Until they end.
    pub lies: Lies,
}

impl Paging {
    /// From now on, so many milliseconds.
    ///
    /// # Panics
    ///
    /// If the kernel does not trace, or there is no host to ask.
    #[track_caller]
    pub fn late(milliseconds: u32) -> Self {
        Self {
            trace: Trace::of(&["skua_paging", "skua_done"]),
            lies: Lies::tell(&format!("end-late={milliseconds}")).expect("gpu-lie"),
        }
    }

    /// Whether something is under way, which is waited for; nothing has ended.
    ///
    /// # Panics
    ///
    /// If the device does not tell.
    #[track_caller]
    pub fn is_met(&self) -> bool {
        let is_paged = || {
            let is_late = self.lies.told("end-late").expect("gpu-told") > 0;
            let names = self.trace.names();
            let has = |name: &str| names.iter().any(|other| other == name);
            (is_late && has("skua_paging") && !has("skua_done")).then_some(())
        };
        eventually(is_paged).is_some()
    }
}
