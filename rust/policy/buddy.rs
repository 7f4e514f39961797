// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who has which page of VRAM.
//!
//! A binary buddy allocator over pages of 4 KiB, numbered from 0. A *block* of order *o* is 2^*o*
//! pages that begin at a multiple of 2^*o*; free memory is kept as the fewest, largest blocks: two
//! free halves of a block never stand alone. The number of pages need not be a power of two.
//!
//! Two kinds of request:
//!
//! - **contiguous** ([`Buddy::alloc`]): one range of exactly the pages asked for; what a block has
//!   more is given back at once. If no single block is large enough, neighbouring free blocks that
//!   are together large enough serve, so a contiguous request fails only if no free range fits.
//! - **scattered** ([`Buddy::alloc_scattered`]): as few blocks as possible, largest first, all or
//!   none.
//!
//! **Clean and dirty.** Free memory is *dirty* when it is freed, *clean* when it is known to be
//! zero, and neither as long as nobody has had it. Requests take clean memory where that cuts no
//! larger free block than other memory would, and say what of theirs is not clean. Who clears
//! memory that is free takes some dirty blocks out ([`Buddy::take_dirty`]), which nobody gets
//! meanwhile and which still count as free, and gives them back ([`Buddy::give_back`]). Blocks
//! merge whether or not they are clean: what is, is kept beside, as the fewest, largest blocks of
//! either kind. No request gets more blocks for what is clean.
//!
//! **Why not `gpu_buddy`.** The kernel's `drivers/gpu/buddy.c` would serve the requests. This one
//! also runs on the host, like all of the policy, where it is checked against a list of pages, with
//! each of its allocations failing once; what it is given back it checks, where `gpu_buddy` trusts
//! a pointer; and it merges what is clean with what is dirty, and still knows which is which, where
//! `gpu_buddy` does the one or the other. With the driver upstream it would be the first to go.
//!
//! **What it costs.** Memory follows the pages that were ever handed out, not the size of what is
//! managed: about 10 bits for each, where they are neighbours, 13 if some are cleared, and some
//! kilobytes. It is allocated by the requests; a free allocates nothing and cannot fail. Requests
//! and frees change O(log n) blocks, and as many as the memory has had changes from clean to dirty
//! that they end, each found by O(log n) bit tests. The one exception is a contiguous request that
//! no single block serves: it looks at the free blocks of at least a quarter of its size.
//!
//! **What it refuses.** The bounds of every allocation are kept; a free of anything but exactly one
//! of them (twice, in parts, foreign) is an error and changes nothing.
//!
//! Invariants: a page is in exactly one free block or in exactly one allocation, or is being
//! cleared; a free page is in at most one clean or dirty block, and no other page is; no two
//! buddies are in one `Forest`; for the first and the last page of each allocation and each
//! order, the words that hold the free and the dirty blocks with these pages are prepared.
//!
//! # Examples
//!
//! ```
//! use skua_policy::buddy::{Buddy, PageCount, Request};
//! use skua_policy::heap::FallibleVec;
//! use skua_policy::std_heap::{StdHeap, StdVec};
//!
//! // A terabyte.
//! let mut vram = Buddy::<StdHeap>::new(PageCount(1 << 28))?;
//! let range = vram.alloc(Request {
//!     pages: PageCount(3),
//!     align: PageCount(1),
//! })?;
//! assert_eq!(vram.free_pages(), PageCount((1 << 28) - 3));
//! vram.free(range)?;
//! assert!(vram.free(range).is_err());
//!
//! // In the background, while there is something to do.
//! while vram.dirty_pages() > PageCount(0) {
//!     let mut blocks = StdVec::new();
//!     vram.take_dirty(PageCount(1 << 13), &mut blocks)?;
//!     for block in blocks.as_slice() {
//!         vram.give_back(*block, true)?;
//!     }
//! }
//! assert_eq!(vram.clean_pages(), PageCount(3));
//! # Ok::<(), skua_policy::buddy::BuddyError>(())
//! ```

