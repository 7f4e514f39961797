// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is mapped where.
//!
//! A map from disjoint half-open ranges `[start, end)` of `u64` to values: the mappings of a GPU
//! address space, the allocations of an aperture. It is a height-balanced (AVL) tree whose nodes
//! live in pieces of a page, which stay where they are, and name each other by number. Outside of
//! the driver each node also knows the extent of its subtree and the largest gap inside, so that
//! [`IntervalMap::find_gap`] skips what is too full.
//!
//! **Prepare, then commit.** Changes happen where nothing may fail any more, so the memory for them
//! is set aside before: [`IntervalMap::prepare`] returns a [`Reservation`] of nodes, which
//! [`IntervalMap::map`] and [`IntervalMap::unmap`] draw from and [`IntervalMap::release`] gives
//! back what is left of. A mapping needs [`MAP_NODES`], an unmapping [`UNMAP_NODES`], since cutting
//! a hole into a range makes two of it. Several reservations may be outstanding at the same time.
//!
//! **Why not `drm_gpuvm`.** It keeps the mappings of GEM objects, each in a list of its object, and
//! splits an operation into steps that the driver performs. This map knows no objects: it serves
//! userspace's address spaces as well (`tools/wddm`), is checked on the host against a list, and
//! says before an operation begins how many nodes it can take at most.
//!
//! Lookup, map, unmap of one range: O(log n). No recursion; the tree is at most 48 high, and that
//! is the size of the path that operations keep on the stack.
//!
//! Invariants: ranges are not empty, do not overlap and are ordered as the tree is; heights of
//! siblings differ by at most one; the spare nodes are at least as many as all reservations
//! promise.
//!
//! # Examples
//!
//! ```
//! use skua_policy::interval_map::{IntervalMap, Slice, Span, MAP_NODES, UNMAP_NODES};
//! use skua_policy::std_heap::StdHeap;
//!
//! /// A part of a file: its first byte.
//! #[derive(Clone, Debug, PartialEq)]
//! struct Part(u64);
//!
//! impl Slice for Part {
//!     fn slice(&self, offset: u64, _len: u64) -> Self {
//!         Part(self.0 + offset)
//!     }
//! }
//!
//! let mut map = IntervalMap::<StdHeap, Part>::new();
//! let mut nodes = map.prepare(MAP_NODES + UNMAP_NODES).expect("memory");
//! map.map(&mut nodes, Span::new(0, 100), Part(0)).expect("nothing is there");
//! let mut holes = 0;
//! map.unmap(&mut nodes, Span::new(40, 60), |_cut| holes += 1).expect("the nodes suffice");
//! map.release(nodes);
//! assert_eq!(holes, 1);
//! assert_eq!(map.get(50), None);
//! assert_eq!(map.get(70), Some((Span::new(60, 100), &Part(60))));
//! ```

use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

/// Nodes that one call of [`IntervalMap::map`] uses up.
pub const MAP_NODES: u32 = 1;
/// Nodes that one call of [`IntervalMap::unmap`] uses up at most.
pub const UNMAP_NODES: u32 = 1;

/// A value that stands for a range and can be cut with it.
pub trait Slice: Clone {
    /// The value for the part of the range that begins `offset` behind its start and is `len` long.
    /// `offset + len` is at most the length of the range, `len` is not zero.
    fn slice(&self, offset: u64, len: u64) -> Self;
}

/// A map of ranges alone.
impl Slice for () {
    fn slice(&self, _offset: u64, _len: u64) -> Self {}
}

/// A half-open range `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first address of the range.
    pub start: u64,
    /// The address behind the last of the range.
    pub end: u64,
}

impl Span {
    /// The range `[start, end)`, which is empty if `end` is not above `start`.
    pub const fn new(start: u64, end: u64) -> Self {
        Span { start, end }
    }

    /// The range of `len` from `start`; `None` if it would end beyond `u64`.
    pub const fn with_len(start: u64, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) => Some(Span { start, end }),
            None => None,
        }
    }

    /// How many addresses are in it: 0 if it is empty or reversed.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether no address is in it; also true of a reversed one.
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

