// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against an array with a value per address.

use super::*;
use crate::std_heap::{allocations, until_enough, StdHeap};
use proptest::prelude::*;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

/// The value of address `a` of the mapping is `id` and `a`'s offset in what is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    id: u32,
    offset: u64,
    /// What a buffer object is to the driver: counts leaks and double drops.
    life: Rc<()>,
}

impl Slice for Mapping {
    fn slice(&self, offset: u64, _len: u64) -> Self {
        Mapping {
            offset: self.offset + offset,
            ..self.clone()
        }
    }
}

type Map = IntervalMap<StdHeap, Mapping>;

const SIZE: u64 = 200;

fn check(map: &Map) {
    // (node, its bounds)
    let mut work = vec![(map.root, 0, u64::MAX)];
    let mut count = 0;
    while let Some((number, low, high)) = work.pop() {
        let Some(node) = map.node(number) else {
            continue;
        };
        count += 1;
        assert!(node.value.is_some());
        assert!(low <= node.start && node.start < node.end && node.end <= high);
        let (left, right) = (map.height(node.left), map.height(node.right));
        assert!(left.abs_diff(right) <= 1, "out of balance");
        assert_eq!(node.height, left.max(right) + 1);
        work.push((node.left, low, node.start));
        work.push((node.right, node.end, high));
        let inside: Vec<Span> = map
            .iter(Span::new(node.extent.first, node.extent.last))
            .map(|e| e.0)
            .collect();
        assert!(inside.first().unwrap().start == node.extent.first);
        assert!(inside.last().unwrap().end == node.extent.last);
        let gap = inside.windows(2).map(|w| w[1].start - w[0].end).max();
        assert_eq!(node.extent.gap, gap.unwrap_or(0));
    }
    assert_eq!(count, map.len());
    let mut spares = 0;
    let mut spare = map.spare;
    while let Some(node) = map.node(spare) {
        assert!(node.value.is_none());
        spares += 1;
        spare = node.left;
    }
    assert_eq!(spares, map.spares);
    let nodes = map.pieces.as_slice().iter().map(FallibleVec::len);
    assert_eq!(spares as usize + count as usize, nodes.sum());
    assert!(map.promised <= map.spares);
}

