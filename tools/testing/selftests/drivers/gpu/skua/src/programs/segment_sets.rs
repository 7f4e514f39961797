// SPDX-License-Identifier: MIT

//! The order in which an object's places are tried, and its eviction set. The guest has a small
//! aperture, of [`WINDOW`] bytes.

use std::process::ExitCode;

use skua_selftests::client::unmap;
use skua_selftests::moving::{alone, evict_all, expect_gpu, pattern, place, resident};
use skua_selftests::raw::in_child;
use skua_selftests::rig::{fill, Buffer};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::{DRM_SKUA_BO_CACHED, DRM_SKUA_BO_CPU_ACCESS};
use Place::{Aperture, System, Vram};

const PAGE: u64 = 4096;
const WINDOW: u64 = 64 * PAGE;
const SIZE: u64 = 8 * PAGE;
const ALL: [Place; 3] = [Vram, Aperture, System];

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        they_are_told_back,
        the_first_of_the_order_is_taken: 60 at_rest,
        what_prefers_another_place_does_not_come_to_vram: 60 at_rest,
        a_full_aperture_has_the_next_one_taken: 60 at_rest,
        full_vram_has_the_next_one_taken: 60 at_rest,
        full_system_memory_has_the_next_one_taken: 120 at_rest,
        who_has_neither_takes_what_others_can_do_without: 60 at_rest,
        what_leaves_goes_where_its_eviction_set_says: 60 at_rest,
        what_finds_no_room_there_leaves_all_the_same: 60 at_rest,
        a_child_that_evicts_keeps_to_the_set: 60 at_rest,
        what_is_made_resident_comes_to_the_first_that_has_room: 60 at_rest,
        work_brings_it_to_the_first_that_has_room: 60 at_rest,
        row_0_16_what_is_cached_is_locked_where_its_set_says: 60 at_rest,
        row_0_20_what_is_hidden_is_locked_where_its_set_says: 60 at_rest,
    ])
}

/// An object for the CPU with these places, an order and an eviction set, bound, and filled with a
/// [`pattern`] of its own.
#[track_caller]
fn buffer(rig: &Rig, places: &[Place], preferred: &[Place], eviction: &[Place]) -> Buffer {
    let flags = DRM_SKUA_BO_CPU_ACCESS;
    let handle = rig.bo_create_preferring(SIZE, flags, rig.set(places), preferred, eviction);
    let buffer = rig.bound(handle.expect("BO_CREATE"), SIZE);
    buffer.cpu.expect("new memory", |_| 0);
    buffer.cpu.fill(pattern(SIZE));
    buffer
}

/// It is in one place, and both sides find there what was in it.
#[track_caller]
fn expect_in(rig: &Rig, buffer: &Buffer, at: Place, what: &str) {
    assert_eq!(place(rig, buffer.handle), at, "{what}");
    buffer.cpu.expect(what, pattern(SIZE));
    expect_gpu(rig, what, buffer.va, buffer.size, pattern(SIZE));
    assert_eq!(place(rig, buffer.handle), at, "{what}, used");
}

#[track_caller]
fn give_up(rig: &Rig, buffer: Buffer) {
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[unmap(buffer.va, buffer.size)]),
        Ok(())
    );
    assert_eq!(rig.close(buffer.handle), Ok(()));
}

/// What has all of the aperture, and may be nowhere else.
#[track_caller]
fn full_aperture(client: &Client) -> u32 {
    let handle = client.bo(Aperture, WINDOW);
    let region = client.region(Aperture);
    assert_eq!(region.used, region.size);
    handle
}

/// Calls `during` while all has left VRAM that may, and nobody the aperture.
#[track_caller]
fn without_vram(client: &Client, during: impl FnOnce()) {
    let all = client.bo(Vram, client.region(Vram).size);
    during();
    assert_eq!(client.close(all), Ok(()));
}

/// Every list of different places of some.
fn orders(places: &[Place]) -> Vec<Vec<Place>> {
    let mut orders = vec![Vec::new()];
    for first in places {
        let others: Vec<_> = places.iter().copied().filter(|it| it != first).collect();
        let with = |rest: Vec<Place>| [vec![*first], rest].concat();
        orders.extend(self::orders(&others).into_iter().map(with));
    }
    orders
}

