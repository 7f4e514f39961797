// SPDX-License-Identifier: MIT

//! Address spaces: what is bound where, and when.

use std::process::ExitCode;

use skua_selftests::client::{map, map_readonly, signal, signal_point, unmap, wait, wait_point};
use skua_selftests::function::Function;
use skua_selftests::rig::{copy, fill, wait_value, write, Buffer};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;

fn main() -> ExitCode {
    suite::main(tests![
        both_ends_of_the_address_space,
        operations_happen_in_order,
        a_new_mapping_replaces_the_old,
        a_hole_in_the_middle_leaves_the_ends: 60,
        offsets_are_kept,
        one_object_at_many_addresses,
        unmapping_nothing_is_fine,
        read_only_mappings,
        large_pages_come_apart_and_together: 60,
        pages_of_all_sizes: 120,
        the_largest_bind: 60,
        longer_elements_of_a_later_version,
        address_spaces_are_apart,
        binds_wait_for_syncs,
        binds_of_one_address_space_are_in_order,
        binds_after_a_failed_fence_happen,
        old_translations_are_not_used_after_the_signal: 120,
        tables_are_given_back: 60,
        a_destroyed_vm_serves_its_contexts,
        as_many_vms_as_there_can_be: 60,
    ])
}

/// What the GPU reads at an address: 8 bytes, or the fence's error.
fn peek(rig: &Rig, out: &Buffer, va: u64) -> Result<u64, Errno> {
    out.cpu.write(0, u64::MAX);
    // A fault closes the context: each look has its own.
    let context = rig.new_context(Engine::Copy);
    let result = rig.start_in(context, &[copy(va, out.va, 8)]).wait();
    rig.context_destroy(context).expect("CONTEXT_DESTROY");
    result.map(|()| out.cpu.read(0))
}

fn both_ends_of_the_address_space() {
    let rig = Rig::new();
    let (first, last) = (rig.device.va_start, rig.device.va_end - PAGE);
    let out = rig.buffer(Place::System, PAGE);
    for place in Place::ALL {
        let handle = rig.bo(place, PAGE);
        for (value, va) in [
            (1, first),
            (2, last),
            (3, 1 << 39),
            (4, (1 << 47) - PAGE),
            (5, 1 << 47),
        ] {
            assert_eq!(
                rig.bind_and_wait(rig.vm, &[map(handle, 0, va, PAGE)]),
                Ok(()),
                "{va:#x}"
            );
            assert_eq!(
                rig.run(Engine::Copy, &[write(va, value)]),
                Ok(()),
                "{va:#x}"
            );
            assert_eq!(peek(&rig, &out, va), Ok(value), "{va:#x}");
        }
    }
}

fn operations_happen_in_order() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let objects: Vec<u32> = (0..3).map(|_| rig.bo(Place::System, PAGE)).collect();
    for (value, handle) in (10..).zip(&objects) {
        rig.map(*handle).write(0, value);
    }
    let va = rig.reserve(PAGE);
    let ops = [
        map(objects[0], 0, va, PAGE),
        unmap(va, PAGE),
        map(objects[1], 0, va, PAGE),
        map(objects[2], 0, va, PAGE),
    ];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(peek(&rig, &out, va), Ok(12));
    assert_eq!(rig.bind_and_wait(rig.vm, &[ops[2], ops[1]]), Ok(()));
    assert_eq!(peek(&rig, &out, va), Err(Errno::EFAULT));
    assert_eq!(rig.bind_and_wait(rig.vm, &[ops[1], ops[2]]), Ok(()));
    assert_eq!(peek(&rig, &out, va), Ok(11));
}

fn a_new_mapping_replaces_the_old() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let (old, new) = (
        rig.buffer(Place::Vram, LARGE),
        rig.bo(Place::System, 4 * PAGE),
    );
    old.cpu.fill(|_| 1);
    rig.map(new).fill(|_| 2);
    // In the middle of the old.
    let va = old.va + 16 * PAGE;
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map(new, 0, va, 4 * PAGE)]),
        Ok(())
    );
    for (at, value) in [
        (old.va, 1),
        (va - 8, 1),
        (va, 2),
        (va + 4 * PAGE - 8, 2),
        (va + 4 * PAGE, 1),
    ] {
        assert_eq!(peek(&rig, &out, at), Ok(value), "{at:#x}");
    }
}

