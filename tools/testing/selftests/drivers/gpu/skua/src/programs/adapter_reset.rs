// SPDX-License-Identifier: MIT

//! Resets of the GPU that it survives: all work ends, what was in VRAM is lost, and the next client
//! notices nothing.
//!
//! Each test begins with a device that was just bound, as it bears only so many.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::EventFd;
use skua_guest::clock::Clock;
use skua_guest::host::{expect_error, Lies};
use skua_selftests::client::{
    map, signal, signal_value, unmap, wait, wait_value as until, PATIENCE,
};
use skua_selftests::events::Trace;
use skua_selftests::every_call::{EveryCall, IfLost};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    both, evict_all, evict_some, expect_gpu, explicit, movable, movable_in_vram, out, pattern,
    place, resident,
};
use skua_selftests::program::LOOP;
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, expect_working, fill, wait_value, write};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::{becomes, eventually, rounds};
use skua_selftests::uevents::Uevents;
use skua_selftests::witness::{quiet, shmem};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_uapi::*;

const PAGE: u64 = 4096;
/// Of an object, in bytes.
const SIZE: u64 = 256 << 10;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_22_all_work_ends_and_new_devices_work: 60,
        row_2_22_what_was_in_vram_is_zero_at_the_same_address: 60 at_rest,
        row_2_22_what_is_elsewhere_stays: 60 at_rest,
        a_function_under_reset_is_not_taken_for_gone: 120,
        row_0_26_a_function_level_reset_is_one_of_the_adapter: 60,
        row_2_22_nobody_writes_what_the_client_writes_then: 60,
        row_2_22_fences_without_a_value_keep_theirs: 60,
        row_0_21_residency_of_what_is_locked_ends_with_a_reset: 60 at_rest,
        row_2_22_what_is_saved_does_not_go_on: 60,
        row_2_22_whoever_waits_returns: 120,
        row_2_21_an_engine_that_does_not_reset: 120,
        row_2_21_an_adapter_that_does_not_reset: 120,
        row_2_21_what_a_reset_tells_is_the_last: 120,
        row_2_21_a_paging_hang: 120 at_rest,
        row_2_21_what_moves_in_gets_there: 120 at_rest,
        row_2_21_what_moves_moves_whole: 180,
        row_2_02_the_sixth_is_the_last: 120,
        what_a_lost_device_answers,
        a_reset_is_told,
        counts_go_on,
        an_unanswered_invalidation_ends_with_a_reset: 60,
        memory_is_kept_until_the_device_is_reset: 180,
        resets_meet_everything: 300,
    ])
}

/// A device that was bound just now.
#[track_caller]
fn begin() {
    expect_error("the adapter was reset").expect("the kernel's log");
    let function = Function::first();
    function.unbind().expect("unbind");
    function.bind().expect("bind");
}

/// Has the adapter reset; how often that was done.
#[track_caller]
fn reset() -> u64 {
    let resets = Function::first().debugfs("reset").expect("debugfs");
    resets.trim().parse().expect("a number")
}

/// What the driver does about work that does not end, each if the one before it did not help.
const STAGES: [&str; 4] = [
    "skua_preempt",
    "skua_reset",
    "skua_adapter_reset",
    "skua_lost",
];

/// What was done, in order; what was done again at once is one.
#[track_caller]
fn stages(trace: &Trace) -> Vec<String> {
    let mut names = trace.names();
    names.dedup();
    names
}

/// The adapter was reset, once; all of that is over.
#[track_caller]
fn was_reset() {
    let resets = || Function::first().counters(["driver_adapter_resets"]);
    becomes("it is reset", || resets() != [0]);
    assert_eq!(resets(), [1]);
}

#[track_caller]
fn status(client: &Client, context: u32) -> u32 {
    client.state(context).expect("CONTEXT_STATE").status
}

#[track_caller]
fn device_status(client: &Client, device: u32) -> u32 {
    client.device_state(device).expect("DEVICE_STATE").status
}

#[track_caller]
fn is_lost(client: &Client, handle: u32) -> bool {
    client.info(handle).expect("BO_INFO").content_lost == 1
}

