// SPDX-License-Identifier: MIT

//! The CPU's mappings of buffer objects.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags};
use nix::sys::resource::{getrusage, UsageWho};
use skua_selftests::client::Client;
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{evict_all, find, movable_in_vram, pattern, place, resident};
use skua_selftests::raw::in_child;
use skua_selftests::rig::{copy, wait_value, write};
use skua_selftests::{suite, tests, Engine, Errno, Place, Rig};
use skua_spec::pci::{BAR_REGS, BAR_VRAM};
use skua_spec::register::Register;
use skua_spec::regs;

const PAGE: usize = 4096;
const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        all_mappings_show_the_same,
        the_gpu_sees_what_the_cpu_writes: 60,
        the_cpu_sees_what_the_gpu_writes: 60,
        programs_and_cpu_see_each_other,
        forked_children_share_mappings,
        parts_can_be_unmapped,
        mappings_can_shrink_and_not_grow,
        only_whole_objects_can_be_mapped,
        private_mappings_are_refused,
        read_only_files_cannot_be_mapped_for_writing,
        rights_can_be_changed,
        system_calls_write_to_mappings,
        mappings_of_every_kind_can_be_removed_and_come_back: 60 at_rest,
        row_0_01_mapping_does_not_wait_for_the_gpu at_rest,
        row_0_17_all_of_vram_is_mapped_at_once: 120 at_rest,
        row_0_17_row_1_08_addresses_lead_straight_to_the_bar: 60 at_rest,
        row_0_19_row_1_09_system_memory_is_mapped_directly: 60 at_rest,
        row_0_28_coherent_memory_needs_no_call: 60,
        row_1_11_nobody_holds_on_to_what_is_mapped: 60 at_rest,
    ])
}

fn all_mappings_show_the_same() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, 64 << 10);
        let (first, second) = (client.map(handle), client.map(handle));
        assert_ne!(first.address(), second.address());
        first.fill(pattern(1));
        second.expect(&format!("{place:?}"), pattern(1));
        second.write(PAGE, 7);
        assert_eq!(first.read(PAGE), 7, "{place:?}");
        assert_eq!(client.mmap_offset(handle), client.mmap_offset(handle));
    }
}

fn the_gpu_sees_what_the_cpu_writes() {
    let rig = Rig::new();
    let size: u64 = 1 << 20;
    for (seed, place) in (10..).zip(Place::ALL) {
        for (more, engine) in (100..).zip(Engine::ALL) {
            let source = rig.buffer(place, size);
            let out = rig.buffer(Place::System, size);
            source.cpu.fill(pattern(seed + more));
            assert_eq!(rig.run(engine, &[copy(source.va, out.va, size)]), Ok(()));
            out.cpu.expect(
                &format!("{place:?} through {engine:?}"),
                pattern(seed + more),
            );
            // Again, so that nothing old is kept anywhere.
            source.cpu.fill(pattern(seed * more));
            assert_eq!(rig.run(engine, &[copy(source.va, out.va, size)]), Ok(()));
            out.cpu.expect(
                &format!("{place:?} through {engine:?}, again"),
                pattern(seed * more),
            );
        }
    }
}

fn the_cpu_sees_what_the_gpu_writes() {
    let rig = Rig::new();
    let size: u64 = 1 << 20;
    for (seed, place) in (20..).zip(Place::ALL) {
        for (more, engine) in (200..).zip(Engine::ALL) {
            let source = rig.buffer(Place::System, size);
            let target = rig.buffer(place, size);
            target.cpu.fill(|_| u64::MAX);
            source.cpu.fill(pattern(seed + more));
            assert_eq!(rig.run(engine, &[copy(source.va, target.va, size)]), Ok(()));
            target.cpu.expect(
                &format!("{place:?} through {engine:?}"),
                pattern(seed + more),
            );
        }
    }
}

