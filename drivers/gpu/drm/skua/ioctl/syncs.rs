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
    fences::signals::Signals,
    ioctl::{
        file::SkuaFile,
        user_array, //
    },
    kernel_heap::client_flags, //
};
use kernel::prelude::*;

/// Most syncs of one ioctl.
pub(crate) const MAX_SYNCS: u32 = 256;

/// Reads the syncs of an ioctl: the fences to wait for, and what to signal.
///
/// `EINVAL` for flags or a point that the uAPI forbids, or a point without a fence; `ENOENT` for a
/// handle.
pub(crate) fn read(
    file: &SkuaFile,
    array: &uapi::drm_skua_array,
) -> Result<(KVVec<Fence>, Signals)> {
    let syncs: KVVec<uapi::drm_skua_sync> = user_array::read(array, MAX_SYNCS)?;
    let mut waits = KVVec::new();
    let mut signals = Signals::new();
    for sync in &syncs {
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
            waits.push(fence, client_flags())?;
        } else {
            signals.push(syncobj, sync.point)?;
        }
    }
    Ok((waits, signals))
}
