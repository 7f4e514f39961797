// SPDX-License-Identifier: MIT

//! Follows one boot to its end: both serial ports, requests, the tests' results and the
//! kernel's complaints, and a guest that has fallen silent.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Result;
use skua_guest::clock;
use skua_guest::job::{Job, BROKEN};
use skua_guest::ktap::{self, Finished, Line, Reader, Verdict};
use skua_guest::process::each_line;
use skua_guest::wire::Message;

use crate::machine::{Config, Machine};
use crate::report::{Suite, Test};
use crate::splat::Detector;
use crate::symbols;
use crate::Parts;

/// How long a guest may say nothing, in seconds of its own: a boot or a step between two tests.
const SILENCE: u64 = 90;
/// What the host has to keep a guest waiting for, in a while, for the kernel's complaints about
/// stalls to be about the host.
const STALL: Duration = Duration::from_secs(10);
/// The while: what the kernel waits for before it complains, and some.
const WHILE: Duration = Duration::from_secs(120);

/// What came of a boot, beside its tests.
#[derive(Debug, Default)]
pub(crate) struct Boot {
    /// The status of the job, if the guest came to its end.
    pub(crate) exit: Option<i32>,
    /// The programs that were begun, the last of them perhaps not ended.
    pub(crate) begun: Vec<String>,
    /// What is wrong with the guest as a whole.
    pub(crate) broken: Vec<String>,
    /// It fell silent before its first process said anything.
    mute: bool,
}

/// What the follower is told by its readers.
enum Event {
    Console(String),
    Control(String),
}

/// What is shown and kept while a boot goes on.
pub(crate) trait Watch {
    /// A line of a program that is not a result.
    fn words(&mut self, _line: &str) {}
    /// A test, or a boot, with this name is running now.
    fn running(&mut self, _name: &str) {}
    /// A test has ended, and all that the kernel had to say about it is known.
    fn ended(&mut self, _test: Test) {}
}

/// How long a machine that is off may leave a line unread.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Shows what the program in the guest says.
pub(crate) struct Words;

impl Watch for Words {
    fn words(&mut self, line: &str) {
        println!("{line}");
    }
}

/// Boots a guest, follows it to its end, and leaves `console.log`, `serial.log`, `gpu.log` and
/// `qemu.log` in its output directory.
///
/// A kernel that falls silent before it has loaded anything of ours, as 7.3 does once in many boots
/// on a loaded host, is booted once more; what it said then is in `console-mute.log`.
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
    let first = follow(parts, config, job, watch)?;
    if !first.mute {
        return Ok(first);
    }
    eprintln!("skua-vm: the guest's kernel fell silent before its first process; once more");
    let console = config.output.join("console.log");
    std::fs::rename(console, config.output.join("console-mute.log"))?;
    follow(parts, config, job, watch)
}

