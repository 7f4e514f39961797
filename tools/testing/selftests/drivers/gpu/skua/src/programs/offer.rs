// SPDX-License-Identifier: MIT

//! Content that nobody needs for now: it goes first where memory is short, and is not seen again by
//! anybody. `guests.json` gives this program a GPU with little VRAM.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use skua_selftests::client::{map, signal, unmap, wait};
use skua_selftests::events::{Event, Trace};
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{
    alone, both, evict_all, evict_some, expect_gpu, gone, movable, pattern, place, press, resident,
    Numbers, Uncleared,
};
use skua_selftests::raw::{dies_of, Signal};
use skua_selftests::rig::{copy, fill, wait_value, write};
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::witness::{quiet, shmem, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// In the order in which they go.
const PRIORITIES: [u32; 3] = [
    DRM_SKUA_OFFER_LOW,
    DRM_SKUA_OFFER_NORMAL,
    DRM_SKUA_OFFER_HIGH,
];

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        it_is_kept_while_there_is_room: 60 at_rest,
        it_leaves_vram_without_a_copy: 60 at_rest,
        the_miniport_is_told_when_it_leaves_vram: 60 at_rest,
        it_goes_before_all_that_is_not: 60 at_rest,
        it_goes_by_its_priority: 60 at_rest,
        its_priority_may_be_that_of_residency: 60 at_rest,
        who_is_short_of_system_memory_gets_it: 60,
        so_they_do_if_it_is_mapped: 60,
        so_they_do_if_it_was_given_back_before: 60,
        no_more_goes_than_is_asked_for: 60 at_rest,
        an_access_is_a_bus_error: 60,
        nobody_uses_it: 60 at_rest,
        what_others_may_use_is_not_offered: 60,
        work_from_before_finds_it: 60 at_rest,
        who_reclaims_does_not_wait_for_ever: 60,
        work_that_comes_later_faults_when_it_is_gone: 60 at_rest,
        nothing_is_brought_back_for_work: 60 at_rest,
        a_bind_that_waits_finds_what_is_reclaimed: 60 at_rest,
        it_may_be_offered_twice_and_reclaimed_twice: 60 at_rest,
        parts_of_mappings_come_back: 60 at_rest,
        it_can_be_destroyed: 60,
        it_is_no_bus_error_when_the_device_is_gone: 60,
        nobody_sees_what_was_thrown_away: 240,
    ])
}

/// Bytes that were thrown away since the device is bound.
#[track_caller]
fn discarded() -> u64 {
    let [bytes] = Function::first().counters(["driver_discarded_bytes"]);
    bytes
}

/// BO_RECLAIM, called until it need not wait any more for what is just being thrown away.
fn reclaim(client: &Client, handle: u32) -> Result<Vec<bool>, Errno> {
    loop {
        match client.reclaim(&[handle]) {
            Err(Errno::EAGAIN) => {}
            result => return result,
        }
    }
}

/// Whether the CPU can access it, from its first page to its last. If not, it is a bus error.
fn is_accessible(cpu: &Mapping) -> bool {
    !dies_of(Signal::SIGBUS, || (cpu.read(0), cpu.read(cpu.len() - 8)))
}

/// Where an object may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    System,
    Both,
    Vram,
}

impl Kind {
    const ALL: [Self; 3] = [Self::System, Self::Both, Self::Vram];

    #[track_caller]
    fn create(self, client: &Client, size: u64) -> u32 {
        match self {
            Self::System => client.bo(Place::System, size),
            Self::Both => movable(client, size),
            Self::Vram => client.bo(Place::Vram, size),
        }
    }
}