fn a_hole_in_the_middle_leaves_the_ends() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    for place in Place::ALL {
        let buffer = rig.buffer(place, 4 * LARGE);
        buffer.cpu.fill(|offset| offset as u64);
        for (offset, size) in [(PAGE, PAGE), (LARGE, LARGE), (3 * LARGE - PAGE, 2 * PAGE)] {
            let va = buffer.va + offset;
            assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, size)]), Ok(()));
            assert_eq!(
                peek(&rig, &out, va),
                Err(Errno::EFAULT),
                "{place:?} {offset:#x}"
            );
            assert_eq!(
                peek(&rig, &out, va + size - 8),
                Err(Errno::EFAULT),
                "{place:?} {offset:#x}"
            );
            assert_eq!(
                peek(&rig, &out, va - 8),
                Ok(offset - 8),
                "{place:?} {offset:#x}"
            );
            assert_eq!(
                peek(&rig, &out, va + size),
                Ok(offset + size),
                "{place:?} {offset:#x}"
            );
        }
    }
}

fn offsets_are_kept() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    for place in Place::ALL {
        let handle = rig.bo(place, 64 * PAGE);
        rig.map(handle).fill(|offset| offset as u64 + 1);
        let va = rig.reserve(64 * PAGE);
        // Pages in reverse.
        let ops: Vec<_> = (0..64)
            .map(|n| map(handle, n * PAGE, va + (63 - n) * PAGE, PAGE))
            .collect();
        assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
        for n in 0..64 {
            let seen = peek(&rig, &out, va + (63 - n) * PAGE);
            assert_eq!(seen, Ok(n * PAGE + 1), "{place:?} page {n}");
        }
    }
}

fn one_object_at_many_addresses() {
    let rig = Rig::new();
    let handle = rig.bo(Place::Vram, PAGE);
    let cpu = rig.map(handle);
    for n in 0..32 {
        let va = rig.bound_at_will(handle, PAGE);
        assert_eq!(rig.run(Engine::Copy, &[write(va + 8 * n, n + 1)]), Ok(()));
    }
    for n in 0..32_u64 {
        assert_eq!(cpu.read(usize::try_from(8 * n).expect("an offset")), n + 1);
    }
}

fn unmapping_nothing_is_fine() {
    let rig = Rig::new();
    let va = rig.reserve(LARGE);
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, LARGE)]), Ok(()));
    // All that can be bound.
    let vm = rig.vm_create().expect("VM_CREATE");
    let all = unmap(rig.device.va_start, rig.device.va_end - rig.device.va_start);
    assert_eq!(rig.bind_and_wait(vm, &[all]), Ok(()));
    assert_eq!(
        rig.bind_and_wait(vm, &[map(rig.bo(Place::System, PAGE), 0, va, PAGE), all]),
        Ok(())
    );
}

fn read_only_mappings() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    for place in Place::ALL {
        let handle = rig.bo(place, 2 * PAGE);
        let cpu = rig.map(handle);
        cpu.write(0, 33);
        let va = rig.reserve(2 * PAGE);
        let ops = [
            map_readonly(handle, 0, va, PAGE),
            map(handle, PAGE, va + PAGE, PAGE),
        ];
        assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
        assert_eq!(peek(&rig, &out, va), Ok(33), "{place:?}");
        let context = rig.new_context(Engine::Copy);
        let job = rig.start_in(context, &[write(va, 34)]);
        assert_eq!(job.wait(), Err(Errno::EFAULT), "{place:?}");
        assert_eq!(
            cpu.read(0),
            33,
            "{place:?}: written through a read-only mapping"
        );
        assert_eq!(
            rig.run(Engine::Copy, &[write(va + PAGE, 35)]),
            Ok(()),
            "{place:?}"
        );
        // The same, writable from now on.
        assert_eq!(
            rig.bind_and_wait(rig.vm, &[map(handle, 0, va, PAGE)]),
            Ok(())
        );
        assert_eq!(rig.run(Engine::Copy, &[write(va, 36)]), Ok(()), "{place:?}");
        assert_eq!(cpu.read(0), 36, "{place:?}");
    }
}

