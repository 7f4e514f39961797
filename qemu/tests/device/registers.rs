// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every register: reset value, what can be written, what cannot; bad accesses.

use skua_gpu::{gart, vram};
use skua_spec::address::BusAddr;
use skua_spec::register::{Access, Half, Reset};
use skua_spec::regs::{self, Decoded, DeviceRegister, EngineRegister};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, BUS, COMPUTE, ENGINES, GART_TABLE, STATUS, VRAM_BYTES};

/// What the device is: offset and value of the registers that no reset changes.
const FIXED: [(u32, u64); 19] = [
    (0x0000, 0x4155_4b53),
    (0x0004, 0x0001_0008),
    (0x0008, 2),
    (0x000c, 48 | (48 << 8) | (16 << 16)),
    (0x0010, VRAM_BYTES),
    (0x0018, 0x8_0000_0000_0000),
    (0x0020, VRAM_BYTES),
    (0x0028, 0xc_0000_0000_0000),
    (0x0030, 65536),
    (0x0034, 1024 | (32 << 16)),
    (0x0038, 32768),
    (0x003c, 1_000_000_000),
    (0x0080, 0),
    (0x0084, 0),
    (0x0094, 0),
    (0x0098, 303_104),
    (0x009c, 0x1d),
    (0x1000, 0x5_0500),
    (0x1100, 0x5_0001),
];

/// All words that answer: offset, register, and which word of it.
fn words() -> Vec<(u32, Decoded, Half)> {
    Decoded::all(2)
        .flat_map(|register| {
            let low = (register.offset(), register, Half::Low);
            let high = (register.offset() + 4, register, Half::High);
            [low, high]
                .into_iter()
                .take(register.info().bits as usize / 32)
        })
        .collect()
}

#[test]
fn the_windows_are_no_bus_addresses() {
    const { assert!(vram::BASE >= 1 << 48 && gart::BASE >= 1 << 48) };
}

#[test]
fn reset_values() {
    let gpu = Gpu::bare();
    let mut fixed = FIXED.iter();
    for register in Decoded::all(2) {
        let expected = match register.info().reset {
            Reset::Value(value) => value,
            Reset::Nothing => 0,
            Reset::Fixed => {
                let (offset, value) = *fixed.next().unwrap();
                assert_eq!(register.offset(), offset);
                value
            }
        };
        assert_eq!(gpu.register(register), expected, "{register:?}");
    }
    assert_eq!(fixed.next(), None);
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), 0);
    assert_eq!(gpu.counter(Counter::RegisterRead), words().len() as u64);
}

#[test]
fn what_can_be_written() {
    let gpu = Gpu::bare();
    for (offset, register, half) in words() {
        // The control registers are left out: they start things. Without an enabled engine the
        // doorbells do not.
        if matches!(
            register,
            Decoded::Device(DeviceRegister::DEVICE_CTRL | DeviceRegister::STATUS_CTRL)
                | Decoded::Engine(_, EngineRegister::CTRL)
        ) {
            continue;
        }
        let before = gpu.register(register);
        let written = match register.info().access {
            Access::ReadWrite => half.of(register.info().held()),
            _ => 0,
        };
        for value in [0x1234_5678, 0x89ab, 0, u32::MAX] {
            gpu.write(offset, value);
            let expected = match register {
                // More than the window has are taken as the most.
                Decoded::Device(DeviceRegister::GART_PAGES) => value.min(65536),
                _ => (half.of(before) & !written) | (value & written),
            };
            // The other word stays as it is.
            let expected = half.replace(before, expected);
            assert_eq!(gpu.register(register), expected, "{register:?}");
        }
    }
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), 0);
}

