// SPDX-License-Identifier: GPL-2.0

//! What clients' memory is, where it is, and at which addresses the GPU finds it.
//!
//! Uses [`crate::hardware`], [`crate::fences`] and the trunk ([`crate::gpu`]); of [`crate::submit`]
//! only what a context is, which the trunk hands to it: the driver's own contexts, which it has
//! clear, copy or initialise memory, and those whose allocations move, which it has engines leave
//! ([`save_areas`]). What clients submit it does not know; that an address space is used, it sees by
//! fences.

pub(crate) mod bo;
pub(crate) mod claims;
pub(crate) mod clean_copy;
pub(crate) mod clearer;
pub(crate) mod destruction;
pub(crate) mod device;
pub(crate) mod evicted;
pub(crate) mod eviction;
pub(crate) mod gart;
pub(crate) mod host_aperture;
pub(crate) mod installed;
pub(crate) mod lock;
pub(crate) mod moves;
pub(crate) mod offer;
pub(crate) mod page_table;
pub(crate) mod paging_in;
pub(crate) mod relocation;
pub(crate) mod residency;
pub(crate) mod save_areas;
pub(crate) mod vm;
pub(crate) mod vram;
