// SPDX-License-Identifier: MIT

//! Devices of clients: what is resident for them, their budgets and their ends.
//! `guests.json` gives this program a GPU with little VRAM.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use skua_selftests::client::{map, signal, wait, PATIENCE};
use skua_selftests::function::Function;
use skua_selftests::moving::{alone, both, evict_all, expect_gpu, pattern, place};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, fill, wait_value, write, Buffer};
use skua_selftests::suite::rounds;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_uapi::*;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const EXPLICIT: u32 = DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY;
const NOT_TRIM: u32 = DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        there_are_sixteen_of_a_client,
        a_destroyed_device_takes_all_along at_rest,
        one_failure_ends_a_device,
        the_files_own_device_goes_on,
        who_is_marked_fails,
        a_device_has_failed_before_a_fence_says_so: 60,
        a_state_tells_of_system_memory at_rest,
        row_3_23_what_is_not_resident_is_not_brought_in: 60,
        what_is_resident_is_there_for_work: 60 at_rest,
        row_3_23_work_goes_on_beside_what_it_has_evicted: 60 at_rest,
        what_is_bound_over_what_leaves_is_seen: 60 at_rest,
        row_3_23_what_was_submitted_before_is_waited_for: 60 at_rest,
        row_3_23_no_other_devices_evicted_objects_wait_for_that: 60,
        who_had_it_resident_already_does_not_wait_again: 60,
        residency_ends_with_evict_and_with_the_handle: 60 at_rest,
        residency_is_each_devices_own,
        a_budget_is_what_others_leave: 60,
        more_than_the_budget_is_refused: 60,
        more_than_vram_is_refused_in_any_case: 60,
        what_must_succeed_and_cannot_is_the_devices_end: 60,
        who_has_too_much_is_told_once: 60,
        who_does_not_listen_goes_on: 60,
        vram_twice_over_in_turn: 240,
    ])
}

/// A rig of an explicit device, and that.
#[track_caller]
fn explicit() -> (Rig, u32) {
    let client = Client::new();
    let device = client.device_create(EXPLICIT).expect("DEVICE_CREATE");
    (Rig::of_device(client, device), device)
}

/// The same, with nobody else there.
#[track_caller]
fn explicit_alone() -> (Rig, u32) {
    quiet();
    let (rig, device) = explicit();
    let vram = rig.region(Place::Vram);
    let free = suite::eventually(|| (rig.region(Place::Vram).used == 0).then_some(()));
    assert!(free.is_some(), "others have VRAM: {vram:?}");
    (rig, device)
}

/// Has objects leave VRAM, also what is only just arriving there.
#[track_caller]
fn leave(client: &Client, handles: &[u32]) {
    let left = suite::eventually(|| {
        evict_all();
        let is_out = |handle: &u32| place(client, *handle) == Place::System;
        handles.iter().all(is_out).then_some(())
    });
    assert!(left.is_some(), "they stay in VRAM");
}

/// So many buffers of 1 MiB in VRAM alone.
#[track_caller]
fn buffers(rig: &Rig, count: u64) -> (Vec<Buffer>, Vec<u32>) {
    let buffers: Vec<_> = (0..count).map(|_| rig.buffer(Place::Vram, MIB)).collect();
    let handles = buffers.iter().map(|buffer| buffer.handle).collect();
    (buffers, handles)
}

/// VRAM in units of 1 MiB.
fn vram(client: &Client) -> u64 {
    client.region(Place::Vram).size / MIB
}

/// What the client is told, if anything.
fn told(client: &Client) -> Option<(u32, u64)> {
    let mut file = client.duplicate();
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO).expect("poll") == 0 {
        return None;
    }
    let mut event = [0; size_of::<drm_skua_event_trim>()];
    assert_eq!(file.read(&mut event).expect("read"), event.len());
    let word = |n: usize| u32::from_ne_bytes(event[4 * n..][..4].try_into().expect("a word"));
    assert_eq!(word(0), DRM_SKUA_EVENT_TRIM);
    assert_eq!(word(1) as usize, event.len());
    assert_eq!(word(3), 0);
    Some((word(2), u64::from(word(5)) << 32 | u64::from(word(4))))
}

