// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use std::{vec, vec::Vec};

/// What each of `users` has who take one after the other as long as they get any, and what is free.
fn greedy(total: u64, users: usize) -> (Vec<u64>, u64) {
    let (mut used, mut free) = (vec![0; users], total);
    loop {
        let before = free;
        for used in &mut used {
            if free > 0 && excess(*used + 1, free - 1) == 0 {
                *used += 1;
                free -= 1;
            }
        }
        if free == before {
            return (used, free);
        }
    }
}

#[test]
fn as_much_is_left_as_each_has() {
    for users in 1..40 {
        let (used, free) = greedy(1022, users);
        let share = 1022 / (users as u64 + 1);
        for used in &used {
            assert!((share..=share + 2).contains(used), "{users}: {used:?}");
        }
        assert!(free + 2 >= share, "{users} users leave {free}");
    }
}

#[test]
fn who_comes_late_gets_as_much() {
    let (mut used, mut free) = (0, greedy(1022, 1).1);
    while free > 0 && excess(used + 1, free - 1) == 0 {
        used += 1;
        free -= 1;
    }
    assert!(used >= 255 && free >= 255, "{used}, {free}");
    assert_eq!(excess(1, free - 1), 0);
}

#[test]
fn what_is_given_back_is_enough_and_no_more() {
    for used in 0..64 {
        for free in 0..64 {
            let back = excess(used, free);
            assert_eq!(
                excess(used - back, free + back),
                0,
                "{used}, {free}: {back}"
            );
            if back > 0 {
                assert_ne!(
                    excess(used - back + 1, free + back - 1),
                    0,
                    "{used}, {free}: {back}"
                );
            }
        }
    }
    assert_eq!(excess(u64::MAX, u64::MAX), 0);
}
