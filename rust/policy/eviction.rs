// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who leaves when others need the room, and in which order.
//!
//! A [`Place`] (VRAM, the window of the aperture segment) has its objects in a list for each
//! [`Rank`], in the order in which they were last used. Of an object the [`Facts`] are known, and
//! of who asks for room its [`Need`]. From these follows who leaves:
//!
//! ```text
//! pass   class (what nothing keeps ─▶ what is resident ─▶ what a group keeps while there is other)
//!          └─▶ rank (what is offered, then the lowest level first)
//!             └─▶ what is idle, then what is in use
//!                └─▶ what keeps its place in the list, then what work has used since it came there
//!                   └─▶ what was used longest ago first, but of what is near and of what was used
//!                       last what costs less
//! ```
//!
//! What one *costs* is how many bytes are copied for each byte of room that its leaving makes, in
//! the time for which others have that room: what was written is copied out, and in when it is used
//! again; what has the same content outside, in alone; what is much too large, in part for nothing.
//! The time is until it is expected, or for what is not expected, as a guess, as long as it was not
//! used already; that may have to leave at last whoever does now, so half of what is copied out
//! counts for it. So what is clean leaves rather than what was written and is near, unless it is
//! expected in less than half the time, or was unused for less than two thirds of it.
//!
//! What merely prefers to be there takes nothing that is resident, but what is idle, of a lower
//! priority, and as well off elsewhere.
//!
//! Nobody leaves in vain: if all that may leave is not enough, nothing does ([`make_room`]).
//!
//! The lists are walked once, from their heads as far as needed. Those who may leave but not yet,
//! since others may come before them, are remembered; nothing is of what stays. So what is idle and
//! nothing keeps is found at once, as it mostly is, and all else by one look at each object.
//!
//! Work uses all that its address space maps, however much that is, so it puts none of it in
//! another place. Who looks for room and meets what was *used since* it came to its place takes the
//! others first, and has it go behind them at the end. Where nearly all was used since, not all are
//! looked at: of so many that were met who was used longest ago leaves.
//!
//! # Examples
//!
//! ```
//! use skua_policy::eviction::{make_room, Facts, Hold, Need, NextUse, Place};
//! use skua_policy::heap::OutOfMemory;
//! use skua_policy::priority::{Level, Rank};
//! use skua_policy::std_heap::StdHeap;
//!
//! /// Objects by their sizes, what was used longest ago first.
//! struct Vram(Vec<u64>);
//!
//! impl Place for Vram {
//!     type Object = u64;
//!     type Error = OutOfMemory;
//!     type Heap = StdHeap;
//!     type Walk = std::vec::IntoIter<u64>;
//!
//!     fn walk(&self, rank: Rank) -> Self::Walk {
//!         let is_theirs = rank == Rank::Kept(Level::Normal);
//!         let objects = self.0.iter().copied().filter(|_| is_theirs);
//!         objects.collect::<Vec<_>>().into_iter()
//!     }
//!
//!     fn walk_back(&self, rank: Rank, many: usize) -> Self::Walk {
//!         self.walk(rank).rev().take(many).collect::<Vec<_>>().into_iter()
//!     }
//!
//!     fn next_use(&self, _: &u64) -> NextUse {
//!         NextUse::NotFor(1)
//!     }
//!
//!     fn facts(&self, object: &u64) -> Result<Facts, OutOfMemory> {
//!         let (bytes, copied) = (*object, 0);
//!         let (is_resident, can_be_elsewhere) = (false, true);
//!         Ok(Facts { bytes, copied, hold: Hold::Nothing, is_resident, can_be_elsewhere })
//!     }
//!
//!     fn is_idle(&self, _: &u64) -> bool {
//!         true
//!     }
//!
//!     fn leave(&mut self, object: &u64, bytes: u64, _: bool) -> Result<Option<u64>, OutOfMemory> {
//!         self.0.retain(|other| other != object);
//!         Ok(Some(bytes))
//!     }
//! }
//!
//! let mut vram = Vram(vec![10, 300, 20]);
//! // Nobody leaves in vain.
//! assert!(!make_room(&mut vram, Need::Needs, 331)?);
//! assert_eq!(vram.0.len(), 3);
//! // What fits goes rather than what is much too large.
//! assert!(make_room(&mut vram, Need::Needs, 30)?);
//! assert_eq!(vram.0, [300]);
//! # Ok::<(), OutOfMemory>(())
//! ```

