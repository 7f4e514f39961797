// SPDX-License-Identifier: GPL-2.0

//! Address spaces: what is mapped where for one process, and the queue of binds that change it.
//!
//! There are two views of an address space. The *map* says what will be mapped when all binds that
//! were accepted are done; an ioctl changes it at once, since binds are done in order. The *page
//! tables* say what the GPU translates now; a bind changes them when its turn comes.
//!
//! ```text
//! VM_BIND ioctl:  check ─▶ allocate tables, nodes ─▶ change the map ─▶ publish the fence ─▶ queue
//! its turn:       gate open? ─▶ write entries ─▶ flush TLBs and wait ─▶ give what was unmapped to
//!                 the reaper ─▶ signal the fence
//! ```
//!
//! A bind whose turn it is when it is queued, as it is of most, is done in the ioctl's own thread,
//! the wait for the TLBs included; otherwise in a worker, when a gate opens. One thread at a time
//! does the binds of an address space.
//!
//! Memory that was unmapped is held until no engine can reach it any more. It goes to the reaper
//! before the fence signals, so that who has waited for that may count on the memory.
//!
//! An address space whose handle is gone stays in the device's table while it has binds that are
//! not done, so that a device that is lost ends them, too; and while contexts work in it, so that
//! who moves memory finds it.

use crate::{
    ext::{
        device,
        devres::DevresItem,
        fence::{
            DriverFence,
            Fence,
            FenceContext,
            FenceMemory,
            Signalling, //
        },
        gem::{
            self,
            GemExt, //
        },
        queue::ModuleQueue,
        resv::{
            self,
            Reservation, //
        }, //
    },
    fences::{
        gate::{
            Gate,
            Wake, //
        },
        hold::{
            self,
            Holder,
            Holds,
            MAX_REQUESTS, //
        },
        monitored::{
            End,
            Promise,
            Target,
            Wait, //
        },
        signals::Signals, //
    },
    few::Few,
    gpu::{
        self,
        SkuaDevice, //
    },
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo::{
            self,
            Bo,
            BoData,
            BoRef,
            ContextUse,
            Memory, //
        },
        clean_copy,
        device::ClientDevice,
        evicted::Evicted,
        installed::{
            Installed,
            Mapping,
            Node,
            Site, //
        },
        page_table::PageTable,
        //
    },
    policy::{
        interval_map::{
            IntervalMap,
            Slice,
            Span,
            MAP_NODES,
            UNMAP_NODES, //
        },
        page_plan::{
            PagePlan,
            Sizes, //
        },
        page_table::{
            Access,
            Changed, //
        }, //
    },
    quota::{
        count_out,
        Quota,
        Share, //
    },
    reaper::{
        Freed,
        Reapable, //
    },
    spec::{
        address::{
            PAGE_SIZE,
            VA_BITS, //
        },
        mmu::{
            Entry,
            PageSize, //
        },
        number::{
            Asid,
            ContextSlot, //
        }, //
    },
};
use core::{
    convert::Infallible,
    mem::take, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        List,
        ListArc,
        ListLinks, //
    },
    new_mutex,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        MutexGuard,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    types::ScopeGuard,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// First address that can be bound: the first 64 KiB catch null pointers.
pub(crate) const VA_START: u64 = 0x1_0000;
/// Address behind the last that can be bound: the upper 4 GiB are the driver's.
pub(crate) const VA_END: u64 = (1 << VA_BITS) - (1 << 32);

/// Ranges that [`Vm::accept_unmaps`] puts into one bind.
const UNMAPPED_AT_ONCE: usize = 1024;

/// Where binds are done that wait, or are behind others: of its own, as one may take long.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// Every GPU virtual address, those included that cannot be bound.
const ALL: Span = Span::new(0, 1 << VA_BITS);
/// The addresses that clients can bind something at.
const CLIENTS: Span = Span::new(VA_START, VA_END);
/// Where context allocations are that the driver has made.
pub(crate) const OWN: Span = Span::new(VA_END, VA_END + (1 << 31));
/// Where those are that clients have asked for.
pub(crate) const ASKED_FOR: Span = Span::new(OWN.end, ALL.end);

/// Has `vm` use `bo` from byte `offset` on, a multiple of the page size; whether the GPU may write.
/// `ENOMEM`; `EBUSY` if it is offered; `EINTR` if a signal arrives.
pub(super) fn begin_mapping(vm: &Vm, bo: BoRef, offset: u64, write: bool) -> Result<Mapping> {
    let mut reserved = gem::lock_brought(&*bo)?;
    if bo.is_offered() {
        return Err(EBUSY);
    }
    bo::was_used(&bo);
    // From here on it has a user, and stays awake.
    BoData::rouse(&bo, &mut reserved)?;
    if write {
        // The GPU does not tell when it writes, so the clean copy goes now.
        clean_copy::drop_copy(&bo, &mut reserved)?;
    }
    Mapping::new(bo.clone(), vm, offset, write)
}

/// What a client wants one operation of a bind to do, checked.
pub(crate) enum Wanted {
    /// Maps, after unmapping what was there.
    Map {
        /// GPU virtual addresses, whole pages.
        span: Span,
        /// The object, which has no user by that.
        bo: BoRef,
        /// Where in the object the range begins: bytes, a multiple of the page size.
        offset: u64,
        /// Whether the GPU may write.
        write: bool,
    },
    /// Unmaps what is mapped there, if anything.
    Unmap(Span),
}

impl Wanted {
    /// Has `vm` use the object. What was destroyed while the operation was held is not mapped any
    /// more, as if that had been since the bind was accepted. Errors as of
    /// [`begin_mapping`].
    fn begin(&self, vm: &Vm) -> Result<Operation> {
        Ok(match self {
            Self::Map { span, bo, .. } if bo.is_dying() => Operation::Unmap(*span),
            Self::Map {
                span,
                bo,
                offset,
                write,
            } => Operation::Map(*span, begin_mapping(vm, bo.clone(), *offset, *write)?),
            Self::Unmap(span) => Operation::Unmap(*span),
        })
    }
}

/// What a bind does to a range of addresses.
pub(crate) enum Operation {
    /// Maps, after unmapping what was there.
    Map(Span, Mapping),
    /// Unmaps what is mapped there, if anything.
    Unmap(Span),
}

impl Operation {
    fn span(&self) -> Span {
        match self {
            Self::Map(span, _) | Self::Unmap(span) => *span,
        }
    }
}

