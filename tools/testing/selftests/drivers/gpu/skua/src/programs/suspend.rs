// SPDX-License-Identifier: MIT

//! The system sleeps, and the device loses its power: nothing is lost but that, whatever the driver
//! was at.
//!
//! `guests.json` gives this program a driver that is soon out of patience with work, and a guest
//! that may sleep.

use std::hint::spin_loop;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_guest::host::{expect_error, Lies};
use skua_selftests::asleep::sleep_well;
use skua_selftests::client::{signal_value, wait, wait_value, PATIENCE};
use skua_selftests::function::Unbound;
use skua_selftests::moving::{
    evict_all, expect_gpu, explicit, locked, movable_in_vram, out, pattern, place,
};
use skua_selftests::power::Sleep;
use skua_selftests::program::LOOP;
use skua_selftests::race::{Caller, Hold};
use skua_selftests::rig::{copy, dispatch, expect_working, fill, write};
use skua_selftests::stage::{Paging, Stage};
use skua_selftests::suite::{self, eventually};
use skua_selftests::{asleep, tests, Client, Engine, Errno, Place, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_0_26_memory_and_maps_are_there_again: 60 at_rest,
        again_and_again: 120,
        work_that_was_accepted_is_done: 60,
        work_held_for_a_fence_stays_held: 60,
        fences_keep_their_values: 60,
        row_0_21_what_waits_for_an_unlock_waits_on: 60 at_rest,
        row_0_21_what_is_unlocked_on_the_way_is_not_lost: 120 at_rest,
        what_is_let_go_of_on_the_way_loses_nothing: 120,
        what_hangs_is_cut_before: 60,
        while_an_engine_does_not_make_room: 120 at_rest,
        while_an_engine_saves_a_state: 120 at_rest,
        while_what_hangs_does_not_stop: 120 at_rest,
        while_an_engine_is_reset: 120 at_rest,
        while_the_adapter_is_reset: 120 at_rest,
        while_memory_moves: 120 at_rest,
        while_held_work_is_let_go: 120 at_rest,
        a_reset_that_is_late_costs_nothing: 120 at_rest,
        a_reset_that_does_not_come_loses_the_device: 120 at_rest,
        a_start_that_does_not_come_loses_the_device: 120 at_rest,
        vram_that_is_not_cleared_loses_the_device: 120 at_rest,
    ])
}

const SIZE: u64 = 1 << 20;

const SLEEP: Sleep = Sleep::Devices;

fn row_0_26_memory_and_maps_are_there_again() {
    asleep::memory_and_maps_are_there_again(SLEEP);
}

fn again_and_again() {
    asleep::again_and_again(SLEEP);
}

fn work_that_was_accepted_is_done() {
    asleep::work_that_was_accepted_is_done(SLEEP);
}

fn work_held_for_a_fence_stays_held() {
    asleep::work_held_for_a_fence_stays_held(SLEEP);
}

fn fences_keep_their_values() {
    asleep::fences_keep_their_values(SLEEP);
}

fn row_0_21_what_waits_for_an_unlock_waits_on() {
    let (rig, device) = explicit();
    let (handle, va) = out(&rig, SIZE);
    let cpu = locked(&rig, handle, SIZE);
    let fence = rig.fence(0);
    for round in 1..=2 {
        let syncs = [signal_value(fence, round)];
        let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
        assert_eq!(begun, Ok(0), "round {round}");
        cpu.fill(pattern(round));
        sleep_well(SLEEP);
        assert!(!rig.fence_has(fence, round), "round {round}");
        assert_eq!(place(&rig, handle), Place::System);
        cpu.expect("under the lock", pattern(round));
    }
    assert_eq!(rig.unlock(handle), Ok(()));
    assert!(rig.fence_gets(fence, 2));
    assert_eq!(place(&rig, handle), Place::Vram);
    expect_gpu(&rig, "what the CPU wrote", va, SIZE, pattern(2));
}

