// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::super::heap::OutOfMemory;
use super::super::priority::Offer;
use super::*;
use crate::std_heap::{until_enough, StdHeap};
use std::cell::{Cell, RefCell};
use std::vec;
use std::vec::Vec;

mod model;
mod traces;

#[derive(Clone, Debug)]
struct Object {
    number: u64,
    rank: Rank,
    bytes: u64,
    hold: Hold,
    is_resident: bool,
    can_be_elsewhere: bool,
    is_idle: bool,
    /// Refuses to leave, which nobody knows before.
    is_stuck: bool,
    /// What it costs if it leaves and is not clean.
    copied: u64,
    next_use: NextUse,
    /// How long ago work used it, if that was since it came to its place.
    used_since: Option<u64>,
    state: model::State,
}

/// An idle object of level normal that nothing holds, is clean, and was used just now.
fn object(number: u64, bytes: u64) -> Object {
    Object {
        number,
        rank: Rank::Kept(Level::Normal),
        bytes,
        hold: Hold::Nothing,
        is_resident: false,
        can_be_elsewhere: false,
        is_idle: true,
        is_stuck: false,
        copied: 0,
        next_use: NextUse::NotFor(0),
        used_since: None,
        state: model::State::default(),
    }
}

impl Object {
    fn facts(&self) -> Facts {
        Facts {
            bytes: self.bytes,
            copied: self.copied,
            hold: self.hold(),
            is_resident: self.is_resident,
            can_be_elsewhere: self.can_be_elsewhere,
        }
    }
}

/// A place whose lists are one, in the order of use.
#[derive(Default)]
struct Memory {
    objects: Vec<Object>,
    left: Vec<Object>,
    looks: Cell<usize>,
    /// Nobody leaves at once, though all are idle as it looks.
    is_held_up: bool,
    /// Once somebody has left, the others are needed.
    is_taken: bool,
    /// Of who asks for room; none is the lowest.
    level: Option<Level>,
    /// What has gone behind the others of its list, in order.
    renewed: RefCell<Vec<u64>>,
}

impl Memory {
    fn new(objects: &[Object]) -> Self {
        Self {
            objects: objects.to_vec(),
            ..Self::default()
        }
    }

    /// Who has left, in order.
    fn left(&self) -> Vec<u64> {
        self.left.iter().map(|object| object.number).collect()
    }

    /// One that is there, or has left.
    fn find(&self, number: &u64) -> &Object {
        let mut objects = self.objects.iter().chain(&self.left);
        objects
            .find(|object| object.number == *number)
            .expect("it is there")
    }
}

impl Place for Memory {
    type Object = u64;
    type Error = OutOfMemory;
    type Heap = StdHeap;
    type Walk = vec::IntoIter<u64>;

    fn walk(&self, rank: Rank) -> Self::Walk {
        let of_rank = self.objects.iter().filter(|object| object.rank == rank);
        let numbers: Vec<u64> = of_rank.map(|object| object.number).collect();
        numbers.into_iter()
    }

    fn walk_back(&self, rank: Rank, many: usize) -> Self::Walk {
        let numbers: Vec<u64> = self.walk(rank).rev().take(many).collect();
        numbers.into_iter()
    }

    fn used_since(&self, number: &u64) -> Option<u64> {
        self.find(number).used_since
    }

    fn renew(&self, number: &u64) {
        self.renewed.borrow_mut().push(*number);
    }

    fn level(&self) -> Level {
        self.level.unwrap_or(Level::Minimum)
    }

    fn next_use(&self, number: &u64) -> NextUse {
        self.find(number).next_use
    }

    fn facts(&self, number: &u64) -> Result<Facts, OutOfMemory> {
        self.looks.set(self.looks.get() + 1);
        let left = self.left.iter().find(|object| object.number == *number);
        Ok(match left {
            Some(object) => Facts {
                hold: Hold::Pinned,
                ..object.facts()
            },
            None => self.find(number).facts(),
        })
    }

    fn is_idle(&self, number: &u64) -> bool {
        self.find(number).is_idle
    }

    fn leave(
        &mut self,
        number: &u64,
        bytes: u64,
        may_wait: bool,
    ) -> Result<Option<u64>, OutOfMemory> {
        let object = self.find(number);
        assert!(may_wait || object.is_idle);
        assert_eq!(bytes, object.bytes);
        if object.is_stuck || (self.is_held_up && !may_wait) {
            return Ok(None);
        }
        let at = self
            .objects
            .iter()
            .position(|other| other.number == *number);
        self.left
            .push(self.objects.remove(at.expect("it is there")));
        let others = self.objects.iter_mut().filter(|_| self.is_taken);
        others.for_each(|object| object.hold = Hold::Turn { elsewhere: false });
        Ok(Some(bytes))
    }
}

