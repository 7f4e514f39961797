// SPDX-License-Identifier: MIT

//! fdinfo: what monitors like gputop read, by `Documentation/gpu/drm-usage-stats.rst`.

use std::process::ExitCode;

use skua_selftests::client::map;
use skua_selftests::function::Function;
use skua_selftests::program::{address, POLL};
use skua_selftests::rig::{copy, dispatch, fill, wait_value};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_client_is_named,
        every_key_is_there_and_well_formed,
        cycles_are_the_work_done,
        cycles_are_exact_over_preemptions: 60,
        engine_time_is_what_a_clock_says,
        engine_time_is_whose_work_is_at_the_head,
        what_destroyed_contexts_used_is_summed,
        a_destroyed_context_counts_while_it_runs,
        clients_have_their_own_time,
        memory_is_counted_where_it_is,
        memory_that_only_a_mapping_keeps_is_counted at_rest,
        shared_memory_is_told_apart at_rest,
        active_memory_is_in_use,
        other_processes_can_read_it,
    ])
}

/// The region's name in fdinfo.
fn region(place: Place) -> &'static str {
    match place {
        Place::System | Place::Aperture => "memory",
        Place::Vram => "vram0",
    }
}

fn engine(engine: Engine) -> &'static str {
    match engine {
        Engine::Compute => "compute",
        Engine::Copy => "copy",
    }
}

fn the_client_is_named() {
    let (one, two) = (Client::new(), Client::new());
    let (first, second) = (one.fdinfo(), two.fdinfo());
    assert_eq!(first.get("drm-driver"), Some("skua"));
    assert_eq!(first.get("drm-pdev"), Some(&*Function::first().address));
    let id = first.number("drm-client-id");
    assert!(
        id.is_some() && id != second.number("drm-client-id"),
        "{id:?}"
    );
    // A duplicate is the same client.
    let duplicate = skua_selftests::fdinfo::Fdinfo::of(one.duplicate());
    assert_eq!(duplicate.number("drm-client-id"), id);
}

fn every_key_is_there_and_well_formed() {
    let rig = Rig::new();
    let info = rig.fdinfo();
    for one in Engine::ALL.map(engine) {
        let key = format!("drm-engine-{one}");
        assert!(
            info.nanoseconds(&key).is_some(),
            "{key}: {:?}",
            info.get(&key)
        );
        let key = format!("drm-cycles-{one}");
        assert!(info.number(&key).is_some(), "{key}: {:?}", info.get(&key));
    }
    for place in Place::ALL.map(region) {
        for part in ["total", "shared", "resident", "active"] {
            let key = format!("drm-{part}-{place}");
            assert!(info.bytes(&key).is_some(), "{key}: {:?}", info.get(&key));
        }
    }
    // Nothing else, but what the core prints.
    for key in info.keys() {
        let known = ["drm-driver", "drm-client-id", "drm-pdev", "drm-client-name"].contains(&key)
            || [
                "drm-engine-",
                "drm-cycles-",
                "drm-total-",
                "drm-shared-",
                "drm-resident-",
                "drm-active-",
                "drm-purgeable-",
            ]
            .iter()
            .any(|prefix| key.starts_with(prefix));
        assert!(known, "{key}");
    }
}

fn cycles_are_the_work_done() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, 1 << 20);
    for one in Engine::ALL {
        let before = rig.fdinfo();
        let cycles = format!("drm-cycles-{}", engine(one));
        let mut last = before.number(&cycles).expect("cycles");
        for _ in 0..4 {
            assert_eq!(rig.run(one, &[fill(1, buffer.va, 1 << 20)]), Ok(()));
            let info = rig.fdinfo();
            let now = info.number(&cycles).expect("cycles");
            let least = (1 << 20) / skua_spec::command::BYTES_PER_TICK;
            assert!(now >= last + least, "{one:?}: {last}, then {now}");
            last = now;
        }
        let ticks = rig.state(rig.context(one)).expect("CONTEXT_STATE").ticks;
        assert_eq!(last, ticks, "{one:?}: the context's time is the client's");
    }
}

