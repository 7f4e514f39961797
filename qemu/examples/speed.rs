// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How fast the model is on this host, for information only:
//! `cargo run --release -p skua-gpu --example speed [-- PATTERN]`, which chooses programs by name.

use std::time::Instant;

use skua_asm::assemble;
use skua_spec::command::Command;
use skua_spec::number::EngineIndex;
use skua_spec::status::Counter;
use skua_testbed::{Gpu, COMPUTE, COPY, DATA, DATA_BYTES, DATA_VA};

/// How often each measure is taken: the host may be busy, and the least is what it costs.
const ROUNDS: usize = 100;

fn timed(gpu: &mut Gpu, engine: EngineIndex, commands: &[Command]) -> f64 {
    let once = |_| {
        let since = Instant::now();
        gpu.run_buffer(engine, commands);
        since.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(once).fold(f64::INFINITY, f64::min)
}

fn transfers() {
    let mut gpu = Gpu::new();
    let half = DATA_BYTES / 2;
    let fill = Command::Fill {
        pattern: 1,
        address: DATA_VA,
        bytes: half,
    };
    let copy = Command::Copy {
        source: DATA_VA,
        destination: DATA_VA + half,
        bytes: half,
    };
    for (name, command) in [("FILL", fill), ("COPY", copy)] {
        let time = timed(&mut gpu, COPY, &[command; 4000]);
        println!("{name}: {:.2} GB/s", half as f64 * 4000.0 / time / 1e9);
    }
    let since = Instant::now();
    for i in 0..10_000 {
        let (exec, fence) = gpu.exec(
            COPY,
            &[Command::Signal {
                address: DATA_VA,
                value: i,
            }],
        );
        gpu.push(COPY, &[exec]);
        gpu.doorbell(COPY);
        let completed = || gpu.engine64(COPY, skua_spec::status::engine::COMPLETED_FENCE);
        while completed() < fence {
            std::hint::spin_loop();
        }
    }
    println!("packet, doorbell to fence: {:?}", since.elapsed() / 10_000);
}

fn programs(pattern: &str) {
    // What programs are made of, in a loop of 17 instructions that differ in the body only, and
    // nearly always in values that differ by thread.
    let bodies = [
        (
            "integer",
            "add r10, r10, r11\n xor r11, r11, r10\n shl r12, r10, 3\n",
        ),
        (
            "integer, uniform",
            "add r21, r21, r22\n xor r22, r22, r21\n shl r23, r21, 3\n",
        ),
        (
            "multiply",
            "mul r10, r10, r11\n mul r11, r11, 77\n add r12, r10, 3\n",
        ),
        (
            "float",
            "fadd r10, r10, r11\n fmul r11, r11, r10\n fsub r12, r10, r11\n",
        ),
        (
            "fma",
            "fma r10, r10, r11, r12\n fma r11, r11, r10, r12\n fma r12, r10, r11, r12\n",
        ),
        (
            "divide",
            "divu r10, r20, r11\n divs r11, r20, r12\n remu r12, r20, r13\n",
        ),
        (
            "load 32, run",
            "ld.32 r10, [r2]\n ld.32 r11, [r2 + 128]\n ld.32 r12, [r2 + 256]\n",
        ),
        (
            "load 32, scattered",
            "ld.32 r10, [r4]\n ld.32 r11, [r4 + 4]\n ld.32 r12, [r4 + 8]\n",
        ),
        (
            "load byte",
            "ld.u8 r10, [r2]\n ld.u8 r11, [r2 + 1]\n ld.u8 r12, [r2 + 2]\n",
        ),
        (
            "load byte, run",
            "ld.u8 r10, [r8]\n ld.u8 r11, [r8 + 32]\n ld.u8 r12, [r8 + 64]\n",
        ),
        (
            "store 32, run",
            "st.32 [r2], r10\n st.32 [r2 + 128], r11\n st.32 [r2 + 256], r12\n",
        ),
        (
            "store byte, run",
            "st.8 [r8], r10\n st.8 [r8 + 32], r11\n st.8 [r8 + 64], r12\n",
        ),
        (
            "shared",
            "lds.32 r10, [r6]\n sts.32 [r6], r11\n lds.32 r12, [r6]\n",
        ),
        (
            "atomic",
            "atom.add r10, [r2], r11\n atom.add r10, [r2], r11\n atom.add r10, [r2], r11\n",
        ),
    ];
    for (name, body) in bodies {
        if !name.contains(pattern) {
            continue;
        }
        let mut gpu = Gpu::new();
        let program = assemble(&format!(
            ".threads 256\n .shared 1024
                sr  r0, flat
                mov r2, {0}\n mov r3, {1}\n mov r4, {0}\n mov r5, {1}
                mul r1, r0, 260\n lea r4, r4, r1, 0\n lea r2, r2, r0, 2
                mov r8, {0}\n mov r9, {1}\n lea r8, r8, r0, 0
                shl r6, r0, 2
                mov r7, 100\n add r11, r0, 0x3f800001\n add r20, r0, 123456789
                mov r22, 1
            again: {body} {body} {body} {body} {body}
                sub r7, r7, 1
                bnz r7, again
                exit",
            (DATA_VA + 0x1_0000) as u32,
            DATA_VA >> 32
        ))
        .unwrap();
        gpu.set_vram(DATA, &program.bytes());
        let dispatch = program.dispatch(DATA_VA, [4, 1, 1], |_| None).unwrap();
        let time = timed(&mut gpu, COMPUTE, &[Command::Dispatch(dispatch)]);
        let instructions = gpu.counter(Counter::Instruction) as f64 / ROUNDS as f64;
        println!(
            "{name:20} {:6.1} M instructions/s, {:6.2} G lane instructions/s, {:5.1} ns each",
            instructions / time / 1e6,
            instructions * 32.0 / time / 1e9,
            time * 1e9 / instructions
        );
    }
}

fn main() {
    let pattern = std::env::args().nth(1);
    if pattern.is_none() {
        transfers();
    }
    programs(&pattern.unwrap_or_default());
}
