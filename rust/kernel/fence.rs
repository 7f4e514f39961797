// SPDX-License-Identifier: GPL-2.0

//! `dma_fence`: a promise that something will finish.
//!
//! # Model
//!
//! A [`FenceContext`] is a line of work that finishes in order: a context number and a counter. It
//! makes fences from preallocated memory ([`FenceMemory`]), so that nothing is allocated once a
//! submission can no longer fail. A fence has two faces:
//!
//! - [`DriverFence`], one owner: the only one who can signal. [`DriverFence::signal`] consumes it,
//!   so a fence is signalled once. Dropped unsignalled, it signals `ECANCELED`: no path of the
//!   driver, whatever it forgets, leaves a waiter hanging.
//! - [`Fence`], shared and reference counted: can be looked at, waited for, called back from,
//!   handed to syncobjs and reservation objects. It may come from another driver.
//!
//! # Invariants
//!
//! - The C structure is at offset 0 of a `kmalloc` allocation and the fence's operations have
//!   neither `release` nor `wait`: the core detaches the operations when the fence signals and
//!   frees it with `kfree_rcu()`. A signalled fence is thus independent of this module; what
//!   remains is that a reader under RCU may have seen the operations just before. [`ModuleGuard`]
//!   waits for those.
//! - The memory after the C structure is plain data (static strings): nothing is dropped.
//!
//! # Locks and contexts
//!
//! Signalling takes the fence's own spin lock with interrupts off and may be done anywhere.
//! Callbacks run under that lock, in whatever context signals. What leads to a signal must not
//! allocate with `GFP_KERNEL` nor take a reservation lock; [`Signalling`] tells lockdep where that
//! holds.
//!
//! Modelled on the abstraction posted for `kernel::dma_buf` ("rust / dma_buf: Add abstractions for
//! dma_fence", 2026-06-18). C header: `include/linux/dma-fence.h`.

