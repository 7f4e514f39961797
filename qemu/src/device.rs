// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The whole device: what its registers do, and what its engines share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use skua_spec::address::{PAGE_SIZE, VA_BITS};
use skua_spec::command::{MAX_GROUP_THREADS, MAX_SHARED, WAVE_THREADS};
use skua_spec::fault::Record;
use skua_spec::pci::{fault_vector, BAR_REGS_SIZE};
use skua_spec::regs;
use skua_spec::status::{Counter, COUNTERS, SNAPSHOT_ACK};

use crate::bus::{Backing, Bus, MapError, BUS_BITS};
use crate::counters::Counters;
use crate::engine::worker::Worker;
use crate::engine::{Engine, Ring};
use crate::gart::{self, Gart};
use crate::interrupt::Interrupts;
use crate::lie::{Lie, Lies};
use crate::options::Options;
use crate::registers::{EngineRegister, File, Register};
use crate::status::{FaultRing, Page, StatusPage};
use crate::vram::{self, Vram};

/// Nominal ticks in a second ([`regs::TICK_HZ`]).
pub const TICK_HZ: u32 = 1_000_000_000;

/// What the engines share with each other and with the registers.
pub(crate) struct Hub {
    pub(crate) vram: Arc<Vram>,
    pub(crate) bus: Bus,
    pub(crate) gart: Gart,
    pub(crate) status: StatusPage,
    pub(crate) counters: Counters,
    pub(crate) interrupts: Arc<dyn Interrupts>,
    lies: Arc<Lies>,
    faults: FaultRing,
    engines: Vec<Arc<Engine>>,
    /// Engines that have still to do their part of an adapter reset.
    resetting: AtomicU32,
    ready: AtomicBool,
}

impl Hub {
    /// Writes a fault record and raises the fault vector.
    pub(crate) fn report_fault(&self, record: Record) {
        self.lies.note_fault(record);
        self.report_words(1, |number| record.to_words(number));
    }

    /// Writes the words of a fault record, after which `count` more are said to be there, and
    /// raises the fault vector.
    pub(crate) fn report_words(&self, count: u32, words: impl Fn(u32) -> [u64; 8]) {
        self.faults
            .push(&self.status, &self.bus, &self.counters, count, words);
        self.counters.add(Counter::FaultInterrupt, 1);
        self.interrupts.raise(fault_vector(self.engine_count()));
    }

    /// A value in memory may have changed.
    pub(crate) fn poke_engines(&self) {
        for engine in &self.engines {
            engine.poke();
        }
    }

    /// An engine has done its part of an adapter reset. The last one ends it.
    pub(crate) fn engine_was_reset(&self) {
        if self.resetting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.faults.reset();
            self.vram.lose();
            self.ready.store(true, Ordering::Release);
        }
    }

    /// Calls `f` with engine `index`, if there is one.
    pub(crate) fn with_engine(&self, index: u32, f: impl FnOnce(&Engine)) {
        if let Some(engine) = self.engines.get(index as usize) {
            f(engine);
        }
    }

    /// Has all engines write their blocks of the status page.
    pub(crate) fn publish_engines(&self) {
        for engine in &self.engines {
            engine.publish();
        }
    }

    /// Runs `f` on the status page, if it is enabled.
    pub(crate) fn with_page(&self, f: impl FnOnce(Page<'_>)) {
        self.status.with(&self.bus, &self.counters, f);
    }

    pub(crate) fn engine_count(&self) -> u32 {
        // CAST: at most MAX_ENGINES.
        self.engines.len() as u32
    }
}

/// A Skua GPU.
///
/// Its engines' threads end when it is dropped.
pub struct Device {
    hub: Arc<Hub>,
    file: Mutex<File>,
    threads: Vec<JoinHandle<()>>,
    /// Acts for lies, once there was one.
    liar: Mutex<Option<JoinHandle<()>>>,
}

