// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a list of all resets that there were.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// Row 2.02: five in a minute are borne, the sixth is not, and the minute moves on.
#[test]
fn the_sixth_within_a_minute_is_refused() {
    let mut resets = AdapterResets::new(5, 60_000);
    assert!((0..5).all(|n| resets.begin(n * 10_000)));
    assert!(!resets.begin(60_000), "the first was a minute ago");
    assert!(resets.begin(60_001));
    assert!(!resets.begin(70_000), "five since 10 s");
    assert!(resets.begin(70_001));
}

#[test]
fn none_may_be_allowed() {
    assert!(!AdapterResets::new(0, 60_000).begin(0));
}

proptest! {
    #[test]
    fn as_many_as_a_list_of_all_would_allow(
        limit in 0..20_u32,
        within in 0..100_u64,
        steps in prop::collection::vec(0..30_u64, 1..100),
    ) {
        let mut resets = AdapterResets::new(limit, within);
        let most = (limit as usize).min(MAX);
        let (mut now, mut all) = (0, Vec::new());
        for step in steps {
            now += step;
            let late = all.iter().filter(|time| now - **time <= within).count();
            prop_assert_eq!(resets.begin(now), late < most);
            if late < most {
                all.push(now);
            }
        }
    }
}
