// SPDX-License-Identifier: MIT

//! What a source may be made of: included files, and declarations up to their limits.

use skua_asm::{assemble, assemble_with, Error, Program};

/// Assembles the first file, which may include the others and itself.
fn with_files(files: &[(&str, &str)]) -> Result<Program, Vec<Error>> {
    let find = |name: &str| {
        let file = files.iter().find(|(other, _)| *other == name);
        file.map(|(_, text)| (*text).to_owned())
    };
    assemble_with(files[0].1, find)
}

/// The errors, as they are shown, without the lines that they show.
#[track_caller]
fn errors(files: &[(&str, &str)]) -> Vec<String> {
    let errors = with_files(files).expect_err("something is wrong");
    let first = |error: &Error| {
        let shown = error.display(files[0].0).to_string();
        shown.lines().next().map(str::to_owned)
    };
    errors.iter().filter_map(first).collect()
}

#[test]
fn an_include_stands_for_its_lines() {
    let program = with_files(&[
        (
            "main.s",
            ".equ N, 7\n.include \"outer.inc\" ; both\n  add sum, sum, N\nend: exit\n",
        ),
        (
            "outer.inc",
            ".reg sum, r3\n  .include \"inner.inc\"\n  bz sum, end\n",
        ),
        ("inner.inc", ".threads N\n mov sum, N\n"),
    ])
    .unwrap_or_else(|e| panic!("{}", e[0]));
    let pasted = assemble(
        ".equ N, 7\n.reg sum, r3\n.threads N\nmov sum, N\nbz sum, end\nadd sum, sum, N\nend: exit",
    )
    .expect("it is the same");
    assert_eq!(program.bytes(), pasted.bytes());
    assert_eq!(program.threads(), [7, 1, 1]);
    // An instruction's line is one of the source.
    let lines: Vec<_> = (0..5).map(|pc| program.line(pc)).collect();
    assert_eq!(lines, [Some(2), Some(2), Some(3), Some(4), None]);
}

#[test]
fn a_file_may_be_included_twice() {
    let files = [
        ("main.s", ".include \"a.inc\"\n.include \"a.inc\"\nexit"),
        ("a.inc", "nop\n"),
    ];
    let program = with_files(&files).expect("a program");
    assert_eq!(program.instructions().len(), 3);
    assert_eq!(program.line(1), Some(2));
}

#[test]
fn errors_name_the_file_that_they_are_in() {
    let files = [
        ("main.s", "  bad r1\n.include \"a.inc\"\nworse\n.equ x, 2\n"),
        ("a.inc", "; first\n\tugly r1\n.equ x, 1\n"),
    ];
    assert_eq!(
        errors(&files),
        [
            "main.s:1:3: error: unknown instruction `bad`",
            "a.inc:2:2: error: unknown instruction `ugly`",
            "main.s:3:1: error: unknown instruction `worse`",
            "main.s:4:6: error: `x` is defined already, in line 3 of a.inc",
        ]
    );
    let shown = with_files(&files).expect_err("as above")[1].to_string();
    assert!(
        shown.ends_with("    2 | \tugly r1\n      | \t^^^^"),
        "{shown}"
    );
}

#[test]
fn includes_that_are_wrong() {
    let wrong = |text, message: &str| {
        let files = [
            ("main.s", text),
            ("a.inc", ".include \"b.inc\""),
            ("b.inc", ".include \"a.inc\""),
        ];
        assert_eq!(errors(&files), [message]);
    };
    wrong(
        "nop\n.include",
        "main.s:2:9: error: the name of a file is needed here, between quotes",
    );
    wrong(
        "nop\n.include a.inc",
        "main.s:2:10: error: the name of a file is needed here, between quotes",
    );
    wrong(
        "nop\n.include \"a.inc",
        "main.s:2:10: error: the text has no end",
    );
    wrong(
        "nop\n.include \"c.inc\"",
        "main.s:2:10: error: there is no file `c.inc`",
    );
    wrong(
        "nop\n.include \"a.inc\"",
        "b.inc:1:10: error: `a.inc` includes itself",
    );
    wrong(
        "nop\nx: .include \"a.inc\"",
        "main.s:2:4: error: `.include` stands first in its line",
    );
    wrong(
        "nop\n.included \"a.inc\"",
        "main.s:2:1: error: unknown directive `.included`",
    );
    let error = &assemble(".include \"a.inc\"\nnop").expect_err("there are no files")[0];
    assert_eq!(error.message, "there is no file `a.inc`");
    let more = errors(&[("main.s", "nop\n.include \"a.inc\" r1"), ("a.inc", "nop")]);
    assert_eq!(more.len(), 1, "{more:?}");
    assert!(more[0].starts_with("main.s:2:18: error: "), "{more:?}");
}

#[test]
fn groups_have_up_to_1024_threads() {
    for (threads, expected) in [
        ("1024", [1024, 1, 1]),
        ("32, 32", [32, 32, 1]),
        ("2, 2, 256", [2, 2, 256]),
    ] {
        let program = assemble(&format!(".threads {threads}\nexit")).expect("1024 threads");
        assert_eq!(program.threads(), expected);
    }
    for threads in ["1025", "32, 33", "5, 5, 41"] {
        let error = assemble(&format!(".threads {threads}\nexit"));
        assert!(error.is_err(), "{threads}");
    }
}