impl Device {
    /// Powers a device on.
    ///
    /// # Errors
    ///
    /// The options are not valid, or the host has no thread left.
    pub fn new(
        options: &Options,
        vram: Arc<Vram>,
        interrupts: Arc<dyn Interrupts>,
    ) -> io::Result<Self> {
        if !options.is_valid() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let engines: Vec<_> = (0..)
            .zip(&options.engines)
            .map(|(index, kind)| Arc::new(Engine::new(index, *kind)))
            .collect();
        let lies = Arc::new(Lies::new(interrupts));
        let interrupts: Arc<dyn Interrupts> = Arc::<Lies>::clone(&lies);
        let hub = Arc::new(Hub {
            vram,
            bus: Bus::default(),
            gart: Gart::default(),
            status: StatusPage::new(Arc::clone(&lies)),
            counters: Counters::default(),
            interrupts,
            lies,
            faults: FaultRing::default(),
            engines,
            resetting: AtomicU32::new(0),
            ready: AtomicBool::new(true),
        });
        let mut device = Self {
            file: Mutex::new(File::new(hub.engines.len())),
            threads: Vec::new(),
            liar: Mutex::default(),
            hub,
        };
        for engine in &device.hub.engines {
            let worker = (Arc::clone(&device.hub), Arc::clone(engine));
            let thread = std::thread::Builder::new()
                .name(format!("engine{}", engine.index))
                .spawn(move || Worker::new(worker.0, worker.1).run())?;
            device.threads.push(thread);
        }
        Ok(device)
    }

    /// Interrupt vectors: one for each engine and one for faults.
    pub fn vectors(&self) -> u32 {
        self.hub.engine_count() + 1
    }

    /// The device's memory.
    pub fn vram(&self) -> &Arc<Vram> {
        &self.hub.vram
    }

