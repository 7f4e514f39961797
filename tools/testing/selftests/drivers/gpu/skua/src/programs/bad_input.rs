// SPDX-License-Identifier: MIT

//! Bad input: for every member of every argument, what it must not be.
//!
//! `skua_drm.h` says what is refused, and how. A refused call changes nothing.

use std::process::ExitCode;

use skua_selftests::client::{
    array, map, map_copy, map_fence, signal, signal_point, signal_value, unmap, wait, wait_value,
};
use skua_selftests::raw::{argument_size, ioctl_at, with_size, Errno};
use skua_selftests::table::Table;
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Cases, Client, Engine, Place, Rig};
use skua_uapi::*;

/// No memory of any process is there.
const NOWHERE: [(&str, u64); 3] = [
    ("in the first page", 8),
    ("of the kernel", 0xffff_8880_0000_0000),
    ("not canonical", 0x0123_4567_89ab_cdef),
];
const PAGE: u64 = 4096;
/// Where nothing is bound.
const VA: u64 = 1 << 40;

pub(crate) fn main() -> ExitCode {
    suite::main_in_quiet(tests![
        query,
        bo_create: 60,
        bo_mmap_offset,
        bo_info,
        row_0_05_bo_destroy: 60,
        make_resident: 60,
        evict: 60,
        row_0_12_bo_lock,
        bo_unlock,
        row_2_25_bo_set_priority: 60,
        bo_offer: 60,
        bo_reclaim: 60 at_rest,
        device_create,
        device_destroy,
        device_mark_error,
        device_state,
        vm_create,
        vm_destroy,
        vm_bind: 60,
        vm_bind_operations: 60,
        vm_bind_syncs: 60,
        vm_bind_is_all_or_nothing,
        context_create: 60,
        context_destroy,
        row_2_20_context_set_priority,
        row_2_20_set_priority_class,
        context_state,
        row_2_08_context_alloc: 60,
        row_2_09_context_free,
        submit: 60,
        submit_buffers: 60,
        submit_syncs: 60,
        fence_create,
        fence_destroy,
        fence_export,
        fence_import,
        fence_signal,
        fence_wait,
        fence_eventfd,
        arrays_in_bad_memory,
        arguments_in_bad_memory,
        errors_come_in_the_order_of_the_members,
        handles_of_other_files,
        stale_handles,
        the_next_handle_is_not_used_up,
        unknown_ioctls,
        shorter_arguments,
        longer_arguments,
        nodes_need_no_authentication,
    ])
}

fn query() {
    let client = Client::new();
    let mut room = vec![0_u32; 64];
    let good = drm_skua_query {
        type_: DRM_SKUA_QUERY_DEVICE,
        size: 256,
        pointer: room.as_mut_ptr() as u64,
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_QUERY, good);
    for kind in [DRM_SKUA_QUERY_REGIONS + 1, 0x100, u32::MAX] {
        table.case(&format!("type {kind:#x}"), Errno::EINVAL, |a| {
            a.type_ = kind
        });
        table.case(
            &format!("type {kind:#x} for its size"),
            Errno::EINVAL,
            |a| {
                (a.type_, a.pointer) = (kind, 0);
            },
        );
    }
    for (what, pointer) in NOWHERE {
        table.case(&format!("pointer {what}"), Errno::EFAULT, |a| {
            a.pointer = pointer
        });
    }
    table.finish();
    assert_eq!(room[0], client.device.hw_version);
}

fn bo_create() {
    let client = Client::new();
    let all = client
        .regions()
        .iter()
        .map(|region| 1 << region.id)
        .sum::<u32>();
    let good = drm_skua_bo_create {
        size: PAGE,
        flags: DRM_SKUA_BO_CPU_ACCESS,
        placements: all,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_BO_CREATE, good);
    for size in [
        0,
        1,
        PAGE - 1,
        PAGE + 1,
        PAGE + 8,
        (1 << 40) + PAGE,
        1 << 41,
        1 << 63,
        u64::MAX,
        u64::MAX - PAGE + 1,
    ] {
        table.case(&format!("size {size:#x}"), Errno::EINVAL, |a| a.size = size);
    }
    let flags = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED | DRM_SKUA_BO_WRITE_COMBINED;
    table.bits("flags", flags, |a| &mut a.flags);
    table.case("cached and not", Errno::EINVAL, |a| a.flags = flags);
    table.case("write-combined for nobody", Errno::EINVAL, |a| {
        a.flags = DRM_SKUA_BO_WRITE_COMBINED;
    });
    table.case("cached for nobody", Errno::EINVAL, |a| {
        a.flags = DRM_SKUA_BO_CACHED;
    });
    table.case("no placements", Errno::EINVAL, |a| a.placements = 0);
    table.bits("placements", all, |a| &mut a.placements);
    for bit in (0..32).filter(|bit| all & (1 << bit) == 0) {
        table.case(&format!("only placement {bit}"), Errno::EINVAL, |a| {
            a.placements = 1 << bit
        });
    }
    for vm in [1, 2, u32::MAX] {
        table.case(&format!("vm {vm}"), Errno::ENOENT, |a| a.vm = vm);
    }
    segment_sets(&client, &mut table);
    table.bits("pad", 0, |a| &mut a.pad);
    let vram = 1 << client.region(Place::Vram).id;
    let system = 1 << client.region(Place::System).id;
    table.case("more VRAM than there is", Errno::ENOSPC, |a| {
        (a.size, a.placements) = (1 << 40, vram);
    });
    table.case("more system memory than there may be", Errno::ENOMEM, |a| {
        (a.size, a.placements) = (1 << 40, system);
    });
    table.case(
        "more memory than there may be anywhere",
        Errno::ENOMEM,
        |a| a.size = 1 << 40,
    );
    let made = table.finish();
    assert_ne!(made.handle, 0);
}

/// Members of BO_CREATE that are to agree with the placements, which are all.
fn segment_sets(client: &Client, table: &mut Table<'_, drm_skua_bo_create>) {
    let [vram, aperture, system] =
        [Place::Vram, Place::Aperture, Place::System].map(|place| client.set(&[place]));
    let all = vram | aperture | system;
    // Set beside nothing, one, two and three that are preferred.
    for (preferred, next) in [
        (0, all),
        (vram, (aperture | system) << 8),
        (aperture << 8 | vram, system << 16),
        (system << 16 | aperture << 8 | vram, 0),
    ] {
        table.bits("preferred", preferred | next, |a| {
            a.preferred = preferred;
            &mut a.preferred
        });
    }
    for (place, other) in [(vram, system), (aperture, vram), (system, aperture)] {
        for (what, preferred) in [("first", place), ("second", place << 8 | other)] {
            table.case(
                &format!("preferred {what}, not allowed"),
                Errno::EINVAL,
                |a| {
                    (a.placements, a.preferred) = (all & !place, preferred);
                },
            );
        }
        table.case("preferred twice", Errno::EINVAL, |a| {
            a.preferred = place << 8 | place
        });
        table.case("behind a gap", Errno::EINVAL, |a| a.preferred = place << 8);
    }
    table.bits("eviction_set", aperture | system, |a| &mut a.eviction_set);
    table.case("an eviction set with VRAM", Errno::EINVAL, |a| {
        a.eviction_set = all
    });
    table.case("evicted to what is not allowed", Errno::EINVAL, |a| {
        (a.placements, a.eviction_set) = (vram | system, aperture);
    });
    for placements in [aperture, system, aperture | system] {
        for eviction_set in [aperture, system] {
            let name = format!("{placements:#x} evicted to {eviction_set:#x}");
            table.case(&name, Errno::EINVAL, |a| {
                (a.placements, a.eviction_set) = (placements, eviction_set);
            });
        }
    }
}

/// Handles that name nothing in a file in which `live` is the only one.
fn no_handles(live: u32) -> [u32; 4] {
    [0, live + 1, 0x7fff_ffff, u32::MAX]
}

fn bo_mmap_offset() {
    let client = Client::new();
    let handle = client.bo(Place::Vram, PAGE);
    let good = drm_skua_bo_mmap_offset {
        handle,
        ..Default::default()
    };
    let hidden = client
        .bo_create(PAGE, 0, 1 << client.region(Place::System).id)
        .expect("BO_CREATE without CPU access");
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_BO_MMAP_OFFSET, good);
    for handle in no_handles(hidden) {
        table.case(&format!("handle {handle:#x}"), Errno::ENOENT, |a| {
            a.handle = handle
        });
    }
    table.case("no CPU access", Errno::EPERM, |a| a.handle = hidden);
    table.bits("pad", 0, |a| &mut a.pad);
    assert_ne!(table.finish().offset, 0);
}

fn bo_info() {
    let client = Client::new();
    let handle = client.bo(Place::System, PAGE);
    let good = drm_skua_bo_info {
        handle,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_BO_INFO, good);
    for handle in no_handles(handle) {
        table.case(&format!("handle {handle:#x}"), Errno::ENOENT, |a| {
            a.handle = handle
        });
    }
    table.bits("pad", 0, |a| &mut a.pad);
    assert_eq!(table.finish().size, PAGE);
}

fn device_create() {
    let client = Client::new();
    let good = drm_skua_device_create::default();
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_DEVICE_CREATE, good);
    table.bits("flags", DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY, |a| {
        &mut a.flags
    });
    assert_ne!(table.finish().device, 0);
}

