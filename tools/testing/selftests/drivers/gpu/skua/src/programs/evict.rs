// SPDX-License-Identifier: MIT

//! Objects move out of VRAM: because there is no room, or because debugfs says so.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::client::{map, map_readonly, signal, unmap, wait};
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{
    alone, both, evict_all, evict_some, expect_gpu, movable, movable_in_vram, pattern, place,
    press, resident, while_the_cpu_writes, Numbers, Uncleared,
};
use skua_selftests::others::write_until;
use skua_selftests::race::Caller;
use skua_selftests::raw::in_child;
use skua_selftests::rig::{copy, fill, wait_value, write, Buffer};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_1_11_content_and_addresses_stay: 60 at_rest,
        row_1_11_forked_children_go_on_too: 60 at_rest,
        row_1_12_a_writer_notices_nothing: 120 at_rest,
        row_1_16_work_that_runs_is_waited_for: 60 at_rest,
        work_that_comes_meanwhile_waits: 60 at_rest,
        a_move_flushes_in_its_ring: 60 at_rest,
        a_move_that_has_waited_flushes_in_its_ring: 60 at_rest,
        what_a_move_waits_for_may_fail: 60 at_rest,
        a_move_waits_for_no_other_client: 60 at_rest,
        a_move_that_waits_for_another_driver_holds_up_no_other: 60 at_rest,
        a_move_of_what_nobody_maps_holds_up_nobody: 60 at_rest,
        row_0_20_a_lock_of_what_others_have_holds_up_none_of_them: 60 at_rest,
        a_bind_that_waits_finds_the_new_memory: 60 at_rest,
        all_who_share_see_the_move: 60 at_rest,
        parts_of_mappings_move: 60 at_rest,
        what_is_mapped_a_thousand_times_moves: 60 at_rest,
        what_is_read_only_stays_read_only: 60 at_rest,
        private_objects_move: 60 at_rest,
        a_move_holds_up_no_access_of_others: 60 at_rest,
        a_destroyed_vm_moves_with_its_contexts: 60 at_rest,
        vram_four_times_over: 240 at_rest,
        nobody_loses_a_place_in_vain: 60 at_rest,
        what_fits_goes_rather_than_what_is_much_too_large: 60 at_rest,
        what_is_used_in_turn_stays_for_the_most_part: 60 at_rest,
        by_age_all_leave_just_before_they_are_used: 60 at_rest,
        what_is_clean_goes_rather_than_what_was_written: 60 at_rest,
        what_was_written_goes_before_what_was_just_used: 60 at_rest,
        what_is_not_clean_any_more_goes_in_its_turn: 60 at_rest,
        by_age_what_was_written_goes_first: 60 at_rest,
        what_is_being_cleared_is_waited_for: 60 at_rest,
        a_full_quota_does_not_keep_vram: 120 at_rest,
        nor_does_the_full_one_of_all_clients: 120 at_rest,
        row_0_18_a_full_quota_refuses_no_lock: 120 at_rest,
        an_evicted_object_is_given_back: 60 at_rest,
        clients_that_do_all_at_once_keep_their_content: 240 at_rest,
    ])
}

fn row_1_11_content_and_addresses_stay() {
    let rig = alone();
    for size in [PAGE, 64 << 10, LARGE + PAGE, 5 * LARGE] {
        let buffer = rig.bound(movable_in_vram(&rig, size), size);
        // The GPU knows where it was, and so do its TLBs.
        assert_eq!(
            rig.run(Engine::Compute, &[fill(2, buffer.va, size)]),
            Ok(())
        );
        buffer.cpu.fill(pattern(size));
        assert!(evict_all() >= 1);
        let what = format!("{size:#x} bytes");
        assert_eq!(place(&rig, buffer.handle), Place::System, "{what}");
        buffer.cpu.expect(&what, pattern(size));
        expect_gpu(&rig, &what, buffer.va, size, pattern(size));
        // It goes on as before, for both.
        assert_eq!(
            rig.run(Engine::Compute, &[fill(3, buffer.va, size)]),
            Ok(())
        );
        buffer.cpu.expect(&what, |_| 3 << 32 | 3);
        buffer.cpu.fill(pattern(1));
        expect_gpu(&rig, &what, buffer.va, size, pattern(1));
        assert_eq!(evict_all(), 0, "there is nothing left to move");
    }
}

fn row_1_11_forked_children_go_on_too() {
    let rig = alone();
    let buffer = rig.bound(movable_in_vram(&rig, LARGE), LARGE);
    buffer.cpu.fill(pattern(1));
    // The child has the page tables of its parent as they were.
    assert!(in_child(|| {
        let moved = evict_all();
        let stays = buffer.cpu.differs(pattern(1)).is_none();
        buffer.cpu.fill(pattern(2));
        moved == 1 && stays
    }));
    assert_eq!(place(&rig, buffer.handle), Place::System);
    buffer.cpu.expect("what the child wrote", pattern(2));
    expect_gpu(&rig, "for the GPU", buffer.va, LARGE, pattern(2));
}

fn row_1_12_a_writer_notices_nothing() {
    let rig = alone();
    for _ in 0..4 {
        let buffer = rig.bound(movable_in_vram(&rig, 2 * LARGE), 2 * LARGE);
        while_the_cpu_writes(&buffer.cpu, || assert_eq!(evict_all(), 1));
        assert_eq!(rig.close(buffer.handle), Ok(()));
    }
}

