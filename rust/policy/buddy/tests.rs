// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a list of pages, free or not.

use super::*;
use crate::std_heap::{fail_at, until_enough, StdHeap, StdVec};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

type TestBuddy = Buddy<StdHeap>;

/// What is free, block by block, in order of address.
fn free_list(buddy: &TestBuddy) -> Vec<Node> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < buddy.total {
        match buddy.free_node_around(at) {
            Some(node) => {
                list.push(node);
                at = node.end();
            }
            None => at += 1,
        }
    }
    list
}

struct Model {
    /// Whether each is free.
    pages: Vec<bool>,
    live: Vec<PageRange>,
}

impl Model {
    fn new(total: u64) -> Self {
        Model {
            pages: vec![true; total as usize],
            live: Vec::new(),
        }
    }

    fn slice(&mut self, range: PageRange) -> &mut [bool] {
        &mut self.pages[range.start.0 as usize..range.end().unwrap().0 as usize]
    }

    fn took(&mut self, range: PageRange) {
        let pages = self.slice(range);
        assert!(
            pages.iter().all(|free| *free),
            "handed out twice: {range:?}"
        );
        pages.fill(false);
        self.live.push(range);
    }

    fn free(&mut self, at: usize) -> PageRange {
        let range = self.live.swap_remove(at);
        self.slice(range).fill(true);
        range
    }

    fn has_run(&self, pages: u64, align: u64) -> bool {
        let total = self.pages.len() as u64;
        (0..total).step_by(align as usize).any(|start| {
            start + pages <= total
                && self.pages[start as usize..(start + pages) as usize]
                    .iter()
                    .all(|free| *free)
        })
    }