fn device_destroy() {
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let good = drm_skua_device_destroy { device, pad: 0 };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_DEVICE_DESTROY, good);
    table.case("the file's own", Errno::ENOENT, |a| a.device = 0);
    device_cases(&mut table, |a| &mut a.device);
    table.bits("pad", 0, |a| &mut a.pad);
    table.finish();
    assert_eq!(client.device_destroy(device), Err(Errno::ENOENT), "twice");
}

fn device_mark_error() {
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let good = drm_skua_device_mark_error { device, pad: 0 };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_DEVICE_MARK_ERROR, good);
    table.case("the file's own", Errno::ENOENT, |a| a.device = 0);
    device_cases(&mut table, |a| &mut a.device);
    table.bits("pad", 0, |a| &mut a.pad);
    table.finish();
    assert_eq!(client.device_mark_error(device), Ok(()), "twice");
}

fn device_state() {
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let good = drm_skua_device_state {
        device,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_DEVICE_STATE, good);
    device_cases(&mut table, |a| &mut a.device);
    table.bits("pad", 0, |a| &mut a.pad);
    assert_eq!(table.finish().device, device);
}

/// Numbers that are no device's of a client that has one at most.
fn device_cases<T: Copy + PartialEq + std::fmt::Debug>(
    table: &mut Table<'_, T>,
    member: fn(&mut T) -> &mut u32,
) {
    for device in no_handles(1).into_iter().filter(|device| *device != 0) {
        table.case(&format!("device {device:#x}"), Errno::ENOENT, |a| {
            *member(a) = device;
        });
    }
}

fn vm_create() {
    let client = Client::new();
    let good = drm_skua_vm_create::default();
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_VM_CREATE, good);
    table.bits("flags", 0, |a| &mut a.flags);
    table.bits("pad", 0, |a| &mut a.pad);
    device_cases(&mut table, |a| &mut a.device);
    assert_ne!(table.finish().vm, 0);
}

fn vm_destroy() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let good = drm_skua_vm_destroy { vm, pad: 0 };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_VM_DESTROY, good);
    for vm in no_handles(vm) {
        table.case(&format!("vm {vm:#x}"), Errno::ENOENT, |a| a.vm = vm);
    }
    table.bits("pad", 0, |a| &mut a.pad);
    table.finish();
    assert_eq!(client.vm_destroy(vm), Err(Errno::ENOENT), "destroyed twice");
}

/// A client with an address space, a buffer object of two pages, and one operation.
fn binder() -> (Client, u32, u32) {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::Vram, 2 * PAGE);
    (client, vm, handle)
}

/// The rules of `struct drm_skua_array`, for one array of an argument.
fn array_cases<T: Copy + PartialEq + std::fmt::Debug, E: Copy + Default>(
    table: &mut Table<'_, T>,
    name: &str,
    limit: u32,
    member: impl Fn(&mut T) -> &mut drm_skua_array,
) {
    let size = u32::try_from(size_of::<E>()).expect("a size");
    for stride in [
        0,
        1,
        4,
        size - 8,
        size - 1,
        size + 1,
        size + 4,
        4095,
        4097,
        4104,
        u32::MAX,
    ] {
        table.case(&format!("{name}.stride {stride}"), Errno::EINVAL, |a| {
            member(a).stride = stride;
        });
    }
    for count in [limit + 1, 1 << 16, 1 << 31, u32::MAX] {
        table.case(&format!("{name}.count {count:#x}"), Errno::EINVAL, |a| {
            member(a).count = count;
        });
    }
    table.case(
        &format!("{name}.pointer without elements"),
        Errno::EINVAL,
        |a| {
            member(a).count = 0;
        },
    );
    table.case(
        &format!("{name}.stride 4 without elements"),
        Errno::EINVAL,
        |a| {
            *member(a) = drm_skua_array {
                stride: 4,
                ..Default::default()
            };
        },
    );
    table.case(&format!("{name}.pointer 0"), Errno::EFAULT, |a| {
        member(a).pointer = 0
    });
    for (what, pointer) in NOWHERE {
        table.case(&format!("{name}.pointer {what}"), Errno::EFAULT, |a| {
            member(a).pointer = pointer;
        });
    }
    // An element of a later version, with something in what is new.
    let mut longer = vec![0_u64; size_of::<E>() / 8 + 1];
    longer[size_of::<E>() / 8] = 1 << 56;
    let pointer = longer.as_ptr() as u64;
    table.case(
        &format!("{name} with an unknown member"),
        Errno::E2BIG,
        |a| {
            *member(a) = drm_skua_array {
                stride: size + 8,
                count: 1,
                pointer,
            };
        },
    );
}

fn vm_bind() {
    let (client, vm, handle) = binder();
    let engine = client.engine(DRM_SKUA_ENGINE_COPY);
    let context = client.context_create(vm, engine).expect("CONTEXT_CREATE");
    let other = client.vm_create().expect("VM_CREATE");
    let others = client.context_create(other, engine);
    let others = others.expect("CONTEXT_CREATE");
    let ops = [map(handle, 0, VA, PAGE)];
    let syncs = [signal(client.syncobj())];
    let good = drm_skua_vm_bind {
        vm,
        context,
        ops: array(&ops),
        syncs: array(&syncs),
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_VM_BIND, good);
    for vm in no_handles(other) {
        table.case(&format!("vm {vm:#x}"), Errno::ENOENT, |a| a.vm = vm);
    }
    for context in [others + 1, 0x7fff_ffff, u32::MAX] {
        let name = format!("context {context:#x}");
        table.case(&name, Errno::ENOENT, |a| a.context = context);
    }
    let name = "a context of another address space";
    table.case(name, Errno::EINVAL, |a| a.context = others);
    table.bits("flags", 0, |a| &mut a.flags);
    table.bits("pad", 0, |a| &mut a.pad);
    table.case("no operations", Errno::EINVAL, |a| {
        a.ops = drm_skua_array::default()
    });
    array_cases::<_, drm_skua_bind_op>(&mut table, "ops", client.device.max_bind_ops, |a| {
        &mut a.ops
    });
    array_cases::<_, drm_skua_sync>(&mut table, "syncs", client.device.max_syncs, |a| {
        &mut a.syncs
    });
    table.finish();
    assert_eq!(client.wait(syncs[0].handle), Ok(()));
}

/// Cases of one element of an array of an argument.
struct Elements<'a, T, E> {
    table: Table<'a, T>,
    good: E,
    member: fn(&mut T) -> &mut drm_skua_array,
}

impl<T: Copy + PartialEq + std::fmt::Debug, E: Copy> Elements<'_, T, E> {
    fn case(&mut self, name: &str, errno: Errno, change: impl FnOnce(&mut E)) {
        let mut element = self.good;
        change(&mut element);
        let elements = [element];
        self.table
            .case(name, errno, |a| *(self.member)(a) = array(&elements));
    }

    fn bits(&mut self, name: &str, known: u32, member: impl Fn(&mut E) -> &mut u32) {
        for bit in (0..32).filter(|bit| known & (1 << bit) == 0) {
            self.case(
                &format!("{name} with bit {bit}"),
                Errno::EINVAL,
                |element| {
                    *member(element) |= 1 << bit;
                },
            );
        }
    }
}

fn row_0_05_bo_destroy() {
    let client = Client::new();
    let other = client.bo(Place::System, PAGE);
    let handle = client.bo(Place::Vram, PAGE);
    let good_handle = drm_skua_bo_handle { handle, pad: 0 };
    let handles = [good_handle];
    let good = drm_skua_bo_destroy {
        handles: array(&handles),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_BO_DESTROY, good),
        good: good_handle,
        member: |a| &mut a.handles,
    };
    let known = DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE | DRM_SKUA_BO_DESTROY_SYNCHRONOUS;
    cases.table.bits("flags", known, |a| &mut a.flags);
    cases.table.bits("pad", 0, |a| &mut a.pad);
    handle_cases(&mut cases);
    cases.table.finish();
    assert_eq!(client.info(handle).err(), Some(Errno::ENOENT));
    assert!(client.info(other).is_ok());
}

/// What is the same of all ioctls that name objects.
fn handle_cases<T: Copy + PartialEq + std::fmt::Debug>(
    cases: &mut Elements<'_, T, drm_skua_bo_handle>,
) {
    let (good, member) = (cases.good, cases.member);
    array_cases::<_, drm_skua_bo_handle>(&mut cases.table, "handles", 1024, member);
    cases.table.case("no handles", Errno::EINVAL, |a| {
        *member(a) = drm_skua_array::default();
    });
    for handle in no_handles(good.handle) {
        cases.case(&format!("handle {handle:#x}"), Errno::ENOENT, |element| {
            element.handle = handle;
        });
    }
    cases.bits("handles.pad", 0, |element| &mut element.pad);
    let twice = [good, good];
    cases
        .table
        .case("twice", Errno::EINVAL, |a| *member(a) = array(&twice));
}

