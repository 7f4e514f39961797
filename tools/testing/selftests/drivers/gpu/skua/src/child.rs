// SPDX-License-Identifier: MIT

//! Each test runs in a process of its own, with a time limit.
//!
//! The program starts itself again for every test, so that each has its own memory, descriptors
//! and open device, and none can spoil the next. The child leads a process group: what a test
//! started ends with it, and the child ends with the program. A child that cannot be killed (it
//! hangs in the kernel) is reported as such and left behind.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use skua_guest::ktap::Verdict;
use skua_guest::process::{self, Time};

use crate::suite::Test;

/// The argument that makes the program run one test, named by the next.
pub(crate) const ARGUMENT: &str = "--only";

/// Exit status of a test that could not be done here.
const SKIPPED: i32 = 4;
/// What the line with its reason starts with.
const SKIP_MARK: &str = "SKIP ";

/// A verdict, and in short how one sees it.
pub(crate) type End = (Verdict, String);

/// Ends the running test: it cannot be done here. For what a machine may lack, never for what
/// the driver must have.
pub fn skip(why: &str) -> ! {
    println!("{SKIP_MARK}{why}");
    std::process::exit(SKIPPED)
}

/// The child's `main`.
pub(crate) fn main(test: &Test) -> ExitCode {
    // If the program is gone already, nobody will read the result.
    let _ = set_pdeathsig(Signal::SIGKILL);
    std::panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or(String::new(), |at| format!("{}:{}: ", at.file(), at.line()));
        let what = info
            .payload()
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| info.payload().downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "panicked".to_owned());
        println!("{place}{what}");
    }));
    (test.run)();
    ExitCode::SUCCESS
}

/// Runs a test of this program, handing on its lines as they come.
///
/// # Errors
///
/// If it cannot be started.
pub(crate) fn run(name: &str, limit: Duration, say: impl FnMut(&str)) -> io::Result<End> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(crate::suite::program()).args([ARGUMENT, name]);
    supervise(command, limit, say)
}

fn supervise(command: Command, limit: Duration, mut say: impl FnMut(&str)) -> io::Result<End> {
    let mut skipped = None;
    let end = process::run(command, Some((limit, Time::OfGuest)), |line| {
        match line.strip_prefix(SKIP_MARK) {
            Some(why) => skipped = Some(why.to_owned()),
            None => say(line),
        }
    })?;
    Ok(match (end.code(), skipped) {
        (Some(0), _) => (Verdict::Pass, String::new()),
        (Some(SKIPPED), Some(why)) => (Verdict::Skip, why),
        _ => (Verdict::Fail, end.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (End, Vec<String>) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let end = supervise(command, limit, |line| lines.push(line.to_owned()));
        (end.expect("a shell"), lines)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_ends_are_told_apart() {
        assert_eq!(shell("exit 0", LONG).0, (Verdict::Pass, String::new()));
        assert_eq!(
            shell("echo left; echo right >&2; exit 101", LONG),
            (
                (Verdict::Fail, "exit status 101".into()),
                vec!["left".into(), "right".into()]
            )
        );
        assert_eq!(
            shell("echo 'SKIP no vgem'; exit 4", LONG),
            ((Verdict::Skip, "no vgem".into()), vec![])
        );
    }

    #[test]
    fn a_skip_without_a_reason_is_a_failure() {
        assert_eq!(
            shell("exit 4", LONG).0,
            (Verdict::Fail, "exit status 4".into())
        );
        assert_eq!(
            shell("echo 'SKIP a'; exit 1", LONG).0,
            (Verdict::Fail, "exit status 1".into())
        );
    }
}
