// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a state per id.

use super::*;
use crate::std_heap::{allocations, until_enough, StdHeap};
use proptest::prelude::*;
use std::vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reserved,
    Free,
    Used,
    Waits(u64),
}

#[derive(Clone, Debug)]
enum Op {
    Alloc,
    /// An id, and how far behind (or before) the present flush.
    Free(prop::sample::Index, i64),
    /// The next flush begins.
    Begin,
    /// A flush is done, this many before the present one.
    Done(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => Just(Op::Alloc),
        5 => (any::<prop::sample::Index>(), -2i64..2).prop_map(|(i, e)| Op::Free(i, e)),
        2 => Just(Op::Begin),
        2 => (0u64..4).prop_map(Op::Done),
    ]
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_state_per_id(
        lowest in 0u32..4, limit in 0u32..20, ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut ids = IdSlots::<StdHeap>::new(lowest, limit).unwrap();
        let mut model = vec![State::Free; limit as usize];
        for state in model.iter_mut().take(lowest as usize) {
            *state = State::Reserved;
        }
        let mut present = 10u64;
        let before = allocations();
        for op in ops {
            match op {
                Op::Alloc => {
                    let free = model.iter().position(|s| *s == State::Free);
                    let oldest = model
                        .iter()
                        .filter_map(|s| if let State::Waits(e) = s { Some(*e) } else { None })
                        .min();
                    match ids.alloc() {
                        Ok(id) => {
                            prop_assert_eq!(Some(id as usize), free);
                            model[id as usize] = State::Used;
                        }
                        Err(error) => {
                            prop_assert_eq!(free, None);
                            prop_assert_eq!(
                                error,
                                oldest.map_or(
                                    IdError::NoneFree,
                                    |epoch| IdError::FlushNeeded { epoch },
                                )
                            );
                        }
                    }
                }
                Op::Free(which, off) => {
                    // One beyond the last too.
                    let id = which.index(limit as usize + 1) as u32;
                    let epoch = present.saturating_add_signed(off);
                    let result = ids.free(id, epoch);
                    if model.get(id as usize) == Some(&State::Used) {
                        prop_assert_eq!(result, Ok(()));
                        let youngest = model
                            .iter()
                            .filter_map(|s| if let State::Waits(e) = s { Some(*e) } else { None })
                            .max();
                        model[id as usize] = State::Waits(epoch.max(youngest.unwrap_or(0)));
                    } else {
                        prop_assert_eq!(result, Err(NotInUse { id }));
                    }
                }
                Op::Begin => present += 1,
                Op::Done(ago) => {
                    let epoch = present - ago;
                    let mut released = 0;
                    for state in &mut model {
                        if matches!(state, State::Waits(e) if *e <= epoch) {
                            *state = State::Free;
                            released += 1;
                        }
                    }
                    prop_assert_eq!(ids.flushed(epoch), released);
                }
            }
            let count = |f: fn(&State) -> bool| model.iter().filter(|s| f(s)).count() as u32;
            prop_assert_eq!(ids.in_use(), count(|s| *s == State::Used));
            prop_assert_eq!(ids.quarantined(), count(|s| matches!(s, State::Waits(_))));
        }
        prop_assert_eq!(allocations(), before, "an operation allocated");
    }
}

#[test]
fn creation_survives_each_failure() {
    until_enough(|| IdSlots::<StdHeap>::new(1, 65_536));
}

#[test]
fn nothing_at_all() {
    let mut ids = IdSlots::<StdHeap>::new(5, 3).unwrap();
    assert_eq!(ids.alloc(), Err(IdError::NoneFree));
    assert_eq!(ids.free(u32::MAX, 0), Err(NotInUse { id: u32::MAX }));
    assert_eq!(ids.flushed(u64::MAX), 0);
}
