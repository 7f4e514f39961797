// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Preemption (manual section 11): a driver that has an engine stop at any point and submits again
//! what was withdrawn finds memory, time and counters as if nobody had disturbed it.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use skua_asm::{assemble, assemble_with, Program};
use skua_gpu::engine::core::{Core, Outcome, Shown};
use skua_gpu::engine::save::{SAVE_SIZE, STATE_SIZE};
use skua_gpu::memory::Memory;
use skua_gpu::options::Preemption;
use skua_gpu::vram;
use skua_spec::address::{BusAddr, GpuPhys, GpuVa, PAGE_SIZE, VA_BITS};
use skua_spec::command::{Blend, Command, Draw, Rectangle, BYTES_PER_TICK};
use skua_spec::context::{Descriptor, SaveArea, IMAGE_SIZE};
use skua_spec::fault::{Access, Reason, Record, Space};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::number::Asid;
use skua_spec::preemption::{Cause, Header, Level};
use skua_spec::regs;
use skua_spec::status::{self, Counter, EngineState};
use skua_spec::ticks;
use skua_testbed::{
    resumed, Gpu, Stepped, ASID, BUFFER_VA, BUS, COLD, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA,
    DATA_VA, SAVE, SAVE_VA, STATE, STATUS, SYSTEM_BYTES, SYSTEM_FREE,
};

use crate::draw::{self, Point};
use crate::random::{instruction, on_data};
use crate::steps::RACE;

/// The usual save area.
pub(crate) const AREA: SaveArea = SaveArea {
    base: GpuVa(SAVE_VA),
    bytes: SAVE_SIZE,
};
/// Another context's descriptor, without a save area.
const OTHER_CONTEXT: u64 = CONTEXT + 0x1000;
/// Lines of a context's image.
const IMAGE_LINES: u64 = IMAGE_SIZE as u64 / BYTES_PER_TICK;
/// Ticks of loading a context, or of leaving it, once its place was found.
const IMAGE: u64 = IMAGE_LINES * ticks::LINE;
/// What no preemption ends in: more steps than any work of these tests takes.
const MANY: usize = 1_000_000;

pub(crate) fn at_level(compute: Level) -> Preemption {
    Preemption {
        compute,
        ..Preemption::default()
    }
}

/// Commands that draw alone are stopped within.
fn at_graphics(graphics: Level) -> Preemption {
    Preemption {
        graphics,
        compute: Level::DmaBuffer,
        ..Preemption::default()
    }
}

/// Pages that a state of so many bytes lies in.
fn pages_of(state: u64) -> u64 {
    (u64::from(IMAGE_SIZE) + state).div_ceil(PAGE_SIZE)
}

pub(crate) fn words(commands: &[Command]) -> Vec<u32> {
    commands
        .iter()
        .flat_map(|command| command.encode().words().to_vec())
        .collect()
}

/// Numbers that are the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A driver of engine 0: its packets in order, of which the first ones may be in the ring.
struct Driver {
    stepped: Stepped,
    packets: VecDeque<Command>,
    requests: u64,
    /// Packets that were resumed.
    resumed: u64,
    /// 64 bytes of states that were saved, each begun one whole.
    lines: u64,
    /// Pages of the save area that the engine has found, one behind the other.
    pages: u64,
    /// Ticks that resuming takes before there is any progress.
    debt: u64,
    /// Preemptions, by their [`Cause`]'s number.
    causes: [u64; 4],
}

/// What came of a request.
struct Stop {
    cause: Cause,
    /// Ticks from the request to the record, without those for saving and leaving the context.
    ticks: u64,
}

impl Driver {
    /// A process with a save area, and the packets that `commands` makes.
    fn new(
        preemption: Preemption,
        commands: impl FnOnce(&mut Stepped) -> Vec<Vec<Command>>,
    ) -> Self {
        let mut stepped = Stepped::with_preemption(preemption);
        stepped.set_save_area(CONTEXT, Some(AREA));
        let packets = commands(&mut stepped);
        let packets = (0..).zip(packets).map(|(i, commands)| {
            let (exec, _) = stepped.exec_at(i * 0x1000, &words(&commands));
            exec
        });
        let mut driver = Self {
            packets: packets.collect(),
            stepped,
            requests: 0,
            resumed: 0,
            lines: 0,
            pages: 1,
            debt: 0,
            causes: [0; 4],
        };
        driver.submit();
        driver
    }

    fn submit(&mut self) {
        let packets: Vec<Command> = self.packets.iter().copied().collect();
        self.stepped.start(COMPUTE, &packets);
    }

    fn shown(&self) -> Shown {
        self.stepped.cores[0].shown()
    }

    /// Takes note of what has ended.
    fn step(&mut self, budget: u64) -> Outcome {
        let outcome = self.stepped.step(COMPUTE, budget);
        if let Outcome::Completed { .. } = outcome {
            let Some(Command::Exec {
                fence: Some(fence), ..
            }) = self.packets.pop_front()
            else {
                panic!("nothing was submitted");
            };
            assert_eq!(self.shown().completed_fence, fence);
        }
        outcome
    }

    /// Has the engine get on for so many ticks, unless it ends or waits before.
    fn advance(&mut self, budget: u64) -> Outcome {
        let target = self.shown().ticks + std::mem::take(&mut self.debt) + budget;
        loop {
            let outcome = self.step(target - self.shown().ticks);
            let ended = matches!(
                outcome,
                Outcome::Idle | Outcome::Waiting | Outcome::Faulted(_)
            );
            if ended || self.shown().ticks == target {
                return outcome;
            }
        }
    }

    /// Asks the engine to stop, waits until it has, and submits again what has not ended.
    fn preempt(&mut self, budget: u64) -> Result<Stop, Outcome> {
        self.requests += 1;
        let (before, left) = (self.shown().ticks, self.count(Counter::ContextLeave));
        self.stepped.cores[0].preempt(self.requests);
        for _ in 0..MANY {
            let (fence, cause) = match self.step(budget) {
                Outcome::Preempted { fence, cause } => (fence, cause),
                outcome @ Outcome::Faulted(_) => return Err(outcome),
                _ => continue,
            };
            let shown = self.shown();
            assert_eq!(fence, self.requests);
            assert_eq!(shown.head, self.stepped.tail(COMPUTE));
            assert_eq!((shown.state, shown.current_fence), (EngineState::Idle, 0));
            assert_eq!(shown.context, 0);
            self.causes[cause as usize] += 1;
            let mut time = (self.count(Counter::ContextLeave) - left) * IMAGE;
            if cause.is_saved() {
                let saved = u64::from(self.stepped.saved(CONTEXT));
                let lines = saved.div_ceil(BYTES_PER_TICK);
                // While a page is written the next one is found.
                time += lines * ticks::LINE;
                if let Some(Command::Exec { resume, .. }) = self.packets.front_mut() {
                    *resume = true;
                }
                self.resumed += 1;
                self.lines += lines;
                self.pages = self.pages.max(pages_of(saved));
                self.debt = ticks::COMMAND;
            }
            self.debt += time;
            if cause == Cause::Idle {
                assert!(self.packets.is_empty());
            }
            self.submit();
            let ticks = shown.ticks - before - time;
            return Ok(Stop { cause, ticks });
        }
        panic!("no record");
    }

    /// Runs to the end, or to a fault.
    fn finish(&mut self) -> Outcome {
        for _ in 0..MANY {
            let outcome = self.step(1000);
            if matches!(outcome, Outcome::Idle | Outcome::Faulted(_)) {
                return outcome;
            }
        }
        panic!("no end");
    }

    /// What programs and transfers may have written.
    fn memory(&self) -> (Vec<u8>, Vec<u8>) {
        let stepped = &self.stepped;
        (
            stepped.vram_bytes(DATA, (SAVE - DATA) as usize),
            stepped.system_bytes(0, SYSTEM_BYTES as usize),
        )
    }

    fn charged(&self) -> u64 {
        self.stepped.vram64(CONTEXT + Descriptor::TICKS)
    }

    fn count(&self, counter: Counter) -> u64 {
        self.stepped.tally.get(counter)
    }

    /// Compares what there is to see at the end with a run that nobody disturbed.
    fn check(&self, whole: &Self) {
        assert!(self.packets.is_empty());
        assert!(self.memory() == whole.memory());
        // Time: EXEC once more, and what saving and restoring takes, of which the context has
        // nothing.
        let execs = self.resumed * ticks::COMMAND;
        // A NOP fills the ring where EXEC does not fit before its end.
        let ring = |driver: &Self| driver.count(Counter::RingCommand);
        let nops = ring(self) - ring(whole) - self.resumed;
        let areas = 2 * self.lines * ticks::LINE;
        let more = |counter| self.count(counter) - whole.count(counter);
        let (loaded, left) = (more(Counter::ContextLoad), more(Counter::ContextLeave));
        let overhead = execs + areas + nops * ticks::COMMAND + (loaded + left) * IMAGE;
        assert_eq!(self.shown().ticks, whole.shown().ticks + overhead);
        assert_eq!(self.charged(), whole.charged());
        let (saved, restored) = (Counter::SavedBytes, Counter::RestoredBytes);
        assert_eq!(self.count(saved), self.count(restored));
        for (counter, name) in Counter::ALL {
            let more = more(counter);
            match counter {
                Counter::SavedBytes
                | Counter::RestoredBytes
                | Counter::PreemptIdle
                | Counter::ContextLoad
                | Counter::ContextLeave
                | Counter::RingCommand => {}
                // Ticks, twice how much is saved, and images.
                Counter::VramWrite => {
                    let images = left * u64::from(IMAGE_SIZE);
                    assert_eq!(more, self.count(saved) + 24 * self.resumed + images);
                }
                // The state, EXEC, its descriptor, programs.
                Counter::VramRead => assert!(more >= self.count(restored) + 88 * self.resumed),
                // Once, but for the first, which the image is in.
                Counter::TlbMiss | Counter::WalkHit => assert_eq!(more, self.pages - 1, "{name}"),
                // Programs that are read anew, and what is known of the save area.
                Counter::TlbHit => {}
                _ => assert_eq!(more, 0, "{name}"),
            }
        }
    }
}

