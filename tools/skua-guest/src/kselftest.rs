// SPDX-License-Identifier: MIT

//! Runs installed kselftests and reports them as one KTAP document on the second serial port.
//!
//! The rules are those of the kernel's own `run_kselftest.sh`: each entry of the list runs in
//! its collection's directory, `settings` there may set `timeout=SECONDS` (45 without, 0 is
//! none), exit status 4 is a skip, 2 an expected failure. What it prints is a nested document.
//! Unlike there, every result is followed by a mark in the kernel log, so that the host knows
//! which test a kernel message belongs to; and what a test leaves running is killed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::{pipe, Pid};
use skua_guest::job::PRODUCTS;
use skua_guest::ktap::{self, Line};
use skua_guest::wire::{Message, MARK};

use crate::port::Port;

/// kselftest's own, in seconds.
const TIMEOUT: u64 = 45;
/// A test without a time limit may still not be silent for longer, in seconds.
const SILENCE: u64 = 600;
/// How long a killed test may take to be gone: it may be in the kernel.
const DEATH: Duration = Duration::from_secs(20);

/// A run of tests.
pub(crate) struct Run {
    port: Port,
    kmsg: File,
    patience: u32,
    filter: Option<String>,
    number: usize,
    mark: u64,
    failed: bool,
}

impl Run {
    /// A run that has reported nothing.
    pub(crate) fn new(patience: u32, filter: Option<&str>) -> Result<Self> {
        Ok(Self {
            port: Port::open()?,
            kmsg: OpenOptions::new().write(true).open("/dev/kmsg")?,
            patience: patience.max(1),
            filter: filter.map(str::to_owned),
            number: 0,
            mark: 0,
            failed: false,
        })
    }

    /// Whether a test failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// The head of the document.
    pub(crate) fn announce(&mut self, programs: usize, kunit: bool) -> Result<()> {
        let count = programs + usize::from(kunit) + usize::from(Path::new(KMEMLEAK).exists());
        self.port.line("KTAP version 1")?;
        self.port.line(&format!("1..{count}"))?;
        self.set_mark()
    }

    /// An outermost result.
    pub(crate) fn report(&mut self, name: &str, passed: bool, note: Option<&str>) -> Result<()> {
        self.number += 1;
        self.failed |= !passed;
        let verdict = if passed { "ok" } else { "not ok" };
        let note = note.map_or(String::new(), |note| {
            format!(" # {}", note.replace('\n', " "))
        });
        self.port
            .line(&format!("{verdict} {} {name}{note}", self.number))?;
        self.set_mark()
    }

    /// A document that is already there, as an outermost result.
    pub(crate) fn nested(&mut self, name: &str, lines: &[String]) -> Result<()> {
        let mut passed = true;
        for line in lines {
            let (indent, body) = ktap::parse(line);
            if let (0, Line::Result { verdict, .. }) = (indent, body) {
                passed &= verdict != ktap::Verdict::Fail;
            }
            self.port.line(&format!("    {line}"))?;
        }
        let none = lines.is_empty().then_some("SKIP the module has no suites");
        self.report(name, passed, none)
    }

    /// Runs an entry of `kselftest-list.txt`.
    pub(crate) fn program(&mut self, entry: &str) -> Result<()> {
        let Some((collection, name)) = entry.split_once(':') else {
            return self.report(entry, false, Some("not collection:program"));
        };
        let dir = Path::new(PRODUCTS).join("kselftest").join(collection);
        let limit = match setting(&dir, "timeout").unwrap_or(TIMEOUT) {
            0 => None,
            seconds => Some(seconds.saturating_mul(self.patience.into())),
        };
        self.port.say(&Message::Begin {
            name: entry.to_owned(),
            seconds: limit.unwrap_or(SILENCE),
        })?;
        let (passed, note) = match self.supervise(&dir, name, limit.map(Duration::from_secs)) {
            Ok(end) => end.verdict(limit),
            Err(error) => (false, Some(format!("{error:#}"))),
        };
        self.report(entry, passed, note.as_deref())?;
        self.port.say(&Message::End(entry.to_owned()))?;
        Ok(())
    }

