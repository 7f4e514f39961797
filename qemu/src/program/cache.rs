// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs in decoded form: the engine's instruction cache.
//!
//! It keeps a program until FLUSH_CACHE, the next EXEC or a reset, however memory and translations
//! change meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use skua_spec::isa::Instruction;
use skua_spec::number::Asid;

/// Programs that are kept at most; with one more, all are dropped.
const MAX_PROGRAMS: usize = 32;

/// Address space, address and bytes of a program.
type Key = (Asid, u64, u32);

/// The cache of one engine.
#[derive(Debug, Default)]
pub struct ProgramCache {
    programs: HashMap<Key, Arc<[Instruction]>>,
}

impl ProgramCache {
    /// The program of `bytes` bytes at `address`.
    pub fn find(&self, asid: Asid, address: u64, bytes: u32) -> Option<Arc<[Instruction]>> {
        self.programs.get(&(asid, address, bytes)).cloned()
    }

    /// Keeps a program.
    pub fn insert(&mut self, asid: Asid, address: u64, bytes: u32, program: Arc<[Instruction]>) {
        if self.programs.len() >= MAX_PROGRAMS {
            self.clear();
        }
        self.programs.insert((asid, address, bytes), program);
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.programs.clear();
    }
}

/// Decodes a program.
///
/// # Errors
///
/// The index of the first instruction that section 9 does not define.
pub fn decode(bytes: &[u8]) -> Result<Arc<[Instruction]>, u32> {
    (0..)
        .zip(bytes.chunks_exact(8))
        .map(|(index, chunk)| {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            Instruction::decode(u64::from_le_bytes(eight)).ok_or(index)
        })
        .collect()
}
