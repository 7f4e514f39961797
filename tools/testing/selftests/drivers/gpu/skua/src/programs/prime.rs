// SPDX-License-Identifier: MIT

//! Sharing by dma-buf: among files of this driver, and with others.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use skua_selftests::client::{map, own};
use skua_selftests::function::Function;
use skua_selftests::function::Unbound;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{
    alone, both, expect_gpu, movable_in_vram, place, press, resident, while_all_is_evicted,
};
use skua_selftests::others::{heap, import_by_vgem, vgem};
use skua_selftests::race::Caller;
use skua_selftests::raw::{in_child, ioctl};
use skua_selftests::rig::{copy, fill, wait_value, write};
use skua_selftests::suite::{becomes, eventually, rounds};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{skip, suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const SIZE: u64 = 256 << 10;
const LEN: usize = 256 << 10;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        an_object_that_comes_back_is_the_same,
        clients_share_what_they_pass_on: 60,
        a_shared_object_outlives_its_maker,
        a_dma_buf_keeps_the_memory,
        exported_system_memory_can_be_mapped,
        exported_vram_can_be_mapped,
        a_dma_buf_can_be_mapped_before_the_object,
        hidden_objects_are_mapped_in_no_way,
        memory_of_udmabuf: 60,
        memory_of_a_dma_heap: 60,
        memory_of_vgem: 60,
        an_imported_object_is_told_apart,
        an_imported_object_outlives_its_exporter_handles,
        vgem_imports_system_memory,
        vgem_cannot_import_vram at_rest,
        vgem_has_it_moved_where_it_can_reach_it at_rest,
        nobody_waits_for_a_device_that_is_gone at_rest,
        it_comes_back_when_the_last_driver_lets_go: 60 at_rest,
        it_stays_out_where_there_is_no_room: 60 at_rest,
        attachments_come_and_go_under_work: 120 at_rest,
        an_attachment_outlasts_who_has_it_come_back: 120 at_rest,
        an_attachment_holds_up_no_other_client: 60 at_rest,
        an_attachment_during_a_move_locks_nobody_out: 60 at_rest,
        an_attachment_meets_evictions: 120,
        idle_pages_are_there_for_other_drivers,
        foreign_descriptors_are_refused,
        imports_are_given_back,
    ])
}

fn pattern(seed: u64) -> impl Fn(usize) -> u64 {
    move |offset| (offset as u64).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ seed
}

fn an_object_that_comes_back_is_the_same() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, SIZE);
        let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
        assert_eq!(client.import(&shared), Ok(handle), "{place:?}");
        assert_eq!(client.info(handle).expect("BO_INFO").imported, 0);
        // Twice exported is the same dma-buf.
        let again = client.export(handle).expect("PRIME_HANDLE_TO_FD");
        assert_eq!(client.import(&again), Ok(handle), "{place:?}");
    }
}

fn clients_share_what_they_pass_on() {
    let (one, two) = (Rig::new(), Rig::new());
    for place in Place::ALL {
        let buffer = one.buffer(place, SIZE);
        let secret = one.buffer(place, SIZE);
        secret.cpu.fill(|_| u64::MAX);
        let shared = one.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
        let handle = two.import(&shared).expect("PRIME_FD_TO_HANDLE");
        let info = two.info(handle).expect("BO_INFO");
        assert_eq!((info.size, info.imported), (SIZE, 0), "{place:?}");
        let theirs = two.bound(handle, SIZE);
        buffer.cpu.fill(pattern(1));
        theirs
            .cpu
            .expect(&format!("{place:?}, by the CPU"), pattern(1));
        let out = two.buffer(Place::System, SIZE);
        assert_eq!(
            two.run(Engine::Copy, &[copy(theirs.va, out.va, SIZE)]),
            Ok(())
        );
        out.cpu
            .expect(&format!("{place:?}, by the GPU"), pattern(1));
        assert_eq!(
            two.run(Engine::Compute, &[fill(7, theirs.va, SIZE)]),
            Ok(())
        );
        buffer
            .cpu
            .expect(&format!("{place:?}, back"), |_| 7 << 32 | 7);
        // What was not passed on is not reached by it.
        secret.cpu.expect("the secret", |_| u64::MAX);
    }
}

