// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a `VecDeque`.

use super::*;
use crate::std_heap::{allocations, until_enough, StdHeap};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

type Queue = InFlight<StdHeap, u32>;

#[derive(Clone, Debug)]
enum Op {
    Push(u32),
    Complete(u64),
    /// Complete, but look only at so many.
    CompleteSome(u64, usize),
    RemoveIf(u32),
    /// Packets that can be divided by this keep their ids.
    Renumber(u32),
}

fn op() -> impl Strategy<Value = Op> {
    // Relative to the oldest id, sometimes before or behind the queue.
    let id = || 0u64..12;
    prop_oneof![
        8 => (0u32..100).prop_map(Op::Push),
        2 => id().prop_map(Op::Complete),
        1 => (id(), 0usize..5).prop_map(|(id, n)| Op::CompleteSome(id, n)),
        1 => (2u32..5).prop_map(Op::RemoveIf),
        1 => (1u32..5).prop_map(Op::Renumber),
    ]
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_deque(
        capacity in 0usize..9,
        first in prop_oneof![
            Just(0u64), Just(1), Just(1000), (0u64..40).prop_map(|n| u64::MAX - n),
        ],
        ops in prop::collection::vec(op(), 1..100),
    ) {
        let mut queue = Queue::new(capacity, first).unwrap();
        let mut model: VecDeque<(u64, u32)> = VecDeque::new();
        let mut next = first.max(1);
        let before = allocations();
        for op in ops {
            let base = model.front().map_or(next, |entry| entry.0).saturating_sub(2);
            match op {
                Op::Push(packet) => {
                    let expected = if next == u64::MAX {
                        Err(PushError::IdsExhausted(packet))
                    } else if model.len() == capacity {
                        Err(PushError::Full(packet))
                    } else {
                        model.push_back((next, packet));
                        next += 1;
                        Ok(next - 1)
                    };
                    prop_assert_eq!(queue.push(packet), expected);
                }
                Op::Complete(id) | Op::CompleteSome(id, _) => {
                    let id = base.saturating_add(id);
                    match model.iter().position(|entry| entry.0 == id) {
                        Some(position) => {
                            let expected: Vec<_> = model.drain(..=position).collect();
                            let completed = queue.complete_up_to(id).unwrap();
                            if let Op::CompleteSome(_, n) = op {
                                let seen: Vec<_> = completed.take(n).collect();
                                prop_assert!(expected.starts_with(&seen));
                            } else {
                                prop_assert_eq!(completed.collect::<Vec<_>>(), expected);
                            }
                        }
                        None => {
                            let error = queue.complete_up_to(id).err();
                            prop_assert_eq!(error, Some(BogusId { reported: id }));
                        }
                    }
                }
                Op::RemoveIf(n) => {
                    let mut removed = Vec::new();
                    queue.remove_if(|_, p| p % n == 0, |id, p| removed.push((id, p)));
                    let expected: Vec<_> = model.iter().copied().filter(|e| e.1 % n == 0).collect();
                    model.retain(|entry| entry.1 % n != 0);
                    prop_assert_eq!(removed, expected);
                }
                Op::Renumber(n) => {
                    let renumbered = queue.renumber(|p| p % n == 0);
                    let (kept, others): (Vec<_>, Vec<_>) =
                        model.iter().copied().partition(|(_, p)| p % n == 0);
                    if let Some(last) = next.checked_add(others.len() as u64) {
                        prop_assert_eq!(renumbered, Ok(()));
                        let renamed = (next..last).zip(others.iter().map(|(_, p)| *p));
                        model = kept.into_iter().chain(renamed).collect();
                        next = last;
                    } else {
                        prop_assert_eq!(renumbered, Err(IdsExhausted));
                    }
                }
            }
            prop_assert!(queue.iter().map(|(id, p)| (id, *p)).eq(model.iter().copied()));
            prop_assert_eq!(queue.front().map(|(id, p)| (id, *p)), model.front().copied());
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.is_full(), model.len() == capacity);
            prop_assert_eq!(queue.next_id(), next);
        }
        prop_assert_eq!(allocations(), before, "an operation allocated");
    }
}

#[test]
fn creation_survives_each_failure() {
    until_enough(|| Queue::new(100, 1));
    assert!(Queue::new(usize::MAX, 1).is_err());
}
