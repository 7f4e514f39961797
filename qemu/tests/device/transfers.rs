// SPDX-License-Identifier: GPL-2.0 OR MIT

//! FILL, COPY and COPY_2D.

use skua_gpu::vram;
use skua_spec::address::BusAddr;
use skua_spec::command::Command;
use skua_spec::fault::{Access, Reason};
use skua_spec::mmu::{Entry, Target};
use skua_spec::status::Counter;
use skua_spec::ticks;
use skua_testbed::{
    Gpu, BUS, COLD, COMPUTE, COPY, DATA, DATA_BYTES, DATA_VA, ENGINES, SYSTEM_FREE,
};

/// Bytes that differ from their neighbours.
fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

#[test]
fn fill_in_the_ring_and_in_a_buffer() {
    let mut gpu = Gpu::new();
    for engine in ENGINES {
        gpu.clear_vram(DATA, 0x4000);
        gpu.run(
            engine,
            &[Command::Fill {
                pattern: 0x0403_0201,
                address: vram::BASE + DATA + 4,
                bytes: 0x1000,
            }],
        );
        let bytes = gpu.vram_bytes(DATA, 0x1008);
        assert_eq!(bytes[..4], [0; 4]);
        assert!(bytes[4..0x1004].chunks(4).all(|w| w == [1, 2, 3, 4]));
        assert_eq!(bytes[0x1004..], [0; 4]);
        gpu.run_buffer(
            engine,
            &[
                Command::Fill {
                    pattern: 0xaabb_ccdd,
                    address: DATA_VA + 0x2ffc,
                    bytes: 8,
                },
                Command::Copy {
                    source: DATA_VA + 0x2ffd,
                    destination: DATA_VA + 1,
                    bytes: 3,
                },
            ],
        );
        assert_eq!(
            gpu.vram_bytes(DATA + 0x2ffc, 8),
            [0xdd, 0xcc, 0xbb, 0xaa, 0xdd, 0xcc, 0xbb, 0xaa]
        );
        assert_eq!(gpu.vram_bytes(DATA, 4), [0, 0xcc, 0xbb, 0xaa]);
        gpu.wait_for("the interrupt", |gpu| gpu.lines.count(engine.get()) == 1);
    }
    assert_eq!(gpu.counter(Counter::Packet), 2);
}

#[test]
fn sizes_of_zero_do_nothing() {
    let mut gpu = Gpu::new();
    // Not even the addresses are looked at.
    gpu.run_buffer(
        COPY,
        &[
            Command::Fill {
                pattern: 1,
                address: 4,
                bytes: 0,
            },
            Command::Copy {
                source: u64::MAX,
                destination: u64::MAX,
                bytes: 0,
            },
            Command::Copy2d {
                source: 1,
                destination: 2,
                bytes: 0,
                source_pitch: 0,
                destination_pitch: u32::MAX,
                rows: u32::MAX,
            },
            Command::Copy2d {
                source: 1,
                destination: 2,
                bytes: u32::MAX,
                source_pitch: 0,
                destination_pitch: 0,
                rows: 0,
            },
        ],
    );
    // EXEC and four commands; the buffer.
    assert_eq!(gpu.ticks(COPY), 5 + COLD);
    assert_eq!(gpu.counter(Counter::FillBytes), 0);
    assert_eq!(gpu.counter(Counter::CopyBytes), 0);
}

#[test]
fn ticks_of_transfers() {
    let mut gpu = Gpu::new();
    let (base, mut expected) = (vram::BASE + DATA, 0);
    for (bytes, ticks) in [(4, 1), (64, 1), (68, 2), (0x1_0000, 1024), (0x2_0004, 2049)] {
        // A start that is not aligned to anything more than it must be.
        gpu.run(
            COPY,
            &[Command::Fill {
                pattern: 0,
                address: base + 4092,
                bytes,
            }],
        );
        expected += 1 + ticks;
        assert_eq!(gpu.ticks(COPY), expected, "fill {bytes}");
        gpu.run(
            COPY,
            &[Command::Copy {
                source: base + 3,
                destination: base + 0x4_0001,
                bytes: bytes - 1,
            }],
        );
        expected += 1 + (bytes - 1).div_ceil(64);
        assert_eq!(gpu.ticks(COPY), expected, "copy {bytes}");
    }
    // Each row counts for itself.
    gpu.run(
        COPY,
        &[Command::Copy2d {
            source: base,
            destination: base + 0x4_0000,
            bytes: 65,
            source_pitch: 65,
            destination_pitch: 100,
            rows: 7,
        }],
    );
    expected += 1 + 14;
    assert_eq!(gpu.ticks(COPY), expected);
}