fn a_shared_object_outlives_its_maker() {
    for place in Place::ALL {
        let two = Rig::new();
        let handle = {
            let one = Rig::new();
            let buffer = one.buffer(place, SIZE);
            assert_eq!(one.run(Engine::Copy, &[fill(9, buffer.va, SIZE)]), Ok(()));
            let shared = one.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
            two.import(&shared).expect("PRIME_FD_TO_HANDLE")
        };
        let buffer = two.bound(handle, SIZE);
        buffer.cpu.expect(&format!("{place:?}"), |_| 9 << 32 | 9);
        assert_eq!(two.run(Engine::Copy, &[write(buffer.va, 10)]), Ok(()));
        assert_eq!(buffer.cpu.read(0), 10);
    }
}

fn a_dma_buf_keeps_the_memory() {
    quiet();
    let client = Client::new();
    for place in Place::ALL {
        let before = Witness::of(&client);
        let handle = client.bo(place, SIZE);
        client.map(handle).fill(pattern(2));
        let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
        assert_eq!(client.close(handle), Ok(()));
        let others: Vec<u32> = (0..8).map(|_| client.bo(place, SIZE)).collect();
        for other in &others {
            client.map(*other).fill(|_| u64::MAX);
        }
        let again = client.import(&shared).expect("PRIME_FD_TO_HANDLE");
        client.map(again).expect(&format!("{place:?}"), pattern(2));
        for handle in others.into_iter().chain([again]) {
            assert_eq!(client.close(handle), Ok(()));
        }
        drop(shared);
        before.expect_unchanged(&client);
    }
}

/// Maps a dma-buf and brackets what is done with it, as its rules want.
fn with_dma_buf(file: &OwnedFd, len: usize, work: impl FnOnce(&Mapping)) {
    let mapping = Mapping::new(file, 0, len).expect("mmap of a dma-buf");
    let sync = |flags: u32| {
        let mut argument = dma_buf_sync {
            flags: u64::from(flags),
        };
        ioctl(file, DMA_BUF_IOCTL_SYNC, &mut argument).expect("DMA_BUF_IOCTL_SYNC");
    };
    sync(DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
    work(&mapping);
    sync(DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
}

fn exported_memory_can_be_mapped(place: Place) {
    let rig = Rig::new();
    let buffer = rig.buffer(place, SIZE);
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    buffer.cpu.fill(pattern(3));
    with_dma_buf(&shared, LEN, |mapping| {
        mapping.expect("what the client wrote", pattern(3));
        mapping.fill(pattern(4));
    });
    buffer
        .cpu
        .expect("what came through the dma-buf", pattern(4));
    assert_eq!(rig.run(Engine::Copy, &[fill(5, buffer.va, SIZE)]), Ok(()));
    with_dma_buf(&shared, LEN, |mapping| {
        mapping.expect("what the GPU wrote", |_| 5 << 32 | 5);
    });
}

fn exported_system_memory_can_be_mapped() {
    exported_memory_can_be_mapped(Place::System);
}

fn exported_vram_can_be_mapped() {
    exported_memory_can_be_mapped(Place::Vram);
}

fn a_dma_buf_can_be_mapped_before_the_object() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, SIZE);
        let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
        let mapping = Mapping::new(&shared, 0, LEN).expect("mmap of a dma-buf");
        mapping.write(0, 1);
        client.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        // What was not touched before.
        let touched = in_child(|| {
            mapping.write(LEN / 2, 2);
            true
        });
        assert!(touched, "{place:?}");
        mapping.fill(pattern(6));
        client.map(handle).expect(&format!("{place:?}"), pattern(6));
    }
}

