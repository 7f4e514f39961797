// SPDX-License-Identifier: GPL-2.0

//! Eventfds of userspace, to be signalled from anywhere.
//!
//! # Examples
//!
//! ```ignore
//! let eventfd = EventFd::find(args.eventfd)?;
//! // When it has happened, with interrupts off too:
//! eventfd.signal();
//! ```
//!
//! C header: `include/linux/eventfd.h`.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    prelude::*, //
};

/// A reference to an eventfd, which stays when no descriptor of it is left.
///
/// # Invariants
///
/// The pointer is a valid context of which this value owns one reference.
pub(crate) struct EventFd(NonNull<bindings::eventfd_ctx>);

// SAFETY: Contexts are reference counted and have a lock of their own.
unsafe impl Send for EventFd {}
// SAFETY: As above.
unsafe impl Sync for EventFd {}

impl EventFd {
    /// The eventfd behind a descriptor of the calling process. `EBADF` if there is none, `EINVAL`
    /// if it is another kind of file.
    pub(crate) fn find(descriptor: i32) -> Result<Self> {
        // SAFETY: No requirements.
        let raw = from_err_ptr(unsafe { bindings::eventfd_ctx_fdget(descriptor) })?;
        // INVARIANT: The reference is new.
        NonNull::new(raw).map(Self).ok_or(EINVAL)
    }

    /// Adds 1 to its counter. In any context.
    pub(crate) fn signal(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::eventfd_signal_mask(self.0.as_ptr(), 0) };
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours to give up.
        unsafe { bindings::eventfd_ctx_put(self.0.as_ptr()) };
    }
}
