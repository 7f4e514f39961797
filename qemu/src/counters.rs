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
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; COUNT]);

impl Counters {
    /// Wraps at 2^64.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Without what is still in tallies.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

/// What one thread counted and has not yet added to the device's counters.
#[derive(Debug, Default)]
pub struct Tally([Cell<u64>; COUNT]);

impl Tally {
    /// Seen by others once it was moved.
    pub fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.0[counter as usize];
        cell.set(cell.get().wrapping_add(amount));
    }

    /// Since it was moved last.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].get()
    }

    /// Moves all that was counted to `other`.
    pub fn move_to(&self, other: &Self) {
        for (counter, _) in Counter::ALL {
            other.add(counter, self.0[counter as usize].take());
        }
    }

    /// Moves all that was counted to `counters`.
    pub fn flush(&self, counters: &Counters) {
        for (counter, _) in Counter::ALL {
            let amount = self.0[counter as usize].take();
            if amount != 0 {
                counters.add(counter, amount);
            }
        }
    }
}
