// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rings: set-up, the way round, doorbells.

use skua_gpu::{gart, vram};
use skua_spec::address::BusAddr;
use skua_spec::address::GpuPhys;
use skua_spec::command::Command;
use skua_spec::fault::{Access, Reason, Record, Space};
use skua_spec::mmu::Entry;
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::regs::engine;
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, BUS, COMPUTE, COPY, DATA, RING_BYTES, SYSTEM_FREE, VRAM_BYTES};

fn bad_ring(engine: EngineIndex, command: u64) -> Record {
    Record {
        engine,
        reason: Reason::BadRing,
        asid: Asid::SYSTEM,
        context_id: 0,
        access: Access::None,
        detail: 0,
        space: Space::None,
        address: 0,
        fence: 0,
        command,
        pc: Record::NO_PC,
    }
}

fn enable(gpu: &Gpu, engine: EngineIndex, base: u64, size: u32) {
    gpu.set_engine(engine, engine::RING_BASE::new().with_address(GpuPhys(base)));
    gpu.set_engine(engine, engine::RING_SIZE::new().with_bytes(size));
    gpu.set_engine(engine, engine::CTRL::new().with_enable(true));
}

#[test]
fn rings_that_break_the_rules() {
    let mut gpu = Gpu::new();
    let gart_end = gart::BASE + u64::from(gart::MAX_PAGES) * 4096;
    for (base, size) in [
        (vram::BASE, 0),
        (vram::BASE, 0x800),
        (vram::BASE, 0x1800),
        (vram::BASE, 0x20_0000),
        (vram::BASE, u32::MAX),
        (vram::BASE + 8, 0x1000),
        (vram::BASE + VRAM_BYTES - 0x1000, 0x2000),
        (vram::BASE - 0x1000, 0x1000),
        (0, 0x1000),
        (BUS, 0x1000),
        (gart_end - 0x1000, 0x2000),
        (u64::MAX - 0xfff, 0x1000),
    ] {
        gpu.reset_engine(COPY);
        enable(&gpu, COPY, base, size);
        assert_eq!(gpu.wait_fault(), bad_ring(COPY, 0), "{base:#x} {size:#x}");
        assert_eq!(gpu.state(COPY), EngineState::Faulted as u32);
        // Faulted is enabled: it takes a reset.
        assert!(gpu.get_engine(COPY, engine::CTRL).enable());
    }
    for (base, size) in [
        (vram::BASE + VRAM_BYTES - 0x10_0000, 0x10_0000),
        (gart_end - 0x1000, 0x1000),
        (gart::BASE, 0x8000),
    ] {
        gpu.reset_engine(COPY);
        enable(&gpu, COPY, base, size);
        gpu.wait_state(COPY, EngineState::Idle);
    }
}

#[test]
fn many_times_round() {
    let mut gpu = Gpu::new();
    // 4096 is no multiple of 24: every round ends with padding.
    for i in 1..=1000_u64 {
        let command = Command::Signal {
            address: vram::BASE + DATA,
            value: i,
        };
        gpu.run(COMPUTE, &[command]);
        assert_eq!(gpu.vram64(DATA), i);
        assert_eq!(gpu.head(COMPUTE), gpu.tail(COMPUTE));
    }
    // Several commands for one doorbell, over the end.
    let mut last = 0;
    for i in 0..200_u64 {
        let commands: Vec<_> = (0..20)
            .map(|j| Command::Signal {
                address: vram::BASE + DATA + j * 8,
                value: i + j,
            })
            .collect();
        gpu.run(COMPUTE, &commands);
        for j in 0..20 {
            assert_eq!(gpu.vram64(DATA + j * 8), i + j);
        }
        last = gpu.head(COMPUTE);
    }
    assert_eq!(gpu.get_engine(COMPUTE, engine::HEAD).offset(), last);
    assert_eq!(gpu.get_engine(COMPUTE, engine::TAIL).offset(), last);
    assert!(gpu.counter(Counter::RingCommand) >= 5000);
}

#[test]
fn a_ring_in_system_memory() {
    let mut gpu = Gpu::new();
    // Two pages of the window, the wrong way round in memory.
    gpu.set_gart(
        4,
        Entry::gart(BusAddr(BUS + SYSTEM_FREE + 0x1000), false, true),
    );
    gpu.set_gart(5, Entry::gart(BusAddr(BUS + SYSTEM_FREE), false, true));
    gpu.reset_engine(COMPUTE);
    enable(&gpu, COMPUTE, gart::BASE + 4 * 4096, 0x2000);
    let signal = Command::Signal {
        address: vram::BASE + DATA,
        value: 77,
    };
    // The signal crosses from one page to the other.
    let pad = Command::Nop { words: 1022 };
    let put = |offset: u64, words: &[u32]| {
        for (i, word) in (0..).zip(words) {
            let at = offset + i * 4;
            let page = if at < 0x1000 { 0x1000 } else { 0 };
            gpu.set_system(SYSTEM_FREE + page + at % 0x1000, &word.to_le_bytes());
        }
    };
    put(0, &pad.encode().words()[..1]);
    put(1022 * 4, signal.encode().words());
    gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(1028 * 4));
    gpu.wait_for("the signal", |gpu| gpu.vram64(DATA) == 77);
}