fn row_2_22_all_work_ends_and_new_devices_work() {
    begin();
    let own = Rig::new().having_worked();
    let gate = own.buffer(Place::System, PAGE);
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device);
    let target = rig.buffer(Place::System, PAGE);
    let fence = rig.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let others = Client::new();
    let theirs = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = others.fence_import(theirs).expect("FENCE_IMPORT");
    // In the ring, behind it, before the gate, and held.
    let runs = own.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    let queued = own.start(Engine::Copy, &[write(gate.va + 8, 1)]);
    let waits = own.start_after(
        own.compute,
        &[write(gate.va + 24, 1)],
        &[wait(runs.syncobj)],
    );
    let waits = waits.expect("SUBMIT");
    let held = rig.start_after(rig.compute, &[write(target.va, 2)], &[until(fence, 1)]);
    let held = held.expect("SUBMIT");
    assert_eq!(reset(), 1);
    for (what, job) in [
        ("runs", &runs),
        ("queued", &queued),
        ("waits", &waits),
        ("held", &held),
    ] {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "{what}");
    }
    let written = [gate.cpu.read(8), gate.cpu.read(24), target.cpu.read(0)];
    assert_eq!(written, [0; 3], "it ran");
    for (rig, context) in [
        (&own, own.copy),
        (&own, own.compute),
        (&rig, rig.copy),
        (&rig, rig.compute),
    ] {
        assert_eq!(status(rig, context), DRM_SKUA_CONTEXT_RESET);
        let refused = rig.submit(context, &[], &[]);
        assert_eq!(refused, Err(Errno::ECANCELED));
    }
    assert_eq!(device_status(&rig, device), DRM_SKUA_CONTEXT_RESET);
    assert_eq!(rig.vm_create_for(device), Err(Errno::ECANCELED));
    assert!(others.fence_has(theirs, u64::MAX), "who waits is not told");
    // The device of the file goes on, with what is mapped.
    assert_eq!(device_status(&own, 0), DRM_SKUA_CONTEXT_ACTIVE);
    for engine in Engine::ALL {
        let context = own.new_context(engine);
        let job = own.start_in(context, &[write(gate.va + 16, 7)]);
        assert_eq!((job.wait(), gate.cpu.read(16)), (Ok(()), 7), "{engine:?}");
        gate.cpu.write(16, 0);
    }
    // A new one of the same file.
    let device = rig.device_create(0).expect("DEVICE_CREATE");
    let vm = rig.vm_create_for(device).expect("VM_CREATE");
    let context = rig.context_create(vm, rig.engine(Engine::Copy.kind()));
    let done = rig.syncobj();
    let context = context.expect("CONTEXT_CREATE");
    assert_eq!(rig.submit(context, &[], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    expect_working();
}

fn row_2_22_what_was_in_vram_is_zero_at_the_same_address() {
    begin();
    let rig = Rig::new();
    let clean = movable(&rig, SIZE);
    rig.map(clean).fill(pattern(3));
    evict_all();
    resident(&rig, &[clean]);
    assert_eq!(place(&rig, clean), Place::Vram);
    let objects = [
        rig.bo(Place::Vram, SIZE),
        movable_in_vram(&rig, SIZE),
        clean,
    ];
    let cpus = objects.map(|handle| rig.map(handle));
    for cpu in &cpus[..2] {
        cpu.fill(pattern(1));
    }
    // Read, it has the same bytes in system memory.
    cpus[2].expect("before", pattern(3));
    assert!(objects.iter().all(|handle| !is_lost(&rig, *handle)));
    assert_eq!(reset(), 1);
    for (n, (handle, cpu)) in objects.iter().zip(&cpus).enumerate() {
        cpu.expect(&format!("object {n}"), |_| 0);
        assert!(is_lost(&rig, *handle), "object {n} says nothing");
    }
    // Nor does it come back when it leaves.
    evict_all();
    for (n, (handle, cpu)) in objects.iter().zip(&cpus).enumerate() {
        cpu.expect(&format!("object {n}, moved"), |_| 0);
        assert!(is_lost(&rig, *handle), "object {n}, moved, says nothing");
    }
    let new = rig.bo(Place::Vram, SIZE);
    rig.map(new).expect("a new one", |_| 0);
    assert!(!is_lost(&rig, new), "a new one");
}

/// By the bus, which tells the driver of it: root has asked for it in sysfs.
fn row_0_26_a_function_level_reset_is_one_of_the_adapter() {
    begin();
    let reset = || std::fs::write(Function::first().sysfs().join("reset"), "1").expect("reset");
    let rig = Rig::new().having_worked();
    let [lost, kept] = [Place::Vram, Place::System].map(|place| rig.buffer(place, SIZE));
    let offset = rig.lock(lost.handle).expect("BO_LOCK");
    for buffer in [&lost, &kept] {
        buffer.cpu.fill(pattern(3));
    }
    // Nobody works who would find out by himself.
    reset();
    was_reset();
    // By the same address, under the same lock.
    assert!(is_lost(&rig, lost.handle));
    lost.cpu.expect("VRAM", |_| 0);
    kept.cpu.expect("system memory", pattern(3));
    lost.cpu.fill(pattern(4));
    assert_eq!(rig.lock(lost.handle), Ok(offset));
    let (context, seen) = (
        rig.new_context(Engine::Copy),
        rig.buffer(Place::System, SIZE),
    );
    let copies = rig.start_in(context, &[copy(lost.va, seen.va, SIZE)]);
    assert_eq!(copies.wait(), Ok(()));
    seen.cpu.expect("what the CPU wrote then", pattern(4));
    let gate = rig.buffer(Place::System, PAGE);
    let runs = rig.start_in(context, &[wait_value(gate.va, 1)]);
    reset();
    assert_eq!(runs.wait(), Err(Errno::ECANCELED));
    expect_working();
}

/// Who finds that it does not answer meanwhile waits: four times a second, as long as an engine
/// does nothing that takes time.
fn a_function_under_reset_is_not_taken_for_gone() {
    for round in 0..rounds(8) {
        begin();
        let rig = Rig::new();
        let gate = rig.buffer(Place::System, PAGE);
        let runs = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
        thread::sleep(Duration::from_millis(1100 + 30 * u64::from(round)));
        std::fs::write(Function::first().sysfs().join("reset"), "1").expect("reset");
        assert_eq!(runs.wait(), Err(Errno::ECANCELED), "round {round}");
        expect_working();
    }
}

fn row_2_22_what_is_elsewhere_stays() {
    begin();
    let rig = Rig::new();
    let moved = movable_in_vram(&rig, SIZE);
    let objects = [rig.bo(Place::System, SIZE), moved];
    let cpus = objects.map(|handle| rig.map(handle));
    for cpu in &cpus {
        cpu.fill(pattern(2));
    }
    evict_all();
    assert_ne!(place(&rig, moved), Place::Vram);
    assert_eq!(reset(), 1);
    resident(&rig, &[moved]);
    assert_eq!(place(&rig, moved), Place::Vram);
    for (n, (handle, cpu)) in objects.iter().zip(&cpus).enumerate() {
        cpu.expect(&format!("object {n}"), pattern(2));
        assert!(!is_lost(&rig, *handle), "object {n}");
    }
}

/// From the moment at which a fence tells.
fn row_2_22_nobody_writes_what_the_client_writes_then() {
    begin();
    let rig = Rig::new().having_worked();
    let gate = rig.buffer(Place::System, PAGE);
    let size = rig.region(Place::Vram).size / 2;
    let object = rig.buffer(Place::Vram, size);
    let runs = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    // Written as soon as it is told, where the last byte is.
    let last = size as usize - 8;
    thread::scope(|scope| {
        let resets = scope.spawn(reset);
        assert_eq!(runs.wait(), Err(Errno::ECANCELED));
        object.cpu.write(last, 5);
        object.cpu.write(0, 5);
        assert_eq!(resets.join().expect("a thread"), 1);
    });
    let context = rig.new_context(Engine::Copy);
    let read = rig.buffer(Place::System, PAGE);
    let commands = [
        copy(object.va, read.va, 8),
        copy(object.va + last as u64, read.va + 8, 8),
    ];
    assert_eq!(rig.start_in(context, &commands).wait(), Ok(()));
    assert_eq!((read.cpu.read(0), read.cpu.read(8)), (5, 5), "by the GPU");
    evict_all();
    assert_eq!((object.cpu.read(0), object.cpu.read(last)), (5, 5));
}

fn row_2_22_fences_without_a_value_keep_theirs() {
    begin();
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device);
    let fence = rig.fence_create_for(device, DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR, 4);
    let fence = fence.expect("FENCE_CREATE");
    let others = Client::new();
    let theirs = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = others.fence_import(theirs).expect("FENCE_IMPORT");
    assert_eq!(reset(), 1);
    // Who belongs to the device is told, and others go on.
    let mine = rig.fence_wait(&[(fence, 5)], 0, PATIENCE);
    assert_eq!(mine, Err(Errno::ECANCELED));
    assert!(!others.fence_has(theirs, 5), "it has a value");
    assert_eq!(others.fence_signal(theirs, 5), Ok(()));
    assert!(others.fence_has(theirs, 5));
}

