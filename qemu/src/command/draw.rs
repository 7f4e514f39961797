// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DRAW: triangles one after the other, each from its first row to its last, and a program for each
//! pixel.
//!
//! A wave is up to 32 pixels of a triangle that follow each other in a row: their program runs to
//! its end, what it computed goes to the target, and the next ones are looked for.

use skua_spec::command::{Blend, Draw, WAVE_THREADS};
use skua_spec::fault::{Access, Reason};
use skua_spec::preemption::Level;
use skua_spec::status::Counter;
use skua_spec::ticks;

use crate::command::triangle::{blend, Triangle, Vertex, VERTEX_WORDS};
use crate::engine::core::{Core, Flow, Work};
use crate::fault::Fault;
use crate::memory::Memory;
use crate::mmu::{Mmu, Space};
use crate::program::cache::Program;
use crate::program::wave::{End, Wave, LANES};
use crate::program::window::{Surroundings, Windows};

/// Registers that a pixel's program leaves at its end: the colour, and whether it is discarded.
pub(crate) const OUTPUTS: [u8; 2] = [0, 1];
/// [`OUTPUTS`] as a mask of registers, a bit for each.
pub(crate) const OUTPUT_MASK: u64 = 0b11;
/// Registers in which it finds its column, its row, and its triangle.
const INPUTS: [u8; 3] = [2, 3, 4];
/// The register in which it finds its first attribute; the others follow.
const FIRST_ATTRIBUTE: u8 = 8;

/// A DRAW under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drawing {
    /// The triangle that is drawn or comes next.
    pub(crate) triangle: u32,
    /// That triangle, once its vertices were read.
    pub(crate) shape: Option<Triangle>,
    /// Column of the first pixel that is not done.
    pub(crate) column: u32,
    /// The row of the target that the pixel is in.
    pub(crate) row: u32,
    /// Pixels from there on whose program runs, 0 if none.
    pub(crate) pixels: u32,
    /// The pixels that are computed together.
    pub(crate) wave: Wave,
}

impl Default for Drawing {
    fn default() -> Self {
        Self {
            triangle: 0,
            shape: None,
            column: 0,
            row: 0,
            pixels: 0,
            wave: Wave::new(0, [WAVE_THREADS, 1, 1]),
        }
    }
}

/// What a drawing needs to get on.
struct Around<'a, 'm> {
    memory: &'a Memory<'m>,
    mmu: &'a mut Mmu,
    space: Space,
    draw: &'a Draw,
    program: &'a Program,
    /// Pages that programs have opened in this step.
    opened: &'a mut u32,
}

impl Around<'_, '_> {
    /// Reads words that follow each other.
    fn read(&mut self, address: u64, words: &mut [u32]) -> Result<(), Fault> {
        let mut bytes = [0; LANES * 4];
        let bytes = &mut bytes[..words.len() * 4];
        let (memory, space) = (self.memory, self.space);
        self.mmu.read(memory, space, address, bytes, Access::Read)?;
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    /// The vertices of a triangle.
    fn vertices(&mut self, triangle: u32) -> Result<[Vertex; 3], Fault> {
        let draw = self.draw;
        let first = triangle * 3;
        let mut numbers = [first, first + 1, first + 2];
        if let Some(indices) = draw.indices {
            self.read(indices + u64::from(first) * 4, &mut numbers)?;
        }
        let mut vertices = [[0; VERTEX_WORDS]; 3];
        for (vertex, number) in vertices.iter_mut().zip(numbers) {
            if number >= draw.vertex_count {
                return Err(Fault::plain(Reason::BadIndex).with_detail(number));
            }
            let words = draw.vertex_words();
            let at = draw.vertices + u64::from(number) * u64::from(words) * 4;
            let mut found = [0; VERTEX_WORDS];
            self.read(at, &mut found[..words as usize])?;
            // CAST: words as signed numbers.
            *vertex = found.map(|word| word as i32);
        }
        Ok(vertices)
    }

    /// Writes pixels of a row that follow each other.
    fn write(&mut self, column: u32, row: u32, colours: &mut [u32]) -> Result<(), Fault> {
        let draw = self.draw;
        // Decoding has checked that no pixel's address wraps.
        let line = draw.target + u64::from(row) * u64::from(draw.pitch);
        let address = line + u64::from(column) * 4;
        if draw.blend != Blend::Replace {
            let mut old = [0; LANES];
            let old = &mut old[..colours.len()];
            self.read(address, old)?;
            for (new, old) in colours.iter_mut().zip(old) {
                *new = blend(draw.blend, *old, *new);
            }
        }
        let bytes: Vec<u8> = colours.iter().flat_map(|c| c.to_le_bytes()).collect();
        self.mmu.write(self.memory, self.space, address, &bytes)
    }
}

impl Drawing {
    /// Whether the DRAW can be stopped here at this level.
    pub(crate) fn is_at(&self, level: Level) -> bool {
        match level {
            Level::None | Level::DmaBuffer | Level::Dispatch => false,
            Level::ThreadGroup => self.shape.is_none(),
            Level::Thread => self.pixels == 0,
            Level::Instruction => true,
        }
    }

    /// The threads of a wave of so many pixels, by bit.
    pub(crate) const fn mask(pixels: u32) -> u32 {
        u32::MAX >> (WAVE_THREADS - pixels)
    }

