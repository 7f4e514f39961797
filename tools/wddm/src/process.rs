// SPDX-License-Identifier: MIT

//! A process: all objects by their handles, as the D3DKMT interface names them.
//!
//! This is what a C interface is made of: each method is one D3DKMT call without its structure,
//! takes [`Handle`]s, and checks what the types of [`crate::Device`], [`crate::Allocation`] and the
//! others check at compile time. What a call does is said there.
//!
//! - A handle that names nothing, or not any more, is INVALID_HANDLE; one that names an object of
//!   another type is OBJECT_TYPE_MISMATCH; an object of another device is INVALID_PARAMETER.
//! - Destroying an adapter or a device takes the handles of what belongs to it away, too.
//! - A **resource** is a name for several allocations that are created and destroyed together.
//!
//! No lock is held while a call does its work, so that calls on different objects, and waits, go on
//! side by side. A call whose object is destroyed meanwhile fails as if it had come later.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use libskua::{Deadline, Mapping};

use crate::{
    adapter::{Adapter, Luid, MemorySegmentGroup, PreemptionCaps, PriorityClass, VideoMemoryInfo},
    allocation::{Allocation, AllocationDesc, DestroyFlags},
    context::Context,
    device::{Device, DeviceState},
    fence::{MonitoredFence, WaitFor, MAX_FENCES},
    gpu_va::{MapDesc, ReserveDesc, UpdateFlags, VaOperation},
    handle::{Handle, HandleTable},
    lock,
    offer::{self, OfferFlags, ReclaimResult},
    paging_queue::{EvictFlags, MakeResidentFlags, NotResident, Paging, PagingQueue, MAX_RESIDENT},
    status::{Result, Status},
    trim::{TrimNotification, TrimRegistration},
};

/// Most allocations of one creation or destruction (`D3DKMT_CREATEALLOCATION_MAX`).
pub const MAX_ALLOCATIONS: usize = 1024;

#[derive(Clone, Debug)]
enum Object {
    Adapter(Adapter),
    Device {
        /// The adapter that it was created on.
        adapter: Handle,
        /// The device; ended when its handle goes.
        device: Device,
    },
    Context {
        /// The device that it was created on.
        device: Handle,
        /// The context, which a call that is under way keeps.
        context: Arc<Context>,
    },
    Allocation {
        /// The device that it was created on.
        device: Handle,
        /// The resource that it was created with, if any.
        resource: Option<Handle>,
        /// The allocation, which a call that is under way keeps.
        allocation: Arc<Allocation>,
    },
    Resource {
        /// The device of all its allocations.
        device: Handle,
        /// Those that are not destroyed, in the order of their creation.
        allocations: Vec<Handle>,
    },
    Fence {
        /// The device that it was created or opened on.
        device: Handle,
        /// The fence; that of a paging queue is the queue's own, too.
        fence: Arc<MonitoredFence>,
    },
    PagingQueue {
        /// The device whose allocations it pages.
        device: Handle,
        /// The queue, which a call that is under way keeps.
        queue: Arc<PagingQueue>,
        /// The handle of its paging fence, which goes with it.
        fence: Handle,
    },
    Trim {
        /// The device that is told to trim.
        device: Handle,
        /// The registration; its callback is unregistered when it goes.
        trim: Arc<TrimRegistration>,
    },
}

impl Object {
    /// The object whose end is its end.
    const fn parent(&self) -> Option<Handle> {
        match self {
            Self::Adapter(_) => None,
            Self::Device { adapter, .. } => Some(*adapter),
            Self::Context { device, .. }
            | Self::Allocation { device, .. }
            | Self::Resource { device, .. }
            | Self::Fence { device, .. }
            | Self::PagingQueue { device, .. }
            | Self::Trim { device, .. } => Some(*device),
        }
    }
}

/// What is asked for an object of another type.
const MISMATCH: Result<()> = Err(Status::OBJECT_TYPE_MISMATCH);

/// The objects of a process.
///
/// ```no_run
/// # use wddm::{AllocationDesc, DestroyFlags, Process, Status};
/// let process = Process::new();
/// let luid = Process::enum_adapters()?[0];
/// let adapter = process.open_adapter_from_luid(luid)?;
/// let device = process.create_device(adapter)?;
/// let desc = AllocationDesc::new(4096, process.adapter(adapter)?.system());
/// let created = process.create_allocation2(device, &[desc], false)?;
/// let allocation = created.allocations[0];
/// process.lock2(device, allocation, 0)?.write(0, 1_u32)?;
/// process.unlock2(device, allocation)?;
/// process.destroy_allocation2(device, None, &[allocation], 0)?;
/// assert_eq!(process.unlock2(device, allocation), Err(Status::INVALID_HANDLE));
/// # Ok::<(), Status>(())
/// ```
#[derive(Debug, Default)]
pub struct Process {
    /// All kinds of objects share one space of handles.
    table: Mutex<HandleTable<Object>>,
    /// Locked over the opening of an adapter.
    opening: Mutex<()>,
}

