// SPDX-License-Identifier: GPL-2.0

//! The `dmem` control group: how much of a device's memory a group of processes has, may have, and
//! keeps.
//!
//! # Model
//!
//! A device's memory is a [`Region`]. Who allocates of it takes a [`Charge`] for the group of the
//! running process first, and keeps that with the memory. A group that has all it may (`max`) is
//! told by its [`Pool`], so that what it and those below it have can be moved out. Otherwise, who
//! needs room asks what is charged for others whether it may leave ([`Charge::protection`]): `min`
//! keeps it, `low` as long as there is something else.
//!
//! When `max` is lowered, [`Reclaim::reclaim`] makes room at once.
//!
//! Where the kernel has no such controller, everything may be charged and nothing is protected.
//!
//! C header: `include/linux/cgroup_dmem.h`.

use super::{
    device,
    shim, //
};
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    drm,
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// A driver whose device's memory is a region.
pub(crate) trait Reclaim: drm::Driver + Sized {
    /// Has `bytes` bytes that are charged for `pool`, or for those below it, given back, or as much
    /// as there is: it may not have them any more.
    ///
    /// Process context, in a write to a file; the device may be unplugged. The end of the
    /// [`Region`] waits for it, so it is not to hold that. `ENOSPC` if there is nothing; another
    /// error ends the attempts.
    fn reclaim(dev: &drm::Device<Self>, pool: &Pool, bytes: u64) -> Result;
}

/// The memory of one device, as the controller knows it.
///
/// It holds the device, so the device gives it up when it is unbound.
///
/// # Examples
///
/// ```ignore
/// let region = Region::new(dev, c"drm/0000:00:01.0/vram0", bytes)?;
/// match region.charge(size) {
///     Ok(charge) => allocate(size, charge),
///     Err(Refusal::Limit(pool)) => move_out_of(&pool),
///     Err(Refusal::Error(error)) => return Err(error),
/// }
/// ```
///
/// # Invariants
///
/// `raw` is registered, if it is not [`None`], with `owner` as its private data, which has the
/// address of `dev`.
pub(crate) struct Region<D: Reclaim> {
    /// None where there is no controller.
    raw: Option<NonNull<shim::dmem_cgroup_region>>,
    /// What the kernel's callback is called with.
    _owner: KBox<shim::skua_dmem_owner>,
    /// The device whose address `_owner` has.
    _dev: ARef<drm::Device<D>>,
}

// SAFETY: Regions are synchronised by the controller; nothing else is ever accessed but by it.
unsafe impl<D: Reclaim> Send for Region<D> {}
// SAFETY: As above.
unsafe impl<D: Reclaim> Sync for Region<D> {}

/// Why a group was not charged for memory.
pub(crate) enum Refusal {
    /// The group of the pool, or of one above that of the process, would have more than it may.
    Limit(Pool),
    /// `ENOMEM`; `ENODEV`.
    Error(Error),
}

impl<D: Reclaim> Region<D> {
    /// Registers `bytes` bytes, not 0, of `dev` under `name`. `ENOMEM`.
    pub(crate) fn new(dev: &drm::Device<D>, name: &CStr, bytes: u64) -> Result<Arc<Self>> {
        let mut owner = KBox::new(
            shim::skua_dmem_owner {
                reclaim: Some(reclaim_callback::<D>),
                dev: device::as_raw(dev).cast(),
            },
            GFP_KERNEL,
        )?;
        // SAFETY: The name is copied. The owner is boxed, and freed behind the end of the
        // registration, which waits for calls that use it.
        let raw = from_err_ptr(unsafe {
            shim::skua_dmem_register(name.as_char_ptr(), bytes, &mut *owner)
        })?;
        // INVARIANT: As just registered.
        let region = Self {
            raw: NonNull::new(raw),
            _owner: owner,
            _dev: dev.into(),
        };
        Ok(Arc::new(region, GFP_KERNEL)?)
    }