/// Runs `during` when a move of an object was begun that waits for work on `gate`, and ends that
/// work.
fn with_move_under_way(rig: &Rig, handle: u32, gate: &Buffer, during: impl FnOnce()) {
    thread::scope(|scope| {
        let moving = scope.spawn(evict_all);
        becomes("the move begins", || place(rig, handle) == Place::System);
        // Long enough for one that does not wait to be over.
        thread::sleep(Duration::from_millis(100));
        assert!(!moving.is_finished(), "the move did not wait");
        during();
        gate.cpu.write(0, 1);
        assert_eq!(moving.join().expect("a thread"), 1);
    });
}

fn row_1_16_work_that_runs_is_waited_for() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let size = LARGE;
    let buffer = rig.bound(movable_in_vram(&rig, size), size);
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), fill(8, buffer.va, size)],
    );
    with_move_under_way(&rig, buffer.handle, &gate, || assert!(!job.has_ended()));
    assert_eq!(job.wait(), Ok(()));
    buffer
        .cpu
        .expect("what the job wrote last", |_| 8 << 32 | 8);
    expect_gpu(&rig, "for the GPU", buffer.va, size, |_| 8 << 32 | 8);
}

/// What a move asks of the device: requests to flush, those of them by the register, doorbells, and
/// packets of paging.
#[track_caller]
fn asked() -> [u64; 4] {
    let gpu = Function::first();
    let [all, register, doorbells] = gpu.counters(["invalidate", "driver_tlb_flushes", "doorbell"]);
    let paging = gpu.debugfs("paging").expect("debugfs");
    let packets = paging
        .lines()
        .find_map(|line| line.strip_prefix("packets: "));
    let packets = packets.expect("packets").parse().expect("a number");
    [all, register, doorbells, packets]
}

/// What a move has asked for since.
#[track_caller]
fn asked_since(before: [u64; 4]) -> Vec<u64> {
    let more = asked().into_iter().zip(before).map(|(now, old)| now - old);
    let more = more.collect();
    println!("# flushes, by the register, doorbells, packets: {more:?}");
    more
}

fn a_move_flushes_in_its_ring() {
    let (rig, other) = (alone(), Rig::new());
    // To clear what is left behind asks for more.
    let _uncleared = Uncleared::new();
    // No more than one pass does.
    let size = 256 << 10;
    for is_shared in [false, true] {
        let buffer = rig.bound(movable_in_vram(&rig, size), size);
        let mut users = vec![(&rig, buffer.va)];
        if is_shared {
            let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
            let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
            users.push((&other, other.bound_at_will(theirs, size)));
        }
        for (rig, va) in &users {
            for engine in Engine::ALL {
                // Its TLB knows where the object was.
                assert_eq!(rig.run(engine, &[fill(7, *va, size)]), Ok(()));
            }
        }
        let before = asked();
        assert_eq!(evict_all(), 1);
        assert_eq!(asked_since(before), [1, 0, 1, 1]);
        // The CPU writes to the new memory; an old translation finds what was there before.
        buffer.cpu.fill(pattern(size));
        for (rig, va) in &users {
            expect_gpu(rig, "the new memory", *va, size, pattern(size));
        }
        let before = asked();
        resident(&rig, &[buffer.handle]);
        assert_eq!(asked_since(before), [1, 0, 1, 1]);
        for (rig, va) in &users {
            expect_gpu(rig, "back in VRAM", *va, size, pattern(size));
        }
        assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
        assert_eq!(evict_all(), 1);
    }
}

fn a_move_that_has_waited_flushes_in_its_ring() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let buffer = rig.bound(movable_in_vram(&rig, PAGE), PAGE);
    let work = [wait_value(gate.va, 1), fill(8, buffer.va, PAGE)];
    let before = asked();
    let job = rig.start(Engine::Compute, &work);
    with_move_under_way(&rig, buffer.handle, &gate, || assert!(!job.has_ended()));
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(asked_since(before)[..2], [1, 0]);
    buffer.cpu.fill(pattern(9));
    expect_gpu(&rig, "the new memory", buffer.va, PAGE, pattern(9));
}

fn work_that_comes_meanwhile_waits() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let size = LARGE;
    let buffer = rig.bound(movable_in_vram(&rig, size), size);
    buffer.cpu.fill(pattern(4));
    let before = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let out = rig.buffer(Place::System, size);
    let mut after = None;
    with_move_under_way(&rig, buffer.handle, &gate, || {
        // In another context, which has nothing else to wait for.
        after = Some(rig.start(
            Engine::Copy,
            &[copy(buffer.va, out.va, size), fill(6, buffer.va, size)],
        ));
        thread::sleep(Duration::from_millis(20));
        assert!(!after.as_ref().expect("a job").has_ended());
    });
    assert_eq!(before.wait(), Ok(()));
    assert_eq!(after.expect("a job").wait(), Ok(()));
    out.cpu.expect("what was there before", pattern(4));
    buffer
        .cpu
        .expect("what was written behind the move", |_| 6 << 32 | 6);
}

