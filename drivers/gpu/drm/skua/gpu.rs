// SPDX-License-Identifier: GPL-2.0

//! The device: what all other parts share.
//!
//! [`Gpu`] is the data of the DRM device and lives as long as that, beyond unbind, while files are
//! open. What is tied to the bound device (registers, shared memory, DMA mappings) is revoked at
//! unbind, and every access says so by an error.
//!
//! # When the device fails
//!
//! A device that does not acknowledge in time, or reports what cannot be, is reset
//! ([`crate::submit::adapter_reset`]), and goes on.
//!
//! A device that is unplugged, or is not helped by that, is *lost* ([`Gpu::lose`]), once. Before
//! anything else it is made quiet: an adapter reset, and whether or not it acknowledges that, bus
//! mastering off, read back. Then engines take no more work, all contexts and address spaces finish
//! what they have with `ENODEV`, every fence signals. Ioctls fail with `ENODEV` (unplugged), or
//! those that need the device with `EIO` (not answering), until it is bound again.
//!
//! From the moment at which an acknowledgement is missing until the device was reset, or is quiet,
//! no memory that it may reach goes back to the system: [`crate::reaper`].
//!
//! # Locks, outermost first
//!
//! This is the one place where their order is written; what a room's head says of a lock is which
//! data it is for.
//!
//! ```text
//! mmap_lock
//! File::class                    mutex, allocates
//! File::devices, vms, contexts,  mutexes, allocate
//! fences, allocations
//! Context::saving                mutex, allocates; a context's first SUBMIT
//! the turn of Gpu::pager         waited for like a mutex, by who submits; held while room is made
//! Reached::map                   mutex, allocates; user memory is not touched under it; who
//!                                destroys objects only tries
//! reservation locks              wound/wait mutexes; a page fault only tries; user memory is not
//!                                touched under one
//! Context::order                 mutex, process context; never on the way to a signal
//! Context::holds, Vm::holds      mutexes; nothing is allocated under one, and nothing else taken
//!                                but spin locks
//! Gpu::host_aperture             mutex, allocates; CPU mappings are made and removed under it, and
//!                                its acknowledgements waited for
//! vram, gart, asids, Budgets,    mutexes; all but the last two allocate
//! Vm::owners, Users, the LRU's,
//! Pager
//! ---- below this line nothing is allocated: work that fences depend on takes these -------------
//! Engine::turn                   mutex; no ioctl takes it
//! Vm::installing                 mutex; VM_BIND, SUBMIT and who moves memory take it, too
//! PageTable::tables, Hardware's  mutexes
//! counts of flushes,
//! Watch::watchdogs
//! Engine::state                  spin locks, from here on
//! Destroyer::queues
//! Context::pending, Vm::binds, Vm::gone, Slots
//! Bind::end
//! Submission::fence, promises, Transfer, Move::fence, Destruction::given_up, Gpu::paging, alarms,
//! discarder, shrinker, last_clear, vram_region, Clearer, Sites, Evicted, Moves, Herald's,
//! Resets::policy
//! PendingResidency::operations, Retries::state
//! Claims::counts, a device's notice, Context::area_move, Gate::waiters, Operation::publisher
//! Gpu::fences, MonitoredFence::state, Pledge::state
//! Reaper::dead, fences::sleep::Sleeper::progress, DevresSet's state (rust/kernel/devres.rs)
//! locks of fences and work queues
//! ```
//!
//! When memory is short, whoever allocates may have objects give back pages
//! ([`crate::ext::shrinker`]): what is taken there is the list's mutex and reservation locks, both
//! only if they are free, and below them what removing CPU and DMA mappings takes.
//!
//! `drm_dev_enter()` ([`crate::ext::device::enter`]) may be entered anywhere. While somebody is
//! inside no DRM device is unplugged, so nobody waits for the GPU's work there, but
//!
//! - who makes room, for ten seconds at a time;
//! - a context's first submission for what the driver itself does, for ten seconds;
//! - a synchronous destruction, for one second;
//! - who waits for quick acknowledgements ([`Gpu::wait_for`]).
//!
//! Interrupt threads, the workers of [`QUEUE`] and of [`crate::memory::vm::QUEUE`], and the alarms
//! are on the way to fences' signals as a whole, and say so to lockdep: they allocate nothing, take
//! no reservation lock, and give references that may be the last to a reaper. But for the
//! [`Discarder`]'s, the [`Clearer`]'s and the [`Retries`]', for which no fence waits.

