// SPDX-License-Identifier: MIT

//! The driver goes, or its device, while it mends what went wrong, or is at something else that
//! takes time: every wait ends, every fence says why, and the device can be bound again.
//!
//! A stage lasts until a lie ends, or a time-out, so that the unplug meets it; a host that is too
//! slow for that may try again. `guests.json` gives this program a driver that is soon out of
//! patience with work, not with an engine that does not stop.

use std::fs;
use std::mem::forget;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_guest::host::{expect_error, Lies};
use skua_selftests::client::{map, signal, signal_value, status_of, wait, wait_value, PATIENCE};
use skua_selftests::function::{Function, Unbound};
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{
    evict_all, evict_some, explicit, locked, movable_in_vram, out, pattern, Uncleared,
};
use skua_selftests::program::LOOP;
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, expect_working, write, Job};
use skua_selftests::stage::{Paging, Stage};
use skua_selftests::suite::eventually;
use skua_selftests::witness::shmem;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        unbound_while_an_engine_does_not_make_room: 120,
        removed_while_an_engine_does_not_make_room: 120,
        unbound_while_an_engine_saves_a_state: 120,
        removed_while_an_engine_saves_a_state: 120,
        unbound_while_what_hangs_does_not_stop: 120,
        removed_while_what_hangs_does_not_stop: 120,
        unbound_while_an_engine_is_reset: 120,
        removed_while_an_engine_is_reset: 120,
        unbound_while_the_adapter_is_reset: 120,
        removed_while_the_adapter_is_reset: 120,
        unbound_while_memory_moves: 120 at_rest,
        removed_while_memory_moves: 120 at_rest,
        unbound_while_memory_leaves_vram: 120 at_rest,
        removed_while_memory_leaves_vram: 120 at_rest,
        unbound_while_a_fault_waits_for_clean_memory: 120 at_rest,
        removed_while_a_fault_waits_for_clean_memory: 120 at_rest,
        unbound_while_held_work_is_let_go: 120 at_rest,
        removed_while_held_work_is_let_go: 120 at_rest,
        row_0_21_unbound_while_residency_waits_for_an_unlock: 60,
        row_0_21_removed_while_residency_waits_for_an_unlock: 60,
    ])
}

fn unbound_while_an_engine_does_not_make_room() {
    meet(Stage::Asked, Way::Unbind);
}

fn removed_while_an_engine_does_not_make_room() {
    meet(Stage::Asked, Way::Remove);
}

fn unbound_while_an_engine_saves_a_state() {
    meet(Stage::Saving, Way::Unbind);
}

fn removed_while_an_engine_saves_a_state() {
    meet(Stage::Saving, Way::Remove);
}

fn unbound_while_what_hangs_does_not_stop() {
    meet(Stage::Overdue, Way::Unbind);
}

fn removed_while_what_hangs_does_not_stop() {
    meet(Stage::Overdue, Way::Remove);
}

fn unbound_while_an_engine_is_reset() {
    meet(Stage::EngineReset, Way::Unbind);
}

fn removed_while_an_engine_is_reset() {
    meet(Stage::EngineReset, Way::Remove);
}

fn unbound_while_the_adapter_is_reset() {
    meet(Stage::AdapterReset, Way::Unbind);
}

fn removed_while_the_adapter_is_reset() {
    meet(Stage::AdapterReset, Way::Remove);
}

fn row_0_21_unbound_while_residency_waits_for_an_unlock() {
    meet_pending(Way::Unbind);
}

fn row_0_21_removed_while_residency_waits_for_an_unlock() {
    meet_pending(Way::Remove);
}

const SIZE: u64 = 4 << 20;

/// How the device goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The driver is unbound from the device.
    Unbind,
    /// The device is removed from its bus.
    Remove,
}

/// A device that is not on the bus, for a moment.
struct Removed;

impl Removed {
    #[track_caller]
    fn first() -> Self {
        let function = Function::first();
        fs::write(function.sysfs().join("remove"), "1").expect("remove");
        assert!(Function::all().is_empty());
        Self
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if let Err(error) = fs::write("/sys/bus/pci/rescan", "1") {
            println!("rescan: {error}");
            std::process::exit(1);
        }
    }
}

/// What brings the device back. The lies end first, also when a test fails.
struct Unplugged {
    _lies: Option<Lies>,
    _unbound: Option<Unbound>,
    _removed: Option<Removed>,
}

