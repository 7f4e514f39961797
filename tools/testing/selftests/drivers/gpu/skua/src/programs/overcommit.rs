// SPDX-License-Identifier: MIT

//! More in VRAM alone than VRAM has: what work does not need makes room for what it needs.
//! `guests.json` gives this program a GPU with little VRAM.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use skua_selftests::calls::Calls;
use skua_selftests::client::{map, signal, unmap, wait, wait_value as wait_for_value};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    alone, both, evict_all, expect_gpu, explicit, gone, is_in_vram, movable, movable_in_vram,
    pattern, place, while_all_is_evicted, while_the_cpu_writes, Numbers,
};
use skua_selftests::race::Caller;
use skua_selftests::raw::{in_child, Child};
use skua_selftests::rig::{copy, fill, wait_value, write, Buffer};
use skua_selftests::suite::{becomes, eventually, patience, rounds};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, torture, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_1_15_it_comes_back_under_the_same_mapping: 60 at_rest,
        row_1_15_a_writer_notices_nothing: 120 at_rest,
        forked_children_go_on_too: 60 at_rest,
        what_cannot_fit_together_is_refused: 60 at_rest,
        what_a_held_bind_will_map_needs_no_room: 60 at_rest,
        what_is_out_can_be_bound: 60 at_rest,
        a_bind_that_waits_finds_what_comes_back: 60 at_rest,
        parts_of_mappings_come_back: 60 at_rest,
        private_objects_come_back: 60 at_rest,
        a_destroyed_vm_gets_what_it_needs: 60 at_rest,
        all_who_share_get_it_back: 60 at_rest,
        it_comes_back_while_other_work_runs: 60 at_rest,
        what_is_out_is_given_back: 60 at_rest,
        refused_work_brings_nothing_back: 60,
        make_resident_brings_it_back: 60 at_rest,
        who_needs_room_waits_for_what_is_busy: 60,
        nobody_leaves_for_what_is_closed: 60,
        a_hog_holds_up_nobody_for_good: 120,
        a_client_has_one_turn_in_a_round: 120,
        who_waits_for_a_turn_holds_up_no_unplug: 120,
        work_that_needs_nearly_all_gets_it_beside_evictions: 240,
        who_worked_longest_ago_makes_room: 60 at_rest,
        work_does_not_use_what_is_not_resident_for_it: 60 at_rest,
        what_work_uses_all_the_time_stays: 120 at_rest,
        work_has_come_back_what_had_no_room: 60 at_rest,
        what_was_made_elsewhere_comes_when_there_is_room: 60 at_rest,
        what_is_not_resident_does_not_come_back_to_an_explicit_device: 60 at_rest,
        one_submission_brings_little_back: 60 at_rest,
        nothing_comes_back_that_has_work_wait: 60 at_rest,
        what_was_locked_comes_back_when_it_is_not: 60 at_rest,
        held_work_has_nothing_come_back: 60 at_rest,
        vram_four_times_over_in_turn: 240,
        vram_four_times_over_in_eight_processes: 600,
        killed_processes_leave_nothing: 240,
        everything_at_once_in_eight_processes: 300,
    ])
}

/// Objects that have left VRAM since the device is bound.
#[track_caller]
fn evictions() -> u64 {
    let [evictions] = Function::first().counters(["driver_evictions"]);
    evictions
}

/// An object that has left VRAM, with a content.
#[track_caller]
fn out(rig: &Rig, size: u64, content: impl Fn(usize) -> u64) -> Buffer {
    let buffer = rig.buffer(Place::Vram, size);
    buffer.cpu.fill(content);
    evict_all();
    assert_eq!(place(rig, buffer.handle), Place::System);
    buffer
}

fn row_1_15_it_comes_back_under_the_same_mapping() {
    let rig = alone();
    for size in [PAGE, 64 << 10, 2 * MIB + PAGE, 9 * MIB] {
        let buffer = out(&rig, size, pattern(size));
        for round in 1..4 {
            let what = format!("{size:#x} bytes, round {round}");
            // The CPU goes on where it is.
            buffer.cpu.fill(pattern(round));
            assert_eq!(place(&rig, buffer.handle), Place::System, "{what}");
            // The GPU does not: work brings it back, all the time under the CPU's mapping.
            expect_gpu(&rig, &what, buffer.va, size, pattern(round));
            assert_eq!(place(&rig, buffer.handle), Place::Vram, "{what}");
            buffer.cpu.expect(&what, pattern(round));
            assert_eq!(
                rig.run(Engine::Compute, &[fill(3, buffer.va, size)]),
                Ok(()),
                "{what}"
            );
            // The mapping leads to what the GPU writes, and the GPU to what it stores.
            buffer.cpu.expect(&what, |_| 3 << 32 | 3);
            buffer.cpu.fill(pattern(round + 1));
            expect_gpu(&rig, &what, buffer.va, size, pattern(round + 1));
            assert_eq!(evict_all(), 1, "{what}");
            buffer.cpu.expect(&what, pattern(round + 1));
        }
        assert_eq!(rig.destroy(&[buffer.handle], 0), Ok(()));
    }
}

fn row_1_15_a_writer_notices_nothing() {
    let rig = alone();
    let buffer = rig.buffer(Place::Vram, 4 * MIB);
    let gpu = rig.buffer(Place::Vram, PAGE);
    while_the_cpu_writes(&buffer.cpu, || {
        for round in 1..=20 {
            assert_eq!(evict_all(), 2, "round {round}");
            let job = rig.start(Engine::Compute, &[write(gpu.va, round)]);
            assert_eq!(job.wait(), Ok(()), "round {round}");
            assert_eq!(gpu.cpu.read(0), round);
        }
    });
}

