// SPDX-License-Identifier: GPL-2.0

//! Submissions that wait for values of monitored fences: *held*, as long as there is no fence that
//! could stand for them.
//!
//! Nobody may have promised the value, so nothing that waits for `dma_fence`s may depend on it: a
//! held submission has none. What it is to signal stays without a fence, no memory is kept for it,
//! and the engine does not know of it. What comes behind it in its context is held, too.
//!
//! ```text
//! SUBMIT ──▶ [held] [held] ──the first one's values are reached──▶ worker ──▶ Context::submit
//!               │                                                    │ no room, for long
//!               └── context not active any more ──▶ worker: ECANCELED ◀┘ (the context is lost)
//! ```
//!
//! The worker does what SUBMIT does, in its place, making room included; so it is in a queue of its
//! own, which no fence waits for. Where SUBMIT says that there is no room, it tries again for a
//! while. Each context has a work item, which lets go of one at a time.
//!
//! What is allocated there is charged to nobody's control group: the client is not the running
//! process.

use crate::{
    ext::{
        fence::{
            Fence,
            FenceMemory,
            Signalling, //
        },
        queue::ModuleQueue, //
    },
    fences::{
        monitored::{
            End,
            Target,
            Wait, //
        },
        signals::Signals, //
    },
    few::Few,
    kernel_heap::client_flags,
    submit::{
        context::{
            Context,
            Status,
            MAX_QUEUED,
            UNLIMITED, //
        },
        recovery,
        submission::Buffer, //
    }, //
};
use kernel::{
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::WorkItem, //
};

/// Where held submissions are let go. It belongs to the module: the work may hold the last
/// reference to the device.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// What a client wants to be done.
pub(crate) struct Request {
    /// One after the other.
    pub(crate) buffers: Few<Buffer>,
    /// Before them.
    pub(crate) waits: Few<Fence>,
    /// Behind them.
    pub(crate) signals: Signals,
}

/// How long there may be no room for what is let go, in milliseconds.
const PATIENCE_MS: i64 = 10_000;
/// Between two attempts, in milliseconds.
const PAUSE_MS: i64 = 10;

/// A request that is held.
struct Held {
    request: Request,
    /// For the fence of one that never gets to its engine.
    memory: FenceMemory,
    /// Begin when it is the first.
    values: Few<Wait>,
    /// When there was no room for it first.
    refused: Option<Instant<Monotonic>>,
}

/// What of a context is held.
pub(crate) struct Holds {
    /// In order, but the first.
    queue: RBTree<u64, Held>,
    /// The first, unless the worker has it.
    first: Option<Held>,
    /// How many there were.
    count: u64,
}

impl Holds {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self {
            queue: RBTree::new(),
            first: None,
            count: 0,
        }
    }
}

/// Submits a request, now or when the `values` that `context` waits for are reached.
///
/// As [`Context::submit`], and checked by [`Context::check`] before; `ENOSPC` also if too many are
/// held.
pub(crate) fn submit(context: &Arc<Context>, mut request: Request, values: Few<Wait>) -> Result {
    if values.iter().all(Wait::has_ended) && context.held() == 0 {
        return context.submit(
            request.buffers,
            request.waits,
            MAX_QUEUED,
            &mut request.signals,
        );
    }
    let memory = FenceMemory::new(GFP_KERNEL_ACCOUNT)?;
    let held = Held {
        request,
        memory,
        values,
        refused: None,
    };
    let reservation = kernel::rbtree::RBTreeNodeReservation::new(client_flags())?;
    let mut holds = context.holds.lock();
    if context.held().saturating_add(context.queued()) >= MAX_QUEUED {
        drop(holds);
        return Err(ENOSPC);
    }
    holds.count = holds.count.wrapping_add(1);
    // No wrap: see `MAX_QUEUED`.
    context.held.fetch_add(1, Relaxed);
    let node = reservation.into_node(holds.count, held);
    drop(holds.queue.insert(node));
    drop(holds);
    look_again(context.clone());
    Ok(())
}

