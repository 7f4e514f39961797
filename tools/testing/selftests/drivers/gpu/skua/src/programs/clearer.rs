// SPDX-License-Identifier: MIT

//! VRAM that was freed is cleared while the engine for paging has nothing to do.

use std::process::ExitCode;
use std::thread;

use skua_guest::host::expect_error;
use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::{both, expect_gpu, movable_in_vram, pattern, place, Uncleared};
use skua_selftests::rig::fill;
use skua_selftests::suite::{eventually, rounds};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};

const SIZE: u64 = 4 << 20;
const CANARY: u32 = 0xc0ff_ee22;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        what_is_freed_becomes_clean_by_itself: 60 at_rest,
        what_is_clean_is_not_cleared_again: 60 at_rest,
        of_what_is_new_the_dirty_part_is_cleared: 60 at_rest,
        nobody_sees_what_is_being_cleared: 120 at_rest,
        nobody_lacks_what_is_being_cleared: 120 at_rest,
        nobody_leaves_for_what_is_being_cleared: 120 at_rest,
        debugfs_has_it_stop: 60 at_rest,
        a_reset_meets_it: 120 at_rest,
        an_unbind_meets_it: 120 at_rest,
    ])
}

/// A device that was bound just now: nobody has had its VRAM.
#[track_caller]
fn begin() {
    drop(Unbound::first());
    assert_eq!(Function::first().clean(), (0, false));
}

/// Bytes that engines have filled; times that free memory was cleared, and bytes; objects that were
/// made without.
#[track_caller]
fn counted() -> [u64; 4] {
    Function::first().counters([
        "fill_bytes",
        "driver_background_clears",
        "driver_background_clear_bytes",
        "driver_clean_creations",
    ])
}

/// Waits until nothing is dirty; how much is clean then.
#[track_caller]
fn clean() -> u64 {
    let clean = eventually(|| match Function::first().clean() {
        (bytes, false) => Some(bytes),
        _ => None,
    });
    clean.unwrap_or_else(|| panic!("it is not cleared: {:?}", Function::first().clean()))
}

/// Has an object of VRAM, all of it canaries, be closed; when it is free.
#[track_caller]
fn leave_canaries(rig: &Rig, size: u64) {
    let handle = rig.bo(Place::Vram, size);
    let va = rig.bound_at_will(handle, size);
    assert_eq!(rig.run(Engine::Copy, &[fill(CANARY, va, size)]), Ok(()));
    let used = rig.region(Place::Vram).used;
    assert_eq!(rig.destroy_synchronously(&[handle], 0), Ok(()));
    let is_free = || (rig.region(Place::Vram).used + size <= used).then_some(());
    assert!(eventually(is_free).is_some(), "it is not given back");
}

fn what_is_freed_becomes_clean_by_itself() {
    begin();
    let rig = Rig::new().having_worked();
    Function::first().at_rest();
    let (before, was_clean) = (counted(), clean());
    leave_canaries(&rig, SIZE);
    let new = clean() - was_clean;
    let after = counted();
    println!("# {before:?}, then {after:?}, {new:#x} new");
    assert_eq!(after[2] - before[2], SIZE);
    assert!(after[1] > before[1]);
    // What was not clean for its owner, then what that wrote, then for the next.
    assert_eq!(after[0] - before[0], new + 2 * SIZE);
    // Then nothing is left to do.
    Function::first().at_rest();
    let [_, clears, ..] = counted();
    assert_eq!(clears, after[1]);
}

fn what_is_clean_is_not_cleared_again() {
    begin();
    let rig = Rig::new().having_worked();
    leave_canaries(&rig, SIZE);
    let was_clean = clean();
    for round in 1..=3 {
        Function::first().at_rest();
        let before = counted();
        // Of two, as few blocks as there can be.
        let new = [rig.bo(Place::Vram, SIZE / 2), rig.bo(Place::Vram, SIZE / 4)];
        let after = counted();
        assert_eq!(after[0], before[0], "round {round}: bytes were filled");
        assert_eq!(after[3], before[3] + 2, "round {round}");
        for (handle, size) in new.into_iter().zip([SIZE / 2, SIZE / 4]) {
            let buffer = rig.bound(handle, size);
            buffer.cpu.expect("by the CPU", |_| 0);
            expect_gpu(&rig, "by the GPU", buffer.va, size, |_| 0);
            buffer.cpu.fill(pattern(round));
            assert_eq!(rig.destroy_synchronously(&[handle], 0), Ok(()));
        }
        assert_eq!(clean(), was_clean, "round {round}");
    }
}

