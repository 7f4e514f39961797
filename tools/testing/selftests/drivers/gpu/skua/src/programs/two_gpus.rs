// SPDX-License-Identifier: MIT

//! Two GPUs in one machine: nothing of the one is the other's, but memory and fences that somebody
//! passes on; and those outlive the GPU that they come from.

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use skua_guest::host::{expect_error, Lies};
use skua_selftests::client::{map, map_fence, signal_value, unmap, wait, wait_value};
use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::{both, expect_gpu, movable_in_vram, pattern, place, resident};
use skua_selftests::power::Sleep;
use skua_selftests::program::{op, op_imm, EXIT};
use skua_selftests::race::Caller;
use skua_selftests::rig::{copy, dispatch, fill, write, Buffer};
use skua_selftests::suite::{a_moment, becomes, eventually, patience, rounds};
use skua_selftests::{rig, suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_spec::isa::Op;
use skua_uapi::*;

/// Of an object, in bytes.
const SIZE: u64 = 256 << 10;
/// Where many objects are mapped.
const MANY: u64 = 1 << 40;
/// Counts down from argument 0.
const COUNT_DOWN: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op_imm(Op::Sub, 2, 2, 1),
    op(Op::Bnz, 0, 2, 0, 1),
    EXIT,
];
/// Of a fence that is not lost with a device.
const KEPT: u32 = DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR;
/// Value of a fence that was lost with a device.
const LOST: u64 = libskua::MonitoredFence::LOST;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        each_works_by_itself,
        each_has_names_of_its_own,
        work_waits_for_work_of_the_other at_rest,
        work_of_the_other_that_fails_is_over,
        a_fence_is_signalled_and_waited_for_by_both,
        a_fence_is_read_by_both,
        memory_is_used_by_both,
        vram_moves_out_for_the_other_and_comes_back at_rest,
        vram_alone_is_not_for_the_other at_rest,
        both_make_room_while_both_work: 60,
        an_adapter_reset_is_not_the_others: 60 at_rest,
        an_unbind_is_not_the_others: 60,
        memory_of_a_gpu_that_is_gone_stays_usable: 60,
        unbinds_meet_work_of_the_other: 300 at_rest,
        a_deaf_one_holds_up_no_client_of_the_other: 120 at_rest,
        an_import_does_not_outlast_an_unbind: 60 at_rest,
        both_sleep_when_what_each_waits_for_is_done: 120,
        both_sleep_while_one_has_much_to_free: 120,
    ])
}

/// Work of half a second or so: three of them are not cut, after ten seconds, on a loaded host
/// either.
fn long(program: &Buffer) -> Command {
    dispatch(program, COUNT_DOWN, &[40_000_000 / patience().min(2)])
}

#[track_caller]
fn gpus() -> [Function; 2] {
    let all = Function::all();
    all.try_into()
        .unwrap_or_else(|all| panic!("two GPUs are wanted: {all:?}"))
}

#[track_caller]
fn client(gpu: &Function) -> Client {
    Client::of(gpu.open().expect("a render node"))
}

#[track_caller]
fn rigs() -> [Rig; 2] {
    gpus().map(|gpu| Rig::of(client(&gpu)))
}

/// What `theirs` finds of an object of `mine`, bound and mapped by who has it.
#[track_caller]
fn passed_on(mine: &Rig, buffer: &Buffer, theirs: &Rig) -> (u32, u64) {
    let shared = mine.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let handle = theirs.import(&shared).expect("PRIME_FD_TO_HANDLE");
    (handle, theirs.bound_at_will(handle, buffer.size))
}

#[track_caller]
fn passed_on_fence(mine: &Client, fence: u32, theirs: &Client) -> u32 {
    let descriptor = mine.fence_export(fence).expect("FENCE_EXPORT");
    theirs.fence_import(&descriptor).expect("FENCE_IMPORT")
}

