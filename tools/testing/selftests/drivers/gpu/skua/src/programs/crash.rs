// SPDX-License-Identifier: MIT

//! A guest that crashes on purpose: its definition accepts the death whose report names the line
//! of source that crashed, and no other.

use std::fs;
use std::process::ExitCode;

use skua_selftests::loss::ask;
use skua_selftests::{suite, tests};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![a_crash_is_reported_with_lines_of_source])
}

fn a_crash_is_reported_with_lines_of_source() {
    // Nobody else's machine.
    ask("ping");
    fs::write("/proc/sysrq-trigger", "c").expect("sysrq");
    panic!("the kernel survived its crash");
}
