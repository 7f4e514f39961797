// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs in decoded form: the engine's instruction cache.
//!
//! It keeps a program until FLUSH_CACHE, the next packet or a reset, however memory and
//! translations change meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use skua_spec::isa::{Form, Instruction, Op, Special};
use skua_spec::number::Asid;

/// Programs that are kept at most; with one more, all are dropped.
const MAX_PROGRAMS: usize = 32;

/// Address space, address and bytes of a program.
type Key = (Asid, u64, u32);

/// Decoded programs of one engine.
#[derive(Debug, Default)]
pub struct ProgramCache {
    /// By address space, address and length.
    programs: HashMap<Key, Arc<Program>>,
}

impl ProgramCache {
    /// The program of `bytes` bytes at `address`.
    pub fn find(&self, asid: Asid, address: u64, bytes: u32) -> Option<Arc<Program>> {
        self.programs.get(&(asid, address, bytes)).cloned()
    }

    /// Keeps a program, if need be in place of all others.
    pub fn insert(&mut self, asid: Asid, address: u64, bytes: u32, program: Arc<Program>) {
        if self.programs.len() >= MAX_PROGRAMS {
            self.clear();
        }
        self.programs.insert((asid, address, bytes), program);
    }

    /// For FLUSH_CACHE and packets: memory may have changed.
    pub fn clear(&mut self) {
        self.programs.clear();
    }
}

/// An instruction of a program, and what is asked of it each time that it is issued.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    /// What the word decodes to.
    pub instruction: Instruction,
    /// The registers that it reads, by bit.
    pub read: u64,
    /// Registers that the instruction writes, a bit for each.
    pub written: u64,
    /// Whether it gives all threads of a wave the same if it reads the same of all.
    pub uniform: bool,
}

impl From<Instruction> for Decoded {
    fn from(instruction: Instruction) -> Self {
        let (read, written) = instruction.registers();
        Self {
            instruction,
            read,
            written,
            uniform: is_uniform(&instruction),
        }
    }
}

fn is_uniform(i: &Instruction) -> bool {
    use Special::{Flat, Lane, TidX, TidY, TidZ};
    let of_thread = || {
        matches!(
            Special::from_u32(i.imm),
            Some(TidX | TidY | TidZ | Flat | Lane)
        )
    };
    match i.op.form() {
        Form::Index => i.op != Op::Sr || !of_thread(),
        // Each thread finds what the one before it left.
        Form::Atomic
        | Form::AtomicPair
        | Form::CompareSwap
        | Form::CompareSwapPair
        | Form::AtomicShared
        | Form::CompareSwapShared => false,
        _ => true,
    }
}

/// A program whose instructions are all defined.
#[derive(Debug)]
pub struct Program {
    /// By index, as jumps name them.
    pub instructions: Vec<Decoded>,
    /// The registers that it names, by bit: the others are never seen.
    pub used: u64,
    /// By instruction, see [`Self::live`].
    live: OnceLock<Vec<u64>>,
}

/// Rounds in which registers that live are looked for: one more than loops are nested, in a program
/// that jumps back for loops alone.
const ROUNDS: usize = 32;

impl Program {
    /// Decodes all of it, reached or not.
    ///
    /// # Errors
    ///
    /// The index of the first instruction that section 9 does not define.
    pub fn decode(bytes: &[u8]) -> Result<Self, u32> {
        let instructions: Vec<_> = (0_u32..)
            .zip(bytes.chunks_exact(8))
            .map(|(index, chunk)| {
                let mut eight = [0; 8];
                eight.copy_from_slice(chunk);
                Instruction::decode(u64::from_le_bytes(eight))
                    .map(Decoded::from)
                    .ok_or(index)
            })
            .collect::<Result<_, _>>()?;
        let used = instructions
            .iter()
            .fold(0, |all, i| all | i.read | i.written);
        Ok(Self {
            instructions,
            used,
            live: OnceLock::new(),
        })
    }

    /// The registers, by bit, whose values a thread that comes to `pc` may still read.
    pub fn live(&self, pc: u32) -> u64 {
        let live = self.live.get_or_init(|| self.find_live());
        live.get(pc as usize).copied().unwrap_or(0)
    }

    /// From the last instruction to the first, until nothing changes: what is read there or behind
    /// it, and not written between.
    fn find_live(&self) -> Vec<u64> {
        let mut live = vec![0_u64; self.instructions.len()];
        for _ in 0..ROUNDS {
            let mut changed = false;
            for (at, decoded) in self.instructions.iter().enumerate().rev() {
                let i = decoded.instruction;
                let of = |pc: usize| live.get(pc).copied().unwrap_or(0);
                let jump = || of(i.imm as usize);
                let behind = match i.op.form() {
                    _ if matches!(i.op, Op::Exit | Op::Trap) => 0,
                    Form::Jump => jump(),
                    Form::Branch | Form::CompareBranch => jump() | of(at + 1),
                    _ => of(at + 1),
                };
                let here = behind & !decoded.written | decoded.read;
                changed |= here != live[at];
                live[at] = here;
            }
            if !changed {
                return live;
            }
        }
        vec![self.used; live.len()]
    }
}
