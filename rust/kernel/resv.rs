// SPDX-License-Identifier: GPL-2.0

//! `dma_resv`: the reservation lock of a GEM object, and the fences of its users.
//!
//! # Model
//!
//! Every GEM object has a reservation: a lock, and fences filed under a [`Usage`]. The lock protects
//! where the object's memory is; the fences say who is still using it. [`Usage::Kernel`] fences are
//! moves and clears, which everybody waits for; a driver with explicit synchronisation files
//! submissions under [`Usage::Bookkeep`], which only memory management waits for.
//!
//! # Lock order
//!
//! Reservation locks are wound/wait mutexes: one is taken alone ([`lock`]), several by [`LockedSet`].
//! mmap_lock is taken *inside* them (user memory may be touched while one is held), so a page fault
//! may only try (see [`fault`](super::fault)). A path that leads to a fence's signal takes none.
//!
//! C header: `include/linux/dma-resv.h`.

use super::{
    fence::{
        remaining,
        Fence, //
    },
    shim, //
};
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    bindings,
    drm::gem::IntoGEMObject,
    error::to_result,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    time::Jiffies,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

/// What a fence in a reservation object is about. Each usage includes those above it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Memory management: moves, clears. Everybody waits.
    Kernel,
    /// Implicitly synchronised writers.
    #[expect(dead_code, reason = "the order of usages is the kernel's")]
    Write,
    /// Implicitly synchronised readers.
    Read,
    /// Users that synchronise explicitly.
    Bookkeep,
}

impl Usage {
    fn as_raw(self) -> bindings::dma_resv_usage {
        match self {
            Self::Kernel => bindings::dma_resv_usage_DMA_RESV_USAGE_KERNEL,
            Self::Write => bindings::dma_resv_usage_DMA_RESV_USAGE_WRITE,
            Self::Read => bindings::dma_resv_usage_DMA_RESV_USAGE_READ,
            Self::Bookkeep => bindings::dma_resv_usage_DMA_RESV_USAGE_BOOKKEEP,
        }
    }
}

/// The reservation object of a GEM object, which may be shared with an exporter.
fn resv_of<O: IntoGEMObject>(obj: &O) -> *mut bindings::dma_resv {
    // SAFETY: `as_raw()` is a valid GEM object. The field is set before the object is published and
    // does not change afterwards.
    unsafe { (*obj.as_raw()).resv }
}

/// Takes the reservation lock of `obj`. `EINTR` if a signal arrives first.
pub(crate) fn lock<O: IntoGEMObject>(obj: &O) -> Result<Reserved<'_>> {
    let resv = resv_of(obj);
    // SAFETY: The reservation object lives as long as `obj`.
    to_result(unsafe { shim::skua_resv_lock_interruptible(resv) })?;
    // SAFETY: The lock was just taken by this thread.
    Ok(unsafe { Reserved::owned(resv) })
}

/// Takes the reservation lock of `obj`, for as long as it takes: for paths that cannot fail, such as
/// unbind.
#[expect(dead_code, reason = "for work that no signal may end")]
pub(crate) fn lock_uninterruptible<O: IntoGEMObject>(obj: &O) -> Result<Reserved<'_>> {
    let resv = resv_of(obj);
    // SAFETY: The reservation object lives as long as `obj`; no acquire context is used.
    to_result(unsafe { bindings::dma_resv_lock(resv, ptr::null_mut()) })?;
    // SAFETY: The lock was just taken by this thread.
    Ok(unsafe { Reserved::owned(resv) })
}

/// Takes the reservation lock of `obj` if it is free.
pub(crate) fn trylock<O: IntoGEMObject>(obj: &O) -> Option<Reserved<'_>> {
    let resv = resv_of(obj);
    // SAFETY: The reservation object lives as long as `obj`.
    if unsafe { shim::skua_resv_trylock(resv) } {
        // SAFETY: The lock was just taken by this thread.
        Some(unsafe { Reserved::owned(resv) })
    } else {
        None
    }
}

/// Waits for the fences of `obj` up to `usage`, at most `timeout` jiffies, until a signal arrives.
///
/// Returns the remaining jiffies; `ETIME`, `ERESTARTSYS`. The lock need not be held.
pub(crate) fn wait<O: IntoGEMObject>(obj: &O, usage: Usage, timeout: Jiffies) -> Result<Jiffies> {
    // SAFETY: The reservation object lives as long as `obj`.
    remaining(unsafe {
        bindings::dma_resv_wait_timeout(resv_of(obj), usage.as_raw(), true, timeout)
    })
}

