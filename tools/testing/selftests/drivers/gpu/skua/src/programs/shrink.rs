// SPDX-License-Identifier: MIT

//! When memory is short, idle objects give back their system pages, and nobody notices.

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use skua_selftests::calls::Calls;
use skua_selftests::client::map;
use skua_selftests::function::Function;
use skua_selftests::moving::{
    alone, both, evict_all, evict_some, expect_gpu, movable_in_vram, pattern, place, press,
    resident, Numbers,
};
use skua_selftests::rig::fill;
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::witness::{quiet, shmem, Witness};
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};
use skua_uapi::*;

const MIB: u64 = 1 << 20;
const PAGES: u64 = MIB / 4096;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        idle_pages_are_given_back: 60 at_rest,
        the_cpu_finds_its_content: 60 at_rest,
        the_gpu_finds_it_when_it_is_bound: 60 at_rest,
        what_moves_to_vram_takes_it_along: 60 at_rest,
        what_is_mapped_stays: 60 at_rest,
        what_is_locked_stays: 60 at_rest,
        what_is_in_the_aperture_stays: 60 at_rest,
        write_combined_objects_come_back: 60 at_rest,
        what_was_unmapped_goes: 60 at_rest,
        resting_objects_can_be_destroyed: 60 at_rest,
        it_is_there_when_the_device_is_gone: 60 at_rest,
        no_lock_is_held_while_pages_come_back: 60 at_rest,
        nobody_notices_under_work: 240,
    ])
}

