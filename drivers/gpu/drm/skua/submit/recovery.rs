// SPDX-License-Identifier: GPL-2.0

//! What happens when work goes wrong: faults, and work without end.
//!
//! Both end in [`recover`]: the engine alone is reset, the guilty context is closed, its
//! submission's fence gets the errno that tells what it did, and the packets of innocent contexts
//! that were in the ring are written into it again, in order. Other engines do not notice.
//!
//! ```text
//! fault interrupt ─▶ faults alarm ──┐                        ┌─▶ guilty: EFAULT, EINVAL, ETIME
//!                                   ├─▶ recover ─▶ reset ─▶ ─┼─▶ its context: ECANCELED, closed
//! time ─▶ watchdog alarm: Watchdog ─┘     │                  └─▶ others: replayed
//!                                         └─ no acknowledgement ─▶ the device is lost
//! ```
//!
//! Who is guilty is the policy's to say ([`Node::blame`](crate::policy::node::Node::blame)). A
//! fault record from before the last reset has been dealt with by that reset. An engine that is
//! broken, by its verdict, is the device's loss.
//!
//! The alarms run in one ordered queue, so that one thing at a time is done about a device.

use crate::{
    ext::{
        fence::Signalling,
        queue::{
            Alarm,
            AlarmHandler,
            Order,
            OwnedQueue, //
        },
        trace, //
    },
    fences::gate::Wake,
    gpu::{
        Gpu,
        SkuaDevice, //
    },
    memory::device::ClientDevice,
    policy::{
        miniport::Miniport,
        node::{
            self,
            Cause, //
        },
        watchdog::{
            Limits,
            Sample,
            Verdict,
            Watchdog, //
        }, //
    },
    spec::{
        fault::Reason,
        number::EngineIndex,
        regs, //
    },
    submit::{
        context::Status,
        engine::{
            Engine,
            Mode, //
        },
        packet::Finished, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        msecs_to_jiffies,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

/// Period of the watchdog in milliseconds.
const PERIOD_MS: u32 = 250;

/// How many times its time a packet may take on a host so slow that the engine hardly works.
const HARD_FACTOR: u64 = 16;
/// Milliseconds without progress after which the watchdog asks the device whether it is there at
/// all.
const PRESENCE_MS: u64 = 1000;
/// Fault records that are looked at before others get their turn.
const FAULT_BATCH: u32 = 32;

/// What the guilty context becomes, and the error of the fence of the submission that did it.
fn sentence(cause: &Cause) -> (Status, Error) {
    match cause {
        Cause::Fault(record) => (Status::Faulted(*record), errno(record.reason)),
        Cause::Endless(_) => (Status::TimedOut, ETIME),
    }
}

/// A context of `device` has come to this end: if that is the end of all, so have the others.
fn end_device(dev: &SkuaDevice, device: &Arc<ClientDevice>, status: Status) {
    if !device.fail(status.code()) {
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
}

/// The alarms of a device.
pub(crate) struct Alarms {
    /// Looks at fault records.
    pub(crate) faults: Alarm<Faults>,
    /// Looks at the engines every [`PERIOD_MS`] while one has work.
    watchdog: Alarm<Watch>,
    /// Declares the device lost for those who must not do it themselves.
    loss: Alarm<Loss>,
}

impl Alarms {
    /// Makes the alarms of `dev`; `timeout_ms` is how long a packet may work.
    /// `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, timeout_ms: u32) -> Result<Arc<Self>> {
        let queue = Arc::new(OwnedQueue::new(c"skua-alarms", Order::Ordered)?, GFP_KERNEL)?;
        let limits = Limits {
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
            watchdogs.push(Watchdog::new(limits), GFP_KERNEL)?;
        }
        let watch = Watch {
            dev: dev.into(),
            start: Instant::now(),
            watchdogs: KBox::pin_init(new_mutex!(watchdogs), GFP_KERNEL)?,
        };
        let faults = Faults {
            dev: dev.into(),
            next: Atomic::new(0),
        };
        let alarms = Self {
            faults: Alarm::new(queue.clone(), faults)?,
            watchdog: Alarm::new(queue.clone(), watch)?,
            loss: Alarm::new(queue.clone(), Loss { dev: dev.into() })?,
        };
        Ok(Arc::new(alarms, GFP_KERNEL)?)
    }

    /// Starts the watchdog.
    pub(crate) fn start_watchdog(&self) {
        self.watchdog.set(msecs_to_jiffies(PERIOD_MS));
    }

    /// Has the device declared lost.
    pub(crate) fn lose(&self) {
        self.loss.kick();
    }
}

/// Declares the device lost.
struct Loss {
    /// The device to be lost.
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Loss {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        Gpu::lose(&self.dev, false);
        None
    }
}

/// Reads fault records.
pub(crate) struct Faults {
    /// The device that reports them.
    dev: ARef<SkuaDevice>,
    /// Number of the next record to be read, modulo 2^32.
    next: Atomic<u32>,
}

impl AlarmHandler for Faults {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        for _ in 0..FAULT_BATCH {
            dev.check_health().ok()?;
            let number = self.next.load(Relaxed);
            let record = {
                let shared = dev.hw.shared.try_access()?;
                if shared.fault_put().ok()? == number {
                    return None;
                }
                shared.fault(number).ok().flatten()
            };
            self.next.store(number.wrapping_add(1), Relaxed);
            let read = regs::FAULT_GET::new().with_records(number.wrapping_add(1));
            dev.hw.regs.write(read).ok()?;
            let Some((record, engine)) =
                record.and_then(|record| Some((record, dev.engine(record.engine).ok()?)))
            else {
                dev_err!(dev.as_ref(), "fault record {} makes no sense\n", number);
                Gpu::lose(dev, false);
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
                recover(dev, record.engine, engine, &Cause::Fault(record));
            }
        }
        Some(0)
    }
}

/// Asks the policy, for each engine, whether its work ends.
struct Watch {
    /// The device whose engines are watched.
    dev: ARef<SkuaDevice>,
    /// What the policy's times count from.
    start: Instant<Monotonic>,
    /// What the policy remembers of each engine, by number.
    watchdogs: Pin<KBox<Mutex<KVec<Watchdog>>>>,
}

impl Watch {
    /// The policy's verdict about one engine now.
    fn ask(&self, index: EngineIndex, engine: &Engine) -> Verdict {
        let head = engine.state.lock().node.head().map(|(id, _)| id);
        let sample = Sample {
            now_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0),
            head,
            ticks: engine.ticks(&self.dev),
        };
        let mut watchdogs = self.watchdogs.lock();
        match watchdogs.get_mut(index.index()) {
            Some(watchdog) => watchdog.check(sample),
            None => Verdict::Healthy,
        }
    }
}

