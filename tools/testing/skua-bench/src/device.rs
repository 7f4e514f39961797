// SPDX-License-Identifier: MIT

//! Measures 1 to 3 and 21: the device by itself, in this process, where nobody but this program has
//! its clock advance.
//!
//! So a request is made at a known tick, and answered at one, whatever the host does. All repeats
//! exactly.

use std::fmt::Write as _;

use anyhow::{ensure, Context as _, Result};
use serde_json::json;
use skua_asm::Program;
use skua_gpu::engine::save::SAVE_SIZE;
use skua_gpu::options::{Options, Preemption, Stepping};
use skua_gpu::vram;
use skua_spec::address::{GpuPhys, GpuVa};
use skua_spec::command::{Command, Draw, EngineKind, Rectangle, BYTES_PER_TICK};
use skua_spec::context::{Image, SaveArea, IMAGE_SIZE};
use skua_spec::mmu::{PageSize, Target};
use skua_spec::number::EngineIndex;
use skua_spec::preemption::{Cause, Level};
use skua_spec::status::{engine::COMPLETED_FENCE, Counter};
use skua_testbed::{
    resumed, root, Gpu, ASID, BUFFER, COMPUTE, CONTEXT, COPY, DATA, DATA_VA, SAVE_VA, VRAM_BYTES,
};

use crate::fit::Line;
use crate::report::Report;
use crate::schedule::assemble;

/// Where the descriptor of another context is.
const OTHER: u64 = CONTEXT + 0x1000;
/// Where programs and words that they work on are, from [`DATA`] and [`DATA_VA`].
const PROGRAM: u64 = 0;
const WORDS: u64 = 0x1_0000;
/// Where vertices and the target are that is drawn to, likewise.
const VERTICES: u64 = 0x2_0000;
const TARGET: u64 = 0x3_0000;
/// Where VRAM is mapped in large pages from [`LARGE`] on: what is copied, and the other context's
/// save area.
const LARGE: u64 = 2 << 20;
const LARGE_VA: u64 = 0x7f00_0040_0000;
const OTHER_SAVE: u64 = 4 << 20;
/// Most bytes of a COPY there.
const COPIED: u64 = 2 << 20;
/// Ticks from a packet's beginning to requests to stop it, one after the other, again and again,
/// beside what restoring its state takes.
const GAPS: [u64; 5] = [430, 397, 443, 409, 451];
/// How often the same work is stopped where the state counts.
const STOPS: usize = 64;
/// How often work is stopped that is longer and longer: each is asked at the same places.
const ASKED: usize = 15;
/// How much longer work is, each time, where that is not to matter.
const SCALES: [u32; 3] = [16, 32, 64];

/// Fills the device's rows of measures 1 to 3, and those of measure 21.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(report: &mut Report) -> Result<()> {
    latency(report).context("latency")?;
    states(report).context("states")?;
    honesty(report).context("honesty")?;
    determinism(report).context("determinism")
}

/// Drawing and everything else at the same level; what lives is saved.
fn stops_at(level: Level) -> Preemption {
    Preemption {
        graphics: level,
        compute: level,
        ..Preemption::default()
    }
}

/// A device whose clock stands unless it is told to advance.
fn device(preemption: Preemption) -> Gpu {
    let mut gpu = Gpu::with_options(&Options {
        engines: vec![EngineKind::Compute; 2],
        preemption: vec![preemption],
        stepping: Stepping::Caller,
        ..Options::default()
    });
    gpu.clear_vram(BUFFER, VRAM_BYTES - BUFFER);
    for at in (LARGE..VRAM_BYTES).step_by(2 << 20) {
        let target = Target::Vram(GpuPhys(vram::BASE + at));
        gpu.map_page(LARGE_VA + at - LARGE, target, PageSize::Size2M, true);
    }
    gpu.write_context(OTHER, ASID, 1, root());
    gpu.set_image(LARGE + OTHER_SAVE, Image::default());
    for (at, base) in [(CONTEXT, SAVE_VA), (OTHER, LARGE_VA + OTHER_SAVE)] {
        let area = SaveArea {
            base: GpuVa(base),
            bytes: SAVE_SIZE,
        };
        gpu.set_save_area(at, Some(area));
    }
    gpu
}

