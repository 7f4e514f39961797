// SPDX-License-Identifier: MIT

//! The table in the tree is whole, and names what exists.

use std::path::Path;

use skua_conformance::{mutants, table, verdict};

#[test]
fn the_conformance_table_is_whole_and_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let path = root.join("Documentation/gpu/skua/conformance.rst");
    let text = std::fs::read_to_string(path).expect("the table");
    let rows = table::parse(&text).expect("well formed");
    assert_eq!(verdict::table(&rows, &root), Vec::<String>::new());
    let text = std::fs::read_to_string(root.join("mutants.toml")).expect("the mutants");
    assert_eq!(mutants::check(&rows, &text), Ok(vec![]));
}
