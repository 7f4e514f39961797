// SPDX-License-Identifier: MIT

//! What nobody can have written since it came to VRAM leaves that without being copied, and what
//! somebody may have written is copied.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags};
use skua_selftests::cgroup::MemoryGroup;
use skua_selftests::client::{map, map_fence, map_readonly, signal, unmap, wait};
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{
    alone, both, evict_all, evict_some, expect_gpu, pattern, place, press, resident,
    while_the_cpu_writes, Numbers,
};
use skua_selftests::raw::{in_child, Child};
use skua_selftests::rig::{copy, fill, wait_value};
use skua_selftests::suite::{becomes, eventually, rounds};
use skua_selftests::witness::{quiet, shmem, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
const SIZE: u64 = 1 << 20;
const LEN: usize = 1 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        what_is_only_read_is_not_copied: 60 at_rest,
        write_combined_objects_are_not_copied_either: 60 at_rest,
        what_the_gpu_may_write_is_copied: 60 at_rest,
        what_it_could_write_when_it_came_is_copied: 60 at_rest,
        what_nobody_can_write_any_more_is_not: 60 at_rest,
        a_bind_that_waits_may_write: 60 at_rest,
        another_client_may_write: 60 at_rest,
        a_read_only_mapping_that_becomes_writable: 60 at_rest,
        what_the_cpu_writes_is_copied: 60 at_rest,
        what_it_writes_through_a_dma_buf_is_copied: 60 at_rest,
        rights_that_come_later: 60 at_rest,
        a_mapping_that_has_moved: 60 at_rest,
        a_forked_child_may_write: 60 at_rest,
        when_memory_is_short_copies_go: 60 at_rest,
        a_groups_memory_is_not_for_copies: 60 at_rest,
        a_quota_is_not_for_copies: 120 at_rest,
        values_of_fences_come_before_copies: 60 at_rest,
        nobody_drops_copies_of_others: 120 at_rest,
        copies_are_given_back: 60 at_rest,
        copies_do_not_outlast_the_device: 60 at_rest,
        a_writer_notices_nothing: 120 at_rest,
        nobody_sees_what_is_stale: 240 at_rest,
    ])
}

/// What has left VRAM: bytes that engines copied from there to system memory, and bytes that needed
/// no copy.
#[track_caller]
fn left() -> [u64; 2] {
    Function::first().counters(["copy_vram_to_system", "driver_clean_bytes"])
}

/// Bytes of copies that are kept.
#[track_caller]
fn kept() -> u64 {
    let [kept] = Function::first().counters(["driver_clean_kept"]);
    kept
}

/// Has all leave VRAM, which is one object of `SIZE` bytes, and sees whether it was copied.
#[track_caller]
fn leaves(what: &str, copied: bool) {
    let before = left();
    // What comes to the aperture leaves that, too.
    assert!(evict_all() >= 1, "{what}");
    let after = left();
    let moved = [after[0] - before[0], after[1] - before[1]];
    println!("# {what}: {} bytes copied, {} not", moved[0], moved[1]);
    let wanted = if copied { [SIZE, 0] } else { [0, SIZE] };
    assert_eq!(moved, wanted, "{what}");
}

/// An object of `SIZE` bytes with a content, that has come to VRAM and is mapped nowhere.
#[track_caller]
fn arrived(client: &Client, flags: u32, placements: u32, seed: u64) -> u32 {
    let before = kept();
    let handle = client
        .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS | flags, placements)
        .expect("BO_CREATE");
    client.map(handle).fill(pattern(seed));
    evict_all();
    assert_ne!(place(client, handle), Place::Vram);
    resident(client, &[handle]);
    assert_eq!(place(client, handle), Place::Vram);
    assert_eq!(kept() - before, SIZE, "nobody may write it");
    handle
}

/// One that may be in either place.
#[track_caller]
fn plain(client: &Client, seed: u64) -> u32 {
    arrived(client, 0, both(client), seed)
}

