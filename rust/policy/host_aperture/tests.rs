// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::super::miniport::{AperturePage, Miniport, VRAM_SEGMENT};
use super::super::recorder::Recorder;
use super::*;
use crate::std_heap::{fail_at, StdHeap};
use proptest::prelude::*;
use std::vec::Vec;

type TestAperture = HostAperture<StdHeap>;

fn shown(page: u64) -> Shown {
    Shown {
        page,
        user: page << 12,
    }
}

/// What a caller does who wants to see a page of the segment; the page of the aperture, and what is
/// taken back for that.
pub(crate) fn reveal(
    aperture: &mut TestAperture,
    gpu: &Recorder,
    shown: Shown,
) -> (u32, Option<Shown>) {
    if let Some(at) = aperture.find(shown.page) {
        aperture.touch(at);
        return (at, None);
    }
    let (at, old) = aperture.next().expect("a page");
    if old.is_some() {
        gpu.unmap_cpu_host_aperture(VRAM_SEGMENT, &[at]).unwrap();
        assert_eq!(aperture.hide(at), old);
    }
    assert_eq!(aperture.next(), Some((at, None)));
    let new = AperturePage {
        aperture: at,
        segment: shown.page,
    };
    gpu.map_cpu_host_aperture(VRAM_SEGMENT, &[new]).unwrap();
    aperture.show(at, shown).expect("nothing is in its way");
    (at, old)
}

#[derive(Clone, Debug)]
enum Op {
    Reveal(u64),
    Hide(u64),
    Hold(u64, bool),
}

fn op() -> impl Strategy<Value = Op> {
    // Some of them a power of two apart.
    let page = prop_oneof![0u64..20, (0u64..8).prop_map(|n| n << 20)];
    prop_oneof![
        4 => page.clone().prop_map(Op::Reveal),
        1 => page.clone().prop_map(Op::Hide),
        1 => (page, any::<bool>()).prop_map(|(page, held)| Op::Hold(page, held)),
    ]
}

proptest! {
    #![proptest_config(crate::cases(4))]
    #[test]
    fn like_a_list(
        pages in 1u32..12,
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let gpu = Recorder::default();
        let mut aperture = TestAperture::new(pages).unwrap();
        // What is shown and not held, and what is held; the page that was mapped longest ago first.
        let mut model: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
        let place = |model: &[Vec<u64>; 2], page: u64| {
            let in_list = |list: &Vec<u64>| list.iter().position(|other| *other == page);
            in_list(&model[0]).map(|n| (0, n)).or(in_list(&model[1]).map(|n| (1, n)))
        };
        for op in ops {
            match op {
                Op::Reveal(page) => {
                    let mut list = 0;
                    if let Some((known, n)) = place(&model, page) {
                        list = known;
                        model[list].remove(n);
                    } else if model[0].len() + model[1].len() == pages as usize {
                        let from = usize::from(model[0].is_empty());
                        model[from].remove(0);
                    }
                    model[list].push(page);
                    let (at, _) = reveal(&mut aperture, &gpu, shown(page));
                    let shown = gpu.aperture.borrow().get(&at).copied();
                    prop_assert_eq!(shown, Some(page));
                }
                Op::Hide(page) => {
                    let at = aperture.find(page);
                    prop_assert_eq!(at.is_some(), place(&model, page).is_some());
                    if let Some(at) = at {
                        prop_assert_eq!(aperture.hide(at), Some(shown(page)));
                        gpu.unmap_cpu_host_aperture(VRAM_SEGMENT, &[at]).unwrap();
                        // It is taken before any that shows something.
                        prop_assert_eq!(aperture.next(), Some((at, None)));
                    }
                    for list in &mut model {
                        list.retain(|other| *other != page);
                    }
                }
                Op::Hold(page, held) => {
                    let known = place(&model, page);
                    aperture.hold(aperture.find(page).unwrap_or(NIL), held);
                    match known {
                        Some((list, n)) if list != usize::from(held) => {
                            model[list].remove(n);
                            model[usize::from(held)].push(page);
                        }
                        _ => (),
                    }
                }
            }
            for list in &model {
                let is_last = |page: &u64| {
                    aperture.find(*page).is_some_and(|at| aperture.is_last(at))
                };
                let last: Vec<u64> = list.iter().copied().filter(is_last).collect();
                prop_assert_eq!(last.first(), list.last());
                prop_assert_eq!(last.len(), list.len().min(1));
            }
            let shown_now: Vec<u64> = model.concat();
            prop_assert_eq!(aperture.used() as usize, shown_now.len());
            prop_assert_eq!(gpu.aperture.borrow().len(), shown_now.len());
            for page in &shown_now {
                let at = aperture.find(*page).expect("it is shown");
                let shown = gpu.aperture.borrow().get(&at).copied();
                prop_assert_eq!(shown, Some(*page));
            }
            if shown_now.len() == pages as usize {
                let next = aperture.next().and_then(|(_, shown)| shown);
                prop_assert_eq!(next, Some(shown(shown_now[0])));
            }
        }
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut aperture = TestAperture::new(3).unwrap();
    assert_eq!(aperture.total(), 3);
    aperture.show(1, shown(7)).unwrap();
    assert_eq!(aperture.show(1, shown(8)), Err(Taken), "it shows something");
    assert_eq!(
        aperture.show(2, shown(7)),
        Err(Taken),
        "another one shows it"
    );
    assert_eq!(aperture.show(3, shown(8)), Err(Taken), "there is none");
    assert_eq!((aperture.hide(0), aperture.hide(3)), (None, None));
    aperture.touch(0);
    aperture.touch(NIL);
    for at in [0, 3, NIL] {
        aperture.hold(at, true);
    }
    let is_last = [0, 1, 2, 3, NIL].map(|at| aperture.is_last(at));
    assert_eq!(is_last, [false, true, false, false, false]);
    assert_eq!((aperture.used(), aperture.find(7)), (1, Some(1)));
    assert_eq!((aperture.find(8), aperture.next()), (None, Some((0, None))));
}

#[test]
fn an_aperture_may_have_no_pages() {
    let mut aperture = TestAperture::new(0).unwrap();
    assert_eq!((aperture.total(), aperture.next()), (0, None));
    assert_eq!(aperture.find(0), None);
    assert_eq!(aperture.show(0, shown(0)), Err(Taken));
}

#[test]
fn memory_is_allocated_at_first_only() {
    for failure in 0..2 {
        fail_at(Some(failure));
        assert!(TestAperture::new(9).is_err());
    }
    fail_at(None);
    let mut aperture = TestAperture::new(9).unwrap();
    let gpu = Recorder::default();
    fail_at(Some(0));
    for page in 0..100 {
        reveal(&mut aperture, &gpu, shown(page));
    }
    fail_at(None);
}
