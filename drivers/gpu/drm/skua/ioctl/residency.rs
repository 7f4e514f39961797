// SPDX-License-Identifier: GPL-2.0

//! What ioctls do with a device's list of what is resident, and how its client comes to be told to
//! trim it.

use crate::{
    ext::uapi::*,
    fences::pledge::Publisher,
    gpu::SkuaDevice,
    ioctl::{
        bo::{
            names,
            read_objects, //
        },
        file::{
            Data,
            Device,
            File,
            SkuaFile, //
        },
        syncs, //
    },
    memory::{
        device::{
            ClientDevice,
            Notice, //
        },
        pending_residency::PendingMemory,
        residency, //
    },
    submit::recovery, //
};
use kernel::prelude::*;

/// Has the client told when `device`, number `number`, is to trim: from now on once more, unless it
/// has so many events that it has not read.
pub(crate) fn watch_budget(dev: &SkuaDevice, file: &SkuaFile, device: &ClientDevice, number: u32) {
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

impl File {
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
        let publisher = Publisher::new(dev, signals, &file.inner().pledge_quota)?;
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
                pending = Some(PendingMemory::new(dev, &this.locks, &this.pending_quota)?);
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
            Some(memory) => memory.wait(dev, &device, objects, publisher),
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
}
