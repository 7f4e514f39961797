// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The host's way into `mod.rs` (so called because `cargo-mutants` looks for modules beside a file
//! of this name only): what cargo builds and tests.
//!
//! The driver does not see this file: it includes `mod.rs` as a module of its own. Here are only
//! the attribute that keeps `std` out (so that a host build fails where the kernel build would) and
//! the heap that tests and fuzz targets use.

#![no_std]

#[cfg(any(test, feature = "std"))]
extern crate std;

#[path = "mod.rs"]
mod policy;
#[cfg(any(test, feature = "std"))]
pub mod std_heap;

pub use policy::*;
// Where the driver has it.
pub use skua_spec as spec;

/// So many times the usual number of random cases; `PROPTEST_CASES` sets the usual number for a
/// long run.
#[cfg(test)]
fn cases(times: u32) -> proptest::test_runner::Config {
    let usual = proptest::test_runner::Config::default();
    proptest::test_runner::Config {
        cases: usual.cases.saturating_mul(times),
        ..usual
    }
}
