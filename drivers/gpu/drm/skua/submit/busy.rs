// SPDX-License-Identifier: GPL-2.0

//! What each client used of the engines: time on the wall, and ticks.
//!
//! Monitors divide `drm-engine-*` of fdinfo by the time that passed, so it has to be wall-clock
//! time. The device counts ticks, which are work done and know nothing of time; so the driver
//! measures. An engine's time belongs to the packet at the ring's head ([`HeadClock`] says why),
//! and that to its context's client. Packets of the driver's own are nobody's.
//!
//! A [`Usage`] is one client's. Its contexts share it, and it only grows: nothing has to be carried
//! over when a context is destroyed, whose work may still run. What is counted is counted under the
//! engine's lock, and so is what is read ([`EngineClock::read`]), so that no reader sees a sum that
//! is smaller than before.
//!
//! Two hooks keep it up: [`EngineClock::head_changed`] when packets entered or left a ring, and
//! [`Account::settle`] when a packet of a context left it.

use crate::{
    policy::head_clock::HeadClock,
    spec::{
        number::EngineIndex,
        pci::MAX_ENGINES, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        ClockSource,
        Monotonic, //
    }, //
};

/// Nanoseconds of the clock that engine time is measured by.
fn now() -> u64 {
    u64::try_from(Monotonic::ktime_get()).unwrap_or(0)
}

/// What one client used of one engine.
struct EngineUsage {
    /// Nanoseconds that packets which are over were at the ring's head.
    busy_ns: Atomic<u64>,
    /// Ticks that the device has counted, as far as they were looked at.
    ticks: Atomic<u64>,
}

/// What one client used of all engines, since its file was opened.
pub(crate) struct Usage {
    /// By engine; those that the device lacks stay 0.
    engines: [EngineUsage; MAX_ENGINES as usize],
    /// Whether the client ever said which of its contexts are more important to it. Changes once.
    ranks: Atomic<bool>,
}

/// What a client used of an engine, at one moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Used {
    /// Nanoseconds that the engine was busy with the client's work.
    pub(crate) busy_ns: u64,
    /// Engine time in ticks of the device.
    pub(crate) ticks: u64,
}

impl Usage {
    /// A client that has used nothing yet. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let usage = Self {
            engines: [const {
                EngineUsage {
                    busy_ns: Atomic::new(0),
                    ticks: Atomic::new(0),
                }
            }; MAX_ENGINES as usize],
            ranks: Atomic::new(false),
        };
        Ok(Arc::new(usage, GFP_KERNEL_ACCOUNT)?)
    }

    /// The client says which of its contexts are more important to it.
    pub(crate) fn rank(&self) {
        self.ranks.store(true, Relaxed);
    }

    /// Whether it ever did: only then its contexts have to be compared.
    pub(crate) fn ranks(&self) -> bool {
        self.ranks.load(Relaxed)
    }

    fn engine(&self, index: EngineIndex) -> Option<&EngineUsage> {
        self.engines.get(index.index())
    }
}

/// A context's part in its client's usage of one engine.
pub(crate) struct Account {
    /// The sums of the client that owns the context.
    usage: Arc<Usage>,
    /// The engine that works for the context.
    engine: EngineIndex,
    /// Ticks of the context's descriptor that are in `usage` already.
    settled: Atomic<u64>,
}

impl Account {
    /// The account of a new context on engine number `engine`.
    pub(crate) fn new(usage: &Arc<Usage>, engine: EngineIndex) -> Self {
        Self {
            usage: usage.clone(),
            engine,
            settled: Atomic::new(0),
        }
    }

    /// The sums of the client that owns the context.
    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Counts what was added to the context's `ticks` since the last time. Called under the
    /// engine's lock, or when nobody else has the context.
    pub(crate) fn settle(&self, ticks: u64) {
        let new = ticks.saturating_sub(self.settled.load(Relaxed));
        if let Some(engine) = self.usage.engine(self.engine).filter(|_| new > 0) {
            self.settled.store(ticks, Relaxed);
            engine.ticks.fetch_add(new, Relaxed);
        }
    }
}

/// The clock of one engine, under its lock.
pub(crate) struct EngineClock {
    /// Whose sums in a [`Usage`] it adds to.
    engine: EngineIndex,
    /// Since when which client's packet is at the head; [`None`] is the driver's own.
    clock: HeadClock<Option<Arc<Usage>>>,
}

impl EngineClock {
    /// The clock of engine number `engine`, whose ring is empty.
    pub(crate) const fn new(engine: EngineIndex) -> Self {
        Self {
            engine,
            clock: HeadClock::new(),
        }
    }

    /// Hook: packets entered or left the ring. `head` is the fence id of the oldest one; `owner`
    /// says whose it is.
    pub(crate) fn head_changed<'a>(
        &mut self,
        head: Option<u64>,
        owner: impl FnOnce() -> Option<&'a Arc<Usage>>,
    ) {
        let charged = self.clock.head_changed(now(), head, || owner().cloned());
        let Some((Some(usage), ns)) = charged else {
            return;
        };
        if let Some(engine) = usage.engine(self.engine) {
            engine.busy_ns.fetch_add(ns, Relaxed);
        }
    }

    /// What the client of `usage` used so far, with what runs now.
    pub(crate) fn read(&self, usage: &Arc<Usage>) -> Used {
        let Some(engine) = usage.engine(self.engine) else {
            return Used::default();
        };
        let running = self.clock.running(now(), |owner| {
            owner
                .as_ref()
                .is_some_and(|owner| Arc::ptr_eq(owner, usage))
        });
        Used {
            busy_ns: engine.busy_ns.load(Relaxed).saturating_add(running),
            ticks: engine.ticks.load(Relaxed),
        }
    }
}