use crate::{
    ext::{
        bar::WcBar,
        device::{
            self,
            BusMaster, //
        },
        devres::DevresSet,
        dmem::Region,
        fence::{
            Fence,
            Signalling, //
        },
        lru::Lru,
        queue::ModuleQueue,
        shrinker::{
            Copies,
            Shrinker, //
        },
        trace, //
    },
    fences::{
        gate::Wake,
        monitored::Owners,
        retry::Retries, //
    },
    hardware::{
        caps::{
            Caps,
            GART_PAGES, //
        },
        miniport::Hardware,
        registers::Registers,
        shared::{
            MAX_CONTEXTS,
            PAGING_ASID, //
        }, //
    },
    herald::Herald,
    kernel_heap::KernelHeap,
    memory::{
        bo::{
            BoData,
            REGION_APERTURE,
            REGION_SYSTEM, //
        },
        clearer::Clearer,
        destruction::{
            Destroyer,
            Destruction, //
        },
        device::{
            Budgets,
            MAX_EXPLICIT, //
        },
        eviction,
        gart,
        host_aperture::{
            self,
            Window, //
        },
        moves::{
            Move,
            Moves, //
        },
        offer::Discarder,
        paging_in::Pager,
        pending_residency::PendingResidency,
        vm::{
            Bind,
            Reached,
            Vm, //
        },
        vram::{
            self,
            Pages,
            Part, //
        }, //
    },
    policy::{
        buddy::PageCount,
        id_slots::{
            IdError,
            IdSlots, //
        },
        miniport::{
            AdapterInfo,
            Miniport, //
        },
        paging::{
            self,
            PagingSpace, //
        },
        patience::Patience,
        priority::{
            Level,
            Offer, //
        },
        scheduler,
        scheduling_caps::{
            Refused,
            SchedulingCaps, //
        }, //
    },
    quota::Quota,
    reaper::{
        self,
        Cut,
        Quarantine,
        Reaper, //
    },
    slots::Slots,
    spec::{
        address::PAGE_SIZE,
        command::EngineKind,
        number::{
            Asid,
            ContextSlot,
            EngineIndex, //
        },
        status::Counter, //
    },
    submit::{
        adapter_reset::{
            Limits,
            Resets, //
        },
        context::{
            Context,
            Status, //
        },
        coredump::Failure,
        engine::Engine,
        power::Power,
        recovery::Alarms,
        submission::Submission, //
    },
    users::Users, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm,
    new_mutex,
    new_spinlock,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

/// What is registered with the kernel, of which rooms name the type alone.
pub(crate) use crate::driver::SkuaDriver;

/// The DRM device, whose data is a [`Gpu`].
pub(crate) type SkuaDevice<Ctx = drm::Normal> = drm::Device<SkuaDriver, Ctx>;

/// Address spaces that can exist at a time, the system's and the paging process' included.
const MAX_VMS: u32 = 1024;
/// How many turns there are in a second of nominal ticks.
const QUANTA_PER_SECOND: u64 = 5000;
/// Turns of others after which a context of any level has one.
const PATIENCE: u64 = 100;
/// How many milliseconds more an adapter reset may take for its VRAM, however large that is.
const MAX_VRAM_MS: i64 = 30_000;
/// How long an acknowledgement may be missing before the device is asked whether it is there.
const PRESENCE_TIMEOUT: Delta = Delta::from_millis(500);
/// How long a lost device may take to stop by itself before its bus mastering is turned off.
const QUIET_TIMEOUT: Delta = Delta::from_millis(1000);

/// Where contexts and moves are looked at when something that they wait for has happened.
/// It belongs to the module: the work may hold the last reference to the device.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// The device works.
const HEALTHY: u32 = 0;
/// The device does not answer.
pub(crate) const WEDGED: u32 = 1;
/// The device is gone.
const GONE: u32 = 2;

/// What the driver counts, for debugfs.
pub(crate) struct Counters {
    /// SUBMIT ioctls that succeeded.
    pub(crate) submissions: Atomic<u64>,
    /// VM_BIND ioctls that succeeded.
    pub(crate) binds: Atomic<u64>,
    /// Runs of interrupt threads, engines' and the one for faults.
    pub(crate) interrupts: Atomic<u64>,
    /// Engine resets requested, whether or not they were acknowledged.
    pub(crate) resets: Atomic<u64>,
    /// Adapter resets that the device has survived.
    pub(crate) adapter_resets: Atomic<u64>,
    /// Requests to an engine to stop, whether or not it did.
    pub(crate) preemptions: Atomic<u64>,
    /// Requests to flush TLBs, each to all engines.
    pub(crate) flushes: Atomic<u64>,
    /// Objects that were moved out of VRAM, or are on their way.
    pub(crate) evictions: Atomic<u64>,
    /// Objects that were moved to VRAM, or are on their way.
    pub(crate) promotions: Atomic<u64>,
    /// Moves of context allocations, none of which are in these two.
    pub(crate) context_moves: Atomic<u64>,
    /// Context allocations that were initialised (row 2.10).
    pub(crate) context_inits: Atomic<u64>,
    /// Packets that entered a hardware queue while a context allocation that they use was not where
    /// the GPU reaches it, and areas that were taken from where it reaches them while an engine
    /// could have saved to them: 0, unless the driver is wrong (row 2.08).
    pub(crate) context_not_resident: Atomic<u64>,
    /// System pages of idle objects that were given back when memory was short.
    pub(crate) pages_given_back: Atomic<u64>,
    /// Bytes of objects whose content was thrown away since they were offered, or is about to be.
    pub(crate) discarded_bytes: Atomic<u64>,
    /// Bytes that left VRAM without being copied, or are on their way.
    pub(crate) clean_bytes: Atomic<u64>,
    /// Bytes of clean copies that are kept just now.
    pub(crate) clean_kept: Atomic<u64>,
    /// Bytes of clean copies that were dropped before they were used.
    pub(crate) clean_dropped: Atomic<u64>,
    /// Times that free memory was cleared in the background.
    pub(crate) background_clears: Atomic<u64>,
    /// How many bytes that was in all.
    pub(crate) background_clear_bytes: Atomic<u64>,
    /// Objects that were created in VRAM that was clean.
    pub(crate) clean_creations: Atomic<u64>,
    /// Pages of the CPU host aperture that were mapped.
    pub(crate) aperture_maps: Atomic<u64>,
    /// Those of them that were taken back for others to be mapped.
    pub(crate) aperture_reclaims: Atomic<u64>,
    /// Parts of the aperture segment that were mapped.
    pub(crate) segment_maps: Atomic<u64>,
    /// Those of them that were unmapped.
    pub(crate) segment_unmaps: Atomic<u64>,
}

/// Bytes of buffer objects and page tables in system memory that devices which could not be stopped
/// had when they were unbound: they may reach them for ever.
pub(crate) static KEPT_FOR_GOOD: Atomic<u64> = Atomic::new(0);

/// What frees objects that work lets go of.
pub(crate) struct Reapers {
    /// Binds that are done, with the memory that they unmapped.
    pub(crate) binds: Arc<Reaper<Bind>>,
    /// Contexts, from ready lists, workers and the table of a lost device.
    pub(crate) contexts: Arc<Reaper<Context>>,
    /// Objects that were destroyed, with the memory that they had.
    pub(crate) destructions: Arc<Reaper<Destruction>>,
    /// Moves that are done, with the memory that was left.
    pub(crate) moves: Arc<Reaper<Move>>,
    /// Submissions that left a ring or were cancelled, with the memory that they cleared.
    pub(crate) submissions: Arc<Reaper<Submission>>,
    /// Page tables of address spaces that are gone, and what was mapped in these.
    pub(crate) reached: Arc<Reaper<Reached>>,
    /// Address spaces.
    pub(crate) vms: Arc<Reaper<Vm>>,
    /// The one that all obey: closed by [`Gpu::suspect`], [`Gpu::doubt`] and [`Gpu::lose`], opened
    /// when the device was reset or is known to be quiet.
    quarantine: Arc<Quarantine>,
    /// The device is quiet, and will not be anything else.
    quiet: Atomic<bool>,
}

impl Reapers {
    /// Reapers with nothing to do, and an open quarantine. `ENOMEM`.
    fn new() -> Result<Self> {
        let quarantine = Quarantine::new()?;
        Ok(Self {
            binds: Reaper::new(&quarantine)?,
            contexts: Reaper::new(&quarantine)?,
            destructions: Reaper::new(&quarantine)?,
            moves: Reaper::new(&quarantine)?,
            submissions: Reaper::new(&quarantine)?,
            reached: Reaper::new(&quarantine)?,
            vms: Reaper::new(&quarantine)?,
            quarantine,
            quiet: Atomic::new(false),
        })
    }

    /// The device is quiet: what was kept may go.
    fn release(&self) {
        // First: whoever closes the quarantine sees this, or its closing is undone by what follows.
        self.quiet.store(true, Release);
        self.quarantine.open();
        self.wake();
    }

    /// The device was reset: what was kept because of that may go.
    fn resume(&self) {
        self.quarantine.resume();
        self.wake();
    }

    fn wake(&self) {
        self.binds.wake();
        self.contexts.wake();
        self.destructions.wake();
        self.moves.wake();
        self.submissions.wake();
        self.vms.wake();
        self.reached.wake();
    }

    /// For a work item that may have more to do than it does at a time.
    fn cut(&self) -> Cut {
        Cut::new(&self.quarantine)
    }

    /// Waits until what was buried is free, unless it is in quarantine, and what is freed in parts,
    /// too, as long as there is `patience`, from which that takes. Process context, no locks held.
    /// `EINTR` if a signal arrives.
    pub(crate) fn flush(&self, patience: &mut Jiffies) -> Result {
        eviction::spend(patience, reaper::flush);
        while *patience > 0 && self.quarantine.is_cut() {
            if current!().signal_pending() {
                return Err(EINTR);
            }
            eviction::spend(patience, reaper::flush);
            // There may always be more.
            *patience = patience.saturating_sub(1);
        }
        Ok(())
    }

    /// Whether the device is known to reach no memory, for good.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Acquire)
    }

    /// Whether memory is kept because the device may still reach it, how many objects wait to be
    /// freed, and the bytes of memory that these have, each time that they have it.
    pub(crate) fn usage(&self) -> (bool, u64, u64) {
        let usages = [
            self.binds.usage(),
            self.contexts.usage(),
            self.destructions.usage(),
            self.moves.usage(),
            self.submissions.usage(),
            self.vms.usage(),
            self.reached.usage(),
        ];
        let add = |(count, bytes): (u64, u64), (more, and): (u64, u64)| {
            (count.saturating_add(more), bytes.saturating_add(and))
        };
        let (count, bytes) = usages.into_iter().fold((0, 0), add);
        (self.quarantine.is_closed(), count, bytes)
    }
}

