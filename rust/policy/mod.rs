// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Skua driver's decisions, free of kernel types.
//!
//! Each module here is a data structure or a rule that the driver relies on but that needs nothing
//! of a kernel: who gets which memory, which page size maps what, whose turn it is, whether an
//! engine hangs. They are compiled into `skua.ko` and, unchanged, into a crate that is tested on
//! the host against simple models.
//!
//! What they have the GPU do goes through one trait, [`miniport::Miniport`].
//!
//! What all of them keep:
//!
//! - Only `core`, and what the hardware's numbers mean (`spec`). Memory comes from the
//!   [`heap::Heap`] that the includer names, and only while something is created or prepared: what
//!   runs after a fence was published cannot fail for want of memory.
//! - A refused call changes nothing.
//! - No panic and no overflow, whatever the arguments: a caller's mistake is an error value, a
//!   broken promise of the device is an error value.
//! - No locks: the owner of a structure protects it and says so.

pub mod adapter_resets;
pub mod aperture_segment;
pub mod aperture_table;
pub mod bit_tree;
pub mod blocks;
pub mod buddy;
pub mod budget;
pub mod context_allocation;
pub mod eviction;
pub mod fair_share;
pub mod head_clock;
pub mod heap;
pub mod host_aperture;
pub mod id_slots;
pub mod in_flight;
pub mod interval_map;
pub mod miniport;
pub mod node;
pub mod page_plan;
pub mod page_table;
pub mod paging;
pub mod parked;
pub mod patience;
pub mod priority;
pub mod promises;
#[cfg(test)]
mod recorder;
pub mod relocation;
pub mod ring_space;
pub mod scheduler;
pub mod scheduling_caps;
pub mod segment_sets;
pub mod segments;
pub mod transfer_plan;
pub mod turns;
pub mod watchdog;
