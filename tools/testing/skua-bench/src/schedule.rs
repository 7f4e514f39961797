// SPDX-License-Identifier: MIT

//! Measures 1, 5 and 6: who has the compute engine, and what it costs to give it to somebody else.
//!
//! All in ticks of the engine, of which a slow host or CPU makes no more, and bytes.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context as _, Result};
use libskua::{
    spec::isa::REGISTERS, Access, Bo, BoFlags, CommandBuffer, Context, Deadline, Device, Engine,
    EngineKind, Mapping, Syncobj, Vm,
};
use serde_json::json;
use skua_asm::Program;
use skua_filter::filter::Filter;

use crate::report::Report;
use crate::rig::{Rig, MANY};
use crate::sample::Sample;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Where the GPU sees words that CPU and GPU write, a program, and a buffer in VRAM.
const WORDS: u64 = 0x1000_0000;
const PROGRAM: u64 = WORDS + PAGE;
const TARGET: u64 = 0x2000_0000;
/// Where command buffers are, each in a page.
const COMMANDS: u64 = 0x3000_0000;
/// Bytes of the buffer in VRAM.
const TARGET_SIZE: u64 = 8 << 20;
/// Bytes that FILL writes in a tick.
const PER_TICK: u64 = 64;

/// Ticks of the packets of each of the equal contexts.
const LENGTHS: [u64; 4] = [2_000, 10_000, 40_000, 80_000];
/// Ticks that all of them together have used when their shares are read: a turn, which one may be
/// ahead by, is a hundredth of a share.
const USED: u64 = 100_000_000;

/// Has a word that it has begun, and ends when another one is not 0.
const HOLD: &str = "
.arg64  words
    arg     r2, words
    arg     r3, words.hi
    mov     r4, 1
    st.32   [r2 + 8], r4
held:
    ld.32   r4, [r2]
    bz      r4, held
    exit
";

/// Ticks of the FILL of an urgent job.
const URGENT: u64 = 65_536;
/// How often it is submitted: odd, so that there is a middle one.
const TIMES: usize = 101;
/// Rounds of a wave of [`HOG`], of some 70 ticks each, when the engine is wanted; of several waves
/// together.
const ROUNDS: u32 = 14_000;
/// Threads of a wave.
const WAVE: u32 = 32;
/// Threads of a group with about as much state as the largest of a filter, the columns' half of the
/// blur.
const LARGE: u32 = 512;
/// Instructions within which an engine looks whether it is to stop (manual section 11).
const LOOKS_WITHIN: u64 = 4096;
/// Says that it has begun, as [`HOLD`]; when the first word is not 0 it works for so many rounds,
/// and counts those before the urgent job has ended. Thirteen registers live all the time.
const HOG: &str = "
.arg64  words
.arg    rounds
    arg     r2, words
    arg     r3, words.hi
    arg     r4, rounds
    mov     r5, 1
    st.32   [r2 + 8], r5
    mov     r5, 0
    mov     r7, 7
    mov     r8, 8
    mov     r9, 9
    mov     r10, 10
    mov     r11, 11
    mov     r12, 12
    mov     r13, 13
    mov     r14, 14
held:
    ld.32   r6, [r2]
    bz      r6, held
round:
    mov     r6, 32
work:
    sub     r6, r6, 1
    bnz     r6, work
    ld.32   r6, [r2 + 16]
    sltu    r6, r6, 1
    add     r5, r5, r6
    sub     r4, r4, 1
    bnz     r4, round
    st.32   [r2 + 24], r5
    add     r7, r7, r8
    add     r9, r9, r10
    add     r11, r11, r12
    add     r13, r13, r14
    add     r7, r7, r9
    add     r11, r11, r13
    add     r7, r7, r11
    st.32   [r2 + 28], r7
    exit
";

/// How often a program is stopped within, and how often that is tried at most.
const STOPS: u64 = 64;
const TRIES: usize = 10_000;
/// The largest group, each thread of which computes with two values.
pub(crate) const WIDE: &str = "
.threads 1024
.arg    rounds
    arg     r4, rounds
    sr      r5, flat
round:
    mul     r5, r5, 1664525
    add     r5, r5, 1013904223
    sub     r4, r4, 1
    bnz     r4, round
    exit
";
/// Columns and rows of what is blurred, and how far.
const COLUMNS: u32 = 1024;
const ROWS: u32 = 1024;
const RADIUS: u32 = 16;