fn it_is_kept_while_there_is_room() {
    let rig = alone();
    let before = discarded();
    for kind in Kind::ALL {
        let buffer = rig.bound(kind.create(&rig, MIB), MIB);
        buffer.cpu.fill(pattern(1));
        for (round, priority) in (0..).zip(PRIORITIES) {
            let what = format!("{kind:?}, round {round}");
            buffer.cpu.expect(&what, pattern(1 + round));
            assert_eq!(rig.offer(&[buffer.handle], priority), Ok(()), "{what}");
            let purgeable = |region: &str| {
                let key = format!("drm-purgeable-{region}");
                rig.fdinfo().bytes(&key).unwrap_or(0)
            };
            assert_eq!(purgeable("memory") + purgeable("vram0"), MIB, "{what}");
            // The GPU is not kept from it.
            expect_gpu(&rig, &what, buffer.va, MIB, pattern(1 + round));
            assert_eq!(rig.reclaim(&[buffer.handle]), Ok(vec![false]), "{what}");
            assert_eq!(purgeable("memory") + purgeable("vram0"), 0, "{what}");
            buffer.cpu.expect(&what, pattern(1 + round));
            expect_gpu(&rig, &what, buffer.va, MIB, pattern(1 + round));
            buffer.cpu.fill(pattern(2 + round));
        }
    }
    assert_eq!(discarded(), before);
}

fn it_leaves_vram_without_a_copy() {
    // What is being cleared is not free meanwhile.
    let _uncleared = Uncleared::new();
    for kind in [Kind::Both, Kind::Vram] {
        for bound in [false, true] {
            let rig = alone();
            let what = format!("{kind:?}, bound: {bound}");
            let handle = kind.create(&rig, 4 * MIB + PAGE);
            let size = 4 * MIB + PAGE;
            let cpu = rig.map(handle);
            let va = bound.then(|| rig.bound_at_will(handle, size));
            for round in 0..3 {
                cpu.fill(pattern(round));
                resident(&rig, &[handle]);
                assert_eq!(rig.evict(&[handle]), Ok(()));
                assert_eq!(place(&rig, handle), Place::Vram, "{what}");
                let (before, held) = (discarded(), rig.region(Place::Vram).used);
                assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_NORMAL), Ok(()));
                let pages = shmem();
                assert_eq!(evict_all(), 1, "{what}");
                assert_eq!(discarded() - before, size, "{what}");
                assert_eq!(held - rig.region(Place::Vram).used, size, "{what}");
                assert!(shmem() < pages + size / 2, "{what}: it takes no pages");
                assert_eq!(evict_all(), 0, "{what}");
                assert_eq!(rig.reclaim(&[handle]), Ok(vec![true]), "{what}");
                // New, under the same addresses.
                cpu.expect(&what, |_| 0);
                if let Some(va) = va {
                    expect_gpu(&rig, &what, va, size, |_| 0);
                    assert_eq!(
                        rig.run(Engine::Copy, &[fill(7, va, size)]),
                        Ok(()),
                        "{what}"
                    );
                    cpu.expect(&what, |_| 7 << 32 | 7);
                }
                assert_eq!(rig.reclaim(&[handle]), Ok(vec![false]), "{what}");
            }
        }
    }
}

fn the_miniport_is_told_when_it_leaves_vram() {
    let rig = alone();
    let handle = Kind::Both.create(&rig, MIB);
    resident(&rig, &[handle]);
    assert_eq!(rig.evict(&[handle]), Ok(()));
    assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_NORMAL), Ok(()));
    let trace = Trace::of(&["skua_move", "skua_paging"]);
    assert_eq!(evict_all(), 1);
    let events = trace.events();
    let moved = events.iter().find(|event| event.name == "skua_move");
    let moved = moved.unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!((moved.get("from"), moved.get("to")), ("vram0", "nowhere"));
    let of_it =
        |event: &&Event| event.name == "skua_paging" && event.get("fence") == moved.get("fence");
    let passes: Vec<_> = events.iter().filter(of_it).collect();
    assert!(
        matches!(passes[..], [pass] if pass.get("last") == "1"),
        "one paging operation, of one pass: {events:?}"
    );
}

/// Objects that fill VRAM.
fn crowd(client: &Client) -> Vec<u32> {
    let region = client.region(Place::Vram);
    let count = (region.size - region.used) / (2 * MIB);
    (0..count).map(|_| movable(client, 2 * MIB)).collect()
}

/// An object that nobody but VRAM has room for.
#[track_caller]
fn crush(client: &Client) {
    let vram = 1 << client.region(Place::Vram).id;
    let handle = client.bo_create(2 * MIB, 0, vram).expect("BO_CREATE");
    let highest = client.set_priority(&[handle], DRM_SKUA_PRIORITY_MAXIMUM);
    assert_eq!(highest, Ok(()));
}