/// Maps it for the GPU, which may only read it.
#[track_caller]
fn readonly(rig: &Rig, handle: u32) -> u64 {
    let va = rig.reserve(SIZE);
    let bound = rig.bind_and_wait(rig.vm, &[map_readonly(handle, 0, va, SIZE)]);
    assert_eq!(bound, Ok(()));
    va
}

/// A mapping for reading alone.
#[track_caller]
fn map_to_read(client: &Client, handle: u32) -> Mapping {
    let offset = client.mmap_offset(handle).expect("BO_MMAP_OFFSET");
    let rights = ProtFlags::PROT_READ;
    Mapping::with(
        client.duplicate(),
        offset,
        LEN,
        rights,
        MapFlags::MAP_SHARED,
    )
    .expect("mmap")
}

fn stays_clean(flags: u32) {
    let rig = alone();
    let bit = |place| 1 << rig.region(place).id;
    let (vram, aperture) = (bit(Place::Vram), bit(Place::Aperture));
    for placements in [both(&rig), vram, vram | aperture] {
        let handle = arrived(&rig, flags, placements, 1);
        let (va, cpu) = (readonly(&rig, handle), rig.map(handle));
        for round in 0..3 {
            let what = format!("placements {placements:#x}, round {round}");
            expect_gpu(&rig, &what, va, SIZE, pattern(1));
            assert_eq!(place(&rig, handle), Place::Vram, "{what}");
            cpu.expect(&what, pattern(1));
            leaves(&what, false);
            assert_eq!(kept(), 0, "{what}");
            cpu.expect(&what, pattern(1));
            let [in_before] = Function::first().counters(["copy_system_to_vram"]);
            resident(&rig, &[handle]);
            let [in_after] = Function::first().counters(["copy_system_to_vram"]);
            assert_eq!(in_after - in_before, SIZE, "{what}");
        }
        assert_eq!(rig.destroy(&[handle], 0), Ok(()));
    }
}

fn what_is_only_read_is_not_copied() {
    stays_clean(0);
}

fn write_combined_objects_are_not_copied_either() {
    stays_clean(DRM_SKUA_BO_WRITE_COMBINED);
}

/// Sees that what is there now is what is found after it was copied from VRAM, by CPU and GPU.
#[track_caller]
fn is_copied(rig: &Rig, handle: u32, what: &str, content: impl Fn(usize) -> u64) {
    assert_eq!(kept(), 0, "{what}");
    assert_eq!(place(rig, handle), Place::Vram, "{what}");
    leaves(what, true);
    rig.map(handle).expect(what, &content);
    let va = readonly(rig, handle);
    expect_gpu(rig, what, va, SIZE, &content);
    assert_eq!(rig.destroy(&[handle], 0), Ok(()));
}

fn what_the_gpu_may_write_is_copied() {
    let rig = alone();
    for (seed, engine) in (1..).zip(Engine::ALL) {
        let handle = plain(&rig, seed);
        let va = rig.bound_at_will(handle, SIZE);
        assert_eq!(rig.run(engine, &[fill(7, va, SIZE)]), Ok(()));
        is_copied(&rig, handle, &format!("{engine:?}"), |_| 7 << 32 | 7);
    }
    // Nobody asks whether it did.
    let handle = plain(&rig, 3);
    rig.bound_at_will(handle, SIZE);
    is_copied(&rig, handle, "it could", pattern(3));
    // A part is enough, and that it was mapped.
    let handle = plain(&rig, 4);
    let va = rig.reserve(PAGE);
    let bound = rig.bind_and_wait(rig.vm, &[map(handle, 5 * PAGE, va, PAGE)]);
    assert_eq!(bound, Ok(()));
    assert_eq!(rig.run(Engine::Copy, &[fill(9, va, PAGE)]), Ok(()));
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, PAGE)]), Ok(()));
    let content = |offset| match offset as u64 / PAGE {
        5 => 9 << 32 | 9,
        _ => pattern(4)(offset),
    };
    is_copied(&rig, handle, "a page", content);
}

