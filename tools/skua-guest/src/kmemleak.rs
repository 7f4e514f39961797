// SPDX-License-Identifier: MIT

//! The kernel's own search for leaks (`Documentation/dev-tools/kmemleak.rst`).

use std::fs;
use std::path::Path;

/// What asks it, and tells what it found.
pub const FILE: &str = "/sys/kernel/debug/kmemleak";

/// Whether this boot looks for leaks: `kmemleak=off` leaves the file, of no use.
pub fn is_on() -> bool {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    Path::new(FILE).exists() && !line.contains("kmemleak=off")
}
