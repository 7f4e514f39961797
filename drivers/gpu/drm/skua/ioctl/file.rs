// SPDX-License-Identifier: GPL-2.0

//! An open file: the handles of one client.
//!
//! Handles of devices, address spaces, contexts, context allocations and monitored fences are
//! numbers from 1, of this file alone. Closing the file destroys what they name: work that has not
//! started is cancelled, work that runs ends or is cut by the watchdog.

use crate::{
    ext::{
        capability,
        device,
        drm_driver::DriverExt,
        file,
        gem::{
            self,
            GemExt, //
        },
        uapi::*, //
    },
    fences::{
        gate::Wake,
        hold::{
            self,
            MAX_REQUESTS, //
        },
        pledge::{
            Publisher,
            MAX_PLEDGES, //
        }, //
    },
    few::Few,
    gpu::{
        self,
        SkuaDevice,
        SkuaDriver, //
    },
    ioctl::{
        context_allocation::{
            ContextAllocation,
            MAX_CONTEXT_ALLOCATIONS, //
        },
        fence::{
            FenceHandle,
            MAX_EVENTFDS, //
            MAX_FENCES,
        },
        query,
        syncs::{
            self,
            Values, //
        },
        user_array, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            Bo,
            BoData,
            BoRef, //
        },
        claims::Claims,
        destruction::Manner,
        device::{
            ClientDevice,
            Notice, //
        },
        lock,
        offer,
        pending_residency::{
            Place,
            MAX_PENDING, //
        },
        residency,
        vm::{
            BindRequest,
            Vm, //
        }, //
    },
    policy::{
        priority::{
            Level,
            Offer, //
        },
        scheduler::{
            self,
            Class, //
        },
        segment_sets::SegmentSets, //
    },
    quota::Quota,
    spec::number::EngineIndex,
    submit::{
        busy::Usage,
        context::{
            Context,
            Request,
            Status, //
        },
        deferral,
        recovery,
        submission::{
            Buffer,
            MAX_BUFFERS, //
        }, //
    },
    users::Opener, //
};
use kernel::{
    drm::{
        self,
        gem::BaseObject, //
    },
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// Handles of one kind: place `n` is handle `n + 1`, and empty if that is free.
pub(crate) struct Handles<T>(KVVec<Option<Arc<T>>>);

impl<T> Handles<T> {
    fn new() -> Self {
        Self(KVVec::new())
    }

    /// Gives `object` the lowest free handle. `ENOMEM`.
    pub(crate) fn insert(&mut self, object: Arc<T>) -> Result<u32> {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or(self.0.len());
        match self.0.get_mut(index) {
            Some(place) => *place = Some(object),
            None => self.0.push(Some(object), client_flags())?,
        }
        u32::try_from(index)?.checked_add(1).ok_or(EOVERFLOW)
    }

    fn place(&mut self, handle: u32) -> Result<&mut Option<Arc<T>>> {
        let index = handle.checked_sub(1).ok_or(ENOENT)?;
        self.0.get_mut(usize::try_from(index)?).ok_or(ENOENT)
    }

    /// What `handle` names. `ENOENT`.
    pub(crate) fn get(&mut self, handle: u32) -> Result<Arc<T>> {
        self.place(handle)?.clone().ok_or(ENOENT)
    }

    /// Frees `handle`. `ENOENT`.
    pub(crate) fn remove(&mut self, handle: u32) -> Result<Arc<T>> {
        self.place(handle)?.take().ok_or(ENOENT)
    }

    /// The objects that have a handle, by handle.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.iter().flatten()
    }
}

/// Devices of one client at a time, besides its own.
const MAX_DEVICES: usize = 16;
/// Address spaces of one client at a time, those counted that are destroyed and not gone yet.
const CLIENT_VMS: u64 = 256;
/// Contexts of one client at a time, likewise.
const CLIENT_CONTEXTS: u64 = 256;

/// Objects that one call names, at most.
const MAX_OBJECTS: u32 = 1024;