/// Every set of some places.
fn sets(places: &[Place]) -> Vec<Vec<Place>> {
    let set = |bits: usize| {
        let is_in = |at: &usize| bits >> at & 1 != 0;
        (0..places.len())
            .filter(is_in)
            .map(|at| places[at])
            .collect()
    };
    (0..1 << places.len()).map(set).collect()
}

fn they_are_told_back() {
    let client = alone();
    for places in sets(&ALL) {
        let exits: &[Place] = match (places.contains(&Vram), places.contains(&Aperture)) {
            (true, true) => &[Aperture, System],
            (true, false) => &[System],
            (false, _) => &[],
        };
        for preferred in orders(&places) {
            for eviction in sets(exits).into_iter().filter(|_| !places.is_empty()) {
                let placements = client.set(&places);
                let handle =
                    client.bo_create_preferring(PAGE, 0, placements, &preferred, &eviction);
                let handle = handle.expect("BO_CREATE");
                let info = client.info(handle).expect("BO_INFO");
                assert_eq!(info.placements, placements);
                assert_eq!(info.preferred, client.order(&preferred), "{preferred:?}");
                assert_eq!(info.eviction_set, client.set(&eviction), "{eviction:?}");
                assert_eq!(client.close(handle), Ok(()));
            }
        }
    }
}

fn the_first_of_the_order_is_taken() {
    let rig = alone();
    for places in sets(&ALL).into_iter().filter(|places| !places.is_empty()) {
        for preferred in orders(&places) {
            // Those that nobody has named come behind, as they do where none is named.
            let first = preferred.first().unwrap_or(&places[0]);
            let buffer = buffer(&rig, &places, &preferred, &[]);
            expect_in(&rig, &buffer, *first, &format!("{places:?}, {preferred:?}"));
            give_up(&rig, buffer);
        }
    }
}

fn what_prefers_another_place_does_not_come_to_vram() {
    let rig = alone();
    for (places, preferred) in [
        (&[Vram, System][..], &[System][..]),
        (&ALL, &[System]),
        (&ALL, &[System, Vram]),
        (&[Vram, Aperture], &[Aperture]),
        (&ALL, &[Aperture]),
        (&ALL, &[Aperture, Vram]),
    ] {
        let what = format!("{places:?}, {preferred:?}");
        let buffer = buffer(&rig, places, preferred, &[]);
        expect_in(&rig, &buffer, preferred[0], &what);
        let before = rig.region(Vram).used;
        resident(&rig, &[buffer.handle]);
        expect_in(&rig, &buffer, preferred[0], &what);
        rig.lock(buffer.handle).expect("BO_LOCK");
        assert_eq!(rig.unlock(buffer.handle), Ok(()));
        expect_in(&rig, &buffer, preferred[0], &what);
        assert_eq!(rig.region(Vram).used, before, "{what}");
        give_up(&rig, buffer);
    }
}

fn a_full_aperture_has_the_next_one_taken() {
    let (rig, other) = (alone(), Client::new());
    let full = full_aperture(&other);
    for (places, preferred, second) in [
        (&[Aperture, System][..], &[Aperture][..], System),
        (&[Vram, Aperture], &[Aperture], Vram),
        (&ALL, &[Aperture], Vram),
        (&ALL, &[Aperture, System], System),
        (&ALL, &[Aperture, System, Vram], System),
    ] {
        let buffer = buffer(&rig, places, preferred, &[]);
        expect_in(&rig, &buffer, second, &format!("{places:?}, {preferred:?}"));
        give_up(&rig, buffer);
    }
    assert_eq!(place(&other, full), Aperture);
}

fn full_vram_has_the_next_one_taken() {
    let (rig, other) = (alone(), Client::new());
    let full = other.bo(Vram, other.region(Vram).size);
    resident(&other, &[full]);
    for (places, preferred, second) in [
        (&[Vram, System][..], &[][..], System),
        (&[Vram, Aperture], &[], Aperture),
        (&ALL, &[], Aperture),
        (&ALL, &[Vram, System], System),
        (&ALL, &[Vram, Aperture], Aperture),
    ] {
        let buffer = buffer(&rig, places, preferred, &[]);
        expect_in(&rig, &buffer, second, &format!("{places:?}, {preferred:?}"));
        give_up(&rig, buffer);
    }
    assert_eq!(place(&other, full), Vram);
}

