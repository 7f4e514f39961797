// SPDX-License-Identifier: MIT

//! Measures 10, 11 and 13: what it costs that memory moves.
//!
//! Objects leave VRAM because others need the room, or all of them because debugfs is asked for it.

use anyhow::{ensure, Context as _, Result};
use libskua::{
    Access, Bo, BoFlags, ClientDevice, CommandBuffer, Context, Deadline, EngineKind, RegionKind,
    Residency, Vm,
};
use serde_json::json;

use crate::counters::Counters;
use crate::fit::Line;
use crate::replay;
use crate::report::Report;
use crate::rig::{Rig, Shape};
use crate::sample::Sample;

/// Bytes of an object of a trace.
const OBJECT: u64 = 512 << 10;
/// Bytes that are copied to compare with, and of the object that moves.
const LARGE: u64 = 16 << 20;
/// How many objects there are, with growing numbers of which submissions are counted.
const EXISTING: [usize; 4] = [1000, 2000, 4000, 8000];
/// How many there are where all are out; at last as many as at first of the others.
const ALL: [usize; 4] = [125, 250, 500, 1000];
/// How many of them are out when work is submitted, where not all are.
const TOUCHED: usize = 8;
/// Repetitions by the clock: odd, so that there is a middle one; and where each takes long.
const CLOCKED: usize = 21;
const FEW: usize = 5;
/// Where objects are mapped, beyond what the rig maps.
const BASE: u64 = 1 << 40;

/// Fills the rows of measures 10, 11 and 13.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &mut Rig, report: &mut Report) -> Result<()> {
    traces(rig, report).context("traces")?;
    bandwidth(rig, report).context("bandwidth")?;
    growth(rig, report).context("growth")
}

/// Has everything move out of VRAM that may.
fn evict_all(rig: &Rig) -> Result<()> {
    rig.counters.file("evict").map(drop)
}

/// Bytes that may be in VRAM beside what is there.
fn free(rig: &Rig) -> Result<u64> {
    let regions = rig.device.regions()?;
    let vram = regions
        .iter()
        .find(|region| region.kind == RegionKind::Vram);
    let vram = vram.context("there is no VRAM")?;
    Ok(vram.size - vram.used)
}

/// Bytes moved in, in comparison with the fewest: new objects, twice as many as fit, are made
/// resident one after the other, used by nobody, and given up at once, so that each may leave when
/// the next one comes.
fn traces(rig: &Rig, report: &mut Report) -> Result<()> {
    evict_all(rig)?;
    // CAST: a few hundred.
    let room = (free(rig)? / OBJECT) as usize;
    let count = 2 * room;
    let (scenes, skewed) = (replay::scenes_expected, replay::skewed_expected);
    let in_turn = replay::in_turn(room * 5 / 4, 12);
    for (name, uses, expected) in [
        (
            "scenes",
            replay::scenes(count, room, 12, 1),
            Some(scenes(count, room, 12)),
        ),
        (
            "skewed",
            replay::skewed(count, 12 * room, 2),
            Some(skewed(count, room, 12 * room)),
        ),
        ("loop", in_turn.clone(), None),
        ("rooms", replay::rooms(room, 24), None),
    ] {
        trace(rig, report, name, (count, room), &uses, expected)?;
    }
    let written = play(rig, count, &in_turn, |_| true)?.get("copy_vram_to_system")?;
    report.ratio("eviction.loop.written_back.off", written, 1)?;
    let mixed = || -> Result<u64> {
        let grown = play(rig, count, &in_turn, |object| object % 2 == 1)?;
        Ok(grown.get("copy_system_to_vram")? + grown.get("copy_vram_to_system")?)
    };
    let moved = mixed()?;
    let off = by_age(rig, mixed)?;
    let fewest = replay::fewest(&in_turn, room) * OBJECT;
    report.ratio("eviction.mixed.bytes", moved, fewest)?;
    report.ratio("eviction.mixed.bytes.off", off, fewest)
}

/// What `f` finds while all leave by age.
fn by_age<T>(rig: &Rig, f: impl FnOnce() -> Result<T>) -> Result<T> {
    ensure!(rig.counters.file("reuse")?.trim() == "0", "it was off");
    let found = f();
    rig.counters.file("reuse")?;
    found
}

