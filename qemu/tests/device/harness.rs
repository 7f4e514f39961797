// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A small driver: system memory, a status page, rings, page tables and buffers.
//!
//! System memory is [`SYSTEM_BYTES`] at bus address [`BUS`]; what lies where is in the constants
//! below. VRAM is 8 MiB; [`Gpu::new`] gives each engine a ring and one process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use skua_gpu::bus::Backing;
use skua_gpu::device::Device;
use skua_gpu::gart;
use skua_gpu::interrupt::Interrupts;
use skua_gpu::options::Options;
use skua_gpu::vram::{self, Vram};
use skua_spec::address::{BusAddr, GpuPhys, GpuVa};
use skua_spec::command::Command;
use skua_spec::context::Descriptor;
use skua_spec::fault::{Access, Reason, Record, Space};
use skua_spec::mmu::{self, Entry, PageSize, Target};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::register::{Location, Readable, Writable};
use skua_spec::regs::{self, engine, Decoded};
use skua_spec::status::{self, Counter, EngineState};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// Bytes of system memory.
pub(crate) const SYSTEM_BYTES: u64 = 4 << 20;
/// Its bus address.
pub(crate) const BUS: u64 = 0x1_0000_0000;
/// Bytes of VRAM.
pub(crate) const VRAM_BYTES: u64 = 8 << 20;

/// Offsets in system memory: the status page, the GART's table (64 KiB: 8192 entries).
pub(crate) const STATUS: u64 = 0;
pub(crate) const GART_TABLE: u64 = 0x1_0000;
/// Pages of the GART that are switched on.
pub(crate) const GART_PAGES: u32 = 256;
/// Free system memory from here on.
pub(crate) const SYSTEM_FREE: u64 = 0x10_0000;

/// Offsets in VRAM: the rings (64 KiB each), the contexts, the page tables.
pub(crate) const RINGS: u64 = 0;
pub(crate) const RING_BYTES: u32 = 0x1000;
pub(crate) const CONTEXT: u64 = 0x2_0000;
pub(crate) const TABLES: u64 = 0x4_0000;
/// Where buffers go in VRAM, and their virtual address.
pub(crate) const BUFFER: u64 = 0x8_0000;
pub(crate) const BUFFER_VA: u64 = 0x10_0000;
/// Free VRAM from here on; mapped 1:1 in 4 KiB pages from [`DATA_VA`] on, [`DATA_BYTES`] long.
pub(crate) const DATA: u64 = 0x10_0000;
pub(crate) const DATA_VA: u64 = 0x7f00_0020_0000;
pub(crate) const DATA_BYTES: u64 = 0x8_0000;

/// The process.
pub(crate) const ASID: Asid = Asid(7);
/// An address space that nobody uses.
pub(crate) const OTHER: Asid = Asid(8);
/// Its context's number.
pub(crate) const CONTEXT_ID: u32 = 0xc0de;

/// How long to wait for what must come.
const LIMIT: Duration = Duration::from_secs(20);

/// The interrupt vectors.
pub(crate) struct Lines {
    system: Arc<MmapRegion>,
    counts: [AtomicU32; 16],
    pages: [Mutex<Vec<u8>>; 16],
}

impl Lines {
    fn new(system: Arc<MmapRegion>) -> Self {
        Self {
            system,
            counts: Default::default(),
            pages: Default::default(),
        }
    }

    /// How often a vector was raised.
    pub(crate) fn count(&self, vector: u32) -> u32 {
        self.counts[vector as usize].load(Ordering::Acquire)
    }

    /// The status page as it stood when a vector was last raised.
    pub(crate) fn page(&self, vector: u32) -> Vec<u8> {
        self.pages[vector as usize].lock().unwrap().clone()
    }
}