    fn supervise(&mut self, dir: &Path, name: &str, limit: Option<Duration>) -> Result<End> {
        let mut command = Command::new(dir.join(name));
        command
            .current_dir(dir)
            .env("SKUA_PATIENCE", self.patience.to_string());
        if let Some(filter) = &self.filter {
            command.env("SKUA_TEST_FILTER", filter);
        }
        let (mut child, lines) = start(command)?;
        let begin = Instant::now();
        let mut killed = None;
        let mut status = None;
        loop {
            match lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => self.forward(&line)?,
                // All writers are gone.
                Err(mpsc::RecvTimeoutError::Disconnected) if status.is_some() => break,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if status.is_none() {
                status = child.try_wait()?;
                if status.is_some() {
                    // Whatever it left behind holds the pipe and perhaps the device.
                    kill(&child);
                }
            }
            if killed.is_none() && limit.is_some_and(|limit| begin.elapsed() > limit) {
                killed = Some(Instant::now());
                kill(&child);
            }
            if killed.is_some_and(|since| since.elapsed() > DEATH) {
                break;
            }
        }
        Ok(End {
            status,
            late: killed.is_some(),
        })
    }

    /// A line of a test, indented into the document; a result gets its mark.
    fn forward(&mut self, line: &str) -> Result<()> {
        self.port.line(&format!("    {line}"))?;
        if matches!(ktap::parse(line).1, Line::Result { .. }) {
            self.set_mark()?;
        }
        Ok(())
    }

    fn set_mark(&mut self) -> Result<()> {
        self.mark += 1;
        self.kmsg
            .write_all(format!("<6>{MARK}{}\n", self.mark).as_bytes())?;
        self.port.say(&Message::Mark(self.mark))?;
        Ok(())
    }

    /// On a kernel that can tell: nothing was leaked in this boot. kmemleak names only blocks
    /// that it found lost twice, and that are older than five seconds.
    pub(crate) fn kmemleak(&mut self) -> Result<()> {
        if !Path::new(KMEMLEAK).exists() {
            return Ok(());
        }
        self.port.say(&Message::Begin {
            name: "kmemleak".to_owned(),
            seconds: SILENCE,
        })?;
        std::thread::sleep(Duration::from_secs(6));
        for _ in 0..2 {
            fs::write(KMEMLEAK, "scan").context("kmemleak scan")?;
        }
        let leaks = fs::read_to_string(KMEMLEAK).context("kmemleak")?;
        for line in leaks.lines() {
            self.port.line(&format!("    # {line}"))?;
        }
        self.report("kmemleak", leaks.trim().is_empty(), None)
    }
}

const KMEMLEAK: &str = "/sys/kernel/debug/kmemleak";

/// How a program ended.
struct End {
    /// `None` if it could not even be killed.
    status: Option<std::process::ExitStatus>,
    late: bool,
}

impl End {
    fn verdict(&self, limit: Option<u64>) -> (bool, Option<String>) {
        let seconds = limit.unwrap_or(0);
        match self.status {
            None => (
                false,
                Some(format!("TIMEOUT {seconds} seconds, and cannot be killed")),
            ),
            _ if self.late => (false, Some(format!("TIMEOUT {seconds} seconds"))),
            Some(status) => match (status.code(), status.signal()) {
                (Some(0), _) => (true, None),
                (Some(2), _) => (true, Some("XFAIL".to_owned())),
                (Some(4), _) => (true, Some("SKIP".to_owned())),
                (Some(code), _) => (false, Some(format!("exit={code}"))),
                (None, signal) => (
                    false,
                    Some(format!("killed by signal {}", signal.unwrap_or_default())),
                ),
            },
        }
    }
}

/// Runs a program of the products or of the system, its output on the second serial port.
pub(crate) fn command(argv: &[String]) -> Result<i32> {
    let (name, arguments) = argv.split_first().context("an empty command")?;
    let own = Path::new(PRODUCTS).join("bin").join(name);
    let path = if own.exists() {
        own
    } else {
        PathBuf::from(name)
    };
    let mut port = Port::open()?;
    let mut command = Command::new(path);
    command.args(arguments).current_dir(skua_guest::job::OUTPUT);
    let (mut child, lines) = start(command)?;
    for line in lines {
        port.line(&line)?;
    }
    let status = child.wait()?;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// Starts a program in a process group of its own; its output comes by the line.
fn start(mut command: Command) -> Result<(Child, mpsc::Receiver<String>)> {
    let (read, write) = pipe()?;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::from(write.try_clone()?))
        .stderr(Stdio::from(write))
        .process_group(0)
        .spawn()
        .with_context(|| format!("{:?}", command.get_program()))?;
    // The writing ends are the child's alone, or the output would never end.
    drop(command);
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(File::from(read));
        let mut bytes = Vec::new();
        while input.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes);
            if sender.send(line.trim_end().to_owned()).is_err() {
                return;
            }
            bytes.clear();
        }
    });
    Ok((child, lines))
}

fn kill(child: &Child) {
    if let Ok(id) = i32::try_from(child.id()) {
        // It may be gone already.
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
}

fn setting(dir: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(dir.join("settings")).ok()?;
    let settings: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    settings.get(name)?.trim().parse().ok()
}
