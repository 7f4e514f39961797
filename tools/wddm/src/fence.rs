// SPDX-License-Identifier: MIT

//! Monitored fences: 64-bit values that grow, to wait for and to signal.
//!
//! They are the kernel's: it signals them when work is done, holds work that waits for them, and
//! puts threads to sleep, whether or not somebody has submitted the value. Here they get a device,
//! WDDM's status codes, and an end.
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
//! When the device goes to error, its fences become [`MonitoredFence::LOST`], unless they
//! [keep their value](MonitoredFence::create_keeping), and all waits end with DEVICE_REMOVED (row
//! 2.22). A wait that ends because of that, or because the fence is destroyed, never returns
//! success. A fence that was [shared](MonitoredFence::share) another device may lose, too: a wait
//! of a device that is active returns success then, and work that is held for it goes on; so who
//! shares fences looks for the value [`MonitoredFence::LOST`].
//!
//! A fence that is destroyed is signalled as a whole, behind what is to signal it already, so that
//! whoever waits goes on; unless it was [shared](MonitoredFence::share): then others may go on to
//! use it, and an eventfd waits for them, until the device is destroyed.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc, Mutex, MutexGuard,
    },
};

pub use libskua::WaitFor;
use libskua::{Deadline, Error};
use rustix::io::Errno;

use crate::{
    adapter::crowded,
    device::Device,
    lock,
    memory::ValueView,
    page_tables::PageTables,
    scheduler::{Point, Scheduler},
    status::{Result, Status},
};

/// Most fences of one wait or signal, as in WDDM (`D3DDDI_MAX_OBJECT_WAITED_ON`).
pub const MAX_FENCES: usize = 32;

/// Most values of one of the kernel's waits.
pub(crate) const MAX_AT_ONCE: usize = 256;

/// Who may signal a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signallers {
    /// This client alone, by packets or by the CPU.
    Client,
    /// Others, too: it was shared.
    Others,
    /// A paging queue, and nobody else.
    PagingQueue,
}

/// What a fence is below its handle.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Its number among contexts and fences of the device.
    pub(crate) id: u64,
    /// The kernel's, kept by what still uses it.
    pub(crate) raw: libskua::MonitoredFence,
    /// Whether a paging queue has it: nobody else signals it.
    pub(crate) paging: bool,
    /// Of a context's progress, the number of the last packet that the kernel has or is given.
    pub(crate) queued: AtomicU64,
    /// Whether the fence was destroyed: its handle means nothing then.
    closed: AtomicBool,
    /// Whether others may have it: it was shared, or opened from what was.
    shared: AtomicBool,
    /// Where the GPU reads its value, from when somebody asks until it is destroyed.
    view: Mutex<Option<ValueView>>,
    /// Held by who has the kernel promise a value: of two at the same time one is refused.
    promising: Mutex<()>,
}

impl Fence {
    pub(crate) const fn new(id: u64, raw: libskua::MonitoredFence, by: Signallers) -> Self {
        Self {
            id,
            raw,
            paging: matches!(by, Signallers::PagingQueue),
            queued: AtomicU64::new(MonitoredFence::END),
            closed: AtomicBool::new(false),
            shared: AtomicBool::new(matches!(by, Signallers::Others)),
            view: Mutex::new(None),
            promising: Mutex::new(()),
        }
    }

    /// Where the GPU reads its value, if somebody has asked for that.
    pub(crate) fn value_va(&self) -> Option<u64> {
        lock(&self.view).as_ref().map(ValueView::va)
    }

    /// Has the GPU read its value by a view from now on, unless it has one: the address, and what
    /// is not needed.
    pub(crate) fn show(&self, view: ValueView) -> (u64, Option<ValueView>) {
        match &mut *lock(&self.view) {
            Some(shown) => (shown.va(), Some(view)),
            none => {
                let va = view.va();
                *none = Some(view);
                (va, None)
            }
        }
    }

    /// The view, which the caller is to [retire](ValueView::retire).
    pub(crate) fn take_view(&self) -> Option<ValueView> {
        lock(&self.view).take()
    }

    /// The value, without a system call.
    pub(crate) fn value(&self) -> u64 {
        self.raw.value()
    }

