// SPDX-License-Identifier: MIT

//! A GPU that looks at each access of the CPU through its host aperture, and counts those that it
//! should not make.

use std::process::ExitCode;

use skua_selftests::{aperture, suite, tests};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_0_22_any_page_of_vram_through_any_page: 120 at_rest,
        row_0_23_mappings_go_before_a_page_is_anothers: 240 at_rest,
        row_0_23_what_is_freed_is_given_back: 120 at_rest,
        row_0_26_row_2_22_the_aperture_shows_again_after_a_reset: 120 at_rest,
        row_0_26_the_aperture_shows_again_after_a_function_level_reset: 120 at_rest,
        row_0_26_row_2_21_the_aperture_shows_on_after_a_reset_of_an_engine: 60 at_rest,
        row_0_26_the_aperture_shows_again_after_a_sleep: 120 at_rest,
        row_0_19_row_1_09_system_memory_is_locked_without_any_bar: 120 at_rest,
    ])
}

fn row_0_22_any_page_of_vram_through_any_page() {
    aperture::any_page_of_vram_through_any_page();
}

fn row_0_23_mappings_go_before_a_page_is_anothers() {
    aperture::mappings_go_before_a_page_is_anothers();
}

fn row_0_23_what_is_freed_is_given_back() {
    aperture::what_is_freed_is_given_back();
}

fn row_0_26_row_2_22_the_aperture_shows_again_after_a_reset() {
    aperture::it_shows_again_after_a_reset(|gpu| {
        gpu.debugfs("reset").expect("debugfs");
    });
}

fn row_0_26_the_aperture_shows_again_after_a_function_level_reset() {
    aperture::it_shows_again_after_a_reset(|gpu| {
        std::fs::write(gpu.sysfs().join("reset"), "1").expect("reset");
    });
}

fn row_0_26_row_2_21_the_aperture_shows_on_after_a_reset_of_an_engine() {
    aperture::it_shows_on_after_a_reset_of_an_engine();
}

fn row_0_26_the_aperture_shows_again_after_a_sleep() {
    aperture::it_shows_again_after_a_sleep();
}

fn row_0_19_row_1_09_system_memory_is_locked_without_any_bar() {
    aperture::system_memory_is_locked_without_any_bar();
}
