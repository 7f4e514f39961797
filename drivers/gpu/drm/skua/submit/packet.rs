// SPDX-License-Identifier: GPL-2.0

//! A packet: one attempt of one portion of a submission, in an engine's ring.
//!
//! The ring works in order, so a packet that has ended tells how far the ring is read: its space is
//! freed by the packet's own end, and nothing that the device says of its head is needed for it.

use crate::{
    gpu::SkuaDevice,
    policy::{
        miniport::Task,
        node,
        paging::MultipassOffset,
        scheduler::Level,
        watchdog::Spent, //
    },
    spec::number::{
        ContextSlot,
        EngineIndex, //
    },
    submit::submission::Submission, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Packets that are in a ring at a time: enough to keep the engine busy over an interrupt, few
/// enough that whose turn it is is decided late.
pub(crate) const IN_FLIGHT: usize = 16;

/// What an engine is given at a time.
pub(crate) struct Packet {
    /// Whose portion it is, held until the packet is out of the ring and buried.
    pub(crate) submission: Arc<Submission>,
    /// Where the portion begins, see [`Submission::task`].
    pub(crate) from: MultipassOffset,
    /// Whether nothing else of its context was in the ring.
    pub(crate) idle: bool,
    /// Whether the submission has ended when this has.
    pub(crate) is_last: bool,
    /// Of its context, when it was started.
    pub(crate) level: Level,
    /// Whether it is left alone for a while, see [`crate::policy::scheduler`].
    pub(crate) protected: bool,
    /// Whether its context's save area had its state when it was started.
    pub(crate) resume: bool,
    /// What the portion had used of the engine before this attempt.
    pub(crate) spent: Spent,
}

impl node::Packet for Packet {
    fn task(&self) -> Task<'_> {
        // What was resumed is no more in the save area, and begins anew after a reset.
        let resume = self.resume && self.submission.context().is_saved();
        self.submission.task(self.from, self.idle, resume)
    }

    fn interrupts(&self) -> bool {
        self.submission.interrupts(self.from)
    }

    fn context(&self) -> Option<ContextSlot> {
        self.submission.context().slot()
    }
}

impl Packet {
    /// The packet has ended: finishes the submission if that was all of it, or if it failed.
    fn finish(self, dev: &SkuaDevice, engine: EngineIndex, result: Result) {
        if result.is_err() || self.is_last {
            self.submission.finish(dev, engine, result);
        } else {
            dev.reapers.submissions.bury(self.submission);
        }
    }
}

/// Packets that are out of the ring and whose fences are to be signalled when no spin lock is held.
pub(crate) struct Finished {
    /// In the order in which they left the ring, each with the result of its work.
    packets: [Option<(Packet, Result)>; IN_FLIGHT],
    /// How many there are; they come first in `packets`.
    len: usize,
}

impl Finished {
    /// An empty list with room for all that can be in a ring.
    pub(crate) fn new() -> Self {
        Self {
            packets: [const { None }; IN_FLIGHT],
            len: 0,
        }
    }

    /// Adds a packet that ended with `result`.
    pub(crate) fn push(&mut self, packet: Packet, result: Result) {
        match self.packets.get_mut(self.len) {
            Some(place) => {
                *place = Some((packet, result));
                self.len += 1;
            }
            // Each packet in flight is taken out once.
            None => {
                kernel::warn_on!(true);
            }
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds all of `other` behind what is there.
    pub(crate) fn append(&mut self, other: Self) {
        for (packet, result) in other.packets.into_iter().flatten() {
            self.push(packet, result);
        }
    }

    /// Packets with their results, in the order in which they left the ring.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Packet, Result)> {
        self.packets.iter().flatten()
    }

    /// Finishes what they are of, in order, under the engine's `turn`.
    pub(crate) fn finish(self, dev: &SkuaDevice, engine: EngineIndex) {
        for (packet, result) in self.packets.into_iter().flatten() {
            packet.finish(dev, engine, result);
        }
    }
}
