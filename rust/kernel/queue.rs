// SPDX-License-Identifier: GPL-2.0

//! Work queues that a driver owns, and work with a time.
//!
//! # Model
//!
//! [`OwnedQueue`] is a queue of the driver's own: fences may depend on what runs in it, so it has a
//! rescuer thread (`WQ_MEM_RECLAIM`) and does not wait behind others' work. Dropping it runs what
//! is queued to the end first.
//!
//! [`Alarm`] is a piece of work that is started now or after a time, any number of times, from any
//! context; dropping it (or [`Alarm::cancel`]) stops it and waits until it is not running. The
//! kernel crate's own delayed work cannot be cancelled, and on an owned queue could outlive it; so
//! owned queues take no such work.
//!
//! C header: `include/linux/workqueue.h`.

use super::shim;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    time::Jiffies,
    types::Opaque,
    workqueue::{
        HasWork,
        Queue,
        RawWorkItem,
        Work, //
    }, //
};

/// How many items of a queue run at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One at a time, in the order they were queued.
    Ordered,
    /// As many as there are workers for.
    Unordered,
}

/// At which nice level the workers of a queue run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nice {
    /// As threads do: for work of which a client decides how much it is.
    Normal,
    /// Before threads, for what is short and others wait for (`WQ_HIGHPRI`).
    High,
}

/// A work queue that ends with its owner: dropping it waits for what is queued.
///
/// # Examples
///
/// ```ignore
/// let queue = OwnedQueue::new(c"moves", Order::Unordered, Nice::Normal)?;
/// // It comes back if the item is queued already.
/// let _ = queue.enqueue(item);
/// queue.flush();
/// ```
///
/// # Invariants
///
/// The pointer is a valid queue of ours.
pub(crate) struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Work queues may be used from any thread.
unsafe impl Send for OwnedQueue {}
// SAFETY: As above.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Makes a queue. `name` shows in the list of kernel threads. `ENOMEM`.
    pub(crate) fn new(name: &CStr, order: Order, nice: Nice) -> Result<Self> {
        let mut flags = bindings::wq_flags_WQ_MEM_RECLAIM | bindings::wq_flags_WQ_UNBOUND;
        if nice == Nice::High {
            flags |= bindings::wq_flags_WQ_HIGHPRI;
        }
        // One user's that are stuck are not to be in the way of others'.
        let mut active = bindings::wq_consts_WQ_MAX_ACTIVE as i32;
        if order == Order::Ordered {
            // `alloc_ordered_workqueue()`
            flags |= bindings::wq_flags___WQ_ORDERED;
            active = 1;
        }
        // SAFETY: The format takes one string.
        let raw = unsafe {
            bindings::alloc_workqueue_noprof(c"%s".as_char_ptr(), flags, active, name.as_char_ptr())
        };
        // INVARIANT: The queue is new.
        NonNull::new(raw).map(Self).ok_or(ENOMEM)
    }

    /// Queues a work item of the kernel crate.
    pub(crate) fn enqueue<W, const ID: u64>(&self, work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: The queue is valid as long as `self`; when `self` is dropped, the item has run.
        unsafe { Queue::from_raw(self.0.as_ptr()) }.enqueue(work)
    }

    /// Waits until everything queued before has run. Not to be called from work of this queue.
    pub(crate) fn flush(&self) {
        // SAFETY: The queue is valid.
        unsafe { bindings::__flush_workqueue(self.0.as_ptr()) };
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: The queue is ours and nobody can queue any more. Runs what is queued.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// A work queue of the module, for work that may hold the last reference to whatever else could own
/// a queue: destroying a queue from its own work would wait for itself.
///
/// It is a `static`. [`ModuleQueue::open`] gives it a queue for as long as the module structure
/// lives.
pub(crate) struct ModuleQueue(Atomic<usize>);

impl ModuleQueue {
    /// A queue that is closed: nothing can be queued.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Opens the queue. The result belongs into the module structure, behind everything whose end
    /// may queue work; dropping it runs what is queued, and what that queues, to the end. `ENOMEM`.
    pub(crate) fn open(&'static self, name: &CStr, nice: Nice) -> Result<OpenQueue> {
        let queue = OwnedQueue::new(name, Order::Unordered, nice)?;
        self.0.store(queue.0.as_ptr().expose_provenance(), Release);
        Ok(OpenQueue { place: self, queue })
    }

    /// The queue; the system's while this one is closed.
    fn with<R>(&self, f: impl FnOnce(&Queue) -> R) -> R {
        let raw = core::ptr::with_exposed_provenance_mut::<bindings::workqueue_struct>(
            self.0.load(Acquire),
        );
        if raw.is_null() {
            return f(kernel::workqueue::system());
        }
        // SAFETY: The pointer is that of the queue in an `OpenQueue`, which takes it out before the
        // queue is destroyed, and is destroyed with the module, when no code of it runs any more
        // but the work of this queue itself, for whose end that waits.
        f(unsafe { Queue::from_raw(raw) })
    }

    /// Queues a work item of the kernel crate.
    pub(crate) fn enqueue<W, const ID: u64>(&self, work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        self.with(|queue| queue.enqueue(work))
    }

    /// Waits until everything queued before has run. Not to be called from work of this queue.
    pub(crate) fn flush(&self) {
        let raw = core::ptr::with_exposed_provenance_mut::<bindings::workqueue_struct>(
            self.0.load(Acquire),
        );
        if !raw.is_null() {
            // SAFETY: As in `with()`.
            unsafe { bindings::__flush_workqueue(raw) };
        }
    }
}

/// Waits until `item` has run if it is queued, in any queue, or runs just now; not for what it
/// queues then, itself included. Process context, and not from the item.
pub(crate) fn flush_item<T: HasWork<T, ID>, const ID: u64>(item: &Arc<T>) {
    // SAFETY: The item is valid as long as the caller has it; its work is only used as such.
    unsafe {
        let work = T::raw_get_work(Arc::as_ptr(item).cast_mut());
        bindings::flush_work(Work::raw_get(work));
    }
}

/// What keeps a [`ModuleQueue`] open.
pub(crate) struct OpenQueue {
    /// Where others find the queue; emptied when this is dropped.
    place: &'static ModuleQueue,
    /// What the [`Queue`] gives work to, until this is dropped.
    queue: OwnedQueue,
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        // SAFETY: The queue is valid. Work that it runs may queue more: to this queue, which is
        // still in its place.
        unsafe { bindings::drain_workqueue(self.queue.0.as_ptr()) };
        self.place.0.store(0, Release);
    }
}