fn large_pages_come_apart_and_together() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let handle = rig.bo(Place::Vram, 2 * LARGE);
    let cpu = rig.map(handle);
    cpu.fill(|offset| offset as u64);
    let small = rig.bo(Place::System, PAGE);
    rig.map(small).fill(|_| 7);
    let va = rig.reserve(2 * LARGE);
    for round in 0..8 {
        assert_eq!(
            rig.bind_and_wait(rig.vm, &[map(handle, 0, va, 2 * LARGE)]),
            Ok(())
        );
        let at = va + round * 61 * PAGE;
        assert_eq!(
            rig.bind_and_wait(rig.vm, &[map(small, 0, at, PAGE)]),
            Ok(())
        );
        for probe in [
            va,
            va + LARGE - 8,
            va + LARGE,
            va + 2 * LARGE - 8,
            at,
            at + PAGE,
        ] {
            let expected = match probe.checked_sub(at) {
                Some(0..PAGE) => 7,
                _ => probe - va,
            };
            assert_eq!(
                peek(&rig, &out, probe),
                Ok(expected),
                "round {round}, {probe:#x}"
            );
        }
    }
}

fn pages_of_all_sizes() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, LARGE * 2);
    for place in Place::ALL {
        let size = 3 * LARGE;
        let handle = rig.bo(place, size);
        rig.map(handle).fill(|offset| offset as u64 ^ 0x5a5a);
        // Address and offset aligned alike, and differently, by each size of page.
        for (offset, shift) in [
            (0, 0),
            (LARGE, 0),
            (PAGE, 0),
            (0, PAGE),
            (PAGE, PAGE),
            (64 << 10, 0),
            (0, 64 << 10),
            (64 << 10, 64 << 10),
            (64 << 10, PAGE),
            (LARGE - PAGE, LARGE - PAGE),
        ] {
            let len = 2 * LARGE - shift.max(offset % LARGE);
            let base = rig.reserve(3 * LARGE);
            let va = base + shift;
            assert_eq!(
                rig.bind_and_wait(rig.vm, &[map(handle, offset, va, len)]),
                Ok(())
            );
            out.cpu.write(0, 0);
            assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, len)]), Ok(()));
            let len = usize::try_from(len).expect("a size");
            for at in (0..len).step_by(512) {
                let expected = (offset + at as u64) ^ 0x5a5a;
                assert_eq!(
                    out.cpu.read(at),
                    expected,
                    "{place:?}, offset {offset:#x}, shift {shift:#x}, at {at:#x}"
                );
            }
            assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(base, 3 * LARGE)]), Ok(()));
        }
    }
}

fn the_largest_bind() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let count = u64::from(rig.device.max_bind_ops);
    let handle = rig.bo(Place::System, count * PAGE);
    rig.map(handle).fill(|offset| offset as u64);
    let va = 1 << 41;
    // Far apart, so that each needs tables of its own.
    let ops: Vec<_> = (0..count)
        .map(|n| map(handle, n * PAGE, va + n * LARGE, PAGE))
        .collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    for n in [0, 1, count / 2, count - 1] {
        assert_eq!(peek(&rig, &out, va + n * LARGE), Ok(n * PAGE));
    }
    let holes: Vec<_> = (0..count).map(|n| unmap(va + n * LARGE, PAGE)).collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &holes), Ok(()));
    assert_eq!(peek(&rig, &out, va), Err(Errno::EFAULT));
}