/// Signalled was to be a fence of a device that has nothing on the GPU, and does not fail with it.
fn row_0_21_residency_of_what_is_locked_ends_with_a_reset() {
    begin();
    let (rig, device) = explicit();
    let (handle, _) = out(&rig, SIZE);
    assert!(rig.lock(handle).is_ok());
    let fence = rig.fence(0);
    let syncs = [signal_value(fence, 1)];
    assert_eq!(rig.begin_resident_for(device, 0, &[handle], &syncs), Ok(0));
    assert_eq!(reset(), 1);
    assert!(rig.fence_gets(fence, u64::MAX));
    assert_eq!(rig.unlock(handle), Ok(()));
    expect_working();
}

/// It was preempted, and nobody has a handle of its context any more, nor of what runs; who waits
/// for what they were to signal is told.
fn row_2_22_what_is_saved_does_not_go_on() {
    begin();
    let rig = Rig::new();
    let [low, high] = [(); 2].map(|()| rig.context_having_worked(Engine::Compute));
    assert_eq!(rig.prioritise(low, -7), Ok(()));
    let hold = Hold::new(&rig);
    let target = rig.buffer(Place::System, PAGE);
    let others = Client::new();
    let fences = [(); 2].map(|()| others.fence(0));
    let start = |context, fence, commands: &[Command]| {
        let theirs = others.fence_export(fence).expect("FENCE_EXPORT");
        let own = rig.fence_import(theirs).expect("FENCE_IMPORT");
        let job = rig.start_after(context, commands, &[signal_value(own, 1)]);
        job.expect("SUBMIT")
    };
    let saved = start(low, fences[0], &[hold.command(), write(target.va, 1)]);
    let preemptions = || Function::first().counters(["driver_preemptions"]);
    let before = preemptions();
    let keeps = start(high, fences[1], &[hold.command()]);
    let makes_room = || (preemptions() > before).then_some(());
    assert!(eventually(makes_room).is_some(), "it was not preempted");
    // Now the other one runs.
    thread::sleep(Duration::from_millis(50));
    for context in [low, high] {
        assert_eq!(rig.context_destroy(context), Ok(()));
    }
    assert_eq!(reset(), 1);
    hold.release();
    for (what, job, fence) in [("saved", &saved, fences[0]), ("keeps", &keeps, fences[1])] {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "{what}");
        assert!(others.fence_gets(fence, u64::MAX), "{what}");
    }
    assert_eq!(target.cpu.read(0), 0, "it went on");
}

