// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a guest can have happen as often as it likes: the host's log is told of it ever more
//! rarely.

use std::sync::atomic::{AtomicU64, Ordering};

/// Times that something has happened.
#[derive(Debug, Default)]
pub struct Repeats(AtomicU64);

impl Repeats {
    /// It has happened once more: how often, if that is to be told. That is the first time, and
    /// each time that the number has doubled.
    pub fn count(&self) -> Option<u64> {
        let times = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        times.is_power_of_two().then_some(times)
    }
}
