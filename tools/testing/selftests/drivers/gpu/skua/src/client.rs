// SPDX-License-Identifier: MIT

//! An open render node, and the uAPI's calls with good arguments.
//!
//! What returns a `Result` is under test; what does not is what a test builds on, and fails it.
//! These tests speak to the kernel themselves: a library that retries or checks would hide what
//! they are about.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::time::{clock_gettime, ClockId};
use skua_spec::fault::Reason;
use skua_uapi::*;

use crate::fdinfo::Fdinfo;
use crate::function::Function;
use crate::mapping::Mapping;
use crate::raw::{ioctl, Errno};
use crate::suite::patience;

/// How long work may take that ends. Long, as a host may be slow; work that does not end fails the
/// test all the same.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Where a buffer object may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Pages of the host, seen by the GPU through the bus.
    System,
    /// The device's own.
    Vram,
    /// Pages of the host, seen by the GPU through its window.
    Aperture,
}

impl Place {
    /// Those that are memory of their own.
    pub const ALL: [Self; 2] = [Self::System, Self::Vram];
}

/// An open render node.
#[derive(Debug)]
pub struct Client {
    /// Closed by drop, and with it what was made through it.
    file: File,
    /// What QUERY told when it was opened.
    pub device: drm_skua_device_info,
    /// What QUERY told of each engine, by the engine's index.
    pub engines: Vec<drm_skua_engine_info>,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Opens the render node of the first GPU.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[track_caller]
    pub fn new() -> Self {
        Self::of(Function::first().open().expect("a render node"))
    }

    /// A client of an open render node, of which nothing is known yet.
    ///
    /// # Errors
    ///
    /// The errno with which it says that its device is gone.
    pub fn try_of(file: File) -> Result<Self, Errno> {
        let client = Self {
            file,
            device: drm_skua_device_info::default(),
            engines: Vec::new(),
        };
        client.query_size(DRM_SKUA_QUERY_DEVICE)?;
        Ok(client)
    }

    /// A client of an open render node.
    #[track_caller]
    pub fn of(file: File) -> Self {
        let mut client = Self::try_of(file).expect("QUERY of a size");
        let info = client.query_all(DRM_SKUA_QUERY_DEVICE);
        client.device = device_info(&info);
        client.engines = client
            .query_all(DRM_SKUA_QUERY_ENGINES)
            .chunks_exact(2)
            .map(|words| drm_skua_engine_info {
                index: words[0],
                kind: words[1],
            })
            .collect();
        client
    }

