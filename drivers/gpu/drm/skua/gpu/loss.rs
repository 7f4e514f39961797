// SPDX-License-Identifier: GPL-2.0

//! The end of the device: whether it works, who doubts that, and what is done when it is lost.
//!
//! A device that does not acknowledge in time, or reports what cannot be, is reset
//! ([`crate::submit::adapter_reset`]), and goes on.
//!
//! A device that is unplugged, or is not helped by that, is *lost* ([`Gpu::lose`]), once. Before
//! anything else it is made quiet: an adapter reset, and whether or not it acknowledges that, bus
//! mastering off, read back. Then engines take no more work, all contexts and address spaces finish
//! what they have with `ENODEV`, every fence signals. Ioctls fail with `ENODEV` (unplugged), or
//! those that need the device with `EIO` (not answering), until it is bound again.
//!
//! From the moment at which an acknowledgement is missing until the device was reset, or is quiet,
//! no memory that it may reach goes back to the system: [`crate::reaper`].

use crate::{
    ext::{
        device,
        trace, //
    },
    gpu::{
        wait::Pauses,
        Gpu,
        SkuaDevice, //
    },
    policy::miniport::Miniport,
    submit::{
        context::{
            Context,
            Status, //
        },
        coredump::Failure, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// How long a lost device may take to stop by itself before its bus mastering is turned off.
const QUIET_TIMEOUT: Delta = Delta::from_millis(1000);

/// The device works.
pub(super) const HEALTHY: u32 = 0;
/// The device does not answer.
pub(crate) const WEDGED: u32 = 1;
/// The device is gone.
const GONE: u32 = 2;

/// Bytes of buffer objects and page tables in system memory that devices which could not be stopped
/// had when they were unbound: they may reach them for ever.
pub(crate) static KEPT_FOR_GOOD: Atomic<u64> = Atomic::new(0);

impl Gpu {
    /// `EIO` or `ENODEV` once the device is lost.
    pub(crate) fn check_health(&self) -> Result {
        match self.health.load(Acquire) {
            HEALTHY => Ok(()),
            WEDGED => Err(EIO),
            _ => Err(ENODEV),
        }
    }

    /// The device did not do what it must in time: it is to be reset, and until it is it may reach
    /// memory that it should not.
    pub(super) fn suspect(&self, generation: u32) {
        // First: the end of a reset looks at it when it opens the quarantine.
        self.resets.want(generation);
        self.suspend();
        // Last: if a reset ended meanwhile, the alarm finds nothing to do and opens the quarantine.
        self.reset_later(generation);
        if self.reapers.quiet.load(Acquire) {
            // Too late to reach anything, and nobody would open it.
            self.reapers.release();
        }
    }

    /// Its bus has reset the device, which has forgotten what it was told, and what was in VRAM: it
    /// is reset once more, as if it had done so by itself, for which this waits. Process context,
    /// bound.
    pub(crate) fn was_reset(&self) {
        // First: who waits to reset it does so for this, too.
        let generation = self.hw.generation();
        self.resets.end_by_bus();
        self.suspect(generation);
        let _ = self.wait_for_resets();
    }

    /// The device did not do what it must, and a reset alone does not help: it is to be lost, for
    /// the reason `health`, and until it is quiet it may reach memory that it should not.
    pub(crate) fn doubt(&self, health: u32) {
        self.reapers.quarantine.close();
        if self.reapers.quiet.load(Acquire) {
            // Too late to reach anything, and nobody would open it.
            return self.reapers.release();
        }
        // Whoever comes first; `lose()` decides.
        let _ = self.health.cmpxchg(HEALTHY, health, Full);
        self.reset_later(self.hw.generation());
    }

    /// Asks the device whether it is there, or comes back since its bus resets it. `ENODEV` if it
    /// is gone: then it is to be lost.
    pub(crate) fn check_presence(&self) -> Result {
        // Asked twice: it may have been gone, and its bus have reset it, in between.
        let is_there = || self.resets.is_by_bus() || self.hw.is_present();
        if is_there() || is_there() {
            return Ok(());
        }
        self.doubt(GONE);
        Err(ENODEV)
    }

    /// The device is lost, which is told unless it is `unbound`. It is made quiet; then everything
    /// that is under way ends with `ENODEV`.
    ///
    /// Process context; not from work that itself waits for what is ended here. Bounded, and in a
    /// signalling section as a whole.
    pub(crate) fn lose(dev: &SkuaDevice, unbound: bool) {
        dev.reapers.quarantine.close();
        if unbound {
            dev.health.store(GONE, Release);
        } else {
            let _ = dev.health.cmpxchg(HEALTHY, WEDGED, Full);
        }
        if dev.ended.xchg(1, Full) != 0 {
            // Unbound after it was lost: perhaps it can be made quiet now.
            if dev.quiet() {
                dev.reapers.release();
            }
            return;
        }
        let parent = dev.as_ref();
        if !unbound {
            trace::lost(dev);
            dev_err!(
                parent,
                "the device is lost; unbind and bind it to use it again\n"
            );
            dev.herald.tell_of_failure(dev, &Failure::Lost);
        }
        dev.moves.lose();
        dev.clearer.wake();
        let quiet = dev.quiet();
        for (_, engine) in dev.engines() {
            engine.lose(dev);
        }
        let paging = dev.paging.lock().take();
        let close = |context: Arc<Context>| {
            context.mark(Status::Lost);
            if let Ok(engine) = dev.engine(context.engine()) {
                engine.drain(dev, &context);
            }
            dev.reapers.contexts.bury(context);
        };
        paging.into_iter().for_each(close);
        dev.movers.for_each(close);
        dev.move_contexts.for_each(close);
        dev.contexts.for_each(close);
        dev.vms.for_each(|vm| {
            vm.end(ENODEV);
            dev.reapers.vms.bury(vm);
        });
        dev.fences.lose();
        dev.pending_residency.look_at_all();
        if !unbound {
            dev.herald.tell_of_loss(dev);
        }
        if quiet {
            dev.reapers.release();
        } else {
            dev_err!(
                parent,
                "the device cannot be stopped: memory that it may reach is kept\n"
            );
        }
    }

    /// Has all memory that the device may reach stay when it is unbound: it may for ever, so these
    /// data do.
    pub(super) fn keep(dev: &SkuaDevice) {
        // No wrap: they exist at the same time.
        KEPT_FOR_GOOD.fetch_add(dev.system.used(), Relaxed);
        dev.resources.keep();
        dev.hw.keep_shared();
        device::keep(dev);
    }

    /// Has the device stop its accesses to memory. Whether it is known to have.
    fn quiet(&self) -> bool {
        let (start, pauses) = (Instant::<Monotonic>::now(), Pauses::new());
        // It may be gone, or not listen: what counts is the bus.
        let _ = self.hw.reset_from_timeout();
        // Until it is, or is gone, or unbound.
        while start.elapsed() < QUIET_TIMEOUT && self.hw.is_reset() == Ok(false) {
            pauses.sleep();
        }
        self.bus.turn_off()
    }
}
