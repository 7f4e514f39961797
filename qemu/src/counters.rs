// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the device counts ([`Counter`]; manual section 3).
//!
//! [`Counters`] are the device's. An engine counts in a [`Tally`] of its own, without atomics, and
//! adds it to the device's counters when it shows what it did.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use skua_spec::status::Counter;

/// As many as the status page has.
pub const COUNT: usize = Counter::ALL.len();

/// Counts since power-on, by [`Counter`]; no reset clears them.
#[derive(Debug)]
pub struct Counters([AtomicU64; COUNT]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; COUNT])
    }
}

impl Counters {
    /// Adds `amount` to a counter, which wraps at 2^64.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// The value of a counter, without what is still in tallies.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

/// What one thread counted and has not yet added to the device's counters.
#[derive(Debug)]
pub struct Tally {
    /// What was counted, by [`Counter`].
    counts: [Cell<u64>; COUNT],
    /// Ticks that accesses took, and that the engine's time has still to show.
    time: Cell<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            counts: [const { Cell::new(0) }; COUNT],
            time: Cell::new(0),
        }
    }
}

impl Tally {
    /// Counts `amount`, which others see once it was moved to [`Counters`].
    pub fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.counts[counter as usize];
        cell.set(cell.get().wrapping_add(amount));
    }

    /// What was counted since it was moved last.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].get()
    }

    /// Counts `ticks` that an access took.
    pub fn spend(&self, ticks: u64) {
        self.time.set(self.time.get().wrapping_add(ticks));
    }

    /// Ticks that were spent and not yet taken.
    pub fn time(&self) -> u64 {
        self.time.get()
    }

    /// Takes the ticks that were spent, for the engine's time.
    pub fn take_time(&self) -> u64 {
        self.time.take()
    }

    /// Moves all that was counted to `other`.
    pub fn move_to(&self, other: &Self) {
        for &(counter, _) in &Counter::ALL {
            other.add(counter, self.counts[counter as usize].take());
        }
        other.spend(self.take_time());
    }

    /// Moves all that was counted to `counters`.
    pub fn flush(&self, counters: &Counters) {
        for &(counter, _) in &Counter::ALL {
            let amount = self.counts[counter as usize].take();
            if amount != 0 {
                counters.add(counter, amount);
            }
        }
    }
}
