// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bytes as commands: in a buffer on one engine, in the ring on the other.

#![no_main]

#[path = "../../../tests/device/harness.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod harness;
#[path = "../session.rs"]
mod session;

use libfuzzer_sys::fuzz_target;
use skua_spec::regs::engine;

use harness::RING_BYTES;

fuzz_target!(|data: &[u8]| session::with(|gpu| {
    let bytes = &data[..data.len().min(RING_BYTES as usize - 64) & !7];
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let (exec, _) = gpu.exec_words(0, &words);
    gpu.start(0, &[exec]);
    gpu.set_vram(gpu.ring_at(1), bytes);
    gpu.set_engine(1, engine::DOORBELL::new().with_tail(bytes.len() as u32));
}));
