// SPDX-License-Identifier: GPL-2.0

//! Residency of what the CPU has locked outside of VRAM (row 0.21).
//!
//! An object for VRAM alone, or one that is its client's own and has no room in the aperture, that
//! was [locked](super::lock) while it was out does not come to VRAM before it is unlocked. When
//! that is the client knows alone, so no `dma_fence` may wait for it: values of monitored fences
//! may. MAKE_RESIDENT promises them at once, and what they wait for is *pending*:
//!
//! ```text
//! MAKE_RESIDENT ─▶ pending ─┬─ nothing of it is locked out any more ──▶ worker ─▶ moves ─▶ values
//!                           └─ its device has failed or is destroyed ─▶ worker ─▶ fences are lost
//! ```
//!
//! The worker does what the ioctl does, making room included, so it is in
//! [the queue](crate::fences::hold::QUEUE) that no fence waits for. What it allocates is charged to
//! the group of who made the call; VRAM to no group but the root, as for what is held. What was
//! evicted meanwhile, or has no handle any more, does not move. A lock ends at the latest when the
//! client's file is closed. Who has locked it and would sleep until then is told so
//! ([`PendingResidency::waits_for`]).
//!
//! Lock: `operations`, a spin lock, for what is pending, of all clients.

use crate::{
    ext::{
        device,
        fence::Fence,
        gem,
        memcg::MemoryGroup, //
    },
    fences::{
        hold::Workers,
        monitored::MonitoredFence,
        pledge::Publisher, //
    },
    gpu::{
        self,
        SkuaDevice, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            Bo,
            BoData,
            BoRef, //
        },
        claims::Claims,
        device::ClientDevice,
        residency, //
    },
    quota::{
        Quota,
        Share, //
    }, //
};
use core::mem::MaybeUninit;
use kernel::{
    impl_has_work,
    new_spinlock,
    new_work,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        aref::ARef,
        Arc,
        SpinLock,
        UniqueArc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// Of one client, at most: who unlocks something looks at all that it has itself.
pub(crate) const CLIENT_PENDING: u64 = 64;

/// Of all clients of a GPU, at most, each of a thousand objects: who is to wake any of them looks
/// at all, and those of one user leave others workers of the queue.
pub(crate) const MAX_PENDING: u64 = 1024;

/// Between two attempts where there is no memory to wait once more, in milliseconds.
const PAUSE_MS: i64 = 10;

/// A client, by the address of its locks, and one of its operations, by its own. What one has
/// [locked out](is_locked_out) no other has.
type Key = (usize, usize);

fn key_of(locks: &Claims) -> usize {
    core::ptr::from_ref(locks).addr()
}

/// A MAKE_RESIDENT that is not over.
#[pin_data]
pub(crate) struct Operation {
    /// Where the objects are to be resident.
    dev: ARef<SkuaDevice>,
    /// The client's device for which the objects are to be resident.
    device: Arc<ClientDevice>,
    /// Its client, as in [`Key`]: the address of what that has locked.
    client: usize,
    /// All that were named.
    objects: KVVec<(u32, BoRef)>,
    /// What it allocates later is charged to that.
    group: MemoryGroup,
    /// Its part of its client's [`CLIENT_PENDING`], until it is over: 1.
    _share: Share,
    /// Tells that they are, unless that is over.
    #[pin]
    publisher: SpinLock<Option<Publisher>>,
    /// Moves the objects.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Operation { self.work }
}

/// Whether `bo` is not where the GPU is to reach it, and does not come to VRAM before its client
/// unlocks it: what others may have, and so have locked, is none that somebody waits for.
pub(crate) fn is_locked_out(bo: &Bo) -> bool {
    let is_own = bo.is_for_vram_alone() || !gem::is_foreign(bo);
    is_own && BoData::is_held_out(bo) && bo.is_out()
}

/// What one [`Operation`] needs to wait, taken where there may be none: its memory, and its part of
/// what its client may have.
pub(crate) struct PendingMemory {
    /// Memory for the operation itself.
    operation: UniqueArc<MaybeUninit<Operation>>,
    /// Memory for its entry in [`PendingResidency::operations`].
    node: RBTreeNodeReservation<Key, Arc<Operation>>,
    /// Its client, as in [`Key`]: the address of what that has locked.
    client: usize,
    /// Of its client's [`CLIENT_PENDING`]: 1.
    share: Share,
}

impl PendingMemory {
    /// For the client with `locks`. `ENOSPC` if it has no more of its `quota`; `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, locks: &Claims, quota: &Arc<Quota>) -> Result<Self> {
        Ok(Self {
            client: key_of(locks),
            share: quota.take(dev, 1).ok_or(ENOSPC)?,
            operation: UniqueArc::new_uninit(client_flags())?,
            node: RBTreeNodeReservation::new(client_flags())?,
        })
    }

    /// Has what `publisher` is to tell of wait: that all of `objects` are where `device` wants
    /// them.
    pub(crate) fn wait(
        self,
        dev: &SkuaDevice,
        device: &Arc<ClientDevice>,
        objects: KVVec<(u32, BoRef)>,
        mut publisher: Publisher,
    ) {
        publisher.promise();
        let operation = self.operation.pin_init_with(pin_init!(Operation {
            dev: dev.into(),
            device: device.clone(),
            client: self.client,
            objects,
            group: MemoryGroup::of_current(),
            _share: self.share,
            publisher <- new_spinlock!(Some(publisher)),
            work <- new_work!("Operation::work"),
        }));
        let Ok(operation) = operation;
        dev.pending_residency.insert(self.node, operation.into());
        // It may have been unlocked, or its device have failed, before this was here.
        dev.pending_residency.look_at(Some(self.client), |_| true);
    }
}

