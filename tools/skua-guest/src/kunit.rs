// SPDX-License-Identifier: MIT

//! KUnit suites: those of a module run when it is loaded, their results are in debugfs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use skua_guest::ktap::{self, Line};

const DEBUGFS: &str = "/sys/kernel/debug/kunit";

/// Names of suites.
pub(crate) type Suites = BTreeSet<String>;

/// The suites that there are now.
pub(crate) fn suites() -> Suites {
    fs::read_dir(DEBUGFS)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The results of the suites that were not there `before`, as KTAP lines.
///
/// # Errors
///
/// If a suite has no results, or there is none: the module's own tests are gone.
pub(crate) fn results(before: &Suites) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for suite in suites().difference(before) {
        let path = Path::new(DEBUGFS).join(suite).join("results");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        lines.extend(
            text.lines()
                // Each file is a document of its own: not its head.
                .filter(|line| !matches!(ktap::parse(line), (0, Line::Version | Line::Plan(_))))
                .map(str::to_owned),
        );
    }
    ensure!(!lines.is_empty(), "the module has no KUnit suites");
    Ok(lines)
}
