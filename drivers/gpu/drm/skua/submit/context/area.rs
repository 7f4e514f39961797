// SPDX-License-Identifier: GPL-2.0

//! Where a context is saved to: its own [context allocation](crate::memory::save_areas), made
//! before its first commands; whether something was saved there, and which move of it is waited
//! for.
//!
//! Locks, of the [`Context`]: `saving`, a mutex, under which the area is made; `area_move`, a spin
//! lock, for the fence of its last move.

use crate::{
    ext::fence::Fence,
    memory::{
        bo::{
            Bo,
            BoRef, //
        },
        moves::UnderWay,
        residency,
        save_areas, //
    },
    submit::context::Context, //
};
use core::ptr;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        SetOnce, //
    }, //
};

/// What an engine has of a context when it does not hold it.
pub(super) struct Area {
    /// The context allocation; none if the device has none.
    bo: Option<BoRef>,
    /// Whether an engine has saved something there since it was last to come to VRAM.
    pub(super) was_saved: Atomic<bool>,
    /// From the end of the context until it is given up, if that is in VRAM: who needs room waits.
    pub(super) ending: SetOnce<UnderWay>,
}

impl Context {
    /// Whether its save area has the state of a packet that was preempted.
    pub(crate) fn is_saved(&self) -> bool {
        let saved = || {
            let shared = self.dev.hw.shared().ok()?;
            shared.is_saved(self.slot()?).ok()
        };
        saved().unwrap_or(false)
    }

    /// Sees to it that it has a save area, before its first packet of commands; and that one which
    /// is used comes to VRAM, where that disturbs nobody. Errors as of [`save_areas::create`].
    pub(crate) fn prepare_saving(&self, parent: &Device<Bound>) -> Result {
        let Some(client) = &self.client else {
            return Ok(());
        };
        if let Some(area) = self.area.as_ref() {
            if let (Some(bo), true) = (&area.bo, area.was_saved.load(Relaxed)) {
                // Tried once.
                area.was_saved.store(false, Relaxed);
                residency::come_back(&self.dev, parent, bo, false);
            }
            return Ok(());
        }
        let _saving = self.saving.lock();
        if self.area.as_ref().is_some() {
            return Ok(());
        }
        let vm = client.vm.vm();
        let quota = vm.system_quota(parent)?;
        let made = save_areas::create(&self.dev, parent, vm, &quota)?;
        if let Some((_, place)) = &made {
            let shared = self.dev.hw.shared()?;
            shared.set_save_area(client.slot, *place)?;
        }
        self.area.populate(Area {
            bo: made.map(|(bo, _)| bo),
            was_saved: Atomic::new(false),
            ending: SetOnce::new(),
        });
        Ok(())
    }

    /// The object of its context allocation; none before its first SUBMIT.
    pub(super) fn saved_in(&self) -> Option<&BoRef> {
        self.area.as_ref()?.bo.as_ref()
    }

    /// Whether `bo` is its context allocation.
    pub(crate) fn is_saved_in(&self, bo: &Bo) -> bool {
        self.saved_in().is_some_and(|own| ptr::eq(&**own, bo))
    }

    /// Counts that a buffer of it enters a hardware queue if a context allocation that it uses is
    /// not where the GPU reaches it (row 2.08).
    pub(crate) fn expect_areas(&self) {
        let is_absent = self.saved_in().is_some_and(|bo| bo.is_absent());
        if is_absent || self.vm().is_some_and(|vm| vm.has_absent()) {
            self.dev.counters.context_not_resident.fetch_add(1, Relaxed);
        }
    }

    /// What it is given to do from now on waits for `fence`, of a move of its context allocation.
    /// The caller has locked the reservation of its address space. Allocates nothing.
    pub(crate) fn area_moves(&self, fence: &Fence) {
        let old = self.area_move.lock().replace(fence.clone());
        // Not under the lock.
        drop(old);
    }

    /// Whether its engine holds it: works for it, or did last.
    pub(crate) fn is_held(&self) -> bool {
        self.slot().is_some() && self.dev.hw.held(self.engine) == Ok(self.slot())
    }
}
