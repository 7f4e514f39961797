// SPDX-License-Identifier: MIT

//! What the assembler says about wrong sources: the message, and the place to the column.

use skua_asm::{assemble, BindCause};
use skua_spec::command::Draw;

/// `source` has this one error.
#[track_caller]
fn wrong(source: &str, line: usize, column: usize, length: usize, message: &str) {
    let errors = assemble(source).expect_err("the source is wrong");
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = &errors[0];
    let told = match &error.help {
        Some(help) => format!("{}; {help}", error.message),
        None => error.message.clone(),
    };
    assert_eq!(told, message);
    assert_eq!(
        (error.line, error.column, error.length),
        (line, column, length),
        "{error}"
    );
    assert_eq!(error.source, source.lines().nth(line - 1).unwrap_or(""));
}

#[test]
fn shown_with_the_line_and_a_caret() {
    let errors = assemble("  nop\n\taddd r1, r2, 3 ; sum\n").expect_err("no such instruction");
    assert_eq!(
        errors[0].display("x.s").to_string(),
        "x.s:2:2: error: unknown instruction `addd`\n    \
         2 | \taddd r1, r2, 3 ; sum\n      | \t^^^^ did you mean `add`?"
    );
}

#[test]
fn several_in_one_run() {
    let errors = assemble("ad r1, r2, r3\nadd r1 r2\nnop\nbra away\n.shared -1\n")
        .expect_err("four lines are wrong");
    let lines: Vec<_> = errors.iter().map(|e| (e.line, e.column)).collect();
    assert_eq!(lines, [(1, 1), (2, 8), (4, 5), (5, 9)]);
}

#[test]
fn mnemonics() {
    wrong(
        "frobnicate r1",
        1,
        1,
        10,
        "unknown instruction `frobnicate`",
    );
    wrong(
        "xro r1, r2, r3",
        1,
        1,
        3,
        "unknown instruction `xro`; did you mean `xor`?",
    );
    wrong(
        "ld r1, [r2]",
        1,
        1,
        2,
        "unknown instruction `ld`; write one of ld.u8, ld.s8, ld.u16, ld.s16, ld.32, ld.64",
    );
    wrong("NOP", 1, 1, 3, "unknown instruction `NOP`");
    wrong(
        ".treads 1",
        1,
        1,
        7,
        "unknown directive `.treads`; did you mean `.threads`?",
    );
}

#[test]
fn registers() {
    wrong(
        "mov r64, 0",
        1,
        5,
        3,
        "there is no register `r64`; registers are r0 to r63",
    );
    wrong(
        "mov r01, 0",
        1,
        5,
        3,
        "there is no register `r01`; registers are r0 to r63",
    );
    wrong(
        "add64 r2, r3, 1",
        1,
        11,
        2,
        "r3 is odd: a pair is named by its even register",
    );
    wrong(
        ".reg sum, r5\nld.64 sum, [r2]",
        2,
        7,
        3,
        "r5 is odd: a pair is named by its even register",
    );
    wrong(
        ".reg total, r5\nmov totl, 0",
        2,
        5,
        4,
        "there is no register `totl`; did you mean `total`?",
    );
    wrong(
        ".equ k, 5\nmov k, 0",
        2,
        5,
        1,
        "`k`, defined in line 1, is not a register",
    );
    wrong("fma r1, r2, r3, 1.0f", 1, 17, 4, "expected a register");
}

