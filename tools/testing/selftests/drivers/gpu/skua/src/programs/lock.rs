// SPDX-License-Identifier: MIT

//! BO_LOCK and BO_UNLOCK: the CPU's claim on an object, wherever that is (WDDM: Lock2).

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::hint::spin_loop;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use skua_selftests::client::{map, signal, signal_value, unmap, wait_value as wait_for};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    alone, both, evict_all, expect_gpu, explicit, find, locked, movable, out, pattern, place,
    resident,
};
use skua_selftests::raw::{dies_of, with_alarm, Child, Signal};
use skua_selftests::rig::{copy, fill, wait_value};
use skua_selftests::suite::rounds;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::pci::BAR_VRAM;
use skua_uapi::*;

use skua_selftests::mapping::Mapping;

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;
const CACHED: u32 = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_0_13_a_lock_is_for_all_of_it_byte_by_byte: 60,
        row_0_13_there_is_nothing_but_linear_memory,
        row_0_16_cached_objects_are_locked_outside_of_vram: 60 at_rest,
        row_0_16_what_could_not_be_locked_is_refused,
        row_0_19_row_1_09_system_memory_is_locked_in_its_place: 60,
        row_0_20_without_cpu_access_the_address_never_leads_to_vram: 60 at_rest,
        row_0_20_what_is_in_vram_for_good_cannot_be_locked at_rest,
        row_0_17_what_fills_vram_is_locked_where_it_is: 60 at_rest,
        row_0_21_what_is_locked_outside_stays_outside: 60 at_rest,
        row_0_21_what_others_may_have_is_not_locked_out: 60 at_rest,
        row_0_21_what_is_locked_out_is_not_opened_by_its_name: 60 at_rest,
        row_0_21_what_is_held_goes_on_when_it_is_unlocked: 120 at_rest,
        what_is_held_keeps_no_worker: 60 at_rest,
        row_0_21_what_was_resident_before_is_waited_for: 60 at_rest,
        row_0_21_what_is_resident_is_there_when_it_is_unlocked: 60 at_rest,
        row_0_21_who_is_refused_is_told_of_no_excess: 60 at_rest,
        so_many_wait_for_an_unlock: 60 at_rest,
        row_0_21_who_waits_for_its_own_unlock_is_told: 60 at_rest,
        row_0_21_residency_of_what_is_locked_ends_with_the_lock: 60 at_rest,
        row_0_21_residency_of_what_is_locked_ends_with_the_device: 60 at_rest,
        row_0_21_residency_of_what_is_locked_ends_with_its_client: 60 at_rest,
        row_0_21_what_is_evicted_meanwhile_stays_out: 60 at_rest,
        whoever_is_killed_leaves_no_residency_behind: 120 at_rest,
        row_0_01_row_0_17_what_the_cpu_sees_in_vram_stays: 60 at_rest,
        a_lock_waits_for_its_move_alone: 60 at_rest,
        what_is_in_use_for_long_is_not_locked: 60 at_rest,
        a_lock_looks_again_when_a_copy_has_gone: 60,
        row_0_11_locks_are_counted: 60 at_rest,
        row_0_11_locks_end_with_the_handle: 60 at_rest,
        a_lock_brings_back_what_is_arriving: 60,
    ])
}

/// No page of the BAR has what is at `offset` and in the page behind it.
#[track_caller]
fn expect_not_in_bar(cpu: &Mapping) {
    let bar = Function::first().map_bar(BAR_VRAM);
    for offset in (0..cpu.len()).step_by(cpu.len() / 4) {
        // A value that was in VRAM before may be left there.
        let value = pattern(0x1dea)(offset) | 1;
        cpu.write(offset, value);
        let places = find(&bar, value);
        assert!(places.is_empty(), "byte {offset:#x} is at {places:x?}");
    }
}

/// An object of `flags` in VRAM that the GPU has filled, and where that finds it.
#[track_caller]
fn in_vram(rig: &Rig, flags: u32, size: u64) -> (u32, u64) {
    let handle = rig.bo_create(size, flags, both(rig)).expect("BO_CREATE");
    assert_eq!(place(rig, handle), Place::Vram);
    let va = rig.bound_at_will(handle, size);
    assert_eq!(rig.run(Engine::Compute, &[fill(7, va, size)]), Ok(()));
    (handle, va)
}

/// What a lock does with an object of `flags` in VRAM that the CPU does not see there.
fn is_locked_in_system_memory(flags: u32) {
    let rig = alone();
    let (handle, va) = in_vram(&rig, flags, LARGE);
    let cpu = locked(&rig, handle, LARGE);
    assert_eq!(place(&rig, handle), Place::System);
    cpu.expect("what the GPU wrote", |_| 7 << 32 | 7);
    expect_not_in_bar(&cpu);
    cpu.fill(pattern(1));
    expect_gpu(&rig, "what the CPU wrote", va, LARGE, pattern(1));
    // It does not come back before it is unlocked, whoever wants it.
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::System);
    assert_eq!(rig.unlock(handle), Ok(()));
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::Vram);
    expect_gpu(&rig, "back in VRAM", va, LARGE, pattern(1));
    // The address that the lock gave does not lead there.
    assert!(dies_of(Signal::SIGBUS, || cpu.read(0)));
    assert!(dies_of(Signal::SIGBUS, || cpu.write(8, 1)));
    // And goes on with the next lock.
    assert!(rig.lock(handle).is_ok());
    cpu.expect("locked again", pattern(1));
    assert_eq!(rig.unlock(handle), Ok(()));
}

