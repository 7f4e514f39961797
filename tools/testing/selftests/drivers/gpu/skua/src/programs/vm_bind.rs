// SPDX-License-Identifier: MIT

//! Address spaces: what is bound where, and when.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use skua_selftests::cgroup::MemoryGroup;
use skua_selftests::client::{
    map, map_copy, map_fence, map_readonly, signal, signal_point, signal_value, unmap, wait,
    wait_point, wait_value as wait_for_value, PATIENCE,
};
use skua_selftests::function::Function;
use skua_selftests::program::{address, STORE_FOR_EVER};
use skua_selftests::rig::{copy, dispatch, fill, wait_value, write, Buffer};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::{Command, Dispatch};
use skua_uapi::*;

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        both_ends_of_the_address_space,
        operations_happen_in_order,
        a_new_mapping_replaces_the_old,
        a_hole_in_the_middle_leaves_the_ends: 60,
        offsets_are_kept,
        one_object_at_many_addresses,
        unmapping_nothing_is_fine,
        read_only_mappings,
        what_is_left_of_a_read_only_mapping_is_read_only,
        large_pages_come_apart_and_together: 60,
        pages_of_all_sizes: 120,
        the_largest_bind: 60,
        longer_elements_of_a_later_version,
        address_spaces_are_apart,
        binds_wait_for_syncs,
        binds_of_one_address_space_are_in_order,
        binds_after_a_failed_fence_happen,
        binds_are_held_for_values,
        what_is_destroyed_while_its_bind_is_held_is_not_bound,
        held_binds_are_cancelled_with_their_address_space,
        held_binds_that_are_let_go_meanwhile_are_cancelled_too: 60,
        held_binds_outlive_their_device,
        held_binds_have_a_limit: 60,
        binds_in_the_order_of_a_context_hold_no_others,
        binds_held_in_its_order_end_with_a_context,
        binds_held_in_the_order_of_a_context_have_a_limit: 60,
        binds_copy_what_is_mapped,
        a_held_bind_copies_what_is_mapped_then,
        a_bind_that_cannot_be_done_fails_its_context,
        copies_have_a_limit: 60,
        old_translations_are_not_used_after_the_signal: 120,
        tables_are_given_back: 60,
        unmapping_nothing_takes_no_tables,
        a_cut_finds_the_tables_of_what_may_move,
        a_cut_knows_what_its_own_bind_mapped,
        what_is_installed_is_recorded: 60,
        tables_are_charged_to_the_client: 60,
        tables_of_held_binds_are_charged_to_the_client: 60,
        tables_count_as_system_memory: 120,
        tables_count_as_their_clients_memory: 120,
        many_unmaps_of_many_mappings: 120,
        large_pages_are_flushed_when_they_go: 60,
        what_is_cut_off_a_page_of_64k_is_gone: 60,
        nothing_is_written_once_an_unmap_is_done: 120,
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

