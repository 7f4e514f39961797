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

use anyhow::{ensure, Context, Result};
use clap::Parser;
use skua_gpu::gart;
use skua_gpu::lie::Lie;
use skua_gpu::options::{Preemption, VISIBLE_UNIT, VRAM_ALIGN, VRAM_MAX};
use skua_gpu::vram::{Aperture, Layout};
use skua_spec::aperture::{PageSize, MAX_PAGES};
use skua_spec::command::EngineKind;
use skua_spec::preemption::Level;
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
    /// Bytes of VRAM, from its start, that BAR2 shows: a power of two, at least 1M, or 0 for no
    /// BAR2. All of it without this.
    #[arg(long, value_parser = parse_visible)]
    vram_visible: Option<u64>,
    /// Size of the CPU host aperture, BAR4: a power of two, at most that of VRAM and 65536 pages,
    /// or 0 for none.
    #[arg(long, default_value = "0", value_parser = parse_bytes)]
    aperture: u64,
    /// Size of the aperture's pages: 4K or 64K.
    #[arg(long, default_value = "4K", value_parser = parse_page)]
    aperture_page: PageSize,
    /// Let the CPU have the aperture cached (WDDM: SupportsCachedCpuHostAperture); only where BAR2
    /// shows nothing.
    #[arg(long)]
    cached_aperture: bool,
    /// Size of the address space in which the driver moves memory, in MiB; 0 leaves it to the
    /// driver.
    #[arg(long, default_value_t = 0, value_name = "MB")]
    paging_va: u32,
    /// Pages of the GART, at most 65536.
    #[arg(
        long,
        default_value_t = gart::MAX_PAGES,
        value_parser = clap::value_parser!(u32).range(..=i64::from(gart::MAX_PAGES))
    )]
    gart_pages: u32,
    /// Where commands that draw can be preempted: none, dma-buffer, primitive, triangle, pixel or
    /// instruction; or a list of these, one for each engine. A copy engine draws nothing.
    #[arg(
        long,
        default_value = "instruction",
        value_name = "LEVEL[,...]",
        value_delimiter = ',',
        value_parser = parse_graphics
    )]
    preempt_graphics: Vec<Level>,
    /// Where all others can be preempted: none, dma-buffer, dispatch, thread-group, thread or
    /// instruction; or a list of these, one for each engine.
    #[arg(
        long,
        default_value = "instruction",
        value_name = "LEVEL[,...]",
        value_delimiter = ',',
        value_parser = parse_compute
    )]
    preempt_compute: Vec<Level>,
    /// Save the largest state at each preemption, and not what lives alone.
    #[arg(long)]
    save_full: bool,
    /// Have one thread do the work of all engines, by the device clock: what they do side by side
    /// does not depend on the host.
    #[arg(long)]
    deterministic: bool,
    /// How fast an engine is at most, in percent of TICK_HZ; without this, as fast as the host.
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    speed: Option<u32>,
    /// Trap and count every access of BAR2 and BAR4, instead of having QEMU map them.
    #[arg(long)]
    strict: bool,
    /// The engines, in order: compute or copy. A driver may keep one of several copy engines to
    /// itself.
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
    /// Record what the engines do, for skua-trace: Documentation/gpu/skua/trace.rst.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Size beyond which that record does not grow: bytes, or with K, M or G.
    #[arg(long, default_value = "256M", value_parser = parse_bytes, value_name = "BYTES")]
    events_max: u64,
    /// Tell a lie, to test a driver: Documentation/gpu/skua/lies.rst. May be given again.
    #[arg(long, value_name = "NAME[=VALUE]")]
    lie: Vec<Lie>,
    /// Unix socket on which other lies can be asked for.
    #[arg(long)]
    control: Option<PathBuf>,
}

impl Cli {
    /// How each engine is preempted.
    fn preemption(&self) -> Result<Vec<Preemption>> {
        let count = self.engines.len();
        for levels in [&self.preempt_graphics, &self.preempt_compute] {
            ensure!(
                [1, count].contains(&levels.len()),
                "{} levels of preemption for {count} engines",
                levels.len()
            );
        }
        let graphics = self.preempt_graphics.iter().cycle();
        let levels = graphics.zip(self.preempt_compute.iter().cycle());
        let preemption = |(graphics, compute): (&Level, &Level)| Preemption {
            graphics: *graphics,
            compute: *compute,
            full: self.save_full,
        };
        Ok(levels.take(count).map(preemption).collect())
    }

    /// What VRAM and the CPU's ways to it are to be.
    fn layout(&self) -> Result<Layout> {
        let size = self.aperture_page;
        let pages = self.aperture / size.bytes();
        let aperture = match self.aperture {
            0 => None,
            bytes => {
                ensure!(
                    bytes.is_power_of_two()
                        && (1..=u64::from(MAX_PAGES)).contains(&pages)
                        && bytes <= self.vram_size,
                    "the aperture is a power of two, at most as large as VRAM, of at most \
                     {MAX_PAGES} pages"
                );
                // CAST: at most MAX_PAGES.
                let pages = pages as u32;
                let cached = self.cached_aperture;
                Some(Aperture {
                    pages,
                    size,
                    cached,
                })
            }
        };
        let visible = self.vram_visible.unwrap_or(self.vram_size);
        ensure!(visible <= self.vram_size, "more is visible than there is");
        ensure!(
            !self.cached_aperture || (aperture.is_some() && visible == 0),
            "a cached aperture is the only way to VRAM: --aperture, and --vram-visible 0"
        );
        Ok(Layout {
            bytes: self.vram_size,
            visible,
            aperture,
            trapped: self.strict,
        })
    }
}

