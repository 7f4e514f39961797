// SPDX-License-Identifier: MIT

//! A memory control group of one test: what is allocated for it, by itself and by the kernel.

use std::fs;
use std::path::{Path, PathBuf};

use crate::skip;

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
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // What is charged to it keeps it from going for good, not from being removed.
        let _ = fs::write(Path::new(ROOT).join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}
