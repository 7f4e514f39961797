// SPDX-License-Identifier: MIT

//! KTAP, the kernel's test output (`Documentation/dev-tools/ktap.rst`): writing it, reading it
//! line by line, and flattening nested results.
//!
//! A result line closes the more deeply indented results before it: they become
//! `parent.child`. The lines of diagnosis before a result belong to it. A line `# begin NAME`
//! says which test runs from there on, for the case that its result never comes.

use std::fmt::Display;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// The verdict on a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// What it asserts holds.
    Pass,
    /// The rule does not hold.
    Fail,
    /// It did not run, for a stated reason.
    Skip,
}

/// What the words before a test say that announce it.
const BEGIN: &str = "begin ";

/// A document under way. Every line is flushed at once, so that what a dying machine did last
/// can be read.
#[derive(Debug)]
pub struct Writer<W: Write> {
    /// Flushed behind each line.
    output: W,
    /// Results so far; the next has one more.
    number: usize,
    /// How many of the results so far failed.
    failed: usize,
}

impl<W: Write> Writer<W> {
    /// Writes the head of a document; without a `plan` it is [closed](Writer::close) with one.
    ///
    /// # Errors
    ///
    /// What the output returned, as for all that follows.
    pub fn new(output: W, plan: Option<usize>) -> io::Result<Self> {
        let mut writer = Self {
            output,
            number: 0,
            failed: 0,
        };
        writer.line("KTAP version 1")?;
        match plan {
            Some(0) => writer.line("1..0 # SKIP nothing of this was asked for")?,
            Some(count) => writer.line(format_args!("1..{count}"))?,
            None => {}
        }
        Ok(writer)
    }

    /// Says which test runs now.
    ///
    /// # Errors
    ///
    /// What the output returned.
    pub fn begin(&mut self, name: &str) -> io::Result<()> {
        self.words(&format!("{BEGIN}{name}"))
    }

    /// Words of the test that runs.
    ///
    /// # Errors
    ///
    /// What the output returned.
    pub fn words(&mut self, words: &str) -> io::Result<()> {
        words
            .lines()
            .try_for_each(|line| self.line(format_args!("# {line}")))
    }

    /// A line of a document inside this one.
    ///
    /// # Errors
    ///
    /// What the output returned.
    pub fn nested(&mut self, line: &str) -> io::Result<()> {
        self.line(format_args!("    {line}"))
    }

    /// The result of a test, and why.
    ///
    /// # Errors
    ///
    /// What the output returned.
    pub fn result(&mut self, name: &str, verdict: Verdict, why: &str) -> io::Result<()> {
        self.number += 1;
        self.failed += usize::from(verdict == Verdict::Fail);
        let state = if verdict == Verdict::Fail {
            "not ok"
        } else {
            "ok"
        };
        let directive = if verdict == Verdict::Skip {
            "SKIP "
        } else {
            ""
        };
        let (number, name) = (self.number, name.replace('#', "_"));
        let note = format!(" # {directive}{}", why.replace('\n', " "));
        let note = if note == " # " { "" } else { note.trim_end() };
        self.line(format_args!("{state} {number} {name}{note}"))
    }

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// The plan at the end, of a document that did not know it before.
    ///
    /// # Errors
    ///
    /// What the output returned.
    pub fn close(mut self) -> io::Result<()> {
        let count = self.number;
        self.line(format_args!("1..{count}"))
    }

    fn line(&mut self, line: impl Display) -> io::Result<()> {
        // One write: whole among other writers.
        self.output.write_all(format!("{line}\n").as_bytes())?;
        self.output.flush()
    }
}