fn row_0_13_a_lock_is_for_all_of_it_byte_by_byte() {
    let rig = alone();
    let size = LARGE + 5 * PAGE;
    let system = 1 << rig.region(Place::System).id;
    for (flags, placements) in [
        (0, system),
        (0, both(&rig)),
        (DRM_SKUA_BO_CPU_ACCESS, system),
        (DRM_SKUA_BO_CPU_ACCESS, both(&rig)),
        (CACHED, both(&rig)),
    ] {
        let what = format!("flags {flags:#x}, placements {placements:#x}");
        let handle = rig.bo_create(size, flags, placements).expect("BO_CREATE");
        let va = rig.bound_at_will(handle, size);
        let from = rig.buffer(Place::System, size);
        from.cpu.fill(pattern(1));
        assert_eq!(
            rig.run(Engine::Copy, &[copy(from.va, va, size)]),
            Ok(()),
            "{what}"
        );
        // Neither more than all of it nor another address for a part: there is one.
        let offset = rig.lock(handle).expect("BO_LOCK");
        assert_eq!(rig.lock(handle), Ok(offset), "{what}");
        let len = usize::try_from(size).expect("a length");
        let more = Mapping::new(rig.duplicate(), offset, len + 4096).map(drop);
        assert_eq!(more, Err(Errno::EINVAL), "{what}");
        let cpu = Mapping::new(rig.duplicate(), offset, len).expect("mmap");
        // Where the GPU has written a byte, there the CPU finds it, and the other way round.
        cpu.expect(&what, pattern(1));
        cpu.fill(pattern(2));
        expect_gpu(&rig, &what, va, size, pattern(2));
        println!(
            "# {what}: {size:#x} bytes at {offset:#x}, {:?}",
            place(&rig, handle)
        );
        assert_eq!(rig.unlock(handle), Ok(()));
        assert_eq!(rig.destroy(&[handle, from.handle], 0), Ok(()));
    }
}

/// No client can have memory that a lock would have to make linear, nor ask a lock for a part of
/// it, or for a range that makes it linear.
fn row_0_13_there_is_nothing_but_linear_memory() {
    let rig = Rig::new();
    let handle = rig
        .bo_create(PAGE, DRM_SKUA_BO_CPU_ACCESS, both(&rig))
        .expect("BO_CREATE");
    let known = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED | DRM_SKUA_BO_WRITE_COMBINED;
    for bit in (0..32).map(|bit| 1 << bit) {
        if known & bit == 0 {
            let flags = DRM_SKUA_BO_CPU_ACCESS | bit;
            let swizzled = rig.bo_create(PAGE, flags, both(&rig));
            assert_eq!(swizzled, Err(Errno::EINVAL), "flags {flags:#x}");
        }
        let mut lock = drm_skua_bo_lock {
            handle,
            flags: bit,
            ..Default::default()
        };
        let locked = rig.call(DRM_IOCTL_SKUA_BO_LOCK, &mut lock);
        assert_eq!(locked, Err(Errno::EINVAL), "a lock with {bit:#x}");
    }
    assert_eq!(
        rig.unlock(handle),
        Err(Errno::EINVAL),
        "one of them locked it"
    );
}

fn row_0_16_cached_objects_are_locked_outside_of_vram() {
    is_locked_in_system_memory(CACHED);
}

fn row_0_16_what_could_not_be_locked_is_refused() {
    let client = Client::new();
    let vram = 1 << client.region(Place::Vram).id;
    let cases = [
        (CACHED, vram, Errno::EOPNOTSUPP),
        (DRM_SKUA_BO_CACHED, both(&client), Errno::EINVAL),
        (DRM_SKUA_BO_CACHED, vram, Errno::EINVAL),
    ];
    for (flags, placements, errno) in cases {
        assert_eq!(
            client.bo_create(PAGE, flags, placements),
            Err(errno),
            "flags {flags:#x}, placements {placements:#x}"
        );
    }
}

fn row_0_19_row_1_09_system_memory_is_locked_in_its_place() {
    let rig = alone();
    let system = 1 << rig.region(Place::System).id;
    for flags in [0, DRM_SKUA_BO_CPU_ACCESS, CACHED] {
        let handle = rig.bo_create(LARGE, flags, system).expect("BO_CREATE");
        let va = rig.bound_at_will(handle, LARGE);
        let moves = || {
            Function::first().counters([
                "driver_evictions",
                "driver_promotions",
                "driver_tlb_flushes",
                "driver_interrupts",
            ])
        };
        Function::first().at_rest();
        let before = moves();
        let cpu = locked(&rig, handle, LARGE);
        cpu.fill(pattern(3));
        assert_eq!(moves(), before, "the device was involved");
        assert_eq!(place(&rig, handle), Place::System);
        expect_not_in_bar(&cpu);
        cpu.fill(pattern(4));
        expect_gpu(&rig, "by the GPU", va, LARGE, pattern(4));
        assert_eq!(rig.unlock(handle), Ok(()));
    }
}

