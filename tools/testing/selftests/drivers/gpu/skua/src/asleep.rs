// SPDX-License-Identifier: MIT

//! The system sleeps: what must hold however far it goes, for the programs that test one way each.

use nix::sys::mman::{MapFlags, ProtFlags};
use skua_uapi::DRM_SKUA_BO_CPU_ACCESS;

use crate::client::{signal_value, wait_value};
use crate::function::Function;
use crate::mapping::Mapping;
use crate::moving::{expect_gpu, movable_in_vram, pattern, place};
use crate::power::Sleep;
use crate::program::{address, COUNT};
use crate::rig::{dispatch, expect_working, fill, write};
use crate::{Engine, Place, Rig};

const SIZE: u64 = 1 << 20;

/// Sends the guest to sleep; the device was reset before, and when it woke. The resets that it has
/// in between, of its power and with the machine, may be one with the latter.
///
/// # Panics
///
/// If it does not sleep.
#[track_caller]
pub fn sleep_well(sleep: Sleep) {
    let resets = || {
        let [resets] = Function::first().counters(["device_reset"]);
        resets
    };
    let before = resets();
    sleep.fall().expect("sleep");
    let more = resets() - before;
    let most = match sleep {
        Sleep::Devices => 3,
        Sleep::Machine => 4,
    };
    assert!((2..=most).contains(&more), "{more} resets");
}

/// What was in VRAM, in an aperture segment and in system memory is there for whoever looks.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn memory_and_maps_are_there_again(sleep: Sleep) {
    let rig = Rig::new();
    let client = &rig;
    let aperture = 1 << client.region(Place::Aperture).id;
    let there = client
        .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, aperture)
        .expect("BO_CREATE");
    let handles = [
        movable_in_vram(client, SIZE),
        there,
        client.bo(Place::System, SIZE),
    ];
    let buffers = handles.map(|handle| rig.bound(handle, SIZE));
    for (seed, buffer) in buffers.iter().enumerate() {
        buffer.cpu.fill(pattern(seed as u64));
    }
    // The GPU's own: by an address that the CPU does not know of.
    let [out] = [Place::Vram].map(|place| rig.buffer(place, 4096));
    assert_eq!(rig.run(Engine::Compute, &[write(out.va, 0x5eed)]), Ok(()));

    sleep_well(sleep);
    assert_ne!(place(client, handles[0]), Place::Vram);
    assert_eq!(place(client, there), Place::Aperture);
    for (seed, buffer) in buffers.iter().enumerate() {
        let what = format!("object {seed}");
        buffer.cpu.expect(&what, pattern(seed as u64));
        expect_gpu(&rig, &what, buffer.va, SIZE, pattern(seed as u64));
    }
    assert_eq!(out.cpu.read(0), 0x5eed);
    // Work does without it, and has it come back all the same.
    assert_eq!(place(client, handles[0]), Place::Vram);
    // What is mapped in VRAM comes back with work.
    assert_eq!(rig.run(Engine::Compute, &[write(out.va, 0x5eee)]), Ok(()));
    assert_eq!(out.cpu.read(0), 0x5eee);
    expect_working();
}

/// Five times: what work has counted up to is kept.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn again_and_again(sleep: Sleep) {
    let rig = Rig::new().having_worked();
    let count = rig.program(COUNT);
    let counter = rig.buffer(Place::Vram, 4096);
    for round in 1..=5 {
        let work = [dispatch(&count, COUNT, &address(counter.va))];
        assert_eq!(rig.run(Engine::Compute, &work), Ok(()), "round {round}");
        sleep_well(sleep);
        assert_eq!(counter.cpu.read32(0), round, "round {round}");
    }
}

/// By then, and once.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn work_that_was_accepted_is_done(sleep: Sleep) {
    let rig = Rig::new().having_worked();
    let count = rig.program(COUNT);
    // Not in VRAM, which is left when what uses it is done.
    let counter = rig.buffer(Place::System, 4096);
    let long = rig.buffer(Place::System, 4 << 20);
    let mut work = [fill(7, long.va, 4 << 20); 16];
    work[15] = dispatch(&count, COUNT, &address(counter.va));
    let contexts = [(); 4].map(|()| rig.context_having_worked(Engine::Compute));
    let jobs: Vec<_> = (0..64)
        .map(|n| rig.start_in(contexts[n % 4], &work))
        .collect();
    let ended = || jobs.iter().filter(|job| job.has_ended()).count();
    println!("# {} have ended before", ended());
    sleep_well(sleep);
    assert_eq!(ended(), jobs.len());
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    assert_eq!(counter.cpu.read32(0), 64);
}

/// It has no fence yet, and gets its value afterwards.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn work_held_for_a_fence_stays_held(sleep: Sleep) {
    let rig = Rig::new().having_worked();
    let target = rig.buffer(Place::Vram, 4096);
    let fence = rig.fence_create(0).expect("FENCE_CREATE");
    let job = rig
        .start_after(rig.compute, &[write(target.va, 7)], &[wait_value(fence, 1)])
        .expect("SUBMIT");
    sleep_well(sleep);
    assert_eq!(target.cpu.read(0), 0);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 7);
}

/// Monitored ones, in memory and for who asks the kernel, and others; and get more.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn fences_keep_their_values(sleep: Sleep) {
    let rig = Rig::new().having_worked();
    let fence = rig.fence_create(5).expect("FENCE_CREATE");
    let exported = rig.fence_export(fence).expect("FENCE_EXPORT");
    let page = Mapping::with(
        exported,
        0,
        4096,
        ProtFlags::PROT_READ,
        MapFlags::MAP_SHARED,
    );
    let page = page.expect("mmap");
    let reach = |value| {
        let signals = [signal_value(fence, value)];
        let job = rig.start_after(rig.compute, &[], &signals).expect("SUBMIT");
        assert!(rig.fence_gets(fence, value), "value {value}");
        job
    };
    let before = reach(7);
    for value in [7, 8] {
        sleep_well(sleep);
        assert_eq!(page.read(0), value);
        assert!(rig.fence_has(fence, value));
        assert!(!rig.fence_has(fence, value + 1));
        assert!(before.has_ended());
        assert_eq!(reach(value + 1).wait(), Ok(()));
        assert_eq!(page.read(0), value + 1);
    }
}
