// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether an engine hangs.
//!
//! The driver asks from time to time, with what it sees: the packet that the engine works on and
//! the engine's tick counter, which counts work done and not time. Two things are wrong, and time
//! alone is neither:
//!
//! - **overdue**: one packet has used more ticks than it may *and* more time than it may, so it
//!   really works, but without end;
//! - **stuck**: there is a packet, and for long no tick was counted.
//!
//! Somewhat earlier an engine that counts no tick is **stalled**, which is wrong only if the device
//! is not there any more: the driver asks it.
//!
//! A slow host makes ticks slow; the packet then takes longer until it is overdue, but it is not
//! killed for the host's load. For the same reason no two questions count for more than the longest
//! step ([`Limits::step_ms`]), however far the clock has moved: a guest that was paused for an
//! hour, or whose worker was not run, finds its engines as it left them. A clock that went back
//! counts as stopped.
//!
//! **Why not the time-out of `drm_sched`.** It is time on the wall in which no job was given to the
//! ring or ended: a slow host is a hang to it, and so is a guest that was paused. It knows nothing
//! of work done, nor of what a packet had used before it was preempted.
//!
//! The counter is the device's word. One that goes back is no progress; one that creeps could be a
//! host that is slow beyond measure, and is believed for [`Limits::hard_ms`], for every wait has an
//! end.
//!
//! # Examples
//!
//! ```
//! use skua_policy::watchdog::{Limits, Sample, Verdict, Watchdog};
//!
//! let mut watchdog = Watchdog::new(Limits {
//!     ticks: 1000,
//!     time_ms: 2000,
//!     stuck_ms: 3000,
//!     hard_ms: 60_000,
//!     stalled_ms: 1000,
//!     step_ms: 500,
//! });
//! // Packet 7 is there for ten seconds, and nothing is done.
//! let verdicts = (0..=20).map(|second| {
//!     watchdog.check(Sample {
//!         now_ms: 500 * second,
//!         head: Some(7),
//!         ticks: 40,
//!         waits: false,
//!         before: Default::default(),
//!         since: None,
//!     })
//! });
//! assert_eq!(verdicts.last(), Some(Verdict::Stuck { id: 7 }));
//! ```

#[cfg(test)]
mod tests;

/// What a packet may use of an engine, and how long an engine may do nothing for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ticks of work that a packet may use ...
    pub ticks: u64,
    /// ... unless it has used less than this time, in milliseconds.
    pub time_ms: u64,
    /// Milliseconds without a tick after which an engine that has work is stuck.
    pub stuck_ms: u64,
    /// Milliseconds after which a packet is overdue, however few ticks it has used.
    pub hard_ms: u64,
    /// Milliseconds without a tick after which an engine that has work is stalled.
    pub stalled_ms: u64,
    /// The most that the time between two questions counts, in milliseconds: somewhat more than the
    /// period in which the driver asks, and a fraction of the other times.
    pub step_ms: u64,
}

/// What the driver sees of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The time in milliseconds, of any clock.
    pub now_ms: u64,
    /// The hardware fence id of the packet that the engine works on; `None` if it has none.
    pub head: Option<u64>,
    /// The engine's tick counter.
    pub ticks: u64,
    /// Whether the engine says that it waits for a value, and has done nothing else for the packet
    /// since that got to the head.
    pub waits: bool,
    /// What the packet had used before it got to the head: it was there, and was preempted. That it
    /// has waited counts if it does so again.
    pub before: Spent,
    /// When it got to the head, if that is known: it is counted from there.
    pub since: Option<Arrival>,
}

impl Sample {
    /// The same for a watchdog of whether the engine stops, which was asked to by the request with
    /// the number `asked`, if it was: each packet that it goes on with has its own time for that.
    #[must_use]
    pub fn of_request(self, asked: Option<u64>) -> Self {
        // Both numbers only grow: their sum is another one when either is.
        let number = |asked: u64| self.head.map_or(!asked, |head| asked.wrapping_add(head));
        Self {
            head: asked.map(number),
            before: Spent::default(),
            since: None,
            ..self
        }
    }
}

/// A moment: when a packet got to the head, or what was seen of it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// By the clock of [`Sample::now_ms`].
    pub ms: u64,
    /// The engine's tick counter then.
    pub ticks: u64,
}

/// What a packet has used of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Milliseconds at the head.
    pub ms: u64,
    /// Engine time in ticks.
    pub ticks: u64,
    /// Milliseconds since it did anything but wait for a value.
    pub waited_ms: u64,
}

