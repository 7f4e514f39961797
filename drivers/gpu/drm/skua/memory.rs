// SPDX-License-Identifier: GPL-2.0

//! What clients' memory is, where it is, and at which addresses the GPU finds it.
//!
//! Uses [`crate::hardware`], [`crate::fences`] and the trunk ([`crate::gpu`]); of [`crate::submit`]
//! only what the trunk hands to it: the driver's own contexts, which it has clear, copy or
//! initialise memory; contexts whose allocations move, which it has engines leave ([`save_areas`]);
//! and engines, which it asks whether they are idle ([`clearer`]) and whether they need the area of
//! a context ([`save_areas`]). What clients submit it does not know; that an address space is used,
//! it sees by fences, and is told when ([`uses`]).
//!
//! **Why not TTM.** Its rules for faults and moves are kept ([`crate::ext::fault`]), not its code.
//! The kernel crate has nothing of it, and lets no module make the class of GEM objects that it
//! needs. Its system pages come from a pool, not from the object's shmem, from where idle ones are
//! swapped; and who leaves follows from its lists and a veto, where
//! [`policy::eviction`](crate::policy::eviction) asks who has it resident, offered, or idle.
//!
//! | about | in |
//! |---|---|
//! | what an object is, and its places | [`bo`] (says what is in files of its own), [`clean_copy`] (what is kept when it comes to VRAM), [`evicted`] (what is out), [`uses`] (when it was used) |
//! | who counts and keeps it | [`claims`], [`device`] (a client's devices and their budgets), [`save_areas`] |
//! | the segments | [`vram`], [`gart`] (the aperture segment), [`host_aperture`] (the CPU's window on VRAM) |
//! | where the GPU finds it | [`vm`] (what is mapped, and binds), [`installed`] (who leads to it), [`page_table`] |
//! | how it moves | [`relocation`] (until the fence is published), [`moves`] (after that), [`move_contexts`] (for what waits alone) |
//! | who has it move | [`eviction`], [`paging_in`], [`residency`], [`pending_residency`] (what waits for an unlock), [`lock`], [`offer`] |
//! | how it ends | [`destruction`], [`clearer`] |

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
pub(crate) mod move_contexts;
pub(crate) mod moves;
pub(crate) mod offer;
pub(crate) mod page_table;
pub(crate) mod paging_in;
pub(crate) mod pending_residency;
pub(crate) mod relocation;
pub(crate) mod residency;
pub(crate) mod save_areas;
pub(crate) mod uses;
pub(crate) mod vm;
pub(crate) mod vram;
