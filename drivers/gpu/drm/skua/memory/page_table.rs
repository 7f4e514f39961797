// SPDX-License-Identifier: GPL-2.0

//! Page tables of one address space, manual section 5: the memory of [`crate::policy::page_table`].
//!
//! Tables are pages of coherent system memory. They are allocated when a mapping is prepared and
//! stay until the address space goes; writing entries allocates nothing.
//!
//! Lock: `tables`, a mutex under which nothing is allocated; work that fences depend on takes it.

use crate::{
    ext::device,
    gpu::SkuaDevice,
    hardware::miniport::Hardware,
    kernel_heap::KernelHeap,
    memory::clean_copy,
    policy::{
        heap::Heap,
        page_plan::Run,
        page_table::{
            entry_end,
            Access,
            Changed,
            Table,
            TableError, //
        }, //
    },
    quota::{
        Quota,
        Share, //
    },
    spec::{
        address::GpuVa,
        mmu::{
            Entry,
            ENTRIES,
            ROOT_LEVEL, //
        }, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Bytes of a table's entries.
const TABLE_BYTES: u64 = ENTRIES as u64 * 8;

/// One table with those below it.
type Node = Table<KernelHeap, Hardware>;

/// The tables of an address space, and their part of the system memory in use.
struct Tables {
    /// The root table, which owns all others.
    root: Node,
    /// Bytes of all tables, of the client's quota of system memory.
    share: Share,
}

/// The page tables of an address space. Live while the device is bound.
#[pin_data]
pub(crate) struct PageTable {
    /// Held for the writing of one run of entries, or for the adding of one table.
    #[pin]
    tables: Mutex<Tables>,
    /// Names the root table, which never moves: known without the lock.
    entry: Entry,
    /// The client's quota of system memory.
    quota: Arc<Quota>,
}

impl From<TableError<Error>> for Error {
    fn from(error: TableError<Error>) -> Self {
        match error {
            TableError::Unprepared => EIO,
            TableError::Miniport(error) => error,
        }
    }
}

/// An empty table of `level`, which counts as system memory in use, of the client that has `quota`.
/// `ENOMEM`, also from that.
fn table(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    level: u32,
) -> Result<(Node, Share)> {
    // What it knows of the tables below takes as much again.
    let bytes = if level > 0 {
        TABLE_BYTES * 2
    } else {
        TABLE_BYTES
    };
    let share = clean_copy::take(dev, quota, bytes).ok_or(ENOMEM)?;
    Ok((Node::new(Hardware::page(parent)?, level)?, share))
}

impl PageTable {
    /// An address space in which nothing is mapped. `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        quota: &Arc<Quota>,
    ) -> Result<impl PinInit<Self, Error> + use<>> {
        let quota = quota.clone();
        let (root, share) = table(dev, parent, &quota, ROOT_LEVEL)?;
        let entry = root.pointer(&dev.hw);
        Ok(try_pin_init!(Self {
            tables <- new_mutex!(Tables { root, share }),
            entry,
            quota,
        }))
    }

    /// The client's quota of system memory.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// The entry that names the root table.
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// Adds the tables down to `level` for all of `[va, va + len)`. `ENOMEM`, `ENODEV`; what was
    /// added stays.
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
        let (mut new, mut part) = (None, None);
        loop {
            // Nothing is allocated under the lock.
            let missing = {
                let mut tables = self.tables.lock();
                let missing = tables.root.add(&dev.hw, va, level, &mut new)?;
                if new.is_none() {
                    if let Some(part) = part.take() {
                        tables.share.join(part);
                    }
                }
                missing
            };
            let Some(level) = missing else {
                return Ok(());
            };
            // There may be many, and the client's control group may have it wait for each few.
            drop(device::enter(dev).ok_or(ENODEV)?);
            let (node, share) = table(dev, parent, &self.quota, level)?;
            new = Some(KernelHeap::boxed(node)?);
            part = Some(share);
        }
    }

    /// Adds the tables that mapping `run` needs. `ENOMEM`, `ENODEV`.
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
    pub(crate) fn map(&self, dev: &SkuaDevice, run: &Run, access: Access) -> Result<Changed> {
        Ok(self.tables.lock().root.map(&dev.hw, run, access)?)
    }

    /// Clears all entries of `[va, va + len)`, splitting large pages at its edges.
    pub(crate) fn clear(&self, dev: &SkuaDevice, va: u64, len: u64) -> Result<Changed> {
        Ok(self.tables.lock().root.clear(&dev.hw, va, len)?)
    }

    /// Calls `f` with each entry of a page, for debugfs.
    pub(crate) fn each_page(
        &self,
        dev: &SkuaDevice,
        most: u32,
        f: &mut impl FnMut(u64, u64, Entry),
    ) -> Result {
        Ok(self.tables.lock().root.each_page(&dev.hw, most, f)?)
    }

    /// Frees some of the tables of an address space that nobody has any more; how many those were,
    /// none if all that is left is the root. They count until that is freed.
    pub(crate) fn free_some(&self) -> usize {
        let part = self.tables.lock().root.detach();
        // With the lock free, which who signals fences takes.
        part.map_or(0, |part| part.count())
    }

    /// Bytes of all tables, as they count.
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.lock().share.units()
    }

    /// Tables of this address space, for debugfs.
    pub(crate) fn count(&self) -> usize {
        self.tables.lock().root.count()
    }
}
