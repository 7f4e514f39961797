// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who leaves, and in which order, as the documentation has it.

use super::*;

/// What leaves before all for which this is more: what is offered does before what is kept.
fn order(rank: Rank) -> (bool, u8) {
    match rank {
        Rank::Offered(offer) => (false, offer as u8),
        Rank::Kept(level) => (true, level as u8),
    }
}

/// Whether an object may leave, as the documentation has it, for one of `level`.
pub(super) fn may_leave(object: &Object, need: Need, level: Level) -> bool {
    let is_lower = order(object.rank) < order(Rank::Kept(level));
    let gives_way = object.is_idle && object.can_be_elsewhere && is_lower;
    match object.hold() {
        Hold::Pinned | Hold::Min => false,
        Hold::Turn { elsewhere } => need == Need::Own && elsewhere,
        Hold::Low => need == Need::Needs,
        Hold::Nothing if need == Need::Prefers => !object.is_resident || gives_way,
        Hold::Nothing => need == Need::Needs,
    }
}

/// How late an object leaves: before all for which this is more.
fn rank(object: &Object) -> (bool, bool, (bool, u8), bool, bool) {
    let is_low = object.hold() == Hold::Low;
    let order = order(object.rank);
    let is_used_since = object.used_since.is_some();
    (
        is_low,
        object.is_resident,
        order,
        !object.is_idle,
        is_used_since,
    )
}

/// Whether one object leaves rather than another that was found before, where so much is `needed`.
fn costs_less(one: &Object, other: &Object, needed: u64) -> bool {
    // How much is copied for what is of use, in the time until it is used again.
    let cost = |object: &Object, uses: u64| halves(object, needed) as f64 / uses.max(1) as f64;
    let is_less = match (one.next_use, other.next_use) {
        (NextUse::In(mine), NextUse::In(theirs))
        | (NextUse::NotFor(mine), NextUse::NotFor(theirs)) => cost(one, mine) < cost(other, theirs),
        _ => false,
    };
    is_less && (one.bytes >= needed || one.bytes >= other.bytes)
}

/// How often what is of use is copied, in halves: in, and out if that has to be, which counts by
/// half for what is not expected. Twice as much is of use, too.
fn halves(object: &Object, needed: u64) -> u64 {
    let outward = match object.next_use {
        NextUse::In(_) => 2 * object.copied,
        NextUse::NotFor(_) => object.copied,
    };
    (2 * object.bytes + outward).div_ceil(object.bytes.min(2 * needed))
}

/// Checks that `chosen` leave in their order, of those who were `there` and may, where so much is
/// `needed` behind those that were chosen before.
pub(super) fn check_choice(
    chosen: &[Object],
    there: &[Object],
    may_leave: impl Fn(&Object) -> bool,
    needed: impl Fn(&[Object]) -> u64,
) -> Checked {
    let mut by_use: Vec<&Object> = there.iter().collect();
    by_use.sort_by_key(|object| Reverse(object.used_since));
    let may = || by_use.iter().copied().filter(|object| may_leave(object));
    prop_assert!(chosen.iter().all(&may_leave), "{chosen:?}");
    // In order of rank, and none of a later rank as long as there was one of an earlier.
    prop_assert!(chosen.is_sorted_by_key(rank), "{chosen:?}");
    let last = chosen.last().map(rank);
    let stay = |object: &&Object| chosen.iter().all(|other| other.number != object.number);
    for object in may().filter(stay) {
        prop_assert!(Some(rank(object)) >= last, "{object:?} stayed, {chosen:?}");
    }
    // None that was not needed but the last, and of a rank what was used longest ago; unless that
    // costs more than one near it, or than one that was used last.
    for (n, object) in chosen.iter().enumerate() {
        let gone = &chosen[..n];
        let needed = needed(gone);
        prop_assert!(needed > 0, "{object:?} left without need");
        let there_still = |other: &&Object| gone.iter().all(|gone| gone.number != other.number);
        let peers = may().filter(there_still);
        let peers = peers.filter(|other| rank(other) == rank(object));
        let first = peers.clone().next().expect("itself");
        let by_age = peers.clone().take(8).fold(first, |best, other| {
            let goes = halves(best, needed) > 2 && costs_less(other, best, needed);
            if goes {
                other
            } else {
                best
            }
        });
        let is_expected = |object: &Object| matches!(object.next_use, NextUse::In(_));
        let list = there.iter().rev().filter(there_still);
        let last = list.filter(|other| other.rank == object.rank).take(8);
        let last = last.filter(|other| rank(other) == rank(object) && may_leave(other));
        let later = last.fold(by_age, |latest, other| {
            match is_expected(latest) && is_expected(other) && costs_less(other, latest, needed) {
                true => other,
                false => latest,
            }
        });
        prop_assert_eq!(object.number, later.number, "{:?}, {:?}", object, chosen);
    }
    Ok(())
}
