// SPDX-License-Identifier: GPL-2.0

//! Who frees what work lets go of ([`crate::reaper`]), one for each kind of it, and that they keep
//! it while the device may reach memory that it should not.
//!
//! That is so from the moment at which an acknowledgement is missing until the device was reset, or
//! is quiet. All obey one quarantine, which is closed from [`Gpu::suspend`] to [`Gpu::resume`], and
//! from [`Gpu::doubt`] or [`Gpu::lose`] on until the device is known to be quiet.

use crate::{
    gpu::Gpu,
    memory::{
        destruction::Destruction,
        eviction,
        moves::Move,
        vm::{
            Bind,
            Reached,
            Vm, //
        }, //
    },
    reaper::{
        Cut,
        Quarantine,
        Reaper, //
    },
    submit::{
        context::{
            updates::Updates,
            Context, //
        },
        submission::Submission, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    time::Jiffies, //
};

/// What frees objects that work lets go of.
pub(crate) struct Reapers {
    /// Binds that are done, with the memory that they unmapped.
    pub(crate) binds: Arc<Reaper<Bind>>,
    /// Contexts, from ready lists, workers and the table of a lost device.
    pub(crate) contexts: Arc<Reaper<Context>>,
    /// Objects that were destroyed, with the memory that they had.
    pub(crate) destructions: Arc<Reaper<Destruction>>,
    /// Moves that are done, with the memory that was left.
    pub(crate) moves: Arc<Reaper<Move>>,
    /// Submissions that left a ring or were cancelled, with the memory that they cleared.
    pub(crate) submissions: Arc<Reaper<Submission>>,
    /// Page tables of address spaces that are gone, and what was mapped in these.
    pub(crate) reached: Arc<Reaper<Reached>>,
    /// What held binds in the order of a context.
    pub(crate) updates: Arc<Reaper<Updates>>,
    /// Address spaces.
    pub(crate) vms: Arc<Reaper<Vm>>,
    /// The one that all obey: closed by [`Gpu::suspend`], [`Gpu::doubt`] and [`Gpu::lose`], opened
    /// when the device was reset or is known to be quiet.
    pub(super) quarantine: Arc<Quarantine>,
    /// The device is quiet, and will not be anything else.
    pub(super) quiet: Atomic<bool>,
}

impl Reapers {
    /// Reapers with nothing to do, and an open quarantine. `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let quarantine = Quarantine::new()?;
        Ok(Self {
            binds: Reaper::new(&quarantine)?,
            contexts: Reaper::new(&quarantine)?,
            destructions: Reaper::new(&quarantine)?,
            moves: Reaper::new(&quarantine)?,
            submissions: Reaper::new(&quarantine)?,
            reached: Reaper::new(&quarantine)?,
            updates: Reaper::new(&quarantine)?,
            vms: Reaper::new(&quarantine)?,
            quarantine,
            quiet: Atomic::new(false),
        })
    }

    /// The device is quiet: what was kept may go.
    pub(super) fn release(&self) {
        // First: whoever closes the quarantine sees this, or its closing is undone by what follows.
        self.quiet.store(true, Release);
        self.quarantine.open();
        self.wake();
    }

    /// The device was reset: what was kept because of that may go.
    fn resume(&self) {
        self.quarantine.resume();
        self.wake();
    }

    fn wake(&self) {
        self.binds.wake();
        self.contexts.wake();
        self.destructions.wake();
        self.moves.wake();
        self.submissions.wake();
        self.updates.wake();
        self.vms.wake();
        self.reached.wake();
    }

    /// For a work item that may have more to do than it does at a time.
    pub(super) fn cut(&self) -> Cut {
        Cut::new(&self.quarantine)
    }

    /// Whether the device is known to reach no memory, for good.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Acquire)
    }

    /// Whether memory is kept because the device may still reach it, how many objects wait to be
    /// freed, and the bytes of memory that these have, each time that they have it.
    pub(crate) fn usage(&self) -> (bool, u64, u64) {
        let usages = [
            self.binds.usage(),
            self.contexts.usage(),
            self.destructions.usage(),
            self.moves.usage(),
            self.submissions.usage(),
            self.updates.usage(),
            self.vms.usage(),
            self.reached.usage(),
        ];
        let add = |(count, bytes): (u64, u64), (more, and): (u64, u64)| {
            (count.saturating_add(more), bytes.saturating_add(and))
        };
        let (count, bytes) = usages.into_iter().fold((0, 0), add);
        (self.quarantine.is_closed(), count, bytes)
    }
}

impl Gpu {
    /// Waits until what was buried of this GPU's is free, unless it is in quarantine, or freed in
    /// parts. Process context, no locks held.
    ///
    /// It ends, whatever clients do: what is freed waits for the device's acknowledgements, without
    /// which that is lost, and for locks under which nobody waits for work, nor allocates as much
    /// as a client likes, for which its control group may have it wait.
    pub(crate) fn reap(&self) {
        // Each buries what those behind it free.
        self.destroyer.flush();
        self.reapers.contexts.flush();
        self.reapers.updates.flush();
        self.reapers.submissions.flush();
        self.reapers.binds.flush();
        self.reapers.moves.flush();
        self.reapers.destructions.flush();
        self.reapers.vms.flush();
        self.reapers.reached.flush();
    }

    /// As [`Self::reap`], and what is freed in parts, too, as long as there is `patience`, from
    /// which that takes. `EINTR` if a signal arrives.
    pub(crate) fn reap_all(&self, patience: &mut Jiffies) -> Result {
        eviction::spend(patience, || self.reap());
        while *patience > 0 && self.reapers.quarantine.is_cut() {
            if current!().signal_pending() {
                return Err(EINTR);
            }
            eviction::spend(patience, || self.reap());
            // There may always be more.
            *patience = patience.saturating_sub(1);
        }
        Ok(())
    }

    /// The adapter is about to be reset: memory that it may reach does not go back to the system
    /// until [`Self::resume`].
    pub(crate) fn suspend(&self) {
        self.reapers.quarantine.suspend();
    }

    /// The adapter was reset, and reaches what it should.
    pub(crate) fn resume(&self) {
        let is_suspected = || self.resets.is_wanted(self.hw.generation());
        if is_suspected() {
            return;
        }
        self.reapers.resume();
        if is_suspected() {
            // A reset was asked for after the first look: its memory may have been let go of.
            self.suspend();
        }
    }

    /// Waits while memory is kept because the adapter is to be reset: it may be what is waited for.
    /// Process context, not from recovery. `EIO`, `ENODEV` if the device is lost.
    pub(crate) fn wait_for_resets(&self) -> Result {
        self.wait_for(|| Ok(!self.reapers.quarantine.is_suspended()))
    }
}
