// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against lists: one of jobs for each context, one of contexts for the rotation.

use super::*;
use crate::std_heap::{allocations, until_enough, StdHeap};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

type Queue = RunQueue<StdHeap, u32>;

#[derive(Clone, Debug)]
enum Op {
    Add,
    Enqueue(prop::sample::Index),
    Take(u64),
    Charge(prop::sample::Index, u64),
    Block(prop::sample::Index),
    Unblock(prop::sample::Index),
    Drain(prop::sample::Index),
    Remove(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        2 => Just(Op::Add),
        10 => which().prop_map(Op::Enqueue),
        8 => (0u64..3).prop_map(Op::Take),
        1 => (which(), 0u64..4).prop_map(|(w, c)| Op::Charge(w, c)),
        1 => which().prop_map(Op::Block),
        2 => which().prop_map(Op::Unblock),
        1 => which().prop_map(Op::Drain),
        1 => which().prop_map(Op::Remove),
    ]
}

#[derive(Default)]
struct ModelContext {
    key: Option<ContextKey>,
    jobs: VecDeque<u32>,
    blocked: bool,
}

#[derive(Default)]
struct Model {
    /// Never reused, so that stale keys are tried too.
    contexts: Vec<ModelContext>,
    rotation: VecDeque<usize>,
    used: u64,
}

impl Model {
    fn leave(&mut self, at: usize) {
        if self.rotation.front() == Some(&at) {
            self.used = 0;
        }
        self.rotation.retain(|other| *other != at);
    }

    fn join(&mut self, at: usize) {
        let context = &self.contexts[at];
        if !context.blocked && !context.jobs.is_empty() && !self.rotation.contains(&at) {
            self.rotation.push_back(at);
        }
    }

