// SPDX-License-Identifier: GPL-2.0 OR MIT

//! FILL, COPY and COPY_2D.
//!
//! A transfer goes piece by piece: a piece ends where a page or a row does, or the step. A step
//! moves [`skua_spec::command::TRANSFER_CHUNK`] at most. What was written before a fault stays.
//!
//! Where the destination lies behind the source and they overlap, a copy goes from its last byte to
//! its first, so that nothing is overwritten that is still to be read.

use skua_spec::address::PAGE_SIZE;
use skua_spec::command::BYTES_PER_TICK;
use skua_spec::fault::{Access, Reason};
use skua_spec::status::Counter;
use skua_spec::ticks;
use vm_memory::VolatileSlice;

use crate::engine::core::{Core, Flow, Work};
use crate::fault::Fault;
use crate::memory::{Memory, Place};
use crate::mmu::{writes, Mmu, Space};

/// Bytes of the pattern that FILL writes at once: small enough to stay in the host's first cache.
const TILE: usize = 8192;

/// A pattern, many times.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Tile {
    /// `pattern` over and over, little endian.
    bytes: [u8; TILE],
    /// What is in `bytes` now; written anew when another is asked for.
    pattern: u32,
}

impl Default for Tile {
    fn default() -> Self {
        Self {
            bytes: [0; TILE],
            pattern: 0,
        }
    }
}

impl Tile {
    fn of(&mut self, pattern: u32) -> &[u8; TILE] {
        if self.pattern != pattern {
            self.pattern = pattern;
            for word in self.bytes.chunks_exact_mut(4) {
                word.copy_from_slice(&pattern.to_le_bytes());
            }
        }
        &self.bytes
    }
}

/// Operands of COPY_2D, of which COPY is a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Address of the first row that is read.
    pub(crate) source: u64,
    /// Address of the first row that is written.
    pub(crate) destination: u64,
    /// Bytes of a row that are copied, of which its pitch may have more.
    pub(crate) bytes: u64,
    /// Bytes from the start of a row to that of the next.
    pub(crate) source_pitch: u64,
    /// As `source_pitch`.
    pub(crate) destination_pitch: u64,
    /// How many; with none nothing is copied.
    pub(crate) rows: u32,
}

impl Rows {
    /// Whether the copy goes from its end to its start.
    fn is_backward(&self) -> bool {
        // Decoding has checked that no row's end wraps.
        let span = u64::from(self.rows - 1) * self.source_pitch + self.bytes;
        self.destination > self.source && self.destination - self.source < span
    }
}

/// How far a transfer has come, in the order in which it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Rows that are done.
    pub(crate) row: u32,
    /// Bytes of the next row that are done.
    pub(crate) bytes: u64,
    /// Bytes of that row that the last translation of the source covers: looking it up once more,
    /// because a step has ended, is not counted.
    pub(crate) source: u64,
    /// The same of the destination.
    pub(crate) destination: u64,
}

/// The next piece of a row of the source or destination.
#[derive(Clone, Copy)]
struct Piece {
    /// Where the row starts.
    row: u64,
    /// Bytes of the row.
    bytes: u64,
    /// Whether it goes from the last byte to the first, since target and source overlap.
    backward: bool,
    /// Bytes of the row that are done.
    done: u64,
    /// Most bytes of the piece.
    want: u64,
    access: Access,
}

impl Piece {
    /// The piece's memory. `covered` is kept from piece to piece, see [`Moved`].
    #[inline(always)]
    fn find<'m>(
        &self,
        mmu: &mut Mmu,
        memory: &Memory<'m>,
        space: Space,
        covered: &mut u64,
    ) -> Result<(VolatileSlice<'m>, Place), Fault> {
        let Self { done, access, .. } = *self;
        let address = if self.backward {
            self.row + (self.bytes - done - 1)
        } else {
            self.row + done
        };
        let again = done < *covered;
        let found = memory.look(again, |memory| {
            mmu.translate(memory, space, address, access)
        })?;
        let (place, count) = if self.backward {
            *covered = done + found.before + 1;
            // On the bus each page may lie elsewhere.
            let count = self.want.min(address % PAGE_SIZE + 1);
            (found.place.sub(count - 1), count)
        } else {
            *covered = done + found.bytes;
            (found.place, self.want.min(found.bytes))
        };
        let slice = memory
            .slice(place, count, writes(access))
            .map_err(|_| Fault::access(Reason::BusError, access, address))?;
        Ok((slice, place))
    }
}

/// Ticks for a line of a transfer between `places`.
fn line_ticks(places: &[Place]) -> u64 {
    let system = |place: &&Place| matches!(place, Place::System { .. });
    // CAST: one or two.
    ticks::LINE + places.iter().filter(system).count() as u64 * ticks::SYSTEM
}