/// A range and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<V> {
    /// The range, not empty.
    pub span: Span,
    /// What [`Slice::slice`] made for just this range.
    pub value: V,
}

/// What [`IntervalMap::unmap`] did to one mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut<V> {
    /// The part that is no longer mapped.
    pub removed: Piece<V>,
    /// The part before it, which still is.
    pub before: Option<Piece<V>>,
    /// The part behind it, which still is.
    pub after: Option<Piece<V>>,
}

/// Why a change was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The range is empty or reversed.
    Invalid,
    /// Part of the range is mapped.
    Overlap,
    /// The reservation is used up: a mistake of the driver's.
    NotReserved,
}

/// Nodes set aside for later changes. Give it back to [`IntervalMap::release`] of the same map.
///
/// One that is dropped instead leaks its nodes until the map goes.
#[must_use = "nodes stay set aside until `release`"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Not yet drawn; part of the map's `promised`.
    nodes: u32,
}

/// The number that stands for no node.
const NIL: u32 = u32::MAX;
/// An AVL tree of 2^32 nodes is at most 46 high.
const MAX_HEIGHT: usize = 48;

struct Node<V> {
    /// The first address of the node's own range.
    start: u64,
    /// The address behind its last.
    end: u64,
    /// What is mapped there. `None`: a spare node; `left` is then the next spare one.
    value: Option<V>,
    /// The child whose ranges are before this one: its number among the nodes of all
    /// [`IntervalMap::pieces`], or [`NIL`].
    left: u32,
    /// The child whose ranges are behind it, likewise.
    right: u32,
    /// Levels of its subtree, 1 for a leaf.
    height: u8,
    /// Of the subtree; kept up to date by every rotation.
    #[cfg(not(MODULE))]
    extent: Extent,
}

/// What a node knows of its subtree for [`IntervalMap::find_gap`].
#[cfg(not(MODULE))]
#[derive(Clone, Copy, Default)]
struct Extent {
    /// The lowest start of a range in the subtree.
    first: u64,
    /// The highest end of a range in the subtree.
    last: u64,
    /// The largest gap between neighbours in the subtree, in addresses.
    gap: u64,
}

/// The way from the root to a node.
struct Path {
    /// Numbers, the root's first; `len` of them count.
    nodes: [u32; MAX_HEIGHT],
    /// Bit *i*: from node *i* it went right.
    right: u64,
    /// How many nodes it has so far.
    len: u32,
}

impl Path {
    fn new() -> Self {
        Path {
            nodes: [NIL; MAX_HEIGHT],
            right: 0,
            len: 0,
        }
    }

    fn push(&mut self, node: u32, right: bool) {
        let at = usize::try_from(self.len).ok();
        match at.and_then(|at| self.nodes.get_mut(at)) {
            Some(place) => {
                *place = node;
                self.right = self.right & !(1 << self.len) | u64::from(right) << self.len;
                self.len += 1;
            }
            None => debug_assert!(false, "the tree is higher than it can be"),
        }
    }

    fn pop(&mut self) -> Option<(u32, bool)> {
        self.len = self.len.checked_sub(1)?;
        let node = self.nodes.get(usize::try_from(self.len).ok()?)?;
        Some((*node, self.right & 1 << self.len != 0))
    }
}

/// Disjoint ranges of `u64` with a value each.
pub struct IntervalMap<H: Heap, V> {
    /// Every node of the tree and of the list of spare ones, [`Self::PIECE`] in each but the last;
    /// never shrinks.
    pieces: H::Vec<H::Vec<Node<V>>>,
    /// The node at the tree's top, by its number in `pieces` ([`Self::PIECE`] in each), or [`NIL`].
    root: u32,
    /// Head of the list of spare nodes, likewise.
    spare: u32,
    /// Length of that list.
    spares: u32,
    /// How many of the spare ones are promised to reservations.
    promised: u32,
    /// Nodes in the tree.
    count: u32,
}

impl<H: Heap, V: Slice> IntervalMap<H, V> {
    /// Nodes in a piece: what a page has room for.
    const PIECE: usize = 4096 / size_of::<Node<V>>();

