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
            MonitoredFence,
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

/// The values of monitored fences that an ioctl waits for.
pub(crate) struct Values {
    /// Those that had not come when the list was made.
    waits: Few<Wait>,
    /// Told when they have come.
    target: Arc<dyn Target>,
}

impl Values {
    /// None yet. `target` will wait for them, whosever the handles are, and ends that itself.
    pub(crate) fn new(target: Arc<dyn Target>) -> Self {
        Self {
            waits: Few::Empty,
            target,
        }
    }

    fn push(&mut self, fence: &Arc<MonitoredFence>, value: u64) -> Result {
        // Of each fence the last value decides: it alone is waited for.
        let like = self.waits.iter_mut().find(|wait| wait.is_for(fence));
        if like.as_ref().is_some_and(|wait| wait.value() >= value) {
            return Ok(());
        }
        let wait = Wait::new(fence, value, self.target.clone(), 0)?;
        match like {
            Some(like) => {
                *like = wait;
                Ok(())
            }
            None => self.waits.push(wait),
        }
    }

    pub(crate) fn into_waits(self) -> Few<Wait> {
        self.waits
    }
}

/// Reads the syncs of an ioctl: the fences to wait for, and what to signal. An ioctl that can wait
/// for values of monitored fences says where they go with `values`.
///
/// `EINVAL` for flags, a point or a value that the uAPI forbids, or a point without a fence;
/// `ENOENT` for a handle.
pub(crate) fn read(
    file: &SkuaFile,
    array: &uapi::drm_skua_array,
    mut values: Option<&mut Values>,
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
            if let (true, Some(values)) = (wait, &mut values) {
                values.push(handle.fence(), sync.point)?;
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
