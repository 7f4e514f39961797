// SPDX-License-Identifier: MIT

//! The kernel's log as a test run sees it: marks between the tests, and errors of the driver that
//! no test announced.
//!
//! The driver says with `dev_err!` what a healthy device never makes it say. A test that makes it
//! say that announces it first ([`skua_guest::host::expect_error`]); what was not announced is
//! complained about, in the log and in words that fail the test that runs.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use skua_guest::host::EXPECT;
use skua_guest::wire::MARK;

/// The most severe levels: KERN_ERR and what is worse.
const ERROR: u32 = 3;

/// What lockdep says when it gives up, for lack of room more quietly than a console shows.
const LOCKDEP_OFF: &str = "turning off the locking correctness validator";

/// The kernel's log: what is said there is read, and lines of our own are written.
pub(crate) struct KernelLog {
    /// Reads records, and writes marks.
    file: File,
    /// Number of the last one set.
    mark: u64,
    /// What the running program said that the driver will complain about.
    expected: Vec<String>,
}

impl KernelLog {
    /// The log from here on.
    pub(crate) fn open() -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open("/dev/kmsg")?;
        io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(Self {
            file,
            mark: 0,
            expected: Vec::new(),
        })
    }

    /// Ends what belongs to the last result; returns the mark's number.
    pub(crate) fn set_mark(&mut self) -> io::Result<u64> {
        for words in self.unexpected()? {
            let line = format!("<4>WARNING: an error that no test announced: {words}\n");
            self.file.write_all(line.as_bytes())?;
        }
        self.mark += 1;
        self.file
            .write_all(format!("<6>{MARK}{}\n", self.mark).as_bytes())?;
        Ok(self.mark)
    }

    /// A program is over, and what it announced.
    pub(crate) fn end_program(&mut self) {
        self.expected.clear();
    }

    /// The driver's errors since the last look that nobody announced, and the end of lockdep.
    fn unexpected(&mut self) -> io::Result<Vec<String>> {
        let mut unexpected = Vec::new();
        // A read returns one record, whole.
        let mut record = [0; 8192];
        loop {
            let length = match self.file.read(&mut record) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(unexpected),
                // Records were overwritten before they were read; or the guest went to sleep.
                Err(error)
                    if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) =>
                {
                    continue
                }
                Err(error) => return Err(error),
            };
            let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
            let Some((level, words)) = parse(&text) else {
                continue;
            };
            if let Some(announced) = words.strip_prefix(EXPECT) {
                self.expected.push(announced.to_owned());
            } else if words.starts_with(LOCKDEP_OFF)
                || level <= ERROR
                    && is_driver(words)
                    && !self.expected.iter().any(|known| words.contains(known))
            {
                unexpected.push(words.to_owned());
            }
        }
    }
}

/// Level and words of a record: `6,339,5140900,-;words`, then its dictionary.
fn parse(record: &str) -> Option<(u32, &str)> {
    let (head, rest) = record.split_once(';')?;
    let facility_and_level: u32 = head.split(',').next()?.parse().ok()?;
    Some((facility_and_level & 7, rest.lines().next()?))
}

/// Whether the driver said it: `skua 0000:00:03.0: …` or `skua: …`.
fn is_driver(words: &str) -> bool {
    words
        .strip_prefix("skua")
        .is_some_and(|rest| rest.starts_with([' ', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let record = "3,339,5140900,-;skua 0000:00:03.0: gone\n SUBSYSTEM=pci\n";
        assert_eq!(parse(record), Some((3, "skua 0000:00:03.0: gone")));
        // A facility other than the kernel's.
        assert_eq!(
            parse("12,1,1,-;skua-expect: gone\n"),
            Some((4, "skua-expect: gone"))
        );
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn the_driver_is_known_by_its_name() {
        assert!(is_driver("skua 0000:00:03.0: gone") && is_driver("skua: gone"));
        assert!(!is_driver("skua-mark: 3") && !is_driver("pci 0000:00:03.0: skua"));
    }
}
