// SPDX-License-Identifier: GPL-2.0

//! A bind: one order of a client to map and unmap ranges of an address space, or the driver's own
//! to unmap what is destroyed.
//!
//! It is *accepted* in one go: all that can fail has been done before the map changes, and all
//! memory that its turn needs was set aside ([`Vm::prepare`]), since that is on the way to a
//! signal. When its turn comes ([the queue](super::queue)) it is *performed*: its entries are
//! written and TLBs flushed.
//!
//! Memory that was unmapped is held until no engine can reach it any more. It goes to the reaper
//! before the fence signals, so that who has waited for that may count on the memory.
//!
//! Lock: `end`, a spin lock, for what the bind still has to do.

use crate::{
    ext::{
        device,
        fence::{
            DriverFence,
            Fence,
            FenceMemory,
            Signalling, //
        },
        resv, //
    },
    fences::{
        gate::Gate,
        monitored::Promise,
        signals::Signals, //
    },
    few::Few,
    gpu,
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo::{
            self,
            BoData,
            BoRef,
            Memory, //
        },
        installed::{
            Installed,
            Mapping,
            Node, //
        },
        page_table::PageTable,
        vm::{
            copies::{
                self,
                Step, //
            },
            map::MapGuard,
            Vm, //
        }, //
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
        page_table::Changed, //
    },
    reaper::{
        Freed,
        Reapable, //
    },
    spec::{
        address::PAGE_SIZE,
        mmu::PageSize, //
    }, //
};
use core::mem::take;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    list::{
        impl_list_arc_safe,
        impl_list_item,
        ListArc,
        ListLinks, //
    },
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// What a bind does to a range of addresses.
pub(super) enum Operation {
    /// Maps, after unmapping what was there.
    Map(Span, Mapping),
    /// Unmaps what is mapped there, if anything.
    Unmap(Span),
}

impl Operation {
    /// The addresses, not empty.
    pub(super) fn span(&self) -> Span {
        match self {
            Self::Map(span, _) | Self::Unmap(span) => *span,
        }
    }
}

/// A bind that was accepted.
#[pin_data]
pub(crate) struct Bind {
    /// What it does, in that order: as a client asked, checked; or unmaps what was destroyed. Not
    /// empty.
    operations: KVVec<Operation>,
    /// What it waits for: fences that the client named, and what the driver itself still does with
    /// the objects.
    #[pin]
    pub(super) gate: Gate<Vm>,
    /// Filled at publication, taken out piece by piece by the thread whose turn the bind is.
    #[pin]
    pub(super) end: SpinLock<BindEnd>,
    /// Its place in [`Binds::queue`](super::queue::Binds::queue), later in the reaper's list.
    #[pin]
    links: ListLinks,
}

/// What a bind still has to do at its end.
pub(super) struct BindEnd {
    /// From publication until it is finished.
    pub(super) fence: Option<DriverFence>,
    /// Values of monitored fences, given at publication.
    pub(super) promises: Few<Promise>,
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
                Some(removed) => freed.count(1, removed.span.len()),
                None => return true,
            }
        }
        self.end.lock().unmapped.is_empty()
    }
}

impl Vm {
    /// Queues a bind of `steps`, whose ranges and handles were checked, after `waits`; a client's
    /// by [`hold::submit`].
    ///
    /// `ENOSPC` if `most` binds wait; `ENOENT` if its handle is gone; `ENOMEM`, `ENODEV`;
    /// `ECANCELED` if the client is gone, or what `check` says when nothing comes between it and
    /// the bind any more; as [`copies::look_up`]. Nothing has changed then.
    pub(super) fn bind(
        self: &Arc<Self>,
        steps: KVVec<Step>,
        waits: Few<Fence>,
        most: u32,
        signals: &mut Signals,
        check: impl FnOnce() -> Result,
    ) -> Result {
        let dev = device::enter(&*self.dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&dev);
        let mut guard = self.map();
        let map = &mut guard.map;
        let operations = copies::look_up(map, steps)?;
        check()?;
        let _signalling = self.accept(parent, map, operations, waits, most, signals)?;
        // What has gone meanwhile is seen to when the bind is done, as that allocates.
        let MapGuard { map, .. } = guard;
        drop(map);
        // Most binds wait for nothing: do them here and spare the worker's wake-up.
        self.process();
        Ok(())
    }

    /// Changes `map`, which is this one's, and queues the bind; [`Vm::process`] does it, to which
    /// the caller sees in the section that is returned: `signals` are published.
    pub(super) fn accept(
        self: &Arc<Self>,
        parent: &Device<Bound>,
        map: &mut IntervalMap<KernelHeap, Mapping>,
        operations: KVVec<Operation>,
        mut waits: Few<Fence>,
        most: u32,
        signals: &mut Signals,
    ) -> Result<Signalling> {
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
                None if binds.len >= most => Some(ENOSPC),
                None => None,
            };
            if refused.is_none() {
                // From here on the address space stays where a device that is lost finds it. No
                // wrap: each is in memory.
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
        Ok(signalling)
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
        Self::wait_for_memory(operations, waits)?;
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
                if BoData::may_change(mapping.bo()) {
                    tables.prepare(&self.dev, parent, span.start, span.len(), 0)?;
                } else if let Some(memory) = bo::installable(mapping.bo()) {
                    // Without, it is destroyed, and nothing is installed.
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

    /// Adds what the memory that `operations` map waits for to `waits`: each fence once, as a
    /// callback for each would run with interrupts off. `ENOMEM`; `EINTR` if a signal arrives.
    fn wait_for_memory(operations: &[Operation], waits: &mut Few<Fence>) -> Result {
        let mut objects = Few::Empty;
        for operation in operations {
            if let Operation::Map(_, mapping) = operation {
                objects.push(mapping.bo())?;
            }
        }
        let address = |bo: &BoRef| core::ptr::from_ref(&**bo).addr();
        objects.sort_unstable_by_key(|bo| address(bo));
        let mut last = 0;
        for bo in &*objects {
            if core::mem::replace(&mut last, address(bo)) == address(bo) {
                continue;
            }
            if let Some(fence) = bo::own_work(bo, &resv::lock(&***bo)?)? {
                if !waits.contains(&fence) {
                    waits.push(fence)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a bind's entries, only those that unmap if it was `cancelled`, and flushes the TLBs.
    /// Allocates nothing.
    pub(super) fn perform(&self, bind: &Bind, cancelled: bool) -> Result {
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
