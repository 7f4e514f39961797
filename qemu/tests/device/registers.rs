// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every register: reset value, what can be written, what cannot; bad accesses.

use skua_gpu::{gart, vram};
use skua_spec::regs::{self, engine, engine_reg};
use skua_spec::status::{self, Counter, EngineState};

use crate::harness::{Gpu, BUS, GART_TABLE, STATUS, VRAM_BYTES};

/// Offset, reset value, and the bits that read back what was written.
fn table() -> Vec<(u32, u32, u32)> {
    let mut table = vec![
        (regs::ID, 0x4155_4b53, 0),
        (regs::VERSION, 0x0001_0000, 0),
        (regs::CAPS, 2, 0),
        (regs::MMU_CAPS, 48 | (48 << 8) | (16 << 16), 0),
        (regs::VRAM_SIZE_LO, VRAM_BYTES as u32, 0),
        (regs::VRAM_SIZE_HI, 0, 0),
        (regs::VRAM_BASE_LO, 0, 0),
        (regs::VRAM_BASE_HI, 0x8_0000, 0),
        (regs::VRAM_VISIBLE_LO, VRAM_BYTES as u32, 0),
        (regs::VRAM_VISIBLE_HI, 0, 0),
        (regs::GART_BASE_LO, 0, 0),
        (regs::GART_BASE_HI, 0xc_0000, 0),
        (regs::GART_MAX_PAGES, 65536, 0),
        (regs::DISPATCH_CAPS, 1024 | (32 << 16), 0),
        (regs::SHARED_CAPS, 32768, 0),
        (regs::TICK_HZ, 1_000_000_000, 0),
        (regs::DEVICE_CTRL, 0, 0),
        (regs::DEVICE_STATUS, 1, 0),
        (regs::SCRATCH, 0, u32::MAX),
        (regs::STATUS_LO, 0, u32::MAX),
        (regs::STATUS_HI, 0, u32::MAX),
        (regs::STATUS_CTRL, 0, 1),
        (regs::GART_TABLE_LO, 0, u32::MAX),
        (regs::GART_TABLE_HI, 0, u32::MAX),
        (regs::GART_PAGES, 0, 0xffff),
        (regs::INVALIDATE, 0, 0),
        (regs::FAULT_GET, 0, u32::MAX),
        (regs::SNAPSHOT, 0, 0),
    ];
    for index in 0..2 {
        table.extend([
            (engine_reg(index, engine::INFO), index, 0),
            (engine_reg(index, engine::STATUS), 0, 0),
            (engine_reg(index, engine::RING_BASE_LO), 0, u32::MAX),
            (engine_reg(index, engine::RING_BASE_HI), 0, u32::MAX),
            (engine_reg(index, engine::RING_SIZE), 0, u32::MAX),
            (engine_reg(index, engine::HEAD), 0, 0),
            (engine_reg(index, engine::TAIL), 0, 0),
            (engine_reg(index, engine::DOORBELL), 0, 0),
            (engine_reg(index, engine::CTRL), 0, 0),
        ]);
    }
    table
}

#[test]
fn the_windows_are_no_bus_addresses() {
    const { assert!(vram::BASE >= 1 << 48 && gart::BASE >= 1 << 48) };
}

#[test]
fn reset_values() {
    let gpu = Gpu::bare();
    for (offset, value, _) in table() {
        assert_eq!(gpu.read(offset), value, "{offset:#x}");
    }
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), 0);
    assert_eq!(gpu.counter(Counter::RegisterRead), table().len() as u64);
}

#[test]
fn what_can_be_written() {
    // The control registers are left out: they start things. Without an enabled engine the
    // doorbells do not.
    let skip = |offset| {
        matches!(offset, regs::DEVICE_CTRL | regs::STATUS_CTRL)
            || (offset >= regs::ENGINE_BASE && offset % regs::ENGINE_STRIDE == engine::CTRL)
    };
    let gpu = Gpu::bare();
    for (offset, reset, mask) in table().into_iter().filter(|r| !skip(r.0)) {
        for value in [0x1234_5678, 0x89ab, 0] {
            gpu.write(offset, value);
            let expected = match offset {
                // More than the window has are taken as the most.
                regs::GART_PAGES => value.min(65536),
                _ => (reset & !mask) | (value & mask),
            };
            assert_eq!(gpu.read(offset), expected, "{offset:#x}");
        }
    }
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), 0);
}

