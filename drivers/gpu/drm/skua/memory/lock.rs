// SPDX-License-Identifier: GPL-2.0

//! The CPU's locks (WDDM: Lock2, Unlock2; rows 0.12, 0.16, 0.19, 0.20, 0.21).
//!
//! A lock gives the address of all of an object, and nothing else: the CPU's mapping leads to where
//! the object is at any moment ([`gem::GemExt::fault`]). What the CPU reaches in VRAM stays where
//! it is, and may move under the lock; in VRAM that it does not see, as long as the
//! [aperture](super::host_aperture) has pages for all that is locked there. What it does not
//! ([`BoData::is_seen_in_vram`]) is locked out of VRAM: it leaves that for the first of its
//! eviction set that has room, and as long as some client has it locked it does not move back
//! ([`BoData::is_held_out`], which a move to VRAM asks under the reservation lock). What the GPU is
//! to reach in VRAM or the aperture moves to that, if it has room, or is out. What the GPU is to
//! reach in VRAM alone does not move for a lock: it can be locked while it is out, and who needs it
//! there has to do without until it is unlocked, as has who makes it resident
//! ([`pending_residency`](super::pending_residency)). Where that might be another client it cannot
//! be locked, nor where the aperture has no room for it. What several clients have mapped leaves
//! VRAM for a lock only when nobody works with it.
//!
//! [`BoData::is_seen_in_vram`]: crate::memory::bo::BoData::is_seen_in_vram
//! [`BoData::is_held_out`]: crate::memory::bo::BoData::is_held_out

use crate::{
    ext::{
        gem::{
            self,
            Placement, //
        },
        resv, //
    },
    gpu::SkuaDevice,
    memory::{
        bo::{
            self,
            Bo,
            BoData,
            BoRef,
            REGION_VRAM, //
        },
        claims::Claims,
        device::look_again,
        eviction,
        host_aperture,
        offer,
        paging_in::bring_to_aperture, //
    },
    policy::eviction::Need, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::aref::ARef,
    time::Jiffies, //
};

/// Locks `bo` once more for the client with `locks`.
///
/// `EOPNOTSUPP` if it is imported; `EPERM` if it is in VRAM, where the CPU does not reach it, or
/// others may have it, and the GPU is to find it nowhere else; `ENOSPC` if others may have it, and
/// there is no room for it in the aperture; `EMFILE`; `EBUSY` if it is offered, or about to be
/// destroyed; as [`eviction::move_out`]. It is not locked then.
pub(crate) fn lock(locks: &Claims, dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    if gem::is_imported(&**bo) {
        return Err(EOPNOTSUPP);
    }
    let reach = || {
        offer::check(bo)?;
        be_reachable(dev, parent, bo)?;
        keep_nobody_out(dev, parent, bo)
    };
    // Before it counts: others do not get into VRAM meanwhile what is locked.
    may_be_reached(bo)?;
    let mut patience = eviction::patience();
    loop {
        let may_be_kept_out = || gem::is_foreign(&**bo) && !BoData::is_seen_in_vram(bo);
        if may_be_kept_out() {
            eviction::spend(&mut patience, reach)?;
        }
        // Others' work brings it to VRAM before this, or finds it where it stays.
        let _reserved = resv::lock(&**bo)?;
        if !may_be_kept_out() || (bo.region() != REGION_VRAM && !bo.is_out()) {
            locks.add(bo)?;
            break;
        }
        patience = patience.checked_sub(1).ok_or(ENOSPC)?;
    }
    let locked = reach();
    if locked.is_err() {
        locks.undo(core::iter::once(bo));
        dev.pending_residency.look_again(locks);
    }
    host_aperture::hold(dev, bo);
    locked
}

/// Takes [`lock`] back once. `EINVAL` if the client has not locked `bo`.
pub(crate) fn unlock(locks: &Claims, dev: &SkuaDevice, bo: &BoRef) -> Result {
    locks.take_back(core::iter::once(bo))?;
    host_aperture::hold(dev, bo);
    dev.pending_residency.look_again(locks);
    look_again(dev, bo);
    Ok(())
}

/// The client's handle of `bo` is gone, and with it all its locks.
pub(crate) fn forget(locks: &Claims, dev: &SkuaDevice, bo: &Bo) {
    if locks.forget(bo) {
        host_aperture::hold(dev, bo);
        dev.pending_residency.look_again(locks);
        let bo: ARef<Bo> = bo.into();
        look_again(dev, &bo.into());
    }
}

/// `EPERM` if the CPU does not reach `bo` in VRAM, others may have it, and the GPU is to find it
/// nowhere else.
fn may_be_reached(bo: &BoRef) -> Result {
    let is_foreign = {
        let _reserved = resv::lock(&**bo)?;
        gem::is_foreign(&**bo)
    };
    match is_foreign && bo.is_for_vram_alone() && !BoData::is_seen_in_vram(bo) {
        true => Err(EPERM),
        false => Ok(()),
    }
}

/// Has `bo` be where the CPU reaches it, if it is locked until it is not any more.
fn be_reachable(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    let mut patience = eviction::patience();
    while BoData::is_seen_in_vram(bo) {
        {
            // A move to VRAM was published before this, or sees the lock.
            let reserved = resv::lock(&**bo)?;
            match gem::placement(bo, &reserved)? {
                Placement::Device(site) if !BoData::may_be_locked_in(bo, &site.range) => (),
                _ => return Ok(()),
            }
        }
        if leave(dev, parent, bo, &mut patience)? {
            return settle(bo, patience);
        }
    }
    may_be_reached(bo)?;
    if bo.is_for_vram_alone() {
        if bo.region() == REGION_VRAM {
            return Err(EPERM);
        }
    } else {
        while !leave(dev, parent, bo, &mut patience)? {}
    }
    settle(bo, patience)
}

/// Has `bo`, which is to be locked, be in the aperture if others may have it, and the GPU finds it
/// nowhere else as long as it is. `ENOSPC` if there is no room; as [`bring_to_aperture`].
fn keep_nobody_out(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    if !gem::is_foreign(&**bo) || !bo.is_out() {
        return Ok(());
    }
    match bring_to_aperture(dev, parent, bo, Need::Prefers, true, &mut 0) {
        Err(error) if error != ENOSPC => return Err(error),
        _ => (),
    }
    let _reserved = resv::lock(&**bo)?;
    match gem::is_foreign(&**bo) && !BoData::is_seen_in_vram(bo) && bo.is_out() {
        true => Err(ENOSPC),
        false => Ok(()),
    }
}

/// Has `bo` move to where the CPU reaches it; whether it is on its way. If not, that was for what
/// others did with it just then, and takes from `patience`. `EBUSY` if it is about to be destroyed;
/// as [`eviction::move_out`].
fn leave(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &BoRef,
    patience: &mut Jiffies,
) -> Result<bool> {
    eviction::move_out(dev, parent, bo, patience)?;
    if bo.region() != REGION_VRAM {
        return Ok(true);
    }
    if bo.is_dying() {
        return Err(EBUSY);
    }
    dev.check_health()?;
    if current!().signal_pending() {
        return Err(EINTR);
    }
    *patience = patience.checked_sub(1).ok_or(ENOSPC)?;
    Ok(false)
}

/// Waits for a move of `bo` that somebody else may have begun. `ENOSPC` if that takes long.
fn settle(bo: &BoRef, mut patience: Jiffies) -> Result {
    // What moves beside it may wait for work, and that for what the CPU is to write.
    let work = bo::own_work(bo, &resv::lock(&**bo)?)?;
    work.map_or(Ok(()), |fence| eviction::wait(&fence, &mut patience))
}
