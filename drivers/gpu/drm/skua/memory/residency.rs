// SPDX-License-Identifier: GPL-2.0

//! What clients want to have in VRAM (WDDM: MakeResident, Evict).
//!
//! A client counts how often it has made an object resident ([`claims`](super::claims)). As long as that is not 0 for some
//! client, the object is no victim of those who merely prefer VRAM; it is the last one of those who
//! need it. To be resident is no condition for work: what may be in VRAM alone is
//! [brought back](super::paging_in) before work runs, and other objects the GPU reaches in system
//! memory, too.

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
            BoRef, //
        },
        claims::Claims,
        eviction,
        relocation::relocate, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*, //
};

/// Makes all of `objects` resident once more for the client with `residents`, or none, and has those
/// that may be in VRAM and are not move there, as far as there is room or can be made; a fence for
/// all moves that are under way then.
///
/// `ENOMEM`, `ENODEV`; `EMFILE`; `EINTR` if a signal arrives. Nobody's count has changed then.
pub(crate) fn make_resident(
    residents: &Claims,
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    objects: &[(u32, BoRef)],
) -> Result<Fence> {
    let mut counted = 0;
    let result = objects.iter().try_for_each(|(_, bo)| {
        residents.add(bo)?;
        counted += 1;
        Ok(())
    });
    // First all of them: they do not make room for each other.
    let result = result.and_then(|()| move_in(dev, parent, objects));
    if result.is_err() {
        residents.undo(objects.iter().take(counted).map(|(_, bo)| bo));
    }
    result
}

fn move_in(dev: &SkuaDevice, parent: &Device<Bound>, objects: &[(u32, BoRef)]) -> Result<Fence> {
    let mut patience = eviction::patience();
    for (_, bo) in objects {
        if let Some(range) = bo::room_in_vram(dev, parent, bo, &mut patience)? {
            // Others who have it are not to wait for this client's work.
            let may_wait = !gem::is_foreign(&**bo);
            match relocate(dev, parent, bo, Placement::Device(range), may_wait) {
                Err(error) if error != EBUSY => return Err(error),
                _ => (),
            }
        }
    }
    // Of others' moves, too, and of those before a signal; once for all that share a reservation.
    let mut moves = KVVec::new();
    let mut asked: KVVec<&BoRef> = KVVec::new();
    for (_, bo) in objects.iter().filter(|(_, bo)| bo.may_move()) {
        if bo.is_private() {
            if asked.iter().any(|other| resv::same(&***other, &**bo)) {
                continue;
            }
            asked.push(bo, client_flags())?;
        }
        if let Some(fence) = resv::lock(&**bo)?.singleton(Usage::Kernel)? {
            moves.push(fence, client_flags())?;
        }
    }
    Fence::all(moves)
}
