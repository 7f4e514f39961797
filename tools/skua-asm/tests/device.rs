// SPDX-License-Identifier: MIT

//! Programs made at random, on the reference and on the device model, which were written apart and
//! must agree.
//!
//! A program is a prologue that gives each thread registers of its own (random bits, small numbers,
//! floats), a body of random instructions, and an epilogue that stores registers. Jumps in the body
//! go forwards only, so that it ends, and there is no barrier behind one. Threads share memory only
//! through atomic operations whose result does not depend on their order, and whose old value is
//! dropped.

use std::cell::RefCell;

use proptest::prelude::*;
use skua_reference::{run, Buffers, Stop};
use skua_spec::command::{Dispatch, MAX_ARGUMENTS};
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::{Form, Instruction, Op, Special, IMMEDIATE};

use skua_testbed::machine::{Machine, DATA, VA};

/// Registers that the body uses: 0 to 15. The others hold addresses.
const USED: u8 = 16;
/// Pair: the thread's 128 bytes of global memory. What lies before it is another's.
const OWN: u8 = 32;
/// Pair: 64 bytes of global memory that all share.
const ALL: u8 = 34;
/// Pair: the second word of that, of 64 bits. A 32-bit addition drops a carry that one of 64 bits
/// keeps, so they must not meet.
const ALL_64: u8 = 38;
/// The thread's 64 bytes of shared memory.
const OWN_SHARED: u8 = 36;
/// 0: the group's 64 bytes of shared memory.
const ALL_SHARED: u8 = 37;

const THREADS: [u32; 3] = [20, 3, 1];
const GROUPS: [u32; 3] = [2, 1, 2];
const FLAT: u32 = 60;
const OWN_BYTES: u64 = 128;
const RESULT: u64 = (FLAT as u64) * 4 * OWN_BYTES;

fn immediate(op: Op, rd: u8, ra: u8, imm: u32) -> Instruction {
    Instruction::new(op, rd, ra, IMMEDIATE, imm)
}

fn sr(rd: u8, special: Special) -> Instruction {
    Instruction::new(Op::Sr, rd, 0, 0, special as u32)
}

fn prologue(seeds: &[u32]) -> Vec<Instruction> {
    let mut code = vec![
        sr(40, Special::GidZ),
        sr(41, Special::NgidX),
        Instruction::new(Op::Mul, 40, 40, 41, 0),
        sr(41, Special::GidX),
        Instruction::new(Op::Add, 40, 40, 41, 0),
        immediate(Op::Mul, 40, 40, FLAT),
        sr(41, Special::Flat),
        Instruction::new(Op::Add, 40, 40, 41, 0),
        Instruction::new(Op::Arg, 42, 0, 0, 0),
        Instruction::new(Op::Arg, 43, 0, 0, 1),
        immediate(Op::MulWu, 44, 40, OWN_BYTES as u32),
        Instruction::new(Op::Add64, OWN, 42, 44, 0),
        Instruction::new(Op::Arg, ALL, 0, 0, 2),
        Instruction::new(Op::Arg, ALL + 1, 0, 0, 3),
        immediate(Op::Add64, ALL_64, ALL, 8),
        immediate(Op::Add, 41, 41, 1),
        immediate(Op::Mul, OWN_SHARED, 41, 64),
    ];
    // Differing between threads: bits, small numbers, floats.
    for (register, seed) in (0u8..USED).zip(seeds) {
        code.push(immediate(Op::Mul, register, 40, seed | 1));
        code.push(immediate(Op::Add, register, register, seed.rotate_left(9)));
        match register % 4 {
            1 => code.push(immediate(Op::Sar, register, register, 26)),
            2 => {
                code.push(immediate(Op::Sar, register, register, 12));
                code.push(Instruction::new(Op::CvtFS, register, 0, register, 0));
                code.push(immediate(Op::FMul, register, register, 0x3a00_0000));
            }
            _ => {}
        }
    }
    code
}

fn epilogue() -> Vec<Instruction> {
    let mut code: Vec<_> = (0..USED)
        .map(|r| Instruction::new(Op::St32, r, OWN, 0, 64 + u32::from(r) * 4))
        .collect();
    code.push(Instruction::new(Op::Exit, 0, 0, 0, 0));
    code
}

