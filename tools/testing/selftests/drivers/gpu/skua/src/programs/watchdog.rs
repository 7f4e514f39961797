// SPDX-License-Identifier: MIT

//! Work without end is cut, and nothing else.
//!
//! The guest of these tests sets `job_timeout_ms` low; they do not depend on it but for their
//! duration.

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use skua_guest::host::request;
use skua_selftests::client::{wait, wait_value as until, PATIENCE};
use skua_selftests::events::Trace;
use skua_selftests::function::Function;
use skua_selftests::program::LOOP;
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, fill, wait_value, write, Job};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::eventually;
use skua_selftests::uevents::Uevents;
use skua_selftests::unpreempted::Unasked;
use skua_selftests::witness::quiet;
use skua_selftests::{skip, suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::{Command, Dispatch};
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_program_without_end_is_cut: 120,
        a_wait_without_end_is_cut: 120,
        waits_without_end_are_cut_whoever_else_works: 300,
        an_end_that_never_comes_is_not_put_off_by_others: 180,
        who_stood_behind_what_is_cut_is_innocent: 120,
        many_waves_without_end_are_cut: 120,
        a_cut_context_takes_no_more: 120,
        a_cut_is_told: 120,
        queued_jobs_of_the_context_are_cancelled: 120,
        row_2_23_ten_queued_jobs_are_cancelled_once_each: 120,
        row_2_21_others_go_on_after_a_hang: 180,
        row_2_21_the_other_engine_goes_on_during_a_hang: 120,
        both_engines_hang_at_once: 180,
        one_hang_after_the_other: 300,
        long_work_is_not_cut: 120,
        waiting_for_a_turn_is_not_hanging: 180,
        the_innocent_behind_a_late_fault_is_not_blamed: 240,
        a_late_fault_does_not_lose_the_device: 240,
    ])
}

/// How long it may take until a job is cut: generous, as hosts are slow, and enough for the default
/// of `job_timeout_ms`.
fn cut() -> Duration {
    PATIENCE * 4
}

#[track_caller]
fn expect_cut(rig: &Rig, job: &Job<'_>) {
    let begin = Instant::now();
    assert_eq!(
        rig.wait_for(job.syncobj, cut()),
        Err(Errno::ETIME),
        "after {:?}",
        begin.elapsed()
    );
}

fn endless(rig: &Rig, context: u32) -> Job<'_> {
    let program = rig.program(LOOP);
    rig.start_in(context, &[dispatch(&program, LOOP, &[])])
}

fn a_program_without_end_is_cut() {
    let rig = Rig::new();
    let context = rig.new_context(Engine::Compute);
    expect_cut(&rig, &endless(&rig, context));
    let state = rig.state(context).expect("CONTEXT_STATE");
    assert_eq!(
        state,
        drm_skua_context_state {
            context,
            status: DRM_SKUA_CONTEXT_TIMED_OUT,
            ticks: state.ticks,
            completed: 1,
            ..Default::default()
        }
    );
    assert_eq!(
        rig.run(Engine::Compute, &[Command::Nop { words: 2 }]),
        Ok(())
    );
}

fn a_wait_without_end_is_cut() {
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    for engine in Engine::ALL {
        let context = rig.new_context(engine);
        let job = rig.start_in(context, &[wait_value(line.va, 1), write(line.va + 8, 1)]);
        expect_cut(&rig, &job);
        let status = rig.state(context).expect("CONTEXT_STATE").status;
        assert_eq!(status, DRM_SKUA_CONTEXT_TIMED_OUT, "{engine:?}");
        // What it waited for comes too late.
        line.cpu.write(0, 1);
        assert_eq!(
            rig.run(engine, &[write(line.va + 16, 1)]),
            Ok(()),
            "{engine:?}"
        );
        assert_eq!((line.cpu.read(8), line.cpu.read(16)), (0, 1), "{engine:?}");
        line.cpu.fill(|_| 0);
    }
}