fn what_a_move_waits_for_may_fail() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let size = LARGE;
    let buffer = rig.bound(movable_in_vram(&rig, size), size);
    buffer.cpu.fill(pattern(8));
    let context = rig.new_context(Engine::Compute);
    let nowhere = rig.reserve(PAGE);
    let job = rig.start_in(context, &[wait_value(gate.va, 1), write(nowhere, 1)]);
    let mut after = None;
    with_move_under_way(&rig, buffer.handle, &gate, || {
        after = Some(rig.start(Engine::Copy, &[write(buffer.va, 6)]));
    });
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    assert_eq!(after.expect("a job").wait(), Ok(()), "innocent work");
    let content = |offset| if offset == 0 { 6 } else { pattern(8)(offset) };
    buffer.cpu.expect("for the CPU", content);
    expect_gpu(&rig, "for the GPU", buffer.va, size, content);
}

fn a_move_waits_for_no_other_client() {
    let (busy, other) = (alone(), Rig::new());
    let gate = busy.buffer(Place::System, PAGE);
    let handle = movable_in_vram(&busy, PAGE);
    busy.bound_at_will(handle, PAGE);
    let job = busy.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    with_move_under_way(&busy, handle, &gate, || expect_undisturbed(&other));
    assert_eq!(job.wait(), Ok(()));
}

/// Clears, binds, work and moves of a client go on.
#[track_caller]
fn expect_undisturbed(other: &Rig) {
    let theirs = other.bound(movable_in_vram(other, LARGE), LARGE);
    theirs.cpu.expect("new memory", |_| 0);
    assert_eq!(
        other.run(Engine::Copy, &[fill(2, theirs.va, LARGE)]),
        Ok(())
    );
    theirs.cpu.expect("their work", |_| 2 << 32 | 2);
    // All of VRAM, but for what the busy one has not left yet.
    let vram = other.region(Place::Vram);
    let large = other
        .bo_create(vram.size - LARGE, 0, 1 << vram.id)
        .expect("BO_CREATE");
    assert_eq!(place(other, theirs.handle), Place::System);
    theirs.cpu.expect("moved", |_| 2 << 32 | 2);
    assert_eq!(other.close(large), Ok(()));
    assert_eq!(other.close(theirs.handle), Ok(()));
}

fn a_move_of_what_nobody_maps_holds_up_nobody() {
    let (busy, other) = (alone(), Rig::new());
    let gate = busy.buffer(Place::System, PAGE);
    let handle = busy
        .bo_create_in(busy.vm, PAGE, DRM_SKUA_BO_CPU_ACCESS, both(&busy))
        .expect("BO_CREATE");
    busy.map(handle).write(0, 5);
    let job = busy.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    with_move_under_way(&busy, handle, &gate, || expect_undisturbed(&other));
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(busy.map(handle).read(0), 5);
}

fn a_move_that_waits_for_another_driver_holds_up_no_other() {
    let clients = [alone(), Rig::new()];
    let lines = [(); 2].map(|()| SoftwareTimeline::new());
    // The second waits neither for what comes before nor for what comes behind it.
    let objects = [0, 1, 0].map(|of| {
        let handle = movable_in_vram(&clients[of], PAGE);
        let cpu = clients[of].map(handle);
        cpu.write(0, 5);
        let dma_buf = clients[of].export(handle).expect("PRIME_HANDLE_TO_FD");
        write_until(&dma_buf, &lines[of].fence(1));
        (&clients[of], handle, cpu)
    });
    let [_, (_, _, quick), _] = &objects;
    thread::scope(|scope| {
        let moving = scope.spawn(evict_all);
        for (client, handle, _) in &objects {
            becomes("the move begins", || {
                place(client, *handle) == Place::System
            });
        }
        lines[1].advance(1);
        let reading = scope.spawn(|| quick.read(0));
        let over = eventually(|| reading.is_finished().then_some(()));
        let waits = !moving.is_finished();
        lines[0].advance(1);
        assert_eq!((over, waits), (Some(()), true));
        assert_eq!(reading.join().expect("a thread"), 5);
        assert_eq!(moving.join().expect("a thread"), 3);
    });
}