/// What counts the bytes that go from one place to the other.
const fn way(from: Place, to: Place) -> Counter {
    match (from, to) {
        (Place::Vram(_), Place::Vram(_)) => Counter::CopyVramToVram,
        (Place::Vram(_), Place::System { .. }) => Counter::CopyVramToSystem,
        (Place::System { .. }, Place::Vram(_)) => Counter::CopySystemToVram,
        (Place::System { .. }, Place::System { .. }) => Counter::CopySystemToSystem,
    }
}

/// Lines that begin in the bytes from `before` to `after` of a row.
const fn lines(before: u64, after: u64) -> u64 {
    after.div_ceil(BYTES_PER_TICK) - before.div_ceil(BYTES_PER_TICK)
}

/// Most bytes of a piece whose lines take `line` ticks each, in `left` ticks: a line at least.
fn most(left: u64, line: u64) -> u64 {
    (left / line).max(1).saturating_mul(BYTES_PER_TICK)
}

/// The `count` bytes of `slice` that come first in the order of the transfer.
fn cut<'m>(slice: VolatileSlice<'m>, count: u64, backward: bool) -> VolatileSlice<'m> {
    // CAST: the length of a slice.
    let count = slice.len().min(count as usize);
    let start = if backward { slice.len() - count } else { 0 };
    slice.subslice(start, count).unwrap_or(slice)
}

impl Core {
    /// Goes on to write `pattern` to `bytes` bytes from `address` on.
    #[expect(
        clippy::too_many_arguments,
        reason = "the operands of FILL and the step's"
    )]
    pub(crate) fn fill(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        pattern: u32,
        address: u64,
        bytes: u64,
        work: &mut Work,
        limit: u64,
    ) -> Result<Flow, Fault> {
        let mut moved = work.moved();
        while moved.bytes < bytes {
            // A piece begins with the pattern's first byte, whatever a COPY has left of the step.
            let (left, room) = (self.left(limit), self.chunk & !3);
            if left == 0 || room == 0 {
                *work = Work::Transfer(moved);
                return Ok(Flow::Pause);
            }
            let done = moved.bytes;
            let piece = Piece {
                row: address,
                bytes,
                backward: false,
                done,
                want: (bytes - done).min(room),
                access: Access::Write,
            };
            let covered = &mut moved.destination;
            let (slice, place) = piece.find(&mut self.mmu, memory, space, covered)?;
            let line = line_ticks(&[place]);
            let slice = cut(slice, most(left, line), false);
            let (count, tile) = (slice.len(), self.tile.of(pattern));
            for at in (0..count).step_by(TILE) {
                if let Ok(part) = slice.offset(at) {
                    part.copy_from(tile);
                }
            }
            memory.count_write(place, count as u64);
            memory.tally().add(Counter::FillBytes, count as u64);
            moved.bytes += count as u64;
            self.chunk -= count as u64;
            self.spend(memory, lines(done, moved.bytes) * line, limit);
        }
        Ok(Flow::End)
    }

    /// Goes on to copy rows of bytes.
    pub(crate) fn copy(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        rows: Rows,
        work: &mut Work,
        limit: u64,
    ) -> Result<Flow, Fault> {
        if rows.bytes == 0 || rows.rows == 0 {
            return Ok(Flow::End);
        }
        let backward = rows.is_backward();
        let mut moved = work.moved();
        while moved.row < rows.rows {
            let left = self.left(limit);
            if left == 0 || self.chunk == 0 {
                *work = Work::Transfer(moved);
                return Ok(Flow::Pause);
            }
            let number = if backward {
                rows.rows - 1 - moved.row
            } else {
                moved.row
            };
            let done = moved.bytes;
            let source = Piece {
                row: rows.source + u64::from(number) * rows.source_pitch,
                bytes: rows.bytes,
                backward,
                done,
                want: (rows.bytes - done).min(self.chunk),
                access: Access::Read,
            };
            let covered = &mut moved.source;
            let (from, from_place) = source.find(&mut self.mmu, memory, space, covered)?;
            let destination = Piece {
                row: rows.destination + u64::from(number) * rows.destination_pitch,
                want: from.len() as u64,
                access: Access::Write,
                ..source
            };
            let covered = &mut moved.destination;
            let (to, to_place) = destination.find(&mut self.mmu, memory, space, covered)?;
            let line = line_ticks(&[from_place, to_place]);
            let to = cut(to, most(left, line), backward);
            let count = to.len() as u64;
            let from = cut(from, count, backward);
            from.copy_to_volatile_slice(to);
            memory.count_read(from_place, count);
            memory.count_write(to_place, count);
            memory.tally().add(Counter::CopyBytes, count);
            memory.tally().add(way(from_place, to_place), count);
            moved.bytes += count;
            self.chunk -= count;
            self.spend(memory, lines(done, moved.bytes) * line, limit);
            if moved.bytes == rows.bytes {
                moved = Moved {
                    row: moved.row + 1,
                    ..Moved::default()
                };
            }
        }
        Ok(Flow::End)
    }
}

impl Work {
    fn moved(&self) -> Moved {
        match *self {
            Self::Transfer(moved) => moved,
            _ => Moved::default(),
        }
    }
}
