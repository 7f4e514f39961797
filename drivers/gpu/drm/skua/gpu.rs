// SPDX-License-Identifier: GPL-2.0

//! The device: what all other parts share.
//!
//! [`Gpu`] is the data of the DRM device and lives as long as that, beyond unbind, while files are open. What
//! is tied to the bound device (registers, shared memory, DMA mappings) is revoked at unbind, and every
//! access says so by an error.
//!
//! # When the device is lost
//!
//! A device that is unplugged, does not acknowledge in time, or reports what cannot be, is *lost*
//! ([`Gpu::lose`]), once: engines take no more work, all contexts and address spaces finish what they have
//! with `ENODEV`, every fence signals. Ioctls fail with `ENODEV` (unplugged) or `EIO` (not answering) until
//! the device is bound again.
//!
//! # Locks, outermost first
//!
//! ```text
//! Vm::map, Context::order        mutexes, ioctls only, allocate
//! vram, asids                    mutexes, allocate
//! Engine::turn, PageTable::root,  mutexes, taken by work that fences depend on: nothing allocates
//!   translations
//! hooks, Engine::state           spin locks
//!   Context::pending, Vm::binds, Slots, Job::fence
//! ```
//!
//! The reservation lock of a buffer object comes before `vram` and after `Vm::map`.