fn there_are_sixteen_of_a_client() {
    let client = Client::new();
    let devices: Vec<_> = (0..16)
        .map(|_| client.device_create(0).expect("DEVICE_CREATE"))
        .collect();
    assert_eq!(client.device_create(EXPLICIT), Err(Errno::ENOSPC));
    // Others have their own.
    assert!(Client::new().device_create(EXPLICIT).is_ok());
    assert_eq!(client.device_destroy(devices[7]), Ok(()));
    assert_eq!(client.device_create(EXPLICIT), Ok(devices[7]));
    let state = client.device_state(devices[7]).expect("DEVICE_STATE");
    assert_eq!(
        (state.flags, state.status),
        (EXPLICIT, DRM_SKUA_CONTEXT_ACTIVE)
    );
    let state = client.device_state(0).expect("DEVICE_STATE");
    assert_eq!((state.flags, state.status), (0, DRM_SKUA_CONTEXT_ACTIVE));
    assert_eq!(state.budget, client.region(Place::Vram).size);
}

fn a_destroyed_device_takes_all_along() {
    quiet();
    for flags in [0, EXPLICIT] {
        let client = Client::new();
        let device = client.device_create(flags).expect("DEVICE_CREATE");
        let rig = Rig::of_device(client, device).having_worked();
        let (_, handles) = buffers(&rig, 2);
        assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
        let (never, done) = (rig.syncobj(), rig.syncobj());
        let own = rig.vm_create().expect("VM_CREATE");
        // Never signalled: its fence is of work that waits for memory that nobody writes.
        let gate = rig.buffer(Place::System, PAGE);
        let hang = rig.write(&[wait_value(gate.va, 1)]);
        rig.submit(rig.compute, &[hang], &[signal(never)])
            .expect("SUBMIT");
        let work = rig.write(&[fill(1, gate.va, 8)]);
        rig.submit(rig.copy, &[work], &[wait(never), signal(done)])
            .expect("SUBMIT");
        assert_eq!(rig.device_destroy(device), Ok(()));
        assert_eq!(rig.wait(done), Err(Errno::ECANCELED));
        assert_eq!(rig.state(rig.copy).map(drop), Err(Errno::ENOENT));
        assert_eq!(rig.vm_destroy(rig.vm), Err(Errno::ENOENT));
        assert_eq!(rig.device_state(device).map(drop), Err(Errno::ENOENT));
        assert_eq!(rig.evict_for(device, &handles), Err(Errno::ENOENT));
        // What ran goes on; what is of the file's own device stays.
        gate.cpu.write(0, 1);
        assert_eq!(rig.wait(never), Ok(()));
        assert_eq!(rig.vm_destroy(own), Ok(()));
        // Nothing is resident for it: who merely prefers VRAM gets all of it.
        let all = rig.region(Place::Vram).size;
        let large = rig.bo_create(all, 0, both(&rig)).expect("BO_CREATE");
        assert_eq!(place(&rig, large), Place::Vram, "flags {flags:#x}");
        assert_eq!(rig.close(large), Ok(()));
    }
}

fn one_failure_ends_a_device() {
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let other = client.device_create(0).expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device).having_worked();
    let gate = rig.buffer(Place::System, PAGE);
    // Runs on the other engine, with more behind it that has not started: it waits for another
    // device's, which waits for the job.
    let (done, between) = (rig.syncobj(), rig.syncobj());
    let job = rig
        .start_after(rig.copy, &[wait_value(gate.va, 1)], &[signal(done)])
        .expect("SUBMIT");
    let vm = rig.vm_create_for(other).expect("VM_CREATE");
    let context = rig
        .context_create(vm, rig.engine(Engine::Copy.kind()))
        .expect("CONTEXT_CREATE");
    rig.submit(context, &[], &[wait(done), signal(between)])
        .expect("SUBMIT");
    let behind = rig
        .start_after(rig.copy, &[fill(1, gate.va + 8, 8)], &[wait(between)])
        .expect("SUBMIT");
    assert_eq!(
        rig.run(Engine::Compute, &[fill(1, 0x10_0000_0000, 8)]),
        Err(Errno::EFAULT)
    );
    let ended = suite::eventually(|| {
        let state = rig.state(rig.copy).expect("CONTEXT_STATE");
        (state.status == DRM_SKUA_CONTEXT_LOST).then_some(())
    });
    assert!(ended.is_some(), "the other context goes on");
    let state = rig.device_state(device).expect("DEVICE_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_FAULTED);
    // What runs ends, what has not started does not begin, nothing more is taken.
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(behind.wait(), Err(Errno::ECANCELED));
    assert_eq!(gate.cpu.read(8), 0);
    for context in [rig.copy, rig.compute] {
        assert_eq!(
            rig.start_after(context, &[fill(1, gate.va, 8)], &[])
                .map(drop),
            Err(Errno::ECANCELED)
        );
    }
    assert_eq!(rig.vm_create_for(device), Err(Errno::ECANCELED));
    let context = rig.context_create(rig.vm, rig.engine(Engine::Copy.kind()));
    let state = rig.state(context.expect("CONTEXT_CREATE"));
    let state = state.expect("CONTEXT_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_LOST);
    // Other devices of the client do not notice.
    for device in [0, other] {
        assert!(rig.vm_create_for(device).is_ok());
        let state = rig.device_state(device).expect("DEVICE_STATE");
        assert_eq!(state.status, DRM_SKUA_CONTEXT_ACTIVE, "device {device}");
    }
}

fn the_files_own_device_goes_on() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, PAGE);
    assert_eq!(
        rig.run(Engine::Compute, &[fill(1, 0x10_0000_0000, 8)]),
        Err(Errno::EFAULT)
    );
    assert_eq!(rig.run(Engine::Copy, &[fill(1, buffer.va, 8)]), Ok(()));
    let state = rig.device_state(0).expect("DEVICE_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_ACTIVE);
}

