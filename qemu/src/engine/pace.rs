// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much an engine does before it looks whether it is to stop.
//!
//! The manual allows [`STEP`] ticks (section 11), and a driver may count on no less. Who always
//! takes as many stops work in few places; so a test can have an engine draw how many, each time
//! anew, from a seed: then who is asked to stop does so behind any instruction.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// What it draws from, and what was drawn last.
    seed: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

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
