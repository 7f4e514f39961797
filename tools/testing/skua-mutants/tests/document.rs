// SPDX-License-Identifier: MIT

//! The table in the tree can be carried out: each change fits, each test exists.

use std::fs;
use std::path::Path;

use skua_mutants::{place, table};

#[test]
fn every_mutant_fits_the_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let text = fs::read_to_string(root.join(table::FILE)).expect("the table");
    let table = table::parse(&text).expect("well formed");
    assert!(!table.mutant.is_empty());
    let sources = place::Sources::read(&root).expect("sources");
    let mut wrong = Vec::new();
    for mutant in &table.mutant {
        let source = fs::read_to_string(root.join(&mutant.file)).unwrap_or_default();
        if let Err(why) = mutant.apply(&source) {
            wrong.push(format!("{}: {why}", mutant.name()));
        }
        if sources.find(&mutant.test).is_empty() {
            wrong.push(format!("{}: there is no such test", mutant.name()));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
