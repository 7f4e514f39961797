// SPDX-License-Identifier: GPL-2.0

//! Address spaces: what is mapped where for one process, and the queue of binds that change it.
//!
//! There are two views of an address space. The *map* says what will be mapped when all binds that were
//! accepted are done; an ioctl changes it at once, since binds are done in order. The *page tables* say
//! what the GPU translates now; a bind changes them when its turn comes.
//!
//! ```text
//! VM_BIND ioctl:  check ─▶ allocate tables and nodes ─▶ change the map ─▶ publish the fence ─▶ queue
//! worker:         gate open? ─▶ write entries ─▶ flush TLBs ─▶ signal the fence ─▶ let go of what was
//!                                                                               unmapped
//! ```
//!
//! Memory that was unmapped is held until no engine can reach it any more.
//!
//! An address space whose handle is gone stays in the device's table while it has binds that are not
//! done, so that a device that is lost ends them, too.

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
        resv::{
            self,
            Usage, //
        }, //
    },
    fences::gate::{
        Gate,
        Wake, //
    },
    fences::signals::Signals,
    gpu::SkuaDevice,
    kernel_heap::KernelHeap,
    memory::{
        bo::BoRef,
        page_table::{
            Access,
            Changed,
            PageTable, //
        }, //
    },
    policy::{
        interval_map::{
            Cut,
            IntervalMap,
            Slice,
            Span,
            MAP_NODES,
            UNMAP_NODES, //
        },
        page_plan::{
            PagePlan,
            Sizes, //
        }, //
    },
    quota::{
        Quota,
        Share, //
    },
    reaper::Reapable,
    spec::{
        address::VA_BITS,
        mmu::Entry,
        number::Asid, //
    }, //
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
        Arc,
        Mutex,
        SpinLock, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// First address that can be bound: the first 64 KiB catch null pointers.
pub(crate) const VA_START: u64 = 0x1_0000;
/// Address behind the last that can be bound: the upper 4 GiB are the driver's.
pub(crate) const VA_END: u64 = (1 << VA_BITS) - (1 << 32);

/// A range of a buffer object that is mapped.
#[derive(Clone)]
pub(crate) struct Mapping {
    bo: BoRef,
    offset: u64,
    write: bool,
}

impl Mapping {
    /// The object from byte `offset` on; whether the GPU may write.
    pub(crate) fn new(bo: BoRef, offset: u64, write: bool) -> Self {
        Self { bo, offset, write }
    }
}

impl Slice for Mapping {
    fn slice(&self, offset: u64, _len: u64) -> Self {
        Self {
            bo: self.bo.clone(),
            // No overflow: within the object.
            offset: self.offset.saturating_add(offset),
            write: self.write,
        }
    }
}

/// One operation of a bind.
pub(crate) enum Operation {
    /// Maps, after unmapping what was there.
    Map(Span, Mapping),
    /// Unmaps.
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
    operations: KVVec<Operation>,
    gate: Gate<Vm>,
    #[pin]
    end: SpinLock<BindEnd>,
    #[pin]
    links: ListLinks,
}

