// SPDX-License-Identifier: MIT

//! What goes on while the driver waits for an engine that does not stop. `guests.json` gives this
//! program a driver that is patient with it for longer than any test takes.

use std::process::ExitCode;

use skua_guest::host::Lies;
use skua_selftests::events::Trace;
use skua_selftests::race::Hold;
use skua_selftests::rig::{expect_working, wait_value, Job};
use skua_selftests::suite::{self, eventually};
use skua_selftests::{tests, Engine, Errno, Place, Rig};
use skua_uapi::*;

fn main() -> ExitCode {
    suite::main(tests![
        row_2_21_others_share_an_engine_while_one_is_deaf: 120 at_rest,
    ])
}

/// Two equals, neither of whose work ends or is cut into packets.
fn row_2_21_others_share_an_engine_while_one_is_deaf() {
    let rig = Rig::new().having_worked();
    let line = rig.buffer(Place::System, 4096);
    let others = [(); 2].map(|()| Rig::new().having_worked());
    let holds = others.each_ref().map(Hold::new);
    let copies = rig.engine(DRM_SKUA_ENGINE_COPY);
    let trace = Trace::of(&["skua_preempt", "skua_reset"]);
    let lies = Lies::tell(&format!("preempt-never={:#x}", 1 << copies)).expect("gpu-lie");
    let of_copies = |name: &str| {
        let events = trace.events().into_iter();
        let mut of_name = events.filter(|event| event.name == name);
        of_name.any(|event| event.get("engine") == copies.to_string())
    };
    let hang = rig.start(Engine::Copy, &[wait_value(line.va, 1)]);
    let asked = eventually(|| of_copies("skua_preempt").then_some(()));
    assert!(asked.is_some(), "it is not asked to stop");

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
    assert!(!of_copies("skua_reset"), "it was not waited for");

    assert_eq!(lies.told("preempt-never").ok(), Some(1));
    drop(lies);
    assert_eq!(hang.wait(), Err(Errno::ETIME));
    expect_working();
}
