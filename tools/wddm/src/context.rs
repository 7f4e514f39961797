// SPDX-License-Identifier: MIT

//! Contexts: queues of work for one node.
//!
//! Packets of a context are done in the order in which they were queued: work
//! ([`Context::submit`], [`Submission`]), signals of fences behind it, and waits before what
//! follows. Nothing here waits for what is queued, but a submission may wait for room in video
//! memory, and behind it what else is submitted to its context, or is to wait there. Contexts of a
//! device are not ordered among each other, but by fences.
//!
//! ```no_run
//! # use wddm::{Context, MonitoredFence, Status};
//! # fn f(first: &Context, second: &Context, fence: &MonitoredFence, va: u64) -> Result<(), Status>
//! { // The second waits for what the first does; which of these lines comes first does not matter.
//! second.wait_from_gpu(&[(fence, 1)])?; second.submit(va + 4096, 64)?;
//! first.submission().commands(va, 64).signal(fence, 1).submit()?;
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Mutex};

use libskua::CommandBuffer;

use crate::{
    allocation::Allocation,
    device::Device,
    fence::{MonitoredFence, MAX_FENCES},
    gpu_va::{Update, UpdateFlags, VaOperation},
    scheduler::Among,
    status::{Result, Status},
    usage::{Access, Usage},
};

/// A context; destroyed when dropped.
#[derive(Debug)]
pub struct Context {
    /// The device that the context was created on, whose scheduler has its queue.
    device: Device,
    /// The scheduler's number of it.
    id: u64,
}

impl Context {
    /// Creates a context for a node (`D3DKMTCreateContextVirtual`), by its ordinal in
    /// [`crate::Adapter::nodes`].
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there is no such node; INSUFFICIENT_RESOURCES if there are too many
    /// contexts; NO_MEMORY; DEVICE_REMOVED; INVALID_HANDLE if the device is destroyed.
    pub fn create(device: &Device, node: u32) -> Result<Self> {
        Ok(Self {
            id: device.scheduler().create_context(node)?,
            device: device.clone(),
        })
    }

    /// Creates a context whose work is so important from the beginning; or none.
    ///
    /// # Errors
    ///
    /// As [`Self::create`] and [`Self::set_scheduling_priority`].
    pub fn create_with_priority(device: &Device, node: u32, priority: i32) -> Result<Self> {
        let context = Self::create(device, node)?;
        context.set_scheduling_priority(priority)?;
        Ok(context)
    }

    /// The device that it was created on.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Says how important its work is (`D3DKMTSetContextSchedulingPriority`): -7 to 7, 0 at first.
    /// What is queued already counts, too. Updates of addresses stay as they are.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER for another priority; ACCESS_DENIED for one above 0 without
    /// `CAP_SYS_NICE`; DEVICE_REMOVED; INVALID_HANDLE if it is destroyed.
    pub fn set_scheduling_priority(&self, priority: i32) -> Result<()> {
        let scheduler = self.device.scheduler();
        scheduler.set_priority(self.id, Among::All, priority)
    }

    /// What [`Self::set_scheduling_priority`] said last, or 0
    /// (`D3DKMTGetContextSchedulingPriority`).
    ///
    /// # Errors
    ///
    /// DEVICE_REMOVED; INVALID_HANDLE if it is destroyed.
    pub fn scheduling_priority(&self) -> Result<i32> {
        self.device.scheduler().priority(self.id, Among::All)
    }

    /// Says how important its work is among that of this process' contexts on the adapter that have
    /// the same scheduling priority (`D3DKMTSetContextInProcessSchedulingPriority`): -7 to 7, 0 at
    /// first. Other processes notice nothing.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER for another priority; DEVICE_REMOVED; INVALID_HANDLE if it is destroyed.
    pub fn set_in_process_scheduling_priority(&self, priority: i32) -> Result<()> {
        let scheduler = self.device.scheduler();
        scheduler.set_priority(self.id, Among::Process, priority)
    }