fn what_it_could_write_when_it_came_is_copied() {
    let rig = alone();
    let vram = 1 << rig.region(Place::Vram).id;
    for placements in [both(&rig), vram] {
        let handle = rig
            .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, placements)
            .expect("BO_CREATE");
        rig.map(handle).fill(pattern(1));
        let (va, _) = (rig.bound_at_will(handle, SIZE), readonly(&rig, handle));
        assert_eq!(evict_all(), 1);
        resident(&rig, &[handle]);
        assert_eq!(rig.run(Engine::Compute, &[fill(8, va, SIZE)]), Ok(()));
        is_copied(&rig, handle, "a mapping from before", |_| 8 << 32 | 8);
    }
}

fn what_nobody_can_write_any_more_is_not() {
    let rig = alone();
    let handle = plain(&rig, 1);
    for round in 0..rounds(32) {
        let va = rig.bound_at_will(handle, SIZE);
        evict_all();
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, SIZE)]), Ok(()));
        resident(&rig, &[handle]);
        assert_eq!(kept(), SIZE, "round {round}");
    }
    leaves("it was unmapped", false);
}

fn a_bind_that_waits_may_write() {
    let (rig, other) = (alone(), Rig::new());
    let gate = other.buffer(Place::System, PAGE);
    let job = other.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let open = rig.syncobj_of(other.sync_file(job.syncobj));
    let handle = plain(&rig, 1);
    assert_eq!(evict_all(), 1);
    let (va, done) = (rig.reserve(SIZE), rig.syncobj());
    let syncs = [wait(open), signal(done)];
    assert_eq!(
        rig.bind(rig.vm, &[map(handle, 0, va, SIZE)], &syncs),
        Ok(())
    );
    // It comes, and then the bind has its turn.
    resident(&rig, &[handle]);
    rig.map(handle).expect("in VRAM", pattern(1));
    gate.cpu.write(0, 1);
    assert_eq!((job.wait(), rig.wait(done)), (Ok(()), Ok(())));
    assert_eq!(rig.run(Engine::Copy, &[fill(6, va, SIZE)]), Ok(()));
    is_copied(&rig, handle, "a bind that waited", |_| 6 << 32 | 6);
}

