// SPDX-License-Identifier: GPL-2.0

//! The paging process' memory: its page tables and its paging buffers.
//!
//! All of it is allocated at probe, for the whole address space, and freed when the device is
//! unbound. Entries and commands are written by the CPU, on the way to a ring
//! (`DXGK_OPERATION_UPDATE_PAGE_TABLE`); which, [`crate::policy::paging`] says.

use crate::{
    hardware::miniport::Hardware,
    policy::{
        page_plan::{
            PagePlan,
            PhysPiece,
            Run,
            Sizes, //
        },
        paging::{
            PagingSpace,
            BUFFER_BYTES,
            WINDOWS, //
        }, //
    },
    spec::{
        address::{
            BusAddr,
            GpuPhys,
            PAGE_SIZE, //
        },
        mmu::{
            entry_span,
            Entry,
            PageSize,
            Target,
            ENTRIES,
            ENTRIES_PER_64K,
            ROOT_LEVEL, //
        }, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::Coherent,
    io::{
        io_read,
        io_write, //
    },
    prelude::*, //
};

const _: () = assert!(BUFFER_BYTES == PAGE_SIZE);

/// Words of a paging buffer.
const BUFFER_WORDS: usize = (BUFFER_BYTES / 4) as usize;

/// The address space in which engines do paging operations, and its page tables.
pub(crate) struct Paging {
    /// What its addresses are for.
    pub(crate) space: PagingSpace,
    /// The tables of each level, in order of address, as many as the space takes.
    levels: [KVVec<Coherent<[u64]>>; ROOT_LEVEL as usize + 1],
    /// The paging buffers, by window: a page each.
    buffers: Coherent<[u32]>,
}

impl Paging {
    /// Allocates all of it, with nothing but the buffers mapped. `ENOMEM`.
    pub(crate) fn new(dev: &Device<Bound>, space: PagingSpace) -> Result<Self> {
        let mut paging = Self {
            space,
            levels: [const { KVVec::new() }; ROOT_LEVEL as usize + 1],
            buffers: Coherent::zeroed_slice(dev, BUFFER_WORDS * WINDOWS as usize, GFP_KERNEL)?,
        };
        for (level, tables) in (0..).zip(&mut paging.levels) {
            for _ in 0..space.tables(level) {
                tables.push(Hardware::page(dev)?, GFP_KERNEL)?;
            }
        }
        for level in 1..=ROOT_LEVEL {
            for number in 0..space.tables(level - 1) {
                paging.write(level, number, paging.pointer(level - 1, number)?)?;
            }
        }
        for number in 0..WINDOWS {
            let buffer = paging.buffers.dma_address();
            let bus = BusAddr(buffer + u64::from(number) * BUFFER_BYTES);
            let entry = Entry::page(Target::System(bus), PageSize::Size4K, false, true);
            paging.write(0, space.window(number).buffer().0 / PAGE_SIZE, entry)?;
        }
        Ok(paging)
    }

    /// The entry that leads to table `number` of `level`.
    fn pointer(&self, level: u32, number: u64) -> Result<Entry> {
        let tables = self.levels.get(level as usize).ok_or(EINVAL)?;
        let table = tables.get(usize::try_from(number)?).ok_or(EINVAL)?;
        Ok(Entry::table(Target::System(BusAddr(table.dma_address()))))
    }

    /// The entry that names the root table.
    pub(crate) fn root(&self) -> Result<Entry> {
        self.pointer(ROOT_LEVEL, 0)
    }

    /// Bytes of the tables, as they are.
    pub(crate) fn table_bytes(&self) -> usize {
        let tables = self.levels.iter().flatten();
        tables.map(|table| table.size()).sum()
    }

    /// The table with entry `number` of `level`, and the entry's index there.
    fn find(&self, level: u32, number: u64) -> Result<(&Coherent<[u64]>, usize)> {
        let number = usize::try_from(number)?;
        let tables = self.levels.get(level as usize).ok_or(EINVAL)?;
        Ok((
            tables.get(number / ENTRIES).ok_or(EINVAL)?,
            number % ENTRIES,
        ))
    }

    fn write(&self, level: u32, number: u64, entry: Entry) -> Result {
        let (table, index) = self.find(level, number)?;
        io_write!(table, [try: index], entry.0);
        Ok(())
    }

    /// Has `[va, va + bytes)` of a window show contiguous memory, which the engine writes if
    /// `write`, and for which it snoops if the CPU has it `cached`.
    pub(crate) fn map(
        &self,
        va: u64,
        bytes: u64,
        target: Target,
        write: bool,
        cached: bool,
    ) -> Result {
        let start = match target {
            Target::Vram(GpuPhys(start)) | Target::System(BusAddr(start)) => start,
        };
        let piece = PhysPiece { start, len: bytes };
        let plan = PagePlan::new(va, bytes, Sizes::ALL, core::iter::once(piece));
        for run in plan.map_err(|_| EINVAL)? {
            self.map_run(&run.map_err(|_| EINVAL)?, target, write, cached)?;
        }
        Ok(())
    }

    fn map_run(&self, run: &Run, target: Target, write: bool, cached: bool) -> Result {
        let level = run.size.level();
        let repeat = if run.size == PageSize::Size64K {
            ENTRIES_PER_64K
        } else {
            1
        };
        let mut number = run.va / entry_span(level);
        for page in 0..run.count {
            // No overflow: within the memory that is mapped.
            let phys = run.phys.saturating_add(page << run.size.shift());
            let target = match target {
                Target::Vram(_) => Target::Vram(GpuPhys(phys)),
                Target::System(_) => Target::System(BusAddr(phys)),
            };
            let entry = Entry::page(target, run.size, write, cached);
            for _ in 0..repeat {
                self.write(level, number, entry)?;
                number += 1;
            }
        }
        Ok(())
    }

    /// Has `[va, va + bytes)` of a window show nothing.
    pub(crate) fn clear(&self, va: u64, bytes: u64) -> Result {
        let large = PageSize::Size2M.bytes();
        let end = va.checked_add(bytes).ok_or(EINVAL)?;
        let mut at = va;
        while at < end {
            let number = at / large;
            // No overflow: within the space.
            let next = end.min((number + 1) * large);
            let (table, index) = self.find(1, number)?;
            if Entry(io_read!(table, [try: index])).is_large() {
                // What is below it shows nothing.
                self.write(1, number, self.pointer(0, number)?)?;
            } else {
                for page in at / PAGE_SIZE..next / PAGE_SIZE {
                    self.write(0, page, Entry::INVALID)?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Writes `words` into the paging buffer of window number `window`, at byte offset `at`.
    pub(crate) fn write_buffer(&self, window: u32, at: u32, words: &[u32]) -> Result {
        let at = usize::try_from(at / 4)?;
        if at.saturating_add(words.len()) > BUFFER_WORDS {
            return Err(EINVAL);
        }
        let first = usize::try_from(window)? * BUFFER_WORDS;
        for (word, value) in (first + at..).zip(words) {
            io_write!(&self.buffers, [try: word], *value);
        }
        Ok(())
    }
}