fn programs_and_cpu_see_each_other() {
    use skua_selftests::program::{address, COPY_WORD};
    use skua_selftests::rig::dispatch;
    let rig = Rig::new();
    let program = rig.program(COPY_WORD);
    for from in Place::ALL {
        for to in Place::ALL {
            let (source, target) = (rig.buffer(from, 4096), rig.buffer(to, 4096));
            for value in 1..20 {
                source.cpu.write32(64, value);
                let arguments = [address(source.va + 64), address(target.va + 128)].concat();
                let work = [dispatch(&program, COPY_WORD, &arguments)];
                assert_eq!(
                    rig.run(Engine::Compute, &work),
                    Ok(()),
                    "{from:?} to {to:?}"
                );
                assert_eq!(target.cpu.read32(128), value, "{from:?} to {to:?}");
            }
        }
    }
}

fn forked_children_share_mappings() {
    let client = Client::new();
    for place in Place::ALL {
        let map = client.map(client.bo(place, 64 << 10));
        map.write(0, 1);
        // One page is touched here first, one there, one by both.
        let child = in_child(|| {
            map.write(8, 2);
            map.write(2 * PAGE, 3);
            map.read(0) == 1
        });
        assert!(
            child,
            "{place:?}: the child does not see what its parent wrote"
        );
        assert_eq!((map.read(8), map.read(2 * PAGE)), (2, 3), "{place:?}");
    }
}

fn parts_can_be_unmapped() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, 16 << 12);
        let map = client.map(handle);
        map.fill(pattern(3));
        let (head, tail) = map.punch(4 * PAGE, 2 * PAGE).expect("munmap");
        assert_eq!((head.len(), tail.len()), (4 * PAGE, 10 * PAGE));
        head.expect(&format!("{place:?}, the head"), pattern(3));
        tail.expect(&format!("{place:?}, the tail"), |offset| {
            pattern(3)(offset + 6 * PAGE)
        });
        drop(head);
        tail.fill(pattern(4));
        let again = client.map(handle);
        assert_eq!(
            again.read(5 * PAGE),
            pattern(3)(5 * PAGE),
            "{place:?}, the hole"
        );
        assert_eq!(again.read(6 * PAGE), pattern(4)(0), "{place:?}");
        assert_eq!(client.close(handle), Ok(()));
        again.write(0, 5);
    }
}

fn mappings_can_shrink_and_not_grow() {
    let client = Client::new();
    for place in Place::ALL {
        let mut map = client.map(client.bo(place, 8 << 12));
        map.fill(pattern(5));
        assert_eq!(
            map.remap(4 * PAGE, MRemapFlags::empty()),
            Ok(()),
            "{place:?}"
        );
        map.expect(&format!("{place:?}, shrunk"), pattern(5));
        let grown = map.remap(8 * PAGE, MRemapFlags::MREMAP_MAYMOVE);
        assert_eq!(
            grown,
            Err(Errno::EFAULT),
            "{place:?}: DRM mappings do not expand"
        );
        map.expect(&format!("{place:?}, still there"), pattern(5));
    }
}

fn only_whole_objects_can_be_mapped() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, 4 << 12);
        let offset = client.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        let refused = |offset, len| Mapping::new(&client, offset, len).map(drop);
        assert_eq!(
            refused(offset, 5 * PAGE),
            Err(Errno::EINVAL),
            "{place:?}: beyond its end"
        );
        assert_eq!(
            refused(offset + 4096, PAGE),
            Err(Errno::EINVAL),
            "{place:?}: from its middle"
        );
        assert_eq!(
            refused(offset + 4 * 4096, PAGE),
            Err(Errno::EINVAL),
            "{place:?}: behind it"
        );
        assert_eq!(
            refused(0, PAGE),
            Err(Errno::EINVAL),
            "{place:?}: where nothing is"
        );
        // A first part is allowed.
        let part = Mapping::new(&client, offset, 2 * PAGE).expect("mmap of a part");
        part.write(PAGE, 1);
    }
}

fn private_mappings_are_refused() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, 4096);
        let offset = client.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        let private = Mapping::with(&client, offset, PAGE, RW, MapFlags::MAP_PRIVATE).map(|map| {
            // The kernel would have to copy a page that it has no structure for.
            map.write(0, 1);
        });
        assert_eq!(private, Err(Errno::EINVAL), "{place:?}");
    }
}