impl AlarmHandler for Watch {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        dev.stop_watching();
        let mut busy = false;
        for (index, engine) in dev.engines() {
            // An interrupt may have been lost.
            engine.process(dev);
            busy |= !engine.state.lock().node.is_empty();
            match self.ask(index, engine) {
                Verdict::Healthy => (),
                Verdict::Stalled => {
                    if !dev.is_present() {
                        Gpu::lose(dev, true);
                        return None;
                    }
                }
                Verdict::Overdue { id } | Verdict::Stuck { id } => {
                    recover(dev, index, engine, &Cause::Endless(id));
                    if let Some(watchdog) = self.watchdogs.lock().get_mut(index.index()) {
                        watchdog.restart();
                    }
                }
            }
        }
        (busy && dev.go_on_watching()).then(|| msecs_to_jiffies(PERIOD_MS))
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

/// Resets an engine and goes on without the guilty, if there is one.
fn recover(dev: &SkuaDevice, index: EngineIndex, engine: &Engine, cause: &Cause) {
    let mut finished = Finished::new();
    let turn = engine.turn.lock();
    let outcome = {
        let mut state = engine.state.lock();
        if state.mode != Mode::Running {
            return;
        }
        let outcome = engine.complete(dev, &mut state, &mut finished);
        // What works without end may have ended just now; what has faulted has stopped the engine,
        // whoever it was.
        let needed = state.node.is_named(cause) || matches!(cause, Cause::Fault(_));
        if needed {
            state.mode = Mode::Recovering;
        }
        outcome.map(|()| needed)
    };
    finished.finish(dev, index);
    drop(turn);
    match outcome.and_then(|needed| if needed { reset(dev, index) } else { Ok(false) }) {
        Ok(true) => (),
        Ok(false) => return,
        Err(_) => return Gpu::lose(dev, false),
    }

    let mut finished = Finished::new();
    let (status, error) = sentence(cause);
    let mut failed = None;
    let turn = engine.turn.lock();
    let outcome = {
        let mut state = engine.state.lock();
        if state.mode != Mode::Recovering {
            return;
        }
        // What it completed until it stopped.
        let outcome = engine.complete(dev, &mut state, &mut finished);
        let mut removed = Finished::new();
        let verdict = state.node.blame(cause, |packet, is_it| {
            removed.push(packet, Err(if is_it { error } else { ECANCELED }));
        });
        if let Some((guilty, _)) = removed.iter().next() {
            let context = guilty.submission.context().clone();
            context.mark(status);
            failed = context.vm().cloned();
            if let Some(vm) = &failed {
                // Before a fence says so.
                let _ = vm.device().fail(status.code());
            }
            // Now what waits in its queue can be cancelled.
            for (packet, _) in removed.iter() {
                state.retire(packet);
            }
            dev.reapers.contexts.bury(context);
        }
        finished.append(removed);
        outcome.and_then(|()| {
            if verdict == node::Verdict::Broken {
                return Err(EIO);
            }
            state.mode = Mode::Running;
            let replayed = state.node.replay(&dev.hw);
            state.look_at_head();
            if replayed? {
                dev.watch();
            }
            Ok(())
        })
    };
    finished.finish(dev, index);
    drop(turn);
    if let Some(vm) = failed {
        end_device(dev, vm.device(), status);
        dev.reapers.vms.bury(vm);
    }
    match outcome {
        Ok(()) => engine.process(dev),
        Err(_) => Gpu::lose(dev, false),
    }
}

/// Resets one engine and waits until it has stopped; true. `EIO`, `ENODEV`.
fn reset(dev: &SkuaDevice, index: EngineIndex) -> Result<bool> {
    let request = dev.hw.reset_engine(index)?;
    dev.counters.resets.fetch_add(1, Relaxed);
    dev.wait_for(|| dev.hw.is_done(request))?;
    // The engine reports its faults before it acknowledges a reset.
    let put = dev.hw.shared.try_access().ok_or(ENODEV)?.fault_put()?;
    dev.engine(index)?.stale_faults.store(put, Relaxed);
    Ok(true)
}
