// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The paging process: the address space in which the GPU moves memory for the memory manager, how
//! large it is, and what of an operation one paging buffer does.
//!
//! The space begins at address 0. Its tables are there from the beginning and stay. It is divided
//! into [`WINDOWS`] equal parts, each with the work of one paging buffer at a time:
//!
//! ```text
//! FILL      │ memory of the segment                            │ unused    │
//! TRANSFER  │ memory of the segment   │ system memory          │ unused    │
//!           ▲ a multiple of the largest page that fits         ▲ the paging buffer
//! ```
//!
//! DISCARD_CONTENT has nothing to map. An operation that is larger than its window goes on in the
//! next paging buffer: a *pass* does what the window, the buffer and an engine's time have room
//! for, and a [`MultipassOffset`] says where the next one begins. Where a pass ends depends on
//! nothing but where it begins, so one that is repeated after a reset does the same again.
//!
//! # Examples
//!
//! ```
//! use skua_policy::buddy::PageRange;
//! use skua_policy::miniport::PagingOperation;
//! use skua_policy::paging::{MultipassOffset, PagingSpace, MIB};
//!
//! // Of 1 MiB each buffer has a window of 192 KiB.
//! let space = PagingSpace::new(MIB).expect("a size");
//! let blocks = [PageRange::new(512, 64)];
//! let fill = PagingOperation::Fill { segment: 1, blocks: &blocks };
//! let mut pages = Vec::new();
//! let mut next = Some(MultipassOffset::default());
//! while let Some(from) = next {
//!     next = fill.pass(from, space.window(0), |step| {
//!         pages.push(step.block.pages.0);
//!         Ok::<(), ()>(())
//!     })?;
//! }
//! assert_eq!(pages, [48, 16]);
//! # Ok::<(), ()>(())
//! ```

use super::{
    buddy::{PageRange, PAGE_BYTES},
    miniport::{ContextPage, PagingOperation, Segment, SegmentKind},
};
use crate::spec::{
    address::{BusAddr, GpuVa, VA_BITS},
    mmu::{self, PageSize, ENTRIES, ROOT_LEVEL},
};

#[cfg(test)]
mod tests;

/// Bytes of the unit in which a miniport answers.
pub const MIB: u64 = 1 << 20;
/// Paging buffers that are filled or in a ring at a time.
pub const WINDOWS: u32 = 4;
/// Bytes of a paging buffer.
pub const BUFFER_BYTES: u64 = 4096;
/// Bytes that a command in it takes at most.
const COMMAND_BYTES: u64 = 32;
/// Pages that one pass of a fill, or of a transfer, does at most: both less than a millisecond, of
/// the engine and of who writes the entries.
const FILL_PAGES: u64 = 8192;
const TRANSFER_PAGES: u64 = 256;

/// The size that an address space was to have is none that it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSize;

/// How large the paging process' address space is, in bytes; [`None`] if there is none, and nothing
/// that needs one can be done.
///
/// `answer` is the miniport's ([`AdapterInfo`](super::miniport::AdapterInfo)); without one, or with
/// 0, the core decides: a quarter of the largest memory segment, or what the logs of
/// hardware scheduling take if that is more (`logs` bytes, [`None`] without hardware scheduling),
/// up to whole tables. With neither there is none.
///
/// # Errors
///
/// [`BadSize`]: no address space can be so large.
pub fn space_bytes<E>(
    answer: Result<u32, E>,
    segments: &[Segment],
    logs: Option<u64>,
) -> Result<Option<u64>, BadSize> {
    let limit = |bytes: u64| {
        if bytes <= 1 << VA_BITS {
            Ok(Some(bytes))
        } else {
            Err(BadSize)
        }
    };
    if let Some(megabytes) = answer.ok().filter(|megabytes| *megabytes > 0) {
        return limit(u64::from(megabytes).checked_mul(MIB).ok_or(BadSize)?);
    }
    let local = segments.iter().filter_map(|segment| match segment.kind {
        SegmentKind::Memory { bytes, .. } => Some(bytes / 4),
        SegmentKind::System | SegmentKind::Aperture { .. } => None,
    });
    match local.chain(logs).max() {
        Some(bytes) => limit(
            bytes
                .max(1)
                .checked_next_multiple_of(PageSize::Size2M.bytes())
                .ok_or(BadSize)?,
        ),
        None => Ok(None),
    }
}