/// A line of the driver's own for moves that wait, which are done in order.
#[derive(Clone, Copy)]
pub(crate) enum Mover {
    /// For other drivers.
    Others,
    /// For what runs in an address space.
    Users(Asid),
    /// For what an address space has had to do with what it has evicted: its other moves do not.
    Evicted(Asid),
    /// For a context to be left, of its [context allocation](crate::memory::save_areas).
    SaveArea(ContextSlot),
}

impl Mover {
    /// What all movers' numbers, as `u32`, are below.
    const COUNT: u32 = 2 * MAX_VMS + MAX_CONTEXTS;
}

impl From<Mover> for u32 {
    fn from(mover: Mover) -> Self {
        // No overflow: less than `Mover::COUNT`. Clients' address spaces do not have number 0.
        match mover {
            Mover::Others => 0,
            Mover::Users(asid) => Self::from(asid).saturating_mul(2),
            Mover::Evicted(asid) => Self::from(asid).saturating_mul(2).saturating_add(1),
            Mover::SaveArea(slot) => Self::from(slot).saturating_add(2 * MAX_VMS),
        }
    }
}

/// What the driver knows of one device, from probe until the last file is closed.
#[pin_data]
pub(crate) struct Gpu {
    /// The miniport: all access to the device goes through it.
    #[pin]
    pub(crate) hw: Hardware,
    /// DMA mappings and page tables, of which there is one for each object and address space.
    pub(crate) resources: DevresSet,
    /// What the driver has counted since probe.
    pub(crate) counters: Counters,
    /// Where a last reference goes from work that fences depend on.
    pub(crate) reapers: Reapers,
    /// Whether engines that can be are asked to stop: a switch for debugging (row 2.24).
    pub(crate) preempts: Atomic<bool>,
    /// Whether what is expected to be used again soon stays where older things leave: a switch for
    /// debugging.
    pub(crate) expects_reuse: Atomic<bool>,
    /// Whether all that is idle leaves VRAM before each ioctl, for tests.
    pub(crate) evicts: bool,
    /// How long the device may take to acknowledge.
    pub(crate) acknowledge: Delta,
    /// [`Settings::recovers`].
    pub(crate) recovers: bool,
    /// How often the adapter is reset before it is given up.
    #[pin]
    pub(crate) resets: Resets,
    /// The [generation](Hardware::generation) in which VRAM was last all zero: what was written in
    /// an earlier one is lost.
    pub(crate) vram_generation: Atomic<u32>,
    /// What is to be destroyed when nothing uses it any more.
    pub(crate) destroyer: Arc<Destroyer>,
    /// How many have cleared entries of page tables, and not flushed them yet.
    pub(crate) unflushed: Atomic<u32>,
    /// How many ranges of VRAM somebody has: with none, nothing is lost when the device loses its
    /// power.
    pub(crate) vram_ranges: Atomic<u32>,
    /// Tells userspace of losses and of work that was cut.
    pub(crate) herald: Arc<Herald>,
    /// Who has how many of its address spaces and contexts, and how much system memory.
    #[pin]
    pub(crate) users: Users,
    /// Bytes of system memory that buffer objects and page tables have, of half the machine's.
    pub(crate) system: Arc<Quota>,
    /// The switch of the device's access to memory: on from [`Gpu::start`], off when it is lost.
    bus: BusMaster,
    /// By number, as many as the capabilities tell; at least one of them copies.
    engines: KVec<Pin<KBox<Engine>>>,
    /// The driver's own line of work that waits for nothing: clears, and moves of what nobody uses.
    /// None before the device works and when it is lost.
    #[pin]
    paging: SpinLock<Option<Arc<Context>>>,
    /// The driver's own lines of work for moves that wait, each from its first move on.
    #[pin]
    movers: Slots<Mover, Context>,
    /// Clients' contexts, by their places in the table of descriptors. A place holds a reference
    /// until userspace destroys the context, and is taken until that is freed.
    #[pin]
    pub(crate) contexts: Slots<ContextSlot, Context>,
    /// Address spaces, by identifier. A place holds a reference until userspace has destroyed the
    /// address space, its binds are done and its contexts gone, and is taken until it is freed.
    #[pin]
    pub(crate) vms: Slots<Asid, Vm>,
    /// Objects in VRAM, which may all be elsewhere, by their priority's level and when they were
    /// last used; then those in the aperture that may leave it, likewise.
    #[pin]
    pub(crate) evictable: [Lru<BoData>; 2 * Level::ALL.len()],
    /// Objects in VRAM whose content is offered, by the priority of that.
    #[pin]
    pub(crate) offered: [Lru<BoData>; Offer::ALL.len()],
    /// Objects that have system pages, which the kernel may have when they are idle: first what is
    /// offered, likewise.
    #[pin]
    pub(crate) awake: [Lru<BoData>; Offer::ALL.len() + 1],
    /// Objects that have given back their system pages.
    #[pin]
    pub(crate) resting: Lru<BoData>,
    /// From the beginning of [`Gpu::start`] to that of [`Gpu::stop`].
    #[pin]
    shrinker: SpinLock<Option<Shrinker<SkuaDriver>>>,
    /// As long as there is a shrinker, which asks it.
    #[pin]
    discarder: SpinLock<Option<Discarder>>,
    /// Moves that are under way.
    #[pin]
    pub(crate) moves: Moves,
    /// What was made resident and waits for an unlock.
    #[pin]
    pub(crate) pending_residency: PendingResidency,
    /// Who waits for another attempt to let go of what is held.
    #[pin]
    pub(crate) retries: Retries,
    /// Whose turn it is to bring back what their work needs.
    #[pin]
    pub(crate) pager: Pager,
    /// What clients' devices have made resident, and are told.
    #[pin]
    pub(crate) budgets: Budgets,
    /// Which devices have handles of which monitored fences.
    #[pin]
    pub(crate) fences: Owners,
    /// The last clear of VRAM that was begun: the memory of an object that is gone before it is
    /// cleared is free after that.
    #[pin]
    last_clear: SpinLock<Option<Fence>>,
    /// Clears VRAM that is free.
    #[pin]
    pub(crate) clearer: Clearer,
    /// Which pages of the aperture segment are free.
    #[pin]
    pub(crate) gart: Mutex<gart::Window>,
    /// What the CPU host aperture shows.
    #[pin]
    pub(crate) host_aperture: Mutex<Window>,
    /// Pages of it that are for what is locked.
    pub(crate) host_aperture_claimed: Atomic<u64>,
    /// How many uses of buffer objects there were, modulo 2^32
    /// ([`Uses`](crate::policy::eviction::Uses)).
    pub(crate) uses: Atomic<u32>,
    /// The allocator of VRAM: which of its pages are free.
    #[pin]
    pub(crate) vram: Mutex<Pages>,
    /// VRAM as control groups know it, from the beginning of [`Gpu::start`] to that of
    /// [`Gpu::stop`].
    #[pin]
    vram_region: SpinLock<Option<Arc<Region<SkuaDriver>>>>,
    /// Which address space identifiers are free, and which only after a flush; 0 is the system's.
    #[pin]
    asids: Mutex<IdSlots<KernelHeap>>,
    /// From the end of [`Gpu::start`] to the beginning of [`Gpu::stop`].
    #[pin]
    alarms: SpinLock<Option<Arc<Alarms>>>,
    /// `HEALTHY`, `WEDGED` or `GONE`; never `HEALTHY` again once it was another.
    health: Atomic<u32>,
    /// 1 once [`Gpu::lose`] has begun, so that one thread ends what is under way.
    ended: Atomic<u32>,
    /// Whether the watchdog looks at the engines.
    pub(crate) watching: Watching,
    /// Whether it is looked at whose turn it is.
    pub(crate) watching_turns: Watching,
    /// Whether it sleeps, or is about to.
    pub(crate) power: Power,
}