/// Who leaves, in order.
fn left(objects: &[Object], need: Need, missing: u64) -> Vec<u64> {
    let mut memory = Memory::new(objects);
    make_room(&mut memory, need, missing).expect("no error");
    memory.left()
}

#[test]
fn the_order_is_group_resident_rank_use() {
    let mut objects: Vec<Object> = (0..12).map(|number| object(number, 1)).collect();
    objects[0].hold = Hold::Low;
    objects[0].rank = Rank::Kept(Level::Minimum);
    objects[1].is_resident = true;
    objects[1].rank = Rank::Kept(Level::Minimum);
    objects[2].is_resident = true;
    objects[3].rank = Rank::Kept(Level::Maximum);
    objects[5].is_idle = false;
    objects[6].rank = Rank::Kept(Level::Low);
    objects[6].is_idle = false;
    objects[7].hold = Hold::Min;
    objects[8].hold = Hold::Turn { elsewhere: true };
    objects[9].hold = Hold::Pinned;
    objects[10].rank = Rank::Offered(Offer::High);
    objects[11].rank = Rank::Offered(Offer::Low);
    let order = [11, 10, 6, 4, 5, 3, 1, 2, 0];
    for missing in 0..=9 {
        let first = &order[..missing as usize];
        assert_eq!(left(&objects, Need::Needs, missing), first, "{missing}");
    }
    for most in [0, 3, 16] {
        let mut next = Vec::new();
        let looked = each_next(&Memory::new(&objects), most, |rank, number| {
            assert_eq!(rank, objects[*number as usize].rank);
            next.push(*number);
            Ok(())
        });
        assert_eq!(looked, Ok(()));
        assert_eq!(next, order[..most.min(order.len())]);
    }
    // Who merely prefers it takes nothing that is held or resident.
    assert_eq!(left(&objects, Need::Prefers, 6), order[..6]);
    assert_eq!(left(&objects, Need::Own, 1), [8]);
}

#[test]
fn what_is_more_important_is_tried_harder_to_be_placed() {
    // Of each level one that is resident, and could be elsewhere.
    let mut objects: Vec<Object> = (0..)
        .zip(Level::ALL)
        .map(|(number, level)| Object {
            rank: Rank::Kept(level),
            is_resident: true,
            can_be_elsewhere: true,
            ..object(number, 1)
        })
        .collect();
    let left = |objects: &[Object], level, need, missing| {
        let mut memory = Memory::new(objects);
        memory.level = Some(level);
        make_room(&mut memory, need, missing).expect("no error");
        memory.left()
    };
    for (lower, level) in (0..).zip(Level::ALL) {
        let all: Vec<u64> = (0..lower).collect();
        assert_eq!(left(&objects, level, Need::Prefers, lower), all);
        assert_eq!(left(&objects, level, Need::Prefers, lower + 1), []);
        assert_eq!(left(&objects, level, Need::Needs, 5), [0, 1, 2, 3, 4]);
    }
    // What is not resident goes first, whatever its level.
    objects.push(Object {
        rank: Rank::Kept(Level::Maximum),
        ..object(9, 1)
    });
    assert_eq!(left(&objects, Level::High, Need::Prefers, 2), [9, 0]);
    // Not what is in use, or found to be, or is of use nowhere else.
    objects[0].is_idle = false;
    assert_eq!(left(&objects, Level::High, Need::Prefers, 2), [9, 1]);
    objects[1].can_be_elsewhere = false;
    assert_eq!(left(&objects, Level::High, Need::Prefers, 2), [9, 2]);
    assert_eq!(left(&objects, Level::High, Need::Prefers, 3), []);
    let mut memory = Memory::new(&objects);
    (memory.level, memory.is_held_up) = (Some(Level::Maximum), true);
    assert_eq!(leave(&mut memory, Need::Prefers, u64::MAX), Ok(()));
    assert_eq!(memory.left(), [9]);
}

