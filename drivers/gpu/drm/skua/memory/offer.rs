// SPDX-License-Identifier: GPL-2.0

//! Content that nobody needs for now (WDDM: OfferAllocations, ReclaimAllocations2).
//!
//! What is offered goes first where memory is short, and is not copied: its memory is free, and
//! what comes in its place is zero. Until it is reclaimed nobody is to use it: it is bound, locked,
//! made resident and exported nowhere, and the CPU's mappings are a bus error. Page tables are left
//! alone until the content goes; then they lead nowhere.
//!
//! ```text
//! in VRAM          who needs room ─▶ a move to nowhere                       (eviction)
//! system pages     the shrinker ─▶ nothing mapped: at once                   (bo)
//!                               └▶ mapped: later, a move to nowhere          (Discarder)
//! ```
//!
//! All that asks whether an object is offered does so with its reservation locked, as who offers it
//! does, and looks for locks, residency and exports.

use crate::{
    ext::{
        device,
        exec::Exec,
        gem::{
            self,
            Placement, //
        },
        lru,
        queue::{
            Alarm,
            AlarmHandler,
            Nice,
            Order,
            OwnedQueue, //
        },
        resv::{
            self,
            Handle,
            Reserved, //
        },
        shrinker::Shrink, //
    },
    gpu::{
        self,
        SkuaDevice, //
    },
    memory::{
        bo::{
            self,
            Bo,
            BoData,
            BoRef, //
        },
        clean_copy,
        device::look_again,
        relocation::{
            relocate,
            Reason, //
        },
        vm::for_each_user, //
    },
    policy::priority::Offer,
    spec::number::Asid, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};

/// How long one call waits for content that is being thrown away.
const PATIENCE_MS: u32 = 1000;

/// `EBUSY` if `bo` is offered: it is not to be used. `EINTR` if a signal arrives.
pub(crate) fn check(bo: &Bo) -> Result {
    let _reserved = resv::lock(bo)?;
    match bo.is_offered() {
        true => Err(EBUSY),
        false => Ok(()),
    }
}

/// The reservation locks of all of `objects`, until it is dropped. `EINTR`, `ENOMEM`.
fn lock_all(objects: &[(u32, BoRef)]) -> Result<Exec> {
    Exec::lock_all(|exec| {
        let mut handles = objects.iter().map(|(_, bo)| Handle::of(&**bo));
        handles.try_for_each(|handle| exec.lock(&handle))
    })
}

