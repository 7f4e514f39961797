// SPDX-License-Identifier: MIT

//! `skua-vm test`: the host's tests, then a boot for each guest of the [plan](crate::plan).
//!
//! Guests run side by side, as there are CPUs and memory for them ([`crate::turns`]). A guest that
//! dies or falls silent fails the test that was running; another boot of the same guest takes the
//! programs that it had not come to.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use skua_guest::job::{Job, Task};
use skua_guest::ktap::Verdict;

use crate::guest::{boot, Watch};
use crate::machine::{memory, Config};
use crate::plan::{self, Guest};
use crate::report::{Report, Suite, Test};
use crate::turns::Turns;
use crate::{fuzz, gdb, Parts};

/// How long each fuzz target runs, in seconds: enough to meet its corpus again.
const FUZZ: u32 = 5;

/// Options of `skua-vm test`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    parts: Parts,
    /// Only tests whose `suite/name` contains this.
    #[arg(long)]
    pattern: Option<String>,
    /// Where report.tap, report.json and each guest's logs go; with a pattern, below it.
    #[arg(long, default_value = "out/test")]
    report: PathBuf,
    /// Leave out the host's tests.
    #[arg(long)]
    no_host: bool,
    /// Move everything out of VRAM that can, again and again, beside the guests' programs.
    #[arg(long)]
    evict: bool,
    /// How often the test of random preemptions preempts work.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    points: Option<u64>,
    /// How many guests run side by side; without it one for each CPU, and more while these are
    /// idle.
    #[arg(long)]
    guests: Option<usize>,
}

/// Programs that one boot takes at most, where guests run side by side. A debug kernel's boots and
/// searches for leaks take long: there it is twice as many.
const HAND: usize = 6;

/// Runs the tests; returns whether all is well.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let parts = options.parts.pin()?;
    let mut report = Report::new(&options.report, options.pattern.as_deref())?;
    if !options.no_host && report.may_want(Suite::Cargo) {
        // The Makefile builds them for these patterns alone.
        let wanted = report.pattern().is_none_or(|text| text.contains("fuzz"));
        let targets = wanted.then(fuzz::pin).transpose()?;
        crate::cargo_tests::run(&mut report)?;
        if let Some(targets) = targets {
            fuzz::run(&mut report, targets.path(), FUZZ)?;
        }
    }
    if report.may_want(Suite::Kselftest) || report.may_want(Suite::Kunit) {
        guests(options, &parts, &mut report)?;
    }
    report.finish(true)
}

/// Guests for each CPU at most, however idle it is.
const CROWD: usize = 4;

/// How many guests run side by side at least, and at most.
fn how_many(parts: &Parts) -> (usize, usize) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    // Twice a guest's memory: the server's, QEMU's own, and what the guest's files take.
    let each = usize::try_from(memory(parts.patience)).unwrap_or(usize::MAX) * 1024 * 2;
    let fit = free.map_or(1, |free| free / each).max(1);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    (cpus.min(fit), (cpus * CROWD).min(fit))
}

/// What guests say while they run.
enum Event {
    Running(String),
    Ended(Test),
    Words(String),
}

/// Runs every guest of the plan.
fn guests(options: &Options, parts: &Parts, report: &mut Report) -> Result<()> {
    let plan = plan::read(&parts.products.join("kselftest"))?;
    let (least, most) = match (parts.gdb, options.guests) {
        // There is one debugger.
        (Some(_), _) => (1, 1),
        (None, Some(many)) => (many.max(1), many.max(1)),
        (None, None) => how_many(parts),
    };
    let plan = match most {
        1 => plan,
        _ => plan::deal(plan, if parts.patience > 1 { 2 * HAND } else { HAND }),
    };
    let mut units: VecDeque<Unit> = plan.into_iter().map(|guest| unit(guest, report)).collect();
    let like_any = units.iter().rposition(|unit| unit.guest.is_default());
    if let Some(last) = like_any.and_then(|at| units.get_mut(at)) {
        last.kunit = report.may_want(Suite::Kunit);
    }
    for unit in &mut units {
        (unit.evict, unit.points) = (options.evict, options.points);
    }
    units.retain(|unit| unit.kunit || !unit.programs.is_empty());
    let dir = report.dir().to_owned();
    let turns = Turns::new(units, least, most);
    let (sender, events) = channel();
    thread::scope(|scope| {
        for _ in 0..turns.threads() {
            let (sender, turns, dir) = (sender.clone(), &turns, &dir);
            scope.spawn(move || {
                while let Some(unit) = turns.next() {
                    run(parts, dir, unit, &sender);
                    turns.end();
                }
            });
        }
        drop(sender);
        for event in events {
            match event {
                Event::Running(what) => report.progress(&what),
                Event::Ended(test) => report.add(test)?,
                Event::Words(words) => report.words(&words)?,
            }
        }
        Ok(())
    })
}

