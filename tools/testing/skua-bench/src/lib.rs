// SPDX-License-Identifier: MIT

//! Counts what a submission, a wait, a move and an object cost.
//!
//! A **row** ([`row`]) is a measure: its number, name, unit, and what it should be. A **source** is
//! something outside of the measured code that counts: a clock of instructions, counters of device,
//! driver and kernel, the kernel's trace events, the kernel's memory. A **subject** ([`submit`],
//! [`wait`], [`schedule`], [`scenario`], [`device`], [`record`], [`hang`], [`residency`],
//! [`aperture`], [`tables`], [`fragmentation`], [`footprint`]) does something to the GPU in a
//! [`rig`], and puts what the sources counted into a [`report`].
//!
//! ```text
//!   sources                          subjects                  rows
//!   clock, counters, trace,  ──▶  submit, wait, residency,  ──▶  report: lines and JSON
//!   kernel_memory                 aperture, tables, …
//! ```
//!
//! A measure of another kind is a row in [`row::ROWS`] and a function that fills it; a report is
//! complete only if every row was filled exactly once.
//!
//! What is measured how, and what the numbers do not mean, is in
//! `Documentation/gpu/skua/bench.rst`.

#![forbid(unsafe_code)]

pub mod aperture;
pub mod clock;
pub mod companion;
pub mod counters;
pub mod device;
pub mod event;
pub mod fit;
pub mod footprint;
pub mod fragmentation;
pub mod hang;
pub mod kernel_memory;
pub mod record;
pub mod replay;
pub mod report;
pub mod residency;
pub mod rig;
pub mod row;
pub mod sample;
pub mod scenario;
pub mod schedule;
pub mod submit;
pub mod tables;
pub mod trace;
pub mod wait;
