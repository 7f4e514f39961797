// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use std::vec::Vec;

fn level(priority: i32) -> Level {
    Level::of(priority).expect("a priority")
}

/// What is looked at within `ms` beside what runs at `running`, while no value comes: by place,
/// when.
fn looks(priorities: &[i32], running: Option<i32>, ms: u64) -> Vec<Vec<u64>> {
    let running = running.map(level);
    let mut looks = Looks::default();
    // Far from the clock's beginning.
    let begin = 1 << 40;
    let mut parked: Vec<(Level, Parked)> = (priorities.iter())
        .map(|priority| {
            let parked = Parked {
                since_ms: begin,
                seen_ms: begin,
            };
            (level(*priority), parked)
        })
        .collect();
    let mut seen = std::vec![Vec::new(); parked.len()];
    for now in (0..ms).step_by(4) {
        if !looks.is_time(begin + now) {
            continue;
        }
        if let Some(place) = looks.next(parked.iter().copied(), running, begin + now) {
            parked[place].1.seen_ms = begin + now;
            seen[place].push(now);
        }
    }
    seen
}

fn gap(times: &[u64]) -> u64 {
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().expect("two looks")
}

#[test]
fn what_is_more_important_than_what_runs_is_looked_at_without_back_off() {
    let seen = looks(&[7], Some(-7), 10_000);
    assert_eq!(gap(&seen[0]), LOOK_MS);
    // Nor is there any where nothing runs.
    let seen = looks(&[-7], None, 10_000);
    assert_eq!(gap(&seen[0]), LOOK_MS);
}

#[test]
fn others_are_looked_at_less_and_less() {
    for priority in [0, -1] {
        let seen = looks(&[priority], Some(0), 20_000);
        // 32 ms each up to 256 ms, an eighth more each up to 8 s, then one a second.
        assert!((40..64).contains(&seen[0].len()), "{seen:?}");
        assert_eq!(gap(&seen[0]), PATIENCE_MS);
    }
}

#[test]
fn the_highest_goes_first() {
    let seen = looks(&[0, 5, 7, 6], Some(-7), 4);
    assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1, 0]);
    // Equals in turn.
    let seen = looks(&[7, 7, 7], Some(-7), 10_000);
    assert!(seen.iter().all(|times| gap(times) == 3 * LOOK_MS));
}

#[test]
fn nobody_is_passed_over_for_ever() {
    let priorities: Vec<i32> = core::iter::repeat_n(0, 64).chain([7]).collect();
    let seen = looks(&priorities, Some(-7), 20_000);
    let (highest, others) = seen.split_last().expect("some");
    // However many have been, the highest has every other look.
    assert!(gap(highest) <= 2 * LOOK_MS, "{highest:?}");
    let most = PATIENCE_MS + 2 * 64 * LOOK_MS;
    assert!(others.iter().all(|times| gap(times) <= most), "{others:?}");
}

#[test]
fn there_is_one_look_at_a_time() {
    let mut looks = Looks::default();
    let parked = [(level(7), Parked::default())];
    assert!(looks.is_time(1 << 40));
    assert_eq!(looks.next(parked.into_iter(), None, 1 << 40), Some(0));
    assert!(!looks.is_time((1 << 40) + LOOK_MS - 1));
    assert!(looks.is_time((1 << 40) + LOOK_MS));
    assert_eq!(looks.next([].into_iter(), None, 1 << 41), None);
    // A clock that goes back is no failure.
    assert!(!looks.is_time(0));
}
