// SPDX-License-Identifier: MIT

//! Measure 8: what a submission costs.
//!
//! Three passes over the same work, since each source disturbs the others: the clock; the counters
//! (before and after all); the trace. In each, work is submitted to an idle engine with the gate
//! closed, so that nothing of it ends while it is submitted, and finished before the next.

use anyhow::Result;
use serde_json::json;

use crate::counters::CPU_INTERRUPTS;
use crate::report::Report;
use crate::rig::{Rig, Shape};
use crate::sample::Sample;
use crate::trace::{Activity, Trace};

/// Repetitions by the clock: odd, so that there is a middle one.
pub const CLOCKED: usize = 101;
/// Repetitions by counters.
pub const COUNTED: usize = 16;
/// Repetitions by the trace.
pub const TRACED: usize = 16;

/// Fills the rows of measure 8.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &mut Rig, trace: &Trace, report: &mut Report) -> Result<()> {
    let clock = rig.clock;
    report.clocked(&clock, "null.syscall.instructions", || {
        let _ = rustix::process::getppid();
    })?;
    // Once before: that they work, for the clock does not look.
    rig.null_ioctl()?;
    rig.driver_ioctl()?;
    report.clocked(&clock, "null.ioctl.instructions", || drop(rig.null_ioctl()))?;
    report.clocked(&clock, "null.driver.instructions", || {
        drop(rig.driver_ioctl())
    })?;
    for shape in [Shape::One, Shape::Buffers, Shape::Queue] {
        let sample = clocked(rig, |rig| rig.batch(shape), Rig::submit)?;
        let sample = sample.map(|sample| sample.per(shape.buffers()));
        let name = format!("submit.{}.instructions", shape.name());
        report.instructions(&clock, &name, sample)?;
        counted(rig, shape, report)?;
        traced(rig, trace, shape, report)?;
        rig.check()?;
    }
    // By the library: what a program pays.
    let library = clocked(rig, Rig::advance, |rig, point| {
        let submission = rig.context.submission().commands(rig.waiting());
        submission.signal(&rig.timeline, *point).submit()
    })?;
    report.instructions(&clock, "submit.one.library", library)
}

/// Instructions of `submit`, each time with what `prepare` made.
fn clocked<T, E>(
    rig: &mut Rig,
    prepare: impl Fn(&mut Rig) -> Result<T>,
    submit: impl Fn(&Rig, &mut T) -> Result<(), E>,
) -> Result<Option<Sample>>
where
    anyhow::Error: From<E>,
{
    let mut counts = Vec::new();
    for _ in 0..CLOCKED {
        let mut work = prepare(rig)?;
        let mut result = Ok(());
        counts.push(rig.clock.count(|| result = submit(rig, &mut work)));
        result?;
        rig.finish()?;
    }
    Ok(Sample::of(counts))
}

/// What device, driver and kernel count.
fn counted(rig: &mut Rig, shape: Shape, report: &mut Report) -> Result<()> {
    let grown = rig.counted(shape, COUNTED)?;
    let units = shape.buffers() * COUNTED as u64;
    let mut ratio = |row: &str, counter: &str| -> Result<()> {
        report.ratio(
            &format!("submit.{}.{row}", shape.name()),
            grown.get(counter)?,
            units,
        )
    };
    ratio("doorbells", "doorbell")?;
    ratio("register_reads", "register_read")?;
    ratio("interrupts", CPU_INTERRUPTS)?;
    if shape == Shape::One {
        ratio("register_writes", "register_write")?;
    }
    Ok(())
}

/// What the kernel's trace shows.
fn traced(rig: &mut Rig, trace: &Trace, shape: Shape, report: &mut Report) -> Result<()> {
    let recorder = trace.enable()?;
    let (mut ioctls, mut later) = (Activity::default(), Activity::default());
    for _ in 0..TRACED {
        let mut batch = rig.batch(shape)?;
        ioctls.add(&recorder.record(|| rig.submit(&mut batch))?.0);
        later.add(&recorder.record(|| rig.finish())?.0);
    }
    let units = shape.buffers() * TRACED as u64;
    let name = |row: &str| format!("submit.{}.{row}", shape.name());
    report.ratio(&name("ioctls"), ioctls.ioctls, units)?;
    // CAST: counts are far below 2^53.
    let per = |count: u64| count as f64 / units as f64;
    report.detailed(
        &name("allocations"),
        per(ioctls.own_allocations),
        json!({ "sites": ioctls.own_sites, "units": units }),
    )?;
    if shape == Shape::One {
        report.ratio(&name("allocated"), ioctls.own_bytes, units)?;
        let others = ioctls.other_allocations + later.other_allocations;
        report.detailed(
            &name("allocations_later"),
            per(others),
            json!({ "sites": later.other_sites, "units": units }),
        )?;
    }
    Ok(())
}
