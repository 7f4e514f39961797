// SPDX-License-Identifier: MIT

//! Allocations: memory that the GPU works on.
//!
//! An [`Allocation`] lies in one of the segments that its description allows, and has a GPU virtual
//! address for its whole life. There are two ways for the CPU to get at it:
//!
//! - **Lock2** ([`Allocation::lock2`], [`Allocation::unlock2`]) gives the address of all of it, and
//!   nothing more: no flags, no part of it, and no waiting but for a move that it takes (rows 0.01,
//!   0.12, 0.13). Locks nest. The address is the same for the allocation's whole life: the first
//!   lock's mapping is kept.
//! - **Map** ([`Allocation::map`]) is what a user-mode driver makes of it: it knows what the GPU
//!   still does with the allocation, and waits for as much of that as the kind of access needs, or
//!   tells that it would have to.
//!
//! | [`MapMode`] | waits for |
//! |---|---|
//! | `Read` | GPU writes |
//! | `Write`, `ReadWrite` | GPU reads and writes |
//! | `NoOverwrite` | nothing: the caller does not touch what the GPU uses |
//!
//! # The end
//!
//! The handle is dead when [`Allocation::destroy`] returns. The memory and the addresses come back
//!
//! | [`DestroyFlags`] | when | the call |
//! |---|---|---|
//! | none | everything queued before the call is done | does not wait (row 0.02) |
//! | `ASSUME_NOT_IN_USE` | at once | does not wait for work; work that uses it faults (row 0.04) |
//! | `SYNCHRONOUS` | everything queued before the call is done | returns then (row 0.05) |
//! | both | at once | returns then |
//!
//! With `SYNCHRONOUS` alone it is also behind what other threads are just submitting, which may
//! wait for room ([`crate::Submission::submit`]). "At once" is when the engines have dropped their
//! translations of its addresses, which does not depend on what they execute. "Everything" is what
//! is queued in any context of the device: nobody knows what of it uses the allocation. To access a
//! [`Mapping`] that somebody still holds is a bus error from then on (row 0.11). What another
//! thread has just passed to a call counts as used, whatever the flags say. What a queued
//! [update of addresses](crate::Context::update_gpu_virtual_address) was to map is not mapped then;
//! but work that waits for the update is queued, too, and finds it.
//!
//! # Residency
//!
//! Work finds an allocation for video memory, alone or with the aperture, if it is resident for the
//! device, and may fault otherwise: [`crate::PagingQueue::make_resident`] makes it so, and tells
//! when it is there; [`crate::Device::evict`] takes that back. What may be in system memory, too,
//! or in the aperture alone, work finds in any case.
//!
//! # CPU access
//!
//! What the CPU cannot access in video memory, because it is [hidden](AllocationDesc::hidden) or
//! [cached](AllocationDesc::cached), the kernel moves out of it for a lock, and it stays out until
//! it is unlocked (rows 0.16, 0.20). Without a lock its address is a bus error. What is cached does
//! not move where the GPU has `SupportsCachedCpuHostAperture`.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
};

use libskua::{Access as GpuAccess, BoFlags, CommandBuffer, Deadline, Mapping, SegmentSets};

use crate::{
    address_space::PAGE,
    device::Device,
    fence::{self, WaitFor, MAX_AT_ONCE},
    lock,
    memory::Memory,
    segment_set::SegmentSet,
    status::{Result, Status},
    usage::{Access, Usage},
};

bitflags::bitflags! {
    /// `D3DDDICB_DESTROYALLOCATION2FLAGS`; see the head of this file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DestroyFlags: u32 {
        /// No queued work uses it.
        const ASSUME_NOT_IN_USE = 1 << 0;
        /// Return when its memory is free.
        const SYNCHRONOUS = 1 << 1;
    }

    /// What a user-mode driver says when it maps.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MapFlags: u32 {
        /// Fail with WAS_STILL_DRAWING rather than wait (`D3D11_MAP_FLAG_DO_NOT_WAIT`).
        const DO_NOT_WAIT = 1 << 0;
    }
}