#[test]
fn every_other_access_is_bad() {
    let gpu = Gpu::bare();
    let known: Vec<u32> = table().into_iter().map(|r| r.0).collect();
    let mut bad = 0;
    for offset in (0..0x1_0000).step_by(4).filter(|o| !known.contains(o)) {
        gpu.write(offset, u32::MAX);
        assert_eq!(gpu.read(offset), 0, "{offset:#x}");
        bad += 2;
    }
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), bad);
    // Sizes and alignments.
    gpu.write(regs::SCRATCH, 0xdead_beef);
    for (offset, bytes) in [(0, 1), (0, 2), (0, 8), (0, 3), (0, 0), (1, 4), (2, 4)] {
        let mut data = vec![0xaa; bytes];
        let offset = u64::from(regs::SCRATCH) + offset;
        gpu.device.write(offset, &data);
        gpu.device.read(offset, &mut data);
        assert_eq!(data, vec![0; bytes]);
        bad += 2;
        assert_eq!(gpu.counter(Counter::BadRegisterAccess), bad);
    }
    for offset in [0x1_0000, u64::MAX - 3, 0x1_0000_0048] {
        gpu.device.write(offset, &[0xff; 4]);
        gpu.device.read(offset, &mut [0; 4]);
        bad += 2;
        assert_eq!(gpu.counter(Counter::BadRegisterAccess), bad);
    }
    assert_eq!(gpu.read(regs::SCRATCH), 0xdead_beef);
}

#[test]
fn enabling_the_status_page_writes_it() {
    let gpu = Gpu::bare();
    // Everything but the fault records and the counters.
    gpu.set_system(STATUS, &[0xff; 0x210]);
    gpu.set_pair(regs::STATUS_LO, BUS + STATUS);
    gpu.write(regs::STATUS_CTRL, 1);
    assert_eq!(gpu.read(regs::STATUS_CTRL), 1);
    assert_eq!(gpu.fault_put(), 0);
    assert_eq!(gpu.system32(STATUS + status::FAULTS_DROPPED), 0);
    for engine in 0..2 {
        gpu.wait_for("the engine's block", |gpu| {
            gpu.engine32(engine, status::engine::RESET_ACK) == 0
        });
        for field in [
            status::engine::COMPLETED_FENCE,
            status::engine::TICKS,
            status::engine::CURRENT_FENCE,
        ] {
            assert_eq!(gpu.engine64(engine, field), 0);
        }
        assert_eq!(gpu.head(engine), 0);
        assert_eq!(gpu.state(engine), EngineState::Disabled as u32);
        assert_eq!(gpu.engine32(engine, status::engine::INVALIDATE_ACK), 0);
    }
}

#[test]
fn a_disabled_status_page_is_not_written() {
    let mut gpu = Gpu::new();
    gpu.write(regs::STATUS_CTRL, 0);
    let before = gpu.system_bytes(STATUS, 4096);
    let command = skua_spec::command::Command::Fence {
        fence: 99,
        interrupt: true,
    };
    gpu.start(0, &[command]);
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(0) == 1);
    gpu.write(regs::SNAPSHOT, 0);
    assert_eq!(gpu.system_bytes(STATUS, 4096), before);
    // What was missed is there when it is enabled again.
    gpu.write(regs::STATUS_CTRL, 1);
    gpu.wait_fence(0, 99);
}

#[test]
fn the_status_page_address_is_latched() {
    let gpu = Gpu::new();
    gpu.set_pair(regs::STATUS_LO, BUS + 0x2000);
    gpu.write(regs::STATUS_CTRL, 1);
    gpu.write(regs::SNAPSHOT, 0);
    assert_eq!(gpu.system32(STATUS + status::SNAPSHOT_ACK), 1);
    assert_eq!(gpu.system32(0x2000 + status::SNAPSHOT_ACK), 0);
    // The lowest twelve bits are ignored.
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set_pair(regs::STATUS_LO, BUS + 0x2abc);
    gpu.write(regs::STATUS_CTRL, 1);
    gpu.write(regs::SNAPSHOT, 0);
    assert_eq!(gpu.system32(0x2000 + status::SNAPSHOT_ACK), 2);
}

#[test]
fn a_status_page_that_nothing_answers_is_survived() {
    let mut gpu = Gpu::new();
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set_pair(regs::STATUS_LO, 0x5000);
    let before = gpu.counter(Counter::BusError);
    gpu.write(regs::STATUS_CTRL, 1);
    let command = skua_spec::command::Command::Fence {
        fence: 5,
        interrupt: true,
    };
    gpu.start(0, &[command]);
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(0) == 1);
    assert!(gpu.counter(Counter::BusError) > before);
}

#[test]
fn a_snapshot_has_every_counter() {
    let gpu = Gpu::new();
    gpu.read(regs::ID);
    gpu.device.read(2, &mut [0; 4]);
    gpu.write(regs::SNAPSHOT, 1);
    assert_eq!(gpu.system32(STATUS + status::SNAPSHOT_ACK), 1);
    let of = |counter: Counter| gpu.system64(STATUS + status::COUNTERS + counter as u64 * 8);
    assert!(of(Counter::RegisterRead) >= 1);
    assert!(of(Counter::RegisterWrite) >= 10);
    assert_eq!(of(Counter::BadRegisterAccess), 1);
    gpu.write(regs::SNAPSHOT, 1);
    assert_eq!(gpu.system32(STATUS + status::SNAPSHOT_ACK), 2);
}

#[test]
fn the_gart_is_latched_by_its_size() {
    let gpu = Gpu::bare();
    gpu.set_pair(regs::GART_TABLE_LO, BUS + GART_TABLE);
    gpu.write(regs::GART_PAGES, u32::MAX);
    assert_eq!(gpu.read(regs::GART_PAGES), 65536);
}