/// What an open file of the node owns: one client.
#[pin_data(PinnedDrop)]
pub(crate) struct File {
    /// The device that was opened.
    pub(crate) dev: ARef<SkuaDevice>,
    /// Address spaces that the client has a handle of.
    #[pin]
    pub(crate) vms: Mutex<Handles<Vm>>,
    /// Contexts that the client has a handle of.
    #[pin]
    pub(crate) contexts: Mutex<Handles<Context>>,
    /// How important the work of all its contexts is. Held while the level of one is set, or one
    /// made.
    #[pin]
    class: Mutex<Class>,
    /// Devices that it has a handle of.
    #[pin]
    devices: Mutex<Handles<ClientDevice>>,
    /// Monitored fences that it has a handle of.
    #[pin]
    pub(crate) fences: Mutex<Handles<FenceHandle>>,
    /// Context allocations that it has a handle of.
    #[pin]
    pub(crate) allocations: Mutex<Handles<ContextAllocation>>,
    /// The device that a file has from the beginning, number 0.
    own: Arc<ClientDevice>,
    /// What it has locked for the CPU.
    #[pin]
    pub(crate) locks: Claims,
    /// What all its contexts used of the engines.
    pub(crate) usage: Arc<Usage>,
    /// Who opened it, and may have so many of what is [limited by user](crate::users) with all
    /// files.
    _opener: Opener,
    /// Address spaces that the client may have, those counted that are not gone yet.
    vm_quota: Arc<Quota>,
    /// Contexts that the client may have, counted likewise.
    context_quota: Arc<Quota>,
    /// Devices with explicit residency that the client may have, counted likewise.
    explicit_quota: Arc<Quota>,
    /// Handles of context allocations that the client may have.
    pub(crate) allocation_quota: Arc<Quota>,
    /// Handles of monitored fences that the client may have.
    pub(crate) fence_quota: Arc<Quota>,
    /// Eventfds that it may have wait for them.
    pub(crate) eventfd_quota: Arc<Quota>,
    /// MAKE_RESIDENTs that are to signal values and are not over.
    pledge_quota: Arc<Quota>,
    /// Those of them that may wait for an unlock.
    pending_quota: Arc<Quota>,
    /// Bytes of system memory that the client's buffer objects may have: half of what all may.
    pub(crate) system_quota: Arc<Quota>,
}

/// The DRM file of a client.
pub(crate) type SkuaFile = drm::File<File>;

impl drm::file::DriverFile for File {
    type Driver = SkuaDriver;