/// It comes to VRAM while all leaves that.
fn row_0_21_what_is_unlocked_on_the_way_is_not_lost() {
    let (rig, device) = explicit();
    let (handle, va) = out(&rig, SIZE);
    let (client, fence): (&Client, u32) = (&rig, rig.fence(0));
    for round in 1..=u64::from(suite::rounds(12)) {
        let cpu = locked(&rig, handle, SIZE);
        cpu.fill(pattern(round));
        let syncs = [signal_value(fence, round)];
        let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
        assert_eq!(begun, Ok(0), "round {round}");
        thread::scope(|scope| {
            let unlocking = scope.spawn(move || {
                (0..round * 100_000).for_each(|_| spin_loop());
                client.unlock(handle)
            });
            sleep_well(SLEEP);
            assert_eq!(unlocking.join().expect("a thread"), Ok(()));
        });
        assert!(rig.fence_gets(fence, round), "round {round}");
        // Wherever it is, work has it.
        expect_gpu(&rig, "what the CPU wrote", va, SIZE, pattern(round));
        assert_eq!(place(&rig, handle), Place::Vram, "round {round}");
        assert_eq!(rig.evict_for(device, &[handle]), Ok(()));
        evict_all();
        assert_eq!(place(&rig, handle), Place::System, "round {round}");
    }
}

/// Its value comes while the system goes to sleep, and it wants in VRAM what has just left.
fn what_is_let_go_of_on_the_way_loses_nothing() {
    let [rig, other] = [(); 2].map(|()| Rig::new().having_worked());
    let long = other.buffer(Place::System, 4 << 20);
    let seen = rig.buffer(Place::System, SIZE);
    for round in 0..suite::rounds(12) {
        let kept = rig.buffer(Place::Vram, SIZE);
        kept.cpu.fill(pattern(round.into()));
        let fence = rig.fence_create(0).expect("FENCE_CREATE");
        let held = rig
            .start_after(
                rig.copy,
                &[copy(kept.va, seen.va, SIZE)],
                &[wait_value(fence, 1)],
            )
            .expect("SUBMIT");
        let shared = rig.fence_export(fence).expect("FENCE_EXPORT");
        let theirs = other.fence_import(&shared).expect("FENCE_IMPORT");
        // From next to nothing to longer than all has left.
        let work = vec![fill(7, long.va, 4 << 20); 1 + 3 * round as usize];
        let signals = other
            .start_after(other.compute, &work, &[signal_value(theirs, 1)])
            .expect("SUBMIT");
        sleep_well(SLEEP);
        assert_eq!(signals.wait(), Ok(()), "round {round}");
        assert_eq!(held.wait(), Ok(()), "round {round}");
        let what = format!("round {round}");
        seen.cpu.expect(&what, pattern(round.into()));
        expect_gpu(&rig, &what, kept.va, SIZE, pattern(round.into()));
    }
}

fn what_hangs_is_cut_before() {
    let [guilty, other] = [(); 2].map(|()| Rig::new().having_worked());
    let endless = guilty.program(LOOP);
    let target = other.buffer(Place::Vram, 4096);
    let hangs = guilty.start(Engine::Compute, &[dispatch(&endless, LOOP, &[])]);
    let behind = other.start(Engine::Compute, &[write(target.va, 7)]);
    sleep_well(SLEEP);
    assert_eq!(hangs.wait(), Err(Errno::ETIME));
    assert_eq!(behind.wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 7);
}

fn while_an_engine_does_not_make_room() {
    sleep_in(Stage::Asked);
}

fn while_an_engine_saves_a_state() {
    sleep_in(Stage::Saving);
}

fn while_what_hangs_does_not_stop() {
    sleep_in(Stage::Overdue);
}

fn while_an_engine_is_reset() {
    sleep_in(Stage::EngineReset);
}

/// Which does not end: the device is lost, and sleeps nevertheless.
fn while_the_adapter_is_reset() {
    sleep_in(Stage::AdapterReset);
}

/// An engine brings what work needs into VRAM, which is to be empty.
fn while_memory_moves() {
    let met = (0..4).any(|_| sleep_when_memory_moves());
    assert!(met, "it was never met");
    expect_working();
}

