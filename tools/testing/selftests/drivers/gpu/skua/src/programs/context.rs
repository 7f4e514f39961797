// SPDX-License-Identifier: MIT

//! Contexts: creation, state, destruction.

use std::process::ExitCode;

use skua_selftests::client::{signal, wait};
use skua_selftests::rig::{fill, wait_value, write};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::ticks;
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_new_context_is_active_and_unused,
        completed_counts_submissions,
        ticks_count_work,
        destroying_cancels_what_has_not_started,
        a_job_whose_wait_failed_ends_in_its_order,
        destroying_twice_is_an_error,
        closing_the_file_cancels_what_has_not_started,
        as_many_contexts_as_there_can_be: 90,
        contexts_of_one_engine_are_in_order_each: 60,
    ])
}

fn a_new_context_is_active_and_unused() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    for engine in &client.engines {
        let context = client
            .context_create(vm, engine.index)
            .expect("CONTEXT_CREATE");
        assert_eq!(
            client.state(context),
            Ok(drm_skua_context_state {
                context,
                status: DRM_SKUA_CONTEXT_ACTIVE,
                ..Default::default()
            })
        );
    }
}

fn completed_counts_submissions() {
    let rig = Rig::new();
    for (n, engine) in (1..).zip(Engine::ALL.into_iter().cycle().take(2)) {
        let context = rig.new_context(engine);
        for count in 1..=5 * n {
            let job = rig.start_in(context, &[]);
            assert_eq!(job.wait(), Ok(()));
            assert_eq!(rig.state(context).expect("CONTEXT_STATE").completed, count);
        }
    }
}

fn ticks_count_work() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, 1 << 20);
    let context = rig.new_context(Engine::Copy);
    let ticks = || rig.state(context).expect("CONTEXT_STATE").ticks;
    let [first, second, third] = [(); 3].map(|()| {
        let before = ticks();
        let job = rig.start_in(context, &[fill(1, buffer.va, 1 << 20)]);
        assert_eq!(job.wait(), Ok(()));
        ticks() - before
    });
    let lines = (1 << 20) / skua_spec::command::BYTES_PER_TICK;
    let least = lines * (ticks::LINE + ticks::SYSTEM);
    assert!(second >= least, "{second} ticks for {least} ticks of work");
    assert!(
        first > second,
        "{first} ticks, then {second}: the TLB was empty at first"
    );
    // Of ring and commands, which go on, each may have come to a page that the TLB has not.
    let miss = ticks::TLB_MISS + 3 * ticks::WALK + 4 * ticks::SYSTEM;
    assert!(
        second.abs_diff(third) <= 2 * miss,
        "{second} and {third} ticks for the same work"
    );
    assert_eq!(
        rig.state(rig.copy).expect("CONTEXT_STATE").ticks,
        0,
        "of another context"
    );
}

fn destroying_cancels_what_has_not_started() {
    let rig = Rig::new();
    let (gate, target) = (
        rig.buffer(Place::System, 4096),
        rig.buffer(Place::System, 4096),
    );
    let context = rig.context_having_worked(Engine::Copy);
    let running = rig.start_in(context, &[wait_value(gate.va, 1), write(target.va, 1)]);
    // More than the engine's ring takes at a time, so that some have certainly not started.
    let queued: Vec<_> = (0..64)
        .map(|n| rig.start_in(context, &[write(target.va + 8 + 8 * n, 2)]))
        .collect();
    assert_eq!(rig.context_destroy(context), Ok(()));
    assert_eq!(rig.state(context).map(drop), Err(Errno::ENOENT));
    for (n, job) in queued.iter().enumerate() {
        assert!(!job.has_ended(), "job {n} ended before what is before it");
    }
    gate.cpu.write(0, 1);
    assert_eq!(running.wait(), Ok(()), "what ran was not left to end");
    assert_eq!(target.cpu.read(0), 1);
    // From some point on all are cancelled, and those did nothing.
    let outcomes: Vec<_> = queued.iter().map(skua_selftests::rig::Job::wait).collect();
    let done = outcomes
        .iter()
        .take_while(|outcome| outcome.is_ok())
        .count();
    assert!(done < 32, "{done} of 64 had started");
    for (n, outcome) in outcomes.iter().enumerate() {
        let expected = if n < done {
            (Ok(()), 2)
        } else {
            (Err(Errno::ECANCELED), 0)
        };
        assert_eq!((*outcome, target.cpu.read(8 + 8 * n)), expected, "job {n}");
    }
}