fn who_is_marked_fails() {
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device);
    let gate = rig.buffer(Place::System, PAGE);
    let fence = rig.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    let watcher = Client::new();
    let theirs = watcher.fence_import(descriptor).expect("FENCE_IMPORT");
    let begin = [write(gate.va + 16, 1), wait_value(gate.va, 1)];
    let runs = rig.start(Engine::Copy, &begin);
    suite::becomes("it begins", || gate.cpu.read(16) == 1);
    let behind = [write(gate.va + 8, 1)];
    let behind = rig.start_after(rig.compute, &behind, &[wait(runs.syncobj)]);
    let behind = behind.expect("SUBMIT");
    assert_eq!(rig.device_mark_error(device), Ok(()));
    let status = |device| rig.device_state(device).expect("DEVICE_STATE").status;
    assert_eq!(status(device), DRM_SKUA_CONTEXT_LOST);
    assert_eq!(rig.fence_signal(fence, 1), Err(Errno::ECANCELED));
    assert!(
        watcher.fence_gets(theirs, u64::MAX),
        "the value of an error"
    );
    let refused = rig.start_after(rig.compute, &[], &[]).map(drop);
    assert_eq!(refused, Err(Errno::ECANCELED));
    assert_eq!(rig.vm_create_for(device), Err(Errno::ECANCELED));
    // What runs ends, what has not started does not begin.
    gate.cpu.write(0, 1);
    assert_eq!(runs.wait(), Ok(()));
    assert_eq!(behind.wait(), Err(Errno::ECANCELED));
    assert_eq!(gate.cpu.read(8), 0);
    // Nobody else fails, and who has failed keeps the reason.
    assert_eq!(status(0), DRM_SKUA_CONTEXT_ACTIVE);
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device);
    let ran = rig.run(Engine::Copy, &[write(0x10_0000_0000, 1)]);
    assert_eq!(ran, Err(Errno::EFAULT));
    assert_eq!(rig.device_mark_error(device), Ok(()));
    let state = rig.device_state(device).expect("DEVICE_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_FAULTED);
}

fn a_device_has_failed_before_a_fence_says_so() {
    for round in 0..100 {
        let client = Client::new();
        let device = client.device_create(0).expect("DEVICE_CREATE");
        let rig = Rig::of_device(client, device);
        let ran = rig.run(Engine::Copy, &[fill(1, 0x10_0000_0000, 8)]);
        let state = rig.device_state(device).expect("DEVICE_STATE");
        assert_eq!(ran, Err(Errno::EFAULT));
        assert_eq!(state.status, DRM_SKUA_CONTEXT_FAULTED, "round {round}");
    }
}

fn a_state_tells_of_system_memory() {
    let client = Client::new();
    let device = client.device_create(EXPLICIT).expect("DEVICE_CREATE");
    let states = || [0, device].map(|device| client.device_state(device).expect("DEVICE_STATE"));
    let limit = client.region(Place::System).size / 2;
    let expect = |used: u64| {
        for state in states() {
            assert_eq!((state.system_used, state.system_limit), (used, limit));
        }
    };
    let before = states()[0].system_used;
    expect(before);
    let handle = client.bo(Place::System, 3 * MIB);
    expect(before + 3 * MIB);
    // What is in VRAM does not count, and others' neither.
    let (vram, other) = (client.bo(Place::Vram, MIB), Client::new());
    other.bo(Place::System, MIB);
    expect(before + 3 * MIB);
    for handle in [handle, vram] {
        assert_eq!(client.destroy_synchronously(&[handle], 0), Ok(()));
    }
    expect(before);
}

