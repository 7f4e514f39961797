// SPDX-License-Identifier: MIT

//! Tables of cases: all of them run, and all that fail are told.

use std::fmt::Debug;

/// Takes the outcome of every case of a table, and fails once at the end.
#[derive(Debug, Default)]
pub struct Cases {
    /// Of all, failed or not.
    count: usize,
    /// A line for each.
    failures: Vec<String>,
}

impl Cases {
    /// A table of which no case has run.
    pub fn new() -> Self {
        Self::default()
    }

    /// A case that must give `expected`.
    pub fn expect<T: PartialEq + Debug>(&mut self, case: &str, seen: T, expected: T) {
        self.count += 1;
        if seen != expected {
            self.failures
                .push(format!("{case}: saw {seen:?}, expected {expected:?}"));
        }
    }

    /// A case that must hold; `seen` is told otherwise.
    pub fn holds(&mut self, case: &str, holds: bool, seen: impl Debug) {
        self.count += 1;
        if !holds {
            self.failures.push(format!("{case}: saw {seen:?}"));
        }
    }

    /// The end of the table.
    ///
    /// # Panics
    ///
    /// If a case failed, or there was none.
    #[track_caller]
    pub fn finish(self) {
        assert!(self.count > 0, "the table is empty");
        for failure in &self.failures {
            println!("{failure}");
        }
        assert!(
            self.failures.is_empty(),
            "{} of {} cases failed",
            self.failures.len(),
            self.count
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cases_run() {
        let mut cases = Cases::new();
        cases.expect("one", 1, 1);
        cases.holds("two", true, 2);
        cases.finish();
    }

    #[test]
    #[should_panic(expected = "2 of 3 cases failed")]
    fn failures_are_counted() {
        let mut cases = Cases::new();
        cases.expect("one", 1, 2);
        cases.expect("two", 2, 2);
        cases.holds("three", false, 3);
        cases.finish();
    }

    #[test]
    #[should_panic(expected = "empty")]
    fn an_empty_table_proves_nothing() {
        Cases::new().finish();
    }
}
