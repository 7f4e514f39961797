// SPDX-License-Identifier: MIT

//! The aperture segment: system memory that the GPU sees through a window. `guests.json` makes that
//! small, and has every access of a BAR counted.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use skua_guest::host::{request, Lies};
use skua_selftests::client::{signal_value, unmap};
use skua_selftests::events::Trace;
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{
    alone, evict_all, expect_gpu, explicit, pattern, place, resident, while_again,
    while_the_cpu_writes,
};
use skua_selftests::rig::{copy, fill, wait_value, write, Buffer};
use skua_selftests::suite::{eventually, rounds};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::address::BusAddr;
use skua_spec::mmu::Entry;
use skua_uapi::{
    DRM_SKUA_BO_CACHED, DRM_SKUA_BO_CPU_ACCESS, DRM_SKUA_BO_WRITE_COMBINED,
    DRM_SKUA_PRIORITY_MINIMUM,
};

const PAGE: u64 = 4096;
/// What the window has for clients.
const PAGES: u64 = 64;
const WINDOW: u64 = PAGES * PAGE;
/// What is read where nothing is mapped, as the documentation says.
const DUMMY: u64 = 0xd0d0_9a9e_d0d0_9a9e;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_region_is_what_the_window_has_for_clients,
        row_1_17_the_gpu_reaches_system_pages_through_the_window,
        row_1_17_eviction_copies_nothing at_rest,
        row_1_17_a_stale_address_reads_the_dummy_page_and_is_counted: 60 at_rest,
        row_1_17_what_leaves_takes_its_entries_along,
        row_1_17_who_has_no_other_place_makes_others_leave: 60 at_rest,
        row_1_17_a_move_between_vram_and_the_aperture_copies_once: 60 at_rest,
        row_1_17_what_may_not_be_reached_directly_is_brought_back: 60 at_rest,
        what_is_locked_stays_where_the_gpu_reaches_it: 60 at_rest,
        what_has_not_come_yet_does_not_leave: 60 at_rest,
        row_1_17_the_cpu_writes_on_while_it_leaves: 60,
        what_vram_has_no_room_for_is_brought_to_the_aperture: 60 at_rest,
        what_is_in_vram_without_need_leaves_it_for_the_aperture: 60 at_rest,
        what_fits_in_neither_is_refused: 60,
        room_that_cannot_be_made_tells_what_holds_it: 60 at_rest,
        what_vram_has_no_room_for_is_made_in_the_aperture: 60 at_rest,
        row_0_16_what_is_cached_is_locked_in_the_aperture: 60 at_rest,
        row_0_20_what_may_be_in_the_aperture_is_locked_there: 60 at_rest,
        row_0_21_what_is_locked_and_out_comes_to_the_aperture: 60 at_rest,
        row_0_21_residency_waits_where_the_aperture_is_full: 60 at_rest,
        row_0_21_residency_comes_with_room_in_the_aperture: 60 at_rest,
        row_0_21_a_lock_that_others_could_not_work_under_is_refused: 60 at_rest,
        row_0_21_a_lock_that_is_refused_refuses_no_work: 60,
        row_1_22_the_cpu_maps_the_system_pages at_rest,
        row_1_22_a_lock_leads_to_the_system_pages,
        row_0_28_the_window_snoops_what_the_cpu_has_cached_alone,
        row_0_28_page_tables_snoop_what_the_cpu_has_cached_alone at_rest,
        row_0_28_write_combined_memory_needs_no_call: 60,
    ])
}

/// The bit of a region.
#[track_caller]
fn bit(client: &Client, place: Place) -> u32 {
    1 << client.region(place).id
}

/// An object for the CPU, bound and mapped, that may be in these places.
#[track_caller]
fn buffer(rig: &Rig, places: &[Place], size: u64) -> Buffer {
    let placements = places.iter().fold(0, |all, place| all | bit(rig, *place));
    let handle = rig.bo_create(size, DRM_SKUA_BO_CPU_ACCESS, placements);
    rig.bound(handle.expect("BO_CREATE"), size)
}

#[track_caller]
fn used(client: &Client) -> u64 {
    client.region(Place::Aperture).used
}

/// The pages of the window that show memory: bus address and whether snooped, by number.
#[track_caller]
fn shown() -> BTreeMap<u64, (u64, bool)> {
    let text = Function::first().debugfs("gart").expect("debugfs");
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line
                .split([' ', ':'])
                .filter(|word| !word.is_empty())
                .collect();
            let [_, page, _, bus, _, snoop] = words[..] else {
                panic!("{line}");
            };
            let bus = bus.strip_prefix("0x").expect("an address");
            let bus = u64::from_str_radix(bus, 16).expect("an address");
            (page.parse().expect("a number"), (bus, snoop == "1"))
        })
        .collect()
}

/// What the device finds for a page of the window: the entry, and the first word of what it shows.
#[track_caller]
fn seen_by_the_device(page: u64) -> (Entry, u64) {
    let answer = request(&format!("gpu-gart {page}")).expect("the host's answer");
    let number = |word: &str| {
        let digits = word.strip_prefix("0x").expect("a number");
        u64::from_str_radix(digits, 16).expect("a number")
    };
    let (entry, word) = answer.split_once(' ').expect("two words");
    (Entry(number(entry)), number(word))
}

