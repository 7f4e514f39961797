// SPDX-License-Identifier: GPL-2.0

//! Work queues that a driver owns, and work with a time.
//!
//! # Model
//!
//! [`OwnedQueue`] is a queue of the driver's own: fences may depend on what runs in it, so it has a
//! rescuer thread (`WQ_MEM_RECLAIM`) and does not wait behind others' work. Dropping it runs what is
//! queued to the end first.
//!
//! [`Alarm`] is a piece of work that is started now or after a time, any number of times, from any
//! context; dropping it (or [`Alarm::cancel`]) stops it and waits until it is not running. The kernel
//! crate's own delayed work cannot be cancelled, and on an owned queue could outlive it; so owned
//! queues take no such work.
//!
//! C header: `include/linux/workqueue.h`.

use super::shim;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    time::Jiffies,
    types::Opaque,
    workqueue::{
        Queue,
        RawWorkItem, //
    }, //
};

/// How many items of a queue run at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One at a time, in the order they were queued.
    Ordered,
    /// Any number.
    Unordered,
}

/// A work queue.
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
    pub(crate) fn new(name: &CStr, order: Order) -> Result<Self> {
        let mut flags = bindings::wq_flags_WQ_MEM_RECLAIM
            | bindings::wq_flags_WQ_HIGHPRI
            | bindings::wq_flags_WQ_UNBOUND;
        let mut active = 0;
        if order == Order::Ordered {
            // `alloc_ordered_workqueue()`
            flags |= bindings::wq_flags___WQ_ORDERED;
            active = 1;
        }
        // SAFETY: The format takes one string.
        let raw = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                flags,
                active,
                name.as_char_ptr(),
            )
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

/// What an [`Alarm`] does.
pub(crate) trait AlarmHandler: Send + Sync + 'static {
    /// Runs in a thread of the queue; never twice at a time. Returning a number of jiffies starts it
    /// again after these, unless it was started meanwhile or is being cancelled.
    fn run(&self) -> Option<Jiffies>;
}

/// Work that can be started, now or later, and stopped.
pub(crate) struct Alarm<T: AlarmHandler>(Pin<KBox<AlarmData<T>>>);

#[pin_data]
#[repr(C)]
struct AlarmData<T> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    queue: Arc<OwnedQueue>,
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

    /// Has the handler run in `delay` jiffies (0: now), instead of when it was to run. In any context.
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

    /// The handler.
    pub(crate) fn handler(&self) -> &T {
        &self.0.handler
    }
}

/// `WORK_CPU_UNBOUND`: the number of CPUs, as C has it.
const WORK_CPU_UNBOUND: c_int = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;

unsafe extern "C" fn alarm_callback<T: AlarmHandler>(work: *mut bindings::work_struct) {
    // SAFETY: The work is the first field of a `delayed_work`, itself the first of an `AlarmData<T>`
    // (`repr(C)`), that lives until the work is stopped; only a shared reference is made.
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
