// SPDX-License-Identifier: MIT

//! Devices: what a client's contexts, allocations and fences belong to, and go to error with.
//!
//! ```text
//!     Adapter ──────▶ Device ───────┬─▶ Context, Context, …
//!       addresses       page tables ├─▶ Allocation, Allocation, …
//!                       residency   └─▶ MonitoredFence, …
//! ```
//!
//! It is a device of the kernel's with explicit residency: what is resident for it, its budget and
//! whether it has failed the kernel knows. An opening of an adapter has 16 at most; one counts
//! twice as soon as an eventfd has waited for fences of it, until it is destroyed.
//!
//! A fault, a job that hangs, or the loss of the GPU takes all of a device out of service, and
//! nothing of another device. Its state says why; what comes next is a new device.
//!
//! Destroying a device destroys what belongs to it: calls on those objects are INVALID_HANDLE from
//! then on, sleepers are woken, work that has not started is cancelled, and work that runs, or that
//! a thread is just submitting, is waited for. A device that is not destroyed explicitly is when it
//! and all its objects have been dropped.
//!
//! A device belongs to the process that made it. A child that got it by fork() has not its thread,
//! and must not use it: what it drops or destroys there stays the parent's.

use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Mutex, Weak,
    },
};

use libskua::{spec::fault::Reason, Deadline, Fault};

use crate::{
    adapter::Adapter,
    allocation,
    fence::{self, Fence, MonitoredFence, WaitFor, MAX_FENCES},
    lock,
    scheduler::Scheduler,
    status::{Result, Status},
};

/// Whether a device takes work, and why not (`D3DKMT_DEVICEEXECUTION_STATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Submissions are accepted.
    Active,
    /// Work of the device did not end, and was cut (`DXGI_ERROR_DEVICE_HUNG`).
    Hung,
    /// The GPU was reset, because of others' work or of nobody's.
    Reset,
    /// The GPU is gone or does not answer any more, or it is for another reason: the program says
    /// so ([`Device::mark_as_error`]); held work, or an update of addresses, could not be done; or
    /// work of a destroyed context faulted, of which something was held.
    Stopped,
    /// What had to be made resident was not ([`crate::MakeResidentFlags::MUST_SUCCEED`]).
    OutOfMemory,
    /// Its commands or programs were malformed.
    DmaFault(Fault),
    /// Its work accessed an address that it may not access.
    PageFault(Fault),
    /// The program has destroyed it.
    Destroyed,
}

impl DeviceState {
    pub(crate) fn of_fault(fault: Fault) -> Self {
        match fault.reason {
            Ok(Reason::AddressRange | Reason::NotPresent | Reason::ReadOnly) => {
                Self::PageFault(fault)
            }
            _ => Self::DmaFault(fault),
        }
    }

    /// The number in WDDM's enumeration. A destroyed device has none: it is shown as stopped.
    pub const fn number(self) -> u32 {
        match self {
            Self::Active => 1,
            Self::Reset => 2,
            Self::Hung => 3,
            Self::Stopped | Self::Destroyed => 4,
            Self::OutOfMemory => 5,
            Self::DmaFault(_) => 6,
            Self::PageFault(_) => 7,
        }
    }
}

/// A device; cheap to clone.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The adapter has it too, for trim callbacks.
    scheduler: Arc<Scheduler>,
    /// What is destroyed with the device.
    allocations: Mutex<HashMap<u64, Weak<allocation::Inner>>>,
    /// Number of the next allocation.
    next: AtomicU64,
}

impl Device {
    /// Creates a device (`D3DKMTCreateDevice`).
    ///
    /// # Errors
    ///
    /// NO_MEMORY; INSUFFICIENT_RESOURCES if there are too many devices, fences or descriptors;
    /// DEVICE_REMOVED.
    pub fn create(adapter: &Adapter) -> Result<Self> {
        let scheduler = Scheduler::new(adapter)?;
        adapter.register(&scheduler);
        Ok(Self(Arc::new(Inner {
            scheduler,
            allocations: Mutex::default(),
            next: AtomicU64::new(1),
        })))
    }

    /// The adapter that it is on.
    pub fn adapter(&self) -> &Adapter {
        self.0.scheduler.adapter()
    }

    /// Its state (`D3DKMTGetDeviceState`).
    ///
    /// Errors are noticed when the GPU reports them, without anybody asking.
    pub fn state(&self) -> DeviceState {
        self.0.scheduler.execution()
    }

    /// Puts it in error (`D3DKMTMarkDeviceAsError`): for a user mode driver that finds out that it
    /// cannot go on. What has not started is cancelled, and nothing is accepted any more. A device
    /// that is in error already keeps its state.
    pub fn mark_as_error(&self) {
        self.0.scheduler.mark_as_error();
    }