use super::heap::{FallibleVec, Heap, OutOfMemory};
use super::priority::{Level, Rank};
use core::cmp::Reverse;
use core::mem::replace;

#[cfg(test)]
mod tests;

/// How many objects of a pass are looked at for one that costs less, and how many of a list for one
/// that is expected later.
const AHEAD: usize = 8;

/// How many objects that were used since they came to their places a search passes over before it
/// takes one of them.
const USED_SINCE: usize = 1024;

/// When an object was used, or an address space by work, by a clock that counts the uses of all of
/// them, modulo 2^40: what was used longer ago than half of that seems to be used later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// The clock at its last use, or when it was made.
    last: u64,
    /// From the use before until the last one, [`LONGEST`] at most; 0 if there was none;
    /// [`UNUSED`].
    interval: u64,
}

/// Bits of the clock.
const CLOCK_BITS: u32 = 40;

/// The [`Uses::interval`] of an object that was not used yet.
const UNUSED: u64 = u64::MAX >> CLOCK_BITS;

/// The longest [`Uses::interval`] that is told from others.
const LONGEST: u64 = UNUSED - 1;

/// From one value of the clock to a later one.
const fn between(earlier: u64, later: u64) -> u64 {
    later.wrapping_sub(earlier) & (u64::MAX >> (64 - CLOCK_BITS))
}

impl Uses {
    /// Of an object that was made at `now`, by the count of uses, and not used since.
    pub const fn new(now: u64) -> Self {
        Self {
            last: now,
            interval: UNUSED,
        }
    }

    /// The same object after one more use, at `now` by the count of uses.
    pub fn again(self, now: u64) -> Self {
        let interval = match self.interval {
            UNUSED => 0,
            _ => self.age(now).min(LONGEST),
        };
        Self {
            last: now,
            interval,
        }
    }

    /// Whether it was used, and nothing was since.
    pub const fn is_now(self, now: u64) -> bool {
        self.interval != UNUSED && self.age(now) == 0
    }

    /// Whether its last use, or that it was made, was before that of `other`.
    pub fn is_before(self, other: Self) -> bool {
        (1..1 << (CLOCK_BITS - 1)).contains(&between(self.last, other.last))
    }

    /// When an object was used that is there for the work of an address space, which was used at
    /// `work`: as that was, unless it was used in another way later.
    pub fn with(self, work: Self) -> Self {
        match work.interval == UNUSED || work.is_before(self) {
            true => self,
            false => work,
        }
    }

    /// The same, but last used when `other` was.
    pub const fn until(self, other: Self) -> Self {
        Self {
            last: other.last,
            ..self
        }
    }

    /// How long ago it was used, or made.
    pub const fn age(self, now: u64) -> u64 {
        between(self.last, now)
    }

    /// How long ago what is used again at `now` was used, if it was.
    pub fn reuse_distance(self, now: u64) -> Option<u64> {
        (self.interval != UNUSED).then(|| self.age(now))
    }

    /// When it is used again: as long after the last use as that was after the one before; if it
    /// was used once, after the `reuse_distance` of what comes back now, if that is not new. It is
    /// not expected any more after that; nothing is for what is new.
    pub fn next_use(self, now: u64, reuse_distance: Option<u64>) -> NextUse {
        let age = self.age(now);
        let interval = reuse_distance.and_then(|distance| match self.interval {
            UNUSED => None,
            0 => Some(distance),
            interval => Some(interval),
        });
        let left = interval.and_then(|interval| interval.checked_sub(age));
        match left.filter(|left| *left > 0) {
            Some(left) => NextUse::In(left),
            None => NextUse::NotFor(age),
        }
    }

    /// All of it in one word, for [`Uses::from_word`].
    pub const fn word(self) -> u64 {
        self.interval << CLOCK_BITS | between(0, self.last)
    }

    /// The value whose [`Uses::word`] is `word`.
    pub const fn from_word(word: u64) -> Self {
        Self {
            last: between(0, word),
            interval: word >> CLOCK_BITS,
        }
    }
}