/// How long after the guilty the last one may return.
const SOON: Duration = Duration::from_secs(3);

/// Whatever it is that they wait in, when work has hung until the adapter was reset; and what they
/// see then holds.
fn row_2_22_whoever_waits_returns() {
    begin();
    let (own, others) = (Rig::new(), Client::new());
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device).having_worked();
    let fence = rig.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let theirs = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = others.fence_import(theirs).expect("FENCE_IMPORT");
    let event = EventFd::new().expect("eventfd");
    assert_eq!(others.fence_eventfd(theirs, 7, &event), Ok(()));
    let kept = rig.fence_create_for(device, DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR, 0);
    let both = [(fence, 7), (kept.expect("FENCE_CREATE"), 7)];
    let several = EventFd::new().expect("eventfd");
    assert_eq!(rig.fence_eventfd_for(&both, 0, &several), Ok(()));
    let target = own.buffer(Place::System, PAGE);
    let vram = own.buffer(Place::Vram, SIZE);
    vram.cpu.fill(pattern(2));
    let begun = rig.buffer(Place::System, PAGE);
    let used = rig.bound_at_will(rig.bo(Place::System, PAGE), PAGE);
    let destroyed = rig.bo(Place::Vram, PAGE);
    rig.bound_at_will(destroyed, PAGE);
    let moves = movable(&rig, SIZE);
    let cpu = rig.map(moves);
    cpu.fill(pattern(6));
    evict_all();
    rig.bound_at_will(moves, SIZE);

    let lies = Lies::tell("engine-reset-never preempt-never").expect("gpu-lie");
    let program = rig.program(LOOP);
    let resets = Trace::of(&["skua_adapter_reset"]);
    let endless = dispatch(&program, LOOP, &[]);
    let hangs = rig.start(Engine::Compute, &[write(begun.va, 1), endless]);
    // What engines save to was moved out: others may have theirs back sooner.
    becomes("it begins", || begun.cpu.read(0) == 1);
    let queued = own.start(Engine::Compute, &[write(target.va, 1)]);
    let gated = own.start_after(own.copy, &[write(target.va, 1)], &[wait(queued.syncobj)]);
    let gated = gated.expect("SUBMIT");
    // Nobody but the reset has a word for it.
    let line = SoftwareTimeline::new();
    let never = own.syncobj_of(line.fence(1));
    let elsewhere = own.new_context(Engine::Copy);
    let foreign = own.start_after(elsewhere, &[write(target.va, 1)], &[wait(never)]);
    let foreign = foreign.expect("SUBMIT");
    let held = rig.start_after(rig.copy, &[], &[until(fence, 7)]);
    let held = held.expect("SUBMIT");
    let file = own.sync_file(gated.syncobj);
    let (bound, here) = (rig.syncobj(), rig.syncobj());
    let syncs = [wait(hangs.syncobj), signal(bound)];
    assert_eq!(rig.bind(rig.vm, &[unmap(used, PAGE)], &syncs), Ok(()));
    assert_eq!(rig.make_resident(&[moves], &[signal(here)]), Ok(()));
    assert_eq!(place(&rig, moves), Place::Vram);

    let limit = PATIENCE * 4;
    let ready = |file: BorrowedFd<'_>| {
        let mut files = [PollFd::new(file, PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(limit * suite::patience()).expect("a time");
        poll(&mut files, limit).map(drop)
    };
    let (mine, bystander): (&Client, &Client) = (&rig, &own);
    type Wait<'a> = Box<dyn FnOnce() -> Result<(), Errno> + Send + 'a>;
    let cancelled = Err(Errno::ECANCELED);
    let waits: Vec<(&str, Wait<'_>, _)> = vec![
        (
            "for work behind it",
            Box::new(|| bystander.wait_for(queued.syncobj, limit)),
            cancelled,
        ),
        (
            "for work behind that",
            Box::new(|| bystander.wait_for(gated.syncobj, limit)),
            cancelled,
        ),
        (
            "for work behind another driver's",
            Box::new(|| bystander.wait_for(foreign.syncobj, limit)),
            cancelled,
        ),
        (
            "for work without a fence",
            Box::new(|| mine.wait_for(held.syncobj, limit)),
            cancelled,
        ),
        (
            "for a value",
            Box::new(|| mine.fence_wait(&[(fence, 7)], 0, limit).map(drop)),
            cancelled,
        ),
        (
            "for a value, as somebody else",
            Box::new(|| others.fence_wait(&[(theirs, 7)], 0, limit).map(drop)),
            Ok(()),
        ),
        ("for an eventfd", Box::new(|| ready(event.as_fd())), Ok(())),
        (
            "for an eventfd of several",
            Box::new(|| ready(several.as_fd())),
            Ok(()),
        ),
        ("for a sync file", Box::new(|| ready(file.as_fd())), Ok(())),
        (
            "for a bind behind it",
            Box::new(|| mine.wait_for(bound, limit)),
            Ok(()),
        ),
        (
            "for what moves",
            Box::new(|| mine.wait_for(here, limit)),
            Ok(()),
        ),
        (
            "in a page fault",
            Box::new(|| {
                cpu.expect("what moves", pattern(6));
                Ok(())
            }),
            Ok(()),
        ),
        (
            "for what is destroyed",
            Box::new(|| mine.destroy_synchronously(&[destroyed], 0)),
            Ok(()),
        ),
    ];
    thread::scope(|scope| {
        let threads: Vec<_> = waits
            .into_iter()
            .map(|(what, wait, expected)| (what, scope.spawn(wait), expected))
            .collect();
        thread::sleep(Duration::from_millis(500));
        let over = threads.iter().find(|(_, thread, _)| thread.is_finished());
        let over = over.map(|(what, ..)| what);
        // Asked last: a slow host may come too late, or in its midst.
        let is_late = !resets.events().is_empty();
        println!("# the first that is over: {over:?}, late: {is_late}");
        assert!(over.is_none() || is_late, "{over:?}: it does not wait");
        assert_eq!(rig.wait_for(hangs.syncobj, limit), Err(Errno::ETIME));
        drop(lies);
        let mut clock = Clock::of_guest();
        while let Some((what, ..)) = threads.iter().find(|(_, it, _)| !it.is_finished()) {
            assert!(clock.elapsed() < SOON * suite::patience(), "{what}");
            suite::pause();
        }
        for (what, thread, expected) in threads {
            assert_eq!(thread.join().expect("a thread"), expected, "{what}");
        }
    });
    was_reset();
    assert_eq!(target.cpu.read(0), 0, "what was cancelled ran");
    assert_eq!(device_status(&rig, device), DRM_SKUA_CONTEXT_TIMED_OUT);
    assert_eq!(status(&own, own.copy), DRM_SKUA_CONTEXT_RESET);
    assert!(others.fence_has(theirs, u64::MAX), "it has another value");
    // By the addresses that they had.
    vram.cpu.expect("VRAM", |_| 0);
    assert!(is_lost(&own, vram.handle) && !is_lost(&rig, moves));
    vram.cpu.fill(pattern(3));
    vram.cpu.expect("VRAM, written", pattern(3));
    let device = rig.device_create(0).expect("DEVICE_CREATE");
    let vm = rig.vm_create_for(device).expect("VM_CREATE");
    let done = rig.syncobj();
    let context = rig.context_create(vm, rig.engine(Engine::Compute.kind()));
    let context = context.expect("CONTEXT_CREATE");
    assert_eq!(rig.submit(context, &[], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()), "a new device of the same file");
    expect_working();
}

