// SPDX-License-Identifier: GPL-2.0

//! Clients that wait for monitored fences: threads that sleep, and eventfds.

use crate::{
    ext::{
        eventfd::EventFd,
        queue::ModuleQueue, //
    },
    fences::monitored::{
        Owner,
        Target, //
    },
    quota::Share, //
};
use kernel::{
    impl_has_work,
    new_condvar,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        ClockSource,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// Where eventfds are told: who looks at one there is called at once, and how many these are is up
/// to clients. No fence waits for that.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

struct Progress {
    /// Values that have to be reached yet.
    missing: u32,
    /// The wait that was over last of those that counted.
    last: u32,
    /// The device of one has failed.
    failed: bool,
}

/// A thread that waits for some of several values.
#[pin_data]
pub(crate) struct Sleeper {
    /// What has been reached so far; whoever wakes it changes this.
    #[pin]
    progress: SpinLock<Progress>,
    /// Notified when `progress` has changed.
    #[pin]
    changed: CondVar,
}

impl Sleeper {
    /// One that sleeps until `count` values are reached. `ENOMEM`.
    pub(crate) fn new(count: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                progress <- new_spinlock!(Progress {
                    missing: count,
                    last: 0,
                    failed: false,
                }),
                changed <- new_condvar!("Sleeper::changed"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Sleeps until then; the index of the last of them. `ETIME` when the clock shows `end`
    /// nanoseconds, `ERESTARTSYS` if a signal arrives, `ECANCELED` if a device has failed.
    pub(crate) fn sleep(&self, end: u64) -> Result<u32> {
        let mut progress = self.progress.lock();
        loop {
            if progress.missing == 0 {
                return Ok(progress.last);
            }
            if progress.failed {
                return Err(ECANCELED);
            }
            let left = left_until(end).ok_or(ETIME)?;
            // In parts, if it is long.
            let ms = u32::try_from(left.div_ceil(1_000_000)).map_or(60_000, |ms| ms.min(60_000));
            let woken = self
                .changed
                .wait_interruptible_timeout(&mut progress, msecs_to_jiffies(ms));
            let interrupted = matches!(woken, CondVarTimeoutResult::Signal { .. });
            if interrupted && progress.missing > 0 && !progress.failed {
                return Err(ERESTARTSYS);
            }
        }
    }
}

/// Nanoseconds until `end`, in nanoseconds of `CLOCK_MONOTONIC`, unless that is past.
pub(crate) fn left_until(end: u64) -> Option<u64> {
    let now = u64::try_from(Monotonic::ktime_get()).unwrap_or(0);
    end.checked_sub(now).filter(|left| *left > 0)
}

impl Target for Sleeper {
    fn wake(self: Arc<Self>, index: u32, reached: bool) {
        let mut progress = self.progress.lock();
        if !reached {
            progress.failed = true;
        } else if let Some(missing) = progress.missing.checked_sub(1) {
            progress.missing = missing;
            progress.last = index;
        }
        drop(progress);
        self.changed.notify_all();
    }
}

/// An eventfd that is told of one value.
#[pin_data]
pub(crate) struct EventFdWait {
    /// Told once, when the value is reached, the device ends by whose handle it waits, or nobody
    /// can signal the fence any more.
    eventfd: EventFd,
    /// Has it told at the end of the device that it waits for, too.
    _owner: Owner,
    /// Counts it, until it is told.
    _share: Share,
    /// Tells it, in a worker: who signals may have interrupts off.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for EventFdWait { self.work }
}

impl EventFdWait {
    /// One that `share` counts, and `owner` enters. `ENOMEM`.
    pub(crate) fn new(eventfd: EventFd, owner: Owner, share: Share) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                eventfd,
                _owner: owner,
                _share: share,
                work <- new_work!("EventFdWait::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

impl Target for EventFdWait {
    fn wake(self: Arc<Self>, _index: u32, _reached: bool) {
        // Once: it is never refused.
        let _ = QUEUE.enqueue(self);
    }
}

impl WorkItem for EventFdWait {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.eventfd.signal();
    }
}
