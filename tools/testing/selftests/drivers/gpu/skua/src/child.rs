// SPDX-License-Identifier: MIT

//! Each test runs in a process of its own, with a time limit.
//!
//! The program starts itself again for every test, so that each has its own memory, descriptors
//! and open device, and none can spoil the next. The child leads a process group: what a test
//! started ends with it, and the child ends with the program. A child that cannot be killed (it
//! hangs in the kernel) is reported as such and left behind.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{killpg, Signal};
use nix::unistd::{pipe, Pid};

use crate::suite::Test;

/// The argument that makes the program run one test, named by the next.
pub(crate) const ARGUMENT: &str = "--only";

/// Exit status of a test that could not be done here.
const SKIPPED: i32 = 4;
/// What the line with its reason starts with.
const SKIP_MARK: &str = "SKIP ";
/// How long a killed test may take to be gone.
const DEATH: Duration = Duration::from_secs(10);

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All that it asserts holds.
    Passed,
    /// Something does not; in short, how one sees it.
    Failed(String),
    /// It cannot be done here, for this reason.
    Skipped(String),
}

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

fn supervise(mut command: Command, limit: Duration, mut say: impl FnMut(&str)) -> io::Result<End> {
    let (read, write) = pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::from(write.try_clone()?))
        .stderr(Stdio::from(write))
        .process_group(0)
        .spawn()?;
    // It holds the pipe's writing ends: the output would never end.
    drop(command);
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(File::from(read));
        let mut bytes = Vec::new();
        while input.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if sender.send(line).is_err() {
                return;
            }
            bytes.clear();
        }
    });

    let begin = Instant::now();
    let (mut status, mut late, mut over, mut skipped) = (None, None, false, None);
    while !(over && status.is_some()) {
        match lines.recv_timeout(Duration::from_millis(10)) {
            Ok(line) => match line.strip_prefix(SKIP_MARK) {
                Some(why) => skipped = Some(why.to_owned()),
                None => say(&line),
            },
            Err(RecvTimeoutError::Disconnected) => {
                over = true;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if status.is_none() {
            status = child.try_wait()?;
            if status.is_some() {
                // What it left behind holds the pipe, and perhaps the device.
                kill(&child);
            }
        }
        if late.is_none() && begin.elapsed() > limit {
            late = Some(Instant::now());
            kill(&child);
        }
        if late.is_some_and(|since| since.elapsed() > DEATH) {
            return Ok(End::Failed(format!(
                "TIMEOUT {} seconds, and cannot be killed",
                limit.as_secs()
            )));
        }
    }
    Ok(match status {
        _ if late.is_some() => End::Failed(format!("TIMEOUT {} seconds", limit.as_secs())),
        Some(status) => verdict(status, skipped),
        None => End::Failed("no exit status".to_owned()),
    })
}

fn verdict(status: ExitStatus, skipped: Option<String>) -> End {
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Passed,
        (Some(SKIPPED), _) if skipped.is_some() => End::Skipped(skipped.unwrap_or_default()),
        (Some(code), _) => End::Failed(format!("exit status {code}")),
        (None, signal) => End::Failed(format!("killed by signal {}", signal.unwrap_or_default())),
    }
}

fn kill(child: &Child) {
    if let Ok(id) = i32::try_from(child.id()) {
        // It may be gone already.
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
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
        assert_eq!(shell("exit 0", LONG).0, End::Passed);
        assert_eq!(
            shell("echo left; echo right >&2; exit 101", LONG),
            (
                End::Failed("exit status 101".into()),
                vec!["left".into(), "right".into()]
            )
        );
        assert_eq!(
            shell("kill -SEGV $$", LONG).0,
            End::Failed("killed by signal 11".into())
        );
        assert_eq!(
            shell("echo 'SKIP no vgem'; exit 4", LONG),
            (End::Skipped("no vgem".into()), vec![])
        );
    }

    #[test]
    fn a_skip_without_a_reason_is_a_failure() {
        assert_eq!(shell("exit 4", LONG).0, End::Failed("exit status 4".into()));
        assert_eq!(
            shell("echo 'SKIP a'; exit 1", LONG).0,
            End::Failed("exit status 1".into())
        );
    }

    #[test]
    fn a_hanging_test_is_killed_with_its_children() {
        let begin = Instant::now();
        let (end, lines) = shell(
            "echo here; sleep 1000 & sleep 1000",
            Duration::from_millis(200),
        );
        assert_eq!(end, End::Failed("TIMEOUT 0 seconds".into()));
        assert_eq!(lines, ["here"]);
        assert!(begin.elapsed() < DEATH);
    }

    #[test]
    fn what_a_test_leaves_running_does_not_keep_the_result() {
        let begin = Instant::now();
        assert_eq!(shell("sleep 1000 & exit 0", LONG).0, End::Passed);
        assert!(begin.elapsed() < LONG);
    }
}
