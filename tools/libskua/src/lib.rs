// SPDX-License-Identifier: MIT

//! Safe access to a Skua GPU through its render node.
//!
//! Each ioctl of `include/uapi/drm/skua_drm.h` is a method here, with typed errors, restarted when
//! a signal comes first; objects destroy their handles when they are dropped. The header says what
//! each ioctl does and which errors it returns, the hardware manual what commands do. Nothing is
//! global, nothing is printed, and no thread is started.
//!
//! | type | what it is |
//! |---|---|
//! | [`Device`] | an open render node; [`Device::enumerate`] finds them by PCI id |
//! | [`Bo`], [`Mapping`] | memory, and how the CPU gets at it |
//! | [`Vm`], [`Bind`] | an address space, and changes to it |
//! | [`Context`], [`Submission`] | a queue of work, and work for it |
//! | [`ContextAllocation`] | memory that is there while contexts work |
//! | [`CommandBuffer`] | commands in memory |
//! | [`Syncobj`] | to wait for and to signal |
//! | [`MonitoredFence`] | a value to wait for and to signal, before it is promised |
//! | [`SyncEvent`], [`SyncFile`] | the same for reactors, and for other processes |
//! | [`Error`], [`Outcome`] | what went wrong in a call; how work ended |
//! | [`raw`] | the ioctls as they are, for tests |
//!
//! # A first program
//!
//! It fills VRAM with a pattern and copies it to where the CPU sees it.
//!
//! ```no_run
#![doc = include_str!("../examples/first.rs")]
//! ```
//!
//! # Work that does not wait
//!
//! [`Context::run`] and [`Vm::map`] block. Everything can also be chained without the CPU, by
//! syncobjs: here a bind, then two submissions to two engines, and one wait at the end.
//!
//! ```no_run
//! # use libskua::{Access, Bo, CommandBuffer, Context, Deadline, Syncobj, Vm, Error};
//! # fn f(device: &libskua::Device, vm: &Vm, bo: &Bo, upload: &Context, compute: &Context,
//! #      first: &CommandBuffer, second: &CommandBuffer) -> Result<(), Error> {
//! let timeline = Syncobj::create(device)?;
//! vm.bind()
//!     .map(bo, 0, 0x4000_0000, bo.size(), Access::ReadWrite)
//!     .signal(&timeline, 1)
//!     .submit()?;
//! upload
//!     .submission()
//!     .commands(first)
//!     .wait(&timeline, 1)
//!     .signal(&timeline, 2)
//!     .submit()?;
//! compute
//!     .submission()
//!     .commands(second)
//!     .wait(&timeline, 2)
//!     .signal(&timeline, 3)
//!     .submit()?;
//! timeline.wait_done(3, Deadline::NEVER)?;
//! # Ok(())
//! # }
//! ```
//!
//! In an asynchronous program, [`Syncobj::eventfd`] takes the place of the wait.
//!
//! # When work fails
//!
//! A fault or an endless loop fails the submission, and its context takes no more; other contexts
//! go on. Whether a submission was done says the binary syncobj that it signals, for good, and the
//! point of a timeline, until a later one has a fence: [`Syncobj::outcome`] says what holds then.
//!
//! ```no_run
//! # use libskua::{CommandBuffer, Context, ContextStatus, Deadline, Error, ErrorKind, Outcome};
//! # fn f(context: &Context, commands: &CommandBuffer) -> Result<(), Error> {
//! match context.run(commands, Deadline::NEVER) {
//!     Err(Error::Work(Outcome::Fault)) => {
//!         if let ContextStatus::Faulted(fault) = context.state()?.status {
//!             eprintln!("{:?} at {:#x}", fault.reason, fault.address);
//!         }
//!     }
//!     Err(error) if error.kind() == ErrorKind::Gone => eprintln!("unplugged"),
//!     other => other?,
//! }
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs, unsafe_code, unsafe_op_in_unsafe_fn)]

mod bo;
mod client_device;
mod command_buffer;
mod context;
mod context_allocation;
mod device;
mod dma_buf;
mod error;
mod mapping;
mod monitored_fence;
pub mod raw;
mod segment_sets;
mod sync;
mod sync_file;
mod syncobj;
mod sys;
mod vm;

/// Encodings of commands and reasons of faults.
pub use skua_spec as spec;
pub use skua_spec::command::{Blend, Dispatch, Draw, EngineKind, Rectangle};
/// Structures and numbers of the ioctls.
pub use skua_uapi as uapi;

pub use bo::{Bo, BoFlags, BoInfo, DestroyFlags, MakeResident, OfferPriority};
pub use client_device::{ClientDevice, ClientDeviceState, DeviceStatus, Residency, Trim};
pub use command_buffer::CommandBuffer;
pub use context::{Context, ContextState, ContextStatus, Fault, Submission};
pub use context_allocation::ContextAllocation;
pub use device::{Device, DeviceInfo, Engine, Node, Placements, RegionInfo, RegionKind};
pub use dma_buf::{CpuAccess, DmaBuf};
pub use error::{Errno, Error, ErrorKind, Result};
pub use mapping::Mapping;
pub use monitored_fence::{MonitoredFence, OnFailure, WaitFor};
pub use segment_sets::SegmentSets;
pub use sync::{Deadline, Outcome};
pub use sync_file::SyncFile;
pub use syncobj::{SyncEvent, Syncobj, WaitFlags};
pub use sys::Word;
pub use vm::{Access, Bind, Vm};