/// What the CPU does with a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapMode {
    /// It reads what the GPU has written.
    Read,
    /// It writes, and does not care for what is there.
    Write,
    /// The access reads what is there, and changes it.
    ReadWrite,
    /// It writes what the GPU does not use (`D3D11_MAP_WRITE_NO_OVERWRITE`).
    NoOverwrite,
}

/// What an allocation shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationDesc {
    /// Bytes; rounded up to the GPU's smallest page, 4096.
    pub size: u64,
    /// Segments that may hold it (SupportedSegmentSet), of [`crate::Adapter::vram`],
    /// [`crate::Adapter::aperture`] and [`crate::Adapter::system`]; those that it prefers; and
    /// those for which it leaves video memory.
    segments: SegmentSets,
    /// Whether the CPU may access it wherever it is, but as `cached` says.
    pub cpu_visible: bool,
    /// Whether the CPU's mappings are cached, which they can be in system pages alone: not in
    /// video memory, unless its CPU host aperture is cached.
    pub cached: bool,
    /// How likely it is to stay in video memory (`DXGK_ALLOCATIONINFO.AllocationPriority`): a hint.
    pub priority: u32,
}

/// `D3DDDI_ALLOCATIONPRIORITY_NORMAL`.
const PRIORITY_NORMAL: u32 = 0x7800_0000;

impl AllocationDesc {
    /// An allocation that the CPU may access.
    pub fn new(size: u64, segments: SegmentSet) -> Self {
        Self {
            size,
            segments: segments.placements().into(),
            cpu_visible: true,
            cached: false,
            priority: PRIORITY_NORMAL,
        }
    }

    /// Has these segments tried first, in their order (`DXGK_ALLOCATIONINFO.PreferredSegment`):
    /// each one, up to three, of those that may hold it.
    #[must_use]
    pub fn preferred_segments(mut self, order: &[SegmentSet]) -> Self {
        let order: Vec<_> = order.iter().map(|set| set.placements()).collect();
        self.segments = self.segments.preferring(&order);
        self
    }

    /// Has it leave video memory for these segments (`DXGK_ALLOCATIONINFO.EvictionSegmentSet`): the
    /// aperture, if that may hold it, system memory, or both.
    #[must_use]
    pub const fn eviction_segment_set(mut self, segments: SegmentSet) -> Self {
        self.segments = self.segments.evicted_to(segments.placements());
        self
    }

    /// Has the CPU's mappings cached (`DXGK_ALLOCATIONINFOFLAGS.Cached`).
    #[must_use]
    pub const fn cached(mut self) -> Self {
        self.cached = true;
        self
    }

    /// Gives it another priority than `D3DDDI_ALLOCATIONPRIORITY_NORMAL`, any but 0.
    #[must_use]
    pub const fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Lets the driver place it where the CPU has no way to it.
    #[must_use]
    pub const fn hidden(mut self) -> Self {
        self.cpu_visible = false;
        self
    }
}

/// An allocation; destroyed without flags when dropped.
///
/// ```no_run
/// # use wddm::{Adapter, Allocation, AllocationDesc, Device, MapFlags, MapMode, Status};
/// # fn f(device: &Device) -> Result<(), Status> {
/// let desc = AllocationDesc::new(64 << 10, device.adapter().vram());
/// let allocation = Allocation::create(device, &desc)?;
/// let map = allocation.map(MapMode::Write, MapFlags::empty())?;
/// map.fill(0, 1024, 0xff00_00ff_u32)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Allocation {
    /// Of which it is an allocation, kept alive.
    device: Device,
    /// What submissions and the device know of it, too.
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Number of the allocation in its device, for usage tracking.
    id: u64,
    /// Its GPU virtual address, for its whole life.
    va: u64,
    /// Bytes, a multiple of a page.
    size: u64,
    /// Whether the CPU may access it wherever it is.
    cpu_visible: bool,
    /// Whether it is locked out of video memory alone, where nothing else may hold it.
    stays_out: bool,
    /// What was submitted that uses it.
    usage: Arc<Mutex<Usage>>,
    /// What it is while it exists; none once it was destroyed. Nothing waits with it locked.
    live: Mutex<Option<Live>>,
}