    /// Calls an ioctl once: EINTR is the caller's.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn call<T>(&self, number: u32, argument: &mut T) -> Result<(), Errno> {
        ioctl(&self.file, number, argument)
    }

    /// QUERY into a buffer; what was written, in bytes.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn query(&self, kind: u32, buffer: &mut [u32]) -> Result<usize, Errno> {
        let mut query = drm_skua_query {
            type_: kind,
            size: u32::try_from(size_of_val(buffer)).map_err(|_| Errno::EINVAL)?,
            pointer: buffer.as_mut_ptr() as u64,
        };
        self.call(DRM_IOCTL_SKUA_QUERY, &mut query)?;
        usize::try_from(query.size).map_err(|_| Errno::EOVERFLOW)
    }

    /// The bytes of an answer.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn query_size(&self, kind: u32) -> Result<usize, Errno> {
        let mut query = drm_skua_query {
            type_: kind,
            size: 0,
            pointer: 0,
        };
        self.call(DRM_IOCTL_SKUA_QUERY, &mut query)?;
        usize::try_from(query.size).map_err(|_| Errno::EOVERFLOW)
    }

    /// A whole answer in words.
    #[track_caller]
    fn query_all(&self, kind: u32) -> Vec<u32> {
        let size = self.query_size(kind).expect("QUERY of a size");
        let mut buffer = vec![0; size / 4];
        assert_eq!(self.query(kind, &mut buffer), Ok(size), "QUERY {kind}");
        buffer
    }

    /// With their use now.
    #[track_caller]
    pub fn regions(&self) -> Vec<drm_skua_region_info> {
        let quad = |words: &[u32]| u64::from(words[0]) | (u64::from(words[1]) << 32);
        self.query_all(DRM_SKUA_QUERY_REGIONS)
            .chunks_exact(size_of::<drm_skua_region_info>() / 4)
            .map(|words| drm_skua_region_info {
                id: words[0],
                kind: words[1],
                size: quad(&words[2..]),
                used: quad(&words[4..]),
                cpu_visible_size: quad(&words[6..]),
                page_size: words[8],
                aperture_page_size: words[9],
                aperture_size: quad(&words[10..]),
            })
            .collect()
    }

    /// The region of this kind.
    #[track_caller]
    pub fn region(&self, place: Place) -> drm_skua_region_info {
        let kind = match place {
            Place::System => DRM_SKUA_REGION_SYSTEM,
            Place::Vram => DRM_SKUA_REGION_VRAM,
            Place::Aperture => DRM_SKUA_REGION_APERTURE,
        };
        self.regions()
            .into_iter()
            .find(|region| region.kind == kind)
            .unwrap_or_else(|| panic!("there is no region for {place:?}"))
    }

    /// The number of the engine of this kind.
    #[track_caller]
    pub fn engine(&self, kind: u32) -> u32 {
        self.engines
            .iter()
            .find(|engine| engine.kind == kind)
            .unwrap_or_else(|| panic!("there is no engine of kind {kind}"))
            .index
    }

    /// BO_CREATE; the handle.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn bo_create(&self, size: u64, flags: u32, placements: u32) -> Result<u32, Errno> {
        self.bo_create_in(0, size, flags, placements)
    }

    /// BO_CREATE of an object that is private to an address space, if that is not 0.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn bo_create_in(
        &self,
        vm: u32,
        size: u64,
        flags: u32,
        placements: u32,
    ) -> Result<u32, Errno> {
        let mut argument = drm_skua_bo_create {
            size,
            flags,
            placements,
            vm,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_CREATE, &mut argument)?;
        Ok(argument.handle)
    }

    /// BO_CREATE of an object with an order of places, the first one first, and an eviction set.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn bo_create_preferring(
        &self,
        size: u64,
        flags: u32,
        placements: u32,
        preferred: &[Place],
        eviction: &[Place],
    ) -> Result<u32, Errno> {
        let mut argument = drm_skua_bo_create {
            size,
            flags,
            placements,
            preferred: self.order(preferred),
            eviction_set: self.set(eviction),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_CREATE, &mut argument)?;
        Ok(argument.handle)
    }

    /// The bits of the regions of some places.
    #[track_caller]
    pub fn set(&self, places: &[Place]) -> u32 {
        places
            .iter()
            .fold(0, |all, place| all | 1 << self.region(*place).id)
    }

    /// The places as [`drm_skua_bo_create::preferred`].
    #[track_caller]
    pub fn order(&self, places: &[Place]) -> u32 {
        let bytes = places.iter().zip([0, 8, 16]);
        bytes.fold(0, |all, (place, shift)| all | self.set(&[*place]) << shift)
    }

    /// A buffer object that the CPU can map, in one place.
    ///
    /// # Errors
    ///
    /// The errno.
    #[track_caller]
    pub fn try_bo(&self, place: Place, size: u64) -> Result<u32, Errno> {
        self.bo_create(size, DRM_SKUA_BO_CPU_ACCESS, 1 << self.region(place).id)
    }

    /// The same, for which nobody has to leave VRAM.
    ///
    /// # Errors
    ///
    /// The errno; ENOSPC if there is no room.
    #[track_caller]
    pub fn try_bo_in_free(&self, place: Place, size: u64) -> Result<u32, Errno> {
        let region = self.region(place);
        if region.size - region.used < size {
            return Err(Errno::ENOSPC);
        }
        self.try_bo(place, size)
    }

    /// The same, which must work, whoever has to leave.
    #[track_caller]
    pub fn bo(&self, place: Place, size: u64) -> u32 {
        self.try_bo(place, size)
            .unwrap_or_else(|errno| panic!("BO_CREATE of {size:#x} bytes in {place:?}: {errno}"))
    }

    /// GEM_CLOSE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn close(&self, handle: u32) -> Result<(), Errno> {
        let mut argument = drm_gem_close { handle, pad: 0 };
        self.call(DRM_IOCTL_GEM_CLOSE, &mut argument)
    }

    /// BO_DESTROY, called once.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn destroy(&self, handles: &[u32], flags: u32) -> Result<(), Errno> {
        let handles = elements(handles);
        let mut argument = drm_skua_bo_destroy {
            flags,
            pad: 0,
            handles: array(&handles),
        };
        self.call(DRM_IOCTL_SKUA_BO_DESTROY, &mut argument)
    }

    /// BO_DESTROY that returns when the memory is free, with other flags besides, called as
    /// libraries do it: until it need not wait any more.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn destroy_synchronously(&self, handles: &[u32], flags: u32) -> Result<(), Errno> {
        loop {
            match self.destroy(handles, flags | DRM_SKUA_BO_DESTROY_SYNCHRONOUS) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                result => return result,
            }
        }
    }

    /// MAKE_RESIDENT.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn make_resident(&self, handles: &[u32], syncs: &[drm_skua_sync]) -> Result<(), Errno> {
        let handles = elements(handles);
        let mut argument = drm_skua_make_resident {
            handles: array(&handles),
            syncs: array(syncs),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_MAKE_RESIDENT, &mut argument)
    }

    /// EVICT.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn evict(&self, handles: &[u32]) -> Result<(), Errno> {
        let handles = elements(handles);
        let mut argument = drm_skua_evict {
            handles: array(&handles),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_EVICT, &mut argument)
    }

    /// BO_LOCK: the offset for mmap().
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn lock(&self, handle: u32) -> Result<u64, Errno> {
        let mut argument = drm_skua_bo_lock {
            handle,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_LOCK, &mut argument)?;
        Ok(argument.offset)
    }

    /// BO_UNLOCK.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn unlock(&self, handle: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_bo_unlock {
            handle,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_UNLOCK, &mut argument)
    }

    /// BO_SET_PRIORITY: the same for all.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn set_priority(&self, handles: &[u32], priority: u32) -> Result<(), Errno> {
        let objects: Vec<_> = handles
            .iter()
            .map(|&handle| drm_skua_bo_priority { handle, priority })
            .collect();
        let mut argument = drm_skua_bo_set_priority {
            objects: array(&objects),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_SET_PRIORITY, &mut argument)
    }

    /// BO_OFFER: with the same priority for all.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn offer(&self, handles: &[u32], priority: u32) -> Result<(), Errno> {
        let handles = elements(handles);
        let mut argument = drm_skua_bo_offer {
            priority,
            handles: array(&handles),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_OFFER, &mut argument)
    }

    /// BO_RECLAIM: whether the content was thrown away, of each.
    ///
    /// # Errors
    ///
    /// The errno.
    ///
    /// # Panics
    ///
    /// If something is said of others.
    pub fn reclaim(&self, handles: &[u32]) -> Result<Vec<bool>, Errno> {
        let elements = elements(handles);
        let mut argument = drm_skua_bo_reclaim {
            handles: array(&elements),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_RECLAIM, &mut argument)?;
        let bits = argument.discarded;
        let mut gone = (0..64 * bits.len()).map(|n| bits[n / 64] >> (n % 64) & 1 != 0);
        let mine = gone.by_ref().take(handles.len()).collect();
        assert!(!gone.any(|gone| gone), "{bits:x?}");
        Ok(mine)
    }

    /// BO_INFO.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn info(&self, handle: u32) -> Result<drm_skua_bo_info, Errno> {
        let mut argument = drm_skua_bo_info {
            handle,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_INFO, &mut argument)?;
        Ok(argument)
    }

    /// BO_MMAP_OFFSET.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn mmap_offset(&self, handle: u32) -> Result<u64, Errno> {
        let mut argument = drm_skua_bo_mmap_offset {
            handle,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_BO_MMAP_OFFSET, &mut argument)?;
        Ok(argument.offset)
    }

    /// Maps all of a buffer object.
    #[track_caller]
    pub fn map(&self, handle: u32) -> Mapping {
        let offset = self.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        let size = self.info(handle).expect("BO_INFO").size;
        let len = usize::try_from(size).expect("a size");
        Mapping::new(&self.file, offset, len).expect("mmap")
    }

    /// DEVICE_CREATE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn device_create(&self, flags: u32) -> Result<u32, Errno> {
        let mut argument = drm_skua_device_create { flags, device: 0 };
        self.call(DRM_IOCTL_SKUA_DEVICE_CREATE, &mut argument)?;
        Ok(argument.device)
    }

    /// SET_PRIORITY_CLASS.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn set_class(&self, priority_class: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_set_priority_class {
            priority_class,
            flags: 0,
        };
        self.call(DRM_IOCTL_SKUA_SET_PRIORITY_CLASS, &mut argument)
    }

    /// DEVICE_MARK_ERROR.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn device_mark_error(&self, device: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_device_mark_error { device, pad: 0 };
        self.call(DRM_IOCTL_SKUA_DEVICE_MARK_ERROR, &mut argument)
    }

    /// DEVICE_DESTROY.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn device_destroy(&self, device: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_device_destroy { device, pad: 0 };
        self.call(DRM_IOCTL_SKUA_DEVICE_DESTROY, &mut argument)
    }

    /// DEVICE_STATE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn device_state(&self, device: u32) -> Result<drm_skua_device_state, Errno> {
        let mut argument = drm_skua_device_state {
            device,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_DEVICE_STATE, &mut argument)?;
        Ok(argument)
    }

    /// MAKE_RESIDENT for a device, whose work has to wait for the moves, and waits for these: the
    /// bytes to trim; with the errno, too.
    ///
    /// # Errors
    ///
    /// The errno.
    #[track_caller]
    pub fn make_resident_for(
        &self,
        device: u32,
        flags: u32,
        handles: &[u32],
    ) -> Result<u64, (Errno, u64)> {
        let there = self.syncobj();
        let excess = self.begin_resident_for(device, flags, handles, &[signal(there)]);
        if excess.is_ok() {
            assert_eq!(self.wait(there), Ok(()), "they are there");
        }
        assert_eq!(self.syncobj_destroy(there), Ok(()));
        excess
    }

    /// The same, and waits for nothing.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn begin_resident_for(
        &self,
        device: u32,
        flags: u32,
        handles: &[u32],
        syncs: &[drm_skua_sync],
    ) -> Result<u64, (Errno, u64)> {
        let handles = elements(handles);
        let mut argument = drm_skua_make_resident {
            flags,
            device,
            handles: array(&handles),
            syncs: array(syncs),
            ..Default::default()
        };
        match self.call(DRM_IOCTL_SKUA_MAKE_RESIDENT, &mut argument) {
            Ok(()) => Ok(argument.bytes_to_trim),
            Err(errno) => Err((errno, argument.bytes_to_trim)),
        }
    }

    /// EVICT for a device.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn evict_for(&self, device: u32, handles: &[u32]) -> Result<(), Errno> {
        let handles = elements(handles);
        let mut argument = drm_skua_evict {
            device,
            handles: array(&handles),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_EVICT, &mut argument)
    }

    /// VM_CREATE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn vm_create(&self) -> Result<u32, Errno> {
        self.vm_create_for(0)
    }

    /// VM_CREATE for a device.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn vm_create_for(&self, device: u32) -> Result<u32, Errno> {
        let mut argument = drm_skua_vm_create {
            device,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_VM_CREATE, &mut argument)?;
        Ok(argument.vm)
    }

    /// VM_DESTROY.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn vm_destroy(&self, vm: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_vm_destroy { vm, pad: 0 };
        self.call(DRM_IOCTL_SKUA_VM_DESTROY, &mut argument)
    }

    /// VM_BIND.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn bind(
        &self,
        vm: u32,
        ops: &[drm_skua_bind_op],
        syncs: &[drm_skua_sync],
    ) -> Result<(), Errno> {
        self.bind_in_order_of(0, vm, ops, syncs)
    }

    /// VM_BIND in the order of a context.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn bind_in_order_of(
        &self,
        context: u32,
        vm: u32,
        ops: &[drm_skua_bind_op],
        syncs: &[drm_skua_sync],
    ) -> Result<(), Errno> {
        let mut argument = drm_skua_vm_bind {
            vm,
            context,
            ops: array(ops),
            syncs: array(syncs),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_VM_BIND, &mut argument)
    }

    /// Binds and waits until it is done.
    ///
    /// # Errors
    ///
    /// The errno, of the call or of the fence.
    #[track_caller]
    pub fn bind_and_wait(&self, vm: u32, ops: &[drm_skua_bind_op]) -> Result<(), Errno> {
        let done = self.syncobj();
        let result = self
            .bind(vm, ops, &[signal(done)])
            .and_then(|()| self.wait(done));
        self.syncobj_destroy(done).expect("SYNCOBJ_DESTROY");
        result
    }

    /// CONTEXT_CREATE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn context_create(&self, vm: u32, engine: u32) -> Result<u32, Errno> {
        let mut argument = drm_skua_context_create {
            vm,
            engine,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_CONTEXT_CREATE, &mut argument)?;
        Ok(argument.context)
    }

    /// CONTEXT_DESTROY.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn context_destroy(&self, context: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_context_destroy { context, pad: 0 };
        self.call(DRM_IOCTL_SKUA_CONTEXT_DESTROY, &mut argument)
    }

    /// CONTEXT_ALLOC in the places of a set, of one context or, if that is 0, for all of an address
    /// space; the handle and the address.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn context_alloc(
        &self,
        vm: u32,
        context: u32,
        size: u64,
        placements: u32,
    ) -> Result<(u32, u64), Errno> {
        let mut argument = drm_skua_context_alloc {
            vm,
            context,
            flags: match context {
                0 => DRM_SKUA_CONTEXT_ALLOC_SHARED_ACROSS_CONTEXTS,
                _ => 0,
            },
            size,
            placements,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_CONTEXT_ALLOC, &mut argument)?;
        Ok((argument.handle, argument.va))
    }

    /// CONTEXT_FREE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn context_free(&self, handle: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_context_free { handle, pad: 0 };
        self.call(DRM_IOCTL_SKUA_CONTEXT_FREE, &mut argument)
    }

    /// CONTEXT_STATE.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn state(&self, context: u32) -> Result<drm_skua_context_state, Errno> {
        let mut argument = drm_skua_context_state {
            context,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_CONTEXT_STATE, &mut argument)?;
        Ok(argument)
    }

    /// CONTEXT_SET_PRIORITY.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn prioritise(&self, context: u32, priority: i32) -> Result<(), Errno> {
        self.prioritise_by(context, priority, 0)
    }

    /// CONTEXT_SET_PRIORITY: among the contexts of this file.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn prioritise_within(&self, context: u32, priority: i32) -> Result<(), Errno> {
        self.prioritise_by(context, priority, DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS)
    }

    fn prioritise_by(&self, context: u32, priority: i32, flags: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_context_set_priority {
            context,
            priority,
            flags,
            pad: 0,
        };
        self.call(DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY, &mut argument)
    }

    /// SUBMIT.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn submit(
        &self,
        context: u32,
        buffers: &[drm_skua_buffer],
        syncs: &[drm_skua_sync],
    ) -> Result<(), Errno> {
        let mut argument = drm_skua_submit {
            context,
            flags: 0,
            buffers: array(buffers),
            syncs: array(syncs),
        };
        self.call(DRM_IOCTL_SKUA_SUBMIT, &mut argument)
    }

    /// FENCE_CREATE of the file's device; the handle.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_create(&self, value: u64) -> Result<u32, Errno> {
        self.fence_create_for(0, 0, value)
    }

    /// FENCE_CREATE for a device.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_create_for(&self, device: u32, flags: u32, value: u64) -> Result<u32, Errno> {
        let mut argument = drm_skua_fence_create {
            device,
            flags,
            value,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_FENCE_CREATE, &mut argument)?;
        Ok(argument.fence)
    }

    /// A monitored fence with a value.
    #[track_caller]
    pub fn fence(&self, value: u64) -> u32 {
        self.fence_create(value).expect("FENCE_CREATE")
    }

    /// FENCE_DESTROY.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_destroy(&self, fence: u32) -> Result<(), Errno> {
        let mut argument = drm_skua_fence_destroy { fence, pad: 0 };
        self.call(DRM_IOCTL_SKUA_FENCE_DESTROY, &mut argument)
    }

    /// FENCE_EXPORT; closed by execve().
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_export(&self, fence: u32) -> Result<OwnedFd, Errno> {
        let mut argument = drm_skua_fence_export {
            fence,
            flags: DRM_SKUA_FENCE_EXPORT_CLOEXEC,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_FENCE_EXPORT, &mut argument)?;
        Ok(own(argument.fd))
    }

    /// FENCE_IMPORT; the handle.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_import(&self, descriptor: impl AsFd) -> Result<u32, Errno> {
        self.fence_import_for(0, descriptor)
    }

    /// FENCE_IMPORT for a device.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_import_for(&self, device: u32, descriptor: impl AsFd) -> Result<u32, Errno> {
        let mut argument = drm_skua_fence_import {
            device,
            fd: descriptor.as_fd().as_raw_fd(),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_FENCE_IMPORT, &mut argument)?;
        Ok(argument.fence)
    }

    /// FENCE_SIGNAL of one value.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_signal(&self, fence: u32, value: u64) -> Result<(), Errno> {
        self.fence_signal_all(&[(fence, value)])
    }

    /// FENCE_SIGNAL.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_signal_all(&self, values: &[(u32, u64)]) -> Result<(), Errno> {
        let values = fence_values(values);
        let mut argument = drm_skua_fence_signal {
            values: array(&values),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_FENCE_SIGNAL, &mut argument)
    }

    /// FENCE_WAIT, for at most this time; the index.
    ///
    /// # Errors
    ///
    /// The errno; ETIME if the time is over.
    pub fn fence_wait(
        &self,
        values: &[(u32, u64)],
        flags: u32,
        time: Duration,
    ) -> Result<u32, Errno> {
        let values = fence_values(values);
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
        let end = Duration::from(now) + time;
        let mut argument = drm_skua_fence_wait {
            flags,
            values: array(&values),
            timeout_ns: u64::try_from(end.as_nanos()).expect("a time"),
            ..Default::default()
        };
        self.call(DRM_IOCTL_SKUA_FENCE_WAIT, &mut argument)?;
        Ok(argument.index)
    }

    /// Whether a fence gets a value in [`PATIENCE`].
    #[track_caller]
    pub fn fence_gets(&self, fence: u32, value: u64) -> bool {
        match self.fence_wait(&[(fence, value)], 0, PATIENCE * patience()) {
            Ok(_) => true,
            Err(Errno::ETIME) => false,
            Err(errno) => panic!("FENCE_WAIT: {errno}"),
        }
    }

    /// Whether a fence has a value.
    #[track_caller]
    pub fn fence_has(&self, fence: u32, value: u64) -> bool {
        match self.fence_wait(&[(fence, value)], 0, Duration::ZERO) {
            Ok(_) => true,
            Err(Errno::ETIME) => false,
            Err(errno) => panic!("FENCE_WAIT: {errno}"),
        }
    }

    /// FENCE_EVENTFD for one value.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_eventfd(&self, fence: u32, value: u64, eventfd: impl AsFd) -> Result<(), Errno> {
        self.fence_eventfd_for(&[(fence, value)], 0, eventfd)
    }

    /// FENCE_EVENTFD.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn fence_eventfd_for(
        &self,
        values: &[(u32, u64)],
        flags: u32,
        eventfd: impl AsFd,
    ) -> Result<(), Errno> {
        let values = fence_values(values);
        let mut argument = drm_skua_fence_eventfd {
            flags,
            eventfd: eventfd.as_fd().as_raw_fd(),
            values: array(&values),
        };
        self.call(DRM_IOCTL_SKUA_FENCE_EVENTFD, &mut argument)
    }

    /// A new syncobj.
    #[track_caller]
    pub fn syncobj(&self) -> u32 {
        self.try_syncobj().expect("SYNCOBJ_CREATE")
    }

    /// The same, of a device that may be gone.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn try_syncobj(&self) -> Result<u32, Errno> {
        let mut argument = drm_syncobj_create::default();
        self.call(DRM_IOCTL_SYNCOBJ_CREATE, &mut argument)?;
        Ok(argument.handle)
    }

    /// SYNCOBJ_DESTROY.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn syncobj_destroy(&self, handle: u32) -> Result<(), Errno> {
        let mut argument = drm_syncobj_destroy { handle, pad: 0 };
        self.call(DRM_IOCTL_SYNCOBJ_DESTROY, &mut argument)
    }

    /// SYNCOBJ_RESET: a binary syncobj has no fence any more.
    #[track_caller]
    pub fn syncobj_reset(&self, handle: u32) {
        let mut argument = drm_syncobj_array {
            handles: std::ptr::from_ref(&handle) as u64,
            count_handles: 1,
            pad: 0,
        };
        self.call(DRM_IOCTL_SYNCOBJ_RESET, &mut argument)
            .expect("SYNCOBJ_RESET");
    }

    /// Waits for a binary syncobj and returns what its fence says of the work.
    ///
    /// # Errors
    ///
    /// The fence's error, ETIMEDOUT if it did not signal in [`PATIENCE`].
    #[track_caller]
    pub fn wait(&self, syncobj: u32) -> Result<(), Errno> {
        self.wait_for(syncobj, PATIENCE)
    }

    /// The same with another time.
    ///
    /// # Errors
    ///
    /// The fence's error, ETIMEDOUT if it did not signal in that time.
    #[track_caller]
    pub fn wait_for(&self, syncobj: u32, time: Duration) -> Result<(), Errno> {
        match self.signals_within(syncobj, 0, time) {
            true => self.outcome(syncobj).expect("a signalled fence"),
            false => Err(Errno::ETIMEDOUT),
        }
    }

    /// The same for a point of a timeline.
    ///
    /// # Errors
    ///
    /// The fence's error, ETIMEDOUT if it did not signal in [`PATIENCE`].
    #[track_caller]
    pub fn wait_point(&self, syncobj: u32, point: u64) -> Result<(), Errno> {
        if !self.signals_within(syncobj, point, PATIENCE) {
            return Err(Errno::ETIMEDOUT);
        }
        let binary = self.syncobj();
        self.transfer((syncobj, point), (binary, 0));
        let outcome = self.outcome(binary).expect("a signalled fence");
        self.syncobj_destroy(binary).expect("SYNCOBJ_DESTROY");
        outcome
    }

    /// Has a syncobj, or a point of it if that is not 0, have the fence of another one.
    #[track_caller]
    pub fn transfer(&self, (from, from_point): (u32, u64), (to, to_point): (u32, u64)) {
        let mut argument = drm_syncobj_transfer {
            src_handle: from,
            dst_handle: to,
            src_point: from_point,
            dst_point: to_point,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SYNCOBJ_TRANSFER, &mut argument)
            .expect("SYNCOBJ_TRANSFER");
    }

    /// Whether a syncobj (a point of it, if not 0) has a fence that signals in this time.
    #[track_caller]
    pub fn signals_within(&self, syncobj: u32, point: u64, time: Duration) -> bool {
        match self.try_wait_point(syncobj, point, time * patience()) {
            Ok(()) => true,
            Err(Errno::ETIME) => false,
            Err(errno) => panic!("SYNCOBJ_WAIT: {errno}"),
        }
    }

    /// Waits for a syncobj to signal, for good or ill.
    ///
    /// # Errors
    ///
    /// The errno, ETIME if the time is over.
    pub fn try_wait(&self, syncobj: u32, time: Duration) -> Result<(), Errno> {
        self.try_wait_point(syncobj, 0, time)
    }

    fn try_wait_point(&self, syncobj: u32, point: u64, time: Duration) -> Result<(), Errno> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
        let end = Duration::from(now) + time;
        let timeout_nsec = i64::try_from(end.as_nanos()).expect("a time");
        if point == 0 {
            let mut argument = drm_syncobj_wait {
                handles: std::ptr::from_ref(&syncobj) as u64,
                timeout_nsec,
                count_handles: 1,
                flags: DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
                ..Default::default()
            };
            self.call(DRM_IOCTL_SYNCOBJ_WAIT, &mut argument)
        } else {
            let mut argument = drm_syncobj_timeline_wait {
                handles: std::ptr::from_ref(&syncobj) as u64,
                points: std::ptr::from_ref(&point) as u64,
                timeout_nsec,
                count_handles: 1,
                flags: DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
                ..Default::default()
            };
            self.call(DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, &mut argument)
        }
    }

    /// Whether a binary syncobj has a fence that has signalled.
    #[track_caller]
    pub fn has_signalled(&self, syncobj: u32) -> bool {
        self.outcome(syncobj).is_some()
    }

    /// What the fence in a binary syncobj says: nothing yet, done, or an error. The worst of
    /// several fences.
    #[track_caller]
    pub fn outcome(&self, syncobj: u32) -> Option<Result<(), Errno>> {
        let file = self.sync_file(syncobj);
        // How many there are; they may become fewer.
        let count = fences_of(&file, &mut []).num_fences;
        let mut fences = vec![sync_fence_info::default(); usize::try_from(count).expect("a count")];
        let info = fences_of(&file, &mut fences);
        let count = usize::try_from(info.num_fences).expect("a count");
        let statuses: Vec<i32> = fences[..count].iter().map(|fence| fence.status).collect();
        if let Some(error) = statuses
            .iter()
            .chain([&info.status])
            .find(|status| **status < 0)
        {
            return Some(Err(Errno::from_raw(-error)));
        }
        (info.status == 1).then_some(Ok(()))
    }

    /// The fence of a binary syncobj as a sync file.
    #[track_caller]
    pub fn sync_file(&self, syncobj: u32) -> OwnedFd {
        let mut argument = drm_syncobj_handle {
            handle: syncobj,
            flags: DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_EXPORT_SYNC_FILE,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD, &mut argument)
            .expect("SYNCOBJ_HANDLE_TO_FD");
        own(argument.fd)
    }

    /// A new syncobj with a fence that stands for those of two others.
    #[track_caller]
    pub fn merged(&self, [one, other]: [u32; 2]) -> u32 {
        let [one, other] = [one, other].map(|syncobj| self.sync_file(syncobj));
        let mut argument = sync_merge_data {
            fd2: other.as_raw_fd(),
            ..Default::default()
        };
        ioctl(one, SYNC_IOC_MERGE, &mut argument).expect("SYNC_IOC_MERGE");
        self.syncobj_of(own(argument.fence))
    }

    /// A new syncobj with the fence of a sync file in it.
    #[track_caller]
    pub fn syncobj_of(&self, file: impl AsFd) -> u32 {
        let handle = self.syncobj();
        let mut argument = drm_syncobj_handle {
            handle,
            fd: file.as_fd().as_raw_fd(),
            flags: DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_IMPORT_SYNC_FILE,
            ..Default::default()
        };
        self.call(DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE, &mut argument)
            .expect("SYNCOBJ_FD_TO_HANDLE");
        handle
    }

    /// Exports a buffer object as a dma-buf.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn export(&self, handle: u32) -> Result<OwnedFd, Errno> {
        let mut argument = drm_prime_handle {
            handle,
            flags: (OFlag::O_CLOEXEC | OFlag::O_RDWR).bits().unsigned_abs(),
            fd: -1,
        };
        self.call(DRM_IOCTL_PRIME_HANDLE_TO_FD, &mut argument)?;
        Ok(own(argument.fd))
    }

    /// Imports a dma-buf; the handle.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn import(&self, dma_buf: impl AsFd) -> Result<u32, Errno> {
        let mut argument = drm_prime_handle {
            handle: 0,
            flags: 0,
            fd: dma_buf.as_fd().as_raw_fd(),
        };
        self.call(DRM_IOCTL_PRIME_FD_TO_HANDLE, &mut argument)?;
        Ok(argument.handle)
    }

    /// What fdinfo says of this client.
    #[track_caller]
    pub fn fdinfo(&self) -> Fdinfo {
        Fdinfo::of(&self.file)
    }

    /// Another descriptor of the same open file.
    #[track_caller]
    pub fn duplicate(&self) -> File {
        self.file.try_clone().expect("dup")
    }
}

