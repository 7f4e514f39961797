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
    let system_call = clock.sample(CLOCKED, || {
        let _ = rustix::process::getppid();
    });
    report.instructions(&clock, "null.syscall.instructions", system_call)?;
    rig.null_ioctl()?;
    let ioctl = clock.sample(CLOCKED, || {
        // It was fine the time before.
        let _ = rig.null_ioctl();
    });
    report.instructions(&clock, "null.ioctl.instructions", ioctl)?;
    rig.driver_ioctl()?;
    let ioctl = clock.sample(CLOCKED, || {
        let _ = rig.driver_ioctl();
    });
    report.instructions(&clock, "null.driver.instructions", ioctl)?;
    for shape in [Shape::One, Shape::Buffers, Shape::Queue] {
        clocked(rig, shape, report)?;
        counted(rig, shape, report)?;
        traced(rig, trace, shape, report)?;
        rig.check()?;
    }
    let library = library(rig)?;
    report.instructions(&clock, "submit.one.library", library)
}

/// Instructions of the ioctls.
fn clocked(rig: &mut Rig, shape: Shape, report: &mut Report) -> Result<()> {
    let clock = rig.clock;
    let mut counts = Vec::new();
    for _ in 0..CLOCKED {
        let mut batch = rig.batch(shape)?;
        let mut result = Ok(());
        counts.push(clock.count(|| result = rig.submit(&mut batch)));
        result?;
        rig.finish()?;
    }
    let sample = Sample::of(counts).map(|sample| sample.per(shape.buffers()));
    let name = format!("submit.{}.instructions", shape.name());
    report.instructions(&clock, &name, sample)
}

/// Instructions of a submission by the library: what a program pays.
fn library(rig: &mut Rig) -> Result<Option<Sample>> {
    let clock = rig.clock;
    let mut counts = Vec::new();
    for _ in 0..CLOCKED {
        let point = rig.advance()?;
        let mut result = Ok(());
        counts.push(clock.count(|| {
            result = rig
                .context
                .submission()
                .commands(rig.waiting())
                .signal(&rig.timeline, point)
                .submit();
        }));
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