/// Has the CPU mark each page of a buffer, and looks for the mark behind the window's entries,
/// which are all the buffer's: the pages that both sides reach are the same ones, in the same
/// order.
#[track_caller]
fn expect_same_pages(buffer: &Buffer, seed: u64) {
    let shown = shown();
    assert_eq!(shown.len() * 4096, buffer.cpu.len());
    for (offset, (page, (bus, _))) in (0..).step_by(4096).zip(shown) {
        let mark = seed << 32 | offset as u64;
        buffer.cpu.write(offset, mark);
        let (entry, word) = seen_by_the_device(page);
        if offset < 3 * 4096 {
            println!("# page {page}: entry {:#x}, {word:#x} there", entry.0);
        }
        assert_eq!(entry, Entry::gart(BusAddr(bus), true, true), "page {page}");
        assert_eq!(word, mark, "page {page} at {bus:#x}");
    }
}

fn the_region_is_what_the_window_has_for_clients() {
    let client = alone();
    let region = client.region(Place::Aperture);
    println!("# {region:?}");
    assert_eq!((region.size, region.used), (WINDOW, 0));
    assert_eq!(region.cpu_visible_size, WINDOW);
    assert_eq!((region.page_size, region.aperture_size), (4096, 0));
    // It counts as system memory as well.
    let system = client.region(Place::System).used;
    let handle = client.bo(Place::Aperture, 3 * PAGE);
    assert_eq!(used(&client), 3 * PAGE);
    assert_eq!(client.region(Place::System).used - system, 3 * PAGE);
    assert_eq!(client.close(handle), Ok(()));
    assert_eq!(used(&client), 0);
}

fn row_1_17_the_gpu_reaches_system_pages_through_the_window() {
    let rig = alone();
    // Large pages of a process, small ones, and a mapping of a part.
    for size in [PAGE, 16 * PAGE, 21 * PAGE, WINDOW] {
        let buffer = buffer(&rig, &[Place::Aperture], size);
        assert_eq!(place(&rig, buffer.handle), Place::Aperture);
        assert_eq!((used(&rig), shown().len() as u64), (size, size / PAGE));
        buffer.cpu.expect("new memory", |_| 0);
        buffer.cpu.fill(pattern(size));
        expect_gpu(&rig, "what the CPU wrote", buffer.va, size, pattern(size));
        for engine in Engine::ALL {
            let value = 0x1111_1111 + engine.kind();
            assert_eq!(rig.run(engine, &[fill(value, buffer.va, size)]), Ok(()));
            let word = u64::from(value) << 32 | u64::from(value);
            buffer.cpu.expect("what the GPU wrote", |_| word);
        }
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(buffer.va, size)]), Ok(()));
        assert_eq!(rig.close(buffer.handle), Ok(()));
        drop(buffer);
    }
    let [dummy] = Function::first().counters(["gart_dummy"]);
    assert_eq!(dummy, 0, "reads of the dummy page");
}

fn row_1_17_eviction_copies_nothing() {
    let rig = alone();
    let names = ["copy_bytes", "fill_bytes", "driver_segment_unmaps"];
    let size = 20 * PAGE;
    let buffer = buffer(&rig, &[Place::Aperture, Place::System], size);
    assert_eq!(place(&rig, buffer.handle), Place::Aperture);
    buffer.cpu.fill(pattern(1));
    expect_gpu(&rig, "in the aperture", buffer.va, size, pattern(1));
    let before = Function::first().counters(names);
    assert_eq!(evict_all(), 1);
    let after = Function::first().counters(names);
    assert_eq!(after, [before[0], before[1], before[2] + 1], "{names:?}");
    assert_eq!(place(&rig, buffer.handle), Place::System);
    assert_eq!((used(&rig), shown().len()), (0, 0));
    // The same bytes, under the same addresses.
    buffer.cpu.expect("for the CPU", pattern(1));
    expect_gpu(&rig, "for the GPU", buffer.va, size, pattern(1));
    let [dummy] = Function::first().counters(["gart_dummy"]);
    assert_eq!(dummy, 0, "reads of the dummy page");
}

fn row_1_17_a_stale_address_reads_the_dummy_page_and_is_counted() {
    let rig = alone();
    // Pages that have places of their own in the TLB.
    let (size, from, to) = (40 * PAGE, 30 * PAGE, 20 * PAGE);
    let buffer = buffer(&rig, &[Place::Aperture, Place::System], size);
    let out = rig.buffer(Place::System, size);
    let read = || rig.run(Engine::Copy, &[copy(buffer.va + from, out.va + to, PAGE)]);
    let expect = |what, value: &dyn Fn(usize) -> u64| {
        for offset in (0..4096).step_by(8) {
            let found = out.cpu.read(20 * 4096 + offset);
            assert_eq!(found, value(30 * 4096 + offset), "{what}, at {offset:#x}");
        }
    };
    buffer.cpu.fill(pattern(2));
    assert_eq!(read(), Ok(()));
    expect("in the aperture", &pattern(2));
    // As a driver would that flushes the GART, but not the address space.
    let lies = Lies::tell("invalidate-other").expect("the host's answer");
    let [before] = Function::first().counters(["gart_dummy"]);
    assert_eq!(evict_all(), 1);
    assert_eq!(read(), Ok(()));
    let [after] = Function::first().counters(["gart_dummy"]);
    drop(lies);
    println!("# reads of the dummy page: {before}, then {after}");
    expect("at the stale address", &|_| DUMMY);
    assert!(after > before, "nothing was counted");
    buffer.cpu.expect("for the CPU", pattern(2));
    // And when it is flushed all the same.
    let other = rig.buffer(Place::System, PAGE);
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(other.va, PAGE)]), Ok(()));
    assert_eq!(read(), Ok(()));
    expect("at the address", &pattern(2));
    let [last] = Function::first().counters(["gart_dummy"]);
    assert_eq!(last, after, "reads of the dummy page");
}