/// Whether an alarm is set or running: who changes that to yes sets it.
pub(crate) struct Watching(Atomic<u32>);

impl Watching {
    fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// It is to be. Whether the caller has to set it.
    fn begin(&self) -> bool {
        self.0.load(Relaxed) == 0 && self.go_on()
    }

    /// It runs, and stops then, unless somebody has it begin again.
    pub(crate) fn end(&self) {
        self.0.store(0, Release);
    }

    /// It is to go on. Whether nobody else has seen to that meanwhile.
    pub(crate) fn go_on(&self) -> bool {
        self.0.xchg(1, Full) == 0
    }
}

/// Of a device that somebody waits for: when it was last asked whether it is there.
#[derive(Clone, Copy)]
pub(crate) struct Presence(Instant<Monotonic>);

impl Presence {
    /// It was there just now.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Asks it once in a [`PRESENCE_TIMEOUT`]. `ENODEV` if it is gone: then it is to be lost.
    pub(crate) fn check(&mut self, gpu: &Gpu) -> Result {
        if self.0.elapsed() > PRESENCE_TIMEOUT {
            self.0 = Instant::now();
            gpu.check_presence()?;
        }
        Ok(())
    }
}

/// How long the device may still take for something.
#[derive(Clone, Copy)]
pub(crate) struct Countdown {
    /// When it began.
    start: Instant<Monotonic>,
    /// What of the time since counts.
    patience: Patience,
}

impl Countdown {
    /// It begins now, and may take so long.
    pub(crate) fn new(limit: Delta) -> Self {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(0);
        Self {
            start: Instant::now(),
            patience: Patience::new(limit_ms),
        }
    }

    /// Whether it has taken too long. To be asked before the device is: this thread may not have
    /// run for long.
    pub(crate) fn is_over(&mut self) -> bool {
        let now_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0);
        self.patience.is_over(now_ms)
    }
}

/// The pauses between looks at what mostly comes at once, and else may take seconds.
pub(crate) struct Pauses(Instant<Monotonic>);

impl Pauses {
    /// Looking begins now.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Sleeps for an eighth of the time since then, 20 microseconds to 5 milliseconds.
    pub(crate) fn sleep(&self) {
        let eighth = self.0.elapsed().as_nanos() / 8;
        fsleep(Delta::from_nanos(eighth.clamp(20_000, 5_000_000)));
    }
}

/// What is set for all devices, by the module's parameters.
pub(crate) struct Settings {
    /// Whether engines that can be are asked to stop (row 2.24).
    pub(crate) preempts: bool,
    /// Whether all that is idle leaves VRAM before each ioctl, for tests.
    pub(crate) evicts: bool,
    /// Milliseconds that a packet may work.
    pub(crate) job_ms: u32,
    /// Milliseconds that the device may take to acknowledge (`TdrDdiDelay`): register protocols are
    /// quick, hosts may be slow.
    pub(crate) acknowledge_ms: u32,
    /// Whether an engine that does not end or stop in time is reset, and the device not given up
    /// (`TdrLevel`).
    pub(crate) recovers: bool,
    /// How often the adapter is reset before it is given up.
    pub(crate) resets: Limits,
}

