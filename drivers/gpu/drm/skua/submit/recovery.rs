// SPDX-License-Identifier: GPL-2.0

//! What happens when work goes wrong: faults, and work without end.
//!
//! Both end in [`recover`]: the engine alone stops, the guilty context is closed, its submission's
//! fence gets the errno that tells what it did, and the others go on. Other engines do not notice.
//! (What has waited for a value for too long needs none of this: `Engine::process` takes it out.)
//!
//! ```text
//! fault ─▶ faults alarm ──────────┐                  ┌─▶ guilty: EFAULT, EINVAL, ETIME
//!                                 ▼                  ├─▶ its context: ECANCELED, closed
//! time ─▶ watchdog alarm ─▶ recover ─▶ stop ─────────┼─▶ others: taken back, come again
//!                                 │      │ in vain   │
//!                                 └──────┴─▶ reset ──┴─▶ others: written into the ring again
//!                                              └─ no acknowledgement ─▶ reset_adapter
//! ```
//!
//! What works without end is asked to make room first, and the engine is reset only if it does not
//! stop in time (row 2.01); if it does, the guilty packet does not come back, and nobody else
//! notices. That an engine does not stop when it was asked for others is judged by progress, like a
//! packet.
//!
//! Who is guilty is the policy's to say ([`Node::blame`](crate::policy::node::Node::blame)). A
//! fault record from before the last reset has been dealt with by that reset. An engine that is
//! broken, by its verdict, is a reason to reset the [adapter](super::adapter_reset), like one that
//! does not acknowledge. One that has completed what cannot be, by what it says behind a reset, has
//! the device lost: what a reset says is what all depends on.
//!
//! The alarms run in one ordered queue, so that one thing at a time is done about a device. None
//! waits there for an engine, which may take seconds: one of them looks now and then how far each
//! [`Recovery`] is, and what others report, whether their work ends, and whose turn it is there is
//! looked at in between. An adapter reset is waited for, as all engines are a part of it.

use crate::{
    ext::{
        fence::Signalling,
        queue::{
            Alarm,
            AlarmHandler,
            Nice,
            Order,
            OwnedQueue, //
        },
        trace, //
    },
    fences::gate::Wake,
    gpu::{
        Countdown,
        Gpu,
        Presence,
        SkuaDevice, //
    },
    hardware::miniport::Request,
    memory::{
        device::ClientDevice,
        vm::Vm, //
    },
    policy::{
        miniport::Miniport,
        node::{
            self,
            Cause, //
        },
        watchdog::{
            Arrival,
            Limits,
            Sample,
            Spent,
            Verdict,
            Watchdog, //
        }, //
    },
    spec::{
        fault::{
            Reason,
            Record, //
        },
        number::EngineIndex, //
    },
    submit::{
        adapter_reset::reset_adapter,
        context::{
            Context,
            Status, //
        },
        coredump::Failure,
        engine::{
            now_ms,
            run_queue::RunQueue,
            Engine,
            Mode, //
        },
        packet::{
            Finished,
            Taken, //
        },
        power::Sleeper, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Jiffies, //
    }, //
};

/// The most from one look of the watchdog to the next, in milliseconds.
const PERIOD_MS: u32 = 250;

/// Period in milliseconds in which it is looked at whose turn it is.
const TURN_MS: u32 = 4;
/// How many times its time a packet may take on a host so slow that the engine hardly works.
const HARD_FACTOR: u64 = 16;
/// Milliseconds without progress after which the watchdog asks the device whether it is there at
/// all.
const PRESENCE_MS: u64 = 1000;
/// How often it is looked every 100 microseconds whether an engine has stopped, and then every
/// jiffy.
const QUICK_LOOKS: u32 = 100;
/// Fault records that are looked at before others get their turn.
const FAULT_BATCH: u32 = 32;

/// What the guilty context becomes, and the error of the fence of the submission that did it.
pub(crate) fn status_and_errno(cause: &Cause) -> (Status, Error) {
    match cause {
        Cause::Fault(record) => (Status::Faulted(*record), errno(record.reason)),
        Cause::Endless(_) | Cause::Unanswered(_) => (Status::TimedOut, ETIME),
    }
}

