// SPDX-License-Identifier: MIT

//! A GPU of whose VRAM the CPU sees a part, and the rest through a host aperture of large pages.

use std::process::ExitCode;

use skua_selftests::{aperture, suite, tests, torture};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_0_15_the_aperture_is_its_bar,
        row_0_15_contradictions_are_refused: 60 at_rest,
        row_0_17_row_0_18_vram_alone_needs_no_aperture: 60 at_rest,
        row_0_22_any_page_of_vram_through_any_page: 60 at_rest,
        row_0_23_mappings_go_before_a_page_is_anothers: 120 at_rest,
        row_0_23_what_is_freed_is_given_back: 60 at_rest,
        row_0_24_more_than_the_aperture_is_seen_in_turn: 120 at_rest,
        row_0_18_row_0_24_no_more_is_locked_than_there_are_pages: 60 at_rest,
        row_0_25_no_byte_of_a_neighbour_is_seen: 60 at_rest,
        row_0_25_offsets_in_a_page_are_the_same: 60 at_rest,
        row_0_26_it_works_at_once_and_after_a_bind: 60 at_rest,
        everything_at_once_in_eight_processes: 300,
    ])
}

fn row_0_15_the_aperture_is_its_bar() {
    aperture::the_aperture_is_its_bar();
}

/// There is nothing behind what is visible; what is visible cannot be cached.
fn row_0_15_contradictions_are_refused() {
    aperture::contradictions_are_refused(&["vram-size=0x800000", "aperture-caps=0x110"]);
}

fn row_0_17_row_0_18_vram_alone_needs_no_aperture() {
    aperture::vram_alone_needs_no_aperture();
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

fn row_0_24_more_than_the_aperture_is_seen_in_turn() {
    aperture::more_than_the_aperture_is_seen_in_turn();
}

fn row_0_25_no_byte_of_a_neighbour_is_seen() {
    aperture::no_byte_of_a_neighbour_is_seen();
}

fn row_0_25_offsets_in_a_page_are_the_same() {
    aperture::offsets_in_a_page_are_the_same();
}

fn row_0_26_it_works_at_once_and_after_a_bind() {
    aperture::it_works_at_once_and_after_a_bind();
}

fn row_0_18_row_0_24_no_more_is_locked_than_there_are_pages() {
    aperture::no_more_is_locked_than_there_are_pages();
}

fn everything_at_once_in_eight_processes() {
    torture::eight_processes(40);
}
