// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an engine was given and has not finished.
//!
//! One bounded queue per engine, in the order of submission. Each packet has a *hardware fence id*:
//! the number that the engine writes to memory when it is done with the packet. Ids ascend as
//! packets are pushed, but completion never compares ids: a reported id is looked up in the queue,
//! and everything up to its *position* is complete. An id that is not there (from a device that
//! lies, or late news from before a reset) is refused and changes nothing.
//!
//! After a hang the queue is what there is to resubmit: [`InFlight::remove_if`] takes packets out,
//! in order; of those that go on some keep their ids, and come first, and the others get new ones
//! ([`InFlight::renumber`]). What waits for a packet holds on to its payload (a `dma_fence`, say),
//! not to its id.
//!
//! The memory for `capacity` packets is allocated by [`InFlight::new`]. Id 0 is never given out: it
//! is what the fence memory holds before anything was done.
//!
//! Invariants: ids in the queue ascend and are below the next one to give out, since those that are
//! kept come first.
//!
//! # Examples
//!
//! ```
//! use skua_policy::{in_flight::InFlight, std_heap::StdHeap};
//!
//! let mut ring = InFlight::<StdHeap, &str>::new(4, 1).expect("memory");
//! for packet in ["first", "second", "third"] {
//!     ring.push(packet).expect("there is room");
//! }
//! // The engine reports the second: both are complete.
//! let complete: Vec<_> = ring.complete_up_to(2).expect("it is there").collect();
//! assert_eq!(complete, [(1, "first"), (2, "second")]);
//! assert!(ring.complete_up_to(2).is_err(), "late news");
//! assert_eq!(ring.front(), Some((3, &"third")));
//! ```

use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

/// Why a packet was not taken. It comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError<P> {
    /// As many packets as there is room for are in flight; some must complete first.
    Full(P),
    /// The ids are used up: 2^64 packets were pushed.
    IdsExhausted(P),
}

/// The ids are used up: 2^64 packets were pushed or renumbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdsExhausted;

/// The device reported an id that is not in flight. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BogusId {
    /// Neither an id in flight nor the last one completed.
    pub reported: u64,
}

/// The packets in flight on one engine.
pub struct InFlight<H: Heap, P> {
    /// As many as the capacity; the queue is the `len` ones from `head`, wrapping around.
    slots: H::Vec<Option<(u64, P)>>,
    /// Index of the oldest one.
    head: usize,
    /// How many packets are in flight, at most the capacity.
    len: usize,
    /// Of the next packet; one more with each.
    next_id: u64,
}

impl<H: Heap, P> InFlight<H, P> {
    /// An empty queue for `capacity` packets, whose ids begin at `first_id` (or 1, if that is 0).
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn new(capacity: usize, first_id: u64) -> Result<Self, OutOfMemory> {
        Ok(InFlight {
            slots: FallibleVec::filled_with(capacity, || None)?,
            head: 0,
            len: 0,
            next_id: first_id.max(1),
        })
    }

    /// How many packets can be in flight.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Packets in flight, at most the capacity.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the engine has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether [`Self::push`] would answer [`PushError::Full`].
    pub fn is_full(&self) -> bool {
        self.len == self.capacity()
    }

    /// The id that the next packet gets.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Uses up the id that the next packet would get, for what is no packet.
    ///
    /// # Errors
    ///
    /// [`IdsExhausted`]; nothing has changed.
    pub fn skip_id(&mut self) -> Result<u64, IdsExhausted> {
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or(IdsExhausted)?;
        Ok(id)
    }

    /// Appends a packet and returns its id.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`], [`PushError::IdsExhausted`].
    pub fn push(&mut self, packet: P) -> Result<u64, PushError<P>> {
        let id = self.next_id;
        let Some(next_id) = id.checked_add(1) else {
            return Err(PushError::IdsExhausted(packet));
        };
        if self.is_full() {
            return Err(PushError::Full(packet));
        }
        let slot = self.slot(self.len);
        match self.slots.as_mut_slice().get_mut(slot) {
            Some(slot) => *slot = Some((id, packet)),
            None => return Err(PushError::Full(packet)),
        }
        self.len += 1;
        self.next_id = next_id;
        Ok(id)
    }

    /// The oldest packet, which the engine works on.
    pub fn front(&self) -> Option<(u64, &P)> {
        self.at(0)
    }