/// A client's context fails with `status`, unless it takes no work already, and so does its device.
pub(crate) fn fail(context: &Arc<Context>, status: Status) {
    if !context.mark_failed(status) {
        return;
    }
    Wake::wake(context);
    if let Some(vm) = context.vm() {
        end_device(context.device(), vm.device(), status.code());
    }
}

/// A context of `device` has come to this end, or all have, by `DRM_SKUA_CONTEXT_*`: if the one is
/// the end of all, they have.
pub(crate) fn end_device(dev: &SkuaDevice, device: &Arc<ClientDevice>, status: u32) {
    if !device.fail(status) {
        return;
    }
    dev.contexts.for_each(|context| {
        let vm = context.vm();
        if vm.is_some_and(|vm| Arc::ptr_eq(vm.device(), device)) {
            context.mark(Status::Lost);
            Wake::wake(&context);
        }
        dev.reapers.contexts.bury(context);
    });
    dev.fences.end(device.id(), true);
    dev.pending_residency.end(device);
}

/// The alarms of a device.
pub(crate) struct Alarms {
    /// Looks at fault records.
    pub(crate) faults: Alarm<Faults>,
    /// Looks how far recoveries are, as long as there are any.
    pub(crate) recoveries: Alarm<Recoveries>,
    /// Looks at the engines every [`PERIOD_MS`] while one has work, and when a time is up.
    watchdog: Alarm<Watch>,
    /// Looks every [`TURN_MS`] whose turn it is, while one engine has work for several.
    turns: Alarm<Turns>,
    /// Resets the adapter for those who must not do it themselves.
    reset: Alarm<Reset>,
    /// Has the device sleep, and wakes it.
    sleeper: Alarm<Sleeper>,
}

impl Alarms {
    /// Makes the alarms of `dev`; `job_ms` is how long a packet may work, `preempt_ms` how long an
    /// engine may take to stop when it is asked to. `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, job_ms: u32, preempt_ms: u32) -> Result<Arc<Self>> {
        let queue = Arc::new(
            OwnedQueue::new(c"skua-alarms", Order::Ordered, Nice::High)?,
            GFP_KERNEL,
        )?;
        let limits = |timeout_ms: u32| Limits {
            // A packet may be as slow as its host, but not use next to no engine time for long:
            // see the policy.
            ticks: u64::from(timeout_ms).saturating_mul(u64::from(dev.hw.caps.tick_hz) / 100_000),
            time_ms: timeout_ms.into(),
            stuck_ms: timeout_ms.into(),
            hard_ms: u64::from(timeout_ms).saturating_mul(HARD_FACTOR),
            stalled_ms: PRESENCE_MS,
            step_ms: u64::from(PERIOD_MS) * 2,
        };
        let mut watchdogs = KVec::new();
        for _ in dev.engines() {
            let dogs = [job_ms, preempt_ms].map(|ms| Watchdog::new(limits(ms)));
            watchdogs.push(dogs, GFP_KERNEL)?;
        }
        let watch = Watch {
            dev: dev.into(),
            preempt_ms: preempt_ms.into(),
            watchdogs: KBox::pin_init(new_mutex!(watchdogs), GFP_KERNEL)?,
        };
        let faults = Faults { dev: dev.into() };
        let alarms = Self {
            faults: Alarm::new(queue.clone(), faults)?,
            recoveries: Alarm::new(queue.clone(), Recoveries { dev: dev.into() })?,
            watchdog: Alarm::new(queue.clone(), watch)?,
            turns: Alarm::new(queue.clone(), Turns { dev: dev.into() })?,
            reset: Alarm::new(queue.clone(), Reset { dev: dev.into() })?,
            sleeper: Alarm::new(queue.clone(), Sleeper::new(dev))?,
        };
        Ok(Arc::new(alarms, GFP_KERNEL)?)
    }

    /// Has the watchdog look in [`PERIOD_MS`]; it goes on while an engine has work.
    pub(crate) fn start_watchdog(&self) {
        self.watchdog.set(msecs_to_jiffies(PERIOD_MS));
    }

    /// Has it looked at whose turn it is in [`TURN_MS`]; where there is contention, again and
    /// again.
    pub(crate) fn start_turns(&self) {
        self.turns.set(msecs_to_jiffies(TURN_MS));
    }

    /// Has the adapter reset, if that is still wanted then.
    pub(crate) fn reset(&self) {
        self.reset.kick();
    }

    /// Has the device do what it is asked for ([`super::power`]).
    pub(crate) fn sleep_or_wake(&self) {
        self.sleeper.kick();
    }
}

