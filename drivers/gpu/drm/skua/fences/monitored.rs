// SPDX-License-Identifier: GPL-2.0

//! Monitored fences (WDDM): 64-bit values that grow, to wait for before anybody has promised them.
//!
//! ```text
//! CPU ───────── promise, keep ─┐              ┌─▶ page that clients map, for CPU and GPU
//! submission ── promise        ├─▶ value ─────┼─▶ threads, eventfds
//!     over ──── keep ──────────┘              └─▶ held submissions
//! ```
//!
//! Who is to signal a value *promises* it, which gives it its place in the order of the fence, by
//! the rules of [`promises`]. So what has no part in a fence delays none of its values.
//!
//! All memory is allocated before: by [`Promise::new`] and [`Wait::new`]. What follows takes the
//! fence's spin lock alone, and who waits is woken under it, some at a time.
//!
//! A fence does not know whom it belongs to. [`Owners`] knows which devices have handles of it, and
//! has it [lost](LOST) with them; and who [waits](Waits) by their handles, which is over with them,
//! too.

use crate::{
    ext::value_page::{
        Exported,
        FileOperations,
        ValuePage, //
    },
    few::Few,
    kernel_heap::client_flags,
    policy::promises::{
        self,
        Promises, //
    },
    quota::count_out, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        Cursor,
        RBTree,
        RBTreeNode, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SpinLock, //
    }, //
};

/// The value of a fence of a device that has failed: nothing can be signalled after it.
pub(crate) const LOST: u64 = u64::MAX;

/// With so many waits of a fence no eventfd is added. Threads and held work wait in any case: they
/// are bounded by themselves.
const MAX_WAITS: u32 = 8192;

/// Waits that are looked at before others have the fence's lock.
const AT_ONCE: usize = 64;

/// Numbers of fences, waits and owners, so that each has one of its own.
static SERIAL: Atomic<u64> = Atomic::new(0);

fn serial() -> u64 {
    SERIAL.fetch_add(1, Relaxed)
}

/// Who waits for a value.
pub(crate) trait Target: Send + Sync {
    /// Wait number `index` of its waits is over, or all are, with a device; or it is to look again
    /// at what it does then. Often under the fence's lock: it takes no fence's, allocates nothing,
    /// and frees nothing but its own memory.
    fn wake(self: Arc<Self>, index: u32, over: Over);
}

/// Why a wait is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The value is reached.
    Reached,
    /// A device has ended by whose handle it waits.
    Ended,
    /// Nobody can signal the fence any more.
    Abandoned,
}

/// What a fence knows of a wait.
struct Waiting {
    /// Whom to wake, once.
    target: Arc<dyn Target>,
    /// Handed to the target.
    index: u32,
}

/// The value that is waited for, and a number.
type WaitKey = (u64, u64);

/// The values that are promised and not reached, each with whether it was kept.
struct Promised(RBTree<u64, bool>);

impl Promised {
    /// What a place in the tree has.
    fn at(next: Option<(&u64, &bool)>) -> Option<(u64, bool)> {
        next.map(|(value, is_kept)| (*value, *is_kept))
    }
}

impl Promises for Promised {
    fn first(&self) -> Option<(u64, bool)> {
        Self::at(self.0.cursor_front().as_ref().map(Cursor::current))
    }

    fn last(&self) -> Option<u64> {
        self.0.cursor_back().map(|last| *last.current().0)
    }

    fn before(&self, value: u64) -> Option<(u64, bool)> {
        match self.0.cursor_lower_bound(&value) {
            Some(next) => Self::at(next.peek_prev()),
            None => Self::at(self.0.cursor_back().as_ref().map(Cursor::current)),
        }
    }

    fn after(&self, value: u64) -> Option<(u64, bool)> {
        let next = self.0.cursor_lower_bound(&value.saturating_add(1));
        Self::at(next.as_ref().map(Cursor::current))
    }

    fn keep(&mut self, value: u64) {
        if let Some(is_kept) = self.0.get_mut(&value) {
            *is_kept = true;
        }
    }

    fn remove(&mut self, value: u64) {
        self.0.remove(&value);
    }
}

struct State {
    /// Those that are above the fence's value.
    promised: Promised,
    /// Waits for values that are not reached.
    waits: RBTree<WaitKey, Waiting>,
    /// How many are in `waits`, which does not count them itself.
    len: u32,
}

/// A monitored fence. Who can signal it or hand it on holds it: handles, descriptors, promises.
/// Once there is none of them it changes no more, and waits are over.
pub(crate) struct MonitoredFence(Arc<FenceValue>);