/// When an object is used again, by the clock of [`Uses`], as far as its past tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextUse {
    /// It is expected in so many from now on.
    In(u64),
    /// It is not expected, and was not used for so many.
    NotFor(u64),
}

/// What somebody asks for room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Something that is better off there, and can be elsewhere.
    Prefers,
    /// Something that can be nowhere else.
    Needs,
    /// What whose turn it is needs in a part of the place, of their own that can be elsewhere.
    Own,
}

/// What keeps an object where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: it leaves when its rank's turn comes.
    Nothing,
    /// A control group's `low`: it leaves for [`Need::Needs`] alone, when nothing else is left.
    Low,
    /// A control group's `min`: it does not leave.
    Min,
    /// Whose turn it is needs it; [`Need::Own`] has it go if it may be elsewhere.
    Turn {
        /// Whether it may, in the place or in another that is as good.
        elsewhere: bool,
    },
    /// It cannot move: it is pinned, locked, just moving, or about to be destroyed.
    Pinned,
}

/// What is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of it where room is needed. 0: it helps nobody.
    pub bytes: u64,
    /// Bytes that are copied if it leaves: none if what it is outside is the same already, or
    /// nobody wants it any more. If that is wrong, more is copied than has to be.
    pub copied: u64,
    /// What keeps it where it is.
    pub hold: Hold,
    /// Whether somebody has made it resident.
    pub is_resident: bool,
    /// Whether it is of use elsewhere, too: to be resident is advice then.
    pub can_be_elsewhere: bool,
}

/// Objects of which all of one leave before any of a later one does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pass {
    /// Whether its group's `low` keeps it from leaving as long as others can.
    is_low: bool,
    /// Whether somebody has made it resident.
    is_resident: bool,
    /// Where the candidate's list stands among all lists, from 0.
    rank: usize,
    /// Whether work with it is not over.
    is_busy: bool,
    /// Whether work has used it since it came to its place.
    is_used_since: bool,
}

impl Pass {
    /// The pass of those of list `rank` that nothing keeps and nobody works with.
    const fn first(rank: usize) -> Self {
        Self {
            is_low: false,
            is_resident: false,
            rank,
            is_busy: false,
            is_used_since: false,
        }
    }

    /// The one behind [`Pass::first`].
    const fn second(rank: usize) -> Self {
        Self {
            is_used_since: true,
            ..Self::first(rank)
        }
    }

    /// That of an object of a list which may leave for `need` of something of `level`, if it is
    /// idle.
    fn of(need: Need, level: Level, facts: &Facts, rank: usize) -> Option<Self> {
        // What is more important is tried harder to be placed as it prefers (row 2.25).
        let is_lower = Rank::ALL.get(rank) < Some(&Rank::Kept(level));
        let stays = facts.is_resident && !(facts.can_be_elsewhere && is_lower);
        let leaves = match (need, facts.hold) {
            (Need::Own, hold) => hold == Hold::Turn { elsewhere: true },
            (Need::Prefers, hold) => hold == Hold::Nothing && !stays,
            (Need::Needs, hold) => matches!(hold, Hold::Nothing | Hold::Low),
        };
        (leaves && facts.bytes > 0).then_some(Self {
            is_low: facts.hold == Hold::Low,
            is_resident: facts.is_resident,
            ..Self::first(rank)
        })
    }

    /// Whether it may leave for `need` though it is in use.
    fn may_be_busy(&self, need: Need) -> bool {
        need != Need::Prefers || !self.is_resident
    }
}

/// Where objects are that may have to leave.
pub trait Place {
    /// A reference to an object.
    type Object;
    /// Why nothing more can be asked of it.
    type Error: From<OutOfMemory>;
    /// For what is remembered of objects.
    type Heap: Heap;
    /// The objects of a list.
    type Walk: Iterator<Item = Self::Object>;

    /// The objects of `rank`, what was used longest ago first. What leaves meanwhile is missing,
    /// and only that.
    fn walk(&self, rank: Rank) -> Self::Walk;

    /// The same, what was used last first, as far as there are so `many`.
    fn walk_back(&self, rank: Rank, many: usize) -> Self::Walk;

    /// Bytes in use, where some are of what is in no list, since it stays; else none are told.
    fn used(&self) -> u64 {
        0
    }