/// They make room all the time, for each other and for work that goes on.
fn waits_without_end_are_cut_whoever_else_works() {
    for (waits, busy) in [(2, false), (3, false), (1, true), (2, true)] {
        let rig = Rig::new();
        let values = rig.buffer(Place::System, 4096);
        let waiters: Vec<_> = (0..waits)
            .map(|n| {
                let context = rig.new_context(Engine::Compute);
                let wait = [wait_value(values.va + 8 * n, 1)];
                // What is behind it does not put its end off.
                [rig.start_in(context, &wait), rig.start_in(context, &[])]
            })
            .collect();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                let mine = Rig::new();
                let target = mine.buffer(Place::Vram, 4 << 20);
                let mut rounds = 0;
                while busy && !done.load(Relaxed) {
                    let work = [fill(1, target.va, 4 << 20)];
                    let jobs = [0; 4].map(|_| mine.start(Engine::Compute, &work));
                    assert!(jobs.iter().all(|job| job.wait() == Ok(())));
                    rounds += 1;
                }
                rounds
            });
            for [waiter, behind] in &waiters {
                expect_cut(&rig, waiter);
                assert_eq!(behind.wait(), Err(Errno::ECANCELED));
            }
            done.store(true, Relaxed);
            let rounds = work.join().expect("a thread");
            println!("# {waits} waits, and {rounds} rounds of others' work");
        });
    }
}

/// Preempted for others it is no younger, also with more of its work behind it.
fn an_end_that_never_comes_is_not_put_off_by_others() {
    let rig = Rig::new();
    let context = rig.new_context(Engine::Compute);
    let other = Rig::new();
    let target = other.buffer(Place::Vram, 4 << 20);
    let job = endless(&rig, context);
    let behind = rig.start_in(context, &[]);
    let begin = Instant::now();
    while !job.has_ended() && begin.elapsed() < cut() {
        let work = [fill(1, target.va, 4 << 20); 4];
        let theirs = [0; 2].map(|_| other.start(Engine::Compute, &work));
        assert!(theirs.iter().all(|job| job.wait() == Ok(())));
    }
    expect_cut(&rig, &job);
    assert_eq!(behind.wait(), Err(Errno::ECANCELED));
}

/// The time of who was before it at the head is not its own.
fn who_stood_behind_what_is_cut_is_innocent() {
    let (rig, other) = (Rig::new(), Rig::new());
    let low = other.new_context(Engine::Compute);
    assert_eq!(other.prioritise(low, -1), Ok(()));
    let target = other.buffer(Place::Vram, 4 << 20);
    let job = endless(&rig, rig.context_having_worked(Engine::Compute));
    // Longer than from one look of the watchdog to the next.
    let commands = [fill(1, target.va, 4 << 20); 100];
    let behind = other.start_in(low, &commands);
    expect_cut(&rig, &job);
    assert_eq!(behind.wait(), Ok(()));
}

fn many_waves_without_end_are_cut() {
    let rig = Rig::new();
    let program = rig.program(LOOP);
    let Command::Dispatch(one) = dispatch(&program, LOOP, &[]) else {
        panic!("not a dispatch");
    };
    let context = rig.new_context(Engine::Compute);
    let work = [Command::Dispatch(Dispatch {
        groups: [65535, 65535, 65535],
        threads: [1024, 1, 1],
        ..one
    })];
    expect_cut(&rig, &rig.start_in(context, &work));
    assert_eq!(
        rig.run(Engine::Compute, &[Command::Nop { words: 2 }]),
        Ok(())
    );
}

fn a_cut_context_takes_no_more() {
    let rig = Rig::new();
    let context = rig.new_context(Engine::Compute);
    expect_cut(&rig, &endless(&rig, context));
    let before = rig.state(context);
    assert_eq!(rig.submit(context, &[], &[]), Err(Errno::ECANCELED));
    assert_eq!(rig.state(context), before);
    assert_eq!(rig.context_destroy(context), Ok(()));
}

