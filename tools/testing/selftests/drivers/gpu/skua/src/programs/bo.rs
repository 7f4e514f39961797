// SPDX-License-Identifier: MIT

//! Buffer objects: creation, placement, lifetime.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use skua_selftests::client::{map, PATIENCE};
use skua_selftests::moving::{both, evict_all};
use skua_selftests::rig::{copy, fill};
use skua_selftests::suite::eventually;
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        info_tells_what_was_asked_for at_rest,
        content_is_zero: 60,
        vram_is_preferred_and_system_memory_the_way_out: 60 at_rest,
        full_vram_is_no_error_and_what_can_never_fit_is: 60 at_rest,
        odd_sizes_of_both_places: 60,
        many_small_objects: 60,
        what_is_in_vram_has_no_inode_before_it_leaves: 60 at_rest,
        closing_gives_the_memory_back,
        a_mapping_keeps_the_object,
        a_binding_keeps_the_object,
        closing_the_file_gives_everything_back,
        a_private_object_is_its_address_spaces_alone,
        private_objects_survive_their_address_space,
        row_0_03_memory_of_running_work_is_not_reused: 120,
    ])
}

fn info_tells_what_was_asked_for() {
    let client = Client::new();
    let (system, vram) = (
        client.region(Place::System).id,
        client.region(Place::Vram).id,
    );
    for (flags, placements, region) in [
        (DRM_SKUA_BO_CPU_ACCESS, 1 << system, system),
        (DRM_SKUA_BO_CPU_ACCESS, 1 << vram, vram),
        (0, 1 << vram, vram),
        (0, (1 << vram) | (1 << system), vram),
    ] {
        let handle = client
            .bo_create(5 * PAGE, flags, placements)
            .expect("BO_CREATE");
        let info = client.info(handle).expect("BO_INFO");
        assert_eq!(
            info,
            drm_skua_bo_info {
                handle,
                size: 5 * PAGE,
                flags,
                placements,
                region,
                ..Default::default()
            }
        );
    }
}

/// It works like any other, but for one address space, and is not exported.
fn a_private_object_is_its_address_spaces_alone() {
    let rig = Rig::new();
    let other = rig.vm_create().expect("VM_CREATE");
    let flags = DRM_SKUA_BO_CPU_ACCESS;
    for place in Place::ALL {
        let placements = 1 << rig.region(place).id;
        let make = || rig.bo_create_in(rig.vm, 1 << 20, flags, placements);
        let (one, two) = (make().expect("BO_CREATE"), make().expect("BO_CREATE"));
        let (from, to) = (
            rig.bound_at_will(one, 1 << 20),
            rig.bound_at_will(two, 1 << 20),
        );
        let (cpu, seen) = (rig.map(one), rig.map(two));
        cpu.fill(|i| i as u64 ^ 0x5a5a);
        assert_eq!(rig.run(Engine::Copy, &[copy(from, to, 1 << 20)]), Ok(()));
        seen.expect(&format!("{place:?}"), |i| i as u64 ^ 0x5a5a);
        let elsewhere = [map(one, 0, 1 << 30, PAGE)];
        assert_eq!(
            rig.bind(other, &elsewhere, &[]),
            Err(Errno::EINVAL),
            "{place:?}"
        );
        assert_eq!(rig.export(one).map(drop), Err(Errno::EPERM), "{place:?}");
    }
    // An address space is named by the client's own handles only.
    let stranger = Client::new();
    let placements = 1 << rig.region(Place::System).id;
    let foreign = stranger.bo_create_in(other, PAGE, flags, placements);
    assert_eq!(foreign, Err(Errno::ENOENT));
}

/// They share what belongs to it, which goes with the last of them.
fn private_objects_survive_their_address_space() {
    let rig = Rig::new();
    for place in Place::ALL {
        let vm = rig.vm_create().expect("VM_CREATE");
        let placements = 1 << rig.region(place).id;
        let make = || rig.bo_create_in(vm, PAGE, DRM_SKUA_BO_CPU_ACCESS, placements);
        let (bound, free) = (make().expect("BO_CREATE"), make().expect("BO_CREATE"));
        rig.bind_and_wait(vm, &[map(bound, 0, 1 << 30, PAGE)])
            .expect("VM_BIND");
        rig.vm_destroy(vm).expect("VM_DESTROY");
        for handle in [bound, free] {
            let cpu = rig.map(handle);
            cpu.fill(|i| i as u64 + 1);
            cpu.expect(&format!("{place:?}"), |i| i as u64 + 1);
            // There is nowhere left where it could be bound.
            let elsewhere = [map(handle, 0, 1 << 30, PAGE)];
            assert_eq!(rig.bind(rig.vm, &elsewhere, &[]), Err(Errno::EINVAL));
        }
    }
}

