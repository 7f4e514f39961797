// SPDX-License-Identifier: GPL-2.0

//! Page tables of one address space, manual section 5.
//!
//! Tables are pages of coherent system memory in a tree that the CPU owns: each table knows the
//! tables below it. They are added when a mapping is prepared, which can fail, and stay until the
//! address space goes; writing entries allocates nothing. An empty table translates nothing, so
//! adding one is invisible.
//!
//! The rules for a running GPU, which may walk at any moment:
//!
//! - an entry is written whole, 8 bytes, and a table is filled before the entry that points at it
//!   is written;
//! - a large page of which a part goes is first replaced by smaller ones that translate the same,
//!   then the part is cleared: the rest translates at every moment;
//! - what was valid may live on in a TLB until it is flushed, which is the caller's part
//!   ([`Changed::Stale`]).
//!
//! Lock: `root`, a mutex under which nothing is allocated; work that fences depend on takes it.

use crate::{
    gpu::SkuaDevice,
    policy::page_plan::{
        PageSize as PlanSize,
        Run, //
    },
    quota::Share,
    spec::{
        address::{
            BusAddr,
            GpuPhys,
            GpuVa, //
        },
        mmu::{
            self,
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
    new_mutex,
    prelude::*,
    sync::{
        barrier,
        Mutex, //
    }, //
};

/// Bytes of a table's entries.
const TABLE_BYTES: u64 = ENTRIES as u64 * 8;

/// One table.
struct Table {
    memory: Coherent<[u64]>,
    /// The tables below, by entry; empty in level 0.
    children: KVec<Option<KBox<Table>>>,
    /// Its memory counts as system memory in use.
    _share: Share,
}

/// The tables of an address space. Lives while the device is bound.
#[pin_data]
pub(crate) struct PageTable {
    #[pin]
    root: Mutex<Table>,
    entry: Entry,
}

/// Whether translations that were valid may live on in a TLB.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Only invalid entries were written over, which are not cached.
    Fresh,
    /// A valid entry was removed or replaced.
    Stale,
}

impl Changed {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        if self == Self::Stale {
            self
        } else {
            other
        }
    }
}

/// What a mapping's entries have in common.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    /// The memory is VRAM; system memory otherwise.
    pub(crate) vram: bool,
    /// The GPU may write.
    pub(crate) write: bool,
}

impl Access {
    fn entry(self, phys: u64, size: PageSize) -> Entry {
        let target = if self.vram {
            Target::Vram(GpuPhys(phys))
        } else {
            Target::System(BusAddr(phys))
        };
        // System memory is cached by the CPU: the GPU has to snoop (row 0.28).
        Entry::page(target, size, self.write, true)
    }
}

impl Table {
    fn new(dev: &SkuaDevice, parent: &Device<Bound>, level: u32) -> Result<Self> {
        let mut bytes = TABLE_BYTES;
        let mut children = KVec::new();
        if level > 0 {
            bytes *= 2;
            children = KVec::with_capacity(ENTRIES, GFP_KERNEL_ACCOUNT)?;
            for _ in 0..ENTRIES {
                children.push(None, GFP_KERNEL_ACCOUNT)?;
            }
        }
        Ok(Self {
            _share: dev.system.take(bytes).ok_or(ENOMEM)?,
            memory: Coherent::zeroed_slice(parent, ENTRIES, GFP_KERNEL_ACCOUNT)?,
            children,
        })
    }

    fn pointer(&self) -> Entry {
        Entry::table(Target::System(BusAddr(self.memory.dma_address())))
    }

    fn read(&self, index: usize) -> Result<Entry> {
        Ok(Entry(io_read!(&self.memory, [try: index])))
    }

    fn write(&self, index: usize, entry: Entry) -> Result {
        io_write!(&self.memory, [try: index], entry.0);
        Ok(())
    }

    fn child(&self, index: usize) -> Option<&Table> {
        self.children.get(index)?.as_deref()
    }

