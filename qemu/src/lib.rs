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
//! Every engine has a thread of its own ([`engine`]). Whoever calls [`device::Device`] (the
//! connection's thread) never waits for an engine, with one bounded exception: taking system memory
//! away ([`device::Device::dma_unmap`]) waits until no engine is inside a chunk of work that may
//! touch it ([`bus`]).
//!
//! # Trust
//!
//! Register values, memory and programs are whatever the guest wrote. All of it may change while it
//! is read: everything is read once into a local before it is checked and used.
//!
//! # Locks
//!
//! In the order in which they are taken: the register file, an engine's mailbox; the fault ring,
//! the status page's address, the bus table. No thread holds the bus table while it takes another
//! lock.

#![forbid(unsafe_code)]

pub mod bus;
pub mod command;
pub mod counters;
pub mod device;
pub mod engine;
pub mod fault;
pub mod gart;
pub mod interrupt;
pub mod lie;
pub mod memory;
pub mod mmu;
pub mod options;
pub mod program;
pub mod registers;
pub mod status;
pub mod tlb;
pub mod vram;
