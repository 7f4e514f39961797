// SPDX-License-Identifier: MIT

//! BO_DESTROY: an object goes with its memory and its mappings, whatever the client says of it.

use std::fs::{self, OpenOptions};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::cases::Cases;
use skua_selftests::cgroup::MemoryGroup;
use skua_selftests::client::{map, signal, unmap, wait, wait_value as value};
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{alone, both, evict_all, evict_some};
use skua_selftests::raw::{dies_of, with_alarm, Signal};
use skua_selftests::rig::{copy, fill, wait_value, write, Job};
use skua_selftests::suite::{a_moment, becomes, eventually, within};
use skua_selftests::witness::{quiet, shmem};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_uapi::*;

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;
const ASSUME: u32 = DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE;
const SYNC: u32 = DRM_SKUA_BO_DESTROY_SYNCHRONOUS;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_0_02_destruction_waits_for_work_and_the_call_does_not: 60 at_rest,
        row_0_02_all_contexts_count: 60,
        row_0_02_addresses_can_be_used_again_at_once: 60 at_rest,
        row_0_02_what_is_held_counts: 60 at_rest,
        row_0_02_what_is_held_finds_resident_what_was: 60 at_rest,
        row_0_02_what_is_held_and_cancelled_counts_no_more: 60 at_rest,
        row_0_02_what_is_held_elsewhere_uses_nothing_private at_rest,
        row_0_02_work_does_not_wait_for_what_goes_behind_held_work: 60 at_rest,
        row_0_03_who_needs_room_waits_for_it: 60,
        row_0_03_a_dead_client_leaves_nothing: 60,
        row_0_03_it_goes_when_its_device_has_failed: 60 at_rest,
        row_0_04_assume_not_in_use_frees_at_once_and_faults: 60 at_rest,
        row_0_04_no_address_space_finds_it_any_more: 60 at_rest,
        row_0_04_a_bind_that_waits_maps_nothing: 60 at_rest,
        row_0_04_assume_not_in_use_does_not_go_behind_what_is_held: 60 at_rest,
        row_0_05_synchronous_destruction_returns_when_memory_is_free: 60 at_rest,
        row_0_05_synchronous_destruction_waits_for_what_is_held: 60 at_rest,
        row_0_06_all_are_destroyed_or_none,
        row_0_06_two_who_destroy_the_same_do_it_once,
        row_0_06_so_do_they_behind_what_is_held at_rest,
        row_0_11_the_cpu_sees_nothing_of_it_any_more: 60,
        row_0_11_what_is_locked_is_a_bus_error_when_it_is_gone: 60 at_rest,
        row_0_11_pages_go_back_though_they_are_mapped,
        what_others_have_lives_on: 60,
        what_others_have_by_name_lives_on: 60,
        only_its_own_mappings_go: 60,
        what_is_held_goes_though_its_group_has_no_memory: 60 at_rest,
        many_go_with_few_flushes: 60 at_rest,
        what_is_mapped_very_often_goes_in_parts: 120 at_rest,
        nobody_waits_for_all_parts: 120 at_rest,
        what_is_bound_in_its_place_is_reached: 60,
        what_moves_is_destroyed_when_it_is_there: 60 at_rest,
        clients_that_destroy_at_random_hurt_nobody: 120,
    ])
}

fn used(client: &Client, place: Place) -> u64 {
    client.region(place).used
}

fn row_0_02_destruction_waits_for_work_and_the_call_does_not() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let out = rig.buffer(Place::System, LARGE);
    for place in Place::ALL {
        gate.cpu.fill(|_| 0);
        let later = rig.buffer(place, PAGE);
        let a = rig.bo(place, LARGE);
        let va = rig.bound_at_will(a, LARGE);
        let with = used(&rig, place);
        let job = rig.start(
            Engine::Copy,
            &[
                wait_value(gate.va, 1),
                fill(0xabcd, va, LARGE),
                copy(va, out.va, LARGE),
            ],
        );
        assert_eq!(rig.destroy(&[a], 0), Ok(()));
        // The name is gone at once, the memory is not.
        assert_eq!(rig.info(a).err(), Some(Errno::ENOENT));
        assert_eq!(rig.close(a), Err(Errno::EINVAL));
        assert_eq!(rig.destroy(&[a], 0), Err(Errno::ENOENT));
        a_moment();
        assert_eq!(used(&rig, place), with, "{place:?}");
        // Nobody waits for it: not binds, not other contexts, and not it for them.
        let other = rig.bo(place, PAGE);
        rig.bound_at_will(other, PAGE);
        assert_eq!(rig.destroy_synchronously(&[other], ASSUME), Ok(()));
        assert_eq!(rig.run(Engine::Compute, &[write(later.va, 3)]), Ok(()));
        let with = used(&rig, place);
        let unrelated = rig.start(Engine::Compute, &[wait_value(gate.va + 8, 1)]);
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        becomes("the memory is free", || used(&rig, place) == with - LARGE);
        assert!(!unrelated.has_ended());
        out.cpu
            .expect("what the work has done", |_| 0xabcd_0000_abcd);
        gate.cpu.write(8, 1);
        assert_eq!(unrelated.wait(), Ok(()));
        // Nothing is there any more.
        let late = rig.start_in(rig.new_context(Engine::Copy), &[write(va, 1)]);
        assert_eq!(late.wait(), Err(Errno::EFAULT));
    }
}

fn row_0_02_all_contexts_count() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let before = used(&rig, Place::Vram);
    let a = rig.bo(Place::Vram, LARGE);
    let va = rig.bound_at_will(a, LARGE);
    // One runs on another engine; one waits in the kernel, behind what is to come.
    let other = rig.new_context(Engine::Copy);
    let trigger = rig.start(Engine::Copy, &[wait_value(gate.va + 8, 1)]);
    let jobs = [
        rig.start(Engine::Compute, &[wait_value(gate.va, 1), write(va, 1)]),
        rig.start_after(other, &[write(va + 8, 2)], &[wait(trigger.syncobj)])
            .expect("SUBMIT"),
    ];
    assert_eq!(rig.destroy(&[a], 0), Ok(()));
    gate.cpu.write(0, 1);
    assert_eq!(jobs[0].wait(), Ok(()));
    a_moment();
    assert!(used(&rig, Place::Vram) > before, "one still needs it");
    gate.cpu.write(8, 1);
    assert_eq!(jobs[1].wait(), Ok(()));
    becomes("the memory is free", || used(&rig, Place::Vram) == before);
}

