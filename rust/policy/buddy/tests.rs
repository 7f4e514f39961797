// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a list of pages, each with its owner and its content.

use super::*;
use crate::std_heap::{fail_at, until_enough, StdHeap, StdVec};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

type TestBuddy = Buddy<StdHeap>;

/// What is free, block by block, in order of address.
fn free_list(buddy: &TestBuddy) -> Vec<(Node, Tint)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < buddy.total {
        match buddy.free_node_around(at) {
            Some((node, tint)) => {
                list.push((node, tint));
                at = node.end();
            }
            None => at += 1,
        }
    }
    list
}

/// The content of each free page, from the tints.
fn tint_pages(buddy: &TestBuddy, node: Node, tint: Tint, pages: &mut [Option<Content>]) {
    let mut work = vec![(node, tint)];
    while let Some((node, tint)) = work.pop() {
        let content = match tint {
            Tint::Mixed => {
                assert!(node.order > 0, "a page is never mixed");
                let (left, right) = node.halves();
                let (of_left, of_right) = buddy.tints_of_halves(node, tint);
                assert!(
                    of_left != of_right || of_left == Tint::Mixed,
                    "mixed of equal halves"
                );
                work.push((left, of_left));
                work.push((right, of_right));
                continue;
            }
            Tint::Cleared => Content::Cleared,
            Tint::Dirty => Content::Dirty,
        };
        for page in node.start()..node.end() {
            pages[page as usize] = Some(content);
        }
    }
}

struct Model {
    /// `None`: allocated.
    pages: Vec<Option<Content>>,
    live: Vec<PageRange>,
}

impl Model {
    fn new(total: u64, content: Content) -> Self {
        Model {
            pages: vec![Some(content); total as usize],
            live: Vec::new(),
        }
    }

    fn slice(&mut self, range: PageRange) -> &mut [Option<Content>] {
        &mut self.pages[range.start.0 as usize..range.end().unwrap().0 as usize]
    }

    fn took(&mut self, block: Block) {
        let pages = self.slice(block.range);
        assert!(
            pages.iter().all(Option::is_some),
            "handed out twice: {block:?}"
        );
        if block.content == Content::Cleared {
            assert!(pages.iter().all(|page| *page == Some(Content::Cleared)));
        }
        pages.fill(None);
        self.live.push(block.range);
    }

    fn free(&mut self, at: usize, content: Content) -> PageRange {
        let range = self.live.swap_remove(at);
        self.slice(range).fill(Some(content));
        range
    }

    fn has_run(&self, pages: u64, align: u64) -> bool {
        let total = self.pages.len() as u64;
        (0..total).step_by(align as usize).any(|start| {
            start + pages <= total
                && self.pages[start as usize..(start + pages) as usize]
                    .iter()
                    .all(Option::is_some)
        })
    }