/// What is gone once it is destroyed.
#[derive(Debug)]
struct Live {
    /// Calls that are under way have it, too.
    memory: Arc<Memory>,
    /// All of it; made by the first lock, and kept.
    mapping: Option<Arc<Mapping>>,
    /// How often it is locked: each lock has its own unlock.
    locks: u32,
}

impl Inner {
    /// Kills it; its memory is the caller's to give back. `None` if it is dead already.
    pub(crate) fn take(&self) -> Option<Arc<Memory>> {
        lock(&self.live).take().map(|live| live.memory)
    }
}

impl Live {
    /// Counts a lock, for which the kernel has it locked; its address.
    fn count(&mut self) -> Result<Arc<Mapping>> {
        let locks = self.locks.checked_add(1);
        let locks = locks.ok_or(Status::GRAPHICS_TOO_MANY_REFERENCES)?;
        let mapping = match self.mapping.take() {
            Some(mapping) => mapping,
            None => Arc::new(self.memory.map()?),
        };
        self.mapping = Some(mapping.clone());
        self.locks = locks;
        Ok(mapping)
    }
}

impl Allocation {
    /// Creates an allocation, all zero (`D3DKMTCreateAllocation2`), and maps it in the GPU's
    /// address space.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if the size is 0 or above 2^40, or the priority 0; there is no such
    /// segment, one is preferred that may not hold it, or is in the eviction set and no way out of
    /// video memory, or it is cached and hidden, or it could never be locked (row 0.18): for video
    /// memory alone if it is cached, or not hidden where the CPU sees no video memory;
    /// GRAPHICS_NO_VIDEO_MEMORY; NO_MEMORY; INSUFFICIENT_RESOURCES if too many binds wait;
    /// DEVICE_REMOVED; INVALID_HANDLE if the device is destroyed.
    pub fn create(device: &Device, desc: &AllocationDesc) -> Result<Self> {
        device.scheduler().check_alive()?;
        if desc.priority == 0 {
            return Err(Status::INVALID_PARAMETER);
        }
        let size = desc
            .size
            .checked_next_multiple_of(PAGE)
            .ok_or(Status::INVALID_PARAMETER)?;
        let mut flags = BoFlags::empty();
        flags.set(BoFlags::CPU_ACCESS, desc.cpu_visible);
        flags.set(BoFlags::CACHED, desc.cached);
        let tables = device.scheduler().tables();
        let (sets, access) = (desc.segments, GpuAccess::ReadWrite);
        let beside_vram = sets.supported().bits() & !device.adapter().libskua().vram().bits();
        let memory = Memory::create(tables, size, sets, flags, desc.priority, access)?;
        let inner = device.adopt(|id| {
            Arc::new(Inner {
                id,
                va: memory.va(),
                size,
                cpu_visible: desc.cpu_visible && !desc.cached,
                stays_out: !desc.cpu_visible && beside_vram == 0,
                usage: Arc::default(),
                live: Mutex::new(Some(Live {
                    memory: Arc::new(memory),
                    mapping: None,
                    locks: 0,
                })),
            })
        })?;
        Ok(Self {
            device: device.clone(),
            inner,
        })
    }

    /// The device that it was created on.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Where the GPU sees it, as long as it lives.
    pub fn gpu_va(&self) -> u64 {
        self.inner.va
    }

    /// Bytes, rounded up to whole pages.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Whether its name is dead; its memory may live on.
    pub fn is_destroyed(&self) -> bool {
        lock(&self.inner.live).is_none()
    }

    /// Its memory, kept for a call that needs it.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is of another device; INVALID_HANDLE if it is destroyed.
    pub(crate) fn memory(&self, device: &Device) -> Result<Arc<Memory>> {
        if self.device != *device {
            return Err(Status::INVALID_PARAMETER);
        }
        let live = lock(&self.inner.live);
        Ok(live.as_ref().ok_or(Status::INVALID_HANDLE)?.memory.clone())
    }