/// A line of KTAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// `KTAP version 1` or `TAP version 13`.
    Version,
    /// `1..N`.
    Plan(usize),
    /// `ok 1 name # SKIP reason` and its kin.
    Result {
        /// A directive on the line included.
        verdict: Verdict,
        /// The test's name, without number and dash.
        name: &'a str,
        /// What follows `#`, if anything.
        note: Option<&'a str>,
    },
    /// `Bail out!` and why.
    BailOut(&'a str),
    /// `# …`, and anything else: words for people.
    Words(&'a str),
}

/// Reads a line: its indentation in columns, and what it says.
pub fn parse(line: &str) -> (usize, Line<'_>) {
    let line = line.trim_end();
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let body = if text.starts_with("KTAP version ") || text.starts_with("TAP version ") {
        Line::Version
    } else if let Some(count) = text.strip_prefix("1..").and_then(plan) {
        Line::Plan(count)
    } else if let Some(result) = result(text) {
        result
    } else if let Some(why) = text.strip_prefix("Bail out!") {
        Line::BailOut(why.trim())
    } else {
        Line::Words(text)
    };
    (indent, body)
}

fn plan(text: &str) -> Option<usize> {
    text.split_whitespace().next()?.parse().ok()
}

fn result(text: &str) -> Option<Line<'_>> {
    let (verdict, rest) = match text.strip_prefix("not ok ") {
        Some(rest) => (Verdict::Fail, rest),
        None => (Verdict::Pass, text.strip_prefix("ok ")?),
    };
    let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    number.parse::<u64>().ok()?;
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("- ").unwrap_or(rest);
    let (name, note) = match rest.split_once("# ").or_else(|| rest.split_once('#')) {
        Some((name, note)) => (name.trim(), Some(note.trim())),
        None => (rest.trim(), None),
    };
    let skipped = note.is_some_and(|note| {
        note.get(..4)
            .is_some_and(|word| word.eq_ignore_ascii_case("skip"))
    });
    let expected = note.is_some_and(|note| {
        note.get(..5)
            .is_some_and(|word| word.eq_ignore_ascii_case("xfail"))
    });
    Some(Line::Result {
        // KTAP: a skipped test is `ok … # SKIP`; a `not ok … # SKIP` has failed to be skipped.
        verdict: match verdict {
            Verdict::Pass if skipped => Verdict::Skip,
            Verdict::Fail if expected => Verdict::Pass,
            other => other,
        },
        name,
        note,
    })
}

/// A finished test: one without tests inside it, or one that failed though none inside did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Outer names first, joined by dots.
    pub name: String,
    /// As it stands on its line; a broken plan makes it a failure.
    pub verdict: Verdict,
    /// The words before the result, and the note behind it.
    pub output: Vec<String>,
    /// What the caller said with the result's line.
    pub tag: u64,
}

/// Builds [`Finished`] tests out of a document's lines.
#[derive(Debug, Default)]
pub struct Reader {
    /// Tests whose outer result has not come yet, with their indentation.
    open: Vec<(usize, Finished)>,
    /// Said since the last result; at most [`WORDS`].
    words: Vec<String>,
    /// Indentation and length of the plans whose tests are under way, and how many of these came.
    plans: Vec<(usize, usize, usize)>,
    /// The test that was announced last and has no result yet.
    running: Option<String>,
    /// Whether a test that has ended failed.
    failed: bool,
    /// Whether there was a result.
    any: bool,
}

/// Output kept for one test, in lines; the rest is in the log of the guest.
const WORDS: usize = 200;

impl Reader {
    /// Takes a line; `tag` is kept with a result. Returns whether it was a result, and the tests
    /// that an outermost result finished.
    pub fn line(&mut self, line: &str, tag: u64) -> (bool, Vec<Finished>) {
        let (indent, body) = parse(line);
        match body {
            Line::Version => {}
            Line::Plan(count) => {
                self.plans.retain(|plan| plan.0 < indent);
                self.plans.push((indent, count, 0));
            }
            Line::Words(text) | Line::BailOut(text) => {
                let text = text.strip_prefix("# ").unwrap_or(text);
                if let Some(name) = text.strip_prefix(BEGIN) {
                    self.running = Some(name.to_owned());
                } else if self.words.len() < WORDS && !text.is_empty() {
                    self.words.push(text.to_owned());
                }
            }
            Line::Result {
                verdict,
                name,
                note,
            } => return (true, self.result(indent, verdict, name, note, tag)),
        }
        (false, Vec::new())
    }

