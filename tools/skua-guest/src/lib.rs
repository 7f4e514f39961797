// SPDX-License-Identifier: MIT

//! What the guest's programs, the tests and the host's `skua-vm` share: the job that a guest is
//! booted for, the lines that they exchange over the guest's second serial port, KTAP, and the
//! supervisor of processes.
//!
//! A test that must act on the GPU from outside the guest uses [`host::request`].

#![forbid(unsafe_code)]

pub mod clock;
pub mod host;
pub mod job;
pub mod kmemleak;
pub mod ktap;
pub mod process;
pub mod wire;