fn make_resident() {
    let client = Client::new();
    let good_handle = drm_skua_bo_handle {
        handle: client.bo(Place::Vram, PAGE),
        pad: 0,
    };
    let (handles, syncs) = ([good_handle], [signal(client.syncobj())]);
    let good = drm_skua_make_resident {
        handles: array(&handles),
        syncs: array(&syncs),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_MAKE_RESIDENT, good),
        good: good_handle,
        member: |a| &mut a.handles,
    };
    cases.table.bits("flags", 0, |a| &mut a.flags);
    cases
        .table
        .case("bytes_to_trim", Errno::EINVAL, |a| a.bytes_to_trim = 1);
    device_cases(&mut cases.table, |a| &mut a.device);
    let both = DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER | DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED;
    let explicit = DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY;
    let implicit = client.device_create(0).expect("DEVICE_CREATE");
    let explicit = client.device_create(explicit).expect("DEVICE_CREATE");
    for (name, device, flags) in [
        (
            "to succeed alone",
            explicit,
            DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED,
        ),
        ("to succeed, implicitly", implicit, both),
        ("to succeed, for the file's own", 0, both),
    ] {
        cases.table.case(name, Errno::EINVAL, |a| {
            (a.device, a.flags) = (device, flags);
        });
    }
    handle_cases(&mut cases);
    let limit = client.device.max_syncs;
    array_cases::<_, drm_skua_sync>(&mut cases.table, "syncs", limit, |a| &mut a.syncs);
    let stub = client.syncobj();
    assert_eq!(
        client.make_resident(&[good_handle.handle], &[signal(stub)]),
        Ok(())
    );
    let waits = [wait(stub)];
    cases
        .table
        .case("a wait", Errno::EINVAL, |a| a.syncs = array(&waits));
    let nobody = [signal(stub + 9)];
    cases
        .table
        .case("no syncobj", Errno::ENOENT, |a| a.syncs = array(&nobody));
    // None of them counted.
    assert_eq!(client.evict(&[good_handle.handle]), Ok(()));
    assert_eq!(client.evict(&[good_handle.handle]), Err(Errno::EINVAL));
    cases.table.finish();
}

fn evict() {
    let client = Client::new();
    let other = client.bo(Place::Vram, PAGE);
    let good_handle = drm_skua_bo_handle {
        handle: client.bo(Place::Vram, PAGE),
        pad: 0,
    };
    assert_eq!(client.make_resident(&[good_handle.handle], &[]), Ok(()));
    let handles = [good_handle];
    let good = drm_skua_evict {
        handles: array(&handles),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_EVICT, good),
        good: good_handle,
        member: |a| &mut a.handles,
    };
    cases.table.bits("flags", 0, |a| &mut a.flags);
    device_cases(&mut cases.table, |a| &mut a.device);
    handle_cases(&mut cases);
    cases.case("not resident", Errno::EINVAL, |element| {
        element.handle = other;
    });
    cases.table.finish();
}

fn row_0_12_bo_lock() {
    let client = Client::new();
    let good = drm_skua_bo_lock {
        handle: client.bo(Place::Vram, PAGE),
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_BO_LOCK, good);
    for handle in no_handles(good.handle) {
        table.case(&format!("handle {handle:#x}"), Errno::ENOENT, |a| {
            a.handle = handle;
        });
    }
    // None of them means anything.
    table.bits("flags", 0, |a| &mut a.flags);
    // None of them counted.
    assert_eq!(client.unlock(good.handle), Err(Errno::EINVAL));
    table.finish();
}

fn bo_unlock() {
    let client = Client::new();
    let good = drm_skua_bo_unlock {
        handle: client.bo(Place::Vram, PAGE),
        pad: 0,
    };
    let other = client.bo(Place::Vram, PAGE);
    assert!(client.lock(good.handle).is_ok());
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_BO_UNLOCK, good);
    for handle in no_handles(other) {
        table.case(&format!("handle {handle:#x}"), Errno::ENOENT, |a| {
            a.handle = handle;
        });
    }
    table.bits("pad", 0, |a| &mut a.pad);
    table.case("not locked", Errno::EINVAL, |a| a.handle = other);
    table.finish();
}

fn row_2_25_bo_set_priority() {
    let client = Client::new();
    let good = drm_skua_bo_priority {
        handle: client.bo(Place::Vram, PAGE),
        priority: DRM_SKUA_PRIORITY_LOW,
    };
    let objects = [good];
    let argument = drm_skua_bo_set_priority {
        objects: array(&objects),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_BO_SET_PRIORITY, argument),
        good,
        member: |a| &mut a.objects,
    };
    cases.table.bits("flags", 0, |a| &mut a.flags);
    cases.table.bits("pad", 0, |a| &mut a.pad);
    let (live, member) = (good.handle, cases.member);
    array_cases::<_, drm_skua_bo_priority>(&mut cases.table, "objects", 1024, member);
    cases.table.case("no objects", Errno::EINVAL, |a| {
        *member(a) = drm_skua_array::default();
    });
    for handle in no_handles(live) {
        cases.case(&format!("handle {handle:#x}"), Errno::ENOENT, |element| {
            element.handle = handle;
        });
    }
    cases.case("no priority", Errno::EINVAL, |element| element.priority = 0);
    let twice = [good, good];
    cases
        .table
        .case("twice", Errno::EINVAL, |a| *member(a) = array(&twice));
    cases.table.finish();
    for priority in [1, DRM_SKUA_PRIORITY_MINIMUM - 1, 0x1234_5678, u32::MAX] {
        assert_eq!(
            client.set_priority(&[live], priority),
            Ok(()),
            "{priority:#x}"
        );
    }
}

/// An object to be offered, and that it is not.
fn offered(client: &Client) -> ([drm_skua_bo_handle; 1], impl Fn() + use<'_>) {
    let handle = client.bo(Place::Vram, PAGE);
    let cpu = client.map(handle);
    cpu.write(0, 7);
    let element = drm_skua_bo_handle { handle, pad: 0 };
    // An access would be a bus error.
    ([element], move || assert_eq!(cpu.read(0), 7))
}

fn bo_offer() {
    let client = Client::new();
    let (handles, expect_usable) = offered(&client);
    let good = drm_skua_bo_offer {
        priority: DRM_SKUA_OFFER_LOW,
        handles: array(&handles),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_BO_OFFER, good),
        good: handles[0],
        member: |a| &mut a.handles,
    };
    cases.table.bits("flags", 0, |a| &mut a.flags);
    for priority in [0, DRM_SKUA_OFFER_AUTO + 1, 0x100, u32::MAX] {
        let name = format!("priority {priority:#x}");
        cases
            .table
            .case(&name, Errno::EINVAL, |a| a.priority = priority);
    }
    handle_cases(&mut cases);
    // None of them was offered.
    expect_usable();
    cases.table.finish();
}

fn bo_reclaim() {
    let client = Client::new();
    let (handles, expect_usable) = offered(&client);
    let live = handles[0].handle;
    assert_eq!(client.offer(&[live], DRM_SKUA_OFFER_HIGH), Ok(()));
    let good = drm_skua_bo_reclaim {
        handles: array(&handles),
        // It is not for the driver.
        discarded: [!0; 16],
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_BO_RECLAIM, good),
        good: handles[0],
        member: |a| &mut a.handles,
    };
    cases.table.bits("flags", 0, |a| &mut a.flags);
    cases.table.bits("pad", 0, |a| &mut a.pad);
    handle_cases(&mut cases);
    // None of them took it back.
    assert_eq!(client.lock(live), Err(Errno::EBUSY));
    assert_eq!(cases.table.finish().discarded, [0; 16]);
    expect_usable();
}

