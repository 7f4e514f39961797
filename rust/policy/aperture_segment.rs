// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The aperture segment: who has which pages of a window that shows system memory.
//!
//! An object is mapped in one piece, whatever its pages are: the window makes them contiguous. It
//! begins where the largest pages of a process do that it has room for, if there is such a place,
//! so that few entries lead there.
//!
//! The first pages are the miniport's own, and not the segment's.
//!
//! Where there is no such piece, it is planned who has to leave before anybody does
//! ([`make_room`]).
//!
//! # Examples
//!
//! ```
//! use skua_policy::aperture_segment::ApertureSegment;
//! use skua_policy::buddy::{BuddyError, PageCount, PageRange};
//! use skua_policy::std_heap::StdHeap;
//!
//! let mut segment = ApertureSegment::<StdHeap>::new(PageCount(64), PageCount(3))?;
//! assert_eq!(segment.alloc(PageCount(2))?, PageRange::new(4, 2));
//! assert_eq!(segment.alloc(PageCount(20))?, PageRange::new(32, 20));
//! assert_eq!(segment.alloc(PageCount(29)), Err(BuddyError::NoSpace));
//! # Ok::<(), BuddyError>(())
//! ```

use super::{
    buddy::{Buddy, BuddyError, PageCount, PageRange, Request, PAGE_BYTES},
    eviction::{leave, Need, Place},
    heap::{FallibleVec, Heap},
};
use crate::spec::mmu::PageSize;

#[cfg(test)]
mod tests;

/// The window, and who has which pages of it.
pub struct ApertureSegment<H: Heap> {
    /// All pages, those of the miniport among them; [`None`] if the segment has none.
    pages: Option<Buddy<H>>,
    /// Pages of the segment.
    total: u64,
}

impl<H: Heap> ApertureSegment<H> {
    /// A window of `window` pages of which the first `own` are the miniport's and no other is used.
    ///
    /// # Errors
    ///
    /// As [`Buddy::new`].
    pub fn new(window: PageCount, own: PageCount) -> Result<Self, BuddyError> {
        let total = window.0.saturating_sub(own.0);
        let mut pages = None;
        if total > 0 {
            let mut buddy = Buddy::new(window)?;
            if own.0 > 0 {
                buddy.reserve(PageRange::new(0, own.0))?;
            }
            pages = Some(buddy);
        }
        Ok(Self { pages, total })
    }

    /// Pages of the window that it has pages in.
    pub fn window(&self) -> PageCount {
        self.pages.as_ref().map_or(PageCount(0), Buddy::total)
    }

    /// Pages of the segment.
    pub fn total(&self) -> PageCount {
        PageCount(self.total)
    }

    /// Those of them that somebody has.
    pub fn used(&self) -> PageCount {
        let free = self.pages.as_ref().map_or(0, |pages| pages.free_pages().0);
        PageCount(self.total.saturating_sub(free))
    }

    /// Hands out `pages` pages of the window in one piece, numbered from the window's first.
    ///
    /// # Errors
    ///
    /// [`BuddyError::NoSpace`]: there is no such piece. As [`Buddy::alloc`].
    pub fn alloc(&mut self, pages: PageCount) -> Result<PageRange, BuddyError> {
        let buddy = self.pages.as_mut().ok_or(BuddyError::NoSpace)?;
        if pages.0 == 0 {
            return Err(BuddyError::Invalid);
        }
        for size in PageSize::ALL {
            let align = PageCount(size.bytes() / PAGE_BYTES);
            if align > pages {
                continue;
            }
            match buddy.alloc(Request { pages, align }) {
                Err(BuddyError::NoSpace) => (),
                result => return result,
            }
        }
        Err(BuddyError::NoSpace)
    }

    /// Takes back what [`Self::alloc`] gave. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`BuddyError::NotAllocated`].
    pub fn free(&mut self, range: PageRange) -> Result<(), BuddyError> {
        self.pages
            .as_mut()
            .ok_or(BuddyError::NotAllocated)?
            .free(range)
    }

    /// The `plan`, which is a new one for [`Self::window`], with what is free. Allocates nothing.
    pub fn plan<P: Heap>(&self, mut plan: Plan<P>) -> Plan<P> {
        let total = self.window().0;
        let mut next = 0;
        while next < total {
            let free = self.pages.as_ref().and_then(|buddy| buddy.free_block(next));
            next = match free {
                Some(block) => {
                    plan.add(block);
                    block.end().map_or(total, |end| end.0)
                }
                // No overflow: a page that exists.
                None => next.saturating_add(1),
            };
        }
        plan
    }
}

/// Who has to leave so that there is a piece of some pages: what is free, and what would be.
///
/// # Examples
///
/// ```
/// use skua_policy::aperture_segment::{ApertureSegment, Plan};
/// use skua_policy::buddy::{BuddyError, PageCount, PageRange};
/// use skua_policy::std_heap::StdHeap;
///
/// let mut segment = ApertureSegment::<StdHeap>::new(PageCount(64), PageCount(0))?;
/// let objects = [(); 4].map(|()| segment.alloc(PageCount(16)));
/// let mut plan = segment.plan(Plan::<StdHeap>::new(segment.window(), PageCount(32))?);
/// plan.add(objects[0]?);
/// plan.add(objects[3]?);
/// assert_eq!(plan.piece(), None);
/// plan.add(objects[1]?);
/// assert_eq!(plan.piece(), Some(PageRange::new(0, 32)));
/// # Ok::<(), BuddyError>(())
/// ```
pub struct Plan<H: Heap> {
    /// Of each page that is or would be free not 0; of the first and the last one of a run of such
    /// its length.
    runs: H::Vec<u64>,
    /// How long the piece is to be.
    pages: u64,
    /// The first that was found to be long enough.
    piece: Option<PageRange>,
}

