// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `skua-gpu`: the Skua GPU as a vfio-user server for QEMU.
//!
//! ```text
//! skua-gpu --socket /tmp/gpu &
//! qemu-system-x86_64 -machine q35,memory-backend=m \
//!     -object memory-backend-memfd,id=m,size=1G,share=on \
//!     -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/tmp/gpu"}}' …
//! ```
//!
//! It serves one connection and ends with it: the guest's GPU lives as long as the guest.

#![forbid(unsafe_code)]

mod config_space;
mod control;
mod guest_memory;
mod server;
mod vectors;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use skua_gpu::lie::Lie;
use skua_gpu::options::{VRAM_ALIGN, VRAM_MAX};
use skua_spec::command::EngineKind;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The Skua GPU as a vfio-user server.
#[derive(Parser)]
#[command(name = "skua-gpu", version)]
pub(crate) struct Cli {
    /// Unix socket to listen on.
    #[arg(long)]
    socket: PathBuf,
    /// Size of VRAM: bytes, or with K, M or G; a power of two, at least 2M.
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    vram_size: u64,
    /// The engines, in order: compute or copy. A driver may keep the second copy engine to itself.
    #[arg(
        long,
        default_value = "compute,copy,copy",
        value_delimiter = ',',
        value_parser = parse_engine
    )]
    engines: Vec<EngineKind>,
    /// What to log to stderr: a level, or target=level pairs separated by commas.
    #[arg(long, default_value = "warn")]
    log: Targets,
    /// Log every command that is executed.
    #[arg(long)]
    trace: bool,
    /// Tell a lie, to test a driver: Documentation/gpu/skua/lies.rst. May be given again.
    #[arg(long, value_name = "NAME[=VALUE]")]
    lie: Vec<Lie>,
    /// Unix socket on which other lies can be asked for.
    #[arg(long)]
    control: Option<PathBuf>,
}

/// Parses a size of VRAM.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a size".to_owned())?;
    number
        .checked_mul(1 << shift)
        // A BAR's size is a power of two.
        .filter(|bytes| bytes.is_power_of_two() && (VRAM_ALIGN..=VRAM_MAX).contains(bytes))
        .ok_or_else(|| "a power of two from 2M to 1024G".to_owned())
}

/// Parses a kind of engine.
fn parse_engine(text: &str) -> Result<EngineKind, String> {
    match text {
        "compute" => Ok(EngineKind::Compute),
        "copy" => Ok(EngineKind::Copy),
        _ => Err("compute or copy".to_owned()),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut targets = cli.log.clone();
    if cli.trace {
        targets = targets.with_target("skua_gpu::command", Level::TRACE);
    }
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .with(targets)
        .init();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("skua-gpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    server::serve(cli).with_context(|| format!("socket {}", cli.socket.display()))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("2097152"), Ok(2 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        for bad in ["", "M", "3M", "1M", "-2M", "2048G", "99999999999G", "2Mi"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
