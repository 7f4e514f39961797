// SPDX-License-Identifier: MIT

//! Cycles of use that must leave nothing behind: neither in the device nor in the kernel.

use std::fs;
use std::process::ExitCode;

use skua_selftests::client::{map, signal, Place, PATIENCE};
use skua_selftests::rig::{fill, write};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_thousand_files: 600,
        a_thousand_objects_of_each_kind: 600,
        a_thousand_submissions: 300,
        a_thousand_binds: 300,
        a_hundred_faults: 300,
        a_hundred_killed_clients: 300,
    ])
}

/// Kernel memory in KiB: what slab and vmalloc hold, and page tables.
fn kernel_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    ["Slab:", "VmallocUsed:"]
        .iter()
        .filter_map(|key| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
}

/// Runs in which something else may happen.
const RUNS: usize = 10;

/// Runs cycles after some to warm up, and asserts that no kernel memory stayed: less than 128 bytes
/// a cycle, over the best of [`RUNS`], as other things happen in a kernel too: caches fill by tens
/// of KiB, less each time, while what leaks does so in every run.
///
/// A kernel that finds leaks itself is slow, and keeps back what is freed, to catch its use: it
/// gets a thirtieth of the cycles, and looks for leaks at the end of its boot.
fn without_growth(cycles: u32, mut cycle: impl FnMut()) {
    let observer = Client::new();
    let finds_leaks = skua_guest::kmemleak::is_on();
    let few = cycles / if finds_leaks { 30 } else { 10 };
    for _ in 0..few {
        cycle();
    }
    let before = Witness::settled(&observer);
    if finds_leaks {
        for _ in 0..few {
            cycle();
        }
        before.expect_unchanged(&observer);
        return;
    }
    let mut growths = Vec::new();
    for _ in 0..RUNS {
        let start = settled();
        for _ in 0..cycles {
            cycle();
        }
        before.expect_unchanged(&observer);
        let growth = settled().saturating_sub(start);
        growths.push(growth);
        if growth * 1024 / u64::from(cycles) < 128 {
            return;
        }
    }
    panic!("kernel memory grew by {growths:?} KiB in {cycles} cycles each");
}

/// Kernel memory when what is freed late is free.
fn settled() -> u64 {
    // Inodes and directory entries are not ours, and shrink.
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
    let mut least = kernel_memory();
    for _ in 0..5 {
        std::thread::sleep(std::time::Duration::from_millis(30));
        least = least.min(kernel_memory());
    }
    least
}

fn a_thousand_files() {
    quiet();
    without_growth(1000, || {
        let rig = Rig::new();
        let buffer = rig.buffer(Place::Vram, 4096);
        assert_eq!(rig.run(Engine::Copy, &[write(buffer.va, 1)]), Ok(()));
        assert_eq!(buffer.cpu.read(0), 1);
    });
}

fn a_thousand_objects_of_each_kind() {
    quiet();
    let client = Client::new();
    without_growth(1000, || {
        let vm = client.vm_create().expect("VM_CREATE");
        for place in Place::ALL {
            let handle = client.bo(place, 64 << 10);
            client.map(handle).write(4096, 1);
            let op = map(handle, 0, 1 << 40, 64 << 10);
            assert_eq!(client.bind_and_wait(vm, &[op]), Ok(()));
            let shared = client.export(handle).expect("PRIME_HANDLE_TO_FD");
            assert_eq!(client.import(&shared), Ok(handle));
            assert_eq!(client.close(handle), Ok(()));
        }
        let contexts: Vec<u32> = (0..2)
            .map(|engine| client.context_create(vm, engine).expect("CONTEXT_CREATE"))
            .collect();
        let done = client.syncobj();
        assert_eq!(client.submit(contexts[0], &[], &[signal(done)]), Ok(()));
        assert_eq!(client.wait(done), Ok(()));
        assert_eq!(client.syncobj_destroy(done), Ok(()));
        for context in contexts {
            assert_eq!(client.context_destroy(context), Ok(()));
        }
        assert_eq!(client.vm_destroy(vm), Ok(()));
    });
}

fn a_thousand_submissions() {
    quiet();
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, 4096);
    let line = rig.syncobj();
    let mut point = 0;
    without_growth(1000, || {
        point += 2;
        let commands = rig.write(&[fill(1, buffer.va, 64)]);
        let first = [skua_selftests::client::signal_point(line, point - 1)];
        let second = [
            skua_selftests::client::wait_point(line, point - 1),
            skua_selftests::client::signal_point(line, point),
        ];
        assert_eq!(rig.submit(rig.copy, &[commands], &first), Ok(()));
        assert_eq!(rig.submit(rig.compute, &[commands], &second), Ok(()));
        assert!(rig.signals_within(line, point, PATIENCE));
    });
}

fn a_thousand_binds() {
    quiet();
    let rig = Rig::new();
    let handle = rig.bo(Place::Vram, 4 << 20);
    let mut n = 0;
    without_growth(1000, || {
        n += 1;
        // Fewer addresses than any warming up has cycles.
        let va = (1 << 40) + (n % 32) * (1 << 31);
        let ops = [
            map(handle, 0, va, 4 << 20),
            map(handle, 4096, va + (1 << 20), 8192),
        ];
        assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
        let hole = skua_selftests::client::unmap(va, 4 << 20);
        assert_eq!(rig.bind_and_wait(rig.vm, &[hole]), Ok(()));
    });
}

fn a_hundred_faults() {
    quiet();
    let rig = Rig::new();
    let nothing = rig.reserve(4096);
    let target = rig.buffer(Place::System, 4096);
    // An address space keeps a save area for each context that it had at once, and one that was
    // destroyed may have its own for a while: it gets enough of them.
    let spare: Vec<u32> = (0..6).map(|_| rig.new_context(Engine::Copy)).collect();
    for context in &spare {
        let work = [write(target.va, 1)];
        assert_eq!(rig.start_in(*context, &work).wait(), Ok(()));
    }
    for context in spare {
        assert_eq!(rig.context_destroy(context), Ok(()));
    }
    without_growth(300, || {
        for engine in Engine::ALL {
            let context = rig.new_context(engine);
            let jobs = [
                rig.start_in(context, &[write(nothing, 1)]),
                rig.start_in(rig.context(engine), &[]),
            ];
            assert_eq!(jobs[0].wait(), Err(Errno::EFAULT));
            assert_eq!(jobs[1].wait(), Ok(()));
            assert_eq!(rig.context_destroy(context), Ok(()));
        }
        // Who asks has the save areas of what was destroyed come back.
        rig.regions();
    });
}

fn a_hundred_killed_clients() {
    quiet();
    without_growth(100, || {
        // It dies with everything in its hands, and work under way.
        let killed = skua_selftests::raw::in_child(|| {
            let rig = Rig::new().having_worked();
            let buffers = Place::ALL.map(|place| rig.buffer(place, 1 << 20));
            for _ in 0..8 {
                let work = [
                    fill(1, buffers[0].va, 1 << 20),
                    fill(2, buffers[1].va, 1 << 20),
                ];
                std::mem::forget(rig.start(Engine::Copy, &work));
            }
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).expect("SIGKILL");
            true
        });
        assert!(!killed);
    });
}
