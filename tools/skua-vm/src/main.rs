// SPDX-License-Identifier: MIT

//! `skua-vm`: boots guests with a Skua GPU and reports what they did.
//!
//! It runs inside the sysroot (`scripts/sandbox`), where QEMU, the GPU server and cargo are. A
//! guest is the stock kernel under QEMU's TCG with the sysroot as its root file system, read-only
//! over 9p; a second share has the build products, a third takes what the guest leaves.
//!
//! - [`machine`] starts the GPU server and QEMU;
//! - [`guest`] follows one boot: KTAP, [`splat`]s of the kernel, requests, silence;
//! - [`plan`] says which tests share a guest and what it is like;
//! - [`cargo_tests`] runs the host's tests, [`fuzz`] its fuzz targets, [`report`] writes what came of all of them.

#![forbid(unsafe_code)]

mod bench;
mod cargo_tests;
mod fuzz;
mod guest;
mod machine;
mod plan;
mod report;
mod run;
mod shell;
mod splat;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
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
}

fn main() -> ExitCode {
    let result: Result<bool> = match Cli::parse().command {
        Command::Test(options) => test::main(&options),
        Command::Run(options) => run::main(&options),
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

    #[test]
    fn options_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}
