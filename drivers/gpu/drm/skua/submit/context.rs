// SPDX-License-Identifier: GPL-2.0

//! A context: one line of work on one engine, of a client or of the driver itself.
//!
//! Submissions of a context run in the order in which they were made; a client's in its address
//! space, the driver's in that of the paging process. The context's queue holds what is not in the
//! ring yet; only its first submission can start, once its gate is open, portion by portion, with
//! others' work between them (row 2.17). The engine ([`crate::submit::engine`]) takes contexts
//! whose first submission is ready in turn.
//!
//! A context is active until its work faults or is cut by the watchdog, the adapter is reset, its
//! client's device fails, the GPU is lost, or userspace destroys it; then its queue is cancelled
//! and it takes no more. Other contexts do not notice. Fences of a context signal in order all the
//! same (but those of moves, which are each of a line of its own): what is cancelled waits until
//! nothing of the context is in the ring.
//!
//! Lock: `order`, a mutex, by which [`Context::submit`] has submissions be published and queued in
//! one order. Those of its [queue](pending), its save [area], what it [holds](requests), and what
//! [binds](updates), are said there. Nobody else sees any of them: the engine asks what is
//! [due](pending::Due).

use crate::{
    ext::{
        fence::{
            Fence,
            FenceContext,
            FenceMemory,
            Signalling, //
        },
        resv,
        trace,
        uapi,
        wedged::Process, //
    },
    fences::{
        gate::Wake,
        hold::{
            Holder,
            Holds, //
        },
        monitored::{
            End,
            Promise,
            Wait, //
        },
        signals::Signals, //
    },
    few::Few,
    gpu::{
        Mover,
        SkuaDevice, //
    },
    memory::{
        bo::{
            BoRef,
            Memory,
            REGION_VRAM, //
        },
        clearer::FreeBlocks,
        destruction,
        moves::{
            Transfer,
            UnderWay, //
        },
        paging_in,
        vm::{
            Vm,
            VmUse, //
        },
        vram::{
            BlockList,
            VramRange, //
        }, //
    },
    policy::{
        miniport::{
            ContextPage,
            Miniport, //
        },
        scheduler::{
            InProcess,
            Level,
            Limits,
            Turn, //
        }, //
    },
    quota::{
        Quota,
        Share, //
    },
    reaper::Reapable,
    spec::{
        fault::Record,
        number::{
            ContextSlot,
            EngineIndex, //
        }, //
    },
    submit::{
        busy::{
            Account,
            Usage, //
        },
        context::{
            area::Area,
            pending::Pending,
            updates::Updates, //
        },
        submission::{
            self,
            Buffer,
            Submission, //
        }, //
    },
};
use kernel::{
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        ListLinks,
        TryNewListArc, //
    },
    new_mutex,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        SetOnce,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::Work, //
};

mod area;
pub(super) mod pending;
pub(crate) mod requests;
pub(crate) mod updates;

/// No limit for what is bounded otherwise: the driver's own work by the memory that it is about,
/// what was held by the place that it has had (preempted work comes back to the queue, so there may
/// be more).
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// Whether a context takes work, and if not, why.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Status {
    /// Submissions are accepted.
    Active,
    /// Its work faulted, with this record.
    Faulted(Record),
    /// Its work was cut by the watchdog.
    TimedOut,
    /// The device is lost, or the client's device that it is of failed.
    Lost,
    /// The adapter was reset.
    Reset,
    /// Userspace destroyed it.
    Destroyed,
}

impl Status {
    /// The uAPI's number for it, `DRM_SKUA_CONTEXT_*`; one that userspace destroyed has no handle
    /// to ask by.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Active | Self::Destroyed => uapi::DRM_SKUA_CONTEXT_ACTIVE,
            Self::Faulted(_) => uapi::DRM_SKUA_CONTEXT_FAULTED,
            Self::TimedOut => uapi::DRM_SKUA_CONTEXT_TIMED_OUT,
            Self::Lost => uapi::DRM_SKUA_CONTEXT_LOST,
            Self::Reset => uapi::DRM_SKUA_CONTEXT_RESET,
        }
    }
}

/// A client's side of a context.
struct Client {
    /// The address space that the context's buffers are in.
    vm: VmUse,
    /// The context's place in the table of descriptors, its own until it is freed.
    slot: ContextSlot,
    /// Who created the context: userspace is told when its work is cut.
    process: Process,
    /// Binds that the client has be held in the context's order.
    updates: Arc<Updates>,
    /// What the context adds to what its client used of the engine.
    account: Account,
    /// Its share of the quotas of contexts.
    _place: Share,
}