/// What a bind still has to do at its end.
struct BindEnd {
    /// From publication until it is finished.
    fence: Option<DriverFence>,
    /// What the bind unmaps, held until no engine reaches it and the bind is freed.
    unmapped: KVVec<Cut<Mapping>>,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Bind { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Bind { using ListLinks { self.links }; }
}

impl Reapable for Bind {}

/// Binds of one address space that may wait at a time.
const MAX_QUEUED: u32 = 4096;

/// Binds that are not done.
struct Binds {
    /// In order.
    queue: List<Bind>,
    /// How many are in `queue`.
    len: u32,
    /// A thread is at one, which it has taken out of `queue`.
    busy: bool,
    /// Userspace has no handle any more.
    destroyed: bool,
    /// Nothing is accepted, and what waits is finished with this error: the device is lost, or the client
    /// gone.
    end: Option<Error>,
}

impl Binds {
    /// Whether the address space is only in the device's table for what is still to be done.
    fn is_over(&self) -> bool {
        self.destroyed && !self.busy && self.len == 0
    }
}

/// An address space.
#[pin_data(PinnedDrop)]
pub(crate) struct Vm {
    dev: ARef<SkuaDevice>,
    asid: u32,
    root: Entry,
    tables: DevresItem<PageTable>,
    fences: FenceContext,
    #[pin]
    map: Mutex<IntervalMap<KernelHeap, Mapping>>,
    #[pin]
    binds: SpinLock<Binds>,
    /// Looks at the queue, in a worker.
    #[pin]
    work: Work<Self>,
    #[pin]
    links: ListLinks,
    /// Its part of the client's quota of address spaces.
    share: Share,
}

impl_has_work! {
    impl HasWork<Self> for Vm { self.work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Vm { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Vm { using ListLinks { self.links }; }
}

impl Reapable for Vm {}

impl Vm {
    /// Makes an address space in which nothing is mapped.
    ///
    /// `ENOSPC` if there are too many; `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, parent: &Device<Bound>, share: Share) -> Result<Arc<Self>> {
        let tables = dev.resources.insert(parent, PageTable::new(parent)?)?;
        let root = tables.access(parent)?.entry();
        let asid = dev.reserve_asid()?;
        let vm = Arc::pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                asid,
                root,
                tables,
                fences: FenceContext::new(c"skua", c"bind"),
                map <- new_mutex!(IntervalMap::new()),
                binds <- new_spinlock!(Binds {
                    queue: List::new(),
                    len: 0,
                    busy: false,
                    destroyed: false,
                    end: None,
                }),
                work <- new_work!("Vm::work"),
                links <- ListLinks::new(),
                share,
            }),
            GFP_KERNEL_ACCOUNT,
        );
        match &vm {
            Ok(vm) => dev.vms.fill(asid, vm.clone()),
            Err(_) => dev.release_asid(asid),
        }
        vm
    }

    /// Its address space identifier.
    pub(crate) fn asid(&self) -> Asid {
        // CAST: `reserve_asid()` gives out identifiers below MAX_VMS.
        Asid(self.asid as u16)
    }

    /// The root table, for context descriptors.
    pub(crate) fn root(&self) -> Entry {
        self.root
    }

    /// Userspace has no handle of it any more; contexts and submissions may. What is queued is done.
    pub(crate) fn destroy(&self) {
        let over = {
            let mut binds = self.binds.lock();
            binds.destroyed = true;
            binds.is_over()
        };
        if over {
            self.leave();
        }
    }

    /// Whether it counts against `quota`.
    pub(crate) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        self.share.is_of(quota)
    }

    /// Takes it out of the device's table.
    fn leave(&self) {
        if let Some(vm) = self.dev.vms.empty(self.asid) {
            self.dev.reapers.vms.bury(vm);
        }
    }

    /// Appends each object that something is mapped of, once for each mapping. `ENOMEM`.
    pub(crate) fn collect_objects(&self, objects: &mut KVVec<BoRef>) -> Result {
        let map = self.map.lock();
        objects.reserve(usize::try_from(map.len())?, GFP_KERNEL)?;
        for (_, mapping) in map.iter(Span::new(0, 1 << VA_BITS)) {
            objects.push(mapping.bo.clone(), GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Mappings, bytes mapped, and tables, for debugfs.
    pub(crate) fn usage(&self, parent: &Device<Bound>) -> (u32, u64, usize) {
        let map = self.map.lock();
        let bytes = map
            .iter(Span::new(0, 1 << VA_BITS))
            .fold(0u64, |sum, (span, _)| sum.saturating_add(span.len()));
        let tables = self.tables.access(parent).map_or(0, PageTable::count);
        (map.len(), bytes, tables)
    }

    /// Queues a bind of `operations`, whose ranges and handles were checked, after `waits`.
    ///
    /// `ENOMEM`, `ENODEV`; nothing has changed then.
    pub(crate) fn bind(
        self: &Arc<Self>,
        parent: &Device<Bound>,
        operations: KVVec<Operation>,
        mut waits: KVVec<Fence>,
        signals: Signals,
    ) -> Result {
        let tables = self.tables.access(parent)?;
        for operation in &operations {
            self.prepare(parent, tables, operation, &mut waits)?;
        }
        let nodes = u32::try_from(operations.len())?
            .checked_mul(MAP_NODES + UNMAP_NODES)
            .ok_or(EOVERFLOW)?;
        // Binds of this address space are done in order anyway.
        waits.retain(|fence| fence.context() != self.fences.id());
        let gate = Gate::new(self, waits)?;
        let memory = FenceMemory::new(GFP_KERNEL)?;

        let mut map = self.map.lock();
        let unmapped = KVVec::with_capacity(cuts(&map, &operations)?, GFP_KERNEL)?;
        let bind = ListArc::pin_init(
            try_pin_init!(Bind {
                operations,
                gate,
                end <- new_spinlock!(BindEnd { fence: None, unmapped }),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut reservation = map.prepare(nodes)?;
        let refused = {
            let binds = self.binds.lock();
            binds.end.or((binds.len >= MAX_QUEUED).then_some(ENOSPC))
        };
        if let Some(error) = refused {
            map.release(reservation);
            return Err(error);
        }

        // From here on nothing fails.
        let mut unmapped = core::mem::take(&mut bind.end.lock().unmapped);
        for operation in &bind.operations {
            let span = operation.span();
            let cut = map.unmap(&mut reservation, span, |cut| {
                // Within the capacity, see `cuts()`.
                kernel::warn_on!(unmapped.push_within_capacity(cut).is_err());
            });
            if let Operation::Map(span, mapping) = operation {
                let mapped = map.map(&mut reservation, *span, mapping.clone());
                kernel::warn_on!(mapped.is_err());
            }
            kernel::warn_on!(cut.is_err());
        }
        map.release(reservation);
        let fence = self.fences.fence(memory);
        signals.publish(fence.fence());
        let signalling = Signalling::begin();
        {
            let mut end = bind.end.lock();
            end.unmapped = unmapped;
            end.fence = Some(fence);
        }
        {
            let mut binds = self.binds.lock();
            bind.gate.arm();
            binds.queue.push_back(bind);
            // No wrap: see `MAX_QUEUED`.
            binds.len = binds.len.wrapping_add(1);
        }
        drop(signalling);
        drop(map);
        // Most binds wait for nothing: do them here and spare the worker's wake-up.
        self.process();
        Ok(())
    }

    /// Allocates the tables for one operation, and adds what its memory waits for to `waits`.
    fn prepare(
        &self,
        parent: &Device<Bound>,
        tables: &PageTable,
        operation: &Operation,
        waits: &mut KVVec<Fence>,
    ) -> Result {
        let span = operation.span();
        tables.prepare_cut(parent, span.start, span.len())?;
        let Operation::Map(_, mapping) = operation else {
            return Ok(());
        };
        mapping.bo.with_plan(parent, mapping.offset, |pieces| {
            let plan = PagePlan::new(span.start, span.len(), Sizes::ALL, pieces);
            for run in plan.map_err(|_| EINVAL)? {
                tables.prepare_run(parent, &run.map_err(|_| EINVAL)?)?;
            }
            Ok(())
        })?;
        let reserved = resv::lock(&*mapping.bo)?;
        if !reserved.is_idle(Usage::Kernel) {
            if let Some(fence) = reserved.singleton(Usage::Kernel)? {
                waits.push(fence, GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Does the binds whose turn it is. Process context; one thread at a time does the work.
    fn process(&self) {
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
                let due = cursor
                    .peek_next()
                    .is_some_and(|bind| end.is_some() || bind.gate.is_open());
                if !due {
                    break;
                }
                let Some(bind) = binds.queue.pop_front() else {
                    break;
                };
                binds.len = binds.len.saturating_sub(1);
                binds.busy = true;
                (bind, end)
            };
            let result = match end {
                None => self.perform(&bind),
                // What it would have unmapped is not held any longer: nobody must reach it.
                Some(ECANCELED) => self.withdraw(&bind).and(Err(ECANCELED)),
                Some(error) => Err(error),
            };
            // Before the signal: who waits for it may count on the memory.
            let fence = bind.end.lock().fence.take();
            self.dev.reapers.binds.bury(bind.into_arc());
            if let Some(fence) = fence {
                // That it does not answer is the device's loss.
                fence.signal(result.map_err(|error| if error == EIO { ENODEV } else { error }));
            }
            self.binds.lock().busy = false;
        }
        if self.binds.lock().is_over() {
            self.leave();
        }
    }

    /// Writes a bind's entries and flushes the TLBs. Allocates nothing.
    fn perform(&self, bind: &Bind) -> Result {
        let dev = device::enter(&*self.dev).ok_or(ENODEV)?;
        let parent: &kernel::pci::Device<Bound> = (*dev).as_ref();
        let parent: &Device<Bound> = parent.as_ref();
        let tables = self.tables.access(parent)?;
        let mut changed = Changed::Fresh;
        for operation in &bind.operations {
            let span = operation.span();
            changed = changed.and(tables.clear(span.start, span.len())?);
            if let Operation::Map(_, mapping) = operation {
                let access = Access {
                    vram: mapping.bo.is_in_vram(),
                    write: mapping.write,
                };
                mapping.bo.with_pieces(parent, mapping.offset, |pieces| {
                    let plan = PagePlan::new(span.start, span.len(), Sizes::ALL, pieces);
                    for run in plan.map_err(|_| EIO)? {
                        tables.map(&run.map_err(|_| EIO)?, access)?;
                    }
                    Ok(())
                })?;
            }
        }
        if changed == Changed::Stale {
            self.dev.invalidate(Some(self.asid()))?;
        }
        Ok(())
    }

    /// Unmaps all that a cancelled bind is about. Allocates nothing.
    fn withdraw(&self, bind: &Bind) -> Result {
        let dev = device::enter(&*self.dev).ok_or(ENODEV)?;
        let parent: &kernel::pci::Device<Bound> = (*dev).as_ref();
        let tables = self.tables.access(parent.as_ref())?;
        let mut changed = Changed::Fresh;
        for operation in &bind.operations {
            let span = operation.span();
            changed = changed.and(tables.clear(span.start, span.len())?);
        }
        if changed == Changed::Stale {
            self.dev.invalidate(Some(self.asid()))?;
        }
        Ok(())
    }

    /// What waits is finished with `error`, in order, and nothing more is accepted: the device is lost
    /// (`ENODEV`), or the client gone (`ECANCELED`). The first error counts.
    pub(crate) fn end(&self, error: Error) {
        self.binds.lock().end.get_or_insert(error);
        self.process();
    }
}

/// How many pieces `operations` cut out of the map together, at most.
///
/// Each operation cuts what it overlaps now, and what earlier ones of the same bind left or put there: of
/// each such at most two more pieces.
fn cuts(map: &IntervalMap<KernelHeap, Mapping>, operations: &[Operation]) -> Result<usize> {
    let mut count = 0usize;
    for (index, operation) in operations.iter().enumerate() {
        let span = operation.span();
        count = count.checked_add(map.iter(span).count()).ok_or(EOVERFLOW)?;
        let before = operations.get(..index).unwrap_or(&[]);
        let overlapping = before
            .iter()
            .map(Operation::span)
            .filter(|other| other.start < span.end && span.start < other.end)
            .count();
        count = count.checked_add(2 * overlapping).ok_or(EOVERFLOW)?;
    }
    Ok(count)
}

impl Wake for Vm {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = crate::gpu::QUEUE.enqueue(this.clone());
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
        self.dev.release_asid(self.asid);
    }
}
