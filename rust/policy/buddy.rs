// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who has which page of VRAM.
//!
//! A binary buddy allocator over pages of 4 KiB, numbered from 0. A *block* of order *o* is 2^*o* pages
//! that begin at a multiple of 2^*o*; free memory is kept as the fewest, largest blocks: two free
//! halves of a block never stand alone. The number of pages need not be a power of two.
//!
//! Two kinds of request:
//!
//! - **contiguous** ([`Buddy::alloc`]): one range of exactly the pages asked for; what a block has more
//!   is given back at once. If no single block is large enough, neighbouring free blocks that are
//!   together large enough serve, so a contiguous request fails only if no free range fits.
//! - **scattered** ([`Buddy::alloc_scattered`]): as few blocks as possible, largest first, all or none.
//!
//! **Cleared memory.** Free memory is known to be zero ([`Content::Cleared`]) or not
//! ([`Content::Dirty`]). The driver clears freed memory in the background ([`Buddy::take_dirty`], clear
//! it, [`Buddy::free`] it as cleared) and hands out cleared pages without waiting. When halves of
//! different content merge, the block is *mixed* and remembers its halves: splitting it brings them
//! back, so one dirty page never spoils the gigabyte around it.
//!
//! **What it costs.** Everything is allocated by [`Buddy::new`]: about 12 bits per page (0.04 % of the
//! memory managed). Requests and frees change O(log n) blocks, each found by O(log n) bit tests. The one
//! exception is a contiguous request that no single block serves: it looks at the free blocks of at
//! least a quarter of its size.
//!
//! **What it refuses.** The bounds of every allocation are kept; a free of anything but exactly one of
//! them (twice, in parts, foreign) is an error and changes nothing.
//!
//! Invariants: a page is in exactly one free block or in exactly one allocation; no two buddies are
//! both free; a mixed block has halves that are not both cleared and not both dirty.

use super::bit_tree::BitTree;
use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

/// Size of the allocator's page in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The number of a page: its offset from the start of the managed memory in units of [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

/// A number of pages of [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageCount(pub u64);

impl PageCount {
    /// The pages that hold `bytes`.
    pub const fn for_bytes(bytes: u64) -> Self {
        PageCount(bytes.div_ceil(PAGE_BYTES))
    }
}

/// A contiguous range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page.
    pub start: PageIndex,
    /// How many.
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

/// What is known of the bytes in a range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// All of them are zero.
    Cleared,
    /// Anything, perhaps another client's data.
    Dirty,
}

/// Pages handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Which.
    pub range: PageRange,
    /// What is in them at this moment.
    pub content: Content,
}

/// Which content a request would like best. It gets the other one if there is no such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefer {
    /// Cleared, even if a larger block must be split: what a client will see.
    Cleared,
    /// The tightest fit, dirty if there is a choice: what is overwritten in whole anyway.
    Dirty,
}

/// A contiguous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How much; at least one page.
    pub pages: PageCount,
    /// The first page is a multiple of this; a power of two.
    pub align: PageCount,
    /// Which content.
    pub prefer: Prefer,
}

/// A scattered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scattered {
    /// How much in sum; a multiple of `granule`, at least one.
    pub pages: PageCount,
    /// Each block is at least this large and so aligned; a power of two.
    pub granule: PageCount,
    /// Which content.
    pub prefer: Prefer,
}

/// Why a request was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuddyError {
    /// No pages, an alignment or granule that is not a power of two, pages not a multiple of the
    /// granule, or a range outside the memory.
    Invalid,
    /// Not enough free memory, or not in large enough pieces.
    NoSpace,
    /// Part of the range to reserve is not free.
    Busy,
    /// Exactly this range is not allocated: freed before, or never handed out so.
    NotAllocated,
    /// The caller's list could not grow.
    OutOfMemory,
}

impl From<OutOfMemory> for BuddyError {
    fn from(_: OutOfMemory) -> Self {
        BuddyError::OutOfMemory
    }
}

/// The content of a free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tint {
    Cleared,
    Dirty,
    /// See the tints of the halves.
    Mixed,
}

const TINTS: [Tint; 3] = [Tint::Cleared, Tint::Dirty, Tint::Mixed];

