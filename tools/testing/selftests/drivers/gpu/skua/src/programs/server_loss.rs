// SPDX-License-Identifier: MIT

//! The GPU stands still, or is gone, in the middle of work.
//!
//! The host that runs this guest stops and kills the GPU server on request. The last test of this
//! program leaves the guest without a GPU.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use skua_selftests::events::Trace;
use skua_selftests::function::Function;
use skua_selftests::kernel_log::KernelLog;
use skua_selftests::loss::{ask, GIVING_UP};
use skua_selftests::moving::Uncleared;
use skua_selftests::raw::in_child;
use skua_selftests::rig::{copy, fill, wait_value, write};
use skua_selftests::uevents::Uevents;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_pause_is_survived: 120,
        a_pause_during_a_submission_is_survived: 120,
        a_pause_longer_than_qemus_default_patience_is_survived: 240,
        a_killed_server_ends_all_work: 240 at_rest,
        a_dead_device_can_be_unbound: 240 at_rest,
    ])
}

fn a_pause_is_survived() {
    let rig = Rig::new();
    let (source, target) = (
        rig.buffer(Place::Vram, 4 << 20),
        rig.buffer(Place::System, 4 << 20),
    );
    source.cpu.fill(|offset| offset as u64);
    let jobs: Vec<_> = (0..20)
        .map(|_| rig.start(Engine::Copy, &[copy(source.va, target.va, 4 << 20)]))
        .collect();
    ask("gpu-pause 400");
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    target
        .cpu
        .expect("a copy over a pause", |offset| offset as u64);
}

fn a_pause_during_a_submission_is_survived() {
    let rig = Rig::new().having_worked();
    let target = rig.buffer(Place::System, 4096);
    ask("gpu-pause 300");
    // Doorbells are posted: nobody waits for the device here.
    let jobs: Vec<_> = (0..20)
        .map(|n| rig.start(Engine::Compute, &[write(target.va + 8 * n, n + 1)]))
        .collect();
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!((job.wait(), target.cpu.read(8 * n)), (Ok(()), n as u64 + 1));
    }
}

/// QEMU waits for the answer to a read of a register; without its `x-msg-timeout` it would give the
/// device up for good after five seconds.
fn a_pause_longer_than_qemus_default_patience_is_survived() {
    let vendor = Function::first().sysfs().join("config");
    let read = || fs::read(&vendor).expect("config space")[..2].to_vec();
    let before = read();
    ask("gpu-pause 8000");
    assert_eq!(read(), before);
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let job = rig.start(Engine::Compute, &[write(target.va, 7)]);
    assert_eq!((job.wait(), target.cpu.read(0)), (Ok(()), 7));
}

fn a_killed_server_ends_all_work() {
    let _uncleared = Uncleared::new();
    let rig = Rig::new();
    let other = Rig::new();
    let never = rig.buffer(Place::System, 4096);
    let vram = rig.buffer(Place::Vram, 1 << 20);
    vram.cpu.fill(|_| 1);
    let mut jobs = vec![
        rig.start(Engine::Copy, &[wait_value(never.va, 1)]),
        rig.start(
            Engine::Compute,
            &[fill(2, vram.va, 1 << 20), wait_value(never.va, 1)],
        ),
        other.start(Engine::Copy, &[]),
    ];
    // Its memory is cleared behind work that never ends.
    let unclear = rig.map(rig.bo(Place::Vram, 1 << 20));
    for _ in 0..20 {
        jobs.push(rig.start(Engine::Copy, &[]));
        jobs.push(other.start(Engine::Compute, &[]));
    }
    let trace = Trace::of(&["skua_preempt", "skua_reset"]);
    let (uevents, mut log) = (Uevents::new(), KernelLog::from_now());
    ask("gpu-kill");
    // Every fence signals in bounded time, without this client doing anything.
    let outcomes: Vec<_> = jobs
        .iter()
        .map(|job| job.client().wait_for(job.syncobj, GIVING_UP))
        .collect();
    for (n, outcome) in outcomes.iter().enumerate() {
        let fair = match n {
            // They ran when the device was given up.
            0 | 1 => *outcome == Err(Errno::ENODEV),
            _ => matches!(outcome, Ok(()) | Err(Errno::ENODEV | Errno::ECANCELED)),
        };
        assert!(fair, "job {n}: {outcome:?}");
    }
    // That it is gone was seen before the time was up of anything that it was to do: this guest's
    // driver lets work take minutes.
    let done = trace.events();
    assert!(done.is_empty(), "it was taken for a hang: {done:?}");
    // Who administers the machine is told, once.
    let event = uevents.next("WEDGED").expect("nobody is told");
    assert_eq!(event["WEDGED"], "rebind", "{event:?}");
    let records = log.records();
    let lines = records
        .iter()
        .filter(|record| record.message.contains("the device is lost; "));
    assert_eq!(lines.count(), 1, "lines in the log");
    // Mappings can be used, and calls fail and do not hang.
    assert!(in_child(|| {
        vram.cpu.write(0, 5);
        vram.cpu.read(4096);
        true
    }));
    assert!(
        in_child(|| {
            // A page of no meaning, but not somebody else's.
            let nothing = unclear.read(4096) == 0;
            unclear.write(0, 5);
            nothing
        }),
        "memory that was never cleared"
    );
    wait_for_loss(&rig);
    let result = rig.bo_create(4096, 0, 2);
    assert!(
        matches!(result, Err(Errno::EIO | Errno::ENODEV)),
        "{result:?}"
    );
}

/// Returns when the driver has given the device up.
fn wait_for_loss(rig: &Rig) {
    let begin = Instant::now();
    let mut lost = false;
    while !lost && begin.elapsed() < GIVING_UP * suite::patience() {
        // What makes it look.
        let _ = rig.submit(rig.copy, &[], &[]);
        let result = rig.vm_create().and_then(|vm| rig.vm_destroy(vm));
        lost = matches!(result, Err(Errno::EIO | Errno::ENODEV));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(lost, "the device is gone, and calls still work");
}

fn a_dead_device_can_be_unbound() {
    let function = match Function::all().into_iter().next() {
        Some(function) => function,
        // The host took it out of its slot: the driver has gone through all of it.
        None => return,
    };
    let say = || {
        let client = function.open().map(Client::try_of);
        client.map(|client| client.and_then(|client| client.vm_create()))
    };
    if let Ok(Ok(_)) = say() {
        // No test before this one has killed it.
        let rig = Rig::new();
        ask("gpu-kill");
        wait_for_loss(&rig);
    }
    if let Ok(result) = say() {
        // It is dead, and says so.
        assert!(
            matches!(result, Err(Errno::EIO | Errno::ENODEV)),
            "a dead device: {result:?}"
        );
    }
    if function.is_bound() {
        function.unbind().expect("unbind");
    }
    assert!(!function.is_bound());
    // And it does not come back to life by itself.
    let bound = function.bind();
    assert!(bound.is_err(), "a dead device was bound");
}
