// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory manager, and random steps of its clients. The model is a list of all objects in which
//! who is to leave is looked up afresh each time; memory is the tree's own allocator's.

use super::super::super::buddy::{Buddy, PageCount, PageRange, Scattered};
use super::super::super::heap::FallibleVec;
use super::super::super::relocation::{self, way, Way};
use super::*;
use crate::std_heap::StdVec;
use proptest::prelude::*;

const PAGES: u64 = 64;
const VRAM: relocation::Place = relocation::Place::Vram;
const SYSTEM: relocation::Place = relocation::Place::System;

impl Object {
    /// Of a move of it.
    fn moving(&self, from: relocation::Place, to: relocation::Place) -> relocation::Facts {
        relocation::Facts {
            from,
            to,
            has_copy: false,
            same_pages: false,
            is_stale: false,
            is_settled: true,
            is_offered: false,
            // Nothing here is locked in VRAM through an aperture.
            is_held_out: self.is_locked && from != relocation::Place::Vram,
            is_arriving: false,
        }
    }
}

impl Memory {
    /// Changes one, if there is any.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Object)) {
        if let Some(at) = number.checked_rem(self.objects.len()) {
            change(&mut self.objects[at]);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Makes an object of so many pages, or brings it in, of this level.
    Room(u64, Need, Level),
    /// Uses an object.
    Use(usize),
    /// The object is destroyed: it leaves its place, and nobody expects it.
    Destroy(usize),
    /// Changes what is known of it.
    Set(usize, Hold),
    /// Resident or not, and whether it can be elsewhere.
    Resident(usize, bool, bool),
    Idle(usize, bool),
    Rank(usize, Rank),
    Lock(usize, bool),
    Expect(usize, Option<u32>),
    /// A client's work needs all that it has, and has ended before the next.
    Submit(u64),
}

/// So many clients have the objects, in turn.
const CLIENTS: u64 = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    let need = prop::sample::select(vec![Need::Prefers, Need::Needs, Need::Own]);
    let hold = prop::sample::select(vec![
        Hold::Nothing,
        Hold::Nothing,
        Hold::Low,
        Hold::Min,
        Hold::Turn { elsewhere: false },
        Hold::Turn { elsewhere: true },
        Hold::Pinned,
    ]);
    let rank = prop::sample::select(Rank::ALL.to_vec());
    let level = prop::sample::select(Level::ALL.to_vec());
    let step = prop_oneof![
        6 => (1..PAGES / 2, need, level)
            .prop_map(|(pages, need, level)| Step::Room(pages, need, level)),
        2 => number().prop_map(Step::Use),
        1 => number().prop_map(Step::Destroy),
        2 => (number(), hold).prop_map(|(number, hold)| Step::Set(number, hold)),
        2 => (number(), any::<bool>(), any::<bool>())
            .prop_map(|(number, is, elsewhere)| Step::Resident(number, is, elsewhere)),
        2 => (number(), any::<bool>()).prop_map(|(number, is)| Step::Idle(number, is)),
        2 => (number(), rank).prop_map(|(number, rank)| Step::Rank(number, rank)),
        1 => (number(), any::<bool>()).prop_map(|(number, is)| Step::Lock(number, is)),
        4 => (number(), prop::option::of(0u32..9))
            .prop_map(|(number, uses)| Step::Expect(number, uses)),
        3 => (0..CLIENTS).prop_map(Step::Submit),
    ];
    prop::collection::vec(step, 1..120)
}

/// Whether an object may leave, as the documentation has it, for one of `level`.
fn may_leave(object: &Object, need: Need, level: Level) -> bool {
    let gives_way = object.is_idle && object.can_be_elsewhere && object.rank < Rank::Kept(level);
    match object.hold {
        Hold::Pinned | Hold::Min => false,
        Hold::Turn { elsewhere } => need == Need::Own && elsewhere,
        Hold::Low => need == Need::Needs,
        Hold::Nothing if need == Need::Prefers => !object.is_resident || gives_way,
        Hold::Nothing => need == Need::Needs,
    }
}

/// How late an object leaves: before all for which this is more.
fn rank(object: &Object) -> (bool, bool, Rank, bool) {
    let is_low = object.hold == Hold::Low;
    (is_low, object.is_resident, object.rank, !object.is_idle)
}

/// VRAM, what is in it, and what has left it.
struct Vram {
    pages: Buddy<StdHeap>,
    memory: Memory,
    out: Vec<Object>,
}

