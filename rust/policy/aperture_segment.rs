// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The aperture segment: who has which pages of a window that shows system memory.
//!
//! An object is mapped in one piece, whatever its pages are: the window makes them contiguous. It
//! begins where the largest pages of a process do that it has room for, if there is such a place, so
//! that few entries lead there.
//!
//! The first pages are the miniport's own, and not the segment's.
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
    heap::Heap,
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
}
