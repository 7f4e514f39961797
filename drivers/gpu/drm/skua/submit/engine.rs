// SPDX-License-Identifier: GPL-2.0

//! An engine: its ring, what is in it, and whose turn it is.
//!
//! # Flow
//!
//! ```text
//!  submit ─▶ context's queue ─▶ ready list ─▶ ring + in flight ─▶ finished
//!            (in order)  ▲       (one for each   (at most             (by the fence id that the
//!                        │        level)          IN_FLIGHT packets)   engine wrote to memory)
//!                        └──────── preempted ─────────┘
//! ```
//!
//! A context stands in the ready list of its level while its first submission can start. The
//! driver's own contexts, for paging, go before all others.
//!
//! # Preemption
//!
//! Where the policy says that who runs has to make room, the engine is asked to stop: by whoever
//! queues more important work, or by an alarm when a turn is over. What it had not done goes back
//! to its context's queue when the engine has answered; until then nothing is written into the
//! ring.
//!
//! Two parties work here. A thread that submits fills the ring ([`Engine::submit`]): under the spin
//! lock of the [run queue](run_queue), so it cannot be stopped on the way, and without signalling
//! anything. Interrupt threads and workers take out what has ended, signal it, and fill the ring
//! again ([`Engine::process`]). No client's thread ever holds what others' fences need.
//!
//! Decisions are [`crate::policy`]'s: which fence id is which packet, what has ended, whose fault a
//! reset is ([`Node`](node::Node)); whose turn it is, and who is preempted
//! ([`Scheduler`](crate::policy::scheduler::Scheduler)).

use crate::{
    ext::{
        fence::Signalling,
        trace, //
    },
    gpu::SkuaDevice,
    policy::{
        miniport::Stop,
        node::{
            self,
            Blame,
            NodeError, //
        },
        paging::MultipassOffset,
        scheduler::{
            InProcess,
            Level,
            Limits,
            LEVELS, //
        },
        scheduling_caps::SchedulingCaps,
        watchdog::Spent, //
    },
    spec::{
        command::EngineKind,
        number::EngineIndex,
        status::{
            self,
            EngineState, //
        }, //
    },
    submit::{
        busy::{
            Usage,
            Used, //
        },
        context::{
            pending::{
                Due,
                Withdrawn, //
            },
            Context,
            Status, //
        },
        coredump::Failure,
        engine::run_queue::{
            Position,
            RunQueue, //
        },
        packet::{
            self,
            Finished,
            Packet,
            Taken, //
        },
        recovery::{
            condemn,
            end_failed,
            Recovery, //
        },
        submission::{
            Buffer,
            Submission, //
        }, //
    }, //
};
use kernel::{
    list::{
        List,
        ListArc, //
    },
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        ClockSource,
        Monotonic, //
    }, //
};

pub(super) mod run_queue;

/// Whether the engine takes work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It works: the ring is filled and emptied.
    Running,
    /// Something is done about it (it is asked to stop, or reset), or the device sleeps; work
    /// waits.
    Recovering,
    /// The device is lost; work is refused.
    Lost,
}

impl From<NodeError<Error>> for Error {
    fn from(error: NodeError<Error>) -> Self {
        match error {
            NodeError::Bogus | NodeError::Full | NodeError::Busy => EIO,
            NodeError::Miniport(error) => error,
        }
    }
}

/// One of the device's engines, as long as the device's data live.
#[pin_data]
pub(crate) struct Engine {
    /// Its number in registers, status page and uAPI.
    index: EngineIndex,
    /// Whether it computes or copies.
    kind: EngineKind,
    /// What its miniport wants to be told.
    caps: SchedulingCaps,
    /// Whether it is asked to stop for others (rows 2.03, 2.24).
    preempts: bool,
    /// Fault records with numbers before this one (modulo 2^32) are from before the last reset.
    pub(crate) stale_faults: Atomic<u32>,
    /// Engine time in ticks when the adapter was last reset.
    old_ticks: Atomic<u64>,
    /// Held from taking packets out of the ring until their fences are signalled, so that fences
    /// signal in order. Interrupt threads, workers and recovery take it; ioctls do not.
    #[pin]
    pub(crate) turn: Mutex<Taken>,
    /// The ring, and who waits for room in it.
    #[pin]
    pub(crate) state: SpinLock<RunQueue>,
}

/// Milliseconds of the clock that packets' time at the head is measured by.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Monotonic::ktime_get() / 1_000_000).unwrap_or(0)
}

