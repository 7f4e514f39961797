// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The thread of an engine: a loop around its [`Core`], or one of those that one thread steps.
//!
//! Each round it does what the mailbox says, lends the core memory for a step, and shows outside
//! what came of it. Only inside a step does it hold a [`crate::bus::BusGuard`] and a
//! [`crate::vram::VramGuard`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use skua_spec::number::Asid;
use skua_spec::preemption::Record;
use skua_spec::status::{self, Counter, EngineState};

use crate::counters::Tally;
use crate::device::{Asked, Hub};
use crate::engine::core::{Core, Outcome, Shown};
use crate::engine::pace::{Brake, Pace, STEP};
use crate::engine::watch::Watch;
use crate::engine::{Engine, Moderation};
use crate::memory::Memory;
use crate::options::{Options, Stepping};
use crate::status::Page;

/// Ticks after which a running engine writes its time to the status page. With a step it is far
/// from the 65,536 that the manual promises.
const PUBLISH_TICKS: u64 = 32768;

/// First and longest pause between two looks at WAIT's value. A SIGNAL of another engine ends a
/// pause; the CPU's writes are seen at its end.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// What an engine goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// More of its work.
    Work,
    /// What is put into its mailbox or its ring ([`Worker::has_orders`]).
    Orders,
    /// Another look at WAIT's value.
    Look,
    /// Another look whether the other engines have done what it has asked of them.
    Others,
}

/// What an engine's thread owns.
pub(crate) struct Worker {
    /// What all engines share.
    hub: Arc<Hub>,
    /// The side that the registers see.
    engine: Arc<Engine>,
    /// Stepped by this thread alone.
    core: Core,
    /// How long its steps are.
    pace: Pace,
    /// What the core has counted and the device has not.
    tally: Tally,
    /// What the status page was last given.
    published: Shown,
    /// Number of the last request that was honoured.
    invalidate_ack: u32,
    /// Engine resets done, modulo 2^32.
    reset_ack: u32,
    /// The record of the last preemption.
    preempted: Record,
    /// How long interrupts of packets' ends may wait.
    moderation: Moderation,
    /// Ends whose interrupt waits, and the engine's ticks at the first of them.
    ends: Option<(u32, u64)>,
    /// What the INVALIDATE that is under way has asked of the other engines.
    asked: Option<Asked>,
    /// Once the device makes a record.
    watch: Option<Box<Watch>>,
    /// Of the engine's own time what was no work; `None` where nobody keeps the device clock.
    idle: Option<u64>,
}

impl Worker {
    pub(crate) fn new(hub: Arc<Hub>, engine: Arc<Engine>, options: &Options) -> Self {
        let preemption = options.preemption(engine.index);
        let keeps_time = options.stepping != Stepping::Threads;
        let core = Core::new(engine.index, engine.kind, preemption);
        Self {
            hub,
            pace: Pace::new(engine.index),
            engine,
            tally: Tally::default(),
            published: core.shown(),
            core,
            invalidate_ack: 0,
            reset_ack: 0,
            preempted: Record::default(),
            moderation: Moderation::default(),
            ends: None,
            asked: None,
            watch: None,
            idle: keeps_time.then_some(0),
        }
    }

    /// The thread: until the device ends. With a `brake` it is no faster than that.
    pub(crate) fn run(mut self, mut brake: Option<Brake>) {
        let alarm = Arc::clone(&self.engine.alarm);
        let mut pause = PAUSE.0;
        while self.read_mailbox() {
            let before = self.core.shown().ticks;
            match self.work(STEP) {
                Next::Work => {
                    let done = self.core.shown().ticks.wrapping_sub(before);
                    if let Some(brake) = &mut brake {
                        alarm.nap(brake.count(done, Instant::now()));
                    }
                }
                Next::Orders => {
                    while !self.has_orders() {
                        alarm.wait();
                    }
                }
                Next::Look => {
                    // Whoever signals from here on finds the state and pokes. A signal between the
                    // look and this is seen after the first pause.
                    alarm.nap(pause);
                    pause = (pause * 2).min(PAUSE.1);
                    continue;
                }
                Next::Others => {
                    // They wake this one up. Meanwhile it does what they ask of it.
                    alarm.nap(PAUSE.1);
                    continue;
                }
            }
            pause = PAUSE.0;
        }
    }

    /// Whether there is something in the mailbox, or in the ring of an engine that is idle.
    pub(crate) fn has_orders(&self) -> bool {
        let shown = self.core.shown();
        let idle = shown.state == EngineState::Idle;
        self.engine.has_attention() || idle && self.engine.tail() != shown.head
    }

    /// The engine's own time: ticks, and idle time.
    pub(crate) fn time(&self) -> Option<u64> {
        let ticks = self.core.shown().ticks;
        self.idle.map(|idle| idle.wrapping_add(ticks))
    }

    /// The engine had nothing to do before `time`.
    pub(crate) fn idle_until(&mut self, time: u64) {
        if let (Some(own), Some(idle)) = (self.time(), &mut self.idle) {
            *idle = idle.wrapping_add(time.saturating_sub(own));
        }
    }