/// Looks whose turn it is.
struct Turns {
    /// The device whose engines have work.
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Turns {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        dev.watching_turns.end();
        for (_, engine) in dev.engines() {
            // Where there is contention it is set again.
            engine.look_at_turn(dev);
        }
        None
    }
}

/// The alarm that has the adapter reset, in a worker.
struct Reset {
    /// The device to be reset.
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Reset {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        match dev.resets.is_wanted(dev.hw.generation()) || dev.check_health().is_err() {
            true => reset_adapter(dev),
            // It was done meanwhile, perhaps before who suspects it had memory kept.
            false => dev.resume(),
        }
        None
    }
}

/// The alarm that has fault records read, in a worker.
pub(crate) struct Faults {
    /// The device that reports them.
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Faults {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        for _ in 0..FAULT_BATCH {
            dev.check_health().ok()?;
            let (number, record) = dev.hw.next_fault().ok().flatten()?;
            let Some((record, engine)) =
                record.and_then(|record| Some((record, dev.engine(record.engine).ok()?)))
            else {
                dev_err!(dev.as_ref(), "fault record {} makes no sense\n", number);
                reset_adapter(dev);
                return None;
            };
            trace::fault(
                dev,
                record.engine.get(),
                record.context_id,
                record.reason as u32,
                record.address,
            );
            // Modulo 2^32: at most half of it behind.
            let behind = engine.stale_faults.load(Relaxed).wrapping_sub(number);
            if behind == 0 || behind > 1 << 31 {
                let cause = Cause::Fault(record);
                recover(dev, record.engine, engine, cause, Delta::ZERO);
            }
        }
        Some(0)
    }
}

/// Asks the policy, for each engine, whether its work ends.
struct Watch {
    /// The device whose engines are watched.
    dev: ARef<SkuaDevice>,
    /// Milliseconds that an engine may take to stop.
    preempt_ms: i64,
    /// What the policy remembers of each engine, by number: of its packets, and of the time since
    /// it was asked to stop.
    watchdogs: Pin<KBox<Mutex<KVec<[Watchdog; 2]>>>>,
}

/// What is done about an engine by itself, until it has stopped. By the alarms.
#[derive(Clone, Copy)]
pub(crate) struct Recovery {
    /// Why the engine is to stop.
    pub(crate) cause: Cause,
    /// How long it may still take to do so, asked or reset.
    countdown: Countdown,
    /// The reset that it is to acknowledge; none while it is asked.
    reset: Option<Request>,
    /// How often it was looked at in vain.
    looks: u32,
    /// When the device was last there.
    presence: Presence,
    /// What the engine has reported since, and stands at, unless a reset has ended that.
    pub(crate) fault: Option<Record>,
}

/// How an engine has stopped.
#[derive(Clone, Copy)]
enum Stopped {
    /// By itself, at the end of a packet or within one, as it was asked to.
    Asked,
    /// It was reset, and had reported so many faults then, modulo 2^32.
    Reset(u32),
}

impl Recovery {
    fn new(cause: Cause, patience: Delta) -> Self {
        Self {
            cause,
            countdown: Countdown::new(patience),
            reset: None,
            looks: 0,
            presence: Presence::new(),
            fault: None,
        }
    }

    /// Has the engine stop. `EIO`, `ENODEV`.
    fn begin(&mut self, dev: &SkuaDevice, index: EngineIndex, engine: &Engine) -> Result {
        let is_asked = engine.preempts() && dev.preempts.load(Relaxed);
        if matches!(self.cause, Cause::Fault(_)) || !is_asked {
            return self.reset(dev, index);
        }
        engine.preempt(dev, &mut engine.state.lock()).map(drop)
    }

