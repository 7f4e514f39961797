// SPDX-License-Identifier: GPL-2.0

//! Freeing, away from where fences signal.
//!
//! The interrupt threads, workers and recovery lead to fences' signals, so they must not do what
//! freeing does: take reservation locks, wait for the device, sleep in the allocator. They give
//! what may be a last reference to a [`Reaper`] instead, which drops it later, in a queue that no
//! fence waits for.
//!
//! ```text
//! interrupt thread, worker, recovery ── bury(Arc) ─▶ last one? ─▶ list ─▶ work item: drop
//!                                                       │ no
//!                                                       └─▶ one reference less, nothing else
//! ```
//!
//! Objects that clients destroy are given up in the same queue ([`crate::memory::destruction`]):
//! who waits for it may count on their memory, too.
//!
//! All clients share it, so what has very much is freed in parts, with others' between them. A work
//! item that has more to do then says so ([`Cut`]), and who waits for the queue waits for the rest.
//!
//! # Quarantine
//!
//! Memory must not go back to the system while the device may still reach it. A device that did not
//! acknowledge is such a device: from that moment on, until it was reset or is known to be quiet,
//! reapers keep what they are given ([`Quarantine`]).

use crate::ext::queue::ModuleQueue;
use kernel::{
    impl_has_work,
    list::{
        List,
        ListArc,
        ListItem, //
    },
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        SpinLock, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// Where reapers work. It belongs to the module: what is reaped may hold the last reference to its
/// device, which therefore cannot own the queue.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// Work items that have more to do, and are queued again.
static CUT: Atomic<u32> = Atomic::new(0);

/// How often a work item was cut since the module was loaded, for debugfs.
static CUTS: Atomic<u64> = Atomic::new(0);

/// See [`CUTS`].
pub(crate) fn cuts() -> u64 {
    CUTS.load(Relaxed)
}

/// How often [`flush`] waits for what is left, at most: there may always be more.
const MOST_PARTS: u32 = 1024;

/// Whether a work item of [`QUEUE`] has more to do than it did at a time.
pub(crate) struct Cut(Atomic<u32>);

impl Cut {
    /// It has done all.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Says so; if it is cut, the caller has it queued again.
    pub(crate) fn set(&self, is_cut: bool) {
        CUTS.fetch_add(is_cut.into(), Relaxed);
        let was_cut = self.0.xchg(is_cut.into(), Full) != 0;
        // No wrap: each counts once.
        match (was_cut, is_cut) {
            (false, true) => _ = CUT.fetch_add(1, Full),
            (true, false) => _ = CUT.fetch_sub(1, Full),
            _ => (),
        }
    }
}

/// Whether memory may go back to the system.
pub(crate) struct Quarantine {
    /// 1 while the device may reach memory that it should not, until it is known to be quiet for
    /// good.
    closed: Atomic<u32>,
    /// 1 while the same is so of a device that is about to be reset, and may go on then.
    suspended: Atomic<u32>,
}

impl Quarantine {
    /// An open quarantine: reapers free what they are given. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let open = Self {
            closed: Atomic::new(0),
            suspended: Atomic::new(0),
        };
        Ok(Arc::new(open, GFP_KERNEL)?)
    }

    /// From now on, everything that reapers are given is kept.
    pub(crate) fn close(&self) {
        // Ordered before what the caller reads next.
        self.closed.xchg(1, Full);
    }

    /// The device is quiet. The caller wakes the reapers.
    pub(crate) fn open(&self) {
        self.closed.store(0, Release);
        self.resume();
    }

    /// [`Self::close`], until the device is reset.
    pub(crate) fn suspend(&self) {
        self.suspended.xchg(1, Full);
    }

    /// The device was reset. The caller wakes the reapers.
    pub(crate) fn resume(&self) {
        self.suspended.store(0, Release);
    }

    /// Whether they do until the device is reset.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Acquire) != 0
    }

    /// Whether reapers keep what they are given.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire) != 0 || self.is_suspended()
    }
}

/// What a [`Reaper`] frees: something that is in no list when its last reference goes.
pub(crate) trait Reapable: ListItem<0> + Send + Sync + 'static {
    /// Bytes of buffer objects that the device may reach until it is freed; the same as long as
    /// nobody else has it. Does not sleep.
    fn bytes(&self) -> u64 {
        0
    }

    /// Lets go of as much of what it has as is freed before others have the queue. Whether that was
    /// all, or so little is left that it can be freed. Nobody else has it; process context.
    fn shed(&self, _freed: &mut Freed) -> bool {
        true
    }
}

/// What [`Reapable::shed`] lets go of in one turn of the queue.
pub(crate) struct Freed {
    /// How many more it may let go of.
    left: usize,
    /// Of [`Reapable::bytes`] what is gone.
    bytes: u64,
}

