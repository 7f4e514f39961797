// SPDX-License-Identifier: GPL-2.0 OR MIT

//! INVALIDATE in a ring: all engines drop translations, whatever they do.

use skua_asm::assemble;
use skua_gpu::engine::core::Outcome;
use skua_gpu::vram;
use skua_spec::address::GpuPhys;
use skua_spec::command::Command;
use skua_spec::mmu::{PageSize, Target};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{new_core, Gpu, Stepped, ASID, COMPUTE, COPY, DATA, DATA_VA, ENGINES, OTHER};

/// A page that is moved.
const VA: u64 = 0x1234_5678_9000;
/// Offsets in VRAM of where the page was, and of where it is.
const OLD: u64 = DATA + 0x1_0000;
const NEW: u64 = DATA + 0x2_0000;

fn in_vram(offset: u64) -> Target {
    Target::Vram(GpuPhys(vram::BASE + offset))
}

fn signal(value: u64) -> Command {
    Command::Signal { address: VA, value }
}

fn fence(fence: u64) -> Command {
    Command::Fence {
        fence,
        interrupt: false,
    }
}

/// The page is at [`OLD`] and both engines know it; the tables have it at [`NEW`].
fn moved() -> Gpu {
    let mut gpu = Gpu::new();
    gpu.set_vram64(OLD, 0);
    gpu.set_vram64(NEW, 0);
    gpu.map_page(VA, in_vram(OLD), PageSize::Size4K, true);
    for engine in ENGINES {
        gpu.run_buffer(engine, &[signal(1)]);
    }
    gpu.map_page(VA, in_vram(NEW), PageSize::Size4K, true);
    gpu
}

#[test]
fn all_engines_drop_what_it_names() {
    for (asid, goes) in [
        (Some(ASID), true),
        (None, true),
        (Some(OTHER), false),
        (Some(Asid::SYSTEM), false),
    ] {
        for by in ENGINES {
            let mut gpu = moved();
            gpu.run(by, &[Command::Invalidate { asid }]);
            for engine in ENGINES {
                gpu.set_vram64(OLD, 1);
                gpu.set_vram64(NEW, 1);
                gpu.run_buffer(engine, &[signal(2)]);
                let expected = if goes { (1, 2) } else { (2, 1) };
                let found = (gpu.vram64(OLD), gpu.vram64(NEW));
                assert_eq!(found, expected, "{asid:?} by {by}, on {engine}");
            }
            assert_eq!(gpu.counter(Counter::Invalidate), 1);
            // That one counts what INVALIDATE, the register, has asked for.
            for engine in ENGINES {
                assert_eq!(gpu.engine32(engine, status::engine::INVALIDATE_ACK), 0);
            }
        }
    }
}

/// A program that counts up at [`VA`] for ever.
fn counting(gpu: &mut Gpu) -> Command {
    let program = assemble(&format!(
        "mov r2, {}\n mov r3, {}
        again: add r0, r0, 1
            st.32 [r2], r0
            bra again",
        VA as u32,
        VA >> 32
    ))
    .unwrap();
    gpu.set_vram(DATA, &program.bytes());
    Command::Dispatch(program.dispatch(DATA_VA, [1; 3], |_| None).unwrap())
}

#[test]
fn a_fence_behind_it_says_that_a_running_program_has_moved() {
    let mut gpu = moved();
    let dispatch = counting(&mut gpu);
    let (exec, _) = gpu.exec(COMPUTE, &[dispatch]);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_for("a store to the old page", |gpu| gpu.vram32(OLD) > 1000);
    gpu.start(COPY, &[Command::Invalidate { asid: Some(ASID) }, fence(77)]);
    gpu.wait_fence(COPY, 77);
    gpu.set_vram64(OLD, 0);
    let at = gpu.vram32(NEW);
    gpu.wait_for("stores to the new page", |gpu| {
        gpu.vram32(NEW).wrapping_sub(at) > 100_000
    });
    assert_eq!(gpu.vram64(OLD), 0);
    gpu.reset_engine(COMPUTE);
}