fn each_works_by_itself() {
    let rigs = rigs();
    for place in Place::ALL {
        let buffers = rigs.each_ref().map(|rig| rig.buffer(place, SIZE));
        assert_eq!(buffers[0].va, buffers[1].va, "the same address in both");
        for (pattern, (rig, buffer)) in (1..).zip(rigs.iter().zip(&buffers)) {
            for engine in Engine::ALL {
                assert_eq!(rig.run(engine, &[fill(pattern, buffer.va, SIZE)]), Ok(()));
            }
        }
        for (pattern, buffer) in (1_u64..).zip(&buffers) {
            let what = format!("{place:?} of GPU {pattern}");
            buffer.cpu.expect(&what, |_| pattern << 32 | pattern);
        }
    }
    // What the one does is not counted by the other.
    let filled = |gpu: &Function| gpu.counters(["vram_write_bytes"]);
    let [one, two] = gpus();
    two.at_rest();
    let (before, idle) = (filled(&one), filled(&two));
    let buffer = rigs[0].buffer(Place::Vram, SIZE);
    let work = [fill(3, buffer.va, SIZE)];
    assert_eq!(rigs[0].run(Engine::Copy, &work), Ok(()));
    assert_ne!(filled(&one), before);
    assert_eq!(filled(&two), idle);
}

fn each_has_names_of_its_own() {
    let gpus = gpus();
    let clients = gpus.each_ref().map(client);
    let capacity = fs::read_to_string("/sys/fs/cgroup/dmem.capacity").expect("dmem");
    let mut seen = BTreeSet::new();
    for (gpu, client) in gpus.iter().zip(&clients) {
        let fdinfo = client.fdinfo();
        assert_eq!(fdinfo.get("drm-pdev"), Some(gpu.address.as_str()));
        let region = format!("drm/{}/vram0 ", gpu.address);
        assert!(capacity.contains(&region), "{region}: {capacity}");
        seen.insert((gpu.node(), gpu.primary_node(), gpu.debugfs_path()));
    }
    assert_eq!(seen.len(), gpus.len(), "{seen:?}");
}

fn work_waits_for_work_of_the_other() {
    let [one, two] = rigs();
    let gate = one.buffer(Place::System, 4096);
    let target = two.buffer(Place::Vram, 4096);
    let before = one.start(Engine::Compute, &[rig::wait_value(gate.va, 1)]);
    let theirs = two.syncobj_of(one.sync_file(before.syncobj));
    let behind = two.start_after(two.copy, &[write(target.va, 5)], &[wait(theirs)]);
    let behind = behind.expect("SUBMIT");
    // Others of the same GPU go on.
    assert_eq!(two.run(Engine::Compute, &[]), Ok(()));
    a_moment();
    assert!(!behind.has_ended());
    assert_eq!(target.cpu.read(0), 0);
    gate.cpu.write(0, 1);
    assert_eq!((behind.wait(), before.wait()), (Ok(()), Ok(())));
    assert_eq!(target.cpu.read(0), 5);
}

fn work_of_the_other_that_fails_is_over() {
    let [one, two] = rigs();
    let nowhere = one.reserve(4096);
    let fails = one.start(Engine::Copy, &[write(nowhere, 1)]);
    let theirs = two.syncobj_of(one.sync_file(fails.syncobj));
    assert_eq!(fails.wait(), Err(Errno::EFAULT));
    let behind = two.start_after(two.copy, &[], &[wait(theirs)]);
    assert_eq!(behind.expect("SUBMIT").wait(), Err(Errno::ECANCELED));
    assert_eq!(two.run(Engine::Copy, &[]), Ok(()));
}