/// A guest and what it is to do.
struct Unit {
    /// What is booted, and how.
    guest: Guest,
    /// Programs of the guest that the pattern wants, by name.
    programs: Vec<String>,
    /// What they are told to look for in the names of their tests.
    filter: Option<String>,
    /// It tells of the KUnit suites too.
    kunit: bool,
    /// [`Options::evict`].
    evict: bool,
    /// [`Options::points`].
    points: Option<u64>,
}

/// What is wanted of a guest. A pattern that is in a program's own name wants all of it; one that
/// is in none may be in the names of tests that only the programs know.
fn unit(guest: Guest, report: &Report) -> Unit {
    let chosen = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        let entries = guest.programs.iter();
        entries.filter(|entry| wanted(entry)).cloned().collect()
    };
    let named = chosen(&|entry| report.wants(&format!("kselftest/{entry}")));
    let (programs, filter) = match report.pattern() {
        Some(pattern) if named.is_empty() => {
            (chosen(&|entry| may_have(entry, pattern)), Some(pattern))
        }
        _ => (named, None),
    };
    Unit {
        programs,
        filter: filter.map(str::to_owned),
        kunit: false,
        evict: false,
        points: None,
        guest,
    }
}

/// Whether a test of a program could have a name with this pattern in it: what stands before the
/// pattern's first dot, the only one of a name, ends the program's part; and that has the colon.
fn may_have(entry: &str, pattern: &str) -> bool {
    match pattern.split_once('.') {
        Some((program, _)) => format!("kselftest/{entry}").ends_with(program),
        None => !pattern.contains([':', '/']),
    }
}

/// Module parameters of a guest: what runs there without the watchdog's losing patience may take
/// longer where everything does, and so may an engine that is to stop: long enough for a host that
/// does not run the device for seconds. That holds for the times of a guest that says when it shall
/// lose it, too, unless they are what it tests.
pub(crate) fn module(guest: &Guest, patience: u32) -> String {
    // Of a kernel that is not slow it is 1, and times are what they say.
    let slowness = (patience / 2).max(1);
    let mut words: Vec<String> = guest.module.split(' ').map(str::to_owned).collect();
    for (name, ms) in [("job_timeout_ms", 10_000), ("preempt_timeout_ms", 5_000)] {
        let named = words.iter_mut().find_map(|word| {
            let ms = word.strip_prefix(name)?.strip_prefix('=')?.parse::<u32>();
            Some((ms.ok()?, word))
        });
        match named {
            Some(_) if guest.exact => (),
            Some((ms, word)) => *word = format!("{name}={}", ms.saturating_mul(slowness)),
            None => words.push(format!("{name}={}", ms * slowness)),
        }
    }
    words.join(" ")
}

/// Hands on what a guest says.
struct Teller<'a> {
    /// To the thread that writes the report.
    sender: &'a Sender<Event>,
    /// Its name, for those who read along.
    guest: &'a str,
}

impl Teller<'_> {
    fn say(&self, event: Event) {
        // Nobody listens any more if the report cannot be written.
        let _ = self.sender.send(event);
    }
}

impl Watch for Teller<'_> {
    fn running(&mut self, name: &str) {
        self.say(Event::Running(format!("{}: {name}", self.guest)));
    }

    fn ended(&mut self, test: Test) {
        self.say(Event::Ended(test));
    }
}