fn hidden_objects_are_mapped_in_no_way() {
    let (client, other) = (Client::new(), Client::new());
    for place in Place::ALL {
        let around = [(); 2].map(|()| client.bo(place, 4096));
        let placements = 1 << client.region(place).id;
        let handle = client.bo_create(4096, 0, placements).expect("BO_CREATE");
        let around = [around[0], around[1], client.bo(place, 4096)]
            .map(|handle| client.mmap_offset(handle).expect("BO_MMAP_OFFSET"));
        assert_eq!(client.mmap_offset(handle), Err(Errno::EPERM), "{place:?}");
        // It has an offset in the node, which can be guessed.
        let (first, last) = (around.iter().min(), around.iter().max());
        let between = *first.expect("offsets")..=*last.expect("offsets") + (1 << 20);
        let refused = between
            .step_by(4096)
            .filter(|offset| !around.contains(offset))
            .filter_map(|offset| Mapping::new(&client, offset, 4096).map(drop).err())
            .filter(|errno| *errno == Errno::EPERM)
            .count();
        assert_eq!(refused, 1, "{place:?}: by its offset");
        let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
        let mapped = |file: &OwnedFd| Mapping::new(file, 0, 4096).map(drop);
        assert_eq!(mapped(&shared), Err(Errno::EPERM), "{place:?}: dma-buf");
        // Nor does it become visible by being passed on.
        let there = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
        assert_eq!(other.mmap_offset(there), Err(Errno::EPERM), "{place:?}");
        let again = other.export(there).expect("PRIME_HANDLE_TO_FD");
        assert_eq!(mapped(&again), Err(Errno::EPERM), "{place:?}: passed on");
    }
}

/// Imports a dma-buf of another driver, and has both engines and the CPU work on it.
fn memory_of_another_driver(dma_buf: &OwnedFd, cpu: &Mapping) {
    let rig = Rig::new();
    let handle = rig.import(dma_buf).expect("PRIME_FD_TO_HANDLE");
    let info = rig.info(handle).expect("BO_INFO");
    assert_eq!((info.size, info.imported), (SIZE, 1));
    assert_eq!(info.region, rig.region(Place::System).id);
    let va = rig.bound_at_will(handle, SIZE);
    for place in Place::ALL {
        for (seed, engine) in (20..).zip(Engine::ALL) {
            let own = rig.buffer(place, SIZE);
            cpu.fill(pattern(seed));
            assert_eq!(rig.run(engine, &[copy(va, own.va, SIZE)]), Ok(()));
            own.cpu
                .expect(&format!("{place:?} {engine:?}: read"), pattern(seed));
            own.cpu.fill(pattern(seed + 10));
            assert_eq!(rig.run(engine, &[copy(own.va, va, SIZE)]), Ok(()));
            cpu.expect(
                &format!("{place:?} {engine:?}: written"),
                pattern(seed + 10),
            );
        }
    }
    // A part of it, at another address.
    let part = rig.reserve(4096);
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map(handle, 64 << 10, part, 4096)]),
        Ok(())
    );
    assert_eq!(rig.run(Engine::Copy, &[write(part, 77)]), Ok(()));
    assert_eq!(cpu.read(64 << 10), 77);
    assert_eq!(rig.close(handle), Ok(()));
}

/// A dma-buf of udmabuf, and its memory.
fn udmabuf() -> (OwnedFd, OwnedFd) {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    let Ok(device) = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")
    else {
        skip("the kernel has no udmabuf");
    };
    let memory = memfd_create(c"prime", MFdFlags::MFD_ALLOW_SEALING).expect("memfd_create");
    nix::unistd::ftruncate(&memory, i64::try_from(SIZE).expect("a size")).expect("ftruncate");
    fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("F_ADD_SEALS");
    let mut argument = Create {
        memfd: memory.as_raw_fd().unsigned_abs(),
        flags: 1, // UDMABUF_FLAGS_CLOEXEC
        offset: 0,
        size: SIZE,
    };
    // _IOW('u', 0x42, struct udmabuf_create), which returns the descriptor.
    let fd = skua_selftests::raw::ioctl_value(&device, 0x4018_7542, &mut argument)
        .expect("UDMABUF_CREATE");
    (own(fd), memory)
}

fn memory_of_udmabuf() {
    let (dma_buf, memory) = udmabuf();
    let cpu = Mapping::new(&memory, 0, LEN).expect("mmap of the memfd");
    memory_of_another_driver(&dma_buf, &cpu);
}

fn memory_of_a_dma_heap() {
    let dma_buf = heap(SIZE);
    let cpu = Mapping::new(&dma_buf, 0, LEN).expect("mmap of a dma-buf");
    memory_of_another_driver(&dma_buf, &cpu);
}

