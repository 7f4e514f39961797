// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the manual promises to who waits for the device: set-up, resets, a device that cannot
//! write.

use skua_spec::address::BusAddr;
use skua_spec::command::Command;
use skua_spec::regs::{self, engine};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, BUS, COPY, ENGINES, RING_BYTES, STATUS, SYSTEM_BYTES, SYSTEM_FREE};

/// Bits of an engine's control register.
const ENABLE: u32 = 1;
const RESET: u32 = 2;

fn fence(fence: u64) -> Command {
    Command::Fence {
        fence,
        interrupt: true,
    }
}

fn reset_adapter(gpu: &Gpu) {
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.get(regs::DEVICE_STATUS).ready());
}

/// A page that was filled with ones shows what was written to it, and no more.
#[test]
fn a_block_can_be_told_from_what_stood_there() {
    let mut gpu = Gpu::new();
    gpu.run(COPY, &[fence(5)]);
    reset_adapter(&gpu);
    let resets = ENGINES.map(|engine| gpu.engine32(engine, status::engine::RESET_ACK));
    for offset in (0..status::SIZE).step_by(8) {
        gpu.set_system64(STATUS + offset, u64::MAX);
    }
    gpu.set(regs::STATUS::new().with_address(BusAddr(BUS + STATUS)));
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    // The device block is there when a register was read.
    gpu.read(regs::ID);
    assert_eq!(gpu.fault_put(), 0);
    assert_eq!(gpu.system32(STATUS + status::FAULTS_DROPPED), 0);
    for (engine, resets) in ENGINES.into_iter().zip(resets) {
        gpu.wait_for("a block", |gpu| {
            gpu.engine32(engine, status::engine::RESET_ACK) != u32::MAX
        });
        let wide = [
            status::engine::COMPLETED_FENCE,
            status::engine::TICKS,
            status::engine::CURRENT_FENCE,
        ];
        assert_eq!(wide.map(|field| gpu.engine64(engine, field)), [0; 3]);
        assert_eq!((gpu.head(engine), gpu.state(engine)), (0, 0));
        assert_eq!(gpu.engine32(engine, status::engine::INVALIDATE_ACK), 0);
        assert_eq!(gpu.engine32(engine, status::engine::RESET_ACK), resets);
    }
}

#[test]
fn an_enabled_status_page_stays_where_it_is() {
    let mut gpu = Gpu::new();
    gpu.set(regs::STATUS::new().with_address(BusAddr(BUS + SYSTEM_FREE)));
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    gpu.run(COPY, &[fence(5)]);
    assert_eq!(gpu.engine64(COPY, status::engine::COMPLETED_FENCE), 5);
    assert_eq!(gpu.system64(SYSTEM_FREE + status::ENGINE_SIZE), 0);
    // It moves when it was switched off.
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    gpu.wait_for("the new page", |gpu| {
        gpu.system64(SYSTEM_FREE + status::ENGINE_SIZE) == 5
    });
}

/// After an acknowledged reset ENABLE is heeded at once, and a doorbell may follow.
#[test]
fn enable_says_whether_it_was_heeded() {
    let mut gpu = Gpu::new();
    let control = engine::CTRL.of(COPY);
    for round in 0..100 {
        gpu.reset_engine(COPY);
        assert_eq!(gpu.read(control), 0, "round {round}");
        gpu.start_engine(COPY);
        assert_eq!(gpu.read(control), ENABLE, "round {round}");
        gpu.run(COPY, &[fence(round)]);
    }
    // A ring that cannot be is seen in the state; the engine is enabled and faulted.
    gpu.reset_engine(COPY);
    gpu.write(engine::RING_SIZE.of(COPY), RING_BYTES + 8);
    gpu.write(control, ENABLE);
    assert_eq!(gpu.read(control), ENABLE);
    gpu.wait_state(COPY, EngineState::Faulted);
}

#[test]
fn a_fence_of_0_is_written_like_any_other() {
    let mut gpu = Gpu::new();
    gpu.run(COPY, &[fence(5)]);
    gpu.run(COPY, &[fence(0)]);
    assert_eq!(gpu.engine64(COPY, status::engine::COMPLETED_FENCE), 0);
    assert_eq!(gpu.lines.count(1), 2);
    assert_eq!(gpu.counter(Counter::Fault), 0);
}

/// Where nothing answers at the status page the registers tell, and setting it up again has all of
/// it written.
#[test]
fn a_status_page_that_does_not_answer() {
    let mut gpu = Gpu::new();
    gpu.device.dma_unmap(BUS + STATUS, 4096);
    gpu.start(COPY, &[fence(5)]);
    gpu.wait_for("the registers", |gpu| {
        gpu.read(engine::HEAD.of(COPY)) == gpu.tail(COPY)
            && gpu.read(engine::STATUS.of(COPY)) == EngineState::Idle as u32
    });
    assert_ne!(gpu.counter(Counter::BusError), 0);
    // A fault whose record cannot be written counts as dropped.
    gpu.start(
        COPY,
        &[Command::Signal {
            address: 0,
            value: 0,
        }],
    );
    gpu.wait_for("the fault, and its interrupt", |gpu| {
        gpu.read(engine::STATUS.of(COPY)) == EngineState::Faulted as u32
            && gpu.counter(Counter::FaultInterrupt) == 1
    });
    gpu.device
        .dma_map(BUS + STATUS, 4096, gpu.backing(STATUS))
        .unwrap();
    assert_eq!(gpu.engine64(COPY, status::engine::COMPLETED_FENCE), 0);
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    gpu.wait_state(COPY, EngineState::Faulted);
    gpu.wait_for("the block", |gpu| {
        gpu.engine64(COPY, status::engine::COMPLETED_FENCE) == 5
    });
    assert_eq!(gpu.fault_put(), 0);
    assert_eq!(gpu.system32(STATUS + status::FAULTS_DROPPED), 1);
}

#[test]
fn without_bus_master_the_registers_tell() {
    let mut gpu = Gpu::new();
    for engine in ENGINES {
        gpu.wait_state(engine, EngineState::Idle);
    }
    let before = gpu.system_bytes(0, SYSTEM_BYTES as usize);
    gpu.device.set_bus_master(false);
    gpu.start(
        COPY,
        &[Command::Signal {
            address: 0,
            value: 0,
        }],
    );
    gpu.wait_for("the fault", |gpu| {
        gpu.read(engine::STATUS.of(COPY)) == EngineState::Faulted as u32
    });
    gpu.write(engine::CTRL.of(COPY), RESET);
    gpu.wait_for("the reset", |gpu| {
        gpu.read(engine::STATUS.of(COPY)) == EngineState::Disabled as u32
    });
    assert!(gpu.system_bytes(0, SYSTEM_BYTES as usize) == before);
}
