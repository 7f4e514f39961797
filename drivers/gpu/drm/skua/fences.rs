// SPDX-License-Identifier: GPL-2.0

//! What work waits for, and what it signals.
//!
//! Both are made whole while failing is possible; using them cannot fail. Uses no other room of the
//! driver, and of the trunk ([`crate::gpu`]) only whose device it is, whether that works, its work
//! queues, and the list of retries that it holds for this room.
//!
//! | about | in |
//! |---|---|
//! | fences of the kernel | [`gate`] (all that work waits for), [`signals`] (all that it signals) |
//! | monitored fences | [`monitored`], [`pledge`] (values that a move is to signal), [`sleep`] (threads and eventfds that wait) |
//! | work that may wait for what nobody has promised | [`hold`], [`retry`] (what was refused, until the next attempt) |

pub(crate) mod gate;
pub(crate) mod hold;
pub(crate) mod monitored;
pub(crate) mod pledge;
pub(crate) mod retry;
pub(crate) mod signals;
pub(crate) mod sleep;
