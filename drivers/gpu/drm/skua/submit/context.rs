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
//! Locks: `order`, a mutex, by which [`Context::submit`] has submissions be published and queued in
//! one order; `pending`, a spin lock, for the queue and the status. Nobody else sees these: the
//! engine asks what is [`Due`].

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
            self,
            Holder,
            Holds,
            MAX_REQUESTS, //
        },
        monitored::{
            End,
            Promise,
            Target,
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
            Bo,
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
        residency,
        save_areas,
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
            Built,
            ContextPage,
            Miniport,
            Stop,
            Task, //
        },
        paging::MultipassOffset,
        parked::Parked,
        scheduler::{
            InProcess,
            Level,
            Limits,
            Turn, //
        },
        watchdog::Spent, //
    },
    quota::{
        count_out,
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
        deferral::Deferral,
        packet::{
            Packet,
            IN_FLIGHT, //
        },
        recovery,
        submission::{
            self,
            Attempt,
            Buffer,
            Submission, //
        }, //
    },
};
use core::{
    mem::take,
    ptr, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        List,
        ListArc,
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
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

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
    /// `DRM_SKUA_CONTEXT_*`.
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

/// What is to be done about a context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing, or not before something happens that leads here again.
    Nothing,
    /// Its first submission can start: it wants its turn.
    Turn,
    /// Its first submission can start when it has been prepared, or its gate is to be armed.
    Preparation,
    /// Its first submission is to be cancelled, and nothing of the context is in the ring.
    Drain,
}

/// Submissions that have not started, or not all.
struct Pending {
    /// In order of submission; the first one may have portions in the ring.
    queue: List<Submission>,
    /// How many are in `queue`; of a client's context at most [`MAX_REQUESTS`].
    len: u32,
    /// Where the next portion of the first one begins: what is before it left for the ring.
    started: MultipassOffset,
    /// Buffers that left for the ring before that, modulo 2^32.
    number: u32,
    /// Packets of the context that are in the ring.
    running: u32,
    /// Whether more submissions are accepted; changes once at most.
    status: Status,
    /// Whether the context is a client's, whose work is cancelled if what it waits for failed.
    is_client: bool,
    /// How important its work is.
    level: Level,
    /// What its client says of that, whose class moves it.
    own_level: Level,
    /// How important it is to its client.
    in_process: InProcess,
    /// What is left of its turn on the engine.
    turn: Turn,
    /// Ticks of the context that `turn` knows of.
    charged: u64,
    /// Whether the next portion is in the save area, as far as it got.
    saved: bool,
    /// What the next portion has used of the engine so far.
    spent: Spent,
    /// Since when the next portion waits for a value.
    parked: Option<Parked>,
}

/// What became of a packet that an engine has withdrawn.
pub(crate) struct Withdrawn {
    /// Where the engine was.
    pub(crate) stop: Stop,
    /// What the packet has used of the engine, if it was at the ring's head; more than ticks if
    /// time was measured.
    pub(crate) used: Option<Spent>,
    /// The time in milliseconds of any clock.
    pub(crate) now_ms: u64,
}

/// A client's side of a context.
struct Client {
    /// The address space that the context's buffers are in.
    vm: VmUse,
    /// The context's place in the table of descriptors, its own until it is freed.
    slot: ContextSlot,
    /// Who asked for it.
    process: Process,
    /// What the context adds to what its client used of the engine.
    account: Account,
    /// That it counts as one of its client's and its user's.
    _place: Share,
}

