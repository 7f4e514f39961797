// SPDX-License-Identifier: GPL-2.0

//! Requests that wait for values of monitored fences: *held*, as long as there is no fence that
//! could stand for them.
//!
//! Nobody may have promised the value, so nothing that waits for `dma_fence`s may depend on it: a
//! held request has none. What it is to signal stays without a fence, no memory is kept for it, and
//! no engine or page table knows of it. What comes behind it from its [`Holder`], a context or an
//! address space, is held, too.
//!
//! ```text
//! ioctl ──▶ [held] [held] ──the first one's values are reached──▶ worker ──▶ Holder::submit
//!               │                                                    │ no room, for long
//!               └── holder not active any more ──▶ worker: ECANCELED ◀┘ (Holder::fail)
//! ```
//!
//! What is to happen when all has been let go that is held now ([`defer`]) has a place among them.
//!
//! The worker does what the ioctl does, in its place, making room included; so it is in a queue of
//! its own, which no fence waits for. Where the ioctl says that there is no room, it is tried again
//! for a while, and between two attempts keeps no worker ([`retry`](super::retry)) if there is
//! memory for that. Each holder has a work item, which lets go of one request at a time.
//!
//! What is allocated there is charged to the control group of memory of who made the request; VRAM
//! that it brings in to nobody's of device memory, which are the running process'.

use crate::{
    ext::{
        fence::{
            FenceContext,
            FenceMemory,
            Signalling, //
        },
        memcg::MemoryGroup,
        queue::ModuleQueue, //
    },
    fences::{
        monitored::{
            End,
            Target,
            Wait, //
        },
        retry::{
            RetryMemory,
            PAUSE_MS, //
        },
        signals::Signals, //
    },
    few::Few,
    gpu::{
        Pauses,
        SkuaDevice, //
    },
    kernel_heap::client_flags,
    quota::Quota, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        HasWork,
        WorkItem, //
    }, //
};

/// Where held requests are let go. It belongs to the module: the work may hold the last reference
/// to the device.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// How many work items of one device [`QUEUE`], or that of updates, has, or runs. Who unbinds the
/// device waits for these alone: what other devices' clients have held may wait for long.
pub(crate) struct Workers(Atomic<u32>);

impl Workers {
    /// None.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Has a worker of [`QUEUE`] run `item`, of `dev`, or gives it back if it is queued already:
    /// then it will run and look. In any context; allocates nothing.
    pub(crate) fn enqueue<T, const ID: u64>(dev: &SkuaDevice, item: Arc<T>) -> Result<(), Arc<T>>
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID> + Send + Sync + 'static,
    {
        Self::enqueue_in(&QUEUE, dev, item)
    }

    /// As [`Self::enqueue`], in another queue.
    pub(crate) fn enqueue_in<T, const ID: u64>(
        queue: &ModuleQueue,
        dev: &SkuaDevice,
        item: Arc<T>,
    ) -> Result<(), Arc<T>>
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID> + Send + Sync + 'static,
    {
        let dev: ARef<SkuaDevice> = dev.into();
        // No wrap: each is in memory. First: it may have run before the next line.
        dev.hold_workers.0.fetch_add(1, Relaxed);
        let queued = queue.enqueue::<Arc<T>, ID>(item);
        if queued.is_err() {
            dev.hold_workers.has_run();
        }
        queued
    }

    /// A work item has run, and has touched what the device has for the last time.
    pub(crate) fn has_run(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// Waits until there is none. Process context; whoever queues more does so for work that has
    /// ended.
    pub(crate) fn wait(&self) {
        let pauses = Pauses::new();
        while self.0.load(Acquire) != 0 {
            pauses.sleep();
        }
    }
}

/// How long there may be no room for what is let go, in milliseconds.
pub(crate) const PATIENCE_MS: i64 = 10_000;

/// Requests that one holder may have, held or queued.
pub(crate) const MAX_REQUESTS: u32 = 4096;

/// Whose requests are done in order, and held if they wait for values.
pub(crate) trait Holder: Target + Sized + 'static {
    /// What a client wants to be done.
    type Request: Send + Unpin;
    /// What happens in the order of held requests, but is none.
    type Deferred: Send + Unpin;

    /// The device that does it.
    fn device(&self) -> &SkuaDevice;

    /// The quota of its client's address spaces; none of the driver's own.
    fn client(&self) -> Option<&Arc<Quota>>;

    /// What of it is held.
    fn holds(&self) -> &Holds<Self>;

    /// Requests that are queued: not held any more, and not over.
    fn queued(&self) -> u32;

    /// Whether requests are still done.
    fn is_active(&self) -> bool;

