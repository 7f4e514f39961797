// SPDX-License-Identifier: MIT

//! Each row that is claimed as proven has a change that breaks it, in `mutants.toml`: `make
//! mutants` sees the row's test fail with the change in place.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::row::{Row, Status};

/// An entry of the file, of which only these members are looked at here.
#[derive(Deserialize)]
struct Mutant {
    row: Option<String>,
    test: String,
}

#[derive(Deserialize)]
struct Table {
    #[serde(default)]
    mutant: Vec<Mutant>,
}

/// What is wrong: proven rows without a change, and changes whose test is none of the row's.
///
/// # Errors
///
/// What is wrong with the file's form.
pub fn check(rows: &[Row], text: &str) -> Result<Vec<String>, String> {
    let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut wrong = Vec::new();
    let mut broken = BTreeSet::new();
    for mutant in &table.mutant {
        let Some(id) = &mutant.row else { continue };
        broken.insert(id.as_str());
        let row = rows.iter().find(|row| row.id.to_string() == *id);
        if !row.is_some_and(|row| row.tests.iter().any(|test| test.contains(&mutant.test))) {
            wrong.push(format!(
                "mutants.toml: {} is no test of row {id}",
                mutant.test
            ));
        }
    }
    for row in rows.iter().filter(|row| row.status == Status::Proven) {
        if !broken.contains(row.id.to_string().as_str()) {
            wrong.push(format!(
                "row {} is claimed as proven without a mutant",
                row.id
            ));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Id;

    fn row(id: &str, status: Status) -> Row {
        Row {
            id: Id::parse(id).expect("a row"),
            rule: "A rule.".into(),
            code: vec![],
            tests: vec![format!("kselftest/c:bo.row_{}_x", id.replace('.', "_"))],
            status,
            line: 1,
        }
    }

    #[test]
    fn a_proven_row_has_a_mutant_whose_test_is_its_own() {
        let rows = [
            row("0.01", Status::Proven),
            row("0.02", Status::Partial),
            row("0.03", Status::Open),
        ];
        let mutant = "[[mutant]]\nrow = \"0.01\"\ntest = \"bo.row_0_01_x\"\nfile = \"a\"\n";
        assert_eq!(check(&rows, mutant), Ok(vec![]));
        assert_eq!(
            check(&rows, ""),
            Ok(vec!["row 0.01 is claimed as proven without a mutant".into()])
        );
        let rule = mutant.replace("row = \"0.01\"", "rule = \"0.01\"");
        assert_eq!(check(&rows, &rule).map(|wrong| wrong.len()), Ok(1));
        for (from, to) in [("_0_01_", "_0_02_"), ("\"0.01\"", "\"0.02\"")] {
            let wrong = check(&rows, &mutant.replacen(from, to, 1)).expect("a table");
            assert!(wrong[0].contains("is no test of row"), "{wrong:?}");
        }
        assert!(check(&rows, "[[mutant]]\n").is_err());
    }
}