    fn check(&self, buddy: &TestBuddy) {
        let list = free_list(buddy);
        let mut pages = vec![false; self.pages.len()];
        for node in &list {
            pages[node.start() as usize..node.end() as usize].fill(true);
            if node.buddy().end() <= buddy.total {
                assert!(!buddy.is_free(node.buddy()), "{node:?} not merged");
            }
        }
        assert_eq!(pages, self.pages);
        let free = self.pages.iter().filter(|free| **free).count() as u64;
        assert_eq!(buddy.free_pages().0, free);
        let blocks: u64 = (0..=buddy.top())
            .map(|order| buddy.free_blocks(order))
            .sum();
        assert_eq!(blocks, list.len() as u64, "a free block inside another");
        let largest = list.iter().map(|node| 1 << node.order).max();
        assert_eq!(buddy.largest_free_block().0, largest.unwrap_or(0));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(u64, u32),
    AllocFails(u64, u32, u64),
    Scattered(u64, u32),
    ScatteredWithin(u64, prop::sample::Index, u64),
    ScatteredFails(u64, u32, u64),
    Reserve(prop::sample::Index, u64),
    Free(prop::sample::Index),
    BadFree(prop::sample::Index, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let size = || prop_oneof![4 => 1u64..10, 2 => 1u64..80, 1 => 1u64..700];
    let order = || prop_oneof![3 => Just(0u32), 1 => 0u32..6];
    prop_oneof![
        3 => (size(), order()).prop_map(|(p, o)| Op::Alloc(p, o)),
        1 => (size(), order(), 0u64..4).prop_map(|(p, o, n)| Op::AllocFails(p, o, n)),
        2 => (size(), order()).prop_map(|(p, o)| Op::Scattered(p, o)),
        2 => (size(), any::<prop::sample::Index>(), size())
            .prop_map(|(p, at, n)| Op::ScatteredWithin(p, at, n)),
        1 => (size(), order(), 0u64..8).prop_map(|(p, o, n)| Op::ScatteredFails(p, o, n)),
        1 => (any::<prop::sample::Index>(), size()).prop_map(|(i, p)| Op::Reserve(i, p)),
        6 => any::<prop::sample::Index>().prop_map(Op::Free),
        1 => (any::<prop::sample::Index>(), size()).prop_map(|(i, p)| Op::BadFree(i, p)),
    ]
}

fn request(pages: u64, order: u32) -> Request {
    Request {
        pages: PageCount(pages),
        align: PageCount(1 << order),
    }
}

fn scattered(pages: u64, order: u32) -> Scattered {
    Scattered {
        pages: PageCount(pages << order),
        granule: PageCount(1 << order),
        within: PageRange::new(0, 1 << 48),
    }
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_page_list(
        total in prop_oneof![1u64..20, 100u64..600, Just(512), Just(1000)],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut buddy = TestBuddy::new(PageCount(total)).unwrap();
        let mut model = Model::new(total);
        model.check(&buddy);
        for op in ops {
            match op {
                Op::Alloc(pages, order) => match buddy.alloc(request(pages, order)) {
                    Ok(range) => {
                        prop_assert_eq!(range.pages.0, pages);
                        prop_assert_eq!(range.start.0 % (1 << order), 0);
                        model.took(range);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, BuddyError::NoSpace);
                        prop_assert!(!model.has_run(pages, 1 << order), "a false refusal");
                    }
                },
                Op::AllocFails(pages, order, n) => {
                    fail_at(Some(n));
                    let result = buddy.alloc(request(pages, order));
                    fail_at(None);
                    if let Ok(range) = result {
                        model.took(range);
                    }
                }
                Op::Scattered(pages, order) => {
                    let mut out = StdVec::new();
                    let usable: u64 = free_list(&buddy)
                        .iter()
                        .filter(|node| node.order >= order)
                        .map(|node| 1u64 << node.order)
                        .sum();
                    // The last granule need not be needed whole.
                    let spare = pages & ((1 << order) - 1);
                    let request = Scattered {
                        pages: PageCount((pages << order) - spare),
                        ..scattered(pages, order)
                    };
                    match buddy.alloc_scattered(request, &mut out) {
                        Ok(()) => {
                            let sizes: Vec<u64> =
                                out.as_slice().iter().map(|range| range.pages.0).collect();
                            prop_assert_eq!(sizes.iter().sum::<u64>(), request.pages.0);
                            prop_assert!(sizes.is_sorted_by(|a, b| a >= b));
                            for range in out.as_slice() {
                                let size = range.pages.0;
                                let rest = (1 << order) - spare;
                                let whole = size.is_power_of_two() && size >= 1 << order;
                                prop_assert!(whole || (spare > 0 && size == rest));
                                prop_assert_eq!(range.start.0 % (1 << order), 0);
                                prop_assert!(!whole || range.start.0 % size == 0);
                                model.took(*range);
                            }
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(out.as_slice().is_empty());
                            prop_assert!(usable < pages << order, "a false refusal");
                        }
                    }
                }
                Op::ScatteredWithin(pages, from, len) => {
                    let from = from.index(total as usize) as u64;
                    let within = PageRange::new(from, len);
                    let end = total.min(from + len);
                    let free = |range: std::ops::Range<u64>| {
                        range.filter(|page| model.pages[*page as usize]).count() as u64
                    };
                    prop_assert_eq!(buddy.free_below(PageIndex(end)).0, free(0..end));
                    let mut out = StdVec::new();
                    let request = Scattered { within, ..scattered(pages, 0) };
                    match buddy.alloc_scattered(request, &mut out) {
                        Ok(()) => {
                            let sum: u64 = out.as_slice().iter().map(|range| range.pages.0).sum();
                            prop_assert_eq!(sum, pages);
                            for range in out.as_slice() {
                                prop_assert!(range.start.0 >= from, "{range:?}");
                                prop_assert!(range.end().unwrap().0 <= end, "{range:?}");
                                model.took(*range);
                            }
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(out.as_slice().is_empty());
                            prop_assert!(free(from..end) < pages, "a false refusal");
                        }
                    }
                }
                Op::ScatteredFails(pages, order, n) => {
                    let before = free_list(&buddy);
                    let mut out = StdVec::new();
                    fail_at(Some(n));
                    let result = buddy.alloc_scattered(scattered(pages, order), &mut out);
                    fail_at(None);
                    if result.is_ok() {
                        out.as_slice().iter().for_each(|range| model.took(*range));
                    } else {
                        prop_assert!(out.as_slice().is_empty());
                        prop_assert_eq!(before, free_list(&buddy));
                    }
                }
                Op::Reserve(at, pages) => {
                    let start = at.index(total as usize) as u64;
                    let range = PageRange::new(start, pages);
                    let free = start + pages <= total
                        && model.slice(range).iter().all(|free| *free);
                    match buddy.reserve(range) {
                        Ok(reserved) => {
                            prop_assert_eq!(reserved, range);
                            model.took(range);
                        }
                        Err(BuddyError::Invalid) => prop_assert!(start + pages > total),
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::Busy);
                            prop_assert!(!free);
                        }
                    }
                }
                Op::Free(at) => {
                    if !model.live.is_empty() {
                        let range = model.free(at.index(model.live.len()));
                        // Freeing allocates nothing.
                        fail_at(Some(0));
                        let freed = buddy.free(range);
                        fail_at(None);
                        prop_assert_eq!(freed, Ok(()));
                        prop_assert_eq!(buddy.free(range), Err(BuddyError::NotAllocated));
                    }
                }
                Op::BadFree(at, pages) => {
                    let range = PageRange::new(at.index(total as usize) as u64, pages);
                    if !model.live.contains(&range) {
                        let result = buddy.free(range);
                        prop_assert_eq!(result, Err(BuddyError::NotAllocated));
                    }
                }
            }
            model.check(&buddy);
        }
        // Everything comes back as one.
        while !model.live.is_empty() {
            let range = model.free(0);
            prop_assert_eq!(buddy.free(range), Ok(()));
        }
        model.check(&buddy);
        let again = TestBuddy::new(PageCount(total)).unwrap();
        prop_assert_eq!(free_list(&buddy), free_list(&again));
    }
}