fn forked_children_go_on_too() {
    let rig = alone();
    let buffer = out(&rig, 2 * MIB, pattern(1));
    // The child has the page tables of its parent as they were.
    assert!(in_child(|| {
        let stays = buffer.cpu.differs(pattern(1)).is_none();
        let ran = rig.run(Engine::Copy, &[fill(2, buffer.va, 2 * MIB)]);
        let wrote = buffer.cpu.differs(|_| 2 << 32 | 2).is_none();
        buffer.cpu.fill(pattern(2));
        stays && ran == Ok(()) && wrote && evict_all() == 1
    }));
    assert_eq!(place(&rig, buffer.handle), Place::System);
    buffer.cpu.expect("what the child wrote", pattern(2));
    expect_gpu(&rig, "for the GPU", buffer.va, 2 * MIB, pattern(2));
}

/// Objects of a rig that need nearly all of VRAM, each of 1 MiB and a bit, and their contents.
fn nearly_all(rig: &Rig) -> Vec<Buffer> {
    let size = MIB + PAGE;
    let count = (rig.region(Place::Vram).size - MIB) / size;
    (0..count).map(|_| rig.buffer(Place::Vram, size)).collect()
}

/// Nobody moves what work needs before that is published, neither by debugfs.
fn work_that_needs_nearly_all_gets_it_beside_evictions() {
    let rig = alone();
    let before = evictions();
    let set = nearly_all(&rig);
    let mut small: Vec<Buffer> = Vec::new();
    while small.len() < 100 {
        small.push(rig.buffer(Place::Vram, PAGE));
    }
    while_all_is_evicted(|| {
        let goes_on = |round: &u32| *round <= rounds(40) || evictions() - before <= 100;
        for round in (1..).take_while(goes_on) {
            let work: Vec<_> = (0..)
                .zip(set.iter().chain(&small[..20]))
                .map(|(n, buffer)| fill(round << 8 | n, buffer.va, buffer.size))
                .collect();
            let job = rig.start_after(rig.compute, &work, &[]);
            let job = job.unwrap_or_else(|errno| panic!("SUBMIT, round {round}: {errno}"));
            assert_eq!(job.wait(), Ok(()), "round {round}");
            for (n, buffer) in (0..).zip(set.iter().chain(&small[..20])) {
                let word = u64::from(round << 8 | n);
                let last = buffer.cpu.read(buffer.cpu.len() - 8);
                assert_eq!(last, word << 32 | word, "object {n}, round {round}");
            }
        }
    });
    let moved = evictions() - before;
    println!("# {moved} objects left VRAM");
    assert!(moved > 100, "{moved}");
}

/// A word for the GPU to write.
#[track_caller]
fn use_by_work(rig: &Rig, va: u64) {
    assert_eq!(rig.run(Engine::Copy, &[write(va, 1)]), Ok(()));
}

/// Who has all resident that is left of VRAM, and is the last to make room.
#[track_caller]
fn filler() -> Client {
    let client = Client::new();
    let device = client.device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY);
    let vram = client.region(Place::Vram);
    let all = client.bo_create(vram.size - vram.used, 0, 1 << vram.id);
    let (device, all) = (device.expect("DEVICE_CREATE"), all.expect("BO_CREATE"));
    assert_eq!(client.make_resident_for(device, 0, &[all]), Ok(0));
    assert_eq!(
        client.set_priority(&[all], DRM_SKUA_PRIORITY_MAXIMUM),
        Ok(())
    );
    client
}

/// An object for VRAM alone, and where the GPU finds it; resident, if that is for some device.
#[track_caller]
fn bound(rig: &Rig, size: u64, device: Option<u32>) -> (u32, u64) {
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig.bo_create(size, 0, vram).expect("BO_CREATE");
    if let Some(device) = device {
        assert_eq!(rig.make_resident_for(device, 0, &[handle]), Ok(0));
    }
    (handle, rig.bound_at_will(handle, size))
}

/// Not whose objects were bound, or made resident, longest ago.
fn who_worked_longest_ago_makes_room() {
    const COUNT: usize = 20;
    const EXPLICIT: u32 = DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY;
    let of_device = |mode| {
        let client = Client::new();
        let device = client.device_create(mode).expect("DEVICE_CREATE");
        (Rig::of_device(client, device).having_worked(), device)
    };
    for mode in [0, EXPLICIT] {
        quiet();
        let rigs = [mode; 2].map(of_device);
        let sets = rigs.each_ref().map(|(rig, device)| {
            let device = (mode == EXPLICIT).then_some(*device);
            (rig, [(); COUNT].map(|()| bound(rig, 64 << 10, device)))
        });
        let (other, device) = of_device(EXPLICIT);
        let _filler = filler();
        let [(first, ours), (second, theirs)] = &sets;
        use_by_work(second, theirs[0].1);
        use_by_work(first, ours[0].1);
        for made in 1..=COUNT / 2 {
            bound(&other, 64 << 10, Some(device));
            let out = sets
                .each_ref()
                .map(|(rig, objects)| gone(rig, &objects.map(|it| it.0)));
            assert_eq!(out, [0, made], "mode {mode}");
        }
    }
}

/// Though that is still mapped.
fn work_does_not_use_what_is_not_resident_for_it() {
    quiet();
    let (rig, device) = explicit();
    let other = Rig::new().having_worked();
    let kept = bound(&rig, MIB, Some(device));
    let given_up = bound(&rig, MIB, Some(device));
    assert_eq!(rig.evict_for(device, &[given_up.0]), Ok(()));
    let theirs = other.buffer(Place::Vram, MIB);
    let _filler = filler();
    use_by_work(&other, theirs.va);
    use_by_work(&rig, kept.1);
    let third = Client::new();
    let vram = 1 << third.region(Place::Vram).id;
    assert!(third.bo_create(MIB, 0, vram).is_ok());
    let places = [
        place(&rig, kept.0),
        place(&rig, given_up.0),
        place(&other, theirs.handle),
    ];
    assert_eq!(places, [Place::Vram, Place::System, Place::Vram]);
}