fn another_client_may_write() {
    let (one, two) = (alone(), Rig::new());
    let handle = plain(&one, 1);
    readonly(&one, handle);
    let shared = one.export(handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = two.import(&shared).expect("PRIME_FD_TO_HANDLE");
    assert_eq!(kept(), SIZE);
    let va = two.bound_at_will(theirs, SIZE);
    assert_eq!(two.run(Engine::Compute, &[fill(5, va, SIZE)]), Ok(()));
    is_copied(&one, handle, "another client", |_| 5 << 32 | 5);
}

fn a_read_only_mapping_that_becomes_writable() {
    let rig = alone();
    let handle = plain(&rig, 1);
    let va = readonly(&rig, handle);
    // What it may not write it does not.
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[fill(4, va, SIZE)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    expect_gpu(&rig, "as it was", va, SIZE, pattern(1));
    assert_eq!(kept(), SIZE);
    let bound = rig.bind_and_wait(rig.vm, &[map(handle, 0, va, SIZE)]);
    assert_eq!(bound, Ok(()));
    assert_eq!(rig.run(Engine::Compute, &[fill(4, va, SIZE)]), Ok(()));
    is_copied(&rig, handle, "mapped over", |_| 4 << 32 | 4);
}

fn what_the_cpu_writes_is_copied() {
    let rig = alone();
    let with = |offset: usize, value: u64| {
        move |at| match at == offset {
            true => value,
            false => pattern(1)(at),
        }
    };
    for flags in [0, DRM_SKUA_BO_WRITE_COMBINED] {
        // Without having read it.
        let handle = arrived(&rig, flags, both(&rig), 1);
        let cpu = rig.map(handle);
        cpu.write(8, 77);
        is_copied(&rig, handle, "a write", with(8, 77));
        // What it has read before: the same page, one that was mapped with it, all of them.
        for at in [0, 8 * 4096, LEN - 8] {
            let handle = arrived(&rig, flags, both(&rig), 1);
            let cpu = rig.map(handle);
            cpu.expect("to read", pattern(1));
            assert_eq!(kept(), SIZE);
            cpu.write(at, 78);
            cpu.expect("in VRAM", with(at, 78));
            is_copied(&rig, handle, &format!("a write at {at:#x}"), with(at, 78));
        }
    }
    // Two mappings: who reads does not keep who writes from being seen.
    let handle = plain(&rig, 1);
    let (one, two) = (rig.map(handle), map_to_read(&rig, handle));
    two.expect("to read", pattern(1));
    one.write(16, 79);
    two.expect("to read again", with(16, 79));
    is_copied(&rig, handle, "another mapping", with(16, 79));
}

fn what_it_writes_through_a_dma_buf_is_copied() {
    let rig = alone();
    let handle = plain(&rig, 1);
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let cpu = Mapping::new(&shared, 0, LEN).expect("mmap of a dma-buf");
    cpu.expect("to read", pattern(1));
    assert_eq!(kept(), SIZE);
    cpu.fill(pattern(2));
    is_copied(&rig, handle, "a dma-buf", pattern(2));
}

fn rights_that_come_later() {
    let rig = alone();
    let handle = plain(&rig, 1);
    let cpu = map_to_read(&rig, handle);
    cpu.expect("to read", pattern(1));
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    assert_eq!(cpu.protect(both), Ok(()));
    cpu.expect("to read again", pattern(1));
    assert_eq!(kept(), SIZE);
    cpu.fill(pattern(2));
    is_copied(&rig, handle, "mprotect", pattern(2));
    // Taken and given back, while it was elsewhere.
    let handle = plain(&rig, 3);
    let cpu = rig.map(handle);
    cpu.write(0, 5);
    assert_eq!(cpu.protect(ProtFlags::PROT_READ), Ok(()));
    assert_eq!(evict_all(), 1);
    assert_eq!(cpu.read(0), 5);
    resident(&rig, &[handle]);
    assert_eq!((cpu.read(0), kept()), (5, SIZE));
    assert_eq!(cpu.protect(both), Ok(()));
    assert_eq!((cpu.read(0), kept()), (5, SIZE));
    cpu.fill(pattern(4));
    is_copied(&rig, handle, "mprotect to and fro", pattern(4));
}

fn a_mapping_that_has_moved() {
    let rig = alone();
    let handle = plain(&rig, 1);
    let mut cpu = rig.map(handle);
    cpu.expect("to read", pattern(1));
    // Page table entries go along.
    let other = rig.map(handle);
    let moved = cpu.remap(LEN, MRemapFlags::MREMAP_MAYMOVE);
    assert_eq!(moved, Ok(()));
    drop(other);
    cpu.expect("to read again", pattern(1));
    cpu.fill(pattern(2));
    is_copied(&rig, handle, "mremap", pattern(2));
}

fn a_forked_child_may_write() {
    let rig = alone();
    let handle = plain(&rig, 1);
    let cpu = rig.map(handle);
    cpu.expect("to read", pattern(1));
    // The child has the page tables of its parent as they were.
    assert!(in_child(|| {
        let seen = cpu.differs(pattern(1)).is_none();
        cpu.fill(pattern(2));
        seen
    }));
    cpu.expect("what the child wrote", pattern(2));
    is_copied(&rig, handle, "a child", pattern(2));
    // One that has them still when the object has moved, and moved back.
    let handle = plain(&rig, 3);
    let cpu = rig.map(handle);
    let go = rig.buffer(Place::System, PAGE);
    cpu.expect("to read", pattern(3));
    let child = Child::start(|| {
        let seen = cpu.differs(pattern(3)).is_none();
        go.cpu.write(0, 1);
        let told = eventually(|| (go.cpu.read(8) == 1).then_some(()));
        cpu.fill(pattern(4));
        seen && told.is_some()
    });
    becomes("the child begins", || go.cpu.read(0) == 1);
    leaves("a child that has read", false);
    resident(&rig, &[handle]);
    cpu.expect("back in VRAM", pattern(3));
    go.cpu.write(8, 1);
    assert!(child.wait());
    is_copied(&rig, handle, "a child with old mappings", pattern(4));
}

fn when_memory_is_short_copies_go() {
    let rig = alone();
    press();
    let handle = plain(&rig, 1);
    let va = readonly(&rig, handle);
    let counters = || Function::first().counters(["driver_clean_kept", "driver_clean_dropped"]);
    let (before, used) = (counters(), rig.region(Place::System).used);
    let held = shmem();
    // Nothing is lost by that: no page is given back that anybody had.
    assert_eq!(press(), 0);
    let after = counters();
    assert_eq!((before[0], after[0]), (SIZE, 0));
    assert_eq!(after[1] - before[1], SIZE);
    // The move that made it holds it for a moment.
    let given = || used - rig.region(Place::System).used;
    let all = eventually(|| (given() == SIZE).then_some(()));
    assert!(all.is_some(), "{} of {SIZE} bytes", given());
    let freed = eventually(|| (shmem() + SIZE / 2 <= held).then_some(()));
    assert!(freed.is_some(), "{} of {held} bytes of shmem", shmem());
    expect_gpu(&rig, "in VRAM", va, SIZE, pattern(1));
    leaves("without a copy", true);
    expect_gpu(&rig, "in system memory", va, SIZE, pattern(1));
    rig.map(handle).expect("by the CPU", pattern(1));
    // Swapped out or not, it comes back, and what is kept of it then is right.
    resident(&rig, &[handle]);
    assert_eq!(kept(), SIZE);
    leaves("with one", false);
    rig.map(handle).expect("once more", pattern(1));
    assert_eq!(rig.destroy(&[handle], 0), Ok(()));
}

/// Nobody of a control group is killed for copies that it pays for; and it gets none of others'.
fn a_groups_memory_is_not_for_copies() {
    let group = MemoryGroup::enter();
    let rig = alone();
    let objects: Vec<u32> = (0..16)
        .map(|seed| {
            let handle = rig
                .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, both(&rig))
                .expect("BO_CREATE");
            rig.map(handle).fill(pattern(seed));
            handle
        })
        .collect();
    evict_all();
    resident(&rig, &objects);
    assert_eq!(kept(), 16 * SIZE);
    assert!(in_child(|| {
        let other = MemoryGroup::enter();
        let held = vec![1_u8; 2 * LEN];
        other.reclaim(SIZE);
        held.iter().all(|byte| *byte == 1)
    }));
    assert_eq!(kept(), 16 * SIZE, "another group was short of memory");
    group.set_max(group.current() + 4 * SIZE);
    let lives = in_child(|| {
        let held = vec![1_u8; 12 * LEN];
        held.iter().all(|byte| *byte == 1)
    });
    println!("# {} bytes are kept", kept());
    assert!(lives, "it has no memory");
    assert!(kept() <= 8 * SIZE, "{} bytes", kept());
    for (seed, handle) in (0..).zip(&objects) {
        let what = format!("object {seed}");
        assert_eq!(place(&rig, *handle), Place::Vram, "{what}");
        rig.map(*handle).expect(&what, pattern(seed));
    }
}

/// Takes all that `client` may have of system memory.
fn hog(client: &Client) -> Vec<u32> {
    let system = client.region(Place::System);
    let mut size = system.size / 4;
    let mut hog = Vec::new();
    while size >= PAGE {
        match client.bo_create(size, 0, 1 << system.id) {
            Ok(handle) => hog.push(handle),
            Err(_) => size = size / 2 / PAGE * PAGE,
        }
    }
    let refused = client.bo_create(PAGE, 0, 1 << system.id);
    assert_eq!(refused, Err(Errno::ENOMEM));
    hog
}

fn a_quota_is_not_for_copies() {
    let rig = alone();
    let handle = plain(&rig, 1);
    let hog = hog(&rig);
    assert_eq!(kept(), 0);
    // What is too much is not kept: it leaves, which is charged whether or not it fits.
    leaves("without a copy", true);
    resident(&rig, &[handle]);
    assert_eq!((place(&rig, handle), kept()), (Place::Vram, 0));
    rig.map(handle).expect("in VRAM", pattern(1));
    assert_eq!(rig.destroy(&hog, 0), Ok(()));
    leaves("nor then", true);
    rig.map(handle).expect("at the end", pattern(1));
    assert_eq!(rig.destroy(&[handle], 0), Ok(()));
}

fn values_of_fences_come_before_copies() {
    let rig = alone();
    let fence = rig.fence(0);
    let va = rig.reserve(2 * PAGE);
    // Its page tables are there from then on.
    assert_eq!(rig.bind_and_wait(rig.vm, &[map_fence(fence, va)]), Ok(()));
    plain(&rig, 1);
    let state = rig.device_state(0).expect("DEVICE_STATE");
    let rest = state.system_limit - state.system_used;
    rig.bo(Place::System, rest);
    assert_eq!(kept(), SIZE);
    let bound = rig.bind_and_wait(rig.vm, &[map_fence(fence, va + PAGE)]);
    assert_eq!((bound, kept()), (Ok(()), 0));
}

/// Neither who may have no more, nor who asks for what nobody may have.
fn nobody_drops_copies_of_others() {
    let rig = alone();
    plain(&rig, 1);
    let other = Client::new();
    let system = other.region(Place::System);
    for size in [system.size * 2, 1 << 40] {
        let refused = other.bo_create(size, 0, 1 << system.id);
        assert_eq!(refused, Err(Errno::ENOMEM), "{size:#x} bytes");
    }
    hog(&other);
    assert_eq!(kept(), SIZE);
    leaves("with its copy", false);
}

fn copies_are_given_back() {
    let rig = alone();
    let va = rig.reserve(SIZE);
    // The first one leaves page tables behind.
    let mut before = None;
    for round in 0..6 {
        let handle = plain(&rig, round);
        let bound = rig.bind_and_wait(rig.vm, &[map_readonly(handle, 0, va, SIZE)]);
        assert_eq!(bound, Ok(()));
        let held = shmem();
        if round % 2 == 0 {
            // By what writes.
            rig.map(handle).write(0, 1);
            assert_eq!(kept(), 0);
            let freed = eventually(|| (shmem() + SIZE / 2 <= held).then_some(()));
            assert!(freed.is_some(), "{} of {held} bytes of shmem", shmem());
        }
        assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, SIZE)]), Ok(()));
        match round % 3 {
            0 => assert_eq!(rig.close(handle), Ok(())),
            _ => assert_eq!(rig.destroy(&[handle], 0), Ok(())),
        }
        let before = before.get_or_insert_with(|| Witness::settled(&rig));
        before.expect_unchanged(&rig);
        assert_eq!(kept(), 0, "round {round}");
    }
}