use super::bit_tree::BitTree;
use super::heap::{FallibleVec, Heap, OutOfMemory};
use core::ops::Range;

#[cfg(test)]
mod tests;

/// Blocks that are out to be cleared at a time.
pub const MAX_OUT: usize = 32;

/// Size of the allocator's page in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The number of a page: its offset from the start of the managed memory in units of
/// [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

/// A number of pages of [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageCount(pub u64);

/// A contiguous range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// Number of the first page; the memory begins with 0.
    pub start: PageIndex,
    /// How many pages it has, from `start` on.
    pub pages: PageCount,
}

impl PageRange {
    /// The range of `pages` pages from page `start`.
    pub const fn new(start: u64, pages: u64) -> Self {
        PageRange {
            start: PageIndex(start),
            pages: PageCount(pages),
        }
    }

    /// The page behind the last, if the range ends at all within 64 bits.
    pub const fn end(&self) -> Option<PageIndex> {
        match self.start.0.checked_add(self.pages.0) {
            Some(end) => Some(PageIndex(end)),
            None => None,
        }
    }
}

/// A contiguous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How much; at least one page.
    pub pages: PageCount,
    /// The first page is a multiple of this; a power of two.
    pub align: PageCount,
}

/// A scattered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scattered {
    /// How much in sum; at least one.
    pub pages: PageCount,
    /// Each block is at least this large, but the last if that is the rest, and so aligned; a power
    /// of two.
    pub granule: PageCount,
    /// Every block lies within these pages, as far as they are managed.
    pub within: PageRange,
}

/// Why a request was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuddyError {
    /// No pages, an alignment or granule that is not a power of two, or a range outside the memory.
    Invalid,
    /// Not enough free memory, or not in large enough pieces.
    NoSpace,
    /// Part of the range to reserve is not free; or blocks are out to be cleared.
    Busy,
    /// Exactly this range is not allocated, or not out: freed before, or never handed out so.
    NotAllocated,
    /// No memory for the allocator's records, or for the caller's list.
    OutOfMemory,
}

impl From<OutOfMemory> for BuddyError {
    fn from(_: OutOfMemory) -> Self {
        BuddyError::OutOfMemory
    }
}

/// A possible block: number `at` among those of its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    /// log2 of its pages.
    order: u32,
    /// Its number among those of its order: its first page, divided by its pages.
    at: u64,
}

impl Node {
    fn start(self) -> u64 {
        self.at << self.order
    }

    fn end(self) -> u64 {
        (self.at + 1) << self.order
    }

    fn buddy(self) -> Node {
        Node {
            order: self.order,
            at: self.at ^ 1,
        }
    }

    fn parent(self) -> Node {
        Node {
            order: self.order + 1,
            at: self.at >> 1,
        }
    }

    /// The halves; only of a node above order 0.
    fn halves(self) -> (Node, Node) {
        let order = self.order.saturating_sub(1);
        let at = self.at << 1;
        (Node { order, at }, Node { order, at: at | 1 })
    }
}

/// The blocks of one order.
struct Order<H: Heap> {
    /// Members are block numbers: first page >> order.
    blocks: BitTree<H>,
    /// How many members `blocks` has.
    count: u64,
}

/// A set of pages, as the fewest, largest blocks.
struct Forest<H: Heap> {
    /// The blocks of each order, by its number.
    orders: H::Vec<Order<H>>,
    /// Pages in all of them.
    pages: u64,
}

/// Who has which pages of a range that starts at 0.
pub struct Buddy<H: Heap> {
    /// Blocks that nobody has.
    free: Forest<H>,
    /// Free blocks that are known to be zero.
    clean: Forest<H>,
    /// Free blocks that are not clean any more: somebody has had them.
    dirty: Forest<H>,
    /// What is being cleared, at most [`MAX_OUT`].
    out: H::Vec<Node>,
    /// First pages of allocations.
    starts: BitTree<H>,
    /// Last pages of allocations.
    lasts: BitTree<H>,
    /// Pages, free or not.
    total: u64,
}