    fn open(dev: &SkuaDevice) -> Result<Pin<KBox<Self>>> {
        let opener = dev.users.open()?;
        KBox::try_pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                vms <- new_mutex!(Handles::new()),
                contexts <- new_mutex!(Handles::new()),
                class <- new_mutex!(Class::default()),
                devices <- new_mutex!(Handles::new()),
                fences <- new_mutex!(Handles::new()),
                allocations <- new_mutex!(Handles::new()),
                own: ClientDevice::of_file(dev)?,
                locks <- Claims::new(BoData::count_lockers),
                usage: Usage::new()?,
                vm_quota: opener.quotas().vms.of_client(CLIENT_VMS)?,
                context_quota: opener.quotas().contexts.of_client(CLIENT_CONTEXTS)?,
                explicit_quota: opener.quotas().explicit.of_client(MAX_DEVICES as u64)?,
                allocation_quota: Quota::new(MAX_CONTEXT_ALLOCATIONS)?,
                fence_quota: Quota::new(MAX_FENCES)?,
                eventfd_quota: Quota::new(MAX_EVENTFDS)?,
                pledge_quota: Quota::new(MAX_PLEDGES)?,
                pending_quota: Quota::new(MAX_PENDING)?,
                system_quota: opener.quotas().system.of_client(dev.system.limit() / 2)?,
                _opener: opener,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

#[pinned_drop]
impl PinnedDrop for File {
    fn drop(self: Pin<&mut Self>) {
        self.locks.close();
        while let Some(context) = remove_one(&self.contexts, |_| true) {
            self.let_go_of_context(context);
        }
        // Also those without a handle: what waits for others' fences may wait for ever.
        self.dev.vms.for_each(|vm| {
            if vm.is_of(&self.vm_quota) {
                vm.end(ECANCELED);
                vm.destroy();
            }
        });
        while remove_one(&self.vms, |_| true).is_some() {}
    }
}

/// The objects that `handles` name, at least one, and each once. `EINVAL`, `ENOENT`.
fn objects(
    file: &SkuaFile,
    handles: impl ExactSizeIterator<Item = u32>,
) -> Result<KVVec<(u32, BoRef)>> {
    if handles.len() == 0 {
        return Err(EINVAL);
    }
    let mut objects = KVVec::with_capacity(handles.len(), client_flags())?;
    let mut sorted = KVVec::with_capacity(handles.len(), client_flags())?;
    for handle in handles {
        let bo = Bo::lookup_handle(file, handle)?;
        objects.push((handle, bo.into()), client_flags())?;
        sorted.push(handle, client_flags())?;
    }
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(EINVAL);
    }
    Ok(objects)
}

/// The objects that an array of handles names, likewise.
fn read_objects(file: &SkuaFile, array: &drm_skua_array) -> Result<KVVec<(u32, BoRef)>> {
    let array: KVVec<drm_skua_bo_handle> = user_array::read(array, MAX_OBJECTS)?;
    if array.iter().any(|element| element.pad != 0) {
        return Err(EINVAL);
    }
    objects(file, array.iter().map(|element| element.handle))
}

/// Has the client told when `device`, number `number`, is to trim: from now on once more, unless it
/// has so many events that it has not read.
fn watch_budget(dev: &SkuaDevice, file: &SkuaFile, device: &ClientDevice, number: u32) {
    if device.is_explicit() && !device.has_notice() {
        let event = drm_skua_event_trim {
            device: number,
            ..Default::default()
        };
        if let Ok(notice) = Notice::reserve(dev, file, event) {
            device.set_notice(notice);
        }
    }
}

/// Frees the handle of one object that `goes`, if there is one. A new object's own is freed so when
/// its creation fails: by then its number may name another.
pub(crate) fn remove_one<T>(
    handles: &Mutex<Handles<T>>,
    goes: impl Fn(&Arc<T>) -> bool,
) -> Option<Arc<T>> {
    let mut handles = handles.lock();
    let mut places = handles.0.iter_mut();
    places.find_map(|place| place.take_if(|object| goes(object)))
}

/// Whether `handle` is still that of `bo`.
fn names(file: &SkuaFile, handle: u32, bo: &Bo) -> bool {
    Bo::lookup_handle(file, handle).is_ok_and(|now| core::ptr::eq(&*now, bo))
}

/// The bound data that ioctls get.
pub(crate) type Data<'a> = crate::gpu::RegistrationData<'a>;
/// The registered device.
pub(crate) type Device = SkuaDevice<drm::Registered>;

impl File {
    /// The address space that `handle` names. `ENOENT`.
    pub(crate) fn vm(&self, handle: u32) -> Result<Arc<Vm>> {
        self.vms.lock().get(handle)
    }

    /// The device that `handle` names, or the client's own. `ENOENT`.
    pub(crate) fn device(&self, handle: u32) -> Result<Arc<ClientDevice>> {
        match handle {
            0 => Ok(self.own.clone()),
            _ => self.devices.lock().get(handle),
        }
    }

    /// The client's handle of `bo` is gone: it claims nothing of it any more.
    pub(crate) fn forget(&self, bo: &Bo) {
        residency::forget(&self.own, &self.dev, bo);
        for device in self.devices.lock().iter() {
            residency::forget(device, &self.dev, bo);
        }
        lock::forget(&self.locks, &self.dev, bo);
        self.dev.retries.hurry(&self.vm_quota);
    }

    /// The handle of `context` is gone. A device that does not answer may still reach what is its.
    fn let_go_of_context(&self, context: Arc<Context>) {
        // What another thread has made meanwhile, too.
        self.free_allocations(&context);
        context.destroy();
        self.free_allocations(&context);
        // Not freed here: a client that lacks memory could not have its save area freed.
        self.dev.reapers.contexts.bury(context);
    }

    /// The context that `handle` names. `ENOENT`.
    pub(crate) fn context(&self, handle: u32) -> Result<Arc<Context>> {
        self.contexts.lock().get(handle)
    }