/// Bytes of memory that the kernel cannot swap out, at about this moment.
#[track_caller]
fn unevictable() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = info.lines().find(|line| line.starts_with("Unevictable:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: u64 = number.and_then(|n| n.parse().ok()).expect("Unevictable");
    kib << 10
}

/// An object in system memory, with a content.
#[track_caller]
fn filled(client: &Client, seed: u64) -> u32 {
    let handle = client.bo(Place::System, MIB);
    client.map(handle).fill(pattern(seed));
    handle
}

fn idle_pages_are_given_back() {
    quiet();
    let client = Client::new();
    press();
    let handle = client.bo(Place::System, 64 * MIB);
    client.map(handle).fill(pattern(1));
    let before = (unevictable(), shmem());
    let used = client.region(Place::System).used;
    assert_eq!(press(), 64 * PAGES);
    // They can be swapped now, and are not lost.
    let after = eventually(|| (unevictable() + 60 * MIB < before.0).then_some(()));
    assert!(after.is_some(), "{} of {}", unevictable(), before.0);
    assert!(shmem() + 4 * MIB > before.1, "{} of {}", shmem(), before.1);
    // Quotas are for what a client has, wherever it is.
    assert_eq!(client.region(Place::System).used, used);
    assert_eq!(press(), 0, "there is nothing left");
    client.map(handle).expect("the content", pattern(1));
    assert_eq!(press(), 64 * PAGES, "once more");
}

fn the_cpu_finds_its_content() {
    let client = alone();
    press();
    let handle = client.bo(Place::System, MIB);
    let cpu = client.map(handle);
    for round in 0..4 {
        cpu.fill(pattern(round));
        assert_eq!(press(), PAGES);
        // Under the same mapping.
        cpu.expect("the content", pattern(round));
    }
    // Never touched by anybody.
    let fresh = client.bo(Place::System, MIB);
    assert!(press() >= PAGES);
    client.map(fresh).expect("new", |_| 0);
}

fn the_gpu_finds_it_when_it_is_bound() {
    let rig = alone();
    press();
    for seed in 0..4 {
        let handle = filled(&rig, seed);
        assert_eq!(press(), PAGES);
        let va = rig.bound_at_will(handle, MIB);
        assert_eq!(press(), 0, "it may be used");
        expect_gpu(&rig, "for the GPU", va, MIB, pattern(seed));
        assert_eq!(rig.run(Engine::Copy, &[fill(7, va, MIB)]), Ok(()));
        rig.map(handle).expect("for the CPU", |_| 7 << 32 | 7);
    }
}

fn what_moves_to_vram_takes_it_along() {
    let rig = alone();
    press();
    for seed in 0..4 {
        let handle = movable_in_vram(&rig, MIB);
        rig.map(handle).fill(pattern(seed));
        assert_eq!(evict_all(), 1);
        assert_eq!(press(), PAGES);
        resident(&rig, &[handle]);
        assert_eq!(place(&rig, handle), Place::Vram);
        rig.map(handle).expect("in VRAM", pattern(seed));
        // What is to be in VRAM alone.
        let needed = rig.bo(Place::Vram, MIB);
        rig.map(needed).fill(pattern(seed + 9));
        assert_eq!(evict_all(), 2);
        assert_eq!(press(), 2 * PAGES);
        let va = rig.bound_at_will(needed, MIB);
        expect_gpu(&rig, "brought back", va, MIB, pattern(seed + 9));
        assert_eq!(place(&rig, needed), Place::Vram);
        assert_eq!(rig.destroy(&[handle, needed], 0), Ok(()));
    }
}

fn what_is_mapped_stays() {
    let rig = alone();
    press();
    let buffer = rig.buffer(Place::System, MIB);
    buffer.cpu.fill(pattern(1));
    assert_eq!(press(), 0);
    expect_gpu(&rig, "for the GPU", buffer.va, MIB, pattern(1));
}

fn what_is_locked_stays() {
    let client = alone();
    press();
    let handle = filled(&client, 1);
    client.lock(handle).expect("BO_LOCK");
    assert_eq!(press(), 0);
    assert_eq!(client.unlock(handle), Ok(()));
    assert_eq!(press(), PAGES);
    client.map(handle).expect("the content", pattern(1));
}

fn what_is_in_the_aperture_stays() {
    let rig = alone();
    press();
    let places = [Place::Aperture, Place::System].map(|place| 1 << rig.region(place).id);
    for placements in [places[0], places[0] | places[1]] {
        let handle = rig.bo_create(MIB, DRM_SKUA_BO_CPU_ACCESS, placements);
        let handle = handle.expect("BO_CREATE");
        rig.map(handle).fill(pattern(1));
        assert_eq!(place(&rig, handle), Place::Aperture);
        assert_eq!(press(), 0);
        if placements == places[0] {
            assert_eq!(evict_all(), 0);
        } else {
            // Once it has left that, it is as others are.
            assert_eq!(evict_all(), 1);
            assert_eq!(place(&rig, handle), Place::System);
            assert_eq!(press(), PAGES);
        }
        let va = rig.bound_at_will(handle, MIB);
        expect_gpu(&rig, "for the GPU", va, MIB, pattern(1));
        assert_eq!(press(), 0, "it may be used");
        assert_eq!(rig.destroy(&[handle], 0), Ok(()));
    }
}

fn write_combined_objects_come_back() {
    let rig = alone();
    press();
    let flags = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_WRITE_COMBINED;
    for placements in [1 << rig.region(Place::System).id, both(&rig)] {
        let handle = rig.bo_create(MIB, flags, placements).expect("BO_CREATE");
        let cpu = rig.map(handle);
        evict_all();
        for round in 0..4 {
            cpu.fill(pattern(round));
            // A move to there is forgotten late.
            becomes("they are given back", || press() == PAGES);
            cpu.expect("the content", pattern(round));
        }
        assert_eq!(press(), PAGES);
        let va = rig.bound_at_will(handle, MIB);
        expect_gpu(&rig, "for the GPU", va, MIB, pattern(3));
        resident(&rig, &[handle]);
        cpu.expect("where it may be", pattern(3));
        assert_eq!(rig.destroy(&[handle], 0), Ok(()));
    }
}

fn what_was_unmapped_goes() {
    let rig = alone();
    press();
    let handle = filled(&rig, 1);
    let va = rig.bound_at_will(handle, MIB);
    expect_gpu(&rig, "for the GPU", va, MIB, pattern(1));
    let all = skua_selftests::client::unmap(va, MIB);
    assert_eq!(rig.bind_and_wait(rig.vm, &[all]), Ok(()));
    // The address space lets go of it late.
    becomes("they are given back", || press() >= PAGES);
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map(handle, 0, va, MIB)]),
        Ok(())
    );
    expect_gpu(&rig, "once more", va, MIB, pattern(1));
}

fn resting_objects_can_be_destroyed() {
    quiet();
    let client = Client::new();
    press();
    let before = Witness::of(&client);
    let handles = [(); 3].map(|()| filled(&client, 1));
    let cpu = client.map(handles[0]);
    assert_eq!(press(), 3 * PAGES);
    let held = shmem();
    assert_eq!(client.destroy(&handles[..1], 0), Ok(()));
    // Its pages go, though it is mapped. The number is about that of the moment.
    let freed = eventually(|| (shmem() + MIB / 2 <= held).then_some(()));
    assert!(freed.is_some(), "{} of {held} bytes of shmem", shmem());
    drop(cpu);
    assert_eq!(client.destroy_synchronously(&handles[1..2], 0), Ok(()));
    assert_eq!(client.close(handles[2]), Ok(()));
    before.expect_unchanged(&client);
}

fn it_is_there_when_the_device_is_gone() {
    let client = alone();
    press();
    let handle = client.bo(Place::System, MIB);
    let cpu = client.map(handle);
    cpu.fill(pattern(1));
    assert_eq!(press(), PAGES);
    let function = Function::first();
    function.unbind().expect("unbind");
    cpu.expect("the content", pattern(1));
    function.bind().expect("bind");
    cpu.fill(pattern(2));
    press();
    cpu.expect("the content", pattern(2));
}