fn vm_bind_operations() {
    let (client, vm, handle) = binder();
    let device = client.device;
    let good_op = map(handle, 0, VA, PAGE);
    let ops = [good_op];
    let good = drm_skua_vm_bind {
        vm,
        ops: array(&ops),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_VM_BIND, good),
        good: good_op,
        member: |a| &mut a.ops,
    };
    for kind in [DRM_SKUA_BIND_COPY + 1, 0x100, u32::MAX] {
        cases.case(&format!("type {kind:#x}"), Errno::EINVAL, |op| {
            op.type_ = kind
        });
    }
    cases.bits("flags", DRM_SKUA_BIND_READONLY, |op| &mut op.flags);
    for handle in no_handles(handle) {
        cases.case(&format!("handle {handle:#x}"), Errno::ENOENT, |op| {
            op.handle = handle
        });
    }
    cases.bits("pad", 0, |op| &mut op.pad);
    for offset in [
        1,
        8,
        PAGE - 1,
        2 * PAGE,
        3 * PAGE,
        1 << 40,
        1 << 63,
        u64::MAX - PAGE + 1,
    ] {
        cases.case(&format!("offset {offset:#x}"), Errno::EINVAL, |op| {
            op.offset = offset
        });
    }
    for va in [
        0,
        1,
        device.va_start - PAGE,
        VA + 1,
        VA + 8,
        device.va_end,
        device.va_end - 8,
        1 << 48,
        1 << 63,
        u64::MAX - PAGE + 1,
    ] {
        cases.case(&format!("va {va:#x}"), Errno::EINVAL, |op| op.va = va);
    }
    for size in [
        0,
        1,
        PAGE - 1,
        PAGE + 1,
        3 * PAGE,
        1 << 48,
        1 << 63,
        u64::MAX - PAGE + 1,
    ] {
        cases.case(&format!("size {size:#x}"), Errno::EINVAL, |op| {
            op.size = size
        });
    }
    cases.case("over the end of the buffer object", Errno::EINVAL, |op| {
        (op.offset, op.size) = (PAGE, 2 * PAGE);
    });
    cases.case("over the end of the address space", Errno::EINVAL, |op| {
        (op.va, op.size) = (device.va_end - PAGE, 2 * PAGE);
    });
    cases.case("around the end of all addresses", Errno::EINVAL, |op| {
        (op.va, op.size) = (u64::MAX - PAGE + 1, 2 * PAGE);
    });
    let hole = unmap(VA, PAGE);
    cases.case("unmap with a flag", Errno::EINVAL, |op| {
        *op = drm_skua_bind_op {
            flags: DRM_SKUA_BIND_READONLY,
            ..hole
        };
    });
    cases.case("unmap with a handle", Errno::EINVAL, |op| {
        *op = drm_skua_bind_op { handle, ..hole }
    });
    cases.case("unmap with an offset", Errno::EINVAL, |op| {
        *op = drm_skua_bind_op {
            offset: PAGE,
            ..hole
        };
    });
    cases.case("unmap with pad", Errno::EINVAL, |op| {
        *op = drm_skua_bind_op { pad: 1, ..hole }
    });
    for (va, size) in [
        (VA + 1, PAGE),
        (VA, 0),
        (VA, 1),
        (0, PAGE),
        (device.va_end, PAGE),
        (device.va_end - PAGE, 2 * PAGE),
        (VA, u64::MAX - PAGE + 1),
    ] {
        cases.case(
            &format!("unmap of {size:#x} at {va:#x}"),
            Errno::EINVAL,
            |op| {
                *op = unmap(va, size);
            },
        );
    }
    let same = map_copy(VA, VA + PAGE, PAGE);
    for (name, op) in [
        ("with a handle", drm_skua_bind_op { handle, ..same }),
        ("with pad", drm_skua_bind_op { pad: 1, ..same }),
        (
            "with a flag",
            drm_skua_bind_op {
                flags: DRM_SKUA_BIND_READONLY,
                ..same
            },
        ),
    ] {
        cases.case(&format!("copy {name}"), Errno::EINVAL, |good| *good = op);
    }
    for bad in [
        0,
        1,
        VA + 1,
        device.va_start - PAGE,
        device.va_end,
        u64::MAX - PAGE + 1,
    ] {
        for (from, to) in [(bad, VA), (VA, bad)] {
            let name = format!("copy of {from:#x} to {to:#x}");
            cases.case(&name, Errno::EINVAL, |op| *op = map_copy(from, to, PAGE));
        }
    }
    for size in [0, 1, PAGE + 1, 1 << 48, u64::MAX - PAGE + 1] {
        let name = format!("copy of {size:#x} bytes");
        cases.case(&name, Errno::EINVAL, |op| {
            *op = map_copy(VA, VA + PAGE, size)
        });
    }
    let fence = client.fence(0);
    let value = map_fence(fence, VA);
    for handle in no_handles(fence) {
        cases.case(&format!("fence {handle:#x}"), Errno::ENOENT, |op| {
            *op = map_fence(handle, VA);
        });
    }
    let wrong = [
        (
            "with a flag",
            drm_skua_bind_op {
                flags: DRM_SKUA_BIND_READONLY,
                ..value
            },
        ),
        ("with pad", drm_skua_bind_op { pad: 1, ..value }),
        (
            "from behind its page",
            drm_skua_bind_op {
                offset: PAGE,
                ..value
            },
        ),
        (
            "from within its page",
            drm_skua_bind_op { offset: 8, ..value },
        ),
        ("with no size", drm_skua_bind_op { size: 0, ..value }),
        (
            "with two pages",
            drm_skua_bind_op {
                size: 2 * PAGE,
                ..value
            },
        ),
        ("in part", drm_skua_bind_op { size: 8, ..value }),
        (
            "at no page",
            drm_skua_bind_op {
                va: VA + 8,
                ..value
            },
        ),
        ("at no address", drm_skua_bind_op { va: 0, ..value }),
        (
            "at the end",
            drm_skua_bind_op {
                va: device.va_end,
                ..value
            },
        ),
    ];
    for (what, wrong) in wrong {
        let name = format!("a fence {what}");
        cases.case(&name, Errno::EINVAL, |op| *op = wrong);
    }
    cases.table.finish();
}

/// The rules of `struct drm_skua_sync`.
/// Syncs that are values of monitored fences.
fn monitored_cases<T: Copy + PartialEq + std::fmt::Debug>(
    client: &Client,
    cases: &mut Elements<'_, T, drm_skua_sync>,
    waits_for_values: bool,
) {
    let fence = client.fence(5);
    for handle in no_handles(fence) {
        let name = format!("a value of fence {handle:#x}");
        let sync = signal_value(handle, 6);
        cases.case(&name, Errno::ENOENT, |a| *a = sync);
        if waits_for_values {
            let sync = wait_value(handle, 5);
            cases.case(&name, Errno::ENOENT, |a| *a = sync);
        }
    }
    if !waits_for_values {
        let sync = wait_value(fence, 5);
        cases.case("a wait for a value", Errno::EINVAL, |a| *a = sync);
    }
    let (monitored, timeline) = (DRM_SKUA_SYNC_MONITORED, DRM_SKUA_SYNC_TIMELINE);
    for flags in [
        monitored,
        monitored | DRM_SKUA_SYNC_WAIT | DRM_SKUA_SYNC_SIGNAL,
        monitored | timeline | DRM_SKUA_SYNC_WAIT,
        monitored | timeline | DRM_SKUA_SYNC_SIGNAL,
    ] {
        cases.case(&format!("flags {flags:#x}"), Errno::EINVAL, |a| {
            *a = drm_skua_sync {
                flags,
                ..signal_value(fence, 6)
            };
        });
    }
    for value in [0, 5, u64::MAX] {
        cases.case(&format!("signal of value {value:#x}"), Errno::EINVAL, |a| {
            *a = signal_value(fence, value);
        });
    }
}

fn sync_cases<T: Copy + PartialEq + std::fmt::Debug>(
    client: &Client,
    table: Table<'_, T>,
    member: fn(&mut T) -> &mut drm_skua_array,
    waits_for_values: bool,
) {
    let (empty, good) = (client.syncobj(), client.syncobj());
    let mut cases = Elements {
        table,
        good: signal(good),
        member,
    };
    let (wait_flag, signal_flag) = (DRM_SKUA_SYNC_WAIT, DRM_SKUA_SYNC_SIGNAL);
    let timeline = DRM_SKUA_SYNC_TIMELINE;
    for flags in [
        0,
        wait_flag | signal_flag,
        timeline,
        wait_flag | signal_flag | timeline,
    ] {
        cases.case(&format!("flags {flags:#x}"), Errno::EINVAL, |sync| {
            sync.flags = flags
        });
        cases.case(
            &format!("flags {flags:#x} with a point"),
            Errno::EINVAL,
            |sync| {
                (sync.flags, sync.point) = (flags, 1);
            },
        );
    }
    let known = wait_flag | signal_flag | timeline | DRM_SKUA_SYNC_MONITORED;
    cases.bits("flags", known, |sync| &mut sync.flags);
    monitored_cases(client, &mut cases, waits_for_values);
    for handle in no_handles(good) {
        cases.case(&format!("signal of {handle:#x}"), Errno::ENOENT, |sync| {
            sync.handle = handle;
        });
        cases.case(&format!("wait for {handle:#x}"), Errno::ENOENT, |sync| {
            *sync = wait(handle);
        });
        cases.case(
            &format!("signal of a point of {handle:#x}"),
            Errno::ENOENT,
            |sync| {
                *sync = signal_point(handle, 1);
            },
        );
    }
    for point in [1, u64::MAX] {
        cases.case(
            &format!("point {point} of a binary syncobj"),
            Errno::EINVAL,
            |sync| {
                sync.point = point;
            },
        );
    }
    cases.case("signal of point 0", Errno::EINVAL, |sync| {
        *sync = signal_point(good, 0)
    });
    cases.case("wait for what has no fence", Errno::EINVAL, |sync| {
        *sync = wait(empty)
    });
    cases.case(
        "wait for a point that has no fence",
        Errno::EINVAL,
        |sync| {
            *sync = drm_skua_sync {
                flags: wait_flag | timeline,
                handle: empty,
                point: 1,
            };
        },
    );
    cases.case("wait for point 0", Errno::EINVAL, |sync| {
        *sync = drm_skua_sync {
            flags: wait_flag | timeline,
            handle: good,
            point: 0,
        };
    });
    cases.table.finish();
}

fn vm_bind_syncs() {
    let (client, vm, handle) = binder();
    let ops = [map(handle, 0, VA, PAGE)];
    let good = drm_skua_vm_bind {
        vm,
        ops: array(&ops),
        ..Default::default()
    };
    let table = Table::new(&client, DRM_IOCTL_SKUA_VM_BIND, good);
    sync_cases(&client, table, |a| &mut a.syncs, true);
}

