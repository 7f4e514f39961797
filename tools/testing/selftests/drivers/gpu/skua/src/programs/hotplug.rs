// SPDX-License-Identifier: MIT

//! The driver goes while it is in use: unbind, rebind, unload.
//!
//! What userspace sees then is in `Documentation/gpu/drm-uapi.rst`, "Device Hot-Unplug": fences
//! signal, mappings stay usable, calls fail with ENODEV, and nothing leaks.

use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::kmod::{delete_module, finit_module, DeleteModuleFlags, ModuleInitFlags};
use skua_guest::host::{expect_error, request};
use skua_guest::job::PRODUCTS;
use skua_selftests::calls::Calls;
use skua_selftests::cgroup::MemoryGroup;
use skua_selftests::client::{map, signal, status_of, wait, PATIENCE};
use skua_selftests::every_call::EveryCall;
use skua_selftests::function::{watches_dma_mappings, Function, Unbound};
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{evict_some, movable_in_vram, place};
use skua_selftests::others::{heap, try_heap, write_until};
use skua_selftests::program::LOOP;
use skua_selftests::raw::in_child;
use skua_selftests::rig::{dispatch, expect_working, fill, wait_value, write};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::witness::quiet;
use skua_selftests::{skip, suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_uapi::DRM_SKUA_BO_CPU_ACCESS;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        idle_clients_survive_an_unbind,
        unbind_waits_no_longer_for_many_objects: 60,
        close_waits_no_longer_for_many_objects: 60,
        calls_fail_when_the_device_is_gone,
        fences_of_running_and_queued_work_signal,
        waiters_wake_up,
        mappings_stay_usable: 60,
        pages_of_a_gone_device_are_charged: 60 at_rest,
        dma_bufs_stay_usable,
        memory_of_other_drivers_stays_usable,
        memory_of_other_drivers_is_unmapped_by_an_unbind,
        a_new_client_works_beside_an_old_one: 60,
        fdinfo_of_an_old_client_can_be_read,
        old_clients_can_close_in_any_order: 60,
        objects_are_freed_after_their_device: 120,
        a_hundred_rebinds_when_idle: 300,
        a_hundred_rebinds_under_load: 600,
        removing_and_rescanning: 60,
        the_module_stays_while_it_is_open: 60,
        the_module_can_be_unloaded_and_loaded: 120,
        unloading_under_load: 300,
        row_2_02_at_level_1_nothing_recovers: 120,
        row_2_02_the_window_moves_on: 120,
        system_memory_is_what_the_parameter_says: 60,
        row_2_01_time_outs_have_defaults: 120,
        binds_of_a_destroyed_address_space_end: 60,
        what_a_driver_leaves_behind_calls_nobody: 60,
        binds_that_wait_end_with_their_client: 60,
        binds_that_meet_the_end_of_their_address_space_end: 60,
        gated_work_ends_at_an_unbind: 60,
        a_destruction_that_waits_ends_at_an_unbind: 120,
        a_move_that_waits_ends_at_an_unbind: 120 at_rest,
        a_move_that_waits_for_another_driver_ends_at_an_unbind: 120,
    ])
}

fn idle_clients_survive_an_unbind() {
    let client = Client::new();
    let rig = Rig::new();
    let _buffers = Place::ALL.map(|place| rig.buffer(place, 1 << 20));
    drop(Unbound::first());
    drop(client);
    drop(rig);
    expect_working();
}

/// What waits for a grace period.
const WAITS: [&str; 4] = [
    "synchronize_rcu",
    "synchronize_rcu_expedited",
    "synchronize_srcu",
    "rcu_barrier",
];

/// A client with `count` objects, and a twentieth as many address spaces and as many imports, if
/// the kernel has whom to import from.
fn crowd(count: u32) -> Client {
    let client = Client::new();
    for n in 0..count {
        client.bo(Place::System, 4096);
        if n % 20 == 0 {
            client.vm_create().expect("VM_CREATE");
            if let Some(buffer) = try_heap(4096) {
                client.import(&buffer).expect("PRIME_FD_TO_HANDLE");
            }
        }
    }
    client
}

fn unbind_waits_no_longer_for_many_objects() {
    let [few, many] = [10, 500].map(|count| {
        quiet();
        let client = crowd(count);
        let calls = Calls::of(&WAITS);
        let unbound = Unbound::first();
        let waits = calls.count();
        drop(unbound);
        drop(client);
        println!("unbind with {count} objects: {waits:?}");
        waits.values().sum::<usize>()
    });
    // drm_dev_unplug() waits, at least.
    assert!(few > 0, "nothing was counted");
    assert!(many <= few + 5, "{few} waits, {many} with many objects");
    expect_working();
}