/// Every thread adds one to a counter of its own.
const COUNT: &str = ".threads 48
    .arg64 target
        arg r2, target
        arg r3, target.hi
        sr r4, gid.x
        mul r4, r4, 48
        sr r5, flat
        add r4, r4, r5
        lea r2, r2, r4, 2
        mov r6, 1
        atom.add r7, [r2], r6
        exit";

/// Where the counters are.
const COUNTERS: u64 = DATA + 0x6_0000;
/// Groups of [`COUNT`] in each of its dispatches, and dispatches.
const COUNTED: (u32, u32) = (5, 3);

/// Packets of all commands that can be stopped within, some of whose results tell the order in
/// which waves and groups run.
fn workload(stepped: &mut Stepped) -> Vec<Vec<Command>> {
    let text = RACE.replace("and r14, r0, 31", "and r14, r0, 28");
    let (race, count) = (assemble(&text).unwrap(), assemble(COUNT).unwrap());
    stepped.set_vram(DATA, &race.bytes());
    stepped.set_vram(DATA + 0x1000, &count.bytes());
    for at in (DATA + 0x2000..COUNTERS).step_by(8) {
        stepped.set_vram64(at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    stepped.clear_vram(COUNTERS, 0x1000);
    let dispatch = |program: &Program, at, groups, target| {
        let dispatch = program.dispatch(DATA_VA + at, groups, |_| Some(target));
        Command::Dispatch(dispatch.unwrap())
    };
    let counters = DATA_VA + COUNTERS - DATA;
    let counting = || dispatch(&count, 0x1000, [COUNTED.0, 1, 1], counters);
    let racing = |at| dispatch(&race, 0, [2, 2, 1], DATA_VA + at);
    let copy = |source, destination, bytes| Command::Copy {
        source: DATA_VA + source,
        destination: DATA_VA + destination,
        bytes,
    };
    vec![
        vec![racing(0x1_0000), counting()],
        vec![
            Command::Fill {
                pattern: 0x0403_0201,
                address: DATA_VA + 0x2_0ffc,
                bytes: 0x1004,
            },
            copy(0x2_0001, 0x3_0ff0, 0x1234),
            // Upwards and downwards.
            copy(0x4_0000, 0x4_0003, 0x1345),
            copy(0x4_2003, 0x4_2000, 0x1345),
        ],
        vec![
            counting(),
            Command::FlushCache,
            racing(0x1_4000),
            counting(),
        ],
        vec![],
        vec![
            Command::Copy2d {
                source: DATA_VA + 0x5_0003,
                destination: DATA_VA + 0x5_8ff0,
                bytes: 129,
                source_pitch: 333,
                destination_pitch: 1000,
                rows: 20,
            },
            Command::Signal {
                address: DATA_VA + 0x5_f000,
                value: 7,
            },
        ],
    ]
}

/// Work that is asked to stop again and again, after at most `most` ticks each time, until its end.
fn disturbed(
    preemption: Preemption,
    work: impl FnOnce(&mut Stepped) -> Vec<Vec<Command>>,
    seed: u64,
    most: u64,
) -> Driver {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
    let mut driver = Driver::new(preemption, work);
    while !driver.packets.is_empty() {
        driver.advance(1 + random.below(most));
        let budget = 1 + random.below(300);
        driver.preempt(budget).unwrap_or_else(|o| panic!("{o:?}"));
    }
    assert_eq!(driver.finish(), Outcome::Idle);
    driver
}

/// Each thread of [`workload`] was executed as often as it was dispatched.
fn expect_counted(driver: &Driver) {
    for thread in 0..u64::from(COUNTED.0) * 48 {
        let count = driver.stepped.vram32(COUNTERS + thread * 4);
        assert_eq!(count, COUNTED.1, "thread {thread}");
    }
}

/// Each unit of work is done once, whatever the level and wherever the engine is stopped.
#[test]
fn work_that_is_stopped_anywhere_is_done_once() {
    let mut points = 0;
    for (level, name, _) in Level::ALL {
        let undisturbed = whole(at_level(level), workload);
        // Ticks between two requests, at most.
        for (seed, most) in [(1, 100), (2, 200), (3, 3000)] {
            let driver = disturbed(at_level(level), workload, seed, most);
            driver.check(&undisturbed);
            points += driver.requests;
            println!(
                "{name}, {seed}: {} requests, causes {:?}",
                driver.requests, driver.causes
            );
            let saves = level >= Level::Dispatch;
            assert_eq!(driver.causes[Cause::Within as usize] > 0, saves, "{name}");
            expect_counted(&driver);
        }
    }
    assert!(points > 2_000, "{points}");
}

/// A hundred thousand places, of threads and of pixels, in as many ways as there are seeds.
#[test]
fn a_hundred_thousand_stops_lose_nothing_and_do_nothing_twice() {
    const POINTS: u64 = 50_000;
    let [threads, pixels] = [at_level, at_graphics].map(|at| at(Level::Instruction));
    let undisturbed = (whole(threads, workload), whole(pixels, drawings));
    let (mut within, mut runs) = ((0, 0), 0);
    while within.0 < POINTS || within.1 < POINTS {
        runs += 1;
        if within.0 < POINTS {
            let driver = disturbed(threads, workload, runs, 100);
            driver.check(&undisturbed.0);
            expect_counted(&driver);
            within.0 += driver.resumed;
        }
        if within.1 < POINTS {
            let driver = disturbed(pixels, drawings, runs, 20);
            driver.check(&undisturbed.1);
            within.1 += driver.resumed;
        }
    }
    println!("{within:?} stops within work, in {runs} runs");
}

/// Loops with barriers between them.
const SEGMENTS: &str = ".threads 64
    .arg segments
    .arg rounds
        arg r2, segments
    outer:
        arg r1, rounds
    inner:
        sub r1, r1, 1
        bnz r1, inner
        bar
        sub r2, r2, 1
        bnz r2, outer
        exit";

/// Stops work again and again, first when it has gone on for `first` ticks, until it is done: no
/// stop takes longer than a `unit` of the level, of work that is long if there is more of it.
fn expect_stops_within(
    unit: u64,
    mut driver: Driver,
    first: u64,
    (level, scale, total): (Level, u32, u64),
) {
    let mut random = Random(0x1234_5678 + u64::from(scale));
    let (mut most, mut requests) = (0, 0);
    while !driver.packets.is_empty() {
        let budget = 1 + random.below(41);
        driver.advance(if requests == 0 { first } else { budget });
        let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        (most, requests) = (most.max(stop.ticks), requests + 1);
    }
    println!("{level:?}, {scale}: {most} of {unit} ticks, {total} in all, {requests} times");
    assert!(most <= unit, "{level:?}, {scale}: {most} > {unit}");
    if scale > 1 {
        assert!(total > 3 * unit && requests > 3, "{level:?}: {total}");
    }
}

/// From the request to the record it takes a unit of the level at most, however many there are.
#[test]
fn the_level_bounds_the_latency() {
    // Packets, dispatches in each, groups in each, segments in each.
    let work = |[packets, dispatches, groups, segments]: [u32; 4]| {
        move |stepped: &mut Stepped| {
            let program = assemble(SEGMENTS).unwrap();
            stepped.set_vram(DATA, &program.bytes());
            let value = |name: &str| match name {
                "rounds" => Some(30),
                _ => Some(u64::from(segments)),
            };
            let dispatch = program.dispatch(DATA_VA, [groups, 1, 1], value).unwrap();
            let commands = vec![Command::Dispatch(dispatch); dispatches as usize];
            vec![commands; packets as usize]
        }
    };
    let whole = |counts| {
        let mut driver = Driver::new(Preemption::default(), work(counts));
        assert_eq!(driver.finish(), Outcome::Idle);
        driver.shown().ticks
    };
    let levels = [
        (Level::DmaBuffer, [2, 2, 2, 2], 0),
        (Level::Dispatch, [2, 2, 2, 2], 1),
        (Level::ThreadGroup, [2, 2, 2, 2], 2),
        (Level::Thread, [2, 2, 2, 2], 3),
        (Level::Instruction, [1, 1, 1, 4], 3),
    ];
    for (level, counts, longer) in levels {
        // A unit: one of the level's dimension, and of all that are coarser.
        let mut unit = counts;
        unit[..=longer].fill(1);
        let unit = match level {
            Level::Instruction => 4 * ticks::INSTRUCTION,
            _ => whole(unit),
        };
        for scale in [1, 7] {
            let mut counts = counts;
            counts[longer] *= scale;
            let total = whole(counts);
            let driver = Driver::new(at_level(level), work(counts));
            // So that what the TLB has not at first is found.
            let first = IMAGE + COLD + 60;
            expect_stops_within(unit, driver, first, (level, scale, total));
        }
    }
}

/// A transfer is stopped behind any 64 bytes, however long it is.
#[test]
fn a_transfer_is_stopped_within() {
    for bytes in [0x1000, 0x2_0000] {
        let copy = Command::Copy {
            source: DATA_VA + 1,
            destination: DATA_VA + 0x4_0000,
            bytes,
        };
        let mut driver = Driver::new(Preemption::default(), |_| vec![vec![copy]]);
        let mut requests = 0;
        while !driver.packets.is_empty() {
            driver.advance(20);
            let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
            // What was begun: a line, and the translations before it.
            assert!(stop.ticks <= ticks::LINE + 2 * COLD, "{}", stop.ticks);
            requests += u64::from(stop.cause == Cause::Within);
        }
        assert!(requests > bytes / BYTES_PER_TICK / 50, "{requests}");
    }
}

/// A command that was only fetched goes no further than one that has begun, however much a step
/// could do.
#[test]
fn what_was_only_fetched_is_stopped_at_once() {
    let fill = |_: &Stepped| Command::Fill {
        pattern: 1,
        address: DATA_VA + 0x1000,
        bytes: 0x1_0000,
    };
    let copy = |_: &Stepped| Command::Copy {
        source: DATA_VA + 0x1001,
        destination: DATA_VA + 0x4_0000,
        bytes: 0x1_0000,
    };
    let dispatch = |stepped: &Stepped| {
        let program = assemble("again: bra again").unwrap();
        stepped.set_vram(DATA, &program.bytes());
        Command::Dispatch(program.dispatch(DATA_VA, [1; 3], |_| None).unwrap())
    };
    let kinds: [&dyn Fn(&Stepped) -> Command; 3] = [&fill, &copy, &dispatch];
    for kind in kinds {
        let mut fetched = 0;
        // From the image's first ticks on.
        for ticks in 1..120 {
            let work = |stepped: &mut Stepped| vec![vec![kind(stepped)]];
            let mut driver = Driver::new(Preemption::default(), work);
            driver.advance(ticks);
            if driver.shown().current_fence == 0 {
                continue;
            }
            let stop = driver.preempt(4096).unwrap_or_else(|o| panic!("{o:?}"));
            assert_eq!(stop.cause, Cause::Within);
            // What is left of reading the command; two places; a line or an instruction.
            let most = ticks::COMMAND + 3 * COLD + ticks::LINE;
            assert!(stop.ticks <= most, "{ticks}: {}", stop.ticks);
            fetched += u64::from(stop.ticks > 0);
        }
        assert!(fetched > ticks::COMMAND, "{fetched}");
    }
}

/// At the end of a wave's turn as anywhere else it can be stopped where all its threads wait.
#[test]
fn a_barrier_ends_a_turn() {
    let nops = "mov r1, r0\n".repeat(254);
    let text = format!(".threads 32\nmov r1, r0\nagain: {nops}bar\nbra again");
    let mut driver = Driver::new(at_level(Level::Thread), |stepped| {
        let program = assemble(&text).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let dispatch = program.dispatch(DATA_VA, [1; 3], |_| None).unwrap();
        vec![vec![Command::Dispatch(dispatch)]]
    });
    driver.advance(300);
    driver.stepped.cores[0].preempt(1);
    let stopped = (0..10).any(|_| matches!(driver.step(4096), Outcome::Preempted { .. }));
    assert!(stopped);
    assert!(driver.shown().ticks < 300 + 2 * 256, "{:?}", driver.shown());
}

/// NONE can neither stop what runs nor hold back what is pending.
#[test]
fn without_a_level_all_of_the_ring_is_done_first() {
    let mut driver = Driver::new(at_level(Level::None), workload);
    driver.step(100);
    let stop = driver.preempt(64).unwrap_or_else(|o| panic!("{o:?}"));
    assert_eq!((stop.cause, driver.packets.len()), (Cause::Idle, 0));
    assert_eq!(driver.count(Counter::PreemptIdle), 1);
    // An engine that is idle says so at once.
    let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
    assert_eq!((stop.cause, stop.ticks), (Cause::Idle, 0));
}

pub(crate) fn exec_of(at: u64, mut exec: Command) -> Command {
    if let Command::Exec { context, .. } = &mut exec {
        *context = vram::BASE + at;
    }
    exec
}

fn wait(address: u64) -> Command {
    Command::Wait { address, value: 5 }
}

fn signal(address: u64) -> Command {
    Command::Signal { address, value: 5 }
}

/// A packet waits for what another context's signals on the same engine.
#[test]
fn a_packet_in_wait_gives_way_to_who_signals() {
    for (level, name, _) in Level::ALL {
        let mut stepped = Stepped::with_preemption(at_level(level));
        stepped.set_save_area(CONTEXT, Some(AREA));
        stepped.write_context(OTHER_CONTEXT, Asid(9), 9, skua_testbed::root());
        stepped.clear_vram(DATA, 16);
        let after = Command::Fill {
            pattern: 1,
            address: DATA_VA + 8,
            bytes: 4,
        };
        let (waits, waits_fence) = stepped.exec_at(0, &words(&[wait(DATA_VA), after]));
        let (signals, signals_fence) = stepped.exec_at(0x1000, &words(&[signal(DATA_VA)]));
        let signals = exec_of(OTHER_CONTEXT, signals);
        stepped.start(COMPUTE, &[waits, signals]);
        while stepped.step(COMPUTE, 100) != Outcome::Waiting {}
        let looked = stepped.tally.get(Counter::VramRead);
        stepped.cores[0].preempt(3);
        if level == Level::None {
            for _ in 0..100 {
                assert_eq!(stepped.step(COMPUTE, 100), Outcome::Waiting, "{name}");
            }
            continue;
        }
        let cause = Cause::Waiting;
        let mut outcome = stepped.step(COMPUTE, 1);
        while outcome == Outcome::Busy {
            outcome = stepped.step(COMPUTE, 1);
        }
        assert_eq!(outcome, Outcome::Preempted { fence: 3, cause }, "{name}");
        stepped.start(COMPUTE, &[signals]);
        while stepped.step(COMPUTE, 100) != Outcome::Idle {}
        assert_eq!(stepped.cores[0].shown().completed_fence, signals_fence);
        assert_eq!(stepped.vram64(DATA + 8) & 0xffff_ffff, 0);
        stepped.start(COMPUTE, &[resumed(waits)]);
        while stepped.step(COMPUTE, 100) != Outcome::Idle {}
        assert_eq!(stepped.cores[0].shown().completed_fence, waits_fence);
        assert_eq!(stepped.vram32(DATA + 8), 1);
        assert!(stepped.tally.get(Counter::VramRead) > looked);
        assert_eq!(stepped.tally.get(Counter::Packet), 2);
    }
}

/// A WAIT that was resumed and whose value is not there waits on, any number of times.
#[test]
fn a_wait_is_resumed_as_often_as_need_be() {
    let mut driver = Driver::new(Preemption::default(), |stepped| {
        stepped.set_vram64(DATA, 0);
        vec![vec![wait(DATA_VA), signal(DATA_VA + 8)]]
    });
    for _ in 0..20 {
        while driver.step(10) != Outcome::Waiting {}
        let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        assert_eq!((stop.cause, stop.ticks), (Cause::Waiting, 0));
    }
    driver.stepped.set_vram64(DATA, 5);
    assert_eq!(driver.finish(), Outcome::Idle);
    assert_eq!(driver.stepped.vram64(DATA + 8), 5);
}

/// A WAIT that is resumed looks before it gives way, and goes on where its value came meanwhile.
#[test]
fn a_wait_that_is_resumed_looks_first() {
    let mut driver = Driver::new(at_level(Level::DmaBuffer), |stepped| {
        stepped.set_vram64(DATA, 0);
        vec![vec![wait(DATA_VA), signal(DATA_VA + 8)]]
    });
    while driver.step(10) != Outcome::Waiting {}
    for (value, cause) in [(0, Cause::Waiting), (0, Cause::Waiting), (5, Cause::Idle)] {
        driver.stepped.set_vram64(DATA, value);
        let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        assert_eq!(stop.cause, cause);
        // Its image is loaded, and its state not yet.
        while driver.shown().context == 0 && !driver.packets.is_empty() {
            driver.step(1);
        }
    }
    assert_eq!(driver.stepped.vram64(DATA + 8), 5);
}

/// The ring's own commands end first, but for a WAIT that waits.
#[test]
fn commands_of_the_ring() {
    let mut stepped = Stepped::new();
    let fill = |at| Command::Fill {
        pattern: 9,
        address: vram::BASE + DATA + at,
        bytes: 0x1000,
    };
    let fence = |fence| Command::Fence {
        fence,
        interrupt: false,
    };
    stepped.clear_vram(DATA, 0x2000);
    stepped.start(COMPUTE, &[fill(0), fence(1), fill(0x1000), fence(2)]);
    while stepped.vram32(DATA) == 0 {
        stepped.step(COMPUTE, 1);
    }
    stepped.cores[0].preempt(7);
    let between = Outcome::Preempted {
        fence: 7,
        cause: Cause::Between,
    };
    while stepped.step(COMPUTE, 1) != between {}
    assert_eq!(stepped.vram32(DATA + 0xffc), 9);
    assert_eq!(stepped.vram32(DATA + 0x1000), 0);
    assert_eq!(stepped.cores[0].shown().completed_fence, 0);

    stepped.set_vram64(DATA, 0);
    stepped.start(COMPUTE, &[wait(vram::BASE + DATA), fence(3)]);
    while stepped.step(COMPUTE, 1) != Outcome::Waiting {}
    stepped.cores[0].preempt(7);
    assert_eq!(stepped.step(COMPUTE, 1), between);
    // It is withdrawn, and nothing waits any more.
    assert_eq!(stepped.step(COMPUTE, 1), Outcome::Idle);
    stepped.start(COMPUTE, &[fence(4)]);
    while stepped.step(COMPUTE, 1) != Outcome::Idle {}
    assert_eq!(stepped.cores[0].shown().completed_fence, 4);
}

/// Without a save area a packet ends first, and a WAIT in it is waited for.
#[test]
fn a_context_without_a_save_area() {
    let mut driver = Driver::new(Preemption::default(), |stepped| {
        stepped.set_save_area(CONTEXT, None);
        stepped.set_vram64(DATA, 0);
        vec![vec![wait(DATA_VA)], vec![signal(DATA_VA + 8)]]
    });
    while driver.step(10) != Outcome::Waiting {}
    driver.stepped.cores[0].preempt(1);
    for _ in 0..10 {
        assert_eq!(driver.step(10), Outcome::Waiting);
    }
    driver.stepped.set_vram64(DATA, 5);
    let mut outcome = driver.step(10);
    while !matches!(outcome, Outcome::Preempted { .. }) {
        outcome = driver.step(10);
    }
    let cause = Cause::Between;
    assert_eq!(outcome, Outcome::Preempted { fence: 1, cause });
    assert_eq!(driver.packets.len(), 1);
}

/// The rules for save areas.
#[test]
fn save_areas() {
    let (base, bytes) = (AREA.base.0, AREA.bytes);
    let last = u64::from(bytes).next_multiple_of(PAGE_SIZE);
    let (bad, absent) = (Some(Reason::BadContext), Some(Reason::NotPresent));
    for (base, bytes, reason) in [
        (base, bytes, None),
        (base, u32::MAX, None),
        (base, bytes - 1, bad),
        (base + 8, bytes, bad),
        (base + 0x1000, bytes, None),
        // It could be there, and is not.
        (0x1000, bytes, absent),
        ((1 << VA_BITS) - last, bytes, absent),
        ((1 << VA_BITS) - last + 0x1000, bytes, bad),
        (vram::BASE + SAVE, bytes, bad),
        (!0xfff, bytes, bad),
        (0, bytes, bad),
        (base, 0, bad),
    ] {
        let mut stepped = Stepped::new();
        let area = SaveArea {
            base: GpuVa(base),
            bytes,
        };
        stepped.set_save_area(CONTEXT, Some(area));
        let (exec, fence) = stepped.exec(COMPUTE, &[Command::Nop { words: 2 }]);
        stepped.start(COMPUTE, &[exec]);
        let outcome = loop {
            let outcome = stepped.step(COMPUTE, 100);
            if matches!(outcome, Outcome::Idle | Outcome::Faulted(_)) {
                break outcome;
            }
        };
        let Some(reason) = reason else {
            assert_eq!(outcome, Outcome::Idle, "{area:x?}");
            continue;
        };
        let mut expected = stepped.expect(COMPUTE, reason, Access::Fetch, base);
        (expected.command, expected.fence) = (Record::NO_COMMAND, fence);
        if reason == Reason::BadContext {
            (expected.asid, expected.context_id, expected.command) = (Asid::SYSTEM, 0, 0);
            (expected.space, expected.address) = (Space::GpuPhysical, vram::BASE + CONTEXT);
        } else {
            // The level at which there is nothing.
            expected.detail = if base < BUFFER_VA { 0 } else { 3 };
        }
        assert_eq!(outcome, Outcome::Faulted(expected), "{area:x?}");
    }
}

/// Has so many pages of the save area lead to system memory.
fn in_system_memory(stepped: &mut Stepped, pages: u64) {
    let target = Target::System(BusAddr(BUS + SYSTEM_FREE));
    stepped.map_range(SAVE_VA, target, pages * PAGE_SIZE, true);
    let image = stepped.vram_bytes(SAVE, IMAGE_SIZE as usize);
    stepped.set_system(SYSTEM_FREE, &image);
}

/// In system memory it takes longer, and is as good.
#[test]
fn a_save_area_in_system_memory() {
    let stop = |pages| {
        let mut driver = Driver::new(Preemption::default(), |stepped| {
            let work = workload(stepped);
            if pages > 0 {
                in_system_memory(stepped, pages);
            }
            work
        });
        // Where the image is loaded from takes time too.
        let loading = pages.min(1) * IMAGE_LINES * ticks::SYSTEM;
        driver.advance(500 + loading);
        let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        assert_eq!(stop.cause, Cause::Within);
        let lines = driver.lines;
        assert_eq!(driver.finish(), Outcome::Idle);
        (stop.ticks, lines, driver)
    };
    let (in_vram, _, whole) = stop(0);
    let (in_system, lines, driver) = stop(u64::from(SAVE_SIZE) / PAGE_SIZE);
    assert_eq!(in_system, in_vram + (lines + IMAGE_LINES) * ticks::SYSTEM);
    let state = SYSTEM_FREE + u64::from(IMAGE_SIZE);
    assert_eq!(driver.stepped.system32(state), Header::MAGIC);
    assert!(driver.memory().0 == whole.memory().0);
    assert_eq!(driver.charged(), whole.charged());
}

/// Where a state cannot be saved or restored the engine faults, for the packet and no command.
#[test]
fn a_save_area_that_is_not_there() {
    let expected = |stepped: &Stepped, reason, access, address| Record {
        command: Record::NO_COMMAND,
        ..stepped.expect(COMPUTE, reason, access, address)
    };
    // The first byte of a page that a state is in.
    let state_at = |page: u64| SAVE_VA + (page * PAGE_SIZE).max(IMAGE_SIZE.into());
    let forget = |stepped: &mut Stepped, page| {
        let at = stepped.entry_at(SAVE_VA + page * PAGE_SIZE, 0);
        stepped.set_vram64(at, 0);
        stepped.cores[0].invalidate(Some(ASID));
    };
    let read_only = |stepped: &mut Stepped, _| {
        let at = stepped.entry_at(SAVE_VA, 0);
        let target = Target::Vram(GpuPhys(vram::BASE + SAVE));
        let entry = Entry::page(target, PageSize::Size4K, false, false);
        stepped.set_vram64(at, entry.0);
        stepped.cores[0].invalidate(Some(ASID));
    };
    let work = |stepped: &mut Stepped| {
        let mut work = workload(stepped);
        work.truncate(1);
        work
    };
    type Change<'a> = &'a dyn Fn(&mut Stepped, u64);
    let changes: [(Change<'_>, u64, Reason); 3] = [
        (&forget, 0, Reason::NotPresent),
        // Of which a part is written by then.
        (&forget, 1, Reason::NotPresent),
        (&read_only, 0, Reason::ReadOnly),
    ];
    for (change, page, reason) in changes {
        let full = true;
        let preemption = Preemption {
            full,
            ..Preemption::default()
        };
        let mut whole = Driver::new(preemption, work);
        whole.advance(500);
        whole.stepped.cores[0].invalidate(Some(ASID));
        whole.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        let mut driver = Driver::new(preemption, work);
        driver.advance(500);
        change(&mut driver.stepped, page);
        let Err(outcome) = driver.preempt(1) else {
            panic!("it has saved");
        };
        let record = expected(&driver.stepped, reason, Access::Write, state_at(page));
        assert_eq!(outcome, Outcome::Faulted(record));
        // What the attempt takes is the engine's time.
        assert_eq!(driver.charged(), whole.charged());
        assert_eq!(driver.stepped.saved(CONTEXT), 0);
        // It is faulted, and answers no request.
        driver.stepped.cores[0].preempt(9);
        assert_eq!(driver.step(1), Outcome::Idle);
    }

    // The image, and the second page of the state.
    for (page, address) in [(0, SAVE_VA), (1, state_at(1))] {
        let full = Preemption {
            full: true,
            ..Preemption::default()
        };
        let mut driver = Driver::new(full, work);
        driver.advance(500);
        driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        forget(&mut driver.stepped, page);
        let (saved, charged) = (driver.stepped.saved(CONTEXT), driver.charged());
        let Outcome::Faulted(found) = driver.finish() else {
            panic!("it has restored");
        };
        let record = expected(&driver.stepped, Reason::NotPresent, Access::Fetch, address);
        assert_eq!(found, record);
        assert_eq!(driver.stepped.saved(CONTEXT), saved);
        assert_eq!(driver.charged(), charged);
    }
}

/// A driver stopped within the first packet, and the packet.
fn stopped() -> (Driver, Command) {
    let mut driver = Driver::new(Preemption::default(), workload);
    driver.advance(700);
    driver.stepped.cores[0].preempt(1);
    while !matches!(driver.step(1000), Outcome::Preempted { .. }) {}
    let exec = driver.packets[0];
    (driver, exec)
}

/// What stands in the save area is no packet's but that one's, and is there once.
#[test]
fn states_that_are_not_the_buffers() {
    const SAVED: u64 = CONTEXT + Descriptor::SAVED;
    let set = |stepped: &mut Stepped, at: u64, value: u32| {
        stepped.set_vram(STATE + at, &value.to_le_bytes());
    };
    // The state at an offset, and how much there is said to be.
    let fields = [
        ("magic", 0, 1),
        ("format", 4, 2),
        ("bytes", 8, STATE_SIZE),
        ("zero", 12, 1),
        ("base", 16, 8),
        ("start", 24, 8),
        ("end", 28, 8),
        ("offset", 32, 4),
        ("offset behind", 32, 0x8000),
        ("words", 36, 45),
        ("command", 40, 0x4000_000a),
    ];
    type Change = Box<dyn Fn(&mut Stepped, &mut Command)>;
    let mut changes: Vec<(&str, Change)> = Vec::new();
    for (name, at, value) in fields {
        let change = move |stepped: &mut Stepped, _: &mut Command| set(stepped, at, value);
        changes.push((name, Box::new(change)));
    }
    for said in [0, 31, 32, 1000, STATE_SIZE + 1, u32::MAX] {
        let change = move |stepped: &mut Stepped, _: &mut Command| {
            stepped.set_vram64(SAVED, said.into());
        };
        changes.push(("bytes there", Box::new(change)));
    }
    changes.push((
        "no save area",
        Box::new(|stepped: &mut Stepped, _: &mut Command| stepped.set_save_area(CONTEXT, None)),
    ));
    for moved in 0..3 {
        let change = move |_: &mut Stepped, exec: &mut Command| {
            if let Command::Exec {
                base, start, end, ..
            } = exec
            {
                match moved {
                    0 => *base = BUFFER_VA + 0x1000,
                    1 => *end += 8,
                    _ => *start = *end,
                }
            }
        };
        changes.push(("another buffer", Box::new(change)));
    }
    for (name, change) in changes {
        let (mut driver, exec) = stopped();
        let mut exec = resumed(exec);
        change(&mut driver.stepped, &mut exec);
        let before = driver.memory();
        let (saved, charged) = (driver.stepped.saved(CONTEXT), driver.charged());
        let head = driver.stepped.tail(COMPUTE);
        driver.stepped.start(COMPUTE, &[exec]);
        let outcome = driver.finish();
        let expected = Record {
            reason: Reason::BadSave,
            asid: ASID,
            context_id: CONTEXT_ID,
            command: head.into(),
            space: Space::GpuPhysical,
            fence: 1,
            ..driver.stepped.expect(
                COMPUTE,
                Reason::BadSave,
                Access::Fetch,
                vram::BASE + CONTEXT,
            )
        };
        assert_eq!(outcome, Outcome::Faulted(expected), "{name}");
        assert_eq!(driver.stepped.saved(CONTEXT), saved, "{name}");
        assert_eq!(driver.charged(), charged, "{name}");
        assert!(driver.memory() == before, "{name}");
    }
}

/// A program that cannot be read anew is a fault of the packet, which is not charged for the look.
#[test]
fn a_program_that_cannot_be_read_anew() {
    let (mut driver, exec) = stopped();
    let charged = driver.charged();
    let at = driver.stepped.entry_at(DATA_VA, 0);
    driver.stepped.set_vram64(at, 0);
    driver.stepped.cores[0].invalidate(Some(ASID));
    driver.stepped.start(COMPUTE, &[resumed(exec)]);
    let Outcome::Faulted(record) = driver.finish() else {
        panic!("it was read");
    };
    assert_eq!(record.reason, Reason::NotPresent);
    assert_eq!(driver.charged(), charged);
}

/// A reset while a packet is restored finds no time of its own.
#[test]
fn a_reset_within_restoring_charges_nothing() {
    for steps in 0..20 {
        let (mut driver, exec) = stopped();
        let charged = driver.charged();
        driver.stepped.start(COMPUTE, &[resumed(exec)]);
        for _ in 0..steps {
            driver.stepped.step(COMPUTE, 1);
        }
        let reset = |core: &mut Core, memory: &Memory<'_>| core.reset(memory);
        driver.stepped.with_memory(COMPUTE, reset);
        assert_eq!(driver.charged(), charged, "{steps}");
    }
}

/// A FILL that was cut within a word is none that can be stopped.
#[test]
fn a_fill_goes_on_with_a_word() {
    for (done, reason) in [(0x40, None), (0x42, Some(Reason::BadSave))] {
        let fill = Command::Fill {
            pattern: 0x0403_0201,
            address: DATA_VA,
            bytes: 0x1000,
        };
        let mut driver = Driver::new(Preemption::default(), |_| vec![vec![fill]]);
        driver.advance(60);
        let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
        assert_eq!(stop.cause, Cause::Within);
        // Behind the header, the offset, six words and their number: rows, and bytes.
        let at = STATE + 32 + 8 + 24 + 4;
        driver.stepped.set_vram(at, &u64::to_le_bytes(done));
        let found = match driver.finish() {
            Outcome::Faulted(record) => Some(record.reason),
            _ => None,
        };
        assert_eq!(found, reason, "{done:#x}");
    }
}

#[test]
fn a_state_is_restored_once_or_given_up() {
    let (mut driver, exec) = stopped();
    let counts = driver.stepped.vram_bytes(COUNTERS, 0x400);
    assert!(counts.iter().all(|count| *count == 0));
    // Begun anew, the first packet does everything once more.
    driver.stepped.start(COMPUTE, &[exec]);
    driver.packets.truncate(1);
    assert_eq!(driver.finish(), Outcome::Idle);
    assert_eq!(driver.stepped.saved(CONTEXT), 0);
    assert_eq!(driver.count(Counter::RestoredBytes), 0);
    assert_eq!(driver.stepped.vram32(COUNTERS), 1);

    let (mut driver, exec) = stopped();
    driver.packets.truncate(1);
    driver
        .stepped
        .start(COMPUTE, &[resumed(exec), resumed(exec)]);
    let Outcome::Faulted(record) = driver.finish() else {
        panic!("it was restored twice");
    };
    assert_eq!(record.reason, Reason::BadSave);
    assert!(driver.packets.is_empty());
}

/// The program of the command under way is read anew without a trace in the packet's time, though
/// its page has the place in the TLB of one that the packet accesses.
#[test]
fn a_program_that_is_read_anew_displaces_nothing() {
    let work = |stepped: &mut Stepped| {
        let rival = DATA_VA + 1024 * PAGE_SIZE;
        let target = Target::Vram(GpuPhys(vram::BASE + DATA + 0x4000));
        stepped.map_page(rival, target, PageSize::Size4K, true);
        let source = ".arg64 target
                arg r2, target\n arg r3, target.hi
                mov r20, 200
            again:
                ld.32 r4, [r2]\n add r4, r4, r20\n st.32 [r2], r4
                sub r20, r20, 1
                bnz r20, again
                exit";
        let program = assemble(source).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(rival)).unwrap();
        vec![vec![Command::Dispatch(dispatch)]]
    };
    let undisturbed = whole(Preemption::default(), work);
    let driver = disturbed(Preemption::default(), work, 1, 100);
    assert!(driver.resumed > 10, "{}", driver.resumed);
    assert!(driver.memory() == undisturbed.memory());
    assert_eq!(driver.charged(), undisturbed.charged());
}

/// A state is the same to every engine of the kind; what the engine had of it is gone.
#[test]
fn a_packet_goes_on_in_another_engine() {
    let mut whole = Driver::new(Preemption::default(), workload);
    assert_eq!(whole.finish(), Outcome::Idle);
    let mut driver = Driver::new(Preemption::default(), workload);
    let mut random = Random(77);
    while !driver.packets.is_empty() {
        driver.advance(1 + random.below(900));
        driver.preempt(100).unwrap_or_else(|o| panic!("{o:?}"));
        // All that an engine has, but for its ring and its time.
        let progress = driver.stepped.cores[0].take_progress();
        driver.stepped.cores[0] = skua_testbed::new_core(COMPUTE);
        driver.stepped.cores[0].set_progress(progress);
    }
    assert!(driver.memory() == whole.memory());
}

/// What a packet goes on with is what was saved: registers that hold nothing it may read, and
/// shared memory that it has not, hold what nobody put there.
#[test]
fn what_was_not_saved_is_scrambled() {
    let mut driver = Driver::new(Preemption::default(), workload);
    let mut scrambled = 0;
    while !driver.packets.is_empty() {
        driver.advance(300);
        driver.preempt(100).unwrap_or_else(|o| panic!("{o:?}"));
        let restored = driver.count(Counter::RestoredBytes);
        driver.advance(300);
        if driver.count(Counter::RestoredBytes) > restored {
            let progress = driver.stepped.cores[0].take_progress();
            let text = format!("{progress:?}");
            let lanes = text.matches(&format!("{}", 0xa5a5_a5a5_u32)).count();
            scrambled += usize::from(text.contains("Dispatch(Machine") && lanes >= 32);
            driver.stepped.cores[0].set_progress(progress);
        }
    }
    assert!(scrambled > 0, "no register was scrambled");
}

/// Files of `samples/skua-filter`, with their names.
macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../samples/skua-filter/filters/", $name)))),*]
    };
}

