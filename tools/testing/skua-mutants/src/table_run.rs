// SPDX-License-Identifier: MIT

//! `make mutants`: each entry of `mutants.toml`, one at a time.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use skua_conformance::report::{self, Outcome, Test};
use skua_guest::ktap::{self, Writer};

use crate::known::{self, Known};
use crate::place::{self, Place, Sources};
use crate::scratch::{Scratch, DIR, WITHOUT};
use crate::table::{self, Mutant};
use crate::verdict::{cargo_results, judge, Verdict};

/// How long a build and a run may take, in seconds: a mutant may hang.
const BUILD: u32 = 1800;
const RUN: u32 = 900;
/// The same of tests on the host, which are quick.
const HOST_RUN: u32 = 240;
/// The same of all tests of all guests.
const WHOLE_RUN: u32 = 3600;
/// More tests than this are sooner seen to pass in a run of all that guests run.
const FEW: usize = 50;

/// What a run is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// A part of the names of the mutants that are wanted.
    pub pattern: String,
    /// The kernel whose guests are booted.
    pub kernel: String,
    /// How many times longer than usual everything may take.
    pub patience: u32,
}

/// Breaks what the table says; returns whether every mutant was killed.
///
/// # Errors
///
/// If the table cannot be read, or the tree not be copied.
pub fn run(options: &Options) -> Result<bool> {
    let text = fs::read_to_string(table::FILE).context(table::FILE)?;
    let table = table::parse(&text).map_err(|why| anyhow::anyhow!("{}: {why}", table::FILE))?;
    let chosen: Vec<&Mutant> = table
        .mutant
        .iter()
        .filter(|mutant| mutant.name().contains(&options.pattern))
        .collect();
    let mut report = Writer::new(io::stdout(), Some(chosen.len()))?;
    fs::create_dir_all(Path::new(DIR).join("log"))?;
    let tree = known::state(Path::new("."), &[&WITHOUT[..], &[table::FILE]].concat())?;
    let mut bench = Bench {
        options,
        scratch: Scratch::new()?,
        known: Known::read(&Path::new(DIR).join("known"), tree),
        log: PathBuf::new(),
    };
    bench.look_at_all(&chosen)?;
    let (mut killed, mut others, mut skipped) = (0, 0, 0);
    for (number, mutant) in (1..).zip(&chosen) {
        let name = mutant.name();
        if mutant.kernel != options.kernel {
            skipped += 1;
            let why = format!("needs KERNEL={}", mutant.kernel);
            report.result(&name, ktap::Verdict::Skip, &why)?;
            continue;
        }
        bench.log = Path::new(DIR).join(format!("log/{number}.log"));
        progress(&format!(
            "[{killed} killed, {others} not, of {}] {name}",
            chosen.len()
        ));
        let verdict = bench.verdict(mutant)?;
        progress("");
        if verdict == Verdict::Killed {
            killed += 1;
            report.result(&name, ktap::Verdict::Pass, "")?;
        } else {
            others += 1;
            report.words(&format!("{verdict}; see {}", bench.log.display()))?;
            report.result(&name, ktap::Verdict::Fail, "")?;
        }
    }
    println!("\n{killed} killed, {others} not, {skipped} for another kernel");
    Ok(others == 0 && killed + skipped > 0)
}

/// Shows what is going on, on a terminal; nothing clears it.
fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{}", what.chars().take(79).collect::<String>());
        // A terminal that is gone shows nothing.
        let _ = std::io::stderr().flush();
    }
}

/// Where mutants are tried.
struct Bench<'a> {
    options: &'a Options,
    /// Where the change is made.
    scratch: Scratch,
    /// What need not be tried again.
    known: Known,
    /// Of the builds and boots.
    log: PathBuf,
}

