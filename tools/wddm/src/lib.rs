// SPDX-License-Identifier: MIT

//! WDDM's concepts for user-mode drivers, over libskua.
//!
//! The Windows Display Driver Model splits a graphics driver in two, and this is what its user-mode
//! half sees of the system: adapters, devices, contexts, allocations and monitored fences, with
//! WDDM's rules and status codes. `Documentation/gpu/skua/wddm.rst` explains it concept by concept.
//!
//! | type | WDDM | what it is |
//! |---|---|---|
//! | [`Adapter`] | `D3DKMTOpenAdapterFromLuid` | a GPU, and who has which addresses on it |
//! | [`Device`] | `D3DKMTCreateDevice` | what is resident together, and goes to error together |
//! | [`Context`] | `D3DKMTCreateContextVirtual` | a queue of work for a node |
//! | [`Submission`] | `D3DKMTSubmitCommand` | work for it |
//! | [`Allocation`] | `D3DKMTCreateAllocation2` | memory |
//! | [`Map`] | a user-mode driver's Map | the CPU's way to it, until it is dropped |
//! | [`Allocation::lock2`] | `D3DKMTLock2` | its address for the CPU |
//! | [`PagingQueue`] | `D3DKMTCreatePagingQueue` | what is resident, and where the GPU sees it |
//! | [`TrimRegistration`] | `D3DKMTRegisterTrimNotification` | who is told that a device has too much |
//! | [`MonitoredFence`] | `D3DKMTCreateSynchronizationObject2` | a 64-bit value that grows |
//! | [`Process`], [`Handle`] | `D3DKMT_HANDLE` | all of these by number, for interfaces in C |
//! | [`Status`] | `NTSTATUS` | how a call ended |
//!
//! All of it may be used from several threads at a time. Who waits sleeps in the kernel, unless
//! that lacks memory for it: a destruction asks again every 20 milliseconds then. A [`Device`] has
//! a thread as long as trim callbacks are registered, and none otherwise. Objects destroy
//! themselves when they are dropped.
//!
//! # A first program
//!
//! ```no_run
#![doc = include_str!("../examples/first_wddm.rs")]
//! ```
//!
//! # Not here yet
//!
//! What is missing is listed in `Documentation/gpu/skua/wddm.rst`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod adapter;
mod address_space;
mod allocation;
mod context;
mod device;
mod fence;
mod gpu_va;
mod handle;
mod memory;
mod offer;
mod page_tables;
mod paging_queue;
mod process;
mod scheduler;
mod segment_set;
mod status;
mod trim;
mod usage;

/// What this crate is made of, for what has no name in WDDM.
pub use libskua;
pub use libskua::{Deadline, EngineKind, Fault, Mapping, OfferPriority};

pub use adapter::{
    Adapter, AdapterInfo, Luid, MemorySegmentGroup, PreemptionCaps, PriorityClass, VideoMemoryInfo,
};
pub use allocation::{Allocation, AllocationDesc, DestroyFlags, Map, MapFlags, MapMode};
pub use context::{Context, Submission};
pub use device::{Device, DeviceState};
pub use fence::{MonitoredFence, WaitFor, MAX_FENCES};
pub use gpu_va::{MapDesc, Protection, ReservationType, ReserveDesc, UpdateFlags, VaOperation};
pub use handle::{Handle, SPARE};
pub use offer::{OfferFlags, ReclaimResult};
pub use paging_queue::{
    EvictFlags, MakeResidentFlags, NotResident, Paging, PagingQueue, MAX_RESIDENT,
};
pub use process::{CreatedAllocations, CreatedPagingQueue, Process, MAX_ALLOCATIONS};
pub use segment_set::SegmentSet;
pub use status::{Result, Status};
pub use trim::{TrimFlags, TrimNotification, TrimRegistration};
pub use usage::Access;

/// Locks. What a thread that panicked left behind is whole: no code here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