fn copies_do_not_outlast_the_device() {
    let rig = alone();
    let handle = plain(&rig, 1);
    readonly(&rig, handle);
    let cpu = rig.map(handle);
    cpu.expect("to read", pattern(1));
    let function = Function::first();
    function.unbind().expect("unbind");
    // It reads as what is gone, and can be written.
    cpu.read(0);
    cpu.fill(pattern(2));
    function.bind().expect("bind");
    cpu.write(0, 3);
    drop((cpu, rig));
    quiet();
    assert_eq!(kept(), 0);
}

fn a_writer_notices_nothing() {
    let rig = alone();
    for placements in [both(&rig), 1 << rig.region(Place::Vram).id] {
        let handle = rig
            .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, placements)
            .expect("BO_CREATE");
        readonly(&rig, handle);
        let (cpu, reader) = (rig.map(handle), map_to_read(&rig, handle));
        while_the_cpu_writes(&cpu, || {
            for _ in 0..rounds(40) {
                evict_all();
                // Between the writes, that a page is mapped read-only again.
                (0..LEN).step_by(4096).for_each(|at| _ = reader.read(at));
                resident(&rig, &[handle]);
                (0..LEN).step_by(4096).for_each(|at| _ = reader.read(at));
            }
        });
        assert_eq!(rig.destroy(&[handle], 0), Ok(()));
    }
}

