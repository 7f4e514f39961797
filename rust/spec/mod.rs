// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Skua GPU's hardware specification as code.
//!
//! What `Documentation/gpu/skua/hardware.rst` says in words stands here as types and constants, and
//! nothing else: no state, no policy, no input or output. The device model, the driver, the
//! assembler and the tests all take their numbers from here, so that each exists once. The manual
//! and its golden vectors (bytes and their meaning, made by hand) keep this crate honest: a mistake
//! made here would otherwise agree with itself on both sides.
//!
//! | module | manual section | what it holds |
//! |---|---|---|
//! | [`pci`] | 1 Identity | vendor, device, BARs, MSI-X vectors |
//! | [`config`] | | the table of registers of the configuration space |
//! | [`regs`] | 2 Registers | the table of registers: offsets, fields, access, reset values |
//! | [`register`] | | how that table is written and used |
//! | [`layout`] | | how tables of what lies in memory are written and used |
//! | [`number`] | | newtypes for what is known by a number: engines, contexts, fences |
//! | [`status`] | 3 Status page | what the device writes: fences, ticks, acks, fault records |
//! | [`ticks`] | | what work takes |
//! | [`address`] | 4 Address spaces | newtypes for every kind of address |
//! | [`mmu`] | 5 Translation | page table and GART entries |
//! | [`context`] | 6 Contexts | the context descriptor |
//! | [`command`] | 7 Commands | encodings of ring and buffer commands |
//! | [`fault`] | 8 Faults | fault records and reasons |
//! | [`isa`] | 9 Programs | the instruction set of compute programs |
//! | [`aperture`] | 10 The CPU host aperture | entries of its table |
//! | [`preemption`] | 11 Preemption | levels, records, how a saved state begins |
//!
//! The file is a crate of its own for the host and a module of `skua.ko`; it therefore uses `core`
//! alone and paths relative to itself.

#[macro_use]
pub mod register;
#[macro_use]
pub mod layout;

pub mod address;
pub mod aperture;
pub(crate) mod bits;
pub mod command;
// What a driver needs of it is the kernel's.
#[cfg(not(MODULE))]
pub mod config;
pub mod context;
pub mod fault;
// A driver does not look into programs.
#[cfg(not(MODULE))]
pub mod isa;
pub mod mmu;
pub mod number;
pub mod pci;
pub mod preemption;
pub mod regs;
pub mod status;
// Nor does it count time.
#[cfg(not(MODULE))]
pub mod ticks;
