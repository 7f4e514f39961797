// SPDX-License-Identifier: MIT

//! Runs the fuzz targets, libFuzzer programs in `out/fuzz/bin` (`scripts/build fuzz`). What found
//! something new stays in `out/fuzz/corpus`, what broke something is in `out/fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use skua_guest::ktap::Verdict;
use skua_guest::process;

use crate::machine::{link, Own};
use crate::report::{Report, Suite, Test};

/// Where programs, corpora and logs are.
const DIR: &str = "out/fuzz";

/// Options of `skua-vm fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// How long each target runs.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Only targets whose `cargo/fuzz::name` contains this.
    #[arg(long)]
    pattern: Option<String>,
    /// Where report.tap and report.json go.
    #[arg(long, default_value = "out/fuzz/report")]
    report: PathBuf,
}

/// The programs, under names of this run's own: a build meanwhile does not change them.
///
/// # Errors
///
/// If they are not built.
pub(crate) fn pin() -> Result<Own> {
    let own = Own::new(Path::new("out"))?;
    link(&Path::new(DIR).join("bin"), own.path())?;
    Ok(own)
}

/// Runs them; returns whether none broke.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let programs = pin()?;
    let mut report = Report::new(&options.report, options.pattern.as_deref())?;
    run(&mut report, programs.path(), options.seconds)?;
    report.finish(false)
}

/// Runs every wanted one of these programs for so many seconds.
///
/// # Errors
///
/// If a program cannot be run.
pub(crate) fn run(report: &mut Report, programs: &Path, seconds: u32) -> Result<()> {
    let dir = Path::new(DIR);
    let mut names: Vec<String> = fs::read_dir(programs)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    for name in names {
        let full = format!("fuzz::{name}");
        if !report.wants(&format!("cargo/{full}")) {
            continue;
        }
        report.progress(&format!("fuzzing {name} for {seconds} seconds"));
        let corpus = dir.join("corpus").join(&name);
        fs::create_dir_all(&corpus)?;
        let begin = Instant::now();
        let mut command = Command::new(programs.join(&name));
        command
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={DIR}/{name}-"))
            .arg(&corpus);
        let mut words = String::new();
        let end = process::run(command, None, |line| {
            words.push_str(line);
            words.push('\n');
        })
        .with_context(|| full.clone())?;
        fs::write(dir.join(format!("{name}.log")), &words)?;
        let outcome = if end.is_success() && is_guided(&words) {
            Verdict::Pass
        } else {
            Verdict::Fail
        };
        let lines: Vec<&str> = words.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        let test = Test::new(Suite::Cargo, &full, outcome, begin.elapsed());
        report.add(test.with_output(tail))?;
    }
    Ok(())
}

/// Whether the target saw its own coverage: without it, it would only throw dice.
fn is_guided(log: &str) -> bool {
    log.contains("inline 8-bit counters") && log.contains("stat::number_of_executed_units")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_are_not_enough() {
        let stat = "stat::number_of_executed_units: 9";
        assert!(!is_guided(stat));
        assert!(is_guided(&format!(
            "INFO: Loaded 1 modules   (160 inline 8-bit counters)\n{stat}"
        )));
    }
}
