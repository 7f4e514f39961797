// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a transfer between a memory segment and system memory is cut: into pieces that are
//! contiguous on both sides, and those into portions that an engine does one at a time.
//!
//! A portion ends in time, fits a ring many times over, and needs no more of the window on system
//! memory than there is ([`TRANSFER_PAGES`]). Nothing is left to be decided when it is written: a
//! plan is made where memory can be allocated, and read on the way to a fence's signal.

use super::{
    buddy::{PageRange, PAGE_BYTES},
    heap::{FallibleVec, Heap, OutOfMemory},
    miniport::{TransferPiece, TRANSFER_PAGES},
    page_plan::PhysPiece,
};
use crate::spec::address::BusAddr;

#[cfg(test)]
mod tests;

/// Pieces of one portion, at most.
pub const PORTION_PIECES: usize = 32;

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The two sides are not equally long, are empty, or not made of whole pages.
    Unequal,
    /// There is no memory for it.
    OutOfMemory,
}

impl From<OutOfMemory> for TransferError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// A transfer, cut.
pub struct TransferPlan<H: Heap> {
    /// What is copied, in the order of the bytes.
    pieces: H::Vec<TransferPiece>,
    /// By portion, the number of pieces up to its end.
    ends: H::Vec<usize>,
}

impl<H: Heap> TransferPlan<H> {
    /// The plan of a transfer between `blocks` of a segment and the system memory of `bus`, byte by
    /// byte in order.
    ///
    /// # Errors
    ///
    /// [`TransferError`].
    pub fn new(
        blocks: &[PageRange],
        mut bus: impl Iterator<Item = PhysPiece>,
    ) -> Result<Self, TransferError> {
        let mut pieces = <H::Vec<TransferPiece>>::new();
        let mut ends = <H::Vec<usize>>::new();
        let mut system = PhysPiece { start: 0, len: 0 };
        // Of the portion that is being filled.
        let (mut count, mut room) = (0, TRANSFER_PAGES);
        for block in blocks {
            let (mut start, mut left) = (block.start.0, block.pages.0);
            while left > 0 {
                if system.len == 0 {
                    system = bus.next().ok_or(TransferError::Unequal)?;
                }
                if count == PORTION_PIECES || room == 0 {
                    ends.try_push(pieces.len())?;
                    (count, room) = (0, TRANSFER_PAGES);
                }
                let pages = left.min(system.len / PAGE_BYTES).min(room);
                if pages == 0 {
                    return Err(TransferError::Unequal);
                }
                pieces.try_push(TransferPiece {
                    block: PageRange::new(start, pages),
                    bus: BusAddr(system.start),
                })?;
                let bytes = pages * PAGE_BYTES;
                // No overflow: within what the caller named.
                system.start = system.start.saturating_add(bytes);
                system.len -= bytes;
                start = start.saturating_add(pages);
                left -= pages;
                room -= pages;
                count += 1;
            }
        }
        if count == 0 || system.len > 0 || bus.next().is_some() {
            return Err(TransferError::Unequal);
        }
        ends.try_push(pieces.len())?;
        Ok(TransferPlan { pieces, ends })
    }

    /// The number of portions, at least 1.
    pub fn portions(&self) -> usize {
        self.ends.len()
    }

    /// What portion `number` copies; nothing if there is none.
    pub fn portion(&self, number: usize) -> &[TransferPiece] {
        let ends = self.ends.as_slice();
        let start = match number.checked_sub(1) {
            Some(before) => ends.get(before).copied(),
            None => Some(0),
        };
        let range = start.zip(ends.get(number).copied());
        range
            .and_then(|(start, end)| self.pieces.as_slice().get(start..end))
            .unwrap_or(&[])
    }
}