fn what_is_left_of_a_read_only_mapping_is_read_only() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    // Pages of 64 KiB, and of 2 MiB, which come apart.
    for size in [64 << 10, LARGE] {
        let handle = rig.bo(Place::Vram, size);
        let cpu = rig.map(handle);
        cpu.fill(|_| 33);
        let va = rig.reserve(size);
        let ops = [
            map_readonly(handle, 0, va, size),
            unmap(va + 5 * PAGE, PAGE),
        ];
        assert_eq!(rig.bind_and_wait(rig.vm, &ops[..1]), Ok(()));
        assert_eq!(rig.bind_and_wait(rig.vm, &ops[1..]), Ok(()));
        for offset in [0, 4 * PAGE, 6 * PAGE, size - PAGE] {
            assert_eq!(
                peek(&rig, &out, va + offset),
                Ok(33),
                "{size:#x}, {offset:#x}"
            );
            let context = rig.new_context(Engine::Copy);
            let job = rig.start_in(context, &[write(va + offset, 34)]);
            assert_eq!(job.wait(), Err(Errno::EFAULT), "{size:#x}, {offset:#x}");
        }
        cpu.expect(&format!("{size:#x}"), |_| 33);
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
        ops: drm_skua_array {
            stride: 4096,
            count: 2,
            pointer: longer.as_ptr() as u64,
        },
        syncs: skua_selftests::client::array(&syncs),
        ..Default::default()
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

fn command_words(commands: &[Command]) -> Vec<u32> {
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

fn binds_are_held_for_values() {
    let rig = Rig::new();
    let (fence, bound) = (rig.fence(0), rig.fence(0));
    let handle = rig.bo(Place::System, PAGE);
    rig.map(handle).write(0, 0x51);
    let out = rig.buffer(Place::System, PAGE);
    let addresses = [rig.reserve(PAGE), rig.reserve(PAGE)];
    let done = rig.syncobj();
    let syncs = [
        wait_for_value(fence, 1),
        signal(done),
        signal_value(bound, 1),
    ];
    for (va, syncs) in addresses
        .into_iter()
        .zip([&syncs[..], &[signal_value(bound, 2)]])
    {
        let ops = [map(handle, 0, va, PAGE)];
        assert_eq!(rig.bind(rig.vm, &ops, syncs), Ok(()));
    }
    // Another address space does not wait.
    let other = rig.vm_create().expect("VM_CREATE");
    let ops = [map(handle, 0, addresses[0], PAGE)];
    assert_eq!(rig.bind_and_wait(other, &ops), Ok(()));
    sleep(Duration::from_millis(50));
    // What waits behind it is held as well, and nothing has a fence.
    assert!(!rig.fence_has(bound, 1));
    let submitted = rig.submit(rig.compute, &[], &[wait(done)]);
    assert_eq!(submitted, Err(Errno::EINVAL));
    for va in addresses {
        assert_eq!(peek(&rig, &out, va), Err(Errno::EFAULT), "{va:#x}");
    }
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert!(rig.fence_gets(bound, 2));
    assert_eq!(rig.wait(done), Ok(()));
    for va in addresses {
        assert_eq!(peek(&rig, &out, va), Ok(0x51), "{va:#x}");
    }
}

fn what_is_destroyed_while_its_bind_is_held_is_not_bound() {
    let rig = Rig::new();
    let (fence, bound) = (rig.fence(0), rig.fence(0));
    let out = rig.buffer(Place::System, PAGE);
    for (value, place) in (1..).zip(Place::ALL) {
        let handles = [rig.bo(place, PAGE), rig.bo(place, PAGE)];
        let addresses = [rig.reserve(PAGE), rig.reserve(PAGE)];
        let ops = [0, 1].map(|n| map(handles[n], 0, addresses[n], PAGE));
        let syncs = [wait_for_value(fence, value), signal_value(bound, value)];
        assert_eq!(rig.bind(rig.vm, &ops, &syncs), Ok(()));
        assert_eq!(rig.destroy(&handles[..1], 0), Ok(()));
        assert_eq!(rig.fence_signal(fence, value), Ok(()));
        assert!(rig.fence_gets(bound, value), "{place:?}");
        let seen = addresses.map(|va| peek(&rig, &out, va));
        assert_eq!(seen, [Err(Errno::EFAULT), Ok(0)], "{place:?}");
    }
}

fn held_binds_are_cancelled_with_their_address_space() {
    let rig = Rig::new();
    let (fence, promised) = (rig.fence(0), rig.fence(0));
    let vm = rig.vm_create().expect("VM_CREATE");
    let handle = rig.bo(Place::System, PAGE);
    let done = rig.syncobj();
    let syncs = [
        wait_for_value(fence, 1),
        signal(done),
        signal_value(promised, 1),
    ];
    let ops = [map(handle, 0, 1 << 40, PAGE)];
    assert_eq!(rig.bind(vm, &ops, &syncs), Ok(()));
    assert_eq!(rig.vm_destroy(vm), Ok(()));
    assert_eq!(rig.wait(done), Err(Errno::ECANCELED));
    // It waits for nothing and promises nothing any more.
    assert!(!rig.fence_has(promised, 1));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(rig.fence_signal(promised, 1), Ok(()));
}

/// Who destroys an address space just when what it holds is let go has cancelled that as well: what
/// it promised is not lost.
fn held_binds_that_are_let_go_meanwhile_are_cancelled_too() {
    let rig = Rig::new();
    let handle = rig.bo(Place::System, PAGE);
    let ops: Vec<_> = (0..1024)
        .map(|n| map(handle, 0, (1 << 40) + n * PAGE, PAGE))
        .collect();
    let mut cancelled = 0;
    for round in 0..60 {
        let (fence, promised) = (rig.fence(0), rig.fence(0));
        let vm = rig.vm_create().expect("VM_CREATE");
        let done = rig.syncobj();
        let syncs = [
            wait_for_value(fence, 1),
            signal(done),
            signal_value(promised, 1),
        ];
        assert_eq!(rig.bind(vm, &ops, &syncs), Ok(()));
        assert_eq!(rig.fence_signal(fence, 1), Ok(()));
        sleep(Duration::from_micros(50 * round));
        assert_eq!(rig.vm_destroy(vm), Ok(()));
        let end = rig.wait(done);
        assert!(
            matches!(end, Ok(()) | Err(Errno::ECANCELED)),
            "round {round}: {end:?}"
        );
        cancelled += u32::from(end.is_err());
        assert!(
            !rig.fence_has(promised, 2),
            "round {round}: {end:?}, and lost"
        );
        for fence in [fence, promised] {
            assert_eq!(rig.fence_destroy(fence), Ok(()));
        }
    }
    println!("# {cancelled} of 60 were cancelled");
}

/// An address space outlives the failure of its device, and so does what it waits for by a fence
/// that is not lost with that.
fn held_binds_outlive_their_device() {
    let rig = Rig::new();
    let device = rig.device_create(0).expect("DEVICE_CREATE");
    let vm = rig.vm_create_for(device).expect("VM_CREATE");
    let kept = DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR;
    let fence = rig.fence_create_for(device, kept, 0).expect("FENCE_CREATE");
    let other = Client::new();
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(&descriptor).expect("FENCE_IMPORT");
    let done = rig.syncobj();
    let ops = [map(rig.bo(Place::System, PAGE), 0, 1 << 40, PAGE)];
    let syncs = [wait_for_value(fence, 1), signal(done)];
    assert_eq!(rig.bind(vm, &ops, &syncs), Ok(()));
    assert_eq!(rig.device_mark_error(device), Ok(()));
    assert_eq!(other.fence_signal(theirs, 1), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
}

fn held_binds_have_a_limit() {
    quiet();
    let rig = Rig::new();
    let (fence, counted) = (rig.fence(0), rig.fence(0));
    let handle = rig.bo(Place::System, PAGE);
    let ops = [map(handle, 0, rig.reserve(PAGE), PAGE)];
    let first = [wait_for_value(fence, 1)];
    assert_eq!(rig.bind(rig.vm, &ops, &first), Ok(()));
    for n in 1..4096 {
        let syncs = [signal_value(counted, n)];
        assert_eq!(rig.bind(rig.vm, &ops, &syncs), Ok(()), "{n}");
    }
    for syncs in [&first[..], &[]] {
        assert_eq!(rig.bind(rig.vm, &ops, syncs), Err(Errno::ENOSPC));
    }
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert!(rig.fence_gets(counted, 4095));
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
}

/// Objects that begin with 1, 2 and 3.
fn three_objects(rig: &Rig) -> [u32; 3] {
    [1, 2, 3].map(|value| {
        let handle = rig.bo(Place::System, PAGE);
        rig.map(handle).write(0, value);
        handle
    })
}

/// What waits in the order of a context is in the way of nothing else, and in order itself.
fn binds_in_the_order_of_a_context_hold_no_others() {
    let rig = Rig::new();
    let (fence, bound) = (rig.fence(0), rig.fence(0));
    let out = rig.buffer(Place::System, PAGE);
    let handles = three_objects(&rig);
    let va = rig.reserve(PAGE);
    let bind = |context, n: usize, syncs: &[_]| {
        let ops = [map(handles[n], 0, va, PAGE)];
        rig.bind_in_order_of(context, rig.vm, &ops, syncs)
    };
    let first = [wait_for_value(fence, 1), signal_value(bound, 1)];
    assert_eq!(bind(rig.compute, 0, &first), Ok(()));
    // Behind it, though it waits for nothing.
    assert_eq!(bind(rig.compute, 1, &[signal_value(bound, 2)]), Ok(()));
    // The address space's own order, and another context's.
    for context in [0, rig.copy] {
        let done = rig.syncobj();
        assert_eq!(bind(context, 2, &[signal(done)]), Ok(()));
        assert_eq!(rig.wait(done), Ok(()), "context {context}");
        assert_eq!(peek(&rig, &out, va), Ok(3));
    }
    // And the other way round.
    let held = rig.fence(0);
    assert_eq!(bind(0, 2, &[wait_for_value(held, 1)]), Ok(()));
    assert!(!rig.fence_has(bound, 1));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert!(rig.fence_gets(bound, 2));
    assert_eq!(peek(&rig, &out, va), Ok(2));
    assert_eq!(rig.fence_signal(held, 1), Ok(()));
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, PAGE)]), Ok(()));
    assert_eq!(peek(&rig, &out, va), Err(Errno::EFAULT));
}