impl core::ops::Deref for MonitoredFence {
    type Target = FenceValue;

    fn deref(&self) -> &FenceValue {
        &self.0
    }
}

impl Drop for MonitoredFence {
    fn drop(&mut self) {
        self.end_waits(Over::Abandoned, |_| true);
    }
}

/// A fence's value, and who waits for it: what waits and [`Owners`] hold.
#[pin_data]
pub(crate) struct FenceValue {
    /// The number that traces have for it: no other fence has it, ever.
    number: u64,
    /// Has the value, which only grows; changed under `state`.
    page: ValuePage,
    /// Whether it becomes [`LOST`] with a device.
    is_lost_with_device: bool,
    /// Which values were promised, and who waits for which.
    #[pin]
    state: SpinLock<State>,
}

static OPERATIONS: FileOperations<MonitoredFence> = FileOperations::new::<crate::LocalModule>();

impl Exported for MonitoredFence {
    const NAME: &'static CStr = c"[skua-fence]";

    fn operations() -> &'static FileOperations<Self> {
        &OPERATIONS
    }

    fn page(&self) -> &ValuePage {
        &self.page
    }
}

impl AsRef<ValuePage> for FenceValue {
    fn as_ref(&self) -> &ValuePage {
        &self.page
    }
}

impl MonitoredFence {
    /// What is there as long as somebody has it, whether or not anybody can signal the fence.
    pub(crate) fn value(&self) -> &Arc<FenceValue> {
        &self.0
    }

    /// A fence with this value. `EINVAL` if that is [`LOST`]; `ENOMEM`.
    pub(crate) fn new(value: u64, is_lost_with_device: bool) -> Result<Arc<Self>> {
        if value == LOST {
            return Err(EINVAL);
        }
        let page = ValuePage::new(value)?;
        let value = Arc::pin_init(
            pin_init!(FenceValue {
                number: serial(),
                page,
                is_lost_with_device,
                state <- new_spinlock!(State {
                    promised: Promised(RBTree::new()),
                    waits: RBTree::new(),
                    len: 0,
                }),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Arc::new(Self(value), GFP_KERNEL_ACCOUNT)?)
    }
}

impl FenceValue {
    /// Whether it has at least `value`.
    pub(crate) fn has(&self, value: u64) -> bool {
        self.page.get() >= value
    }

    /// Whether it has so many waits that no eventfd is to be added.
    pub(crate) fn is_crowded(&self) -> bool {
        self.state.lock().len >= MAX_WAITS
    }

    /// Whether `value` can be promised: it is above the fence's and all promised ones.
    fn accepts(&self, state: &State, value: u64) -> bool {
        promises::accepts(&state.promised, self.page.get(), value)
    }

    /// Makes `value` the fence's, if it is above that. Who has waited for it is to be
    /// [woken](Self::wake_reached).
    fn reach(&self, _: &mut State, value: u64) {
        if !self.has(value) {
            self.page.set(value);
        }
    }

    /// Wakes who has waited for what the fence has.
    fn wake_reached(&self) {
        self.end_waits(Over::Reached, |value| self.has(value));
    }

    /// Ends the waits for values that `are_over`, the smallest first, some at a time.
    fn end_waits(&self, over: Over, are_over: impl Fn(u64) -> bool) {
        loop {
            let mut state = self.state.lock();
            for _ in 0..AT_ONCE {
                let first = state.waits.cursor_front_mut();
                let Some(first) = first.filter(|first| are_over(first.current().0 .0)) else {
                    return;
                };
                let (_, wait) = first.remove_current().1.to_key_value();
                count_out(&mut state.len, 1);
                wait.target.wake(wait.index, over);
            }
        }
    }

    /// What was to signal it failed.
    fn lose(&self, state: &mut State) {
        if self.is_lost_with_device {
            self.reach(state, LOST);
        }
    }

    /// A device that has a handle of it has failed.
    fn fail(&self) {
        self.lose(&mut self.state.lock());
        self.wake_reached();
    }
}

/// How what was to signal a value ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The value is reached, in its turn.
    Done,
    /// The work that was to signal it ended with an error.
    Failed,
    /// It was withdrawn: nobody is told.
    Withdrawn,
}

/// The right to signal one value. Dropped before it is kept, it withdraws.
pub(crate) struct Promise {
    /// The fence that is to be signalled.
    fence: Arc<MonitoredFence>,
    /// The value, above all that were promised before once it is given.
    value: u64,
    /// Memory for its entry among the fence's; it is there until it is given.
    node: Option<RBTreeNode<u64, bool>>,
    /// Whether it is among the fence's.
    is_given: bool,
}

impl Promise {
    /// A promise that is not given yet. `EINVAL` if the value is not above all that the fence has
    /// or was promised; `ENOMEM`.
    pub(crate) fn new(fence: Arc<MonitoredFence>, value: u64) -> Result<Self> {
        let node = RBTreeNode::new(value, false, client_flags())?;
        if value == LOST || !fence.accepts(&fence.state.lock(), value) {
            return Err(EINVAL);
        }
        Ok(Self {
            fence,
            value,
            node: Some(node),
            is_given: false,
        })
    }

