// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A small driver: registers, interrupts, and the memory of a [`Board`].

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use skua_gpu::device::Device;
use skua_gpu::interrupt::Interrupts;
use skua_gpu::options::{Options, Preemption};
use skua_gpu::vram::{self, Layout};
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::Command;
use skua_spec::fault::Record;
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::preemption;
use skua_spec::register::{Location, Readable, Writable};
use skua_spec::regs::{self, engine, Decoded};
use skua_spec::status::{self, Counter, EngineState};
use vm_memory::{MmapRegion, VolatileMemory};

use crate::board::*;

/// How long to wait for what must come.
const LIMIT: Duration = Duration::from_secs(20);
/// Ticks between two looks at what is waited for, of a device that the caller steps.
const TURN: u64 = 64;

/// The interrupt vectors.
pub struct Lines {
    /// Has the status page.
    system: Arc<MmapRegion>,
    /// By vector, how often it was raised.
    counts: [AtomicU32; 16],
    /// By vector, the status page when it was last raised.
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
    pub fn count(&self, vector: u32) -> u32 {
        self.counts[vector as usize].load(Ordering::Acquire)
    }

    /// The status page as it stood when a vector was last raised.
    pub fn page(&self, vector: u32) -> Vec<u8> {
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
pub struct Gpu {
    /// Switched on, a bus master.
    pub device: Device,
    /// The device's memory.
    board: Board,
    /// What the device has raised.
    pub lines: Arc<Lines>,
    /// Records that [`Self::wait_fault`] has consumed.
    faults_seen: u32,
}

impl Deref for Gpu {
    type Target = Board;

    fn deref(&self) -> &Board {
        &self.board
    }
}

impl DerefMut for Gpu {
    fn deref_mut(&mut self) -> &mut Board {
        &mut self.board
    }
}

impl Gpu {
    /// A device without a driver: system memory is mapped, nothing is enabled.
    pub fn bare() -> Self {
        Self::bare_with_layout(Layout::whole(VRAM_BYTES))
    }

    /// As [`Self::bare`] with other VRAM.
    pub fn bare_with_layout(layout: Layout) -> Self {
        Self::bare_with(layout, &Options::default())
    }

    fn bare_with(layout: Layout, options: &Options) -> Self {
        let board = Board::with_layout(layout);
        let lines = Arc::new(Lines::new(Arc::clone(&board.system)));
        let interrupts: Arc<dyn Interrupts> = Arc::<Lines>::clone(&lines);
        let vram = Arc::clone(&board.vram);
        let gpu = Self {
            device: Device::new(options, vram, interrupts).unwrap(),
            board,
            lines,
            faults_seen: 0,
        };
        gpu.device.set_bus_master(true);
        gpu.map_system();
        gpu
    }

    /// Maps system memory to the bus.
    pub fn map_system(&self) {
        let backing = self.backing(0);
        self.device.dma_map(BUS, SYSTEM_BYTES, backing).unwrap();
    }

    /// A device with everything set up.
    pub fn new() -> Self {
        Self::with_layout(Layout::whole(VRAM_BYTES))
    }

    /// As [`Self::new`] with other VRAM.
    pub fn with_layout(layout: Layout) -> Self {
        let mut gpu = Self::bare_with_layout(layout);
        gpu.set_up();
        gpu
    }

    /// As [`Self::new`], preempted otherwise.
    pub fn with_preemption(preemption: Preemption) -> Self {
        Self::with_options(&Options {
            preemption: vec![preemption],
            ..Options::default()
        })
    }

    /// As [`Self::new`], made with other options, but for the engines.
    pub fn with_options(options: &Options) -> Self {
        let mut gpu = Self::bare_with(Layout::whole(VRAM_BYTES), options);
        gpu.set_up();
        gpu
    }

    /// Sets everything up, as after a reset.
    pub fn set_up(&mut self) {
        self.set(regs::STATUS::new().with_address(BusAddr(BUS + STATUS)));
        self.set(regs::STATUS_CTRL::new().with_enable(true));
        self.set(regs::GART_TABLE::new().with_address(BusAddr(BUS + GART_TABLE)));
        self.set(regs::GART_PAGES::new().with_pages(GART_PAGES));
        self.write_process();
        self.faults_seen = 0;
        for engine in ENGINES {
            self.start_engine(engine);
        }
    }

    /// Enables an engine with its ring.
    pub fn start_engine(&mut self, engine: EngineIndex) {
        let base = GpuPhys(vram::BASE + self.ring_at(engine));
        self.set_engine(engine, engine::RING_BASE::new().with_address(base));
        self.set_engine(engine, engine::RING_SIZE::new().with_bytes(RING_BYTES));
        self.set_engine(engine, engine::CTRL::new().with_enable(true));
        self.tails[engine.index()] = 0;
    }

    // Registers.

    /// Reads a word of BAR0.
    pub fn read(&self, offset: impl Into<u32>) -> u32 {
        let mut data = [0; 4];
        self.device.read(offset.into().into(), &mut data);
        u32::from_le_bytes(data)
    }

    /// Writes a word of BAR0.
    pub fn write(&self, offset: impl Into<u32>, value: u32) {
        self.device
            .write(offset.into().into(), &value.to_le_bytes());
    }

    /// Reads a register, all of it.
    pub fn register(&self, register: Decoded) -> u64 {
        let word = |offset: u32| u64::from(self.read(register.offset() + offset));
        match register.info().bits {
            64 => word(0) | (word(4) << 32),
            _ => word(0),
        }
    }

    /// Reads a register of the device.
    pub fn get<R: Readable<Block = regs::Device>>(&self, _: Location<R>) -> R {
        R::read(regs::Device, |offset| self.read(offset))
    }

    /// Writes a register of the device.
    pub fn set<R: Writable<Block = regs::Device>>(&self, value: R) {
        value.write(regs::Device, |offset, word| self.write(offset, word));
    }

    /// Reads a register of an engine.
    pub fn get_engine<R: Readable<Block = EngineIndex>>(
        &self,
        engine: EngineIndex,
        _: Location<R>,
    ) -> R {
        R::read(engine, |offset| self.read(offset))
    }

    /// Writes a register of an engine.
    pub fn set_engine<R: Writable<Block = EngineIndex>>(&self, engine: EngineIndex, value: R) {
        value.write(engine, |offset, word| self.write(offset, word));
    }

    /// Rings the doorbell.
    pub fn doorbell(&self, engine: EngineIndex) {
        let tail = engine::DOORBELL::new().with_tail(self.tail(engine));
        self.set_engine(engine, tail);
    }

    /// Puts commands into the ring and starts them.
    pub fn start(&mut self, engine: EngineIndex, commands: &[Command]) {
        self.push(engine, commands);
        self.doorbell(engine);
    }

    /// Runs commands in the ring to their end.
    pub fn run(&mut self, engine: EngineIndex, commands: &[Command]) {
        self.start(engine, commands);
        self.wait_idle(engine);
    }

    /// Runs commands in the ring, which end in a fault.
    pub fn run_to_fault(&mut self, engine: EngineIndex, commands: &[Command]) -> Record {
        self.start(engine, commands);
        self.wait_fault()
    }

    /// Runs commands in a buffer to the end of the packet.
    pub fn run_buffer(&mut self, engine: EngineIndex, commands: &[Command]) {
        let (exec, fence) = self.exec(engine, commands);
        self.start(engine, &[exec]);
        self.wait_fence(engine, fence);
    }

    /// Runs words in a buffer, which end in a fault.
    pub fn run_words_to_fault(&mut self, engine: EngineIndex, words: &[u32]) -> Record {
        let (exec, _) = self.exec_words(engine, words);
        self.run_to_fault(engine, &[exec])
    }

    /// Runs commands in a buffer, which end in a fault.
    pub fn run_buffer_to_fault(&mut self, engine: EngineIndex, commands: &[Command]) -> Record {
        let (exec, _) = self.exec(engine, commands);
        self.run_to_fault(engine, &[exec])
    }

    // Waiting.

    /// Waits for a condition; a wait that does not end is a failure with its name. A device that
    /// the caller is to step works meanwhile.
    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !condition(self) {
            assert!(
                since.elapsed() < LIMIT,
                "{what} does not come; faults: {:?}, engines {:?}",
                self.fault(0),
                [self.state(COMPUTE), self.state(COPY)],
            );
            if self.device.advance(TURN).is_none() {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until the engine has consumed its ring.
    #[track_caller]
    pub fn wait_idle(&self, engine: EngineIndex) {
        self.wait_for("the end of the ring", |gpu| {
            gpu.state(engine) == EngineState::Idle as u32 && gpu.head(engine) == gpu.tail(engine)
        });
    }

    /// Waits until the status page shows the fence, or a later one, as completed.
    #[track_caller]
    pub fn wait_fence(&self, engine: EngineIndex, fence: u64) {
        self.wait_for("a fence", |gpu| {
            gpu.engine64(engine, status::engine::COMPLETED_FENCE) >= fence
        });
    }

    /// Waits until the status page shows that the packet with this fence id runs: it says
    /// [`EngineState::Running`] from the ring's command on.
    #[track_caller]
    pub fn wait_packet(&self, engine: EngineIndex, fence: u64) {
        self.wait_for("a packet", |gpu| {
            gpu.engine64(engine, status::engine::CURRENT_FENCE) == fence
        });
    }

    /// Waits until the status page shows the state.
    #[track_caller]
    pub fn wait_state(&self, engine: EngineIndex, state: EngineState) {
        self.wait_for(&format!("{state:?}"), |gpu| {
            gpu.state(engine) == state as u32
        });
    }

    /// Waits for the next fault record and consumes it.
    #[track_caller]
    pub fn wait_fault(&mut self) -> Record {
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

    /// A field of the engine's block in the status page.
    pub fn engine32(&self, engine: EngineIndex, field: u64) -> u32 {
        self.system32(STATUS + status::of_engine(engine, field))
    }

    /// As [`Self::engine32`].
    pub fn engine64(&self, engine: EngineIndex, field: u64) -> u64 {
        self.system64(STATUS + status::of_engine(engine, field))
    }

    /// By [`EngineState`], from the status page, as all that follows.
    pub fn state(&self, engine: EngineIndex) -> u32 {
        self.engine32(engine, status::engine::STATE)
    }

    /// The record of the engine's last preemption.
    pub fn preempted(&self, engine: EngineIndex) -> preemption::Record {
        let word = |i: u64| self.engine64(engine, status::engine::PREEMPT_FENCE + i * 8);
        // The number first: what it tells of is there then.
        let last = word(2);
        preemption::Record::from_words([word(0), word(1), last]).expect("a record")
    }

    /// Asks for a preemption.
    pub fn ask_to_preempt(&self, engine: EngineIndex, fence: u64) {
        self.set_engine(engine, engine::PREEMPT_FENCE::new().with_fence(fence));
        self.set_engine(engine, engine::PREEMPT::new().with_request(true));
    }

    /// Has the engine stop, and withdraws what is left in its ring.
    #[track_caller]
    pub fn preempt(&self, engine: EngineIndex, fence: u64) -> preemption::Record {
        let number = self.preempted(engine).number.wrapping_add(1);
        self.ask_to_preempt(engine, fence);
        self.wait_for("a preemption", |gpu| gpu.preempted(engine).number == number);
        self.preempted(engine)
    }

    /// Offset in the ring of the next command.
    pub fn head(&self, engine: EngineIndex) -> u32 {
        self.engine32(engine, status::engine::HEAD)
    }

    /// The engine's time since the adapter reset.
    pub fn ticks(&self, engine: EngineIndex) -> u64 {
        self.engine64(engine, status::engine::TICKS)
    }

    /// Fault records written since the adapter reset.
    pub fn fault_put(&self) -> u32 {
        self.system32(STATUS + status::FAULT_PUT)
    }

    /// The record in the place of the `number`th, and the number that it has; `None` if it is none.
    pub fn fault(&self, number: u32) -> Option<(Record, u32)> {
        let start = STATUS + status::fault(number);
        let words = std::array::from_fn(|i| self.system64(start + i as u64 * 8));
        Record::from_words(words)
    }

    /// The value now, without a snapshot.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.device.counter(counter)
    }

    /// Resets an engine and waits for it.
    #[track_caller]
    pub fn reset_engine(&mut self, engine: EngineIndex) {
        let before = self.engine32(engine, status::engine::RESET_ACK);
        self.set_engine(engine, engine::CTRL::new().with_reset(true));
        self.wait_for("a reset", |gpu| {
            gpu.engine32(engine, status::engine::RESET_ACK) == before.wrapping_add(1)
        });
        self.tails[engine.index()] = 0;
    }

    /// Drops translations, of one address space or of all, and waits for both engines.
    #[track_caller]
    pub fn invalidate(&self, asid: Option<Asid>) {
        let before = self.engine32(COMPUTE, status::engine::INVALIDATE_ACK);
        self.set(regs::INVALIDATE::of(asid));
        for engine in ENGINES {
            self.wait_for("an invalidation", |gpu| {
                gpu.engine32(engine, status::engine::INVALIDATE_ACK) == before.wrapping_add(1)
            });
        }
    }
}
