// SPDX-License-Identifier: MIT

//! What came of the tests: a stream of KTAP for people, `report.tap` and `report.json`, written
//! test by test, so that a run that is interrupted keeps what it had.
//!
//! A test's name carries the rows that it proves: `row_0_17_lock_waits` proves row 0.17, and
//! `row_0_17_row_0_19_…` both.

use std::fs::File;
use std::io::{IsTerminal, Seek, SeekFrom, Stdout, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};
use skua_guest::ktap::{Verdict, Writer};

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
    const ALL: [Self; 4] = [Self::Cargo, Self::Kunit, Self::Kselftest, Self::Guest];

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
    /// One that was cut off has failed.
    pub(crate) result: Verdict,
    /// How long it took, in seconds.
    pub(crate) duration_s: f64,
    /// The rows that it proves, as `0.17`.
    pub(crate) rows: Vec<String>,
    /// What stands before the first slash of its id.
    pub(crate) suite: Suite,
    /// What it printed, if it failed, or why it was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) output: String,
}

impl Test {
    /// A test with the rows of its name.
    pub(crate) fn new(suite: Suite, name: &str, result: Verdict, time: Duration) -> Self {
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
        if self.result != Verdict::Pass {
            self.output = output;
        }
        self
    }

    /// `suite/name`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.suite.name(), self.test)
    }

    /// Writes its result, and before it what it printed where that is wanted.
    fn write(&self, ktap: &mut Writer<impl Write>, with_output: bool) -> Result<()> {
        let mut why = "";
        if self.result == Verdict::Skip {
            why = self.output.lines().next_back().unwrap_or_default();
            why = why.strip_prefix("SKIP").unwrap_or(why).trim();
        } else if with_output {
            ktap.words(&self.output)?;
        }
        Ok(ktap.result(&self.id(), self.result, why)?)
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
    /// The directory of the reports.
    dir: PathBuf,
    /// What the ids of its tests contain.
    pattern: Option<String>,
    /// In the order in which they ended.
    tests: Vec<Test>,
    /// KTAP on the terminal, for people.
    shown: Writer<Stdout>,
    /// The same KTAP in report.tap.
    tap: Writer<File>,
    /// The same for programs, whole at any moment.
    json: Json,
    /// When a line of progress was written last, without a terminal.
    told: Instant,
    /// Nobody else writes to `dir` meanwhile.
    _claim: Flock<File>,
}

impl Report {
    /// An empty report in `dir` of the tests whose id contains `pattern`. One of a pattern is in
    /// a directory of its own below, for `dir` has what a whole run said.
    ///
    /// # Errors
    ///
    /// If the directory is another run's, or the reports in it cannot be begun.
    pub(crate) fn new(dir: &Path, pattern: Option<&str>) -> Result<Self> {
        let pattern = pattern.filter(|text| !text.is_empty()).map(str::to_owned);
        let dir = match pattern {
            Some(_) => dir.join("selected"),
            None => dir.to_owned(),
        };
        let claim = crate::machine::claim(&dir)?;
        Ok(Self {
            shown: Writer::new(std::io::stdout(), None)?,
            tap: Writer::new(File::create(dir.join("report.tap"))?, None)?,
            json: Json::new(&dir.join("report.json"))?,
            dir,
            pattern,
            tests: Vec::new(),
            told: Instant::now(),
            _claim: claim,
        })
    }

    /// Also where guests' logs go.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the wanted tests' ids contain, if not all are wanted.
    pub(crate) fn pattern(&self) -> Option<&str> {
        self.pattern.as_deref()
    }

