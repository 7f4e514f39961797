// SPDX-License-Identifier: GPL-2.0

//! Resources of a bound device that come in thousands: DMA mappings, tables in coherent memory.
//!
//! # Model
//!
//! Such a resource ends with its owner, or with the device's driver, whichever goes first: the DMA
//! API wants every mapping undone before the device is unbound
//! (`Documentation/core-api/dma-api.rst`), and owners may outlive that.
//! [`Devres`](kernel::devres::Devres) does this for a handful of resources. Each is a node in the
//! device's list, which is searched when the resource is dropped early, with interrupts off, and
//! each waits for an RCU grace period of its own at unbind, for `try_access()`. A hundred objects
//! thus cost seconds.
//!
//! A [`DevresSet`] is one node for all of them. A [`DevresItem`] takes itself out of its set when
//! it is dropped, in constant time; at unbind the set releases what is left in it, one after the
//! other, with no grace period at all. None is needed, since there is one way to an item's value,
//! [`DevresItem::access`], and it asks for a proof that the device is bound: whoever has one keeps
//! the device from being unbound. Access takes no lock and allocates nothing.
//!
//! ```text
//! owner drops its item ─▶ out of the list ─▶ release ─▶ counted out ──┐
//!                                                                     ▼
//! driver is unbound ─▶ closed ─▶ out of the list ─▶ release … ─▶ wait for owners that are at it
//! ```
//!
//! # Locks
//!
//! The set's list is under a spin lock. Nothing is released under it: a value's drop may sleep.
//!
//! Upstream's counterpart: `rust/kernel/devres.rs`.

use core::{
    mem::ManuallyDrop,
    ops::Deref,
    ptr, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    devres,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        List,
        ListArc,
        ListLinksSelfPtr, //
    },
    new_condvar,
    new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        CondVar,
        SetOnce,
        SpinLock, //
    },
    types::Opaque, //
};
use pin_init::Wrapper;

/// A value that is dropped before its memory is freed.
#[pin_data]
struct Slot<T> {
    /// Initialised until it is released, once.
    #[pin]
    value: Opaque<T>,
}

// SAFETY: The value is owned; it is dropped on any thread.
unsafe impl<T: Send> Send for Slot<T> {}
// SAFETY: A shared reference gives a shared reference to the value, or, by `release()`, drops it.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// What a set can do with an item, whatever its type.
trait Resource: Send + Sync {
    /// Drops the value; its memory is freed with the last reference to the item.
    ///
    /// # Safety
    ///
    /// To be called once, with no reference to the value left.
    unsafe fn release(&self);
}

impl<T: Send + Sync> Resource for Slot<T> {
    unsafe fn release(&self) {
        // SAFETY: The value was initialised with `self`, and by the safety requirements it was not
        // dropped before and nobody uses it.
        unsafe { ptr::drop_in_place(self.value.get()) }
    }
}

/// An item as its set knows it.
///
/// # Invariants
///
/// A node is put into the list of one set, once, when it is made. Who takes it out of there
/// releases it.
#[pin_data]
struct Node<R: ?Sized> {
    /// In the `items` of its set, under the set's lock, until it is taken out to be released.
    #[pin]
    links: ListLinksSelfPtr<Node<dyn Resource>>,
    /// What is released, at the latest with the set.
    #[pin]
    resource: R,
}

