// SPDX-License-Identifier: MIT

//! Monitored fences: 64-bit values that grow, to wait for and to signal.
//!
//! A monitored fence is two things that this file keeps in step:
//!
//! - a **value**: eight bytes of memory that the GPU writes when it signals, and that the CPU reads
//!   without a system call;
//! - a **timeline** syncobj, in which the kernel puts waiters to sleep. Point *n* of it is
//!   signalled after the value became at least *n*.
//!
//! ```text
//!   GPU signals   SIGNAL command ─▶ value         fence of the submission ─▶ timeline ─▶ waiters
//!   CPU signals   store ─▶ value, then            SYNCOBJ_TIMELINE_SIGNAL ─▶ timeline ─▶ waiters
//!   CPU waits     load the value: enough? return. Otherwise sleep, look again
//!   GPU waits     the value is submitted? the kernel orders it. Otherwise the queue waits here
//! ```
//!
//! A thread sleeps in the kernel until values are there that are submitted: whatever comes, also
//! the loss of the GPU, the kernel signals those. For values that nobody has submitted the kernel
//! promises nothing, so until they are, threads sleep in this process.
//!
//! # What differs from Windows
//!
//! Signals of one fence take effect in the order in which they are submitted, even from different
//! contexts: a later, larger value is not seen before an earlier, smaller one is done. A value
//! is signalled once: a signal of a value that is not above all submitted ones is
//! INVALID_PARAMETER, and one that was queued behind a wait and overtaken meanwhile does nothing,
//! since the value is reached by other means. [`MonitoredFence::LOST`] cannot be signalled; it is
//! the value of all fences of a device in error.
//!
//! The value is for reading alone. What else writes it, like a SIGNAL command in a client's buffer,
//! wakes nobody; use [`crate::Submission::signal`].
//!
//! When the device goes to error, all its fences become [`MonitoredFence::LOST`] and all waits end
//! with DEVICE_REMOVED (row 2.22). A wait that ends because of that, or because the fence is
//! destroyed, never returns success.

use std::{
    os::fd::BorrowedFd,
    sync::{
        atomic::{fence, AtomicBool, AtomicU64, Ordering},
        Arc, Mutex,
    },
    thread::{self, Thread},
};

use libskua::{Access, BoFlags, Deadline, Mapping, Syncobj, WaitFlags};

use crate::{
    address_space::PAGE,
    device::Device,
    lock,
    memory::Memory,
    page_tables::PageTables,
    scheduler::Scheduler,
    status::{Result, Status},
    Adapter,
};

/// Most fences of one wait or signal, as in WDDM (`D3DDDI_MAX_OBJECT_WAITED_ON`).
pub const MAX_FENCES: usize = 32;

/// Bytes that a fence's value takes in memory.
const VALUE: u64 = 8;

/// Memory for the values of several fences of a device.
#[derive(Debug)]
pub(crate) struct Page {
    /// Where the GPU writes the values.
    memory: Memory,
    /// The library's way to it.
    cpu: Mapping,
    /// The program's, which cannot write.
    user: Mapping,
}

impl Page {
    /// How many cells a page has.
    // CAST: a small number.
    pub(crate) const VALUES: usize = (PAGE / VALUE) as usize;

    pub(crate) fn create(tables: &Arc<PageTables>) -> Result<Self> {
        let memory = Memory::create(
            tables,
            PAGE,
            tables.adapter().system(),
            BoFlags::CPU_ACCESS,
            Access::ReadWrite,
        )?;
        Ok(Self {
            cpu: memory.map()?,
            user: memory.bo().map_read_only()?,
            memory,
        })
    }
}

/// Eight bytes of a page, for the value of one fence at a time.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Kept as long as one of its cells is.
    pub(crate) page: Arc<Page>,
    /// Below [`Page::VALUES`].
    pub(crate) index: usize,
}

impl Cell {
    fn offset(&self) -> usize {
        // No overflow: the index is below Page::VALUES.
        self.index * VALUE as usize
    }
}

/// What a fence is below its handle. What is submitted to it is the scheduler's to know.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Its number among contexts and fences of the device.
    pub(crate) id: u64,
    /// A timeline: who sleeps for submitted values sleeps on it.
    pub(crate) syncobj: Arc<Syncobj>,
    /// Its own until the GPU writes nothing of it any more.
    pub(crate) cell: Cell,
    /// It is destroyed, and kept by what still uses it.
    pub(crate) closed: AtomicBool,
    /// Points above it count as reached: the work was cancelled before it was submitted, or the
    /// context is gone.
    pub(crate) limit: AtomicU64,
    /// The largest value that was signalled, or that the kernel has a fence for; changed with the
    /// scheduler's state locked.
    submitted: AtomicU64,
    /// Whether a paging queue has it: the kernel signals points, and nobody but this process writes
    /// the value, when it learns of them.
    pub(crate) paging: bool,
    /// Threads that sleep until more is submitted.
    sleepers: Mutex<Vec<Thread>>,
}