/// What is mapped in its place is another object's, and stays.
fn row_0_02_addresses_can_be_used_again_at_once() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let before = used(&rig, Place::Vram);
    let (a, b) = (rig.bo(Place::Vram, LARGE), rig.bo(Place::Vram, LARGE));
    let va = rig.bound_at_will(a, LARGE);
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    assert_eq!(rig.destroy(&[a], 0), Ok(()));
    // A part of it.
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map(b, 0, va + PAGE, PAGE)]),
        Ok(())
    );
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    becomes("the memory is free", || {
        used(&rig, Place::Vram) == before + LARGE
    });
    assert_eq!(
        rig.run(
            Engine::Copy,
            &[write(va + PAGE, 5), write(va + 2 * PAGE - 8, 6)]
        ),
        Ok(())
    );
    let cpu = rig.map(b);
    assert_eq!((cpu.read(0), cpu.read(4088)), (5, 6));
    for address in [va, va + 2 * PAGE, va + LARGE - 8] {
        let late = rig.start_in(rig.new_context(Engine::Copy), &[write(address, 1)]);
        assert_eq!(late.wait(), Err(Errno::EFAULT), "{address:#x}");
    }
    // The addresses are as any others.
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, LARGE)]), Ok(()));
}

/// Work that a context holds until `fence` has the value 1.
#[track_caller]
fn hold<'a>(rig: &'a Rig, context: u32, fence: u32, commands: &[Command]) -> Job<'a> {
    let job = rig.start_after(context, commands, &[value(fence, 1)]);
    job.expect("SUBMIT")
}

/// An object in VRAM, and work that uses it and is held until a fence has the value 1.
#[track_caller]
fn held_user(rig: &Rig) -> (u32, u32, Job<'_>) {
    let fence = rig.fence(0);
    let a = rig.bo(Place::Vram, LARGE);
    let va = rig.bound_at_will(a, LARGE);
    (a, fence, hold(rig, rig.copy, fence, &[write(va, 1)]))
}

/// Of all contexts, for values that nobody has promised. Others get the room meanwhile.
fn row_0_02_what_is_held_counts() {
    let rig = alone();
    let out = rig.buffer(Place::System, LARGE);
    for place in Place::ALL {
        let fences = [rig.fence(0), rig.fence(0)];
        let a = rig.bo(place, LARGE);
        let va = rig.bound_at_will(a, LARGE);
        let work = [fill(0xabcd, va, LARGE), copy(va, out.va, LARGE)];
        let held = [
            hold(&rig, rig.copy, fences[0], &work),
            hold(&rig, rig.compute, fences[1], &[write(va, 1)]),
        ];
        let all = || {
            Place::ALL
                .map(|place| used(&rig, place))
                .iter()
                .sum::<u64>()
        };
        let with = all();
        assert_eq!(rig.destroy(&[a], 0), Ok(()));
        assert_eq!(rig.info(a).err(), Some(Errno::ENOENT));
        assert_eq!(rig.destroy(&[a], 0), Err(Errno::ENOENT));
        if place == Place::Vram {
            let there = used(&rig, place);
            evict_all();
            assert!(used(&rig, place) < there, "it is in others' way");
        }
        for (fence, job) in fences.iter().zip(&held) {
            a_moment();
            assert_eq!(all(), with, "{place:?}: one still needs it");
            assert_eq!(rig.fence_signal(*fence, 1), Ok(()));
            assert_eq!(job.wait(), Ok(()), "{place:?}");
        }
        becomes("the memory is free", || all() == with - LARGE);
        out.cpu
            .expect("what the work has done", |_| 0xabcd_0000_abcd);
        out.cpu.fill(|_| 0);
        let late = rig.start_in(rig.new_context(Engine::Copy), &[write(va, 1)]);
        assert_eq!(late.wait(), Err(Errno::EFAULT));
    }
}