/// What is to be done about the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong, or not yet.
    Healthy,
    /// The packet works without end.
    Overdue {
        /// The packet to be blamed.
        id: u64,
    },
    /// The engine does nothing for its packet, which may well be what it waits for: is it there?
    Stalled,
    /// The engine does nothing for the packet.
    Stuck {
        /// The packet to be blamed.
        id: u64,
    },
}

/// What was seen of one engine so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// What a packet may use, and how long an engine may do nothing.
    limits: Limits,
    /// `None` while nothing is at the head.
    watched: Option<Watched>,
    /// What got to the head before this begins again from here.
    restarted: Option<Arrival>,
}

/// What a packet has had since it got to the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watched {
    /// The packet's fence id: one with another starts anew.
    id: u64,
    /// When it was last looked at.
    last_ms: u64,
    /// The engine's tick counter then.
    last_ticks: u64,
    /// Milliseconds that it has had, with what counts from before it was first seen.
    elapsed_ms: u64,
    /// Ticks that it has used, likewise.
    used_ticks: u64,
    /// Milliseconds, as far as they count, since ticks last moved.
    stalled_ms: u64,
}

impl Watchdog {
    /// A watchdog that has seen nothing.
    pub fn new(limits: Limits) -> Self {
        Watchdog {
            limits,
            watched: None,
            restarted: None,
        }
    }

    /// Forgets what was seen until `now`: the engine was reset, or has stopped. What is at the head
    /// then begins again, and what gets there later is counted from when it does.
    pub fn restart(&mut self, now: Arrival) {
        self.watched = None;
        self.restarted = Some(now);
    }

    /// Milliseconds from the last question to the first one that may be answered otherwise, if what
    /// is at the head stays there; none if nothing is. Who asks then, and not up to a period later,
    /// finds a hang when its time is up.
    pub fn due_in_ms(&self) -> Option<u64> {
        let watched = self.watched?;
        let limits = &self.limits;
        let ends = [
            (limits.stalled_ms, watched.stalled_ms),
            (limits.stuck_ms, watched.stalled_ms),
            (limits.time_ms.saturating_add(1), watched.elapsed_ms),
            (limits.hard_ms.saturating_add(1), watched.elapsed_ms),
        ];
        let left = ends.iter().map(|(end, passed)| end.saturating_sub(*passed));
        left.filter(|left| *left > 0).min()
    }

    /// Judges. The same verdict comes again as long as it holds.
    pub fn check(&mut self, sample: Sample) -> Verdict {
        let Some(id) = sample.head else {
            self.watched = None;
            return Verdict::Healthy;
        };
        let now = Arrival {
            ms: sample.now_ms,
            ticks: sample.ticks,
        };
        let since = sample.since.unwrap_or(now);
        let restarted = self.restarted.filter(|restarted| restarted.ms > since.ms);
        let since = restarted.unwrap_or(since);
        let new = Watched {
            id,
            last_ms: since.ms,
            last_ticks: since.ticks,
            elapsed_ms: sample.before.ms,
            used_ticks: sample.before.ticks,
            stalled_ms: if sample.waits {
                sample.before.waited_ms
            } else {
                0
            },
        };
        let watched = self.watched.get_or_insert(new);
        if watched.id != id {
            *watched = new;
        }
        let step = sample
            .now_ms
            .saturating_sub(watched.last_ms)
            .min(self.limits.step_ms);
        let worked = sample.ticks.saturating_sub(watched.last_ticks);
        watched.last_ms = sample.now_ms;
        watched.last_ticks = sample.ticks;
        watched.elapsed_ms = watched.elapsed_ms.saturating_add(step);
        watched.used_ticks = watched.used_ticks.saturating_add(worked);
        watched.stalled_ms = match worked {
            0 => watched.stalled_ms.saturating_add(step),
            _ => 0,
        };
        if watched.stalled_ms >= self.limits.stuck_ms {
            Verdict::Stuck { id }
        } else if watched.used_ticks > self.limits.ticks && watched.elapsed_ms > self.limits.time_ms
            || watched.elapsed_ms > self.limits.hard_ms
        {
            Verdict::Overdue { id }
        } else if watched.stalled_ms >= self.limits.stalled_ms {
            Verdict::Stalled
        } else {
            Verdict::Healthy
        }
    }
}
