// SPDX-License-Identifier: MIT

//! `skua-bench`: prints and writes what submissions, waits and objects cost.
//!
//! It fails if a row could not be measured; a missed target is printed and is no failure.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use skua_bench::report::Report;
use skua_bench::rig::Rig;
use skua_bench::trace::Trace;
use skua_bench::{
    aperture, device, footprint, fragmentation, hang, record, residency, scenario, schedule,
    submit, tables, wait,
};

/// Counts what a submission, a wait and an object cost.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Also writes the rows here, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measures nothing, but has a device work that records what it does, by the device clock.
    #[arg(long)]
    work: bool,
    /// What such a device has recorded.
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("skua-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures; returns whether all rows were filled. What was measured before an error is told, too.
fn run(options: &Options) -> Result<bool> {
    if options.work {
        record::work()?;
        return Ok(true);
    }
    let mut report = Report::default();
    let measured = measure(options, &mut report);
    print!("{report}");
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    let (missed, missing) = (report.missed(), report.missing());
    if !missed.is_empty() {
        println!("targets missed: {}", missed.join(", "));
    }
    for name in &missing {
        eprintln!("skua-bench: {name} could not be measured");
    }
    measured?;
    Ok(missing.is_empty())
}

/// Fills the rows of `report`, until one cannot be measured.
fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let mut rig = Rig::new()?;
    machine(&rig, report);
    {
        let trace = Trace::new()?;
        submit::measure(&mut rig, &trace, report).context("submission")?;
        wait::measure(&mut rig, &trace, report).context("waiting")?;
    }
    let rest = |rig: &Rig| rig.companion.away(|| rig.counters.rest());
    rest(&rig)?;
    tables::measure(&rig, report).context("page tables")?;
    residency::measure(&mut rig, report).context("residency")?;
    let share = options.json.as_deref().and_then(Path::parent);
    rest(&rig)?;
    aperture::measure(&rig, share, report).context("the aperture")?;
    fragmentation::measure(report).context("fragmentation")?;
    rest(&rig)?;
    footprint::measure(&mut rig, report).context("memory")?;
    rest(&rig)?;
    schedule::measure(&rig, report).context("scheduling")?;
    scenario::measure(&rig, report).context("scenarios")?;
    device::measure(report).context("the device")?;
    hang::measure(&rig, report).context("a hang")?;
    match &options.record {
        Some(path) => record::measure(path, report).context("the record"),
        None => record::unmeasured(report),
    }
}

/// What the numbers are of.
fn machine(rig: &Rig, report: &mut Report) {
    for (key, path) in [
        ("kernel", "/proc/sys/kernel/osrelease"),
        (
            "clock",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    ] {
        if let Ok(text) = fs::read_to_string(path) {
            report.machine(key, text.trim());
        }
    }
    report.machine("clock_counts_instructions", rig.clock.counts_instructions());
    report.machine("clock_overhead", rig.clock.overhead());
    report.machine("clock_loop", serde_json::json!(rig.clock.spin()));
    let (major, minor) = rig.device.info().version;
    report.machine("device", format!("{major}.{minor}"));
}
