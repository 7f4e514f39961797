// SPDX-License-Identifier: MIT

//! The table in the tree is whole, and names what exists.

use std::collections::BTreeSet;
use std::path::Path;

use skua_conformance::{mutants, table, verdict};

/// The kselftests in the sources that carry a row in their names, as the table calls them.
fn kselftests(root: &Path) -> BTreeSet<String> {
    let programs = root.join("tools/testing/selftests/drivers/gpu/skua/src/programs");
    let mut tests = BTreeSet::new();
    for entry in std::fs::read_dir(programs).expect("the programs") {
        let path = entry.expect("a program").path();
        let program = path.file_stem().expect("a name").to_string_lossy();
        let text = std::fs::read_to_string(&path).expect("its source");
        let functions = text.lines().filter_map(|line| line.strip_prefix("fn row_"));
        tests.extend(functions.map(|function| {
            let name = function.split('(').next().unwrap_or_default();
            format!("kselftest/drivers/gpu/skua:{program}.row_{name}")
        }));
    }
    tests
}

/// Tests of the host that carry a row in their names: rows count for whom a client meets, the
/// driver in its guest, so that the table names none of these.
fn host_tests(directory: &Path) -> Vec<String> {
    let mut tests = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            tests.extend(host_tests(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            let rows = text
                .lines()
                .filter(|line| line.trim_start().starts_with("fn row_"));
            tests.extend(rows.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
    tests
}

#[test]
fn the_conformance_table_is_whole_and_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let path = root.join("Documentation/gpu/skua/conformance.rst");
    let text = std::fs::read_to_string(path).expect("the table");
    let rows = table::parse(&text).expect("well formed");
    assert_eq!(verdict::table(&rows, &root), Vec::<String>::new());
    let text = std::fs::read_to_string(root.join("mutants.toml")).expect("the mutants");
    assert_eq!(mutants::check(&rows, &text), Ok(vec![]));
    let named: BTreeSet<String> = rows.into_iter().flat_map(|row| row.tests).collect();
    let kselftests = kselftests(&root);
    let unnamed: Vec<_> = kselftests.difference(&named).collect();
    assert!(unnamed.is_empty(), "not in the table: {unnamed:?}");
    let missing: Vec<_> = named.difference(&kselftests).collect();
    assert!(missing.is_empty(), "in no program: {missing:?}");
    for part in ["rust", "qemu"] {
        assert_eq!(host_tests(&root.join(part)), Vec::<String>::new());
    }
}