impl Gpu {
    /// The data of a device that was not started. Nobody else knows of it yet.
    ///
    /// `EINVAL`, with a line in the log, for scheduling capabilities that contradict each other, or
    /// too large a paging address space; `ENOMEM`, `ENODEV`.
    pub(crate) fn new(
        parent: &Device<Bound>,
        bus: BusMaster,
        regs: Registers,
        caps: Caps,
        system_limit: u64,
        settings: &Settings,
    ) -> Result<impl PinInit<Self, Error>> {
        let Settings {
            preempts,
            evicts,
            job_ms,
            acknowledge_ms,
            recovers,
            resets,
        } = *settings;
        let quantum = (u64::from(caps.tick_hz) / QUANTA_PER_SECOND).max(1);
        let turns = scheduler::Limits {
            quantum,
            patience: quantum.saturating_mul(PATIENCE),
            protection: quantum / 16,
        };
        let scheduling = SchedulingCaps::new(caps.query_scheduling_caps()).map_err(|Refused| {
            let stated = caps.query_scheduling_caps();
            dev_err!(
                parent,
                "its scheduling capabilities, {:#x}, contradict each other\n",
                stated
            );
            EINVAL
        })?;
        let mut engines = KVec::with_capacity(caps.engines.len(), GFP_KERNEL)?;
        for (index, engine) in EngineIndex::ALL.into_iter().zip(&caps.engines) {
            let preempts = preempts && scheduling.is_preemption_aware() && engine.stops();
            engines.push(
                Engine::new(index, engine.kind, turns, scheduling, preempts, job_ms)?,
                GFP_KERNEL,
            )?;
        }
        let limit = MAX_VMS.min(1 << caps.asid_bits.min(16));
        let first = u32::from(PAGING_ASID).saturating_add(1);
        let asids = IdSlots::new(first, limit)?;
        let system = Quota::new(system_limit)?;
        let asid_count = limit.saturating_sub(first);
        let users = Users::new(&system, asid_count, MAX_CONTEXTS, MAX_EXPLICIT)?;
        let aperture = host_aperture::window(&caps)?;
        let gart = gart::window(caps.gart_pages, GART_PAGES)?;
        let vram = vram::pages(caps.vram_size)?;
        let contexts = Slots::new(MAX_CONTEXTS)?;
        let vms = Slots::new(MAX_VMS)?;
        let movers = Slots::new(Mover::COUNT)?;
        let paging = paging_space(parent, &caps, system_limit)?;
        let hw = Hardware::new(parent, regs, caps, paging)?;
        let resources = DevresSet::new(parent)?;
        let reapers = Reapers::new()?;
        let destroyer = Destroyer::new(reapers.cut())?;
        Ok(try_pin_init!(Self {
            hw <- hw,
            resources,
            bus,
            counters: Counters {
                submissions: Atomic::new(0),
                binds: Atomic::new(0),
                interrupts: Atomic::new(0),
                resets: Atomic::new(0),
                adapter_resets: Atomic::new(0),
                preemptions: Atomic::new(0),
                flushes: Atomic::new(0),
                evictions: Atomic::new(0),
                context_moves: Atomic::new(0),
                context_inits: Atomic::new(0),
                context_not_resident: Atomic::new(0),
                promotions: Atomic::new(0),
                pages_given_back: Atomic::new(0),
                discarded_bytes: Atomic::new(0),
                clean_bytes: Atomic::new(0),
                clean_kept: Atomic::new(0),
                clean_dropped: Atomic::new(0),
                background_clears: Atomic::new(0),
                background_clear_bytes: Atomic::new(0),
                clean_creations: Atomic::new(0),
                aperture_maps: Atomic::new(0),
                aperture_reclaims: Atomic::new(0),
                segment_maps: Atomic::new(0),
                segment_unmaps: Atomic::new(0),
            },
            preempts: Atomic::new(true),
            expects_reuse: Atomic::new(true),
            evicts,
            acknowledge: Delta::from_millis(acknowledge_ms.into()),
            recovers,
            resets <- Resets::new(resets),
            vram_generation: Atomic::new(0),
            reapers,
            destroyer,
            unflushed: Atomic::new(0),
            vram_ranges: Atomic::new(0),
            herald: Herald::new()?,
            users <- users,
            system,
            engines,
            paging <- new_spinlock!(None),
            movers <- movers,
            contexts <- contexts,
            vms <- vms,
            evictable <- pin_init::pin_init_array_from_fn(|_| Lru::new()),
            offered <- pin_init::pin_init_array_from_fn(|_| Lru::new()),
            awake <- pin_init::pin_init_array_from_fn(|_| Lru::new()),
            resting <- Lru::new(),
            shrinker <- new_spinlock!(None),
            discarder <- new_spinlock!(None),
            pending_residency <- PendingResidency::new(),
            retries <- Retries::new(),
            moves <- Moves::new(),
            pager <- Pager::new(),
            budgets <- Budgets::new(),
            fences <- Owners::new(),
            last_clear <- new_spinlock!(None),
            clearer <- Clearer::new(),
            gart <- new_mutex!(gart),
            host_aperture <- new_mutex!(aperture),
            host_aperture_claimed: Atomic::new(0),
            uses: Atomic::new(0),
            vram <- new_mutex!(vram),
            vram_region <- new_spinlock!(None),
            asids <- new_mutex!(asids),
            alarms <- new_spinlock!(None),
            health: Atomic::new(HEALTHY),
            ended: Atomic::new(0),
            watching: Watching::new(),
            watching_turns: Watching::new(),
            power: Power::new(),
        }))
    }

    /// Engine number `index`. `EINVAL` if there is none.
    pub(crate) fn engine(&self, index: EngineIndex) -> Result<&Engine> {
        let engine = self.engines.get(index.index()).ok_or(EINVAL)?;
        Ok(engine)
    }

    /// The engines with their numbers, in the order of these.
    pub(crate) fn engines(&self) -> impl Iterator<Item = (EngineIndex, &Engine)> {
        let engines = self.engines.iter().map(|engine| &**engine);
        EngineIndex::ALL.into_iter().zip(engines)
    }

    /// The number of the engine for paging: the last that copies. If there is another one, it is
    /// the driver's alone, so that no client's work, which may wait, is ever before it.
    pub(crate) fn paging_engine(&self) -> Result<EngineIndex> {
        self.engines()
            .filter(|(_, engine)| engine.kind() == EngineKind::Copy)
            .last()
            .map(|(index, _)| index)
            .ok_or(EIO)
    }

    /// The engines that clients can use, in order: all, or all but the one for paging.
    pub(crate) fn client_engines(&self) -> impl Iterator<Item = (EngineIndex, &Engine)> {
        let copies = self
            .engines()
            .filter(|(_, engine)| engine.kind() == EngineKind::Copy)
            .count();
        let own = self.paging_engine().ok().filter(|_| copies > 1);
        self.engines().filter(move |(index, _)| Some(*index) != own)
    }

    /// The driver's own context for what waits for nothing. `ENODEV` if the device is lost.
    pub(crate) fn paging(&self) -> Result<Arc<Context>> {
        self.paging.lock().clone().ok_or(ENODEV)
    }

