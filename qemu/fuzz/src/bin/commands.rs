// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bytes as commands: in a buffer on one engine, in the ring on the other.

#![no_main]

#[path = "../session.rs"]
mod session;
use libfuzzer_sys::fuzz_target;
use skua_testbed::{COMPUTE, COPY, RING_BYTES};

fuzz_target!(|data: &[u8]| session::with(|stepped| {
    let bytes = &data[..data.len().min(RING_BYTES as usize - 64) & !7];
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let (exec, _) = stepped.exec_words(COMPUTE, &words);
    stepped.start(COMPUTE, &[exec]);
    stepped.set_vram(stepped.ring_at(COPY), bytes);
    stepped.cores[1].ring_doorbell(bytes.len() as u32);
}));