impl Fence {
    pub(crate) fn new(
        id: u64,
        adapter: &Adapter,
        cell: Cell,
        initial: u64,
        paging: bool,
    ) -> Result<Self> {
        let syncobj = Syncobj::create(adapter.libskua())?;
        if initial > 0 {
            syncobj.signal(initial)?;
        }
        let fence = Self {
            id,
            syncobj: Arc::new(syncobj),
            cell,
            closed: AtomicBool::new(false),
            limit: AtomicU64::new(u64::MAX),
            submitted: AtomicU64::new(initial),
            paging,
            sleepers: Mutex::default(),
        };
        fence.set(initial);
        Ok(fence)
    }

    /// The value, without a system call.
    pub(crate) fn value(&self) -> u64 {
        let value = self.cell.page.cpu.read(self.cell.offset());
        // What the GPU wrote before its signal is to be seen after this.
        fence(Ordering::Acquire);
        // The cell is aligned and inside the page.
        value.unwrap_or(0)
    }

    /// Stores the value, and not more: waiters sleep on.
    pub(crate) fn set(&self, value: u64) {
        fence(Ordering::Release);
        let _ = self.cell.page.cpu.write(self.cell.offset(), value);
    }

    pub(crate) fn va(&self) -> u64 {
        // No overflow: inside the page.
        self.cell.page.memory.va() + self.cell.offset() as u64
    }

    /// Whether the work behind a point is done or was cancelled, by the value alone.
    pub(crate) fn reached(&self, point: u64) -> bool {
        let value = self.value();
        // In this order: the cell is another's only after the limit is 0.
        value >= self.limited(point)
    }

    /// The point, or the last one before it that was not cancelled.
    pub(crate) fn limited(&self, point: u64) -> u64 {
        point.min(self.limit.load(Ordering::Acquire))
    }

    /// Its work is over, and its cell is about to become another's.
    pub(crate) fn end(&self) {
        self.limit.store(0, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The largest value that was signalled, or that the kernel has a fence for.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    pub(crate) fn set_submitted(&self, value: u64) {
        self.submitted.store(value, Ordering::Release);
        self.wake();
    }

    /// Wakes who sleeps until more is submitted, to look again.
    pub(crate) fn wake(&self) {
        for thread in std::mem::take(&mut *lock(&self.sleepers)) {
            thread.unpark();
        }
    }
}

/// How many of several fences a wait needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitFor {
    /// Every fence has its value.
    All,
    /// At least one has (`D3DDDI_WAITFORSYNCHRONIZATIONOBJECTFROMCPU_FLAGS::WaitAny`).
    Any,
}

/// The index of a value that suffices, or `None`; for [`WaitFor::All`] the index is 0.
pub(crate) fn satisfied(waits: &[(Arc<Fence>, u64)], how: WaitFor) -> Option<usize> {
    let reached = |(fence, value): &(Arc<Fence>, u64)| fence.reached(*value);
    match how {
        WaitFor::All => waits.iter().all(reached).then_some(0),
        WaitFor::Any => waits.iter().position(reached),
    }
}

/// Sleeps until fences of one device have their values.
pub(crate) fn wait(
    scheduler: &Scheduler,
    waits: &[(Arc<Fence>, u64)],
    how: WaitFor,
    deadline: Deadline,
) -> Result<usize> {
    let over = || {
        scheduler.check_alive()?;
        if waits.iter().any(|(fence, _)| fence.is_closed()) {
            return Err(Status::INVALID_HANDLE);
        }
        Ok(())
    };
    let mut flags = WaitFlags::FOR_SUBMIT;
    if how == WaitFor::All {
        flags |= WaitFlags::ALL;
    }
    let mut woken = false;
    loop {
        if woken {
            scheduler.settle_paging();
        }
        // In this order: a device in error and a destroyed fence have all values.
        let index = satisfied(waits, how);
        over()?;
        if let Some(index) = index {
            return Ok(index);
        }
        if woken {
            // A point is signalled and its value is not there: its work failed.
            scheduler.find_error();
            over()?;
        }
        // A point that is there already would not let it sleep.
        let missing: Vec<_> = waits
            .iter()
            .map(|(fence, value)| (fence.clone(), fence.limited(*value)))
            .filter(|(fence, point)| fence.value() < *point)
            .collect();
        let sleeps = || {
            let mut unsubmitted = missing
                .iter()
                .map(|(fence, point)| fence.submitted() < fence.limited(*point));
            over().is_ok()
                && match how {
                    WaitFor::All => unsubmitted.any(|is| is),
                    WaitFor::Any => unsubmitted.all(|is| is),
                }
        };
        woken = !sleeps();
        if !woken {
            park(&missing, deadline, sleeps)?;
        } else if !missing.is_empty() {
            let points: Vec<_> = missing
                .iter()
                .map(|(f, point)| (&*f.syncobj, *point))
                .collect();
            Syncobj::wait_many(&points, flags, deadline)?;
        }
    }
}

/// Sleeps until more is submitted of one of the fences, or something happens to it, as long as that
/// is wanted when they all know of this thread. It may wake without a reason.
///
/// # Errors
///
/// TIMEOUT if `deadline` is past.
pub(crate) fn park(
    waits: &[(Arc<Fence>, u64)],
    deadline: Deadline,
    wanted: impl Fn() -> bool,
) -> Result<()> {
    let me = thread::current();
    for (fence, _) in waits {
        lock(&fence.sleepers).push(me.clone());
    }
    let left = deadline.left();
    if wanted() && !left.is_zero() {
        thread::park_timeout(left);
    }
    for (fence, _) in waits {
        lock(&fence.sleepers).retain(|thread| thread.id() != me.id());
    }
    if deadline.left().is_zero() && wanted() {
        return Err(Status::TIMEOUT);
    }
    Ok(())
}

/// A monitored fence (`D3DDDI_MONITORED_FENCE`); destroyed when dropped.
///
/// ```no_run
/// # use std::time::Duration;
/// # use wddm::{Device, MonitoredFence, Status};
/// # fn f(device: &Device) -> Result<(), Status> {
/// let fence = MonitoredFence::create(device, 0)?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| fence.wait(7, Duration::from_secs(1)));
///     fence.signal(7)
/// })?;
/// assert_eq!(fence.value(), 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MonitoredFence {
    /// Whose scheduler knows of it.
    device: Device,
    /// What waits and signals know of it, too.
    fence: Arc<Fence>,
}

