// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How many of a few things a user may have, with any number of clients.
//!
//! Nobody has more than are free for others. So one who takes what he gets has half, each of two a
//! third, and there is as much left for who comes next.
//!
//! # Examples
//!
//! ```
//! use skua_policy::fair_share::may_have_one_more;
//!
//! assert!(may_have_one_more(511, 513));
//! assert!(!may_have_one_more(512, 512));
//! // Others have the rest; who has none gets the last.
//! assert!(may_have_one_more(0, 1));
//! ```

#[cfg(test)]
mod tests;

/// Whether a user who has `used` may have one more while `free` are nobody's.
pub const fn may_have_one_more(used: u64, free: u64) -> bool {
    used < free
}