/// How a context ends of which binds are held.
type Ending = fn(&Rig, u32, u32) -> Result<(), Errno>;

fn binds_held_in_its_order_end_with_a_context() {
    let endings: [(&str, Ending, bool); 3] = [
        (
            "context",
            |rig, context, _| rig.context_destroy(context),
            false,
        ),
        ("address space", |rig, _, vm| rig.vm_destroy(vm), false),
        (
            "work",
            |rig, context, _| {
                // Nothing is mapped there.
                let done = rig.syncobj();
                let buffer = drm_skua_buffer {
                    va: 1 << 41,
                    size: 8,
                    flags: 0,
                };
                rig.submit(context, &[buffer], &[signal(done)])?;
                assert_eq!(rig.wait(done), Err(Errno::EFAULT));
                Ok(())
            },
            true,
        ),
    ];
    for (what, end, fails) in endings {
        let rig = Rig::new();
        let device = rig.device_create(0).expect("DEVICE_CREATE");
        let vm = rig.vm_create_for(device).expect("VM_CREATE");
        let context = rig.context_create(vm, rig.engine(DRM_SKUA_ENGINE_COPY));
        let context = context.expect("CONTEXT_CREATE");
        let (fence, promised) = (rig.fence(0), rig.fence(0));
        let ops = [map(rig.bo(Place::System, PAGE), 0, 1 << 40, PAGE)];
        let done = rig.syncobj();
        let syncs = [
            wait_for_value(fence, 1),
            signal(done),
            signal_value(promised, 1),
        ];
        assert_eq!(rig.bind_in_order_of(context, vm, &ops, &syncs), Ok(()));
        assert_eq!(end(&rig, context, vm), Ok(()), "{what}");
        assert_eq!(rig.wait(done), Err(Errno::ECANCELED), "{what}");
        assert_eq!(rig.fence_has(promised, 1), fails, "{what}");
        let refused = rig.bind_in_order_of(context, vm, &ops, &[]);
        let expected = match fails {
            true => Errno::ECANCELED,
            false => Errno::ENOENT,
        };
        assert_eq!(refused, Err(expected), "{what}");
        assert_eq!(rig.fence_signal(fence, 1), Ok(()), "{what}");
        if !fails {
            assert_eq!(rig.fence_signal(promised, 1), Ok(()), "{what}");
        }
    }
}