    fn check(&self, buddy: &TestBuddy) {
        let list = free_list(buddy);
        let mut pages = vec![None; self.pages.len()];
        for (node, tint) in &list {
            tint_pages(buddy, *node, *tint, &mut pages);
            if node.buddy().end() <= buddy.total {
                assert!(
                    buddy.tint_of_free(node.buddy()).is_none(),
                    "{node:?} not merged"
                );
            }
        }
        assert_eq!(pages, self.pages);
        let free = self.pages.iter().flatten().count() as u64;
        assert_eq!(buddy.free_pages().0, free);
        let blocks: u64 = (0..=buddy.top())
            .map(|order| buddy.free_blocks(order))
            .sum();
        assert_eq!(blocks, list.len() as u64, "a free block inside another");
        let largest = list.iter().map(|(node, _)| 1 << node.order).max();
        assert_eq!(buddy.largest_free_block().0, largest.unwrap_or(0));
        let dirty = self.pages.contains(&Some(Content::Dirty));
        assert_eq!(buddy.has_dirty(), dirty);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(u64, u32, Prefer),
    Scattered(u64, u32, Prefer),
    ScatteredFails(u64, u32, Prefer, u64),
    Reserve(prop::sample::Index, u64),
    TakeDirty(u64),
    Free(prop::sample::Index, Content),
    BadFree(prop::sample::Index, u64),
}

fn prefer() -> impl Strategy<Value = Prefer> {
    prop_oneof![Just(Prefer::Cleared), Just(Prefer::Dirty)]
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![Just(Content::Cleared), Just(Content::Dirty)]
}

fn op() -> impl Strategy<Value = Op> {
    let size = || prop_oneof![4 => 1u64..10, 2 => 1u64..80, 1 => 1u64..700];
    let order = || prop_oneof![3 => Just(0u32), 1 => 0u32..6];
    prop_oneof![
        3 => (size(), order(), prefer()).prop_map(|(p, o, f)| Op::Alloc(p, o, f)),
        2 => (size(), order(), prefer()).prop_map(|(p, o, f)| Op::Scattered(p, o, f)),
        1 => (size(), order(), prefer(), 0u64..4).prop_map(|(p, o, f, n)| Op::ScatteredFails(p, o, f, n)),
        1 => (any::<prop::sample::Index>(), size()).prop_map(|(i, p)| Op::Reserve(i, p)),
        1 => (1u64..64).prop_map(Op::TakeDirty),
        6 => (any::<prop::sample::Index>(), content()).prop_map(|(i, c)| Op::Free(i, c)),
        1 => (any::<prop::sample::Index>(), size()).prop_map(|(i, p)| Op::BadFree(i, p)),
    ]
}

fn scattered(pages: u64, order: u32, prefer: Prefer) -> Scattered {
    Scattered {
        pages: PageCount(pages << order),
        granule: PageCount(1 << order),
        prefer,
    }
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_page_list(
        total in prop_oneof![1u64..20, 100u64..600, Just(512), Just(1000)],
        first in content(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut buddy = TestBuddy::new(PageCount(total), first).unwrap();
        let mut model = Model::new(total, first);
        model.check(&buddy);
        for op in ops {
            match op {
                Op::Alloc(pages, order, prefer) => {
                    let (pages, align) = (PageCount(pages), PageCount(1 << order));
                    match buddy.alloc(Request { pages, align, prefer }) {
                        Ok(block) => {
                            prop_assert_eq!(block.range.pages, pages);
                            prop_assert_eq!(block.range.start.0 % align.0, 0);
                            model.took(block);
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(!model.has_run(pages.0, align.0), "a false refusal");
                        }
                    }
                }
                Op::Scattered(pages, order, prefer) => {
                    let mut out = StdVec::new();
                    let usable: u64 = free_list(&buddy)
                        .iter()
                        .filter(|(node, _)| node.order >= order)
                        .map(|(node, _)| 1u64 << node.order)
                        .sum();
                    match buddy.alloc_scattered(scattered(pages, order, prefer), &mut out) {
                        Ok(()) => {
                            let sizes: Vec<u64> =
                                out.as_slice().iter().map(|b| b.range.pages.0).collect();
                            prop_assert_eq!(sizes.iter().sum::<u64>(), pages << order);
                            prop_assert!(sizes.is_sorted_by(|a, b| a >= b));
                            for block in out.as_slice() {
                                let size = block.range.pages.0;
                                prop_assert!(size.is_power_of_two() && size >= 1 << order);
                                prop_assert_eq!(block.range.start.0 % size, 0);
                                model.took(*block);
                            }
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(out.is_empty());
                            prop_assert!(usable < pages << order, "a false refusal");
                        }
                    }
                }
                Op::ScatteredFails(pages, order, prefer, n) => {
                    let before = free_list(&buddy);
                    let mut out = StdVec::new();
                    fail_at(Some(n));
                    let result = buddy.alloc_scattered(scattered(pages, order, prefer), &mut out);
                    fail_at(None);
                    if result.is_ok() {
                        out.as_slice().iter().for_each(|block| model.took(*block));
                    } else {
                        prop_assert!(out.is_empty());
                        prop_assert_eq!(before, free_list(&buddy));
                    }
                }
                Op::Reserve(at, pages) => {
                    let start = at.index(total as usize) as u64;
                    let range = PageRange::new(start, pages);
                    let free = start + pages <= total
                        && model.slice(range).iter().all(Option::is_some);
                    match buddy.reserve(range) {
                        Ok(block) => {
                            prop_assert_eq!(block.range, range);
                            model.took(block);
                        }
                        Err(BuddyError::Invalid) => prop_assert!(start + pages > total),
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::Busy);
                            prop_assert!(!free);
                        }
                    }
                }
                Op::TakeDirty(most) => match buddy.take_dirty(PageCount(most)) {
                    Some(block) => {
                        prop_assert_eq!(block.content, Content::Dirty);
                        prop_assert!(block.range.pages.0 <= most);
                        prop_assert!(model.slice(block.range).iter().all(|p| *p == Some(Content::Dirty)));
                        model.took(block);
                    }
                    None => prop_assert!(!model.pages.contains(&Some(Content::Dirty))),
                },
                Op::Free(at, content) => {
                    if !model.live.is_empty() {
                        let range = model.free(at.index(model.live.len()), content);
                        prop_assert_eq!(buddy.free(range, content), Ok(()));
                        prop_assert_eq!(buddy.free(range, content), Err(BuddyError::NotAllocated));
                    }
                }
                Op::BadFree(at, pages) => {
                    let range = PageRange::new(at.index(total as usize) as u64, pages);
                    if !model.live.contains(&range) {
                        let result = buddy.free(range, Content::Dirty);
                        prop_assert_eq!(result, Err(BuddyError::NotAllocated));
                    }
                }
            }
            model.check(&buddy);
        }
        // Everything comes back as one.
        while !model.live.is_empty() {
            let range = model.free(0, Content::Cleared);
            prop_assert_eq!(buddy.free(range, Content::Cleared), Ok(()));
        }
        model.check(&buddy);
        let again = TestBuddy::new(PageCount(total), Content::Cleared).unwrap();
        let nodes = |buddy: &TestBuddy| -> Vec<Node> {
            free_list(buddy).into_iter().map(|(node, _)| node).collect()
        };
        prop_assert_eq!(nodes(&buddy), nodes(&again));
    }
}