fn row_1_17_what_leaves_takes_its_entries_along() {
    let rig = alone();
    // By each of the ways: unmapped and closed, destroyed, with its client.
    let close = buffer(&rig, &[Place::Aperture], 3 * PAGE);
    assert_eq!(rig.close(close.handle), Ok(()));
    assert_eq!(shown().len(), 3, "it is mapped");
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[unmap(close.va, 3 * PAGE)]),
        Ok(())
    );
    drop(close);
    assert_eq!((used(&rig), shown().len()), (0, 0));
    let destroy = buffer(&rig, &[Place::Aperture], 4 * PAGE);
    assert_eq!(shown().len(), 4);
    assert_eq!(rig.destroy(&[destroy.handle], 0), Ok(()));
    assert_eq!((used(&rig), shown().len()), (0, 0));
    drop(destroy);
    let other = Rig::new();
    let left = buffer(&other, &[Place::Aperture], 5 * PAGE);
    assert_eq!(shown().len(), 5);
    drop((left, other, rig));
    let rig = alone();
    assert_eq!((used(&rig), shown().len()), (0, 0));
}

fn row_1_17_who_has_no_other_place_makes_others_leave() {
    let (rig, other) = (alone(), Rig::new());
    let size = 16 * PAGE;
    let both = [Place::Aperture, Place::System];
    let theirs: Vec<Buffer> = (0..4).map(|_| buffer(&other, &both, size)).collect();
    for (seed, buffer) in (0..).zip(&theirs) {
        assert_eq!(place(&other, buffer.handle), Place::Aperture);
        buffer.cpu.fill(pattern(seed));
    }
    // Who can do without takes nothing from others.
    let without = buffer(&rig, &both, size);
    assert_eq!(place(&rig, without.handle), Place::System);
    assert_eq!(used(&rig), WINDOW);
    // The least important goes first, then what was not used for longest.
    assert_eq!(
        other.set_priority(&[theirs[2].handle], DRM_SKUA_PRIORITY_MINIMUM),
        Ok(())
    );
    let first = buffer(&rig, &[Place::Aperture], size);
    let places = || -> Vec<Place> { theirs.iter().map(|one| place(&other, one.handle)).collect() };
    let (a, s) = (Place::Aperture, Place::System);
    assert_eq!(places(), [a, a, s, a]);
    let second = buffer(&rig, &[Place::Aperture], size);
    assert_eq!(places().iter().filter(|place| **place == s).count(), 2);
    for (seed, buffer) in (0..).zip(&theirs) {
        buffer.cpu.expect("theirs, for the CPU", pattern(seed));
        expect_gpu(
            &other,
            "theirs, for the GPU",
            buffer.va,
            size,
            pattern(seed),
        );
    }
    // More than there is, and more than can leave.
    let alone = |pages: u64| rig.try_bo(Place::Aperture, pages * PAGE);
    assert_eq!(alone(PAGES + 1), Err(Errno::ENOSPC));
    assert_eq!(alone(PAGES), Err(Errno::ENOSPC));
    // Nobody has left for what cannot be.
    assert_eq!(places().iter().filter(|place| **place == a).count(), 2);
    let rest = alone(PAGES / 2).expect("what others leave");
    assert_eq!(places(), [s, s, s, s]);
    assert_eq!(alone(1), Err(Errno::ENOSPC));
    assert_eq!(evict_all(), 0, "what has no other place stays");
    assert_eq!(rig.close(rest), Ok(()));
    // In use, it leaves when it is not any more.
    drop((first, second));
}

