// SPDX-License-Identifier: MIT

//! MAKE_RESIDENT and EVICT: objects come back to VRAM, and stay there before others.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::client::{map, signal, signal_point, unmap};
use skua_selftests::moving::{
    alone, evict_all, expect_gpu, movable, pattern, place, resident, while_the_cpu_writes,
};
use skua_selftests::raw::in_child;
use skua_selftests::rig::{copy, fill, wait_value, write, Buffer};
use skua_selftests::suite::eventually;
use skua_selftests::witness::shmem;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_1_11_content_and_addresses_stay: 60 at_rest,
        row_1_11_forked_children_go_on_too: 60 at_rest,
        row_1_12_a_writer_notices_nothing: 240 at_rest,
        row_1_16_work_that_runs_is_waited_for: 60 at_rest,
        work_that_comes_meanwhile_waits: 60 at_rest,
        parts_of_mappings_come_back: 60 at_rest,
        resident_objects_are_no_victims: 60 at_rest,
        residency_is_counted: 60 at_rest,
        residency_ends_with_the_handle: 60 at_rest,
        the_signal_follows_the_moves: 60 at_rest,
        old_pages_are_given_back: 60 at_rest,
        what_cannot_be_there_is_resident_where_it_is: 60 at_rest,
        what_has_arrived_can_leave_at_once: 60 at_rest,
    ])
}

/// An object that has moved out, and nobody has made resident.
#[track_caller]
fn evicted(rig: &Rig, size: u64, content: impl Fn(usize) -> u64) -> Buffer {
    let buffer = rig.bound(movable(rig, size), size);
    buffer.cpu.fill(content);
    evict_all();
    assert_eq!(place(rig, buffer.handle), Place::System);
    buffer
}

fn row_1_11_content_and_addresses_stay() {
    let rig = alone();
    for size in [PAGE, 64 << 10, LARGE + PAGE, 5 * LARGE] {
        let what = format!("{size:#x} bytes");
        let buffer = evicted(&rig, size, pattern(size));
        // The GPU knows where it was.
        expect_gpu(&rig, &what, buffer.va, size, pattern(size));
        for round in 0..3 {
            resident(&rig, &[buffer.handle]);
            assert_eq!(place(&rig, buffer.handle), Place::Vram, "{what}");
            buffer.cpu.expect(&what, pattern(size ^ round));
            expect_gpu(&rig, &what, buffer.va, size, pattern(size ^ round));
            // It goes on as before, for both.
            assert_eq!(
                rig.run(Engine::Compute, &[fill(3, buffer.va, size)]),
                Ok(())
            );
            buffer.cpu.expect(&what, |_| 3 << 32 | 3);
            buffer.cpu.fill(pattern(size ^ (round + 1)));
            assert_eq!(evict_all(), 1);
            buffer.cpu.expect(&what, pattern(size ^ (round + 1)));
        }
    }
}

fn row_1_11_forked_children_go_on_too() {
    let rig = alone();
    let buffer = evicted(&rig, LARGE, pattern(1));
    assert!(in_child(|| {
        resident(&rig, &[buffer.handle]);
        let stays = buffer.cpu.differs(pattern(1)).is_none();
        buffer.cpu.fill(pattern(2));
        stays
    }));
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    buffer.cpu.expect("for the parent", pattern(2));
    expect_gpu(&rig, "for the GPU", buffer.va, LARGE, pattern(2));
}

fn row_1_12_a_writer_notices_nothing() {
    // Much that takes long to move, and little that moves often.
    for (size, rounds) in [(2 * LARGE, 20), (16 * PAGE, suite::rounds(1000))] {
        let rig = alone();
        let buffer = rig.bound(movable(&rig, size), size);
        while_the_cpu_writes(&buffer.cpu, || {
            for round in 0..rounds {
                assert_eq!(evict_all(), 1, "round {round} of {size:#x}");
                resident(&rig, &[buffer.handle]);
            }
        });
    }
}

fn row_1_16_work_that_runs_is_waited_for() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let buffer = evicted(&rig, LARGE, pattern(1));
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), fill(7, buffer.va, LARGE)],
    );
    let done = rig.syncobj();
    assert_eq!(rig.make_resident(&[buffer.handle], &[signal(done)]), Ok(()));
    thread::sleep(Duration::from_millis(50));
    assert!(!rig.has_signalled(done), "it did not wait");
    gate.cpu.write(0, 1);
    assert_eq!((rig.wait(done), job.wait()), (Ok(()), Ok(())));
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    buffer.cpu.expect("the last write", |_| 7 << 32 | 7);
    expect_gpu(&rig, "for the GPU", buffer.va, LARGE, |_| 7 << 32 | 7);
}

