// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a map of pages, with a GPU that may walk after every single write.

use super::super::{
    page_plan::{PagePlan, PhysPiece, Sizes},
    recorder::{Gone, Recorder},
};
use super::*;
use crate::spec::address::PAGE_SIZE;
use crate::std_heap::{until_enough, StdHeap};
use proptest::prelude::*;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

type Root = Table<StdHeap, Recorder>;

const LARGE: u64 = 2 << 20;
/// Where the tests map: the last 4 MiB of one table of level 1, and the first 2 MiB of the next.
const START: u64 = (1 << 30) - 2 * LARGE;
const PAGES: u64 = 3 * LARGE / PAGE_SIZE;

const RW: Access = Access {
    reach: Reach::GpuPhysical,
    write: true,
};

fn root(hw: &Recorder) -> Root {
    Root::new(hw.table(), ROOT_LEVEL).expect("memory")
}

/// Adds all tables down to `level` on the way to `[va, va + len)`.
fn prepare(hw: &Recorder, root: &mut Root, va: u64, len: u64, level: u32) {
    let mut at = va;
    while at < va + len {
        let mut new = None;
        while let Some(missing) = root.add(hw, GpuVa(at), level, &mut new).unwrap() {
            new = Some(StdHeap::boxed(Root::new(hw.table(), missing).unwrap()).unwrap());
        }
        at = entry_end(at, level + 1);
    }
}

fn runs(va: u64, phys: u64, len: u64) -> Vec<Run> {
    let piece = PhysPiece { start: phys, len };
    let plan = PagePlan::new(va, len, Sizes::ALL, [piece].into_iter()).unwrap();
    plan.map(Result::unwrap).collect()
}

fn map(hw: &Recorder, root: &mut Root, va: u64, phys: u64, len: u64) -> Changed {
    let mut changed = Changed::Fresh;
    for run in runs(va, phys, len) {
        prepare(hw, root, run.va, run.bytes(), run.size.level());
        changed = changed.and(root.map(hw, &run, RW).unwrap());
    }
    changed
}

#[test]
fn it_is_taken_apart_in_parts() {
    let hw = Recorder::default();
    let mut root = root(&hw);
    // Tables of level 0: full ones of level 1, one that has a few, and one that has none.
    let full = 2 * ENTRIES as u64;
    for table in 0..full + 3 {
        prepare(&hw, &mut root, table * LARGE, PAGE_SIZE, 0);
    }
    prepare(&hw, &mut root, 1 << 39, PAGE_SIZE, 1);
    let mut all = root.count();
    while let Some(part) = root.detach() {
        assert!(part.count() <= ENTRIES + 1, "{}", part.count());
        all -= part.count();
        assert_eq!(root.count(), all);
    }
    assert_eq!(all, 1);
}

/// Unmaps, with the tables that splitting at the edges needs.
fn clear(hw: &Recorder, root: &mut Root, va: u64, len: u64) -> Changed {
    for edge in [va, va + len] {
        prepare(hw, root, edge, PAGE_SIZE, 0);
    }
    root.clear(hw, va, len).unwrap()
}

/// Where the page at `va` is mapped to.
fn at(hw: &Recorder, root: Entry, va: u64) -> Option<u64> {
    hw.walk(root, GpuVa(va)).map(|(target, write)| {
        assert!(write);
        match target {
            Target::Vram(GpuPhys(phys)) => phys,
            Target::System(_) => panic!("{target:?}"),
        }
    })
}

/// Pages whose translations are looked at: the edges of all pages, and of what an operation
/// changes.
fn probes(first: u64, pages: u64) -> Vec<u64> {
    let edges = [0, 16, 32, 512, 1024, PAGES, first, first + pages];
    let mut probes: Vec<u64> = edges
        .into_iter()
        .flat_map(|edge| [edge.wrapping_sub(17), edge.wrapping_sub(1), edge, edge + 1])
        .filter(|page| *page < PAGES)
        .collect();
    probes.sort_unstable();
    probes.dedup();
    probes
}

proptest! {
    #![proptest_config(crate::cases(1))]
    #[test]
    fn a_walk_at_any_moment_finds_the_old_or_the_new(
        ops in prop::collection::vec(
            (any::<bool>(), 0..PAGES, prop_oneof![1u64..40, 500..PAGES], 0u64..3, any::<bool>()),
            1..8,
        ),
    ) {
        let hw = Recorder::default();
        let mut tables = root(&hw);
        let pointer = tables.pointer(&hw);
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (is_map, first, pages, shift, align) in ops {
            // Large pages and cuts through them both, often.
            let first = if align { first & !511 } else { first };
            let pages = pages.min(PAGES - first);
            let (va, len) = (START + first * PAGE_SIZE, pages * PAGE_SIZE);
            let old: BTreeMap<u64, u64> = model.clone();
            for page in first..first + pages {
                model.remove(&page);
            }
            let cleared = model.clone();
            let phys = (64 << 20) + first * PAGE_SIZE + shift * (64 << 10);
            if is_map {
                for page in first..first + pages {
                    model.insert(page, phys + (page - first) * PAGE_SIZE);
                }
            }
            let probes = probes(first, pages);
            let watch = |old: BTreeMap<u64, u64>, new: BTreeMap<u64, u64>| {
                let probes = probes.clone();
                Box::new(move |hw: &Recorder| {
                    for page in &probes {
                        let found = at(hw, pointer, START + page * PAGE_SIZE);
                        assert!(
                            found == old.get(page).copied() || found == new.get(page).copied(),
                            "page {page}: {found:x?}, not {:x?} or {:x?}",
                            old.get(page),
                            new.get(page),
                        );
                    }
                })
            };
            *hw.watcher.borrow_mut() = Some(watch(old.clone(), cleared.clone()));
            let changed = clear(&hw, &mut tables, va, len);
            prop_assert_eq!(changed == Changed::Stale, old != cleared);
            if is_map {
                *hw.watcher.borrow_mut() = Some(watch(cleared, model.clone()));
                map(&hw, &mut tables, va, phys, len);
            }
            *hw.watcher.borrow_mut() = None;
            for page in 0..PAGES {
                let va = START + page * PAGE_SIZE;
                prop_assert_eq!(at(&hw, pointer, va), model.get(&page).copied());
            }
        }
    }
}