    /// The table of `level` for `va`, if there is one.
    fn find(&self, va: GpuVa, level: u32) -> Option<&Table> {
        let mut table = self;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            table = table.child(mmu::index(va, above))?;
        }
        Some(table)
    }

    /// Adds `new` where the way to the table of `level` for `va` ends, and says whether that was
    /// it. The level it is at is returned if another one is missing; `new` comes back if none is.
    fn add(&mut self, va: GpuVa, level: u32, new: &mut Option<KBox<Table>>) -> Result<Option<u32>> {
        let mut table = self;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            let index = mmu::index(va, above);
            if table.child(index).is_none() {
                let Some(fresh) = new.take() else {
                    return Ok(Some(above - 1));
                };
                let pointer = fresh.pointer();
                // A large page that is mapped here stays until it is split.
                if !table.read(index)?.is_valid() {
                    barrier::dma_mb(barrier::Write);
                    table.write(index, pointer)?;
                }
                *table.children.get_mut(index).ok_or(EINVAL)? = Some(fresh);
            }
            table = table
                .children
                .get_mut(index)
                .and_then(Option::as_deref_mut)
                .ok_or(EINVAL)?;
        }
        Ok(None)
    }
}

/// The last byte's successor of the entry of `level` that holds `va`.
fn entry_end(va: u64, level: u32) -> u64 {
    let span = mmu::entry_span(level);
    // No overflow: addresses have 48 bits.
    (va & !(span - 1)).saturating_add(span)
}

