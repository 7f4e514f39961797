// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Both engines on one thread: their cores, stepped by plain calls on the memory of a
//! [`Board`].

use std::ops::{Deref, DerefMut};

use skua_gpu::bus::Bus;
use skua_gpu::counters::Tally;
use skua_gpu::engine::core::{Core, Outcome};
use skua_gpu::engine::Ring;
use skua_gpu::gart;
use skua_gpu::memory::Memory;
use skua_gpu::options::{Options, Preemption};
use skua_gpu::vram;
use skua_spec::command::Command;
use skua_spec::number::EngineIndex;

use crate::board::{Board, BUS, ENGINES, GART_PAGES, GART_TABLE, RING_BYTES, SYSTEM_BYTES};

/// Two cores and their memory.
pub struct Stepped {
    /// The cores' memory.
    board: Board,
    /// Has the board's system memory.
    bus: Bus,
    /// By index of their engines.
    pub cores: [Core; 2],
    /// What both count, whoever is stepped.
    pub tally: Tally,
}

impl Deref for Stepped {
    type Target = Board;

    fn deref(&self) -> &Board {
        &self.board
    }
}

impl DerefMut for Stepped {
    fn deref_mut(&mut self) -> &mut Board {
        &mut self.board
    }
}

/// A core as the engine has it.
pub fn new_core(engine: EngineIndex) -> Core {
    core_with(engine, Preemption::default())
}

/// As [`new_core`], of a device that is preempted otherwise.
pub fn core_with(engine: EngineIndex, preemption: Preemption) -> Core {
    let kind = Options::default().engines[engine.index()];
    Core::new(engine, kind, preemption)
}

impl Stepped {
    /// Both engines, with a process and rings.
    pub fn new() -> Self {
        Self::with_preemption(Preemption::default())
    }

    /// As [`Self::new`], of a device that is preempted otherwise.
    pub fn with_preemption(preemption: Preemption) -> Self {
        let board = Board::new();
        let bus = Bus::default();
        bus.set_master(true);
        bus.map(BUS, SYSTEM_BYTES, board.backing(0)).unwrap();
        let mut stepped = Self {
            board,
            bus,
            cores: ENGINES.map(|engine| core_with(engine, preemption)),
            tally: Tally::default(),
        };
        stepped.set_up();
        stepped
    }

    /// Sets everything up, as after a reset.
    pub fn set_up(&mut self) {
        self.write_process();
        for engine in ENGINES {
            let base = vram::BASE + self.ring_at(engine);
            let size = RING_BYTES;
            let outcome = self.with_memory(engine, |core, memory| {
                core.reset(memory);
                core.enable(memory, Ring { base, size })
            });
            assert_eq!(outcome, Outcome::Busy);
        }
    }

    /// Lends memory to a core.
    pub fn with_memory<T>(
        &mut self,
        engine: EngineIndex,
        f: impl FnOnce(&mut Core, &Memory<'_>) -> T,
    ) -> T {
        let guard = self.bus.enter();
        let gart = gart::Table {
            address: BUS + GART_TABLE,
            pages: GART_PAGES,
        };
        let vram = self.board.vram.enter();
        let memory = Memory::new(&vram, gart, &guard, &self.tally);
        f(&mut self.cores[engine.index()], &memory)
    }

    /// Puts commands into the ring, and rings the doorbell.
    pub fn start(&mut self, engine: EngineIndex, commands: &[Command]) {
        self.push(engine, commands);
        self.cores[engine.index()].ring_doorbell(self.board.tails[engine.index()]);
    }

    /// Has an engine do a step, and the other one what an INVALIDATE asks of it.
    pub fn step(&mut self, engine: EngineIndex, budget: u64) -> Outcome {
        let outcome = self.with_memory(engine, |core, memory| core.step(memory, budget));
        if let Outcome::Invalidate(asid) = outcome {
            self.cores[1 - engine.index()].invalidate(asid);
            self.cores[engine.index()].invalidated();
        }
        outcome
    }
}
