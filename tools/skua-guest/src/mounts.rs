// SPDX-License-Identifier: MIT

//! The file systems that programs of the guest expect.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{mount, MsFlags};
use skua_guest::job::OUTPUT;

/// What kind, where. Kinds that the kernel does not have are left out.
const SYSTEM: &[(&str, &str, &str)] = &[
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
    ("configfs", "/sys/kernel/config", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("tmpfs", "/tmp", "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/dev/shm", "mode=1777"),
];

/// Mounts all of the table, in its order.
///
/// # Errors
///
/// If one that every kernel for this driver has cannot be mounted.
pub(crate) fn system() -> Result<()> {
    let none = MsFlags::empty();
    for (kind, target, options) in SYSTEM {
        if !Path::new(target).is_dir() && fs::create_dir_all(target).is_err() {
            continue;
        }
        match mount(Some(*kind), *target, Some(*kind), none, Some(*options)) {
            // Mounted by the kernel (devtmpfs), or not in this kernel.
            Ok(()) | Err(nix::Error::EBUSY | nix::Error::ENODEV) => {}
            Err(error) => return Err(error).with_context(|| format!("{kind} on {target}")),
        }
    }
    Ok(())
}

/// Mounts the output share.
///
/// # Errors
///
/// If it cannot be.
pub(crate) fn output() -> Result<()> {
    mount(
        Some("out"),
        OUTPUT,
        Some("9p"),
        MsFlags::empty(),
        Some("trans=virtio,version=9p2000.L,msize=524288,cache=none"),
    )
    .context("the output share")
}
