// SPDX-License-Identifier: MIT

//! A GPU of whose VRAM the CPU sees a part: `guests.json` says how much.

use std::process::ExitCode;

use skua_selftests::function::Function;
use skua_selftests::moving::is_in_vram;
use skua_selftests::rig::{copy, fill};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, torture, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const MIB: u64 = 1 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_part_is_visible,
        what_the_cpu_maps_is_where_it_can: 60,
        what_it_does_not_map_leaves_that_alone: 60,
        room_is_made_where_it_is_needed: 60 at_rest,
        what_can_never_fit_moves_nobody: 60 at_rest,
        nobody_is_in_their_own_way: 60,
        everything_at_once_in_eight_processes: 300,
    ])
}

/// Bytes of VRAM, and how many of them the CPU sees.
fn vram(client: &Client) -> (u64, u64) {
    let region = client.region(Place::Vram);
    (region.size, region.cpu_visible_size)
}

fn only_vram(client: &Client) -> u32 {
    1 << client.region(Place::Vram).id
}

fn both(client: &Client) -> u32 {
    only_vram(client) | 1 << client.region(Place::System).id
}

fn a_part_is_visible() {
    let (size, visible) = vram(&Client::new());
    assert!(visible > 0 && visible < size, "{visible:#x} of {size:#x}");
}

fn what_the_cpu_maps_is_where_it_can() {
    quiet();
    let rig = Rig::new();
    let (_, visible) = vram(&rig);
    let buffers: Vec<_> = (0..visible / MIB)
        .map(|_| rig.buffer(Place::Vram, MIB))
        .collect();
    // No access ends in SIGBUS, and all see the same.
    for (n, buffer) in (1..).zip(&buffers) {
        buffer.cpu.expect("new memory", |_| 0);
        buffer.cpu.fill(|offset| offset as u64 ^ n);
    }
    let out = rig.buffer(Place::System, MIB);
    for (n, buffer) in (1..).zip(&buffers) {
        assert_eq!(
            rig.run(Engine::Copy, &[copy(buffer.va, out.va, MIB)]),
            Ok(())
        );
        out.cpu.expect("for the GPU", |offset| offset as u64 ^ n);
    }
    let more = rig.try_bo(Place::Vram, visible + MIB);
    assert_eq!(more, Err(Errno::ENOSPC), "more than the CPU sees");
}

fn what_it_does_not_map_leaves_that_alone() {
    quiet();
    let rig = Rig::new();
    let (size, visible) = vram(&rig);
    let hidden = rig
        .bo_create(size - visible, 0, only_vram(&rig))
        .expect("BO_CREATE");
    let buffer = rig.buffer(Place::Vram, visible);
    buffer.cpu.fill(|offset| offset as u64);
    let va = rig.bound_at_will(hidden, size - visible);
    assert_eq!(
        rig.run(Engine::Compute, &[fill(7, va, size - visible)]),
        Ok(())
    );
    buffer.cpu.expect("untouched", |offset| offset as u64);
    // It takes the visible part where there is no other.
    drop(buffer);
    drop(rig);
    quiet();
    let client = Client::new();
    let all = client.bo_create(size, 0, only_vram(&client));
    assert!(all.is_ok(), "{all:?}");
}

fn room_is_made_where_it_is_needed() {
    quiet();
    let rig = Rig::new();
    let (size, visible) = vram(&rig);
    let hidden = rig.bo_create(MIB, 0, both(&rig)).expect("BO_CREATE");
    let seen: Vec<_> = (0..visible / MIB)
        .map(|_| {
            rig.bo_create(MIB, DRM_SKUA_BO_CPU_ACCESS, both(&rig))
                .expect("BO_CREATE")
        })
        .collect();
    let buffers: Vec<_> = seen.iter().map(|handle| rig.bound(*handle, MIB)).collect();
    for (n, buffer) in (1..).zip(&buffers) {
        buffer.cpu.fill(|_| n);
    }
    // There is room, but none that the CPU sees.
    let used = rig.region(Place::Vram).used;
    assert!(used < size / 2, "{used:#x}");
    let new = rig.buffer(Place::Vram, 2 * MIB);
    new.cpu.expect("new memory", |_| 0);
    let moved = seen.iter().filter(|handle| !is_in_vram(&rig, **handle));
    assert_eq!(moved.count(), 2);
    assert!(is_in_vram(&rig, hidden), "it was in nobody's way");
    for (n, buffer) in (1..).zip(&buffers) {
        buffer.cpu.expect("its content", |_| n);
    }
}

/// What work needs fits, but not where it is: something has to leave the part that the CPU sees.
fn nobody_is_in_their_own_way() {
    let client = Client::new();
    // Or too large for the aperture.
    let aperture = client.region(Place::Aperture);
    assert!(aperture.size < vram(&client).1, "{aperture:?}");
    for others in [0, 1 << aperture.id] {
        in_their_own_way(only_vram(&client) | others);
    }
}

/// Work needs what it sees of VRAM, which may be in these places, and nearly all else of that.
fn in_their_own_way(placements: u32) {
    quiet();
    let (rig, other) = (Rig::new(), Client::new());
    let (size, visible) = vram(&rig);
    let seen = rig.bo_create(visible, DRM_SKUA_BO_CPU_ACCESS, placements);
    let seen = rig.bound(seen.expect("BO_CREATE"), visible);
    seen.cpu.fill(|offset| offset as u64);
    Function::first().debugfs("evict").expect("debugfs");
    assert!(!is_in_vram(&rig, seen.handle));
    for _ in 0..20 {
        assert!(other.bo_create(MIB, 0, only_vram(&other)).is_ok());
    }
    // Others have a part of what the CPU does not see, so that it goes where the CPU does.
    let hidden: Vec<_> = (0..(size - visible) / MIB - 2)
        .map(|_| rig.bo_create(MIB, 0, only_vram(&rig)).expect("BO_CREATE"))
        .map(|handle| rig.bound_at_will(handle, MIB))
        .collect();
    let out = rig.buffer(Place::System, MIB);
    for (n, va) in (1..).zip(&hidden) {
        assert_eq!(rig.run(Engine::Compute, &[fill(n, *va, MIB)]), Ok(()));
    }
    assert!(is_in_vram(&rig, seen.handle));
    seen.cpu.expect("its content", |offset| offset as u64);
    for (n, va) in (1..).zip(&hidden) {
        assert_eq!(rig.run(Engine::Copy, &[copy(*va, out.va, MIB)]), Ok(()));
        out.cpu.expect("what the CPU does not see", |_| n << 32 | n);
    }
}

fn what_can_never_fit_moves_nobody() {
    quiet();
    let client = Client::new();
    let (size, visible) = vram(&client);
    // All that the CPU does not see, and some that it does, could go.
    for _ in 0..(size - visible) / MIB {
        client.bo_create(MIB, 0, both(&client)).expect("BO_CREATE");
    }
    let seen = client
        .bo_create(MIB, DRM_SKUA_BO_CPU_ACCESS, both(&client))
        .expect("BO_CREATE");
    let large = client.bo_create(visible + MIB, DRM_SKUA_BO_CPU_ACCESS, only_vram(&client));
    assert_eq!(large, Err(Errno::ENOSPC));
    assert!(is_in_vram(&client, seen));
    // Where system memory is allowed, that is it.
    let large = client
        .bo_create(visible + MIB, DRM_SKUA_BO_CPU_ACCESS, both(&client))
        .expect("BO_CREATE");
    assert!(!is_in_vram(&client, large));
    assert!(is_in_vram(&client, seen));
}

fn everything_at_once_in_eight_processes() {
    torture::eight_processes(120);
}