    /// The driver's own context for moves that wait; the caller keeps whose it is. `ENOMEM`,
    /// `ENODEV`.
    pub(crate) fn mover(dev: &SkuaDevice, mover: Mover) -> Result<Arc<Context>> {
        if let Some(mover) = dev.movers.find(mover) {
            return Ok(mover);
        }
        let new = Context::new_system(dev, dev.paging_engine()?)?;
        let mover = dev.movers.fill_if_free(mover, new).ok_or(ENODEV)?;
        // A device that is lost looks at the table once: before this, or it is seen here.
        if dev.check_health().is_err() {
            mover.mark(Status::Lost);
            // Others may have queued something meanwhile.
            Wake::wake(&mover);
        }
        Ok(mover)
    }

    /// Calls `f` with each of the driver's own contexts.
    pub(crate) fn for_each_own(&self, mut f: impl FnMut(&Arc<Context>)) {
        // None of these is the last reference, unless the device is being lost.
        let mut with = |context: Arc<Context>| {
            f(&context);
            self.reapers.contexts.bury(context);
        };
        self.paging().into_iter().for_each(&mut with);
        self.movers.for_each(with);
    }

    /// The last clear of VRAM that was begun, if there was one.
    pub(crate) fn last_clear(&self) -> Option<Fence> {
        self.last_clear.lock().clone()
    }

    /// Remembers the last clear of VRAM that was begun.
    pub(crate) fn set_last_clear(&self, fence: &Fence) {
        let old = self.last_clear.lock().replace(fence.clone());
        // Not under the lock.
        drop(old);
    }

    /// `EIO` or `ENODEV` once the device is lost.
    pub(crate) fn check_health(&self) -> Result {
        match self.health.load(Acquire) {
            HEALTHY => Ok(()),
            WEDGED => Err(EIO),
            _ => Err(ENODEV),
        }
    }

    /// Starts the device: VRAM in control groups, what throws offers away, the shrinker, a reset,
    /// its access to memory, its engines, the driver's own contexts, and its alarms, which from now
    /// on look after the engines. `job_ms` is how long a packet may work, `preempt_ms` how long an
    /// engine may take to stop.
    ///
    /// `ETIMEDOUT`, with a line in the log, if the reset does not end or the status page is not
    /// written; `ENOMEM`, `ENODEV`.
    pub(crate) fn start(dev: &SkuaDevice, job_ms: u32, preempt_ms: u32) -> Result {
        let parent: &Device = dev.as_ref().as_ref();
        let name = CString::try_from_fmt(fmt!("drm/{}/vram0", parent.name()))?;
        let region = Region::new(dev, &name, Part::Any.bytes(dev))?;
        *dev.vram_region.lock() = Some(region);
        let discarder = Discarder::new(dev)?;
        *dev.discarder.lock() = Some(discarder);
        let name = CString::try_from_fmt(fmt!("drm-skua:{}", parent.name()))?;
        let shrinker = Shrinker::new(dev, &name)?;
        *dev.shrinker.lock() = Some(shrinker);
        dev.hw.reset_from_timeout()?;
        let ready = dev.wait_until_reset();
        if ready == Err(ETIMEDOUT) {
            dev_err!(
                dev.as_ref(),
                "the device does not get ready after a reset\n"
            );
        }
        ready?;
        dev.bus.turn_on();
        dev.hw.restart_from_timeout()?;
        let restarted = dev.wait_briefly(|| dev.hw.has_restarted());
        if restarted == Err(ETIMEDOUT) {
            dev_err!(dev.as_ref(), "the device does not write its status page\n");
        }
        restarted?;
        dev.vram_generation.store(dev.hw.generation(), Release);
        for (_, engine) in dev.engines() {
            engine.enable(dev)?;
        }
        let paging = Context::new_system(dev, dev.paging_engine()?)?;
        *dev.paging.lock() = Some(paging);
        let alarms = Alarms::new(dev, job_ms, preempt_ms)?;
        *dev.alarms.lock() = Some(alarms);
        Retries::start(dev)?;
        Clearer::start(dev)
    }

    /// The adapter is about to be reset: memory that it may reach does not go back to the system
    /// until [`Self::resume`].
    pub(crate) fn suspend(&self) {
        self.reapers.quarantine.suspend();
    }

    /// The adapter was reset, and reaches what it should.
    pub(crate) fn resume(&self) {
        let is_suspected = || self.resets.is_wanted(self.hw.generation());
        if is_suspected() {
            return;
        }
        self.reapers.resume();
        if is_suspected() {
            // A reset was asked for after the first look: its memory may have been let go of.
            self.suspend();
        }
    }

    /// Waits while memory is kept because the adapter is to be reset: it may be what is waited for.
    /// Process context, not from recovery. `EIO`, `ENODEV` if the device is lost.
    pub(crate) fn wait_for_resets(&self) -> Result {
        self.wait_for(|| Ok(!self.reapers.quarantine.is_suspended()))
    }

    /// Takes the alarms; dropping them stops them.
    fn detach(&self) -> Option<Arc<Alarms>> {
        self.alarms.lock().take()
    }

