// SPDX-License-Identifier: GPL-2.0 OR MIT

//! FILL, COPY and COPY_2D.

use skua_gpu::vram;
use skua_spec::command::Command;
use skua_spec::status::Counter;

use crate::harness::{Gpu, DATA, DATA_VA};

#[test]
fn fill_in_the_ring_and_in_a_buffer() {
    let mut gpu = Gpu::new();
    for engine in 0..2 {
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
        assert_eq!(gpu.lines.count(engine), 1);
    }
    assert_eq!(gpu.counter(Counter::Packet), 2);
}