    fn charge(&mut self, at: usize, cost: u64, quantum: u64) {
        if self.rotation.front() == Some(&at) {
            self.used += cost;
            if self.used >= quantum {
                self.used = 0;
                self.rotation.rotate_left(1);
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_lists(quantum in 0u64..5, ops in prop::collection::vec(op(), 1..200)) {
        let mut queue = Queue::new(quantum);
        let quantum = quantum.max(1);
        let mut model = Model::default();
        let mut keys = Vec::new();
        let mut next_job = 0;
        for op in ops {
            let pick = |which: &prop::sample::Index| which.index(keys.len().max(1));
            if keys.is_empty() && !matches!(op, Op::Add | Op::Take(_)) {
                continue;
            }
            match op {
                Op::Add => {
                    let key = queue.add_context().unwrap();
                    prop_assert!(!keys.contains(&key), "a key came again");
                    keys.push(key);
                    model.contexts.push(ModelContext { key: Some(key), ..Default::default() });
                }
                Op::Enqueue(which) => {
                    let at = pick(&which);
                    let mut tickets = queue.prepare(1).unwrap();
                    let before = allocations();
                    let result = queue.enqueue(keys[at], &mut tickets, next_job);
                    prop_assert_eq!(allocations(), before, "a commit allocated");
                    if model.contexts[at].key.is_some() {
                        prop_assert_eq!(result, Ok(()));
                        prop_assert_eq!(tickets.count(), 0);
                        model.contexts[at].jobs.push_back(next_job);
                        model.join(at);
                    } else {
                        prop_assert_eq!(result, Err(EnqueueError::Gone(next_job)));
                    }
                    queue.release(tickets);
                    next_job += 1;
                }
                Op::Take(cost) => {
                    let front = queue.front().map(|(key, job)| (key, *job));
                    let taken = queue.take(cost);
                    prop_assert_eq!(front, taken);
                    let expected = model.rotation.front().copied().map(|at| {
                        let job = model.contexts[at].jobs.pop_front().unwrap();
                        if model.contexts[at].jobs.is_empty() {
                            model.leave(at);
                        } else {
                            model.charge(at, cost, quantum);
                        }
                        (keys[at], job)
                    });
                    prop_assert_eq!(taken, expected);
                }
                Op::Charge(which, cost) => {
                    let at = pick(&which);
                    queue.charge(keys[at], cost);
                    model.charge(at, cost, quantum);
                }
                Op::Block(which) | Op::Unblock(which) => {
                    let at = pick(&which);
                    let block = matches!(op, Op::Block(_));
                    let result = if block { queue.block(keys[at]) } else { queue.unblock(keys[at]) };
                    prop_assert_eq!(result.is_ok(), model.contexts[at].key.is_some());
                    if result.is_ok() {
                        model.contexts[at].blocked = block;
                        if block { model.leave(at) } else { model.join(at) }
                    }
                }
                Op::Drain(which) | Op::Remove(which) => {
                    let at = pick(&which);
                    let mut jobs = Vec::new();
                    let remove = matches!(op, Op::Remove(_));
                    let result = if remove {
                        queue.remove_context(keys[at], |job| jobs.push(job))
                    } else {
                        queue.drain(keys[at], |job| jobs.push(job))
                    };
                    prop_assert_eq!(result.is_ok(), model.contexts[at].key.is_some());
                    let expected: Vec<_> = model.contexts[at].jobs.drain(..).collect();
                    prop_assert_eq!(jobs, expected);
                    model.leave(at);
                    if remove {
                        model.contexts[at].key = None;
                    }
                }
            }
            // The rotation, forwards and backwards.
            let mut order = Vec::new();
            let (mut at, mut before) = (queue.rotation.front, NIL);
            while let Some(context) = queue.slot(at) {
                prop_assert_eq!(context.prev, before);
                order.push(at);
                (before, at) = (at, context.next);
            }
            prop_assert_eq!(queue.rotation.back, before);
            let expected: Vec<u32> = model.rotation.iter().map(|at| keys[*at].index).collect();
            prop_assert_eq!(order, expected);
            prop_assert_eq!(queue.is_idle(), model.rotation.is_empty());
            prop_assert_eq!(queue.rotation.used, model.used);
            let queued: usize = model.contexts.iter().map(|context| context.jobs.len()).sum();
            prop_assert_eq!(queue.queued() as usize, queued);
            prop_assert_eq!(queue.spares as usize, queue.jobs.len() - queued);
            prop_assert_eq!(queue.promised, 0);
            for (at, context) in model.contexts.iter().enumerate() {
                let expected = context.key.map(|_| context.jobs.len() as u32).ok_or(Gone);
                prop_assert_eq!(queue.queued_by(keys[at]), expected);
            }
        }
    }

    /// The promise of the header, with arrivals at any time.
    #[test]
    fn nobody_waits_longer_than_a_turn_of_each_other(
        contexts in 1usize..8, quantum in 1u64..4,
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let mut queue = Queue::new(quantum);
        let keys: Vec<_> = (0..contexts).map(|_| queue.add_context().unwrap()).collect();
        let mut waited = vec![0; contexts];
        let mut tickets = queue.prepare(arrivals.len() as u32).unwrap();
        let mut expected = vec![VecDeque::new(); contexts];
        let total = arrivals.len();
        let mut arrivals = arrivals.into_iter().enumerate();
        let mut picks = 0;
        loop {
            for (job, which) in arrivals.by_ref().take(2) {
                let at = which.index(contexts);
                queue.enqueue(keys[at], &mut tickets, job as u32).unwrap();
                expected[at].push_back(job as u32);
            }
            let Some((key, job)) = queue.take(1) else {
                break;
            };
            picks += 1;
            let at = keys.iter().position(|other| *other == key).unwrap();
            prop_assert_eq!(expected[at].pop_front(), Some(job));
            for (other, waited) in waited.iter_mut().enumerate() {
                if other == at || expected[other].is_empty() {
                    *waited = 0;
                } else {
                    *waited += 1;
                    prop_assert!(*waited <= (contexts - 1) * quantum as usize);
                }
            }
        }
        prop_assert_eq!(picks, total, "a job was lost");
        queue.release(tickets);
    }
}

#[test]
fn preparation_survives_each_failure() {
    let mut queue = Queue::new(1);
    let key = until_enough(|| queue.add_context());
    let held = queue.prepare(2).unwrap();
    let mut tickets = until_enough(|| {
        let spares = queue.spares;
        queue.prepare(50).inspect_err(|_| {
            assert_eq!((queue.spares, queue.promised), (spares, 2));
        })
    });
    assert_eq!(queue.promised, 52);
    queue.enqueue(key, &mut tickets, 1).unwrap();
    let mut none = queue.prepare(0).unwrap();
    assert_eq!(
        queue.enqueue(key, &mut none, 2),
        Err(EnqueueError::NoTicket(2))
    );
    assert!(queue.prepare(u32::MAX).is_err());
    for tickets in [held, tickets, none] {
        queue.release(tickets);
    }
    assert_eq!((queue.promised, queue.queued()), (0, 1));
}
