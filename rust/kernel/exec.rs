// SPDX-License-Identifier: GPL-2.0

//! Many reservation locks at once.
//!
//! # Model
//!
//! Locks that are taken one after the other in whatever order need a way out of a deadlock.
//! Reservation locks are wound/wait mutexes: all that are taken for one purpose carry one *ticket*,
//! and of two parties that wait for each other the one with the younger ticket gives up all that it
//! holds, waits for the lock that it could not get, and begins again. [`Exec`] is that loop: what
//! is to be locked is said by a closure, which is called again each time.
//!
//! Locking twice is locking once: objects may share a reservation. A victim of eviction is only
//! tried ([`Exec::try_lock`]), so that nobody waits for memory that somebody else is using.
//!
//! # Examples
//!
//! ```ignore
//! let mut exec = Exec::lock_all(|exec| {
//!     for bo in buffers {
//!         exec.lock(&Handle::of(bo))?;
//!     }
//!     Ok(())
//! })?;
//! exec.reserve_fences()?;
//! // From here on nothing fails.
//! exec.add_fence(&fence, Usage::Bookkeep, |_| true)?;
//! ```
//!
//! Upstream's counterpart: `drivers/gpu/drm/drm_exec.c`, which a module cannot select.

use super::{
    fence::Fence,
    resv::{
        Handle,
        Reserved,
        Usage, //
    },
    shim, //
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

/// Reservation locks that are held together.
///
/// # Invariants
///
/// - `ticket` is an initialised acquire context of this thread.
/// - All of `locked` are locked with it, by this thread, each once.
#[must_use]
pub(crate) struct Exec {
    /// In the order in which they were locked.
    locked: KVVec<Handle>,
    /// What could not be locked: all others are to be given up, and it is to be waited for.
    contended: Option<Handle>,
    /// Says who is older when two threads want each other's locks.
    ticket: Pin<KBox<Opaque<bindings::ww_acquire_ctx>>>,
    /// The locks and the ticket are this thread's.
    _not_send: NotThreadSafe,
}

impl Exec {
    /// Calls `f` until it has locked all that it wants, and keeps the locks.
    ///
    /// `f` passes errors of [`Self::lock`] on, and is otherwise free to fail: then nothing is
    /// locked. It starts from nothing each time. `EINTR` if a signal arrives; `ENOMEM`.
    pub(crate) fn lock_all(mut f: impl FnMut(&mut Self) -> Result) -> Result<Self> {
        let ticket = KBox::pin_init(
            // SAFETY: The slot is valid and pinned; the function initialises it.
            Opaque::ffi_init(|ticket| unsafe { shim::skua_ticket_init(ticket) }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // INVARIANT: The ticket was just initialised; nothing is locked.
        let mut exec = Self {
            locked: KVVec::new(),
            contended: None,
            ticket,
            _not_send: NotThreadSafe,
        };
        loop {
            let result = f(&mut exec);
            let Some(contended) = exec.contended.take() else {
                return result.map(|()| exec);
            };
            exec.unlock_all();
            // Without any other lock it is safe to wait for it, however old who holds it.
            exec.locked.reserve(1, GFP_KERNEL_ACCOUNT)?;
            // SAFETY: The reservation is valid, the ticket is this thread's and holds no lock.
            to_result(unsafe {
                shim::skua_resv_lock_slow_interruptible(contended.as_raw(), exec.ticket.get())
            })?;
            exec.keep(contended);
        }
    }

    /// Locks a reservation, if it is not locked by this already.
    ///
    /// `EDEADLK` if all locks have to be given up: return it from the closure. `EINTR`, `ENOMEM`.
    pub(crate) fn lock(&mut self, handle: &Handle) -> Result {
        if self.contended.is_some() {
            return Err(EDEADLK);
        }
        self.locked.reserve(1, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The reservation is valid, the ticket is this thread's.
        let result = to_result(unsafe {
            shim::skua_resv_lock_interruptible(handle.as_raw(), self.ticket.get())
        });
        match result {
            Ok(()) => self.keep(handle.clone()),
            Err(error) if error == EALREADY => (),
            Err(error) => {
                if error == EDEADLK {
                    self.contended = Some(handle.clone());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Locks a reservation if it is free now; whether it was.
    ///
    /// `false` also if this holds it already. `ENOMEM`; `EDEADLK` if all is to be given up.
    pub(crate) fn try_lock(&mut self, handle: &Handle) -> Result<bool> {
        if self.contended.is_some() {
            return Err(EDEADLK);
        }
        self.locked.reserve(1, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: As in `lock()`.
        let locked = unsafe { shim::skua_resv_trylock(handle.as_raw(), self.ticket.get()) };
        if locked {
            self.keep(handle.clone());
        }
        Ok(locked)
    }

    /// The lock of a reservation. `EINVAL` if this does not hold it.
    pub(crate) fn reserved(&mut self, handle: &Handle) -> Result<Reserved<'_>> {
        let held = self.locked.iter().any(|held| held == handle);
        // SAFETY: By the type invariant it is locked as long as `self`, which the result borrows
        // mutably: there is no second.
        held.then(|| unsafe { Reserved::borrowed(handle.as_raw()) })
            .ok_or(EINVAL)
    }

    /// Makes room for one fence in each reservation, so that [`Self::add_fence`] cannot fail.
    /// `ENOMEM`.
    pub(crate) fn reserve_fences(&mut self) -> Result {
        for handle in &self.locked {
            // SAFETY: By the type invariant it is locked; the value does not outlive this step.
            unsafe { Reserved::borrowed(handle.as_raw()) }.reserve(1)?;
        }
        Ok(())
    }

    /// Files `fence` in each reservation that is `asked`. `ENOMEM`, then in some of them: never
    /// after [`Self::reserve_fences`].
    pub(crate) fn add_fence(
        &mut self,
        fence: &Fence,
        usage: Usage,
        asked: impl Fn(&Handle) -> bool,
    ) -> Result {
        for handle in self.locked.iter().filter(|handle| asked(handle)) {
            // SAFETY: As in `reserve_fences()`.
            unsafe { Reserved::borrowed(handle.as_raw()) }
                .reserve(1)?
                .add(fence, usage)?;
        }
        Ok(())
    }

    /// Whether all fences up to `usage` are signalled, in all reservations that are `asked`.
    pub(crate) fn is_idle(&self, usage: Usage, asked: impl Fn(&Handle) -> bool) -> bool {
        self.locked
            .iter()
            .filter(|handle| asked(handle))
            .all(|handle| {
                // SAFETY: As in `reserve_fences()`.
                unsafe { Reserved::borrowed(handle.as_raw()) }.is_idle(usage)
            })
    }

    /// Calls `f` with one fence for each reservation that is `asked`, which stands for all its
    /// fences up to `usage`, unless there are none. `ENOMEM`, and what `f` says.
    pub(crate) fn collect(
        &self,
        usage: Usage,
        asked: impl Fn(&Handle) -> bool,
        mut f: impl FnMut(Fence) -> Result,
    ) -> Result {
        for handle in self.locked.iter().filter(|handle| asked(handle)) {
            // SAFETY: As in `reserve_fences()`.
            let reserved = unsafe { Reserved::borrowed(handle.as_raw()) };
            reserved.singleton(usage)?.map_or(Ok(()), &mut f)?;
        }
        Ok(())
    }

    /// Notes a lock that was just taken, for which there is room.
    fn keep(&mut self, handle: Handle) {
        // INVARIANT: Locked by the caller.
        let kept = self.locked.push_within_capacity(handle);
        // Callers reserve before they lock: it would stay locked for ever.
        crate::warn_on_once!(kept.is_err());
    }

    /// The references go behind the locks: the last one of an object may ask for any of them.
    fn unlock_all(&mut self) {
        for handle in &self.locked {
            // SAFETY: By the type invariant it is locked by this thread, and was not unlocked yet.
            unsafe { shim::skua_resv_unlock(handle.as_raw()) };
        }
        self.locked.clear();
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.unlock_all();
        // SAFETY: The ticket is initialised, of this thread, and holds no lock any more.
        unsafe { shim::skua_ticket_fini(self.ticket.get()) };
    }
}

#[kunit_tests(skua_exec)]
mod tests {
    use super::{
        super::{
            fence::{
                FenceContext,
                FenceMemory, //
            },
            gem,
            mock,
            queue::{
                Nice,
                Order,
                OwnedQueue, //
            },
            resv::{
                self,
                Reservation, //
            }, //
        },
        *, //
    };
    use kernel::{
        impl_has_work,
        new_work,
        page::PAGE_SIZE,
        sync::{
            Arc,
            Completion, //
        },
        workqueue::{
            Work,
            WorkItem, //
        }, //
    };

    #[test]
    fn all_are_locked_or_none() -> Result {
        let (_parent, dev) = mock::device(c"skua-mock")?;
        let a = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, None)?;
        let b = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, None)?;
        let shared = Reservation::new()?;
        let handles = [Handle::of(&*a), Handle::of(&*b), shared.handle()];
        {
            let mut exec = Exec::lock_all(|exec| {
                // Twice is once.
                handles.iter().try_for_each(|h| exec.lock(h))?;
                handles.iter().try_for_each(|h| exec.lock(h))
            })?;
            assert_eq!(exec.locked.len(), 3);
            assert!(resv::trylock(&*a).is_none());
            assert!(resv::trylock(&*b).is_none());
            assert!(shared.trylock().is_none());
            assert!(exec.reserved(&handles[0])?.guards(&*a));
            assert!(!exec.reserved(&handles[1])?.guards(&*a));
            assert!(!exec.try_lock(&handles[2])?);
        }
        let failed = Exec::lock_all(|exec| {
            handles.iter().try_for_each(|h| exec.lock(h))?;
            Err(ENOSPC)
        });
        assert!(failed.err() == Some(ENOSPC));
        assert!(resv::trylock(&*a).is_some());
        assert!(resv::trylock(&*b).is_some());
        assert!(shared.trylock().is_some());
        Ok(())
    }

    #[test]
    fn a_fence_is_filed_with_all() -> Result {
        let (_parent, dev) = mock::device(c"skua-mock")?;
        let a = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, None)?;
        let b = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, None)?;
        let context = FenceContext::new(c"skua-kunit", c"exec");
        let owner = context.fence(FenceMemory::new(GFP_KERNEL)?);
        {
            let mut exec = Exec::lock_all(|exec| {
                exec.lock(&Handle::of(&*a))?;
                exec.lock(&Handle::of(&*b))?;
                exec.reserve_fences()
            })?;
            let is_a = |handle: &Handle| *handle == Handle::of(&*a);
            exec.add_fence(owner.fence(), Usage::Bookkeep, |_| true)?;
            exec.add_fence(owner.fence(), Usage::Kernel, is_a)?;
            assert!(!exec.is_idle(Usage::Kernel, is_a));
            assert!(exec.is_idle(Usage::Kernel, |handle| !is_a(handle)));
            let mut collected = 0;
            exec.collect(Usage::Bookkeep, is_a, |_| {
                collected += 1;
                Ok(())
            })?;
            assert_eq!(collected, 1);
        }
        assert!(!resv::is_idle(&*a, Usage::Kernel));
        assert!(resv::is_idle(&*b, Usage::Kernel));
        assert!(!resv::is_idle(&*a, Usage::Bookkeep));
        assert!(!resv::is_idle(&*b, Usage::Bookkeep));
        owner.signal(Ok(()));
        assert!(resv::is_idle(&*a, Usage::Bookkeep));
        Ok(())
    }

    /// Locks `first`, says so, is told to go on, and locks `second`.
    #[pin_data]
    struct Rival {
        first: Handle,
        second: Handle,
        #[pin]
        has_first: Completion,
        #[pin]
        go_on: Completion,
        #[pin]
        work: Work<Rival>,
    }

    impl_has_work! { impl HasWork<Self> for Rival { self.work } }

    impl WorkItem for Rival {
        type Pointer = Arc<Rival>;

        fn run(this: Arc<Rival>) {
            let both = Exec::lock_all(|exec| {
                exec.lock(&this.first)?;
                this.has_first.complete_all();
                this.go_on.wait_for_completion();
                exec.lock(&this.second)
            });
            assert!(both.is_ok());
        }
    }

    /// A rival for `a` and then `b` that has been started in `queue`.
    fn rival(queue: &OwnedQueue, a: &Arc<Reservation>, b: &Arc<Reservation>) -> Result<Arc<Rival>> {
        let (first, second) = (a.handle(), b.handle());
        let rival = Arc::pin_init(
            pin_init!(Rival {
                first,
                second,
                has_first <- Completion::new(),
                go_on <- Completion::new(),
                work <- new_work!("skua-kunit"),
            }),
            GFP_KERNEL,
        )?;
        assert!(queue.enqueue::<Arc<Rival>, 0>(rival.clone()).is_ok());
        rival.has_first.wait_for_completion();
        Ok(rival)
    }

    #[test]
    fn victims_are_tried() -> Result {
        let (a, b) = (Reservation::new()?, Reservation::new()?);
        let queue = OwnedQueue::new(c"skua-kunit", Order::Unordered, Nice::Normal)?;
        let rival = rival(&queue, &a, &b)?;
        let mut exec = Exec::lock_all(|exec| {
            assert!(!exec.try_lock(&a.handle())?);
            assert!(exec.try_lock(&b.handle())?);
            Ok(())
        })?;
        assert!(exec.reserved(&a.handle()).err() == Some(EINVAL));
        assert!(exec.reserved(&b.handle()).is_ok());
        drop(exec);
        rival.go_on.complete_all();
        queue.flush();
        Ok(())
    }

    #[test]
    fn the_younger_gives_way_and_begins_again() -> Result {
        let (a, b) = (Reservation::new()?, Reservation::new()?);
        let queue = OwnedQueue::new(c"skua-kunit", Order::Unordered, Nice::Normal)?;
        // Its ticket is the older one, and it has what we want.
        let rival = rival(&queue, &a, &b)?;
        let mut rounds = 0;
        let mut exec = Exec::lock_all(|exec| {
            rounds += 1;
            exec.lock(&b.handle())?;
            rival.go_on.complete_all();
            exec.lock(&a.handle())
        })?;
        assert!(rounds >= 2);
        assert_eq!(exec.locked.len(), 2);
        assert!(exec.reserved(&a.handle()).is_ok());
        drop(exec);
        queue.flush();
        assert!(a.trylock().is_some());
        assert!(b.trylock().is_some());
        Ok(())
    }
}
