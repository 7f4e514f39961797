// SPDX-License-Identifier: MIT

//! What the assembler makes, the disassembler reads, and the other way round.

use proptest::prelude::*;
use skua_asm::{assemble, disassemble, BadInstruction};
use skua_spec::command::{MAX_ARGUMENTS, MAX_PROGRAM};
use skua_spec::isa::{Form, Instruction, Op, Special, IMMEDIATE, REGISTERS};

/// Any field values; `mend` makes a valid instruction of them.
fn fields() -> impl Strategy<Value = (u8, u8, u8, bool, u32, u8)> {
    (
        0..REGISTERS,
        0..REGISTERS,
        0..REGISTERS,
        any::<bool>(),
        prop_oneof![
            any::<u32>(),
            0u32..64,
            (-64i32..0).prop_map(|v| u32::from_ne_bytes(v.to_ne_bytes())),
            any::<f32>().prop_map(f32::to_bits),
        ],
        0..REGISTERS,
    )
}

/// A valid instruction of `op`. It is written against the text of the specification, form by form,
/// so that a form that the assembler reads wrongly does not go unseen here.
fn mend(op: Op, (rd, ra, rb, use_immediate, imm, c): (u8, u8, u8, bool, u32, u8)) -> Instruction {
    let even = |r: u8| r & !1;
    let none = Instruction {
        op,
        rd: 0,
        ra: 0,
        rb: 0,
        imm: 0,
    };
    let with_b = |i: Instruction, pair: bool| {
        if use_immediate {
            Instruction {
                rb: IMMEDIATE,
                imm,
                ..i
            }
        } else {
            Instruction {
                rb: if pair { even(rb) } else { rb },
                ..i
            }
        }
    };
    match op.form() {
        Form::Bare => none,
        Form::Code | Form::Jump => Instruction { imm, ..none },
        Form::Index => {
            let count = if op == Op::Sr {
                Special::ALL.len()
            } else {
                MAX_ARGUMENTS
            };
            Instruction {
                rd,
                imm: imm % count as u32,
                ..none
            }
        }
        Form::Unary => with_b(Instruction { rd, ..none }, false),
        Form::Binary => with_b(Instruction { rd, ra, ..none }, false),
        Form::UnaryPair => with_b(
            Instruction {
                rd: even(rd),
                ..none
            },
            true,
        ),
        Form::BinaryPair => with_b(
            Instruction {
                rd: even(rd),
                ra: even(ra),
                ..none
            },
            true,
        ),
        Form::Widen => with_b(
            Instruction {
                rd: even(rd),
                ra,
                ..none
            },
            false,
        ),
        Form::Scale => Instruction {
            rd: even(rd),
            ra: even(ra),
            rb,
            imm: imm % 5,
            op,
        },
        Form::Ternary | Form::CompareSwapShared => Instruction {
            rd,
            ra,
            rb,
            imm: c.into(),
            op,
        },
        Form::Branch => Instruction { ra, imm, ..none },
        Form::CompareBranch => Instruction {
            ra,
            rb,
            imm,
            ..none
        },
        Form::Load | Form::Store => Instruction {
            rd,
            ra: even(ra),
            imm,
            ..none
        },
        Form::LoadPair | Form::StorePair => Instruction {
            rd: even(rd),
            ra: even(ra),
            imm,
            ..none
        },
        Form::LoadShared | Form::StoreShared => Instruction {
            rd,
            ra,
            imm,
            ..none
        },
        Form::LoadSharedPair | Form::StoreSharedPair => Instruction {
            rd: even(rd),
            ra,
            imm,
            ..none
        },
        Form::Atomic => Instruction {
            rd,
            ra: even(ra),
            rb,
            ..none
        },
        Form::AtomicPair => Instruction {
            rd: even(rd),
            ra: even(ra),
            rb: even(rb),
            ..none
        },
        Form::CompareSwap => Instruction {
            rd,
            ra: even(ra),
            rb,
            imm: c.into(),
            op,
        },
        Form::CompareSwapPair => Instruction {
            rd: even(rd),
            ra: even(ra),
            rb: even(rb),
            imm: even(c).into(),
            op,
        },
        Form::AtomicShared => Instruction { rd, ra, rb, ..none },
    }
}

fn bytes(instructions: &[Instruction]) -> Vec<u8> {
    instructions
        .iter()
        .flat_map(|i| i.encode().to_le_bytes())
        .collect()
}

fn reassembled(bytes: &[u8]) -> (String, Vec<u8>) {
    let text = disassemble(bytes).expect("valid instructions");
    let program = assemble(&text)
        .unwrap_or_else(|errors| panic!("{text}\n{}", errors.first().expect("an error")));
    (text, program.bytes())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..Default::default()
    })]

    /// One of every operation, with any operands.
    #[test]
    fn every_operation(operands in proptest::collection::vec(fields(), Op::ALL.len())) {
        let pairs = Op::ALL.iter().zip(operands);
        let program: Vec<_> = pairs.map(|((op, _), f)| mend(*op, f)).collect();
        for instruction in &program {
            prop_assert!(instruction.is_valid(), "{:?}", instruction);
        }
        let bytes = bytes(&program);
        let (text, again) = reassembled(&bytes);
        prop_assert_eq!(&again, &bytes, "{}", text);
        // The text is canonical: it comes back as well.
        prop_assert_eq!(disassemble(&again).expect("valid instructions"), text);
    }

    /// Bytes that are no program are refused; those that are one come back.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(text) = disassemble(&bytes) {
            if bytes.is_empty() {
                prop_assert!(text.is_empty());
            } else {
                prop_assert_eq!(assemble(&text).map(|p| p.bytes()), Ok(bytes));
            }
        }
    }

    /// As [`any_bytes`], with opcodes that exist and small fields, so that many are valid.
    #[test]
    fn likely_bytes(words in proptest::collection::vec(
        (0..Op::ALL.len(), 0u8..65, 0u8..65, prop_oneof![0u8..65, Just(IMMEDIATE)], 0u32..40),
        1..16,
    )) {
        let bytes = bytes(&words.iter().map(|&(op, rd, ra, rb, imm)| Instruction {
            op: Op::ALL[op].0, rd, ra, rb, imm,
        }).collect::<Vec<_>>());
        for word in bytes.chunks_exact(8) {
            match disassemble(word) {
                Ok(text) => prop_assert_eq!(assemble(&text).map(|p| p.bytes()), Ok(word.to_vec())),
                Err(BadInstruction::Undefined { index, .. }) => prop_assert_eq!(index, 0),
                Err(e) => prop_assert!(false, "{}", e),
            }
        }
    }

    /// No source makes the assembler panic, and what it says has a place in the source.
    #[test]
    fn any_source(source in "[ -~\t\nr0-9a-z,.:@()\\[\\]+*<>-]{0,200}") {
        if let Err(errors) = assemble(&source) {
            prop_assert!(!errors.is_empty());
            for error in errors {
                prop_assert!(error.line >= 1 && error.column >= 1 && error.length >= 1);
                prop_assert!(error.line <= source.lines().count().max(1));
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn a_length_that_is_no_multiple() {
    assert_eq!(disassemble(&[0; 12]), Err(BadInstruction::Length(12)));
}

#[test]
fn the_longest_program() {
    let most = (MAX_PROGRAM / 8) as usize;
    let program = assemble(&"nop\n".repeat(most)).expect("it fits");
    assert_eq!(program.bytes().len(), MAX_PROGRAM as usize);
    let errors = assemble(&"nop\n".repeat(most + 1)).expect_err("one too many");
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].line, most + 1);
}
