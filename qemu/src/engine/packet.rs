// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A packet: EXEC, which runs the commands of a buffer for a context (manual sections 6 and 7).

use skua_spec::command::Command;
use skua_spec::context::Descriptor;
use skua_spec::fault::{Access, Reason};
use skua_spec::mmu::SYSTEM_ASID;
use skua_spec::status::{self, Counter};

use crate::engine::worker::Worker;
use crate::fault::{Fault, Halt};
use crate::memory::Memory;
use crate::mmu::Space;

/// The buffer of a packet.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    context: u64,
    base: u64,
    start: u32,
    end: u32,
}

impl Worker {
    /// Executes EXEC, whose decoding began at `start_ticks`.
    pub(crate) fn exec(&mut self, command: Command, start_ticks: u64) -> Result<(), Halt> {
        let Command::Exec {
            context,
            base,
            start,
            end,
            fence,
            interrupt,
        } = command
        else {
            return Ok(());
        };
        self.current.fence = fence.unwrap_or(0);
        self.write_current_fence();
        let buffer = Buffer {
            context,
            base,
            start,
            end,
        };
        match self.run_buffer(buffer) {
            Ok(()) => {}
            Err(halt) => {
                // The time was used, but no packet ended. If the descriptor cannot be written, the
                // fault, or the reset, that is under way counts. One that was refused is not
                // written to.
                if self.current.asid != SYSTEM_ASID {
                    let ticks = self.ticks.wrapping_sub(start_ticks);
                    let _ = self.add_to_context(context, Descriptor::TICKS, ticks);
                }
                return Err(halt);
            }
        }
        let ticks = self.ticks.wrapping_sub(start_ticks);
        self.add_to_context(context, Descriptor::TICKS, ticks)?;
        self.add_to_context(context, Descriptor::PACKETS, 1)?;
        self.tally.add(Counter::Packet, 1);
        self.current.fence = 0;
        self.publish_ticks();
        self.write_current_fence();
        self.consume();
        if let Some(fence) = fence {
            self.complete(fence, interrupt);
        }
        Ok(())
    }

    fn run_buffer(&mut self, buffer: Buffer) -> Result<(), Halt> {
        let descriptor = self.read_context(buffer.context)?;
        self.programs.clear();
        let ring_offset = self.current.command;
        self.current.asid = descriptor.asid;
        self.current.context_id = descriptor.context_id;
        self.current.in_buffer = true;
        let space = Space::Process {
            asid: descriptor.asid,
            root: descriptor.root,
        };
        let mut at = buffer.start;
        while at < buffer.end {
            self.attend()?;
            // Decoding has checked that the end does not wrap.
            let address = buffer.base + u64::from(at);
            self.current.command = address;
            let (command, words) = self.fetch(space, address, (buffer.end - at) / 4)?;
            self.tally.add(Counter::BufferCommand, 1);
            self.tick(1);
            tracing::trace!(target: "skua_gpu::command", engine = self.engine.index.get(),
                context = descriptor.context_id, address, ?command, "buffer");
            self.execute(space, &command)?;
            // CAST: at most what is left to `end`.
            at += words as u32 * 4;
        }
        self.current.command = ring_offset;
        self.current.in_buffer = false;
        Ok(())
    }

    fn read_context(&mut self, context: u64) -> Result<Descriptor, Halt> {
        let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
        let mut bytes = [0; 32];
        let access = Access::Fetch;
        self.mmu
            .read(&memory, Space::System, context, &mut bytes, access)?;
        let mut words = [0; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            *word = u64::from_le_bytes(eight);
        }
        Descriptor::from_words(words)
            .ok_or_else(|| Fault::access(Reason::BadContext, access, context).into())
    }

    fn add_to_context(&mut self, context: u64, offset: u64, amount: u64) -> Result<(), Fault> {
        // A descriptor is aligned to its size, 64 bytes: the sum cannot wrap.
        let address = context + offset;
        let access = Access::Write;
        let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
        let found = self
            .mmu
            .translate(&memory, Space::System, address, access)?;
        memory
            .add_u64(found.place, amount)
            .map_err(|_| Fault::access(Reason::BusError, access, address))
    }

    fn write_current_fence(&self) {
        let fence = self.current.fence;
        self.write_status(|page, block| {
            page.write_u64(block + status::engine::CURRENT_FENCE, fence);
        });
    }
}
