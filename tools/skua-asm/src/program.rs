// SPDX-License-Identifier: MIT

//! What an assembled program is, and how a dispatch of it is made.

use std::fmt;

use skua_spec::command::{Dispatch, MAX_ARGUMENTS};
use skua_spec::isa::Instruction;

/// A declared argument of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the source.
    pub name: String,
    /// Number of its first word, from 0.
    pub index: usize,
    /// Words: 1, or 2 for a 64-bit value with its low half first.
    pub words: usize,
}

/// An assembled program: instructions, and what the source declared about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) instructions: Vec<Instruction>,
    /// By instruction, the number of its line in the source.
    pub(crate) lines: Vec<usize>,
    /// Of a group, in x, y and z.
    pub(crate) threads: [u32; 3],
    /// Of a group.
    pub(crate) shared_bytes: u32,
    /// In the order of their words.
    pub(crate) arguments: Vec<Argument>,
}

impl Program {
    /// The instructions; at least one, and all of them valid.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The program as it stands in memory: 8 bytes for each instruction, little endian.
    pub fn bytes(&self) -> Vec<u8> {
        self.instructions
            .iter()
            .flat_map(|i| i.encode().to_le_bytes())
            .collect()
    }

    /// The source line, from 1, of the instruction with this index: where a fault's `pc` points.
    pub fn line(&self, pc: u32) -> Option<usize> {
        self.lines.get(usize::try_from(pc).ok()?).copied()
    }

    /// Threads of a group in x, y and z (`.threads`); 1 each if the source says nothing.
    pub fn threads(&self) -> [u32; 3] {
        self.threads
    }

    /// Bytes of shared memory that a group needs (`.shared`).
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// The declared arguments (`.arg`, `.arg64`) in order.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The operands of a dispatch of `groups` groups of this program, which lies at GPU virtual
    /// address `program`. `value` is asked for each declared argument by its name.
    ///
    /// # Errors
    ///
    /// [`BindError`] where `value` has no answer, or one that is too wide.
    pub fn dispatch(
        &self,
        program: u64,
        groups: [u32; 3],
        value: impl Fn(&str) -> Option<u64>,
    ) -> Result<Dispatch, BindError> {
        let mut arguments = [0; MAX_ARGUMENTS];
        let mut count = 0;
        for argument in &self.arguments {
            let bad = |missing| BindError {
                name: argument.name.clone(),
                missing,
            };
            let value = value(&argument.name).ok_or_else(|| bad(true))?;
            let halves = [value, value >> 32].map(|v| v & u64::from(u32::MAX));
            if argument.words == 1 && halves[1] != 0 {
                return Err(bad(false));
            }
            for (i, half) in halves.into_iter().take(argument.words).enumerate() {
                // The assembler lets no argument lie beyond the array, and a half fits.
                if let (Some(word), Ok(half)) =
                    (arguments.get_mut(argument.index + i), u32::try_from(half))
                {
                    *word = half;
                }
            }
            count = count.max(argument.index + argument.words);
        }
        Ok(Dispatch {
            program,
            // CAST: MAX_PROGRAM bounds it.
            program_bytes: (self.instructions.len() * 8) as u32,
            shared_bytes: self.shared_bytes,
            groups,
            threads: self.threads,
            arguments,
            // A command has an even number of words.
            argument_count: count.next_multiple_of(2),
        })
    }
}

/// A dispatch lacks an argument, or has one that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindError {
    /// What `arg` calls it, without `.hi`.
    pub name: String,
    /// It has no value; else its value needs more than the declared 32 bits.
    pub missing: bool,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.missing {
            write!(f, "the program's argument `{}` has no value", self.name)
        } else {
            write!(
                f,
                "the value of the program's argument `{}` does not fit 32 bits",
                self.name
            )
        }
    }
}

impl std::error::Error for BindError {}
