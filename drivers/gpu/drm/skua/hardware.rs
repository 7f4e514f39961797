// SPDX-License-Identifier: GPL-2.0

//! What the driver knows of the device itself, and how it reaches it.
//!
//! Knows numbers and memory layouts ([`crate::spec`]), and nothing of what they are used for. The
//! others have the GPU do something through the trait that [`miniport`] implements, and read here
//! what it reports (ticks, fault records, counters). Uses no other room of the driver.

pub(crate) mod caps;
pub(crate) mod miniport;
pub(crate) mod paging;
pub(crate) mod registers;
pub(crate) mod shared;
