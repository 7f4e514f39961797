// SPDX-License-Identifier: MIT

//! `skua-vm bench`: the measures, in a guest whose nanoseconds are instructions
//! (`-icount shift=0,sleep=off`: one CPU, one thread, repeatable).
//!
//! Before that another guest has a device with a clock work: what that has recorded is measured.

use std::fs;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use clap::Args;
use serde_json::Value;
use skua_guest::job::{Job, Task, OUTPUT};

use crate::guest::{boot, Words};
use crate::machine::{claim, Config};
use crate::{trace, Parts};

/// The guest's CPU is emulated, and ten times slower than one at least; so are the engines, or what
/// the driver takes would be too many of their ticks.
const SLOW: [&str; 2] = ["--speed", "10"];

/// Options of `skua-vm bench`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    parts: Parts,
    /// Where the results go.
    #[arg(long, default_value = "out/bench.json")]
    json: PathBuf,
    /// Where the logs go.
    #[arg(long, default_value = "out/bench")]
    output: PathBuf,
}

/// Measures; returns whether the benchmark was content.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let _claim = claim(&options.output)?;
    let parts = options.parts.pin()?;
    let clocked = ["--deterministic"]
        .into_iter()
        .chain(SLOW)
        .map(str::to_owned);
    let gpu = clocked.chain(trace::record(&options.output)?);
    // What another run has measured is none of this one's results.
    trace::remove(&options.output, &["bench.json"])?;
    let output = options.output.join("work");
    fs::create_dir_all(&output)?;
    let config = Config {
        gpu: gpu.collect(),
        output,
        ..Config::default()
    };
    let worked = run(&parts, &config, &["--work".to_owned()])?;
    let config = Config {
        // Small enough that what does not fit still is in the guest's memory.
        gpu: [
            "--vram-size",
            "64M",
            "--vram-visible",
            "0",
            "--aperture",
            "1M",
        ]
        .into_iter()
        .chain(SLOW)
        .map(str::to_owned)
        .collect(),
        icount: true,
        output: options.output.clone(),
        ..Config::default()
    };
    let record = format!("{OUTPUT}/{}", trace::RECORD);
    let json = format!("{OUTPUT}/bench.json");
    let arguments = ["--json".to_owned(), json, "--record".to_owned(), record];
    let measured = run(&parts, &config, &arguments)?;
    let results = options.output.join("bench.json");
    let text = fs::read(&results).context("skua-bench left no results")?;
    serde_json::from_slice::<Value>(&text).context("the results")?;
    fs::copy(&results, &options.json)?;
    println!("results: {}", options.json.display());
    Ok(worked && measured)
}

/// Runs the benchmark in a guest; whether both were content.
fn run(parts: &Parts, config: &Config, arguments: &[String]) -> Result<bool> {
    let program = ["skua-bench".to_owned()];
    let job = Job {
        module: Some(String::new()),
        task: Task::Command {
            argv: program.iter().chain(arguments).cloned().collect(),
        },
        patience: parts.patience,
        symbols: parts.symbols(),
        trace: false,
    };
    let end = boot(parts, config, &job, &mut Words)?;
    for complaint in &end.broken {
        eprintln!("skua-vm: {complaint}");
    }
    if end.exit.is_none() {
        bail!(
            "the guest did not finish: {}/console.log",
            config.output.display()
        );
    }
    Ok(end.exit == Some(0) && end.broken.is_empty())
}
