// SPDX-License-Identifier: GPL-2.0

//! What clients want to have in VRAM (WDDM: MakeResident, Evict).
//!
//! A [device](super::device) counts how often an object was made resident for it
//! ([`claims`](super::claims)). As long as that is not 0 for some device, the object is no victim
//! of those who merely prefer VRAM; for those who need it, it leaves after what nothing keeps. What
//! of it work needs in VRAM is [brought back](super::paging_in) before the work runs; other objects
//! the GPU reaches in system memory, too.

use crate::{
    ext::{
        fence::Fence,
        gem::{
            self,
            Placement, //
        },
        resv::{
            self,
            Usage, //
        }, //
    },
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            Bo,
            BoData,
            BoRef, //
        },
        device::{
            look_again,
            ClientDevice, //
        },
        eviction,
        moves::UnderWay,
        offer,
        paging_in,
        pending_residency,
        relocation::{
            relocate,
            Reason, //
        },
        vm::{
            for_each_user,
            Vm, //
        },
        vram::{
            Part,
            VramRange, //
        }, //
    },
    policy::{
        eviction::Need,
        segment_sets::Segment, //
    },
    spec::number::Asid, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc, //
    }, //
};

/// Makes all of `objects` resident once more for `device`, or none, and has those that may be in
/// VRAM and are not move there, as far as there is room or can be made; a fence for all moves that
/// are under way then.
///
/// Of an explicit device, says in `excess` by how many bytes it exceeds its budget then, or would.
///
/// If some of them are [locked out](pending_residency::is_locked_out) calls `locked_out`, which may
/// refuse that, and says whether somebody is told when they are there: work does not need them
/// before then, until [`confirm`].
///
/// `ENOMEM`, also if that is not 0, unless the client can `not_trim`; `EBUSY` if one is offered;
/// `ENODEV`; `EMFILE`; `EINTR` if a signal arrives. Nobody's count has changed then.
pub(crate) fn make_resident(
    device: &ClientDevice,
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    objects: &[(u32, BoRef)],
    not_trim: bool,
    excess: &mut u64,
    locked_out: impl FnOnce() -> Result<bool>,
) -> Result<Fence> {
    let residents = device.residents();
    let before = residents.bytes();
    let mut counted = 0;
    let result = objects.iter().try_for_each(|(_, bo)| {
        residents.add(bo)?;
        counted += 1;
        offer::check(bo)
    });
    let result = result
        .and_then(|()| check_budget(device, dev, before, not_trim, excess))
        // First all of them: they do not make room for each other.
        .and_then(|()| {
            // The excess is told with success, and with the refusal above; not with other errors.
            let told = core::mem::take(excess);
            let moves = move_in(device, dev, parent, objects)?;
            let mut all = objects.iter().map(|(_, bo)| bo);
            let is_pending = all.clone().any(|bo| pending_residency::is_locked_out(bo));
            if is_pending && locked_out()? {
                residents.postpone(&mut all);
            }
            *excess = told;
            Ok(moves)
        });
    let claimed = || objects.iter().take(counted).map(|(_, bo)| bo);
    match result {
        Err(_) => residents.undo(claimed()),
        Ok(_) => device.tell_others(),
    }
    // What did not come by this is work's to bring in from now on.
    claimed().for_each(|bo| look_again(dev, bo));
    result
}

/// What [`make_resident`] has postponed of `objects` for `device` is not any more.
pub(crate) fn confirm(device: &ClientDevice, dev: &SkuaDevice, objects: &[(u32, BoRef)]) {
    let objects = objects.iter().map(|(_, bo)| bo);
    device.residents().confirm(objects.clone());
    objects.for_each(|bo| look_again(dev, bo));
}

/// Takes [`make_resident`] back once for each of `objects`, or for none: `EINVAL` if one is not
/// resident; `ENOMEM`; `EINTR` if a signal arrives.
pub(crate) fn evict(device: &ClientDevice, dev: &SkuaDevice, objects: &[(u32, BoRef)]) -> Result {
    let objects = objects.iter().map(|(_, bo)| bo);
    let mut work = Work(KVVec::new());
    let mut those = objects.clone();
    those.try_for_each(|bo| work.file(device, dev, bo))?;
    device.residents().take_back(objects.clone())?;
    objects.for_each(|bo| look_again(dev, bo));
    Ok(())
}

