// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Page tables of one address space: which entries are written, and in which order.
//!
//! A tree that the CPU owns: each table knows the tables below it. Tables are added when a mapping
//! is prepared, which can fail, and stay until the address space goes; writing entries allocates
//! nothing. An empty table translates nothing, so adding one is invisible; but a GPU may keep the
//! entry that names it.
//!
//! The rules for a running GPU, which may walk at any moment:
//!
//! - an entry is written whole, and a table is filled before the entry that points at it is
//!   written;
//! - a large page of which a part goes is first replaced by smaller ones that translate the same,
//!   then the part is cleared: the rest translates at every moment;
//! - what was valid may live on in a TLB until it is flushed, which is the caller's part
//!   ([`Changed::Stale`]).
//!
//! # Examples
//!
//! ```
//! use skua_policy::heap::Heap;
//! use skua_policy::miniport::Miniport;
//! use skua_policy::page_plan::Run;
//! use skua_policy::page_table::{Access, Changed, Table, TableError};
//! use skua_spec::address::GpuVa;
//!
//! /// Maps `run` where nothing is mapped. `empty` makes tables of a level.
//! fn map<H: Heap, M: Miniport>(
//!     root: &mut Table<H, M>,
//!     gpu: &M,
//!     run: &Run,
//!     access: Access,
//!     empty: impl Fn(u32) -> H::Box<Table<H, M>>,
//! ) -> Result<Changed, TableError<M::Error>> {
//!     // Where failing is possible: the tables on the way.
//!     let mut new = None;
//!     while let Some(level) = root.add(gpu, GpuVa(run.va), run.size.level(), &mut new)? {
//!         new = Some(empty(level));
//!     }
//!     // Where it is not: the entries.
//!     root.map(gpu, run, access)
//! }
//! ```

use super::{
    heap::{FallibleVec, Heap, OutOfMemory},
    miniport::Miniport,
    page_plan::Run,
};
use crate::spec::{
    address::{BusAddr, GpuPhys, GpuVa},
    mmu::{self, Entry, PageSize, Target, ENTRIES, ENTRIES_PER_64K, ROOT_LEVEL},
};

#[cfg(test)]
mod tests;

/// Why entries cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError<E> {
    /// The range wraps, or a table is missing that was to be prepared.
    Unprepared,
    /// The miniport has failed with this error.
    Miniport(E),
}

impl<E> From<E> for TableError<E> {
    fn from(error: E) -> Self {
        Self::Miniport(error)
    }
}

/// Whether translations that were valid may live on in a TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Only invalid entries were written over, which are not cached.
    Fresh,
    /// A valid entry was removed or replaced, one that named an empty table among them.
    Stale,
}

impl Changed {
    /// What two changes are together: stale if one of them is.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Stale {
            self
        } else {
            other
        }
    }
}

/// How the GPU is to reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By its GPU-physical address: in VRAM, or in the window of the aperture segment.
    GpuPhysical,
    /// By its bus address, as system memory.
    Bus {
        /// Whether the CPU has it cached, so that the GPU has to snoop (row 0.28).
        cached: bool,
    },
}

/// What a mapping's entries have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// How the GPU is to reach the memory.
    pub reach: Reach,
    /// The GPU may write.
    pub write: bool,
}

impl Access {
    fn entry(self, phys: u64, size: PageSize) -> Entry {
        let (target, snoop) = match self.reach {
            // It goes without, or the entry of the window says it.
            Reach::GpuPhysical => (Target::Vram(GpuPhys(phys)), false),
            Reach::Bus { cached } => (Target::System(BusAddr(phys)), cached),
        };
        Entry::page(target, size, self.write, snoop)
    }
}

/// A table with all below it; the root of an address space is one of [`ROOT_LEVEL`].
pub struct Table<H: Heap, M: Miniport> {
    /// The entries, as the GPU reads them.
    memory: M::Table,
    /// The tables below, by entry; empty in level 0.
    children: H::Vec<Option<H::Box<Self>>>,
}

type Outcome<T, M> = Result<T, TableError<<M as Miniport>::Error>>;