#[test]
fn doorbells_that_break_the_rules() {
    let mut gpu = Gpu::new();
    for tail in [4, 12, RING_BYTES, RING_BYTES + 8, u32::MAX, 1 << 31] {
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
        gpu.run(COMPUTE, &[Command::Nop { words: 2 }]);
        gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(tail));
        assert_eq!(gpu.wait_fault(), bad_ring(COMPUTE, 8), "{tail:#x}");
        assert_eq!(gpu.head(COMPUTE), 8);
        assert_eq!(gpu.get_engine(COMPUTE, engine::TAIL).offset(), tail);
        // A faulted engine hears no doorbell.
        gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(0x10));
        assert_eq!(gpu.get_engine(COMPUTE, engine::TAIL).offset(), tail);
        gpu.invalidate(None);
        assert_eq!(gpu.state(COMPUTE), EngineState::Faulted as u32);
    }
    // The other engine has not noticed.
    gpu.run(COPY, &[Command::Nop { words: 2 }]);
}

#[test]
fn a_doorbell_without_an_engine() {
    let mut gpu = Gpu::new();
    gpu.reset_engine(COMPUTE);
    gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(8));
    assert_eq!(gpu.get_engine(COMPUTE, engine::TAIL).offset(), 0);
    gpu.invalidate(None);
    assert_eq!(gpu.state(COMPUTE), EngineState::Disabled as u32);
    // An engine that is enabled afterwards starts with an empty ring.
    gpu.start_engine(COMPUTE);
    gpu.wait_state(COMPUTE, EngineState::Idle);
    assert_eq!(gpu.head(COMPUTE), 0);
    // A device without this engine.
    gpu.set_engine(EngineIndex::ALL[5], engine::DOORBELL::new().with_tail(8));
    assert_eq!(gpu.counter(Counter::BadRegisterAccess), 1);
}

#[test]
fn enabling_twice_changes_nothing() {
    let mut gpu = Gpu::new();
    gpu.run(COMPUTE, &[Command::Nop { words: 2 }]);
    enable(&gpu, COMPUTE, vram::BASE + DATA, 0x2000);
    gpu.set_engine(COMPUTE, engine::CTRL::new());
    gpu.run(COMPUTE, &[Command::Nop { words: 2 }]);
    assert_eq!(gpu.head(COMPUTE), 16);
    assert!(gpu.get_engine(COMPUTE, engine::CTRL).enable());
}

#[test]
fn a_command_never_runs_over_tail_or_end() {
    let mut gpu = Gpu::new();
    let fill = Command::Fill {
        pattern: 1,
        address: vram::BASE + DATA,
        bytes: 4,
    };
    gpu.clear_vram(DATA, 16);
    // Its last pair of words is behind the tail.
    gpu.push(COMPUTE, &[fill]);
    gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(16));
    let fault = gpu.wait_fault();
    assert_eq!((fault.reason, fault.command), (Reason::BadLength, 0));
    // It would go round.
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    let ring = gpu.ring_at(COMPUTE);
    gpu.run(
        COMPUTE,
        &[Command::Nop {
            words: (RING_BYTES / 4 - 4) as u16,
        }],
    );
    for (i, word) in (0..).zip(fill.encode().words()) {
        let at = (RING_BYTES - 16 + i * 4) % RING_BYTES;
        gpu.set_vram(ring + u64::from(at), &word.to_le_bytes());
    }
    gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(8));
    let fault = gpu.wait_fault();
    assert_eq!(fault.reason, Reason::BadLength);
    assert_eq!(fault.command, u64::from(RING_BYTES - 16));
    assert_eq!(gpu.vram32(DATA), 0);
}

#[test]
fn the_longest_nop() {
    let mut gpu = Gpu::new();
    gpu.reset_engine(COMPUTE);
    enable(&gpu, COMPUTE, vram::BASE + DATA, 0x10_0000);
    let nop = Command::Nop { words: 0xfffe };
    gpu.set_vram(DATA, &nop.encode().words()[0].to_le_bytes());
    gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(0xfffe * 4));
    gpu.wait_for("the end", |gpu| gpu.head(COMPUTE) == 0xfffe * 4);
    gpu.wait_state(COMPUTE, EngineState::Idle);
    assert_eq!(gpu.ticks(COMPUTE), 1);
}

#[test]
fn fences_in_the_ring() {
    let mut gpu = Gpu::new();
    gpu.run(
        COPY,
        &[
            Command::Fence {
                fence: u64::MAX - 1,
                interrupt: false,
            },
            Command::Fence {
                fence: u64::MAX,
                interrupt: true,
            },
        ],
    );
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(1) == 1);
    assert_eq!(
        gpu.engine64(COPY, status::engine::COMPLETED_FENCE),
        u64::MAX
    );
    assert_eq!(gpu.counter(Counter::EngineInterrupt), 1);
    assert_eq!(gpu.counter(Counter::Packet), 0);
    assert_eq!(gpu.lines.count(0), 0);
}
