// SPDX-License-Identifier: GPL-2.0

//! The adapter reset: what helps when the reset of an engine does not (rows 2.02, 2.21, 2.22).
//!
//! An engine that does not acknowledge its reset, a paging packet that faults or does not end, a
//! device that reports what cannot be or leaves a request unanswered, or that its bus has reset (a
//! function level reset): all of it is reset. What was
//! in VRAM is lost then, and so is all work of clients, as it cannot be told what it needs of that.
//! The device goes on, and who makes a new device of the same file works with it.
//!
//! ```text
//! recovery, who waits in vain ─▶ too often? ─ yes ─▶ the device is lost (Gpu::lose)
//!                                    │ no
//!                                    ▼
//!      no engine takes work ─▶ reset ─▶ restart ─▶ VRAM is all zero
//!                                    │
//!                                    ▼
//!      contexts and devices of clients have failed ─▶ their fences: ETIME, EFAULT, ECANCELED
//!      moves and clears begin anew                 ─▶ engines take work
//! ```
//!
//! Who sees that his work has failed finds VRAM zero, by the address at which the CPU has it
//! mapped, and keeps what is written there from then on. Moves and clears that were under way begin
//! anew: what moves into VRAM is still where it came from, and gets there; what was still moving
//! out is zero. Page tables, descriptors and the aperture segment are in system memory, and stay;
//! what the CPU host aperture showed it shows again.
//!
//! Memory that the device may have reached though it should not is kept until it is reset
//! ([`crate::reaper`]).

use crate::{
    ext::trace,
    fences::gate::Wake,
    gpu::{
        Gpu,
        SkuaDevice, //
    },
    policy::{
        adapter_resets::AdapterResets,
        buddy::{
            PageRange,
            PAGE_BYTES, //
        },
        miniport::{
            Miniport,
            VRAM_SEGMENT, //
        },
        node::Cause,
        paging::MultipassOffset, //
    },
    spec::pci::MAX_ENGINES,
    submit::{
        context::Status,
        coredump::Failure,
        engine::Engine,
        recovery::{
            mark_guilty,
            status_and_errno, //
        }, //
    }, //
};
use kernel::{
    new_condvar,
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        CondVar,
        Mutex,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// How often the adapter is reset before it is given up (row 2.02).
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Resets that are borne in `within_s` (`TdrLimitCount`).
    pub(crate) count: u32,
    /// Seconds in which `count` resets are borne (`TdrLimitTime`).
    pub(crate) within_s: u32,
}

/// How often the adapter was reset and may be again, and whether it is to be: one of each device.
#[pin_data]
pub(crate) struct Resets {
    /// How many there have been lately, and whether one more is borne.
    #[pin]
    policy: SpinLock<AdapterResets>,
    /// What the policy's times count from.
    start: Instant<Monotonic>,
    /// The generation of the device in which somebody has found that one is needed.
    wanted: Atomic<u32>,
    /// Whether somebody resets it just now: the driver, or its bus.
    #[pin]
    busy: Mutex<bool>,
    /// Notified when nobody does any more.
    #[pin]
    free: CondVar,
    /// Whether its bus does: then nobody answers.
    by_bus: Atomic<bool>,
}

/// In no generation: while an adapter is reset, nobody looks at it.
const NEVER: u32 = u32::MAX;

impl Resets {
    /// Of an adapter that was never reset, and may be as often as `limits` say.
    pub(crate) fn new(limits: Limits) -> impl PinInit<Self> {
        let within_ms = u64::from(limits.within_s).saturating_mul(1000);
        pin_init!(Self {
            policy <- new_spinlock!(AdapterResets::new(limits.count, within_ms)),
            start: Instant::now(),
            wanted: Atomic::new(NEVER),
            busy <- new_mutex!(false),
            free <- new_condvar!("Resets::free"),
            by_bus: Atomic::new(false),
        })
    }

    /// Nobody else resets the device until [`Self::leave`]. Waits for who does, which is bounded.
    fn enter(&self) {
        let mut busy = self.busy.lock();
        while *busy {
            self.free.wait(&mut busy);
        }
        *busy = true;
    }

