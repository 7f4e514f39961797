// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use std::{collections::BTreeMap, format, string::String, vec, vec::Vec};
use Segment::{Aperture, System, Vram};

/// Every list of different segments.
fn lists() -> Vec<Vec<Segment>> {
    let mut lists = vec![Vec::new()];
    let mut from = 0;
    while let Some(list) = lists.get(from).cloned() {
        for segment in Segment::ALL {
            if !list.contains(&segment) {
                lists.push(list.iter().copied().chain([segment]).collect());
            }
        }
        from += 1;
    }
    lists
}

fn bits(segments: &[Segment]) -> u32 {
    segments.iter().fold(0, |all, segment| all | segment.bit())
}

fn word(preferred: &[Segment]) -> u32 {
    let shifted = preferred.iter().zip([0, 8, 16]);
    shifted.fold(0, |all, (segment, shift)| all | segment.bit() << shift)
}

/// All there can be, with what they were made of.
pub(crate) fn all() -> Vec<(u32, Vec<Segment>, u32, SegmentSets)> {
    let mut found = Vec::new();
    for supported in 0..=Segment::BITS {
        for preferred in lists() {
            for eviction in 0..=Segment::BITS {
                if let Some(sets) = SegmentSets::new(supported, word(&preferred), eviction) {
                    found.push((supported, preferred.clone(), eviction, sets));
                }
            }
        }
    }
    found
}

#[test]
fn all_that_makes_sense_is_accepted_and_told_back() {
    assert_eq!(lists().len(), 1 + 3 + 6 + 6);
    let found = all();
    // Supported sets of one, two and three segments, with so many lists of them; four eviction sets
    // where VRAM and the aperture are supported, two where VRAM is without that, one elsewhere.
    let [one, two, three] = [2, 5, 16];
    let expected = one * 2 + two * (2 + 4) + three * 4 + (one + one + two);
    assert_eq!(found.len(), expected);
    let mut words = BTreeMap::new();
    for (supported, preferred, eviction, sets) in found {
        assert_eq!(sets.supported(), supported);
        assert_eq!(sets.preferred(), word(&preferred));
        assert_eq!(sets.eviction(), eviction);
        assert_eq!(u32::from(sets.word()) >> SegmentSets::WORD_BITS, 0);
        assert_eq!(SegmentSets::from_word(sets.word()), sets);
        assert_eq!(words.insert(sets.word(), sets), None);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for supported in (0..32).map(|bit| 1 << bit).chain([0]) {
        let is_segment = supported & Segment::BITS != 0;
        assert_eq!(SegmentSets::new(supported, 0, 0).is_some(), is_segment);
        let more = SegmentSets::new(supported | Segment::BITS, 0, 0).is_some();
        assert_eq!(more, is_segment || supported == 0);
    }
    for supported in 1..=Segment::BITS {
        for preferred in 0..1 << 16 {
            let bytes = [preferred & 0xff, preferred >> 8 & 0xff];
            let is_one = |byte: u32| byte.count_ones() == 1 && supported & byte != 0;
            let expected = match bytes {
                [0, second] => second == 0,
                [first, 0] => is_one(first),
                [first, second] => is_one(first) && is_one(second) && first != second,
            };
            let sets = SegmentSets::new(supported, preferred, 0);
            assert_eq!(sets.is_some(), expected, "{supported:#x} {preferred:#x}");
        }
        // Each bit of the other bytes, behind what is complete.
        let three = word(&[System, Aperture, Vram]);
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| three & bit == 0) {
            assert_eq!(SegmentSets::new(Segment::BITS, three | bit, 0), None);
        }
    }
    for supported in 1..=Segment::BITS {
        for eviction in (0..32).map(|bit| 1 << bit) {
            let is_vram = supported & Vram.bit() != 0;
            let is_there = eviction == System.bit() || eviction == Aperture.bit() & supported;
            let sets = SegmentSets::new(supported, 0, eviction);
            assert_eq!(
                sets.is_some(),
                is_vram && is_there,
                "{supported:#x} {eviction:#x}"
            );
        }
    }
}