fn row_3_23_what_is_not_resident_is_not_brought_in() {
    drop(alone());
    for is_explicit in [false, true] {
        let (rig, device) = match is_explicit {
            false => (Rig::new(), 0),
            true => explicit(),
        };
        let buffer = rig.buffer(Place::Vram, MIB);
        buffer.cpu.fill(pattern(1));
        leave(&rig, &[buffer.handle]);
        let ran = rig.run(Engine::Copy, &[fill(2, buffer.va, 8)]);
        match is_explicit {
            // The kernel knows what is mapped, and brings it back.
            false => assert_eq!(ran, Ok(())),
            // The client has to say so: it is an access to what is not there, and the device's end.
            true => {
                assert_eq!(ran, Err(Errno::EFAULT));
                assert_eq!(place(&rig, buffer.handle), Place::System);
                buffer.cpu.expect("the content", pattern(1));
                let state = rig.device_state(device).expect("DEVICE_STATE");
                assert_eq!(state.status, DRM_SKUA_CONTEXT_FAULTED);
            }
        }
        assert_eq!(rig.destroy(&[buffer.handle], 0), Ok(()));
    }
}

fn what_is_resident_is_there_for_work() {
    let (rig, device) = explicit_alone();
    let (wanted, handles) = buffers(&rig, 4);
    let (other, _) = buffers(&rig, 1);
    for round in 0..4 {
        assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
        for (n, buffer) in (0..).zip(&wanted) {
            buffer.cpu.fill(pattern(round << 8 | n));
        }
        other[0].cpu.fill(pattern(99));
        // Whatever others do.
        leave(&rig, &handles);
        for (n, buffer) in (0..).zip(&wanted) {
            expect_gpu(&rig, "resident", buffer.va, MIB, pattern(round << 8 | n));
            assert_eq!(place(&rig, buffer.handle), Place::Vram);
        }
        // What nobody asked for stays out.
        assert_eq!(place(&rig, other[0].handle), Place::System);
    }
    let state = rig.device_state(device).expect("DEVICE_STATE");
    assert_eq!(state.resident, 4 * MIB);
}

fn row_3_23_work_goes_on_beside_what_it_has_evicted() {
    let (rig, device) = explicit_alone();
    let rig = rig.having_worked();
    let (moved, handles) = buffers(&rig, 1);
    assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
    moved[0].cpu.fill(pattern(7));
    assert_eq!(rig.evict_for(device, &handles), Ok(()));
    let hold = Hold::new(&rig);
    let work = hold.begin(&rig, rig.compute);
    // It leaves, and comes back, though the work goes on.
    assert_eq!(evict_all(), 1);
    assert_eq!(place(&rig, handles[0]), Place::System);
    moved[0].cpu.expect("when it is out", pattern(7));
    assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
    assert_eq!(place(&rig, handles[0]), Place::Vram);
    expect_gpu(&rig, "when it is back", moved[0].va, MIB, pattern(7));
    hold.release();
    assert_eq!(work.wait(), Ok(()));
}

/// Its entry is taken out at once, and TLBs are flushed of it when the copy engine gets there.
fn what_is_bound_over_what_leaves_is_seen() {
    let (rig, device) = explicit_alone();
    let rig = rig.having_worked();
    let (moved, handles) = buffers(&rig, 12);
    let [new, target] = [(); 2].map(|()| rig.buffer(Place::System, 4096));
    new.cpu.fill(pattern(2));
    let (last, handle) = (&moved[11], handles[11]);
    let look = [copy(last.va, target.va, 4096)];
    for _ in 0..rounds(10) {
        assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
        last.cpu.fill(pattern(1));
        assert_eq!(rig.run(Engine::Compute, &look), Ok(()));
        target.cpu.expect("what leaves", pattern(1));
        assert_eq!(rig.evict_for(device, &handles), Ok(()));
        thread::scope(|scope| {
            scope.spawn(evict_all);
            // Without a pause: the others are copied meanwhile.
            let begin = Instant::now();
            while place(&rig, handle) == Place::Vram {
                assert!(begin.elapsed() < PATIENCE, "it stays in VRAM");
            }
            let over = map(new.handle, 0, last.va, 4096);
            assert_eq!(rig.bind_and_wait(rig.vm, &[over]), Ok(()));
            assert_eq!(rig.run(Engine::Compute, &look), Ok(()));
            target.cpu.expect("what was bound over it", pattern(2));
        });
        let back = map(handle, 0, last.va, MIB);
        assert_eq!(rig.bind_and_wait(rig.vm, &[back]), Ok(()));
    }
}