#[test]
fn a_large_page_is_split_into_as_large_ones_as_may_be() {
    let hw = Recorder::default();
    let mut tables = root(&hw);
    map(&hw, &mut tables, START, 64 << 20, LARGE);
    // The root, and one table each of levels 2 and 1.
    assert_eq!(tables.count(), 3);
    assert_eq!(clear(&hw, &mut tables, START, PAGE_SIZE), Changed::Stale);
    let pointer = tables.pointer(&hw);
    assert_eq!(at(&hw, pointer, START), None);
    assert_eq!(
        at(&hw, pointer, START + PAGE_SIZE),
        Some((64 << 20) + PAGE_SIZE)
    );
    let below = tables.find(GpuVa(START), 0).unwrap();
    // The cut one by pages of 4 KiB, the rest by pages of 64 KiB.
    assert!(!below.read(&hw, 1).unwrap().is_large());
    assert!(below.read(&hw, 16).unwrap().is_large());
    assert_eq!(clear(&hw, &mut tables, START, PAGE_SIZE), Changed::Fresh);
}

#[test]
fn a_large_page_in_the_place_of_an_empty_table_needs_a_flush() {
    let hw = Recorder::default();
    let mut tables = root(&hw);
    assert_eq!(
        map(&hw, &mut tables, START, 64 << 20, LARGE),
        Changed::Fresh
    );
    // Whole: what is below, if anything, is named again.
    assert_eq!(clear(&hw, &mut tables, START, LARGE), Changed::Stale);
    // The table for the edges may be kept from now on.
    assert_eq!(
        map(&hw, &mut tables, START, 64 << 20, LARGE),
        Changed::Stale
    );
    assert_eq!(clear(&hw, &mut tables, START, PAGE_SIZE), Changed::Stale);
    // Its entries were not valid.
    assert_eq!(
        map(&hw, &mut tables, START, 64 << 20, PAGE_SIZE),
        Changed::Fresh
    );
}

#[test]
fn what_was_not_prepared_is_refused() {
    let hw = Recorder::default();
    let mut tables = root(&hw);
    let run = runs(START, 64 << 20, PAGE_SIZE)[0];
    assert_eq!(tables.map(&hw, &run, RW), Err(TableError::Unprepared));
    map(&hw, &mut tables, START, 64 << 20, LARGE);
    assert_eq!(
        tables.clear(&hw, START, PAGE_SIZE),
        Err(TableError::Unprepared)
    );
    assert_eq!(at(&hw, tables.pointer(&hw), START), Some(64 << 20));
    assert_eq!(tables.clear(&hw, u64::MAX, 2), Err(TableError::Unprepared));
    hw.gone.set(true);
    assert_eq!(
        tables.clear(&hw, START, LARGE),
        Err(TableError::Miniport(Gone))
    );
}

#[test]
fn what_the_cpu_has_cached_is_snooped_and_nothing_else() {
    let hw = Recorder::default();
    let mut tables = root(&hw);
    let run = runs(START, 1 << 20, PAGE_SIZE)[0];
    prepare(&hw, &mut tables, START, PAGE_SIZE, 0);
    for (reach, bits) in [
        (Reach::Bus { cached: true }, Entry::SYSTEM | Entry::SNOOP),
        (Reach::Bus { cached: false }, Entry::SYSTEM),
        (Reach::GpuPhysical, 0),
    ] {
        let access = Access {
            reach,
            write: false,
        };
        tables.map(&hw, &run, access).unwrap();
        let below = tables.find(GpuVa(START), 0).unwrap();
        let entry = below.read(&hw, run.first_entry()).unwrap();
        assert_eq!(entry.0, (1 << 20) | Entry::VALID | bits, "{reach:?}");
        tables.clear(&hw, START, PAGE_SIZE).unwrap();
    }
}

#[test]
fn a_table_survives_each_failure() {
    let hw = Recorder::default();
    until_enough(|| Root::new(hw.table(), ROOT_LEVEL));
    until_enough(|| StdHeap::boxed(0));
}
