// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a transfer between a memory segment and system memory is cut into pieces that are contiguous
//! on both sides.
//!
//! A plan is made where memory can be allocated, and read on the way to a fence's signal, pass by
//! pass ([`super::paging`]).
//!
//! # Examples
//!
//! ```
//! use skua_policy::buddy::PageRange;
//! use skua_policy::page_plan::PhysPiece;
//! use skua_policy::std_heap::StdHeap;
//! use skua_policy::transfer_plan::TransferPlan;
//!
//! // Three pages and one, to two and two.
//! let blocks = [PageRange::new(8, 3), PageRange::new(40, 1)];
//! let bus = [0x10_0000, 0x80_0000].map(|start| PhysPiece { start, len: 0x2000 });
//! let plan = TransferPlan::<StdHeap>::new(&blocks, bus.into_iter()).expect("equally long");
//! let pieces: Vec<_> = plan.pieces().iter().map(|p| (p.block, p.bus.0)).collect();
//! assert_eq!(pieces, [
//!     (PageRange::new(8, 2), 0x10_0000),
//!     (PageRange::new(10, 1), 0x80_0000),
//!     (PageRange::new(40, 1), 0x80_1000),
//! ]);
//! ```

use super::{
    buddy::{PageRange, PAGE_BYTES},
    heap::{FallibleVec, Heap, OutOfMemory},
    miniport::TransferPiece,
    page_plan::PhysPiece,
};
use crate::spec::address::BusAddr;

#[cfg(test)]
mod tests;

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

/// A transfer between VRAM and system memory, cut into pieces that are contiguous in both.
pub struct TransferPlan<H: Heap> {
    /// What is copied, in the order of the bytes.
    pieces: H::Vec<TransferPiece>,
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
        let mut system = PhysPiece { start: 0, len: 0 };
        for block in blocks {
            let (mut start, mut left) = (block.start.0, block.pages.0);
            while left > 0 {
                if system.len == 0 {
                    system = bus.next().ok_or(TransferError::Unequal)?;
                }
                let pages = left.min(system.len / PAGE_BYTES);
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
            }
        }
        if pieces.as_slice().is_empty() || system.len > 0 || bus.next().is_some() {
            return Err(TransferError::Unequal);
        }
        Ok(TransferPlan { pieces })
    }

    /// What is copied, in the order of the bytes.
    pub fn pieces(&self) -> &[TransferPiece] {
        self.pieces.as_slice()
    }
}
