// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WAIT and SIGNAL, across engines and with the CPU.

use skua_gpu::vram;
use skua_spec::address::BusAddr;
use skua_spec::command::Command;
use skua_spec::mmu::Entry;
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, BUS, COMPUTE, COPY, DATA, DATA_VA, SYSTEM_FREE};

fn wait(value: u64) -> Command {
    Command::Wait {
        address: vram::BASE + DATA,
        value,
    }
}

#[test]
fn a_value_that_is_there_needs_no_waiting() {
    let mut gpu = Gpu::new();
    gpu.set_vram64(DATA, u64::MAX);
    gpu.run(COMPUTE, &[wait(0), wait(1), wait(u64::MAX)]);
    assert_eq!(gpu.ticks(COMPUTE), 3);
}

#[test]
fn unsigned_and_at_least() {
    let mut gpu = Gpu::new();
    gpu.set_vram64(DATA, 0x7fff_ffff_ffff_ffff);
    gpu.start(COMPUTE, &[wait(0x8000_0000_0000_0000)]);
    gpu.wait_state(COMPUTE, EngineState::Waiting);
    gpu.set_vram64(DATA, 0x8000_0000_0000_0001);
    gpu.wait_idle(COMPUTE);
    // Waiting costs no time.
    assert_eq!(gpu.ticks(COMPUTE), 1);
}

#[test]
fn engines_wait_for_each_other() {
    let mut gpu = Gpu::new();
    gpu.set_vram64(DATA, 0);
    gpu.set_vram64(DATA + 8, 0);
    for i in 1..=100 {
        let (ping, _) = gpu.exec(
            COMPUTE,
            &[
                Command::Signal {
                    address: DATA_VA,
                    value: i,
                },
                Command::Wait {
                    address: DATA_VA + 8,
                    value: i,
                },
            ],
        );
        let (pong, _) = gpu.exec(
            COPY,
            &[
                Command::Wait {
                    address: DATA_VA,
                    value: i,
                },
                Command::Signal {
                    address: DATA_VA + 8,
                    value: i,
                },
            ],
        );
        gpu.start(COPY, &[pong]);
        gpu.start(COMPUTE, &[ping]);
        gpu.wait_idle(COMPUTE);
        gpu.wait_idle(COPY);
    }
    assert_eq!(gpu.vram64(DATA + 8), 100);
}

#[test]
fn waiting_counts_nothing() {
    let counted = |there: bool| {
        let mut gpu = Gpu::new();
        gpu.set_vram64(DATA, u64::from(there));
        let (exec, _) = gpu.exec(
            COMPUTE,
            &[Command::Wait {
                address: DATA_VA,
                value: 1,
            }],
        );
        gpu.start(COMPUTE, &[exec]);
        if there {
            gpu.wait_idle(COMPUTE);
        } else {
            gpu.wait_state(COMPUTE, EngineState::Waiting);
        }
        // Each makes an engine that waits look again.
        for i in 0..50 {
            gpu.run_buffer(
                COPY,
                &[Command::Signal {
                    address: DATA_VA + 8,
                    value: i,
                }],
            );
        }
        gpu.set_vram64(DATA, 1);
        gpu.wait_idle(COMPUTE);
        gpu.wait_idle(COPY);
        [
            Counter::TlbHit,
            Counter::TlbMiss,
            Counter::VramRead,
            Counter::VramWrite,
        ]
        .map(|counter| gpu.counter(counter))
    };
    assert_eq!(counted(false), counted(true));
}

#[test]
fn a_value_in_system_memory() {
    let mut gpu = Gpu::new();
    let page = gpu.set_gart(3, Entry::gart(BusAddr(BUS + SYSTEM_FREE), true, true));
    gpu.set_system64(SYSTEM_FREE, 4);
    gpu.start(
        COPY,
        &[
            Command::Wait {
                address: page,
                value: 5,
            },
            Command::Signal {
                address: page + 8,
                value: 0x0102_0304_0506_0708,
            },
        ],
    );
    gpu.wait_state(COPY, EngineState::Waiting);
    gpu.set_system64(SYSTEM_FREE, 5);
    gpu.wait_idle(COPY);
    assert_eq!(
        gpu.system_bytes(SYSTEM_FREE + 8, 8),
        [8, 7, 6, 5, 4, 3, 2, 1]
    );
}

#[test]
fn a_waiting_engine_still_answers() {
    let mut gpu = Gpu::new();
    gpu.set_vram64(DATA, 0);
    gpu.start(COMPUTE, &[wait(1)]);
    gpu.wait_state(COMPUTE, EngineState::Waiting);
    for _ in 0..10 {
        gpu.invalidate(None);
    }
    assert_eq!(gpu.engine32(COMPUTE, status::engine::INVALIDATE_ACK), 10);
    assert_eq!(gpu.state(COMPUTE), EngineState::Waiting as u32);
    gpu.reset_engine(COMPUTE);
    assert_eq!(gpu.state(COMPUTE), EngineState::Disabled as u32);
}

#[test]
fn the_status_page_shows_the_packet_that_waits() {
    let mut gpu = Gpu::new();
    gpu.set_vram64(DATA, 0);
    let (exec, fence) = gpu.exec(
        COMPUTE,
        &[Command::Wait {
            address: DATA_VA,
            value: 1,
        }],
    );
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_state(COMPUTE, EngineState::Waiting);
    assert_eq!(gpu.engine64(COMPUTE, status::engine::CURRENT_FENCE), fence);
    assert_eq!(gpu.head(COMPUTE), 0);
    gpu.set_vram64(DATA, 1);
    gpu.wait_fence(COMPUTE, fence);
    assert_eq!(gpu.engine64(COMPUTE, status::engine::CURRENT_FENCE), 0);
}
