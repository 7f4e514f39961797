// SPDX-License-Identifier: MIT

//! Core dumps of the Skua driver: what a GPU looked like when it failed. The kernel keeps one below
//! `/sys/class/devcoredump`; what its lines say is told in `scheduling.rst`.
//!
//! # Examples
//!
//! ```
//! let dump = "skua-coredump: 1\n\
//!             engine 0 (compute): device Some(Running) head 0x40 tail 0x50\n\
//!             \x200x40: 41020004 00000000 00000005 00000000\n";
//! assert!(skua_coredump::is_dump(dump));
//! let shown = skua_coredump::show(dump);
//! assert!(shown.ends_with(" 0x40: Fence { fence: 5, interrupt: true }\n"), "{shown}");
//! ```

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use skua_spec::command::Command;

/// Where the kernel has dumps.
const CLASS: &str = "/sys/class/devcoredump";

/// Whether the text is a dump of this driver, in the format that this crate knows.
pub fn is_dump(text: &str) -> bool {
    text.lines().next() == Some("skua-coredump: 1")
}

/// The dump with the commands of the rings by their names, instead of words. What is no command
/// stays as it is.
pub fn show(dump: &str) -> String {
    let mut shown = String::new();
    let mut words = Words::default();
    for line in dump.lines() {
        match words_of(line) {
            Some((at, more)) => {
                if at != words.end() {
                    words.flush(&mut shown);
                    words.at = at;
                }
                words.words.extend(more);
            }
            None => {
                words.flush(&mut shown);
                shown.push_str(line);
                shown.push('\n');
            }
        }
    }
    words.flush(&mut shown);
    shown
}

/// The offset in the ring and the words of a line that has such.
fn words_of(line: &str) -> Option<(u32, Vec<u32>)> {
    let (at, words) = line.strip_prefix(" 0x")?.split_once(':')?;
    let at = u32::from_str_radix(at, 16).ok()?;
    let words = words.split_whitespace().map(|word| {
        let is_word = word.len() == 8;
        u32::from_str_radix(word, 16).ok().filter(|_| is_word)
    });
    Some((at, words.collect::<Option<_>>()?))
}

/// Words that follow each other in a ring.
#[derive(Default)]
struct Words {
    /// Where the first one is, in bytes.
    at: u32,
    /// Those that were read and are not written yet.
    words: Vec<u32>,
}

impl Words {
    /// Where the next one would be.
    fn end(&self) -> u32 {
        // A ring is small.
        self.at.wrapping_add(self.words.len() as u32 * 4)
    }

    /// Writes the commands that they are; then there are none.
    fn flush(&mut self, out: &mut String) {
        let (mut at, mut left) = (self.at, &self.words[..]);
        while !left.is_empty() {
            let length = match Command::decode(left) {
                Ok((command, length)) => {
                    // Writing to a string cannot fail.
                    let _ = writeln!(out, " {at:#x}: {command:?}");
                    length
                }
                Err(reason) => {
                    let _ = write!(out, " {at:#x}: {reason:?}:");
                    for word in left {
                        let _ = write!(out, " {word:08x}");
                    }
                    out.push('\n');
                    left.len()
                }
            };
            left = &left[length..];
            at = at.wrapping_add(length as u32 * 4);
        }
        self.words.clear();
    }
}

/// Dumps of Skua GPUs that the kernel has, each with its file.
///
/// # Errors
///
/// If they cannot be read.
pub fn dumps() -> io::Result<Vec<(PathBuf, String)>> {
    let mut dumps = Vec::new();
    if !Path::new(CLASS).exists() {
        return Ok(dumps);
    }
    for entry in fs::read_dir(CLASS)? {
        let file = entry?.path().join("data");
        // Another one's is no text, and one that goes just now is not there.
        if let Ok(text) = fs::read_to_string(&file) {
            if is_dump(&text) {
                dumps.push((file, text));
            }
        }
    }
    dumps.sort();
    Ok(dumps)
}

/// Has the kernel drop a dump, so that it keeps the next one.
///
/// # Errors
///
/// If it is not there any more, or may not be written to.
pub fn clear(file: &Path) -> io::Result<()> {
    fs::write(file, "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use skua_spec::command::Command;

    fn line(at: u32, words: &[u32]) -> String {
        let words: Vec<String> = words.iter().map(|word| format!("{word:08x}")).collect();
        format!(" {at:#x}: {}\n", words.join(" "))
    }

    #[test]
    fn commands_go_on_over_lines_and_not_over_the_rings_end() {
        let fence = Command::Fence {
            fence: 7,
            interrupt: false,
        };
        let words: Vec<u32> = [fence; 3]
            .iter()
            .flat_map(|fence| fence.encode().words().to_vec())
            .collect();
        // Two lines in the midst of a command; then the ring begins anew.
        let dump = [
            line(0xffd8, &words[..6]),
            line(0xfff0, &words[6..8]),
            line(0, &words[8..]),
            "context 1: engine 0\n".to_owned(),
        ];
        let expected = format!(
            " 0xffd8: {fence:?}\n 0xffe8: {fence:?}\n 0x0: {fence:?}\ncontext 1: engine 0\n"
        );
        assert_eq!(show(&dump.concat()), expected);
    }

    #[test]
    fn what_is_no_command_stays() {
        let dump = [
            line(0x40, &[0xff00_0002, 1]),
            " 0x1000: bytes 0x1000 vram 0x2000 writable true snooped false\n".to_owned(),
            " packet 3: context 1\n".to_owned(),
        ];
        let shown = show(&dump.concat());
        assert!(
            shown.starts_with(" 0x40: BadOpcode: ff000002 00000001\n"),
            "{shown}"
        );
        assert!(shown.ends_with(&dump[1..].concat()), "{shown}");
        assert!(!is_dump(&shown));
    }
}