/// A descriptor that the kernel has just made.
#[expect(unsafe_code, reason = "a number from the kernel becomes a descriptor")]
#[track_caller]
pub fn own(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "descriptor {fd}");
    // SAFETY: the kernel made it for this call, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// What a sync file says of itself, with as many of its fences as there is room for.
#[track_caller]
fn fences_of(file: impl AsFd, room: &mut [sync_fence_info]) -> sync_file_info {
    let mut info = sync_file_info {
        num_fences: u32::try_from(room.len()).expect("a count"),
        sync_fence_info: if room.is_empty() {
            0
        } else {
            room.as_mut_ptr() as u64
        },
        ..Default::default()
    };
    ioctl(file, SYNC_IOC_FILE_INFO, &mut info).expect("SYNC_IOC_FILE_INFO");
    info
}

/// How a sync file's fences have ended, all in all: 0 if they have not, 1, or an errno below 0.
/// Unlike those of an open file of the device, it can be asked when the device is gone.
#[track_caller]
pub fn status_of(sync_file: impl AsFd) -> i32 {
    fences_of(sync_file, &mut []).status
}

fn elements(handles: &[u32]) -> Vec<drm_skua_bo_handle> {
    let element = |handle: &u32| drm_skua_bo_handle {
        handle: *handle,
        pad: 0,
    };
    handles.iter().map(element).collect()
}