/// Nothing but an adapter reset helps.
fn row_2_21_an_engine_that_does_not_reset() {
    begin();
    let (guilty, other) = (Rig::new().having_worked(), Rig::new());
    let gate = other.buffer(Place::System, PAGE);
    let vram = other.buffer(Place::Vram, SIZE);
    vram.cpu.fill(pattern(1));
    let lies = Lies::tell("engine-reset-never preempt-never").expect("gpu-lie");
    let program = guilty.program(LOOP);
    let trace = Trace::of(&STAGES);
    let endless = guilty.start(Engine::Compute, &[dispatch(&program, LOOP, &[])]);
    // Behind it, and on the other engine.
    let behind = other.start(Engine::Compute, &[write(gate.va + 8, 1)]);
    let waits = other.start_after(other.copy, &[], &[wait(behind.syncobj)]);
    let waits = waits.expect("SUBMIT");
    // Until it is cut, and then until its engine should have stopped.
    let end = guilty.wait_for(endless.syncobj, 4 * PATIENCE);
    assert_eq!(end, Err(Errno::ETIME));
    drop(lies);
    for (what, job) in [("waits", &waits), ("behind", &behind)] {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "{what}");
    }
    assert_eq!(gate.cpu.read(8), 0, "it ran");
    let told = || (status(&guilty, guilty.compute) == DRM_SKUA_CONTEXT_TIMED_OUT).then_some(());
    assert!(eventually(told).is_some());
    assert_eq!(status(&guilty, guilty.copy), DRM_SKUA_CONTEXT_RESET);
    assert_eq!(status(&other, other.compute), DRM_SKUA_CONTEXT_RESET);
    vram.cpu.expect("VRAM", |_| 0);
    was_reset();
    // One after the other, and no more than was needed.
    assert_eq!(stages(&trace), STAGES[..3]);
    drop(trace);
    expect_working();
}

