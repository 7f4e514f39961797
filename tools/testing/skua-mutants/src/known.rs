// SPDX-License-Identifier: MIT

//! What earlier runs found out: a run that was interrupted goes on where it was.
//!
//! Each result is a line of a file, for the state of the tree that it was found in. A tree that
//! has changed since starts anew.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::verdict::Verdict;

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    /// Digest of the tree that it is about.
    tree: u64,
    /// Digest of what was tried.
    key: u64,
    verdict: Verdict,
}

/// The results about one state of the tree.
#[derive(Debug)]
pub struct Known {
    /// Has lines about other trees, too, which are left out here.
    file: PathBuf,
    /// Digest of all sources.
    tree: u64,
    /// By [`Line::key`].
    verdicts: HashMap<u64, Verdict>,
}

impl Known {
    /// Reads what a file knows of a tree in this state. What a killed run left half is ignored.
    pub fn read(file: &Path, tree: u64) -> Self {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok());
        Self {
            file: file.to_owned(),
            tree,
            verdicts: lines
                .filter(|line| line.tree == tree)
                .map(|line| (line.key, line.verdict))
                .collect(),
        }
    }

    /// What came of this before, in the same tree.
    pub fn get(&self, what: impl Hash) -> Option<&Verdict> {
        self.verdicts.get(&key(what))
    }

    /// Notes a result, in the file at once.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn add(&mut self, what: impl Hash, verdict: &Verdict) -> io::Result<()> {
        let line = Line {
            tree: self.tree,
            key: key(what),
            verdict: verdict.clone(),
        };
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)?;
        writeln!(file, "{}", serde_json::to_string(&line)?)?;
        self.verdicts.insert(line.key, line.verdict);
        Ok(())
    }
}

/// A number for something.
pub fn key(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A number for the state of the files below a directory, without the names given.
///
/// # Errors
///
/// If they cannot be read.
pub fn state(dir: &Path, without: &[&str]) -> io::Result<u64> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        let name = entry.file_name();
        if without.iter().any(|other| name == *other) {
            continue;
        }
        name.hash(&mut hasher);
        let kind = entry.file_type()?;
        if kind.is_dir() {
            state(&entry.path(), without)?.hash(&mut hasher);
        } else if kind.is_file() {
            fs::read(entry.path())?.hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_hold_for_the_tree_they_were_found_in() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("known");
        let mut known = Known::read(&file, 1);
        known.add("a", &Verdict::Killed).expect("written");
        known.add("b", &Verdict::Survived).expect("written");
        fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .and_then(|mut file| file.write_all(b"{\"tree\":1,\"ke"))
            .expect("written");
        let again = Known::read(&file, 1);
        assert_eq!(again.get("a"), Some(&Verdict::Killed));
        assert_eq!(again.get("b"), Some(&Verdict::Survived));
        assert_eq!(again.get("c"), None);
        assert_eq!(Known::read(&file, 2).get("a"), None);
    }

    #[test]
    fn a_tree_is_told_from_another_by_names_and_contents() {
        let dir = tempfile::tempdir().expect("a directory");
        let seen = || state(dir.path(), &["out"]).expect("a tree");
        fs::write(dir.path().join("a"), "1").expect("written");
        let first = seen();
        fs::create_dir(dir.path().join("out")).expect("made");
        fs::write(dir.path().join("out/b"), "2").expect("written");
        assert_eq!(seen(), first);
        fs::write(dir.path().join("a"), "2").expect("written");
        assert_ne!(seen(), first);
        fs::write(dir.path().join("a"), "1").expect("written");
        assert_eq!(seen(), first);
        fs::rename(dir.path().join("a"), dir.path().join("b")).expect("renamed");
        assert_ne!(seen(), first);
    }
}