fn vm_bind_is_all_or_nothing() {
    let rig = Rig::new();
    let bound = rig.buffer(Place::System, PAGE);
    bound.cpu.write(0, 0x1111);
    let other = rig.bo(Place::System, PAGE);
    let before = Witness::of(&rig);
    // The first would replace the mapping, the second is wrong.
    for (what, wrong, errno) in [
        (
            "a bad address",
            map(other, 0, bound.va + 1, PAGE),
            Errno::EINVAL,
        ),
        (
            "a bad handle",
            map(u32::MAX, 0, bound.va, PAGE),
            Errno::ENOENT,
        ),
    ] {
        let ops = [map(other, 0, bound.va, PAGE), wrong];
        assert_eq!(rig.bind(rig.vm, &ops, &[]), Err(errno), "{what}");
    }
    let ops = [map(other, 0, bound.va, PAGE)];
    let syncs = [signal(u32::MAX)];
    assert_eq!(rig.bind(rig.vm, &ops, &syncs), Err(Errno::ENOENT));
    before.expect_unchanged(&rig);
    let write = skua_selftests::rig::write(bound.va, 0x2222);
    assert_eq!(rig.run(Engine::Copy, &[write]), Ok(()));
    assert_eq!(bound.cpu.read(0), 0x2222, "the mapping is not the old one");
}

fn context_create() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let good = drm_skua_context_create {
        vm,
        engine: 0,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_CONTEXT_CREATE, good);
    for vm in no_handles(vm) {
        table.case(&format!("vm {vm:#x}"), Errno::ENOENT, |a| a.vm = vm);
    }
    for engine in [client.device.engine_count, 8, 0x100, u32::MAX] {
        table.case(&format!("engine {engine:#x}"), Errno::EINVAL, |a| {
            a.engine = engine
        });
    }
    table.bits("flags", 0, |a| &mut a.flags);
    assert_ne!(table.finish().context, 0);
}

fn context_destroy() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let context = client.context_create(vm, 0).expect("CONTEXT_CREATE");
    let good = drm_skua_context_destroy { context, pad: 0 };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_CONTEXT_DESTROY, good);
    for context in no_handles(context) {
        table.case(&format!("context {context:#x}"), Errno::ENOENT, |a| {
            a.context = context
        });
    }
    table.bits("pad", 0, |a| &mut a.pad);
    table.finish();
    assert_eq!(
        client.context_destroy(context),
        Err(Errno::ENOENT),
        "destroyed twice"
    );
}

fn row_2_20_context_set_priority() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let context = client.context_create(vm, 0).expect("CONTEXT_CREATE");
    let good = drm_skua_context_set_priority {
        context,
        priority: -3,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY, good);
    for flags in (1..32).map(|bit| 1 << bit) {
        table.case(&format!("flags {flags:#x}"), Errno::EINVAL, |a| {
            a.flags = flags
        });
    }
    table.case("pad", Errno::EINVAL, |a| a.pad = 1);
    for context in no_handles(context) {
        table.case(&format!("context {context:#x}"), Errno::ENOENT, |a| {
            a.context = context
        });
    }
    for priority in [i32::MIN, -8, 8, 15, 0xff, i32::MAX] {
        table.case(&format!("priority {priority}"), Errno::EINVAL, |a| {
            a.priority = priority
        });
        table.case(
            &format!("priority {priority} in the process"),
            Errno::EINVAL,
            |a| (a.priority, a.flags) = (priority, DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS),
        );
    }
    table.finish();
    // Above normal it is for who may.
    nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).expect("setuid");
    for priority in -7..=7 {
        let expected = if priority > 0 {
            Err(Errno::EACCES)
        } else {
            Ok(())
        };
        assert_eq!(client.prioritise(context, priority), expected, "{priority}");
        // Among its own anybody says what he likes.
        assert_eq!(
            client.prioritise_within(context, priority),
            Ok(()),
            "{priority}"
        );
    }
}

fn row_2_20_set_priority_class() {
    let client = Client::new();
    let good = drm_skua_set_priority_class {
        priority_class: DRM_SKUA_PRIORITY_CLASS_BELOW_NORMAL,
        flags: 0,
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_SET_PRIORITY_CLASS, good);
    for class in [6, 7, 0x100, 0x8000_0002, u32::MAX] {
        table.case(&format!("class {class:#x}"), Errno::EINVAL, |a| {
            a.priority_class = class
        });
    }
    table.bits("flags", 0, |a| &mut a.flags);
    table.finish();
    // Whoever has a context or none.
    let vm = client.vm_create().expect("VM_CREATE");
    let context = client.context_create(vm, 0).expect("CONTEXT_CREATE");
    for class in 0..6 {
        assert_eq!(client.set_class(class), Ok(()), "{class}");
    }
    nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).expect("setuid");
    // What it has it may give up, and does not get back.
    for class in 0..6 {
        let expected = if class > DRM_SKUA_PRIORITY_CLASS_NORMAL {
            Err(Errno::EACCES)
        } else {
            Ok(())
        };
        assert_eq!(client.set_class(class), expected, "{class}");
        let above = client.prioritise(context, 1);
        assert_eq!(above, Err(Errno::EACCES), "with class {class}");
    }
}

fn context_state() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let context = client.context_create(vm, 0).expect("CONTEXT_CREATE");
    let good = drm_skua_context_state {
        context,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_CONTEXT_STATE, good);
    for context in no_handles(context) {
        table.case(&format!("context {context:#x}"), Errno::ENOENT, |a| {
            a.context = context
        });
    }
    table.bits("pad", 0, |a| &mut a.pad);
    assert_eq!(table.finish().status, DRM_SKUA_CONTEXT_ACTIVE);
}

fn row_2_08_context_alloc() {
    let rig = Rig::new().having_worked();
    let (vm, context) = (rig.vm, rig.compute);
    let other = rig.vm_create().expect("VM_CREATE");
    let elsewhere = rig.context_create(other, 0).expect("CONTEXT_CREATE");
    let vram = rig.set(&[Place::Vram]);
    let all = rig.set(&[Place::Vram, Place::Aperture, Place::System]);
    let shared = drm_skua_context_alloc {
        vm,
        flags: DRM_SKUA_CONTEXT_ALLOC_SHARED_ACROSS_CONTEXTS,
        size: PAGE,
        // What is made stays where it is.
        placements: rig.set(&[Place::System]),
        ..Default::default()
    };
    let own = drm_skua_context_alloc {
        context,
        flags: 0,
        ..shared
    };
    let made: Vec<u32> = [("shared", shared), ("of one", own)]
        .into_iter()
        .map(|(name, good)| {
            let mut table = Table::new(&rig, DRM_IOCTL_SKUA_CONTEXT_ALLOC, good);
            for vm in no_handles(other) {
                table.case(&format!("{name}: vm {vm:#x}"), Errno::ENOENT, |a| a.vm = vm);
            }
            for context in no_handles(elsewhere).into_iter().filter(|it| *it != 0) {
                table.case(&format!("{name}: context {context}"), Errno::ENOENT, |a| {
                    a.context = context;
                });
            }
            for (vm, context, flags, what) in [
                (vm, 0, 0, "of nobody"),
                (vm, elsewhere, 0, "of another address space's"),
                (vm, context, 1, "of one and of all"),
                (vm, elsewhere, 1, "of all and of another's"),
                (other, context, 0, "in another address space"),
            ] {
                table.case(&format!("{name}: {what}"), Errno::EINVAL, |a| {
                    (a.vm, a.context, a.flags) = (vm, context, flags);
                });
            }
            table.finish()
        })
        .map(|made| {
            assert!(made.va >= rig.device.va_end, "{:#x}", made.va);
            made.handle
        })
        .collect();
    assert_eq!(made, [1, 2]);
    let mut table = Table::new(&rig, DRM_IOCTL_SKUA_CONTEXT_ALLOC, shared);
    table.bits("flags", 1, |a| &mut a.flags);
    table.bits("pad", 0, |a| &mut a.pad);
    for size in [
        0,
        1,
        PAGE - 1,
        PAGE + 8,
        (1 << 31) + PAGE,
        1 << 48,
        1 << 63,
        u64::MAX,
        u64::MAX - PAGE + 1,
    ] {
        table.case(&format!("size {size:#x}"), Errno::EINVAL, |a| a.size = size);
    }
    for alignment in [1, 8, PAGE / 2, 3 * PAGE, 4 << 20, 1 << 63, u64::MAX] {
        table.case(&format!("alignment {alignment:#x}"), Errno::EINVAL, |a| {
            a.alignment = alignment;
        });
    }
    table.case("no placements", Errno::EINVAL, |a| a.placements = 0);
    table.bits("placements", all, |a| &mut a.placements);
    table.bits("preferred", all, |a| &mut a.preferred);
    table.case("preferred twice", Errno::EINVAL, |a| {
        (a.placements, a.preferred) = (all, vram << 8 | vram);
    });
    table.case("preferred, not allowed", Errno::EINVAL, |a| {
        (a.placements, a.preferred) = (all & !vram, vram);
    });
    table.bits("eviction_set", all & !vram, |a| &mut a.eviction_set);
    table.case("more than VRAM", Errno::ENOSPC, |a| {
        let bytes = rig.region(Place::Vram).size;
        (a.size, a.placements) = ((bytes + PAGE).min(1 << 31), vram);
    });
    table.finish();
    // What it is for takes no work.
    let device = rig.device_create(0).expect("DEVICE_CREATE");
    let failed = rig.vm_create_for(device).expect("VM_CREATE");
    let of_failed = rig.context_create(failed, 0).expect("CONTEXT_CREATE");
    assert_eq!(rig.device_mark_error(device), Ok(()));
    for context in [0, of_failed] {
        let refused = rig.context_alloc(failed, context, PAGE, all);
        assert_eq!(refused, Err(Errno::ECANCELED), "context {context}");
    }
}