/// Writes and reads objects of its own in all ways, so many times, while they move.
fn work(number: u64, steps: u32) {
    let rig = Rig::new();
    let vram = 1 << rig.region(Place::Vram).id;
    let out = rig.buffer(Place::System, SIZE);
    let mut numbers = Numbers(number);
    let objects: Vec<_> = (0..6)
        .map(|n: usize| {
            let placements = [both(&rig), vram][n % 2];
            let combined = [0, DRM_SKUA_BO_WRITE_COMBINED][n / 2 % 2];
            let flags = DRM_SKUA_BO_CPU_ACCESS | combined;
            let handle = rig.bo_create(SIZE, flags, placements).expect("BO_CREATE");
            (handle, rig.map(handle), readonly(&rig, handle))
        })
        .collect();
    let mut seeds: Vec<Option<u64>> = vec![None; objects.len()];
    for step in 0..steps {
        let at = numbers.below(objects.len());
        let (handle, cpu, va) = &objects[at];
        let what = format!("client {number}, step {step}, object {at}");
        let content =
            |seed: Option<u64>| move |offset| seed.map_or(0, |seed| pattern(seed)(offset));
        let new = number << 32 | u64::from(step);
        match numbers.below(7) {
            0 => {
                cpu.fill(pattern(new));
                seeds[at] = Some(new);
            }
            1 => {
                // By the GPU, with a mapping that goes at once.
                out.cpu.fill(pattern(new));
                let to = rig.bound_at_will(*handle, SIZE);
                let job = rig.start(Engine::Copy, &[copy(out.va, to, SIZE)]);
                if numbers.below(2) == 0 {
                    evict_some();
                }
                assert_eq!(job.wait(), Ok(()), "{what}");
                assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(to, SIZE)]), Ok(()));
                seeds[at] = Some(new);
            }
            2 => expect_gpu(&rig, &what, *va, SIZE, content(seeds[at])),
            3 | 4 => cpu.expect(&what, content(seeds[at])),
            5 => resident(&rig, &[*handle]),
            _ => evict_some(),
        }
    }
    for ((_, cpu, va), seed) in objects.iter().zip(seeds) {
        let content = |offset| seed.map_or(0, |seed| pattern(seed)(offset));
        cpu.expect("at the end", content);
        expect_gpu(&rig, "at the end", *va, SIZE, content);
    }
}

fn nobody_sees_what_is_stale() {
    quiet();
    let client = Client::new();
    let before = (Witness::settled(&client), left());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=3)
            .map(|number| scope.spawn(move || work(number, rounds(150))))
            .collect();
        let presser = scope.spawn(|| {
            let mut used = before.1[1];
            while !stop.load(Ordering::Relaxed) {
                // Not so often that no copy is there until it is of use.
                let now = left()[1];
                if now > used {
                    press();
                    used = now;
                }
                thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        let ends: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok));
        presser.join().expect("a thread");
    });
    let after = left();
    let [copied, clean] = [after[0] - before.1[0], after[1] - before.1[1]];
    println!("# {copied} bytes were copied, {clean} were not");
    assert!(clean > 0);
    quiet();
    before.0.expect_unchanged(&client);
    assert_eq!(kept(), 0);
}
