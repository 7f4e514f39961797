// SPDX-License-Identifier: MIT

//! What holds on a device whose engines cannot be stopped (row 2.03).

use std::process::ExitCode;

use skua_selftests::unpreempted::{expect_important_work_to_wait, expect_resets_alone};
use skua_selftests::{suite, tests, Client};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_06_it_says_so,
        row_2_03_important_work_waits,
        row_2_03_what_hangs_is_reset_at_once: 60,
    ])
}

fn row_2_06_it_says_so() {
    let device = Client::new().device;
    let preemption = [device.graphics_preemption, device.compute_preemption];
    assert_eq!(preemption, [0, 0]);
}

fn row_2_03_important_work_waits() {
    expect_important_work_to_wait();
}

fn row_2_03_what_hangs_is_reset_at_once() {
    expect_resets_alone();
}