use super::shim;
use core::{
    marker::PhantomPinned,
    mem::MaybeUninit,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    alloc::AllocError,
    bindings,
    error::to_result,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Jiffies,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

/// What a fence of this module consists of. The C part comes first, see the invariants above.
#[repr(C)]
struct FenceData {
    /// What C code knows of it; first, so that their addresses are the same.
    base: bindings::dma_fence,
    /// What `get_driver_name()` says.
    driver: &'static CStr,
    /// What `get_timeline_name()` says.
    timeline: &'static CStr,
}

const _: () = assert!(core::mem::offset_of!(FenceData, base) == 0);

/// `dma_fence_ops.get_driver_name`.
///
/// # Safety
///
/// `fence` must be the start of a [`FenceData`] that is alive.
unsafe extern "C" fn driver_name(fence: *mut bindings::dma_fence) -> *const c_char {
    // SAFETY: These operations are only ever given to fences that are the start of a `FenceData`,
    // and the C core calls them with a fence that is alive under RCU. `driver` was written before
    // the fence was published and never changes.
    unsafe { (*fence.cast::<FenceData>()).driver }.as_char_ptr()
}

/// `dma_fence_ops.get_timeline_name`.
///
/// # Safety
///
/// `fence` must be the start of a [`FenceData`] that is alive.
unsafe extern "C" fn timeline_name(fence: *mut bindings::dma_fence) -> *const c_char {
    // SAFETY: As in `driver_name()`.
    unsafe { (*fence.cast::<FenceData>()).timeline }.as_char_ptr()
}

/// The operations: names only. See the module's invariants for what must not be added.
static OPS: Ops = Ops(bindings::dma_fence_ops {
    get_driver_name: Some(driver_name),
    get_timeline_name: Some(timeline_name),
    ..pin_init::zeroed()
});

#[repr(transparent)]
struct Ops(bindings::dma_fence_ops);

// SAFETY: The structure holds function pointers and is never written.
unsafe impl Sync for Ops {}

/// Memory for one fence, obtained where failing is still possible.
pub(crate) struct FenceMemory(KBox<MaybeUninit<FenceData>>);

// SAFETY: It is plain memory owned by this value, of which nothing is initialised.
unsafe impl Send for FenceMemory {}

impl FenceMemory {
    /// Allocates the memory of one fence.
    pub(crate) fn new(flags: kernel::alloc::Flags) -> Result<Self, AllocError> {
        Ok(Self(KBox::new_uninit(flags)?))
    }
}

/// A line of fences that signal in order.
///
/// # Examples
///
/// ```ignore
/// // Where failing is possible:
/// let memory = FenceMemory::new(GFP_KERNEL)?;
/// let waiter = Callback::new(Wake(work), GFP_KERNEL)?;
///
/// // Where it is not:
/// let owner = context.fence(memory);
/// let fence = owner.fence().clone();
/// if let Attached::Pending(pending) = waiter.attach(&fence) {
///     this.waiting = Some(pending);
/// }
///
/// // When the work is done:
/// owner.signal(Ok(()));
/// ```
pub(crate) struct FenceContext {
    /// The number of the line in all of the kernel.
    id: u64,
    /// Sequence number of the fence that was made last; 0 before any.
    last: Atomic<u64>,
    /// Name of the driver, in traces and sync files.
    driver: &'static CStr,
    /// Name of the line, likewise.
    timeline: &'static CStr,
}

impl FenceContext {
    /// Takes a new context number. The names are what tracing and `sync_file` show.
    pub(crate) fn new(driver: &'static CStr, timeline: &'static CStr) -> Self {
        Self {
            // SAFETY: The function has no requirements; it advances a global counter.
            id: unsafe { bindings::dma_fence_context_alloc(1) },
            last: Atomic::new(0),
            driver,
            timeline,
        }
    }

    /// The context number, unique in the system since boot.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Makes the next fence of this context. Cannot fail.
    ///
    /// Callers that need their fences to signal in order call this under the lock that orders their
    /// work.
    pub(crate) fn fence(&self, memory: FenceMemory) -> DriverFence {
        let seqno = self.last.fetch_add(1, Relaxed).wrapping_add(1);
        let data = KBox::into_raw(memory.0).cast::<FenceData>();

        // SAFETY: `data` is exclusively owned memory of the right size and alignment.
        unsafe {
            ptr::addr_of_mut!((*data).driver).write(self.driver);
            ptr::addr_of_mut!((*data).timeline).write(self.timeline);
        }

        let raw = data.cast::<bindings::dma_fence>();
        // SAFETY:
        // - `raw` is the start of a `kmalloc` allocation (`KBox`), large enough, exclusively owned.
        // - `OPS` is static; the core drops its pointer to it when the fence signals.
        // - A null lock selects the fence's own.
        unsafe {
            bindings::dma_fence_init64(raw, &raw const OPS.0, ptr::null_mut(), self.id, seqno);
        }

        DriverFence {
            // INVARIANT: The reference made by `dma_fence_init64()` is the new `Fence`'s.
            // SAFETY: `raw` comes from a `KBox`, thus is not null.
            fence: Fence(unsafe { NonNull::new_unchecked(raw) }),
            result: Err(ECANCELED),
        }
    }
}

/// The right, and the duty, to signal a fence.
///
/// # Invariants
///
/// The fence was made by this module and is not signalled; no other `DriverFence` refers to it.
#[must_use = "a fence that is dropped signals ECANCELED"]
pub(crate) struct DriverFence {
    /// Not signalled: who owns this does that.
    fence: Fence,
    /// What the fence is signalled with on drop.
    result: Result,
}

impl DriverFence {
    /// The fence, for those who wait; clone it to keep it.
    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Says with which error it will be signalled: [`Fence::has_error`].
    pub(crate) fn fail(&mut self, error: Error) {
        self.result = Err(error);
        // SAFETY: As in `drop()`.
        unsafe { shim::skua_fence_set_error(self.fence.as_raw(), error.to_errno()) };
    }

    /// Signals the fence; waiters see `result`.
    ///
    /// May be called in any context, also with interrupts off. Callbacks of the fence run in here.
    pub(crate) fn signal(mut self, result: Result) {
        self.result = result;
    }
}

impl Drop for DriverFence {
    fn drop(&mut self) {
        if let Err(error) = self.result {
            // SAFETY: By the type invariant the fence is alive and not signalled, and only we could
            // signal it: `dma_fence_set_error()` requires exactly that. `Error` holds a valid
            // errno.
            unsafe { shim::skua_fence_set_error(self.fence.as_raw(), error.to_errno()) };
        }
        // SAFETY: The fence is alive and initialised.
        unsafe { bindings::dma_fence_signal(self.fence.as_raw()) };
    }
}

/// A shared reference to a fence, of this driver or of any other.
///
/// # Invariants
///
/// The pointer is a valid, initialised `dma_fence` of which this value owns one reference.
pub(crate) struct Fence(NonNull<bindings::dma_fence>);

// SAFETY: A `dma_fence` is reference counted atomically and made for use from any thread.
unsafe impl Send for Fence {}
// SAFETY: All operations on a shared fence are synchronised by the C code.
unsafe impl Sync for Fence {}

impl Fence {
    /// Takes over one reference to a C fence.
    ///
    /// # Safety
    ///
    /// `raw` must be null or a valid fence of which the caller owns one reference, which it gives
    /// up.
    pub(super) unsafe fn from_raw(raw: *mut bindings::dma_fence) -> Option<Self> {
        // INVARIANT: By the safety requirements.
        NonNull::new(raw).map(Self)
    }

    /// The C fence, valid as long as `self`.
    pub(super) fn as_raw(&self) -> *mut bindings::dma_fence {
        self.0.as_ptr()
    }

    /// A fence that signals when all of `fences` have, which may themselves be such, with the first
    /// error; a signalled one if there are none. `ENOMEM`.
    pub(crate) fn all(fences: KVVec<Self>) -> Result<Self> {
        let mut raw = KVVec::with_capacity(fences.len(), GFP_KERNEL_ACCOUNT)?;
        for fence in &fences {
            raw.push(fence.as_raw(), GFP_KERNEL_ACCOUNT)?;
        }
        let all = match c_int::try_from(raw.len())? {
            // SAFETY: The function gives a reference to a fence that is always there.
            0 => unsafe { Self::from_raw(bindings::dma_fence_get_stub()) },
            // SAFETY: The fences are valid, as many as the array has.
            count => unsafe { Self::from_raw(shim::skua_fence_all(raw.as_mut_ptr(), count)) },
        };
        if all.is_some() {
            // Theirs are the references now.
            fences.into_iter().for_each(core::mem::forget);
        }
        all.ok_or(ENOMEM)
    }

    /// The number of the context that the fence belongs to.
    pub(crate) fn context(&self) -> u64 {
        // SAFETY: By the type invariant; the field never changes after initialisation.
        unsafe { (*self.as_raw()).context }
    }

    /// The position within the context.
    pub(crate) fn seqno(&self) -> u64 {
        // SAFETY: By the type invariant; the field never changes after initialisation.
        unsafe { (*self.as_raw()).seqno }
    }

    /// Whether the fence is signalled. For another driver's fence this may ask that driver.
    pub(crate) fn is_signaled(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_fence_is_signaled(self.as_raw()) }
    }

    /// Whether the fence is known to be signalled. Asks nobody, so that it may be called under any
    /// lock; another one may be so without anybody having noticed.
    pub(crate) fn is_known_signaled(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_fence_test_signaled_flag(self.as_raw()) }
    }

    /// What the fence was signalled with, [`None`] while it is not. For a point of a timeline, what
    /// the fence that was added at this point was signalled with.
    pub(crate) fn status(&self) -> Option<Result> {
        // SAFETY: By the type invariant.
        match unsafe { shim::skua_fence_status(self.as_raw()) } {
            0 => None,
            error if error < 0 => Some(to_result(error)),
            _ => Some(Ok(())),
        }
    }

    /// Whether it was or will be signalled with an error, as far as whoever signals it has said.
    pub(crate) fn has_error(&self) -> bool {
        // SAFETY: By the type invariant the field is there; it is one word, which others may write
        // just now.
        // An array that is pending has 1 there (`PENDING_ERROR`, `dma-fence-array.c`).
        unsafe { (&raw const (*self.as_raw()).error).read_volatile() < 0 }
    }

    /// Waits until the fence is signalled, at most `timeout` jiffies, until a signal arrives.
    ///
    /// Returns the remaining jiffies (at least 1). Errors: `ETIME` when the time is over,
    /// `ERESTARTSYS` when a signal arrived. Sleeps; must not be called in a path that leads to a
    /// fence's signal, nor while the device is held registered.
    pub(crate) fn wait_timeout(&self, timeout: Jiffies) -> Result<Jiffies> {
        let timeout = isize::try_from(timeout).unwrap_or(isize::MAX);
        // SAFETY: By the type invariant.
        remaining(unsafe { bindings::dma_fence_wait_timeout(self.as_raw(), true, timeout) })
    }
}

