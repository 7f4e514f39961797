// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where a page of scattered memory is.
//!
//! [`Blocks`] are the blocks of one owner, in the order of its bytes. A fault asks for pages of it
//! with a lock that others' faults wait for, so that does not take longer for who is in many
//! pieces: a page is found in log2 of them steps.
//!
//! # Examples
//!
//! ```
//! use skua_policy::blocks::Blocks;
//! use skua_policy::buddy::{PageIndex, PageRange};
//! use skua_policy::heap::{FallibleVec, Heap};
//! use skua_policy::std_heap::StdHeap;
//!
//! let mut list = <StdHeap as Heap>::Vec::new();
//! list.try_push(PageRange::new(70, 2))?;
//! list.try_push(PageRange::new(8, 4))?;
//! let blocks = Blocks::<StdHeap>::take(&mut list)?;
//! assert_eq!(blocks.find(3), Some(PageIndex(9)));
//! assert_eq!(blocks.find(6), None);
//! # Ok::<(), skua_policy::heap::OutOfMemory>(())
//! ```

use super::{
    buddy::{PageIndex, PageRange},
    heap::{FallibleVec, Heap, OutOfMemory},
};

#[cfg(test)]
mod tests;

/// Blocks of pages, in the order of what they hold; a single one needs no memory of its own.
pub struct Blocks<H: Heap>(Inner<H>);

enum Inner<H: Heap> {
    One(PageRange),
    Others(H::Box<Others<H>>),
}

/// No block, or several.
struct Others<H: Heap> {
    /// In the order of the owner's pages.
    blocks: H::Vec<PageRange>,
    /// For each of them the owner's first page behind it.
    ends: H::Vec<u64>,
}

impl<H: Heap> Blocks<H> {
    /// Takes the blocks out of `list`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; they are still there.
    pub fn take(list: &mut H::Vec<PageRange>) -> Result<Self, OutOfMemory> {
        if let [block] = list.as_slice() {
            return Ok(Self(Inner::One(*block)));
        }
        let mut ends = H::Vec::with_capacity(list.len())?;
        let mut end = 0u64;
        for block in list.as_slice() {
            end = end.saturating_add(block.pages.0);
            ends.try_push(end)?;
        }
        let mut others = H::boxed(Others {
            blocks: H::Vec::new(),
            ends,
        })?;
        core::mem::swap(&mut others.blocks, list);
        Ok(Self(Inner::Others(others)))
    }

    /// The blocks, in the order of what they hold.
    pub fn as_slice(&self) -> &[PageRange] {
        match &self.0 {
            Inner::One(block) => core::slice::from_ref(block),
            Inner::Others(others) => others.blocks.as_slice(),
        }
    }

    /// Where page `page` of the owner is, counted from 0; [`None`] behind its last.
    pub fn find(&self, page: u64) -> Option<PageIndex> {
        self.find_with(page, || ())
    }

    /// Does that, and calls `look` for each block that it looks at.
    fn find_with(&self, page: u64, mut look: impl FnMut()) -> Option<PageIndex> {
        let (block, first) = match &self.0 {
            Inner::One(block) => (block, 0),
            Inner::Others(others) => {
                let ends = others.ends.as_slice();
                let number = ends.partition_point(|end| {
                    look();
                    *end <= page
                });
                let before = number.checked_sub(1).and_then(|before| ends.get(before));
                let block = others.blocks.as_slice().get(number)?;
                (block, before.copied().unwrap_or(0))
            }
        };
        let inside = page.checked_sub(first)?;
        (inside < block.pages.0).then(|| PageIndex(block.start.0.saturating_add(inside)))
    }
}
