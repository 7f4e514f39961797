// SPDX-License-Identifier: GPL-2.0

//! What ioctls do with buffer objects, and how an ioctl names several.

use crate::{
    ext::{
        file,
        gem::{
            self,
            GemExt, //
        },
        uapi::*, //
    },
    ioctl::{
        file::{
            Data,
            Device,
            File,
            SkuaFile, //
        },
        user_array, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            Bo,
            BoRef, //
        },
        destruction::Manner,
        lock,
        offer, //
    },
    policy::{
        priority::{
            Level,
            Offer, //
        },
        segment_sets::SegmentSets, //
    },
    submit::deferral, //
};
use kernel::{
    drm::gem::BaseObject,
    prelude::*, //
};

/// Objects that one call names, at most.
const MAX_OBJECTS: u32 = 1024;

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
pub(crate) fn read_objects(file: &SkuaFile, array: &drm_skua_array) -> Result<KVVec<(u32, BoRef)>> {
    let array: KVVec<drm_skua_bo_handle> = user_array::read(array, MAX_OBJECTS)?;
    if array.iter().any(|element| element.pad != 0) {
        return Err(EINVAL);
    }
    objects(file, array.iter().map(|element| element.handle))
}

/// Whether `handle` is still that of `bo`.
pub(crate) fn names(file: &SkuaFile, handle: u32, bo: &Bo) -> bool {
    Bo::lookup_handle(file, handle).is_ok_and(|now| core::ptr::eq(&*now, bo))
}

impl File {
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
                // Or a third has just now.
                let _ = file::delete_handle(file, handle);
            }
        };
        let this = file.inner();
        let (client, deferrals) = (&this.vm_quota, &this.deferral_quota);
        deferral::destroy(dev, client, deferrals, &objects, manner, close)?;
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
            bo::set_priority(bo, *level)?;
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
}
