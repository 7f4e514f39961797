// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model in process, as tests, fuzz targets and examples drive it.
//!
//! | | the device | memory |
//! |---|---|---|
//! | [`Gpu`] | all of it, with its threads and interrupts | a [`Board`] |
//! | [`Stepped`] | the engines' cores, stepped on one thread | a [`Board`] |
//! | [`machine::Machine`] | all of it, for dispatches alone | VRAM of any size |
//!
//! A call that cannot do what it says panics, as a failed assertion of the test. There are two
//! engines, [`COMPUTE`] and [`COPY`]; `at` and `offset` are bytes from the start of the memory in
//! question.

#![expect(clippy::new_without_default, reason = "no device is the usual one")]

mod board;
mod gpu;
pub mod machine;
mod stepped;

pub use board::*;
pub use gpu::{Gpu, Lines};
pub use stepped::{core_with, new_core, Stepped};