/// Nothing helps: the device is given up, and can be bound anew.
fn row_2_21_an_adapter_that_does_not_reset() {
    begin();
    no_dumps();
    let uevents = Uevents::new();
    let (guilty, other) = (Rig::new().having_worked(), Rig::new());
    let gate = other.buffer(Place::System, PAGE);
    let lies = Lies::tell("engine-reset-never adapter-reset-never preempt-never");
    let lies = lies.expect("gpu-lie");
    expect_error("the device is lost").expect("the kernel's log");
    let program = guilty.program(LOOP);
    let trace = Trace::of(&STAGES);
    let endless = guilty.start(Engine::Compute, &[dispatch(&program, LOOP, &[])]);
    let behind = other.start(Engine::Compute, &[write(gate.va + 8, 1)]);
    let waits = other.start_after(other.copy, &[], &[wait(behind.syncobj)]);
    let waits = waits.expect("SUBMIT");
    let end = guilty.wait_for(endless.syncobj, 4 * PATIENCE);
    assert_eq!((end, behind.wait()), (Err(Errno::ENODEV), end));
    // What waits for work that has failed is cancelled, if the loss has not ended it before.
    let end = waits.wait();
    let ends = [Errno::ENODEV, Errno::ECANCELED].map(Err);
    assert!(ends.contains(&end), "{end:?}");
    assert_eq!(other.submit(other.compute, &[], &[]), Err(Errno::EIO));
    assert_eq!(stages(&trace), STAGES);
    assert!(rebind_is_told(&uevents), "nobody is told");
    let (file, dump) = eventually(dump).expect("a dump");
    assert!(dump.contains("\nfailure: "), "{dump}");
    skua_coredump::clear(&file).expect("sysfs");
    drop(lies);
    drop((endless, behind, waits));
    drop((program, gate));
    drop((guilty, other));
    begin();
    expect_working();
}

/// An engine that says, when it was reset, that it has completed what it was never given: not even
/// the adapter is reset then, though it might be.
fn row_2_21_what_a_reset_tells_is_the_last() {
    const COUNTED: &str = "adapter-reset-late";
    begin();
    let lies = Lies::tell("adapter-reset-late=1").expect("gpu-lie");
    assert_eq!(reset(), 1);
    let resets = lies.told(COUNTED).expect("gpu-told");
    expect_error("the device is lost").expect("the kernel's log");
    let rig = Rig::new().having_worked();
    let program = rig.program(LOOP);
    let endless = rig.start(Engine::Compute, &[dispatch(&program, LOOP, &[])]);
    lies.change("fence-ahead preempt-never adapter-reset-late=1")
        .expect("gpu-lie");
    let end = rig.wait_for(endless.syncobj, 4 * PATIENCE);
    assert_eq!(end, Err(Errno::ENODEV));
    assert_eq!(rig.submit(rig.compute, &[], &[]), Err(Errno::EIO));
    // The one that makes it quiet.
    assert_eq!(lies.told(COUNTED).expect("gpu-told"), resets);
    drop(lies);
    drop(endless);
    drop((program, rig));
    begin();
    expect_working();
}

/// The driver's own work does not end: whose it is gets what it waits for.
fn row_2_21_a_paging_hang() {
    begin();
    let (rig, other) = (Rig::new(), Rig::new());
    let theirs = other.buffer(Place::Vram, SIZE);
    theirs.cpu.fill(pattern(1));
    let lies = Lies::tell("fence-stays preempt-never").expect("gpu-lie");
    let new = rig.bo(Place::Vram, SIZE);
    // Waits for the clear.
    rig.map(new).expect("a new one", |_| 0);
    drop(lies);
    was_reset();
    assert!(!is_lost(&rig, new), "it was cleared after that");
    theirs.cpu.expect("VRAM", |_| 0);
    assert!(is_lost(&other, theirs.handle), "all of it");
    for client in [&rig, &other] {
        assert_eq!(status(client, client.copy), DRM_SKUA_CONTEXT_RESET);
    }
    expect_working();
}

fn row_2_21_what_moves_in_gets_there() {
    begin();
    let rig = Rig::new();
    let object = movable(&rig, SIZE);
    let cpu = rig.map(object);
    cpu.fill(pattern(4));
    evict_all();
    let va = rig.bound_at_will(object, SIZE);
    let lies = Lies::tell("fence-stays preempt-never").expect("gpu-lie");
    resident(&rig, &[object]);
    drop(lies);
    was_reset();
    assert_eq!(place(&rig, object), Place::Vram);
    assert!(!is_lost(&rig, object), "nothing was lost");
    cpu.expect("by the CPU", pattern(4));
    let context = rig.new_context(Engine::Copy);
    let seen = rig.buffer(Place::System, SIZE);
    let job = rig.start_in(context, &[copy(va, seen.va, SIZE)]);
    assert_eq!(job.wait(), Ok(()));
    seen.cpu.expect("by the GPU", pattern(4));
    // Out of there as ever.
    evict_all();
    cpu.expect("moved out", pattern(4));
}

/// Whether one of the next few events says that the device is to be bound anew.
fn rebind_is_told(uevents: &Uevents) -> bool {
    let told = |_| {
        uevents
            .next("WEDGED")
            .map(|event| event["WEDGED"] == "rebind")
    };
    (0..=5).map_while(told).any(|is_rebind| is_rebind)
}

/// A dump of the device's, if there is one.
#[track_caller]
fn dump() -> Option<(PathBuf, String)> {
    skua_coredump::dumps().expect("sysfs").pop()
}

/// Those of before are gone.
#[track_caller]
fn no_dumps() {
    for (file, _) in skua_coredump::dumps().expect("sysfs") {
        // It may go by itself.
        let _ = skua_coredump::clear(&file);
    }
    assert!(eventually(|| dump().is_none().then_some(())).is_some());
}

