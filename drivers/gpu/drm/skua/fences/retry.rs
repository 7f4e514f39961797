// SPDX-License-Identifier: GPL-2.0

//! Holders whose first held item was refused, until the next attempt: after a while, or soon when
//! what it was refused for may have changed.
//!
//! They wait here and not in a worker: there are as many as clients like, and those of one client
//! shall not keep the workers from others'. Whatever else a client does, the next attempt is not
//! sooner ([`hold`](super::hold) asks).
//!
//! Lock: `state`, a spin lock, for who waits and the alarm.

use crate::{
    ext::queue::{
        Alarm,
        AlarmHandler,
        Nice,
        Order,
        OwnedQueue, //
    },
    fences::{
        hold::Holder,
        monitored::{
            Over,
            Target, //
        }, //
    },
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    quota::{
        Quota,
        QuotaId, //
    }, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        aref::ARef,
        Arc,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

/// Between two attempts, in milliseconds: at least, and at most where there were many in vain.
pub(crate) const PAUSE_MS: [i64; 2] = [10, 1000];

/// A client, by the quota of its address spaces, and a holder, by its address.
type Key = (Option<QuotaId>, usize);

fn key_of<T: Holder>(holder: &T) -> Key {
    let client = holder.client().map(Quota::id);
    (client, core::ptr::from_ref(holder).addr())
}

/// A holder whose first item was refused.
struct Waiting {
    /// Woken when the attempt is due, by [`Target::wake`].
    holder: Arc<dyn Target>,
    /// When the next attempt is due.
    due: Instant<Monotonic>,
    /// When it is if something has changed.
    soon: Instant<Monotonic>,
}

/// Memory for one [`Waiting`], taken where there may be none.
pub(crate) struct RetryMemory(RBTreeNodeReservation<Key, Waiting>);

impl RetryMemory {
    /// Allocated where that may still fail. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(client_flags())?))
    }
}

/// What is under the lock.
struct State {
    /// By client, so that who changes something hurries its own alone.
    waiting: RBTree<Key, Waiting>,
    /// Which client has changed something last, and when.
    changed: Option<(QuotaId, Instant<Monotonic>)>,
    /// When some other client had, last before that.
    others: Option<Instant<Monotonic>>,
    /// When the alarm is set for, if it is.
    next: Option<Instant<Monotonic>>,
    /// Wakes those that are due; from [`Retries::start`] to [`Retries::stop`].
    alarm: Option<Alarm<Look>>,
}

impl State {
    /// Has the alarm look at `due` at the latest.
    fn look_at(&mut self, due: Instant<Monotonic>) {
        if self.next.is_some_and(|next| next - due <= Delta::ZERO) {
            return;
        }
        self.next = Some(due);
        let left = due - Instant::now();
        let ms = u32::try_from(left.as_millis().saturating_add(1)).unwrap_or(0);
        self.alarm
            .iter()
            .for_each(|alarm| alarm.set(msecs_to_jiffies(ms)));
    }
}

/// Who waits for another attempt; a device has one.
#[pin_data]
pub(crate) struct Retries {
    /// Who waits, and the alarm that wakes them.
    #[pin]
    state: SpinLock<State>,
}