/// Waits for the fences of `obj` up to `usage`, however long that takes; for paths that cannot fail.
pub(crate) fn wait_uninterruptible<O: IntoGEMObject>(obj: &O, usage: Usage) {
    // SAFETY: The reservation object lives as long as `obj`.
    let _ = unsafe {
        bindings::dma_resv_wait_timeout(
            resv_of(obj),
            usage.as_raw(),
            false,
            // CAST: MAX_SCHEDULE_TIMEOUT is LONG_MAX.
            isize::MAX.unsigned_abs(),
        )
    };
}

/// Whether all fences of `obj` up to `usage` are signalled. The lock need not be held.
pub(crate) fn is_idle<O: IntoGEMObject>(obj: &O, usage: Usage) -> bool {
    // SAFETY: The reservation object lives as long as `obj`.
    unsafe { bindings::dma_resv_test_signaled(resv_of(obj), usage.as_raw()) }
}

/// Whether two objects share one reservation.
pub(crate) fn same<A: IntoGEMObject, B: IntoGEMObject>(a: &A, b: &B) -> bool {
    ptr::eq(resv_of(a), resv_of(b))
}

/// A reservation lock held by this thread.
///
/// # Invariants
///
/// `resv` is valid and locked by this thread for `'a`; if `unlock`, this value is what unlocks it.
#[must_use]
pub(crate) struct Reserved<'a> {
    resv: *mut bindings::dma_resv,
    unlock: bool,
    _life: PhantomData<&'a ()>,
    _not_send: NotThreadSafe,
}

impl Reserved<'_> {
    /// # Safety
    ///
    /// `resv` must be valid as long as the result and locked by this thread, and unlocking be left to
    /// the result.
    pub(super) unsafe fn owned(resv: *mut bindings::dma_resv) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            resv,
            unlock: true,
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// # Safety
    ///
    /// `resv` must be valid and locked by this thread as long as the result exists.
    pub(super) unsafe fn borrowed(resv: *mut bindings::dma_resv) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            resv,
            unlock: false,
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Whether this is the lock of `obj`.
    pub(crate) fn guards<O: IntoGEMObject>(&self, obj: &O) -> bool {
        ptr::eq(self.resv, resv_of(obj))
    }

    /// Makes room for `count` fences, so that as many calls of [`Self::add`] cannot fail. `ENOMEM`.
    ///
    /// The room lasts until the lock is dropped.
    pub(crate) fn reserve(&self, count: u32) -> Result<Room<'_>> {
        // SAFETY: By the type invariant the object is valid and locked.
        to_result(unsafe { bindings::dma_resv_reserve_fences(self.resv, count) })?;
        // INVARIANT: `count` slots were reserved under the lock, which `Room` borrows.
        Ok(Room {
            reserved: self,
            left: count,
        })
    }

    /// Whether all fences up to `usage` are signalled.
    pub(crate) fn is_idle(&self, usage: Usage) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::dma_resv_test_signaled(self.resv, usage.as_raw()) }
    }

    /// One fence that stands for all fences up to `usage`, [`None`] if there are none. `ENOMEM`.
    pub(crate) fn singleton(&self, usage: Usage) -> Result<Option<Fence>> {
        let mut fence = ptr::null_mut();
        // SAFETY: By the type invariant; `fence` receives null or an owned reference.
        to_result(unsafe {
            bindings::dma_resv_get_singleton(self.resv, usage.as_raw(), &mut fence)
        })?;
        // SAFETY: As said.
        Ok(unsafe { Fence::from_raw(fence) })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.unlock {
            // SAFETY: By the type invariant the lock is held by this thread and ours to release.
            unsafe { shim::skua_resv_unlock(self.resv) };
        }
    }
}

/// Room for fences in a locked reservation object.
///
/// # Invariants
///
/// At least `left` slots are reserved.
pub(crate) struct Room<'a> {
    reserved: &'a Reserved<'a>,
    left: u32,
}

impl Room<'_> {
    /// Files `fence` under `usage`. Returns `ENOSPC` if more fences are added than room was made for,
    /// and otherwise does not fail.
    pub(crate) fn add(&mut self, fence: &Fence, usage: Usage) -> Result {
        self.left = self.left.checked_sub(1).ok_or(ENOSPC)?;
        // SAFETY: The object is valid and locked; a slot is reserved by the type invariant; the
        // function takes its own reference to the fence.
        unsafe {
            bindings::dma_resv_add_fence(self.reserved.resv, fence.as_raw(), usage.as_raw());
        }
        Ok(())
    }
}

/// Several objects locked together.
///
/// # Invariants
///
/// All of `objs` are valid, referenced by `refs`, and locked with `ctx`, by this thread.
#[must_use]
pub(crate) struct LockedSet<O: IntoGEMObject + AlwaysRefCounted> {
    refs: KVVec<ARef<O>>,
    objs: KVVec<*mut bindings::drm_gem_object>,
    ctx: Pin<KBox<Opaque<bindings::ww_acquire_ctx>>>,
    _not_send: NotThreadSafe,
}

