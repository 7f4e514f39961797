// SPDX-License-Identifier: MIT

//! Follows one boot to its end: both serial ports, requests, the tests' results and the
//! kernel's complaints, and a guest that has fallen silent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Result;
use skua_guest::job::Job;
use skua_guest::ktap::{self, Finished, Line, Reader};
use skua_guest::wire::Message;

use crate::machine::{Config, Machine};
use crate::report::{Outcome, Suite, Test};
use crate::splat::Detector;
use crate::Parts;

/// How long a guest may say nothing, in seconds: a boot or a step between two tests.
const SILENCE: u64 = 90;

/// What came of a boot.
#[derive(Debug, Default)]
pub(crate) struct Boot {
    /// The status of the job, if the guest came to its end.
    pub(crate) exit: Option<i32>,
    /// The tests that ended.
    pub(crate) tests: Vec<Test>,
    /// The programs that were begun, the last of them perhaps not ended.
    pub(crate) begun: Vec<String>,
    /// The program that was running when the guest died.
    pub(crate) unfinished: Option<String>,
    /// What is wrong with the guest as a whole.
    pub(crate) broken: Vec<String>,
}

/// What the follower is told by its readers.
enum Event {
    Console(String),
    Control(String),
    /// The console is closed: QEMU is gone.
    Off,
}

/// What is shown while a boot goes on.
pub(crate) trait Watch {
    /// A line of a program that is not a result.
    fn words(&mut self, _line: &str) {}
    /// What is running now.
    fn running(&mut self, _name: &str) {}
}

/// Boots a guest, follows it to its end, and leaves `console.log`, `serial.log`, `gpu.log` and
/// `qemu.log` in its output directory.
///
/// # Errors
///
/// If the machine does not start. A guest that dies is not an error here: see [`Boot::broken`].
pub(crate) fn boot(
    parts: &Parts,
    config: &Config,
    job: &Job,
    watch: &mut dyn Watch,
) -> Result<Boot> {
    let mut machine = Machine::start(parts, config, job)?;
    let (sender, events) = channel();
    if let Some(console) = machine.console() {
        forward(console, sender.clone(), Event::Console, true);
    }
    let mut control = machine.control()?;
    forward(machine.control()?, sender, Event::Control, false);

    let mut follower = Follower::new(&config.output)?;
    let mut heard = Instant::now();
    let patience = u64::from(parts.patience);
    loop {
        match events.recv_timeout(Duration::from_millis(200)) {
            Ok(Event::Console(line)) => {
                heard = Instant::now();
                follower.console(&line)?;
            }
            Ok(Event::Control(line)) => {
                heard = Instant::now();
                if let Some((id, request)) = follower.control(&line, watch)? {
                    let answer = match machine.act(&request) {
                        Ok(words) => format!("ok {words}").trim_end().to_owned(),
                        Err(error) => format!("error {error:#}").replace('\n', " "),
                    };
                    let answer = Message::Answer { id, answer };
                    control.write_all(format!("{answer}\n").as_bytes())?;
                }
            }
            Ok(Event::Off) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let limit = follower.silence.max(SILENCE * patience);
        if heard.elapsed() > Duration::from_secs(limit) {
            follower.dead = Some(format!("the guest was silent for {limit} seconds"));
            machine.turn_off();
        }
    }
    // What was still on its way over the second port.
    while let Ok(event) = events.recv_timeout(Duration::from_millis(100)) {
        match event {
            Event::Control(line) => drop(follower.control(&line, watch)?),
            Event::Console(line) => follower.console(&line)?,
            Event::Off => {}
        }
    }
    if !machine.is_off() {
        machine.turn_off();
    }
    let complaint = machine.complaint();
    let words = std::fs::read_to_string(config.output.join("qemu.log")).unwrap_or_default();
    if follower.boot.exit.is_none() && words.contains("Assertion") {
        follower
            .dead
            .get_or_insert(format!("QEMU: {}", words.trim()));
    }
    Ok(follower.finish(complaint))
}

/// Sends the lines of a stream as events.
fn forward(
    stream: impl Read + Send + 'static,
    sender: Sender<Event>,
    event: fn(String) -> Event,
    is_console: bool,
) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        while stream.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end_matches(['\r', '\n']).to_owned();
            if sender.send(event(line)).is_err() {
                return;
            }
            bytes.clear();
        }
        if is_console {
            // Nobody may be listening any more.
            let _ = sender.send(Event::Off);
        }
    });
}