    pub(crate) fn reached(&self, value: u64) -> bool {
        self.value() >= value
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    /// Has a descriptor of it made, with its device's fences locked: none is destroyed meanwhile.
    pub(crate) fn share(&self) -> Result<OwnedFd> {
        if self.is_closed() {
            return Err(Status::INVALID_HANDLE);
        }
        if self.paging {
            return Err(Status::INVALID_PARAMETER);
        }
        let descriptor = self.raw.export()?;
        self.shared.store(true, Ordering::Release);
        Ok(descriptor)
    }

    /// Whether a device that has it failed.
    pub(crate) fn is_lost(&self) -> bool {
        self.value() == MonitoredFence::LOST
    }

    /// As [`Fence::reached`], and not because the device has failed.
    pub(crate) fn is_done(&self, value: u64) -> bool {
        self.reached(value) && !self.is_lost()
    }

    /// Of a context's progress, what it has when all that is queued is done.
    pub(crate) fn last(self: &Arc<Self>) -> Point {
        (self.clone(), self.queued.load(Ordering::Acquire))
    }

    /// Of a context's progress, whether a packet is done, or was refused.
    pub(crate) fn is_over(&self, value: u64) -> bool {
        self.is_done(value) || value > self.queued.load(Ordering::Acquire)
    }

    /// Nobody else has values of these promised until the result is dropped.
    pub(crate) fn promise<'a>(signals: &[(&'a Arc<Self>, u64)]) -> Vec<MutexGuard<'a, ()>> {
        let mut fences: Vec<&Arc<Self>> = signals.iter().map(|(fence, _)| *fence).collect();
        fences.sort_by_key(|fence| fence.id);
        fences.dedup_by_key(|fence| fence.id);
        fences.iter().map(|fence| lock(&fence.promising)).collect()
    }

    /// Whether a value can be signalled, but for what is promised.
    pub(crate) fn accepts(&self, value: u64) -> bool {
        !self.reached(value) && value != MonitoredFence::LOST
    }

    /// It is destroyed: who waits goes on.
    pub(crate) fn end(&self, tables: &PageTables) {
        self.closed.store(true, Ordering::Release);
        if !self.is_shared() {
            tables.end_fence(&self.raw);
        }
    }
}

/// The index of a value that suffices, or `None`; for [`WaitFor::All`] the index is 0.
fn satisfied(waits: &[Point], how: WaitFor) -> Option<usize> {
    let reached = |(fence, value): &Point| fence.reached(*value);
    match how {
        WaitFor::All => waits.iter().all(reached).then_some(0),
        WaitFor::Any => waits.iter().position(reached),
    }
}

/// Whether those fences of a device can be waited for.
fn check(scheduler: &Scheduler, waits: &[Point]) -> Result<()> {
    scheduler.check_alive()?;
    match waits.iter().any(|(fence, _)| fence.is_closed()) {
        true => Err(Status::INVALID_HANDLE),
        false => Ok(()),
    }
}

/// Has the kernel add 1 to an eventfd when fences of one device have their values.
pub(crate) fn notify(
    scheduler: &Scheduler,
    waits: &[Point],
    how: WaitFor,
    eventfd: BorrowedFd<'_>,
) -> Result<()> {
    check(scheduler, waits)?;
    let (first, value) = waits.first().ok_or(Status::INVALID_PARAMETER)?;
    // One wait by two handles, of which one goes with the device.
    let mortal = scheduler.mortal(first)?;
    let raw = waits.iter().map(|(f, value)| (&f.raw, *value));
    let raw: Vec<_> = raw.chain([(&mortal, *value)]).collect();
    libskua::MonitoredFence::notify_many(&raw, how, eventfd).map_err(|error| {
        scheduler.find_error();
        check(scheduler, waits).err().unwrap_or(crowded(error))
    })
}

/// Sleeps until fences of one device have their values.
pub(crate) fn wait(
    scheduler: &Scheduler,
    waits: &[Point],
    how: WaitFor,
    deadline: Deadline,
) -> Result<usize> {
    loop {
        let (life, wakes) = scheduler.tables().wakes();
        // In this order: a device in error and a destroyed fence have all values.
        let index = satisfied(waits, how);
        if waits.iter().any(|(fence, _)| fence.is_lost()) {
            scheduler.find_error();
        }
        check(scheduler, waits)?;
        if let Some(index) = index {
            return Ok(index);
        }
        // A shared fence that is destroyed goes on, and its sleepers are woken by `life`. Values do
        // not go back: all of them are waited for one after the other.
        let most = match how {
            WaitFor::All => 1,
            WaitFor::Any => waits.len(),
        };
        let missing = waits.iter().filter(|(fence, value)| !fence.reached(*value));
        let mut raw: Vec<_> = missing.take(most).map(|(f, v)| (&f.raw, *v)).collect();
        if raw.len() < most {
            // Reached since it was looked at.
            continue;
        }
        raw.push((life, wakes.saturating_add(1)));
        let slept = libskua::MonitoredFence::wait_many(&raw, WaitFor::Any, deadline);
        if let Err(error) = slept {
            if !matches!(&error, Error::Ioctl { errno, .. } if *errno == Errno::TIME) {
                scheduler.find_error();
            }
            check(scheduler, waits)?;
            return Err(error.into());
        }
    }
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
    /// The device whose scheduler is asked for signals and waits.
    device: Device,
    /// What waits and signals know of it, too.
    fence: Arc<Fence>,
}

