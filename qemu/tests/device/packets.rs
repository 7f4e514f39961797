// SPDX-License-Identifier: GPL-2.0 OR MIT

//! EXEC: contexts, fences, accounting.

use skua_gpu::vram;
use skua_spec::command::Command;
use skua_spec::context::Descriptor;
use skua_spec::fault::Reason;
use skua_spec::number::Asid;
use skua_spec::status::{self, Counter, EngineState};
use skua_spec::ticks;
use skua_testbed::{Gpu, BUFFER_VA, COLD, COMPUTE, CONTEXT, COPY, DATA_VA};

#[test]
fn an_empty_packet() {
    let mut gpu = Gpu::new();
    for (start, end) in [(0, 0), (0x1000, 0x1000), (0xffff_fff8, 0xffff_fff8)] {
        gpu.run(
            COMPUTE,
            &[Command::Exec {
                context: vram::BASE + CONTEXT,
                base: 0xdead_0000,
                start,
                end,
                fence: Some(u64::from(start) + 1),
                interrupt: false,
                resume: false,
            }],
        );
        let completed = gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE);
        assert_eq!(completed, u64::from(start) + 1);
    }
    assert_eq!(gpu.lines.count(0), 0);
    assert_eq!(gpu.counter(Counter::Packet), 3);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::TICKS), 3);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::PACKETS), 3);
}

#[test]
fn a_part_of_a_buffer() {
    let mut gpu = Gpu::new();
    let signal = |i: u64| Command::Signal {
        address: DATA_VA + i * 8,
        value: i + 100,
    };
    gpu.exec(COMPUTE, &[signal(0), signal(1), signal(2), signal(3)]);
    gpu.clear_vram(skua_testbed::DATA, 64);
    gpu.run(
        COMPUTE,
        &[Command::Exec {
            context: vram::BASE + CONTEXT,
            base: BUFFER_VA,
            start: 24,
            end: 72,
            fence: None,
            interrupt: false,
            resume: false,
        }],
    );
    let values: Vec<_> = (0..4)
        .map(|i| gpu.vram64(skua_testbed::DATA + i * 8))
        .collect();
    assert_eq!(values, [0, 101, 102, 0]);
    assert_eq!(gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE), 0);
    assert_eq!(gpu.counter(Counter::BufferCommand), 2);
    // EXEC, two commands, and the pages of the buffer and the values.
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::TICKS), 3 + 2 * COLD);
}

#[test]
fn a_command_does_not_run_over_the_end_of_its_buffer() {
    let mut gpu = Gpu::new();
    let signal = Command::Signal {
        address: DATA_VA,
        value: 1,
    };
    gpu.exec(COMPUTE, &[signal]);
    gpu.start(
        COMPUTE,
        &[Command::Exec {
            context: vram::BASE + CONTEXT,
            base: BUFFER_VA,
            start: 0,
            end: 16,
            fence: Some(1),
            interrupt: true,
            resume: false,
        }],
    );
    let fault = gpu.wait_fault();
    assert_eq!(
        (fault.reason, fault.command),
        (Reason::BadLength, BUFFER_VA)
    );
}

#[test]
fn the_time_of_contexts_adds_up() {
    let mut gpu = Gpu::new();
    let other = CONTEXT + 64;
    gpu.write_context(other, Asid(9), 2, skua_testbed::root());
    for _ in 0..5 {
        let (exec, _) = gpu.exec(
            COPY,
            &[Command::Fill {
                pattern: 0,
                address: DATA_VA,
                bytes: 0x1000,
            }],
        );
        let mut second = exec;
        if let Command::Exec { context, .. } = &mut second {
            *context = vram::BASE + other;
        }
        gpu.run(COPY, &[exec, second, second]);
    }
    let ticks = |at| gpu.vram64(at + Descriptor::TICKS);
    // EXEC, FILL, 64 pieces of it. Each address space finds its buffer and the page once.
    assert_eq!(ticks(CONTEXT), 5 * 66 + 2 * COLD);
    assert_eq!(ticks(other), 10 * 66 + 2 * COLD);
    assert_eq!(gpu.vram64(other + Descriptor::PACKETS), 10);
    assert_eq!(gpu.ticks(COPY), ticks(CONTEXT) + ticks(other));
}

/// The time that a cut packet used is in its descriptor when the reset is acknowledged.
#[test]
fn a_reset_charges_the_time_but_ends_no_packet() {
    let mut gpu = Gpu::new();
    let (exec, _) = gpu.exec(
        COPY,
        &[
            Command::Fill {
                pattern: 0,
                address: DATA_VA,
                bytes: 0x1000,
            },
            Command::Wait {
                address: DATA_VA,
                value: 1,
            },
        ],
    );
    gpu.start(COPY, &[exec]);
    gpu.wait_state(COPY, EngineState::Waiting);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::TICKS), 0);
    gpu.reset_engine(COPY);
    // EXEC, FILL, 64 pieces of it, WAIT; the buffer and the page.
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::TICKS), 67 + 2 * COLD);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::PACKETS), 0);
    assert_eq!(gpu.counter(Counter::Packet), 0);
    assert_eq!(gpu.engine64(COPY, status::engine::COMPLETED_FENCE), 0);
}

#[test]
fn a_fault_charges_the_time_but_ends_no_packet() {
    let mut gpu = Gpu::new();
    gpu.run_buffer_to_fault(
        COPY,
        &[
            Command::Fill {
                pattern: 0,
                address: DATA_VA,
                bytes: 0x1000,
            },
            Command::Copy {
                source: 0,
                destination: DATA_VA,
                bytes: 1,
            },
        ],
    );
    // EXEC, FILL, 64 pieces of it, COPY; the buffer, the page, and the one that is not there, next
    // to the buffer in its table.
    let time = 67 + 2 * COLD + ticks::TLB_MISS;
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::TICKS), time);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::PACKETS), 0);
    assert_eq!(gpu.counter(Counter::Packet), 0);
    assert_eq!(gpu.engine64(COPY, status::engine::COMPLETED_FENCE), 0);
    assert_eq!(gpu.engine64(COPY, status::engine::CURRENT_FENCE), 0);
    assert_eq!(gpu.lines.count(1), 0);
}