/// Whoever takes the engine meanwhile: each has what its work takes alone.
fn cycles_are_exact_over_preemptions() {
    let (rig, urgent) = (Rig::new(), Rig::new().having_worked());
    let low = rig.context_having_worked(Engine::Compute);
    assert_eq!(rig.prioritise(low, -1), Ok(()));
    let vram = rig.buffer(Place::Vram, 4 << 20);
    let target = urgent.buffer(Place::Vram, 1 << 20);
    let work: Vec<_> = (0..100).map(|n| fill(n, vram.va, 4 << 20)).collect();
    let little = [fill(7, target.va, 1 << 20)];
    let ticks = || {
        let of = |rig: &Rig, context| rig.state(context).expect("CONTEXT_STATE").ticks;
        [of(&rig, low), of(&urgent, urgent.compute)]
    };
    let preemptions = || Function::first().counters(["driver_preemptions"])[0];
    let run = || {
        assert_eq!(rig.start_in(low, &work).wait(), Ok(()));
        assert_eq!(urgent.run(Engine::Compute, &little), Ok(()));
    };
    // Addresses are new to the engine the first time.
    run();
    let before = ticks();
    run();
    let after = ticks();
    let alone = [0, 1].map(|n| after[n] - before[n]);
    let (first, before) = (preemptions(), after);
    let (mut rounds, mut jobs) = (0, 0);
    while preemptions() < first + 20 {
        rounds += 1;
        assert!(rounds <= 500, "nobody is preempted");
        let long = rig.start_in(low, &work);
        while !long.has_ended() {
            assert_eq!(urgent.run(Engine::Compute, &little), Ok(()));
            jobs += 1;
        }
        assert_eq!(long.wait(), Ok(()));
    }
    // But for what is in the engine's TLB or not.
    let after = ticks();
    for (n, (times, part)) in [(rounds, 1000), (jobs, 100)].into_iter().enumerate() {
        let (used, expected) = (after[n] - before[n], times * alone[n]);
        println!("# {times} times {} ticks alone: {used}", alone[n]);
        assert!(
            used.abs_diff(expected) * part <= expected,
            "{used} ticks instead of {expected}"
        );
    }
    for (client, contexts) in [
        (&rig, vec![rig.compute, low]),
        (&urgent, vec![urgent.compute]),
    ] {
        let state = |context| client.state(context).expect("CONTEXT_STATE").ticks;
        let cycles = client.fdinfo().number("drm-cycles-compute");
        assert_eq!(cycles, Some(contexts.into_iter().map(state).sum()));
    }
}

/// Nanoseconds of a clock that monitors use, from some moment on.
fn clock() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    // CAST: after the boot.
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// A client's engine time, and between which moments it was asked for.
fn engine_time(client: &Client, one: Engine) -> (u64, [u64; 2]) {
    let before = clock();
    let key = format!("drm-engine-{}", engine(one));
    let time = client.fdinfo().nanoseconds(&key).expect("a time");
    (time, [before, clock()])
}

/// That from `start` to `end` the engine was busy for this client all the time.
#[track_caller]
fn expect_busy(start: (u64, [u64; 2]), end: (u64, [u64; 2])) {
    let (least, most) = (end.1[0] - start.1[1], end.1[1] - start.1[0]);
    let busy = end.0 - start.0;
    assert!(
        (least..=most).contains(&busy),
        "busy for {busy} ns of {least} to {most}"
    );
}