fn row_0_20_without_cpu_access_the_address_never_leads_to_vram() {
    let rig = alone();
    let (handle, _) = in_vram(&rig, 0, PAGE);
    assert_eq!(rig.mmap_offset(handle), Err(Errno::EPERM));
    assert_eq!(rig.close(handle), Ok(()));
    drop(rig);
    is_locked_in_system_memory(0);
}

fn row_0_20_what_is_in_vram_for_good_cannot_be_locked() {
    let rig = alone();
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig.bo_create(PAGE, 0, vram).expect("BO_CREATE");
    for _ in 0..2 {
        assert_eq!(rig.lock(handle), Err(Errno::EPERM));
        assert_eq!(rig.unlock(handle), Err(Errno::EINVAL));
        assert_eq!(rig.mmap_offset(handle), Err(Errno::EPERM));
        assert_eq!(place(&rig, handle), Place::Vram);
    }
}

fn row_0_21_what_is_locked_outside_stays_outside() {
    let rig = alone();
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig.bo_create(LARGE, 0, vram).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, LARGE);
    assert_eq!(
        rig.run(Engine::Compute, &[fill(7, va, LARGE)]),
        Ok(()),
        "in VRAM"
    );
    assert_eq!(evict_all(), 1);
    let cpu = locked(&rig, handle, LARGE);
    cpu.expect("what the GPU wrote", |_| 7 << 32 | 7);
    let stub = rig.syncobj();
    // Neither who wants it nor who needs it has it move under the CPU's stores. Who has locked it
    // and waits for it at once is told so.
    for round in 0..8 {
        cpu.fill(pattern(round));
        assert_eq!(
            rig.make_resident(&[handle], &[signal(stub)]),
            Err(Errno::EBUSY)
        );
        assert_eq!(rig.make_resident(&[handle], &[]), Ok(()));
        let work = rig
            .start_after(rig.compute, &[fill(8, va, LARGE)], &[])
            .map(drop);
        assert_eq!(work, Err(Errno::EBUSY), "round {round}");
        assert_eq!(place(&rig, handle), Place::System);
        cpu.expect("under the lock", pattern(round));
    }
    // A second lock keeps it there when the first one ends.
    assert!(rig.lock(handle).is_ok());
    assert_eq!(rig.unlock(handle), Ok(()));
    let work = rig
        .start_after(rig.compute, &[fill(8, va, LARGE)], &[])
        .map(drop);
    assert_eq!(work, Err(Errno::EBUSY));
    cpu.fill(pattern(9));
    assert_eq!(rig.unlock(handle), Ok(()));
    expect_gpu(&rig, "what the CPU wrote", va, LARGE, pattern(9));
    assert_eq!(place(&rig, handle), Place::Vram);
    assert_eq!(rig.lock(handle), Err(Errno::EPERM));
}

/// Others' work would be refused as long as the client likes.
fn row_0_21_what_others_may_have_is_not_locked_out() {
    let (rig, other) = (alone(), Rig::new());
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig.bo_create(PAGE, 0, vram).expect("BO_CREATE");
    assert_eq!(evict_all(), 1);
    assert!(rig.lock(handle).is_ok());
    assert_eq!(rig.export(handle).map(drop), Err(Errno::EBUSY));
    assert_eq!(rig.unlock(handle), Ok(()));
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    for (client, handle) in [(&*rig, handle), (&*other, theirs)] {
        assert_eq!(place(client, handle), Place::System);
        assert_eq!(client.lock(handle), Err(Errno::EPERM));
        assert_eq!(client.unlock(handle), Err(Errno::EINVAL));
    }
    let va = other.bound_at_will(theirs, PAGE);
    assert_eq!(other.run(Engine::Compute, &[fill(7, va, PAGE)]), Ok(()));
}

fn row_0_21_what_is_locked_out_is_not_opened_by_its_name() {
    let node = Function::first().primary_node().expect("a primary node");
    let open = || {
        let file = OpenOptions::new().read(true).write(true).open(&node);
        Rig::of(Client::of(file.expect("the primary node")))
    };
    let (rig, other) = (open(), open());
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig.bo_create(PAGE, 0, vram).expect("BO_CREATE");
    let mut named = drm_gem_flink { handle, name: 0 };
    assert_eq!(rig.call(DRM_IOCTL_GEM_FLINK, &mut named), Ok(()));
    evict_all();
    assert!(rig.lock(handle).is_ok());
    let mut opened = drm_gem_open {
        name: named.name,
        ..Default::default()
    };
    let refused = other.call(DRM_IOCTL_GEM_OPEN, &mut opened);
    assert_eq!(refused, Err(Errno::EBUSY));
    assert_eq!(rig.unlock(handle), Ok(()));
    assert_eq!(other.call(DRM_IOCTL_GEM_OPEN, &mut opened), Ok(()));
    assert_eq!(rig.lock(handle), Err(Errno::EPERM), "another has it");
    let va = other.bound_at_will(opened.handle, PAGE);
    assert_eq!(other.run(Engine::Compute, &[fill(7, va, PAGE)]), Ok(()));
}

