// SPDX-License-Identifier: GPL-2.0

//! What GEM asks of a buffer object: that the CPU's page faults are served, and what other drivers
//! may do with it.

use crate::{
    ext::{
        fault::{
            FaultError,
            VmFault, //
        },
        gem::{
            self,
            Backing,
            GemExt,
            Placement, //
        },
        resv::{
            Reserved,
            Usage, //
        },
        uapi, //
    },
    gpu::{
        self,
        SkuaDriver, //
    },
    memory::{
        bo::{
            is_settled,
            wake,
            was_used,
            Bo,
            BoData,
            SystemSite,
            REGION_VRAM, //
        },
        clean_copy::{
            self,
            VramSite, //
        },
        eviction,
        host_aperture,
        pending_residency,
        residency, //
    },
    quota::Share, //
};
use kernel::{
    drm::{
        self,
        gem::BaseObject,
        Registered, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
    time::Jiffies, //
};

/// Pages that a fault maps beyond the one accessed.
pub(crate) const FAULT_AHEAD: usize = 15;

impl GemExt for BoData {
    type Device = VramSite;
    type System = SystemSite;
    type Resting = Arc<Share>;

    fn backing(&self) -> &Backing<Self::Device, Self::System, Self::Resting> {
        &self.backing
    }

    fn check_mmap(obj: &Bo) -> Result {
        if gem::is_imported(obj) {
            return Err(EOPNOTSUPP);
        }
        if obj.flags() & uapi::DRM_SKUA_BO_CPU_ACCESS == 0 && !obj.is_locked() {
            return Err(EPERM);
        }
        Ok(())
    }

    fn is_settled(obj: &Bo, reserved: &Reserved<'_>) -> bool {
        is_settled(obj, reserved).unwrap_or(false)
    }

    fn fault(
        obj: &Bo,
        dev: &drm::Device<SkuaDriver, Registered>,
        reserved: &mut Reserved<'_>,
        fault: &VmFault<'_>,
    ) -> Result<(), FaultError> {
        if obj.is_offered() {
            return Err(FaultError::Sigbus);
        }
        was_used(obj);
        if fault.is_write() {
            clean_copy::drop_copy(obj, reserved)?;
        }
        let (range, writable) = match gem::placement(obj, reserved)? {
            Placement::System(..) => return gem::map_system(obj, reserved, fault, FAULT_AHEAD),
            Placement::Device(site) if Self::is_seen_in_vram(obj) => {
                (&*site.range, site.copy().is_none())
            }
            Placement::Device(_) | Placement::Resting(_) | Placement::Nowhere => {
                return Err(FaultError::Sigbus)
            }
        };
        if !range.is_cleared() {
            // The device was lost before it could clear it.
            return gem::map_dummy(obj, reserved, fault);
        }
        dev.registration_data_with(|data| {
            if let Some(aperture) = &data.aperture {
                if !host_aperture::is_visible(range, fault.page()) {
                    let mapped = host_aperture::map(dev, aperture, obj, range, fault, writable);
                    if mapped.is_err() && dev.check_health().is_err() {
                        return gem::map_dummy(obj, reserved, fault);
                    }
                    return mapped;
                }
            }
            let vram = data.vram.as_ref().ok_or(FaultError::Sigbus)?;
            let pages = crate::ext::fault::window(fault, obj.size(), FAULT_AHEAD + 1);
            if pages == 0 {
                return Err(FaultError::Sigbus);
            }
            for ahead in 0..pages {
                let offset = range
                    .page_offset(fault.page() + ahead)
                    .ok_or(FaultError::Sigbus)?;
                match fault.map_bar(ahead, vram, offset, writable) {
                    Ok(()) => (),
                    // What is mapped ahead is a guess.
                    Err(_) if ahead > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    fn rouse(obj: &Bo, reserved: &mut Reserved<'_>) -> Result {
        match obj.is_offered() {
            // Nobody is to use it.
            true => Ok(()),
            false => wake(obj, reserved),
        }
    }

    fn may_share(obj: &Bo, _reserved: &Reserved<'_>) -> Result {
        if obj.is_dying() {
            // Its handle is about to go.
            return Err(ENOENT);
        }
        // Its client, by the lock, would stop the work of others that have it.
        let is_locked_out = Self::is_held_out(obj) && obj.is_for_vram_alone()
            || pending_residency::is_locked_out(obj);
        match obj.is_offered() || is_locked_out {
            true => Err(EBUSY),
            false => Ok(()),
        }
    }

    fn attach(obj: &Bo, dev: &drm::Device<SkuaDriver, Registered>, left: &mut Jiffies) -> Result {
        if obj.region() != REGION_VRAM || obj.needs_vram() {
            return Ok(());
        }
        let bo: ARef<Bo> = obj.into();
        eviction::move_out(dev, gpu::parent(dev), &bo.into(), left)
    }

    fn detached(obj: &Bo, dev: &drm::Device<SkuaDriver, Registered>) {
        let bo: ARef<Bo> = obj.into();
        residency::come_back(dev, gpu::parent(dev), &bo.into(), false);
    }

    fn pin(obj: &Bo, reserved: &mut Reserved<'_>) -> Result {
        // Another device can reach system pages only, and what is pinned there does not come back.
        match gem::placement(obj, reserved)? {
            _ if obj.needs_vram() => Err(EOPNOTSUPP),
            // Who maps what still moves there would wait for it with the object locked.
            Placement::System(..) if !reserved.is_idle(Usage::Kernel) => Err(EBUSY),
            Placement::System(..) => Ok(()),
            Placement::Device(_) => Err(EBUSY),
            Placement::Resting(_) | Placement::Nowhere => Err(EOPNOTSUPP),
        }
    }

    fn unpin(_obj: &Bo, _reserved: &mut Reserved<'_>) {}

    fn release(_obj: &Bo, placement: gem::PlacementOf<Self>) {
        drop(placement);
    }
}
