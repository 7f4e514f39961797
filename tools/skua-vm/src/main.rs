// SPDX-License-Identifier: MIT

//! `skua-vm`: boots guests with a Skua GPU and reports what they did.
//!
//! It runs inside the sysroot (`scripts/sandbox`), where QEMU, the GPU server and cargo are. A
//! guest is the stock kernel under QEMU's TCG with the sysroot as its root file system, read-only
//! over 9p; a second share has the build products, a third takes what the guest leaves.
//!
//! - [`machine`] starts the GPU server and QEMU;
//! - [`guest`] follows one boot: KTAP, [`splat`]s of the kernel with their [`symbols`], requests,
//!   silence; [`gdb`] lets a debugger in;
//! - [`plan`] says which tests share a guest and what it is like;
//! - [`cargo_tests`] runs the host's tests, [`fuzz`] its fuzz targets, [`report`] writes what came
//!   of all of them;
//! - [`trace`] shows what driver and device did in one run.

#![forbid(unsafe_code)]

mod bench;
mod cargo_tests;
mod fuzz;
mod gdb;
mod guest;
mod machine;
mod plan;
mod report;
mod run;
mod shell;
mod splat;
mod symbols;
mod test;
mod trace;
mod turns;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

/// Boots guests with a Skua GPU.
#[derive(Parser)]
#[command(name = "skua-vm", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the host's and the guest's tests.
    Test(test::Options),
    /// Process an image on the GPU.
    Run(run::Options),
    /// Run one program and show what driver and device did.
    Trace(trace::Options),
    /// An interactive guest.
    Shell(shell::Options),
    /// Run the fuzz targets.
    Fuzz(fuzz::Options),
    /// Measure, with guest instructions as the unit of time.
    Bench(bench::Options),
}

/// What every guest is made from.
#[derive(Args, Clone, Debug)]
pub(crate) struct Parts {
    /// The QEMU to run.
    #[arg(long, default_value = "/usr/bin/qemu-system-x86_64")]
    pub(crate) qemu: PathBuf,
    /// The GPU server to run.
    #[arg(long, default_value = "out/cargo/debug/skua-gpu")]
    pub(crate) gpu: PathBuf,
    /// The kernel to boot: a bzImage.
    #[arg(long, default_value = "/srv/build/arch/x86/boot/bzImage")]
    pub(crate) kernel: PathBuf,
    /// The guest's root file system, read-only.
    #[arg(long, default_value = "/srv/sysroot")]
    pub(crate) root: PathBuf,
    /// The build products: bin/, skua.ko, kselftest/.
    #[arg(long, default_value = "out/guest/release")]
    pub(crate) products: PathBuf,
    /// How many times longer than usual everything may take, for a slow kernel.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) patience: u32,
    /// tcg, or auto: KVM where the CPU has it and a probe boot works.
    #[arg(long, default_value = "tcg")]
    pub(crate) accel: machine::Accel,
    /// Let a debugger in: on, or wait for it.
    #[arg(long)]
    pub(crate) gdb: Option<gdb::Gdb>,
}

/// Parts that a build meanwhile does not change: files of their own, until dropped.
pub(crate) struct Pinned {
    /// As they were, but for the products and the GPU server: these are in `_own`.
    parts: Parts,
    /// Removed when this is dropped.
    _own: machine::Own,
}

impl std::ops::Deref for Pinned {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Parts {
    /// Gives what a build replaces, the products and the GPU server, names of this run's own.
    ///
    /// # Errors
    ///
    /// If one is missing, or cannot be linked below `out`.
    pub(crate) fn pin(&self) -> Result<Pinned> {
        self.pin_below(Path::new("out"))
    }

    fn pin_below(&self, out: &Path) -> Result<Pinned> {
        let own = machine::Own::new(out)?;
        let (products, gpu) = (own.path().join("products"), own.path().join("skua-gpu"));
        std::fs::create_dir(&products)?;
        machine::link(&self.products, &products)?;
        std::fs::hard_link(&self.gpu, &gpu).with_context(|| self.gpu.display().to_string())?;
        let parts = Self {
            products: products.canonicalize()?,
            gpu: gpu.canonicalize()?,
            ..self.clone()
        };
        Ok(Pinned { parts, _own: own })
    }

    /// The kernel's build tree, if it was built in one.
    pub(crate) fn build(&self) -> Option<PathBuf> {
        Some(self.kernel.ancestors().nth(4)?.to_owned())
    }

    /// Where a debugger finds the module's symbols, if one is let in.
    pub(crate) fn symbols(&self) -> Option<PathBuf> {
        self.gdb.map(|_| self.products.join("skua.ko"))
    }

    #[cfg(test)]
    fn of_test() -> Self {
        #[derive(Parser)]
        struct Only {
            #[command(flatten)]
            parts: Parts,
        }
        Only::parse_from(["test", "--kernel", "/nowhere/arch/x86/boot/bzImage"]).parts
    }
}

fn main() -> ExitCode {
    let result: Result<bool> = match Cli::parse().command {
        Command::Test(options) => test::main(&options),
        Command::Run(options) => run::main(&options),
        Command::Trace(options) => trace::main(&options),
        Command::Shell(options) => shell::main(&options),
        Command::Fuzz(options) => fuzz::main(&options),
        Command::Bench(options) => bench::main(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("skua-vm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_build_does_not_change_what_a_run_uses() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut parts = Parts::of_test();
        (parts.gpu, parts.products) = (dir.path().join("gpu"), dir.path().join("products"));
        assert!(parts.pin_below(dir.path()).is_err());
        let build = |words: &str| {
            for file in [parts.gpu.clone(), parts.products.join("skua.ko")] {
                // As linkers do: a new file under the old name.
                drop(std::fs::remove_file(&file));
                std::fs::write(file, words).expect("written");
            }
        };
        std::fs::create_dir(&parts.products).expect("a directory");
        build("old");
        let pinned = parts.pin_below(dir.path()).expect("pinned");
        build("new");
        for file in [pinned.gpu.clone(), pinned.products.join("skua.ko")] {
            assert_eq!(std::fs::read(file).expect("there"), b"old");
        }
        let left = pinned.gpu.clone();
        drop(pinned);
        assert!(!left.exists());
    }

    #[test]
    fn options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
