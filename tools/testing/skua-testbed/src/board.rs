// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a driver puts into memory: rings, page tables, a context, buffers.
//!
//! System memory is [`SYSTEM_BYTES`] at bus address [`BUS`]; what lies where is in the constants
//! below. VRAM is 8 MiB; each engine has a ring, and there is one process.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use skua_gpu::bus::Backing;
use skua_gpu::gart;
use skua_gpu::vram::{self, Layout, Vram};
use skua_spec::address::{BusAddr, GpuPhys, GpuVa};
use skua_spec::command::Command;
use skua_spec::context::{Descriptor, Image, SaveArea, IMAGE_SIZE};
use skua_spec::fault::{Access, Reason, Record, Space};
use skua_spec::mmu::{self, Entry, PageSize, Target};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::ticks;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// The engine that has all commands.
pub const COMPUTE: EngineIndex = EngineIndex::ALL[0];
/// The engine that has no programs.
pub const COPY: EngineIndex = EngineIndex::ALL[1];
/// Both engines.
pub const ENGINES: [EngineIndex; 2] = [COMPUTE, COPY];

/// Bytes of system memory.
pub const SYSTEM_BYTES: u64 = 4 << 20;
/// Bus address of system memory.
pub const BUS: u64 = 0x1_0000_0000;
/// Bytes of VRAM.
pub const VRAM_BYTES: u64 = 8 << 20;

/// Offset of the status page in system memory.
pub const STATUS: u64 = 0;
/// Offset of the GART's table in system memory; it has 64 KiB, 8192 entries.
pub const GART_TABLE: u64 = 0x1_0000;
/// Pages of the GART that are switched on.
pub const GART_PAGES: u32 = 256;
/// Free system memory from here on.
pub const SYSTEM_FREE: u64 = 0x10_0000;

/// Offset in VRAM of the first engine's ring; the next is 64 KiB behind it.
pub const RINGS: u64 = 0;
/// Bytes of a ring.
pub const RING_BYTES: u32 = 0x1000;
/// Offset in VRAM of the process' context descriptor.
pub const CONTEXT: u64 = 0x2_0000;
/// Offset in VRAM of the process' root table; tables follow up to [`BUFFER`].
pub const TABLES: u64 = 0x4_0000;
/// Offset in VRAM of the first engine's command buffer; the next is 256 KiB behind it.
pub const BUFFER: u64 = 0x8_0000;
/// Virtual address of [`BUFFER`].
pub const BUFFER_VA: u64 = 0x10_0000;
/// Free VRAM from here on; mapped 1:1 in 4 KiB pages from [`DATA_VA`] on, [`DATA_BYTES`] long.
pub const DATA: u64 = 0x10_0000;
/// Virtual address of [`DATA`].
pub const DATA_VA: u64 = 0x7f00_0020_0000;
/// Bytes that are mapped from [`DATA_VA`] on.
pub const DATA_BYTES: u64 = 0x8_0000;

/// Room in VRAM for a save area, at its end.
pub const SAVE: u64 = 0x7b_0000;
/// Where a state is in it, behind the context's image.
pub const STATE: u64 = SAVE + IMAGE_SIZE as u64;
/// Virtual address of [`SAVE`], which is mapped up to the end of VRAM.
pub const SAVE_VA: u64 = 0x7f00_0030_0000;

/// The address space of the process.
pub const ASID: Asid = Asid(7);
/// An address space that nobody uses.
pub const OTHER: Asid = Asid(8);
/// What the process' context descriptor names itself.
pub const CONTEXT_ID: u32 = 0xc0de;

/// Ticks of a translation of which an engine keeps nothing, in tables like the process', in VRAM.
pub const COLD: u64 = ticks::TLB_MISS + mmu::ROOT_LEVEL as u64 * ticks::WALK;

/// The entry that leads to the process' root table.
pub fn root() -> Entry {
    Entry::table(Target::Vram(GpuPhys(vram::BASE + TABLES)))
}

/// The EXEC with which a packet goes on that was stopped.
pub fn resumed(mut exec: Command) -> Command {
    if let Command::Exec { resume, .. } = &mut exec {
        *resume = true;
    }
    exec
}

/// The memory of a device and its driver.
pub struct Board {
    /// Also the device's: both may write at any time.
    pub vram: Arc<Vram>,
    /// What the device has at [`BUS`].
    pub system: Arc<MmapRegion>,
    /// For each engine, where its ring's next command goes; not yet told to the doorbell.
    pub tails: [u32; 2],
    /// What the next EXEC completes.
    next_fence: u64,
    /// Offset in VRAM behind the tables in use.
    next_table: u64,
}

impl Board {
    /// Memory with nothing in it, of whose VRAM the CPU sees everything.
    pub fn new() -> Self {
        Self::with_layout(Layout::whole(VRAM_BYTES))
    }