/// What was submitted in address spaces, looked at once for each in a call.
struct Work(KVVec<(Asid, KVVec<Fence>)>);

impl Work {
    /// Files what `device` has to do so far, and may use `bo` for, with that: who moves it when it
    /// is not resident any more waits for that, and not for what the device is given to do later.
    /// `ENOMEM`; `EINTR` if a signal arrives.
    fn file(&mut self, device: &ClientDevice, dev: &SkuaDevice, bo: &BoRef) -> Result {
        if !device.is_explicit() || !bo.is_reached_if_resident() {
            return Ok(());
        }
        for_each_user(dev, bo, |vm| {
            if vm.device().id() == device.id() {
                let work = self.of(vm)?;
                resv::lock(&**bo)?.file(work, Usage::Bookkeep)?;
            }
            Ok(())
        })
    }

    /// The fences of the submissions in `vm`. `ENOMEM`; `EINTR` if a signal arrives.
    fn of(&mut self, vm: &Vm) -> Result<&[Fence]> {
        let asid = vm.asid();
        if !self.0.iter().any(|(known, _)| *known == asid) {
            let work = vm.reservation().lock()?.fences(Usage::Bookkeep)?;
            self.0.push((asid, work), client_flags())?;
        }
        let known = self.0.iter().find(|(known, _)| *known == asid);
        Ok(known.map_or(&[], |(_, work)| work.as_slice()))
    }
}

/// A client's handle of `bo` is gone: nothing is resident for `device` by that.
pub(crate) fn forget(device: &ClientDevice, dev: &SkuaDevice, bo: &Bo) {
    if device.residents().has(bo) {
        let bo: ARef<Bo> = bo.into();
        let bo = BoRef::from(bo);
        if Work(KVVec::new()).file(device, dev, &bo).is_err() {
            bo.set_given_up();
        }
    }
    if device.residents().forget(bo) {
        let bo: ARef<Bo> = bo.into();
        look_again(dev, &bo.into());
    }
}

/// An object is resident for a device as it was, though its handle goes.
pub(crate) struct Kept {
    /// The client's device for which `bo` is resident.
    device: Arc<ClientDevice>,
    /// The object that stays resident where it was.
    bo: BoRef,
}

impl Kept {
    /// None if `bo` is not resident for `device`.
    pub(crate) fn new(device: &Arc<ClientDevice>, bo: &BoRef) -> Option<Self> {
        device.residents().keep(bo).then(|| Self {
            device: device.clone(),
            bo: bo.clone(),
        })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.device.is_explicit() {
            self.bo.set_given_up();
        }
        if self.device.residents().let_go(&self.bo) {
            look_again(self.bo.dev(), &self.bo);
        }
    }
}

/// `ENOMEM` if `device`, for which `before` bytes were resident before, has too much now; by how
/// much it exceeds its budget.
fn check_budget(
    device: &ClientDevice,
    dev: &SkuaDevice,
    before: u64,
    not_trim: bool,
    excess: &mut u64,
) -> Result {
    if !device.is_explicit() {
        return Ok(());
    }
    let bytes = device.residents().bytes();
    *excess = bytes.saturating_sub(device.budget());
    let refused = *excess > 0 && !not_trim && bytes > before;
    match refused || bytes > Part::Any.bytes(dev) {
        true => Err(ENOMEM),
        false => Ok(()),
    }
}

/// Has `bo` move to VRAM if it may be there: it left for another driver, which has let go of it, or
/// is a [context allocation](super::save_areas) that is used now. Not if no room is free, or it is
/// in use and it may not wait; it comes with the next occasion then, or when it is made resident.
pub(crate) fn come_back(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef, may_wait: bool) {
    let stays = BoData::is_held_out(bo) || bo.is_dying() || gem::is_pinned(&**bo);
    if stays || !bo.is_better_in(Segment::Vram) {
        return;
    }
    // Who has the turn does not see the room that is taken here before it is in its place.
    let _under_way = UnderWay::new(dev);
    let moved = || {
        let quota = bo::quota_of(bo)?.ok_or(EBUSY)?;
        let part = bo::part_of(dev, bo.flags(), bo.sets());
        let range = VramRange::new(dev, &quota, part, u64::try_from(bo.size())?, &mut 0)?;
        // As in `move_in()`: others have it.
        let new = Placement::Device(range.into());
        relocate(dev, parent, bo, new, None, may_wait, Reason::Other)
    };
    // Where it is it can stay.
    drop(moved());
}