fn tight(pages: u64) -> Request {
    Request {
        pages: PageCount(pages),
        align: PageCount(1),
        prefer: Prefer::Dirty,
    }
}

#[test]
fn creation_survives_each_failure() {
    until_enough(|| TestBuddy::new(PageCount(10_000), Content::Dirty));
}

#[test]
fn bad_arguments() {
    assert!(TestBuddy::new(PageCount(0), Content::Dirty).is_err());
    assert!(TestBuddy::new(PageCount(u64::MAX), Content::Dirty).is_err());
    let mut buddy = TestBuddy::new(PageCount(100), Content::Dirty).unwrap();
    let mut out = StdVec::new();
    for align in [0, 3, u64::MAX] {
        let request = Request {
            align: PageCount(align),
            ..tight(1)
        };
        assert_eq!(buddy.alloc(request), Err(BuddyError::Invalid));
        let request = Scattered {
            pages: PageCount(6),
            granule: PageCount(align),
            prefer: Prefer::Dirty,
        };
        let result = buddy.alloc_scattered(request, &mut out);
        assert_eq!(result, Err(BuddyError::Invalid));
    }
    assert_eq!(buddy.alloc(tight(0)), Err(BuddyError::Invalid));
    assert_eq!(buddy.alloc(tight(u64::MAX)), Err(BuddyError::NoSpace));
    let high = Request {
        align: PageCount(1 << 63),
        ..tight(1)
    };
    // Page 0 is aligned to anything.
    assert_eq!(buddy.alloc(high).unwrap().range, PageRange::new(0, 1));
    assert_eq!(buddy.alloc(high), Err(BuddyError::NoSpace));
    let odd = Scattered {
        pages: PageCount(6),
        granule: PageCount(4),
        prefer: Prefer::Dirty,
    };
    assert_eq!(
        buddy.alloc_scattered(odd, &mut out),
        Err(BuddyError::Invalid)
    );
    for range in [(0, 0), (100, 1), (50, 51), (u64::MAX, 1), (1, u64::MAX)] {
        let range = PageRange::new(range.0, range.1);
        assert_eq!(buddy.reserve(range), Err(BuddyError::Invalid));
        let result = buddy.free(range, Content::Dirty);
        assert_eq!(result, Err(BuddyError::NotAllocated));
    }
    assert_eq!(buddy.take_dirty(PageCount(0)), None);
}

#[test]
fn no_rounding_up() {
    // 96 MiB of VRAM have no 128 MiB block, but room for one buffer of 80.
    let mut buddy = TestBuddy::new(PageCount(96 << 8), Content::Dirty).unwrap();
    assert_eq!(buddy.alloc(tight(80 << 8)).unwrap().range.pages.0, 80 << 8);
    assert_eq!(buddy.free_pages().0, 16 << 8);
}

#[test]
fn one_dirty_page_spoils_no_other() {
    let mut buddy = TestBuddy::new(PageCount(1 << 18), Content::Cleared).unwrap();
    let page = buddy.alloc(tight(1)).unwrap();
    buddy.free(page.range, Content::Dirty).unwrap();
    assert_eq!(buddy.largest_free_block().0, 1 << 18);
    let half = Request {
        prefer: Prefer::Cleared,
        ..tight(1 << 17)
    };
    assert_eq!(buddy.alloc(half).unwrap().content, Content::Cleared);
    let dirty = buddy.take_dirty(PageCount(1 << 10)).unwrap();
    assert_eq!(dirty.range, page.range);
    assert!(!buddy.has_dirty());
}