/// Beside others who need all of VRAM in turn.
fn what_work_uses_all_the_time_stays() {
    let (working, idle) = (alone(), Rig::new());
    let [used, unused] = [&working, &idle].map(|rig| rig.buffer(Place::Vram, MIB));
    use_by_work(&idle, unused.va);
    let turn = |what: &str| {
        let there = place(&working, used.handle);
        assert_eq!(there, Place::Vram, "after {what}");
        use_by_work(&working, used.va);
    };
    let others: Vec<_> = (0..12)
        .map(|number| {
            turn(&format!("object {number} was made"));
            let rig = Rig::new();
            let buffer = rig.buffer(Place::Vram, 4 * MIB);
            (rig, buffer)
        })
        .collect();
    for round in 0..3 {
        for (number, (rig, buffer)) in (0..).zip(&others) {
            turn(&format!("that before {number}, round {round}"));
            use_by_work(rig, buffer.va);
        }
    }
    assert_eq!(place(&idle, unused.handle), Place::System);
}

/// Has objects leave VRAM, each of as many bytes, for somebody who needs their room.
#[track_caller]
fn displace(rig: &Rig, handles: &[u32], size: u64) -> [Client; 2] {
    assert_eq!(rig.set_priority(handles, DRM_SKUA_PRIORITY_MINIMUM), Ok(()));
    let others = [filler(), Client::new()];
    let bytes = size * u64::try_from(handles.len()).expect("few");
    let vram = 1 << rig.region(Place::Vram).id;
    assert!(others[1].bo_create(bytes, 0, vram).is_ok());
    assert_eq!(gone(rig, handles), handles.len());
    others
}

/// Waits until there is room again, of which others have let go.
#[track_caller]
fn room(rig: &Rig) {
    becomes("room in VRAM", || {
        rig.region(Place::Vram).used < MIB && !Function::first().clean().1
    });
}

/// Has work use `va` until an object is back, which may be in somebody's hands just then.
#[track_caller]
fn comes_back(rig: &Rig, handle: u32, va: u64) {
    becomes("it is back in VRAM", || {
        use_by_work(rig, va);
        is_in_vram(rig, handle)
    });
}

/// And nobody leaves for that. Nor does what was moved for another reason.
fn work_has_come_back_what_had_no_room() {
    const SIZE: u64 = MIB + PAGE;
    let rig = alone();
    let object = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    object.cpu.fill(pattern(1));
    let others = displace(&rig, &[object.handle], SIZE);
    let before = evictions();
    expect_gpu(&rig, "without room", object.va, SIZE, pattern(1));
    assert_eq!(place(&rig, object.handle), Place::System);
    assert_eq!(evictions(), before, "somebody has left");
    drop(others);
    room(&rig);
    object.cpu.fill(pattern(2));
    assert_eq!(place(&rig, object.handle), Place::System);
    let other = rig.buffer(Place::System, PAGE);
    comes_back(&rig, object.handle, other.va);
    expect_gpu(&rig, "with room", object.va, SIZE, pattern(2));
    object.cpu.expect("under the same mapping", pattern(2));
    assert_eq!(evict_all(), 1);
    expect_gpu(&rig, "moved for a test", object.va, SIZE, pattern(2));
    assert_eq!(place(&rig, object.handle), Place::System);
}

/// Whether it was bound before or is bound then.
fn what_was_made_elsewhere_comes_when_there_is_room() {
    let rig = alone();
    let other = filler();
    let [early, late] = [(); 2].map(|()| movable(&rig, MIB));
    let early_at = rig.bound_at_will(early, MIB);
    let places = || [early, late].map(|handle| place(&rig, handle));
    assert_eq!(places(), [Place::System; 2]);
    drop(other);
    room(&rig);
    comes_back(&rig, early, early_at);
    assert_eq!(places(), [Place::Vram, Place::System]);
    let late_at = rig.bound_at_will(late, MIB);
    comes_back(&rig, late, late_at);
}

fn what_is_not_resident_does_not_come_back_to_an_explicit_device() {
    let (rig, device) = explicit();
    let handles = [(); 2].map(|()| movable_in_vram(&rig, MIB));
    let [at, _] = handles.map(|handle| rig.bound_at_will(handle, MIB));
    assert_eq!(rig.make_resident_for(device, 0, &handles[..1]), Ok(0));
    let places = || handles.map(|handle| place(&rig, handle));
    drop(displace(&rig, &handles, MIB));
    room(&rig);
    comes_back(&rig, handles[0], at);
    assert_eq!(places(), [Place::Vram, Place::System]);
}

/// What work does not touch does not hold it up.
fn one_submission_brings_little_back() {
    const COUNT: usize = 50;
    let rig = alone();
    let handles = [(); COUNT].map(|()| movable_in_vram(&rig, PAGE));
    let places = handles.map(|handle| rig.bound_at_will(handle, PAGE));
    drop(displace(&rig, &handles, PAGE));
    room(&rig);
    let away = Cell::new(COUNT);
    becomes("all are back", || {
        use_by_work(&rig, places[0]);
        let now = gone(&rig, &handles);
        assert!(away.get() - now <= 8, "{}, then {now}", away.get());
        away.set(now);
        now == 0
    });
}

/// An object in either place that has left VRAM, which has room again, and where the GPU finds it;
/// `during` is called while there is none.
#[track_caller]
fn displaced<T>(rig: &Rig, during: impl FnOnce() -> T) -> (u32, u64, T) {
    let handle = movable_in_vram(rig, MIB);
    let va = rig.bound_at_will(handle, MIB);
    let others = displace(rig, &[handle], MIB);
    let done = during();
    drop(others);
    room(rig);
    (handle, va, done)
}