    /// Does what is next: reads a triangle, looks for pixels, or runs their program for up to
    /// `budget` ticks. Adds what it took, beyond accesses, to `time`.
    fn advance(
        &mut self,
        around: &mut Around<'_, '_>,
        budget: u64,
        time: &mut u64,
    ) -> Result<(), Fault> {
        if self.pixels > 0 {
            return self.run(around, budget, time);
        }
        let scissor = &around.draw.scissor;
        let Some(shape) = &self.shape else {
            let shape = Triangle::new(around.vertices(self.triangle)?);
            let rows = shape.rows(scissor);
            (self.column, self.row) = (scissor.left.into(), rows.start);
            self.shape = Some(shape);
            if rows.is_empty() {
                self.end_triangle(around);
            }
            *time += ticks::TRIANGLE;
            return Ok(());
        };
        let found = shape.columns(self.row, self.column..scissor.right.into());
        if found.is_empty() {
            (self.column, self.row) = (scissor.left.into(), self.row + 1);
            if self.row >= shape.rows(scissor).end {
                self.end_triangle(around);
            }
        } else {
            // CAST: at most 32.
            self.pixels = found.len().min(LANES) as u32;
            self.column = found.start;
            self.start(around);
        }
        *time += ticks::ROW;
        Ok(())
    }

    fn end_triangle(&mut self, around: &Around<'_, '_>) {
        around.memory.tally().add(Counter::Triangle, 1);
        (self.shape, self.triangle) = (None, self.triangle + 1);
    }

    /// Starts the program of the pixels.
    fn start(&mut self, around: &Around<'_, '_>) {
        let Some(shape) = &self.shape else { return };
        let wave = &mut self.wave;
        wave.present = Self::mask(self.pixels);
        wave.start([0; 3], around.program.used | OUTPUT_MASK);
        let [column, row, triangle] = INPUTS;
        // CAST: below 32.
        *wave.register_mut(column) = std::array::from_fn(|l| self.column + l as u32);
        *wave.register_mut(row) = [self.row; LANES];
        *wave.register_mut(triangle) = [self.triangle; LANES];
        for number in 0..around.draw.attributes {
            // CAST: at most 8; the value's bits.
            let register = FIRST_ATTRIBUTE + number as u8;
            let found = shape.attribute(number as usize, self.column, self.row);
            let values = wave.register_mut(register).iter_mut();
            for (value, found) in values.zip(found).take(self.pixels as usize) {
                *value = found as u32;
            }
        }
    }

    /// Goes on with the program of the pixels, and writes what it computed at its end.
    fn run(
        &mut self,
        around: &mut Around<'_, '_>,
        budget: u64,
        time: &mut u64,
    ) -> Result<(), Fault> {
        let draw = around.draw;
        let mut surroundings = Surroundings {
            program: &around.program.instructions,
            windows: Windows::new(around.memory, around.mmu, around.space).after(*around.opened),
            shared: &mut [],
            arguments: draw
                .arguments
                .get(..draw.argument_count)
                .unwrap_or_default(),
            groups: [1; 3],
            threads: [WAVE_THREADS, 1, 1],
            budget,
        };
        let mut issued = 0;
        let mut ended = Ok(End::Budget);
        while surroundings.left(issued) > 0 && !self.wave.has_ended() {
            let most = surroundings.left(issued);
            ended = self.wave.run(&mut surroundings, most, &mut issued);
            match ended {
                // A barrier is of these pixels alone.
                Ok(End::Blocked) => self.wave.release(),
                Ok(End::Budget) => {}
                Err(_) => break,
            }
        }
        *around.opened = surroundings.windows.opened();
        around.memory.tally().add(Counter::Instruction, issued);
        *time += issued * ticks::INSTRUCTION;
        ended?;
        if self.wave.has_ended() {
            self.write(around)?;
            *time += ticks::PIXELS;
        }
        Ok(())
    }

    /// Writes the pixels whose program has ended, but for those that it discarded.
    fn write(&mut self, around: &mut Around<'_, '_>) -> Result<(), Fault> {
        let [colour, discard] = OUTPUTS.map(|register| *self.wave.register(register));
        let mut lanes = 0..self.pixels as usize;
        while let Some(first) = lanes.find(|l| discard[*l] == 0) {
            let end = lanes.find(|l| discard[*l] != 0).unwrap_or(lanes.end);
            let mut colours = colour;
            // CAST: below 32.
            around.write(
                self.column + first as u32,
                self.row,
                &mut colours[first..end],
            )?;
        }
        let done = std::mem::take(&mut self.pixels);
        self.column += done;
        around.memory.tally().add(Counter::Pixel, done.into());
        Ok(())
    }
}

impl Core {
    /// Goes on with a DRAW.
    pub(crate) fn draw(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        draw: &Draw,
        work: &mut Work,
        limit: u64,
    ) -> Result<Flow, Fault> {
        let program = (draw.program, draw.program_bytes);
        let Some(program) = self.program(memory, space, program)? else {
            return Ok(Flow::Pause);
        };
        let mut drawing = match std::mem::take(work) {
            Work::Draw(drawing) => drawing,
            _ => Box::default(),
        };
        // As with a dispatch: there is some progress, however long the program took.
        self.spend(memory, 0, limit);
        let (stop, mut opened) = (self.stops_at(), 0);
        loop {
            let budget = self.left(limit).max(ticks::INSTRUCTION);
            let mut around = Around {
                memory,
                mmu: &mut self.mmu,
                space,
                draw,
                program: &program,
                opened: &mut opened,
            };
            let (mut time, ran) = (0, drawing.pixels > 0);
            let done = drawing.advance(&mut around, budget, &mut time);
            self.spend(memory, time, limit);
            done?;
            if drawing.triangle == draw.triangles {
                return Ok(Flow::End);
            }
            let stops = stop.is_some_and(|level| drawing.is_at(level));
            // There is time left, but the step has opened all the pages that it may.
            let cut = ran && drawing.pixels > 0;
            if stops || cut || self.progress.owed != 0 || self.left(limit) == 0 {
                *work = Work::Draw(drawing);
                return Ok(Flow::Pause);
            }
        }
    }
}