    /// Whether a test of this id is wanted.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.pattern
            .as_ref()
            .is_none_or(|pattern| id.contains(pattern))
    }

    /// Whether the pattern leaves room for tests of a suite. It may name another; and `::` is in
    /// names of the host's tests alone, a dot in all others, but for that of a file with doc tests,
    /// and a colon in no KUnit test's.
    pub(crate) fn may_want(&self, suite: Suite) -> bool {
        let Some(pattern) = &self.pattern else {
            return true;
        };
        let named = Suite::ALL
            .into_iter()
            .find(|suite| pattern.starts_with(&format!("{}/", suite.name())));
        match (named, suite) {
            (Some(named), suite) => named == suite,
            (None, Suite::Cargo) => !pattern.contains('.') || pattern.contains(".rs"),
            (None, Suite::Kunit) => !pattern.contains(':'),
            (None, Suite::Kselftest | Suite::Guest) => !pattern.contains("::"),
        }
    }

    /// Takes a test that has ended, if it is wanted or has failed: a pattern chooses what runs,
    /// and what runs and fails is told, whatever its name.
    ///
    /// # Errors
    ///
    /// If a report cannot be written.
    pub(crate) fn add(&mut self, test: Test) -> Result<()> {
        if test.result != Verdict::Fail && !self.wants(&test.id()) {
            return Ok(());
        }
        self.clear_progress();
        test.write(&mut self.shown, false)?;
        test.write(&mut self.tap, true)?;
        self.json.add(&test)?;
        self.tests.push(test);
        self.progress("");
        Ok(())
    }

    /// Says something about the run that is no result.
    ///
    /// # Errors
    ///
    /// If the report cannot be written.
    pub(crate) fn words(&mut self, words: &str) -> Result<()> {
        self.clear_progress();
        self.shown.words(words)?;
        Ok(self.tap.words(words)?)
    }

    /// Shows what is going on, on a terminal.
    pub(crate) fn progress(&mut self, what: &str) {
        if std::io::stderr().is_terminal() {
            let (passed, failed, skipped) = self.counts();
            let what: String = what.chars().take(60).collect();
            eprint!("\r\x1b[K[{passed} passed, {failed} failed, {skipped} skipped] {what}");
            let _ = std::io::stderr().flush();
        } else if !what.is_empty() && self.told.elapsed() > Duration::from_secs(30) {
            self.told = Instant::now();
            println!("# {what}");
        }
    }

    fn clear_progress(&self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }

    fn counts(&self) -> (usize, usize, usize) {
        let count = |verdict| {
            self.tests
                .iter()
                .filter(|test| test.result == verdict)
                .count()
        };
        (
            count(Verdict::Pass),
            count(Verdict::Fail),
            count(Verdict::Skip),
        )
    }

    /// Closes the reports, prints what failed and the closing line. Returns whether all is well:
    /// nothing failed, and tests ran; those of a guest, where the whole was asked for.
    ///
    /// # Errors
    ///
    /// If a report cannot be written.
    pub(crate) fn finish(self, with_guests: bool) -> Result<bool> {
        self.clear_progress();
        let (passed, failed, skipped) = self.counts();
        let ran = self
            .tests
            .iter()
            .filter(|test| test.result != Verdict::Skip && test.suite != Suite::Guest)
            .filter(|test| !with_guests || self.pattern.is_some() || test.suite != Suite::Cargo)
            .count();
        self.shown.close()?;
        self.tap.close()?;
        for test in self
            .tests
            .iter()
            .filter(|test| test.result == Verdict::Fail)
        {
            println!("\nfailed: {}", test.id());
            for line in test.output.lines().take(60) {
                println!("    {line}");
            }
        }
        if ran == 0 {
            println!("\nno test ran that had to: that is not a success");
        }
        println!("\n{passed} passed, {failed} failed, {skipped} skipped");
        Ok(failed == 0 && ran > 0)
    }
}

/// A JSON array in a file that is whole after each element.
#[derive(Debug)]
struct Json {
    /// `[]`, or the tests so far: valid JSON after each write.
    file: File,
    /// Where the array's end stands.
    end: u64,
}

impl Json {
    fn new(path: &Path) -> Result<Self> {
        let mut file = File::create(path).with_context(|| path.display().to_string())?;
        file.write_all(b"[]")?;
        Ok(Self { file, end: 1 })
    }