fn work_that_comes_meanwhile_waits() {
    let rig = alone();
    let out = rig.buffer(Place::System, 4 * LARGE);
    let buffer = evicted(&rig, 4 * LARGE, pattern(1));
    for round in 0..8 {
        // Nobody waits for the move but the work itself.
        assert_eq!(rig.make_resident(&[buffer.handle], &[]), Ok(()));
        assert_eq!(place(&rig, buffer.handle), Place::Vram, "round {round}");
        let job = rig.start(
            Engine::Copy,
            &[copy(buffer.va, out.va, 4 * LARGE), write(buffer.va, round)],
        );
        assert_eq!(job.wait(), Ok(()));
        let before = |offset| match (offset, round) {
            (0, 0) => pattern(1)(0),
            (0, _) => round - 1,
            _ => pattern(1)(offset),
        };
        out.cpu.expect("what was there", before);
        assert_eq!(buffer.cpu.read(0), round);
        assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
        let moved = evict_all();
        let there = place(&rig, buffer.handle);
        assert_eq!((moved, there), (1, Place::System), "round {round}");
    }
}

fn parts_of_mappings_come_back() {
    let rig = alone();
    let handle = movable(&rig, LARGE);
    let cpu = rig.map(handle);
    cpu.fill(pattern(1));
    let va = rig.reserve(4 * LARGE);
    let other = rig.vm_create().expect("VM_CREATE");
    let ops = [
        map(handle, 0, va, LARGE),
        unmap(va + PAGE, PAGE),
        map(handle, 16 * PAGE, va + 2 * LARGE, PAGE),
    ];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(rig.bind_and_wait(other, &ops), Ok(()));
    assert_eq!(evict_all(), 1);
    resident(&rig, &[handle]);
    expect_gpu(&rig, "the beginning", va, PAGE, pattern(1));
    let at = |offset: u64| move |n| pattern(1)(n + offset as usize);
    expect_gpu(&rig, "behind a hole", va + 2 * PAGE, PAGE, at(2 * PAGE));
    expect_gpu(&rig, "a part", va + 2 * LARGE, PAGE, at(16 * PAGE));
    let late = rig.start(Engine::Copy, &[write(va + PAGE, 1)]);
    assert_eq!(late.wait(), Err(Errno::EFAULT));
}

/// Objects of a client that leave no room for `left` bytes in VRAM.
fn crowd(client: &Client, left: u64) -> Vec<u32> {
    let region = client.region(Place::Vram);
    let count = (region.size - region.used - left) / LARGE;
    (0..count).map(|_| movable(client, LARGE)).collect()
}

fn resident_objects_are_no_victims() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig, 0);
    resident(&rig, &mine);
    // Who merely prefers VRAM goes elsewhere.
    let theirs = movable(&other, LARGE);
    assert_eq!(place(&other, theirs), Place::System);
    resident(&other, &[theirs]);
    assert_eq!(place(&other, theirs), Place::System);
    assert!(mine.iter().all(|mine| place(&rig, *mine) == Place::Vram));
    // What is resident for nobody makes room for who wants to be.
    assert_eq!(rig.evict(&mine[..1]), Ok(()));
    resident(&other, &[theirs]);
    assert_eq!(place(&other, theirs), Place::Vram);
    assert_eq!(place(&rig, mine[0]), Place::System);
    assert!(mine[1..]
        .iter()
        .all(|mine| place(&rig, *mine) == Place::Vram));
    // Who has nowhere else to go comes first all the same.
    let vram = 1 << rig.region(Place::Vram).id;
    assert!(other.bo_create(LARGE, 0, vram).is_ok());
    let gone = mine[1..]
        .iter()
        .filter(|mine| place(&rig, **mine) == Place::System);
    assert_eq!(
        gone.count() + usize::from(place(&other, theirs) == Place::System),
        1
    );
}

fn residency_is_counted() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig, 0);
    let (first, rest) = mine.split_first().expect("an object");
    assert_eq!(rig.evict(&[*first]), Err(Errno::EINVAL));
    resident(&rig, rest);
    resident(&rig, &[*first]);
    resident(&rig, &[*first]);
    assert_eq!(rig.evict(&[*first]), Ok(()));
    // Once is enough.
    let theirs = movable(&other, LARGE);
    resident(&other, &[theirs]);
    assert_eq!(place(&rig, *first), Place::Vram);
    // All or none.
    let strange = rig.bo(Place::System, PAGE);
    let mut wrong = mine.clone();
    wrong.insert(mine.len() / 2, strange);
    assert_eq!(rig.evict(&wrong), Err(Errno::EINVAL));
    resident(&other, &[theirs]);
    assert_eq!(place(&rig, *first), Place::Vram);
    assert_eq!(place(&other, theirs), Place::System);
    // Another client's count is its own.
    assert_eq!(other.evict(&[theirs]), Ok(()));
    assert_eq!(rig.evict(&[*first]), Ok(()));
    assert_eq!(rig.evict(&[*first]), Err(Errno::EINVAL));
    resident(&other, &[theirs]);
    assert_eq!(place(&other, theirs), Place::Vram);
    assert_eq!(place(&rig, *first), Place::System);
}

