// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A dispatch under way: its groups one after the other, the waves of a group in turn.

use skua_spec::command::{Dispatch, WAVE_THREADS};
use skua_spec::preemption::Level;
use skua_spec::status::Counter;

use crate::fault::Fault;
use crate::program::cache::Program;
use crate::program::wave::{End, Wave};
use crate::program::window::{Surroundings, Windows};

/// What a register holds that nobody has put anything into.
pub(crate) const SCRAMBLED: u32 = 0xa5a5_a5a5;

/// What a dispatch may do in a step.
pub(crate) struct Budget<'a> {
    /// Ticks that instructions and their accesses may take.
    pub(crate) ticks: u64,
    /// Bytes of shared memory that may be cleared, which takes no ticks. Less is left each time.
    pub(crate) bytes: &'a mut u64,
}

/// A dispatch that has begun: its groups are run one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Of one group, reused by the next.
    pub(crate) waves: Vec<Wave>,
    /// Threads of a group that `waves` was made for.
    shape: [u32; 3],
    /// The group's shared memory.
    pub(crate) shared: Vec<u8>,
    /// Coordinates of the thread group that runs: x, y and z.
    pub(crate) group: [u32; 3],
    /// The wave whose turn it is.
    pub(crate) turn: usize,
    /// Instructions that it has issued in this turn.
    pub(crate) issued: u64,
    /// Whether the group's threads have begun.
    pub(crate) started: bool,
}

impl Machine {
    /// Instructions that a wave issues before the next one has its turn.
    pub(crate) const TURN: u64 = 256;

    /// Makes waves for the groups of `dispatch`, none of which has begun.
    pub(crate) fn prepare(&mut self, dispatch: &Dispatch) {
        let threads = dispatch.threads;
        if self.shape == threads {
            self.waves.iter_mut().for_each(|wave| wave.clear(0));
        } else {
            // Decoding has checked that the product is at most 1024.
            let total = threads[0] * threads[1] * threads[2];
            self.waves = (0..total)
                .step_by(WAVE_THREADS as usize)
                .map(|first| Wave::new(first, threads))
                .collect();
            self.shape = threads;
        }
        self.shared.resize(dispatch.shared_bytes as usize, 0);
        (self.group, self.started) = ([0; 3], false);
    }

    /// Has registers and shared memory hold what nobody put there.
    pub(crate) fn scramble(&mut self) {
        self.waves.iter_mut().for_each(|wave| wave.clear(SCRAMBLED));
        self.shared.fill(0xa5);
    }

    /// Whether the dispatch can be stopped here at this level.
    pub(crate) fn is_at(&self, level: Level) -> bool {
        let blocked = || {
            let last = self.turn.checked_sub(1).and_then(|at| self.waves.get(at));
            self.issued == 0 && last.is_some_and(Wave::is_blocked)
        };
        match level {
            Level::None | Level::DmaBuffer | Level::Dispatch => false,
            Level::ThreadGroup => !self.started,
            Level::Thread => !self.started || blocked(),
            Level::Instruction => true,
        }
    }

    /// Issues instructions, all of one step, until the `budget` is used up, or it can be stopped at
    /// the level `stop`, and adds them to `issued`. `true` when the dispatch has ended.
    pub(crate) fn run(
        &mut self,
        dispatch: &Dispatch,
        program: &Program,
        windows: Windows<'_>,
        budget: Budget<'_>,
        stop: Option<Level>,
        issued: &mut u64,
    ) -> Result<bool, Fault> {
        let arguments = dispatch
            .arguments
            .get(..dispatch.argument_count)
            .unwrap_or_default();
        let mut around = Surroundings {
            program: &program.instructions,
            windows,
            shared: &mut self.shared,
            arguments,
            groups: dispatch.groups,
            threads: dispatch.threads,
            budget: budget.ticks,
        };
        while around.left(*issued) > 0 {
            if !self.started {
                // One has room whatever was done before: it may be done again in each step.
                let bytes = around.shared.len() as u64;
                if bytes > *budget.bytes && *issued > 0 {
                    return Ok(false);
                }
                *budget.bytes = budget.bytes.saturating_sub(bytes);
                around.shared.fill(0);
                for wave in &mut self.waves {
                    wave.start(self.group, program.used);
                }
                (self.turn, self.issued, self.started) = (0, 0, true);
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
                    if stop >= Some(Level::ThreadGroup) {
                        return Ok(false);
                    }
                } else if self.waves.iter().all(Wave::is_blocked) {
                    self.waves.iter_mut().for_each(Wave::release);
                }
                continue;
            };
            let before = *issued;
            let most = (Self::TURN - self.issued).min(around.left(before));
            let end = wave.run(&mut around, most, issued)?;
            self.issued += *issued - before;
            // A turn goes on in the next step where this one's end has cut it.
            if end == End::Blocked || self.issued == Self::TURN {
                (self.turn, self.issued) = (self.turn + 1, 0);
            }
            if end == End::Blocked && stop >= Some(Level::Thread) {
                return Ok(false);
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