impl MonitoredFence {
    /// The value of every fence of a device in error.
    pub const LOST: u64 = u64::MAX;

    /// Creates a fence with a value (`D3DKMTCreateSynchronizationObject2`).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if `initial` is [`MonitoredFence::LOST`]; NO_MEMORY; DEVICE_REMOVED.
    pub fn create(device: &Device, initial: u64) -> Result<Self> {
        if initial == Self::LOST {
            return Err(Status::INVALID_PARAMETER);
        }
        Self::with(device, initial, false)
    }

    /// The fence of a paging queue, which the kernel signals, and nobody else may.
    pub(crate) fn of_paging(device: &Device) -> Result<Self> {
        Self::with(device, 0, true)
    }

    fn with(device: &Device, initial: u64, paging: bool) -> Result<Self> {
        Ok(Self {
            fence: device.scheduler().create_fence(initial, paging)?,
            device: device.clone(),
        })
    }

    pub(crate) const fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// The device that it was created on.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The value as it is now, [`MonitoredFence::LOST`] if it is destroyed; makes no system call.
    pub fn value(&self) -> u64 {
        let value = self.fence.value();
        // In this order: the memory is another's only after it is closed.
        if self.fence.is_closed() {
            return Self::LOST;
        }
        value
    }

    /// Address of the value in the CPU's address space, mapped to read only
    /// (`FenceValueCPUVirtualAddress`); valid as long as `self` lives, and its own until it is
    /// destroyed.
    pub fn value_pointer(&self) -> *const u64 {
        self.fence
            .cell
            .page
            .user
            .as_ptr()
            .wrapping_add(self.fence.cell.offset())
            .cast()
    }

    /// Address of the value in the GPU's address space (`FenceValueGPUVirtualAddress`), for WAIT
    /// commands. Such a wait keeps its engine busy, and the watchdog ends one that takes too long;
    /// [`crate::Context::wait_from_gpu`] does neither.
    pub fn gpu_va(&self) -> u64 {
        self.fence.va()
    }

    /// Signals a value from the CPU (`D3DKMTSignalSynchronizationObjectFromCpu`); it does not wait.
    ///
    /// If the GPU has yet to signal smaller values that are submitted, this one comes after them.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if the value is not above all that were submitted, or is
    /// [`MonitoredFence::LOST`], or the fence is a paging queue's; DEVICE_REMOVED; INVALID_HANDLE if
    /// it is destroyed.
    pub fn signal(&self, value: u64) -> Result<()> {
        self.device.scheduler().signal_from_cpu(&self.fence, value)
    }

    /// Sleeps in the kernel until the value is at least `value`, whether somebody is about to
    /// signal it already or not.
    ///
    /// # Errors
    ///
    /// As [`Device::wait_from_cpu`].
    pub fn wait(&self, value: u64, deadline: impl Into<Deadline>) -> Result<()> {
        self.device
            .wait_from_cpu(&[(self, value)], WaitFor::All, deadline)
            .map(|_| ())
    }

    /// Adds 1 to an eventfd, once, when the value is at least `value` or the device is in error:
    /// for any reactor. See [`Device::wait_from_cpu_async`].
    ///
    /// # Errors
    ///
    /// As [`Device::wait_from_cpu_async`].
    pub fn notify(&self, value: u64, eventfd: BorrowedFd<'_>) -> Result<()> {
        self.device
            .wait_from_cpu_async(&[(self, value)], WaitFor::All, eventfd)
    }

    /// Destroys it (`D3DKMTDestroySynchronizationObject`). Waits for it end with INVALID_HANDLE,
    /// and contexts that wait for it go on. Again it does nothing.
    pub fn destroy(&self) {
        if !self.device.is_inherited() {
            self.device.scheduler().destroy_fence(&self.fence);
        }
    }
}

impl Drop for MonitoredFence {
    fn drop(&mut self) {
        self.destroy();
    }
}
