// SPDX-License-Identifier: GPL-2.0

//! Destroying objects, with or without regard to what uses them (rows 0.02 to 0.05).
//!
//! A handle dies at once; the memory is given up when what was queued before is done, or at once if
//! the client says that nothing uses it. Whatever the client says, nobody else is hurt: first no
//! page table leads to the memory any more, then all TLBs are flushed, then it is free. Work that
//! still uses it faults.
//!
//! ```text
//! ioctl    mark: it stays where it is ─▶ fences of all that may use it ─▶ the handle is gone
//! then     all signalled ─▶ CPU mappings fault ─▶ page tables cleared ─▶ TLBs flushed ─▶ reaper
//! ```
//!
//! Who may use an object is known: the address spaces that are among its
//! [users](super::installed), and what was submitted in them. Waiting is no bind's turn: what the
//! client queues behind is not held up. What has to wait does so in the order in which its client
//! destroyed it, what is in VRAM apart from the rest: so two gates of a client at most are
//! [armed](Gate::arm).
//!
//! What is mapped very often is given up in parts, with others' objects between them: it has no
//! memory from the first part on, and what it had goes with the last. What a client has locked, who
//! may be kept from running, is tried again later: others' go on.
//!
//! What is [held](crate::fences::hold) has no fence: who destroys has waited for that before, or
//! has the destruction begin behind it.
//!
//! An object that others may have, because it was exported or is imported, keeps its memory; it is
//! unmapped from the client's address spaces.

