// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::super::miniport::{Miniport, APERTURE_SEGMENT};
use super::super::page_plan::PhysPiece;
use super::super::recorder::Recorder;
use super::*;
use crate::std_heap::{fail_at, StdHeap};
use proptest::prelude::*;
use std::vec::Vec;

type TestSegment = ApertureSegment<StdHeap>;

fn segment(window: u64, own: u64) -> TestSegment {
    TestSegment::new(PageCount(window), PageCount(own)).expect("a segment")
}

fn start(range: Result<PageRange, BuddyError>) -> u64 {
    range.expect("room").start.0
}

#[test]
fn a_window_that_is_the_miniports_alone_is_no_segment() {
    for own in [16, 17] {
        let mut segment = segment(16, own);
        assert_eq!(
            (segment.total(), segment.used()),
            (PageCount(0), PageCount(0))
        );
        assert_eq!(segment.alloc(PageCount(1)), Err(BuddyError::NoSpace));
        let range = PageRange::new(0, 16);
        assert_eq!(segment.free(range), Err(BuddyError::NotAllocated));
    }
    assert_eq!(segment(1, 0).alloc(PageCount(0)), Err(BuddyError::Invalid));
}

#[test]
fn an_object_is_in_one_piece_where_large_pages_can_lead() {
    let mut segment = segment(4096, 144);
    assert_eq!(segment.total(), PageCount(3952));
    assert_eq!(start(segment.alloc(PageCount(513))) % 512, 0);
    assert_eq!(start(segment.alloc(PageCount(17))) % 16, 0);
    let page = segment.alloc(PageCount(1)).expect("room");
    assert!(page.start.0 >= 144);
    assert_eq!(segment.used(), PageCount(513 + 17 + 1));
    // Where there is no place for large pages any more, small ones do.
    let mut small = self::segment(64, 3);
    assert_eq!(start(small.alloc(PageCount(40))), 16);
    assert_eq!(small.alloc(PageCount(13)), Ok(PageRange::new(3, 13)));
    assert_eq!(small.alloc(PageCount(9)), Err(BuddyError::NoSpace));
    assert_eq!(
        small.alloc(PageCount(8)).map(|range| range.pages),
        Ok(PageCount(8))
    );
    assert_eq!(small.used(), small.total());
}

/// The pages of an object that is scattered: each at a bus address of its own.
fn scattered(seed: u64, pages: u64) -> Vec<PhysPiece> {
    (0..pages)
        .map(|page| PhysPiece {
            start: (seed << 32) + (pages - page) * 3 * PAGE_BYTES,
            len: PAGE_BYTES,
        })
        .collect()
}

proptest! {
    #[test]
    fn the_window_shows_what_is_mapped_and_else_the_dummy_page(
        steps in proptest::collection::vec((any::<bool>(), 1_u64..40), 1..60),
    ) {
        let gpu = Recorder::default();
        let mut segment = segment(128, 5);
        let mut mapped: Vec<(PageRange, Vec<PhysPiece>)> = Vec::new();
        for (number, (map, pages)) in (1..).zip(steps) {
            if map {
                let range = match segment.alloc(PageCount(pages)) {
                    Err(BuddyError::NoSpace) => continue,
                    range => range.expect("room"),
                };
                let pieces = scattered(number, pages);
                gpu.map_aperture_segment(APERTURE_SEGMENT, range, &mut pieces.iter().copied(), true)
                    .expect("it answers");
                mapped.push((range, pieces));
            } else if !mapped.is_empty() {
                let (range, _) = mapped.remove(pages as usize % mapped.len());
                gpu.unmap_aperture_segment(APERTURE_SEGMENT, range).expect("it answers");
                segment.free(range).expect("it was handed out");
            }
            let used = mapped.iter().map(|(range, _)| range.pages.0).sum();
            prop_assert_eq!(segment.used(), PageCount(used));
            let shown = gpu.gart.borrow();
            prop_assert_eq!(shown.len() as u64, used);
            for (range, pieces) in &mapped {
                for (page, piece) in (range.start.0..).zip(pieces) {
                    prop_assert_eq!(shown.get(&page), Some(&(piece.start, true)));
                }
            }
        }
    }
}

#[test]
fn without_memory_nothing_has_changed() {
    for at in 0..64 {
        fail_at(Some(at));
        let new = TestSegment::new(PageCount(4096), PageCount(144));
        fail_at(None);
        let Ok(mut segment) = new else {
            continue;
        };
        fail_at(Some(0));
        let range = segment.alloc(PageCount(1000));
        fail_at(None);
        if range.is_err() {
            assert_eq!(range, Err(BuddyError::OutOfMemory));
            assert_eq!(segment.used(), PageCount(0));
        }
    }
}

proptest! {
    #[test]
    fn a_plan_finds_a_piece_as_soon_as_there_would_be_one(
        sizes in proptest::collection::vec(1_u64..20, 1..30),
        leaving in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        pages in 1_u64..60,
    ) {
        let mut segment = segment(128, 5);
        let alloc = |pages: &u64| segment.alloc(PageCount(*pages)).ok();
        let mut there: Vec<PageRange> = sizes.iter().filter_map(alloc).collect();
        // Who is there while the plan is made, and leaves twice, or before.
        let gone = there.swap_remove(0);
        segment.free(gone).expect("it was handed out");
        let mut plan = plan(&segment, pages);
        let free = |segment: &TestSegment| (0..128).map(|page| {
            segment.pages.as_ref().expect("pages").free_block(page).is_some()
        }).collect::<Vec<bool>>();
        let mut would_be = free(&segment);
        let has_piece = |free: &[bool]| {
            free.split(|free| !free).any(|run| run.len() as u64 >= pages)
        };
        prop_assert_eq!(plan.piece().is_some(), has_piece(&would_be));
        for index in leaving.iter().filter(|_| !there.is_empty()) {
            let range = *index.get(&there);
            let before = plan.piece();
            plan.add(range);
            would_be[range.start.0 as usize..][..range.pages.0 as usize].fill(true);
            prop_assert_eq!(plan.piece().is_some(), has_piece(&would_be));
            if let (None, Some(piece)) = (before, plan.piece()) {
                prop_assert_eq!(piece.pages, PageCount(pages));
                let shown = &would_be[piece.start.0 as usize..][..pages as usize];
                prop_assert!(shown.iter().all(|free| *free));
                // The last one of those that leave is one of them.
                prop_assert!(piece.start < range.end().expect("an end"));
                prop_assert!(range.start < piece.end().expect("an end"));
            }
        }
    }
}

fn plan(segment: &TestSegment, pages: u64) -> Plan<StdHeap> {
    let plan = Plan::new(segment.window(), PageCount(pages));
    segment.plan(plan.expect("memory"))
}

#[test]
fn a_plan_refuses_what_is_not_there() {
    let segment = segment(16, 16);
    let mut plan = plan(&segment, 4);
    for range in [
        PageRange::new(14, 4),
        PageRange::new(0, 0),
        PageRange::new(u64::MAX, 2),
    ] {
        plan.add(range);
    }
    assert_eq!(plan.piece(), None);
}