/// All programs of a guest, in as many boots as it takes.
fn run(parts: &Parts, dir: &Path, unit: Unit, sender: &Sender<Event>) {
    let Unit {
        guest,
        programs: mut left,
        filter,
        mut kunit,
        evict,
        points,
    } = unit;
    let begin = Instant::now();
    let mut teller = Teller {
        sender,
        guest: &guest.name,
    };
    let mut broken = Vec::new();
    for number in 1.. {
        teller.say(Event::Running(format!("booting guest {}", guest.name)));
        let output = dir.join(match number {
            1 => guest.name.clone(),
            _ => format!("{}-again-{number}", guest.name),
        });
        let config = Config {
            gpu: guest.gpu.clone(),
            cmdline: guest.cmdline.clone(),
            iommu: guest.iommu,
            second_gpu: guest.second_gpu,
            machine: guest.machine.clone(),
            kunit,
            may_die_of: guest.may_die_of.clone(),
            output,
            ..Config::default()
        };
        let job = Job {
            module: Some(module(&guest, parts.patience) + if evict { " evict=1" } else { "" }),
            task: Task::Tests {
                programs: left.clone(),
                filter: filter.clone(),
                kunit,
                evict,
                points,
                sleeps: guest.sleeps,
            },
            patience: parts.patience,
            symbols: parts.symbols(),
            trace: false,
        };
        let booted = std::fs::create_dir_all(&config.output)
            .map_err(anyhow::Error::from)
            .and_then(|()| match parts.gdb {
                Some(_) => gdb::announce(parts, &config.output),
                None => Ok(()),
            })
            .and_then(|()| boot(parts, &config, &job, &mut teller));
        let end = match booted {
            Ok(end) => end,
            Err(error) => {
                broken.push(format!("{error:#}"));
                break;
            }
        };
        kunit = false;
        broken.extend(end.broken);
        left.retain(|entry| !end.begun.contains(entry));
        if end.exit.is_none() {
            let ran = end.begun.join(", ");
            teller.say(Event::Words(format!(
                "guest {} died; it ran {ran}",
                guest.name
            )));
        }
        // One that died before its first program would do so again.
        if left.is_empty() || end.exit.is_some() || end.begun.is_empty() {
            break;
        }
    }
    for entry in left {
        // No failure of the program's own.
        let test = Test::new(Suite::Guest, &entry, Verdict::Fail, Duration::ZERO);
        teller.ended(test.with_output("did not run: see its guest".into()));
    }
    let verdict = match broken.is_empty() {
        true => Verdict::Pass,
        false => Verdict::Fail,
    };
    let test = Test::new(Suite::Guest, &guest.name, verdict, begin.elapsed());
    teller.ended(test.with_output(broken.join("\n")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_a_guest_names_are_longer_on_a_slow_kernel() {
        for (says, patience, expected) in [
            ("", 1, " job_timeout_ms=10000 preempt_timeout_ms=5000"),
            ("", 4, " job_timeout_ms=20000 preempt_timeout_ms=10000"),
            (
                "job_timeout_ms=9",
                1,
                "job_timeout_ms=9 preempt_timeout_ms=5000",
            ),
            (
                "a=1 job_timeout_ms=9 preempt_timeout_ms=8 b=2",
                6,
                "a=1 job_timeout_ms=27 preempt_timeout_ms=24 b=2",
            ),
        ] {
            let guest = Guest {
                module: says.into(),
                ..Guest::default()
            };
            assert_eq!(module(&guest, patience), expected);
        }
        let exact = Guest {
            module: "job_timeout_ms=9".into(),
            exact: true,
            ..Guest::default()
        };
        let expected = "job_timeout_ms=9 preempt_timeout_ms=15000";
        assert_eq!(module(&exact, 6), expected);
    }

    #[test]
    fn programs_of_a_guest_that_does_not_start_have_not_failed_themselves() {
        let dir = tempfile::tempdir().expect("a directory");
        let unit = Unit {
            guest: Guest {
                name: "g".into(),
                ..Guest::default()
            },
            programs: vec!["c:bo".into()],
            filter: None,
            kunit: false,
            evict: false,
            points: None,
        };
        let (sender, events) = channel();
        run(&Parts::of_test(), dir.path(), unit, &sender);
        drop(sender);
        let ended = events.into_iter().filter_map(|event| match event {
            Event::Ended(test) => Some((test.id(), test.result)),
            _ => None,
        });
        let failed = |id: &str| (id.to_owned(), Verdict::Fail);
        assert_eq!(
            ended.collect::<Vec<_>>(),
            [failed("guest/c:bo"), failed("guest/g")]
        );
    }

    #[test]
    fn a_pattern_chooses_the_programs_that_could_have_it() {
        for (pattern, expected) in [
            ("row_0_17", true),
            ("bo.row_0_17", true),
            ("skua:bo.row", true),
            ("kselftest/drivers/gpu/skua:bo.row", true),
            ("o.row", true),
            ("vm.row_0_17", false),
            ("skua:vm", false),
            ("kselftest/other", false),
        ] {
            assert_eq!(
                may_have("drivers/gpu/skua:bo", pattern),
                expected,
                "{pattern}"
            );
        }
    }
}
