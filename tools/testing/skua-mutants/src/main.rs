// SPDX-License-Identifier: MIT

//! `skua-mutants`: runs inside the sandbox, in the root of a tree that is built.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use skua_mutants::{host_run, table_run};

/// Breaks a rule at a time, and sees whether its test fails.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The changes of mutants.toml, against the tests that they name.
    Table {
        /// Only mutants whose name contains this.
        #[arg(long, default_value = "")]
        pattern: String,
        /// The kernel whose guests are booted.
        #[arg(long, default_value = "release")]
        kernel: String,
        /// How many times longer than usual everything may take, for a slow kernel.
        #[arg(long, default_value_t = 1)]
        patience: u32,
        /// More options of `skua-vm test`: the user's kernel and QEMU.
        #[arg(last = true)]
        guests: Vec<String>,
    },
    /// What cargo-mutants changes in the crates that the host tests.
    Host {
        /// Only mutations whose name matches this.
        #[arg(long, default_value = "")]
        pattern: String,
    },
}

fn main() -> ExitCode {
    let all_well = match Cli::parse().command {
        Command::Table {
            pattern,
            kernel,
            patience,
            guests,
        } => table_run::run(&table_run::Options {
            pattern,
            kernel,
            patience,
            guests,
        }),
        Command::Host { pattern } => host_run::run(&pattern),
    };
    match all_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("skua-mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}