/// Whether the system slept then.
#[track_caller]
fn sleep_when_memory_moves() -> bool {
    let rig = Rig::new().having_worked();
    let moves = rig.buffer(Place::Vram, SIZE);
    moves.cpu.fill(pattern(1));
    let seen = rig.buffer(Place::System, SIZE);
    evict_all();
    let paging = Paging::late(200);
    let work = rig.start(Engine::Copy, &[copy(moves.va, seen.va, SIZE)]);
    let met = paging.is_met();
    let slept = SLEEP.fall();
    println!("# met {met}: {slept:?}");
    assert!(slept.is_ok(), "{slept:?}");
    drop(paging.lies);
    assert_eq!(work.wait(), Ok(()));
    seen.cpu.expect("what was copied", pattern(1));
    expect_gpu(&rig, "what moved", moves.va, SIZE, pattern(1));
    met
}

/// A worker has it, and tries again, as the CPU has locked what it needs.
fn while_held_work_is_let_go() {
    let met = (0..4).any(|_| sleep_when_work_is_let_go());
    assert!(met, "it was never met");
    expect_working();
}

/// Whether the worker was not out of patience before.
#[track_caller]
fn sleep_when_work_is_let_go() -> bool {
    let rig = Rig::new().having_worked();
    let vram = 1 << rig.region(Place::Vram).id;
    let locked = rig.bo_create(SIZE, 0, vram).expect("BO_CREATE");
    let va = rig.bound_at_will(locked, SIZE);
    let fence = rig.fence_create(0).expect("FENCE_CREATE");
    evict_all();
    assert!(rig.lock(locked).is_ok(), "BO_LOCK");
    let held = rig
        .start_after(rig.compute, &[fill(7, va, SIZE)], &[wait_value(fence, 1)])
        .expect("SUBMIT");
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    // Several times.
    thread::sleep(Duration::from_millis(100));
    let slept = SLEEP.fall();
    let waits = rig.try_wait(held.syncobj, Duration::ZERO) == Err(Errno::ETIME);
    println!("# {slept:?}, waits {waits}");
    assert!(slept.is_ok(), "{slept:?}");
    assert_eq!(rig.unlock(locked), Ok(()));
    let end = held.wait();
    if waits && end == Ok(()) {
        expect_gpu(&rig, "behind it", va, SIZE, |_| 7 << 32 | 7);
        return true;
    }
    assert_eq!(end, Err(Errno::ECANCELED));
    false
}

/// That with which its sleep begins, and that with which it ends.
fn a_reset_that_is_late_costs_nothing() {
    const LATE: &str = "adapter-reset-late";
    let rig = Rig::new().having_worked();
    let kept = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    kept.cpu.fill(pattern(1));
    let lies = Lies::tell("adapter-reset-late=500").expect("gpu-lie");
    sleep_well(SLEEP);
    assert!(lies.told(LATE).expect("gpu-told") >= 2, "it was not late");
    drop(lies);
    kept.cpu.expect("awake", pattern(1));
    expect_gpu(&rig, "awake", kept.va, SIZE, pattern(1));
    expect_working();
}

/// When the sleep begins.
fn a_reset_that_does_not_come_loses_the_device() {
    lose_asleep("adapter-reset-never");
}

/// When it ends.
fn a_start_that_does_not_come_loses_the_device() {
    lose_asleep("never-ready");
}

/// Likewise: no work ends.
fn vram_that_is_not_cleared_loses_the_device() {
    lose_asleep("fence-never");
}