impl_list_arc_safe! {
    impl{R: ?Sized} ListArcSafe<0> for Node<R> { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Node<dyn Resource> { using ListLinksSelfPtr { self.links }; }
}

/// What is under a set's lock.
struct State {
    /// The items that nobody has begun to release.
    items: List<Node<dyn Resource>>,
    /// How many items were taken out by their owners and are being released.
    releasing: usize,
    /// Whether what is left at unbind stays in `items`, and is never released.
    keeps: bool,
}

/// What a set, its items and the device have in common.
#[pin_data]
struct Inner {
    /// The bound device whose resources these are.
    dev: ARef<Device>,
    /// The device's driver is being unbound, or was: there is no value any more.
    closed: Atomic<bool>,
    /// The resources, and how many owners are releasing one.
    #[pin]
    state: SpinLock<State>,
    /// Signalled when no owner is releasing and the set is closed.
    #[pin]
    idle: CondVar,
}

/// The resources of one kind of owner, as far as they end with the device's driver.
///
/// # Examples
///
/// ```ignore
/// let set = DevresSet::new(dev)?;
/// let item = set.insert(dev, Coherent::<u64>::zeroed_slice(dev, 512, GFP_KERNEL))?;
/// let address = item.access(dev)?.dma_address();
/// ```
pub(crate) struct DevresSet(Arc<Inner>);

/// Empties a set when the device is unbound.
struct Closer(Arc<Inner>);

impl DevresSet {
    /// An empty set, for the time until `dev` is unbound. `ENOMEM`.
    pub(crate) fn new(dev: &Device<Bound>) -> Result<Self> {
        let device: &Device = dev;
        let inner = Arc::pin_init(
            try_pin_init!(Inner {
                dev: device.into(),
                closed: Atomic::new(false),
                state <- new_spinlock!(State {
                    items: List::new(),
                    releasing: 0,
                    keeps: false,
                }),
                idle <- new_condvar!(),
            }),
            GFP_KERNEL,
        )?;
        let closer = Ok::<Closer, Error>(Closer(inner.clone()));
        devres::register::<Closer, Error>(dev, closer, GFP_KERNEL)?;
        Ok(Self(inner))
    }

    /// Has what is left when the device is unbound never be released: the device may still reach
    /// it. The set has it then.
    pub(crate) fn keep(&self) {
        self.0.state.lock().keeps = true;
    }

    /// Makes a value that is dropped with the result, or before `dev` is unbound.
    ///
    /// `EINVAL` unless `dev` is the device of the set; `ENOMEM`; what `value` returns.
    pub(crate) fn insert<T, E>(
        &self,
        dev: &Device<Bound>,
        value: impl PinInit<T, E>,
    ) -> Result<DevresItem<T>>
    where
        T: Send + Sync + 'static,
        Error: From<E>,
    {
        self.0.check(dev)?;
        let node = ListArc::pin_init(
            try_pin_init!(Node {
                links <- ListLinksSelfPtr::new(),
                resource <- try_pin_init!(Slot {
                    value <- Opaque::pin_init(value),
                }? Error),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        let item = DevresItem {
            set: self.0.clone(),
            node: node.clone_arc(),
        };
        // INVARIANT: The node is new.
        self.0
            .state
            .lock()
            .items
            .push_back(node as ListArc<Node<dyn Resource>>);
        Ok(item)
    }
}

impl Inner {
    /// `EINVAL` unless this is a set of `dev` as it is bound now.
    fn check(&self, dev: &Device<Bound>) -> Result {
        let dev: &Device = dev;
        // The device may have been unbound and bound again since the set was made.
        if !ptr::eq(&*self.dev, dev) || self.closed.load(Acquire) {
            return Err(EINVAL);
        }
        Ok(())
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.closed.store(true, Release);
        // The last first, as devres does.
        while let Some(node) = self.take() {
            // SAFETY: The node was taken out of the list here. This is devres' release of a device
            // whose driver is being unbound: no `Device<Bound>` of it is left, and therefore no
            // result of `access()`.
            unsafe { node.resource.release() };
        }
        let mut state = self.0.state.lock();
        while state.releasing > 0 {
            self.0.idle.wait(&mut state);
        }
    }
}

impl Closer {
    /// The last item that is to be released.
    fn take(&self) -> Option<ListArc<Node<dyn Resource>>> {
        let mut state = self.0.state.lock();
        match state.keeps {
            true => None,
            false => state.items.pop_back(),
        }
    }
}

/// A value that is dropped with `self`, or before its device is unbound.
///
/// Its drop may come when the device has been unbound, and does nothing then. It sleeps if that of
/// `T` does.
pub(crate) struct DevresItem<T: Send + Sync + 'static> {
    /// The set from which it takes itself when it is dropped.
    set: Arc<Inner>,
    /// The resource, in the list of that set until one of both releases it.
    node: Arc<Node<Slot<T>>>,
}

impl<T: Send + Sync + 'static> DevresItem<T> {
    /// The value, as long as `dev` is proof that the device is bound.
    ///
    /// `EINVAL` unless `dev` is the device that it was made for, and not bound anew since.
    pub(crate) fn access<'a>(&'a self, dev: &'a Device<Bound>) -> Result<&'a T> {
        self.set.check(dev)?;
        // SAFETY: The value is dropped with `self`, or when the device is unbound. `self` is
        // borrowed for `'a`; the device is bound for `'a`, by the type of `dev`, and was not
        // unbound since the set was made, for it is not closed.
        Ok(unsafe { &*self.node.resource.value.get() })
    }

    /// Whether the value is gone, since the device was unbound. A hint: see [`Self::access`].
    pub(crate) fn is_released(&self) -> bool {
        self.set.closed.load(Acquire)
    }
}

impl<T: Send + Sync + 'static> Drop for DevresItem<T> {
    fn drop(&mut self) {
        let node: &Node<dyn Resource> = &*self.node;
        let taken = {
            let mut state = self.set.state.lock();
            if state.keeps && self.set.closed.load(Acquire) {
                return;
            }
            // SAFETY: By the type invariant the node is in this list or in none.
            let taken = unsafe { state.items.remove(node) };
            if taken.is_some() {
                state.releasing += 1;
            }
            taken
        };
        let Some(node) = taken else {
            // The set has released it, or is about to. The node stays until it has.
            return;
        };
        // SAFETY: The node was taken out of the list here, and this is the only way to its value.
        unsafe { node.resource.release() };
        let mut state = self.set.state.lock();
        state.releasing -= 1;
        if state.releasing == 0 && self.set.closed.load(Acquire) {
            self.set.idle.notify_all();
        }
    }
}

/// Where a [`Lasting`] value goes that is kept.
pub(crate) struct Refuge<T> {
    /// Whether the value comes here instead of being dropped.
    keeps: Atomic<bool>,
    /// The value, when it has.
    value: SetOnce<T>,
}

impl<T> Refuge<T> {
    /// An empty one, for a value that is not to be kept as yet. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let empty = Self {
            keeps: Atomic::new(false),
            value: SetOnce::new(),
        };
        Ok(Arc::new(empty, GFP_KERNEL)?)
    }

    /// Has the value not be dropped before this is: the device may still reach it.
    pub(crate) fn keep(&self) {
        self.keeps.store(true, Release);
    }
}

