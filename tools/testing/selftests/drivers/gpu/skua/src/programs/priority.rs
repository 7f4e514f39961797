// SPDX-License-Identifier: MIT

//! Priorities of residency: who leaves VRAM first when others need the room.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use skua_selftests::function::Function;
use skua_selftests::moving::{alone, both, evict_all, gone, movable, place, resident};
use skua_selftests::rig::{fill, wait_value};
use skua_selftests::suite::eventually;
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;

/// In the order in which they go.
const LEVELS: [u32; 5] = [
    DRM_SKUA_PRIORITY_MINIMUM,
    DRM_SKUA_PRIORITY_LOW,
    DRM_SKUA_PRIORITY_NORMAL,
    DRM_SKUA_PRIORITY_HIGH,
    DRM_SKUA_PRIORITY_MAXIMUM,
];

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_25_the_lowest_goes_first: 60 at_rest,
        row_2_25_an_initial_priority_counts_at_once: 60 at_rest,
        row_2_25_what_is_higher_displaces_what_is_lower: 60 at_rest,
        row_2_25_what_is_for_vram_alone_stays: 60 at_rest,
        row_2_25_it_is_a_hint: 60 at_rest,
        who_was_made_resident_goes_behind_others: 60 at_rest,
        row_2_25_low_and_busy_goes_before_high_and_idle: 60 at_rest,
        row_2_25_it_lasts_while_an_object_is_elsewhere: 60 at_rest,
    ])
}

/// Objects of a client that fill VRAM. They are cleared: what is idle goes first.
fn crowd(client: &Client) -> Vec<u32> {
    let region = client.region(Place::Vram);
    let count = (region.size - region.used) / LARGE;
    let crowd: Vec<u32> = (0..count).map(|_| movable(client, LARGE)).collect();
    // They are cleared in turn.
    let last = crowd.last().expect("an object");
    assert_eq!(client.map(*last).read(0), 0);
    Function::first().at_rest();
    crowd
}

/// An object that nobody but VRAM has room for, and that stays there.
fn press(client: &Client) {
    let vram = 1 << client.region(Place::Vram).id;
    let handle = client.bo_create(LARGE, 0, vram).expect("BO_CREATE");
    let highest = client.set_priority(&[handle], DRM_SKUA_PRIORITY_MAXIMUM);
    assert_eq!(highest, Ok(()));
}

/// An object of a priority.
#[track_caller]
fn create(client: &Client, placements: u32, priority: u32) -> u32 {
    let mut bo = drm_skua_bo_create {
        size: LARGE,
        flags: DRM_SKUA_BO_CPU_ACCESS,
        placements,
        priority,
        ..Default::default()
    };
    let created = client.call(DRM_IOCTL_SKUA_BO_CREATE, &mut bo);
    assert_eq!(created, Ok(()), "priority {priority:#x}");
    bo.handle
}

fn row_2_25_the_lowest_goes_first() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig);
    // Against the order of their use, and every one but those that are named in between.
    let mut levels: Vec<Vec<u32>> = vec![Vec::new(); LEVELS.len()];
    for (n, handle) in mine.iter().rev().enumerate() {
        let level = n * LEVELS.len() / mine.len();
        let priority = LEVELS[level] + n as u32;
        assert_eq!(rig.set_priority(&[*handle], priority), Ok(()));
        levels[level].push(*handle);
    }
    let (lowest, rest) = levels.split_at(3);
    for (n, level) in lowest.iter().enumerate() {
        for count in 1..=level.len() {
            press(&other);
            let out: Vec<usize> = levels.iter().map(|level| gone(&rig, level)).collect();
            let mut expected: Vec<usize> = levels[..n].iter().map(Vec::len).collect();
            expected.push(count);
            expected.resize(LEVELS.len(), 0);
            assert_eq!(out, expected, "by level");
        }
    }
    assert!(rest.iter().all(|level| gone(&rig, level) == 0));
}

/// Also of who was made first, and would go first, and of who was made last.
fn row_2_25_an_initial_priority_counts_at_once() {
    let rig = alone();
    let other = Client::new();
    let region = rig.region(Place::Vram);
    let count = ((region.size - region.used) / LARGE) as usize;
    let priority = |n| match n {
        1 => DRM_SKUA_PRIORITY_HIGH,
        2 => DRM_SKUA_PRIORITY_NORMAL,
        _ if n == count => DRM_SKUA_PRIORITY_LOW,
        _ => 0,
    };
    let mine: Vec<u32> = (1..=count)
        .map(|n| create(&rig, both(&rig), priority(n)))
        .collect();
    let ([high, normal @ ..], low) = mine.split_at(count - 1) else {
        panic!("{count} objects");
    };
    // They are cleared in turn: what is idle goes first.
    assert_eq!(rig.map(low[0]).read(0), 0);
    Function::first().at_rest();
    for left in 1..=count {
        press(&other);
        let out = (gone(&rig, low), gone(&rig, normal), gone(&rig, &[*high]));
        let expected = (1, (left - 1).min(normal.len()), usize::from(left == count));
        assert_eq!(
            out, expected,
            "low, normal and high ones of {left} that left"
        );
    }
}