/// Fills the rows of measures 1, 5 and 6.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &Rig, report: &mut Report) -> Result<()> {
    saving(rig, report).context("saving")?;
    urgency(rig, report).context("urgency")?;
    fairness(rig, report).context("fairness")
}

/// An address space of the compute engine's.
pub(crate) struct Space<'a> {
    rig: &'a Rig,
    vm: Vm,
    engine: Engine,
    words: Mapping,
    program: Mapping,
    /// What all submissions that somebody waits for signal, each the next point.
    timeline: Syncobj,
    point: u64,
    /// How many there are.
    buffers: u64,
}

impl<'a> Space<'a> {
    /// Of the client that has opened `device`.
    pub(crate) fn new(rig: &'a Rig, device: &Device) -> Result<Self> {
        let vm = Vm::create(device)?;
        let shared = |va| -> Result<Mapping> {
            let bo = Bo::create(device, PAGE, device.system(), BoFlags::CPU_ACCESS)?;
            vm.map(&bo, va, Access::ReadWrite)?;
            Ok(bo.map()?)
        };
        let (words, program) = (shared(WORDS)?, shared(PROGRAM)?);
        let target = Bo::create(device, TARGET_SIZE, device.vram(), BoFlags::empty())?;
        vm.map(&target, TARGET, Access::ReadWrite)?;
        let engine = device.engine(EngineKind::Compute);
        Ok(Self {
            engine: engine.context("there is no compute engine")?,
            words,
            program,
            timeline: Syncobj::create(device)?,
            rig,
            vm,
            point: 0,
            buffers: 0,
        })
    }

    /// A context of this priority that has worked: all that it needs is there.
    pub(crate) fn context(&mut self, priority: i32) -> Result<Context> {
        let context = Context::create(&self.vm, self.engine)?;
        context.set_priority(priority)?;
        let mut commands = self.commands()?;
        context.run(commands.nop(2)?, Deadline::NEVER)?;
        Ok(context)
    }

    /// A command buffer.
    pub(crate) fn commands(&mut self) -> Result<CommandBuffer> {
        self.buffers += 1;
        let va = COMMANDS + self.buffers * PAGE;
        Ok(CommandBuffer::create(&self.vm, va, PAGE)?)
    }

    /// Commands that run a program in so many groups; the one before must have ended.
    pub(crate) fn dispatch(
        &mut self,
        program: &Program,
        groups: [u32; 3],
        value: impl Fn(&str) -> Option<u64>,
    ) -> Result<CommandBuffer> {
        self.program.write_bytes(0, &program.bytes())?;
        let dispatch = program.dispatch(PROGRAM, groups, value)?;
        let mut commands = self.commands()?;
        commands.flush_cache()?.dispatch(&dispatch)?;
        Ok(commands)
    }

    /// Commands that take so many ticks.
    pub(crate) fn fills(&mut self, ticks: u64) -> Result<CommandBuffer> {
        let mut commands = self.commands()?;
        let mut left = PER_TICK * ticks;
        while left > 0 {
            let bytes = left.min(TARGET_SIZE);
            commands.fill(TARGET, bytes, 1)?;
            left -= bytes;
        }
        Ok(commands)
    }

    /// A program of priority 7 that has the engine until it is let go.
    pub(crate) fn hold(&mut self) -> Result<Held> {
        let hold = self.dispatch(&assemble(HOLD)?, [1; 3], |_| Some(WORDS))?;
        let context = self.context(7)?;
        self.set(0, 0)?;
        let before = context.state()?.ticks;
        let point = self.start(&context, &hold)?;
        while self.words.read::<u32>(8)? == 0 {}
        Ok(Held {
            context,
            _commands: hold,
            before,
            point,
        })
    }

    /// Lets it go; the ticks that it had.
    pub(crate) fn release(&self, held: &Held) -> Result<u64> {
        self.words.write(0, 1_u32)?;
        self.wait(held.point)?;
        Ok(held.context.state()?.ticks - held.before)
    }

    /// Submits commands; the point that is signalled when they have ended.
    pub(crate) fn start(&mut self, context: &Context, commands: &CommandBuffer) -> Result<u64> {
        self.point += 1;
        let submission = context.submission().commands(commands);
        submission.signal(&self.timeline, self.point).submit()?;
        Ok(self.point)
    }

