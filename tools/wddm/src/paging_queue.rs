// SPDX-License-Identifier: MIT

//! Paging queues: residency and addresses, and the fence that says when they are as asked.
//!
//! A paging queue has a fence of its own, the **paging fence**. Each operation gets the next value
//! of it, which the fence reaches when that operation and all before it in the queue are done. A
//! call does not wait for the moves; it may wait for room (`DRM_IOCTL_SKUA_MAKE_RESIDENT`).
//!
//! ```text
//!   make_resident ──▶ MAKE_RESIDENT ─┬─▶ value n ──▶ whoever waits, on the GPU or the CPU
//!   map_gpu_… ──────▶ VM_BIND ───────┘
//! ```
//!
//! The paging fence is a [`MonitoredFence`] to wait for, on CPU and GPU, and not to signal: the
//! kernel signals its values.
//!
//! # Residency
//!
//! An allocation is resident for the device as often as it was made so and was not evicted. Of what
//! may be in video memory and not in system memory the device's work finds that, and nothing else:
//! an access to what is not resident may be a fault. That is to fit into a device's budget, a share
//! of video memory that shrinks and grows with what others want
//! (`Documentation/gpu/skua/memory.rst`): more is refused, with the bytes that are too much
//! ([`NotResident`]), unless there is nothing that the caller could evict first. Who has too much
//! because of others is told ([`Device::register_trim_notification`]).
//!
//! What may be in system memory, too, or in the aperture alone, is in no budget, and found by work
//! wherever it is. What waits for the paging fence finds all of it where it is to be.
//!
//! There is no priority among paging queues: the kernel does what it does for one device in the
//! order in which it was asked.

use std::sync::{Arc, Mutex};

use libskua::{Bo, Errno, Error};

use crate::{
    adapter::crowded,
    allocation::Allocation,
    device::Device,
    fence::MonitoredFence,
    lock,
    memory::Memory,
    status::{Result, Status},
};

/// Most allocations of one call that makes them resident, or evicts them
/// (`D3DKMT_MAKERESIDENT_ALLOC_MAX`).
pub const MAX_RESIDENT: usize = 10240;

/// Most allocations that one ioctl takes.
const BATCH: usize = 1024;

bitflags::bitflags! {
    /// `D3DDDI_MAKERESIDENT_FLAGS`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MakeResidentFlags: u32 {
        /// There is nothing that the caller could evict first.
        const CANT_TRIM_FURTHER = 1 << 0;
        /// Rather lose the device than go on without, and only together with the other.
        const MUST_SUCCEED = 1 << 1;
    }

    /// `D3DDDI_EVICT_FLAGS`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EvictFlags: u32 {
        /// Move nothing before its room is needed, which is how it is always done here.
        const EVICT_ONLY_IF_NECESSARY = 1 << 0;
        /// The GPU has not written since it was made resident: a hint, which is not used, since
        /// the kernel knows by itself which copies are clean, and a wrong one would lose content.
        const NOT_WRITTEN_TO = 1 << 1;
    }
}

/// What became of an operation that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paging {
    /// [`Status::SUCCESS`] if it is done, otherwise [`Status::PENDING`].
    pub status: Status,
    /// The value that the paging fence has when it is done (`PagingFenceValue`).
    pub fence_value: u64,
    /// Bytes by which the device exceeds its budget by then (`NumBytesToTrim`).
    pub bytes_to_trim: u64,
}

/// Why nothing was made resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResident {
    /// The status with which the call fails.
    pub status: Status,
    /// Bytes to evict first (`NumBytesToTrim`), if that is why; of more than 1024 allocations,
    /// those up to the one at which they were too many.
    pub bytes_to_trim: u64,
}

impl From<Status> for NotResident {
    fn from(status: Status) -> Self {
        Self {
            status,
            bytes_to_trim: 0,
        }
    }
}

impl From<NotResident> for Status {
    fn from(refused: NotResident) -> Self {
        refused.status
    }
}

/// A paging queue; destroyed when dropped.
///
/// ```no_run
/// # use std::time::Duration;
/// # use wddm::{Allocation, Device, MakeResidentFlags, PagingQueue, Status};
/// # fn f(device: &Device, allocation: &Allocation) -> Result<(), Status> {
/// let queue = PagingQueue::create(device)?;
/// let paging = queue.make_resident(&[allocation], MakeResidentFlags::empty())?;
/// if paging.status == Status::PENDING {
///     queue.fence().wait(paging.fence_value, Duration::from_secs(1))?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PagingQueue {
    /// The device that is told what is to be resident.
    device: Device,
    /// The paging fence, which this queue alone signals.
    fence: Arc<MonitoredFence>,
    /// The value of the last operation; locked over one, so that values come in order.
    last: Mutex<u64>,
}

impl PagingQueue {
    /// Creates a paging queue (`D3DKMTCreatePagingQueue`).
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if there are too many fences; NO_MEMORY; DEVICE_REMOVED;
    /// INVALID_HANDLE if the device is destroyed.
    pub fn create(device: &Device) -> Result<Self> {
        Ok(Self {
            fence: Arc::new(MonitoredFence::of_paging(device)?),
            device: device.clone(),
            last: Mutex::default(),
        })
    }

    /// The device that it was created on.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The paging fence, whose values [`Paging::fence_value`] names.
    pub const fn fence(&self) -> &Arc<MonitoredFence> {
        &self.fence
    }