    /// The present value of a counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.hub.counters.get(counter)
    }

    /// Lets the device access the bus, or not.
    pub fn set_bus_master(&self, master: bool) {
        self.hub.bus.set_master(master);
    }

    /// Tells these lies from now on, and no others: none, to be honest.
    ///
    /// # Errors
    ///
    /// The host has no thread left.
    pub fn lie(&self, lies: &[Lie]) -> io::Result<()> {
        let mut liar = self.liar.lock().unwrap_or_else(PoisonError::into_inner);
        if liar.is_none() {
            let hub = Arc::clone(&self.hub);
            let thread = std::thread::Builder::new().name("liar".to_owned());
            *liar = Some(thread.spawn(move || hub.lies.run(&hub))?);
        }
        self.hub.lies.tell(lies);
        Ok(())
    }

    /// Makes system memory known at `address`.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn dma_map(&self, address: u64, bytes: u64, backing: Backing) -> Result<(), MapError> {
        self.hub.bus.map(address, bytes, backing)
    }

    /// Takes system memory away. When it returns, the device does not access it any more.
    pub fn dma_unmap(&self, address: u64, bytes: u64) {
        self.hub.bus.unmap(address, bytes);
    }

    /// Takes all system memory away.
    pub fn dma_unmap_all(&self) {
        self.hub.bus.unmap_all();
    }

    /// Reads from BAR0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match self.decode(offset, data.len()) {
            Some(register) => {
                self.hub.counters.add(Counter::RegisterRead, 1);
                let value = self.read_register(register);
                // CAST: below the size of the BAR.
                let value = self.hub.lies.register(offset as u32, value);
                data.copy_from_slice(&value.to_le_bytes());
            }
            None => self.bad_access(offset, data.len(), "read"),
        }
    }

    /// Writes to BAR0.
    pub fn write(&self, offset: u64, data: &[u8]) {
        let value = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        match (self.decode(offset, data.len()), value) {
            (Some(register), Ok(value)) => {
                self.hub.counters.add(Counter::RegisterWrite, 1);
                if self.hub.ready.load(Ordering::Acquire) {
                    self.write_register(register, value);
                }
            }
            _ => self.bad_access(offset, data.len(), "write"),
        }
    }

    /// Resets the adapter: a function level reset, or [`regs::DEVICE_CTRL_RESET`].
    pub fn reset(&self) {
        let mut file = self.lock();
        self.reset_locked(&mut file);
    }

    /// Whether no adapter reset is under way.
    pub fn is_ready(&self) -> bool {
        self.hub.ready.load(Ordering::Acquire)
    }

    fn reset_locked(&self, file: &mut File) {
        if !self.hub.ready.swap(false, Ordering::AcqRel) {
            return;
        }
        self.hub.counters.add(Counter::DeviceReset, 1);
        self.switch_status_off();
        self.hub.gart.latch(gart::Table::default());
        *file = File::new(self.hub.engines.len());
        self.hub
            .resetting
            .store(self.hub.engine_count(), Ordering::Release);
        for engine in &self.hub.engines {
            if !self.hub.lies.withholds_adapter_reset(engine.index) {
                engine.reset_adapter();
            }
        }
    }

    fn switch_status_off(&self) {
        if !self.hub.lies.withholds_switch_off() {
            self.hub.status.set(None);
        }
    }

    fn decode(&self, offset: u64, bytes: usize) -> Option<Register> {
        if bytes != 4 || offset % 4 != 0 || offset >= BAR_REGS_SIZE {
            return None;
        }
        Register::decode(offset, self.hub.engine_count())
    }

    fn bad_access(&self, offset: u64, bytes: usize, what: &str) {
        self.hub.counters.add(Counter::BadRegisterAccess, 1);
        tracing::debug!(offset, bytes, what, "no register answers");
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_register(&self, register: Register) -> u32 {
        let file = self.lock();
        // CAST: halves of a 64-bit quantity.
        let (lo, hi) = (|v: u64| v as u32, |v: u64| (v >> 32) as u32);
        let vram = &self.hub.vram;
        match register {
            Register::Id => regs::ID_VALUE,
            Register::Version => (regs::VERSION_MAJOR << 16) | regs::VERSION_MINOR,
            Register::Caps => self.hub.engine_count(),
            Register::MmuCaps => VA_BITS | (BUS_BITS << 8) | (16 << 16),
            Register::VramSizeLo | Register::VramVisibleLo => lo(vram.bytes()),
            Register::VramSizeHi | Register::VramVisibleHi => hi(vram.bytes()),
            Register::VramBaseLo => lo(vram::BASE),
            Register::VramBaseHi => hi(vram::BASE),
            Register::GartBaseLo => lo(gart::BASE),
            Register::GartBaseHi => hi(gart::BASE),
            Register::GartMaxPages => gart::MAX_PAGES,
            Register::DispatchCaps => MAX_GROUP_THREADS | (WAVE_THREADS << 16),
            Register::SharedCaps => MAX_SHARED,
            Register::TickHz => TICK_HZ,
            Register::DeviceCtrl => 0,
            Register::DeviceStatus if self.is_ready() => regs::DEVICE_STATUS_READY,
            Register::DeviceStatus => 0,
            Register::Scratch => file.scratch,
            Register::StatusLo => file.status.lo,
            Register::StatusHi => file.status.hi,
            Register::StatusCtrl if file.status_enabled => regs::STATUS_CTRL_ENABLE,
            Register::StatusCtrl => 0,
            Register::GartTableLo => file.gart_table.lo,
            Register::GartTableHi => file.gart_table.hi,
            Register::GartPages => file.gart_pages,
            Register::Invalidate | Register::Snapshot => 0,
            Register::FaultGet => file.fault_get,
            Register::Engine(index, register) => self.read_engine(&file, index as usize, register),
        }
    }

    fn read_engine(&self, file: &File, index: usize, register: EngineRegister) -> u32 {
        let (Some(engine), Some(file)) = (self.hub.engines.get(index), file.engines.get(index))
        else {
            return 0;
        };
        match register {
            EngineRegister::Info => engine.kind as u32,
            EngineRegister::Status => engine.state(),
            EngineRegister::RingBaseLo => file.ring_base.lo,
            EngineRegister::RingBaseHi => file.ring_base.hi,
            EngineRegister::RingSize => file.ring_size,
            EngineRegister::Head => engine.head(),
            EngineRegister::Tail => engine.tail(),
            EngineRegister::Doorbell => 0,
            EngineRegister::Ctrl if engine.is_enabled() => regs::engine::CTRL_ENABLE,
            EngineRegister::Ctrl => 0,
        }
    }

    fn write_register(&self, register: Register, value: u32) {
        let mut guard = self.lock();
        let file = &mut *guard;
        match register {
            Register::DeviceCtrl if value & regs::DEVICE_CTRL_RESET != 0 => {
                self.reset_locked(file);
            }
            Register::Scratch => file.scratch = value,
            Register::StatusLo => file.status.lo = value,
            Register::StatusHi => file.status.hi = value,
            Register::StatusCtrl => self.write_status_ctrl(file, value),
            Register::GartTableLo => file.gart_table.lo = value,
            Register::GartTableHi => file.gart_table.hi = value,
            Register::GartPages => {
                file.gart_pages = value.min(gart::MAX_PAGES);
                self.hub.gart.latch(gart::Table {
                    address: file.gart_table.value() & !(PAGE_SIZE - 1),
                    pages: file.gart_pages,
                });
            }
            Register::Invalidate => {
                file.invalidations = file.invalidations.wrapping_add(1);
                self.hub.counters.add(Counter::Invalidate, 1);
                let all = value & regs::INVALIDATE_ALL != 0;
                // CAST: the low half is the identifier.
                let asid = (!all).then_some(value as u16);
                for engine in &self.hub.engines {
                    engine.invalidate(asid, file.invalidations);
                }
            }
            Register::FaultGet => {
                file.fault_get = value;
                self.hub.faults.consumed(value);
            }
            Register::Snapshot => self.take_snapshot(file),
            Register::Engine(index, register) => {
                self.write_engine(file, index as usize, register, value);
            }
            // The rest is read only, or was written without its one meaningful bit.
            _ => {}
        }
    }

    fn write_status_ctrl(&self, file: &mut File, value: u32) {
        let enable = value & regs::STATUS_CTRL_ENABLE != 0;
        if enable == file.status_enabled {
            return;
        }
        file.status_enabled = enable;
        if !enable {
            self.switch_status_off();
            return;
        }
        let hub = &self.hub;
        hub.lies.note_page();
        hub.status.set(Some(file.status.value() & !(PAGE_SIZE - 1)));
        hub.faults.publish(&hub.status, &hub.bus, &hub.counters);
        hub.publish_engines();
    }

    fn take_snapshot(&self, file: &mut File) {
        file.snapshots = file.snapshots.wrapping_add(1);
        let (hub, snapshots) = (&self.hub, file.snapshots);
        hub.status.with(&hub.bus, &hub.counters, |page| {
            for (i, (counter, _)) in (0..).zip(Counter::ALL) {
                page.write_u64(COUNTERS + i * 8, hub.counters.get(counter));
            }
            page.write_u32(SNAPSHOT_ACK, snapshots);
        });
    }

    fn write_engine(&self, file: &mut File, index: usize, register: EngineRegister, value: u32) {
        let (Some(engine), Some(file)) = (self.hub.engines.get(index), file.engines.get_mut(index))
        else {
            return;
        };
        match register {
            EngineRegister::RingBaseLo => file.ring_base.lo = value,
            EngineRegister::RingBaseHi => file.ring_base.hi = value,
            EngineRegister::RingSize => file.ring_size = value,
            EngineRegister::Doorbell => {
                self.hub.counters.add(Counter::Doorbell, 1);
                engine.ring_doorbell(value);
            }
            EngineRegister::Ctrl if value & regs::engine::CTRL_RESET != 0 => {
                self.hub.counters.add(Counter::EngineReset, 1);
                if !self.hub.lies.withholds_engine_reset(engine.index) {
                    engine.reset();
                }
            }
            EngineRegister::Ctrl if value & regs::engine::CTRL_ENABLE != 0 => {
                let ring = Ring {
                    base: file.ring_base.value(),
                    size: file.ring_size,
                };
                self.hub.lies.note_ring(index, ring);
                engine.enable(ring);
            }
            EngineRegister::Ctrl
            | EngineRegister::Info
            | EngineRegister::Status
            | EngineRegister::Head
            | EngineRegister::Tail => {}
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for engine in &self.hub.engines {
            engine.shut_down();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an engine's thread has panicked");
            }
        }
        self.hub.lies.shut_down();
        let liar = self.liar.get_mut().unwrap_or_else(PoisonError::into_inner);
        if liar.take().is_some_and(|liar| liar.join().is_err()) {
            tracing::error!("the liar's thread has panicked");
        }
    }
}
