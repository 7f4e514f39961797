// SPDX-License-Identifier: MIT

//! `make mutants`: each entry of `mutants.toml`, by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::Hash;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{anyhow, Context, Result};
use skua_conformance::report::{self, Outcome, Test};
use skua_guest::ktap::{self, Writer};

use crate::known::{self, Known};
use crate::place::{self, Place, Sources};
use crate::scratch::{claim, Scratch, DIR, WITHOUT};
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
/// The same of a package on the host.
const FEW_OF_HOST: usize = 4;

/// What a run is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// A part of the names of the mutants that are wanted.
    pub pattern: String,
    /// The kernel whose guests are booted.
    pub kernel: String,
    /// How many times longer than usual everything may take.
    pub patience: u32,
    /// What `skua-vm test` is told besides.
    pub guests: Vec<String>,
}

/// Breaks what the table says; returns whether some mutants were tried, and every one was killed.
///
/// # Errors
///
/// If the table cannot be read, or the tree not be copied.
pub fn run(options: &Options) -> Result<bool> {
    let text = fs::read_to_string(table::FILE).context(table::FILE)?;
    let table = table::parse(&text).map_err(|why| anyhow!("{}: {why}", table::FILE))?;
    let chosen: Vec<&Mutant> = table
        .mutant
        .iter()
        .filter(|mutant| mutant.name().contains(&options.pattern))
        .collect();
    let _claim = claim()?;
    fs::create_dir_all(Path::new(DIR).join("log"))?;
    let tree = known::state(Path::new("."), &[&WITHOUT[..], &[table::FILE]].concat())?;
    let tree = known::key((tree, &options.guests));
    let known = Mutex::new(Known::read(&Path::new(DIR).join("known"), tree));
    let tally = Mutex::new(Tally::new(&chosen)?);
    let mutants = Mutex::new((1..).zip(&chosen));
    let tried = thread::scope(|scope| {
        let benches = thread::available_parallelism().map_or(1, usize::from);
        let mut first = Bench::new(options, &known, 0)?;
        first.look_at_all(&chosen)?;
        let mut others = Vec::new();
        for number in 1..benches.min(chosen.len()) {
            let mut bench = Bench::new(options, &known, number)?;
            let (mutants, tally) = (&mutants, &tally);
            others.push(scope.spawn(move || bench.try_all(mutants, tally)));
        }
        let mut result = first.try_all(&mutants, &tally);
        for other in others {
            let tried = other.join();
            result = result.and(tried.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))));
        }
        result
    });
    tried?;
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.end();
    Ok(tally.others == 0 && tally.killed > 0)
}

/// What came of the mutants so far.
struct Tally {
    /// The document that they are told in, one result each.
    report: Writer<io::Stdout>,
    /// Mutants that were chosen.
    all: usize,
    /// Those of them that a test has failed with.
    killed: u32,
    /// Those that no test has failed with, or that could not be tried.
    others: u32,
    /// Those that are for another kernel.
    skipped: u32,
}

impl Tally {
    fn new(chosen: &[&Mutant]) -> Result<Self> {
        Ok(Self {
            report: Writer::new(io::stdout(), Some(chosen.len()))?,
            all: chosen.len(),
            killed: 0,
            others: 0,
            skipped: 0,
        })
    }

    /// Tells what came of one that wrote `log`; none if it is for another kernel.
    fn add(&mut self, mutant: &Mutant, verdict: Option<&Verdict>, log: &Path) -> io::Result<()> {
        let name = mutant.name();
        progress("");
        match verdict {
            None => {
                self.skipped += 1;
                let why = format!("needs KERNEL={}", mutant.kernel);
                self.report.result(&name, ktap::Verdict::Skip, &why)
            }
            Some(Verdict::Killed) => {
                self.killed += 1;
                self.report.result(&name, ktap::Verdict::Pass, "")
            }
            Some(verdict) => {
                self.others += 1;
                let words = format!("{verdict}; see {}", log.display());
                self.report.words(&words)?;
                self.report.result(&name, ktap::Verdict::Fail, "")
            }
        }
    }

    /// Shows what is tried next.
    fn show(&self, mutant: &Mutant) {
        let (killed, others, all) = (self.killed, self.others, self.all);
        let name = mutant.name();
        progress(&format!("[{killed} killed, {others} not, of {all}] {name}"));
    }

    fn end(&self) {
        let (killed, others, skipped) = (self.killed, self.others, self.skipped);
        println!("\n{killed} killed, {others} not, {skipped} for another kernel");
    }
}

/// Shows what is going on, on a terminal; nothing clears it.
fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{}", what.chars().take(79).collect::<String>());
        // A terminal that is gone shows nothing.
        let _ = std::io::stderr().flush();
    }
}

