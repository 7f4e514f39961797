// SPDX-License-Identifier: MIT

//! A root in memory, for a guest that sleeps: its root and its shares come over 9p, which does not
//! survive that. What its tests need is copied, and everything else is out of reach.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::mount::{mount, MsFlags};
use skua_guest::job::{FILE, OUTPUT, PRODUCTS};

/// The argument of a first process that is in memory.
pub(crate) const ARGUMENT: &str = "in-memory";

/// Where it is made.
const ROOT: &str = "/run/root";

/// What runs every program; it is mapped under another name.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Makes the root for these entries of the list of tests, and begins anew there; returns only if
/// that cannot be.
///
/// # Errors
///
/// If something cannot be copied.
pub(crate) fn enter(programs: &[String]) -> Result<()> {
    fs::create_dir_all(ROOT)?;
    mount(
        Some("root"),
        ROOT,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    let init = fs::read_link("/proc/self/exe")?;
    let products = Path::new(PRODUCTS);
    let mut files = vec![
        LOADER.into(),
        products.join("skua.ko"),
        Path::new(OUTPUT).join(FILE),
    ];
    // This program, and its libraries, which are those of all.
    files.extend(mapped()?);
    for (collection, program) in programs.iter().filter_map(|entry| entry.split_once(':')) {
        let dir = products.join("kselftest").join(collection);
        files.extend([dir.join(program), dir.join("settings")]);
    }
    for file in files {
        let copy = Path::new(ROOT).join(file.strip_prefix("/")?);
        fs::create_dir_all(copy.parent().context("a file in no directory")?)?;
        fs::copy(&file, copy).with_context(|| file.display().to_string())?;
    }
    nix::unistd::chroot(ROOT)?;
    nix::unistd::chdir("/")?;
    Err(Command::new(init).arg(ARGUMENT).exec()).context("the root in memory")
}

/// The files that this process has mapped.
fn mapped() -> Result<Vec<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| line[at..].into()));
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}