fn it_goes_before_all_that_is_not() {
    let _uncleared = Uncleared::new();
    let (rig, other) = (alone(), Client::new());
    let mine = crowd(&rig);
    let (offered, rest) = mine.split_at(mine.len() / 2);
    // Used last, and as important as can be, while the others are not.
    assert_eq!(rig.set_priority(rest, DRM_SKUA_PRIORITY_MINIMUM), Ok(()));
    assert_eq!(rig.set_priority(offered, DRM_SKUA_PRIORITY_MAXIMUM), Ok(()));
    assert_eq!(rig.offer(offered, DRM_SKUA_OFFER_HIGH), Ok(()));
    for count in 1..=offered.len() {
        crush(&other);
        assert_eq!((gone(&rig, offered), gone(&rig, rest)), (count, 0));
    }
    crush(&other);
    assert_eq!(gone(&rig, rest), 1);
    let all = rig.reclaim(&mine).expect("BO_RECLAIM");
    let lost = all.iter().filter(|lost| **lost).count();
    assert_eq!(lost, offered.len(), "{all:?}");
    assert!(all[..lost].iter().all(|lost| *lost), "{all:?}");
}

fn it_goes_by_its_priority() {
    let _uncleared = Uncleared::new();
    let (rig, other) = (alone(), Client::new());
    let mine = crowd(&rig);
    let some = mine.len() / PRIORITIES.len();
    // Against the order of their use.
    let groups: Vec<&[u32]> = mine.rchunks(some).take(PRIORITIES.len()).collect();
    for (group, priority) in groups.iter().zip(PRIORITIES) {
        assert_eq!(rig.offer(group, priority), Ok(()));
    }
    for (n, group) in groups.iter().enumerate() {
        for count in 1..=group.len() {
            crush(&other);
            let out: Vec<usize> = groups.iter().map(|group| gone(&rig, group)).collect();
            let mut expected = vec![some; n];
            expected.push(count);
            expected.resize(PRIORITIES.len(), 0);
            assert_eq!(out, expected, "by priority");
        }
    }
}

fn its_priority_may_be_that_of_residency() {
    let (rig, other) = (alone(), Client::new());
    let mine = crowd(&rig);
    let levels = [
        DRM_SKUA_PRIORITY_MAXIMUM,
        DRM_SKUA_PRIORITY_NORMAL,
        DRM_SKUA_PRIORITY_MINIMUM,
    ];
    for (handle, level) in mine.iter().zip(levels) {
        assert_eq!(rig.set_priority(&[*handle], level), Ok(()));
    }
    assert_eq!(rig.offer(&mine[..3], DRM_SKUA_OFFER_AUTO), Ok(()));
    for last in (0..3).rev() {
        crush(&other);
        assert_eq!(
            (gone(&rig, &mine[last..3]), gone(&rig, &mine)),
            (3 - last, 3 - last)
        );
    }
}

fn who_is_short_of_system_memory_gets_it() {
    let client = alone();
    press();
    let size = 16 * MIB;
    let handle = client.bo(Place::System, size);
    let cpu = client.map(handle);
    for round in 0..3 {
        cpu.fill(pattern(round));
        let (before, pages, used) = (discarded(), shmem(), client.region(Place::System).used);
        assert_eq!(client.offer(&[handle], DRM_SKUA_OFFER_NORMAL), Ok(()));
        assert_eq!(press(), size / PAGE);
        assert_eq!(discarded() - before, size);
        // They are free, not merely such that they can be swapped out.
        let freed = eventually(|| (shmem() + size / 2 <= pages).then_some(()));
        assert!(freed.is_some(), "{} of {pages} bytes of shmem", shmem());
        // It will be as large again.
        assert_eq!(client.region(Place::System).used, used);
        assert_eq!(press(), 0, "there is nothing left");
        assert_eq!(client.reclaim(&[handle]), Ok(vec![true]));
        cpu.expect("new memory", |_| 0);
    }
}