    /// What it is for: the fence's number, and the value.
    pub(crate) fn what(&self) -> (u64, u64) {
        (self.fence.number, self.value)
    }

    /// Whether `fence` has `value` only when it is kept, if it was given.
    pub(crate) fn delays(&self, fence: &MonitoredFence, value: u64) -> bool {
        core::ptr::eq(&*self.fence, fence) && self.value <= value && self.is_given
    }

    /// Whether both can be given, this one later.
    pub(crate) fn may_follow(&self, before: &Self) -> bool {
        !Arc::ptr_eq(&self.fence, &before.fence) || self.value > before.value
    }

    /// Takes its place behind all that are promised; whether it has it. A value that was overtaken
    /// meanwhile has none.
    pub(crate) fn give(&mut self) -> bool {
        let mut state = self.fence.state.lock();
        let accepted = self.fence.accepts(&state, self.value);
        if let Some(node) = self.node.take_if(|_| accepted) {
            drop(state.promised.0.insert(node));
            self.is_given = true;
        }
        self.is_given
    }

    /// Keeps it, or not. Only the first call counts.
    pub(crate) fn keep(&mut self, end: End) {
        self.end(end);
        self.fence.wake_reached();
    }

    fn end(&mut self, end: End) {
        let mut state = self.fence.state.lock();
        if end == End::Failed {
            self.fence.lose(&mut state);
        }
        if !core::mem::take(&mut self.is_given) {
            return;
        }
        if let Some(value) = promises::end(&mut state.promised, self.value, end == End::Done) {
            self.fence.reach(&mut state, value);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(End::Withdrawn);
    }
}

/// A wait for a value; over when dropped.
pub(crate) struct Wait {
    /// The fence that is to reach the value.
    fence: Arc<FenceValue>,
    /// Where it stands in that fence's tree: by its value first.
    key: WaitKey,
    /// Its place in the fence's tree, until the wait begins.
    node: Option<RBTreeNode<WaitKey, Waiting>>,
}

impl Wait {
    /// A wait that has not begun, number `index` of the target's. `ENOMEM`.
    pub(crate) fn new(
        fence: &Arc<MonitoredFence>,
        value: u64,
        target: Arc<dyn Target>,
        index: u32,
    ) -> Result<Self> {
        let key = (value, serial());
        let waiting = Waiting { target, index };
        Ok(Self {
            fence: fence.0.clone(),
            key,
            node: Some(RBTreeNode::new(key, waiting, client_flags())?),
        })
    }

    /// Whether it is for a value of `fence`.
    pub(crate) fn is_for(&self, fence: &MonitoredFence) -> bool {
        Arc::ptr_eq(&self.fence, &fence.0)
    }

    /// The value that the fence is to reach.
    pub(crate) fn value(&self) -> u64 {
        self.key.0
    }

    /// The fence's number, and the value that it is to reach.
    pub(crate) fn what(&self) -> (u64, u64) {
        (self.fence.number, self.value())
    }

    /// Begins to wait, if it has not: the target is woken once, here if the value is there.
    pub(crate) fn begin(&mut self) {
        let mut state = self.fence.state.lock();
        let Some(node) = self.node.take() else {
            return;
        };
        if self.has_ended() {
            let (_, Waiting { target, index }) = node.to_key_value();
            target.wake(index, Over::Reached);
        } else {
            state.len = state.len.saturating_add(1);
            drop(state.waits.insert(node));
        }
    }

