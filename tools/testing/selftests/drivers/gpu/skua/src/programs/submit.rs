// SPDX-License-Identifier: MIT

//! Submission: what the engines do, in which order, for whom.

use std::collections::BTreeMap;
use std::process::ExitCode;

use skua_selftests::calls::Calls;
use skua_selftests::client::{signal, wait, PATIENCE};
use skua_selftests::program::{address, op, op_imm, EXIT, WRITE_NUMBERS};
use skua_selftests::race::Race;
use skua_selftests::rig::{copy, dispatch, fill, wait_value, write, Job};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};
use skua_spec::command::{Command, Dispatch};
use skua_spec::isa::Op;
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        nop_and_flush,
        fill_writes_its_range_and_no_more,
        copy_between_all_places: 60,
        copy_of_odd_ranges: 60,
        copy_of_rectangles,
        dispatch_runs_every_thread: 60,
        signal_and_wait_in_memory at_rest,
        engines_wait_for_each_other_in_memory at_rest,
        buffers_run_one_after_the_other,
        as_many_buffers_as_there_can_be,
        a_submission_without_buffers_is_a_fence,
        jobs_of_a_context_are_in_order: 60,
        commands_in_vram,
        long_copies: 120,
        many_clients_at_once: 120,
        a_light_context_is_not_held_up_by_a_heavy_one: 60,
        contexts_take_turns: 60,
        who_submits_signals_nobody: 60,
    ])
}

fn nop_and_flush() {
    let rig = Rig::new();
    for engine in Engine::ALL {
        let work = [
            Command::Nop { words: 2 },
            Command::FlushCache,
            Command::Nop { words: 44 },
        ];
        assert_eq!(rig.run(engine, &work), Ok(()), "{engine:?}");
    }
}

fn fill_writes_its_range_and_no_more() {
    let rig = Rig::new();
    for engine in Engine::ALL {
        for place in Place::ALL {
            let buffer = rig.buffer(place, 64 << 10);
            buffer.cpu.fill(|_| 0x1111_1111_1111_1111);
            let (from, bytes) = (4092, 8 << 10);
            assert_eq!(
                rig.run(engine, &[fill(0xdead_beef, buffer.va + from, bytes)]),
                Ok(())
            );
            for offset in (0..buffer.cpu.len()).step_by(4) {
                let inside = (from..from + bytes).contains(&(offset as u64));
                let expected = if inside { 0xdead_beef } else { 0x1111_1111 };
                assert_eq!(
                    buffer.cpu.read32(offset),
                    expected,
                    "{engine:?} {place:?} {offset:#x}"
                );
            }
        }
    }
}

fn copy_between_all_places() {
    let rig = Rig::new();
    let size: u64 = 512 << 10;
    for engine in Engine::ALL {
        for from in Place::ALL {
            for to in Place::ALL {
                let (source, target) = (rig.buffer(from, size), rig.buffer(to, size));
                source.cpu.fill(|offset| offset as u64 * 3);
                target.cpu.fill(|_| u64::MAX);
                assert_eq!(rig.run(engine, &[copy(source.va, target.va, size)]), Ok(()));
                target
                    .cpu
                    .expect(&format!("{engine:?}, {from:?} to {to:?}"), |offset| {
                        offset as u64 * 3
                    });
            }
        }
    }
}

fn copy_of_odd_ranges() {
    let rig = Rig::new();
    let (source, target) = (
        rig.buffer(Place::Vram, 16 << 10),
        rig.buffer(Place::System, 16 << 10),
    );
    source
        .cpu
        .fill(|offset| 0x0706_0504_0302_0100 + 0x0808_0808_0808_0808 * ((offset as u64 / 8) % 16));
    for (from, to, bytes) in [
        (0, 0, 0),
        (1, 0, 1),
        (3, 5, 7),
        (4095, 1, 2),
        (1, 4093, 4099),
        (63, 65, 129),
    ] {
        target.cpu.fill(|_| 0xffff_ffff_ffff_ffff);
        let work = [copy(source.va + from, target.va + to, bytes)];
        assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
        for offset in 0..8200_u64 {
            let seen = target
                .cpu
                .read8(usize::try_from(offset).expect("an offset"));
            let expected = match offset.checked_sub(to) {
                Some(n) if n < bytes => source
                    .cpu
                    .read8(usize::try_from(from + n).expect("an offset")),
                _ => 0xff,
            };
            assert_eq!(
                seen, expected,
                "{bytes} bytes from {from} to {to}: at {offset}"
            );
        }
    }
}