    /// The priority of what needs the room: if that merely prefers to be there, what is resident
    /// leaves for it if it is of a lower one, is idle, and can be elsewhere.
    fn level(&self) -> Level {
        Level::Minimum
    }

    /// How long ago work used `object`, if it did since that came to its place in its list; never,
    /// where each use has it go behind the others at once.
    fn used_since(&self, _object: &Self::Object) -> Option<u64> {
        None
    }

    /// Has `object`, which was used since, go behind all others of its list, if it may just now.
    fn renew(&self, _object: &Self::Object) {}

    /// When `object` is used again ([`Uses::next_use`]).
    fn next_use(&self, object: &Self::Object) -> NextUse;

    /// What is known of `object`, at this moment.
    ///
    /// # Errors
    ///
    /// Nobody is to be looked at any more.
    fn facts(&self, object: &Self::Object) -> Result<Facts, Self::Error>;

    /// Whether nobody works with `object`.
    fn is_idle(&self, object: &Self::Object) -> bool;

    /// Has `object`, of which `bytes` bytes are where room is needed, leave, though it may be in
    /// use if it `may_wait`; how many bytes less are missing then, or none if it stays.
    ///
    /// # Errors
    ///
    /// Nobody can leave any more.
    fn leave(
        &mut self,
        object: &Self::Object,
        bytes: u64,
        may_wait: bool,
    ) -> Result<Option<u64>, Self::Error>;
}

/// Has objects leave that are `missing` bytes together, or none if that many may not leave for
/// `need`. Whether they were told to.
///
/// # Errors
///
/// As [`Place::facts`], or for want of memory: then nobody has left, or too few; as
/// [`Place::leave`].
pub fn make_room<P: Place>(place: &mut P, need: Need, missing: u64) -> Result<bool, P::Error> {
    let mut search = Search::new(place, need);
    let mut first = <P::Heap as Heap>::Vec::new();
    let mut supply = 0_u64;
    while supply < missing {
        let Some(one) = search.next(place)? else {
            return Ok(false);
        };
        supply = supply.saturating_add(one.bytes);
        first.try_push(one)?;
    }
    while let Some(one) = first.pop() {
        search.put_back(one)?;
    }
    search.leave(place, missing)?;
    search.renew(place);
    Ok(true)
}

/// Has objects leave until there are `missing` bytes less, or all that may leave for `need`.
///
/// # Errors
///
/// As [`Place::facts`] and [`Place::leave`]; for want of memory.
pub fn leave<P: Place>(place: &mut P, need: Need, missing: u64) -> Result<(), P::Error> {
    let mut search = Search::new(place, need);
    search.leave(place, missing)?;
    search.renew(place);
    Ok(())
}

/// Calls `f` with those that would leave for [`Need::Needs`], by priority, up to `most`, the first
/// one first: of those that are alike by age, whatever they cost.
///
/// # Errors
///
/// As [`Place::facts`], and of `f`; for want of memory.
pub fn each_next<P: Place>(
    place: &P,
    most: usize,
    mut f: impl FnMut(Rank, &P::Object) -> Result<(), P::Error>,
) -> Result<(), P::Error> {
    let mut search = Search::new(place, Need::Needs);
    for _ in 0..most {
        let Some(one) = search.next(place)? else {
            break;
        };
        if let Some(rank) = Rank::ALL.get(one.pass.rank) {
            f(*rank, &one.object)?;
        }
    }
    Ok(())
}

/// An object that may leave.
struct Candidate<O> {
    /// When it leaves, beside others: in the order of passes, in one by `age`, and of one age by
    /// `number`.
    pass: Pass,
    /// How long ago work used it, if that was since it came to its place; else 0.
    age: u64,
    /// How many were found in the lists before.
    number: usize,
    object: O,
    /// What it has where room is needed, as [`Facts::bytes`]; not 0.
    bytes: u64,
    /// As [`Facts::copied`].
    copied: u64,
}

impl<O> Candidate<O> {
    /// In which order they leave: the last first.
    fn order(&self) -> impl Ord + use<O> {
        Reverse((self.pass, Reverse(self.age), self.number))
    }
}

/// What it costs that a candidate leaves.
#[derive(Clone, Copy)]
struct Cost {
    pass: Pass,
    /// What it has where room is needed.
    bytes: u64,
    /// How often what it makes room for is copied, in halves.
    halves: u64,
    next_use: NextUse,
}