fn row_3_23_what_was_submitted_before_is_waited_for() {
    for is_closed in [false, true] {
        let (rig, device) = explicit_alone();
        let rig = rig.having_worked();
        let (moved, handles) = buffers(&rig, 1);
        let moved = &moved[0];
        // Who can ask where it is when the handle is closed.
        let viewer = is_closed.then(Client::new);
        let view = match &viewer {
            Some(viewer) => {
                let seen = viewer.import(rig.export(handles[0]).expect("export"));
                (viewer, seen.expect("import"))
            }
            None => (&*rig, handles[0]),
        };
        assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
        moved.cpu.fill(pattern(8));
        let hold = Hold::new(&rig);
        let begun = hold.begin(&rig, rig.compute);
        let work = rig.start_in(rig.compute, &[write(moved.va, 9)]);
        match is_closed {
            false => assert_eq!(rig.evict_for(device, &handles), Ok(())),
            true => assert_eq!(rig.close(handles[0]), Ok(())),
        }
        thread::scope(|scope| {
            // Waits until it has left.
            scope.spawn(evict_all);
            let leaves = || (place(view.0, view.1) == Place::System).then_some(());
            assert!(suite::eventually(leaves).is_some(), "it stays in VRAM");
            if !is_closed {
                // What has nothing to do with it does not wait, nor when it is to come back.
                assert_eq!(rig.run(Engine::Copy, &[Command::Nop { words: 2 }]), Ok(()));
                let asked = rig.begin_resident_for(device, 0, &handles, &[]);
                assert_eq!(asked, Ok(0));
                assert_eq!(rig.run(Engine::Copy, &[Command::Nop { words: 2 }]), Ok(()));
            }
            hold.release();
        });
        assert_eq!(begun.wait(), Ok(()), "closed: {is_closed}");
        assert_eq!(work.wait(), Ok(()), "closed: {is_closed}");
        let written = |offset: usize| match offset {
            0 => 9,
            _ => pattern(8)(offset),
        };
        moved.cpu.expect("what it has written", written);
    }
}

fn row_3_23_no_other_devices_evicted_objects_wait_for_that() {
    let ((one, first), (two, second)) = (explicit_alone(), explicit());
    let (one, two) = (one.having_worked(), two.having_worked());
    let ((_ours, our), (_theirs, their)) = (buffers(&one, 1), buffers(&two, 1));
    let (long, short) = (Hold::new(&one), two.buffer(Place::System, 4096));
    for (rig, device, handles) in [(&one, first, &our), (&two, second, &their)] {
        assert_eq!(rig.make_resident_for(device, 0, handles), Ok(0));
    }
    let works = long.begin(&one, one.compute);
    let ends = two.start(Engine::Copy, &[wait_value(short.va, 1)]);
    assert_eq!(one.evict_for(first, &our), Ok(()));
    assert_eq!(two.evict_for(second, &their), Ok(()));
    thread::scope(|scope| {
        scope.spawn(evict_all);
        let is_out = |rig: &Rig, handles: &[u32]| place(rig, handles[0]) == Place::System;
        let leave = || (is_out(&one, &our) && is_out(&two, &their)).then_some(());
        assert!(suite::eventually(leave).is_some(), "they stay in VRAM");
        short.cpu.write(0, 1);
        assert_eq!(ends.wait(), Ok(()));
        assert_eq!(two.make_resident_for(second, 0, &their), Ok(0));
        assert!(!works.has_ended());
        long.release();
    });
    assert_eq!(works.wait(), Ok(()));
}

fn who_had_it_resident_already_does_not_wait_again() {
    let (rig, device) = explicit_alone();
    let (wanted, handles) = buffers(&rig, 8);
    assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
    for round in 0..4 {
        leave(&rig, &handles);
        assert_eq!(rig.begin_resident_for(device, 0, &handles, &[]), Ok(0));
        let work: Vec<_> = wanted.iter().map(|it| fill(round, it.va, 8)).collect();
        assert_eq!(rig.run(Engine::Copy, &work), Ok(()), "round {round}");
    }
}