/// A line of work. Userspace's handle holds it, and each of its submissions.
#[pin_data(PinnedDrop)]
pub(crate) struct Context {
    /// The device that works for it.
    dev: ARef<SkuaDevice>,
    /// The engine that works for it; never another one.
    engine: EngineIndex,
    /// What a client's context has besides; [`None`] for the driver's own.
    client: Option<Client>,
    /// The line of its submissions' fences.
    fences: FenceContext,
    /// Submissions that ended, with or without error, but for switches.
    finished: Atomic<u64>,
    /// Held from giving a submission its fence until it is in the queue.
    #[pin]
    order: Mutex<()>,
    /// Held by an ioctl that submits for the first time, while it sees to the area.
    #[pin]
    saving: Mutex<()>,
    /// Where it is saved to, from the first submission of commands on.
    area: SetOnce<Area>,
    /// The last move of that, over or not.
    #[pin]
    area_move: SpinLock<Option<Fence>>,
    /// What is not in the ring yet. Taken inside the engine's lock, or alone.
    #[pin]
    pending: SpinLock<Pending>,
    /// What is held, and so not in `pending` yet.
    #[pin]
    holds: Holds<Self>,
    /// Looks at what is held, in a worker.
    #[pin]
    hold_work: Work<Self, 1>,
    /// Looks at the context, in a worker.
    #[pin]
    work: Work<Self>,
    /// Whether it is in its engine's ready list, or with the reaper.
    #[pin]
    listed: AtomicTracker,
    /// The context's place in its engine's list of those that have work.
    #[pin]
    links: ListLinks,
}