fn row_1_17_a_move_between_vram_and_the_aperture_copies_once() {
    let rig = alone();
    let names = [
        "copy_vram_to_system",
        "copy_system_to_vram",
        "copy_system_to_system",
    ];
    let size = 20 * PAGE;
    let buffer = buffer(&rig, &[Place::Vram, Place::Aperture, Place::System], size);
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    buffer.cpu.fill(pattern(3));
    let before = Function::first().counters(names);
    let client: &Client = &rig;
    // Out of VRAM it comes to the aperture; what may be in system memory leaves that, too.
    let moved = evict_all();
    assert_eq!(moved, 2);
    let after = Function::first().counters(names);
    assert_eq!(after, [before[0] + size, before[1], before[2]], "{names:?}");
    assert_eq!(place(client, buffer.handle), Place::System);
    buffer.cpu.expect("for the CPU", pattern(3));
    expect_gpu(&rig, "for the GPU", buffer.va, size, pattern(3));
    let before = Function::first().counters(names);
    resident(&rig, &[buffer.handle]);
    assert_eq!(place(client, buffer.handle), Place::Vram);
    let after = Function::first().counters(names);
    assert_eq!(after, [before[0], before[1] + size, before[2]], "{names:?}");
    assert_eq!(used(&rig), 0);
    buffer.cpu.expect("back in VRAM", pattern(3));
    // A lock of what the CPU has cached moves it there, where it stays.
    let placements = [Place::Vram, Place::Aperture, Place::System].map(|place| bit(&rig, place));
    let flags = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED;
    let cached = rig.bo_create(size, flags, placements.iter().sum());
    let cached = cached.expect("BO_CREATE");
    assert_eq!(place(client, cached), Place::Vram);
    let va = rig.bound_at_will(cached, size);
    assert_eq!(rig.run(Engine::Copy, &[fill(0x77, va, size)]), Ok(()));
    rig.lock(cached).expect("BO_LOCK");
    assert_eq!(place(client, cached), Place::Aperture);
    assert_eq!(used(&rig), size);
    rig.map(cached).expect("locked", |_| 0x77_0000_0077);
    expect_gpu(&rig, "in the aperture", va, size, |_| 0x77_0000_0077);
    assert_eq!(rig.unlock(cached), Ok(()));
    resident(&rig, &[cached]);
    assert_eq!(place(client, cached), Place::Vram);
    assert_eq!(used(&rig), 0);
    expect_gpu(&rig, "back in VRAM", va, size, |_| 0x77_0000_0077);
}

fn row_1_17_what_may_not_be_reached_directly_is_brought_back() {
    let rig = alone();
    let size = 8 * PAGE;
    let buffer = buffer(&rig, &[Place::Vram, Place::Aperture], size);
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    buffer.cpu.fill(pattern(4));
    expect_gpu(&rig, "in VRAM", buffer.va, size, pattern(4));
    // Out of VRAM for who needs that, it is in the aperture, where work may go on.
    let large = rig.bo(Place::Vram, rig.region(Place::Vram).size);
    assert_eq!(place(&rig, buffer.handle), Place::Aperture);
    expect_gpu(&rig, "in the aperture", buffer.va, size, pattern(4));
    assert_eq!(place(&rig, buffer.handle), Place::Aperture);
    assert_eq!(rig.close(large), Ok(()));
    resident(&rig, &[buffer.handle]);
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
    // Out of VRAM, then out of the aperture: it is in no region where the GPU may find it.
    assert_eq!(evict_all(), 2);
    assert_eq!(place(&rig, buffer.handle), Place::System);
    buffer.cpu.expect("out", pattern(4));
    expect_gpu(&rig, "brought back", buffer.va, size, pattern(4));
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
}

fn what_is_locked_stays_where_the_gpu_reaches_it() {
    let rig = alone();
    let size = 8 * PAGE;
    // In VRAM the CPU does not reach it.
    let placements = bit(&rig, Place::Vram) | bit(&rig, Place::Aperture);
    let handle = rig.bo_create(size, 0, placements).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, size);
    let large = rig.bo(Place::Vram, rig.region(Place::Vram).size);
    assert_eq!(rig.close(large), Ok(()));
    assert_eq!(place(&rig, handle), Place::Aperture);
    rig.lock(handle).expect("BO_LOCK");
    // Out of the aperture it could not be brought back.
    assert_eq!(evict_all(), 0);
    assert_eq!(place(&rig, handle), Place::Aperture);
    assert_eq!(rig.run(Engine::Copy, &[fill(0x44, va, size)]), Ok(()));
    rig.map(handle).expect("locked", |_| 0x44_0000_0044);
    assert_eq!(rig.unlock(handle), Ok(()));
    assert_eq!(evict_all(), 1);
    expect_gpu(&rig, "brought back", va, size, |_| 0x44_0000_0044);
}

/// Two moves of an object in a row, of which both wait for work: another one would make it look as
/// if there were none.
fn what_has_not_come_yet_does_not_leave() {
    let rig = alone();
    let size = 8 * PAGE;
    let gate = rig.buffer(Place::System, PAGE);
    let (handle, va) = hidden(&rig, 0, size);
    let large = rig.bo(Place::Vram, rig.region(Place::Vram).size);
    assert_eq!(rig.close(large), Ok(()));
    assert_eq!(place(&rig, handle), Place::Aperture);
    let first = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let client: &Client = &rig;
    thread::scope(|scope| {
        let mover = scope.spawn(evict_all);
        eventually(|| (place(client, handle) == Place::System).then_some(())).expect("a move");
        // It is locked, though that takes until it is there.
        let locker = scope.spawn(|| client.lock(handle).map(drop));
        eventually(|| client.mmap_offset(handle).ok()).expect("a lock");
        let second = rig.start(Engine::Compute, &[write(gate.va + 8, 1)]);
        assert_eq!(place(client, handle), Place::Aperture);
        assert_eq!(client.unlock(handle), Ok(()));
        assert!(!first.has_ended() && !mover.is_finished());
        assert_eq!(evict_all(), 0);
        assert_eq!(place(client, handle), Place::Aperture);
        gate.cpu.write(0, 1);
        assert_eq!((first.wait(), second.wait()), (Ok(()), Ok(())));
        assert_eq!(mover.join().expect("a thread"), 1);
        assert_eq!(locker.join().expect("a thread"), Ok(()));
    });
    assert_eq!(place(client, handle), Place::Aperture);
    expect_gpu(&rig, "in the aperture", va, size, |_| 7 << 32 | 7);
    assert_eq!(evict_all(), 1);
    expect_gpu(&rig, "brought back", va, size, |_| 7 << 32 | 7);
}

