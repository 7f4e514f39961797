// SPDX-License-Identifier: MIT

//! What the guest's programs and the host's `skua-vm` share: the job that a guest is booted
//! for, the lines that they exchange over the guest's second serial port, and KTAP.
//!
//! A test that must act on the GPU from outside the guest uses [`host::request`].

#![forbid(unsafe_code)]

pub mod host;
pub mod job;
pub mod ktap;
pub mod wire;
