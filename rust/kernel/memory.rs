// SPDX-License-Identifier: GPL-2.0

//! How much memory the machine has.
//!
//! C header: `include/linux/mm.h`.

use kernel::{
    bindings,
    page::PAGE_SIZE, //
};

/// Bytes of usable RAM.
///
/// # Examples
///
/// ```ignore
/// // What all clients' objects may have together.
/// let limit = memory::total() / 2;
/// ```
pub(crate) fn total() -> u64 {
    let mut info = bindings::sysinfo::default();
    // SAFETY: `info` is a valid structure to be filled in; no other requirements.
    unsafe { bindings::si_meminfo(&mut info) };
    // CAST: both are at most 64 bits wide.
    (info.totalram as u64).saturating_mul(PAGE_SIZE as u64)
}