    /// Memory with nothing in it. What is said of VRAM below holds for pages that the aperture does
    /// not show.
    pub fn with_layout(layout: Layout) -> Self {
        Self {
            vram: Arc::new(Vram::new(layout).unwrap()),
            system: Arc::new(MmapRegion::new(SYSTEM_BYTES as usize).unwrap()),
            tails: [0; 2],
            next_fence: 1,
            next_table: TABLES,
        }
    }

    /// Clears the rings and writes the process: its tables and its context.
    pub fn write_process(&mut self) {
        self.clear_vram(0, DATA);
        self.next_table = TABLES;
        self.tails = [0; 2];
        assert_eq!(self.new_table(), TABLES);
        self.write_context(CONTEXT, ASID, CONTEXT_ID, root());
        let target = |at| Target::Vram(GpuPhys(vram::BASE + at));
        self.map_range(BUFFER_VA, target(BUFFER), DATA - BUFFER, false);
        self.map_range(DATA_VA, target(DATA), DATA_BYTES, true);
        self.map_range(SAVE_VA, target(SAVE), VRAM_BYTES - SAVE, true);
    }

    /// System memory from `offset` on, for the device's bus.
    pub fn backing(&self, offset: u64) -> Backing {
        Backing {
            region: Arc::clone(&self.system),
            offset,
            readable: true,
            writable: true,
        }
    }

    /// Writes a context descriptor whose ticks start from 0.
    pub fn write_context(&self, at: u64, asid: Asid, context_id: u32, root: Entry) {
        let descriptor = Descriptor {
            root,
            asid,
            context_id,
            save: None,
        };
        for (i, word) in descriptor.to_words().into_iter().enumerate() {
            self.set_vram64(at + i as u64 * 8, word);
        }
        for i in 4..8 {
            self.set_vram64(at + i * 8, 0);
        }
    }

    /// Gives the context whose descriptor is at `at` a save area, with an image where it is in
    /// [`SAVE`], or none.
    pub fn set_save_area(&self, at: u64, area: Option<SaveArea>) {
        let inside = |area: SaveArea| area.base.0.checked_sub(SAVE_VA);
        let room = |at: &u64| *at <= VRAM_BYTES - STATE;
        if let Some(image) = area.and_then(inside).filter(room) {
            self.set_image(SAVE + image, Image::default());
        }
        let (base, bytes) = area.map_or((0, 0), |area| (area.base.0, area.bytes));
        self.set_vram64(at + Descriptor::SAVE_BASE, base);
        self.set_vram64(at + Descriptor::SAVE_SIZE, bytes.into());
    }

    /// The context's image in VRAM.
    pub fn image(&self, at: u64) -> Image {
        let word = |i: usize| self.vram64(at + i as u64 * 8);
        Image::from_words(std::array::from_fn(word)).expect("an image")
    }

    /// Writes a context's image.
    pub fn set_image(&self, at: u64, image: Image) {
        for (i, word) in (0..).zip(image.to_words()) {
            self.set_vram64(at + i * 8, word);
        }
    }

    /// Bytes of the state that the context has saved.
    pub fn saved(&self, at: u64) -> u32 {
        self.vram32(at + Descriptor::SAVED)
    }

    /// Zeroes `bytes` of VRAM.
    pub fn clear_vram(&self, at: u64, bytes: u64) {
        let slice = self.vram.slice(at, bytes).unwrap();
        slice.copy_from(&vec![0u8; bytes as usize]);
    }