fn full_system_memory_has_the_next_one_taken() {
    let client = alone();
    let system = client.set(&[System]);
    let mut size = client.region(System).size / 4;
    while size >= PAGE {
        if client.bo_create(size, 0, system).is_err() {
            size = size / 2 / PAGE * PAGE;
        }
    }
    // The aperture is system memory, too.
    for (places, preferred) in [
        (&[Vram, System][..], &[System][..]),
        (&[Vram, Aperture], &[Aperture]),
        (&ALL, &[System]),
        (&ALL, &[System, Aperture]),
        (&ALL, &[Aperture, System, Vram]),
    ] {
        let placements = client.set(places);
        let handle = client.bo_create_preferring(PAGE, 0, placements, preferred, &[]);
        let handle = handle.unwrap_or_else(|errno| panic!("{places:?}, {preferred:?}: {errno}"));
        assert_eq!(place(&client, handle), Vram, "{places:?}, {preferred:?}");
        assert_eq!(client.close(handle), Ok(()));
    }
    let both = client.set(&[Aperture, System]);
    let refused = client.bo_create_preferring(PAGE, 0, both, &[Aperture], &[]);
    assert_eq!(refused, Err(Errno::ENOMEM));
}

fn who_has_neither_takes_what_others_can_do_without() {
    let (rig, other) = (alone(), Rig::new());
    let full = other.bo(Vram, other.region(Vram).size);
    resident(&other, &[full]);
    let movable = other.bo_create(WINDOW, 0, other.set(&[Aperture, System]));
    let movable = movable.expect("BO_CREATE");
    assert_eq!(place(&other, movable), Aperture);
    // Nothing is copied for that: so it comes first.
    let first = buffer(&rig, &[Vram, Aperture], &[Aperture], &[]);
    expect_in(&rig, &first, Aperture, "others can be elsewhere");
    assert_eq!(
        (place(&other, movable), place(&other, full)),
        (System, Vram)
    );
    give_up(&rig, first);
    let alone = full_aperture(&other);
    let second = buffer(&rig, &[Vram, Aperture], &[Aperture], &[]);
    expect_in(&rig, &second, Vram, "what is resident has to leave");
    assert_eq!(
        (place(&other, alone), place(&other, full)),
        (Aperture, System)
    );
    give_up(&rig, second);
}

fn what_leaves_goes_where_its_eviction_set_says() {
    let rig = alone();
    for (places, preferred, eviction, to) in [
        (&[Vram, System][..], &[][..], &[][..], System),
        (&[Vram, System], &[], &[System], System),
        (&[Vram, Aperture], &[], &[], Aperture),
        (&[Vram, Aperture], &[], &[Aperture], Aperture),
        (&[Vram, Aperture], &[], &[Aperture, System], Aperture),
        (&ALL, &[], &[], Aperture),
        (&ALL, &[], &[Aperture], Aperture),
        (&ALL, &[], &[Aperture, System], Aperture),
        // Though the aperture has room.
        (&ALL, &[], &[System], System),
        (&ALL, &[Vram, System], &[], System),
        (&ALL, &[Vram, System], &[Aperture, System], System),
        (&ALL, &[Vram, System], &[Aperture], Aperture),
    ] {
        let what = format!("{places:?}, {preferred:?}, {eviction:?}");
        let buffer = buffer(&rig, places, preferred, eviction);
        expect_in(&rig, &buffer, Vram, &what);
        without_vram(&rig, || expect_in(&rig, &buffer, to, &what));
        // Nobody may write it any more: it may leave with a clean copy.
        let unbind = [unmap(buffer.va, SIZE)];
        assert_eq!(rig.bind_and_wait(rig.vm, &unbind), Ok(()));
        resident(&rig, &[buffer.handle]);
        assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
        assert_eq!(place(&rig, buffer.handle), Vram, "{what}");
        without_vram(&rig, || ());
        assert_eq!(place(&rig, buffer.handle), to, "{what}");
        buffer.cpu.expect(&what, pattern(SIZE));
        assert_eq!(rig.close(buffer.handle), Ok(()));
    }
    // What is in neither is out, and comes back.
    let buffer = buffer(&rig, &[Vram, Aperture], &[], &[System]);
    for _ in 0..2 {
        assert_eq!(evict_all(), 1);
        assert_eq!(place(&rig, buffer.handle), System);
        buffer.cpu.expect("out", pattern(SIZE));
        expect_gpu(&rig, "back", buffer.va, SIZE, pattern(SIZE));
        expect_in(&rig, &buffer, Vram, "back");
    }
}