    /// Resets the engine, unless it has ended the guilty packet. `EIO`, `ENODEV`.
    fn reset(&mut self, dev: &SkuaDevice, index: EngineIndex) -> Result {
        trace::reset(dev, index.get());
        self.reset = Some(dev.hw.reset_engine(index, self.cause.fence())?);
        self.countdown = Countdown::new(dev.acknowledge);
        dev.counters.engine_resets.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Whether the engine has stopped; if it does not though it was asked to, it is reset. `EIO`,
    /// `ENODEV`; `ETIMEDOUT` if that does not help.
    fn go_on(
        &mut self,
        dev: &SkuaDevice,
        index: EngineIndex,
        engine: &Engine,
    ) -> Result<Option<Stopped>> {
        let is_late = self.countdown.is_over();
        match self.reset {
            // The engine reports its faults before it acknowledges a reset.
            Some(reset) if dev.hw.is_done(reset)? => {
                let faults = dev.hw.shared()?.fault_put()?;
                return Ok(Some(Stopped::Reset(faults)));
            }
            Some(_) => (),
            None => {
                let state = engine.state.lock();
                // Or it has ended all that there was.
                if state.node.asked().is_none() || state.node.answer(&dev.hw)?.is_some() {
                    return Ok(Some(Stopped::Asked));
                }
            }
        }
        dev.check_health()?;
        self.presence.check(dev)?;
        match self.reset {
            Some(_) if is_late => Err(ETIMEDOUT),
            // What has faulted does not answer: the guilty packet, or one behind it, by then.
            None if is_late || self.fault.is_some() => {
                if let Some(record) = self.fault.take() {
                    self.cause = Cause::Fault(record);
                }
                self.reset(dev, index).map(|()| None)
            }
            _ => Ok(None),
        }
    }
}

/// Looks how far recoveries are.
pub(crate) struct Recoveries {
    /// The device whose engines are recovered.
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Recoveries {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        let (mut is_waiting, mut is_quick) = (false, false);
        for (index, engine) in dev.engines() {
            let Some(mut recovery) = engine.recovery() else {
                continue;
            };
            match recovery.go_on(dev, index, engine) {
                Ok(Some(stopped)) => conclude(dev, index, engine, &recovery, stopped),
                Ok(None) => {
                    recovery.looks = recovery.looks.saturating_add(1);
                    is_waiting = true;
                    is_quick |= recovery.looks < QUICK_LOOKS;
                    engine.state.lock().recovery = Some(recovery);
                }
                Err(_) => reset_adapter(dev),
            }
        }
        // Behind the other alarms.
        match (is_waiting, is_quick) {
            (false, _) => None,
            (true, true) => {
                fsleep(Delta::from_micros(100));
                Some(0)
            }
            // Most engines stop at once, and the others late.
            (true, false) => Some(1),
        }
    }
}

/// What is to be done about an engine.
enum Finding {
    /// Nothing has to be done.
    Fine,
    /// Is the device there?
    Doubtful,
    /// The engine is to stop, for this cause, and has so much time to.
    Wrong(Cause, Delta),
}

impl Watch {
    /// What the policy says of one engine now.
    fn ask(&self, index: EngineIndex, engine: &Engine) -> Finding {
        let (head, before, since, has_worked, asked) = {
            let state = engine.state.lock();
            if state.recovery.is_some() {
                drop(state);
                self.restart(index, engine);
                return Finding::Fine;
            }
            let head = state.node.head();
            let before = head.map_or(Spent::default(), |(_, packet)| packet.spent);
            let has_worked = head.is_some_and(|(_, it)| it.submission.context().has_worked());
            (
                head.map(|(id, _)| id),
                before,
                state.head_since(),
                has_worked,
                state.node.asked(),
            )
        };
        let sample = Sample {
            now_ms: now_ms(),
            head,
            ticks: engine.ticks(&self.dev),
            waits: engine.waits(&self.dev) && !has_worked,
            before,
            since,
        };
        let mut watchdogs = self.watchdogs.lock();
        let Some([job, preemption]) = watchdogs.get_mut(index.index()) else {
            return Finding::Fine;
        };
        let job = job.check(sample);
        let preemption = preemption.check(sample.of_request(asked));
        if let Verdict::Overdue { id } | Verdict::Stuck { id } = job {
            return Finding::Wrong(Cause::Endless(id), Delta::from_millis(self.preempt_ms));
        }
        match (preemption, asked) {
            (Verdict::Overdue { .. } | Verdict::Stuck { .. }, Some(asked)) => {
                let cause = head.map_or(Cause::Unanswered(asked), Cause::Endless);
                Finding::Wrong(cause, Delta::ZERO)
            }
            _ if job == Verdict::Stalled => Finding::Doubtful,
            _ => Finding::Fine,
        }
    }