/// Nor for work of the same client that would be done before.
fn nothing_comes_back_that_has_work_wait() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    for engine in [Engine::Copy, Engine::Compute] {
        let wait = [wait_value(gate.va, 1)];
        let (handle, va, waiting) = displaced(&rig, || rig.start(engine, &wait));
        let next = rig.start(Engine::Copy, &[write(va, 1)]);
        assert_eq!(place(&rig, handle), Place::System, "{engine:?}");
        gate.cpu.write(0, 1);
        assert_eq!([waiting, next].map(|job| job.wait()), [Ok(()); 2]);
        // Nothing was freed since.
        comes_back(&rig, handle, va);
        gate.cpu.write(0, 0);
        assert_eq!(rig.destroy_synchronously(&[handle], 0), Ok(()));
    }
}

fn what_was_locked_comes_back_when_it_is_not() {
    let rig = alone();
    // Without access of the CPU in VRAM.
    let handle = rig.bo_create(MIB, 0, both(&rig)).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, MIB);
    let others = displace(&rig, &[handle], MIB);
    assert!(rig.lock(handle).is_ok());
    drop(others);
    room(&rig);
    use_by_work(&rig, va);
    assert_eq!(place(&rig, handle), Place::System);
    assert_eq!(rig.unlock(handle), Ok(()));
    comes_back(&rig, handle, va);
    // Who locks it again and again does not have it copied each time.
    assert!(rig.lock(handle).is_ok());
    assert_eq!(rig.unlock(handle), Ok(()));
    use_by_work(&rig, va);
    assert_eq!(place(&rig, handle), Place::System);
}

fn held_work_has_nothing_come_back() {
    let rig = alone();
    let (handle, va, ()) = displaced(&rig, || ());
    let fence = rig.fence(0);
    let held = rig
        .start_after(rig.copy, &[write(va, 1)], &[wait_for_value(fence, 1)])
        .expect("SUBMIT");
    assert_eq!(place(&rig, handle), Place::System);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(held.wait(), Ok(()));
    comes_back(&rig, handle, va);
}

fn vram_four_times_over_in_turn() {
    quiet();
    let before = evictions();
    let rigs: Vec<_> = (0..4).map(|_| Rig::new()).collect();
    let sets: Vec<_> = rigs.iter().map(nearly_all).collect();
    for round in 0..3_u32 {
        for (number, (rig, set)) in (1..).zip(rigs.iter().zip(&sets)) {
            let value = |round: u32, n: u32| round << 16 | number << 8 | n;
            let twice = |value: u32| u64::from(value) << 32 | u64::from(value);
            // What the GPU wrote last is there, for the CPU where it is.
            for (n, buffer) in (1..).zip(set).filter(|_| round > 0) {
                let was = twice(value(round, n));
                for at in (0..buffer.cpu.len()).step_by(504) {
                    let what = format!("{number}'s object {n} at {at:#x}, round {round}");
                    assert_eq!(buffer.cpu.read(at), was, "{what}");
                }
            }
            // All of them at once.
            let work: Vec<_> = (1..)
                .zip(set)
                .map(|(n, buffer)| fill(value(round + 1, n), buffer.va, buffer.size))
                .collect();
            assert_eq!(rig.run(Engine::Compute, &work), Ok(()), "round {round}");
            let first = &set[0];
            let last = &set[set.len() - 1];
            let moved = [copy(last.va, first.va, PAGE)];
            assert_eq!(rig.run(Engine::Copy, &moved), Ok(()), "round {round}");
            let n = u32::try_from(set.len()).expect("a number");
            assert_eq!(first.cpu.read(0), twice(value(round + 1, n)));
            first.cpu.fill(|_| twice(value(round + 1, 1)));
        }
    }
    let moved = evictions() - before;
    println!("{moved} objects left VRAM");
    assert!(moved > 0);
}

/// Fills, copies and looks at objects that take half of VRAM, by GPU and CPU, so many times;
/// whether all was as it had to be.
fn work_on_half_of_vram(number: u64, steps: usize) -> bool {
    let rig = Rig::new();
    let size = MIB / 2 + number * PAGE;
    let count = rig.region(Place::Vram).size / 2 / size;
    let buffers: Vec<_> = (0..count).map(|_| rig.buffer(Place::Vram, size)).collect();
    let mut seeds = vec![None; buffers.len()];
    let mut numbers = Numbers(number);
    let mut right = true;
    let mut expect = |what: String, buffer: &Buffer, seed: Option<u64>| {
        let wrong = match seed {
            Some(seed) => buffer.cpu.differs(pattern(seed)),
            None => buffer.cpu.differs(|_| 0),
        };
        if let Some(wrong) = wrong {
            println!("client {number}, {what}: {wrong:?}");
            right = false;
        }
    };
    for step in 0..steps {
        let (from, to) = (numbers.below(buffers.len()), numbers.below(buffers.len()));
        match numbers.below(4) {
            0 => {
                let seed = number << 32 | step as u64;
                buffers[to].cpu.fill(pattern(seed));
                seeds[to] = Some(seed);
            }
            1 => expect(format!("step {step}"), &buffers[to], seeds[to]),
            _ => {
                let engine = Engine::ALL[numbers.below(2)];
                let work = [copy(buffers[from].va, buffers[to].va, size)];
                let ran = rig.run(engine, &work);
                assert_eq!(ran, Ok(()), "client {number}, step {step}");
                seeds[to] = seeds[from];
            }
        }
    }
    for (n, (buffer, seed)) in buffers.iter().zip(&seeds).enumerate() {
        expect(format!("object {n} at the end"), buffer, *seed);
    }
    right
}

