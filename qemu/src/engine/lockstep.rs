// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All engines on one thread, in the order of the device clock (manual section 3).
//!
//! ```text
//! own time    0         10        20        30
//! engine 0    ##########..........##########    WAIT at 10, for what engine 1 signals at 20
//! engine 1    ####################              then it has nothing to do
//! clock       ------------------------------    it is at 30 and stands
//! ```
//!
//! An engine's own time is its ticks and the idle time that its worker counts. The one that is
//! furthest behind works, until another one is. One that has nothing to do, or waits, holds up
//! nobody; it goes on at the time of what has it go on.

use std::time::{Duration, Instant};

use crate::engine::alarm::Alarm;
use crate::engine::pace::Brake;
use crate::engine::worker::{Next, Worker};

/// Most ticks of a step of an engine that alone works.
const ALONE: u64 = 4096;
/// The same while others wait: behind it they look for values that no SIGNAL tells of.
const WATCHED: u64 = 64;
/// Longest time of the host between two looks for a value while no engine works.
const PAUSE: Duration = Duration::from_micros(500);

/// An engine and what it goes on with.
struct Lane {
    /// What the engine's thread would own, if it had one.
    worker: Worker,
    /// What it said that it goes on with.
    next: Next,
}

impl Lane {
    /// The engine's own time.
    fn time(&self) -> u64 {
        self.worker.time().unwrap_or(0)
    }

    /// Whether the engine has something to do by itself.
    fn works(&self) -> bool {
        matches!(self.next, Next::Work | Next::Others)
    }
}

/// The engines of a device.
pub(crate) struct Lockstep {
    /// The engines, by their indices.
    lanes: Vec<Lane>,
}

impl Lockstep {
    /// Engines that keep time, none of which has begun.
    pub(crate) fn new(workers: Vec<Worker>) -> Self {
        let lane = |worker| Lane {
            worker,
            next: Next::Orders,
        };
        Self {
            lanes: workers.into_iter().map(lane).collect(),
        }
    }

    /// The thread: until the device ends. `alarm` is that of all engines; with a `brake` their
    /// clock is no faster than that.
    pub(crate) fn run(mut self, alarm: &Alarm, mut brake: Option<Brake>) {
        let step = brake.as_ref().map_or(u64::MAX, |_| ALONE);
        let mut before = self.clock();
        while self.advance(step) {
            let now = self.clock();
            let done = now.saturating_sub(std::mem::replace(&mut before, now));
            if let Some(brake) = &mut brake {
                alarm.nap(brake.count(done, Instant::now()));
            }
            if self.lanes.iter().any(Lane::works) {
                continue;
            }
            if self.lanes.iter().any(|lane| lane.next == Next::Look) {
                alarm.nap(PAUSE);
            } else {
                alarm.wait();
            }
        }
    }

    /// The device clock: the time of the engine that is furthest behind of those that work. If none
    /// does, it stands at the latest that any has reached.
    pub(crate) fn clock(&self) -> u64 {
        let works = self.lanes.iter().filter(|lane| lane.works());
        let last = || self.lanes.iter().map(Lane::time).max();
        let first = works.map(Lane::time).min();
        first.or_else(last).unwrap_or(0)
    }

    /// Has the engines work until the clock shows `ticks` more, or none has anything to do.
    /// `false` when the device ends.
    pub(crate) fn advance(&mut self, ticks: u64) -> bool {
        let until = self.clock().saturating_add(ticks);
        let mut changed = self.clock();
        loop {
            let clock = self.clock();
            for lane in &mut self.lanes {
                if lane.worker.has_orders() {
                    lane.worker.idle_until(clock);
                    if !lane.worker.read_mailbox() {
                        return false;
                    }
                    lane.next = Next::Work;
                }
            }
            // Memory may have been written, by the CPU or in the last step.
            for lane in &mut self.lanes {
                if lane.next == Next::Look {
                    lane.next = lane.worker.look(changed);
                }
            }
            let Some((index, budget)) = self.furthest_behind(until) else {
                return true;
            };
            let lane = &mut self.lanes[index];
            lane.next = lane.worker.work(budget);
            changed = lane.time();
        }
    }

    /// The engine that is to work, the first of those that are equally far behind, and for how many
    /// ticks it is the one.
    fn furthest_behind(&self, until: u64) -> Option<(usize, u64)> {
        let works = || {
            (0..)
                .zip(&self.lanes)
                .filter(|(_, lane)| lane.works())
                .map(|(index, lane)| (lane.time(), index))
        };
        let (time, index) = works().min().filter(|(time, _)| *time < until)?;
        let waits = self.lanes.iter().any(|lane| lane.next == Next::Look);
        let most = (until - time).min(if waits { WATCHED } else { ALONE });
        let next = works().filter(|(_, other)| *other != index).min();
        let budget = next.map_or(most, |(next, other)| {
            most.min(next - time + u64::from(index < other))
        });
        Some((index, budget))
    }
}
