// SPDX-License-Identifier: MIT

//! The machine sleeps as deep as it can with its memory kept (S3 of ACPI), and every device is
//! reset with it: nothing is lost but what the device had of its own.
//!
//! `guests.json` gives this program a guest that may sleep.

use std::process::ExitCode;

use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::pattern;
use skua_selftests::power::Sleep;
use skua_selftests::rig::expect_working;
use skua_selftests::{asleep, suite, tests};
use skua_spec::pci::BAR_VRAM;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_machine_takes_vram_along: 60,
        row_0_26_memory_and_maps_are_there_again: 60 at_rest,
        again_and_again: 120,
        work_that_was_accepted_is_done: 60,
        work_held_for_a_fence_stays_held: 60,
        fences_keep_their_values: 60,
    ])
}

const SLEEP: Sleep = Sleep::Machine;

/// Without a driver nobody tells the device to sleep: what it loses it loses with the machine.
fn the_machine_takes_vram_along() {
    let unbound = Unbound::first();
    let vram = Function::first().map_bar(BAR_VRAM);
    let kept = || {
        (0..vram.len())
            .step_by(4096)
            .filter(|at| vram.read(*at) == pattern(5)(*at))
    };
    for at in (0..vram.len()).step_by(4096) {
        vram.write(at, pattern(5)(at));
    }
    assert_eq!(kept().count(), vram.len() / 4096, "pages, awake");
    SLEEP.fall().expect("sleep");
    assert_eq!(kept().count(), 0, "pages, afterwards");
    vram.write(0, 5);
    assert_eq!(vram.read(0), 5, "memory that cannot be written");
    drop(unbound);
    expect_working();
}

fn row_0_26_memory_and_maps_are_there_again() {
    asleep::memory_and_maps_are_there_again(SLEEP);
}

fn again_and_again() {
    asleep::again_and_again(SLEEP);
}

fn work_that_was_accepted_is_done() {
    asleep::work_that_was_accepted_is_done(SLEEP);
}

fn work_held_for_a_fence_stays_held() {
    asleep::work_held_for_a_fence_stays_held(SLEEP);
}

fn fences_keep_their_values() {
    asleep::fences_keep_their_values(SLEEP);
}