/// At how much of what is displaced one submission looks.
const LOOKS: u32 = 8;

/// Has some of what is displaced in `vm` come back to VRAM, where that has free room: as much as
/// one submission is to do. Not while somebody makes room, which is not for this.
///
/// The submission waits for the moves, and who accesses the objects. So these wait for nobody: what
/// is in use stays where it is, as does what others may have, who have not asked for it.
pub(crate) fn bring_back(dev: &SkuaDevice, parent: &Device<Bound>, vm: &Vm) {
    let frees = dev.vram_frees.load(Relaxed);
    if !vm.displaced.may_find(frees) {
        return;
    }
    for _ in 0..LOOKS {
        if dev.pager.is_busy() || eviction::is_making_room(dev) {
            break;
        }
        let Some((bo, is_wanted)) = vm.displaced.look(frees) else {
            break;
        };
        let part = bo::part_of(dev, bo.flags(), bo.sets());
        let stays = gem::is_foreign(&*bo) || bo.is_locked();
        // CAST: `usize` has 64 bits.
        if !is_wanted || stays || bo.size() as u64 > part.free_bytes(dev) {
            continue;
        }
        match eviction::is_idle(dev, &bo) {
            true => come_back(dev, parent, &bo, false),
            false => vm.displaced.look_again(&bo),
        }
    }
}

/// Has those of `objects` that are resident for `device` move to where they rather are to be, as
/// far as there is room; a fence for all moves of `objects`. `ENOMEM`, `ENODEV`; `EINTR` if a
/// signal arrives.
pub(crate) fn move_in(
    device: &ClientDevice,
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    objects: &[(u32, BoRef)],
) -> Result<Fence> {
    let mut patience = eviction::patience();
    // What was evicted or closed while it was pending is nobody's reason to have others leave.
    for (_, bo) in objects.iter().filter(|(_, bo)| device.residents().has(bo)) {
        // As in `come_back()`.
        let _under_way = UnderWay::new(dev);
        // Others who have it are not to wait for this client's work.
        let may_wait = !gem::is_foreign(&**bo);
        // As far as it is rather to be there than where it is.
        for segment in bo.sets().order().take_while(|it| bo.is_better_in(*it)) {
            let moved = match segment {
                Segment::Vram => match bo::room_in_vram(dev, parent, bo, &mut patience)? {
                    Some(range) => {
                        let new = Placement::Device(range.into());
                        let asked = Reason::Asked(device);
                        relocate(dev, parent, bo, new, None, may_wait, asked).map(drop)
                    }
                    None => continue,
                },
                Segment::Aperture => {
                    let need = Need::Prefers;
                    paging_in::bring_to_aperture(dev, parent, bo, need, may_wait, &mut patience)
                }
                Segment::System => break,
            };
            match moved {
                Err(error) if error == ENOSPC => (),
                Err(error) if error != EBUSY => return Err(error),
                _ => break,
            }
        }
    }
    // Of others' moves, too, and of those before a signal; once for all that share a reservation.
    let mut moves = KVVec::new();
    let mut asked: KVVec<&BoRef> = KVVec::new();
    for (_, bo) in objects.iter().filter(|(_, bo)| bo.may_move()) {
        let reserved = resv::lock(&**bo)?;
        // Also if it was there before.
        bo::was_used(bo);
        if bo.is_private() {
            if asked.iter().any(|other| resv::same(&***other, &**bo)) {
                continue;
            }
            asked.push(bo, client_flags())?;
        }
        if let Some(fence) = reserved.singleton(Usage::Kernel)? {
            moves.push(fence, client_flags())?;
        }
    }
    Fence::all(moves)
}
