// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random heads against a sum over every nanosecond.

use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(crate::cases(4))]

    /// At any moment, what owners were given and what runs are together the time that the ring was
    /// not empty, each part with whose packet was at the head, and no owner's sum ever goes back.
    #[test]
    fn each_moment_is_the_head_owners(
        steps in prop::collection::vec(
            (0..50u64, prop::option::weighted(0.8, 0..3usize), any::<bool>()), 1..100,
        ),
    ) {
        let mut clock = HeadClock::new();
        let (mut given, mut expected) = ([0u64; 3], [0u64; 3]);
        let (mut now, mut id) = (7u64, 0u64);
        let mut head: Option<usize> = None;
        for (passed, next, same) in steps {
            now += passed;
            if let Some(owner) = head {
                expected[owner] += passed;
            }
            for owner in 0..3 {
                let running = clock.running(now, |who| *who == owner);
                prop_assert_eq!(given[owner] + running, expected[owner]);
            }
            // Looking once more changes nothing.
            let next = if same { head } else { next };
            if !same {
                id += 1;
            }
            let charged = clock.head_changed(now, next.map(|_| id), || next.unwrap_or(0));
            if same {
                prop_assert_eq!(charged, None);
            }
            if let Some((owner, time)) = charged {
                prop_assert_eq!(Some(owner), head);
                given[owner] += time;
            }
            head = next;
        }
    }
}

#[test]
fn a_clock_that_goes_back_takes_nothing_away() {
    let mut clock = HeadClock::new();
    assert_eq!(clock.head_changed(100, Some(1), || ()), None);
    assert_eq!(clock.running(90, |()| true), 0);
    assert_eq!(clock.head_changed(90, None, || ()), Some(((), 0)));
}