/// Parses a number of bytes.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a size".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too much".to_owned())
}

/// Parses a size of VRAM.
fn parse_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    // A BAR's size is a power of two.
    if bytes.is_power_of_two() && (VRAM_ALIGN..=VRAM_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("a power of two from 2M to 1024G".to_owned())
    }
}

/// Parses a size of BAR2.
fn parse_visible(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Ok(0),
        bytes if bytes.is_power_of_two() && bytes >= VISIBLE_UNIT => Ok(bytes),
        _ => Err("0, or a power of two from 1M".to_owned()),
    }
}

/// Parses a size of the aperture's pages.
fn parse_page(text: &str) -> Result<PageSize, String> {
    match text {
        "4K" => Ok(PageSize::Size4K),
        "64K" => Ok(PageSize::Size64K),
        _ => Err("4K or 64K".to_owned()),
    }
}

/// Parses a level of preemption by its name for graphics.
fn parse_graphics(text: &str) -> Result<Level, String> {
    let level = Level::ALL.into_iter().find(|(_, _, name)| *name == text);
    level
        .map(|(level, ..)| level)
        .ok_or_else(|| "no level of graphics".to_owned())
}

/// Parses a level of preemption by its name for compute.
fn parse_compute(text: &str) -> Result<Level, String> {
    let level = Level::ALL.into_iter().find(|(_, name, _)| *name == text);
    level
        .map(|(level, ..)| level)
        .ok_or_else(|| "no level of compute".to_owned())
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
        targets = targets.with_target("skua_gpu::command", tracing::Level::TRACE);
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
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("2097152"), Ok(2 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        for bad in ["", "M", "3M", "1M", "-2M", "2048G", "99999999999G", "2Mi"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_visible("0"), Ok(0));
        assert_eq!(parse_visible("1M"), Ok(1 << 20));
        assert_eq!(parse_graphics("triangle"), Ok(Level::ThreadGroup));
        assert_eq!(parse_compute("thread-group"), Ok(Level::ThreadGroup));
        assert!(parse_graphics("thread-group").is_err() && parse_compute("triangle").is_err());
        for bad in ["512K", "3M", "", "99999999999G"] {
            assert!(parse_visible(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn levels_by_engine() {
        let of = |arguments: &[&str]| {
            let always = ["skua-gpu", "--socket", "s", "--engines", "compute,copy"];
            Cli::parse_from(always.iter().chain(arguments)).preemption()
        };
        let levels = |arguments: &[&str]| -> Vec<_> {
            let preemption = of(arguments).expect("as many as engines");
            preemption
                .iter()
                .map(|it| (it.graphics, it.compute))
                .collect()
        };
        use Level::{Dispatch, Instruction, None, Thread};
        assert_eq!(levels(&[]), [(Instruction, Instruction); 2]);
        assert_eq!(
            levels(&[
                "--preempt-graphics=none",
                "--preempt-compute=dispatch,thread"
            ]),
            [(None, Dispatch), (None, Thread)]
        );
        assert!(of(&["--preempt-compute", "none,none,none"]).is_err());
    }

    #[test]
    fn layouts() {
        let layout = |options: &str| {
            let words = ["skua-gpu", "--socket", "s"].into_iter();
            let cli = Cli::try_parse_from(words.chain(options.split_whitespace())).unwrap();
            cli.layout()
        };
        assert_eq!(layout("").unwrap(), Layout::whole(64 << 20));
        let small = layout("--vram-visible 0 --aperture 1M --aperture-page 64K --strict").unwrap();
        let aperture = Aperture {
            pages: 16,
            size: PageSize::Size64K,
            cached: false,
        };
        assert_eq!(
            (small.visible, small.aperture, small.trapped),
            (0, Some(aperture), true)
        );
        assert!(small.is_valid() && !small.has_slots());
        let cached = layout("--vram-visible 0 --aperture 1M --cached-aperture").unwrap();
        assert!(cached.is_valid() && cached.aperture.unwrap().cached);
        assert!(layout("--vram-size 1G --aperture 256M").unwrap().is_valid());
        for bad in [
            "--vram-visible 128M",
            "--aperture 128M",
            "--aperture 3M",
            "--aperture 32K --aperture-page 64K",
            "--vram-size 1G --aperture 512M",
            "--vram-visible 0 --cached-aperture",
            "--vram-visible 1M --aperture 1M --cached-aperture",
        ] {
            assert!(layout(bad).is_err(), "{bad}");
        }
    }
}