use crate::{
    ext::{
        device,
        fence::Fence,
        gem,
        queue::flush_item,
        resv::{
            self,
            Usage, //
        }, //
    },
    fences::gate::{
        Gate,
        Wake, //
    },
    few::Few,
    gpu::{
        self,
        SkuaDevice,
        WEDGED, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            BoRef,
            Memory, //
        },
        device::look_again,
        eviction,
        vm::{
            for_each_user,
            Gone,
            Vm, //
        },
        vram::Part, //
    },
    policy::{
        interval_map::Span,
        miniport::Flush, //
    },
    quota::{
        count_out,
        Quota,
        QuotaId, //
    },
    reaper::{
        self,
        Cut,
        Reapable, //
    },
    spec::number::Asid, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        List,
        ListArc,
        ListLinks, //
    },
    new_spinlock,
    new_work,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        ArcBorrow,
        SpinLock, //
    },
    time::{
        delay::fsleep,
        Delta,
        Jiffies, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// An object whose handle is gone.
#[pin_data]
pub(crate) struct Destruction {
    /// The object's device, whose TLBs are flushed before its memory goes.
    dev: ARef<SkuaDevice>,
    /// The object, of which nothing but this knows when all has been given up.
    bo: BoRef,
    /// The quota of the address spaces of whose client it was: in those it is unmapped.
    client: Arc<Quota>,
    /// Opens when what may use the object is over.
    #[pin]
    gate: Gate<Destroyer>,
    /// What it had, if it had something, from the moment at which it is given up until this is
    /// freed; [`None`] before, and if others have it, too.
    #[pin]
    given_up: SpinLock<Option<Option<Memory>>>,
    /// The users before this one have nothing installed of it any more; 0 until it is given up.
    withdrawn: Atomic<u32>,
    /// Nor has this one before this address.
    from: Atomic<u64>,
    /// Its place in one of the [`Destroyer`]'s lists, later in the reaper's.
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Destruction { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Destruction { using ListLinks { self.links }; }
}

impl Reapable for Destruction {
    fn bytes(&self) -> u64 {
        match &*self.given_up.lock() {
            // CAST: of 64 bits.
            Some(Some(_)) => self.bo.size() as u64,
            _ => 0,
        }
    }
}

impl Destruction {
    /// The destruction of `bo`, when `waits` are over. `ENOMEM`.
    fn new(
        dev: &SkuaDevice,
        client: &Arc<Quota>,
        bo: &BoRef,
        waits: Few<Fence>,
    ) -> Result<ListArc<Self>> {
        ListArc::pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                bo: bo.clone(),
                client: client.clone(),
                gate <- Gate::new(&dev.destroyer, waits)?,
                given_up <- new_spinlock!(None),
                withdrawn: Atomic::new(0),
                from: Atomic::new(0),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Takes what the object has, once; whether that is done. Unless it `may_wait`, it is not if
    /// somebody has the object's reservation locked. Process context; allocates.
    fn give_up(&self, may_wait: bool) -> bool {
        if self.withdrawn.load(Relaxed) > 0 {
            return true;
        }
        let reserved = match may_wait {
            true => resv::lock_uninterruptible(&*self.bo).ok(),
            false => resv::trylock(&*self.bo),
        };
        let Some(reserved) = reserved else {
            return false;
        };
        let given_up = bo::give_up(&self.bo, reserved);
        let none = core::mem::replace(&mut *self.given_up.lock(), given_up);
        drop(none);
        // The system's is nobody's.
        self.withdrawn.store(1, Relaxed);
        true
    }

    /// Has nothing lead to what the object had, for as many users and ranges as `part` has room
    /// for. Whether that was all. Process context; allocates.
    ///
    /// It goes through them once. If others have the object, too, what is installed behind that is
    /// of who opened it again, perhaps in the same address spaces, and may never end to come.
    fn withdraw(&self, parent: &Device<Bound>, part: &mut TurnPart) -> bool {
        let (dev, bo) = (&*self.dev, &self.bo);
        let ours = self.given_up.lock().is_some();
        while let Some(asid) = Asid::try_from(self.withdrawn.load(Relaxed))
            .ok()
            .and_then(|from| bo.sites.next_user(from))
        {
            if part.room == 0 {
                return false;
            }
            part.room -= 1;
            if self.withdrawn.load(Relaxed) != asid.into() {
                self.withdrawn.store(asid.into(), Relaxed);
                self.from.store(0, Relaxed);
            }
            let is_done = dev
                .vms
                .find(asid)
                .is_none_or(|vm| self.withdraw_from(vm, ours, parent, part));
            if !is_done {
                return false;
            }
            self.withdrawn
                .store(u32::from(asid).saturating_add(1), Relaxed);
            self.from.store(0, Relaxed);
        }
        true
    }

    /// Does that with one address space, where it is to be.
    fn withdraw_from(
        &self,
        vm: Arc<Vm>,
        ours: bool,
        parent: &Device<Bound>,
        part: &mut TurnPart,
    ) -> bool {
        let (dev, bo) = (&*self.dev, &self.bo);
        let own = vm.is_of(&self.client);
        let mut is_done = true;
        if ours || own {
            part.flush = part.flush.and(vm.asid());
            let mut from = self.from.load(Relaxed);
            let spans = vm.uninstall(parent, bo, &mut from, &mut part.room);
            self.from.store(from, Relaxed);
            match spans {
                Ok(spans) => {
                    is_done = vm.has_none_of(bo, from);
                    if own {
                        // Without memory for that, what it thinks is mapped leads nowhere.
                        let _ = part.forget(&vm, bo, spans);
                    }
                }
                Err(error) => part.result = part.result.and(Err(error)),
            }
        }
        dev.reapers.vms.bury(vm);
        is_done
    }

    /// Nothing leads to what the object had any more: it is freed, by the reaper.
    fn end(self: Arc<Self>) {
        let ours = self.given_up.lock().is_some();
        if ours {
            gem::discard(&*self.bo);
        } else {
            // It lives on.
            look_again(&self.dev, &self.bo);
        }
        let dev = self.dev.clone();
        dev.reapers.destructions.bury(self);
    }
}

/// What is done before others have the queue.
struct TurnPart {
    /// How many users and ranges it may still go through.
    room: usize,
    /// What is to be flushed for that.
    flush: Flush,
    /// What clients are not to think mapped any more after that, and in which address space.
    gone: KVVec<(Arc<Vm>, ListArc<Gone>)>,
    /// The first error, with which the device is lost.
    result: Result,
}

impl TurnPart {
    /// Has `vm` forget that `bo` was mapped at `spans`. `ENOMEM`.
    fn forget(&mut self, vm: &Arc<Vm>, bo: &BoRef, spans: KVVec<Span>) -> Result {
        let gone = Gone::new(bo, spans)?;
        Ok(self.gone.push((vm.clone(), gone), client_flags())?)
    }
}

/// What is left of objects that were to be given up.
struct Left {
    /// Destructions of objects that are given up in part.
    cut: List<Destruction>,
    /// Destructions of objects that somebody has locked.
    locked: List<Destruction>,
}

/// Gives up what the objects of `all` have, those with more than `room` users and ranges only in
/// part, those that somebody has locked only if it `may_wait`. Process context; allocates, and may
/// wait for the engines to drop translations, once.
fn perform(mut all: List<Destruction>, room: usize, may_wait: bool) -> Left {
    let (mut due, mut done) = (List::new(), List::new());
    let mut left = Left {
        cut: List::new(),
        locked: List::new(),
    };
    while let Some(destruction) = all.pop_front() {
        match destruction.give_up(may_wait) {
            true => due.push_back(destruction),
            false => left.locked.push_back(destruction),
        }
    }
    let Some(dev) = due.iter().next().map(|first| first.dev.clone()) else {
        return left;
    };
    // Of a device that is gone no table is walked.
    if let Some(bound) = device::enter(&dev) {
        let parent = gpu::parent(&bound);
        let mut part = TurnPart {
            room,
            flush: Flush::Nothing,
            gone: KVVec::new(),
            result: Ok(()),
        };
        // Who binds something else there has it flushed before.
        dev.unflushed.fetch_add(1, Full);
        while let Some(destruction) = due.pop_front() {
            part.room = room;
            match destruction.withdraw(parent, &mut part) {
                true => done.push_back(destruction),
                false => {
                    reaper::count_cut();
                    left.cut.push_back(destruction);
                }
            }
        }
        // Whatever was cleared, since a bind may have removed what led there, and not have flushed
        // it yet.
        let flushed = match part.flush {
            Flush::Nothing => Ok(()),
            Flush::Of(asid) => dev.invalidate(Some(asid)),
            Flush::All => dev.invalidate(None),
        };
        match part.result.and(flushed) {
            Ok(()) => _ = dev.unflushed.fetch_sub(1, Full),
            // What used the memory may still reach it.
            Err(_) if dev.check_health().is_ok() => dev.doubt(WEDGED),
            Err(_) => (),
        }
        for (vm, gone) in part.gone {
            vm.forget(gone);
            dev.reapers.vms.bury(vm);
        }
    }
    done.push_all_back(&mut due);
    while let Some(destruction) = done.pop_front() {
        destruction.into_arc().end();
    }
    left
}

/// Objects that are given up next.
struct Due {
    /// None of them has had a turn.
    fresh: List<Destruction>,
    /// What is left of those that are mapped very often.
    cut: List<Destruction>,
    /// What somebody had locked.
    locked: List<Destruction>,
    /// Which of these had the last turn, in this order.
    last: usize,
}

impl Due {
    fn new(fresh: List<Destruction>) -> Self {
        Self {
            fresh,
            cut: List::new(),
            locked: List::new(),
            last: 0,
        }
    }

    /// The destructions of the next turn, whose objects are given up with one flush and before
    /// others have the queue; and how many users and ranges of each. Each list has one in its turn,
    /// so nobody waits for all of what is mapped very often.
    fn next(&mut self) -> (List<Destruction>, usize) {
        let (mut next, mut room) = (List::new(), 0);
        for _ in 0..3 {
            self.last = self.last.wrapping_add(1) % 3;
            let (list, count) = match self.last {
                0 => (&mut self.fresh, AT_ONCE),
                1 => (&mut self.cut, 1),
                _ => (&mut self.locked, AT_ONCE),
            };
            for _ in 0..count {
                match list.pop_front() {
                    Some(destruction) => next.push_back(destruction),
                    None => break,
                }
            }
            room = RANGES_AT_ONCE / count;
            if !next.is_empty() {
                break;
            }
        }
        (next, room)
    }

    /// Gives another turn to what is left of one.
    fn keep(&mut self, mut left: Left) {
        self.cut.push_all_back(&mut left.cut);
        self.locked.push_all_back(&mut left.locked);
    }
}

/// For how long the worker sleeps where there is nothing but what somebody has locked: clients do,
/// and may be kept from running, or throttled, while they have.
const PAUSE_MS: i64 = 1;

/// Objects that are given up with one flush.
const AT_ONCE: usize = 64;

/// Users, and ranges that lead to them, of all of these.
const RANGES_AT_ONCE: usize = 4096;

/// Objects of one client that who needs room looks at, with the lock held: what it waits for is
/// then taken to have some.
const LOOKED_AT: usize = 256;

/// What waits for one gate after the other: of a client, by the quota of its address spaces, what
/// is in VRAM or what is not, while it waits.
type Key = (QuotaId, bool);
/// What [`Queues::dying`] has of a key of which nothing is there yet.
type DyingNode = RBTreeNodeReservation<Key, List<Destruction>>;

/// Memory for what [`Destroyer::accept`] may add for one client. `ENOMEM`.
fn dying_nodes() -> Result<[DyingNode; 2]> {
    Ok([
        DyingNode::new(client_flags())?,
        DyingNode::new(client_flags())?,
    ])
}

/// Objects that are to be given up.
struct Queues {
    /// Those that waited when they were asked for, in that order. The gate of the first one of each
    /// key is armed; what is behind waits for it as well.
    dying: RBTree<Key, List<Destruction>>,
    /// Objects that wait for nothing, and are given up next.
    due: Due,
    /// How many are in `due`, or just being given up.
    behind: usize,
}

/// Waits for what objects to be destroyed are used by; a device has one.
#[pin_data]
pub(crate) struct Destroyer {
    /// What waits to be given up, and what goes next.
    #[pin]
    queues: SpinLock<Queues>,
    /// Whether some of what is due is given up in part.
    cut: Cut,
    /// Looks for what can go, in the reapers' queue.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Destroyer { self.work }
}

impl Destroyer {
    /// One that waits for nothing. `ENOMEM`.
    pub(crate) fn new(cut: Cut) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queues <- new_spinlock!(Queues {
                    dying: RBTree::new(),
                    due: Due::new(List::new()),
                    behind: 0,
                }),
                cut,
                work <- new_work!("Destroyer::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives up what objects of `client` have, now or when their gates open.
    fn accept(
        self: &Arc<Self>,
        client: &Arc<Quota>,
        destructions: KVVec<ListArc<Destruction>>,
        nodes: [DyingNode; 2],
    ) {
        let (mut now, mut later) = (List::new(), [List::new(), List::new()]);
        for destruction in destructions {
            let [elsewhere, there] = &mut later;
            let bo = &destruction.bo;
            let list = match destruction.gate.is_open() {
                true => &mut now,
                // In this order: what arrives is there before it has arrived.
                false if bo.is_arriving() || bo.sites.bytes_in(Part::Any) > 0 => there,
                false => elsewhere,
            };
            list.push_back(destruction);
        }
        for ((is_there, mut later), node) in [false, true].into_iter().zip(later).zip(nodes) {
            if later.is_empty() {
                continue;
            }
            let key = (client.id(), is_there);
            let mut queues = self.queues.lock();
            match queues.dying.get_mut(&key) {
                Some(dying) => dying.push_all_back(&mut later),
                None => _ = queues.dying.insert(node.into_node(key, later)),
            }
            drop(queues);
            // To have the first gate armed.
            Self::wake(self);
        }
        let mut due = Due::new(now);
        loop {
            let (some, room) = due.next();
            if some.is_empty() {
                break;
            }
            due.keep(perform(some, room, true));
        }
    }

    /// Gives up what an object has that nobody uses, soon.
    fn defer(self: &Arc<Self>, destruction: ListArc<Destruction>) {
        let mut queues = self.queues.lock();
        queues.due.fresh.push_back(destruction);
        queues.behind = queues.behind.saturating_add(1);
        drop(queues);
        Self::wake(self);
    }

    /// Whether memory that is in `part` of VRAM will be free, and the fence that it waits for,
    /// unless that has just signalled.
    pub(crate) fn obstacle(&self, part: Part) -> Option<Option<Fence>> {
        let queues = self.queues.lock();
        let mut clients = queues.dying.iter().filter(|((_, is_there), _)| *is_there);
        clients.find_map(|(_, dying)| {
            let mut looked_at = dying.iter().take(LOOKED_AT);
            let is_there = |dying: ArcBorrow<'_, Destruction>| dying.bo.sites.bytes_in(part) > 0;
            // What is behind may be there, too.
            let found = looked_at.any(is_there) || dying.iter().nth(LOOKED_AT).is_some();
            let first = dying.iter().next().filter(|_| found)?;
            Some(first.gate.pending().cloned())
        })
    }

    /// Waits until what nothing uses any more is free, as long as there is `patience`, from which
    /// that takes; if there is some, in any case for what goes in one turn. Process context, no
    /// locks held. `EINTR` if a signal arrives.
    pub(crate) fn settle(&self, dev: &SkuaDevice, patience: &mut Jiffies) -> Result {
        if *patience == 0 {
            return Ok(());
        }
        // Of a device that is lost what was destroyed may be kept.
        let _ = eviction::spend(patience, || dev.wait_for_resets());
        dev.reap_all(patience)?;
        let behind = || self.queues.lock().behind;
        // Not what comes meanwhile: each turn of the queue gives up some, and one frees the last.
        for turn in 0..=behind().div_ceil(AT_ONCE) {
            let is_settled = behind() == 0 && dev.reapers.destructions.usage().0 == 0;
            let is_over = *patience == 0 && turn > 0;
            if is_settled || is_over || dev.check_health().is_err() {
                break;
            }
            if current!().signal_pending() {
                return Err(EINTR);
            }
            dev.reap_all(patience)?;
        }
        Ok(())
    }

    /// Waits for a turn of its own, if there is to be one. Process context, no locks held.
    pub(crate) fn flush(self: &Arc<Self>) {
        flush_item(self);
    }

    /// Gives up what all that waits has: the device is gone.
    pub(crate) fn end(self: &Arc<Self>) {
        self.find_due(true);
        while self.perform_some(true) || self.queues.lock().behind > 0 {
            // What the worker has in hand comes back if somebody has it locked.
            self.flush();
        }
    }

    /// Takes out of `dying` what does not wait any more, or `all`, and arms the first gate of what
    /// is left of each key.
    fn find_due(&self, all: bool) {
        // Those of keys before this one are armed.
        let mut from = Some(Key::default());
        while let Some(key) = from.take() {
            let (mut unarmed, mut room) = (None, AT_ONCE);
            {
                let mut queues = self.queues.lock();
                let Queues { dying, due, behind } = &mut *queues;
                let mut next = dying.cursor_lower_bound_mut(&key);
                while let Some(mut cursor) = next {
                    let (key, list) = cursor.current_mut();
                    let key = *key;
                    let is_over = loop {
                        let mut cursor = list.cursor_front();
                        match cursor.peek_next() {
                            // Others get the lock.
                            Some(_) if room == 0 => break false,
                            Some(first) if all || first.gate.is_open() => {
                                due.fresh.push_back(first.remove());
                                *behind = behind.saturating_add(1);
                                room = room.saturating_sub(1);
                            }
                            Some(first) if !first.gate.is_armed() => {
                                unarmed = Some(Arc::<Destruction>::from(first.arc()));
                                break false;
                            }
                            _ => break true,
                        }
                    };
                    if !is_over {
                        from = Some(key);
                        break;
                    }
                    next = match list.is_empty() {
                        true => cursor.remove_current().0,
                        false => cursor.move_next(),
                    };
                }
            }
            if let Some(first) = unarmed {
                first.gate.arm();
                let dev = first.dev.clone();
                dev.reapers.destructions.bury(first);
            }
        }
    }

    /// Gives up some of what is due; whether there was any. Unless it `may_wait`, what somebody has
    /// locked has another turn, after a while if there is nothing else.
    fn perform_some(&self, may_wait: bool) -> bool {
        let (some, room) = self.queues.lock().due.next();
        let count = some.iter().count();
        let left = perform(some, room, may_wait);
        let locked = left.locked.iter().count();
        let done = count.saturating_sub(locked.saturating_add(left.cut.iter().count()));
        let mut queues = self.queues.lock();
        let Queues { due, behind, .. } = &mut *queues;
        due.keep(left);
        self.cut.set(!due.cut.is_empty());
        count_out(behind, done);
        let are_all_locked = locked > 0 && due.fresh.is_empty() && due.cut.is_empty();
        drop(queues);
        if are_all_locked {
            fsleep(Delta::from_millis(PAUSE_MS));
        }
        count > 0
    }
}

impl Wake for Destroyer {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = reaper::QUEUE.enqueue(this.clone());
    }
}

impl WorkItem for Destroyer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Some at a time: others wait for the queue.
        let is_behind = !this.queues.lock().due.fresh.is_empty();
        if !is_behind {
            this.find_due(false);
        }
        // More may have come that was not looked at.
        if this.perform_some(false) || is_behind {
            Self::wake(&this);
        }
    }
}

/// How an object is destroyed.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Nothing uses it, the client says.
    pub(crate) assume_not_in_use: bool,
    /// Return when the memory is free.
    pub(crate) synchronous: bool,
}