fn row_1_17_the_cpu_writes_on_while_it_leaves() {
    let rig = alone();
    let size = 24 * PAGE;
    let buffer = buffer(&rig, &[Place::Vram, Place::Aperture, Place::System], size);
    while_the_cpu_writes(&buffer.cpu, || {
        for _ in 0..20 {
            evict_all();
            resident(&rig, &[buffer.handle]);
            assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
        }
    });
}

/// An object that may be in VRAM alone, takes all of that, and is bound; where the GPU finds it.
#[track_caller]
fn all_of_vram(rig: &Rig) -> (u32, u64) {
    let size = rig.region(Place::Vram).size;
    let handle = rig.bo(Place::Vram, size);
    (handle, rig.bound_at_will(handle, size))
}

/// Work that uses both, and finds them: all of VRAM, and what may be in the aperture as well.
#[track_caller]
fn expect_both(rig: &Rig, large: (u32, u64), small: &Buffer, seed: u64) {
    let mark = u32::try_from(seed).expect("a number");
    let work = [
        fill(mark, large.1, PAGE),
        copy(large.1, small.va, PAGE),
        copy(small.va + PAGE, large.1, PAGE),
    ];
    assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
    assert_eq!(place(rig, large.0), Place::Vram);
    assert_eq!(place(rig, small.handle), Place::Aperture);
    let first = u64::from(mark) << 32 | u64::from(mark);
    small.cpu.expect("for the CPU", |offset| match offset {
        0..4096 => first,
        _ => pattern(seed)(offset),
    });
    expect_gpu(rig, "from one to the other", large.1, PAGE, |offset| {
        pattern(seed)(offset + 4096)
    });
}

fn what_vram_has_no_room_for_is_brought_to_the_aperture() {
    let (rig, other) = (alone(), Rig::new());
    let size = 8 * PAGE;
    let small = buffer(&rig, &[Place::Vram, Place::Aperture], size);
    let large = all_of_vram(&rig);
    // The window is free, or has what can be elsewhere.
    for seed in 1..4 {
        evict_all();
        assert_eq!(place(&rig, small.handle), Place::System);
        small.cpu.fill(pattern(seed));
        let filler = (seed > 1).then(|| {
            let filler = buffer(&other, &[Place::Aperture, Place::System], WINDOW);
            assert_eq!(place(&other, filler.handle), Place::Aperture);
            filler.cpu.fill(pattern(9));
            filler
        });
        expect_both(&rig, large, &small, seed);
        if let Some(filler) = filler {
            assert_eq!(place(&other, filler.handle), Place::System);
            filler.cpu.expect("what had to leave", pattern(9));
            assert_eq!(other.destroy(&[filler.handle], 0), Ok(()));
        }
    }
}

fn what_is_in_vram_without_need_leaves_it_for_the_aperture() {
    let rig = alone();
    let size = 8 * PAGE;
    let small = buffer(&rig, &[Place::Vram, Place::Aperture], size);
    let large = all_of_vram(&rig);
    for seed in 1..4 {
        evict_all();
        // It is the first to come, and in the way of who may be nowhere else.
        resident(&rig, &[small.handle]);
        assert_eq!(place(&rig, small.handle), Place::Vram);
        assert_eq!(rig.evict(&[small.handle]), Ok(()));
        small.cpu.fill(pattern(seed));
        expect_both(&rig, large, &small, seed);
    }
}

fn what_fits_in_neither_is_refused() {
    let rig = alone();
    let both = [Place::Vram, Place::Aperture];
    let _small: Vec<Buffer> = (0..3).map(|_| buffer(&rig, &both, WINDOW / 2)).collect();
    let large = all_of_vram(&rig);
    evict_all();
    let work = rig
        .start_after(rig.compute, &[fill(1, large.1, PAGE)], &[])
        .map(drop);
    assert_eq!(work, Err(Errno::ENOMEM));
}

/// What waits for room, and what could never have any.
fn room_that_cannot_be_made_tells_what_holds_it() {
    let rig = alone();
    // Can be nowhere else, and elsewhere.
    let both = [Place::Aperture, Place::System];
    let sets = [&both[..1], &both, &both, &both];
    let here = sets.map(|places| buffer(&rig, places, WINDOW / 4));
    let places = || here.each_ref().map(|buffer| place(&rig, buffer.handle));
    assert_eq!(places(), [Place::Aperture; 4]);
    let trace = Trace::of(&["skua_no_room"]);
    for bytes in [WINDOW, 2 * WINDOW] {
        let refused = rig.bo_create(bytes, 0, bit(&rig, Place::Aperture));
        assert_eq!(refused, Err(Errno::ENOSPC));
        let events = trace.events();
        let event = events.last().unwrap_or_else(|| panic!("{bytes} bytes"));
        let told = ["region", "bytes", "needed", "pinned", "idle"].map(|field| event.get(field));
        let [bytes, stays, idle] = [bytes, WINDOW / 4, WINDOW / 4 * 3].map(|it| it.to_string());
        assert_eq!(told, ["aperture", &bytes, "1", &stays, &idle], "{event:?}");
        assert_eq!(places(), [Place::Aperture; 4]);
    }
}

