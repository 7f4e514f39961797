// SPDX-License-Identifier: MIT

//! Memory of `tools/wddm` on a GPU of whose VRAM the CPU sees a part.

use std::process::ExitCode;

use skua_selftests::{suite, tests, wddm_memory};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        pending_residency_is_there_when_the_fence_says_so: 60 at_rest,
        row_0_21_what_is_locked_is_pending_until_it_is_unlocked: 60 at_rest,
        work_finds_what_is_resident: 60 at_rest,
        a_budget_is_the_devices_own: 60,
        video_memory_info_tells_what_is_there: 60 at_rest,
        what_is_offered_is_reclaimed: 60 at_rest,
        what_is_mapped_is_seen_in_both_places,
    ])
}

fn pending_residency_is_there_when_the_fence_says_so() {
    wddm_memory::pending_residency_is_there_when_the_fence_says_so();
}

fn row_0_21_what_is_locked_is_pending_until_it_is_unlocked() {
    wddm_memory::what_is_locked_is_pending_until_it_is_unlocked();
}

fn work_finds_what_is_resident() {
    wddm_memory::work_finds_what_is_resident();
}

fn a_budget_is_the_devices_own() {
    wddm_memory::a_budget_is_the_devices_own();
}

fn video_memory_info_tells_what_is_there() {
    wddm_memory::video_memory_info_tells_what_is_there();
}

fn what_is_offered_is_reclaimed() {
    wddm_memory::what_is_offered_is_reclaimed();
}

fn what_is_mapped_is_seen_in_both_places() {
    wddm_memory::what_is_mapped_is_seen_in_both_places();
}