fn a_job_whose_wait_failed_ends_in_its_order() {
    let rig = Rig::new();
    let (gate, target) = (
        rig.buffer(Place::System, 4096),
        rig.buffer(Place::System, 4096),
    );
    let faulty = rig.new_context(Engine::Compute);
    let failed = rig.start_in(faulty, &[fill(1, rig.reserve(4096), 64)]);
    assert_eq!(failed.wait(), Err(Errno::EFAULT));
    let running = rig.start(Engine::Copy, &[wait_value(gate.va, 1), write(target.va, 1)]);
    let cancelled = rig
        .start_after(
            rig.copy,
            &[write(target.va + 8, 1)],
            &[wait(failed.syncobj)],
        )
        .expect("SUBMIT");
    let next = rig.start(Engine::Copy, &[write(target.va + 16, 1)]);
    // Another engine's interrupt: the driver looked, and could have cancelled.
    assert_eq!(rig.run(Engine::Compute, &[]), Ok(()));
    assert!(!cancelled.has_ended(), "before what is before it");
    gate.cpu.write(0, 1);
    assert_eq!(next.wait(), Ok(()));
    assert!(cancelled.has_ended() && running.has_ended());
    assert_eq!(cancelled.wait(), Err(Errno::ECANCELED));
    assert_eq!(running.wait(), Ok(()));
    assert_eq!([0, 8, 16].map(|at| target.cpu.read(at)), [1, 0, 1]);
}

fn destroying_twice_is_an_error() {
    let rig = Rig::new();
    let context = rig.new_context(Engine::Compute);
    assert_eq!(rig.context_destroy(context), Ok(()));
    assert_eq!(rig.context_destroy(context), Err(Errno::ENOENT));
    assert_eq!(rig.submit(context, &[], &[]), Err(Errno::ENOENT));
}

fn closing_the_file_cancels_what_has_not_started() {
    // A mapping keeps its file open: the gate is another client's, and shared.
    let other = Client::new();
    let gate = other.bo(Place::System, 4096);
    let shared = other.export(gate).expect("PRIME_HANDLE_TO_FD");
    let cpu = other.map(gate);
    let (running, last) = {
        let rig = Rig::new().having_worked();
        let handle = rig.import(&shared).expect("PRIME_FD_TO_HANDLE");
        let va = rig.bound_at_will(handle, 4096);
        let running = rig.start(Engine::Copy, &[wait_value(va, 1), write(va + 8, 1)]);
        let queued: Vec<_> = (0..64).map(|_| rig.start(Engine::Copy, &[])).collect();
        let last = queued.last().expect("a job");
        (
            other.syncobj_of(rig.sync_file(running.syncobj)),
            other.syncobj_of(rig.sync_file(last.syncobj)),
        )
    };
    assert!(!other.has_signalled(running));
    assert!(!other.has_signalled(last), "before what is before it");
    cpu.write(0, 1);
    assert_eq!(other.wait(last), Err(Errno::ECANCELED));
    assert!(other.has_signalled(running), "after what is after it");
    assert_eq!(other.wait(running), Ok(()), "what ran was not left to end");
    assert_eq!(cpu.read(8), 1);
}

fn as_many_contexts_as_there_can_be() {
    quiet();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let before = Witness::of(&client);
    let mut contexts = Vec::new();
    let end = loop {
        let engine = u32::try_from(contexts.len()).expect("a count") % client.device.engine_count;
        match client.context_create(vm, engine) {
            Ok(context) => contexts.push(context),
            Err(errno) => break errno,
        }
        assert!(contexts.len() <= 1 << 16, "contexts without end");
    };
    assert_eq!(end, Errno::ENOSPC, "after {} contexts", contexts.len());
    assert!(contexts.len() >= 64, "only {} contexts", contexts.len());
    // All of them work.
    let done: Vec<u32> = contexts
        .iter()
        .map(|context| {
            let done = client.syncobj();
            client
                .submit(*context, &[], &[signal(done)])
                .expect("SUBMIT");
            done
        })
        .collect();
    for (context, done) in contexts.iter().zip(done) {
        assert_eq!(client.wait(done), Ok(()), "context {context}");
        assert_eq!(client.syncobj_destroy(done), Ok(()));
        assert_eq!(client.context_destroy(*context), Ok(()));
    }
    before.expect_unchanged(&client);
}

fn contexts_of_one_engine_are_in_order_each() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let contexts: Vec<u32> = (0..8).map(|_| rig.new_context(Engine::Copy)).collect();
    let mut jobs = Vec::new();
    for round in 1..=40 {
        for (n, context) in (0..).zip(&contexts) {
            jobs.push(rig.start_in(*context, &[write(target.va + 8 * n, round)]));
        }
    }
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    for n in 0..8 {
        assert_eq!(
            target.cpu.read(8 * n),
            40,
            "context {n} ended with another than its last"
        );
    }
}
