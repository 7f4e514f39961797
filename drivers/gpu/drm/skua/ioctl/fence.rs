// SPDX-License-Identifier: GPL-2.0

//! Handles of monitored fences, and what ioctls do with them.

use crate::{
    ext::{
        eventfd::EventFd,
        trace,
        uapi::*,
        value_page, //
    },
    fences::{
        monitored::{
            End,
            MonitoredFence,
            Over,
            Owner,
            Promise,
            Target,
            Wait,
            Waits,
            LOST, //
        },
        sleep::{
            left_until,
            EventFdWait,
            Sleeper, //
        }, //
    },
    gpu::SkuaDevice,
    ioctl::{
        file::{
            remove_one,
            Data,
            Device,
            File,
            SkuaFile, //
        },
        syncs::MAX_SYNCS,
        user_array, //
    },
    kernel_heap::client_flags,
    memory::device::ClientDevice,
    quota::Share, //
};
use core::cmp::Ordering;
use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// Handles of fences of one client at a time.
pub(crate) const MAX_FENCES: u64 = 1024;
/// Values for which eventfds of one client wait at a time.
pub(crate) const MAX_EVENTFDS: u64 = 4096;

/// A monitored fence, as one handle of a client names it, which may have several of it.
pub(crate) struct FenceHandle {
    /// The GPU that it is on.
    dev: ARef<SkuaDevice>,
    /// The client's device: when that ends, so do waits by this handle; if it fails, so may the
    /// fence.
    device: Arc<ClientDevice>,
    /// What the handle names; others may have it as well.
    fence: Arc<MonitoredFence>,
    /// Enters it in the GPU's table of who has which fence.
    _owner: Owner,
    /// The handle's part of the client's quota of fences: 1.
    _share: Share,
}

impl FenceHandle {
    /// The fence that the handle names; others may name it, too.
    pub(crate) fn fence(&self) -> &Arc<MonitoredFence> {
        &self.fence
    }

    /// The client's device for which the handle was made.
    pub(crate) fn device(&self) -> &Arc<ClientDevice> {
        &self.device
    }

    /// Whether its device works. `ECANCELED`, `EIO`, `ENODEV`.
    fn check(&self) -> Result {
        self.dev.check_health()?;
        self.device.check()
    }
}

/// A handle's fence and a value.
type Value = (Arc<FenceHandle>, u64);

/// The values of an array, at least one. `EINVAL`, `ENOENT`.
fn values(file: &File, array: &drm_skua_array) -> Result<KVVec<Value>> {
    let elements: KVVec<drm_skua_fence_value> = user_array::read(array, MAX_SYNCS)?;
    if elements.is_empty() {
        return Err(EINVAL);
    }
    let mut values = KVVec::with_capacity(elements.len(), client_flags())?;
    for element in &elements {
        let fence = file.fence(element.fence)?;
        if element.pad != 0 {
            return Err(EINVAL);
        }
        values.push((fence, element.value), client_flags())?;
    }
    Ok(values)
}

/// Those of `values` that are waited for, with their indices, if all are to come, or `any`: of a
/// fence one value decides, the last that is reached, or the first of any. `ENOMEM`.
fn deciding(values: &[Value], any: bool) -> Result<KVVec<(u32, &Value)>> {
    let decides = |index: u32, (handle, value): &Value| {
        !(0..).zip(values).any(|(other, (like, instead))| {
            Arc::ptr_eq(&like.fence, &handle.fence)
                && match instead.cmp(value) {
                    Ordering::Less => any,
                    Ordering::Equal => other < index,
                    Ordering::Greater => !any,
                }
        })
    };
    let mut deciding = KVVec::with_capacity(values.len(), client_flags())?;
    for (index, value) in (0..).zip(values) {
        if decides(index, value) {
            deciding.push((index, value), client_flags())?;
        }
    }
    Ok(deciding)
}

/// Waits for those of `values` that decide, and for the ends of all their devices. `ENOMEM`.
fn waits<T: Target + 'static>(
    values: &[Value],
    deciding: &[(u32, &Value)],
    target: &Arc<T>,
) -> Result<Waits> {
    let mut waits = Waits::new();
    for (index, (handle, value)) in deciding {
        let wait = Wait::new(&handle.fence, *value, target.clone(), *index)?;
        waits.values.push(wait)?;
    }
    for (FenceHandle { dev, device, .. }, _) in values.iter().map(|(it, value)| (&**it, value)) {
        waits.end_with(&dev.fences, device.id(), target.clone())?;
    }
    Ok(waits)
}

impl File {
    /// The handle number `handle`. `ENOENT`.
    pub(crate) fn fence(&self, handle: u32) -> Result<Arc<FenceHandle>> {
        self.fences.lock().get(handle)
    }

