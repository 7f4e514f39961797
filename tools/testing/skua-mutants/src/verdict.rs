// SPDX-License-Identifier: MIT

//! What a test run says of a mutant.

use std::fmt;

use serde::{Deserialize, Serialize};
use skua_conformance::report::{Outcome, Test};

/// What came of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The test failed, as it must.
    Killed,
    /// The test passed all the same: it does not prove the rule.
    Survived,
    /// The entry or the tree is at fault, in words.
    Broken(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed => f.write_str("killed"),
            Self::Survived => f.write_str("survived"),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

/// Judges a mutant by the tests that ran on it, `name` being a part of its test's name.
///
/// A program that died on the way to the test counts as the test's failure, if nothing passed. A
/// guest that did not come to the program says nothing of it.
pub fn judge(name: &str, tests: &[Test]) -> Verdict {
    let count = |wanted: bool, outcome| {
        tests
            .iter()
            .filter(|test| test.suite != "guest")
            .filter(|test| test.id().contains(name) == wanted && test.result == outcome)
            .count()
    };
    let (passed, failed) = (count(true, Outcome::Pass), count(true, Outcome::Fail));
    if failed > 0 || (passed == 0 && count(false, Outcome::Fail) > 0) {
        Verdict::Killed
    } else if passed > 0 {
        Verdict::Survived
    } else {
        Verdict::Broken(format!("{name} did not run"))
    }
}

/// The results in the output of a package's test programs, named as `make test` names them: the
/// package, the target if it is another, the test.
pub fn cargo_results(package: &str, output: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut prefix = package.to_owned();
    for line in output.lines() {
        if let Some(target) = target(line) {
            prefix = if target == package.replace('-', "_") {
                package.to_owned()
            } else {
                format!("{package}::{target}")
            };
        }
        let result = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "));
        if let Some((name, result)) = result {
            let name = name.split(" - ").next().unwrap_or(name);
            tests.push(Test {
                test: format!("{prefix}::{name}"),
                suite: "cargo".to_owned(),
                result: match result.trim() {
                    "ok" => Outcome::Pass,
                    "FAILED" => Outcome::Fail,
                    _ => Outcome::Skip,
                },
                rows: Vec::new(),
            });
        }
    }
    tests
}

/// The target whose tests cargo says that it runs: `Running tests/a.rs (out/…/deps/a-0123)`.
fn target(line: &str) -> Option<&str> {
    let program = line
        .trim_start()
        .strip_prefix("Running ")?
        .rsplit('/')
        .next()?;
    Some(program.rsplit_once('-')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, result: Outcome) -> Test {
        Test {
            test: name.into(),
            suite: "kselftest".into(),
            result,
            rows: vec![],
        }
    }

    #[test]
    fn only_a_failure_kills() {
        let (pass, fail, skip) = (Outcome::Pass, Outcome::Fail, Outcome::Skip);
        for (tests, verdict) in [
            (vec![("c:bo.x", fail)], Verdict::Killed),
            (vec![("c:bo.x", pass)], Verdict::Survived),
            // It ran in two guests.
            (vec![("c:bo.x", pass), ("c:bo.x", fail)], Verdict::Killed),
            // The program died before it, or after it.
            (vec![("c:bo", fail)], Verdict::Killed),
            (vec![("c:bo.x", pass), ("c:bo", fail)], Verdict::Survived),
        ] {
            let tests: Vec<Test> = tests.into_iter().map(|(n, r)| test(n, r)).collect();
            assert_eq!(judge("bo.x", &tests), verdict, "{tests:?}");
        }
        let of_guest = |name| Test {
            suite: "guest".into(),
            ..test(name, fail)
        };
        for tests in [
            vec![],
            vec![test("c:bo.x", skip)],
            vec![test("c:bo.y", pass)],
            // The guest did not start, or the module not load.
            vec![of_guest("c:bo"), of_guest("plain")],
            vec![of_guest("module"), of_guest("c:bo.x")],
        ] {
            assert!(
                matches!(judge("bo.x", &tests), Verdict::Broken(_)),
                "{tests:?}"
            );
        }
    }

    #[test]
    fn cargos_words_are_read() {
        let output = "    Running unittests lib.rs (out/cargo/debug/deps/skua_policy-0e61)\n\
                      running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\
                      test a::d - should panic ... ok\n\
                      Running tests/device/main.rs (out/cargo/debug/deps/device-0e61)\n\
                      test a::e ... ignored\n";
        let tests = cargo_results("skua-policy", output);
        let found: Vec<_> = tests.iter().map(|t| (t.id(), t.result)).collect();
        assert_eq!(
            found,
            [
                ("cargo/skua-policy::a::b".into(), Outcome::Pass),
                ("cargo/skua-policy::a::c".into(), Outcome::Fail),
                ("cargo/skua-policy::a::d".into(), Outcome::Pass),
                ("cargo/skua-policy::device::a::e".into(), Outcome::Skip),
            ]
        );
    }
}
