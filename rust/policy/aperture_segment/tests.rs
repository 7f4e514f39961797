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
