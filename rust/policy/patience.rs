// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long something may take, by somebody who looks at it again and again (pitfall P-30).
//!
//! Between two looks no more counts than a step: a host that ran neither the guest nor the device
//! for a while has used up nothing but that, and the device has the rest of its time to answer.
//!
//! # Examples
//!
//! ```
//! use skua_policy::patience::Patience;
//!
//! let mut patience = Patience::new(1000);
//! // Somebody looks, and is away for a minute.
//! assert!(!patience.is_over(10));
//! assert!(!patience.is_over(60_000));
//! // From then on it takes too long.
//! assert!((60_010..62_000).step_by(10).any(|ms| patience.is_over(ms)));
//! ```

#[cfg(test)]
mod tests;

/// The most that counts between two looks, in milliseconds.
pub const STEP_MS: u64 = 100;

/// What is left for something, by a clock that is 0 when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Milliseconds that it may take.
    limit_ms: u64,
    /// Milliseconds that count so far.
    spent_ms: u64,
    /// When somebody last looked, in milliseconds.
    last_ms: u64,
}

impl Patience {
    /// Something begins that may take so many milliseconds.
    pub const fn new(limit_ms: u64) -> Self {
        Self {
            limit_ms,
            spent_ms: 0,
            last_ms: 0,
        }
    }

    /// Somebody looks, `now_ms` after the beginning; whether it has taken too long.
    pub fn is_over(&mut self, now_ms: u64) -> bool {
        let step = now_ms.saturating_sub(self.last_ms).min(STEP_MS);
        self.last_ms = self.last_ms.max(now_ms);
        self.spent_ms = self.spent_ms.saturating_add(step);
        self.spent_ms > self.limit_ms
    }
}
