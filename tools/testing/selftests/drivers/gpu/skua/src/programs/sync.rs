// SPDX-License-Identifier: MIT

//! Syncobjs: binary ones and timelines, in and out.

use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use skua_selftests::client::{signal, signal_point, wait, wait_point, PATIENCE};
use skua_selftests::rig::{wait_value, write};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_signal_replaces_the_fence,
        several_signals_at_once,
        the_same_syncobj_waited_for_and_signalled,
        points_signal_in_order,
        a_later_point_waits_for_the_earlier_one,
        as_many_syncs_as_there_can_be,
        engines_hand_over_by_points: 60,
        a_wait_for_a_signalled_fence_is_no_wait,
        a_wait_for_a_fence_of_another_driver,
        fences_cross_files,
        eventfds_fire,
        a_failed_dependency_cancels_the_work,
        a_failed_dependency_cancels_the_dependants_too,
        who_waits_for_cancelled_work_of_its_context_is_cancelled,
        what_is_queued_behind_is_cancelled_one_by_one: 60,
        what_is_queued_behind_waits_for_its_own,
        a_failed_point_cancels_the_work,
        who_fails_in_a_merged_fence_cancels_the_work,
        waits_end_when_a_signal_comes,
    ])
}

fn a_signal_replaces_the_fence() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let done = rig.syncobj();
    assert_eq!(rig.submit(rig.copy, &[], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    let commands = rig.write(&[wait_value(gate.va, 1)]);
    assert_eq!(rig.submit(rig.copy, &[commands], &[signal(done)]), Ok(()));
    assert!(!rig.has_signalled(done), "still the old fence");
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(done), Ok(()));
}

fn several_signals_at_once() {
    let rig = Rig::new();
    let (a, b, line) = (rig.syncobj(), rig.syncobj(), rig.syncobj());
    let syncs = [
        signal(a),
        signal_point(line, 3),
        signal(b),
        signal(a),
        signal_point(line, 7),
    ];
    assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()));
    for syncobj in [a, b] {
        assert_eq!(rig.wait(syncobj), Ok(()));
    }
    for point in [1, 3, 7] {
        assert_eq!(rig.wait_point(line, point), Ok(()), "point {point}");
    }
    assert!(!rig.signals_within(line, 8, Duration::from_millis(20)));
}

fn the_same_syncobj_waited_for_and_signalled() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let turn = rig.syncobj();
    let commands = rig.write(&[wait_value(gate.va, 1)]);
    assert_eq!(
        rig.submit(rig.compute, &[commands], &[signal(turn)]),
        Ok(())
    );
    // The wait is for the fence that is there; the signal comes after it, in any order.
    for syncs in [[wait(turn), signal(turn)], [signal(turn), wait(turn)]] {
        assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()));
        assert!(!rig.has_signalled(turn));
    }
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(turn), Ok(()));
}

fn points_signal_in_order() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let line = rig.syncobj();
    for point in 1..=20 {
        let commands = rig.write(&[wait_value(gate.va, point)]);
        assert_eq!(
            rig.submit(rig.copy, &[commands], &[signal_point(line, point * 10)]),
            Ok(())
        );
    }
    for point in 1..=20 {
        assert!(
            !rig.signals_within(line, point * 10, Duration::ZERO),
            "point {point}"
        );
        gate.cpu.write(0, point);
        // A wait for a point between is one for the next.
        assert_eq!(
            rig.wait_point(line, point * 10 - 5),
            Ok(()),
            "point {point}"
        );
    }
}

fn a_later_point_waits_for_the_earlier_one() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let line = rig.syncobj();
    let commands = rig.write(&[wait_value(gate.va, 1)]);
    assert_eq!(
        rig.submit(rig.compute, &[commands], &[signal_point(line, 1)]),
        Ok(())
    );
    let free = rig
        .start_after(rig.copy, &[], &[signal_point(line, 2)])
        .expect("SUBMIT");
    assert_eq!(free.wait(), Ok(()));
    assert!(
        !rig.signals_within(line, 2, Duration::from_millis(20)),
        "2 came before 1"
    );
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait_point(line, 2), Ok(()));
}

