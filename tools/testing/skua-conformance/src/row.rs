// SPDX-License-Identifier: MIT

//! The rows: which there are, and what the table says of one.

use std::fmt;

/// Rows of each of the five seeds.
const ROWS: [u8; 5] = [32, 22, 25, 24, 15];

/// The number of a row: the seed, and the row in it from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    seed: u8,
    row: u8,
}

impl Id {
    /// Every row, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..)
            .zip(ROWS)
            .flat_map(|(seed, rows)| (1..=rows).map(move |row| Self { seed, row }))
    }

    /// The row that `0.01` names, if there is one.
    pub fn parse(text: &str) -> Option<Self> {
        let (seed, row) = text.split_once('.')?;
        let id = Self {
            seed: seed.parse().ok()?,
            row: row.parse().ok()?,
        };
        let rows = *ROWS.get(usize::from(id.seed))?;
        ((1..=rows).contains(&id.row) && id.to_string() == text).then_some(id)
    }

    /// What the name of a test that proves the row carries: `row_0_01_`.
    pub fn tag(self) -> String {
        format!("row_{}_{:02}_", self.seed, self.row)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.seed, self.row)
    }
}

/// How far a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All of the rule holds, and the tests fail if it does not.
    Proven,
    /// A part of the rule holds and is tested.
    Partial,
    /// Nothing that counts.
    Open,
}

impl Status {
    /// The status of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "proven" => Self::Proven,
            "partial" => Self::Partial,
            "open" => Self::Open,
            _ => return None,
        })
    }

    /// Whether tests stand behind it.
    pub fn claims(self) -> bool {
        matches!(self, Self::Proven | Self::Partial)
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Unique in the table.
    pub id: Id,
    /// The rule, for people.
    pub rule: String,
    /// Paths of the code that implements it.
    pub code: Vec<String>,
    /// The tests that prove it, as the report names them.
    pub tests: Vec<String>,
    /// How far it is.
    pub status: Status,
    /// Line of the row in the table's file, from 1, for messages.
    pub line: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_118_rows() {
        assert_eq!(Id::all().count(), 118);
        for id in Id::all() {
            assert_eq!(Id::parse(&id.to_string()), Some(id));
        }
    }

    #[test]
    fn other_numbers_are_no_rows() {
        for text in [
            "", "0", "0.1", "0.00", "0.33", "5.01", "0.001", "a.01", "0.01x", "-0.01",
        ] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
    }
}
