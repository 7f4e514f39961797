// SPDX-License-Identifier: GPL-2.0

//! An open file: the handles of one client.
//!
//! Handles of devices, address spaces, contexts, context allocations and monitored fences are
//! numbers from 1, of this file alone. Closing the file destroys what they name: work that has not
//! started is cancelled, work that runs ends or is cut by the watchdog.
//!
//! What ioctls do with a file stands beside it, by what they are about ([`crate::ioctl`]).

use crate::{
    ext::device,
    fences::pledge::MAX_PLEDGES,
    gpu::{
        SkuaDevice,
        SkuaDriver, //
    },
    ioctl::{
        context::CLIENT_CONTEXTS,
        context_allocation::{
            ContextAllocation,
            MAX_CONTEXT_ALLOCATIONS, //
        },
        device::MAX_DEVICES,
        fence::{
            FenceHandle,
            MAX_EVENTFDS,
            MAX_FENCES, //
        },
        vm::CLIENT_VMS, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            Bo,
            BoData, //
        },
        claims::Claims,
        device::ClientDevice,
        lock,
        pending_residency::CLIENT_PENDING,
        residency,
        vm::Vm, //
    },
    policy::scheduler::Class,
    quota::Quota,
    submit::{
        busy::Usage,
        context::Context,
        deferral::MAX_DEFERRALS, //
    },
    users::Opener, //
};
use kernel::{
    drm,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// Handles of one kind: entry `n` is handle `n + 1`, and empty if that is free.
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
            Some(entry) => *entry = Some(object),
            None => self.0.push(Some(object), client_flags())?,
        }
        u32::try_from(index)?.checked_add(1).ok_or(EOVERFLOW)
    }

    /// The entry of `handle`, which may be free. `ENOENT` if the table is not that long.
    fn entry(&mut self, handle: u32) -> Result<&mut Option<Arc<T>>> {
        let index = handle.checked_sub(1).ok_or(ENOENT)?;
        self.0.get_mut(usize::try_from(index)?).ok_or(ENOENT)
    }

    /// What `handle` names. `ENOENT`.
    pub(crate) fn get(&mut self, handle: u32) -> Result<Arc<T>> {
        self.entry(handle)?.clone().ok_or(ENOENT)
    }

    /// Frees `handle`, as an ioctl with `pad` asks for it. `ENOENT`; `EINVAL` if that is not 0.
    pub(crate) fn remove(&mut self, handle: u32, pad: u32) -> Result<Arc<T>> {
        let entry = self.entry(handle)?;
        if entry.is_some() && pad != 0 {
            return Err(EINVAL);
        }
        entry.take().ok_or(ENOENT)
    }

    /// The objects that have a handle, by handle.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.iter().flatten()
    }
}

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
    pub(crate) class: Mutex<Class>,
    /// Devices that it has a handle of.
    #[pin]
    pub(crate) devices: Mutex<Handles<ClientDevice>>,
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
    pub(crate) vm_quota: Arc<Quota>,
    /// Contexts that the client may have, counted likewise.
    pub(crate) context_quota: Arc<Quota>,
    /// Devices with explicit residency that the client may have, counted likewise.
    pub(crate) explicit_quota: Arc<Quota>,
    /// Handles of context allocations that the client may have.
    pub(crate) allocation_quota: Arc<Quota>,
    /// Handles of monitored fences that the client may have.
    pub(crate) fence_quota: Arc<Quota>,
    /// Values that its eventfds may wait for.
    pub(crate) eventfd_quota: Arc<Quota>,
    /// MAKE_RESIDENTs that are to signal values and are not over.
    pub(crate) pledge_quota: Arc<Quota>,
    /// Those of them that may wait for an unlock.
    pub(crate) pending_quota: Arc<Quota>,
    /// Destructions of what others may have that may be behind what its contexts hold.
    pub(crate) deferral_quota: Arc<Quota>,
    /// Bytes of system memory that the client's buffer objects may have: half of what all may.
    pub(crate) system_quota: Arc<Quota>,
}

/// The DRM file of a client.
pub(crate) type SkuaFile = drm::File<File>;

impl drm::file::DriverFile for File {
    type Driver = SkuaDriver;

    fn open(dev: &SkuaDevice) -> Result<Pin<KBox<Self>>> {
        // What its ioctls begin, workers go on with.
        device::wait_until_registered(dev)?;
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
                allocation_quota: Quota::of_file(c"allocations", MAX_CONTEXT_ALLOCATIONS)?,
                fence_quota: Quota::of_file(c"fences", MAX_FENCES)?,
                eventfd_quota: Quota::of_file(c"eventfds", MAX_EVENTFDS)?,
                pledge_quota: Quota::of_file(c"pledges", MAX_PLEDGES)?,
                pending_quota: opener.quotas().pending.of_client(CLIENT_PENDING)?,
                deferral_quota: Quota::of_file(c"deferrals", MAX_DEFERRALS)?,
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
        // What waits for others' fences may wait for ever.
        self.for_each_device(|_, device| self.dev.fences.end(device.id(), false));
        // Also those without a handle, whose binds may do so, too.
        self.dev.vms.for_each(|vm| {
            if vm.is_of(&self.vm_quota) {
                vm.end(ECANCELED);
                vm.destroy();
            }
        });
        while remove_one(&self.vms, |_| true).is_some() {}
    }
}

/// Frees the handle of one object that `goes`, if there is one. A new object's own is freed so when
/// its creation fails: by then its number may name another.
pub(crate) fn remove_one<T>(
    handles: &Mutex<Handles<T>>,
    goes: impl Fn(&Arc<T>) -> bool,
) -> Option<Arc<T>> {
    let mut handles = handles.lock();
    let mut entries = handles.0.iter_mut();
    entries.find_map(|entry| entry.take_if(|object| goes(object)))
}

/// The bound data that ioctls get.
pub(crate) type Data<'a> = crate::gpu::RegistrationData<'a>;
/// The device as ioctls get it: it stays registered until they return.
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

    /// Calls `f` with the number of each device, the client's own first, and it.
    pub(crate) fn for_each_device(&self, mut f: impl FnMut(u32, &ClientDevice)) {
        f(0, &self.own);
        let devices = self.devices.lock();
        let numbered = (1..).zip(devices.0.iter());
        numbered.for_each(|(number, device)| device.iter().for_each(|it| f(number, it)));
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

    /// The context that `handle` names. `ENOENT`.
    pub(crate) fn context(&self, handle: u32) -> Result<Arc<Context>> {
        self.contexts.lock().get(handle)
    }
}