impl Engine {
    /// Makes an engine that is not enabled. `ENOMEM`.
    ///
    /// `preempts`: whether it is asked to stop for others; `stuck_ms`: milliseconds that work may
    /// wait for a value.
    pub(crate) fn new(
        index: EngineIndex,
        kind: EngineKind,
        turns: Limits,
        caps: SchedulingCaps,
        preempts: bool,
        stuck_ms: u32,
    ) -> Result<Pin<KBox<Self>>> {
        let state = RunQueue::new(index, turns, stuck_ms)?;
        let taken = Taken::new()?;
        KBox::try_pin_init(
            try_pin_init!(Self {
                index,
                kind,
                caps,
                preempts,
                stale_faults: Atomic::new(0),
                old_ticks: Atomic::new(0),
                turn <- new_mutex!(taken),
                state <- new_spinlock!(state),
            }),
            GFP_KERNEL,
        )
    }

    /// What is being done about the engine by itself; none while it works.
    pub(crate) fn recovery(&self) -> Option<Recovery> {
        self.state.lock().recovery
    }

    /// Whether it is asked to stop for others.
    pub(crate) fn preempts(&self) -> bool {
        self.preempts
    }

    /// Whether it computes or copies.
    pub(crate) fn kind(&self) -> EngineKind {
        self.kind
    }

