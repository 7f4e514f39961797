// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The aperture segment as a place, and who has to leave it, as the documentation has it.

use super::super::super::super::{
    aperture_segment::{Contiguous, Plan, Room},
    buddy::PageRange,
    heap::OutOfMemory,
    priority::{Level, Rank},
    segment_sets::Segment,
};
use super::super::{Facts, Hold, NextUse, Object, Place};
use super::choice::check_choice;
use super::Checked;
use crate::std_heap::StdHeap;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Pages of the window.
pub(super) const SEGMENT: u64 = 48;
/// Those of them that are the miniport's.
pub(super) const OWN: u64 = 3;

/// For how long something was not used; what would be expected in VRAM is not here.
fn age(next_use: NextUse) -> u64 {
    match next_use {
        NextUse::In(uses) | NextUse::NotFor(uses) => uses,
    }
}

/// What is in the aperture segment, in the order of use.
pub(super) struct Aperture {
    pub(super) objects: Vec<Object>,
    room: Room<StdHeap>,
    /// Who would leave, in order.
    planned: Vec<u64>,
    left: Vec<Object>,
}

/// Who has left the aperture, and why.
pub(super) struct Left {
    /// Who was there.
    before: Vec<Object>,
    planned: Vec<u64>,
    pub(super) left: Vec<Object>,
}