#[test]
fn nobody_leaves_in_vain() {
    let mut objects = vec![object(0, 4), object(1, 4), object(2, 4), object(3, 4)];
    objects[1].hold = Hold::Pinned;
    objects[2].is_resident = true;
    objects[3].bytes = 0;
    assert_eq!(left(&objects, Need::Prefers, 5), []);
    assert_eq!(left(&objects, Need::Prefers, 4), [0]);
    assert_eq!(left(&objects, Need::Needs, 9), []);
    assert_eq!(left(&objects, Need::Needs, 8), [0, 2]);
    // Unless that is asked for.
    let mut memory = Memory::new(&objects);
    assert_eq!(leave(&mut memory, Need::Needs, u64::MAX), Ok(()));
    assert_eq!(memory.left(), [0, 2]);
}

#[test]
fn who_does_not_leave_is_replaced_by_the_next() {
    let mut objects: Vec<Object> = (0..4).map(|number| object(number, 2)).collect();
    objects[0].is_stuck = true;
    objects[2].is_stuck = true;
    assert_eq!(left(&objects, Need::Prefers, 4), [1, 3]);
}

#[test]
fn what_fits_goes_rather_than_what_is_much_too_large() {
    let sizes = |sizes: &[u64]| -> Vec<Object> {
        (0..)
            .zip(sizes)
            .map(|(number, bytes)| object(number, *bytes))
            .collect()
    };
    // Twice as much is no waste, nor is what is needed in any case.
    assert_eq!(left(&sizes(&[8, 4]), Need::Prefers, 4), [0]);
    assert_eq!(left(&sizes(&[3, 64, 5]), Need::Prefers, 8), [0, 2]);
    assert_eq!(left(&sizes(&[64, 3, 5]), Need::Prefers, 4), [2]);
    // Else what is the smallest that is enough, of the first few.
    assert_eq!(left(&sizes(&[64, 32, 16, 3]), Need::Prefers, 4), [2]);
    assert_eq!(
        left(&sizes(&[64, 64, 64, 64, 64, 64, 64, 4]), Need::Prefers, 4),
        [7]
    );
    assert_eq!(
        left(
            &sizes(&[64, 64, 64, 64, 64, 64, 64, 64, 4]),
            Need::Prefers,
            4
        ),
        [0]
    );
    // Not for that one of a later pass.
    let mut objects = sizes(&[64, 4, 4, 4]);
    objects[1].rank = Rank::Kept(Level::High);
    objects[2].is_resident = true;
    objects[3].is_idle = false;
    assert_eq!(left(&objects, Need::Needs, 4), [0]);
    // And those that are passed over go in their turn.
    objects[1].rank = Rank::Kept(Level::Normal);
    objects[1].is_stuck = true;
    assert_eq!(left(&objects, Need::Needs, 4), [0]);
}

#[test]
fn what_is_expected_later_goes_before_what_is_expected() {
    let expected = |uses: &[Option<u64>]| -> Vec<Object> {
        let objects = (0..).zip(uses).map(|(number, expected)| Object {
            next_use: expected.map_or(NextUse::NotFor(1), NextUse::In),
            ..object(number, 4)
        });
        objects.collect()
    };
    // Nobody knows of the first, or it is not expected any more.
    let objects = expected(&[None, Some(1), Some(9)]);
    assert_eq!(left(&objects, Need::Prefers, 4), [0]);
    // Each in its turn, and that of the last is the furthest away.
    let objects = expected(&[Some(3), Some(5), Some(7)]);
    assert_eq!(left(&objects, Need::Prefers, 12), [2, 1, 0]);
    // Of the last few what is so last; those of which nothing is known stay.
    let objects = expected(&[Some(3), Some(8), Some(4), None]);
    assert_eq!(left(&objects, Need::Prefers, 4), [1]);
    let mut many = vec![Some(9); 9];
    (many[0], many[8]) = (Some(3), Some(2));
    assert_eq!(left(&expected(&many), Need::Prefers, 4), [7]);
    many[1..].fill(Some(2));
    assert_eq!(left(&expected(&many), Need::Prefers, 4), [0]);
    let mut far = vec![Some(3); 10];
    far[1] = Some(9);
    assert_eq!(left(&expected(&far), Need::Prefers, 4), [0]);
    // None of a later pass, nor what is much too large, nor who does not leave.
    let mut objects = expected(&[
        Some(3),
        Some(4),
        Some(5),
        Some(6),
        Some(7),
        Some(5),
        Some(9),
    ]);
    objects[2].is_idle = false;
    objects[3].is_resident = true;
    objects[4].hold = Hold::Pinned;
    objects[5].bytes = 10;
    objects[6].rank = Rank::Kept(Level::High);
    assert_eq!(left(&objects, Need::Needs, 4), [1]);
    objects[1].is_stuck = true;
    assert_eq!(left(&objects, Need::Needs, 4), [0]);
}