#[test]
fn it_ends_whatever_the_other_engine_does() {
    let mut gpu = moved();
    let mut next = 1000;
    let mut invalidate = |gpu: &mut Gpu, by: EngineIndex| {
        next += 1;
        gpu.start(by, &[Command::Invalidate { asid: None }, fence(next)]);
        gpu.wait_fence(by, next);
    };
    // Idle.
    invalidate(&mut gpu, COPY);
    // In WAIT.
    gpu.set_vram64(DATA + 0x3000, 0);
    let wait = Command::Wait {
        address: DATA_VA + 0x3000,
        value: 1,
    };
    let (exec, _) = gpu.exec(COMPUTE, &[wait]);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_state(COMPUTE, EngineState::Waiting);
    invalidate(&mut gpu, COPY);
    assert_eq!(gpu.state(COMPUTE), EngineState::Waiting as u32);
    // Disabled.
    gpu.reset_engine(COMPUTE);
    invalidate(&mut gpu, COPY);
    gpu.start_engine(COMPUTE);
    // Faulted.
    gpu.run_words_to_fault(COMPUTE, &[0xff00_0002, 0]);
    invalidate(&mut gpu, COPY);
    assert_eq!(gpu.state(COMPUTE), EngineState::Faulted as u32);
    // The other way round.
    invalidate_while_one_fills(&mut gpu);
}

/// The compute engine asks an engine that has a transfer without end.
fn invalidate_while_one_fills(gpu: &mut Gpu) {
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    let fill = Command::Fill {
        pattern: 1,
        address: DATA_VA + 0x4_0000,
        bytes: 0x4_0000,
    };
    let (exec, last) = gpu.exec(COPY, &vec![fill; 1000]);
    gpu.start(COPY, &[exec]);
    gpu.start(COMPUTE, &[Command::Invalidate { asid: None }, fence(5)]);
    gpu.wait_fence(COMPUTE, 5);
    gpu.wait_fence(COPY, last);
}

#[test]
fn engines_that_invalidate_each_other_both_go_on() {
    let mut gpu = moved();
    for round in 0..20 {
        for engine in ENGINES {
            let asid = (round % 2 == 0).then_some(ASID);
            gpu.push(engine, &[Command::Invalidate { asid }; 100]);
            gpu.push(engine, &[fence(100 + round)]);
        }
        gpu.doorbell(COMPUTE);
        gpu.doorbell(COPY);
        for engine in ENGINES {
            gpu.wait_fence(engine, 100 + round);
            gpu.wait_idle(engine);
        }
    }
    assert_eq!(gpu.counter(Counter::Invalidate), 20 * 2 * 100);
}

#[test]
fn resets_while_it_is_under_way() {
    let mut gpu = moved();
    for round in 0..50 {
        for engine in ENGINES {
            gpu.start(engine, &[Command::Invalidate { asid: None }; 100]);
        }
        if round % 10 == 9 {
            gpu.device.reset();
            gpu.wait_for("the reset", |gpu| gpu.device.is_ready());
            gpu.set_up();
            continue;
        }
        let (reset, other) = (ENGINES[round % 2], ENGINES[1 - round % 2]);
        gpu.reset_engine(reset);
        gpu.wait_idle(other);
        gpu.start_engine(reset);
    }
    for engine in ENGINES {
        gpu.run(engine, &[Command::Invalidate { asid: None }]);
    }
}

#[test]
fn it_does_not_end_before_the_others_have_answered() {
    let mut stepped = Stepped::new();
    stepped.start(COPY, &[Command::Invalidate { asid: Some(ASID) }, fence(9)]);
    let step =
        |stepped: &mut Stepped| stepped.with_memory(COPY, |core, memory| core.step(memory, 10));
    assert_eq!(step(&mut stepped), Outcome::Busy);
    for _ in 0..3 {
        assert_eq!(step(&mut stepped), Outcome::Invalidate(Some(ASID)));
        // Another core asks, and drops what it has of its own.
        let progress = stepped.cores[1].take_progress();
        stepped.cores[1] = new_core(COPY);
        stepped.cores[1].set_progress(progress);
    }
    let shown = stepped.cores[1].shown();
    assert_eq!((shown.head, shown.completed_fence), (0, 0));
    assert_eq!(shown.state, EngineState::Running);
    stepped.cores[1].invalidated();
    assert_eq!(step(&mut stepped), Outcome::Busy);
    assert_eq!(stepped.cores[1].shown().head, 8);
    // An answer that nobody waits for is no answer to the next one.
    stepped.cores[1].invalidated();
    assert_eq!(step(&mut stepped), Outcome::Completed { interrupt: false });
    stepped.start(COPY, &[Command::Invalidate { asid: None }]);
    stepped.cores[1].invalidated();
    assert_eq!(step(&mut stepped), Outcome::Invalidate(None));
    assert_eq!(stepped.tally.get(Counter::Invalidate), 2);
}