fn content_is_zero() {
    let rig = Rig::new();
    for place in Place::ALL {
        // By the CPU first, and by the GPU first.
        let seen = rig.buffer(place, 1 << 20);
        seen.cpu.expect(&format!("{place:?} by the CPU"), |_| 0);
        let unseen = rig.bo(place, 1 << 20);
        let va = rig.bound_at_will(unseen, 1 << 20);
        let out = rig.buffer(Place::System, 1 << 20);
        out.cpu.fill(|_| u64::MAX);
        assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, 1 << 20)]), Ok(()));
        out.cpu.expect(&format!("{place:?} by the GPU"), |_| 0);
    }
}

/// Fills VRAM with objects of 1 MiB, then of a page; their handles.
fn fill_vram(client: &Client) -> Vec<u32> {
    let mut handles = Vec::new();
    for size in [1 << 20, PAGE] {
        loop {
            match client.try_bo_in_free(Place::Vram, size) {
                Ok(handle) => handles.push(handle),
                Err(errno) => {
                    assert_eq!(errno, Errno::ENOSPC, "BO_CREATE in full VRAM");
                    break;
                }
            }
        }
    }
    handles
}

fn vram_is_preferred_and_system_memory_the_way_out() {
    quiet();
    let client = Client::new();
    let (system, vram) = (
        client.region(Place::System).id,
        client.region(Place::Vram).id,
    );
    let both = (1 << system) | (1 << vram);
    let handle = client.bo_create(PAGE, 0, both).expect("BO_CREATE");
    assert_eq!(client.info(handle).expect("BO_INFO").region, vram);
    let handles = fill_vram(&client);
    assert!(!handles.is_empty());
    // Nobody who is resident has to leave for who can do without.
    assert_eq!(client.make_resident(&[handle], &[]), Ok(()));
    for handles in handles.chunks(1024) {
        assert_eq!(client.make_resident(handles, &[]), Ok(()));
    }
    let handle = client
        .bo_create(PAGE, DRM_SKUA_BO_CPU_ACCESS, both)
        .expect("BO_CREATE");
    let info = client.info(handle).expect("BO_INFO");
    assert_eq!((info.region, info.placements), (system, both));
    client.map(handle).write(0, 1);
}

fn full_vram_is_no_error_and_what_can_never_fit_is() {
    quiet();
    let client = Client::new();
    let handles = fill_vram(&client);
    let region = client.region(Place::Vram);
    assert_eq!(region.used, region.size, "VRAM cannot be filled");
    let before = Witness::of(&client);
    let all = region.size + PAGE;
    assert_eq!(client.try_bo(Place::Vram, all), Err(Errno::ENOSPC));
    before.expect_unchanged(&client);
    // Somebody leaves, and takes no memory along that is nobody's.
    let last = client.bo(Place::Vram, PAGE);
    let place = |handle: u32| client.info(handle).expect("BO_INFO").region;
    assert_eq!(place(last), region.id);
    let out = handles.iter().filter(|handle| place(**handle) != region.id);
    assert_eq!(out.count(), 1);
    assert!(client.region(Place::Vram).used <= region.size);
    // Memory is given back when no engine can use it any more.
    assert_eq!(client.close(last), Ok(()));
    let free = eventually(|| client.try_bo_in_free(Place::Vram, PAGE).ok());
    assert!(free.is_some(), "one page of VRAM did not come back");
}

fn odd_sizes_of_both_places() {
    let rig = Rig::new();
    for place in Place::ALL {
        for pages in [1, 2, 3, 5, 15, 16, 17, 31, 255, 511, 512, 513, 1023] {
            let buffer = rig.buffer(place, pages * PAGE);
            let last = usize::try_from(buffer.size).expect("a size") - 8;
            let pattern = 0x1234_0000 | u32::try_from(pages).expect("a count");
            assert_eq!(
                rig.run(Engine::Copy, &[fill(pattern, buffer.va, buffer.size)]),
                Ok(()),
                "{place:?}, {pages} pages"
            );
            let whole = u64::from(pattern) << 32 | u64::from(pattern);
            assert_eq!(buffer.cpu.read(0), whole, "{place:?}, {pages} pages");
            assert_eq!(buffer.cpu.read(last), whole, "{place:?}, {pages} pages");
        }
    }
}

fn many_small_objects() {
    quiet();
    let client = Client::new();
    let before = Witness::of(&client);
    for place in Place::ALL {
        let handles: Vec<u32> = (0..suite::rounds(2000))
            .map(|_| client.bo(place, PAGE))
            .collect();
        let maps: Vec<_> = handles
            .iter()
            .step_by(100)
            .map(|handle| client.map(*handle))
            .collect();
        for (n, map) in (0..).zip(&maps) {
            map.write(0, n);
        }
        for (n, map) in (0..).zip(&maps) {
            assert_eq!(map.read(0), n, "{place:?}");
        }
        drop(maps);
        // Every other one first, so that there are holes.
        for handle in handles
            .iter()
            .step_by(2)
            .chain(handles.iter().skip(1).step_by(2))
        {
            assert_eq!(client.close(*handle), Ok(()));
        }
    }
    before.expect_unchanged(&client);
}

