// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::{
    collections::{BTreeMap, BTreeSet},
    format, vec,
};

use super::*;

/// Values that are promised: 1 to this.
const MOST: u64 = 8;

impl Promises for BTreeMap<u64, bool> {
    fn first(&self) -> Option<(u64, bool)> {
        self.after(0)
    }

    fn last(&self) -> Option<u64> {
        self.keys().next_back().copied()
    }

    fn before(&self, value: u64) -> Option<(u64, bool)> {
        let (value, is_kept) = self.range(..value).next_back()?;
        Some((*value, *is_kept))
    }

    fn after(&self, value: u64) -> Option<(u64, bool)> {
        let (value, is_kept) = self.range(value + 1..).next()?;
        Some((*value, *is_kept))
    }

    fn keep(&mut self, value: u64) {
        let is_kept = self.get_mut(&value).expect("it is promised");
        assert!(!std::mem::replace(is_kept, true), "kept once");
    }

    fn remove(&mut self, value: u64) {
        self.remove(&value).expect("it is promised");
    }
}

/// Every promise that was made and not withdrawn, and whether it was kept: nothing is forgotten.
type Model = BTreeMap<u64, bool>;

/// The value that the fence has.
fn value(model: &Model) -> u64 {
    let reached = model.iter().take_while(|(_, is_kept)| **is_kept);
    reached.map(|(value, _)| *value).last().unwrap_or(0)
}

/// What is to be remembered of all.
fn remembered(model: &Model) -> BTreeMap<u64, bool> {
    let reached = value(model);
    let next_is_kept = |value: u64| model.after(value).is_some_and(|(_, is_kept)| is_kept);
    let rest = model.iter().filter(|(value, _)| **value > reached);
    let rest = rest.filter(|(value, is_kept)| !(**is_kept && next_is_kept(**value)));
    rest.map(|(value, is_kept)| (*value, *is_kept)).collect()
}

/// Whatever is promised, and in whichever order it ends: every state that there is, and each step
/// from it.
#[test]
fn values_are_reached_in_the_order_of_their_promises() {
    let mut seen = BTreeSet::from([Model::new()]);
    let mut next = vec![Model::new()];
    let (mut refused, mut given, mut ended) = (0, 0, 0);
    while let Some(model) = next.pop() {
        let before = value(&model);
        let mut reach = |after: Model| {
            if seen.insert(after.clone()) {
                next.push(after);
            }
        };
        for promised in 1..=MOST {
            let last = model.keys().next_back().copied().unwrap_or(0);
            let mut promises = remembered(&model);
            let accepted = accepts(&promises, before, promised);
            assert_eq!(accepted, promised > last, "{promised}: {model:?}");
            if !accepted {
                refused += 1;
                continue;
            }
            given += 1;
            promises.insert(promised, false);
            let mut after = model.clone();
            after.insert(promised, false);
            assert_eq!(promises, remembered(&after), "{promised}: {model:?}");
            reach(after);
        }
        for (open, _) in model.iter().filter(|(_, is_kept)| !**is_kept) {
            for is_kept in [true, false] {
                ended += 1;
                let mut promises = remembered(&model);
                let reached = end(&mut promises, *open, is_kept);
                let mut after = model.clone();
                match is_kept {
                    true => _ = after.insert(*open, true),
                    false => _ = after.remove(open),
                }
                let now = value(&after);
                let what = format!("{open}, kept: {is_kept}, of {model:?}");
                assert_eq!(reached, (now != before).then_some(now), "{what}");
                assert_eq!(promises, remembered(&after), "{what}");
                reach(after);
            }
        }
    }
    // Each value is not promised, is, or was kept.
    assert_eq!(seen.len(), 3_usize.pow(MOST as u32));
    assert!(
        refused > 0 && given > 0 && ended > given,
        "{refused} {given} {ended}"
    );
}
