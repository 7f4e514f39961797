// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::vec;
use std::vec::Vec;

use super::{fair_share, level};
use proptest::prelude::*;

/// What everyone gets of `total`, found by giving a unit at a time to who has least and wants more.
fn unit_by_unit(total: u64, wanted: &[u64]) -> Vec<u64> {
    let mut shares = vec![0; wanted.len()];
    for _ in 0..total {
        let hungry = (0..wanted.len()).filter(|n| shares[*n] < wanted[*n]);
        match hungry.min_by_key(|n| shares[*n]) {
            Some(next) => shares[next] += 1,
            None => break,
        }
    }
    shares
}

proptest! {
    #[test]
    fn it_is_what_one_gets_who_wants_all(
        total in 0_u64..200,
        others in prop::collection::vec(0_u64..100, 0..8),
    ) {
        // Who wants all comes last among equals: what cannot be divided is not for it.
        let mut wanted = others.clone();
        wanted.push(u64::MAX);
        let shares = unit_by_unit(total, &wanted);
        prop_assert_eq!(Some(&fair_share(total, others.into_iter())), shares.last());
    }

    #[test]
    fn who_trims_to_it_fits(total: u64, others in prop::collection::vec(any::<u64>(), 0..8)) {
        let share = fair_share(total, others.iter().copied());
        let all = others.iter().map(|wanted| wanted.min(&share));
        prop_assert!(all.fold(share, |all, share| all.saturating_add(*share)) <= total);
    }

    #[test]
    fn who_has_more_than_the_level_has_more_than_its_share(
        total in 0_u64..1000,
        wanted in prop::collection::vec(0_u64..1000, 1..8),
    ) {
        let level = level(total, wanted.iter().copied());
        for (n, own) in wanted.iter().enumerate() {
            let others = wanted.iter().enumerate().filter(|(other, _)| *other != n);
            let share = fair_share(total, others.map(|(_, wanted)| *wanted));
            prop_assert_eq!(own.saturating_sub(level), own.saturating_sub(share));
        }
    }

    #[test]
    fn others_that_want_more_do_not_make_it_larger(
        total in 0_u64..1000,
        mut others in prop::collection::vec(0_u64..1000, 1..8),
        more in 0_u64..1000,
    ) {
        let before = fair_share(total, others.iter().copied());
        others[0] += more;
        prop_assert!(fair_share(total, others.into_iter()) <= before);
    }
}

#[test]
fn numbers_that_are_too_large_are_no_matter() {
    assert_eq!(fair_share(u64::MAX, [].into_iter()), u64::MAX);
    assert_eq!(fair_share(u64::MAX, [u64::MAX].into_iter()), u64::MAX / 2);
    assert_eq!(fair_share(0, [u64::MAX, 1].into_iter()), 0);
    assert_eq!(level(0, [1].into_iter()), 0);
    assert_eq!(level(1, [1, 1].into_iter()), 0);
}