impl Vram {
    /// Blocks of so many pages, if there are.
    fn alloc(&mut self, pages: u64) -> Option<Vec<PageRange>> {
        let request = Scattered {
            pages: PageCount(pages),
            granule: PageCount(1),
            within: PageRange::new(0, PAGES),
        };
        let (mut blocks, mut dirty) = (StdVec::new(), StdVec::new());
        let found = self.pages.alloc_scattered(request, &mut blocks, &mut dirty);
        found.ok()?;
        Some(blocks.as_slice().to_vec())
    }

    fn free(&mut self, object: &Object) {
        for block in &object.blocks {
            self.pages.free(*block).expect("it was handed out");
        }
    }

    /// One of all objects, if there is any.
    fn find(&mut self, number: usize) -> Option<&mut Object> {
        let at = number.checked_rem(self.memory.objects.len() + self.out.len())?;
        self.memory.objects.iter_mut().chain(&mut self.out).nth(at)
    }

    /// Brings back all that `client` has and that is out, behind what others have to leave; or
    /// nothing, and nobody leaves.
    fn submit(&mut self, client: u64) -> Result<(), TestCaseError> {
        let is_its = |object: &Object| object.number % CLIENTS == client;
        let needed = self.out.iter().filter(|object| is_its(object));
        let bytes: u64 = needed.clone().map(|object| object.bytes).sum();
        let comes = |object: &Object| way(&object.moving(SYSTEM, VRAM)).is_some();
        if !needed.clone().all(comes) {
            // Row 0.21: not what is locked where it is out.
            prop_assert!(needed.clone().any(|object| object.is_locked));
            return Ok(());
        }
        prop_assert!(needed.clone().all(|object| !object.is_locked));
        let kept = self.memory.objects.clone();
        let own = self.memory.objects.iter_mut();
        for object in own.filter(|object| is_its(object)) {
            object.hold = Hold::Turn { elsewhere: false };
        }
        let before = self.memory.objects.clone();
        let others = before.iter().filter(|object| !is_its(object));
        let room: u64 = others
            .filter(|object| may_leave(object, Need::Needs, Level::Minimum))
            .map(|object| object.bytes)
            .sum();
        let fits = room + self.pages.free_pages().0 >= bytes;
        let missing = bytes.saturating_sub(self.pages.free_pages().0);
        let made = make_room(&mut self.memory, Need::Needs, missing);
        prop_assert_eq!(made, Ok(fits), "{} bytes", bytes);
        self.check_left(&before, Need::Needs, missing)?;
        for object in &mut self.memory.objects {
            let was = kept.iter().find(|was| was.number == object.number);
            object.hold = was.expect("it was there").hold;
        }
        if fits {
            let out = core::mem::take(&mut self.out);
            let (back, out): (Vec<_>, _) = out.into_iter().partition(is_its);
            self.out = out;
            for object in back {
                let blocks = self.alloc(object.bytes);
                let blocks = blocks.expect("room was made");
                self.memory.objects.push(Object { blocks, ..object });
            }
        }
        // All of it is there, or all is as it was.
        let own = |objects: &[Object]| objects.iter().filter(|object| is_its(object)).count();
        let stays = kept.iter().filter(|object| is_its(object)).count();
        prop_assert!(own(&self.memory.objects) >= stays, "it has lost its own");
        prop_assert!(!fits || own(&self.out) == 0, "some of it is still out");
        Ok(())
    }