/// Translates what the wait functions of `dma_fence` and `dma_resv` return.
pub(super) fn remaining(left: c_long) -> Result<Jiffies> {
    match Jiffies::try_from(left) {
        Ok(0) => Err(ETIME),
        Ok(left) => Ok(left),
        Err(_) => Err(c_int::try_from(left).map_or(EINVAL, Error::from_errno)),
    }
}

/// Whether they are the same fence.
impl PartialEq for Fence {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Clone for Fence {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_fence_get(self.as_raw()) };
        // INVARIANT: The reference just taken is the clone's.
        Self(self.0)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, the reference is ours to give up.
        unsafe { shim::skua_fence_put(self.as_raw()) };
    }
}

/// What is called when a fence signals.
pub(crate) trait FenceCallback: Send + Sync + 'static {
    /// The fence is signalled. Runs under the fence's lock with interrupts off, perhaps in an
    /// interrupt: it must not sleep, must not signal that same fence, and must not be what drops
    /// the [`PendingCallback`] it belongs to. Starting a work item is the intended use.
    fn signaled(&self);
}

/// A callback that is not attached to a fence; memory obtained where failing is still possible.
pub(crate) struct Callback<T: FenceCallback>(Pin<KBox<CallbackData<T>>>);

#[pin_data]
#[repr(C)]
struct CallbackData<T> {
    /// Its place in the list of the fence, while it waits.
    #[pin]
    node: Opaque<bindings::dma_fence_cb>,
    /// Called when the fence signals.
    data: T,
    /// It does not move: the fence's list leads to `node`.
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: `node` is only touched by the C code under the fence's lock; `T` is `Send` by its bound.
unsafe impl<T: FenceCallback> Send for CallbackData<T> {}
// SAFETY: As above; `T` is `Sync` by its bound.
unsafe impl<T: FenceCallback> Sync for CallbackData<T> {}

/// The outcome of [`Callback::attach`].
pub(crate) enum Attached<T: FenceCallback> {
    /// The callback will run, or has just run.
    Pending(PendingCallback<T>),
    /// The fence was signalled already; the callback did not and will not run.
    Signaled(Callback<T>),
}

impl<T: FenceCallback> Callback<T> {
    /// A callback that is attached to no fence. `ENOMEM`.
    pub(crate) fn new(data: T, flags: kernel::alloc::Flags) -> Result<Self> {
        Ok(Self(KBox::pin_init(
            pin_init!(CallbackData {
                node: Opaque::new(pin_init::zeroed()),
                data,
                _pin: PhantomPinned,
            }),
            flags,
        )?))
    }

