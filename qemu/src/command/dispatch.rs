// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DISPATCH: a compute program for every thread of every group.

use std::sync::Arc;

use skua_spec::command::Dispatch;
use skua_spec::fault::{Access, Reason};
use skua_spec::status::Counter;
use skua_spec::ticks;

use crate::engine::core::{Core, Flow, Work};
use crate::fault::Fault;
use crate::memory::Memory;
use crate::mmu::Space;
use crate::program::cache::Program;
use crate::program::machine::Budget;
use crate::program::window::Windows;

impl Core {
    /// Goes on with a dispatch.
    pub(crate) fn dispatch(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        dispatch: &Dispatch,
        work: &mut Work,
        limit: u64,
    ) -> Result<Flow, Fault> {
        // Its first group may clear as much once more.
        if self.chunk == 0 {
            return Ok(Flow::Pause);
        }
        // The cache keeps it as long as the dispatch runs; where that goes on elsewhere, it is read
        // again.
        let program = (dispatch.program, dispatch.program_bytes);
        let Some(program) = self.program(memory, space, program)? else {
            return Ok(Flow::Pause);
        };
        let mut machine = match std::mem::take(work) {
            Work::Dispatch(machine) => machine,
            _ => {
                let mut machine = self.machine.take().unwrap_or_default();
                machine.prepare(dispatch);
                machine
            }
        };
        // Once it is there one instruction is issued, however long it took to get it: another
        // engine may have to get it again.
        self.spend(memory, 0, limit);
        let (mut issued, budget) = (0, self.left(limit).max(ticks::INSTRUCTION));
        let stop = self.stops_at();
        let windows = Windows::new(memory, &mut self.mmu, space);
        let budget = Budget {
            ticks: budget,
            bytes: &mut self.chunk,
        };
        let ended = machine.run(dispatch, &program, windows, budget, stop, &mut issued);
        memory.tally().add(Counter::Instruction, issued);
        self.spend(memory, issued * ticks::INSTRUCTION, limit);
        if ended? {
            self.machine = Some(machine);
            return Ok(Flow::End);
        }
        *work = Work::Dispatch(machine);
        Ok(Flow::Pause)
    }

    /// The program at an address, of so many bytes, decoded; `None` where it would have to be read,
    /// which the step has done too much for: the next one has room for any.
    pub(crate) fn program(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        (address, size): (u64, u32),
    ) -> Result<Option<Arc<Program>>, Fault> {
        if let Some(program) = self.programs.find(space.asid(), address, size) {
            return Ok(Some(program));
        }
        let Some(rest) = self.chunk.checked_sub(size.into()) else {
            return Ok(None);
        };
        self.chunk = rest;
        self.read_program(memory, space, (address, size)).map(Some)
    }

    /// As [`Self::program`], read anew, whatever the step has done.
    pub(crate) fn read_program(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        (address, size): (u64, u32),
    ) -> Result<Arc<Program>, Fault> {
        let asid = space.asid();
        let mut bytes = vec![0; size as usize];
        self.mmu
            .read(memory, space, address, &mut bytes, Access::Fetch)?;
        let program = Program::decode(&bytes)
            .map(Arc::new)
            .map_err(|index| Fault::plain(Reason::BadInstruction).at(index))?;
        self.programs
            .insert(asid, address, size, Arc::clone(&program));
        Ok(program)
    }
}
