// SPDX-License-Identifier: MIT

//! A GPU of whose VRAM the CPU sees nothing but through a small host aperture.

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
        row_0_23_a_flush_that_is_acknowledged_late_is_waited_for: 60 at_rest,
        row_0_24_more_than_the_aperture_is_seen_in_turn: 120 at_rest,
        row_0_24_who_reads_on_gets_what_follows: 60 at_rest,
        row_0_18_row_0_24_no_more_is_locked_than_there_are_pages: 60 at_rest,
        row_0_24_locks_of_many_threads_have_no_more_than_there_is: 120 at_rest,
        row_0_25_no_byte_of_a_neighbour_is_seen: 60 at_rest,
        row_0_26_it_works_at_once_and_after_a_bind: 60 at_rest,
        row_0_26_row_2_21_it_shows_on_after_a_reset_of_an_engine: 60 at_rest,
        row_0_26_it_works_again_after_a_loss: 120 at_rest,
        everything_at_once_in_eight_processes: 300,
    ])
}

fn row_0_26_row_2_21_it_shows_on_after_a_reset_of_an_engine() {
    aperture::it_shows_on_after_a_reset_of_an_engine();
}

fn row_0_15_the_aperture_is_its_bar() {
    aperture::the_aperture_is_its_bar();
}

/// Pages of another size, which together are as large as the BAR.
fn row_0_15_contradictions_are_refused() {
    aperture::contradictions_are_refused(&["aperture-caps=13"]);
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

fn row_0_23_a_flush_that_is_acknowledged_late_is_waited_for() {
    aperture::a_flush_that_is_acknowledged_late_is_waited_for();
}

fn row_0_24_more_than_the_aperture_is_seen_in_turn() {
    aperture::more_than_the_aperture_is_seen_in_turn();
}

fn row_0_24_who_reads_on_gets_what_follows() {
    aperture::who_reads_on_gets_what_follows();
}

fn row_0_25_no_byte_of_a_neighbour_is_seen() {
    aperture::no_byte_of_a_neighbour_is_seen();
}

fn row_0_26_it_works_at_once_and_after_a_bind() {
    aperture::it_works_at_once_and_after_a_bind();
}

fn row_0_26_it_works_again_after_a_loss() {
    aperture::it_works_again_after_a_loss();
}

fn row_0_18_row_0_24_no_more_is_locked_than_there_are_pages() {
    aperture::no_more_is_locked_than_there_are_pages();
}

fn everything_at_once_in_eight_processes() {
    torture::eight_processes(120);
}

fn row_0_24_locks_of_many_threads_have_no_more_than_there_is() {
    aperture::locks_of_many_threads_have_no_more_than_there_is();
}