fn close_waits_no_longer_for_many_objects() {
    quiet();
    let client = crowd(500);
    // The second is a search through all that the device has.
    let calls = Calls::of(&[&WAITS[..], &["devres_node_remove", "drm_release"]].concat());
    drop(client);
    let mut calls = calls.count();
    println!("close with 500 objects: {calls:?}");
    assert_eq!(calls.remove("drm_release"), Some(1));
    assert!(calls.values().sum::<usize>() <= 5, "{calls:?}");
}

fn calls_fail_when_the_device_is_gone() {
    let calls = EveryCall::new();
    let unbound = Unbound::first();
    calls.expect(|_| Err(Errno::ENODEV));
    drop(unbound);
    calls.expect(|_| Err(Errno::ENODEV));
}

fn fences_of_running_and_queued_work_signal() {
    let rig = Rig::new();
    let never = rig.buffer(Place::System, 4096);
    let target = rig.buffer(Place::System, 4096);
    let mut files = Vec::new();
    for engine in Engine::ALL {
        let running = rig.start(engine, &[wait_value(never.va, 1), write(target.va, 1)]);
        files.push(rig.sync_file(running.syncobj));
        // More than the ring takes.
        for _ in 0..40 {
            let queued = rig.start(engine, &[write(target.va, 2)]);
            files.push(rig.sync_file(queued.syncobj));
        }
    }
    let bind = rig.syncobj();
    let held = rig.start(Engine::Copy, &[]);
    let syncs = [skua_selftests::client::wait(held.syncobj), signal(bind)];
    let op = map(never.handle, 0, 1 << 41, 4096);
    assert_eq!(rig.bind(rig.vm, &[op], &syncs), Ok(()));
    let bind = rig.sync_file(bind);
    let unbound = Unbound::first();
    for (n, file) in files.iter().enumerate() {
        assert_eq!(status_of(file), -(Errno::ENODEV as i32), "fence {n}");
    }
    // A bind is performed or fails, but does not stay.
    assert_ne!(status_of(&bind), 0, "the bind's fence");
    never.cpu.write(0, 1);
    std::thread::sleep(Duration::from_millis(20));
    drop(unbound);
    assert_eq!(target.cpu.read(0), 0, "work ran after the device was gone");
    expect_working();
}

