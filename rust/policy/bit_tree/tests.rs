// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a `BTreeSet`.

use super::*;
use crate::std_heap::{until_enough, StdHeap};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec;

fn tree(size: u64) -> BitTree<StdHeap> {
    BitTree::new(size).unwrap()
}

/// Inserts as the owner of a tree does.
fn add(tree: &mut BitTree<StdHeap>, member: u64) -> bool {
    tree.prepare(member).unwrap();
    tree.insert(member)
}

/// Each bit above level 0 says whether the word below exists and is not zero; nothing is set beyond
/// the size.
fn check(tree: &BitTree<StdHeap>) {
    let mut work = vec![(tree.levels - 1, 0, 0u64)];
    while let Some((level, at, first)) = work.pop() {
        let span = 1u64 << (WORD_SHIFT * level);
        for digit in 0..WORD_BITS {
            let set = tree.word(level, at) & 1 << digit != 0;
            let from = first + digit as u64 * span;
            if level == 0 {
                assert!(!set || from < tree.size);
                continue;
            }
            let below = tree.child(at, digit);
            assert_eq!(
                set,
                below.is_some_and(|below| tree.word(level - 1, below) != 0)
            );
            assert!(below.is_none() || from < tree.size);
            work.extend(below.map(|below| (level - 1, below, from)));
        }
    }
}

#[test]
fn sizes_at_the_edges() {
    for size in [0, 1, 63, 64, 65, 4095, 4096, 4097, 64 * 64 * 64 + 1] {
        let mut tree = tree(size);
        assert_eq!(tree.first(), None);
        assert!(!add(&mut tree, size));
        if size > 0 {
            assert!(add(&mut tree, size - 1));
            assert!(!add(&mut tree, size - 1));
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
fn preparing_survives_each_failure() {
    let mut tree = until_enough(|| BitTree::<StdHeap>::new(100_000));
    until_enough(|| {
        let result = tree.prepare(99_999);
        assert_eq!(tree.insert(99_999), result.is_ok());
        check(&tree);
        result
    });
}

#[test]
fn memory_follows_use() {
    let mut tree = tree(1 << 48);
    for member in (0..1 << 20).chain([1 << 47, (1 << 48) - 1]) {
        assert!(add(&mut tree, member));
    }
    assert_eq!(tree.leaves.len(), (1 << 14) + 2);
    // One for each 64 leaves, some above these, and two ways down to single ones.
    assert!(tree.branches.len() < (1 << 8) + 4 + 2 * 8 + 8);
    assert_eq!(tree.next(1 << 20), Some(1 << 47));
    assert!(!tree.insert(1 << 46), "where nothing was prepared");
    check(&tree);
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_set(
        size in prop_oneof![1u64..200, 4000u64..5000, 262_100u64..262_200, Just(1 << 48)],
        ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..300),
    ) {
        let mut tree = tree(size);
        let mut model = BTreeSet::new();
        for (insert, at) in ops {
            let at = at.index(size as usize) as u64;
            // Neighbours too, so that removals hit.
            if insert {
                prop_assert_eq!(add(&mut tree, at), model.insert(at));
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
