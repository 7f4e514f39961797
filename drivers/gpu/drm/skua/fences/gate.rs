// SPDX-License-Identifier: GPL-2.0

//! What work, a submission, a bind or a destruction, waits for before it may start.
//!
//! A [`Gate`] holds the fences to wait for, each with memory for a callback, all of it allocated
//! before the work's own fence is published. It is open when all of them have signalled. The work
//! waits in a queue, and only the first work of a queue can start: when it gets there and its gate
//! is closed the gate is armed, which attaches the callbacks. Whoever makes the last step then
//! wakes the queue, once: a work item, since fences signal in any context.
//!
//! So a fence has a callback for each queue that waits for it, however much is queued: they all run
//! while it is signalled, with interrupts off.
//!
//! ```text
//! fence ──callback──▶ remaining − 1 ─┐
//! fence ──callback──▶ remaining − 1 ─┼─▶ 0: Wake::wake(target) ─▶ work item ─▶ looks at its work
//! arm()  ───────────▶ remaining − 1 ─┘
//! ```
//!
//! Lock: `waiters`, a spin lock, for the callbacks of one gate; none is attached or detached under
//! it.

use crate::{
    ext::fence::{
        Attached,
        Callback,
        Fence,
        FenceCallback,
        PendingCallback, //
    },
    few::Few,
    kernel_heap::client_flags, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        Arc,
        SpinLock, //
    }, //
};

/// What work belongs to, and what looks at that when woken: a context, an address space.
pub(crate) trait Wake: Send + Sync + 'static {
    /// A gate of its work has opened. May be called in any context, with interrupts off.
    fn wake(this: &Arc<Self>);
}

/// How many steps are missing until a gate is open.
struct Remaining(Atomic<u32>);

impl Remaining {
    /// Makes a step; whether it was the last one.
    fn step(&self) -> bool {
        // No wrap: each callback and `arm()` step once.
        self.0.fetch_sub(1, Full) == 1
    }
}

/// The data of one callback.
struct Waiter<T: Wake> {
    /// The gate's steps, of which this callback makes one.
    remaining: Arc<Remaining>,
    /// Woken if that was the last.
    target: Arc<T>,
}

impl<T: Wake> FenceCallback for Waiter<T> {
    fn signaled(&self) {
        if self.remaining.step() {
            T::wake(&self.target);
        }
    }
}

/// What becomes of one of the fences.
enum Step<T: Wake> {
    /// It had not signalled when the gate was made, which is not armed.
    Idle(Fence, Callback<Waiter<T>>),
    /// It had not signalled when the gate was armed.
    Attached(#[expect(dead_code, reason = "dropping it detaches it")] PendingCallback<Waiter<T>>),
    /// It had signalled: nothing is to be attached.
    Over,
}

/// The callbacks, once for each fence that had not signalled when the gate was made.
struct Waiters<T: Wake> {
    /// Whether somebody attaches them, or has.
    armed: bool,
    /// Whether nobody is to be woken any more.
    closed: bool,
    /// One for each of those fences, in no order.
    steps: Few<Step<T>>,
}

/// The fences that work waits for.
#[pin_data]
pub(crate) struct Gate<T: Wake> {
    /// One step for each of `waiters` and one for [`Gate::arm`]; shared with the callbacks. None if
    /// all had signalled when the gate was made: it is open.
    remaining: Option<Arc<Remaining>>,
    /// All that are waited for, also when they have signalled: they tell with which error.
    fences: Few<Fence>,
    /// The callbacks, and whom the last of them wakes.
    #[pin]
    waiters: SpinLock<Waiters<T>>,
}

impl<T: Wake> Gate<T> {
    /// A gate that is open when all of `fences` have signalled, and of whose opening `target`
    /// learns when it is armed. `ENOMEM`.
    pub(crate) fn new(target: &Arc<T>, fences: Few<Fence>) -> Result<impl PinInit<Self>> {
        let mut remaining = None;
        let mut steps = Few::Empty;
        for fence in fences.iter().filter(|fence| fence.status().is_none()) {
            let remaining = match &remaining {
                Some(remaining) => remaining,
                None => remaining.insert(Arc::new(Remaining(Atomic::new(1)), client_flags())?),
            };
            let waiter = Waiter {
                remaining: remaining.clone(),
                target: target.clone(),
            };
            let callback = Callback::new(waiter, client_flags())?;
            steps.push(Step::Idle(fence.clone(), callback))?;
            // No wrap: each has its memory.
            remaining.0.fetch_add(1, Full);
        }
        Ok(pin_init!(Self {
            remaining,
            fences,
            waiters <- new_spinlock!(Waiters {
                armed: false,
                closed: false,
                steps,
            }),
        }))
    }

    /// Has the target woken when the gate opens, unless it was armed before. Process context;
    /// allocates nothing. Who has armed it looks whether it is open.
    pub(crate) fn arm(&self) {
        let Some(remaining) = &self.remaining else {
            return;
        };
        let mut steps = {
            let mut waiters = self.waiters.lock();
            if core::mem::replace(&mut waiters.armed, true) {
                return;
            }
            core::mem::take(&mut waiters.steps)
        };
        for step in &mut *steps {
            if let Step::Idle(fence, callback) = core::mem::replace(step, Step::Over) {
                match callback.attach(&fence) {
                    Attached::Pending(callback) => *step = Step::Attached(callback),
                    // Cannot be the last one: that of this function is still to come.
                    Attached::Signaled(_) => _ = remaining.step(),
                }
            }
        }
        {
            let mut waiters = self.waiters.lock();
            if !waiters.closed {
                // There was none: nothing is dropped under the lock.
                core::mem::swap(&mut waiters.steps, &mut steps);
            }
        }
        remaining.step();
    }

    /// What waited is over: has fences that have not signalled call nobody. What they would call
    /// may be kept for longer than the module is there, if the device is not known to be quiet.
    pub(crate) fn close(&self) {
        let steps = {
            let mut waiters = self.waiters.lock();
            waiters.closed = true;
            core::mem::take(&mut waiters.steps)
        };
        // Not under the lock. The fences are others', too, and so is the target.
        drop(steps);
    }

    /// Whether somebody attaches to the fences, or has: a gate is armed once.
    pub(crate) fn is_armed(&self) -> bool {
        self.waiters.lock().armed
    }

    /// Whether the gate is open. One that is not armed may be so without that being known.
    pub(crate) fn is_open(&self) -> bool {
        let Some(remaining) = &self.remaining else {
            return true;
        };
        match self.is_armed() {
            true => remaining.0.load(Acquire) == 0,
            // Under spin locks: other drivers are not asked.
            false => self.fences.iter().all(Fence::is_known_signaled),
        }
    }

    /// The fences that the gate waits for, signalled or not.
    pub(crate) fn fences(&self) -> &[Fence] {
        &self.fences
    }

    /// The first of the fences that has not signalled.
    pub(crate) fn pending(&self) -> Option<&Fence> {
        self.fences.iter().find(|fence| fence.status().is_none())
    }

    /// Whether a fence that has signalled did so with an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.fences
            .iter()
            .any(|fence| matches!(fence.status(), Some(Err(_))))
    }
}