fn row_0_20_a_lock_of_what_others_have_holds_up_none_of_them() {
    let (busy, other) = (alone(), Rig::new());
    let gate = busy.buffer(Place::System, PAGE);
    let handle = busy.bo_create(PAGE, 0, both(&busy)).expect("BO_CREATE");
    busy.bound_at_will(handle, PAGE);
    let shared = busy.export(handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    other.bound_at_will(theirs, PAGE);
    assert_eq!(place(&busy, handle), Place::Vram);
    let job = busy.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let (client, caller): (&Client, _) = (&busy, Caller::new());
    thread::scope(|scope| {
        let locking = scope.spawn(|| caller.call(|| client.lock(handle)));
        caller.wait_until_asleep();
        assert_eq!(other.run(Engine::Copy, &[]), Ok(()));
        assert!(!job.has_ended(), "it has waited for what the locker does");
        assert_eq!(place(&busy, handle), Place::Vram);
        gate.cpu.write(0, 1);
        assert!(locking.join().expect("a thread").is_ok());
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(place(&busy, handle), Place::System);
}

fn a_bind_that_waits_finds_the_new_memory() {
    let (rig, other) = (alone(), Rig::new());
    let gate = other.buffer(Place::System, PAGE);
    let job = other.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let open = rig.syncobj_of(other.sync_file(job.syncobj));
    let handle = movable_in_vram(&rig, 2 * LARGE);
    rig.map(handle).fill(pattern(5));
    let done = rig.syncobj();
    let va = rig.reserve(2 * LARGE);
    assert_eq!(
        rig.bind(
            rig.vm,
            &[map(handle, 0, va, 2 * LARGE)],
            &[wait(open), signal(done)]
        ),
        Ok(())
    );
    assert_eq!(evict_all(), 1);
    assert!(!rig.has_signalled(done));
    gate.cpu.write(0, 1);
    assert_eq!((job.wait(), rig.wait(done)), (Ok(()), Ok(())));
    expect_gpu(&rig, "the new memory", va, 2 * LARGE, pattern(5));
    assert_eq!(rig.run(Engine::Copy, &[fill(1, va, 2 * LARGE)]), Ok(()));
    rig.map(handle).expect("for the CPU", |_| 1 << 32 | 1);
}

fn all_who_share_see_the_move() {
    let (one, two) = (alone(), Rig::new());
    let size = LARGE + PAGE;
    let mine = one.bound(movable_in_vram(&one, size), size);
    let again = one.bound_at_will(mine.handle, size);
    let shared = one.export(mine.handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = two.bound(two.import(&shared).expect("PRIME_FD_TO_HANDLE"), size);
    mine.cpu.fill(pattern(7));
    assert_eq!(evict_all(), 1);
    theirs.cpu.expect("the other's mapping", pattern(7));
    expect_gpu(&one, "mine", mine.va, size, pattern(7));
    expect_gpu(&one, "mine, elsewhere", again, size, pattern(7));
    expect_gpu(&two, "theirs", theirs.va, size, pattern(7));
    assert_eq!(
        two.run(Engine::Compute, &[fill(9, theirs.va, size)]),
        Ok(())
    );
    expect_gpu(&one, "what they wrote", again, size, |_| 9 << 32 | 9);
}

fn parts_of_mappings_move() {
    let rig = alone();
    let size = 4 * LARGE;
    let handle = movable_in_vram(&rig, size);
    let cpu = rig.map(handle);
    cpu.fill(pattern(2));
    let va = rig.bound_at_will(handle, size);
    // A hole within a large page, and the object's first pages once more, at its end.
    let hole = va + LARGE + 3 * PAGE;
    assert_eq!(
        rig.bind_and_wait(
            rig.vm,
            &[
                unmap(hole, 5 * PAGE),
                map(handle, PAGE, va + size - 2 * PAGE, 2 * PAGE)
            ]
        ),
        Ok(())
    );
    assert_eq!(evict_all(), 1);
    let expect_part = |at: u64, len: u64, from: u64| {
        let (part, from) = (pattern(2), usize::try_from(from).expect("an offset"));
        expect_gpu(&rig, &format!("{at:#x}"), at, len, |offset| {
            part(from + offset)
        });
    };
    expect_part(va, LARGE + 3 * PAGE, 0);
    let behind = LARGE + 8 * PAGE;
    expect_part(va + behind, size - 2 * PAGE - behind, behind);
    expect_part(va + size - 2 * PAGE, 2 * PAGE, PAGE);
    // What is not mapped stays so.
    for at in [hole, hole + 4 * PAGE] {
        let context = rig.new_context(Engine::Copy);
        let job = rig.start_in(context, &[write(at, 1)]);
        assert_eq!(job.wait(), Err(Errno::EFAULT), "{at:#x}");
    }
}

/// Who has it leave does not do something about each range: a worker does.
fn what_is_mapped_a_thousand_times_moves() {
    const RANGES: u64 = 1000;
    let rig = alone();
    let handle = movable_in_vram(&rig, 16 * PAGE);
    rig.map(handle).fill(pattern(4));
    let va = rig.reserve(RANGES * PAGE);
    let page = |range: u64| range % 16 * PAGE;
    let maps: Vec<_> = (0..RANGES)
        .map(|range| map(handle, page(range), va + range * PAGE, PAGE))
        .collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &maps), Ok(()));
    let expect = |what: &str| {
        for range in [0, 1, 255, 256, 257, RANGES - 1] {
            let from = usize::try_from(page(range)).expect("an offset");
            let what = format!("{what}, range {range}");
            expect_gpu(&rig, &what, va + range * PAGE, PAGE, |offset| {
                pattern(4)(from + offset)
            });
        }
    };
    expect("at first");
    for round in 0..3 {
        assert_eq!(evict_all(), 1);
        assert_eq!(place(&rig, handle), Place::System);
        expect(&format!("outside, {round}"));
        resident(&rig, &[handle]);
        assert_eq!(place(&rig, handle), Place::Vram);
        expect(&format!("inside, {round}"));
        assert_eq!(rig.evict(&[handle]), Ok(()));
    }
}

fn what_is_read_only_stays_read_only() {
    let rig = alone();
    let handle = movable_in_vram(&rig, LARGE);
    rig.map(handle).fill(pattern(3));
    let va = rig.reserve(LARGE);
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map_readonly(handle, 0, va, LARGE)]),
        Ok(())
    );
    assert_eq!(evict_all(), 1);
    expect_gpu(&rig, "read", va, LARGE, pattern(3));
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[write(va, 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
}

/// What is private to an address space shares its reservation, and with that the fences of all that
/// moves there: one may wait for work that waits for the CPU.
fn a_move_holds_up_no_access_of_others() {
    let rig = alone();
    let make = |size, placements, flags| {
        let flags = DRM_SKUA_BO_CPU_ACCESS | flags;
        let handle = rig.bo_create_in(rig.vm, size, flags, placements);
        rig.bound(handle.expect("BO_CREATE"), size)
    };
    let system = 1 << rig.region(Place::System).id;
    let gate = make(PAGE, system, 0);
    // What the CPU does not see in VRAM has to be elsewhere to be locked.
    let locked = make(PAGE, system, DRM_SKUA_BO_CACHED);
    let moving = make(LARGE, both(&rig), 0);
    assert_eq!(place(&rig, moving.handle), Place::Vram);
    let work = [
        wait_value(gate.va, 1),
        wait_value(locked.va, 1),
        fill(3, moving.va, LARGE),
    ];
    let job = rig.start(Engine::Copy, &work);
    thread::scope(|scope| {
        let mover = scope.spawn(evict_all);
        eventually(|| (place(&rig, moving.handle) == Place::System).then_some(())).expect("a move");
        assert!(!job.has_ended(), "the move waits for nothing");
        // A bind, a lock, pages that the CPU has not mapped.
        make(PAGE, system, 0);
        // And a bind of what is still being cleared.
        let cleared = make(6 * LARGE, both(&rig), 0);
        assert_eq!(place(&rig, cleared.handle), Place::Vram);
        assert!(rig.lock(locked.handle).is_ok());
        assert!(!job.has_ended(), "the work did not wait for the CPU");
        locked.cpu.write(0, 1);
        assert_eq!(rig.unlock(locked.handle), Ok(()));
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        assert_eq!(mover.join().expect("a thread"), 1);
    });
    moving.cpu.expect("the work's", |_| 3 << 32 | 3);
}

fn private_objects_move() {
    let rig = alone();
    let size = LARGE;
    let handle = rig
        .bo_create_in(rig.vm, size, DRM_SKUA_BO_CPU_ACCESS, both(&rig))
        .expect("BO_CREATE");
    let buffer = rig.bound(handle, size);
    buffer.cpu.fill(pattern(6));
    let jobs: Vec<_> = (0..20)
        .map(|_| rig.start(Engine::Compute, &[write(buffer.va, 77)]))
        .collect();
    assert_eq!(evict_all(), 1);
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    assert_eq!(place(&rig, handle), Place::System);
    let content = pattern(6);
    let content = |offset: usize| if offset == 0 { 77 } else { content(offset) };
    buffer.cpu.expect("for the CPU", content);
    expect_gpu(&rig, "for the GPU", buffer.va, size, content);
}

fn a_destroyed_vm_moves_with_its_contexts() {
    quiet();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let context = client
        .context_create(vm, client.engine(DRM_SKUA_ENGINE_COPY))
        .expect("CONTEXT_CREATE");
    let (va, commands) = (1 << 32, 1 << 33);
    let handle = movable_in_vram(&client, LARGE);
    let buffer = client.bo(Place::System, PAGE);
    assert_eq!(
        client.bind_and_wait(
            vm,
            &[map(handle, 0, va, LARGE), map(buffer, 0, commands, PAGE)]
        ),
        Ok(())
    );
    let words = fill(4, va, LARGE).encode();
    let size = u32::try_from(4 * words.words().len()).expect("a size");
    client.map(buffer).write_words(0, words.words());
    assert_eq!(client.vm_destroy(vm), Ok(()));
    assert_eq!(evict_all(), 1);
    let done = client.syncobj();
    let buffer = drm_skua_buffer {
        va: commands,
        size,
        flags: 0,
    };
    client
        .submit(context, &[buffer], &[signal(done)])
        .expect("SUBMIT");
    assert_eq!(client.wait(done), Ok(()));
    client.map(handle).expect("the new memory", |_| 4 << 32 | 4);
}

fn vram_four_times_over() {
    let rigs: Vec<_> = (0..8).map(|_| Rig::new()).collect();
    let vram = rigs[0].region(Place::Vram).size;
    // Odd sizes, so that blocks do not fit one another.
    let size = vram / 23 / PAGE * PAGE + PAGE;
    let mut buffers = Vec::new();
    for round in 0..4 * vram / size {
        let rig = &rigs[usize::try_from(round).expect("a number") % rigs.len()];
        let handle = rig
            .bo_create(size, DRM_SKUA_BO_CPU_ACCESS, both(rig))
            .unwrap_or_else(|errno| panic!("BO_CREATE number {round}: {errno}"));
        assert_eq!(place(rig, handle), Place::Vram, "number {round}");
        let va = rig.bound_at_will(handle, size);
        let pattern = u32::try_from(round).expect("a number") + 1;
        assert_eq!(rig.run(Engine::Compute, &[fill(pattern, va, size)]), Ok(()));
        buffers.push((rig, handle, va, pattern));
    }
    let evicted = buffers
        .iter()
        .filter(|(rig, handle, ..)| place(rig, *handle) == Place::System)
        .count();
    println!("{evicted} of {} objects were evicted", buffers.len());
    assert!(evicted >= buffers.len() * 2 / 3, "{evicted} were evicted");
    for (rig, handle, va, pattern) in &buffers {
        let value = u64::from(*pattern) << 32 | u64::from(*pattern);
        rig.map(*handle)
            .expect(&format!("number {pattern}"), |_| value);
        // The GPU's view of the first and last page.
        for at in [*va, va + size - PAGE] {
            expect_gpu(
                rig,
                &format!("number {pattern} at {at:#x}"),
                at,
                PAGE,
                |_| value,
            );
        }
    }
}

fn nobody_loses_a_place_in_vain() {
    quiet();
    let client = Client::new();
    let vram = 1 << client.region(Place::Vram).id;
    let size = client.region(Place::Vram).size;
    let mine = movable_in_vram(&client, LARGE);
    // It would not fit if all the others went.
    for large in [size + PAGE, 2 * size] {
        let refused = client.bo_create(large, 0, vram);
        assert_eq!(refused, Err(Errno::ENOSPC));
        assert_eq!(place(&client, mine), Place::Vram);
    }
    // And this does, just so.
    let all = client.bo_create(size, 0, vram).expect("BO_CREATE");
    assert_eq!(place(&client, mine), Place::System);
    assert_eq!(client.close(all), Ok(()));
}

fn what_fits_goes_rather_than_what_is_much_too_large() {
    let rig = alone();
    let vram = rig.region(Place::Vram);
    let large = movable_in_vram(&rig, vram.size / 2);
    let count = (vram.size / 2 - vram.used) / LARGE;
    let small: Vec<u32> = (0..count).map(|_| movable_in_vram(&rig, LARGE)).collect();
    // They are cleared in turn.
    let last = small.last().expect("an object");
    assert_eq!(rig.map(*last).read(0), 0);
    for gone in 1..4 {
        rig.bo(Place::Vram, LARGE);
        assert_eq!(place(&rig, large), Place::Vram, "it was there for longest");
        let is_out = |handle: &&u32| place(&rig, **handle) == Place::System;
        assert_eq!(small.iter().take_while(is_out).count(), gone);
        assert_eq!(small.iter().filter(is_out).count(), gone);
    }
}

fn what_is_used_in_turn_stays_for_the_most_part() {
    let rig = alone();
    let vram = rig.region(Place::Vram);
    let room = (vram.size - vram.used) / LARGE;
    let rest = room / 4;
    let objects: Vec<u32> = (0..room + rest).map(|_| movable(&rig, LARGE)).collect();
    evict_all();
    let brought = || Function::first().counters(["driver_promotions"])[0];
    let before = brought();
    let rounds = 6;
    for _ in 0..rounds {
        for object in &objects {
            resident(&rig, &[*object]);
            assert_eq!(rig.evict(&[*object]), Ok(()));
        }
    }
    // All of the first time, and then what does not fit, and one that leaves in vain.
    let most = room + rest + (rounds - 1) * (rest + 2);
    let moves = brought() - before;
    assert!(moves <= most, "{moves} moves, not {most}");
    // For what is new the oldest goes.
    let there = |handle: &u32| place(&rig, *handle) == Place::Vram;
    let stayed: Vec<u32> = objects.iter().copied().filter(there).collect();
    rig.bo(Place::Vram, LARGE);
    let stays: Vec<bool> = stayed.iter().map(there).collect();
    assert_eq!(stays.iter().position(|stays| !stays), Some(0));
    assert!(stays[1..].iter().all(|stays| *stays), "{stays:?}");
}

/// Who leaves is chosen by age alone, as long as it lives.
struct ByAge;

impl ByAge {
    #[track_caller]
    fn new() -> Self {
        let now = Function::first().debugfs("reuse").expect("debugfs");
        assert_eq!(now.trim(), "0");
        Self
    }
}

impl Drop for ByAge {
    fn drop(&mut self) {
        let now = Function::first().debugfs("reuse").expect("debugfs");
        assert_eq!(now.trim(), "1");
    }
}

fn by_age_all_leave_just_before_they_are_used() {
    let rig = alone();
    let vram = rig.region(Place::Vram);
    let count = (vram.size - vram.used) / LARGE + 4;
    let objects: Vec<u32> = (0..count).map(|_| movable(&rig, LARGE)).collect();
    evict_all();
    let brought = || Function::first().counters(["driver_promotions"])[0];
    let before = brought();
    let by_age = ByAge::new();
    let rounds = 3;
    for _ in 0..rounds {
        for object in &objects {
            resident(&rig, &[*object]);
            assert_eq!(rig.evict(&[*object]), Ok(()));
        }
    }
    drop(by_age);
    assert_eq!(brought() - before, rounds * count);
}

/// Makes an object resident, and gives that up at once.
#[track_caller]
fn use_once(rig: &Rig, handle: u32) {
    resident(rig, &[handle]);
    assert_eq!(rig.evict(&[handle]), Ok(()));
}

/// Fills VRAM with an object that was never out, one that is clean and was used next, and one that
/// is too large to leave for such, which is then used for long. Sees whether the clean one, with
/// which something is done `before` that and `after`, leaves for a new one, or the first; and that
/// what has left was copied only if it had to be.
#[track_caller]
fn first_to_go(before: impl FnOnce(&Rig, u32), after: impl FnOnce(&Rig, u32), is_clean: bool) {
    let rig = alone();
    let clean = movable(&rig, LARGE);
    evict_all();
    let written = movable_in_vram(&rig, LARGE);
    // It is cleared when it can be read.
    rig.map(written).write(0, 7);
    use_once(&rig, clean);
    before(&rig, clean);
    let vram = rig.region(Place::Vram);
    let large = movable_in_vram(&rig, vram.size - vram.used);
    assert_eq!(rig.map(large).read(0), 0);
    (0..16).for_each(|_| use_once(&rig, large));
    assert_eq!(place(&rig, clean), Place::Vram);
    after(&rig, clean);
    let copied = || Function::first().counters(["copy_vram_to_system"])[0];
    let were_copied = copied();
    rig.bo(Place::Vram, LARGE);
    let leaves = [clean, written, large].map(|handle| place(&rig, handle) == Place::System);
    assert_eq!(leaves, [is_clean, !is_clean, false]);
    let bytes = if is_clean { 0 } else { LARGE };
    assert_eq!(copied() - were_copied, bytes);
    assert_eq!(rig.map(written).read(0), 7);
}

fn what_is_clean_goes_rather_than_what_was_written() {
    first_to_go(|_, _| (), |_, _| (), true);
}

fn what_was_written_goes_before_what_was_just_used() {
    first_to_go(|_, _| (), use_once, false);
}

fn what_is_not_clean_any_more_goes_in_its_turn() {
    first_to_go(|rig, clean| rig.map(clean).write(0, 1), |_, _| (), false);
}

fn by_age_what_was_written_goes_first() {
    let by_age = ByAge::new();
    first_to_go(|_, _| (), |_, _| (), false);
    drop(by_age);
}

fn what_is_being_cleared_is_waited_for() {
    let client = Client::new();
    let region = client.region(Place::Vram);
    for round in 0..8 {
        // Closed before it is cleared: nobody has it, and it is not free.
        let all = client.bo_create(region.size, 0, 1 << region.id);
        let closed = all.and_then(|all| client.close(all));
        assert_eq!(closed, Ok(()), "round {round}");
    }
}

fn a_full_quota_does_not_keep_vram() {
    quiet();
    let (hog, other) = (Client::new(), Client::new());
    let handle = movable_in_vram(&hog, LARGE);
    let system = 1 << hog.region(Place::System).id;
    let mut size = hog.region(Place::System).size / 4;
    while size >= PAGE {
        if hog.bo_create(size, 0, system).is_err() {
            size = size / 2 / PAGE * PAGE;
        }
    }
    assert_eq!(hog.bo_create(PAGE, 0, system), Err(Errno::ENOMEM));
    let vram = other.region(Place::Vram);
    let all = other
        .bo_create(vram.size, 0, 1 << vram.id)
        .expect("BO_CREATE of all VRAM");
    assert_eq!(place(&hog, handle), Place::System);
    assert_eq!(other.close(all), Ok(()));
    // Nor does it get more by that.
    let more = hog.bo_create(PAGE, 0, both(&hog));
    assert_eq!(more, Err(Errno::ENOMEM));
    let more = hog.bo_create(PAGE, 0, 1 << vram.id);
    assert_eq!(
        more,
        Err(Errno::ENOMEM),
        "VRAM alone, which it may have to leave"
    );
}

/// Has a client use up all that it may have of system memory, and have next to nothing: what it
/// offers is thrown away.
fn use_up(client: &Client) {
    let system = 1 << client.region(Place::System).id;
    let mut size = 64 << 20;
    while size >= PAGE {
        match client.bo_create(size, 0, system) {
            Ok(handle) => {
                assert_eq!(client.offer(&[handle], DRM_SKUA_OFFER_LOW), Ok(()));
                press();
            }
            Err(errno) => {
                assert_eq!(errno, Errno::ENOMEM);
                size /= 2;
            }
        }
    }
}

fn nor_does_the_full_one_of_all_clients() {
    let rigs = [alone(), Rig::new().having_worked()];
    let vram = rigs[0].region(Place::Vram);
    let size = vram.size * 3 / 5 / PAGE * PAGE;
    // One of them is out at a time.
    let two = rigs.each_ref().map(|rig| {
        let handle = rig.bo_create(size, 0, 1 << vram.id).expect("BO_CREATE");
        let va = rig.reserve(size);
        let bound = rig.bind_and_wait(rig.vm, &[map(handle, 0, va, size)]);
        assert_eq!(bound, Ok(()));
        (rig, va)
    });
    let hogs = [(); 2].map(|()| Client::new());
    hogs.iter().for_each(use_up);
    let system = rigs[0].region(Place::System);
    assert!(system.used + PAGE > system.size, "{system:?}");
    for round in 1..=3 {
        for (rig, va) in two {
            let work = [write(va, round), write(va + size - 8, !round)];
            assert_eq!(rig.run(Engine::Copy, &work), Ok(()), "round {round}");
        }
    }
    // Nor from anybody new.
    let new = Client::new();
    assert_eq!(new.bo_create(PAGE, 0, 1 << vram.id).map(drop), Ok(()));
    assert_eq!(new.bo_create(PAGE, 0, 1 << system.id), Err(Errno::ENOMEM));
    drop(hogs);
    let again = eventually(|| new.bo_create(PAGE, 0, 1 << system.id).ok());
    assert!(again.is_some(), "nothing was given back");
    for (rig, va) in two {
        expect_gpu(rig, "the content", va, size, |at| match at as u64 {
            0 => 3,
            at if at == size - 8 => !3,
            _ => 0,
        });
    }
}

/// What the CPU does not reach in VRAM is locked in system memory.
fn row_0_18_a_full_quota_refuses_no_lock() {
    let rig = alone();
    let handle = rig.bo_create(LARGE, 0, both(&rig)).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, LARGE);
    let work = [fill(7, va, LARGE)];
    assert_eq!(rig.run(Engine::Compute, &work), Ok(()));
    assert_eq!(place(&rig, handle), Place::Vram);
    use_up(&rig);
    let offset = rig.lock(handle).expect("BO_LOCK");
    assert_eq!(place(&rig, handle), Place::System);
    let len = usize::try_from(LARGE).expect("a length");
    let cpu = Mapping::new(rig.duplicate(), offset, len).expect("mmap");
    cpu.expect("what the GPU wrote", |_| 7 << 32 | 7);
    assert_eq!(rig.unlock(handle), Ok(()));
}