/// An array as an ioctl takes it.
pub fn array<T>(elements: &[T]) -> drm_skua_array {
    if elements.is_empty() {
        return drm_skua_array::default();
    }
    drm_skua_array {
        // CAST: sizes of the uAPI's structures, and counts of tests.
        stride: size_of::<T>() as u32,
        count: elements.len() as u32,
        pointer: elements.as_ptr() as u64,
    }
}

/// What the fence of a job gets that faulted for `reason`, by `skua_drm.h`: one errno for what
/// accessed an address that it may not access, and one for all else.
pub fn errno_of(reason: Reason) -> Errno {
    match reason {
        Reason::AddressRange
        | Reason::NotPresent
        | Reason::ReadOnly
        | Reason::BadEntry
        | Reason::BusError => Errno::EFAULT,
        _ => Errno::EINVAL,
    }
}

fn fence_values(values: &[(u32, u64)]) -> Vec<drm_skua_fence_value> {
    let element = |&(fence, value): &(u32, u64)| drm_skua_fence_value {
        fence,
        pad: 0,
        value,
    };
    values.iter().map(element).collect()
}

/// Waits for a binary syncobj.
pub fn wait(handle: u32) -> drm_skua_sync {
    drm_skua_sync {
        flags: DRM_SKUA_SYNC_WAIT,
        handle,
        point: 0,
    }
}

