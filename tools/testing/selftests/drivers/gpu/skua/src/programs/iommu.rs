// SPDX-License-Identifier: MIT

//! A GPU behind an IOMMU: what it is given are addresses of the IOMMU's, which lead nowhere once
//! the driver has taken them back. `guests.json` gives this program a guest that has one.

use std::process::ExitCode;

use skua_selftests::client::map_fence;
use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::{evict_all, expect_gpu, movable_in_vram, pattern, place};
use skua_selftests::others::heap;
use skua_selftests::rig::{copy, expect_working, fill, wait_value};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, torture, Engine, Place, Rig};

/// Of an object, in bytes.
const SIZE: u64 = 256 << 10;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        it_is_behind_an_iommu,
        work_reaches_pages_of_the_system,
        memory_of_others_is_reached,
        values_of_fences_are_reached,
        what_leaves_vram_comes_back: 60 at_rest,
        it_works_when_it_is_bound_again: 60,
        everything_at_once_in_eight_processes: 300,
    ])
}

fn it_is_behind_an_iommu() {
    let group = Function::first().sysfs().join("iommu_group");
    assert!(group.exists(), "{}", group.display());
    let kind = std::fs::read_to_string(group.join("type")).expect("sysfs");
    assert!(kind.trim_end().starts_with("DMA"), "{kind}");
}

fn work_reaches_pages_of_the_system() {
    let rig = Rig::new();
    let [from, to] = [(); 2].map(|()| rig.buffer(Place::System, SIZE));
    from.cpu.fill(pattern(1));
    let work = [copy(from.va, to.va, SIZE)];
    for engine in Engine::ALL {
        to.cpu.fill(|_| 0);
        assert_eq!(rig.run(engine, &work), Ok(()), "{engine:?}");
        to.cpu.expect("the copy", pattern(1));
    }
}

fn memory_of_others_is_reached() {
    let rig = Rig::new();
    let theirs = rig.import(heap(SIZE)).expect("PRIME_FD_TO_HANDLE");
    let va = rig.bound_at_will(theirs, SIZE);
    assert_eq!(rig.run(Engine::Copy, &[fill(7, va, SIZE)]), Ok(()));
    expect_gpu(&rig, "another driver's memory", va, SIZE, |_| 7 << 32 | 7);
}

fn values_of_fences_are_reached() {
    let rig = Rig::new();
    let fence = rig.fence(0);
    let va = rig.reserve(4096);
    let bound = rig.bind_and_wait(rig.vm, &[map_fence(fence, va)]);
    assert_eq!(bound, Ok(()));
    let job = rig.start(Engine::Compute, &[wait_value(va, 1)]);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
}

fn what_leaves_vram_comes_back() {
    quiet();
    let rig = Rig::new();
    let object = movable_in_vram(&rig, SIZE);
    let cpu = rig.map(object);
    let va = rig.bound_at_will(object, SIZE);
    cpu.fill(pattern(2));
    assert!(evict_all() > 0, "nothing moved");
    assert_eq!(place(&rig, object), Place::System);
    cpu.expect("out of VRAM", pattern(2));
    expect_gpu(&rig, "for the GPU", va, SIZE, pattern(2));
}

fn it_works_when_it_is_bound_again() {
    let rig = Rig::new();
    let object = rig.buffer(Place::System, SIZE);
    assert_eq!(rig.run(Engine::Copy, &[fill(1, object.va, SIZE)]), Ok(()));
    drop(Unbound::first());
    // The pages are the client's, and not the GPU's any more.
    object
        .cpu
        .expect("of a device that is gone", |_| 1 << 32 | 1);
    drop(rig);
    expect_working();
}

fn everything_at_once_in_eight_processes() {
    torture::eight_processes(40);
}