    /// The same, which begins when a point is signalled.
    pub(crate) fn start_behind(
        &mut self,
        context: &Context,
        commands: &CommandBuffer,
        point: u64,
    ) -> Result<u64> {
        self.point += 1;
        let submission = context.submission().commands(commands);
        let submission = submission.wait(&self.timeline, point);
        submission.signal(&self.timeline, self.point).submit()?;
        Ok(self.point)
    }

    pub(crate) fn wait(&self, point: u64) -> Result<()> {
        Ok(self.timeline.wait_done(point, Deadline::NEVER)?)
    }

    /// Sets the words that let a program go on and that say that the job has ended, and clears the
    /// one that says that it has begun.
    fn set(&self, go: u32, ended: u32) -> Result<()> {
        for (at, value) in [(0, go), (8, 0), (16, ended)] {
            self.words.write(at, value)?;
        }
        Ok(())
    }

    /// Ticks of the engine.
    pub(crate) fn ticks(&self) -> Result<u64> {
        self.rig.counters.ticks_of("compute")
    }
}

/// A program that has the engine.
pub(crate) struct Held {
    context: Context,
    _commands: CommandBuffer,
    /// Ticks that its context had before.
    before: u64,
    /// Is signalled when it has ended.
    pub(crate) point: u64,
}

pub(crate) fn assemble(text: &str) -> Result<Program> {
    skua_asm::assemble(text).map_err(|errors| anyhow::anyhow!("{errors:?}"))
}

/// Bytes that are saved of programs that are stopped again and again.
fn saving(rig: &Rig, report: &mut Report) -> Result<()> {
    let info = rig.device.info();
    let full = state(info.max_group_threads, info.max_shared_bytes);
    let wide = assemble(WIDE)?;
    let bytes = saved(rig, &wide, [1024, 1, 1], |_| Some(100))?;
    report.ratio("preemption.bytes", bytes, STOPS * full)?;
    let passes = Filter::Blur.stages().iter().flat_map(|stage| stage.passes);
    let source = passes.map(|pass| pass.source).next();
    let blur = source.context("no program")?.assemble();
    let blur = blur.map_err(anyhow::Error::msg)?;
    let [across, down, _] = blur.threads();
    let bytes = saved(rig, &blur, [COLUMNS / across, ROWS / down, 1], |name| {
        Some(match name {
            "source" => TARGET,
            "target" => TARGET + TARGET_SIZE / 2,
            "weights" => WORDS,
            "width" => COLUMNS.into(),
            "rows" => ROWS.into(),
            "radius" => RADIUS.into(),
            _ => return None,
        })
    })?;
    report.ratio("preemption.filter.bytes", bytes, STOPS * full)?;
    let own = state(across * down, blur.shared_bytes());
    report.ratio("preemption.filter.live", bytes, STOPS * own)
}

/// Bytes of all registers and of the shared memory of a group.
fn state(threads: u32, shared: u32) -> u64 {
    u64::from(threads) * 4 * u64::from(REGISTERS) + u64::from(shared)
}

/// Bytes that [`STOPS`] stops within a program save.
fn saved(
    rig: &Rig,
    program: &Program,
    groups: [u32; 3],
    value: impl Fn(&str) -> Option<u64>,
) -> Result<u64> {
    let mut space = Space::new(rig, &rig.device)?;
    let long = space.dispatch(program, groups, value)?;
    let (low, high) = (space.context(-7)?, space.context(7)?);
    let mut short = space.commands()?;
    short.nop(2)?;
    let mut running = space.start(&low, &long)?;
    let (mut stops, mut bytes) = (0, 0);
    for _ in 0..TRIES {
        if space.timeline.is_signaled(running)? {
            running = space.start(&low, &long)?;
        }
        let before = rig.counters.read()?;
        high.run(&short, Deadline::NEVER)?;
        let grown = rig.counters.read()?.since(&before);
        // Where nothing was saved, it had not begun, or had ended.
        let saved = grown.get("saved_bytes")?;
        if saved > 0 && grown.get("preempt")? == 1 {
            (stops, bytes) = (stops + 1, bytes + saved);
        }
        if stops == STOPS {
            space.wait(running)?;
            return Ok(bytes);
        }
    }
    bail!("it was stopped {stops} times only");
}