impl Bench<'_> {
    /// Tries one mutant, unless it is known what comes of it.
    fn verdict(&mut self, mutant: &Mutant) -> Result<Verdict> {
        let key = (mutant, &self.options.kernel);
        if let Some(verdict @ Verdict::Killed) = self.known.get(key) {
            return Ok(verdict.clone());
        }
        let text = match fs::read_to_string(self.scratch.root().join(&mutant.file)) {
            Ok(text) => text,
            Err(error) => return Ok(Verdict::Broken(format!("{}: {error}", mutant.file))),
        };
        let changed = match mutant.apply(&text) {
            Ok(changed) => changed,
            Err(why) => return Ok(Verdict::Broken(why)),
        };
        let places = Sources::read(self.scratch.root())?.find(&mutant.test);
        if places.is_empty() {
            return Ok(Verdict::Broken(format!("there is no test {}", mutant.test)));
        }
        // A test that fails anyway proves nothing.
        match self.sound(&mutant.test, &places)? {
            Verdict::Survived => {}
            Verdict::Killed => {
                let why = format!("{} fails without the change", mutant.test);
                return Ok(Verdict::Broken(why));
            }
            broken => return Ok(broken),
        }
        let change = self.scratch.change(&mutant.file, &changed)?;
        let verdict = self.try_out(&mutant.test, &places);
        drop(change);
        let verdict = verdict?;
        self.known.add(key, &verdict)?;
        Ok(verdict)
    }

    /// Finds which of many tests pass in the tree as it is, in one run.
    fn look_at_all(&mut self, mutants: &[&Mutant]) -> Result<()> {
        let mut tests = BTreeSet::new();
        let sources = Sources::read(self.scratch.root())?;
        for mutant in mutants {
            let is_wanted = mutant.kernel == self.options.kernel
                && self.known.get((*mutant, &self.options.kernel)) != Some(&Verdict::Killed)
                && self.known.get(self.unchanged(&mutant.test)).is_none();
            let is_host = |place: &Place| matches!(place, Place::Host(_));
            if is_wanted && !sources.find(&mutant.test).iter().any(is_host) {
                tests.insert(mutant.test.as_str());
            }
        }
        if tests.len() <= FEW {
            return Ok(());
        }
        self.log = Path::new(DIR).join("log/all.log");
        progress("all tests, unchanged");
        let results = self.guest("", WHOLE_RUN)?.unwrap_or_default();
        for test in tests {
            // Any other is looked at by itself.
            if judge(test, &results) == Verdict::Survived {
                self.known.add(self.unchanged(test), &Verdict::Survived)?;
            }
        }
        Ok(())
    }

    /// What stands for a test in the tree as it is.
    fn unchanged<'b>(&self, test: &'b str) -> (&'static str, &'b str, String) {
        ("unchanged", test, self.options.kernel.clone())
    }

    /// What comes of the test in the tree as it is.
    fn sound(&mut self, test: &str, places: &BTreeSet<Place>) -> Result<Verdict> {
        let key = self.unchanged(test);
        if let Some(verdict @ Verdict::Survived) = self.known.get(&key) {
            return Ok(verdict.clone());
        }
        let verdict = self.try_out(test, places)?;
        self.known.add(&key, &verdict)?;
        Ok(verdict)
    }

    /// Builds the scratch tree and runs a test in it.
    fn try_out(&self, test: &str, places: &BTreeSet<Place>) -> Result<Verdict> {
        let mut results = Vec::new();
        let mut programs = BTreeSet::new();
        let mut guest = false;
        for place in places {
            match place {
                Place::Host(package) => match self.host(package, test)? {
                    Some(tests) => results.extend(tests),
                    None => return Ok(Verdict::Broken("it does not build".into())),
                },
                Place::Kselftest(program) => {
                    guest = true;
                    programs.insert(program.as_str());
                }
                Place::Kunit => guest = true,
            }
        }
        if guest {
            match self.guest(&whole(test, &programs), RUN)? {
                Some(tests) => results.extend(tests),
                None => return Ok(Verdict::Broken("it does not build".into())),
            }
        }
        Ok(judge(test, &results))
    }

    /// A package's tests on the host; `None` if it does not build.
    fn host(&self, package: &str, test: &str) -> Result<Option<Vec<Test>>> {
        let cargo = ["cargo", "test", "--locked", "-p", package, "--no-fail-fast"];
        let build = [&cargo[..], &["--no-run"]].concat();
        if !self.scratch.run(&build, BUILD, &self.log)?.success() {
            return Ok(None);
        }
        let run = [&cargo[..], &[place::function(test)]].concat();
        let status = self.scratch.run(&run, HOST_RUN, &self.log)?;
        let output = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let mut tests = cargo_results(package, &output);
        if !status.success() {
            // One that hangs or aborts leaves no result.
            tests.push(Test {
                test: package.to_owned(),
                suite: "cargo".to_owned(),
                result: Outcome::Fail,
                rows: Vec::new(),
            });
        }
        Ok(Some(tests))
    }

    /// The tests of guests whose names contain `pattern`, in `seconds` at most; `None` if they do
    /// not build.
    fn guest(&self, pattern: &str, seconds: u32) -> Result<Option<Vec<Test>>> {
        let build = [
            "env",
            "QUICK=1",
            &format!("KERNEL={}", self.options.kernel),
            "scripts/build",
            "guest",
        ];
        if !self.scratch.run(&build, BUILD, &self.log)?.success() {
            return Ok(None);
        }
        let products = format!("out/guest/{}", self.options.kernel);
        let dir = if pattern.is_empty() { "" } else { "selected" };
        let report = self
            .scratch
            .root()
            .join("out/test")
            .join(dir)
            .join("report.json");
        if report.exists() {
            fs::remove_file(&report)?;
        }
        let patience = self.options.patience.to_string();
        let command = [
            "out/cargo/debug/skua-vm",
            "test",
            "--no-host",
            "--products",
            &products,
            "--patience",
            &patience,
            "--pattern",
            pattern,
        ];
        self.scratch
            .run(&command, seconds * self.options.patience, &self.log)?;
        let Ok(text) = fs::read_to_string(&report) else {
            return Ok(Some(Vec::new()));
        };
        Ok(Some(report::parse(&text)?))
    }
}

/// The whole of a test's name, as far as it is told: a guest that cannot have it is not booted.
fn whole(test: &str, programs: &BTreeSet<&str>) -> String {
    let known = programs
        .iter()
        .any(|program| test.starts_with(&format!("{program}.")));
    if known {
        format!("kselftest/drivers/gpu/skua:{test}")
    } else {
        test.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_asked_for_by_all_of_its_name() {
        let programs = BTreeSet::from(["bo", "wddm"]);
        for (test, name) in [
            ("bo.x", "kselftest/drivers/gpu/skua:bo.x"),
            ("skua:bo.x", "skua:bo.x"),
            ("row_0_17", "row_0_17"),
            ("skua_gem.x", "skua_gem.x"),
        ] {
            assert_eq!(whole(test, &programs), name);
        }
    }
}