    /// How long it is to the next look.
    fn pause(&self) -> Jiffies {
        let watchdogs = self.watchdogs.lock();
        let due = watchdogs.iter().flatten().filter_map(Watchdog::due_in_ms);
        let period = u64::from(PERIOD_MS);
        // CAST: at most the period.
        msecs_to_jiffies(due.min().map_or(period, |due| due.min(period)) as u32)
    }

    /// What was seen of an engine counts no more: it is recovered.
    fn restart(&self, index: EngineIndex, engine: &Engine) {
        let now = Arrival {
            ms: now_ms(),
            ticks: engine.ticks(&self.dev),
        };
        if let Some(watchdogs) = self.watchdogs.lock().get_mut(index.index()) {
            watchdogs.iter_mut().for_each(|dog| dog.restart(now));
        }
    }
}

impl AlarmHandler for Watch {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        dev.watching.end();
        let mut busy = false;
        for (index, engine) in dev.engines() {
            // An interrupt may have been lost.
            engine.process(dev);
            busy |= {
                let state = engine.state.lock();
                !state.node.is_empty() || state.node.asked().is_some()
            };
            match self.ask(index, engine) {
                Finding::Fine => (),
                // All that it has is about to end.
                Finding::Wrong(..) if dev.resets.is_by_bus() => (),
                Finding::Doubtful => {
                    if dev.check_presence().is_err() {
                        return None;
                    }
                }
                Finding::Wrong(cause, patience) => {
                    recover(dev, index, engine, cause, patience);
                    self.restart(index, engine);
                }
            }
        }
        (busy && dev.watching.go_on()).then(|| self.pause())
    }
}

/// The errno that tells a client what its submission did.
fn errno(reason: Reason) -> Error {
    match reason {
        Reason::AddressRange
        | Reason::NotPresent
        | Reason::ReadOnly
        | Reason::BadEntry
        | Reason::BusError => EFAULT,
        _ => EINVAL,
    }
}

/// Has an engine stop, to go on without the guilty, if there is one. What works without end is
/// asked to stop first, and has so much `patience` to do so; otherwise the engine is reset.
fn recover(dev: &SkuaDevice, index: EngineIndex, engine: &Engine, cause: Cause, patience: Delta) {
    let mut recovery = Recovery::new(cause, patience);
    let mut turn = engine.turn.lock();
    let finished = &mut turn.finished;
    let (outcome, needed) = {
        let mut state = engine.state.lock();
        if let (Some(under_way), Cause::Fault(record)) = (&mut state.recovery, cause) {
            under_way.fault = Some(record);
        }
        if state.mode != Mode::Running {
            return;
        }
        let outcome = engine.complete(dev, &mut state, finished);
        // What works without end may have ended just now, or been answered; what has faulted has
        // stopped the engine, whoever it was.
        let asked = state.node.asked();
        let needed = match cause {
            Cause::Fault(_) => true,
            Cause::Endless(_) => state.node.is_named(&cause),
            Cause::Unanswered(request) => asked == Some(request),
        };
        if needed {
            state.mode = Mode::Recovering;
            state.recovery = Some(recovery);
        }
        (outcome, needed)
    };
    finished.finish(dev, index);
    drop(turn);
    if needed {
        let failure = Failure::Work(index, &cause);
        dev.herald.tell_of_failure(dev, &failure);
    }
    let begun = outcome.and_then(|()| match needed {
        // The device is given up: there it may be reset no more.
        true if !dev.recovers && !matches!(cause, Cause::Fault(_)) => Err(ETIME),
        true => recovery.begin(dev, index, engine),
        false => Ok(()),
    });
    match begun {
        Ok(()) if needed => {
            engine.state.lock().recovery = Some(recovery);
            dev.look_at_recoveries();
        }
        // What has ended may have left room.
        Ok(()) => engine.process(dev),
        Err(_) => reset_adapter(dev),
    }
}

