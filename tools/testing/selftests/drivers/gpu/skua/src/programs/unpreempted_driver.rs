// SPDX-License-Identifier: MIT

//! What holds while the driver is told to ask no engine to stop (row 2.24).

use std::process::ExitCode;

use skua_selftests::unpreempted::{expect_important_work_to_wait, expect_resets_alone};
use skua_selftests::{suite, tests};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_24_important_work_waits,
        row_2_24_what_hangs_is_reset_at_once: 60,
    ])
}

fn row_2_24_important_work_waits() {
    expect_important_work_to_wait();
}

fn row_2_24_what_hangs_is_reset_at_once() {
    expect_resets_alone();
}