fn memory_of_vgem() {
    #[repr(C)]
    struct CreateDumb {
        height: u32,
        width: u32,
        bpp: u32,
        flags: u32,
        handle: u32,
        pitch: u32,
        size: u64,
    }
    let vgem = vgem();
    let mut dumb = CreateDumb {
        height: 256,
        width: 256,
        bpp: 32,
        flags: 0,
        handle: 0,
        pitch: 0,
        size: 0,
    };
    // DRM_IOCTL_MODE_CREATE_DUMB
    ioctl(&vgem, 0xc020_64b2, &mut dumb).expect("MODE_CREATE_DUMB");
    assert_eq!(dumb.size, SIZE);
    let mut prime = drm_prime_handle {
        handle: dumb.handle,
        flags: 0x8_0002,
        fd: -1,
    };
    ioctl(&vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &mut prime).expect("PRIME_HANDLE_TO_FD of vgem");
    let dma_buf = own(prime.fd);
    let cpu = Mapping::new(&dma_buf, 0, LEN).expect("mmap of a dma-buf");
    memory_of_another_driver(&dma_buf, &cpu);
}

fn an_imported_object_is_told_apart() {
    let client = Client::new();
    let dma_buf = heap(SIZE);
    let handle = client.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
    assert_eq!(client.info(handle).expect("BO_INFO").imported, 1);
    assert_eq!(client.mmap_offset(handle), Err(Errno::EOPNOTSUPP));
    assert_eq!(client.import(&dma_buf), Ok(handle), "imported twice");
    // Passed on, it is the exporter's still.
    let passed = client.export(handle).expect("PRIME_HANDLE_TO_FD");
    let other = Client::new();
    let there = other.import(&passed).expect("PRIME_FD_TO_HANDLE");
    assert_eq!(other.info(there).expect("BO_INFO").imported, 1);
}

fn an_imported_object_outlives_its_exporter_handles() {
    let rig = Rig::new();
    let (dma_buf, memory) = udmabuf();
    let handle = rig.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
    let va = rig.bound_at_will(handle, SIZE);
    drop(dma_buf);
    assert_eq!(rig.run(Engine::Copy, &[write(va, 5)]), Ok(()));
    let cpu = Mapping::new(&memory, 0, LEN).expect("mmap of the memfd");
    assert_eq!(cpu.read(0), 5);
    // The binding alone keeps it.
    assert_eq!(rig.close(handle), Ok(()));
    assert_eq!(rig.run(Engine::Copy, &[write(va + 8, 6)]), Ok(()));
    assert_eq!(cpu.read(8), 6);
}

fn vgem_imports_system_memory() {
    let vgem = vgem();
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, SIZE);
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let handle = import_by_vgem(&vgem, &shared).expect("PRIME_FD_TO_HANDLE of vgem");
    // Its pages stay where they are: the GPU goes on with them.
    assert_eq!(rig.run(Engine::Copy, &[fill(3, buffer.va, SIZE)]), Ok(()));
    buffer.cpu.expect("shared with vgem", |_| 3 << 32 | 3);
    assert_ne!(handle, 0);
}

fn vgem_cannot_import_vram() {
    quiet();
    let vgem = vgem();
    let rig = Rig::new().having_worked();
    let buffer = rig.buffer(Place::Vram, SIZE);
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    // What was exported counts as shared from now on.
    let before = Witness::of(&rig);
    let result = import_by_vgem(&vgem, &shared);
    assert!(
        matches!(result, Err(Errno::EOPNOTSUPP | Errno::EINVAL)),
        "VRAM handed to a device that cannot reach it: {result:?}"
    );
    // Nor where it is when it has to make room: it could not come back.
    Function::first().debugfs("evict").expect("debugfs");
    let result = import_by_vgem(&vgem, &shared);
    assert!(
        matches!(result, Err(Errno::EOPNOTSUPP | Errno::EINVAL)),
        "kept out of VRAM by a device: {result:?}"
    );
    drop(shared);
    assert_eq!(rig.run(Engine::Copy, &[fill(3, buffer.va, SIZE)]), Ok(()));
    before.expect_unchanged(&rig);
}