fn read_only_files_cannot_be_mapped_for_writing() {
    let node = Function::first().node().expect("a render node");
    let client = Client::of(File::open(node).expect("the node, for reading"));
    let handle = client.bo(Place::System, 4096);
    let offset = client.mmap_offset(handle).expect("BO_MMAP_OFFSET");
    assert_eq!(
        Mapping::new(&client, offset, PAGE).map(drop),
        Err(Errno::EACCES)
    );
    let map = Mapping::with(
        &client,
        offset,
        PAGE,
        ProtFlags::PROT_READ,
        MapFlags::MAP_SHARED,
    )
    .expect("mmap for reading");
    assert_eq!(map.read(0), 0);
    assert_eq!(map.protect(RW), Err(Errno::EACCES));
}

fn rights_can_be_changed() {
    let client = Client::new();
    for place in Place::ALL {
        let map = client.map(client.bo(place, 4096));
        map.write(0, 6);
        assert_eq!(map.protect(ProtFlags::PROT_READ), Ok(()));
        assert_eq!(map.read(0), 6);
        let wrote = in_child(|| {
            map.write(0, 7);
            true
        });
        assert!(!wrote, "{place:?}: written without the right");
        assert_eq!(map.protect(RW), Ok(()));
        map.write(0, 8);
        assert_eq!(map.read(0), 8);
    }
}

fn system_calls_write_to_mappings() {
    // copy_to_user() into a mapping whose pages are not there yet: the fault comes in the kernel.
    let client = Client::new();
    for place in Place::ALL {
        let map = client.map(client.bo(place, 16 << 12));
        let file = File::open("/proc/self/exe").expect("a file");
        assert_eq!(map.read_from(&file), Ok(map.len()), "{place:?}");
        assert_eq!(map.read32(0).to_le_bytes(), *b"\x7fELF", "{place:?}");
    }
}

/// Page faults that reading the first word takes.
fn faults_of_a_read(map: &Mapping) -> i64 {
    let count = || getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.minor_page_faults());
    let before = count().expect("getrusage");
    map.read(0);
    count().expect("getrusage") - before
}

fn mappings_of_every_kind_can_be_removed_and_come_back() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, 1 << 20);
        // By its dma-buf first, before anybody has asked for its offset in the node.
        let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
        let theirs = Mapping::new(&shared, 0, 1 << 20).expect("mmap of a dma-buf");
        theirs.fill(pattern(8));
        let ours = client.map(handle);
        ours.expect(&format!("{place:?}"), pattern(8));
        for _ in 0..3 {
            for (name, map) in [("dma-buf", &theirs), ("node", &ours)] {
                assert_eq!(faults_of_a_read(map), 0, "{place:?}, {name}: mapped");
            }
            let handles = Function::first().debugfs("zap").expect("debugfs");
            assert_eq!(handles.trim(), "1", "objects with a handle");
            for (name, map) in [("dma-buf", &theirs), ("node", &ours)] {
                assert!(
                    faults_of_a_read(map) > 0,
                    "{place:?}, {name}: the mapping is still there"
                );
                map.expect(&format!("{place:?}, {name}: come back"), pattern(8));
            }
        }
        assert_eq!(client.close(handle), Ok(()));
    }
}

fn row_0_01_mapping_does_not_wait_for_the_gpu() {
    let rig = Rig::new().having_worked();
    for place in Place::ALL {
        let gate = rig.buffer(Place::System, 4096);
        let target = rig.bo(place, 4096);
        let va = rig.bound_at_will(target, 4096);
        let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1), write(va, 5)]);
        // The kernel knows nothing of what the job uses: all this happens while it runs.
        let map = rig.map(target);
        assert_eq!(map.read(0), 0);
        map.write(0, 3);
        map.write(8, 4);
        assert_eq!(rig.info(target).expect("BO_INFO").size, 4096);
        assert!(!job.has_ended(), "{place:?}: mapping waited for the job");
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        assert_eq!((map.read(0), map.read(8)), (5, 4), "{place:?}");
    }
}

