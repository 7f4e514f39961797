// SPDX-License-Identifier: GPL-2.0

//! What happens when work goes wrong: faults, and work without end.
//!
//! Both end in [`recover`]: the engine alone is reset, the guilty context is closed, its job's fence gets the
//! errno that tells what it did, and the jobs of innocent contexts that were in the ring are written into
//! it again, in order. Other engines do not notice.
//!
//! ```text
//! fault interrupt ─▶ faults alarm ──┐                        ┌─▶ guilty: EFAULT, EINVAL, ETIME
//!                                   ├─▶ recover ─▶ reset ─▶ ─┼─▶ its context: ECANCELED, closed
//! time ─▶ watchdog alarm: Watchdog ─┘     │                  └─▶ others: replayed
//!                                         └─ no acknowledgement ─▶ the device is lost
//! ```
//!
//! Who is guilty is decided by position: the engine works in order, so it is the oldest job that is not
//! complete. A paging job at fault means that the device itself is broken.
//!
//! The alarms run in one ordered queue, so that one thing at a time is done about a device.

use crate::{
    ext::{
        queue::{
            Alarm,
            AlarmHandler,
            OwnedQueue, //
        },
        trace, //
    },
    gpu::{
        Gpu,
        SkuaDevice, //
    },
    policy::watchdog::{
        Limits,
        Sample,
        Verdict,
        Watchdog, //
    },
    spec::{
        fault::{
            Reason,
            Record, //
        },
        regs,
        status, //
    },
    submit::{
        context::Status,
        engine::{
            Engine,
            Finished,
            Mode, //
        }, //
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

/// Why an engine is to be recovered.
enum Cause {
    /// It reported this.
    Fault(Record),
    /// This packet works, or waits, without end.
    Endless(u64),
}

/// The alarms of a device.
pub(crate) struct Hooks {
    /// Looks at fault records.
    pub(crate) faults: Alarm<Faults>,
    watchdog: Alarm<Watch>,
    loss: Alarm<Loss>,
}

impl Hooks {
    /// Makes the alarms of `dev`; `timeout_ms` is how long a job may run. `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        queue: &Arc<OwnedQueue>,
        timeout_ms: u32,
    ) -> Result<Arc<Self>> {
        let limits = Limits {
            // A job may be as slow as its host, but not use next to no engine time for long: see the
            // policy.
            ticks: u64::from(timeout_ms).saturating_mul(u64::from(dev.caps.tick_hz) / 100_000),
            time_ms: timeout_ms.into(),
            stuck_ms: timeout_ms.into(),
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
        let hooks = Self {
            faults: Alarm::new(queue.clone(), faults)?,
            watchdog: Alarm::new(queue.clone(), watch)?,
            loss: Alarm::new(queue.clone(), Loss { dev: dev.into() })?,
        };
        Ok(Arc::new(hooks, GFP_KERNEL)?)
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
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Loss {
    fn run(&self) -> Option<Jiffies> {
        Gpu::lose(&self.dev, false);
        None
    }
}

/// Reads fault records.
pub(crate) struct Faults {
    dev: ARef<SkuaDevice>,
    next: Atomic<u32>,
}

impl AlarmHandler for Faults {
    fn run(&self) -> Option<Jiffies> {
        let dev = &*self.dev;
        loop {
            let number = self.next.load(Relaxed);
            let record = {
                let shared = dev.shared.try_access()?;
                match shared.fault_put() {
                    Ok(put) if put == number => return None,
                    Ok(_) => shared.fault(number).ok().flatten(),
                    Err(_) => return None,
                }
            };
            self.next.store(number.wrapping_add(1), Relaxed);
            let _ = dev.regs.write(regs::FAULT_GET, number.wrapping_add(1));
            let engine = record.and_then(|record| dev.engine(record.engine).ok().zip(Some(record)));
            let Some((engine, record)) = engine else {
                pr_err!("fault record {} makes no sense\n", number);
                Gpu::lose(dev, false);
                return None;
            };
            trace::fault(
                dev,
                record.engine,
                record.context_id,
                record.reason as u32,
                record.address,
            );
            recover(dev, record.engine, engine, Cause::Fault(record));
        }
    }
}

/// Asks the policy, for each engine, whether its work ends.
struct Watch {
    dev: ARef<SkuaDevice>,
    start: Instant<Monotonic>,
    watchdogs: Pin<KBox<Mutex<KVec<Watchdog>>>>,
}

impl AlarmHandler for Watch {
    fn run(&self) -> Option<Jiffies> {
        let dev = &*self.dev;
        dev.stop_watching();
        let now_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0);
        let mut busy = false;
        for (index, engine) in dev.engines() {
            // An interrupt may have been lost.
            engine.process(dev);
            let head = engine.state.lock().in_flight.front().map(|(id, _)| id);
            busy |= head.is_some();
            let sample = Sample {
                now_ms,
                head,
                ticks: engine.ticks(dev),
            };
            let verdict = match self.watchdogs.lock().get_mut(index as usize) {
                Some(watchdog) => watchdog.check(sample),
                None => Verdict::Healthy,
            };
            match verdict {
                Verdict::Healthy => (),
                Verdict::Overdue { id } | Verdict::Stuck { id } => {
                    recover(dev, index, engine, Cause::Endless(id));
                    if let Some(watchdog) = self.watchdogs.lock().get_mut(index as usize) {
                        watchdog.restart();
                    }
                }
            }
        }
        (busy && dev.go_on_watching()).then(|| msecs_to_jiffies(PERIOD_MS))
    }
}

/// The errno that tells a submitter what its job did.
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

/// Resets an engine and goes on without the guilty.
fn recover(dev: &SkuaDevice, index: u32, engine: &Engine, cause: Cause) {
    let mut finished = Finished::new();
    let turn = engine.turn.lock();
    let outcome = {
        let mut state = engine.state.lock();
        if state.mode != Mode::Running {
            return;
        }
        let outcome = engine.collect(dev, &mut state, &mut finished);
        let head = state.in_flight.front().map(|(id, _)| id);
        if let Cause::Endless(id) = cause {
            if head != Some(id) {
                // It did end, just now.
                drop(state);
                finished.signal(dev, index);
                return;
            }
        }
        state.mode = Mode::Recovering;
        outcome
    };
    finished.signal(dev, index);
    drop(turn);
    drop(finished);
    if outcome.and_then(|()| reset(dev, index)).is_err() {
        Gpu::lose(dev, false);
        return;
    }

    let (status, error) = match cause {
        Cause::Fault(record) => (Status::Faulted(record), errno(record.reason)),
        Cause::Endless(_) => (Status::TimedOut, ETIME),
    };
    let mut finished = Finished::new();
    let turn = engine.turn.lock();
    let (outcome, guilty) = {
        let mut state = engine.state.lock();
        if state.mode != Mode::Recovering {
            return;
        }
        // What it completed until it stopped.
        let outcome = engine.complete(dev, &mut state, &mut finished);
        let guilty = state
            .in_flight
            .front()
            .and_then(|(id, job)| Some((id, job.context()?.clone())));
        if let Some((head, context)) = &guilty {
            context.mark(status);
            let from = finished.len();
            state.in_flight.remove_if(
                |_, job| job.context_id() == context.id(),
                |id, job| {
                    let error = if id == *head { error } else { ECANCELED };
                    finished.push(job, Err(error));
                },
            );
            // Now what waits in its queue can be cancelled.
            state.retire(&finished, from);
        }
        let outcome = outcome.and_then(|()| {
            state.mode = Mode::Running;
            engine.replay(dev, &mut state)
        });
        (outcome, guilty)
    };
    // A fault with nobody guilty is the device's own or the driver's.
    let blameless = guilty.is_none() && matches!(cause, Cause::Fault(_));
    finished.signal(dev, index);
    drop(turn);
    drop(guilty);
    drop(finished);
    if blameless || outcome.is_err() {
        Gpu::lose(dev, false);
        return;
    }
    engine.process(dev);
}

/// Resets one engine and waits until it has stopped. `EIO`, `ENODEV`.
fn reset(dev: &SkuaDevice, index: u32) -> Result {
    let acks = |shared: &crate::hardware::shared::Shared| {
        shared.engine32(index, status::engine::RESET_ACK)
    };
    let before = acks(&*dev.shared.try_access().ok_or(ENODEV)?)?;
    dev.counters.resets.fetch_add(1, Relaxed);
    dev.regs
        .write_engine(index, regs::engine::CTRL, regs::engine::CTRL_RESET)?;
    dev.wait_for(|shared| Ok(acks(shared)? != before))
}
