// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a list of pages: free or not, clean or not.

use super::*;
use crate::std_heap::{fail_at, until_enough, StdHeap, StdVec};
use proptest::prelude::*;
use std::println;
use std::vec;
use std::vec::Vec;

type TestBuddy = Buddy<StdHeap>;

/// The blocks of a set, in order of address.
fn list(forest: &Forest<StdHeap>) -> Vec<Node> {
    let mut list = Vec::new();
    let mut at = 0;
    while let Some(node) = forest.around_or_behind(at, u64::MAX) {
        assert_eq!(forest.around(node.start()), Some(node));
        list.push(node);
        at = node.end();
    }
    list
}

/// What is free, block by block, in order of address.
fn free_list(buddy: &TestBuddy) -> Vec<Node> {
    list(&buddy.free)
}

/// All that is known of free memory.
fn all_lists(buddy: &TestBuddy) -> [Vec<Node>; 3] {
    [&buddy.free, &buddy.clean, &buddy.dirty].map(list)
}

/// Asserts that a set is the pages that `is_in` says, of which none are merged too little, and
/// gives its blocks.
fn expect_pages(forest: &Forest<StdHeap>, is_in: &[bool]) -> Vec<Node> {
    let list = list(forest);
    let mut pages = vec![false; is_in.len()];
    for node in &list {
        pages[node.start() as usize..node.end() as usize].fill(true);
        assert!(!forest.contains(node.buddy()), "{node:?} not merged");
    }
    assert_eq!(pages, is_in);
    let count = is_in.iter().filter(|is_in| **is_in).count() as u64;
    assert_eq!(forest.pages, count);
    let counts = forest.all().map(|order| forest.order(order).unwrap().count);
    let blocks: u64 = counts.sum();
    assert_eq!(blocks, list.len() as u64, "a block inside another");
    list
}

struct Model {
    /// Whether each is free, and not being cleared.
    pages: Vec<bool>,
    /// Whether each is known to be zero.
    zero: Vec<bool>,
    /// Whether somebody has had each since it was.
    used: Vec<bool>,
    live: Vec<PageRange>,
    /// What is being cleared.
    out: Vec<PageRange>,
}

fn indices(range: PageRange) -> std::ops::Range<usize> {
    range.start.0 as usize..range.end().unwrap().0 as usize
}

impl Model {
    fn new(total: u64) -> Self {
        Model {
            pages: vec![true; total as usize],
            zero: vec![false; total as usize],
            used: vec![false; total as usize],
            live: Vec::new(),
            out: Vec::new(),
        }
    }