fn a_fence_is_signalled_and_waited_for_by_both() {
    let rigs = rigs();
    for (one, two) in [(&rigs[0], &rigs[1]), (&rigs[1], &rigs[0])] {
        let mine = one.fence(0);
        let theirs = passed_on_fence(one, mine, two);
        let target = two.buffer(Place::System, 4096);
        // Before anybody has promised it.
        let held = two.start_after(
            two.compute,
            &[write(target.va, 7)],
            &[wait_value(theirs, 1), signal_value(theirs, 2)],
        );
        let held = held.expect("SUBMIT");
        a_moment();
        assert_eq!(target.cpu.read(0), 0);
        let signals = one.start_after(one.copy, &[], &[signal_value(mine, 1)]);
        assert_eq!(signals.expect("SUBMIT").wait(), Ok(()));
        assert!(one.fence_gets(mine, 2), "signalled by the other GPU");
        assert_eq!((held.wait(), target.cpu.read(0)), (Ok(()), 7));
        // By the CPU, through either.
        assert_eq!(two.fence_signal(theirs, 3), Ok(()));
        assert!(one.fence_has(mine, 3));
        assert_eq!(one.fence_signal(mine, 3), Err(Errno::EINVAL));
        // Neither keeps it from the other.
        assert_eq!(one.fence_destroy(mine), Ok(()));
        assert_eq!(two.fence_signal(theirs, 4), Ok(()));
    }
}

fn a_fence_is_read_by_both() {
    let [one, two] = rigs();
    let mine = one.fence(3);
    let theirs = passed_on_fence(&one, mine, &two);
    for (rig, fence) in [(&one, mine), (&two, theirs)] {
        let va = rig.reserve(4096);
        assert_eq!(rig.bind_and_wait(rig.vm, &[map_fence(fence, va)]), Ok(()));
        let value = |value: u64| move |at: usize| if at == 0 { value } else { 0 };
        let now = if fence == mine && std::ptr::eq(rig, &one) {
            3
        } else {
            4
        };
        expect_gpu(rig, "before", va, 4096, value(now));
        // A wait of the engine's own sees what the other GPU's client signals.
        let waits = rig.start(Engine::Compute, &[rig::wait_value(va, now + 1)]);
        a_moment();
        assert!(!waits.has_ended());
        assert_eq!(one.fence_signal(mine, now + 1), Ok(()));
        assert_eq!(waits.wait(), Ok(()));
        expect_gpu(rig, "after", va, 4096, value(now + 1));
    }
}

fn memory_is_used_by_both() {
    let rigs = rigs();
    for (one, two) in [(&rigs[0], &rigs[1]), (&rigs[1], &rigs[0])] {
        let buffer = one.buffer(Place::System, SIZE);
        let (handle, va) = passed_on(one, &buffer, two);
        let info = two.info(handle).expect("BO_INFO");
        assert_eq!((info.size, info.imported), (SIZE, 1));
        assert_eq!(two.mmap_offset(handle), Err(Errno::EOPNOTSUPP));
        for (seed, engine) in (1..).zip(Engine::ALL) {
            buffer.cpu.fill(pattern(seed.into()));
            expect_gpu(two, "what the CPU wrote", va, SIZE, pattern(seed.into()));
            assert_eq!(two.run(engine, &[fill(seed, va, SIZE)]), Ok(()));
            let word = u64::from(seed) << 32 | u64::from(seed);
            expect_gpu(one, "what the other GPU wrote", buffer.va, SIZE, |_| word);
            buffer.cpu.expect("and the CPU sees it", |_| word);
        }
        // Back to where it comes from it is the object that it was.
        let shared = two.export(handle).expect("PRIME_HANDLE_TO_FD");
        assert_eq!(one.import(&shared), Ok(buffer.handle));
        // The one that has it last keeps it.
        assert_eq!(one.close(buffer.handle), Ok(()));
        drop(shared);
        assert_eq!(two.run(Engine::Copy, &[fill(9, va, SIZE)]), Ok(()));
        buffer.cpu.expect("without its handle", |_| 9 << 32 | 9);
    }
}

#[track_caller]
fn expect_place(client: &Client, handle: u32, expected: Place) {
    let seen = eventually(|| (place(client, handle) == expected).then_some(()));
    assert!(seen.is_some(), "it is not in {expected:?}");
}

