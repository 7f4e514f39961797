// SPDX-License-Identifier: MIT

//! Which guests run side by side: one for each CPU, and more while these leave CPUs idle, as guests
//! do whose tests wait for time-outs.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{sysconf, SysconfVar};

/// For how long CPUs are watched before a guest more begins.
const LOOK: Duration = Duration::from_secs(3);
/// How much of a CPU has to be idle meanwhile, in percent: of guests that work most wait now and
/// then.
const IDLE: u128 = 40;
/// How often it is asked whether CPUs are idle.
const STEP: Duration = Duration::from_secs(1);

/// What is left to do, handed out in its order to threads that each do one thing at a time.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// So many are done side by side whatever happens.
    least: usize,
    /// And no more than so many.
    most: usize,
    /// What is left, and how many are at it.
    state: Mutex<State<T>>,
    /// Something has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// What nobody has begun, the next one first.
    left: VecDeque<T>,
    /// How many things are under way.
    running: usize,
    /// When CPUs began to be watched, and for how long all of them together had been idle then.
    watched: Option<(Instant, Duration)>,
}

impl<T> Turns<T> {
    /// Things to do, at least `least` and at most `most` of them at a time.
    pub(crate) fn new(left: VecDeque<T>, least: usize, most: usize) -> Self {
        Self {
            least,
            most,
            state: Mutex::new(State {
                left,
                running: 0,
                watched: None,
            }),
            ended: Condvar::new(),
        }
    }

    /// How many threads have something to do.
    pub(crate) fn threads(&self) -> usize {
        self.most.max(self.least)
    }

    /// The next, when it is its turn; none if nothing is left. [`Turns::end`] follows.
    pub(crate) fn next(&self) -> Option<T> {
        let mut state = self.lock();
        while !state.left.is_empty() {
            let is_turn = state.running < self.least
                || state.running < self.most && state.is_idle(Instant::now(), idle());
            if is_turn {
                state.running += 1;
                state.watched = None;
                return state.left.pop_front();
            }
            let waited = self.ended.wait_timeout(state, STEP);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// What [`Turns::next`] gave is done.
    pub(crate) fn end(&self) {
        self.lock().running -= 1;
        self.ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    /// Whether CPUs, idle for `idle` in all, were so for long enough of the last while.
    fn is_idle(&mut self, now: Instant, idle: Option<Duration>) -> bool {
        let Some(idle) = idle else {
            return false;
        };
        let &mut (since, before) = self.watched.get_or_insert((now, idle));
        let passed = now - since;
        if passed < LOOK {
            return false;
        }
        self.watched = Some((now, idle));
        idle.saturating_sub(before).as_nanos() * 100 >= passed.as_nanos() * IDLE
    }
}

/// For how long all CPUs together have had nothing to do since the host began. With what sleeps for
/// input or output, as all that QEMU waits for is, and what is nice, which gives way.
fn idle() -> Option<Duration> {
    let read = std::fs::read_to_string;
    let ticks = sysconf(SysconfVar::CLK_TCK).ok()??;
    idle_of(
        &read("/proc/stat").ok()?,
        &read("/proc/self/stat").ok()?,
        ticks,
    )
}

/// The same by the text of `/proc/stat`, in which a second has so many `ticks`, for a process of
/// this `/proc/PID/stat`: to one that is nice itself nothing gives way.
fn idle_of(text: &str, process: &str, ticks: i64) -> Option<Duration> {
    let all = text.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait
    let fields = all.split_whitespace().map(|word| word.parse().ok());
    let fields: Vec<u64> = fields.take(5).collect::<Option<_>>()?;
    // The name, in parentheses, can be anything; behind it niceness is the 17th.
    let niceness = process.rsplit_once(')')?.1.split_whitespace().nth(16)?;
    let gives_way = niceness.parse::<i32>().ok()? <= 0;
    let &[_, nice, _, idle, iowait] = fields.as_slice() else {
        return None;
    };
    let idle = idle + iowait + if gives_way { nice } else { 0 };
    Some(Duration::from_secs(idle) / u32::try_from(ticks).ok().filter(|ticks| *ticks > 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn all_is_done_in_order_and_no_more_at_a_time_than_may_be() {
        let turns = Turns::new((0..4).collect(), 2, 2);
        assert_eq!(turns.threads(), 2);
        assert_eq!((turns.next(), turns.next()), (Some(0), Some(1)));
        let waited = std::thread::scope(|scope| {
            let third = scope.spawn(|| turns.next());
            std::thread::sleep(SECOND / 20);
            let waited = !third.is_finished();
            turns.end();
            assert_eq!(third.join().expect("no panic"), Some(2));
            waited
        });
        assert!(waited, "three at a time");
        turns.end();
        assert_eq!(turns.next(), Some(3));
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn more_begin_where_cpus_were_idle_for_a_while() {
        let begin = Instant::now();
        let mut state = State {
            left: VecDeque::from([()]),
            running: 2,
            watched: None,
        };
        // Seconds since, seconds of idleness, and whether that is a turn.
        for (now, idle, expected) in [
            (0, 100, false),
            (2, 102, false),
            (4, 104, true),
            // What was idle before counts no more.
            (8, 105, false),
            (12, 113, true),
        ] {
            let is_idle = state.is_idle(begin + SECOND * now, Some(SECOND * idle));
            assert_eq!(is_idle, expected, "after {now} s");
        }
        assert!(!state.is_idle(begin + SECOND * 30, None), "nobody knows");
    }

    #[test]
    fn who_waits_for_input_or_output_or_is_nice_leaves_the_cpu_idle() {
        let text = "cpu  469846 700 67999 1200 300 0 521 205 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let process = |niceness: &str| {
            format!("7 (a ) b) S 1 7 7 0 -1 4194560 95 0 0 0 3 1 0 0 20 {niceness} 1 0 412 25")
        };
        for (niceness, expected) in [("0", 22), ("-10", 22), ("1", 15)] {
            let idle = idle_of(text, &process(niceness), 100);
            assert_eq!(idle, Some(expected * SECOND), "{niceness}");
        }
        let own = process("0");
        for (text, process, ticks) in [
            ("cpu  1 2 3 4", &own, 100),
            ("cpu0 1 2 3 4 5", &own, 100),
            (text, &own, 0),
            (text, &"7 (a) S 1".to_owned(), 100),
        ] {
            assert_eq!(idle_of(text, process, ticks), None, "{text} {process}");
        }
        assert!(idle().is_some(), "this host does not say");
    }
}