fn copy_of_rectangles() {
    let rig = Rig::new();
    let (source, target) = (
        rig.buffer(Place::System, 64 << 10),
        rig.buffer(Place::Vram, 64 << 10),
    );
    source.cpu.fill(|offset| offset as u64);
    target.cpu.fill(|_| u64::MAX);
    let work = [Command::Copy2d {
        source: source.va + 64,
        destination: target.va + 128,
        bytes: 40,
        source_pitch: 512,
        destination_pitch: 256,
        rows: 30,
    }];
    assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
    for offset in (0..target.cpu.len()).step_by(8) {
        let at = offset.checked_sub(128).map(|at| (at / 256, at % 256));
        let expected = match at {
            Some((row, column)) if row < 30 && column < 40 => (64 + row * 512 + column) as u64,
            _ => u64::MAX,
        };
        assert_eq!(target.cpu.read(offset), expected, "{offset:#x}");
    }
}

fn dispatch_runs_every_thread() {
    let rig = Rig::new();
    let program = rig.program(WRITE_NUMBERS);
    for (groups, threads) in [(1, 1), (1, 33), (7, 64), (64, 32), (3, 1024)] {
        let target = rig.buffer(Place::Vram, 64 << 10);
        target.cpu.fill(|_| u64::MAX);
        let [lo, hi] = address(target.va);
        let Command::Dispatch(one) = dispatch(&program, WRITE_NUMBERS, &[lo, hi, 1000]) else {
            panic!("not a dispatch");
        };
        let work = [Command::Dispatch(Dispatch {
            groups: [groups, 1, 1],
            threads: [threads, 1, 1],
            ..one
        })];
        assert_eq!(
            rig.run(Engine::Compute, &work),
            Ok(()),
            "{groups} × {threads}"
        );
        let count = groups * threads;
        for n in 0..16 << 10 {
            let expected = if n < count { 1000 + n } else { u32::MAX };
            let seen = target.cpu.read32(4 * n as usize);
            assert_eq!(seen, expected, "{groups} × {threads}: thread {n}");
        }
    }
}

fn signal_and_wait_in_memory() {
    let rig = Rig::new();
    for place in Place::ALL {
        let line = rig.buffer(place, 4096);
        let job = rig.start(
            Engine::Copy,
            &[
                wait_value(line.va, 10),
                write(line.va + 8, 1),
                wait_value(line.va, 20),
                write(line.va + 8, 2),
            ],
        );
        line.cpu.write(0, 9);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(line.cpu.read(8), 0, "{place:?}: 9 is at least 10");
        line.cpu.write(0, 11);
        poll(&format!("{place:?}"), || line.cpu.read(8) == 1);
        assert!(!job.has_ended());
        line.cpu.write(0, u64::MAX);
        assert_eq!(job.wait(), Ok(()));
        assert_eq!(line.cpu.read(8), 2);
    }
}

fn poll(what: &str, mut ready: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE * suite::patience();
    while !ready() {
        assert!(std::time::Instant::now() < end, "{what}: waited in vain");
        std::thread::yield_now();
    }
}

fn engines_wait_for_each_other_in_memory() {
    let rig = Rig::new();
    let line = rig.buffer(Place::Vram, 4096);
    // The one that waits is submitted first.
    let rounds = 16;
    let (mut ping, mut pong) = (Vec::new(), Vec::new());
    for n in 0..rounds {
        ping.extend([wait_value(line.va, 2 * n + 1), write(line.va, 2 * n + 2)]);
        pong.extend([write(line.va, 2 * n + 1), wait_value(line.va, 2 * n + 2)]);
    }
    let first = rig.start(Engine::Compute, &ping);
    let second = rig.start(Engine::Copy, &pong);
    assert_eq!(first.wait(), Ok(()));
    assert_eq!(second.wait(), Ok(()));
    assert_eq!(line.cpu.read(0), 2 * rounds);
}