#[test]
fn copies_between_all_kinds_of_memory() {
    let mut gpu = Gpu::new();
    let data = noise(0x9000, 1);
    let system_va = 0x5000_0000;
    gpu.map_range(
        system_va,
        Target::System(BusAddr(BUS + SYSTEM_FREE)),
        0x2_0000,
        true,
    );
    for engine in ENGINES {
        for (source_at, destination_at) in [(0, 0), (1, 0), (0, 3), (4095, 4095), (2048, 77)] {
            gpu.set_vram(DATA, &vec![0; DATA_BYTES as usize]);
            gpu.set_vram(DATA + source_at, &data);
            gpu.set_system(SYSTEM_FREE, &vec![0; 0x2_0000]);
            let bytes = data.len() as u64;
            gpu.run_buffer(
                engine,
                &[
                    Command::Copy {
                        source: DATA_VA + source_at,
                        destination: system_va + destination_at,
                        bytes,
                    },
                    Command::Copy {
                        source: system_va + destination_at,
                        destination: system_va + 0x1_0000 + source_at,
                        bytes,
                    },
                    Command::Copy {
                        source: system_va + 0x1_0000 + source_at,
                        destination: DATA_VA + 0x4_0000 + destination_at,
                        bytes,
                    },
                ],
            );
            assert_eq!(
                gpu.vram_bytes(DATA + 0x4_0000 + destination_at, data.len()),
                data
            );
            assert_eq!(
                gpu.vram_bytes(DATA + 0x4_0000 + destination_at + bytes, 1),
                [0]
            );
            assert_eq!(
                gpu.system_bytes(SYSTEM_FREE + destination_at + bytes, 1),
                [0]
            );
            if destination_at > 0 {
                assert_eq!(gpu.system_bytes(SYSTEM_FREE + destination_at - 1, 1), [0]);
            }
        }
    }
    let moved = 2 * 5 * data.len() as u64;
    assert_eq!(gpu.counter(Counter::CopyBytes), 3 * moved);
    gpu.run_buffer(
        COPY,
        &[
            Command::Copy {
                source: DATA_VA,
                destination: DATA_VA + 0x1_0000,
                bytes: 0x1234,
            },
            Command::Copy {
                source: DATA_VA,
                destination: system_va,
                bytes: 0x123,
            },
        ],
    );
    // No two ways have the same count.
    let ways = [
        (Counter::CopyVramToVram, 0x1234),
        (Counter::CopyVramToSystem, moved + 0x123),
        (Counter::CopySystemToVram, moved),
        (Counter::CopySystemToSystem, moved),
    ];
    for (counter, bytes) in ways {
        assert_eq!(gpu.counter(counter), bytes, "{counter:?}");
    }
    assert!(gpu.counter(Counter::SystemRead) >= 2 * moved);
    assert!(gpu.counter(Counter::SystemWrite) >= 2 * moved);
    assert!(gpu.counter(Counter::VramRead) >= moved);
    assert!(gpu.counter(Counter::VramWrite) >= moved);
}

#[test]
fn through_the_gart() {
    let mut gpu = Gpu::new();
    let data = noise(0x1800, 2);
    gpu.set_system(SYSTEM_FREE, &data);
    // Pages that are not neighbours.
    let page = gpu.set_gart(8, Entry::gart(BusAddr(BUS + SYSTEM_FREE), false, true));
    gpu.set_gart(
        9,
        Entry::gart(BusAddr(BUS + SYSTEM_FREE + 0x1000), true, false),
    );
    gpu.run(
        COPY,
        &[Command::Copy {
            source: page,
            destination: vram::BASE + DATA,
            bytes: 0x1800,
        }],
    );
    assert_eq!(gpu.vram_bytes(DATA, 0x1800), data);
}

#[test]
fn pitched_rows() {
    let mut gpu = Gpu::new();
    let source = noise(0x3000, 3);
    gpu.set_vram(DATA, &source);
    gpu.set_vram(DATA + 0x4_0000, &[0xee; 0x4000]);
    let (bytes, from, to, rows) = (97, 131, 113, 70);
    gpu.run_buffer(
        COMPUTE,
        &[Command::Copy2d {
            source: DATA_VA + 5,
            destination: DATA_VA + 0x4_0007,
            bytes: bytes as u32,
            source_pitch: from as u32,
            destination_pitch: to as u32,
            rows: rows as u32,
        }],
    );
    let mut expected = vec![0xee; 0x4000];
    for row in 0..rows {
        let (s, d) = (5 + row * from, 7 + row * to);
        expected[d..d + bytes].copy_from_slice(&source[s..s + bytes]);
    }
    assert_eq!(gpu.vram_bytes(DATA + 0x4_0000, 0x4000), expected);
    // One row needs no pitch.
    gpu.run_buffer(
        COMPUTE,
        &[Command::Copy2d {
            source: DATA_VA,
            destination: DATA_VA + 0x5_0000,
            bytes: 0x2000,
            source_pitch: 0,
            destination_pitch: 0,
            rows: 1,
        }],
    );
    assert_eq!(gpu.vram_bytes(DATA + 0x5_0000, 0x2000), source[..0x2000]);
}

