// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Preemption: where a packet can be stopped, and its state in memory (manual section 11).
//!
//! The form of a state is all in this file. Behind [`Header`] it has, each field little endian and
//! without gaps:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | offset in the buffer of the command under way, or the next one |
//! | 4 | words of the command under way, 0 if there is none |
//! | 4 each | these words |
//! | 4, 8 | of a transfer: rows done; bytes of the next one done |
//! | 8, 8 | bytes of it that the last translations cover, of the source and of the destination |
//! | 6 × 4 | of a dispatch: group; wave in turn; what it has issued; whether threads have begun |
//! | … | if they have: shared memory; the waves |
//! | 4, 4 | of a DRAW: triangle; what of it has begun: 0 nothing, 1 itself, 2 a wave of pixels |
//! | 4, 4, 4 | if it has: column and row of the first pixel that is not done; pixels of the wave |
//! | 4 each | the triangle's vertices |
//! | … | of a wave of pixels: the wave; of its threads that have ended, colours, and discards |
//! | 4, 4 | of a wave: threads that have not ended; those of them that wait at a barrier |
//! | 8 | registers, by bit, that one of these threads may still read |
//! | 4 each | counters of these threads; for each of these registers, its values |
//!
//! The driver, or whoever it gives the memory to, may have changed any of it: `decode` checks each
//! field, and takes no address from it that is not the context's, to be translated like any other.

use skua_spec::address::{GpuVa, PAGE_SIZE};
use skua_spec::command::{
    Command, Draw, EngineKind, BYTES_PER_TICK, MAX_GROUP_THREADS, MAX_SHARED, MAX_WORDS,
    WAVE_THREADS,
};
use skua_spec::context::{Descriptor, SaveArea, IMAGE_SIZE};
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::REGISTERS;
use skua_spec::preemption::{Cause, Header, Level};
use skua_spec::status::{Counter, EngineState};
use skua_spec::ticks;
use vm_memory::VolatileSlice;

use crate::command::draw::{Drawing, OUTPUTS, OUTPUT_MASK};
use crate::command::transfer::Moved;
use crate::command::triangle::{Triangle, VERTEX_WORDS};
use crate::engine::core::{Begun, Core, Outcome, Work};
use crate::engine::packet::Packet;
use crate::fault::Fault;
use crate::memory::{Memory, Place};
use crate::mmu::{Mmu, Space};
use crate::program::machine::{Machine, SCRAMBLED};
use crate::program::wave::{lanes, Wave};

/// Bytes of a save area, in whole pages ([`struct@skua_spec::regs::SAVE_SIZE`]): the context's
/// image, and the state of a dispatch whose group is as large as it can be.
pub const SAVE_SIZE: u32 = {
    let wave = 16 + (1 + REGISTERS as u32) * WAVE_THREADS * 4;
    let dispatch = 6 * 4 + MAX_SHARED + MAX_GROUP_THREADS / WAVE_THREADS * wave;
    // CAST: 44 words, and a page.
    let bytes = IMAGE_SIZE + Header::SIZE + 8 + MAX_WORDS as u32 * 4 + dispatch;
    bytes.next_multiple_of(PAGE_SIZE as u32)
};

/// Most bytes of a state: what the image leaves of a save area.
pub const STATE_SIZE: u32 = SAVE_SIZE - IMAGE_SIZE;

