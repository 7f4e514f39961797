// SPDX-License-Identifier: GPL-2.0

//! The driver's own lines of work: contexts of the engine for paging, one for what waits for
//! nothing, one for each who may have moves wait ([`Mover`]), and one for each move of what nobody
//! has ([`move_contexts`](crate::memory::move_contexts)).
//!
//! Lock: `paging` of the [`Gpu`], a spin lock; `movers` of it has that of [`Slots`](crate::slots).

use crate::{
    fences::gate::Wake,
    gpu::{
        Gpu,
        SkuaDevice,
        MAX_VMS, //
    },
    hardware::shared::MAX_CONTEXTS,
    spec::number::{
        Asid,
        ContextSlot, //
    },
    submit::context::{
        Context,
        Status, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A context of the driver's own for moves that wait, which are done in order.
#[derive(Clone, Copy)]
pub(crate) enum Mover {
    /// For what runs in an address space.
    Users(Asid),
    /// For what an address space has had to do with what it has evicted: its other moves do not.
    Evicted(Asid),
    /// For a context whose [context allocation](crate::memory::save_areas) moves, which waits until
    /// engines have left it.
    SaveArea(ContextSlot),
}

impl Mover {
    /// What all movers' numbers, as `u32`, are below.
    pub(super) const COUNT: u32 = 2 * MAX_VMS + MAX_CONTEXTS;
}

impl From<Mover> for u32 {
    fn from(mover: Mover) -> Self {
        // No overflow: less than `Mover::COUNT`. Clients' address spaces do not have number 0.
        match mover {
            Mover::Users(asid) => Self::from(asid).saturating_mul(2),
            Mover::Evicted(asid) => Self::from(asid).saturating_mul(2).saturating_add(1),
            Mover::SaveArea(slot) => Self::from(slot).saturating_add(2 * MAX_VMS),
        }
    }
}

impl Gpu {
    /// The driver's own context for what waits for nothing. `ENODEV` if the device is lost.
    pub(crate) fn paging(&self) -> Result<Arc<Context>> {
        self.paging.lock().clone().ok_or(ENODEV)
    }

    /// The driver's own context for moves that wait; the caller keeps whose it is. `ENOMEM`,
    /// `ENODEV`.
    pub(crate) fn mover(dev: &SkuaDevice, mover: Mover) -> Result<Arc<Context>> {
        if let Some(mover) = dev.movers.find(mover) {
            return Ok(mover);
        }
        let new = Context::new_system(dev, dev.paging_engine()?)?;
        let mover = dev.movers.fill_if_free(mover, new).ok_or(ENODEV)?;
        Gpu::end_if_lost(dev, &mover);
        Ok(mover)
    }

    /// The driver's own `context`, which is listed now, takes no work if the device is lost: that
    /// looks at the list once, before this, or it is seen here.
    pub(crate) fn end_if_lost(dev: &SkuaDevice, context: &Arc<Context>) {
        if dev.check_health().is_err() {
            context.mark(Status::Lost);
            // Others may have queued something meanwhile.
            Wake::wake(context);
        }
    }

    /// Calls `f` with each of the driver's own contexts.
    pub(crate) fn for_each_own(&self, mut f: impl FnMut(&Arc<Context>)) {
        let mut with = |context: Arc<Context>| {
            f(&context);
            // The last reference if the device is being lost, or the move that has it is over.
            self.reapers.contexts.bury(context);
        };
        self.paging().into_iter().for_each(&mut with);
        self.movers.for_each(&mut with);
        self.move_contexts.for_each(with);
    }

    /// Whose line it is is gone, and nothing more comes into it.
    pub(crate) fn release_mover(&self, mover: Mover) {
        drop(self.movers.empty(mover));
        self.movers.release(mover);
    }
}
