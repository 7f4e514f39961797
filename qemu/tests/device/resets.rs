// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Resets of an engine and of the adapter, in every state.

use skua_asm::assemble;
use skua_gpu::vram;
use skua_spec::address::GpuPhys;
use skua_spec::command::{Command, Dispatch, MAX_ARGUMENTS};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::register::Reset;
use skua_spec::regs::{self, engine, Decoded};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, COMPUTE, COPY, DATA, DATA_VA, STATUS};

/// A program that never ends.
fn endless(gpu: &Gpu) -> Command {
    let program = assemble("again: bra again\n").unwrap().bytes();
    gpu.set_vram(DATA, &program);
    Command::Dispatch(Dispatch {
        program: DATA_VA,
        program_bytes: program.len() as u32,
        shared_bytes: 0,
        groups: [1; 3],
        threads: [1; 3],
        arguments: [0; MAX_ARGUMENTS],
        argument_count: 0,
    })
}

/// 256 GiB from here on are the page at [`DATA`] again and again.
const LOOP_VA: u64 = 0x2000_0000_0000;

/// Maps the page at [`DATA`] behind all of [`LOOP_VA`]: 512 times 256 equal tables of equal
/// entries.
fn map_loop(gpu: &mut Gpu) {
    let target = |at| Target::Vram(GpuPhys(vram::BASE + at));
    let page = Entry::page(target(DATA), PageSize::Size4K, true, false);
    let (table, upper) = (gpu.new_table(), gpu.new_table());
    for i in 0..512 {
        gpu.set_vram64(table + i * 8, page.0);
        gpu.set_vram64(upper + i * 8, Entry::table(target(table)).0);
    }
    let at = gpu.entry_at(LOOP_VA, 2);
    for i in 0..256 {
        gpu.set_vram64(at + i * 8, Entry::table(target(upper)).0);
    }
}

/// Ways to keep an engine busy without end.
fn jobs(gpu: &mut Gpu) -> Vec<(Command, EngineState)> {
    map_loop(gpu);
    gpu.set_vram64(DATA + 0x1000, 0);
    vec![
        (endless(gpu), EngineState::Running),
        (
            Command::Wait {
                address: DATA_VA + 0x1000,
                value: 1,
            },
            EngineState::Waiting,
        ),
        // 2^29 rows of a byte: a transfer of many pieces.
        (
            Command::Copy2d {
                source: LOOP_VA,
                destination: LOOP_VA + (1 << 37) + 0x80,
                bytes: 1,
                source_pitch: 0x100,
                destination_pitch: 0x100,
                rows: 1 << 29,
            },
            EngineState::Running,
        ),
    ]
}

/// Keeps engine 0 busy with one of [`jobs`]. Returns the fence id of its packet, which has begun.
fn begin(gpu: &mut Gpu, (job, state): (Command, EngineState)) -> u64 {
    let (exec, fence) = gpu.exec(COMPUTE, &[job]);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_packet(COMPUTE, fence);
    gpu.wait_state(COMPUTE, state);
    fence
}

#[test]
fn an_engine_reset_stops_everything_and_nothing_else() {
    let mut gpu = Gpu::new();
    for job in jobs(&mut gpu) {
        begin(&mut gpu, job);
        gpu.reset_engine(COMPUTE);
        assert_eq!(gpu.state(COMPUTE), EngineState::Disabled as u32);
        assert_eq!(gpu.head(COMPUTE), 0);
        assert_eq!(gpu.engine64(COMPUTE, status::engine::CURRENT_FENCE), 0);
        assert_eq!(gpu.get_engine(COMPUTE, engine::CTRL), engine::CTRL::new());
        assert_eq!(
            gpu.get_engine(COMPUTE, engine::STATUS).state(),
            Some(EngineState::Disabled)
        );
        assert_eq!(gpu.get_engine(COMPUTE, engine::HEAD).offset(), 0);
        assert_eq!(gpu.get_engine(COMPUTE, engine::TAIL).offset(), 0);
        // The other engine works, and so does this one again.
        gpu.run(COPY, &[Command::Nop { words: 2 }]);
        gpu.start_engine(COMPUTE);
        gpu.run_buffer(
            COMPUTE,
            &[Command::Signal {
                address: DATA_VA + 0x3000,
                value: 9,
            }],
        );
    }
    assert_eq!(gpu.counter(Counter::EngineReset), 3);
    assert_eq!(gpu.counter(Counter::Fault), 0);
}

