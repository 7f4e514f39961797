// SPDX-License-Identifier: MIT

//! What came of the tests: a stream of KTAP for people, `report.tap` and `report.json`.
//!
//! A test's name carries the rows that it proves: `row_0_17_lock_waits` proves row 0.17, and
//! `row_0_17_row_0_19_…` both.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use skua_guest::ktap::Verdict;

/// How a test ended, as `report.json` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// It held.
    Pass,
    /// It did not.
    Fail,
    /// It did not run.
    Skip,
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Pass => Self::Pass,
            Verdict::Fail => Self::Fail,
            Verdict::Skip => Self::Skip,
        }
    }
}

/// The kinds of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Suite {
    /// On the host, by cargo.
    Cargo,
    /// In the guest, in the kernel.
    Kunit,
    /// In the guest, against the driver.
    Kselftest,
    /// About a guest as a whole: its kernel log, its GPU server.
    Guest,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Kunit => "kunit",
            Self::Kselftest => "kselftest",
            Self::Guest => "guest",
        }
    }
}

/// A test that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Test {
    /// Its full name within the suite.
    pub(crate) test: String,
    /// How it ended.
    pub(crate) result: Outcome,
    /// How long it took.
    pub(crate) duration_s: f64,
    /// The rows that it proves, as `0.17`.
    pub(crate) rows: Vec<String>,
    /// Its suite.
    pub(crate) suite: Suite,
    /// What it printed, if it failed, or why it was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) output: String,
}

impl Test {
    /// A test with the rows of its name.
    pub(crate) fn new(suite: Suite, name: &str, result: Outcome, time: Duration) -> Self {
        Self {
            rows: rows(name),
            test: name.to_owned(),
            result,
            // Milliseconds are what a host's clock is good for.
            duration_s: (time.as_secs_f64() * 1000.0).round() / 1000.0,
            suite,
            output: String::new(),
        }
    }

    /// The same with its output.
    pub(crate) fn with_output(mut self, output: String) -> Self {
        if self.result != Outcome::Pass {
            self.output = output;
        }
        self
    }

    /// `suite/name`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.suite.name(), self.test)
    }

    fn ktap(&self, number: usize) -> String {
        let id = self.id().replace('#', "_");
        match self.result {
            Outcome::Pass => format!("ok {number} {id}"),
            Outcome::Fail => format!("not ok {number} {id}"),
            Outcome::Skip => {
                let why = self.output.lines().next_back().unwrap_or_default();
                let why = why.strip_prefix("SKIP").unwrap_or(why).trim();
                format!("ok {number} {id} # SKIP {why}")
                    .trim_end()
                    .to_owned()
            }
        }
    }
}

/// The rows in a test's name, in order, each once.
pub(crate) fn rows(name: &str) -> Vec<String> {
    let mut rows = Vec::new();
    for part in name.split("row_").skip(1) {
        let mut words = part.split(|c: char| !c.is_ascii_digit());
        if let (Some(seed), Some(row)) = (words.next(), words.next()) {
            let id = format!("{seed}.{row}");
            if !seed.is_empty() && !row.is_empty() && !rows.contains(&id) {
                rows.push(id);
            }
        }
    }
    rows
}

/// Collects tests, shows them as they end, and writes the reports.
#[derive(Debug)]
pub(crate) struct Report {
    dir: PathBuf,
    pattern: Option<String>,
    tests: Vec<Test>,
    shown: Instant,
}

