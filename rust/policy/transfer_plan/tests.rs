// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::std_heap::{fail_at, StdHeap};
use proptest::prelude::*;
use std::vec::Vec;

type Plan = TransferPlan<StdHeap>;

fn plan(blocks: &[PageRange], bus: &[PhysPiece]) -> Result<Plan, TransferError> {
    Plan::new(blocks, bus.iter().copied())
}

/// By page of the transfer: the page of the segment, and the bus address.
fn pages_of(plan: &Plan) -> Vec<(u64, u64)> {
    plan.pieces()
        .iter()
        .flat_map(|piece| {
            (0..piece.block.pages.0)
                .map(|page| (piece.block.start.0 + page, piece.bus.0 + page * PAGE_BYTES))
        })
        .collect()
}

fn bus_piece(page: u64, pages: u64) -> PhysPiece {
    PhysPiece {
        start: page * PAGE_BYTES,
        len: pages * PAGE_BYTES,
    }
}

/// Cuts of `total` pages, with a gap behind each.
fn cuts(total: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((1..=200u64, 0..3u64), 1..60).prop_map(move |cuts| {
        let (mut at, mut left) = (7, total);
        let mut result = Vec::new();
        for (len, gap) in cuts.into_iter().chain([(total, 0)]) {
            let len = len.min(left);
            if len > 0 {
                result.push((at, len));
            }
            at += len + gap;
            left -= len;
        }
        result
    })
}

proptest! {
    #![proptest_config(crate::cases(4))]

    /// Each page goes where it belongs, once, in order, whatever the shapes of both sides; and no
    /// piece is empty.
    #[test]
    fn every_page_is_moved_once(
        (blocks, bus) in (1..2000u64).prop_flat_map(|total| (cuts(total), cuts(total)))
    ) {
        let blocks: Vec<_> = blocks.iter().map(|&(at, len)| PageRange::new(at, len)).collect();
        let bus: Vec<_> = bus.iter().map(|&(at, len)| bus_piece(at, len)).collect();
        let plan = plan(&blocks, &bus).expect("a plan");
        let from = blocks.iter().flat_map(|b| b.start.0..b.start.0 + b.pages.0);
        let to = bus.iter().flat_map(|p| (p.start..p.start + p.len).step_by(PAGE_BYTES as usize));
        prop_assert_eq!(pages_of(&plan), from.zip(to).collect::<Vec<_>>());
        prop_assert!(plan.pieces().iter().all(|piece| piece.block.pages.0 > 0));
    }
}

#[test]
fn what_is_contiguous_is_one_piece() {
    let plan = plan(&[PageRange::new(0, 1024)], &[bus_piece(5, 1024)]).expect("a plan");
    assert_eq!(plan.pieces().len(), 1);
}

#[test]
fn sides_that_are_not_equal_are_refused() {
    let blocks = [PageRange::new(0, 4)];
    let refused = |blocks: &[PageRange], bus: &[PhysPiece]| {
        assert_eq!(plan(blocks, bus).err(), Some(TransferError::Unequal));
    };
    refused(&blocks, &[bus_piece(0, 3)]);
    refused(&blocks, &[bus_piece(0, 5)]);
    refused(&blocks, &[bus_piece(0, 4), bus_piece(9, 1)]);
    refused(&blocks, &[]);
    refused(&[], &[]);
    refused(&blocks, &[PhysPiece { start: 0, len: 100 }]);
}

#[test]
fn a_plan_without_memory_is_an_error() {
    fail_at(Some(0));
    let failed = plan(&[PageRange::new(0, 4)], &[bus_piece(0, 4)]);
    fail_at(None);
    assert_eq!(failed.err(), Some(TransferError::OutOfMemory));
}