fn binds_held_in_the_order_of_a_context_have_a_limit() {
    quiet();
    let rig = Rig::new();
    let (fence, counted) = (rig.fence(0), rig.fence(0));
    let ops = [map(rig.bo(Place::System, PAGE), 0, rig.reserve(PAGE), PAGE)];
    let bind = |syncs: &[_]| rig.bind_in_order_of(rig.copy, rig.vm, &ops, syncs);
    assert_eq!(bind(&[wait_for_value(fence, 1)]), Ok(()));
    for n in 1..4096 {
        assert_eq!(bind(&[signal_value(counted, n)]), Ok(()), "{n}");
    }
    assert_eq!(bind(&[]), Err(Errno::ENOSPC));
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert!(rig.fence_gets(counted, 4095));
    assert_eq!(bind(&[]), Ok(()));
}

/// Each operation finds what those before it, and the binds before, have left.
fn binds_copy_what_is_mapped() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let handle = rig.bo(Place::System, 8 * PAGE);
    let memory = rig.map(handle);
    for (page, value) in (0..8).zip(100..) {
        memory.write(page * 4096, value);
    }
    let page = |range: u64, n: u64| range + n * PAGE;
    let (from, to) = (rig.reserve(8 * PAGE), rig.reserve(8 * PAGE));
    let seen = |range| {
        (0..8)
            .map(|n| peek(&rig, &out, page(range, n)).unwrap_or(0))
            .collect::<Vec<_>>()
    };
    let ops = [
        map(handle, 2 * PAGE, page(from, 1), 4 * PAGE),
        unmap(page(from, 2), PAGE),
        map(handle, 0, to, 8 * PAGE),
        map_copy(page(from, 1), to, 4 * PAGE),
    ];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(seen(from), [0, 102, 0, 104, 105, 0, 0, 0]);
    assert_eq!(seen(to), [102, 0, 104, 105, 104, 105, 106, 107]);
    // Ranges that overlap, up and down, and in a bind of their own.
    let ops = [
        map_copy(from, page(from, 1), 6 * PAGE),
        map_copy(page(from, 2), from, 6 * PAGE),
    ];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(seen(from), [102, 0, 104, 105, 0, 0, 0, 0]);
    // Of nothing, and on itself.
    let ops = [
        map_copy(to, to, 8 * PAGE),
        map_copy(page(from, 4), page(to, 4), 4 * PAGE),
    ];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(seen(to), [102, 0, 104, 105, 0, 0, 0, 0]);
    // A copy is as good as what it is of, and lives on.
    let fence = rig.fence(7);
    let ops = [
        map_readonly(handle, 0, from, PAGE),
        map_fence(fence, page(from, 1)),
        map_copy(from, to, 2 * PAGE),
        unmap(from, 8 * PAGE),
    ];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(rig.fence_destroy(fence), Ok(()));
    assert_eq!(seen(to)[..2], [100, 7]);
    for n in 0..2 {
        let context = rig.new_context(Engine::Copy);
        let written = rig.start_in(context, &[write(page(to, n), 1)]).wait();
        assert_eq!(written, Err(Errno::EFAULT), "page {n}");
    }
}

