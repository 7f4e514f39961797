// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A packet: EXEC or RUN, which runs the commands of a buffer for a context (manual sections 6
//! and 7).

use skua_spec::address::GpuVa;
use skua_spec::context::{Buffer, Descriptor, DescriptorWords, Queue, SaveArea};
use skua_spec::fault::{Access, Reason};
use skua_spec::layout::half;
use skua_spec::status::Counter;

use crate::engine::core::{Begun, Core, Outcome};
use crate::engine::save::SAVE_SIZE;
use crate::fault::Fault;
use crate::memory::{Memory, NoAnswer, Place};
use crate::mmu::Space;

/// A packet that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// GPU-physical address of the context's descriptor.
    pub(crate) context: u64,
    /// That descriptor, once it was read and found good.
    pub(crate) descriptor: Option<Descriptor>,
    /// Its number in the context's queue, from which the descriptor is read together with what
    /// follows; `None` for EXEC.
    pub(crate) number: Option<u32>,
    /// Virtual address of the buffer.
    pub(crate) base: u64,
    /// Offset of its first command.
    pub(crate) start: u32,
    /// Offset in the buffer of the command that runs or comes next.
    pub(crate) at: u32,
    /// Offset behind the last command.
    pub(crate) end: u32,
    /// The fence id that is completed at its end, if one is.
    pub(crate) fence: Option<u64>,
    /// Whether an interrupt is raised then.
    pub(crate) interrupt: bool,
    /// Length of EXEC or RUN, to go on behind it in the ring.
    pub(crate) bytes: u32,
    /// Ticks used, those of EXEC or RUN included, that the context was not charged yet.
    pub(crate) ticks: u64,
    /// It is to go on by its state, and has not yet. Until then `at` is `end`, once that is known.
    pub(crate) resume: bool,
    /// Its context is held: from there on it is shown, and its commands run.
    pub(crate) begun: bool,
    /// Bytes of the state in the save area when the packet began.
    pub(crate) saved: u32,
    /// What writing its registers takes has passed, or passes.
    pub(crate) ending: bool,
}

/// The address space of a context.
pub(crate) const fn space_of(descriptor: &Descriptor) -> Space {
    Space::Process {
        asid: descriptor.asid,
        root: descriptor.root,
    }
}

/// The descriptor `found` at `context`, if its save area is one that there may be.
fn checked(context: u64, found: Option<Descriptor>) -> Result<Descriptor, Fault> {
    let good =
        |area: SaveArea| area.bytes >= SAVE_SIZE && area.base.range_is_valid(area.bytes.into());
    found
        .filter(|descriptor| descriptor.save.is_none_or(good))
        .ok_or(Fault::access(Reason::BadContext, Access::Fetch, context))
}

impl Packet {
    /// A packet of the context whose descriptor is at `context`, which `begun` begins; its buffer
    /// is empty.
    pub(crate) fn new(context: u64, begun: &Begun) -> Self {
        Self {
            context,
            descriptor: None,
            number: None,
            base: 0,
            start: 0,
            at: 0,
            end: 0,
            fence: None,
            interrupt: false,
            bytes: begun.bytes,
            ticks: begun.ticks,
            resume: false,
            begun: false,
            saved: 0,
            ending: false,
        }
    }

    /// Where the packet's commands and their operands are.
    pub(crate) fn space(&self) -> Space {
        self.descriptor.as_ref().map_or(Space::System, space_of)
    }

    /// Whether its state has a place to go to, and is not to be read first.
    pub(crate) fn can_be_saved(&self) -> bool {
        !self.resume && self.descriptor.is_some_and(|d| d.save.is_some())
    }

    /// Address of the command that runs or comes next; `None` before the first and behind the last.
    pub(crate) fn command(&self) -> Option<u64> {
        // Decoding has checked that the end does not wrap.
        (self.begun && self.at < self.end).then(|| self.base + u64::from(self.at))
    }
}

impl Core {
    /// Goes on with the packet where no command is under way: to its context, its next command or
    /// its end.
    pub(crate) fn run_packet(&mut self, memory: &Memory<'_>) -> Result<Option<Outcome>, Fault> {
        let Some(packet) = self.progress.packet else {
            return Ok(None);
        };
        let Some(descriptor) = packet.descriptor else {
            let (context, resume) = (packet.context, packet.resume);
            if self.holds_another(context) {
                return self.leave(memory).map(|()| None);
            }
            let found = match packet.number {
                Some(number) => self.read_queue(memory, context, number)?,
                None => {
                    let (base, start, end) = (GpuVa(packet.base), packet.start, packet.end);
                    let (descriptor, saved) = self.read_context(memory, context)?;
                    (descriptor, saved, Buffer { base, start, end })
                }
            };
            let (descriptor, saved, buffer) = found;
            self.programs.clear();
            self.context = Some(descriptor);
            if let Some(packet) = &mut self.progress.packet {
                (packet.descriptor, packet.saved) = (Some(descriptor), saved);
                (packet.base, packet.start, packet.end) = (buffer.base.0, buffer.start, buffer.end);
                packet.at = if resume { buffer.end } else { buffer.start };
            }
            return Ok(None);
        };
        if !packet.begun {
            // What it takes passes before anybody sees the packet.
            if self.load(memory, packet.context, descriptor)? {
                return Ok(None);
            }
            if packet.saved != 0 && !packet.resume {
                self.set_saved(memory, packet.context, 0)?;
            }
            self.begin_held(descriptor);
            if let Some(packet) = &mut self.progress.packet {
                packet.begun = true;
            }
            return Ok(Some(Outcome::Busy));
        }
        if packet.resume {
            let restored = self.restore(memory);
            self.progress.overhead = memory.tally().time();
            return restored.map(|()| None);
        }
        if let Some(address) = packet.command() {
            let (space, words) = (packet.space(), (packet.end - packet.at) / 4);
            self.fetch(memory, space, address, words)?;
            memory.tally().add(Counter::BufferCommand, 1);
            let begun = self.progress.command.as_ref();
            self.progress.draws = begun.is_some_and(Begun::draws);
            return Ok(None);
        }
        if !packet.ending {
            // What it takes passes before anything is written.
            self.time_registers(memory)?;
            if let Some(packet) = &mut self.progress.packet {
                packet.ending = true;
            }
            return Ok(None);
        }
        let registers = self.find_registers(memory)?;
        // A fault from here on does not charge them once more.
        if let Some(packet) = &mut self.progress.packet {
            packet.ticks = 0;
        }
        // All of it or nothing: what is cut later has ended.
        let (at, packets) = (Descriptor::TICKS, Descriptor::PACKETS - Descriptor::TICKS);
        self.write_context(memory, packet.context + at, |place| {
            memory.atomic_u64(place, true)?;
            if let Some(registers) = registers {
                registers.write(memory);
            }
            memory.add_u64(place, packet.ticks)?;
            memory.add_u64(place.add(packets), 1)
        })?;
        self.registers_are_written();
        memory.tally().add(Counter::Packet, 1);
        self.progress.packet = None;
        self.consume(packet.bytes);
        Ok(Some(match packet.fence {
            Some(fence) => {
                self.completed_fence = fence;
                Outcome::Completed {
                    interrupt: packet.interrupt,
                }
            }
            None => Outcome::Busy,
        }))
    }