/// The layout of a paging process' address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagingSpace {
    /// A multiple of [`MIB`], not 0, at most what addresses name.
    bytes: u64,
}

impl PagingSpace {
    /// One of `bytes` bytes. [`None`] if it is not a multiple of [`MIB`], is 0 or more than there
    /// are addresses.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes == 0 || bytes % MIB != 0 || bytes > 1 << VA_BITS {
            return None;
        }
        Some(Self { bytes })
    }

    /// The size of its address range in bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Tables of `level` (0 to 3) that translate all of it.
    pub const fn tables(self, level: u32) -> u64 {
        self.bytes.div_ceil(mmu::table_span(level))
    }

    /// Bytes of all tables.
    pub fn table_bytes(self) -> u64 {
        // No overflow: fewer entries than there are pages.
        let tables: u64 = (0..=ROOT_LEVEL).map(|level| self.tables(level)).sum();
        // CAST: 512.
        tables * ENTRIES as u64 * 8
    }

    /// Pages that one pass of a fill does of a block that begins at a multiple of its size: a power
    /// of two.
    pub fn fill_pages(self) -> u64 {
        let pages = (self.window(0).bytes / PAGE_BYTES).min(FILL_PAGES);
        // Not 0: see `Window`.
        1 << pages.checked_ilog2().unwrap_or(0)
    }

    /// Window number `number`, below [`WINDOWS`].
    pub const fn window(self, number: u32) -> Window {
        let part = self.bytes / WINDOWS as u64;
        let large = PageSize::Size2M.bytes();
        let unit = if part >= 2 * large {
            large
        } else {
            PageSize::Size64K.bytes()
        };
        let part = part - part % unit;
        Window {
            // CAST: no overflow, within the space.
            va: GpuVa(part * (number % WINDOWS) as u64),
            bytes: part - unit,
            unit,
        }
    }
}

/// A part of the space: what the work of one paging buffer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first address, a multiple of `unit`.
    va: GpuVa,
    /// How much of it shows memory; a multiple of `unit`, at least three times 64 KiB. Behind it,
    /// within the space, are `unit` bytes with the paging buffer.
    bytes: u64,
    /// Size of the largest page that may be used.
    unit: u64,
}

impl Window {
    /// Where the paging buffer is.
    pub const fn buffer(self) -> GpuVa {
        GpuVa(self.va.0 + self.bytes)
    }
}

/// Where a pass of an operation begins (`MultipassOffset`): all zeroes at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultipassOffset {
    /// Number of the piece.
    pub piece: usize,
    /// Pages of the piece that are done.
    pub page: u64,
}

/// What a step does with its pages of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fills them with zeroes.
    Fill,
    /// Copies them from or to as many contiguous pages of system memory, which are to be mapped
    /// there.
    Transfer(BusAddr, GpuVa),
    /// Writes what a context allocation begins with; to this page of system memory, if it is there.
    InitContextResource(Option<BusAddr>),
}

/// What one command of a paging buffer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Pages of the segment.
    pub block: PageRange,
    /// Where they are to be mapped.
    pub va: GpuVa,
    /// What is done with the pages.
    pub action: Action,
    /// Whether it is the operation's first one (`DXGK_TRANSFERFLAGS::TransferStart`).
    pub start: bool,
    /// Whether it is the operation's last one (`DXGK_TRANSFERFLAGS::TransferEnd`).
    pub end: bool,
}

