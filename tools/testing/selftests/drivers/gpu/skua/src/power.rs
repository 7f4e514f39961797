// SPDX-License-Identifier: MIT

//! Sleep of the whole guest, for programs whose guest is made for that (`"sleeps"` in
//! `guests.json`).

use std::fs;
use std::io;

/// Sends the machine to sleep as far as its devices lose their power, and wakes it: userspace is
/// frozen, devices are suspended, and what can be in D3hot is put there (`pm_test` of the kernel,
/// level `platform`).
///
/// # Errors
///
/// What the kernel says if it does not sleep; `EBUSY` if a device stays awake.
///
/// # Panics
///
/// If this kernel cannot sleep.
#[track_caller]
pub fn sleep() -> io::Result<()> {
    fs::write("/sys/power/pm_test", "platform").expect("pm_test");
    fs::write("/sys/power/state", "freeze")
}