impl<H: Heap> Forest<H> {
    /// An empty set of pages below `total`, which is not 0.
    fn new(total: u64) -> Result<Self, OutOfMemory> {
        let mut orders: H::Vec<Order<H>> = FallibleVec::new();
        for order in 0..=total.ilog2() {
            orders.try_push(Order {
                blocks: BitTree::new(total >> order)?,
                count: 0,
            })?;
        }
        Ok(Forest { orders, pages: 0 })
    }

    /// The orders that a block can have.
    fn all(&self) -> Range<u32> {
        // CAST: at most 49.
        0..self.orders.len() as u32
    }

    fn order(&self, order: u32) -> Option<&Order<H>> {
        self.orders.as_slice().get(usize::try_from(order).ok()?)
    }

    fn order_mut(&mut self, order: u32) -> Option<&mut Order<H>> {
        self.orders
            .as_mut_slice()
            .get_mut(usize::try_from(order).ok()?)
    }

    fn contains(&self, node: Node) -> bool {
        self.order(node.order)
            .is_some_and(|order| order.blocks.contains(node.at))
    }

    /// The first block of `order` that ends behind `page`.
    fn next(&self, order: u32, page: u64) -> Option<Node> {
        let at = self.order(order)?.blocks.next(page >> order)?;
        Some(Node { order, at })
    }

    /// The block that holds `page`.
    fn around(&self, page: u64) -> Option<Node> {
        self.all()
            .map(|order| Node {
                order,
                at: page >> order,
            })
            .find(|node| self.contains(*node))
    }

    /// The block that holds `page`, or else the first behind it, if it begins before `end`.
    fn around_or_behind(&self, page: u64, end: u64) -> Option<Node> {
        let nodes = self.all().filter_map(|order| self.next(order, page));
        nodes
            .min_by_key(|node| node.start())
            .filter(|node| node.start() < end)
    }

    /// The block of `order` to hand out: in the set, or the first part of a larger one, the
    /// tightest fit `within` which it lies.
    fn locate(&self, order: u32, within: PageRange) -> Option<Node> {
        let (from, end) = (within.start.0, within.end()?.0);
        let part = |node: Node| {
            let start = node
                .start()
                .max(from)
                .checked_next_multiple_of(1 << order)?;
            // Blocks end below 2^48.
            let fits = start.saturating_add(1 << order) <= node.end().min(end);
            fits.then_some(Node {
                order,
                at: start >> order,
            })
        };
        (order..self.all().end).find_map(|larger| {
            let first = self.next(larger, from)?;
            // The first one may begin before `from`, and what is left of it be too small.
            part(first).or_else(|| part(self.next(larger, first.end())?))
        })
    }

    /// Allocates what taking out `pages` pages from `start`, and putting them back, can have to
    /// record.
    ///
    /// Of each order these are blocks at the first or the last page, or the buddies of such: parts
    /// of the blocks that are cut, the range's own blocks, and what they merge to. Buddies are in
    /// one word, of which only the even one is sure to be a block.
    fn prepare(&mut self, start: u64, pages: u64) -> Result<(), OutOfMemory> {
        let last = start + (pages - 1);
        for (order, set) in (0u32..).zip(self.orders.as_mut_slice()) {
            set.blocks.prepare(start >> order & !1)?;
            set.blocks.prepare(last >> order & !1)?;
        }
        Ok(())
    }

    /// The same for `node` alone: there is nothing below its order.
    fn prepare_block(&mut self, node: Node) -> Result<(), OutOfMemory> {
        let orders = (0u32..).zip(self.orders.as_mut_slice());
        for (order, set) in orders.skip_while(|(order, _)| *order < node.order) {
            set.blocks.prepare(node.start() >> order & !1)?;
        }
        Ok(())
    }

    /// Takes out what it has of `pages` pages from `start`.
    fn cut(&mut self, start: u64, pages: u64) {
        let end = start + pages;
        let mut at = start;
        while let Some(mut node) = self.around_or_behind(at, end) {
            at = at.max(node.start());
            self.remove(node);
            while node.start() < at || node.end() > end {
                let (left, right) = node.halves();
                let other;
                (node, other) = if at < right.start() {
                    (left, right)
                } else {
                    (right, left)
                };
                self.insert(other);
            }
            at = node.end();
        }
    }

