// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;

/// When it is over for who looks in these intervals, again and again.
fn end(limit: u64, intervals: &[u64]) -> u64 {
    let (mut patience, mut now) = (Patience::new(limit), 0);
    for interval in intervals.iter().cycle() {
        now += interval;
        if patience.is_over(now) {
            return now;
        }
    }
    unreachable!("they do not end");
}

#[test]
fn who_looks_often_waits_as_long_as_it_may_take() {
    for limit in [0, 1, 500, 5000] {
        assert_eq!(end(limit, &[1]), limit + 1);
        assert_eq!(end(limit, &[STEP_MS]), (limit / STEP_MS + 1) * STEP_MS);
    }
}

#[test]
fn time_in_which_nobody_looks_counts_for_a_step() {
    // Ten minutes at a time.
    let pause = 600_000;
    assert_eq!(end(1000, &[pause]), 11 * pause);
    // As much is left for what comes behind it.
    let mut patience = Patience::new(1000);
    assert!(!patience.is_over(pause));
    let late = (pause..).find(|now| patience.is_over(*now));
    assert_eq!(late, Some(pause + 1000 - STEP_MS + 1));
}

#[test]
fn a_clock_that_goes_back_gives_nothing() {
    let mut patience = Patience::new(50);
    assert!(!patience.is_over(40));
    assert!(!patience.is_over(0));
    assert!(!patience.is_over(50));
    assert!(patience.is_over(51));
    assert!(patience.is_over(51), "it stays so");
}