/// The system sleeps and wakes all the same, with a device that is lost on the way by this lie: all
/// waits end, and what the CPU has written is there still.
#[track_caller]
fn lose_asleep(lie: &str) {
    expect_error("").expect("the kernel's log");
    let rig = Rig::new().having_worked();
    let kept = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    kept.cpu.fill(pattern(1));
    let fence = rig.fence_create(0).expect("FENCE_CREATE");
    let held = rig
        .start_after(rig.compute, &[], &[wait_value(fence, 1)])
        .expect("SUBMIT");
    // From here on engines have nothing to do, and nothing is in VRAM.
    sleep_well(SLEEP);
    let lies = Lies::tell(lie).expect("gpu-lie");
    let (client, caller): (&Client, _) = (&rig, Caller::new());
    thread::scope(|scope| {
        let waits =
            scope.spawn(|| caller.call(|| client.fence_wait(&[(fence, 7)], 0, 8 * PATIENCE)));
        caller.wait_until_asleep();
        let slept = SLEEP.fall();
        println!("# {slept:?}");
        assert!(slept.is_ok(), "{slept:?}");
        assert!(lies.told(lie).expect("gpu-told") > 0, "it was not told");
        assert_eq!(rig.submit(rig.copy, &[], &[]), Err(Errno::EIO));
        assert_eq!(waits.join().expect("a thread").map(drop), Err(Errno::EIO));
    });
    assert_eq!(held.wait(), Err(Errno::ENODEV));
    kept.cpu.expect("of a lost device", pattern(1));
    drop(lies);
    drop(Unbound::first());
    expect_working();
}

/// The system sleeps in this stage; what is slow may be late for it, but not always.
#[track_caller]
fn sleep_in(stage: Stage) {
    // What the driver says of its resets, and the kernel of a device that was lost.
    expect_error("").expect("the kernel's log");
    let met = (0..4).any(|_| sleep_when(stage));
    assert!(met, "{stage:?} was never met");
}

/// Whether the system slept in this stage.
#[track_caller]
fn sleep_when(stage: Stage) -> bool {
    let [guilty, other] = [(); 2].map(|()| Rig::new().having_worked());
    let endless = guilty.program(LOOP);
    let hold = Hold::new(&guilty);
    let [target, written] = [&guilty, &other].map(|rig| rig.buffer(Place::System, 4096));
    let kept = movable_in_vram(&other, SIZE);
    let kept = other.bound(kept, SIZE);
    kept.cpu.fill(pattern(3));
    let [low, high] = [-7, 7].map(|priority| {
        let context = guilty.context_having_worked(Engine::Compute);
        assert_eq!(guilty.prioritise(context, priority), Ok(()));
        context
    });
    let trace = Stage::trace();
    let lies = Lies::tell(stage.lies()).expect("gpu-lie");
    let running = match stage {
        Stage::Asked | Stage::Saving => hold.begin(&guilty, low),
        _ => guilty.start_in(low, &[dispatch(&endless, LOOP, &[])]),
    };
    let urgent = [Stage::Asked, Stage::Saving].contains(&stage);
    let urgent = urgent.then(|| guilty.start_in(high, &[write(target.va, 1)]));
    let stops = other.syncobj_of(guilty.sync_file(running.syncobj));
    let gated = other
        .start_after(other.copy, &[write(written.va, 1)], &[wait(stops)])
        .expect("SUBMIT");
    let met = eventually(|| stage.is_now(&trace, &lies).then_some(())).is_some();

    let slept = SLEEP.fall();
    let works = other.submit(other.copy, &[], &[]);
    println!("# met {met}: {slept:?}, then {works:?}");
    assert!(slept.is_ok(), "{slept:?}");
    // An engine that is not reset costs all that is in VRAM; the power that comes back helps no
    // device that was given up.
    assert_eq!(
        works,
        match stage {
            Stage::Asked | Stage::Saving | Stage::Overdue => Ok(()),
            Stage::EngineReset => Err(Errno::ECANCELED),
            Stage::AdapterReset => Err(Errno::EIO),
        }
    );
    drop(lies);
    let ends = [Some(&running), urgent.as_ref(), Some(&gated)]
        .into_iter()
        .flatten()
        .map(|job| job.client().wait_for(job.syncobj, PATIENCE))
        .collect::<Vec<_>>();
    println!("# {ends:?}");
    assert!(!ends.contains(&Err(Errno::ETIMEDOUT)), "{ends:?}");
    match stage {
        Stage::Asked | Stage::Saving | Stage::Overdue => {
            expect_gpu(&other, "who was innocent", kept.va, SIZE, pattern(3));
        }
        Stage::EngineReset => kept.cpu.expect("after a reset", |_| 0),
        Stage::AdapterReset => drop(Unbound::first()),
    }
    expect_working();
    met
}
