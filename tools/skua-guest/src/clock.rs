// SPDX-License-Identifier: MIT

//! Time that counts against a limit: what a process was kept waiting for a CPU does not.
//!
//! A limit is there to end what hangs, so a loaded host must not reach it. Two sources say how
//! long something was kept waiting: on the host, the kernel, for each thread
//! (`/proc/PID/task/TID/schedstat`); in a guest, the host, for the guest as a whole ([`FILE`]).
//! A time for which not even the clock itself ran, of a host that stood still, is cut to a step.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The file in a guest's output share that has what the guest was kept waiting for so far, in
/// milliseconds. Nobody writes it where a kernel's own runner runs the tests: all time counts.
pub const FILE: &str = "kept-waiting";

/// How often the sources are asked.
const STEP: Duration = Duration::from_secs(1);
/// The most that counts of the time between two looks.
const LONGEST: Duration = Duration::from_secs(5);

/// A clock that began when it was made.
#[derive(Debug)]
pub struct Clock {
    /// What tells how long the watched were kept from running.
    source: Source,
    /// When it was last looked at.
    last: Instant,
    /// Time that was theirs.
    counted: Duration,
    /// Time that was somebody else's.
    lost: Duration,
}

#[derive(Debug)]
enum Source {
    /// These processes, and of each of their threads what it had waited at the last look.
    Processes(Vec<u32>, HashMap<PathBuf, Duration>),
    /// A file with milliseconds, and what it said at the last look.
    File(PathBuf, Duration),
}

impl Clock {
    /// The time of these processes. The one that waits longest is what the others wait for.
    pub fn of_processes(ids: &[u32]) -> Self {
        Self::new(Source::Processes(ids.to_vec(), HashMap::new()))
    }

    /// The time of the guest that this process runs in.
    pub fn of_guest() -> Self {
        let file = PathBuf::from(crate::job::OUTPUT).join(FILE);
        let said = read_milliseconds(&file);
        Self::new(Source::File(file, said))
    }

    fn new(source: Source) -> Self {
        let mut clock = Self {
            source,
            last: Instant::now(),
            counted: Duration::ZERO,
            lost: Duration::ZERO,
        };
        // What was waited before does not belong to this clock.
        clock.source.waited();
        clock
    }

    /// What counts so far. Cheap enough for a loop: the sources are asked once in a while.
    pub fn elapsed(&mut self) -> Duration {
        let passed = self.last.elapsed();
        if passed >= STEP {
            self.last = Instant::now();
            let waited = self.source.waited();
            self.advance(passed, waited);
        }
        self.counted
    }

    /// What does not count so far.
    pub fn lost(&self) -> Duration {
        self.lost
    }

    /// Takes all time up to now for lost: it is known to be somebody else's.
    pub fn forgive(&mut self) {
        self.lost += self.last.elapsed();
        self.last = Instant::now();
        self.source.waited();
    }

    fn advance(&mut self, passed: Duration, waited: Duration) {
        let counts = passed.min(LONGEST).saturating_sub(waited);
        self.counted += counts;
        self.lost += passed - counts;
    }
}

impl Source {
    /// How long the subject was kept waiting since this was asked last.
    fn waited(&mut self) -> Duration {
        match self {
            Self::File(file, said) => {
                let before = std::mem::replace(said, read_milliseconds(file).max(*said));
                *said - before
            }
            Self::Processes(ids, seen) => {
                let now: HashMap<PathBuf, Duration> = ids
                    .iter()
                    .filter_map(|id| fs::read_dir(format!("/proc/{id}/task")).ok())
                    .flatten()
                    .flatten()
                    .map(|task| task.path().join("schedstat"))
                    .filter_map(|path| {
                        let waited = run_delay(&fs::read_to_string(&path).ok()?)?;
                        Some((path, waited))
                    })
                    .collect();
                let before = std::mem::replace(seen, now);
                seen.iter()
                    .map(|(task, waited)| {
                        waited.saturating_sub(before.get(task).copied().unwrap_or_default())
                    })
                    .max()
                    .unwrap_or_default()
            }
        }
    }
}

/// The second number of a `schedstat`: nanoseconds that the thread was ready and did not run.
fn run_delay(schedstat: &str) -> Option<Duration> {
    let delay = schedstat.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(delay))
}

fn read_milliseconds(file: &std::path::Path) -> Duration {
    let text = fs::read_to_string(file).unwrap_or_default();
    Duration::from_millis(text.trim().parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waiting_for_a_cpu_does_not_count() {
        let mut clock = Clock::of_processes(&[]);
        clock.advance(SECOND, SECOND * 3 / 4);
        assert_eq!((clock.counted, clock.lost), (SECOND / 4, SECOND * 3 / 4));
        // Two threads may have waited for longer than there was time.
        clock.advance(SECOND, SECOND * 2);
        assert_eq!(clock.counted, SECOND / 4);
        clock.advance(SECOND, Duration::ZERO);
        assert_eq!(clock.counted, SECOND * 5 / 4);
    }

    #[test]
    fn a_host_that_stood_still_costs_a_step() {
        let mut clock = Clock::of_processes(&[]);
        clock.advance(SECOND * 100, Duration::ZERO);
        assert_eq!((clock.counted, clock.lost), (LONGEST, SECOND * 95));
    }

    #[test]
    fn a_guest_is_told_by_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        let mut source = Source::File(path.clone(), Duration::ZERO);
        assert_eq!(source.waited(), Duration::ZERO);
        fs::write(&path, "1500\n").expect("a file");
        assert_eq!(source.waited(), SECOND * 3 / 2);
        assert_eq!(source.waited(), Duration::ZERO);
        // Half written.
        fs::write(&path, "").expect("a file");
        assert_eq!(source.waited(), Duration::ZERO);
    }

    #[test]
    fn the_kernel_says_what_a_thread_waited() {
        assert_eq!(run_delay("5 7000000 3\n"), Some(Duration::from_millis(7)));
        assert_eq!(run_delay(""), None);
        let mut source = Source::Processes(vec![std::process::id()], HashMap::new());
        source.waited();
        let Source::Processes(_, seen) = source else {
            unreachable!("it is one of processes")
        };
        assert!(!seen.is_empty(), "this kernel has no schedstat");
    }
}