/// The packet that is at work then was not what the reset was for.
#[test]
fn a_reset_for_what_has_ended_is_void() {
    let mut gpu = Gpu::new();
    for (job, state) in jobs(&mut gpu) {
        let (exec, ended) = gpu.exec(COMPUTE, &[Command::Nop { words: 2 }]);
        gpu.start(COMPUTE, &[exec]);
        gpu.wait_fence(COMPUTE, ended);
        let endless = begin(&mut gpu, (job, state));
        let before = gpu.engine32(COMPUTE, status::engine::RESET_ACK);
        let reset = |gpu: &Gpu, fence, acks| {
            gpu.set_engine(COMPUTE, engine::RESET_FENCE::new().with_fence(fence));
            gpu.set_engine(COMPUTE, engine::CTRL::new().with_reset(true));
            gpu.wait_for("a reset", |gpu| {
                gpu.engine32(COMPUTE, status::engine::RESET_ACK) == before.wrapping_add(acks)
            });
        };
        reset(&gpu, ended, 1);
        assert_eq!(gpu.state(COMPUTE), state as u32);
        assert!(gpu.get_engine(COMPUTE, engine::CTRL).enable());
        assert_eq!(
            gpu.engine64(COMPUTE, status::engine::CURRENT_FENCE),
            endless
        );
        reset(&gpu, endless, 2);
        assert_eq!(gpu.state(COMPUTE), EngineState::Disabled as u32);
        assert_eq!(
            gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE),
            ended
        );
        gpu.start_engine(COMPUTE);
    }
    assert_eq!(gpu.counter(Counter::EngineReset), 6);
}

#[test]
fn a_long_transfer_stops() {
    let mut gpu = Gpu::new();
    map_loop(&mut gpu);
    let (exec, _) = gpu.exec(
        COPY,
        &[Command::Fill {
            pattern: 3,
            address: LOOP_VA,
            bytes: 1 << 38,
        }],
    );
    gpu.start(COPY, &[exec]);
    // Time shows while it runs.
    gpu.wait_for("ticks", |gpu| gpu.ticks(COPY) > 200_000);
    assert_eq!(gpu.state(COPY), EngineState::Running as u32);
    gpu.invalidate(None);
    gpu.reset_engine(COPY);
}

#[test]
fn resets_are_counted_one_by_one() {
    let mut gpu = Gpu::new();
    for _ in 0..10 {
        gpu.set_engine(COPY, engine::CTRL::new().with_reset(true));
    }
    gpu.wait_for("all resets", |gpu| {
        gpu.engine32(COPY, status::engine::RESET_ACK) == 10
    });
    assert_eq!(gpu.counter(Counter::EngineReset), 10);
    // Reset and enable in one write is a reset.
    gpu.set_engine(COPY, engine::CTRL::new().with_reset(true).with_enable(true));
    gpu.wait_for("the reset", |gpu| {
        gpu.engine32(COPY, status::engine::RESET_ACK) == 11
    });
    assert_eq!(gpu.get_engine(COPY, engine::CTRL), engine::CTRL::new());
    gpu.start_engine(COPY);
    gpu.run(COPY, &[Command::Nop { words: 2 }]);
}

#[test]
fn the_completed_fence_outlives_an_engine_reset() {
    let mut gpu = Gpu::new();
    gpu.run_buffer(COMPUTE, &[]);
    let fence = gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE);
    let ticks = gpu.ticks(COMPUTE);
    gpu.reset_engine(COMPUTE);
    assert_eq!(
        gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE),
        fence
    );
    assert_eq!(gpu.ticks(COMPUTE), ticks);
}

