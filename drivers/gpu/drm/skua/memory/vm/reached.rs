// SPDX-License-Identifier: GPL-2.0

//! What the GPU reaches through an address space: its page tables, and the objects that its map
//! names, which are held by that. It is apart from the [`Vm`](super::Vm), as it may have to be kept
//! longer: while the device may reach what it should not.
//!
//! Lock: `map`, a mutex; who takes it goes through [`Vm::map`](super::Vm::map), but for who frees
//! all.

use crate::{
    ext::{
        device,
        devres::DevresItem, //
    },
    gpu::{
        self,
        SkuaDevice, //
    },
    kernel_heap::KernelHeap,
    memory::{
        installed::{
            Mapping,
            Site, //
        },
        page_table::PageTable,
        vm::ALL, //
    },
    policy::interval_map::{
        IntervalMap,
        Span,
        UNMAP_NODES, //
    },
    quota::Share,
    reaper::{
        Freed,
        Reapable, //
    },
    spec::{
        address::PAGE_SIZE,
        number::Asid, //
    }, //
};
use core::mem::take;
use kernel::{
    list::{
        impl_list_arc_safe,
        impl_list_item,
        ListLinks, //
    },
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// What the GPU reaches through an address space. Whoever lets go of that last, it is kept while
/// the device may reach it though it should not.
#[pin_data(PinnedDrop)]
pub(crate) struct Reached {
    /// The device that translates by it.
    dev: ARef<SkuaDevice>,
    /// Its number in the hardware and in the device's table, its own until this is freed.
    pub(super) asid: Asid,
    /// What the GPU translates now; revoked at unbind.
    pub(super) tables: DevresItem<PageTable>,
    /// What will be mapped when all binds that were accepted are done. Held by an ioctl from the
    /// first look until the bind is queued, so that the queue has the order of the map's changes.
    #[pin]
    pub(super) map: Mutex<IntervalMap<KernelHeap, Mapping>>,
    /// Its share of the quotas of address spaces, as long as it has its number.
    pub(super) place: Share,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Reached { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Reached { using ListLinks { self.links }; }
}

impl Reapable for Reached {
    fn bytes(&self) -> u64 {
        // Nobody else has it.
        let map = self.map.try_lock();
        let spans = map.iter().flat_map(|map| map.iter(ALL));
        spans.fold(0, |sum, (span, _)| sum.saturating_add(span.len()))
    }

    fn shed(&self, freed: &mut Freed) -> bool {
        while freed.has_room() {
            match self.remove_first() {
                Some(span) => freed.count(1, span.len()),
                None => break,
            }
        }
        while freed.has_room() {
            match self.with_tables(PageTable::free_some) {
                Some(tables @ 1..) => freed.count(tables, 0),
                _ => break,
            }
        }
        // Without memory for the mappings all is freed at once.
        freed.has_room()
    }
}

impl Reached {
    /// What is reached through `tables` under the number `asid`: nothing yet. `ENOMEM`.
    pub(super) fn new(
        dev: &SkuaDevice,
        asid: Asid,
        tables: DevresItem<PageTable>,
        place: Share,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                asid,
                tables,
                map <- new_mutex!(IntervalMap::new()),
                place,
                links <- ListLinks::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The address space that waits for the worker is gone: nothing is left to be done.
    pub(super) fn let_go(this: Arc<Self>) {
        let dev = this.dev.clone();
        let mappings = this.map.lock().len();
        let tables = this.with_tables(PageTable::bytes).unwrap_or(0) / PAGE_SIZE;
        // CAST: a small number.
        if mappings > Freed::MOST as u32 || tables > Freed::MOST as u64 {
            dev.reapers.reached.bury_in_parts(this);
        } else {
            dev.reapers.reached.let_go(this);
        }
    }

    /// Calls `f` with the page tables, unless they went with the device's driver.
    fn with_tables<T>(&self, f: impl FnOnce(&PageTable) -> T) -> Option<T> {
        let bound = device::enter(&*self.dev)?;
        self.tables.access(gpu::parent(&bound)).ok().map(f)
    }

    /// Lets go of the first mapping, if there is one, and memory to say so: where it was.
    fn remove_first(&self) -> Option<Span> {
        let mut gone = None;
        let span = {
            let mut map = self.map.lock();
            let (span, _) = map.iter(ALL).next()?;
            let mut nodes = map.prepare(UNMAP_NODES).ok()?;
            let removed = map.unmap(&mut nodes, span, |cut| gone = Some(cut.removed.value));
            map.release(nodes);
            removed.ok()?;
            span
        };
        if let Some(mapping) = gone {
            mapping.bo().sites.remove(self.site(span.start));
        }
        Some(span)
    }

    /// The place of an address in an object's records.
    pub(super) fn site(&self, start: u64) -> Site {
        Site {
            asid: self.asid,
            start,
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Reached {
    fn drop(self: Pin<&mut Self>) {
        // Before the identifier may be another's: by its mappings it is a user of objects.
        let map = take(&mut *self.map.lock());
        for (span, mapping) in map.iter(ALL) {
            mapping.bo().sites.remove(self.site(span.start));
        }
        drop(map);
        self.dev.release_asid(self.asid);
    }
}