#[test]
fn immediates() {
    wrong(
        "mov r1, 0x100000000",
        1,
        9,
        11,
        "4294967296 does not fit 32 bits",
    );
    wrong(
        "mov r1, -2147483649",
        1,
        9,
        11,
        "-2147483649 does not fit 32 bits",
    );
    wrong(
        "add64 r2, r2, 0x80000000",
        1,
        15,
        10,
        "2147483648 does not fit 32 bits with a sign; an immediate of 64-bit operations is sign \
         extended",
    );
    wrong("add64 r2, r2, 1.0f", 1, 15, 4, "a float cannot stand here");
    wrong(
        "fadd r1, r2, 1.0",
        1,
        14,
        3,
        "the float `1.0` lacks its `f`; write `1.0f`",
    );
    wrong(
        "mov r1, 12x",
        1,
        9,
        3,
        "`12x` is not a number; numbers are 10, 0x0a, 0b1010 or 1.5f",
    );
    wrong(
        "lea r2, r4, r6, 5",
        1,
        17,
        1,
        "a scale is 0 to 4, the log2 of the factor",
    );
    wrong("arg r1, 32", 1, 9, 2, "arguments are numbered from 0 to 31");
    wrong(
        "sr r1, tid.w",
        1,
        8,
        5,
        "there is no special register `tid.w`; did you mean `tid.x`?",
    );
    wrong("mov r1, 1 << 64", 1, 14, 2, "a shift is by 0 to 63");
    wrong("mov r1, 1 << 63", 1, 9, 7, "the value does not fit 64 bits");
    wrong(
        "mov r1, (1",
        1,
        11,
        1,
        "expected `)` to close the parenthesis",
    );
    let deep = format!("mov r1, {}1", "-".repeat(40));
    wrong(&deep, 1, 41, 1, "too many signs and parentheses");
}

#[test]
fn operands() {
    wrong("add r1, r2", 1, 11, 1, "expected `,` and another operand");
    wrong("add", 1, 4, 1, "expected a register");
    wrong(
        "add r1, r2, r3, r4",
        1,
        15,
        4,
        "the instruction or directive ends before this",
    );
    wrong(
        "nop 1",
        1,
        5,
        1,
        "the instruction or directive ends before this",
    );
    wrong("ld.32 r1, r2", 1, 11, 2, "expected `[` before the address");
    wrong(
        "ld.32 r1, [r2+4",
        1,
        16,
        1,
        "expected `]` behind the address",
    );
    wrong(
        "atom.add r1, [r2+4], r3",
        1,
        17,
        1,
        "the address of an atomic operation has no offset",
    );
    wrong(
        "mov r1, #5",
        1,
        9,
        1,
        "the character '#' has no meaning here",
    );
}

#[test]
fn names() {
    wrong(
        "bra lop\nloop: exit",
        1,
        5,
        3,
        "there is no label `lop`; did you mean `loop`?",
    );
    wrong(
        "a: nop\na: nop",
        2,
        1,
        1,
        "`a` is defined already, in line 1",
    );
    wrong(
        ".equ r7, 1\nnop",
        1,
        6,
        2,
        "`r7` cannot be a name: it is a register",
    );
    wrong(
        ".equ a, 1\nbra a",
        2,
        5,
        1,
        "`a`, defined in line 1, is not a label",
    );
    wrong(
        "a: nop\nmov r1, a",
        2,
        9,
        1,
        "`a`, defined in line 1, is not a constant",
    );
    wrong(
        "mov r1, siez\n.equ size, 4",
        1,
        9,
        4,
        "the name `siez` is not defined; did you mean `size`?",
    );
    wrong(
        ".equ a, b\n.equ b, 1\nnop",
        1,
        9,
        1,
        "the name `b` is not defined",
    );
    wrong("sr r1, 3", 1, 8, 1, "expected a special register");
}

#[test]
fn no_name_starts_or_ends_with_a_dot() {
    for name in [".a", "a.", "."] {
        let message = format!("`{name}` cannot be a name: it starts or ends with a dot");
        for directive in [".arg", ".arg64", ".equ", ".reg"] {
            let rest = match directive {
                ".equ" => ", 1",
                ".reg" => ", r1",
                _ => "",
            };
            let column = directive.len() + 2;
            let source = format!("{directive} {name}{rest}\nnop");
            wrong(&source, 1, column, name.len(), &message);
        }
        wrong(&format!("{name}: nop"), 1, 1, name.len(), &message);
    }
}

