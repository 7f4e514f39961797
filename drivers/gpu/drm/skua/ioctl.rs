// SPDX-License-Identifier: GPL-2.0

//! The way in: what userspace says is copied once, checked, and turned into the words of the rooms
//! below.
//!
//! Everything about an argument that can be refused is refused here, or in the room that knows the
//! limit, before anything has changed. Nothing below this room sees user memory or handles.
//!
//! Uses all rooms below, and the trunk ([`crate::gpu`]).

pub(crate) mod bind;
pub(crate) mod context_allocation;
pub(crate) mod fence;
pub(crate) mod file;
pub(crate) mod query;
pub(crate) mod syncs;
pub(crate) mod user_array;