/// Though what was resident for a device is so by a handle.
fn row_0_02_what_is_held_finds_resident_what_was() {
    quiet();
    let client = Client::new();
    let device = client
        .device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY)
        .expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device).having_worked();
    let before = used(&rig, Place::Vram);
    let out = rig.buffer(Place::System, PAGE);
    // One after the other: the fault of one ends the other.
    let fences = [rig.fence(0), rig.fence(0)];
    let (a, b) = (rig.bo(Place::Vram, LARGE), rig.bo(Place::Vram, LARGE));
    let vas = [a, b].map(|bo| rig.bound_at_will(bo, LARGE));
    assert_eq!(rig.make_resident_for(device, 0, &[a]), Ok(0));
    let work = [write(vas[0], 7), copy(vas[0], out.va, 8)];
    let job = hold(&rig, rig.copy, fences[0], &work);
    let strange = hold(&rig, rig.compute, fences[1], &[write(vas[1], 7)]);
    assert_eq!(rig.destroy(&[a, b], 0), Ok(()));
    evict_all();
    assert_eq!(used(&rig, Place::Vram), before);
    assert_eq!(rig.fence_signal(fences[0], 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(out.cpu.read(0), 7);
    // What was not resident does not become so.
    assert_eq!(rig.fence_signal(fences[1], 1), Ok(()));
    assert_eq!(strange.wait(), Err(Errno::EFAULT));
    becomes("the memory is free", || used(&rig, Place::Vram) == before);
}

fn row_0_02_what_is_held_and_cancelled_counts_no_more() {
    let rig = alone();
    let before = used(&rig, Place::Vram);
    let fence = rig.fence(0);
    let (a, b) = (rig.bo(Place::Vram, LARGE), rig.bo(Place::Vram, LARGE));
    let va = rig.bound_at_will(a, LARGE);
    rig.bound_at_will(b, LARGE);
    let contexts = [(); 2].map(|()| rig.new_context(Engine::Copy));
    let held = contexts.map(|context| hold(&rig, context, fence, &[write(va, 1)]));
    assert_eq!(rig.destroy(&[a, b], 0), Ok(()));
    assert_eq!(rig.context_destroy(contexts[1]), Ok(()));
    assert_eq!(held[1].wait(), Err(Errno::ECANCELED));
    a_moment();
    assert!(used(&rig, Place::Vram) > before, "one still needs it");
    assert_eq!(rig.context_destroy(contexts[0]), Ok(()));
    assert_eq!(held[0].wait(), Err(Errno::ECANCELED));
    becomes("the memory is free", || used(&rig, Place::Vram) == before);
}

/// It was on its way out of VRAM, and is not to come back.
fn row_0_02_what_is_held_elsewhere_uses_nothing_private() {
    quiet();
    let rig = Rig::new();
    let there = rig.vm_create().expect("VM_CREATE");
    let vram = 1 << rig.region(Place::Vram).id;
    let make = |vm: u32| rig.bo_create_in(vm, LARGE, 0, vram).expect("BO_CREATE");
    let fence = rig.fence(0);
    let held = hold(&rig, rig.copy, fence, &[]);
    let (here, away) = (make(rig.vm), [(); 2].map(|()| make(there)));
    let used = || used(&rig, Place::Vram);
    let before = used();
    assert_eq!(rig.destroy(&[away[0]], 0), Ok(()));
    becomes("its memory is free", || used() <= before - LARGE);
    let synchronous = DRM_SKUA_BO_DESTROY_SYNCHRONOUS;
    assert_eq!(rig.destroy(&[away[1]], synchronous), Ok(()));
    assert!(used() <= before - 2 * LARGE);
    // What it may use stays, and so does what goes with that.
    let with_it = make(there);
    assert_eq!(rig.destroy(&[with_it, here], 0), Ok(()));
    a_moment();
    assert!(used() >= before - 2 * LARGE);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(held.wait(), Ok(()));
    becomes("all is free", || used() <= before - 3 * LARGE);
}

fn row_0_02_work_does_not_wait_for_what_goes_behind_held_work() {
    let rig = alone();
    let vram = rig.region(Place::Vram).id;
    let [gate, out] = [(); 2].map(|()| rig.buffer(Place::System, PAGE));
    let bo = rig.bo(Place::Vram, LARGE);
    rig.bound_at_will(bo, LARGE);
    let context = rig.context_having_worked(Engine::Copy);
    let fence = rig.fence(0);
    let runs = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    thread::scope(|scope| {
        scope.spawn(evict_some);
        let leaves = || rig.info(bo).is_ok_and(|info| info.region != vram);
        becomes("it leaves VRAM", leaves);
        let held = hold(&rig, context, fence, &[]);
        assert_eq!(rig.destroy(&[bo], 0), Ok(()));
        assert_eq!(rig.fence_signal(fence, 1), Ok(()));
        // It is let go of, and waits for the move, as all work there does.
        a_moment();
        // What runs would be waited for until there is no patience left.
        let job = rig.start_after(rig.copy, &[write(out.va, 1)], &[]);
        gate.cpu.write(0, 1);
        assert_eq!(job.expect("SUBMIT").wait(), Ok(()));
        assert_eq!(held.wait(), Ok(()));
    });
    assert_eq!(runs.wait(), Ok(()));
}

fn row_0_03_who_needs_room_waits_for_it() {
    let rig = alone();
    let other = Client::new();
    let gate = rig.buffer(Place::System, PAGE);
    let region = rig.region(Place::Vram);
    let size = (region.size - region.used) / 4 * 3 / LARGE * LARGE;
    let a = rig.bo(Place::Vram, size);
    let va = rig.bound_at_will(a, size);
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), write(va + size - 8, !0)],
    );
    assert_eq!(rig.destroy(&[a], 0), Ok(()));
    thread::scope(|scope| {
        let next = scope.spawn(|| other.try_bo(Place::Vram, size));
        thread::sleep(Duration::from_millis(100));
        assert!(!next.is_finished(), "it is in use, and there is no more");
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        let next = next.join().expect("a thread").expect("BO_CREATE");
        other
            .map(next)
            .expect("memory of what was destroyed", |_| 0);
    });
}

fn row_0_03_a_dead_client_leaves_nothing() {
    quiet();
    let other = Client::new();
    let before = Place::ALL.map(|place| used(&other, place));
    for is_held in [false, true] {
        let dying = Rig::new().having_worked();
        let gate = dying.buffer(Place::System, PAGE);
        let objects = Place::ALL.map(|place| dying.bo(place, LARGE));
        for object in objects {
            dying.bound_at_will(object, LARGE);
        }
        if is_held {
            drop(hold(&dying, dying.copy, dying.fence(0), &[]));
        }
        drop(dying.start(Engine::Copy, &[wait_value(gate.va, 1)]));
        assert_eq!(dying.destroy(&objects, 0), Ok(()));
    }
    // Their work hangs until the watchdog cuts it, of one after the other.
    let is_gone = || (used(&other, Place::System) == before[0]).then_some(());
    let _ = within(30, is_gone);
    quiet();
    assert_eq!(Place::ALL.map(|place| used(&other, place)), before);
}

/// What is queued and held for it is cancelled then, though what it waits for never happens.
fn row_0_03_it_goes_when_its_device_has_failed() {
    let other = alone();
    let gate = other.buffer(Place::System, PAGE);
    let trigger = other.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    for is_marked in [false, true] {
        let client = Client::new();
        let device = client.device_create(0).expect("DEVICE_CREATE");
        let rig = Rig::of_device(client, device).having_worked();
        let before = used(&rig, Place::Vram);
        let a = rig.bo(Place::Vram, LARGE);
        let va = rig.bound_at_will(a, LARGE);
        let never = rig.syncobj_of(other.sync_file(trigger.syncobj));
        let queued = rig.start_after(rig.copy, &[write(va, 1)], &[wait(never)]);
        let queued = queued.expect("SUBMIT");
        let context = rig.new_context(Engine::Copy);
        let held = hold(&rig, context, rig.fence(0), &[write(va, 1)]);
        assert_eq!(rig.destroy(&[a], 0), Ok(()));
        a_moment();
        assert!(used(&rig, Place::Vram) > before, "both still need it");
        match is_marked {
            true => assert_eq!(rig.device_mark_error(device), Ok(())),
            false => {
                let fault = rig.run(Engine::Compute, &[write(rig.reserve(PAGE), 1)]);
                assert_eq!(fault, Err(Errno::EFAULT));
            }
        }
        let ends = [queued, held].map(|job| job.wait());
        assert_eq!(ends, [Err(Errno::ECANCELED); 2], "marked: {is_marked}");
        becomes("the memory is free", || used(&rig, Place::Vram) == before);
    }
    assert!(!trigger.has_ended());
    gate.cpu.write(0, 1);
    assert_eq!(trigger.wait(), Ok(()));
}