/// Work that needs what is locked out is refused until it is unlocked.
#[track_caller]
fn expect_held_out(rig: &Rig, handle: u32, va: u64) {
    let work = rig.start_after(rig.compute, &[fill(8, va, LARGE)], &[]);
    assert_eq!(work.map(drop), Err(Errno::EBUSY));
    assert_eq!(place(rig, handle), Place::System);
}

/// What it waits for is there, but its memory is not: that is no failure.
fn row_0_21_what_is_held_goes_on_when_it_is_unlocked() {
    let rig = alone();
    let (handle, va) = out(&rig, LARGE);
    let cpu = locked(&rig, handle, LARGE);
    cpu.fill(pattern(1));
    let fence = rig.fence(0);
    let target = rig.buffer(Place::System, LARGE);
    let work = [copy(va, target.va, LARGE)];
    let held = rig.start_after(rig.copy, &work, &[wait_for(fence, 1)]);
    let held = held.expect("SUBMIT");
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    // Longer than for want of memory.
    thread::sleep(Duration::from_secs(12));
    assert!(!rig.signals_within(held.syncobj, 0, Duration::ZERO));
    assert_eq!(place(&rig, handle), Place::System);
    cpu.fill(pattern(2));
    assert_eq!(rig.unlock(handle), Ok(()));
    assert_eq!(held.wait(), Ok(()));
    target.cpu.expect("the last that was written", pattern(2));
    assert_eq!(place(&rig, handle), Place::Vram);
}

/// However much of it there is, workers are there for others.
fn what_is_held_keeps_no_worker() {
    let rig = alone();
    let (handle, va) = out(&rig, PAGE);
    let cpu = locked(&rig, handle, PAGE);
    let (fence, target) = (rig.fence(0), rig.buffer(Place::System, PAGE));
    let work = [copy(va, target.va, PAGE)];
    let start = |_| {
        let context = rig.context_create(rig.vm, rig.engine(Engine::Copy.kind()));
        let context = context.expect("CONTEXT_CREATE");
        let held = rig.start_after(context, &work, &[wait_for(fence, 1)]);
        held.expect("SUBMIT")
    };
    let held: Vec<_> = (0..100).map(start).collect();
    cpu.fill(pattern(1));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    thread::sleep(Duration::from_secs(2));
    assert!(!rig.signals_within(held[0].syncobj, 0, Duration::ZERO));
    // As many as there are when fewest are just looking.
    let busy = (0..20).map(|_| {
        thread::sleep(Duration::from_millis(50));
        workers_of("skua-holds")
    });
    let busy = busy.min().unwrap_or_default();
    println!("# {busy} workers of {}", held.len());
    assert!(busy < held.len() / 4, "{busy} workers wait");
    assert_eq!(rig.unlock(handle), Ok(()));
    for job in &held {
        assert_eq!(job.wait(), Ok(()));
    }
    target.cpu.expect("what was written", pattern(1));
}

/// How many threads of the kernel are busy with work of this queue.
fn workers_of(queue: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let comms = processes.flatten().filter_map(|process| {
        // It may be gone.
        std::fs::read_to_string(process.path().join("comm")).ok()
    });
    let is_busy =
        |comm: &String| comm.starts_with("kworker/") && comm.contains(&format!("+{queue}"));
    comms.filter(is_busy).count()
}

/// The paging fence waits, and what is behind it, and the object moves without anybody's asking.
fn row_0_21_what_is_resident_is_there_when_it_is_unlocked() {
    let (rig, device) = explicit();
    let (handle, va) = out(&rig, LARGE);
    let cpu = locked(&rig, handle, LARGE);
    cpu.fill(pattern(1));
    let refused = rig.make_resident_for(device, 0, &[handle]);
    assert_eq!(refused, Err((Errno::EBUSY, 0)), "a syncobj cannot wait");
    assert_eq!(
        rig.evict_for(device, &[handle]),
        Err(Errno::EINVAL),
        "none counted"
    );
    let (fence, other) = (rig.fence(0), movable(&rig, PAGE));
    let begin = |handle, value| {
        let syncs = [signal_value(fence, value)];
        rig.begin_resident_for(device, 0, &[handle], &syncs)
    };
    assert_eq!(begin(handle, 1), Ok(0));
    assert_eq!(begin(other, 2), Ok(0));
    assert!(rig.lock(handle).is_ok(), "a second lock");
    assert_eq!(rig.unlock(handle), Ok(()));
    // What fails takes nothing back of that.
    let refused = rig.make_resident_for(device, 0, &[handle]);
    assert_eq!(refused, Err((Errno::EBUSY, 0)));
    // Work that uses it waits for the value; other work does not.
    let [target, beside] = [LARGE, PAGE].map(|size| rig.buffer(Place::System, size));
    let work = [copy(va, target.va, LARGE)];
    let held = rig.start_after(rig.copy, &work, &[wait_for(fence, 1)]);
    let held = held.expect("SUBMIT");
    let work = [fill(8, beside.va, PAGE)];
    assert_eq!(rig.run(Engine::Compute, &work), Ok(()));
    assert_eq!(place(&rig, handle), Place::System);
    assert!(!rig.fence_has(fence, 1));
    cpu.expect("under the lock", pattern(1));
    cpu.fill(pattern(2));
    assert_eq!(rig.unlock(handle), Ok(()));
    assert!(rig.fence_gets(fence, 2));
    assert_eq!(place(&rig, handle), Place::Vram);
    assert_eq!(held.wait(), Ok(()));
    target.cpu.expect("what the work found", pattern(2));
    expect_gpu(&rig, "what the CPU wrote", va, LARGE, pattern(2));
}

