// SPDX-License-Identifier: MIT

//! Engines that hang, again and again. `guests.json` gives this program a driver that is soon out
//! of patience.

use std::collections::BTreeSet;
use std::process::ExitCode;

use skua_guest::host::{expect_error, request, Lies};
use skua_selftests::client::{wait, PATIENCE};
use skua_selftests::events::Trace;
use skua_selftests::function::Function;
use skua_selftests::program::{address, COUNT, LOOP};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, expect_working, fill, wait_value, write, Buffer, Job};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::becomes;
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_01_a_hundred_hangs: 600,
        row_2_21_what_faults_before_a_reset_that_comes_late: 120 at_rest,
        row_2_01_a_pause_of_the_device_is_no_refusal: 120,
        row_2_21_what_faults_while_it_is_to_stop_has_faulted: 120 at_rest,
        row_2_21_what_ends_before_the_adapter_is_reset_is_done: 120 at_rest,
    ])
}

/// An innocent client, with work on both engines.
struct Innocent {
    rig: Rig,
    program: Buffer,
    counts: Buffer,
    vram: Buffer,
    target: Buffer,
    /// Jobs submitted of each engine.
    jobs: u32,
}

impl Innocent {
    fn new() -> Self {
        let rig = Rig::new();
        Self {
            program: rig.program(COUNT),
            counts: rig.buffer(Place::System, 4096),
            vram: rig.buffer(Place::Vram, 64 << 10),
            target: rig.buffer(Place::System, 64 << 10),
            rig,
            jobs: 0,
        }
    }

    /// A job on each engine.
    fn start(&mut self) -> [Job<'_>; 2] {
        self.jobs += 1;
        let count = dispatch(&self.program, COUNT, &address(self.counts.va));
        let moves = [
            fill(self.jobs, self.vram.va, 64 << 10),
            copy(self.vram.va, self.target.va, 64 << 10),
        ];
        [
            self.rig.start(Engine::Compute, &[count]),
            self.rig.start(Engine::Copy, &moves),
        ]
    }

    /// Asserts that all jobs of the innocent client were done, each once.
    #[track_caller]
    fn expect_done(&self) {
        let pattern = u64::from(self.jobs);
        assert_eq!(self.counts.cpu.read32(0), self.jobs);
        self.target
            .cpu
            .expect("a copy", |_| pattern << 32 | pattern);
        for context in [self.rig.compute, self.rig.copy] {
            let state = self.rig.state(context).expect("CONTEXT_STATE");
            let expected = (DRM_SKUA_CONTEXT_ACTIVE, pattern);
            assert_eq!((state.status, state.completed), expected);
        }
    }
}

/// A hang: on which engine, by a program or by a wait; and something behind it.
fn hang<'a>(rig: &'a Rig, engine: Engine, gate: &Buffer, program: &Buffer) -> [Job<'a>; 2] {
    let endless = match engine {
        Engine::Compute => dispatch(program, LOOP, &[]),
        Engine::Copy => wait_value(gate.va, 1),
    };
    [
        rig.start(engine, &[endless]),
        rig.start(engine, &[write(gate.va + 8, 1)]),
    ]
}