fn as_many_syncs_as_there_can_be() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let count = u64::from(rig.device.max_syncs / 2);
    let (lines, done) = (rig.syncobj(), rig.syncobj());
    let commands = rig.write(&[wait_value(gate.va, 1)]);
    assert_eq!(
        rig.submit(rig.compute, &[commands], &[signal_point(lines, 1)]),
        Ok(())
    );
    let mut syncs = vec![wait_point(lines, 1); usize::try_from(count).expect("a count")];
    syncs.extend((0..count).map(|n| signal_point(done, n + 1)));
    assert_eq!(syncs.len() as u64, u64::from(rig.device.max_syncs));
    assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()));
    assert!(!rig.signals_within(done, 1, Duration::from_millis(20)));
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait_point(done, count), Ok(()));
}

fn engines_hand_over_by_points() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::Vram, 4096);
    let line = rig.syncobj();
    let rounds = 100;
    for n in 1..=rounds {
        let engine = if n % 2 == 0 {
            Engine::Copy
        } else {
            Engine::Compute
        };
        // Each moves the value one slot on: wrong unless the one before is done and visible.
        let work = [
            skua_selftests::rig::copy(buffer.va + 8 * (n - 1), buffer.va + 8 * n, 8),
            write(buffer.va, 77),
        ];
        let commands = rig.write(&work[..1]);
        let mut syncs = vec![signal_point(line, n)];
        if n > 1 {
            syncs.push(wait_point(line, n - 1));
        } else {
            buffer.cpu.write(0, 0x1234_5678);
        }
        assert_eq!(rig.submit(rig.context(engine), &[commands], &syncs), Ok(()));
    }
    assert_eq!(rig.wait_point(line, rounds), Ok(()));
    assert_eq!(
        buffer
            .cpu
            .read(usize::try_from(8 * rounds).expect("an offset")),
        0x1234_5678
    );
}

fn a_wait_for_a_signalled_fence_is_no_wait() {
    let rig = Rig::new();
    let done = rig.syncobj();
    assert_eq!(rig.submit(rig.copy, &[], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Ok(()));
    let job = rig
        .start_after(rig.compute, &[], &[wait(done); 8])
        .expect("SUBMIT");
    assert_eq!(job.wait(), Ok(()));
}

fn a_wait_for_a_fence_of_another_driver() {
    let rig = Rig::new();
    let line = SoftwareTimeline::new();
    let target = rig.buffer(Place::System, 4096);
    let foreign = rig.syncobj_of(line.fence(2));
    let job = rig
        .start_after(rig.copy, &[write(target.va, 1)], &[wait(foreign)])
        .expect("SUBMIT");
    line.advance(1);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!job.has_ended());
    assert_eq!(target.cpu.read(0), 0, "it ran before its fence");
    line.advance(1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 1);
    // A timeline that is closed ends its fences with an error: the work is cancelled.
    let foreign = rig.syncobj_of(line.fence(10));
    let job = rig
        .start_after(rig.copy, &[write(target.va, 2)], &[wait(foreign)])
        .expect("SUBMIT");
    drop(line);
    assert_eq!(job.wait(), Err(Errno::ECANCELED));
    assert_eq!(target.cpu.read(0), 1);
    assert_eq!(
        rig.run(Engine::Copy, &[write(target.va, 3)]),
        Ok(()),
        "its context goes on"
    );
}

fn fences_cross_files() {
    let (one, two) = (Rig::new(), Rig::new());
    let gate = one.buffer(Place::System, 4096);
    let target = two.buffer(Place::System, 4096);
    let first = one.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    let there = two.syncobj_of(one.sync_file(first.syncobj));
    let second = two
        .start_after(two.compute, &[write(target.va, 1)], &[wait(there)])
        .expect("SUBMIT");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(target.cpu.read(0), 0);
    gate.cpu.write(0, 1);
    assert_eq!(second.wait(), Ok(()));
    assert_eq!(first.wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 1);
}

fn eventfds_fire() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let line = rig.syncobj();
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    // Before there is a fence.
    let mut argument = drm_syncobj_eventfd {
        handle: line,
        point: 2,
        fd: event.as_raw_fd(),
        ..Default::default()
    };
    assert_eq!(rig.call(DRM_IOCTL_SYNCOBJ_EVENTFD, &mut argument), Ok(()));
    for point in 1..=2 {
        let commands = rig.write(&[wait_value(gate.va, point)]);
        assert_eq!(
            rig.submit(rig.copy, &[commands], &[signal_point(line, point)]),
            Ok(())
        );
    }
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait_point(line, 1), Ok(()));
    assert_eq!(event.read(), Err(Errno::EAGAIN), "it fired too early");
    gate.cpu.write(0, 2);
    let mut ready = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(PATIENCE * suite::patience()).expect("a time");
    assert_eq!(poll(&mut ready, timeout), Ok(1), "it never fired");
    assert_eq!(event.read(), Ok(1), "it fired more than once");
}