#[test]
fn copies_between_overlapping_ranges() {
    let mut gpu = Gpu::new();
    let data = noise(0x3_4000, 4);
    let bytes = 0x2_0000;
    for distance in [1, 3, 64, 4095, 4096, 5000, 0x1_2345] {
        for (from, to) in [(distance, 5), (5, distance)] {
            gpu.set_vram(DATA, &data);
            gpu.run_buffer(
                COPY,
                &[Command::Copy {
                    source: DATA_VA + from as u64,
                    destination: DATA_VA + to as u64,
                    bytes: bytes as u64,
                }],
            );
            let mut expected = data.clone();
            expected.copy_within(from..from + bytes, to);
            assert!(
                gpu.vram_bytes(DATA, data.len()) == expected,
                "{from} to {to}"
            );
        }
    }
    // A rectangle that moves in its picture: of equal pitches, whatever the rows have in common.
    let (row, pitch, rows) = (700, 1000, 100);
    for (from, to) in [
        (0, 1),
        (1, 0),
        (0, pitch),
        (pitch, 0),
        (3, 2 * pitch),
        (2 * pitch, 3),
    ] {
        gpu.set_vram(DATA, &data);
        gpu.run_buffer(
            COMPUTE,
            &[Command::Copy2d {
                source: DATA_VA + from as u64,
                destination: DATA_VA + to as u64,
                bytes: row as u32,
                source_pitch: pitch as u32,
                destination_pitch: pitch as u32,
                rows: rows as u32,
            }],
        );
        let mut expected = data.clone();
        for at in (0..rows).map(|r| r * pitch) {
            expected[to + at..][..row].copy_from_slice(&data[from + at..][..row]);
        }
        assert!(
            gpu.vram_bytes(DATA, data.len()) == expected,
            "{from} to {to}"
        );
    }
}

#[test]
fn what_was_written_before_a_fault_stays() {
    let mut gpu = Gpu::new();
    gpu.clear_vram(DATA + DATA_BYTES - 0x1000, 0x1000);
    let fault = gpu.run_buffer_to_fault(
        COPY,
        &[Command::Fill {
            pattern: u32::MAX,
            address: DATA_VA + DATA_BYTES - 0x1000,
            bytes: 0x3000,
        }],
    );
    let end = DATA_VA + DATA_BYTES;
    let expected = gpu.expect(COPY, Reason::NotPresent, Access::Write, end);
    assert_eq!(fault, expected);
    assert_eq!(
        gpu.vram_bytes(DATA + DATA_BYTES - 0x1000, 0x1000),
        [0xff; 0x1000]
    );
    // EXEC, FILL, and 64 times 64 bytes; the buffer, the last page, and what should have been next
    // to it.
    assert_eq!(gpu.ticks(COPY), 66 + 2 * COLD + ticks::TLB_MISS);
}

#[test]
fn the_largest_operands_end_at_the_first_hole() {
    let mut gpu = Gpu::new();
    let fault = gpu.run_buffer_to_fault(
        COPY,
        &[Command::Fill {
            pattern: 0,
            address: DATA_VA,
            bytes: (u64::MAX - DATA_VA) & !3,
        }],
    );
    assert_eq!(fault.address, DATA_VA + DATA_BYTES);
    gpu.reset_engine(COPY);
    gpu.start_engine(COPY);
    let fault = gpu.run_buffer_to_fault(
        COPY,
        &[Command::Copy2d {
            source: DATA_VA,
            destination: DATA_VA,
            bytes: 1,
            source_pitch: u32::MAX,
            destination_pitch: 1,
            rows: 1 << 16,
        }],
    );
    assert_eq!(fault.address, DATA_VA + u64::from(u32::MAX));
    gpu.reset_engine(COPY);
    gpu.start_engine(COPY);
    // In the ring, over the end of VRAM.
    let end = vram::BASE + skua_testbed::VRAM_BYTES;
    let fault = gpu.run_to_fault(
        COPY,
        &[Command::Fill {
            pattern: 0,
            address: end - 8,
            bytes: 1 << 40,
        }],
    );
    assert_eq!(fault.reason, Reason::AddressRange);
    assert_eq!(fault.address, end);
}