/// Uses so many objects in this order, some of which somebody `may_write`; what the counters count.
fn play(
    rig: &Rig,
    count: usize,
    uses: &[usize],
    may_write: impl Fn(usize) -> bool,
) -> Result<Counters> {
    let client_device = ClientDevice::create(&rig.device, Residency::Explicit)?;
    let placements = rig.device.vram() | rig.device.system();
    let objects: Vec<Bo> = (0..count)
        .map(|_| Bo::create(&rig.device, OBJECT, placements, BoFlags::empty()))
        .collect::<Result<_, _>>()?;
    let vm = Vm::create(&rig.device)?;
    let written = objects.iter().enumerate();
    for (at, object) in written.filter(|(at, _)| may_write(*at)) {
        vm.map(object, BASE + at as u64 * OBJECT, Access::ReadWrite)?;
    }
    evict_all(rig)?;
    let before = rig.counters.read()?;
    for object in uses {
        let list = [&objects[*object]];
        client_device
            .make_resident(&list)
            .cannot_trim_further()
            .submit_and_wait()?;
        client_device.evict(&list)?;
    }
    Ok(rig.counters.read()?.since(&before))
}

/// Fills the rows of a trace of so many objects, of which so many fit. `expected` is how often one
/// has to be brought in on an average of such traces at least, if that is random.
fn trace(
    rig: &Rig,
    report: &mut Report,
    name: &str,
    (count, room): (usize, usize),
    uses: &[usize],
    expected: Option<f64>,
) -> Result<()> {
    let grown = play(rig, count, uses, |_| false)?;
    let off = by_age(rig, || play(rig, count, uses, |_| false))?;
    let (least, by_age) = (replay::fewest(uses, room), replay::by_age(uses, room));
    let moved = grown.get("copy_system_to_vram")?;
    let moved_off = off.get("copy_system_to_vram")?;
    // CAST: far below 2^53.
    let of = |moved: u64, objects: f64| moved as f64 / (objects * OBJECT as f64);
    let times = |objects: f64| of(moved, objects);
    let detail = json!({
        "room": room, "uses": uses.len(), "moved": moved, "fewest": least * OBJECT,
        "by_age": by_age * OBJECT,
    });
    let row = format!("eviction.{name}.bytes");
    report.detailed(&row, times(least as f64), detail)?;
    let detail = json!({ "moved": moved_off });
    report.detailed(&format!("{row}.off"), of(moved_off, least as f64), detail)?;
    if let Some(expected) = expected {
        let detail = json!({ "expected": expected * OBJECT as f64 });
        report.detailed(
            &format!("eviction.{name}.expected"),
            times(expected),
            detail,
        )?;
    }
    let by_age = times(by_age as f64);
    report.detailed(&format!("eviction.{name}.by_age"), by_age, json!(null))?;
    let written = grown.get("copy_vram_to_system")?;
    report.ratio(&format!("eviction.{name}.written_back"), written, 1)
}

