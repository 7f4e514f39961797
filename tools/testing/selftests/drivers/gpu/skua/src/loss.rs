// SPDX-License-Identifier: MIT

//! The GPU server stands still or dies.

use std::time::Duration;

use skua_guest::host::{expect_error, request};

use crate::client::PATIENCE;
use crate::skip;

/// How long it may take until the driver gives the device up: the watchdog, then time-outs.
pub const GIVING_UP: Duration = PATIENCE.saturating_mul(4);

/// Asks the host, or skips: there may be none that understands.
pub fn ask(what: &str) {
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    if what == "gpu-kill" {
        // The driver complains as it sees fit.
        expect_error("").expect("the kernel's log");
    }
    request(what).unwrap_or_else(|error| panic!("{what}: {error}"));
}
