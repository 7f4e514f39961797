// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The whole device: what its registers do, and what its engines share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use skua_spec::address::{GpuPhys, VA_BITS};
use skua_spec::aperture::Entry;
use skua_spec::command::{EngineKind, MAX_GROUP_THREADS, MAX_SHARED, WAVE_THREADS};
use skua_spec::fault::Record;
use skua_spec::mmu::{self, Target};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::pci::fault_vector;
use skua_spec::preemption::Level;
use skua_spec::register::Half;
use skua_spec::regs::{self, Decoded, DeviceRegister, EngineRegister};
use skua_spec::status::{self, Counter, APERTURE_ACK, APERTURE_REFUSED, SNAPSHOT_ACK};
use vm_memory::Bytes;

use crate::bus::{Backing, Bus, MapError, BUS_BITS};
use crate::counters::Counters;
use crate::engine::alarm::Alarm;
use crate::engine::lockstep::Lockstep;
use crate::engine::pace::Seed;
use crate::engine::save::SAVE_SIZE;
use crate::engine::worker::Worker;
use crate::engine::{Engine, Moderation, Ring};
use crate::events::Events;
use crate::gart::{self, Gart};
use crate::interrupt::Interrupts;
use crate::lie::{Kind, Lie, Lies, TABLE};
use crate::options::{Options, Stepping};
use crate::registers::File;
use crate::status::{FaultRing, Page, StatusPage};
use crate::vram::{self, Vram};

/// Nominal ticks in a second ([`struct@regs::TICK_HZ`]).
pub const TICK_HZ: u32 = 1_000_000_000;
/// log2 of the number of address space identifiers.
const ASID_BITS: u8 = 16;

/// What the engines share with each other and with the registers.
pub(crate) struct Hub {
    /// Shared with the server, which maps it into the guest.
    pub(crate) vram: Arc<Vram>,
    /// System memory, as far as the guest lets the device see it.
    pub(crate) bus: Bus,
    /// What GART_TABLE and GART_PAGES latched.
    pub(crate) gart: Gart,
    /// What STATUS and STATUS_CTRL latched.
    pub(crate) status: StatusPage,
    /// Sums of what engines and registers have counted.
    pub(crate) counters: Counters,
    /// By which vectors are raised in the guest, see [`Self::raise`].
    interrupts: Arc<dyn Interrupts>,
    /// Shared with the status page and the thread that acts for them.
    pub(crate) lies: Arc<Lies>,
    /// From what the engines draw how long their steps are.
    pub(crate) pace: Seed,
    /// Where the engines tell what they do, if anybody wants to know.
    pub(crate) events: OnceLock<Arc<Events>>,
    /// Counts of the ring of records, which lies in the status page.
    faults: FaultRing,
    /// The engines, by their indices.
    engines: Vec<Arc<Engine>>,
    /// Engines that have still to do their part of an adapter reset.
    resetting: AtomicU32,
    /// DEVICE_STATUS's READY.
    ready: AtomicBool,
}

impl Hub {
    /// Raises `vector`, and counts that, unless the device is no bus master: an interrupt is a
    /// write to memory. When bus mastering was turned off, none is under way.
    ///
    /// The caller holds no [`crate::bus::BusGuard`].
    pub(crate) fn raise(&self, vector: u32, counter: Option<Counter>) {
        let bus = self.bus.enter();
        if !bus.is_master() {
            return;
        }
        if let Some(counter) = counter {
            self.counters.add(counter, 1);
        }
        self.interrupts.raise(vector);
    }

    /// Writes a fault record and raises the fault vector.
    pub(crate) fn report_fault(&self, record: Record) {
        self.lies.note_fault(record);
        self.report_words(1, |number| self.lies.fault_words(record.to_words(number)));
    }

    /// Writes the words of a fault record, after which `count` more are said to be there, and
    /// raises the fault vector.
    pub(crate) fn report_words(&self, count: u32, words: impl Fn(u32) -> [u64; 8]) {
        self.faults
            .push(&self.status, &self.bus, &self.counters, count, words);
        let vector = fault_vector(self.engine_count());
        self.raise(vector, Some(Counter::FaultInterrupt));
    }

