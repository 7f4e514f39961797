// SPDX-License-Identifier: GPL-2.0

//! What the calling process may do (`include/linux/capability.h`).
//!
//! # Examples
//!
//! ```ignore
//! if priority > Level::NORMAL && !capability::sys_nice() {
//!     return Err(EACCES);
//! }
//! ```

use super::shim;
use kernel::bindings;

/// Whether it may have work go before that of others (`CAP_SYS_NICE`). Process context.
pub(crate) fn sys_nice() -> bool {
    // CAST: a small number.
    // SAFETY: It may be asked in any process context.
    unsafe { bindings::capable(bindings::CAP_SYS_NICE as kernel::ffi::c_int) }
}

/// Whether it may have more than limits of resources let others have (`CAP_SYS_RESOURCE`). A
/// worker, which has all capabilities, may not: it does what somebody else wants. Process context.
pub(crate) fn sys_resource() -> bool {
    // SAFETY: No requirements.
    if unsafe { shim::skua_is_kernel_thread() } {
        return false;
    }
    // CAST: a small number.
    // SAFETY: It may be asked in any process context.
    unsafe { bindings::capable(bindings::CAP_SYS_RESOURCE as kernel::ffi::c_int) }
}