/// Destroys objects, each of which is named once, all or none, with their handles, which `close`
/// closes. `client` is the quota of the address spaces of the client, of which no work is held that
/// may use them.
///
/// `ENOENT` for a handle, also if another thread destroys it just now; `ENOMEM`; `EINTR` if a
/// signal arrives; `EAGAIN` if it takes longer than `patience`. Nothing has changed then.
pub(crate) fn destroy(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    handles: &[(u32, BoRef)],
    manner: Manner,
    mut patience: Jiffies,
    close: impl Fn(u32, &BoRef),
) -> Result {
    let nodes = dying_nodes()?;
    let begun = loop {
        if manner.synchronous {
            let mut users = Users::new();
            for (_, bo) in handles {
                for fence in waits(dev, client, bo, manner.assume_not_in_use, &mut users)? {
                    patience = match fence.wait_timeout(patience) {
                        Err(error) if error == ETIME => return Err(EAGAIN),
                        left => left?,
                    };
                }
            }
        }
        let begun = mark_all(dev, client, handles, manner)?;
        // A move has begun since it was waited for.
        if !manner.synchronous || begun.iter().all(|begun| begun.gate.pending().is_none()) {
            break begun;
        }
        unmark_all(dev, handles);
    };
    // From here on nothing fails.
    for (handle, bo) in handles {
        close(*handle, bo);
        look_again(dev, bo);
    }
    dev.destroyer.accept(client, begun, nodes);
    if manner.synchronous {
        // Of a device that is lost it may be kept.
        let _ = dev.wait_for_resets();
        dev.reap();
    }
    Ok(())
}