fn vram_four_times_over_in_eight_processes() {
    quiet();
    let before = evictions();
    let children: Vec<_> = (1..=8)
        .map(|number| Child::start(move || work_on_half_of_vram(number, 60)))
        .collect();
    let ends: Vec<bool> = children.into_iter().map(Child::wait).collect();
    assert_eq!(ends, [true; 8]);
    let moved = evictions() - before;
    println!("{moved} objects left VRAM");
    assert!(moved > 8, "{moved}");
}

fn what_cannot_fit_together_is_refused() {
    let (rig, other) = (alone(), Rig::new());
    let vram = rig.region(Place::Vram).size;
    let set: Vec<_> = (0..vram / (4 * MIB) + 1)
        .map(|_| rig.buffer(Place::Vram, 4 * MIB))
        .collect();
    for (n, buffer) in (1..).zip(&set) {
        buffer.cpu.fill(pattern(n));
    }
    // It has the room that somebody needed last.
    let theirs = other.buffer(Place::Vram, 4 * MIB);
    let places = || -> Vec<_> { set.iter().map(|one| place(&rig, one.handle)).collect() };
    let (before, there) = (Witness::settled(&rig), places());
    for engine in Engine::ALL {
        let refused = rig.start_after(rig.context(engine), &[write(set[0].va, 1)], &[]);
        assert_eq!(refused.err(), Some(Errno::ENOMEM));
    }
    assert_eq!(places(), there, "it fits never: nobody moves");
    assert_eq!(place(&other, theirs.handle), Place::Vram);
    before.expect_unchanged(&rig);
    let state = rig.state(rig.compute).expect("CONTEXT_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_ACTIVE);
    // What uses no memory of it goes on, and all does when there is less.
    assert_eq!(rig.run(Engine::Compute, &[]), Ok(()));
    let last = set.last().expect("an object");
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[unmap(last.va, last.size)]),
        Ok(())
    );
    for (n, buffer) in (1..).zip(&set[..set.len() - 1]) {
        let work = [copy(buffer.va, set[0].va, PAGE)];
        assert_eq!(rig.run(Engine::Compute, &work), Ok(()), "object {n}");
        assert_eq!(set[0].cpu.read(8), pattern(n)(8));
        let after = buffer.cpu.read(4 * MIB as usize - 8);
        assert_eq!(after, pattern(n)(4 * MIB as usize - 8), "object {n}");
    }
    assert_eq!(place(&other, theirs.handle), Place::System);
}

/// Nor is it anybody's who works in that address space.
fn what_a_held_bind_will_map_needs_no_room() {
    let (rig, other) = (alone(), Rig::new());
    let vram = rig.region(Place::Vram).size;
    let ops: Vec<_> = (0..vram / (4 * MIB) + 1)
        .map(|_| {
            map(
                rig.bo(Place::Vram, 4 * MIB),
                0,
                rig.reserve(4 * MIB),
                4 * MIB,
            )
        })
        .collect();
    let small = rig.buffer(Place::System, PAGE);
    let theirs = other.buffer(Place::Vram, 4 * MIB);
    let (fence, done) = (rig.fence(0), rig.syncobj());
    let syncs = [wait_for_value(fence, 1), signal(done)];
    assert_eq!(rig.bind(rig.vm, &ops, &syncs), Ok(()));
    for engine in Engine::ALL {
        assert_eq!(rig.run(engine, &[write(small.va, 1)]), Ok(()), "{engine:?}");
    }
    assert_eq!(place(&other, theirs.handle), Place::Vram);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    let refused = rig.start_after(rig.compute, &[write(small.va, 1)], &[]);
    assert_eq!(refused.err(), Some(Errno::ENOMEM), "all of it is mapped");
}

fn what_is_out_can_be_bound() {
    let rig = alone();
    let handle = rig.bo(Place::Vram, 2 * MIB);
    rig.map(handle).fill(pattern(1));
    assert_eq!(evict_all(), 1);
    let va = rig.bound_at_will(handle, 2 * MIB);
    assert_eq!(place(&rig, handle), Place::System, "a bind needs no VRAM");
    expect_gpu(&rig, "bound while it was out", va, 2 * MIB, pattern(1));
    // Once more, in part, and elsewhere.
    assert_eq!(evict_all(), 1);
    let vm = rig.vm_create().expect("VM_CREATE");
    let part = rig.reserve(PAGE);
    let ops = [map(handle, PAGE, part, PAGE), unmap(va, MIB)];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(
        rig.bind_and_wait(vm, &[map(handle, 0, va, 2 * MIB)]),
        Ok(())
    );
    let at = |from: usize| move |offset| pattern(1)(from + offset);
    expect_gpu(&rig, "a part", part, PAGE, at(PAGE as usize));
    expect_gpu(&rig, "the rest", va + MIB, MIB, at(MIB as usize));
    let late = rig.start_in(rig.new_context(Engine::Copy), &[write(va, 1)]);
    assert_eq!(late.wait(), Err(Errno::EFAULT));
}

fn a_bind_that_waits_finds_what_comes_back() {
    let (rig, other) = (alone(), Rig::new());
    let gate = other.buffer(Place::System, PAGE);
    let mine = rig.buffer(Place::System, PAGE);
    let job = other.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let open = rig.syncobj_of(other.sync_file(job.syncobj));
    let done = rig.syncobj();
    let handle = rig.bo(Place::Vram, 2 * MIB);
    rig.map(handle).fill(pattern(5));
    let va = rig.reserve(2 * MIB);
    let ops = [map(handle, 0, va, 2 * MIB)];
    assert_eq!(rig.bind(rig.vm, &ops, &[wait(open), signal(done)]), Ok(()));
    assert_eq!(evict_all(), 1);
    // It is needed from now on.
    assert_eq!(rig.run(Engine::Copy, &[write(mine.va, 1)]), Ok(()));
    assert_eq!(place(&rig, handle), Place::Vram);
    assert_eq!(evict_all(), 1);
    assert!(!rig.has_signalled(done));
    gate.cpu.write(0, 1);
    assert_eq!((job.wait(), rig.wait(done)), (Ok(()), Ok(())));
    expect_gpu(&rig, "what came back", va, 2 * MIB, pattern(5));
}

