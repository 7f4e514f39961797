// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a queue of bytes with absolute offsets.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Place(u32),
    /// Retire so many units, modulo what is outstanding.
    Advance(u32),
    /// Report any number.
    Report(u32),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..40).prop_map(Op::Place),
        4 => (0u32..64).prop_map(Op::Advance),
        2 => prop_oneof![0u32..600, any::<u32>()].prop_map(Op::Report),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_byte_queue(
        size in 5u32..10, unit in 2u32..4,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let (size, unit) = (1u32 << size, 1u32 << unit);
        let mut ring = RingSpace::new(size, unit).unwrap();
        // Never wrap.
        let (mut head, mut tail) = (0u64, 0u64);
        for op in ops {
            match op {
                Op::Place(units) => {
                    let len = units * unit;
                    let outstanding = (tail - head) as u32;
                    let offset = (tail % u64::from(size)) as u32;
                    let pad = if offset + len > size { size - offset } else { 0 };
                    match ring.reserve(len) {
                        Ok(slot) => {
                            prop_assert_eq!(slot.pad, pad);
                            prop_assert_eq!(slot.pad_at, offset);
                            prop_assert_eq!(slot.at, (offset + pad) % size);
                            prop_assert!(slot.at + len <= size, "a command wraps");
                            prop_assert!(outstanding + pad + len < size, "full looks empty");
                            prop_assert!(len <= ring.longest());
                            prop_assert_eq!(ring.commit(slot), Ok(slot.tail));
                            tail += u64::from(pad + len);
                            let is_next = ring.reserve(len) == Ok(slot);
                            prop_assert_eq!(ring.commit(slot).is_ok(), is_next);
                        }
                        Err(RingError::Misaligned) => prop_assert_eq!(units, 0),
                        Err(RingError::TooLong) => prop_assert!(len > size / 2),
                        Err(error) => {
                            prop_assert_eq!(error, RingError::Full);
                            prop_assert!(outstanding + pad + len >= size);
                            prop_assert!(!ring.is_empty(), "an empty ring refuses for ever");
                            prop_assert!(len > ring.longest());
                        }
                    }
                }
                Op::Advance(units) => {
                    let freed = u64::from(units * unit) % (tail - head + u64::from(unit));
                    head += freed;
                    let reported = (head % u64::from(size)) as u32;
                    prop_assert_eq!(ring.advance(reported), Ok(freed as u32));
                }
                Op::Report(reported) => {
                    let before = ring;
                    let position = (head..=tail)
                        .step_by(unit as usize)
                        .find(|at| at % u64::from(size) == u64::from(reported));
                    match position {
                        Some(at) => {
                            prop_assert_eq!(ring.advance(reported), Ok((at - head) as u32));
                            head = at;
                        }
                        None => {
                            prop_assert_eq!(ring.advance(reported), Err(BogusHead { reported }));
                            prop_assert_eq!(ring, before);
                        }
                    }
                }
                Op::Reset => {
                    ring.reset();
                    (head, tail) = (0, 0);
                }
            }
            prop_assert_eq!(u64::from(ring.used()), tail - head);
            prop_assert_eq!(ring.is_empty(), tail == head);
            prop_assert_eq!(ring.space() + ring.used() + unit, size);
            prop_assert_eq!(u64::from(ring.head()), head % u64::from(size));
            prop_assert_eq!(u64::from(ring.tail()), tail % u64::from(size));
            prop_assert_eq!(ring.room_before_wrap(), size - ring.tail());
        }
    }
}

#[test]
fn bad_rings() {
    for (size, unit) in [(0, 8), (8, 8), (48, 8), (64, 0), (64, 3), (u32::MAX, 1)] {
        assert_eq!(RingSpace::new(size, unit), Err(RingError::Invalid));
    }
    let mut largest = RingSpace::new(1 << 31, 8).unwrap();
    assert_eq!(largest.reserve(u32::MAX), Err(RingError::Misaligned));
    assert_eq!(largest.reserve(!7), Err(RingError::TooLong));
    let slot = largest.reserve(1 << 30).unwrap();
    largest.commit(slot).unwrap();
    assert_eq!(largest.commit(slot), Err(RingError::Stale));
}