fn vram_moves_out_for_the_other_and_comes_back() {
    let [one, two] = rigs().map(Rig::having_worked);
    let buffer = one.bound(movable_in_vram(&one, SIZE), SIZE);
    buffer.cpu.fill(pattern(4));
    let (handle, va) = passed_on(&one, &buffer, &two);
    assert_eq!(place(&one, buffer.handle), Place::System);
    expect_gpu(&two, "moved out", va, SIZE, pattern(4));
    // Its own GPU works with it meanwhile, where it is.
    resident(&one, &[buffer.handle]);
    let work = [fill(6, buffer.va, SIZE)];
    assert_eq!(one.run(Engine::Compute, &work), Ok(()));
    assert_eq!(place(&one, buffer.handle), Place::System);
    expect_gpu(&two, "written by its own GPU", va, SIZE, |_| 6 << 32 | 6);
    let unmap = unmap(va, SIZE);
    assert_eq!(two.bind_and_wait(two.vm, &[unmap]), Ok(()));
    assert_eq!(two.close(handle), Ok(()));
    expect_place(&one, buffer.handle, Place::Vram);
    buffer.cpu.expect("come back", |_| 6 << 32 | 6);
}

fn vram_alone_is_not_for_the_other() {
    let [one, two] = rigs();
    let buffer = one.buffer(Place::Vram, SIZE);
    let shared = one.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    assert_eq!(two.import(&shared), Err(Errno::EOPNOTSUPP));
    assert_eq!(place(&one, buffer.handle), Place::Vram);
    let work = [fill(1, buffer.va, SIZE)];
    assert_eq!(one.run(Engine::Copy, &work), Ok(()));
}

/// Each has what the other has to move; neither waits for what waits for it.
fn both_make_room_while_both_work() {
    let rigs = rigs();
    let [one, two] = [0, 1].map(|n: usize| {
        let (mine, theirs) = (&rigs[n], &rigs[1 - n]);
        let buffer = mine.bound(movable_in_vram(mine, SIZE), SIZE);
        let (_, va) = passed_on(mine, &buffer, theirs);
        (buffer, va)
    });
    let stop = AtomicBool::new(false);
    let gpus = gpus();
    thread::scope(|scope| {
        let evictors: Vec<_> = gpus
            .iter()
            .map(|gpu| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        // What is in use for long stays where it is.
                        let _ = gpu.debugfs("evict");
                    }
                })
            })
            .collect();
        for round in 1..=rounds(100) {
            let word = u64::from(round) << 32 | u64::from(round);
            // From the one's own into the other's, by the one; then back, by the other.
            let through = [fill(round, one.0.va, SIZE), copy(one.0.va, two.1, SIZE)];
            assert_eq!(rigs[0].run(Engine::Copy, &through), Ok(()));
            two.0.cpu.expect("by the first", |_| word);
            let through = [fill(!round, two.0.va, SIZE), copy(two.0.va, one.1, SIZE)];
            assert_eq!(rigs[1].run(Engine::Copy, &through), Ok(()));
            let word = u64::from(!round) << 32 | u64::from(!round);
            one.0.cpu.expect("by the second", |_| word);
        }
        stop.store(true, Ordering::Relaxed);
        for evictor in evictors {
            evictor.join().expect("a thread");
        }
    });
}

