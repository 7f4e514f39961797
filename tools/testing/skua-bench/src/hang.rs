// SPDX-License-Identifier: MIT

//! Measure 18: what it costs that a program does not end, and whom.
//!
//! The watchdog counts the guest's time, which is instructions while the CPU has something to do;
//! and jumps from timer to timer while it has not, but where something is counted.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context as _, Result};
use libskua::{Context, ContextStatus, Deadline, Device, Error, Outcome};
use serde_json::json;

use crate::clock::Shares;
use crate::report::Report;
use crate::rig::Rig;
use crate::schedule::{assemble, Space};

/// Milliseconds from one look of the watchdog to the next.
const PERIOD: u64 = 250;
/// How long before the time-out recovery is counted, in milliseconds.
const BEFORE: u64 = 2 * PERIOD;
/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;
/// For so many ticks a packet has to have worked for each millisecond of the time-out.
const TICKS: u64 = 10_000;
/// Contexts of others that have work on the engine, and packets of each.
const OTHERS: usize = 4;
const PACKETS: usize = 8;
/// Ticks of these packets.
const SHORT: u64 = 10_000;
/// Does not end.
const ENDLESS: &str = "round: bra round\n";

/// Fills the rows of measure 18.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &Rig, report: &mut Report) -> Result<()> {
    // The first failure leaves a dump, which is not recovery.
    fault(rig).context("a fault")?;
    hang(rig, report, "asked").context("a request to stop")?;
    ensure!(rig.counters.file("preemption")?.trim() == "0", "it was off");
    let unasked = hang(rig, report, "reset").context("a reset");
    rig.counters.file("preemption")?;
    unasked
}

/// A context has a fault.
fn fault(rig: &Rig) -> Result<()> {
    let mut space = Space::new(rig, &rig.device)?;
    let context = space.context(0)?;
    let mut commands = space.commands()?;
    commands.words(&[u32::MAX, 0])?;
    let failed = context.run(&commands, Deadline::NEVER);
    ensure!(failed.is_err(), "it had none");
    Ok(())
}

/// A program does not end, and others want the engine.
fn hang(rig: &Rig, report: &mut Report, name: &str) -> Result<()> {
    let parameters = rig.counters.file("parameters")?;
    let timeout = parameters
        .lines()
        .find_map(|line| line.strip_prefix("job_timeout_ms: "));
    let timeout: u64 = timeout.context("no time-out")?.trim().parse()?;
    let second = Device::open_first()?;
    let mut bad = Space::new(rig, &second)?;
    let guilty = bad.context(0)?;
    let endless = bad.dispatch(&assemble(ENDLESS)?, [1; 3], |_| None)?;
    let mut space = Space::new(rig, &rig.device)?;
    let packet = space.fills(SHORT)?;
    let others: Vec<Context> = (0..OTHERS)
        .map(|_| space.context(-1))
        .collect::<Result<_>>()?;
    let before = rig.counters.read()?;
    let start = Shares::now();
    let point = bad.start(&guilty, &endless)?;
    let mut points = Vec::new();
    for context in others.iter().cycle().take(OTHERS * PACKETS) {
        points.push(space.start(context, &packet)?);
    }
    // The other half of the condition: the device works in the host's time.
    let ticks = space.ticks()?;
    while space.ticks()? - ticks < (timeout + PERIOD) * TICKS {}
    let passed = Shares::now().since(&start).all / MILLISECOND;
    let sleeps = (timeout - BEFORE).saturating_sub(passed);
    rig.companion.away(|| sleep(Duration::from_millis(sleeps)));
    let late = Shares::now();
    let cut = bad.wait(point).err();
    let (all, recovery) = (Shares::now().since(&start).all, Shares::now().since(&late));
    let cut = cut.as_ref().and_then(|error| error.downcast_ref());
    let cut = matches!(cut, Some(Error::Work(Outcome::TimedOut)));
    ensure!(cut, "it ended otherwise");
    let well = points
        .iter()
        .filter(|point| space.wait(**point).is_ok())
        .count() as u64;
    let grown = rig.counters.read()?.since(&before);
    let states = others
        .iter()
        .map(Context::state)
        .collect::<Result<Vec<_>, _>>()?;
    let active = |status| status == ContextStatus::Active;
    let lost = states.iter().filter(|state| !active(state.status)).count() as u64;
    let row = |what: &str| format!("tdr.{name}.{what}");
    // CAST: far below 2^53.
    let looks = all as f64 / (PERIOD * MILLISECOND) as f64 - timeout as f64 / PERIOD as f64;
    let detail = json!({ "nanoseconds": all, "timeout_ms": timeout, "period_ms": PERIOD });
    report.detailed(&row("detection"), looks, detail)?;
    report.ratio(&row("innocent"), well, points.len() as u64)?;
    report.ratio(&row("lost"), lost, 1)?;
    for what in ["engine_resets", "adapter_resets"] {
        report.ratio(&row(what), grown.get(&format!("driver_{what}"))?, 1)?;
    }
    let elsewhere = recovery
        .all
        .saturating_sub(recovery.thread + recovery.others);
    report.ratio(&row("instructions"), elsewhere, 1)
}
