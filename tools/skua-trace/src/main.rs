// SPDX-License-Identifier: MIT

//! `skua-trace`: makes of the driver's tracepoints and the device's record of one run a trace for
//! Perfetto and a page.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use skua_trace::{device, guest, page, perfetto, Timeline};

/// Makes a trace for Perfetto and a page of what a run has left.
#[derive(Parser)]
#[command(name = "skua-trace", version)]
struct Options {
    /// A `trace` file of the guest's tracefs with the events of `skua`, its clock `mono`.
    #[arg(long)]
    guest: PathBuf,
    /// What `skua-gpu --events` has written.
    #[arg(long)]
    device: PathBuf,
    /// The trace to write, for <https://ui.perfetto.dev>.
    #[arg(long)]
    perfetto: PathBuf,
    /// Where to write the page: one HTML file.
    #[arg(long)]
    page: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("skua-trace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A record's text: a task's name may be any bytes.
fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn run(options: &Options) -> Result<()> {
    let record = device::parse(&read(&options.device)?);
    let record = record.with_context(|| options.device.display().to_string())?;
    let timeline = Timeline::new(&record, &guest::parse(&read(&options.guest)?));
    if timeline.lost != 0 {
        eprintln!("skua-trace: the guest lost {} events", timeline.lost);
    }
    if timeline.full {
        eprintln!("skua-trace: the device's record was full before the run was over");
    }
    for (path, bytes) in [
        (&options.perfetto, perfetto::encode(&timeline)),
        (&options.page, page::render(&timeline)?.into_bytes()),
    ] {
        fs::write(path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
