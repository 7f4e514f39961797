// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What wakes the thread that steps an engine, or several.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An alarm that stays rung until somebody was woken by it: who looks for work and then waits
/// misses nothing that was rung for in between.
#[derive(Debug, Default)]
pub struct Alarm {
    /// Whether it was rung, and nobody was woken since.
    rung: Mutex<bool>,
    /// Notified when `rung` becomes true.
    wake: Condvar,
}

impl Alarm {
    /// There may be work, or the value that a WAIT waits for.
    pub fn ring(&self) {
        *self.lock() = true;
        self.wake.notify_all();
    }

    /// Sleeps until it was rung.
    pub(crate) fn wait(&self) {
        let waited = self.wake.wait_while(self.lock(), |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Sleeps until it was rung, or `time` is over.
    pub(crate) fn nap(&self, time: Duration) {
        let (mut rung, _) = self
            .wake
            .wait_timeout_while(self.lock(), time, |rung| !*rung)
            .unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
