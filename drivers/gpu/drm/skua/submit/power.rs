// SPDX-License-Identifier: GPL-2.0

//! Sleep: the system is suspended, and the device loses its power, its registers and its VRAM.
//!
//! ```text
//! userspace is frozen ─▶ sleep ─▶ engines leave their contexts, all leaves VRAM ◀──┐
//!                                       │ engines rest, VRAM is empty              │ not yet
//!                                       ▼                                          │
//!                               Sleeper: engines take no work ─────────────────────┘
//!                                       │
//!                                       ▼
//!            asleep: the first half of an adapter reset ─▶ power off, and on again
//!                                       │
//!                                       ▼
//!                wake ─▶ Sleeper: its second half ─▶ engines take work
//! ```
//!
//! What was accepted is done before, but for what waits for others that sleep already: no work is
//! lost, as nothing is under way, and no content, as nothing is in VRAM. What is held for monitored
//! fences stays held. Where work does not end in
//! time, or VRAM cannot be emptied, the system does not sleep (`EBUSY`), and nothing has changed
//! but that memory has moved, or will when the work is done that uses it.
//!
//! Whoever waits for the device meanwhile waits as for a reset
//! ([`Gpu::wait_for`](crate::gpu::Gpu::wait_for)).

use crate::{
    ext::{
        device,
        fence::Signalling,
        queue::AlarmHandler, //
    },
    gpu::{
        self,
        Pauses,
        SkuaDevice, //
    },
    memory::{
        clearer::Pause,
        eviction,
        vram::Part, //
    },
    submit::adapter_reset, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        }, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

/// How long work may take that the system waits for when it is to sleep: longer than recovery does
/// from what hangs, with the default time-outs.
const PATIENCE: Delta = Delta::from_secs(30);

/// For how long the device stays awake for work that waits for others' work: another GPU's, which
/// may stay awake for that of this one, but may be asleep.
const OTHERS: Delta = Delta::from_secs(10);

/// What a device is asked for, and what it is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum State {
    /// Engines take work.
    Running = 0,
    /// The system is to sleep: the [`Sleeper`] is asked whether the device may sleep.
    Suspending = 1,
    /// The device has no power, or may lose it.
    Suspended = 2,
    /// The system has woken: the [`Sleeper`] is asked to have engines take work again.
    Resuming = 3,
}

/// The device's [`State`], as its number.
pub(crate) struct Power(Atomic<u32>);

impl Power {
    /// The state of a device that was just started.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(State::Running as u32))
    }

    fn is(&self, state: State) -> bool {
        self.0.load(Acquire) == state as u32
    }

    fn set(&self, state: State) {
        self.0.store(state as u32, Release);
    }

    /// Has the [`Sleeper`] do what `state` asks for, and waits until it has.
    fn ask(&self, dev: &SkuaDevice, state: State) {
        self.0.xchg(state as u32, Full);
        dev.sleep_or_wake();
        let pauses = Pauses::new();
        while self.is(state) {
            pauses.sleep();
        }
    }
}

/// Has the device sleep and wake, in the alarms' queue, where nothing else is done about it
/// meanwhile.
pub(crate) struct Sleeper {
    /// The device that sleeps.
    dev: ARef<SkuaDevice>,
}

impl Sleeper {
    /// A sleeper that is not asked for anything.
    pub(crate) fn new(dev: &SkuaDevice) -> Self {
        Self { dev: dev.into() }
    }
}

impl AlarmHandler for Sleeper {
    fn run(&self) -> Option<Jiffies> {
        let _signalling = Signalling::begin();
        let dev = &*self.dev;
        if dev.power.is(State::Suspending) && adapter_reset::begin_sleep(dev) {
            dev.power.set(State::Suspended);
            return None;
        }
        if dev.power.is(State::Resuming) {
            adapter_reset::end_sleep(dev);
        }
        dev.power.set(State::Running);
        None
    }
}

/// Has the device sleep. Userspace is frozen, and stays so until [`wake`].
///
/// `EBUSY` if work does not end in time, or something stays in VRAM: the device is awake. A device
/// that is lost sleeps anyway.
pub(crate) fn sleep(dev: &SkuaDevice) -> Result {
    let start = Instant::<Monotonic>::now();
    // What is freed meanwhile is zero when the device wakes.
    let _pause = Pause::new(dev, &mut eviction::patience())?;
    while dev.check_health().is_ok() {
        let late = start.elapsed() > PATIENCE;
        // Not for all of the time: no DRM device is unplugged meanwhile.
        let bound = device::enter(dev).ok_or(ENODEV)?;
        let is_empty = empty(dev, gpu::parent(&bound))?;
        drop(bound);
        let is_asked_for = start.elapsed() < OTHERS && waits_for_others(dev);
        if is_empty && !is_asked_for {
            dev.power.ask(dev, State::Suspending);
            if dev.power.is(State::Suspended) {
                return Ok(());
            }
        }
        if late {
            dev_warn!(dev.as_ref(), "work does not end: the device stays awake\n");
            return Err(EBUSY);
        }
        fsleep(Delta::from_millis(1));
    }
    Ok(())
}

/// Has engines leave the contexts that they hold, and all that can leave VRAM; whether nothing is
/// there.
fn empty(dev: &SkuaDevice, parent: &Device<Bound>) -> Result<bool> {
    for (_, engine) in dev.engines() {
        engine.leave_held(dev)?;
    }
    match eviction::evict_all(dev, eviction::Vram::new(dev, parent, Part::Any, None)) {
        // Too much at once, or not in time: the rest next time.
        Ok(_) | Err(ENOSPC | EBUSY) => (),
        Err(error) => return Err(error),
    }
    Ok(dev.vram_ranges.load(Acquire) == 0)
}

/// Whether a client's work waits for what others do.
fn waits_for_others(dev: &SkuaDevice) -> bool {
    let mut waits = false;
    dev.contexts.for_each(|context| {
        waits |= context.waits();
        dev.reapers.contexts.bury(context);
    });
    waits
}

/// Has the device work again. `EIO` if it is lost.
pub(crate) fn wake(dev: &SkuaDevice) -> Result {
    if dev.power.is(State::Suspended) {
        dev.power.ask(dev, State::Resuming);
    }
    dev.check_health()
}
