// SPDX-License-Identifier: GPL-2.0

//! What work, a submission or a bind, waits for before it may start.
//!
//! A [`Gate`] holds the fences to wait for, each with a callback, all of it allocated before the
//! work's own fence is published. It is open when all of them have signalled *and* it was armed,
//! that is, when the work is where its target will find it. Whoever makes the last step wakes the
//! target, once: a work item, since fences signal in any context.
//!
//! ```text
//! fence ──callback──▶ remaining − 1 ─┐
//! fence ──callback──▶ remaining − 1 ─┼─▶ 0: Wake::wake(target) ─▶ work item ─▶ looks at its work
//! arm()  ───────────▶ remaining − 1 ─┘
//! ```

use crate::{
    ext::fence::{
        Attached,
        Callback,
        Fence,
        FenceCallback,
        PendingCallback, //
    },
    kernel_heap::client_flags, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        Arc, //
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

/// The fences that a submission or a bind waits for.
pub(crate) struct Gate<T: Wake> {
    /// One step for each fence and one for [`Gate::arm`]; shared with the callbacks.
    remaining: Arc<Remaining>,
    /// All that are waited for, also when they have signalled: they tell with which error.
    fences: KVVec<Fence>,
    /// Callbacks on the fences that had not signalled. Dropping one detaches it.
    _pending: KVVec<PendingCallback<Waiter<T>>>,
}

impl<T: Wake> Gate<T> {
    /// A gate that opens when all of `fences` have signalled and it was armed; `target` is woken
    /// then, unless the last step is [`Gate::arm`]. `ENOMEM`.
    pub(crate) fn new(target: &Arc<T>, fences: KVVec<Fence>) -> Result<Self> {
        let steps = u32::try_from(fences.len())?
            .checked_add(1)
            .ok_or(EOVERFLOW)?;
        let remaining = Arc::new(Remaining(Atomic::new(steps)), client_flags())?;
        let mut pending = KVVec::with_capacity(fences.len(), client_flags())?;
        for fence in &fences {
            let waiter = Waiter {
                remaining: remaining.clone(),
                target: target.clone(),
            };
            match Callback::new(waiter, client_flags())?.attach(fence) {
                Attached::Pending(callback) => pending.push(callback, client_flags())?,
                Attached::Signaled(_) => {
                    // Cannot be the last one: `arm()` is still to come.
                    remaining.step();
                }
            }
        }
        Ok(Self {
            remaining,
            fences,
            _pending: pending,
        })
    }

    /// Says that the work is where its target finds it. Whether the gate is open; if not, the
    /// target is woken later.
    pub(crate) fn arm(&self) -> bool {
        self.remaining.step()
    }

    /// Whether the gate is open.
    pub(crate) fn is_open(&self) -> bool {
        self.remaining.0.load(Acquire) == 0
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