fn row_2_02_the_sixth_is_the_last() {
    begin();
    let uevents = Uevents::new();
    for n in 1..=5 {
        assert_eq!(reset(), n);
        expect_working();
    }
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, PAGE);
    let runs = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    expect_error("the device is lost").expect("the kernel's log");
    let trace = Trace::of(&STAGES);
    let sixth = Function::first().debugfs("reset");
    assert!(sixth.is_err(), "{sixth:?}");
    assert_eq!(runs.wait(), Err(Errno::ENODEV));
    assert_eq!(rig.submit(rig.compute, &[], &[]), Err(Errno::EIO));
    assert!(rebind_is_told(&uevents), "nobody is told");
    assert_eq!(stages(&trace), STAGES[3..], "it was reset");
    drop(runs);
    // It is as new when it is bound again.
    begin();
    assert_eq!(reset(), 1);
    expect_working();
}

fn what_a_lost_device_answers() {
    begin();
    for _ in 1..=5 {
        reset();
    }
    let calls = EveryCall::new();
    expect_error("the device is lost").expect("the kernel's log");
    assert!(Function::first().debugfs("reset").is_err());
    calls.expect(|kind| match kind {
        IfLost::Refused => Err(Errno::EIO),
        IfLost::Answered => Ok(()),
    });
    begin();
}

/// By an event, and by a dump of what the device looked like.
fn a_reset_is_told() {
    begin();
    no_dumps();
    let uevents = Uevents::new();
    assert_eq!(reset(), 1);
    let event = uevents.next("WEDGED").expect("an event");
    assert_eq!(event["WEDGED"], "none", "{event:?}");
    let (file, dump) = eventually(dump).expect("a dump");
    assert!(dump.contains("\nfailure: adapter\n"), "{dump}");
    skua_coredump::clear(&file).expect("sysfs");
}

/// Engine time, by engine.
fn ticks_of(client: &Client) -> Vec<u64> {
    let rings = Function::first().debugfs("rings").expect("debugfs");
    println!("# {rings:?}, {:?}", client.fdinfo());
    let lines = rings.lines().filter(|line| line.starts_with("engine "));
    let ticks = lines.filter_map(|line| line.rsplit_once("ticks ")?.1.parse().ok());
    ticks.collect()
}

/// What the device counts from zero again.
fn counts_go_on() {
    begin();
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, SIZE);
    for n in 1..=3 {
        let before = ticks_of(&rig);
        assert_eq!(reset(), n);
        assert!(ticks_of(&rig) >= before, "time goes back: {before:?}");
        // Flushes, faults and their records, snapshots, preemptions.
        let va = rig.bound_at_will(buffer.handle, SIZE);
        let context = rig.new_context(Engine::Compute);
        assert_eq!(rig.start_in(context, &[fill(9, va, SIZE)]).wait(), Ok(()));
        buffer.cpu.expect("work", |_| 9 << 32 | 9);
        let freed = rig.bind_and_wait(rig.vm, &[unmap(va, SIZE)]);
        assert_eq!(freed, Ok(()));
        for _ in 0..2 {
            let context = rig.new_context(Engine::Compute);
            let job = rig.start_in(context, &[fill(1, va, 8)]);
            assert_eq!(job.wait(), Err(Errno::EFAULT));
            assert_eq!(status(&rig, context), DRM_SKUA_CONTEXT_FAULTED);
        }
        let [resets] = Function::first().counters(["device_reset"]);
        println!("# resets of the device, by its count: {resets}");
        let contexts = [0; 2].map(|_| rig.context_having_worked(Engine::Compute));
        buffer.cpu.fill(|_| 0);
        let waits = rig.start_in(contexts[0], &[wait_value(buffer.va, 1)]);
        let gives = rig.start_in(contexts[1], &[write(buffer.va, 1)]);
        assert_eq!([waits.wait(), gives.wait()], [Ok(()); 2], "by a preemption");
    }
}

/// However much of it has moved at that moment.
fn row_2_21_what_moves_moves_whole() {
    const LARGE: u64 = 12 << 20;
    let mut met = [0; 2];
    for round in 0..rounds(8) {
        if round % 4 == 0 {
            begin();
        }
        let rig = Rig::new();
        let object = movable(&rig, LARGE);
        let cpu = rig.map(object);
        cpu.fill(pattern(round.into()));
        if round % 2 == 0 {
            evict_all();
            let done = rig.syncobj();
            assert_eq!(rig.make_resident(&[object], &[signal(done)]), Ok(()));
            reset();
            assert_eq!(rig.wait(done), Ok(()));
        } else {
            thread::scope(|scope| {
                let evicts = scope.spawn(evict_all);
                reset();
                evicts.join().expect("a thread");
            });
        }
        let (lost, last) = (is_lost(&rig, object), LARGE as usize - 8);
        let content = pattern(round.into());
        println!("# round {round}: lost {lost}, {:#x}", cpu.read(last));
        cpu.expect("all of it", |at| if lost { 0 } else { content(at) });
        met[usize::from(lost)] += 1;
    }
    println!("# kept {}, lost {}", met[0], met[1]);
}

