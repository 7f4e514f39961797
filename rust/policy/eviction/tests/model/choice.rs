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
fn rank(object: &Object) -> (bool, bool, (bool, u8), bool) {
    let is_low = object.hold() == Hold::Low;
    let order = order(object.rank);
    (is_low, object.is_resident, order, !object.is_idle)
}

/// Checks that `chosen` leave in their order, of those who were `there` and may, where so much is
/// `needed` behind those that were chosen before.
pub(super) fn check_choice(
    chosen: &[Object],
    there: &[Object],
    may_leave: impl Fn(&Object) -> bool,
    needed: impl Fn(&[Object]) -> u64,
) -> Checked {
    let may = || there.iter().filter(|object| may_leave(object));
    prop_assert!(chosen.iter().all(&may_leave), "{chosen:?}");
    // In order of rank, and none of a later rank as long as there was one of an earlier.
    prop_assert!(chosen.is_sorted_by_key(rank), "{chosen:?}");
    let last = chosen.last().map(rank);
    let stay = |object: &&Object| chosen.iter().all(|other| other.number != object.number);
    for object in may().filter(stay) {
        prop_assert!(Some(rank(object)) >= last, "{object:?} stayed, {chosen:?}");
    }
    // None that was not needed but the last, and of a rank what was used longest ago; unless that
    // is much too large.
    for (n, object) in chosen.iter().enumerate() {
        let gone = &chosen[..n];
        let needed = needed(gone);
        prop_assert!(needed > 0, "{object:?} left without need");
        let there_still = |other: &&Object| gone.iter().all(|gone| gone.number != other.number);
        let peers = may().filter(there_still);
        let peers = peers.filter(|other| rank(other) == rank(object));
        let first = peers.clone().next().expect("itself");
        // Who would leave if nobody was expected.
        let fits = |other: &&Object| other.bytes / 2 <= needed;
        let near = || peers.clone().take(8).filter(|other| other.bytes >= needed);
        let by_age = match fits(&first) {
            true => first,
            false => near()
                .find(fits)
                .or_else(|| near().min_by_key(|other| other.bytes))
                .unwrap_or(first),
        };
        // Who of those that were used last is expected so last; of those, who was used last.
        let list = there.iter().rev().filter(there_still);
        let last = list.filter(|other| other.rank == object.rank).take(8);
        let last = last.filter(|other| rank(other) == rank(object) && may_leave(other));
        let later = last.filter(fits).fold(by_age, |latest, other| {
            match by_age.expected.is_some() && other.expected > latest.expected {
                true => other,
                false => latest,
            }
        });
        prop_assert_eq!(object.number, later.number, "{:?}, {:?}", object, chosen);
    }
    Ok(())
}