    fn result(
        &mut self,
        indent: usize,
        mut verdict: Verdict,
        name: &str,
        note: Option<&str>,
        tag: u64,
    ) -> Vec<Finished> {
        self.running = None;
        let first = self
            .open
            .iter()
            .rposition(|(at, _)| *at <= indent)
            .map_or(0, |last| last + 1);
        let mut inner: Vec<Finished> = self.open.drain(first..).map(|(_, test)| test).collect();
        for test in &mut inner {
            test.name = format!("{name}.{}", test.name);
        }
        let mut output = std::mem::take(&mut self.words);
        output.extend(note.map(str::to_owned));
        while self.plans.last().is_some_and(|plan| plan.0 > indent) {
            let broken = self.broken_plan();
            self.plans.pop();
            if let (Some(words), Verdict::Pass) = (broken, verdict) {
                verdict = Verdict::Fail;
                output.push(words);
            }
        }
        if let Some(plan) = self.plans.last_mut().filter(|plan| plan.0 == indent) {
            plan.2 += 1;
        }
        let told = inner.iter().any(|test| test.verdict == Verdict::Fail);
        if inner.is_empty() || (verdict == Verdict::Fail && !told) {
            inner.push(Finished {
                name: name.to_owned(),
                verdict,
                output,
                tag,
            });
        }
        if indent == 0 {
            self.any = true;
            self.failed |= inner.iter().any(|test| test.verdict == Verdict::Fail);
            return inner;
        }
        self.open
            .extend(inner.into_iter().map(|test| (indent, test)));
        Vec::new()
    }

    /// What is wrong with the innermost plan: tests are missing, or too many.
    fn broken_plan(&self) -> Option<String> {
        let &(_, planned, seen) = self.plans.last()?;
        (planned != seen).then(|| format!("{planned} tests planned, {seen} reported"))
    }

    /// What is left at the document's end, where all is told that the plan promised.
    pub fn finish(self) -> Remainder {
        Remainder {
            broken: self.broken_plan(),
            unclosed: self.open.into_iter().map(|(_, test)| test).collect(),
            words: self.words,
            running: self.running,
            failed: self.failed,
            any: self.any,
        }
    }
}

/// What a document's lines left behind.
#[derive(Debug)]
pub struct Remainder {
    /// The innermost open plan was not kept: how.
    pub broken: Option<String>,
    /// Tests inside one that never reported.
    pub unclosed: Vec<Finished>,
    /// Words that no result followed.
    pub words: Vec<String>,
    /// The test that was running.
    pub running: Option<String>,
    /// A test that was told of has failed.
    pub failed: bool,
    /// A test was told of.
    pub any: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Finished> {
        let mut reader = Reader::default();
        (0..)
            .zip(text.lines())
            .flat_map(|(tag, line)| reader.line(line, tag).1)
            .collect()
    }