/// Has the clock advance; what it shows then.
fn advance(gpu: &Gpu, ticks: u64) -> Result<u64> {
    gpu.device.advance(ticks).context("there is no clock")
}

/// Until no engine has anything to do.
fn finish(gpu: &Gpu) -> Result<u64> {
    advance(gpu, u64::MAX)
}

/// A command that runs a program, each of whose arguments is `value` of its name.
fn dispatch(
    gpu: &Gpu,
    program: &Program,
    groups: u32,
    value: impl Fn(&str) -> u64,
) -> Result<Command> {
    gpu.set_vram(DATA + PROGRAM, &program.bytes());
    let value = |name: &str| Some(value(name));
    let dispatch = program.dispatch(DATA_VA + PROGRAM, [groups, 1, 1], value)?;
    Ok(Command::Dispatch(dispatch))
}

/// A packet of engine 0, by its EXEC, and its fence.
type Packet = (Command, u64);

/// What a request to stop came to.
struct Stop {
    /// What the clock showed when it was made, and when it was answered.
    asked: u64,
    answered: u64,
    /// Bytes of the state.
    saved: u64,
}

/// Runs packets to their end; asks the engine to stop after each of the [`GAPS`], so often at most,
/// and does `then` each time it has.
fn stopped(
    gpu: &mut Gpu,
    packets: &[Packet],
    most: usize,
    mut then: impl FnMut(&mut Gpu, &Stop) -> Result<()>,
) -> Result<()> {
    let mut restores = None;
    for (request, gap) in (1..).zip(GAPS.iter().cycle().take(most)) {
        let completed = gpu.engine64(COMPUTE, COMPLETED_FENCE);
        let left = packets.iter().filter(|(_, fence)| *fence > completed);
        let mut left: Vec<Command> = left.map(|(exec, _)| *exec).collect();
        let Some(first) = left.first_mut() else {
            return Ok(());
        };
        ensure!(request < 1000, "it gets nowhere: {:?}", gpu.fault(0));
        if restores.is_some() {
            *first = resumed(*first);
        }
        gpu.start(COMPUTE, &left);
        let restoring = 2 * restores.unwrap_or(0) / BYTES_PER_TICK;
        let asked = advance(gpu, gap + restoring)?;
        let before = gpu.counter(Counter::SavedBytes);
        gpu.ask_to_preempt(COMPUTE, request);
        let stop = Stop {
            asked,
            answered: finish(gpu)?,
            saved: gpu.counter(Counter::SavedBytes) - before,
        };
        let within = gpu.preempted(COMPUTE).cause == Cause::Within;
        restores = within.then_some(stop.saved);
        then(gpu, &stop)?;
    }
    Ok(())
}