/// An object of 4 bytes that was written, or is clean.
fn of_use(number: u64, was_written: bool, next_use: NextUse) -> Object {
    Object {
        copied: if was_written { 4 } else { 0 },
        next_use,
        ..object(number, 4)
    }
}

#[test]
fn what_is_clean_goes_rather_than_what_was_written() {
    use NextUse::{In, NotFor};
    let first = |written, clean| {
        let objects = [of_use(0, true, written), of_use(1, false, clean)];
        left(&objects, Need::Prefers, 4)
    };
    // Unless it was used much later, or is expected much sooner.
    assert_eq!(first(NotFor(9), NotFor(7)), [1]);
    assert_eq!(first(NotFor(9), NotFor(6)), [0]);
    assert_eq!(first(In(9), In(5)), [1]);
    assert_eq!(first(In(9), In(4)), [0]);
    // What is expected is not compared with what is not.
    assert_eq!(first(NotFor(1), In(99)), [0]);
    assert_eq!(first(In(1), NotFor(99)), [0]);
    // Of those that were used last, too: 8 copied once, or 9 twice.
    let mut objects: Vec<Object> = (0..20).map(|number| of_use(number, true, In(2))).collect();
    objects[18] = of_use(18, false, In(8));
    objects[19] = of_use(19, true, In(9));
    assert_eq!(left(&objects, Need::Prefers, 4), [18]);
    objects[18].next_use = In(4);
    assert_eq!(left(&objects, Need::Prefers, 4), [19]);
}

#[test]
fn what_is_clean_is_near_and_of_the_same_pass() {
    let written = |number| of_use(number, true, NextUse::NotFor(1));
    let mut objects: Vec<Object> = (0..12).map(written).collect();
    for clean in &mut objects[6..9] {
        clean.copied = 0;
    }
    // One that is near, or comes near, and then all in their turn.
    let order = [6, 7, 8, 0, 1, 2, 3, 4, 5, 9, 10, 11];
    assert_eq!(left(&objects, Need::Prefers, 48), order);
    // Not the ninth.
    (objects[6].copied, objects[7].copied) = (4, 4);
    assert_eq!(left(&objects, Need::Prefers, 4), [0]);
    // None of a later pass.
    let mut objects = [written(0), object(1, 4), object(2, 4), object(3, 4)];
    objects[1].rank = Rank::Kept(Level::High);
    objects[2].is_resident = true;
    objects[3].is_idle = false;
    assert_eq!(left(&objects, Need::Needs, 4), [0]);
}

#[test]
fn what_is_clean_makes_as_much_room() {
    let sizes = |written: u64, clean: u64| {
        let mut objects = [object(0, written), object(1, clean), object(2, 64)];
        objects[0].copied = written;
        objects
    };
    assert_eq!(left(&sizes(8, 4), Need::Prefers, 4), [1]);
    assert_eq!(left(&sizes(8, 4), Need::Prefers, 5), [0]);
    assert_eq!(left(&sizes(4, 4), Need::Prefers, 8), [1, 0]);
    // Twice as much is of use; three times as much is no better than to copy what fits.
    assert_eq!(left(&sizes(4, 8), Need::Prefers, 4), [1]);
    assert_eq!(left(&sizes(4, 12), Need::Prefers, 4), [0]);
}

#[test]
fn who_left_before_its_turn_is_not_compared() {
    // The second leaves first, as it is expected last; then the others by age, since the third is
    // not too large for what is still missing, which the second would have been.
    let mut objects = [object(0, 5), object(1, 31), object(2, 9), object(3, 12)];
    objects[0].next_use = NextUse::In(2);
    objects[1].next_use = NextUse::In(8);
    assert_eq!(left(&objects, Need::Needs, 47), [1, 0, 2, 3]);
}

