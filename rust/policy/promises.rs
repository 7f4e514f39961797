// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which value a monitored fence has, of those that were promised.
//!
//! Who is to signal a value promises it, which gives it its place: above the fence's value and all
//! that are promised. It is reached when it was kept, and none below it is left that was not. A
//! promise that is withdrawn is as if it had never been made.
//!
//! ```text
//! promised     3    5 kept    8    9 kept
//! 3 is kept    the fence has 5,  8    9 kept
//! 8 is not     the fence has 9
//! ```
//!
//! Promises end in any order, as their work does. What is remembered of them grows with those that
//! are not over: of kept values without another one between them the last stands for all.
//!
//! # Examples
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use skua_policy::promises::{accepts, end, Promises};
//!
//! struct Map(BTreeMap<u64, bool>);
//!
//! impl Promises for Map {
//!     fn first(&self) -> Option<(u64, bool)> {
//!         self.after(0)
//!     }
//!
//!     fn last(&self) -> Option<u64> {
//!         self.0.keys().next_back().copied()
//!     }
//!
//!     fn before(&self, value: u64) -> Option<(u64, bool)> {
//!         self.0.range(..value).next_back().map(|(value, kept)| (*value, *kept))
//!     }
//!
//!     fn after(&self, value: u64) -> Option<(u64, bool)> {
//!         self.0.range(value + 1..).next().map(|(value, kept)| (*value, *kept))
//!     }
//!
//!     fn keep(&mut self, value: u64) {
//!         self.0.insert(value, true);
//!     }
//!
//!     fn remove(&mut self, value: u64) {
//!         self.0.remove(&value);
//!     }
//! }
//!
//! let mut promised = Map([3, 5, 8].map(|value| (value, false)).into());
//! assert!(!accepts(&promised, 2, 8) && accepts(&promised, 2, 9));
//! assert_eq!(end(&mut promised, 5, true), None);
//! assert_eq!(end(&mut promised, 3, true), Some(5));
//! ```

#[cfg(test)]
mod tests;

/// The values that are promised and not reached, each with whether it was kept.
pub trait Promises {
    /// The smallest of them.
    fn first(&self) -> Option<(u64, bool)>;

    /// The largest of them.
    fn last(&self) -> Option<u64>;

    /// The largest below `value`.
    fn before(&self, value: u64) -> Option<(u64, bool)>;

    /// The smallest above `value`.
    fn after(&self, value: u64) -> Option<(u64, bool)>;

    /// `value`, which is among them, was kept.
    fn keep(&mut self, value: u64);

    /// `value`, which is among them, is none of them any more.
    fn remove(&mut self, value: u64);
}

/// Whether `value` can be promised, of a fence that has the value `current`.
pub fn accepts(promises: &impl Promises, current: u64, value: u64) -> bool {
    value > promises.last().unwrap_or(0).max(current)
}

/// The promise of `value`, which is not over, was kept or withdrawn. The value that the fence has
/// now, if that makes a difference.
pub fn end(promises: &mut impl Promises, value: u64, is_kept: bool) -> Option<u64> {
    if is_kept {
        promises.keep(value);
    } else {
        promises.remove(value);
    }
    let here = is_kept.then_some((value, true));
    let mut kept = None;
    for (value, is_kept) in [promises.before(value), here, promises.after(value)]
        .into_iter()
        .flatten()
    {
        if let Some(smaller) = kept.filter(|_| is_kept) {
            promises.remove(smaller);
        }
        kept = is_kept.then_some(value);
    }
    let (first, _) = promises.first().filter(|(_, is_kept)| *is_kept)?;
    promises.remove(first);
    Some(first)
}