/// Objects that fill all of VRAM.
fn all_of_vram(client: &Client) -> Vec<u32> {
    let mut handles = Vec::new();
    for size in [4 << 20, 64 << 10, 4096] {
        while let Ok(handle) = client.try_bo_in_free(Place::Vram, size) {
            handles.push(handle);
        }
    }
    let region = client.region(Place::Vram);
    assert_eq!(region.used, region.size, "VRAM cannot be filled");
    assert_eq!(
        region.cpu_visible_size, region.size,
        "not all of VRAM is visible"
    );
    handles
}

fn row_0_17_all_of_vram_is_mapped_at_once() {
    skua_selftests::witness::quiet();
    let rig = Rig::new();
    let handles = all_of_vram(&rig);
    let used = rig.regions();
    let maps: Vec<Mapping> = handles.iter().map(|handle| rig.map(*handle)).collect();
    let mapped: u64 = maps.iter().map(|map| map.len() as u64).sum();
    assert_eq!(mapped, rig.region(Place::Vram).size);
    // All of it is written while all of it is mapped, so that nothing can have been moved away.
    for (n, map) in (0..).zip(&maps) {
        for offset in (0..map.len()).step_by(PAGE) {
            map.write(offset, n << 32 | offset as u64);
        }
    }
    for (n, map) in (0..).zip(&maps) {
        for offset in (0..map.len()).step_by(PAGE) {
            assert_eq!(map.read(offset), n << 32 | offset as u64, "object {n}");
        }
    }
    // Nothing was moved, and the GPU finds the same.
    let vram = rig.region(Place::Vram).id;
    for handle in &handles {
        assert_eq!(rig.info(*handle).expect("BO_INFO").region, vram);
    }
    assert_eq!(rig.regions(), used);
    let out = rig.buffer(Place::System, 4 << 20);
    for ((n, handle), map) in (0..).zip(&handles).zip(&maps) {
        let size = map.len() as u64;
        let va = rig.bound_at_will(*handle, size);
        assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, size)]), Ok(()));
        for offset in (0..map.len()).step_by(PAGE) {
            assert_eq!(
                out.cpu.read(offset),
                n << 32 | offset as u64,
                "object {n} by the GPU"
            );
        }
    }
}

fn row_0_17_row_1_08_addresses_lead_straight_to_the_bar() {
    skua_selftests::witness::quiet();
    let rig = Rig::new();
    // GPU-physical addresses of VRAM are none of the bus.
    let (start, end) = Function::first().bar(BAR_VRAM).expect("the BAR of VRAM");
    let registers = Function::first().map_bar(BAR_REGS);
    let word = |offset: u32| registers.read32(offset as usize);
    let base = regs::VRAM_BASE::read(regs::Device, word).address().0;
    let size = regs::VRAM_SIZE::read(regs::Device, word).bytes();
    assert!(
        base > end || base + size <= start,
        "VRAM is at {base:#x} for the GPU, and at {start:#x} on the bus"
    );
    // Every page that the CPU writes is a page of the BAR of its own.
    let bar = Function::first().map_bar(BAR_VRAM);
    let mark = |n: u64| 0x5caa_0000_0000_0000 | n;
    let mut count = 0;
    let handles = all_of_vram(&rig);
    let maps: Vec<Mapping> = handles.iter().map(|handle| rig.map(*handle)).collect();
    for map in &maps {
        for offset in (0..map.len()).step_by(PAGE) {
            count += 1;
            map.write(offset, mark(count));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    for offset in (0..bar.len()).step_by(PAGE) {
        let value = bar.read(offset);
        if value > mark(0) && value <= mark(count) {
            assert!(seen.insert(value), "{value:#x} is in the BAR twice");
        }
    }
    assert_eq!(seen.len() as u64, count, "pages that are not in the BAR");
    // What is written to the BAR at the place of a page is what its mapping and the GPU see.
    let out = rig.buffer(Place::System, 4096);
    for (n, (map, handle)) in (0..).zip(maps.iter().zip(&handles)).step_by(7) {
        map.write(0, mark(count + 1));
        let places = find(&bar, mark(count + 1));
        assert_eq!(places.len(), 1, "object {n} is at {places:x?}");
        bar.write(places[0] + 8, n);
        assert_eq!(map.read(8), n);
        let va = rig.bound_at_will(*handle, map.len() as u64);
        assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, 16)]), Ok(()));
        assert_eq!((out.cpu.read(0), out.cpu.read(8)), (mark(count + 1), n));
        map.write(0, 0);
    }
}