#[test]
fn what_is_used_in_turn_is_expected() {
    use NextUse::{In, NotFor};
    let made = Uses::new(7);
    assert_eq!(made.reuse_distance(9), None);
    assert_eq!(made.next_use(9, Some(99)), NotFor(2));
    let once = made.again((1 << 40) - 1);
    assert_eq!(once.reuse_distance(4), Some(5));
    // As long as what comes back now was away.
    let expected = |uses: Uses, now: u64, distance: u64| uses.next_use(now, Some(distance));
    assert_eq!(
        (expected(once, 4, 7), expected(once, 4, 5)),
        (In(2), NotFor(5))
    );
    // As long as it was before.
    let twice = once.again(9);
    assert_eq!(
        (expected(twice, 9, 1), expected(twice, 18, 99)),
        (In(10), In(1))
    );
    assert_eq!(expected(twice, 19, 99), NotFor(10));
    assert_eq!(expected(twice.again(12), 12, 99), In(3));
    // Not for what is new.
    assert_eq!(twice.next_use(12, None), NotFor(3));
    for uses in [made, once, twice] {
        assert_eq!(Uses::from_word(uses.word()), uses);
    }
}

#[test]
fn what_work_has_used_since_leaves_in_the_order_of_that() {
    let mut objects: Vec<Object> = (0..6).map(|number| object(number, 1)).collect();
    objects[0].used_since = Some(0);
    objects[1].used_since = Some(7);
    objects[3].used_since = Some(5);
    let mut memory = Memory::new(&objects);
    assert_eq!(make_room(&mut memory, Need::Needs, 4), Ok(true));
    assert_eq!(memory.left(), [2, 4, 5, 1]);
    assert_eq!(*memory.renewed.borrow(), [3, 0]);
    // Nobody who is in use, nor in another list, goes before it for that.
    objects[2].is_idle = false;
    objects[5].rank = Rank::Kept(Level::High);
    assert_eq!(left(&objects, Need::Needs, 6), [4, 1, 3, 0, 2, 5]);
    // Of those in use the same.
    objects[1].is_idle = false;
    objects[3].is_idle = false;
    assert_eq!(left(&objects, Need::Needs, 6), [4, 0, 2, 1, 3, 5]);
}

#[test]
fn not_all_are_looked_at_that_work_has_used_since() {
    let mut objects: Vec<Object> = (0..9000).map(|number| object(number, 1)).collect();
    for object in &mut objects {
        object.used_since = Some(object.number % 1000);
    }
    // What is resident does not count, and is not the next to leave.
    objects[..1500]
        .iter_mut()
        .for_each(|object| object.is_resident = true);
    objects[8999].used_since = None;
    let mut memory = Memory::new(&objects);
    assert_eq!(make_room(&mut memory, Need::Prefers, 2), Ok(true));
    assert_eq!(memory.left(), [1999, 1998]);
    assert!(memory.looks.get() < 3000, "{:?}", memory.looks);
    // Those that were met are behind the others then, and it is found.
    let renewed = memory.renewed.take();
    memory
        .objects
        .retain(|object| !renewed.contains(&object.number));
    assert!(memory.objects.len() < 9000 - 1000);
    // If they are needed, all leave.
    let mut memory = Memory::new(&objects);
    assert_eq!(make_room(&mut memory, Need::Needs, 9000), Ok(true));
    assert_eq!((memory.left().len(), memory.left()[7499]), (9000, 8000));
    assert_eq!(memory.left()[7500], 999);
}

#[test]
fn uses_are_before_others() {
    let last = (1 << 40) - 1;
    let made = Uses::new(last);
    let (first, second) = (made.again(last), made.again(3));
    assert!(first.is_now(last) && !first.is_now(0) && !made.is_now(last));
    assert!(first.is_before(second) && !second.is_before(first) && made.is_before(second));
    // For very long.
    let much_later = first.again(1 << 38);
    assert!(first.is_before(much_later) && !much_later.is_before(first));
    assert_eq!(Uses::from_word(much_later.word()), much_later);
    assert!(!first.is_before(first));
    // As what uses it, also at the same time; but not as what was only made.
    assert_eq!([first.with(second), second.with(first)], [second; 2]);
    assert_ne!(first.again(3), second);
    assert_eq!(second.with(first.again(3)), first.again(3));
    assert_eq!(first.with(Uses::new(3)), first);
    // It is expected as long after that as it was before.
    let in_turn = second.again(10).until(first.again(20));
    assert_eq!(in_turn.next_use(20, Some(99)), NextUse::In(7));
    // Until it was used once, whatever uses it then.
    assert_eq!(made.until(second).next_use(4, Some(99)), NextUse::NotFor(1));
}

