// SPDX-License-Identifier: GPL-2.0

//! The syncs of an ioctl: what it waits for, what it signals.
//!
//! All that can fail about them (handles, points, memory) happens in [`read`]; [`Signals::publish`]
//! then puts the fence of the work into the syncobjs, and cannot.

use crate::{
    ext::{
        fence::Fence,
        syncobj::{
            self,
            Syncobj, //
        },
        uapi, //
    },
    fences::{
        monitored::{
            Promise,
            Target,
            Wait, //
        },
        signals::Signals, //
    },
    few::Few,
    ioctl::{
        file::SkuaFile,
        user_array, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Most syncs of one ioctl.
pub(crate) const MAX_SYNCS: u32 = 256;

/// Reads the syncs of an ioctl: the fences to wait for, and what to signal. Values of monitored
/// fences can be waited for with `values`: where to put these waits, who waits, and by which device.
///
/// `EINVAL` for flags, a point or a value that the uAPI forbids, or a point without a fence;
/// `ENOENT` for a handle.
pub(crate) fn read(
    file: &SkuaFile,
    array: &uapi::drm_skua_array,
    mut values: Option<(&mut Few<Wait>, (Arc<dyn Target>, u64))>,
) -> Result<(Few<Fence>, Signals)> {
    let mut waits = Few::Empty;
    let mut signals = Signals::new();
    user_array::for_each(array, MAX_SYNCS, |sync: uapi::drm_skua_sync| {
        if sync.flags & uapi::DRM_SKUA_SYNC_MONITORED != 0 {
            let wait = match sync.flags & !uapi::DRM_SKUA_SYNC_MONITORED {
                uapi::DRM_SKUA_SYNC_WAIT => true,
                uapi::DRM_SKUA_SYNC_SIGNAL => false,
                _ => return Err(EINVAL),
            };
            if wait && values.is_none() {
                return Err(EINVAL);
            }
            let handle = file.inner().fence(sync.handle)?;
            if let (true, Some((values, (target, owner)))) = (wait, &mut values) {
                // Of each fence the last value decides: it alone is waited for.
                let like = values.iter_mut().find(|wait| wait.is_for(handle.fence()));
                if like.as_ref().is_some_and(|wait| wait.value() >= sync.point) {
                    return Ok(());
                }
                let wait = Wait::new(handle.fence(), sync.point, target.clone(), 0, *owner)?;
                match like {
                    Some(like) => *like = wait,
                    None => values.push(wait)?,
                }
            } else {
                signals.push_value(Promise::new(handle.fence().clone(), sync.point)?)?;
            }
            return Ok(());
        }
        let timeline = sync.flags & uapi::DRM_SKUA_SYNC_TIMELINE != 0;
        let wait = match sync.flags & !uapi::DRM_SKUA_SYNC_TIMELINE {
            uapi::DRM_SKUA_SYNC_WAIT => true,
            uapi::DRM_SKUA_SYNC_SIGNAL => false,
            _ => return Err(EINVAL),
        };
        let syncobj = Syncobj::find(file, sync.handle)?;
        // A timeline has points from 1; a binary syncobj has none.
        if timeline != (sync.point != 0) {
            return Err(EINVAL);
        }
        if wait {
            let fence = syncobj::find_fence(file, sync.handle, sync.point)?;
            // A callback for each would be run when it signals, with interrupts off.
            if !waits.contains(&fence) {
                waits.push(fence)?;
            }
        } else {
            signals.push(syncobj, sync.point)?;
        }
        Ok(())
    })?;
    Ok((waits, signals))
}