fn residency_ends_with_evict_and_with_the_handle() {
    let (rig, device) = explicit_alone();
    let (wanted, handles) = buffers(&rig, 3);
    let resident = || rig.device_state(device).expect("DEVICE_STATE").resident;
    assert_eq!(rig.make_resident_for(device, 0, &handles), Ok(0));
    assert_eq!(rig.make_resident_for(device, 0, &handles[..1]), Ok(0));
    assert_eq!(resident(), 3 * MIB);
    assert_eq!(rig.evict_for(device, &handles), Ok(()));
    // Counted: one of them was made resident twice.
    assert_eq!(resident(), MIB);
    assert_eq!(rig.evict_for(device, &handles), Err(Errno::EINVAL));
    assert_eq!(resident(), MIB);
    leave(&rig, &handles);
    let run = |n: usize| rig.run(Engine::Copy, &[fill(2, wanted[n].va, 8)]);
    assert_eq!(run(0), Ok(()));
    assert_eq!(place(&rig, handles[1]), Place::System);
    // Also what is out already.
    leave(&rig, &handles);
    assert_eq!(rig.make_resident_for(device, 0, &handles[..1]), Ok(0));
    assert_eq!(rig.evict_for(device, &handles[..1]), Ok(()));
    assert_eq!(rig.make_resident_for(device, 0, &handles[1..2]), Ok(0));
    leave(&rig, &handles);
    assert_eq!(rig.evict_for(device, &handles[1..2]), Ok(()));
    assert_eq!(run(0), Ok(()));
    assert_eq!(place(&rig, handles[0]), Place::Vram);
    assert_eq!(place(&rig, handles[1]), Place::System);
    assert_eq!(rig.close(handles[0]), Ok(()));
    assert_eq!(resident(), 0);
    // Its mapping is there, and leads nowhere once it was moved out.
    suite::becomes("it leaves VRAM", || evict_all() > 0);
    assert_eq!(run(0), Err(Errno::EFAULT));
}

fn residency_is_each_devices_own() {
    let client = Client::new();
    let handle = client.bo(Place::Vram, PAGE);
    let devices = [0, 0, EXPLICIT].map(|flags| client.device_create(flags).expect("DEVICE_CREATE"));
    for flags in [NOT_TRIM, 1 << 1] {
        let refused = Err((Errno::EINVAL, 0));
        assert_eq!(
            client.make_resident_for(devices[0], flags, &[handle]),
            refused
        );
        assert_eq!(client.make_resident_for(0, flags, &[handle]), refused);
    }
    assert_eq!(
        client.make_resident_for(devices[2], NOT_TRIM, &[handle]),
        Ok(0)
    );
    assert_eq!(client.make_resident_for(devices[0], 0, &[handle]), Ok(0));
    for device in [0, devices[1]] {
        assert_eq!(client.evict_for(device, &[handle]), Err(Errno::EINVAL));
    }
    for device in [devices[0], devices[2]] {
        assert_eq!(client.evict_for(device, &[handle]), Ok(()));
        assert_eq!(client.evict_for(device, &[handle]), Err(Errno::EINVAL));
    }
}

fn a_budget_is_what_others_leave() {
    let (rig, device) = explicit_alone();
    let all = vram(&rig);
    let budget = |rig: &Rig, device: u32| {
        let budget = rig.device_state(device).expect("DEVICE_STATE").budget;
        assert_eq!(budget % MIB, 0, "{budget:#x}");
        budget / MIB
    };
    assert_eq!(budget(&rig, device), all);
    // What is there and not resident for an explicit device leaves: it counts for nothing.
    let implicit = Rig::new();
    let (some, _) = buffers(&implicit, all / 2);
    assert_eq!(budget(&rig, device), all);
    // What another explicit device has made resident does, up to the same share.
    let (second, other) = explicit();
    let (_, mut handles) = buffers(&second, 6);
    assert_eq!(second.make_resident_for(other, 0, &handles[..5]), Ok(0));
    assert_eq!(budget(&rig, device), all - 5);
    handles.extend(buffers(&second, all / 2).1);
    assert_eq!(second.make_resident_for(other, NOT_TRIM, &handles), Ok(0));
    assert_eq!(budget(&rig, device), all / 2);
    // It is no matter what the device has itself.
    let (_, own) = buffers(&rig, all * 3 / 4);
    assert_eq!(
        rig.make_resident_for(device, NOT_TRIM, &own),
        Ok(all / 4 * MIB)
    );
    assert_eq!(budget(&rig, device), all / 2);
    drop(some);
}