/// What an [`Alarm`] does when its time is up.
pub(crate) trait AlarmHandler: Send + Sync + 'static {
    /// Runs in a thread of the queue; never twice at a time. Returning a number of jiffies starts
    /// it again after these, unless it was started meanwhile or is being cancelled.
    fn run(&self) -> Option<Jiffies>;
}

/// Work that can be started, now or later, and stopped.
///
/// # Examples
///
/// ```ignore
/// impl AlarmHandler for Watchdog {
///     fn run(&self) -> Option<Jiffies> {
///         self.is_busy().then(|| msecs_to_jiffies(100))
///     }
/// }
///
/// let queue = Arc::new(OwnedQueue::new(c"watchdog", Order::Ordered, Nice::High)?, GFP_KERNEL)?;
/// let watchdog = Alarm::new(queue, Watchdog::new())?;
/// watchdog.set(msecs_to_jiffies(100));
/// // It is not running, and will not.
/// drop(watchdog);
/// ```
pub(crate) struct Alarm<T: AlarmHandler>(Pin<KBox<AlarmData<T>>>);

#[pin_data]
#[repr(C)]
struct AlarmData<T> {
    /// Queued while the alarm is set.
    #[pin]
    work: Opaque<bindings::delayed_work>,
    /// Where the handler runs.
    queue: Arc<OwnedQueue>,
    /// Called each time that the alarm rings.
    handler: T,
}

// SAFETY: `work` is only touched by the C functions, which synchronise; the rest is `Send`.
unsafe impl<T: AlarmHandler> Send for AlarmData<T> {}
// SAFETY: As above.
unsafe impl<T: AlarmHandler> Sync for AlarmData<T> {}

impl<T: AlarmHandler> Alarm<T> {
    /// Makes an alarm that is not set. Work runs in `queue`. `ENOMEM`.
    pub(crate) fn new(queue: Arc<OwnedQueue>, handler: T) -> Result<Self> {
        Ok(Self(KBox::pin_init(
            pin_init!(AlarmData {
                work <- Opaque::ffi_init(|work| {
                    // SAFETY: `work` is pinned memory, uninitialised. `alarm_callback::<T>` expects
                    // work at the start of an `AlarmData<T>`.
                    unsafe { shim::skua_init_delayed_work(work, Some(alarm_callback::<T>)) }
                }),
                queue,
                handler,
            }),
            GFP_KERNEL,
        )?))
    }

    /// Has the handler run in `delay` jiffies (0: now), instead of when it was to run. In any
    /// context.
    pub(crate) fn set(&self, delay: Jiffies) {
        let data = &*self.0;
        // SAFETY: Work and queue are valid as long as `self`, whose drop stops the work.
        unsafe {
            bindings::mod_delayed_work_on(
                WORK_CPU_UNBOUND,
                data.queue.0.as_ptr(),
                data.work.get(),
                delay,
            );
        }
    }

    /// Has the handler run now, unless it is about to. In any context.
    pub(crate) fn kick(&self) {
        self.set(0);
    }

    /// Stops it: on return it does not run and is not set. Sleeps; not to be called by the handler.
    pub(crate) fn cancel(&self) {
        // SAFETY: The work is valid.
        unsafe { bindings::cancel_delayed_work_sync(self.0.work.get()) };
    }
}

/// `WORK_CPU_UNBOUND`: the number of CPUs, as C has it.
const WORK_CPU_UNBOUND: c_int = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;