/// The program of a filter.
fn filter(text: &str) -> Program {
    let files = files![
        "blur_begin.inc" "blur_end.inc" "channels.inc" "group.inc" "luma.inc" "neighbours.inc"
        "point.inc" "store.inc"
    ];
    let find = |name: &str| {
        let file = files.iter().find(|(other, _)| *other == name);
        file.map(|(_, text)| (*text).to_owned())
    };
    assemble_with(text, find).unwrap_or_else(|e| panic!("{e:?}"))
}

/// What lives is a small part of what there can be, and a device that saves all does as well: in
/// each pass of each filter.
#[test]
fn what_lives_is_saved_and_no_more() {
    let filters = files![
        "blur_columns.s" "blur_rows.s" "edge.s" "emboss.s" "equalize.s" "equalize_table.s"
        "grayscale.s" "histogram.s" "invert.s" "sepia.s" "sharpen.s"
    ];
    for (name, text) in filters {
        let work = |stepped: &mut Stepped| {
            let program = filter(text);
            stepped.set_vram(DATA, &program.bytes());
            let value = |name: &str| match name {
                "source" | "intermediate" => Some(DATA_VA + 0x1_0000),
                "weights" => Some(DATA_VA + 0x2_0000),
                "table" => Some(DATA_VA + 0x3_0000),
                "target" | "histogram" => Some(DATA_VA + 0x4_0000),
                "width" => Some(96),
                "rows" | "source_rows" => Some(32),
                "radius" => Some(4),
                _ => Some(0),
            };
            for at in (DATA + 0x1_0000..DATA + 0x2_0000).step_by(8) {
                stepped.set_vram64(at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
            let dispatch = program.dispatch(DATA_VA, [3, 2, 1], value).unwrap();
            vec![vec![Command::Dispatch(dispatch)]]
        };
        let mut whole = Driver::new(Preemption::default(), work);
        assert_eq!(whole.finish(), Outcome::Idle, "{name}");
        let full = Preemption {
            full: true,
            ..Preemption::default()
        };
        for preemption in [Preemption::default(), full] {
            let mut driver = Driver::new(preemption, work);
            let (mut sum, mut most) = (0, 0);
            while !driver.packets.is_empty() {
                driver.advance(100);
                let stop = driver.preempt(100).unwrap_or_else(|o| panic!("{o:?}"));
                if stop.cause.is_saved() {
                    let saved = driver.stepped.saved(CONTEXT);
                    (sum, most) = (sum + u64::from(saved), most.max(saved));
                }
            }
            driver.check(&whole);
            let average = sum / driver.resumed;
            println!("{name}, {preemption:?}: {average} bytes, {most} at most, of {STATE_SIZE}");
            assert!(driver.resumed > 3, "{name}");
            if preemption.full {
                assert_eq!(average, u64::from(STATE_SIZE));
            } else {
                assert!(average <= u64::from(STATE_SIZE / 10), "{name}: {average}");
                // A group of 512 threads has a little more, where as much lives as may.
                let part = if name == "blur_columns.s" { 8 } else { 10 };
                assert!(most <= STATE_SIZE / part, "{name}: {most}");
            }
        }
    }
}

/// The largest state there can be has room: a group of the most threads that wait at a barrier, all
/// of whose registers live.
#[test]
fn the_largest_state() {
    let registers: String = (0..64).map(|r| format!("mov r{r}, {r}\n")).collect();
    let uses: String = (1..64).map(|r| format!("add r0, r0, r{r}\n")).collect();
    let text = format!(
        ".threads 1024\n.shared 32768\n{}{registers}bar\n{uses}exit",
        (0..16)
            .map(|i| format!(".arg a{i}\n.arg b{i}\n"))
            .collect::<String>()
    );
    let mut driver = Driver::new(at_level(Level::Instruction), |stepped| {
        let program = assemble(&text).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(0)).unwrap();
        vec![vec![Command::Dispatch(dispatch)]]
    });
    let mut most = 0;
    while !driver.packets.is_empty() {
        driver.advance(128);
        driver.preempt(1000).unwrap_or_else(|o| panic!("{o:?}"));
        most = most.max(driver.stepped.saved(CONTEXT));
    }
    assert!(most > STATE_SIZE / 20 * 19 && most <= STATE_SIZE, "{most}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whatever stands in a save area, the engine stays one, and nothing is reached but what a
    /// packet of the context reaches.
    #[test]
    fn changed_states(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near in any::<bool>(),
    ) {
        let (mut driver, exec) = stopped();
        let size = driver.stepped.saved(CONTEXT) as usize;
        for (at, value) in changes {
            // The fields are at the start.
            let at = at.index(if near { size.min(300) } else { size }) as u64;
            driver.stepped.set_vram(STATE + at, &[value]);
        }
        let untouched = driver.stepped.vram_bytes(0x40_0000, 0x10_0000);
        driver.packets.truncate(1);
        driver.stepped.start(COMPUTE, &[resumed(exec)]);
        for _ in 0..2000 {
            if matches!(driver.step(1000), Outcome::Idle | Outcome::Faulted(_)) {
                break;
            }
        }
        prop_assert!(driver.stepped.vram_bytes(0x40_0000, 0x10_0000) == untouched);
        let stepped = &mut driver.stepped;
        stepped.set_up();
        stepped.start(COMPUTE, &[Command::Nop { words: 2 }]);
        while stepped.step(COMPUTE, 100) != Outcome::Idle {}
        prop_assert_eq!(stepped.cores[0].shown().head, 8);
    }

    /// Any program that ends does so in the same way when it is stopped anywhere.
    #[test]
    fn any_program(
        instructions in prop::collection::vec(instruction(), 1..60), seed in 1..u64::MAX,
    ) {
        let work = |stepped: &mut Stepped| {
            let mut program = on_data(&instructions);
            program.extend(assemble("exit").unwrap().bytes());
            stepped.set_vram(DATA, &program);
            let dispatch = skua_spec::command::Dispatch {
                program: DATA_VA,
                program_bytes: program.len() as u32,
                shared_bytes: 200,
                groups: [2, 1, 1],
                threads: [40, 1, 1],
                arguments: [7; 32],
                argument_count: 16,
            };
            vec![vec![Command::Dispatch(dispatch)]]
        };
        let mut whole = Driver::new(Preemption::default(), work);
        let mut end = Outcome::Busy;
        for _ in 0..100 {
            end = whole.step(1000);
            if matches!(end, Outcome::Idle | Outcome::Faulted(_)) {
                break;
            }
        }
        // One that does not end is no matter here.
        prop_assume!(matches!(end, Outcome::Idle | Outcome::Faulted(_)));
        let (mut random, mut driver) = (Random(seed), Driver::new(Preemption::default(), work));
        let found = loop {
            if let outcome @ Outcome::Faulted(_) = driver.advance(1 + random.below(60)) {
                break outcome;
            }
            match driver.preempt(1 + random.below(9)) {
                Ok(_) if driver.packets.is_empty() => break Outcome::Idle,
                Ok(_) => {}
                Err(outcome) => break outcome,
            }
        };
        match (found, end) {
            (Outcome::Faulted(found), Outcome::Faulted(end)) => {
                prop_assert_eq!(found, end);
                prop_assert!(driver.memory() == whole.memory());
            }
            (found, end) => {
                prop_assert_eq!(found, end);
                driver.check(&whole);
            }
        }
    }
}

// DRAW.

/// Some triangles upon each other, of many sizes, one of them without pixels.
const TRIANGLES: [Point; 12] = [
    [0x80, -0x300, 5, 600],
    [0x3a40, 0x280, -70, 8],
    [0x1234, 0x1a00, 90, 1000],
    [0x400, 0x400, 1, 1],
    [0x400, 0x400, 2, 2],
    [0x4000, 0x4000, 3, 3],
    [0x2a80, 0x180, 3, -4],
    [0x2a80, 0x980, 5, 60],
    [0x3280, 0x980, 700, 8],
    [i32::MIN, 0xc00, 1, 2],
    [i32::MAX, 0x7c0, 3, 4],
    [0, 0xe20, 5, 6],
];

/// Packets with commands that draw, and others between them.
fn drawings(stepped: &mut Stepped) -> Vec<Vec<Command>> {
    let whole = draw::scene(stepped, &TRIANGLES, None);
    let draw = |blend, triangles| {
        Command::Draw(Draw {
            blend,
            triangles,
            ..whole
        })
    };
    let fill = Command::Fill {
        pattern: 7,
        address: DATA_VA + 0x5_0000,
        bytes: 0x400,
    };
    vec![
        vec![draw(Blend::Over, 4), draw(Blend::Add, 1)],
        vec![fill, draw(Blend::Replace, 3), fill],
        vec![draw(Blend::Add, 2)],
    ]
}

fn whole(preemption: Preemption, work: impl FnOnce(&mut Stepped) -> Vec<Vec<Command>>) -> Driver {
    let mut whole = Driver::new(preemption, work);
    assert_eq!(whole.finish(), Outcome::Idle);
    whole
}

/// At each level, stopped anywhere and as often as can be, every pixel is drawn once for each
/// triangle, in the same order and with the same values.
#[test]
fn drawing_that_is_stopped_anywhere_is_done_once() {
    let mut last = 0;
    for (level, _, name) in Level::ALL {
        let undisturbed = whole(at_graphics(level), drawings);
        assert!(undisturbed.count(Counter::Pixel) > 2000);
        let mut saved = 0;
        for (seed, most) in [(1, 20), (2, 100), (3, 900)] {
            let driver = disturbed(at_graphics(level), drawings, seed, most);
            driver.check(&undisturbed);
            saved += driver.resumed;
            println!(
                "{name}, {seed}: {} requests, causes {:?}",
                driver.requests, driver.causes
            );
        }
        // Each level has more places than the one above it.
        assert!(saved > last || level <= Level::DmaBuffer, "{name}: {saved}");
        last = saved;
    }
}

/// Stopped once, at each tick of a DRAW in turn.
#[test]
fn drawing_is_stopped_at_every_point() {
    let work = |stepped: &mut Stepped| {
        let whole = draw::scene(stepped, &TRIANGLES[6..], None);
        let scissor = Rectangle {
            left: 30,
            right: 60,
            bottom: 12,
            ..whole.scissor
        };
        let blend = Blend::Over;
        vec![vec![Command::Draw(Draw {
            blend,
            scissor,
            ..whole
        })]]
    };
    for (level, _, name) in Level::ALL {
        let undisturbed = whole(at_graphics(level), work);
        let picture = draw::seen(&undisturbed.stepped);
        let total = undisturbed.shown().ticks;
        let mut places = std::collections::BTreeSet::new();
        // Where there is no place within, some are enough.
        let pace = if level < Level::ThreadGroup { 16 } else { 1 };
        for at in (1..=total).step_by(pace) {
            let mut driver = Driver::new(at_graphics(level), work);
            driver.advance(at);
            driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
            if driver.resumed > 0 {
                // What is behind the command and says how far it has come.
                let bytes = driver.stepped.saved(CONTEXT) as usize;
                places.insert(driver.stepped.vram_bytes(STATE, bytes));
            }
            assert_eq!(driver.finish(), Outcome::Idle);
            assert!(draw::seen(&driver.stepped) == picture, "{name}, tick {at}");
            // All of memory is much to compare.
            if at % 32 == 0 {
                driver.check(&undisturbed);
            }
        }
        let [triangles, pixels, instructions] =
            [Counter::Triangle, Counter::Pixel, Counter::Instruction].map(|c| undisturbed.count(c));
        println!("{name}: {} places in {total} ticks", places.len());
        let places = places.len() as u64;
        assert!(triangles == 2 && pixels > 80, "{pixels}");
        match level {
            Level::None | Level::DmaBuffer => assert_eq!(places, 0),
            // Before the first command it is COMPUTE that counts.
            Level::Dispatch => assert_eq!(places, 0),
            Level::ThreadGroup => assert_eq!(places, triangles - 1),
            Level::Thread => assert!(places > triangles && places < pixels, "{places}"),
            Level::Instruction => assert!(places > instructions, "{places}"),
        }
    }
}

/// From the request to the record it takes a unit of the level at most, however long the DRAW is.
#[test]
fn the_level_bounds_the_latency_of_drawing() {
    // Packets, commands in each, triangles of each, rows of each.
    let work = |[packets, commands, triangles, rows]: [u32; 4]| {
        move |stepped: &mut Stepped| {
            let points = [
                [0, 0, 0, 0],
                [0x8000, 0, 0, 0],
                [0, rows as i32 * 0x200, 0, 0],
            ];
            let points: Vec<Point> = (0..triangles).flat_map(|_| points).collect();
            let whole = draw::scene(stepped, &points, None);
            let scissor = Rectangle {
                right: 32,
                bottom: rows as u16,
                ..whole.scissor
            };
            let draw = Command::Draw(Draw { scissor, ..whole });
            vec![vec![draw; commands as usize]; packets as usize]
        }
    };
    let time = |counts| whole(Preemption::default(), work(counts)).shown().ticks;
    let levels = [
        (Level::DmaBuffer, [2, 2, 2, 4], Some(0)),
        (Level::Dispatch, [2, 2, 2, 4], Some(1)),
        (Level::ThreadGroup, [2, 2, 2, 4], Some(2)),
        (Level::Thread, [2, 2, 2, 4], Some(3)),
        (Level::Instruction, [1, 2, 2, 4], None),
    ];
    for (level, counts, longer) in levels {
        // A unit: one of the level's dimension, and of all that are coarser. Rows have a wave each.
        let mut unit = counts;
        unit[..=longer.unwrap_or(0)].fill(1);
        let unit = match longer {
            Some(_) => time(unit),
            // The atomic operation, and a translation.
            None => ticks::INSTRUCTION + ticks::PIXELS + COLD,
        };
        for scale in [1, 7] {
            let mut counts = counts;
            counts[longer.unwrap_or(3)] *= scale;
            let total = time(counts);
            let driver = Driver::new(at_graphics(level), work(counts));
            expect_stops_within(unit, driver, 60, (level, scale, total));
        }
    }
}

/// Each of the two levels is for its own commands.
#[test]
fn drawing_and_computing_have_levels_of_their_own() {
    let work = |stepped: &mut Stepped| {
        let draw = draw::scene(stepped, &TRIANGLES, None);
        let copy = |at| Command::Copy {
            source: DATA_VA + 0x5_0000 + at,
            destination: DATA_VA + 0x6_0000 + at,
            bytes: 0x4000,
        };
        vec![vec![copy(0), Command::Draw(draw), copy(0x4000)]]
    };
    // Where the first command that has not ended is, of all states there were.
    let stops = |graphics, compute| {
        let preemption = Preemption {
            graphics,
            compute,
            full: false,
        };
        let undisturbed = whole(preemption, work);
        let mut driver = Driver::new(preemption, work);
        let (mut within, mut between) = ([0; 3], [0; 3]);
        while !driver.packets.is_empty() {
            driver.advance(10);
            let stop = driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
            if stop.cause == Cause::Within {
                let at = driver.stepped.vram32(STATE + u64::from(Header::SIZE));
                let begun = driver.stepped.vram32(STATE + u64::from(Header::SIZE) + 4) != 0;
                let command = match at {
                    0 => 0,
                    32 => 1,
                    _ => 2,
                };
                let list = if begun { &mut within } else { &mut between };
                list[command] += 1;
            }
        }
        driver.check(&undisturbed);
        (within.map(|n| n > 0), between.map(|n| n > 0))
    };
    let (packet, finest) = (Level::DmaBuffer, Level::Instruction);
    // The command that begins is not where it is stopped behind the one before.
    assert_eq!(stops(packet, packet), ([false; 3], [false; 3]));
    let (within, between) = stops(finest, packet);
    assert_eq!(within, [false, true, false]);
    assert_eq!(between[..2], [false; 2]);
    assert_eq!(
        stops(Level::Dispatch, packet),
        ([false; 3], [false, false, true])
    );
    let (within, between) = stops(packet, finest);
    assert_eq!(within, [true, false, true]);
    assert!(!between[2]);
    // NONE holds nothing back while a DRAW was the last command.
    let mut driver = Driver::new(
        Preemption {
            graphics: Level::None,
            ..Preemption::default()
        },
        |stepped| {
            let draw = draw::scene(stepped, &TRIANGLES, None);
            vec![vec![Command::Draw(draw)], vec![Command::Draw(draw)]]
        },
    );
    while driver.count(Counter::Pixel) == 0 {
        driver.step(10);
    }
    let stop = driver.preempt(64).unwrap_or_else(|o| panic!("{o:?}"));
    assert_eq!((stop.cause, driver.packets.len()), (Cause::Idle, 0));
}

/// Of a DRAW little lives; one who saves everything gets the same picture.
#[test]
fn what_lives_of_drawing_is_saved() {
    let undisturbed = whole(Preemption::default(), drawings);
    for full in [false, true] {
        let preemption = Preemption {
            full,
            ..Preemption::default()
        };
        let mut driver = Driver::new(preemption, drawings);
        let mut most = 0;
        while !driver.packets.is_empty() {
            driver.advance(133);
            let stop = driver.preempt(100).unwrap_or_else(|o| panic!("{o:?}"));
            if stop.cause.is_saved() {
                most = most.max(driver.stepped.saved(CONTEXT));
            }
        }
        driver.check(&undisturbed);
        println!("full {full}: {most} bytes at most");
        // Registers of 32 threads, of which a few live.
        assert!(
            if full {
                most == STATE_SIZE
            } else {
                most < 3000
            },
            "{most}"
        );
    }
}

/// A triangle that has begun is drawn from the vertices that were read, and what the engine keeps
/// is another's.
#[test]
fn drawing_goes_on_from_what_was_saved() {
    let undisturbed = whole(Preemption::default(), drawings);
    let mut driver = Driver::new(Preemption::default(), drawings);
    let mut random = Random(99);
    while !driver.packets.is_empty() {
        driver.advance(1 + random.below(300));
        driver.preempt(100).unwrap_or_else(|o| panic!("{o:?}"));
        let progress = driver.stepped.cores[0].take_progress();
        driver.stepped.cores[0] = skua_testbed::new_core(COMPUTE);
        driver.stepped.cores[0].set_progress(progress);
    }
    assert!(driver.memory() == undisturbed.memory());

    let one = |stepped: &mut Stepped| {
        let draw = draw::scene(stepped, &TRIANGLES[..3], None);
        vec![vec![Command::Draw(draw)]]
    };
    let undisturbed = whole(Preemption::default(), one);
    let mut driver = Driver::new(at_graphics(Level::Thread), one);
    while driver.count(Counter::Pixel) == 0 {
        driver.step(10);
    }
    driver.preempt(1).unwrap_or_else(|o| panic!("{o:?}"));
    let vertices = DATA + draw::VERTICES;
    let kept = driver.stepped.vram_bytes(vertices, 48);
    driver.stepped.clear_vram(vertices, 48);
    assert_eq!(driver.finish(), Outcome::Idle);
    driver.stepped.set_vram(vertices, &kept);
    assert!(driver.memory() == undisturbed.memory());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whatever stands in a save area of a DRAW, the engine stays one, and nothing is reached but
    /// what a packet of the context reaches.
    #[test]
    fn changed_states_of_drawing(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near in any::<bool>(), ticks in 40_u64..900,
    ) {
        let mut driver = Driver::new(at_graphics(Level::Instruction), |stepped| {
            let mut work = drawings(stepped);
            work.truncate(1);
            work
        });
        driver.advance(ticks);
        driver.stepped.cores[0].preempt(1);
        while !matches!(driver.step(1000), Outcome::Preempted { .. }) {}
        let exec = driver.packets[0];
        let size = driver.stepped.saved(CONTEXT) as usize;
        prop_assume!(size > 0);
        for (at, value) in changes {
            let at = at.index(if near { size.min(300) } else { size }) as u64;
            driver.stepped.set_vram(STATE + at, &[value]);
        }
        let untouched = driver.stepped.vram_bytes(0x40_0000, 0x10_0000);
        driver.stepped.start(COMPUTE, &[resumed(exec)]);
        for _ in 0..2000 {
            if matches!(driver.step(1000), Outcome::Idle | Outcome::Faulted(_)) {
                break;
            }
        }
        prop_assert!(driver.stepped.vram_bytes(0x40_0000, 0x10_0000) == untouched);
        let stepped = &mut driver.stepped;
        stepped.set_up();
        stepped.start(COMPUTE, &[Command::Nop { words: 2 }]);
        while stepped.step(COMPUTE, 100) != Outcome::Idle {}
        prop_assert_eq!(stepped.cores[0].shown().head, 8);
    }
}

// The device with its registers and threads.

/// A device whose engine 0 runs a loop that ends when `DATA + 8` is not 0, and its packet.
fn busy(preemption: Preemption) -> (Gpu, Command, u64) {
    let mut gpu = Gpu::with_preemption(preemption);
    gpu.set_save_area(CONTEXT, Some(AREA));
    gpu.set_vram64(DATA + 8, 0);
    let text = ".arg64 target
            arg r2, target\n arg r3, target.hi
            mov r6, 1
        again:
            ld.32 r4, [r2 + 8]
            bz r4, again
            atom.add r5, [r2], r6
            exit";
    let program = assemble(text).unwrap();
    gpu.set_vram64(DATA, 0);
    gpu.set_vram(DATA + 0x100, &program.bytes());
    let at = DATA_VA + 0x100;
    let dispatch = program.dispatch(at, [1; 3], |_| Some(DATA_VA)).unwrap();
    let (exec, fence) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_packet(COMPUTE, fence);
    (gpu, exec, fence)
}

#[test]
fn a_record_and_its_interrupt() {
    let (mut gpu, exec, fence) = busy(Preemption::default());
    // What is behind it is held back.
    gpu.start(
        COMPUTE,
        &[Command::Fence {
            fence: 99,
            interrupt: true,
        }],
    );
    let record = gpu.preempt(COMPUTE, 0x1_0000_0005);
    assert_eq!((record.fence, record.completed), (0x1_0000_0005, 0));
    assert_eq!((record.cause, record.number), (Cause::Within, 1));
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(0) == 1);
    // It was written before.
    let page = gpu.lines.page(0);
    assert_eq!(page[status::engine::PREEMPT_SEQ as usize], 1);
    assert_eq!(
        (gpu.state(COMPUTE), gpu.head(COMPUTE)),
        (EngineState::Idle as u32, gpu.tail(COMPUTE))
    );
    assert_eq!(gpu.engine64(COMPUTE, status::engine::CURRENT_FENCE), 0);
    assert!(gpu.vram64(CONTEXT + Descriptor::TICKS) > 0);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::PACKETS), 0);
    let saved = u64::from(gpu.saved(CONTEXT));
    let counts = [
        (Counter::Preempt, 1),
        (Counter::PreemptIdle, 0),
        (Counter::PreemptIgnored, 0),
        (Counter::SavedBytes, saved),
        (Counter::RestoredBytes, 0),
        (Counter::EngineInterrupt, 1),
    ];
    for (counter, count) in counts {
        assert_eq!(gpu.counter(counter), count, "{counter:?}");
    }
    // An engine that has nothing to do says so.
    let record = gpu.preempt(COMPUTE, 6);
    assert_eq!((record.cause, record.number), (Cause::Idle, 2));
    assert_eq!(gpu.counter(Counter::PreemptIdle), 1);
    // It goes on from the present tail.
    gpu.start(COMPUTE, &[resumed(exec)]);
    gpu.set_vram64(DATA + 8, 1);
    gpu.wait_fence(COMPUTE, fence);
    assert_eq!(gpu.vram64(DATA), 1);
    assert_eq!(gpu.vram64(CONTEXT + Descriptor::PACKETS), 1);
    assert_eq!(gpu.counter(Counter::RestoredBytes), saved);
    assert_ne!(gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE), 99);
}