/// A held copy is of what is mapped when it is let go, and of nothing that is destroyed by then.
fn a_held_bind_copies_what_is_mapped_then() {
    let rig = Rig::new();
    let (fence, bound) = (rig.fence(0), rig.fence(0));
    let out = rig.buffer(Place::System, PAGE);
    let handles = three_objects(&rig);
    let (from, to) = (rig.reserve(2 * PAGE), rig.reserve(2 * PAGE));
    let both = |a, b| [map(a, 0, from, PAGE), map(b, 0, from + PAGE, PAGE)];
    let ops = both(handles[0], handles[0]);
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    let syncs = [wait_for_value(fence, 1), signal_value(bound, 1)];
    let ops = [map_copy(from, to, 2 * PAGE)];
    let held = rig.bind_in_order_of(rig.copy, rig.vm, &ops, &syncs);
    assert_eq!(held, Ok(()));
    let ops = both(handles[1], handles[2]);
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(rig.destroy(&handles[2..], 0), Ok(()));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert!(rig.fence_gets(bound, 1));
    let seen = [to, to + PAGE].map(|va| peek(&rig, &out, va));
    assert_eq!(seen, [Ok(2), Err(Errno::EFAULT)]);
}

/// Nobody goes on as if it were done: what it promised is lost, and its context with it.
fn a_bind_that_cannot_be_done_fails_its_context() {
    let rig = Rig::new();
    let (fence, promised) = (rig.fence(0), rig.fence(0));
    let handle = rig.bo(Place::System, 2 * PAGE);
    let (from, to) = (rig.reserve(1024 * PAGE), rig.reserve(5 * 1024 * PAGE));
    let copies: Vec<_> = (0..5)
        .map(|n| map_copy(from, to + n * 1024 * PAGE, 1024 * PAGE))
        .collect();
    let done = rig.syncobj();
    let syncs = [
        wait_for_value(fence, 1),
        signal(done),
        signal_value(promised, 1),
    ];
    let held = rig.bind_in_order_of(rig.copy, rig.vm, &copies, &syncs);
    assert_eq!(held, Ok(()));
    let maps: Vec<_> = (0..1024)
        .map(|n| map(handle, n % 2 * PAGE, from + n * PAGE, PAGE))
        .collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &maps), Ok(()));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(rig.wait(done), Err(Errno::ECANCELED));
    assert!(rig.fence_has(promised, u64::MAX));
    let status = |context| rig.state(context).expect("CONTEXT_STATE").status;
    assert_eq!(status(rig.copy), DRM_SKUA_CONTEXT_LOST);
    // Others go on.
    assert_eq!(status(rig.compute), DRM_SKUA_CONTEXT_ACTIVE);
    let end = rig.bind_and_wait(rig.vm, &[unmap(from, 1024 * PAGE)]);
    assert_eq!(end, Ok(()));
}

/// Of few operations come no more than many, and those that are too many change nothing.
fn copies_have_a_limit() {
    const MOST: u64 = 4096;
    quiet();
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let handle = rig.bo(Place::System, 2 * PAGE);
    rig.map(handle).write(0, 1);
    let (from, to) = (rig.reserve(1024 * PAGE), rig.reserve((MOST + 1) * PAGE));
    // Neighbours that are one mapping each.
    let ops: Vec<_> = (0..1024)
        .map(|n| map(handle, n % 2 * PAGE, from + n * PAGE, PAGE))
        .collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    // Each copies what the one before has mapped.
    let part = |n: u64| {
        if n == 0 {
            from
        } else {
            to + (n - 1) * 1024 * PAGE
        }
    };
    let mut ops: Vec<_> = (0..MOST / 1024)
        .map(|n| map_copy(part(n), part(n + 1), 1024 * PAGE))
        .collect();
    ops.push(map_copy(from, to + MOST * PAGE, PAGE));
    let refused = rig.bind_and_wait(rig.vm, &ops);
    assert_eq!(refused, Err(Errno::E2BIG));
    assert_eq!(peek(&rig, &out, to), Err(Errno::EFAULT));
    ops.pop();
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(peek(&rig, &out, to + (MOST - 1024) * PAGE), Ok(1));
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

/// Tables of the youngest address space, as debugfs counts them.
fn tables() -> u64 {
    last_vm("tables")
}

const GIB: u64 = 1 << 30;

/// What is unmapped begins and ends within a table's span, each in another table of every level.
fn scattered_unmaps(client: &Client) -> Vec<drm_skua_bind_op> {
    (0..u64::from(client.device.max_bind_ops))
        .map(|n| unmap(2 * n * GIB + 17 * PAGE, GIB))
        .collect()
}

fn unmapping_nothing_takes_no_tables() {
    quiet();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    assert_eq!(tables(), 1, "the root alone");
    assert_eq!(client.bind_and_wait(vm, &scattered_unmaps(&client)), Ok(()));
    assert_eq!(tables(), 1, "tables for nothing");
    // Mappings of small pages have all the tables that cutting them takes.
    let handle = client.bo(Place::System, 4 * PAGE);
    let va = 1 << 40;
    let op = map(handle, 0, va, 4 * PAGE);
    assert_eq!(client.bind_and_wait(vm, &[op]), Ok(()));
    assert_eq!(tables(), 4, "one of each level");
    let ops = [
        unmap(va + PAGE, PAGE),
        unmap(va + 3 * PAGE, GIB),
        unmap(va - GIB, GIB + PAGE),
        unmap(va, GIB),
    ];
    assert_eq!(client.bind_and_wait(vm, &ops), Ok(()));
    assert_eq!(client.bind_and_wait(vm, &scattered_unmaps(&client)), Ok(()));
    assert_eq!(tables(), 4);
}

fn a_cut_finds_the_tables_of_what_may_move() {
    quiet();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::Vram, 8 * LARGE);
    let va = 1 << 40;
    let whole = map(handle, 0, va, 8 * LARGE);
    assert_eq!(client.bind_and_wait(vm, &[whole]), Ok(()));
    // It may be scattered when it comes back.
    let before = tables();
    for op in [
        unmap(va, LARGE),
        unmap(va + LARGE + PAGE, 4 * LARGE),
        unmap(va + LARGE, PAGE),
        unmap(va + 2 * LARGE + PAGE, LARGE),
    ] {
        assert_eq!(client.bind_and_wait(vm, &[op]), Ok(()));
        assert_eq!(tables(), before, "{:#x}", op.va);
    }
}