/// Pages that this thread had brought into memory in a call: with no reservation locked, and with
/// one.
#[track_caller]
fn brought(call: impl FnOnce()) -> [u64; 2] {
    let lock = [
        "ww_mutex_lock",
        "ww_mutex_lock_interruptible",
        "ww_mutex_trylock",
    ];
    let calls = Calls::of(&[&lock[..], &["ww_mutex_unlock", "shmem_read_folio_gfp"]].concat());
    call();
    let (mut locks, mut pages) = (0_u64, [0; 2]);
    for call in calls.order() {
        match &*call {
            "ww_mutex_unlock" => locks -= 1,
            "shmem_read_folio_gfp" => pages[usize::from(locks > 0)] += 1,
            _ => locks += 1,
        }
    }
    pages
}

/// Before it is locked all of it is there, and then it is looked up. What is private shares its
/// lock with all that its address space has.
fn no_lock_is_held_while_pages_come_back() {
    let rig = alone();
    press();
    let system = 1 << rig.region(Place::System).id;
    let flags = DRM_SKUA_BO_CPU_ACCESS;
    let handle = rig.bo_create_in(rig.vm, MIB, flags, system);
    let movable = rig.bo_create_in(rig.vm, MIB, flags, both(&rig));
    let handles = [handle, movable].map(|handle| handle.expect("BO_CREATE"));
    let cpus = handles.map(|handle| rig.map(handle));
    for (seed, cpu) in (0..).zip(&cpus) {
        cpu.fill(pattern(seed));
    }
    evict_all();
    let calls: [(&str, usize, &dyn Fn()); 3] = [
        ("a page fault", 0, &|| _ = cpus[0].read(0)),
        ("a bind", 0, &|| _ = rig.bound_at_will(handles[0], MIB)),
        ("a move", 1, &|| {
            assert_eq!(rig.make_resident(&handles[1..], &[]), Ok(()));
        }),
    ];
    for (what, seed, call) in calls {
        // What has given all back has nothing to give.
        cpus[seed].read(0);
        assert!(press() >= PAGES, "{what}");
        let [before, under] = brought(call);
        println!("# {what}: {before} pages, then {under}");
        assert!(
            before >= PAGES,
            "{what}: {before} of {PAGES} pages, then {under}"
        );
        cpus[seed].expect(what, pattern(seed as u64));
    }
}

fn nobody_notices_under_work() {
    quiet();
    let client = Client::new();
    let before = Witness::settled(&client);
    let (stop, given) = (&AtomicBool::new(false), &AtomicU64::new(0));
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=3)
            .map(|number| scope.spawn(move || work(number, given)))
            .collect();
        let presser = scope.spawn(|| {
            for turn in 0.. {
                if stop.load(Relaxed) {
                    return;
                }
                given.fetch_add(press(), Relaxed);
                if turn % 3 == 0 {
                    evict_some();
                }
            }
        });
        let ends: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        stop.store(true, Relaxed);
        assert!(ends.iter().all(Result::is_ok));
        presser.join().expect("a thread");
    });
    println!("{} pages were given back", given.load(Relaxed));
    quiet();
    before.expect_unchanged(&client);
}

/// Binds, fills, moves and looks at objects many times, and until pages were `given` back.
fn work(number: u64, given: &AtomicU64) {
    let rig = Rig::new();
    let handles: Vec<u32> = (0..8)
        .map(|n| {
            let places = if n % 2 == 0 {
                both(&rig)
            } else {
                1 << rig.region(Place::System).id
            };
            let combined = [0, DRM_SKUA_BO_WRITE_COMBINED][n / 2 % 2];
            rig.bo_create(MIB, DRM_SKUA_BO_CPU_ACCESS | combined, places)
                .expect("BO_CREATE")
        })
        .collect();
    let cpus: Vec<_> = handles.iter().map(|handle| rig.map(*handle)).collect();
    let mut seeds = vec![None; handles.len()];
    let mut numbers = Numbers(number);
    let steps = u64::from(suite::rounds(150));
    for step in (0..).take_while(|step| *step < steps || given.load(Relaxed) == 0) {
        let at = numbers.below(handles.len());
        let what = format!("client {number}, step {step}, object {at}");
        match (numbers.below(4), seeds[at]) {
            (0, _) => {
                cpus[at].fill(pattern(step));
                seeds[at] = Some(step);
            }
            (1, Some(seed)) => {
                let va = rig.bound_at_will(handles[at], MIB);
                expect_gpu(&rig, &what, va, MIB, pattern(seed));
                let all = skua_selftests::client::unmap(va, MIB);
                assert_eq!(rig.bind_and_wait(rig.vm, &[all]), Ok(()), "{what}");
            }
            (2, _) => resident(&rig, &[handles[at]]),
            (_, Some(seed)) => cpus[at].expect(&what, pattern(seed)),
            (_, None) => cpus[at].expect(&what, |_| 0),
        }
    }
}