/// A bind that was accepted.
#[pin_data]
pub(crate) struct Bind {
    /// What the ioctl asked for, checked, in its order; not empty.
    operations: KVVec<Operation>,
    /// The fences that the client named, and those of memory that is being cleared.
    #[pin]
    gate: Gate<Vm>,
    /// Filled at publication, taken out piece by piece by the thread whose turn the bind is.
    #[pin]
    end: SpinLock<BindEnd>,
    /// Its place in [`Binds::queue`], later in the reaper's list.
    #[pin]
    links: ListLinks,
}

/// What a bind still has to do at its end.
struct BindEnd {
    /// From publication until it is finished.
    fence: Option<DriverFence>,
    /// Values of monitored fences, given at publication.
    promises: Few<Promise>,
    /// What the bind unmaps, in the order of its operations.
    unmapped: KVVec<Removed>,
    /// Memory for the records of what it installs.
    records: KVVec<Node>,
    /// What it has installed, with room for all that it may: held, so that no last reference is
    /// dropped on the way to the signal.
    memory: KVVec<Memory>,
}

/// What an operation unmaps.
struct Removed {
    /// The operation's place in its bind.
    operation: usize,
    /// GPU virtual addresses that are no longer mapped.
    span: Span,
    /// The range of the mapping that `span` was cut out of.
    whole: Span,
    /// What was mapped there, held until no engine reaches it.
    mapping: Mapping,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Bind { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Bind { using ListLinks { self.links }; }
}

impl Reapable for Bind {
    fn bytes(&self) -> u64 {
        let end = self.end.lock();
        let spans = end.unmapped.iter().map(|removed| removed.span.len());
        spans.fold(0, u64::saturating_add)
    }

    fn shed(&self, freed: &mut Freed) -> bool {
        while freed.has_room() {
            let removed = self.end.lock().unmapped.pop();
            match removed {
                Some(removed) => freed.count(removed.span.len()),
                None => return true,
            }
        }
        self.end.lock().unmapped.is_empty()
    }
}

/// A destroyed object, to which no page table leads any more.
#[pin_data]
pub(crate) struct Gone {
    /// What was mapped, and is not to be any more.
    bo: BoRef,
    /// The GPU addresses at which it was mapped when page tables were cleared.
    spans: KVVec<Span>,
    /// Its place in [`Vm::gone`].
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Gone { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Gone { using ListLinks { self.links }; }
}

impl Gone {
    /// `bo`, of which `spans` were uninstalled. `ENOMEM`.
    pub(crate) fn new(bo: &BoRef, spans: KVVec<Span>) -> Result<ListArc<Self>> {
        ListArc::pin_init(
            try_pin_init!(Self {
                bo: bo.clone(),
                spans,
                links <- ListLinks::new(),
            }? Error),
            client_flags(),
        )
    }
}

/// The map of an address space, of who has it alone.
struct MapGuard<'a> {
    map: MutexGuard<'a, IntervalMap<KernelHeap, Mapping>>,
    /// Behind `map`, as what follows, to be dropped without it: what was taken out of it first.
    _gone: List<Gone>,
    /// Sees to what has gone meanwhile.
    _then: ScopeGuard<&'a Vm, fn(&'a Vm)>,
}

/// Binds that are not done.
struct Binds {
    /// In the order in which they were accepted.
    queue: List<Bind>,
    /// How many are in `queue`, or accepted and on their way there; at most [`MAX_REQUESTS`].
    len: u32,
    /// A thread is at one, which it has taken out of `queue`.
    busy: bool,
    /// Userspace has no handle any more.
    destroyed: bool,
    /// Contexts that work in it.
    contexts: u32,
    /// Nothing is accepted, and what waits is finished with this error: the device is lost, or the
    /// client gone.
    end: Option<Error>,
}

impl Binds {
    /// Whether nothing is left for which the address space is in the device's table.
    fn is_over(&self) -> bool {
        self.destroyed && !self.busy && self.len == 0 && self.contexts == 0
    }
}

/// What the GPU reaches through an address space. Whoever lets go of that last, it is kept while
/// the device may reach it though it should not.
#[pin_data(PinnedDrop)]
pub(crate) struct Reached {
    /// The device that translates by it.
    dev: ARef<SkuaDevice>,
    /// Its number in the hardware and in the device's table, its own until this is freed.
    asid: Asid,
    /// What the GPU translates now; revoked at unbind.
    tables: DevresItem<PageTable>,
    /// What will be mapped when all binds that were accepted are done. Held by an ioctl from the
    /// first look until the bind is queued, so that the queue has the order of the map's changes.
    #[pin]
    map: Mutex<IntervalMap<KernelHeap, Mapping>>,
    /// That it counts as one of its client's and its user's, as long as it has its number.
    place: Share,
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
                Some(span) => freed.count(span.len()),
                None => break,
            }
        }
        // Without memory for that all is freed at once.
        freed.has_room() || self.map.lock().len() == 0
    }
}

