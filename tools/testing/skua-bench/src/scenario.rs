// SPDX-License-Identifier: MIT

//! Measure 4: loads by which schedulers of GPUs are tested, in comparison with what is ideal.
//!
//! All in ticks of the compute engine.

use anyhow::{Context as _, Result};
use libskua::Device;
use serde_json::json;

use crate::report::Report;
use crate::rig::Rig;
use crate::sample::Sample;
use crate::schedule::{contest, shares, Contender, Hog, Space};

/// Ticks of a packet, and how many there are in all.
const SHORT: u64 = 10_000;
const PACKETS: usize = 256;
/// Contexts that share them.
const CONTEXTS: usize = 4;
/// Ticks of the packets of a very heavy client: ten turns.
const HEAVY: u64 = 2_000_000;
/// Ticks of a job that somebody looks at, and how often it is submitted.
const INTERACTIVE: u64 = 500_000;
const TIMES: usize = 21;

/// Fills the rows of measure 4.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &Rig, report: &mut Report) -> Result<()> {
    let overhead = makespan(rig, CONTEXTS, false)?;
    let ideal = makespan(rig, 1, false)?;
    excess(report, "scheduler.overhead", overhead, ideal)?;
    let ping_pong = makespan(rig, 2, true)?;
    let ideal = makespan(rig, 1, true)?;
    excess(report, "scheduler.ping_pong", ping_pong, ideal)?;
    for (name, packets) in [
        ("scheduler.halves", [SHORT; 2]),
        ("scheduler.heavy", [HEAVY, SHORT]),
    ] {
        let used = halves(rig, packets)?;
        let detail = json!({ "packets": packets, "ticks": used });
        report.detailed(name, shares(&used).1, detail)?;
    }
    let (with, alone) = interactive(rig)?;
    excess(report, "scheduler.interactive", with, alone)
}

/// Fills a row with the part of what is ideal that comes on top of it.
fn excess(report: &mut Report, name: &str, ticks: u64, ideal: u64) -> Result<()> {
    // CAST: far below 2^53.
    let (part, whole) = (ticks as f64 - ideal as f64, ideal as f64);
    let detail = json!({ "ticks": ticks, "ideal": ideal });
    report.detailed(name, part / whole, detail)
}

/// Ticks of the engine until [`PACKETS`] packets have ended, in turn of so many contexts; whether
/// each waits for the one before.
fn makespan(rig: &Rig, contexts: usize, in_turn: bool) -> Result<u64> {
    let mut space = Space::new(rig, &rig.device)?;
    let packet = space.fills(SHORT)?;
    let contexts: Vec<_> = (0..contexts)
        .map(|_| space.context(0))
        .collect::<Result<_>>()?;
    let before = space.ticks()?;
    let held = space.hold()?;
    // The hold's own point is signalled once it is released.
    let mut last = held.point;
    for context in contexts.iter().cycle().take(PACKETS) {
        last = match in_turn {
            true => space.start_behind(context, &packet, last)?,
            false => space.start(context, &packet)?,
        };
    }
    let holding = space.release(&held)?;
    space.wait(last)?;
    Ok(space.ticks()? - before - holding)
}

/// Ticks that two clients have had of the engine, each with a backlog of packets of these ticks.
fn halves(rig: &Rig, packets: [u64; 2]) -> Result<Vec<u64>> {
    let second = Device::open_first()?;
    let mut spaces = [Space::new(rig, &rig.device)?, Space::new(rig, &second)?];
    let equals = spaces.iter_mut().zip(packets);
    let equals = equals.map(|(space, ticks)| Contender::new(space, ticks));
    let equals = equals.collect::<Result<Vec<_>>>()?;
    contest(&mut spaces[0], &equals)
}

/// Ticks of a job until it has ended while a hog has the engine, at most, and of it alone.
fn interactive(rig: &Rig) -> Result<(u64, u64)> {
    let mut space = Space::new(rig, &rig.device)?;
    let mut hog = Hog::new(&mut space, 1)?;
    let job = space.urgent(INTERACTIVE)?;
    let context = space.context(0)?;
    let alone = space.alone(&context, &job, TIMES)?;
    let with = hog.disturbs(&mut space, &context, &job, TIMES)?;
    let middle = |ticks| Sample::of(ticks).map(|sample| sample.median);
    let middle = middle(with).zip(middle(alone));
    middle.context("no repetitions")
}