fn what_vram_has_no_room_for_is_made_in_the_aperture() {
    let (rig, other) = (alone(), Rig::new());
    // What is resident stays for who can do without VRAM.
    let (large, _) = all_of_vram(&other);
    resident(&other, &[large]);
    let both = [Place::Vram, Place::Aperture];
    let small = buffer(&rig, &both, WINDOW);
    assert_eq!(place(&rig, small.handle), Place::Aperture);
    assert_eq!(place(&other, large), Place::Vram);
    small.cpu.fill(pattern(1));
    expect_gpu(&rig, "in the aperture", small.va, WINDOW, pattern(1));
    assert_eq!(rig.destroy(&[small.handle], 0), Ok(()));
    // And leaves it for who has neither.
    let filler = buffer(&other, &[Place::Aperture], WINDOW);
    let small = buffer(&rig, &both, PAGE);
    assert_eq!(place(&rig, small.handle), Place::Vram);
    assert_eq!(place(&other, large), Place::System);
    assert_eq!(place(&other, filler.handle), Place::Aperture);
}

/// The mapping that a lock is for.
#[track_caller]
fn locked(rig: &Rig, handle: u32, size: u64) -> Mapping {
    let offset = rig.lock(handle).expect("BO_LOCK");
    let len = usize::try_from(size).expect("a length");
    Mapping::new(rig.duplicate(), offset, len).expect("mmap")
}

/// What the CPU does not see in VRAM.
const HIDDEN: [u32; 2] = [0, DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED];

/// An object of these flags that may be in VRAM or the aperture, is in VRAM and was filled by the
/// GPU, and where that finds it.
#[track_caller]
fn hidden(rig: &Rig, flags: u32, size: u64) -> (u32, u64) {
    let placements = bit(rig, Place::Vram) | bit(rig, Place::Aperture);
    let handle = rig.bo_create(size, flags, placements);
    let handle = handle.expect("BO_CREATE");
    let va = rig.bound_at_will(handle, size);
    assert_eq!(place(rig, handle), Place::Vram);
    assert_eq!(rig.run(Engine::Compute, &[fill(7, va, size)]), Ok(()));
    (handle, va)
}

fn row_0_16_what_is_cached_is_locked_in_the_aperture() {
    is_locked_in_the_aperture(HIDDEN[1]);
}

fn row_0_20_what_may_be_in_the_aperture_is_locked_there() {
    is_locked_in_the_aperture(HIDDEN[0]);
}

#[track_caller]
fn is_locked_in_the_aperture(flags: u32) {
    let rig = alone();
    let size = 8 * PAGE;
    let (handle, va) = hidden(&rig, flags, size);
    let bars = ["vram_bar_read", "vram_bar_write"];
    let before = Function::first().counters(bars);
    let cpu = locked(&rig, handle, size);
    assert_eq!(place(&rig, handle), Place::Aperture);
    cpu.expect("what the GPU wrote", |_| 7 << 32 | 7);
    cpu.fill(pattern(1));
    assert_eq!(Function::first().counters(bars), before, "{bars:?}");
    // There the GPU reaches it under the lock, and it stays.
    expect_gpu(&rig, "what the CPU wrote", va, size, pattern(1));
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::Aperture);
    assert_eq!(rig.unlock(handle), Ok(()));
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::Vram);
    expect_gpu(&rig, "in VRAM", va, size, pattern(1));
}

fn row_0_21_what_is_locked_and_out_comes_to_the_aperture() {
    for flags in HIDDEN {
        what_is_out_comes_to_the_aperture(flags);
    }
}

#[track_caller]
fn what_is_out_comes_to_the_aperture(flags: u32) {
    let rig = alone();
    let size = 8 * PAGE;
    let (handle, va) = hidden(&rig, flags, size);
    // The window has what may be nowhere else.
    let filler = buffer(&rig, &[Place::Aperture], WINDOW);
    let cpu = locked(&rig, handle, size);
    assert_eq!(place(&rig, handle), Place::System);
    cpu.fill(pattern(2));
    let work = rig
        .start_after(rig.compute, &[fill(8, va, size)], &[])
        .map(drop);
    assert_eq!(
        work,
        Err(Errno::EBUSY),
        "locked, and no room in the aperture"
    );
    assert_eq!(rig.destroy(&[filler.handle], 0), Ok(()));
    expect_gpu(&rig, "brought to the aperture", va, size, pattern(2));
    assert_eq!(place(&rig, handle), Place::Aperture);
    cpu.expect("under the lock", pattern(2));
    assert_eq!(rig.run(Engine::Compute, &[fill(8, va, size)]), Ok(()));
    cpu.expect("what the GPU wrote", |_| 8 << 32 | 8);
    assert_eq!(rig.unlock(handle), Ok(()));
}