    /// Looks whether WAIT's value is there since `time`; until it is, the engine's own time stands.
    pub(crate) fn look(&mut self, time: u64) -> Next {
        let idle = self.idle;
        self.idle_until(time);
        let next = self.work(1);
        if next == Next::Look {
            self.idle = idle;
        }
        next
    }

    /// Works for a step of up to `budget` ticks, and shows what came of it.
    pub(crate) fn work(&mut self, budget: u64) -> Next {
        let budget = budget.min(self.pace.next(&self.hub.pace));
        self.core.ring_doorbell(self.engine.tail());
        self.watch();
        let outcome = self.with_memory(|core, memory| core.step(memory, budget));
        let time = self.time();
        if let Some(watch) = &mut self.watch {
            watch.end(time, &self.core, &self.tally, &outcome);
        }
        self.settle(&outcome);
        let next = self.next(outcome);
        self.interrupt(next == Next::Work);
        next
    }

    /// What the engine goes on with behind a step.
    fn next(&mut self, outcome: Outcome) -> Next {
        match outcome {
            Outcome::Idle | Outcome::Faulted(_) => Next::Orders,
            Outcome::Waiting => Next::Look,
            Outcome::Invalidate(asid) if !self.invalidate_others(asid) => Next::Others,
            Outcome::Invalidate(_) => {
                self.core.invalidated();
                Next::Work
            }
            Outcome::Busy
            | Outcome::Signalled
            | Outcome::Completed { .. }
            | Outcome::Preempted { .. } => Next::Work,
        }
    }

    /// Raises the interrupt of the ends that wait for one, unless they may wait on: not if the
    /// engine does not `work`.
    fn interrupt(&mut self, work: bool) {
        let Some((ends, since)) = self.ends else {
            return;
        };
        let Moderation { ticks, ends: most } = self.moderation;
        let waited = self.core.shown().ticks.wrapping_sub(since);
        if work && waited < ticks && (most == 0 || ends < most) {
            return;
        }
        self.ends = None;
        let vector = self.engine.index.get();
        self.hub.raise(vector, Some(Counter::EngineInterrupt));
    }

    /// A step begins: it is watched from the first one on that finds a record being made.
    fn watch(&mut self) {
        if self.watch.is_none() {
            let (events, index) = (self.hub.events.get(), self.engine.index);
            self.watch = events.map(|events| Box::new(Watch::new(Arc::clone(events), index)));
        }
        if let Some(watch) = &mut self.watch {
            watch.begin(&self.tally);
        }
    }

    /// Has the other engines drop translations, if that was not asked yet. Whether all have.
    fn invalidate_others(&mut self, asid: Option<Asid>) -> bool {
        let (hub, index) = (&self.hub, self.engine.index);
        let asked = self
            .asked
            .get_or_insert_with(|| hub.invalidate_others(index, asid));
        let done = asked.is_done();
        if done {
            self.asked = None;
        }
        done
    }