fn longer_elements_of_a_later_version() {
    let rig = Rig::new();
    let handle = rig.bo(Place::System, PAGE);
    let va = rig.reserve(4 * PAGE);
    // Two elements of 4096 bytes, with zeroes in what this driver does not know.
    let mut longer = vec![0_u64; 1024];
    for n in 0..2 {
        let op = map(handle, 0, va + n * PAGE, PAGE);
        let at = usize::try_from(n).expect("an index") * 512;
        longer[at..at + 5].copy_from_slice(&[
            u64::from(op.type_),
            u64::from(op.handle),
            op.offset,
            op.va,
            op.size,
        ]);
    }
    let done = rig.syncobj();
    let syncs = [signal(done)];
    let mut argument = drm_skua_vm_bind {
        vm: rig.vm,
        flags: 0,
        ops: drm_skua_array {
            stride: 4096,
            count: 2,
            pointer: longer.as_ptr() as u64,
        },
        syncs: skua_selftests::client::array(&syncs),
    };
    assert_eq!(rig.call(DRM_IOCTL_SKUA_VM_BIND, &mut argument), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(
        rig.run(Engine::Copy, &[write(va, 1), write(va + PAGE, 2)]),
        Ok(())
    );
    assert_eq!(rig.map(handle).read(0), 2);
}

fn address_spaces_are_apart() {
    let rig = Rig::new();
    let vm = rig.vm_create().expect("VM_CREATE");
    let context = rig
        .context_create(vm, rig.engine(DRM_SKUA_ENGINE_COPY))
        .expect("CONTEXT_CREATE");
    let (one, two) = (rig.bo(Place::Vram, PAGE), rig.bo(Place::Vram, PAGE));
    let va = 1 << 42;
    assert_eq!(rig.bind_and_wait(rig.vm, &[map(one, 0, va, PAGE)]), Ok(()));
    assert_eq!(rig.bind_and_wait(vm, &[map(two, 0, va, PAGE)]), Ok(()));
    // The commands must be there, too.
    let buffer = rig.write(&[write(va, 2)]);
    let commands = rig.bo(Place::System, PAGE);
    rig.map(commands)
        .write_words(0, &command_words(&[write(va, 2)]));
    assert_eq!(
        rig.bind_and_wait(vm, &[map(commands, 0, 1 << 43, PAGE)]),
        Ok(())
    );
    let done = rig.syncobj();
    let there = drm_skua_buffer {
        va: 1 << 43,
        ..buffer
    };
    assert_eq!(rig.submit(context, &[there], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(rig.run(Engine::Copy, &[write(va + 8, 1)]), Ok(()));
    let (one, two) = (rig.map(one), rig.map(two));
    assert_eq!((one.read(0), one.read(8)), (0, 1));
    assert_eq!((two.read(0), two.read(8)), (2, 0));
}

fn command_words(commands: &[skua_spec::command::Command]) -> Vec<u32> {
    commands
        .iter()
        .flat_map(|command| command.encode().words().to_vec())
        .collect()
}

fn binds_wait_for_syncs() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let gate = rig.buffer(Place::System, PAGE);
    let handle = rig.bo(Place::System, PAGE);
    let va = rig.reserve(PAGE);
    let job = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let done = rig.syncobj();
    let syncs = [wait(job.syncobj), signal(done)];
    assert_eq!(
        rig.bind(rig.vm, &[map(handle, 0, va, PAGE)], &syncs),
        Ok(())
    );
    assert!(!rig.has_signalled(done), "the bind did not wait");
    assert_eq!(peek(&rig, &out, va), Err(Errno::EFAULT), "bound too early");
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(peek(&rig, &out, va), Ok(0));
    // The same with a point of a timeline.
    let line = rig.syncobj();
    let job = rig
        .start_after(
            rig.compute,
            &[wait_value(gate.va, 2)],
            &[signal_point(line, 5)],
        )
        .expect("SUBMIT");
    let syncs = [wait_point(line, 5), signal_point(line, 6)];
    assert_eq!(rig.bind(rig.vm, &[unmap(va, PAGE)], &syncs), Ok(()));
    assert_eq!(peek(&rig, &out, va), Ok(0), "unbound too early");
    gate.cpu.write(0, 2);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.wait_point(line, 6), Ok(()));
    assert_eq!(peek(&rig, &out, va), Err(Errno::EFAULT));
}

fn binds_of_one_address_space_are_in_order() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let gate = rig.buffer(Place::System, PAGE);
    let (first, second) = (rig.bo(Place::System, PAGE), rig.bo(Place::System, PAGE));
    rig.map(first).write(0, 1);
    rig.map(second).write(0, 2);
    let va = rig.reserve(PAGE);
    let job = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let (early, late) = (rig.syncobj(), rig.syncobj());
    let held = [wait(job.syncobj), signal(early)];
    assert_eq!(rig.bind(rig.vm, &[map(first, 0, va, PAGE)], &held), Ok(()));
    // Has nothing to wait for but the one before it.
    assert_eq!(
        rig.bind(rig.vm, &[map(second, 0, va, PAGE)], &[signal(late)]),
        Ok(())
    );
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(
        !rig.has_signalled(late),
        "the second bind overtook the first"
    );
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(late), Ok(()));
    assert!(rig.has_signalled(early));
    assert_eq!(peek(&rig, &out, va), Ok(2));
}

fn binds_after_a_failed_fence_happen() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let va = rig.reserve(PAGE);
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[write(va, 1)]);
    let done = rig.syncobj();
    let handle = rig.bo(Place::System, PAGE);
    let syncs = [wait(job.syncobj), signal(done)];
    assert_eq!(
        rig.bind(rig.vm, &[map(handle, 0, va, PAGE)], &syncs),
        Ok(())
    );
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(peek(&rig, &out, va), Ok(0));
}