/// Follows one attempt of [`boot`] to its end.
fn follow(parts: &Parts, config: &Config, job: &Job, watch: &mut dyn Watch) -> Result<Boot> {
    let mut machine = Machine::start(parts, config, job)?;
    let (sender, events) = channel();
    if let Some(console) = machine.console() {
        forward(console, sender.clone(), Event::Console);
    }
    let mut control = machine.control()?;
    forward(machine.control()?, sender, Event::Control);

    let mut follower = Follower::new(parts, config)?;
    let mut clock = machine.clock();
    let (mut heard, mut lost, mut looked) = (Duration::ZERO, Duration::ZERO, Instant::now());
    let patience = u64::from(parts.patience);
    let mut spoke = false;
    loop {
        match events.recv_timeout(Duration::from_millis(200)) {
            Ok(Event::Console(line)) => {
                heard = clock.elapsed();
                follower.console(&line, watch)?;
            }
            Ok(Event::Control(line)) => {
                heard = clock.elapsed();
                spoke = true;
                if let Some((id, request)) = follower.control(&line, watch)? {
                    let answer = machine.answer(&request);
                    let answer = Message::Answer { id, answer };
                    // A guest that is gone hears nothing: its streams end, too, and say the rest.
                    let _ = control.write_all(format!("{answer}\n").as_bytes());
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if machine.is_off() => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if looked.elapsed() < Duration::from_secs(1) {
            continue;
        }
        looked = Instant::now();
        if parts.gdb.is_some() || machine.is_held() {
            clock.forgive();
        }
        let limit = follower.silence.max(SILENCE * patience);
        if clock.elapsed().saturating_sub(heard) > Duration::from_secs(limit) {
            follower.dead = Some(format!("the guest was silent for {limit} seconds"));
            follower.boot.mute = !spoke;
            machine.turn_off();
        }
        if clock.lost() != lost {
            follower.kept_waiting(clock.lost() - lost);
            lost = clock.lost();
            let file = config.output.join(clock::FILE);
            std::fs::write(file, lost.as_millis().to_string())?;
        }
    }
    // What was still on its way: the streams end with the machine, but a busy host may take its
    // time to read them.
    while let Ok(event) = events.recv_timeout(LAST_WORDS) {
        match event {
            Event::Control(line) => drop(follower.control(&line, watch)?),
            Event::Console(line) => follower.console(&line, watch)?,
        }
    }
    if let Some(words) = machine.end() {
        // It says why, where the guest's silence says nothing.
        follower.dead = Some(words);
    }
    Ok(follower.finish(machine.complaint(), watch))
}

/// Sends the lines of a stream as events.
fn forward(
    stream: impl std::io::Read + Send + 'static,
    sender: Sender<Event>,
    event: fn(String) -> Event,
) {
    each_line(stream, move |line| sender.send(event(line)).is_ok());
}

/// A program of the guest that was announced and has no result yet.
struct Program {
    /// Its name, as the guest announced it.
    name: String,
    /// Reads what it prints.
    reader: Reader,
}

/// The state of a boot as its lines tell it.
struct Follower<'a> {
    /// What the guest is made from: the kernel's symbols are looked up there.
    parts: &'a Parts,
    /// Words of a death that is as good as an end: [`crate::plan::Guest::may_die_of`].
    may_die_of: Option<&'a str>,
    /// Gets every line of the console.
    console_log: File,
    /// Gets every line of the kernel.
    serial_log: File,
    /// The console's last lines.
    tail: VecDeque<String>,
    /// The last words that belong to no program.
    words: Option<String>,
    /// Finds the kernel's complaints.
    detector: Detector,
    /// The last mark announced; the next result ends at the one after it.
    mark: u64,
    /// The names of results that were announced, by their marks.
    names: BTreeMap<u64, String>,
    /// When the last result, or the program, began.
    since: Instant,
    /// The program that runs.
    program: Option<Program>,
    /// How long the running program may be silent, in seconds.
    silence: u64,
    /// How many outermost results were planned, and how many came.
    plan: Option<(usize, usize)>,
    /// A failed test was told of.
    failed: bool,
    /// Tests that ended, by the mark before which the kernel may still complain.
    waiting: VecDeque<(u64, Test)>,
    /// When, and for how long, the host kept the guest waiting in the last [`WHILE`].
    stood_still: VecDeque<(Instant, Duration)>,
    /// How far the boot came.
    boot: Boot,
    /// Why the guest is off before its end.
    dead: Option<String>,
}

/// Lines of the console that are shown of a guest that died.
const TAIL: usize = 40;

impl<'a> Follower<'a> {
    fn new(parts: &'a Parts, config: &'a Config) -> Result<Self> {
        Ok(Self {
            parts,
            may_die_of: config.may_die_of.as_deref(),
            console_log: File::create(config.output.join("console.log"))?,
            serial_log: File::create(config.output.join("serial.log"))?,
            tail: VecDeque::new(),
            words: None,
            detector: Detector::default(),
            mark: 0,
            names: BTreeMap::new(),
            since: Instant::now(),
            program: None,
            silence: 0,
            plan: None,
            failed: false,
            waiting: VecDeque::new(),
            stood_still: VecDeque::new(),
            boot: Boot::default(),
            dead: None,
        })
    }

    fn kept_waiting(&mut self, time: Duration) {
        let now = Instant::now();
        self.stood_still.push_back((now, time));
        self.stood_still.retain(|(when, _)| now - *when < WHILE);
    }

    fn console(&mut self, line: &str, watch: &mut dyn Watch) -> Result<()> {
        writeln!(self.console_log, "{line}")?;
        let lost: Duration = self.stood_still.iter().map(|(_, time)| *time).sum();
        if !self.detector.line(line, lost < STALL) {
            writeln!(self.console_log, "skua-vm: the host stood still: {lost:?}")?;
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
        self.hand_over(self.detector.mark(), watch);
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
                self.program = Some(Program {
                    name,
                    reader: Reader::default(),
                });
                self.silence = seconds.saturating_add(SILENCE);
                self.since = Instant::now();
            }
            Some(Message::End(_)) => self.silence = 0,
            Some(Message::Answer { .. }) => {}
            None => self.ktap(line, watch),
        }
        self.hand_over(self.detector.mark(), watch);
        Ok(None)
    }

    fn ktap(&mut self, line: &str, watch: &mut dyn Watch) {
        let tag = self.mark.saturating_add(1);
        if let (Some(program), Some(inner)) = (&mut self.program, line.strip_prefix("    ")) {
            let (result, mut finished) = program.reader.line(inner, tag);
            for test in &mut finished {
                test.name = format!("{}.{}", program.name, test.name);
            }
            if result {
                self.result(ktap::parse(inner).1, tag, finished);
            } else {
                watch.words(inner);
            }
            return;
        }
        match ktap::parse(line).1 {
            Line::Plan(planned) => self.plan = Some((planned, 0)),
            body @ Line::Result {
                verdict,
                name,
                note,
            } => {
                if let Some((_, came)) = &mut self.plan {
                    *came += 1;
                }
                let rest = self.program.take().map(|program| program.reader.finish());
                let finished = outermost(name, verdict, note, rest, tag);
                self.result(body, tag, finished);
            }
            Line::Version => {}
            Line::Words(text) | Line::BailOut(text) => {
                self.words = Some(text.trim_start_matches("# ").to_owned());
                watch.words(line);
            }
        }
    }

    /// A result line, and the tests that it finished.
    fn result(&mut self, line: Line<'_>, tag: u64, finished: Vec<Finished>) {
        if let Line::Result { name, .. } = line {
            self.names.insert(tag, name.to_owned());
        }
        let time = self.since.elapsed();
        self.since = Instant::now();
        for test in finished {
            self.failed |= test.verdict == Verdict::Fail;
            let (suite, name) = match test.name.strip_prefix("kunit") {
                Some(rest) => (Suite::Kunit, rest.trim_start_matches('.')),
                None if test.name == "kmemleak" || test.name == "module" => {
                    (Suite::Guest, test.name.as_str())
                }
                None => (Suite::Kselftest, test.name.as_str()),
            };
            let name = if name.is_empty() { "suites" } else { name };
            let made = Test::new(suite, name, test.verdict, time);
            let made = made.with_output(test.output.join("\n"));
            self.waiting.push_back((test.tag, made));
        }
    }

    /// Hands on the tests that ended before a mark of the kernel log, with the kernel's
    /// complaints charged to them.
    fn hand_over(&mut self, mark: u64, watch: &mut dyn Watch) {
        let ready = self.waiting.iter().filter(|(tag, _)| *tag <= mark).count();
        for (tag, mut test) in self.waiting.drain(..ready) {
            if let Some(splat) = self.detector.take(tag) {
                let words = symbols::decode(self.parts, splat.lines);
                test.result = Verdict::Fail;
                test.output = format!("{}\n{words}", test.output).trim().to_owned();
            }
            watch.ended(test);
        }
    }

    /// The end of the boot, with what is to be said against the GPU server.
    fn finish(mut self, gpu: Option<String>, watch: &mut dyn Watch) -> Boot {
        if let Some(words) = self.dead.take_if(|_| self.boot.exit.is_some()) {
            // The guest was done, and QEMU then did not end as it should.
            if !self
                .may_die_of
                .is_some_and(|accepted| words.contains(accepted))
            {
                self.boot.broken.push(words);
            }
        }
        match self.boot.exit {
            None => self.died(),
            Some(0 | 1) => {
                if let Some((planned, came)) = self.plan.filter(|(planned, came)| planned != came) {
                    let words = format!("{planned} results announced, {came} came");
                    self.boot.broken.push(words);
                }
                if self.boot.exit == Some(1) && self.plan.is_some() && !self.failed {
                    let words = "the guest says that a test failed, and none came".to_owned();
                    self.boot.broken.push(words);
                }
            }
            Some(BROKEN) => {
                let words = self.words.take().unwrap_or_default();
                self.boot
                    .broken
                    .push(format!("the guest could not do its job: {words}"));
            }
            // A program's own.
            Some(_) => {}
        }
        self.hand_over(u64::MAX, watch);
        for splat in self.detector.rest() {
            let near = self.names.get(&splat.mark);
            let near = near.map_or(String::new(), |name| format!("around {name}:\n"));
            let words = symbols::decode(self.parts, splat.lines);
            self.boot.broken.push(format!("{near}{words}"));
        }
        self.boot.broken.extend(gpu);
        self.boot
    }

    /// The guest is off before its end: the test that ran has failed, if one did.
    fn died(&mut self) {
        let tag = self.mark.saturating_add(1);
        let why = self
            .dead
            .take()
            .unwrap_or_else(|| "the guest died".to_owned());
        let words = match self.detector.take(tag) {
            Some(splat) => format!("{why}\n{}", symbols::decode(self.parts, splat.lines)),
            None => {
                let tail = symbols::decode(self.parts, self.tail.drain(..).collect());
                format!("{why}; its last words:\n{tail}")
            }
        };
        let Some(program) = self.program.take() else {
            self.boot.broken.push(words);
            return;
        };
        let rest = program.reader.finish();
        let name = match rest.running {
            Some(test) => format!("{}.{test}", program.name),
            None => program.name.clone(),
        };
        let mut finished = rest.unclosed;
        for test in &mut finished {
            test.name = format!("{}.{}", program.name, test.name);
        }
        let accepted = self.may_die_of.is_some_and(|why| words.contains(why));
        let mut output = rest.words;
        output.extend(words.lines().map(str::to_owned));
        finished.push(Finished {
            name,
            verdict: if accepted {
                Verdict::Pass
            } else {
                Verdict::Fail
            },
            output,
            tag,
        });
        self.result(Line::Words(""), tag, finished);
    }
}

/// What an outermost result says that the tests inside it have not said.
fn outermost(
    name: &str,
    mut verdict: Verdict,
    note: Option<&str>,
    rest: Option<ktap::Remainder>,
    tag: u64,
) -> Vec<Finished> {
    let mut output = Vec::new();
    let (mut told, mut any, mut finished) = (false, false, Vec::new());
    if let Some(rest) = rest {
        finished = rest.unclosed;
        output = rest.words;
        (told, any) = (rest.failed, rest.any);
        if verdict == Verdict::Pass && (rest.broken.is_some() || !finished.is_empty()) {
            verdict = Verdict::Fail;
        }
        output.extend(rest.broken);
    }
    for test in &mut finished {
        test.name = format!("{name}.{}", test.name);
        told |= test.verdict == Verdict::Fail;
    }
    output.extend(note.map(str::to_owned));
    if !any || (verdict == Verdict::Fail && !told) {
        finished.push(Finished {
            name: name.to_owned(),
            verdict,
            output,
            tag,
        });
    }
    finished
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Keeps what ended.
    #[derive(Default)]
    struct Kept(Vec<Test>);
    impl Watch for Kept {
        fn ended(&mut self, test: Test) {
            self.0.push(test);
        }
    }

    fn config(output: &Path) -> Config {
        Config {
            output: output.to_owned(),
            ..Config::default()
        }
    }

    fn follow_a(
        change: impl FnOnce(&mut Follower<'_>),
        console: &[&str],
        control: &[&str],
    ) -> (Boot, Vec<Test>) {
        let dir = tempfile::tempdir().expect("a directory");
        let (parts, config) = (Parts::of_test(), config(dir.path()));
        let mut follower = Follower::new(&parts, &config).expect("logs");
        change(&mut follower);
        let mut kept = Kept::default();
        for line in console {
            follower.console(line, &mut kept).expect("a log");
        }
        for line in control {
            follower.control(line, &mut kept).expect("a log");
        }
        (follower.finish(None, &mut kept), kept.0)
    }

    fn follow(console: &[&str], control: &[&str]) -> (Boot, Vec<Test>) {
        follow_a(|_| {}, console, control)
    }

    const GOOD: &[&str] = &[
        "KTAP version 1",
        "1..2",
        "@skua mark 1",
        "@skua begin kunit 600",
        "    ok 1 suite",
        "ok 1 kunit",
        "@skua mark 2",
        "@skua end kunit",
        "@skua begin c:bo 45",
        "    1..2",
        "    # begin row_0_17_a",
        "    ok 1 row_0_17_a",
        "@skua mark 3",
        "    # begin b",
        "    ok 2 b",
        "@skua mark 4",
        "ok 2 c:bo",
        "@skua mark 5",
        "@skua end c:bo",
        "@skua exit 0",
    ];

    /// The lines of [`GOOD`] before the one with `words`.
    fn until(words: &str) -> &'static [&'static str] {
        let end = GOOD.iter().position(|line| line.contains(words));
        &GOOD[..end.expect("there")]
    }

    fn results(tests: &[Test]) -> Vec<(String, Verdict)> {
        tests.iter().map(|test| (test.id(), test.result)).collect()
    }

    #[test]
    fn a_good_boot_has_its_tests() {
        let (boot, tests) = follow(&["skua-mark: 1", "skua-mark: 5"], GOOD);
        assert_eq!(
            results(&tests),
            [
                ("kunit/suite".to_owned(), Verdict::Pass),
                ("kselftest/c:bo.row_0_17_a".to_owned(), Verdict::Pass),
                ("kselftest/c:bo.b".to_owned(), Verdict::Pass),
            ]
        );
        assert_eq!(boot.exit, Some(0));
        assert_eq!(boot.broken, Vec::<String>::new());
        assert_eq!(tests[1].rows, ["0.17"]);
    }

    #[test]
    fn a_test_is_handed_on_as_soon_as_the_kernel_can_say_no_more_about_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (parts, config) = (Parts::of_test(), config(dir.path()));
        let mut follower = Follower::new(&parts, &config).expect("logs");
        let mut kept = Kept::default();
        for line in until("ok 2 b") {
            follower.control(line, &mut kept).expect("a log");
        }
        follower.console("skua-mark: 2", &mut kept).expect("a log");
        assert_eq!(kept.0.len(), 1);
        follower.console("WARNING: bad", &mut kept).expect("a log");
        assert_eq!(kept.0.len(), 1);
        follower.console("skua-mark: 3", &mut kept).expect("a log");
        assert_eq!(kept.0[1].result, Verdict::Fail);
        assert_eq!(kept.0[1].output, "WARNING: bad");
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
        let (_, tests) = follow(&console, GOOD);
        assert_eq!(tests[1].result, Verdict::Pass);
        assert_eq!(tests[2].result, Verdict::Fail);
        assert_eq!(tests[2].output, "BUG: KASAN: use-after-free");
    }

    #[test]
    fn a_complaint_outside_a_test_breaks_the_guest() {
        let (boot, _) = follow(&["skua-mark: 4", "WARNING: at exit", "skua-mark: 5"], GOOD);
        assert_eq!(boot.broken, ["around c:bo:\nWARNING: at exit"]);
    }

    #[test]
    fn a_guest_that_dies_fails_the_running_test_and_keeps_the_others() {
        let (boot, tests) = follow(
            &["skua-mark: 3", "Kernel panic - not syncing: fatal"],
            until("ok 2 b"),
        );
        assert_eq!(
            results(&tests),
            [
                ("kunit/suite".to_owned(), Verdict::Pass),
                ("kselftest/c:bo.row_0_17_a".to_owned(), Verdict::Pass),
                ("kselftest/c:bo.b".to_owned(), Verdict::Fail),
            ]
        );
        assert!(tests[2].output.contains("Kernel panic"));
        assert_eq!(boot.exit, None);
        assert_eq!(boot.broken, Vec::<String>::new());
    }

    #[test]
    fn a_program_that_announces_no_tests_is_named_itself() {
        let (_, tests) = follow(&["the last words"], until("    1..2"));
        let last = tests.last().expect("tests");
        assert_eq!((last.test.as_str(), last.result), ("c:bo", Verdict::Fail));
        assert!(last.output.contains("the last words"));
    }

    #[test]
    fn a_death_may_be_what_a_guest_is_for() {
        let die = |words: &'static str| {
            let accept = |follower: &mut Follower<'_>| follower.may_die_of = Some("sysrq");
            let (boot, tests) = follow_a(accept, &["skua-mark: 3", words], until("ok 2 b"));
            assert_eq!(boot.broken, Vec::<String>::new());
            tests[2].result
        };
        assert_eq!(
            die("Kernel panic - not syncing: sysrq triggered"),
            Verdict::Pass
        );
        assert_eq!(die("Kernel panic - not syncing: fatal"), Verdict::Fail);
    }

    #[test]
    fn a_guest_that_never_starts_is_broken() {
        let (boot, tests) = follow(&["VFS: Unable to mount root fs"], &[]);
        assert!(tests.is_empty());
        assert!(boot.broken[0].contains("Unable to mount root"));
    }

    #[test]
    fn a_guest_that_cannot_do_its_job_is_broken() {
        let mut control = until("@skua exit").to_vec();
        control.extend(["# skua-init: no job", "@skua exit 125"]);
        let (boot, _) = follow(&[], &control);
        assert_eq!(
            boot.broken,
            ["the guest could not do its job: skua-init: no job"]
        );
    }

    #[test]
    fn results_that_do_not_come_break_the_guest() {
        let mut control = until("ok 2 c:bo").to_vec();
        control.push("@skua exit 0");
        let (boot, _) = follow(&[], &control);
        assert_eq!(boot.broken, ["2 results announced, 1 came"]);
        let mut control = until("@skua exit").to_vec();
        control.push("@skua exit 1");
        let (boot, _) = follow(&[], &control);
        assert_eq!(
            boot.broken,
            ["the guest says that a test failed, and none came"]
        );
    }

    #[test]
    fn stalls_are_the_guests_only_if_the_host_let_it_run() {
        let stall = "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:";
        let console = ["skua-mark: 2", stall, "skua-mark: 3"];
        let (_, tests) = follow(&console, GOOD);
        assert_eq!(tests[1].result, Verdict::Fail);
        let paused = |follower: &mut Follower<'_>| follower.kept_waiting(STALL);
        let (boot, tests) = follow_a(paused, &console, GOOD);
        assert_eq!(tests[1].result, Verdict::Pass);
        assert_eq!(boot.broken, Vec::<String>::new());
        let console = ["skua-mark: 2", "BUG: bad", "skua-mark: 3"];
        let (_, tests) = follow_a(paused, &console, GOOD);
        assert_eq!(tests[1].result, Verdict::Fail);
    }
}
