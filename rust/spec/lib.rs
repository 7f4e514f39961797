// SPDX-License-Identifier: GPL-2.0 OR MIT

#![no_std]
// As the kernel's build has it.
#![warn(clippy::cast_lossless)]
#![doc = include_str!("README.md")]

#[path = "mod.rs"]
mod spec;
pub use spec::*;