fn so_they_do_if_it_is_mapped() {
    let rig = alone();
    press();
    for kind in Kind::ALL {
        let buffer = rig.bound(kind.create(&rig, 4 * MIB), 4 * MIB);
        for round in 0..3 {
            let what = format!("{kind:?}, round {round}");
            buffer.cpu.fill(pattern(round));
            evict_all();
            assert_eq!(place(&rig, buffer.handle), Place::System, "{what}");
            let (before, pages) = (discarded(), shmem());
            assert_eq!(rig.offer(&[buffer.handle], DRM_SKUA_OFFER_LOW), Ok(()));
            press();
            // By and by: page tables lead there.
            let lost = eventually(|| (discarded() - before == buffer.size).then_some(()));
            assert!(lost.is_some(), "{what}: {} bytes", discarded() - before);
            let freed = eventually(|| (shmem() + 2 * MIB <= pages).then_some(()));
            assert!(freed.is_some(), "{what}: {} of {pages} bytes", shmem());
            assert_eq!(rig.reclaim(&[buffer.handle]), Ok(vec![true]), "{what}");
            buffer.cpu.expect(&what, |_| 0);
            expect_gpu(&rig, &what, buffer.va, buffer.size, |_| 0);
            buffer.cpu.fill(pattern(round + 9));
            expect_gpu(&rig, &what, buffer.va, buffer.size, pattern(round + 9));
        }
    }
}

fn so_they_do_if_it_was_given_back_before() {
    let client = alone();
    press();
    let handle = client.bo(Place::System, MIB);
    let cpu = client.map(handle);
    for keep in [true, false] {
        cpu.fill(pattern(1));
        assert_eq!(press(), MIB / PAGE);
        assert_eq!(client.offer(&[handle], DRM_SKUA_OFFER_LOW), Ok(()));
        if !keep {
            assert_eq!(press(), MIB / PAGE);
        }
        assert_eq!(client.reclaim(&[handle]), Ok(vec![!keep]));
        let expected = pattern(1);
        cpu.expect("the content", |at| if keep { expected(at) } else { 0 });
    }
}

fn no_more_goes_than_is_asked_for() {
    let rig = alone();
    let mine = crowd(&rig);
    assert_eq!(rig.offer(&mine, DRM_SKUA_OFFER_NORMAL), Ok(()));
    let before = discarded();
    crush(&Client::new());
    assert_eq!(discarded() - before, 2 * MIB);
    let lost = rig.reclaim(&mine).expect("BO_RECLAIM");
    assert_eq!(lost.iter().filter(|lost| **lost).count(), 1, "{lost:?}");
}

fn an_access_is_a_bus_error() {
    let rig = alone();
    for kind in Kind::ALL {
        let handle = kind.create(&rig, MIB);
        let cpu = rig.map(handle);
        cpu.fill(pattern(1));
        assert!(is_accessible(&cpu), "{kind:?}");
        for throw_away in [false, true] {
            let what = format!("{kind:?}, gone: {throw_away}");
            assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_NORMAL), Ok(()));
            assert!(!is_accessible(&cpu), "{what}");
            if throw_away {
                evict_all();
                press();
                assert!(!is_accessible(&cpu), "{what}");
            }
            assert!(!is_accessible(&rig.map(handle)), "{what}: a new mapping");
            assert_eq!(rig.reclaim(&[handle]), Ok(vec![throw_away]), "{what}");
            assert!(is_accessible(&cpu), "{what}");
        }
        cpu.expect("new memory", |_| 0);
        assert_eq!(rig.destroy(&[handle], 0), Ok(()));
    }
}