/// [`Cost::halves`] of what is copied once, in: there is nothing less.
const LEAST: u64 = 2;

impl Cost {
    /// That of `one`, where so much is `missing`. Twice as much is of use, too.
    fn of<P: Place>(place: &P, one: &Candidate<P::Object>, missing: u64) -> Self {
        let of_use = one.bytes.min(missing.saturating_mul(2)).max(1);
        let next_use = place.next_use(&one.object);
        let outward = match next_use {
            NextUse::In(_) => one.copied.saturating_mul(2),
            NextUse::NotFor(_) => one.copied,
        };
        let inward = one.bytes.saturating_mul(2);
        Self {
            pass: one.pass,
            bytes: one.bytes,
            halves: inward.saturating_add(outward).div_ceil(of_use),
            next_use,
        }
    }

    /// Whether one of this cost leaves rather than one of the `other` that was found before: it
    /// makes as much of the `missing` room, and less is copied in the same time. What is expected
    /// and what is not are not compared.
    fn is_less(&self, other: &Self, missing: u64) -> bool {
        let product = |uses: u64, halves: u64| uses.max(1).saturating_mul(halves);
        let is_less = match (self.next_use, other.next_use) {
            (NextUse::In(mine), NextUse::In(theirs))
            | (NextUse::NotFor(mine), NextUse::NotFor(theirs)) => {
                product(mine, other.halves) > product(theirs, self.halves)
            }
            _ => false,
        };
        is_less && self.pass == other.pass && self.bytes >= other.bytes.min(missing)
    }
}

/// A walk through all lists, which finds those that may leave for `need` in the order in which they
/// do.
struct Search<P: Place> {
    /// What room is looked for.
    need: Need,
    /// Objects of the list that it is at, and the number of that.
    objects: P::Walk,
    /// The list's number, from 0; [`Pass::rank`] of what is found in it.
    rank: usize,
    /// Candidates that were found; [`Candidate::number`] of the next one.
    found: usize,
    /// Those that leave after others that may come, the first of them last if they are sorted.
    later: <P::Heap as Heap>::Vec<Candidate<P::Object>>,
    /// Whether `later` is in that order; adding to it ends that.
    is_sorted: bool,
    /// The pass of the first of them.
    first_later: Option<Pass>,
    /// How many of them are of the [second](Pass::second) pass of the list that it is at.
    used_since: usize,
    /// Whether those that were used last leave if they are told to.
    is_last_willing: bool,
}

impl<P: Place> Search<P> {
    fn new(place: &P, need: Need) -> Self {
        Self {
            need,
            objects: place.walk(Rank::ALL[0]),
            rank: 0,
            found: 0,
            later: FallibleVec::new(),
            is_sorted: true,
            first_later: None,
            used_since: 0,
            is_last_willing: true,
        }
    }

    /// The candidate that leaves next, by pass and number; none is left at the end. `OutOfMemory`.
    fn next(&mut self, place: &P) -> Result<Option<Candidate<P::Object>>, P::Error> {
        loop {
            // What comes is of this pass, or of a later one.
            let first = match self.used_since < USED_SINCE {
                true => Pass::first(self.rank),
                // It may be of this one, and is not waited for.
                false => Pass::second(self.rank),
            };
            let is_over = self.rank == Rank::ALL.len();
            if is_over || self.first_later.is_some_and(|pass| pass <= first) {
                return Ok(self.pop());
            }
            let Some(object) = self.objects.next() else {
                (self.rank, self.used_since) = (self.rank + 1, 0);
                if let Some(rank) = Rank::ALL.get(self.rank) {
                    self.objects = place.walk(*rank);
                }
                continue;
            };
            let Some(one) = self.candidate(place, object, self.rank)? else {
                continue;
            };
            self.found += 1;
            if one.pass == Pass::first(self.rank) {
                return Ok(Some(one));
            }
            self.put_back(one)?;
        }
    }

