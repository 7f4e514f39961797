// SPDX-License-Identifier: GPL-2.0

//! What clients want to have in VRAM (WDDM: MakeResident, Evict).
//!
//! A client counts how often it has made an object resident. As long as that is not 0 for some
//! client, the object is no victim of those who merely prefer VRAM; it is the last one of those who
//! need it. To be resident is no condition for work: what may be in VRAM alone is always there, and
//! what is in system memory the GPU reaches, too.

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
            BoRef, //
        },
        eviction,
        relocation::relocate, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::Mutex, //
};

/// The objects that one client has made resident.
#[pin_data]
pub(crate) struct Residents {
    /// By the address of an object that the client has a handle of, how often; not 0.
    #[pin]
    counts: Mutex<RBTree<usize, u32>>,
}

/// The client is none of those any more that have made `bo` resident.
fn uncount(bo: &Bo) {
    kernel::warn_on!(bo.count_residents(-1).is_err());
}

impl Residents {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            counts <- new_mutex!(RBTree::new()),
        })
    }

    fn key(bo: &Bo) -> usize {
        core::ptr::from_ref(bo).addr()
    }

    /// Makes `bo` resident once more. `ENOMEM`; `EOVERFLOW`.
    fn add(&self, bo: &Bo) -> Result {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&Self::key(bo)) {
            *count = count.checked_add(1).ok_or(EOVERFLOW)?;
            return Ok(());
        }
        bo.count_residents(1)?;
        let inserted = counts.try_create_and_insert(Self::key(bo), 1, client_flags());
        if inserted.is_err() {
            uncount(bo);
        }
        inserted.map(|_| ())
    }

    /// Takes [`Residents::add`] back once for each of `objects`.
    fn remove<'a>(
        counts: &mut RBTree<usize, u32>,
        objects: impl Iterator<Item = &'a (u32, BoRef)>,
    ) {
        for (_, bo) in objects {
            match counts.get_mut(&Self::key(bo)) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    counts.remove(&Self::key(bo));
                    uncount(bo);
                }
                // Its handle was closed meanwhile.
                None => (),
            }
        }
    }

    /// The client's handle of `bo` is gone.
    pub(crate) fn forget(&self, bo: &Bo) {
        if self.counts.lock().remove(&Self::key(bo)).is_some() {
            uncount(bo);
        }
    }

    /// Makes all of `objects` resident once more, or none, and has those that may be in VRAM and are
    /// not move there, as far as there is room or can be made; a fence for all moves that are under
    /// way then.
    ///
    /// `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives. Nobody's count has changed then.
    pub(crate) fn make_resident(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        objects: &[(u32, BoRef)],
    ) -> Result<Fence> {
        let mut counted = 0;
        let result = objects.iter().try_for_each(|(_, bo)| {
            self.add(bo)?;
            counted += 1;
            Ok(())
        });
        // First all of them: they do not make room for each other.
        let result = result.and_then(|()| Self::move_in(dev, parent, objects));
        if result.is_err() {
            Self::remove(&mut self.counts.lock(), objects.iter().take(counted));
        }
        result
    }

    fn move_in(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        objects: &[(u32, BoRef)],
    ) -> Result<Fence> {
        let mut moves = KVVec::new();
        let mut patience = eviction::patience();
        for (_, bo) in objects {
            if !bo.may_move() {
                continue;
            }
            if let Some(range) = bo::room_in_vram(dev, parent, bo, &mut patience)? {
                // Others who have it are not to wait for this client's work.
                let may_wait = !gem::is_foreign(&**bo);
                match relocate(dev, parent, bo, Placement::Device(range), may_wait) {
                    Err(error) if error != EBUSY => return Err(error),
                    _ => (),
                }
            }
            // Of others' moves, too, and of those before a signal.
            if let Some(fence) = resv::lock(&**bo)?.singleton(Usage::Kernel)? {
                moves.push(fence, client_flags())?;
            }
        }
        Fence::all(moves)
    }

    /// Takes [`Residents::make_resident`] back once for each of `objects`, or for none: `EINVAL` if
    /// the client has not made one resident.
    pub(crate) fn evict(&self, objects: &[(u32, BoRef)]) -> Result {
        let mut counts = self.counts.lock();
        let strange = |(_, bo): &(u32, BoRef)| counts.get(&Self::key(bo)).is_none();
        if objects.iter().any(strange) {
            return Err(EINVAL);
        }
        Self::remove(&mut counts, objects.iter());
        Ok(())
    }
}