impl MonitoredFence {
    /// The value of every fence of a device in error.
    pub const LOST: u64 = u64::MAX;
    /// The largest value that can be signalled.
    pub(crate) const END: u64 = Self::LOST - 1;

    /// Creates a fence with a value (`D3DKMTCreateSynchronizationObject2`).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if `initial` is [`MonitoredFence::LOST`]; INSUFFICIENT_RESOURCES if there
    /// are too many; NO_MEMORY; DEVICE_REMOVED; INVALID_HANDLE if the device is destroyed.
    pub fn create(device: &Device, initial: u64) -> Result<Self> {
        Self::with(device, initial, false, Signallers::Client)
    }

    /// Creates a fence that keeps its value when the device fails (`NoSignalMaxValueOnTdr`): waits
    /// of this device end all the same.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::create`].
    pub fn create_keeping(device: &Device, initial: u64) -> Result<Self> {
        Self::with(device, initial, true, Signallers::Client)
    }

    /// Opens a fence that was shared, for another device (`D3DKMTOpenSyncObjectFromNtHandle2`).
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if there is no such descriptor, or the device is destroyed, INVALID_PARAMETER
    /// if it is no fence's; INSUFFICIENT_RESOURCES; NO_MEMORY; DEVICE_REMOVED.
    pub fn open(device: &Device, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let scheduler = device.scheduler();
        let fence = scheduler.create_fence(
            |tables| libskua::MonitoredFence::import_for(tables.kernel(), descriptor),
            Signallers::Others,
        )?;
        Ok(Self {
            fence,
            device: device.clone(),
        })
    }

    /// A descriptor of it, for other devices and processes (`D3DKMTShareObjects`).
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if it is destroyed; INVALID_PARAMETER if it is a paging queue's; UNSUCCESSFUL
    /// if there are too many descriptors.
    pub fn share(&self) -> Result<OwnedFd> {
        self.device.scheduler().share_fence(&self.fence)
    }

    /// The fence of a paging queue, which the kernel signals, and nobody else may.
    pub(crate) fn of_paging(device: &Device) -> Result<Self> {
        Self::with(device, 0, false, Signallers::PagingQueue)
    }

    fn with(device: &Device, initial: u64, keeps: bool, by: Signallers) -> Result<Self> {
        if initial == Self::LOST {
            return Err(Status::INVALID_PARAMETER);
        }
        let scheduler = device.scheduler();
        Ok(Self {
            fence: scheduler.create_fence(|tables| tables.fence(initial, keeps), by)?,
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
        match self.fence.is_closed() {
            true => Self::LOST,
            false => self.fence.value(),
        }
    }

    /// Address of the value in the CPU's address space, mapped to read only
    /// (`FenceValueCPUVirtualAddress`); valid as long as `self` lives.
    pub fn value_pointer(&self) -> *const u64 {
        self.fence.raw.as_ptr()
    }

    /// Address of the value in the GPU's address space, mapped to read only
    /// (`FenceValueGPUVirtualAddress`), for WAIT commands and others, until it is destroyed. Such a
    /// wait keeps its engine busy, and the watchdog ends one that takes too long;
    /// [`crate::Context::wait_from_gpu`] does neither.
    ///
    /// # Errors
    ///
    /// NO_MEMORY; INSUFFICIENT_RESOURCES if too many binds wait; DEVICE_REMOVED; INVALID_HANDLE if
    /// it is destroyed.
    pub fn gpu_va(&self) -> Result<u64> {
        self.device.scheduler().value_va(&self.fence)
    }

    /// Signals a value from the CPU (`D3DKMTSignalSynchronizationObjectFromCpu`); it does not wait.
    ///
    /// If the GPU has yet to signal smaller values that are submitted, this one comes after them.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if the value is not above all that were submitted, or is
    /// [`MonitoredFence::LOST`], or the fence is a paging queue's; DEVICE_REMOVED; INVALID_HANDLE
    /// if it is destroyed.
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