    /// The next one that may still leave: it may have been found a while ago, or have left before
    /// its turn. As [`Search::next`].
    fn next_there(&mut self, place: &P) -> Result<Option<Candidate<P::Object>>, P::Error> {
        while let Some(one) = self.next(place)? {
            let facts = place.facts(&one.object)?;
            if Pass::of(self.need, place.level(), &facts, one.pass.rank).is_some() {
                let Facts { bytes, copied, .. } = facts;
                return Ok(Some(Candidate {
                    bytes,
                    copied,
                    ..one
                }));
            }
        }
        Ok(None)
    }

    /// What `object`, of the list `rank`, is as one that may leave, if it may.
    fn candidate(
        &self,
        place: &P,
        object: P::Object,
        rank: usize,
    ) -> Result<Option<Candidate<P::Object>>, P::Error> {
        let facts = place.facts(&object)?;
        let pass = Pass::of(self.need, place.level(), &facts, rank);
        let pass = pass.map(|pass| Pass {
            is_busy: !place.is_idle(&object),
            ..pass
        });
        let pass = pass.filter(|pass| !pass.is_busy || pass.may_be_busy(self.need));
        let used_since = pass.and_then(|_| place.used_since(&object));
        Ok(pass.map(|pass| Candidate {
            pass: Pass {
                is_used_since: used_since.is_some(),
                ..pass
            },
            age: used_since.unwrap_or(0),
            number: self.found,
            object,
            bytes: facts.bytes,
            copied: facts.copied,
        }))
    }

    /// The first of those that leave later.
    fn pop(&mut self) -> Option<Candidate<P::Object>> {
        if !replace(&mut self.is_sorted, true) {
            self.later
                .as_mut_slice()
                .sort_unstable_by_key(Candidate::order);
        }
        let one = self.later.pop()?;
        self.first_later = self.later.as_slice().last().map(|one| one.pass);
        if one.pass == Pass::second(self.rank) {
            self.used_since = self.used_since.saturating_sub(1);
        }
        Some(one)
    }

    /// Has `one`, which leaves before all that do later, do so as well. `OutOfMemory`.
    fn push(&mut self, one: Candidate<P::Object>) -> Result<(), OutOfMemory> {
        self.first_later = Some(self.first_later.map_or(one.pass, |pass| pass.min(one.pass)));
        self.used_since += usize::from(one.pass == Pass::second(self.rank));
        self.later.try_push(one)
    }

    /// Has `one` be found, or found again, in its turn. `OutOfMemory`.
    fn put_back(&mut self, one: Candidate<P::Object>) -> Result<(), OutOfMemory> {
        let order = one.order();
        self.push(one)?;
        let later = self.later.as_mut_slice();
        // The one that was pushed is the last.
        let rest = later.len().saturating_sub(1);
        match later.get(rest.saturating_sub(USED_SINCE)..rest) {
            // Among the first: where one comes for each that leaves it is soon in its place.
            Some(first)
                if self.is_sorted && first.first().is_some_and(|one| one.order() <= order) =>
            {
                let behind = first.len() - first.partition_point(|one| one.order() <= order);
                later[rest - behind..].rotate_right(1);
            }
            _ => self.is_sorted = false,
        }
        Ok(())
    }

    /// Has what was passed over, since it was used, go behind the others, in the order of that.
    fn renew(&mut self, place: &P) {
        let later = self.later.as_mut_slice();
        later.sort_unstable_by_key(|one| Reverse(one.age));
        let used_since = later.iter().filter(|one| one.pass.is_used_since);
        used_since.for_each(|one| place.renew(&one.object));
    }

    /// The one that is to leave: the next, or one that costs less, of the few of its pass behind it
    /// and, if it is expected, of those that were used last. `OutOfMemory`.
    fn take(&mut self, place: &P, missing: u64) -> Result<Option<Candidate<P::Object>>, P::Error> {
        let mut near = [const { None }; AHEAD];
        let mut best: Option<(usize, Cost)> = None;
        for (at, slot) in near.iter_mut().enumerate() {
            if best.is_some_and(|(_, best)| best.halves <= LEAST) {
                break;
            }
            let Some(one) = self.next_there(place)? else {
                break;
            };
            let cost = Cost::of(place, slot.insert(one), missing);
            match best {
                Some((_, best)) if cost.pass != best.pass => break,
                Some((_, best)) if !cost.is_less(&best, missing) => (),
                _ => best = Some((at, cost)),
            }
        }
        let Some((at, cost)) = best else {
            return Ok(None);
        };
        let mut taken = self.used_last(place, cost, missing)?;
        // They are the first of all: the order stays what it is.
        for (other, one) in near.into_iter().enumerate().rev() {
            match one {
                Some(one) if other == at && taken.is_none() => taken = Some(one),
                Some(one) => self.push(one)?,
                None => (),
            }
        }
        Ok(taken)
    }

