// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a map from each 4 KiB page to its physical address, and a greedy choice page by page.

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const PAGE: u64 = 4096;

fn plan(va: u64, len: u64, sizes: Sizes, pieces: &[(u64, u64)]) -> Result<Vec<Run>, PlanError> {
    let pieces = pieces.iter().map(|(start, len)| PhysPiece {
        start: *start,
        len: *len,
    });
    PagePlan::new(va, len, sizes, pieces)?.collect()
}

/// The largest page at `va`, page by page and without looking at runs.
fn greedy(va: u64, phys: &[u64], sizes: Sizes) -> Vec<(PageSize, u64, u64)> {
    let mut pages = Vec::new();
    let mut at = 0;
    while at < phys.len() {
        let here = va + at as u64 * PAGE;
        let size = PageSize::ALL
            .into_iter()
            .find(|size| {
                let n = (size.bytes() / PAGE) as usize;
                sizes.allow(*size)
                    && here % size.bytes() == 0
                    && phys[at] % size.bytes() == 0
                    && at + n <= phys.len()
                    && (0..n).all(|i| phys[at + i] == phys[at] + i as u64 * PAGE)
            })
            .unwrap();
        pages.push((size, here, phys[at]));
        at += (size.bytes() / PAGE) as usize;
    }
    pages
}

/// How many entries of its table a run takes.
fn entries(run: &Run) -> u64 {
    run.bytes() >> mmu::entry_span(run.size.level()).trailing_zeros()
}

fn piece() -> impl Strategy<Value = (u64, u64)> {
    // In pages; often aligned to a page size, or following the one before (start 0).
    let start = prop_oneof![
        2 => Just(0u64),
        1 => 1u64..100_000,
        1 => (1u64..6000).prop_map(|n| n * 16),
        2 => (1u64..200).prop_map(|n| n * 512),
    ];
    let len = prop_oneof![
        0u64..40,
        (1u64..5).prop_map(|n| n * 16),
        1u64..1500,
        Just(512)
    ];
    (start, len)
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_page_map(
        va in prop_oneof![
            0u64..2000, (0u64..8).prop_map(|n| n * 512),
            (261_000u64..263_000), (0u64..5).prop_map(|n| n * 16),
        ],
        raw in prop::collection::vec(piece(), 1..12),
        medium: bool, large: bool,
        short in 0u64..3,
    ) {
        let sizes = Sizes { medium, large };
        let va = va * PAGE;
        let mut pieces = Vec::new();
        let mut phys = Vec::new();
        let mut behind = 512;
        for (start, len) in raw {
            let start = if start == 0 { behind } else { start };
            behind = start + len;
            pieces.push((start * PAGE, len * PAGE));
            phys.extend((start..start + len).map(|page| page * PAGE));
        }
        let len = (phys.len() as u64).saturating_sub(short) * PAGE;
        phys.truncate((len / PAGE) as usize);
        if len == 0 {
            prop_assert_eq!(plan(va, len, sizes, &pieces), Err(PlanError::BadRange));
            return Ok(());
        }
        let runs = plan(va, len, sizes, &pieces).unwrap();
        let mut pages = Vec::new();
        for run in &runs {
            prop_assert!(run.count > 0);
            prop_assert!(run.first_entry() as u64 + entries(run) <= 512, "a run leaves its table");
            for i in 0..run.count {
                let off = i * run.size.bytes();
                pages.push((run.size, run.va + off, run.phys + off));
            }
        }
        prop_assert_eq!(&pages, &greedy(va, &phys, sizes));
        // No two neighbouring runs could be one.
        for pair in runs.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            let joined = a.size == b.size
                && a.phys + a.bytes() == b.phys
                && a.first_entry() as u64 + entries(a) < 512;
            prop_assert!(!joined, "{:?} and {:?}", a, b);
        }
        // One page more than there is.
        pieces.push((1 << 40, PAGE));
        prop_assert!(plan(va, len + (short + 1) * PAGE, sizes, &pieces).is_ok());
        let all = len + (short + 2) * PAGE;
        prop_assert_eq!(plan(va, all, sizes, &pieces), Err(PlanError::Short));
    }

    #[test]
    fn any_numbers(
        va: u64, len: u64, pieces in prop::collection::vec((any::<u64>(), any::<u64>()), 0..4),
    ) {
        let _ = plan(va, len, Sizes::ALL, &pieces);
        let _ = plan(va & !0xfff & ((1 << 48) - 1), len & 0xfff_f000, Sizes::ALL, &pieces);
        let pieces: Vec<_> = pieces.iter().map(|(s, l)| (s & !0xfff, l & !0xfff)).collect();
        let _ = plan(va & 0xffff_f000, len & 0xfff_f000, Sizes::ALL, &pieces);
    }
}

#[test]
fn edges() {
    let top = (1 << 48) - PAGE;
    let one = Run {
        size: PageSize::Size4K,
        va: top,
        phys: u64::MAX - 0xfff,
        count: 1,
    };
    // The last page of both spaces: 2^64 itself is no number.
    let last = [(u64::MAX - 0xfff, PAGE)];
    assert_eq!(plan(top, PAGE, Sizes::ALL, &last), Err(PlanError::BadPiece));
    let below = Run {
        phys: u64::MAX - 0x1fff,
        ..one
    };
    assert_eq!(
        plan(top, PAGE, Sizes::ALL, &[(below.phys, PAGE)]),
        Ok(vec![below])
    );
    let page = [(0, PAGE)];
    for (va, len) in [
        (0, 0),
        (1, PAGE),
        (0, 1),
        (top, 2 * PAGE),
        (1 << 48, PAGE),
        (u64::MAX - 0xfff, PAGE),
    ] {
        assert_eq!(plan(va, len, Sizes::ALL, &page), Err(PlanError::BadRange));
    }
    for piece in [(1, PAGE), (0, 1), (u64::MAX - 0xfff, 2 * PAGE)] {
        assert_eq!(
            plan(0, PAGE, Sizes::ALL, &[piece]),
            Err(PlanError::BadPiece)
        );
    }
    assert_eq!(plan(0, PAGE, Sizes::ALL, &[]), Err(PlanError::Short));
}

#[test]
fn by_hand() {
    // 4 KiB short of 2 MiB on both sides: small, large, small.
    let at = (2 << 20) - PAGE;
    let run = |size, va, phys, count| Run {
        size,
        va,
        phys,
        count,
    };
    assert_eq!(
        plan(
            at,
            (2 << 20) + 2 * PAGE,
            Sizes::ALL,
            &[(at + (4 << 20), 8 << 20)]
        ),
        Ok(vec![
            run(PageSize::Size4K, at, at + (4 << 20), 1),
            run(PageSize::Size2M, 2 << 20, 6 << 20, 1),
            run(PageSize::Size4K, 4 << 20, 8 << 20, 1),
        ])
    );
}