#[test]
fn arguments() {
    wrong(
        ".arg a\n.arg64 a\nnop",
        2,
        8,
        1,
        "the argument `a` is declared already",
    );
    wrong(
        ".arg a.hi\nnop",
        1,
        6,
        4,
        "`a.hi` cannot be an argument's name: it names a high half",
    );
    wrong(
        ".arg size\narg r1, siez",
        2,
        9,
        4,
        "there is no argument `siez`; did you mean `size`?",
    );
    wrong(
        ".arg size\narg r1, size.hi",
        2,
        9,
        7,
        "there is no argument `size.hi`",
    );
    wrong(
        ".arg size\nmov r1, size",
        2,
        9,
        4,
        "the name `size` is not defined",
    );
    wrong(
        "arg r1, r2",
        1,
        9,
        2,
        "the register `r2` cannot stand here: a constant is needed",
    );
    let program =
        assemble(".equ n, 3\n.arg64 size\n.reg size, r4\narg size, size.hi\narg size, n + 1")
            .expect("arguments have their own names");
    assert_eq!(
        program
            .instructions()
            .iter()
            .map(|i| i.imm)
            .collect::<Vec<_>>(),
        [1, 4]
    );
}

#[test]
fn directives() {
    wrong(
        ".shared 32769\nnop",
        1,
        9,
        5,
        "32769 bytes: it must be 0 to 32768",
    );
    wrong(
        ".threads 0\nnop",
        1,
        10,
        1,
        "0 threads: it must be 1 to 1024",
    );
    wrong(
        ".threads 32, 32, 2\nnop",
        1,
        10,
        9,
        "a group of 2048 threads is more than 1024",
    );
    wrong(
        ".threads 1\n.threads 1\nnop",
        2,
        1,
        8,
        "`.threads` stands twice",
    );
    let many = format!(
        "{}nop",
        (0..17)
            .map(|i| format!(".arg64 a{i}\n"))
            .collect::<String>()
    );
    wrong(
        &many,
        17,
        8,
        3,
        "a program has at most 32 words of arguments",
    );
    wrong("", 1, 1, 1, "the program has no instruction");
    wrong("; nothing\n", 1, 1, 1, "the program has no instruction");
}

#[test]
fn metadata() {
    let program = assemble(".equ W, 16\n.threads W, W / 1\n");
    assert!(program.is_err(), "there is no division");
    let program = assemble(
        ".equ W, 16\n.equ T, (W + 2) * (W + 2) << 2\n.threads W, W\n.shared T\n.arg count\n\
         .arg64 data\n.arg last\nstart: arg r2, data\n arg r3, data.hi\n\n bra start\n",
    )
    .expect("the source is right");
    assert_eq!(program.threads(), [16, 16, 1]);
    assert_eq!(program.shared_bytes(), 18 * 18 * 4);
    let arguments: Vec<_> = program
        .arguments()
        .iter()
        .map(|a| (a.name.as_str(), a.index, a.words))
        .collect();
    assert_eq!(arguments, [("count", 0, 1), ("data", 2, 2), ("last", 4, 1)]);
    assert_eq!(
        [program.line(0), program.line(2), program.line(3)],
        [Some(8), Some(11), None]
    );
    let value = |name: &str| Some(if name == "data" { 0x1_2345_6789 } else { 7 });
    let dispatch = program
        .dispatch(64, [2, 3, 4], value)
        .expect("all have values");
    assert_eq!(dispatch.arguments[..6], [7, 0, 0x2345_6789, 1, 7, 0]);
    assert_eq!((dispatch.argument_count, dispatch.program_bytes), (6, 24));
    let missing = program
        .dispatch(64, [1; 3], |_| None)
        .expect_err("no values");
    assert_eq!(
        missing.to_string(),
        "the program's argument `count` has no value"
    );
    let wide = program
        .dispatch(64, [1; 3], |_| Some(1 << 32))
        .expect_err("too wide");
    assert_eq!((wide.name.as_str(), wide.cause), ("count", BindCause::Wide));

    // A DRAW has fewer words for them.
    let draw = program
        .draw(64, Draw::default(), value)
        .expect("all have values");
    assert_eq!(draw.arguments[..6], dispatch.arguments[..6]);
    assert_eq!((draw.program, draw.program_bytes), (64, 24));
    assert_eq!(draw.argument_count, 6);
    let many: String = (0..28).map(|i| format!(".arg a{i}\n")).collect();
    let many = assemble(&(many + "exit")).expect("good");
    assert!(many.dispatch(64, [1; 3], |_| Some(1)).is_ok());
    let no_room = many
        .draw(64, Draw::default(), |_| Some(1))
        .expect_err("too many");
    assert_eq!(
        (no_room.name.as_str(), no_room.cause),
        ("a26", BindCause::NoRoom)
    );
}
