// SPDX-License-Identifier: MIT

//! The driver goes, or its device, while it mends what went wrong: every wait ends, every fence
//! says why, and the device can be bound again.
//!
//! A stage lasts until a lie ends, or a time-out, so that the unplug meets it; a host that is too
//! slow for that may try again. `guests.json` gives this program a driver that is soon out of
//! patience with work, not with an engine that does not stop.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;

use skua_guest::host::{expect_error, Lies};
use skua_selftests::client::{map, signal, wait, PATIENCE};
use skua_selftests::function::{Function, Unbound};
use skua_selftests::program::LOOP;
use skua_selftests::race::Hold;
use skua_selftests::rig::{dispatch, expect_working, write};
use skua_selftests::stage::Stage;
use skua_selftests::suite::eventually;
use skua_selftests::{raw, suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::{sync_file_info, SYNC_IOC_FILE_INFO};

fn main() -> ExitCode {
    suite::main(tests![
        unbound_while_an_engine_does_not_make_room: 120,
        removed_while_an_engine_does_not_make_room: 120,
        unbound_while_what_hangs_does_not_stop: 120,
        removed_while_what_hangs_does_not_stop: 120,
        unbound_while_an_engine_is_reset: 120,
        removed_while_an_engine_is_reset: 120,
        unbound_while_the_adapter_is_reset: 120,
        removed_while_the_adapter_is_reset: 120,
    ])
}

fn unbound_while_an_engine_does_not_make_room() {
    meet(Stage::Asked, Way::Unbind);
}

fn removed_while_an_engine_does_not_make_room() {
    meet(Stage::Asked, Way::Remove);
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
    _lies: Lies,
    _unbound: Option<Unbound>,
    _removed: Option<Removed>,
}

impl Unplugged {
    #[track_caller]
    fn new(way: Way, lies: Lies) -> Self {
        Self {
            _lies: lies,
            _unbound: (way == Way::Unbind).then(Unbound::first),
            _removed: (way == Way::Remove).then(Removed::first),
        }
    }
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
            Stage::Asked => hold.begin(&guilty, low),
            _ => guilty.start_in(low, &[dispatch(&endless, LOOP, &[])]),
        };
        let urgent = (stage == Stage::Asked).then(|| guilty.start_in(high, &[write(target.va, 1)]));
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
        let now = || stage.is_now(&trace).then_some(());
        let met = eventually(now).is_some();

        let unplugged = Unplugged::new(way, lies);
        let guiltys: Vec<i32> = guiltys.iter().map(status).collect();
        let others = others.each_ref().map(status);
        println!("# met {met}: {guiltys:?}, others {others:?}");
        let [gone, cancelled, late] =
            [Errno::ENODEV, Errno::ECANCELED, Errno::ETIME].map(|errno| -(errno as i32));
        assert!(
            [gone, late].contains(&guiltys[0]),
            "what did not stop: {}",
            guiltys[0]
        );
        for end in &guiltys[1..] {
            assert!([gone, cancelled].contains(end), "behind it: {end}");
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

/// Of a fence: 0 if it has not signalled, an errno if that was an error.
#[track_caller]
fn status(file: &OwnedFd) -> i32 {
    let mut info = sync_file_info::default();
    raw::ioctl(file, SYNC_IOC_FILE_INFO, &mut info).expect("SYNC_IOC_FILE_INFO");
    info.status
}