fn an_adapter_reset_is_not_the_others() {
    expect_error("the adapter was reset").expect("the kernel's log");
    let [first, _] = gpus();
    let [one, two] = rigs();
    let kept = two.buffer(Place::Vram, SIZE);
    kept.cpu.fill(pattern(5));
    let gate = two.buffer(Place::System, 4096);
    let runs = two.start(Engine::Compute, &[rig::wait_value(gate.va, 1)]);
    let ends = one.start(
        Engine::Copy,
        &[rig::wait_value(one.buffer(Place::System, 4096).va, 1)],
    );
    let theirs = two.syncobj_of(one.sync_file(ends.syncobj));
    let behind = two.start_after(two.copy, &[], &[wait(theirs)]);
    let behind = behind.expect("SUBMIT");
    let device = one.device_create(0).expect("DEVICE_CREATE");
    one.vm_create_for(device).expect("VM_CREATE");
    let fence = one.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let lost = passed_on_fence(&one, fence, &two);
    let held = two.start_after(two.new_context(Engine::Copy), &[], &[wait_value(lost, 1)]);
    let held = held.expect("SUBMIT");
    assert_eq!(first.debugfs("reset").expect("debugfs").trim(), "1");
    assert_eq!(
        (ends.wait(), behind.wait()),
        (Err(Errno::ECANCELED), Err(Errno::ECANCELED))
    );
    // A fence that is lost lets go of who waits for it elsewhere.
    assert_eq!(held.wait(), Ok(()));
    assert!(two.fence_has(lost, LOST));
    assert!(!runs.has_ended(), "the other GPU's work");
    kept.cpu.expect("the other GPU's VRAM", pattern(5));
    gate.cpu.write(0, 1);
    assert_eq!(runs.wait(), Ok(()));
    expect_gpu(&two, "the other GPU's VRAM", kept.va, SIZE, pattern(5));
    assert_eq!(Rig::of(client(&first)).run(Engine::Copy, &[]), Ok(()));
    first.unbind().expect("unbind");
    first.bind().expect("bind");
}

fn an_unbind_is_not_the_others() {
    let [first, second] = gpus();
    let [one, two] = rigs();
    let lost = passed_on_fence(&one, one.fence(0), &two);
    let kept = two.fence_create_for(0, KEPT, 0).expect("FENCE_CREATE");
    let theirs = passed_on_fence(&two, kept, &one);
    let own = two.fence(0);
    let gate = one.buffer(Place::System, 4096);
    let ends = one.start(Engine::Compute, &[rig::wait_value(gate.va, 1)]);
    let waits = two.syncobj_of(one.sync_file(ends.syncobj));
    let behind = two.start_after(two.copy, &[], &[wait(waits)]);
    let behind = behind.expect("SUBMIT");
    let held = two.start_after(two.compute, &[], &[wait_value(lost, 1)]);
    let held = held.expect("SUBMIT");
    // It is held by the one, for a value of the other's.
    let syncs = [wait_value(theirs, 1), signal_value(theirs, 2)];
    let never = one.start_after(one.copy, &[], &syncs).expect("SUBMIT");
    let gone = Unbound::of(first.clone());
    assert_eq!(behind.wait(), Err(Errno::ECANCELED));
    assert_eq!(held.wait(), Ok(()));
    assert!(two.fence_has(lost, LOST));
    // What the one was to signal is in nobody's way.
    assert!(!two.fence_has(kept, 1));
    assert_eq!(two.fence_signal(kept, 1), Ok(()));
    assert_eq!(two.fence_signal(kept, 2), Ok(()));
    assert_eq!(one.fence_signal(theirs, 3), Err(Errno::ENODEV));
    assert_eq!(two.fence_signal(own, 1), Ok(()));
    for rig in [&two, &Rig::of(client(&second))] {
        assert_eq!(rig.run(Engine::Compute, &[]), Ok(()));
    }
    drop((ends, never));
    drop(one);
    drop(gone);
    assert_eq!(Rig::of(client(&first)).run(Engine::Copy, &[]), Ok(()));
}

