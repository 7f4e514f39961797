// SPDX-License-Identifier: MIT

//! Which tests share a guest, and what that guest is like.
//!
//! The tests say so themselves, in `guests.json` beside them, installed with them:
//!
//! ```json
//! [
//!   {
//!     "name": "small-vram",
//!     "programs": ["evict_*"],
//!     "gpu": ["--vram-size", "8M"],
//!     "module": "watchdog_ms=100",
//!     "cmdline": "",
//!     "machine": "max-ram-below-4g=512M",
//!     "iommu": false,
//!     "second_gpu": false,
//!     "may_die_of": "panic: on purpose"
//!   }
//! ]
//! ```
//!
//! Guests begin in their order: who begins with those that take long does not end with them.
//!
//! Only `name` and `programs` are needed. A program runs in the first guest that names it, or
//! in the guest `default`, whose other properties may be given too; `*` stands for any text.
//! With `"alone": true` each of the programs has a boot of its own; with `"sleeps": true` they may
//! send the guest to sleep. Time-outs among the module's parameters are longer on a slow kernel,
//! but with `"exact": true`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The guest of programs that no other names.
const DEFAULT: &str = "default";

/// A guest, and the programs that run in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guest {
    /// What the reports call it.
    pub(crate) name: String,
    /// Patterns of program names; in a plan, entries of the list of tests.
    #[serde(default)]
    pub(crate) programs: Vec<String>,
    /// More options of the GPU server.
    #[serde(default)]
    pub(crate) gpu: Vec<String>,
    /// Parameters of the module, as `name=value`, between spaces.
    #[serde(default)]
    pub(crate) module: String,
    /// More words of the kernel command line.
    #[serde(default)]
    pub(crate) cmdline: String,
    /// More properties of QEMU's machine. With memory above 4 GiB, large BARs are there, too.
    #[serde(default)]
    pub(crate) machine: String,
    /// Put an IOMMU before the GPU.
    #[serde(default)]
    pub(crate) iommu: bool,
    /// There is a second GPU like the first.
    #[serde(default)]
    pub(crate) second_gpu: bool,
    /// Words of a death of this guest that passes the test that runs: what QEMU or the kernel said
    /// last has them. Any other death fails as always.
    #[serde(default)]
    pub(crate) may_die_of: Option<String>,
    /// Whether each program has a boot of its own.
    #[serde(default)]
    pub(crate) alone: bool,
    /// The time-outs of its `module` are what is tested: on a slow kernel they are the same.
    #[serde(default)]
    pub(crate) exact: bool,
    /// The guest sleeps: its root is in memory, and it has none of the shares.
    #[serde(default)]
    pub(crate) sleeps: bool,
}

/// Reads the installed tests and their guests: `kselftest/` of the products.
///
/// # Errors
///
/// If there is no list of tests, or a `guests.json` cannot be understood.
pub(crate) fn read(kselftest: &Path) -> Result<Vec<Guest>> {
    let list = kselftest.join("kselftest-list.txt");
    let list = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let entries: Vec<&str> = list.lines().filter(|line| line.contains(':')).collect();
    let mut guests = Vec::new();
    let mut collections: Vec<&str> = entries
        .iter()
        .filter_map(|entry| entry.split_once(':').map(|(collection, _)| collection))
        .collect();
    collections.dedup();
    for collection in collections {
        let path = kselftest.join(collection).join("guests.json");
        if let Ok(text) = fs::read(&path) {
            let more: Vec<Guest> =
                serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
            guests.extend(more);
        }
    }
    Ok(assign(guests, &entries))
}

/// Puts every entry into a guest. They keep their order, the default guest comes last if it is not
/// named; guests without programs go.
pub(crate) fn assign(mut guests: Vec<Guest>, entries: &[&str]) -> Vec<Guest> {
    let named = guests.iter().position(|guest| guest.name == DEFAULT);
    let default = named.unwrap_or_else(|| {
        guests.push(Guest {
            name: DEFAULT.to_owned(),
            ..Guest::default()
        });
        guests.len() - 1
    });
    let patterns: Vec<Vec<String>> = guests
        .iter_mut()
        .map(|guest| std::mem::take(&mut guest.programs))
        .collect();
    for entry in entries {
        let program = entry.split_once(':').map_or(*entry, |(_, program)| program);
        let at = patterns
            .iter()
            .position(|list| list.iter().any(|pattern| matches(pattern, program)))
            .unwrap_or(default);
        if let Some(guest) = guests.get_mut(at) {
            guest.programs.push((*entry).to_owned());
        }
    }
    guests
        .into_iter()
        .filter(|guest| !guest.programs.is_empty())
        .flat_map(|guest| {
            if !guest.alone || guest.programs.len() == 1 {
                return vec![guest];
            }
            let part = |entry: &String| {
                let program = entry.rsplit(':').next().unwrap_or_default();
                guest.part(program, vec![entry.clone()])
            };
            guest.programs.iter().map(part).collect()
        })
        .collect()
}

