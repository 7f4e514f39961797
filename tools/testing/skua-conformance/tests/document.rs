// SPDX-License-Identifier: MIT

//! The table in the tree is whole, and names what exists.

use std::collections::BTreeSet;
use std::path::Path;

use skua_conformance::{mutants, table, verdict};

/// The kselftests in the sources that carry a row in their names, as the table calls them.
fn kselftests(root: &Path) -> BTreeSet<String> {
    let programs = root.join("tools/testing/selftests/drivers/gpu/skua/src/bin");
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

/// The tests of the host under a directory that carry a row in their names, by modules and function.
fn host_tests(directory: &Path, module: &str) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy();
        let module = format!("{module}::{stem}");
        if path.is_dir() {
            tests.append(&mut host_tests(&path, &module));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            let functions = text.lines().filter_map(|line| {
                let name = line.trim_start().strip_prefix("fn ")?;
                name.starts_with("row_").then(|| name.split('(').next())?
            });
            tests.extend(functions.map(|function| format!("{module}::{function}")));
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
    // Rows count for whom a client meets, the driver in its guest; of the core alone, for a miniport.
    let (named_host, named): (BTreeSet<_>, _) = named
        .into_iter()
        .partition(|name| name.starts_with("cargo/"));
    let kselftests = kselftests(&root);
    let unnamed: Vec<_> = kselftests.difference(&named).collect();
    assert!(unnamed.is_empty(), "not in the table: {unnamed:?}");
    let missing: Vec<_> = named.difference(&kselftests).collect();
    assert!(missing.is_empty(), "in no program: {missing:?}");
    assert_eq!(host_tests(&root.join("qemu"), ""), BTreeSet::new());
    // As cargo says: its package, and from there on the modules.
    let tests = host_tests(&root.join("rust"), "");
    let tests = tests.iter().map(|test| {
        let package = test.split("::").nth(1).unwrap_or_default();
        format!("cargo/skua-{package}{test}")
    });
    assert_eq!(tests.collect::<BTreeSet<_>>(), named_host);
}