/// An engine has stopped: it goes on without the guilty.
fn conclude(
    dev: &SkuaDevice,
    index: EngineIndex,
    engine: &Engine,
    recovery: &Recovery,
    stopped: Stopped,
) {
    let cause = &recovery.cause;
    let faults = match stopped {
        Stopped::Asked => None,
        Stopped::Reset(faults) => Some(faults),
    };
    let (status, error) = status_and_errno(cause);
    let failed;
    let is_believed;
    let is_reset;
    let mut turn = engine.turn.lock();
    let Taken {
        finished,
        removed,
        withdrawn,
    } = &mut *turn;
    let outcome = {
        let mut state = engine.state.lock();
        if state.mode != Mode::Recovering {
            return;
        }
        let mut guilty = |packet, is_it| {
            removed.push(packet, Err(if is_it { error } else { ECANCELED }));
        };
        // What it completed until it stopped.
        let outcome = engine.complete(dev, &mut state, finished);
        // If it says what cannot be behind a reset, no further reset is any help (row 2.21).
        is_believed = faults.is_none() || outcome.is_ok();
        // The engine had ended the guilty packet before the reset, which is void: it goes on.
        let is_void = cause.fence() != 0 && !state.node.is_named(cause);
        let reset_at = faults.filter(|_| !is_void);
        is_reset = reset_at.is_some();
        if let Some(faults) = reset_at {
            engine.stale_faults.store(faults, Relaxed);
        }
        let verdict = outcome.and_then(|()| match faults {
            None => engine
                .take_back(
                    dev,
                    &mut state,
                    finished,
                    withdrawn,
                    Some((cause, &mut guilty)),
                )
                .map(|_| node::Verdict::GoOn),
            Some(_) if is_void => Ok(node::Verdict::GoOn),
            Some(_) => Ok(state.node.blame(cause, guilty)),
        });
        failed = condemn(dev, engine, &mut state, removed, status);
        if is_reset {
            state.hold(dev, None);
        }
        finished.append(removed);
        verdict.and_then(|verdict| {
            if verdict == node::Verdict::Broken {
                return Err(EIO);
            }
            if is_reset {
                let replayed = state.node.replay(&dev.hw);
                engine.note_rewritten(dev, &state);
                state.look_at_head(engine.ticks(dev));
                if replayed? {
                    dev.watch();
                }
            }
            // The ring is whole again.
            state.mode = Mode::Running;
            state.recovery = None;
            Ok(())
        })
    };
    if outcome.is_err() {
        // What clients let go of now the device may reach until it is reset.
        dev.suspend();
    }
    finished.finish(dev, index);
    drop(turn);
    end_failed(dev, failed, status);
    match outcome {
        Ok(()) => {
            engine.process(dev);
            if let Some(record) = recovery.fault.filter(|_| !is_reset) {
                recover(dev, index, engine, Cause::Fault(record), Delta::ZERO);
            }
        }
        Err(_) if !is_believed => Gpu::lose(dev, false),
        Err(_) => reset_adapter(dev),
    }
}

/// `context` has failed with `status`, and its client's device with it, before a fence says so; its
/// address space. What was destroyed meanwhile fails its device, too.
pub(crate) fn mark_guilty(
    dev: &SkuaDevice,
    context: &Arc<Context>,
    status: Status,
) -> Option<Arc<Vm>> {
    let is_first = context.mark_failed(status);
    if let (Status::TimedOut, Some(process)) = (status, context.process()) {
        dev.herald.tell_of_cut(dev, context.engine(), process);
    }
    let vm = context.vm().cloned()?;
    if !is_first {
        // Whether it had failed before does not matter: it has now.
        let _ = vm.device().fail(status.code());
    }
    Some(vm)
}

/// The context that all of `removed` are of, if there are any, has failed with `status`; its
/// address space, for [`end_failed`]. Under the engine's `turn`.
pub(crate) fn condemn(
    dev: &SkuaDevice,
    engine: &Engine,
    state: &mut RunQueue,
    removed: &Finished,
    status: Status,
) -> Option<Arc<Vm>> {
    let (guilty, _) = removed.iter().next()?;
    let context = guilty.submission.context().clone();
    let failed = mark_guilty(dev, &context, status);
    // Now what waits in its queue can be cancelled.
    let now = engine.ticks(dev);
    for (packet, _) in removed.iter() {
        state.retire(dev, packet, now);
    }
    // It was reset, or has stopped in its midst.
    state.hold(dev, None);
    dev.reapers.contexts.bury(context);
    failed
}

/// What has failed is the end of its client's device. No locks held.
pub(crate) fn end_failed(dev: &SkuaDevice, failed: Option<Arc<Vm>>, status: Status) {
    if let Some(vm) = failed {
        end_device(dev, vm.device(), status.code());
        dev.reapers.vms.bury(vm);
    }
}
