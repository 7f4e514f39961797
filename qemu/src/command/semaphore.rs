// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WAIT and SIGNAL: 64-bit values in memory that order engines and the CPU.

use std::time::Duration;

use skua_spec::fault::{Access, Reason};
use skua_spec::status::EngineState;

use crate::engine::worker::Worker;
use crate::fault::{Fault, Halt};
use crate::memory::Memory;
use crate::mmu::Space;

/// First and longest pause between two looks at a value. A SIGNAL of another engine ends a pause;
/// the CPU's writes are seen at its end.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

impl Worker {
    /// Waits until the value at `address` is at least `value`.
    pub(crate) fn wait(&mut self, space: Space, address: u64, value: u64) -> Result<(), Halt> {
        let mut pause = PAUSE.0;
        loop {
            if self.read_value(space, address)? >= value {
                self.set_state(EngineState::Running);
                return Ok(());
            }
            if pause == PAUSE.0 {
                self.publish_ticks();
                // Whoever signals from here on finds the state and pokes. A signal between the look
                // above and this is seen after the first pause.
                self.set_state(EngineState::Waiting);
            }
            self.engine.nap(pause);
            self.attend()?;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn read_value(&mut self, space: Space, address: u64) -> Result<u64, Fault> {
        let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
        let access = Access::Read;
        let found = self.mmu.translate(&memory, space, address, access)?;
        memory
            .read_u64(found.place)
            .map_err(|_| Fault::access(Reason::BusError, access, address))
    }

    /// Writes `value` after all that was done before.
    pub(crate) fn signal(&mut self, space: Space, address: u64, value: u64) -> Result<(), Halt> {
        let access = Access::Write;
        {
            let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
            let found = self.mmu.translate(&memory, space, address, access)?;
            memory
                .write_u64(found.place, value)
                .map_err(|_| Fault::access(Reason::BusError, access, address))?;
        }
        self.hub.poke_engines();
        Ok(())
    }
}
