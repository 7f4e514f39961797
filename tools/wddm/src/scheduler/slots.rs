// SPDX-License-Identifier: MIT

//! The library's own commands.
//!
//! Behind the commands of each packet the engine executes a few of the library's: it writes the
//! fences' values. They are in *slots* of system memory that the GPU cannot write, one per packet,
//! which are used again when the context's progress has passed the packet.

use std::{collections::VecDeque, sync::Arc};

use libskua::{spec::command::Command, Access, BoFlags, Mapping};

use crate::{
    memory::Memory,
    page_tables::PageTables,
    status::{Result, Status},
};

/// Bytes of the library's own commands behind a packet: two signals, padded.
const SLOT: usize = 64;
/// Bytes of slots allocated at a time.
const CHUNK: u64 = 16384;

/// Slots, and the CPU's way to them.
pub(super) type Chunk = (Memory, Mapping);

/// Room for the library's own commands, which follow each packet's.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// By their numbers; kept until the context is destroyed.
    chunks: Vec<Chunk>,
    /// The next one to use is the last.
    free: Vec<Slot>,
    /// In use until the progress reaches the number, which grows from front to back.
    busy: VecDeque<(u64, Slot)>,
}

/// Number of a chunk, and offset in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(usize, usize);

impl Slots {
    /// Allocates slots, for [`Slots::add`].
    pub(super) fn new_chunk(tables: &Arc<PageTables>) -> Result<Chunk> {
        let memory = Memory::create(
            tables,
            CHUNK,
            tables.adapter().system(),
            BoFlags::CPU_ACCESS,
            Access::Read,
        )?;
        let cpu = memory.map()?;
        Ok((memory, cpu))
    }

    pub(super) fn add(&mut self, chunk: Chunk) {
        let number = self.chunks.len();
        self.chunks.push(chunk);
        // Backwards, so that they are used forwards.
        let count = CHUNK as usize / SLOT;
        self.free
            .extend((0..count).rev().map(|n| Slot(number, n * SLOT)));
    }

    /// Takes as many slots, if there are. Up to `progress`, packets are done.
    pub(super) fn take(&mut self, count: usize, progress: u64) -> Option<Vec<Slot>> {
        while let Some((_, slot)) = self.busy.front().filter(|(point, _)| *point <= progress) {
            self.free.push(*slot);
            self.busy.pop_front();
        }
        let from = self.free.len().checked_sub(count)?;
        Some(self.free.split_off(from))
    }

    /// Writes signals into a slot; tells where the GPU sees them, and how many bytes they are.
    pub(super) fn write(
        &self,
        Slot(chunk, offset): Slot,
        signals: &[(u64, u64)],
    ) -> Result<(u64, u32)> {
        let (memory, cpu) = self.chunks.get(chunk).ok_or(Status::UNSUCCESSFUL)?;
        let mut at = offset;
        for (address, value) in signals {
            let encoded = Command::Signal {
                address: *address,
                value: *value,
            }
            .encode();
            cpu.copy_from_slice(at, encoded.words())?;
            at += size_of_val(encoded.words());
        }
        // CAST: at most SLOT, and an offset in a chunk.
        Ok((memory.va() + offset as u64, (at - offset) as u32))
    }

    /// Keeps a slot until a packet is done.
    pub(super) fn use_until(&mut self, point: u64, slot: Slot) {
        self.busy.push_back((point, slot));
    }

    /// Gives a slot back that nothing uses.
    pub(super) fn give_back(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// Takes the memory out, of slots that are not used any more when that is given back.
    pub(super) fn take_memory(&mut self) -> Vec<Arc<Memory>> {
        let chunks = std::mem::take(self).chunks.into_iter();
        chunks.map(|(memory, _)| Arc::new(memory)).collect()
    }
}
