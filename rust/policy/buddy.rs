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
//! What was in memory when it was freed is still there: clearing is the owner's part.
//!
//! **Why not `gpu_buddy`.** The kernel's `drivers/gpu/buddy.c` would serve the requests. This one
//! also runs on the host, like all of the policy, where it is checked against a list of pages, with
//! each of its allocations failing once; and what it is given back it checks, where `gpu_buddy`
//! trusts a pointer. With the driver upstream it would be the first to go.
//!
//! **What it costs.** Memory follows the pages that were ever handed out, not the size of what is
//! managed: about 7 bits for each, where they are neighbours, and some kilobytes. It is allocated
//! by the requests; a free allocates nothing and cannot fail. Requests and frees change O(log n)
//! blocks, each found by O(log n) bit tests. The one exception is a contiguous request that no
//! single block serves: it looks at the free blocks of at least a quarter of its size.
//!
//! **What it refuses.** The bounds of every allocation are kept; a free of anything but exactly one
//! of them (twice, in parts, foreign) is an error and changes nothing.
//!
//! Invariants: a page is in exactly one free block or in exactly one allocation; no two buddies are
//! both free; for the first and the last page of each allocation and each order, the words that
//! hold the blocks with these pages are prepared.
//!
//! # Examples
//!
//! ```
//! use skua_policy::buddy::{Buddy, PageCount, Request};
//! use skua_policy::std_heap::StdHeap;
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
//! # Ok::<(), skua_policy::buddy::BuddyError>(())
//! ```

use super::bit_tree::BitTree;
use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

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
    /// Of these, from `start` on.
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
    /// Part of the range to reserve is not free.
    Busy,
    /// Exactly this range is not allocated: freed before, or never handed out so.
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
    order: u32,
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

/// The free blocks of one order.
struct Order<H: Heap> {
    /// Members are block numbers: first page >> order.
    free: BitTree<H>,
    /// How many members `free` has.
    count: u64,
}