/// The state of a boot as its lines tell it.
struct Follower {
    console_log: File,
    serial_log: File,
    tail: Vec<String>,
    detector: Detector,
    reader: Reader,
    /// The last mark announced; the next result ends at the one after it.
    mark: u64,
    /// The names of results that were announced, by their marks.
    names: BTreeMap<u64, String>,
    /// When the last result, or the program, began.
    since: Instant,
    times: BTreeMap<u64, Duration>,
    /// The running program, and how long it may be silent in seconds.
    running: Option<String>,
    silence: u64,
    finished: Vec<Finished>,
    boot: Boot,
    dead: Option<String>,
}

/// Lines of the console that are shown of a guest that died.
const TAIL: usize = 40;

impl Follower {
    fn new(output: &Path) -> Result<Self> {
        Ok(Self {
            console_log: File::create(output.join("console.log"))?,
            serial_log: File::create(output.join("serial.log"))?,
            tail: Vec::new(),
            detector: Detector::default(),
            reader: Reader::default(),
            mark: 0,
            names: BTreeMap::new(),
            since: Instant::now(),
            times: BTreeMap::new(),
            running: None,
            silence: 0,
            finished: Vec::new(),
            boot: Boot::default(),
            dead: None,
        })
    }

    fn console(&mut self, line: &str) -> Result<()> {
        writeln!(self.console_log, "{line}")?;
        self.detector.line(line);
        if self.tail.len() == TAIL {
            self.tail.remove(0);
        }
        self.tail.push(line.to_owned());
        Ok(())
    }

    /// Takes a line of the second port; returns a request to be answered.
    fn control(&mut self, line: &str, watch: &mut dyn Watch) -> Result<Option<(String, String)>> {
        writeln!(self.serial_log, "{line}")?;
        match Message::parse(line) {
            Some(Message::Ask { id, request }) => return Ok(Some((id, request))),
            Some(Message::Mark(mark)) => self.mark = mark,
            Some(Message::Exit(status)) => self.boot.exit = Some(status),
            Some(Message::Begin { name, seconds }) => {
                watch.running(&name);
                self.boot.begun.push(name.clone());
                self.running = Some(name);
                self.silence = seconds.saturating_add(SILENCE);
                self.since = Instant::now();
            }
            Some(Message::End(_)) => {
                self.running = None;
                self.silence = 0;
            }
            Some(Message::Answer { .. }) => {}
            None => self.ktap(line, watch),
        }
        Ok(None)
    }

    fn ktap(&mut self, line: &str, watch: &mut dyn Watch) {
        let next = self.mark.saturating_add(1);
        let (result, finished) = self.reader.line(line, next);
        if result {
            if let Line::Result { name, .. } = ktap::parse(line).1 {
                self.names.insert(next, name.to_owned());
            }
            self.times.insert(next, self.since.elapsed());
            self.since = Instant::now();
        } else {
            watch.words(line);
        }
        self.finished.extend(finished);
    }

