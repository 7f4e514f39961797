// SPDX-License-Identifier: GPL-2.0

//! What can be seen from outside: fdinfo, debugfs. Reading changes nothing but what its file says:
//! `counters` has the device take a snapshot; `zap`, `evict`, `reset` and the switches (`idle`,
//! `clearing`, `reuse`, `preemption`) do what they are named for.
//!
//! Uses all rooms below, and nobody uses it but [`crate::driver`], which registers it.

pub(crate) mod debugfs;
pub(crate) mod fdinfo;
