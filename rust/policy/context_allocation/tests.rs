// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{super::segment_sets::Segment, *};

const MOST: u64 = 1 << 31;
const OURS: Asid = Asid(3);
const GOOD: Request = Request {
    space: OURS,
    context: None,
    flags: SHARED_ACROSS_CONTEXTS,
    size: PAGE_SIZE,
    alignment: 0,
    supported: Segment::Vram.bit(),
    preferred: 0,
    eviction: 0,
};

/// With each value of a member whether it is good.
const SPACES: [(Asid, bool); 2] = [(OURS, true), (Asid::SYSTEM, false)];
const FLAGS: [(u32, bool); 4] = [(0, true), (1, true), (2, false), (1 << 31 | 1, false)];
const SIZES: [(u64, bool); 8] = [
    (PAGE_SIZE, true),
    (3 * PAGE_SIZE, true),
    (MOST, true),
    (0, false),
    (1, false),
    (PAGE_SIZE + 8, false),
    (MOST + PAGE_SIZE, false),
    (u64::MAX, false),
];
const ALIGNMENTS: [(u64, bool); 9] = [
    (0, true),
    (PAGE_SIZE, true),
    (PAGE_SIZE << 4, true),
    (MAX_ALIGNMENT, true),
    (1, false),
    (PAGE_SIZE >> 1, false),
    (3 * PAGE_SIZE, false),
    (MAX_ALIGNMENT << 1, false),
    (1 << 63, false),
];
const SETS: [([u32; 3], bool); 5] = [
    ([Segment::Vram.bit(), 0, 0], true),
    (
        [Segment::BITS, Segment::System.bit(), Segment::System.bit()],
        true,
    ),
    ([0, 0, 0], false),
    ([Segment::Vram.bit(), Segment::System.bit(), 0], false),
    ([Segment::Vram.bit(), 0, Segment::Vram.bit()], false),
];

#[test]
fn all_combinations() {
    let contexts = [None, Some(OURS), Some(Asid(4)), Some(Asid::SYSTEM)];
    let mut counts = [0; 2];
    for (space, is_client) in SPACES {
        for context in contexts {
            for (flags, are_flags) in FLAGS {
                for (size, is_size) in SIZES {
                    for (alignment, is_alignment) in ALIGNMENTS {
                        for ([supported, preferred, eviction], are_sets) in SETS {
                            let request = Request {
                                space,
                                context,
                                flags,
                                size,
                                alignment,
                                supported,
                                preferred,
                                eviction,
                            };
                            let is_shared = flags & SHARED_ACROSS_CONTEXTS != 0;
                            let is_theirs = context == Some(space) && !is_shared;
                            let is_nobodys = context.is_none() && is_shared;
                            let refusal = [
                                (!is_client || context == Some(Asid::SYSTEM), Refusal::System),
                                (!are_flags, Refusal::Flags),
                                (!is_theirs && !is_nobodys, Refusal::Context),
                                (!is_size, Refusal::Size),
                                (!is_alignment, Refusal::Alignment),
                                (!are_sets, Refusal::Segments),
                            ];
                            let refusal = refusal.into_iter().find(|(is_bad, _)| *is_bad);
                            let found = request.check(MOST);
                            let owner = [Owner::Device, Owner::Context][usize::from(is_theirs)];
                            match refusal {
                                Some((_, refusal)) => {
                                    assert_eq!(found, Err(refusal), "{request:?}");
                                }
                                None => {
                                    let sets = SegmentSets::new(supported, preferred, eviction);
                                    let good = (owner, alignment.max(PAGE_SIZE), sets.unwrap());
                                    assert_eq!(found, Ok(good), "{request:?}");
                                    counts[usize::from(is_theirs)] += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    // Three sizes, four alignments, two sets.
    assert_eq!(counts, [24, 24]);
}

#[test]
fn the_size_is_what_the_window_has() {
    let request = |size| Request { size, ..GOOD };
    for most in [PAGE_SIZE, 5 * PAGE_SIZE] {
        assert!(request(most).check(most).is_ok());
        let more = request(most + PAGE_SIZE).check(most);
        assert_eq!(more, Err(Refusal::Size));
    }
}