    /// Lends the core memory, for a step at most.
    fn with_memory<T>(&mut self, f: impl FnOnce(&mut Core, &Memory<'_>) -> T) -> T {
        let gart = self.hub.gart.table();
        let bus = self.hub.bus.enter();
        let vram = self.hub.vram.enter();
        let memory = Memory::new(&vram, *gart, &bus, &self.tally);
        f(&mut self.core, &memory)
    }

    /// Does what the mailbox says, if anything is in it. `false` ends the thread.
    pub(crate) fn read_mailbox(&mut self) -> bool {
        if !self.engine.has_attention() {
            return true;
        }
        let mail = self.engine.take(self.core.shown().completed_fence);
        if mail.shutdown {
            return false;
        }
        self.reset_ack = self.reset_ack.wrapping_add(mail.resets);
        if mail.stops() {
            self.asked = None;
            self.hub.lies.note_ring(self.engine.index, None);
        }
        let (time, ticks) = (self.time(), self.core.shown().ticks);
        if let (true, Some(watch)) = (mail.stops(), &mut self.watch) {
            watch.reset(time, ticks, mail.adapter_reset);
        }
        if mail.adapter_reset {
            self.core.reset_adapter();
            // The ticks start from zero; the engine's own time goes on.
            self.idle = time;
            self.engine.dropped(mail.asked);
            (self.invalidate_ack, self.preempted) = (0, Record::default());
            self.ends = None;
            // The status page is off: nothing is written.
            self.published = self.core.shown();
            self.show();
            // The last engine to get here ends the reset.
            self.hub.engine_was_reset();
            return true;
        }
        if mail.reset_below != 0 {
            self.with_memory(Core::reset);
            self.interrupt(false);
        }
        for asid in &mail.invalidations {
            self.core.invalidate(*asid);
        }
        if self.engine.dropped(mail.asked) {
            self.hub.wake_engines();
        }
        if let Some(ack) = mail.invalidate_count {
            self.invalidate_ack = ack;
            self.write_status(|page, block| {
                page.write_u32(block + status::engine::INVALIDATE_ACK, ack);
            });
        }
        if mail.resets != 0 {
            let engine = Arc::clone(&self.engine);
            engine.was_reset(|| self.publish_block());
        } else if mail.publish {
            self.publish_block();
        }
        if let Some((ring, moderation)) = mail.enable {
            self.moderation = moderation;
            let outcome = self.with_memory(|core, memory| core.enable(memory, ring));
            if outcome == Outcome::Busy {
                self.hub.lies.note_ring(self.engine.index, Some(ring));
            }
            self.settle(&outcome);
        }
        if let Some(fence) = mail.preempt {
            if let Some(watch) = &mut self.watch {
                watch.preempt(time, &self.core, fence);
            }
            self.core.preempt(fence);
        }
        true
    }

    /// Shows what came of a step.
    fn settle(&mut self, outcome: &Outcome) {
        if let Outcome::Faulted(record) = *outcome {
            self.publish_block();
            self.hub.report_fault(record);
            return;
        }
        if let Outcome::Completed { .. } | Outcome::Preempted { .. } = outcome {
            self.hub.lies.wait_at_end();
        }
        self.publish(matches!(outcome, Outcome::Preempted { .. }));
        match *outcome {
            Outcome::Preempted { fence, cause } => {
                self.interrupt(false);
                self.preempted = Record {
                    fence,
                    completed: self.published.completed_fence,
                    cause,
                    number: self.preempted.number.wrapping_add(1),
                };
                self.engine.preempted(|| {
                    self.write_status(|page, block| self.write_record(&page, block));
                });
                self.hub.raise_preempted(self.engine.index);
            }
            Outcome::Completed { interrupt: true } => {
                let (ends, since) = self.ends.unwrap_or((0, self.published.ticks));
                self.ends = Some((ends + 1, since));
            }
            Outcome::Signalled => self.hub.poke_engines(),
            _ => {}
        }
    }

    /// Shows what has changed in the registers, the counters and the status page; time alone only
    /// now and then, or `now`.
    fn publish(&mut self, now: bool) {
        let (old, new) = (self.published, self.core.shown());
        let ticks = new.ticks.wrapping_sub(old.ticks);
        if ticks < PUBLISH_TICKS && new.is_but_for_time(&old) && !now {
            return;
        }
        self.published = new;
        self.show();
        // Who sees a fence sees what it cost.
        self.tally.flush(&self.hub.counters);
        self.write_status(|page, block| {
            if new.ticks != old.ticks {
                page.write_u64(block + status::engine::TICKS, new.ticks);
            }
            if new.context != old.context {
                page.write_u64(status::context_of(self.engine.index), new.context);
            }
            if new.current_fence != old.current_fence {
                page.write_u64(block + status::engine::CURRENT_FENCE, new.current_fence);
            }
            if new.head != old.head {
                page.write_u32(block + status::engine::HEAD, new.head);
            }
            if new.completed_fence != old.completed_fence {
                page.write_u64(block + status::engine::COMPLETED_FENCE, new.completed_fence);
            }
            if new.state != old.state {
                page.write_u32(block + status::engine::STATE, new.state as u32);
            }
        });
    }

    /// Writes the whole block; the acknowledgements last.
    fn publish_block(&mut self) {
        let new = self.core.shown();
        self.published = new;
        self.show();
        self.tally.flush(&self.hub.counters);
        let (invalidate_ack, reset_ack) = (self.invalidate_ack, self.reset_ack);
        self.write_status(|page, block| {
            page.write_u64(block + status::engine::TICKS, new.ticks);
            page.write_u32(block + status::engine::HEAD, new.head);
            page.write_u64(status::context_of(self.engine.index), new.context);
            page.write_u64(block + status::engine::CURRENT_FENCE, new.current_fence);
            page.write_u64(block + status::engine::COMPLETED_FENCE, new.completed_fence);
            page.write_u32(block + status::engine::STATE, new.state as u32);
            self.write_record(&page, block);
            page.write_u32(block + status::engine::INVALIDATE_ACK, invalidate_ack);
            page.write_u32(block + status::engine::RESET_ACK, reset_ack);
        });
    }

    /// Writes what there is to say of the last preemption; its number last.
    fn write_record(&self, page: &Page<'_>, block: u64) {
        let record = self.preempted;
        page.write_u64(block + status::engine::PREEMPT_FENCE, record.fence);
        page.write_u64(block + status::engine::PREEMPT_COMPLETED, record.completed);
        page.write_u32(block + status::engine::PREEMPT_CAUSE, record.cause as u32);
        page.write_u32(block + status::engine::PREEMPT_SEQ, record.number);
    }

    /// Shows state and head in the registers.
    fn show(&self) {
        self.engine.show(self.published.state, self.published.head);
    }

    /// Runs `f` on the status page and the offset of this engine's block. Not inside a step.
    fn write_status(&self, f: impl FnOnce(Page<'_>, u64)) {
        let block = status::of_engine(self.engine.index, 0);
        self.hub
            .status
            .with(&self.hub.bus, &self.hub.counters, |page| f(page, block));
    }
}
