// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Skua GPU: a device model with no transport in it.
//!
//! What the device does is said in `Documentation/gpu/skua/hardware.rst`; numbers come from
//! [`skua_spec`]. The model is driven through [`device::Device`]: register accesses, mappings of
//! system memory, resets; it answers through memory and [`interrupt::Interrupts`]. The vfio-user
//! server (`bin/skua-gpu`) puts it on QEMU's PCI bus, the tests drive it in process.
//!
//! # Threads
//!
//! What an engine does is a value without a thread, [`engine::core::Core`], that works in bounded
//! steps. Every engine has a thread that steps it ([`engine::worker`]), or one thread steps all, by
//! the device clock ([`options::Stepping`]). Whoever calls [`device::Device`] (the connection's
//! thread) never waits for more than an engine's present step:
//!
//! - to change the bus table (mapping and unmapping system memory, bus mastering), for the steps of
//!   all engines: when [`device::Device::dma_unmap`] returns, no engine is inside one that may
//!   touch what was taken away ([`bus`]);
//! - to move or disable the status page (an adapter reset too), for a write to it;
//! - to change where the GART's table is (an adapter reset too), for the steps of all engines;
//! - to change what the aperture shows (an adapter reset too), for the steps of all engines, for
//!   each 256 KiB of it.
//!
//! Dropping the device waits for all threads to end.
//!
//! # Trust
//!
//! Register values, memory and programs are whatever the guest wrote. All of it may change while it
//! is read: everything is read once into a local before it is checked and used.
//!
//! # Locks
//!
//! In the order in which they are taken: the engines', where [`device::Device::advance`] steps
//! them; the register file; an engine's mailbox, under which the status page is written; the GART's
//! table; the fault ring; the status page's address; the bus table; what the aperture shows; the
//! lies. Nothing is locked under the lies or under an alarm.

#![forbid(unsafe_code)]

pub mod aperture;
pub mod bus;
pub mod command;
pub mod counters;
pub mod device;
pub mod engine;
pub mod events;
pub mod fault;
pub mod gart;
pub mod interrupt;
pub mod lie;
pub mod memory;
pub mod mmu;
pub mod options;
pub mod program;
pub mod registers;
pub mod repeats;
pub mod status;
pub mod tlb;
pub mod vram;
pub mod walk_cache;