fn row_0_04_assume_not_in_use_frees_at_once_and_faults() {
    let rig = alone();
    let other = Rig::new();
    let gate = rig.buffer(Place::System, PAGE);
    for place in Place::ALL {
        for engine in Engine::ALL {
            gate.cpu.fill(|_| 0);
            let a = rig.buffer(place, LARGE);
            let context = rig.new_context(engine);
            // It knows the translation.
            let warm = rig.start_in(context, &[fill(1, a.va, LARGE)]);
            assert_eq!(warm.wait(), Ok(()));
            let with = used(&rig, place);
            let job = rig.start_in(context, &[wait_value(gate.va, 1), fill(!0, a.va, LARGE)]);
            assert_eq!(rig.destroy(&[a.handle], ASSUME), Ok(()));
            assert_eq!(used(&rig, place), with - LARGE, "{place:?}, {engine:?}");
            // Now it is others'.
            let canaries: Vec<_> = (0..4).map(|_| other.buffer(place, LARGE)).collect();
            gate.cpu.write(0, 1);
            assert_eq!(job.wait(), Err(Errno::EFAULT), "{place:?}, {engine:?}");
            let state = rig.state(context).expect("CONTEXT_STATE");
            assert_eq!(state.address, a.va);
            for canary in &canaries {
                canary.cpu.expect("a canary", |_| 0);
            }
            for canary in canaries {
                assert_eq!(other.destroy_synchronously(&[canary.handle], 0), Ok(()));
            }
        }
    }
    // The liar's other contexts go on, and others'.
    assert_eq!(rig.run(Engine::Copy, &[write(gate.va, 7)]), Ok(()));
    assert_eq!(other.run(Engine::Copy, &[]), Ok(()));
}

/// Nor does any engine, whatever it has known there, though the address spaces have not had their
/// turn to forget it.
fn row_0_04_no_address_space_finds_it_any_more() {
    let rig = alone();
    let other = Rig::new();
    let vms = [rig.vm, rig.vm_create().expect("VM_CREATE")];
    let commands = rig.buffer(Place::System, PAGE);
    let own = map(commands.handle, 0, commands.va, PAGE);
    assert_eq!(rig.bind_and_wait(vms[1], &[own]), Ok(()));
    let run = |context: u32, command: Command| {
        let words = command.encode().words().to_vec();
        commands.cpu.write_words(0, &words);
        let buffer = drm_skua_buffer {
            va: commands.va,
            size: u32::try_from(size_of_val(&*words)).expect("a size"),
            flags: 0,
        };
        let done = rig.syncobj();
        assert_eq!(rig.submit(context, &[buffer], &[signal(done)]), Ok(()));
        rig.wait(done)
    };
    let gate = rig.buffer(Place::System, PAGE);
    for (round, place) in (1..).zip([Place::Vram, Place::System]) {
        let trigger = rig.start(Engine::Copy, &[wait_value(gate.va, round)]);
        let a = rig.bo(place, PAGE);
        // Commands, which are where a large page begins, would take its place in a TLB.
        let va = rig.reserve(2 * PAGE) + PAGE;
        let contexts = vms.map(|vm| {
            assert_eq!(rig.bind_and_wait(vm, &[map(a, 0, va, PAGE)]), Ok(()));
            Engine::ALL.map(|engine| {
                let context = rig.context_create(vm, rig.engine(engine.kind()));
                context.expect("CONTEXT_CREATE")
            })
        });
        for context in contexts.iter().flatten() {
            assert_eq!(run(*context, write(va, 1)), Ok(()), "{place:?}");
        }
        for vm in vms {
            let bind = [map(commands.handle, 0, rig.reserve(PAGE), PAGE)];
            assert_eq!(rig.bind(vm, &bind, &[wait(trigger.syncobj)]), Ok(()));
        }
        assert_eq!(rig.destroy(&[a], ASSUME), Ok(()));
        let canaries: Vec<_> = (0..64).map(|_| other.buffer(place, PAGE)).collect();
        for (n, context) in (0..).zip(contexts.iter().flatten()) {
            let end = run(*context, write(va, !0));
            for canary in &canaries {
                canary.cpu.expect("a canary", |_| 0);
            }
            assert_eq!(end, Err(Errno::EFAULT), "{place:?}, context {n}");
        }
        gate.cpu.write(0, round);
        assert_eq!(trigger.wait(), Ok(()));
    }
}

fn row_0_04_a_bind_that_waits_maps_nothing() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let trigger = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let before = used(&rig, Place::Vram);
    let (a, b) = (rig.bo(Place::Vram, LARGE), rig.bo(Place::Vram, LARGE));
    let (va, done) = (rig.reserve(2 * LARGE), rig.syncobj());
    assert_eq!(
        rig.bind(
            rig.vm,
            &[map(a, 0, va, LARGE), map(b, 0, va + LARGE, LARGE)],
            &[wait(trigger.syncobj), signal(done)],
        ),
        Ok(())
    );
    assert_eq!(rig.destroy_synchronously(&[a], ASSUME), Ok(()));
    assert_eq!(used(&rig, Place::Vram), before + LARGE);
    gate.cpu.write(0, 1);
    // The rest of the bind is done, and no error.
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(rig.run(Engine::Copy, &[write(va + LARGE, 1)]), Ok(()));
    let late = rig.start(Engine::Copy, &[write(va, 1)]);
    assert_eq!(late.wait(), Err(Errno::EFAULT));
}

fn row_0_04_assume_not_in_use_does_not_go_behind_what_is_held() {
    let rig = alone();
    let before = used(&rig, Place::Vram);
    let (a, fence, job) = held_user(&rig);
    assert_eq!(rig.destroy(&[a], ASSUME), Ok(()));
    becomes("the memory is free", || used(&rig, Place::Vram) == before);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(job.wait(), Err(Errno::EFAULT));
}

fn row_0_05_synchronous_destruction_waits_for_what_is_held() {
    let rig = alone();
    let before = used(&rig, Place::Vram);
    let (a, fence, job) = held_user(&rig);
    // As for other work.
    let result = with_alarm(Duration::from_millis(50), || rig.destroy(&[a], SYNC));
    assert_eq!(result, Err(Errno::EINTR));
    assert_eq!(rig.destroy(&[a], SYNC), Err(Errno::EAGAIN));
    assert!(rig.info(a).is_ok());
    thread::scope(|scope| {
        let client: &Client = &rig;
        let destroyed = scope.spawn(move || {
            let result = client.destroy_synchronously(&[a], 0);
            (result, used(client, Place::Vram))
        });
        a_moment();
        assert!(!destroyed.is_finished(), "it did not wait");
        assert_eq!(client.fence_signal(fence, 1), Ok(()));
        let seen = destroyed.join().expect("a thread");
        assert_eq!(seen, (Ok(()), before));
    });
    assert_eq!(job.wait(), Ok(()));
}