    /// Whether the value is reached.
    pub(crate) fn has_ended(&self) -> bool {
        self.fence.has(self.key.0)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.fence.state.lock();
            let waiting = state.waits.remove_node(&self.key);
            count_out(&mut state.len, u32::from(waiting.is_some()));
            waiting
        };
        // With the lock free: it may have the last reference to the target.
        drop(waiting);
    }
}

/// Waits by handles, over when dropped.
pub(crate) struct Waits {
    /// For values.
    pub(crate) values: Few<Wait>,
    /// For the ends of the handles' devices, which are the end of all.
    devices: Few<Owner>,
}

impl Waits {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            values: Few::Empty,
            devices: Few::Empty,
        }
    }

    /// `target` waits by handles of device `owner`, too. `ENOMEM`.
    pub(crate) fn end_with(
        &mut self,
        owners: &Arc<Owners>,
        owner: u64,
        target: Arc<dyn Target>,
    ) -> Result {
        if self.devices.iter().any(|device| device.key.0 == owner) {
            return Ok(());
        }
        let entry = Entry::Target(target);
        self.devices.push(Owner::new(owners, owner, 0, entry)?)
    }

    /// Begins to wait. Who has done so looks whether the devices have ended before.
    pub(crate) fn begin(&mut self) {
        // First: a value that is there only because a device has failed does not count.
        self.devices.iter_mut().for_each(Owner::enter);
        self.values.iter_mut().for_each(Wait::begin);
    }
}

/// Which devices have handles of which fences, and who waits by these.
#[pin_data]
pub(crate) struct Owners {
    /// By device, what is to be told of its end.
    #[pin]
    entries: SpinLock<RBTree<OwnerKey, Entry>>,
}

/// A device, the address of a fence of which it has a handle, or 0, and a number: it may have
/// several handles of a fence.
type OwnerKey = (u64, usize, u64);

/// What is told of a device's end.
#[derive(Clone)]
enum Entry {
    /// A fence of which it has a handle.
    Fence(Arc<FenceValue>),
    /// Who waits by handles of it, which may be gone.
    Target(Arc<dyn Target>),
}

/// An entry of [`Owners`], until it is dropped.
pub(crate) struct Owner {
    /// The device's table, which has the entry once it is entered.
    owners: Arc<Owners>,
    /// The entry's key there, which no other entry has.
    key: OwnerKey,
    /// The entry, until then.
    node: Option<RBTreeNode<OwnerKey, Entry>>,
}

impl Owner {
    /// Enters a handle of `fence` that device `owner` has. `ENOMEM`.
    pub(crate) fn of_handle(
        owners: &Arc<Owners>,
        owner: u64,
        fence: &Arc<MonitoredFence>,
    ) -> Result<Self> {
        let address = core::ptr::from_ref::<FenceValue>(fence).addr();
        let mut entry = Self::new(owners, owner, address, Entry::Fence(fence.0.clone()))?;
        entry.enter();
        Ok(entry)
    }

    fn new(owners: &Arc<Owners>, owner: u64, address: usize, entry: Entry) -> Result<Self> {
        let key = (owner, address, serial());
        Ok(Self {
            owners: owners.clone(),
            key,
            node: Some(RBTreeNode::new(key, entry, client_flags())?),
        })
    }

    /// Is told of the device's end from now on.
    fn enter(&mut self) {
        if let Some(node) = self.node.take() {
            drop(self.owners.entries.lock().insert(node));
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let entry = self.owners.entries.lock().remove_node(&self.key);
        // With the lock free: it may be the last reference.
        drop(entry);
    }
}

impl Owners {
    /// The table of a GPU on which nobody has a fence yet. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                entries <- new_spinlock!(RBTree::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Device `owner` ends: so do all waits by its handles, and if it has `failed`, all fences that
    /// it has are lost.
    pub(crate) fn end(&self, owner: u64, failed: bool) {
        // Who waits comes before the fences.
        self.end_from((owner, 0, 0), |key| {
            key.0 == owner && (failed || key.1 == 0)
        });
    }

    /// Ends all devices as failed: the GPU is lost.
    pub(crate) fn lose(&self) {
        self.end_from((0, 0, 0), |_| true);
    }

    /// Ends waits and loses fences that are entered from a key on, as long as `is_meant`.
    fn end_from(&self, mut from: OwnerKey, is_meant: impl Fn(OwnerKey) -> bool) {
        // Who comes later sees that the device has ended.
        let end = serial();
        loop {
            let next = {
                let entries = self.entries.lock();
                let next = entries.cursor_lower_bound(&from);
                let next = next.filter(|next| is_meant(*next.current().0));
                next.map(|next| (*next.current().0, next.current().1.clone()))
            };
            let Some((key, entry)) = next else {
                break;
            };
            // With the lock free: a fence may have many waits. If this is the last reference, its
            // memory is freed, and nothing else.
            from = match entry {
                Entry::Fence(fence) => {
                    fence.fail();
                    (key.0, key.1, u64::MAX)
                }
                Entry::Target(_) if key.2 >= end => (key.0, key.1, u64::MAX),
                Entry::Target(target) => {
                    target.wake(0, Over::Ended);
                    (key.0, key.1, key.2.saturating_add(1))
                }
            };
        }
    }
}
