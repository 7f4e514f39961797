// SPDX-License-Identifier: GPL-2.0

//! `dma_resv`: the reservation lock of a GEM object, and the fences of its users.
//!
//! # Model
//!
//! Every GEM object has a reservation: a lock, and fences filed under a [`Usage`]. The lock
//! protects where the object's memory is; the fences say who is still using it. [`Usage::Kernel`]
//! fences are moves and clears, which everybody waits for; a driver with explicit synchronisation
//! files submissions under [`Usage::Bookkeep`], which only memory management waits for.
//!
//! # Lock order
//!
//! Reservation locks are wound/wait mutexes: one is taken alone ([`lock`]), several by
//! [`Exec`](super::exec::Exec). They come after mmap_lock, so user memory is not touched while one
//! is held; a page fault, which comes with mmap_lock, only tries, so as not to hold that up (see
//! [`fault`](super::fault)). A path that leads to a fence's signal takes none.
//!
//! # Examples
//!
//! ```ignore
//! // Where failing is possible:
//! let mut reserved = resv::lock(&*bo)?;
//! let before = reserved.singleton(Usage::Kernel)?;
//! let mut room = reserved.reserve(1)?;
//!
//! // When the work that uses the memory has its fence:
//! room.add(owner.fence(), Usage::Bookkeep)?;
//! ```
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
    ffi::c_void,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    drm::gem::IntoGEMObject,
    error::to_result,
    prelude::*,
    sync::{
        aref::AlwaysRefCounted,
        Arc, //
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
    unsafe { lock_raw(resv) }
}

/// Takes the lock. `EINTR` if a signal arrives first.
///
/// # Safety
///
/// `resv` must be valid for `'a`.
unsafe fn lock_raw<'a>(resv: *mut bindings::dma_resv) -> Result<Reserved<'a>> {
    // SAFETY: By the safety requirements; no ticket is used.
    to_result(unsafe { shim::skua_resv_lock_interruptible(resv, ptr::null_mut()) })?;
    // SAFETY: The lock was just taken by this thread.
    Ok(unsafe { Reserved::owned(resv) })
}

/// Takes the lock if it is free now.
///
/// # Safety
///
/// `resv` must be valid for `'a`.
unsafe fn trylock_raw<'a>(resv: *mut bindings::dma_resv) -> Option<Reserved<'a>> {
    // SAFETY: By the safety requirements; no ticket is used.
    let locked = unsafe { shim::skua_resv_trylock(resv, ptr::null_mut()) };
    // SAFETY: The lock was just taken by this thread.
    locked.then(|| unsafe { Reserved::owned(resv) })
}

/// Takes the reservation lock of `obj`, for as long as it takes: for paths that cannot fail, such
/// as unbind.
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
    unsafe { trylock_raw(resv) }
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

/// Whether all fences of `obj` up to `usage` are signalled. The lock need not be held.
pub(crate) fn is_idle<O: IntoGEMObject>(obj: &O, usage: Usage) -> bool {
    // SAFETY: The reservation object lives as long as `obj`.
    unsafe { bindings::dma_resv_test_signaled(resv_of(obj), usage.as_raw()) }
}

/// Whether two objects share one reservation.
pub(crate) fn same<A: IntoGEMObject, B: IntoGEMObject>(a: &A, b: &B) -> bool {
    ptr::eq(resv_of(a), resv_of(b))
}

/// Most fences that room is made for at once.
const MAX_ROOM: u32 = 1 << 16;

/// A reservation that is no single object's: for objects that are always used together.
#[pin_data(PinnedDrop)]
pub(crate) struct Reservation {
    /// Initialised, and pinned with this.
    #[pin]
    resv: Opaque<bindings::dma_resv>,
}

// SAFETY: A `dma_resv` is made to be used from any thread.
unsafe impl Send for Reservation {}
// SAFETY: As above: it is synchronised by its lock, and by RCU where that is not held.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// One without fences, not locked. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                // SAFETY: The slot is valid and pinned; the function initialises it.
                resv <- Opaque::ffi_init(|resv| unsafe { bindings::dma_resv_init(resv) }),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Takes the lock. `EINTR` if a signal arrives first.
    pub(crate) fn lock(&self) -> Result<Reserved<'_>> {
        // SAFETY: It is valid as long as `self`.
        unsafe { lock_raw(self.resv.get()) }
    }

    /// Takes the lock if it is free.
    pub(crate) fn trylock(&self) -> Option<Reserved<'_>> {
        // SAFETY: It is valid as long as `self`.
        unsafe { trylock_raw(self.resv.get()) }
    }

    /// The C structure, for objects that share it. Valid as long as `self`.
    pub(super) fn as_raw(&self) -> *mut bindings::dma_resv {
        self.resv.get()
    }

    /// Whether all fences up to `usage` are signalled, at about this moment.
    pub(crate) fn is_idle(&self, usage: Usage) -> bool {
        // SAFETY: The reservation is valid; the function takes no lock.
        unsafe { bindings::dma_resv_test_signaled(self.resv.get(), usage.as_raw()) }
    }

    /// A handle that keeps this reservation alive.
    pub(crate) fn handle(self: &Arc<Self>) -> Handle {
        Handle(Owner::Shared(self.clone()))
    }
}