fn nobody_uses_it() {
    let rig = alone();
    for kind in Kind::ALL {
        for throw_away in [false, true] {
            let what = format!("{kind:?}, gone: {throw_away}");
            let handle = kind.create(&rig, MIB);
            assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_NORMAL), Ok(()));
            if throw_away {
                evict_all();
                press();
            }
            let va = rig.reserve(MIB);
            let ops = [map(handle, 0, va, MIB)];
            let refused = Err(Errno::EBUSY);
            assert_eq!(rig.bind_and_wait(rig.vm, &ops), refused, "{what}");
            assert_eq!(rig.make_resident(&[handle], &[]), refused, "{what}");
            assert_eq!(rig.lock(handle).map(drop), refused, "{what}");
            assert_eq!(rig.export(handle).map(drop), refused, "{what}");
            assert_eq!(rig.reclaim(&[handle]), Ok(vec![throw_away]), "{what}");
            assert_eq!(rig.evict(&[handle]), Err(Errno::EINVAL), "{what}");
            assert_eq!(rig.unlock(handle), Err(Errno::EINVAL), "{what}");
            // Nothing of that has stuck to it.
            assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_LOW), Ok(()), "{what}");
            assert_eq!(rig.reclaim(&[handle]), Ok(vec![false]), "{what}");
            assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()), "{what}");
            expect_gpu(&rig, &what, va, MIB, |_| 0);
            assert_eq!(rig.make_resident(&[handle], &[]), Ok(()), "{what}");
            assert_eq!(rig.lock(handle).map(drop), Ok(()), "{what}");
            assert!(rig.export(handle).is_ok(), "{what}");
            assert_eq!(rig.destroy(&[handle], 0), Ok(()), "{what}");
        }
    }
}

fn what_others_may_use_is_not_offered() {
    let (rig, other) = (alone(), Client::new());
    let [good, locked, resident, exported] = [(); 4].map(|()| rig.bo(Place::Vram, PAGE));
    let cpu = rig.map(good);
    cpu.fill(pattern(1));
    assert!(rig.lock(locked).is_ok());
    assert_eq!(rig.make_resident(&[resident], &[]), Ok(()));
    let theirs = other.import(rig.export(exported).expect("export"));
    let theirs = theirs.expect("import");
    let offer = |handle| rig.offer(&[good, handle], DRM_SKUA_OFFER_LOW);
    assert_eq!(offer(locked), Err(Errno::EBUSY));
    assert_eq!(offer(resident), Err(Errno::EBUSY));
    assert_eq!(offer(exported), Err(Errno::EPERM));
    assert_eq!(
        other.offer(&[theirs], DRM_SKUA_OFFER_LOW),
        Err(Errno::EPERM)
    );
    // All or nothing.
    cpu.expect("what is not offered", pattern(1));
    // Nor when nobody else has it any more: it is not known.
    assert_eq!(other.close(theirs), Ok(()));
    assert_eq!(offer(exported), Err(Errno::EPERM));
    assert_eq!(rig.unlock(locked), Ok(()));
    assert_eq!(rig.evict(&[resident]), Ok(()));
    assert_eq!(
        rig.offer(&[good, locked, resident], DRM_SKUA_OFFER_LOW),
        Ok(())
    );
}

fn work_from_before_finds_it() {
    for kind in [Kind::Both, Kind::Vram] {
        let (rig, other) = (alone(), Rig::new());
        let gate = rig.buffer(Place::System, PAGE);
        let out = rig.buffer(Place::System, 2 * MIB);
        let mine = rig.bound(kind.create(&rig, 2 * MIB), 2 * MIB);
        mine.cpu.fill(pattern(3));
        let commands = [wait_value(gate.va, 1), copy(mine.va, out.va, 2 * MIB)];
        let job = rig.start(Engine::Copy, &commands);
        assert_eq!(rig.offer(&[mine.handle], DRM_SKUA_OFFER_LOW), Ok(()));
        thread::scope(|scope| {
            let evicting = scope.spawn(evict_all);
            let before = |()| discarded();
            let chosen = eventually(|| (place(&rig, mine.handle) == Place::System).then_some(()));
            let waits = !evicting.is_finished();
            gate.cpu.write(0, 1);
            evicting.join().expect("a thread");
            assert!(chosen.map(before).is_some() && waits, "{kind:?}");
        });
        assert_eq!(job.wait(), Ok(()), "{kind:?}");
        out.cpu.expect("the content", pattern(3));
        assert_eq!(rig.reclaim(&[mine.handle]), Ok(vec![true]), "{kind:?}");
        expect_gpu(&rig, "new memory", mine.va, 2 * MIB, |_| 0);
        drop(other);
    }
}