/// Locked while others had made it leave: work that comes may use it, since it is resident.
fn row_0_21_what_was_resident_before_is_waited_for() {
    let (rig, device) = explicit();
    let (handle, va) = out(&rig, LARGE);
    let fence = rig.fence(0);
    let begin = |value| {
        let syncs = [signal_value(fence, value)];
        rig.begin_resident_for(device, 0, &[handle], &syncs)
    };
    assert_eq!(begin(1), Ok(0));
    assert!(rig.fence_gets(fence, 1));
    assert_eq!(place(&rig, handle), Place::Vram);
    assert_eq!(evict_all(), 1);
    let _cpu = locked(&rig, handle, LARGE);
    expect_held_out(&rig, handle, va);
    // So it stays if it is made resident once more.
    assert_eq!(begin(2), Ok(0));
    expect_held_out(&rig, handle, va);
    assert_eq!(rig.evict_for(device, &[handle]), Ok(()));
    assert_eq!(rig.unlock(handle), Ok(()));
    assert!(rig.fence_gets(fence, 2));
}

fn row_0_21_who_is_refused_is_told_of_no_excess() {
    const NOT_TRIM: u32 = DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER;
    let (rig, device) = explicit();
    let half = rig.region(Place::Vram).size / 2;
    let (handle, _) = out(&rig, half + LARGE);
    let _cpu = locked(&rig, handle, LARGE);
    let other = Client::new();
    let theirs = other.device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY);
    let theirs = theirs.expect("DEVICE_CREATE");
    let resident = other.make_resident_for(theirs, 0, &[other.bo(Place::Vram, half)]);
    assert_eq!(resident, Ok(0));
    let refused = rig.make_resident_for(device, 0, &[handle]);
    assert_eq!(refused, Err((Errno::ENOMEM, LARGE)), "it is too much");
    let refused = rig.make_resident_for(device, NOT_TRIM, &[handle]);
    assert_eq!(refused, Err((Errno::EBUSY, 0)), "a syncobj cannot wait");
}

fn so_many_wait_for_an_unlock() {
    const MOST: u64 = 64;
    let (rig, device) = explicit();
    let (handle, _) = out(&rig, LARGE);
    assert!(rig.lock(handle).is_ok());
    let fence = rig.fence(0);
    let begin = |value| {
        let syncs = [signal_value(fence, value)];
        rig.begin_resident_for(device, 0, &[handle], &syncs)
    };
    let begun: Vec<_> = (1..=MOST).map(begin).collect();
    assert!(begun.iter().all(Result::is_ok), "{begun:?}");
    assert_eq!(begin(MOST + 1), Err((Errno::ENOSPC, 0)));
    // It is no lack of memory: not the end of who must succeed.
    let must = DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER | DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED;
    let syncs = [signal_value(fence, MOST + 1)];
    let refused = rig.begin_resident_for(device, must, &[handle], &syncs);
    assert_eq!(refused, Err((Errno::ENOSPC, 0)));
    assert_eq!(rig.unlock(handle), Ok(()));
    assert!(rig.fence_gets(fence, MOST));
    assert_eq!(begin(MOST + 1), Ok(0), "they are over");
    assert!(rig.fence_gets(fence, MOST + 1));
}

/// However long it would wait.
fn row_0_21_who_waits_for_its_own_unlock_is_told() {
    let (rig, device) = explicit();
    let (handle, _) = out(&rig, LARGE);
    assert!(rig.lock(handle).is_ok());
    let [fence, mine] = [(); 2].map(|()| rig.fence(0));
    let syncs = [signal_value(fence, 5)];
    assert_eq!(rig.begin_resident_for(device, 0, &[handle], &syncs), Ok(0));
    let any = DRM_SKUA_FENCE_WAIT_ANY;
    let long = Duration::from_secs(20);
    for (values, flags) in [
        (vec![(fence, 5)], 0),
        (vec![(fence, 6)], 0),
        (vec![(mine, 0), (fence, 5)], 0),
        (vec![(mine, 1), (fence, 5)], any),
    ] {
        let waited = rig.fence_wait(&values, flags, long);
        assert_eq!(waited, Err(Errno::EBUSY), "{values:?}, {flags}");
    }
    // What does not have to wait for that.
    assert_eq!(rig.fence_wait(&[(mine, 0), (fence, 5)], any, long), Ok(0));
    let soon = Duration::from_millis(1);
    assert_eq!(rig.fence_wait(&[(fence, 4)], 0, soon), Err(Errno::ETIME));
    // Others, and other threads that began before, wait.
    let other = Client::new();
    let theirs = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(theirs).expect("FENCE_IMPORT");
    assert_eq!(other.fence_wait(&[(theirs, 5)], 0, soon), Err(Errno::ETIME));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.fence_gets(theirs, 5));
        assert_eq!(rig.unlock(handle), Ok(()));
        assert!(waiting.join().expect("a thread"));
    });
    assert!(rig.fence_gets(fence, 5));
}