impl Aperture {
    pub(super) fn new() -> Self {
        Self {
            objects: Vec::new(),
            room: Room::new(None),
            planned: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Nobody has left yet for what is planned.
    pub(super) fn begin(&mut self, plan: Plan<StdHeap>) {
        self.room = Room::new(Some(plan));
    }

    pub(super) fn end(&mut self, before: Vec<Object>) -> Left {
        self.room = Room::new(None);
        Left {
            before,
            planned: core::mem::take(&mut self.planned),
            left: core::mem::take(&mut self.left),
        }
    }

    fn find(&self, number: &u64) -> &Object {
        let mut objects = self.objects.iter().chain(&self.left);
        objects
            .find(|object| object.number == *number)
            .expect("it is there")
    }
}

impl Object {
    /// Which pages of the window show it.
    fn range(&self) -> PageRange {
        self.state.site.window.expect("it is there")
    }

    /// Its priority; of what is offered that which it has when it is reclaimed.
    pub(super) fn level(&self) -> Level {
        match self.rank {
            Rank::Kept(level) => level,
            Rank::Offered(_) => Level::Normal,
        }
    }

    /// Whether it is of use to be somewhere else.
    fn may_move(&self) -> bool {
        self.may_be_in(Segment::Vram) || self.may_be_in(Segment::System)
    }

    /// What is locked here, and may not be reached outside, could not come back for work.
    fn is_held_here(&self) -> bool {
        self.state.is_locked && self.needs_vram()
    }

    pub(super) fn may_leave_aperture(&self) -> bool {
        let is_free = matches!(self.hold(), Hold::Nothing | Hold::Low);
        is_free && self.may_move() && !self.is_held_here()
    }
}

impl Place for Aperture {
    type Object = u64;
    type Error = OutOfMemory;
    type Heap = StdHeap;
    type Walk = vec::IntoIter<u64>;

    fn walk(&self, rank: Rank) -> Self::Walk {
        let is_theirs = |object: &&Object| Rank::Kept(object.level()) == rank && object.may_move();
        let objects = self.objects.iter().filter(is_theirs);
        let numbers: Vec<u64> = objects.map(|object| object.number).collect();
        numbers.into_iter()
    }

    fn walk_back(&self, _: Rank, _: usize) -> Self::Walk {
        Vec::new().into_iter()
    }

    fn used(&self) -> u64 {
        let objects = self.objects.iter();
        objects.map(|object| object.range().pages.0).sum()
    }

    fn next_use(&self, number: &u64) -> NextUse {
        let next_use = self.find(number).next_use;
        NextUse::NotFor(age(next_use))
    }

    fn facts(&self, number: &u64) -> Result<Facts, OutOfMemory> {
        let object = self.find(number);
        let has_left = self.left.iter().any(|left| left.number == *number);
        Ok(Facts {
            bytes: self.room.pages_of(object.range()),
            copied: 0,
            hold: match has_left || object.is_held_here() {
                true => Hold::Pinned,
                false => object.hold(),
            },
            ..object.facts()
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
        let range = self.find(number).range();
        if let Some(less) = self.room.would_leave(Some(range)) {
            self.planned.push(*number);
            return Ok(Some(less));
        }
        assert!(may_wait || self.is_idle(number));
        let at = self.objects.iter().position(|it| it.number == *number);
        self.left
            .push(self.objects.remove(at.expect("it is there")));
        Ok(Some(bytes))
    }
}

impl Contiguous for Aperture {
    fn room(&mut self) -> &mut Room<StdHeap> {
        &mut self.room
    }
}

fn ends(range: PageRange) -> (u64, u64) {
    (range.start.0, range.start.0 + range.pages.0)
}

/// Whether all of these `pages` of the window are free when some leave of those that are there.
fn is_free(objects: &[Object], (from, to): (u64, u64), leaves: impl Fn(&Object) -> bool) -> bool {
    objects.iter().all(|object| {
        let (start, end) = ends(object.range());
        leaves(object) || end <= from || to <= start
    })
}

/// All pieces of `pages` pages that the segment has.
fn pieces(pages: u64) -> impl Iterator<Item = (u64, u64)> {
    (OWN..SEGMENT)
        .map(move |start| (start, start + pages))
        .filter(|(_, end)| *end <= SEGMENT)
}

/// Whether there is a piece of so many pages when some leave of those that are there.
pub(super) fn has_piece(objects: &[Object], pages: u64, leaves: impl Fn(&Object) -> bool) -> bool {
    pieces(pages).any(|piece| is_free(objects, piece, &leaves))
}

impl Left {
    /// Checks who was told to leave for a piece of `pages` pages; whether there is one is `made`.
    pub(super) fn check(&self, pages: u64, made: bool) -> Checked {
        // By its level, and nobody is expected: nothing is copied when they come back.
        let before = self.before.iter().map(|object| Object {
            rank: Rank::Kept(object.level()),
            copied: 0,
            next_use: NextUse::NotFor(age(object.next_use)),
            ..object.clone()
        });
        let before: Vec<Object> = before.collect();
        let has_piece = |leaves: &dyn Fn(&Object) -> bool| has_piece(&before, pages, leaves);
        prop_assert_eq!(made, has_piece(&Object::may_leave_aperture));
        if !made {
            prop_assert!(self.left.is_empty(), "{:?} left in vain", self.left);
            return Ok(());
        }
        let planned = |number: &u64| before.iter().find(|object| object.number == *number);
        let planned: Vec<Object> = self.planned.iter().filter_map(planned).cloned().collect();
        check_choice(&planned, &before, Object::may_leave_aperture, |_| pages)?;
        // Until there is a piece, and no longer.
        let is_enough = |of: &[u64]| has_piece(&|object| of.contains(&object.number));
        let all_but_last = &self.planned[..self.planned.len() - 1];
        prop_assert!(is_enough(&self.planned) && !is_enough(all_but_last));
        // Of these nobody leaves who is not in its way.
        let has_left = |object: &Object| self.left.iter().any(|it| it.number == object.number);
        let is_it = |piece: &(u64, u64)| {
            let mut left = self.left.iter().map(|object| ends(object.range()));
            is_free(&before, *piece, has_left)
                && left.all(|(start, end)| start < piece.1 && piece.0 < end)
        };
        prop_assert!(pieces(pages).any(|piece| is_it(&piece)), "{:?}", self.left);
        let mut left = self.left.iter();
        prop_assert!(left.all(|object| self.planned.contains(&object.number)));
        Ok(())
    }
}
