// SPDX-License-Identifier: MIT

//! The one supervisor of processes: starting, output, time limits, signals, the end.
//!
//! A supervised process leads a process group, so that what it started ends with it. [`run`]
//! follows one to its end within a limit; a [`Process`] by itself is for servers and machines.
//! Dropping a [`Process`] kills its group.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{kill, killpg, Signal};
use nix::sys::wait::{waitid, Id, WaitPidFlag};
use nix::unistd::{pipe, Pid};

use crate::clock::Clock;

/// How long a killed process may take to be gone: it may be in the kernel.
const DEATH: Duration = Duration::from_secs(20);
/// How often it is asked whether a process has reached its limit.
const LOOK: Duration = Duration::from_millis(500);

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Process {
    /// Running, or ended and perhaps not waited for yet.
    child: Child,
    /// Whether the process leads a group of its own, which is killed with it.
    leads: bool,
}

impl Process {
    /// Starts a command at the head of a process group.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, leads: true })
    }

    /// Starts a command in the caller's group: one that may read the user's terminal.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_in_foreground(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn()?;
        Ok(Self {
            child,
            leads: false,
        })
    }

    /// The process id, also after it has ended.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        // Process numbers have 22 bits.
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// Its output, once, if it was asked to be a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its status, if it has ended.
    ///
    /// # Errors
    ///
    /// What the kernel returned.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// What the kernel returned.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Sends a signal to it alone.
    ///
    /// # Errors
    ///
    /// If it has ended, with how.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if let Some(status) = self.try_wait()? {
            return Err(io::Error::other(format!("it is gone ({status})")));
        }
        Ok(kill(self.pid(), signal)?)
    }

    /// Stops it and lets it go on after some time, by itself.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn pause(&mut self, time: Duration) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let pid = self.pid();
        std::thread::spawn(move || {
            std::thread::sleep(time);
            // If it was killed meanwhile there is nothing to continue: its owner has not waited
            // for its last process yet, or the number is free.
            let _ = kill(pid, Signal::SIGCONT);
        });
        Ok(())
    }

    /// Kills it and what it started; does not wait.
    fn kill_group(&mut self) {
        // It may be gone already.
        let _ = match self.leads {
            true => killpg(self.pid(), Signal::SIGKILL).map_err(io::Error::from),
            false => self.child.kill(),
        };
    }

    /// Kills it and what it started, and waits until it is gone.
    pub fn end(&mut self) {
        self.kill_group();
        // Gone is gone.
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What cannot be killed is left behind: waiting for it would never end.
        self.kill_group();
        let since = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && since.elapsed() < DEATH {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// How a process ended.
#[derive(Debug)]
pub struct End {
    /// Its status; `None` if it could not even be killed.
    pub status: Option<ExitStatus>,
    /// The time that it had, if it was killed because that was up.
    pub limit: Option<Duration>,
}

impl End {
    /// The exit status, of a process that came to its end by itself.
    pub fn code(&self) -> Option<i32> {
        match self.limit {
            None => self.status?.code(),
            Some(_) => None,
        }
    }

    /// Whether it came to its end with status 0.
    pub fn is_success(&self) -> bool {
        self.code() == Some(0)
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.limit, self.status) {
            (Some(limit), status) => {
                write!(f, "TIMEOUT {} seconds", limit.as_secs())?;
                match status {
                    None => write!(f, ", and cannot be killed"),
                    Some(_) => Ok(()),
                }
            }
            (None, Some(status)) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exit status {code}"),
                (None, signal) => write!(f, "killed by signal {}", signal.unwrap_or_default()),
            },
            (None, None) => write!(f, "no exit status"),
        }
    }
}

/// The time that a limit is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Of the process itself: for tests on the host.
    OfProcess,
    /// Of the guest that this runs in.
    OfGuest,
}