/// What hangs is asked to make room, and is reset only if it does not; of all the others nobody
/// notices, and nothing is left.
fn row_2_01_a_hundred_hangs() {
    quiet();
    let observer = Client::new();
    let nothing = Witness::settled(&observer);
    let adapter = || Function::first().counters(["driver_adapter_resets"]);
    let adapter_resets = adapter();
    let mut innocent = Innocent::new();
    let (mut hangs, mut unanswered, mut resets) = (0, 0, 0);
    for round in 0..suite::rounds(50) {
        // Both engines each time; now and then they do not listen, which takes long.
        let deaf = round % 4 == 1;
        let lies = deaf.then(|| Lies::tell("preempt-never").expect("gpu-lie"));
        let trace = Trace::of(&["skua_preempt", "skua_reset"]);
        let rig = Rig::new().having_worked();
        let (gate, program) = (rig.buffer(Place::System, 4096), rig.program(LOOP));
        let guilty = Engine::ALL.map(|engine| hang(&rig, engine, &gate, &program));
        let jobs = innocent.start();
        for ([endless, behind], engine) in guilty.iter().zip(Engine::ALL) {
            let end = rig.wait_for(endless.syncobj, 4 * PATIENCE);
            assert_eq!(end, Err(Errno::ETIME), "round {round}, {engine:?}");
            assert_eq!(behind.wait(), Err(Errno::ECANCELED), "round {round}");
            hangs += 1;
            unanswered += u32::from(deaf);
        }
        for job in jobs {
            assert_eq!(job.wait(), Ok(()), "round {round}");
        }
        innocent.expect_done();
        assert_eq!(gate.cpu.read(8), 0, "round {round}: it went on");
        for engine in Engine::ALL {
            let status = rig
                .state(rig.context(engine))
                .expect("CONTEXT_STATE")
                .status;
            assert_eq!(status, DRM_SKUA_CONTEXT_TIMED_OUT, "round {round}");
        }
        // A reset follows a request, and there is none where that was answered.
        let mut asked = BTreeSet::new();
        let events = trace.events();
        for event in &events {
            let engine = event.get("engine");
            if event.name == "skua_preempt" {
                asked.insert(engine);
            } else {
                resets += 1;
                let why = deaf && asked.remove(engine);
                assert!(why, "round {round}: {events:#?}");
            }
        }
        assert!(!events.is_empty(), "round {round}: nobody was asked");
        drop(lies);
    }
    println!("# {hangs} hangs, {resets} resets of engines");
    assert_eq!(resets, unanswered);
    assert_eq!(adapter(), adapter_resets, "the adapter was reset");
    drop(innocent);
    nothing.expect_unchanged(&observer);
    expect_working();
}

/// What was to be reset has ended by then, so that there is no reset; but what came behind it has
/// stopped the engine.
fn row_2_21_what_faults_before_a_reset_that_comes_late() {
    // A host that does not run the driver in time may have the adapter reset; not ten times.
    expect_error("").expect("the kernel's log");
    assert!((0..10).any(|_| faults_before_the_reset()), "never in time");
    expect_working();
}

/// What hangs faults itself before it has stopped: that is what it has done.
fn row_2_21_what_faults_while_it_is_to_stop_has_faulted() {
    expect_error("").expect("the kernel's log");
    assert!((0..10).any(|_| faults_before_it_stops()), "never in time");
    expect_working();
}

/// Has work begin when `line` comes to 1.
#[track_caller]
fn start_with<'a>(line: &SoftwareTimeline, rig: &'a Rig, commands: &[Command]) -> Job<'a> {
    let gate = wait(rig.syncobj_of(line.fence(1)));
    let job = rig.start_after(rig.compute, commands, &[gate]);
    job.expect("SUBMIT")
}

/// Whether it did in time.
#[track_caller]
fn faults_before_it_stops() -> bool {
    let rig = Rig::new().having_worked();
    let hold = Hold::new(&rig);
    let nowhere = rig.reserve(4096);
    let trace = Trace::of(&["skua_preempt", "skua_reset"]);
    let lies = Lies::tell("preempt-never").expect("gpu-lie");
    let overdue = rig.start_in(rig.compute, &[hold.command(), write(nowhere, 1)]);
    becomes("it is asked to stop", || !trace.events().is_empty());
    let met = trace.names() == ["skua_preempt"];
    hold.release();
    let end = overdue.wait();
    drop(lies);
    let state = rig.state(rig.compute).expect("CONTEXT_STATE");
    println!("# met {met}: {end:?}, {state:?}");
    if !met || end == Err(Errno::ETIME) {
        return false;
    }
    assert_eq!(end, Err(Errno::EFAULT));
    assert_eq!(state.status, DRM_SKUA_CONTEXT_FAULTED);
    assert_eq!(state.address, nowhere);
    true
}

