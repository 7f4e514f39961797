// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every operation on interesting and random values, against the reference interpreter, which is
//! written from the manual and shares nothing with the device but the encoding.

use proptest::prelude::*;
use skua_reference::Buffers;
use skua_spec::command::{Command, Dispatch, MAX_ARGUMENTS};
use skua_spec::isa::{Form, Instruction, Op, IMMEDIATE};
use skua_testbed::{Gpu, COMPUTE, DATA, DATA_VA};

/// Values at which something changes.
const INTERESTING: [u32; 30] = [
    0,
    1,
    2,
    3,
    0x1f,
    0x20,
    0x21,
    0xff,
    0x100,
    0x7fff_fffe,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_fffe,
    0xffff_ffff,
    0x3f80_0000,
    0xbf80_0000,
    0x3f7f_ffff,
    0x4b7f_ffff,
    0x4b80_0000,
    0x4f00_0000,
    0x4f80_0000,
    0xcf00_0000,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xff81_2345,
];

/// Where the sources and the results are.
const SOURCES: u64 = DATA_VA + 0x1_0000;
const RESULTS: u64 = DATA_VA + 0x2_0000;

/// A program that loads r10 to r15 of each thread, executes `middle` and stores r20 and r21.
fn program(middle: &[Instruction]) -> Vec<Instruction> {
    let mut list = vec![
        Instruction::new(Op::Sr, 0, 0, 0, 12),
        Instruction::new(Op::Sr, 1, 0, 0, 3),
        Instruction::new(Op::Mul, 1, 1, IMMEDIATE, 64),
        Instruction::new(Op::Add, 0, 0, 1, 0),
        Instruction::new(Op::Mul, 1, 0, IMMEDIATE, 24),
        Instruction::new(Op::Mov, 2, 0, IMMEDIATE, SOURCES as u32),
        Instruction::new(Op::Mov, 3, 0, IMMEDIATE, (SOURCES >> 32) as u32),
        Instruction::new(Op::Lea, 2, 2, 1, 0),
    ];
    for i in 0..3 {
        list.push(Instruction::new(
            Op::Ld64,
            10 + 2 * i,
            2,
            0,
            u32::from(i) * 8,
        ));
    }
    list.extend(middle);
    list.extend([
        Instruction::new(Op::Mov, 2, 0, IMMEDIATE, RESULTS as u32),
        Instruction::new(Op::Mov, 3, 0, IMMEDIATE, (RESULTS >> 32) as u32),
        Instruction::new(Op::Lea, 2, 2, 0, 3),
        Instruction::new(Op::St64, 20, 2, 0, 0),
        Instruction::new(Op::Exit, 0, 0, 0, 0),
    ]);
    list
}

/// Runs `middle` for `sources` (six words for each thread) on the device and on the reference.
fn compare(gpu: &mut Gpu, middle: &[Instruction], sources: &[u32]) {
    let program: Vec<u8> = program(middle)
        .iter()
        .flat_map(|i| i.encode().to_le_bytes())
        .collect();
    let groups = (sources.len() / 6 / 64) as u32;
    let results = groups as usize * 64 * 8;
    let dispatch = Dispatch {
        program: DATA_VA,
        program_bytes: program.len() as u32,
        shared_bytes: 0,
        groups: [groups, 1, 1],
        threads: [64, 1, 1],
        arguments: [0; MAX_ARGUMENTS],
        argument_count: 0,
    };
    let bytes: Vec<u8> = sources.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut buffers = Buffers::default();
    buffers.add(SOURCES, bytes.clone());
    buffers.add(RESULTS, vec![0; results]);
    skua_reference::run(&program, &dispatch, &mut buffers, u64::MAX).expect("a run");
    gpu.set_vram(DATA, &program);
    gpu.set_vram(DATA + 0x1_0000, &bytes);
    gpu.clear_vram(DATA + 0x2_0000, results as u64);
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
    let found = gpu.vram_bytes(DATA + 0x2_0000, results);
    let expected = buffers.get(RESULTS).unwrap();
    if found != expected {
        for (i, (f, e)) in found.chunks(8).zip(expected.chunks(8)).enumerate() {
            assert_eq!(f, e, "{middle:x?} of {:x?}", &sources[i * 6..i * 6 + 6]);
        }
    }
}

/// All operations that compute, with registers and with an immediate.
fn computing(immediate: u32) -> Vec<Instruction> {
    let mut list = Vec::new();
    for (o, _) in Op::ALL {
        let (rd, ra, rb) = (20, 10, 12);
        match o.form() {
            Form::Unary | Form::UnaryPair => {
                list.push(Instruction::new(*o, rd, 0, rb, 0));
                list.push(Instruction::new(*o, rd, 0, IMMEDIATE, immediate));
            }
            Form::Binary | Form::BinaryPair | Form::Widen => {
                list.push(Instruction::new(*o, rd, ra, rb, 0));
                list.push(Instruction::new(*o, rd, ra, IMMEDIATE, immediate));
            }
            Form::Ternary => list.push(Instruction::new(*o, rd, ra, rb, 14)),
            Form::Scale => {
                list.extend((0..=4).map(|shift| Instruction::new(*o, rd, ra, rb, shift)))
            }
            _ => {}
        }
    }
    assert!(list.iter().all(Instruction::is_valid));
    list
}

/// Six words for each pair of interesting values, in as many threads as fill groups of 64.
fn pairs() -> Vec<u32> {
    let n = INTERESTING.len();
    let threads = (n * n).next_multiple_of(64);
    (0..threads)
        .flat_map(|t| {
            let (a, b) = (INTERESTING[t % n], INTERESTING[t / n % n]);
            let (c, d) = (INTERESTING[(t / 7 + 3) % n], INTERESTING[(t / 3 + 1) % n]);
            [a, d, b, c, c, a]
        })
        .collect()
}

#[test]
fn interesting_values() {
    let mut gpu = Gpu::new();
    let sources = pairs();
    for immediate in [0, 1, 31, 0x8000_0000, 0xffff_ffff, 0x7fc0_0000, 0x4000_0000] {
        for instruction in computing(immediate) {
            compare(&mut gpu, &[instruction], &sources);
        }
    }
}

#[test]
fn sources_and_results_may_be_the_same_registers() {
    let mut gpu = Gpu::new();
    let sources = pairs();
    for mut instruction in computing(5) {
        for register in [10, 12, 14] {
            instruction.rd = register;
            let back = Instruction::new(Op::Mov64, 20, 0, register, 0);
            compare(&mut gpu, &[instruction, back], &sources);
        }
    }
}

/// A chain of random operations on the registers 10 to 15 and 20, 21.
fn chain() -> impl Strategy<Value = Vec<Instruction>> {
    let one = (any::<prop::sample::Index>(), any::<[u8; 3]>(), any::<u32>()).prop_map(
        |(which, registers, immediate)| {
            let all = computing(immediate);
            let mut i = all[which.index(all.len())];
            let pick = |r: u8| [10, 12, 14, 20][usize::from(r % 4)];
            i.rd = pick(registers[0]);
            if !matches!(i.op.form(), Form::Unary | Form::UnaryPair) {
                i.ra = pick(registers[1]);
            }
            if i.rb != IMMEDIATE {
                i.rb = pick(registers[2]);
            }
            i
        },
    );
    prop::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn random_chains(middle in chain(), sources in prop::collection::vec(any::<u32>(), 6 * 64)) {
        let mut gpu = Gpu::new();
        compare(&mut gpu, &middle, &sources);
    }
}
