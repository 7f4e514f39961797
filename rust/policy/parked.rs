// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which of the work that waits for values, and made room, an engine looks at next.
//!
//! A value comes by any store of anybody, in the client's own memory: only an engine that is given
//! the work back finds it there, and nobody else works while it looks. So it is done one by one,
//! now and then; the less often the longer a value has not come, unless what runs is less
//! important.
//!
//! # Examples
//!
//! ```
//! use skua_policy::parked::{Looks, Parked};
//! use skua_policy::scheduler::Level;
//!
//! let mut looks = Looks::default();
//! let [low, high] = [-1, 1].map(|priority| Level::of(priority).expect("a level"));
//! // Both have waited for 80 s, and were looked at a moment ago.
//! let parked = Parked { since_ms: 0, seen_ms: 80_000 };
//! let both = [(low, parked), (high, parked)];
//! assert_eq!(parked.waited_ms(), 80_000);
//! // Beside work of a normal level the higher one is looked at without regard to that.
//! assert!(looks.is_time(80_032));
//! assert_eq!(looks.next(both.into_iter(), Some(Level::NORMAL), 80_032), Some(1));
//! // The next look is 32 ms later, and none is due for the lower one before a second is over.
//! assert!(!looks.is_time(80_063));
//! let lower = [(low, parked)];
//! assert_eq!(looks.next(lower.into_iter(), Some(Level::NORMAL), 80_999), None);
//! assert_eq!(looks.next(lower.into_iter(), Some(Level::NORMAL), 81_000), Some(0));
//! // An engine that does nothing else looks at it at once.
//! assert_eq!(Looks::default().next(lower.into_iter(), None, 80_001), Some(0));
//! ```

use super::scheduler::Level;

#[cfg(test)]
mod tests;

/// Milliseconds from one look to the next.
const LOOK_MS: u64 = 32;

/// Milliseconds after which what was not looked at goes before what is more important.
const PATIENCE_MS: u64 = 1000;

/// Since when work waits for a value, by any clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// When it was first found waiting for it; milliseconds.
    pub since_ms: u64,
    /// When it was last found so; milliseconds.
    pub seen_ms: u64,
}

impl Parked {
    /// For how long a value has not come, in milliseconds.
    pub fn waited_ms(self) -> u64 {
        self.seen_ms.saturating_sub(self.since_ms)
    }

    /// Whether it is to be looked at, though others as important have work.
    fn is_due(self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.seen_ms) >= (self.waited_ms() / 8).min(PATIENCE_MS)
    }

    /// Whether it was passed over for long.
    fn has_aged(self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.seen_ms) >= PATIENCE_MS
    }
}

/// When one engine looks again at work that waits for values, and at which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// When the last one was; milliseconds.
    last_ms: u64,
    /// Whether it was at what had been passed over for long: then it is the highest's turn, however
    /// many others were.
    aged: bool,
}

impl Looks {
    /// Whether it is time for a look, though others have work.
    pub fn is_time(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms) >= LOOK_MS
    }

    /// The place of what is looked at now, if it is time for any of `parked`. An engine that does
    /// nothing else is `running` at no level: then it is for all of them.
    pub fn next(
        &mut self,
        parked: impl Iterator<Item = (Level, Parked)>,
        running: Option<Level>,
        now_ms: u64,
    ) -> Option<usize> {
        let aged = !self.aged;
        let due = parked.enumerate().filter(|(_, (level, parked))| {
            running.is_none_or(|running| *level > running) || parked.is_due(now_ms)
        });
        // Of equals who has not been looked at for the longest time.
        let (place, has_aged) = due
            .map(|(place, (level, parked))| {
                let has_aged = aged && parked.has_aged(now_ms);
                let level = (!has_aged).then_some(level);
                let rank = (has_aged, level, core::cmp::Reverse(parked.seen_ms));
                (rank, place)
            })
            // Of those the first.
            .reduce(|best, other| if other.0 > best.0 { other } else { best })
            .map(|((has_aged, ..), place)| (place, has_aged))?;
        *self = Self {
            last_ms: now_ms,
            aged: has_aged,
        };
        Some(place)
    }
}
