// SPDX-License-Identifier: MIT

//! The ioctls as they are: called once, with any argument, answered with the bare errno.
//!
//! For tests that pass what no program should, and for what the rest of the crate does not wrap
//! yet. [`call`] takes any value of any structure whose members the kernel does not follow to write
//! somewhere, so that it is safe however wrong the value; [`ioctl`](fn@ioctl) takes anything.
//!
//! ```no_run
//! use libskua::{raw, uapi, Device, Errno};
//!
//! let device = Device::open_first()?;
//! let mut argument = uapi::drm_skua_vm_create {
//!     flags: 1 << 31,
//!     ..Default::default()
//! };
//! assert_eq!(raw::call(device.as_fd(), &mut argument), Err(Errno::INVAL));
//! # use std::os::fd::AsFd;
//! # Ok::<(), libskua::Error>(())
//! ```

pub use crate::sys::{argument_size, call, ioctl, query, with_size, Argument};