    /// What [`Self::set_in_process_scheduling_priority`] said last, or 0
    /// (`D3DKMTGetContextInProcessSchedulingPriority`).
    ///
    /// # Errors
    ///
    /// DEVICE_REMOVED; INVALID_HANDLE if it is destroyed.
    pub fn in_process_scheduling_priority(&self) -> Result<i32> {
        self.device.scheduler().priority(self.id, Among::Process)
    }

    /// Queues commands by their GPU virtual address and bytes, multiples of 8
    /// (`D3DKMTSubmitCommand`).
    ///
    /// # Errors
    ///
    /// As [`Submission::submit`].
    pub fn submit(&self, va: u64, bytes: u32) -> Result<()> {
        self.submission().commands(va, bytes).submit()
    }

    /// Starts a submission that says more.
    pub const fn submission(&self) -> Submission<'_> {
        Submission {
            context: self,
            commands: None,
            signal: None,
            uses: Vec::new(),
        }
    }

    /// Signals fences when everything queued so far is done
    /// (`D3DKMTSignalSynchronizationObjectFromGpu`).
    ///
    /// # Errors
    ///
    /// As [`Submission::submit`], also if there are none or more than [`MAX_FENCES`], or one twice.
    /// None is signalled then.
    pub fn signal_from_gpu(&self, signals: &[(&MonitoredFence, u64)]) -> Result<()> {
        self.check(signals)?;
        for (n, (fence, _)) in signals.iter().enumerate() {
            let same = |(other, _): &(&MonitoredFence, u64)| other.fence().id == fence.fence().id;
            if signals[..n].iter().any(same) {
                return Err(Status::INVALID_PARAMETER);
            }
        }
        let signals: Vec<_> = signals
            .iter()
            .map(|(fence, value)| (fence.fence(), *value))
            .collect();
        self.device.scheduler().submit(self.id, None, &signals, &[])
    }

    /// Lets everything queued from now on wait until fences have at least these values
    /// (`D3DKMTWaitForSynchronizationObjectFromGpu`). The values need not be on their way yet; the
    /// engine works for others meanwhile.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_FENCES`] fences, or one is of another
    /// device; INVALID_HANDLE if one, or the context, is destroyed; INSUFFICIENT_RESOURCES if that
    /// takes one packet too many; DEVICE_REMOVED.
    pub fn wait_from_gpu(&self, waits: &[(&MonitoredFence, u64)]) -> Result<()> {
        self.check(waits)?;
        let waits: Vec<_> = waits
            .iter()
            .map(|(fence, value)| (fence.fence().clone(), *value))
            .collect();
        self.device.scheduler().wait_from_gpu(self.id, &waits)
    }

    /// Changes what is mapped in a reservation, all operations in order
    /// (`D3DKMTUpdateGpuVirtualAddress`), when the fence has the value; when it is done, the fence
    /// has the value + 1. It is not ordered with what is queued here but by the fence, and the call
    /// does not wait. The kernel is given 1024 operations at a time, which copy 16 MiB at most: if
    /// it refuses some, those before are done all the same, without the signal.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are no operations, ranges to change are not all in one
    /// reservation, or those that are copied are not, something is out of its range, the value + 1
    /// could not be signalled now, or something is of another device; INVALID_HANDLE if something
    /// is destroyed; GRAPHICS_ALLOCATION_BUSY for an allocation that is offered; NOT_SUPPORTED for
    /// [`crate::Protection::ZERO`]; INSUFFICIENT_RESOURCES if 4096 of the context, or binds of the
    /// device, wait; NO_MEMORY; DEVICE_REMOVED.
    pub fn update_gpu_virtual_address(
        &self,
        operations: &[VaOperation<&Allocation>],
        fence: Option<(&MonitoredFence, u64)>,
        flags: UpdateFlags,
    ) -> Result<()> {
        if let Some(fence) = fence {
            self.check(&[fence])?;
        }
        let waits = !flags.contains(UpdateFlags::DO_NOT_WAIT);
        let fence = fence.map(|(fence, value)| (fence.fence(), value));
        let make = || Update::new(&self.device, operations);
        self.device.scheduler().update(self.id, make, fence, waits)
    }

    fn check(&self, fences: &[(&MonitoredFence, u64)]) -> Result<()> {
        if fences.is_empty()
            || fences.len() > MAX_FENCES
            || fences.iter().any(|(f, _)| *f.device() != self.device)
        {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(())
    }

    /// Destroys it (`D3DKMTDestroyContext`). What waits for fences that nobody has signalled is
    /// dropped, with its signals, and then so is other work that has not started; without such, all
    /// is left to end. Again it does nothing.
    pub fn destroy(&self) {
        if !self.device.is_inherited() {
            self.device.scheduler().destroy_context(self.id);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A submission in the making.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Submission<'a> {
    /// Whose node runs the commands, behind those that were submitted to it before.
    context: &'a Context,
    /// Address and bytes; `None`: it only signals.
    commands: Option<(u64, u32)>,
    /// The fence, and the value that it gets.
    signal: Option<(&'a MonitoredFence, u64)>,
    /// What must not be freed before it has ended.
    uses: Vec<(&'a Allocation, Access)>,
}

impl<'a> Submission<'a> {
    /// The commands to run, by their GPU virtual address and bytes, multiples of 8. Without this it
    /// only signals.
    pub const fn commands(mut self, va: u64, bytes: u32) -> Self {
        self.commands = Some((va, bytes));
        self
    }

    /// The commands that a recorder holds now.
    pub fn recorded(self, commands: &CommandBuffer) -> Self {
        // CAST: the length of a command buffer is below 2^32.
        self.commands(commands.va(), commands.bytes() as u32)
    }

    /// Signals a fence when they are done.
    pub const fn signal(mut self, fence: &'a MonitoredFence, value: u64) -> Self {
        self.signal = Some((fence, value));
        self
    }

    /// Says that the commands use an allocation, for [`Allocation::map`]. The GPU does not care.
    pub fn uses(mut self, allocation: &'a Allocation, access: Access) -> Self {
        self.uses.push((allocation, access));
        self
    }

    /// Queues it; it does not wait for what is queued before, but for room in video memory where
    /// that is to be made (`DRM_IOCTL_SKUA_SUBMIT`). Other calls go on meanwhile, but those that
    /// add to this context, that have a context signal the same fence, that wait for the end of an
    /// allocation, or that destroy the device. If the context is destroyed meanwhile it goes behind
    /// this.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if the commands' address or size is 0, not a multiple of 8 or beyond the
    /// address space, if the value to signal is not above all that were submitted, or if the fence
    /// or an allocation is of another device; INVALID_HANDLE if one, or the context, is destroyed;
    /// INSUFFICIENT_RESOURCES if 4096 packets of the context are queued; NO_MEMORY;
    /// GRAPHICS_ALLOCATION_BUSY if the CPU has locked what the work needs in video memory;
    /// DEVICE_REMOVED. Nothing is queued then.
    pub fn submit(self) -> Result<()> {
        let device = &self.context.device;
        if let Some((va, bytes)) = self.commands {
            let range = &device.adapter().libskua().info().va;
            let end = va.checked_add(bytes.into());
            if va < range.start.max(8)
                || va % 8 != 0
                || bytes == 0
                || bytes % 8 != 0
                || end.is_none_or(|end| end > range.end)
            {
                return Err(Status::INVALID_PARAMETER);
            }
        }
        if self
            .signal
            .is_some_and(|(fence, _)| fence.device() != device)
        {
            return Err(Status::INVALID_PARAMETER);
        }
        let mut uses: Vec<(Arc<Mutex<Usage>>, Access)> = Vec::with_capacity(self.uses.len());
        for (allocation, access) in self.uses {
            if allocation.device() != device {
                return Err(Status::INVALID_PARAMETER);
            }
            if allocation.is_destroyed() {
                return Err(Status::INVALID_HANDLE);
            }
            uses.push((allocation.usage().clone(), access));
        }
        let signal = self.signal.map(|(fence, value)| (fence.fence(), value));
        device
            .scheduler()
            .submit(self.context.id, self.commands, signal.as_slice(), &uses)
    }
}
