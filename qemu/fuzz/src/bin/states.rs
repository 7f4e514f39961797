// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bytes as a saved state: the rest of a preempted packet's, from where two bytes say on.

#![no_main]

#[path = "../session.rs"]
mod session;

use libfuzzer_sys::fuzz_target;
use skua_gpu::engine::core::Outcome;
use skua_gpu::engine::save::{SAVE_SIZE, STATE_SIZE};
use skua_spec::address::GpuVa;
use skua_spec::command::{Blend, Command, Dispatch, Draw, Rectangle, MAX_ARGUMENTS};
use skua_spec::context::{Descriptor, SaveArea};
use skua_spec::isa::{Instruction, Op, IMMEDIATE};
use skua_testbed::{COMPUTE, CONTEXT, DATA, DATA_VA, SAVE_VA, STATE};

/// A program that never ends, and has registers of all kinds.
const PROGRAM: [Instruction; 4] = [
    Instruction::new(Op::Add, 1, 1, IMMEDIATE, 1),
    Instruction::new(Op::Sts32, 1, 0, 0, 0),
    Instruction::new(Op::Bar, 0, 0, 0, 0),
    Instruction::new(Op::Bra, 0, 0, 0, 0),
];

fuzz_target!(|data: &[u8]| session::with(|stepped| {
    let Some((&[low, high, kind], bytes)) = data.split_first_chunk::<3>() else {
        return;
    };
    let program = PROGRAM.map(|i| i.encode().to_le_bytes()).concat();
    stepped.set_vram(DATA, &program);
    let dispatch = Dispatch {
        program: DATA_VA,
        program_bytes: program.len() as u32,
        shared_bytes: 64,
        groups: [2, 1, 1],
        threads: [40, 1, 1],
        arguments: [0; MAX_ARGUMENTS],
        argument_count: 0,
    };
    // Without shared memory.
    let pixel = [PROGRAM[0], PROGRAM[2], PROGRAM[3]].map(|i| i.encode().to_le_bytes());
    stepped.set_vram(DATA + 0x800, &pixel.concat());
    for (at, word) in [0, 0, 5, 0x4000, 0, 9, 0, 0x4000, 300_u32]
        .into_iter()
        .enumerate()
    {
        stepped.set_vram(DATA + 0x1000 + 4 * at as u64, &word.to_le_bytes());
    }
    let draw = Draw {
        program: DATA_VA + 0x800,
        program_bytes: 24,
        blend: Blend::Over,
        attributes: 1,
        vertices: DATA_VA + 0x1000,
        vertex_count: 6,
        triangles: 2,
        target: DATA_VA + 0x2000,
        pitch: 256,
        scissor: Rectangle {
            left: 0,
            top: 0,
            right: 64,
            bottom: 64,
        },
        ..Draw::default()
    };
    let command = match kind % 5 {
        0 => Command::Dispatch(dispatch),
        4 => Command::Draw(draw),
        1 => Command::Fill {
            pattern: 1,
            address: DATA_VA,
            bytes: 0x4_0000,
        },
        2 => Command::Copy {
            source: DATA_VA,
            destination: DATA_VA + 0x101,
            bytes: 0x4_0000,
        },
        _ => Command::Wait {
            address: DATA_VA,
            value: u64::MAX,
        },
    };
    let area = SaveArea {
        base: GpuVa(SAVE_VA),
        bytes: SAVE_SIZE,
    };
    stepped.set_save_area(CONTEXT, Some(area));
    let (mut exec, _) = stepped.exec(COMPUTE, &[command]);
    stepped.start(COMPUTE, &[exec]);
    // Into the midst of it: a step ends where something is seen outside.
    for _ in 0..8 {
        stepped.step(COMPUTE, 300);
    }
    stepped.cores[0].preempt(1);
    for _ in 0..10_000 {
        if let Outcome::Preempted { .. } = stepped.step(COMPUTE, 1000) {
            break;
        }
    }
    let saved = stepped.saved(CONTEXT);
    let at = u64::from(u16::from_le_bytes([low, high]));
    let bytes = &bytes[..bytes.len().min(STATE_SIZE as usize - at as usize)];
    stepped.set_vram(STATE + at, bytes);
    // As long as it says it is, now and then.
    if kind & 0x80 != 0 {
        let said = stepped.vram32(STATE + 8);
        stepped.set_vram64(CONTEXT + Descriptor::SAVED, said.into());
    } else {
        assert!(saved > 0);
    }
    if let Command::Exec { resume, .. } = &mut exec {
        *resume = true;
    }
    stepped.start(COMPUTE, &[exec]);
}));