    /// Adds a range of which it has nothing, block by block.
    fn put_range(&mut self, start: u64, pages: u64) {
        let mut at = start;
        let mut left = pages;
        while left > 0 {
            let order = at.trailing_zeros().min(left.ilog2());
            self.put(Node {
                order,
                at: at >> order,
            });
            at += 1 << order;
            left -= 1 << order;
        }
    }

    /// Adds a block and merges it with its buddy as often as it has that.
    fn put(&mut self, mut node: Node) {
        while self.contains(node.buddy()) {
            self.remove(node.buddy());
            node = node.parent();
        }
        self.insert(node);
    }

    fn insert(&mut self, node: Node) {
        let order = self.order_mut(node.order);
        let changed = order.is_some_and(|order| {
            let changed = order.blocks.insert(node.at);
            order.count += u64::from(changed);
            changed
        });
        debug_assert!(changed, "{node:?} is there twice, or was not prepared");
        if changed {
            self.pages += 1 << node.order;
        }
    }

    fn remove(&mut self, node: Node) {
        let order = self.order_mut(node.order);
        let changed = order.is_some_and(|order| {
            let changed = order.blocks.remove(node.at);
            order.count -= u64::from(changed);
            changed
        });
        debug_assert!(changed, "{node:?} is not there");
        if changed {
            self.pages -= 1 << node.order;
        }
    }
}

impl<H: Heap> Buddy<H> {
    /// An allocator of `total` pages, all free.
    ///
    /// # Errors
    ///
    /// - [`BuddyError::Invalid`]: no pages, or more than 2^48.
    /// - [`BuddyError::OutOfMemory`].
    pub fn new(total: PageCount) -> Result<Self, BuddyError> {
        let total = total.0;
        if total == 0 || total > 1 << 48 {
            return Err(BuddyError::Invalid);
        }
        let mut buddy = Buddy {
            free: Forest::new(total)?,
            clean: Forest::new(total)?,
            dirty: Forest::new(total)?,
            out: FallibleVec::with_capacity(MAX_OUT)?,
            starts: BitTree::new(total)?,
            lasts: BitTree::new(total)?,
            total,
        };
        buddy.free.prepare(0, total)?;
        buddy.free.put_range(0, total);
        Ok(buddy)
    }

    /// The pages managed.
    pub fn total(&self) -> PageCount {
        PageCount(self.total)
    }

    /// The free ones of them.
    pub fn free_pages(&self) -> PageCount {
        PageCount(self.free.pages + self.out_pages())
    }

    /// Those of the free ones that are clean.
    pub fn clean_pages(&self) -> PageCount {
        PageCount(self.clean.pages)
    }

    /// Those of the free ones that are dirty, also what is out to be cleared.
    pub fn dirty_pages(&self) -> PageCount {
        PageCount(self.dirty.pages + self.out_pages())
    }

    /// The size of the largest free block. A contiguous request of so many pages, aligned to as
    /// many, succeeds; a larger one may, where blocks are neighbours.
    pub fn largest_free_block(&self) -> PageCount {
        let mut orders = self.free.all().rev();
        let largest = orders.find(|order| self.free_blocks(*order) > 0);
        PageCount(largest.map_or(0, |order| 1 << order))
    }

    /// The number of free blocks of `2^order` pages, for reports.
    pub fn free_blocks(&self, order: u32) -> u64 {
        self.free.order(order).map_or(0, |order| order.count)
    }

    /// Hands out one contiguous range.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::NoSpace`], [`BuddyError::OutOfMemory`].
    pub fn alloc(&mut self, request: Request) -> Result<PageRange, BuddyError> {
        let (pages, align) = (request.pages.0, request.align.0);
        if pages == 0 || !align.is_power_of_two() {
            return Err(BuddyError::Invalid);
        }
        if pages > self.free.pages {
            return Err(BuddyError::NoSpace);
        }
        // No overflow: pages <= free <= 2^48.
        let order = pages.next_power_of_two().max(align).ilog2();
        let start = self
            .locate(order, PageRange::new(0, self.total))
            .map(Node::start)
            .or_else(|| self.find_run(pages, align))
            .ok_or(BuddyError::NoSpace)?;
        Ok(self.hand_out(start, pages)?)
    }