    /// Of the few that were used last and are expected, one that costs less than `best`, if that is
    /// expected.
    fn used_last(
        &self,
        place: &P,
        mut best: Cost,
        missing: u64,
    ) -> Result<Option<Candidate<P::Object>>, P::Error> {
        let is_expected = |next_use| matches!(next_use, NextUse::In(_));
        let number = best.pass.rank;
        let rank = Rank::ALL.get(number);
        let is_asked = self.is_last_willing && is_expected(best.next_use);
        let Some(rank) = rank.filter(|_| is_asked) else {
            return Ok(None);
        };
        let mut found = None;
        for object in place.walk_back(*rank, AHEAD) {
            if !is_expected(place.next_use(&object)) {
                continue;
            }
            let Some(one) = self.candidate(place, object, number)? else {
                continue;
            };
            let cost = Cost::of(place, &one, missing);
            if cost.is_less(&best, missing) {
                (found, best) = (Some(one), cost);
            }
        }
        Ok(found)
    }

    /// Has objects leave until there are `missing` bytes less, or there are none. As [`leave`].
    fn leave(&mut self, place: &mut P, mut missing: u64) -> Result<(), P::Error> {
        while missing > 0 {
            let Some(mut one) = self.take(place, missing)? else {
                break;
            };
            if let Some(left) = place.leave(&one.object, one.bytes, one.pass.is_busy)? {
                missing = missing.saturating_sub(left);
                continue;
            }
            // Those that were used last would be found again and again.
            self.is_last_willing = false;
            // Somebody works with it after all.
            let may_be_busy = one.pass.may_be_busy(self.need);
            if !replace(&mut one.pass.is_busy, true) && may_be_busy {
                self.put_back(one)?;
            }
        }
        Ok(())
    }
}

/// What holds the memory of a place, in bytes, for each of [`Holders::WORDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders([u64; 6]);

impl Holders {
    /// What is said of objects; each counts once, for the first of these: it cannot move; whose
    /// turn it is needs it; its control group keeps it, or keeps it while there is other; somebody
    /// has made it resident; somebody works with it; none of these.
    pub const WORDS: [&'static str; 6] = ["pinned", "turn", "group", "resident", "busy", "idle"];

    /// The sums of all objects in `place`, and of what is there in no list as pinned.
    ///
    /// # Errors
    ///
    /// As [`Place::facts`].
    pub fn of<P: Place>(place: &P) -> Result<Self, P::Error> {
        let mut holders = Self::default();
        for rank in Rank::ALL {
            for object in place.walk(rank) {
                let facts = place.facts(&object)?;
                let number = Self::number(&facts, || place.is_idle(&object));
                if let Some(sum) = holders.0.get_mut(number) {
                    *sum = sum.saturating_add(facts.bytes);
                }
            }
        }
        let listed = holders
            .0
            .iter()
            .fold(0u64, |all, sum| all.saturating_add(*sum));
        let [pinned, ..] = &mut holders.0;
        *pinned = pinned.saturating_add(place.used().saturating_sub(listed));
        Ok(holders)
    }

    /// Bytes of which each of [`Self::WORDS`] is said, in their order.
    pub fn sums(&self) -> [u64; 6] {
        self.0
    }

    /// The one of [`Self::WORDS`] that is said of an object with these `facts`.
    pub fn word(facts: &Facts, is_idle: bool) -> &'static str {
        let word = Self::WORDS.get(Self::number(facts, || is_idle));
        word.copied().unwrap_or_default()
    }

    /// The number of the word that is said of an object.
    fn number(facts: &Facts, is_idle: impl FnOnce() -> bool) -> usize {
        match facts.hold {
            Hold::Pinned => 0,
            Hold::Turn { .. } => 1,
            Hold::Min | Hold::Low => 2,
            Hold::Nothing if facts.is_resident => 3,
            Hold::Nothing if !is_idle() => 4,
            Hold::Nothing => 5,
        }
    }
}
