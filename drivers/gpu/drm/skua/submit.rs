// SPDX-License-Identifier: GPL-2.0

//! Work: from what a client asked for to what an engine runs, and back to its fence.
//!
//! Uses [`crate::memory`], [`crate::fences`], [`crate::hardware`] and the trunk ([`crate::gpu`]).
//! It never sees arguments of ioctls.
//!
//! | about | in |
//! |---|---|
//! | what is to be done | [`submission`], [`packet`] (a part of one, in a ring), [`context`] (their order: its [queue](context::pending), what clients [ask](context::requests) of it, where it is saved to), [`deferral`] (destructions that wait behind held work) |
//! | who has the engine | [`engine`], its [run queue](engine::run_queue), [`busy`] (for how long) |
//! | when it goes wrong | [`recovery`] (one engine), [`adapter_reset`] (all of them), [`report`] and [`coredump`] (what is told of it) |
//! | sleep | [`power`] |

pub(crate) mod adapter_reset;
pub(crate) mod busy;
pub(crate) mod context;
pub(crate) mod coredump;
pub(crate) mod deferral;
pub(crate) mod engine;
pub(crate) mod packet;
pub(crate) mod power;
pub(crate) mod recovery;
pub(crate) mod report;
pub(crate) mod submission;