/// By the handle, by its destruction, and by the file.
fn row_0_21_residency_of_what_is_locked_ends_with_the_lock() {
    type End = fn(Rig, u32) -> Option<Rig>;
    let ends: [(&str, End); 3] = [
        ("close", |rig, handle| {
            assert_eq!(rig.close(handle), Ok(()));
            Some(rig)
        }),
        ("destroy", |rig, handle| {
            assert_eq!(rig.destroy(&[handle], 0), Ok(()));
            Some(rig)
        }),
        ("close the file", |_, _| None),
    ];
    for (name, end) in ends {
        let (rig, device) = explicit();
        let (handle, _) = out(&rig, LARGE);
        assert!(rig.lock(handle).is_ok());
        let fence = rig.fence(0);
        let watcher = Client::new();
        let theirs = rig.fence_export(fence).expect("FENCE_EXPORT");
        let theirs = watcher.fence_import(theirs).expect("FENCE_IMPORT");
        let syncs = [signal_value(fence, 1)];
        let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
        assert_eq!(begun, Ok(0), "{name}");
        assert!(!watcher.fence_has(theirs, 1), "{name}");
        let _rig = end(rig, handle);
        assert!(watcher.fence_gets(theirs, 1), "{name}");
    }
}

fn row_0_21_residency_of_what_is_locked_ends_with_the_device() {
    type End = fn(&Client, u32) -> Result<(), Errno>;
    let ends: [(&str, End); 2] = [
        ("marked", Client::device_mark_error),
        ("destroyed", Client::device_destroy),
    ];
    for (name, end) in ends {
        let (rig, device) = explicit();
        let (handle, _) = out(&rig, LARGE);
        assert!(rig.lock(handle).is_ok());
        // The file's own, which does not fail with it.
        let fence = rig.fence(0);
        let syncs = [signal_value(fence, 1)];
        let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
        assert_eq!(begun, Ok(0), "{name}");
        assert_eq!(end(&rig, device), Ok(()), "{name}");
        assert!(rig.fence_gets(fence, u64::MAX), "{name}");
        assert_eq!(place(&rig, handle), Place::System, "{name}");
        assert_eq!(rig.unlock(handle), Ok(()), "{name}");
    }
}

/// A client that is killed: its value comes, and for what was its object nobody else leaves.
fn row_0_21_residency_of_what_is_locked_ends_with_its_client() {
    quiet();
    let watcher = Client::new();
    let fence = watcher.fence(0);
    let shared = watcher.fence_export(fence).expect("FENCE_EXPORT");
    let (mut said, mut says) = UnixStream::pair().expect("a pair");
    let child = Child::start(|| {
        let (rig, device) = explicit();
        let (handle, _) = out(&rig, LARGE);
        let _cpu = locked(&rig, handle, LARGE);
        let fence = rig.fence_import(&shared).expect("FENCE_IMPORT");
        let syncs = [signal_value(fence, 1)];
        let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
        says.write_all(&[u8::from(begun == Ok(0))]).expect("a pipe");
        thread::sleep(Duration::MAX);
        true
    });
    let mut begun = [0];
    said.read_exact(&mut begun).expect("a pipe");
    assert_eq!(begun, [1], "MAKE_RESIDENT");
    let free: Vec<u32> =
        std::iter::from_fn(|| watcher.try_bo_in_free(Place::Vram, LARGE).ok()).collect();
    assert!(!watcher.fence_has(fence, 1));
    child.kill();
    child.wait();
    assert!(watcher.fence_gets(fence, 1));
    assert!(!watcher.fence_has(fence, 2), "it is lost");
    let left = free
        .iter()
        .filter(|bo| place(&watcher, **bo) != Place::Vram);
    assert_eq!(left.count(), 0, "of {} objects", free.len());
}

fn row_0_21_what_is_evicted_meanwhile_stays_out() {
    let (rig, device) = explicit();
    let (handle, va) = out(&rig, LARGE);
    let fence = rig.fence(0);
    for value in 1..=2 {
        let cpu = locked(&rig, handle, LARGE);
        cpu.fill(pattern(value));
        let syncs = [signal_value(fence, value)];
        let begun = rig.begin_resident_for(device, 0, &[handle], &syncs);
        assert_eq!(begun, Ok(0));
        if value == 1 {
            assert_eq!(rig.evict_for(device, &[handle]), Ok(()));
        }
        assert!(!rig.fence_has(fence, value));
        assert_eq!(rig.unlock(handle), Ok(()));
        assert!(rig.fence_gets(fence, value));
        let there = [Place::System, Place::Vram][value as usize - 1];
        assert_eq!(place(&rig, handle), there, "round {value}");
    }
    expect_gpu(&rig, "what the CPU wrote", va, LARGE, pattern(2));
}

