// SPDX-License-Identifier: MIT

//! The device model in process, with just enough of a driver to run dispatches.
//!
//! All of VRAM is mapped for one process at [`VA`], in 2 MiB pages, without a gap. The first
//! [`DATA`] bytes of it are the driver's; the rest is the test's.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skua_gpu::bus::Backing;
use skua_gpu::device::Device;
use skua_gpu::interrupt::Interrupts;
use skua_gpu::options::Options;
use skua_gpu::vram::{self, Vram};
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::{Command, Dispatch};
use skua_spec::context::Descriptor;
use skua_spec::fault::Record;
use skua_spec::layout::half;
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::register::Writable;
use skua_spec::regs::{self, engine};
use skua_spec::status;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// Virtual address of the first byte of VRAM.
pub const VA: u64 = 0x7f00_0000_0000;
/// Offset in VRAM of the test's memory.
pub const DATA: u64 = 0x20_0000;

/// The engine that has programs.
const ENGINE: EngineIndex = EngineIndex::ALL[0];
const BUS: u64 = 0x1_0000_0000;
const RING: u64 = 0;
const RING_BYTES: u32 = 0x1000;
const CONTEXT: u64 = 0x1000;
const TABLES: u64 = 0x2000;
const BUFFER: u64 = 0x10_0000;
const PATIENCE: Duration = Duration::from_secs(120);

/// Waiting looks at memory; nobody needs the interrupt.
struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u32) {}
}

/// A device whose first engine runs dispatches of one process.
pub struct Machine {
    /// For its counters.
    pub device: Device,
    /// The status page, all of system memory.
    system: Arc<MmapRegion>,
    /// Offset in the ring of the next packet.
    tail: u32,
    /// Of the last packet.
    fence: u64,
}

impl Machine {
    /// A device with `vram_bytes` of VRAM, a multiple of 2 MiB up to 1 GiB.
    pub fn new(vram_bytes: u64) -> Self {
        let vram = Arc::new(Vram::anonymous(vram_bytes).expect("memory"));
        let device =
            Device::new(&Options::default(), vram, Arc::new(NoInterrupts)).expect("a device");
        let system = Arc::new(MmapRegion::new(0x1000).expect("memory"));
        device.set_bus_master(true);
        let backing = Backing {
            region: Arc::clone(&system),
            offset: 0,
            readable: true,
            writable: true,
        };
        device.dma_map(BUS, 0x1000, backing).expect("it is free");
        let machine = Self {
            device,
            system,
            tail: 0,
            fence: 0,
        };
        // VRAM holds anything at first.
        machine.write(TABLES, &[0; 0x3000]);
        machine.write(CONTEXT, &[0; Descriptor::SIZE as usize]);
        // The tables: root, level 2, and level 1 with 2 MiB pages.
        let place = |offset: u64| Target::Vram(GpuPhys(vram::BASE + offset));
        let index = |va: u64, shift: u32| (va >> shift & 0x1ff) * 8;
        let entry = |at: u64, entry: Entry| machine.write(at, &entry.0.to_le_bytes());
        entry(TABLES + index(VA, 39), Entry::table(place(TABLES + 0x1000)));
        entry(
            TABLES + 0x1000 + index(VA, 30),
            Entry::table(place(TABLES + 0x2000)),
        );
        for offset in (0..vram_bytes).step_by(2 << 20) {
            let page = Entry::page(place(offset), PageSize::Size2M, true, false);
            entry(TABLES + 0x2000 + index(VA + offset, 21), page);
        }
        let descriptor = Descriptor {
            root: Entry::table(place(TABLES)),
            asid: Asid(1),
            context_id: 1,
            save: None,
        };
        for (at, word) in (CONTEXT..).step_by(8).zip(descriptor.to_words()) {
            machine.write(at, &word.to_le_bytes());
        }
        let device = regs::Device;
        machine.set(device, regs::STATUS::new().with_address(BusAddr(BUS)));
        machine.set(device, regs::STATUS_CTRL::new().with_enable(true));
        let ring = GpuPhys(vram::BASE + RING);
        machine.set(ENGINE, engine::RING_BASE::new().with_address(ring));
        machine.set(ENGINE, engine::RING_SIZE::new().with_bytes(RING_BYTES));
        machine.set(ENGINE, engine::CTRL::new().with_enable(true));
        machine
    }

    fn set<R: Writable>(&self, block: R::Block, value: R) {
        value.write(block, |offset, word| {
            self.device.write(offset.into(), &word.to_le_bytes());
        });
    }

    /// Writes to VRAM at an offset.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let slice = self.device.vram().slice(offset, bytes.len() as u64);
        slice.expect("it is in VRAM").copy_from(bytes);
    }

    /// Reads from VRAM at an offset.
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let slice = self.device.vram().slice(offset, bytes as u64);
        slice.expect("it is in VRAM").copy_to(&mut data);
        data
    }

    /// Runs dispatches one after the other.
    ///
    /// # Errors
    ///
    /// The record of a fault; the engine is of no use after it.
    pub fn run(&mut self, dispatches: &[Dispatch]) -> Result<(), Record> {
        let words: Vec<u8> = dispatches
            .iter()
            .flat_map(|d| [Command::Dispatch(*d), Command::FlushCache])
            .flat_map(|c| c.encode().words().to_vec())
            .flat_map(u32::to_le_bytes)
            .collect();
        self.write(BUFFER, &words);
        self.fence += 1;
        let exec = Command::Exec {
            context: vram::BASE + CONTEXT,
            base: VA + BUFFER,
            start: 0,
            end: words.len() as u32,
            fence: Some(self.fence),
            interrupt: false,
            resume: false,
        };
        let encoded = exec.encode();
        let bytes: Vec<u8> = encoded
            .words()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        if self.tail + bytes.len() as u32 > RING_BYTES {
            let pad = Command::Nop {
                words: ((RING_BYTES - self.tail) / 4) as u16,
            };
            let header = pad.encode().words()[0];
            self.write(RING + u64::from(self.tail), &header.to_le_bytes());
            self.tail = 0;
        }
        self.write(RING + u64::from(self.tail), &bytes);
        self.tail = (self.tail + bytes.len() as u32) % RING_BYTES;
        self.set(ENGINE, engine::DOORBELL::new().with_tail(self.tail));
        let since = Instant::now();
        while self.status64(status::engine::COMPLETED_FENCE) < self.fence {
            if half(status::FAULT_PUT).of(self.status64(status::FAULT_PUT)) != 0 {
                let word = |i: u64| self.status64(status::FAULTS + i * 8);
                let (record, _) =
                    Record::from_words([0, 1, 2, 3, 4, 5, 6, 7].map(word)).expect("a record");
                return Err(record);
            }
            assert!(since.elapsed() < PATIENCE, "the dispatch does not end");
            std::thread::yield_now();
        }
        Ok(())
    }

    fn status64(&self, offset: u64) -> u64 {
        let slice = self.system.as_volatile_slice();
        slice
            .load(offset as usize, Ordering::Acquire)
            .expect("it is in the page")
    }
}