impl_has_work! {
    impl HasWork<Self> for Context { self.work }
    impl HasWork<Self, 1> for Context { self.hold_work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Context { tracked_by listed: AtomicTracker; }
}

impl_list_item! {
    impl ListItem<0> for Context { using ListLinks { self.links }; }
}

impl Reapable for Context {}

impl Context {
    /// Makes a client's context on engine number `engine` and adds it to the device's table of
    /// contexts.
    ///
    /// `EINVAL` for an engine that does not exist; `ENOSPC` if there are too many contexts;
    /// `ENOENT` if the handle of `vm` is gone; `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        vm: &Arc<Vm>,
        engine: EngineIndex,
        level: Level,
        usage: &Arc<Usage>,
        place: Share,
    ) -> Result<Arc<Self>> {
        let name = dev.engine(engine)?.name();
        let in_use = VmUse::new(vm)?;
        let slot = dev.contexts.reserve()?;
        let updates = Updates::new(vm, slot).inspect_err(|_| dev.contexts.release(slot))?;
        let client = Client {
            vm: in_use,
            slot,
            updates,
            process: Process::current(),
            account: Account::new(usage, engine),
            _place: place,
        };
        let fences = FenceContext::new(c"skua", name);
        let made = dev
            .hw
            .set_root_page_table(slot, vm.root(), vm.asid())
            .and_then(|()| Self::make(dev, engine, fences, level, Some(client)));
        match &made {
            Ok(context) => {
                dev.contexts.fill(slot, context.clone());
                // A device that is lost looks at the table once: before this, or it is seen here.
                if dev.check_health().is_err() {
                    context.mark(Status::Lost);
                }
            }
            Err(_) => dev.contexts.release(slot),
        }
        made
    }

    /// Makes the driver's own context for paging on engine number `engine`. `ENOMEM`.
    pub(crate) fn new_system(dev: &SkuaDevice, engine: EngineIndex) -> Result<Arc<Self>> {
        let fences = FenceContext::new(c"skua", c"paging");
        Self::make(dev, engine, fences, Level::SYSTEM, None)
    }

    fn make(
        dev: &SkuaDevice,
        engine: EngineIndex,
        fences: FenceContext,
        level: Level,
        client: Option<Client>,
    ) -> Result<Arc<Self>> {
        let is_client = client.is_some();
        Arc::pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                engine,
                client,
                fences,
                finished: Atomic::new(0),
                order <- new_mutex!(()),
                saving <- new_mutex!(()),
                area: SetOnce::new(),
                area_move <- new_spinlock!(None),
                pending <- new_spinlock!(Pending::new(is_client, level)),
                holds <- Holds::new(),
                hold_work <- new_work!("Context::hold_work"),
                work <- new_work!("Context::work"),
                listed <- AtomicTracker::new(),
                links <- ListLinks::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The device that works for it.
    pub(crate) fn device(&self) -> &ARef<SkuaDevice> {
        &self.dev
    }

    /// Whether `fence` is of its submissions, which are done in order.
    pub(crate) fn is_own(&self, fence: &Fence) -> bool {
        fence.context() == self.fences.id()
    }

    /// Its place in the table of context descriptors; the driver's own has none.
    pub(crate) fn slot(&self) -> Option<ContextSlot> {
        Some(self.client.as_ref()?.slot)
    }

    /// The process that asked for it; none asked for the driver's own.
    pub(crate) fn process(&self) -> Option<Process> {
        Some(self.client.as_ref()?.process)
    }

    /// The number that the device and traces name it by, from 1; 0 is the driver's own.
    pub(crate) fn id(&self) -> u32 {
        self.slot().map_or(0, |slot| slot.get().saturating_add(1))
    }

    /// Whether it is the driver's own.
    pub(crate) fn is_system(&self) -> bool {
        self.client.is_none()
    }

    /// How important its work is.
    pub(crate) fn level(&self) -> Level {
        self.pending.lock().level
    }

    /// Changes [`Self::level`], for what is started from now on; what runs has used `ticks`, see
    /// [`Turn::moved`]. Called by the engine, under its lock.
    pub(crate) fn set_level(&self, level: Level, ticks: u64, crowded: u64, limits: &Limits) {
        let mut pending = self.pending.lock();
        pending.turn.moved(ticks, crowded, limits);
        pending.level = level;
    }

    /// What its client says of its level; at first normal.
    pub(crate) fn own_level(&self) -> Level {
        self.pending.lock().own_level
    }

    /// Says how important its client calls its work; the level stays.
    pub(crate) fn set_own_level(&self, level: Level) {
        self.pending.lock().own_level = level;
    }

    /// How important its work is to its client, among that of the same level.
    pub(crate) fn in_process(&self) -> InProcess {
        self.pending.lock().in_process
    }

    /// Changes [`Self::in_process`]. Called by the engine, under its lock.
    pub(crate) fn set_in_process(&self, in_process: InProcess) {
        self.pending.lock().in_process = in_process;
        if let Some(usage) = self.usage() {
            usage.rank();
        }
    }

    /// Whether its work is more important than that of `other` to the client that has both.
    pub(crate) fn outranks(&self, other: &Self) -> bool {
        let is_same = |usage: &Arc<Usage>| {
            usage.ranks() && other.usage().is_some_and(|other| Arc::ptr_eq(usage, other))
        };
        self.usage().is_some_and(is_same) && self.in_process() > other.in_process()
    }

    /// What is left of its turn on the engine.
    pub(crate) fn turn(&self) -> Turn {
        self.pending.lock().turn
    }

    /// Something of its client that outranks it wants its place; whether that gets it. Called by
    /// the engine, under its lock.
    pub(crate) fn is_passed(&self) -> bool {
        self.pending.lock().turn.is_passed()
    }

    /// Gives its turn to `other`, and takes that one's. Called by the engine, under its lock.
    pub(crate) fn lend_turn(&self, other: &Self) {
        let (mut own, mut others) = (self.turn(), other.turn());
        own.lend(&mut others);
        self.pending.lock().turn = own;
        other.pending.lock().turn = others;
    }

    /// `rounds` begin for it. Called by the engine, under its lock.
    pub(crate) fn renew_turn(&self, rounds: u64, limits: &Limits) {
        self.pending.lock().turn.renew(rounds, limits);
    }

    /// Takes what it used of the engine, at most `crowded` ticks of it while others had work, from
    /// its turn, and has its client's usage know of it; ticks. Called by the engine, under its
    /// lock.
    pub(crate) fn charge(&self, crowded: u64, limits: &Limits) -> u64 {
        let ticks = self.ticks();
        if let Some(client) = &self.client {
            client.account.settle(ticks);
        }
        let mut pending = self.pending.lock();
        let new = ticks.saturating_sub(pending.charged);
        pending.charged = ticks;
        pending.turn.charge(new, crowded, limits);
        new
    }

    /// The engine that works for it.
    pub(crate) fn engine(&self) -> EngineIndex {
        self.engine
    }

    /// Its address space; the driver's own has none.
    pub(crate) fn vm(&self) -> Option<&Arc<Vm>> {
        self.client.as_ref().map(|client| client.vm.vm())
    }

    /// Whether it works in `vm`.
    pub(crate) fn works_in(&self, vm: &Arc<Vm>) -> bool {
        self.vm().is_some_and(|of| Arc::ptr_eq(of, vm))
    }

    /// What binds are held in its order; none of the driver's own.
    pub(crate) fn updates(&self) -> Option<&Arc<Updates>> {
        self.client.as_ref().map(|client| &client.updates)
    }

    /// Whether it is of the client whose address spaces count in `quota`, and holds work.
    pub(crate) fn holds_work_of(&self, quota: &Arc<Quota>) -> bool {
        self.holds.len() > 0 && self.vm().is_some_and(|vm| vm.is_of(quota))
    }

    /// Whether it takes work, and if not, the first reason.
    pub(crate) fn status(&self) -> Status {
        self.pending.lock().status
    }

    /// Submissions that ended, with or without error.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Relaxed)
    }

    /// One more has ended.
    pub(crate) fn count_finished(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    /// Whether it has used its engine since that was last counted. Called under the engine's lock.
    pub(crate) fn has_worked(&self) -> bool {
        self.ticks() > self.pending.lock().charged
    }

    /// Engine time that it used so far, in ticks; 0 when the device is unbound.
    pub(crate) fn ticks(&self) -> u64 {
        let ticks = || {
            let shared = self.dev.hw.shared().ok()?;
            let (ticks, _) = shared.descriptor_usage(self.slot()?).ok()?;
            Some(ticks)
        };
        ticks().unwrap_or(0)
    }

    /// What its client used of the engines; none for the driver's own.
    pub(crate) fn usage(&self) -> Option<&Arc<Usage>> {
        Some(self.client.as_ref()?.account.usage())
    }

    /// Has its client's usage know of all ticks. Called under the engine's lock, or when nobody
    /// else has the context.
    pub(crate) fn settle(&self) {
        if let Some(client) = &self.client {
            client.account.settle(self.ticks());
        }
    }

    /// Has its engine leave it when all that it has queued, and will do, is over (row 2.07),
    /// whether or not it takes work; the fence of that, if there is anything to be done. `ENOMEM`;
    /// `ENODEV`.
    pub(crate) fn leave(self: &Arc<Self>) -> Result<Option<Fence>> {
        // What was accepted is in the queue.
        drop(self.order.lock());
        {
            let mut pending = self.pending.lock();
            let runs = pending.running > 0 || pending.saved;
            // What has not begun is cancelled then.
            let is_over = pending.len == 0 || pending.status != Status::Active;
            if is_over && !runs && !self.is_held() {
                return Ok(None);
            }
            let mut cursor = pending.queue.cursor_back();
            let last = cursor.peek_prev();
            if let Some(last) = last.filter(|last| last.arc().is_switch()) {
                let mut left = None;
                last.arc().with_fence(|fence| left = Some(fence.clone()));
                return Ok(left);
            }
        }
        let work = submission::Work::Switch;
        let submission = Submission::new(self, work, Few::Empty, Few::Empty)?;
        let memory = FenceMemory::new(GFP_KERNEL_ACCOUNT)?;
        let engine = self.dev.engine(self.engine)?;
        self.dev.check_health()?;
        let order = self.order.lock();
        let fence = self.fences.fence(memory);
        let left = fence.fence().clone();
        let signalling = Signalling::begin();
        trace::submit(&self.dev, self.engine.get(), self.id(), &left);
        submission.publish(fence, Few::Empty);
        crate::warn_on_once!(engine.submit(&self.dev, self, submission).is_some());
        drop(signalling);
        drop(order);
        Ok(Some(left))
    }

    /// Queues `buffers` to run after `waits`, and gives the fence to `signals`, and with it to who
    /// traces the `awaited` values, and since when it was `held` for them; a client's by
    /// [`hold::submit`](crate::fences::hold::submit).
    ///
    /// `ECANCELED` if the context is not active; `ENOSPC` if `most` submissions wait;
    /// `ENOMEM`, also if what it needs in VRAM does not get there; `EINTR` if a signal arrives.
    /// Nothing has changed then.
    pub(crate) fn submit(
        self: &Arc<Self>,
        buffers: Few<Buffer>,
        waits: Few<Fence>,
        most: u32,
        signals: &mut Signals,
        awaited: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result {
        self.queue(submission::Work::Buffers(buffers), waits, most, |fence| {
            let held_us = held.map_or(0, |since| since.elapsed().as_micros_ceil());
            let held_us = u64::try_from(held_us).unwrap_or(0);
            for (monitored, value) in awaited.iter().map(Wait::what) {
                trace::awaited(&self.dev, fence, monitored, value, held_us);
            }
            signals.publish(&self.dev, fence)
        })
    }

    /// Queues the clearing of the `dirty` blocks of `range`, which nobody uses yet, and gives the
    /// fence to `publish`. `ENOMEM`, `ENODEV`. Nothing has changed then.
    pub(crate) fn clear(
        self: &Arc<Self>,
        range: &Arc<VramRange>,
        dirty: BlockList,
        publish: impl FnOnce(&Fence),
    ) -> Result {
        self.queue(
            submission::Work::Clear(range.clone(), dirty),
            Few::Empty,
            UNLIMITED,
            unpromised(publish),
        )
    }

    /// Has free memory be cleared, now or not at all; with a fence of its own line, for which
    /// nobody waits. `EBUSY` if the engine has something to do; `ENOMEM`, `ENODEV`. The memory is
    /// dirty then, and on its way back.
    pub(crate) fn clear_free(self: &Arc<Self>, free: FreeBlocks) -> Result {
        let line = FenceContext::new(c"skua", c"clear");
        let work = submission::Work::ClearFree(free, line);
        self.queue(work, Few::Empty, UNLIMITED, unpromised(|_| ()))
    }

    /// Queues the initialisation of a context allocation in `memory`, whose first page is `page`,
    /// and gives the fence to `publish`. `ENOMEM`, `ENODEV`. Nothing has changed then.
    pub(crate) fn init_context_resource(
        self: &Arc<Self>,
        memory: Memory,
        page: ContextPage,
        publish: impl FnOnce(&Fence),
    ) -> Result {
        self.queue(
            submission::Work::InitContextResource {
                page,
                _memory: memory,
            },
            Few::Empty,
            UNLIMITED,
            unpromised(publish),
        )
    }

    /// Queues a copy after `waits`, whether or not these fail, and gives the fence to `publish`; a
    /// fence of its own line, since it signals when its turn comes, not the context's. `ENOMEM`,
    /// `ENODEV`. Nothing has changed then.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        transfer: Arc<Transfer>,
        waits: Few<Fence>,
        publish: impl FnOnce(&Fence),
    ) -> Result {
        let publish = unpromised(publish);
        self.queue(
            submission::Work::Transfer(transfer),
            waits,
            UNLIMITED,
            publish,
        )
    }

    fn queue(
        self: &Arc<Self>,
        work: submission::Work,
        mut waits: Few<Fence>,
        most: u32,
        publish: impl FnOnce(&Fence) -> Few<Promise>,
    ) -> Result {
        let uses_memory = work.uses_memory();
        // Whoever moves what is mapped sees that it is used.
        let (mut users, _turn) = match self.vm() {
            Some(vm) if uses_memory => {
                let (users, turn) = paging_in::lock(&self.dev, vm, || self.check(most).map(drop))?;
                (Some(users), turn)
            }
            Some(vm) => (Some(vm.reservation().lock()?), None),
            None => (None, None),
        };
        if let Some(users) = &users {
            // And this sees what is moving.
            if let Some(fence) = users.singleton(resv::Usage::Kernel)? {
                waits.push(fence)?;
            }
            let area_move = self.area_move.lock().clone();
            if let Some(fence) = area_move.filter(|fence| !fence.is_signaled()) {
                waits.push(fence)?;
            }
        }
        // What it waits for of this context itself, the context's order sees to.
        let mut before = Few::Empty;
        for fence in waits.iter().filter(|fence| self.is_own(fence)) {
            before.push(fence.clone())?;
        }
        waits.retain(|fence| !self.is_own(fence));
        let submission = Submission::new(self, work, waits, before)?;
        let memory = FenceMemory::new(GFP_KERNEL_ACCOUNT)?;
        let engine = self.dev.engine(self.engine)?;
        let mut room = match &mut users {
            Some(users) => Some(users.reserve(1)?),
            None => None,
        };
        if submission.is_quickly_prepared() && submission.gate().pending().is_none() {
            // In nobody's way, and no worker is needed for it. What fails now is the device's loss.
            submission.prepare();
        }
        let order = self.order.lock();
        let is_first = self.check(most)? == 0;
        if let Some(vm) = self.vm().filter(|_| uses_memory) {
            vm.last_use.count_work(&self.dev);
        }
        if is_first {
            // It is the first in the queue: no worker has to arm its gate.
            submission.gate().arm();
        }
        let fence = match &submission.line() {
            Some(line) => line.fence(memory),
            None => self.fences.fence(memory),
        };
        let signalling = Signalling::begin();
        if let Some(room) = &mut room {
            crate::warn_on_once!(room.add(fence.fence(), resv::Usage::Bookkeep).is_err());
        }
        let promises = publish(fence.fence());
        trace::submit(&self.dev, self.engine.get(), self.id(), fence.fence());
        trace::depend(&self.dev, fence.fence(), submission.gate().fences());
        let system = &self.dev.system;
        trace::memory(&self.dev, c"system", system.used(), system.limit());
        submission.publish(fence, promises);
        let refused = engine.submit(&self.dev, self, submission);
        let result = match refused {
            Some(refused) => {
                let refused = refused.into_arc();
                refused.finish(&self.dev, self.engine, Err(ECANCELED), End::Withdrawn);
                Err(EBUSY)
            }
            None => Ok(()),
        };
        drop(signalling);
        drop(order);
        result
    }

    /// How many submissions wait in its queue, if it takes one more now. `ECANCELED` or `ENODEV` if
    /// it is not active; `ENOSPC` if `most` wait.
    pub(crate) fn check(&self, most: u32) -> Result<u32> {
        let pending = self.pending.lock();
        if pending.status != Status::Active {
            // The driver's own takes no work when the device is lost, and only then.
            return Err(if self.is_system() { ENODEV } else { ECANCELED });
        }
        match pending.len < most {
            true => Ok(pending.len),
            false => Err(ENOSPC),
        }
    }

    /// Takes no more work, for the reason `status`; the first reason counts.
    pub(crate) fn mark(self: &Arc<Self>, status: Status) {
        let _ = self.mark_and(status, || ());
    }

    /// As [`Context::mark`], and its client's device has failed for the same reason: who sees the
    /// one sees the other. Whether it is the first reason.
    pub(crate) fn mark_failed(self: &Arc<Self>, status: Status) -> bool {
        self.mark_and(status, || {
            if let Some(vm) = self.vm() {
                // It may have failed before, with another context.
                let _ = vm.device().fail(status.code());
            }
        })
    }

    /// Takes no more work for the reason `status`, if it is the first one, which is returned; `and`
    /// is done before anybody sees that, with a spin lock held.
    fn mark_and(self: &Arc<Self>, status: Status, and: impl FnOnce()) -> bool {
        let is_first = {
            let mut pending = self.pending.lock();
            let is_first = pending.status == Status::Active;
            if is_first {
                and();
                pending.status = status;
            }
            is_first
        };
        // What is held is cancelled.
        if let Some(updates) = self.updates() {
            updates.end(self.status() != Status::Destroyed);
            Self::look_again(self.clone());
        }
        is_first
    }

    /// Userspace has no use for it any more: what has not started is cancelled, at once or when
    /// what is in the ring is over, by a worker.
    pub(crate) fn destroy(self: &Arc<Self>) {
        self.mark(Status::Destroyed);
        if let Some(slot) = self.slot() {
            // The caller has a reference, so this is not the last one.
            drop(self.dev.contexts.empty(slot));
        }
        let is_in_vram = |bo: &BoRef| bo.region() == REGION_VRAM;
        if let (Some(area), true) = (self.area.as_ref(), self.saved_in().is_some_and(is_in_vram)) {
            area.ending.populate(UnderWay::leaving(&self.dev));
        }
        // With `ENOMEM` the engine leaves it when it takes another context.
        _ = self.leave();
        Wake::wake(self);
    }
}

/// What publishes the fence of work that promises nothing else.
fn unpromised(publish: impl FnOnce(&Fence)) -> impl FnOnce(&Fence) -> Few<Promise> {
    |fence| {
        publish(fence);
        Few::Empty
    }
}

#[pinned_drop]
impl PinnedDrop for Context {
    fn drop(self: Pin<&mut Self>) {
        crate::warn_on_once!(Signalling::is_inside());
        self.settle();
        if let (Some(bo), Some(vm)) = (self.saved_in(), self.vm()) {
            // Without memory for that it goes with the address space.
            _ = destruction::destroy_own(&self.dev, vm.client(), bo, Few::Empty);
        }
        if let Some(slot) = self.slot() {
            self.dev.release_mover(Mover::SaveArea(slot));
            self.dev.contexts.release(slot);
        }
    }
}