impl Freed {
    /// Things that are freed in one turn, if they belong to one object.
    pub(crate) const MOST: usize = 1024;

    fn new() -> Self {
        Self {
            left: Self::MOST,
            bytes: 0,
        }
    }

    /// Whether one more may go.
    pub(crate) fn has_room(&self) -> bool {
        self.left > 0
    }

    /// One more has gone, and so many bytes.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Frees objects of one type.
#[pin_data]
pub(crate) struct Reaper<T: Reapable> {
    /// Objects of which this is the last reference.
    #[pin]
    dead: SpinLock<List<T>>,
    /// How many were buried and are not freed yet; the one that is being freed counts.
    count: Atomic<u64>,
    /// What of memory those have, in bytes: an object counts as often as it is held.
    bytes: Atomic<u64>,
    /// While it is closed, nothing leaves `dead`. All reapers of a device share it.
    quarantine: Arc<Quarantine>,
    /// Whether an object is in `dead` of which a part is gone.
    cut: Cut,
    /// Empties `dead`, in [`QUEUE`].
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl{T: Reapable} HasWork<Self> for Reaper<T> { self.work }
}

impl<T: Reapable> Reaper<T> {
    /// A reaper that keeps what it gets while `quarantine` is closed. `ENOMEM`.
    pub(crate) fn new(quarantine: &Arc<Quarantine>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dead <- new_spinlock!(List::new()),
                count: Atomic::new(0),
                bytes: Atomic::new(0),
                quarantine: quarantine.clone(),
                cut: Cut::new(),
                work <- new_work!("Reaper::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives up a reference; if it was the last one, the object is freed later. In any context in
    /// which a spin lock may be taken with interrupts on; allocates nothing.
    pub(crate) fn bury(self: &Arc<Self>, object: Arc<T>) {
        // Whoever gets the unique reference is the last, so nobody frees the object elsewhere.
        if let Some(object) = Arc::into_unique_or_drop(object) {
            // First: who takes it out counts it down.
            self.count.fetch_add(1, Relaxed);
            self.bytes.fetch_add(object.bytes(), Relaxed);
            self.dead.lock().push_back(ListArc::from(object));
            self.wake();
        }
    }

    /// Gives up a reference that may be the last one, where freeing is no harm: the object is freed
    /// here, unless it is to be kept. Process context, no locks held.
    pub(crate) fn let_go(self: &Arc<Self>, object: Arc<T>) {
        if self.quarantine.is_closed() {
            self.bury(object);
        }
    }

    /// [`Self::bury`] of what has very much, by who frees something in [`QUEUE`]: who waits for that
    /// waits for this, too.
    pub(crate) fn bury_in_parts(self: &Arc<Self>, object: Arc<T>) {
        if !self.quarantine.is_closed() {
            self.cut.set(true);
        }
        self.bury(object);
    }

    /// Looks again whether what was kept may go.
    pub(crate) fn wake(self: &Arc<Self>) {
        if !self.quarantine.is_closed() {
            // Refused if it is queued already: then it will run and look.
            let _ = QUEUE.enqueue(self.clone());
        }
    }

    /// Objects that are not freed yet, and bytes of memory that the device may reach meanwhile.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.bytes.load(Relaxed))
    }
}

impl<T: Reapable> WorkItem for Reaper<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Not what comes meanwhile: others wait for the queue to be empty of what was there.
        let mut is_cut = false;
        for _ in 0..this.count.load(Relaxed) {
            let object = {
                let mut dead = this.dead.lock();
                // Under the lock: it is closed before what it is to keep is buried.
                if this.quarantine.is_closed() {
                    this.cut.set(false);
                    return;
                }
                dead.pop_front()
            };
            if let Some(object) = object {
                let mut freed = Freed::new();
                is_cut = !object.shed(&mut freed);
                if is_cut {
                    this.bytes.fetch_sub(freed.bytes, Relaxed);
                    // Others' first.
                    this.dead.lock().push_back(object);
                    break;
                }
                let bytes = freed.bytes.saturating_add(object.bytes());
                drop(object);
                this.bytes.fetch_sub(bytes, Relaxed);
                this.count.fetch_sub(1, Relaxed);
            }
        }
        this.cut.set(is_cut);
        let more = !this.dead.lock().is_empty();
        if more {
            this.wake();
        }
    }
}

/// Waits until what was buried is free, unless it is in quarantine. Process context, no locks held.
///
/// It ends, whatever clients do: what is freed waits for the device's acknowledgements, after which
/// that is lost, and for locks under which nobody waits for work.
pub(crate) fn flush() {
    QUEUE.flush();
    for _ in 0..MOST_PARTS {
        if CUT.load(Acquire) == 0 {
            break;
        }
        QUEUE.flush();
    }
}
