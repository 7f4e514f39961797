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
//!                └─▶ the list: what was used longest ago first,
//!                    but what fits rather than what is much too large, if it is near
//! ```
//!
//! Nobody leaves in vain: if all that may leave is not enough, nothing does ([`make_room`]).
//!
//! A list is walked from its head as far as needed, and looked at object by object: nothing is
//! sorted, and nothing remembered of what stays.

use super::priority::Rank;

#[cfg(test)]
mod tests;

/// How many objects of a pass are looked at for one that fits.
const AHEAD: usize = 8;

/// What somebody asks for room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// What is better off there.
    Prefers,
    /// What can be nowhere else.
    Needs,
    /// What whose turn it is needs in a part of the place, of their own that can be elsewhere.
    Own,
}

/// What keeps an object where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    Nothing,
    /// A control group, while there is other.
    Low,
    /// A control group.
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
    /// What keeps it.
    pub hold: Hold,
    /// Whether somebody has made it resident.
    pub is_resident: bool,
}

/// Objects of which all of one leave before any of a later one does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    is_low: bool,
    is_resident: bool,
}

impl Class {
    const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(false, true),
        Self::new(true, false),
        Self::new(true, true),
    ];

    const fn new(is_low: bool, is_resident: bool) -> Self {
        Self {
            is_low,
            is_resident,
        }
    }

    /// That of an object which may leave for `need`.
    fn of(need: Need, facts: &Facts) -> Option<Self> {
        let class = Self::new(facts.hold == Hold::Low, facts.is_resident);
        let leaves = match (need, facts.hold) {
            (Need::Own, hold) => hold == Hold::Turn { elsewhere: true },
            (Need::Prefers, hold) => hold == Hold::Nothing && !facts.is_resident,
            (Need::Needs, hold) => matches!(hold, Hold::Nothing | Hold::Low),
        };
        (leaves && facts.bytes > 0).then_some(class)
    }
}

/// Where objects are that may have to leave.
pub trait Place {
    /// A reference to an object.
    type Object;
    /// Why nothing more can be asked of it.
    type Error;
    /// The objects of a list.
    type Walk: Iterator<Item = Self::Object>;

    /// The objects of `rank`, what was used longest ago first. What leaves meanwhile is missing, and
    /// only that.
    fn walk(&self, rank: Rank) -> Self::Walk;

    /// What is known of `object`, at this moment.
    ///
    /// # Errors
    ///
    /// Nobody is to be looked at any more.
    fn facts(&self, object: &Self::Object) -> Result<Facts, Self::Error>;

    /// Whether nobody works with `object`.
    fn is_idle(&self, object: &Self::Object) -> bool;

    /// Has `object`, of which `bytes` bytes are where room is needed, leave, though it may be in use
    /// if it `may_wait`; how many bytes less are missing then: 0 if it stays.
    ///
    /// # Errors
    ///
    /// Nobody can leave any more.
    fn leave(
        &mut self,
        object: Self::Object,
        bytes: u64,
        may_wait: bool,
    ) -> Result<u64, Self::Error>;
}

/// Has objects leave that are `missing` bytes together, or none if that many may not leave for
/// `need`. Whether they were told to.
///
/// # Errors
///
/// As [`Place::facts`], and then nobody has left; as [`Place::leave`].
pub fn make_room<P: Place>(place: &mut P, need: Need, missing: u64) -> Result<bool, P::Error> {
    let is_enough = can_leave(place, need, missing)?;
    if is_enough {
        leave(place, need, missing)?;
    }
    Ok(is_enough)
}

/// Whether objects of `missing` bytes together may leave.
fn can_leave<P: Place>(place: &P, need: Need, missing: u64) -> Result<bool, P::Error> {
    let mut supply = 0_u64;
    for rank in Rank::ALL {
        for object in place.walk(rank) {
            let facts = place.facts(&object)?;
            if Class::of(need, &facts).is_some() {
                supply = supply.saturating_add(facts.bytes);
            }
            if supply >= missing {
                return Ok(true);
            }
        }
    }
    Ok(missing == 0)
}

