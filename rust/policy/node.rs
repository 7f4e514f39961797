// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node: one engine's hardware queue, as the scheduler sees it.
//!
//! What was given to the engine and is not known to be done, in order. Each packet that is started
//! gets a fence id of the hardware; packets are complete by their *position* before the id that the
//! engine reports ([`InFlight`]). After a reset those that go on are written again: the system's
//! own before all others, in order, with the ids that they have, and then the others, in order,
//! with new ones (row 2.14): what waits for a packet holds on to it, never to its id. The miniport
//! is told of each that it was given before.
//!
//! # Preemption
//!
//! The engine is asked to stop, at most once at a time, and reports what it had done by then
//! (rows 2.12, 2.13); nothing is started meanwhile. What it withdrew goes back to whom it is of,
//! and comes again with other ids; the system's own packets stay: they are written again at once,
//! before all others, in order, with the ids that they have (row 2.14). An engine that has nothing
//! to do, or reports that it has done all, is not asked.
//!
//! # Whose fault it is
//!
//! The engine works in order, so only the packet at the head can be guilty, and it is only if the
//! cause names it: until a reset takes effect the engine may have ended what was reported, and
//! begun something else. With it go the later packets of the same context. Where nobody is to
//! blame, all go on; an engine that is reset for nothing again and again, or whose guilty packet is
//! the system's own, is broken: a matter for an adapter reset.
//!
//! # Why not `drm_sched`
//!
//! Its job is pending from when it is run until its hardware fence signals: it knows no job within
//! which the engine has stopped, and that goes on later with another fence id. Nor does it know
//! that the system's own go first behind a reset, with the ids that they have, or that a reset may
//! be void.
//!
//! # When the adapter is reset
//!
//! Segments have lost what was in them, and engines forgot everything ([`Node::restart`]). Before
//! anything else a segment is made all zero ([`Node::purge`]). What was in the ring is taken out
//! ([`Node::abandon`]): the work of contexts is lost, the system's own begins anew, as what it
//! moves into a segment is still where it came from.
//!
//! # Examples
//!
//! ```
//! use skua_policy::heap::Heap;
//! use skua_policy::miniport::{Built, Miniport};
//! use skua_policy::node::{Node, NodeError, Packet};
//!
//! /// Fills the ring from a queue, and returns what has ended meanwhile.
//! fn work<H: Heap, M: Miniport, P: Packet>(
//!     node: &mut Node<H, M, P>,
//!     gpu: &M,
//!     queue: &mut Vec<P>,
//! ) -> Result<Vec<P>, NodeError<M::Error>> {
//!     while let Some(packet) = queue.pop() {
//!         let task = packet.task();
//!         if !node.fits(gpu, &task) || node.build(gpu, &task)? == Built::Busy {
//!             queue.push(packet);
//!             break;
//!         }
//!         node.start(gpu, packet)?;
//!     }
//!     // One register write for all of them.
//!     node.notify(gpu)?;
//!     let mut ended = Vec::new();
//!     node.complete(gpu, |packet| ended.push(packet))?;
//!     Ok(ended)
//! }
//! ```

use super::{
    buddy::PageRange,
    heap::{Heap, OutOfMemory},
    in_flight::InFlight,
    miniport::{
        Built, Completion, Flush, Miniport, PagingOperation, Pass, Preemption, RingSpan, Stop, Task,
    },
    paging::MultipassOffset,
    scheduling_caps::SchedulingCaps,
};
use crate::spec::{
    address::GpuVa,
    fault::Record,
    number::{ContextSlot, EngineIndex},
};

#[cfg(test)]
mod tests;

/// Resets of an engine without a packet that ends in between, and with nobody to blame, that are
/// borne: with the next one it is broken.
const MAX_BLAMELESS: u32 = 4;

/// What a node needs to know of a packet.
pub trait Packet {
    /// What the engine is to do.
    fn task(&self) -> Task<'_>;