/// Begins to destroy `objects`, which are [claimed](claim) and whose handles are gone, from the
/// last one on, and takes those out. `ENOMEM`: then some are left.
pub(crate) fn begin(dev: &SkuaDevice, client: &Arc<Quota>, objects: &mut KVVec<BoRef>) -> Result {
    const MANNER: Manner = Manner {
        assume_not_in_use: false,
        synchronous: false,
    };
    let nodes = dying_nodes()?;
    let mut begun = KVVec::with_capacity(objects.len(), client_flags())?;
    let mut users = Users::new();
    let mut result = Ok(());
    while let Some(bo) = objects.last() {
        match mark_one(dev, client, bo, MANNER, &mut users) {
            Ok(one) => crate::warn_on_once!(begun.push_within_capacity(one).is_err()),
            Err(error) => {
                result = Err(error);
                break;
            }
        };
        // Work that comes now does not have it brought back.
        look_again(dev, bo);
        objects.pop();
    }
    dev.destroyer.accept(client, begun, nodes);
    result
}

/// Destroys an object of the driver's own, which GEM has no handle of, for whom `client` is the
/// quota of address spaces, and which nothing uses but moves and what `waits` are for; in a worker.
/// `ENOMEM`: then it goes with its address space.
pub(crate) fn destroy_own(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    bo: &BoRef,
    mut waits: Few<Fence>,
) -> Result {
    let nodes = dying_nodes()?;
    let mut begun = KVVec::with_capacity(1, client_flags())?;
    {
        let reserved = resv::lock_uninterruptible(&**bo)?;
        bo.mark_dying();
        if let Some(fence) = bo::own_work(bo, &reserved)? {
            waits.push(fence)?;
        }
    }
    let one = Destruction::new(dev, client, bo, waits)?;
    if one.gate.is_open() {
        // With others.
        dev.destroyer.defer(one);
    } else {
        crate::warn_on_once!(begun.push_within_capacity(one).is_err());
        dev.destroyer.accept(client, begun, nodes);
    }
    Ok(())
}