/// What an engine has of a context when it does not hold it.
struct Area {
    /// The context allocation; none if the device has none.
    bo: Option<BoRef>,
    /// Whether an engine has saved something there since it was last to come to VRAM.
    was_saved: Atomic<bool>,
    /// From the end of the context until it is given up, if that is in VRAM: who needs room waits.
    ending: SetOnce<UnderWay>,
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
    /// Submissions that ended, with or without error.
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
        let client = Client {
            vm: in_use,
            slot,
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
                pending <- new_spinlock!(Pending {
                    queue: List::new(),
                    len: 0,
                    started: MultipassOffset::default(),
                    number: 0,
                    running: 0,
                    status: Status::Active,
                    is_client,
                    level,
                    own_level: Level::NORMAL,
                    in_process: InProcess::default(),
                    turn: Turn::default(),
                    charged: 0,
                    saved: false,
                    spent: Spent::default(),
                    parked: None,
                }),
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

    /// Changes that, for what is started from now on.
    pub(crate) fn set_level(&self, level: Level) {
        self.pending.lock().level = level;
    }

    /// What its client says of that; at first normal.
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

    /// Changes that. Called by the engine, under its lock.
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

    /// Gives that to `other`, and takes what that has. Called by the engine, under its lock.
    pub(crate) fn lend_turn(&self, other: &Self) {
        let (mut own, mut others) = (self.turn(), other.turn());
        own.lend(&mut others);
        self.pending.lock().turn = own;
        other.pending.lock().turn = others;
    }

    /// The turns of all contexts of its level are over: its next one begins, after `rounds`. Called
    /// by the engine, under its lock.
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

    /// Whether its save area has the state of a packet that was preempted.
    pub(crate) fn is_saved(&self) -> bool {
        let saved = || {
            let shared = self.dev.hw.shared().ok()?;
            shared.is_saved(self.slot()?).ok()
        };
        saved().unwrap_or(false)
    }

    /// The engine that works for it.
    pub(crate) fn engine(&self) -> EngineIndex {
        self.engine
    }

    /// Its address space; the driver's own has none.
    pub(crate) fn vm(&self) -> Option<&Arc<Vm>> {
        self.client.as_ref().map(|client| client.vm.vm())
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

    /// Sees to it that it has a save area, before its first packet of commands; and that one which
    /// is used comes to VRAM, where that disturbs nobody. Errors as of [`save_areas::create`].
    pub(crate) fn prepare_saving(&self, parent: &Device<Bound>) -> Result {
        let Some(client) = &self.client else {
            return Ok(());
        };
        if let Some(area) = self.area.as_ref() {
            if let (Some(bo), true) = (&area.bo, area.was_saved.load(Relaxed)) {
                // Tried once.
                area.was_saved.store(false, Relaxed);
                residency::come_back(&self.dev, parent, bo, false);
            }
            return Ok(());
        }
        let _saving = self.saving.lock();
        if self.area.as_ref().is_some() {
            return Ok(());
        }
        let vm = client.vm.vm();
        let quota = vm.system_quota(parent)?;
        let made = save_areas::create(&self.dev, parent, vm, &quota)?;
        if let Some((_, place)) = &made {
            let shared = self.dev.hw.shared()?;
            shared.set_save_area(client.slot, *place)?;
        }
        self.area.populate(Area {
            bo: made.map(|(bo, _)| bo),
            was_saved: Atomic::new(false),
            ending: SetOnce::new(),
        });
        Ok(())
    }

    /// The object of its context allocation; none before its first SUBMIT.
    fn saved_in(&self) -> Option<&BoRef> {
        self.area.as_ref()?.bo.as_ref()
    }

    /// Whether `bo` is its context allocation.
    pub(crate) fn is_saved_in(&self, bo: &Bo) -> bool {
        self.saved_in().is_some_and(|own| ptr::eq(&**own, bo))
    }

    /// Counts that a buffer of it enters a hardware queue if a context allocation that it uses is
    /// not where the GPU reaches it (row 2.08).
    pub(crate) fn expect_areas(&self) {
        let is_absent = self.saved_in().is_some_and(|bo| bo.is_absent());
        if is_absent || self.vm().is_some_and(|vm| vm.has_absent()) {
            self.dev.counters.context_not_resident.fetch_add(1, Relaxed);
        }
    }

    /// What it is given to do from now on waits for `fence`, of a move of its context allocation.
    /// The caller has locked the reservation of its address space. Allocates nothing.
    pub(crate) fn area_moves(&self, fence: &Fence) {
        let old = self.area_move.lock().replace(fence.clone());
        // Not under the lock.
        drop(old);
    }

    /// Whether its engine holds it: works for it, or did last.
    pub(crate) fn is_held(&self) -> bool {
        self.slot().is_some() && self.dev.hw.held(self.engine) == Ok(self.slot())
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
    /// [`hold::submit`].
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
        // Whoever moves what is mapped sees that it is used.
        let (mut users, _turn) = match self.vm() {
            Some(vm) if work.uses_memory() => {
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
        if self.check(most)? == 0 {
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
                refused.finish(&self.dev, self.engine, Err(ECANCELED));
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

    /// Puts a published submission at the end of the queue. Called by the engine, under its lock.
    pub(crate) fn push(&self, submission: ListArc<Submission>) -> Due {
        let mut pending = self.pending.lock();
        pending.queue.push_back(submission);
        // No wrap: see `MAX_REQUESTS`.
        pending.len = pending.len.wrapping_add(1);
        pending.due()
    }

    /// The next portion for the ring, which is not in the ring yet, if there is one and `build`
    /// takes it; and what the context is due for then. Called by the engine, under its lock. An
    /// error of `build`, and nothing has changed.
    pub(crate) fn next(
        &self,
        build: impl FnOnce(Task<'_>) -> Option<Result<Built>>,
    ) -> Result<(Option<Packet>, Due)> {
        let mut pending = self.pending.lock();
        let due = pending.due();
        if due != Due::Turn {
            return Ok((None, due));
        }
        let from = pending.started;
        let Some(submission) = pending.first() else {
            return Ok((None, due));
        };
        // What else uses the memory, it has waited for.
        let mut attempt = Attempt {
            idle: pending.running == 0,
            number: pending.number,
            resume: pending.saved,
            again: false,
        };
        let task = submission.task(from, attempt);
        let is_buffer = matches!(task, Task::Virtual { .. });
        let Some(built) = build(task) else {
            return Ok((None, due));
        };
        let built = built?;
        if built == Built::Busy {
            // When what is in the ring is over, it leads here again.
            return Ok((None, Due::Nothing));
        }
        // Row 2.08.
        if is_buffer {
            self.expect_areas();
        }
        let next = submission.after(from, built);
        match next {
            Some(next) => pending.started = next,
            None => _ = pending.pop(),
        }
        if is_buffer {
            pending.number = pending.number.wrapping_add(1);
        }
        // The driver's own comes from here again when the adapter was reset, and begins anew.
        attempt.again = submission.give(from.piece) && pending.is_client;
        pending.running = pending.running.saturating_add(1);
        pending.saved = false;
        let spent = take(&mut pending.spent);
        let others = pending.len > u32::from(next.is_some());
        let followed = others || submission.buffers_after(from) > IN_FLIGHT / 2;
        let packet = Packet {
            submission,
            from,
            attempt,
            is_last: next.is_none(),
            followed,
            is_long: false,
            level: pending.level,
            protected: pending.turn.is_protected(),
            spent,
        };
        Ok((Some(packet), pending.due()))
    }

    /// Takes back a packet that is out of the ring and is not done: its portion is the next one.
    /// Of several the last one first. What is to be done about the context then. Called by the
    /// engine, under its lock and in its `turn`.
    pub(crate) fn withdraw(&self, packet: Packet, how: Withdrawn, limits: &Limits) -> Due {
        let saved = how.stop != Stop::Between || (packet.attempt.resume && self.is_saved());
        if let (Some(area), true) = (self.area.as_ref(), how.stop != Stop::Between) {
            area.was_saved.store(true, Relaxed);
        }
        let mut pending = self.pending.lock();
        pending.saved = saved;
        pending.spent = packet.spent;
        if let Some(used) = how.used {
            pending.turn.preempted(used.ticks, limits);
            let spent = &mut pending.spent;
            spent.ms = spent.ms.saturating_add(used.ms);
            spent.ticks = spent.ticks.saturating_add(used.ticks);
        }
        match how.stop {
            // What waits does so out of the ring as well.
            Stop::Waiting => {
                // What has worked since waits for another value.
                let has_worked =
                    packet.attempt.resume && how.used.is_some_and(|used| used.ticks > 0);
                let parked = pending.parked.filter(|_| !has_worked);
                let parked = Parked {
                    since_ms: parked.map_or(how.now_ms, |parked| parked.since_ms),
                    seen_ms: how.now_ms,
                };
                pending.spent.waited_ms = parked.waited_ms();
                pending.parked = Some(parked);
            }
            Stop::Within => {
                pending.spent.waited_ms = 0;
                pending.parked = None;
            }
            // It was not tried.
            Stop::Between => (),
        }
        count_out(&mut pending.running, 1);
        // If it is in the queue, it is the first: it has portions that were not started.
        if let Ok(submission) = ListArc::try_from_arc(packet.submission) {
            pending.queue.push_front(submission);
            pending.len = pending.len.saturating_add(1);
        }
        pending.started = packet.from;
        pending.number = packet.attempt.number;
        pending.due()
    }

    /// The adapter was reset: what its save area has is nothing any more. Called by the engine,
    /// under its lock.
    pub(crate) fn forget_saved(&self) {
        self.pending.lock().saved = false;
    }

    /// The adapter was reset, and nothing of it is in the ring: its first submission, a part of
    /// which may be done, begins anew.
    pub(crate) fn begin_anew(&self) {
        self.pending.lock().started = MultipassOffset::default();
    }

    /// How important its next portion is, and since when that waits for a value.
    pub(crate) fn parked(&self) -> (Level, Parked) {
        let pending = self.pending.lock();
        (pending.level, pending.parked.unwrap_or_default())
    }

    /// Counts a packet out of the ring; what is to be done about the context then. Called by the
    /// engine, under its lock.
    pub(crate) fn retire(&self) -> Due {
        let mut pending = self.pending.lock();
        pending.parked = None;
        count_out(&mut pending.running, 1);
        pending.due()
    }

    /// What is to be done about the context at this moment.
    pub(crate) fn due(&self) -> Due {
        self.pending.lock().due()
    }

    /// Prepares the first submission as long as it is due for that. Process context, no locks held;
    /// allocates nothing.
    pub(crate) fn prepare(&self) {
        loop {
            let first = {
                let mut pending = self.pending.lock();
                match pending.due() {
                    Due::Preparation => pending.first(),
                    _ => None,
                }
            };
            let Some(submission) = first else {
                return;
            };
            match submission.gate().is_open() {
                true => submission.prepare(),
                false => submission.gate().arm(),
            }
            self.dev.reapers.submissions.bury(submission);
        }
    }

    /// Takes the first submission out of the queue if it is to be cancelled now, with `error`;
    /// `lost`: because the device is lost.
    pub(crate) fn pop_cancelled(&self, lost: bool, error: Error) -> Option<Arc<Submission>> {
        let mut pending = self.pending.lock();
        if pending.due() != Due::Drain && !(lost && pending.running == 0) {
            return None;
        }
        let submission = pending.pop()?;
        // Before anybody looks at the next one, which may wait for it.
        submission.refuse(error);
        Some(submission)
    }

    /// Takes no more work, for the reason `status`; the first reason counts.
    pub(crate) fn mark(self: &Arc<Self>, status: Status) {
        {
            let mut pending = self.pending.lock();
            if pending.status == Status::Active {
                pending.status = status;
            }
        }
        // What is held is cancelled.
        if !self.is_system() {
            Self::look_again(self.clone());
        }
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

impl Pending {
    /// A reference to the first submission, which stays in the queue.
    fn first(&mut self) -> Option<Arc<Submission>> {
        let mut cursor = self.queue.cursor_front();
        let first = cursor.peek_next()?;
        Some(first.arc().into())
    }

    /// Takes the first submission out.
    fn pop(&mut self) -> Option<Arc<Submission>> {
        let first = self.queue.pop_front()?;
        count_out(&mut self.len, 1);
        self.started = MultipassOffset::default();
        Some(first.into_arc())
    }

    /// What is to be done about the context, by its status, its first submission and the ring.
    fn due(&mut self) -> Due {
        let (status, running, started) = (self.status, self.running, self.started);
        let mut cursor = self.queue.cursor_front();
        let Some(first) = cursor.peek_next() else {
            return Due::Nothing;
        };
        let cancelled = match status {
            Status::Active if !first.gate().is_open() => {
                return match first.gate().is_armed() {
                    true => Due::Nothing,
                    false => Due::Preparation,
                }
            }
            // The driver's own goes on all the same: what it waits for is over, however it ended.
            Status::Active => {
                started == MultipassOffset::default() && self.is_client && first.is_in_vain()
            }
            // Others wait for it.
            _ if first.is_switch() => false,
            // What made room in its midst is left to end, as what runs is.
            Status::Destroyed => !self.saved,
            _ => true,
        };
        match (cancelled, running) {
            (false, _) if !first.is_prepared() => Due::Preparation,
            (false, _) => Due::Turn,
            (true, 0) => Due::Drain,
            // Not before what is in the ring.
            (true, _) => Due::Nothing,
        }
    }
}

impl Wake for Context {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = crate::gpu::QUEUE.enqueue::<_, 0>(this.clone());
    }
}

/// What a client wants to be done.
pub(crate) struct Request {
    /// Commands in memory, which run one after the other.
    pub(crate) buffers: Few<Buffer>,
    /// Fences that the buffers wait for.
    pub(crate) waits: Few<Fence>,
    /// What is signalled when the last buffer is done.
    pub(crate) signals: Signals,
}

impl Holder for Context {
    type Request = Request;
    type Deferred = Deferral;

    fn device(&self) -> &SkuaDevice {
        &self.dev
    }

    fn client(&self) -> Option<&Arc<Quota>> {
        self.vm().map(|vm| vm.client())
    }

    fn holds(&self) -> &Holds<Self> {
        &self.holds
    }

    fn queued(&self) -> u32 {
        self.pending.lock().len
    }

    fn is_active(&self) -> bool {
        self.status() == Status::Active
    }

    fn submit(
        this: &Arc<Self>,
        request: &mut Request,
        values: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result {
        let Request {
            buffers,
            waits,
            signals,
        } = request;
        let (buffers, waits, most) = match held {
            Some(_) => (buffers.try_clone()?, waits.try_clone()?, UNLIMITED),
            None => (take(buffers), take(waits), MAX_REQUESTS),
        };
        this.submit(buffers, waits, most, signals, values, held)
    }

    fn fail(this: &Arc<Self>, _error: Error) -> Error {
        recovery::fail(this, Status::Lost);
        ECANCELED
    }

    fn perform(deferred: Deferral) -> Option<Deferral> {
        deferred.perform()
    }

    fn cancelled(&self, request: &Request) {
        if let Ok(engine) = self.dev.engine(self.engine) {
            engine.cancel(&self.dev, self, request.buffers.iter());
        }
    }

    fn signals(request: &mut Request) -> &mut Signals {
        &mut request.signals
    }

    /// Nobody is told of what the client has cancelled itself.
    fn ended(&self, result: Result) -> End {
        self.finished.fetch_add(1, Relaxed);
        match result {
            Ok(()) => End::Done,
            Err(ECANCELED) if self.status() == Status::Destroyed => End::Withdrawn,
            Err(_) => End::Failed,
        }
    }

    fn look_again(this: Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        if let Err(context) = hold::QUEUE.enqueue::<_, 1>(this) {
            Self::bury(context);
        }
    }

    fn bury(this: Arc<Self>) {
        let dev = this.dev.clone();
        dev.reapers.contexts.bury(this);
    }
}

impl Target for Context {
    fn wake(self: Arc<Self>, _index: u32, _reached: bool) {
        Self::look_again(self);
    }
}

impl WorkItem<1> for Context {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        hold::run(this);
    }
}

impl WorkItem for Context {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let dev = this.dev.clone();
        if let Ok(engine) = dev.engine(this.engine) {
            engine.look_at(&dev, &this);
        }
        dev.reapers.contexts.bury(this);
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