/// Of whose work it was; and that there is nothing to be done.
fn a_cut_is_told() {
    let uevents = Uevents::new();
    let rig = Rig::new();
    let context = rig.new_context(Engine::Compute);
    expect_cut(&rig, &endless(&rig, context));
    let name = fs::read_to_string("/proc/self/comm").expect("procfs");
    let id = std::process::id().to_string();
    // That of an earlier test may come late.
    let event = loop {
        let event = uevents.next("WEDGED").expect("an event");
        if event.get("PID") == Some(&id) {
            break event;
        }
    };
    let expected = [
        ("SUBSYSTEM", "drm"),
        ("WEDGED", "none"),
        ("PID", &id),
        ("TASK", name.trim()),
    ];
    for (variable, value) in expected {
        let told = event.get(variable).map(String::as_str);
        assert_eq!(told, Some(value), "{variable}: {event:?}");
    }
}

fn queued_jobs_of_the_context_are_cancelled() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let context = rig.new_context(Engine::Compute);
    let job = endless(&rig, context);
    // As many as get there before it is cut.
    let queued: Vec<_> = (0..60)
        .map_while(|n| {
            let work = [write(target.va + 8 * n, 1)];
            rig.start_after(context, &work, &[]).ok()
        })
        .collect();
    assert!(!queued.is_empty());
    expect_cut(&rig, &job);
    for (n, job) in queued.iter().enumerate() {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "job {n}");
        assert_eq!(target.cpu.read(8 * n), 0, "job {n} ran");
    }
    let completed = rig.state(context).expect("CONTEXT_STATE").completed;
    assert_eq!(completed, queued.len() as u64 + 1);
}

/// Jobs of each kind, and more than there are places in a ring.
const QUEUED: u64 = 10;
const RING: u64 = 36;

