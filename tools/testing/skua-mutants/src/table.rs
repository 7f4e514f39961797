// SPDX-License-Identifier: MIT

//! Reads `mutants.toml`:
//!
//! ```toml
//! [[mutant]]
//! row = "0.10"                 # or rule = "what the change breaks, in one line"
//! file = "tools/wddm/src/fence.rs"
//! find = "text that occurs there once"
//! replace = "its replacement"
//! test = "wddm.row_0_10_waits_sleep"
//! kernel = "debug"             # only if nothing but the debugging kernel sees it
//!
//! [[survivor]]                 # of make mutants HOST=1
//! mutation = "rust/policy/buddy.rs: replace < with <= in Buddy::split"
//! why = "equal orders do not meet here: both give the same block"
//! ```

use serde::Deserialize;

/// The file, in the root of the tree.
pub const FILE: &str = "mutants.toml";

/// A change that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// The row of the conformance table that it breaks, as `0.10`.
    pub row: Option<String>,
    /// The rule that it breaks, where that is no row.
    pub rule: Option<String>,
    /// The file to change, from the root of the tree.
    pub file: String,
    /// A text that occurs in the file exactly once.
    pub find: String,
    /// What stands there instead; may be empty.
    pub replace: String,
    /// The test that must fail: a part of its name, as `make test T=` takes it.
    pub test: String,
    /// The kernel whose guest sees it.
    #[serde(default = "release")]
    pub kernel: String,
}

fn release() -> String {
    "release".to_owned()
}

impl Mutant {
    /// What reports call it.
    pub fn name(&self) -> String {
        let rule = self.row.as_ref().or(self.rule.as_ref());
        let rule = rule.map_or("", String::as_str).replace(['#', '\n'], " ");
        format!("{rule}: {} ({})", self.test, self.file)
    }

    /// The file's text with the change in it.
    ///
    /// # Errors
    ///
    /// How often the text to find occurs, if not once.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            n => Err(format!(
                "the text to find occurs {n} times in {}",
                self.file
            )),
        }
    }

    /// What is wrong with the entry by itself.
    fn fault(&self) -> Option<&'static str> {
        if self.row.is_some() == self.rule.is_some() {
            Some("has not one of row and rule")
        } else if self.find.is_empty() || self.test.is_empty() {
            Some("has an empty find or test")
        } else if self.find == self.replace {
            Some("changes nothing")
        } else if !matches!(self.kernel.as_str(), "release" | "debug") {
            Some("names no kernel")
        } else {
            None
        }
    }
}

/// A mutation of `cargo-mutants` that no test can see, and why.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survivor {
    /// As `cargo-mutants` names it, without line and column.
    pub mutation: String,
    /// Why no test need see it, in one line.
    pub why: String,
}

/// The content of `mutants.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What `make mutants` breaks.
    #[serde(default)]
    pub mutant: Vec<Mutant>,
    /// What `make mutants HOST=1` may leave alive.
    #[serde(default)]
    pub survivor: Vec<Survivor>,
}

/// Reads the file's text.
///
/// # Errors
///
/// What is wrong with its form, or with an entry.
pub fn parse(text: &str) -> Result<Table, String> {
    let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    for mutant in &table.mutant {
        if let Some(fault) = mutant.fault() {
            return Err(format!("{} {fault}", mutant.name()));
        }
    }
    for survivor in &table.survivor {
        if survivor.why.trim().is_empty() || survivor.why.contains('\n') {
            return Err(format!("{}: why, in one line?", survivor.mutation));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"
[[mutant]]
row = "0.10"
file = "a.rs"
find = "x < 1"
replace = "x > 1"
test = "wddm.row_0_10_a"
"#;

    #[test]
    fn a_table_is_read() {
        let text = format!("{ENTRY}\n[[survivor]]\nmutation = \"b.rs: c\"\nwhy = \"equal\"\n");
        let table = parse(&text).expect("a table");
        assert_eq!(table.mutant.len(), 1);
        assert_eq!(table.mutant[0].kernel, "release");
        assert_eq!(table.mutant[0].name(), "0.10: wddm.row_0_10_a (a.rs)");
        assert_eq!(table.survivor[0].why, "equal");
        assert_eq!(parse("").expect("nothing"), Table::default());
    }

    #[test]
    fn entries_that_cannot_prove_anything_are_refused() {
        for (from, to, why) in [
            ("row = \"0.10\"\n", "", "not one of row and rule"),
            (
                "row = \"0.10\"",
                "row = \"0.10\"\nrule = \"b\"",
                "not one of",
            ),
            ("x > 1", "x < 1", "changes nothing"),
            ("find = \"x < 1\"", "find = \"\"", "empty find"),
            (
                "test = \"wddm.row_0_10_a\"",
                "test = \"\"",
                "empty find or test",
            ),
            ("test =", "tests =", "unknown field"),
            ("file =", "kernel = \"mine\"\nfile =", "names no kernel"),
        ] {
            let error = parse(&ENTRY.replace(from, to)).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let error = parse("[[survivor]]\nmutation = \"a\"\nwhy = \" \"\n").expect_err("why");
        assert!(error.contains("in one line"), "{error}");
    }

    #[test]
    fn a_change_is_made_where_its_text_stands_once() {
        let table = parse(ENTRY).expect("a table");
        let mutant = &table.mutant[0];
        assert_eq!(mutant.apply("if x < 1 {}").as_deref(), Ok("if x > 1 {}"));
        for (text, times) in [("", 0), ("x < 1 x < 1", 2)] {
            let error = mutant.apply(text).expect_err("not once");
            assert!(error.contains(&format!("{times} times")), "{error}");
        }
    }
}
