// SPDX-License-Identifier: MIT

//! What is wrong in a source, and where.
//!
//! An error points at a span of one line, and carries that line, so that it can be shown without
//! the source at hand. Columns count characters from 1; tabs count as one.

use std::fmt;

use crate::source::Line;

/// An error in an assembly source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The included file that it is in; none if it is in the source itself.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: usize,
    /// Column of the first character concerned, from 1.
    pub column: usize,
    /// Characters concerned, at least 1.
    pub length: usize,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// What may help, if anything is known.
    pub help: Option<String>,
    /// The line itself, without its end.
    pub source: String,
}

impl Error {
    /// The error with the name of its file before line and column, as compilers print it. The
    /// source's own name is `file`.
    pub fn display<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        Shown { error: self, file }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown {
            error: self,
            file: "",
        }
        .fmt(f)
    }
}

impl std::error::Error for Error {}

struct Shown<'a> {
    error: &'a Error,
    file: &'a str,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error {
            file,
            line,
            column,
            length,
            message,
            help,
            source,
        } = self.error;
        let file = file.as_deref().unwrap_or(self.file);
        if !file.is_empty() {
            write!(f, "{file}:")?;
        }
        writeln!(f, "{line}:{column}: error: {message}")?;
        writeln!(f, "{line:5} | {source}")?;
        // Tabs are repeated so that the caret stands below its place at any tab width.
        let indent: String = source
            .chars()
            .take(column.saturating_sub(1))
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        write!(f, "      | {indent}{}", "^".repeat(*length))?;
        if let Some(help) = help {
            write!(f, " {help}")?;
        }
        Ok(())
    }
}

/// A span of columns in the line at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Index of the first character, from 0.
    pub(crate) start: usize,
    /// Index behind the last character.
    pub(crate) end: usize,
}

impl Span {
    /// From the start of `self` to the end of `last`.
    pub(crate) fn to(self, last: Self) -> Self {
        Self {
            start: self.start,
            end: last.end.max(self.end),
        }
    }
}

/// An error in the line at hand, before it is known which line that is.
#[derive(Debug)]
pub(crate) struct LineError {
    /// The part of the line that is marked.
    pub(crate) span: Span,
    /// What is wrong.
    pub(crate) message: String,
    /// What would be right, if that is known.
    pub(crate) help: Option<String>,
}

impl LineError {
    pub(crate) fn new(span: Span, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            help: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The error, at a line.
    pub(crate) fn at(self, line: &Line) -> Error {
        Error {
            file: line.file.clone(),
            line: line.number,
            column: self.span.start + 1,
            length: self.span.end.saturating_sub(self.span.start).max(1),
            message: self.message,
            help: self.help,
            source: line.text.clone(),
        }
    }
}

/// The candidate nearest to `word`, if one is near enough to be what was meant.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (distance(word, c), c))
        .min()
        .filter(|(d, c)| *d <= 1 + c.len().min(word.len()) / 4)
        .map(|(_, c)| c)
}

/// Insertions, deletions, replacements and swaps of neighbours that make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Rows i-2, i-1 and i of the table of distances between the first i and the first j characters.
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (above[j] + 1).min(row[j - 1] + 1).min(above[j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", ""), 0);
        assert_eq!(distance("", "add"), 3);
        assert_eq!(distance("ad", "add"), 1);
        assert_eq!(distance("dad", "add"), 1);
        assert_eq!(distance("ld.u8", "st.8"), 3);
        assert_eq!(nearest("ad", ["nop", "add", "sub"]), Some("add"));
        assert_eq!(nearest("frobnicate", ["nop", "add", "sub"]), None);
    }
}