/// Of the context that hangs, and of others of its device, which failed with it; not of another
/// device. All of it is queued before the hang begins.
fn row_2_23_ten_queued_jobs_are_cancelled_once_each() {
    quiet();
    let trace = Trace::of(&["skua_submit", "skua_start", "skua_done"]);
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    let (rig, innocent) = (Rig::of_device(client, device), Rig::new());
    let (begin, never) = (SoftwareTimeline::new(), SoftwareTimeline::new());
    let begun = rig.syncobj_of(begin.fence(1));
    let [blocks, blocks_others] = [&rig, &innocent].map(|rig| rig.syncobj_of(never.fence(1)));
    let fence = rig.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let shared = rig.fence_export(fence).expect("FENCE_EXPORT");
    let shared = innocent.fence_import(shared).expect("FENCE_IMPORT");
    let [target, theirs] = [&rig, &innocent].map(|rig| rig.buffer(Place::System, 4096));
    let start = |context: u32, kind: u64, n: u64, syncs: &[drm_skua_sync]| {
        let work = [write(target.va + 8 * (kind * QUEUED + n), 1)];
        rig.start_after(context, &work, syncs).expect("SUBMIT")
    };
    let program = rig.program(LOOP);
    let endless = [dispatch(&program, LOOP, &[])];
    let before = trace.events().len();
    let told = || Function::first().counters(["driver_cancelled_commands"])[0];
    let before_told = told();
    let hangs = rig.start_after(rig.compute, &endless, &[wait(begun)]);
    let hangs = hangs.expect("SUBMIT");
    let in_the_ring: Vec<_> = (0..RING).map(|_| rig.start_in(rig.compute, &[])).collect();
    let mut jobs = Vec::new();
    for n in 0..QUEUED {
        jobs.push(("behind it", start(rig.compute, 0, n, &[])));
    }
    for n in 0..QUEUED {
        jobs.push(("behind a gate", start(rig.copy, 1, n, &[wait(blocks)])));
    }
    // These have no fence yet.
    let holds = rig.new_context(Engine::Copy);
    for n in 0..QUEUED {
        jobs.push(("held", start(holds, 2, n, &[until(fence, n + 1)])));
    }
    let others: Vec<_> = (0..QUEUED)
        .map(|n| {
            let work = [write(theirs.va + 8 * n, 1)];
            innocent.start_after(innocent.copy, &work, &[wait(blocks_others)])
        })
        .collect();
    begin.advance(1);
    expect_cut(&rig, &hangs);
    for job in &in_the_ring {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "in the ring");
    }
    for (n, (kind, job)) in jobs.iter().enumerate() {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "{kind}: job {n}");
    }
    let ended = || {
        [rig.compute, rig.copy, holds].map(|context| {
            let state = rig.state(context).expect("CONTEXT_STATE");
            (state.status, state.completed)
        })
    };
    let expected = [
        (DRM_SKUA_CONTEXT_TIMED_OUT, 1 + RING + QUEUED),
        (DRM_SKUA_CONTEXT_LOST, QUEUED),
        (DRM_SKUA_CONTEXT_LOST, QUEUED),
    ];
    // Counted when their fences have signalled.
    assert!(
        eventually(|| (ended() == expected).then_some(())).is_some(),
        "{:?}",
        ended()
    );
    assert!(innocent.fence_gets(shared, u64::MAX), "its device's fence");
    // What they waited for changes nothing any more.
    never.advance(1);
    for job in others {
        assert_eq!(job.expect("SUBMIT").wait(), Ok(()), "another device's");
    }
    assert_eq!(innocent.run(Engine::Compute, &[]), Ok(()));
    assert_eq!(ended(), expected);
    for n in 0..3 * QUEUED {
        assert_eq!(target.cpu.read(8 * n as usize), 0, "job {n} ran");
    }
    for n in 0..QUEUED {
        assert_eq!(
            theirs.cpu.read(8 * n as usize),
            1,
            "another device's job {n}"
        );
    }
    // Of the driver's own is context 0. What is held has no events.
    let events = trace.events().split_off(before);
    let submits = events
        .iter()
        .filter(|event| event.name == "skua_submit" && event.get("context") != "0");
    let fences: Vec<&str> = submits.map(|event| event.get("fence")).collect();
    let count = |name: &str, fence: &str, error: Option<Errno>| {
        let error = error.map(|error| (-(error as i32)).to_string());
        let events = events.iter().filter(|event| event.name == name);
        let events = events.filter(|event| event.get("fence") == fence);
        let events = events.filter(|event| error.iter().all(|error| event.get("error") == error));
        events.count()
    };
    let queued = 1 + RING as usize..1 + RING as usize + 2 * QUEUED as usize;
    assert!(fences.len() >= queued.end, "{events:#?}");
    let cancelled = Some(Errno::ECANCELED);
    for (n, fence) in fences.iter().enumerate().take(queued.end).skip(1) {
        let ends = [None, cancelled].map(|error| count("skua_done", fence, error));
        assert_eq!(ends, [1, 1], "job {n}: {events:#?}");
        let starts = count("skua_start", fence, None);
        assert!(starts == 0 || !queued.contains(&n), "job {n}: {events:#?}");
    }
    // Each has one buffer, those that were held, too; those in the ring have none.
    assert_eq!(told() - before_told, 3 * QUEUED);
    // All that they had is given back.
    drop((jobs, in_the_ring, hangs, program, target, theirs));
    drop((rig, innocent));
    quiet();
}

