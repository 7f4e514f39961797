// SPDX-License-Identifier: MIT

//! The command's options, and what it does where it cannot do its work.

use std::fs;
use std::process::{Command, Output};

fn skua_filter(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skua-filter"))
        .args(arguments)
        .output()
        .expect("the command runs")
}

#[test]
fn it_lists_its_filters() {
    let output = skua_filter(&["--list"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    for name in [
        "grayscale",
        "sepia",
        "edge",
        "sharpen",
        "emboss",
        "blur",
        "equalize",
    ] {
        assert!(
            text.lines().any(|l| l.starts_with(name)),
            "{name} is not in\n{text}"
        );
    }
}

#[test]
fn wrong_options_are_told() {
    for (arguments, words) in [
        (
            &["--filter", "fog"][..],
            "the filters are grayscale, invert",
        ),
        (&["--radius", "65"], "65 is not in 0..=64"),
        (&["--sample", "--input", "a.png"], "cannot be used with"),
    ] {
        let output = skua_filter(arguments);
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_failure_is_in_the_report() {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report.txt");
    let missing = directory.path().join("missing.png");
    let output = skua_filter(&[
        "--filter",
        "blur",
        "--radius",
        "3",
        "--input",
        missing.to_str().expect("a name"),
        "--report",
        report.to_str().expect("a name"),
    ]);
    assert!(!output.status.success());
    let text = fs::read_to_string(report).expect("the report is there");
    assert_eq!(text.as_bytes(), output.stdout);
    let start = "filter: blur\nradius: 3\nresult: failed\nerror: cannot read ";
    assert!(text.starts_with(start), "{text}");
}