    /// Whether its end is to interrupt, whatever else is in the ring.
    fn interrupts(&self) -> bool;

    /// Whether work waits behind it that may have no room in the ring before it ends.
    fn is_followed(&self) -> bool;

    /// Whether an engine was given what it is to do before.
    fn is_resubmitted(&self) -> bool;

    /// The context that it belongs to, all of whose packets go with a guilty one; [`None`] for the
    /// system's own.
    fn context(&self) -> Option<ContextSlot>;
}

/// Why an engine is to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The engine reported this fault, and has stopped.
    Fault(Record),
    /// The packet with this fence id works, or waits, without end.
    Endless(u64),
    /// It has done all that it had to, and does not answer the request with this number to stop.
    Unanswered(u64),
}

impl Cause {
    /// For whose end [`Miniport::reset_engine`] is void: the packet's fence id; 0 where the engine
    /// does nothing that could end.
    pub fn fence(&self) -> u64 {
        match self {
            Self::Endless(id) => *id,
            Self::Fault(_) | Self::Unanswered(_) => 0,
        }
    }

    /// Whether this is about the packet with fence id `id`, which lies in `span`.
    ///
    /// A record names the fence id of a buffer of commands; for a command of the ring itself it
    /// gives the command's offset instead.
    fn names(&self, id: u64, span: RingSpan) -> bool {
        match self {
            Self::Fault(record) if record.fence != 0 => record.fence == id,
            Self::Fault(record) => span.contains(record.command),
            Self::Endless(endless) => *endless == id,
            Self::Unanswered(_) => false,
        }
    }
}

/// Why a node is asked to stop, and who gets the guilty packets, see [`Node::blame`].
pub type Blame<'a, P> = (&'a Cause, &'a mut dyn FnMut(P, bool));

/// What [`Node::blame`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rest goes on.
    GoOn,
    /// The engine is broken.
    Broken,
}

/// The engine did what it cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeError<E> {
    /// It reported a fence id that is not in flight.
    Bogus,
    /// There is no room for a packet for which there was to be some, or there are no more ids.
    Full,
    /// The miniport does not do with memory that is idle.
    Busy,
    /// The miniport has failed with this error.
    Miniport(E),
}

/// A part of a segment that becomes zero; see [`Node::purge`].
#[derive(Clone, Copy, Debug)]
pub struct Purge {
    /// The fence id that is reported at its end.
    fence: u64,
    /// Where its commands are in the ring.
    span: RingSpan,
    /// Where the next part begins, if there is one.
    pub next: Option<MultipassOffset>,
}

/// A packet in the ring.
struct Entry<P> {
    /// What the caller has started.
    packet: P,
    /// Where it was written last; empty if the miniport refused it.
    span: RingSpan,
    /// Whether its end interrupts.
    interrupts: bool,
}

/// A node. `H` is where its memory comes from, `M` the miniport, `P` what a packet is.
pub struct Node<H: Heap, M: Miniport, P> {
    /// The engine's number.
    index: EngineIndex,
    /// What the miniport keeps of the ring.
    ring: M::Ring,
    /// Packets in the ring, oldest first, by fence id.
    in_flight: InFlight<H, Entry<P>>,
    /// The fence id that was reported last; 0 before any.
    completed: u64,
    /// Packets that were started since one whose end interrupts.
    untold: usize,
    /// Resets with nobody to blame since a packet last ended.
    blameless: u32,
    /// What names the next request to stop.
    next_preemption: u64,
    /// The number of a request to stop that the engine has not answered.
    preempting: Option<u64>,
}