#[test]
fn who_is_in_use_after_all_leaves_with_those() {
    let mut objects: Vec<Object> = (0..4).map(|number| object(number, 2)).collect();
    objects[1].is_idle = false;
    objects[3].rank = Rank::Kept(Level::High);
    let mut memory = Memory::new(&objects);
    memory.is_held_up = true;
    assert_eq!(make_room(&mut memory, Need::Needs, 8), Ok(true));
    assert_eq!(memory.left(), [0, 1, 2, 3]);
}

#[test]
fn who_may_not_leave_any_more_stays() {
    let mut memory = Memory::new(&[object(0, 4), object(1, 4), object(2, 4)]);
    memory.is_taken = true;
    assert_eq!(make_room(&mut memory, Need::Needs, 12), Ok(true));
    assert_eq!(memory.left(), [0]);
}

#[test]
fn few_are_looked_at() {
    let objects: Vec<Object> = (0..1000).map(|number| object(number, 4)).collect();
    let mut memory = Memory::new(&objects);
    assert_eq!(make_room(&mut memory, Need::Prefers, 8), Ok(true));
    // Once for whether it is enough, and once to leave.
    assert_eq!((memory.left(), memory.looks.get()), (vec![0, 1], 4));
    // Of those that were written eight for each that leaves, and once more each that is found.
    let written = |number| of_use(number, true, NextUse::NotFor(1));
    let mut memory = Memory::new(&(0..1000).map(written).collect::<Vec<_>>());
    assert_eq!(make_room(&mut memory, Need::Prefers, 8), Ok(true));
    assert_eq!((memory.left(), memory.looks.get()), (vec![0, 1], 2 * 8 + 9));
    // Of a later pass the first.
    let mut objects: Vec<Object> = (0..1000).map(written).collect();
    for object in &mut objects[1..] {
        object.rank = Rank::Kept(Level::High);
    }
    let mut memory = Memory::new(&objects);
    assert_eq!(make_room(&mut memory, Need::Prefers, 4), Ok(true));
    assert_eq!((memory.left(), memory.looks.get()), (vec![0], 2 + 2));
}

#[test]
fn those_that_stay_are_looked_at_once() {
    let mut objects: Vec<Object> = (0..1000).map(|number| object(number, 4)).collect();
    for (number, object) in (0..).zip(&mut objects) {
        object.rank = Rank::ALL[number % Rank::ALL.len()];
        object.hold = match number % 100 {
            0 => Hold::Low,
            50 => Hold::Nothing,
            _ => Hold::Pinned,
        };
        object.is_resident = number % 200 >= 100;
        object.is_idle = number % 400 >= 200;
    }
    let mut memory = Memory::new(&objects);
    assert_eq!(leave(&mut memory, Need::Needs, u64::MAX), Ok(()));
    assert_eq!((memory.left.len(), memory.looks.get()), (20, 1000 + 20));
}

#[test]
fn nobody_leaves_where_there_is_no_memory_to_choose() {
    let mut objects: Vec<Object> = (0..20).map(|number| object(number, 4)).collect();
    for object in &mut objects[..10] {
        object.is_resident = true;
    }
    let left = until_enough(|| {
        let mut memory = Memory::new(&objects);
        make_room(&mut memory, Need::Needs, 60).inspect_err(|_| assert_eq!(memory.left(), []))?;
        Ok::<_, OutOfMemory>(memory.left())
    });
    assert_eq!(left, (10..20).chain(0..5).collect::<Vec<u64>>());
}

#[test]
fn each_is_held_by_the_first_reason() {
    let mut objects: Vec<Object> = (0..7).map(|number| object(number, 1 << number)).collect();
    objects[0].hold = Hold::Pinned;
    objects[0].is_resident = true;
    objects[1].hold = Hold::Turn { elsewhere: false };
    objects[2].hold = Hold::Min;
    objects[3].hold = Hold::Low;
    objects[3].is_idle = false;
    objects[4].is_resident = true;
    objects[4].is_idle = false;
    objects[5].is_idle = false;
    let expected = Holders([1, 2, 4 + 8, 16, 32, 64]);
    assert_eq!(Holders::of(&Memory::new(&objects)), Ok(expected));
    let words = objects
        .iter()
        .map(|object| Holders::word(&object.facts(), object.is_idle));
    let words: Vec<&str> = words.collect();
    assert_eq!(
        words,
        ["pinned", "turn", "group", "group", "resident", "busy", "idle"]
    );
}
