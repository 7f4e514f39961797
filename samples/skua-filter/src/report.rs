// SPDX-License-Identifier: MIT

//! What is written down about a run: lines of `key: value` in the order in which they were added.

use std::fmt;

/// Lines of a name and what there is to say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    lines: Vec<(&'static str, String)>,
}

impl Report {
    /// Adds a line. Line breaks in the value become spaces, so that each key stays on its line.
    pub fn add(&mut self, key: &'static str, value: impl fmt::Display) {
        self.lines
            .push((key, value.to_string().replace(['\n', '\r'], " ")));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.lines {
            writeln!(f, "{key}: {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_order() {
        let mut report = Report::default();
        report.add("filter", "blur");
        report.add("a", "two\nlines");
        assert_eq!(report.to_string(), "filter: blur\na: two lines\n");
    }
}