fn of_what_is_new_the_dirty_part_is_cleared() {
    begin();
    let rig = Rig::new();
    leave_canaries(&rig, SIZE);
    let clean = clean();
    assert!(clean >= SIZE);
    Function::first().at_rest();
    let before = counted();
    // More than is clean: nobody has had the rest.
    let region = rig.region(Place::Vram);
    let size = region.size - region.used;
    let new = rig.bo(Place::Vram, size);
    rig.map(new).expect("new memory", |_| 0);
    let after = counted();
    assert_eq!(after[0] - before[0], size - clean);
    assert_eq!(after[3], before[3], "it was not all clean");
}

/// Who gets memory while other memory is being cleared, or the same is about to be.
fn nobody_sees_what_is_being_cleared() {
    quiet();
    let rig = Rig::new();
    for round in 0..rounds(12) {
        leave_canaries(&rig, 40 << 20);
        let new: Vec<u32> = (0..8).map(|_| rig.bo(Place::Vram, SIZE)).collect();
        for handle in &new {
            rig.map(*handle).expect("new memory", |_| 0);
        }
        let va = rig.bound_at_will(new[0], SIZE);
        expect_gpu(&rig, &format!("round {round}"), va, SIZE, |_| 0);
        // What is written now stays, whatever is cleared behind it.
        let maps: Vec<_> = new.iter().map(|handle| rig.map(*handle)).collect();
        maps.iter().for_each(|map| map.fill(pattern(round.into())));
        clean();
        maps.iter()
            .for_each(|map| map.expect("its bytes", pattern(round.into())));
        drop(maps);
        assert_eq!(rig.destroy_synchronously(&new, 0), Ok(()));
    }
}

fn nobody_lacks_what_is_being_cleared() {
    quiet();
    let client = Client::new();
    let region = client.region(Place::Vram);
    for round in 0..rounds(40) {
        // All there is, of which some is just being cleared.
        let all = client.bo_create(region.size, 0, 1 << region.id);
        let all = all.unwrap_or_else(|errno| panic!("round {round}: {errno}"));
        assert_eq!(client.destroy_synchronously(&[all], 0), Ok(()));
    }
}

fn nobody_leaves_for_what_is_being_cleared() {
    quiet();
    let client = Client::new();
    let stays = movable_in_vram(&client, SIZE);
    let region = client.region(Place::Vram);
    let count = || Function::first().counters(["driver_evictions"]);
    Function::first().at_rest();
    let before = count();
    for round in 0..rounds(40) {
        let rest = client.bo_create(region.size - SIZE, 0, both(&client));
        let rest = rest.expect("BO_CREATE");
        assert_eq!(place(&client, rest), Place::Vram, "round {round}");
        assert_eq!(client.destroy_synchronously(&[rest], 0), Ok(()));
    }
    assert_eq!(place(&client, stays), Place::Vram);
    assert_eq!(count(), before);
}

fn debugfs_has_it_stop() {
    begin();
    let rig = Rig::new().having_worked();
    leave_canaries(&rig, SIZE);
    assert!(clean() >= SIZE);
    let uncleared = Uncleared::new();
    assert_eq!(Function::first().clean(), (0, false));
    let before = counted();
    leave_canaries(&rig, SIZE);
    Function::first().at_rest();
    let after = counted();
    assert_eq!(after[1..], before[1..]);
    // For its owner, who writes it.
    assert_eq!(after[0] - before[0], 2 * SIZE);
    drop(uncleared);
    assert_eq!(clean(), SIZE);
    assert_eq!(counted()[2] - before[2], SIZE);
}

fn a_reset_meets_it() {
    expect_error("the adapter was reset").expect("the kernel's log");
    // Which it bears so often.
    for round in 0..4 {
        quiet();
        let rig = Rig::new();
        leave_canaries(&rig, 40 << 20);
        Function::first().debugfs("reset").expect("debugfs");
        assert!(clean() >= 40 << 20, "round {round}");
        drop(rig);
        let client = Client::new();
        for _ in 0..12 {
            let new = client.bo(Place::Vram, SIZE);
            client.map(new).expect("new memory", |_| 0);
        }
    }
}

fn an_unbind_meets_it() {
    for _ in 0..rounds(8) {
        quiet();
        let rig = Rig::new();
        leave_canaries(&rig, 40 << 20);
        // Whose clients go on with nothing.
        thread::scope(|scope| {
            scope.spawn(|| drop(rig));
            drop(Unbound::first());
        });
        let client = Client::new();
        for _ in 0..12 {
            let new = client.bo(Place::Vram, SIZE);
            client.map(new).expect("new memory", |_| 0);
        }
    }
}
