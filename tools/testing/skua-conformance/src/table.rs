// SPDX-License-Identifier: MIT

//! Reads the table: the `list-table` directives of an rst file whose rows have five columns,
//!
//! ```rst
//!    * - 0.17
//!      - What the rule says, over as many
//!        lines as it takes.
//!      - ``rust/kernel/pages.rs``
//!      - ``mmap.row_0_17_whole_vram_at_once``
//!      - proven
//! ```
//!
//! Code and tests are the literals of their cells; `—` stands for none. A test without `/` is one
//! of the driver's kselftests.

use crate::row::{Id, Row, Status};

/// What the name of a kselftest starts with in a report.
const KSELFTEST: &str = "kselftest/drivers/gpu/skua:";

/// Reads the rows of an rst file.
///
/// # Errors
///
/// All that is wrong with its form, each with its line.
pub fn parse(text: &str) -> Result<Vec<Row>, Vec<String>> {
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for (line, cells) in entries(text) {
        match row(line, &cells) {
            Ok(Some(row)) => rows.push(row),
            Ok(None) => {}
            Err(why) => wrong.push(format!("line {line}: {why}")),
        }
    }
    if wrong.is_empty() {
        Ok(rows)
    } else {
        Err(wrong)
    }
}

/// The rows of all list-tables as line and cells. A cell's lines are joined by spaces.
fn entries(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut entries: Vec<(usize, Vec<String>)> = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let body = line.trim_start();
        if line.starts_with(".. ") {
            inside = line.starts_with(".. list-table::");
            continue;
        }
        if !body.is_empty() && body.len() == line.len() {
            inside = false;
        }
        if !inside {
            continue;
        }
        if let Some(cell) = body.strip_prefix("* - ") {
            entries.push((number, vec![cell.trim().to_owned()]));
        } else if let Some((_, cells)) = entries.last_mut() {
            if let Some(cell) = body.strip_prefix("- ") {
                cells.push(cell.trim().to_owned());
            } else if !body.is_empty() && !body.starts_with(':') {
                if let Some(cell) = cells.last_mut() {
                    cell.push(' ');
                    cell.push_str(body.trim_end());
                }
            }
        }
    }
    entries
}

fn row(line: usize, cells: &[String]) -> Result<Option<Row>, String> {
    let [id, rule, code, tests, status] = cells else {
        // Another table of the file.
        return match cells.first().and_then(|cell| Id::parse(cell)) {
            Some(id) => Err(format!("row {id} has {} columns, not 5", cells.len())),
            None => Ok(None),
        };
    };
    if id == "Row" {
        return Ok(None);
    }
    Ok(Some(Row {
        id: Id::parse(id).ok_or_else(|| format!("there is no row {id}"))?,
        rule: rule.clone(),
        code: literals(code)?,
        tests: literals(tests)?
            .into_iter()
            .map(|name| match name.contains('/') {
                true => name,
                false => format!("{KSELFTEST}{name}"),
            })
            .collect(),
        status: Status::parse(status).ok_or_else(|| format!("{status} is no status"))?,
        line,
    }))
}

fn literals(cell: &str) -> Result<Vec<String>, String> {
    if cell == "—" {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = cell.split("``").collect();
    let between = parts.iter().step_by(2);
    if parts.len() < 3
        || parts.len() % 2 == 0
        || between
            .clone()
            .any(|text| !text.chars().all(|c| c == ',' || c.is_whitespace()))
    {
        return Err(format!("neither literals nor —: {cell}"));
    }
    Ok(parts
        .iter()
        .skip(1)
        .step_by(2)
        .map(|text| (*text).to_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Words.

.. list-table::
   :header-rows: 1

   * - Row
     - Rule
     - Code
     - Tests
     - Status
   * - 0.17
     - A lock of visible
       VRAM works.
     - ``a.rs``, ``b/c.rs``
     - ``mmap.row_0_17_a``,
       ``cargo/x::row_0_17_b``
     - proven

Next
====

.. list-table::

   * - 4.15
     - Later.
     - —
     - —
     - open

More words - and
* - 9.99
";

    #[test]
    fn a_table_is_read() {
        let rows = parse(TABLE).expect("well formed");
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].id, Id::parse("0.17").expect("a row"));
        assert_eq!(rows[0].rule, "A lock of visible VRAM works.");
        assert_eq!(rows[0].code, ["a.rs", "b/c.rs"]);
        assert_eq!(
            rows[0].tests,
            [
                "kselftest/drivers/gpu/skua:mmap.row_0_17_a",
                "cargo/x::row_0_17_b"
            ]
        );
        assert_eq!(rows[0].status, Status::Proven);
        assert_eq!(rows[0].line, 11);
        assert!(rows[1].code.is_empty() && rows[1].tests.is_empty());
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (from, to, what) in [
            ("- 0.17", "- 0.99", "no row 0.99"),
            ("- proven", "- done", "done is no status"),
            ("- ``a.rs``, ``b/c.rs``", "- a.rs", "neither literals"),
            (
                "- ``a.rs``, ``b/c.rs``",
                "- ``a.rs`` and ``b``",
                "neither literals",
            ),
            ("     - proven\n", "", "has 4 columns"),
        ] {
            let wrong = parse(&TABLE.replacen(from, to, 1)).expect_err(what);
            assert_eq!(wrong.len(), 1);
            assert!(
                wrong[0].starts_with("line 11: ") && wrong[0].contains(what),
                "{wrong:?}"
            );
        }
    }
}