/// What `work_struct.func` is for an [`Alarm`] of `T`.
///
/// # Safety
///
/// `work` must be the start of an `AlarmData<T>` that stays alive for the call.
unsafe extern "C" fn alarm_callback<T: AlarmHandler>(work: *mut bindings::work_struct) {
    // SAFETY: The work is the first field of a `delayed_work`, itself the first of an
    // `AlarmData<T>` (`repr(C)`), that lives until the work is stopped; only a shared reference is
    // made.
    let data = unsafe { &*work.cast::<AlarmData<T>>() };
    if let Some(delay) = data.handler.run() {
        // Queues only if it is not queued already; refused while being cancelled.
        //
        // SAFETY: As in `set()`.
        unsafe {
            bindings::queue_delayed_work_on(
                WORK_CPU_UNBOUND,
                data.queue.0.as_ptr(),
                data.work.get(),
                delay,
            );
        }
    }
}

const _: () = assert!(core::mem::offset_of!(bindings::delayed_work, work) == 0);

impl<T: AlarmHandler> Drop for Alarm<T> {
    fn drop(&mut self) {
        // SAFETY: The work is valid. Afterwards it cannot be queued again, so it may be freed.
        unsafe { bindings::disable_delayed_work_sync(self.0.work.get()) };
    }
}

#[kunit_tests(skua_queue)]
mod tests {
    use super::*;
    use kernel::{
        impl_has_work,
        new_work,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Completion, //
        },
        workqueue::{
            Work,
            WorkItem, //
        }, //
    };

    #[pin_data]
    struct Item {
        #[pin]
        work: Work<Item>,
        place: Arc<Atomic<u32>>,
        seen: Atomic<u32>,
    }

    impl_has_work! { impl HasWork<Self> for Item { self.work } }

    impl WorkItem for Item {
        type Pointer = Arc<Item>;

        fn run(this: Arc<Item>) {
            this.seen.store(this.place.fetch_add(1, Relaxed), Relaxed);
        }
    }

    fn item(place: &Arc<Atomic<u32>>) -> Result<Arc<Item>> {
        Arc::pin_init(
            pin_init!(Item {
                work <- new_work!("skua-kunit"),
                place: place.clone(),
                seen: Atomic::new(u32::MAX),
            }),
            GFP_KERNEL,
        )
    }

    #[test]
    fn ordered_queue_keeps_order_and_drop_drains() -> Result {
        let place = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let (a, b, c) = (item(&place)?, item(&place)?, item(&place)?);
        let queue = OwnedQueue::new(c"skua-kunit", Order::Ordered, Nice::Normal)?;
        for work in [&a, &b, &c] {
            assert!(queue.enqueue::<Arc<Item>, 0>(work.clone()).is_ok());
        }
        drop(queue);
        assert_eq!(a.seen.load(Relaxed), 0);
        assert_eq!(b.seen.load(Relaxed), 1);
        assert_eq!(c.seen.load(Relaxed), 2);
        Ok(())
    }

    #[test]
    fn flush_waits() -> Result {
        let place = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let queue = OwnedQueue::new(c"skua-kunit", Order::Unordered, Nice::Normal)?;
        let work = item(&place)?;
        assert!(queue.enqueue::<Arc<Item>, 0>(work.clone()).is_ok());
        queue.flush();
        assert_eq!(work.seen.load(Relaxed), 0);
        Ok(())
    }

    #[pin_data]
    struct Bell {
        rings: Atomic<u32>,
        again: u32,
        #[pin]
        rung: Completion,
    }

    struct Ring(Arc<Bell>);

    impl AlarmHandler for Ring {
        fn run(&self) -> Option<Jiffies> {
            let rings = self.0.rings.fetch_add(1, Relaxed).wrapping_add(1);
            if rings < self.0.again {
                Some(1)
            } else {
                self.0.rung.complete_all();
                None
            }
        }
    }

    fn alarm(again: u32) -> Result<(Arc<Bell>, Alarm<Ring>)> {
        let bell = Arc::pin_init(
            pin_init!(Bell {
                rings: Atomic::new(0),
                again,
                rung <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let queue = Arc::new(
            OwnedQueue::new(c"skua-kunit", Order::Ordered, Nice::Normal)?,
            GFP_KERNEL,
        )?;
        Ok((bell.clone(), Alarm::new(queue, Ring(bell))?))
    }

    #[test]
    fn alarm_rings_as_often_as_it_asks() -> Result {
        let (bell, alarm) = alarm(3)?;
        alarm.kick();
        bell.rung.wait_for_completion();
        alarm.cancel();
        assert_eq!(bell.rings.load(Relaxed), 3);
        Ok(())
    }

    #[test]
    fn alarm_that_is_cancelled_or_dropped_does_not_ring() -> Result {
        let (bell, alarm) = alarm(1)?;
        alarm.set(1000 * kernel::time::msecs_to_jiffies(1000));
        alarm.cancel();
        alarm.set(1000 * kernel::time::msecs_to_jiffies(1000));
        drop(alarm);
        assert_eq!(bell.rings.load(Relaxed), 0);
        Ok(())
    }
}