/// A job that will fault, held by a gate; and the gate.
fn failing(rig: &Rig) -> (skua_selftests::rig::Job<'_>, skua_selftests::rig::Buffer) {
    let gate = rig.buffer(Place::System, 4096);
    let nothing = rig.reserve(4096);
    let context = rig.new_context(Engine::Compute);
    let job = rig.start_in(context, &[wait_value(gate.va, 1), write(nothing, 1)]);
    (job, gate)
}

fn a_failed_dependency_cancels_the_work() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let (job, gate) = failing(&rig);
    let dependant = rig
        .start_after(rig.copy, &[write(target.va, 1)], &[wait(job.syncobj)])
        .expect("SUBMIT");
    let next = rig.start(Engine::Copy, &[write(target.va + 8, 2)]);
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    assert_eq!(dependant.wait(), Err(Errno::ECANCELED));
    assert_eq!(next.wait(), Ok(()), "what came behind it in its context");
    assert_eq!((target.cpu.read(0), target.cpu.read(8)), (0, 2));
    let state = rig.state(rig.copy).expect("CONTEXT_STATE");
    assert_eq!(
        (state.status, state.completed),
        (DRM_SKUA_CONTEXT_ACTIVE, 2)
    );
    // The same when the error is known already.
    let late = rig
        .start_after(rig.copy, &[write(target.va, 1)], &[wait(job.syncobj)])
        .expect("SUBMIT");
    assert_eq!(late.wait(), Err(Errno::ECANCELED));
    assert_eq!(target.cpu.read(0), 0);
}

fn a_failed_dependency_cancels_the_dependants_too() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let (job, gate) = failing(&rig);
    let mut last = job.syncobj;
    let mut chain = Vec::new();
    for n in 0..10 {
        let engine = if n % 2 == 0 {
            Engine::Copy
        } else {
            Engine::Compute
        };
        let next = rig
            .start_after(
                rig.context(engine),
                &[write(target.va + 8 * n, 1)],
                &[wait(last)],
            )
            .expect("SUBMIT");
        last = next.syncobj;
        chain.push(next);
    }
    gate.cpu.write(0, 1);
    for (n, dependant) in chain.iter().enumerate() {
        assert_eq!(dependant.wait(), Err(Errno::ECANCELED), "number {n}");
        assert_eq!(target.cpu.read(8 * n), 0, "number {n} ran");
    }
}

/// The order of the context alone does not tell that what was before it is done.
fn who_waits_for_cancelled_work_of_its_context_is_cancelled() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let (job, gate) = failing(&rig);
    let mut last = job.syncobj;
    let mut jobs = Vec::new();
    for (n, depends) in (0..).zip([true, true, false, true, false]) {
        let syncs: &[_] = if depends { &[wait(last)] } else { &[] };
        let commands = [write(target.va + 8 * n as u64, 1)];
        let next = rig.start_after(rig.copy, &commands, syncs).expect("SUBMIT");
        if depends {
            last = next.syncobj;
        }
        jobs.push((n, depends, next));
    }
    gate.cpu.write(0, 1);
    for (n, depends, job) in &jobs {
        let (result, value) = match depends {
            true => (Err(Errno::ECANCELED), 0),
            false => (Ok(()), 1),
        };
        assert_eq!(job.wait(), result, "number {n}");
        assert_eq!(target.cpu.read(8 * n), value, "number {n}");
    }
    // The same when it is known already.
    let late = rig
        .start_after(rig.copy, &[write(target.va, 1)], &[wait(last)])
        .expect("SUBMIT");
    assert_eq!(late.wait(), Err(Errno::ECANCELED));
    assert_eq!(target.cpu.read(0), 0);
}