/// Resets the adapter and waits for it.
fn reset_adapter(gpu: &Gpu) {
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("the adapter", |gpu| gpu.get(regs::DEVICE_STATUS).ready());
}

#[test]
fn an_adapter_reset_is_a_new_beginning() {
    let mut gpu = Gpu::new();
    for (job, state) in jobs(&mut gpu) {
        begin(&mut gpu, (job, state));
        gpu.invalidate(None);
        gpu.run_to_fault(
            COPY,
            &[Command::Fill {
                pattern: 0,
                address: 0,
                bytes: 4,
            }],
        );
        gpu.write(regs::SCRATCH, 77);
        gpu.set_vram64(DATA, 0x1122_3344_5566_7788);
        reset_adapter(&gpu);
        // The status page does not tell of it, and is not written any more.
        assert_eq!(gpu.state(COMPUTE), state as u32);
        let page = gpu.system_bytes(STATUS, 4096);
        for register in Decoded::all(2) {
            if let Reset::Value(value) = register.info().reset {
                assert_eq!(gpu.register(register), value, "{register:?}");
            }
        }
        assert_eq!(gpu.system_bytes(STATUS, 4096), page);
        // VRAM is lost, and not zero.
        let lost = gpu.vram64(DATA);
        assert!(lost != 0x1122_3344_5566_7788 && lost != 0, "{lost:#x}");
        gpu.set_up();
        gpu.wait_for("ticks from the start", |gpu| gpu.ticks(COMPUTE) == 0);
        gpu.wait_for("invalidations from the start", |gpu| {
            gpu.engine32(COMPUTE, status::engine::INVALIDATE_ACK) == 0
        });
        assert_eq!(gpu.fault_put(), 0);
        gpu.run_buffer(
            COMPUTE,
            &[Command::Signal {
                address: DATA_VA,
                value: 1,
            }],
        );
        jobs(&mut gpu);
    }
    assert_eq!(gpu.counter(Counter::DeviceReset), 3);
}

#[test]
fn time_starts_from_zero_without_a_status_page() {
    let mut gpu = Gpu::new();
    gpu.run_buffer(
        COPY,
        &[Command::Fill {
            pattern: 0,
            address: DATA_VA,
            bytes: 0x1_0000,
        }],
    );
    reset_adapter(&gpu);
    // Work before the driver has given the device a page to write its time to.
    gpu.start_engine(COPY);
    gpu.start(COPY, &[Command::Nop { words: 2 }]);
    gpu.wait_for("the end of the ring", |gpu| {
        gpu.get_engine(COPY, engine::HEAD).offset() == 8
    });
    reset_adapter(&gpu);
    gpu.set_up();
    gpu.run(COPY, &[Command::Nop { words: 2 }]);
    assert_eq!(gpu.ticks(COPY), 1);
}

#[test]
fn an_adapter_reset_keeps_the_count_of_engine_resets() {
    let mut gpu = Gpu::new();
    gpu.reset_engine(COPY);
    gpu.reset_engine(COPY);
    reset_adapter(&gpu);
    gpu.set_up();
    gpu.wait_for("the count", |gpu| {
        gpu.engine32(COPY, status::engine::RESET_ACK) == 2
    });
}

#[test]
fn registers_are_deaf_during_an_adapter_reset() {
    let gpu = Gpu::bare();
    // A reset upon a reset, and writes at once behind it: either deaf, or after the reset.
    for i in 0..50 {
        gpu.device.reset();
        gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
        gpu.write(regs::SCRATCH, i + 1);
        let scratch = gpu.read(regs::SCRATCH);
        assert!(scratch == 0 || scratch == i + 1);
        gpu.wait_for("the adapter", |gpu| gpu.device.is_ready());
    }
}

#[test]
fn a_device_can_be_dropped_at_work() {
    for index in 0..3 {
        let mut gpu = Gpu::new();
        let job = jobs(&mut gpu).swap_remove(index);
        begin(&mut gpu, job);
    }
}