fn an_evicted_object_is_given_back() {
    let rig = alone();
    let va = rig.reserve(LARGE);
    let mut before = None;
    for _ in 0..8 {
        let handle = movable_in_vram(&rig, LARGE);
        assert_eq!(
            rig.bind_and_wait(rig.vm, &[map(handle, 0, va, LARGE)]),
            Ok(())
        );
        assert_eq!(evict_all(), 1);
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, LARGE)]), Ok(()));
        assert_eq!(rig.close(handle), Ok(()));
        // The first one leaves page tables behind.
        let before = before.get_or_insert_with(|| Witness::settled(&rig));
        before.expect_unchanged(&rig);
    }
}

/// An object of a [`worker`], and of what [`pattern`] its content is.
struct Kept {
    buffer: Buffer,
    seed: u64,
}

/// Does so many things, one after the other, with movable objects of its own, and looks at what is
/// in them by CPU and GPU.
fn worker(number: u64, steps: u32) {
    let rig = Rig::new();
    let vram = rig.region(Place::Vram);
    let mut numbers = Numbers(number);
    let mut kept: Vec<Kept> = Vec::new();
    let mut seed = number << 32;
    for step in 0..steps {
        let what = format!("client {number}, step {step}");
        let at = numbers.below(kept.len().max(1));
        seed += 1;
        match (numbers.below(13), kept.get_mut(at)) {
            (0 | 1, _) | (_, None) => {
                let size = [PAGE, 17 * PAGE, 1 << 20, LARGE + PAGE][numbers.below(4)];
                let places = [both(&rig), 1 << vram.id][numbers.below(2)];
                let handle = rig
                    .bo_create(size, DRM_SKUA_BO_CPU_ACCESS, places)
                    .unwrap_or_else(|errno| panic!("{what}: BO_CREATE: {errno}"));
                let buffer = rig.bound(handle, size);
                buffer.cpu.expect(&what, |_| 0);
                buffer.cpu.fill(pattern(seed));
                kept.push(Kept { buffer, seed });
            }
            (2, Some(_)) => {
                let gone = kept.swap_remove(at);
                let unbound = [unmap(gone.buffer.va, gone.buffer.size)];
                assert_eq!(rig.bind_and_wait(rig.vm, &unbound), Ok(()), "{what}");
                assert_eq!(rig.close(gone.buffer.handle), Ok(()), "{what}");
            }
            (3, Some(_)) => evict_some(),
            (4, Some(_)) => {
                // May fail: others do the same.
                if let Ok(large) = rig.bo_create(vram.size / 4, 0, 1 << vram.id) {
                    assert_eq!(rig.close(large), Ok(()), "{what}");
                }
            }
            (8 | 9, Some(one)) => {
                let made = rig.make_resident(&[one.buffer.handle], &[]);
                assert_eq!(made, Ok(()), "{what}");
            }
            (10, Some(one)) => {
                // As often as not it is not.
                let _ = rig.evict(&[one.buffer.handle]);
            }
            (11, Some(_)) => {
                let gone = kept.swap_remove(at);
                let destroyed = rig.destroy(&[gone.buffer.handle], 0);
                assert_eq!(destroyed, Ok(()), "{what}");
            }
            (5, Some(one)) => one.buffer.cpu.expect(&what, pattern(one.seed)),
            (6, Some(one)) => {
                one.buffer.cpu.fill(pattern(seed));
                one.seed = seed;
            }
            (7, Some(one)) => {
                // Elsewhere, while the old address goes.
                let va = rig.reserve(one.buffer.size);
                let ops = [
                    unmap(one.buffer.va, one.buffer.size),
                    map(one.buffer.handle, 0, va, one.buffer.size),
                ];
                assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()), "{what}");
                one.buffer.va = va;
            }
            (_, Some(one)) => {
                let (va, size) = (one.buffer.va, one.buffer.size);
                expect_gpu(&rig, &what, va, size, pattern(one.seed));
                // And what the GPU writes is there, however soon it moves.
                let out = rig.buffer(Place::System, size);
                out.cpu.fill(pattern(seed));
                let job = rig.start(Engine::Copy, &[copy(out.va, va, size)]);
                one.seed = seed;
                if numbers.below(2) == 0 {
                    evict_some();
                }
                assert_eq!(job.wait(), Ok(()), "{what}");
                one.buffer.cpu.expect(&what, pattern(seed));
            }
        }
    }
    for one in &kept {
        let what = format!("client {number}, at its end");
        one.buffer.cpu.expect(&what, pattern(one.seed));
        expect_gpu(
            &rig,
            &what,
            one.buffer.va,
            one.buffer.size,
            pattern(one.seed),
        );
    }
}

fn clients_that_do_all_at_once_keep_their_content() {
    quiet();
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=8)
            .map(|number| scope.spawn(move || worker(number, suite::rounds(60))))
            .collect();
        for worker in workers {
            worker.join().expect("a client");
        }
    });
}
