// SPDX-License-Identifier: MIT

//! Engines that hang, again and again. `guests.json` gives this program a driver that is soon out
//! of patience.

use std::collections::BTreeSet;
use std::process::ExitCode;

use skua_guest::host::Lies;
use skua_selftests::client::PATIENCE;
use skua_selftests::events::Trace;
use skua_selftests::function::Function;
use skua_selftests::program::{address, COUNT, LOOP};
use skua_selftests::rig::{copy, dispatch, expect_working, fill, wait_value, write, Buffer, Job};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

fn main() -> ExitCode {
    suite::main(tests![row_2_01_a_hundred_hangs: 600])
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