    /// Makes allocations resident once more, all of them or none (`D3DKMTMakeResident`).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_RESIDENT`], one is there twice or is
    /// of another device, or `flags` has MUST_SUCCEED alone; INVALID_HANDLE if one, the queue or
    /// the device is destroyed; GRAPHICS_ALLOCATION_BUSY if one is offered; NO_MEMORY if they
    /// exceed the budget, which CANT_TRIM_FURTHER permits, or video memory, or there is no room for
    /// all of them: with MUST_SUCCEED that is DEVICE_REMOVED, and the device is in error
    /// ([`crate::DeviceState::OutOfMemory`]); INSUFFICIENT_RESOURCES if 1024 calls of the adapter's
    /// opening are not done, 64 of them for want of an [`Allocation::unlock2`], or one is resident
    /// for too many devices, or too many times.
    pub fn make_resident(
        &self,
        allocations: &[&Allocation],
        flags: MakeResidentFlags,
    ) -> Result<Paging, NotResident> {
        if flags == MakeResidentFlags::MUST_SUCCEED {
            return Err(Status::INVALID_PARAMETER.into());
        }
        let memories = memories(&self.device, allocations)?;
        let kernel = self.device.scheduler().tables().kernel();
        let mut paging = None;
        for (n, batch) in memories.chunks(BATCH).enumerate() {
            let bos: Vec<&Bo> = batch.iter().map(|memory| memory.bo()).collect();
            let mut bytes_to_trim = 0;
            let done = self.enqueue(|fence, value| {
                let mut residency = kernel.make_resident(&bos).signal_value(fence, value);
                if flags.contains(MakeResidentFlags::MUST_SUCCEED) {
                    residency = residency.must_succeed();
                } else if flags.contains(MakeResidentFlags::CANT_TRIM_FURTHER) {
                    residency = residency.cannot_trim_further();
                }
                let result = residency.submit();
                bytes_to_trim = match result {
                    Ok(bytes) | Err(Error::OverBudget { bytes }) => bytes,
                    Err(_) => 0,
                };
                result.map(drop).map_err(crowded)
            });
            match done {
                Ok(done) => {
                    paging = Some(Paging {
                        bytes_to_trim,
                        ..done
                    });
                }
                Err(status) => {
                    // None of them: what came before is taken back.
                    let _ = evict(&self.device, &memories[..n * BATCH]);
                    return Err(NotResident {
                        status,
                        bytes_to_trim,
                    });
                }
            }
        }
        Ok(paging.ok_or(Status::INVALID_PARAMETER)?)
    }

    /// Gives the next operation to the kernel, with the value that it signals when it is done.
    pub(crate) fn enqueue(
        &self,
        operation: impl FnOnce(&libskua::MonitoredFence, u64) -> Result<()>,
    ) -> Result<Paging> {
        let fence = self.fence.fence();
        let mut last = lock(&self.last);
        self.device.scheduler().check_alive()?;
        if fence.is_closed() {
            return Err(Status::INVALID_HANDLE);
        }
        let value = *last + 1;
        if let Err(status) = operation(&fence.raw, value) {
            // Who destroys the queue meanwhile signals all of its values, and so does a failure.
            return Err(match fence.is_closed() {
                true => Status::INVALID_HANDLE,
                false if fence.is_lost() => Status::DEVICE_REMOVED,
                false => status,
            });
        }
        *last = value;
        Ok(Paging {
            status: match fence.reached(value) {
                true => Status::SUCCESS,
                false => Status::PENDING,
            },
            fence_value: value,
            bytes_to_trim: 0,
        })
    }

    /// Destroys it, with its fence (`D3DKMTDestroyPagingQueue`). What it was asked for is done all
    /// the same. Again it does nothing.
    pub fn destroy(&self) {
        self.fence.destroy();
    }
}

impl Drop for PagingQueue {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Device {
    /// Takes one [`PagingQueue::make_resident`] of each allocation back, of all of them or of none
    /// (`D3DKMTEvict`): the bytes by which the device exceeds its budget then (`NumBytesToTrim`).
    /// Nothing moves before its room is needed.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_RESIDENT`], or one is there twice, is
    /// of another device, or not resident; INVALID_HANDLE if one is destroyed; DEVICE_REMOVED.
    pub fn evict(&self, allocations: &[&Allocation], _flags: EvictFlags) -> Result<u64> {
        let memories = memories(self, allocations)?;
        self.scheduler().check_alive()?;
        evict(self, &memories)?;
        self.scheduler().tables().excess()
    }
}

/// Allocations of a device, checked.
pub(crate) fn memories(device: &Device, allocations: &[&Allocation]) -> Result<Vec<Arc<Memory>>> {
    if allocations.is_empty() || allocations.len() > MAX_RESIDENT {
        return Err(Status::INVALID_PARAMETER);
    }
    let memories = allocations
        .iter()
        .map(|allocation| allocation.memory(device))
        .collect::<Result<Vec<_>>>()?;
    let mut sorted: Vec<u64> = memories.iter().map(|memory| memory.va()).collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Status::INVALID_PARAMETER);
    }
    Ok(memories)
}

fn evict(device: &Device, memories: &[Arc<Memory>]) -> Result<()> {
    let kernel = device.scheduler().tables().kernel();
    let bos: Vec<&Bo> = memories.iter().map(|memory| memory.bo()).collect();
    for (n, batch) in bos.chunks(BATCH).enumerate() {
        if let Err(error) = kernel.evict(batch) {
            for before in bos[..n * BATCH].chunks(BATCH) {
                // They were resident; without memory for it they are less so than they were.
                let resident = || kernel.make_resident(before).cannot_trim_further();
                let done = resident().submit_and_wait();
                // Something is locked, which no syncobj can wait for.
                if done.is_err_and(|error| error.errno() == Some(Errno::BUSY)) {
                    let _ = resident().submit();
                }
            }
            return Err(error.into());
        }
    }
    Ok(())
}