impl<H: Heap, M: Miniport> Table<H, M> {
    /// A table of `level` in which nothing is mapped; `memory` is zeroed.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn new(memory: M::Table, level: u32) -> Result<Self, OutOfMemory> {
        let below = if level > 0 { ENTRIES } else { 0 };
        Ok(Table {
            memory,
            children: H::Vec::filled_with(below, || None)?,
        })
    }

    /// The entry of the table above that leads here, or the root of a context descriptor.
    pub fn pointer(&self, miniport: &M) -> Entry {
        Entry::table(Target::System(miniport.page_table_address(&self.memory)))
    }

    fn read(&self, miniport: &M, index: usize) -> Outcome<Entry, M> {
        Ok(miniport.read_page_table(&self.memory, index)?)
    }

    fn write(&self, miniport: &M, index: usize, entry: Entry) -> Outcome<(), M> {
        Ok(miniport.update_page_table(&self.memory, index, entry)?)
    }

    /// Has entry `index` point at `below`, as that is now.
    fn link(&self, miniport: &M, index: usize, below: Entry) -> Outcome<(), M> {
        miniport.order_page_tables();
        self.write(miniport, index, below)
    }

    fn child(&self, index: usize) -> Option<&Self> {
        self.children.as_slice().get(index)?.as_deref()
    }

    /// The table of `level` for `va`, if there is one.
    fn find(&self, va: GpuVa, level: u32) -> Option<&Self> {
        let mut table = self;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            table = table.child(mmu::index(va, above))?;
        }
        Some(table)
    }

    /// Adds `new` where the way to the table of `level` for `va` ends. If a table is missing there
    /// then, its level is returned; `new` stays if none was.
    ///
    /// # Errors
    ///
    /// [`TableError`]; `new` may be lost.
    pub fn add(
        &mut self,
        miniport: &M,
        va: GpuVa,
        level: u32,
        new: &mut Option<H::Box<Self>>,
    ) -> Outcome<Option<u32>, M> {
        let mut table = self;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            let index = mmu::index(va, above);
            if table.child(index).is_none() {
                let Some(fresh) = new.take() else {
                    return Ok(Some(above - 1));
                };
                let pointer = fresh.pointer(miniport);
                // A large page that is mapped here stays until it is split.
                if !table.read(miniport, index)?.is_valid() {
                    table.link(miniport, index, pointer)?;
                }
                let place = table.children.as_mut_slice().get_mut(index);
                *place.ok_or(TableError::Unprepared)? = Some(fresh);
            }
            table = table
                .children
                .as_mut_slice()
                .get_mut(index)
                .and_then(Option::as_deref_mut)
                .ok_or(TableError::Unprepared)?;
        }
        Ok(None)
    }

    /// Writes the entries of `run`, whose tables were added and which maps where nothing is mapped.
    ///
    /// # Errors
    ///
    /// [`TableError`].
    pub fn map(&self, miniport: &M, run: &Run, access: Access) -> Outcome<Changed, M> {
        let va = GpuVa(run.va);
        let level = run.size.level();
        let table = self.find(va, level).ok_or(TableError::Unprepared)?;
        let repeat = if run.size == PageSize::Size64K {
            ENTRIES_PER_64K
        } else {
            1
        };
        let mut index = run.first_entry();
        let mut phys = run.phys;
        let mut changed = Changed::Fresh;
        for _ in 0..run.count {
            let entry = access.entry(phys, run.size);
            // An empty table may hang there, which translates nothing, but may be cached.
            if level > 0 && table.read(miniport, index)?.is_valid() {
                changed = Changed::Stale;
            }
            for _ in 0..repeat {
                table.write(miniport, index, entry)?;
                index += 1;
            }
            phys = phys.wrapping_add(run.size.bytes());
        }
        if level == 0 {
            // A large page may have stood here, whose removal left nothing.
            let above = self.find(va, 1).ok_or(TableError::Unprepared)?;
            let at = mmu::index(va, 1);
            let pointer = table.pointer(miniport);
            if above.read(miniport, at)? != pointer {
                above.link(miniport, at, pointer)?;
            }
        }
        Ok(changed)
    }

    /// Clears all entries of `[va, va + len)`, splitting large pages at its edges, where the tables
    /// that this needs were added.
    ///
    /// # Errors
    ///
    /// [`TableError`].
    pub fn clear(&self, miniport: &M, va: u64, len: u64) -> Outcome<Changed, M> {
        let end = va.checked_add(len).ok_or(TableError::Unprepared)?;
        let mut changed = Changed::Fresh;
        let mut at = va;
        while at < end {
            // The way down as far as it goes; what is missing is not mapped.
            if self.find(GpuVa(at), 2).is_none() {
                at = entry_end(at, 3);
                continue;
            }
            let Some(table) = self.find(GpuVa(at), 1) else {
                at = entry_end(at, 2);
                continue;
            };
            let to = entry_end(at, 1).min(end);
            changed = changed.and(table.clear_2m(miniport, at, to)?);
            at = to;
        }
        Ok(changed)
    }

    /// Clears `[from, to)` within one entry of this table, of level 1.
    fn clear_2m(&self, miniport: &M, from: u64, to: u64) -> Outcome<Changed, M> {
        let index = mmu::index(GpuVa(from), 1);
        let entry = self.read(miniport, index)?;
        if !entry.is_valid() {
            return Ok(Changed::Fresh);
        }
        let below = self.child(index);
        if entry.is_large() {
            if to - from == PageSize::Size2M.bytes() {
                // What is below translates nothing.
                match below {
                    Some(below) => self.link(miniport, index, below.pointer(miniport))?,
                    None => self.write(miniport, index, Entry::INVALID)?,
                }
                return Ok(Changed::Stale);
            }
            // Split: the same memory by 64 KiB pages, then the entry that points at them.
            let below = below.ok_or(TableError::Unprepared)?;
            for slot in 0..ENTRIES {
                let page = slot - slot % ENTRIES_PER_64K;
                below.write(miniport, slot, entry.part(page, PageSize::Size64K))?;
            }
            self.link(miniport, index, below.pointer(miniport))?;
        }
        let below = below.ok_or(TableError::Unprepared)?;
        let first = mmu::index(GpuVa(from), 0);
        // An entry of level 1 ends at a table's end.
        let last = match mmu::index(GpuVa(to), 0) {
            0 => ENTRIES,
            last => last,
        };
        below.split_64k(miniport, first)?;
        if last < ENTRIES {
            below.split_64k(miniport, last)?;
        }
        let mut changed = Changed::Fresh;
        for slot in first..last {
            if below.read(miniport, slot)?.is_valid() {
                below.write(miniport, slot, Entry::INVALID)?;
                changed = Changed::Stale;
            }
        }
        Ok(changed)
    }

    /// If a cut before `slot` goes through a 64 KiB page, replaces it by 4 KiB pages.
    fn split_64k(&self, miniport: &M, slot: usize) -> Outcome<(), M> {
        let first = slot - slot % ENTRIES_PER_64K;
        let entry = self.read(miniport, first)?;
        if slot == first || !entry.is_valid() || !entry.is_large() {
            return Ok(());
        }
        for page in 0..ENTRIES_PER_64K {
            self.write(miniport, first + page, entry.part(page, PageSize::Size4K))?;
        }
        Ok(())
    }

    /// Calls `f` with the address, the bytes and the entry of each page of this table, which is the
    /// root, and those below, for reports; of a page of 64 KiB those of its parts. Ends when `most`
    /// tables were read.
    ///
    /// # Errors
    ///
    /// [`TableError`].
    pub fn each_page(
        &self,
        miniport: &M,
        mut most: u32,
        f: &mut impl FnMut(u64, u64, Entry),
    ) -> Outcome<(), M> {
        self.each_page_of(miniport, ROOT_LEVEL, 0, &mut most, f)
    }

    /// The same for a table of `level` whose first entry is for `va`.
    fn each_page_of(
        &self,
        miniport: &M,
        level: u32,
        mut va: u64,
        most: &mut u32,
        f: &mut impl FnMut(u64, u64, Entry),
    ) -> Outcome<(), M> {
        let bytes = mmu::entry_span(level);
        let Some(rest) = most.checked_sub(1) else {
            return Ok(());
        };
        *most = rest;
        for index in 0..ENTRIES {
            let entry = self.read(miniport, index)?;
            match self.child(index) {
                _ if !entry.is_valid() => (),
                Some(below) if !entry.is_large() => {
                    below.each_page_of(miniport, level.saturating_sub(1), va, most, f)?;
                }
                _ if level == 0 && entry.is_large() => {
                    let part = index % ENTRIES_PER_64K;
                    f(va, bytes, entry.part(part, PageSize::Size4K));
                }
                _ => f(va, bytes, entry),
            }
            // No overflow: addresses have 48 bits.
            va = va.saturating_add(bytes);
        }
        Ok(())
    }

    /// Takes out a table below this one with what is below that, which are as many as a table has
    /// entries at most, and itself; [`None`] if there is none. Nobody translates by these any more.
    pub fn detach(&mut self) -> Option<H::Box<Self>> {
        let children = self.children.as_mut_slice().iter_mut();
        let child = children.into_iter().find(|child| child.is_some())?;
        let table = child.as_deref_mut()?;
        let mut below = table.children.as_slice().iter().flatten();
        match below.any(|table| !table.children.as_slice().is_empty()) {
            true => table.detach(),
            false => child.take(),
        }
    }

    /// How many tables there are, this one and all below.
    pub fn count(&self) -> usize {
        let below = self.children.as_slice().iter().flatten();
        below.fold(1, |sum, table| sum + table.count())
    }
}

/// Where the entry of `level` that holds `va` ends.
pub fn entry_end(va: u64, level: u32) -> u64 {
    let span = mmu::entry_span(level);
    // No overflow: addresses have 48 bits.
    (va & !(span - 1)).saturating_add(span)
}