/// A short job of high priority, alone, and while work of low priority has the engine.
fn urgency(rig: &Rig, report: &mut Report) -> Result<()> {
    let mut space = Space::new(rig, &rig.device)?;
    let mut hog = Hog::new(&mut space, 1)?;
    let job = space.urgent(URGENT)?;
    let high = space.context(7)?;
    let alone = space.alone(&high, &job, TIMES)?;
    let with = hog.disturbs(&mut space, &high, &job, TIMES)?;
    ensure!(rig.counters.file("preemption")?.trim() == "0", "it was off");
    let without = hog.disturbs(&mut space, &high, &job, TIMES);
    rig.counters.file("preemption")?;
    let mut hog = Hog::new(&mut space, LARGE)?;
    let large = hog.disturbs(&mut space, &high, &job, TIMES)?;
    let (alone_last, alone_most) = last(&alone)?;
    let (with_last, with_most) = last(&with)?;
    let (large_last, _) = last(&large)?;
    report.sample("urgent.alone", Sample::of(alone))?;
    report.ratio("urgent.alone.p99", alone_last, 1)?;
    report.ratio("urgent.alone.max", alone_most, 1)?;
    report.sample("urgent.hog", Sample::of(with))?;
    report.ratio("urgent.hog.p99", with_last, 1)?;
    report.ratio("urgent.hog.max", with_most, 1)?;
    report.ratio("urgent.ratio", with_last, alone_last)?;
    report.sample("urgent.large", Sample::of(large))?;
    report.ratio("urgent.large.p99", large_last, 1)?;
    report.ratio("urgent.large.ratio", large_last, alone_last)?;
    report.sample("urgent.unpreempted", Sample::of(without?))
}

/// The 99th percentile, and the most.
fn last(ticks: &[u64]) -> Result<(u64, u64)> {
    let mut ticks = ticks.to_vec();
    ticks.sort_unstable();
    let last = ticks.get((ticks.len() * 99).div_ceil(100).saturating_sub(1));
    let both = last.copied().zip(ticks.last().copied());
    both.context("no repetitions")
}

impl Space<'_> {
    /// A job of so many ticks, which says that it has ended.
    pub(crate) fn urgent(&mut self, ticks: u64) -> Result<CommandBuffer> {
        let mut job = self.fills(ticks)?;
        job.signal(WORDS + 16, 1)?;
        Ok(job)
    }

    /// Ticks of the engine for a job, each time.
    pub(crate) fn alone(
        &self,
        context: &Context,
        job: &CommandBuffer,
        times: usize,
    ) -> Result<Vec<u64>> {
        let once = |_| {
            let before = self.ticks()?;
            context.run(job, Deadline::NEVER)?;
            Ok(self.ticks()? - before)
        };
        (0..times).map(once).collect()
    }
}

/// Work of priority -7 that takes long.
pub(crate) struct Hog {
    context: Context,
    commands: CommandBuffer,
    /// Rounds of each wave.
    rounds: u32,
    /// Ticks and instructions of it, undisturbed.
    speed: (u64, u64),
}

impl Hog {
    /// A group of so many threads.
    pub(crate) fn new(space: &mut Space<'_>, threads: u32) -> Result<Self> {
        let wanted = ROUNDS / threads.div_ceil(WAVE);
        let value = |name: &str| {
            Some(if name == "words" {
                WORDS
            } else {
                wanted.into()
            })
        };
        let program = assemble(&format!(".threads {threads}\n{HOG}"))?;
        let commands = space.dispatch(&program, [1; 3], value)?;
        let context = space.context(-7)?;
        space.set(1, 0)?;
        let before = (context.state()?.ticks, space.rig.counters.read()?);
        context.run(&commands, Deadline::NEVER)?;
        let ticks = context.state()?.ticks - before.0;
        let grown = space.rig.counters.read()?.since(&before.1);
        let rounds = space.words.read::<u32>(24)?;
        ensure!(rounds == wanted, "it counts otherwise: {rounds}");
        Ok(Self {
            context,
            commands,
            rounds,
            speed: (ticks, grown.get("instruction")?),
        })
    }