fn row_0_05_synchronous_destruction_returns_when_memory_is_free() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    for place in Place::ALL {
        gate.cpu.fill(|_| 0);
        let a = rig.bo(place, LARGE);
        let va = rig.bound_at_will(a, LARGE);
        let with = used(&rig, place);
        let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1), fill(1, va, LARGE)]);
        // A signal ends it, and nothing has changed.
        let result = with_alarm(Duration::from_millis(50), || rig.destroy(&[a], SYNC));
        assert_eq!(result, Err(Errno::EINTR));
        assert!(rig.info(a).is_ok());
        // So does a long time, in which no device can be unplugged.
        assert_eq!(rig.destroy(&[a], SYNC), Err(Errno::EAGAIN));
        assert!(rig.info(a).is_ok());
        thread::scope(|scope| {
            let client: &Client = &rig;
            let destroyed = scope.spawn(move || {
                let result = client.destroy_synchronously(&[a], 0);
                (result, used(client, place))
            });
            a_moment();
            assert!(!destroyed.is_finished(), "it did not wait");
            gate.cpu.write(0, 1);
            let (result, then) = destroyed.join().expect("a thread");
            assert_eq!((result, then), (Ok(()), with - LARGE), "{place:?}");
        });
        assert_eq!(job.wait(), Ok(()));
    }
    // Never more than one at a time, cleared or not.
    let region = rig.region(Place::Vram);
    let size = region.size / 10 * 9 / LARGE * LARGE;
    for flags in [0, ASSUME] {
        for round in 0..4 {
            let big = rig.bo(Place::Vram, size);
            let destroyed = rig.destroy_synchronously(&[big], flags);
            assert_eq!(destroyed, Ok(()), "{flags}, round {round}");
            assert_eq!(
                used(&rig, Place::Vram),
                region.used,
                "{flags}, round {round}"
            );
        }
    }
}

fn row_0_06_all_are_destroyed_or_none() {
    let rig = alone();
    let before = used(&rig, Place::Vram);
    let objects: Vec<u32> = (0..1024).map(|_| rig.bo(Place::Vram, PAGE)).collect();
    let stale = rig.bo(Place::Vram, PAGE);
    rig.close(stale).expect("GEM_CLOSE");
    let mut wrong = objects[..8].to_vec();
    for (what, handle, errno) in [
        ("stale", stale, Errno::ENOENT),
        ("zero", 0, Errno::ENOENT),
        ("twice", objects[3], Errno::EINVAL),
    ] {
        for place in [0, 4, 8] {
            wrong.insert(place, handle);
            assert_eq!(rig.destroy(&wrong, SYNC), Err(errno), "{what} at {place}");
            wrong.remove(place);
        }
    }
    for object in &objects {
        assert!(rig.info(*object).is_ok(), "it is gone");
    }
    // And what was spared can be mapped, moved and destroyed.
    rig.bound_at_will(objects[0], PAGE);
    assert_eq!(rig.destroy_synchronously(&objects, 0), Ok(()));
    assert_eq!(used(&rig, Place::Vram), before);
    for object in &objects {
        assert_eq!(rig.info(*object).err(), Some(Errno::ENOENT));
    }
}

/// Each of two threads names all, in its own order: one succeeds, or the last that fails has spared
/// what it had begun.
fn row_0_06_so_do_they_behind_what_is_held() {
    let rig = alone();
    let before = used(&rig, Place::System);
    let fence = rig.fence(0);
    let job = hold(&rig, rig.copy, fence, &[]);
    destroy_the_same(&rig);
    assert!(used(&rig, Place::System) > before);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
    becomes("the memory is free", || used(&rig, Place::System) == before);
}

fn row_0_06_two_who_destroy_the_same_do_it_once() {
    destroy_the_same(&alone());
}

#[track_caller]
fn destroy_the_same(rig: &Rig) {
    let client: &Client = rig;
    for round in 0..suite::rounds(50) {
        let forth: Vec<u32> = (0..64).map(|_| client.bo(Place::System, PAGE)).collect();
        let back: Vec<u32> = forth.iter().rev().copied().collect();
        let results = thread::scope(|scope| {
            let other = scope.spawn(|| client.destroy(&back, 0));
            [client.destroy(&forth, 0), other.join().expect("a thread")]
        });
        let once = results.iter().filter(|result| result.is_ok()).count();
        assert!(once <= 1, "round {round}: {results:?}");
        if once == 0 {
            assert_eq!(results, [Err(Errno::ENOENT); 2]);
            assert_eq!(client.destroy(&forth, 0), Ok(()), "round {round}");
        }
    }
}

fn row_0_11_the_cpu_sees_nothing_of_it_any_more() {
    let rig = alone();
    for place in Place::ALL {
        let (a, b) = (rig.buffer(place, LARGE), rig.buffer(place, LARGE));
        a.cpu.fill(|_| 1);
        b.cpu.fill(|_| 2);
        let gate = rig.buffer(Place::System, PAGE);
        let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1), write(a.va, 3)]);
        assert_eq!(rig.destroy(&[a.handle], 0), Ok(()));
        // As long as it is there, it is there for all.
        assert_eq!(a.cpu.read(8), 1);
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        let next = rig.buffer(place, LARGE);
        next.cpu.fill(|_| 4);
        becomes("an access faults", || {
            dies_of(Signal::SIGBUS, || a.cpu.read(LARGE as usize - 8))
        });
        for offset in [0, PAGE as usize, LARGE as usize - 8] {
            let reads = dies_of(Signal::SIGBUS, || a.cpu.read(offset));
            let writes = dies_of(Signal::SIGBUS, || a.cpu.write(offset, 5));
            assert!(reads && writes, "{place:?}, {offset:#x}");
        }
        b.cpu.expect("another's", |_| 2);
        next.cpu.expect("what may be in its place", |_| 4);
    }
}