fn row_0_21_residency_waits_where_the_aperture_is_full() {
    let (rig, device) = explicit();
    let size = 8 * PAGE;
    let placements = bit(&rig, Place::Vram) | bit(&rig, Place::Aperture);
    let handle = rig.bo_create(size, 0, placements).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, size);
    let filler = buffer(&rig, &[Place::Aperture], WINDOW);
    let cpu = locked(&rig, handle, size);
    assert_eq!(place(&rig, handle), Place::System);
    let fence = rig.fence(0);
    let syncs = [signal_value(fence, 1)];
    let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
    assert_eq!(begun, Ok(0));
    assert!(!rig.fence_has(fence, 1), "it is nowhere");
    // Nobody else's work waits for that.
    let work = [fill(8, filler.va, PAGE)];
    assert_eq!(rig.run(Engine::Compute, &work), Ok(()));
    cpu.fill(pattern(1));
    // Others' work would wait for that, too.
    assert_eq!(rig.export(handle).map(drop), Err(Errno::EBUSY));
    assert_eq!(rig.unlock(handle), Ok(()));
    assert!(rig.fence_gets(fence, 1));
    assert_eq!(place(&rig, handle), Place::Vram);
    expect_gpu(&rig, "what the CPU wrote", va, size, pattern(1));
}

/// While it is locked still: what comes there for another reason is there for all who wait.
fn row_0_21_residency_comes_with_room_in_the_aperture() {
    let (rig, device) = explicit();
    let placements = bit(&rig, Place::Vram) | bit(&rig, Place::Aperture);
    let handle = rig.bo_create(PAGE, 0, placements).expect("BO_CREATE");
    let filler = buffer(&rig, &[Place::Aperture], WINDOW);
    assert!(rig.lock(handle).is_ok());
    assert_eq!(place(&rig, handle), Place::System);
    let fence = rig.fence(0);
    let syncs = [signal_value(fence, 1)];
    assert_eq!(rig.begin_resident_for(device, 0, &[handle], &syncs), Ok(0));
    assert!(!rig.fence_has(fence, 1), "it is nowhere");
    assert_eq!(rig.destroy_synchronously(&[filler.handle], 0), Ok(()));
    assert_eq!(rig.make_resident_for(device, 0, &[handle]), Ok(0));
    assert_eq!(place(&rig, handle), Place::Aperture);
    assert!(rig.fence_gets(fence, 1));
    assert_eq!(rig.unlock(handle), Ok(()));
}

fn row_0_21_a_lock_that_others_could_not_work_under_is_refused() {
    let (rig, other) = (alone(), Rig::new());
    let size = 8 * PAGE;
    let placements = bit(&rig, Place::Vram) | bit(&rig, Place::Aperture);
    let handle = rig.bo_create(size, 0, placements).expect("BO_CREATE");
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    let va = other.bound_at_will(theirs, size);
    let work = [fill(8, va, size)];
    let filler = buffer(&rig, &[Place::Aperture], WINDOW);
    assert_eq!(rig.lock(handle).map(drop), Err(Errno::ENOSPC));
    assert_eq!(other.run(Engine::Copy, &work), Ok(()));
    // In the aperture they find it.
    assert_eq!(rig.destroy_synchronously(&[filler.handle], 0), Ok(()));
    assert_eq!(rig.lock(handle).map(drop), Ok(()));
    assert_eq!(place(&rig, handle), Place::Aperture);
    assert_eq!(other.run(Engine::Copy, &work), Ok(()));
}

/// At no moment: others work on while it is asked for again and again.
fn row_0_21_a_lock_that_is_refused_refuses_no_work() {
    let (rig, other) = (alone(), Rig::new());
    let placements = bit(&rig, Place::Vram) | bit(&rig, Place::Aperture);
    let handle = rig.bo_create(PAGE, 0, placements).expect("BO_CREATE");
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    let va = other.bound_at_will(theirs, PAGE);
    let _filler = buffer(&rig, &[Place::Aperture], WINDOW);
    let client: &Client = &rig;
    let lock = || assert_eq!(client.lock(handle).map(drop), Err(Errno::ENOSPC));
    while_again(lock, || {
        for round in 0..rounds(300) {
            let done = other.run(Engine::Copy, &[fill(8, va, PAGE)]);
            assert_eq!(done, Ok(()), "round {round}");
        }
    });
}

fn row_1_22_the_cpu_maps_the_system_pages() {
    let rig = alone();
    let bars = [
        "vram_bar_read",
        "vram_bar_write",
        "aperture_read",
        "aperture_write",
    ];
    let before = Function::first().counters(bars);
    let size = 17 * PAGE;
    let buffer = buffer(&rig, &[Place::Aperture, Place::System], size);
    assert_eq!(place(&rig, buffer.handle), Place::Aperture);
    expect_same_pages(&buffer, 5);
    buffer.cpu.fill(pattern(5));
    // Scattered pages, in one piece for the GPU.
    expect_gpu(&rig, "for the GPU", buffer.va, size, pattern(5));
    assert_eq!(
        rig.run(Engine::Compute, &[fill(0x55, buffer.va, size)]),
        Ok(())
    );
    buffer.cpu.expect("for the CPU", |_| 0x55_0000_0055);
    assert_eq!(Function::first().counters(bars), before, "{bars:?}");
}