fn memory_of_a_gpu_that_is_gone_stays_usable() {
    let gpus = gpus();
    for gone in [0, 1] {
        let rigs = rigs();
        let (one, two) = (&rigs[gone], &rigs[1 - gone]);
        let buffer = one.buffer(Place::System, SIZE);
        let (_, va) = passed_on(one, &buffer, two);
        let back = two.buffer(Place::System, SIZE);
        let (_, there) = passed_on(two, &back, one);
        buffer.cpu.fill(pattern(6));
        assert_eq!(
            one.run(Engine::Copy, &[copy(buffer.va, there, SIZE)]),
            Ok(())
        );
        let without = Unbound::of(gpus[gone].clone());
        // Its own, and what the gone one had of it.
        expect_gpu(two, "memory of one that is gone", va, SIZE, pattern(6));
        assert_eq!(two.run(Engine::Copy, &[fill(8, va, SIZE)]), Ok(()));
        buffer.cpu.expect("in the old mapping", |_| 8 << 32 | 8);
        back.cpu.expect("what was imported there", pattern(6));
        assert_eq!(two.run(Engine::Copy, &[fill(9, back.va, SIZE)]), Ok(()));
        back.cpu.expect("its own", |_| 9 << 32 | 9);
        drop(without);
    }
    for gpu in &gpus {
        assert_eq!(Rig::of(client(gpu)).run(Engine::Copy, &[]), Ok(()));
    }
}

/// The first comes and goes while the second works with what it had.
fn unbinds_meet_work_of_the_other() {
    let [first, second] = gpus();
    let two = Rig::of(client(&second));
    for round in 0..rounds(20) {
        let one = Rig::of(client(&first));
        let buffer = one.bound(movable_in_vram(&one, SIZE), SIZE);
        let (handle, va) = passed_on(&one, &buffer, &two);
        let fence = passed_on_fence(&one, one.fence(0), &two);
        let held = two.start_after(two.compute, &[write(va, 1)], &[wait_value(fence, 1)]);
        let held = held.expect("SUBMIT");
        let works = two.start(Engine::Copy, &[fill(round, va, SIZE); 8]);
        let theirs = one.start(Engine::Copy, &[fill(!round, buffer.va, SIZE); 8]);
        thread::scope(|scope| {
            let evicts = scope.spawn(|| first.debugfs("evict").is_ok());
            let without = Unbound::of(first.clone());
            drop(without);
            let _ = evicts.join().expect("a thread");
        });
        assert_eq!(
            (works.wait(), held.wait()),
            (Ok(()), Ok(())),
            "round {round}"
        );
        drop(theirs);
        let unmap = unmap(va, SIZE);
        assert_eq!(two.bind_and_wait(two.vm, &[unmap]), Ok(()));
        assert_eq!(two.close(handle), Ok(()));
        assert_eq!(two.fence_destroy(fence), Ok(()));
    }
    becomes("nothing is kept", || first.quarantine() == (false, 0));
}

/// Who needs room there waits for what that frees, and not for the one that does not answer.
fn a_deaf_one_holds_up_no_client_of_the_other() {
    expect_error("the adapter was reset").expect("the kernel's log");
    let [first, second] = gpus();
    let two = Rig::of(client(&second)).having_worked();
    let room = two.region(Place::Vram).size;
    let idle = two.bo_create(room / 2, 0, both(&two)).expect("BO_CREATE");
    assert_eq!(place(&two, idle), Place::Vram);
    let one = Rig::of(client(&first)).having_worked();
    let [dies, gate] = [(); 2].map(|()| one.buffer(Place::System, 4096));
    let job = one.start(Engine::Copy, &[rig::wait_value(gate.va, 1)]);
    assert_eq!(one.destroy(&[dies.handle], 0), Ok(()));
    let lies = Lies::tell("invalidate-ack-never").expect("gpu-lie");
    let flushes = || first.counters(["invalidate"]);
    let resets = || first.counters(["driver_adapter_resets"]);
    let before = flushes();
    gate.cpu.write(0, 1);
    becomes("it waits for an acknowledgement", || flushes() != before);
    let new = two.bo_create(room * 3 / 4, 0, 1 << two.region(Place::Vram).id);
    // It is not reset before time is up.
    assert_eq!(resets(), [0], "it was waited for");
    assert!(new.is_ok(), "{new:?}");
    let _ = job.wait();
    becomes("it is reset", || resets() == [1]);
    drop(lies);
    becomes("it is freed", || first.quarantine() == (false, 0));
    drop(job);
    drop((dies, gate, one));
    first.unbind().expect("unbind");
    first.bind().expect("bind");
}