/// How long another context waits at most for the engine until its first command has been done, in
/// comparison with the bytes that have to be moved.
fn latency(report: &mut Report) -> Result<()> {
    let wide = assemble(crate::schedule::WIDE)?;
    let all = assemble(&all_registers()?)?;
    for (name, program) in [
        ("preemption.latency", Some(all)),
        ("preemption.latency.values", Some(wide)),
        ("preemption.latency.copy", None),
    ] {
        let mut gpu = device(stops_at(Level::Instruction));
        let command = match program {
            Some(program) => dispatch(&gpu, &program, 64, |name| match name {
                "rounds" => 1000,
                _ => DATA_VA + WORDS,
            })?,
            None => copy(COPIED),
        };
        let packet = gpu.exec(COMPUTE, &[command]);
        // It has worked before: that its first addresses have to be found is none of this.
        first_command(&mut gpu)?;
        let mut stops = Vec::new();
        stopped(&mut gpu, &[packet], 1 + STOPS, |gpu, stop| {
            ensure!(stop.saved > 0, "it was not stopped within");
            stops.push((first_command(gpu)? - stop.asked, stop.saved));
            Ok(())
        })?;
        // Nor are those of what is saved, the first time.
        stops.remove(0);
        // What one context leaves and another has loaded, behind an instruction, or 64 bytes.
        let images = 2 * IMAGE_SIZE as u64;
        let ideal = |saved: u64| (1 + (saved + images).div_ceil(BYTES_PER_TICK)) as f64;
        let (ticks, saved) = stops.iter().max().copied().unwrap_or_default();
        let least = stops.iter().min().map(|(ticks, _)| ticks);
        let detail = json!({ "ticks": ticks, "saved": saved, "images": images, "least": least });
        // CAST: far below 2^53.
        report.detailed(name, ticks as f64 / ideal(saved), detail)?;
    }
    Ok(())
}

/// A program most of whose registers live.
fn all_registers() -> Result<String> {
    let registers = 5..60;
    let mut text = ".threads 1024\n.arg rounds\narg r4, rounds\n".to_owned();
    for register in registers.clone() {
        writeln!(text, "sr r{register}, flat")?;
    }
    text += "round:\nsub r4, r4, 1\nbnz r4, round\n";
    for register in registers.skip(1) {
        writeln!(text, "add r5, r5, r{register}")?;
    }
    // Nobody looks at the sum; but it could be.
    text += ".arg64 sum\narg r2, sum\narg r3, sum.hi\nst.32 [r2], r5\nexit\n";
    Ok(text)
}

/// Copies so many bytes in VRAM.
fn copy(bytes: u64) -> Command {
    Command::Copy {
        source: LARGE_VA,
        destination: LARGE_VA + COPIED,
        bytes,
    }
}

/// Has another context write a word; what the clock shows when it has.
fn first_command(gpu: &mut Gpu) -> Result<u64> {
    let word = DATA + WORDS;
    gpu.set_vram64(word, 0);
    let signal = Command::Signal {
        address: DATA_VA + WORDS,
        value: 1,
    };
    let (mut exec, _) = gpu.exec(COPY, &[signal]);
    if let Command::Exec {
        context,
        fence,
        interrupt,
        ..
    } = &mut exec
    {
        (*context, *fence, *interrupt) = (vram::BASE + OTHER, None, false);
    }
    gpu.start(COMPUTE, &[exec]);
    let mut before = None;
    loop {
        let now = advance(gpu, 1)?;
        if gpu.vram64(word) == 1 {
            finish(gpu)?;
            return Ok(now);
        }
        ensure!(before != Some(now), "it did not work: {:?}", gpu.fault(0));
        before = Some(now);
    }
}

/// Waves that compute for a while, come together, and begin again.
const SEGMENTS: &str = ".threads 64
.arg segments
    arg     r2, segments
segment:
    mov     r1, 200
round:
    sub     r1, r1, 1
    bnz     r1, round
    bar
    sub     r2, r2, 1
    bnz     r2, segment
    exit
";

/// Computes a pixel for as long as [`SEGMENTS`] do between two barriers.
const PIXEL: &str = ".arg rounds
    arg     r20, rounds
round:
    sub     r20, r20, 1
    bnz     r20, round
    add     r0, r2, r3
    exit
";