fn a_cut_knows_what_its_own_bind_mapped() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    let handle = rig.bo(Place::Vram, 2 * LARGE);
    rig.map(handle).fill(|offset| offset as u64);
    let va = rig.reserve(2 * LARGE);
    let at = va + LARGE + 16 * PAGE;
    let ops = [map(handle, 0, va, 2 * LARGE), unmap(at, PAGE)];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(peek(&rig, &out, at - 8), Ok(at - va - 8));
    assert_eq!(peek(&rig, &out, at), Err(Errno::EFAULT));
    assert_eq!(peek(&rig, &out, at + PAGE), Ok(at - va + PAGE));
}

/// A number of the last line of debugfs' `vms`.
fn last_vm(key: &str) -> u64 {
    let text = Function::first().debugfs("vms").expect("debugfs");
    let line = text.lines().next_back().unwrap_or_default();
    let mut words = line.split_whitespace().skip_while(|word| *word != key);
    words
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no {key}: {text:?}"))
}

fn what_is_installed_is_recorded() {
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, PAGE);
    let vm = rig.vm_create().expect("VM_CREATE");
    let handles: Vec<u32> = Place::ALL
        .iter()
        .chain(&Place::ALL)
        .map(|place| rig.bo(*place, 4 * LARGE))
        .collect();
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let mut most = 0;
    for round in 0..100 {
        let ops: Vec<_> = (0..=random(12))
            .map(|_| {
                let (offset, size) = (random(1024) * PAGE, (1 + random(1024)) * PAGE);
                let va = (1 << 40) + random(4096) * PAGE;
                match random(3) {
                    0 => unmap(va, size),
                    n => {
                        let handle = handles[usize::try_from(random(4)).expect("an index")];
                        let op = if n == 1 { map } else { map_readonly };
                        op(handle, offset, va, size)
                    }
                }
            })
            .collect();
        assert_eq!(rig.bind_and_wait(vm, &ops), Ok(()));
        let (mapped, installed) = (last_vm("mappings"), last_vm("installed"));
        assert_eq!(mapped, installed, "round {round}: {ops:x?}");
        most = most.max(mapped);
    }
    assert!(most > 10, "at most {most} mappings");
    // What waits is not installed yet.
    let job = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let done = rig.syncobj();
    let syncs = [wait(job.syncobj), signal(done)];
    let (start, end) = (rig.device.va_start, rig.device.va_end);
    let ops = [
        unmap(start, end - start),
        map(handles[0], 0, 1 << 41, PAGE),
        map(handles[1], 0, 1 << 42, PAGE),
    ];
    assert_eq!(rig.bind(vm, &ops, &syncs), Ok(()));
    assert_eq!((last_vm("mappings"), last_vm("installed")), (2, 0));
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!((last_vm("mappings"), last_vm("installed")), (2, 2));
}

fn tables_are_charged_to_the_client() {
    expect_tables_charged(|client, vm, ops| client.bind_and_wait(vm, ops));
}

fn tables_of_held_binds_are_charged_to_the_client() {
    expect_tables_charged(|client, vm, ops| {
        let (fence, done) = (client.fence(0), client.syncobj());
        let syncs = [wait_for_value(fence, 1), signal(done)];
        client.bind(vm, ops, &syncs)?;
        client.fence_signal(fence, 1)?;
        client.wait(done)
    });
}