fn row_2_09_context_free() {
    let rig = Rig::new();
    let made = rig.context_alloc(rig.vm, 0, PAGE, rig.set(&[Place::System]));
    let (handle, _) = made.expect("CONTEXT_ALLOC");
    let good = drm_skua_context_free { handle, pad: 0 };
    let mut table = Table::new(&rig, DRM_IOCTL_SKUA_CONTEXT_FREE, good);
    for handle in no_handles(handle) {
        table.case(&format!("handle {handle:#x}"), Errno::ENOENT, |a| {
            a.handle = handle
        });
    }
    table.bits("pad", 0, |a| &mut a.pad);
    table.finish();
    assert_eq!(rig.context_free(handle), Err(Errno::ENOENT), "twice");
    let theirs = Rig::new();
    let made = theirs.context_alloc(theirs.vm, 0, PAGE, rig.set(&[Place::System]));
    let (handle, _) = made.expect("CONTEXT_ALLOC");
    assert_eq!(rig.context_free(handle), Err(Errno::ENOENT), "another's");
    assert_eq!(theirs.context_free(handle), Ok(()));
}

fn submit() {
    let rig = Rig::new();
    let buffers = [rig.write(&[skua_spec::command::Command::Nop { words: 2 }])];
    let syncs = [signal(rig.syncobj())];
    let good = drm_skua_submit {
        context: rig.copy,
        flags: 0,
        buffers: array(&buffers),
        syncs: array(&syncs),
    };
    let mut table = Table::new(&rig, DRM_IOCTL_SKUA_SUBMIT, good);
    for context in no_handles(rig.copy) {
        table.case(&format!("context {context:#x}"), Errno::ENOENT, |a| {
            a.context = context
        });
    }
    table.bits("flags", 0, |a| &mut a.flags);
    array_cases::<_, drm_skua_buffer>(&mut table, "buffers", rig.device.max_buffers, |a| {
        &mut a.buffers
    });
    array_cases::<_, drm_skua_sync>(&mut table, "syncs", rig.device.max_syncs, |a| &mut a.syncs);
    table.finish();
    assert_eq!(rig.wait(syncs[0].handle), Ok(()));
    let state = rig.state(rig.copy).expect("CONTEXT_STATE");
    assert_eq!(state.completed, 1, "a refused submission ran");
}

fn submit_buffers() {
    let rig = Rig::new();
    let device = rig.device;
    let good_buffer = rig.write(&[skua_spec::command::Command::Nop { words: 2 }]);
    let buffers = [good_buffer];
    let good = drm_skua_submit {
        context: rig.copy,
        buffers: array(&buffers),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&rig, DRM_IOCTL_SKUA_SUBMIT, good),
        good: good_buffer,
        member: |a| &mut a.buffers,
    };
    for va in [
        0,
        4,
        good_buffer.va + 1,
        good_buffer.va + 4,
        device.va_start - 8,
        device.va_end,
        1 << 48,
        u64::MAX - 7,
    ] {
        cases.case(&format!("va {va:#x}"), Errno::EINVAL, |buffer| {
            buffer.va = va
        });
    }
    for size in [0, 1, 4, 12, u32::MAX] {
        cases.case(&format!("size {size:#x}"), Errno::EINVAL, |buffer| {
            buffer.size = size
        });
    }
    cases.case(
        "over the end of the address space",
        Errno::EINVAL,
        |buffer| {
            (buffer.va, buffer.size) = (device.va_end - 8, 16);
        },
    );
    cases.bits("flags", 0, |buffer| &mut buffer.flags);
    cases.table.finish();
}

fn submit_syncs() {
    let rig = Rig::new();
    let good = drm_skua_submit {
        context: rig.copy,
        ..Default::default()
    };
    let table = Table::new(&rig, DRM_IOCTL_SKUA_SUBMIT, good);
    sync_cases(&rig, table, |a| &mut a.syncs, true);
}

fn fence_create() {
    let client = Client::new();
    let good = drm_skua_fence_create {
        value: 3,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_FENCE_CREATE, good);
    device_cases(&mut table, |a| &mut a.device);
    let known = DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR;
    table.bits("flags", known, |a| &mut a.flags);
    table.case("lost", Errno::EINVAL, |a| a.value = u64::MAX);
    table.bits("pad", 0, |a| &mut a.pad);
    // What was refused has used up no handle.
    assert_eq!(table.finish().fence, 1);
}

/// A number that is no fence's, for a member.
fn fence_cases<T: Copy + PartialEq + std::fmt::Debug>(
    table: &mut Table<'_, T>,
    live: u32,
    member: fn(&mut T) -> &mut u32,
) {
    for fence in no_handles(live) {
        table.case(&format!("fence {fence:#x}"), Errno::ENOENT, |a| {
            *member(a) = fence;
        });
    }
}

fn fence_destroy() {
    let client = Client::new();
    let fence = client.fence(0);
    let good = drm_skua_fence_destroy { fence, pad: 0 };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_FENCE_DESTROY, good);
    fence_cases(&mut table, fence, |a| &mut a.fence);
    table.bits("pad", 0, |a| &mut a.pad);
    table.finish();
    assert_eq!(client.fence_destroy(fence), Err(Errno::ENOENT), "twice");
}

fn fence_export() {
    let client = Client::new();
    let fence = client.fence(0);
    let good = drm_skua_fence_export {
        fence,
        flags: DRM_SKUA_FENCE_EXPORT_CLOEXEC,
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_FENCE_EXPORT, good);
    fence_cases(&mut table, fence, |a| &mut a.fence);
    let known = DRM_SKUA_FENCE_EXPORT_CLOEXEC;
    table.bits("flags", known, |a| &mut a.flags);
    table.bits("pad", 0, |a| &mut a.pad);
    let fd = table.finish().fd;
    let flags = |fd: i32| {
        let entry = format!("/proc/self/fdinfo/{fd}");
        std::fs::read_to_string(entry)
            .expect("fdinfo")
            .contains("flags:\t02000000")
    };
    assert!(flags(fd), "not closed by execve()");
    let mut open = drm_skua_fence_export { flags: 0, ..good };
    assert_eq!(client.call(DRM_IOCTL_SKUA_FENCE_EXPORT, &mut open), Ok(()));
    assert!(!flags(open.fd), "closed by execve()");
}

fn fence_import() {
    let client = Client::new();
    let fence = client.fence(0);
    let descriptor = client.fence_export(fence).expect("FENCE_EXPORT");
    let good = drm_skua_fence_import {
        fd: std::os::fd::AsRawFd::as_raw_fd(&descriptor),
        ..Default::default()
    };
    let mut table = Table::new(&client, DRM_IOCTL_SKUA_FENCE_IMPORT, good);
    device_cases(&mut table, |a| &mut a.device);
    table.bits("pad", 0, |a| &mut a.pad);
    for fd in [-1, 1 << 20, i32::MIN, i32::MAX] {
        table.case(&format!("descriptor {fd}"), Errno::EBADF, |a| a.fd = fd);
    }
    table.case("another file", Errno::EINVAL, |a| a.fd = 1);
    assert_eq!(table.finish().fence, fence + 1);
}

/// Values that an array must not have, of a client with one fence.
fn value_cases<T: Copy + PartialEq + std::fmt::Debug>(
    cases: &mut Elements<'_, T, drm_skua_fence_value>,
) {
    let live = cases.good.fence;
    for fence in no_handles(live) {
        let name = format!("fence {fence:#x}");
        cases.case(&name, Errno::ENOENT, |a| a.fence = fence);
    }
    cases.bits("pad of a value", 0, |a| &mut a.pad);
    let member = cases.member;
    cases.table.case("no values", Errno::EINVAL, |a| {
        *member(a) = drm_skua_array::default();
    });
    array_cases::<_, drm_skua_fence_value>(&mut cases.table, "values", 256, member);
}

fn fence_signal() {
    let client = Client::new();
    let fence = client.fence(5);
    let good_value = drm_skua_fence_value {
        fence,
        pad: 0,
        value: 6,
    };
    let values = [good_value];
    let good = drm_skua_fence_signal {
        values: array(&values),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_FENCE_SIGNAL, good),
        good: good_value,
        member: |a| &mut a.values,
    };
    cases.table.bits("flags", 0, |a| &mut a.flags);
    cases.table.bits("pad", 0, |a| &mut a.pad);
    for value in [0, 4, 5, u64::MAX] {
        cases.case(&format!("value {value:#x}"), Errno::EINVAL, |a| {
            a.value = value
        });
    }
    value_cases(&mut cases);
    assert!(!client.fence_has(fence, 6));
    cases.table.finish();
    assert!(client.fence_has(fence, 6));
}

