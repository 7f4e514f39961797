// SPDX-License-Identifier: MIT

//! `skua-conformance`: prints what in the conformance table does not agree with a test report,
//! and one closing line. Exit status 0 only if everything agrees.

#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use clap::Parser;
use skua_conformance::{mutants, report, table, verdict};

/// Checks the conformance table against a test report.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The table.
    #[arg(long, default_value = "Documentation/gpu/skua/conformance.rst")]
    table: PathBuf,
    /// The report of `make test`.
    #[arg(long, default_value = "out/test/report.json")]
    report: PathBuf,
    /// The changes that break the rows.
    #[arg(long, default_value = "mutants.toml")]
    mutants: PathBuf,
    /// What the table's paths start from.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let read =
        |path: &PathBuf| fs::read_to_string(path).with_context(|| path.display().to_string());
    let rows = match table::parse(&read(&options.table)?) {
        Ok(rows) => rows,
        Err(wrong) => bail!("{}: {}", options.table.display(), wrong.join("\n")),
    };
    let tests = report::parse(&read(&options.report).context("run `make test` first")?)
        .with_context(|| options.report.display().to_string())?;
    let mut verdict = verdict::judge(&rows, &options.root, &tests);
    match mutants::check(&rows, &read(&options.mutants)?) {
        Ok(wrong) => verdict.disagreements.extend(wrong),
        Err(wrong) => bail!("{}: {wrong}", options.mutants.display()),
    }
    for words in &verdict.disagreements {
        println!("{words}");
    }
    println!("{}", verdict.summary());
    Ok(if verdict.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
