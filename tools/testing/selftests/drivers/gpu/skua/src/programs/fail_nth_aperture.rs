// SPDX-License-Identifier: MIT

//! Accesses through a CPU host aperture in which one allocation fails, for the debugging
//! configuration. `guests.json` gives this program a GPU of whose VRAM the CPU sees nothing else.

use std::process::ExitCode;

use skua_selftests::{aperture, suite, tests};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![one_allocation_fails: 600 at_rest])
}

fn one_allocation_fails() {
    aperture::one_allocation_fails();
}