fn who_reclaims_does_not_wait_for_ever() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let mine = rig.buffer(Place::Vram, MIB);
    let rest = rig.buffer(Place::System, MIB);
    rest.cpu.fill(pattern(4));
    let job = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let handles = [rest.handle, mine.handle];
    assert_eq!(rig.offer(&handles, DRM_SKUA_OFFER_LOW), Ok(()));
    thread::scope(|scope| {
        let evicting = scope.spawn(evict_all);
        let chosen = eventually(|| (place(&rig, mine.handle) == Place::System).then_some(()));
        let late = rig.reclaim(&handles);
        // All or nothing.
        let locked = rig.lock(rest.handle).map(drop);
        gate.cpu.write(0, 1);
        evicting.join().expect("a thread");
        assert!(chosen.is_some());
        assert_eq!((late, locked), (Err(Errno::EAGAIN), Err(Errno::EBUSY)));
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.reclaim(&handles), Ok(vec![false, true]));
    rest.cpu.expect("what was kept", pattern(4));
    mine.cpu.expect("what was not", |_| 0);
}

fn work_that_comes_later_faults_when_it_is_gone() {
    for kind in Kind::ALL {
        let rig = alone();
        press();
        let mine = rig.bound(kind.create(&rig, MIB), MIB);
        let out = rig.buffer(Place::System, MIB);
        let before = discarded();
        mine.cpu.fill(pattern(1));
        assert_eq!(rig.offer(&[mine.handle], DRM_SKUA_OFFER_LOW), Ok(()));
        match kind {
            Kind::System => _ = press(),
            _ => assert_eq!(evict_all(), 1),
        }
        becomes("it is discarded", || discarded() > before);
        let commands = [copy(mine.va, out.va, MIB)];
        assert_eq!(
            rig.run(Engine::Copy, &commands),
            Err(Errno::EFAULT),
            "{kind:?}"
        );
        out.cpu.expect("nothing", |_| 0);
        // For others it is as new.
        assert_eq!(rig.reclaim(&[mine.handle]), Ok(vec![true]), "{kind:?}");
        let again = rig.start_in(rig.new_context(Engine::Copy), &commands);
        assert_eq!(again.wait(), Ok(()), "{kind:?}");
        out.cpu.expect("new memory", |_| 0);
    }
}

fn nothing_is_brought_back_for_work() {
    let rig = alone();
    let (mine, out) = (
        rig.buffer(Place::Vram, MIB),
        rig.buffer(Place::System, PAGE),
    );
    let kept = rig.buffer(Place::Vram, MIB);
    kept.cpu.fill(pattern(2));
    evict_all();
    // One whose content is there, in system memory, and one whose content is not.
    assert_eq!(rig.offer(&[kept.handle], DRM_SKUA_OFFER_LOW), Ok(()));
    expect_gpu(&rig, "what is needed", mine.va, MIB, |_| 0);
    assert_eq!(rig.offer(&[mine.handle], DRM_SKUA_OFFER_LOW), Ok(()));
    assert_eq!(evict_all(), 1);
    let promotions = || Function::first().counters(["driver_promotions"]);
    let before = promotions();
    assert_eq!(rig.run(Engine::Copy, &[write(out.va, 1)]), Ok(()));
    assert_eq!(promotions(), before);
    assert_eq!(
        rig.reclaim(&[mine.handle, kept.handle]),
        Ok(vec![true, false])
    );
    // It is needed again.
    assert_eq!(rig.run(Engine::Copy, &[write(out.va, 2)]), Ok(()));
    assert_eq!(promotions(), [before[0] + 2]);
    expect_gpu(&rig, "what was kept", kept.va, MIB, pattern(2));
}

