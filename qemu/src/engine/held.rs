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

use crate::engine::core::{Core, Flow};
use crate::engine::packet::space_of;
use crate::engine::save::{read_area, write_area};
use crate::fault::Fault;
use crate::memory::Memory;
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

    /// Has the image say what a packet has changed of the registers. Whether there was anything.
    pub(crate) fn write_registers(&mut self, memory: &Memory<'_>) -> Result<bool, Fault> {
        let Some(held) = &mut self.progress.held else {
            return Ok(false);
        };
        let Some(area) = held.descriptor.save else {
            return Ok(false);
        };
        if held.registers == held.image.registers {
            return Ok(false);
        }
        held.image.registers = held.registers;
        let (space, bytes) = (space_of(&held.descriptor), to_bytes(&held.registers));
        let at = area.base.0 + Image::REGISTERS;
        self.write_image(memory, space, at, &bytes)
            .map_err(Fault::in_save_area)?;
        Ok(true)
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

    /// SET_REGISTER: for the packets of the context that is held. Memory has the value when
    /// [`Self::write_registers`] has written it.
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