fn old_translations_are_not_used_after_the_signal() {
    let rig = Rig::new();
    let objects: Vec<Buffer> = (0..2).map(|_| rig.buffer(Place::Vram, PAGE)).collect();
    let va = rig.reserve(PAGE);
    for engine in Engine::ALL {
        // Both engines have the translation in their TLBs each time it changes.
        for round in 1..=200_u64 {
            let (now, other) = match round % 2 {
                0 => (&objects[0], &objects[1]),
                _ => (&objects[1], &objects[0]),
            };
            other.cpu.write(0, 0);
            assert_eq!(
                rig.bind_and_wait(rig.vm, &[map(now.handle, 0, va, PAGE)]),
                Ok(())
            );
            assert_eq!(rig.run(engine, &[write(va, round)]), Ok(()));
            assert_eq!(
                (now.cpu.read(0), other.cpu.read(0)),
                (round, 0),
                "{engine:?}, round {round}: an old translation was used"
            );
        }
    }
    // And what is given back is not written to any more.
    let handle = rig.bo(Place::Vram, PAGE);
    let victim = rig.map(handle);
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map(handle, 0, va, PAGE)]),
        Ok(())
    );
    assert_eq!(rig.run(Engine::Copy, &[write(va, 1)]), Ok(()));
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, PAGE)]), Ok(()));
    assert_eq!(rig.run(Engine::Copy, &[write(va, 2)]), Err(Errno::EFAULT));
    assert_eq!(victim.read(0), 1);
}

fn tables_are_given_back() {
    quiet();
    let client = Client::new();
    let (vram, system) = (
        client.region(Place::Vram).used,
        client.region(Place::System).used,
    );
    let before = Witness::of(&client);
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::System, PAGE);
    let empty = Function::first().debugfs("vms").expect("debugfs");
    for n in 0..64 {
        // Each in another part of the address space: tables of every level.
        let va = (n + 1) << 40;
        assert_eq!(
            client.bind_and_wait(vm, &[map(handle, 0, va, PAGE)]),
            Ok(())
        );
    }
    let full = Function::first().debugfs("vms").expect("debugfs");
    assert_ne!(empty, full);
    let all = unmap(
        client.device.va_start,
        client.device.va_end - client.device.va_start,
    );
    assert_eq!(client.bind_and_wait(vm, &[all]), Ok(()));
    assert_eq!(client.close(handle), Ok(()));
    assert_eq!(client.vm_destroy(vm), Ok(()));
    before.expect_unchanged(&client);
    assert_eq!(client.region(Place::Vram).used, vram);
    assert_eq!(client.region(Place::System).used, system);
}

fn a_destroyed_vm_serves_its_contexts() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, PAGE);
    let gate = rig.buffer(Place::System, PAGE);
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1), write(buffer.va, 1)]);
    assert_eq!(rig.vm_destroy(rig.vm), Ok(()));
    assert_eq!(
        rig.bind(rig.vm, &[unmap(1 << 40, PAGE)], &[]),
        Err(Errno::ENOENT)
    );
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.run(Engine::Compute, &[fill(5, buffer.va, 8)]), Ok(()));
    assert_eq!(buffer.cpu.read32(0), 5);
}

fn as_many_vms_as_there_can_be() {
    quiet();
    let client = Client::new();
    let before = Witness::of(&client);
    // One client cannot have them all.
    let mut clients = Vec::new();
    let mut vms = Vec::new();
    loop {
        let other = Client::new();
        let count = vms.len();
        let end = loop {
            match other.vm_create() {
                Ok(vm) => vms.push((clients.len(), vm)),
                Err(errno) => break errno,
            }
        };
        assert_eq!(end, Errno::ENOSPC, "after {} address spaces", vms.len());
        assert!(
            vms.len() <= 1 << 16,
            "more address spaces than the device can tell apart"
        );
        clients.push(other);
        if vms.len() == count {
            break;
        }
    }
    assert!(vms.len() >= 16, "only {} address spaces", vms.len());
    assert_eq!(
        Client::new().vm_create(),
        Err(Errno::ENOSPC),
        "for another client"
    );
    let (owner, vm) = (&clients[vms[3].0], vms[3].1);
    assert_eq!(owner.vm_destroy(vm), Ok(()));
    // An identifier is used again when no engine knows it any more.
    let end = std::time::Instant::now() + skua_selftests::client::PATIENCE;
    let again = loop {
        match owner.vm_create() {
            Err(Errno::ENOSPC) if std::time::Instant::now() < end => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            result => break result,
        }
    };
    assert_eq!(again, Ok(vm));
    drop(clients);
    before.expect_unchanged(&client);
}