    fn leave(&self) {
        *self.busy.lock() = false;
        self.free.notify_all();
    }

    /// Its bus resets the device from now on. Process context, with the device locked.
    pub(crate) fn begin_by_bus(&self) {
        self.enter();
        self.by_bus.store(true, Release);
    }

    /// Its bus has.
    pub(crate) fn end_by_bus(&self) {
        self.by_bus.store(false, Release);
        self.leave();
    }

    /// Whether nobody answers since its bus resets the device.
    pub(crate) fn is_by_bus(&self) -> bool {
        self.by_bus.load(Acquire)
    }

    /// The adapter is to be reset, unless it was since `generation`, or somebody has found so
    /// since.
    pub(crate) fn want(&self, generation: u32) {
        let mut wanted = self.wanted.load(Acquire);
        while wanted == NEVER || wanted < generation {
            match self.wanted.cmpxchg(wanted, generation, Full) {
                Ok(_) => return,
                Err(newer) => wanted = newer,
            }
        }
    }

    /// Whether somebody has found in this `generation` that the adapter is to be reset.
    pub(crate) fn is_wanted(&self, generation: u32) -> bool {
        self.wanted.load(Acquire) == generation
    }

    /// Whether the adapter may be reset once more; if so, that is counted.
    fn begin(&self) -> bool {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0);
        self.policy.lock().begin(now)
    }
}

/// Resets the adapter, and with that ends the recoveries of engines, whose causes say who is
/// guilty; or declares the device lost, if it was reset too often, does not come back, or is to be
/// lost anyway.
///
/// Called by the alarms, one at a time. Bounded, and in a signalling section as a whole.
pub(crate) fn reset_adapter(dev: &SkuaDevice) {
    dev.resets.enter();
    reset_alone(dev);
    dev.resets.leave();
}

/// Does that while nobody else resets it.
fn reset_alone(dev: &SkuaDevice) {
    if dev.check_health().is_err() || !dev.hw.is_present() || !dev.resets.begin() {
        return Gpu::lose(dev, false);
    }
    dev.suspend();
    if dev.engines().all(|(_, engine)| engine.recovery().is_none()) {
        dev.herald.tell_of_failure(dev, &Failure::Adapter);
    }
    for (_, engine) in dev.engines() {
        engine.halt(dev);
    }
    trace::adapter_reset(dev);
    if begin_again(dev).is_err() {
        return Gpu::lose(dev, false);
    }
    dev_err!(
        dev.as_ref(),
        "the adapter was reset; what was in VRAM is lost\n"
    );
    let mut guilty = [None; MAX_ENGINES as usize];
    for (guilty, (_, engine)) in guilty.iter_mut().zip(dev.engines()) {
        *guilty = convict(dev, engine);
    }
    fail_all(dev);
    dev.resume();
    for (guilty, (_, engine)) in guilty.into_iter().zip(dev.engines()) {
        engine.give_up(dev, guilty);
    }
    dev.for_each_own(|context| context.begin_anew());
    go_on(dev);
    dev.herald.tell_of_reset(dev);
    dev.counters.adapter_resets.fetch_add(1, Release);
    if dev.check_health().is_err() {
        // Somebody has found meanwhile that it does not help.
        Gpu::lose(dev, false);
    }
}

/// The first half, of a device that is to lose its power: whether it may now. It may not unless
/// engines rest, and hold nobody, and nothing is in VRAM; and not if it is to be reset. By the
/// [`Sleeper`], likewise bounded.
///
/// [`Sleeper`]: super::power::Sleeper
pub(crate) fn begin_sleep(dev: &SkuaDevice) -> bool {
    if dev.check_health().is_err() || dev.resets.is_wanted(dev.hw.generation()) {
        return false;
    }
    dev.suspend();
    for (_, engine) in dev.engines() {
        engine.halt(dev);
    }
    let rests = dev.engines().all(|(_, engine)| engine.state.lock().rests());
    // What is held may have been let go of, and have brought something in, since it was looked at.
    if !rests || dev.vram_ranges.load(Acquire) != 0 {
        dev.resume();
        go_on(dev);
        return false;
    }
    let reset = dev.hw.reset_from_timeout();
    if reset.and_then(|()| dev.wait_until_reset()).is_err() {
        Gpu::lose(dev, false);
        return false;
    }
    true
}

