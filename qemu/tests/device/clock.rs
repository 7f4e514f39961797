// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device clock (manual section 3): engines side by side, with no host between them.

use skua_asm::assemble;
use skua_gpu::options::{Options, Stepping};
use skua_gpu::vram;
use skua_spec::command::{Command, EngineKind};
use skua_spec::fault::Reason;
use skua_spec::number::EngineIndex;
use skua_spec::preemption::{Cause, Level};
use skua_spec::regs;
use skua_spec::status::{Counter, EngineState};
use skua_spec::ticks::{COMMAND, LINE};
use skua_testbed::{
    resumed, Gpu, COMPUTE, CONTEXT, COPY, DATA, DATA_BYTES, DATA_VA, ENGINES, VRAM_BYTES,
};

use crate::events::{record, Text};
use crate::preemption::{at_level, AREA};
use crate::steps::RACE;

/// What engines wait for.
const FLAG: u64 = vram::BASE + DATA;
/// What they contend for.
const TARGET: u64 = DATA + 0x1_0000;
/// Programs.
const PROGRAM: u64 = DATA + 0x2_0000;

/// A device of these engines by the clock, which can be preempted anywhere.
fn gpu(stepping: Stepping, engines: [EngineKind; 2]) -> Gpu {
    let gpu = Gpu::with_options(&Options {
        engines: engines.to_vec(),
        preemption: vec![at_level(Level::Instruction)],
        stepping,
        ..Options::default()
    });
    gpu.clear_vram(0x8_0000, VRAM_BYTES - 0x8_0000);
    gpu.set_save_area(CONTEXT, Some(AREA));
    gpu
}

/// One that the test steps.
fn stepped() -> Gpu {
    gpu(Stepping::Caller, [EngineKind::Compute, EngineKind::Copy])
}

fn advance(gpu: &Gpu, ticks: u64) -> u64 {
    gpu.device.advance(ticks).expect("a clock")
}

fn now(gpu: &Gpu) -> u64 {
    advance(gpu, 0)
}

/// Until no engine has anything to do.
fn finish(gpu: &Gpu) -> u64 {
    advance(gpu, u64::MAX)
}

/// `lines` of 64 bytes in VRAM, which is what an engine does for so many ticks.
fn fill(lines: u64) -> Command {
    Command::Fill {
        pattern: 5,
        address: vram::BASE + TARGET,
        bytes: lines * 64,
    }
}

fn wait(value: u64) -> Command {
    Command::Wait {
        address: FLAG,
        value,
    }
}

fn signal(value: u64) -> Command {
    Command::Signal {
        address: FLAG,
        value,
    }
}

/// The lines of a record: own time, engine, ticks and what happened.
fn told(text: &Text) -> Vec<(u64, u32, u64, String)> {
    let text = text.read();
    let lines = text
        .lines()
        .skip(1)
        .map(|line| line.splitn(4, ' ').collect::<Vec<_>>());
    lines
        .map(|words| {
            let number = |i: usize| words[i].parse::<u64>().unwrap();
            (
                number(0),
                number(1) as u32,
                number(2),
                words[3].split(' ').next().unwrap().to_owned(),
            )
        })
        .collect()
}

/// When `what` happened on an engine first.
fn when(text: &Text, engine: EngineIndex, what: &str) -> u64 {
    let told = told(text);
    let found = told
        .iter()
        .find(|(_, of, _, event)| *of == engine.get() && event == what);
    found.unwrap_or_else(|| panic!("{what}: {told:?}")).0
}

/// What can be told of a run when it is over.
#[derive(PartialEq, Eq)]
struct Run {
    counters: Vec<(&'static str, u64)>,
    ticks: [u64; 2],
    vram: Vec<u8>,
    record: String,
}

impl Run {
    fn of(gpu: Gpu, text: &Text) -> Self {
        let names = Counter::ALL;
        let run = Self {
            counters: names
                .iter()
                .map(|&(counter, name)| (name, gpu.counter(counter)))
                .collect(),
            ticks: [gpu.ticks(COMPUTE), gpu.ticks(COPY)],
            vram: gpu.vram_bytes(0, VRAM_BYTES as usize),
            record: String::new(),
        };
        drop(gpu);
        Self {
            record: text.read(),
            ..run
        }
    }

