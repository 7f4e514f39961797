// SPDX-License-Identifier: MIT

//! Measures 7 and 12: what engines do side by side.
//!
//! Their ticks do not tell that; the device clock does, which a device with `--deterministic` keeps
//! and no guest sees. So a guest of its own works for such a device ([`work`]), which records when
//! it did what, and another guest reads the record ([`measure`]).
//!
//! ```text
//!   copy     |mark|##################################################|      |mark|
//!   compute         #### #### ######## ####   ####  its backlog
//!   paging
//! ```

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context as _, Result};
use libskua::{
    Access, Bo, BoFlags, ClientDevice, CommandBuffer, Context, Deadline, Device, EngineKind,
    Residency, Syncobj, Vm,
};
use serde_json::json;
use skua_trace::device::{parse, Record};

use crate::report::Report;
use crate::row::ROWS;

/// The engines, by their places in the record.
const COMPUTE: usize = 0;
const COPY: usize = 1;
const PAGING: usize = 2;
/// Bytes that FILL writes in a tick, and of a page.
const PER_TICK: u64 = 64;
const PAGE: u64 = 4096;
/// Where memory and command buffers are mapped.
const TARGET: u64 = 0x2000_0000;
const COMMANDS: u64 = 0x3000_0000;
const STREAM: u64 = 1 << 40;
/// Bytes of memory that is filled, which takes 131,072 ticks.
const TARGET_SIZE: u64 = 8 << 20;
/// Marks in the record: bytes of a FILL of the copy engine before and behind each load.
const MARKS: [[u64; 2]; 2] = [[64 * 101, 64 * 103], [64 * 107, 64 * 109]];

/// Contexts that have a backlog, and packets of each, of so many ticks.
const CONTEXTS: usize = 4;
const PACKETS: usize = 128;
const SHORT: u64 = 20_000;
/// Ticks of the copy engine's work meanwhile: more than all of these.
const MEANWHILE: u64 = 16_000_000;

/// Bytes of what is streamed, twice as much as there is VRAM, and how much of it is in use at a
/// time.
const CHUNK: u64 = 2 << 20;
const CHUNKS: u64 = 64;
const DEPTH: u64 = 3;
/// Times that work fills its chunk: 4 million ticks. Moving one out and another one in takes 0.3
/// million, but the clock goes on while the host asks for that, which must be over before the work.
const FILLS: u64 = 128;

/// A client.
struct Client {
    device: Device,
    vm: Vm,
    buffers: u64,
}

impl Client {
    fn new() -> Result<Self> {
        let device = Device::open_first()?;
        let vm = Vm::create(&device)?;
        let target = Bo::create(&device, TARGET_SIZE, device.vram(), BoFlags::empty())?;
        vm.map(&target, TARGET, Access::ReadWrite)?;
        Ok(Self {
            device,
            vm,
            buffers: 0,
        })
    }

    fn context(&mut self, kind: EngineKind) -> Result<Context> {
        let engine = self.device.engine(kind).context("an engine is missing")?;
        let context = Context::create(&self.vm, engine)?;
        let mut commands = self.commands()?;
        context.run(commands.nop(2)?, Deadline::NEVER)?;
        Ok(context)
    }

    fn commands(&mut self) -> Result<CommandBuffer> {
        self.buffers += 1;
        let va = COMMANDS + self.buffers * PAGE;
        Ok(CommandBuffer::create(&self.vm, va, PAGE)?)
    }

    /// Leaves a mark in the record.
    fn mark(&mut self, copy: &Context, bytes: u64) -> Result<()> {
        let mut commands = self.commands()?;
        copy.run(commands.fill(TARGET, bytes, 1)?, Deadline::NEVER)?;
        Ok(())
    }
}

/// Works for a device that records.
///
/// # Errors
///
/// If the work cannot be done.
pub fn work() -> Result<()> {
    backlog(MARKS[0]).context("a backlog")?;
    stream(MARKS[1]).context("a stream")
}