#[derive(Clone, Debug)]
enum Op {
    Map(u64, u64),
    Unmap(u64, u64),
    Gap(u64, u32, u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![3 => 1u64..6, 1 => 1u64..60];
    prop_oneof![
        4 => (0..SIZE, len()).prop_map(|(s, l)| Op::Map(s, l)),
        2 => (0..SIZE, len()).prop_map(|(s, l)| Op::Unmap(s, l)),
        1 => (1u64..40, 0u32..5, 0..SIZE, 0..SIZE).prop_map(|(s, a, f, t)| Op::Gap(s, a, f, t)),
    ]
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_an_array(ops in prop::collection::vec(op(), 1..150)) {
        let mut map = Map::new();
        let mut model: Vec<Option<(u32, u64)>> = vec![None; SIZE as usize * 2];
        let life = Rc::new(());
        for (id, op) in ops.into_iter().enumerate() {
            let id = id as u32;
            match op {
                Op::Map(start, len) => {
                    let span = Span::with_len(start, len).unwrap();
                    let mut res = map.prepare(MAP_NODES).unwrap();
                    let before = allocations();
                    let value = Mapping { id, offset: 1000, life: life.clone() };
                    let result = map.map(&mut res, span, value);
                    prop_assert_eq!(allocations(), before, "a commit allocated");
                    map.release(res);
                    let part = &mut model[start as usize..(start + len) as usize];
                    if part.iter().any(Option::is_some) {
                        prop_assert_eq!(result, Err(MapError::Overlap));
                    } else {
                        prop_assert_eq!(result, Ok(()));
                        for (i, slot) in part.iter_mut().enumerate() {
                            *slot = Some((id, 1000 + i as u64));
                        }
                    }
                }
                Op::Unmap(start, len) => {
                    let span = Span::with_len(start, len).unwrap();
                    let mut res = map.prepare(UNMAP_NODES).unwrap();
                    let before = allocations();
                    let mut cuts = Vec::new();
                    // Collecting allocates, but not on the counted heap.
                    let result = map.unmap(&mut res, span, |cut| cuts.push(cut));
                    prop_assert_eq!(allocations(), before, "a commit allocated");
                    prop_assert_eq!(result, Ok(()));
                    map.release(res);
                    let mut last = 0;
                    for cut in &cuts {
                        let removed = &cut.removed;
                        prop_assert!(removed.span.start >= span.start.max(last));
                        prop_assert!(removed.span.end <= span.end);
                        last = removed.span.end;
                        for at in removed.span.start..removed.span.end {
                            let slot = &mut model[at as usize];
                            let offset = removed.value.offset + at - removed.span.start;
                            prop_assert_eq!(slot.take(), Some((removed.value.id, offset)));
                        }
                        for (piece, edge) in [
                            (&cut.before, removed.span.start),
                            (&cut.after, removed.span.end),
                        ] {
                            if let Some(piece) = piece {
                                prop_assert!(piece.span.start == edge || piece.span.end == edge);
                                prop_assert_eq!(
                                    map.get(piece.span.start),
                                    Some((piece.span, &piece.value))
                                );
                            }
                        }
                    }
                    let range = start as usize..(start + len) as usize;
                    prop_assert!(model[range].iter().all(Option::is_none));
                }
                Op::Gap(size, align, from, to) => {
                    let align = 1 << align;
                    let expected = (from..to)
                        .filter(|at| at % align == 0 && at + size <= to)
                        .find(|at| {
                            let range = *at as usize..(at + size) as usize;
                            model[range].iter().all(Option::is_none)
                        });
                    prop_assert_eq!(map.find_gap(size, align, Span::new(from, to)), expected);
                }
            }
            check(&map);
            for at in 0..model.len() as u64 {
                let found = map.get(at).map(|(span, v)| (v.id, v.offset + at - span.start));
                prop_assert_eq!(found, model[at as usize]);
            }
            prop_assert_eq!(Rc::strong_count(&life), map.len() as usize + 1, "a value leaked");
        }
        let mut res = map.prepare(UNMAP_NODES).unwrap();
        prop_assert_eq!(map.unmap(&mut res, Span::new(0, u64::MAX), |_| ()), Ok(()));
        map.release(res);
        prop_assert!(map.is_empty());
        prop_assert_eq!(Rc::strong_count(&life), 1);
        check(&map);
    }
}

fn mapping(id: u32) -> Mapping {
    Mapping {
        id,
        offset: 0,
        life: Rc::new(()),
    }
}

#[test]
fn prepare_survives_each_failure() {
    let mut map = Map::new();
    let held = map.prepare(3).unwrap();
    let res = until_enough(|| {
        map.prepare(1000).inspect_err(|_| {
            assert_eq!(map.promised, 3);
            // Nodes that were made stay, as spare ones.
            check(&map);
        })
    });
    assert_eq!(map.promised, 1003);
    map.release(res);
    map.release(held);
    check(&map);
}

#[test]
fn a_commit_needs_its_own_reservation() {
    let mut map = Map::new();
    let mut empty = map.prepare(0).unwrap();
    let mut full = map.prepare(2).unwrap();
    let span = Span::new(0, 10);
    assert_eq!(
        map.map(&mut empty, span, mapping(1)),
        Err(MapError::NotReserved)
    );
    assert_eq!(
        map.unmap(&mut empty, span, |_| ()),
        Err(MapError::NotReserved)
    );
    assert_eq!(map.map(&mut full, span, mapping(1)), Ok(()));
    assert_eq!(full.nodes, 1);
    // A hole needs the second node; two reservations do not get into each other's way.
    let other = map.prepare(5).unwrap();
    assert_eq!(map.unmap(&mut full, Span::new(4, 5), |_| ()), Ok(()));
    assert_eq!((map.len(), full.nodes, other.nodes), (2, 0, 5));
    map.release(other);
    map.release(full);
    map.release(empty);
    assert_eq!(map.promised, 0);
    check(&map);
}

#[test]
fn bad_arguments() {
    let mut map = Map::new();
    let mut res = map.prepare(10).unwrap();
    for (start, end) in [(0, 0), (5, 4), (u64::MAX, u64::MAX), (u64::MAX, 0)] {
        let span = Span::new(start, end);
        assert_eq!(map.map(&mut res, span, mapping(0)), Err(MapError::Invalid));
        assert_eq!(map.unmap(&mut res, span, |_| ()), Err(MapError::Invalid));
        assert_eq!(map.iter(span).count(), 0);
        assert_eq!(map.find_gap(1, 1, span), None);
    }
    let all = Span::new(0, u64::MAX);
    assert_eq!(map.find_gap(0, 1, all), None);
    assert_eq!(map.find_gap(1, 3, all), None);
    assert_eq!(map.find_gap(u64::MAX, 1, all), Some(0));
    assert_eq!(
        map.find_gap(1, 1 << 63, Span::new((1 << 63) + 1, u64::MAX)),
        None
    );
    map.map(&mut res, Span::new(u64::MAX - 1, u64::MAX), mapping(0))
        .unwrap();
    assert_eq!(map.find_gap(u64::MAX, 1, all), None);
    assert_eq!(map.find_gap(u64::MAX - 1, 1, all), Some(0));
    assert_eq!(Span::with_len(1, u64::MAX), None);
    assert!(map.prepare(u32::MAX).is_err());
    map.release(res);
}

#[test]
fn a_large_map_is_low_and_finds_gaps_fast() {
    let mut map = Map::new();
    let mut res = map.prepare(100_000).unwrap();
    for i in 0..100_000 {
        map.map(&mut res, Span::new(i * 10, i * 10 + 9), mapping(0))
            .unwrap();
    }
    assert!(map.height(map.root) <= 24);
    // All gaps are 1: no subtree is entered.
    let within = Span::new(0, u64::MAX);
    assert_eq!(map.find_gap(2, 1, within), Some(999_999));
    assert_eq!(
        map.find_gap(1, 1, Span::new(500_000, 600_000)),
        Some(500_009)
    );
    map.release(res);
    check(&map);
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn the_most_cuts_are_enough(
        had in prop::collection::vec((0u64..200, 1u64..20), 0..40),
        spans in prop::collection::vec((0u64..200, 1u64..80, any::<bool>()), 1..12),
    ) {
        let mut map = IntervalMap::<StdHeap, ()>::new();
        let mut res = map.prepare(200).unwrap();
        for (start, len) in had {
            // What overlaps is refused.
            let _ = map.map(&mut res, Span::new(start, start + len), ());
        }
        let span = |(at, len, _): &(u64, u64, _)| Span::new(*at, at + len);
        let mut sorted: Vec<_> = spans.iter().map(span).collect();
        let most = map.most_cuts(&mut sorted);
        prop_assert!(most <= map.len() as usize + 4 * spans.len());
        let mut cuts = 0;
        for (start, len, maps) in spans {
            let span = Span::new(start, start + len);
            map.unmap(&mut res, span, |_| cuts += 1).unwrap();
            if maps {
                map.map(&mut res, span, ()).unwrap();
            }
        }
        prop_assert!(cuts <= most, "{cuts} of {most}");
        map.release(res);
    }
}