/// What `bind` does with tables of their own for each operation.
#[track_caller]
fn expect_tables_charged(
    bind: impl FnOnce(&Client, u32, &[drm_skua_bind_op]) -> Result<(), Errno>,
) {
    quiet();
    let group = MemoryGroup::enter();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::System, PAGE);
    let before = (group.kernel_bytes(), tables());
    let ops: Vec<_> = (1..=1024).map(|n| map(handle, 0, n * GIB, PAGE)).collect();
    assert_eq!(bind(&client, vm, &ops), Ok(()));
    let made = tables() - before.1;
    assert!(made >= 2048, "{made} tables");
    let charged = group.kernel_bytes_since(before.0, made * PAGE);
    assert!(
        charged >= made * PAGE,
        "{charged} bytes charged for {made} tables"
    );
}

/// Maps the object's first page here and there, each with tables of its own, until there is no
/// memory for them: `room` bytes at most. How often.
fn bind_until_full(client: &Client, vm: u32, handle: u32, room: u64) -> u64 {
    let mut bound = 0;
    let end = loop {
        match client.bind_and_wait(vm, &[map(handle, 0, (bound + 1) * GIB, PAGE)]) {
            Ok(()) => bound += 1,
            Err(errno) => break errno,
        }
        assert!(bound * 2 * PAGE <= room, "{bound} mappings: no end");
    };
    assert_eq!(end, Errno::ENOMEM, "after {bound} mappings");
    bound
}

/// A client that maps a page here and there takes nothing from others.
fn tables_count_as_their_clients_memory() {
    quiet();
    let client = Client::new();
    let region = client.region(Place::System);
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::System, PAGE);
    let room = 4 << 20;
    // No client has more than half.
    let most = client.bo(Place::System, (region.size / 2 - room) / PAGE * PAGE);
    bind_until_full(&client, vm, handle, room);
    let other = Client::new();
    other.bo(Place::System, (region.size / 2 - room) / PAGE * PAGE);
    assert_eq!(client.vm_destroy(vm), Ok(()));
    for handle in [handle, most] {
        assert_eq!(client.close(handle), Ok(()));
    }
}

fn tables_count_as_system_memory() {
    quiet();
    let client = Client::new();
    let region = client.region(Place::System);
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::System, PAGE);
    let room = 4 << 20;
    let left = |client: &Client| region.size - client.region(Place::System).used;
    // No client has more than half.
    let other = Client::new();
    other.bo(Place::System, region.size / 2 / PAGE * PAGE);
    let most = client.bo(Place::System, left(&client) - room);
    let bound = bind_until_full(&client, vm, handle, room);
    assert!(bound > 64, "{bound} mappings");
    // Others feel it, unmapping goes on, and all of it comes back.
    assert_eq!(client.try_bo(Place::System, room), Err(Errno::ENOMEM));
    let third = Client::new();
    assert_eq!(third.try_bo(Place::System, room), Err(Errno::ENOMEM));
    assert_eq!(client.bind_and_wait(vm, &scattered_unmaps(&client)), Ok(()));
    assert_eq!(client.vm_destroy(vm), Ok(()));
    for handle in [handle, most] {
        assert_eq!(client.close(handle), Ok(()));
    }
    drop((other, third));
    quiet();
    assert_eq!(client.region(Place::System).used, region.used);
}

fn many_unmaps_of_many_mappings() {
    quiet();
    let group = MemoryGroup::enter();
    let rig = Rig::new();
    let vm = rig.vm_create().expect("VM_CREATE");
    let handle = rig.bo(Place::System, PAGE);
    let mappings = 24_000;
    let ops: Vec<_> = (0..mappings)
        .map(|n| map(handle, 0, (1 << 32) + n * PAGE, PAGE))
        .collect();
    for ops in ops.chunks(1024) {
        assert_eq!(rig.bind_and_wait(vm, ops), Ok(()));
    }
    let (start, end) = (rig.device.va_start, rig.device.va_end);
    let all = vec![unmap(start, end - start); 1024];
    let gate = rig.buffer(Place::System, PAGE);
    let job = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    let done = rig.syncobj();
    let before = group.kernel_bytes();
    assert_eq!(
        rig.bind(vm, &all, &[wait(job.syncobj), signal(done)]),
        Ok(())
    );
    // While it waits, it holds each mapping once.
    let held = group.kernel_bytes().saturating_sub(before);
    assert!(held < 8 << 20, "{held} bytes for {mappings} mappings");
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(job.wait(), Ok(()));
    // Each operation undoes part of what the one before it did.
    let mut ops = Vec::new();
    for n in 0..256 {
        ops.push(map(handle, 0, (1 << 32) + n * PAGE, PAGE));
        ops.push(unmap((1 << 32) + n * PAGE, PAGE));
        ops.push(all[0]);
        ops.push(map(handle, 0, (1 << 32) + n * PAGE, PAGE));
    }
    assert_eq!(rig.bind_and_wait(vm, &ops), Ok(()));
    assert_eq!(rig.bind_and_wait(vm, &all), Ok(()));
}