impl Unplugged {
    #[track_caller]
    fn new(way: Way, lies: Option<Lies>) -> Self {
        Self {
            _lies: lies,
            _unbound: (way == Way::Unbind).then(Unbound::first),
            _removed: (way == Way::Remove).then(Removed::first),
        }
    }
}

/// The device goes while a MAKE_RESIDENT waits for an unlock, which is refused then. The object is
/// its client's as long as that has it, and no longer.
#[track_caller]
fn meet_pending(way: Way) {
    const SIZE: u64 = 16 << 20;
    let (rig, device) = explicit();
    let before = shmem();
    let (handle, _) = out(&rig, SIZE);
    let cpu = locked(&rig, handle, SIZE);
    cpu.fill(pattern(1));
    let [fence, idle] = [(); 2].map(|()| rig.fence(0));
    let syncs = [signal_value(fence, 1)];
    assert_eq!(rig.begin_resident_for(device, 0, &[handle], &syncs), Ok(0));
    let other = Client::new();
    let theirs = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(theirs).expect("FENCE_IMPORT");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.fence_wait(&[(theirs, 1)], 0, 8 * PATIENCE));
        assert!(!rig.fence_has(fence, 1));
        let unplugged = Unplugged::new(way, None);
        assert_eq!(waiting.join().expect("a thread"), Err(Errno::ENODEV));
        assert_eq!(rig.unlock(handle), Err(Errno::ENODEV));
        cpu.expect("under the lock", pattern(1));
        drop(unplugged);
    });
    // Another life of the device does not know them.
    assert_eq!(rig.unlock(handle), Err(Errno::ENODEV));
    assert_eq!(rig.fence_signal(idle, 1), Err(Errno::ENODEV));
    cpu.expect("under the lock", pattern(1));
    expect_working();
    drop((cpu, rig, other));
    let freed = eventually(|| (shmem() < before + SIZE / 2).then_some(()));
    assert!(
        freed.is_some(),
        "{} bytes of shmem, {before} before",
        shmem()
    );
}

/// The device goes in this stage; what is slow may be late for it, but not always.
#[track_caller]
fn meet(stage: Stage, way: Way) {
    // What the driver says of its resets, and of a device that it has lost before.
    expect_error("").expect("the kernel's log");
    let met = (0..4).any(|_| unplug(stage, way));
    assert!(met, "{stage:?} was never met");
}

