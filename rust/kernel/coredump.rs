// SPDX-License-Identifier: GPL-2.0

//! Handing userspace a dump of a device that failed: `/sys/class/devcoredump`.
//!
//! C header: `include/linux/devcoredump.h`.

use super::{
    device::as_raw,
    shim, //
};
use kernel::{
    drm,
    prelude::*, //
};

/// Has the kernel keep `dump` of `dev` until userspace has cleared it, or for some minutes. If it
/// has one of the device already, or was built without that, the new one is dropped. Sleeps and
/// allocates; without memory the dump is dropped as well.
///
/// # Examples
///
/// ```ignore
/// let mut dump = VVec::new();
/// dump.extend_from_slice(b"ring of engine 0\n", GFP_KERNEL)?;
/// coredump::publish(dev, dump);
/// // cat /sys/class/devcoredump/devcd1/data
/// ```
pub(crate) fn publish<D: drm::Driver>(dev: &drm::Device<D>, dump: VVec<u8>) {
    if dump.is_empty() {
        return;
    }
    let (data, bytes, _) = dump.into_raw_parts();
    // SAFETY: The memory is of `vmalloc()`, whose address is that of the vector's first element,
    // and nobody's from here on; a DRM device holds its parent as long as it lives.
    unsafe { shim::skua_coredump(as_raw(dev), data.cast(), bytes as c_ulong) };
}
