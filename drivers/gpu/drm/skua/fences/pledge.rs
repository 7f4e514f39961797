// SPDX-License-Identifier: GPL-2.0

//! Values of monitored fences that are signalled with a fence that is no submission's own, such as
//! that of several moves.
//!
//! ```text
//! fence ──callback──▶ worker ──▶ promises are kept, or not, as the fence says
//! ```
//!
//! The callback holds the pledge, and the pledge the callback; the worker parts them.

use crate::{
    ext::fence::{
        Attached,
        Callback,
        Fence,
        FenceCallback,
        PendingCallback,
        Signalling, //
    },
    fences::{
        monitored::{
            End,
            MonitoredFence,
            Promise, //
        },
        signals::Signals, //
    },
    few::Few,
    gpu::{
        SkuaDevice,
        QUEUE, //
    },
    kernel_heap::client_flags,
    quota::{
        Quota,
        Share, //
    }, //
};
use kernel::{
    impl_has_work,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

struct State {
    /// What is signalled when the fence is, or withdrawn if it fails.
    promises: Few<Promise>,
    /// The fence that keeps the promises by signalling; none before [`Publisher::publish`], and
    /// once the worker has run.
    fence: Option<Fence>,
    /// Until the worker has it.
    callback: Option<PendingCallback<Told>>,
    /// Its part of the client's quota: 1, until the worker has run.
    share: Option<Share>,
    /// The worker has run.
    is_over: bool,
}

/// Pledges that one client can have at a time: all callbacks of a fence run in one go.
pub(crate) const MAX_PLEDGES: u64 = 1024;

/// Promises that are kept when a fence signals.
#[pin_data]
pub(crate) struct Pledge {
    /// What it keeps, and when.
    #[pin]
    state: SpinLock<State>,
    /// Keeps the promises, in a worker.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Pledge { self.work }
}

/// The data of the callback.
struct Told(Arc<Pledge>);

impl FenceCallback for Told {
    fn signaled(&self) {
        // Once: it is never refused.
        let _ = QUEUE.enqueue(self.0.clone());
    }
}

/// What publishes the fence of work that keeps no promises itself.
pub(crate) struct Publisher {
    /// What gets the fence, and the values that its end brings.
    signals: Signals,
    /// None if no values are promised.
    callback: Option<Callback<Told>>,
}

impl Publisher {
    /// One for `signals`, of a client with `quota`. `ENOSPC` if that is used up, `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, signals: Signals, quota: &Arc<Quota>) -> Result<Self> {
        let callback = match signals.has_values() {
            false => None,
            true => {
                let share = Some(quota.take(dev, 1).ok_or(ENOSPC)?);
                let pledge = Arc::pin_init(
                    pin_init!(Pledge {
                        state <- new_spinlock!(State {
                            promises: Few::Empty,
                            fence: None,
                            callback: None,
                            share,
                            is_over: false,
                        }),
                        work <- new_work!("Pledge::work"),
                    }),
                    GFP_KERNEL_ACCOUNT,
                )?;
                Some(Callback::new(Told(pledge), client_flags())?)
            }
        };
        Ok(Self { signals, callback })
    }

    /// Whether values are all that is signalled.
    pub(crate) fn has_values_alone(&self) -> bool {
        !self.signals.has_syncobjs()
    }

    /// Whether nothing is signalled.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_values_alone() && !self.signals.has_values()
    }

    /// Gives the promises, which take their places; there is no fence for them yet.
    pub(crate) fn promise(&mut self) {
        for promise in self.signals.values_mut() {
            promise.give();
        }
    }

    /// Whether `fence` has `value` only when a promise is kept that was given here.
    pub(crate) fn delays(&self, fence: &MonitoredFence, value: u64) -> bool {
        let mut promises = self.signals.values().iter();
        promises.any(|promise| promise.delays(fence, value))
    }

    /// What was promised will not be: its fences are lost. Process context.
    pub(crate) fn fail(mut self) {
        for promise in self.signals.values_mut() {
            promise.keep(End::Failed);
        }
    }

    /// Gives the promises, puts `fence` into all syncobjs, and has the promises kept when it
    /// signals. Allocates nothing.
    pub(crate) fn publish(mut self, dev: &SkuaDevice, fence: &Fence) {
        let promises = self.signals.publish(dev, fence);
        let Some(callback) = self.callback else {
            return;
        };
        let pledge = callback.data().0.clone();
        {
            let mut state = pledge.state.lock();
            // There was none: nothing is dropped under the lock.
            state.promises = promises;
            state.fence = Some(fence.clone());
        }
        match callback.attach(fence) {
            Attached::Signaled(_) => pledge.redeem(),
            Attached::Pending(callback) => {
                let mut state = pledge.state.lock();
                let late = match state.is_over {
                    true => Some(callback),
                    false => state.callback.replace(callback),
                };
                drop(state);
                // With the lock free: it may wait for the callback.
                drop(late);
            }
        }
    }
}

impl Pledge {
    /// The fence has signalled. Process context.
    fn redeem(&self) {
        let (mut promises, fence, callback, share) = {
            let mut state = self.state.lock();
            state.is_over = true;
            (
                core::mem::take(&mut state.promises),
                state.fence.take(),
                state.callback.take(),
                state.share.take(),
            )
        };
        let end = match fence.as_ref().and_then(Fence::status) {
            Some(Ok(())) => End::Done,
            _ => End::Failed,
        };
        // Before anybody is told.
        drop(share);
        let signalling = Signalling::begin();
        promises.iter_mut().for_each(|promise| promise.keep(end));
        drop(signalling);
        drop(callback);
    }
}

impl WorkItem for Pledge {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.redeem();
    }
}