fn buffers_run_one_after_the_other() {
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    let buffers = [
        rig.write(&[fill(1, line.va, 4096)]),
        rig.write(&[fill(2, line.va, 2048)]),
        rig.write(&[copy(line.va, line.va + 2048, 8)]),
    ];
    let done = rig.syncobj();
    assert_eq!(rig.submit(rig.copy, &buffers, &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(
        (
            line.cpu.read32(0),
            line.cpu.read32(2048),
            line.cpu.read32(2056)
        ),
        (2, 2, 1)
    );
    // The same buffer several times.
    let line = rig.buffer(Place::System, 4096);
    line.cpu.write(0, 1);
    let again = rig.write(&[copy(line.va, line.va + 8, 8)]);
    assert_eq!(rig.submit(rig.copy, &[again; 3], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(line.cpu.read(8), 1);
}

fn as_many_buffers_as_there_can_be() {
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    let count = rig.device.max_buffers;
    let buffers: Vec<_> = (0..count)
        .map(|n| rig.write(&[write(line.va + 8 * u64::from(n), u64::from(n) + 1)]))
        .collect();
    let done = rig.syncobj();
    assert_eq!(rig.submit(rig.copy, &buffers, &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    for n in 0..count {
        assert_eq!(line.cpu.read(8 * n as usize), u64::from(n) + 1);
    }
    assert_eq!(rig.state(rig.copy).expect("CONTEXT_STATE").completed, 1);
}

fn a_submission_without_buffers_is_a_fence() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    let behind = rig.start(Engine::Copy, &[]);
    let elsewhere = rig
        .start_after(rig.compute, &[], &[wait(job.syncobj)])
        .expect("SUBMIT");
    let free = rig.start_in(rig.new_context(Engine::Compute), &[]);
    assert_eq!(free.wait(), Ok(()));
    assert!(!behind.has_ended() && !elsewhere.has_ended());
    gate.cpu.write(0, 1);
    for job in [job, behind, elsewhere] {
        assert_eq!(job.wait(), Ok(()));
    }
}

fn jobs_of_a_context_are_in_order() {
    let rig = Rig::new();
    // Each job copies what the one before wrote and adds to it: only this order gives this sum.
    let increment = [
        op(Op::Arg, 2, 0, 0, 0),
        op(Op::Arg, 3, 0, 0, 1),
        op(Op::Ld32, 4, 2, 0, 0),
        op_imm(Op::Mul, 4, 4, 3),
        op_imm(Op::Add, 4, 4, 1),
        op(Op::St32, 4, 2, 0, 4),
        EXIT,
    ];
    let program = rig.program(&increment);
    let line = rig.buffer(Place::Vram, 4096);
    line.cpu.write32(0, 1);
    let jobs: Vec<Job<'_>> = (0..200)
        .map(|n| {
            let arguments = address(line.va + 4 * n);
            rig.start(
                Engine::Compute,
                &[dispatch(&program, &increment, &arguments)],
            )
        })
        .collect();
    let mut expected = 1_u32;
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(job.wait(), Ok(()), "job {n}");
        expected = expected.wrapping_mul(3).wrapping_add(1);
        assert_eq!(line.cpu.read32(4 * n + 4), expected, "job {n}");
    }
}

fn commands_in_vram() {
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    let commands = rig.buffer(Place::Vram, 4096);
    let words: Vec<u32> = [write(line.va, 1), write(line.va + 8, 2)]
        .iter()
        .flat_map(|command| command.encode().words().to_vec())
        .collect();
    commands.cpu.write_words(8, &words);
    let buffer = drm_skua_buffer {
        va: commands.va + 8,
        size: 4 * u32::try_from(words.len()).expect("a size"),
        flags: 0,
    };
    let done = rig.syncobj();
    assert_eq!(rig.submit(rig.copy, &[buffer], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!((line.cpu.read(0), line.cpu.read(8)), (1, 2));
}

fn long_copies() {
    let rig = Rig::new();
    let size: u64 = 10 << 20;
    let (one, two) = (
        rig.buffer(Place::Vram, size),
        rig.buffer(Place::System, size),
    );
    one.cpu.fill(|offset| offset as u64 ^ 0xabcd);
    // Both engines at once, in both directions.
    let there = rig.start(Engine::Copy, &[copy(one.va, two.va, size)]);
    assert_eq!(there.wait(), Ok(()));
    two.cpu
        .expect("VRAM to system", |offset| offset as u64 ^ 0xabcd);
    let half = size / 2;
    let jobs = [
        rig.start(Engine::Copy, &[fill(0x0101_0101, one.va, half)]),
        rig.start(Engine::Compute, &[copy(two.va, one.va + half, half)]),
    ];
    for job in jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    one.cpu
        .expect("both engines", |offset| match offset as u64 {
            first if first < half => 0x0101_0101_0101_0101,
            second => (second - half) ^ 0xabcd,
        });
}

fn many_clients_at_once() {
    let clients: u64 = 6;
    let threads: Vec<_> = (0..clients)
        .map(|seed| {
            std::thread::spawn(move || {
                let rig = Rig::new();
                let size: u64 = 256 << 10;
                let buffers = [
                    rig.buffer(Place::Vram, size),
                    rig.buffer(Place::System, size),
                    rig.buffer(Place::Vram, size),
                ];
                for round in 0..20_u64 {
                    let value = move |offset: usize| offset as u64 ^ (seed << 32) ^ (round << 48);
                    buffers[0].cpu.fill(value);
                    let first =
                        rig.start(Engine::Copy, &[copy(buffers[0].va, buffers[1].va, size)]);
                    let second = rig
                        .start_after(
                            rig.compute,
                            &[copy(buffers[1].va, buffers[2].va, size)],
                            &[wait(first.syncobj)],
                        )
                        .expect("SUBMIT");
                    assert_eq!(second.wait(), Ok(()), "client {seed}, round {round}");
                    buffers[2]
                        .cpu
                        .expect(&format!("client {seed}, round {round}"), value);
                    buffers[2].cpu.write(0, u64::MAX);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a client");
    }
}

/// Jobs that an engine's ring takes at most: they are no longer anybody's turn.
const AHEAD: u32 = 40;

/// Jobs of a heavy context.
const HEAVY: usize = 200;

fn a_light_context_is_not_held_up_by_a_heavy_one() {
    let rig = Rig::new();
    let (heavy, light) = (
        rig.new_context(Engine::Compute),
        rig.new_context(Engine::Compute),
    );
    let target = rig.buffer(Place::Vram, 4 << 20);
    let mut race = Race::new(&rig);
    // They are long, as the light one may be woken later.
    for _ in 0..HEAVY {
        race.enter_with(heavy, &[fill(1, target.va, 4 << 20); 8]);
    }
    for _ in 0..8 {
        race.enter(light);
    }
    let numbers = race.run();
    // From when it was woken its jobs are among those of the other.
    let light = &numbers[HEAVY..];
    for (n, number) in (0..).zip(light) {
        assert!(
            *number <= light[0] + AHEAD + 2 * n,
            "light job {n} was the {number}th of all: {light:?}"
        );
    }
    assert!(numbers[..HEAVY].iter().max() > light.iter().max());
}

fn contexts_take_turns() {
    let rig = Rig::new();
    let (contexts, rounds) = (6_u32, 40_u32);
    let own: Vec<u32> = (0..contexts)
        .map(|_| rig.new_context(Engine::Compute))
        .collect();
    let target = rig.buffer(Place::Vram, 4 << 20);
    let mut race = Race::new(&rig);
    // One after the other, so that the order is not that of submission. They are long, as not all
    // contexts are woken at the same moment.
    for context in &own {
        for _ in 0..rounds {
            race.enter_with(*context, &[fill(1, target.va, 4 << 20)]);
        }
    }
    let numbers = race.run();
    // Of whom each job was, in the order in which they were done.
    let mut order: Vec<(u32, usize)> = numbers.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let owners = order.iter().map(|(_, job)| job / rounds as usize);
    // From when all were woken until the first has no more, they are done as often.
    let mut counts = vec![0; own.len()];
    let mut since = None;
    for owner in owners {
        counts[owner] += 1;
        if !counts.contains(&0) {
            let since = since.get_or_insert_with(|| counts.clone());
            let done = counts.iter().zip(&*since).map(|(now, then)| now - *then);
            let (least, most) = (done.clone().min(), done.max());
            assert!(
                most.zip(least)
                    .is_some_and(|(most, least)| most - least <= AHEAD),
                "{least:?} and {most:?} at {counts:?}"
            );
        }
        if counts[owner] == rounds {
            break;
        }
    }
    println!("# {counts:?} were done when one had no more");
}

/// A client's thread may be held up at any time, by its quota or by a debugger. What others wait
/// for is not its to do: no fence is signalled by who submits, though work ends meanwhile.
fn who_submits_signals_nobody() {
    const SIGNALS: &str = "dma_fence_signal*";
    // That it would be seen.
    let line = SoftwareTimeline::new();
    let _fence = line.fence(1);
    let calls = Calls::of(&[SIGNALS]);
    line.advance(1);
    assert_ne!(calls.count(), BTreeMap::new(), "a signal was not seen");
    drop(calls);

    let [rig, other] = [(); 2].map(|()| Rig::new().having_worked());
    let theirs = other.start(Engine::Compute, &[]);
    let (waiter, syncobj): (&Client, u32) = (&other, theirs.syncobj);
    let calls = Calls::of(&[SIGNALS]);
    let mut jobs = Vec::new();
    std::thread::scope(|scope| {
        let begin = Engine::ALL.map(|engine| rig.start(engine, &[]));
        let watched: (&Client, [u32; 2]) = (&rig, begin.each_ref().map(|job| job.syncobj));
        let ended = scope.spawn(move || {
            let own = watched.1.map(|syncobj| watched.0.wait(syncobj));
            (own, waiter.wait(syncobj))
        });
        // More than the rings take, and on until some have ended.
        while jobs.len() < 400 || !ended.is_finished() {
            jobs.extend(Engine::ALL.map(|engine| rig.start(engine, &[])));
        }
        let ends = ended.join().expect("a thread");
        assert_eq!(ends, ([Ok(()); 2], Ok(())));
        jobs.extend(begin);
    });
    let signalled = calls.count();
    drop(calls);
    println!("# {} submissions, {signalled:?}", jobs.len());
    assert_eq!(signalled, BTreeMap::new());
    for job in jobs {
        assert_eq!(job.wait(), Ok(()));
    }
}