/// A mapping of `size` bytes on pages of as many, which both engines have used, and its value.
fn used_by_both(rig: &Rig, handle: u32, va: u64, size: u64) {
    let op = map(handle, 0, va, size);
    assert_eq!(rig.bind_and_wait(rig.vm, &[op]), Ok(()));
    for engine in Engine::ALL {
        assert_eq!(rig.run(engine, &[fill(5, va, size)]), Ok(()), "{engine:?}");
    }
}

fn large_pages_are_flushed_when_they_go() {
    let rig = Rig::new();
    for size in [LARGE, 64 << 10] {
        let handle = rig.bo(Place::Vram, size);
        let cpu = rig.map(handle);
        let va = rig.reserve(size);
        for engine in Engine::ALL {
            used_by_both(&rig, handle, va, size);
            assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va, size)]), Ok(()));
            let context = rig.new_context(engine);
            let job = rig.start_in(context, &[fill(6, va + 8 * PAGE, PAGE)]);
            assert_eq!(job.wait(), Err(Errno::EFAULT), "{engine:?}, {size:#x}");
            cpu.expect(&format!("{engine:?}, {size:#x}"), |_| 5 << 32 | 5);
        }
    }
}

fn what_is_cut_off_a_page_of_64k_is_gone() {
    let rig = Rig::new();
    let size: u64 = 64 << 10;
    let handle = rig.bo(Place::Vram, size);
    let cpu = rig.map(handle);
    let va = rig.reserve(size);
    // The cut ends, or begins, within the page.
    for (gone, kept) in [(0, PAGE), (size - PAGE, 0), (5 * PAGE, 6 * PAGE)] {
        for engine in Engine::ALL {
            used_by_both(&rig, handle, va, size);
            assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(va + gone, PAGE)]), Ok(()));
            // What is left is in the TLB again, and only that.
            assert_eq!(rig.run(engine, &[fill(5, va + kept, PAGE)]), Ok(()));
            let context = rig.new_context(engine);
            let job = rig.start_in(context, &[fill(6, va + gone, PAGE)]);
            assert_eq!(job.wait(), Err(Errno::EFAULT), "{engine:?}, {gone:#x}");
            cpu.expect(&format!("{engine:?}, {gone:#x}"), |_| 5 << 32 | 5);
        }
    }
}

fn nothing_is_written_once_an_unmap_is_done() {
    let rig = Rig::new();
    let threads = rig.device.max_group_threads;
    let len = usize::try_from(threads * 4).expect("a size");
    let program = rig.program(STORE_FOR_EVER);
    let buffer = rig.buffer(Place::System, u64::from(threads * 4).next_multiple_of(PAGE));
    let arguments = [&address(buffer.va)[..], &[1]].concat();
    let Command::Dispatch(one) = dispatch(&program, STORE_FOR_EVER, &arguments) else {
        unreachable!("a dispatch");
    };
    let all = Command::Dispatch(Dispatch {
        threads: [threads, 1, 1],
        ..one
    });
    for round in 0..40 {
        let context = rig.new_context(Engine::Compute);
        let job = rig.start_in(context, &[all]);
        let end = Instant::now() + PATIENCE * suite::patience();
        while buffer.cpu.read32(len - 4) != 1 {
            assert!(Instant::now() < end, "round {round}: nothing is written");
        }
        // The engine writes all the time, by the translation that goes.
        let op = unmap(buffer.va, buffer.size);
        assert_eq!(rig.bind_and_wait(rig.vm, &[op]), Ok(()));
        for at in (0..len).step_by(4) {
            buffer.cpu.write32(at, 2);
        }
        assert_eq!(job.wait(), Err(Errno::EFAULT), "round {round}");
        for at in (0..len).step_by(4) {
            assert_eq!(buffer.cpu.read32(at), 2, "round {round}: word {at:#x}");
        }
        assert_eq!(rig.context_destroy(context), Ok(()));
        let op = map(buffer.handle, 0, buffer.va, buffer.size);
        assert_eq!(rig.bind_and_wait(rig.vm, &[op]), Ok(()));
    }
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
    let end = Instant::now() + PATIENCE * suite::patience();
    let again = loop {
        match owner.vm_create() {
            Err(Errno::ENOSPC) if Instant::now() < end => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            result => break result,
        }
    };
    assert_eq!(again, Ok(vm));
    drop(clients);
    before.expect_unchanged(&client);
}