    /// A copy of VRAM.
    pub fn vram_bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let slice = self.vram.slice(at, bytes as u64).unwrap();
        slice.copy_to(&mut data);
        data
    }

    /// Copies `data` to VRAM.
    pub fn set_vram(&self, at: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let slice = self.vram.slice(at, data.len() as u64).unwrap();
        slice.copy_from(data);
    }

    /// Acquires: what the device wrote before is seen after.
    pub fn vram64(&self, at: u64) -> u64 {
        let slice = self.vram.slice(at, 8).unwrap();
        slice.load(0, Ordering::Acquire).unwrap()
    }

    /// Releases: who sees the value sees what was written before.
    pub fn set_vram64(&self, at: u64, value: u64) {
        let slice = self.vram.slice(at, 8).unwrap();
        slice.store(value, 0, Ordering::Release).unwrap();
    }

    /// As [`Self::vram64`].
    pub fn vram32(&self, at: u64) -> u32 {
        let slice = self.vram.slice(at, 4).unwrap();
        slice.load(0, Ordering::Acquire).unwrap()
    }

    /// As [`Self::vram64`], of system memory.
    pub fn system64(&self, at: u64) -> u64 {
        let slice = self.system.as_volatile_slice();
        slice.load(at as usize, Ordering::Acquire).unwrap()
    }

    /// As [`Self::set_vram64`], of system memory.
    pub fn set_system64(&self, at: u64, value: u64) {
        let slice = self.system.as_volatile_slice();
        slice.store(value, at as usize, Ordering::Release).unwrap();
    }

    /// As [`Self::system64`].
    pub fn system32(&self, at: u64) -> u32 {
        let slice = self.system.as_volatile_slice();
        slice.load(at as usize, Ordering::Acquire).unwrap()
    }

    /// Copies `data` to system memory.
    pub fn set_system(&self, at: u64, data: &[u8]) {
        self.system
            .get_slice(at as usize, data.len())
            .unwrap()
            .copy_from(data);
    }

    /// A copy of system memory.
    pub fn system_bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.system
            .get_slice(at as usize, bytes)
            .unwrap()
            .copy_to(&mut data);
        data
    }

    /// Takes the next free table, clears it, and returns its offset in VRAM.
    pub fn new_table(&mut self) -> u64 {
        let at = self.next_table;
        self.next_table += 4096;
        assert!(self.next_table <= BUFFER);
        self.clear_vram(at, 4096);
        at
    }

    /// Offset in VRAM of the entry of `level` for `va`; tables above it are made as needed.
    pub fn entry_at(&mut self, va: u64, level: u32) -> u64 {
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
    pub fn map_page(&mut self, va: u64, target: Target, size: PageSize, write: bool) {
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
    pub fn map_range(&mut self, va: u64, target: Target, bytes: u64, write: bool) {
        for offset in (0..bytes).step_by(4096) {
            let target = match target {
                Target::Vram(a) => Target::Vram(GpuPhys(a.0 + offset)),
                Target::System(a) => Target::System(BusAddr(a.0 + offset)),
            };
            self.map_page(va + offset, target, PageSize::Size4K, write);
        }
    }

    /// Writes an entry of the GART and returns the GPU-physical address of its page.
    pub fn set_gart(&self, page: u64, entry: Entry) -> u64 {
        self.set_system64(GART_TABLE + page * 8, entry.0);
        gart::BASE + page * 4096
    }

    /// Offset in VRAM of the engine's ring.
    pub fn ring_at(&self, engine: EngineIndex) -> u64 {
        RINGS + u64::from(engine.get()) * 0x1_0000
    }

    /// The tail of `engine`, as [`Self::tails`] has it.
    pub fn tail(&self, engine: EngineIndex) -> u32 {
        self.tails[engine.index()]
    }

    /// Puts words into the ring, padding to its end where they do not fit, without a doorbell.
    pub fn push_words(&mut self, engine: EngineIndex, words: &[u32]) {
        let ring = self.ring_at(engine);
        let mut tail = self.tails[engine.index()];
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
        self.tails[engine.index()] = (tail + bytes) % RING_BYTES;
    }

    /// Puts commands into the ring.
    pub fn push(&mut self, engine: EngineIndex, commands: &[Command]) {
        for command in commands {
            match *command {
                // Longer than its encoding: what stands behind the header is left as it is.
                Command::Nop { words } => {
                    let at = self.ring_at(engine) + u64::from(self.tails[engine.index()]);
                    self.set_vram(at, &command.encode().words()[0].to_le_bytes());
                    let tail = &mut self.tails[engine.index()];
                    *tail = (*tail + u32::from(words) * 4) % RING_BYTES;
                }
                _ => self.push_words(engine, command.encode().words()),
            }
        }
    }

    /// Writes words into the engine's buffer and returns EXEC for it.
    pub fn exec_words(&mut self, engine: EngineIndex, words: &[u32]) -> (Command, u64) {
        // A buffer of its own for each engine.
        self.exec_at(u64::from(engine.get()) * 0x4_0000, words)
    }

    /// As [`Self::exec_words`], `at` so many bytes behind [`BUFFER`].
    pub fn exec_at(&mut self, at: u64, words: &[u32]) -> (Command, u64) {
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
            resume: false,
        };
        (exec, fence)
    }

    /// As [`Self::exec_words`] with commands.
    pub fn exec(&mut self, engine: EngineIndex, commands: &[Command]) -> (Command, u64) {
        let words: Vec<u32> = commands
            .iter()
            .flat_map(|c| c.encode().words().to_vec())
            .collect();
        self.exec_words(engine, &words)
    }

    /// The record of a fault in the process' first buffer command on `engine`, to be changed by
    /// the test where more is to be said.
    pub fn expect(
        &self,
        engine: EngineIndex,
        reason: Reason,
        access: Access,
        address: u64,
    ) -> Record {
        Record {
            engine,
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
            command: BUFFER_VA + u64::from(engine.get()) * 0x4_0000,
            pc: Record::NO_PC,
        }
    }
}
