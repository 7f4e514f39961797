// SPDX-License-Identifier: MIT

//! Reads the report of a test run, `out/test/report.json`.

use serde::Deserialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It held.
    Pass,
    /// It did not.
    Fail,
    /// It did not run.
    Skip,
}

/// A test of a report; what else a report says of it is not needed here.
#[derive(Clone, Debug, Deserialize)]
pub struct Test {
    /// Its name in the suite.
    pub test: String,
    /// Its suite.
    pub suite: String,
    /// How it ended.
    pub result: Outcome,
    /// The rows that it claims to prove, as `0.17`.
    pub rows: Vec<String>,
}

impl Test {
    /// The test's whole name, as a table has it.
    pub fn id(&self) -> String {
        format!("{}/{}", self.suite, self.test)
    }
}

/// Reads a report.
///
/// # Errors
///
/// What is wrong with its form.
pub fn parse(text: &str) -> serde_json::Result<Vec<Test>> {
    serde_json::from_str(text)
}