/// The second half: it has power again.
pub(crate) fn end_sleep(dev: &SkuaDevice) {
    if begin_again(dev).is_err() {
        return Gpu::lose(dev, false);
    }
    dev.resume();
    dev.for_each_own(|context| context.begin_anew());
    go_on(dev);
}

fn go_on(dev: &SkuaDevice) {
    for (_, engine) in dev.engines() {
        engine.go_on(dev);
    }
}

/// Resets the device, has it begin anew, and clears VRAM. `ETIMEDOUT`, `EIO`, `ENODEV`.
fn begin_again(dev: &SkuaDevice) -> Result {
    restart(dev)?;
    purge(dev)?;
    dev.vram_generation.store(dev.hw.generation(), Release);
    Ok(())
}

/// Resets the device, and has it and the engines begin anew. `ETIMEDOUT`, `EIO`, `ENODEV`.
fn restart(dev: &SkuaDevice) -> Result {
    let mut ticks = [0; MAX_ENGINES as usize];
    for (ticks, (_, engine)) in ticks.iter_mut().zip(dev.engines()) {
        *ticks = engine.ticks(dev);
    }
    dev.hw.reset_from_timeout()?;
    dev.wait_until_reset()?;
    dev.hw.restart_from_timeout()?;
    for (ticks, (_, engine)) in ticks.into_iter().zip(dev.engines()) {
        // Too low for a moment, and never too high.
        engine.set_old_ticks(ticks);
    }
    dev.wait_briefly(|| dev.hw.has_restarted())?;
    for (_, engine) in dev.engines() {
        engine.stale_faults.store(0, Relaxed);
        engine.state.lock().node.restart(&dev.hw)?;
    }
    Ok(())
}

/// Has all of VRAM be zero. `ETIMEDOUT`, `EIO`, `ENODEV`.
fn purge(dev: &SkuaDevice) -> Result {
    let engine = dev.engine(dev.paging_engine()?)?;
    let all = [PageRange::new(0, dev.hw.caps.vram_size / PAGE_BYTES)];
    let mut next = Some(MultipassOffset::default());
    while let Some(from) = next {
        let purge = {
            let mut state = engine.state.lock();
            state.node.purge(&dev.hw, VRAM_SEGMENT, &all, from)?
        };
        dev.wait_briefly(|| Ok(engine.state.lock().node.is_purged(&dev.hw, &purge)?))?;
        next = purge.next;
    }
    Ok(())
}

/// An engine is recovered no more: the client whose packet that was for has failed; the error of
/// that packet's fence.
fn convict(dev: &SkuaDevice, engine: &Engine) -> Option<Error> {
    let (context, (status, error)) = {
        let mut state = engine.state.lock();
        let recovery = state.recovery.take()?;
        // An engine that has faulted meanwhile stands at what did that.
        let causes = [recovery.fault.map(Cause::Fault), Some(recovery.cause)];
        let mut causes = causes.into_iter().flatten();
        let cause = causes.find(|cause| state.node.is_named(cause))?;
        let (_, packet) = state.node.head()?;
        (
            packet.submission.context().clone(),
            status_and_errno(&cause),
        )
    };
    // The system's own goes on.
    let vm = context
        .vm()
        .and_then(|_| mark_guilty(dev, &context, status));
    dev.reapers.contexts.bury(context);
    let vm = vm?;
    dev.reapers.vms.bury(vm);
    Some(error)
}

/// All that clients have on the device has failed, unless it has before.
fn fail_all(dev: &SkuaDevice) {
    dev.vms.for_each(|vm| {
        let device = vm.device();
        if device.fail(Status::Reset.code()) {
            dev.fences.end(device.id(), true);
        }
        dev.reapers.vms.bury(vm);
    });
    dev.pending_residency.look_at_all();
    dev.contexts.for_each(|context| {
        context.mark(Status::Reset);
        Wake::wake(&context);
        dev.reapers.contexts.bury(context);
    });
}