/// An instruction of the body at index `at` of a program whose body ends at `end`.
fn body(op: Op, [rd, ra, rb, rc]: [u8; 4], imm: u32, at: u32, end: u32) -> Instruction {
    let even = |r: u8| r & !1;
    let (rd, ra, rb, rc) = (rd % USED, ra % USED, rb % USED, rc % USED);
    let target = at + 1 + imm % (end - at);
    let use_immediate = imm % 3 == 0;
    let with_b = |rd: u8, ra: u8, rb: u8| {
        if use_immediate {
            immediate(op, rd, ra, imm)
        } else {
            Instruction::new(op, rd, ra, rb, 0)
        }
    };
    // The first half of the thread's global memory (the second is for the result), and all of its
    // shared memory.
    let place = |width: u32| imm % (64 / width) * width;
    let width = match op.mnemonic().rsplit('.').next() {
        Some("u8" | "s8" | "8") => 1,
        Some("u16" | "s16" | "16") => 2,
        Some("64") => 8,
        _ => 4,
    };
    match op.form() {
        Form::Bare | Form::Code => Instruction::new(Op::Nop, 0, 0, 0, 0),
        Form::Index if op == Op::Sr => {
            Instruction::new(op, rd, 0, 0, imm % Special::ALL.len() as u32)
        }
        Form::Index => Instruction::new(op, rd, 0, 0, imm % 6),
        Form::Unary => with_b(rd, 0, rb),
        Form::Binary => with_b(rd, ra, rb),
        Form::UnaryPair => with_b(even(rd), 0, even(rb)),
        Form::BinaryPair => with_b(even(rd), even(ra), even(rb)),
        Form::Widen => with_b(even(rd), ra, rb),
        Form::Scale => Instruction::new(op, even(rd), even(ra), rb, imm % 5),
        Form::Ternary => Instruction::new(op, rd, ra, rb, rc.into()),
        Form::Jump => Instruction::new(op, 0, 0, 0, target),
        Form::Branch => Instruction::new(op, 0, ra, 0, target),
        Form::CompareBranch => Instruction::new(op, 0, ra, rb, target),
        Form::Load | Form::Store => Instruction::new(op, rd, OWN, 0, place(width)),
        Form::LoadPair | Form::StorePair => Instruction::new(op, even(rd), OWN, 0, place(width)),
        Form::LoadShared | Form::StoreShared => {
            Instruction::new(op, rd, OWN_SHARED, 0, place(width))
        }
        Form::LoadSharedPair | Form::StoreSharedPair => {
            Instruction::new(op, even(rd), OWN_SHARED, 0, place(width))
        }
        // On the thread's own memory every result is exact, old value included. On what all share,
        // sums do not depend on the order, and old values go to registers that nothing reads.
        Form::Atomic if use_immediate => Instruction::new(Op::AtomAdd, 60, ALL, rb, 0),
        Form::Atomic => Instruction::new(op, rd, OWN, rb, 0),
        Form::AtomicPair if use_immediate => {
            Instruction::new(Op::AtomAdd64, 60, ALL_64, even(rb), 0)
        }
        Form::AtomicPair => Instruction::new(op, even(rd), OWN, even(rb), 0),
        Form::AtomicShared if use_immediate => {
            Instruction::new(Op::AtomsAdd, 60, ALL_SHARED, rb, 0)
        }
        Form::AtomicShared => Instruction::new(op, rd, OWN_SHARED, rb, 0),
        Form::CompareSwap => Instruction::new(op, rd, OWN, rb, rc.into()),
        Form::CompareSwapPair => Instruction::new(op, even(rd), OWN, even(rb), even(rc).into()),
        Form::CompareSwapShared => Instruction::new(op, rd, OWN_SHARED, rb, rc.into()),
    }
}

fn encode(code: &[Instruction]) -> Vec<u8> {
    for instruction in code {
        assert!(instruction.is_valid(), "{instruction:?}");
    }
    code.iter().flat_map(|i| i.encode().to_le_bytes()).collect()
}

/// Runs a program on both, and compares the memory and the faults.
fn compare(machine: &mut Machine, program: &[u8]) -> Result<(), TestCaseError> {
    let (code, memory, all) = (DATA, DATA + 0x10_0000, DATA + 0x20_0000);
    let mut arguments = [0; MAX_ARGUMENTS];
    for (i, address) in [VA + memory, VA + all].into_iter().enumerate() {
        arguments[2 * i] = address as u32;
        arguments[2 * i + 1] = (address >> 32) as u32;
    }
    (arguments[4], arguments[5]) = (0x3fc0_0000, 7);
    let dispatch = Dispatch {
        program: VA + code,
        program_bytes: program.len() as u32,
        shared_bytes: 64 * (FLAT + 1),
        groups: GROUPS,
        threads: THREADS,
        arguments,
        argument_count: 6,
    };
    let start: Vec<u8> = (0..RESULT as u32)
        .map(|i| (i.wrapping_mul(37) >> 3) as u8)
        .collect();
    machine.write(code, program);
    machine.write(memory, &start);
    machine.write(all, &[0; 64]);
    let mut oracle = Buffers::default();
    oracle.add(VA + memory, start);
    oracle.add(VA + all, vec![0; 64]);
    let stop = run(program, &dispatch, &mut oracle, 1 << 24);
    let got = machine.run(&[dispatch]);
    match (stop, got) {
        (Ok(_), Ok(())) => {
            let text = || skua_asm::disassemble(program).unwrap_or_default();
            let expected = oracle.get(VA + memory).expect("it was added");
            let got = machine.read(memory, RESULT as usize);
            if let Some(at) = (0..expected.len()).find(|i| expected[*i] != got[*i]) {
                let thread = at as u64 / OWN_BYTES;
                prop_assert!(
                    false,
                    "thread {}, byte {}: {:#x}, not {:#x}\n{}",
                    thread,
                    at as u64 % OWN_BYTES,
                    got[at],
                    expected[at],
                    text()
                );
            }
            let expected = oracle.get(VA + all).expect("it was added");
            prop_assert_eq!(machine.read(all, 64), expected, "{}", text());
        }
        (stop, got) => prop_assert!(false, "oracle {:?}, device {:?}", stop, got),
    }
    Ok(())
}