fn waiters_wake_up() {
    let rig = Rig::new();
    let never = rig.buffer(Place::System, 4096);
    let job = rig.start(Engine::Copy, &[wait_value(never.va, 1)]);
    let file = rig.sync_file(job.syncobj);
    let other = File::from(file);
    let waiting = std::thread::spawn(move || {
        use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
        use std::os::fd::AsFd;
        let mut ready = [PollFd::new(other.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(PATIENCE * suite::patience()).expect("a time");
        poll(&mut ready, timeout)
    });
    std::thread::sleep(Duration::from_millis(50));
    let unbound = Unbound::first();
    assert_eq!(
        waiting.join().expect("the waiter"),
        Ok(1),
        "it did not wake up"
    );
    drop(unbound);
}

fn mappings_stay_usable() {
    let client = Client::new();
    let mut maps = Vec::new();
    for place in Place::ALL {
        let handle = client.bo(place, 64 << 10);
        let touched = client.map(handle);
        touched.fill(|offset| offset as u64);
        // One whose pages were never asked for.
        let fresh = client.map(handle);
        maps.push((place, touched, fresh));
    }
    let check = |when: &str, maps: &[(Place, Mapping, Mapping)]| {
        // A SIGBUS would end this process, so it happens in another.
        let survived = in_child(|| {
            for (_, touched, fresh) in maps {
                for map in [touched, fresh] {
                    for offset in (0..map.len()).step_by(4096) {
                        map.read(offset);
                        map.write(offset, 1);
                    }
                }
            }
            true
        });
        assert!(survived, "{when}: an access to a mapping failed");
    };
    let unbound = Unbound::first();
    check("unbound", &maps);
    // System pages or a dummy: not somebody else's memory.
    for (place, touched, fresh) in &maps {
        touched.write(8, 42);
        assert_eq!(touched.read(8), 42, "{place:?}");
        fresh.write(16, 43);
        assert_eq!(fresh.read(16), 43, "{place:?}");
    }
    drop(unbound);
    check("bound again", &maps);
    // What the old mappings write does not reach the new device's memory.
    let new = Client::new();
    let handle = new.bo(Place::Vram, 1 << 20);
    let vram = new.map(handle);
    for (_, touched, fresh) in &maps {
        touched.fill(|_| u64::MAX);
        fresh.fill(|_| u64::MAX);
    }
    vram.expect("memory of the new device", |_| 0);
    drop(maps);
    drop(client);
    expect_working();
}

/// What is behind a mapping then is its own client's.
fn pages_of_a_gone_device_are_charged() {
    const COUNT: usize = 512;
    let group = MemoryGroup::enter();
    let client = Client::new();
    let maps: Vec<Mapping> = (0..COUNT)
        .map(|_| client.map(client.bo(Place::Vram, 4096)))
        .collect();
    let unbound = Unbound::first();
    let before = group.kernel_bytes();
    for map in &maps {
        assert_eq!(map.read(0), 0);
    }
    // Something else may have been given back meanwhile.
    let least = COUNT as u64 * 4096 * 3 / 4;
    let charged = group.kernel_bytes_since(before, least);
    println!("# {charged} bytes for {COUNT} pages");
    drop(unbound);
    assert!(charged >= least, "{charged} bytes");
}

fn dma_bufs_stay_usable() {
    let client = Client::new();
    let shared: Vec<_> = Place::ALL
        .into_iter()
        .map(|place| {
            let handle = client.bo(place, 64 << 10);
            client.map(handle).fill(|_| 9);
            (place, client.export(handle).expect("PRIME_HANDLE_TO_FD"))
        })
        .collect();
    let early = Mapping::new(&shared[0].1, 0, 64 << 10).expect("mmap of a dma-buf");
    drop(client);
    let unbound = Unbound::first();
    let survived = in_child(|| {
        early.read(0);
        early.write(4096, 1);
        for (_, dma_buf) in &shared {
            // It may be refused, but not kill.
            if let Ok(map) = Mapping::new(dma_buf, 0, 64 << 10) {
                map.read(0);
                map.write(4096, 1);
            }
        }
        true
    });
    assert!(survived);
    drop(unbound);
    // Another life of the device does not know them.
    let new = Client::new();
    for (place, dma_buf) in &shared {
        let result = new.import(dma_buf);
        if let Ok(handle) = result {
            println!("{place:?} of the old device was imported as {handle}");
            assert_eq!(new.info(handle).expect("BO_INFO").imported, 1);
        }
    }
    drop((early, shared));
    expect_working();
}

fn memory_of_other_drivers_stays_usable() {
    let dma_buf = heap(64 << 10);
    let cpu = Mapping::new(&dma_buf, 0, 64 << 10).expect("mmap of a dma-buf");
    let rig = Rig::new();
    let handle = rig.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
    let va = rig.bound_at_will(handle, 64 << 10);
    assert_eq!(rig.run(Engine::Copy, &[fill(6, va, 64 << 10)]), Ok(()));
    drop(Unbound::first());
    cpu.expect("after the unbind", |_| 6 << 32 | 6);
    drop(rig);
    let rig = Rig::new();
    let handle = rig.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
    let va = rig.bound_at_will(handle, 64 << 10);
    assert_eq!(rig.run(Engine::Copy, &[fill(7, va, 64 << 10)]), Ok(()));
    cpu.expect("by the new device", |_| 7 << 32 | 7);
}

/// A DMA mapping is of a bound device: its exporter undoes it then, not when the object goes.
fn memory_of_other_drivers_is_unmapped_by_an_unbind() {
    const UNMAP: &str = "dma_buf_unmap_attachment_unlocked";
    quiet();
    let client = Client::new();
    for _ in 0..3 {
        let dma_buf = heap(4096);
        client.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
    }
    let calls = Calls::of(&[UNMAP]);
    let unbound = Unbound::first();
    assert_eq!(calls.count().get(UNMAP), Some(&3), "by the unbind");
    drop(calls);
    let calls = Calls::of(&[UNMAP]);
    drop(client);
    assert_eq!(calls.count().get(UNMAP), None, "again");
    drop(unbound);
    expect_working();
}

fn a_new_client_works_beside_an_old_one() {
    let old: Vec<Rig> = (0..3)
        .map(|_| {
            let rig = Rig::new().having_worked();
            let buffer = rig.buffer(Place::Vram, 1 << 20);
            rig.start(Engine::Copy, &[fill(1, buffer.va, 1 << 20)]);
            drop(Unbound::first());
            expect_working();
            rig
        })
        .collect();
    for rig in old {
        assert_eq!(rig.query_size(0), Err(Errno::ENODEV));
        drop(rig);
        expect_working();
    }
}

fn fdinfo_of_an_old_client_can_be_read() {
    let rig = Rig::new();
    let _buffer = rig.buffer(Place::Vram, 1 << 20);
    let bound = rig.fdinfo();
    for key in ["drm-client-id", "drm-engine-copy", "drm-total-vram0"] {
        assert!(bound.get(key).is_some(), "{key}");
    }
    let keys = || rig.fdinfo().keys().map(str::to_owned).collect::<Vec<_>>();
    let none: [&str; 0] = [];
    let unbound = Unbound::first();
    // The file can be read, and says nothing of a device that is gone ...
    assert_eq!(keys(), none);
    drop(unbound);
    // ... nor of the new one, which is not this file's.
    assert_eq!(keys(), none);
    let new = Client::new().fdinfo();
    assert_ne!(new.get("drm-client-id"), bound.get("drm-client-id"));
    assert!(new.get("drm-engine-copy").is_some());
}

fn old_clients_can_close_in_any_order() {
    for order in 0..3 {
        let mut rigs: Vec<Rig> = (0..4).map(|_| Rig::new()).collect();
        let maps: Vec<Mapping> = rigs
            .iter()
            .map(|rig| rig.buffer(Place::Vram, 1 << 20).cpu)
            .collect();
        let unbound = Unbound::first();
        if order == 0 {
            drop(rigs.split_off(2));
        }
        drop(unbound);
        if order == 1 {
            drop(maps);
            drop(rigs.split_off(1));
        } else {
            rigs.reverse();
            drop(rigs);
            drop(maps);
        }
        expect_working();
    }
}

/// Objects that an address space holds are freed late, in the order in which they were bound: when
/// the first goes, the device may have gone with its file.
fn objects_are_freed_after_their_device() {
    for _ in 0..suite::rounds(20) {
        for order in [[Place::System, Place::Vram], [Place::Vram, Place::System]] {
            let rig = Rig::new();
            let buffers = order.map(|place| rig.buffer(place, 64 << 10));
            for buffer in &buffers {
                assert_eq!(rig.close(buffer.handle), Ok(()));
            }
            drop(Unbound::first());
            drop(buffers);
            drop(rig);
        }
    }
    expect_working();
}

fn a_hundred_rebinds_when_idle() {
    quiet();
    let function = Function::first();
    for round in 0..suite::rounds(100) {
        function
            .unbind()
            .unwrap_or_else(|error| panic!("round {round}: unbind: {error}"));
        function
            .bind()
            .unwrap_or_else(|error| panic!("round {round}: bind: {error}"));
    }
    expect_working();
}

/// A client that works until it is told to stop, opening the device anew whenever it is gone.
fn load(stop: &AtomicBool, rounds: &AtomicU64) {
    // Waits are short here: what matters is that all end.
    while !stop.load(Ordering::Relaxed) {
        let Ok(file) = Function::first().open() else {
            continue;
        };
        if work(file, stop, rounds).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Works with an open file until a call fails; every failure but that of a lost device panics.
fn work(file: File, stop: &AtomicBool, rounds: &AtomicU64) -> Result<(), Errno> {
    let expected = |errno: Errno| {
        assert!(
            matches!(errno, Errno::ENODEV | Errno::ECANCELED | Errno::EIO),
            "under load: {errno}"
        );
        errno
    };
    let client = Client::try_of(file).map_err(expected)?;
    let (system, vram) = (1, 2);
    let vm = client.vm_create().map_err(expected)?;
    let context = client
        .context_create(vm, 0)
        .and_then(|one| client.context_create(vm, 1).map(|two| [one, two]))
        .map_err(expected)?;
    let commands = client.bo_create(4096, 1, system).map_err(expected)?;
    let target = client.bo_create(1 << 20, 1, vram).map_err(expected)?;
    let ops = [
        map(commands, 0, 1 << 30, 4096),
        map(target, 0, 1 << 31, 1 << 20),
    ];
    let offset = client.mmap_offset(commands).map_err(expected)?;
    let Ok(mapping) = Mapping::new(&client, offset, 4096) else {
        return Err(Errno::ENODEV);
    };
    let words = fill(7, 1 << 31, 1 << 20).encode();
    mapping.write_words(0, words.words());
    let done = client.try_syncobj().map_err(expected)?;
    client.bind(vm, &ops, &[signal(done)]).map_err(expected)?;
    let buffer = skua_uapi::drm_skua_buffer {
        va: 1 << 30,
        size: 24,
        flags: 0,
    };
    let mut last = done;
    while !stop.load(Ordering::Relaxed) {
        for context in context {
            let next = client.try_syncobj().map_err(expected)?;
            let syncs = [skua_selftests::client::wait(last), signal(next)];
            client
                .submit(context, &[buffer], &syncs)
                .map_err(expected)?;
            client.syncobj_destroy(last).map_err(expected)?;
            last = next;
        }
        client
            .try_wait(last, PATIENCE * suite::patience())
            .map_err(expected)?;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs `during` while four clients work; how many rounds they did.
fn under_load(during: impl FnOnce(&AtomicU64)) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| load(&stop, &rounds)))
            .collect();
        let result = catch_unwind(AssertUnwindSafe(|| during(&rounds)));
        // Also if it has failed: they would go on.
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client");
        }
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
    println!("{} rounds", rounds.load(Ordering::Relaxed));
}

/// Waits until the clients did more.
#[track_caller]
fn wait_for_rounds(rounds: &AtomicU64, more: u64) {
    let goal = rounds.load(Ordering::Relaxed) + more;
    let end = Instant::now() + PATIENCE * suite::patience();
    while rounds.load(Ordering::Relaxed) < goal {
        assert!(Instant::now() < end, "the clients stand still");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn a_hundred_rebinds_under_load() {
    quiet();
    under_load(|rounds| {
        for round in 0..suite::rounds(100) {
            wait_for_rounds(rounds, 2);
            let function = Function::first();
            function
                .unbind()
                .unwrap_or_else(|error| panic!("round {round}: unbind: {error}"));
            function
                .bind()
                .unwrap_or_else(|error| panic!("round {round}: bind: {error}"));
        }
        wait_for_rounds(rounds, 10);
    });
    quiet();
    expect_working();
}

fn removing_and_rescanning() {
    let rig = Rig::new().having_worked();
    let buffer = rig.buffer(Place::Vram, 1 << 20);
    let never = rig.buffer(Place::System, 4096);
    let job = rig.start(Engine::Copy, &[wait_value(never.va, 1)]);
    let file = rig.sync_file(job.syncobj);
    let function = Function::first();
    std::fs::write(function.sysfs().join("remove"), "1").expect("remove");
    assert!(Function::all().is_empty());
    assert_eq!(status_of(&file), -(Errno::ENODEV as i32));
    buffer.cpu.write(0, 1);
    buffer.cpu.read(4096);
    std::fs::write("/sys/bus/pci/rescan", "1").expect("rescan");
    assert_eq!(Function::all(), [function]);
    expect_working();
    drop(job);
    drop((buffer, never, rig));
    expect_working();
}

fn unload() -> Result<(), Errno> {
    delete_module(c"skua", DeleteModuleFlags::O_NONBLOCK)
}

/// Loads the module as the guest's init did.
fn load_module() {
    load_module_with(c"").expect("finit_module");
}

fn load_module_with(parameters: &CStr) -> Result<(), Errno> {
    let path = Path::new(PRODUCTS).join("skua.ko");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => skip("skua.ko is not at hand"),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    finit_module(&file, parameters, ModuleInitFlags::empty())
}

fn the_module_stays_while_it_is_open() {
    let client = Client::new();
    assert_eq!(unload(), Err(Errno::EWOULDBLOCK), "an open file");
    let handle = client.bo(Place::System, 4096);
    let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
    let mapping = client.map(handle);
    drop(client);
    assert_eq!(unload(), Err(Errno::EWOULDBLOCK), "a mapping and a dma-buf");
    drop(mapping);
    assert_eq!(unload(), Err(Errno::EWOULDBLOCK), "a dma-buf");
    drop(shared);
    expect_working();
}

/// Unloads when the last reference is gone, which may be given back late.
#[track_caller]
fn unload_soon() {
    let end = Instant::now() + PATIENCE * suite::patience();
    loop {
        match unload() {
            Ok(()) => return,
            Err(errno) => {
                assert_eq!(errno, Errno::EWOULDBLOCK);
                assert!(Instant::now() < end, "something keeps the module");
                suite::pause();
            }
        }
    }
}

fn the_module_can_be_unloaded_and_loaded() {
    needs_module();
    for _ in 0..5 {
        expect_working();
        unload_soon();
        assert_eq!(Function::first().node(), None);
        load_module();
    }
    expect_working();
    // A fence outlives the module that made it.
    let file = {
        let rig = Rig::new();
        let job = rig.start(Engine::Copy, &[]);
        assert_eq!(job.wait(), Ok(()));
        rig.sync_file(job.syncobj)
    };
    unload_soon();
    assert_eq!(status_of(&file), 1);
    drop(file);
    load_module();
    expect_working();
}

fn unloading_under_load() {
    needs_module();
    under_load(|rounds| {
        for _ in 0..suite::rounds(5) {
            wait_for_rounds(rounds, 2);
            // The clients let go of the device when it is gone.
            Function::first().unbind().expect("unbind");
            unload_soon();
            load_module();
        }
        wait_for_rounds(rounds, 10);
    });
    expect_working();
}

/// What a time-out has done is settled when the module is loaded (`TdrLevel`).
fn row_2_02_at_level_1_nothing_recovers() {
    needs_module();
    unload_soon();
    expect_error("tdr_level is 1 or 3").expect("the kernel's log");
    for level in [c"tdr_level=0", c"tdr_level=2", c"tdr_level=4"] {
        let loaded = load_module_with(level);
        assert_eq!(loaded, Err(Errno::EINVAL), "{level:?}");
    }
    expect_error("_ms is 1 or more").expect("the kernel's log");
    for timeout in [
        c"job_timeout_ms=0",
        c"preempt_timeout_ms=0",
        c"tdr_ddi_delay_ms=0",
    ] {
        let loaded = load_module_with(timeout);
        assert_eq!(loaded, Err(Errno::EINVAL), "{timeout:?}");
    }
    let given = c"tdr_level=1 tdr_ddi_delay_ms=7000 tdr_limit_time=70 job_timeout_ms=1000";
    load_module_with(given).expect("finit_module");
    expect_parameters(given);
    // A fault is no time-out.
    let rig = Rig::new();
    let job = rig.start(Engine::Copy, &[write(rig.reserve(4096), 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    drop(job);
    drop(rig);
    expect_working();
    let rig = Rig::new();
    let program = rig.program(LOOP);
    expect_error("the device is lost").expect("the kernel's log");
    let job = rig.start(Engine::Compute, &[dispatch(&program, LOOP, &[])]);
    assert_eq!(job.wait(), Err(Errno::ENODEV));
    assert_eq!(rig.submit(rig.compute, &[], &[]), Err(Errno::EIO));
    drop(job);
    drop((program, rig));
    unload_soon();
    load_module();
    expect_working();
}

/// WDDM's (`TdrDelay`, `TdrDdiDelay`, `TdrLimitCount`, `TdrLimitTime`), and that of an engine's
/// jobs.
fn row_2_01_time_outs_have_defaults() {
    needs_module();
    unload_soon();
    load_module_with(c"").expect("finit_module");
    expect_parameters(c"job_timeout_ms=10000 preempt_timeout_ms=2000 tdr_ddi_delay_ms=5000");
    expect_parameters(c"tdr_level=3 tdr_limit_count=5 tdr_limit_time=60");
    unload_soon();
    load_module();
}

/// All may have what the parameter says, and a client half of it.
fn system_memory_is_what_the_parameter_says() {
    needs_module();
    let half = Client::new().region(Place::System).size;
    unload_soon();
    // Between half of the machine's memory and all of it.
    for (parameter, sizes) in [
        (c"system_limit_mb=32", 32 << 20..=32 << 20),
        (c"system_limit_mb=0", half..=half),
        (c"system_limit_mb=4294967295", half + 1..=2 * half + 4096),
    ] {
        load_module_with(parameter).expect("finit_module");
        expect_parameters(parameter);
        let client = Client::new();
        let system = client.region(Place::System);
        assert!(sizes.contains(&system.size), "{parameter:?}: {system:?}");
        if system.size < half {
            let more = client.try_bo(Place::System, system.size / 2 + 4096);
            assert_eq!(more, Err(Errno::ENOMEM));
            client.bo(Place::System, system.size / 4);
        }
        drop(client);
        unload_soon();
    }
    load_module();
}

/// Ends the test where the module cannot be loaded again.
fn needs_module() {
    if !Path::new(PRODUCTS).join("skua.ko").exists() {
        skip("skua.ko is not at hand");
    }
}

#[track_caller]
fn expect_parameters(given: &CStr) {
    let parameters = Function::first().debugfs("parameters").expect("debugfs");
    for wanted in given.to_str().expect("a string").split(' ') {
        let line = wanted.replace('=', ": ");
        let found = parameters.lines().any(|one| one == line);
        assert!(found, "no {line} in {parameters}");
    }
}

/// One within a second is borne, and who waits longer may have any number of them.
fn row_2_02_the_window_moves_on() {
    needs_module();
    unload_soon();
    load_module_with(c"tdr_limit_count=1 tdr_limit_time=1").expect("finit_module");
    expect_error("the adapter was reset").expect("the kernel's log");
    for n in 1..=3 {
        let resets = Function::first().debugfs("reset").expect("debugfs");
        assert_eq!(resets.trim(), n.to_string());
        expect_working();
        std::thread::sleep(Duration::from_millis(1100));
    }
    unload_soon();
    load_module();
    expect_working();
}

/// A bind that waits for a fence of another driver; its own fence.
fn waiting_bind(client: &Client, vm: u32, line: &SoftwareTimeline) -> OwnedFd {
    let bo = client.bo(Place::System, 4096);
    let foreign = client.syncobj_of(line.fence(5));
    let done = client.syncobj();
    client
        .bind(
            vm,
            &[map(bo, 0, 1 << 32, 4096)],
            &[wait(foreign), signal(done)],
        )
        .expect("VM_BIND");
    client.sync_file(done)
}

const ENDED: i32 = -(Errno::ENODEV as i32);

fn binds_of_a_destroyed_address_space_end() {
    needs_module();
    let line = SoftwareTimeline::new();
    let client = Client::new();
    let (kept, destroyed) = (
        client.vm_create().expect("VM_CREATE"),
        client.vm_create().expect("VM_CREATE"),
    );
    let fences = [kept, destroyed].map(|vm| waiting_bind(&client, vm, &line));
    assert_eq!(client.vm_destroy(destroyed), Ok(()));
    assert_eq!(fences.each_ref().map(status_of), [0, 0]);
    Function::first().unbind().expect("unbind");
    assert_eq!(fences.each_ref().map(status_of), [ENDED, ENDED]);
    drop(client);
    // What it waited for comes when the driver is gone.
    unload_soon();
    line.advance(10);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fences.each_ref().map(status_of), [ENDED, ENDED]);
    load_module();
    expect_working();
}

/// What has ended is kept, as the device may still reach memory of it, and the driver is gone.
fn what_a_driver_leaves_behind_calls_nobody() {
    needs_module();
    if watches_dma_mappings() {
        skip("this kernel has a driver give all back, whatever still reaches it");
    }
    let tell = |lies: &str| request(&format!("gpu-lie {lies}")).expect("gpu-lie");
    let line = SoftwareTimeline::new();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let bound = waiting_bind(&client, vm, &line);
    let rig = Rig::new();
    let foreign = rig.syncobj_of(line.fence(5));
    let work = rig.start_after(rig.copy, &[Command::Nop { words: 2 }], &[wait(foreign)]);
    let done = rig.sync_file(work.expect("SUBMIT").syncobj);
    expect_error("").expect("the kernel's log");
    tell("adapter-reset-never bus-master-stays status-stays");
    Function::first().unbind().expect("unbind");
    let ends = || [&bound, &done].map(status_of);
    assert_eq!(ends(), [ENDED, ENDED]);
    drop((client, rig));
    unload_soon();
    tell("");
    line.advance(10);
    assert_eq!(ends(), [ENDED, ENDED]);
    load_module();
    expect_working();
}

fn binds_that_wait_end_with_their_client() {
    let line = SoftwareTimeline::new();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let other = client.vm_create().expect("VM_CREATE");
    let fences = [vm, other].map(|vm| waiting_bind(&client, vm, &line));
    assert_eq!(client.vm_destroy(other), Ok(()));
    drop(client);
    let cancelled = -(Errno::ECANCELED as i32);
    assert_eq!(fences.each_ref().map(status_of), [cancelled, cancelled]);
    // While the last references of its fences go, a software timeline is not to be advanced:
    // sync_timeline_signal() would take more.
    Function::first().at_rest();
    line.advance(10);
    expect_working();
}

/// A bind is refused, or it ends with its client: also one that is on its way into an address space
/// whose handle goes at that moment.
fn binds_that_meet_the_end_of_their_address_space_end() {
    let line = SoftwareTimeline::new();
    let client = Client::new();
    let bo = client.bo(Place::System, 4096);
    let foreign = client.syncobj_of(line.fence(5));
    // Takes its time between the handle and the queue.
    let ops: Vec<_> = (1..64).map(|n| map(bo, 0, n << 21, 4096)).collect();
    let mut accepted = Vec::new();
    let start = Instant::now();
    let vm = client.vm_create().expect("VM_CREATE");
    client.bind(vm, &ops, &[wait(foreign)]).expect("VM_BIND");
    let time = start.elapsed();
    for round in 0..100u32 {
        let vm = client.vm_create().expect("VM_CREATE");
        let done = client.syncobj();
        let begun = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            let bind = scope.spawn(|| {
                begun.store(true, Ordering::Release);
                client.bind(vm, &ops, &[wait(foreign), signal(done)])
            });
            while !begun.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            std::thread::sleep(time * round / 50);
            client.vm_destroy(vm).expect("VM_DESTROY");
            bind.join().expect("a result")
        });
        match result {
            Ok(()) => accepted.push(client.sync_file(done)),
            Err(errno) => assert_eq!(errno, Errno::ENOENT, "round {round}"),
        }
    }
    println!("# {} of 100 binds were accepted", accepted.len());
    assert_ne!(accepted.len(), 0);
    drop(client);
    let cancelled = -(Errno::ECANCELED as i32);
    let left = accepted
        .iter()
        .filter(|fence| status_of(fence) != cancelled);
    assert_eq!(left.count(), 0);
    Function::first().at_rest();
    line.advance(10);
    expect_working();
}

fn gated_work_ends_at_an_unbind() {
    let line = SoftwareTimeline::new();
    let rig = Rig::new();
    let foreign = rig.syncobj_of(line.fence(5));
    let target = rig.buffer(Place::System, 4096);
    let jobs: Vec<_> = (0..8)
        .map(|n| {
            let commands = [write(target.va, n)];
            let context = if n % 2 == 0 { rig.copy } else { rig.compute };
            rig.start_after(context, &commands, &[wait(foreign)])
                .expect("SUBMIT")
        })
        .collect();
    let files: Vec<_> = jobs.iter().map(|job| rig.sync_file(job.syncobj)).collect();
    let unbound = Unbound::first();
    let ends: Vec<_> = files.iter().map(status_of).collect();
    assert_eq!(ends, [ENDED; 8]);
    line.advance(10);
    drop(jobs);
    drop(rig);
    drop(unbound);
    expect_working();
}

fn a_move_that_waits_ends_at_an_unbind() {
    let line = SoftwareTimeline::new();
    let rig = Rig::new();
    let foreign = rig.syncobj_of(line.fence(5));
    let regions = [Place::Vram, Place::System].map(|place| rig.region(place).id);
    let handle = rig
        .bo_create(
            1 << 20,
            DRM_SKUA_BO_CPU_ACCESS,
            regions.iter().fold(0, |bits, id| bits | 1 << id),
        )
        .expect("BO_CREATE");
    let buffer = rig.bound(handle, 1 << 20);
    let job = rig
        .start_after(rig.copy, &[write(buffer.va, 1)], &[wait(foreign)])
        .expect("SUBMIT");
    let debugfs = Function::first();
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| debugfs.debugfs("evict").is_ok());
        becomes("the move begins", || {
            rig.info(handle).is_ok_and(|info| info.region == regions[1])
        });
        // Its fence, and those of what comes behind it, signal: nobody is kept waiting.
        let after = rig.start(Engine::Compute, &[write(buffer.va, 2)]);
        let files = [job.syncobj, after.syncobj].map(|syncobj| rig.sync_file(syncobj));
        let unbound = Unbound::first();
        assert_eq!(files.map(|file| status_of(&file)), [ENDED; 2]);
        moving.join().expect("a thread");
        // What it shows means nothing, but it can be looked at.
        buffer.cpu.read(0);
        line.advance(10);
        drop(unbound);
    });
    drop(job);
    drop(rig);
    expect_working();
}

fn a_move_that_waits_for_another_driver_ends_at_an_unbind() {
    let line = SoftwareTimeline::new();
    let client = Client::new();
    let handle = movable_in_vram(&client, 4096);
    let cpu = client.map(handle);
    cpu.read(0);
    let dma_buf = client.export(handle).expect("PRIME_HANDLE_TO_FD");
    write_until(&dma_buf, &line.fence(1));
    std::thread::scope(|scope| {
        let moving = scope.spawn(evict_some);
        becomes("the move begins", || {
            place(&client, handle) == Place::System
        });
        let unbound = Unbound::first();
        moving.join().expect("a thread");
        let reading = scope.spawn(|| cpu.read(0));
        let over = eventually(|| reading.is_finished().then_some(()));
        line.advance(1);
        assert_eq!(over, Some(()), "it waits on");
        drop(unbound);
    });
    expect_working();
}

fn a_destruction_that_waits_ends_at_an_unbind() {
    let line = SoftwareTimeline::new();
    let rig = Rig::new();
    let foreign = rig.syncobj_of(line.fence(5));
    let objects = Place::ALL.map(|place| rig.bo(place, 1 << 20));
    let mapped = rig.map(objects[0]);
    let job = rig
        .start_after(
            rig.copy,
            &[write(rig.bound_at_will(objects[1], 1 << 20), 1)],
            &[wait(foreign)],
        )
        .expect("SUBMIT");
    rig.bound_at_will(objects[0], 1 << 20);
    assert_eq!(rig.destroy(&objects, 0), Ok(()));
    let unbound = Unbound::first();
    // What it shows means nothing, as of any object then.
    mapped.read(0);
    drop(job);
    drop(rig);
    drop(unbound);
    // Nobody is called any more who would have been.
    line.advance(10);
    expect_working();
}