/// Wherever it is: what it was to signal comes, or is given up.
fn whoever_is_killed_leaves_no_residency_behind() {
    const ROUND: u64 = 1000;
    let watcher = Client::new();
    let fence = watcher.fence(0);
    let shared = watcher.fence_export(fence).expect("FENCE_EXPORT");
    for round in 0..u64::from(suite::rounds(12)) {
        let first = round * ROUND + 1;
        let (mut said, mut says) = UnixStream::pair().expect("a pair");
        let child = Child::start(|| {
            let (rig, device) = explicit();
            let (handle, _) = out(&rig, LARGE);
            let fence = rig.fence_import(&shared).expect("FENCE_IMPORT");
            (first..first + ROUND - 1).all(|value| {
                let syncs = [signal_value(fence, value)];
                let done = rig.lock(handle).is_ok()
                    && rig.begin_resident_for(device, 0, &[handle], &syncs) == Ok(0)
                    && says.write_all(&[1]).is_ok()
                    && rig.unlock(handle) == Ok(())
                    && rig.fence_gets(fence, value)
                    && rig.evict_for(device, &[handle]) == Ok(());
                evict_all();
                done
            }) && says.write_all(&[0]).is_ok()
        });
        let mut begun = vec![0; 1 + round as usize % 4];
        said.read_exact(&mut begun).expect("a pipe");
        (0..round * 4000).for_each(|_| spin_loop());
        child.kill();
        child.wait();
        assert!(begun.iter().all(|one| *one == 1), "round {round}");
        // Behind all that was promised.
        assert_eq!(watcher.fence_signal(fence, first + ROUND - 1), Ok(()));
        assert!(
            watcher.fence_gets(fence, first + ROUND - 1),
            "round {round}"
        );
        assert!(!watcher.fence_has(fence, first + ROUND), "it is lost");
        quiet();
    }
}

/// All of VRAM can be locked at a time, without that anything moves.
fn row_0_17_what_fills_vram_is_locked_where_it_is() {
    let rig = alone();
    let mut objects = Vec::new();
    for size in [4 * LARGE, 64 << 10, PAGE] {
        objects.extend(std::iter::from_fn(|| {
            rig.try_bo_in_free(Place::Vram, size).ok()
        }));
    }
    let region = rig.region(Place::Vram);
    assert!(region.used > region.size - LARGE, "{region:?}");
    let evictions = || Function::first().counters(["driver_evictions"]);
    let before = evictions();
    let bar = Function::first().map_bar(BAR_VRAM);
    let value = |n| pattern(0x17)(n) | 1;
    for (n, handle) in (1..).zip(&objects) {
        locked(&rig, *handle, PAGE).write(0, value(n));
        assert_eq!(place(&rig, *handle), Place::Vram, "object {n}");
    }
    assert_eq!(evictions(), before);
    let pages = (0..bar.len()).step_by(4096);
    let seen: BTreeSet<u64> = pages.map(|page| bar.read(page)).collect();
    println!("# {} objects", objects.len());
    for n in 1..=objects.len() {
        assert!(seen.contains(&value(n)), "object {n}");
    }
    for handle in &objects {
        assert_eq!(rig.unlock(*handle), Ok(()));
    }
}

fn row_0_01_row_0_17_what_the_cpu_sees_in_vram_stays() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let handle = movable(&rig, LARGE);
    let va = rig.bound_at_will(handle, LARGE);
    // Neither moved nor waited for.
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), fill(7, va, LARGE)],
    );
    let cpu = locked(&rig, handle, LARGE);
    cpu.fill(pattern(1));
    assert_eq!(place(&rig, handle), Place::Vram);
    assert!(!job.has_ended());
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    cpu.expect("the GPU's", |_| 7 << 32 | 7);
    // It may be moved, and comes back under the lock.
    cpu.fill(pattern(2));
    assert_eq!(evict_all(), 1);
    cpu.expect("in system memory", pattern(2));
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::Vram);
    cpu.expect("in VRAM", pattern(2));
    assert_eq!(rig.unlock(handle), Ok(()));
}

fn a_lock_waits_for_its_move_alone() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let (handle, va) = in_vram(&rig, 0, LARGE);
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), fill(9, va, LARGE)],
    );
    // A signal ends it.
    let interrupted = with_alarm(Duration::from_millis(100), || rig.lock(handle));
    assert_eq!(interrupted, Err(Errno::EINTR));
    assert_eq!(rig.unlock(handle), Err(Errno::EINVAL));
    thread::scope(|scope| {
        let client: &Client = &rig;
        let locking = scope.spawn(move || client.lock(handle).map(drop));
        thread::sleep(Duration::from_millis(100));
        assert!(!locking.is_finished(), "it did not wait");
        gate.cpu.write(0, 1);
        assert_eq!(locking.join().expect("a thread"), Ok(()));
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(place(&rig, handle), Place::System);
    let cpu = rig.map(handle);
    cpu.expect("the last write", |_| 9 << 32 | 9);
}

/// By one job after the other, as none may wait for so long.
fn what_is_in_use_for_long_is_not_locked() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let (handle, va) = in_vram(&rig, 0, LARGE);
    let start = |value| {
        let work = [wait_value(gate.va, value), fill(9, va, LARGE)];
        rig.start(Engine::Compute, &work)
    };
    let jobs = [1, 2].map(start);
    thread::scope(|scope| {
        let client: &Client = &rig;
        let locking = scope.spawn(move || client.lock(handle).map(drop));
        thread::sleep(Duration::from_secs(5));
        gate.cpu.write(0, 1);
        let refused = locking.join().expect("a thread");
        assert_eq!(refused, Err(Errno::ENOSPC));
    });
    assert_eq!(rig.unlock(handle), Err(Errno::EINVAL), "it is not locked");
    gate.cpu.write(0, 2);
    assert_eq!(jobs.each_ref().map(|job| job.wait()), [Ok(()); 2]);
    assert!(rig.lock(handle).is_ok());
    assert_eq!(rig.unlock(handle), Ok(()));
}