fn fence_wait() {
    let client = Client::new();
    let good_value = drm_skua_fence_value {
        fence: client.fence(5),
        pad: 0,
        value: 5,
    };
    let values = [good_value];
    let good = drm_skua_fence_wait {
        values: array(&values),
        ..Default::default()
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_FENCE_WAIT, good),
        good: good_value,
        member: |a| &mut a.values,
    };
    let known = DRM_SKUA_FENCE_WAIT_ANY;
    cases.table.bits("flags", known, |a| &mut a.flags);
    cases.table.bits("pad", 0, |a| &mut a.pad);
    cases.table.bits("index", 0, |a| &mut a.index);
    cases.table.bits("reserved", 0, |a| &mut a.reserved);
    value_cases(&mut cases);
    cases.case("a value that is not there", Errno::ETIME, |a| a.value = 6);
    assert_eq!(cases.table.finish().index, 0);
}

fn fence_eventfd() {
    let client = Client::new();
    let eventfd = nix::sys::eventfd::EventFd::new().expect("eventfd");
    let good_value = drm_skua_fence_value {
        fence: client.fence(5),
        pad: 0,
        value: 5,
    };
    let values = [good_value];
    let good = drm_skua_fence_eventfd {
        flags: 0,
        eventfd: std::os::fd::AsRawFd::as_raw_fd(&eventfd),
        values: array(&values),
    };
    let mut cases = Elements {
        table: Table::new(&client, DRM_IOCTL_SKUA_FENCE_EVENTFD, good),
        good: good_value,
        member: |a| &mut a.values,
    };
    let known = DRM_SKUA_FENCE_WAIT_ANY;
    cases.table.bits("flags", known, |a| &mut a.flags);
    for fd in [-1, 1 << 20, i32::MIN, i32::MAX] {
        let name = format!("descriptor {fd}");
        cases.table.case(&name, Errno::EBADF, |a| a.eventfd = fd);
    }
    cases
        .table
        .case("another file", Errno::EINVAL, |a| a.eventfd = 1);
    value_cases(&mut cases);
    cases.table.finish();
    assert_eq!(eventfd.read(), Ok(1));
}

fn arrays_in_bad_memory() {
    use nix::sys::mman::{MapFlags, ProtFlags};
    use skua_selftests::mapping::Mapping;
    let rig = Rig::new();
    let handle = rig.bo(Place::System, PAGE);
    let op = map(handle, 0, VA, PAGE);
    // Two elements, the second of which begins in a page that is not there.
    let file = std::fs::File::open("/dev/zero").expect("/dev/zero");
    let pages = Mapping::with(
        &file,
        0,
        8192,
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    )
    .expect("mmap of /dev/zero");
    let (page, _) = pages.punch(4096, 4096).expect("munmap");
    let size = size_of::<drm_skua_bind_op>();
    let words = [
        u64::from(op.type_) | (u64::from(op.flags) << 32),
        u64::from(op.handle),
        op.offset,
        op.va,
        op.size,
    ];
    for (n, word) in words.iter().enumerate() {
        page.write(4096 - size + 8 * n, *word);
    }
    let before = Witness::of(&rig);
    let mut argument = drm_skua_vm_bind {
        vm: rig.vm,
        ops: drm_skua_array {
            stride: u32::try_from(size).expect("a size"),
            count: 2,
            pointer: (page.address() + 4096 - size) as u64,
        },
        ..Default::default()
    };
    assert_eq!(
        rig.call(DRM_IOCTL_SKUA_VM_BIND, &mut argument),
        Err(Errno::EFAULT)
    );
    before.expect_unchanged(&rig);
    // An array that wraps around the end of all addresses.
    argument.ops.pointer = u64::MAX - 39;
    assert_eq!(
        rig.call(DRM_IOCTL_SKUA_VM_BIND, &mut argument),
        Err(Errno::EFAULT)
    );
    before.expect_unchanged(&rig);
    argument.ops = drm_skua_array {
        count: 1,
        pointer: (page.address() + 4096 - size) as u64,
        ..argument.ops
    };
    assert_eq!(rig.call(DRM_IOCTL_SKUA_VM_BIND, &mut argument), Ok(()));
}

/// The oldest ioctls, and those of fences, with the sizes of their arguments.
const ALL: [(&str, u32); 18] = [
    ("QUERY", DRM_IOCTL_SKUA_QUERY),
    ("BO_CREATE", DRM_IOCTL_SKUA_BO_CREATE),
    ("BO_MMAP_OFFSET", DRM_IOCTL_SKUA_BO_MMAP_OFFSET),
    ("BO_INFO", DRM_IOCTL_SKUA_BO_INFO),
    ("VM_CREATE", DRM_IOCTL_SKUA_VM_CREATE),
    ("VM_DESTROY", DRM_IOCTL_SKUA_VM_DESTROY),
    ("VM_BIND", DRM_IOCTL_SKUA_VM_BIND),
    ("CONTEXT_CREATE", DRM_IOCTL_SKUA_CONTEXT_CREATE),
    ("CONTEXT_DESTROY", DRM_IOCTL_SKUA_CONTEXT_DESTROY),
    ("CONTEXT_STATE", DRM_IOCTL_SKUA_CONTEXT_STATE),
    ("SUBMIT", DRM_IOCTL_SKUA_SUBMIT),
    ("FENCE_CREATE", DRM_IOCTL_SKUA_FENCE_CREATE),
    ("FENCE_DESTROY", DRM_IOCTL_SKUA_FENCE_DESTROY),
    ("FENCE_EXPORT", DRM_IOCTL_SKUA_FENCE_EXPORT),
    ("FENCE_IMPORT", DRM_IOCTL_SKUA_FENCE_IMPORT),
    ("FENCE_SIGNAL", DRM_IOCTL_SKUA_FENCE_SIGNAL),
    ("FENCE_WAIT", DRM_IOCTL_SKUA_FENCE_WAIT),
    ("FENCE_EVENTFD", DRM_IOCTL_SKUA_FENCE_EVENTFD),
];

fn arguments_in_bad_memory() {
    let client = Client::new();
    let before = Witness::of(&client);
    let mut cases = Cases::new();
    for (name, number) in ALL {
        for (what, address) in NOWHERE.into_iter().chain([("0", 0)]) {
            let result = ioctl_at(&client, number, address);
            cases.expect(&format!("{name} {what}"), result, Err(Errno::EFAULT));
        }
    }
    cases.expect("what can be seen", before.changes(&client), None);
    cases.finish();
}

fn errors_come_in_the_order_of_the_members() {
    let rig = Rig::new();
    let mut cases = Cases::new();
    let mut destroy = drm_skua_vm_destroy {
        vm: u32::MAX,
        pad: 1,
    };
    let result = rig.call(DRM_IOCTL_SKUA_VM_DESTROY, &mut destroy);
    cases.expect("VM_DESTROY vm, pad", result, Err(Errno::ENOENT));
    let mut destroy = drm_skua_context_destroy {
        context: u32::MAX,
        pad: 1,
    };
    let result = rig.call(DRM_IOCTL_SKUA_CONTEXT_DESTROY, &mut destroy);
    cases.expect("CONTEXT_DESTROY context, pad", result, Err(Errno::ENOENT));
    let mut state = drm_skua_context_state {
        context: u32::MAX,
        pad: 1,
        ..Default::default()
    };
    let result = rig.call(DRM_IOCTL_SKUA_CONTEXT_STATE, &mut state);
    cases.expect("CONTEXT_STATE context, pad", result, Err(Errno::ENOENT));
    let mut info = drm_skua_bo_info {
        handle: u32::MAX,
        pad: 1,
        ..Default::default()
    };
    let result = rig.call(DRM_IOCTL_SKUA_BO_INFO, &mut info);
    cases.expect("BO_INFO handle, pad", result, Err(Errno::ENOENT));
    let mut create = drm_skua_context_create {
        vm: u32::MAX,
        engine: u32::MAX,
        flags: 1,
        context: 0,
    };
    let result = rig.call(DRM_IOCTL_SKUA_CONTEXT_CREATE, &mut create);
    cases.expect("CONTEXT_CREATE vm, engine", result, Err(Errno::ENOENT));
    let sync = drm_skua_sync {
        flags: DRM_SKUA_SYNC_SIGNAL,
        handle: u32::MAX,
        point: 1,
    };
    let result = rig.submit(rig.copy, &[], &[sync]);
    cases.expect("a sync's handle, point", result, Err(Errno::ENOENT));
    let op = drm_skua_bind_op {
        pad: 1,
        ..map(u32::MAX, 1, 1, 1)
    };
    let result = rig.bind(rig.vm, &[op], &[]);
    cases.expect("an operation's handle, pad", result, Err(Errno::ENOENT));
    let result = rig.bind(
        rig.vm,
        &[map(u32::MAX, 0, VA, PAGE)],
        &[drm_skua_sync::default()],
    );
    cases.expect("ops, syncs", result, Err(Errno::ENOENT));
    let buffer = drm_skua_buffer::default();
    let result = rig.submit(u32::MAX, &[buffer], &[]);
    cases.expect("SUBMIT context, buffers", result, Err(Errno::ENOENT));
    let result = rig.submit(rig.copy, &[buffer], &[signal(u32::MAX)]);
    cases.expect("SUBMIT buffers, syncs", result, Err(Errno::EINVAL));
    cases.finish();
}