fn a_bind_that_waits_finds_what_is_reclaimed() {
    for kind in Kind::ALL {
        for early in [false, true] {
            let (rig, other) = (alone(), Rig::new());
            press();
            let what = format!("{kind:?}, early: {early}");
            let gate = other.buffer(Place::System, PAGE);
            let job = other.start(Engine::Compute, &[wait_value(gate.va, 1)]);
            let open = rig.syncobj_of(other.sync_file(job.syncobj));
            let done = rig.syncobj();
            let handle = kind.create(&rig, 2 * MIB);
            let va = rig.reserve(2 * MIB);
            let ops = [map(handle, 0, va, 2 * MIB)];
            let bound = rig.bind(rig.vm, &ops, &[wait(open), signal(done)]);
            assert_eq!(bound, Ok(()), "{what}");
            rig.map(handle).fill(pattern(1));
            let before = discarded();
            assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_LOW), Ok(()), "{what}");
            match kind {
                Kind::System => _ = press(),
                _ => assert_eq!(evict_all(), 1),
            }
            let lost = eventually(|| (discarded() > before).then_some(()));
            assert!(lost.is_some(), "{what}");
            let comes_back = || assert_eq!(reclaim(&rig, handle), Ok(vec![true]), "{what}");
            if early {
                comes_back();
            }
            gate.cpu.write(0, 1);
            assert_eq!((job.wait(), rig.wait(done)), (Ok(()), Ok(())), "{what}");
            if !early {
                comes_back();
            }
            rig.map(handle).fill(pattern(2));
            expect_gpu(&rig, &what, va, 2 * MIB, pattern(2));
        }
    }
}

fn it_may_be_offered_twice_and_reclaimed_twice() {
    let (rig, other) = (alone(), Client::new());
    let mine = crowd(&rig);
    assert_eq!(
        rig.reclaim(&mine),
        Ok(vec![false; mine.len()]),
        "never offered"
    );
    assert_eq!(rig.offer(&mine[..2], DRM_SKUA_OFFER_HIGH), Ok(()));
    assert_eq!(rig.offer(&mine[1..2], DRM_SKUA_OFFER_LOW), Ok(()));
    crush(&other);
    // The later priority counts.
    assert_eq!(gone(&rig, &mine[..1]), 0);
    assert_eq!(gone(&rig, &mine[1..2]), 1);
    // It does not come back by that.
    assert_eq!(rig.offer(&mine[1..2], DRM_SKUA_OFFER_HIGH), Ok(()));
    assert_eq!(rig.reclaim(&mine[..2]), Ok(vec![false, true]));
    assert_eq!(rig.reclaim(&mine[..2]), Ok(vec![false, false]));
}

fn parts_of_mappings_come_back() {
    let rig = alone();
    press();
    for kind in Kind::ALL {
        let size = 8 * MIB;
        let handle = kind.create(&rig, size);
        let va = rig.bound_at_will(handle, size);
        // A hole within a large page, and a second mapping.
        let hole = va + 2 * MIB + 3 * PAGE;
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(hole, 5 * PAGE)]), Ok(()));
        let second = rig.bound_at_will(handle, size);
        let before = discarded();
        assert_eq!(rig.offer(&[handle], DRM_SKUA_OFFER_LOW), Ok(()));
        match kind {
            Kind::System => _ = press(),
            _ => assert_eq!(evict_all(), 1),
        }
        becomes("it is discarded", || discarded() > before);
        // While it is gone, too.
        let other = va + 6 * MIB;
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(other, PAGE)]), Ok(()));
        assert_eq!(reclaim(&rig, handle), Ok(vec![true]), "{kind:?}");
        rig.map(handle).fill(pattern(1));
        let at = |offset: u64| move |n: usize| pattern(1)(n + offset as usize);
        expect_gpu(&rig, "before the hole", va, 2 * MIB, pattern(1));
        let behind = hole + 5 * PAGE;
        expect_gpu(&rig, "behind it", behind, MIB, at(behind - va));
        expect_gpu(&rig, "the end", other + PAGE, MIB, at(6 * MIB + PAGE));
        expect_gpu(&rig, "the second", second, size, pattern(1));
        for address in [hole, other] {
            let context = rig.new_context(Engine::Copy);
            let job = rig.start_in(context, &[fill(1, address, PAGE)]);
            assert_eq!(job.wait(), Err(Errno::EFAULT), "{kind:?}");
        }
        assert_eq!(rig.destroy(&[handle], 0), Ok(()));
    }
}