impl Interrupts for Lines {
    fn raise(&self, vector: u32) {
        let mut page = vec![0; status::SIZE as usize];
        self.system
            .get_slice(STATUS as usize, page.len())
            .unwrap()
            .copy_to(&mut page);
        *self.pages[vector as usize].lock().unwrap() = page;
        self.counts[vector as usize].fetch_add(1, Ordering::AcqRel);
    }
}

/// A device and its driver.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) system: Arc<MmapRegion>,
    pub(crate) lines: Arc<Lines>,
    tails: [u32; 2],
    next_fence: u64,
    next_table: u64,
    faults_seen: u32,
}

impl Gpu {
    /// A device without a driver: system memory is mapped, nothing is enabled.
    pub(crate) fn bare() -> Self {
        let vram = Arc::new(Vram::anonymous(VRAM_BYTES).unwrap());
        let system = Arc::new(MmapRegion::new(SYSTEM_BYTES as usize).unwrap());
        let lines = Arc::new(Lines::new(Arc::clone(&system)));
        let interrupts: Arc<dyn Interrupts> = Arc::<Lines>::clone(&lines);
        let device = Device::new(&Options::default(), vram, interrupts).unwrap();
        let gpu = Self {
            device,
            system,
            lines,
            tails: [0; 2],
            next_fence: 1,
            next_table: TABLES,
            faults_seen: 0,
        };
        gpu.device.set_bus_master(true);
        gpu.map_system();
        gpu
    }

    /// Maps system memory to the bus.
    pub(crate) fn map_system(&self) {
        let backing = self.backing(0);
        self.device.dma_map(BUS, SYSTEM_BYTES, backing).unwrap();
    }

    pub(crate) fn backing(&self, offset: u64) -> Backing {
        Backing {
            region: Arc::clone(&self.system),
            offset,
            readable: true,
            writable: true,
        }
    }

    /// A device with everything set up.
    pub(crate) fn new() -> Self {
        let mut gpu = Self::bare();
        gpu.set_up();
        gpu
    }

    /// Sets everything up, as after a reset.
    pub(crate) fn set_up(&mut self) {
        self.set(regs::STATUS::new().with_address(BusAddr(BUS + STATUS)));
        self.set(regs::STATUS_CTRL::new().with_enable(true));
        self.set(regs::GART_TABLE::new().with_address(BusAddr(BUS + GART_TABLE)));
        self.set(regs::GART_PAGES::new().with_pages(GART_PAGES));
        self.clear_vram(0, DATA);
        self.next_table = TABLES;
        self.faults_seen = 0;
        self.tails = [0; 2];
        let root = self.new_table();
        assert_eq!(root, TABLES);
        self.write_context(CONTEXT, ASID, CONTEXT_ID, Self::root());
        self.map_range(
            BUFFER_VA,
            Target::Vram(GpuPhys(vram::BASE + BUFFER)),
            DATA - BUFFER,
            false,
        );
        self.map_range(
            DATA_VA,
            Target::Vram(GpuPhys(vram::BASE + DATA)),
            DATA_BYTES,
            true,
        );
        for engine in 0..2 {
            self.start_engine(engine);
        }
    }

    /// The process' root table.
    pub(crate) fn root() -> Entry {
        Entry::table(Target::Vram(GpuPhys(vram::BASE + TABLES)))
    }

    pub(crate) fn write_context(&self, at: u64, asid: Asid, context_id: u32, root: Entry) {
        let descriptor = Descriptor {
            root,
            asid,
            context_id,
        };
        for (i, word) in descriptor.to_words().into_iter().enumerate() {
            self.set_vram64(at + i as u64 * 8, word);
        }
        for i in 4..8 {
            self.set_vram64(at + i * 8, 0);
        }
    }

    /// Enables an engine with its ring.
    pub(crate) fn start_engine(&mut self, engine: u32) {
        let base = vram::BASE + RINGS + u64::from(engine) * 0x1_0000;
        self.set_engine(engine, engine::RING_BASE::new().with_address(GpuPhys(base)));
        self.set_engine(engine, engine::RING_SIZE::new().with_bytes(RING_BYTES));
        self.set_engine(engine, engine::CTRL::new().with_enable(true));
        self.tails[engine as usize] = 0;
    }