/// Contexts of equal priority have a backlog, while the copy engine goes on.
fn backlog([before, behind]: [u64; 2]) -> Result<()> {
    let mut client = Client::new()?;
    let copy = client.context(EngineKind::Copy)?;
    let contexts = (0..CONTEXTS).map(|_| client.context(EngineKind::Compute));
    let contexts = contexts.collect::<Result<Vec<_>>>()?;
    let mut short = client.commands()?;
    short.fill(TARGET, PER_TICK * SHORT, 1)?;
    let mut long = client.commands()?;
    for _ in 0..MEANWHILE * PER_TICK / TARGET_SIZE {
        long.fill(TARGET, TARGET_SIZE, 1)?;
    }
    client.mark(&copy, before)?;
    let done = Syncobj::create(&client.device)?;
    let mut point = 1;
    copy.submission()
        .commands(&long)
        .signal(&done, point)
        .submit()?;
    for context in contexts.iter().cycle().take(CONTEXTS * PACKETS) {
        point += 1;
        context
            .submission()
            .commands(&short)
            .signal(&done, point)
            .submit()?;
    }
    done.wait_done(point, Deadline::NEVER)?;
    client.mark(&copy, behind)
}

/// Work goes through more memory than there is, one chunk after the other, each of which it writes;
/// what comes next is made resident meanwhile, and what it has done is given up.
fn stream([before, behind]: [u64; 2]) -> Result<()> {
    let mut client = Client::new()?;
    let copy = client.context(EngineKind::Copy)?;
    let streaming = ClientDevice::create(&client.device, Residency::Explicit)?;
    let vm = streaming.create_vm()?;
    let engine = client.device.engine(EngineKind::Compute);
    let context = Context::create(&vm, engine.context("there is no compute engine")?)?;
    let placements = client.device.vram();
    let mut chunks = Vec::new();
    for index in 0..CHUNKS {
        let bo = Bo::create(&client.device, CHUNK, placements, BoFlags::empty())?;
        let va = STREAM + index * CHUNK;
        vm.map(&bo, va, Access::ReadWrite)?;
        let mut commands = CommandBuffer::create(&vm, COMMANDS + index * PAGE, PAGE)?;
        for _ in 0..FILLS {
            commands.fill(va, CHUNK, 1)?;
        }
        chunks.push((bo, commands));
    }
    client.mark(&copy, before)?;
    let (there, done) = (
        Syncobj::create(&client.device)?,
        Syncobj::create(&client.device)?,
    );
    for (point, (bo, commands)) in (1..).zip(&chunks) {
        let list = [bo];
        let resident = streaming.make_resident(&list).cannot_trim_further();
        resident.signal(&there, point).submit()?;
        let work = context.submission().wait(&there, point).commands(commands);
        work.signal(&done, point).submit()?;
        if let Some(past) = point.checked_sub(DEPTH).filter(|past| *past > 0) {
            done.wait_done(past, Deadline::NEVER)?;
            let chunk = chunks.get(usize::try_from(past - 1)?);
            streaming.evict(&[&chunk.context("no chunk")?.0])?;
        }
    }
    done.wait_done(CHUNKS, Deadline::NEVER)?;
    client.mark(&copy, behind)
}

/// Fills the rows of measures 7 and 12 from the record that a device has left.
///
/// # Errors
///
/// If it is none, or what is to be in it is not.
pub fn measure(path: &Path, report: &mut Report) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let record = parse(&text)?;
    ensure!(!record.full, "the record is not whole");
    conservation(&record, report).context("a backlog")?;
    overlap(&record, report).context("a stream")
}

/// Says of these rows that there is no record.
///
/// # Errors
///
/// As [`Report::detailed`].
pub fn unmeasured(report: &mut Report) -> Result<()> {
    let rows = ROWS.iter().filter(|row| [7, 12].contains(&row.measure));
    rows.map(|row| row.name)
        .try_for_each(|name| report.unmeasured(name, "(there is no record)"))
}

/// Times of the device clock.
type Interval = (u64, u64);

/// From the end of a mark to the beginning of another.
fn between(record: &Record, [before, behind]: [u64; 2]) -> Result<Interval> {
    let mark = |bytes| {
        let mut events = record.events.iter();
        let end = events.find(|event| event.engine == COPY && event.get("fill") == bytes);
        end.map(|event| event.ns).context("a mark is missing")
    };
    Ok((mark(before)?, mark(behind)?))
}

/// Times at which an engine has worked, and its ticks then; the name of what ended that.
struct Busy<'a> {
    from: u64,
    to: u64,
    ticks: Interval,
    how: &'a str,
}

/// When an engine has worked within these times.
fn busy(record: &Record, engine: usize, (from, to): Interval) -> Vec<Busy<'_>> {
    let mut since = None;
    let mut all = Vec::new();
    for event in record.events.iter().filter(|event| event.engine == engine) {
        match event.name.as_str() {
            "begin" | "go" => since = Some(event),
            "end" | "wait" | "stop" | "fault" | "reset" => {
                if let Some(since) = since.take() {
                    all.push(Busy {
                        from: since.ns,
                        to: event.ns,
                        ticks: (since.ticks, event.ticks),
                        how: &event.name,
                    });
                }
            }
            _ => {}
        }
    }
    all.retain(|busy| busy.from >= from && busy.to <= to);
    all
}

