// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which page sizes map what, and which tables that takes.
//!
//! A GPU virtual address has 48 bits; its tables have four levels of 512 entries of 8 bytes:
//!
//! | level | bits of the address | one entry covers | an entry is |
//! |---|---|---|---|
//! | 3 (root) | 47:39 | 512 GiB | a table |
//! | 2 | 38:30 | 1 GiB | a table |
//! | 1 | 29:21 | 2 MiB | a table or a 2 MiB page |
//! | 0 | 20:12 | 4 KiB | a 4 KiB page, or one of the 16 equal entries of a 64 KiB page |
//!
//! [`PagePlan`] walks the physical pieces of a mapping, joins those that are neighbours and yields
//! [`Run`]s: so many pages of one size, consecutive in virtual and in physical address, in one
//! table. Each run is as large as the alignment of both addresses and the permitted sizes allow,
//! and each is one write of consecutive entries.
//!
//! # Examples
//!
//! ```
//! use skua_policy::page_plan::{PagePlan, PhysPiece, Sizes};
//! use skua_spec::mmu::PageSize;
//!
//! // 2 MiB and a page more, at addresses that both are multiples of 2 MiB.
//! let memory = PhysPiece {
//!     start: 0x4000_0000,
//!     len: 0x20_1000,
//! };
//! let plan = PagePlan::new(0x8000_0000, memory.len, Sizes::ALL, [memory].into_iter())?;
//! let runs = plan.collect::<Result<Vec<_>, _>>()?;
//! let sizes: Vec<_> = runs.iter().map(|run| (run.size, run.count)).collect();
//! assert_eq!(sizes, [(PageSize::Size2M, 1), (PageSize::Size4K, 1)]);
//! # Ok::<(), skua_policy::page_plan::PlanError>(())
//! ```

#[cfg(test)]
mod tests;

use crate::spec::{
    address::{GpuVa, VA_BITS},
    mmu::{self, PageSize},
};

/// Whether `[va, va + len)` is a range of whole pages in the address space, and not empty.
pub const fn is_mappable(va: u64, len: u64) -> bool {
    match va.checked_add(len) {
        Some(end) => len > 0 && end <= 1 << VA_BITS && (va | len) % PageSize::Size4K.bytes() == 0,
        None => false,
    }
}

/// Which page sizes a mapping may use. 4 KiB pages always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Whether 64 KiB pages may be used.
    pub medium: bool,
    /// Whether 2 MiB pages may be used.
    pub large: bool,
}

impl Sizes {
    /// Every size.
    pub const ALL: Sizes = Sizes {
        medium: true,
        large: true,
    };

    const fn allow(self, size: PageSize) -> bool {
        match size {
            PageSize::Size4K => true,
            PageSize::Size64K => self.medium,
            PageSize::Size2M => self.large,
        }
    }
}

/// A piece of physical memory, in the address space that the entries are to name (GPU-physical or
/// bus).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysPiece {
    /// Its first byte, a multiple of 4 KiB.
    pub start: u64,
    /// Its length in bytes, a multiple of 4 KiB.
    pub len: u64,
}

/// Consecutive pages of one size, in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The size of the pages.
    pub size: PageSize,
    /// The virtual address of the first.
    pub va: u64,
    /// Its physical address; that of each further page is larger by `size`.
    pub phys: u64,
    /// How many pages; at least 1.
    pub count: u64,
}

impl Run {
    /// Length of the run in bytes.
    pub const fn bytes(&self) -> u64 {
        // No overflow: a run lies in one table.
        self.count << self.size.shift()
    }