fn it_can_be_destroyed() {
    quiet();
    let rig = Rig::new();
    let before = Witness::settled(&rig);
    for kind in Kind::ALL {
        for throw_away in [false, true] {
            for synchronous in [false, true] {
                let [bound, plain, closed] = [(); 3].map(|()| kind.create(&rig, MIB));
                let va = rig.bound_at_will(bound, MIB);
                let all = [bound, plain, closed];
                assert_eq!(rig.offer(&all, DRM_SKUA_OFFER_LOW), Ok(()));
                if throw_away {
                    evict_all();
                    press();
                }
                let destroyed = match synchronous {
                    true => rig.destroy_synchronously(&[bound, plain], 0),
                    false => rig.destroy(&[bound, plain], 0),
                };
                assert_eq!(destroyed, Ok(()));
                assert_eq!(rig.close(closed), Ok(()));
                assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, MIB)]), Ok(()));
            }
        }
        // With its client.
        let other = Rig::new();
        let buffer = other.bound(kind.create(&other, MIB), MIB);
        assert_eq!(other.offer(&[buffer.handle], DRM_SKUA_OFFER_LOW), Ok(()));
        evict_all();
    }
    // An address space keeps its tables.
    let mut after = Witness::settled(&rig);
    after.vms.clone_from(&before.vms);
    after.used[0] = before.used[0];
    assert_eq!(after, before);
}

fn it_is_no_bus_error_when_the_device_is_gone() {
    let client = alone();
    let maps = Kind::ALL.map(|kind| {
        let handle = kind.create(&client, MIB);
        let cpu = client.map(handle);
        cpu.fill(pattern(1));
        assert_eq!(client.offer(&[handle], DRM_SKUA_OFFER_LOW), Ok(()));
        cpu
    });
    evict_all();
    press();
    let function = Function::first();
    function.unbind().expect("unbind");
    let accessible = maps.iter().all(is_accessible);
    function.bind().expect("bind");
    assert!(accessible);
}

fn nobody_sees_what_was_thrown_away() {
    quiet();
    let client = Client::new();
    let before = Witness::settled(&client);
    let (stop, lost) = (&AtomicBool::new(false), &AtomicU64::new(0));
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=3)
            .map(|number| scope.spawn(move || work(number, lost)))
            .collect();
        let presser = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                press();
                evict_some();
            }
        });
        let ends: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        stop.store(true, Ordering::Relaxed);
        presser.join().expect("a thread");
        assert!(ends.iter().all(Result::is_ok));
    });
    println!("{} contents were thrown away", lost.load(Ordering::Relaxed));
    quiet();
    before.expect_unchanged(&client);
}

/// Offers objects, reclaims them, and looks at them, many times, and until contents were `lost`.
fn work(number: u64, lost: &AtomicU64) {
    let rig = Rig::new();
    let buffers: Vec<_> = (0..6)
        .map(|n| {
            let handle = match n % 3 {
                0 => rig.bo_create(MIB, DRM_SKUA_BO_CPU_ACCESS, both(&rig)),
                1 => rig.try_bo(Place::Vram, MIB),
                _ => rig.try_bo(Place::System, MIB),
            };
            let handle = handle.expect("BO_CREATE");
            let va = (n < 4).then(|| rig.bound_at_will(handle, MIB));
            (handle, rig.map(handle), va)
        })
        .collect();
    let mut seeds = vec![None; buffers.len()];
    let mut offered = vec![false; buffers.len()];
    let mut numbers = Numbers(number);
    for step in (0..).take_while(|step| *step < 120 || lost.load(Ordering::Relaxed) == 0) {
        let at = numbers.below(buffers.len());
        let what = format!("client {number}, step {step}, object {at}");
        let (handle, cpu, va) = &buffers[at];
        if !offered[at] {
            cpu.fill(pattern(number << 32 | step));
            seeds[at] = Some(number << 32 | step);
            let priority = PRIORITIES[numbers.below(3)];
            assert_eq!(rig.offer(&[*handle], priority), Ok(()), "{what}");
            offered[at] = true;
            continue;
        }
        let gone = reclaim(&rig, *handle).unwrap_or_else(|errno| panic!("{what}: {errno}"))[0];
        offered[at] = false;
        lost.fetch_add(u64::from(gone), Ordering::Relaxed);
        let expected = |at_byte: usize| match seeds[at] {
            Some(seed) if !gone => pattern(seed)(at_byte),
            _ => 0,
        };
        match va {
            Some(va) if numbers.below(2) == 0 => expect_gpu(&rig, &what, *va, MIB, expected),
            _ => cpu.expect(&what, expected),
        }
    }
}