use crate::{
    driver::SkuaDriver,
    ext::queue::OwnedQueue,
    hardware::{
        caps::{
            Caps,
            GART_PAGES, //
        },
        registers::Registers,
        shared::{
            Shared,
            MAX_CONTEXTS, //
        }, //
    },
    kernel_heap::KernelHeap,
    memory::{
        bo::REGION_SYSTEM,
        vm::Vm,
        vram::{
            self,
            Pages, //
        }, //
    },
    policy::id_slots::{
        IdError,
        IdSlots, //
    },
    slots::Slots,
    spec::{
        command::EngineKind,
        regs,
        status::{
            self,
            Counter, //
        }, //
    },
    submit::{
        context::{
            Context,
            Status, //
        },
        engine::Engine,
        recovery::Hooks, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    devres::Devres,
    drm,
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// The DRM device.
pub(crate) type SkuaDevice<Ctx = drm::Normal> = drm::Device<SkuaDriver, Ctx>;

/// Address spaces that can exist at a time, the system's included.
const MAX_VMS: u32 = 1024;
/// How long the device may take to acknowledge: register protocols are quick, hosts may be slow.
pub(crate) const ACK_TIMEOUT: Delta = Delta::from_millis(5000);

/// The device works.
const HEALTHY: u32 = 0;
/// The device does not answer.
const WEDGED: u32 = 1;
/// The device is gone.
const GONE: u32 = 2;

/// Requests to drop translations.
pub(crate) struct Translations {
    /// Requests written so far.
    requests: u32,
}

/// What the driver counts, for debugfs.
pub(crate) struct Counters {
    /// Submissions accepted.
    pub(crate) submissions: Atomic<u64>,
    /// Binds accepted.
    pub(crate) binds: Atomic<u64>,
    /// Interrupts handled.
    pub(crate) interrupts: Atomic<u64>,
    /// Engine resets.
    pub(crate) resets: Atomic<u64>,
    /// Translations flushed.
    pub(crate) flushes: Atomic<u64>,
}

/// The device's data.
#[pin_data]
pub(crate) struct Gpu {
    pub(crate) caps: Caps,
    pub(crate) regs: Registers,
    pub(crate) shared: Devres<Shared>,
    pub(crate) queue: Arc<OwnedQueue>,
    pub(crate) counters: Counters,
    engines: KVec<Pin<KBox<Engine>>>,
    #[pin]
    pub(crate) contexts: Slots<Context>,
    #[pin]
    pub(crate) vms: Slots<Vm>,
    #[pin]
    pub(crate) vram: Mutex<Pages>,
    #[pin]
    asids: Mutex<IdSlots<KernelHeap>>,
    #[pin]
    translations: Mutex<Translations>,
    #[pin]
    hooks: SpinLock<Option<Arc<Hooks>>>,
    health: Atomic<u32>,
    watching: Atomic<u32>,
    system_limit: u64,
    system_used: Atomic<u64>,
}

impl Gpu {
    /// Sets the device up to its first idle moment. Nobody else knows of it yet.
    ///
    /// `ENOMEM`; `ETIMEDOUT` if the device does not get ready; `ENODEV`.
    pub(crate) fn new(
        parent: &Device<Bound>,
        regs: Registers,
        caps: Caps,
        queue: Arc<OwnedQueue>,
        system_limit: u64,
    ) -> Result<impl PinInit<Self, Error>> {
        reset(&regs)?;
        let shared = Shared::new(parent, &caps)?;
        regs.write_pair(regs::STATUS_LO, shared.status_address())?;
        regs.write(regs::STATUS_CTRL, regs::STATUS_CTRL_ENABLE)?;
        regs.write_pair(regs::GART_TABLE_LO, shared.gart_address())?;
        regs.write(regs::GART_PAGES, GART_PAGES)?;

        let mut engines = KVec::with_capacity(caps.engines.len(), GFP_KERNEL)?;
        for (index, kind) in (0..).zip(&caps.engines) {
            engines.push(Engine::new(index, *kind)?, GFP_KERNEL)?;
        }
        let limit = MAX_VMS.min(1 << caps.asid_bits.min(16));
        let asids = IdSlots::new(1, limit)?;
        let vram = vram::pages(caps.vram_size)?;
        let contexts = Slots::new(MAX_CONTEXTS)?;
        let vms = Slots::new(MAX_VMS)?;
        let shared = Devres::new(parent, Ok::<_, Error>(shared))?;
        Ok(try_pin_init!(Self {
            caps,
            regs,
            shared,
            queue,
            counters: Counters {
                submissions: Atomic::new(0),
                binds: Atomic::new(0),
                interrupts: Atomic::new(0),
                resets: Atomic::new(0),
                flushes: Atomic::new(0),
            },
            engines,
            contexts <- contexts,
            vms <- vms,
            vram <- new_mutex!(vram),
            asids <- new_mutex!(asids),
            translations <- new_mutex!(Translations { requests: 0 }),
            hooks <- new_spinlock!(None),
            health: Atomic::new(HEALTHY),
            watching: Atomic::new(0),
            system_limit,
            system_used: Atomic::new(0),
        }))
    }

    /// Engine number `index`. `EINVAL` if there is none.
    pub(crate) fn engine(&self, index: u32) -> Result<&Engine> {
        let engine = self.engines.get(usize::try_from(index)?).ok_or(EINVAL)?;
        Ok(engine)
    }

    /// All engines, in order.
    pub(crate) fn engines(&self) -> impl Iterator<Item = (u32, &Engine)> {
        (0..).zip(self.engines.iter().map(|engine| &**engine))
    }

    /// The engine for paging: the first that copies.
    pub(crate) fn paging_engine(&self) -> Result<&Engine> {
        self.engines()
            .map(|(_, engine)| engine)
            .find(|engine| engine.kind() == EngineKind::Copy)
            .ok_or(EIO)
    }

    /// `EIO` or `ENODEV` once the device is lost.
    pub(crate) fn check_health(&self) -> Result {
        match self.health.load(Acquire) {
            HEALTHY => Ok(()),
            WEDGED => Err(EIO),
            _ => Err(ENODEV),
        }
    }

    /// Gives the device its alarms; from now on it looks after its engines.
    pub(crate) fn attach(&self, hooks: Arc<Hooks>) {
        *self.hooks.lock() = Some(hooks);
    }

    /// Takes the alarms; dropping them stops them.
    pub(crate) fn detach(&self) -> Option<Arc<Hooks>> {
        self.hooks.lock().take()
    }

    /// Has faults looked at soon. Process context.
    pub(crate) fn look_at_faults(&self) {
        if let Some(hooks) = &*self.hooks.lock() {
            hooks.faults.kick();
        }
    }

    /// Has the watchdog run while an engine has work.
    pub(crate) fn watch(&self) {
        if self.watching.load(Relaxed) != 0 || self.watching.xchg(1, Full) != 0 {
            return;
        }
        if let Some(hooks) = &*self.hooks.lock() {
            hooks.start_watchdog();
        }
    }

    /// The watchdog stops, unless [`Gpu::watch`] starts it again.
    pub(crate) fn stop_watching(&self) {
        self.watching.store(0, kernel::sync::atomic::Release);
    }

    /// The watchdog goes on. Whether nobody else has started it meanwhile.
    pub(crate) fn go_on_watching(&self) -> bool {
        self.watching.xchg(1, Full) == 0
    }

    /// Declares the device lost soon, from where it cannot be done at once. Process context.
    pub(crate) fn lose_later(&self) {
        if let Some(hooks) = &*self.hooks.lock() {
            hooks.lose();
        }
    }

    /// Charges system memory to the device's limit. `ENOMEM` beyond it.
    pub(crate) fn charge_system(&self, bytes: u64) -> Result {
        let mut used = self.system_used.load(Relaxed);
        loop {
            let new = used
                .checked_add(bytes)
                .filter(|new| *new <= self.system_limit)
                .ok_or(ENOMEM)?;
            match self.system_used.cmpxchg(used, new, Full) {
                Ok(_) => return Ok(()),
                Err(now) => used = now,
            }
        }
    }

    /// Gives back what [`Gpu::charge_system`] charged.
    pub(crate) fn uncharge_system(&self, bytes: u64) {
        // No wrap: what was charged before.
        self.system_used.fetch_sub(bytes, Full);
    }

    /// Size and use in bytes of a region of the uAPI.
    pub(crate) fn region_usage(&self, region: u32) -> (u64, u64) {
        if region == REGION_SYSTEM {
            return (self.system_limit, self.system_used.load(Relaxed));
        }
        let vram = self.vram.lock();
        let size = vram.total().0.saturating_mul(4096);
        let free = vram.free_pages().0.saturating_mul(4096);
        (size, size.saturating_sub(free))
    }

    /// An address space identifier that no TLB knows. `ENOSPC`, `EIO`, `ENODEV`.
    pub(crate) fn reserve_asid(&self) -> Result<u32> {
        let mut asids = self.asids.lock();
        let mut id = asids.alloc();
        if let Err(IdError::FlushNeeded { epoch }) = id {
            self.invalidate(None)?;
            asids.flushed(epoch);
            id = asids.alloc();
        }
        id.map_err(|_| ENOSPC)
    }

    /// Gives an identifier back, to be used again after the next flush.
    pub(crate) fn release_asid(&self, asid: u32) {
        // All flushes are whole, so there is one epoch: the next flush.
        let _ = self.asids.lock().free(asid, 0);
        self.vms.release(asid);
    }

    /// Has all engines drop the translations of an address space, or of all, and waits until they have.
    ///
    /// Process context; bounded by [`ACK_TIMEOUT`], after which the device is lost. `EIO`, `ENODEV`.
    pub(crate) fn invalidate(&self, asid: Option<u16>) -> Result {
        self.check_health()?;
        let value = asid.map_or(regs::INVALIDATE_ALL, u32::from);
        let request = {
            let mut translations = self.translations.lock();
            self.regs.write(regs::INVALIDATE, value)?;
            translations.requests = translations.requests.wrapping_add(1);
            translations.requests
        };
        self.counters.flushes.fetch_add(1, Relaxed);
        for (index, _) in self.engines() {
            self.wait_for(|shared| {
                let ack = shared.engine32(index, status::engine::INVALIDATE_ACK)?;
                // Modulo 2^32: at most half of it behind.
                Ok(ack.wrapping_sub(request) < 1 << 31)
            })?;
        }
        Ok(())
    }

    /// Waits until `done` says so of the shared memory. Process context.
    ///
    /// `EIO` after [`ACK_TIMEOUT`], with the device to be lost; `ENODEV` if it is unbound.
    pub(crate) fn wait_for(&self, mut done: impl FnMut(&Shared) -> Result<bool>) -> Result {
        let start = Instant::<Monotonic>::now();
        loop {
            let shared = self.shared.try_access().ok_or(ENODEV)?;
            if done(&shared)? {
                return Ok(());
            }
            drop(shared);
            if start.elapsed() > ACK_TIMEOUT {
                pr_err!("the device does not acknowledge\n");
                self.lose_later();
                return Err(EIO);
            }
            self.check_health()?;
            fsleep(Delta::from_micros(20));
        }
    }

    /// Copies the device's counters to where [`Shared::counter`] finds them.
    pub(crate) fn snapshot(&self) -> Result {
        let before = self.shared.try_access().ok_or(ENODEV)?.snapshot_ack()?;
        self.regs.write(regs::SNAPSHOT, 1)?;
        self.wait_for(|shared| Ok(shared.snapshot_ack()? != before))
    }

    /// Calls `f` with the name and value of each of the device's counters, as of the last snapshot.
    pub(crate) fn counters(&self, mut f: impl FnMut(&str, u64)) -> Result {
        for (counter, name) in Counter::ALL {
            // Not over a call that may sleep.
            let value = self
                .shared
                .try_access()
                .ok_or(ENODEV)?
                .counter(counter as u32)?;
            f(name, value);
        }
        Ok(())
    }

    /// The device is lost: `gone` if it was unplugged. Everything that is under way ends with `ENODEV`.
    ///
    /// Process context; not from work that itself waits for what is ended here.
    pub(crate) fn lose(dev: &SkuaDevice, gone: bool) {
        let new = if gone { GONE } else { WEDGED };
        let old = dev.health.xchg(new, Full);
        if old == GONE {
            dev.health.store(GONE, kernel::sync::atomic::Release);
        }
        if old != HEALTHY && !gone {
            return;
        }
        if !gone {
            pr_err!("the device is lost; unbind and bind it to use it again\n");
        }
        for (index, engine) in dev.engines() {
            // If it still listens, it stops its accesses to memory.
            let reset = regs::engine::CTRL_RESET;
            let _ = dev.regs.write_engine(index, regs::engine::CTRL, reset);
            engine.lose(dev);
        }
        dev.contexts.for_each(|context| context.close(Status::Lost));
        dev.vms.for_each(|vm| vm.lose());
    }
}

/// Resets the adapter and waits until it is ready. `ETIMEDOUT`, `ENODEV`.
fn reset(regs: &Registers) -> Result {
    regs.write(regs::DEVICE_CTRL, regs::DEVICE_CTRL_RESET)?;
    let start = Instant::<Monotonic>::now();
    loop {
        let status = regs.read(regs::DEVICE_STATUS)?;
        // All ones are no device at all.
        if status != u32::MAX && status & regs::DEVICE_STATUS_READY != 0 {
            return Ok(());
        }
        if start.elapsed() > ACK_TIMEOUT {
            return Err(ETIMEDOUT);
        }
        fsleep(Delta::from_micros(100));
    }
}