    pub(crate) fn usage(&self) -> &Arc<Mutex<Usage>> {
        &self.inner.usage
    }

    /// Locks all of it (`D3DKMTLock2`): at once, whatever the GPU does with it, or when it has
    /// moved to where the CPU can access it.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if `flags` is not 0, or it is hidden, for video memory alone, and there;
    /// INVALID_HANDLE if it is destroyed, also meanwhile; GRAPHICS_ALLOCATION_BUSY if it is
    /// offered, or the move has to wait for long; GRAPHICS_TOO_MANY_REFERENCES; NO_MEMORY;
    /// DEVICE_REMOVED.
    pub fn lock2(&self, flags: u32) -> Result<Arc<Mapping>> {
        if flags != 0 {
            return Err(Status::INVALID_PARAMETER);
        }
        let memory = {
            let mut live = lock(&self.inner.live);
            let live = live.as_mut().ok_or(Status::INVALID_HANDLE)?;
            self.device.scheduler().check_alive()?;
            if live.locks > 0 {
                return live.count();
            }
            live.memory.clone()
        };
        let locked = memory.lock();
        if let Err(status) = locked {
            return Err(match self.is_destroyed() {
                true => Status::INVALID_HANDLE,
                false => status,
            });
        }
        let mut live = lock(&self.inner.live);
        // It may have been destroyed meanwhile, or locked: the kernel knows of the outermost alone.
        let live = live.as_mut().ok_or(Status::INVALID_HANDLE);
        let is_outermost = live.as_ref().is_ok_and(|live| live.locks == 0);
        let mapping = live.and_then(Live::count);
        if !is_outermost || mapping.is_err() {
            memory.unlock()?;
        }
        mapping
    }

    /// Undoes one lock (`D3DKMTUnlock2`).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is not locked; INVALID_HANDLE if it is destroyed.
    pub fn unlock2(&self) -> Result<()> {
        let mut live = lock(&self.inner.live);
        let live = live.as_mut().ok_or(Status::INVALID_HANDLE)?;
        live.locks = live.locks.checked_sub(1).ok_or(Status::INVALID_PARAMETER)?;
        if live.locks == 0 {
            live.memory.unlock()?;
        }
        Ok(())
    }

    /// Says how likely it is to stay in video memory ([`Device::set_allocation_priority`]).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER for 0, INVALID_HANDLE if it is destroyed; DEVICE_REMOVED.
    pub fn set_priority(&self, priority: u32) -> Result<()> {
        self.device.set_allocation_priority(&[(self, priority)])
    }