fn row_2_21_others_go_on_after_a_hang() {
    for engine in Engine::ALL {
        let [guilty, other] = [(); 2].map(|()| Rig::new().having_worked());
        let never = guilty.buffer(Place::System, 4096);
        let sibling = guilty.context_having_worked(engine);
        // Else it would make room for the others, and they would be done before it is cut.
        let _unasked = Unasked::new();
        let hung = guilty.start(engine, &[wait_value(never.va, 1)]);
        let targets = [
            guilty.buffer(Place::System, 4096),
            other.buffer(Place::System, 4096),
            other.buffer(Place::System, 4096),
        ];
        let line = |rig: &Rig, context: u32, va: u64| -> Vec<u32> {
            (0..40)
                .map(|n| {
                    let job = rig.start_in(context, &[write(va + 8 * n, n + 1)]);
                    // Kept beyond the job: the fence is what counts.
                    let file = rig.sync_file(job.syncobj);
                    rig.syncobj_of(file)
                })
                .collect()
        };
        let siblings = line(&guilty, sibling, targets[0].va);
        let computes = line(&other, other.compute, targets[1].va);
        let copies = line(&other, other.copy, targets[2].va);
        assert_eq!(
            guilty.wait_for(hung.syncobj, cut()),
            Err(Errno::ETIME),
            "{engine:?}"
        );
        for (rig, fences) in [(&guilty, siblings), (&other, computes), (&other, copies)] {
            for (n, fence) in fences.into_iter().enumerate() {
                assert_eq!(rig.wait(fence), Ok(()), "{engine:?}: bystander {n}");
            }
        }
        for target in &targets {
            for n in 0..40 {
                assert_eq!(target.cpu.read(8 * n), n as u64 + 1, "{engine:?}");
            }
        }
        for (rig, context) in [
            (&guilty, sibling),
            (&other, other.compute),
            (&other, other.copy),
        ] {
            let state = rig.state(context).expect("CONTEXT_STATE");
            assert_eq!(
                (state.status, state.completed),
                (DRM_SKUA_CONTEXT_ACTIVE, 1 + 40),
                "{engine:?}: each ran once"
            );
        }
    }
}

fn row_2_21_the_other_engine_goes_on_during_a_hang() {
    let rig = Rig::new();
    for (hanging, working) in [
        (Engine::Compute, Engine::Copy),
        (Engine::Copy, Engine::Compute),
    ] {
        // On a slow host a round may take longer than the hang.
        let goes_on = (0..5).any(|_| rounds_during_a_hang(&rig, hanging, working) > 0);
        assert!(goes_on, "no round on {working:?} while {hanging:?} hung");
    }
}

/// How many rounds of work one engine does while another hangs.
#[track_caller]
fn rounds_during_a_hang(rig: &Rig, hanging: Engine, working: Engine) -> u64 {
    // Before the hang: the copy engine clears what is allocated in VRAM.
    let (source, target) = (
        rig.buffer(Place::Vram, 1 << 20),
        rig.buffer(Place::System, 1 << 20),
    );
    // The commands of the job that hangs stay where they are.
    let hung = Rig::new();
    let never = hung.buffer(Place::System, 4096);
    let job = hung.start(hanging, &[wait_value(never.va, 1)]);
    let mut rounds = 0_u64;
    while !job.has_ended() {
        let pattern = u32::try_from(rounds).expect("a count");
        let work = [
            fill(pattern, source.va, 1 << 20),
            copy(source.va, target.va, 1 << 20),
        ];
        assert_eq!(rig.run(working, &work), Ok(()), "round {rounds}");
        assert_eq!(target.cpu.read32((1 << 20) - 4), pattern, "round {rounds}");
        rounds += u64::from(!job.has_ended());
    }
    assert_eq!(job.wait(), Err(Errno::ETIME));
    rounds
}

fn both_engines_hang_at_once() {
    let rig = Rig::new();
    let never = rig.buffer(Place::System, 4096);
    let jobs: Vec<_> = Engine::ALL
        .into_iter()
        .map(|engine| rig.start_in(rig.new_context(engine), &[wait_value(never.va, 1)]))
        .collect();
    for job in &jobs {
        expect_cut(&rig, job);
    }
    for engine in Engine::ALL {
        assert_eq!(
            rig.run(engine, &[Command::Nop { words: 2 }]),
            Ok(()),
            "{engine:?}"
        );
    }
}

fn one_hang_after_the_other() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let jobs: Vec<_> = (0..4)
        .map(|_| endless(&rig, rig.new_context(Engine::Compute)))
        .collect();
    let last = rig.start(Engine::Compute, &[write(target.va, 1)]);
    for job in &jobs {
        expect_cut(&rig, job);
    }
    assert_eq!(last.wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 1);
}

