// SPDX-License-Identifier: MIT

//! Reads the report of a test run, `out/test/report.json`.

use serde::Deserialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The test ran, and what it asserts held.
    Pass,
    /// An assertion failed, or it did not end.
    Fail,
    /// The test said why it could not run here.
    Skip,
}

/// A test of a report; what else a report says of it is not needed here.
#[derive(Clone, Debug, Deserialize)]
pub struct Test {
    /// Full name of the test in the suite, as its KTAP line has it.
    pub test: String,
    /// What stands before the first slash of its id.
    pub suite: String,
    /// One that was skipped proves nothing.
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
