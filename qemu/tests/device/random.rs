// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random bytes as commands, page tables, contexts, programs and register writes: the device
//! answers with effects or fault records, never with a panic, and always lets itself be reset.
//!
//! The fuzz targets in `qemu/fuzz` do the same with coverage to guide them.

use proptest::prelude::*;
use skua_asm::assemble;
use skua_gpu::vram;
use skua_spec::aperture::PageSize;
use skua_spec::command::{Command, Dispatch, MAX_ARGUMENTS};
use skua_spec::number::EngineIndex;
use skua_spec::regs;
use skua_testbed::{Gpu, COMPUTE, CONTEXT, COPY, DATA, DATA_VA, ENGINES, RING_BYTES, TABLES};

use crate::aperture::layout;

/// Lets the engine work for a moment, whatever it does, then resets it and uses it.
fn survive(gpu: &mut Gpu, engine: EngineIndex) {
    let settled = |gpu: &Gpu| gpu.state(engine) != 2 || gpu.ticks(engine) > 100_000;
    for _ in 0..2000 {
        if settled(gpu) {
            break;
        }
        std::thread::yield_now();
    }
    gpu.reset_engine(engine);
    gpu.start_engine(engine);
    gpu.run(engine, &[Command::Nop { words: 2 }]);
}

/// Words that are more often headers of commands and addresses of something than chance makes them.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        (
            prop::sample::select(vec![
                0_u32, 1, 2, 3, 0x10, 0x11, 0x20, 0x21, 0x22, 0x23, 0x30, 0x31, 0x40, 0x41
            ]),
            0_u32..48
        )
            .prop_map(|(opcode, length)| (opcode << 24) | length),
        Just(DATA_VA as u32),
        Just((DATA_VA >> 32) as u32),
        Just((vram::BASE >> 32) as u32),
        (0_u32..0x800).prop_map(|page| page << 12),
        0_u32..64,
        Just(0),
    ]
}

/// Instructions that are valid more often than not.
pub(crate) fn instruction() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => any::<u64>(),
        9 => (
            prop::sample::select((0..0x98_u8).collect::<Vec<_>>()),
            0_u8..16,
            0_u8..16,
            prop_oneof![0_u8..16, Just(0xff)],
            prop_oneof![0_u32..32, any::<u32>()],
        )
            .prop_map(|(op, rd, ra, rb, imm)| {
                let word = |rd: u8, ra: u8, rb: u8, imm: u32| {
                    u64::from(op)
                        | (u64::from(rd) << 8)
                        | (u64::from(ra) << 16)
                        | (u64::from(rb) << 24)
                        | (u64::from(imm) << 32)
                };
                // The first of the usual shapes that is an instruction.
                [
                    word(rd, ra, rb, imm),
                    word(rd & !1, ra & !1, rb & !1, imm),
                    word(rd, ra, rb, imm & 15),
                    word(rd & !1, ra & !1, rb & !1, imm & 14),
                    word(rd, ra & !1, rb, 0),
                    word(rd, ra, rb, 0),
                    word(rd, 0, rb, imm),
                    word(rd, ra & !1, 0, imm),
                    word(rd, 0, 0, imm),
                    word(0, ra, 0, imm),
                    word(0, ra, rb, imm),
                    word(0, 0, 0, imm),
                ]
                .into_iter()
                .find(|bits| skua_spec::isa::Instruction::decode(*bits).is_some())
                .unwrap_or(0)
            }),
    ]
}

