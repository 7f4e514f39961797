// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a walk from the first block on.

use super::*;
use crate::std_heap::{until_enough, StdHeap, StdVec};
use proptest::collection::vec;
use proptest::prelude::*;
use std::vec::Vec;

fn list(blocks: impl IntoIterator<Item = PageRange>) -> StdVec<PageRange> {
    let mut list = StdVec::new();
    for block in blocks {
        list.try_push(block).expect("memory");
    }
    list
}

/// So many blocks of one page, none beside the one before.
fn scattered(count: u64) -> StdVec<PageRange> {
    list((0..count).map(|n| PageRange::new(2 * n, 1)))
}

#[test]
fn a_page_of_many_pieces_is_found_in_few_steps() {
    let blocks = Blocks::<StdHeap>::take(&mut scattered(16_384)).expect("memory");
    let mut most = 0;
    for page in 0..16_384 {
        let mut steps = 0;
        let found = blocks.find_with(page, || steps += 1);
        assert_eq!(found, Some(PageIndex(2 * page)));
        most = most.max(steps);
    }
    assert!(most <= 15, "{most} blocks were looked at for one page");
}

#[test]
fn without_memory_nothing_is_taken() {
    let mut many = scattered(100);
    let taken = until_enough(|| {
        Blocks::<StdHeap>::take(&mut many).inspect_err(|_| assert_eq!(many, scattered(100)))
    });
    assert_eq!((many.len(), taken.as_slice().len()), (0, 100));
}

proptest! {
    #[test]
    fn pages_are_where_a_walk_finds_them(sizes in vec(0u64..5, 0..40)) {
        let blocks = (0..).zip(&sizes).map(|(n, pages)| PageRange::new(1000 * n, *pages));
        let all: Vec<_> = blocks.collect();
        let pages = |block: &PageRange| (block.start.0..).take(block.pages.0 as usize);
        let walked: Vec<_> = all.iter().flat_map(pages).map(PageIndex).collect();
        let blocks = Blocks::<StdHeap>::take(&mut list(all.clone())).expect("memory");
        prop_assert_eq!(blocks.as_slice(), &all[..]);
        for (page, at) in (0..).zip(&walked) {
            prop_assert_eq!(blocks.find(page), Some(*at));
        }
        prop_assert_eq!(blocks.find(walked.len() as u64), None);
        prop_assert_eq!(blocks.find(u64::MAX), None);
    }
}
