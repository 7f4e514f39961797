// SPDX-License-Identifier: MIT

//! Measure 9: what a fence costs.
//!
//! | | the fence is | who waits |
//! |---|---|---|
//! | `signalled` | signalled already | one ioctl that returns at once |
//! | `many` | 32 of these | one ioctl for all |
//! | `memory` | a word that the GPU has written | a load, no ioctl |
//! | `blocking` | signalled while the waiter sleeps | one ioctl |
//! | `load` | the last of 32 in flight | one ioctl |
//!
//! How long a sleep lasts is the device's business and not counted. What is counted of it: the
//! instructions that the waiting thread executed to fall asleep and after it woke up, and those
//! that all others did, but the companion.

use anyhow::{Context, Result};

use crate::clock::Shares;
use crate::counters::CPU_INTERRUPTS;
use crate::report::Report;
use crate::rig::{Rig, Shape};
use crate::sample::Sample;
use crate::submit::{CLOCKED, COUNTED, TRACED};
use crate::trace::{Activity, Trace};

/// Fills the rows of measure 9.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &mut Rig, trace: &Trace, report: &mut Report) -> Result<()> {
    ended(rig, trace, report)?;
    many(rig, trace, report)?;
    let taken = rig.counted(Shape::One, COUNTED)?.get(CPU_INTERRUPTS)?;
    report.ratio("wait.blocking.interrupts", taken, COUNTED as u64)?;
    let seen = sleeping(rig, trace, Shape::One)?;
    let units = TRACED as u64;
    report.ratio("wait.blocking.ioctls", seen.ioctls, units)?;
    report.ratio("wait.blocking.wakeups", seen.own_wakeups, units)?;
    report.ratio("wait.blocking.wakeups_all", seen.wakeups, units)?;
    shares(rig, report)?;
    let load = Shape::Queue.buffers();
    let grown = rig.counted(Shape::Queue, COUNTED)?;
    let fences = load * COUNTED as u64;
    report.ratio("wait.load.interrupts", grown.get(CPU_INTERRUPTS)?, fences)?;
    report.ratio("wait.load.raised", grown.get("engine_interrupt")?, fences)?;
    let seen = sleeping(rig, trace, Shape::Queue)?;
    report.ratio("wait.load.wakeups", seen.own_wakeups, load * units)?;
    report.ratio("wait.load.wakeups_all", seen.wakeups, load * units)?;
    rig.check()
}

/// Waits for what is over.
fn ended(rig: &mut Rig, trace: &Trace, report: &mut Report) -> Result<()> {
    let clock = rig.clock;
    let mut batch = rig.batch(Shape::One)?;
    rig.submit(&mut batch)?;
    rig.finish()?;
    // Each once before: that they work, and that all is in memory.
    rig.wait()?;
    rig.poll()?;
    report.clocked(&clock, "wait.signalled.instructions", || drop(rig.wait()))?;
    let forever = libskua::Deadline::NEVER;
    rig.timeline.wait(rig.point(), forever)?;
    report.clocked(&clock, "wait.signalled.library", || {
        drop(rig.timeline.wait(rig.point(), forever))
    })?;
    report.clocked(&clock, "wait.memory.instructions", || drop(rig.poll()))?;

    let recorder = trace.enable()?;
    let (mut waited, mut polled) = (Activity::default(), Activity::default());
    for _ in 0..TRACED {
        waited.add(&recorder.record(|| rig.wait())?.0);
        polled.add(&recorder.record(|| rig.poll())?.0);
    }
    let units = TRACED as u64;
    report.ratio("wait.signalled.ioctls", waited.ioctls, units)?;
    report.ratio("wait.signalled.allocations", waited.own_allocations, units)?;
    report.ratio("wait.memory.ioctls", polled.ioctls, units)
}

/// Waits for much that is over.
fn many(rig: &mut Rig, trace: &Trace, report: &mut Report) -> Result<()> {
    let clock = rig.clock;
    let mut batch = rig.batch(Shape::Queue)?;
    rig.submit(&mut batch)?;
    rig.finish()?;
    let count = Shape::Queue.buffers();
    let points: Vec<u64> = (rig.point() + 1 - count..=rig.point()).collect();
    let timelines = vec![rig.timeline.handle(); points.len()];
    rig.wait_for(&timelines, &points)?;
    let wait = clock.sample(CLOCKED, || drop(rig.wait_for(&timelines, &points)));
    let wait = wait.map(|sample| sample.per(count));
    report.instructions(&clock, "wait.many.instructions", wait)?;
    let waited = trace
        .enable()?
        .record(|| rig.wait_for(&timelines, &points))?
        .0;
    report.ratio("wait.many.ioctls", waited.ioctls, count)?;
    report.ratio("wait.many.allocations", waited.own_allocations, count)
}

/// What happens from when the waiter goes to sleep until it is awake.
fn sleeping(rig: &mut Rig, trace: &Trace, shape: Shape) -> Result<Activity> {
    let recorder = trace.enable()?;
    let mut all = Activity::default();
    for _ in 0..TRACED {
        let mut batch = rig.batch(shape)?;
        rig.submit(&mut batch)?;
        all.add(&recorder.record(|| rig.finish())?.0);
    }
    Ok(all)
}

/// Who executes how much from when the waiter goes to sleep until it is awake.
fn shares(rig: &mut Rig, report: &mut Report) -> Result<()> {
    let clock = rig.clock;
    // What looking at the clocks is in the difference of two looks.
    let looks: Vec<_> = (0..CLOCKED)
        .map(|_| {
            let before = Shares::now();
            Shares::now().since(&before)
        })
        .collect();
    let least = |f: fn(&Shares) -> u64| looks.iter().map(f).min().context("no repetitions");
    let (look, look_all) = (least(|s| s.thread)?, least(|s| s.all)?);

    let (mut own, mut elsewhere) = (Vec::new(), Vec::new());
    for _ in 0..CLOCKED {
        let mut batch = rig.batch(Shape::One)?;
        rig.submit(&mut batch)?;
        let before = Shares::now();
        rig.finish()?;
        let passed = Shares::now().since(&before);
        own.push(passed.thread.saturating_sub(look));
        let here = passed.thread.saturating_add(passed.others);
        let outside = look_all.saturating_sub(look);
        elsewhere.push(passed.all.saturating_sub(here).saturating_sub(outside));
    }
    report.instructions(&clock, "wait.blocking.instructions", Sample::of(own))?;
    report.instructions(&clock, "wait.blocking.elsewhere", Sample::of(elsewhere))
}
