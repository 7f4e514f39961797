// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the manual promises to who waits for the device: set-up, resets, a device that cannot
//! write.

use skua_spec::address::BusAddr;
use skua_spec::command::Command;
use skua_spec::number::EngineIndex;
use skua_spec::regs::{self, engine};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, BUS, RING_BYTES, STATUS, SYSTEM_BYTES, SYSTEM_FREE};

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
    gpu.run(1, &[fence(5)]);
    reset_adapter(&gpu);
    let mut resets = [0; 2];
    for engine in 0..2 {
        resets[engine as usize] = gpu.engine32(engine, status::engine::RESET_ACK);
    }
    for offset in (0..status::SIZE).step_by(8) {
        gpu.set_system64(STATUS + offset, u64::MAX);
    }
    gpu.set(regs::STATUS::new().with_address(BusAddr(BUS + STATUS)));
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    // The device block is there when a register was read.
    gpu.read(regs::ID);
    assert_eq!(gpu.fault_put(), 0);
    assert_eq!(gpu.system32(STATUS + status::FAULTS_DROPPED), 0);
    for (engine, resets) in (0..).zip(resets) {
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
    gpu.run(1, &[fence(5)]);
    assert_eq!(gpu.engine64(1, status::engine::COMPLETED_FENCE), 5);
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
    let control = engine::CTRL.of(EngineIndex::ALL[1]);
    for round in 0..100 {
        gpu.reset_engine(1);
        assert_eq!(gpu.read(control), 0, "round {round}");
        gpu.start_engine(1);
        assert_eq!(gpu.read(control), ENABLE, "round {round}");
        gpu.run(1, &[fence(round)]);
    }
    // A ring that cannot be is seen in the state; the engine is enabled and faulted.
    gpu.reset_engine(1);
    gpu.write(engine::RING_SIZE.of(EngineIndex::ALL[1]), RING_BYTES + 8);
    gpu.write(control, ENABLE);
    assert_eq!(gpu.read(control), ENABLE);
    gpu.wait_state(1, EngineState::Faulted);
}

#[test]
fn a_fence_of_0_is_written_like_any_other() {
    let mut gpu = Gpu::new();
    gpu.run(1, &[fence(5)]);
    gpu.run(1, &[fence(0)]);
    assert_eq!(gpu.engine64(1, status::engine::COMPLETED_FENCE), 0);
    assert_eq!(gpu.lines.count(1), 2);
    assert_eq!(gpu.counter(Counter::Fault), 0);
}

/// Where nothing answers at the status page the registers tell, and setting it up again has all of
/// it written.
#[test]
fn a_status_page_that_does_not_answer() {
    let mut gpu = Gpu::new();
    gpu.device.dma_unmap(BUS + STATUS, 4096);
    gpu.start(1, &[fence(5)]);
    gpu.wait_for("the registers", |gpu| {
        gpu.read(engine::HEAD.of(EngineIndex::ALL[1])) == gpu.tail(1)
            && gpu.read(engine::STATUS.of(EngineIndex::ALL[1])) == EngineState::Idle as u32
    });
    assert_ne!(gpu.counter(Counter::BusError), 0);
    // A fault whose record cannot be written counts as dropped.
    gpu.start(
        1,
        &[Command::Signal {
            address: 0,
            value: 0,
        }],
    );
    gpu.wait_for("the fault, and its interrupt", |gpu| {
        gpu.read(engine::STATUS.of(EngineIndex::ALL[1])) == EngineState::Faulted as u32
            && gpu.counter(Counter::FaultInterrupt) == 1
    });
    gpu.device
        .dma_map(BUS + STATUS, 4096, gpu.backing(STATUS))
        .unwrap();
    assert_eq!(gpu.engine64(1, status::engine::COMPLETED_FENCE), 0);
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    gpu.wait_state(1, EngineState::Faulted);
    gpu.wait_for("the block", |gpu| {
        gpu.engine64(1, status::engine::COMPLETED_FENCE) == 5
    });
    assert_eq!(gpu.fault_put(), 0);
    assert_eq!(gpu.system32(STATUS + status::FAULTS_DROPPED), 1);
}

#[test]
fn without_bus_master_the_registers_tell() {
    let mut gpu = Gpu::new();
    for engine in 0..2 {
        gpu.wait_state(engine, EngineState::Idle);
    }
    let before = gpu.system_bytes(0, SYSTEM_BYTES as usize);
    gpu.device.set_bus_master(false);
    gpu.start(
        1,
        &[Command::Signal {
            address: 0,
            value: 0,
        }],
    );
    gpu.wait_for("the fault", |gpu| {
        gpu.read(engine::STATUS.of(EngineIndex::ALL[1])) == EngineState::Faulted as u32
    });
    gpu.write(engine::CTRL.of(EngineIndex::ALL[1]), RESET);
    gpu.wait_for("the reset", |gpu| {
        gpu.read(engine::STATUS.of(EngineIndex::ALL[1])) == EngineState::Disabled as u32
    });
    assert!(gpu.system_bytes(0, SYSTEM_BYTES as usize) == before);
}
