// SPDX-License-Identifier: GPL-2.0

//! [Context allocations](crate::memory::save_areas) in an address space, those of contexts that
//! clients have asked for: at which addresses they are, of which context, and how many of them the
//! GPU does not reach just now.
//!
//! Locks, of the [`Vm`]: `owners`, a mutex, for which is whose; `installing` for how many are
//! absent.

use crate::{
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            Bo,
            BoRef,
            ContextUse, //
        },
        installed::{
            Installed,
            Node, //
        },
        vm::{
            begin_mapping,
            Vm, //
        }, //
    },
    policy::{
        interval_map::{
            Span,
            MAP_NODES, //
        },
        page_table::Changed, //
    },
    spec::number::ContextSlot, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

impl Vm {
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
    /// [claimed]: crate::memory::bo::BoData::claim
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
    pub(super) fn set_absent(&self, bo: &Bo, is_absent: bool) {
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
}
