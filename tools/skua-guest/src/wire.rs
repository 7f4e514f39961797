// SPDX-License-Identifier: MIT

//! The second serial port, `/dev/ttyS1` in the guest: KTAP and a few marked lines.
//!
//! The kernel's console is the first port, so that no kernel message can cut a line of a test
//! in two. On the second, what starts with [`PREFIX`] is for `skua-vm`, all else is KTAP. Each
//! line is one `write(2)`, which the tty layer keeps whole among writers.
//!
//! | guest to host | meaning |
//! |---|---|
//! | `@skua mark N` | the result just reported ends at the kernel message `skua-mark: N` |
//! | `@skua begin NAME SECONDS` | test program NAME starts and may be silent for so long |
//! | `@skua end NAME` | it is over |
//! | `@skua ask ID REQUEST` | see [`crate::host`]; answered by `@skua re ID ANSWER` |
//! | `@skua exit STATUS` | the job is done, the guest powers off |

/// The device of the second serial port.
pub const PORT: &str = "/dev/ttyS1";

/// What a line for `skua-vm` starts with.
pub const PREFIX: &str = "@skua ";

/// What a kernel message that separates the tests' kernel messages says before its number.
pub const MARK: &str = "skua-mark: ";

/// What a line with the mark of this protocol says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The last result ends at this mark of the kernel log.
    Mark(u64),
    /// A test program starts.
    Begin {
        /// Its entry in the list of tests.
        name: String,
        /// How long it may be silent, in seconds.
        seconds: u64,
    },
    /// A test program is over.
    End(String),
    /// A test asks the host for something.
    Ask {
        /// Which question it is: its answer has it, too.
        id: String,
        /// What the host is asked to do.
        request: String,
    },
    /// The host answers one [`Message::Ask`].
    Answer {
        /// Identifier of the question that it answers.
        id: String,
        /// What the host says: `ok…` or `error …`.
        answer: String,
    },
    /// The guest is done.
    Exit(i32),
}

impl Message {
    /// Reads a line; `None` if it is not for `skua-vm` or not understood.
    pub fn parse(line: &str) -> Option<Self> {
        let (verb, rest) = split(line.trim_end().strip_prefix(PREFIX)?);
        Some(match verb {
            "mark" => Self::Mark(rest.parse().ok()?),
            "begin" => {
                let (name, seconds) = split(rest);
                Self::Begin {
                    name: name.to_owned(),
                    seconds: seconds.parse().ok()?,
                }
            }
            "end" => Self::End(rest.to_owned()),
            "ask" => {
                let (id, request) = split(rest);
                Self::Ask {
                    id: id.to_owned(),
                    request: request.to_owned(),
                }
            }
            "re" => {
                let (id, answer) = split(rest);
                Self::Answer {
                    id: id.to_owned(),
                    answer: answer.to_owned(),
                }
            }
            "exit" => Self::Exit(rest.parse().ok()?),
            _ => return None,
        })
    }
}

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mark(n) => write!(f, "{PREFIX}mark {n}"),
            Self::Begin { name, seconds } => write!(f, "{PREFIX}begin {name} {seconds}"),
            Self::End(name) => write!(f, "{PREFIX}end {name}"),
            Self::Ask { id, request } => write!(f, "{PREFIX}ask {id} {request}"),
            Self::Answer { id, answer } => write!(f, "{PREFIX}re {id} {answer}"),
            Self::Exit(status) => write!(f, "{PREFIX}exit {status}"),
        }
    }
}

fn split(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_reads_back() {
        for message in [
            Message::Mark(7),
            Message::Begin {
                name: "drivers/gpu/skua:bo".into(),
                seconds: 45,
            },
            Message::End("drivers/gpu/skua:bo".into()),
            Message::Ask {
                id: "12.0".into(),
                request: "gpu-kill".into(),
            },
            Message::Answer {
                id: "12.0".into(),
                answer: "error no such request".into(),
            },
            Message::Exit(-3),
        ] {
            assert_eq!(Message::parse(&format!("{message}\r\n")), Some(message));
        }
    }

    #[test]
    fn other_lines_are_not_messages() {
        for line in [
            "ok 1 a",
            "@skua",
            "@skua mark x",
            "@skua dance",
            " @skua mark 1",
        ] {
            assert_eq!(Message::parse(line), None, "{line}");
        }
    }
}