impl<H: Heap, M: Miniport, P: Packet> Node<H, M, P> {
    /// Node number `index` with an empty ring that holds at most `capacity` packets.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn new(index: EngineIndex, ring: M::Ring, capacity: usize) -> Result<Self, OutOfMemory> {
        Ok(Node {
            index,
            ring,
            in_flight: InFlight::new(capacity, 1)?,
            completed: 0,
            untold: 0,
            blameless: 0,
            next_preemption: 1,
            preempting: None,
        })
    }

    /// Has the engine fetch from its ring, which is empty then. A request to stop is forgotten.
    ///
    /// # Errors
    ///
    /// [`NodeError::Miniport`].
    pub fn enable(&mut self, miniport: &M) -> Result<(), NodeError<M::Error>> {
        self.preempting = None;
        miniport
            .start_node(self.index, &mut self.ring, self.next_preemption)
            .map_err(NodeError::Miniport)
    }

    /// Whether as many packets are in the ring as may be.
    pub fn is_full(&self) -> bool {
        self.in_flight.is_full()
    }

    /// Whether the engine has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// How many packets are in the ring.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether `task` can be started now.
    pub fn fits(&self, miniport: &M, task: &Task<'_>) -> bool {
        !self.is_full() && miniport.has_room(&self.ring, task)
    }

    /// The oldest packet with its fence id: what the engine works on.
    pub fn head(&self) -> Option<(u64, &P)> {
        let (id, entry) = self.in_flight.front()?;
        Some((id, &entry.packet))
    }

    /// The packets with their fence ids, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &P)> {
        self.in_flight.iter().map(|(id, entry)| (id, &entry.packet))
    }

    /// Calls `f` with each packet, oldest first.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(&mut P)) {
        self.in_flight.for_each_mut(|_, entry| f(&mut entry.packet));
    }

    /// The fence id of the packet that is started next.
    pub fn next_id(&self) -> u64 {
        self.in_flight.next_id()
    }

    /// What the miniport keeps of the ring.
    pub fn ring(&self) -> &M::Ring {
        &self.ring
    }

    /// Builds the paging buffer of `task`, which [`Self::fits`], if it takes one. The packet of
    /// `task` is started next, unless it is [`Built::Busy`].
    ///
    /// # Errors
    ///
    /// [`NodeError::Busy`], [`NodeError::Miniport`].
    pub fn build(&mut self, miniport: &M, task: &Task<'_>) -> Result<Built, NodeError<M::Error>> {
        let Task::Paging(pass, _) = task else {
            return Ok(Built::Last);
        };
        match miniport.build_paging_buffer(self.index, &mut self.ring, pass) {
            Ok(Built::Busy) if pass.idle => Err(NodeError::Busy),
            built => built.map_err(NodeError::Miniport),
        }
    }

    /// Puts a packet that [`Self::fits`], and was built, behind the others. The engine sees it with
    /// [`Self::notify`].
    ///
    /// # Errors
    ///
    /// [`NodeError::Full`], and the packet is dropped; [`NodeError::Miniport`], and it is in the
    /// queue all the same, to be taken out with the others when the device is given up.
    pub fn start(&mut self, miniport: &M, packet: P) -> Result<(), NodeError<M::Error>> {
        let interrupts = self.interrupts(&packet);
        let completion = Completion {
            fence: self.in_flight.next_id(),
            interrupt: interrupts,
        };
        let written = miniport.submit_command(
            self.index,
            &mut self.ring,
            &packet.task(),
            completion,
            packet.is_resubmitted(),
        );
        let span = written.as_ref().map_or(RingSpan::default(), |span| *span);
        self.in_flight
            .push(Entry {
                packet,
                span,
                interrupts,
            })
            .map_err(|_| NodeError::Full)?;
        written.map(|_| ()).map_err(NodeError::Miniport)
    }

    /// Whether the end of `packet`, which is started now, is to interrupt. Where more waits than
    /// fits, half of a ring does not end untold, so that it is filled up in time; and never a whole
    /// one.
    fn interrupts(&mut self, packet: &P) -> bool {
        let capacity = self.in_flight.capacity();
        let late = match packet.is_followed() {
            true => capacity / 2,
            false => capacity,
        };
        let interrupts = packet.interrupts() || self.untold + 1 >= late;
        self.untold = if interrupts { 0 } else { self.untold + 1 };
        interrupts
    }

    /// Looks again at what was started since an end that interrupts: others were taken out.
    fn count_untold(&mut self) {
        let interrupts = self.in_flight.iter().map(|(_, entry)| entry.interrupts);
        self.untold = interrupts.fold(0, |untold, told| if told { 0 } else { untold + 1 });
    }

    /// Tells the engine of packets that were started since the last time. Whether there were any.
    ///
    /// # Errors
    ///
    /// [`NodeError::Miniport`].
    pub fn notify(&mut self, miniport: &M) -> Result<bool, NodeError<M::Error>> {
        miniport
            .ring_doorbell(self.index, &mut self.ring)
            .map_err(NodeError::Miniport)
    }

    /// Takes what the engine reports: hands the packets that it has completed to `finished`, oldest
    /// first, and frees their part of the ring.
    ///
    /// # Errors
    ///
    /// [`NodeError::Bogus`], [`NodeError::Miniport`].
    pub fn complete(
        &mut self,
        miniport: &M,
        finished: impl FnMut(P),
    ) -> Result<(), NodeError<M::Error>> {
        let reported = miniport
            .query_current_fence(self.index)
            .map_err(NodeError::Miniport)?;
        self.complete_up_to(miniport, reported, finished)
    }

    fn complete_up_to(
        &mut self,
        miniport: &M,
        reported: u64,
        mut finished: impl FnMut(P),
    ) -> Result<(), NodeError<M::Error>> {
        if reported == self.completed {
            return Ok(());
        }
        let complete = self.in_flight.complete_up_to(reported);
        let mut end = None;
        for (fence, entry) in complete.map_err(|_| NodeError::Bogus)? {
            end = Some((entry.span, fence));
            finished(entry.packet);
        }
        self.completed = reported;
        self.blameless = 0;
        match end {
            Some((span, fence)) => miniport
                .retire(self.index, &mut self.ring, span, fence)
                .map_err(NodeError::Miniport),
            None => Ok(()),
        }
    }

    /// Asks the engine to stop and to withdraw what is in its ring, all of which it was told of.
    /// Nothing is started until it has, and [`Self::withdraw`] was called. Whether it was asked:
    /// not if it has nothing to do, or reports that it has done all, or was asked before.
    ///
    /// # Errors
    ///
    /// [`NodeError::Miniport`].
    pub fn preempt(&mut self, miniport: &M) -> Result<bool, NodeError<M::Error>> {
        if self.is_empty() || self.preempting.is_some() {
            return Ok(false);
        }
        let reported = miniport
            .query_current_fence(self.index)
            .map_err(NodeError::Miniport)?;
        if self.in_flight.iter().last().map(|(last, _)| last) == Some(reported) {
            return Ok(false);
        }
        let number = self.next_preemption;
        miniport
            .preempt_command(self.index, &mut self.ring, number)
            .map_err(NodeError::Miniport)?;
        self.preempting = Some(number);
        self.next_preemption = number.wrapping_add(1);
        Ok(true)
    }

    /// The number, never used before, of a request to stop that the engine has not answered.
    pub fn asked(&self) -> Option<u64> {
        self.preempting
    }

    /// The engine's answer to [`Self::preempt`], if there is one.
    ///
    /// # Errors
    ///
    /// [`NodeError::Bogus`], [`NodeError::Miniport`].
    pub fn answer(&self, miniport: &M) -> Result<Option<Preemption>, NodeError<M::Error>> {
        let Some(asked) = self.preempting else {
            return Ok(None);
        };
        let answer = miniport.query_preemption(self.index, &self.ring);
        match answer.map_err(NodeError::Miniport)? {
            Some(answer) if answer.fence != asked => Err(NodeError::Bogus),
            answer => Ok(answer),
        }
    }

    /// The engine has stopped, with this `answer`: first as [`Self::complete`]; then, if `blame`
    /// names the packet at the head, and that had begun, takes that out, and later ones of its
    /// context, as [`Self::blame`]; and hands what was withdrawn of others than the system to
    /// `withdrawn`, each with its fence id and where it was stopped; each oldest first. What is the
    /// system's own is written again.
    ///
    /// # Errors
    ///
    /// [`NodeError::Bogus`], also if again and again what is to blame had not even begun;
    /// [`NodeError::Miniport`].
    pub fn withdraw(
        &mut self,
        miniport: &M,
        answer: Preemption,
        finished: impl FnMut(P),
        blame: Option<Blame<'_, P>>,
        mut withdrawn: impl FnMut(u64, P, Stop),
    ) -> Result<(), NodeError<M::Error>> {
        self.complete_up_to(miniport, answer.completed, finished)?;
        let head = self.in_flight.front().map(|(id, _)| id);
        let client = self
            .head()
            .is_some_and(|(_, packet)| packet.context().is_some());
        if answer.stop != Stop::Between && !client {
            // Nobody has a state to be saved.
            return Err(NodeError::Bogus);
        }
        self.preempting = None;
        // What had not begun has done nothing.
        let begun = answer.stop != Stop::Between;
        if let Some((cause, guilty)) = blame.filter(|(cause, _)| self.is_named(cause)) {
            let verdict = match begun {
                true => self.blame(cause, guilty),
                false => self.blame_nobody(),
            };
            if verdict == Verdict::Broken {
                return Err(NodeError::Bogus);
            }
        }
        miniport
            .withdraw(self.index, &mut self.ring, self.next_preemption)
            .map_err(NodeError::Miniport)?;
        self.in_flight.remove_if(
            |_, entry| entry.packet.context().is_some(),
            |id, entry| match Some(id) == head {
                true => withdrawn(id, entry.packet, answer.stop),
                false => withdrawn(id, entry.packet, Stop::Between),
            },
        );
        self.resubmit(miniport)
    }

    /// Writes all packets into the empty ring again.
    fn resubmit(&mut self, miniport: &M) -> Result<(), NodeError<M::Error>> {
        let (index, ring) = (self.index, &mut self.ring);
        let mut result = Ok(());
        self.in_flight.for_each_mut(|fence, entry| {
            if result.is_ok() {
                let interrupt = entry.interrupts;
                let completion = Completion { fence, interrupt };
                result = miniport
                    .submit_command(index, ring, &entry.packet.task(), completion, true)
                    .map(|span| entry.span = span);
            }
        });
        self.count_untold();
        result.map_err(NodeError::Miniport)
    }

    /// Whether `cause` names the packet at the head.
    pub fn is_named(&self, cause: &Cause) -> bool {
        let head = self.in_flight.front();
        head.is_some_and(|(id, entry)| cause.names(id, entry.span))
    }

    /// The engine was reset because of `cause`: takes the guilty packet out, and later ones of its
    /// context, oldest first. `guilty` sees each, and whether it is the one that did it.
    pub fn blame(&mut self, cause: &Cause, mut guilty: impl FnMut(P, bool)) -> Verdict {
        if !self.is_named(cause) {
            return self.blame_nobody();
        }
        let Some((head, context)) = self.head().map(|(id, packet)| (id, packet.context())) else {
            return Verdict::GoOn;
        };
        if context.is_none() {
            return Verdict::Broken;
        }
        self.in_flight.remove_if(
            |_, entry| entry.packet.context() == context,
            |id, entry| guilty(entry.packet, id == head),
        );
        Verdict::GoOn
    }

    fn blame_nobody(&mut self) -> Verdict {
        self.blameless = self.blameless.saturating_add(1);
        match self.blameless > MAX_BLAMELESS {
            true => Verdict::Broken,
            false => Verdict::GoOn,
        }
    }

    /// Starts the engine, which was reset, and writes all packets into the empty ring again: the
    /// system's own first, with the fence ids that they have, and the others with new ones. Whether
    /// there were any.
    ///
    /// # Errors
    ///
    /// [`NodeError::Full`] if the ids are used up, [`NodeError::Miniport`].
    pub fn replay(&mut self, miniport: &M) -> Result<bool, NodeError<M::Error>> {
        self.enable(miniport)?;
        self.in_flight
            .renumber(|entry| entry.packet.context().is_none())
            .map_err(|_| NodeError::Full)?;
        self.resubmit(miniport)?;
        self.notify(miniport)
    }

    /// The adapter was reset: starts the engine, which reports no fence id yet, with an empty ring.
    ///
    /// # Errors
    ///
    /// [`NodeError::Miniport`].
    pub fn restart(&mut self, miniport: &M) -> Result<(), NodeError<M::Error>> {
        self.completed = 0;
        self.blameless = 0;
        self.enable(miniport)?;
        // What was in the ring begins anew, with other buffers.
        let (ring, all) = (&mut self.ring, RingSpan::default());
        miniport
            .retire(self.index, ring, all, u64::MAX)
            .map_err(NodeError::Miniport)
    }

    /// Has the engine, whose ring is empty, write zeroes to what of `blocks` of a segment fits into
    /// one paging buffer, from `from` on; see [`Self::is_purged`].
    ///
    /// # Errors
    ///
    /// [`NodeError::Full`] if the ids are used up, [`NodeError::Busy`], [`NodeError::Miniport`].
    pub fn purge(
        &mut self,
        miniport: &M,
        segment: u32,
        blocks: &[PageRange],
        from: MultipassOffset,
    ) -> Result<Purge, NodeError<M::Error>> {
        let fence = self.in_flight.skip_id().map_err(|_| NodeError::Full)?;
        let pass = Pass {
            operation: PagingOperation::Fill { segment, blocks },
            from,
            idle: true,
        };
        let task = Task::Paging(pass, Flush::Nothing);
        let next = match self.build(miniport, &task)? {
            Built::Full(next) => Some(next),
            Built::Last | Built::Busy => None,
        };
        let completion = Completion {
            fence,
            interrupt: false,
        };
        let span = miniport
            .submit_command(self.index, &mut self.ring, &task, completion, false)
            .map_err(NodeError::Miniport)?;
        self.notify(miniport)?;
        Ok(Purge { fence, span, next })
    }

    /// Whether the engine has done this, the only thing in its ring.
    ///
    /// # Errors
    ///
    /// [`NodeError::Miniport`].
    pub fn is_purged(&mut self, miniport: &M, purge: &Purge) -> Result<bool, NodeError<M::Error>> {
        let reported = miniport.query_current_fence(self.index);
        if reported.map_err(NodeError::Miniport)? != purge.fence {
            return Ok(false);
        }
        self.completed = purge.fence;
        miniport
            .retire(self.index, &mut self.ring, purge.span, purge.fence)
            .map_err(NodeError::Miniport)?;
        Ok(true)
    }

    /// Takes all packets out, oldest first: the adapter was reset, or is given up.
    /// Each with its fence id.
    pub fn abandon(&mut self, mut abandoned: impl FnMut(u64, P)) {
        self.in_flight
            .remove_if(|_, _| true, |id, entry| abandoned(id, entry.packet));
        self.untold = 0;
    }
}

/// Buffers of commands of a context, each by its address and size, that `node` was not given, are
/// cancelled: tells the miniport, if by its `caps` it is to be told (row 2.23).
pub fn cancel<M: Miniport>(
    miniport: &M,
    caps: SchedulingCaps,
    node: EngineIndex,
    context: ContextSlot,
    buffers: impl Iterator<Item = (GpuVa, u32)>,
) {
    if caps.is_cancel_command_aware() {
        buffers.for_each(|(va, bytes)| miniport.cancel_command(node, context, va, bytes));
    }
}