    /// Ticks of the engine for a job, each time, and what the hog keeps it waiting for, at most.
    pub(crate) fn disturbs(
        &mut self,
        space: &mut Space<'_>,
        context: &Context,
        job: &CommandBuffer,
        times: usize,
    ) -> Result<Vec<u64>> {
        let speed = self.speed;
        let mut all = Vec::new();
        for _ in 0..times {
            space.set(0, 0)?;
            let before = space.ticks()? - self.context.state()?.ticks;
            let long = space.start(&self.context, &self.commands)?;
            while space.words.read::<u32>(8)? == 0 {}
            let urgent = space.start(context, job)?;
            // The device answers in order: it was told of the job before.
            space.rig.counters.read()?;
            space.words.write(0, 1_u32)?;
            space.wait(urgent)?;
            space.wait(long)?;
            let others = space.ticks()? - self.context.state()?.ticks - before;
            let late = u64::from(space.words.read::<u32>(24)?) * speed.0 / u64::from(self.rounds);
            // Of a request that came before it answered the engine may have heard up to so much
            // later.
            let heard = (LOOKS_WITHIN * speed.0).div_ceil(speed.1);
            all.push(others + late.max(heard));
        }
        Ok(all)
    }
}

/// Contexts of equal priority have a backlog each, of packets of different lengths.
fn fairness(rig: &Rig, report: &mut Report) -> Result<()> {
    let mut space = Space::new(rig, &rig.device)?;
    let equals = LENGTHS.map(|ticks| Contender::new(&mut space, ticks));
    let equals = equals.into_iter().collect::<Result<Vec<_>>>()?;
    let used = contest(&mut space, &equals)?;
    let (jain, error) = shares(&used);
    let detail = json!({ "packets": LENGTHS, "ticks": used });
    report.detailed("fairness.jain", jain, detail)?;
    report.detailed("fairness.share_error", error, json!(null))
}

/// Who has a backlog of equal packets.
pub(crate) struct Contender {
    context: Context,
    commands: CommandBuffer,
    /// Ticks of the engine that a packet takes.
    ticks: u64,
}

impl Contender {
    /// A context of priority 0, with packets of so many ticks.
    pub(crate) fn new(space: &mut Space<'_>, ticks: u64) -> Result<Self> {
        Ok(Self {
            context: space.context(0)?,
            commands: space.fills(ticks)?,
            ticks,
        })
    }
}

/// Ticks that each has used when all together have used [`USED`], and go on.
pub(crate) fn contest(space: &mut Space<'_>, equals: &[Contender]) -> Result<Vec<u64>> {
    let ticks = |equal: &Contender| Ok(equal.context.state()?.ticks);
    let before: Vec<u64> = equals.iter().map(ticks).collect::<Result<_>>()?;
    // More than a share, so that nobody runs dry.
    let backlog = USED * 2 / equals.len() as u64;
    // All are ready before any begins.
    let held = space.hold()?;
    for equal in equals {
        for _ in 0..(backlog / equal.ticks).div_ceil(MANY as u64) {
            let submission = equal.context.submission();
            let submission = (0..MANY).fold(submission, |submission, _| {
                submission.commands(&equal.commands)
            });
            submission.submit()?;
        }
    }
    space.release(&held)?;
    let used = loop {
        let used = |(equal, before)| Ok(ticks(equal)? - before);
        let used: Vec<u64> = equals
            .iter()
            .zip(&before)
            .map(used)
            .collect::<Result<_>>()?;
        if used.iter().sum::<u64>() >= USED {
            break used;
        }
        sleep(Duration::from_millis(1));
    };
    let dry = used.iter().any(|ticks| *ticks > backlog);
    ensure!(!dry, "one had no more work: {used:?}");
    Ok(used)
}

/// Jain's index of these, and by which part of an equal share one differs from that at most.
pub(crate) fn shares(used: &[u64]) -> (f64, f64) {
    // CAST: far below 2^53.
    let used: Vec<f64> = used.iter().map(|ticks| *ticks as f64).collect();
    let (sum, count) = (used.iter().sum::<f64>(), used.len() as f64);
    let squares: f64 = used.iter().map(|ticks| ticks * ticks).sum();
    let errors = used.iter().map(|ticks| (ticks * count / sum - 1.0).abs());
    (sum * sum / (count * squares), errors.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fair_if_they_are_equal() {
        assert_eq!(shares(&[7, 7, 7, 7]), (1.0, 0.0));
        assert_eq!(shares(&[0, 8, 0, 0]), (0.25, 3.0));
        assert_eq!(shares(&[1, 3]), (0.8, 0.5));
    }

    #[test]
    fn programs_assemble() {
        for text in [HOLD, HOG, WIDE] {
            assemble(text).expect("a program");
        }
    }
}