#[test]
fn one_request_at_a_time() {
    let (mut gpu, _, fence) = busy(at_level(Level::DmaBuffer));
    gpu.ask_to_preempt(COMPUTE, 5);
    gpu.ask_to_preempt(COMPUTE, 6);
    // The engines answer all the same.
    gpu.invalidate(None);
    gpu.run(COPY, &[Command::Invalidate { asid: None }]);
    assert_eq!(gpu.preempted(COMPUTE).number, 0);
    gpu.set_vram64(DATA + 8, 1);
    gpu.wait_for("a record", |gpu| gpu.preempted(COMPUTE).number == 1);
    let record = gpu.preempted(COMPUTE);
    assert_eq!((record.fence, record.completed), (5, fence));
    assert_eq!(
        (
            gpu.counter(Counter::Preempt),
            gpu.counter(Counter::PreemptIgnored)
        ),
        (1, 1)
    );
    // The other engine was asked nothing; a disabled one is not.
    assert_eq!(gpu.preempted(COPY).number, 0);
    gpu.reset_engine(COPY);
    gpu.ask_to_preempt(COPY, 7);
    assert_eq!(gpu.counter(Counter::PreemptIgnored), 2);
    // Nor one that is faulted.
    gpu.run_words_to_fault(COMPUTE, &[u32::MAX, 0]);
    gpu.ask_to_preempt(COMPUTE, 8);
    assert_eq!(gpu.counter(Counter::PreemptIgnored), 3);
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    assert_eq!(gpu.preempt(COMPUTE, 9).number, 2);
}