fn vgem_has_it_moved_where_it_can_reach_it() {
    let vgem = vgem();
    let rig = Rig::new();
    let (vram, system) = (rig.region(Place::Vram).id, rig.region(Place::System).id);
    let handle = rig
        .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, 1 << vram | 1 << system)
        .expect("BO_CREATE");
    let buffer = rig.bound(handle, SIZE);
    buffer.cpu.fill(pattern(4));
    let out = rig.buffer(Place::System, SIZE);
    let gate = rig.buffer(Place::System, 4096);
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let region = || rig.info(handle).expect("BO_INFO").region;
    assert_eq!(region(), vram);
    // What the GPU has begun is waited for.
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), write(buffer.va, 5)],
    );
    std::thread::scope(|scope| {
        let import = scope.spawn(|| import_by_vgem(&vgem, &shared));
        becomes("it leaves VRAM", || region() == system);
        // Long enough for one that does not wait to be over.
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!import.is_finished(), "it did not wait");
        gate.cpu.write(0, 1);
        assert!(import.join().expect("a thread").is_ok());
    });
    assert!(job.has_ended());
    let content = |offset| if offset == 0 { 5 } else { pattern(4)(offset) };
    buffer.cpu.expect("for the CPU", content);
    assert_eq!(
        rig.run(Engine::Copy, &[copy(buffer.va, out.va, SIZE)]),
        Ok(())
    );
    out.cpu.expect("for the GPU", content);
    // A second time it is there.
    assert!(import_by_vgem(&vgem, &shared).is_ok());
}

fn nobody_waits_for_a_device_that_is_gone() {
    let vgem = vgem();
    let rig = alone();
    let handle = movable_in_vram(&rig, SIZE);
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let _unbound = Unbound::first();
    // It was in VRAM, and nobody moves it any more. (EBUSY is what would be said in ten seconds.)
    assert_eq!(import_by_vgem(&vgem, &shared).err(), Some(Errno::ENODEV));
}

/// Where it is some time, at the latest.
#[track_caller]
fn expect_place(rig: &Rig, handle: u32, expected: Place) {
    let seen = eventually(|| (place(rig, handle) == expected).then_some(()));
    assert!(seen.is_some(), "it is not in {expected:?}");
}

fn it_comes_back_when_the_last_driver_lets_go() {
    let rig = alone();
    let buffer = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    buffer.cpu.fill(pattern(4));
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    for round in 0..4 {
        let importers = [vgem(), vgem()];
        for importer in &importers {
            import_by_vgem(importer, &shared).expect("PRIME_FD_TO_HANDLE of vgem");
            assert_eq!(place(&rig, buffer.handle), Place::System);
        }
        buffer.cpu.expect("moved out", pattern(4 + round));
        // It does not come while somebody has it, and nobody leaves for it.
        resident(&rig, &[buffer.handle]);
        let [first, last] = importers;
        drop(first);
        assert_eq!(place(&rig, buffer.handle), Place::System);
        buffer.cpu.fill(pattern(5 + round));
        drop(last);
        expect_place(&rig, buffer.handle, Place::Vram);
        buffer.cpu.expect("come back", pattern(5 + round));
        expect_gpu(&rig, "for the GPU", buffer.va, SIZE, pattern(5 + round));
    }
    // What is not to be there stays away, and so does what is rather to be elsewhere.
    let flags = DRM_SKUA_BO_CPU_ACCESS;
    let system = rig.buffer(Place::System, SIZE).handle;
    let rather = rig.bo_create_preferring(SIZE, flags, both(&rig), &[Place::System], &[]);
    let rather = rather.expect("BO_CREATE");
    let importer = vgem();
    for handle in [system, rather, buffer.handle] {
        let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
        import_by_vgem(&importer, &shared).expect("PRIME_FD_TO_HANDLE of vgem");
        assert_eq!(place(&rig, handle), Place::System);
    }
    drop(importer);
    // The last one to be let go.
    expect_place(&rig, buffer.handle, Place::Vram);
    assert_eq!(place(&rig, system), Place::System);
    assert_eq!(place(&rig, rather), Place::System);
}

