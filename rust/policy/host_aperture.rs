// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the CPU host aperture shows, and which of its pages is taken next.
//!
//! The aperture is a window of the CPU on a memory segment, of fewer pages than that has. Each of
//! its pages shows a page of the segment, or nothing; a page of the segment is shown once at most.
//! All who want to see it share the one.
//!
//! Whether the CPU goes on using what it has mapped cannot be seen. So a page is kept until another
//! one is wanted: then [`HostAperture::next`] is one that shows nothing, or else the one that was
//! mapped longest ago ([`HostAperture::touch`], [`HostAperture::show`]), which can be taken back,
//! for its user can fault again. One whose user has locked it ([`HostAperture::hold`]) comes last.
//! Who goes on behind what was mapped last ([`HostAperture::is_last`]) will want the pages behind,
//! too.
//!
//! All memory is allocated by [`HostAperture::new`]; everything else takes O(1), as far as a hash
//! does.
//!
//! Invariants: a page is in one list once, that of the held if it is, which it is only while it
//! shows something; in the other those that show nothing come before the rest. It is in one bucket
//! if it shows something, and no two of these show the same.
//!
//! # Examples
//!
//! ```
//! use skua_policy::host_aperture::{HostAperture, Shown};
//! use skua_policy::std_heap::StdHeap;
//!
//! let mut aperture = HostAperture::<StdHeap>::new(1).expect("memory");
//! let shown = Shown { page: 42, user: 0x1000 };
//! aperture.show(0, shown).expect("it shows nothing");
//! assert_eq!(aperture.find(42), Some(0));
//! // Whoever comes now takes it back first.
//! assert_eq!(aperture.next(), Some((0, Some(shown))));
//! assert_eq!(aperture.hide(0), Some(shown));
//! ```

use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
pub(super) mod tests;

/// No page.
const NIL: u32 = u32::MAX;

/// What a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The page of the segment.
    pub page: u64,
    /// Where its user finds it: kept for the caller, who has to tell them when it is taken back.
    pub user: u64,
}

/// It shows something already, or there is no such page, or what it is to show is shown elsewhere.
/// Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// A page of the aperture; others are named by their numbers, or [`NIL`].
#[derive(Clone, Copy)]
struct Page {
    /// What page of VRAM it shows, and of whom.
    shown: Option<Shown>,
    /// Which list it is in: that of those that a user has locked, which are taken when no other is
    /// left ([`HostAperture::hold`]).
    held: bool,
    /// The page of its list that is taken before it.
    before: u32,
    /// The page of its list that is taken after it.
    behind: u32,
    /// The next page in its bucket, or [`NIL`].
    chain: u32,
}

/// Pages in the order in which they are taken.
#[derive(Clone, Copy)]
struct List {
    /// The page that comes first, or [`NIL`].
    first: u32,
    /// The page that comes last, or [`NIL`].
    last: u32,
}

/// The pages of an aperture.
pub struct HostAperture<H: Heap> {
    /// Pages of the window, by their numbers.
    pages: H::Vec<Page>,
    /// The first page of each bucket; a power of two of them.
    buckets: H::Vec<u32>,
    /// Those that are not held, and those that are.
    lists: [List; 2],
    /// Pages that show something.
    used: u32,
}