    /// The place of a packet in the queue, 0 being the oldest.
    fn position(&self, id: u64) -> Option<usize> {
        // The oldest are asked for most.
        self.iter().position(|(in_flight, _)| in_flight == id)
    }

    /// Takes the packets up to and including `id` out, oldest first. What the iterator has not
    /// yielded when it is dropped is taken out all the same.
    ///
    /// # Errors
    ///
    /// [`BogusId`].
    pub fn complete_up_to(&mut self, id: u64) -> Result<Completed<'_, H, P>, BogusId> {
        let position = self.position(id).ok_or(BogusId { reported: id })?;
        Ok(Completed {
            left: position + 1,
            queue: self,
        })
    }

    /// Takes all packets out for which `leaves` says so, oldest first, and hands them to
    /// `removed`; the others keep their order.
    pub fn remove_if(
        &mut self,
        mut leaves: impl FnMut(u64, &P) -> bool,
        mut removed: impl FnMut(u64, P),
    ) {
        let mut kept = 0;
        for position in 0..self.len {
            let from = self.slot(position);
            let to = self.slot(kept);
            let Some((id, packet)) = self
                .slots
                .as_mut_slice()
                .get_mut(from)
                .and_then(Option::take)
            else {
                continue;
            };
            if leaves(id, &packet) {
                removed(id, packet);
            } else if let Some(slot) = self.slots.as_mut_slice().get_mut(to) {
                *slot = Some((id, packet));
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Puts the packets for which `keeps` says so before all others, and gives these new ids, as if
    /// they were taken out and pushed again; those of a kind keep their order.
    ///
    /// # Errors
    ///
    /// [`IdsExhausted`]; nothing has changed.
    pub fn renumber(&mut self, keeps: impl Fn(&P) -> bool) -> Result<(), IdsExhausted> {
        let kept = self.iter().filter(|(_, packet)| keeps(packet)).count();
        let first = self.next_id;
        let others = u64::try_from(self.len - kept).map_err(|_| IdsExhausted)?;
        let next_id = first.checked_add(others).ok_or(IdsExhausted)?;
        let mut sorted = 0;
        for position in 0..self.len {
            if self.at(position).is_some_and(|(_, packet)| keeps(packet)) {
                for behind in (sorted..position).rev() {
                    let (slot, next) = (self.slot(behind), self.slot(behind + 1));
                    self.slots.as_mut_slice().swap(slot, next);
                }
                sorted += 1;
            }
        }
        for (position, id) in (kept..self.len).zip(first..) {
            let slot = self.slot(position);
            if let Some(Some((number, _))) = self.slots.as_mut_slice().get_mut(slot) {
                *number = id;
            }
        }
        self.next_id = next_id;
        Ok(())
    }

    /// Calls `f` with each packet, oldest first.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(u64, &mut P)) {
        for position in 0..self.len {
            let slot = self.slot(position);
            if let Some(Some((id, packet))) = self.slots.as_mut_slice().get_mut(slot) {
                f(*id, packet);
            }
        }
    }

    /// The packets in flight, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &P)> {
        (0..self.len).filter_map(|position| self.at(position))
    }

    /// Where the packet at `position` (or the next one) is stored.
    fn slot(&self, position: usize) -> usize {
        let capacity = self.capacity();
        // Both are at most the capacity, which is a length in memory.
        let slot = self.head.saturating_add(position);
        if slot >= capacity {
            slot - capacity
        } else {
            slot
        }
    }

    fn at(&self, position: usize) -> Option<(u64, &P)> {
        let (id, packet) = self.slots.as_slice().get(self.slot(position))?.as_ref()?;
        Some((*id, packet))
    }

    fn pop(&mut self) -> Option<(u64, P)> {
        self.len = self.len.checked_sub(1)?;
        let head = self.head;
        self.head = self.slot(1);
        self.slots.as_mut_slice().get_mut(head)?.take()
    }
}

/// The completed packets; see [`InFlight::complete_up_to`].
pub struct Completed<'a, H: Heap, P> {
    /// Its first `left` packets are completed, and leave it one by one; all of them when this is
    /// dropped.
    queue: &'a mut InFlight<H, P>,
    /// How many have not been handed out.
    left: usize,
}

impl<H: Heap, P> Iterator for Completed<'_, H, P> {
    type Item = (u64, P);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.queue.pop()
    }
}

impl<H: Heap, P> Drop for Completed<'_, H, P> {
    fn drop(&mut self) {
        for _ in self.by_ref() {}
    }
}