/// Whether the device went in this stage.
#[track_caller]
fn unplug(stage: Stage, way: Way) -> bool {
    let [guilty, other] = [(); 2].map(|()| Rig::new().having_worked());
    let endless = guilty.program(LOOP);
    let hold = Hold::new(&guilty);
    let [target, written] = [&guilty, &other].map(|rig| rig.buffer(Place::System, 4096));
    let [low, high] = [-7, 7].map(|priority| {
        let context = guilty.context_having_worked(Engine::Compute);
        assert_eq!(guilty.prioritise(context, priority), Ok(()));
        context
    });
    let fence = other.fence_create(0).expect("FENCE_CREATE");
    let trace = Stage::trace();
    let lies = Lies::tell(stage.lies()).expect("gpu-lie");
    thread::scope(|scope| {
        // What does not stop, and what is behind it.
        let running = match stage {
            Stage::Asked | Stage::Saving => hold.begin(&guilty, low),
            _ => guilty.start_in(low, &[dispatch(&endless, LOOP, &[])]),
        };
        let urgent = [Stage::Asked, Stage::Saving].contains(&stage);
        let urgent = urgent.then(|| guilty.start_in(high, &[write(target.va, 1)]));
        let behind = guilty.start_in(low, &[write(target.va + 8, 1)]);
        let stops = other.syncobj_of(guilty.sync_file(running.syncobj));
        let gated = other
            .start_after(other.copy, &[write(written.va, 1)], &[wait(stops)])
            .expect("SUBMIT");
        let bound = other.syncobj();
        let bind = map(written.handle, 0, 1 << 41, 4096);
        let syncs = [wait(stops), signal(bound)];
        assert_eq!(other.bind(other.vm, &[bind], &syncs), Ok(()));
        let guiltys: Vec<OwnedFd> = [Some(&running), urgent.as_ref(), Some(&behind)]
            .into_iter()
            .flatten()
            .map(|job| guilty.sync_file(job.syncobj))
            .collect();
        let others = [gated.syncobj, bound].map(|syncobj| other.sync_file(syncobj));
        let (waiter, syncobj): (&Client, u32) = (&other, gated.syncobj);
        let waits = [
            scope.spawn(move || waiter.fence_wait(&[(fence, 7)], 0, 8 * PATIENCE).map(drop)),
            scope.spawn(move || waiter.try_wait(syncobj, 8 * PATIENCE)),
        ];
        let reset = (stage == Stage::AdapterReset)
            .then(|| scope.spawn(|| Function::first().debugfs("reset").is_ok()));
        let now = || stage.is_now(&trace, &lies).then_some(());
        let met = eventually(now).is_some();

        let unplugged = Unplugged::new(way, Some(lies));
        let guiltys: Vec<i32> = guiltys.iter().map(status_of).collect();
        let others = others.each_ref().map(status_of);
        println!("# met {met}: {guiltys:?}, others {others:?}");
        let [gone, cancelled, late] =
            [Errno::ENODEV, Errno::ECANCELED, Errno::ETIME].map(|errno| -(errno as i32));
        assert!(
            [gone, late].contains(&guiltys[0]),
            "what did not stop: {}",
            guiltys[0]
        );
        for end in &guiltys[1..] {
            // Who is urgent may have been done, where the engine did stop.
            let is_done = stage == Stage::Saving && *end == 1;
            assert!(
                is_done || [gone, cancelled].contains(end),
                "behind it: {end}"
            );
        }
        for end in others {
            // What it waits for may have been cut before, or the device gone.
            assert!([1, gone, cancelled].contains(&end), "another's: {end}");
        }
        for wait in waits {
            let end = wait.join().expect("a thread");
            println!("# who waited: {end:?}");
            assert_ne!(end, Err(Errno::ETIME), "who waited");
        }
        if let Some(reset) = reset {
            println!("# by debugfs: {}", reset.join().expect("a thread"));
        }
        for rig in [&guilty, &other] {
            assert_eq!(rig.submit(rig.copy, &[], &[]), Err(Errno::ENODEV));
        }
        if way == Way::Unbind {
            let config = fs::read(Function::first().sysfs().join("config")).expect("config");
            assert_eq!(config[4] & 1 << 2, 0, "it is bus master still");
        }
        // Not somebody else's memory.
        written.cpu.write(0, 1);
        assert_eq!(target.cpu.read(8), 0, "it ran");
        drop(unplugged);
        expect_working();
        met
    })
}

fn unbound_while_memory_moves() {
    assert!((0..4).any(|_| unplug_moves(Way::Unbind)), "never met");
}

fn removed_while_memory_moves() {
    assert!((0..4).any(|_| unplug_moves(Way::Remove)), "never met");
}

/// Whether the device went while an engine brought what work needs into VRAM.
#[track_caller]
fn unplug_moves(way: Way) -> bool {
    let rig = Rig::new().having_worked();
    let moves = rig.buffer(Place::Vram, SIZE);
    moves.cpu.fill(pattern(1));
    let seen = rig.buffer(Place::System, SIZE);
    evict_all();
    let paging = Paging::late(500);
    let work = rig.start(Engine::Copy, &[copy(moves.va, seen.va, SIZE)]);
    let end = rig.sync_file(work.syncobj);
    let met = paging.is_met();
    let unplugged = Unplugged::new(way, Some(paging.lies));
    let end = status_of(&end);
    println!("# met {met}: {end}");
    let is_gone = end == -(Errno::ENODEV as i32);
    assert!(is_gone || end == 1, "{end}");
    assert!(!is_gone || seen.cpu.read(8) == 0, "it ran");
    // Not somebody else's memory.
    seen.cpu.write(0, 1);
    drop(unplugged);
    expect_working();
    met && is_gone
}

fn unbound_while_memory_leaves_vram() {
    assert!((0..4).any(|_| unplug_eviction(Way::Unbind)), "never met");
}

fn removed_while_memory_leaves_vram() {
    assert!((0..4).any(|_| unplug_eviction(Way::Remove)), "never met");
}

