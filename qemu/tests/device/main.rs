// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device, driven in process as a driver would: registers, memory, interrupts.
//!
//! Time is never asserted: [`skua_testbed::Gpu`] waits for what must come, with a limit that only
//! a hang reaches.

mod aperture;
mod arithmetic;
mod clock;
mod contexts;
mod draw;
mod events;
mod faults;
mod golden;
mod handshakes;
mod invalidations;
mod lies;
mod moderation;
mod packets;
mod panics;
mod preemption;
mod programs;
mod queues;
mod random;
mod registers;
mod resets;
mod revocation;
mod rings;
mod semaphores;
mod steps;
mod time;
mod transfers;
mod translation;