fn more_than_the_budget_is_refused() {
    let (first, device) = explicit_alone();
    let all = vram(&first);
    let many = all / 2 + 4;
    let (_, handles) = buffers(&first, many);
    assert_eq!(first.make_resident_for(device, 0, &handles), Ok(0));
    let (second, other) = explicit();
    let (_, wanted) = buffers(&second, many);
    let resident = |rig: &Rig, device| rig.device_state(device).expect("DEVICE_STATE").resident;
    for _ in 0..2 {
        assert_eq!(
            second.make_resident_for(other, 0, &wanted),
            Err((Errno::ENOMEM, 4 * MIB))
        );
        assert_eq!(resident(&second, other), 0);
    }
    // As told: all but 4.
    assert_eq!(second.make_resident_for(other, 0, &wanted[4..]), Ok(0));
    assert_eq!(resident(&second, other), (many - 4) * MIB);
    // What is resident already costs nothing.
    assert_eq!(second.make_resident_for(other, 0, &wanted[4..5]), Ok(0));
    assert_eq!(
        second.make_resident_for(other, 0, &wanted[..1]),
        Err((Errno::ENOMEM, MIB))
    );
    // Who cannot do with less gets it.
    assert_eq!(
        second.make_resident_for(other, NOT_TRIM, &wanted[..4]),
        Ok(4 * MIB)
    );
    assert_eq!(resident(&second, other), many * MIB);
    // What may be in system memory has no part in this.
    let movable = second
        .bo_create(all * MIB, 0, both(&second))
        .expect("BO_CREATE");
    assert_eq!(second.make_resident_for(other, 0, &[movable]), Ok(4 * MIB));
}

fn more_than_vram_is_refused_in_any_case() {
    let (rig, device) = explicit_alone();
    let all = vram(&rig);
    let (_, handles) = buffers(&rig, all + 2);
    let (fit, rest) = handles.split_at(usize::try_from(all).expect("a count"));
    assert_eq!(
        rig.make_resident_for(device, NOT_TRIM, &handles),
        Err((Errno::ENOMEM, 2 * MIB))
    );
    let resident = || rig.device_state(device).expect("DEVICE_STATE").resident;
    assert_eq!(resident(), 0);
    assert_eq!(rig.make_resident_for(device, 0, fit), Ok(0));
    assert_eq!(
        rig.make_resident_for(device, NOT_TRIM, &rest[..1]),
        Err((Errno::ENOMEM, MIB))
    );
    assert_eq!(resident(), all * MIB);
}

/// As P-26 has it, for who uses ioctls.
fn what_must_succeed_and_cannot_is_the_devices_end() {
    const MUST: u32 = NOT_TRIM | DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED;
    let (rig, device) = explicit_alone();
    let fence = rig.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let all = vram(&rig);
    let (_, handles) = buffers(&rig, all + 2);
    let state = || {
        let state = rig.device_state(device).expect("DEVICE_STATE");
        (state.status, state.resident / MIB)
    };
    // What can be done is, and what is wrong for another reason is no end.
    let (first, rest) = handles.split_at(2);
    assert_eq!(rig.make_resident_for(device, MUST, first), Ok(0));
    assert_eq!(rig.offer(&rest[..1], DRM_SKUA_OFFER_LOW), Ok(()));
    let refused = rig.make_resident_for(device, MUST, &rest[..1]);
    assert_eq!(refused, Err((Errno::EBUSY, 0)));
    assert!(rig.reclaim(&rest[..1]).is_ok());
    assert_eq!(state(), (DRM_SKUA_CONTEXT_ACTIVE, 2));
    let refused = rig.make_resident_for(device, NOT_TRIM, &handles);
    assert_eq!(refused, Err((Errno::ENOMEM, 2 * MIB)));
    assert_eq!(state(), (DRM_SKUA_CONTEXT_ACTIVE, 2));
    let refused = rig.make_resident_for(device, MUST, &handles);
    assert_eq!(refused, Err((Errno::ECANCELED, 2 * MIB)));
    assert_eq!(state(), (DRM_SKUA_CONTEXT_OUT_OF_MEMORY, 2));
    // As any other that has failed.
    assert_eq!(rig.fence_signal(fence, 1), Err(Errno::ECANCELED));
    let ran = rig.start_after(rig.copy, &[], &[]).map(drop);
    assert_eq!(ran, Err(Errno::ECANCELED));
    assert_eq!(rig.device_mark_error(device), Ok(()));
    assert_eq!(state().0, DRM_SKUA_CONTEXT_OUT_OF_MEMORY);
}