    fn slice(&mut self, range: PageRange) -> &mut [bool] {
        &mut self.pages[indices(range)]
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

    /// [`Self::took`] of all `blocks`, of which exactly those `parts` are not zero; their owner
    /// writes them all.
    fn took_all(&mut self, blocks: &[PageRange], parts: &[PageRange]) {
        let mut dirty = vec![false; self.pages.len()];
        parts.iter().for_each(|part| {
            assert!(dirty[indices(*part)].iter().all(|seen| !seen), "{parts:?}");
            dirty[indices(*part)].fill(true);
        });
        blocks.iter().for_each(|block| {
            self.took(*block);
            for page in indices(*block) {
                assert_eq!(dirty[page], !self.zero[page], "page {page} of {blocks:?}");
                (dirty[page], self.zero[page]) = (false, false);
            }
        });
        assert!(dirty.iter().all(|dirty| !dirty), "not of it: {parts:?}");
    }

    fn free(&mut self, at: usize) -> PageRange {
        let range = self.live.swap_remove(at);
        self.slice(range).fill(true);
        self.zero[indices(range)].fill(false);
        self.used[indices(range)].fill(true);
        range
    }

    fn give_back(&mut self, at: usize, clean: bool) -> PageRange {
        let range = self.out.swap_remove(at);
        self.slice(range).fill(true);
        self.zero[indices(range)].fill(clean);
        self.used[indices(range)].fill(!clean);
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
        let list = expect_pages(&buddy.free, &self.pages);
        let free_and = |what: &[bool]| -> Vec<bool> {
            let both = self.pages.iter().zip(what);
            both.map(|(free, is_so)| *free && *is_so).collect()
        };
        expect_pages(&buddy.clean, &free_and(&self.zero));
        expect_pages(&buddy.dirty, &free_and(&self.used));
        let out: u64 = self.out.iter().map(|block| block.pages.0).sum();
        assert_eq!(buddy.free_pages().0, buddy.free.pages + out);
        assert_eq!(buddy.clean_pages().0, buddy.clean.pages);
        assert_eq!(buddy.dirty_pages().0, buddy.dirty.pages + out);
        let floor = (self.pages.len() as u64).ilog2() / 2;
        let large = list.iter().filter(|node| node.order >= floor);
        let out = self.out.iter().filter(|block| block.pages.0 >= 1 << floor);
        let large = large.map(|node| 1 << node.order).sum::<u64>();
        let out = out.map(|block| block.pages.0).sum::<u64>();
        assert_eq!(buddy.free_in(floor).0, large + out);
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
    TakeDirty(u64),
    TakeDirtyFails(u64, u64),
    GiveBack(prop::sample::Index, bool),
    ForgetClean,
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
        4 => (0..100u64).prop_map(Op::TakeDirty),
        1 => (0..100u64, 0..8u64).prop_map(|(p, n)| Op::TakeDirtyFails(p, n)),
        1 => Just(Op::ForgetClean),
        8 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, c)| Op::GiveBack(i, c)),
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
                Op::Alloc(pages, order) => {
                    let list = free_list(&buddy);
                    match buddy.alloc(request(pages, order)) {
                        Ok(range) => {
                            prop_assert_eq!(range.pages.0, pages);
                            prop_assert_eq!(range.start.0 % (1 << order), 0);
                            // The block that is cut for a page: a smallest one, a clean page of
                            // which is taken if all that is clean is in such.
                            let cut = |page: u64| {
                                let mut nodes = list.iter();
                                nodes.find(|node| node.start() <= page && page < node.end())
                            };
                            if pages == 1 && order == 0 {
                                let least = list.iter().map(|node| node.order).min();
                                let is_least = |page: u64| {
                                    cut(page).map(|node| node.order) == least
                                };
                                prop_assert!(is_least(range.start.0), "of a larger block");
                                let free = (0..total).filter(|page| model.pages[*page as usize]);
                                let mut clean = free.filter(|page| model.zero[*page as usize]);
                                let first = clean.next();
                                if first.is_some_and(is_least) && clean.all(is_least) {
                                    let is_clean = model.zero[range.start.0 as usize];
                                    prop_assert!(is_clean, "not a clean one");
                                }
                            }
                            model.took(range);
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(!model.has_run(pages, 1 << order), "a false refusal");
                        }
                    }
                }
                Op::AllocFails(pages, order, n) => {
                    fail_at(Some(n));
                    let result = buddy.alloc(request(pages, order));
                    fail_at(None);
                    if let Ok(range) = result {
                        model.took(range);
                    }
                }
                Op::Scattered(pages, order) => {
                    let (mut out, mut dirty) = (StdVec::new(), StdVec::new());
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
                    match buddy.alloc_scattered(request, &mut out, &mut dirty) {
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
                            }
                            model.took_all(out.as_slice(), dirty.as_slice());
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(out.as_slice().is_empty());
                            prop_assert!(dirty.as_slice().is_empty());
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
                    let out = model.out.iter().flat_map(|block| indices(*block));
                    let out = out.filter(|page| *page < end as usize).count() as u64;
                    prop_assert_eq!(buddy.free_below(PageIndex(end)).0, free(0..end) + out);
                    let (mut out, mut dirty) = (StdVec::new(), StdVec::new());
                    let request = Scattered { within, ..scattered(pages, 0) };
                    match buddy.alloc_scattered(request, &mut out, &mut dirty) {
                        Ok(()) => {
                            let sum: u64 = out.as_slice().iter().map(|range| range.pages.0).sum();
                            prop_assert_eq!(sum, pages);
                            for range in out.as_slice() {
                                prop_assert!(range.start.0 >= from, "{range:?}");
                                prop_assert!(range.end().unwrap().0 <= end, "{range:?}");
                            }
                            model.took_all(out.as_slice(), dirty.as_slice());
                        }
                        Err(error) => {
                            prop_assert_eq!(error, BuddyError::NoSpace);
                            prop_assert!(out.as_slice().is_empty());
                            prop_assert!(dirty.as_slice().is_empty());
                            prop_assert!(free(from..end) < pages, "a false refusal");
                        }
                    }
                }
                Op::ScatteredFails(pages, order, n) => {
                    let before = all_lists(&buddy);
                    let (mut out, mut dirty) = (StdVec::new(), StdVec::new());
                    let request = scattered(pages, order);
                    fail_at(Some(n));
                    let result = buddy.alloc_scattered(request, &mut out, &mut dirty);
                    fail_at(None);
                    if result.is_ok() {
                        model.took_all(out.as_slice(), dirty.as_slice());
                    } else {
                        prop_assert!(out.as_slice().is_empty());
                        prop_assert!(dirty.as_slice().is_empty());
                        prop_assert_eq!(before, all_lists(&buddy));
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
                    if !model.out.contains(&range) {
                        let result = buddy.give_back(range, true);
                        prop_assert_eq!(result, Err(BuddyError::NotAllocated));
                    }
                }
                Op::TakeDirty(most) => {
                    let mut out = StdVec::new();
                    let result = buddy.take_dirty(PageCount(most), &mut out);
                    if !model.out.is_empty() {
                        prop_assert_eq!(result, Err(BuddyError::Busy));
                    } else {
                        prop_assert_eq!(result, Ok(()));
                        let taken: u64 = out.as_slice().iter().map(|block| block.pages.0).sum();
                        let dirty = model.pages.iter().zip(&model.used);
                        let dirty = dirty.filter(|(free, used)| **free && **used).count() as u64;
                        prop_assert!(taken <= most);
                        let is_all = taken == most.min(dirty);
                        prop_assert!(is_all || out.as_slice().len() == MAX_OUT, "{taken}");
                    }
                    for block in out.as_slice() {
                        prop_assert!(model.used[indices(*block)].iter().all(|used| *used));
                        model.took(*block);
                        model.live.pop();
                        model.out.push(*block);
                    }
                }
                Op::TakeDirtyFails(most, n) => {
                    let mut out = StdVec::new();
                    fail_at(Some(n));
                    let result = buddy.take_dirty(PageCount(most), &mut out);
                    fail_at(None);
                    prop_assert!(result.is_ok() || out.as_slice().is_empty());
                    for block in out.as_slice() {
                        model.took(*block);
                        model.live.pop();
                        model.out.push(*block);
                    }
                }
                Op::ForgetClean => {
                    fail_at(Some(0));
                    buddy.forget_clean();
                    fail_at(None);
                    model.zero.fill(false);
                }
                Op::GiveBack(at, clean) => {
                    if !model.out.is_empty() {
                        let range = model.give_back(at.index(model.out.len()), clean);
                        fail_at(Some(0));
                        let given = buddy.give_back(range, clean);
                        fail_at(None);
                        prop_assert_eq!(given, Ok(()));
                        let again = buddy.give_back(range, clean);
                        prop_assert_eq!(again, Err(BuddyError::NotAllocated));
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
        while !model.out.is_empty() {
            let range = model.give_back(0, true);
            prop_assert_eq!(buddy.give_back(range, true), Ok(()));
        }
        model.check(&buddy);
        prop_assert_eq!(buddy.free_pages(), buddy.total());
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
    let (mut out, mut dirty) = (StdVec::new(), StdVec::new());
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
        let result = buddy.alloc_scattered(request, &mut out, &mut dirty);
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
        buddy.alloc_scattered(nowhere, &mut out, &mut dirty),
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
    let forests = [&buddy.free, &buddy.clean, &buddy.dirty];
    let orders = forests.into_iter().flat_map(|it| it.orders.as_slice());
    let blocks = orders.map(|order| &order.blocks);
    let trees = blocks.chain([&buddy.starts, &buddy.lasts]);
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

/// Blocks that requests get, and pages of the largest free block at the end, of memory that is used
/// for long, and of which `clear` clears some between requests.
fn use_for_long(seed: u64, mut clear: impl FnMut(&mut TestBuddy, u64)) -> [u64; 2] {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % below
    };
    let total = 1 << 14;
    let mut buddy = TestBuddy::new(PageCount(total)).unwrap();
    let (mut live, mut blocks): (Vec<Vec<PageRange>>, _) = (Vec::new(), 0);
    for step in 0..4000 {
        let size = 1 << random(12);
        let pages = 1 + random(size);
        let is_full = buddy.free_pages().0 < total / 10 + pages;
        if is_full || (step > 3000 && buddy.free_pages().0 < total / 2) {
            let given = live.swap_remove(random(live.len() as u64) as usize);
            given.iter().for_each(|block| buddy.free(*block).unwrap());
        } else {
            let (mut out, mut unclean) = (StdVec::new(), StdVec::new());
            let request = scattered(pages, 0);
            let got = buddy.alloc_scattered(request, &mut out, &mut unclean);
            assert_eq!(got, Ok(()));
            blocks += out.len() as u64;
            live.push(out.as_slice().to_vec());
        }
        let often = random(4);
        clear(&mut buddy, often);
    }
    [blocks, buddy.largest_free_block().0]
}

fn clear_some(buddy: &mut TestBuddy, pages: u64) {
    let mut out = StdVec::new();
    buddy.take_dirty(PageCount(pages), &mut out).unwrap();
    for block in out.as_slice() {
        buddy.give_back(*block, true).unwrap();
    }
}

#[test]
fn clearing_does_not_fragment() {
    let sum = |clear: &dyn Fn(&mut TestBuddy, u64)| {
        let all = (1..=16).map(|seed| use_for_long(seed, clear));
        all.fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    };
    let never = sum(&|_, _| ());
    // All that is free, a little at a time, and now and then some.
    let always = sum(&|buddy, _| clear_some(buddy, u64::MAX));
    let slowly = sum(&|buddy, _| clear_some(buddy, 16));
    let seldom = sum(&|buddy, often| clear_some(buddy, if often == 0 { 128 } else { 0 }));
    println!("blocks, largest: {never:?} {always:?} {slowly:?} {seldom:?}");
    for some in [always, slowly, seldom] {
        assert!(some[0] * 100 <= never[0] * 105, "{some:?}, {never:?}");
        assert!(some[1] * 100 >= never[1] * 90, "{some:?}, {never:?}");
    }
}