/// Who has which pages of a range that starts at 0.
pub struct Buddy<H: Heap> {
    /// The free blocks, by order.
    orders: H::Vec<Order<H>>,
    /// First pages of allocations.
    starts: BitTree<H>,
    /// Last pages of allocations.
    lasts: BitTree<H>,
    /// Pages, free or not.
    total: u64,
    /// Pages that no allocation has.
    free: u64,
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
        let mut orders: H::Vec<Order<H>> = FallibleVec::new();
        for order in 0..=total.ilog2() {
            orders.try_push(Order {
                free: BitTree::new(total >> order)?,
                count: 0,
            })?;
        }
        let mut buddy = Buddy {
            orders,
            starts: BitTree::new(total)?,
            lasts: BitTree::new(total)?,
            total,
            free: 0,
        };
        buddy.prepare(0, total)?;
        buddy.put_range(0, total);
        Ok(buddy)
    }

    /// The pages managed.
    pub fn total(&self) -> PageCount {
        PageCount(self.total)
    }

    /// The free ones of them.
    pub fn free_pages(&self) -> PageCount {
        PageCount(self.free)
    }

    /// The size of the largest free block. A contiguous request of so many pages, aligned to as
    /// many, succeeds; a larger one may, where blocks are neighbours.
    pub fn largest_free_block(&self) -> PageCount {
        let largest = (0..=self.top())
            .rev()
            .find(|order| self.free_blocks(*order) > 0);
        PageCount(largest.map_or(0, |order| 1 << order))
    }

    /// The number of free blocks of `2^order` pages, for reports.
    pub fn free_blocks(&self, order: u32) -> u64 {
        self.order(order).map_or(0, |order| order.count)
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
        if pages > self.free {
            return Err(BuddyError::NoSpace);
        }
        // No overflow: pages <= free <= 2^48.
        let order = pages.next_power_of_two().max(align).ilog2();
        let start = self
            .locate(order, PageRange::new(0, self.total))
            .map(Node::start)
            .or_else(|| self.find_run(pages, align))
            .ok_or(BuddyError::NoSpace)?;
        self.hand_out(start, pages)
    }

    /// Hands out blocks of `request.pages` pages in sum and appends them to `out`, largest first,
    /// as few as can be. Each is to be freed on its own.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::NoSpace`], [`BuddyError::OutOfMemory`]; `out` and the
    /// allocator are as before.
    pub fn alloc_scattered(
        &mut self,
        request: Scattered,
        out: &mut impl FallibleVec<PageRange>,
    ) -> Result<(), BuddyError> {
        let (pages, granule) = (request.pages.0, request.granule.0);
        let within = request.within;
        if pages == 0 || !granule.is_power_of_two() || within.end().is_none() {
            return Err(BuddyError::Invalid);
        }
        let floor = granule.ilog2();
        // Spares most of the requests that cannot be met the trouble of giving back.
        if pages > self.free {
            return Err(BuddyError::NoSpace);
        }
        let had = out.len();
        let mut left = pages;
        let mut order = left.ilog2().min(self.top());
        while left > 0 {
            order = order.min(left.ilog2()).max(floor);
            let Some(node) = self.locate(order, within) else {
                if order <= floor {
                    self.take_back(out, had);
                    return Err(BuddyError::NoSpace);
                }
                order -= 1;
                continue;
            };
            let part = left.min(1 << order);
            let taken = match out.reserve(1) {
                Ok(()) => self.hand_out(node.start(), part),
                Err(error) => Err(error.into()),
            };
            match taken {
                // Within the capacity: cannot fail.
                Ok(range) => drop(out.try_push(range)),
                Err(error) => {
                    self.take_back(out, had);
                    return Err(error);
                }
            }
            left -= part;
        }
        Ok(())
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
            at = self.free_node_around(at).ok_or(BuddyError::Busy)?.end();
        }
        self.hand_out(start, range.pages.0)
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
        self.starts.remove(start);
        self.lasts.remove(last);
        self.put_range(start, range.pages.0);
        Ok(())
    }

    fn top(&self) -> u32 {
        self.total.checked_ilog2().unwrap_or(0)
    }

    fn order(&self, order: u32) -> Option<&Order<H>> {
        self.orders.as_slice().get(usize::try_from(order).ok()?)
    }

    fn order_mut(&mut self, order: u32) -> Option<&mut Order<H>> {
        self.orders
            .as_mut_slice()
            .get_mut(usize::try_from(order).ok()?)
    }

    fn is_free(&self, node: Node) -> bool {
        self.order(node.order)
            .is_some_and(|order| order.free.contains(node.at))
    }

    /// The free block that holds `page`.
    fn free_node_around(&self, page: u64) -> Option<Node> {
        (0..=self.top())
            .map(|order| Node {
                order,
                at: page >> order,
            })
            .find(|node| self.is_free(*node))
    }

    /// The free block that ends before `page`.
    fn free_node_before(&self, page: u64) -> Option<Node> {
        self.free_node_around(page.checked_sub(1)?)
    }

    /// The block of `order` to hand out: free, or the first part of a larger free one, the tightest
    /// fit `within` which it lies.
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
        (order..=self.top()).find_map(|larger| {
            let free = &self.order(larger)?.free;
            let node = |at| Node { order: larger, at };
            let first = free.next(from >> larger)?;
            // The first one may begin before `from`, and what is left of it be too small.
            part(node(first)).or_else(|| part(node(free.next(first.checked_add(1)?)?)))
        })
    }

    /// The free block that page `page` is in.
    pub fn free_block(&self, page: u64) -> Option<PageRange> {
        let node = self.free_node_around(page)?;
        Some(PageRange::new(node.start(), 1 << node.order))
    }

    /// How many free pages there are below `end`. Looks at each free block there.
    pub fn free_below(&self, end: PageIndex) -> PageCount {
        let mut sum = 0;
        for order in 0..=self.top() {
            let mut from = 0;
            while let Some(at) = self.order(order).and_then(|o| o.free.next(from)) {
                let node = Node { order, at };
                if node.start() >= end.0 {
                    break;
                }
                sum += node.end().min(end.0) - node.start();
                from = at + 1;
            }
        }
        PageCount(sum)
    }

    /// The start of a free range of `pages` pages, aligned, that no single block contains.
    fn find_run(&self, pages: u64, align: u64) -> Option<u64> {
        // A free range of n pages contains a whole block of more than n / 4.
        let floor = pages.ilog2().saturating_sub(1);
        for order in floor..=self.top() {
            let mut from = 0;
            while let Some(at) = self.order(order).and_then(|o| o.free.next(from)) {
                let node = Node { order, at };
                let (mut start, mut end) = (node.start(), node.end());
                while let Some(before) = self.free_node_before(start) {
                    start = before.start();
                }
                while let Some(behind) = self.free_node_around(end) {
                    end = behind.end();
                }
                let aligned = start.checked_next_multiple_of(align)?;
                if aligned.checked_add(pages).is_some_and(|e| e <= end) {
                    return Some(aligned);
                }
                // What is left of this order in the range would find the same range.
                from = (end >> order).max(at + 1);
            }
        }
        None
    }

    /// Allocates what handing out `pages` pages from `start`, and freeing them, can have to record.
    ///
    /// Of each order these are blocks at the first or the last page, or the buddies of such: parts
    /// of the free blocks that are cut, the range's own blocks, and what they merge to. Buddies are
    /// in one word, of which only the even one is sure to be a block.
    fn prepare(&mut self, start: u64, pages: u64) -> Result<(), OutOfMemory> {
        let last = start + (pages - 1);
        for (order, blocks) in (0u32..).zip(self.orders.as_mut_slice()) {
            blocks.free.prepare(start >> order & !1)?;
            blocks.free.prepare(last >> order & !1)?;
        }
        self.starts.prepare(start)?;
        self.lasts.prepare(last)
    }

    /// Takes `pages` pages from `start`, all of them free, out of the free blocks.
    fn hand_out(&mut self, start: u64, pages: u64) -> Result<PageRange, BuddyError> {
        self.prepare(start, pages)?;
        let end = start + pages;
        let mut at = start;
        while at < end {
            let Some(mut node) = self.free_node_around(at) else {
                debug_assert!(false, "page {at} is not free");
                break;
            };
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
        self.starts.insert(start);
        self.lasts.insert(end - 1);
        Ok(PageRange::new(start, pages))
    }

    /// Undoes [`Self::hand_out`] of the elements of `list` from `from` on.
    fn take_back(&mut self, list: &mut impl FallibleVec<PageRange>, from: usize) {
        while list.len() > from {
            let freed = list.pop().map(|range| self.free(range));
            debug_assert!(freed == Some(Ok(())), "{freed:?}");
        }
    }

    /// Frees a range, block by block.
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

    /// Frees a block and merges it with its buddy as often as that is free.
    fn put(&mut self, mut node: Node) {
        while self.is_free(node.buddy()) {
            self.remove(node.buddy());
            node = node.parent();
        }
        self.insert(node);
    }

    fn insert(&mut self, node: Node) {
        let order = self.order_mut(node.order);
        let changed = order.is_some_and(|order| {
            let changed = order.free.insert(node.at);
            order.count += u64::from(changed);
            changed
        });
        debug_assert!(changed, "{node:?} is free twice, or was not prepared");
        if changed {
            self.free += 1 << node.order;
        }
    }

    fn remove(&mut self, node: Node) {
        let order = self.order_mut(node.order);
        let changed = order.is_some_and(|order| {
            let changed = order.free.remove(node.at);
            order.count -= u64::from(changed);
            changed
        });
        debug_assert!(changed, "{node:?} is not free");
        if changed {
            self.free -= 1 << node.order;
        }
    }
}