impl Tint {
    const fn index(self) -> usize {
        match self {
            Tint::Cleared => 0,
            Tint::Dirty => 1,
            Tint::Mixed => 2,
        }
    }

    const fn bits(self) -> u64 {
        match self {
            Tint::Cleared => 0,
            Tint::Dirty => 1,
            Tint::Mixed => 2,
        }
    }

    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Tint::Cleared,
            1 => Tint::Dirty,
            _ => Tint::Mixed,
        }
    }

    fn merge(self, other: Self) -> Self {
        if self == other {
            self
        } else {
            Tint::Mixed
        }
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

/// All blocks of one order.
struct Order<H: Heap> {
    /// The free ones by tint.
    free: [BitTree<H>; 3],
    /// How many there are in each of `free`.
    count: [u64; 3],
    /// Two bits per block: its tint when it was last part of a mixed block or allocated.
    tints: H::Vec<u64>,
}

impl<H: Heap> Order<H> {
    fn new(blocks: u64) -> Result<Self, OutOfMemory> {
        let words = usize::try_from(blocks.div_ceil(32)).map_err(|_| OutOfMemory)?;
        Ok(Order {
            free: [
                BitTree::new(blocks)?,
                BitTree::new(blocks)?,
                BitTree::new(blocks)?,
            ],
            count: [0; 3],
            tints: FallibleVec::filled_with(words, || 0)?,
        })
    }

    fn set(&self, tint: Tint) -> &BitTree<H> {
        let [cleared, dirty, mixed] = &self.free;
        match tint {
            Tint::Cleared => cleared,
            Tint::Dirty => dirty,
            Tint::Mixed => mixed,
        }
    }

    fn tint_of_free(&self, at: u64) -> Option<Tint> {
        TINTS.into_iter().find(|tint| self.set(*tint).contains(at))
    }

    fn free_blocks(&self) -> u64 {
        self.count.iter().sum()
    }

    fn kept_tint(&self, at: u64) -> Tint {
        let word = usize::try_from(at / 32)
            .ok()
            .and_then(|word| self.tints.as_slice().get(word));
        // Without a record nothing is known, that is, dirty.
        word.map_or(Tint::Dirty, |word| Tint::from_bits(*word >> (at % 32 * 2)))
    }

    fn keep_tint(&mut self, at: u64, tint: Tint) {
        let word = usize::try_from(at / 32)
            .ok()
            .and_then(|word| self.tints.as_mut_slice().get_mut(word));
        if let Some(word) = word {
            let shift = at % 32 * 2;
            *word = *word & !(3 << shift) | tint.bits() << shift;
        }
    }
}

/// The allocator.
pub struct Buddy<H: Heap> {
    /// Index = order.
    orders: H::Vec<Order<H>>,
    /// First pages of allocations.
    starts: BitTree<H>,
    /// Last pages of allocations.
    lasts: BitTree<H>,
    total: u64,
    free: u64,
}

impl<H: Heap> Buddy<H> {
    /// An allocator of `total` pages, all free, with content `content`.
    ///
    /// # Errors
    ///
    /// - [`BuddyError::Invalid`]: no pages, or more than 2^48.
    /// - [`BuddyError::OutOfMemory`].
    pub fn new(total: PageCount, content: Content) -> Result<Self, BuddyError> {
        let total = total.0;
        if total == 0 || total > 1 << 48 {
            return Err(BuddyError::Invalid);
        }
        let top = total.ilog2();
        let mut orders: H::Vec<Order<H>> = FallibleVec::new();
        for order in 0..=top {
            orders.try_push(Order::new(total >> order)?)?;
        }
        let mut buddy = Buddy {
            orders,
            starts: BitTree::new(total)?,
            lasts: BitTree::new(total)?,
            total,
            free: 0,
        };
        buddy.put_range(0, total, content);
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

    /// The size of the largest free block. A contiguous request of so many pages, aligned to as many,
    /// succeeds; a larger one may, where blocks are neighbours.
    pub fn largest_free_block(&self) -> PageCount {
        let largest = (0..=self.top())
            .rev()
            .find(|order| self.free_blocks(*order) > 0);
        PageCount(largest.map_or(0, |order| 1 << order))
    }

    /// The number of free blocks of `2^order` pages, for reports.
    pub fn free_blocks(&self, order: u32) -> u64 {
        self.order(order).map_or(0, Order::free_blocks)
    }

    /// Whether any free memory is not known to be cleared.
    pub fn has_dirty(&self) -> bool {
        (0..=self.top())
            .any(|order| self.count(order, Tint::Dirty) + self.count(order, Tint::Mixed) > 0)
    }

    /// Hands out one contiguous range.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::NoSpace`].
    pub fn alloc(&mut self, request: Request) -> Result<Block, BuddyError> {
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
            .locate(order, request.prefer)
            .map(|(node, _)| node.start())
            .or_else(|| self.find_run(pages, align))
            .ok_or(BuddyError::NoSpace)?;
        Ok(self.hand_out(start, pages))
    }

    /// Hands out blocks of `request.pages` pages in sum and appends them to `out`, largest first, as
    /// few as can be (content counts less than size). Each is to be freed on its own.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::NoSpace`], [`BuddyError::OutOfMemory`]; `out` and the
    /// allocator are as before.
    pub fn alloc_scattered(
        &mut self,
        request: Scattered,
        out: &mut impl FallibleVec<Block>,
    ) -> Result<(), BuddyError> {
        let (pages, granule) = (request.pages.0, request.granule.0);
        if pages == 0 || !granule.is_power_of_two() || pages % granule != 0 {
            return Err(BuddyError::Invalid);
        }
        let floor = granule.ilog2();
        // All blocks of sufficient size are usable to the last page, so this decides.
        let usable: u64 = (floor..=self.top())
            .map(|order| self.free_blocks(order) << order)
            .sum();
        if pages > usable {
            return Err(BuddyError::NoSpace);
        }
        let had = out.len();
        let mut left = pages;
        let mut order = left.ilog2().min(self.top());
        while left > 0 {
            order = order.min(left.ilog2());
            let Some((node, _)) = self.locate(order, request.prefer) else {
                if order <= floor {
                    self.take_back(out, had);
                    return Err(BuddyError::NoSpace);
                }
                order -= 1;
                continue;
            };
            if out.reserve(1).is_err() {
                self.take_back(out, had);
                return Err(BuddyError::OutOfMemory);
            }
            let block = self.hand_out(node.start(), 1 << order);
            // Within the capacity: cannot fail.
            let _ = out.try_push(block);
            left -= 1 << order;
        }
        Ok(())
    }

    /// Takes a fixed range out of the free memory: what firmware or hardware uses. It is an allocation
    /// like others and can be freed.
    ///
    /// # Errors
    ///
    /// [`BuddyError::Invalid`], [`BuddyError::Busy`].
    pub fn reserve(&mut self, range: PageRange) -> Result<Block, BuddyError> {
        let start = range.start.0;
        let end = range.end().ok_or(BuddyError::Invalid)?.0;
        if range.pages.0 == 0 || end > self.total {
            return Err(BuddyError::Invalid);
        }
        let mut at = start;
        while at < end {
            at = self.free_node_around(at).ok_or(BuddyError::Busy)?.0.end();
        }
        Ok(self.hand_out(start, range.pages.0))
    }

    /// Hands out a block of at most `most` pages that is not known to be cleared, the largest there is,
    /// to be cleared and freed again; `None` if all free memory is cleared (or `most` is zero).
    ///
    /// While the driver clears it, the block is missing from the free memory: a request that fails
    /// meanwhile is worth repeating afterwards.
    pub fn take_dirty(&mut self, most: PageCount) -> Option<Block> {
        let most = most.0.checked_ilog2()?;
        for order in (0..=self.top()).rev() {
            for tint in [Tint::Dirty, Tint::Mixed] {
                let Some(at) = self.first(order, tint) else {
                    continue;
                };
                let (mut node, mut tint) = (Node { order, at }, tint);
                // A mixed block has a dirty one somewhere inside.
                while node.order > most || tint == Tint::Mixed && node.order > 0 {
                    (node, tint) = self.better_half(node, tint, Prefer::Dirty);
                }
                return Some(self.hand_out(node.start(), 1 << node.order));
            }
        }
        None
    }

    /// Takes an allocation back, with `content` in it now. A client's memory is
    /// [`Content::Dirty`] whatever it was when it was handed out.
    ///
    /// # Errors
    ///
    /// [`BuddyError::NotAllocated`]: `range` is not exactly one allocation.
    pub fn free(&mut self, range: PageRange, content: Content) -> Result<(), BuddyError> {
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
        self.put_range(start, range.pages.0, content);
        Ok(())
    }

    fn top(&self) -> u32 {
        self.total.ilog2()
    }

    fn order(&self, order: u32) -> Option<&Order<H>> {
        self.orders.as_slice().get(usize::try_from(order).ok()?)
    }

    fn order_mut(&mut self, order: u32) -> Option<&mut Order<H>> {
        self.orders
            .as_mut_slice()
            .get_mut(usize::try_from(order).ok()?)
    }

    fn count(&self, order: u32, tint: Tint) -> u64 {
        self.order(order)
            .and_then(|order| order.count.get(tint.index()))
            .map_or(0, |count| *count)
    }

    fn first(&self, order: u32, tint: Tint) -> Option<u64> {
        if self.count(order, tint) == 0 {
            return None;
        }
        self.order(order)?.set(tint).first()
    }

    fn tint_of_free(&self, node: Node) -> Option<Tint> {
        self.order(node.order)?.tint_of_free(node.at)
    }

    fn kept_tint(&self, node: Node) -> Tint {
        self.order(node.order)
            .map_or(Tint::Dirty, |order| order.kept_tint(node.at))
    }

    fn keep_tint(&mut self, node: Node, tint: Tint) {
        if let Some(order) = self.order_mut(node.order) {
            order.keep_tint(node.at, tint);
        }
    }

    /// The free block that holds `page`.
    fn free_node_around(&self, page: u64) -> Option<(Node, Tint)> {
        (0..=self.top()).find_map(|order| {
            let node = Node {
                order,
                at: page >> order,
            };
            Some((node, self.tint_of_free(node)?))
        })
    }

    /// The free block that ends before `page`.
    fn free_node_before(&self, page: u64) -> Option<Node> {
        let (node, _) = self.free_node_around(page.checked_sub(1)?)?;
        Some(node)
    }

    /// The tints of the halves of a free (or virtually split) block.
    fn tints_of_halves(&self, node: Node, tint: Tint) -> (Tint, Tint) {
        if tint != Tint::Mixed {
            return (tint, tint);
        }
        let (left, right) = node.halves();
        (self.kept_tint(left), self.kept_tint(right))
    }

    fn better_half(&self, node: Node, tint: Tint, prefer: Prefer) -> (Node, Tint) {
        let (left, right) = node.halves();
        let (of_left, of_right) = self.tints_of_halves(node, tint);
        let wanted = match prefer {
            Prefer::Cleared => [Tint::Cleared, Tint::Mixed],
            Prefer::Dirty => [Tint::Dirty, Tint::Mixed],
        };
        let rank = |tint| wanted.iter().position(|wanted| *wanted == tint);
        // None, the unwanted one, is last.
        let rank = |tint| rank(tint).unwrap_or(wanted.len());
        if rank(of_right) < rank(of_left) {
            (right, of_right)
        } else {
            (left, of_left)
        }
    }

    /// The block of `order` to hand out: free, or part of a larger free one.
    fn locate(&self, order: u32, prefer: Prefer) -> Option<(Node, Tint)> {
        let found = match prefer {
            // Content first, then the tightest fit.
            Prefer::Cleared => [Tint::Cleared, Tint::Mixed, Tint::Dirty]
                .into_iter()
                .find_map(|tint| {
                    (order..=self.top())
                        .find_map(|order| Some((order, tint, self.first(order, tint)?)))
                }),
            // The tightest fit, then content.
            Prefer::Dirty => (order..=self.top()).find_map(|order| {
                [Tint::Dirty, Tint::Mixed, Tint::Cleared]
                    .into_iter()
                    .find_map(|tint| Some((order, tint, self.first(order, tint)?)))
            }),
        };
        let (found, mut tint, at) = found?;
        let mut node = Node { order: found, at };
        while node.order > order {
            (node, tint) = self.better_half(node, tint, prefer);
        }
        Some((node, tint))
    }

    /// The start of a free range of `pages` pages, aligned, that no single block contains.
    fn find_run(&self, pages: u64, align: u64) -> Option<u64> {
        // A free range of n pages contains a whole block of more than n / 4.
        let floor = pages.ilog2().saturating_sub(1);
        for order in floor..=self.top() {
            for tint in TINTS {
                let mut from = 0;
                while let Some(at) = self.order(order).and_then(|o| o.set(tint).next(from)) {
                    let node = Node { order, at };
                    let (mut start, mut end) = (node.start(), node.end());
                    while let Some(before) = self.free_node_before(start) {
                        start = before.start();
                    }
                    while let Some((behind, _)) = self.free_node_around(end) {
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
        }
        None
    }

    /// Takes `pages` pages from `start`, all of them free, out of the free blocks.
    fn hand_out(&mut self, start: u64, pages: u64) -> Block {
        let end = start + pages;
        let mut content = Content::Cleared;
        let mut at = start;
        while at < end {
            let Some((mut node, mut tint)) = self.free_node_around(at) else {
                debug_assert!(false, "page {at} is not free");
                break;
            };
            self.remove(node, tint);
            while node.start() < at || node.end() > end {
                let (left, right) = node.halves();
                let (of_left, of_right) = self.tints_of_halves(node, tint);
                let other;
                let of_other;
                if at < right.start() {
                    (node, tint, other, of_other) = (left, of_left, right, of_right);
                } else {
                    (node, tint, other, of_other) = (right, of_right, left, of_left);
                }
                self.insert(other, of_other);
            }
            self.keep_tint(node, tint);
            if tint != Tint::Cleared {
                content = Content::Dirty;
            }
            at = node.end();
        }
        self.starts.insert(start);
        self.lasts.insert(end - 1);
        Block {
            range: PageRange::new(start, pages),
            content,
        }
    }

    /// Undoes [`Self::hand_out`] of blocks that are the elements of `list` from `from` on, each a whole
    /// block, with the content that they had.
    fn take_back(&mut self, list: &mut impl FallibleVec<Block>, from: usize) {
        while list.len() > from {
            let Some(block) = list.pop() else {
                break;
            };
            let PageRange { start, pages } = block.range;
            let order = pages.0.trailing_zeros();
            let node = Node {
                order,
                at: start.0 >> order,
            };
            self.starts.remove(node.start());
            self.lasts.remove(node.end() - 1);
            let tint = self.kept_tint(node);
            self.put(node, tint);
        }
    }

    /// Frees a range, block by block.
    fn put_range(&mut self, start: u64, pages: u64, content: Content) {
        let tint = match content {
            Content::Cleared => Tint::Cleared,
            Content::Dirty => Tint::Dirty,
        };
        let mut at = start;
        let mut left = pages;
        while left > 0 {
            let order = at.trailing_zeros().min(left.ilog2());
            let node = Node {
                order,
                at: at >> order,
            };
            self.put(node, tint);
            at += 1 << order;
            left -= 1 << order;
        }
    }

    /// Frees a block and merges it with its buddy as often as that is free.
    fn put(&mut self, mut node: Node, mut tint: Tint) {
        while let Some(of_buddy) = self.tint_of_free(node.buddy()) {
            self.remove(node.buddy(), of_buddy);
            let merged = tint.merge(of_buddy);
            if merged == Tint::Mixed {
                self.keep_tint(node, tint);
                self.keep_tint(node.buddy(), of_buddy);
            }
            (node, tint) = (node.parent(), merged);
        }
        self.insert(node, tint);
    }

    fn insert(&mut self, node: Node, tint: Tint) {
        let mut changed = false;
        if let Some(order) = self.order_mut(node.order) {
            changed = order
                .free
                .get_mut(tint.index())
                .is_some_and(|set| set.insert(node.at));
            if let (true, Some(count)) = (changed, order.count.get_mut(tint.index())) {
                *count += 1;
            }
        }
        debug_assert!(changed, "{node:?} is free twice");
        if changed {
            self.free += 1 << node.order;
        }
    }

    fn remove(&mut self, node: Node, tint: Tint) {
        let mut changed = false;
        if let Some(order) = self.order_mut(node.order) {
            changed = order
                .free
                .get_mut(tint.index())
                .is_some_and(|set| set.remove(node.at));
            if let (true, Some(count)) = (changed, order.count.get_mut(tint.index())) {
                *count -= 1;
            }
        }
        debug_assert!(changed, "{node:?} is not free");
        if changed {
            self.free -= 1 << node.order;
        }
    }
}
