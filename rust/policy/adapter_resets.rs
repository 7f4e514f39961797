// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How often an adapter may be reset before it is given up (row 2.02).
//!
//! An adapter that has to be reset again and again is no use to anybody: who waits for it is told
//! so. Resets of single engines do not count.
//!
//! # Examples
//!
//! ```
//! use skua_policy::adapter_resets::AdapterResets;
//!
//! // Two within a second.
//! let mut resets = AdapterResets::new(2, 1000);
//! assert!(resets.begin(0) && resets.begin(900));
//! assert!(!resets.begin(950));
//! assert!(resets.begin(1001), "the first is long ago");
//! ```

#[cfg(test)]
mod tests;

/// The most that can be allowed.
pub const MAX: usize = 16;

/// The adapter resets of late.
#[derive(Clone, Debug)]
pub struct AdapterResets {
    /// How many are allowed (`TdrLimitCount`).
    limit: usize,
    /// Within so many milliseconds (`TdrLimitTime`).
    within_ms: u64,
    /// When the last ones began; the oldest is at `next`.
    times: [Option<u64>; MAX],
    /// Index in `times`.
    next: usize,
}

impl AdapterResets {
    /// None yet; `limit` are allowed within `within_ms` milliseconds, at most [`MAX`].
    pub fn new(limit: u32, within_ms: u64) -> Self {
        Self {
            limit: usize::try_from(limit).unwrap_or(MAX).min(MAX),
            within_ms,
            times: [None; MAX],
            next: 0,
        }
    }

    /// The adapter is to be reset at `now_ms`, milliseconds of a clock that does not go back.
    /// Whether it may: if not, nothing is counted.
    pub fn begin(&mut self, now_ms: u64) -> bool {
        let is_late = |time: &u64| now_ms.saturating_sub(*time) <= self.within_ms;
        if self
            .times
            .iter()
            .flatten()
            .filter(|time| is_late(time))
            .count()
            >= self.limit
        {
            return false;
        }
        if let Some(time) = self.times.get_mut(self.next) {
            *time = Some(now_ms);
        }
        self.next = (self.next + 1) % MAX;
        true
    }
}