    /// Hands out blocks of `request.pages` pages in sum and appends them to `out`, largest first,
    /// as few as can be; and to `unclean` what of them is not clean. Each of `out` is to be freed
    /// on its own.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::NoSpace`], [`BuddyError::OutOfMemory`]; the lists and
    /// the allocator are as before.
    pub fn alloc_scattered(
        &mut self,
        request: Scattered,
        out: &mut impl FallibleVec<PageRange>,
        unclean: &mut impl FallibleVec<PageRange>,
    ) -> Result<(), BuddyError> {
        let (pages, granule) = (request.pages.0, request.granule.0);
        let within = request.within;
        if pages == 0 || !granule.is_power_of_two() || within.end().is_none() {
            return Err(BuddyError::Invalid);
        }
        let floor = granule.ilog2();
        // Spares most of the requests that cannot be met the trouble of giving back.
        if pages > self.free.pages {
            return Err(BuddyError::NoSpace);
        }
        let had = (out.len(), unclean.len());
        let mut left = pages;
        let mut order = left.ilog2().min(self.total.ilog2());
        while left > 0 {
            order = order.min(left.ilog2()).max(floor);
            let Some(node) = self.locate(order, within) else {
                if order <= floor {
                    self.take_back(out, unclean, had);
                    return Err(BuddyError::NoSpace);
                }
                order -= 1;
                continue;
            };
            let part = left.min(1 << order);
            let listed = unclean.len();
            let ready = out.reserve(1);
            let ready = ready.and_then(|()| self.list_unclean(node.start(), part, unclean));
            match ready.and_then(|()| self.take(node.start(), part)) {
                // Within the capacity: cannot fail.
                Ok(range) => drop(out.try_push(range)),
                Err(error) => {
                    truncate(unclean, listed);
                    self.take_back(out, unclean, had);
                    return Err(error.into());
                }
            }
            left -= part;
        }
        for block in out.as_slice().get(had.0..).unwrap_or_default() {
            self.dirty.cut(block.start.0, block.pages.0);
        }
        Ok(())
    }

    /// Takes free dirty blocks out, to be cleared, and appends them to `out`: at most [`MAX_OUT`]
    /// of `most` pages in all, large ones first; none if nothing is dirty. They are for
    /// [`Self::give_back`]; until then nobody gets them.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Busy`]: some are out. [`BuddyError::OutOfMemory`].
    pub fn take_dirty(
        &mut self,
        most: PageCount,
        out: &mut impl FallibleVec<PageRange>,
    ) -> Result<(), BuddyError> {
        if !self.out.as_slice().is_empty() {
            return Err(BuddyError::Busy);
        }
        if self.dirty.pages == 0 {
            return Ok(());
        }
        out.reserve(MAX_OUT)?;
        let mut left = most.0;
        while let (Some(most), true) = (left.checked_ilog2(), self.out.len() < MAX_OUT) {
            let mut orders = self.dirty.all().rev();
            let Some(found) = orders.find_map(|order| self.dirty.next(order, 0)) else {
                break;
            };
            let order = found.order.min(most);
            let node = Node {
                order,
                at: found.start() >> order,
            };
            let mut all = [&mut self.free, &mut self.dirty, &mut self.clean];
            let prepared = all.iter_mut().try_for_each(|it| it.prepare_block(node));
            if prepared.is_err() && self.out.as_slice().is_empty() {
                return Err(BuddyError::OutOfMemory);
            }
            if prepared.is_err() {
                break;
            }
            let pages = 1 << order;
            self.free.cut(node.start(), pages);
            self.dirty.cut(node.start(), pages);
            // Within the capacity, both.
            _ = self.out.try_push(node);
            _ = out.try_push(PageRange::new(node.start(), pages));
            left -= pages;
        }
        Ok(())
    }