/// Draws so many triangles, each of so many rows that are waves.
fn draw(gpu: &Gpu, triangles: u32, rows: u32) -> Result<Command> {
    const WIDTH: u16 = 32;
    let program = assemble(PIXEL)?;
    gpu.set_vram(DATA + PROGRAM, &program.bytes());
    // In 256ths of a pixel: twice as wide, and twice as high, as what is left of it.
    let corners = [
        [0, 0],
        [0x100 * 2 * u32::from(WIDTH), 0],
        [0, 0x100 * 2 * rows],
    ];
    let vertices = corners
        .as_flattened()
        .iter()
        .flat_map(|at| at.to_le_bytes());
    gpu.set_vram(DATA + VERTICES, &vertices.collect::<Vec<_>>());
    for triangle in 0..triangles {
        let indices = [0_u32, 1, 2].map(u32::to_le_bytes);
        let at = VERTICES + 0x100 + 12 * u64::from(triangle);
        gpu.set_vram(DATA + at, indices.as_flattened());
    }
    let draw = Draw {
        vertices: DATA_VA + VERTICES,
        vertex_count: 3,
        triangles,
        indices: Some(DATA_VA + VERTICES + 0x100),
        target: DATA_VA + TARGET,
        pitch: 4 * u32::from(WIDTH),
        scissor: Rectangle {
            left: 0,
            top: 0,
            right: WIDTH,
            bottom: rows.try_into()?,
        },
        ..Draw::default()
    };
    Ok(Command::Draw(program.draw(
        DATA_VA + PROGRAM,
        draw,
        |_| Some(200),
    )?))
}

/// Waves of [`SEGMENTS`].
fn compute(gpu: &Gpu, groups: u32, segments: u32) -> Result<Command> {
    dispatch(gpu, &assemble(SEGMENTS)?, groups, |_| segments.into())
}

