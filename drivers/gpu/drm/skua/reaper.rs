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
//! Objects that clients destroy are given up in the same queue ([`crate::memory::destruction`]).
//! All GPUs share it; who waits does so for the work items of one
//! ([`Gpu::reap`](crate::gpu::Gpu::reap)), as another's may wait until that is reset, or awake.
//!
//! All clients share it, so what has very much is freed in parts, with others' between them. A work
//! item that has more to do then says so ([`Cut`]): who waits for a turn may wait for the rest,
//! too, for as long as it has patience ([`Gpu::reap_all`](crate::gpu::Gpu::reap_all)).
//!
//! # Quarantine
//!
//! Memory must not go back to the system while the device may still reach it. A device that did not
//! acknowledge is such a device: from that moment on, until it was reset or is known to be quiet,
//! reapers keep what they are given ([`Quarantine`]).

use crate::ext::queue::{
    flush_item,
    ModuleQueue, //
};
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

/// [`cuts`], for debugfs.
static CUTS: Atomic<u64> = Atomic::new(0);

/// How often a work item was cut since the module was loaded.
pub(crate) fn cuts() -> u64 {
    CUTS.load(Relaxed)
}

/// Counts a work item that has left some of its work for later.
pub(crate) fn count_cut() {
    CUTS.fetch_add(1, Relaxed);
}

/// Whether a work item of [`QUEUE`] has more to do than it did at a time.
pub(crate) struct Cut {
    /// 1 from when it was cut until it has done all; else 0.
    is_cut: Atomic<u32>,
    /// The device's, which counts work items that are cut.
    quarantine: Arc<Quarantine>,
}

impl Cut {
    /// Of a work item that has done all. It counts in its device's `quarantine`.
    pub(crate) fn new(quarantine: &Arc<Quarantine>) -> Self {
        Self {
            is_cut: Atomic::new(0),
            quarantine: quarantine.clone(),
        }
    }

    /// Says so, under the lock of what is left; if it is cut, the caller has it queued again.
    pub(crate) fn set(&self, is_cut: bool) {
        let was_cut = self.is_cut.xchg(is_cut.into(), Full) != 0;
        let count = &self.quarantine.cut;
        // No wrap: each counts once.
        match (was_cut, is_cut) {
            (false, true) => _ = count.fetch_add(1, Full),
            (true, false) => _ = count.fetch_sub(1, Full),
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
    /// Work items of the device that are [`Cut`], and queued again.
    cut: Atomic<u32>,
}

impl Quarantine {
    /// An open quarantine: reapers free what they are given. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let open = Self {
            closed: Atomic::new(0),
            suspended: Atomic::new(0),
            cut: Atomic::new(0),
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

    /// Whether reapers keep what they are given until the device is reset.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Acquire) != 0
    }

    /// Whether a work item has more to do than it did at a time.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Acquire) != 0
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

    /// Counts `things` more that have gone, and their bytes.
    pub(crate) fn count(&mut self, things: usize, bytes: u64) {
        self.left = self.left.saturating_sub(things);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Objects of which a reaper has the last reference.
struct Dead<T: Reapable> {
    /// Those that are freed one after the other.
    whole: List<T>,
    /// Those that have very much: of one of them a part is freed at a time.
    parts: List<T>,
}

/// Frees objects of one type.
#[pin_data]
pub(crate) struct Reaper<T: Reapable> {
    /// What is not freed yet.
    #[pin]
    dead: SpinLock<Dead<T>>,
    /// How many were buried and are not freed yet; the one that is being freed counts.
    count: Atomic<u64>,
    /// What of memory those have, in bytes: an object counts as often as it is held.
    bytes: Atomic<u64>,
    /// While it is closed, nothing leaves `dead`. All reapers of a device share it.
    quarantine: Arc<Quarantine>,
    /// Whether something is to be freed in parts, and may be.
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
                dead <- new_spinlock!(Dead {
                    whole: List::new(),
                    parts: List::new(),
                }),
                count: Atomic::new(0),
                bytes: Atomic::new(0),
                quarantine: quarantine.clone(),
                cut: Cut::new(quarantine),
                work <- new_work!("Reaper::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives up a reference; if it was the last one, the object is freed later. In any context in
    /// which a spin lock may be taken with interrupts on; allocates nothing.
    pub(crate) fn bury(self: &Arc<Self>, object: Arc<T>) {
        self.take(object, false);
    }

    /// [`Self::bury`] of what has very much.
    pub(crate) fn bury_in_parts(self: &Arc<Self>, object: Arc<T>) {
        self.take(object, true);
    }

    fn take(self: &Arc<Self>, object: Arc<T>, in_parts: bool) {
        // Whoever gets the unique reference is the last, so nobody frees the object elsewhere.
        let Some(object) = Arc::into_unique_or_drop(object) else {
            return;
        };
        // First: who takes it out counts it down.
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(object.bytes(), Relaxed);
        let mut dead = self.dead.lock();
        if in_parts {
            dead.parts.push_back(ListArc::from(object));
            self.say(&dead);
        } else {
            dead.whole.push_back(ListArc::from(object));
        }
        drop(dead);
        self.wake();
    }

    /// Says whether there is more to do than is done at a time.
    fn say(&self, dead: &Dead<T>) {
        // Until something of what was taken out is back the last word holds.
        self.cut
            .set(!dead.parts.is_empty() && !self.quarantine.is_closed());
    }

    /// Gives up a reference that may be the last one, where freeing is no harm: the object is freed
    /// here, unless it is to be kept. Process context, no locks held.
    pub(crate) fn let_go(self: &Arc<Self>, object: Arc<T>) {
        if self.quarantine.is_closed() {
            self.bury(object);
        }
    }

    /// Looks again whether what was kept may go.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.quarantine.is_closed() {
            // Nobody waits for what is kept.
            return self.cut.set(false);
        }
        // Refused if it is queued already: then it will run and look.
        let _ = QUEUE.enqueue(self.clone());
    }

    /// Takes out something that may be freed, of what `list` names.
    fn next(&self, list: fn(&mut Dead<T>) -> &mut List<T>) -> Option<ListArc<T>> {
        let mut dead = self.dead.lock();
        // Under the lock: it is closed before what it is to keep is buried.
        match self.quarantine.is_closed() {
            true => None,
            false => list(&mut dead).pop_front(),
        }
    }

    /// Frees it, or a part of it.
    fn free(&self, object: ListArc<T>) {
        let mut freed = Freed::new();
        if object.shed(&mut freed) {
            let bytes = freed.bytes.saturating_add(object.bytes());
            drop(object);
            self.bytes.fetch_sub(bytes, Relaxed);
            self.count.fetch_sub(1, Relaxed);
        } else {
            count_cut();
            self.bytes.fetch_sub(freed.bytes, Relaxed);
            self.dead.lock().parts.push_back(object);
        }
    }

    /// Waits for a turn, if there is to be one: until what was buried before is free, unless it is
    /// in quarantine, or freed in parts. Process context, no locks held.
    pub(crate) fn flush(self: &Arc<Self>) {
        flush_item(self);
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
        for _ in 0..this.count.load(Relaxed) {
            match this.next(|dead| &mut dead.whole) {
                Some(object) => this.free(object),
                None => break,
            }
        }
        if let Some(object) = this.next(|dead| &mut dead.parts) {
            this.free(object);
        }
        let dead = this.dead.lock();
        this.say(&dead);
        let more = !dead.whole.is_empty() || !dead.parts.is_empty();
        drop(dead);
        if more {
            this.wake();
        }
    }
}