/// Locks of a client are no reason to keep it, and go with it.
fn row_0_11_what_is_locked_is_a_bus_error_when_it_is_gone() {
    let rig = alone();
    let cached = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED;
    let before = Place::ALL.map(|place| used(&rig, place));
    for flags in [0, DRM_SKUA_BO_CPU_ACCESS, cached] {
        let handle = rig.bo_create(LARGE, flags, both(&rig)).expect("BO_CREATE");
        let offset = rig.lock(handle).expect("BO_LOCK");
        assert_eq!(rig.lock(handle), Ok(offset));
        let cpu = Mapping::new(rig.duplicate(), offset, LARGE as usize).expect("mmap");
        cpu.fill(|_| 1);
        assert_eq!(rig.destroy_synchronously(&[handle], 0), Ok(()));
        assert_eq!(rig.unlock(handle), Err(Errno::ENOENT), "flags {flags:#x}");
        let after = Place::ALL.map(|place| used(&rig, place));
        assert_eq!(after, before, "flags {flags:#x}");
        let next = Place::ALL.map(|place| rig.bo(place, LARGE));
        let maps = next.map(|next| rig.map(next));
        maps.iter().for_each(|next| next.fill(|_| 4));
        for offset in [0, LARGE as usize - 8] {
            let reads = dies_of(Signal::SIGBUS, || cpu.read(offset));
            let writes = dies_of(Signal::SIGBUS, || cpu.write(offset, 5));
            assert!(reads && writes, "flags {flags:#x}, {offset:#x}");
        }
        for map in &maps {
            map.expect("what may be in its place", |_| 4);
        }
        assert_eq!(rig.destroy_synchronously(&next, 0), Ok(()));
    }
}

fn row_0_11_pages_go_back_though_they_are_mapped() {
    let rig = alone();
    let size: u64 = 32 << 20;
    let a = rig.buffer(Place::System, size);
    let with = shmem();
    assert_eq!(rig.destroy_synchronously(&[a.handle], 0), Ok(()));
    // The kernel's counters are not exact.
    let is_free = || (with.saturating_sub(shmem()) > size / 4 * 3).then_some(());
    let now = || format!("{:#x} of {with:#x} bytes", shmem());
    assert!(eventually(is_free).is_some(), "they stay: {}", now());
}

fn what_others_have_lives_on() {
    let rig = alone();
    let other = Rig::new().having_worked();
    let before = used(&rig, Place::System);
    let a = rig.buffer(Place::System, LARGE);
    a.cpu.fill(|_| 9);
    let theirs = other
        .import(rig.export(a.handle).expect("PRIME_HANDLE_TO_FD"))
        .expect("PRIME_FD_TO_HANDLE");
    let theirs = other.bound(theirs, LARGE);
    assert_eq!(rig.destroy_synchronously(&[a.handle], 0), Ok(()));
    // It is unmapped here, and nowhere else.
    let late = rig.start(Engine::Copy, &[write(a.va, 1)]);
    assert_eq!(late.wait(), Err(Errno::EFAULT));
    assert_eq!(other.run(Engine::Copy, &[fill(7, theirs.va, PAGE)]), Ok(()));
    assert_eq!(theirs.cpu.read(0), 7 << 32 | 7);
    assert_eq!(theirs.cpu.read(PAGE as usize), 9);
    assert!(used(&other, Place::System) >= before + LARGE);
    // The last one takes it.
    drop(a);
    assert_eq!(other.destroy_synchronously(&[theirs.handle], 0), Ok(()));
    drop(theirs);
    becomes("the memory is free", || {
        used(&rig, Place::System) <= before + PAGE * 64
    });
}

/// Global names are older than dma-bufs, and need none.
fn what_others_have_by_name_lives_on() {
    let node = Function::first().primary_node().expect("a primary node");
    let open = || {
        let file = OpenOptions::new().read(true).write(true).open(&node);
        Client::of(file.expect("the primary node"))
    };
    let (rig, other) = (Rig::of(open()), Rig::of(open()));
    let a = rig.buffer(Place::Vram, LARGE);
    let mut named = drm_gem_flink {
        handle: a.handle,
        name: 0,
    };
    assert_eq!(rig.call(DRM_IOCTL_GEM_FLINK, &mut named), Ok(()));
    let mut opened = drm_gem_open {
        name: named.name,
        ..Default::default()
    };
    assert_eq!(other.call(DRM_IOCTL_GEM_OPEN, &mut opened), Ok(()));
    let va = other.bound_at_will(opened.handle, LARGE);
    assert_eq!(other.run(Engine::Copy, &[write(va, 5)]), Ok(()));
    assert_eq!(rig.destroy_synchronously(&[a.handle], ASSUME), Ok(()));
    // What the other writes goes to the object, and to nobody who has its memory now.
    let mine: Vec<_> = (0..4).map(|_| rig.buffer(Place::Vram, LARGE)).collect();
    assert_eq!(other.run(Engine::Copy, &[fill(6, va, LARGE)]), Ok(()));
    for buffer in &mine {
        buffer.cpu.expect("a canary", |_| 0);
    }
    other
        .map(opened.handle)
        .expect("the other's", |_| 6 << 32 | 6);
}

fn only_its_own_mappings_go() {
    let rig = alone();
    let vm = rig.vm_create().expect("VM_CREATE");
    let (a, b) = (rig.bo(Place::Vram, 4 * PAGE), rig.bo(Place::Vram, 4 * PAGE));
    let va = rig.reserve(64 * PAGE);
    // In pieces, in two address spaces, with another's between them.
    for vm in [rig.vm, vm] {
        assert_eq!(
            rig.bind_and_wait(
                vm,
                &[
                    map(a, 0, va, 4 * PAGE),
                    map(b, 0, va + PAGE, PAGE),
                    map(a, PAGE, va + 16 * PAGE, PAGE),
                    map(b, 0, va + 17 * PAGE, 2 * PAGE),
                ],
            ),
            Ok(())
        );
    }
    assert_eq!(rig.destroy_synchronously(&[a], 0), Ok(()));
    let elsewhere = rig
        .context_create(vm, rig.engine(DRM_SKUA_ENGINE_COPY))
        .expect("CONTEXT_CREATE");
    // Its commands are in the rig's own address space only: an empty buffer needs none.
    assert_eq!(rig.start_in(elsewhere, &[]).wait(), Ok(()));
    for address in [va + PAGE, va + 17 * PAGE, va + 18 * PAGE] {
        assert_eq!(rig.run(Engine::Copy, &[write(address, 1)]), Ok(()));
    }
    for address in [va, va + 2 * PAGE, va + 3 * PAGE, va + 16 * PAGE] {
        let late = rig.start_in(rig.new_context(Engine::Copy), &[write(address, 1)]);
        assert_eq!(late.wait(), Err(Errno::EFAULT), "{address:#x}");
    }
    let vms = Function::first().debugfs("vms").expect("debugfs");
    assert!(!vms.is_empty());
}

