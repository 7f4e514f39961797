// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much of what there is little of a user may have, with any number of clients.
//!
//! Nobody has more than is free for others, but for one piece. So one who takes what he gets has
//! half, each of two a third, and there is as much left for who comes next.
//!
//! # Examples
//!
//! ```
//! use skua_policy::fair_share::excess;
//!
//! assert_eq!(excess(512, 512), 0);
//! assert_eq!(excess(514, 510), 2);
//! // Others have the rest; who has none gets the last.
//! assert_eq!(excess(1, 0), 0);
//! ```

#[cfg(test)]
mod tests;

/// How many pieces a user who has `used` would have to give back while `free` are nobody's; 0 if
/// that is a fair share.
pub const fn excess(used: u64, free: u64) -> u64 {
    used.saturating_sub(free.saturating_add(1)).div_ceil(2)
}
