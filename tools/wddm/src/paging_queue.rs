// SPDX-License-Identifier: MIT

//! Paging queues: residency and addresses, and the fence that says when they are as asked.
//!
//! A paging queue has a fence of its own, the **paging fence**. Each operation gets the next value
//! of it, which the fence reaches when that operation and all before it in the queue are done. A
//! call does not wait for the moves; it may wait for room (`DRM_IOCTL_SKUA_MAKE_RESIDENT`).
//!
//! ```text
//!   make_resident ──▶ MAKE_RESIDENT ─┐                                    ┌─▶ GPU: the kernel orders it
//!   map_gpu_… ──────▶ VM_BIND ───────┴─▶ point n of the fence's timeline ─┼─▶ CPU: sleeps there
//!                                                                         └─▶ keeper: value n
//! ```
//!
//! The paging fence is a [`MonitoredFence`] to wait for, on CPU and GPU, and not to signal. Who
//! waits for it by these calls is woken by the kernel; who looks at the value by its address sees it
//! when the device's keeper has been woken, too, and has written it.
//!
//! # Residency
//!
//! An allocation is resident as often as it was made so and was not evicted. Here that is a wish:
//! work may use what is not resident, and what is may be out of video memory, if work needs what can
//! be nowhere else (`Documentation/gpu/skua/memory.rst`). What waits for the paging fence finds all
//! of it where it is to be.
//!
//! There is no priority among paging queues: the kernel does what it does for one address space in
//! the order in which it was asked. Budgets, the number of bytes to trim and trim callbacks are not
//! here yet: [`Paging`] has room for what the kernel will tell.

use std::sync::{Arc, Mutex};

use libskua::{Bo, Syncobj};

use crate::{
    allocation::Allocation,
    device::{Device, DeviceState},
    fence::MonitoredFence,
    lock,
    memory::Memory,
    status::{Result, Status},
};

/// Most allocations of one call that makes them resident, or evicts them
/// (`D3DKMT_MAKERESIDENT_ALLOC_MAX`).
pub const MAX_RESIDENT: usize = 10240;

/// Most of one ioctl.
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
        /// The GPU has not written since it was made resident: a hint, which is not used.
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
    /// Whose allocations it moves.
    device: Device,
    /// The paging fence.
    fence: Arc<MonitoredFence>,
    /// Locked over an operation, so that values come in order.
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The value of the last operation.
    last: u64,
    /// The value that the keeper is to be told of next: the next operation's, or `last`.
    watched: u64,
}

impl PagingQueue {
    /// Creates a paging queue (`D3DKMTCreatePagingQueue`).
    ///
    /// # Errors
    ///
    /// NO_MEMORY; DEVICE_REMOVED; INVALID_HANDLE if the device is destroyed.
    pub fn create(device: &Device) -> Result<Self> {
        Ok(Self {
            fence: Arc::new(MonitoredFence::of_paging(device)?),
            device: device.clone(),
            progress: Mutex::default(),
        })
    }

    /// The device that it was created on.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The paging fence.
    pub const fn fence(&self) -> &Arc<MonitoredFence> {
        &self.fence
    }

    /// Makes allocations resident once more, all of them or none (`D3DKMTMakeResident`).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_RESIDENT`], one is there twice or is
    /// of another device, or `flags` has MUST_SUCCEED alone; INVALID_HANDLE if one, the queue or the
    /// device is destroyed; NO_MEMORY or GRAPHICS_NO_VIDEO_MEMORY if there is no room for all of
    /// them; with MUST_SUCCEED that is DEVICE_REMOVED, and the device is in error
    /// ([`DeviceState::OutOfMemory`]).
    pub fn make_resident(
        &self,
        allocations: &[&Allocation],
        flags: MakeResidentFlags,
    ) -> Result<Paging> {
        if flags == MakeResidentFlags::MUST_SUCCEED {
            return Err(Status::INVALID_PARAMETER);
        }
        let memories = memories(&self.device, allocations)?;
        let device = self.device.adapter().libskua();
        let mut paging = None;
        for (n, batch) in memories.chunks(BATCH).enumerate() {
            let bos: Vec<&Bo> = batch.iter().map(|memory| memory.bo()).collect();
            let done = self.enqueue(|timeline, point| {
                let residency = device.make_resident(&bos).signal(timeline, point);
                Ok(residency.submit().map(drop)?)
            });
            match done {
                Ok(done) => paging = Some(done),
                Err(status) => {
                    // None of them: what came before is taken back.
                    let _ = evict(&self.device, &memories[..n * BATCH]);
                    return Err(self.refusal(status, flags));
                }
            }
        }
        paging.ok_or(Status::INVALID_PARAMETER)
    }

    /// What a lack of memory is for the caller.
    fn refusal(&self, status: Status, flags: MakeResidentFlags) -> Status {
        let lack = [Status::NO_MEMORY, Status::GRAPHICS_NO_VIDEO_MEMORY].contains(&status);
        if lack && flags.contains(MakeResidentFlags::MUST_SUCCEED) {
            self.device.scheduler().give_up(DeviceState::OutOfMemory);
            return Status::DEVICE_REMOVED;
        }
        status
    }

    /// Gives the next operation to the kernel, with the point that it signals when it is done.
    pub(crate) fn enqueue(
        &self,
        operation: impl FnOnce(&Syncobj, u64) -> Result<()>,
    ) -> Result<Paging> {
        let scheduler = self.device.scheduler();
        let fence = self.fence.fence();
        let mut progress = lock(&self.progress);
        scheduler.check_alive()?;
        if fence.is_closed() {
            return Err(Status::INVALID_HANDLE);
        }
        let point = progress.last + 1;
        // Before, since nothing may fail behind the operation.
        if progress.watched < point {
            scheduler.watch_paging(fence, point)?;
            progress.watched = point;
        }
        operation(&fence.syncobj, point)?;
        progress.last = point;
        Ok(Paging {
            status: match scheduler.paged(fence, point)? {
                true => Status::SUCCESS,
                false => Status::PENDING,
            },
            fence_value: point,
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
    /// (`D3DKMTEvict`). Nothing moves before its room is needed.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_RESIDENT`], or one is there twice, is
    /// of another device, or not resident; INVALID_HANDLE if one is destroyed; DEVICE_REMOVED.
    pub fn evict(&self, allocations: &[&Allocation], _flags: EvictFlags) -> Result<()> {
        let memories = memories(self, allocations)?;
        self.scheduler().check_alive()?;
        evict(self, &memories)
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
    let skua = device.adapter().libskua();
    let bos: Vec<&Bo> = memories.iter().map(|memory| memory.bo()).collect();
    for (n, batch) in bos.chunks(BATCH).enumerate() {
        if let Err(error) = skua.evict(batch) {
            for before in bos[..n * BATCH].chunks(BATCH) {
                // They were resident; without memory for it they are less so than they were.
                let _ = skua.make_resident(before).submit();
            }
            return Err(error.into());
        }
    }
    Ok(())
}
