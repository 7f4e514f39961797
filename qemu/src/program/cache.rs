// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs in decoded form: the engine's instruction cache.
//!
//! It keeps a program until FLUSH_CACHE, the next EXEC or a reset, however memory and translations
//! change meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use skua_spec::isa::{Instruction, REGISTERS};
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

    /// For FLUSH_CACHE and EXEC: memory may have changed.
    pub fn clear(&mut self) {
        self.programs.clear();
    }
}

/// A program whose instructions are all defined.
#[derive(Debug)]
pub struct Program {
    /// By index, as jumps name them.
    pub instructions: Vec<Instruction>,
    /// The registers that it may name, from the first on: the others are never seen.
    pub registers: usize,
}

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
                Instruction::decode(u64::from_le_bytes(eight)).ok_or(index)
            })
            .collect::<Result<_, _>>()?;
        let highest = |i: &Instruction| {
            // A pair has one more; a third source is in the immediate. What is no register there
            // may count for one: more are cleared than needed then.
            let third = u8::try_from(i.imm).unwrap_or(0);
            [i.rd, i.ra, i.rb, third]
                .into_iter()
                .filter(|r| *r < REGISTERS)
                .max()
                .unwrap_or(0)
        };
        let highest = instructions.iter().map(highest).max().unwrap_or(0);
        Ok(Self {
            instructions,
            registers: (highest as usize + 2).min(REGISTERS as usize),
        })
    }
}
