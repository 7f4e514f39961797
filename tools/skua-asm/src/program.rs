// SPDX-License-Identifier: MIT

//! What an assembled program is, and how commands that run it are made.

use std::fmt;

use skua_spec::command::{Dispatch, Draw};
use skua_spec::isa::Instruction;

/// A declared argument of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Name of the argument in the source.
    pub name: String,
    /// Number of its first word, from 0.
    pub index: usize,
    /// Words: 1, or 2 for a 64-bit value with its low half first.
    pub words: usize,
}

/// An assembled program: instructions, and what the source declared about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// At least one, and all of them valid.
    pub(crate) instructions: Vec<Instruction>,
    /// By instruction, the number of its line in the source.
    pub(crate) lines: Vec<usize>,
    /// Threads of a group, in x, y and z.
    pub(crate) threads: [u32; 3],
    /// Bytes of shared memory of a group.
    pub(crate) shared_bytes: u32,
    /// The arguments that the source declares, in the order of their words.
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
        let (arguments, argument_count) = self.bind(value)?;
        Ok(Dispatch {
            program,
            program_bytes: self.size(),
            shared_bytes: self.shared_bytes,
            groups,
            threads: self.threads,
            arguments,
            argument_count,
        })
    }

    /// `draw` with this program, which lies at GPU virtual address `program`, and its arguments.
    /// `value` is asked for each of them by its name.
    ///
    /// # Errors
    ///
    /// [`BindError`] where `value` has no answer, or one that is too wide, or where a DRAW has no
    /// room for the argument.
    pub fn draw(
        &self,
        program: u64,
        draw: Draw,
        value: impl Fn(&str) -> Option<u64>,
    ) -> Result<Draw, BindError> {
        let (arguments, argument_count) = self.bind(value)?;
        Ok(Draw {
            program,
            program_bytes: self.size(),
            arguments,
            argument_count,
            ..draw
        })
    }

    /// Bytes of the program.
    fn size(&self) -> u32 {
        // CAST: MAX_PROGRAM bounds it.
        (self.instructions.len() * 8) as u32
    }

    /// The words of all arguments, of which a command has room for `N`, and how many a command has.
    fn bind<const N: usize>(
        &self,
        value: impl Fn(&str) -> Option<u64>,
    ) -> Result<([u32; N], usize), BindError> {
        let mut arguments = [0; N];
        let mut count = 0;
        for argument in &self.arguments {
            let bad = |cause| BindError {
                name: argument.name.clone(),
                cause,
            };
            let value = value(&argument.name).ok_or_else(|| bad(BindCause::Missing))?;
            let halves = [value, value >> 32].map(|v| v & u64::from(u32::MAX));
            if argument.words == 1 && halves[1] != 0 {
                return Err(bad(BindCause::Wide));
            }
            for (i, half) in halves.into_iter().take(argument.words).enumerate() {
                let word = arguments.get_mut(argument.index + i);
                // CAST: a half.
                *word.ok_or_else(|| bad(BindCause::NoRoom))? = half as u32;
            }
            count = count.max(argument.index + argument.words);
        }
        // A command has an even number of words.
        Ok((arguments, count.next_multiple_of(2)))
    }
}

/// A command lacks an argument, or has one that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindError {
    /// What `arg` calls it, without `.hi`.
    pub name: String,
    /// What is wrong with it.
    pub cause: BindCause,
}

/// Why an argument cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindCause {
    /// No value was given for the argument.
    Missing,
    /// Its value needs more than the declared 32 bits.
    Wide,
    /// The command has fewer arguments.
    NoRoom,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.cause {
            BindCause::Missing => write!(f, "the program's argument `{name}` has no value"),
            BindCause::Wide => write!(
                f,
                "the value of the program's argument `{name}` does not fit 32 bits"
            ),
            BindCause::NoRoom => write!(f, "the command has no room for the argument `{name}`"),
        }
    }
}

impl std::error::Error for BindError {}