    /// `DRM_IOCTL_SKUA_QUERY`
    pub(crate) fn query(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_query,
        _file: &SkuaFile,
    ) -> Result<u32> {
        query::query(dev, args)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_CREATE`
    pub(crate) fn bo_create(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_bo_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let this = file.inner();
        let users = match args.vm {
            0 => None,
            handle => Some(this.vm(handle)?.reservation().clone()),
        };
        let wanted = bo::BoArgs {
            flags: args.flags,
            sets: SegmentSets::new(args.placements, args.preferred, args.eviction_set)
                .ok_or(EINVAL)?,
            users,
            level: Level::of(args.priority).unwrap_or(Level::Normal),
            context_of: None,
        };
        if args.pad != 0 {
            return Err(EINVAL);
        }
        let (parent, quota) = (data.parent(), &this.system_quota);
        let bo = bo::create(dev, parent, quota, args.size, wanted)?;
        args.handle = bo.create_handle(file)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_MMAP_OFFSET`
    pub(crate) fn bo_mmap_offset(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_bo_mmap_offset,
        file: &SkuaFile,
    ) -> Result<u32> {
        let bo = Bo::lookup_handle(file, args.handle)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        bo::BoData::check_mmap(&bo)?;
        args.offset = bo.create_mmap_offset()?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_INFO`
    pub(crate) fn bo_info(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_bo_info,
        file: &SkuaFile,
    ) -> Result<u32> {
        let bo = Bo::lookup_handle(file, args.handle)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        *args = drm_skua_bo_info {
            handle: args.handle,
            pad: 0,
            size: u64::try_from(bo.size())?,
            flags: bo.flags(),
            placements: bo.sets().supported(),
            region: bo.region(),
            imported: gem::is_imported(&*bo).into(),
            content_lost: bo.has_lost_content().into(),
            reserved: 0,
            preferred: bo.sets().preferred(),
            eviction_set: bo.sets().eviction(),
        };
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_DESTROY`
    pub(crate) fn bo_destroy(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_bo_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        const ASSUME: u32 = DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE;
        const SYNCHRONOUS: u32 = DRM_SKUA_BO_DESTROY_SYNCHRONOUS;
        if args.flags & !(ASSUME | SYNCHRONOUS) != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        let manner = Manner {
            assume_not_in_use: args.flags & ASSUME != 0,
            synchronous: args.flags & SYNCHRONOUS != 0,
        };
        let objects = read_objects(file, &args.handles)?;
        let close = |handle: u32, bo: &BoRef| {
            // Another thread may have closed it, and have the number for something else.
            if names(file, handle, bo) {
                let _ = file::delete_handle(file, handle);
            }
        };
        deferral::destroy(dev, &file.inner().vm_quota, &objects, manner, close)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_MAKE_RESIDENT`
    pub(crate) fn make_resident(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_make_resident,
        file: &SkuaFile,
    ) -> Result<u32> {
        const NOT_TRIM: u32 = DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER;
        const MUST: u32 = DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED;
        dev.check_health()?;
        if args.flags & !(NOT_TRIM | MUST) != 0 || args.flags == MUST {
            return Err(EINVAL);
        }
        let device = file.inner().device(args.device)?;
        if (args.flags != 0 && !device.is_explicit()) || args.bytes_to_trim != 0 {
            return Err(EINVAL);
        }
        let objects = read_objects(file, &args.handles)?;
        let (waits, signals) = syncs::read(file, &args.syncs, None)?;
        if !waits.is_empty() {
            return Err(EINVAL);
        }
        let publisher = Publisher::new(signals, &file.inner().pledge_quota)?;
        watch_budget(dev, file, &device, args.device);
        let not_trim = args.flags & NOT_TRIM != 0;
        let excess = &mut args.bytes_to_trim;
        let mut pending = None;
        let locked_out = || {
            if !publisher.has_values_alone() {
                return Err(EBUSY);
            }
            if !publisher.is_idle() {
                let this = file.inner();
                pending = Some(Place::new(&this.locks, &this.pending_quota)?);
            }
            Ok(pending.is_some())
        };
        let parent = data.parent();
        let moves =
            residency::make_resident(&device, dev, parent, &objects, not_trim, excess, locked_out);
        let moves = match moves {
            Err(error) if args.flags & MUST != 0 && error == ENOMEM => {
                recovery::end_device(dev, &device, DRM_SKUA_CONTEXT_OUT_OF_MEMORY);
                return Err(ECANCELED);
            }
            moves => moves?,
        };
        for (handle, bo) in &objects {
            // If it was closed before it was counted, nobody takes the count back.
            if !names(file, *handle, bo) {
                residency::forget(&device, dev, bo);
                dev.retries.hurry(&file.inner().vm_quota);
            }
        }
        match pending {
            Some(place) => place.wait(dev, &device, objects, publisher),
            None => publisher.publish(dev, &moves),
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_EVICT`
    pub(crate) fn evict(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_evict,
        file: &SkuaFile,
    ) -> Result<u32> {
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let device = file.inner().device(args.device)?;
        let objects = read_objects(file, &args.handles)?;
        watch_budget(dev, file, &device, args.device);
        residency::evict(&device, dev, &objects)?;
        dev.retries.hurry(&file.inner().vm_quota);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_LOCK`
    pub(crate) fn bo_lock(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_bo_lock,
        file: &SkuaFile,
    ) -> Result<u32> {
        let bo = BoRef::from(Bo::lookup_handle(file, args.handle)?);
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let offset = bo.create_mmap_offset()?;
        let this = file.inner();
        // What was held may have been refused for a lock that has failed.
        lock::lock(&this.locks, dev, data.parent(), &bo)
            .inspect_err(|_| dev.retries.hurry(&this.vm_quota))?;
        if !names(file, args.handle, &bo) {
            // As for what is made resident.
            lock::forget(&this.locks, dev, &bo);
            dev.retries.hurry(&this.vm_quota);
        }
        args.offset = offset;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_UNLOCK`
    pub(crate) fn bo_unlock(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_bo_unlock,
        file: &SkuaFile,
    ) -> Result<u32> {
        let bo = BoRef::from(Bo::lookup_handle(file, args.handle)?);
        if args.pad != 0 {
            return Err(EINVAL);
        }
        let this = file.inner();
        lock::unlock(&this.locks, dev, &bo)?;
        dev.retries.hurry(&this.vm_quota);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_SET_PRIORITY`
    pub(crate) fn bo_set_priority(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_bo_set_priority,
        file: &SkuaFile,
    ) -> Result<u32> {
        if args.flags != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        let array: KVVec<drm_skua_bo_priority> = user_array::read(&args.objects, MAX_OBJECTS)?;
        let objects = objects(file, array.iter().map(|element| element.handle))?;
        let mut levels = KVVec::with_capacity(array.len(), client_flags())?;
        for element in &array {
            let level = Level::of(element.priority).ok_or(EINVAL)?;
            levels.push(level, client_flags())?;
        }
        for ((_, bo), level) in objects.iter().zip(&levels) {
            bo::set_priority(bo, *level);
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_OFFER`
    pub(crate) fn bo_offer(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_bo_offer,
        file: &SkuaFile,
    ) -> Result<u32> {
        if args.flags != 0 || Offer::of(args.priority, Level::Normal).is_none() {
            return Err(EINVAL);
        }
        let objects = read_objects(file, &args.handles)?;
        offer::offer(dev, &objects, args.priority)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_BO_RECLAIM`
    pub(crate) fn bo_reclaim(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_bo_reclaim,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        if args.flags != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        let objects = read_objects(file, &args.handles)?;
        let mut discarded = [0; 16];
        offer::reclaim(dev, data.parent(), &objects, |at| {
            if let Some(word) = discarded.get_mut(at / 64) {
                *word |= 1 << (at % 64);
            }
        })?;
        dev.retries.hurry(&file.inner().vm_quota);
        args.discarded = discarded;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_DEVICE_CREATE`
    pub(crate) fn device_create(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_device_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        if args.flags & !DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY != 0 {
            return Err(EINVAL);
        }
        let this = file.inner();
        let mut devices = this.devices.lock();
        if devices.iter().count() >= MAX_DEVICES {
            return Err(ENOSPC);
        }
        let explicit = match args.flags {
            0 => None,
            _ => Some(this.explicit_quota.take(1).ok_or(ENOSPC)?),
        };
        args.device = devices.insert(ClientDevice::new(dev, explicit)?)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_DEVICE_DESTROY`
    pub(crate) fn device_destroy(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_device_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let device = {
            let mut devices = this.devices.lock();
            devices.get(args.device)?;
            if args.pad != 0 {
                return Err(EINVAL);
            }
            devices.remove(args.device)?
        };
        // Other threads may still have it.
        device.end();
        this.dev.pending_residency.look_again(&this.locks);
        this.dev.retries.hurry(&this.vm_quota);
        let is_of = |vm: &Arc<Vm>| Arc::ptr_eq(vm.device(), &device);
        // One by one: with the device's handle gone there is nothing that may fail.
        let is_its_context = |context: &Arc<Context>| context.vm().is_some_and(is_of);
        while let Some(context) = remove_one(&this.contexts, is_its_context) {
            this.let_go_of_context(context);
        }
        this.dev.fences.end(device.id(), false);
        let is_mine = |fence: &Arc<FenceHandle>| Arc::ptr_eq(fence.device(), &device);
        while remove_one(&this.fences, is_mine).is_some() {}
        while remove_one(&this.vms, is_of).is_some() {}
        // Also those without a handle, as when the file is closed.
        this.dev.vms.for_each(|vm| {
            if is_of(&vm) {
                vm.end(ECANCELED);
                vm.destroy();
            }
            this.dev.reapers.vms.bury(vm);
        });
        let is_its_own = |it: &Arc<ContextAllocation>| is_of(it.vm());
        while remove_one(&this.allocations, is_its_own).is_some() {}
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_DEVICE_STATE`
    pub(crate) fn device_state(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_device_state,
        file: &SkuaFile,
    ) -> Result<u32> {
        let device = file.inner().device(args.device)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        watch_budget(dev, file, &device, args.device);
        query::device_state(dev, &device, &file.inner().system_quota, args);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_DEVICE_MARK_ERROR`
    pub(crate) fn device_mark_error(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_device_mark_error,
        file: &SkuaFile,
    ) -> Result<u32> {
        // The file's own has no handle.
        let device = file.inner().devices.lock().get(args.device)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        recovery::end_device(dev, &device, DRM_SKUA_CONTEXT_LOST);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_VM_CREATE`
    pub(crate) fn vm_create(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_vm_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let this = file.inner();
        let device = this.device(args.device)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        device.check()?;
        let place = this.vm_quota.take(1).ok_or(ENOSPC)?;
        let vm = Vm::new(dev, data.parent(), &device, place, &this.system_quota)?;
        let handle = this.vms.lock().insert(vm.clone());
        if handle.is_err() {
            vm.destroy();
        }
        args.vm = handle?;
        // It may have been destroyed meanwhile, without this one.
        if let Err(error) = device.check() {
            remove_one(&this.vms, |other| Arc::ptr_eq(other, &vm));
            vm.end(ECANCELED);
            vm.destroy();
            return Err(error);
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_VM_DESTROY`
    pub(crate) fn vm_destroy(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_vm_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let vm = {
            let mut vms = this.vms.lock();
            vms.get(args.vm)?;
            if args.pad != 0 {
                return Err(EINVAL);
            }
            vms.remove(args.vm)?
        };
        vm.destroy();
        let is_its_own = |it: &Arc<ContextAllocation>| Arc::ptr_eq(it.vm(), &vm);
        while remove_one(&this.allocations, is_its_own).is_some() {}
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_CREATE`
    pub(crate) fn context_create(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let this = file.inner();
        let vm = this.vm(args.vm)?;
        let engine = EngineIndex::new(args.engine).ok_or(EINVAL)?;
        let exists = dev.client_engines().any(|(index, _)| index == engine);
        if !exists || args.flags != 0 {
            return Err(EINVAL);
        }
        let place = this.context_quota.take(1).ok_or(ENOSPC)?;
        let (context, handle) = {
            let class = this.class.lock();
            let level = scheduler::Level::NORMAL.within(*class);
            let context = Context::new(dev, &vm, engine, level, &this.usage, place)?;
            (context.clone(), this.contexts.lock().insert(context))
        };
        if handle.is_err() {
            context.destroy();
        }
        args.context = handle?;
        // If its device has failed, or was destroyed meanwhile without this one, it takes no work.
        if vm.device().check().is_err() {
            context.mark(Status::Lost);
            // Another thread may have guessed its handle.
            Wake::wake(&context);
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY`
    pub(crate) fn context_set_priority(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_set_priority,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let context = this.context(args.context)?;
        let engine = dev.engine(context.engine())?;
        const IN_PROCESS: u32 = DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS;
        if args.flags & !IN_PROCESS != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        if args.flags & IN_PROCESS != 0 {
            let priority = scheduler::InProcess::of(args.priority).ok_or(EINVAL)?;
            engine.set_in_process(dev, &context, priority);
            return Ok(0);
        }
        let level = scheduler::Level::of(args.priority).ok_or(EINVAL)?;
        if level > scheduler::Level::NORMAL && !capability::sys_nice() {
            return Err(EACCES);
        }
        let class = this.class.lock();
        context.set_own_level(level);
        engine.set_level(dev, &context, level.within(*class));
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_SET_PRIORITY_CLASS`
    pub(crate) fn set_priority_class(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_set_priority_class,
        file: &SkuaFile,
    ) -> Result<u32> {
        let new = Class::of(args.priority_class).ok_or(EINVAL)?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        if new > Class::Normal && !capability::sys_nice() {
            return Err(EACCES);
        }
        let this = file.inner();
        let mut class = this.class.lock();
        *class = new;
        for context in this.contexts.lock().iter() {
            // Always: a context is made for an engine that there is.
            if let Ok(engine) = dev.engine(context.engine()) {
                engine.set_level(dev, context, context.own_level().within(new));
            }
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_DESTROY`
    pub(crate) fn context_destroy(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let context = {
            let mut contexts = this.contexts.lock();
            contexts.get(args.context)?;
            if args.pad != 0 {
                return Err(EINVAL);
            }
            contexts.remove(args.context)?
        };
        this.let_go_of_context(context);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_STATE`
    pub(crate) fn context_state(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_state,
        file: &SkuaFile,
    ) -> Result<u32> {
        let context = file.inner().context(args.context)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        query::context_state(&context, args);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_VM_BIND`
    pub(crate) fn vm_bind(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_vm_bind,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let vm = file.inner().vm(args.vm)?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let operations = crate::ioctl::bind::read(file, &vm, &args.ops)?;
        // Address spaces outlive their device's failure, and end what is held themselves.
        let mut values = Values::new(vm.clone(), None);
        let (waits, signals) = syncs::read(file, &args.syncs, Some(&mut values))?;
        let request = BindRequest {
            operations,
            waits,
            signals,
        };
        hold::submit(&vm, request, values.into_waits())?;
        dev.counters
            .binds
            .fetch_add(1, kernel::sync::atomic::Relaxed);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_SUBMIT`
    pub(crate) fn submit(args: &mut drm_skua_submit, file: &SkuaFile) -> Result<u32> {
        let this = file.inner();
        let dev = &*this.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        SkuaDriver::before_ioctl(&bound);
        dev.check_health()?;
        let context = this.context(args.context)?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let mut buffers = Few::Empty;
        user_array::for_each(&args.buffers, MAX_BUFFERS, |buffer: drm_skua_buffer| {
            if buffer.flags != 0 {
                return Err(EINVAL);
            }
            buffers.push(Buffer::new(buffer.va, buffer.size)?)
        })?;
        // They end with the context's device, whosever the handles are.
        let owner = context.vm().ok_or(EINVAL)?.device().id();
        let mut values = Values::new(context.clone(), Some(owner));
        let (waits, signals) = syncs::read(file, &args.syncs, Some(&mut values))?;
        let request = Request {
            buffers,
            waits,
            signals,
        };
        context.check(MAX_REQUESTS)?;
        if !request.buffers.is_empty() {
            context.prepare_saving(gpu::parent(&bound))?;
        }
        // It may wait for others' turns, which is in the way of nobody who unplugs a device.
        drop(bound);
        if let Err(error) = hold::submit(&context, request, values.into_waits()) {
            dev.check_health()?;
            return Err(error);
        }
        dev.counters
            .submissions
            .fetch_add(1, kernel::sync::atomic::Relaxed);
        Ok(0)
    }
}
