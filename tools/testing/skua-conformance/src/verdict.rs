// SPDX-License-Identifier: MIT

//! Judges the rows: the table against the tree, and against a report.
//!
//! A row is proven if the table says so and all its tests ran and passed; it fails if it claims
//! tests, as proven or partial, of which one failed, was skipped or did not run. Table and tests
//! must agree both ways: a test named by a row carries the row in its name, and a test that
//! carries a row in its name is named there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::report::{Outcome, Test};
use crate::row::{Id, Row, Status};

/// The rows' number.
pub const ROWS: usize = 118;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rows of which everything holds.
    pub proven: usize,
    /// Rows that claim what does not hold.
    pub failing: usize,
    /// Rows that are neither proven nor failing, those that are proven in part among them.
    pub open: usize,
    /// What does not agree, in words.
    pub disagreements: Vec<String>,
}

impl Verdict {
    /// Whether everything that is claimed holds.
    pub fn is_well(&self) -> bool {
        self.disagreements.is_empty() && self.failing == 0
    }

    /// The closing line.
    pub fn summary(&self) -> String {
        let Self {
            proven,
            failing,
            open,
            ..
        } = self;
        format!("rows: {proven} proven, {failing} failing, {open} open of {ROWS}")
    }
}

/// What is wrong with a table by itself: rows that are missing or there twice, claims without
/// code or tests, tests whose names do not carry the row, code that is not in the tree below
/// `root`.
pub fn table(rows: &[Row], root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows {
        let id = row.id;
        if !seen.insert(id) {
            wrong.push(format!("line {}: row {id} is there twice", row.line));
        }
        if row.rule.is_empty() {
            wrong.push(format!("row {id} has no rule"));
        }
        if row.status.claims() && (row.code.is_empty() || row.tests.is_empty()) {
            wrong.push(format!("row {id} is claimed without code or without tests"));
        }
        for test in row.tests.iter().filter(|test| !test.contains(&id.tag())) {
            wrong.push(format!("row {id}: {test} does not name it"));
        }
        if !row.status.claims() && !row.tests.is_empty() {
            wrong.push(format!("row {id} names tests but claims nothing"));
        }
        for path in &row.code {
            if !root.join(path).exists() {
                wrong.push(format!("row {id}: there is no {path}"));
            }
        }
    }
    for id in Id::all().filter(|id| !seen.contains(id)) {
        wrong.push(format!("row {id} is missing"));
    }
    wrong
}

/// Judges a table by a report.
pub fn judge(rows: &[Row], root: &Path, report: &[Test]) -> Verdict {
    let mut verdict = Verdict {
        disagreements: table(rows, root),
        ..Verdict::default()
    };
    let mut tests: BTreeMap<String, Vec<&Test>> = BTreeMap::new();
    for test in report {
        tests.entry(test.id()).or_default().push(test);
    }
    for row in rows {
        let failures = failures(row, &tests);
        if row.status.claims() && !failures.is_empty() {
            verdict.failing += 1;
        } else if row.status == Status::Proven && !row.tests.is_empty() {
            verdict.proven += 1;
        } else {
            verdict.open += 1;
        }
        verdict.disagreements.extend(failures);
    }
    for test in report {
        for claimed in &test.rows {
            let named = rows
                .iter()
                .any(|row| row.id.to_string() == *claimed && row.tests.contains(&test.id()));
            if !named {
                verdict
                    .disagreements
                    .push(format!("{} is not named in row {claimed}", test.id()));
            }
        }
    }
    verdict
}

