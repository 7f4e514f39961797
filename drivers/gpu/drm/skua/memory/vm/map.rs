// SPDX-License-Identifier: GPL-2.0

//! The map of an address space, for one at a time ([`MapGuard`]); and objects that were destroyed
//! ([`Gone`]), which it is not to name any more. Who destroys them does not wait for the map: who
//! has it takes them out, at the latest when he lets go of it.
//!
//! Locks: `map` of what is [`Reached`](super::Reached), a mutex; `gone` of the [`Vm`], a spin lock.

use crate::{
    ext::device,
    fences::{
        gate::Wake,
        hold::MAX_REQUESTS,
        signals::Signals, //
    },
    few::Few,
    gpu,
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo::BoRef,
        installed::Mapping,
        vm::{
            bind::Operation,
            Vm, //
        }, //
    },
    policy::interval_map::{
        IntervalMap,
        Span,
        UNMAP_NODES, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    list::{
        impl_list_arc_safe,
        impl_list_item,
        List,
        ListArc,
        ListLinks, //
    },
    prelude::*,
    sync::{
        Arc,
        MutexGuard, //
    },
    types::ScopeGuard, //
};

/// Ranges that [`Vm::accept_unmaps`] puts into one bind.
const UNMAPPED_AT_ONCE: usize = 1024;

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
pub(super) struct MapGuard<'a> {
    /// The map, locked: the first field, so that it is unlocked before the others are dropped.
    pub(super) map: MutexGuard<'a, IntervalMap<KernelHeap, Mapping>>,
    /// Behind `map`, as what follows, to be dropped without it: what was taken out of it first.
    _gone: List<Gone>,
    /// Sees to what has gone meanwhile.
    _then: ScopeGuard<&'a Vm, fn(&'a Vm)>,
}

impl Vm {
    /// The map, for the caller alone, without what was gone before.
    pub(super) fn map(&self) -> MapGuard<'_> {
        self.guard(self.reached.map.lock())
    }

    /// The same, unless somebody has it, perhaps for long.
    pub(super) fn try_map(&self) -> Option<MapGuard<'_>> {
        Some(self.guard(self.reached.map.try_lock()?))
    }

    fn guard<'a>(
        &'a self,
        mut map: MutexGuard<'a, IntervalMap<KernelHeap, Mapping>>,
    ) -> MapGuard<'a> {
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
                // What there is no memory for stays, as said above.
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
                // Nothing is published: the worker comes by.
                drop(self.accept(parent, map, operations, Few::Empty, MAX_REQUESTS, nothing)?);
            }
        }
        Ok(())
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