/// Has the worker look at what is held. In any context; allocates nothing.
pub(crate) fn look_again(context: Arc<Context>) {
    let dev = context.device().clone();
    // Refused if it is queued already: then it will run and look.
    if let Err(context) = QUEUE.enqueue::<_, 1>(context) {
        dev.reapers.contexts.bury(context);
    }
}

impl Target for Context {
    fn wake(self: Arc<Self>, _index: u32, _reached: bool) {
        look_again(self);
    }
}

impl WorkItem<1> for Context {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some((held, is_active)) = next(&this) {
            let refused = if is_active {
                held.release(&this)
            } else {
                held.cancel(&this);
                None
            };
            if refused.is_some() {
                fsleep(Delta::from_millis(PAUSE_MS));
            }
            let mut holds = this.holds.lock();
            if refused.is_none() {
                this.held.fetch_sub(1, Relaxed);
            }
            holds.first = refused;
            drop(holds);
            if is_active && this.status() == Status::Active {
                // Who waits for the queue does not wait for all that clients bring meanwhile.
                look_again(this.clone());
                break;
            }
        }
        let dev = this.device().clone();
        dev.reapers.contexts.bury(this);
    }
}

/// Takes out the first that is held, if it is to be released (`true`) or cancelled.
fn next(context: &Context) -> Option<(Held, bool)> {
    let mut holds = context.holds.lock();
    if holds.first.is_none() {
        let first = holds.queue.cursor_front_mut()?.remove_current().1;
        holds.first = Some(first.to_key_value().1);
    }
    let is_active = context.status() == Status::Active;
    let first = holds.first.as_mut()?;
    if is_active {
        first.values.iter_mut().for_each(Wait::begin);
        if !first.values.iter().all(Wait::has_ended) {
            return None;
        }
    }
    Some((holds.first.take()?, is_active))
}

impl Held {
    /// Submits it, or gives it back if there is no room now. If it cannot be, the context has failed.
    fn release(mut self, context: &Arc<Context>) -> Option<Self> {
        let error = self.submit(context).err()?;
        let is_active = context.status() == Status::Active;
        let since = *self.refused.get_or_insert_with(Instant::now);
        if is_active
            && [ENOMEM, ENOSPC, EBUSY].contains(&error)
            && since.elapsed() < Delta::from_millis(PATIENCE_MS)
        {
            return Some(self);
        }
        if is_active {
            recovery::fail(context, Status::Lost);
        }
        self.cancel(context);
        None
    }

    /// As [`Context::submit`]. It may be tried again.
    fn submit(&mut self, context: &Arc<Context>) -> Result {
        let Request {
            buffers,
            waits,
            signals,
        } = &mut self.request;
        context.submit(buffers.try_clone()?, waits.try_clone()?, UNLIMITED, signals)
    }

    /// Signals what it promised, with an error.
    fn cancel(mut self, context: &Arc<Context>) {
        let error = match context.device().check_health() {
            Ok(()) => ECANCELED,
            Err(_) => ENODEV,
        };
        let fence = context.cancelled.fence(self.memory);
        let signalling = Signalling::begin();
        let mut promises = self.request.signals.publish(fence.fence());
        let end = context.end_of(Err(error));
        promises.iter_mut().for_each(|promise| promise.keep(end));
        context.count_finished();
        fence.signal(Err(error));
        drop(signalling);
    }
}

impl Context {
    /// Submissions that are held, with what the worker has.
    pub(crate) fn held(&self) -> u32 {
        self.held.load(Relaxed)
    }

    /// What becomes of the values that work was to signal, which ended with `result`: nobody is
    /// told of what the client has cancelled itself.
    pub(crate) fn end_of(&self, result: Result) -> End {
        match result {
            Ok(()) => End::Done,
            Err(ECANCELED) if self.status() == Status::Destroyed => End::Withdrawn,
            Err(_) => End::Failed,
        }
    }
}
