// SPDX-License-Identifier: GPL-2.0

//! The way in: what userspace says is copied once, checked, and turned into the words of the rooms
//! below.
//!
//! Everything about an argument that can be refused is refused here, or in the room that knows the
//! limit, before anything has changed. Nothing below this room sees user memory or looks up a
//! handle. Some lists of objects that go down have each one's handle beside it, which is only given
//! back there, to what closes it ([`File::bo_destroy`](file::File::bo_destroy)).
//!
//! Uses all rooms below, and the trunk ([`crate::gpu`]).
//!
//! | about | in |
//! |---|---|
//! | who asks | [`file`]: its handles, and what they name |
//! | what there is | [`query`], [`device`] (a client's devices) |
//! | memory | [`bo`], [`residency`], [`vm`] (address spaces, and binds) |
//! | work | [`context`] (and submissions), [`context_allocation`], [`fence`] (monitored fences) |
//! | arguments of several | [`syncs`], [`user_array`] |

pub(crate) mod bo;
pub(crate) mod context;
pub(crate) mod context_allocation;
pub(crate) mod device;
pub(crate) mod fence;
pub(crate) mod file;
pub(crate) mod query;
pub(crate) mod residency;
pub(crate) mod syncs;
pub(crate) mod user_array;
pub(crate) mod vm;