/// A lock is about to have the clean copy for the object's memory when somebody gets a way to write
/// the object: it is no reason to refuse it.
fn a_lock_looks_again_when_a_copy_has_gone() {
    let rig = alone();
    let size = 16 * PAGE;
    let all = rig.set(&[Place::Vram, Place::Aperture, Place::System]);
    // To have a place in the aperture takes time.
    let handle = rig
        .bo_create_preferring(size, CACHED, all, &[Place::Vram], &[Place::Aperture])
        .expect("BO_CREATE");
    let (client, vm, va): (&Client, u32, u64) = (&rig, rig.vm, rig.reserve(size));
    let dropped = || Function::first().counters(["driver_clean_dropped"]);
    let [before] = dropped();
    for round in 0..rounds(400) {
        resident(&rig, &[handle]);
        let begun = Barrier::new(2);
        let (locked, bound) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                begun.wait();
                (0..round % 32 * 64).for_each(|_| spin_loop());
                client.bind_and_wait(vm, &[map(handle, 0, va, size)])
            });
            begun.wait();
            let locked = client.lock(handle).map(drop);
            (locked, writer.join().expect("a thread"))
        });
        assert_eq!((locked, bound), (Ok(()), Ok(())), "round {round}");
        assert_ne!(place(&rig, handle), Place::Vram, "round {round}");
        assert_eq!(rig.unlock(handle), Ok(()));
        assert_eq!(rig.bind_and_wait(vm, &[unmap(va, size)]), Ok(()));
    }
    let [after] = dropped();
    println!("# {} copies have gone", (after - before) / size);
}

fn row_0_11_locks_are_counted() {
    let rig = alone();
    for flags in [0, DRM_SKUA_BO_CPU_ACCESS, CACHED] {
        let (handle, _) = in_vram(&rig, flags, PAGE);
        let there = match flags {
            DRM_SKUA_BO_CPU_ACCESS => Place::Vram,
            _ => Place::System,
        };
        assert_eq!(rig.unlock(handle), Err(Errno::EINVAL));
        let offset = rig.lock(handle).expect("BO_LOCK");
        for _ in 0..3 {
            assert_eq!(rig.lock(handle), Ok(offset));
        }
        for _ in 0..3 {
            assert_eq!(rig.unlock(handle), Ok(()));
            resident(&rig, &[handle]);
            assert_eq!(place(&rig, handle), there, "flags {flags:#x}");
        }
        assert_eq!(rig.unlock(handle), Ok(()));
        assert_eq!(rig.unlock(handle), Err(Errno::EINVAL));
        resident(&rig, &[handle]);
        assert_eq!(place(&rig, handle), Place::Vram, "flags {flags:#x}");
    }
}

fn row_0_11_locks_end_with_the_handle() {
    let rig = alone();
    let other = Client::new();
    let handle = rig.bo_create(PAGE, 0, both(&rig)).expect("BO_CREATE");
    let theirs = other
        .import(rig.export(handle).expect("export"))
        .expect("import");
    for client in [&*rig, &other] {
        let handle = if core::ptr::eq(client, &other) {
            theirs
        } else {
            handle
        };
        assert!(client.lock(handle).is_ok());
        assert!(client.lock(handle).is_ok());
    }
    assert_eq!(rig.close(handle), Ok(()));
    resident(&other, &[theirs]);
    assert_eq!(place(&other, theirs), Place::System, "the other's lock");
    assert_eq!(other.unlock(theirs), Ok(()));
    assert_eq!(other.unlock(theirs), Ok(()));
    resident(&other, &[theirs]);
    assert_eq!(place(&other, theirs), Place::Vram);
}

fn a_lock_brings_back_what_is_arriving() {
    let rig = alone();
    let (handle, va) = in_vram(&rig, 0, 4 * LARGE);
    for round in 0..8 {
        assert!(rig.lock(handle).is_ok());
        assert_eq!(place(&rig, handle), Place::System, "round {round}");
        rig.map(handle).fill(pattern(round));
        assert_eq!(rig.unlock(handle), Ok(()));
        // Nobody waits for the move.
        assert_eq!(rig.make_resident(&[handle], &[]), Ok(()));
        expect_gpu(&rig, "after a move", va, 4 * LARGE, pattern(round));
        assert_eq!(rig.make_resident(&[handle], &[]), Ok(()));
    }
}