/// The tick of a packet behind which it stops says where its engine looks whether it is to: every
/// 4096th, but for the rest of an instruction.
#[test]
fn an_engine_that_draws_its_steps_stops_anywhere() {
    let places = |seeds: [u64; 6]| -> BTreeSet<u64> {
        let stop = |seed| {
            let (gpu, ..) = busy(Preemption::default());
            gpu.device.draw_steps(seed);
            let ticks = |gpu: &Gpu| gpu.engine64(COMPUTE, status::engine::TICKS);
            let before = ticks(&gpu);
            gpu.wait_for("some steps", |gpu| ticks(gpu) > before + 100_000);
            gpu.preempt(COMPUTE, 1);
            gpu.vram64(CONTEXT + Descriptor::TICKS) % 4096
        };
        seeds.into_iter().map(stop).collect()
    };
    let (same, drawn) = (places([0; 6]), places([1, 2, 3, 4, 5, 6]));
    assert!(same.len() < 4 && drawn.len() > 4, "{same:?}, {drawn:?}");
}

#[test]
fn resets_forget_the_request() {
    let (mut gpu, ..) = busy(at_level(Level::DmaBuffer));
    gpu.ask_to_preempt(COMPUTE, 5);
    gpu.reset_engine(COMPUTE);
    assert_eq!(gpu.preempted(COMPUTE).number, 0);
    gpu.start_engine(COMPUTE);
    gpu.run(COMPUTE, &[Command::Nop { words: 2 }]);
    assert_eq!(gpu.preempted(COMPUTE).number, 0);
    let record = gpu.preempt(COMPUTE, 6);
    assert_eq!((record.fence, record.number), (6, 1));
    // An adapter reset forgets the records as well.
    gpu.ask_to_preempt(COMPUTE, 7);
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.get(regs::DEVICE_STATUS).ready());
    gpu.set_system(STATUS, &[0xff; 64]);
    gpu.set_up();
    gpu.wait_for("a block", |gpu| {
        gpu.engine32(COMPUTE, status::engine::RESET_ACK) != u32::MAX
    });
    assert_eq!(
        (gpu.preempted(COMPUTE).fence, gpu.preempted(COMPUTE).number),
        (0, 0)
    );
    let record = gpu.preempt(COMPUTE, 8);
    assert_eq!(
        (record.fence, record.cause, record.number),
        (8, Cause::Idle, 1)
    );
}