fn it_stays_out_where_there_is_no_room() {
    let rig = alone();
    let buffer = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    buffer.cpu.fill(pattern(4));
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let importer = vgem();
    import_by_vgem(&importer, &shared).expect("PRIME_FD_TO_HANDLE of vgem");
    let others = rig.bo_create(rig.region(Place::Vram).size, 0, both(&rig));
    let others = others.expect("BO_CREATE");
    assert_eq!(place(&rig, others), Place::Vram);
    // Nobody leaves for what cannot come.
    resident(&rig, &[buffer.handle]);
    assert_eq!(place(&rig, others), Place::Vram);
    drop(importer);
    // Nor for what has not been asked for.
    assert_eq!(place(&rig, others), Place::Vram);
    assert_eq!(place(&rig, buffer.handle), Place::System);
    resident(&rig, &[buffer.handle]);
    assert_eq!(place(&rig, buffer.handle), Place::Vram);
    buffer.cpu.expect("come back", pattern(4));
    expect_gpu(&rig, "for the GPU", buffer.va, SIZE, pattern(4));
}

fn attachments_come_and_go_under_work() {
    let rig = alone();
    let buffer = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let (client, handle, rounds): (&Client, _, _) = (&rig, buffer.handle, 50);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let importer = vgem();
                    import_by_vgem(&importer, &shared).expect("PRIME_FD_TO_HANDLE of vgem");
                    assert_eq!(place(client, handle), Place::System);
                }
            });
        }
        for round in 1..=rounds {
            assert_eq!(
                rig.run(Engine::Copy, &[fill(round, buffer.va, SIZE)]),
                Ok(())
            );
            let word = u64::from(round) << 32 | u64::from(round);
            buffer.cpu.expect("what the GPU wrote", |_| word);
        }
    });
    resident(&rig, &[buffer.handle]);
    let word = u64::from(rounds) << 32 | u64::from(rounds);
    buffer.cpu.expect("what the GPU wrote last", |_| word);
}

fn an_attachment_outlasts_who_has_it_come_back() {
    let rig = alone();
    let buffer = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    buffer.cpu.fill(pattern(7));
    let shared = rig.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let (client, handle): (&Client, _) = (&rig, buffer.handle);
    let stop = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let makers = [0; 3].map(|_| {
            scope.spawn(|| {
                let mut made = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.make_resident(&[handle], &[]), Ok(()));
                    assert_eq!(client.evict(&[handle]), Ok(()));
                    made += 1;
                }
                made
            })
        });
        let imports: Vec<_> = (0..100)
            .map(|_| import_by_vgem(&vgem(), &shared).map(drop))
            .collect();
        stop.store(true, Ordering::Relaxed);
        let failed: Vec<_> = imports.iter().filter(|it| it.is_err()).collect();
        assert!(failed.is_empty(), "{} imports: {failed:?}", failed.len());
        makers.map(|maker| maker.join().expect("a thread"))
    });
    println!("# made resident {made:?} times");
    buffer.cpu.expect("at the end", pattern(7));
}

fn an_attachment_holds_up_no_other_client() {
    let (busy, other, vgem) = (alone(), Rig::new(), vgem());
    let gate = busy.buffer(Place::System, 4096);
    let handle = movable_in_vram(&busy, SIZE);
    busy.bound_at_will(handle, SIZE);
    let shared = busy.export(handle).expect("PRIME_HANDLE_TO_FD");
    let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
    other.bound_at_will(theirs, SIZE);
    let job = busy.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let caller = Caller::new();
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| caller.call(|| import_by_vgem(&vgem, &shared)));
        caller.wait_until_asleep();
        assert_eq!(other.run(Engine::Copy, &[]), Ok(()));
        assert!(
            !job.has_ended(),
            "it has waited for the other client's work"
        );
        gate.cpu.write(0, 1);
        assert!(attaching.join().expect("a thread").is_ok());
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(place(&busy, handle), Place::System);
}