/// The data, also if a thread panicked that had them: each change is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where mutants are tried, one at a time.
struct Bench<'a> {
    /// What the user has asked for.
    options: &'a Options,
    /// Where the change is made.
    scratch: Scratch,
    /// What need not be tried again.
    known: &'a Mutex<Known>,
    /// Of the builds and boots.
    log: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, known: &'a Mutex<Known>, number: usize) -> Result<Self> {
        Ok(Self {
            options,
            scratch: Scratch::new(number)?,
            known,
            log: PathBuf::new(),
        })
    }

    /// Tries one after the other that is left.
    fn try_all<'m>(
        &mut self,
        left: &Mutex<impl Iterator<Item = (u32, &'m &'m Mutant)>>,
        tally: &Mutex<Tally>,
    ) -> Result<()> {
        loop {
            let next = lock(left).next();
            let Some((number, mutant)) = next else {
                return Ok(());
            };
            self.log = Path::new(DIR).join(format!("log/{number}.log"));
            lock(tally).show(mutant);
            let verdict = match mutant.kernel == self.options.kernel {
                true => Some(self.verdict(mutant)?),
                false => None,
            };
            lock(tally).add(mutant, verdict.as_ref(), &self.log)?;
        }
    }

    /// What is known to come of `what`, if anything is.
    fn known(&self, what: impl Hash) -> Option<Verdict> {
        lock(self.known).get(what).cloned()
    }

    /// Tries one mutant, unless it is known what comes of it.
    fn verdict(&mut self, mutant: &Mutant) -> Result<Verdict> {
        let key = (mutant, &self.options.kernel);
        if let Some(verdict @ Verdict::Killed) = self.known(key) {
            return Ok(verdict);
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
        lock(self.known).add(key, &verdict)?;
        Ok(verdict)
    }

    /// Finds which of many tests pass in the tree as it is: a package's in one run, and those of
    /// all guests.
    fn look_at_all(&mut self, mutants: &[&Mutant]) -> Result<()> {
        let (mut by_package, mut of_guests) = (BTreeMap::new(), BTreeSet::new());
        let sources = Sources::read(self.scratch.root())?;
        for mutant in mutants {
            let is_wanted = mutant.kernel == self.options.kernel
                && self.known((*mutant, &self.options.kernel)) != Some(Verdict::Killed)
                && self.known(self.unchanged(&mutant.test)).is_none();
            if !is_wanted {
                continue;
            }
            let places = sources.find(&mutant.test);
            let tests = match places.iter().next() {
                Some(Place::Host(package)) if places.len() == 1 => {
                    by_package.entry(package.clone()).or_default()
                }
                _ if places.iter().any(|it| matches!(it, Place::Host(_))) => continue,
                _ => &mut of_guests,
            };
            tests.insert(mutant.test.as_str());
        }
        self.log = Path::new(DIR).join("log/all.log");
        for (package, tests) in by_package {
            if tests.len() > FEW_OF_HOST {
                progress(&format!("all tests of {package}, unchanged"));
                let results = self.host(&package, "", WHOLE_RUN)?.unwrap_or_default();
                self.note_sound(tests, &results)?;
            }
        }
        if of_guests.len() > FEW {
            progress("all tests of guests, unchanged");
            let results = self.guest("", WHOLE_RUN)?.unwrap_or_default();
            self.note_sound(of_guests, &results)?;
        }
        Ok(())
    }

    /// Keeps which of the tests passed in the tree as it is; any other is looked at by itself.
    fn note_sound(&self, tests: BTreeSet<&str>, results: &[Test]) -> Result<()> {
        for test in tests {
            if judge(test, results) == Verdict::Survived {
                lock(self.known).add(self.unchanged(test), &Verdict::Survived)?;
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
        if let Some(verdict @ Verdict::Survived) = self.known(&key) {
            return Ok(verdict);
        }
        let verdict = self.try_out(test, places)?;
        lock(self.known).add(&key, &verdict)?;
        Ok(verdict)
    }

    /// Builds the scratch tree and runs a test in it.
    fn try_out(&self, test: &str, places: &BTreeSet<Place>) -> Result<Verdict> {
        let mut results = Vec::new();
        let mut programs = BTreeSet::new();
        let mut guest = false;
        for place in places {
            match place {
                Place::Host(package) => {
                    match self.host(package, place::function(test), HOST_RUN)? {
                        Some(tests) => results.extend(tests),
                        None => return Ok(Verdict::Broken("it does not build".into())),
                    }
                }
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

    /// A package's tests on the host whose names contain `pattern`, in `seconds` at most; `None` if
    /// they do not build.
    fn host(&self, package: &str, pattern: &str, seconds: u32) -> Result<Option<Vec<Test>>> {
        let cargo = ["cargo", "test", "--locked", "-p", package, "--no-fail-fast"];
        let build = [&cargo[..], &["--no-run"]].concat();
        if !self.scratch.run(&build, BUILD, &self.log)? {
            return Ok(None);
        }
        let run = [&cargo[..], &[pattern]].concat();
        let passed = self.scratch.run(&run, seconds, &self.log)?;
        let output = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let mut tests = cargo_results(package, &output);
        if !passed {
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
        if !self.scratch.run(&build, BUILD, &self.log)? {
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
        let mut command = vec![
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
        command.extend(self.options.guests.iter().map(String::as_str));
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
