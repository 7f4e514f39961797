// SPDX-License-Identifier: MIT

//! A program's tests, and its `main`.
//!
//! Without arguments a program runs its tests in their order and prints one KTAP document. With
//! names, it runs these alone. `SKUA_TEST_FILTER` takes a part of a name as the reports show it,
//! `kselftest/drivers/gpu/skua:PROGRAM.TEST`; `SKUA_PATIENCE` multiplies every time limit; with
//! `SKUA_EVICT` everything that can leave VRAM does so all the time.

use std::env;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use skua_guest::ktap::{Verdict, Writer};

use crate::child;
use crate::witness::quiet;

/// kselftest's exit status of a program that had nothing to run.
const SKIP: u8 = 4;

/// A test: a function that panics if what it tests does not hold.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Its name, which stays the same for ever: `row_S_RR_` at its start claims a row.
    pub name: &'static str,
    /// Panics if it fails.
    pub run: fn(),
    /// How long it may take, in seconds; a limit against hanging, not a measure.
    pub seconds: u32,
    /// It looks where memory is, or counts moves: nothing else is to move any.
    pub at_rest: bool,
}

/// The tests of a program: functions of these names, `name: seconds` for more than 30 seconds, and
/// `at_rest` behind those that look where memory is, or count moves.
#[macro_export]
macro_rules! tests {
    ($($name:ident $(: $seconds:literal)? $($at_rest:ident)?),* $(,)?) => {
        &[$($crate::suite::Test {
            name: stringify!($name),
            run: $name,
            seconds: $crate::tests!(@seconds $($seconds)?),
            at_rest: $crate::tests!(@at_rest $($at_rest)?),
        }),*]
    };
    (@seconds) => { 30 };
    (@seconds $seconds:literal) => { $seconds };
    (@at_rest) => { false };
    (@at_rest at_rest) => { true };
}

/// `main` of a program of tests.
pub fn main(tests: &[Test]) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => {
            for test in tests {
                println!("{}", test.name);
            }
            ExitCode::SUCCESS
        }
        [child::ARGUMENT, name] => match tests.iter().find(|test| test.name == name) {
            Some(test) => child::main(test),
            None => ExitCode::FAILURE,
        },
        ref names => {
            if let Some(unknown) = names
                .iter()
                .find(|name| !tests.iter().any(|test| test.name == **name))
            {
                eprintln!("no such test: {unknown}");
                return ExitCode::FAILURE;
            }
            let wanted: Vec<&Test> = tests
                .iter()
                .filter(|test| names.is_empty() || names.contains(&test.name))
                .filter(|test| wants(env::var("SKUA_TEST_FILTER").ok().as_deref(), test.name))
                .collect();
            // With nobody to read the results there are none.
            run(&wanted).unwrap_or(ExitCode::FAILURE)
        }
    }
}

/// The same; each test begins when what earlier clients had is gone: it compares what can be seen.
pub fn main_in_quiet(tests: &[Test]) -> ExitCode {
    if env::args().nth(1).as_deref() == Some(child::ARGUMENT) {
        quiet();
    }
    main(tests)
}

fn run(tests: &[&Test]) -> io::Result<ExitCode> {
    let mut document = Writer::new(io::stdout(), Some(tests.len()))?;
    for test in tests {
        document.begin(test.name)?;
        if test.at_rest && evicts() {
            document.result(test.name, Verdict::Skip, "it needs memory at rest")?;
            continue;
        }
        let mut told = Ok(());
        let end = child::run(test.name, limit(test.seconds), |line| {
            if told.is_ok() {
                told = document.words(line);
            }
        });
        let (verdict, why) =
            end.unwrap_or_else(|error| (Verdict::Fail, format!("cannot be run: {error}")));
        told?;
        document.result(test.name, verdict, &why)?;
    }
    Ok(match (tests.len(), document.failed()) {
        (0, _) => ExitCode::from(SKIP),
        (_, 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// How many times longer than usual things may take here: a debug kernel is slow. At least 1.
pub fn patience() -> u32 {
    env::var("SKUA_PATIENCE")
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|n| *n > 0)
        .unwrap_or(1)
}

/// Whether all that can leave VRAM does so all the time.
pub fn evicts() -> bool {
    env::var_os("SKUA_EVICT").is_some()
}

/// How often to do what is to be done `often`: less often where things take longer, since what a
/// debug kernel is to see there it sees soon.
pub fn rounds(often: u32) -> u32 {
    often.div_ceil(patience())
}

/// The same of what `make points` has done as often as its user says (`SKUA_POINTS`).
pub fn points(often: u32) -> u64 {
    let wanted = env::var("SKUA_POINTS").ok();
    let wanted = wanted.and_then(|text| text.parse().ok());
    wanted.unwrap_or_else(|| rounds(often).into())
}

fn limit(seconds: u32) -> std::time::Duration {
    std::time::Duration::from_secs(u64::from(seconds) * u64::from(patience()))
}

/// The running program's name.
pub fn program() -> String {
    env::args()
        .next()
        .and_then(|path| Some(Path::new(&path).file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default()
}

fn wants(filter: Option<&str>, test: &str) -> bool {
    match filter {
        None | Some("") => true,
        Some(filter) => format!("kselftest/drivers/gpu/skua:{}.{test}", program()).contains(filter),
    }
}

/// Asks again and again, for a while: what happens by itself, but not at once.
pub fn eventually<T>(ask: impl FnMut() -> Option<T>) -> Option<T> {
    within(20, ask)
}

/// Waits for what must happen, and happens by itself.
///
/// # Panics
///
/// If it does not, for as long as [`eventually`] asks.
#[track_caller]
pub fn becomes(what: &str, is_so: impl Fn() -> bool) {
    let seen = eventually(|| is_so().then_some(()));
    assert!(seen.is_some(), "not in time: {what}");
}

/// Long enough for what must not happen.
pub fn a_moment() {
    std::thread::sleep(Duration::from_millis(50));
}

/// The same as [`eventually`] for so many seconds where nothing is slow: what is not expected to
/// happen.
pub fn within<T>(seconds: u64, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + Duration::from_secs(seconds) * patience();
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() > end {
            return answer;
        }
        pause();
    }
}

/// Between two looks at something: where a look takes long there are fewer, and who is looked at
/// has time to do something.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(5) * patience());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() {}
    fn slow() {}

    #[test]
    fn a_list_of_tests_keeps_names_and_limits() {
        let tests: &[Test] = tests![quick, slow: 300, quick at_rest, slow: 60 at_rest];
        assert_eq!(tests[0].name, "quick");
        assert_eq!(tests[0].seconds, 30);
        assert_eq!(tests[1].name, "slow");
        assert_eq!(tests[1].seconds, 300);
        let at_rest: Vec<bool> = tests.iter().map(|test| test.at_rest).collect();
        assert_eq!(at_rest, [false, false, true, true]);
    }

    #[test]
    fn a_filter_is_a_part_of_the_reported_name() {
        assert!(wants(None, "row_0_17_a"));
        assert!(wants(Some(""), "row_0_17_a"));
        assert!(wants(Some("row_0_17"), "row_0_17_a"));
        assert!(wants(Some("gpu/skua:"), "a"));
        assert!(!wants(Some("row_0_18"), "row_0_17_a"));
    }
}