    /// Destroys it and all that belongs to it (`D3DKMTDestroyDevice`); see the head of this file.
    /// Again it does nothing.
    pub fn destroy(&self) {
        self.0.destroy();
    }

    /// Sleeps in the kernel until fences have their values
    /// (`D3DKMTWaitForSynchronizationObjectFromCpu`). Values may be ones that nobody is about to
    /// signal yet. Returns the index of a fence that has its value if `how` is
    /// [`WaitFor::Any`], otherwise 0.
    ///
    /// Makes no system call if the values are there already.
    ///
    /// # Errors
    ///
    /// TIMEOUT if `deadline` comes first; DEVICE_REMOVED if the device is or goes to error;
    /// INVALID_PARAMETER if there are none or more than [`MAX_FENCES`] fences, or one is of another
    /// device; INVALID_HANDLE if one of them, or the device, is or gets destroyed;
    /// GRAPHICS_ALLOCATION_BUSY if a value that is missing comes when something is unlocked that
    /// any thread has locked, also where another value might suffice; NO_MEMORY.
    pub fn wait_from_cpu(
        &self,
        waits: &[(&MonitoredFence, u64)],
        how: WaitFor,
        deadline: impl Into<Deadline>,
    ) -> Result<usize> {
        let waits = self.fences(waits)?;
        fence::wait(&self.0.scheduler, &waits, how, deadline.into())
    }

    /// Adds 1 to an eventfd, once, when fences have their values, or the device is in error or
    /// destroyed (`hAsyncEvent`). Whoever is woken looks at the values and at the device's state.
    /// The eventfd may be closed after this, and the fences destroyed: one that was shared is
    /// waited for until others have signalled it, or cannot.
    ///
    /// # Errors
    ///
    /// As [`Device::wait_from_cpu`], without TIMEOUT; INVALID_PARAMETER if it is no eventfd;
    /// INSUFFICIENT_RESOURCES if those of the adapter's opening wait for 4096 values, or there are
    /// too many devices, fences or descriptors.
    pub fn wait_from_cpu_async(
        &self,
        waits: &[(&MonitoredFence, u64)],
        how: WaitFor,
        eventfd: BorrowedFd<'_>,
    ) -> Result<()> {
        let waits = self.fences(waits)?;
        fence::notify(&self.0.scheduler, &waits, how, eventfd)
    }

    /// The fences of a wait, checked.
    fn fences(&self, waits: &[(&MonitoredFence, u64)]) -> Result<Vec<(Arc<Fence>, u64)>> {
        if waits.is_empty() || waits.len() > MAX_FENCES {
            return Err(Status::INVALID_PARAMETER);
        }
        waits
            .iter()
            .map(|(fence, value)| {
                if fence.device() != self {
                    return Err(Status::INVALID_PARAMETER);
                }
                Ok((fence.fence().clone(), *value))
            })
            .collect()
    }

    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.0.scheduler
    }

    /// See [`Adapter::is_inherited`].
    pub(crate) fn is_inherited(&self) -> bool {
        self.adapter().is_inherited()
    }

    /// Lets the device destroy an allocation with itself.
    pub(crate) fn adopt(
        &self,
        make: impl FnOnce(u64) -> Arc<allocation::Inner>,
    ) -> Result<Arc<allocation::Inner>> {
        let mut allocations = lock(&self.0.allocations);
        // A device that is being destroyed says so before it takes this lock.
        self.0.scheduler.check_alive()?;
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let inner = make(id);
        allocations.insert(id, Arc::downgrade(&inner));
        Ok(inner)
    }

    pub(crate) fn disown(&self, id: u64) {
        lock(&self.0.allocations).remove(&id);
    }
}

impl PartialEq for Device {
    /// Whether they are the same device.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl Inner {
    fn destroy(&self) {
        if self.scheduler.adapter().is_inherited() {
            return;
        }
        self.scheduler.shut_down();
        let allocations = std::mem::take(&mut *lock(&self.allocations));
        for allocation in allocations.values().filter_map(Weak::upgrade) {
            if let Some(memory) = allocation.take() {
                // Nothing uses it any more.
                memory.destroy(None);
            }
        }
        self.scheduler.stop();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_wddms_numbers() {
        let fault = |reason| Fault {
            reason: Ok(reason),
            access: Err(0),
            address: 0,
            command: 0,
            detail: 0,
            pc: None,
        };
        let of = |reason| DeviceState::of_fault(fault(reason)).number();
        assert_eq!(of(Reason::NotPresent), 7);
        assert_eq!(of(Reason::BadOpcode), 6);
        assert_eq!(DeviceState::OutOfMemory.number(), 5);
        assert_eq!(DeviceState::Stopped.number(), 4);
    }
}
