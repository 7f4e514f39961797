// SPDX-License-Identifier: MIT

//! Runs installed kselftests and reports them as one KTAP document on the second serial port.
//!
//! The rules are those of the kernel's own `run_kselftest.sh`: each entry of the list runs in
//! its collection's directory, `settings` there may set `timeout=SECONDS` (45 without, 0 is
//! none), exit status 4 is a skip, 2 an expected failure. What it prints is a nested document.
//! Unlike there, every result is followed by a mark in the kernel log, so that the host knows
//! which test a kernel message belongs to; and what a test leaves running is killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use skua_guest::job::PRODUCTS;
use skua_guest::kmemleak;
use skua_guest::ktap::{self, Line, Verdict, Writer};
use skua_guest::process::{self, End, Time};
use skua_guest::wire::Message;

use crate::kernel_log::KernelLog;
use crate::kunit::Suites;
use crate::port::Port;

/// kselftest's own, in seconds.
const TIMEOUT: u64 = 45;
/// A test without a time limit may still not be silent for longer, in seconds.
const SILENCE: u64 = 600;

/// A run of tests.
pub(crate) struct Run {
    /// Goes to the host.
    document: Writer<Port>,
    /// For messages: a second opening of the document's port.
    port: Port,
    /// Marked behind each result.
    log: KernelLog,
    /// By how much every limit of time is multiplied.
    patience: u32,
    /// What the names of tests must contain.
    filter: Option<String>,
    /// Everything that can leave VRAM does so beside the programs.
    evict: bool,
    /// How often work is to be preempted by a test that counts that.
    pub(crate) points: Option<u64>,
}

/// A verdict and why.
type Told = (Verdict, String);

impl Run {
    /// The head of the document of so many programs, and of what every boot is asked besides.
    pub(crate) fn new(
        log: KernelLog,
        patience: u32,
        filter: Option<&str>,
        programs: usize,
        kunit: bool,
        evict: bool,
    ) -> Result<Self> {
        let count = programs + usize::from(kunit) + usize::from(kmemleak::is_on());
        let mut run = Self {
            document: Writer::new(Port::open()?, Some(count))?,
            port: Port::open()?,
            log,
            patience: patience.max(1),
            filter: filter.map(str::to_owned),
            evict,
            points: None,
        };
        run.set_mark()?;
        Ok(run)
    }

    /// Whether a test failed.
    pub(crate) fn failed(&self) -> bool {
        self.document.failed() > 0
    }

    /// An outermost result.
    pub(crate) fn report(&mut self, name: &str, verdict: Verdict, why: &str) -> Result<()> {
        self.document.result(name, verdict, why)?;
        self.set_mark()
    }

    /// Announces an outermost test that may be silent for so many seconds, has it done, and
    /// reports it.
    fn announced(
        &mut self,
        name: &str,
        seconds: u64,
        test: impl FnOnce(&mut Self) -> Result<Told>,
    ) -> Result<()> {
        self.port.say(&Message::Begin {
            name: name.to_owned(),
            seconds,
        })?;
        let (verdict, why) =
            test(self).unwrap_or_else(|error| (Verdict::Fail, format!("{error:#}")));
        self.report(name, verdict, &why)?;
        self.log.end_program();
        self.port.say(&Message::End(name.to_owned()))?;
        Ok(())
    }

    /// The results of the suites that came with the module.
    pub(crate) fn kunit(&mut self, before: &Suites) -> Result<()> {
        self.announced("kunit", SILENCE, |run| {
            let mut verdict = Verdict::Pass;
            for line in crate::kunit::results(before)? {
                if let (0, Line::Result { verdict: one, .. }) = ktap::parse(&line) {
                    if one == Verdict::Fail {
                        verdict = Verdict::Fail;
                    }
                }
                run.document.nested(&line)?;
            }
            Ok((verdict, String::new()))
        })
    }

    /// Runs an entry of `kselftest-list.txt`.
    pub(crate) fn program(&mut self, entry: &str) -> Result<()> {
        let Some((collection, name)) = entry.split_once(':') else {
            return self.report(entry, Verdict::Fail, "not collection:program");
        };
        let dir = Path::new(PRODUCTS).join("kselftest").join(collection);
        let limit = match setting(&dir, "timeout").unwrap_or(TIMEOUT) {
            0 => None,
            seconds => Some(seconds.saturating_mul(self.patience.into())),
        };
        self.announced(entry, limit.unwrap_or(SILENCE), |run| {
            let mut command = Command::new(dir.join(name));
            command
                .current_dir(&dir)
                .env("SKUA_PATIENCE", run.patience.to_string());
            if let Some(filter) = &run.filter {
                command.env("SKUA_TEST_FILTER", filter);
            }
            if run.evict {
                command.env("SKUA_EVICT", "1");
            }
            if let Some(points) = run.points {
                command.env("SKUA_POINTS", points.to_string());
            }
            let limit = limit.map(|limit| (Duration::from_secs(limit), Time::OfGuest));
            let mut heard = Ok(());
            let end = process::run(command, limit, |line| {
                if heard.is_ok() {
                    heard = run.forward(line);
                }
            });
            heard?;
            Ok(verdict(&end.context("cannot be run")?))
        })
    }

    /// A line of a test, indented into the document; a result gets its mark.
    fn forward(&mut self, line: &str) -> Result<()> {
        self.document.nested(line)?;
        if matches!(ktap::parse(line).1, Line::Result { .. }) {
            self.set_mark()?;
        }
        Ok(())
    }

    fn set_mark(&mut self) -> Result<()> {
        let mark = self.log.set_mark()?;
        self.port.say(&Message::Mark(mark))?;
        Ok(())
    }

    /// On a kernel that can tell: nothing was leaked in this boot. kmemleak names only blocks
    /// that it found lost twice, and that are older than five seconds.
    pub(crate) fn kmemleak(&mut self) -> Result<()> {
        if !kmemleak::is_on() {
            return Ok(());
        }
        self.announced("kmemleak", SILENCE, |run| {
            std::thread::sleep(Duration::from_secs(6));
            for _ in 0..2 {
                fs::write(kmemleak::FILE, "scan").context("kmemleak scan")?;
            }
            let leaks = fs::read_to_string(kmemleak::FILE).context("kmemleak")?;
            for line in leaks.lines() {
                run.document.nested(&format!("# {line}"))?;
            }
            Ok(match leaks.trim().is_empty() {
                true => (Verdict::Pass, String::new()),
                false => (Verdict::Fail, "memory was leaked".to_owned()),
            })
        })
    }
}

/// kselftest's exit statuses.
fn verdict(end: &End) -> Told {
    match end.code() {
        Some(0) => (Verdict::Pass, String::new()),
        Some(2) => (Verdict::Pass, "XFAIL".to_owned()),
        Some(4) => (Verdict::Skip, String::new()),
        _ => (Verdict::Fail, end.to_string()),
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
    let mut said: io::Result<()> = Ok(());
    let end = process::run(command, None, |line| {
        if said.is_ok() {
            said = port.write_all(format!("{line}\n").as_bytes());
        }
    })
    .with_context(|| name.clone())?;
    said?;
    let signal = end.status.and_then(|status| status.signal());
    Ok(end.code().unwrap_or(128 + signal.unwrap_or_default()))
}

fn setting(dir: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(dir.join("settings")).ok()?;
    let settings: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    settings.get(name)?.trim().parse().ok()
}
