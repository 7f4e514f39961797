// SPDX-License-Identifier: GPL-2.0 OR MIT

#![no_std]
#![doc = include_str!("README.md")]

#[path = "spec.rs"]
mod spec;
pub use spec::*;
