// SPDX-License-Identifier: GPL-2.0

//! What ioctls do with a client's devices, which its address spaces and contexts are of.

use crate::{
    ext::uapi::*,
    ioctl::{
        context_allocation::ContextAllocation,
        fence::FenceHandle,
        file::{
            remove_one,
            Data,
            Device,
            File,
            SkuaFile, //
        },
        query,
        residency::watch_budget, //
    },
    memory::{
        device::ClientDevice,
        vm::Vm, //
    },
    submit::{
        context::Context,
        recovery, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Devices of one client at a time, besides its own.
pub(crate) const MAX_DEVICES: usize = 16;

impl File {
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
            _ => Some(this.explicit_quota.take(dev, 1).ok_or(ENOSPC)?),
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
        let device = this.devices.lock().remove(args.device, args.pad)?;
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
}