    /// Charges `bytes` bytes for the group of the running process. May sleep.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge, Refusal> {
        let Some(region) = self.raw else {
            return Ok(Charge { pool: None, bytes });
        };
        let (mut pool, mut limit) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: The region is registered by the type invariant.
        let result = to_result(unsafe {
            shim::skua_dmem_try_charge(region.as_ptr(), bytes, &mut pool, &mut limit)
        });
        match (result, NonNull::new(limit)) {
            (Ok(()), _) => Ok(Charge {
                pool: NonNull::new(pool),
                bytes,
            }),
            // The reference is ours.
            (Err(error), Some(limit)) if error == EAGAIN => Err(Refusal::Limit(Pool(limit))),
            (Err(error), _) => Err(Refusal::Error(error)),
        }
    }
}

impl<D: Reclaim> Region<D> {
    /// How many of `bytes` bytes, in pages, the group of `pool` may not have in addition just now,
    /// for the running process: the controller does not say, so it is tried. `ENOMEM`; `ENODEV`.
    pub(crate) fn excess(&self, pool: &Pool, bytes: u64) -> Result<u64> {
        let page = PAGE_SIZE as u64;
        // So many pages it may have; so many it may not.
        let (mut most, mut least) = (0, bytes.div_ceil(page).saturating_add(1));
        while least - most > 1 {
            let middle = most + (least - most) / 2;
            match self.charge(middle.saturating_mul(page)) {
                Err(Refusal::Limit(limit)) if limit == *pool => least = middle,
                Err(Refusal::Error(error)) => return Err(error),
                // If others set a limit, that is for later.
                Ok(_) | Err(Refusal::Limit(_)) => most = middle,
            }
        }
        Ok(bytes.saturating_sub(most.saturating_mul(page)))
    }
}

impl<D: Reclaim> Drop for Region<D> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            // SAFETY: It is registered by the type invariant, and this is the end of it. Charges
            // hold what they need.
            unsafe { shim::skua_dmem_unregister(raw.as_ptr()) };
        }
    }
}

/// `dmem_cgroup_ops.reclaim`.
///
/// # Safety
///
/// To be called by the controller for a [`Region`] of `D`, with what that has registered.
unsafe extern "C" fn reclaim_callback<D: Reclaim>(
    pool: *mut shim::dmem_cgroup_pool_state,
    bytes: u64,
    dev: *mut c_void,
) -> c_int {
    let Some(pool) = NonNull::new(pool) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The device is held by the region, whose registration waits for the end of this call
    // before it ends.
    let dev: &drm::Device<D> = unsafe { drm::Device::from_raw(dev.cast()) };
    // The caller has a reference of its own.
    let pool = core::mem::ManuallyDrop::new(Pool(pool));
    D::reclaim(dev, &pool, bytes).map_or_else(Error::to_errno, |()| 0)
}

/// What one group has of a region, with the groups below it.
///
/// # Invariants
///
/// The pool is valid, and a reference to it is this value's, to be given back on drop.
#[derive(PartialEq)]
pub(crate) struct Pool(NonNull<shim::dmem_cgroup_pool_state>);

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_dmem_put(self.0.as_ptr()) };
    }
}

/// How far a group's memory is kept from who needs room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protection {
    /// Not at all: it leaves before what is protected.
    Nothing,
    /// It goes if nothing else does.
    Low,
    /// It stays; also if it is not of the group that is to have less.
    Min,
}

/// For whom what is charged is to leave.
pub(crate) enum Evictor<'a, D: Reclaim> {
    /// For what is charged so, since the region is full.
    Charge(&'a Region<D>, &'a Charge),
    /// For what its own group, or one above it, may not have in addition.
    Limit(&'a Pool),
}

// Not derived: that would want `D` to be these, too.
impl<D: Reclaim> Clone for Evictor<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Reclaim> Copy for Evictor<'_, D> {}

