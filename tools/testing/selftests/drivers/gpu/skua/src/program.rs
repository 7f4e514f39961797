// SPDX-License-Identifier: MIT

//! Compute programs for tests, in the encodings of the hardware manual.

use skua_spec::isa::{Instruction, Op, IMMEDIATE};

/// Encodes fields as they are given, sense or not.
pub const fn op(op: Op, rd: u8, ra: u8, rb: u8, imm: u32) -> u64 {
    Instruction::new(op, rd, ra, rb, imm).encode()
}

/// An instruction whose operand B is a number.
pub const fn op_imm(op_: Op, rd: u8, ra: u8, imm: u32) -> u64 {
    op(op_, rd, ra, IMMEDIATE, imm)
}

/// The thread ends.
pub const EXIT: u64 = op(Op::Exit, 0, 0, 0, 0);

/// Writes argument 2 to the address in arguments 0 and 1, from every thread: thread `n` of all
/// writes `argument + n` to the `n`-th word.
pub const WRITE_NUMBERS: &[u64] = &[
    // r2:r3 = address
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    // r4 = group * threads + thread
    op(Op::Sr, 4, 0, 0, 3),
    op(Op::Sr, 5, 0, 0, 6),
    op(Op::Mul, 4, 4, 5, 0),
    op(Op::Sr, 5, 0, 0, 0),
    op(Op::Add, 4, 4, 5, 0),
    // r6:r7 = address + 4 * r4
    op(Op::Lea, 6, 2, 4, 2),
    op(Op::Arg, 8, 0, 0, 2),
    op(Op::Add, 8, 8, 4, 0),
    op(Op::St32, 8, 6, 0, 0),
    EXIT,
];

/// Copies the word at the address in arguments 0 and 1 to that in arguments 2 and 3.
pub const COPY_WORD: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Arg, 4, 0, 0, 2),
    op(Op::Arg, 5, 0, 0, 3),
    op(Op::Ld32, 6, 2, 0, 0),
    op(Op::St32, 6, 4, 0, 0),
    EXIT,
];

/// Adds one to the word at the address in arguments 0 and 1.
pub const COUNT: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op_imm(Op::Mov, 4, 0, 1),
    op(Op::AtomAdd, 5, 2, 4, 0),
    EXIT,
];

/// Never ends.
pub const LOOP: &[u64] = &[op(Op::Bra, 0, 0, 0, 0)];

/// Ends when the word at the address in arguments 0 and 1 is not 0; the engine is busy until then.
pub const POLL: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Ld32, 4, 2, 0, 0),
    op(Op::Bz, 0, 4, 0, 2),
    EXIT,
];

/// Writes its argument 2 for ever: thread `n` of a group to the `n`-th word from the address in
/// arguments 0 and 1.
pub const STORE_FOR_EVER: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Sr, 4, 0, 0, 0),
    // r6:r7 = address + 4 * thread
    op(Op::Lea, 6, 2, 4, 2),
    op(Op::Arg, 8, 0, 0, 2),
    op(Op::St32, 8, 6, 0, 0),
    op(Op::Bra, 0, 0, 0, 5),
];

/// An address as two arguments.
pub const fn address(va: u64) -> [u32; 2] {
    // CAST: halves.
    [va as u32, (va >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_what_the_manual_defines() {
        for program in [WRITE_NUMBERS, COPY_WORD, COUNT, LOOP, POLL, STORE_FOR_EVER] {
            for (n, bits) in program.iter().enumerate() {
                assert!(Instruction::decode(*bits).is_some(), "instruction {n}");
            }
        }
    }
}