/// Neither stops nor is reset, and ends all the same before the adapter is reset for that: it and
/// what came behind it are done, and nobody is to blame.
fn row_2_21_what_ends_before_the_adapter_is_reset_is_done() {
    expect_error("").expect("the kernel's log");
    let rig = Rig::new().having_worked();
    let hold = Hold::new(&rig);
    let written = rig.buffer(Place::System, 4096);
    let resets = || Function::first().counters(["driver_adapter_resets"])[0];
    let trace = Trace::of(&["skua_reset"]);
    let lies = Lies::tell("preempt-never engine-reset-never").expect("gpu-lie");
    let before = resets();
    let overdue = hold.begin(&rig, rig.compute);
    let behind = rig.start(Engine::Compute, &[write(written.va, 7)]);
    becomes("it is reset", || !trace.events().is_empty());
    hold.release();
    let ends = [&overdue, &behind].map(|job| job.client().wait_for(job.syncobj, 4 * PATIENCE));
    drop(lies);
    assert_eq!(ends, [Ok(()), Ok(())]);
    assert_eq!(written.cpu.read(0), 7);
    // What has ended is told before.
    becomes("the adapter is reset", || resets() > before);
    expect_working();
    let state = rig.state(rig.compute).expect("CONTEXT_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_RESET);
}

/// A host that does not run the device is no device that does not answer: it has the rest of its
/// time when it runs again.
fn row_2_01_a_pause_of_the_device_is_no_refusal() {
    quiet();
    let rig = Rig::new().having_worked();
    let (gate, program) = (rig.buffer(Place::System, 4096), rig.program(LOOP));
    let resets = || Function::first().counters(["driver_adapter_resets"])[0];
    let trace = Trace::of(&["skua_reset"]);
    let lies = Lies::tell("preempt-never engine-reset-never").expect("gpu-lie");
    let before = resets();
    let [endless, behind] = hang(&rig, Engine::Compute, &gate, &program);
    becomes("it is reset", || !trace.events().is_empty());
    // For longer than a reset of an engine may take, and it listens soon after that.
    request("gpu-pause 8000").expect("gpu-pause");
    drop(lies);
    let end = rig.wait_for(endless.syncobj, 4 * PATIENCE);
    assert_eq!(
        (end, behind.wait()),
        (Err(Errno::ETIME), Err(Errno::ECANCELED))
    );
    assert_eq!(resets(), before, "the adapter was reset");
    expect_working();
}

/// Whether it did, and the adapter was not reset.
#[track_caller]
fn faults_before_the_reset() -> bool {
    let [rig, guilty, other] = [(); 3].map(|()| Rig::new().having_worked());
    let hold = Hold::new(&rig);
    let written = other.buffer(Place::System, 4096);
    let counts = || Function::first().counters(["fault", "driver_adapter_resets"]);
    let trace = Trace::of(&["skua_reset"]);
    let lies = Lies::tell("preempt-never engine-reset-never").expect("gpu-lie");
    let before = counts();
    // With the engine before the first one's turn is over: what comes later is kept from it.
    let line = SoftwareTimeline::new();
    let overdue = start_with(&line, &rig, &[hold.command()]);
    let faults = start_with(&line, &guilty, &[write(guilty.reserve(4096), 1)]);
    let behind = start_with(&line, &other, &[write(written.va, 7)]);
    line.advance(1);
    becomes("it is reset", || !trace.events().is_empty());
    // In the order in which they were to begin.
    let in_order = counts() == before;
    hold.release();
    // Or the adapter was reset before it came to that.
    becomes("it faults", || counts() != before);
    drop(lies);
    let ends = [overdue.wait(), faults.wait(), behind.wait()];
    let met = in_order && counts()[1] == before[1];
    println!(
        "# met {met}: {in_order} {ends:?}, {} resets",
        trace.events().len()
    );
    if met {
        assert_eq!(ends, [Ok(()), Err(Errno::EFAULT), Ok(())]);
        assert_eq!(written.cpu.read(0), 7);
    }
    met
}
