// SPDX-License-Identifier: MIT

//! The programs that people begin with do what they say: each is run as a user runs it.

use std::process::{Command, ExitCode};

use skua_selftests::{suite, tests};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_first_program_in_rust_runs,
        the_first_program_in_wddms_terms_runs,
        the_first_program_in_c_runs,
    ])
}

/// Runs a program of the PATH, and compares what it prints.
fn prints(program: &str, expected: &str) {
    let output = Command::new(program)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "{errors}"
    );
}

fn the_first_program_in_rust_runs() {
    prints("first", "0xcafef00d\n");
}

fn the_first_program_in_wddms_terms_runs() {
    prints("first_wddm", "0xcafef00d\n");
}

fn the_first_program_in_c_runs() {
    prints("first_uapi", "0xcafef00d\n");
}