#[test]
fn creation_survives_each_failure() {
    until_enough(|| TestBuddy::new(PageCount(10_000)));
}

#[test]
fn bad_arguments() {
    assert!(TestBuddy::new(PageCount(0)).is_err());
    assert!(TestBuddy::new(PageCount(u64::MAX)).is_err());
    let mut buddy = TestBuddy::new(PageCount(100)).unwrap();
    let mut out = StdVec::new();
    for align in [0, 3, u64::MAX] {
        let request = Request {
            align: PageCount(align),
            ..request(1, 0)
        };
        assert_eq!(buddy.alloc(request), Err(BuddyError::Invalid));
        let request = Scattered {
            granule: PageCount(align),
            ..scattered(6, 0)
        };
        let result = buddy.alloc_scattered(request, &mut out);
        assert_eq!(result, Err(BuddyError::Invalid));
    }
    assert_eq!(buddy.alloc(request(0, 0)), Err(BuddyError::Invalid));
    assert_eq!(buddy.alloc(request(u64::MAX, 0)), Err(BuddyError::NoSpace));
    let high = Request {
        align: PageCount(1 << 63),
        ..request(1, 0)
    };
    // Page 0 is aligned to anything.
    assert_eq!(buddy.alloc(high).unwrap(), PageRange::new(0, 1));
    assert_eq!(buddy.alloc(high), Err(BuddyError::NoSpace));
    let nowhere = Scattered {
        within: PageRange::new(1, u64::MAX),
        ..scattered(6, 0)
    };
    assert_eq!(
        buddy.alloc_scattered(nowhere, &mut out),
        Err(BuddyError::Invalid)
    );
    for range in [(0, 0), (100, 1), (50, 51), (u64::MAX, 1), (1, u64::MAX)] {
        let range = PageRange::new(range.0, range.1);
        assert_eq!(buddy.reserve(range), Err(BuddyError::Invalid));
        let result = buddy.free(range);
        assert_eq!(result, Err(BuddyError::NotAllocated));
    }
}

#[test]
fn no_rounding_up() {
    // 96 MiB of VRAM have no 128 MiB block, but room for one buffer of 80.
    let mut buddy = TestBuddy::new(PageCount(96 << 8)).unwrap();
    assert_eq!(buddy.alloc(request(80 << 8, 0)).unwrap().pages.0, 80 << 8);
    assert_eq!(buddy.free_pages().0, 16 << 8);
}

/// Bytes of the allocator's records.
fn memory(buddy: &TestBuddy) -> usize {
    let orders = buddy.orders.as_slice().iter().map(|order| &order.free);
    let trees = orders.chain([&buddy.starts, &buddy.lasts]);
    trees.map(BitTree::bytes).sum()
}

#[test]
fn memory_follows_use() {
    // All that 48 bits of address can mean.
    let mut buddy = TestBuddy::new(PageCount(1 << 36)).unwrap();
    assert!(memory(&buddy) < 128 << 10);
    let ranges: Vec<_> = (0..1 << 12)
        .map(|_| buddy.alloc(request(16, 0)).unwrap())
        .collect();
    // 64 Ki pages in use.
    assert!(memory(&buddy) < 256 << 10);
    let far = buddy.reserve(PageRange::new(1 << 35, 1)).unwrap();
    for range in ranges.into_iter().chain([far]) {
        buddy.free(range).unwrap();
    }
    assert_eq!(buddy.largest_free_block(), PageCount(1 << 36));
    assert!(memory(&buddy) < 256 << 10);
}