    /// Does `request`, which has waited for `values`, when what was queued before is done. If it
    /// was `held`, since then, it has had its place, and is tried again if that fails.
    fn submit(
        this: &Arc<Self>,
        request: &mut Self::Request,
        values: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result;

    /// A request that was held cannot be done, for `error`; with which one it ends.
    fn fail(this: &Arc<Self>, error: Error) -> Error;

    /// What was held before is not any more: does `deferred`, or gives it back to have it tried
    /// again, not for ever. Process context, in a worker.
    fn perform(deferred: Self::Deferred) -> Option<Self::Deferred>;

    /// `request` is not done any more; nothing is to be done about it where no engine would have
    /// been given it.
    fn cancelled(&self, _request: &Self::Request) {}

    /// What `request` is to signal when it has ended, done or not.
    fn signals(request: &mut Self::Request) -> &mut Signals;

    /// A request, held or not, has ended with `result`; what becomes of the values that it was to
    /// signal.
    fn ended(&self, result: Result) -> End;

    /// Has a [worker](Workers) call [`run`]. In any context; allocates nothing.
    fn look_again(this: Arc<Self>);

    /// Lets go of a reference, where it may be the last one.
    fn bury(this: Arc<Self>);
}

/// A request that is held.
struct Held<R> {
    /// What is submitted when it is let go.
    request: R,
    /// For the fence of one that is never done.
    memory: FenceMemory,
    /// Whose request it is: what it needs is charged to that.
    group: MemoryGroup,
    /// Begin when it is the first.
    values: Few<Wait>,
    /// When the client submitted it.
    since: Instant<Monotonic>,
    /// When it was let go first, in vain; none before.
    refused: Option<Instant<Monotonic>>,
    /// Since when there is no room for it; none if it was something else.
    lacks_room: Option<Instant<Monotonic>>,
}

/// What has a place in a holder's queue.
enum Item<T: Holder> {
    Request(Held<T::Request>),
    Deferred(T::Deferred),
}

/// What one holder holds, in the order in which it came.
struct Queue<T: Holder> {
    /// By the order in which they came, all but the first.
    rest: RBTree<u64, Item<T>>,
    /// The first, unless the worker has it.
    first: Option<Item<T>>,
    /// How many have come so far: the number of the last one.
    count: u64,
}

impl<T: Holder> Queue<T> {
    /// Puts `item` behind all others, into memory that there is for it.
    fn push(&mut self, reservation: RBTreeNodeReservation<u64, Item<T>>, item: Item<T>) {
        self.count = self.count.wrapping_add(1);
        let node = reservation.into_node(self.count, item);
        drop(self.rest.insert(node));
    }
}

/// What of one holder is held.
#[pin_data]
pub(crate) struct Holds<T: Holder> {
    /// What is held, in the order in which it was asked for.
    #[pin]
    queue: Mutex<Queue<T>>,
    /// How many requests that is, with what the worker has; changed under that lock.
    len: Atomic<u32>,
    /// The line of fences of what was held to its end: that may be before what was submitted
    /// earlier is done.
    cancelled: FenceContext,
}

impl<T: Holder> Holds<T> {
    /// Of a holder that holds nothing yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            queue <- new_mutex!(Queue {
                rest: RBTree::new(),
                first: None,
                count: 0,
            }),
            len: Atomic::new(0),
            cancelled: FenceContext::new(c"skua", c"held"),
        })
    }

    /// Requests that are held, with what the worker has.
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }
}

/// Has `request` done, now or when the `values` that it waits for are reached. As
/// [`Holder::submit`]; `ENOSPC` also if too many are held.
pub(crate) fn submit<T: Holder>(
    holder: &Arc<T>,
    mut request: T::Request,
    values: Few<Wait>,
) -> Result {
    let holds = holder.holds();
    if values.iter().all(Wait::has_ended) && holds.len() == 0 {
        return T::submit(holder, &mut request, &values, None);
    }
    let memory = FenceMemory::new(GFP_KERNEL_ACCOUNT)?;
    let held = Held {
        request,
        memory,
        group: MemoryGroup::of_current(),
        values,
        since: Instant::now(),
        refused: None,
        lacks_room: None,
    };
    let reservation = RBTreeNodeReservation::new(client_flags())?;
    let mut queue = holds.queue.lock();
    if holds.len().saturating_add(holder.queued()) >= MAX_REQUESTS {
        drop(queue);
        return Err(ENOSPC);
    }
    // No wrap: see `MAX_REQUESTS`.
    holds.len.fetch_add(1, Relaxed);
    queue.push(reservation, Item::Request(held));
    drop(queue);
    T::look_again(holder.clone());
    Ok(())
}

/// Memory for one [`defer`].
pub(crate) struct HeldMemory<T: Holder>(RBTreeNodeReservation<u64, Item<T>>);

impl<T: Holder> HeldMemory<T> {
    /// Allocated where that may still fail. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(client_flags())?))
    }
}

/// Has [`Holder::perform`] called with `deferred` when all that is held now has been let go.
pub(crate) fn defer<T: Holder>(holder: &Arc<T>, memory: HeldMemory<T>, deferred: T::Deferred) {
    let item = Item::Deferred(deferred);
    holder.holds().queue.lock().push(memory.0, item);
    T::look_again(holder.clone());
}