/// Signals a binary syncobj.
pub fn signal(handle: u32) -> drm_skua_sync {
    drm_skua_sync {
        flags: DRM_SKUA_SYNC_SIGNAL,
        handle,
        point: 0,
    }
}

/// Waits for a point.
pub fn wait_point(handle: u32, point: u64) -> drm_skua_sync {
    drm_skua_sync {
        flags: DRM_SKUA_SYNC_WAIT | DRM_SKUA_SYNC_TIMELINE,
        handle,
        point,
    }
}

/// Signals a point.
pub fn signal_point(handle: u32, point: u64) -> drm_skua_sync {
    drm_skua_sync {
        flags: DRM_SKUA_SYNC_SIGNAL | DRM_SKUA_SYNC_TIMELINE,
        handle,
        point,
    }
}

/// Waits for a value of a monitored fence.
pub fn wait_value(fence: u32, value: u64) -> drm_skua_sync {
    drm_skua_sync {
        flags: DRM_SKUA_SYNC_WAIT | DRM_SKUA_SYNC_MONITORED,
        handle: fence,
        point: value,
    }
}

/// Signals a value of a monitored fence.
pub fn signal_value(fence: u32, value: u64) -> drm_skua_sync {
    drm_skua_sync {
        flags: DRM_SKUA_SYNC_SIGNAL | DRM_SKUA_SYNC_MONITORED,
        handle: fence,
        point: value,
    }
}