impl Report {
    /// An empty report in `dir` of the tests whose id contains `pattern`.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made, or an old report in it not be removed.
    pub(crate) fn new(dir: &Path, pattern: Option<&str>) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        for old in ["report.json", "report.tap"] {
            match fs::remove_file(dir.join(old)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context(old);
                }
                _ => {}
            }
        }
        println!("KTAP version 1");
        Ok(Self {
            dir: dir.to_owned(),
            pattern: pattern.filter(|text| !text.is_empty()).map(str::to_owned),
            tests: Vec::new(),
            shown: Instant::now(),
        })
    }

    /// Whether a test of this id is wanted.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.pattern
            .as_ref()
            .is_none_or(|pattern| id.contains(pattern))
    }

    /// Takes a test that has ended, if it is wanted or failed about a guest as a whole.
    pub(crate) fn add(&mut self, test: Test) {
        let broken = test.suite == Suite::Guest && test.result == Outcome::Fail;
        if !broken && !self.wants(&test.id()) {
            return;
        }
        self.clear_progress();
        println!("{}", test.ktap(self.tests.len() + 1));
        self.tests.push(test);
        self.progress("");
    }

    /// Shows what is going on, on a terminal.
    pub(crate) fn progress(&mut self, what: &str) {
        if std::io::stderr().is_terminal() {
            let (passed, failed, skipped) = self.counts();
            let what: String = what.chars().take(60).collect();
            eprint!("\r\x1b[K[{passed} passed, {failed} failed, {skipped} skipped] {what}");
            let _ = std::io::stderr().flush();
        } else if !what.is_empty() && self.shown.elapsed() > Duration::from_secs(30) {
            self.shown = Instant::now();
            println!("# {what}");
        }
    }

    fn clear_progress(&self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }

    fn counts(&self) -> (usize, usize, usize) {
        let count = |outcome| {
            self.tests
                .iter()
                .filter(|test| test.result == outcome)
                .count()
        };
        (
            count(Outcome::Pass),
            count(Outcome::Fail),
            count(Outcome::Skip),
        )
    }

    /// How many tests ran in a guest.
    fn guest_tests(&self) -> usize {
        self.tests
            .iter()
            .filter(|test| matches!(test.suite, Suite::Kunit | Suite::Kselftest))
            .filter(|test| test.result != Outcome::Skip)
            .count()
    }

    /// Writes the reports, prints what failed and the closing line. Returns whether all is well:
    /// nothing failed and at least one test ran in a guest.
    ///
    /// # Errors
    ///
    /// If a report cannot be written.
    pub(crate) fn finish(self) -> Result<bool> {
        let ran = self.guest_tests();
        let none_failed = self.close(ran == 0)?;
        Ok(none_failed && ran > 0)
    }

    /// The same where no guest is wanted.
    ///
    /// # Errors
    ///
    /// If a report cannot be written.
    pub(crate) fn finish_without_guest(self) -> Result<bool> {
        self.close(false)
    }

    /// Writes and prints; returns whether nothing failed.
    fn close(self, lacks_guest: bool) -> Result<bool> {
        self.clear_progress();
        println!("1..{}", self.tests.len());
        fs::write(self.dir.join("report.tap"), self.tap())?;
        fs::write(
            self.dir.join("report.json"),
            serde_json::to_vec_pretty(&self.tests)?,
        )?;
        let (passed, failed, skipped) = self.counts();
        for test in self
            .tests
            .iter()
            .filter(|test| test.result == Outcome::Fail)
        {
            println!("\nfailed: {}", test.id());
            for line in test.output.lines().take(30) {
                println!("    {line}");
            }
        }
        if lacks_guest {
            println!("\nno guest test ran: that is not a success");
        }
        println!("\n{passed} passed, {failed} failed, {skipped} skipped");
        Ok(failed == 0)
    }

    fn tap(&self) -> String {
        let mut text = format!("KTAP version 1\n1..{}\n", self.tests.len());
        for (number, test) in (1..).zip(&self.tests) {
            for line in test.output.lines() {
                text.push_str(&format!("# {line}\n"));
            }
            text.push_str(&test.ktap(number));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, result: Outcome) -> Test {
        Test::new(Suite::Kselftest, name, result, Duration::from_millis(1500))
    }

    #[test]
    fn rows_come_from_names() {
        assert_eq!(rows("bo.row_0_17_lock_waits"), ["0.17"]);
        assert_eq!(rows("row_0_17_row_0_19_both"), ["0.17", "0.19"]);
        assert_eq!(rows("row_4_07_row_4_07_once"), ["4.07"]);
        assert_eq!(rows("a.row_1_02.b.row_2_10"), ["1.02", "2.10"]);
        assert!(rows("arrow_keys").is_empty());
        assert!(rows("row_a_1").is_empty());
    }

    #[test]
    fn the_reports_say_what_was_added() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut report = Report::new(dir.path(), None).expect("a report");
        report.add(test("a:row_0_01_x", Outcome::Pass));
        report.add(test("a:b", Outcome::Fail).with_output("one\ntwo".into()));
        report.add(test("a:c", Outcome::Skip).with_output("SKIP no node".into()));
        assert!(!report.finish().expect("written"));
        let tap = fs::read_to_string(dir.path().join("report.tap")).expect("a report");
        assert_eq!(
            tap,
            "KTAP version 1\n1..3\nok 1 kselftest/a:row_0_01_x\n# one\n# two\n\
             not ok 2 kselftest/a:b\n# SKIP no node\nok 3 kselftest/a:c # SKIP no node\n"
        );
        let json = fs::read(dir.path().join("report.json")).expect("a report");
        let tests: Vec<Test> = serde_json::from_slice(&json).expect("tests");
        assert_eq!(tests[0].rows, ["0.01"]);
        assert_eq!(tests[0].duration_s, 1.5);
        assert_eq!(tests[1].output, "one\ntwo");
    }

    #[test]
    fn without_a_guest_test_there_is_no_success() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut report = Report::new(dir.path(), None).expect("a report");
        report.add(Test::new(Suite::Cargo, "a", Outcome::Pass, Duration::ZERO));
        report.add(test("skipped", Outcome::Skip));
        assert!(!report.finish().expect("written"));
        let mut report = Report::new(dir.path(), None).expect("a report");
        report.add(test("ran", Outcome::Pass));
        assert!(report.finish().expect("written"));
    }

    #[test]
    fn a_pattern_chooses_but_hides_no_broken_guest() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut report = Report::new(dir.path(), Some("bo")).expect("a report");
        report.add(test("vm:x", Outcome::Fail));
        report.add(test("bo:x", Outcome::Pass));
        report.add(Test::new(
            Suite::Guest,
            "kernel-log",
            Outcome::Fail,
            Duration::ZERO,
        ));
        assert_eq!(report.counts(), (1, 1, 0));
    }
}