/// Waits until the job is at the head of its ring, which the first time that it has tells.
#[track_caller]
fn wait_until_at_head(client: &Client, one: Engine, before: u64) {
    let end = clock() + 10_000_000_000 * u64::from(suite::patience());
    while engine_time(client, one).0 == before {
        assert!(clock() < end, "no engine time");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn engine_time_is_what_a_clock_says() {
    quiet();
    let (rig, idle) = (Rig::new(), Rig::new());
    let gate = rig.buffer(Place::System, 4096);
    for one in Engine::ALL {
        gate.cpu.write(0, 0);
        let other = Engine::ALL[usize::from(one == Engine::ALL[0])];
        let before = [&rig, &idle].map(|rig| engine_time(rig, other).0);
        let untouched = engine_time(&idle, one).0;
        let was = engine_time(&rig, one).0;
        let job = rig.start(one, &[wait_value(gate.va, 1)]);
        wait_until_at_head(&rig, one, was);
        let start = engine_time(&rig, one);
        std::thread::sleep(std::time::Duration::from_millis(100));
        expect_busy(start, engine_time(&rig, one));
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        // Over, and no more than that.
        let after = engine_time(&rig, one);
        assert!(after.0 - start.0 <= after.1[1] - start.1[0]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(engine_time(&rig, one).0, after.0, "{one:?} is idle");
        assert_eq!(engine_time(&idle, one).0, untouched, "another client");
        assert_eq!([&rig, &idle].map(|rig| engine_time(rig, other).0), before);
    }
}

fn engine_time_is_whose_work_is_at_the_head() {
    quiet();
    let rigs = [Rig::new(), Rig::new()];
    let gates: Vec<_> = rigs
        .iter()
        .map(|rig| rig.buffer(Place::System, 4096))
        .collect();
    let times = || [0, 1].map(|n| engine_time(&rigs[n], Engine::Compute));
    let was = times();
    let [first, second] = [0, 1].map(|n| {
        let program = rigs[n].program(POLL);
        let poll = dispatch(&program, POLL, &address(gates[n].va));
        let job = rigs[n].start(Engine::Compute, &[poll]);
        wait_until_at_head(&rigs[n], Engine::Compute, was[n].0);
        (job, program)
    });
    // They take turns, and nobody's turn is the other's time.
    let start = times();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let both = suite::eventually(|| {
        let end = times();
        let busy = [0, 1].map(|n| end[n].0 - start[n].0);
        let most = end[1].1[1] - start[0].1[0];
        assert!(busy.iter().sum::<u64>() <= most, "{busy:?} of {most} ns");
        // Nor is it nobody's, but for what it takes to hand the engine over.
        let least = end[0].1[0] - start[1].1[1];
        assert!(
            busy.iter().sum::<u64>() * 2 >= least,
            "{busy:?} of {least} ns"
        );
        (!busy.contains(&0)).then_some(())
    });
    assert!(both.is_some(), "one had no turn");
    gates[0].cpu.write(0, 1);
    assert_eq!(first.0.wait(), Ok(()));
    let had = engine_time(&rigs[0], Engine::Compute).0;
    // Once it is alone, all time is its own; perhaps its turn has not come yet.
    wait_until_at_head(
        &rigs[1],
        Engine::Compute,
        engine_time(&rigs[1], Engine::Compute).0,
    );
    let start = engine_time(&rigs[1], Engine::Compute);
    std::thread::sleep(std::time::Duration::from_millis(50));
    expect_busy(start, engine_time(&rigs[1], Engine::Compute));
    assert_eq!(engine_time(&rigs[0], Engine::Compute).0, had);
    gates[1].cpu.write(0, 1);
    assert_eq!(second.0.wait(), Ok(()));
}

/// What the client used of the copy engine: ticks and nanoseconds.
fn used(client: &Client) -> [u64; 2] {
    let info = client.fdinfo();
    let time = info.nanoseconds("drm-engine-copy");
    [info.number("drm-cycles-copy"), time].map(|value| value.expect("a number"))
}

fn what_destroyed_contexts_used_is_summed() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, 1 << 20);
    let gate = rig.buffer(Place::System, 4096);
    let [mut ticks, mut busy] = used(&rig);
    for _ in 0..3 {
        let context = rig.new_context(Engine::Copy);
        gate.cpu.write(0, 0);
        let work = [wait_value(gate.va, 1), fill(1, buffer.va, 1 << 20)];
        let job = rig.start_in(context, &work);
        // What ends at once with what was before it has no time of its own.
        wait_until_at_head(&rig, Engine::Copy, busy);
        gate.cpu.write(0, 1);
        assert_eq!(job.wait(), Ok(()));
        ticks += rig.state(context).expect("CONTEXT_STATE").ticks;
        let before = used(&rig);
        assert_eq!(before[0], ticks);
        assert!(before[1] > busy, "{busy} ns, then {before:?}");
        busy = before[1];
        assert_eq!(rig.context_destroy(context), Ok(()));
        assert_eq!(used(&rig), before);
    }
}

fn a_destroyed_context_counts_while_it_runs() {
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let target = rig.buffer(Place::System, 1 << 20);
    let before = used(&rig);
    let context = rig.new_context(Engine::Copy);
    let work = [wait_value(gate.va, 1), fill(1, target.va, 1 << 20)];
    let job = rig.start_in(context, &work);
    wait_until_at_head(&rig, Engine::Copy, before[1]);
    assert_eq!(rig.context_destroy(context), Ok(()));
    let start = engine_time(&rig, Engine::Copy);
    std::thread::sleep(std::time::Duration::from_millis(50));
    expect_busy(start, engine_time(&rig, Engine::Copy));
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    let least = (1 << 20) / skua_spec::command::BYTES_PER_TICK;
    let after = used(&rig);
    assert!(after[0] >= before[0] + least, "{before:?}, then {after:?}");
}

fn clients_have_their_own_time() {
    let (busy, idle) = (Rig::new(), Rig::new());
    let buffer = busy.buffer(Place::System, 1 << 20);
    let before = idle.fdinfo();
    for one in Engine::ALL {
        assert_eq!(busy.run(one, &[fill(1, buffer.va, 1 << 20)]), Ok(()));
    }
    assert_eq!(idle.fdinfo(), before);
}

fn memory_is_counted_where_it_is() {
    let client = Client::new();
    for place in Place::ALL {
        let total = format!("drm-total-{}", region(place));
        let resident = format!("drm-resident-{}", region(place));
        let other = match place {
            Place::System | Place::Aperture => "drm-total-vram0",
            Place::Vram => "drm-total-memory",
        };
        let before = client.fdinfo();
        let handle = client.bo(place, 3 << 20);
        let with = client.fdinfo();
        assert_eq!(
            with.bytes(&total),
            before.bytes(&total).map(|bytes| bytes + (3 << 20))
        );
        assert_eq!(
            with.bytes(&resident),
            before.bytes(&resident).map(|bytes| bytes + (3 << 20))
        );
        assert_eq!(with.bytes(other), before.bytes(other));
        assert_eq!(client.close(handle), Ok(()));
        assert_eq!(client.fdinfo().bytes(&total), before.bytes(&total));
    }
}

fn memory_that_only_a_mapping_keeps_is_counted() {
    quiet();
    let (rig, other) = (Rig::new(), Client::new());
    for place in Place::ALL {
        let keys =
            ["total", "resident", "shared"].map(|key| format!("drm-{key}-{}", region(place)));
        let look = || {
            let info = rig.fdinfo();
            keys.each_ref()
                .map(|key| info.bytes(key).expect("a number of bytes"))
        };
        let [total, resident, shared] = look();
        let with = [total + (1 << 20), resident + (1 << 20), shared];
        let vm = rig.vm_create().expect("VM_CREATE");
        let handle = rig.bo(place, 1 << 20);
        // Twice, and counted once.
        for at in [1_u64 << 40, 1 << 41] {
            let op = map(handle, 0, at, 1 << 20);
            assert_eq!(rig.bind_and_wait(vm, &[op]), Ok(()));
            assert_eq!(look(), with, "{place:?}: bound");
        }
        let dma_buf = rig.export(handle).expect("PRIME_HANDLE_TO_FD");
        let there = other.import(&dma_buf).expect("PRIME_FD_TO_HANDLE");
        drop(dma_buf);
        assert_eq!(rig.close(handle), Ok(()));
        let with_shared = [with[0], with[1], shared + (1 << 20)];
        assert_eq!(look(), with_shared, "{place:?}: another client's, too");
        assert_eq!(other.close(there), Ok(()));
        assert_eq!(look(), with, "{place:?}: kept by the mappings");
        // By the context's, if nothing else.
        let context = rig.context_create(vm, 0).expect("CONTEXT_CREATE");
        assert_eq!(rig.vm_destroy(vm), Ok(()));
        assert_eq!(look(), with, "{place:?}: kept by the context");
        assert_eq!(rig.context_destroy(context), Ok(()));
        wait_for_one_address_space();
        assert_eq!(look(), [total, resident, shared], "{place:?}: gone");
    }
}

/// Waits until one address space is left.
#[track_caller]
fn wait_for_one_address_space() {
    let end = clock() + 10_000_000_000 * u64::from(suite::patience());
    while skua_selftests::witness::objects().0.lines().count() > 1 {
        assert!(clock() < end, "an address space is left");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn shared_memory_is_told_apart() {
    let (one, two) = (Client::new(), Client::new());
    for place in Place::ALL {
        let key = format!("drm-shared-{}", region(place));
        let handle = one.bo(place, 1 << 20);
        assert_eq!(one.fdinfo().bytes(&key), Some(0), "{place:?}");
        let shared = one.export(handle).expect("PRIME_HANDLE_TO_FD");
        let there = two.import(&shared).expect("PRIME_FD_TO_HANDLE");
        drop(shared);
        for client in [&one, &two] {
            assert_eq!(client.fdinfo().bytes(&key), Some(1 << 20), "{place:?}");
        }
        assert_eq!(two.close(there), Ok(()));
        assert_eq!(two.fdinfo().bytes(&key), Some(0), "{place:?}");
        assert_eq!(one.close(handle), Ok(()));
        assert_eq!(one.fdinfo().bytes(&key), Some(0), "{place:?}");
    }
}

fn active_memory_is_in_use() {
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let source = rig.buffer(Place::Vram, 1 << 20);
    assert_eq!(rig.fdinfo().bytes("drm-active-vram0"), Some(0));
    let work = [wait_value(gate.va, 1), copy(source.va, source.va + 8, 8)];
    let job = rig.start(Engine::Copy, &work);
    // The driver does not know what a job uses: all that it can reach.
    assert_eq!(rig.fdinfo().bytes("drm-active-vram0"), Some(1 << 20));
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.fdinfo().bytes("drm-active-vram0"), Some(0));
    assert_eq!(rig.close(77), Err(Errno::EINVAL));
}

fn other_processes_can_read_it() {
    use std::os::fd::{AsFd, AsRawFd};
    let client = Client::new();
    let _handle = client.bo(Place::Vram, 1 << 20);
    let path = format!(
        "/proc/{}/fdinfo/{}",
        std::process::id(),
        client.as_fd().as_raw_fd()
    );
    let read = skua_selftests::raw::in_child(|| {
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains("drm-driver:\tskua"))
    });
    assert!(read, "{path}");
}