/// What [`Process::create_allocation2`] creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedAllocations {
    /// The resource, if one was asked for.
    pub resource: Option<Handle>,
    /// The allocations, in the order of their descriptions.
    pub allocations: Vec<Handle>,
}

/// What [`Process::create_paging_queue`] creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedPagingQueue {
    /// The paging queue (`hPagingQueue`), for [`Process::make_resident`].
    pub queue: Handle,
    /// The paging fence (`hSyncObject`), for [`Process::fence`] and waits.
    pub fence: Handle,
}

macro_rules! getter {
    ($name:ident, $type:ty, $pattern:pat => $value:expr) => {
        fn $name(&self, handle: Handle) -> Result<$type> {
            match lock(&self.table).get(handle)? {
                $pattern => Ok($value),
                _ => Err(Status::OBJECT_TYPE_MISMATCH),
            }
        }
    };
}

impl Process {
    /// A process with no objects.
    pub fn new() -> Self {
        Self::default()
    }

    getter!(get_device, Device, Object::Device { device, .. } => device.clone());
    getter!(get_context, Arc<Context>, Object::Context { context, .. } => context.clone());
    getter!(get_paging_queue, Arc<PagingQueue>, Object::PagingQueue { queue, .. } => queue.clone());
    getter!(get_fence, Arc<MonitoredFence>, Object::Fence { fence, .. } => fence.clone());

    /// An allocation of a device.
    fn get_allocation(&self, device: Handle, handle: Handle) -> Result<Arc<Allocation>> {
        let table = lock(&self.table);
        Self::expect_device(&table, device)?;
        match table.get(handle)? {
            Object::Allocation {
                device: owner,
                allocation,
                ..
            } => {
                if *owner != device {
                    return Err(Status::INVALID_PARAMETER);
                }
                Ok(allocation.clone())
            }
            _ => Err(Status::OBJECT_TYPE_MISMATCH),
        }
    }

    fn expect_device(table: &HandleTable<Object>, handle: Handle) -> Result<()> {
        match table.get(handle)? {
            Object::Device { .. } => Ok(()),
            _ => MISMATCH,
        }
    }

    /// Names a child of a device, unless the device is gone by now.
    fn insert(&self, object: Object) -> Result<Handle> {
        let mut table = lock(&self.table);
        if let Some(parent) = object.parent() {
            table.get(parent)?;
        }
        // Where there is no handle `object` is dropped behind the lock.
        table.insert(object.clone())
    }

    // Adapters

    /// The adapters of the machine (`D3DKMTEnumAdapters2`).
    ///
    /// # Errors
    ///
    /// As [`Adapter::enumerate`].
    pub fn enum_adapters() -> Result<Vec<Luid>> {
        Ok(Adapter::enumerate()?.iter().map(|a| a.luid).collect())
    }

    /// `D3DKMTOpenAdapterFromLuid`. What the process has open already, and is not gone, gets one
    /// handle more: its devices share one space of addresses.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there is none with this LUID; as [`crate::AdapterInfo::open`].
    pub fn open_adapter_from_luid(&self, luid: Luid) -> Result<Handle> {
        let adapters = Adapter::enumerate()?;
        let info = adapters.iter().find(|a| a.luid == luid);
        let info = info.ok_or(Status::INVALID_PARAMETER)?;
        let _opening = lock(&self.opening);
        let open: Vec<_> = lock(&self.table)
            .iter()
            .filter_map(|(_, object)| match object {
                Object::Adapter(adapter) => Some(adapter.clone()),
                _ => None,
            })
            .collect();
        let is_it = |adapter: &Adapter| adapter.info().luid == luid && adapter.is_there();
        let adapter = match open.into_iter().find(is_it) {
            Some(adapter) => adapter,
            None => info.open()?,
        };
        self.insert(Object::Adapter(adapter))
    }

