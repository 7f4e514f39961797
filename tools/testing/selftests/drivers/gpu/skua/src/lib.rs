// SPDX-License-Identifier: MIT

//! What the kselftests of the Skua driver share.
//!
//! Each program of `src/programs` is a family of tests and prints KTAP. A test is a function
//! without arguments that panics, having printed what it saw, if something does not hold; it runs
//! in a process of its own ([`child`]). Names never change; those that start with `row_S_RR_` prove
//! that row of `Documentation/gpu/skua/conformance.rst`, and that table names them.
//!
//! - [`suite`], [`child`]: running and reporting;
//! - [`cases`]: tables of cases;
//! - [`raw`], [`mapping`]: system calls, the only files with `unsafe` besides a line in [`client`];
//! - [`function`], [`fdinfo`]: what sysfs, debugfs and procfs tell;
//! - [`client`], [`rig`]: an open device, and one that is ready to run work; [`wddm_rig`]: one of
//!   WDDM;
//! - [`cgroup`]: what the kernel charges a process with;
//! - [`race`]: jobs that an engine takes one after the other, threads that wait;
//!   [`unpreempted`]: engines that are never asked to stop;
//! - [`program`]: compute programs; [`drawing`]: what is drawn;
//! - [`software_timeline`]: fences of another driver; [`others`]: their memory;
//! - [`moving`]: objects that move; [`torture`]: all at once;
//! - [`calls`]: what the kernel called for it; [`events`]: what the driver traced; [`kernel_log`]:
//!   what the kernel logged;
//! - [`loss`]: a GPU that goes away; [`power`]: a guest that sleeps;
//! - [`aperture`], [`asleep`], [`wddm_memory`]: tests of several programs;
//! - [`table`], [`witness`]: bad arguments, and what they must not change;
//! - [`every_call`]: good ones, of a device that does not work.

#![deny(unsafe_code)]

pub mod aperture;
pub mod asleep;
pub mod calls;
pub mod cases;
pub mod cgroup;
pub mod child;
pub mod client;
pub mod drawing;
pub mod events;
pub mod every_call;
pub mod failures;
pub mod fdinfo;
pub mod function;
pub mod kernel_log;
pub mod loss;
pub mod mapping;
pub mod moving;
pub mod others;
pub mod power;
pub mod program;
pub mod race;
pub mod raw;
pub mod rig;
pub mod software_timeline;
pub mod stage;
pub mod suite;
pub mod table;
pub mod torture;
pub mod uevents;
pub mod unpreempted;
pub mod wddm_memory;
pub mod wddm_rig;
pub mod witness;

pub use cases::Cases;
pub use child::skip;
pub use client::{Client, Place};
pub use raw::Errno;
pub use rig::{Engine, Rig};