/// The kernel complains if anything is mapped for a device without a driver.
fn an_import_does_not_outlast_an_unbind() {
    let [_, second] = gpus();
    let [one, two] = rigs().map(Rig::having_worked);
    let gate = one.buffer(Place::System, 4096);
    let buffer = one.bound(movable_in_vram(&one, SIZE), SIZE);
    let shared = one.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let work = [rig::wait_value(gate.va, 1), write(buffer.va, 1)];
    let job = one.start(Engine::Compute, &work);
    let (caller, importer): (_, &Client) = (Caller::new(), &two);
    thread::scope(|scope| {
        let importing = scope.spawn(|| caller.call(|| importer.import(&shared)));
        caller.wait_until_asleep();
        let unbinding = scope.spawn(|| second.unbind());
        a_moment();
        gate.cpu.write(0, 1);
        let imported = importing.join().expect("a thread");
        assert!(
            matches!(imported, Ok(_) | Err(Errno::ENODEV)),
            "{imported:?}"
        );
        unbinding.join().expect("a thread").expect("unbind");
    });
    assert_eq!(job.wait(), Ok(()));
    drop(two);
    second.bind().expect("bind");
    assert_eq!(Rig::of(client(&second)).run(Engine::Copy, &[]), Ok(()));
}

/// The first has work that waits for the second's, and that for earlier work of the first.
fn both_sleep_when_what_each_waits_for_is_done() {
    let [one, two] = rigs().map(Rig::having_worked);
    let target = one.buffer(Place::Vram, 4096);
    let program = one.program(COUNT_DOWN);
    let begins = one.start(Engine::Compute, &[long(&program); 3]);
    let theirs = two.syncobj_of(one.sync_file(begins.syncobj));
    // Not of a context that the engine holds: it would have to leave that first.
    let unheld = two.new_context(Engine::Compute);
    let between = two.start_after(unheld, &[], &[wait(theirs)]);
    let between = between.expect("SUBMIT");
    let back = one.syncobj_of(two.sync_file(between.syncobj));
    let ends = one.start_after(one.compute, &[write(target.va, 5)], &[wait(back)]);
    let ends = ends.expect("SUBMIT");
    Sleep::Devices.fall().expect("sleep");
    assert!([&begins, &between, &ends].iter().all(|job| job.has_ended()));
    assert_eq!(target.cpu.read(0), 5);
    assert_eq!(ends.wait(), Ok(()));
}

/// What the one frees waits for it, when it is asleep, until it wakes; the other does not.
fn both_sleep_while_one_has_much_to_free() {
    const OBJECTS: usize = 1024;
    let [one, two] = rigs().map(Rig::having_worked);
    let many: Vec<u32> = (0..OBJECTS).map(|_| one.bo(Place::System, 4096)).collect();
    let ops: Vec<_> = (0..)
        .zip(&many)
        .map(|(n, bo)| map(*bo, 0, MANY + n * 4096, 4096))
        .collect();
    assert_eq!(one.bind_and_wait(one.vm, &ops), Ok(()));
    let programs = [&one, &two].map(|rig| rig.program(COUNT_DOWN));
    let job = one.start(Engine::Compute, &[long(&programs[0])]);
    for handles in many.chunks(256) {
        assert_eq!(one.destroy(handles, 0), Ok(()));
    }
    let works = two.start(Engine::Compute, &[long(&programs[1]); 3]);
    Sleep::Devices.fall().expect("sleep");
    assert_eq!((job.wait(), works.wait()), (Ok(()), Ok(())));
    for gpu in gpus() {
        becomes("nothing is kept", || gpu.quarantine() == (false, 0));
    }
}