fn parts_of_mappings_come_back() {
    let rig = alone();
    let size = 8 * MIB;
    let handle = rig.bo(Place::Vram, size);
    rig.map(handle).fill(pattern(2));
    let va = rig.bound_at_will(handle, size);
    // A hole within a large page.
    let hole = va + 2 * MIB + 3 * PAGE;
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(hole, 5 * PAGE)]), Ok(()));
    assert_eq!(evict_all(), 1);
    let behind = 2 * MIB + 8 * PAGE;
    let at = |from: u64| move |offset| pattern(2)(from as usize + offset);
    expect_gpu(&rig, "before it", va, 2 * MIB + 3 * PAGE, at(0));
    expect_gpu(&rig, "behind it", va + behind, size - behind, at(behind));
    let late = rig.start_in(rig.new_context(Engine::Copy), &[write(hole, 1)]);
    assert_eq!(late.wait(), Err(Errno::EFAULT));
}

fn private_objects_come_back() {
    let rig = alone();
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig
        .bo_create_in(rig.vm, 2 * MIB, DRM_SKUA_BO_CPU_ACCESS, vram)
        .expect("BO_CREATE");
    let buffer = rig.bound(handle, 2 * MIB);
    buffer.cpu.fill(pattern(6));
    for round in 0..4 {
        let jobs: Vec<_> = (0..8)
            .map(|_| rig.start(Engine::Compute, &[write(buffer.va, round)]))
            .collect();
        assert_eq!(evict_all(), 1, "round {round}");
        assert!(jobs.iter().all(|job| job.wait() == Ok(())));
        assert_eq!(place(&rig, handle), Place::System);
        let content = |offset: usize| {
            if offset == 0 {
                round
            } else {
                pattern(6)(offset)
            }
        };
        buffer.cpu.expect("for the CPU", content);
        expect_gpu(&rig, "for the GPU", buffer.va, 2 * MIB, content);
    }
}

fn a_destroyed_vm_gets_what_it_needs() {
    let rig = alone();
    let buffer = out(&rig, 2 * MIB, pattern(1));
    assert_eq!(rig.vm_destroy(rig.vm), Ok(()));
    assert_eq!(
        rig.run(Engine::Copy, &[fill(4, buffer.va, 2 * MIB)]),
        Ok(())
    );
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    buffer.cpu.expect("for the CPU", |_| 4 << 32 | 4);
}

fn all_who_share_get_it_back() {
    let (one, two) = (alone(), Rig::new());
    let size = 2 * MIB + PAGE;
    let mine = one.buffer(Place::Vram, size);
    let shared = one.export(mine.handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = two.bound(two.import(&shared).expect("PRIME_FD_TO_HANDLE"), size);
    for round in 1..4 {
        mine.cpu.fill(pattern(round));
        assert_eq!(evict_all(), 1);
        theirs.cpu.expect("the other's mapping", pattern(round));
        expect_gpu(&two, "theirs", theirs.va, size, pattern(round));
        expect_gpu(&one, "mine", mine.va, size, pattern(round));
    }
    // Who does not map it any more does not bring it back.
    let unbound = [unmap(theirs.va, size)];
    assert_eq!(two.bind_and_wait(two.vm, &unbound), Ok(()));
    let stays = eventually(|| {
        evict_all();
        let ran = two.run(
            Engine::Copy,
            &[write(two.buffer(Place::System, PAGE).va, 1)],
        );
        assert_eq!(ran, Ok(()));
        (place(&one, mine.handle) == Place::System).then_some(())
    });
    assert!(stays.is_some(), "it came back for nobody");
    expect_gpu(&one, "mine, at last", mine.va, size, pattern(3));
}

/// Work of a client that does not use an object does not wait for it, nor it for that.
fn it_comes_back_while_other_work_runs() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let handle = rig.bo(Place::Vram, 2 * MIB);
    rig.map(handle).fill(pattern(1));
    assert_eq!(evict_all(), 1);
    let before = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let va = rig.bound_at_will(handle, 2 * MIB);
    expect_gpu(&rig, "meanwhile", va, 2 * MIB, pattern(1));
    assert!(!before.has_ended());
    gate.cpu.write(0, 1);
    assert_eq!(before.wait(), Ok(()));
}

