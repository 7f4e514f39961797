// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a `BTreeSet`.

use super::*;
use crate::std_heap::{until_enough, StdHeap};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn tree(size: u64) -> BitTree<StdHeap> {
    BitTree::new(size).unwrap()
}

/// Every summary bit says whether its word is zero; nothing is set beyond the size.
fn check(tree: &BitTree<StdHeap>) {
    for level in 1..tree.levels {
        let below = (tree.bounds[level] - tree.bounds[level - 1]) as u64;
        for word in 0..below {
            let summary = tree.word(level, word / 64) & bit(word) != 0;
            assert_eq!(summary, tree.word(level - 1, word) != 0);
        }
        for beyond in below..below.next_multiple_of(64) {
            assert_eq!(tree.word(level, beyond / 64) & bit(beyond), 0);
        }
    }
    for beyond in tree.size..tree.size.next_multiple_of(64) {
        assert!(!tree.contains(beyond));
    }
}

#[test]
fn sizes_at_the_edges() {
    for size in [0, 1, 63, 64, 65, 4095, 4096, 4097, 64 * 64 * 64 + 1] {
        let mut tree = tree(size);
        assert_eq!(tree.first(), None);
        assert!(!tree.insert(size));
        if size > 0 {
            assert!(tree.insert(size - 1));
            assert!(!tree.insert(size - 1));
            assert_eq!(tree.first(), Some(size - 1));
            assert_eq!(tree.next(size), None);
            check(&tree);
            assert!(tree.remove(size - 1));
            assert!(!tree.remove(size - 1));
        }
        assert_eq!(tree.first(), None);
        assert_eq!(tree.next(u64::MAX), None);
        check(&tree);
    }
}

#[test]
fn too_large_is_out_of_memory() {
    assert!(BitTree::<StdHeap>::new(u64::MAX).is_err());
}

#[test]
fn creation_survives_each_failure() {
    until_enough(|| BitTree::<StdHeap>::new(100_000));
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_set(
        size in prop_oneof![1u64..200, 4000u64..5000, 262_100u64..262_200],
        ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..300),
    ) {
        let mut tree = tree(size);
        let mut model = BTreeSet::new();
        for (insert, at) in ops {
            let at = at.index(size as usize) as u64;
            // Neighbours too, so that removals hit.
            if insert {
                prop_assert_eq!(tree.insert(at), model.insert(at));
            } else {
                let at = model.range(at..).next().copied().unwrap_or(at);
                prop_assert_eq!(tree.remove(at), model.remove(&at));
            }
            prop_assert_eq!(tree.contains(at), model.contains(&at));
            prop_assert_eq!(tree.next(at), model.range(at..).next().copied());
            prop_assert_eq!(tree.next(at + 1), model.range(at + 1..).next().copied());
            prop_assert_eq!(tree.first(), model.first().copied());
        }
        check(&tree);
    }
}