/// A program of these instructions whose first pairs of registers point at data.
pub(crate) fn on_data(instructions: &[u64]) -> Vec<u8> {
    let head = format!(
        "sr r0, flat\n mov r2, {0}\n mov r3, {1}\n mov r4, {0}\n mov r5, {1}\n\
         lea r4, r4, r0, 3\n",
        (DATA_VA + 0x1_0000) as u32,
        DATA_VA >> 32
    );
    let mut program = assemble(&head).unwrap().bytes();
    program.extend(instructions.iter().flat_map(|i| i.to_le_bytes()));
    program
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn ring_and_buffer_words(
        words in prop::collection::vec(word(), 2..200), engine in prop::sample::select(&ENGINES[..]), tail in any::<u16>(),
    ) {
        let mut gpu = Gpu::new();
        let even = &words[..words.len() & !1];
        let (exec, _) = gpu.exec_words(engine, even);
        gpu.start(engine, &[exec]);
        survive(&mut gpu, engine);
        let bytes: Vec<u8> = even.iter().flat_map(|w| w.to_le_bytes()).collect();
        gpu.set_vram(gpu.ring_at(engine) + 8, &bytes);
        let tail = u32::from(tail) % (2 * RING_BYTES);
        gpu.set_engine(engine, regs::engine::DOORBELL::new().with_tail(tail));
        survive(&mut gpu, engine);
    }

    #[test]
    fn tables_and_contexts(
        words in prop::collection::vec(any::<u64>(), 512),
        bits in any::<u64>(), context in any::<[u64; 4]>(),
    ) {
        let mut gpu = Gpu::new();
        // Entries near the real ones, and altogether random ones.
        for (i, word) in (0..).zip(&words) {
            let at = TABLES + (word % 0x4000) / 8 * 8;
            let old = gpu.vram64(at);
            let new = match i % 3 {
                0 => old ^ (1 << (word >> 58)),
                1 => (word & bits & 0x7f_f01f) | vram::BASE,
                _ => *word,
            };
            gpu.set_vram64(at, new);
        }
        let (source, bytes) = (DATA_VA, 0x1_0000);
        let copy = Command::Copy { source, destination: source + bytes, bytes };
        for engine in ENGINES {
            let (exec, _) = gpu.exec(engine, &[copy]);
            gpu.start(engine, &[exec]);
            survive(&mut gpu, engine);
        }
        for (i, word) in (0..).zip(context) {
            let old = gpu.vram64(CONTEXT + i * 8);
            gpu.set_vram64(CONTEXT + i * 8, if bits >> i & 1 != 0 { word } else { old });
        }
        let (exec, _) = gpu.exec(COPY, &[copy]);
        gpu.start(COPY, &[exec]);
        survive(&mut gpu, COPY);
    }

    #[test]
    fn programs(
        instructions in prop::collection::vec(instruction(), 1..80),
        threads in (1_u32..40, 1_u32..4, 1_u32..3),
        shared in 0_u32..300,
        argument_count in 0_usize..16,
    ) {
        let mut gpu = Gpu::new();
        let program = on_data(&instructions);
        gpu.set_vram(DATA, &program);
        let dispatch = Dispatch {
            program: DATA_VA,
            program_bytes: program.len() as u32,
            shared_bytes: shared,
            groups: [2, 2, 1],
            threads: [threads.0, threads.1, threads.2],
            arguments: [7; MAX_ARGUMENTS],
            argument_count: argument_count & !1,
        };
        let (exec, _) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
        gpu.start(COMPUTE, &[exec]);
        survive(&mut gpu, COMPUTE);
    }

    #[test]
    fn register_writes(
        writes in prop::collection::vec((0_u32..0x1400, any::<u32>(), 0_usize..9), 1..300),
        trapped in any::<bool>(),
    ) {
        let mut gpu = Gpu::with_layout(layout(PageSize::Size4K, trapped));
        for (offset, value, bytes) in writes {
            let data = u64::from(value).to_le_bytes();
            let aligned = if bytes == 4 || value & 1 == 0 { offset & !3 } else { offset };
            let count = if value & 2 == 0 { 4 } else { bytes };
            gpu.device.write(aligned.into(), &data[..count]);
            gpu.device.read(aligned.into(), &mut [0; 8][..count]);
            // As far as the aperture reaches, and somewhat further.
            let inside = u64::from(offset) * 16;
            gpu.device.write_aperture(inside, &data[..count]);
            gpu.device.read_aperture(inside, &mut [0; 8][..count]);
        }
        gpu.wait_for("the adapter", |gpu| gpu.device.is_ready());
        gpu.device.reset();
        gpu.wait_for("the adapter", |gpu| gpu.device.is_ready());
        gpu.set_system(0, &[0; 4096]);
        gpu.set_up();
        gpu.run(COMPUTE, &[Command::Nop { words: 2 }]);
    }
}