/// Fields to be written.
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.bytes(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.bytes(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// The numbers of the registers in `mask`.
fn registers(mask: u64) -> impl Iterator<Item = u8> {
    (0..REGISTERS).filter(move |register| mask >> register & 1 != 0)
}

fn write_machine(w: &mut Writer, machine: &Machine, live: impl Fn(u32) -> u64) {
    machine.group.iter().for_each(|at| w.u32(*at));
    // CAST: 32 and 256 at most.
    w.u32(machine.turn as u32);
    w.u32(machine.issued as u32);
    w.u32(machine.started.into());
    if !machine.started {
        return;
    }
    w.0.extend(&machine.shared);
    for wave in &machine.waves {
        write_wave(w, wave, &live);
    }
}

fn write_wave(w: &mut Writer, wave: &Wave, live: impl Fn(u32) -> u64) {
    w.u32(wave.alive);
    w.u32(wave.parked);
    let live = lanes(wave.alive).fold(0, |all, l| all | live(wave.counters[l]));
    w.u64(live);
    lanes(wave.alive).for_each(|l| w.u32(wave.counters[l]));
    for register in registers(live) {
        lanes(wave.alive).for_each(|l| w.u32(wave.register(register)[l]));
    }
}

fn write_drawing(w: &mut Writer, drawing: &Drawing, draw: &Draw, live: impl Fn(u32) -> u64) {
    w.u32(drawing.triangle);
    let Some(shape) = &drawing.shape else {
        return w.u32(0);
    };
    w.u32(if drawing.pixels == 0 { 1 } else { 2 });
    [drawing.column, drawing.row, drawing.pixels]
        .iter()
        .for_each(|value| w.u32(*value));
    for vertex in shape.vertices() {
        let words = vertex.iter().take(draw.vertex_words() as usize);
        // CAST: the bits of a signed number.
        words.for_each(|word| w.u32(*word as u32));
    }
    if drawing.pixels == 0 {
        return;
    }
    let wave = &drawing.wave;
    // A program ends with the registers that are written.
    write_wave(w, wave, |pc| live(pc) | OUTPUT_MASK);
    for register in OUTPUTS {
        lanes(wave.present & !wave.alive).for_each(|l| w.u32(wave.register(register)[l]));
    }
}

/// Sets `machine`, prepared for the dispatch, to what was saved.
fn read_machine(r: &mut Reader<'_>, machine: &mut Machine, groups: [u32; 3]) -> Option<()> {
    // What is not read is not to be relied on.
    machine.scramble();
    for (at, count) in machine.group.iter_mut().zip(groups) {
        *at = r.u32().filter(|at| *at < count)?;
    }
    machine.turn = r.u32()? as usize;
    machine.issued = r.u32()?.into();
    machine.started = match r.u32()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    if machine.turn > machine.waves.len() || machine.issued >= Machine::TURN {
        return None;
    }
    if !machine.started {
        return Some(());
    }
    let shared = r.bytes(machine.shared.len())?;
    machine.shared.copy_from_slice(shared);
    for wave in &mut machine.waves {
        read_wave(r, wave)?;
        wave.group = machine.group;
    }
    Some(())
}

fn read_wave(r: &mut Reader<'_>, wave: &mut Wave) -> Option<()> {
    (wave.alive, wave.parked) = (r.u32()?, r.u32()?);
    if wave.alive & !wave.present != 0 || wave.parked & !wave.alive != 0 {
        return None;
    }
    let live = r.u64()?;
    for l in lanes(wave.alive) {
        wave.counters[l] = r.u32()?;
    }
    for register in registers(live) {
        for l in lanes(wave.alive) {
            wave.register_mut(register)[l] = r.u32()?;
        }
    }
    Some(())
}

/// A DRAW as it was saved.
fn read_drawing(r: &mut Reader<'_>, draw: &Draw) -> Option<Drawing> {
    let mut drawing = Drawing {
        triangle: r.u32().filter(|at| *at < draw.triangles)?,
        ..Drawing::default()
    };
    let begun = r.u32().filter(|begun| *begun <= 2)?;
    if begun == 0 {
        return Some(drawing);
    }
    let [left, top, right, bottom] = {
        let s = draw.scissor;
        [s.left, s.top, s.right, s.bottom].map(u32::from)
    };
    drawing.column = r.u32().filter(|at| (left..=right).contains(at))?;
    drawing.row = r.u32().filter(|at| (top..bottom).contains(at))?;
    let room = (right - drawing.column).min(WAVE_THREADS);
    let possible = if begun == 1 { 0..=0 } else { 1..=room };
    drawing.pixels = r.u32().filter(|pixels| possible.contains(pixels))?;
    let mut vertices = [[0; VERTEX_WORDS]; 3];
    for vertex in &mut vertices {
        for word in vertex.iter_mut().take(draw.vertex_words() as usize) {
            // CAST: the bits of a signed number.
            *word = r.u32()? as i32;
        }
    }
    drawing.shape = Some(Triangle::new(vertices));
    if begun == 1 {
        return Some(drawing);
    }
    let wave = &mut drawing.wave;
    // What is not read is not to be relied on.
    wave.clear(SCRAMBLED);
    wave.present = Drawing::mask(drawing.pixels);
    read_wave(r, wave)?;
    for register in OUTPUTS {
        for l in lanes(wave.present & !wave.alive) {
            wave.register_mut(register)[l] = r.u32()?;
        }
    }
    (wave.alive != 0).then_some(drawing)
}

/// The state of a packet that is within `begun`, or between two commands.
///
/// `live` says which registers are read at an instruction or behind it.
fn encode(
    packet: &Packet,
    begun: Option<&Begun>,
    live: impl Fn(u32) -> u64,
    full: bool,
) -> Vec<u8> {
    let mut w = Writer(vec![0; Header::SIZE as usize]);
    w.u32(packet.at);
    let encoded = begun.map(|begun| begun.command.encode());
    let words = encoded.as_ref().map_or(&[][..], |encoded| encoded.words());
    // CAST: at most MAX_WORDS.
    w.u32(words.len() as u32);
    words.iter().for_each(|word| w.u32(*word));
    match begun.map(|begun| &begun.work) {
        Some(Work::Transfer(moved)) => {
            w.u32(moved.row);
            for bytes in [moved.bytes, moved.source, moved.destination] {
                w.u64(bytes);
            }
        }
        Some(Work::Dispatch(machine)) => write_machine(&mut w, machine, live),
        Some(Work::Draw(drawing)) => {
            if let Some(Command::Draw(draw)) = begun.map(|begun| &begun.command) {
                write_drawing(&mut w, drawing, draw, live);
            }
        }
        _ => {}
    }
    if full {
        w.0.resize(STATE_SIZE as usize, 0);
    }
    let header = Header {
        // CAST: at most STATE_SIZE.
        bytes: w.0.len() as u32,
        base: GpuVa(packet.base),
        start: packet.start,
        end: packet.end,
    };
    for (slot, word) in w.0.chunks_exact_mut(8).zip(header.to_words()) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    w.0
}

/// Where a packet of an engine of the kind goes on, by its state. `None` if it could not have come
/// there. `machine` is used for a dispatch.
fn decode(
    state: &[u8],
    packet: &Packet,
    kind: EngineKind,
    full: bool,
    machine: Option<Box<Machine>>,
) -> Option<(u32, Option<Begun>)> {
    let mut r = Reader(state);
    let header = [r.u64()?, r.u64()?, r.u64()?, r.u64()?];
    let header = Header::from_words(header)?;
    let expected = Header {
        // CAST: at most STATE_SIZE.
        bytes: state.len() as u32,
        base: GpuVa(packet.base),
        start: packet.start,
        end: packet.end,
    };
    let (at, count) = (r.u32()?, r.u32()? as usize);
    let inside = (packet.start..packet.end).contains(&at) && at % 8 == 0;
    if header != expected || !inside || count > MAX_WORDS {
        return None;
    }
    let words: Option<Vec<u32>> = (0..count).map(|_| r.u32()).collect();
    let begun = match &*words? {
        [] => None,
        words => {
            let (command, length) = Command::decode(words).ok()?;
            // CAST: at most MAX_WORDS.
            let bytes = length as u32 * 4;
            if length != count || bytes > packet.end - at {
                return None;
            }
            Some(Begun {
                work: decode_work(&mut r, &command, kind, machine)?,
                command,
                bytes,
                ticks: 0,
            })
        }
    };
    let padding = full && state.len() == STATE_SIZE as usize && r.0.iter().all(|byte| *byte == 0);
    (r.0.is_empty() || padding).then_some((at, begun))
}

fn decode_work(
    r: &mut Reader<'_>,
    command: &Command,
    kind: EngineKind,
    machine: Option<Box<Machine>>,
) -> Option<Work> {
    let (rows, bytes) = match *command {
        Command::Fill { bytes, .. } | Command::Copy { bytes, .. } => (1, bytes),
        Command::Copy2d { rows, bytes, .. } => (rows, bytes.into()),
        Command::Dispatch(dispatch) if kind == EngineKind::Compute => {
            let mut machine = machine.unwrap_or_default();
            machine.prepare(&dispatch);
            read_machine(r, &mut machine, dispatch.groups)?;
            return Some(Work::Dispatch(machine));
        }
        Command::Draw(draw) if kind == EngineKind::Compute => {
            return read_drawing(r, &draw).map(|drawing| Work::Draw(Box::new(drawing)));
        }
        Command::Wait { .. } => return Some(Work::Wait),
        // No other one can be stopped within.
        _ => return None,
    };
    let unit = match command {
        Command::Fill { .. } => 4,
        _ => 1,
    };
    let moved = Moved {
        row: r.u32().filter(|row| *row < rows)?,
        bytes: r.u64().filter(|done| *done < bytes && done % unit == 0)?,
        source: r.u64()?,
        destination: r.u64()?,
    };
    Some(Work::Transfer(moved))
}

/// Virtual address of the state in a save area.
fn state_at(area: &SaveArea) -> u64 {
    area.base.0 + u64::from(IMAGE_SIZE)
}

/// Does `part` for each part of `bytes` bytes in a save area, from `address` on, that lies in one
/// page, with the number of bytes before it. While a part is moved the next one's address is
/// translated: what takes longer passes.
pub(crate) fn in_pages<'m>(
    areas: &mut Mmu,
    memory: &Memory<'m>,
    (space, address): (Space, u64),
    bytes: usize,
    access: Access,
    mut part: impl FnMut(VolatileSlice<'m>, Place, usize),
) -> Result<(), Fault> {
    let tally = memory.tally();
    let (mut time, mut moving, mut done) = (tally.take_time(), 0, 0);
    let mut result = Ok(());
    while done < bytes {
        let (here, rest) = (address.wrapping_add(done as u64), (bytes - done) as u64);
        let found = areas.slice(memory, space, here, rest, access);
        time += tally.take_time().max(moving);
        let (slice, place) = match found {
            Ok(found) => found,
            Err(fault) => {
                (result, moving) = (Err(fault), 0);
                break;
            }
        };
        part(slice, place, done);
        let count = slice.len();
        moving = tally.take_time() + (count as u64).div_ceil(BYTES_PER_TICK) * ticks::LINE;
        done += count;
    }
    tally.spend(time + moving);
    result
}

/// Reads from a save area.
pub(crate) fn read_area(
    areas: &mut Mmu,
    memory: &Memory<'_>,
    space: Space,
    address: u64,
    buffer: &mut [u8],
) -> Result<(), Fault> {
    let (at, count) = ((space, address), buffer.len());
    in_pages(
        areas,
        memory,
        at,
        count,
        Access::Fetch,
        |slice, place, done| {
            slice.copy_to(&mut buffer[done..]);
            memory.charge_read(place, slice.len() as u64);
        },
    )
}

/// Writes to a save area.
pub(crate) fn write_area(
    areas: &mut Mmu,
    memory: &Memory<'_>,
    space: Space,
    address: u64,
    bytes: &[u8],
) -> Result<(), Fault> {
    let (at, count) = ((space, address), bytes.len());
    in_pages(
        areas,
        memory,
        at,
        count,
        Access::Write,
        |slice, place, done| {
            slice.copy_from(&bytes[done..]);
            memory.charge_write(place, slice.len() as u64);
        },
    )
}

impl Core {
    /// What the engine is at, if it can stop there for the request that is outstanding.
    pub(crate) fn boundary(&self) -> Option<Cause> {
        let progress = &self.progress;
        progress.preempt?;
        let level = self.level();
        let work = progress.command.as_ref().map(|begun| &begun.work);
        if level == Level::None {
            return (work.is_none() && progress.packet.is_none() && self.is_done())
                .then_some(Cause::Idle);
        }
        let Some(packet) = &progress.packet else {
            return match work {
                None if self.is_done() => Some(Cause::Idle),
                None | Some(Work::Wait) if self.has_good_tail() => Some(Cause::Between),
                _ => None,
            };
        };
        let stops = match work {
            _ if !packet.can_be_saved() => false,
            None => level >= Level::Dispatch && packet.command().is_some(),
            // One that was restored has not looked.
            Some(Work::Wait) if progress.state != EngineState::Waiting => false,
            Some(Work::Wait) => return Some(Cause::Waiting),
            Some(Work::Transfer(_)) => level == Level::Instruction,
            Some(Work::Dispatch(machine)) => machine.is_at(level),
            Some(Work::Draw(drawing)) => drawing.is_at(level),
            _ => false,
        };
        stops.then_some(Cause::Within)
    }

    /// Whether the command under way can be stopped for the request that is outstanding once any of
    /// it is done, and none is.
    pub(crate) fn is_to_stop_within(&self) -> bool {
        let begun = self.progress.command.as_ref();
        self.progress.preempt.is_some()
            && begun.is_some_and(|begun| begun.work == Work::Fetched)
            && self.stops_at() == Some(Level::Instruction)
    }

    /// Stops at a boundary, and leaves the context that is held. What is left in the ring is
    /// withdrawn when the time that this takes is over.
    pub(crate) fn stop(
        &mut self,
        memory: &Memory<'_>,
        cause: Cause,
    ) -> Result<Option<Outcome>, Fault> {
        if cause.is_saved() {
            let saved = self.save(memory);
            self.progress.overhead = memory.tally().time();
            saved?;
        }
        self.leave(memory)?;
        if cause == Cause::Idle {
            memory.tally().add(Counter::PreemptIdle, 1);
        }
        (self.progress.packet, self.progress.command) = (None, None);
        let fence = self.progress.preempt.unwrap_or(0);
        Ok(Some(Outcome::Preempted { fence, cause }))
    }

    fn save(&mut self, memory: &Memory<'_>) -> Result<(), Fault> {
        let Some(packet) = &mut self.progress.packet else {
            return Ok(());
        };
        let begun = self.progress.command.as_ref();
        let program = begun.and_then(|begun| {
            let (address, bytes) = begun.program()?;
            self.programs.find(packet.space().asid(), address, bytes)
        });
        let live = |pc| {
            program
                .as_ref()
                .map_or(u64::MAX, |program| program.live(pc))
        };
        let state = encode(packet, begun, live, self.preemption.full);
        // What fails from here on is the ring command's.
        packet.at = packet.end;
        let (context, space) = (packet.context, packet.space());
        let ticks = std::mem::take(&mut packet.ticks);
        let Some(area) = packet.descriptor.and_then(|d| d.save) else {
            return Ok(());
        };
        self.add_to_context(memory, context, Descriptor::TICKS, ticks)?;
        write_area(&mut self.areas, memory, space, state_at(&area), &state)
            .map_err(Fault::in_save_area)?;
        // CAST: at most STATE_SIZE.
        self.set_saved(memory, context, state.len() as u32)?;
        memory.tally().add(Counter::SavedBytes, state.len() as u64);
        self.programs.clear();
        self.machine = None;
        Ok(())
    }

    /// Has the packet go on where its state says. It takes no time of its context, nor does an
    /// attempt that fails.
    pub(crate) fn restore(&mut self, memory: &Memory<'_>) -> Result<(), Fault> {
        let Some(mut packet) = self.progress.packet else {
            return Ok(());
        };
        let bad = Fault::access(Reason::BadSave, Access::Fetch, packet.context);
        let area = packet.descriptor.and_then(|d| d.save).ok_or(bad)?;
        if packet.saved > STATE_SIZE {
            return Err(bad);
        }
        let mut state = vec![0; packet.saved as usize];
        let (space, at) = (packet.space(), state_at(&area));
        read_area(&mut self.areas, memory, space, at, &mut state).map_err(Fault::in_save_area)?;
        let (full, machine) = (self.preemption.full, self.machine.take());
        let found = decode(&state, &packet, self.kind, full, machine);
        let (at, begun) = found.ok_or(bad)?;
        self.set_saved(memory, packet.context, 0)?;
        let count = state.len() as u64;
        memory.tally().add(Counter::RestoredBytes, count);
        (packet.at, packet.resume, packet.ticks) = (at, false, 0);
        self.progress.packet = Some(packet);
        let program = begun.as_ref().and_then(Begun::program);
        self.progress.draws = begun.as_ref().is_some_and(Begun::draws);
        self.progress.command = begun;
        if let Some(program) = program {
            // In the TLB it may take the place of a page that the packet accesses.
            self.read_program(&memory.in_passing(), packet.space(), program)?;
        }
        Ok(())
    }
}