/// Lets go of what is due, or of all if the holder is not active any more. In a worker that was
/// [asked for](Workers).
pub(crate) fn run<T: Holder>(holder: Arc<T>) {
    let dev: ARef<SkuaDevice> = holder.device().into();
    while let Some((item, is_active)) = next(&*holder) {
        let tried = Instant::now();
        let is_request = matches!(item, Item::Request(_));
        let refused = match item {
            Item::Request(held) if is_active => held.release(&holder).map(Item::Request),
            Item::Request(held) => {
                held.cancel(&*holder, ECANCELED);
                None
            }
            Item::Deferred(deferred) => T::perform(deferred).map(Item::Deferred),
        };
        let again = refused.as_ref().map(|item| (item.pause(), item.memory()));
        let holds = holder.holds();
        let mut queue = holds.queue.lock();
        if refused.is_none() && is_request {
            holds.len.fetch_sub(1, Relaxed);
        }
        queue.first = refused;
        drop(queue);
        let goes_on = || is_active && holder.is_active();
        if let Some((pause, memory)) = again {
            let retries = &holder.device().retries;
            let add = |memory| retries.add(&holder, memory, tried, pause);
            if goes_on() && memory.and_then(add).is_ok() {
                break;
            }
            // Without memory for that, and where it is not done any more.
            fsleep(Delta::from_millis(PAUSE_MS[0]));
        }
        if goes_on() {
            // Who waits for the workers does not wait for all that clients bring meanwhile.
            T::look_again(holder.clone());
            break;
        }
    }
    T::bury(holder);
    dev.hold_workers.has_run();
}

/// Takes out the first that is held, if it is to be released (`true`) or cancelled.
fn next<T: Holder>(holder: &T) -> Option<(Item<T>, bool)> {
    let mut queue = holder.holds().queue.lock();
    if queue.first.is_none() {
        let first = queue.rest.cursor_front_mut()?.remove_current().1;
        queue.first = Some(first.to_key_value().1);
    }
    let is_active = holder.is_active();
    if is_active && holder.device().retries.has(holder) {
        return None;
    }
    if let (Item::Request(first), true) = (queue.first.as_mut()?, is_active) {
        first.values.iter_mut().for_each(Wait::begin);
        if !first.values.iter().all(Wait::has_ended) {
            return None;
        }
    }
    Some((queue.first.take()?, is_active))
}

impl<T: Holder> Item<T> {
    /// How long to wait until it is tried again.
    fn pause(&self) -> Delta {
        let [first, most] = PAUSE_MS;
        Delta::from_millis(match self {
            Self::Request(held) => (held.refused_ms() / 8).clamp(first, most),
            Self::Deferred(_) => first,
        })
    }

    /// Memory for waiting until then. `ENOMEM`.
    fn memory(&self) -> Result<RetryMemory> {
        match self {
            Self::Request(held) => held.group.charge(RetryMemory::new),
            Self::Deferred(_) => RetryMemory::new(),
        }
    }
}

impl<R> Held<R> {
    /// Since when it is tried in vain, in milliseconds.
    fn refused_ms(&self) -> i64 {
        self.refused.map_or(0, |since| since.elapsed().as_millis())
    }

    /// Submits it, or gives it back if there is no room now. If it cannot be, the holder has
    /// failed.
    fn release<T: Holder<Request = R>>(mut self, holder: &Arc<T>) -> Option<Self> {
        let (request, values, since) = (&mut self.request, &self.values, Some(self.since));
        let submit = || T::submit(holder, request, values, since);
        let submitted = self.group.charge(submit);
        let mut error = submitted.err()?;
        let is_active = holder.is_active();
        self.refused.get_or_insert_with(Instant::now);
        // What its client has locked, or offered, is so for as long as that wants; nothing else
        // waits for this but what the client has given the same holder to do.
        let may_wait = match error {
            EBUSY => {
                self.lacks_room = None;
                true
            }
            ENOMEM | ENOSPC => {
                let since = *self.lacks_room.get_or_insert_with(Instant::now);
                since.elapsed() < Delta::from_millis(PATIENCE_MS)
            }
            _ => false,
        };
        if is_active && may_wait {
            return Some(self);
        }
        // If its holder takes no work any more it was cancelled, whatever the error is.
        error = match is_active {
            true => T::fail(holder, error),
            false => ECANCELED,
        };
        self.cancel(&**holder, error);
        None
    }

    /// Signals what it promised, with `error`, or the device's.
    fn cancel<T: Holder<Request = R>>(mut self, holder: &T, error: Error) {
        let error = match holder.device().check_health() {
            Ok(()) => error,
            Err(_) => ENODEV,
        };
        holder.cancelled(&self.request);
        let fence = holder.holds().cancelled.fence(self.memory);
        let signalling = Signalling::begin();
        let signals = T::signals(&mut self.request);
        let mut promises = signals.publish(holder.device(), fence.fence());
        let end = holder.ended(Err(error));
        promises.iter_mut().for_each(|promise| promise.keep(end));
        fence.signal(Err(error));
        drop(signalling);
    }
}