impl Guest {
    /// Whether it is like any: the [`DEFAULT`], or a part of it.
    pub(crate) fn is_default(&self) -> bool {
        self.name
            .strip_prefix(DEFAULT)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// A guest like this for some of its programs.
    fn part(&self, name: &str, programs: Vec<String>) -> Self {
        Self {
            name: format!("{}-{name}", self.name),
            programs,
            ..self.clone()
        }
    }
}

/// Deals the programs of each guest that has many out to several like it, `most` in each, so
/// that guests which run side by side end at about the same time.
pub(crate) fn deal(guests: Vec<Guest>, most: usize) -> Vec<Guest> {
    let part = |guest: Guest| {
        if guest.programs.len() <= most {
            return vec![guest];
        }
        let hands = guest.programs.len().div_ceil(most);
        (0..hands)
            .map(|hand| {
                let programs = guest.programs.iter().skip(hand).step_by(hands);
                guest.part(&(hand + 1).to_string(), programs.cloned().collect())
            })
            .collect()
    };
    guests.into_iter().flat_map(part).collect()
}

/// Whether a text is what the pattern says, `*` being any text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| rest.get(at..).is_some_and(|rest| matches(tail, rest)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(name: &str, programs: &[&str]) -> Guest {
        Guest {
            name: name.into(),
            programs: programs.iter().map(|name| (*name).to_owned()).collect(),
            ..Guest::default()
        }
    }

    #[test]
    fn stars_match_any_text() {
        for (pattern, text, expected) in [
            ("bo", "bo", true),
            ("bo", "bob", false),
            ("bo*", "bo", true),
            ("*_kill", "server_kill", true),
            ("*_kill", "server_killed", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "äö", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn every_program_has_one_guest() {
        let plan = assign(
            vec![guest("small", &["evict*"]), guest("unused", &["nothing"])],
            &["c:bo", "c:evict_a", "c:evict_b", "c:vm"],
        );
        assert_eq!(
            plan,
            [
                guest("small", &["c:evict_a", "c:evict_b"]),
                guest("default", &["c:bo", "c:vm"])
            ]
        );
    }

    #[test]
    fn the_default_may_have_properties_and_programs_may_be_alone() {
        let default = Guest {
            cmdline: "quiet".into(),
            ..guest("default", &[])
        };
        let kill = Guest {
            alone: true,
            ..guest("kill", &["*_kill"])
        };
        let plan = assign(vec![default, kill], &["c:a_kill", "c:bo", "c:b_kill"]);
        let names: Vec<_> = plan.iter().map(|guest| guest.name.as_str()).collect();
        assert_eq!(names, ["default", "kill-a_kill", "kill-b_kill"]);
        assert_eq!(plan[0].cmdline, "quiet");
        let is_default: Vec<_> = plan.iter().map(Guest::is_default).collect();
        assert_eq!(is_default, [true, false, false]);
    }

    #[test]
    fn many_programs_are_dealt_out() {
        let plan = vec![guest("b", &["6"]), guest("a", &["1", "2", "3", "4", "5"])];
        assert_eq!(
            deal(plan.clone(), 2),
            [
                guest("b", &["6"]),
                guest("a-1", &["1", "4"]),
                guest("a-2", &["2", "5"]),
                guest("a-3", &["3"])
            ]
        );
        assert_eq!(deal(plan.clone(), 5), plan);
    }

    #[test]
    fn a_misspelt_property_is_refused() {
        let text = r#"[{"name": "a", "programms": []}]"#;
        assert!(serde_json::from_str::<Vec<Guest>>(text).is_err());
    }
}