    fn add(&mut self, test: &Test) -> Result<()> {
        let comma = if self.end > 1 { "," } else { "" };
        let text = format!("{comma}\n{}", serde_json::to_string_pretty(test)?);
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(format!("{text}\n]\n").as_bytes())?;
        self.end += u64::try_from(text.len())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn test(name: &str, result: Verdict) -> Test {
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

    fn report(pattern: Option<&str>) -> (tempfile::TempDir, Report) {
        let dir = tempfile::tempdir().expect("a directory");
        let report = Report::new(dir.path(), pattern).expect("a report");
        (dir, report)
    }

    fn read(dir: &Path) -> Vec<Test> {
        let json = fs::read(dir.join("report.json")).expect("a report");
        serde_json::from_slice(&json).expect("tests")
    }

    #[test]
    fn the_reports_say_what_was_added() {
        let (dir, mut report) = report(None);
        for test in [
            test("a:row_0_01_x", Verdict::Pass),
            test("a:b", Verdict::Fail).with_output("one\ntwo".into()),
            test("a:c", Verdict::Skip).with_output("SKIP no node".into()),
        ] {
            report.add(test).expect("written");
        }
        assert!(!report.finish(true).expect("written"));
        let tap = fs::read_to_string(dir.path().join("report.tap")).expect("a report");
        assert_eq!(
            tap,
            "KTAP version 1\nok 1 kselftest/a:row_0_01_x\n# one\n# two\n\
             not ok 2 kselftest/a:b\nok 3 kselftest/a:c # SKIP no node\n1..3\n"
        );
        let tests = read(dir.path());
        assert_eq!(tests[0].rows, ["0.01"]);
        assert_eq!(tests[0].duration_s, 1.5);
        assert_eq!(tests[1].output, "one\ntwo");
    }

    #[test]
    fn a_run_that_is_interrupted_keeps_what_it_had() {
        let (dir, mut report) = report(None);
        assert!(read(dir.path()).is_empty());
        report.add(test("a", Verdict::Pass)).expect("written");
        report.add(test("b", Verdict::Fail)).expect("written");
        // It is not finished, and nothing of it runs any more.
        std::mem::forget(report);
        let names: Vec<String> = read(dir.path()).iter().map(Test::id).collect();
        assert_eq!(names, ["kselftest/a", "kselftest/b"]);
        let tap = fs::read_to_string(dir.path().join("report.tap")).expect("a report");
        assert!(tap.ends_with("not ok 2 kselftest/b\n"), "{tap}");
    }

    #[test]
    fn without_a_guest_test_there_is_no_success() {
        let host = || Test::new(Suite::Cargo, "a", Verdict::Pass, Duration::ZERO);
        let broken = || Test::new(Suite::Guest, "default", Verdict::Pass, Duration::ZERO);
        for (pattern, with_guests, tests, well) in [
            (None, true, vec![host(), broken()], false),
            (None, true, vec![test("skipped", Verdict::Skip)], false),
            (None, true, vec![test("ran", Verdict::Pass)], true),
            (None, false, vec![host()], true),
            (Some("cargo/"), true, vec![host()], true),
            (Some("default"), true, vec![broken()], false),
        ] {
            let (_dir, mut report) = report(pattern);
            for test in tests {
                report.add(test).expect("written");
            }
            assert_eq!(report.finish(with_guests).expect("written"), well);
        }
    }

    #[test]
    fn a_pattern_chooses_but_hides_no_failure() {
        let (_dir, mut report) = report(Some("row_0_17"));
        for test in [
            test("bo.row_0_17_x", Verdict::Pass),
            test("bo.x", Verdict::Pass),
            // What a guest leaves that died in a program, or a program that was killed.
            test("bo", Verdict::Fail),
            Test::new(Suite::Guest, "default", Verdict::Fail, Duration::ZERO),
            Test::new(Suite::Cargo, "build", Verdict::Fail, Duration::ZERO),
        ] {
            report.add(test).expect("written");
        }
        assert_eq!(report.counts(), (1, 3, 0));
        assert!(!report.finish(true).expect("written"));
    }

    #[test]
    fn a_pattern_has_a_report_of_its_own() {
        let (dir, mut whole) = report(None);
        whole.add(test("a", Verdict::Pass)).expect("written");
        whole.finish(true).expect("written");
        let mut some = Report::new(dir.path(), Some("b")).expect("a report");
        some.add(test("b", Verdict::Fail)).expect("written");
        some.finish(true).expect("written");
        assert_eq!(read(dir.path())[0].id(), "kselftest/a");
        assert_eq!(read(&dir.path().join("selected"))[0].id(), "kselftest/b");
    }

    #[test]
    fn a_pattern_leaves_out_the_suites_that_cannot_have_it() {
        for (pattern, on_host, in_kernel, in_guest) in [
            ("row_0_17", true, true, true),
            ("cargo/skua-vm", true, false, false),
            ("kselftest/drivers", false, false, true),
            ("report::tests", true, false, false),
            ("bo.row_0_17", false, true, true),
            ("skua:bo.row_0_17", false, false, true),
            ("lib.rs - fence", true, true, true),
        ] {
            let (_dir, some) = report(Some(pattern));
            assert_eq!(some.may_want(Suite::Cargo), on_host, "{pattern}");
            assert_eq!(some.may_want(Suite::Kunit), in_kernel, "{pattern}");
            assert_eq!(some.may_want(Suite::Kselftest), in_guest, "{pattern}");
        }
    }
}