impl Retries {
    /// Of a device that was not started.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_spinlock!(State {
                waiting: RBTree::new(),
                changed: None,
                others: None,
                next: None,
                alarm: None,
            }),
        })
    }

    /// Has holders be woken from now on, by an alarm in a queue of its own. `ENOMEM`.
    pub(crate) fn start(dev: &SkuaDevice) -> Result {
        let queue = OwnedQueue::new(c"skua-retries", Order::Ordered, Nice::Normal)?;
        let alarm = Alarm::new(Arc::new(queue, GFP_KERNEL)?, Look { dev: dev.into() })?;
        dev.retries.state.lock().alarm = Some(alarm);
        Ok(())
    }

    /// Wakes all, and nobody waits any more. Process context, not from what is on the way to a
    /// fence's signal.
    pub(crate) fn stop(&self) {
        let alarm = self.state.lock().alarm.take();
        drop(alarm);
        self.wake_due(true);
    }

    /// Has `holder` woken in `pause`: it was refused in an attempt that began at `tried`. `ENODEV`
    /// if the device is not started, or not any more.
    pub(crate) fn add<T: Holder>(
        &self,
        holder: &Arc<T>,
        memory: RetryMemory,
        tried: Instant<Monotonic>,
        pause: Delta,
    ) -> Result {
        let key = key_of(&**holder);
        let soon = Instant::now() + Delta::from_millis(PAUSE_MS[0]);
        let mut waiting = Waiting {
            holder: holder.clone(),
            due: Instant::now() + pause,
            soon,
        };
        let mut state = self.state.lock();
        if state.alarm.is_none() {
            drop(state);
            return Err(ENODEV);
        }
        // What has changed during the attempt that may not have seen; of which client is known of
        // the last.
        let is_new = |at: Instant<Monotonic>| at - tried >= Delta::ZERO;
        let is_its = state
            .changed
            .is_some_and(|(client, at)| Some(client) == key.0 && is_new(at));
        if is_its || state.others.is_some_and(is_new) {
            waiting.due = soon;
        }
        let due = waiting.due;
        let old = state.waiting.insert(memory.0.into_node(key, waiting));
        state.look_at(due);
        drop(state);
        // There is none: a holder is added by its own work alone.
        drop(old);
        Ok(())
    }

    /// Whether `holder` waits for its next attempt.
    pub(crate) fn has<T: Holder>(&self, holder: &T) -> bool {
        self.state.lock().waiting.get(&key_of(holder)).is_some()
    }

    /// The client with this quota of address spaces has changed something for which what it has
    /// held may have been refused. Process context.
    pub(crate) fn hurry(&self, client: &Arc<Quota>) {
        let client = client.id();
        {
            let mut state = self.state.lock();
            match state.changed.replace((client, Instant::now())) {
                Some((last, at)) if last != client => state.others = Some(at),
                _ => (),
            }
        }
        let mut from = (Some(client), 0);
        loop {
            // One at a time: others get the lock.
            let mut state = self.state.lock();
            let soon = match state.waiting.cursor_lower_bound_mut(&from) {
                Some(mut cursor) => {
                    let (key, waiting) = cursor.current_mut();
                    if key.0 != Some(client) {
                        return;
                    }
                    from = (key.0, key.1.saturating_add(1));
                    if waiting.due - waiting.soon > Delta::ZERO {
                        waiting.due = waiting.soon;
                    }
                    waiting.due
                }
                None => return,
            };
            state.look_at(soon);
        }
    }

    /// Wakes those that are due, or all.
    fn wake_due(&self, all: bool) {
        let now = Instant::now();
        // Who comes meanwhile sets the alarm.
        self.state.lock().next = None;
        let (mut from, mut next) = ((None, 0), None);
        loop {
            // One at a time: others get the lock.
            let due = {
                let mut state = self.state.lock();
                let Some(cursor) = state.waiting.cursor_lower_bound(&from) else {
                    next.into_iter().for_each(|next| state.look_at(next));
                    return;
                };
                let (key, waiting) = cursor.current();
                let (key, due) = (*key, waiting.due);
                from = (key.0, key.1.saturating_add(1));
                if !all && due - now > Delta::ZERO {
                    next = match next {
                        Some(next) if next - due <= Delta::ZERO => Some(next),
                        _ => Some(due),
                    };
                    continue;
                }
                state.waiting.remove_node(&key)
            };
            if let Some((_, waiting)) = due.map(RBTreeNode::to_key_value) {
                waiting.holder.wake(0, Over::Ended);
            }
        }
    }
}

/// Wakes those that are due.
struct Look {
    /// The device whose holders wait.
    dev: ARef<SkuaDevice>,
}

impl AlarmHandler for Look {
    fn run(&self) -> Option<Jiffies> {
        self.dev.retries.wake_due(false);
        None
    }
}