/// To destroy something takes a little first: of many more than is charged ahead.
fn what_is_held_goes_though_its_group_has_no_memory() {
    const COUNT: u64 = 256;
    let rig = alone();
    let objects: Vec<u32> = (0..COUNT).map(|_| rig.bo(Place::System, PAGE)).collect();
    let va = rig.reserve(COUNT * PAGE);
    let all = (0..).zip(&objects);
    let all: Vec<_> = all
        .map(|(n, bo)| map(*bo, 0, va + n * PAGE, PAGE))
        .collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &all), Ok(()));
    let with = used(&rig, Place::System);
    let context = rig.new_context(Engine::Copy);
    let held = hold(&rig, context, rig.fence(0), &[]);
    let group = MemoryGroup::enter();
    assert_eq!(rig.destroy(&objects, 0), Ok(()));
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").expect("cgroup.procs");
    // With nobody in it nobody is killed for that.
    group.set_max(0);
    // The work itself would need some, too.
    assert_eq!(rig.context_destroy(context), Ok(()));
    assert_eq!(held.wait(), Err(Errno::ECANCELED));
    becomes("the memory is free", || {
        used(&rig, Place::System) <= with - COUNT * PAGE
    });
}

/// Others wait for the same queue, and all engines forget translations.
fn many_go_with_few_flushes() {
    const COUNT: u64 = 256;
    let flushes = || Function::first().counters(["driver_tlb_flushes"])[0];
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let objects: Vec<u32> = (0..COUNT).map(|_| rig.bo(Place::System, PAGE)).collect();
    for &object in &objects {
        rig.bound_at_will(object, PAGE);
    }
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    let (with, before) = (used(&rig, Place::System), flushes());
    assert_eq!(rig.destroy(&objects, 0), Ok(()));
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    becomes("the memory is free", || {
        used(&rig, Place::System) <= with - COUNT * PAGE
    });
    let more = flushes() - before;
    println!("# {more} flushes for {COUNT} objects");
    assert!(more <= 16, "{more} flushes for {COUNT} objects");
}

/// All clients wait for the same worker: none has it for long, and each has its memory when it asks
/// how much there is.
fn what_is_mapped_very_often_goes_in_parts() {
    const SIZE: u64 = 1 << 20;
    const VA: u64 = 1 << 40;
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let crowd = |vm: u32, count: u64| {
        let bo = rig.bo(Place::System, SIZE);
        let all: Vec<_> = (0..count)
            .map(|n| map(bo, 0, VA + 2 * n * PAGE, PAGE))
            .collect();
        for ops in all.chunks(1024) {
            rig.bind_and_wait(vm, ops).expect("VM_BIND");
        }
        bo
    };
    let cuts = || Function::first().counters(["driver_reaper_cuts"])[0];
    let now = || (used(&rig, Place::System), cuts());
    let mut cases = Cases::new();
    let mut expect = |what: &str, before: (u64, u64), least: u64| {
        let (bytes, cuts) = now();
        let gone = before.0.saturating_sub(bytes);
        cases.holds(&format!("{what}: bytes"), gone >= SIZE, gone);
        let cuts = cuts - before.1;
        println!("# {what}: {cuts} cuts");
        cases.holds(&format!("{what}: cuts"), cuts >= least, cuts);
    };

    let vm = rig.vm_create().expect("VM_CREATE");
    assert_eq!(rig.close(crowd(vm, 3000)), Ok(()));
    let before = now();
    assert_eq!(rig.vm_destroy(vm), Ok(()));
    // A worker may have it for a moment.
    becomes("the address space is gone", || {
        used(&rig, Place::System) + SIZE <= before.0
    });
    expect("an address space", before, 2);

    // The same of page tables, which stay where nothing is mapped any more.
    const TABLES: u64 = 3000;
    let vm = rig.vm_create().expect("VM_CREATE");
    let bo = rig.bo(Place::System, PAGE);
    let apart: Vec<u64> = (0..TABLES).map(|n| VA + (n << 21)).collect();
    for some in apart.chunks(1024) {
        let maps: Vec<_> = some.iter().map(|va| map(bo, 0, *va, PAGE)).collect();
        rig.bind_and_wait(vm, &maps).expect("VM_BIND");
        let unmaps: Vec<_> = some.iter().map(|va| unmap(*va, PAGE)).collect();
        rig.bind_and_wait(vm, &unmaps).expect("VM_BIND");
    }
    let before = now();
    assert_eq!(rig.vm_destroy(vm), Ok(()));
    becomes("the page tables are gone", || {
        used(&rig, Place::System) + TABLES * PAGE <= before.0
    });
    expect("page tables", before, 2);

    assert_eq!(rig.close(crowd(rig.vm, 3000)), Ok(()));
    let before = now();
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(VA, 1 << 30)]), Ok(()));
    becomes("the bind's memory is free", || {
        used(&rig, Place::System) + SIZE <= before.0
    });
    expect("a bind", before, 2);

    let bo = crowd(rig.vm, 9000);
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    let before = now();
    assert_eq!(rig.destroy(&[bo], 0), Ok(()));
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    becomes("the memory is free", || {
        used(&rig, Place::System) + SIZE <= before.0
    });
    expect("an object", before, 2);
    cases.finish();
}

/// What another client destroys while something goes in parts is free before all of these are gone.
fn nobody_waits_for_all_parts() {
    assert!(
        (0..4).any(|_| goes_between_parts()),
        "it was never free before"
    );
}