/// Marks all of `handles`, or none; what is to be done with each.
fn mark_all(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    handles: &[(u32, BoRef)],
    manner: Manner,
) -> Result<KVVec<ListArc<Destruction>>> {
    let mut begun = KVVec::with_capacity(handles.len(), client_flags())?;
    let mut users = Users::new();
    for (count, (_, bo)) in handles.iter().enumerate() {
        let one = match claim(bo) {
            true => mark_one(dev, client, bo, manner, &mut users)
                .and_then(|one| begun.push(one, client_flags()).map_err(Error::from))
                .inspect_err(|_| bo.unclaim()),
            false => Err(ENOENT),
        };
        if let Err(error) = one {
            unmark_all(dev, handles.get(..count).unwrap_or_default());
            return Err(error);
        }
    }
    Ok(begun)
}

/// Takes [`mark_all`] back.
fn unmark_all(dev: &SkuaDevice, handles: &[(u32, BoRef)]) {
    for (_, bo) in handles {
        // In this order: who claims it next marks it anew.
        bo.unmark_dying();
        bo.unclaim();
        look_again(dev, bo);
    }
}

/// Has `bo` be destroyed by nobody else, until [`BoData::unclaim`](bo::BoData::unclaim), unless
/// others have it, too. Whether it could be.
pub(crate) fn claim(bo: &BoRef) -> bool {
    gem::is_foreign(&**bo) || bo.claim()
}