/// The longest latency, and the most that is saved, by what the engine is at and at which level it
/// stops, if what lives is saved, or as much as there can be.
fn states(report: &mut Report) -> Result<()> {
    let gpu = device(stops_at(Level::Instruction));
    let asked = advance(&gpu, 100)?;
    gpu.ask_to_preempt(COMPUTE, 1);
    let idle = finish(&gpu)? - asked;
    report.ratio("stop.idle.ticks", idle, 1)?;
    report.ratio("stop.idle.bytes", gpu.counter(Counter::SavedBytes), 1)?;
    let draws = |gpu: &Gpu| Ok(vec![draw(gpu, 8, 8)?; 4]);
    let computes = |gpu: &Gpu| Ok(vec![compute(gpu, 4, 4)?; 4]);
    let copies = |_: &Gpu| Ok(vec![copy(COPIED)]);
    type Work<'a> = &'a dyn Fn(&Gpu) -> Result<Vec<Command>>;
    let cases: [(&str, Level, Work<'_>); 9] = [
        ("stop.copy.instruction", Level::Instruction, &copies),
        ("stop.draw.primitive", Level::Dispatch, &draws),
        ("stop.draw.triangle", Level::ThreadGroup, &draws),
        ("stop.draw.pixel", Level::Thread, &draws),
        ("stop.draw.instruction", Level::Instruction, &draws),
        ("stop.compute.dispatch", Level::Dispatch, &computes),
        ("stop.compute.thread_group", Level::ThreadGroup, &computes),
        ("stop.compute.thread", Level::Thread, &computes),
        ("stop.compute.instruction", Level::Instruction, &computes),
    ];
    for (name, level, work) in cases {
        for full in [false, true] {
            let mut gpu = device(Preemption {
                full,
                ..stops_at(level)
            });
            let commands = work(&gpu)?;
            let packet = gpu.exec(COMPUTE, &commands);
            let mut most = [0; 2];
            stopped(&mut gpu, &[packet], STOPS, |_, stop| {
                let of = [stop.answered - stop.asked, stop.saved];
                most = [most[0].max(of[0]), most[1].max(of[1])];
                Ok(())
            })?;
            for (what, of) in [("ticks", most[0]), ("bytes", most[1])] {
                let off = if full { ".off" } else { "" };
                report.ratio(&format!("{name}.{what}{off}"), of, 1)?;
            }
        }
    }
    Ok(())
}

/// How the longest latency grows with work of which the level promises that its length does not
/// matter.
fn honesty(report: &mut Report) -> Result<()> {
    // Which is longer: packets, dispatches in each, groups in each, segments in each.
    for (name, level, longer) in [
        ("honesty.dma_buffer", Level::DmaBuffer, 0),
        ("honesty.dispatch", Level::Dispatch, 1),
        ("honesty.thread_group", Level::ThreadGroup, 2),
        ("honesty.thread", Level::Thread, 3),
        ("honesty.instruction", Level::Instruction, 3),
        ("honesty.none", Level::None, 3),
    ] {
        slope(report, name, level, |gpu, scale| {
            let mut counts = [1; 4];
            counts[longer] = scale;
            let [packets, dispatches, groups, segments] = counts;
            let commands = vec![compute(gpu, groups, segments)?; dispatches as usize];
            Ok((0..packets).map(|_| gpu.exec(COMPUTE, &commands)).collect())
        })?;
    }
    // Likewise: commands, triangles of each, rows of each.
    for (name, level, longer) in [
        ("honesty.draw.primitive", Level::Dispatch, 0),
        ("honesty.draw.triangle", Level::ThreadGroup, 1),
        ("honesty.draw.pixel", Level::Thread, 2),
        ("honesty.draw.instruction", Level::Instruction, 2),
    ] {
        slope(report, name, level, |gpu, scale| {
            let mut counts = [1; 3];
            counts[longer] = scale;
            let [commands, triangles, rows] = counts;
            let commands = vec![draw(gpu, triangles, rows)?; commands as usize];
            Ok(vec![gpu.exec(COMPUTE, &commands)])
        })?;
    }
    slope(report, "honesty.copy", Level::Instruction, |gpu, scale| {
        let part = COPIED / u64::from(SCALES[2]);
        Ok(vec![gpu.exec(COMPUTE, &[copy(u64::from(scale) * part)])])
    })
}

/// Fills a row with ticks of the longest latency for each tick of the work.
fn slope(
    report: &mut Report,
    name: &str,
    level: Level,
    work: impl Fn(&mut Gpu, u32) -> Result<Vec<Packet>>,
) -> Result<()> {
    let mut points = Vec::new();
    for scale in SCALES {
        let fresh = || device(stops_at(level));
        let mut gpu = fresh();
        let packets = work(&mut gpu, scale)?;
        let execs: Vec<Command> = packets.iter().map(|(exec, _)| *exec).collect();
        gpu.start(COMPUTE, &execs);
        let length = finish(&gpu)?;
        let mut gpu = fresh();
        let packets = work(&mut gpu, scale)?;
        let mut most = 0;
        stopped(&mut gpu, &packets, ASKED, |_, stop| {
            most = most.max(stop.answered - stop.asked);
            Ok(())
        })?;
        // CAST: far below 2^53.
        points.push((length as f64, most as f64));
    }
    let line = Line::through(&points).context("too few points")?;
    report.detailed(name, line.slope, json!({ "points": points }))
}

/// How often the same is done.
const RUNS: usize = 4;
/// Threads of two engines count the same words up, and compute with what they find there.
const RACE: &str = ".threads 80
.arg64  words
.arg64  results
    arg     r2, words
    arg     r3, words.hi
    arg     r4, results
    arg     r5, results.hi
    sr      r6, flat
    lea     r4, r4, r6, 2
    mov     r8, 1
    mov     r9, 90
again:
    atom.add r10, [r2], r8
    mul     r11, r11, 77
    add     r11, r11, r10
    sub     r9, r9, 1
    bnz     r9, again
    st.32   [r4], r11
    exit
";

/// What can be told of a run when it is over.
struct Run {
    counters: Vec<u64>,
    ticks: [u64; 2],
    vram: Vec<u8>,
}

/// Two engines race, and one of them is stopped `at` that time, and goes on.
fn race(at: u64) -> Result<Run> {
    let mut gpu = device(stops_at(Level::Instruction));
    let program = assemble(RACE)?;
    let mut start = |engine: EngineIndex| -> Result<Command> {
        let results = DATA_VA + WORDS + 0x1000 * u64::from(engine.get() + 1);
        let command = dispatch(&gpu, &program, 3, |name| match name {
            "words" => DATA_VA + WORDS,
            _ => results,
        });
        let (exec, _) = gpu.exec(engine, &[command?]);
        gpu.push(engine, &[exec]);
        Ok(exec)
    };
    let [stopped, _] = [start(COMPUTE)?, start(COPY)?];
    gpu.doorbell(COMPUTE);
    gpu.doorbell(COPY);
    advance(&gpu, at)?;
    gpu.ask_to_preempt(COMPUTE, 1);
    // As long as an answer takes at most.
    advance(&gpu, 1000)?;
    ensure!(
        gpu.preempted(COMPUTE).cause == Cause::Within,
        "it was not stopped"
    );
    gpu.start(COMPUTE, &[resumed(stopped)]);
    finish(&gpu)?;
    Ok(Run {
        counters: Counter::ALL
            .iter()
            .map(|&(counter, _)| gpu.counter(counter))
            .collect(),
        ticks: [gpu.ticks(COMPUTE), gpu.ticks(COPY)],
        vram: gpu.vram_bytes(0, usize::try_from(VRAM_BYTES)?),
    })
}

/// How many of both differ.
fn differing<T: PartialEq>(first: &[T], second: &[T]) -> u64 {
    // CAST: some millions at most.
    first
        .iter()
        .zip(second)
        .filter(|(one, other)| one != other)
        .count() as u64
}

/// How much of one run differs in others.
fn determinism(report: &mut Report) -> Result<()> {
    let first = race(2000)?;
    let (mut counters, mut bytes) = (0, 0);
    for _ in 1..RUNS {
        let run = race(2000)?;
        counters += differing(&first.counters, &run.counters) + differing(&first.ticks, &run.ticks);
        bytes += differing(&first.vram, &run.vram);
    }
    // And not because nothing depends on the time.
    let other = race(3000)?;
    ensure!(differing(&first.vram, &other.vram) > 0, "there was no race");
    report.ratio("determinism.counters", counters, 1)?;
    report.ratio("determinism.bytes", bytes, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_alone_is_longer_the_longer_it_is() {
        let mut report = Report::default();
        measure(&mut report).expect("rows");
        let json = report.json();
        let rows = json["rows"].as_array().expect("rows");
        let value = |name: &str| {
            let row = rows.iter().find(|row| row["name"] == name);
            row.and_then(|row| row["value"].as_f64()).expect("a value")
        };
        for row in rows.iter().filter(|row| row["measure"] == 3) {
            let expected = if row["name"] == "honesty.none" {
                1.0
            } else {
                0.0
            };
            assert_eq!(row["value"], expected, "{row}");
        }
        for name in ["preemption.latency", "preemption.latency.values"] {
            assert!((1.0..=1.25).contains(&value(name)), "{}", value(name));
        }
        assert_eq!(value("determinism.counters"), 0.0);
        for row in rows.iter().filter(|row| row["measure"] == 1) {
            println!("{} {}", row["name"], row["value"]);
        }
        // Where nothing is saved, there is nothing more to be.
        for (state, levels) in [
            ("copy", &["instruction"][..]),
            ("draw", &["triangle", "pixel", "instruction"]),
            ("compute", &["thread_group", "thread", "instruction"]),
        ] {
            for level in levels {
                for what in ["ticks", "bytes"] {
                    let name = format!("stop.{state}.{level}.{what}");
                    let full = value(&format!("{name}.off"));
                    assert!(value(&name) < full, "{name}: {full} with all");
                }
            }
        }
    }
}