impl Reached {
    /// The address space that waits for the worker is gone: nothing is left to be done.
    fn let_go(this: Arc<Self>) {
        let dev = this.dev.clone();
        // CAST: a small number.
        if this.map.lock().len() > Freed::MOST as u32 {
            dev.reapers.reached.bury_in_parts(this);
        } else {
            dev.reapers.reached.let_go(this);
        }
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
    fn site(&self, start: u64) -> Site {
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

/// An address space. Userspace's handle holds it, and each of its contexts.
#[pin_data(PinnedDrop)]
pub(crate) struct Vm {
    /// The device that translates by it.
    dev: ARef<SkuaDevice>,
    /// What the GPU reaches through it, which a reaper gets.
    reached: ScopeGuard<Arc<Reached>, fn(Arc<Reached>)>,
    /// Names the root of its page tables, for context descriptors.
    root: Entry,
    /// Where submissions file that they use what is mapped: see [`Vm::reservation`].
    users: Arc<Reservation>,
    /// What of it has to be in VRAM and is not: to be brought back before a submission.
    #[pin]
    pub(crate) evicted: Evicted,
    /// The line of its binds' fences, which signal in order.
    fences: FenceContext,
    /// Held by who records and writes what page tables lead to: a bind, for each of its operations,
    /// and a move. Whether a bind has cleared what TLBs may still know.
    #[pin]
    installing: Mutex<bool>,
    /// What is still to be done to the page tables.
    #[pin]
    binds: SpinLock<Binds>,
    /// What the map is not to name any more. Who has the map takes these out.
    #[pin]
    gone: SpinLock<List<Gone>>,
    /// Looks at the queue, in a worker.
    #[pin]
    work: Work<Self>,
    /// What is held, and so not in the map yet.
    #[pin]
    holds: Holds<Self>,
    /// Looks at that, in a worker.
    #[pin]
    hold_work: Work<Self, 1>,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
    /// The [context allocations](super::save_areas) that clients have asked for, each of one
    /// context. Taken last.
    #[pin]
    owners: Mutex<KVVec<(BoRef, ContextSlot)>>,
    /// How many context allocations moves have taken from where the GPU reached them, and not
    /// brought back. Changes under `installing`.
    absent: Atomic<u32>,
}

impl_has_work! {
    impl HasWork<Self> for Vm { self.work }
    impl HasWork<Self, 1> for Vm { self.hold_work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Vm { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Vm { using ListLinks { self.links }; }
}

impl Reapable for Vm {
    fn bytes(&self) -> u64 {
        self.reached.bytes()
    }
}

impl Vm {
    /// Makes an address space in which nothing is mapped.
    ///
    /// Its page tables count against `system`, the client's quota of system memory; `place` is its
    /// own among the client's address spaces. `ENOSPC` if there are too many; `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        device: &Arc<ClientDevice>,
        place: Share,
        system: &Arc<Quota>,
    ) -> Result<Arc<Self>> {
        let tables = PageTable::new(dev, parent, system)?;
        let tables = dev.resources.insert(parent, tables)?;
        let root = tables.access(parent)?.entry();
        let users = Reservation::new()?;
        let asid = dev.reserve_asid()?;
        let reached = Arc::pin_init(
            pin_init!(Reached {
                dev: dev.into(),
                asid,
                tables,
                map <- new_mutex!(IntervalMap::new()),
                place,
                links <- ListLinks::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        let reached = reached.inspect_err(|_| dev.release_asid(asid))?;
        let let_go: fn(Arc<Reached>) = Reached::let_go;
        let vm = Arc::pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                reached: ScopeGuard::new_with_data(reached, let_go),
                root,
                users,
                evicted <- Evicted::new(device),
                fences: FenceContext::new(c"skua", c"bind"),
                installing <- new_mutex!(false),
                binds <- new_spinlock!(Binds {
                    queue: List::new(),
                    len: 0,
                    busy: false,
                    destroyed: false,
                    contexts: 0,
                    end: None,
                }),
                gone <- new_spinlock!(List::new()),
                work <- new_work!("Vm::work"),
                holds <- Holds::new(),
                hold_work <- new_work!("Vm::hold_work"),
                links <- ListLinks::new(),
                owners <- new_mutex!(KVVec::new()),
                absent: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        let vm: Arc<Self> = vm?;
        dev.vms.fill(asid, vm.clone());
        // A device that is lost looks at the table once: before this, or it is seen here.
        if let Err(error) = dev.check_health() {
            vm.end(error);
        }
        Ok(vm)
    }

    /// Its number in the hardware; the system's is not among them.
    pub(crate) fn asid(&self) -> Asid {
        self.reached.asid
    }

    /// The client's device that it is of.
    pub(crate) fn device(&self) -> &Arc<ClientDevice> {
        self.evicted.device()
    }

    /// The root table, for context descriptors.
    pub(crate) fn root(&self) -> Entry {
        self.root
    }

    /// Userspace has no handle of it any more; contexts and submissions may. What is queued is
    /// done, and what is held cancelled.
    pub(crate) fn destroy(self: &Arc<Self>) {
        let over = {
            let mut binds = self.binds.lock();
            binds.destroyed = true;
            binds.is_over()
        };
        Self::look_again(self.clone());
        if over {
            self.leave();
        }
    }

    /// Whether it counts against `quota`.
    pub(crate) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        self.reached.place.is_of(quota)
    }

    /// Takes it out of the device's table.
    fn leave(&self) {
        if let Some(vm) = self.dev.vms.empty(self.reached.asid) {
            self.dev.reapers.vms.bury(vm);
        }
    }

    /// Appends each object that something is mapped of, once for each mapping. `ENOMEM`.
    pub(crate) fn collect_objects(&self, objects: &mut KVVec<BoRef>) -> Result {
        let MapGuard { map, .. } = &self.map();
        objects.reserve(usize::try_from(map.len())?, client_flags())?;
        for (_, mapping) in map.iter(ALL) {
            objects.push(mapping.bo().clone(), client_flags())?;
        }
        Ok(())
    }

    /// Mappings, bytes mapped, mappings that are installed, and tables, for debugfs.
    pub(crate) fn usage(&self, parent: &Device<Bound>) -> (u32, u64, usize, usize) {
        let MapGuard { map, .. } = &self.map();
        let (count, bytes) = map
            .iter(CLIENTS)
            .fold((0u32, 0u64), |(count, bytes), (span, _)| {
                (count.saturating_add(1), bytes.saturating_add(span.len()))
            });
        let is_installed = |(span, mapping): &(Span, &Mapping)| {
            let wanted = Installed::new(*span, mapping.offset(), mapping.may_write());
            mapping.bo().sites.get(self.site(span.start)) == Some(wanted)
        };
        let installed = map.iter(CLIENTS).filter(is_installed).count();
        let tables = self
            .reached
            .tables
            .access(parent)
            .map_or(0, PageTable::count);
        (count, bytes, installed, tables)
    }

    /// The quota of address spaces that it counts in, which is its client's.
    pub(crate) fn client(&self) -> &Arc<Quota> {
        self.reached.place.quota()
    }

    /// What its client's user has of address spaces.
    pub(crate) fn user(&self) -> &Arc<Quota> {
        let client = self.client();
        client.whole().unwrap_or(client)
    }

    /// The quota of system memory that its page tables count in. `ENODEV`.
    pub(crate) fn system_quota(&self, parent: &Device<Bound>) -> Result<Arc<Quota>> {
        Ok(self.reached.tables.access(parent)?.quota().clone())
    }

    /// Maps all of `bo`, `size` bytes, which GEM has no handle of and is cleared, in the first free
    /// place of `window`, which is the driver's, that is `aligned` so, a power of two in bytes; and
    /// in no bind's turn: it is nobody's order. Where that is. It is unmapped when it is destroyed,
    /// or with the address space. `ENOMEM`; `ENOSPC` if there is no place; `ENODEV`, `EIO`; `EINTR`
    /// if a signal arrives.
    pub(crate) fn map_own(
        self: &Arc<Self>,
        parent: &Device<Bound>,
        bo: &BoRef,
        size: u64,
        window: Span,
        aligned: u64,
    ) -> Result<u64> {
        let tables = self.reached.tables.access(parent)?;
        let mapping = begin_mapping(self, bo.clone(), 0, true)?;
        let node = Node::new(client_flags())?;
        let mut locked = self.map();
        let map = &mut locked.map;
        // No overflow: addresses have 48 bits, and `size` and `aligned` are less than `window`.
        let place = |from: u64| {
            let va = from.next_multiple_of(aligned);
            Span::new(va, va.saturating_add(size))
        };
        let mut span = place(window.start);
        while let Some((taken, _)) = map.iter(span).next() {
            span = place(taken.end);
        }
        if span.end > window.end {
            return Err(ENOSPC);
        }
        let va = span.start;
        tables.prepare(&self.dev, parent, va, size, 0)?;
        let mut reservation = map.prepare(MAP_NODES)?;
        crate::warn_on_once!(map.map(&mut reservation, span, mapping).is_err());
        map.release(reservation);
        drop(locked);
        let installing = self.installing.lock();
        let memory = bo::installable(bo).ok_or(ENODEV)?;
        let installed = Installed::new(span, 0, true);
        bo.sites.add(node, self.site(va), installed);
        let mut changed = Changed::Fresh;
        let result = self.install(parent, va, installed, bo, &memory, &mut changed);
        drop(installing);
        result?;
        if changed == Changed::Stale || self.may_be_known() {
            self.dev.invalidate(Some(self.asid()))?;
        }
        Ok(va)
    }

    /// The context allocation `bo` is that of the context in `slot`. `ENOMEM`.
    pub(crate) fn set_owner(&self, bo: &BoRef, slot: ContextSlot) -> Result {
        let mut owners = self.owners.lock();
        Ok(owners.push((bo.clone(), slot), client_flags())?)
    }

    /// Undoes [`Vm::set_owner`], if that was done: the context allocation is destroyed.
    pub(crate) fn forget_owner(&self, bo: &BoRef) {
        let mut owners = self.owners.lock();
        owners.retain(|(other, _)| !core::ptr::eq(&**other, &**bo));
    }

    /// One of the context in `slot` that nobody else destroys or makes just now, [claimed].
    ///
    /// [claimed]: BoData::claim
    pub(crate) fn claim_owned(&self, slot: ContextSlot) -> Option<BoRef> {
        let owners = self.owners.lock();
        let mut owned = owners.iter().filter(|(_, owner)| *owner == slot);
        let found = owned.find(|(bo, _)| bo.claim());
        found.map(|(bo, _)| bo.clone())
    }

    /// Whose it is, if a client has asked for it; none if it is another one.
    pub(crate) fn owner(&self, bo: &Bo) -> Option<ContextSlot> {
        let owners = self.owners.lock();
        let mut owners = owners.iter();
        owners.find_map(|(other, slot)| core::ptr::eq(&**other, bo).then_some(*slot))
    }

    /// Whether there are context allocations in it which the GPU does not reach any more, but
    /// those that engines save to.
    pub(crate) fn has_absent(&self) -> bool {
        self.absent.load(Relaxed) != 0
    }

    /// Says that of one which goes, and that no work is for any more.
    pub(crate) fn forget_absent(&self, bo: &Bo) {
        let _installing = self.installing.lock();
        self.set_absent(bo, false);
    }

    /// Says whether the GPU does not reach `bo` any more, if that is a context allocation; of one
    /// that goes nobody asks. The caller has `installing`.
    fn set_absent(&self, bo: &Bo, is_absent: bool) {
        let Some(of) = bo.context_of() else {
            return;
        };
        let is_absent = is_absent && !bo.is_dying();
        let was_absent = bo.set_absent(is_absent);
        if of == ContextUse::Engine {
            // Its context asks for itself.
            return;
        }
        // No wrap: objects that are in memory.
        match (was_absent, is_absent) {
            (false, true) => _ = self.absent.fetch_add(1, Relaxed),
            (true, false) => _ = self.absent.fetch_sub(1, Relaxed),
            _ => (),
        }
    }

    /// Calls `f` with each page's entry, for debugfs. `ENODEV`.
    pub(crate) fn each_page(
        &self,
        parent: &Device<Bound>,
        most: u32,
        f: &mut impl FnMut(u64, u64, Entry),
    ) -> Result {
        self.reached
            .tables
            .access(parent)?
            .each_page(&self.dev, most, f)
    }

    /// The reservation of those who use what is mapped here: each submission files its fence with
    /// it, under [`Usage::Bookkeep`](resv::Usage), before it lets the lock go. That is one fence
    /// for all that is mapped. Who moves an object learns from its
    /// [`Sites`](super::installed::Sites) in which address spaces it is, and here who uses them.
    ///
    /// Lock: a reservation lock. Room for the fence
    /// ([`Reserved::reserve`](resv::Reserved::reserve)) is made while the submission can still
    /// fail.
    pub(crate) fn reservation(&self) -> &Arc<Reservation> {
        &self.users
    }

    /// Queues a bind of `operations`, whose ranges and handles were checked, after `waits`; a
    /// client's by [`hold::submit`].
    ///
    /// `ENOSPC` if [`MAX_REQUESTS`] binds wait; `ENOENT` if its handle is gone, or an object
    /// that stays where it is is destroyed; `ENOMEM`, `ENODEV`; `ECANCELED` if the client is gone.
    /// Nothing has changed then.
    fn bind(
        self: &Arc<Self>,
        operations: KVVec<Operation>,
        waits: Few<Fence>,
        signals: &mut Signals,
    ) -> Result {
        let dev = device::enter(&*self.dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&dev);
        self.accept(parent, &mut self.map().map, operations, waits, signals)?;
        // Most binds wait for nothing: do them here and spare the worker's wake-up.
        self.process();
        Ok(())
    }

    /// The map, for the caller alone, without what was gone before.
    fn map(&self) -> MapGuard<'_> {
        let mut map = self.reached.map.lock();
        let gone = self.unmap_gone(&mut map);
        MapGuard {
            map,
            _gone: gone,
            _then: ScopeGuard::new_with_data(self, Self::look_for_gone),
        }
    }

    /// Has the map not name any more what is `gone`: from now on, or from when somebody lets go of
    /// it who has it. Does not wait for that, which may take as long as a client's control group
    /// has it wait for memory. Process context; allocates.
    pub(crate) fn forget(&self, gone: ListArc<Gone>) {
        self.gone.lock().push_back(gone);
        self.look_for_gone();
    }

    /// Takes what is gone out of the map, unless somebody has that, who looks when he lets go.
    fn look_for_gone(&self) {
        while !self.gone.lock().is_empty() {
            let Some(mut map) = self.reached.map.try_lock() else {
                break;
            };
            let gone = self.unmap_gone(&mut map);
            drop(map);
            drop(gone);
        }
    }

    /// Takes what is gone out of `map`, which is this one's; what that was, to be let go of without
    /// the lock. What there is no memory for, or too many binds, stays, and leads nowhere.
    #[must_use]
    fn unmap_gone(&self, map: &mut IntervalMap<KernelHeap, Mapping>) -> List<Gone> {
        let all = core::mem::replace(&mut *self.gone.lock(), List::new());
        if all.is_empty() {
            return all;
        }
        // Neither is the last reference. If it is in no table any more its map is about to go, too.
        let this = self.dev.vms.find(self.asid());
        if let (Some(this), Some(dev)) = (this, device::enter(&*self.dev)) {
            for gone in all.iter() {
                let (bo, spans) = (&gone.bo, &gone.spans);
                let _ = match bo.saves_context() {
                    true => unmap_own(map, spans),
                    false => this.accept_unmaps(gpu::parent(&dev), map, bo, spans),
                };
            }
            // A worker does them, as a client may have much queued; also what was accepted before
            // an error.
            Wake::wake(&this);
        }
        all
    }

    /// Queues binds that unmap what `map` has of `bo` in `spans`. As [`Vm::bind`]; some of it may
    /// be unmapped then.
    fn accept_unmaps(
        self: &Arc<Self>,
        parent: &Device<Bound>,
        map: &mut IntervalMap<KernelHeap, Mapping>,
        bo: &BoRef,
        spans: &[Span],
    ) -> Result {
        for spans in spans.chunks(UNMAPPED_AT_ONCE) {
            let mut operations = KVVec::new();
            for span in spans {
                for (span, mapping) in map.iter(*span) {
                    if core::ptr::eq(&**mapping.bo(), &**bo) {
                        operations.push(Operation::Unmap(span), client_flags())?;
                    }
                }
            }
            if !operations.is_empty() {
                let nothing = &mut Signals::new();
                self.accept(parent, map, operations, Few::Empty, nothing)?;
            }
        }
        Ok(())
    }

    /// Changes `map`, which is this one's, and queues the bind; [`Vm::process`] does it.
    fn accept(
        self: &Arc<Self>,
        parent: &Device<Bound>,
        map: &mut IntervalMap<KernelHeap, Mapping>,
        operations: KVVec<Operation>,
        mut waits: Few<Fence>,
        signals: &mut Signals,
    ) -> Result {
        let tables = self.reached.tables.access(parent)?;
        let nodes = u32::try_from(operations.len())?
            .checked_mul(MAP_NODES + UNMAP_NODES)
            .ok_or(EOVERFLOW)?;
        let (memory, records) = self.prepare(parent, tables, map, &operations, &mut waits)?;
        // Binds of this address space are done in order anyway.
        waits.retain(|fence| fence.context() != self.fences.id());
        let fence = FenceMemory::new(GFP_KERNEL_ACCOUNT)?;

        let unmapped = KVVec::with_capacity(cuts(map, &operations)?, client_flags())?;
        let bind = ListArc::pin_init(
            try_pin_init!(Bind {
                operations,
                gate <- Gate::new(self, waits)?,
                end <- new_spinlock!(BindEnd {
                    fence: None,
                    promises: Few::Empty,
                    unmapped,
                    records,
                    memory,
                }),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut reservation = map.prepare(nodes)?;
        let refused = {
            let mut binds = self.binds.lock();
            let refused = match binds.end {
                Some(error) => Some(error),
                // Nobody would end it.
                None if binds.destroyed => Some(ENOENT),
                None if binds.len >= MAX_REQUESTS => Some(ENOSPC),
                None => None,
            };
            if refused.is_none() {
                // From here on the address space stays where a device that is lost finds it. No
                // wrap: see `MAX_REQUESTS`.
                binds.len = binds.len.wrapping_add(1);
            }
            refused
        };
        if let Some(error) = refused {
            map.release(reservation);
            return Err(error);
        }

        // From here on nothing fails.
        let mut unmapped = take(&mut bind.end.lock().unmapped);
        for (number, operation) in bind.operations.iter().enumerate() {
            let span = operation.span();
            let cut = map.unmap(&mut reservation, span, |cut| {
                let span = cut.removed.span;
                let removed = Removed {
                    operation: number,
                    span,
                    whole: Span::new(
                        cut.before.map_or(span.start, |before| before.span.start),
                        cut.after.map_or(span.end, |after| after.span.end),
                    ),
                    mapping: cut.removed.value,
                };
                let kept = unmapped.push_within_capacity(removed);
                crate::warn_on_once!(kept.is_err());
            });
            crate::warn_on_once!(cut.is_err());
            if let Operation::Map(span, mapping) = operation {
                let mapped = map.map(&mut reservation, *span, mapping.clone());
                crate::warn_on_once!(mapped.is_err());
            }
        }
        map.release(reservation);
        let fence = self.fences.fence(fence);
        let signalling = Signalling::begin();
        let promises = signals.publish(&self.dev, fence.fence());
        {
            let mut end = bind.end.lock();
            end.unmapped = unmapped;
            end.promises = promises;
            end.fence = Some(fence);
        }
        self.binds.lock().queue.push_back(bind);
        drop(signalling);
        Ok(())
    }

    /// Allocates the tables that `operations` need, and adds what their memory waits for to
    /// `waits`. Sets aside the records of what will be installed, and room to hold its memory.
    ///
    /// What may move until it is installed, or be thrown away, or later, needs the tables of small
    /// pages.
    ///
    /// A table is needed where something is mapped, and where a large page may stand through which
    /// a cut goes: `map`, which is as all binds before this one will leave it, tells where.
    fn prepare(
        &self,
        parent: &Device<Bound>,
        tables: &PageTable,
        map: &IntervalMap<KernelHeap, Mapping>,
        operations: &[Operation],
        waits: &mut Few<Fence>,
    ) -> Result<(KVVec<Memory>, KVVec<Node>)> {
        let memory = KVVec::with_capacity(operations.len(), client_flags())?;
        let mut records = KVVec::new();
        // What the operations so far have mapped.
        let mut own = IntervalMap::<KernelHeap, ()>::new();
        let later = u32::try_from(operations.len())?.saturating_sub(1);
        let mut nodes = own.prepare(later.saturating_mul(MAP_NODES + UNMAP_NODES))?;
        for (number, operation) in (0..).zip(operations) {
            let span = operation.span();
            for edge in [span.start, span.end] {
                if may_split(map, edge) || may_split(&own, edge) {
                    tables.prepare(&self.dev, parent, edge, PAGE_SIZE, 0)?;
                }
                if is_inside(map, edge) || is_inside(&own, edge) {
                    // What is cut there leaves a part.
                    records.push(Node::new(client_flags())?, client_flags())?;
                }
            }
            if let Operation::Map(span, mapping) = operation {
                Self::wait_for_memory(mapping.bo(), waits)?;
                if BoData::may_change(mapping.bo()) {
                    tables.prepare(&self.dev, parent, span.start, span.len(), 0)?;
                } else {
                    let memory = bo::installable(mapping.bo()).ok_or(ENOENT)?;
                    memory.with_pieces(parent, mapping.offset(), |pieces| {
                        let plan = PagePlan::new(span.start, span.len(), Sizes::ALL, pieces);
                        for run in plan.map_err(|_| EINVAL)? {
                            tables.prepare_run(&self.dev, parent, &run.map_err(|_| EINVAL)?)?;
                        }
                        Ok(())
                    })?;
                }
                records.push(Node::new(client_flags())?, client_flags())?;
            }
            if number < later {
                own.unmap(&mut nodes, span, |_| ()).map_err(|_| EINVAL)?;
                if let Operation::Map(span, _) = operation {
                    own.map(&mut nodes, *span, ()).map_err(|_| EINVAL)?;
                }
            }
        }
        Ok((memory, records))
    }

    /// Adds what the memory of `bo` waits for to `waits`. `ENOMEM`; `EINTR` if a signal arrives.
    fn wait_for_memory(bo: &BoRef, waits: &mut Few<Fence>) -> Result {
        if let Some(fence) = bo::own_work(bo, &resv::lock(&**bo)?)? {
            waits.push(fence)?;
        }
        Ok(())
    }

    /// Does the bind whose turn it is, and leaves what is behind it to the worker: who does a bind
    /// for himself does not do all that others bring meanwhile, nor does a worker for one address
    /// space keep the CPU. If all is to end, that is done at once. Process context; one thread at a
    /// time does the work.
    fn process(self: &Arc<Self>) {
        let _signalling = Signalling::begin();
        loop {
            let (bind, end) = {
                let mut binds = self.binds.lock();
                if binds.busy {
                    // Who is at work looks again after it.
                    return;
                }
                let end = binds.end;
                let mut cursor = binds.queue.cursor_front();
                let Some(first) = cursor.peek_next() else {
                    break;
                };
                let due = end.is_some() || first.gate.is_open();
                if !due && first.gate.is_armed() {
                    break;
                }
                let bind = first.remove();
                binds.busy = true;
                if due {
                    count_out(&mut binds.len, 1);
                    (bind, end)
                } else {
                    drop(binds);
                    // Whoever opens it from now on leads here again.
                    bind.gate.arm();
                    let mut binds = self.binds.lock();
                    binds.queue.push_front(bind);
                    binds.busy = false;
                    continue;
                }
            };
            let result = match end {
                None => self.perform(&bind, false),
                // What it would have unmapped is not held any longer: nobody must reach it.
                Some(ECANCELED) => self.perform(&bind, true).and(Err(ECANCELED)),
                Some(error) => Err(error),
            };
            // Before the signal: who waits for it may count on the memory.
            let (fence, mut promises) = {
                let mut end = bind.end.lock();
                let promises = take(&mut end.promises);
                (end.fence.take(), promises)
            };
            bind.gate.close();
            self.dev.reapers.binds.bury(bind.into_arc());
            let how = self.ended(result);
            promises.iter_mut().for_each(|promise| promise.keep(how));
            if let Some(fence) = fence {
                // That it does not answer is the device's loss.
                fence.signal(result.map_err(|error| if error == EIO { ENODEV } else { error }));
            }
            let goes_on = {
                let mut binds = self.binds.lock();
                binds.busy = false;
                binds.end.is_some() || binds.queue.is_empty()
            };
            if !goes_on {
                Wake::wake(self);
                return;
            }
        }
        if self.binds.lock().is_over() {
            self.leave();
        }
    }

    /// Writes a bind's entries, only those that unmap if it was `cancelled`, and flushes the TLBs.
    /// Allocates nothing.
    fn perform(&self, bind: &Bind, cancelled: bool) -> Result {
        let dev = device::enter(&*self.dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&dev);
        let tables = self.reached.tables.access(parent)?;
        let (unmapped, mut records, mut held) = {
            let mut end = bind.end.lock();
            let end = &mut *end;
            (
                take(&mut end.unmapped),
                take(&mut end.records),
                take(&mut end.memory),
            )
        };
        let mut record = |bo: &BoRef, span: Span, offset: u64, write: bool| {
            let node = records.pop();
            // `prepare()` set enough aside.
            crate::warn_on_once!(node.is_none());
            if let Some(node) = node.filter(|_| !span.is_empty()) {
                let installed = Installed::new(span, offset, write);
                bo.sites.add(node, self.site(span.start), installed);
            }
        };
        let mut removed = unmapped.iter().peekable();
        let mut changed = Changed::Fresh;
        let mut result = Ok(());
        let mut cancelled = cancelled;
        for (number, operation) in bind.operations.iter().enumerate() {
            // Many large operations take their time, and nobody may want it any more.
            let end = self.binds.lock().end;
            if let (Some(error), false) = (end, cancelled) {
                cancelled = true;
                result = result.and(Err(error));
            }
            // What page tables are to lead to does not change under way.
            let mut is_unflushed = self.installing.lock();
            // Only what was mapped is in the tables. It goes even if something failed: it is let go
            // of.
            while let Some(gone) = removed.next_if(|removed| removed.operation == number) {
                let (mapping, span, whole) = (&gone.mapping, gone.span, gone.whole);
                let (bo, offset, write) = (mapping.bo(), mapping.offset(), mapping.may_write());
                if !bo.sites.remove(self.site(whole.start)) {
                    // The bind that was to map it was cancelled.
                    continue;
                }
                match tables.clear(&self.dev, span.start, span.len()) {
                    Ok(now) => changed = changed.and(now),
                    Err(error) => {
                        changed = Changed::Stale;
                        result = result.and(Err(error));
                    }
                }
                *is_unflushed |= changed == Changed::Stale;
                if whole.start < span.start {
                    // No overflow: within the object, as all of the mapping is.
                    let before = offset.saturating_sub(span.start - whole.start);
                    record(bo, Span::new(whole.start, span.start), before, write);
                }
                if span.end < whole.end {
                    let after = offset.saturating_add(span.len());
                    record(bo, Span::new(span.end, whole.end), after, write);
                }
            }
            if let (Operation::Map(span, mapping), false) = (operation, cancelled) {
                let (offset, write) = (mapping.offset(), mapping.may_write());
                let memory = bo::installable(mapping.bo());
                if memory.is_none() && !mapping.bo().is_offered() {
                    // It was destroyed since the bind was accepted; what is offered is thrown away.
                    continue;
                }
                // First the record: a move that comes now changes what is written here, and who
                // reclaims it writes it.
                record(mapping.bo(), *span, offset, write);
                let Some(memory) = memory else {
                    continue;
                };
                let installed = Installed::new(*span, offset, write);
                result = result.and_then(|()| {
                    let (bo, changed) = (mapping.bo(), &mut changed);
                    self.install(parent, span.start, installed, bo, &memory, changed)
                });
                // Whether or not that was done: this is no place to drop a last reference.
                crate::warn_on_once!(held.push_within_capacity(memory).is_err());
            }
        }
        {
            let mut end = bind.end.lock();
            end.unmapped = unmapped;
            // What is over is freed with the bind.
            end.records = records;
            end.memory = held;
        }
        let maps = bind
            .operations
            .iter()
            .any(|it| matches!(it, Operation::Map(..)));
        if changed == Changed::Stale || (maps && self.may_be_known()) {
            self.dev.invalidate(Some(self.asid()))?;
            *self.installing.lock() = false;
        }
        result?;
        // Not when the reaper comes: who waits for the bind may count on that.
        for removed in &mut bind.end.lock().unmapped {
            removed.mapping.stop_writing();
        }
        Ok(())
    }

    /// Whether what was mapped just now may have led to something that is being destroyed, or
    /// moved, and whose flush is still to come.
    fn may_be_known(&self) -> bool {
        self.dev.unflushed.load(Acquire) != 0 || self.dev.moves.have_withdrawn()
    }

    /// Has nothing that is installed of `bo` lead anywhere. The TLBs are to be flushed before its
    /// memory is another's: whatever was cleared here, since a bind may have removed what led
    /// there, and not have flushed it yet. Allocates nothing; nobody uses the object. `ENODEV`,
    /// `EIO`.
    pub(crate) fn withdraw(&self, parent: &Device<Bound>, bo: &BoRef) -> Result {
        let tables = self.reached.tables.access(parent)?;
        let _installing = self.installing.lock();
        self.set_absent(bo, true);
        let mut from = self.site(0);
        while let Some((site, installed)) = bo.sites.next(from) {
            // No overflow: what is installed does not end before it begins.
            let len = installed.end.saturating_sub(site.start);
            tables.clear(&self.dev, site.start, len)?;
            from = self.site(installed.end);
        }
        Ok(())
    }

    /// Has all that is installed of `bo`, and led nowhere, lead to `memory`, which its
    /// [`Sites`](super::installed) have now, or nowhere still. Allocates nothing; nobody uses the
    /// object, but by what a bind has installed meanwhile: no TLB knows of that any more, nor of
    /// what was since taken out again and not flushed yet. `ENODEV`, `EIO`.
    pub(crate) fn reinstall(
        &self,
        parent: &Device<Bound>,
        bo: &BoRef,
        memory: Option<&Memory>,
    ) -> Result {
        let tables = self.reached.tables.access(parent)?;
        let installing = self.installing.lock();
        let mut changed = match *installing || self.dev.unflushed.load(Acquire) != 0 {
            true => Changed::Stale,
            false => Changed::Fresh,
        };
        let mut from = self.site(0);
        while let Some((site, installed)) = bo.sites.next(from) {
            // No overflow: what is installed does not end before it begins.
            let len = installed.end.saturating_sub(site.start);
            // What a bind has installed meanwhile.
            changed = changed.and(tables.clear(&self.dev, site.start, len)?);
            if let Some(memory) = memory {
                // A table that a large page takes the place of was flushed, too: an engine that has
                // been there since has faulted, and is reset.
                let replaced = &mut Changed::Fresh;
                self.install(parent, site.start, installed, bo, memory, replaced)?;
            }
            from = self.site(installed.end);
        }
        self.set_absent(bo, memory.is_none_or(|memory| is_out(bo, memory)));
        drop(installing);
        match changed {
            Changed::Stale => self.dev.invalidate(Some(self.asid())),
            Changed::Fresh => Ok(()),
        }
    }

    /// Has nothing of what is installed at and behind `from` lead to `bo`, for `room` ranges at
    /// most; of both is then what is left. Which these were, as far as there is memory to say so.
    /// The TLBs are to be flushed, as after [`Vm::withdraw`]. `ENODEV`, `EIO`.
    pub(crate) fn uninstall(
        &self,
        parent: &Device<Bound>,
        bo: &BoRef,
        from: &mut u64,
        room: &mut usize,
    ) -> Result<KVVec<Span>> {
        let tables = self.reached.tables.access(parent)?;
        let mut spans = KVVec::new();
        while *room > 0 {
            // Not under the lock, which signals wait for.
            let is_told = spans.reserve(1, client_flags()).is_ok();
            let _installing = self.installing.lock();
            let Some((site, installed)) = bo.sites.next(self.site(*from)) else {
                break;
            };
            *room -= 1;
            let span = Span::new(site.start, installed.end);
            tables.clear(&self.dev, span.start, span.len())?;
            bo.sites.remove(site);
            *from = span.end;
            if is_told {
                let pushed = spans.push_within_capacity(span);
                crate::warn_on_once!(pushed.is_err());
            }
        }
        Ok(spans)
    }

    /// Whether nothing of `bo` is installed at and behind `from`.
    pub(crate) fn has_none_of(&self, bo: &BoRef, from: u64) -> bool {
        bo.sites.next(self.site(from)).is_none()
    }

    /// The place of an address of this address space in an object's records.
    fn site(&self, start: u64) -> Site {
        self.reached.site(start)
    }

    /// Writes the entries of a range from `start` on, of `bo` with `memory`; none if that is out.
    /// What of that needs a flush is in `changed`, also if it fails.
    fn install(
        &self,
        parent: &Device<Bound>,
        start: u64,
        installed: Installed,
        bo: &BoRef,
        memory: &Memory,
        changed: &mut Changed,
    ) -> Result {
        if is_out(bo, memory) {
            return Ok(());
        }
        if !memory.is_cleared() {
            return Err(EIO);
        }
        let access = Access {
            reach: memory.reach(),
            write: installed.write,
        };
        let tables = self.reached.tables.access(parent)?;
        let len = installed.end.saturating_sub(start);
        memory.with_pieces(parent, installed.offset, |pieces| {
            let plan = PagePlan::new(start, len, Sizes::ALL, pieces);
            for run in plan.map_err(|_| EIO)? {
                *changed = changed.and(tables.map(&self.dev, &run.map_err(|_| EIO)?, access)?);
            }
            Ok(())
        })
    }

    /// What waits is finished with `error`, in order, and nothing more is accepted: the device is
    /// lost (`ENODEV`), or the client gone (`ECANCELED`). The first error counts.
    pub(crate) fn end(self: &Arc<Self>, error: Error) {
        self.binds.lock().end.get_or_insert(error);
        self.process();
        Self::look_again(self.clone());
    }
}

/// Unmaps the driver's own object in `spans` of `map`, to which no page table leads any more.
/// `ENOMEM`.
fn unmap_own(map: &mut IntervalMap<KernelHeap, Mapping>, spans: &[Span]) -> Result {
    for span in spans {
        let mut reservation = map.prepare(UNMAP_NODES)?;
        let unmapped = map.unmap(&mut reservation, *span, |cut| drop(cut.removed.value));
        crate::warn_on_once!(unmapped.is_err());
        map.release(reservation);
    }
    Ok(())
}

/// Whether the GPU does not reach `bo` in `memory`.
fn is_out(bo: &Bo, memory: &Memory) -> bool {
    bo.needs_vram() && matches!(memory, Memory::System(_))
}

/// Calls `f` with each address space that uses `bo` and in which something can run.
pub(crate) fn for_each_user(
    dev: &SkuaDevice,
    bo: &BoRef,
    mut f: impl FnMut(&Arc<Vm>) -> Result,
) -> Result {
    let mut from = Asid::SYSTEM;
    while let Some(asid) = bo.sites.next_user(from) {
        if let Some(vm) = dev.vms.find(asid) {
            let done = f(&vm);
            dev.reapers.vms.bury(vm);
            done?;
        }
        match asid.0.checked_add(1) {
            Some(next) => from = Asid(next),
            None => break,
        }
    }
    Ok(())
}

/// Whether a mapping of `map` goes on across `edge`.
fn is_inside<V: Slice>(map: &IntervalMap<KernelHeap, V>, edge: u64) -> bool {
    map.get(edge).is_some_and(|(span, _)| span.start < edge)
}

/// Whether a large page may stand in `map` across `edge`.
fn may_split<V: Slice>(map: &IntervalMap<KernelHeap, V>, edge: u64) -> bool {
    let page = PageSize::Size2M.bytes();
    let start = edge - edge % page;
    // No overflow: addresses have 48 bits.
    let end = start.saturating_add(page);
    start < edge
        && map
            .get(edge)
            .is_some_and(|(span, _)| span.start <= start && end <= span.end)
}

/// How many pieces `operations` cut out of the map together, at most.
fn cuts(map: &IntervalMap<KernelHeap, Mapping>, operations: &[Operation]) -> Result<usize> {
    let mut spans = KVVec::with_capacity(operations.len(), client_flags())?;
    for operation in operations {
        spans.push(operation.span(), client_flags())?;
    }
    Ok(map.most_cuts(&mut spans))
}

/// What a client wants to be bound.
pub(crate) struct BindRequest {
    /// In order; not empty. While the bind is held nothing of it is mapped in any respect.
    pub(crate) operations: KVVec<Wanted>,
    /// Fences that the operations wait for.
    pub(crate) waits: Few<Fence>,
    /// What is signalled when they are done.
    pub(crate) signals: Signals,
}

impl Holder for Vm {
    type Request = BindRequest;
    type Deferred = Infallible;

    fn device(&self) -> &SkuaDevice {
        &self.dev
    }

    fn client(&self) -> Option<&Arc<Quota>> {
        Some(self.client())
    }

    fn holds(&self) -> &Holds<Self> {
        &self.holds
    }

    fn queued(&self) -> u32 {
        self.binds.lock().len
    }

    fn is_active(&self) -> bool {
        let binds = self.binds.lock();
        binds.end.is_none() && !binds.destroyed
    }

    fn submit(
        this: &Arc<Self>,
        request: &mut BindRequest,
        _values: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result {
        let BindRequest {
            operations,
            waits,
            signals,
        } = request;
        let mut now = KVVec::with_capacity(operations.len(), client_flags())?;
        for operation in &*operations {
            now.push(operation.begin(this)?, client_flags())?;
        }
        let waits = match held {
            Some(_) => waits.try_clone()?,
            None => take(waits),
        };
        this.bind(now, waits, signals)
    }

    fn fail(_this: &Arc<Self>, error: Error) -> Error {
        error
    }

    fn perform(deferred: Infallible) -> Option<Infallible> {
        match deferred {}
    }

    /// No engine would have been given it.
    fn cancelled(&self, _request: &BindRequest) {}

    fn signals(request: &mut BindRequest) -> &mut Signals {
        &mut request.signals
    }

    fn ended(&self, result: Result) -> End {
        match result {
            Ok(()) => End::Done,
            // The client is gone, or has destroyed its device.
            Err(ECANCELED) => End::Withdrawn,
            Err(_) => End::Failed,
        }
    }

    fn look_again(this: Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        if let Err(vm) = hold::QUEUE.enqueue::<_, 1>(this) {
            Self::bury(vm);
        }
    }

    fn bury(this: Arc<Self>) {
        let dev = this.dev.clone();
        dev.reapers.vms.bury(this);
    }
}

impl Target for Vm {
    fn wake(self: Arc<Self>, _index: u32, _reached: bool) {
        Self::look_again(self);
    }
}

impl WorkItem<1> for Vm {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        hold::run(this);
    }
}

impl Wake for Vm {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = QUEUE.enqueue::<_, 0>(this.clone());
    }
}

impl WorkItem for Vm {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.process();
        let dev = this.dev.clone();
        dev.reapers.vms.bury(this);
    }
}

#[pinned_drop]
impl PinnedDrop for Vm {
    fn drop(self: Pin<&mut Self>) {
        crate::warn_on_once!(Signalling::is_inside());
        self.evicted.clear(|bo| {
            bo.sites.set_listed(self.reached.asid, false);
        });
    }
}

/// A context's use of its address space, which stays in the device's table as long: what moves is
/// found there by whom it has to wait for.
pub(crate) struct VmUse(Arc<Vm>);

impl VmUse {
    /// One use more of `vm`. `ENOENT` if its handle is gone.
    pub(crate) fn new(vm: &Arc<Vm>) -> Result<Self> {
        let mut binds = vm.binds.lock();
        if binds.destroyed {
            return Err(ENOENT);
        }
        // No wrap: there are fewer contexts.
        binds.contexts = binds.contexts.wrapping_add(1);
        Ok(Self(vm.clone()))
    }

    /// The address space.
    pub(crate) fn vm(&self) -> &Arc<Vm> {
        &self.0
    }
}

impl Drop for VmUse {
    fn drop(&mut self) {
        let over = {
            let mut binds = self.0.binds.lock();
            count_out(&mut binds.contexts, 1);
            binds.is_over()
        };
        if over {
            self.0.leave();
        }
    }
}