    /// What has left is free, and out; checks who did, of those who were there `before`.
    fn check_left(
        &mut self,
        before: &[Object],
        need: Need,
        missing: u64,
    ) -> Result<(), TestCaseError> {
        let left = core::mem::take(&mut self.memory.left);
        left.iter().for_each(|object| self.free(object));
        // Whether or not it is locked: under its address the CPU finds it elsewhere.
        let goes = |object: &Object| way(&object.moving(VRAM, SYSTEM)) == Some(Way::Copied);
        prop_assert!(left.iter().all(goes), "{left:?}");
        let gone = left.iter().map(|object| Object {
            blocks: Vec::new(),
            hold: Hold::Nothing,
            ..object.clone()
        });
        self.out.extend(gone);
        let may_leave = |object: &Object| may_leave(object, need, self.memory.level());
        let may = || before.iter().filter(|object| may_leave(object));
        let supply: u64 = may().map(|object| object.bytes).sum();
        let bytes = |objects: &[Object]| objects.iter().map(|object| object.bytes).sum::<u64>();
        if supply < missing {
            prop_assert!(left.is_empty(), "{left:?} left in vain");
            return Ok(());
        }
        prop_assert!(bytes(&left) >= missing, "{left:?}, not {missing} bytes");
        prop_assert!(left.iter().all(may_leave), "{left:?}");
        // In order of rank, and none of a later rank as long as there was one of an earlier.
        prop_assert!(left.is_sorted_by_key(rank), "{left:?}");
        let last = left.last().map(rank);
        let stay = |object: &&Object| left.iter().all(|other| other.number != object.number);
        for object in may().filter(stay) {
            prop_assert!(Some(rank(object)) >= last, "{object:?} stayed, {left:?}");
        }
        // None that was not needed but the last, and of a rank what was used longest ago; unless
        // that is much too large.
        let mut needed = missing;
        for (n, object) in left.iter().enumerate() {
            prop_assert!(needed > 0, "{object:?} left without need");
            let gone = &left[..n];
            let there = may().filter(|other| gone.iter().all(|gone| gone.number != other.number));
            let peers = there.filter(|other| rank(other) == rank(object));
            let first = peers.clone().next().expect("itself");
            // Who would leave if nobody was expected.
            let fits = |other: &&Object| other.bytes / 2 <= needed;
            let near = || peers.clone().take(8).filter(|other| other.bytes >= needed);
            let by_age = match fits(&first) {
                true => first,
                false => near()
                    .find(fits)
                    .or_else(|| near().min_by_key(|other| other.bytes))
                    .unwrap_or(first),
            };
            // Who of those that were used last is expected so last; of those, who was used last.
            let list = before.iter().rev().filter(|other| {
                other.rank == object.rank && gone.iter().all(|gone| gone.number != other.number)
            });
            let last = list
                .take(8)
                .filter(|other| rank(other) == rank(object) && may_leave(other) && fits(other));
            let later = last.fold(by_age, |latest, other| {
                match by_age.expected.is_some() && other.expected > latest.expected {
                    true => other,
                    false => latest,
                }
            });
            prop_assert_eq!(object.number, later.number, "{:?}, {:?}", object, left);
            needed = needed.saturating_sub(object.bytes);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(crate::cases(4))]

    #[test]
    fn it_does_as_the_model(steps in steps()) {
        let pages = Buddy::new(PageCount(PAGES)).expect("an allocator");
        let mut vram = Vram { pages, memory: Memory::default(), out: Vec::new() };
        let mut next = 0;
        for step in steps {
            let count = vram.memory.objects.len();
            let memory = &mut vram.memory;
            match step {
                Step::Use(number) if count > 0 => {
                    let object = memory.objects.remove(number % count);
                    memory.objects.push(object);
                }
                Step::Destroy(number) if number % 3 == 0 && !vram.out.is_empty() => {
                    let at = number % vram.out.len();
                    vram.out.remove(at);
                }
                Step::Destroy(number) if count > 0 => {
                    let object = memory.objects.remove(number % count);
                    vram.free(&object);
                }
                Step::Use(_) | Step::Destroy(_) => (),
                Step::Set(number, hold) => memory.change(number, |object| object.hold = hold),
                Step::Resident(number, is, elsewhere) => memory.change(number, |object| {
                    (object.is_resident, object.can_be_elsewhere) = (is, elsewhere);
                }),
                Step::Idle(number, is) => memory.change(number, |object| object.is_idle = is),
                Step::Rank(number, rank) => memory.change(number, |object| object.rank = rank),
                Step::Lock(number, is) => {
                    if let Some(object) = vram.find(number) {
                        object.is_locked = is;
                    }
                }
                Step::Expect(number, uses) => memory.change(number, |object| object.expected = uses),
                Step::Submit(client) => vram.submit(client)?,
                Step::Room(pages, need, level) => {
                    memory.level = Some(level);
                    let before = vram.memory.objects.clone();
                    let missing = pages.saturating_sub(vram.pages.free_pages().0);
                    let made = make_room(&mut vram.memory, need, missing);
                    vram.check_left(&before, need, missing)?;
                    // It is there if, and only if, it could be made.
                    let blocks = vram.alloc(pages);
                    prop_assert_eq!(Ok(blocks.is_some()), made);
                    let Some(blocks) = blocks else { continue };
                    vram.memory.objects.push(Object { blocks, ..object(next, pages) });
                    next += 1;
                }
            }
            let used: u64 = vram.memory.objects.iter().map(|object| object.bytes).sum();
            prop_assert_eq!(vram.pages.free_pages().0, PAGES - used);
            let holders = Holders::of(&vram.memory).expect("no error");
            prop_assert_eq!(holders.sums().iter().sum::<u64>(), used);
            let all = vram.memory.objects.iter().chain(&vram.out);
            let mut numbers: Vec<u64> = all.map(|object| object.number).collect();
            numbers.sort_unstable();
            prop_assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        }
    }
}
