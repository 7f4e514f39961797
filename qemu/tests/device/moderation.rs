// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts of packets' ends that wait for others (manual section 2).

use skua_gpu::options::{Options, Stepping};
use skua_gpu::vram;
use skua_spec::command::Command;
use skua_spec::preemption::Level;
use skua_spec::regs::engine;
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, COMPUTE, CONTEXT, DATA, DATA_VA};

use crate::preemption::{at_level, AREA};

/// Engine 0 with so much moderation, stepped by the test.
fn moderated(ticks: u16, ends: u8) -> Gpu {
    let mut gpu = Gpu::with_options(&Options {
        preemption: vec![at_level(Level::Instruction)],
        stepping: Stepping::Caller,
        ..Options::default()
    });
    gpu.set_save_area(CONTEXT, Some(AREA));
    gpu.set_engine(COMPUTE, engine::CTRL::new().with_reset(true));
    advance(&gpu, 0);
    let moderation = engine::MODERATION::new().with_ticks(ticks).with_ends(ends);
    gpu.set_engine(COMPUTE, moderation);
    gpu.start_engine(COMPUTE);
    gpu
}

fn advance(gpu: &Gpu, ticks: u64) {
    gpu.device.advance(ticks).expect("a clock");
}

/// Interrupts of ends.
fn raised(gpu: &Gpu) -> u32 {
    gpu.lines.count(0)
}

/// So many ends that ask for an interrupt.
fn fences(count: u64) -> Vec<Command> {
    let fence = |fence| Command::Fence {
        fence,
        interrupt: true,
    };
    (1..=count).map(fence).collect()
}

/// Has the engine reach so many ends, and go on with work for a long time.
fn ends_under_load(gpu: &mut Gpu, count: u64) {
    let fill = Command::Fill {
        pattern: 0,
        address: DATA_VA,
        bytes: 0x4_0000,
    };
    let (exec, _) = gpu.exec(COMPUTE, &[fill; 100]);
    let mut commands = fences(count);
    commands.push(exec);
    gpu.start(COMPUTE, &commands);
    while gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE) != count {
        advance(gpu, 1);
    }
}

#[test]
fn ends_wait_for_so_many_ticks() {
    let mut gpu = moderated(1000, 0);
    ends_under_load(&mut gpu, 1);
    let since = gpu.ticks(COMPUTE);
    advance(&gpu, 990);
    assert_eq!(raised(&gpu), 0, "since {since}");
    advance(&gpu, 10);
    assert_eq!(raised(&gpu), 1);
    // Any number of them.
    let mut gpu = moderated(10_000, 0);
    ends_under_load(&mut gpu, 30);
    assert_eq!(raised(&gpu), 0);
    advance(&gpu, 10_000);
    assert_eq!(
        (raised(&gpu), gpu.counter(Counter::EngineInterrupt)),
        (1, 1)
    );
    // And there is no other one.
    advance(&gpu, 100_000);
    assert_eq!(
        (raised(&gpu), gpu.state(COMPUTE)),
        (1, EngineState::Running as u32)
    );
}

#[test]
fn so_many_ends_wait_and_no_more() {
    let mut gpu = moderated(u16::MAX, 4);
    ends_under_load(&mut gpu, 11);
    assert_eq!(raised(&gpu), 2, "three wait");
    // Nothing is lost with the engine's work.
    gpu.set_engine(COMPUTE, engine::CTRL::new().with_reset(true));
    advance(&gpu, 0);
    assert_eq!(raised(&gpu), 3);
}

#[test]
fn an_engine_that_does_not_work_keeps_nobody_waiting() {
    let mut gpu = moderated(u16::MAX, 0);
    gpu.start(COMPUTE, &fences(3));
    advance(&gpu, u64::MAX);
    assert_eq!(raised(&gpu), 1, "idle");

    gpu.clear_vram(DATA, 8);
    let address = vram::BASE + DATA;
    let wait = Command::Wait { address, value: 1 };
    gpu.start(COMPUTE, &[fences(1)[0], wait]);
    advance(&gpu, u64::MAX);
    assert_eq!(gpu.state(COMPUTE), EngineState::Waiting as u32);
    assert_eq!(raised(&gpu), 2, "waiting");

    gpu.set_vram64(DATA, 1);
    let address = 8;
    let fault = Command::Wait { address, value: 1 };
    gpu.start(COMPUTE, &[fences(1)[0], fault]);
    advance(&gpu, u64::MAX);
    assert_eq!(gpu.state(COMPUTE), EngineState::Faulted as u32);
    assert_eq!(raised(&gpu), 3, "faulted");
}

/// What has stopped is idle; the interrupt for that is another one.
#[test]
fn an_engine_that_is_preempted_keeps_nobody_waiting() {
    let mut gpu = moderated(u16::MAX, 0);
    ends_under_load(&mut gpu, 3);
    gpu.ask_to_preempt(COMPUTE, 1);
    advance(&gpu, u64::MAX);
    assert_eq!(gpu.preempted(COMPUTE).fence, 1);
    // One for the record, and one for all that waited.
    assert_eq!(raised(&gpu), 2);
}

/// At first, and when nothing else was asked for.
#[test]
fn without_moderation_each_end_interrupts() {
    let mut gpu = moderated(0, 0);
    ends_under_load(&mut gpu, 3);
    assert_eq!(raised(&gpu), 3);
    let mut gpu = moderated(0, 4);
    ends_under_load(&mut gpu, 3);
    assert_eq!(raised(&gpu), 3);
}