fn handles_of_other_files() {
    // Enough objects that no handle of theirs is one of ours.
    let theirs = Rig::new();
    let mut last = (0, 0, 0, 0);
    for _ in 0..20 {
        last = (
            theirs.bo(Place::System, PAGE),
            theirs.vm_create().expect("VM_CREATE"),
            theirs.new_context(Engine::Copy),
            theirs.syncobj(),
        );
    }
    let (bo, vm, context, syncobj) = last;
    let ours = Rig::new();
    let own = ours.bo(Place::System, PAGE);
    let (before, before_theirs) = (Witness::of(&ours), Witness::of(&theirs));
    let mut cases = Cases::new();
    let mut case = |name: &str, result: Result<(), Errno>| {
        cases.expect(name, result, Err(Errno::ENOENT));
    };
    case("BO_MMAP_OFFSET", ours.mmap_offset(bo).map(drop));
    case("BO_INFO", ours.info(bo).map(drop));
    case("VM_DESTROY", ours.vm_destroy(vm));
    case("VM_BIND vm", ours.bind(vm, &[map(own, 0, VA, PAGE)], &[]));
    case(
        "VM_BIND handle",
        ours.bind(ours.vm, &[map(bo, 0, VA, PAGE)], &[]),
    );
    case(
        "VM_BIND sync",
        ours.bind(ours.vm, &[map(own, 0, VA, PAGE)], &[signal(syncobj)]),
    );
    case("CONTEXT_CREATE", ours.context_create(vm, 0).map(drop));
    case("CONTEXT_DESTROY", ours.context_destroy(context));
    case("CONTEXT_STATE", ours.state(context).map(drop));
    let fence = (0..20).map(|_| theirs.fence(0)).last().expect("a fence");
    case("FENCE_EXPORT", ours.fence_export(fence).map(drop));
    case("FENCE_SIGNAL", ours.fence_signal(fence, 1));
    case("FENCE_DESTROY", ours.fence_destroy(fence));
    case("SUBMIT", ours.submit(context, &[], &[]));
    case(
        "SUBMIT sync",
        ours.submit(ours.copy, &[], &[signal(syncobj)]),
    );
    case("PRIME_HANDLE_TO_FD", ours.export(bo).map(drop));
    // The DRM core's own.
    cases.expect("GEM_CLOSE", ours.close(bo), Err(Errno::EINVAL));
    cases.expect("what can be seen", before.changes(&ours), None);
    cases.expect("what they see", before_theirs.changes(&theirs), None);
    cases.finish();
}

fn stale_handles() {
    let rig = Rig::new();
    let bo = rig.bo(Place::System, PAGE);
    let vm = rig.vm_create().expect("VM_CREATE");
    let context = rig.new_context(Engine::Copy);
    let own = rig.bo(Place::System, PAGE);
    assert_eq!(rig.close(bo), Ok(()));
    assert_eq!(rig.vm_destroy(vm), Ok(()));
    assert_eq!(rig.context_destroy(context), Ok(()));
    // What they had is given back behind them.
    let before = Witness::settled(&rig);
    let mut cases = Cases::new();
    let mut case = |name: &str, result: Result<(), Errno>| {
        cases.expect(name, result, Err(Errno::ENOENT));
    };
    case("BO_MMAP_OFFSET", rig.mmap_offset(bo).map(drop));
    case("BO_INFO", rig.info(bo).map(drop));
    case("VM_DESTROY", rig.vm_destroy(vm));
    case("VM_BIND vm", rig.bind(vm, &[map(own, 0, VA, PAGE)], &[]));
    case(
        "VM_BIND handle",
        rig.bind(rig.vm, &[map(bo, 0, VA, PAGE)], &[]),
    );
    case("CONTEXT_CREATE", rig.context_create(vm, 0).map(drop));
    case("CONTEXT_DESTROY", rig.context_destroy(context));
    case("CONTEXT_STATE", rig.state(context).map(drop));
    case("SUBMIT", rig.submit(context, &[], &[]));
    cases.expect("GEM_CLOSE", rig.close(bo), Err(Errno::EINVAL));
    cases.expect("what can be seen", before.changes(&rig), None);
    cases.finish();
}

fn the_next_handle_is_not_used_up() {
    let client = Client::new();
    let first = client.vm_create().expect("VM_CREATE");
    let mut bad = drm_skua_vm_create {
        flags: 1,
        ..Default::default()
    };
    let mut bad_context = drm_skua_context_create {
        vm: first,
        engine: u32::MAX,
        ..Default::default()
    };
    for _ in 0..100 {
        assert_eq!(
            client.call(DRM_IOCTL_SKUA_VM_CREATE, &mut bad),
            Err(Errno::EINVAL)
        );
        let result = client.call(DRM_IOCTL_SKUA_CONTEXT_CREATE, &mut bad_context);
        assert_eq!(result, Err(Errno::EINVAL));
        assert_eq!(client.bo_create(0, 0, 1), Err(Errno::EINVAL));
    }
    assert_eq!(client.vm_create(), Ok(first + 1));
    assert_eq!(client.context_create(first, 0), Ok(1));
    assert_eq!(client.bo(Place::System, PAGE), 1);
}

fn unknown_ioctls() {
    let client = Client::new();
    let before = Witness::of(&client);
    let mut cases = Cases::new();
    let ours = DRM_IOCTL_SKUA_QUERY & !0xff;
    for number in DRM_COMMAND_BASE + DRM_SKUA_CONTEXT_FREE + 1..DRM_COMMAND_END {
        let mut argument = [0_u64; 2];
        let result = client.call(ours | number, &mut argument);
        // drm_ioctl() says so for a number that neither the core nor the driver has.
        cases.expect(&format!("number {number:#x}"), result, Err(Errno::EINVAL));
    }
    // Another type of ioctl.
    let mut argument = [0_u64; 2];
    let other = (DRM_IOCTL_SKUA_QUERY & !0xff00) | 0x4700;
    let result = client.call(other, &mut argument);
    cases.expect("another type", result, Err(Errno::ENOTTY));
    cases.expect("what can be seen", before.changes(&client), None);
    cases.finish();
}

fn shorter_arguments() {
    quiet();
    let client = Client::new();
    // What is missing counts as zero, here the flags, placements and vm of BO_CREATE.
    let mut argument = drm_skua_bo_create {
        size: PAGE,
        flags: u32::MAX,
        placements: u32::MAX,
        handle: 77,
        vm: u32::MAX,
        preferred: u32::MAX,
        eviction_set: u32::MAX,
        priority: u32::MAX,
        pad: u32::MAX,
    };
    let number = with_size(DRM_IOCTL_SKUA_BO_CREATE, 8);
    assert_eq!(
        client.call(number, &mut argument),
        Err(Errno::EINVAL),
        "no placements"
    );
    assert_eq!(argument.handle, 77, "written behind its end");
    argument.flags = 0;
    argument.placements = 1 << client.region(Place::System).id;
    let number = with_size(DRM_IOCTL_SKUA_BO_CREATE, 16);
    assert_eq!(client.call(number, &mut argument), Ok(()));
    assert_eq!(
        (argument.handle, argument.vm),
        (77, u32::MAX),
        "written behind its end"
    );
    // As it was before there was an order.
    argument.vm = 0;
    let number = with_size(DRM_IOCTL_SKUA_BO_CREATE, 24);
    assert_eq!(client.call(number, &mut argument), Ok(()));
    let info = client.info(argument.handle).expect("BO_INFO");
    assert_eq!((info.preferred, info.eviction_set), (0, 0));
    // And a priority.
    (argument.preferred, argument.eviction_set) = (0, 0);
    let number = with_size(DRM_IOCTL_SKUA_BO_CREATE, 32);
    assert_eq!(client.call(number, &mut argument), Ok(()));
    // A destroy that has no pad yet.
    let vm = client.vm_create().expect("VM_CREATE");
    let mut argument = drm_skua_vm_destroy { vm, pad: 1 };
    assert_eq!(
        client.call(with_size(DRM_IOCTL_SKUA_VM_DESTROY, 4), &mut argument),
        Ok(())
    );
    assert_eq!(client.vm_destroy(vm), Err(Errno::ENOENT));
}

fn longer_arguments() {
    let client = Client::new();
    let mut cases = Cases::new();
    for (name, number) in ALL {
        // What the driver does not know is left alone, and does not matter.
        let size = argument_size(number);
        let mut argument = [0_u64; 32];
        for word in &mut argument[size / 8..] {
            *word = u64::MAX;
        }
        let longer = client.call(with_size(number, size + 16), &mut argument);
        cases.expect(
            &format!("{name}: what is behind"),
            argument[size / 8..].to_vec(),
            vec![u64::MAX; 32 - size / 8],
        );
        let mut argument = [0_u64; 32];
        let same = client.call(number, &mut argument);
        cases.expect(&format!("{name}: longer"), longer, same);
    }
    cases.finish();
}

fn nodes_need_no_authentication() {
    use nix::unistd::{setresuid, Uid};
    // A client without any right but to open the node.
    let client = Client::new();
    let nobody = Uid::from_raw(65534);
    setresuid(nobody, nobody, nobody).expect("setresuid");
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::Vram, PAGE);
    assert_eq!(
        client.bind_and_wait(vm, &[map(handle, 0, VA, PAGE)]),
        Ok(())
    );
    let context = client.context_create(vm, 0).expect("CONTEXT_CREATE");
    let done = client.syncobj();
    assert_eq!(client.submit(context, &[], &[signal(done)]), Ok(()));
    assert_eq!(client.wait(done), Ok(()));
    client.map(handle).write(0, 1);
}