/// A rig and its device, with 4 MiB more of buffers than half of VRAM.
#[track_caller]
fn more_than_half((rig, device): (Rig, u32)) -> (Rig, u32, Vec<u32>) {
    let (_, handles) = buffers(&rig, vram(&rig) / 2 + 4);
    (rig, device, handles)
}

fn who_has_too_much_is_told_once() {
    let (first, device, handles) = more_than_half(explicit_alone());
    let (second, other, wanted) = more_than_half(explicit());
    assert_eq!(first.make_resident_for(device, 0, &handles), Ok(0));
    assert_eq!((told(&first), told(&second)), (None, None));
    assert_eq!(second.make_resident_for(other, 0, &wanted[..8]), Ok(0));
    assert_eq!(told(&first), None, "the rest is enough");
    assert_eq!(
        second.make_resident_for(other, NOT_TRIM, &wanted[8..]),
        Ok(4 * MIB)
    );
    assert_eq!(told(&first), Some((device, 4 * MIB)));
    assert_eq!(told(&second), None, "it knows from the call");
    // Once, until the client has looked.
    for _ in 0..3 {
        assert_eq!(second.evict_for(other, &wanted), Ok(()));
        assert_eq!(
            second.make_resident_for(other, NOT_TRIM, &wanted),
            Ok(4 * MIB)
        );
    }
    assert_eq!(told(&first), None);
    assert!(first.device_state(device).is_ok());
    assert_eq!(second.evict_for(other, &wanted[..1]), Ok(()));
    assert_eq!(
        second.make_resident_for(other, NOT_TRIM, &wanted[..1]),
        Ok(4 * MIB)
    );
    assert_eq!(told(&first), Some((device, 4 * MIB)));
    // Who follows is left alone.
    assert_eq!(first.evict_for(device, &handles[..4]), Ok(()));
    assert_eq!(second.evict_for(other, &wanted[..1]), Ok(()));
    assert_eq!(
        second.make_resident_for(other, NOT_TRIM, &wanted[..1]),
        Ok(4 * MIB)
    );
    assert_eq!(told(&first), None);
}

fn who_does_not_listen_goes_on() {
    let (first, device, handles) = more_than_half(explicit_alone());
    let (second, other, wanted) = more_than_half(explicit());
    assert_eq!(first.make_resident_for(device, 0, &handles), Ok(0));
    // More than a file has room for.
    for round in 0..300 {
        assert!(first.device_state(device).is_ok(), "round {round}");
        assert_eq!(
            second.make_resident_for(other, NOT_TRIM, &wanted),
            Ok(4 * MIB),
            "round {round}"
        );
        assert_eq!(second.evict_for(other, &wanted), Ok(()));
    }
    assert_eq!(first.make_resident_for(device, 0, &handles), Ok(0));
    assert_eq!(told(&first), Some((device, 4 * MIB)));
    // With some not read, and one not sent, it closes.
    drop(first);
    assert_eq!(second.make_resident_for(other, 0, &wanted), Ok(0));
}

fn vram_twice_over_in_turn() {
    let (first, device) = explicit_alone();
    let many = vram(&first) * 3 / 4;
    let mut clients = vec![(first, device)];
    clients.extend((0..2).map(|_| explicit()));
    let sets: Vec<_> = clients
        .iter()
        .map(|(rig, device)| {
            let (set, handles) = buffers(rig, many);
            assert!(rig.make_resident_for(*device, NOT_TRIM, &handles).is_ok());
            set
        })
        .collect();
    let [before] = Function::first().counters(["driver_evictions"]);
    for round in 0..3_u32 {
        for (number, ((rig, _), set)) in (1..).zip(clients.iter().zip(&sets)) {
            let value = |round: u32, n: u32| round << 16 | number << 8 | n;
            for (n, buffer) in (0..).zip(set) {
                if round > 0 {
                    let twice = u64::from(value(round - 1, n));
                    buffer
                        .cpu
                        .expect("of the last round", |_| twice << 32 | twice);
                }
                let work = fill(value(round, n), buffer.va, MIB);
                assert_eq!(rig.run(Engine::Copy, &[work]), Ok(()), "round {round}");
            }
        }
    }
    let [after] = Function::first().counters(["driver_evictions"]);
    assert!(after > before, "nobody had to leave");
}