fn residency_ends_with_the_handle() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig, 0);
    resident(&rig, &mine);
    let shared = rig.export(mine[0]).expect("PRIME_HANDLE_TO_FD");
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    resident(&other, &[theirs]);
    let new = movable(&other, LARGE);
    assert_eq!(place(&other, new), Place::System);
    // Two clients: one is left.
    assert_eq!(rig.close(mine[0]), Ok(()));
    resident(&other, &[new]);
    assert_eq!(place(&other, new), Place::System);
    assert_eq!(other.close(theirs), Ok(()));
    let again = rig.import(&shared).expect("PRIME_FD_TO_HANDLE");
    resident(&other, &[new]);
    assert_eq!(place(&other, new), Place::Vram);
    assert_eq!(place(&rig, again), Place::System);
    assert_eq!(rig.evict(&[again]), Err(Errno::EINVAL));
}

fn the_signal_follows_the_moves() {
    let rig = alone();
    let buffers: Vec<_> = (0..4)
        .map(|_| rig.bound(movable(&rig, LARGE), LARGE))
        .collect();
    for buffer in &buffers {
        buffer.cpu.fill(pattern(buffer.va));
    }
    assert_eq!(evict_all(), 4);
    let handles: Vec<u32> = buffers.iter().map(|buffer| buffer.handle).collect();
    let (binary, timeline) = (rig.syncobj(), rig.syncobj());
    let signals = [signal(binary), signal_point(timeline, 3)];
    assert_eq!(rig.make_resident(&handles, &signals), Ok(()));
    assert_eq!(rig.wait_point(timeline, 3), Ok(()));
    assert_eq!(rig.wait(binary), Ok(()));
    let used = rig.region(Place::Vram).used;
    assert!(used >= 4 * LARGE);
    for buffer in &buffers {
        assert_eq!(place(&rig, buffer.handle), Place::Vram);
        buffer.cpu.expect("content", pattern(buffer.va));
    }
    // There is nothing to wait for.
    let done = rig.syncobj();
    assert_eq!(rig.make_resident(&handles, &[signal(done)]), Ok(()));
    assert!(rig.has_signalled(done));
}

fn old_pages_are_given_back() {
    let rig = alone();
    let size = 4 * LARGE;
    let buffer = evicted(&rig, size, |_| 1);
    let (with, pages) = (rig.region(Place::System).used, shmem());
    resident(&rig, &[buffer.handle]);
    let gone = eventually(|| {
        let used = rig.region(Place::System).used;
        // The kernel's counters are not exact.
        (used + size <= with && shmem() + size / 4 * 3 <= pages).then_some(())
    });
    let left = (rig.region(Place::System).used, shmem());
    assert!(gone.is_some(), "{left:?} of {with} and {pages}");
    // And what is there next is what was in VRAM.
    buffer.cpu.fill(pattern(5));
    assert_eq!(evict_all(), 1);
    buffer.cpu.expect("content", pattern(5));
}

fn what_cannot_be_there_is_resident_where_it_is() {
    let rig = alone();
    let system = rig.bo(Place::System, LARGE);
    let vram = rig.bo(Place::Vram, LARGE);
    resident(&rig, &[system, vram]);
    assert_eq!(place(&rig, system), Place::System);
    assert_eq!(place(&rig, vram), Place::Vram);
    // More than VRAM can have.
    let size = rig.region(Place::Vram).size + LARGE;
    let large = movable(&rig, size);
    resident(&rig, &[large]);
    assert_eq!(place(&rig, large), Place::System);
    assert_eq!(rig.evict(&[system, vram, large]), Ok(()));
}

/// The next move begins before the pages that the last one left are gone.
fn what_has_arrived_can_leave_at_once() {
    let rig = alone();
    let buffer = evicted(&rig, LARGE, pattern(1));
    let mut left = 0;
    let rounds = u64::from(suite::rounds(100));
    for round in 0..rounds {
        assert_eq!(rig.make_resident(&[buffer.handle], &[]), Ok(()));
        assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
        // Before it is there it does not leave.
        left += evict_all();
        buffer
            .cpu
            .expect(&format!("round {round}"), pattern(round + 1));
        buffer.cpu.fill(pattern(round + 2));
    }
    assert!(left > 1, "{left}");
    expect_gpu(&rig, "at last", buffer.va, LARGE, pattern(rounds + 1));
}