    /// The index of the run's first entry in its table, which is of level `size.level()`.
    pub const fn first_entry(&self) -> usize {
        mmu::index(GpuVa(self.va), self.size.level())
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The virtual range is empty, not of whole pages, or not within 48 bits.
    BadRange,
    /// A physical piece is not of whole pages, or ends beyond 64 bits.
    BadPiece,
    /// The pieces end before the range does.
    Short,
}

/// The runs that map a virtual range, in order of address. After an error it ends.
///
/// Pieces beyond the end of the range are not looked at; empty ones are skipped.
#[derive(Clone, Debug)]
pub struct PagePlan<I> {
    /// Where the next run begins.
    va: u64,
    /// Bytes of the range from `va` on; 0 also after an error.
    left: u64,
    /// The page sizes that the caller permits.
    sizes: Sizes,
    /// Physical memory in order of address, not yet looked at.
    pieces: I,
    /// The physical memory under `va`: neighbours joined, as far as it was looked at.
    phys: PhysPiece,
    /// A piece that was taken from `pieces` and is no neighbour of `phys`.
    next: Option<PhysPiece>,
}

impl<I: Iterator<Item = PhysPiece>> PagePlan<I> {
    /// A plan for the `len` bytes at `va`, on the memory that `pieces` yields in order.
    ///
    /// # Errors
    ///
    /// [`PlanError::BadRange`]. The pieces are judged as the plan comes to them.
    pub fn new(va: u64, len: u64, sizes: Sizes, pieces: I) -> Result<Self, PlanError> {
        if !is_mappable(va, len) {
            return Err(PlanError::BadRange);
        }
        Ok(PagePlan {
            va,
            left: len,
            sizes,
            pieces,
            phys: PhysPiece { start: 0, len: 0 },
            next: None,
        })
    }

    /// Joins pieces until `phys` holds what is left of the range or the next piece is no neighbour.
    /// Each piece is joined once.
    fn look_ahead(&mut self) -> Result<(), PlanError> {
        while self.phys.len < self.left {
            let piece = match self.next.take() {
                Some(piece) => piece,
                None => match self.pieces.next() {
                    Some(piece) => piece,
                    None => break,
                },
            };
            let end = piece.start.checked_add(piece.len);
            if (piece.start | piece.len) % PageSize::Size4K.bytes() != 0 || end.is_none() {
                return Err(PlanError::BadPiece);
            }
            let behind = self.phys.start.checked_add(self.phys.len);
            if piece.len == 0 {
                continue;
            } else if self.phys.len == 0 {
                self.phys = piece;
            } else if behind == Some(piece.start) {
                // No overflow: `end` is within 64 bits.
                self.phys.len = self.phys.len.saturating_add(piece.len);
            } else {
                self.next = Some(piece);
                break;
            }
        }
        if self.phys.len == 0 {
            return Err(PlanError::Short);
        }
        Ok(())
    }

    /// The largest run that begins at `va`.
    fn run(&self) -> Run {
        let (va, phys) = (self.va, self.phys.start);
        let room = self.left.min(self.phys.len);
        let fits = |size: PageSize, at: u64| {
            let off = size.bytes() - 1;
            self.sizes.allow(size)
                && (va.wrapping_add(at) | phys.wrapping_add(at)) & off == 0
                && room.saturating_sub(at) > off
        };
        let size = PageSize::ALL
            .into_iter()
            .find(|size| fits(*size, 0))
            .unwrap_or(PageSize::Size4K);
        // To the end of the table, or to where a larger page begins.
        let table = mmu::table_span(size.level());
        let mut bytes = room.min(table - va % table);
        for larger in PageSize::ALL.into_iter().filter(|larger| *larger > size) {
            let to_larger = va.next_multiple_of(larger.bytes()) - va;
            if to_larger < bytes && fits(larger, to_larger) {
                bytes = to_larger;
            }
        }
        Run {
            size,
            va,
            phys,
            count: bytes >> size.shift(),
        }
    }
}

impl<I: Iterator<Item = PhysPiece>> Iterator for PagePlan<I> {
    type Item = Result<Run, PlanError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        if let Err(error) = self.look_ahead() {
            self.left = 0;
            return Some(Err(error));
        }
        let run = self.run();
        let bytes = run.bytes();
        // No overflow: the run is within the range and within `phys`; the end of `phys` may be
        // 2^64.
        self.va = self.va.saturating_add(bytes);
        self.left = self.left.saturating_sub(bytes);
        self.phys.start = self.phys.start.saturating_add(bytes);
        self.phys.len = self.phys.len.saturating_sub(bytes);
        Some(Ok(run))
    }
}
