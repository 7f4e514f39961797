// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Small numbers that the hardware remembers.
//!
//! An address space identifier (ASID) tags TLB entries. Freed and given to another process at once,
//! it would let that process use what the TLB still holds of the first. So a freed id is
//! *quarantined*: it is free again only after a flush that began later.
//!
//! Flushes have numbers that ascend (*epochs*). [`IdSlots::free`] says which flush will cover the
//! id; when flush *e* is done, [`IdSlots::flushed`]`(e)` releases every id that waits for *e* or an
//! earlier one. When all free ids are quarantined, [`IdSlots::alloc`] says which flush would help.
//!
//! **Why not `ida`, or the kernel crate's `IdPool`.** Both give an id out again as soon as it was
//! freed, and have no place for those that wait for a flush. An `ida` may have to allocate to give
//! one out, and can fail then. Neither runs on the host.
//!
//! All memory is allocated by [`IdSlots::new`]. The lowest free id is given out first, in O(log₆₄
//! n).
//!
//! Invariant: an id is reserved, or free, or in use, or once in the quarantine.
//!
//! # Examples
//!
//! ```
//! use skua_policy::id_slots::{IdError, IdSlots};
//! use skua_policy::std_heap::StdHeap;
//!
//! // One id, for 0 is the system's.
//! let mut ids = IdSlots::<StdHeap>::new(1, 2).expect("memory");
//! assert_eq!(ids.alloc(), Ok(1));
//! // Flush number 5 will cover it.
//! ids.free(1, 5).expect("it is in use");
//! assert_eq!(ids.alloc(), Err(IdError::FlushNeeded { epoch: 5 }));
//! ids.flushed(5);
//! assert_eq!(ids.alloc(), Ok(1));
//! ```

use super::bit_tree::BitTree;
use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

/// Why there is no id. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    /// All are in use, and no flush would free one.
    NoneFree,
    /// Some wait for flushes; after this one there will be a free id.
    FlushNeeded {
        /// The flush that would free one.
        epoch: u64,
    },
}

/// The id is not in use: freed before, or never given out. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotInUse {
    /// The id that was to be freed.
    pub id: u32,
}

/// No id.
const NIL: u32 = u32::MAX;

/// An id that waits for a flush.
#[derive(Clone, Copy)]
struct Quarantined {
    /// The number of the flush after which it may be used again.
    epoch: u64,
    /// The next one in the quarantine, or [`NIL`].
    next: u32,
}

/// Ids below a limit.
pub struct IdSlots<H: Heap> {
    /// Ids that were flushed, or never used.
    free: BitTree<H>,
    /// Ids that were given out.
    in_use: BitTree<H>,
    /// By id; of those alone that wait it says anything.
    quarantine: H::Vec<Quarantined>,
    /// The id that has been in the quarantine for the longest time, or [`NIL`].
    first: u32,
    /// The id that came there last, or [`NIL`].
    last: u32,
    /// How many ids are in `in_use`.
    used: u32,
    /// Length of the quarantine.
    quarantined: u32,
}

/// An empty set of ids below `limit`, in which inserting allocates nothing.
fn set<H: Heap>(limit: u32) -> Result<BitTree<H>, OutOfMemory> {
    let mut set = BitTree::new(u64::from(limit))?;
    for id in 0..limit {
        set.prepare(u64::from(id))?;
    }
    Ok(set)
}

impl<H: Heap> IdSlots<H> {
    /// The ids from `lowest` to below `limit`, all free. Those below `lowest` are never given out.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn new(lowest: u32, limit: u32) -> Result<Self, OutOfMemory> {
        let len = usize::try_from(limit).map_err(|_| OutOfMemory)?;
        let none = Quarantined {
            epoch: 0,
            next: NIL,
        };
        let mut slots = IdSlots {
            free: set(limit)?,
            in_use: set(limit)?,
            quarantine: FallibleVec::filled_with(len, || none)?,
            first: NIL,
            last: NIL,
            used: 0,
            quarantined: 0,
        };
        for id in lowest..limit {
            slots.free.insert(u64::from(id));
        }
        Ok(slots)
    }

    /// How many ids are in use.
    #[cfg(test)]
    pub fn in_use(&self) -> u32 {
        self.used
    }

    /// How many wait for a flush.
    #[cfg(test)]
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// Gives out the lowest free id.
    ///
    /// # Errors
    ///
    /// [`IdError::NoneFree`], [`IdError::FlushNeeded`].
    pub fn alloc(&mut self) -> Result<u32, IdError> {
        let id = self.free.first().and_then(|id| u32::try_from(id).ok());
        let Some(id) = id else {
            return Err(match self.slot(self.first) {
                Some(oldest) => IdError::FlushNeeded {
                    epoch: oldest.epoch,
                },
                None => IdError::NoneFree,
            });
        };
        self.free.remove(u64::from(id));
        self.in_use.insert(u64::from(id));
        self.used = self.used.saturating_add(1);
        Ok(id)
    }

    /// Takes an id back. It is free again when flush `epoch` is done, the first that begins after
    /// the hardware last used the id. Ids leave the quarantine in the order in which they came, so
    /// an epoch below that of an earlier free counts as that one.
    ///
    /// # Errors
    ///
    /// [`NotInUse`].
    pub fn free(&mut self, id: u32, epoch: u64) -> Result<(), NotInUse> {
        if !self.in_use.remove(u64::from(id)) {
            return Err(NotInUse { id });
        }
        self.used = self.used.saturating_sub(1);
        self.quarantined = self.quarantined.saturating_add(1);
        let last = self.last;
        match self.slot_mut(last) {
            Some(last) => last.next = id,
            None => self.first = id,
        }
        if let Some(slot) = self.slot_mut(id) {
            *slot = Quarantined { epoch, next: NIL };
        }
        self.last = id;
        Ok(())
    }

    /// Flush `epoch` and all earlier ones are done: releases the ids that waited for them and
    /// returns how many.
    pub fn flushed(&mut self, epoch: u64) -> u32 {
        let mut released = 0;
        while let Some(oldest) = self.slot(self.first).filter(|slot| slot.epoch <= epoch) {
            self.free.insert(u64::from(self.first));
            self.first = oldest.next;
            released += 1;
        }
        if self.first == NIL {
            self.last = NIL;
        }
        self.quarantined = self.quarantined.saturating_sub(released);
        released
    }

    fn slot(&self, id: u32) -> Option<Quarantined> {
        if id == NIL {
            return None;
        }
        self.quarantine
            .as_slice()
            .get(usize::try_from(id).ok()?)
            .copied()
    }

    fn slot_mut(&mut self, id: u32) -> Option<&mut Quarantined> {
        if id == NIL {
            return None;
        }
        self.quarantine
            .as_mut_slice()
            .get_mut(usize::try_from(id).ok()?)
    }
}
