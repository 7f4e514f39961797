// SPDX-License-Identifier: MIT

//! A copy of the tree, in which one file at a time is changed, and commands that run in it.
//!
//! What is built names the tree by its place in the sandbox, `/mnt`. So a command sees the copy
//! there, in a mount namespace of its own, and builds into the `out` of the copy; the copy of what
//! is built already makes the first build a short one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use skua_guest::process::{self, Time};

/// Where everything of this program is.
pub const DIR: &str = "out/mutants";

/// Of the tree, what a copy has not.
pub const WITHOUT: [&str; 4] = ["out", "target", ".git", "rust-project.json"];

/// Of what was built, what a copy begins with.
const BUILT: [&str; 2] = ["cargo", "module"];

/// Where it is said which kernels there are.
const KERNELS: &str = "out/kernel";

/// Mounts the copy, `$0`, in the place of the tree.
const ENTER: &str = "busybox mount --bind \"$0\" /mnt && cd /mnt && exec \"$@\"";

/// Claims all copies for this run: two would change each other's.
///
/// # Errors
///
/// If another run has them.
pub fn claim() -> Result<Flock<File>> {
    fs::create_dir_all(DIR)?;
    let lock = File::create(Path::new(DIR).join(".lock"))?;
    Flock::lock(lock, FlockArg::LockExclusiveNonblock)
        .map_err(|_| anyhow!("another run is at work in {DIR}"))
}

/// A copy of the checkout, to be changed.
#[derive(Debug)]
pub struct Scratch {
    /// Stays between runs: builds in it are warm.
    root: PathBuf,
}

impl Scratch {
    /// Makes the copy of that number, or brings the one that is there to the tree's state.
    ///
    /// # Errors
    ///
    /// If it cannot be copied.
    pub fn new(number: usize) -> Result<Self> {
        let place = std::env::current_dir()?
            .join(DIR)
            .join(format!("tree-{number}"));
        let first = !place.exists();
        let root = match first {
            true => place.with_extension("new"),
            false => place.clone(),
        };
        // One that was interrupted.
        if first && root.exists() {
            fs::remove_dir_all(&root)?;
        }
        fs::create_dir_all(&root)?;
        let mut copy = Command::new("rsync");
        copy.args(["-rlp", "--delete", "--checksum"]);
        // A file that is put back is newer than what was built of it. In the first copy nothing is.
        if first {
            copy.arg("--times");
        }
        for name in WITHOUT {
            copy.arg(format!("--exclude=/{name}"));
        }
        let copied = copy.arg("./").arg(&root).status().context("rsync")?;
        if !copied.success() {
            bail!("rsync: {copied}");
        }
        if first {
            fs::create_dir_all(root.join(KERNELS))?;
            for name in BUILT {
                let from = Path::new("out").join(name);
                if from.exists() {
                    let copied = Command::new("cp")
                        .args(["-a", "--reflink=auto"])
                        .args([&from, &root.join(&from)])
                        .status()?;
                    if !copied.success() {
                        bail!("cp {name}: {copied}");
                    }
                }
            }
        }
        for entry in fs::read_dir(KERNELS).context(KERNELS)? {
            let entry = entry?;
            // Not the tree of a kernel that was built there.
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), root.join(entry.path()))?;
            }
        }
        if first {
            fs::rename(&root, &place)?;
        }
        Ok(Self { root: place })
    }

    /// Where the copy's files are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Runs a command in it, for at most so many seconds, with its output in a file. Whether it
    /// succeeded.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn run(&self, words: &[&str], seconds: u32, log: &Path) -> io::Result<bool> {
        let mut log = File::create(log)?;
        let mut command = Command::new("env");
        self.enter(&mut command).args(words);
        let limit = (Duration::from_secs(seconds.into()), Time::OfProcess);
        let mut said = Ok(());
        let end = process::run(command, Some(limit), |line| {
            if said.is_ok() {
                said = writeln!(log, "{line}");
            }
        })?;
        said.map(|()| end.is_success())
    }

    /// Has `before`, which runs what follows it, run what follows there in the copy.
    pub fn enter<'a>(&self, before: &'a mut Command) -> &'a mut Command {
        before
            .args(["unshare", "--map-root-user", "--mount", "sh", "-c", ENTER])
            .arg(&self.root)
    }

    /// Changes a file until the result is dropped.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written.
    pub fn change(&self, file: &str, text: &str) -> io::Result<Changed> {
        let path = self.root.join(file);
        let before = fs::read(&path)?;
        fs::write(&path, text)?;
        Ok(Changed { path, before })
    }
}

/// A changed file, put back when dropped; where that fails the next copy does it.
#[derive(Debug)]
pub struct Changed {
    path: PathBuf,
    before: Vec<u8>,
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.before) {
            eprintln!("skua-mutants: {}: {error}", self.path.display());
        }
    }
}
