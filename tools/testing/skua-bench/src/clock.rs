// SPDX-License-Identifier: MIT

//! A clock of guest instructions.
//!
//! Under `-icount shift=0,sleep=off` the guest's time advances by one nanosecond with each
//! instruction, and jumps to the next timer when the CPU is idle. So the difference of two readings
//! is the number of instructions in between **if the CPU was not idle**, whoever executed them:
//! this thread, interrupts, other threads. [`crate::companion`] sees to it that it is not idle.
//!
//! On any other machine a nanosecond is a nanosecond. [`Clock::new`] notices: a fixed loop takes
//! the same number of instructions each time, and never the same time.

use std::hint::black_box;

use rustix::time::{clock_gettime, ClockId};

use crate::sample::Sample;

/// The clock, as it was found to be.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Instructions of reading it, which are in every difference.
    overhead: u64,
    /// The same of the thread's own clock.
    own_overhead: u64,
    /// The loop that takes the same number of instructions each time.
    spin: Option<Sample>,
}

/// Iterations of the loop that tells whether the clock counts instructions.
const LOOP: u64 = 2_000;
/// By how much the loop's undisturbed runs may differ: the guest's clock has scaled the count
/// twice.
const ROUNDING: u64 = 2;

impl Clock {
    /// Finds out what the clock counts and what reading it costs.
    pub fn new() -> Self {
        let mut clock = Self {
            overhead: 0,
            own_overhead: 0,
            spin: None,
        };
        if let Some(empty) = clock.sample(101, || ()) {
            clock.overhead = empty.min;
        }
        let empty = (0..101).map(|_| clock.count_own(|| ()));
        clock.own_overhead = empty.min().unwrap_or(0);
        let spin = || {
            for i in 0..LOOP {
                black_box(i);
            }
        };
        clock.spin = clock.sample(101, spin);
        clock
    }

    /// Whether a nanosecond is an instruction.
    pub fn counts_instructions(&self) -> bool {
        self.spin.is_some_and(|spin| {
            spin.median.saturating_sub(spin.min) <= ROUNDING && spin.min >= LOOP
        })
    }

    /// What it showed of a loop that takes the same number of instructions each time.
    pub const fn spin(&self) -> Option<Sample> {
        self.spin
    }

    /// The instructions of reading it.
    pub const fn overhead(&self) -> u64 {
        self.overhead
    }

    /// The instructions of `f`.
    pub fn count(&self, f: impl FnOnce()) -> u64 {
        passed(ClockId::Monotonic, f).saturating_sub(self.overhead)
    }

    /// The instructions of `f` that this thread executes, and interrupts that come meanwhile: where
    /// other threads have work, and it depends on the device when.
    pub fn count_own(&self, f: impl FnOnce()) -> u64 {
        passed(ClockId::ThreadCPUTime, f).saturating_sub(self.own_overhead)
    }

    /// The instructions of `f`, `repetitions` times; `None` for no repetitions.
    pub fn sample(&self, repetitions: usize, mut f: impl FnMut()) -> Option<Sample> {
        Sample::of((0..repetitions).map(|_| self.count(&mut f)).collect())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Instructions by who executed them, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// By anybody, idle time included.
    pub all: u64,
    /// By this thread, in user and kernel mode, and by interrupts that came while it ran.
    pub thread: u64,
    /// The same of this process' other threads.
    pub others: u64,
}

impl Shares {
    /// As they are now; looking costs some instructions itself.
    pub fn now() -> Self {
        let thread = nanoseconds(ClockId::ThreadCPUTime);
        let process = nanoseconds(ClockId::ProcessCPUTime);
        Self {
            all: nanoseconds(ClockId::Monotonic),
            thread,
            others: process.saturating_sub(thread),
        }
    }

    /// By how much they have grown since `earlier`.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            thread: self.thread.saturating_sub(earlier.thread),
            others: self.others.saturating_sub(earlier.others),
        }
    }
}

/// By how much a clock advances while `f` runs, and it is read.
fn passed(clock: ClockId, f: impl FnOnce()) -> u64 {
    let start = nanoseconds(clock);
    f();
    nanoseconds(clock).saturating_sub(start)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Neither is negative for these clocks.
    u64::try_from(now.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_and_threads_are_told_apart() {
        let clock = Clock::new();
        let spin = || {
            (0..100_000_u64).for_each(|i| {
                black_box(i);
            })
        };
        let before = Shares::now();
        assert!(clock.count(spin) > 0 && clock.count_own(spin) > 0);
        std::thread::spawn(spin).join().expect("a thread");
        let passed = Shares::now().since(&before);
        assert!(passed.thread > 0 && passed.others > 0 && passed.all > 0);
    }
}
