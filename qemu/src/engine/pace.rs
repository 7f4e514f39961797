// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much an engine does before it looks whether it is to stop, and how fast.
//!
//! The manual allows [`STEP`] ticks (section 11), and a driver may count on no less. Who always
//! takes as many stops work in few places; so a test can have an engine draw how many, each time
//! anew, from a seed: then who is asked to stop does so behind any instruction.
//!
//! An engine is as fast as the host, unless it is to be slower ([`Brake`]): work without end, of
//! which tests have much, leaves the host to others then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skua_spec::number::EngineIndex;

/// Ticks of a step at most: instructions that may be issued before the mailbox is read.
pub(crate) const STEP: u64 = 4096;

/// What all engines draw from; 0 is nothing, and each step may be as long as any.
#[derive(Debug, Default)]
pub(crate) struct Seed(AtomicU64);

impl Seed {
    /// From the next steps on.
    pub(crate) fn set(&self, seed: u64) {
        self.0.store(seed, Ordering::Relaxed);
    }
}

/// The steps of one engine.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Whose pace it is: each has another.
    engine: EngineIndex,
    /// The [`Seed`] that it draws from, since that was last set.
    seed: u64,
    /// The number that was drawn last; the next one comes of it.
    last: u64,
}

impl Pace {
    /// Of an engine that draws nothing.
    pub(crate) fn new(engine: EngineIndex) -> Self {
        Self {
            engine,
            seed: 0,
            last: 0,
        }
    }

    /// Ticks of its next step, 1 to [`STEP`].
    pub(crate) fn next(&mut self, seed: &Seed) -> u64 {
        let seed = seed.0.load(Ordering::Relaxed);
        if seed != self.seed {
            (self.seed, self.last) = (seed, seed ^ u64::from(self.engine.get()) << 32);
        }
        if seed == 0 {
            return STEP;
        }
        // Knuth's; the upper bits are the good ones.
        self.last = self
            .last
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        1 + (self.last >> 33) % STEP
    }
}

/// What an engine that is slower than the host has done is worth of time.
#[derive(Debug)]
pub(crate) struct Brake {
    /// Ticks in a second of the host, at the speed that the engine is to have.
    hz: u32,
    /// When an engine of that speed would have done what this one has.
    due: Instant,
}

impl Brake {
    /// What a host that was late, or had nothing to do, may catch up with.
    const SLACK: Duration = Duration::from_millis(100);

    /// Of an engine that does so many ticks in a second, and nothing yet.
    pub(crate) fn new(hz: u32, now: Instant) -> Self {
        Self { hz, due: now }
    }

    /// `ticks` more are done. For how long it is to rest.
    pub(crate) fn count(&mut self, ticks: u64, now: Instant) -> Duration {
        let worth = Duration::from_secs(ticks) / self.hz;
        let earliest = now.checked_sub(Self::SLACK).unwrap_or(now);
        self.due = self.due.max(earliest) + worth;
        self.due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_as_fast_as_it_is_to_be() {
        // A host that needs no time for anything.
        let run = |hz, seconds| {
            let begin = Instant::now();
            let (mut brake, mut now, mut done) = (Brake::new(hz, begin), begin, 0);
            while now < begin + Duration::from_secs(seconds) {
                done += STEP;
                now += brake.count(STEP, now);
            }
            (brake, now, done)
        };
        // A tick of which is no whole number of nanoseconds.
        let (.., done) = run(700_000_000, 1);
        assert!((700_000_000..700_100_000).contains(&done), "{done}");
        let (mut brake, mut now, done) = run(1_000_000, 10);
        assert!((10_000_000..10_000_000 + STEP).contains(&done), "{done}");
        // What was not done in a second is made up for in part.
        now += Duration::from_secs(1);
        let late = brake.due;
        let mut more = 0;
        while brake.count(STEP, now).is_zero() {
            more += STEP;
        }
        assert!(late < now);
        assert!((100_000 - STEP..=100_000).contains(&more), "{more}");
    }

    fn drawn(engine: EngineIndex, seed: &Seed) -> Vec<u64> {
        let mut pace = Pace::new(engine);
        (0..10_000).map(|_| pace.next(seed)).collect()
    }

    #[test]
    fn steps_are_drawn_from_a_seed() {
        let [first, second, ..] = EngineIndex::ALL;
        let seed = Seed::default();
        assert!(drawn(first, &seed).iter().all(|ticks| *ticks == STEP));
        seed.set(7);
        let steps = drawn(first, &seed);
        assert_eq!(steps, drawn(first, &seed));
        assert_ne!(steps, drawn(second, &seed));
        assert!(steps.iter().all(|ticks| (1..=STEP).contains(ticks)));
        // Of all lengths, and none by far too often.
        let mut counts = [0; 16];
        for ticks in &steps {
            counts[((ticks - 1) * 16 / STEP) as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
        let mut pace = Pace::new(first);
        pace.next(&seed);
        seed.set(8);
        assert_eq!(pace.next(&seed), drawn(first, &seed)[0]);
        seed.set(0);
        assert_eq!(pace.next(&seed), STEP);
    }
}