fn long_work_is_not_cut() {
    // For as long as an endless job may run, three times, in pieces that each end in time.
    let rig = Rig::new();
    let begin = Instant::now();
    expect_cut(&rig, &endless(&rig, rig.new_context(Engine::Compute)));
    let limit = begin.elapsed();
    let buffer = rig.buffer(Place::Vram, 4 << 20);
    let begin = Instant::now();
    let mut jobs = 0;
    while begin.elapsed() < limit * 3 {
        let queued: Vec<_> = (0..32)
            .map(|n| rig.start(Engine::Copy, &[fill(n, buffer.va, 4 << 20)]))
            .collect();
        for job in &queued {
            jobs += 1;
            assert_eq!(job.wait(), Ok(()), "job {jobs} after {:?}", begin.elapsed());
        }
    }
}

fn waiting_for_a_turn_is_not_hanging() {
    // A job behind a hanging one, and one whose dependency hangs, wait longer than they may run.
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    let hung: Vec<_> = (0..2)
        .map(|_| endless(&rig, rig.new_context(Engine::Compute)))
        .collect();
    let behind = rig.start(Engine::Compute, &[write(line.va, 1)]);
    let dependant = rig
        .start_after(
            rig.new_context(Engine::Copy),
            &[write(line.va + 8, 1)],
            &[skua_selftests::client::wait(behind.syncobj)],
        )
        .expect("SUBMIT");
    for job in &hung {
        expect_cut(&rig, job);
    }
    assert_eq!(behind.wait(), Ok(()));
    assert_eq!(dependant.wait(), Ok(()));
    assert_eq!((line.cpu.read(0), line.cpu.read(8)), (1, 1));
}

/// Work that polls until the watchdog has decided to cut it, and then faults, while the GPU stands
/// still: the fault is reported when the engine is reset already. It counts ticks until then: of a
/// device that counts none the driver would ask whether it is there, and stand still as well.
fn late_fault(guilty: &Rig) -> Job<'_> {
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    let hold = Hold::new(guilty);
    let target = guilty.buffer(Place::Vram, 16 << 20);
    // More ticks than it may use: the rest is a matter of time.
    let mut work = vec![fill(1, target.va, 16 << 20); 128];
    work.extend([hold.command(), fill(1, 1 << 45, 4096)]);
    let job = guilty.start(Engine::Compute, &work);
    std::thread::sleep(Duration::from_millis(2900));
    request("gpu-pause 1400").expect("a pause");
    std::thread::sleep(Duration::from_millis(50));
    hold.release();
    job
}

/// Whether it was cut or its fault counts is a matter of moments.
#[track_caller]
fn expect_guilty(rig: &Rig, job: &Job<'_>) {
    let outcome = rig.wait_for(job.syncobj, cut());
    assert!(
        matches!(outcome, Err(Errno::ETIME | Errno::EFAULT)),
        "{outcome:?}"
    );
}

fn the_innocent_behind_a_late_fault_is_not_blamed() {
    for round in 0..3 {
        let (guilty, innocent) = (Rig::new(), Rig::new());
        let gate = innocent.buffer(Place::System, 4096);
        let a = late_fault(&guilty);
        let b = innocent.start(
            Engine::Compute,
            &[wait_value(gate.va, 1), write(gate.va + 8, 7)],
        );
        expect_guilty(&guilty, &a);
        std::thread::sleep(Duration::from_millis(300));
        let state = innocent.state(innocent.compute).expect("CONTEXT_STATE");
        assert_eq!(
            (innocent.outcome(b.syncobj), state.status, state.address),
            (None, DRM_SKUA_CONTEXT_ACTIVE, 0),
            "round {round}"
        );
        gate.cpu.write(0, 1);
        assert_eq!(b.wait(), Ok(()), "round {round}");
        assert_eq!(gate.cpu.read(8), 7, "round {round}");
    }
}

/// Nobody is behind it: the record is about nobody.
fn a_late_fault_does_not_lose_the_device() {
    for round in 0..3 {
        let guilty = Rig::new();
        let job = late_fault(&guilty);
        expect_guilty(&guilty, &job);
        std::thread::sleep(Duration::from_millis(300));
        for engine in Engine::ALL {
            assert_eq!(
                Rig::new().run(engine, &[]),
                Ok(()),
                "round {round}, {engine:?}"
            );
        }
    }
}