/// Runs a command to its end, nothing on its input, and hands on the lines of its output, both
/// streams in one, as they come. At the limit, if there is one, it is killed with all that it
/// started; and so is what it left running.
///
/// # Errors
///
/// If it cannot be started.
pub fn run(
    mut command: Command,
    limit: Option<(Duration, Time)>,
    mut say: impl FnMut(&str),
) -> io::Result<End> {
    let (read, write) = pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::from(write.try_clone()?))
        .stderr(Stdio::from(write));
    let mut process = Process::start(&mut command)?;
    // It holds the pipe's writing ends: the output would never end.
    drop(command);
    let (lines, events) = mpsc::channel();
    let ended = lines.clone();
    each_line(File::from(read), move |line| {
        lines.send(Event::Line(line)).is_ok()
    });
    let pid = process.pid();
    std::thread::spawn(move || {
        await_end(pid);
        // Who would hear of it may have left it behind.
        let _ = ended.send(Event::End);
    });

    let mut clock = match limit {
        Some((_, Time::OfGuest)) => Clock::of_guest(),
        _ => Clock::of_processes(&[process.id()]),
    };
    let (mut status, mut killed, mut over) = (None, None::<Instant>, false);
    while !(over && status.is_some()) && killed.is_none_or(|since| since.elapsed() < DEATH) {
        match events.recv_timeout(LOOK) {
            Ok(Event::Line(line)) => say(&line),
            Ok(Event::End) | Err(RecvTimeoutError::Timeout) => {}
            // The output has ended, and so has the process.
            Err(RecvTimeoutError::Disconnected) => over = true,
        }
        if status.is_none() {
            status = process.try_wait()?;
            if status.is_some() {
                // What it left behind holds the pipe, and perhaps the device.
                process.kill_group();
            }
        }
        if killed.is_none() && limit.is_some_and(|(limit, _)| clock.elapsed() > limit) {
            killed = Some(Instant::now());
            process.kill_group();
        }
    }
    if status.is_none() {
        // It hangs in the kernel: there is nothing to wait for.
        std::mem::forget(process);
    }
    Ok(End {
        status,
        limit: killed.and(limit).map(|(limit, _)| limit),
    })
}

/// What [`run`] waits for.
enum Event {
    /// A line of the output.
    Line(String),
    /// The process has ended.
    End,
}

/// Waits until a child has ended, which stays for who asks for its status.
fn await_end(pid: Pid) {
    let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(pid), how) == Err(Errno::EINTR) {}
}

/// Hands a stream's lines, without their ends, to `take` on a thread of its own, until the
/// stream ends or `take` wants no more.
pub fn each_line(
    stream: impl Read + Send + 'static,
    mut take: impl FnMut(String) -> bool + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        while stream.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes);
            if !take(line.trim_end_matches(['\r', '\n']).to_owned()) {
                return;
            }
            bytes.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn shell(script: &str, limit: Duration) -> (String, Vec<String>) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let end = run(command, Some((limit, Time::OfProcess)), |line| {
            lines.push(line.to_owned());
        });
        (end.expect("a shell").to_string(), lines)
    }

    #[test]
    fn the_ends_are_told_apart() {
        assert_eq!(
            shell("echo left; echo right >&2; exit 101", LONG),
            (
                "exit status 101".into(),
                vec!["left".into(), "right".into()]
            )
        );
        assert_eq!(shell("kill -SEGV $$", LONG).0, "killed by signal 11");
    }

    #[test]
    fn a_hanging_process_is_killed_with_its_children() {
        // Without that the output would not end before the children do.
        let (end, lines) = shell("echo here; sleep 5000 & sleep 5000", Duration::ZERO);
        assert_eq!(end, "TIMEOUT 0 seconds");
        assert_eq!(lines, ["here"]);
    }

    #[test]
    fn what_a_process_leaves_running_does_not_keep_the_result() {
        assert_eq!(shell("sleep 5000 & exit 0", LONG).0, "exit status 0");
    }

    #[test]
    fn a_dropped_process_takes_its_children_with_it() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 5000 & echo begun; wait"]);
        let mut process = Process::start(command.stdout(Stdio::piped())).expect("a shell");
        let mut output = BufReader::new(process.stdout().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "begun\n");
        drop(process);
        // The child held the pipe too.
        assert_eq!(output.read_line(&mut line).expect("the end"), 0);
    }
}