fn what_finds_no_room_there_leaves_all_the_same() {
    let (rig, other) = (alone(), Rig::new());
    let full = full_aperture(&other);
    let buffers =
        [&[Vram, Aperture][..], &ALL].map(|places| buffer(&rig, places, &[], &[Aperture]));
    // Nobody keeps VRAM by a set for which there is no room.
    let vram = other.bo(Vram, other.region(Vram).size);
    assert_eq!((place(&other, vram), place(&other, full)), (Vram, Aperture));
    for buffer in &buffers {
        assert_eq!(place(&rig, buffer.handle), System);
        buffer.cpu.expect("out", pattern(SIZE));
    }
    let [out, movable] = buffers;
    expect_in(&rig, &movable, System, "the GPU reaches it there");
    expect_gpu(&rig, "what was out", out.va, SIZE, pattern(SIZE));
    expect_in(&rig, &out, Vram, "what was out");
}

fn a_child_that_evicts_keeps_to_the_set() {
    let rig = alone();
    let buffer = buffer(&rig, &ALL, &[], &[System]);
    assert!(in_child(|| {
        let moved = evict_all();
        moved == 1 && buffer.cpu.differs(pattern(SIZE)).is_none()
    }));
    expect_in(&rig, &buffer, System, "evicted by a child");
    // The order is the object's, not the client's.
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let other = Rig::new();
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    assert_eq!(
        other.info(theirs).expect("BO_INFO").eviction_set,
        other.set(&[System])
    );
    resident(&other, &[theirs]);
    assert_eq!(other.evict(&[theirs]), Ok(()));
    expect_in(&rig, &buffer, Vram, "brought back by another client");
    assert_eq!(evict_all(), 1);
    expect_in(&rig, &buffer, System, "evicted again");
}

fn what_is_made_resident_comes_to_the_first_that_has_room() {
    let (rig, other) = (alone(), Client::new());
    for (preferred, eviction, comes_to, if_full) in [
        (&[][..], &[System][..], Vram, Vram),
        (&[Vram, System], &[], Vram, Vram),
        (&[Aperture], &[System], Aperture, Vram),
        (&[Aperture, System], &[System], Aperture, System),
        (&[System], &[System], System, System),
    ] {
        let what = format!("{preferred:?}, {eviction:?}");
        for is_full in [false, true] {
            let buffer = buffer(&rig, &ALL, preferred, eviction);
            // What is in the aperture leaves that for system memory, whatever the set says.
            evict_all();
            expect_in(&rig, &buffer, System, &what);
            let full = is_full.then(|| full_aperture(&other));
            resident(&rig, &[buffer.handle]);
            let expected = if is_full { if_full } else { comes_to };
            expect_in(
                &rig,
                &buffer,
                expected,
                &format!("{what}, the aperture full: {is_full}"),
            );
            if let Some(full) = full {
                assert_eq!(other.close(full), Ok(()));
                // There it is resident, and stays.
                resident(&rig, &[buffer.handle]);
                let expected = if if_full == System { comes_to } else { if_full };
                expect_in(&rig, &buffer, expected, &what);
            }
            give_up(&rig, buffer);
        }
    }
}