/// A packet that ends while it is being stopped has ended or was withdrawn, and never both.
#[test]
fn completion_and_preemption_at_once() {
    let mut gpu = Gpu::new();
    gpu.set_save_area(CONTEXT, Some(AREA));
    let program = assemble(COUNT).unwrap();
    gpu.set_vram(DATA, &program.bytes());
    gpu.clear_vram(COUNTERS, 0x1000);
    let target = DATA_VA + COUNTERS - DATA;
    let dispatch = program
        .dispatch(DATA_VA, [3, 1, 1], |_| Some(target))
        .unwrap();
    // So many that the engine looks for requests several times in between (manual section 11).
    const DISPATCHES: u32 = 500;
    let commands = words(&[Command::Dispatch(dispatch); DISPATCHES as usize]);
    let mut random = Random(4711);
    let (mut causes, mut ended) = ([0; 4], 0);
    // How far it is counted on this host while it runs.
    let mut long = 1000;
    // Nearly as often before the end as behind it, but on a host that has much else to do.
    while ended < 1000 || causes[Cause::Within as usize] <= 100 {
        let round = u64::from(ended);
        assert!(ended < 100_000, "causes {causes:?}, by {long}");
        let (mut exec, fence) = gpu.exec_at(0, &commands);
        gpu.start(COMPUTE, &[exec]);
        for _ in 0..random.below(long) {
            std::hint::spin_loop();
        }
        loop {
            let record = gpu.preempt(COMPUTE, round);
            causes[record.cause as usize] += 1;
            let completed = gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE);
            assert_eq!(record.completed, completed);
            if completed == fence {
                assert_eq!(record.cause, Cause::Idle);
                long = (long - long / 8).max(64);
                break;
            }
            long += long / 8;
            assert!(matches!(record.cause, Cause::Between | Cause::Within));
            if record.cause.is_saved() {
                exec = resumed(exec);
            }
            gpu.start(COMPUTE, &[exec]);
            for _ in 0..random.below(long) {
                std::hint::spin_loop();
            }
        }
        ended += 1;
        for thread in 0..3 * 48 {
            assert_eq!(
                gpu.vram32(COUNTERS + thread * 4),
                DISPATCHES * ended,
                "round {round}"
            );
        }
    }
    println!("causes {causes:?}, by {long}");
    assert_eq!(gpu.counter(Counter::Packet), u64::from(ended));
}

/// A tail that cannot be is found behind the record.
#[test]
fn a_bad_tail_is_not_withdrawn() {
    let (mut gpu, ..) = busy(Preemption::default());
    gpu.set_engine(
        COMPUTE,
        regs::engine::DOORBELL::new().with_tail(0xffff_fff1),
    );
    gpu.preempt(COMPUTE, 5);
    assert_eq!(gpu.wait_fault().reason, Reason::BadRing);
}