    /// The engine's name in fdinfo, traces and fences.
    pub(crate) fn name(&self) -> &'static CStr {
        match self.kind {
            EngineKind::Compute => c"compute",
            EngineKind::Copy => c"copy",
        }
    }

    /// Has it fetch, from an empty ring.
    pub(crate) fn enable(&self, dev: &SkuaDevice) -> Result {
        Ok(self.state.lock().node.enable(&dev.hw)?)
    }

    /// The state that the device last reported of the engine.
    pub(crate) fn reported_state(&self, dev: &SkuaDevice) -> Option<EngineState> {
        let shared = dev.hw.shared().ok()?;
        let state = shared.engine32(self.index, status::engine::STATE).ok()?;
        EngineState::from_u32(state)
    }

    /// Engine time since the device was started, in ticks; 0 when the device is unbound.
    pub(crate) fn ticks(&self, dev: &SkuaDevice) -> u64 {
        // First: if the adapter is reset meanwhile, it is too little, and never too much.
        let old = self.old_ticks.load(Acquire);
        let shared = dev.hw.shared();
        let ticks = shared.and_then(|shared| shared.engine64(self.index, status::engine::TICKS));
        ticks.map_or(0, |ticks| old.wrapping_add(ticks))
    }

    /// The device, which was reset, counts from zero: [`Self::ticks`] goes on from `ticks`.
    pub(crate) fn set_old_ticks(&self, ticks: u64) {
        self.old_ticks.store(ticks, Release);
    }

    /// What the client of `usage`, to which `contexts` belong, used of it so far.
    pub(crate) fn used<'a>(
        &self,
        usage: &Arc<Usage>,
        contexts: impl Iterator<Item = &'a Arc<Context>>,
    ) -> Used {
        let state = self.state.lock();
        let mine = contexts.filter(|context| context.engine() == self.index);
        mine.for_each(|context| context.settle());
        // Also those that were destroyed and still run.
        let running = state.node.iter();
        running.for_each(|(_, packet)| packet.submission.context().settle());
        state.clock.read(usage)
    }

    /// Queues a published submission of `context` and starts what can be started. What is for an
    /// idle engine alone comes back if this is none.
    ///
    /// For clients' threads: takes spin locks only, and signals nothing.
    pub(crate) fn submit(
        &self,
        dev: &SkuaDevice,
        context: &Arc<Context>,
        submission: ListArc<Submission>,
    ) -> Option<ListArc<Submission>> {
        self.change(dev, |state, now| {
            if submission.is_background() && !state.is_idle() {
                return Some(submission);
            }
            let due = context.push(submission);
            state.attend(context, due, now);
            None
        })
    }

    /// Whether it has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    /// Changes what can be started, at the engine time that `change` is told, and starts it.
    fn change<R>(&self, dev: &SkuaDevice, change: impl FnOnce(&mut RunQueue, u64) -> R) -> R {
        let generation = dev.hw.generation();
        let (changed, filled) = {
            let now = self.ticks(dev);
            let mut state = self.state.lock();
            let changed = change(&mut state, now);
            (changed, self.fill(dev, &mut state, now))
        };
        if filled.is_err() {
            dev.reset_later(generation);
        }
        changed
    }

    /// Changes how important the work of `context` is.
    ///
    /// For clients' threads, as [`Self::submit`].
    pub(crate) fn set_level(&self, dev: &SkuaDevice, context: &Arc<Context>, level: Level) {
        self.change(dev, |state, now| {
            let old = context.level();
            if level == old {
                return;
            }
            for level in [old, level] {
                state.look_for_others(level, now);
            }
            state.set_level(context, level, now);
            let listed = state.take(context, old).map(ListArc::into_arc);
            if listed.is_some() {
                state.put_back(context, Due::Turn, Position::Last);
            }
        });
    }

    /// Changes how important the work of `context` is to its client, among that of the same level.
    ///
    /// For clients' threads, as [`Self::submit`].
    pub(crate) fn set_in_process(&self, dev: &SkuaDevice, context: &Context, priority: InProcess) {
        self.change(dev, |_, _| context.set_in_process(priority));
    }

    /// Looks at `context` again: a gate of it has opened, it was closed, or the device is lost.
    /// Process context, no locks held; signals fences.
    pub(crate) fn look_at(&self, dev: &SkuaDevice, context: &Arc<Context>) {
        let _signalling = Signalling::begin();
        self.drain(dev, context);
        context.prepare();
        {
            let now = self.ticks(dev);
            let mut state = self.state.lock();
            // More may be to be drained since, whose gate has opened without telling: then it comes
            // back.
            state.attend(context, context.due(), now);
        }
        self.process(dev);
    }

    /// Cancels what is to be cancelled of the queue of `context`, in order, unless something of the
    /// context is in the ring: when that is over, it leads here again.
    pub(crate) fn drain(&self, dev: &SkuaDevice, context: &Context) {
        loop {
            let turn = self.turn.lock();
            let lost = self.state.lock().mode == Mode::Lost;
            let error = if lost { ENODEV } else { ECANCELED };
            let Some((submission, end)) = context.pop_cancelled(lost, error) else {
                return;
            };
            self.cancel(dev, context, submission.never_given());
            submission.finish(dev, self.index, Err(error), end);
            drop(turn);
        }
    }

    /// Buffers of `context` that the engine was not given are cancelled: tells the miniport (row
    /// 2.23).
    pub(crate) fn cancel<'a>(
        &self,
        dev: &SkuaDevice,
        context: &Context,
        buffers: impl Iterator<Item = &'a Buffer>,
    ) {
        if let Some(slot) = context.slot() {
            let buffers = buffers.map(Buffer::range);
            node::cancel(&dev.hw, self.caps, self.index, slot, buffers);
        }
    }

    /// Takes what is complete, starts what can be started, signals what is over, and cuts what was
    /// found waiting once more for a value that has not come for too long. Process context, no
    /// locks held.
    pub(crate) fn process(&self, dev: &SkuaDevice) {
        let _signalling = Signalling::begin();
        let generation = dev.hw.generation();
        let mut turn = self.turn.lock();
        let Taken {
            finished,
            removed,
            withdrawn,
        } = &mut *turn;
        let mut failed = None;
        let outcome = {
            let mut state = self.state.lock();
            let mut collected = Ok(());
            if state.mode == Mode::Running {
                // First: what has ended by then is not what the engine stopped in.
                let answer = state.node.answer(&dev.hw).ok().flatten();
                collected = self.complete(dev, &mut state, finished);
                let waits = answer.is_some_and(|answer| answer.stop == Stop::Waiting);
                let overdue = state.overdue_wait();
                let overdue = overdue.filter(|_| waits && collected.is_ok());
                if let Some(cause) = &overdue {
                    // The engine stands, and nobody else has its turn.
                    drop(state);
                    let failure = Failure::Work(self.index, cause);
                    dev.herald.tell_of_failure(dev, &failure);
                    state = self.state.lock();
                    if !dev.recovers {
                        collected = Err(ETIME);
                    }
                }
                let guilty: &mut dyn FnMut(Packet, bool) = &mut |packet, is_it| {
                    removed.push(packet, Err(if is_it { ETIME } else { ECANCELED }));
                };
                let blame = overdue.as_ref().map(|cause| (cause, guilty));
                collected = collected.and_then(|()| {
                    let taken = self.take_back(dev, &mut state, finished, withdrawn, blame);
                    taken.map(drop)
                });
                failed = condemn(dev, self, &mut state, removed, Status::TimedOut);
                finished.append(removed);
            }
            collected.and_then(|()| self.fill(dev, &mut state, self.ticks(dev)))
        };
        finished.finish(dev, self.index);
        drop(turn);
        end_failed(dev, failed, Status::TimedOut);
        if outcome.is_err() {
            // What the device wrote cannot be: it is to be reset; or it is unbound, and is lost.
            dev.reset_later(generation);
        }
    }

    /// Takes what the engine reports: moves packets that it has completed to `finished`, and frees
    /// their part of the ring.
    ///
    /// `EIO` if the device reports what cannot be; `ENODEV` if it is unbound.
    pub(crate) fn complete(
        &self,
        dev: &SkuaDevice,
        state: &mut RunQueue,
        finished: &mut Finished,
    ) -> Result {
        state.look_for_rivals(self.ticks(dev));
        let ended = state
            .node
            .complete(&dev.hw, |packet| finished.push(packet, Ok(())));
        let now = self.ticks(dev);
        for (packet, _) in finished.iter() {
            state.retire(dev, packet, now);
        }
        Ok(ended?)
    }

    /// Takes the engine's answer to a request to stop, if there is one: what it had completed goes
    /// to `finished`, the rest back to its contexts. Whether there was one. Under the engine's
    /// `turn`. Errors as of [`Self::complete`].
    pub(crate) fn take_back(
        &self,
        dev: &SkuaDevice,
        state: &mut RunQueue,
        finished: &mut Finished,
        withdrawn: &mut KVec<(u64, Packet, Stop)>,
        blame: Option<Blame<'_, Packet>>,
    ) -> Result<bool> {
        let Some(answer) = state.node.answer(&dev.hw)? else {
            return Ok(false);
        };
        state.look_for_rivals(self.ticks(dev));
        let before = finished.len();
        let result = state.node.withdraw(
            &dev.hw,
            answer,
            |packet| finished.push(packet, Ok(())),
            blame,
            |id, packet, stop| packet::push(withdrawn, (id, packet, stop)),
        );
        let (now, now_ms) = (self.ticks(dev), now_ms());
        for (packet, _) in finished.iter().skip(before) {
            state.retire(dev, packet, now);
        }
        // Only the first one can have begun, or have been at the head.
        let (mut used, mut waiting) = (None, None);
        if let Some((id, packet, stop)) = withdrawn.first() {
            let head = state.head.filter(|head| head.id == *id);
            if *stop != Stop::Between || head.is_some() {
                used = Some(Spent {
                    ms: head.map_or(0, |head| now_ms.saturating_sub(head.since.ms)),
                    ticks: state.charge(packet, now),
                    waited_ms: 0,
                });
            }
            if *stop == Stop::Waiting {
                // All its packets wait for this one.
                waiting = Some(packet.submission.context().clone());
            }
        }
        while let Some((_, packet, stop)) = withdrawn.pop() {
            let context = packet.submission.context().clone();
            let id = context.id();
            let used = used.filter(|_| withdrawn.is_empty());
            packet.submission.with_fence(|fence| {
                trace::preempted(dev, self.index.get(), id, fence, stop as u32)
            });
            let how = Withdrawn { stop, used, now_ms };
            let due = context.withdraw(packet, how, state.scheduler.limits());
            match &waiting {
                Some(waiting) if Arc::ptr_eq(waiting, &context) => state.park(&context, due, now),
                _ => state.put_back(&context, due, Position::First),
            }
            dev.reapers.contexts.bury(context);
        }
        self.note_rewritten(dev, state);
        if let Some(context) = waiting {
            dev.reapers.contexts.bury(context);
        }
        // It has left all.
        state.hold(dev, None);
        state.look_at_head(now);
        result.map(|()| true).map_err(Error::from)
    }

    /// Traces the packets in the ring, all of which were written into it again, and counts those
    /// that should not have been.
    pub(crate) fn note_rewritten(&self, dev: &SkuaDevice, state: &RunQueue) {
        for (id, packet) in state.node.iter() {
            let context = packet.submission.context();
            if packet.is_buffer() {
                context.expect_areas();
            }
            packet.submission.with_fence(|fence| {
                trace::packet(dev, self.index.get(), context.id(), fence, id, true);
            });
        }
    }

    /// Whether it holds `context`, or has buffers of it in the ring: the area that it saves that to
    /// is to stay.
    pub(crate) fn needs_area(&self, context: &Context) -> bool {
        let state = self.state.lock();
        let of_it = |packet: &Packet| core::ptr::eq(&**packet.submission.context(), context);
        let mut packets = state.node.iter().map(|(_, packet)| packet);
        context.is_held() || packets.any(|packet| packet.is_buffer() && of_it(packet))
    }

    /// Whether the engine does nothing but wait for a value.
    pub(crate) fn waits(&self, dev: &SkuaDevice) -> bool {
        self.reported_state(dev) == Some(EngineState::Waiting)
    }

    /// Takes what is complete, and looks again whose turn it is. As [`Self::process`].
    pub(crate) fn look_at_turn(&self, dev: &SkuaDevice) {
        // Not all packets interrupt when they end.
        self.process(dev);
        self.change(dev, |state, now| state.unpark(dev, self.waits(dev), now));
    }

    /// Asks the engine to stop if who runs has to make room, and has it looked at later if that may
    /// come. Whether it was asked.
    fn preempt_if_due(&self, dev: &SkuaDevice, state: &mut RunQueue, now: u64) -> Result<bool> {
        if !self.preempts {
            return Ok(false);
        }
        let (due, later) = state.contention(now, || self.waits(dev));
        if later {
            dev.watch_turns();
        }
        Ok(due && dev.preempts.load(Relaxed) && self.preempt(dev, state)?)
    }

    /// Asks the engine to stop, unless it was, or has nothing left to do. Whether it was asked.
    /// Errors as of [`Self::complete`].
    pub(crate) fn preempt(&self, dev: &SkuaDevice, state: &mut RunQueue) -> Result<bool> {
        let asked = state.node.preempt(&dev.hw)?;
        if asked {
            dev.counters.preemptions.fetch_add(1, Relaxed);
            trace::preempt(dev, self.index.get());
            // In case it does not answer.
            dev.watch();
        }
        Ok(asked)
    }

    /// Moves portions that can start into the ring, as far as there is room, and tells the engine;
    /// or asks it to stop, if what can start is more important than what runs; at the engine time
    /// `now`.
    fn fill(&self, dev: &SkuaDevice, state: &mut RunQueue, now: u64) -> Result {
        if state.mode != Mode::Running
            || state.node.asked().is_some()
            || self.preempt_if_due(dev, state, now)?
        {
            return Ok(());
        }
        while !state.node.is_full() {
            let Some((context, aged)) = state.next(now) else {
                break;
            };
            let others = state.scheduler.is_waited_for();
            let next = context.next(|task| {
                let fits = state.node.fits(&dev.hw, &task);
                fits.then(|| Ok(state.node.build(&dev.hw, &task)?))
            });
            let (packet, due, built) = match next {
                Ok((packet, due)) => (packet, due, Ok(())),
                Err(error) => (None, Due::Nothing, Err(error)),
            };
            let full = packet.is_none() && matches!(due, Due::Turn);
            let place = if full {
                Position::First
            } else {
                Position::Last
            };
            state.put_back(&context, due, place);
            let turn = context.turn();
            dev.reapers.contexts.bury(context);
            built?;
            let Some(mut packet) = packet else {
                if full {
                    break;
                }
                continue;
            };
            packet.protected |= aged;
            packet.followed |= others;
            packet.is_long = others && turn.is_long(state.scheduler.limits());
            let engine = self.index.get();
            let id = packet.submission.context().id();
            packet.submission.with_fence(|fence| {
                if packet.attempt.resume {
                    trace::resume(dev, engine, id, fence);
                } else if packet.from == MultipassOffset::default() {
                    trace::start(dev, engine, id, fence);
                }
                if packet.submission.is_paging() {
                    let (piece, page) = (packet.from.piece, packet.from.page);
                    let idle = packet.attempt.idle;
                    trace::paging(dev, engine, fence, piece, page, idle, packet.is_last);
                }
                let number = state.node.next_id();
                trace::packet(dev, engine, id, fence, number, packet.attempt.again);
            });
            let started = state.node.start(&dev.hw, packet);
            state.look_at_head(now);
            started?;
        }
        if state.node.notify(&dev.hw)? {
            dev.watch();
        }
        if dev.clearer.waits_for_engine() && state.is_idle() {
            // Of any engine: it looks whether that is the one.
            dev.clearer.engine_is_idle();
        }
        if self.preempts && state.contention(now, || false).1 {
            dev.watch_turns();
        }
        Ok(())
    }

    /// Has it leave the context that it holds when nothing of that is left to do. `ENOMEM`;
    /// `ENODEV`, `EIO` if the device is lost.
    pub(crate) fn leave_held(&self, dev: &SkuaDevice) -> Result {
        let held = self.state.lock().held.clone();
        let Some(held) = held else {
            return Ok(());
        };
        let left = held.leave();
        dev.reapers.contexts.bury(held);
        left.map(drop)
    }

    /// The adapter is to be reset: takes what is complete, and no more work until
    /// [`Self::go_on`].
    pub(crate) fn halt(&self, dev: &SkuaDevice) {
        let mut turn = self.turn.lock();
        let finished = &mut turn.finished;
        {
            let mut state = self.state.lock();
            if state.mode != Mode::Lost {
                // It may report what cannot be: that is why. Also of one that is recovered by
                // itself: what it has ended is done, and nobody's fault.
                let _ = self.complete(dev, &mut state, finished);
                state.mode = Mode::Recovering;
            }
        }
        finished.finish(dev, self.index);
        drop(turn);
    }

    /// The adapter was reset: finishes what clients have in the ring, the first with `guilty` if it
    /// did it, and the rest with `ECANCELED`; the driver's own goes back to its contexts. What was
    /// saved of others is forgotten.
    pub(crate) fn give_up(&self, dev: &SkuaDevice, guilty: Option<Error>) {
        let mut turn = self.turn.lock();
        let Taken {
            finished,
            withdrawn,
            ..
        } = &mut *turn;
        {
            let (now, now_ms) = (self.ticks(dev), now_ms());
            let mut state = self.state.lock();
            let mut error = guilty;
            state
                .node
                .abandon(|id, packet| match packet.submission.context().is_system() {
                    true => packet::push(withdrawn, (id, packet, Stop::Between)),
                    false => finished.push(packet, Err(error.take().unwrap_or(ECANCELED))),
                });
            for (packet, _) in finished.iter() {
                state.retire(dev, packet, now);
            }
            while let Some((_, packet, stop)) = withdrawn.pop() {
                let context = packet.submission.context().clone();
                let how = Withdrawn {
                    stop,
                    used: None,
                    now_ms,
                };
                let due = context.withdraw(packet, how, state.scheduler.limits());
                state.put_back(&context, due, Position::First);
                dev.reapers.contexts.bury(context);
            }
            let lists = Iterator::chain(state.ready.iter(), &state.expired);
            let listed = Iterator::chain(lists, [&state.parked]).flat_map(List::iter);
            listed.for_each(|context| context.forget_saved());
            state.hold(dev, None);
            state.look_at_head(now);
        }
        finished.finish(dev, self.index);
        drop(turn);
    }

    /// The adapter was reset, or sleeps no more or does not: takes work again if [`Self::halt`] has
    /// had it take none.
    pub(crate) fn go_on(&self, dev: &SkuaDevice) {
        let turn = self.turn.lock();
        {
            let mut state = self.state.lock();
            // It may be lost, or be recovered by itself.
            if state.mode == Mode::Recovering && state.recovery.is_none() {
                state.mode = Mode::Running;
            }
        }
        drop(turn);
        self.process(dev);
    }

    /// Takes no more work, and finishes with `ENODEV` what is in the ring. Of what waits in
    /// contexts' queues the caller takes care: it closes all contexts.
    pub(crate) fn lose(&self, dev: &SkuaDevice) {
        let mut turn = self.turn.lock();
        let finished = &mut turn.finished;
        let mut ready = [const { List::new() }; LEVELS];
        let mut expired = [const { List::new() }; LEVELS];
        let mut parked = List::new();
        {
            let now = self.ticks(dev);
            let mut state = self.state.lock();
            state.mode = Mode::Lost;
            state.recovery = None;
            state
                .node
                .abandon(|_, packet| finished.push(packet, Err(ENODEV)));
            for (packet, _) in finished.iter() {
                state.retire(dev, packet, now);
            }
            core::mem::swap(&mut state.ready, &mut ready);
            core::mem::swap(&mut state.expired, &mut expired);
            core::mem::swap(&mut state.parked, &mut parked);
            state.hold(dev, None);
        }
        finished.finish(dev, self.index);
        drop(turn);
        let lists = Iterator::chain(ready.into_iter(), expired);
        for mut list in Iterator::chain(lists, [parked]) {
            while let Some(context) = list.pop_front() {
                let context = context.into_arc();
                self.drain(dev, &context);
                dev.reapers.contexts.bury(context);
            }
        }
    }
}
