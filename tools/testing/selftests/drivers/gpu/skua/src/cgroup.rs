// SPDX-License-Identifier: MIT

//! Control groups of one test: of memory, for what the kernel allocates for it, and of device
//! memory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::function::Function;
use crate::suite::eventually;
use crate::{skip, Errno};

/// Where the hierarchy of version 2 is mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// A group that this process is in, alone.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Moves this process into a new group.
    ///
    /// # Panics
    ///
    /// If the kernel has memory control groups and yet the group cannot be made.
    #[track_caller]
    pub fn enter() -> Self {
        let root = Path::new(ROOT);
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if !controllers.split_whitespace().any(|name| name == "memory") {
            skip("no memory control groups");
        }
        fs::write(root.join("cgroup.subtree_control"), "+memory").expect("cgroup.subtree_control");
        let group = root.join(format!("skua-{}", std::process::id()));
        fs::create_dir(&group).expect("a group");
        fs::write(group.join("cgroup.procs"), "0").expect("cgroup.procs");
        Self(group)
    }

    /// Bytes that the kernel holds for the group, give or take what each CPU charges ahead.
    ///
    /// # Panics
    ///
    /// If the kernel does not say.
    #[track_caller]
    pub fn kernel_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.stat")).expect("memory.stat");
        text.lines()
            .find_map(|line| line.strip_prefix("kernel ")?.parse().ok())
            .expect("kernel memory in memory.stat")
    }

    /// [`Self::kernel_bytes`] beyond `before`, once that is at least `least`: the kernel sums it up
    /// every two seconds.
    ///
    /// # Panics
    ///
    /// If the kernel does not say.
    #[track_caller]
    pub fn kernel_bytes_since(&self, before: u64, least: u64) -> u64 {
        let since = || self.kernel_bytes().saturating_sub(before);
        eventually(|| Some(since()).filter(|since| *since >= least)).unwrap_or_else(since)
    }

    /// Bytes that it has.
    ///
    /// # Panics
    ///
    /// If the kernel does not say.
    #[track_caller]
    pub fn current(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.current")).expect("memory.current");
        text.trim().parse().expect("a number")
    }

    /// Has it have no more than so many bytes.
    ///
    /// # Panics
    ///
    /// If the kernel does not take it.
    #[track_caller]
    pub fn set_max(&self, bytes: u64) {
        fs::write(self.0.join("memory.max"), bytes.to_string()).expect("memory.max");
    }

    /// Has the kernel take so many bytes from it, or as many as it can.
    pub fn reclaim(&self, bytes: u64) {
        // That it is fewer is an error.
        let _ = fs::write(self.0.join("memory.reclaim"), bytes.to_string());
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // What is charged to it keeps it from going for good, not from being removed.
        let _ = fs::write(Path::new(ROOT).join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// A tree of groups that may have so much device memory: a directory, and those in it.
#[derive(Debug)]
pub struct DmemTree(PathBuf);

/// A group of such a tree, which processes can be in.
#[derive(Clone, Debug)]
pub struct DmemGroup {
    /// Its directory, in [`ROOT`] or below.
    directory: PathBuf,
    /// The region of which its files are read and written, `drm/<address>/vram0`.
    region: String,
}

/// Has the groups in a directory account for device memory.
#[track_caller]
fn delegate(directory: &Path) {
    fs::write(directory.join("cgroup.subtree_control"), "+dmem").expect("cgroup.subtree_control");
}

impl DmemTree {
    /// A tree without groups.
    ///
    /// # Panics
    ///
    /// If the kernel has such groups and yet it cannot be made.
    #[track_caller]
    pub fn new() -> Self {
        let root = Path::new(ROOT);
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if !controllers.split_whitespace().any(|name| name == "dmem") {
            skip("no control groups of device memory");
        }
        delegate(root);
        let tree = root.join(format!("skua-dmem-{}", std::process::id()));
        fs::create_dir(&tree).expect("a tree");
        delegate(&tree);
        Self(tree)
    }

    /// A group in it, for the VRAM of the first GPU.
    #[track_caller]
    pub fn group(&self, name: &str) -> DmemGroup {
        let directory = self.0.join(name);
        fs::create_dir(&directory).expect("a group");
        DmemGroup {
            directory,
            region: region(),
        }
    }

    /// The tree as a group, which has what is in it.
    pub fn whole(&self) -> DmemGroup {
        DmemGroup {
            directory: self.0.clone(),
            region: region(),
        }
    }
}

impl Default for DmemTree {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for DmemTree {
    fn drop(&mut self) {
        let _ = fs::write(Path::new(ROOT).join("cgroup.procs"), "0");
        for group in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(group.path());
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The name of the first GPU's VRAM.
fn region() -> String {
    format!("drm/{}/vram0", Function::first().address)
}

/// What a file of a group says of a region, if it knows that.
fn value(file: &Path, region: &str) -> Option<u64> {
    let text = fs::read_to_string(file).expect("a file of dmem");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(region)?.strip_prefix(' '))?;
    Some(value.parse().unwrap_or(u64::MAX))
}

/// How much VRAM the first GPU has, as groups know it, if they do.
///
/// # Panics
///
/// If there are no such groups.
#[track_caller]
pub fn dmem_capacity() -> Option<u64> {
    value(&Path::new(ROOT).join("dmem.capacity"), &region())
}

impl DmemGroup {
    /// Moves this process there.
    ///
    /// # Panics
    ///
    /// If that cannot be.
    #[track_caller]
    pub fn enter(&self) {
        fs::write(self.directory.join("cgroup.procs"), "0").expect("cgroup.procs");
    }

    /// Sets `dmem.min`, `dmem.low` or `dmem.max`; waits for what that has leave.
    ///
    /// # Panics
    ///
    /// If that cannot be.
    #[track_caller]
    pub fn set(&self, limit: &str, bytes: u64) {
        assert_eq!(self.try_set(limit, bytes), Ok(()), "dmem.{limit}");
    }

    /// The same, that may fail.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn try_set(&self, limit: &str, bytes: u64) -> Result<(), Errno> {
        let file = self.directory.join(format!("dmem.{limit}"));
        let written = fs::write(file, format!("{} {bytes}", self.region));
        written.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    }

    /// Bytes that are charged for it and for those in it.
    ///
    /// # Panics
    ///
    /// If the kernel does not say.
    #[track_caller]
    pub fn current(&self) -> u64 {
        value(&self.directory.join("dmem.current"), &self.region).unwrap_or(0)
    }
}
