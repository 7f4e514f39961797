// SPDX-License-Identifier: GPL-2.0

//! Telling userspace that a device failed, or failed somebody: the uevent `WEDGED=` of
//! `Documentation/gpu/drm-uapi.rst`, "Device Wedging".
//!
//! C headers: `include/drm/drm_device.h`, `include/drm/drm_drv.h`.

use super::{
    device::as_raw,
    shim, //
};
use kernel::{
    drm,
    error::to_result,
    prelude::*, //
};

/// Bytes of a task's name, the zero at its end included (`TASK_COMM_LEN`).
const NAME_BYTES: usize = 16;

/// A process, as userspace is told of it.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    /// Its number in the first namespace of processes.
    pid: c_int,
    /// Ends with a zero.
    name: [c_char; NAME_BYTES],
}

impl Process {
    /// The process of the calling thread.
    pub(crate) fn current() -> Self {
        let mut task = Self {
            pid: 0,
            name: [0; NAME_BYTES],
        };
        // SAFETY: The name has room for `TASK_COMM_LEN` bytes, as the C side asserts.
        unsafe { shim::skua_task_current(&mut task.pid, task.name.as_mut_ptr()) };
        task
    }
}

impl Process {
    /// Its number in the first namespace of processes.
    pub(crate) fn pid(&self) -> c_int {
        self.pid
    }

    /// Name of the task (`comm`), unless it is no text.
    pub(crate) fn name(&self) -> &str {
        let name = CStr::from_bytes_until_nul(&self.name).ok();
        name.and_then(|name| name.to_str().ok()).unwrap_or("?")
    }
}

/// What userspace is to do, so that the device works again.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Recovery {
    /// Nothing: the device works.
    None = 1 << 0,
    /// Unbind the driver and bind it again.
    Rebind = 1 << 1,
}

/// Sends the event, which names who is `guilty`, if that is known. While `dev` is registered;
/// sleeps and allocates. `ENOMEM`.
///
/// # Examples
///
/// ```ignore
/// // In SUBMIT:
/// let process = Process::current();
/// // Its work was cut, and the device works again:
/// wedged::send(&registered, Recovery::None, Some(&process))?;
/// ```
pub(crate) fn send<D: drm::Driver>(
    dev: &drm::Device<D, drm::Registered>,
    recovery: Recovery,
    guilty: Option<&Process>,
) -> Result {
    let (pid, name) = guilty.map_or((0, core::ptr::null()), |task| {
        (task.pid, task.name.as_ptr())
    });
    // SAFETY: A registered device has its nodes; the name is null or ends with a zero.
    to_result(unsafe { shim::skua_drm_wedged(as_raw(dev), recovery as c_ulong, pid, name) })
}