fn row_0_19_row_1_09_system_memory_is_mapped_directly() {
    let rig = Rig::new();
    // Even with no VRAM left.
    let vram = all_of_vram(&rig);
    let accesses =
        || Function::first().counters(["driver_register_reads", "driver_register_writes"]);
    let mapped = || {
        let handle = rig.bo(Place::System, 1 << 20);
        let va = rig.bound_at_will(handle, 1 << 20);
        Function::first().at_rest();
        let [reads, writes] = accesses();
        let map = rig.map(handle);
        map.fill(pattern(9));
        let after = accesses();
        (va, map, [after[0] - reads, after[1] - writes])
    };
    // Asking for the counters writes one register, and reads one if it takes long.
    let both = [mapped(), mapped()];
    assert!(
        both.iter().any(|(.., more)| *more == [0, 1]),
        "mapping system memory involved the device"
    );
    let [(va, map, _), _] = both;
    // None of it is in the BAR, though the GPU sees it.
    let bar = Function::first().map_bar(BAR_VRAM);
    for offset in (0..map.len()).step_by(64 * PAGE) {
        let places = find(&bar, pattern(9)(offset));
        assert!(
            places.is_empty(),
            "page {offset:#x} is in the BAR at {places:x?}"
        );
    }
    let out = rig.buffer(Place::System, 1 << 20);
    assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, 1 << 20)]), Ok(()));
    out.cpu.expect("by the GPU", pattern(9));
    drop(vram);
}

fn row_0_28_coherent_memory_needs_no_call() {
    let rig = Rig::new();
    // CPU and GPU hand a line of system memory back and forth while one job runs.
    let shared = rig.buffer(Place::System, 4096);
    let rounds = 48;
    let mut work = Vec::new();
    for round in 1..=rounds {
        work.push(wait_value(shared.va, round));
        work.push(copy(shared.va + 64, shared.va + 128, 8));
        work.push(write(shared.va + 192, round));
    }
    let job = rig.start(Engine::Copy, &work);
    let end = std::time::Instant::now() + skua_selftests::client::PATIENCE * suite::patience();
    for round in 1..=rounds {
        shared.cpu.write(64, round * 1000);
        shared.cpu.write(0, round);
        while shared.cpu.read(192) < round {
            assert!(
                std::time::Instant::now() < end,
                "round {round} did not come back"
            );
            std::thread::yield_now();
        }
        assert_eq!(shared.cpu.read(128), round * 1000, "round {round}");
    }
    assert_eq!(job.wait(), Ok(()));
}

/// An object may move whatever other parts of the kernel are asked to do with its mapping: who
/// would need its pages gets none, and mlock() keeps nothing.
fn row_1_11_nobody_holds_on_to_what_is_mapped() {
    skua_selftests::witness::quiet();
    let client = Client::new();
    let memory = File::open("/proc/self/mem").expect("the process' memory");
    let vram = movable_in_vram(&client, 1 << 20);
    for handle in [vram, client.bo(Place::System, 1 << 20)] {
        let map = client.map(handle);
        map.fill(pattern(11));
        for round in 0..3 {
            let seen = place(&client, handle);
            let mut word = [0; 8];
            let read = memory.read_at(&mut word, map.address() as u64);
            let errno = read.map_err(|error| error.raw_os_error());
            assert_eq!(errno, Err(Some(nix::libc::EIO)), "{seen:?}");
            assert_eq!(map.keep_in_memory(), Ok(()), "{seen:?}");
            map.expect(&format!("round {round}, {seen:?}"), pattern(11));
            if handle == vram {
                match seen {
                    Place::Vram => assert_eq!(evict_all(), 1),
                    _ => resident(&client, &[handle]),
                }
                assert_ne!(place(&client, handle), seen);
            }
        }
    }
}