#[test]
fn what_is_preferred_comes_first_and_the_rest_as_ever() {
    for (supported, preferred, _, sets) in all() {
        let order: Vec<_> = sets.order().collect();
        assert!(order.starts_with(&preferred));
        assert_eq!(
            (bits(&order), order.len()),
            (supported, supported.count_ones() as usize)
        );
        let rest = order.get(preferred.len()..).unwrap();
        assert!(rest.is_sorted_by_key(|segment| Segment::ALL.iter().position(|at| at == segment)));
        for segment in Segment::ALL {
            for other in Segment::ALL {
                let at = |segment| order.iter().position(|at| *at == segment);
                let expected = match (at(segment), at(other)) {
                    (Some(first), Some(second)) => first < second,
                    (at, _) => at.is_some(),
                };
                assert_eq!(sets.prefers(segment, other), expected && segment != other);
            }
        }
    }
}

/// Places where nobody is, where who is may leave, where who is may leave if there is no other
/// place, and where who is stays.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Room {
    Free,
    Victims,
    Residents,
    Full,
}

#[test]
fn the_first_of_the_order_that_has_room_is_taken() {
    use Room::{Free, Full, Residents, Victims};
    for (_, _, _, sets) in all() {
        for vram in [Free, Victims, Residents, Full] {
            for aperture in [Free, Victims, Full] {
                for system in [Free, Full] {
                    let has_room = |attempt: &Attempt| match (attempt.segment, attempt.need) {
                        (System, _) => system == Free,
                        (Aperture, Need::Needs) => aperture <= Victims,
                        (Aperture, _) => aperture == Free,
                        (Vram, Need::Needs) => vram <= Residents,
                        (Vram, _) => vram <= Victims,
                    };
                    let found = sets
                        .attempts()
                        .find(has_room)
                        .map(|attempt| attempt.segment);
                    let is_good = |segment: &Segment| match segment {
                        Vram => vram <= Victims,
                        Aperture => aperture == Free,
                        System => system == Free,
                    };
                    // What has room without force, in order; then what has by force, in this order.
                    let free = sets.supports(System);
                    let forced = [(Aperture, aperture <= Victims), (Vram, vram <= Residents)];
                    let forced = forced
                        .into_iter()
                        .find(|(segment, has)| !free && sets.supports(*segment) && *has);
                    let expected = sets.order().find(is_good);
                    let expected = expected.or(forced.map(|(segment, _)| segment));
                    let what = format!("{sets:?}: {vram:?} {aperture:?} {system:?}");
                    assert_eq!(found, expected, "{what}");
                }
            }
        }
    }
}

#[test]
fn what_the_driver_did_before_is_what_it_does_when_nobody_prefers_anything() {
    let tried = |supported: &[Segment]| -> Vec<String> {
        let sets = SegmentSets::new(bits(supported), 0, 0).unwrap();
        let name = |attempt: Attempt| format!("{:?} {:?}", attempt.need, attempt.segment);
        sets.attempts().map(name).collect()
    };
    assert_eq!(tried(&[Vram]), ["Needs Vram"]);
    assert_eq!(tried(&[Aperture]), ["Needs Aperture"]);
    assert_eq!(tried(&[System]), ["Prefers System"]);
    assert_eq!(tried(&[Vram, System]), ["Prefers Vram", "Prefers System"]);
    assert_eq!(
        tried(&[Aperture, System]),
        ["Prefers Aperture", "Prefers System"]
    );
    assert_eq!(
        tried(&[Vram, Aperture]),
        [
            "Prefers Vram",
            "Prefers Aperture",
            "Needs Aperture",
            "Needs Vram"
        ]
    );
    assert_eq!(
        tried(&[Vram, Aperture, System]),
        ["Prefers Vram", "Prefers Aperture", "Prefers System"]
    );
    for (_, preferred, eviction, sets) in all() {
        if preferred.is_empty() && eviction == 0 {
            let aperture = sets.supports(Aperture).then_some(Aperture);
            assert!(sets.exits().eq(aperture.into_iter().chain([System])));
        }
    }
}

#[test]
fn what_leaves_goes_to_its_eviction_set_and_at_last_to_system_memory() {
    for (supported, _, eviction, sets) in all() {
        let exits: Vec<_> = sets.exits().collect();
        let may_be_aperture = supported & Aperture.bit() != 0
            && match eviction {
                0 => !sets.prefers(System, Aperture),
                set if set & System.bit() == 0 => true,
                set => set & Aperture.bit() != 0 && !sets.prefers(System, Aperture),
            };
        let expected: &[_] = match may_be_aperture {
            true => &[Aperture, System],
            false => &[System],
        };
        assert_eq!(exits, expected, "{sets:?}");
    }
}