    /// The tests of this boot, with the kernel's complaints charged to them.
    fn finish(mut self, gpu: Option<String>) -> Boot {
        let mut broken: Vec<String> = Vec::new();
        if self.boot.exit.is_none() {
            let why = self
                .dead
                .take()
                .unwrap_or_else(|| "the guest died".to_owned());
            // A complaint of the kernel says more, and is quoted with the test anyway.
            let next = self.mark.saturating_add(1);
            let splat = self.detector.found().iter().any(|splat| splat.mark == next);
            let words = if splat {
                why
            } else {
                format!("{why}; its last words:\n{}", self.tail.join("\n"))
            };
            let (open, said) = self.reader.rest();
            let program = self.running.take();
            if let Some(program) = &program {
                self.finished.extend(open.into_iter().map(|mut test| {
                    test.name = format!("{program}.{}", test.name);
                    test
                }));
                let mut output = said;
                output.extend(words.lines().map(str::to_owned));
                self.finished.push(Finished {
                    name: program.clone(),
                    verdict: ktap::Verdict::Fail,
                    output,
                    tag: next,
                });
            } else {
                broken.push(words);
            }
            self.boot.unfinished = program;
        }
        let mut tests: Vec<(u64, Test)> = self
            .finished
            .into_iter()
            .map(|test| {
                let (suite, name) = match test.name.strip_prefix("kunit") {
                    Some(rest) => (Suite::Kunit, rest.trim_start_matches('.')),
                    None if test.name == "kmemleak" || test.name == "module" => {
                        (Suite::Guest, test.name.as_str())
                    }
                    None => (Suite::Kselftest, test.name.as_str()),
                };
                let name = if name.is_empty() { "suites" } else { name };
                let time = self.times.get(&test.tag).copied().unwrap_or_default();
                let result = Outcome::from(test.verdict);
                let made = Test::new(suite, name, result, time);
                (test.tag, made.with_output(test.output.join("\n")))
            })
            .collect();
        for splat in self.detector.found() {
            let words = splat.lines.join("\n");
            match tests.iter_mut().find(|(tag, _)| *tag == splat.mark) {
                Some((_, test)) => {
                    test.result = Outcome::Fail;
                    test.output = format!("{}\n{words}", test.output).trim().to_owned();
                }
                None => {
                    let near = self.names.get(&splat.mark);
                    let near = near.map_or(String::new(), |name| format!("around {name}:\n"));
                    broken.push(format!("{near}{words}"));
                }
            }
        }
        broken.extend(gpu);
        self.boot.tests = tests.into_iter().map(|(_, test)| test).collect();
        self.boot.broken = broken;
        self.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Blind;
    impl Watch for Blind {}

    fn follow(console: &[&str], control: &[&str]) -> Boot {
        let dir = tempfile::tempdir().expect("a directory");
        let mut follower = Follower::new(dir.path()).expect("logs");
        for line in console {
            follower.console(line).expect("a log");
        }
        for line in control {
            follower.control(line, &mut Blind).expect("a log");
        }
        follower.finish(None)
    }

    const GOOD: &[&str] = &[
        "KTAP version 1",
        "1..2",
        "@skua mark 1",
        "    ok 1 suite",
        "ok 1 kunit",
        "@skua mark 2",
        "@skua begin c:bo 45",
        "    1..2",
        "    ok 1 row_0_17_a",
        "@skua mark 3",
        "    ok 2 b",
        "@skua mark 4",
        "ok 2 c:bo",
        "@skua mark 5",
        "@skua end c:bo",
        "@skua exit 0",
    ];

    fn results(boot: &Boot) -> Vec<(String, Outcome)> {
        boot.tests
            .iter()
            .map(|test| (test.id(), test.result))
            .collect()
    }

    #[test]
    fn a_good_boot_has_its_tests() {
        let boot = follow(&["skua-mark: 1", "skua-mark: 5"], GOOD);
        assert_eq!(
            results(&boot),
            [
                ("kunit/suite".to_owned(), Outcome::Pass),
                ("kselftest/c:bo.row_0_17_a".to_owned(), Outcome::Pass),
                ("kselftest/c:bo.b".to_owned(), Outcome::Pass),
            ]
        );
        assert_eq!(boot.exit, Some(0));
        assert!(boot.broken.is_empty() && boot.unfinished.is_none());
        assert_eq!(boot.tests[1].rows, ["0.17"]);
    }

    #[test]
    fn a_complaint_fails_the_test_it_came_in() {
        let console = [
            "skua-mark: 1",
            "skua-mark: 2",
            "skua-mark: 3",
            "BUG: KASAN: use-after-free",
            "skua-mark: 4",
        ];
        let boot = follow(&console, GOOD);
        assert_eq!(boot.tests[1].result, Outcome::Pass);
        assert_eq!(boot.tests[2].result, Outcome::Fail);
        assert_eq!(boot.tests[2].output, "BUG: KASAN: use-after-free");
    }

    #[test]
    fn a_complaint_outside_a_test_breaks_the_guest() {
        let boot = follow(&["skua-mark: 4", "WARNING: at exit", "skua-mark: 5"], GOOD);
        assert_eq!(boot.broken, ["around c:bo:\nWARNING: at exit"]);
    }

    #[test]
    fn a_guest_that_dies_fails_the_running_program() {
        let end = GOOD.iter().position(|line| line.contains("ok 2 b"));
        let boot = follow(
            &["Kernel panic - not syncing: fatal"],
            &GOOD[..end.expect("there")],
        );
        assert_eq!(boot.unfinished.as_deref(), Some("c:bo"));
        let last = boot.tests.last().expect("tests");
        assert_eq!((last.test.as_str(), last.result), ("c:bo", Outcome::Fail));
        assert!(last.output.contains("Kernel panic"));
        assert_eq!(boot.tests[1].test, "c:bo.row_0_17_a");
        assert_eq!(boot.tests[1].result, Outcome::Pass);
    }

    #[test]
    fn a_guest_that_never_starts_is_broken() {
        let boot = follow(&["VFS: Unable to mount root fs"], &[]);
        assert!(boot.tests.is_empty());
        assert!(boot.broken[0].contains("Unable to mount root"));
    }
}