/// Though that is resident, when it is made, and when it is made resident.
fn row_2_25_what_is_higher_displaces_what_is_lower() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig);
    resident(&rig, &mine);
    Function::first().at_rest();
    // What is as important takes the place of none.
    let same = create(&other, both(&other), DRM_SKUA_PRIORITY_NORMAL);
    let low = create(&other, both(&other), DRM_SKUA_PRIORITY_LOW);
    resident(&other, &[same, low]);
    let places = [same, low].map(|handle| place(&other, handle));
    assert_eq!((places, gone(&rig, &mine)), ([Place::System; 2], 0));
    let high = create(&other, both(&other), DRM_SKUA_PRIORITY_HIGH);
    assert_eq!((place(&other, high), gone(&rig, &mine)), (Place::Vram, 1));
    resident(&other, &[high]);
    assert_eq!(other.set_priority(&[low], u32::MAX), Ok(()));
    resident(&other, &[low]);
    assert_eq!((place(&other, low), gone(&rig, &mine)), (Place::Vram, 2));
}

/// What others' work could not do without there stays as it is resident.
fn row_2_25_what_is_for_vram_alone_stays() {
    let rig = alone();
    let other = Client::new();
    let vram = 1 << rig.region(Place::Vram).id;
    let free = rig.region(Place::Vram).size - rig.region(Place::Vram).used;
    let mine: Vec<u32> = (0..free / LARGE)
        .map(|_| create(&rig, vram, DRM_SKUA_PRIORITY_MINIMUM))
        .collect();
    resident(&rig, &mine);
    Function::first().at_rest();
    let high = create(&other, both(&other), DRM_SKUA_PRIORITY_MAXIMUM);
    assert_eq!((place(&other, high), gone(&rig, &mine)), (Place::System, 0));
}

fn row_2_25_it_is_a_hint() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig);
    assert_eq!(rig.set_priority(&mine, u32::MAX), Ok(()));
    press(&other);
    assert_eq!(gone(&rig, &mine), 1);
}

/// Also if it was in VRAM when it was made resident, and is resident for nobody any more.
fn who_was_made_resident_goes_behind_others() {
    let rig = alone();
    let other = Client::new();
    let mine = crowd(&rig);
    let (used, rest) = mine.split_at(mine.len() / 2);
    assert_eq!(rig.make_resident(used, &[]), Ok(()));
    assert_eq!(rig.evict(used), Ok(()));
    for count in 1..=rest.len() {
        press(&other);
        assert_eq!((gone(&rig, used), gone(&rig, rest)), (0, count));
    }
    press(&other);
    assert_eq!(gone(&rig, used), 1);
}

fn row_2_25_low_and_busy_goes_before_high_and_idle() {
    let rig = alone();
    let other = Client::new();
    let gate = rig.buffer(Place::System, PAGE);
    let mine = crowd(&rig);
    let (low, high) = mine.split_first().expect("an object");
    // Its user is its own address space: the others are idle.
    let busy = Rig::new();
    let theirs = busy
        .import(rig.export(*low).expect("export"))
        .expect("import");
    let gates = busy
        .import(rig.export(gate.handle).expect("export"))
        .expect("import");
    let (va, gate_va) = (
        busy.bound_at_will(theirs, LARGE),
        busy.bound_at_will(gates, PAGE),
    );
    assert_eq!(rig.set_priority(&[*low], DRM_SKUA_PRIORITY_LOW), Ok(()));
    let job = busy.start(
        Engine::Compute,
        &[wait_value(gate_va, 1), fill(7, va, LARGE)],
    );
    thread::scope(|scope| {
        let begun = Instant::now();
        let pressing = scope.spawn(|| press(&other));
        // A move begins before the work is done.
        let chosen = eventually(|| (place(&rig, *low) == Place::System).then_some(()));
        let others = gone(&rig, high);
        let waits = !pressing.is_finished();
        // Who waits for a second takes others as well, and may have them by now.
        let in_time = begun.elapsed() < Duration::from_millis(900);
        gate.cpu.write(0, 1);
        pressing.join().expect("a thread");
        assert!(chosen.is_some(), "it stays");
        assert!(waits || !in_time, "nobody waits for it");
        assert!(others == 0 || !in_time, "{others} others left");
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(place(&rig, *low), Place::System);
}

fn row_2_25_it_lasts_while_an_object_is_elsewhere() {
    let rig = alone();
    let mine = crowd(&rig);
    let first = &mine[..1];
    evict_all();
    // Whether it is set there or before.
    assert_eq!(rig.set_priority(first, DRM_SKUA_PRIORITY_LOW), Ok(()));
    for _ in 0..2 {
        resident(&rig, &mine[1..]);
        // Used last, it would go last.
        resident(&rig, first);
        assert_eq!(rig.evict(&mine), Ok(()));
        assert_eq!(gone(&rig, &mine), 0);
        press(&Client::new());
        assert_eq!((gone(&rig, first), gone(&rig, &mine)), (1, 1));
        evict_all();
    }
}
