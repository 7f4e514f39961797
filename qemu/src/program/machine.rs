// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A dispatch under way: its groups one after the other, the waves of a group in turn.

use skua_spec::command::{Dispatch, MAX_SHARED, WAVE_THREADS};
use skua_spec::isa::{Instruction, REGISTERS};
use skua_spec::status::Counter;

use crate::fault::Fault;
use crate::program::wave::{End, Wave};
use crate::program::window::{Surroundings, Windows};

/// Instructions that a wave issues before the next one has its turn.
const TURN: u64 = 256;

/// The state of a dispatch.
pub(crate) struct Machine {
    waves: Vec<Wave>,
    /// Threads of a group that `waves` was made for.
    shape: [u32; 3],
    shared: Vec<u8>,
    group: [u32; 3],
    /// The wave whose turn it is.
    turn: usize,
    /// Registers that the program names.
    registers: usize,
    started: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            waves: Vec::new(),
            shape: [0; 3],
            shared: vec![0; MAX_SHARED as usize],
            group: [0; 3],
            turn: 0,
            registers: 0,
            started: false,
        }
    }
}

impl Machine {
    /// Prepares for a dispatch of `program`.
    pub(crate) fn prepare(&mut self, dispatch: &Dispatch, program: &[Instruction]) {
        let threads = dispatch.threads;
        if self.shape != threads {
            // Decoding has checked that the product is at most 1024.
            let total = threads[0] * threads[1] * threads[2];
            self.waves = (0..total)
                .step_by(WAVE_THREADS as usize)
                .map(|first| Wave::new(first, threads))
                .collect();
            self.shape = threads;
        }
        self.registers = registers_of(program);
        self.group = [0; 3];
        self.started = false;
    }

    /// Issues about `budget` instructions, all of one chunk of work, and adds them to `issued`.
    /// `true` when the dispatch has ended.
    pub(crate) fn run(
        &mut self,
        dispatch: &Dispatch,
        program: &[Instruction],
        windows: Windows<'_>,
        budget: u64,
        issued: &mut u64,
    ) -> Result<bool, Fault> {
        // Decoding has checked the size.
        let shared = self
            .shared
            .get_mut(..dispatch.shared_bytes as usize)
            .unwrap_or_default();
        let arguments = dispatch
            .arguments
            .get(..dispatch.argument_count)
            .unwrap_or_default();
        let mut around = Surroundings {
            program,
            windows,
            shared,
            arguments,
            groups: dispatch.groups,
            threads: dispatch.threads,
        };
        while *issued < budget {
            if !self.started {
                around.shared.fill(0);
                for wave in &mut self.waves {
                    wave.start(self.group, self.registers);
                }
                (self.turn, self.started) = (0, true);
            }
            let Some(wave) = self.waves.get_mut(self.turn) else {
                // All waves have had their turn.
                self.turn = 0;
                if self.waves.iter().all(Wave::has_ended) {
                    around.windows.memory().tally().add(Counter::ThreadGroup, 1);
                    self.started = false;
                    if !next_group(&mut self.group, dispatch.groups) {
                        return Ok(true);
                    }
                } else if self.waves.iter().all(Wave::is_blocked) {
                    self.waves.iter_mut().for_each(Wave::release);
                }
                continue;
            };
            let turn = TURN.min(budget - *issued);
            match wave.run(&mut around, turn, issued)? {
                End::Budget | End::Blocked => self.turn += 1,
            }
        }
        Ok(false)
    }
}

/// Goes to the next group: x first, then y, then z. `false` if there is none.
fn next_group(group: &mut [u32; 3], groups: [u32; 3]) -> bool {
    for (at, count) in group.iter_mut().zip(groups) {
        *at += 1;
        if *at < count {
            return true;
        }
        *at = 0;
    }
    false
}

/// The number of registers that a program may name.
fn registers_of(program: &[Instruction]) -> usize {
    let highest = |i: &Instruction| {
        // A pair has one more; a third source is in the immediate. What is no register there may
        // count for one: more are cleared than needed then.
        let third = u8::try_from(i.imm).unwrap_or(0);
        [i.rd, i.ra, i.rb, third]
            .into_iter()
            .filter(|r| *r < REGISTERS)
            .max()
            .unwrap_or(0)
    };
    let highest = program.iter().map(highest).max().unwrap_or(0);
    (highest as usize + 2).min(REGISTERS as usize)
}
