// SPDX-License-Identifier: MIT

//! `make mutants HOST=1`: `cargo-mutants` over the crates whose tests run on the host.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, Context, Result};
use skua_guest::ktap::{self, Writer};

use crate::known;
use crate::scratch::{claim, Scratch, WITHOUT};
use crate::table::{self, Survivor};

/// The version that is installed into the cache when it is first used.
const VERSION: &str = "27.0.0";

/// The crates with tests of their own on the host.
const PACKAGES: [&str; 6] = [
    "skua-spec",
    "skua-policy",
    "skua-gpu",
    "skua-asm",
    "libskua",
    "wddm",
];

/// Runs it; returns whether each survivor is justified, and each justification needed.
///
/// # Errors
///
/// If it cannot be installed or run.
pub fn run(pattern: &str) -> Result<bool> {
    let text = fs::read_to_string(table::FILE).context(table::FILE)?;
    let table = table::parse(&text).map_err(|why| anyhow::anyhow!("{}: {why}", table::FILE))?;
    let home = std::env::var("CARGO_HOME").context("CARGO_HOME")?;
    let root = format!("{home}/cargo-mutants-{VERSION}");
    let program = format!("{root}/bin/cargo-mutants");
    if !Path::new(&program).exists() {
        let installed = Command::new("cargo")
            .args(["install", "--quiet", "--locked", "--root", &root])
            .args(["--target-dir", "out/mutants/install"])
            .arg(format!("cargo-mutants@{VERSION}"))
            .status()?;
        if !installed.success() {
            bail!("cargo-mutants cannot be installed: {installed}");
        }
    }
    let _claim = claim()?;
    let scratch = Scratch::new(0)?;
    forget_other_trees(&scratch.root().join("out"))?;
    let mut command = Command::new("env");
    scratch
        .enter(&mut command)
        .args([&program, "mutants", "--in-place", "--output", "out"])
        .args(["--iterate", "--no-shuffle", "--minimum-test-timeout", "30"])
        // What runs into it is in an endless loop.
        .args(["--timeout-multiplier", "2"]);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    if !pattern.is_empty() {
        command.args(["--re", pattern]);
    }
    let status = command.status().context(program)?;
    // 0: all caught; 2: some survived; 3: some timed out, which is as good as caught.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo-mutants: {status}");
    }
    let missed = scratch.root().join("out/mutants.out/missed.txt");
    let (known, new) = sort(&fs::read_to_string(missed)?, &table.survivor);
    let justified = table.survivor.iter().map(|survivor| &survivor.mutation);
    // A run of some says nothing of the others.
    let idle: Vec<&String> = justified
        .filter(|mutation| pattern.is_empty() && !known.contains_key(*mutation))
        .collect();
    let all = known.len() + new.len() + idle.len();
    let mut report = Writer::new(io::stdout(), Some(all))?;
    for (mutation, why) in &known {
        report.result(mutation, ktap::Verdict::Pass, &format!("survives: {why}"))?;
    }
    for mutation in &new {
        report.result(mutation, ktap::Verdict::Fail, "")?;
    }
    for mutation in &idle {
        report.words("it does not survive, or is not made any more: it needs no justification")?;
        report.result(mutation, ktap::Verdict::Fail, "")?;
    }
    let (known, new, idle) = (known.len(), new.len(), idle.len());
    println!("\n{known} justified, {new} not, {idle} justifications without need");
    Ok(new == 0 && idle == 0)
}

/// Removes what cargo-mutants knows in `out`, unless that is of the tree as it is now: it would not
/// try again what was caught before a change.
fn forget_other_trees(out: &Path) -> Result<()> {
    let state = known::state(Path::new("."), &[&WITHOUT[..], &[table::FILE]].concat())?.to_string();
    let of = out.join("mutants.tree");
    if fs::read_to_string(&of).is_ok_and(|other| other == state) {
        return Ok(());
    }
    let results = out.join("mutants.out");
    if results.exists() {
        fs::remove_dir_all(results)?;
    }
    Ok(fs::write(of, state)?)
}

/// The survivors that are justified, with why, and the others.
fn sort(missed: &str, justified: &[Survivor]) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut known, mut new) = (BTreeMap::new(), Vec::new());
    for line in missed.lines() {
        let mutation = without_position(line);
        match justified.iter().find(|other| other.mutation == mutation) {
            Some(survivor) => drop(known.insert(mutation, survivor.why.clone())),
            None => new.push(line.to_owned()),
        }
    }
    (known, new)
}

/// `file:12:34: words` as `file: words`.
fn without_position(line: &str) -> String {
    let Some((place, words)) = line.split_once(": ") else {
        return line.to_owned();
    };
    let file = place.split(':').next().unwrap_or(place);
    format!("{file}: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_are_known_wherever_they_stand() {
        let justified = [Survivor {
            mutation: "a.rs: replace < with <= in f".into(),
            why: "equal".into(),
        }];
        let missed = "a.rs:1:2: replace < with <= in f\na.rs:3:4: replace + with - in g\n";
        let (known, new) = sort(missed, &justified);
        assert_eq!(known.len(), 1);
        assert_eq!(new, ["a.rs:3:4: replace + with - in g"]);
    }
}