#[track_caller]
fn goes_between_parts() -> bool {
    // Every other turn has 4096.
    let ranges = 200_000 / u64::from(suite::patience());
    const SIZE: u64 = 8 << 20;
    const VA: u64 = 1 << 40;
    let [rig, other] = [(); 2].map(|()| Rig::new().having_worked());
    let [gate, theirs] = [&rig, &other].map(|rig| rig.buffer(Place::System, PAGE));
    let cuts = || Function::first().counters(["driver_reaper_cuts"])[0];
    let often = rig.bo(Place::System, 2 * SIZE);
    let all: Vec<_> = (0..ranges)
        .map(|n| map(often, 0, VA + 2 * n * PAGE, PAGE))
        .collect();
    for ops in all.chunks(1024) {
        rig.bind_and_wait(rig.vm, ops).expect("VM_BIND");
    }
    let bo = other.bo(Place::System, SIZE);
    // Its work may use it.
    other.bound_at_will(bo, SIZE);
    let jobs = [(&rig, &gate), (&other, &theirs)]
        .map(|(rig, gate)| rig.start(Engine::Copy, &[wait_value(gate.va, 1)]));
    // Asking the device how much is used would wait for what goes just now.
    let before = shmem();
    let gone = || before.saturating_sub(shmem());
    assert_eq!(rig.destroy(&[often], 0), Ok(()));
    assert_eq!(other.destroy(&[bo], 0), Ok(()));
    assert!(gone() < SIZE / 2, "what may be used is gone");
    let first = cuts();
    gate.cpu.write(0, 1);
    becomes("it is cut", || cuts() > first);
    theirs.cpu.write(0, 1);
    let some = || Some(gone()).filter(|gone| *gone > SIZE / 2);
    let first = eventually(some).expect("memory that is destroyed is free");
    for job in jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    println!("# {first} bytes first");
    let all = || (gone() > 5 * SIZE / 2).then_some(());
    assert!(eventually(all).is_some(), "{} bytes are gone", gone());
    first < 3 * SIZE / 2
}

/// Also between the clearing of many objects' entries and the flush that all of them wait for.
fn what_is_bound_in_its_place_is_reached() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let context = rig.new_context(Engine::Compute);
    for round in 1..=u64::from(suite::rounds(40)) {
        let objects: Vec<u32> = (0..64).map(|_| rig.bo(Place::System, PAGE)).collect();
        let vas: Vec<u64> = objects
            .iter()
            .map(|bo| rig.bound_at_will(*bo, PAGE))
            .collect();
        let new = rig.buffer(Place::System, PAGE);
        // Its translation is known.
        let job = rig.start_in(context, &[write(vas[0], round)]);
        assert_eq!(job.wait(), Ok(()));
        let blocked = rig.start(Engine::Copy, &[wait_value(gate.va, round)]);
        assert_eq!(rig.destroy(&objects, 0), Ok(()));
        gate.cpu.write(0, round);
        assert_eq!(blocked.wait(), Ok(()));
        let bind = [map(new.handle, 0, vas[0], PAGE)];
        assert_eq!(rig.bind_and_wait(rig.vm, &bind), Ok(()));
        let job = rig.start_in(context, &[write(vas[0], round)]);
        assert_eq!(job.wait(), Ok(()));
        assert_eq!(new.cpu.read(0), round, "round {round}");
    }
}

fn what_moves_is_destroyed_when_it_is_there() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let regions = Place::ALL.map(|place| 1 << rig.region(place).id);
    for flags in [0, ASSUME] {
        gate.cpu.fill(|_| 0);
        let a = rig
            .bo_create(LARGE, DRM_SKUA_BO_CPU_ACCESS, regions[0] | regions[1])
            .expect("BO_CREATE");
        let buffer = rig.bound(a, LARGE);
        let [vram, system] = [Place::Vram, Place::System].map(|place| used(&rig, place));
        let job = rig.start(
            Engine::Copy,
            &[wait_value(gate.va, 1), fill(1, buffer.va, LARGE)],
        );
        thread::scope(|scope| {
            let moved = scope.spawn(|| Function::first().debugfs("evict"));
            becomes("the move begins", || {
                rig.info(a).expect("BO_INFO").region == rig.region(Place::System).id
            });
            assert_eq!(rig.destroy(&[a], flags), Ok(()));
            a_moment();
            assert_eq!(used(&rig, Place::Vram), vram);
            assert_eq!(used(&rig, Place::System), system + LARGE);
            gate.cpu.write(0, 1);
            let moved = moved.join().expect("a thread").expect("debugfs");
            assert_eq!(moved.trim(), "1");
        });
        // The move waits for the work, and the destruction for the move.
        assert_eq!(job.wait(), Ok(()), "{flags}");
        becomes("the memory is free", || {
            used(&rig, Place::Vram) == vram - LARGE && used(&rig, Place::System) == system
        });
    }
}

fn clients_that_destroy_at_random_hurt_nobody() {
    quiet();
    let client = Client::new();
    let regions = Place::ALL.map(|place| 1 << client.region(place).id);
    let before = Place::ALL.map(|place| used(&client, place));
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let regions = &regions;
            scope.spawn(move || {
                let rig = Rig::new();
                let size = 256 << 10;
                let out = rig.buffer(Place::System, size);
                let mut seed = number + 1;
                for round in 0..60_u32 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let placements = match seed >> 60 & 3 {
                        0 => regions[0],
                        1 => regions[1],
                        _ => regions[0] | regions[1],
                    };
                    let a = rig
                        .bo_create(size, DRM_SKUA_BO_CPU_ACCESS, placements)
                        .expect("BO_CREATE");
                    let va = rig.bound_at_will(a, size);
                    let context = rig.context_having_worked(Engine::ALL[(seed >> 50 & 1) as usize]);
                    let job =
                        rig.start_in(context, &[fill(round, va, size), copy(va, out.va, size)]);
                    if seed >> 40 & 3 == 0 {
                        let _ = Function::first().debugfs("evict");
                    }
                    let lies = seed >> 45 & 3 == 0;
                    let result = match lies {
                        true => rig.destroy(&[a], ASSUME),
                        false if seed >> 47 & 1 == 0 => rig.destroy_synchronously(&[a], 0),
                        false => rig.destroy(&[a], 0),
                    };
                    assert_eq!(result, Ok(()), "round {round}");
                    match job.wait() {
                        Ok(()) => out
                            .cpu
                            .expect("a copy", |_| u64::from(round) << 32 | u64::from(round)),
                        result => assert!(lies && result == Err(Errno::EFAULT), "{result:?}"),
                    }
                    rig.context_destroy(context).expect("CONTEXT_DESTROY");
                }
            });
        }
    });
    quiet();
    assert_eq!(Place::ALL.map(|place| used(&client, place)), before);
}