    /// Gives a fence, which `make` makes, a handle of `device`. `ECANCELED`, `ENOSPC`, `ENOMEM`,
    /// and what `make` says.
    fn add_fence(
        &self,
        device: &Arc<ClientDevice>,
        make: impl FnOnce() -> Result<Arc<MonitoredFence>>,
    ) -> Result<u32> {
        device.check()?;
        let share = self.fence_quota.take(&self.dev, 1).ok_or(ENOSPC)?;
        let fence = make()?;
        let owner = Owner::of_handle(&self.dev.fences, device.id(), &fence)?;
        let handle = Arc::new(
            FenceHandle {
                dev: self.dev.clone(),
                device: device.clone(),
                fence,
                _owner: owner,
                _share: share,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let number = self.fences.lock().insert(handle.clone())?;
        // The device may have failed meanwhile, without this one.
        if let Err(error) = handle.check() {
            remove_one(&self.fences, |other| Arc::ptr_eq(other, &handle));
            return Err(error);
        }
        Ok(number)
    }

    /// `DRM_IOCTL_SKUA_FENCE_CREATE`
    pub(crate) fn fence_create(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_fence_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        const KEEPS_VALUE: u32 = DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR;
        dev.check_health()?;
        let this = file.inner();
        let device = this.device(args.device)?;
        if args.flags & !KEEPS_VALUE != 0 || args.value == LOST || args.pad != 0 {
            return Err(EINVAL);
        }
        args.fence =
            this.add_fence(&device, || MonitoredFence::new(args.value, args.flags == 0))?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_FENCE_DESTROY`
    pub(crate) fn fence_destroy(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_fence_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let _handle = this.fences.lock().remove(args.fence, args.pad)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_FENCE_EXPORT`
    pub(crate) fn fence_export(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_fence_export,
        file: &SkuaFile,
    ) -> Result<u32> {
        let handle = file.inner().fence(args.fence)?;
        if args.flags & !DRM_SKUA_FENCE_EXPORT_CLOEXEC != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        args.fd = value_page::export(handle.fence.clone(), args.flags != 0)?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_FENCE_IMPORT`
    pub(crate) fn fence_import(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_fence_import,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let this = file.inner();
        let device = this.device(args.device)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        args.fence = this.add_fence(&device, || value_page::import(args.fd))?;
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_FENCE_SIGNAL`
    pub(crate) fn fence_signal(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_fence_signal,
        file: &SkuaFile,
    ) -> Result<u32> {
        if args.flags != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        let values = values(&file.inner(), &args.values)?;
        let mut promises = KVVec::with_capacity(values.len(), client_flags())?;
        for (at, (handle, value)) in values.iter().enumerate() {
            handle.check()?;
            let mut before = values.iter().take(at);
            if before.any(|(other, _)| Arc::ptr_eq(&other.fence, &handle.fence)) {
                return Err(EINVAL);
            }
            promises.push(Promise::new(handle.fence.clone(), *value)?, client_flags())?;
        }
        // One that was overtaken since withdraws the others.
        if !promises.iter_mut().all(Promise::give) {
            return Err(EINVAL);
        }
        for promise in &mut promises {
            let (monitored, value) = promise.what();
            trace::signal(dev, None, monitored, value);
            promise.keep(End::Done);
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_FENCE_WAIT`
    pub(crate) fn fence_wait(args: &mut drm_skua_fence_wait, file: &SkuaFile) -> Result<u32> {
        if args.flags & !DRM_SKUA_FENCE_WAIT_ANY != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        let values = values(&file.inner(), &args.values)?;
        if args.index != 0 || args.reserved != 0 {
            return Err(EINVAL);
        }
        let any = args.flags != 0;
        let this = file.inner();
        let has = |(handle, value): &Value| handle.fence.has(*value);
        let is_pending = |(handle, value): &Value| {
            let pending = &this.dev.pending_residency;
            pending.waits_for(&handle.fence, *value, &this.locks)
        };
        // Not until it has unlocked something itself.
        let mut missing = values.iter().filter(|value| !has(value));
        let sleeps = left_until(args.timeout_ns).is_some() && !(any && values.iter().any(has));
        if sleeps && missing.any(is_pending) {
            return Err(EBUSY);
        }
        let deciding = deciding(&values, any)?;
        let count = if any { 1 } else { deciding.len() };
        let sleeper = Sleeper::new(u32::try_from(count)?)?;
        let mut waits = waits(&values, &deciding, &sleeper)?;
        waits.begin();
        // A device that fails later wakes the thread; so does one that failed meanwhile, or a value
        // that is there only because of that, and then it is not what was waited for.
        let check = || values.iter().try_for_each(|(handle, _)| handle.check());
        check()?;
        let slept = sleeper.sleep(args.timeout_ns);
        check()?;
        let last = slept?;
        args.index = if any { last } else { 0 };
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_FENCE_EVENTFD`
    pub(crate) fn fence_eventfd(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_fence_eventfd,
        file: &SkuaFile,
    ) -> Result<u32> {
        if args.flags & !DRM_SKUA_FENCE_WAIT_ANY != 0 {
            return Err(EINVAL);
        }
        let this = file.inner();
        let values = values(&this, &args.values)?;
        let check = || values.iter().try_for_each(|(handle, _)| handle.check());
        check()?;
        let eventfd = EventFd::find(args.eventfd)?;
        let any = args.flags != 0;
        let deciding = deciding(&values, any)?;
        let share = this.eventfd_quota.take(dev, deciding.len() as u64);
        let share = share.ok_or(ENOSPC)?;
        if values.iter().any(|(handle, _)| handle.fence.is_crowded()) {
            return Err(ENOSPC);
        }
        let event = EventFdWait::new(eventfd, any, deciding.len())?;
        event.begin(waits(&values, &deciding, &event)?, share);
        // A device that failed before it was entered tells nobody.
        if check().is_err() {
            event.wake(0, Over::Ended);
        }
        Ok(0)
    }
}