    /// Takes a block back that is out: it was cleared (`clean`), or not. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`BuddyError::NotAllocated`]: `range` is not exactly one of these.
    pub fn give_back(&mut self, range: PageRange, clean: bool) -> Result<(), BuddyError> {
        let is_it = |node: &Node| PageRange::new(node.start(), 1 << node.order) == range;
        let out = self.out.as_mut_slice();
        let at = out.iter().position(is_it).ok_or(BuddyError::NotAllocated)?;
        let last = out.len() - 1;
        out.swap(at, last);
        let node = self.out.pop().ok_or(BuddyError::NotAllocated)?;
        self.free.put(node);
        match clean {
            true => self.clean.put(node),
            false => self.dirty.put(node),
        }
        Ok(())
    }

    /// Has nothing be clean any more; it is as if nobody had had it. Allocates nothing.
    pub fn forget_clean(&mut self) {
        self.clean.cut(0, self.total);
    }

    /// Takes a fixed range out of the free memory: what firmware or hardware uses. It is an
    /// allocation like others and can be freed.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::Busy`], [`BuddyError::OutOfMemory`].
    pub fn reserve(&mut self, range: PageRange) -> Result<PageRange, BuddyError> {
        let start = range.start.0;
        let end = range.end().ok_or(BuddyError::Invalid)?.0;
        if range.pages.0 == 0 || end > self.total {
            return Err(BuddyError::Invalid);
        }
        let mut at = start;
        while at < end {
            at = self.free.around(at).ok_or(BuddyError::Busy)?.end();
        }
        Ok(self.hand_out(start, range.pages.0)?)
    }

    /// Takes an allocation back. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`BuddyError::NotAllocated`]: `range` is not exactly one allocation.
    pub fn free(&mut self, range: PageRange) -> Result<(), BuddyError> {
        let start = range.start.0;
        let last = range
            .pages
            .0
            .checked_sub(1)
            .and_then(|more| start.checked_add(more))
            .ok_or(BuddyError::NotAllocated)?;
        if !self.starts.contains(start) || self.lasts.next(start) != Some(last) {
            return Err(BuddyError::NotAllocated);
        }
        self.forget(range);
        self.dirty.put_range(start, range.pages.0);
        Ok(())
    }

    /// Pages that are being cleared.
    fn out_pages(&self) -> u64 {
        let out = self.out.as_slice().iter();
        out.map(|node| 1 << node.order).sum()
    }

    /// The block of `order` to hand out, `within` which it lies: a clean one, if that is part of no
    /// larger free block than another one would be.
    fn locate(&self, order: u32, within: PageRange) -> Option<Node> {
        let tight = self.free.locate(order, within)?;
        let cut = |node: Node| self.free.around(node.start()).map(|free| free.order);
        let clean = self.clean.locate(order, within);
        let clean = clean.filter(|clean| cut(*clean) == cut(tight));
        clean.or(Some(tight))
    }

    /// Appends what is not clean of `pages` free pages from `start` to `list`.
    fn list_unclean(
        &self,
        start: u64,
        pages: u64,
        list: &mut impl FallibleVec<PageRange>,
    ) -> Result<(), OutOfMemory> {
        let end = start + pages;
        let mut at = start;
        while at < end {
            let clean = self.clean.around_or_behind(at, end);
            let next = clean.map_or(end, |node| node.start().max(at));
            if next > at {
                list.try_push(PageRange::new(at, next - at))?;
            }
            at = clean.map_or(end, Node::end);
        }
        Ok(())
    }

    /// The free block that page `page` is in.
    pub fn free_block(&self, page: u64) -> Option<PageRange> {
        let node = self.free.around(page)?;
        Some(PageRange::new(node.start(), 1 << node.order))
    }

