// SPDX-License-Identifier: MIT

//! Where a test is: told from its name and the sources, for nothing is built yet.
//!
//! A name is a part of what reports call a test, `bo.row_0_17_x` or `policy::buddy::tests::x`:
//! its last word is a function, those before it are the program, or crate, target and modules.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kselftests' sources.
const KSELFTESTS: &str = "tools/testing/selftests/drivers/gpu/skua/src/programs";

/// Where the module's own tests are, from the root of the tree.
const KUNIT: [&str; 2] = ["rust/kernel", "drivers"];

/// Who runs a test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// cargo, for the package of this name.
    Host(String),
    /// A guest, in this program.
    Kselftest(String),
    /// A guest, when the module is loaded.
    Kunit,
}

/// The function that a test's name ends with, or a part of its name.
pub fn function(test: &str) -> &str {
    test.rsplit(['.', ':', '/']).next().unwrap_or(test)
}

/// The Rust files of a tree, read once.
pub struct Sources {
    root: PathBuf,
    files: Vec<Source>,
}

/// A file.
struct Source {
    /// From the root of the tree.
    path: PathBuf,
    text: String,
    /// What may be a test in it, by name.
    names: BTreeSet<String>,
}

impl Sources {
    /// Reads them, without what was built.
    ///
    /// # Errors
    ///
    /// If that cannot be done.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut paths = Vec::new();
        sources(root, &mut paths)?;
        let source = |path: PathBuf| {
            let text = fs::read_to_string(&path).ok()?;
            let names = names(&text);
            let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
            Some(Source { path, text, names })
        };
        Ok(Self {
            root: root.to_owned(),
            files: paths.into_iter().filter_map(source).collect(),
        })
    }

    /// Who runs the tests whose names contain this.
    pub fn find(&self, test: &str) -> BTreeSet<Place> {
        find(self, test)
    }
}

fn find(sources: &Sources, test: &str) -> BTreeSet<Place> {
    let mut places = BTreeSet::new();
    let words: Vec<&str> = test
        .split(['.', ':', '/'])
        .filter(|word| !word.is_empty())
        .collect();
    let before = words.len().checked_sub(2).and_then(|at| words.get(at));
    for file in &sources.files {
        if !file.names.iter().any(|name| name.contains(function(test))) {
            continue;
        }
        let (from_root, text) = (file.path.as_path(), &file.text);
        if let Ok(program) = from_root.strip_prefix(KSELFTESTS) {
            let program = program.with_extension("").to_string_lossy().into_owned();
            if before.is_none_or(|word| *word == program) {
                places.insert(Place::Kselftest(program));
            }
        } else if KUNIT.iter().any(|dir| from_root.starts_with(dir)) {
            let suite = before.filter(|word| **word != "kunit");
            if text.contains(&format!("kunit_tests({}", suite.unwrap_or(&""))) {
                places.insert(Place::Kunit);
            }
        } else if text.contains("#[test]") {
            if let Some(package) = package(&sources.root, from_root) {
                let modules = words.get(..words.len().saturating_sub(1));
                let mut modules = modules.unwrap_or_default().iter();
                if modules.all(|word| belongs(word, &package, from_root, text)) {
                    places.insert(Place::Host(package));
                }
            }
        }
    }
    places
}

/// What may be a test in a source: functions, and lines `name: "…", …;` of a table that a macro
/// makes functions of.
fn names(text: &str) -> BTreeSet<String> {
    let split = |text: &'_ str| -> usize {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        end.unwrap_or(text.len())
    };
    let functions = text.match_indices("fn ").filter_map(|(at, word)| {
        let rest = text.get(at + word.len()..)?;
        rest.get(..split(rest)).map(str::to_owned)
    });
    let entries = text.lines().filter_map(|line| {
        let (word, rest) = line.trim_start().split_at(split(line.trim_start()));
        let is_entry = rest.starts_with(": \"") && rest.ends_with(';');
        is_entry.then(|| word.to_owned())
    });
    functions.chain(entries).collect()
}

/// The Rust files of the tree, without what was built.
fn sources(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "out" && name != "target" && !name.to_string_lossy().starts_with('.') {
                sources(&path, files)?;
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The package that a file belongs to.
fn package(root: &Path, file: &Path) -> Option<String> {
    let manifest = file
        .ancestors()
        .skip(1)
        .map(|dir| root.join(dir).join("Cargo.toml"))
        .find(|path| path.exists())?;
    name(&fs::read_to_string(manifest).ok()?)
}

/// The package's name in a manifest.
fn name(manifest: &str) -> Option<String> {
    let name = manifest
        .split("[package]")
        .nth(1)?
        .lines()
        .find_map(|line| line.strip_prefix("name = \""))?;
    Some(name.trim_end().trim_end_matches('"').to_owned())
}

/// Whether a word before a test's function may stand for its file.
fn belongs(word: &str, package: &str, file: &Path, text: &str) -> bool {
    word == "cargo"
        || word == package
        || file.with_extension("").iter().any(|part| part == word)
        || text.contains(&format!("mod {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(test: &str) -> Vec<Place> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let sources = Sources::read(&root).expect("sources");
        sources.find(test).into_iter().collect()
    }

    #[test]
    fn a_test_is_found_by_its_name() {
        let kselftest = |name: &str| vec![Place::Kselftest(name.into())];
        assert_eq!(places("wddm.row_0_10_waits_sleep"), kselftest("wddm"));
        assert_eq!(places("row_0_10_waits_sleep"), kselftest("wddm"));
        assert_eq!(
            places("kselftest/drivers/gpu/skua:wddm.row_0_10_waits_sleep"),
            kselftest("wddm")
        );
        assert_eq!(
            places("skua-mutants::place::tests::a_test_is_found_by_its_name"),
            [Place::Host("skua-mutants".into())]
        );
        // Not itself: a name that nothing has is put together.
        assert_eq!(places(&["no_such", "test_anywhere"].join("_")), []);
        assert_eq!(places("bo.row_0_10_waits_sleep"), []);
        assert_eq!(
            places("skua-spec::golden::faults"),
            [Place::Host("skua-spec".into())]
        );
    }

    #[test]
    fn functions_are_told_by_their_names() {
        let all = |text| names(text).into_iter().collect::<Vec<_>>();
        assert_eq!(all("pub fn row_1_02_x() {"), ["row_1_02_x"]);
        assert!(all("call(row_1_02_x)").is_empty());
        assert_eq!(all("    a_lie: \"a\", Jobs => Lost;\n"), ["a_lie"]);
        assert!(all("    a_lie: \"a\",\n").is_empty());
        assert_eq!(function("a::b.c"), "c");
        assert_eq!(name("[package]\nname = \"x\"\n").as_deref(), Some("x"));
    }
}