    /// An empty map; allocates nothing.
    pub fn new() -> Self {
        IntervalMap {
            pieces: FallibleVec::new(),
            root: NIL,
            spare: NIL,
            spares: 0,
            promised: 0,
            count: 0,
        }
    }

    /// The number of ranges.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether nothing is mapped.
    #[cfg(not(MODULE))] // The driver asks for the number alone.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sets `nodes` nodes aside, allocating what is missing.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], also beyond 2^32 - 1 nodes.
    pub fn prepare(&mut self, nodes: u32) -> Result<Reservation, OutOfMemory> {
        let promised = self.promised.checked_add(nodes).ok_or(OutOfMemory)?;
        let missing = promised.saturating_sub(self.spares);
        let had = self.spares.checked_add(self.count).ok_or(OutOfMemory)?;
        // NIL is no node's number.
        let will_have = had.checked_add(missing).ok_or(OutOfMemory)?;
        for number in had..will_have {
            self.add_spare(number)?;
        }
        self.promised = promised;
        Ok(Reservation { nodes })
    }

    /// Makes node `number`, behind all that there are, a spare one.
    fn add_spare(&mut self, number: u32) -> Result<(), OutOfMemory> {
        let at = usize::try_from(number).map_err(|_| OutOfMemory)?;
        if at / Self::PIECE == self.pieces.len() {
            self.pieces.try_push(FallibleVec::new())?;
        }
        let Some(piece) = self.pieces.as_mut_slice().last_mut() else {
            return Err(OutOfMemory);
        };
        // Few are doubled; what comes to more is a page, and not two.
        piece.reserve(match at < Self::PIECE / 4 {
            true => 1,
            false => Self::PIECE - at % Self::PIECE,
        })?;
        piece.try_push(Node {
            start: 0,
            end: 0,
            value: None,
            left: self.spare,
            right: NIL,
            height: 0,
            #[cfg(not(MODULE))]
            extent: Extent::default(),
        })?;
        self.spare = number;
        self.spares += 1;
        Ok(())
    }

    /// Gives a reservation back. Its nodes stay allocated, for the next one.
    pub fn release(&mut self, reservation: Reservation) {
        self.promised = self.promised.saturating_sub(reservation.nodes);
    }

    /// Maps `span` to `value`, using up [`MAP_NODES`] of the reservation.
    ///
    /// # Errors
    ///
    /// [`MapError::Invalid`], [`MapError::Overlap`], [`MapError::NotReserved`].
    pub fn map(
        &mut self,
        reservation: &mut Reservation,
        span: Span,
        value: V,
    ) -> Result<(), MapError> {
        if span.is_empty() {
            return Err(MapError::Invalid);
        }
        if self.overlaps(span) {
            return Err(MapError::Overlap);
        }
        let node = self.take_spare(reservation).ok_or(MapError::NotReserved)?;
        self.attach(node, span, value);
        Ok(())
    }

    /// Unmaps all of `span`, wherever it is mapped, and tells `cut` of each mapping that lost
    /// something, in order of address. Uses up at most [`UNMAP_NODES`] of the reservation, namely
    /// if `span` lies inside one mapping. Parts of `span` that are not mapped are no error.
    ///
    /// # Errors
    ///
    /// [`MapError::Invalid`], [`MapError::NotReserved`].
    pub fn unmap(
        &mut self,
        reservation: &mut Reservation,
        span: Span,
        mut cut: impl FnMut(Cut<V>),
    ) -> Result<(), MapError> {
        if span.is_empty() {
            return Err(MapError::Invalid);
        }
        if reservation.nodes < UNMAP_NODES {
            return Err(MapError::NotReserved);
        }
        loop {
            let number = self.first_ending_after(span.start);
            let Some(found) = self.node(number).filter(|node| node.start < span.end) else {
                return Ok(());
            };
            let whole = Span::new(found.start, found.end);
            let Some(value) = &found.value else {
                debug_assert!(false, "a spare node in the tree");
                return Ok(());
            };
            let part = |start: u64, end: u64| {
                (start < end).then(|| Piece {
                    span: Span::new(start, end),
                    value: value.slice(start - whole.start, end - start),
                })
            };
            let (from, to) = (whole.start.max(span.start), whole.end.min(span.end));
            let before = part(whole.start, from);
            let after = part(to, whole.end);
            let removed = if before.is_none() && after.is_none() {
                None
            } else {
                part(from, to)
            };

            let Some(value) = self.detach(whole.start) else {
                debug_assert!(false, "a node was found and is not there");
                return Ok(());
            };
            // Of the three parts at most two go back; one of them by the node that just became
            // spare.
            if let Some(piece) = &before {
                if let Some(node) = self.pop_spare() {
                    self.attach(node, piece.span, piece.value.clone());
                }
            }
            if let Some(piece) = &after {
                let node = if before.is_some() {
                    self.take_spare(reservation)
                } else {
                    self.pop_spare()
                };
                if let Some(node) = node {
                    self.attach(node, piece.span, piece.value.clone());
                }
            }
            cut(Cut {
                removed: removed.unwrap_or(Piece { span: whole, value }),
                before,
                after,
            });
        }
    }