impl<O: IntoGEMObject + AlwaysRefCounted> LockedSet<O> {
    /// Locks all of `refs`, whatever order others lock them in.
    ///
    /// No two may share a reservation (`EALREADY`). `EINTR` if a signal arrives; `ENOMEM`.
    pub(crate) fn lock(refs: KVVec<ARef<O>>) -> Result<Self> {
        let mut objs = KVVec::with_capacity(refs.len(), GFP_KERNEL)?;
        for obj in &refs {
            objs.push(obj.as_raw(), GFP_KERNEL)?;
        }
        let count = c_int::try_from(objs.len()).map_err(|_| E2BIG)?;
        let ctx = KBox::pin_init(
            Opaque::<bindings::ww_acquire_ctx>::ffi_init(|_| ()),
            GFP_KERNEL,
        )?;
        // SAFETY: `objs` are `count` valid objects, kept alive by `refs`; the context is pinned memory
        // that the function initialises and that outlives the locks.
        to_result(unsafe {
            bindings::drm_gem_lock_reservations(objs.as_mut_ptr(), count, ctx.get())
        })?;
        // INVARIANT: The function succeeded.
        Ok(Self {
            refs,
            objs,
            ctx,
            _not_send: NotThreadSafe,
        })
    }

    /// The objects, each with its lock.
    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (&ARef<O>, Reserved<'_>)> {
        self.refs.iter().map(|obj| {
            // SAFETY: By the type invariant the lock is held as long as `self`.
            (obj, unsafe { Reserved::borrowed(resv_of(&**obj)) })
        })
    }
}

impl<O: IntoGEMObject + AlwaysRefCounted> Drop for LockedSet<O> {
    fn drop(&mut self) {
        // CAST: The length was checked to fit when the set was locked.
        let count = self.objs.len() as c_int;
        // SAFETY: By the type invariant these objects are locked with this context.
        unsafe {
            bindings::drm_gem_unlock_reservations(self.objs.as_mut_ptr(), count, self.ctx.get());
        }
    }
}

#[kunit_tests(skua_resv)]
mod tests {
    use super::{
        super::{
            fence::{
                FenceContext,
                FenceMemory, //
            },
            gem,
            mock, //
        },
        *, //
    };
    use kernel::page::PAGE_SIZE;

    #[test]
    fn fences_are_seen_by_their_usage() -> Result {
        let (_parent, dev) = mock::device(c"skua-mock")?;
        let obj = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, ())?;
        let context = FenceContext::new(c"skua-kunit", c"resv");
        let owner = context.fence(FenceMemory::new(GFP_KERNEL)?);
        {
            let lock = lock(&*obj)?;
            assert!(lock.singleton(Usage::Bookkeep)?.is_none());
            let mut room = lock.reserve(1)?;
            room.add(owner.fence(), Usage::Bookkeep)?;
            assert!(room.add(owner.fence(), Usage::Bookkeep) == Err(ENOSPC));
        }
        assert!(is_idle(&*obj, Usage::Kernel));
        assert!(is_idle(&*obj, Usage::Read));
        assert!(!is_idle(&*obj, Usage::Bookkeep));
        assert!(wait(&*obj, Usage::Bookkeep, 1) == Err(ETIME));
        assert!(wait(&*obj, Usage::Kernel, 1).is_ok());
        {
            let lock = lock(&*obj)?;
            let one = lock.singleton(Usage::Bookkeep)?.ok_or(EINVAL)?;
            assert_eq!(one.seqno(), owner.fence().seqno());
        }
        owner.signal(Ok(()));
        assert!(is_idle(&*obj, Usage::Bookkeep));
        assert!(wait(&*obj, Usage::Bookkeep, 1).is_ok());
        wait_uninterruptible(&*obj, Usage::Bookkeep);
        Ok(())
    }

    #[test]
    fn a_set_locks_all_or_none() -> Result {
        let (_parent, dev) = mock::device(c"skua-mock")?;
        let a = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, ())?;
        let b = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, ())?;
        {
            let mut refs = KVVec::new();
            refs.push(a.clone(), GFP_KERNEL)?;
            refs.push(b.clone(), GFP_KERNEL)?;
            let mut set = LockedSet::lock(refs)?;
            assert!(trylock(&*a).is_none());
            assert!(trylock(&*b).is_none());
            for (obj, lock) in set.iter() {
                assert!(lock.guards(&**obj));
                lock.reserve(1)?;
            }
        }
        let mut refs = KVVec::new();
        refs.push(a.clone(), GFP_KERNEL)?;
        refs.push(a.clone(), GFP_KERNEL)?;
        assert!(
            LockedSet::lock(refs).err() == Some(Error::from_errno(-(bindings::EALREADY as c_int)))
        );
        assert!(trylock(&*a).is_some());
        assert!(trylock(&*b).is_some());
        Ok(())
    }
}
