// SPDX-License-Identifier: GPL-2.0

//! Skua: a DRM driver for an emulated PCI GPU.
//!
//! The crate's table of contents. `spec`, `policy` and `ext` are shared with, or kept apart from, the
//! driver proper: see `rust/spec`, `rust/policy` and `rust/kernel`.

#![crate_name = "skua"]

use kernel::prelude::*;

#[path = "../../../../rust/kernel/ext.rs"]
#[allow(dead_code, reason = "an abstraction is whole, whether or not each part has a user")]
mod ext;
#[path = "../../../../rust/policy/policy.rs"]
#[allow(dead_code, unreachable_pub, reason = "a crate of its own on the host")]
mod policy;
#[path = "../../../../rust/spec/spec.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the device model")]
mod spec;

/// The module: what it registers, and what must be waited for when it goes.
struct Skua {
    /// Last, so that it waits when everything else is gone.
    _guard: ext::fence::ModuleGuard,
}

impl kernel::Module for Skua {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _guard: ext::fence::ModuleGuard::new(),
        })
    }
}

module! {
    type: Skua,
    name: "skua",
    authors: ["Skua developers"],
    description: "Skua GPU",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}
