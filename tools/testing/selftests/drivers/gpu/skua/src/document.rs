// SPDX-License-Identifier: MIT

//! KTAP, as `Documentation/dev-tools/ktap.rst` has it: the words of a test stand before its
//! result.

use std::io::Write;

use crate::child::End;

/// A KTAP document under way. Every line is written and flushed at once, so that what a dying
/// machine did last can be read.
#[derive(Debug)]
pub struct Document<W: Write> {
    output: W,
    number: usize,
    failed: usize,
}

impl<W: Write> Document<W> {
    /// Starts a document of `count` results.
    pub fn new(output: W, count: usize) -> Self {
        let mut document = Self {
            output,
            number: 0,
            failed: 0,
        };
        document.line("KTAP version 1");
        match count {
            0 => document.line("1..0 # SKIP nothing of this program was asked for"),
            count => document.line(&format!("1..{count}")),
        }
        document
    }

    /// Words of the test that runs.
    pub fn words(&mut self, words: &str) {
        self.line(&format!("# {words}"));
    }

    /// The result of a test.
    pub fn result(&mut self, name: &str, end: &End) {
        self.number += 1;
        let number = self.number;
        match end {
            End::Passed => self.line(&format!("ok {number} {name}")),
            End::Skipped(why) => self.line(&format!("ok {number} {name} # SKIP {why}")),
            End::Failed(why) => {
                self.failed += 1;
                self.line(&format!("not ok {number} {name} # {why}"));
            }
        }
    }

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    fn line(&mut self, line: &str) {
        // With nobody to read it there is nothing to tell.
        let _ = writeln!(self.output, "{line}").and_then(|()| self.output.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reads_as_ktap() {
        let mut text = Vec::new();
        let mut document = Document::new(&mut text, 3);
        document.result("a", &End::Passed);
        document.words("left: 1, right: 2");
        document.result("b", &End::Failed("exit status 101".into()));
        document.result("c", &End::Skipped("no vgem".into()));
        assert_eq!(document.failed(), 1);
        assert_eq!(
            String::from_utf8_lossy(&text),
            "KTAP version 1\n1..3\nok 1 a\n# left: 1, right: 2\nnot ok 2 b # exit status 101\n\
             ok 3 c # SKIP no vgem\n"
        );
    }

    #[test]
    fn an_empty_document_is_a_skip() {
        let mut text = Vec::new();
        Document::new(&mut text, 0);
        assert!(String::from_utf8_lossy(&text).contains("\n1..0 # SKIP "));
    }
}
