// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The vfio-user server: a Skua GPU on QEMU's PCI bus.
//!
//! It listens on a Unix socket, serves one connection, and ends with it.
//!
//! ```text
//! QEMU ──▶ socket ──▶ config space ── bus master ─┐
//!                 ├─▶ BAR0: registers ────────────┤
//!                 ├─▶ dma_map, dma_unmap ─────────┼─▶ Device ──▶ VRAM (memfd) ◀── BAR2, mapped by QEMU
//!                 └─▶ set_irqs ──▶ eventfds ◀─────┘
//! ```

mod config;
mod msix;
mod server;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, Context};
use clap::Parser;
use skua_gpu::device::Device;
use skua_gpu::options::Options;
use skua_gpu::vram::Vram;
use tracing_subscriber::filter::LevelFilter;

use crate::msix::Msix;
use crate::server::Server;

/// An emulated PCI GPU for QEMU's vfio-user-pci device.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Unix socket to listen on; it must not exist.
    #[arg(long)]
    socket: PathBuf,
    /// Bytes of VRAM, a multiple of 2 MiB; K, M and G are understood.
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    vram_size: u64,
    /// What to log to the standard error: off, error, warn, info, debug or trace (every command).
    #[arg(long, default_value = "warn")]
    log: LevelFilter,
}

/// A number of bytes with an optional K, M or G.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 20),
            None => match text.strip_suffix(['G', 'g']) {
                Some(digits) => (digits, 30),
                None => (text, 0),
            },
        },
    };
    let number: u64 = digits.parse().map_err(|e| format!("{e}"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_string())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        .with_writer(std::io::stderr)
        .init();

    let memory = rustix::fs::memfd_create("skua-vram", rustix::fs::MemfdFlags::CLOEXEC)
        .context("memory for VRAM")?;
    let memory = File::from(memory);
    memory
        .set_len(arguments.vram_size)
        .context("memory for VRAM")?;
    let vram = Vram::from_file(memory.try_clone()?, arguments.vram_size)
        .context("the size of VRAM")?;

    let interrupts = Arc::new(Msix::default());
    let device = Device::new(&Options::default(), Arc::new(vram), interrupts.clone())
        .context("starting the device")?;
    let server = Server::new(device, interrupts, memory);
    server
        .serve(&arguments.socket)
        .map_err(|e| anyhow!("{}: {e}", arguments.socket.display()))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("8K"), Ok(8192));
        assert!(parse_size("").is_err());
        assert!(parse_size("x").is_err());
        assert!(parse_size("99999999999G").is_err());
    }
}