/// Of shmem, which takes more of the kernel's memory than all else of an object; nothing has a
/// file, which takes as much again.
fn what_is_in_vram_has_no_inode_before_it_leaves() {
    quiet();
    let client = Client::new();
    let number = |path: &str| {
        let text = std::fs::read_to_string(path).expect(path);
        let word = text.split_whitespace().next();
        let number = word.and_then(|word| word.parse::<usize>().ok());
        number.expect("a number")
    };
    let all = || ["/proc/sys/fs/inode-nr", "/proc/sys/fs/file-nr"].map(number);
    let (before, count) = (all(), 256);
    let made = || {
        let [inodes, files] = all();
        [
            inodes.saturating_sub(before[0]),
            files.saturating_sub(before[1]),
        ]
    };
    for _ in 0..count {
        client.bo_create(PAGE, 0, both(&client)).expect("BO_CREATE");
    }
    // But for what others make and give up.
    let [inodes, files] = made();
    let few = count / 2;
    assert!(inodes < few, "{inodes} inodes for {count} objects");
    assert!(files < few, "{files} files for {count} objects");
    assert_eq!(evict_all(), count);
    let [inodes, files] = made();
    assert!(inodes > few, "{inodes} inodes for {count} objects");
    assert!(files < few, "{files} files for {count} objects");
}

fn closing_gives_the_memory_back() {
    quiet();
    let client = Client::new();
    let before = Witness::of(&client);
    for place in Place::ALL {
        let handle = client.bo(place, 1 << 20);
        client.map(handle).write(0, 1);
        assert_ne!(Witness::of(&client), before);
        assert_eq!(client.close(handle), Ok(()));
    }
    before.expect_unchanged(&client);
}

fn a_mapping_keeps_the_object() {
    quiet();
    let client = Client::new();
    let before = Witness::of(&client);
    for place in Place::ALL {
        let handle = client.bo(place, 1 << 20);
        let map = client.map(handle);
        map.fill(|offset| offset as u64);
        assert_eq!(client.close(handle), Ok(()));
        // Were it given back, this would take it.
        let others: Vec<u32> = (0..16).map(|_| client.bo(place, 1 << 20)).collect();
        for other in &others {
            client.map(*other).fill(|_| u64::MAX);
        }
        map.expect("closed but mapped", |offset| offset as u64);
        for other in others {
            assert_eq!(client.close(other), Ok(()));
        }
    }
    before.expect_unchanged(&client);
}

fn a_binding_keeps_the_object() {
    let rig = Rig::new();
    for place in Place::ALL {
        let handle = rig.bo(place, 1 << 20);
        let va = rig.bound_at_will(handle, 1 << 20);
        assert_eq!(
            rig.run(Engine::Copy, &[fill(0x5555_5555, va, 1 << 20)]),
            Ok(())
        );
        assert_eq!(rig.close(handle), Ok(()));
        let others: Vec<u32> = (0..16).map(|_| rig.bo(place, 1 << 20)).collect();
        for other in &others {
            rig.map(*other).fill(|_| u64::MAX);
        }
        let out = rig.buffer(Place::System, 1 << 20);
        assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, 1 << 20)]), Ok(()));
        out.cpu
            .expect("closed but bound", |_| 0x5555_5555_5555_5555);
    }
}

fn closing_the_file_gives_everything_back() {
    quiet();
    let observer = Client::new();
    let before = Witness::of(&observer);
    for _ in 0..10 {
        let rig = Rig::new().having_worked();
        let buffers = Place::ALL.map(|place| rig.buffer(place, 4 << 20));
        let copying = [copy(buffers[0].va, buffers[1].va, 4 << 20)];
        let _running: Vec<_> = (0..8).map(|_| rig.start(Engine::Copy, &copying)).collect();
    }
    before.expect_unchanged(&observer);
}

fn row_0_03_memory_of_running_work_is_not_reused() {
    quiet();
    let other = Client::new();
    let size: u64 = 8 << 20;
    let free = |client: &Client| {
        let region = client.region(Place::Vram);
        region.size - region.used
    };
    let all = free(&other);
    let signature = 0xdead_beef_u32;
    {
        // It dies while its work writes to its memory.
        let dying = Rig::new().having_worked();
        let target = dying.buffer(Place::Vram, size);
        let work: Vec<_> = std::iter::repeat_n(fill(signature, target.va, size), 64).collect();
        for _ in 0..4 {
            let buffer = dying.write(&work);
            dying.submit(dying.copy, &[buffer], &[]).expect("SUBMIT");
        }
    }
    // All that can be had, at any time: nothing of it is written by the dead.
    let end = Instant::now() + PATIENCE * 3 * suite::patience();
    let mut taken = Vec::new();
    loop {
        while let Ok(handle) = other.try_bo_in_free(Place::Vram, 1 << 20) {
            let map = other.map(handle);
            map.expect("VRAM of a client that died", |_| 0);
            taken.push(map);
        }
        for map in &taken {
            assert_eq!(map.read(0), 0, "written after it was given out");
        }
        if taken.len() as u64 >= all >> 20 {
            break;
        }
        assert!(
            Instant::now() < end,
            "{} of {} MiB came back",
            taken.len(),
            all >> 20
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    for map in &taken {
        map.expect("VRAM of a client that died, at the end", |_| 0);
    }
}