impl<H: Heap> Plan<H> {
    /// Of room for a piece of `pages` pages in a `window` of which nothing would be free.
    ///
    /// # Errors
    ///
    /// [`BuddyError::OutOfMemory`]; [`BuddyError::Invalid`] for more than an address can tell.
    pub fn new(window: PageCount, pages: PageCount) -> Result<Self, BuddyError> {
        let len = usize::try_from(window.0).map_err(|_| BuddyError::Invalid)?;
        Ok(Self {
            runs: FallibleVec::filled_with(len, || 0)?,
            pages: pages.0,
            piece: None,
        })
    }

    /// Who has `range` would leave. Nothing happens if that was said before.
    pub fn add(&mut self, range: PageRange) {
        let pages = range.pages.0;
        let run = |runs: &[u64], page: Option<u64>| {
            let page = page.and_then(|page| usize::try_from(page).ok());
            page.and_then(|page| runs.get(page)).copied().unwrap_or(0)
        };
        let runs = self.runs.as_mut_slice();
        let Some(end) = range.end().filter(|_| pages > 0) else {
            return;
        };
        if run(runs, Some(range.start.0)) != 0 {
            return;
        }
        let before = run(runs, range.start.0.checked_sub(1));
        let behind = run(runs, Some(end.0));
        let (Ok(from), Ok(to)) = (usize::try_from(range.start.0), usize::try_from(end.0)) else {
            return;
        };
        let Some(own) = runs.get_mut(from..to) else {
            return;
        };
        own.fill(1);
        // No overflow: pages of one window.
        let all = before.saturating_add(pages).saturating_add(behind);
        let first = range.start.0.saturating_sub(before);
        let last = first.saturating_add(all).saturating_sub(1);
        for end in [first, last] {
            let end = usize::try_from(end).ok().and_then(|end| runs.get_mut(end));
            if let Some(end) = end {
                *end = all;
            }
        }
        if self.piece.is_none() && all >= self.pages {
            // What was there before is shorter: some of `range` is in it.
            self.piece = Some(PageRange::new(first, self.pages));
        }
    }

    /// Where there would be such a piece, once there would.
    pub fn piece(&self) -> Option<PageRange> {
        self.piece
    }
}

/// What of the window there is to be room in: all of it, or a piece, for which it is planned who
/// has to leave before anybody does.
pub struct Room<H: Heap> {
    /// For whom nobody leaves yet.
    plan: Option<Plan<H>>,
    /// Pages of the window of which there is to be room; all at first.
    piece: PageRange,
}

impl<H: Heap> Room<H> {
    /// All of the window, for what is planned, or for who may leave at once.
    pub fn new(plan: Option<Plan<H>>) -> Self {
        Self {
            plan,
            piece: PageRange::new(0, u64::MAX),
        }
    }

    /// How many pages of `range` are where there is to be room.
    pub fn pages_of(&self, range: PageRange) -> u64 {
        let end = |range: PageRange| range.end().map_or(u64::MAX, |end| end.0);
        let start = range.start.0.max(self.piece.start.0);
        end(range).min(end(self.piece)).saturating_sub(start)
    }

    /// Plans that who has `range` leaves; how much less is missing then: all of it once there would
    /// be a piece. [`None`] if nothing is planned any more, and who is told to leave does.
    pub fn would_leave(&mut self, range: Option<PageRange>) -> Option<u64> {
        let plan = self.plan.as_mut()?;
        if let Some(range) = range {
            plan.add(range);
        }
        Some(if plan.piece().is_some() { u64::MAX } else { 0 })
    }

    /// Ends the planning: from now on there is to be room in the piece that was found alone.
    /// Whether there was one.
    pub fn decide(&mut self) -> bool {
        let piece = self.plan.take().and_then(|plan| plan.piece());
        self.piece = piece.unwrap_or(self.piece);
        piece.is_some()
    }
}

/// A place in which room is needed in one piece.
pub trait Contiguous: Place {
    /// What of it there is to be room in, which its [`Place::facts`] and [`Place::leave`] go by.
    fn room(&mut self) -> &mut Room<Self::Heap>;
}

/// Has objects leave `place` for one of `bytes` bytes, for which it is planned: those that may are
/// taken in their order, until with what is free they are a piece, and of them those leave that are
/// in it. Whether they were told to; if there can be no such piece, nobody is.
///
/// # Errors
///
/// As [`leave`].
pub fn make_room<P: Contiguous>(place: &mut P, bytes: u64) -> Result<bool, P::Error> {
    leave(place, Need::Needs, bytes)?;
    if !place.room().decide() {
        return Ok(false);
    }
    leave(place, Need::Needs, u64::MAX)?;
    Ok(true)
}