#[test]
fn every_other_access_is_bad() {
    let gpu = Gpu::bare();
    let known: Vec<u32> = words().into_iter().map(|word| word.0).collect();
    let mut bad = 0;
    for offset in (0..0x1_0000u32).step_by(4).filter(|o| !known.contains(o)) {
        gpu.write(offset, u32::MAX);
        assert_eq!(gpu.read(offset), 0, "{offset:#x}");
        bad += 2;
    }
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), bad);
    // Sizes and alignments.
    gpu.write(regs::SCRATCH, 0xdead_beef);
    for (offset, bytes) in [(0, 1), (0, 2), (0, 8), (0, 3), (0, 0), (1, 4), (2, 4)] {
        let mut data = vec![0xaa; bytes];
        let offset = u64::from(u32::from(regs::SCRATCH)) + offset;
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
    gpu.write(regs::SNAPSHOT, 0);
    gpu.write(regs::SNAPSHOT, 0);
    // Everything but the fault records and the counters.
    gpu.set_system(STATUS, &[0xff; 0x210]);
    gpu.set(regs::STATUS::new().with_address(BusAddr(BUS + STATUS)));
    gpu.write(regs::STATUS_CTRL, 1);
    assert_eq!(gpu.read(regs::STATUS_CTRL), 1);
    assert_eq!(gpu.fault_put(), 0);
    assert_eq!(gpu.system32(STATUS + status::FAULTS_DROPPED), 0);
    assert_eq!(gpu.system32(STATUS + status::SNAPSHOT_ACK), 2);
    for engine in ENGINES {
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
    gpu.start(COMPUTE, &[command]);
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(0) == 1);
    gpu.write(regs::SNAPSHOT, 0);
    assert_eq!(gpu.system_bytes(STATUS, 4096), before);
    // What was missed is there when it is enabled again.
    gpu.write(regs::STATUS_CTRL, 1);
    gpu.wait_fence(COMPUTE, 99);
}

#[test]
fn the_status_page_address_is_latched() {
    let gpu = Gpu::new();
    gpu.set(regs::STATUS::new().with_address(BusAddr(BUS + 0x2000)));
    gpu.write(regs::STATUS_CTRL, 1);
    gpu.write(regs::SNAPSHOT, 0);
    assert_eq!(gpu.system32(STATUS + status::SNAPSHOT_ACK), 1);
    assert_eq!(gpu.system32(0x2000 + status::SNAPSHOT_ACK), 0);
    // The lowest twelve bits are ignored.
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.write(regs::STATUS, 0x2abc);
    assert_eq!(gpu.read(regs::STATUS), 0x2000);
    gpu.write(regs::STATUS_CTRL, 1);
    gpu.write(regs::SNAPSHOT, 0);
    assert_eq!(gpu.system32(0x2000 + status::SNAPSHOT_ACK), 2);
}

#[test]
fn a_status_page_that_nothing_answers_is_survived() {
    let mut gpu = Gpu::new();
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set(regs::STATUS::new().with_address(BusAddr(0x5000)));
    let before = gpu.counter(Counter::BusError);
    gpu.write(regs::STATUS_CTRL, 1);
    let command = skua_spec::command::Command::Fence {
        fence: 5,
        interrupt: true,
    };
    gpu.start(COMPUTE, &[command]);
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
    let of = |counter: Counter| gpu.system64(STATUS + status::counter(counter as u32));
    assert!(of(Counter::RegisterRead) >= 1);
    assert!(of(Counter::RegisterWrite) >= 10);
    assert_eq!(of(Counter::BadRegisterAccess), 1);
    gpu.write(regs::SNAPSHOT, 1);
    assert_eq!(gpu.system32(STATUS + status::SNAPSHOT_ACK), 2);
}

#[test]
fn the_gart_is_latched_by_its_size() {
    let gpu = Gpu::bare();
    gpu.set(regs::GART_TABLE::new().with_address(BusAddr(BUS + GART_TABLE)));
    gpu.write(regs::GART_PAGES, u32::MAX);
    assert_eq!(gpu.read(regs::GART_PAGES), 65536);
}
