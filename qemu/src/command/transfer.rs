// SPDX-License-Identifier: GPL-2.0 OR MIT

//! FILL, COPY and COPY_2D.
//!
//! A transfer is cut where a page ends, and into chunks of [`TRANSFER_CHUNK`] bytes; between two
//! chunks the engine attends to resets and invalidations. What was written before a fault stays.

use skua_spec::command::{BYTES_PER_TICK, TRANSFER_CHUNK};
use skua_spec::fault::Access;
use skua_spec::status::Counter;

use crate::engine::worker::Worker;
use crate::fault::Halt;
use crate::memory::Memory;
use crate::mmu::Space;

/// Bytes of the pattern that FILL writes at once: small enough to stay in the host's first cache.
const PATTERN_BYTES: usize = 8192;

/// What a row, or what is left of it, counts at least towards a chunk: rows of few bytes are work
/// too.
const LEAST: u64 = 64;

/// Operands of COPY_2D.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) source: u64,
    pub(crate) destination: u64,
    pub(crate) bytes: u64,
    pub(crate) source_pitch: u64,
    pub(crate) destination_pitch: u64,
    pub(crate) rows: u32,
}

/// Ticks for the bytes from `before` to `after` of a transfer.
const fn ticks(before: u64, after: u64) -> u64 {
    after.div_ceil(BYTES_PER_TICK) - before.div_ceil(BYTES_PER_TICK)
}

impl Worker {
    /// Writes `pattern` to `bytes` bytes from `address` on.
    pub(crate) fn fill(
        &mut self,
        space: Space,
        pattern: u32,
        address: u64,
        bytes: u64,
    ) -> Result<(), Halt> {
        let mut tile = [0; PATTERN_BYTES];
        for word in tile.chunks_exact_mut(4) {
            word.copy_from_slice(&pattern.to_le_bytes());
        }
        let mut done = 0;
        while done < bytes {
            self.attend()?;
            let end = done + (bytes - done).min(TRANSFER_CHUNK);
            let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
            while done < end {
                let (slice, place) =
                    self.mmu
                        .slice(&memory, space, address + done, end - done, Access::Write)?;
                let count = slice.len();
                for at in (0..count).step_by(PATTERN_BYTES) {
                    if let Ok(part) = slice.offset(at) {
                        part.copy_from(&tile);
                    }
                }
                memory.count_write(place, count as u64);
                memory.tally().add(Counter::FillBytes, count as u64);
                self.ticks += ticks(done, done + count as u64);
                done += count as u64;
            }
        }
        Ok(())
    }

    /// Copies bytes.
    pub(crate) fn copy(
        &mut self,
        space: Space,
        source: u64,
        destination: u64,
        bytes: u64,
    ) -> Result<(), Halt> {
        self.copy_rows(
            space,
            Rows {
                source,
                destination,
                bytes,
                source_pitch: 0,
                destination_pitch: 0,
                rows: 1,
            },
        )
    }

    /// Copies rows of bytes.
    pub(crate) fn copy_rows(&mut self, space: Space, rows: Rows) -> Result<(), Halt> {
        if rows.bytes == 0 {
            return Ok(());
        }
        // The row and the byte in it that come next.
        let (mut row, mut column) = (0, 0);
        while row < rows.rows {
            self.attend()?;
            let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
            let mut budget = TRANSFER_CHUNK;
            while row < rows.rows && budget > 0 {
                // Decoding has checked that no row's end wraps.
                let source = rows.source + u64::from(row) * rows.source_pitch + column;
                let destination =
                    rows.destination + u64::from(row) * rows.destination_pitch + column;
                let want = (rows.bytes - column).min(budget);
                let (from, from_place) =
                    self.mmu.slice(&memory, space, source, want, Access::Read)?;
                let (to, to_place) = self.mmu.slice(
                    &memory,
                    space,
                    destination,
                    from.len() as u64,
                    Access::Write,
                )?;
                let count = to.len() as u64;
                from.copy_to_volatile_slice(to);
                memory.count_read(from_place, count);
                memory.count_write(to_place, count);
                memory.tally().add(Counter::CopyBytes, count);
                self.ticks += ticks(column, column + count);
                column += count;
                budget = budget.saturating_sub(count.max(LEAST));
                if column == rows.bytes {
                    (row, column) = (row + 1, 0);
                }
            }
        }
        Ok(())
    }
}
