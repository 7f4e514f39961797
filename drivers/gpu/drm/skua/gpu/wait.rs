// SPDX-License-Identifier: GPL-2.0

//! Waiting for the device, in process context: by looking, since what it has to do is quick. It is
//! bounded, by time in which this thread could look ([`Patience`]), and who waits asks now and then
//! whether the device is still there.

use crate::{
    gpu::Gpu,
    policy::{
        miniport::Miniport,
        patience::Patience, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::Acquire,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// How many milliseconds more an adapter reset may take for its VRAM, however large that is.
const MAX_VRAM_MS: i64 = 30_000;
/// How long an acknowledgement may be missing before the device is asked whether it is there.
const PRESENCE_TIMEOUT: Delta = Delta::from_millis(500);

/// Of a device that somebody waits for: when it was last asked whether it is there.
#[derive(Clone, Copy)]
pub(crate) struct Presence(Instant<Monotonic>);

impl Presence {
    /// Of a device that was there just now.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Asks it once in a [`PRESENCE_TIMEOUT`]. `ENODEV` if it is gone: then it is to be lost.
    pub(crate) fn check(&mut self, gpu: &Gpu) -> Result {
        if self.0.elapsed() > PRESENCE_TIMEOUT {
            self.0 = Instant::now();
            gpu.check_presence()?;
        }
        Ok(())
    }
}

/// How long the device may still take for something.
#[derive(Clone, Copy)]
pub(crate) struct Countdown {
    /// When it began.
    start: Instant<Monotonic>,
    /// What of the time since counts.
    patience: Patience,
}

impl Countdown {
    /// Of a wait that begins now, and may take as long as `limit`.
    pub(crate) fn new(limit: Delta) -> Self {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(0);
        Self {
            start: Instant::now(),
            patience: Patience::new(limit_ms),
        }
    }

    /// Whether it has taken too long. To be asked before the device is: this thread may not have
    /// run for long.
    pub(crate) fn is_over(&mut self) -> bool {
        let now_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0);
        self.patience.is_over(now_ms)
    }
}

/// The pauses between looks at what mostly comes at once, and else may take seconds.
pub(crate) struct Pauses(Instant<Monotonic>);

impl Pauses {
    /// Looking begins now.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Sleeps for an eighth of the time since then, 20 microseconds to 5 milliseconds.
    pub(crate) fn sleep(&self) {
        let eighth = self.0.elapsed().as_nanos() / 8;
        fsleep(Delta::from_nanos(eighth.clamp(20_000, 5_000_000)));
    }
}

impl Gpu {
    /// Waits until `done` says so, which looks at shared memory only. Process context; not from
    /// recovery, which may have to reset the device for that.
    ///
    /// Bounded: after [`Gpu::acknowledge`] the device is to be reset, after which `done` is
    /// to say so, or lost. `EIO`, `ENODEV` if it is.
    pub(crate) fn wait_for(&self, mut done: impl FnMut() -> Result<bool>) -> Result {
        let mut generation = self.hw.generation();
        let mut countdown = Countdown::new(self.acknowledge);
        let (mut presence, pauses) = (Presence::new(), Pauses::new());
        loop {
            let is_late = countdown.is_over();
            if done()? {
                return Ok(());
            }
            self.check_health()?;
            let now = self.hw.generation();
            if now != generation || now != self.vram_generation.load(Acquire) {
                // It is being reset, which ends, or was.
                generation = now;
                countdown = Countdown::new(self.acknowledge);
                pauses.sleep();
                continue;
            }
            presence.check(self)?;
            if is_late {
                self.suspect(generation);
                countdown = Countdown::new(self.acknowledge);
            }
            pauses.sleep();
        }
    }

    /// Waits until `done` says so, and no longer than [`Gpu::acknowledge`]. Process context.
    /// `ETIMEDOUT`; `EIO`, `ENODEV` if the device is lost.
    pub(crate) fn wait_briefly(&self, done: impl FnMut() -> Result<bool>) -> Result {
        self.wait_at_most(self.acknowledge, done)
    }

    /// Waits until an adapter reset is over, for which the device may take some time for each MiB
    /// of VRAM (manual, section 2). As [`Self::wait_briefly`].
    pub(crate) fn wait_until_reset(&self) -> Result {
        let mib = i64::try_from(self.hw.caps.vram_size >> 20).unwrap_or(i64::MAX);
        let more = Delta::from_millis(mib.saturating_mul(10).min(MAX_VRAM_MS));
        self.wait_at_most(self.acknowledge + more, || self.hw.is_reset())
    }

    fn wait_at_most(&self, limit: Delta, mut done: impl FnMut() -> Result<bool>) -> Result {
        let mut countdown = Countdown::new(limit);
        let (mut presence, pauses) = (Presence::new(), Pauses::new());
        loop {
            let is_late = countdown.is_over();
            if done()? {
                return Ok(());
            }
            self.check_health()?;
            presence.check(self)?;
            if is_late {
                return Err(ETIMEDOUT);
            }
            pauses.sleep();
        }
    }
}