    /// Has faults looked at soon. Process context.
    pub(crate) fn look_at_faults(&self) {
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.faults.kick();
        }
    }

    /// Has it looked soon how far recoveries are.
    pub(crate) fn look_at_recoveries(&self) {
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.recoveries.kick();
        }
    }

    /// Has the watchdog run while an engine has work.
    pub(crate) fn watch(&self) {
        if !self.watching.begin() {
            return;
        }
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.start_watchdog();
        }
    }

    /// Has it looked at now and then whose turn it is, while that may change.
    pub(crate) fn watch_turns(&self) {
        if !self.watching_turns.begin() {
            return;
        }
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.start_turns();
        }
    }

    /// Has the device reset soon, or lost, from where it cannot be done at once, unless it was
    /// reset since `generation`. Process context.
    pub(crate) fn reset_later(&self, generation: u32) {
        self.resets.want(generation);
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.reset();
        }
    }

    /// Has the alarms' queue do what [`Self::power`] is asked for. Not after [`Self::stop`].
    pub(crate) fn sleep_or_wake(&self) {
        if let Some(alarms) = &*self.alarms.lock() {
            alarms.sleep_or_wake();
        }
    }

    /// Has so many `pages` of what is offered and mapped thrown away soon, from where page tables
    /// are not changed.
    pub(crate) fn discard_later(&self, pages: usize) {
        if let Some(discarder) = &*self.discarder.lock() {
            discarder.ask(pages);
        }
    }

    /// The clean copies that objects have, unless the device is unbound.
    pub(crate) fn copies(&self) -> Option<Arc<Copies>> {
        self.shrinker.lock().as_ref().and_then(Shrinker::copies)
    }

    /// VRAM as control groups know it. `ENODEV` once the device is being unbound.
    pub(crate) fn vram_region(&self) -> Result<Arc<Region<SkuaDriver>>> {
        self.vram_region.lock().clone().ok_or(ENODEV)
    }

    /// Size and use in bytes of a region of the uAPI.
    pub(crate) fn region_usage(&self, region: u32) -> (u64, u64) {
        if region == REGION_SYSTEM {
            return (self.system.limit(), self.system.used());
        }
        if region == REGION_APERTURE {
            let gart = self.gart.lock();
            let bytes = |pages: PageCount| pages.0.saturating_mul(PAGE_SIZE);
            return (bytes(gart.total()), bytes(gart.used()));
        }
        let vram = self.vram.lock();
        let size = vram.total().0.saturating_mul(PAGE_SIZE);
        let free = vram.free_pages().0.saturating_mul(PAGE_SIZE);
        (size, size.saturating_sub(free))
    }

    /// An address space identifier that no TLB knows. `ENOSPC`, `EIO`, `ENODEV`.
    pub(crate) fn reserve_asid(&self) -> Result<Asid> {
        let mut asids = self.asids.lock();
        let mut id = asids.alloc();
        if let Err(IdError::FlushNeeded { epoch }) = id {
            self.invalidate(None)?;
            asids.flushed(epoch);
            id = asids.alloc();
        }
        Ok(Asid::try_from(id.map_err(|_| ENOSPC)?)?)
    }

    /// Gives an identifier back, to be used again after the next flush.
    pub(crate) fn release_asid(&self, asid: Asid) {
        // First out of the tables: the next one with this identifier is put there.
        self.release_mover(Mover::Users(asid));
        self.release_mover(Mover::Evicted(asid));
        self.vms.release(asid);
        // All flushes are whole, so there is one epoch: the next flush.
        crate::warn_on_once!(self.asids.lock().free(asid.into(), 0).is_err());
    }

    /// Whose line it is is gone, and nothing more comes into it.
    pub(crate) fn release_mover(&self, mover: Mover) {
        drop(self.movers.empty(mover));
        self.movers.release(mover);
    }

    /// Has all engines drop the translations of an address space, or of all, and waits until they
    /// have.
    ///
    /// Process context; not from recovery. `EIO`, `ENODEV` if the device is lost.
    pub(crate) fn invalidate(&self, asid: Option<Asid>) -> Result {
        self.check_health()?;
        let request = self.hw.flush_tlb(asid)?;
        self.counters.flushes.fetch_add(1, Relaxed);
        self.wait_for(|| self.hw.is_done(request))
    }

    /// Waits until `done` says so, which looks at shared memory only. Process context; not from
    /// recovery, which may have to reset the device for that.
    ///
    /// Bounded: after [`Settings::acknowledge_ms`] the device is to be reset, after which `done` is
    /// to say so, or lost. `EIO`, `ENODEV` if it is.
    pub(crate) fn wait_for(&self, mut done: impl FnMut() -> Result<bool>) -> Result {
        let mut generation = self.hw.generation();
        let mut countdown = Countdown::new(self.acknowledge);
        let (mut presence, pauses) = (Presence::new(), Pauses::new());
        loop {
            let is_late = countdown.is_over();
            if done()? {
                return Ok(());
            }
            self.check_health()?;
            let now = self.hw.generation();
            if now != generation || now != self.vram_generation.load(Acquire) {
                // It is being reset, which ends, or was.
                generation = now;
                countdown = Countdown::new(self.acknowledge);
                pauses.sleep();
                continue;
            }
            presence.check(self)?;
            if is_late {
                self.suspect(generation);
                countdown = Countdown::new(self.acknowledge);
            }
            pauses.sleep();
        }
    }

    /// Waits until `done` says so, and no longer than [`Settings::acknowledge_ms`]. Process
    /// context. `ETIMEDOUT`; `EIO`, `ENODEV` if the device is lost.
    pub(crate) fn wait_briefly(&self, done: impl FnMut() -> Result<bool>) -> Result {
        self.wait_at_most(self.acknowledge, done)
    }

    /// Waits until an adapter reset is over, for which the device may take some time for each MiB
    /// of VRAM (manual, section 2). As [`Self::wait_briefly`].
    pub(crate) fn wait_until_reset(&self) -> Result {
        let mib = i64::try_from(self.hw.caps.vram_size >> 20).unwrap_or(i64::MAX);
        let more = Delta::from_millis(mib.saturating_mul(10).min(MAX_VRAM_MS));
        self.wait_at_most(self.acknowledge + more, || self.hw.is_reset())
    }

    fn wait_at_most(&self, limit: Delta, mut done: impl FnMut() -> Result<bool>) -> Result {
        let mut countdown = Countdown::new(limit);
        let (mut presence, pauses) = (Presence::new(), Pauses::new());
        loop {
            let is_late = countdown.is_over();
            if done()? {
                return Ok(());
            }
            self.check_health()?;
            presence.check(self)?;
            if is_late {
                return Err(ETIMEDOUT);
            }
            pauses.sleep();
        }
    }

    /// The device did not do what it must in time: it is to be reset, and until it is it may reach
    /// memory that it should not.
    fn suspect(&self, generation: u32) {
        // First: the end of a reset looks at it when it opens the quarantine.
        self.resets.want(generation);
        self.suspend();
        // Last: if a reset ended meanwhile, the alarm finds nothing to do and opens the quarantine.
        self.reset_later(generation);
        if self.reapers.quiet.load(Acquire) {
            // Too late to reach anything, and nobody would open it.
            self.reapers.release();
        }
    }

    /// The device did not do what it must, and a reset alone does not help: it is to be lost, for
    /// the reason `health`, and until it is quiet it may reach memory that it should not.
    pub(crate) fn doubt(&self, health: u32) {
        self.reapers.quarantine.close();
        if self.reapers.quiet.load(Acquire) {
            // Too late to reach anything, and nobody would open it.
            return self.reapers.release();
        }
        // Whoever comes first; `lose()` decides.
        let _ = self.health.cmpxchg(HEALTHY, health, Full);
        self.reset_later(self.hw.generation());
    }

    /// Asks the device whether it is there. `ENODEV` if it is gone: then it is to be lost.
    pub(crate) fn check_presence(&self) -> Result {
        if self.hw.is_present() {
            return Ok(());
        }
        self.doubt(GONE);
        Err(ENODEV)
    }

    /// Copies the device's counters to where [`Shared::counter`] finds them.
    pub(crate) fn snapshot(&self) -> Result {
        let taken = || self.hw.shared()?.snapshot_ack();
        let (generation, before) = (self.hw.generation(), taken()?);
        self.hw.take_snapshot()?;
        // A reset forgets it.
        self.wait_for(|| Ok(taken()? != before || self.hw.generation() != generation))
    }

    /// Calls `f` with the name and value of each of the device's counters, as of the last snapshot.
    pub(crate) fn counters(&self, mut f: impl FnMut(&str, u64)) -> Result {
        for &(counter, name) in &Counter::ALL {
            // Not over a call that may sleep.
            let value = self.hw.shared()?.counter(counter as u32)?;
            f(name, value);
        }
        Ok(())
    }

    /// The device is lost, which is told unless it is `unbound`. It is made quiet; then everything
    /// that is under way ends with `ENODEV`.
    ///
    /// Process context; not from work that itself waits for what is ended here. Bounded, and in a
    /// signalling section as a whole.
    pub(crate) fn lose(dev: &SkuaDevice, unbound: bool) {
        dev.reapers.quarantine.close();
        if unbound {
            dev.health.store(GONE, Release);
        } else {
            let _ = dev.health.cmpxchg(HEALTHY, WEDGED, Full);
        }
        if dev.ended.xchg(1, Full) != 0 {
            // Unbound after it was lost: perhaps it can be made quiet now.
            if dev.quiet() {
                dev.reapers.release();
            }
            return;
        }
        let parent = dev.as_ref();
        if !unbound {
            trace::lost(dev);
            dev_err!(
                parent,
                "the device is lost; unbind and bind it to use it again\n"
            );
            dev.herald.tell_of_failure(dev, &Failure::Lost);
        }
        dev.moves.lose();
        dev.clearer.wake();
        let quiet = dev.quiet();
        for (_, engine) in dev.engines() {
            engine.lose(dev);
        }
        let paging = dev.paging.lock().take();
        let close = |context: Arc<Context>| {
            context.mark(Status::Lost);
            if let Ok(engine) = dev.engine(context.engine()) {
                engine.drain(dev, &context);
            }
            dev.reapers.contexts.bury(context);
        };
        paging.into_iter().for_each(close);
        dev.movers.for_each(close);
        // The other movers belong to address spaces and contexts, which let go of them.
        if let Some(mover) = dev.movers.empty(Mover::Others) {
            close(mover);
        }
        dev.contexts.for_each(close);
        dev.vms.for_each(|vm| {
            vm.end(ENODEV);
            dev.reapers.vms.bury(vm);
        });
        dev.fences.lose();
        dev.pending_residency.look_at_all();
        if !unbound {
            dev.herald.tell_of_loss(dev);
        }
        if quiet {
            dev.reapers.release();
        } else {
            dev_err!(
                parent,
                "the device cannot be stopped: memory that it may reach is kept\n"
            );
        }
    }

    /// The device is unbound, or its probe has failed: ends all that [`Gpu::start`] has begun.
    pub(crate) fn stop(dev: &SkuaDevice) {
        // Nothing more is charged from here on.
        let region = dev.vram_region.lock().take();
        let shrinker = dev.shrinker.lock().take();
        drop(shrinker);
        let discarder = dev.discarder.lock().take();
        drop(discarder);
        dev.clearer.stop();
        // Not inside a signalling section: waits for the alarms, which are.
        drop(dev.detach());
        let signalling = Signalling::begin();
        Gpu::lose(dev, true);
        drop(signalling);
        dev.retries.stop();
        // What waits in the queues looks, finds nothing to do, and lets go of the device.
        crate::fences::hold::QUEUE.flush();
        crate::memory::vm::QUEUE.flush();
        QUEUE.flush();
        // What still waits for a worker that has not run.
        dev.destroyer.end();
        // A move may have found that it cannot be installed, and doubted.
        Gpu::lose(dev, true);
        if !dev.reapers.is_quiet() {
            Gpu::keep(dev);
        }
        let _ = dev.reapers.flush(&mut eviction::patience());
        // Waits for who makes room for a group, and that for work: all of it is over.
        drop(region);
    }

    /// Has all memory that the device may reach stay when it is unbound: it may for ever, so these
    /// data do.
    fn keep(dev: &SkuaDevice) {
        // No wrap: they exist at the same time.
        KEPT_FOR_GOOD.fetch_add(dev.system.used(), Relaxed);
        dev.resources.keep();
        dev.hw.keep_shared();
        device::keep(dev);
    }

    /// Has the device stop its accesses to memory. Whether it is known to have.
    fn quiet(&self) -> bool {
        let (start, pauses) = (Instant::<Monotonic>::now(), Pauses::new());
        // It may be gone, or not listen: what counts is the bus.
        let _ = self.hw.reset_from_timeout();
        // Until it is, or is gone, or unbound.
        while start.elapsed() < QUIET_TIMEOUT && self.hw.is_reset() == Ok(false) {
            pauses.sleep();
        }
        self.bus.turn_off()
    }
}