    // Registers.

    /// Reads a word of BAR0.
    pub(crate) fn read(&self, offset: impl Into<u32>) -> u32 {
        let mut data = [0; 4];
        self.device.read(offset.into().into(), &mut data);
        u32::from_le_bytes(data)
    }

    /// Writes a word of BAR0.
    pub(crate) fn write(&self, offset: impl Into<u32>, value: u32) {
        self.device
            .write(offset.into().into(), &value.to_le_bytes());
    }

    /// Reads a register, all of it.
    pub(crate) fn register(&self, register: Decoded) -> u64 {
        let word = |offset: u32| u64::from(self.read(register.offset() + offset));
        match register.info().bits {
            64 => word(0) | (word(4) << 32),
            _ => word(0),
        }
    }

    /// Reads a register of the device.
    pub(crate) fn get<R: Readable<Block = regs::Device>>(&self, _: Location<R>) -> R {
        R::read(regs::Device, |offset| self.read(offset))
    }

    /// Writes a register of the device.
    pub(crate) fn set<R: Writable<Block = regs::Device>>(&self, value: R) {
        value.write(regs::Device, |offset, word| self.write(offset, word));
    }

    /// Reads a register of an engine.
    pub(crate) fn get_engine<R: Readable<Block = EngineIndex>>(
        &self,
        engine: u32,
        _: Location<R>,
    ) -> R {
        R::read(EngineIndex::new(engine).unwrap(), |offset| {
            self.read(offset)
        })
    }

    /// Writes a register of an engine.
    pub(crate) fn set_engine<R: Writable<Block = EngineIndex>>(&self, engine: u32, value: R) {
        let engine = EngineIndex::new(engine).unwrap();
        value.write(engine, |offset, word| self.write(offset, word));
    }

    // Memory.

    pub(crate) fn clear_vram(&self, at: u64, bytes: u64) {
        let slice = self.device.vram().slice(at, bytes).unwrap();
        slice.copy_from(&vec![0u8; bytes as usize]);
    }