/// What a group has of a region, of which who has it knows how much, and
/// [gives it back](Self::give_back).
///
/// # Invariants
///
/// The pool is valid: something is charged for it, or this is none.
pub(crate) struct Held {
    /// None where there is no controller, or nothing is charged any more.
    pool: Option<NonNull<shim::dmem_cgroup_pool_state>>,
}

// SAFETY: Pools are reference counted and their counters atomic.
unsafe impl Send for Held {}
// SAFETY: As above.
unsafe impl Sync for Held {}

/// What a group has of a region, given back on drop, in any context that may be preempted.
///
/// # Invariants
///
/// `bytes` bytes are charged for the pool, which is valid as long as they are.
pub(crate) struct Charge {
    /// None where there is no controller.
    pool: Option<NonNull<shim::dmem_cgroup_pool_state>>,
    /// Bytes that are charged.
    bytes: u64,
}

// SAFETY: Pools are reference counted and their counters atomic.
unsafe impl Send for Charge {}
// SAFETY: As above.
unsafe impl Sync for Charge {}

impl Charge {
    /// The charge without its size, for who remembers that.
    pub(crate) fn hold(self) -> Held {
        // INVARIANT: It stays charged.
        let held = Held { pool: self.pool };
        core::mem::forget(self);
        held
    }
}

impl Held {
    /// Nothing is charged any more of the `bytes` that were: all of them.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        drop(Charge {
            pool: self.pool.take(),
            bytes,
        });
    }

    /// How far this is kept from `evictor`. A group's own is not kept from itself.
    pub(crate) fn protection<D: Reclaim>(&self, evictor: Evictor<'_, D>) -> Protection {
        let Some(pool) = self.pool else {
            return Protection::Nothing;
        };
        let mut ancestor = None;
        let limit = match evictor {
            Evictor::Limit(limit) => Some(limit),
            Evictor::Charge(region, charge) if region.raw.is_none() || charge.pool == self.pool => {
                return Protection::Nothing
            }
            Evictor::Charge(_, charge) => {
                let other = charge.pool.map_or(ptr::null_mut(), NonNull::as_ptr);
                // SAFETY: Both pools are valid by the type invariant. The region is registered,
                // so the ancestor has a pool or gets one.
                let raw = unsafe { shim::skua_dmem_common_ancestor(pool.as_ptr(), other) };
                // Groups next to each other share what protects the one above them. For the root
                // nothing is protected: from one of its children each of the others is.
                ancestor = NonNull::new(raw).map(Pool);
                ancestor.as_ref().filter(|ancestor| !ancestor.is_root())
            }
        };
        let limit = limit.map_or(ptr::null_mut(), |limit| limit.0.as_ptr());
        let mut hit_low = false;
        // SAFETY: The pools are valid: `self` and `evictor`, or `ancestor`, keep them.
        let valuable =
            unsafe { shim::skua_dmem_evict_valuable(limit, pool.as_ptr(), false, &mut hit_low) };
        drop(ancestor);
        match (valuable, hit_low) {
            (true, _) => Protection::Nothing,
            (false, true) => Protection::Low,
            (false, false) => Protection::Min,
        }
    }
}

impl Pool {
    /// Whether it is the root's, for which alone leaves what is charged for nobody.
    fn is_root(&self) -> bool {
        let mut hit_low = false;
        // SAFETY: The pool is valid by the type invariant. No pool stands for what is charged for
        // nobody, as drivers have it, too.
        unsafe {
            shim::skua_dmem_evict_valuable(self.0.as_ptr(), ptr::null_mut(), true, &mut hit_low)
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(pool) = self.pool {
            // SAFETY: So many bytes are charged, by the type invariant, and not any more after
            // this.
            unsafe { shim::skua_dmem_uncharge(pool.as_ptr(), self.bytes) };
        }
    }
}
