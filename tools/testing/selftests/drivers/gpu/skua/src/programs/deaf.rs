// SPDX-License-Identifier: MIT

//! What goes on while the driver waits for an engine that does not stop. `guests.json` gives this
//! program a driver that is patient with it for longer than any test takes.

use std::process::ExitCode;

use skua_guest::host::Lies;
use skua_selftests::events::Trace;
use skua_selftests::program::LOOP;
use skua_selftests::race::Hold;
use skua_selftests::rig::{dispatch, expect_working, wait_value, write, Job};
use skua_selftests::suite::{self, becomes, eventually};
use skua_selftests::{tests, Engine, Errno, Place, Rig};
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_21_others_share_an_engine_while_one_is_deaf: 120 at_rest,
        row_2_21_faults_elsewhere_are_seen_to_while_one_is_deaf: 120 at_rest,
        row_2_21_what_hangs_elsewhere_is_cut_while_one_is_deaf: 120 at_rest,
        row_2_19_a_wait_that_is_cut_is_in_nobodys_way: 120 at_rest,
    ])
}

/// An engine that the driver waits for, as it does not stop what hangs there.
struct Deaf<'a> {
    hang: Job<'a>,
    trace: Trace,
    engine: String,
    lies: Lies,
}

impl<'a> Deaf<'a> {
    /// That copies, from now on.
    #[track_caller]
    fn new(rig: &'a Rig) -> Self {
        let line = rig.buffer(Place::System, 4096);
        let engine = rig.engine(DRM_SKUA_ENGINE_COPY);
        let trace = Trace::of(&["skua_preempt", "skua_reset"]);
        let lies = Lies::tell(&format!("preempt-never={:#x}", 1 << engine)).expect("gpu-lie");
        let deaf = Self {
            hang: rig.start(Engine::Copy, &[wait_value(line.va, 1)]),
            trace,
            engine: engine.to_string(),
            lies,
        };
        becomes("it is asked to stop", || deaf.was("skua_preempt"));
        deaf
    }

    fn was(&self, name: &str) -> bool {
        let events = self.trace.events();
        let mut of_name = events.iter().filter(|event| event.name == name);
        of_name.any(|event| event.get("engine") == self.engine)
    }

    /// Asserts that it was until now; then it stops.
    #[track_caller]
    fn end(self) {
        assert!(!self.was("skua_reset"), "it was not waited for");
        assert_eq!(self.lies.told("preempt-never").ok(), Some(1));
        drop(self.lies);
        assert_eq!(self.hang.wait(), Err(Errno::ETIME));
        expect_working();
    }
}

/// Two equals, neither of whose work ends or is cut into packets.
fn row_2_21_others_share_an_engine_while_one_is_deaf() {
    let rig = Rig::new().having_worked();
    let others = [(); 2].map(|()| Rig::new().having_worked());
    let holds = others.each_ref().map(Hold::new);
    let deaf = Deaf::new(&rig);
    let jobs: Vec<Job<'_>> = (others.iter().zip(&holds))
        .map(|(rig, hold)| rig.start(Engine::Compute, &[hold.command()]))
        .collect();
    let used = || {
        let used = |rig: &Rig| rig.state(rig.compute).expect("CONTEXT_STATE").ticks;
        others.each_ref().map(used)
    };
    for round in 1..=5 {
        let before = used();
        let more = || (0..2).all(|n| used()[n] > before[n]).then_some(());
        let has_more = eventually(more).is_some();
        println!("# round {round}: {before:?} ticks, then {:?}", used());
        assert!(has_more, "round {round}: one has the engine for itself");
    }
    holds.iter().for_each(Hold::release);
    assert!(jobs.iter().all(|job| job.wait() == Ok(())));
    deaf.end();
}

/// Who is behind what faults is innocent, and does not stand for that.
fn row_2_21_faults_elsewhere_are_seen_to_while_one_is_deaf() {
    let [rig, other] = [(); 2].map(|()| Rig::new().having_worked());
    let guilty = [(); 3].map(|()| Rig::new().having_worked());
    let written = other.buffer(Place::System, 4096);
    let deaf = Deaf::new(&rig);
    for (round, guilty) in (1..).zip(&guilty) {
        let faults = guilty.start(Engine::Compute, &[write(guilty.reserve(4096), 1)]);
        let behind = other.start(Engine::Compute, &[write(written.va, round)]);
        let ended = eventually(|| behind.has_ended().then_some(())).is_some();
        println!("# round {round}: ended {ended}");
        assert!(ended, "round {round}: it stands");
        assert_eq!(behind.wait(), Ok(()), "round {round}");
        assert_eq!(written.cpu.read(0), round);
        assert_eq!(faults.wait(), Err(Errno::EFAULT), "round {round}");
    }
    deaf.end();
}

/// Nor for what works without end.
fn row_2_21_what_hangs_elsewhere_is_cut_while_one_is_deaf() {
    let [rig, guilty, other] = [(); 3].map(|()| Rig::new().having_worked());
    let endless = guilty.program(LOOP);
    let written = other.buffer(Place::System, 4096);
    let deaf = Deaf::new(&rig);
    let hangs = guilty.start(Engine::Compute, &[dispatch(&endless, LOOP, &[])]);
    let cut = eventually(|| hangs.has_ended().then_some(())).is_some();
    println!("# cut {cut}");
    assert!(cut, "it is not cut");
    assert_eq!(hangs.wait(), Err(Errno::ETIME));
    let behind = other.start(Engine::Compute, &[write(written.va, 7)]);
    assert_eq!(behind.wait(), Ok(()));
    assert_eq!(written.cpu.read(0), 7);
    deaf.end();
}

/// Nor is the watchdog needed for that.
fn row_2_19_a_wait_that_is_cut_is_in_nobodys_way() {
    let rigs = [(); 3].map(|()| Rig::new().having_worked());
    let [rig, waits, works] = &rigs;
    let [value, done] = [waits, works].map(|rig| rig.buffer(Place::System, 4096));
    let deaf = Deaf::new(rig);
    let waiter = waits.start(Engine::Compute, &[wait_value(value.va, 1)]);
    let behind = waits.start(Engine::Compute, &[write(value.va + 8, 1)]);
    let mut rounds = 0;
    let cut = eventually(|| {
        rounds += 1;
        let job = works.start(Engine::Compute, &[write(done.va, rounds)]);
        assert_eq!(job.wait(), Ok(()), "round {rounds}");
        waiter.has_ended().then_some(())
    });
    println!("# {rounds} jobs until it was cut");
    assert!(cut.is_some(), "it is not cut");
    assert_eq!(waiter.wait(), Err(Errno::ETIME));
    assert_eq!(behind.wait(), Err(Errno::ECANCELED));
    assert_eq!(value.cpu.read(8), 0);
    let status = waits.state(waits.compute).expect("CONTEXT_STATE").status;
    assert_eq!(status, DRM_SKUA_CONTEXT_TIMED_OUT);
    deaf.end();
}