/// The address space of the paging process of a device with `caps`, as it asks for it or by
/// default. `EINVAL` with a line in the log if it cannot be that large, or its tables would take
/// more than a sixteenth of `system_limit`, in bytes, for good.
fn paging_space(parent: &Device<Bound>, caps: &Caps, system_limit: u64) -> Result<PagingSpace> {
    let bytes = paging::space_bytes(caps.query_paging_va(0), &caps.segments(), None).ok();
    // A device without memory was refused before: there is always one.
    let space = bytes.flatten().and_then(PagingSpace::new);
    space
        .filter(|space| space.table_bytes() <= system_limit / 16)
        .ok_or_else(|| {
            dev_err!(parent, "the paging address space is too large\n");
            EINVAL
        })
}

/// What ioctls and faults get while the device is bound.
pub(crate) struct RegistrationData<'a> {
    /// The PCI device, for DMA mappings; [`RegistrationData::parent`] hands it out.
    parent: &'a Device<Bound>,
    /// The BAR of visible VRAM, of which page faults map pages; none if nothing is visible.
    pub(crate) vram: Option<WcBar<'a>>,
    /// The BAR of the CPU host aperture, likewise.
    pub(crate) aperture: Option<WcBar<'a>>,
}

impl<'a> RegistrationData<'a> {
    /// That of a device whose memory the CPU finds in these two.
    pub(crate) fn new(
        parent: &'a Device<Bound>,
        vram: Option<WcBar<'a>>,
        aperture: Option<WcBar<'a>>,
    ) -> Self {
        Self {
            parent,
            vram,
            aperture,
        }
    }

    /// The PCI device: what DMA mappings and device-managed resources belong to.
    pub(crate) fn parent(&self) -> &Device<Bound> {
        self.parent
    }
}

/// The PCI device that `dev` is on, bound as long as that is registered.
pub(crate) fn parent(dev: &SkuaDevice<drm::Registered>) -> &Device<Bound> {
    let parent: &kernel::pci::Device<Bound> = dev.as_ref();
    parent.as_ref()
}
