// SPDX-License-Identifier: GPL-2.0

//! The device: what all other parts share.
//!
//! [`Gpu`] is the data of the DRM device and lives as long as that, beyond unbind, while files are
//! open. What is tied to the bound device (registers, shared memory, DMA mappings) is revoked at
//! unbind, and every access says so by an error.
//!
//! This file has what a device is made from, and the order of all locks. In files of their own are:
//!
//! | part | what is in it |
//! |---|---|
//! | [`bound`] | how it is started, and what ends when it is unbound |
//! | [`loss`] | what is done when it fails for good |
//! | [`wait`] | how it is waited for |
//! | [`reapers`] | who frees what work lets go of, and keeps it while the device may reach it |
//! | [`movers`] | the driver's own lines of work |
//! | [`alarms`] | what is to be looked at soon |
//! | [`counters`] | what is counted |
//!
//! # Locks, outermost first
//!
//! This is the one place where their order is written; what a room's head says of a lock is which
//! data it is for.
//!
//! ```text
//! mmap_lock
//! the core's filelist_mutex      who shows all clients
//! File::class                    mutex, allocates
//! File::devices, vms, contexts,  mutexes, allocate
//! fences, allocations
//! Context::saving                mutex, allocates; a context's first SUBMIT
//! the turn of Gpu::pager         waited for like a mutex, by who submits; held while room is made
//! Reached::map                   mutex, allocates; user memory is not touched under it; who
//!                                destroys objects only tries
//! reservation locks              wound/wait mutexes; a page fault tries at first, so as not to
//!                                hold up mmap_lock; user memory is not touched under one
//! Context::order                 mutex, process context; never on the way to a signal
//! holds of Context, Vm, Updates, mutexes; nothing is allocated under one, and nothing else taken
//! EventFdWait::waits             but spin locks
//! Gpu::host_aperture             mutex, allocates; CPU mappings are made and removed under it, and
//!                                its acknowledgements waited for
//! vram, gart, asids, Budgets,    mutexes; all but the last two allocate
//! Vm::owners, Users, the LRU's,
//! Pager
//! ---- below this line nothing is allocated: work that fences depend on takes these -------------
//! Engine::turn                   mutex; no ioctl takes it
//! Vm::installing                 mutex; VM_BIND, SUBMIT and who moves memory take it, too
//! PageTable::tables, Hardware's  mutexes
//! count of aperture flushes,
//! Watch::watchdogs, Resets::busy
//! Engine::state                  spin locks, from here on
//! Destroyer::queues
//! Context::pending, Vm::binds, Vm::gone, Slots, MoveContexts
//! Bind::end
//! Submission::fence, promises, Transfer, Move::fence, Destruction::given_up, Gpu::paging, alarms,
//! discarder, shrinker, last_clear, vram_region, Clearer, Sites, Evicted, Moves, Herald's,
//! Resets::policy
//! PendingResidency::operations, Retries::state
//! Claims::counts, a device's notice, Context::area_move, Gate::waiters, Operation::publisher
//! Gpu::fences, FenceValue::state, Pledge::state
//! Reaper::dead, fences::sleep::Sleeper::progress, DevresSet's state (rust/kernel/devres.rs),
//! Hardware's count of TLB flushes
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
//! - a client that its control group has wait for memory, for a few pages at a time;
//! - who waits for quick acknowledgements ([`Gpu::wait_for`]).
//!
//! Interrupt threads, the workers of [`QUEUE`] and of [`crate::memory::vm::QUEUE`], and the alarms
//! are on the way to fences' signals as a whole, and say so to lockdep: they allocate nothing, take
//! no reservation lock, and give references that may be the last to a reaper. But for the
//! [`Discarder`]'s, the [`Clearer`]'s and the [`Retries`]', for which no fence waits.