    /// What was given to [`Self::new`].
    pub(crate) fn data(&self) -> &T {
        &self.0.data
    }

    /// Attaches the callback to `fence`. Cannot fail.
    pub(crate) fn attach(self, fence: &Fence) -> Attached<T> {
        // SAFETY:
        // - `fence` is valid by its type invariant and is kept alive by the clone below until the
        //   callback is removed.
        // - The node is pinned memory that is not on any list: `self` is not attached. It stays
        //   valid until `PendingCallback::drop()` has taken it off the list.
        // - `called::<T>` expects a node within a `CallbackData<T>`, which this one is.
        let ret = unsafe {
            bindings::dma_fence_add_callback(fence.as_raw(), self.0.node.get(), Some(called::<T>))
        };
        if ret == 0 {
            Attached::Pending(PendingCallback {
                callback: self,
                fence: fence.clone(),
            })
        } else {
            Attached::Signaled(self)
        }
    }
}

/// What `dma_fence_cb.func` is for a [`Callback`] of `T`.
///
/// # Safety
///
/// `node` must be the start of a `CallbackData<T>` that stays alive for the call.
unsafe extern "C" fn called<T: FenceCallback>(
    _fence: *mut bindings::dma_fence,
    node: *mut bindings::dma_fence_cb,
) {
    // SAFETY: `attach()` registers this function only for nodes at the start of a `CallbackData<T>`
    // (`repr(C)`, first field, `Opaque` is transparent), which outlives the call: its owner removes
    // the node under the lock that is held here. Only a shared reference is made.
    let data = unsafe { &(*node.cast::<CallbackData<T>>()).data };
    data.signaled();
}

/// A callback attached to a fence. Dropping it detaches the callback, or waits until a call that is
/// under way is over; afterwards it does not run.
///
/// # Invariants
///
/// The callback was attached to `fence`.
#[must_use = "dropping it detaches the callback"]
pub(crate) struct PendingCallback<T: FenceCallback> {
    /// In the list of `fence`, until that signals.
    callback: Callback<T>,
    /// What it waits for.
    fence: Fence,
}

impl<T: FenceCallback> Drop for PendingCallback<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the node was added to this fence, which is alive. The
        // function takes the fence's lock, under which callbacks run, so on return the callback
        // neither runs nor will run, and the memory may be freed.
        let _ = unsafe {
            bindings::dma_fence_remove_callback(self.fence.as_raw(), self.callback.0.node.get())
        };
    }
}

