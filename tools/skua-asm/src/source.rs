// SPDX-License-Identifier: MIT

//! A source with what it includes, as one list of lines.
//!
//! `.include "name"` stands for the lines of a file, which whoever calls the assembler finds. It
//! stands alone in its line; a file may include others, but not itself.

use crate::error::{Error, LineError};
use crate::expression::Cursor;
use crate::token::{tokens, Kind};

/// Followed by the file's name in quotes.
pub(crate) const INCLUDE: &str = ".include";

/// A line of the source or of a file that it includes.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The included file; none for the source itself.
    pub(crate) file: Option<String>,
    /// Number in its file, from 1.
    pub(crate) number: usize,
    /// Without what ends it.
    pub(crate) text: String,
    /// Number of the line of the source that it comes from, from 1.
    pub(crate) origin: usize,
}

impl Line {
    /// The line as an error in another one names it.
    pub(crate) fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("line {} of {file}", self.number),
            None => format!("line {}", self.number),
        }
    }
}

/// A source, being read.
pub(crate) struct Expansion<F> {
    /// Gives the text of an included file.
    find: F,
    /// What was read, with the lines of included files in place of the includes.
    pub(crate) lines: Vec<Line>,
    /// Each with the index of the line behind it.
    pub(crate) errors: Vec<(usize, Error)>,
    /// Names of the files that are being included.
    open: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Expansion<F> {
    /// Reads a source; `find` gives the text of an included file.
    pub(crate) fn new(source: &str, find: F) -> Self {
        let mut expansion = Self {
            find,
            lines: Vec::new(),
            errors: Vec::new(),
            open: Vec::new(),
        };
        expansion.read(source, None);
        expansion
    }

    fn read(&mut self, text: &str, origin: Option<usize>) {
        for (index, text) in text.lines().enumerate() {
            let line = Line {
                file: self.open.last().cloned(),
                number: index + 1,
                text: text.to_owned(),
                origin: origin.unwrap_or(index + 1),
            };
            match self.include(text) {
                Ok(None) => self.lines.push(line),
                Ok(Some((name, text))) => {
                    self.open.push(name);
                    self.read(&text, Some(line.origin));
                    self.open.pop();
                }
                Err(error) => self.errors.push((self.lines.len(), error.at(&line))),
            }
        }
    }

    /// The name and text of the file that a line includes, if it includes one.
    fn include(&self, line: &str) -> Result<Option<(String, String)>, LineError> {
        if !line.trim_start().starts_with(INCLUDE) {
            return Ok(None);
        }
        let tokens = tokens(line)?;
        let mut cursor = Cursor::new(&tokens, line);
        let (word, _) = cursor.word("a directive")?;
        if word != INCLUDE {
            return Ok(None);
        }
        let span = cursor.span();
        let Some(Kind::Text(name)) = cursor.next().map(|token| &token.kind) else {
            let message = "the name of a file is needed here, between quotes";
            return Err(LineError::new(span, message));
        };
        cursor.finish()?;
        if self.open.contains(name) {
            return Err(LineError::new(span, format!("`{name}` includes itself")));
        }
        let text = (self.find)(name)
            .ok_or_else(|| LineError::new(span, format!("there is no file `{name}`")))?;
        Ok(Some((name.clone(), text)))
    }
}
