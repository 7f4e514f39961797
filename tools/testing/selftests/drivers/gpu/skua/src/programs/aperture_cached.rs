// SPDX-License-Identifier: MIT

//! A GPU whose VRAM the CPU may have cached, through its host aperture, and the same GPU as long as
//! it does not say so.

use std::process::ExitCode;

use skua_guest::host::{request, Lies};
use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::{
    alone, both, evict_all, expect_gpu, locked, pattern, place, resident,
};
use skua_selftests::raw::{dies_of, Signal};
use skua_selftests::rig::fill;
use skua_selftests::{aperture, skip, suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::pci::BAR_HOST_APERTURE;
use skua_uapi::*;

const CACHED: u32 = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED;
/// Half of the aperture.
const SIZE: u64 = 128 << 10;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_0_15_a_cached_aperture_is_cached,
        row_0_16_what_is_cached_is_locked_in_vram: 60 at_rest,
        row_0_16_row_0_24_no_more_is_locked_than_there_are_pages: 60 at_rest,
        row_0_16_vram_alone_needs_no_aperture,
        row_0_16_who_does_not_say_so_has_it_locked_elsewhere: 60 at_rest,
        row_0_22_any_page_of_vram_through_any_page: 60 at_rest,
        row_0_23_mappings_go_before_a_page_is_anothers: 120 at_rest,
    ])
}

/// An object that the CPU has cached, in VRAM, that the GPU has filled; and where that finds it.
#[track_caller]
fn in_vram(rig: &Rig, size: u64) -> (u32, u64) {
    let handle = rig.bo_create(size, CACHED, both(rig)).expect("BO_CREATE");
    assert_eq!(place(rig, handle), Place::Vram);
    let va = rig.bound_at_will(handle, size);
    assert_eq!(rig.run(Engine::Compute, &[fill(7, va, size)]), Ok(()));
    (handle, va)
}

fn row_0_15_a_cached_aperture_is_cached() {
    let vram = Client::new().region(Place::Vram);
    assert_eq!(vram.cpu_visible_size, 0);
    let function = Function::first();
    assert_eq!(function.bar_size(BAR_HOST_APERTURE), vram.aperture_size);
    function.expect_write_back(BAR_HOST_APERTURE);
}

fn row_0_16_what_is_cached_is_locked_in_vram() {
    let rig = alone();
    let (handle, va) = in_vram(&rig, SIZE);
    let counts = || {
        let names = [
            "driver_evictions",
            "driver_aperture_maps",
            "aperture_unmapped",
        ];
        Function::first().counters(names)
    };
    let before = counts();
    let cpu = locked(&rig, handle, SIZE);
    assert_eq!(place(&rig, handle), Place::Vram);
    cpu.expect("what the GPU wrote", |_| 7 << 32 | 7);
    for round in 0..8 {
        cpu.fill(pattern(round));
        expect_gpu(&rig, "what the CPU wrote", va, SIZE, pattern(round));
        let word = 100 + round as u32;
        assert_eq!(rig.run(Engine::Compute, &[fill(word, va, SIZE)]), Ok(()));
        let seen = u64::from(word) << 32 | u64::from(word);
        cpu.expect("what the GPU wrote since", |_| seen);
    }
    let after = counts();
    println!("# moves out, pages mapped, stray accesses: {before:?}, then {after:?}");
    assert_eq!((after[0], after[2]), (before[0], before[2]));
    assert!(after[1] > before[1], "it is not the aperture");
    // Moved under the lock, it comes back under the lock.
    cpu.fill(pattern(9));
    evict_all();
    assert_eq!(place(&rig, handle), Place::System);
    cpu.expect("out of VRAM", pattern(9));
    cpu.fill(pattern(10));
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::Vram);
    cpu.expect("back in VRAM", pattern(10));
    expect_gpu(&rig, "back in VRAM", va, SIZE, pattern(10));
    // Nor is a lock needed to find it there.
    assert_eq!(rig.unlock(handle), Ok(()));
    cpu.fill(pattern(11));
    assert_eq!(place(&rig, handle), Place::Vram);
    expect_gpu(&rig, "unlocked", va, SIZE, pattern(11));
}

fn row_0_16_row_0_24_no_more_is_locked_than_there_are_pages() {
    let rig = alone();
    let all = rig.region(Place::Vram).aperture_size;
    let objects = [(all, 1), (SIZE, 2)].map(|(size, seed)| (in_vram(&rig, size), size, seed));
    for ((handle, va), size, seed) in objects {
        locked(&rig, handle, size).fill(pattern(seed));
        expect_gpu(&rig, "locked", va, size, pattern(seed));
    }
    let places = objects.map(|((handle, _), ..)| place(&rig, handle));
    assert_eq!(places, [Place::Vram, Place::System]);
    let [((first, _), ..), ((second, va), ..)] = objects;
    assert_eq!(rig.unlock(first), Ok(()));
    resident(&rig, &[second]);
    assert_eq!(place(&rig, second), Place::Vram, "there are pages again");
    expect_gpu(&rig, "in VRAM again", va, SIZE, pattern(2));
    assert_eq!(rig.unlock(second), Ok(()));
}

fn row_0_16_vram_alone_needs_no_aperture() {
    let client = Client::new();
    let vram = 1 << client.region(Place::Vram).id;
    let made = client.bo_create(SIZE, CACHED, vram);
    assert_eq!(made, Err(Errno::EOPNOTSUPP));
}

/// The same device without the one bit.
fn row_0_16_who_does_not_say_so_has_it_locked_elsewhere() {
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    let unbound = Unbound::first();
    let told = Lies::tell("aperture-caps=12").expect("gpu-lie");
    drop(unbound);
    Function::first().expect_write_combined(BAR_HOST_APERTURE);
    let rig = alone();
    let (handle, va) = in_vram(&rig, SIZE);
    let cpu = rig.map(handle);
    assert!(dies_of(Signal::SIGBUS, || cpu.read(0)));
    assert!(rig.lock(handle).is_ok());
    assert_eq!(place(&rig, handle), Place::System);
    cpu.expect("what the GPU wrote", |_| 7 << 32 | 7);
    cpu.fill(pattern(1));
    expect_gpu(&rig, "what the CPU wrote", va, SIZE, pattern(1));
    drop(rig);
    let unbound = Unbound::first();
    drop(told);
    drop(unbound);
    Function::first().expect_write_back(BAR_HOST_APERTURE);
}

fn row_0_22_any_page_of_vram_through_any_page() {
    aperture::any_page_of_vram_through_any_page();
}

fn row_0_23_mappings_go_before_a_page_is_anothers() {
    aperture::mappings_go_before_a_page_is_anothers();
}