/// Ticks of the copy engine for a move, in comparison with those of a command that copies as much.
fn bandwidth(rig: &Rig, report: &mut Report) -> Result<()> {
    let (vram, system) = (rig.device.vram(), rig.device.system());
    let create = |placements, at: u64| -> Result<Bo> {
        let bo = Bo::create(&rig.device, LARGE, placements, BoFlags::empty())?;
        rig.vm.map(&bo, BASE + at * LARGE, Access::ReadWrite)?;
        Ok(bo)
    };
    let _local = create(vram, 0)?;
    let _far = create(system, 1)?;
    let moving = create(vram | system, 2)?;
    let (local, far, own) = (BASE, BASE + LARGE, BASE + 2 * LARGE);
    let engine = rig.device.engine(EngineKind::Copy);
    let context = Context::create(&rig.vm, engine.context("there is no copy engine")?)?;
    let mut commands = CommandBuffer::create(&rig.vm, BASE + 3 * LARGE, 4096)?;
    let run = |commands: &mut CommandBuffer| context.run(commands, Deadline::NEVER);
    // What moved comes back, and is written, so that it has to be copied when it leaves.
    run(commands.reset().fill(own, LARGE, 7)?)?;
    let ticks = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let before = rig.counters.ticks()?;
        work()?;
        // CAST: far below 2^53.
        Ok((rig.counters.ticks()? - before) as f64)
    };
    // What is left behind would be cleared at the same time.
    rig.counters.file("clearing")?;
    let out = ticks(&mut || evict_all(rig))?;
    let list = [&moving];
    let back = ticks(&mut || {
        rig.device.make_resident(&list).submit_and_wait()?;
        Ok(())
    })?;
    rig.device.evict(&list)?;
    // It may be written, though nobody does, and is not any more; it comes back each time.
    let written = ticks(&mut || evict_all(rig))?;
    rig.vm.unmap(own, LARGE)?;
    rig.vm.map(&moving, own, Access::Read)?;
    rig.device.make_resident(&list).submit_and_wait()?;
    rig.device.evict(&list)?;
    let clean = ticks(&mut || evict_all(rig))?;
    let raw_out = ticks(&mut || Ok(run(commands.reset().copy(local, far, LARGE)?)?))?;
    let raw_back = ticks(&mut || Ok(run(commands.reset().copy(far, local, LARGE)?)?))?;
    for (name, ticks, raw) in [("out", out, raw_out), ("back", back, raw_back)] {
        let detail = json!({ "bytes": LARGE, "ticks": ticks, "copy": raw });
        report.detailed(&format!("eviction.{name}.bandwidth"), raw / ticks, detail)?;
    }
    for (row, ticks) in [
        ("eviction.clean.ticks", clean),
        ("eviction.clean.ticks.off", written),
    ] {
        let detail = json!({ "bytes": LARGE, "ticks": ticks, "copied": out });
        report.detailed(row, ticks / out, detail)?;
    }
    rig.counters.file("clearing")?;
    rig.vm.unmap(BASE, 4 * LARGE)?;
    Ok(())
}

/// How what a submission costs grows with what exists: log of instructions over log of objects.
fn growth(rig: &mut Rig, report: &mut Report) -> Result<()> {
    let (vram, system) = (rig.device.vram(), rig.device.system());
    for (name, others, existing, times) in [
        ("resident", vram | system, EXISTING, CLOCKED),
        ("out", system, EXISTING, CLOCKED),
        ("all", vram, ALL, FEW),
    ] {
        let mut objects = Vec::new();
        let mut points = Vec::new();
        let clock = rig.clock;
        for count in existing {
            while objects.len() < count {
                // What may be in VRAM alone is brought back for work.
                let placements = match objects.len() < TOUCHED {
                    true => vram,
                    false => others,
                };
                let bo = Bo::create(&rig.device, 4096, placements, BoFlags::empty())?;
                rig.vm
                    .map(&bo, BASE + objects.len() as u64 * 4096, Access::ReadWrite)?;
                objects.push(bo);
            }
            let mut counts = Vec::new();
            for _ in 0..times {
                if name != "resident" {
                    evict_all(rig)?;
                }
                let mut batch = rig.batch(Shape::One)?;
                let mut result = Ok(());
                // Threads of the kernel's end moves meanwhile, as many as the device has done.
                counts.push(rig.clock.count_own(|| result = rig.submit(&mut batch)));
                result?;
                rig.finish()?;
            }
            rig.check()?;
            let sample = Sample::of(counts).context("no repetitions")?;
            // CAST: far below 2^53.
            points.push(((count as f64).ln(), (sample.median as f64).ln()));
            if count == EXISTING[0] {
                let row = match name {
                    "all" => "residency.out.instructions.off".to_owned(),
                    name => format!("residency.{name}.instructions"),
                };
                report.instructions(&clock, &row, Some(sample))?;
            }
        }
        rig.vm.unmap(BASE, objects.len() as u64 * 4096)?;
        let line = Line::through(&points).context("too few points")?;
        let row = format!("residency.{name}.slope");
        match clock.counts_instructions() {
            true => report.detailed(&row, line.slope, json!({ "points": points }))?,
            false => report.unmeasured(&row, "(the clock counts no instructions)")?,
        }
    }
    Ok(())
}
