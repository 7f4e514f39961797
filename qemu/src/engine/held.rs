// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The context that an engine holds (manual section 6): loaded for its packet, left when another
//! one's turn comes, and its registers.
//!
//! ```text
//!      packet: load             SET_REGISTER
//! none ------------> as memory -------------> changed
//!   ^                 |     ^                  |   |
//!   +----- leave -----+     +-- packet ends ---+   |
//!   +------------------- leave --------------------+
//! ```
//!
//! Between two packets the image in memory has the registers, whatever is held: an engine that
//! forgets a context, in a reset, loses what the packet that was cut has changed and nothing else.

use skua_spec::context::{Descriptor, Image, IMAGE_SIZE, REGISTERS};
use skua_spec::fault::{Access, Reason};
use skua_spec::status::Counter;
use vm_memory::VolatileSlice;

use crate::engine::core::{Core, Flow};
use crate::engine::packet::space_of;
use crate::engine::save::{in_pages, read_area, write_area};
use crate::fault::Fault;
use crate::memory::{Memory, Place};
use crate::mmu::Space;

/// A context that an engine holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// GPU-physical address of its descriptor.
    pub(crate) context: u64,
    /// What its last packet has found there.
    pub(crate) descriptor: Descriptor,
    /// The image in memory.
    image: Image,
    /// What the packets see; of a context without a save area, the packet that runs.
    registers: [u64; REGISTERS as usize],
}

/// Registers, and where the image has them.
pub(crate) struct Registers<'m> {
    bytes: Vec<u8>,
    slice: VolatileSlice<'m>,
    place: Place,
}

impl Registers<'_> {
    /// Has the image say them.
    pub(crate) fn write(&self, memory: &Memory<'_>) {
        self.slice.copy_from(&self.bytes);
        memory.count_write(self.place, self.bytes.len() as u64);
    }
}

fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Core {
    /// Whether a packet of the context whose descriptor is at `context` has to wait until another
    /// context was left.
    pub(crate) fn holds_another(&self, context: u64) -> bool {
        let held = self.progress.held.as_ref();
        held.is_some_and(|held| held.context != context)
    }

    /// Loads a context, if none is held. Whether it did.
    pub(crate) fn load(
        &mut self,
        memory: &Memory<'_>,
        context: u64,
        descriptor: Descriptor,
    ) -> Result<bool, Fault> {
        if self.progress.held.is_some() {
            return Ok(false);
        }
        let image = match descriptor.save {
            Some(area) => {
                let image = self.read_image(memory, space_of(&descriptor), area.base.0)?;
                let bad = Fault::access(Reason::BadSave, Access::Fetch, context);
                let image = image.ok_or(bad)?;
                memory.tally().add(Counter::ContextLoad, 1);
                image
            }
            None => Image::default(),
        };
        self.progress.held = Some(Box::new(Held {
            context,
            descriptor,
            image,
            registers: image.registers,
        }));
        Ok(true)
    }

    /// A packet begins, or goes on, of the context that is held.
    pub(crate) fn begin_held(&mut self, descriptor: Descriptor) {
        if let Some(held) = &mut self.progress.held {
            held.descriptor = descriptor;
            if descriptor.save.is_none() {
                held.registers = Default::default();
            }
        }
    }

    /// Registers that are not as the image has them, and where that is.
    fn changed_registers(&self) -> Option<(Space, u64, &[u64])> {
        let held = self.progress.held.as_ref()?;
        let area = held.descriptor.save?;
        if held.registers == held.image.registers {
            return None;
        }
        let at = area.base.0 + Image::REGISTERS;
        Some((space_of(&held.descriptor), at, &held.registers))
    }

    /// Has pass what it takes to write the registers that a packet has changed; no packet is
    /// charged for it.
    pub(crate) fn time_registers(&mut self, memory: &Memory<'_>) -> Result<(), Fault> {
        let Some((space, at, registers)) = self.changed_registers() else {
            return Ok(());
        };
        let (at, count, areas) = ((space, at), size_of_val(registers), &mut self.areas);
        let timed = in_pages(areas, memory, at, count, Access::Write, |_, place, _| {
            memory.charge(place, count as u64);
        });
        self.progress.overhead = memory.tally().time();
        timed.map_err(Fault::in_save_area)
    }

    /// The registers that a packet has changed, once their time has passed.
    pub(crate) fn find_registers<'m>(
        &mut self,
        memory: &Memory<'m>,
    ) -> Result<Option<Registers<'m>>, Fault> {
        let Some((space, at, registers)) = self.changed_registers() else {
            return Ok(None);
        };
        let (bytes, access) = (to_bytes(registers), Access::Write);
        let again = |memory: &Memory<'_>| self.areas.translate(memory, space, at, access);
        let found = memory.look(true, again);
        self.progress.overhead = memory.tally().time();
        let place = found.map_err(Fault::in_save_area)?.place;
        // They are in one page.
        let slice = memory.slice(place, bytes.len() as u64, true);
        let bad = Fault::access(Reason::BusError, access, at).in_save_area();
        let slice = slice.map_err(|_| bad)?;
        Ok(Some(Registers {
            bytes,
            slice,
            place,
        }))
    }

    /// The image has the registers of the packet that ends.
    pub(crate) fn registers_are_written(&mut self) {
        if let Some(held) = &mut self.progress.held {
            held.image.registers = held.registers;
        }
    }

    /// Writes the image of the context that is held, if any is, and holds none then.
    pub(crate) fn leave(&mut self, memory: &Memory<'_>) -> Result<(), Fault> {
        let Some(held) = &self.progress.held else {
            return Ok(());
        };
        if let Some(area) = held.descriptor.save {
            let image = Image {
                left: held.image.left.wrapping_add(1),
                ticks: self.shown().ticks,
                registers: held.registers,
            };
            let (space, bytes) = (space_of(&held.descriptor), to_bytes(&image.to_words()));
            // Until then a fault finds whose it is.
            self.write_image(memory, space, area.base.0, &bytes)
                .map_err(Fault::leaving)?;
            memory.tally().add(Counter::ContextLeave, 1);
        }
        self.progress.held = None;
        Ok(())
    }

    /// The image at an address of `space`, if one is there. No packet is charged for it.
    fn read_image(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
    ) -> Result<Option<Image>, Fault> {
        let mut bytes = [0; IMAGE_SIZE as usize];
        let found = read_area(&mut self.areas, memory, space, address, &mut bytes);
        self.progress.overhead = memory.tally().time();
        found.map_err(Fault::in_save_area)?;
        let mut words = [0; Image::WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            *word = u64::from_le_bytes(eight);
        }
        Ok(Image::from_words(words))
    }

    /// Writes a part of an image. No packet is charged for it.
    fn write_image(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let written = write_area(&mut self.areas, memory, space, address, bytes);
        self.progress.overhead = memory.tally().time();
        written
    }

    /// SET_REGISTER: for the packets of the context that is held. Memory has the value when the
    /// packet has ended.
    pub(crate) fn set_register(&mut self, index: u32, value: u64) -> Flow {
        let held = self.progress.held.as_mut();
        // Decoding has checked the index.
        if let Some(register) = held.and_then(|held| held.registers.get_mut(index as usize)) {
            *register = value;
        }
        Flow::End
    }

    /// STORE_REGISTER: SIGNAL of a register, for which nobody waits.
    pub(crate) fn store_register(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        index: u32,
        address: u64,
    ) -> Result<Flow, Fault> {
        let held = self.progress.held.as_ref();
        let value = held.and_then(|held| held.registers.get(index as usize));
        self.signal(memory, space, address, value.copied().unwrap_or(0))?;
        Ok(Flow::End)
    }
}
