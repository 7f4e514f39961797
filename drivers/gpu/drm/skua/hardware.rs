// SPDX-License-Identifier: GPL-2.0

//! What the driver knows of the device itself, and how it reaches it.
//!
//! Knows numbers and memory layouts ([`crate::spec`]), and nothing of what they are used for. The
//! other rooms reach the GPU through the trait that [`miniport`] implements. Uses no other room.

pub(crate) mod caps;
pub(crate) mod miniport;
pub(crate) mod registers;
pub(crate) mod shared;