impl Step {
    /// Bytes that it fills or copies.
    pub const fn bytes(&self) -> u64 {
        // No overflow: within a window.
        self.block.pages.0.saturating_mul(PAGE_BYTES)
    }
}

impl PagingOperation<'_> {
    /// Whether an engine has something to do, whatever the miniport: then it leaves the context
    /// that it holds.
    pub fn has_steps(&self) -> bool {
        self.piece(0).is_some()
    }

    /// Piece number `piece`.
    fn piece(&self, piece: usize) -> Option<(PageRange, Option<BusAddr>)> {
        match self {
            Self::Fill { blocks, .. } => Some((*blocks.get(piece)?, None)),
            Self::Transfer { pieces, .. } => {
                let piece = pieces.get(piece)?;
                Some((piece.block, Some(piece.bus)))
            }
            Self::Discard { .. } => None,
            Self::InitContextResource(page) => (piece == 0).then_some(match *page {
                ContextPage::Segment(_, page) => (PageRange::new(page, 1), None),
                ContextPage::System(bus) => (PageRange::new(0, 1), Some(bus)),
            }),
        }
    }

    /// The pass that begins at `from` and has `window`: gives its steps to `f`, in order, at least
    /// one if anything is left. Where the next pass begins; [`None`] if this is the last.
    ///
    /// # Errors
    ///
    /// The first of `f`.
    pub fn pass<E>(
        &self,
        from: MultipassOffset,
        window: Window,
        mut f: impl FnMut(Step) -> Result<(), E>,
    ) -> Result<Option<MultipassOffset>, E> {
        let (bytes, mut left) = match self {
            Self::Fill { .. } | Self::Discard { .. } => (window.bytes, FILL_PAGES),
            Self::InitContextResource(_) => (window.bytes, 1),
            Self::Transfer { .. } => {
                let half = window.bytes / 2;
                (half - half % PageSize::Size64K.bytes(), TRANSFER_PAGES)
            }
        };
        // No overflow: all is within the window.
        let end = window.va.0 + bytes;
        let (mut va, mut system_va) = (window.va.0, end);
        let mut at = from;
        for _ in 0..BUFFER_BYTES / COMMAND_BYTES {
            let Some((piece, bus)) = self.piece(at.piece) else {
                return Ok(None);
            };
            let rest = piece.pages.0.saturating_sub(at.page);
            let first = piece.start.0.saturating_add(at.page);
            // Where large pages can map it.
            let unit = PageSize::ALL.into_iter().map(PageSize::bytes).find(|size| {
                *size <= rest.saturating_mul(PAGE_BYTES) && *size <= window.unit && *size <= bytes
            });
            let unit = unit.unwrap_or(PAGE_BYTES);
            let gap = first.wrapping_mul(PAGE_BYTES).wrapping_sub(va) % unit;
            let start = va + gap;
            let pages = rest.min(left).min(end.saturating_sub(start) / PAGE_BYTES);
            let next = if pages == rest {
                MultipassOffset {
                    piece: at.piece.saturating_add(1),
                    page: 0,
                }
            } else {
                MultipassOffset {
                    page: at.page.saturating_add(pages),
                    ..at
                }
            };
            if pages > 0 {
                f(Step {
                    block: PageRange::new(first, pages),
                    va: GpuVa(start),
                    action: match (self, bus) {
                        (Self::InitContextResource(_), bus) => Action::InitContextResource(bus),
                        (_, Some(bus)) => {
                            let done = at.page.saturating_mul(PAGE_BYTES);
                            Action::Transfer(BusAddr(bus.0.saturating_add(done)), GpuVa(system_va))
                        }
                        (_, None) => Action::Fill,
                    },
                    start: at == MultipassOffset::default(),
                    end: self.piece(next.piece).is_none(),
                })?;
            } else if rest > 0 {
                break;
            }
            va = start + pages * PAGE_BYTES;
            system_va += pages * PAGE_BYTES;
            left -= pages;
            at = next;
        }
        Ok(self.piece(at.piece).map(|_| at))
    }
}