fn row_1_22_a_lock_leads_to_the_system_pages() {
    let rig = alone();
    let size = 5 * PAGE;
    for flags in [
        0,
        DRM_SKUA_BO_CPU_ACCESS,
        DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED,
    ] {
        let handle = rig.bo_create(size, flags, bit(&rig, Place::Aperture));
        let handle = handle.expect("BO_CREATE");
        rig.lock(handle).expect("BO_LOCK");
        // It stays where it is.
        assert_eq!(place(&rig, handle), Place::Aperture);
        let buffer = rig.bound(handle, size);
        expect_same_pages(&buffer, u64::from(flags));
        buffer.cpu.fill(pattern(6));
        expect_gpu(&rig, "for the GPU", buffer.va, size, pattern(6));
        assert_eq!(rig.unlock(handle), Ok(()));
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(buffer.va, size)]), Ok(()));
        drop(buffer);
        assert_eq!(rig.close(handle), Ok(()));
        assert_eq!(used(&rig), 0);
    }
}

/// Flags of objects in system memory, and whether the CPU has such memory cached.
const CACHING: [(u32, bool); 4] = [
    (0, true),
    (DRM_SKUA_BO_CPU_ACCESS, true),
    (DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED, true),
    (DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_WRITE_COMBINED, false),
];

fn row_0_28_the_window_snoops_what_the_cpu_has_cached_alone() {
    let client = alone();
    for (flags, cached) in CACHING {
        let handle = client.bo_create(3 * PAGE, flags, bit(&client, Place::Aperture));
        let handle = handle.expect("BO_CREATE");
        for (page, (bus, snooped)) in shown() {
            assert_eq!(snooped, cached, "flags {flags}, page {page}");
            // And as the device sees it.
            let (entry, _) = seen_by_the_device(page);
            println!("# flags {flags}: page {page} has entry {:#x}", entry.0);
            assert_eq!(entry, Entry::gart(BusAddr(bus), true, cached));
        }
        assert_eq!(client.close(handle), Ok(()));
    }
}

/// Entries of system memory in all address spaces, those that snoop and those that do not.
#[track_caller]
fn entries() -> [u64; 2] {
    let text = Function::first().debugfs("entries").expect("debugfs");
    let mut sums = [0; 2];
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        for (sum, at) in sums.iter_mut().zip([3, 5]) {
            *sum += words[at].parse::<u64>().expect("a number");
        }
    }
    sums
}

fn row_0_28_page_tables_snoop_what_the_cpu_has_cached_alone() {
    let rig = alone();
    let size = 3 * PAGE;
    let count = |flags, cached, handle, what| {
        let before = entries();
        let va = rig.bound_at_will(handle, size);
        let after = entries();
        println!("# flags {flags}, {what}: snooped and not {before:?}, then {after:?}");
        let [snooped, unsnooped] = before;
        let expected = match cached {
            true => [snooped + 3, unsnooped],
            false => [snooped, unsnooped + 3],
        };
        assert_eq!(after, expected, "flags {flags}, {what}");
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, size)]), Ok(()));
    };
    for (flags, cached) in CACHING {
        let both = bit(&rig, Place::System) | bit(&rig, Place::Vram);
        for (what, placements) in [
            ("made there", bit(&rig, Place::System)),
            ("moved there", both),
        ] {
            let handle = rig.bo_create(size, flags, placements).expect("BO_CREATE");
            evict_all();
            assert_eq!(place(&rig, handle), Place::System);
            count(flags, cached, handle, what);
            assert_eq!(rig.close(handle), Ok(()));
        }
    }
}

fn row_0_28_write_combined_memory_needs_no_call() {
    let rig = alone();
    let flags = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_WRITE_COMBINED;
    let size = 21 * PAGE;
    for places in [
        &[Place::System][..],
        &[Place::Aperture],
        &[Place::Vram, Place::System],
        &[Place::Vram, Place::Aperture],
    ] {
        let placements = places.iter().fold(0, |all, place| all | bit(&rig, *place));
        let handle = rig.bo_create(size, flags, placements).expect("BO_CREATE");
        assert_eq!(rig.info(handle).expect("BO_INFO").flags, flags);
        let buffer = rig.bound(handle, size);
        for round in 0..4 {
            let what = format!("{places:?}, round {round}");
            buffer.cpu.fill(pattern(round));
            expect_gpu(&rig, &what, buffer.va, size, pattern(round));
            evict_all();
            buffer.cpu.expect(&what, pattern(round));
            expect_gpu(&rig, &what, buffer.va, size, pattern(round));
            for engine in Engine::ALL {
                assert_eq!(rig.run(engine, &[fill(0x66, buffer.va, size)]), Ok(()));
                buffer.cpu.expect(&what, |_| 0x66_0000_0066);
            }
            resident(&rig, &[handle]);
        }
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(buffer.va, size)]), Ok(()));
        assert_eq!(rig.close(handle), Ok(()));
    }
}