impl PageTable {
    /// An address space in which nothing is mapped. `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
    ) -> Result<impl PinInit<Self, Error>> {
        let root = Table::new(dev, parent, ROOT_LEVEL)?;
        let entry = root.pointer();
        Ok(try_pin_init!(Self {
            root <- new_mutex!(root),
            entry,
        }))
    }

    /// The entry that names the root table in a context descriptor.
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// Adds the tables down to `level` for all of `[va, va + len)`. `ENOMEM`; what was added stays.
    pub(crate) fn prepare(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        va: u64,
        len: u64,
        level: u32,
    ) -> Result {
        let end = va.checked_add(len).ok_or(EINVAL)?;
        let mut at = va;
        while at < end {
            self.prepare_one(dev, parent, GpuVa(at), level)?;
            at = entry_end(at, level + 1);
        }
        Ok(())
    }

    fn prepare_one(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        va: GpuVa,
        level: u32,
    ) -> Result {
        let mut new = None;
        loop {
            // Nothing is allocated under the lock.
            let missing = self.root.lock().add(va, level, &mut new)?;
            match missing {
                Some(level) => {
                    let table = Table::new(dev, parent, level)?;
                    new = Some(KBox::new(table, GFP_KERNEL_ACCOUNT)?);
                }
                None => return Ok(()),
            }
        }
    }

    /// Adds the tables that mapping `run` needs. `ENOMEM`.
    pub(crate) fn prepare_run(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        run: &Run,
    ) -> Result {
        self.prepare(dev, parent, run.va, run.bytes(), run.size.level())
    }

    /// Writes the entries of `run`, whose tables were prepared and which maps where nothing is
    /// mapped.
    pub(crate) fn map(&self, run: &Run, access: Access) -> Result {
        let (size, level) = match run.size {
            PlanSize::Small => (PageSize::Size4K, 0),
            PlanSize::Medium => (PageSize::Size64K, 0),
            PlanSize::Large => (PageSize::Size2M, 1),
        };
        let root = self.root.lock();
        let table = root.find(GpuVa(run.va), level).ok_or(EIO)?;
        let mut index = usize::try_from(run.first_entry())?;
        let mut phys = run.phys;
        let repeat = if size == PageSize::Size64K {
            ENTRIES_PER_64K
        } else {
            1
        };
        for _ in 0..run.count {
            let entry = access.entry(phys, size);
            for _ in 0..repeat {
                table.write(index, entry)?;
                index += 1;
            }
            phys = phys.wrapping_add(size.bytes());
        }
        if level == 0 {
            // A large page may have stood here, whose removal left nothing.
            let above = root.find(GpuVa(run.va), 1).ok_or(EIO)?;
            let at = mmu::index(GpuVa(run.va), 1);
            if above.read(at)? != table.pointer() {
                barrier::dma_mb(barrier::Write);
                above.write(at, table.pointer())?;
            }
        }
        Ok(())
    }

    /// Clears all entries of `[va, va + len)`, splitting large pages at its edges.
    pub(crate) fn clear(&self, va: u64, len: u64) -> Result<Changed> {
        let end = va.checked_add(len).ok_or(EINVAL)?;
        let root = self.root.lock();
        let mut changed = Changed::Fresh;
        let mut at = va;
        while at < end {
            // The way down as far as it goes; what is missing is not mapped.
            if root.find(GpuVa(at), 2).is_none() {
                at = entry_end(at, 3);
                continue;
            }
            let Some(table) = root.find(GpuVa(at), 1) else {
                at = entry_end(at, 2);
                continue;
            };
            let to = entry_end(at, 1).min(end);
            changed = changed.and(Self::clear_2m(table, at, to)?);
            at = to;
        }
        Ok(changed)
    }

    /// Clears `[from, to)` within one entry of the level-1 `table`.
    fn clear_2m(table: &Table, from: u64, to: u64) -> Result<Changed> {
        let index = mmu::index(GpuVa(from), 1);
        let entry = table.read(index)?;
        if !entry.is_valid() {
            return Ok(Changed::Fresh);
        }
        let below = table.child(index);
        if entry.is_large() {
            if to - from == PageSize::Size2M.bytes() {
                let next = below.map_or(Entry::INVALID, Table::pointer);
                table.write(index, next)?;
                return Ok(Changed::Stale);
            }
            // Split: the same memory by 64 KiB pages, then the entry that points at them.
            let below = below.ok_or(EIO)?;
            for slot in 0..ENTRIES {
                let page = slot - slot % ENTRIES_PER_64K;
                below.write(slot, Self::part(entry, page, PageSize::Size64K)?)?;
            }
            barrier::dma_mb(barrier::Write);
            table.write(index, below.pointer())?;
        }
        let below = below.ok_or(EIO)?;
        let (first, count) = (
            mmu::index(GpuVa(from), 0),
            usize::try_from((to - from) / PageSize::Size4K.bytes())?,
        );
        let last = first + count;
        Self::split_64k(below, first)?;
        if last < ENTRIES {
            Self::split_64k(below, last)?;
        }
        let mut changed = Changed::Fresh;
        for slot in first..last {
            if below.read(slot)?.is_valid() {
                below.write(slot, Entry::INVALID)?;
                changed = Changed::Stale;
            }
        }
        Ok(changed)
    }

    /// If a cut before `slot` goes through a 64 KiB page, replaces it by 4 KiB pages.
    fn split_64k(table: &Table, slot: usize) -> Result {
        let first = slot - slot % ENTRIES_PER_64K;
        let entry = table.read(first)?;
        if slot == first || !entry.is_valid() || !entry.is_large() {
            return Ok(());
        }
        for part in 0..ENTRIES_PER_64K {
            table.write(first + part, Self::part(entry, part, PageSize::Size4K)?)?;
        }
        Ok(())
    }

    /// The entry of `size` for the 4 KiB page number `page` of what `entry` maps.
    fn part(entry: Entry, page: usize, size: PageSize) -> Result<Entry> {
        let offset = u64::try_from(page)?
            .checked_mul(PageSize::Size4K.bytes())
            .ok_or(EINVAL)?;
        let address = (entry.0 & Entry::ADDRESS)
            .checked_add(offset)
            .ok_or(EINVAL)?;
        let bits = entry.0 & !(Entry::ADDRESS | Entry::LARGE);
        let large = if size == PageSize::Size4K {
            0
        } else {
            Entry::LARGE
        };
        Ok(Entry(address | bits | large))
    }

    /// Tables of this address space, for debugfs.
    pub(crate) fn count(&self) -> usize {
        let root = self.root.lock();
        let mut count = 1;
        for two in root.children.iter().flatten() {
            count += 1;
            for one in two.children.iter().flatten() {
                count += 1 + one.children.iter().flatten().count();
            }
        }
        count
    }
}