    pub(crate) fn vram_bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let slice = self.device.vram().slice(at, bytes as u64).unwrap();
        slice.copy_to(&mut data);
        data
    }

    pub(crate) fn set_vram(&self, at: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let slice = self.device.vram().slice(at, data.len() as u64).unwrap();
        slice.copy_from(data);
    }

    pub(crate) fn vram64(&self, at: u64) -> u64 {
        let slice = self.device.vram().slice(at, 8).unwrap();
        slice.load(0, Ordering::Acquire).unwrap()
    }

    pub(crate) fn set_vram64(&self, at: u64, value: u64) {
        let slice = self.device.vram().slice(at, 8).unwrap();
        slice.store(value, 0, Ordering::Release).unwrap();
    }

    pub(crate) fn vram32(&self, at: u64) -> u32 {
        let slice = self.device.vram().slice(at, 4).unwrap();
        slice.load(0, Ordering::Acquire).unwrap()
    }

    pub(crate) fn system64(&self, at: u64) -> u64 {
        let slice = self.system.as_volatile_slice();
        slice.load(at as usize, Ordering::Acquire).unwrap()
    }

    pub(crate) fn set_system64(&self, at: u64, value: u64) {
        let slice = self.system.as_volatile_slice();
        slice.store(value, at as usize, Ordering::Release).unwrap();
    }

    pub(crate) fn system32(&self, at: u64) -> u32 {
        let slice = self.system.as_volatile_slice();
        slice.load(at as usize, Ordering::Acquire).unwrap()
    }

    pub(crate) fn set_system(&self, at: u64, data: &[u8]) {
        self.system
            .get_slice(at as usize, data.len())
            .unwrap()
            .copy_from(data);
    }

    pub(crate) fn system_bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.system
            .get_slice(at as usize, bytes)
            .unwrap()
            .copy_to(&mut data);
        data
    }

    // Page tables.

    /// Offset in VRAM of a new, empty table.
    pub(crate) fn new_table(&mut self) -> u64 {
        let at = self.next_table;
        self.next_table += 4096;
        assert!(self.next_table <= BUFFER);
        self.clear_vram(at, 4096);
        at
    }

    /// Offset in VRAM of the entry of `level` for `va`; tables above it are made as needed.
    pub(crate) fn entry_at(&mut self, va: u64, level: u32) -> u64 {
        let mut table = TABLES;
        for above in (level + 1..mmu::LEVELS).rev() {
            let slot = table + mmu::index(GpuVa(va), above) as u64 * 8;
            let entry = Entry(self.vram64(slot));
            table = if entry.is_valid() {
                match entry.target() {
                    Target::Vram(a) => a.0 - vram::BASE,
                    Target::System(_) => panic!("a table in system memory"),
                }
            } else {
                let new = self.new_table();
                let target = Target::Vram(GpuPhys(vram::BASE + new));
                self.set_vram64(slot, Entry::table(target).0);
                new
            };
        }
        table + mmu::index(GpuVa(va), level) as u64 * 8
    }

    /// Maps one page; 64 KiB pages get their 16 entries.
    pub(crate) fn map_page(&mut self, va: u64, target: Target, size: PageSize, write: bool) {
        let entry = Entry::page(target, size, write, false).0;
        match size {
            PageSize::Size2M => {
                let at = self.entry_at(va, 1);
                self.set_vram64(at, entry);
            }
            PageSize::Size64K => {
                let at = self.entry_at(va, 0);
                for i in 0..16 {
                    self.set_vram64(at + i * 8, entry);
                }
            }
            PageSize::Size4K => {
                let at = self.entry_at(va, 0);
                self.set_vram64(at, entry);
            }
        }
    }

    /// Maps a range in 4 KiB pages.
    pub(crate) fn map_range(&mut self, va: u64, target: Target, bytes: u64, write: bool) {
        for offset in (0..bytes).step_by(4096) {
            let target = match target {
                Target::Vram(a) => Target::Vram(GpuPhys(a.0 + offset)),
                Target::System(a) => Target::System(BusAddr(a.0 + offset)),
            };
            self.map_page(va + offset, target, PageSize::Size4K, write);
        }
    }

    /// Writes an entry of the GART and returns the GPU-physical address of its page.
    pub(crate) fn set_gart(&self, page: u64, entry: Entry) -> u64 {
        self.set_system64(GART_TABLE + page * 8, entry.0);
        gart::BASE + page * 4096
    }

    // Commands.

    pub(crate) fn ring_at(&self, engine: u32) -> u64 {
        RINGS + u64::from(engine) * 0x1_0000
    }

    pub(crate) fn tail(&self, engine: u32) -> u32 {
        self.tails[engine as usize]
    }

    /// Puts words into the ring, padding to its end where they do not fit, without a doorbell.
    pub(crate) fn push_words(&mut self, engine: u32, words: &[u32]) {
        let ring = self.ring_at(engine);
        let mut tail = self.tails[engine as usize];
        let bytes = words.len() as u32 * 4;
        if tail + bytes > RING_BYTES {
            let pad = Command::Nop {
                words: ((RING_BYTES - tail) / 4) as u16,
            };
            self.set_vram(
                ring + u64::from(tail),
                &pad.encode().words()[0].to_le_bytes(),
            );
            tail = 0;
        }
        for (i, word) in (0..).zip(words) {
            self.set_vram(ring + u64::from(tail) + i * 4, &word.to_le_bytes());
        }
        self.tails[engine as usize] = (tail + bytes) % RING_BYTES;
    }

    /// Puts commands into the ring.
    pub(crate) fn push(&mut self, engine: u32, commands: &[Command]) {
        for command in commands {
            match *command {
                // Longer than its encoding: what stands behind the header is left as it is.
                Command::Nop { words } => {
                    let at = self.ring_at(engine) + u64::from(self.tails[engine as usize]);
                    self.set_vram(at, &command.encode().words()[0].to_le_bytes());
                    let tail = &mut self.tails[engine as usize];
                    *tail = (*tail + u32::from(words) * 4) % RING_BYTES;
                }
                _ => self.push_words(engine, command.encode().words()),
            }
        }
    }

    /// Rings the doorbell.
    pub(crate) fn doorbell(&self, engine: u32) {
        let tail = self.tails[engine as usize];
        self.set_engine(engine, engine::DOORBELL::new().with_tail(tail));
    }

    /// Puts commands into the ring and starts them.
    pub(crate) fn start(&mut self, engine: u32, commands: &[Command]) {
        self.push(engine, commands);
        self.doorbell(engine);
    }

    /// Runs commands in the ring to their end.
    pub(crate) fn run(&mut self, engine: u32, commands: &[Command]) {
        self.start(engine, commands);
        self.wait_idle(engine);
    }

    /// Runs commands in the ring, which end in a fault.
    pub(crate) fn run_to_fault(&mut self, engine: u32, commands: &[Command]) -> Record {
        self.start(engine, commands);
        self.wait_fault()
    }

    /// Writes words into the engine's buffer and returns EXEC for it.
    pub(crate) fn exec_words(&mut self, engine: u32, words: &[u32]) -> (Command, u64) {
        // A buffer of its own for each engine.
        let at = u64::from(engine) * 0x4_0000;
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.set_vram(BUFFER + at, &bytes);
        let fence = self.next_fence;
        self.next_fence += 1;
        let exec = Command::Exec {
            context: vram::BASE + CONTEXT,
            base: BUFFER_VA + at,
            start: 0,
            end: bytes.len() as u32,
            fence: Some(fence),
            interrupt: true,
        };
        (exec, fence)
    }

    /// As [`Self::exec_words`] with commands.
    pub(crate) fn exec(&mut self, engine: u32, commands: &[Command]) -> (Command, u64) {
        let words: Vec<u32> = commands
            .iter()
            .flat_map(|c| c.encode().words().to_vec())
            .collect();
        self.exec_words(engine, &words)
    }

    /// Runs commands in a buffer to the end of the packet.
    pub(crate) fn run_buffer(&mut self, engine: u32, commands: &[Command]) {
        let (exec, fence) = self.exec(engine, commands);
        self.start(engine, &[exec]);
        self.wait_fence(engine, fence);
    }

    /// Runs words in a buffer, which end in a fault.
    pub(crate) fn run_words_to_fault(&mut self, engine: u32, words: &[u32]) -> Record {
        let (exec, _) = self.exec_words(engine, words);
        self.run_to_fault(engine, &[exec])
    }

    /// Runs commands in a buffer, which end in a fault.
    pub(crate) fn run_buffer_to_fault(&mut self, engine: u32, commands: &[Command]) -> Record {
        let (exec, _) = self.exec(engine, commands);
        self.run_to_fault(engine, &[exec])
    }

    // Waiting.

    /// Waits for a condition; a wait that does not end is a failure with its name.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !condition(self) {
            assert!(
                since.elapsed() < LIMIT,
                "{what} does not come; faults: {:?}, engines {:?}",
                self.fault(0),
                [self.state(0), self.state(1)],
            );
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub(crate) fn wait_idle(&self, engine: u32) {
        self.wait_for("the end of the ring", |gpu| {
            gpu.state(engine) == EngineState::Idle as u32
                && gpu.head(engine) == gpu.tails[engine as usize]
        });
    }

    #[track_caller]
    pub(crate) fn wait_fence(&self, engine: u32, fence: u64) {
        self.wait_for("a fence", |gpu| {
            gpu.engine64(engine, status::engine::COMPLETED_FENCE) >= fence
        });
    }

    #[track_caller]
    pub(crate) fn wait_state(&self, engine: u32, state: EngineState) {
        self.wait_for(&format!("{state:?}"), |gpu| {
            gpu.state(engine) == state as u32
        });
    }

    /// Waits for the next fault record and consumes it.
    #[track_caller]
    pub(crate) fn wait_fault(&mut self) -> Record {
        let number = self.faults_seen;
        self.wait_for("a fault", |gpu| gpu.fault_put() != number);
        self.faults_seen += 1;
        let (record, stored) = self.fault(number).expect("a record");
        assert_eq!(stored, number);
        let vector = skua_spec::pci::fault_vector(2);
        self.wait_for("the fault's interrupt", |gpu| {
            gpu.lines.count(vector) > number
        });
        self.write(regs::FAULT_GET, self.faults_seen);
        record
    }

    // The status page.

    pub(crate) fn engine32(&self, engine: u32, field: u64) -> u32 {
        self.system32(STATUS + u64::from(engine) * status::ENGINE_SIZE + field)
    }

    pub(crate) fn engine64(&self, engine: u32, field: u64) -> u64 {
        self.system64(STATUS + u64::from(engine) * status::ENGINE_SIZE + field)
    }

    pub(crate) fn state(&self, engine: u32) -> u32 {
        self.engine32(engine, status::engine::STATE)
    }

    pub(crate) fn head(&self, engine: u32) -> u32 {
        self.engine32(engine, status::engine::HEAD)
    }

    pub(crate) fn ticks(&self, engine: u32) -> u64 {
        self.engine64(engine, status::engine::TICKS)
    }

    pub(crate) fn fault_put(&self) -> u32 {
        self.system32(STATUS + status::FAULT_PUT)
    }

    pub(crate) fn fault(&self, number: u32) -> Option<(Record, u32)> {
        let start =
            STATUS + status::FAULTS + u64::from(number % status::FAULT_RECORDS) * Record::SIZE;
        let words = std::array::from_fn(|i| self.system64(start + i as u64 * 8));
        Record::from_words(words)
    }

    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.device.counter(counter)
    }

    /// Resets an engine and waits for it.
    #[track_caller]
    pub(crate) fn reset_engine(&mut self, engine: u32) {
        let before = self.engine32(engine, status::engine::RESET_ACK);
        self.set_engine(engine, engine::CTRL::new().with_reset(true));
        self.wait_for("a reset", |gpu| {
            gpu.engine32(engine, status::engine::RESET_ACK) == before.wrapping_add(1)
        });
        self.tails[engine as usize] = 0;
    }

    /// Drops translations, of one address space or of all, and waits for both engines.
    #[track_caller]
    pub(crate) fn invalidate(&self, asid: Option<Asid>) {
        let before = self.engine32(0, status::engine::INVALIDATE_ACK);
        self.set(regs::INVALIDATE::of(asid));
        for engine in 0..2 {
            self.wait_for("an invalidation", |gpu| {
                gpu.engine32(engine, status::engine::INVALIDATE_ACK) == before.wrapping_add(1)
            });
        }
    }

    /// The record of a fault in the process' first buffer command on `engine`, to be changed by
    /// the test where more is to be said.
    pub(crate) fn expect(
        &self,
        engine: u32,
        reason: Reason,
        access: Access,
        address: u64,
    ) -> Record {
        Record {
            engine: EngineIndex::new(engine).unwrap(),
            reason,
            asid: ASID,
            context_id: CONTEXT_ID,
            access,
            detail: 0,
            space: if access == Access::None {
                Space::None
            } else {
                Space::Virtual
            },
            address,
            fence: self.next_fence - 1,
            command: BUFFER_VA + u64::from(engine) * 0x4_0000,
            pc: Record::NO_PC,
        }
    }
}
