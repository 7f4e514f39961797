// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WAIT and SIGNAL: 64-bit values in memory that order engines and the CPU.

use skua_spec::fault::{Access, Reason};
use skua_spec::status::EngineState;

use crate::engine::core::{Core, Flow, Work};
use crate::fault::Fault;
use crate::memory::Memory;
use crate::mmu::Space;

impl Core {
    /// Looks whether the value at `address` is at least `value`.
    ///
    /// How often it looks depends on the host: only the first look counts.
    pub(crate) fn wait(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        value: u64,
        work: &mut Work,
    ) -> Result<Flow, Fault> {
        let again = std::mem::replace(work, Work::Wait) == Work::Wait;
        let found = memory.look(again, |memory| {
            let access = Access::Read;
            let found = self.mmu.translate(memory, space, address, access)?;
            memory
                .read_u64(found.place)
                .map_err(|_| Fault::access(Reason::BusError, access, address))
        })?;
        let (state, flow) = if found >= value {
            (EngineState::Running, Flow::End)
        } else {
            (EngineState::Waiting, Flow::Wait)
        };
        self.set_state(state);
        Ok(flow)
    }

    /// Writes `value` after all that was done before.
    pub(crate) fn signal(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        value: u64,
    ) -> Result<Flow, Fault> {
        let access = Access::Write;
        let found = self.mmu.translate(memory, space, address, access)?;
        memory
            .write_u64(found.place, value)
            .map_err(|_| Fault::access(Reason::BusError, access, address))?;
        Ok(Flow::Signal)
    }
}