    /// Adds the time of a packet that is cut short to its context.
    pub(crate) fn charge(&mut self, memory: &Memory<'_>) {
        let Some(packet) = &mut self.progress.packet else {
            return;
        };
        let (context, ticks) = (packet.context, std::mem::take(&mut packet.ticks));
        // A descriptor that was refused is not written to, and resuming is not the packet's time.
        if packet.descriptor.is_some() && !packet.resume && ticks > 0 {
            // Where it cannot be written, the fault, or the reset, that is under way counts.
            let _ = self.add_to_context(memory, context, Descriptor::TICKS, ticks);
        }
    }

    /// The descriptor, and how much its save area holds.
    fn read_context(
        &mut self,
        memory: &Memory<'_>,
        context: u64,
    ) -> Result<(Descriptor, u32), Fault> {
        let words = self.read_system(memory, context)?;
        let descriptor = checked(context, Descriptor::from_words(words))?;
        if descriptor.save.is_none() {
            return Ok((descriptor, 0));
        }
        // A descriptor is aligned to its size, 64 bytes: the sum cannot wrap.
        let [saved] = self.read_system(memory, context + Descriptor::SAVED)?;
        Ok((descriptor, half(Descriptor::SAVED).of(saved)))
    }

    /// The descriptor, how much its save area holds, and the packet at the head of its queue, whose
    /// number is to be `number`.
    fn read_queue(
        &mut self,
        memory: &Memory<'_>,
        context: u64,
        number: u32,
    ) -> Result<(Descriptor, u32, Buffer), Fault> {
        let words = DescriptorWords(self.read_system(memory, context)?);
        let descriptor = checked(context, words.identity())?;
        let bad = Fault::access(Reason::BadContext, Access::Fetch, context);
        let queue = Queue::from_word(words.queue()).ok_or(bad)?;
        let waiting = words.tail().wrapping_sub(words.head());
        if words.head() != number || !(1..=queue.packets).contains(&waiting) {
            return Err(bad);
        }
        let place = queue.place(number).ok_or(bad)?;
        let packet = self.read_system(memory, place.0)?;
        let buffer = Buffer::from_words(packet).map_err(Fault::plain)?;
        let saved = descriptor.save.map_or(0, |_| words.saved());
        Ok((descriptor, saved, buffer))
    }

    /// Little-endian words at a GPU-physical address.
    fn read_system<const N: usize>(
        &mut self,
        memory: &Memory<'_>,
        address: u64,
    ) -> Result<[u64; N], Fault> {
        let mut bytes = [0; Descriptor::SIZE as usize];
        let bytes = &mut bytes[..N * 8];
        self.mmu
            .read(memory, Space::System, address, bytes, Access::Fetch)?;
        let mut words = [0; N];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            *word = u64::from_le_bytes(eight);
        }
        Ok(words)
    }

    pub(crate) fn add_to_context(
        &mut self,
        memory: &Memory<'_>,
        context: u64,
        offset: u64,
        amount: u64,
    ) -> Result<(), Fault> {
        self.write_context(memory, context + offset, |place| {
            memory.add_u64(place, amount)
        })
    }

    /// Says how much the save area holds.
    pub(crate) fn set_saved(
        &mut self,
        memory: &Memory<'_>,
        context: u64,
        bytes: u32,
    ) -> Result<(), Fault> {
        self.write_context(memory, context + Descriptor::SAVED, |place| {
            memory.write_u64(place, bytes.into())
        })
    }

    /// Writes to a descriptor, which takes no time.
    fn write_context(
        &mut self,
        memory: &Memory<'_>,
        address: u64,
        write: impl FnOnce(Place) -> Result<(), NoAnswer>,
    ) -> Result<(), Fault> {
        let access = Access::Write;
        let before = memory.tally().take_time();
        let written = self
            .mmu
            .translate(memory, Space::System, address, access)
            .and_then(|found| {
                write(found.place).map_err(|_| Fault::access(Reason::BusError, access, address))
            });
        // What is being written cannot have its own time in it.
        memory.tally().take_time();
        memory.tally().spend(before);
        written
    }
}
