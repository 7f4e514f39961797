// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bytes as changes to page tables, the GART's table and the context, under a few commands.

#![no_main]

#[path = "../session.rs"]
mod session;

use libfuzzer_sys::fuzz_target;
use skua_gpu::gart;
use skua_spec::command::Command;
use skua_testbed::{COMPUTE, CONTEXT, COPY, DATA_VA, GART_TABLE, TABLES};

fuzz_target!(|data: &[u8]| session::with(|stepped| {
    // Ten bytes: which word, and what is put there.
    for change in data.chunks_exact(10) {
        let at = u64::from(u16::from_le_bytes([change[0], change[1]]));
        let mut value = [0; 8];
        value.copy_from_slice(&change[2..]);
        let value = u64::from_le_bytes(value);
        match at {
            0..0x1000 => stepped.set_vram64(TABLES + at * 8, value),
            0x1000..0x1100 => stepped.set_system64(GART_TABLE + (at & 0xff) * 8, value),
            0x1100..0x1108 => stepped.set_vram64(CONTEXT + (at & 7) * 8, value),
            // A change of a few bits of what is there.
            _ => {
                let at = TABLES + (at & 0xfff) * 8;
                stepped.set_vram64(at, stepped.vram64(at) ^ (1 << (value & 63)));
            }
        }
    }
    let work = [
        Command::Copy {
            source: DATA_VA,
            destination: DATA_VA + 0x1_1000,
            bytes: 0x3000,
        },
        Command::Signal {
            address: DATA_VA + 0x7_fff8,
            value: 1,
        },
    ];
    let (exec, _) = stepped.exec(COMPUTE, &work);
    stepped.start(COMPUTE, &[exec]);
    stepped.start(
        COPY,
        &[Command::Fill {
            pattern: 5,
            address: gart::BASE,
            bytes: 0x4000,
        }],
    );
}));