/// Who waits for it waits on, and nothing of the memory goes back before it is safe.
fn an_unanswered_invalidation_ends_with_a_reset() {
    begin();
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, SIZE);
    // What is translated has to be forgotten.
    assert_eq!(rig.run(Engine::Copy, &[fill(1, buffer.va, SIZE)]), Ok(()));
    let lies = Lies::tell("invalidate-ack-never").expect("gpu-lie");
    let unmapped = rig.bind_and_wait(rig.vm, &[unmap(buffer.va, SIZE)]);
    drop(lies);
    assert_eq!(unmapped, Ok(()));
    was_reset();
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[fill(1, buffer.va, SIZE)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT), "it is mapped still");
    expect_working();
}

/// Of an object whose pages would be missed, in bytes.
const LARGE: u64 = 32 << 20;

/// A device that does not answer may go on: what its clients let go of is in nobody's hands until
/// then.
fn memory_is_kept_until_the_device_is_reset() {
    assert!((0..4).any(|_| is_kept_until_a_reset()), "it is always late");
}

/// A client goes while the adapter is being reset; whether all of it was before that was over.
fn is_kept_until_a_reset() -> bool {
    begin();
    // A slow host may be too late: then the device is lost.
    expect_error("").expect("the kernel's log");
    quiet();
    let quarantine = || Function::first().quarantine();
    // Without contexts, which the engines would have to leave first.
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let object = client.bo(Place::System, LARGE);
    client.map(object).fill(|_| 1);
    let mapped = client.bind_and_wait(vm, &[map(object, 0, 1 << 32, LARGE)]);
    assert_eq!(mapped, Ok(()));
    let (is_closed, dying) = quarantine();
    assert!(!is_closed, "{dying} objects are kept");
    let before = shmem();
    let look = || {
        let left = shmem();
        // Asked last: as long as memory is kept, none has gone.
        let (is_kept, dying) = quarantine();
        let has_all = left > before - LARGE / 2;
        assert!(!is_kept || has_all, "pages were given back: {left} bytes");
        (is_kept, dying)
    };
    let lies = Lies::tell("adapter-reset-never").expect("gpu-lie");
    let in_time = thread::scope(|scope| {
        let resets = scope.spawn(|| Function::first().debugfs("reset").is_ok());
        becomes("something is kept", || quarantine().0);
        drop(client);
        let waits = || (look() != (true, 0)).then_some(());
        assert!(eventually(waits).is_some(), "nobody wants to free it");
        // For what has no reason to wait.
        thread::sleep(Duration::from_millis(500));
        let bytes = Function::first().quarantined_bytes().0;
        let (in_time, dying) = look();
        assert!(!in_time || bytes >= LARGE, "{bytes} bytes are kept");
        println!("# in time {in_time}, {dying} wait");
        assert!(!in_time || dying > 0, "it was freed");
        drop(lies);
        resets.join().expect("a thread") && in_time
    });
    let is_free = || {
        let bytes = Function::first().quarantined_bytes().0;
        let free = (quarantine(), bytes) == ((false, 0), 0) && shmem() < before - LARGE / 2;
        free.then_some(())
    };
    assert!(eventually(is_free).is_some(), "{:?}", quarantine());
    in_time
}

/// Whatever clients do at that moment ends, and as documented.
fn resets_meet_everything() {
    begin();
    let done = AtomicBool::new(false);
    let work = |n: u64| {
        let mut ended = [0; 2];
        while !done.load(Relaxed) {
            let rig = Rig::new();
            let objects = [(); 4].map(|()| {
                let handle = rig.bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, both(&rig));
                handle.expect("BO_CREATE")
            });
            let jobs = objects.map(|handle| {
                let va = rig.reserve(SIZE);
                assert_eq!(
                    rig.bind_and_wait(rig.vm, &[map(handle, 0, va, SIZE)]),
                    Ok(())
                );
                let engine = Engine::ALL[(n % 2) as usize];
                let job = rig.start_after(rig.context(engine), &[fill(3, va, SIZE)], &[]);
                evict_some();
                let end = match job {
                    Ok(job) => job.wait(),
                    Err(errno) => Err(errno),
                };
                let unmapped = rig.bind_and_wait(rig.vm, &[unmap(va, SIZE)]);
                assert_eq!(unmapped, Ok(()));
                end
            });
            for end in jobs {
                assert!(matches!(end, Ok(()) | Err(Errno::ECANCELED)), "{end:?}");
                ended[usize::from(end.is_err())] += 1;
            }
            resident(&rig, &objects[..1]);
            assert_eq!(rig.destroy_synchronously(&objects, 0), Ok(()));
        }
        ended
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|n| scope.spawn(move || work(n))).collect();
        // One more than these is borne.
        for _ in 0..rounds(4) {
            thread::sleep(Duration::from_millis(100));
            reset();
        }
        done.store(true, Relaxed);
        for worker in workers {
            let [done, cancelled] = worker.join().expect("a thread");
            println!("# {done} jobs done, {cancelled} cancelled");
        }
    });
    let rig = Rig::new();
    let buffer = rig.buffer(Place::Vram, SIZE);
    buffer.cpu.fill(pattern(8));
    expect_gpu(&rig, "at last", buffer.va, SIZE, pattern(8));
    expect_working();
}