/// A stretch of code that some fence's signal depends on. While it exists, lockdep complains about
/// anything in this thread that may wait for a fence: memory reclaim, reservation locks, fence
/// waits.
#[must_use]
pub(crate) struct Signalling {
    /// Whether it began in another section, or where nobody sleeps: then it ends nothing.
    cookie: bool,
    /// A section ends on the thread on which it began.
    _not_send: NotThreadSafe,
}

impl Signalling {
    /// Begins a signalling section of this thread.
    pub(crate) fn begin() -> Self {
        Self {
            // SAFETY: No requirements but that the section ends on the same thread, which
            // `NotThreadSafe` and `Drop` see to.
            cookie: unsafe { shim::skua_fence_begin_signalling() },
            _not_send: NotThreadSafe,
        }
    }

    /// To be called where this thread has entered a section of SRCU, which would hide from lockdep
    /// that it is inside of one of these: whatever is taken from there on is taken in both.
    pub(crate) fn renew() {
        if cfg!(CONFIG_LOCKDEP) {
            // SAFETY: No requirements: it leaves this thread in the section that it is in, or in
            // none.
            unsafe { shim::skua_fence_renew_signalling() };
        }
    }

    /// Whether this thread is inside of one, or holds a spin lock: what drops a last reference says
    /// so if it is. Lockdep alone knows; without it, no.
    pub(crate) fn is_inside() -> bool {
        // A section in a section has it as its cookie that it is one.
        cfg!(CONFIG_LOCKDEP) && Self::begin().cookie
    }
}

impl Drop for Signalling {
    fn drop(&mut self) {
        // SAFETY: `cookie` was returned by the matching begin on this thread.
        unsafe { shim::skua_fence_end_signalling(self.cookie) };
    }
}

/// Owned by the module structure as its last field: on unload, waits until no reader under RCU can
/// still be inside, or about to enter, a function of this module through a fence.
pub(crate) struct ModuleGuard(());

impl ModuleGuard {
    /// A guard, for the module structure alone.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl Drop for ModuleGuard {
    fn drop(&mut self) {
        // SAFETY: Called in process context; no requirements otherwise.
        unsafe { bindings::synchronize_rcu() };
        // SAFETY: As above. Waits for callbacks queued by `call_rcu()`, of pages or objects.
        unsafe { bindings::rcu_barrier() };
    }
}

