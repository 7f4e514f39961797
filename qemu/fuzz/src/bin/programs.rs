// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bytes as a program: first a byte each for the shape of the dispatch, then instructions.

#![no_main]

#[path = "../session.rs"]
mod session;

use libfuzzer_sys::fuzz_target;
use skua_spec::command::{Command, Dispatch, MAX_ARGUMENTS, MAX_PROGRAM};
use skua_testbed::{COMPUTE, DATA, DATA_VA};

fuzz_target!(|data: &[u8]| session::with(|stepped| {
    let Some((shape, program)) = data.split_first_chunk::<8>() else {
        return;
    };
    let program = &program[..program.len().min(MAX_PROGRAM as usize) & !7];
    stepped.set_vram(DATA, program);
    let mut arguments = [0; MAX_ARGUMENTS];
    // Addresses of data, the most useful arguments.
    for pair in arguments.chunks_exact_mut(2) {
        (pair[0], pair[1]) = (DATA_VA as u32 + 0x1_0000, (DATA_VA >> 32) as u32);
    }
    let dispatch = Dispatch {
        program: DATA_VA,
        program_bytes: program.len() as u32,
        shared_bytes: u32::from(shape[0]) * 16,
        groups: [u32::from(shape[1] % 4), 1, u32::from(shape[2] % 3)],
        threads: [
            u32::from(shape[3]),
            u32::from(shape[4] % 8),
            u32::from(shape[5] % 4),
        ],
        arguments,
        argument_count: usize::from(shape[6]) % (MAX_ARGUMENTS + 1) & !1,
    };
    let (exec, _) = stepped.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
    stepped.start(COMPUTE, &[exec]);
}));