    /// Raises an engine's vector for a preemption.
    pub(crate) fn raise_preempted(&self, index: EngineIndex) {
        for _ in 0..self.lies.preempt_interrupts() {
            self.raise(index.get(), Some(Counter::EngineInterrupt));
        }
    }

    /// Asks an engine to stop for the preemption `fence`.
    pub(crate) fn preempt(&self, engine: &Engine, fence: u64) {
        let counter = if engine.preempt(fence) {
            Counter::Preempt
        } else {
            Counter::PreemptIgnored
        };
        self.counters.add(counter, 1);
    }

    /// A value in memory may have changed.
    pub(crate) fn poke_engines(&self) {
        for engine in &self.engines {
            engine.poke();
        }
    }

    /// What the engines wait for may be there.
    pub(crate) fn wake_engines(&self) {
        for engine in &self.engines {
            engine.wake_up();
        }
    }

    /// Has all engines but `index` drop translations, sooner or later.
    pub(crate) fn invalidate_others(&self, index: EngineIndex, asid: Option<Asid>) -> Asked {
        let asid = self.lies.invalidated(asid);
        let others = self.engines.iter().filter(|engine| engine.index != index);
        let ask = |engine: &Arc<Engine>| (Arc::clone(engine), engine.invalidate_for_another(asid));
        Asked(others.map(ask).collect())
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
    pub(crate) fn with_engine(&self, index: EngineIndex, f: impl FnOnce(&Engine)) {
        if let Some(engine) = self.engines.get(index.index()) {
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

/// An invalidation that one engine asked of the others: their numbers of the request.
pub(crate) struct Asked(Vec<(Arc<Engine>, u64)>);

impl Asked {
    /// Whether all have dropped what they were to.
    pub(crate) fn is_done(&self) -> bool {
        self.0
            .iter()
            .all(|(engine, number)| engine.has_dropped(*number))
    }
}

/// Ends the process if the thread that holds it panics: an engine that is gone would leave a driver
/// waiting for ever, where a device that is gone is noticed at once.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// A Skua GPU.
///
/// Its engines' threads end when it is dropped.
pub struct Device {
    /// Shared with the engines' threads.
    hub: Arc<Hub>,
    /// The registers that only hold what was written.
    file: Mutex<File>,
    /// What it was made with.
    options: Options,
    /// Threads in which the engines work, joined by drop.
    threads: Vec<JoinHandle<()>>,
    /// The engines, where no thread of the device has them work.
    lockstep: Option<Mutex<Lockstep>>,
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
        let shared = Arc::<Alarm>::default();
        let alarm = || match options.stepping {
            Stepping::Threads => Arc::default(),
            Stepping::Clock | Stepping::Caller => Arc::clone(&shared),
        };
        let engines: Vec<_> = EngineIndex::ALL
            .into_iter()
            .zip(&options.engines)
            .map(|(index, kind)| Arc::new(Engine::new(index, *kind, alarm())))
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
            pace: Seed::default(),
            events: OnceLock::new(),
            faults: FaultRing::default(),
            engines,
            resetting: AtomicU32::new(0),
            ready: AtomicBool::new(true),
        });
        let mut device = Self {
            file: Mutex::new(Self::power_on(&hub, options)),
            options: options.clone(),
            threads: Vec::new(),
            lockstep: None,
            liar: Mutex::default(),
            hub,
        };
        let worker = |engine: &Arc<Engine>| {
            let (hub, engine) = (Arc::clone(&device.hub), Arc::clone(engine));
            Worker::new(hub, engine, options)
        };
        let workers: Vec<_> = device.hub.engines.iter().map(worker).collect();
        match options.stepping {
            Stepping::Threads => {
                for (index, worker) in workers.into_iter().enumerate() {
                    let brake = options.brake();
                    device.spawn(format!("engine{index}"), move || worker.run(brake))?;
                }
            }
            Stepping::Clock => {
                let lockstep = Lockstep::new(workers);
                let brake = options.brake();
                device.spawn("engines".to_owned(), move || lockstep.run(&shared, brake))?;
            }
            Stepping::Caller => device.lockstep = Some(Mutex::new(Lockstep::new(workers))),
        }
        Ok(device)
    }

    /// Has a thread do `f` until the device ends.
    fn spawn(&mut self, name: String, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _abort = AbortOnPanic;
            f();
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Has the engines work until the device clock (manual section 3) shows `ticks` more, or until
    /// none has anything to do; what registers were written takes effect at the time that it shows
    /// before. Returns what it shows then: `None`, and nothing happens, unless the device was made
    /// with [`Stepping::Caller`].
    pub fn advance(&self, ticks: u64) -> Option<u64> {
        let lockstep = self.lockstep.as_ref()?;
        let mut lockstep = lockstep.lock().unwrap_or_else(PoisonError::into_inner);
        lockstep.advance(ticks);
        Some(lockstep.clock())
    }

    /// Interrupt vectors: one for each engine and one for faults.
    pub fn vectors(&self) -> u32 {
        self.hub.engine_count() + 1
    }

    /// For whom also maps it: the server, and tests.
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

    /// Whether the device lies that its bus mastering cannot be turned off.
    pub fn stays_master(&self) -> bool {
        self.hub.lies.stays_master()
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

    /// How often each of the lies was told that are told now, by its name ([`crate::lie::TABLE`]).
    /// A lie that comes by itself, from time to time, is not counted.
    pub fn told(&self) -> Vec<(&'static str, u64)> {
        let name = |kind: Kind| TABLE.iter().find(|(it, ..)| *it == kind).map(|it| it.1);
        let told = self.hub.lies.told().into_iter();
        told.filter_map(|(kind, times)| Some((name(kind)?, times)))
            .collect()
    }

    /// Has each engine look whether it is to stop behind so many ticks, from 1 to what the manual
    /// allows, as random numbers say, each time another; 0 has it look as seldom as it may.
    pub fn draw_steps(&self, seed: u64) {
        self.hub.pace.set(seed);
    }

    /// Records from now on what the engines do. Only the first record counts.
    pub fn record(&self, events: Events) {
        // A second one has nothing in it but its first line.
        drop(self.hub.events.set(Arc::new(events)));
    }

    /// What the GART's table says of page `page` of its window, with the first 8 bytes that the
    /// device finds there: a look from outside, which no counter and no TLB notices. [`None`] if
    /// nothing answers, or there is no such entry.
    pub fn look_at_gart(&self, page: u32) -> Option<(mmu::Entry, u64)> {
        let table = self.hub.gart.table();
        if page >= table.pages {
            return None;
        }
        let bus = self.hub.bus.enter();
        let word = |address| {
            let slice = bus.slice(address, 8, false)?;
            let mut word = [0; 8];
            (slice.copy_to(&mut word[..]) == 8).then_some(u64::from_le_bytes(word))
        };
        // The guest may have put it anywhere.
        let at = table.address.checked_add(u64::from(page) * 8)?;
        let entry = mmu::Entry(word(at)?);
        match entry.target() {
            Target::System(address) if entry.is_valid() => Some((entry, word(address.0)?)),
            _ => None,
        }
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

    /// Reads from BAR0, and has effect as if the guest did.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match self.decode(offset, data.len()) {
            Some((register, half)) => {
                self.hub.counters.add(Counter::RegisterRead, 1);
                let word = half.of(self.read_register(register));
                let word = self.hub.lies.register(register, half, word);
                data.copy_from_slice(&word.to_le_bytes());
            }
            None => self.bad_access(offset, data.len(), "read"),
        }
    }

    /// Writes to BAR0; what it starts may end after it has returned.
    pub fn write(&self, offset: u64, data: &[u8]) {
        let word = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        match (self.decode(offset, data.len()), word) {
            (Some((register, half)), Ok(word)) => {
                self.hub.counters.add(Counter::RegisterWrite, 1);
                if self.hub.ready.load(Ordering::Acquire) {
                    self.write_register(register, half, word);
                }
            }
            _ => self.bad_access(offset, data.len(), "write"),
        }
    }

    /// Reads from BAR2: ones, where it shows nothing.
    pub fn read_vram(&self, offset: u64, data: &mut [u8]) {
        self.hub.counters.add(Counter::VramBarRead, 1);
        data.fill(0xff);
        if let Some(slice) = self.hub.vram.visible_slice(offset, data.len() as u64) {
            slice.copy_to(data);
        }
    }

    /// Writes to BAR2.
    pub fn write_vram(&self, offset: u64, data: &[u8]) {
        self.hub.counters.add(Counter::VramBarWrite, 1);
        if let Some(slice) = self.hub.vram.visible_slice(offset, data.len() as u64) {
            slice.copy_from(data);
        }
    }

    /// Reads from BAR4: ones, where it shows nothing.
    pub fn read_aperture(&self, offset: u64, data: &mut [u8]) {
        self.hub.counters.add(Counter::ApertureRead, 1);
        if self.hub.vram.read_aperture(offset, data) {
            self.unmapped_access(offset, "read");
        }
    }

    /// Writes to BAR4.
    pub fn write_aperture(&self, offset: u64, data: &[u8]) {
        self.hub.counters.add(Counter::ApertureWrite, 1);
        if self.hub.vram.write_aperture(offset, data) {
            self.unmapped_access(offset, "write");
        }
    }

    fn unmapped_access(&self, offset: u64, what: &str) {
        self.hub.counters.add(Counter::ApertureUnmapped, 1);
        tracing::debug!(offset, what, "a page of the aperture that shows nothing");
    }

    /// Resets the adapter: a function level reset, or [`regs::DEVICE_CTRL::reset`].
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
        self.hub.lies.note_adapter_reset();
        self.switch_status_off();
        self.hub.gart.latch(gart::Table::default());
        self.hub.vram.forget_aperture();
        *file = Self::power_on(&self.hub, &self.options);
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

    /// The register that answers an access, and the word of it.
    fn decode(&self, offset: u64, bytes: usize) -> Option<(Decoded, Half)> {
        if bytes != 4 {
            return None;
        }
        Decoded::at(u32::try_from(offset).ok()?).filter(|(register, _)| match register {
            Decoded::Device(_) => true,
            Decoded::Engine(index, _) => index.get() < self.hub.engine_count(),
        })
    }

    fn bad_access(&self, offset: u64, bytes: usize, what: &str) {
        self.hub.counters.add(Counter::BadRegisterAccess, 1);
        tracing::debug!(offset, bytes, what, "no register answers");
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registers after a reset.
    fn power_on(hub: &Hub, options: &Options) -> File {
        let mut file = File::new(hub.engines.len());
        file.set(regs::ID::SKUA);
        file.set(regs::VERSION::CURRENT);
        // CAST: at most MAX_ENGINES.
        file.set(regs::CAPS::new().with_engines(hub.engines.len() as u8));
        // CAST: 64 at most.
        file.set(
            regs::MMU_CAPS::new()
                .with_va_bits(VA_BITS as u8)
                .with_bus_bits(BUS_BITS as u8)
                .with_asid_bits(ASID_BITS),
        );
        file.set(regs::VRAM_SIZE::new().with_bytes(hub.vram.bytes()));
        file.set(regs::VRAM_BASE::new().with_address(GpuPhys(vram::BASE)));
        let layout = hub.vram.layout();
        file.set(regs::VRAM_VISIBLE::new().with_bytes(layout.visible));
        file.set(regs::GART_BASE::new().with_address(GpuPhys(gart::BASE)));
        file.set(regs::GART_MAX_PAGES::new().with_pages(options.gart_pages));
        // CAST: 1024 and 32.
        file.set(
            regs::DISPATCH_CAPS::new()
                .with_group_threads(MAX_GROUP_THREADS as u16)
                .with_wave_threads(WAVE_THREADS as u8),
        );
        file.set(regs::SHARED_CAPS::new().with_bytes(MAX_SHARED));
        file.set(regs::TICK_HZ::new().with_hz(TICK_HZ));
        if let Some(aperture) = layout.aperture {
            file.set(
                regs::APERTURE_CAPS::new()
                    .with_page_shift(aperture.size.shift())
                    .with_cached(aperture.cached),
            );
            file.set(regs::APERTURE_PAGES::new().with_pages(aperture.pages));
        }
        file.set(regs::PAGING_VA::new().with_megabytes(options.paging_va));
        file.set(regs::SAVE_SIZE::new().with_bytes(SAVE_SIZE));
        let mut preempts = false;
        for engine in &hub.engines {
            let preemption = options.preemption(engine.index);
            let graphics = match engine.kind {
                EngineKind::Compute => preemption.graphics,
                EngineKind::Copy => Level::None,
            };
            preempts |= [graphics, preemption.compute] != [Level::None; 2];
            file.set_engine(
                engine.index,
                regs::engine::INFO::new()
                    .with_kind(engine.kind)
                    .with_graphics(graphics)
                    .with_compute(preemption.compute),
            );
        }
        file.set(
            regs::SCHEDULING::new()
                .with_multi_engine(true)
                .with_preemption(preempts)
                .with_no_patching(preempts)
                .with_cancel(true),
        );
        file
    }

    fn read_register(&self, register: Decoded) -> u64 {
        match register {
            Decoded::Device(DeviceRegister::DEVICE_STATUS) => regs::DEVICE_STATUS::new()
                .with_ready(self.is_ready())
                .bits(),
            Decoded::Engine(index, register) if self.is_ready() => {
                self.read_engine(index, register)
            }
            // In an adapter reset those of engines have taken their reset values, too, before the
            // engines' threads come to it.
            _ => self.lock().held(register),
        }
    }

    fn read_engine(&self, index: EngineIndex, register: EngineRegister) -> u64 {
        let engine = &self.hub.engines[index.index()];
        match register {
            EngineRegister::STATUS => engine.state().into(),
            EngineRegister::HEAD => regs::engine::HEAD::new().with_offset(engine.head()).bits(),
            EngineRegister::TAIL => regs::engine::TAIL::new().with_offset(engine.tail()).bits(),
            EngineRegister::CTRL => regs::engine::CTRL::new()
                .with_enable(engine.is_enabled())
                .bits(),
            _ => self.lock().held(Decoded::Engine(index, register)),
        }
    }

    fn write_register(&self, register: Decoded, half: Half, word: u32) {
        let mut guard = self.lock();
        let file = &mut *guard;
        let old = file.held(register);
        let bits = file.write(register, half, word);
        let register = match register {
            Decoded::Device(register) => register,
            Decoded::Engine(index, register) => {
                return self.write_engine(file, index, register, bits);
            }
        };
        match register {
            DeviceRegister::DEVICE_CTRL if regs::DEVICE_CTRL::from_bits(bits).reset() => {
                self.reset_locked(file);
            }
            DeviceRegister::STATUS_CTRL => {
                self.write_status_ctrl(file, regs::STATUS_CTRL::from_bits(old));
            }
            DeviceRegister::GART_PAGES => {
                let pages = file.get::<regs::GART_PAGES>().pages();
                let pages = pages.min(self.options.gart_pages);
                file.set(regs::GART_PAGES::new().with_pages(pages));
                self.hub.gart.latch(gart::Table {
                    address: file.get::<regs::GART_TABLE>().address().0,
                    pages,
                });
            }
            DeviceRegister::INVALIDATE => {
                file.invalidations = file.invalidations.wrapping_add(1);
                self.hub.counters.add(Counter::Invalidate, 1);
                let asid = regs::INVALIDATE::from_bits(bits).target();
                let asid = self.hub.lies.invalidated(asid);
                for engine in &self.hub.engines {
                    engine.invalidate(asid, file.invalidations);
                }
            }
            DeviceRegister::FAULT_GET => {
                let records = file.get::<regs::FAULT_GET>().records();
                self.hub.faults.consumed(records);
                self.hub.lies.note_fault_get(&self.hub);
            }
            DeviceRegister::SNAPSHOT => self.take_snapshot(file),
            DeviceRegister::APERTURE_FLUSH => {
                self.flush_aperture(file, regs::APERTURE_FLUSH::from_bits(bits));
            }
            // What is read only, or nothing but held; or DEVICE_CTRL without its bit.
            _ => {}
        }
    }

    fn write_status_ctrl(&self, file: &File, old: regs::STATUS_CTRL) {
        let enable = file.get::<regs::STATUS_CTRL>().enable();
        if enable == old.enable() {
            return;
        }
        if !enable {
            self.switch_status_off();
            return;
        }
        let hub = &self.hub;
        let address = file.get::<regs::STATUS>().address();
        hub.lies.note_page();
        hub.status.set(Some(address.0));
        hub.faults.publish(&hub.status, &hub.bus, &hub.counters);
        hub.with_page(|page| {
            page.write_u32(SNAPSHOT_ACK, file.snapshots);
            page.write_u32(APERTURE_REFUSED, file.aperture_refused);
            page.write_u32(APERTURE_ACK, file.aperture_flushes);
        });
        hub.publish_engines();
    }

    fn take_snapshot(&self, file: &mut File) {
        file.snapshots = file.snapshots.wrapping_add(1);
        let (hub, snapshots) = (&self.hub, file.snapshots);
        hub.status.with(&hub.bus, &hub.counters, |page| {
            for (counter, _) in Counter::ALL {
                let at = status::counter(counter as u32);
                page.write_u64(at, hub.counters.get(counter));
            }
            page.write_u32(SNAPSHOT_ACK, snapshots);
        });
    }

    fn flush_aperture(&self, file: &mut File, flush: regs::APERTURE_FLUSH) {
        let hub = &self.hub;
        hub.counters.add(Counter::ApertureFlush, 1);
        let first = u32::from(flush.first());
        let end = first + u32::from(flush.count());
        let end = end.min(file.get::<regs::APERTURE_PAGES>().pages());
        let table = file.get::<regs::APERTURE_TABLE>().address().0;
        let entries: Vec<_> = {
            let bus = hub.bus.enter();
            let entry = |page: u32| {
                let address = table.wrapping_add(u64::from(page) * Entry::SIZE);
                let slice = bus.slice(address, Entry::SIZE, false)?;
                let bits: u64 = slice.load(0, Ordering::Acquire).ok()?;
                Some(Entry(u64::from_le(bits)))
            };
            (first..end).map(entry).collect()
        };
        let unread = entries.iter().filter(|entry| entry.is_none()).count();
        hub.counters.add(Counter::BusError, unread as u64);
        let flushed = hub.vram.flush_aperture(first, &entries);
        let strays = u64::from(flushed.strays);
        hub.counters.add(Counter::ApertureUnmapped, strays);
        file.aperture_flushes = file.aperture_flushes.wrapping_add(1);
        file.aperture_refused = file.aperture_refused.wrapping_add(flushed.refused);
        hub.with_page(|page| {
            page.write_u32(APERTURE_REFUSED, file.aperture_refused);
            page.write_u32(APERTURE_ACK, file.aperture_flushes);
        });
    }

    fn write_engine(&self, file: &File, index: EngineIndex, register: EngineRegister, bits: u64) {
        let engine = &self.hub.engines[index.index()];
        match register {
            EngineRegister::DOORBELL => {
                self.hub.counters.add(Counter::Doorbell, 1);
                engine.ring_doorbell(regs::engine::DOORBELL::from_bits(bits).tail());
            }
            EngineRegister::CTRL => {
                let ctrl = regs::engine::CTRL::from_bits(bits);
                if ctrl.reset() {
                    self.hub.counters.add(Counter::EngineReset, 1);
                    let fence = file.engine::<regs::engine::RESET_FENCE>(index).fence();
                    if !self.hub.lies.withholds_engine_reset(engine.index, fence) {
                        engine.reset(fence);
                    }
                } else if ctrl.enable() {
                    let ring = Ring {
                        base: file.engine::<regs::engine::RING_BASE>(index).address().0,
                        size: file.engine::<regs::engine::RING_SIZE>(index).bytes(),
                    };
                    let moderation = file.engine::<regs::engine::MODERATION>(index);
                    engine.enable(
                        ring,
                        Moderation {
                            ticks: moderation.ticks().into(),
                            ends: moderation.ends().into(),
                        },
                    );
                }
            }
            EngineRegister::PREEMPT if regs::engine::PREEMPT::from_bits(bits).request() => {
                let fence = file.engine::<regs::engine::PREEMPT_FENCE>(index).fence();
                if !self.hub.lies.withholds_preemption(engine.index, fence) {
                    self.hub.preempt(engine, fence);
                }
            }
            _ => {}
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for engine in &self.hub.engines {
            engine.shut_down();
        }
        for thread in self.threads.drain(..) {
            // A panic has ended the process.
            drop(thread.join());
        }
        self.hub.lies.shut_down();
        let liar = self.liar.get_mut().unwrap_or_else(PoisonError::into_inner);
        if liar.take().is_some_and(|liar| liar.join().is_err()) {
            tracing::error!("the liar's thread has panicked");
        }
    }
}
