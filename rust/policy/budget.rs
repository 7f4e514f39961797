// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much of VRAM a device may count on (`DXGI_QUERY_VIDEO_MEMORY_INFO.Budget`): its max-min fair
//! share.
//!
//! Who wants less than an equal share gets what it wants, and those who want more share the rest.
//! So a budget is what others do not want, or as much as they get; it depends on what others want,
//! never on what its owner has.

/// The most that anybody gets of `total` units if each who gets less than it wants gets as much:
/// the largest number, up to `total`, for which there is enough if nobody of those who want
/// `wanted` gets more.
///
/// # Examples
///
/// ```
/// use skua_policy::budget::level;
///
/// assert_eq!(level(16, [3, 20, 30].into_iter()), 6);
/// assert_eq!(level(16, [3, 4].into_iter()), 16);
/// ```
pub fn level(total: u64, wanted: impl Iterator<Item = u64> + Clone) -> u64 {
    let fits = |level: u64| {
        let mut given = wanted.clone().map(|wanted| wanted.min(level));
        let all = given.try_fold(0, u64::checked_add);
        all.is_some_and(|all| all <= total)
    };
    if fits(total) {
        return total;
    }
    // `low` fits, `high` does not.
    let (mut low, mut high) = (0, total);
    while high - low > 1 {
        // No overflow: below `high`.
        let middle = low + (high - low) / 2;
        match fits(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// What one who wants all can have of `total` units beside `others`, who want so many each.
///
/// # Examples
///
/// ```
/// use skua_policy::budget::fair_share;
///
/// assert_eq!(fair_share(16, [].into_iter()), 16);
/// // What others do not want.
/// assert_eq!(fair_share(16, [3, 4].into_iter()), 9);
/// // An equal part of what those leave that want less.
/// assert_eq!(fair_share(16, [2, 20].into_iter()), 7);
/// ```
pub fn fair_share(total: u64, others: impl Iterator<Item = u64> + Clone) -> u64 {
    level(total, others.chain(core::iter::once(u64::MAX)))
}

#[cfg(test)]
mod tests;