/// Calls `f` with each of `objects`, and its lock, of those that `exec` has.
fn for_each(
    exec: &mut Exec,
    objects: &[(u32, BoRef)],
    mut f: impl FnMut(usize, &BoRef, &mut Reserved<'_>) -> Result,
) -> Result {
    objects.iter().enumerate().try_for_each(|(at, (_, bo))| {
        let mut reserved = exec.reserved(&Handle::of(&**bo))?;
        f(at, bo, &mut reserved)
    })
}

/// Offers all of `objects`, each of which is named once, or none, with WDDM's `number` of a
/// priority.
///
/// `EINVAL` for that; `EOPNOTSUPP` if one is imported, `EPERM` if others may have it, `EBUSY` if it
/// is locked, resident, or about to be destroyed; `ENOMEM`; `EINTR` if a signal arrives.
pub(crate) fn offer(dev: &SkuaDevice, objects: &[(u32, BoRef)], number: u32) -> Result {
    let of = |bo: &Bo| Offer::of(number, bo.priority()).ok_or(EINVAL);
    let mut exec = lock_all(objects)?;
    for (_, bo) in objects {
        if gem::is_imported(&**bo) {
            return Err(EOPNOTSUPP);
        }
        if gem::is_foreign(&**bo) {
            return Err(EPERM);
        }
        if bo.is_locked() || bo.is_resident() || bo.is_dying() {
            return Err(EBUSY);
        }
        of(bo)?;
    }
    // From here on nothing fails.
    for_each(&mut exec, objects, |_, bo, reserved| {
        // Its content need not be anywhere.
        clean_copy::drop_copy(bo, reserved)?;
        match bo.is_discarded() {
            true => Ok(()),
            // CAST: few.
            false => bo::set_offer(bo, reserved, gem::Offer::At(of(bo)? as u8)),
        }
    })?;
    drop(exec);
    objects.iter().for_each(|(_, bo)| look_again(dev, bo));
    Ok(())
}

/// Takes [`offer`] back for all of `objects`, or for none, and calls `is_gone` with the number of
/// each whose content was thrown away: it is zero.
///
/// `EAGAIN` if one is just being thrown away, and that takes long; `ENOMEM`, `EIO`, `ENODEV`;
/// `EINTR` if a signal arrives.
pub(crate) fn reclaim(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    objects: &[(u32, BoRef)],
    mut is_gone: impl FnMut(usize),
) -> Result {
    let mut patience = msecs_to_jiffies(PATIENCE_MS);
    let mut exec = loop {
        for (_, bo) in objects {
            settle(dev, bo, &mut patience)?;
            // One at a time, as for a page fault: that may take long.
            let mut reserved = resv::lock(&**bo)?;
            if lacks_pages(bo, &reserved)? {
                bo::wake(bo, &mut reserved)?;
            }
        }
        let mut exec = lock_all(objects)?;
        // Under the locks: what is not on its way now will not be.
        let mut is_ready = true;
        for_each(&mut exec, objects, |_, bo, reserved| {
            is_ready &= !is_going(bo) && !lacks_pages(bo, reserved)?;
            Ok(())
        })?;
        if is_ready {
            break exec;
        }
        patience = patience.checked_sub(1).ok_or(EAGAIN)?;
    };
    // What page tables led to; if this fails, it may be thrown away again.
    for_each(&mut exec, objects, |_, bo, _| match bo.is_discarded() {
        true => reinstall(dev, parent, bo),
        false => Ok(()),
    })?;
    // From here on nothing fails.
    for_each(&mut exec, objects, |at, bo, reserved| {
        if bo.is_discarded() {
            is_gone(at);
        }
        match bo.is_offered() {
            true => bo::set_offer(bo, reserved, gem::Offer::Not),
            false => Ok(()),
        }
    })?;
    drop(exec);
    objects.iter().for_each(|(_, bo)| look_again(dev, bo));
    Ok(())
}

/// Whether the content of `bo` is just being thrown away.
fn is_going(bo: &Bo) -> bool {
    bo.is_discarded() && bo.is_arriving()
}

/// Whether `bo` is gone, and is to have pages for what is mapped of it. `EINVAL` unless `reserved`
/// is its lock.
fn lacks_pages(bo: &Bo, reserved: &Reserved<'_>) -> Result<bool> {
    let is_mapped = bo.sites.next_user(Asid::SYSTEM).is_some();
    let rests = matches!(gem::placement(bo, reserved)?, Placement::Resting(_));
    Ok(rests && is_mapped && bo.is_discarded() && !bo.is_arriving())
}

/// Waits until nothing is left of what is thrown away of `bo`, if that is.
fn settle(dev: &SkuaDevice, bo: &BoRef, patience: &mut Jiffies) -> Result {
    while is_going(bo) {
        // What it had may be kept, as long as the device is not known to be quiet.
        dev.wait_for_resets()?;
        dev.check_health()?;
        if current!().signal_pending() {
            return Err(EINTR);
        }
        match bo::wait_a_moment(bo, patience) {
            Err(error) if error == ENOSPC => return Err(EAGAIN),
            waited => waited?,
        };
        *patience = patience.saturating_sub(1);
        dev.reap();
    }
    Ok(())
}

/// Has page tables lead to the pages of `bo`, if it has got new ones.
fn reinstall(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    // None of what is destroyed, or mapped nowhere.
    let Some(memory) = bo.sites.memory() else {
        return Ok(());
    };
    let mut result = Ok(());
    for_each_user(dev, bo, |vm| {
        // Even if no page table is to lead to it there: a bind that installs it now waits for this
        // lock, or is seen.
        result = result.and(vm.reinstall(parent, bo, Some(&memory)));
        Ok(())
    })?;
    result
}

/// Throws away what the shrinker would have if page tables did not lead there; a device has one.
pub(crate) struct Discarder {
    /// Throws the pages away, in a worker.
    alarm: Alarm<Discards>,
    /// Pages that were asked for, shared with the handler.
    pages: Arc<Atomic<u64>>,
}

/// A [`Discarder`]'s alarm: begins moves to nowhere of what is offered and mapped, in a worker.
struct Discards {
    /// The device whose objects are offered.
    dev: ARef<SkuaDevice>,
    /// Pages that are still to be thrown away.
    pages: Arc<Atomic<u64>>,
}

impl Discarder {
    /// One that nobody has asked yet. `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice) -> Result<Self> {
        let queue = OwnedQueue::new(c"skua-discards", Order::Ordered, Nice::Normal)?;
        let pages = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let handler = Discards {
            dev: dev.into(),
            pages: pages.clone(),
        };
        let alarm = Alarm::new(Arc::new(queue, GFP_KERNEL)?, handler)?;
        Ok(Self { alarm, pages })
    }

    /// Has so many `pages` of what is offered thrown away soon. Allocates nothing, and waits for
    /// nothing.
    pub(crate) fn ask(&self, pages: usize) {
        // Who asks again meanwhile means the same. CAST: `usize` has 64 bits.
        let most = self.pages.load(Relaxed).max(pages as u64);
        self.pages.store(most, Relaxed);
        self.alarm.kick();
    }
}

impl AlarmHandler for Discards {
    fn run(&self) -> Option<Jiffies> {
        let mut missing = self.pages.xchg(0, Full);
        let bound = device::enter(&*self.dev)?;
        let ranks = BoData::AWAKE.iter().take(Offer::ALL.len());
        for bo in ranks.flat_map(|rank| lru::walk::<BoData>(&self.dev, *rank)) {
            if missing == 0 {
                break;
            }
            let parent = gpu::parent(&bound);
            let lost = bo::offered_share(&bo).and_then(|share| {
                let nowhere = Placement::Resting(share);
                relocate(&self.dev, parent, &bo, nowhere, None, true, Reason::Other)
            });
            if lost.is_ok() {
                missing = missing.saturating_sub((bo.size() / PAGE_SIZE) as u64);
            }
        }
        None
    }
}