/// Has objects leave until there are `missing` bytes less, or all that may leave for `need`.
///
/// # Errors
///
/// As [`Place::facts`] and [`Place::leave`].
pub fn leave<P: Place>(place: &mut P, need: Need, missing: u64) -> Result<(), P::Error> {
    let mut missing = missing;
    for class in Class::ALL {
        for rank in Rank::ALL {
            for may_wait in [false, true] {
                let mut objects = place.walk(rank).fuse();
                let mut ahead = Ahead::new();
                loop {
                    if missing == 0 {
                        return Ok(());
                    }
                    while ahead.wants_more(missing) {
                        let Some(object) = objects.next() else {
                            break;
                        };
                        let facts = place.facts(&object)?;
                        // What is of an earlier class by now was not when that was its turn.
                        if Class::of(need, &facts).is_some_and(|its| its <= class)
                            && (may_wait || place.is_idle(&object))
                        {
                            ahead.push(object, facts.bytes);
                        }
                    }
                    let Some((object, bytes)) = ahead.take(missing) else {
                        break;
                    };
                    missing = missing.saturating_sub(place.leave(object, bytes, may_wait)?);
                }
            }
        }
    }
    Ok(())
}

/// The next objects of a pass, with their bytes, in order.
struct Ahead<O>([Option<(O, u64)>; AHEAD]);

impl<O> Ahead<O> {
    fn new() -> Self {
        Self([const { None }; AHEAD])
    }

    /// The bytes of each.
    fn bytes(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flatten().map(|(_, bytes)| *bytes)
    }

    /// Whether the next one is much too large for what is `missing`, and none of the others is not.
    fn wants_more(&self, missing: u64) -> bool {
        let fits = |bytes| bytes >= missing && !is_too_large(bytes, missing);
        let first = self.bytes().next();
        first.is_none_or(|bytes| is_too_large(bytes, missing))
            && self.bytes().count() < AHEAD
            && !self.bytes().any(fits)
    }

    /// Adds one behind the others, if there is room.
    fn push(&mut self, object: O, bytes: u64) {
        if let Some(free) = self.0.iter_mut().find(|free| free.is_none()) {
            *free = Some((object, bytes));
        }
    }

    /// Takes the next one; or, if that is much too large, the smallest that is enough.
    fn take(&mut self, missing: u64) -> Option<(O, u64)> {
        let mut best = (0, self.bytes().next()?);
        if is_too_large(best.1, missing) {
            let enough = self.bytes().enumerate();
            let enough = enough.filter(|(_, bytes)| *bytes >= missing);
            best = enough.min_by_key(|(_, bytes)| *bytes).unwrap_or(best);
        }
        let behind = self.0.get_mut(best.0..)?;
        behind.rotate_left(1);
        behind.last_mut()?.take()
    }
}

/// Whether `bytes` are more than twice of what is `missing`.
fn is_too_large(bytes: u64, missing: u64) -> bool {
    bytes / 2 > missing
}

/// What holds the memory of a place, in bytes; each object counts once, for the first of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Objects that cannot move.
    pub pinned: u64,
    /// Those that whose turn it is needs.
    pub turn: u64,
    /// Those that their control group keeps, or keeps while there is other.
    pub group: u64,
    /// Those that somebody has made resident.
    pub resident: u64,
    /// Those that somebody works with.
    pub busy: u64,
    /// Those that go first.
    pub idle: u64,
}

impl Holders {
    /// Those of all objects in `place`.
    ///
    /// # Errors
    ///
    /// As [`Place::facts`].
    pub fn of<P: Place>(place: &P) -> Result<Self, P::Error> {
        let mut holders = Self::default();
        for rank in Rank::ALL {
            for object in place.walk(rank) {
                let facts = place.facts(&object)?;
                let (sum, _) = holders.of_object(&facts, || place.is_idle(&object));
                *sum = sum.saturating_add(facts.bytes);
            }
        }
        Ok(holders)
    }

    /// Where an object counts, and what that is called.
    fn of_object(
        &mut self,
        facts: &Facts,
        is_idle: impl FnOnce() -> bool,
    ) -> (&mut u64, &'static str) {
        match facts.hold {
            Hold::Pinned => (&mut self.pinned, "pinned"),
            Hold::Turn { .. } => (&mut self.turn, "turn"),
            Hold::Min | Hold::Low => (&mut self.group, "group"),
            Hold::Nothing if facts.is_resident => (&mut self.resident, "resident"),
            Hold::Nothing if !is_idle() => (&mut self.busy, "busy"),
            Hold::Nothing => (&mut self.idle, "idle"),
        }
    }

    /// What holds an object, in a word: the name of the sum in which it counts.
    pub fn word(facts: &Facts, is_idle: bool) -> &'static str {
        Self::default().of_object(facts, || is_idle).1
    }
}
