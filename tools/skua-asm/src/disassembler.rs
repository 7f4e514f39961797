// SPDX-License-Identifier: MIT

//! Instructions to lines that assemble to the same bytes.
//!
//! Jumps inside the program get labels `L` and the index; other ones are written `@` and the
//! index. Immediates of float operations are written as floats where that is exact.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use skua_spec::isa::{Form, Instruction, Op, Special, IMMEDIATE, INSTRUCTION_SIZE};

/// The bytes are not a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadInstruction {
    /// The length, in bytes, is not a multiple of an instruction's.
    Length(usize),
    /// The instruction with this index is not defined.
    Undefined {
        /// As jumps name it, from 0.
        index: usize,
        /// What stands there instead of an instruction.
        bits: u64,
    },
}

impl fmt::Display for BadInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(
                f,
                "{bytes} bytes are not a whole number of instructions of {INSTRUCTION_SIZE} bytes"
            ),
            Self::Undefined { index, bits } => {
                write!(f, "instruction {index}, {bits:#018x}, is not defined")
            }
        }
    }
}

impl std::error::Error for BadInstruction {}

/// Writes a program as source, one instruction a line.
///
/// # Errors
///
/// [`BadInstruction`] at the first instruction that the set does not define.
pub fn disassemble(bytes: &[u8]) -> Result<String, BadInstruction> {
    // CAST: 8.
    let chunks = bytes.chunks_exact(INSTRUCTION_SIZE as usize);
    if !chunks.remainder().is_empty() {
        return Err(BadInstruction::Length(bytes.len()));
    }
    let instructions = chunks
        .enumerate()
        .map(|(index, chunk)| {
            let bits = chunk
                .iter()
                .rev()
                .fold(0, |bits, byte| (bits << 8) | u64::from(*byte));
            Instruction::decode(bits).ok_or(BadInstruction::Undefined { index, bits })
        })
        .collect::<Result<Vec<_>, _>>()?;
    // A label may stand behind the last instruction.
    let labels: BTreeSet<u32> = instructions
        .iter()
        .filter(|i| matches!(i.op.form(), Form::Jump | Form::Branch | Form::CompareBranch))
        .map(|i| i.imm)
        .filter(|target| usize::try_from(*target).is_ok_and(|t| t <= instructions.len()))
        .collect();
    let mut text = String::new();
    for (index, instruction) in (0u32..).zip(&instructions) {
        if labels.contains(&index) {
            text.push_str(&format!("L{index}:\n"));
        }
        line(&mut text, instruction, &labels);
    }
    if let Some(end) = u32::try_from(instructions.len())
        .ok()
        .filter(|end| labels.contains(end))
    {
        text.push_str(&format!("L{end}:\n"));
    }
    Ok(text)
}

fn line(text: &mut String, i: &Instruction, labels: &BTreeSet<u32>) {
    let (rd, ra, rb) = (
        format!("r{}", i.rd),
        format!("r{}", i.ra),
        format!("r{}", i.rb),
    );
    let c = format!("r{}", i.imm);
    let b = if i.rb == IMMEDIATE {
        immediate(i)
    } else {
        rb.clone()
    };
    let target = if labels.contains(&i.imm) {
        format!("L{}", i.imm)
    } else {
        format!("@{}", i.imm)
    };
    let memory = match signed(i.imm) {
        0 => format!("[{ra}]"),
        offset => format!("[{ra}{offset:+}]"),
    };
    let address = format!("[{ra}]");
    let operands: &[&str] = match i.op.form() {
        Form::Bare => &[],
        Form::Code => &[&i.imm.to_string()],
        Form::Index => &[&rd, &index(i)],
        Form::Unary | Form::UnaryPair => &[&rd, &b],
        Form::Binary | Form::BinaryPair | Form::Widen => &[&rd, &ra, &b],
        Form::Scale => &[&rd, &ra, &rb, &i.imm.to_string()],
        Form::Ternary => &[&rd, &ra, &rb, &c],
        Form::Jump => &[&target],
        Form::Branch => &[&ra, &target],
        Form::CompareBranch => &[&ra, &rb, &target],
        Form::Load | Form::LoadPair | Form::LoadShared | Form::LoadSharedPair => &[&rd, &memory],
        Form::Store | Form::StorePair | Form::StoreShared | Form::StoreSharedPair => {
            &[&memory, &rd]
        }
        Form::Atomic | Form::AtomicPair | Form::AtomicShared => &[&rd, &address, &rb],
        Form::CompareSwap | Form::CompareSwapPair | Form::CompareSwapShared => {
            &[&rd, &address, &rb, &c]
        }
    };
    let mnemonic = i.op.mnemonic();
    // Writing to a string cannot fail.
    let _ = if operands.is_empty() {
        writeln!(text, "    {mnemonic}")
    } else {
        writeln!(text, "    {mnemonic:<8} {}", operands.join(", "))
    };
}

fn index(i: &Instruction) -> String {
    match Special::from_u32(i.imm) {
        Some(special) if i.op == Op::Sr => Special::ALL
            .into_iter()
            .find(|(s, _)| *s == special)
            .map_or_else(|| i.imm.to_string(), |(_, name)| name.to_owned()),
        _ => i.imm.to_string(),
    }
}

fn immediate(i: &Instruction) -> String {
    let float = f32::from_bits(i.imm);
    if takes_float(i.op) && float.is_finite() {
        // Rust prints the shortest decimal that reads back as the same float.
        return format!("{float:?}f");
    }
    match (i.op.form(), i.imm) {
        (Form::UnaryPair | Form::BinaryPair, imm) => signed(imm).to_string(),
        // Small numbers of either sign are most likely counts, others masks.
        (_, imm) if (-4096..=4096).contains(&signed(imm)) => signed(imm).to_string(),
        (_, imm) => format!("{imm:#x}"),
    }
}

/// Whether an immediate B is a float: the operations on floats, whose mnemonics start with `f`.
fn takes_float(op: Op) -> bool {
    op.mnemonic().starts_with('f')
}

fn signed(bits: u32) -> i32 {
    i32::from_ne_bytes(bits.to_ne_bytes())
}
