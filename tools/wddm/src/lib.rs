// SPDX-License-Identifier: MIT

//! WDDM's concepts over libskua.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod adapter;
mod address_space;
mod allocation;
mod context;
mod device;
mod fence;
mod handle;
mod memory;
mod process;
mod scheduler;
mod status;
mod usage;

pub use libskua::{self, Deadline, EngineKind, Fault, Mapping, Placements};

pub use adapter::{Adapter, AdapterInfo, Luid};
pub use allocation::{Allocation, AllocationDesc, DestroyFlags, Map, MapFlags, MapMode};
pub use context::{Context, Submission};
pub use device::{Device, DeviceState};
pub use fence::{MonitoredFence, WaitFor, MAX_FENCES};
pub use handle::{Handle, SPARE};
pub use process::{CreatedAllocations, Process, MAX_ALLOCATIONS};
pub use status::{Result, Status};
pub use usage::Access;

/// Locks; what a panic left behind is as good as before, since no code here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
