// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::vec::Vec;

use super::*;

const PLACES: [Place; 5] = [
    Place::Vram,
    Place::System,
    Place::Aperture,
    Place::Imported,
    Place::Nowhere,
];

/// All there are.
fn all_facts() -> Vec<Facts> {
    let mut all = Vec::new();
    for (from, to) in PLACES
        .into_iter()
        .flat_map(|from| PLACES.map(|to| (from, to)))
    {
        for bits in 0..1 << 7 {
            let bit = |number: u32| bits >> number & 1 != 0;
            all.push(Facts {
                from,
                to,
                has_copy: bit(0),
                same_pages: bit(1),
                is_stale: bit(2),
                is_settled: bit(3),
                is_offered: bit(4),
                is_held_out: bit(5),
                is_lost: bit(6),
                is_arriving: false,
            });
        }
    }
    all
}

/// An object of which nothing else is the matter.
fn plain(from: Place, to: Place) -> Facts {
    Facts {
        from,
        to,
        has_copy: false,
        is_lost: false,
        same_pages: from.has_pages() && to.has_pages(),
        is_stale: false,
        is_settled: true,
        is_offered: to == Place::Nowhere,
        is_held_out: false,
        is_arriving: false,
    }
}

#[test]
fn each_place_is_reached_one_way() {
    use Place::{Aperture, Nowhere, System, Vram};
    for from in PLACES {
        for to in PLACES {
            let expected = match (from, to) {
                (Vram, System | Aperture) | (System | Aperture, Vram) => Some(Way::Copied),
                (System, Aperture) | (Aperture, System) => Some(Way::Stays),
                (Vram | System, Nowhere) => Some(Way::Discarded),
                _ => None,
            };
            assert_eq!(way(&plain(from, to)), expected, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn no_content_is_lost_that_somebody_wants() {
    for facts in all_facts() {
        match way(&facts) {
            Some(Way::Copied) => {
                let sides = [facts.from, facts.to].map(|place| place == Place::Vram);
                assert!(sides[0] != sides[1], "{facts:?}");
                assert!(!(sides[0] && facts.has_copy), "a copy is copied: {facts:?}");
            }
            Some(Way::Clean) => assert!(
                facts.from == Place::Vram && facts.has_copy && !facts.is_lost && facts.same_pages,
                "{facts:?}"
            ),
            Some(Way::Stays) => assert!(
                facts.from.has_pages() && facts.to.has_pages() && facts.same_pages,
                "{facts:?}"
            ),
            Some(Way::Discarded) => {
                assert!(facts.is_offered && facts.to == Place::Nowhere, "{facts:?}");
            }
            None => continue,
        }
        assert!(!(facts.to.has_pages() && facts.is_stale), "{facts:?}");
        assert!(facts.from != facts.to, "{facts:?}");
    }
}

#[test]
fn vram_is_for_what_may_be_there() {
    for facts in all_facts() {
        if facts.to == Place::Vram && way(&facts).is_some() {
            assert!(!facts.is_offered && !facts.is_held_out, "{facts:?}");
        }
        let other = Facts {
            is_held_out: !facts.is_held_out,
            ..facts
        };
        if facts.to != Place::Vram {
            assert_eq!(way(&facts), way(&other), "{facts:?}");
        }
    }
}

#[test]
fn what_comes_to_vram_does_not_leave_before_it_is_there() {
    for facts in all_facts() {
        let arriving = Facts {
            is_arriving: true,
            ..facts
        };
        match facts.from {
            Place::Vram => assert_eq!(
                way(&arriving),
                way(&facts).filter(|_| facts.to == Place::Vram)
            ),
            // Its marks are of earlier.
            _ => assert_eq!(way(&arriving), way(&facts)),
        }
    }
}

#[test]
fn it_leaves_the_aperture_when_it_has_come_there() {
    let back = plain(Place::Aperture, Place::System);
    let busy = Facts {
        is_settled: false,
        ..back
    };
    assert_eq!((way(&back), way(&busy)), (Some(Way::Stays), None));
}