/// It moves already when it is attached.
fn an_attachment_during_a_move_locks_nobody_out() {
    let (busy, other, vgem) = (alone(), Rig::new(), vgem());
    let gate = busy.buffer(Place::System, 4096);
    let buffer = busy.bound(movable_in_vram(&busy, SIZE), SIZE);
    let shared = busy.export(buffer.handle).expect("PRIME_HANDLE_TO_FD");
    let work = [wait_value(gate.va, 1), write(buffer.va, 1)];
    let job = busy.start(Engine::Compute, &work);
    let caller = Caller::new();
    std::thread::scope(|scope| {
        let evicting = scope.spawn(|| Function::first().debugfs("evict"));
        becomes("it leaves VRAM", || {
            place(&busy, buffer.handle) == Place::System
        });
        let attaching = scope.spawn(|| caller.call(|| import_by_vgem(&vgem, &shared)));
        caller.wait_until_asleep();
        // Another client maps it, for which it is locked.
        let theirs = other.import(&shared).expect("PRIME_FD_TO_HANDLE");
        let va = other.reserve(SIZE);
        let bound = other.bind(other.vm, &[map(theirs, 0, va, SIZE)], &[]);
        assert_eq!((bound, job.has_ended()), (Ok(()), false));
        gate.cpu.write(0, 1);
        assert!(attaching.join().expect("a thread").is_ok());
        assert!(evicting.join().expect("a thread").is_ok());
    });
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(buffer.cpu.read(0), 1);
}

/// Of write-combined pages there is one owner at a time: others wait, and are not refused.
fn an_attachment_meets_evictions() {
    let rig = alone();
    let flags = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_WRITE_COMBINED;
    let handle = rig.bo_create(SIZE, flags, both(&rig)).expect("BO_CREATE");
    rig.map(handle).fill(pattern(8));
    let shared = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
    let imports: Vec<_> = while_all_is_evicted(|| {
        let import = |_| import_by_vgem(&vgem(), &shared).map(drop);
        (0..rounds(300)).map(import).collect()
    });
    let failed: Vec<_> = imports.iter().filter(|it| it.is_err()).collect();
    assert!(failed.is_empty(), "{} imports: {failed:?}", failed.len());
    rig.map(handle).expect("at the end", pattern(8));
}

fn idle_pages_are_there_for_other_drivers() {
    let (one, two) = (alone(), Rig::new());
    press();
    let handle = one.bo(Place::System, SIZE);
    one.map(handle).fill(pattern(3));
    let shared = one.export(handle).expect("PRIME_HANDLE_TO_FD");
    let pages = SIZE / 4096;
    assert_eq!(press(), pages);
    let there = two.import(&shared).expect("PRIME_FD_TO_HANDLE");
    two.map(there).expect("the same object", pattern(3));
    assert_eq!(press(), pages);
    let importer = vgem();
    import_by_vgem(&importer, &shared).expect("PRIME_FD_TO_HANDLE of vgem");
    assert_eq!(press(), 0, "another driver has its addresses");
    one.map(handle).expect("the content", pattern(3));
    drop(importer);
    assert_eq!(press(), pages);
    one.map(handle).expect("the content, once more", pattern(3));
}

fn foreign_descriptors_are_refused() {
    quiet();
    let client = Client::new();
    let before = Witness::of(&client);
    let file = File::open("/dev/null").expect("/dev/null");
    assert_eq!(client.import(&file), Err(Errno::EINVAL));
    assert_eq!(client.import(&client), Err(Errno::EINVAL), "its own node");
    let mut prime = drm_prime_handle {
        fd: -1,
        ..Default::default()
    };
    assert_eq!(
        client.call(DRM_IOCTL_PRIME_FD_TO_HANDLE, &mut prime),
        Err(Errno::EBADF)
    );
    assert_eq!(client.export(77).map(drop), Err(Errno::ENOENT));
    before.expect_unchanged(&client);
}

fn imports_are_given_back() {
    quiet();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let round = || {
        let dma_buf = heap(SIZE);
        let handle = client.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
        let op = map(handle, 0, 1 << 40, SIZE);
        assert_eq!(client.bind_and_wait(vm, &[op]), Ok(()));
        assert_eq!(client.close(handle), Ok(()));
        let all = skua_selftests::client::unmap(1 << 40, SIZE);
        assert_eq!(client.bind_and_wait(vm, &[all]), Ok(()));
    };
    // An address space keeps its tables.
    round();
    let before = Witness::of(&client);
    for _ in 0..100 {
        round();
    }
    before.expect_unchanged(&client);
}