    /// How many free pages there are below `end`. Looks at each free block there.
    pub fn free_below(&self, end: PageIndex) -> PageCount {
        let below = |node: &Node| end.0.min(node.end()).saturating_sub(node.start());
        let mut sum = self.out.as_slice().iter().map(below).sum();
        for order in self.free.all() {
            let mut next = self.free.next(order, 0);
            while let Some(node) = next.filter(|node| node.start() < end.0) {
                sum += below(&node);
                next = self.free.next(order, node.end());
            }
        }
        PageCount(sum)
    }

    /// How many free pages there are in blocks of `2^order` pages at least.
    pub fn free_in(&self, order: u32) -> PageCount {
        let out = self.out.as_slice().iter();
        let out = out.filter(|node| node.order >= order);
        let out: u64 = out.map(|node| 1 << node.order).sum();
        let orders = order..self.free.all().end.max(order);
        PageCount(out + orders.map(|o| self.free_blocks(o) << o).sum::<u64>())
    }

    /// The start of a free range of `pages` pages, aligned, that no single block contains.
    fn find_run(&self, pages: u64, align: u64) -> Option<u64> {
        // A free range of n pages contains a whole block of more than n / 4.
        let floor = pages.ilog2().saturating_sub(1);
        for order in floor..self.free.all().end {
            let mut from = 0;
            while let Some(node) = self.free.next(order, from) {
                let (mut start, mut end) = (node.start(), node.end());
                let before = |page: u64| self.free.around(page.checked_sub(1)?);
                while let Some(before) = before(start) {
                    start = before.start();
                }
                while let Some(behind) = self.free.around(end) {
                    end = behind.end();
                }
                let aligned = start.checked_next_multiple_of(align)?;
                if aligned.checked_add(pages).is_some_and(|e| e <= end) {
                    return Some(aligned);
                }
                // What is left of this order in the range would find the same range.
                from = end;
            }
        }
        None
    }

    /// Hands out `pages` pages from `start`, all of them free.
    fn hand_out(&mut self, start: u64, pages: u64) -> Result<PageRange, OutOfMemory> {
        let range = self.take(start, pages)?;
        self.dirty.cut(start, pages);
        Ok(range)
    }

    /// The same, but that what is dirty is left to be cut.
    fn take(&mut self, start: u64, pages: u64) -> Result<PageRange, OutOfMemory> {
        self.free.prepare(start, pages)?;
        self.dirty.prepare(start, pages)?;
        if self.clean.pages > 0 {
            self.clean.prepare(start, pages)?;
        }
        let last = start + (pages - 1);
        self.starts.prepare(start)?;
        self.lasts.prepare(last)?;
        self.free.cut(start, pages);
        self.clean.cut(start, pages);
        self.starts.insert(start);
        self.lasts.insert(last);
        Ok(PageRange::new(start, pages))
    }

    /// Has an allocation be free, and neither clean nor dirty.
    fn forget(&mut self, range: PageRange) {
        let start = range.start.0;
        self.starts.remove(start);
        self.lasts.remove(start + (range.pages.0 - 1));
        self.free.put_range(start, range.pages.0);
    }

    /// Undoes [`Self::take`] of the elements of `list` from `had` on, of which those of `unclean`
    /// were not.
    fn take_back(
        &mut self,
        list: &mut impl FallibleVec<PageRange>,
        unclean: &mut impl FallibleVec<PageRange>,
        had: (usize, usize),
    ) {
        while list.len() > had.0 {
            let Some(block) = list.pop() else { break };
            self.forget(block);
            let start = block.start.0;
            let mut end = start + block.pages.0;
            // From the last one on, block by block.
            let parts = unclean.as_slice().get(had.1..).unwrap_or_default();
            let is_own = |part: &&PageRange| (start..end).contains(&part.start.0);
            let own = parts.iter().rev().take_while(is_own).count();
            for _ in 0..own {
                let Some(part) = unclean.pop() else { break };
                let behind = part.start.0 + part.pages.0;
                self.clean.put_range(behind, end - behind);
                end = part.start.0;
            }
            self.clean.put_range(start, end - start);
        }
    }
}

/// Removes the elements of `list` from `len` on.
fn truncate(list: &mut impl FallibleVec<PageRange>, len: usize) {
    while list.len() > len {
        list.pop();
    }
}
