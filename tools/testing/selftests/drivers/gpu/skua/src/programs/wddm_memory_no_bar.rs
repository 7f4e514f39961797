// SPDX-License-Identifier: MIT

//! Memory of `tools/wddm` on a GPU of whose VRAM the CPU sees nothing but through a host aperture.

use std::process::ExitCode;

use skua_selftests::{suite, tests, wddm_memory};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        pending_residency_is_there_when_the_fence_says_so: 60 at_rest,
        row_0_21_what_is_locked_is_pending_until_it_is_unlocked: 60 at_rest,
        a_budget_is_the_devices_own: 60,
        what_is_offered_is_reclaimed: 60 at_rest,
    ])
}

fn pending_residency_is_there_when_the_fence_says_so() {
    wddm_memory::pending_residency_is_there_when_the_fence_says_so();
}

fn row_0_21_what_is_locked_is_pending_until_it_is_unlocked() {
    wddm_memory::what_is_locked_is_pending_until_it_is_unlocked();
}

fn a_budget_is_the_devices_own() {
    wddm_memory::a_budget_is_the_devices_own();
}

fn what_is_offered_is_reclaimed() {
    wddm_memory::what_is_offered_is_reclaimed();
}