/// Maps a range of a buffer object.
pub fn map(handle: u32, offset: u64, va: u64, size: u64) -> drm_skua_bind_op {
    drm_skua_bind_op {
        type_: DRM_SKUA_BIND_MAP,
        handle,
        offset,
        va,
        size,
        ..Default::default()
    }
}

/// Maps it so that the GPU cannot write.
pub fn map_readonly(handle: u32, offset: u64, va: u64, size: u64) -> drm_skua_bind_op {
    drm_skua_bind_op {
        flags: DRM_SKUA_BIND_READONLY,
        ..map(handle, offset, va, size)
    }
}

/// Maps in a range what is mapped in another.
pub fn map_copy(from: u64, va: u64, size: u64) -> drm_skua_bind_op {
    drm_skua_bind_op {
        type_: DRM_SKUA_BIND_COPY,
        ..map(0, from, va, size)
    }
}

/// Maps the value of a monitored fence, for the GPU to read.
pub fn map_fence(fence: u32, va: u64) -> drm_skua_bind_op {
    drm_skua_bind_op {
        type_: DRM_SKUA_BIND_MAP_FENCE,
        ..map(fence, 0, va, 4096)
    }
}

/// Unmaps a range.
pub fn unmap(va: u64, size: u64) -> drm_skua_bind_op {
    drm_skua_bind_op {
        type_: DRM_SKUA_BIND_UNMAP,
        va,
        size,
        ..Default::default()
    }
}

/// The answer to QUERY_DEVICE.
fn device_info(words: &[u32]) -> drm_skua_device_info {
    assert!(
        words.len() >= size_of::<drm_skua_device_info>() / 4,
        "QUERY_DEVICE has {} words",
        words.len()
    );
    let quad = |at: usize| u64::from(words[at]) | (u64::from(words[at + 1]) << 32);
    drm_skua_device_info {
        hw_version: words[0],
        engine_count: words[1],
        va_start: quad(2),
        va_end: quad(4),
        page_size_mask: quad(6),
        tick_hz: quad(8),
        max_group_threads: words[10],
        wave_threads: words[11],
        max_shared_bytes: words[12],
        max_bind_ops: words[13],
        max_buffers: words[14],
        max_syncs: words[15],
        graphics_preemption: words[16],
        compute_preemption: words[17],
    }
}
