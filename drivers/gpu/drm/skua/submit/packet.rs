// SPDX-License-Identifier: GPL-2.0

//! A packet: one attempt of one portion of a submission, in an engine's ring.
//!
//! The ring works in order, so a packet that has ended tells how far the ring is read: its space is
//! freed by the packet's own end, and nothing that the device says of its head is needed for it.

use crate::{
    fences::monitored::End,
    gpu::SkuaDevice,
    hardware::shared::QUEUE_PACKETS,
    policy::{
        miniport::{
            Stop,
            Task, //
        },
        node,
        paging::MultipassOffset,
        scheduler::Level,
        watchdog::Spent, //
    },
    spec::number::{
        ContextSlot,
        EngineIndex, //
    },
    submit::submission::{
        Attempt,
        Submission, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Packets that are in a ring at a time: enough to keep the engine busy over an interrupt, few
/// enough that whose turn it is is decided late.
pub(crate) const IN_FLIGHT: usize = QUEUE_PACKETS as usize;

/// What an engine is given at a time.
pub(crate) struct Packet {
    /// Whose portion it is, held until the packet is out of the ring and buried.
    pub(crate) submission: Arc<Submission>,
    /// Where the portion begins, see [`Submission::task`].
    pub(crate) from: MultipassOffset,
    /// What is special about this time.
    pub(crate) attempt: Attempt,
    /// Whether the submission has ended when this has.
    pub(crate) is_last: bool,
    /// Whether more waits than may fit into the ring with it.
    pub(crate) followed: bool,
    /// Whether others wait, and it may be long: whose turn it is then is looked at when it ends.
    pub(crate) is_long: bool,
    /// The level of its context, with which it changes.
    pub(crate) level: Level,
    /// The one whose turn it was: that is served by what it does.
    pub(crate) turn_of: Level,
    /// Whether it is left alone for a while, see [`crate::policy::scheduler`].
    pub(crate) protected: bool,
    /// What the portion had used of the engine before this attempt.
    pub(crate) spent: Spent,
}

impl node::Packet for Packet {
    fn task(&self) -> Task<'_> {
        // What was resumed is no more in the save area, and begins anew after a reset.
        let resume = self.attempt.resume && self.submission.context().is_saved();
        let attempt = Attempt {
            resume,
            ..self.attempt
        };
        self.submission.task(self.from, attempt)
    }

    fn interrupts(&self) -> bool {
        self.is_long || self.submission.buffers_after(self.from) == 0
    }

    fn is_followed(&self) -> bool {
        self.followed
    }

    fn is_resubmitted(&self) -> bool {
        self.attempt.again
    }

    fn context(&self) -> Option<ContextSlot> {
        self.submission.context().slot()
    }
}

impl Packet {
    /// Whether the context that it is of does it, in its address space.
    pub(crate) fn is_buffer(&self) -> bool {
        matches!(node::Packet::task(self), Task::Virtual { .. })
    }

    /// The packet has ended: finishes the submission if that was all of it, or if it failed.
    fn finish(self, dev: &SkuaDevice, engine: EngineIndex, result: Result) {
        let end = match result {
            Ok(()) if !self.is_last => return dev.reapers.submissions.bury(self.submission),
            Ok(()) => End::Done,
            // Whatever became of its context meanwhile.
            Err(_) => End::Failed,
        };
        self.submission.finish(dev, engine, result, end);
    }
}

/// Room for what is taken out of a ring, which the engine's `turn` has: as much as can be in one.
pub(crate) struct Taken {
    /// Packets that have ended, with their results, oldest first.
    pub(crate) finished: Finished,
    /// What fails with what is guilty.
    pub(crate) removed: Finished,
    /// What comes again, with its fence id and where it was stopped; the oldest first.
    pub(crate) withdrawn: KVec<(u64, Packet, Stop)>,
}

impl Taken {
    /// Room for [`IN_FLIGHT`] packets of each kind, and none yet. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            finished: Finished::new()?,
            removed: Finished::new()?,
            withdrawn: KVec::with_capacity(IN_FLIGHT, GFP_KERNEL)?,
        })
    }
}

/// Puts what there is room for behind the others: each packet in flight is taken out once.
pub(crate) fn push<T>(taken: &mut KVec<T>, packet: T) {
    crate::warn_on_once!(taken.push_within_capacity(packet).is_err());
}

/// Packets that are out of the ring and whose fences are to be signalled when no spin lock is held,
/// each with the result of its work, in the order in which they left the ring.
pub(crate) struct Finished(KVec<(Packet, Result)>);

impl Finished {
    fn new() -> Result<Self> {
        Ok(Self(KVec::with_capacity(IN_FLIGHT, GFP_KERNEL)?))
    }

    /// Adds a packet that ended with `result`.
    pub(crate) fn push(&mut self, packet: Packet, result: Result) {
        push(&mut self.0, (packet, result));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds all of `other` behind what is there.
    pub(crate) fn append(&mut self, other: &mut Self) {
        for (packet, result) in other.0.drain_all() {
            self.push(packet, result);
        }
    }

    /// Packets with their results, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Packet, Result)> {
        self.0.iter()
    }

    /// Finishes what they are of, in order, under the engine's `turn`; then there are none.
    pub(crate) fn finish(&mut self, dev: &SkuaDevice, engine: EngineIndex) {
        for (packet, result) in self.0.drain_all() {
            packet.finish(dev, engine, result);
        }
    }
}