    /// Maps it as a user-mode driver does, until the map is dropped: see the head of this file.
    ///
    /// It is locked behind the wait: what a lock keeps out of video memory, work that is waited for
    /// may need there.
    ///
    /// # Errors
    ///
    /// WAS_STILL_DRAWING if the GPU is not done and `flags` says not to wait;
    /// GRAPHICS_ALLOCATION_BUSY if it is not, and somebody has locked what is
    /// [hidden](AllocationDesc::hidden), for video memory alone, and out: it might wait for itself;
    /// DEVICE_REMOVED, also if the device goes to error during the wait; as [`Allocation::lock2`].
    pub fn map(&self, mode: MapMode, flags: MapFlags) -> Result<Map<'_>> {
        match mode {
            MapMode::NoOverwrite => (),
            MapMode::Read => self.wait_for_work(Access::Read, flags)?,
            MapMode::Write | MapMode::ReadWrite => self.wait_for_work(Access::Write, flags)?,
        }
        Ok(Map {
            mapping: self.lock2(0)?,
            allocation: self,
        })
    }

    /// Waits until the CPU may access it; as [`Allocation::map`].
    fn wait_for_work(&self, cpu: Access, flags: MapFlags) -> Result<()> {
        let is_locked = match &*lock(&self.inner.live) {
            Some(live) => live.locks > 0,
            None => return Err(Status::INVALID_HANDLE),
        };
        let scheduler = self.device.scheduler();
        scheduler.check_alive()?;
        let pending = lock(&self.inner.usage).pending(cpu);
        if !pending.is_empty() {
            if flags.contains(MapFlags::DO_NOT_WAIT) {
                return Err(Status::WAS_STILL_DRAWING);
            }
            if is_locked && self.inner.stays_out {
                return Err(Status::GRAPHICS_ALLOCATION_BUSY);
            }
        }
        for pending in pending.chunks(MAX_AT_ONCE) {
            fence::wait(scheduler, pending, WaitFor::All, Deadline::NEVER)?;
        }
        Ok(())
    }

    /// A recorder of commands into it, from its start; the GPU must not execute what is there.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if the CPU cannot access it wherever it is; INVALID_HANDLE if it is
    /// destroyed; DEVICE_REMOVED.
    pub fn recorder(&self) -> Result<CommandBuffer> {
        let live = lock(&self.inner.live);
        let live = live.as_ref().ok_or(Status::INVALID_HANDLE)?;
        if !self.inner.cpu_visible {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(CommandBuffer::new(live.memory.map()?, self.inner.va))
    }

    /// Destroys it (`D3DKMTDestroyAllocation2`): see the head of this file.
    ///
    /// Its name is dead in any case. Where the kernel has no memory for the rest, its memory and
    /// addresses stay until the device ends, and only with SYNCHRONOUS that is told.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if it is destroyed already; NO_MEMORY with SYNCHRONOUS.
    pub fn destroy(&self, flags: DestroyFlags) -> Result<()> {
        if self.device.is_inherited() {
            return Ok(());
        }
        let memory = self.inner.take().ok_or(Status::INVALID_HANDLE)?;
        self.device.disown(self.inner.id);
        let at_once = flags.contains(DestroyFlags::ASSUME_NOT_IN_USE);
        if flags.contains(DestroyFlags::SYNCHRONOUS) {
            if !at_once {
                // The kernel would wait for what others queue meanwhile, too.
                self.device.scheduler().settle();
            }
            return match memory.destroy_synchronously() {
                // With the device its memory is gone.
                Err(Status::DEVICE_REMOVED) => Ok(()),
                result => result,
            };
        }
        match at_once {
            true => memory.destroy(None),
            false => self.device.scheduler().destroy_memory(memory),
        }
        Ok(())
    }
}

impl Device {
    /// Says how likely each allocation is to stay in video memory, of all of them or of none
    /// (`D3DKMTSetAllocationPriority`): a hint.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`crate::MAX_ALLOCATIONS`], one is there
    /// twice or is of another device, or a priority is 0; INVALID_HANDLE if one is destroyed;
    /// DEVICE_REMOVED.
    pub fn set_allocation_priority(&self, priorities: &[(&Allocation, u32)]) -> Result<()> {
        let memories = priorities
            .iter()
            .map(|(allocation, priority)| Ok((allocation.memory(self)?, *priority)))
            .collect::<Result<Vec<_>>>()?;
        let priorities: Vec<_> = memories
            .iter()
            .map(|(memory, priority)| (memory.bo(), *priority))
            .collect();
        Ok(self.adapter().libskua().set_priorities(&priorities)?)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let _ = self.destroy(DestroyFlags::empty());
    }
}

/// A map of an allocation, which is a lock of it; undone when dropped.
#[derive(Debug)]
#[must_use = "it is undone when it is dropped"]
pub struct Map<'a> {
    /// What is locked as long as this lives.
    allocation: &'a Allocation,
    /// Stays if the allocation is destroyed meanwhile.
    mapping: Arc<Mapping>,
}

impl Deref for Map<'_> {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Map<'_> {
    fn drop(&mut self) {
        // What a forked process has inherited is its parent's lock.
        if !self.allocation.device.is_inherited() {
            // It may have been destroyed meanwhile.
            let _ = self.allocation.unlock2();
        }
    }
}