fn what_is_out_is_given_back() {
    const ASSUME: u32 = DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE;
    let rig = alone();
    let va = rig.reserve(2 * MIB);
    let mut before = None;
    for round in 0..3 {
        let ways: [&dyn Fn(u32); 6] = [
            &|handle| {
                assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, 2 * MIB)]), Ok(()));
                assert_eq!(rig.close(handle), Ok(()));
            },
            &|handle| {
                assert_eq!(rig.close(handle), Ok(()));
                assert_eq!(rig.run(Engine::Copy, &[write(va, 1)]), Ok(()));
                assert_eq!(evict_all(), 1);
                assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, 2 * MIB)]), Ok(()));
            },
            &|handle| assert_eq!(rig.destroy(&[handle], 0), Ok(())),
            &|handle| assert_eq!(rig.destroy(&[handle], ASSUME), Ok(())),
            &|handle| assert_eq!(rig.destroy_synchronously(&[handle], 0), Ok(())),
            &|handle| {
                // Nobody waits for what is dead, and nobody brings it back.
                assert_eq!(rig.destroy_synchronously(&[handle], ASSUME), Ok(()));
                assert_eq!(rig.run(Engine::Copy, &[]), Ok(()));
            },
        ];
        for (number, way) in ways.iter().enumerate() {
            let handle = rig.bo(Place::Vram, 2 * MIB);
            let cpu = rig.map(handle);
            cpu.fill(pattern(1));
            let ops = [map(handle, 0, va, 2 * MIB)];
            assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
            assert_eq!(evict_all(), 1, "way {number}, round {round}");
            way(handle);
            drop(cpu);
            // The first one leaves page tables behind.
            let before = before.get_or_insert_with(|| Witness::settled(&rig));
            if let Some(changes) = before.changes(&rig) {
                panic!("way {number}, round {round}: {changes}");
            }
        }
    }
    // With the address space, and with the client.
    let used = || Place::ALL.map(|place| rig.region(place).used);
    let before = used();
    for with_vm in [true, false] {
        let other = Rig::new();
        out(&other, 2 * MIB, pattern(1));
        if with_vm {
            assert_eq!(other.vm_destroy(other.vm), Ok(()));
        }
        drop(other);
        let free = eventually(|| (used() == before).then_some(()));
        assert!(free.is_some(), "{:?} of {before:?}", used());
    }
}

fn refused_work_brings_nothing_back() {
    let rig = alone();
    let context = rig.new_context(Engine::Copy);
    let nowhere = rig.reserve(PAGE);
    let faulting = rig.start_in(context, &[write(nowhere, 1)]);
    assert_eq!(faulting.wait(), Err(Errno::EFAULT));
    let buffer = out(&rig, MIB, pattern(1));
    let dead = eventually(|| {
        let refused = rig.start_after(context, &[write(buffer.va, 1)], &[]);
        (refused.err() == Some(Errno::ECANCELED)).then_some(())
    });
    assert!(dead.is_some());
    assert_eq!(place(&rig, buffer.handle), Place::System);
    // Nor does what uses no memory.
    assert_eq!(rig.run(Engine::Copy, &[]), Ok(()));
    assert_eq!(place(&rig, buffer.handle), Place::System);
    buffer.cpu.expect("untouched", pattern(1));
}

fn make_resident_brings_it_back() {
    let rig = alone();
    let buffer = out(&rig, 2 * MIB, pattern(1));
    let done = rig.syncobj();
    let made = rig.make_resident(&[buffer.handle], &[signal(done)]);
    assert_eq!((made, rig.wait(done)), (Ok(()), Ok(())));
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    expect_gpu(&rig, "resident", buffer.va, 2 * MIB, pattern(1));
}

fn who_needs_room_waits_for_what_is_busy() {
    let (busy, other) = (alone(), Rig::new());
    let gate = busy.buffer(Place::System, PAGE);
    let at = nearly_all(&other)[0].va;
    let mine = busy.buffer(Place::Vram, 16 * MIB);
    let job = busy.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), fill(5, mine.va, mine.size)],
    );
    thread::scope(|scope| {
        let needing = scope.spawn(move || other.run(Engine::Copy, &[write(at, 1)]));
        thread::sleep(Duration::from_millis(200));
        assert!(!needing.is_finished(), "there is no room yet");
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        assert_eq!(needing.join().expect("a thread"), Ok(()));
    });
    mine.cpu.expect("what the job wrote last", |_| 5 << 32 | 5);
    assert_eq!(place(&busy, mine.handle), Place::System);
}

/// What is closed is free soon, without that what others work with leaves.
fn nobody_leaves_for_what_is_closed() {
    let (rig, other) = (alone(), Rig::new());
    let buffer = rig.buffer(Place::Vram, 2 * MIB);
    // Two have room, but for what the first client has.
    let size = other.region(Place::Vram).size / 2;
    let (before, rounds) = (evictions(), u64::from(rounds(100)));
    for _ in 0..rounds {
        for _ in 0..4 {
            let handle = other.bo(Place::Vram, size);
            assert_eq!(other.close(handle), Ok(()));
        }
        assert_eq!(rig.run(Engine::Compute, &[write(buffer.va, 1)]), Ok(()));
    }
    let moved = evictions() - before;
    println!("# it left {moved} times in {rounds} rounds");
    // Not in each; a clear may take long on a slow kernel.
    assert!(moved * 4 <= rounds, "{moved} of {rounds}");
}

/// Work of others ends, or is cut; until then who can do without its room goes on.
fn a_hog_holds_up_nobody_for_good() {
    let (hog, large, small) = (alone(), Rig::new(), Rig::new());
    let never = hog.buffer(Place::System, PAGE);
    let theirs = small.buffer(Place::Vram, MIB);
    let set = nearly_all(&large);
    let mine = hog.buffer(Place::Vram, 16 * MIB);
    let job = hog.start(
        Engine::Compute,
        &[wait_value(never.va, 1), write(mine.va, 1)],
    );
    assert_eq!(small.run(Engine::Copy, &[write(theirs.va, 1)]), Ok(()));
    assert!(!job.has_ended(), "it needs nothing of the hog's");
    let work = [write(set[0].va, 2)];
    let ran = large.start_after(large.copy, &work, &[]);
    let ran = ran.map(|job| job.wait());
    assert!(matches!(ran, Ok(Ok(())) | Err(Errno::ENOMEM)), "{ran:?}");
    never.cpu.write(0, 1);
    let _ = job.wait();
    assert_eq!(large.run(Engine::Copy, &work), Ok(()));
    assert_eq!(set[0].cpu.read(0), 2);
    assert_eq!(small.run(Engine::Copy, &[write(theirs.va, 3)]), Ok(()));
    assert_eq!(theirs.cpu.read(0), 3);
}