/// A value that is dropped with `self`, unless its [`Refuge`] keeps it.
pub(crate) struct Lasting<T> {
    /// There until this is dropped.
    value: ManuallyDrop<T>,
    /// Where it goes then, if it is to be kept.
    refuge: Arc<Refuge<T>>,
}

impl<T> Lasting<T> {
    /// `value`, which `refuge` has when it is kept.
    pub(crate) fn new(value: T, refuge: &Arc<Refuge<T>>) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            refuge: refuge.clone(),
        }
    }
}

impl<T> Deref for Lasting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Lasting<T> {
    fn drop(&mut self) {
        // SAFETY: Taken here alone, once, and not used after that.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        if self.refuge.keeps.load(Acquire) {
            // There is no other.
            crate::warn_on_once!(!self.refuge.value.populate(value));
        }
    }
}

#[kunit_tests(skua_devres)]
mod tests {
    use super::{
        super::queue::{
            Nice,
            Order,
            OwnedQueue, //
        },
        *, //
    };
    use kernel::{
        faux,
        impl_has_work,
        new_mutex,
        new_work,
        sync::{
            atomic::Relaxed,
            Completion,
            Mutex, //
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

    fn device(name: &CStr) -> Result<faux::Registration> {
        faux::Registration::new(name, None)
    }

    fn bound(parent: &faux::Registration) -> &Device<Bound> {
        parent.as_ref().as_ref()
    }

    /// Counts its drops.
    struct Counted(Arc<Atomic<u32>>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn counted(drops: &Arc<Atomic<u32>>) -> Counted {
        Counted(drops.clone())
    }

    fn insert<T: Send + Sync + 'static>(
        set: &DevresSet,
        dev: &Device<Bound>,
        value: T,
    ) -> Result<DevresItem<T>> {
        set.insert::<T, Error>(dev, Ok::<T, Error>(value))
    }

    #[test]
    fn an_item_ends_with_its_owner() -> Result {
        let parent = device(c"skua-devres")?;
        let dev = bound(&parent);
        let set = DevresSet::new(dev)?;
        let drops = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let first = insert(&set, dev, counted(&drops))?;
        let middle = insert(&set, dev, counted(&drops))?;
        let last = insert(&set, dev, counted(&drops))?;
        drop(middle);
        assert_eq!(drops.load(Relaxed), 1);
        assert_eq!(first.access(dev)?.0.load(Relaxed), 1);
        drop(first);
        assert_eq!(drops.load(Relaxed), 2);
        assert!(!last.is_released());
        // The items keep the set.
        drop(set);
        drop(last);
        assert_eq!(drops.load(Relaxed), 3);
        Ok(())
    }

    #[test]
    fn unbind_releases_what_is_left_and_once() -> Result {
        let parent = device(c"skua-devres")?;
        let set = DevresSet::new(bound(&parent))?;
        let drops = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let mut items = KVec::new();
        for _ in 0..100 {
            items.push(insert(&set, bound(&parent), counted(&drops))?, GFP_KERNEL)?;
        }
        items.truncate(90);
        assert_eq!(drops.load(Relaxed), 10);
        drop(parent);
        assert_eq!(drops.load(Relaxed), 100);
        assert!(items.iter().all(DevresItem::is_released));
        drop(items);
        assert_eq!(drops.load(Relaxed), 100);
        Ok(())
    }

    #[test]
    fn what_is_kept_is_not_released() -> Result {
        /// Counts its drops, and has no memory that would be lost without one.
        struct Plain;
        static DROPS: Atomic<u32> = Atomic::new(0);
        impl Drop for Plain {
            fn drop(&mut self) {
                DROPS.fetch_add(1, Relaxed);
            }
        }

        let parent = device(c"skua-devres")?;
        let set = DevresSet::new(bound(&parent))?;
        let before = DROPS.load(Relaxed);
        let drops = || DROPS.load(Relaxed) - before;
        let early = insert(&set, bound(&parent), Plain)?;
        let late = insert(&set, bound(&parent), Plain)?;
        set.keep();
        // By its owner.
        drop(early);
        assert_eq!(drops(), 1);
        drop(parent);
        assert!(late.is_released());
        drop(late);
        assert_eq!(drops(), 1);
        let refuge = Refuge::new()?;
        drop(Lasting::new(Plain, &refuge));
        assert_eq!(drops(), 2);
        refuge.keep();
        drop(Lasting::new(Plain, &refuge));
        assert_eq!(drops(), 2);
        drop(refuge);
        assert_eq!(drops(), 3);
        Ok(())
    }

    #[test]
    fn a_value_that_cannot_be_made_leaves_nothing() -> Result {
        let parent = device(c"skua-devres")?;
        let set = DevresSet::new(bound(&parent))?;
        let refused = set.insert::<Counted, Error>(bound(&parent), Err(ENOSPC));
        assert!(refused.err() == Some(ENOSPC));
        assert!(set.0.state.lock().items.is_empty());
        Ok(())
    }

    #[test]
    fn only_the_device_as_it_was_bound_gives_access() -> Result {
        let parent = device(c"skua-devres-a")?;
        let other = device(c"skua-devres-b")?;
        let set = DevresSet::new(bound(&parent))?;
        let drops = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        assert!(insert(&set, bound(&other), 7).err() == Some(EINVAL));
        let item = insert(&set, bound(&parent), counted(&drops))?;
        assert!(item.access(bound(&parent)).is_ok());
        assert!(item.access(bound(&other)).err() == Some(EINVAL));

        // Unbound, and then as if bound once more.
        let dev: &Device = bound(&parent);
        let dev: ARef<Device> = dev.into();
        drop(parent);
        assert_eq!(drops.load(Relaxed), 1);
        // SAFETY: The device exists. That it is not bound is what the callees are to find out: they
        // compare its address.
        let again = unsafe { &*ptr::from_ref(&*dev).cast::<Device<Bound>>() };
        assert!(item.access(again).err() == Some(EINVAL));
        assert!(insert(&set, again, 7).err() == Some(EINVAL));
        assert_eq!(drops.load(Relaxed), 1);
        Ok(())
    }

    /// A value whose drop takes its time.
    #[pin_data]
    struct Slow {
        #[pin]
        begun: Completion,
        ended: Atomic<bool>,
    }

    struct SlowDrop(Arc<Slow>);

    impl Drop for SlowDrop {
        fn drop(&mut self) {
            self.0.begun.complete_all();
            fsleep(Delta::from_millis(50));
            self.0.ended.store(true, Release);
        }
    }

    #[pin_data]
    struct Owner {
        #[pin]
        item: Mutex<Option<DevresItem<SlowDrop>>>,
        #[pin]
        work: Work<Owner>,
    }

    impl_has_work! { impl HasWork<Self> for Owner { self.work } }

    impl WorkItem for Owner {
        type Pointer = Arc<Owner>;

        fn run(this: Arc<Owner>) {
            let item = this.item.lock().take();
            drop(item);
        }
    }

    #[test]
    fn unbind_waits_for_an_owner_that_is_releasing() -> Result {
        let parent = device(c"skua-devres")?;
        let set = DevresSet::new(bound(&parent))?;
        let slow = Arc::pin_init(
            pin_init!(Slow {
                begun <- Completion::new(),
                ended: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;
        let item = insert(&set, bound(&parent), SlowDrop(slow.clone()))?;
        let owner = Arc::pin_init(
            pin_init!(Owner {
                item <- new_mutex!(Some(item)),
                work <- new_work!("skua-kunit"),
            }),
            GFP_KERNEL,
        )?;
        let queue = OwnedQueue::new(c"skua-kunit", Order::Unordered, Nice::Normal)?;
        assert!(queue.enqueue::<Arc<Owner>, 0>(owner).is_ok());
        // Where the host is busy it may be over soon after, and nothing is waited for.
        slow.begun.wait_for_completion();
        drop(parent);
        assert!(slow.ended.load(Acquire));
        Ok(())
    }
}
