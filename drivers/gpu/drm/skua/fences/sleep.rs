// SPDX-License-Identifier: GPL-2.0

//! Clients that wait for monitored fences: threads that sleep, and eventfds.

use crate::{
    ext::{
        eventfd::EventFd,
        queue::ModuleQueue, //
    },
    fences::monitored::{
        Over,
        Target,
        Waits, //
    },
    quota::Share, //
};
use kernel::{
    impl_has_work,
    new_condvar,
    new_mutex,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex,
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
    /// The device of one has ended.
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
    fn wake(self: Arc<Self>, index: u32, over: Over) {
        let mut progress = self.progress.lock();
        if over != Over::Reached {
            progress.failed = true;
        } else if let Some(missing) = progress.missing.checked_sub(1) {
            progress.missing = missing;
            progress.last = index;
        }
        drop(progress);
        self.changed.notify_all();
    }
}

/// An eventfd that is told of all of several values, or of one of them.
///
/// It holds its waits, and their fences hold it; the worker parts them.
#[pin_data]
pub(crate) struct EventFdWait {
    /// Told once: when it has the values, a device ends by whose handle it waits, or it cannot have
    /// them any more.
    eventfd: EventFd,
    /// Whether one of the values suffices.
    any: bool,
    /// How many there are to wait for.
    count: i32,
    /// How many waits are to be over yet before it is told: to be reached, or, of any, to be given
    /// up. What else ends one of them stands for all.
    missing: Atomic<i32>,
    /// What it waits by, and what counts that; none before it begins, and once the worker has run.
    #[pin]
    waits: Mutex<Option<(Waits, Share)>>,
    /// Tells it, in a worker: who signals may have interrupts off.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for EventFdWait { self.work }
}

impl EventFdWait {
    /// One for `count` values, 1 at least, or `any` of them. `ENOMEM`.
    pub(crate) fn new(eventfd: EventFd, any: bool, count: usize) -> Result<Arc<Self>> {
        let count = i32::try_from(count)?;
        Arc::pin_init(
            pin_init!(Self {
                eventfd,
                any,
                missing: Atomic::new(count),
                count,
                waits <- new_mutex!(None),
                work <- new_work!("EventFdWait::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Begins to wait: so many `waits`, which `share` counts. Process context.
    pub(crate) fn begin(&self, waits: Waits, share: Share) {
        // Under the lock: the worker ends all of them.
        let mut all = self.waits.lock();
        all.insert((waits, share)).0.begin();
    }
}

impl Target for EventFdWait {
    fn wake(self: Arc<Self>, _index: u32, over: Over) {
        let is_one_of_all = match over {
            Over::Reached => !self.any,
            Over::Abandoned => self.any,
            Over::Ended => false,
        };
        let step = if is_one_of_all { 1 } else { self.count };
        // No wrap: each wait is over once, and each device.
        let missing = self.missing.fetch_sub(step, Full);
        if (1..=step).contains(&missing) {
            // Once: it is never refused.
            let _ = QUEUE.enqueue(self);
        }
    }
}

impl WorkItem for EventFdWait {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let waits = this.waits.lock().take();
        // With the lock free, and before anybody is told.
        drop(waits);
        this.eventfd.signal();
    }
}