    fn names(tests: &[Finished]) -> Vec<(&str, Verdict)> {
        tests
            .iter()
            .map(|test| (test.name.as_str(), test.verdict))
            .collect()
    }

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(parse("KTAP version 1"), (0, Line::Version));
        assert_eq!(parse("  1..3"), (2, Line::Plan(3)));
        assert_eq!(parse("1..0 # SKIP no device"), (0, Line::Plan(0)));
        assert_eq!(
            parse("# ok 1 not a result").1,
            Line::Words("# ok 1 not a result")
        );
        assert_eq!(parse("ok then").1, Line::Words("ok then"));
        assert_eq!(parse("Bail out! no node").1, Line::BailOut("no node"));
        assert_eq!(
            parse("    not ok 12 - a b # exit=1"),
            (
                4,
                Line::Result {
                    verdict: Verdict::Fail,
                    name: "a b",
                    note: Some("exit=1")
                }
            )
        );
        let skip = parse("ok 1 a # skip why").1;
        assert!(matches!(
            skip,
            Line::Result {
                verdict: Verdict::Skip,
                ..
            }
        ));
        let expected = parse("not ok 1 a # XFAIL why").1;
        assert!(matches!(
            expected,
            Line::Result {
                verdict: Verdict::Pass,
                ..
            }
        ));
        // A word of several bytes where SKIP might stand.
        let odd = parse("ok 1 a # äöü").1;
        assert!(matches!(
            odd,
            Line::Result {
                verdict: Verdict::Pass,
                ..
            }
        ));
    }

    #[test]
    fn nested_results_carry_their_outer_names() {
        let tests = read(
            "KTAP version 1\n1..2\n    KTAP version 1\n    1..2\n    ok 1 a\n    # why\n\
             \x20   not ok 2 b\n\
             not ok 1 prog\nok 2 other # SKIP none\n",
        );
        assert_eq!(
            names(&tests),
            [
                ("prog.a", Verdict::Pass),
                ("prog.b", Verdict::Fail),
                ("other", Verdict::Skip)
            ]
        );
        assert_eq!(tests[1].output, ["why"]);
        assert_eq!(tests[1].tag, 6);
    }

    #[test]
    fn a_failure_without_a_failed_part_is_reported_itself() {
        let tests = read("    1..1\n    ok 1 a\nnot ok 1 prog # exit=139\n");
        assert_eq!(
            names(&tests),
            [("prog.a", Verdict::Pass), ("prog", Verdict::Fail)]
        );
        assert_eq!(tests[1].output, ["exit=139"]);
    }

    #[test]
    fn a_broken_plan_is_a_failure() {
        let tests = read("    1..3\n    ok 1 a\nok 1 prog\n");
        assert_eq!(
            names(&tests),
            [("prog.a", Verdict::Pass), ("prog", Verdict::Fail)]
        );
        assert_eq!(tests[1].output, ["3 tests planned, 1 reported"]);
    }

    #[test]
    fn what_a_dying_guest_had_reported_is_kept() {
        let mut reader = Reader::default();
        for line in ["1..2", "    ok 1 a", "# begin b", "# then it died"] {
            assert!(reader.line(line, 0).1.is_empty());
        }
        let rest = reader.finish();
        assert_eq!(names(&rest.unclosed), [("a", Verdict::Pass)]);
        assert_eq!(rest.words, ["then it died"]);
        assert_eq!(rest.running.as_deref(), Some("b"));
        assert_eq!(rest.broken.as_deref(), Some("2 tests planned, 0 reported"));
    }

    #[test]
    fn a_written_document_reads_back() {
        let mut text = Vec::new();
        let mut writer = Writer::new(&mut text, Some(3)).expect("memory");
        writer.begin("a").expect("memory");
        writer.result("a", Verdict::Pass, "").expect("memory");
        writer.nested("ok 1 b").expect("memory");
        writer.words("left: 1,\nright: 2").expect("memory");
        writer
            .result("b#", Verdict::Fail, "why\nnot")
            .expect("memory");
        writer
            .result("c", Verdict::Skip, "no vgem")
            .expect("memory");
        assert_eq!(writer.failed(), 1);
        let text = String::from_utf8(text).expect("text");
        assert_eq!(
            text,
            "KTAP version 1\n1..3\n# begin a\nok 1 a\n    ok 1 b\n# left: 1,\n# right: 2\n\
             not ok 2 b_ # why not\nok 3 c # SKIP no vgem\n"
        );
        let tests = read(&text);
        assert_eq!(
            names(&tests),
            [
                ("a", Verdict::Pass),
                ("b_.b", Verdict::Pass),
                ("b_", Verdict::Fail),
                ("c", Verdict::Skip)
            ]
        );
        assert_eq!(tests[2].output, ["left: 1,", "right: 2", "why not"]);
    }

    #[test]
    fn a_plan_may_stand_at_the_end() {
        let mut text = Vec::new();
        let mut writer = Writer::new(&mut text, None).expect("memory");
        writer.result("a", Verdict::Skip, "").expect("memory");
        writer.close().expect("memory");
        assert_eq!(
            String::from_utf8(text).expect("text"),
            "KTAP version 1\nok 1 a # SKIP\n1..1\n"
        );
        let mut text = Vec::new();
        Writer::new(&mut text, Some(0)).expect("memory");
        assert!(String::from_utf8_lossy(&text).contains("\n1..0 # SKIP "));
    }
}