#[pinned_drop]
impl PinnedDrop for Reservation {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: It is initialised, and nobody has a reference to it.
        unsafe { bindings::dma_resv_fini(self.resv.get()) };
    }
}

/// A reservation, whoever's it is, kept alive.
#[derive(Clone)]
pub(crate) struct Handle(Owner);

#[derive(Clone)]
enum Owner {
    Object(ObjectHold),
    Shared(Arc<Reservation>),
}

/// A reference to a GEM object of any kind.
///
/// # Invariants
///
/// A reference of the object is this value's.
struct ObjectHold(NonNull<bindings::drm_gem_object>);

// SAFETY: GEM objects are reference counted atomically, and freed from any thread; nothing else is
// done with one here but to use its reservation.
unsafe impl Send for ObjectHold {}
// SAFETY: As above.
unsafe impl Sync for ObjectHold {}

impl Clone for ObjectHold {
    fn clone(&self) -> Self {
        // SAFETY: The object is valid by the type invariant.
        unsafe { bindings::drm_gem_object_get(self.0.as_ptr()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for ObjectHold {
    fn drop(&mut self) {
        // SAFETY: The reference is ours by the type invariant, and given up here.
        unsafe { bindings::drm_gem_object_put(self.0.as_ptr()) };
    }
}

impl Handle {
    /// The reservation of `obj`.
    pub(crate) fn of<O: IntoGEMObject + AlwaysRefCounted>(obj: &O) -> Self {
        obj.inc_ref();
        // SAFETY: `as_raw()` is never null.
        let raw = unsafe { NonNull::new_unchecked(obj.as_raw()) };
        // INVARIANT: The reference was just taken, which is one of the GEM object's.
        Self(Owner::Object(ObjectHold(raw)))
    }

    /// The C structure, valid as long as `self`.
    pub(super) fn as_raw(&self) -> *mut bindings::dma_resv {
        match &self.0 {
            // SAFETY: The object is valid; the field does not change.
            Owner::Object(obj) => unsafe { (*obj.0.as_ptr()).resv },
            Owner::Shared(shared) => shared.resv.get(),
        }
    }
}

/// Handles are equal if they are of one reservation.
impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.as_raw(), other.as_raw())
    }
}

/// A reservation lock held by this thread.
///
/// # Invariants
///
/// `resv` is valid and locked by this thread for `'a`; if `unlock`, this value is what unlocks it.
#[must_use]
pub(crate) struct Reserved<'a> {
    /// Valid, and locked, as long as this lives.
    resv: *mut bindings::dma_resv,
    /// Whether dropping it unlocks; else the caller of a callback does.
    unlock: bool,
    /// How long the lock is held at least.
    _life: PhantomData<&'a ()>,
    /// The thread that has locked has to unlock.
    _not_send: NotThreadSafe,
}