#[kunit_tests(skua_fence)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    fn context() -> FenceContext {
        FenceContext::new(c"skua-kunit", c"fence")
    }

    fn fence(context: &FenceContext) -> Result<DriverFence> {
        Ok(context.fence(FenceMemory::new(GFP_KERNEL)?))
    }

    /// Counts calls.
    struct Count(Arc<Atomic<u32>>);

    impl FenceCallback for Count {
        fn signaled(&self) {
            self.0.add(1, Relaxed);
        }
    }

    fn count() -> Result<(Arc<Atomic<u32>>, Callback<Count>)> {
        let calls = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        Ok((calls.clone(), Callback::new(Count(calls), GFP_KERNEL)?))
    }

    #[test]
    fn numbers_count_up_and_contexts_differ() -> Result {
        let (a, b) = (context(), context());
        let (first, second) = (fence(&a)?, fence(&a)?);
        assert!(a.id() != b.id());
        assert_eq!(first.fence().context(), a.id());
        assert_eq!(first.fence().seqno(), 1);
        assert_eq!(second.fence().seqno(), 2);
        assert_eq!(fence(&b)?.fence().seqno(), 1);
        Ok(())
    }

    #[test]
    fn signal_is_seen_by_every_reference() -> Result {
        let owner = fence(&context())?;
        let seen = owner.fence().clone();
        assert!(!seen.is_signaled());
        assert!(seen.status().is_none());
        assert!(seen.wait_timeout(1) == Err(ETIME));
        owner.signal(Ok(()));
        assert!(seen.is_signaled());
        assert!(seen.status() == Some(Ok(())));
        assert!(seen.wait_timeout(1).is_ok());
        Ok(())
    }

    #[test]
    fn all_is_the_last_of_several() -> Result {
        let line = context();
        let (first, second) = (fence(&line)?, fence(&line)?);
        let fences = |owners: &[&DriverFence]| -> Result<KVVec<Fence>> {
            let mut fences = KVVec::new();
            for owner in owners {
                fences.push(owner.fence().clone(), GFP_KERNEL)?;
            }
            Ok(fences)
        };
        assert!(Fence::all(fences(&[])?)?.is_signaled());
        let (both, one) = (
            Fence::all(fences(&[&first, &second])?)?,
            Fence::all(fences(&[&first])?)?,
        );
        let mut all = fences(&[&second])?;
        all.push(both.clone(), GFP_KERNEL)?;
        let nested = Fence::all(all)?;
        first.signal(Err(EIO));
        assert!(one.wait_timeout(100).is_ok() && one.status() == Some(Err(EIO)));
        assert!(!both.is_signaled() && !both.has_error());
        second.signal(Ok(()));
        assert!(both.wait_timeout(100).is_ok() && both.status() == Some(Err(EIO)));
        assert!(nested.wait_timeout(100).is_ok() && nested.status() == Some(Err(EIO)));
        Ok(())
    }

    #[test]
    fn error_reaches_the_waiter() -> Result {
        let owner = fence(&context())?;
        let seen = owner.fence().clone();
        owner.signal(Err(ETIME));
        assert!(seen.is_signaled());
        assert!(seen.status() == Some(Err(ETIME)));
        Ok(())
    }

    #[test]
    fn dropped_owner_cancels() -> Result {
        let owner = fence(&context())?;
        let seen = owner.fence().clone();
        drop(owner);
        assert!(seen.status() == Some(Err(ECANCELED)));
        Ok(())
    }

    #[test]
    fn callback_runs_once() -> Result {
        let owner = fence(&context())?;
        let (calls, callback) = count()?;
        let Attached::Pending(pending) = callback.attach(owner.fence()) else {
            return Err(EINVAL);
        };
        assert_eq!(calls.load(Relaxed), 0);
        owner.signal(Ok(()));
        assert_eq!(calls.load(Relaxed), 1);
        drop(pending);
        assert_eq!(calls.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn removed_callback_does_not_run() -> Result {
        let owner = fence(&context())?;
        let (calls, callback) = count()?;
        let Attached::Pending(pending) = callback.attach(owner.fence()) else {
            return Err(EINVAL);
        };
        drop(pending);
        owner.signal(Ok(()));
        assert_eq!(calls.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn callback_comes_back_from_a_signaled_fence() -> Result {
        let owner = fence(&context())?;
        let seen = owner.fence().clone();
        owner.signal(Ok(()));
        let (calls, callback) = count()?;
        let Attached::Signaled(callback) = callback.attach(&seen) else {
            return Err(EINVAL);
        };
        assert_eq!(callback.data().0.load(Relaxed), 0);
        assert_eq!(calls.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn signals_with_interrupts_off_and_in_a_signalling_section() -> Result {
        let owner = fence(&context())?;
        let seen = owner.fence().clone();
        let section = Signalling::begin();
        {
            let _off = kernel::interrupt::local_interrupt_disable();
            owner.signal(Ok(()));
        }
        drop(section);
        assert!(seen.is_signaled());
        Ok(())
    }

    #[test]
    fn memory_that_is_not_used_is_freed() -> Result {
        drop(FenceMemory::new(GFP_KERNEL)?);
        Ok(())
    }
}