    /// The range that holds `at`, and its value.
    pub fn get(&self, at: u64) -> Option<(Span, &V)> {
        self.entry(self.first_ending_after(at))
            .filter(|(span, _)| span.start <= at)
    }

    /// Whether anything in `span` is mapped.
    pub fn overlaps(&self, span: Span) -> bool {
        self.iter(span).next().is_some()
    }

    /// The mappings that have a part in `span`, in order of address, whole (not cut to `span`).
    pub fn iter(&self, span: Span) -> Iter<'_, H, V> {
        Iter { map: self, span }
    }

    /// How many pieces are cut out at most when the ranges of `spans` are unmapped one after the
    /// other, in any order, and each is possibly mapped anew before the next. Sorts `spans`.
    ///
    /// A piece is a whole mapping or a part of one. Whole ones go that are there now, each once, or
    /// that the operations made: one each, and one more by a hole, which is then the only part that
    /// is cut. At most two parts are cut by each operation, at its ends.
    pub fn most_cuts(&self, spans: &mut [Span]) -> usize {
        spans.sort_unstable_by_key(|span| span.start);
        let mut end = 0;
        let mut count = spans.len().saturating_mul(3);
        for span in spans {
            let fresh = Span::new(span.start.max(end), span.end);
            count = count.saturating_add(self.iter(fresh).count());
            end = end.max(span.end);
        }
        count
    }

    /// The lowest address in `within` from which `size` are not mapped, a multiple of `align`.
    ///
    /// `None` if there is no such address, `size` is zero or `align` is not a power of two.
    ///
    /// O(log n) and the number of gaps that are large enough but not so aligned.
    #[cfg(not(MODULE))] // In a client's address space the client says what lies where.
    pub fn find_gap(&self, size: u64, align: u64, within: Span) -> Option<u64> {
        if size == 0 || !align.is_power_of_two() {
            return None;
        }
        let fit = |from: u64, to: u64| {
            let at = from.checked_next_multiple_of(align)?;
            (at.checked_add(size)? <= to.min(within.end)).then_some(at)
        };
        // In order, with the end of what came before in `from`; a subtree that lies before
        // `within`, or has no gap that is large enough, counts as one solid range.
        let mut from = within.start;
        let mut path = Path::new();
        let mut at = self.root;
        loop {
            while let Some(node) = self.node(at) {
                let Extent { first, last, gap } = node.extent;
                if gap < size || last <= within.start {
                    if let Some(found) = fit(from, first) {
                        return Some(found);
                    }
                    from = from.max(last);
                    break;
                }
                path.push(at, false);
                at = node.left;
            }
            if from >= within.end {
                return None;
            }
            let Some((number, _)) = path.pop() else {
                return fit(from, within.end);
            };
            let node = self.node(number)?;
            if let Some(found) = fit(from, node.start) {
                return Some(found);
            }
            from = from.max(node.end);
            at = node.right;
        }
    }

    fn node(&self, number: u32) -> Option<&Node<V>> {
        // NIL is in none.
        let at = usize::try_from(number).ok()?;
        let piece = self.pieces.as_slice().get(at / Self::PIECE)?;
        piece.as_slice().get(at % Self::PIECE)
    }

    fn node_mut(&mut self, number: u32) -> Option<&mut Node<V>> {
        let at = usize::try_from(number).ok()?;
        let piece = self.pieces.as_mut_slice().get_mut(at / Self::PIECE)?;
        piece.as_mut_slice().get_mut(at % Self::PIECE)
    }

    fn entry(&self, number: u32) -> Option<(Span, &V)> {
        let node = self.node(number)?;
        Some((Span::new(node.start, node.end), node.value.as_ref()?))
    }

    /// The lowest range that ends after `at`, that is, that holds `at` or lies behind it.
    fn first_ending_after(&self, at: u64) -> u32 {
        let mut best = NIL;
        let mut number = self.root;
        while let Some(node) = self.node(number) {
            if node.end > at {
                best = number;
                number = node.left;
            } else {
                number = node.right;
            }
        }
        best
    }

    fn take_spare(&mut self, reservation: &mut Reservation) -> Option<u32> {
        let left = reservation.nodes.checked_sub(1)?;
        let promised = self.promised.checked_sub(1)?;
        let number = self.pop_spare()?;
        reservation.nodes = left;
        self.promised = promised;
        Some(number)
    }

    fn pop_spare(&mut self) -> Option<u32> {
        let number = self.spare;
        self.spare = self.node(number)?.left;
        self.spares = self.spares.saturating_sub(1);
        Some(number)
    }

    /// Puts a node that was spare into the tree.
    fn attach(&mut self, number: u32, span: Span, value: V) {
        let mut path = Path::new();
        let mut at = self.root;
        while let Some(node) = self.node(at) {
            let right = span.start > node.start;
            path.push(at, right);
            at = if right { node.right } else { node.left };
        }
        if let Some(node) = self.node_mut(number) {
            *node = Node {
                start: span.start,
                end: span.end,
                value: Some(value),
                left: NIL,
                right: NIL,
                height: 1,
                #[cfg(not(MODULE))]
                extent: Extent {
                    first: span.start,
                    last: span.end,
                    gap: 0,
                },
            };
            self.count += 1;
        }
        self.rebuild(path, number);
    }

    /// Takes the range that begins at `start` out of the tree; its node becomes spare.
    fn detach(&mut self, start: u64) -> Option<V> {
        let mut path = Path::new();
        let mut at = self.root;
        let (left, right) = loop {
            let node = self.node(at)?;
            if node.start == start {
                break (node.left, node.right);
            }
            let right = start > node.start;
            path.push(at, right);
            at = if right { node.right } else { node.left };
        };
        let mut gone = at;
        let replacement = if left == NIL {
            right
        } else if right == NIL {
            left
        } else {
            // The next range moves up into this node, and its own node, which has no left child,
            // goes.
            path.push(at, true);
            gone = right;
            while let Some(next) = self.node(gone).map(|node| node.left) {
                if next == NIL {
                    break;
                }
                path.push(gone, false);
                gone = next;
            }
            self.node(gone)?.right
        };
        let node = self.node_mut(gone)?;
        let (from, to, mut value) = (node.start, node.end, node.value.take());
        if gone != at {
            let node = self.node_mut(at)?;
            (node.start, node.end) = (from, to);
            core::mem::swap(&mut node.value, &mut value);
        }
        let next_spare = self.spare;
        let node = self.node_mut(gone)?;
        node.left = next_spare;
        self.spare = gone;
        self.spares += 1;
        self.count = self.count.saturating_sub(1);
        self.rebuild(path, replacement);
        value
    }

    /// Hangs `subtree` in at the end of `path` and balances from there up to the root.
    fn rebuild(&mut self, mut path: Path, mut subtree: u32) {
        while let Some((parent, right)) = path.pop() {
            if let Some(node) = self.node_mut(parent) {
                if right {
                    node.right = subtree;
                } else {
                    node.left = subtree;
                }
            }
            subtree = self.balance(parent);
        }
        self.root = subtree;
    }

    fn height(&self, number: u32) -> u8 {
        self.node(number).map_or(0, |node| node.height)
    }

    fn children(&self, number: u32) -> (u32, u32) {
        self.node(number)
            .map_or((NIL, NIL), |node| (node.left, node.right))
    }

    /// Makes the heights of a node's children differ by at most one (they differ by at most two)
    /// and returns the node that is now on top.
    fn balance(&mut self, number: u32) -> u32 {
        let (left, right) = self.children(number);
        let (of_left, of_right) = (self.height(left), self.height(right));
        if of_left > of_right.saturating_add(1) {
            let (outer, inner) = self.children(left);
            if self.height(inner) > self.height(outer) {
                let left = self.rotate_left(left);
                if let Some(node) = self.node_mut(number) {
                    node.left = left;
                }
            }
            return self.rotate_right(number);
        }
        if of_right > of_left.saturating_add(1) {
            let (inner, outer) = self.children(right);
            if self.height(inner) > self.height(outer) {
                let right = self.rotate_right(right);
                if let Some(node) = self.node_mut(number) {
                    node.right = right;
                }
            }
            return self.rotate_left(number);
        }
        self.update(number);
        number
    }

    /// Lifts the left child of `number` above it.
    fn rotate_right(&mut self, number: u32) -> u32 {
        let (lifted, _) = self.children(number);
        let (_, inner) = self.children(lifted);
        if let Some(node) = self.node_mut(number) {
            node.left = inner;
        }
        if let Some(node) = self.node_mut(lifted) {
            node.right = number;
        }
        self.update(number);
        self.update(lifted);
        lifted
    }

    /// Lifts the right child of `number` above it.
    fn rotate_left(&mut self, number: u32) -> u32 {
        let (_, lifted) = self.children(number);
        let (inner, _) = self.children(lifted);
        if let Some(node) = self.node_mut(number) {
            node.right = inner;
        }
        if let Some(node) = self.node_mut(lifted) {
            node.left = number;
        }
        self.update(number);
        self.update(lifted);
        lifted
    }

    /// Computes what a node knows of its subtree from its children.
    fn update(&mut self, number: u32) {
        let (left, right) = self.children(number);
        let height = self.height(left).max(self.height(right)).saturating_add(1);
        #[cfg(not(MODULE))]
        let extent = self.extent(number, left, right);
        if let Some(node) = self.node_mut(number) {
            node.height = height;
            #[cfg(not(MODULE))]
            {
                node.extent = extent;
            }
        }
    }

    /// The extent of node `number`, from its children's.
    #[cfg(not(MODULE))]
    fn extent(&self, number: u32, left: u32, right: u32) -> Extent {
        let Some(node) = self.node(number) else {
            return Extent::default();
        };
        let mut extent = Extent {
            first: node.start,
            last: node.end,
            gap: 0,
        };
        if let Some(left) = self.node(left).map(|node| node.extent) {
            extent.first = left.first;
            extent.gap = left.gap.max(node.start.saturating_sub(left.last));
        }
        if let Some(right) = self.node(right).map(|node| node.extent) {
            extent.last = right.last;
            let gap = right.first.saturating_sub(node.end);
            extent.gap = extent.gap.max(right.gap).max(gap);
        }
        extent
    }
}

impl<H: Heap, V: Slice> Default for IntervalMap<H, V> {
    fn default() -> Self {
        Self::new()
    }
}

/// The mappings in a range, in order of address; see [`IntervalMap::iter`].
pub struct Iter<'a, H: Heap, V> {
    map: &'a IntervalMap<H, V>,
    /// What is not yet looked at.
    span: Span,
}

impl<'a, H: Heap, V: Slice> Iterator for Iter<'a, H, V> {
    type Item = (Span, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        if self.span.is_empty() {
            return None;
        }
        let number = self.map.first_ending_after(self.span.start);
        let (span, value) = self.map.entry(number)?;
        if span.start >= self.span.end {
            return None;
        }
        self.span.start = span.end;
        Some((span, value))
    }
}