impl<H: Heap> HostAperture<H> {
    /// An aperture of `pages` pages that show nothing; 0 is none.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn new(pages: u32) -> Result<Self, OutOfMemory> {
        let len = usize::try_from(pages).map_err(|_| OutOfMemory)?;
        let buckets = len.checked_next_power_of_two().ok_or(OutOfMemory)?;
        let none = Page {
            shown: None,
            held: false,
            before: NIL,
            behind: NIL,
            chain: NIL,
        };
        let mut aperture = HostAperture {
            pages: FallibleVec::filled_with(len, || none)?,
            buckets: FallibleVec::filled_with(buckets, || NIL)?,
            lists: [List {
                first: NIL,
                last: NIL,
            }; 2],
            used: 0,
        };
        for at in 0..pages {
            aperture.append(at);
        }
        Ok(aperture)
    }

    /// How many pages it has.
    pub fn total(&self) -> u32 {
        u32::try_from(self.pages.len()).unwrap_or(NIL)
    }

    /// How many of them show something.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Which page shows page `page` of the segment.
    pub fn find(&self, page: u64) -> Option<u32> {
        let mut at = *self.buckets.as_slice().get(self.bucket(page))?;
        loop {
            let candidate = self.page(at)?;
            if candidate.shown.is_some_and(|shown| shown.page == page) {
                return Some(at);
            }
            at = candidate.chain;
        }
    }

    /// Which page is taken next, and what it shows until it is hidden.
    pub fn next(&self) -> Option<(u32, Option<Shown>)> {
        let [free, held] = self.lists;
        let first = if free.first == NIL { held } else { free }.first;
        Some((first, self.page(first)?.shown))
    }

    /// Whether page `at` shows something, and none was mapped later, of all that are held, or of
    /// all others if it is not.
    pub fn is_last(&self, at: u32) -> bool {
        let is_last = |page: &Page| page.shown.is_some() && page.behind == NIL;
        self.page(at).is_some_and(is_last)
    }

    /// Page `at`, if it shows something, is taken last from now on, or like others again.
    pub fn hold(&mut self, at: u32, held: bool) {
        let is_other = |page: &Page| page.shown.is_some() && page.held != held;
        if self.page(at).is_some_and(is_other) {
            self.unlink(at);
            if let Some(page) = self.page_mut(at) {
                page.held = held;
            }
            self.append(at);
        }
    }

    /// Page `at`, which shows something, was mapped just now.
    pub fn touch(&mut self, at: u32) {
        if self.page(at).is_some_and(|page| page.shown.is_some()) {
            self.unlink(at);
            self.append(at);
        }
    }

    /// Page `at` shows something from now on, and was mapped just now.
    ///
    /// # Errors
    ///
    /// [`Taken`].
    pub fn show(&mut self, at: u32, shown: Shown) -> Result<(), Taken> {
        let bucket = self.bucket(shown.page);
        if self.find(shown.page).is_some() || self.page(at).ok_or(Taken)?.shown.is_some() {
            return Err(Taken);
        }
        self.unlink(at);
        self.append(at);
        let head = self.buckets.as_mut_slice().get_mut(bucket).ok_or(Taken)?;
        let chain = core::mem::replace(head, at);
        if let Some(page) = self.page_mut(at) {
            page.shown = Some(shown);
            page.chain = chain;
        }
        self.used = self.used.saturating_add(1);
        Ok(())
    }

    /// Page `at` shows nothing any more, and is the next to be taken; what it showed.
    pub fn hide(&mut self, at: u32) -> Option<Shown> {
        let shown = self.page_mut(at)?.shown.take()?;
        self.unchain(self.bucket(shown.page), at);
        self.unlink(at);
        self.page_mut(at)?.held = false;
        self.prepend(at);
        self.used = self.used.saturating_sub(1);
        Some(shown)
    }

    /// The bucket of a page of the segment.
    fn bucket(&self, page: u64) -> usize {
        // Fibonacci hashing: neighbours, and those a power of two apart, are spread. The upper half
        // is the better one.
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // CAST: 32 bits.
        hash as usize & self.buckets.len().saturating_sub(1)
    }

    fn page(&self, at: u32) -> Option<&Page> {
        self.pages.as_slice().get(usize::try_from(at).ok()?)
    }

    fn page_mut(&mut self, at: u32) -> Option<&mut Page> {
        self.pages.as_mut_slice().get_mut(usize::try_from(at).ok()?)
    }

    /// Takes page `at` out of a bucket.
    fn unchain(&mut self, bucket: usize, at: u32) {
        let behind = self.page(at).map_or(NIL, |page| page.chain);
        let Some(head) = self.buckets.as_mut_slice().get_mut(bucket) else {
            return;
        };
        if *head == at {
            *head = behind;
            return;
        }
        let mut before = *head;
        while let Some(page) = self.page_mut(before) {
            if page.chain == at {
                page.chain = behind;
                return;
            }
            before = page.chain;
        }
    }

    /// The list of a page that is held, or not.
    fn list(&mut self, held: bool) -> &mut List {
        let [free, all_held] = &mut self.lists;
        if held {
            all_held
        } else {
            free
        }
    }

    /// Whether page `at` is [held](Self::hold).
    pub fn is_held(&self, at: u32) -> bool {
        self.page(at).is_some_and(|page| page.held)
    }

    /// Takes page `at` out of its list.
    fn unlink(&mut self, at: u32) {
        let Some(&Page {
            before,
            behind,
            held,
            ..
        }) = self.page(at)
        else {
            return;
        };
        match self.page_mut(before) {
            Some(page) => page.behind = behind,
            None => self.list(held).first = behind,
        }
        match self.page_mut(behind) {
            Some(page) => page.before = before,
            None => self.list(held).last = before,
        }
    }

    /// Puts page `at`, which is in no list, at the end of its list.
    fn append(&mut self, at: u32) {
        let held = self.is_held(at);
        let last = core::mem::replace(&mut self.list(held).last, at);
        match self.page_mut(last) {
            Some(page) => page.behind = at,
            None => self.list(held).first = at,
        }
        if let Some(page) = self.page_mut(at) {
            (page.before, page.behind) = (last, NIL);
        }
    }

    /// Puts page `at`, which is in no list, at the beginning of its list.
    fn prepend(&mut self, at: u32) {
        let held = self.is_held(at);
        let first = core::mem::replace(&mut self.list(held).first, at);
        match self.page_mut(first) {
            Some(page) => page.before = at,
            None => self.list(held).last = at,
        }
        if let Some(page) = self.page_mut(at) {
            (page.before, page.behind) = (NIL, first);
        }
    }
}