fn work_brings_it_to_the_first_that_has_room() {
    let (rig, other) = (alone(), Client::new());
    let both = [Vram, Aperture];
    for (preferred, comes_to, if_full) in [
        (&[][..], Vram, Vram),
        (&[Vram], Vram, Vram),
        (&[Aperture], Aperture, Vram),
        (&[Aperture, Vram], Aperture, Vram),
    ] {
        for is_full in [false, true] {
            let what = format!("{preferred:?}, the aperture full: {is_full}");
            let buffer = buffer(&rig, &both, preferred, &[System]);
            assert_eq!(evict_all(), 1, "{what}");
            assert_eq!(place(&rig, buffer.handle), System, "{what}");
            let full = is_full.then(|| full_aperture(&other));
            expect_gpu(&rig, &what, buffer.va, SIZE, pattern(SIZE));
            expect_in(
                &rig,
                &buffer,
                if is_full { if_full } else { comes_to },
                &what,
            );
            give_up(&rig, buffer);
            full.into_iter()
                .for_each(|full| assert_eq!(other.close(full), Ok(())));
        }
    }
}

fn row_0_16_what_is_cached_is_locked_where_its_set_says() {
    let rig = alone();
    let flags = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED;
    for (eviction, to) in [
        (&[][..], Aperture),
        (&[Aperture], Aperture),
        (&[System], System),
    ] {
        let what = format!("{eviction:?}");
        let handle = rig.bo_create_preferring(SIZE, flags, rig.set(&ALL), &[], eviction);
        let handle = handle.expect("BO_CREATE");
        assert_eq!(place(&rig, handle), Vram, "{what}");
        rig.lock(handle).expect("BO_LOCK");
        let buffer = rig.bound(handle, SIZE);
        buffer.cpu.fill(pattern(SIZE));
        expect_in(&rig, &buffer, to, &what);
        // Under the lock it comes to no place where the CPU does not reach it.
        resident(&rig, &[handle]);
        expect_in(&rig, &buffer, Aperture, &what);
        assert_eq!(rig.unlock(handle), Ok(()));
        resident(&rig, &[handle]);
        assert_eq!(place(&rig, handle), Vram, "{what}, unlocked");
        expect_gpu(&rig, &what, buffer.va, SIZE, pattern(SIZE));
        give_up(&rig, buffer);
    }
    // What is never in VRAM is locked in its place.
    let handle = rig.bo_create_preferring(SIZE, flags, rig.set(&ALL), &[System], &[]);
    let handle = handle.expect("BO_CREATE");
    rig.lock(handle).expect("BO_LOCK");
    let buffer = rig.bound(handle, SIZE);
    buffer.cpu.fill(pattern(SIZE));
    resident(&rig, &[handle]);
    expect_in(&rig, &buffer, System, "preferred");
    assert_eq!(rig.unlock(handle), Ok(()));
}

fn row_0_20_what_is_hidden_is_locked_where_its_set_says() {
    let rig = alone();
    let both = rig.set(&[Vram, Aperture]);
    for (eviction, to) in [
        (&[][..], Aperture),
        (&[Aperture, System], Aperture),
        (&[System], System),
    ] {
        let what = format!("{eviction:?}");
        let handle = rig.bo_create_preferring(SIZE, 0, both, &[], eviction);
        let handle = handle.expect("BO_CREATE");
        let va = rig.bound_at_will(handle, SIZE);
        assert_eq!(rig.run(Engine::Copy, &[fill(7, va, SIZE)]), Ok(()));
        assert_eq!(place(&rig, handle), Vram, "{what}");
        rig.lock(handle).expect("BO_LOCK");
        assert_eq!(place(&rig, handle), to, "{what}");
        let cpu = rig.map(handle);
        cpu.expect(&what, |_| 7 << 32 | 7);
        cpu.fill(pattern(SIZE));
        // What is out comes where work reaches it under the lock.
        expect_gpu(&rig, &what, va, SIZE, pattern(SIZE));
        assert_eq!(place(&rig, handle), Aperture, "{what}, locked");
        assert_eq!(rig.run(Engine::Copy, &[fill(8, va, SIZE)]), Ok(()));
        cpu.expect(&what, |_| 8 << 32 | 8);
        assert_eq!(rig.unlock(handle), Ok(()));
        assert_eq!(rig.close(handle), Ok(()));
    }
}