fn mark_one(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    bo: &BoRef,
    manner: Manner,
    users: &mut Users,
) -> Result<ListArc<Destruction>> {
    {
        let _reserved = resv::lock(&**bo)?;
        // What others have, too, goes on.
        if !gem::is_foreign(&**bo) {
            bo.mark_dying();
        }
    }
    // Who returns at the end has waited for the client's work.
    let alone = manner.assume_not_in_use || manner.synchronous;
    let begun = waits(dev, client, bo, alone, users)
        .and_then(|waits| Destruction::new(dev, client, bo, waits));
    if begun.is_err() {
        bo.unmark_dying();
        look_again(dev, bo);
    }
    begun
}

/// What the destruction of `bo` waits for: the driver's own work with it, unless others have it,
/// too; and, but if it is `alone`, what was submitted in the client's address spaces that use it.
fn waits(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    bo: &BoRef,
    alone: bool,
    users: &mut Users,
) -> Result<Few<Fence>> {
    let mut waits = Few::Empty;
    {
        let reserved = resv::lock(&**bo)?;
        // Others' would be among the rest.
        if !gem::is_foreign(&**bo) {
            if let Some(fence) = bo::own_work(bo, &reserved)? {
                waits.push(fence)?;
            }
        }
    }
    if !alone {
        for_each_user(dev, bo, |vm| {
            if vm.is_of(client) {
                if let Some(fence) = users.work_of(vm)? {
                    waits.push(fence)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(waits)
}

/// What was submitted in address spaces, looked at once for each in a call.
struct Users(KVVec<(Asid, Option<Fence>)>);

impl Users {
    const fn new() -> Self {
        Self(KVVec::new())
    }

    /// A fence for all that was submitted in `vm` when it was looked at first. `ENOMEM`; `EINTR` if
    /// a signal arrives.
    fn work_of(&mut self, vm: &Vm) -> Result<Option<Fence>> {
        if let Some((_, work)) = self.0.iter().find(|(asid, _)| *asid == vm.asid()) {
            return Ok(work.clone());
        }
        let work = vm.reservation().lock()?.singleton(Usage::Bookkeep)?;
        self.0.push((vm.asid(), work.clone()), client_flags())?;
        Ok(work)
    }
}