fn length(intervals: impl IntoIterator<Item = Interval>) -> u64 {
    intervals.into_iter().map(|(from, to)| to - from).sum()
}

/// How long both have worked at the same time.
fn common(one: &[Busy<'_>], other: &[Busy<'_>]) -> u64 {
    let both = |one: &Busy<'_>, other: &Busy<'_>| (one.from.max(other.from), one.to.min(other.to));
    let pairs = one
        .iter()
        .flat_map(|one| other.iter().map(move |other| both(one, other)));
    length(pairs.filter(|(from, to)| from < to))
}

/// Whether an engine goes on while there is work for it.
fn conservation(record: &Record, report: &mut Report) -> Result<()> {
    let within = between(record, MARKS[0])?;
    // The clock advances as long as that is at work.
    let meanwhile = busy(record, COPY, within);
    let meanwhile = meanwhile.first().context("the clock has stood")?;
    let work = busy(record, COMPUTE, (meanwhile.from, meanwhile.to));
    ensure!(work.len() > PACKETS, "little was done: {}", work.len());
    // Behind a request to stop the engine waits for the driver; else it never is to.
    let (mut gaps, mut idle, mut stops, mut stopped) = (0, 0, 0, 0);
    for pair in work.windows(2) {
        let [before, behind] = pair else {
            continue;
        };
        let passed = behind.from - before.to;
        let ticks = passed - (behind.ticks.0 - before.ticks.1);
        match before.how {
            "stop" => (stops, stopped) = (stops + 1, stopped + ticks),
            _ => (gaps, idle) = (gaps + u64::from(ticks > 0), idle + ticks),
        }
    }
    let ticks = length(work.iter().map(|busy| busy.ticks));
    report.ratio("conservation.gaps", gaps, 1)?;
    report.ratio("conservation.idle", idle, ticks)?;
    report.ratio("conservation.stopped", stopped, ticks)?;
    report.ratio("conservation.stops", stops, 1)
}

/// How much of moves happens while work goes on.
fn overlap(record: &Record, report: &mut Report) -> Result<()> {
    let within = between(record, MARKS[1])?;
    let (work, moves) = (busy(record, COMPUTE, within), busy(record, PAGING, within));
    let ticks = |busy: &[Busy<'_>]| length(busy.iter().map(|busy| busy.ticks));
    let hidden = common(&work, &moves);
    let detail = json!({
        "hidden": hidden,
        "moves": ticks(&moves),
        "work": ticks(&work),
        "clock": within.1 - within.0,
    });
    ensure!(!moves.is_empty(), "nothing was moved");
    // CAST: far below 2^53.
    report.detailed(
        "overlap.stream",
        hidden as f64 / ticks(&moves) as f64,
        detail,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "# skua-events 1 engines=compute,copy,copy
10 1 10 end packet=1 context=1 asid=1 fill=6464
20 0 20 begin packet=1 context=2 asid=2 resume=0
50 0 50 end packet=1 context=2 asid=2
50 0 50 begin packet=2 context=2 asid=2 resume=0
40 2 10 begin packet=1 context=3 asid=3 resume=0
60 0 60 wait packet=2 context=2 asid=2
70 2 40 end packet=1 context=3 asid=3 out=4096
90 0 60 go packet=2 context=2 asid=2
99 0 69 end packet=2 context=2 asid=2
95 1 20 end packet=2 context=1 asid=1 fill=6592
";

    #[test]
    fn times_are_cut_and_compared() {
        let record = parse(RECORD).expect("a record");
        let within = between(&record, MARKS[0]).expect("marks");
        assert_eq!(within, (10, 95));
        let work = busy(&record, COMPUTE, within);
        let seen: Vec<_> = work
            .iter()
            .map(|busy| (busy.from, busy.to, busy.how))
            .collect();
        assert_eq!(seen, [(20, 50, "end"), (50, 60, "wait")]);
        let moves = busy(&record, PAGING, within);
        assert_eq!(
            moves.iter().map(|busy| busy.ticks).collect::<Vec<_>>(),
            [(10, 40)]
        );
        assert_eq!(common(&work, &moves), 20);
    }
}