    /// The adapter with a handle, for what is asked of it.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn adapter(&self, handle: Handle) -> Result<Adapter> {
        match lock(&self.table).get(handle)? {
            Object::Adapter(adapter) => Ok(adapter.clone()),
            _ => Err(Status::OBJECT_TYPE_MISMATCH),
        }
    }

    /// `D3DKMTQueryAdapterInfo(KMTQAITYPE_WDDM_1_2_CAPS)`: [`Adapter::preemption_caps`].
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn query_adapter_info_preemption_caps(&self, adapter: Handle) -> Result<PreemptionCaps> {
        Ok(self.adapter(adapter)?.preemption_caps())
    }

    /// `D3DKMTSetProcessSchedulingPriorityClass`, on an adapter.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH; as [`Adapter::set_process_scheduling_priority_class`].
    pub fn set_process_scheduling_priority_class(
        &self,
        adapter: Handle,
        class: PriorityClass,
    ) -> Result<()> {
        let adapter = self.adapter(adapter)?;
        adapter.set_process_scheduling_priority_class(class)
    }

    /// `D3DKMTCloseAdapter`; destroys its devices.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn close_adapter(&self, handle: Handle) -> Result<()> {
        let taken = {
            let mut table = lock(&self.table);
            let Object::Adapter(_) = table.get(handle)? else {
                return MISMATCH;
            };
            table.remove_tree(handle, Object::parent)?
        };
        Self::end(&taken);
        Ok(())
    }

    /// Ends the devices among objects whose handles were taken.
    fn end(taken: &[Object]) {
        for object in taken {
            if let Object::Device { device, .. } = object {
                device.destroy();
            }
        }
    }

    // Devices

    /// `D3DKMTCreateDevice`.
    ///
    /// # Errors
    ///
    /// As [`Device::create`].
    pub fn create_device(&self, adapter: Handle) -> Result<Handle> {
        let device = Device::create(&self.adapter(adapter)?)?;
        self.insert(Object::Device { adapter, device })
    }

    /// `D3DKMTDestroyDevice`; destroys all that belongs to it.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn destroy_device(&self, handle: Handle) -> Result<()> {
        let taken = {
            let mut table = lock(&self.table);
            Self::expect_device(&table, handle)?;
            table.remove_tree(handle, Object::parent)?
        };
        Self::end(&taken);
        Ok(())
    }

    /// `D3DKMTGetDeviceState`.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn get_device_state(&self, device: Handle) -> Result<DeviceState> {
        Ok(self.get_device(device)?.state())
    }

    /// `D3DKMTMarkDeviceAsError`.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn mark_device_as_error(&self, device: Handle) -> Result<()> {
        self.get_device(device)?.mark_as_error();
        Ok(())
    }

    // Contexts

    /// `D3DKMTCreateContextVirtual`.
    ///
    /// # Errors
    ///
    /// As [`Context::create`].
    pub fn create_context_virtual(&self, device: Handle, node: u32) -> Result<Handle> {
        let context = Arc::new(Context::create(&self.get_device(device)?, node)?);
        self.insert(Object::Context { device, context })
    }

    /// `D3DKMTDestroyContext`.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn destroy_context(&self, handle: Handle) -> Result<()> {
        let context = self.get_context(handle)?;
        // Another thread may have been faster.
        let object = lock(&self.table).remove(handle)?;
        context.destroy();
        drop(object);
        Ok(())
    }

    /// `D3DKMTSetContextSchedulingPriority`.
    ///
    /// # Errors
    ///
    /// As [`Context::set_scheduling_priority`].
    pub fn set_context_scheduling_priority(&self, context: Handle, priority: i32) -> Result<()> {
        self.get_context(context)?.set_scheduling_priority(priority)
    }

    /// `D3DKMTGetContextSchedulingPriority`.
    ///
    /// # Errors
    ///
    /// As [`Context::scheduling_priority`].
    pub fn get_context_scheduling_priority(&self, context: Handle) -> Result<i32> {
        self.get_context(context)?.scheduling_priority()
    }

    /// `D3DKMTSetContextInProcessSchedulingPriority`.
    ///
    /// # Errors
    ///
    /// As [`Context::set_in_process_scheduling_priority`].
    pub fn set_context_in_process_scheduling_priority(
        &self,
        context: Handle,
        priority: i32,
    ) -> Result<()> {
        let context = self.get_context(context)?;
        context.set_in_process_scheduling_priority(priority)
    }

    /// `D3DKMTGetContextInProcessSchedulingPriority`.
    ///
    /// # Errors
    ///
    /// As [`Context::in_process_scheduling_priority`].
    pub fn get_context_in_process_scheduling_priority(&self, context: Handle) -> Result<i32> {
        self.get_context(context)?.in_process_scheduling_priority()
    }

    /// `D3DKMTSubmitCommand`.
    ///
    /// # Errors
    ///
    /// As [`crate::Submission::submit`].
    pub fn submit_command(&self, context: Handle, va: u64, bytes: u32) -> Result<()> {
        self.get_context(context)?.submit(va, bytes)
    }

    // Allocations

    /// `D3DKMTCreateAllocation2`: all or none of them.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_ALLOCATIONS`]; as
    /// [`Allocation::create`].
    pub fn create_allocation2(
        &self,
        device: Handle,
        descs: &[AllocationDesc],
        create_resource: bool,
    ) -> Result<CreatedAllocations> {
        let owner = self.get_device(device)?;
        if descs.is_empty() || descs.len() > MAX_ALLOCATIONS {
            return Err(Status::INVALID_PARAMETER);
        }
        let created = descs
            .iter()
            .map(|desc| Ok(Arc::new(Allocation::create(&owner, desc)?)))
            .collect::<Result<Vec<_>>>()?;
        let mut table = lock(&self.table);
        Self::expect_device(&table, device)?;
        let mut handles = Vec::with_capacity(created.len());
        let named = Self::name(&mut table, device, &created, create_resource, &mut handles);
        if named.is_err() {
            for handle in handles {
                // `created` holds it: nothing is destroyed with the lock held.
                let _ = table.remove(handle);
            }
            drop(table);
            return Err(named.err().unwrap_or(Status::UNSUCCESSFUL));
        }
        Ok(CreatedAllocations {
            resource: named?,
            allocations: handles,
        })
    }

    /// Names new allocations, and their resource. What got a name before an error is in `handles`.
    fn name(
        table: &mut HandleTable<Object>,
        device: Handle,
        created: &[Arc<Allocation>],
        create_resource: bool,
        handles: &mut Vec<Handle>,
    ) -> Result<Option<Handle>> {
        let resource = if create_resource {
            Some(table.insert(Object::Resource {
                device,
                allocations: Vec::new(),
            })?)
        } else {
            None
        };
        for allocation in created {
            let handle = table.insert(Object::Allocation {
                device,
                resource,
                allocation: allocation.clone(),
            });
            match handle {
                Ok(handle) => handles.push(handle),
                Err(status) => {
                    if let Some(resource) = resource {
                        let _ = table.remove(resource);
                    }
                    return Err(status);
                }
            }
        }
        if let Some(resource) = resource {
            if let Ok(Object::Resource { allocations, .. }) = table.get_mut(resource) {
                allocations.clone_from(handles);
            }
        }
        Ok(resource)
    }

    /// `D3DKMTDestroyAllocation2`: a resource with all its allocations, or a list of allocations
    /// that belong to no resource or all to the same; all or none of them.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if a bit of `flags` has no meaning, both or none of the two are given, the
    /// list is longer than [`MAX_ALLOCATIONS`], names one twice, one of another device, or ones of
    /// different resources; INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn destroy_allocation2(
        &self,
        device: Handle,
        resource: Option<Handle>,
        allocations: &[Handle],
        flags: u32,
    ) -> Result<()> {
        let flags = DestroyFlags::from_bits(flags).ok_or(Status::INVALID_PARAMETER)?;
        let taken = {
            let mut table = lock(&self.table);
            Self::expect_device(&table, device)?;
            let list = Self::to_destroy(&table, device, resource, allocations)?;
            if let Some(resource) = resource {
                table.remove(resource)?;
            }
            let mut taken = Vec::with_capacity(list.len());
            for handle in list {
                if let Object::Allocation {
                    allocation,
                    resource,
                    ..
                } = table.remove(handle)?
                {
                    if let Some(resource) = resource {
                        if let Ok(Object::Resource { allocations, .. }) = table.get_mut(resource) {
                            allocations.retain(|other| *other != handle);
                        }
                    }
                    taken.push(allocation);
                }
            }
            taken
        };
        let mut result = Ok(());
        for allocation in taken {
            // What fails is the wait of a synchronous one: the others are destroyed all the same.
            result = result.and(allocation.destroy(flags));
        }
        result
    }

    /// What a destroy means, checked; nothing is changed.
    fn to_destroy(
        table: &HandleTable<Object>,
        device: Handle,
        resource: Option<Handle>,
        list: &[Handle],
    ) -> Result<Vec<Handle>> {
        let named = Self::named(table, device, resource, list)?;
        let mut of = None;
        for handle in list {
            let Object::Allocation { resource, .. } = table.get(*handle)? else {
                return Err(Status::OBJECT_TYPE_MISMATCH);
            };
            if *of.get_or_insert(*resource) != *resource {
                return Err(Status::INVALID_PARAMETER);
            }
        }
        Ok(named)
    }

    /// The allocations that a resource or else a list names, each once, checked.
    fn named(
        table: &HandleTable<Object>,
        device: Handle,
        resource: Option<Handle>,
        list: &[Handle],
    ) -> Result<Vec<Handle>> {
        if let Some(resource) = resource {
            if !list.is_empty() {
                return Err(Status::INVALID_PARAMETER);
            }
            return match table.get(resource)? {
                Object::Resource {
                    device: owner,
                    allocations,
                } if *owner == device => Ok(allocations.clone()),
                Object::Resource { .. } => Err(Status::INVALID_PARAMETER),
                _ => Err(Status::OBJECT_TYPE_MISMATCH),
            };
        }
        if list.is_empty() || list.len() > MAX_ALLOCATIONS {
            return Err(Status::INVALID_PARAMETER);
        }
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Status::INVALID_PARAMETER);
        }
        for handle in list {
            let Object::Allocation { device: owner, .. } = table.get(*handle)? else {
                return Err(Status::OBJECT_TYPE_MISMATCH);
            };
            if *owner != device {
                return Err(Status::INVALID_PARAMETER);
            }
        }
        Ok(list.to_vec())
    }

    /// `D3DKMTSetAllocationPriority`: of all allocations of a resource, which the one priority is
    /// for, or of a list of them, each its own; of all or of none; row 2.25.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if a priority is 0, their number is not that of the list, or 1 for a
    /// resource, both or none of the two are given, the list is longer than [`MAX_ALLOCATIONS`],
    /// names one twice, or one of another device; INVALID_HANDLE, OBJECT_TYPE_MISMATCH;
    /// DEVICE_REMOVED.
    pub fn set_allocation_priority(
        &self,
        device: Handle,
        resource: Option<Handle>,
        allocations: &[Handle],
        priorities: &[u32],
    ) -> Result<()> {
        let expected = match resource {
            Some(_) => 1,
            None => allocations.len(),
        };
        if priorities.len() != expected || priorities.contains(&0) {
            return Err(Status::INVALID_PARAMETER);
        }
        let list = {
            let table = lock(&self.table);
            Self::expect_device(&table, device)?;
            Self::named(&table, device, resource, allocations)?
        };
        // A resource whose allocations are all destroyed.
        if list.is_empty() {
            return Ok(());
        }
        let device = self.get_device(device)?;
        let list = self.get_allocations(&device, &list)?;
        // One is for all of a resource.
        let all = list.iter().zip(priorities.iter().cycle());
        let all: Vec<_> = all.map(|(a, priority)| (&**a, *priority)).collect();
        device.set_allocation_priority(&all)
    }

    /// `D3DKMTLock2`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is another device's; as [`Allocation::lock2`].
    pub fn lock2(&self, device: Handle, allocation: Handle, flags: u32) -> Result<Arc<Mapping>> {
        self.get_allocation(device, allocation)?.lock2(flags)
    }

    /// `D3DKMTUnlock2`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is another device's; as [`Allocation::unlock2`].
    pub fn unlock2(&self, device: Handle, allocation: Handle) -> Result<()> {
        self.get_allocation(device, allocation)?.unlock2()
    }

    /// The GPU virtual address of an allocation.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is another device's; INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn gpu_va(&self, device: Handle, allocation: Handle) -> Result<u64> {
        Ok(self.get_allocation(device, allocation)?.gpu_va())
    }

    // Residency

    /// `D3DKMTCreatePagingQueue`.
    ///
    /// # Errors
    ///
    /// As [`PagingQueue::create`].
    pub fn create_paging_queue(&self, device: Handle) -> Result<CreatedPagingQueue> {
        let queue = Arc::new(PagingQueue::create(&self.get_device(device)?)?);
        let fence = self.insert(Object::Fence {
            device,
            fence: queue.fence().clone(),
        })?;
        let queue = self.insert(Object::PagingQueue {
            device,
            queue,
            fence,
        });
        if queue.is_err() {
            // Gone, if the device is.
            let fence = lock(&self.table).remove(fence);
            drop(fence);
        }
        let queue = queue?;
        Ok(CreatedPagingQueue { queue, fence })
    }

    /// `D3DKMTDestroyPagingQueue`; its fence goes with it.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn destroy_paging_queue(&self, handle: Handle) -> Result<()> {
        let queue = self.get_paging_queue(handle)?;
        // Another thread may have been faster.
        let object = lock(&self.table).remove(handle)?;
        if let Object::PagingQueue { fence, .. } = object {
            let fence = lock(&self.table).remove(fence);
            drop(fence);
        }
        queue.destroy();
        Ok(())
    }

    /// `D3DKMTMakeResident`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if a bit of `flags` has no meaning; as [`PagingQueue::make_resident`].
    pub fn make_resident(
        &self,
        queue: Handle,
        allocations: &[Handle],
        flags: u32,
    ) -> Result<Paging, NotResident> {
        let queue = self.get_paging_queue(queue)?;
        let flags = MakeResidentFlags::from_bits(flags).ok_or(Status::INVALID_PARAMETER)?;
        let list = self.get_allocations(queue.device(), allocations)?;
        let list: Vec<&Allocation> = list.iter().map(|allocation| &**allocation).collect();
        queue.make_resident(&list, flags)
    }

    /// `D3DKMTEvict`: `NumBytesToTrim`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if a bit of `flags` has no meaning; as [`Device::evict`].
    pub fn evict(&self, device: Handle, allocations: &[Handle], flags: u32) -> Result<u64> {
        let device = self.get_device(device)?;
        let flags = EvictFlags::from_bits(flags).ok_or(Status::INVALID_PARAMETER)?;
        let list = self.get_allocations(&device, allocations)?;
        let list: Vec<&Allocation> = list.iter().map(|allocation| &**allocation).collect();
        device.evict(&list, flags)
    }

    /// `D3DKMTOfferAllocations`: all allocations of a resource, or a list of them.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there is no such priority, a bit of `flags` has no meaning, or both or
    /// none of the two are given; INVALID_HANDLE, OBJECT_TYPE_MISMATCH; as [`Device::offer`].
    pub fn offer_allocations(
        &self,
        device: Handle,
        resource: Option<Handle>,
        allocations: &[Handle],
        priority: u32,
        flags: u32,
    ) -> Result<()> {
        let flags = OfferFlags::from_bits(flags).ok_or(Status::INVALID_PARAMETER)?;
        let priority = offer::priority(priority)?;
        let list = {
            let table = lock(&self.table);
            Self::expect_device(&table, device)?;
            Self::named(&table, device, resource, allocations)?
        };
        let device = self.get_device(device)?;
        let list = self.get_allocations(&device, &list)?;
        let list: Vec<&Allocation> = list.iter().map(|allocation| &**allocation).collect();
        device.offer(&list, priority, flags)
    }

    /// `D3DKMTReclaimAllocations2`: as [`Process::offer_allocations`] for what it names.
    ///
    /// # Errors
    ///
    /// As [`PagingQueue::reclaim`].
    pub fn reclaim_allocations2(
        &self,
        queue: Handle,
        resource: Option<Handle>,
        allocations: &[Handle],
    ) -> Result<(Vec<ReclaimResult>, Paging)> {
        let (device, queue) = match lock(&self.table).get(queue)? {
            Object::PagingQueue { device, queue, .. } => (*device, queue.clone()),
            _ => return Err(Status::OBJECT_TYPE_MISMATCH),
        };
        let list = Self::named(&lock(&self.table), device, resource, allocations)?;
        let list = self.get_allocations(queue.device(), &list)?;
        let list: Vec<&Allocation> = list.iter().map(|allocation| &**allocation).collect();
        queue.reclaim(&list)
    }

    /// Allocations of a device, [`MAX_RESIDENT`] at most.
    fn get_allocations(&self, device: &Device, list: &[Handle]) -> Result<Vec<Arc<Allocation>>> {
        if list.is_empty() || list.len() > MAX_RESIDENT {
            return Err(Status::INVALID_PARAMETER);
        }
        let table = lock(&self.table);
        list.iter()
            .map(|handle| match table.get(*handle)? {
                Object::Allocation { allocation, .. } if allocation.device() == device => {
                    Ok(allocation.clone())
                }
                Object::Allocation { .. } => Err(Status::INVALID_PARAMETER),
                _ => Err(Status::OBJECT_TYPE_MISMATCH),
            })
            .collect()
    }

    /// `D3DKMTQueryVideoMemoryInfo`, of this process.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH; as [`Adapter::query_video_memory_info`].
    pub fn query_video_memory_info(
        &self,
        adapter: Handle,
        group: MemorySegmentGroup,
    ) -> Result<VideoMemoryInfo> {
        self.adapter(adapter)?.query_video_memory_info(group)
    }

    /// `D3DKMTRegisterTrimNotification` for a device.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH; as [`Device::register_trim_notification`].
    pub fn register_trim_notification(
        &self,
        device: Handle,
        callback: impl FnMut(TrimNotification) + Send + 'static,
    ) -> Result<Handle> {
        let trim = self
            .get_device(device)?
            .register_trim_notification(callback)?;
        let trim = Arc::new(trim);
        self.insert(Object::Trim { device, trim })
    }

    /// `D3DKMTUnregisterTrimNotification`: see [`TrimRegistration::unregister`].
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn unregister_trim_notification(&self, handle: Handle) -> Result<()> {
        let trim = {
            let mut table = lock(&self.table);
            let Object::Trim { trim, .. } = table.get(handle)?.clone() else {
                return MISMATCH;
            };
            table.remove(handle)?;
            trim
        };
        trim.unregister();
        Ok(())
    }

    // GPU virtual addresses

    /// `D3DKMTReserveGpuVirtualAddress`, on an adapter or a paging queue.
    ///
    /// # Errors
    ///
    /// As [`Adapter::reserve_gpu_virtual_address`].
    pub fn reserve_gpu_virtual_address(&self, on: Handle, desc: &ReserveDesc) -> Result<u64> {
        let adapter = match lock(&self.table).get(on)? {
            Object::Adapter(adapter) => adapter.clone(),
            Object::PagingQueue { queue, .. } => queue.device().adapter().clone(),
            _ => return Err(Status::OBJECT_TYPE_MISMATCH),
        };
        adapter.reserve_gpu_virtual_address(desc)
    }

    /// `D3DKMTFreeGpuVirtualAddress`.
    ///
    /// # Errors
    ///
    /// As [`Adapter::free_gpu_virtual_address`].
    pub fn free_gpu_virtual_address(&self, adapter: Handle, va: u64, size: u64) -> Result<()> {
        self.adapter(adapter)?.free_gpu_virtual_address(va, size)
    }

    /// `D3DKMTMapGpuVirtualAddress`.
    ///
    /// # Errors
    ///
    /// As [`PagingQueue::map_gpu_virtual_address`].
    pub fn map_gpu_virtual_address(
        &self,
        queue: Handle,
        desc: &MapDesc<Handle>,
    ) -> Result<(u64, Paging)> {
        let queue = self.get_paging_queue(queue)?;
        let allocation = match desc.allocation {
            Some(handle) => Some(self.get_allocations(queue.device(), &[handle])?.remove(0)),
            None => None,
        };
        queue.map_gpu_virtual_address(&desc.with(allocation.as_deref()))
    }

    /// `D3DKMTUpdateGpuVirtualAddress`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if a bit of `flags` has no meaning, or the context is of another device;
    /// as [`Context::update_gpu_virtual_address`].
    pub fn update_gpu_virtual_address(
        &self,
        device: Handle,
        context: Handle,
        operations: &[VaOperation<Handle>],
        fence: Option<(Handle, u64)>,
        flags: u32,
    ) -> Result<()> {
        let device = self.get_device(device)?;
        let context = self.get_context(context)?;
        let flags = UpdateFlags::from_bits(flags).ok_or(Status::INVALID_PARAMETER)?;
        if *context.device() != device {
            return Err(Status::INVALID_PARAMETER);
        }
        let fence = match fence {
            Some((handle, value)) => Some((self.get_fence(handle)?, value)),
            None => None,
        };
        let named = operations
            .iter()
            .map(|operation| match operation.allocation() {
                Some(handle) => Ok(Some(self.get_allocations(&device, &[*handle])?.remove(0))),
                None => Ok(None),
            })
            .collect::<Result<Vec<_>>>()?;
        let operations: Vec<_> = operations
            .iter()
            .zip(&named)
            .filter_map(|(operation, allocation)| operation.with(allocation.as_deref()))
            .collect();
        let fence = fence.as_ref().map(|(fence, value)| (&**fence, *value));
        context.update_gpu_virtual_address(&operations, fence, flags)
    }

    // Fences

    /// `D3DKMTCreateSynchronizationObject2` of a monitored fence.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::create`].
    pub fn create_synchronization_object2(&self, device: Handle, initial: u64) -> Result<Handle> {
        let fence = Arc::new(MonitoredFence::create(&self.get_device(device)?, initial)?);
        self.insert(Object::Fence { device, fence })
    }

    /// `D3DKMTCreateSynchronizationObject2` of a monitored fence with `NoSignalMaxValueOnTdr`.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::create_keeping`].
    pub fn create_keeping_synchronization_object2(
        &self,
        device: Handle,
        initial: u64,
    ) -> Result<Handle> {
        let fence = MonitoredFence::create_keeping(&self.get_device(device)?, initial)?;
        let fence = Arc::new(fence);
        self.insert(Object::Fence { device, fence })
    }

    /// `D3DKMTShareObjects` of a fence.
    ///
    /// # Errors
    ///
    /// OBJECT_TYPE_MISMATCH; as [`MonitoredFence::share`].
    pub fn share_objects(&self, fence: Handle) -> Result<OwnedFd> {
        self.get_fence(fence)?.share()
    }

    /// `D3DKMTOpenSyncObjectFromNtHandle2`.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::open`].
    pub fn open_sync_object_from_nt_handle2(
        &self,
        device: Handle,
        descriptor: BorrowedFd<'_>,
    ) -> Result<Handle> {
        let fence = Arc::new(MonitoredFence::open(&self.get_device(device)?, descriptor)?);
        self.insert(Object::Fence { device, fence })
    }

    /// `D3DKMTDestroySynchronizationObject`.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH; INVALID_PARAMETER for a paging queue's, which goes
    /// with the queue.
    pub fn destroy_synchronization_object(&self, handle: Handle) -> Result<()> {
        let fence = self.get_fence(handle)?;
        if fence.fence().paging {
            return Err(Status::INVALID_PARAMETER);
        }
        // Another thread may have been faster.
        let object = lock(&self.table).remove(handle)?;
        fence.destroy();
        drop(object);
        Ok(())
    }

    /// The fence with a handle, for its value and its addresses.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE, OBJECT_TYPE_MISMATCH.
    pub fn fence(&self, handle: Handle) -> Result<Arc<MonitoredFence>> {
        self.get_fence(handle)
    }

    fn fences(&self, list: &[(Handle, u64)]) -> Result<Vec<(Arc<MonitoredFence>, u64)>> {
        if list.is_empty() || list.len() > MAX_FENCES {
            return Err(Status::INVALID_PARAMETER);
        }
        list.iter()
            .map(|(handle, value)| Ok((self.get_fence(*handle)?, *value)))
            .collect()
    }

    /// `D3DKMTSignalSynchronizationObjectFromCpu` of one fence.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is another device's; as [`MonitoredFence::signal`].
    pub fn signal_synchronization_object_from_cpu(
        &self,
        device: Handle,
        fence: Handle,
        value: u64,
    ) -> Result<()> {
        let device = self.get_device(device)?;
        let fence = self.get_fence(fence)?;
        if *fence.device() != device {
            return Err(Status::INVALID_PARAMETER);
        }
        fence.signal(value)
    }

    /// `D3DKMTWaitForSynchronizationObjectFromCpu`: sleeps, or, with an eventfd (`hAsyncEvent`),
    /// returns at once.
    ///
    /// # Errors
    ///
    /// As [`Device::wait_from_cpu`] and [`Device::wait_from_cpu_async`].
    pub fn wait_for_synchronization_object_from_cpu(
        &self,
        device: Handle,
        waits: &[(Handle, u64)],
        how: WaitFor,
        event: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let device = self.get_device(device)?;
        let fences = self.fences(waits)?;
        let waits: Vec<_> = fences.iter().map(|(f, value)| (&**f, *value)).collect();
        match event {
            Some(event) => device.wait_from_cpu_async(&waits, how, event),
            None => device
                .wait_from_cpu(&waits, how, Deadline::NEVER)
                .map(|_| ()),
        }
    }

    /// `D3DKMTSignalSynchronizationObjectFromGpu`.
    ///
    /// # Errors
    ///
    /// As [`Context::signal_from_gpu`].
    pub fn signal_synchronization_object_from_gpu(
        &self,
        context: Handle,
        signals: &[(Handle, u64)],
    ) -> Result<()> {
        let context = self.get_context(context)?;
        let fences = self.fences(signals)?;
        let signals: Vec<_> = fences.iter().map(|(f, value)| (&**f, *value)).collect();
        context.signal_from_gpu(&signals)
    }

    /// `D3DKMTWaitForSynchronizationObjectFromGpu`.
    ///
    /// # Errors
    ///
    /// As [`Context::wait_from_gpu`].
    pub fn wait_for_synchronization_object_from_gpu(
        &self,
        context: Handle,
        waits: &[(Handle, u64)],
    ) -> Result<()> {
        let context = self.get_context(context)?;
        let fences = self.fences(waits)?;
        let waits: Vec<_> = fences.iter().map(|(f, value)| (&**f, *value)).collect();
        context.wait_from_gpu(&waits)
    }
}