/// What a row claims and the report does not show.
fn failures(row: &Row, tests: &BTreeMap<String, Vec<&Test>>) -> Vec<String> {
    let mut failures = Vec::new();
    for name in &row.tests {
        let Some(found) = tests.get(name) else {
            failures.push(format!("row {}: {name} did not run", row.id));
            continue;
        };
        // It may have run in several guests.
        for test in found {
            match test.result {
                Outcome::Pass => {}
                Outcome::Fail => failures.push(format!("row {}: {name} failed", row.id)),
                Outcome::Skip => failures.push(format!("row {}: {name} was skipped", row.id)),
            }
            if !test.rows.contains(&row.id.to_string()) {
                failures.push(format!("row {}: {name} does not name it", row.id));
            }
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: Id) -> Row {
        Row {
            id,
            rule: "A rule.".into(),
            code: vec![],
            tests: vec![],
            status: Status::Open,
            line: 1,
        }
    }

    /// A whole table whose first row claims a test.
    fn rows(status: Status) -> Vec<Row> {
        let mut rows: Vec<Row> = Id::all().map(row).collect();
        rows[0].status = status;
        rows[0].tests = vec!["kselftest/c:bo.row_0_01_a".into()];
        rows[0].code = vec!["src".into()];
        rows
    }

    fn test(result: Outcome, rows: &[&str]) -> Vec<Test> {
        vec![Test {
            test: "c:bo.row_0_01_a".into(),
            suite: "kselftest".into(),
            result,
            rows: rows.iter().map(|row| (*row).to_owned()).collect(),
        }]
    }

    fn judged(status: Status, report: &[Test]) -> (String, bool) {
        let verdict = judge(&rows(status), Path::new(env!("CARGO_MANIFEST_DIR")), report);
        (verdict.summary(), verdict.is_well())
    }

    #[test]
    fn a_row_is_proven_by_a_test_that_passed() {
        let report = test(Outcome::Pass, &["0.01"]);
        assert_eq!(
            judged(Status::Proven, &report),
            ("rows: 1 proven, 0 failing, 117 open of 118".into(), true)
        );
        assert_eq!(
            judged(Status::Partial, &report),
            ("rows: 0 proven, 0 failing, 118 open of 118".into(), true)
        );
    }

    #[test]
    fn a_claim_without_a_passed_test_fails() {
        for report in [
            vec![],
            test(Outcome::Fail, &["0.01"]),
            test(Outcome::Skip, &["0.01"]),
            test(Outcome::Pass, &[]),
        ] {
            assert_eq!(
                judged(Status::Proven, &report),
                ("rows: 0 proven, 1 failing, 117 open of 118".into(), false)
            );
            assert!(!judged(Status::Partial, &report).1);
        }
    }

    #[test]
    fn a_test_that_no_row_names_is_a_disagreement() {
        let report = test(Outcome::Pass, &["0.01", "0.02"]);
        assert!(!judged(Status::Proven, &report).1);
    }

    #[test]
    fn a_failed_test_beside_a_passed_one_of_the_same_name_fails_the_row() {
        let mut report = test(Outcome::Pass, &["0.01"]);
        report.extend(test(Outcome::Fail, &["0.01"]));
        assert!(!judged(Status::Proven, &report).1);
    }

    #[test]
    fn a_table_must_be_whole_and_true() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(table(&rows(Status::Proven), root), Vec::<String>::new());
        let edit = |edit: fn(&mut Vec<Row>)| {
            let mut rows = rows(Status::Proven);
            edit(&mut rows);
            table(&rows, root)
        };
        assert_eq!(edit(|rows| rows.truncate(117)), ["row 4.15 is missing"]);
        assert_eq!(
            edit(|rows| rows.push(rows[3].clone())),
            ["line 1: row 0.04 is there twice"]
        );
        assert_eq!(
            edit(|rows| rows[0].code = vec!["nowhere.rs".into()]),
            ["row 0.01: there is no nowhere.rs"]
        );
        assert_eq!(
            edit(|rows| rows[0].tests.clear()),
            ["row 0.01 is claimed without code or without tests"]
        );
        assert_eq!(
            edit(|rows| rows[0].status = Status::Open),
            ["row 0.01 names tests but claims nothing"]
        );
        assert_eq!(edit(|rows| rows[0].rule.clear()), ["row 0.01 has no rule"]);
    }
}