impl Reserved<'_> {
    /// A lock that is released when the result is dropped.
    ///
    /// # Safety
    ///
    /// `resv` must be valid as long as the result and locked by this thread, and unlocking be left
    /// to the result.
    pub(super) unsafe fn owned(resv: *mut bindings::dma_resv) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            resv,
            unlock: true,
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// A lock that whoever has taken it releases.
    ///
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

    /// Makes room for `count` fences, so that as many calls of [`Self::add`] cannot fail. `ENOMEM`;
    /// `EINVAL` for none, or so many that the C code's sums would wrap.
    ///
    /// The room lasts until the lock is dropped.
    pub(crate) fn reserve(&mut self, count: u32) -> Result<Room<'_>> {
        if !(1..=MAX_ROOM).contains(&count) {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant the object is valid and locked.
        to_result(unsafe { bindings::dma_resv_reserve_fences(self.resv, count) })?;
        // INVARIANT: `count` slots were reserved under the lock, which `Room` borrows alone.
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

    /// One fence that stands for all fences up to `usage`, [`None`] if all are signalled, which
    /// allocates nothing. `ENOMEM`.
    pub(crate) fn singleton(&self, usage: Usage) -> Result<Option<Fence>> {
        if self.is_idle(usage) {
            return Ok(None);
        }
        // SAFETY: By the type invariant; what is returned is null or an owned reference.
        let fence =
            unsafe { Fence::from_raw(shim::skua_resv_singleton(self.resv, usage.as_raw())) };
        fence.ok_or(ENOMEM).map(Some)
    }

    /// The fences of exactly this `usage` that are not signalled. `ENOMEM`.
    pub(crate) fn fences(&self, usage: Usage) -> Result<KVVec<Fence>> {
        let mut fences = Ok(KVVec::new());
        // SAFETY: By the type invariant; the callback's data is of its type, and outlives the call.
        unsafe {
            shim::skua_resv_for_each(
                self.resv,
                usage.as_raw(),
                Some(keep_fence),
                ptr::from_mut(&mut fences).cast(),
            );
        }
        fences
    }

    /// Files `fences` under `usage`; of each line the last one is kept. `ENOMEM`.
    pub(crate) fn file(&mut self, fences: &[Fence], usage: Usage) -> Result {
        let Some(count) = u32::try_from(fences.len()).ok().filter(|count| *count > 0) else {
            return Ok(());
        };
        let mut room = self.reserve(count)?;
        fences.iter().try_for_each(|fence| room.add(fence, usage))
    }
}

/// Adds a fence to those that [`Reserved::fences`] returns.
///
/// # Safety
///
/// `fence` must be valid, and `data` a `Result<KVVec<Fence>>` that nobody else uses.
unsafe extern "C" fn keep_fence(fence: *mut bindings::dma_fence, data: *mut c_void) {
    // SAFETY: By the safety requirements.
    let fences = unsafe { &mut *data.cast::<Result<KVVec<Fence>>>() };
    // SAFETY: By the safety requirements; the reference is the one that is taken over.
    let fence = unsafe {
        shim::skua_fence_get(fence);
        Fence::from_raw(fence)
    };
    if let (Ok(kept), Some(fence)) = (&mut *fences, fence.filter(|fence| !fence.is_signaled())) {
        if let Err(error) = kept.push(fence, GFP_KERNEL_ACCOUNT) {
            *fences = Err(error.into());
        }
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
/// At least `left` slots are reserved, for this value alone.
pub(crate) struct Room<'a> {
    /// What the room is in; borrowed alone, so that the room is nobody else's.
    reserved: &'a Reserved<'a>,
    /// Fences that can still be added.
    left: u32,
}

impl Room<'_> {
    /// Files `fence` under `usage`. Returns `ENOSPC` if more fences are added than room was made
    /// for, and otherwise does not fail.
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
        let obj = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, None)?;
        let context = FenceContext::new(c"skua-kunit", c"resv");
        let owner = context.fence(FenceMemory::new(GFP_KERNEL)?);
        {
            let mut lock = lock(&*obj)?;
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
        Ok(())
    }

    #[test]
    fn a_reservation_of_its_own() -> Result {
        let shared = Reservation::new()?;
        let context = FenceContext::new(c"skua-kunit", c"resv");
        let owner = context.fence(FenceMemory::new(GFP_KERNEL)?);
        {
            let mut lock = shared.lock()?;
            assert!(shared.trylock().is_none());
            let mut room = lock.reserve(2)?;
            room.add(owner.fence(), Usage::Bookkeep)?;
            room.add(owner.fence(), Usage::Bookkeep)?;
            assert!(lock.is_idle(Usage::Kernel));
            assert!(!lock.is_idle(Usage::Bookkeep));
        }
        // What is filed again is there once.
        let fences = shared.lock()?.fences(Usage::Bookkeep)?;
        assert_eq!(fences.len(), 1);
        assert!(shared.lock()?.fences(Usage::Kernel)?.is_empty());
        let other = Reservation::new()?;
        for _ in 0..2 {
            other.lock()?.file(&fences, Usage::Bookkeep)?;
            other.lock()?.file(&[], Usage::Bookkeep)?;
        }
        let filed = other.lock()?.fences(Usage::Bookkeep)?;
        assert_eq!(filed.len(), 1);
        assert_eq!(filed[0].seqno(), owner.fence().seqno());
        owner.signal(Ok(()));
        assert!(other.lock()?.fences(Usage::Bookkeep)?.is_empty());
        assert!(shared.lock()?.is_idle(Usage::Bookkeep));
        // A handle keeps it.
        let handle = shared.handle();
        drop(shared);
        assert!(handle == handle.clone());
        Ok(())
    }
}