/// What waits of all clients; one list per GPU.
#[pin_data]
pub(crate) struct PendingResidency {
    /// By client, so that who unlocks something looks at its own alone.
    #[pin]
    operations: SpinLock<RBTree<Key, Arc<Operation>>>,
}

impl PendingResidency {
    /// Nothing waits yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            operations <- new_spinlock!(RBTree::new()),
        })
    }

    fn insert(&self, node: RBTreeNodeReservation<Key, Arc<Operation>>, operation: Arc<Operation>) {
        let key = (operation.client, core::ptr::from_ref(&*operation).addr());
        drop(
            self.operations
                .lock()
                .insert(node.into_node(key, operation)),
        );
    }

    /// The client with `locks` has something not locked any more, or has ended a device: has what
    /// is due go on. In any context; allocates nothing.
    pub(crate) fn look_again(&self, locks: &Claims) {
        self.look_at(Some(key_of(locks)), |_| true);
    }

    /// `device` has failed: has what waits for it end. As [`Self::look_again`].
    pub(crate) fn end(&self, device: &Arc<ClientDevice>) {
        self.look_at(None, |operation| Arc::ptr_eq(&operation.device, device));
    }

    /// The GPU has failed, or something locked has come to where the GPU reaches it: as
    /// [`Self::look_again`], of all clients.
    pub(crate) fn look_at_all(&self) {
        self.look_at(None, |_| true);
    }

    fn look_at(&self, client: Option<usize>, is_meant: impl Fn(&Operation) -> bool) {
        let mut from = (client.unwrap_or(0), 0);
        loop {
            // One at a time: others get the lock, and dropped is what was in the tree without it.
            let due = {
                let mut operations = self.operations.lock();
                let next = operations.cursor_lower_bound(&from);
                let Some((key, it)) = next.as_ref().map(|next| next.current()) else {
                    return;
                };
                if client.is_some_and(|client| key.0 != client) {
                    return;
                }
                let (key, is_due) = (*key, is_meant(it) && it.is_due());
                from = (key.0, key.1.saturating_add(1));
                match is_due {
                    true => operations.remove_node(&key),
                    false => None,
                }
            };
            if let Some((_, operation)) = due.map(RBTreeNode::to_key_value) {
                // It is in the list or in the queue.
                let dev = operation.dev.clone();
                let _ = Workers::enqueue::<_, 0>(&dev, operation);
            }
        }
    }

    /// Whether `value` of `fence` waits for the client with `locks` to unlock something.
    pub(crate) fn waits_for(&self, fence: &MonitoredFence, value: u64, locks: &Claims) -> bool {
        let client = key_of(locks);
        let mut from = (client, 0);
        loop {
            let operations = self.operations.lock();
            let next = operations.cursor_lower_bound(&from);
            let Some((key, it)) = next.as_ref().map(|next| next.current()) else {
                return false;
            };
            if key.0 != client {
                return false;
            }
            let mut objects = it.objects.iter();
            let mut is_locked = || objects.any(|(_, bo)| is_locked_out(bo) && locks.has(bo));
            if it.signals(fence, value) && is_locked() {
                return true;
            }
            from = (key.0, key.1.saturating_add(1));
        }
    }
}

impl Operation {
    /// Whether it is to go on, or to end.
    fn is_due(&self) -> bool {
        self.has_failed() || !self.is_locked_out()
    }

    fn has_failed(&self) -> bool {
        self.device.failure() != 0 || self.dev.check_health().is_err()
    }

    fn is_locked_out(&self) -> bool {
        self.objects.iter().any(|(_, bo)| is_locked_out(bo))
    }

    /// Whether `value` of `fence` is reached only with what it signals.
    fn signals(&self, fence: &MonitoredFence, value: u64) -> bool {
        match &*self.publisher.lock() {
            Some(publisher) => publisher.delays(fence, value),
            None => false,
        }
    }

    /// Has the objects move; a fence for that.
    fn go_on(&self) -> Result<Fence> {
        self.device.check()?;
        let bound = device::enter(&*self.dev).ok_or(ENODEV)?;
        let (dev, parent) = (&self.dev, gpu::parent(&bound));
        residency::move_in(&self.device, dev, parent, &self.objects)
    }

    /// Has the objects move, and tells of it, or waits again. In a worker.
    fn go_on_or_wait(this: Arc<Self>) {
        let moves = this.group.charge(|| this.go_on());
        if this.is_locked_out() && !this.has_failed() {
            // Locked again meanwhile.
            match RBTreeNodeReservation::new(client_flags()) {
                Ok(node) => {
                    let dev = this.dev.clone();
                    let client = this.client;
                    dev.pending_residency.insert(node, this);
                    dev.pending_residency.look_at(Some(client), |_| true);
                }
                Err(_) => {
                    fsleep(Delta::from_millis(PAUSE_MS));
                    let dev = this.dev.clone();
                    let _ = Workers::enqueue::<_, 0>(&dev, this);
                }
            }
            return;
        }
        residency::confirm(&this.device, &this.dev, &this.objects);
        let publisher = this.publisher.lock().take();
        match (publisher, moves) {
            (Some(publisher), Ok(moves)) => publisher.publish(&this.dev, &moves),
            (Some(publisher), Err(_)) => publisher.fail(),
            (None, _) => (),
        }
    }
}

impl WorkItem for Operation {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let dev = this.dev.clone();
        Self::go_on_or_wait(this);
        dev.hold_workers.has_run();
    }
}