    #[track_caller]
    fn assert_same(&self, other: &Self) {
        assert_eq!(self.counters, other.counters);
        assert_eq!(self.record, other.record);
        assert_eq!(self.ticks, other.ticks);
        assert!(self.vram == other.vram, "VRAM differs");
    }
}

/// A dispatch for each engine, which count the same words up with atomic operations, and compute
/// with what they find there.
fn race(gpu: &mut Gpu) -> [Command; 2] {
    let program = assemble(&RACE.replace("and r14, r0, 31", "and r14, r0, 28")).unwrap();
    gpu.set_vram(PROGRAM, &program.bytes());
    [[3, 2, 1], [2, 2, 1]].map(|groups| {
        let target = DATA_VA + TARGET - DATA;
        let dispatch = program.dispatch(DATA_VA + PROGRAM - DATA, groups, |_| Some(target));
        Command::Dispatch(dispatch.unwrap())
    })
}

/// Puts both engines' work into their rings: engine 0 waits for engine 1, then they race, and
/// engine 1 comes to a command that is none. Returns engine 0's packet.
fn prepare(gpu: &mut Gpu) -> (Command, u64) {
    let [first, second] = race(gpu);
    let flag = DATA_VA;
    let (exec, fence) = gpu.exec(
        COMPUTE,
        &[
            Command::Wait {
                address: flag,
                value: 1,
            },
            first,
            Command::Signal {
                address: flag,
                value: 2,
            },
        ],
    );
    gpu.push(COMPUTE, &[exec]);
    let commands = [
        Command::Signal {
            address: flag,
            value: 1,
        },
        second,
        Command::Wait {
            address: flag,
            value: 2,
        },
    ];
    let mut words: Vec<u32> = commands
        .iter()
        .flat_map(|command| command.encode().words().to_vec())
        .collect();
    words.extend([u32::MAX, 0]);
    let (bad, _) = gpu.exec_words(COPY, &words);
    gpu.push(COPY, &[fill(100), bad]);
    (exec, fence)
}

/// All of it, with a preemption of engine 0 `at` that time.
fn contend(at: u64) -> Run {
    let mut gpu = gpu(Stepping::Caller, [EngineKind::Compute; 2]);
    let text = record(&gpu);
    let (exec, fence) = prepare(&mut gpu);
    gpu.doorbell(COMPUTE);
    gpu.doorbell(COPY);
    assert_eq!(advance(&gpu, at), at);
    let preempted = gpu.preempt(COMPUTE, 7);
    assert_eq!(preempted.cause, Cause::Within);
    gpu.start(COMPUTE, &[resumed(exec)]);
    gpu.wait_fence(COMPUTE, fence);
    let fault = gpu.wait_fault();
    assert_eq!((fault.engine.get(), fault.reason), (1, Reason::BadOpcode));
    gpu.reset_engine(COPY);
    gpu.start_engine(COPY);
    gpu.run(COPY, &[fill(10), Command::Invalidate { asid: None }]);
    finish(&gpu);
    Run::of(gpu, &text)
}

/// Measure 21.
#[test]
fn two_runs_are_equal() {
    let first = contend(2000);
    assert!(!first.counters.contains(&("saved_bytes", 0)));
    for _ in 0..9 {
        first.assert_same(&contend(2000));
    }
    // And not because nothing depends on the time.
    let results = |run: &Run| run.vram[TARGET as usize..PROGRAM as usize].to_vec();
    assert!(results(&first) != results(&contend(5000)));
}

#[test]
fn a_thread_by_the_clock_does_the_same_each_time() {
    let run = || {
        let mut gpu = gpu(Stepping::Clock, [EngineKind::Compute; 2]);
        let text = record(&gpu);
        let (_, fence) = prepare(&mut gpu);
        // The clock stands until the last doorbell.
        gpu.doorbell(COMPUTE);
        gpu.wait_state(COMPUTE, EngineState::Waiting);
        gpu.doorbell(COPY);
        gpu.wait_fence(COMPUTE, fence);
        gpu.wait_idle(COMPUTE);
        gpu.wait_fault();
        Run::of(gpu, &text)
    };
    let first = run();
    for _ in 0..9 {
        first.assert_same(&run());
    }
}

#[test]
fn a_device_of_threads_has_no_clock() {
    assert_eq!(Gpu::new().device.advance(1), None);
}

#[test]
fn engines_take_turns_tick_by_tick() {
    let mut gpu = gpu(Stepping::Caller, [EngineKind::Compute; 2]);
    // Each takes a number, and writes it down, 50 times.
    let program = assemble(
        ".threads 1
        .arg64 counter
        .arg64 list
            arg r2, counter
            arg r3, counter.hi
            arg r4, list
            arg r5, list.hi
            mov r6, 1
            mov r7, 50
        again:
            atom.add r8, [r2], r6
            st.32 [r4], r8
            add r4, r4, 4
            sub r7, r7, 1
            bnz r7, again
            exit",
    )
    .unwrap();
    gpu.set_vram(PROGRAM, &program.bytes());
    for engine in ENGINES {
        let list = vram::BASE + TARGET + 0x1000 * u64::from(engine.get() + 1);
        let arguments = |name: &str| match name {
            "counter" => Some(vram::BASE + TARGET),
            _ => Some(list),
        };
        let dispatch = program.dispatch(vram::BASE + PROGRAM, [1; 3], arguments);
        gpu.start(engine, &[Command::Dispatch(dispatch.unwrap())]);
    }
    let end = finish(&gpu);
    for i in 0..50 {
        let number = |engine: u64| gpu.vram32(TARGET + 0x1000 * (engine + 1) + i * 4);
        let i = i as u32;
        assert_eq!((number(0), number(1)), (2 * i, 2 * i + 1));
    }
    assert_eq!([gpu.ticks(COMPUTE), gpu.ticks(COPY)], [end; 2]);
}

#[test]
fn the_clock_advances_to_the_tick_and_no_further_than_there_is_work() {
    let mut gpu = stepped();
    assert_eq!(finish(&gpu), 0);
    gpu.start(COMPUTE, &[fill(1000)]);
    gpu.start(COPY, &[fill(100)]);
    assert_eq!(advance(&gpu, 37), 37);
    // Both are there.
    gpu.set(regs::STATUS_CTRL::new().with_enable(false));
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    assert_eq!(now(&gpu), 37);
    assert_eq!([gpu.ticks(COMPUTE), gpu.ticks(COPY)], [37; 2]);
    assert_eq!(advance(&gpu, 500), 537);
    let end = COMMAND + 1000 * LINE;
    assert_eq!(advance(&gpu, end), end);
    assert_eq!(finish(&gpu), end);
}

#[test]
fn idle_time_and_shares() {
    let mut gpu = stepped();
    let ticks = |gpu: &Gpu| [gpu.ticks(COMPUTE), gpu.ticks(COPY)];
    gpu.start(COMPUTE, &[fill(1000)]);
    gpu.start(COPY, &[fill(100)]);
    let (long, short) = (COMMAND + 1000 * LINE, COMMAND + 100 * LINE);
    let before = finish(&gpu);
    assert_eq!((before, ticks(&gpu)), (long, [long, short]));
    // Engine 1 had nothing to do for what is missing. It begins when engine 0 has ended, and engine
    // 0 goes on when it has come half way.
    gpu.start(COPY, &[fill(100)]);
    assert_eq!(advance(&gpu, 50), before + 50);
    gpu.start(COMPUTE, &[fill(1000)]);
    let after = finish(&gpu);
    assert_eq!(after, before + 50 + long);
    assert_eq!(ticks(&gpu), [2 * long, 2 * short]);
    let idle = ticks(&gpu).map(|ticks| after - ticks);
    assert_eq!(idle, [50, (long - short) + (50 + long - short)]);
}

#[test]
fn who_waits_holds_up_nobody_and_counts_nothing() {
    let run = |there: bool| {
        let mut gpu = stepped();
        let text = record(&gpu);
        gpu.set_vram64(DATA, u64::from(there));
        gpu.start(COPY, &[wait(1), fill(10)]);
        gpu.start(COMPUTE, &[fill(1000), signal(1), fill(1000)]);
        let end = finish(&gpu);
        let ticks = [gpu.ticks(COMPUTE), gpu.ticks(COPY)];
        let counters: Vec<_> = Counter::ALL.iter().map(|&(c, _)| gpu.counter(c)).collect();
        drop(gpu);
        (end, ticks, counters, text)
    };
    let (end, ticks, counters, text) = run(false);
    let (_, ticks_there, counters_there, _) = run(true);
    assert_eq!((&ticks, &counters), (&ticks_there, &counters_there));
    assert_eq!(ticks[1], COMMAND + COMMAND + 10 * LINE);
    assert_eq!(end, ticks[0]);
    // It goes on behind SIGNAL, to the tick.
    assert_eq!(when(&text, COPY, "wait"), COMMAND);
    let behind = (COMMAND + 1000 * LINE) + COMMAND;
    assert_eq!(when(&text, COPY, "go"), behind);
}

#[test]
fn a_value_that_nobody_signals_is_seen_soon() {
    let mut gpu = stepped();
    let text = record(&gpu);
    gpu.start(COPY, &[wait(1), fill(10)]);
    let flag = Command::Fill {
        pattern: 1,
        address: FLAG - 500 * 64,
        bytes: 2000 * 64,
    };
    gpu.start(COMPUTE, &[flag]);
    finish(&gpu);
    drop(gpu);
    let written = COMMAND + 501 * LINE;
    let seen = when(&text, COPY, "go");
    assert!((written..=written + 64).contains(&seen), "{seen}");
    // By the CPU, while no engine works: the clock stands.
    let mut gpu = stepped();
    let text = record(&gpu);
    gpu.start(COPY, &[wait(1), fill(10)]);
    gpu.start(COMPUTE, &[fill(1000)]);
    let before = finish(&gpu);
    assert_eq!(gpu.state(COPY), EngineState::Waiting as u32);
    assert_eq!(finish(&gpu), before);
    gpu.set_vram64(DATA, 1);
    assert_eq!(finish(&gpu), before + COMMAND + 10 * LINE);
    drop(gpu);
    assert_eq!(when(&text, COPY, "go"), before);
}

#[test]
fn latency_is_from_the_request_to_the_answer() {
    let mut gpu = stepped();
    let text = record(&gpu);
    let (exec, _) = gpu.exec(
        COMPUTE,
        &[Command::Fill {
            pattern: 1,
            address: DATA_VA,
            bytes: DATA_BYTES,
        }],
    );
    gpu.start(COMPUTE, &[exec]);
    gpu.start(COPY, &[fill(5000)]);
    assert_eq!(advance(&gpu, 700), 700);
    gpu.ask_to_preempt(COMPUTE, 3);
    finish(&gpu);
    assert_eq!(gpu.preempted(COMPUTE).cause, Cause::Within);
    let stopped = gpu.ticks(COMPUTE);
    // Engine 0 has nothing to do when it is asked again, and answers in no time.
    gpu.start(COPY, &[fill(5000)]);
    let asked = advance(&gpu, 60);
    gpu.ask_to_preempt(COMPUTE, 4);
    advance(&gpu, 1);
    assert_eq!(gpu.preempted(COMPUTE).cause, Cause::Idle);
    drop(gpu);
    assert_eq!(when(&text, COMPUTE, "preempt"), 700);
    // It did nothing but stop: its ticks since then are the latency.
    assert_eq!(when(&text, COMPUTE, "stop"), stopped);
    assert!((700..asked).contains(&stopped), "{stopped}");
    let told = told(&text);
    let last: Vec<_> = told.iter().filter(|(_, of, ..)| *of == 0).collect();
    let [.., (begin, .., preempt), (end, .., stop)] = last[..] else {
        panic!("{told:?}");
    };
    assert_eq!((preempt.as_str(), stop.as_str()), ("preempt", "stop"));
    assert_eq!((*begin, *end), (asked, asked));
}

#[test]
fn an_adapter_reset_does_not_set_the_clock_back() {
    let mut gpu = stepped();
    let text = record(&gpu);
    gpu.start(COMPUTE, &[fill(1000)]);
    let before = advance(&gpu, 500);
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.get(regs::DEVICE_STATUS).ready());
    assert_eq!(now(&gpu), before);
    gpu.set_up();
    gpu.start(COPY, &[fill(10)]);
    assert_eq!(finish(&gpu), before + COMMAND + 10 * LINE);
    assert_eq!(
        [gpu.ticks(COMPUTE), gpu.ticks(COPY)],
        [0, COMMAND + 10 * LINE]
    );
    drop(gpu);
    assert_eq!(when(&text, COMPUTE, "adapter-reset"), before);
}

#[test]
fn invalidations_take_no_time() {
    let mut gpu = stepped();
    let both = [Command::Invalidate { asid: None }, fill(100)];
    for engine in ENGINES {
        gpu.start(engine, &both);
    }
    let end = finish(&gpu);
    assert_eq!(end, 2 * COMMAND + 100 * LINE);
    assert_eq!([gpu.ticks(COMPUTE), gpu.ticks(COPY)], [end; 2]);
}