/// Whether the device went while an engine took memory out of VRAM.
#[track_caller]
fn unplug_eviction(way: Way) -> bool {
    let rig = Rig::new().having_worked();
    let cpu = rig.map(movable_in_vram(&rig, SIZE));
    cpu.fill(pattern(1));
    let paging = Paging::late(500);
    thread::scope(|scope| {
        let evicts = scope.spawn(evict_some);
        // And who needs it where it will be, or is.
        let reads = scope.spawn(|| cpu.read(8));
        let met = paging.is_met();
        let unplugged = Unplugged::new(way, Some(paging.lies));
        evicts.join().expect("a thread");
        let read = reads.join().expect("a thread");
        println!("# met {met}: {read:#x}");
        expect_own(&cpu, pattern(1));
        drop(unplugged);
        expect_working();
        met
    })
}

/// Memory of a device that is gone is what its client wrote, or was never anybody's; and stays its
/// client's.
#[track_caller]
fn expect_own(cpu: &Mapping, own: impl Fn(usize) -> u64) {
    for at in (0..cpu.len()).step_by(8) {
        let read = cpu.read(at);
        assert!([0, own(at)].contains(&read), "{read:#x} at {at:#x}");
    }
    // One page stands for all that was lost.
    cpu.write(8, 42);
    assert_eq!(cpu.read(8), 42);
}

fn unbound_while_a_fault_waits_for_clean_memory() {
    assert!((0..4).any(|_| unplug_fault(Way::Unbind)), "never met");
}

fn removed_while_a_fault_waits_for_clean_memory() {
    assert!((0..4).any(|_| unplug_fault(Way::Remove)), "never met");
}

/// Whether the device went while the CPU waited for VRAM to be cleared.
#[track_caller]
fn unplug_fault(way: Way) -> bool {
    let rig = Rig::new().having_worked();
    // The device comes back without.
    forget(Uncleared::new());
    let paging = Paging::late(500);
    let cpu = rig.map(rig.bo(Place::Vram, SIZE));
    thread::scope(|scope| {
        let reads = scope.spawn(|| cpu.read(8));
        let met = paging.is_met() && !reads.is_finished();
        let unplugged = Unplugged::new(way, Some(paging.lies));
        assert_eq!(reads.join().expect("a thread"), 0);
        println!("# met {met}");
        expect_own(&cpu, |_| 0);
        drop(unplugged);
        expect_working();
        met
    })
}

fn unbound_while_held_work_is_let_go() {
    unplug_release(Way::Unbind);
}

fn removed_while_held_work_is_let_go() {
    unplug_release(Way::Remove);
}

/// A worker has it, and tries again, as the CPU has locked what it needs.
#[track_caller]
fn unplug_release(way: Way) {
    let rig = Rig::new().having_worked();
    let vram = 1 << rig.region(Place::Vram).id;
    let locked = rig.bo_create(SIZE, 0, vram).expect("BO_CREATE");
    let locked_at = rig.bound_at_will(locked, SIZE);
    let fence = rig.fence_create(0).expect("FENCE_CREATE");
    evict_all();
    assert!(rig.lock(locked).is_ok(), "BO_LOCK");
    let jobs: Vec<Job<'_>> = (0..4)
        .map(|n| rig.start_after(rig.compute, &[write(locked_at, n)], &[wait_value(fence, 1)]))
        .map(|job| job.expect("SUBMIT"))
        .collect();
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    thread::scope(|scope| {
        let client: &Client = &rig;
        let waits: Vec<_> = jobs
            .iter()
            .map(|job| job.syncobj)
            .map(|syncobj| scope.spawn(move || client.try_wait(syncobj, 8 * PATIENCE)))
            .collect();
        // Several times.
        thread::sleep(Duration::from_millis(100));
        let now = jobs
            .iter()
            .map(|job| rig.try_wait(job.syncobj, Duration::ZERO));
        assert!(
            now.into_iter().all(|end| end == Err(Errno::ETIME)),
            "it is not locked"
        );
        let unplugged = Unplugged::new(way, Some(Lies::tell("").expect("gpu-lie")));
        for wait in waits {
            let end = wait.join().expect("a thread");
            println!("# who waited: {end:?}");
            assert_ne!(end, Err(Errno::ETIME), "who waited");
        }
        assert_eq!(rig.submit(rig.copy, &[], &[]), Err(Errno::ENODEV));
        drop(unplugged);
    });
    expect_working();
}