#[test]
fn random_programs() {
    // One device for all cases: a new one for each would take longer than the case.
    let machine = RefCell::new(Machine::new(8 << 20));
    let operations: Vec<Op> = Op::ALL.iter().map(|(op, _)| *op).collect();
    let instruction = (
        prop::sample::select(operations),
        any::<[u8; 4]>(),
        prop_oneof![
            any::<u32>(),
            0u32..80,
            prop::sample::select(vec![
                0,
                0x8000_0000,
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_1234,
                0xffa0_0000,
                0x0000_0001,
                0x807f_ffff,
                0x4f00_0000,
                0xcf00_0001,
                u32::MAX,
            ]),
        ],
    );
    let strategy = (
        prop::collection::vec(any::<u32>(), usize::from(USED)),
        prop::collection::vec(instruction, 1..80),
    );
    let config = ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..Default::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&strategy, |(seeds, instructions)| {
        let mut code = prologue(&seeds);
        let end = (code.len() + instructions.len()) as u32;
        for (op, registers, imm) in instructions {
            code.push(body(op, registers, imm, code.len() as u32, end));
        }
        code.extend(epilogue());
        compare(&mut machine.borrow_mut(), &encode(&code))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Faults that a program can cause are the same ones, at the same instruction and address.
#[test]
fn faults() {
    let cases = [
        ("trap 7", Reason::Trap),
        ("nop", Reason::PcRange),
        ("bra @9", Reason::PcRange),
        ("arg r1, 1\narg r1, 2", Reason::ArgumentRange),
        ("mov r0, 0x1000\nlds.32 r1, [r0]", Reason::SharedRange),
        (
            "lds.32 r1, [r0 + 60]\nlds.32 r1, [r0 + 64]",
            Reason::SharedRange,
        ),
        ("lds.32 r1, [r0 - 4]", Reason::SharedRange),
        ("lds.u16 r1, [r0 + 1]", Reason::Misaligned),
        ("mov r2, 1\natoms.add r1, [r2], r1", Reason::Misaligned),
        ("ld.32 r1, [r2 + 2]", Reason::Misaligned),
        ("mov r3, 0x10000\nld.32 r1, [r2]", Reason::AddressRange),
        ("ld.32 r1, [r2 - 8]", Reason::AddressRange),
        ("ld.64 r4, [r2]", Reason::NotPresent),
        ("st.8 [r2 + 3], r1", Reason::NotPresent),
        ("atom.add r1, [r2], r1", Reason::NotPresent),
        ("atom.cas.64 r4, [r2], r6, r8", Reason::NotPresent),
    ];
    for (source, expected) in cases {
        // A device stays stopped by its fault.
        let mut machine = Machine::new(4 << 20);
        let program = skua_asm::assemble(source).expect("it assembles").bytes();
        machine.write(DATA, &program);
        let dispatch = Dispatch {
            program: VA + DATA,
            program_bytes: program.len() as u32,
            shared_bytes: 64,
            groups: [1; 3],
            threads: [1; 3],
            arguments: [0; MAX_ARGUMENTS],
            argument_count: 2,
        };
        let stop = run(&program, &dispatch, &mut Buffers::default(), 100);
        let record = machine.run(&[dispatch]).expect_err(source);
        let got = Stop::Fault {
            reason: record.reason,
            access: record.access,
            address: record.address,
            // Of translations it is the level, which the reference has none of.
            detail: if record.access == Access::None {
                record.detail
            } else {
                0
            },
            pc: record.pc,
        };
        assert_eq!(stop, Err(got), "{source}");
        assert_eq!(record.reason, expected, "{source}");
    }
}