/// Who waits with several threads is not before others with all of them.
fn a_client_has_one_turn_in_a_round() {
    let (other, busy) = (alone(), [Rig::new(), Rig::new()]);
    let many = Client::new();
    let half = other.region(Place::Vram).size / 2 - MIB;
    let small = other.buffer(Place::Vram, PAGE);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let rig = Rig::of(Client::of(many.duplicate()));
            let (gate, large) = (
                rig.buffer(Place::System, PAGE),
                rig.buffer(Place::Vram, half),
            );
            (rig, gate, large)
        })
        .collect();
    evict_all();
    let gates = busy.each_ref().map(|rig| rig.buffer(Place::System, PAGE));
    let jobs: Vec<_> = busy
        .iter()
        .zip(&gates)
        .map(|(rig, gate)| {
            let large = rig.buffer(Place::Vram, half);
            rig.start(Engine::Copy, &[wait_value(gate.va, 1), write(large.va, 1)])
        })
        .collect();
    assert_eq!(place(&other, small.handle), Place::System);
    let opens: Vec<_> = threads
        .iter()
        .map(|(rig, gate, _)| rig.map(gate.handle))
        .collect();
    let callers = [const { Caller::new() }; 4];
    thread::scope(|scope| {
        let waiting: Vec<_> = threads
            .into_iter()
            .zip(&callers)
            .map(|((rig, gate, large), caller)| {
                let thread = scope.spawn(move || {
                    let work = [wait_value(gate.va, 1), write(large.va, 1)];
                    let ran = caller.call(|| rig.start_after(rig.copy, &work, &[]));
                    ran.map(|job| job.wait())
                });
                caller.wait_until_asleep();
                thread
            })
            .collect();
        let caller = &callers[3];
        let last = scope.spawn(move || {
            let work = [write(small.va, 1)];
            caller.call(|| other.run(Engine::Copy, &work))
        });
        caller.wait_until_asleep();
        // The first, and the second in the round behind.
        gates[0].cpu.write(0, 1);
        opens[0].write(0, 1);
        let served = || last.is_finished().then_some(());
        assert!(eventually(served).is_some(), "it has no turn");
        assert!(!waiting[2].is_finished(), "it is the last");
        gates[1].cpu.write(0, 1);
        for (thread, open) in waiting.into_iter().zip(opens) {
            open.write(0, 1);
            assert_eq!(thread.join().expect("a thread"), Ok(Ok(())));
        }
        assert_eq!(last.join().expect("a thread"), Ok(()));
    });
    assert!(jobs.iter().all(|job| job.wait() == Ok(())));
}

/// All DRM devices are kept from being unplugged by who is between these two.
const GUARD: [&str; 2] = ["drm_dev_enter", "drm_dev_exit"];

fn who_waits_for_a_turn_holds_up_no_unplug() {
    let busy = alone();
    // Room is waited for ten seconds only, which may be over on a slow kernel.
    let counts = eventually(|| guards_of_who_waits(&busy)).expect("somebody who waits for a turn");
    let [entered, left] = GUARD.map(|name| counts.get(name).copied().unwrap_or(0));
    println!("# entered {entered} times, left {left} times");
    assert!(entered > 0, "nothing was counted");
    assert_eq!(entered, left, "it waits while no device can be unplugged");
}

/// What a thread has called that waits for its turn behind one that waits for room.
fn guards_of_who_waits(busy: &Rig) -> Option<BTreeMap<String, usize>> {
    let (first, second) = (Rig::new(), Rig::new());
    let most = busy.region(Place::Vram).size * 3 / 4;
    let gate = busy.buffer(Place::System, PAGE);
    let [one, other] = [&first, &second].map(|rig| rig.buffer(Place::Vram, most));
    evict_all();
    let large = busy.buffer(Place::Vram, most);
    let job = busy.start(Engine::Copy, &[wait_value(gate.va, 1), write(large.va, 1)]);
    let callers = [const { Caller::new() }; 2];
    let calls = Mutex::new(None);
    let counts = thread::scope(|scope| {
        let (callers, calls) = (&callers, &calls);
        let turn =
            scope.spawn(move || callers[0].call(|| first.run(Engine::Copy, &[write(one.va, 1)])));
        callers[0].wait_until_asleep();
        let waits = scope.spawn(move || {
            *calls.lock().expect("the count") = Some(Calls::of(&GUARD));
            callers[1].call(|| second.run(Engine::Copy, &[write(other.va, 1)]))
        });
        callers[1].wait_until_asleep();
        let counts = calls.lock().expect("the count").as_ref().map(Calls::count);
        let both_wait = !turn.is_finished() && !waits.is_finished();
        gate.cpu.write(0, 1);
        let ran = [turn, waits].map(|thread| thread.join().expect("a thread"));
        println!("# {both_wait}, {ran:?}");
        counts.filter(|_| both_wait && ran == [Ok(()), Ok(())])
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(busy.close(large.handle), Ok(()));
    counts
}

fn killed_processes_leave_nothing() {
    quiet();
    let client = Client::new();
    let before = Witness::settled(&client);
    for round in 0..4 {
        let children: Vec<_> = (1..=4)
            .map(|number| Child::start(move || work_on_half_of_vram(number, usize::MAX)))
            .collect();
        thread::sleep(Duration::from_millis(300 + 100 * round) * patience());
        for child in children {
            child.kill();
            assert!(!child.wait());
        }
        quiet();
        before.expect_unchanged(&client);
    }
    assert!(Child::start(|| work_on_half_of_vram(1, 20)).wait());
}

fn everything_at_once_in_eight_processes() {
    torture::eight_processes(120);
}