use crate::{
    ext::{
        device::BusMaster,
        devres::DevresSet,
        dmem::Region,
        fence::Fence,
        lru::Lru,
        queue::ModuleQueue,
        shrinker::{
            Copies,
            Shrinker, //
        }, //
    },
    fences::{
        hold::Workers,
        monitored::Owners,
        retry::Retries, //
    },
    gpu::{
        alarms::Watching,
        counters::Counters,
        loss::HEALTHY, //
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
        destruction::Destroyer,
        device::{
            Budgets,
            MAX_EXPLICIT, //
        },
        gart,
        host_aperture::{
            self,
            Window, //
        },
        move_contexts::MoveContexts,
        moves::Moves,
        offer::Discarder,
        paging_in::Pager,
        pending_residency::{
            PendingResidency,
            MAX_PENDING, //
        },
        vm::Vm,
        vram::{
            self,
            Pages, //
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
    slots::Slots,
    spec::{
        address::PAGE_SIZE,
        command::EngineKind,
        number::{
            Asid,
            ContextSlot,
            EngineIndex, //
        }, //
    },
    submit::{
        adapter_reset::{
            Limits,
            Resets, //
        },
        context::Context,
        engine::Engine,
        power::Power,
        recovery::Alarms, //
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
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    time::Delta, //
};

mod alarms;
mod bound;
mod counters;
mod loss;
mod movers;
mod reapers;
mod wait;

/// What is registered with the kernel. Rooms name it as the parameter of the kernel's types; SUBMIT
/// also calls it.
pub(crate) use crate::driver::SkuaDriver;
pub(crate) use bound::{
    parent,
    RegistrationData, //
};
pub(crate) use loss::{
    KEPT_FOR_GOOD,
    WEDGED, //
};
pub(crate) use movers::Mover;
pub(crate) use reapers::Reapers;
pub(crate) use wait::{
    Countdown,
    Pauses,
    Presence, //
};

/// The DRM device, whose data is a [`Gpu`].
pub(crate) type SkuaDevice<Ctx = drm::Normal> = drm::Device<SkuaDriver, Ctx>;

/// Address spaces that can exist at a time, the system's and the paging process' included.
const MAX_VMS: u32 = 1024;
/// How many turns there are in a second of nominal ticks.
const QUANTA_PER_SECOND: u64 = 5000;
/// Turns of others after which a context of any level has one.
const PATIENCE: u64 = 100;

/// Where contexts are looked at when something that they wait for has happened.
/// It belongs to the module: the work may hold the last reference to the device.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

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
    /// Whether what is expected to be used again soon stays where older things leave, and what has
    /// to be copied where clean things do: a switch for debugging.
    pub(crate) expects_reuse: Atomic<bool>,
    /// Whether all that is idle leaves VRAM before each ioctl, for tests.
    pub(crate) evicts: bool,
    /// How long the device may take to acknowledge: [`Settings::acknowledge_ms`].
    pub(crate) acknowledge: Delta,
    /// Whether engines are reset alone: [`Settings::recovers`].
    pub(crate) recovers: bool,
    /// Whether the adapter is to be reset, and how often it may be before it is given up.
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
    /// How many of them were freed since probe, or given back when they were cleared, modulo 2^64.
    pub(crate) vram_frees: Atomic<u64>,
    /// How many threads [make room](crate::memory::eviction::allocate) in VRAM.
    pub(crate) making_room: Atomic<u32>,
    /// Tells userspace what became of the device.
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
    /// The driver's own contexts that are for one move each.
    #[pin]
    pub(crate) move_contexts: MoveContexts,
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
    /// Has objects give back pages when the kernel is short of memory; from the beginning of
    /// [`Gpu::start`] to that of [`Gpu::stop`].
    #[pin]
    shrinker: SpinLock<Option<Shrinker<SkuaDriver>>>,
    /// Throws away, in a worker, content that is offered and mapped; as long as there is a
    /// shrinker, which asks it.
    #[pin]
    discarder: SpinLock<Option<Discarder>>,
    /// Moves that are under way.
    #[pin]
    pub(crate) moves: Moves,
    /// What was made resident and waits for an unlock.
    #[pin]
    pub(crate) pending_residency: PendingResidency,
    /// What of that, and of what is held, workers have.
    pub(crate) hold_workers: Workers,
    /// Who waits for another attempt to let go of what is held.
    #[pin]
    pub(crate) retries: Retries,
    /// Whose turn it is to bring back what their work needs.
    #[pin]
    pub(crate) pager: Pager,
    /// What clients' devices have made resident, and are told.
    #[pin]
    pub(crate) budgets: Budgets,
    /// Which devices have, or wait for, which monitored fences.
    pub(crate) fences: Arc<Owners>,
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
    /// Pages of the CPU host aperture that are for what is locked, whether or not they are mapped.
    pub(crate) host_aperture_claimed: Atomic<u64>,
    /// How many uses of buffer objects and address spaces there were
    /// ([`uses`](crate::memory::uses)).
    pub(crate) uses: Atomic<u64>,
    /// The allocator of VRAM: which of its pages are free.
    #[pin]
    pub(crate) vram: Mutex<Pages>,
    /// VRAM as control groups know it, from the beginning of [`Gpu::start`] to that of
    /// [`Gpu::stop`].
    #[pin]
    vram_region: SpinLock<Option<Arc<Region<SkuaDriver>>>>,
    /// Which identifiers of address spaces are free, and which only after a flush. The system's and
    /// the paging process' are not among them.
    #[pin]
    asids: Mutex<IdSlots<KernelHeap>>,
    /// Who looks after engines, faults and recoveries, and resets the adapter; from the end of
    /// [`Gpu::start`] until [`Gpu::stop`] makes the device quiet.
    #[pin]
    alarms: SpinLock<Option<Arc<Alarms>>>,
    /// `HEALTHY`, `WEDGED` or `GONE`; never `HEALTHY` again once it was another.
    health: Atomic<u32>,
    /// 1 once [`Gpu::lose`] has begun, so that one thread ends what is under way.
    ended: Atomic<u32>,
    /// Of the alarm that looks at how long packets take.
    pub(crate) watching: Watching,
    /// Of the alarm that looks at whose turn it is.
    pub(crate) watching_turns: Watching,
    /// Whether the device sleeps, or is about to.
    pub(crate) power: Power,
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
    /// Bytes of system memory that all clients' objects and page tables may have.
    pub(crate) system_limit: u64,
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
        settings: &Settings,
    ) -> Result<impl PinInit<Self, Error>> {
        let Settings {
            preempts,
            evicts,
            job_ms,
            acknowledge_ms,
            system_limit,
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
        let system = Quota::of_all(c"system", system_limit)?;
        let asid_count = limit.saturating_sub(first);
        let users = Users::new(&system, asid_count, MAX_CONTEXTS, MAX_EXPLICIT, MAX_PENDING)?;
        let aperture = host_aperture::window(&caps)?;
        let gart = gart::window(caps.gart_pages, GART_PAGES)?;
        let vram = vram::pages(caps.vram_size)?;
        let contexts = Slots::new(MAX_CONTEXTS)?;
        let vms = Slots::new(MAX_VMS)?;
        let movers = Slots::new(Mover::COUNT)?;
        let paging = paging_space(parent, &caps)?;
        let hw = Hardware::new(parent, regs, caps, paging)?;
        let resources = DevresSet::new(parent)?;
        let reapers = Reapers::new()?;
        let destroyer = Destroyer::new(reapers.cut())?;
        Ok(try_pin_init!(Self {
            hw <- hw,
            resources,
            bus,
            counters: Counters::new(),
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
            vram_frees: Atomic::new(0),
            making_room: Atomic::new(0),
            herald: Herald::new()?,
            users <- users,
            system,
            engines,
            paging <- new_spinlock!(None),
            movers <- movers,
            move_contexts <- MoveContexts::new(),
            contexts <- contexts,
            vms <- vms,
            evictable <- pin_init::pin_init_array_from_fn(|_| Lru::new()),
            offered <- pin_init::pin_init_array_from_fn(|_| Lru::new()),
            awake <- pin_init::pin_init_array_from_fn(|_| Lru::new()),
            resting <- Lru::new(),
            shrinker <- new_spinlock!(None),
            discarder <- new_spinlock!(None),
            pending_residency <- PendingResidency::new(),
            hold_workers: Workers::new(),
            retries <- Retries::new(),
            moves <- Moves::new(),
            pager <- Pager::new(),
            budgets <- Budgets::new(),
            fences: Owners::new()?,
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

    /// Has all engines drop the translations of an address space, or of all, and waits until they
    /// have.
    ///
    /// Process context; not from recovery. `EIO`, `ENODEV` if the device is lost.
    pub(crate) fn invalidate(&self, asid: Option<Asid>) -> Result {
        self.check_health()?;
        let request = self.hw.flush_tlb(asid)?;
        self.counters.tlb_flushes.fetch_add(1, Relaxed);
        self.wait_for(|| self.hw.is_done(request))
    }
}

/// The address space of the paging process of a device with `caps`, as it asks for it or by
/// default. `EINVAL` with a line in the log if it cannot be that large, or its tables would take
/// more than a thirty-second of the machine's memory, for good.
fn paging_space(parent: &Device<Bound>, caps: &Caps) -> Result<PagingSpace> {
    let bytes = paging::space_bytes(caps.query_paging_va(0), &caps.segments(), None).ok();
    // A device without memory was refused before: there is always one.
    let space = bytes.flatten().and_then(PagingSpace::new);
    space
        .filter(|space| space.table_bytes() <= crate::ext::memory::total() / 32)
        .ok_or_else(|| {
            dev_err!(parent, "the paging address space is too large\n");
            EINVAL
        })
}
