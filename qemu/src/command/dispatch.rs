// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DISPATCH: a compute program for every thread of every group.

use std::sync::Arc;

use skua_spec::command::Dispatch;
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::Instruction;
use skua_spec::status::Counter;

use crate::engine::worker::Worker;
use crate::fault::{Fault, Halt};
use crate::memory::Memory;
use crate::mmu::Space;
use crate::program::cache::decode;
use crate::program::window::Windows;

/// Instructions, each for a wave, that are a chunk of work.
const CHUNK: u64 = 4096;

impl Worker {
    /// Runs a dispatch.
    pub(crate) fn dispatch(&mut self, space: Space, dispatch: &Dispatch) -> Result<(), Halt> {
        let program = self.program(space, dispatch)?;
        self.machine.prepare(dispatch, &program);
        loop {
            self.attend()?;
            let mut issued = 0;
            let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
            let windows = Windows::new(&memory, &mut self.mmu, space);
            let end = self
                .machine
                .run(dispatch, &program, windows, CHUNK, &mut issued);
            drop(memory);
            self.tally.add(Counter::Instruction, issued);
            self.tick(issued);
            if end? {
                return Ok(());
            }
        }
    }

    /// The program of a dispatch, decoded.
    fn program(&mut self, space: Space, dispatch: &Dispatch) -> Result<Arc<[Instruction]>, Halt> {
        let (asid, address, size) = (space.asid(), dispatch.program, dispatch.program_bytes);
        if let Some(program) = self.programs.find(asid, address, size) {
            return Ok(program);
        }
        let mut bytes = vec![0; size as usize];
        let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
        self.mmu
            .read(&memory, space, address, &mut bytes, Access::Fetch)?;
        drop(memory);
        let program =
            decode(&bytes).map_err(|index| Fault::plain(Reason::BadInstruction).at(index))?;
        self.programs
            .insert(asid, address, size, Arc::clone(&program));
        Ok(program)
    }
}