/// Each waits for work that is cancelled at about the moment at which the one before it is.
fn what_is_queued_behind_is_cancelled_one_by_one() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let blocker = rig.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    for round in 0..suite::rounds(200) {
        let guilty = rig.new_context(Engine::Compute);
        let victim = rig.new_context(Engine::Copy);
        let behind = |context, fence| {
            let job = rig.start_after(context, &[], &[wait(fence)]);
            job.expect("SUBMIT")
        };
        let cancelled = [(); 4].map(|()| behind(guilty, blocker.syncobj));
        let waiting = cancelled.each_ref().map(|job| behind(victim, job.syncobj));
        assert_eq!(rig.context_destroy(guilty), Ok(()));
        for (number, job) in waiting.iter().enumerate() {
            let ended = job.wait();
            assert_eq!(ended, Err(Errno::ECANCELED), "round {round}, job {number}");
        }
        assert_eq!(rig.context_destroy(victim), Ok(()));
    }
    gate.cpu.write(0, 1);
    assert_eq!(blocker.wait(), Ok(()));
}

fn what_is_queued_behind_waits_for_its_own() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let blockers = [1, 2, 3].map(|value| {
        let context = rig.new_context(Engine::Compute);
        rig.start_in(context, &[wait_value(gate.va, value)])
    });
    let waiting = blockers.each_ref().map(|blocker| {
        let job = rig.start_after(rig.copy, &[], &[wait(blocker.syncobj)]);
        job.expect("SUBMIT")
    });
    for (value, job) in (1..).zip(&waiting) {
        assert!(!job.has_ended(), "job {value}");
        gate.cpu.write(0, value);
        assert_eq!(job.wait(), Ok(()), "job {value}");
    }
}

fn a_failed_point_cancels_the_work() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let nothing = rig.reserve(4096);
    let line = rig.syncobj();
    let context = rig.new_context(Engine::Compute);
    let gate = rig.buffer(Place::System, 4096);
    let commands = rig.write(&[wait_value(gate.va, 1), write(nothing, 1)]);
    assert_eq!(
        rig.submit(context, &[commands], &[signal_point(line, 4)]),
        Ok(())
    );
    let dependant = rig
        .start_after(rig.copy, &[write(target.va, 1)], &[wait_point(line, 4)])
        .expect("SUBMIT");
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait_point(line, 4), Err(Errno::EFAULT));
    assert_eq!(dependant.wait(), Err(Errno::ECANCELED));
    assert_eq!(target.cpu.read(0), 0);
}

/// Whether it is waited for before or only after that, and whoever has asked meanwhile.
fn who_fails_in_a_merged_fence_cancels_the_work() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let line = rig.syncobj();
    for n in 0..3 {
        let (job, gate) = failing(&rig);
        let good = rig.start_in(rig.new_context(Engine::Copy), &[write(target.va + 8, 1)]);
        let both = rig.merged([good.syncobj, job.syncobj]);
        rig.transfer((both, 0), (line, n + 1));
        let start = |syncs| {
            let work = [write(target.va, 1)];
            rig.start_after(rig.copy, &work, &[syncs]).expect("SUBMIT")
        };
        // Behind something they do not wait yet, when others ask.
        let hold = rig.buffer(Place::System, 4096);
        let before = (n == 2).then(|| rig.start(Engine::Copy, &[wait_value(hold.va, 1)]));
        let early = (n > 0).then(|| [wait(both), wait_point(line, n + 1)].map(start));
        gate.cpu.write(0, 1);
        assert_eq!(good.wait(), Ok(()));
        assert_eq!(job.wait(), Err(Errno::EFAULT));
        let late = start(wait(both));
        hold.cpu.write(0, 1);
        assert!(before.iter().all(|job| job.wait() == Ok(())));
        for (at, job) in early.iter().flatten().chain([&late]).enumerate() {
            assert_eq!(job.wait(), Err(Errno::ECANCELED), "round {n}, {at}");
        }
        let written = (target.cpu.read(0), target.cpu.read(8));
        assert_eq!(written, (0, 1), "round {n}");
    }
}

fn waits_end_when_a_signal_comes() {
    // A wait for what never comes must be interruptible; here the test's own alarm interrupts it.
    let client = Client::new();
    let never = client.syncobj();
    assert!(!client.signals_within(never, 0, Duration::from_millis(50)));
    let interrupted = skua_selftests::raw::with_alarm(Duration::from_millis(50), || {
        let mut argument = drm_syncobj_wait {
            handles: std::ptr::from_ref(&never) as u64,
            timeout_nsec: i64::MAX,
            count_handles: 1,
            flags: DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
            ..Default::default()
        };
        client.call(DRM_IOCTL_SYNCOBJ_WAIT, &mut argument)
    });
    assert_eq!(interrupted, Err(Errno::EINTR));
}
