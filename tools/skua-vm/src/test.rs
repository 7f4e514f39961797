// SPDX-License-Identifier: MIT

//! `skua-vm test`: the host's tests, then a boot for each guest of the [plan](crate::plan).
//!
//! A guest that dies or falls silent fails the program that was running; another boot of the
//! same guest takes the programs that it had not come to.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use skua_guest::job::{Job, Task};

use crate::guest::{boot, Watch};
use crate::machine::{claim, Config};
use crate::plan::{self, Guest};
use crate::report::{Outcome, Report, Suite, Test};
use crate::Parts;

/// How long each fuzz target runs, in seconds: enough to meet its corpus again.
const FUZZ: u32 = 5;

/// Options of `skua-vm test`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    parts: Parts,
    /// Only tests whose `suite/name` contains this.
    #[arg(long)]
    pattern: Option<String>,
    /// Where report.tap, report.json and each guest's logs go.
    #[arg(long, default_value = "out/test")]
    report: PathBuf,
    /// Leave out the host's tests.
    #[arg(long)]
    no_host: bool,
}

/// Runs the tests; returns whether all is well.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let _claim = claim(&options.report)?;
    let pattern = options.pattern.as_deref().filter(|text| !text.is_empty());
    let mut report = Report::new(&options.report, pattern)?;
    if !options.no_host {
        crate::cargo_tests::run(&mut report)?;
        crate::fuzz::run(&mut report, FUZZ)?;
    }
    let mut kunit = true;
    for guest in plan::read(&options.parts.products.join("kselftest"))? {
        run(options, &guest, pattern, kunit, &mut report)?;
        kunit = false;
    }
    report.finish()
}

/// Shows the running program in the progress line.
struct Progress<'a> {
    report: &'a mut Report,
    guest: &'a str,
}

impl Watch for Progress<'_> {
    fn running(&mut self, name: &str) {
        self.report.progress(&format!("{}: {name}", self.guest));
    }
}

/// All programs of a guest, in as many boots as it takes.
fn run(
    options: &Options,
    guest: &Guest,
    pattern: Option<&str>,
    mut kunit: bool,
    report: &mut Report,
) -> Result<()> {
    // A pattern that is in a program's own name wants all of it; one that is in none may be in
    // the names of tests that only the programs know.
    let named: Vec<String> = guest
        .programs
        .iter()
        .filter(|entry| report.wants(&format!("kselftest/{entry}")))
        .cloned()
        .collect();
    let (mut left, filter) = if named.is_empty() {
        (guest.programs.clone(), pattern)
    } else {
        (named, None)
    };
    let begin = Instant::now();
    let mut broken = Vec::new();
    let mut number = 0;
    while !left.is_empty() {
        number += 1;
        let output = options.report.join(if number == 1 {
            guest.name.clone()
        } else {
            format!("{}-{number}", guest.name)
        });
        std::fs::create_dir_all(&output)?;
        report.progress(&format!("booting guest {}", guest.name));
        let config = Config {
            gpu: guest.gpu.clone(),
            cmdline: guest.cmdline.clone(),
            iommu: guest.iommu,
            icount: false,
            interactive: false,
            output,
        };
        let job = Job {
            module: Some(guest.module.clone()),
            task: Task::Tests {
                programs: left.clone(),
                filter: filter.map(str::to_owned),
                kunit,
            },
            patience: options.parts.patience,
        };
        let watch = &mut Progress {
            report,
            guest: &guest.name,
        };
        let end = match boot(&options.parts, &config, &job, watch) {
            Ok(end) => end,
            Err(error) => {
                broken.push(format!("{error:#}"));
                break;
            }
        };
        kunit = false;
        for test in end.tests {
            report.add(test);
        }
        broken.extend(end.broken);
        left.retain(|entry| !end.begun.contains(entry));
        if end.exit.is_some() || end.begun.is_empty() {
            break;
        }
    }
    let unrun: Vec<Test> = left
        .iter()
        .map(|entry| Test::new(Suite::Kselftest, entry, Outcome::Fail, Duration::ZERO))
        .map(|test| test.with_output("did not run: see its guest".into()))
        .collect();
    for test in unrun {
        report.add(test);
    }
    let result = if broken.is_empty() {
        Outcome::Pass
    } else {
        Outcome::Fail
    };
    let test = Test::new(Suite::Guest, &guest.name, result, begin.elapsed());
    report.add(test.with_output(broken.join("\n")));
    Ok(())
}
