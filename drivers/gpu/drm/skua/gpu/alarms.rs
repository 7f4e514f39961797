// SPDX-License-Identifier: GPL-2.0

//! What the alarms ([`crate::submit::recovery`]) are to look at soon. There are none before the
//! device works and once it is being unbound: nothing is asked then.
//!
//! Lock: `alarms` of the [`Gpu`], a spin lock.

use crate::{
    gpu::Gpu,
    submit::recovery::Alarms, //
};
use kernel::sync::{
    atomic::{
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    Arc, //
};

/// Whether an alarm is set or running: who changes that to yes sets it.
pub(crate) struct Watching(Atomic<u32>);

impl Watching {
    /// Of an alarm that is not set.
    pub(super) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Somebody wants the alarm. Returns whether it is the caller who has to set it.
    fn begin(&self) -> bool {
        self.0.load(Relaxed) == 0 && self.go_on()
    }

    /// The alarm runs, and is not set again, unless somebody wants it meanwhile.
    pub(crate) fn end(&self) {
        self.0.store(0, Release);
    }

    /// The alarm is to be set again. Returns whether nobody else has seen to that meanwhile.
    pub(crate) fn go_on(&self) -> bool {
        self.0.xchg(1, Full) == 0
    }
}

impl Gpu {
    /// Takes the alarms; dropping them stops them.
    pub(super) fn detach(&self) -> Option<Arc<Alarms>> {
        self.alarms.lock().take()
    }

    /// Has faults looked at soon. Process context.
    pub(crate) fn look_at_faults(&self) {
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.faults.kick();
        }
    }

    /// Has it looked soon how far recoveries are.
    pub(crate) fn look_at_recoveries(&self) {
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.recoveries.kick();
        }
    }

    /// Has the watchdog run while an engine has work.
    pub(crate) fn watch(&self) {
        if !self.watching.begin() {
            return;
        }
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.start_watchdog();
        }
    }

    /// Has it looked at now and then whose turn it is, while that may change.
    pub(crate) fn watch_turns(&self) {
        if !self.watching_turns.begin() {
            return;
        }
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.start_turns();
        }
    }

    /// Has the device reset soon, or lost, from where it cannot be done at once, unless it was
    /// reset since `generation`. Process context.
    pub(crate) fn reset_later(&self, generation: u32) {
        self.resets.want(generation);
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.reset();
        }
    }

    /// Has the alarms' queue do what [`Self::power`] is asked for. Not after [`Self::stop`].
    pub(crate) fn sleep_or_wake(&self) {
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.sleep_or_wake();
        }
    }
}
