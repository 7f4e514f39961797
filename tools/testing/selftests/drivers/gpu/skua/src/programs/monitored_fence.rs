// SPDX-License-Identifier: MIT

//! Monitored fences: values that grow, for CPU and GPU, and work that is held for them.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{mpsc, Barrier};
use std::thread;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags};
use skua_selftests::client::{
    self, signal, signal_point, signal_value, wait, wait_value, PATIENCE,
};
use skua_selftests::function::Unbound;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::evict_some;
use skua_selftests::program::{address, COUNT};
use skua_selftests::raw::{in_child, with_alarm, Child};
use skua_selftests::rig::{self, dispatch, expect_working, write, Buffer, Job};
use skua_selftests::suite::{a_moment, becomes, patience};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: usize = 4096;
const ANY: u32 = DRM_SKUA_FENCE_WAIT_ANY;
const LOST: u64 = libskua::MonitoredFence::LOST;
const KEPT: u32 = DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        values_grow,
        signals_are_all_or_none,
        a_wait_is_for_all_or_any,
        a_wait_sleeps_until_a_signal,
        a_wait_ends_when_a_signal_comes,
        eventfds_are_told_once,
        eventfds_wait_as_long_as_their_device: 60,
        eventfds_wait_as_long_as_somebody_can_signal,
        eventfds_wait_for_all_or_any,
        eventfds_of_several_are_told_once,
        eventfds_of_several_end_with_what_they_wait_for,
        eventfds_of_devices_that_end_meanwhile_leave_nothing: 60,
        eventfds_wait_as_long_as_any_process_has_the_file,
        handles_have_a_limit: 60,
        eventfds_have_a_limit: 60,
        other_processes_share_a_fence,
        only_fences_are_imported,
        the_page_is_read_only_for_good,
        the_page_outlives_everything,
        the_gpu_reads_a_value_that_is_mapped,
        the_gpu_waits_for_a_value_that_is_mapped,
        a_value_that_is_mapped_keeps_no_fence,
        what_the_gpu_reads_counts_as_the_clients,
        the_gpu_signals_when_work_is_done,
        signals_of_a_fence_come_in_order,
        binds_signal_when_they_are_done,
        binds_that_are_cancelled_signal_nothing,
        moves_signal_when_they_are_done at_rest,
        moves_that_are_to_signal_have_a_limit: 60,
        fences_do_not_delay_each_other,
        what_is_cancelled_signals_nothing,
        work_is_held_for_the_cpu,
        work_is_held_for_another_context,
        work_is_held_for_another_process,
        held_work_keeps_the_order_of_its_context,
        held_work_has_no_fence,
        held_work_is_brought_its_memory: 60,
        held_work_has_a_limit: 60,
        held_work_has_its_place_when_work_comes_back: 60,
        held_work_is_cancelled_with_its_context,
        what_fails_without_its_context_loses_fences,
        held_work_is_cancelled_with_its_file,
        held_work_outlives_the_handle_it_waits_by,
        a_killed_client_leaves_nothing_held,
        a_ring_of_holds_hurts_nobody: 60,
        row_2_22_a_device_that_fails_loses_its_fences,
        row_2_22_a_fence_can_keep_its_value,
        held_work_fails_with_its_device,
        row_2_23_held_work_ends_once_though_its_device_fails: 60,
        row_2_22_an_unbind_ends_waits_and_holds,
    ])
}

/// Whether work has ended; held work has no fence that could tell.
#[track_caller]
fn ended(job: &Job<'_>) -> bool {
    job.client().signals_within(job.syncobj, 0, Duration::ZERO)
}

/// The page of a fence, to read.
#[track_caller]
fn page(client: &Client, fence: u32) -> Mapping {
    let descriptor = client.fence_export(fence).expect("FENCE_EXPORT");
    map(
        &descriptor,
        PAGE,
        ProtFlags::PROT_READ,
        MapFlags::MAP_SHARED,
    )
    .expect("mmap")
}

fn map(
    descriptor: impl AsFd,
    len: usize,
    rights: ProtFlags,
    flags: MapFlags,
) -> Result<Mapping, Errno> {
    Mapping::with(descriptor, 0, len, rights, flags)
}

fn eventfd() -> EventFd {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).expect("eventfd")
}

/// Whether an eventfd is told in this time.
fn told(eventfd: &EventFd, time: Duration) -> bool {
    let mut fds = [PollFd::new(eventfd.as_fd(), PollFlags::POLLIN)];
    let time = u16::try_from((time * patience()).as_millis()).unwrap_or(u16::MAX);
    poll(&mut fds, PollTimeout::from(time)).expect("poll") == 1
}

/// How often an eventfd was told, once it is.
#[track_caller]
fn count(eventfd: &EventFd) -> u64 {
    assert!(told(eventfd, PATIENCE), "it is not told");
    eventfd.read().expect("a number")
}

fn values_grow() {
    let client = Client::new();
    assert_eq!(client.fence_create(LOST), Err(Errno::EINVAL));
    let fence = client.fence(5);
    let page = page(&client, fence);
    assert_eq!(page.read(0), 5);
    assert!(client.fence_has(fence, 0) && client.fence_has(fence, 5));
    assert!(!client.fence_has(fence, 6));
    for value in [0, 4, 5, LOST] {
        let result = client.fence_signal(fence, value);
        assert_eq!(result, Err(Errno::EINVAL), "{value:#x}");
        assert_eq!(page.read(0), 5);
    }
    for value in [6, 7, 1000, LOST - 1] {
        assert_eq!(client.fence_signal(fence, value), Ok(()), "{value:#x}");
        assert_eq!(page.read(0), value);
        assert!(client.fence_has(fence, value));
    }
    // The rest of the page is nobody's memory.
    assert!((8..PAGE).step_by(8).all(|offset| page.read(offset) == 0));
}

fn signals_are_all_or_none() {
    let client = Client::new();
    let (a, b) = (client.fence(0), client.fence(9));
    for bad in [[(a, 1), (b, 9)], [(a, 1), (b, LOST)], [(a, 1), (a, 2)]] {
        let result = client.fence_signal_all(&bad);
        assert_eq!(result, Err(Errno::EINVAL), "{bad:?}");
        assert!(
            !client.fence_has(a, 1) && !client.fence_has(b, 10),
            "{bad:?}"
        );
    }
    assert_eq!(client.fence_signal_all(&[(a, 1), (b, 10)]), Ok(()));
    assert!(client.fence_has(a, 1) && client.fence_has(b, 10));
}

fn a_wait_is_for_all_or_any() {
    let client = Client::new();
    let (a, b) = (client.fence(3), client.fence(0));
    let none = Duration::ZERO;
    assert_eq!(client.fence_wait(&[(b, 1), (a, 3)], ANY, none), Ok(1));
    let long = Duration::from_millis(20);
    assert_eq!(
        client.fence_wait(&[(b, 1), (a, 3)], 0, long),
        Err(Errno::ETIME)
    );
    assert_eq!(
        client.fence_wait(&[(b, 1), (a, 4)], ANY, long),
        Err(Errno::ETIME)
    );
    assert_eq!(client.fence_wait(&[(b, 0), (a, 3), (a, 1)], 0, none), Ok(0));
    // The same value twice is there twice.
    assert_eq!(client.fence_wait(&[(a, 3), (a, 3)], 0, none), Ok(0));
    // Of several of a fence the last decides, and of any the first.
    let several = [(a, 9), (a, 2), (a, 4), (a, 2)];
    let all = client.fence_wait(&several, 0, long);
    assert_eq!(all, Err(Errno::ETIME));
    assert_eq!(client.fence_wait(&several, ANY, none), Ok(1));
    thread::scope(|scope| {
        let waits = [0, ANY].map(|flags| {
            let client = &client;
            scope.spawn(move || {
                let waits = [(b, 1), (b, 3), (b, 2)];
                client.fence_wait(&waits, flags, PATIENCE * patience())
            })
        });
        a_moment();
        assert_eq!(client.fence_signal(b, 1), Ok(()));
        let [all, any] = waits;
        assert_eq!(any.join().expect("a thread"), Ok(0));
        assert!(!all.is_finished(), "not all were reached");
        assert_eq!(client.fence_signal(b, 3), Ok(()));
        assert_eq!(all.join().expect("a thread"), Ok(0));
    });
}

fn a_wait_sleeps_until_a_signal() {
    let client = Client::new();
    let (a, b) = (client.fence(0), client.fence(0));
    for (flags, waits, signals) in [
        (0, vec![(a, 2), (b, 2)], vec![(b, 2), (a, 1), (a, 2)]),
        (ANY, vec![(a, 9), (b, 3)], vec![(a, 8), (b, 3)]),
    ] {
        let (send, woken) = mpsc::channel();
        thread::scope(|scope| {
            let (client, waits) = (&client, &waits);
            scope.spawn(move || {
                let index = client.fence_wait(waits, flags, PATIENCE * patience());
                send.send(index).expect("a receiver");
            });
            for signal in &signals {
                a_moment();
                assert!(woken.try_recv().is_err(), "before {signal:?}");
                assert_eq!(client.fence_signal(signal.0, signal.1), Ok(()));
            }
            let index = woken.recv().expect("a result");
            assert_eq!(index, Ok(u32::from(flags == ANY)), "{waits:?}");
        });
    }
}

fn a_wait_ends_when_a_signal_comes() {
    let client = Client::new();
    let fence = client.fence(0);
    let result = with_alarm(Duration::from_millis(50), || {
        client.fence_wait(&[(fence, 1)], 0, PATIENCE * 100)
    });
    assert_eq!(result, Err(Errno::EINTR));
    // And can be called again.
    assert_eq!(client.fence_signal(fence, 1), Ok(()));
    assert!(client.fence_gets(fence, 1));
}

fn eventfds_are_told_once() {
    let client = Client::new();
    let fence = client.fence(0);
    let (early, late, there) = (eventfd(), eventfd(), eventfd());
    assert_eq!(client.fence_eventfd(fence, 0, &there), Ok(()));
    assert_eq!(count(&there), 1);
    assert_eq!(client.fence_eventfd(fence, 1, &early), Ok(()));
    assert_eq!(client.fence_eventfd(fence, 3, &late), Ok(()));
    assert!(!told(&early, Duration::from_millis(20)));
    assert_eq!(client.fence_signal(fence, 2), Ok(()));
    assert_eq!(count(&early), 1);
    assert_eq!(late.read(), Err(Errno::EAGAIN));
    // The handle is not what it waits by.
    let descriptor = client.fence_export(fence).expect("FENCE_EXPORT");
    assert_eq!(client.fence_destroy(fence), Ok(()));
    let again = client.fence_import(&descriptor).expect("FENCE_IMPORT");
    assert_eq!(client.fence_signal(again, 5), Ok(()));
    assert_eq!(count(&late), 1);
    assert_eq!(client.fence_signal(again, 6), Ok(()));
    a_moment();
    for eventfd in [early, late, there] {
        assert_eq!(eventfd.read(), Err(Errno::EAGAIN));
    }
}

/// What others could signal for ever is no way to have more than a quota.
fn eventfds_wait_as_long_as_their_device() {
    const FOREVER: u64 = LOST - 1;
    let keeper = Client::new();
    let fence = keeper.fence(0);
    let descriptor = keeper.fence_export(fence).expect("FENCE_EXPORT");
    let is_over = |event: &EventFd, how: &str| {
        assert!(told(event, PATIENCE), "{how}");
        assert_eq!(event.read(), Ok(1), "{how}");
        // Others' fence is none of its business.
        assert!(!keeper.fence_has(fence, 1), "{how}");
    };
    for (closes, created, has_handle) in [
        (true, false, true),
        (true, false, false),
        (true, true, true),
        (true, true, false),
        (false, true, true),
        (false, true, false),
    ] {
        let how = format!("file closed {closes}, device {created}, handle {has_handle}");
        let client = Client::new();
        let device = match created {
            true => client.device_create(0).expect("DEVICE_CREATE"),
            false => 0,
        };
        let theirs = client.fence_import_for(device, &descriptor);
        let theirs = theirs.expect("FENCE_IMPORT");
        let event = eventfd();
        assert_eq!(client.fence_eventfd(theirs, FOREVER, &event), Ok(()));
        if !has_handle {
            assert_eq!(client.fence_destroy(theirs), Ok(()));
        }
        assert!(!told(&event, Duration::from_millis(20)), "{how}");
        match closes {
            true => drop(client),
            false => assert_eq!(client.device_destroy(device), Ok(())),
        }
        is_over(&event, &how);
    }
    let (rig, device) = fragile();
    let theirs = rig.fence_import_for(device, &descriptor);
    let theirs = theirs.expect("FENCE_IMPORT");
    let event = eventfd();
    assert_eq!(rig.fence_eventfd(theirs, FOREVER, &event), Ok(()));
    assert_eq!(rig.fence_destroy(theirs), Ok(()));
    fault(&rig);
    is_over(&event, "its device failed");
    assert_eq!(keeper.fence_signal(fence, 1), Ok(()));
    drop(rig);
    a_moment();
    assert_eq!(event.read(), Err(Errno::EAGAIN));
}

/// Who waits for what cannot come would keep the fence.
fn eventfds_wait_as_long_as_somebody_can_signal() {
    const NEVER: u64 = 9;
    let waiting = |client: &Client, fence: u32| {
        let event = eventfd();
        assert_eq!(client.fence_eventfd(fence, NEVER, &event), Ok(()));
        event
    };
    let is_quiet = |event: &EventFd, why: &str| {
        assert!(!told(event, Duration::from_millis(20)), "{why}");
    };
    let rig = Rig::new();
    let fence = rig.fence(0);
    let event = waiting(&rig, fence);
    assert_eq!(rig.fence_destroy(fence), Ok(()));
    assert_eq!(count(&event), 1, "the only handle");

    let fence = rig.fence(0);
    let event = waiting(&rig, fence);
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    assert_eq!(rig.fence_destroy(fence), Ok(()));
    is_quiet(&event, "there is a descriptor");
    let other = Client::new();
    let theirs = other.fence_import(&descriptor).expect("FENCE_IMPORT");
    drop(descriptor);
    is_quiet(&event, "another client has a handle");
    assert_eq!(other.fence_destroy(theirs), Ok(()));
    assert_eq!(count(&event), 1, "the last handle");

    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let event = waiting(&rig, fence);
    let reached = eventfd();
    assert_eq!(rig.fence_eventfd(fence, 4, &reached), Ok(()));
    let commands = blocked(&rig, &gate, 1);
    let syncs = [signal_value(fence, 4)];
    assert_eq!(rig.submit(rig.copy, &[commands], &syncs), Ok(()));
    assert_eq!(rig.fence_destroy(fence), Ok(()));
    is_quiet(&event, "work is to signal it");
    is_quiet(&reached, "work is to signal it");
    gate.cpu.write(0, 1);
    assert_eq!(count(&reached), 1);
    assert_eq!(count(&event), 1, "the work is done");
}

fn eventfds_wait_for_all_or_any() {
    let client = Client::new();
    let (a, b) = (client.fence(3), client.fence(0));
    let register = |values: &[(u32, u64)], flags: u32| {
        let event = eventfd();
        let told = client.fence_eventfd_for(values, flags, &event);
        assert_eq!(told, Ok(()), "{values:?}");
        event
    };
    let is_quiet = |event: &EventFd| !told(event, Duration::from_millis(20));
    // There already.
    assert_eq!(count(&register(&[(b, 0), (a, 3), (a, 1)], 0)), 1);
    assert_eq!(count(&register(&[(b, 1), (a, 3)], ANY)), 1);
    assert_eq!(count(&register(&[(a, 3), (a, 3)], 0)), 1);
    // Of several of a fence the last decides, and of any the first.
    let several = [(b, 1), (b, 3), (b, 2), (b, 3)];
    let [all, any] = [0, ANY].map(|flags| register(&several, flags));
    let [both, either] = [0, ANY].map(|flags| register(&[(a, 5), (b, 3)], flags));
    assert_eq!(client.fence_signal(b, 1), Ok(()));
    assert_eq!(count(&any), 1);
    assert!(is_quiet(&all) && is_quiet(&both) && is_quiet(&either));
    assert_eq!(client.fence_signal(a, 5), Ok(()));
    assert_eq!(count(&either), 1);
    assert!(is_quiet(&all) && is_quiet(&both));
    assert_eq!(client.fence_signal(b, 4), Ok(()));
    assert_eq!((count(&all), count(&both)), (1, 1));
    assert_eq!(client.fence_signal_all(&[(a, 9), (b, 9)]), Ok(()));
    a_moment();
    for event in [all, any, both, either] {
        assert_eq!(event.read(), Err(Errno::EAGAIN));
    }
}

/// Though their values come at once, before they wait, while they begin to, and after.
fn eventfds_of_several_are_told_once() {
    let client = Client::new();
    let fences = [client.fence(0), client.fence(0)];
    let rounds = u64::from(suite::rounds(500));
    let start = Barrier::new(3);
    thread::scope(|scope| {
        for fence in fences {
            let (client, start) = (&client, &start);
            scope.spawn(move || {
                for value in 1..=rounds {
                    start.wait();
                    assert_eq!(client.fence_signal(fence, value), Ok(()));
                }
            });
        }
        let mut events = Vec::new();
        let register = |value: u64| {
            [0, ANY].map(|flags| {
                let event = eventfd();
                let values = fences.map(|fence| (fence, value));
                assert_eq!(client.fence_eventfd_for(&values, flags, &event), Ok(()));
                event
            })
        };
        for value in 1..=rounds {
            events.extend(register(value));
            start.wait();
            events.extend(register(value));
            events.iter().for_each(|event| assert_eq!(count(event), 1));
            if value % 16 == 0 {
                a_moment();
                let again = events.iter().map(EventFd::read);
                assert!(again.into_iter().all(|read| read == Err(Errno::EAGAIN)));
            }
            events.clear();
        }
    });
}

/// The device of the first ends before, while or after an eventfd is registered.
fn eventfds_of_devices_that_end_meanwhile_leave_nothing() {
    quiet();
    let client = Client::new();
    let kept: Vec<_> = (0..64).map(|_| (client.fence(0), 9)).collect();
    let (start, device) = (Barrier::new(2), AtomicU32::new(0));
    let rounds = suite::rounds(400);
    let mut registered = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                start.wait();
                let ended = client.device_destroy(device.load(Ordering::Relaxed));
                assert_eq!(ended, Ok(()));
                start.wait();
            }
        });
        for _ in 0..rounds {
            let made = client.device_create(0).expect("DEVICE_CREATE");
            device.store(made, Ordering::Relaxed);
            let theirs = client.fence_create_for(made, 0, 0).expect("FENCE_CREATE");
            let values = [&[(theirs, 9)][..], &kept].concat();
            let event = eventfd();
            start.wait();
            let result = client.fence_eventfd_for(&values, ANY, &event);
            start.wait();
            match result {
                Ok(()) => {
                    registered += 1;
                    assert_eq!(count(&event), 1);
                }
                Err(Errno::ENOENT | Errno::ECANCELED) => (),
                Err(error) => panic!("FENCE_EVENTFD: {error}"),
            }
        }
    });
    println!("# {registered} of {rounds} registered");
    // As many values as a client may wait for.
    let event = eventfd();
    for _ in 0..64 {
        becomes("there is room for more", || {
            client.fence_eventfd_for(&kept, 0, &event) == Ok(())
        });
    }
    assert_eq!(
        client.fence_eventfd_for(&kept, 0, &event),
        Err(Errno::ENOSPC)
    );
}

fn eventfds_of_several_end_with_what_they_wait_for() {
    const NEVER: u64 = 9;
    let is_quiet = |event: &EventFd| !told(event, Duration::from_millis(20));
    // What nobody can signal: one of all, or each of any.
    let client = Client::new();
    let (a, b) = (client.fence(0), client.fence(0));
    let values = [(a, NEVER), (b, NEVER)];
    let [all, any] = [0, ANY].map(|flags| {
        let event = eventfd();
        assert_eq!(client.fence_eventfd_for(&values, flags, &event), Ok(()));
        event
    });
    assert_eq!(client.fence_destroy(a), Ok(()));
    assert_eq!(count(&all), 1);
    assert!(is_quiet(&any));
    assert_eq!(client.fence_destroy(b), Ok(()));
    assert_eq!(count(&any), 1);
    assert_eq!(all.read(), Err(Errno::EAGAIN));
    // The device of a handle, however it ends, the others' being as they were.
    for flags in [0, ANY] {
        for (fails, has_handles) in [(false, true), (false, false), (true, true), (true, false)] {
            let how = format!("flags {flags}, device failed {fails}, handles {has_handles}");
            let (rig, device) = fragile();
            let keeper = Client::new();
            let fence = keeper.fence(0);
            let descriptor = keeper.fence_export(fence).expect("FENCE_EXPORT");
            let own = rig.fence(0);
            let theirs = rig.fence_import_for(device, &descriptor);
            let theirs = theirs.expect("FENCE_IMPORT");
            let mine = rig.fence_import(&descriptor).expect("FENCE_IMPORT");
            let event = eventfd();
            let values = [(own, NEVER), (mine, NEVER), (theirs, NEVER)];
            assert_eq!(rig.fence_eventfd_for(&values, flags, &event), Ok(()));
            if !has_handles {
                assert_eq!(rig.fence_destroy(theirs), Ok(()), "{how}");
                assert_eq!(rig.fence_destroy(mine), Ok(()), "{how}");
            }
            assert!(is_quiet(&event), "{how}");
            match fails {
                true => assert_eq!(rig.device_mark_error(device), Ok(())),
                false => assert_eq!(rig.device_destroy(device), Ok(())),
            }
            assert!(told(&event, PATIENCE), "{how}");
            assert_eq!(event.read(), Ok(1), "{how}");
            assert!(rig.fence_has(own, 0) && !rig.fence_has(own, 1), "{how}");
            drop(rig);
            a_moment();
            assert_eq!(event.read(), Err(Errno::EAGAIN), "{how}");
        }
    }
}

fn eventfds_wait_as_long_as_any_process_has_the_file() {
    for flags in [0, ANY] {
        let (keeper, client) = (Client::new(), Client::new());
        let fence = keeper.fence(0);
        let descriptor = keeper.fence_export(fence).expect("FENCE_EXPORT");
        let theirs = client.fence_import(&descriptor).expect("FENCE_IMPORT");
        let values = [(client.fence(0), 1), (theirs, 1)];
        let events = [eventfd(), eventfd()];
        let go = EventFd::new().expect("eventfd");
        let register = |event| client.fence_eventfd_for(&values, flags, event);
        assert_eq!(register(&events[0]), Ok(()));
        let child = Child::start(|| register(&events[1]) == Ok(()) && go.read() == Ok(1));
        drop(client);
        let time = Duration::from_millis(20);
        assert!(events.iter().all(|event| !told(event, time)));
        assert_eq!(go.write(1), Ok(8));
        assert!(child.wait());
        assert_eq!(events.each_ref().map(count), [1, 1]);
        assert!(!keeper.fence_has(fence, 1));
    }
}

fn handles_have_a_limit() {
    quiet();
    let client = Client::new();
    let fences: Vec<_> = (0..1024).map(|_| client.fence(0)).collect();
    assert_eq!(client.fence_create(0), Err(Errno::ENOSPC));
    let descriptor = client.fence_export(fences[0]).expect("FENCE_EXPORT");
    assert_eq!(client.fence_import(&descriptor), Err(Errno::ENOSPC));
    assert_eq!(client.fence_destroy(fences[7]), Ok(()));
    assert_eq!(client.fence_import(&descriptor), Ok(fences[7]));
    assert_eq!(client.fence_create(0), Err(Errno::ENOSPC));
    // Others have their own.
    Client::new().fence(0);
}

fn eventfds_have_a_limit() {
    quiet();
    let client = Client::new();
    let (fence, eventfd) = (client.fence(0), eventfd());
    for n in 0..4096 {
        assert_eq!(client.fence_eventfd(fence, 1 + n % 2, &eventfd), Ok(()));
    }
    assert_eq!(client.fence_eventfd(fence, 1, &eventfd), Err(Errno::ENOSPC));
    assert_eq!(client.fence_signal(fence, 1), Ok(()));
    let count = Cell::new(0);
    becomes("half of them are told", || {
        count.set(count.get() + eventfd.read().unwrap_or(0));
        count.get() == 2048
    });
    assert_eq!(client.fence_eventfd(fence, 2, &eventfd), Ok(()));
    // And a fence has one: 2049 of its waits are left.
    let descriptor = client.fence_export(fence).expect("FENCE_EXPORT");
    let others = [Client::new(), Client::new()];
    let theirs = others
        .each_ref()
        .map(|other| other.fence_import(&descriptor).expect("FENCE_IMPORT"));
    let register = |n: usize| others[n / 4096].fence_eventfd(theirs[n / 4096], 2, &eventfd);
    for n in 0..8192 - 2049 {
        assert_eq!(register(n), Ok(()), "{n}");
    }
    assert_eq!(register(8192 - 2049), Err(Errno::ENOSPC));
    // Threads wait all the same.
    assert!(!client.fence_has(fence, 2));
    // Values count, as long as their eventfd is not told.
    let client = Client::new();
    let fences: Vec<_> = (0..256).map(|_| client.fence(0)).collect();
    for value in 1..=2 {
        let values: Vec<_> = fences.iter().map(|fence| (*fence, value)).collect();
        let register = || client.fence_eventfd_for(&values, ANY, &eventfd);
        for n in 0..16 {
            assert_eq!(register(), Ok(()), "{n}");
        }
        assert_eq!(register(), Err(Errno::ENOSPC));
        // Of one that is refused nothing stays.
        assert_eq!(client.fence_signal(fences[7], value), Ok(()));
        count.set(0);
        becomes("they are told", || {
            count.set(count.get() + eventfd.read().unwrap_or(0));
            count.get() >= 16
        });
        assert_eq!(count.get(), 16);
    }
}

fn other_processes_share_a_fence() {
    let client = Client::new();
    let (fence, answer) = (client.fence(0), client.fence(0));
    let descriptors =
        [fence, answer].map(|fence| client.fence_export(fence).expect("FENCE_EXPORT"));
    let child = Child::start(|| {
        let other = Client::new();
        let [fence, answer] =
            [0, 1].map(|n| other.fence_import(&descriptors[n]).expect("FENCE_IMPORT"));
        other.fence_gets(fence, 1) && other.fence_signal(answer, 7) == Ok(())
    });
    a_moment();
    assert!(!client.fence_has(answer, 1));
    assert_eq!(client.fence_signal(fence, 1), Ok(()));
    assert!(client.fence_gets(answer, 7));
    assert!(child.wait());
    // Handles of the same fence are independent.
    let again = client.fence_import(&descriptors[0]).expect("FENCE_IMPORT");
    assert_ne!(again, fence);
    assert_eq!(client.fence_destroy(fence), Ok(()));
    assert_eq!(client.fence_destroy(fence), Err(Errno::ENOENT));
    assert!(client.fence_has(again, 1));
}

fn only_fences_are_imported() {
    let client = Client::new();
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    assert_eq!(client.fence_import(&null), Err(Errno::EINVAL));
    assert_eq!(client.fence_import(eventfd()), Err(Errno::EINVAL));
    assert_eq!(client.fence_import(&client), Err(Errno::EINVAL));
    let fence = client.fence(0);
    let eventfd = client.fence_export(fence).expect("FENCE_EXPORT");
    assert_eq!(client.fence_eventfd(fence, 1, &eventfd), Err(Errno::EINVAL));
}

fn the_page_is_read_only_for_good() {
    const READ: ProtFlags = ProtFlags::PROT_READ;
    const BOTH: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
    let client = Client::new();
    let fence = client.fence(3);
    let descriptor = client.fence_export(fence).expect("FENCE_EXPORT");
    let shared = MapFlags::MAP_SHARED;
    let refused = |len, rights, flags| map(&descriptor, len, rights, flags).err();
    assert_eq!(refused(PAGE, BOTH, shared), Some(Errno::EACCES));
    assert_eq!(
        refused(PAGE, ProtFlags::PROT_WRITE, shared),
        Some(Errno::EACCES)
    );
    for rights in [READ, BOTH] {
        let private = refused(PAGE, rights, MapFlags::MAP_PRIVATE);
        assert_eq!(private, Some(Errno::EINVAL), "{rights:?}");
    }
    assert_eq!(refused(2 * PAGE, READ, shared), Some(Errno::EINVAL));
    let behind = Mapping::with(&descriptor, PAGE as u64, PAGE, READ, shared).err();
    assert_eq!(behind, Some(Errno::EINVAL));
    // Nor is there another way to it.
    let name = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&descriptor)
    );
    let reopened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(name);
    assert!(reopened.is_err(), "{reopened:?}");
    let mut page = map(&descriptor, PAGE, READ, shared).expect("mmap");
    assert_eq!(page.protect(BOTH), Err(Errno::EACCES));
    assert_eq!(page.protect(ProtFlags::PROT_WRITE), Err(Errno::EACCES));
    assert!(page.remap(2 * PAGE, MRemapFlags::MREMAP_MAYMOVE).is_err());
    let writes = in_child(|| {
        page.write(0, 7);
        true
    });
    assert!(!writes, "a write went through");
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .expect("/proc/self/mem");
    let written = std::os::unix::fs::FileExt::write_at(&memory, &[7; 8], page.address() as u64);
    assert!(written.is_err(), "{written:?}");
    assert_eq!(page.read(0), 3);
}

fn the_page_outlives_everything() {
    quiet();
    let client = Client::new();
    let fence = client.fence(0);
    let page = page(&client, fence);
    assert_eq!(client.fence_signal(fence, 5), Ok(()));
    // A child has it, too.
    let value = in_child(|| page.read(0) == 5);
    assert!(value);
    assert_eq!(client.fence_destroy(fence), Ok(()));
    drop(client);
    assert_eq!(page.read(0), 5);
    drop(Unbound::first());
    assert_eq!(page.read(0), 5);
    expect_working();
}

/// Maps a fence's value for the GPU: its address.
#[track_caller]
fn mapped_for_gpu(rig: &Rig, fence: u32) -> u64 {
    let va = rig.reserve(PAGE as u64);
    let bound = rig.bind_and_wait(rig.vm, &[client::map_fence(fence, va)]);
    assert_eq!(bound, Ok(()));
    va
}

/// What the GPU finds in the page at `va`: each of its words.
#[track_caller]
fn seen_by_gpu(rig: &Rig, va: u64) -> Vec<u64> {
    let seen = rig.buffer(Place::System, PAGE as u64);
    seen.cpu.fill(|_| 0x5555);
    assert_eq!(
        rig.run(Engine::Copy, &[rig::copy(va, seen.va, PAGE as u64)]),
        Ok(())
    );
    (0..PAGE).step_by(8).map(|at| seen.cpu.read(at)).collect()
}

fn the_gpu_reads_a_value_that_is_mapped() {
    let rig = Rig::new();
    let fence = rig.fence_create_for(0, KEPT, 7).expect("FENCE_CREATE");
    let va = mapped_for_gpu(&rig, fence);
    let is_seen = |value: u64| {
        let words = seen_by_gpu(&rig, va);
        assert_eq!(words[0], value);
        assert!(words[1..].iter().all(|word| *word == 0), "{words:?}");
    };
    is_seen(7);
    assert_eq!(rig.fence_signal(fence, 9), Ok(()));
    is_seen(9);
    // Where it is mapped twice, and in another address space, too.
    let again = mapped_for_gpu(&rig, fence);
    assert_eq!(seen_by_gpu(&rig, again)[0], 9);
    let other = Rig::new();
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(&descriptor).expect("FENCE_IMPORT");
    let there = mapped_for_gpu(&other, theirs);
    assert_eq!(seen_by_gpu(&other, there)[0], 9);
    // Nobody writes it by that.
    for engine in Engine::ALL {
        let writer = Rig::new();
        let theirs = writer.fence_import(&descriptor).expect("FENCE_IMPORT");
        let to = mapped_for_gpu(&writer, theirs);
        assert_eq!(
            writer.run(engine, &[write(to, 100)]),
            Err(Errno::EFAULT),
            "{engine:?}"
        );
    }
    is_seen(9);
}

fn the_gpu_waits_for_a_value_that_is_mapped() {
    let rig = Rig::new();
    let fence = rig.fence(0);
    let va = mapped_for_gpu(&rig, fence);
    let by_cpu = rig.start(Engine::Copy, &[rig::wait_value(va, 3)]);
    let by_gpu = rig.start(Engine::Compute, &[rig::wait_value(va, 5)]);
    a_moment();
    assert!(!by_cpu.has_ended() && !by_gpu.has_ended());
    assert_eq!(rig.fence_signal(fence, 4), Ok(()));
    assert_eq!(by_cpu.wait(), Ok(()));
    a_moment();
    assert!(!by_gpu.has_ended());
    let syncs = [signal_value(fence, 5)];
    assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()));
    assert_eq!(by_gpu.wait(), Ok(()));
}

fn a_value_that_is_mapped_keeps_no_fence() {
    let rig = Rig::new();
    let fence = rig.fence(2);
    let va = mapped_for_gpu(&rig, fence);
    let event = eventfd();
    assert_eq!(rig.fence_eventfd(fence, 9, &event), Ok(()));
    assert_eq!(rig.fence_destroy(fence), Ok(()));
    assert_eq!(count(&event), 1, "nobody can signal it");
    // Pages of the system come and go.
    for round in 0..16 {
        let other = rig.fence(100 + round);
        assert_eq!(rig.fence_destroy(other), Ok(()));
        drop(rig.buffer(Place::System, PAGE as u64));
    }
    assert_eq!(seen_by_gpu(&rig, va)[0], 2);
    let gone = client::unmap(va, PAGE as u64);
    assert_eq!(rig.bind_and_wait(rig.vm, &[gone]), Ok(()));
    let job = rig.start(Engine::Copy, &[rig::wait_value(va, 2)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
}

fn what_the_gpu_reads_counts_as_the_clients() {
    const MANY: u64 = 32;
    let rig = Rig::new();
    let fence = rig.fence(0);
    let used = || {
        let state = rig.device_state(0).expect("DEVICE_STATE");
        state.system_used
    };
    let start = rig.reserve(2 * MANY * PAGE as u64);
    let map = |page: u64| client::map_fence(fence, start + page * PAGE as u64);
    // Its page tables are there from then on.
    assert_eq!(rig.bind_and_wait(rig.vm, &[map(0)]), Ok(()));
    let before = used();
    let ops: Vec<_> = (1..MANY).map(map).collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    assert_eq!(used() - before, (MANY - 1) * PAGE as u64);
    let ops = [client::unmap(start, MANY * PAGE as u64)];
    assert_eq!(rig.bind_and_wait(rig.vm, &ops), Ok(()));
    becomes("all is given back", || used() < before);
}

/// Work that waits for the CPU to write `value` to the first word of a buffer.
fn blocked(rig: &Rig, gate: &Buffer, value: u64) -> drm_skua_buffer {
    rig.write(&[rig::wait_value(gate.va, value)])
}

fn the_gpu_signals_when_work_is_done() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let page = page(&rig, fence);
    let commands = blocked(&rig, &gate, 1);
    let done = rig.syncobj();
    let syncs = [signal_value(fence, 4), signal(done)];
    assert_eq!(rig.submit(rig.copy, &[commands], &syncs), Ok(()));
    a_moment();
    assert_eq!(page.read(0), 0);
    // It is promised: no other can come before it.
    for value in [1, 4] {
        assert_eq!(rig.fence_signal(fence, value), Err(Errno::EINVAL));
        let late = rig.submit(rig.copy, &[], &[signal_value(fence, value)]);
        assert_eq!(late, Err(Errno::EINVAL));
    }
    // Nor in one call.
    for two in [[6, 5], [5, 5]] {
        let syncs = two.map(|value| signal_value(fence, value));
        let result = rig.submit(rig.copy, &[], &syncs);
        assert_eq!(result, Err(Errno::EINVAL), "{two:?}");
    }
    gate.cpu.write(0, 1);
    // Who waits for the one sees the other.
    assert_eq!(rig.wait(done), Ok(()));
    assert_eq!(page.read(0), 4);
    // Work without commands, and a wait for what is there.
    let syncs = [
        wait_value(fence, 4),
        signal_value(fence, 5),
        signal_value(fence, 6),
    ];
    assert_eq!(rig.submit(rig.compute, &[], &syncs), Ok(()));
    assert!(rig.fence_gets(fence, 6));
}

fn signals_of_a_fence_come_in_order() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let commands = blocked(&rig, &gate, 1);
    assert_eq!(
        rig.submit(rig.compute, &[commands], &[signal_value(fence, 1)]),
        Ok(())
    );
    let second = rig
        .start_after(rig.copy, &[], &[signal_value(fence, 2)])
        .expect("SUBMIT");
    assert_eq!(second.wait(), Ok(()));
    assert_eq!(rig.fence_signal(fence, 3), Ok(()));
    a_moment();
    assert!(!rig.fence_has(fence, 1), "2 or 3 came before 1");
    gate.cpu.write(0, 1);
    assert!(rig.fence_gets(fence, 3));
}

fn binds_signal_when_they_are_done() {
    let rig = Rig::new();
    let (gate, target) = (
        rig.buffer(Place::System, 4096),
        rig.buffer(Place::System, 4096),
    );
    let (fence, done) = (rig.fence(0), rig.syncobj());
    let commands = blocked(&rig, &gate, 1);
    assert_eq!(
        rig.submit(rig.compute, &[commands], &[signal(done)]),
        Ok(())
    );
    let va = rig.reserve(4096);
    let bind = |syncs: &[drm_skua_sync]| {
        let op = client::map(target.handle, 0, va, 4096);
        rig.bind(rig.vm, &[op], syncs)
    };
    assert_eq!(bind(&[wait(done), signal_value(fence, 1)]), Ok(()));
    assert_eq!(bind(&[signal_value(fence, 1)]), Err(Errno::EINVAL));
    // It is promised: others come behind it.
    assert_eq!(rig.fence_signal(fence, 2), Ok(()));
    a_moment();
    assert!(!rig.fence_has(fence, 1));
    let job = rig.start_after(rig.copy, &[write(va, 7)], &[wait_value(fence, 1)]);
    gate.cpu.write(0, 1);
    assert!(rig.fence_gets(fence, 2));
    assert_eq!(job.expect("SUBMIT").wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 7);
    // Nothing to wait for.
    assert_eq!(bind(&[signal_value(fence, 3)]), Ok(()));
    assert!(rig.fence_gets(fence, 3));
}

fn binds_that_are_cancelled_signal_nothing() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let job = rig.start(Engine::Compute, &[rig::wait_value(gate.va, 1)]);
    let other = Client::new();
    let (vm, before) = (
        other.vm_create().expect("VM_CREATE"),
        other.syncobj_of(rig.sync_file(job.syncobj)),
    );
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(&descriptor).expect("FENCE_IMPORT");
    let op = client::unmap(1 << 20, 4096);
    let syncs = [wait(before), signal_value(theirs, 9)];
    assert_eq!(other.bind(vm, &[op], &syncs), Ok(()));
    assert_eq!(rig.fence_signal(fence, 5), Err(Errno::EINVAL));
    drop(other);
    becomes("nobody promises anything", || {
        rig.fence_signal(fence, 5) == Ok(())
    });
    assert!(rig.fence_gets(fence, 5) && !rig.fence_has(fence, 6));
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
}

fn moves_signal_when_they_are_done() {
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let handle = skua_selftests::moving::movable(&rig, 2 << 20);
    let va = rig.bound_at_will(handle, 2 << 20);
    assert_eq!(rig.run(Engine::Copy, &[write(va, 0x77)]), Ok(()));
    skua_selftests::moving::evict_all();
    // A page fault would wait for the move, and that for the gate: here are none.
    gate.cpu.write(0, 0);
    // What moves waits for all work that could use it.
    let job = rig.start(Engine::Compute, &[rig::wait_value(gate.va, 1)]);
    let values = [signal_value(fence, 1), signal_value(fence, 2)];
    assert_eq!(rig.make_resident(&[handle], &values), Ok(()));
    assert_eq!(
        rig.make_resident(&[handle], &[signal_value(fence, 2)]),
        Err(Errno::EINVAL)
    );
    assert_eq!(rig.fence_signal(fence, 3), Ok(()));
    a_moment();
    assert!(!rig.fence_has(fence, 1));
    gate.cpu.write(0, 1);
    assert!(rig.fence_gets(fence, 3));
    assert_eq!(skua_selftests::moving::place(&rig, handle), Place::Vram);
    assert_eq!(job.wait(), Ok(()));
    // There is nothing to move.
    let syncs = [signal_value(fence, 4)];
    assert_eq!(rig.make_resident(&[handle], &syncs), Ok(()));
    assert!(rig.fence_gets(fence, 4));
    assert_eq!(rig.evict(&[handle]), Ok(()));
}

fn moves_that_are_to_signal_have_a_limit() {
    const LIMIT: u64 = 1024;
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let handle = skua_selftests::moving::movable(&rig, 2 << 20);
    let va = rig.bound_at_will(handle, 2 << 20);
    assert_eq!(rig.run(Engine::Copy, &[write(va, 0x77)]), Ok(()));
    skua_selftests::moving::evict_all();
    let job = rig.start(Engine::Compute, &[rig::wait_value(gate.va, 1)]);
    let call = |value| rig.make_resident(&[handle], &[signal_value(fence, value)]);
    let accepted = (1..=LIMIT)
        .take_while(|value| call(*value) == Ok(()))
        .count();
    assert_eq!(accepted as u64, LIMIT);
    assert_eq!(call(LIMIT + 1), Err(Errno::ENOSPC));
    assert_eq!(rig.make_resident(&[handle], &[]), Ok(()), "without values");
    gate.cpu.write(0, 1);
    assert!(rig.fence_gets(fence, LIMIT));
    assert_eq!(job.wait(), Ok(()));
    // Not before all of them are over.
    becomes("there is room again", || call(LIMIT + 1) == Ok(()));
    assert!(rig.fence_gets(fence, LIMIT + 1));
}

fn fences_do_not_delay_each_other() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let (slow, quick) = (rig.fence(0), rig.fence(0));
    let commands = blocked(&rig, &gate, 1);
    assert_eq!(
        rig.submit(rig.compute, &[commands], &[signal_value(slow, 1)]),
        Ok(())
    );
    assert_eq!(rig.submit(rig.copy, &[], &[signal_value(quick, 1)]), Ok(()));
    assert!(rig.fence_gets(quick, 1));
    assert_eq!(rig.fence_signal(quick, 2), Ok(()));
    assert!(rig.fence_has(quick, 2) && !rig.fence_has(slow, 1));
    gate.cpu.write(0, 1);
    assert!(rig.fence_gets(slow, 1));
}

fn what_is_cancelled_signals_nothing() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    let context = rig.context_having_worked(Engine::Copy);
    let commands = blocked(&rig, &gate, 1);
    assert_eq!(
        rig.submit(context, &[commands], &[signal_value(fence, 1)]),
        Ok(())
    );
    let other = rig.start(Engine::Compute, &[rig::wait_value(gate.va + 8, 1)]);
    let syncs = [wait(other.syncobj), signal_value(fence, 5)];
    let behind = rig.start_after(context, &[], &syncs).expect("SUBMIT");
    assert_eq!(rig.fence_signal(fence, 7), Ok(()));
    assert_eq!(rig.context_destroy(context), Ok(()));
    gate.cpu.write(0, 1);
    assert_eq!(behind.wait(), Err(Errno::ECANCELED));
    // What runs is done, what does not is withdrawn; neither keeps what is behind it.
    assert!(rig.fence_gets(fence, 7));
    assert_eq!(page(&rig, fence).read(0), 7);
    gate.cpu.write(8, 1);
    assert_eq!(other.wait(), Ok(()));
}

fn work_is_held_for_the_cpu() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, 4096);
    let fence = rig.fence(0);
    for engine in Engine::ALL {
        for value in [1, 2] {
            let (value, at) = (value + page(&rig, fence).read(0), out.va);
            let commands = [write(at, value)];
            let syncs = [wait_value(fence, value)];
            let job = rig
                .start_after(rig.context(engine), &commands, &syncs)
                .expect("SUBMIT");
            a_moment();
            assert!(!ended(&job) && out.cpu.read(0) != value);
            assert_eq!(rig.fence_signal(fence, value), Ok(()));
            assert_eq!(job.wait(), Ok(()));
            assert_eq!(out.cpu.read(0), value);
        }
    }
}

fn work_is_held_for_another_context() {
    let rig = Rig::new();
    let fence = rig.fence(0);
    for engine in Engine::ALL {
        let contexts = [rig.new_context(engine), rig.new_context(engine)];
        let first = page(&rig, fence).read(0) + 1;
        // Each waits for what the other signals next, on one engine.
        let jobs: Vec<_> = (1..20)
            .rev()
            .map(|n| {
                let syncs = [
                    wait_value(fence, first + n),
                    signal_value(fence, first + n + 1),
                ];
                let context = rig.new_context(engine);
                rig.start_after(context, &[], &syncs).expect("SUBMIT")
            })
            .collect();
        let syncs = [wait_value(fence, first), signal_value(fence, first + 1)];
        let last = rig.start_after(contexts[0], &[], &syncs).expect("SUBMIT");
        a_moment();
        assert!(!jobs.iter().any(ended) && !ended(&last));
        assert_eq!(
            rig.submit(contexts[1], &[], &[signal_value(fence, first)]),
            Ok(())
        );
        for job in jobs {
            assert_eq!(job.wait(), Ok(()));
        }
        assert!(rig.fence_has(fence, first + 20));
    }
}

fn work_is_held_for_another_process() {
    let rig = Rig::new();
    let (fence, ready) = (rig.fence(0), rig.fence(0));
    let descriptors = [fence, ready].map(|fence| rig.fence_export(fence).expect("FENCE_EXPORT"));
    let child = Child::start(|| {
        let other = Rig::new();
        let [fence, ready] =
            [0, 1].map(|n| other.fence_import(&descriptors[n]).expect("FENCE_IMPORT"));
        other.fence_gets(ready, 1)
            && other.submit(other.copy, &[], &[signal_value(fence, 3)]) == Ok(())
            && other.fence_gets(fence, 3)
    });
    let job = rig
        .start_after(rig.copy, &[], &[wait_value(fence, 3)])
        .expect("SUBMIT");
    assert!(!ended(&job));
    assert_eq!(rig.fence_signal(ready, 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
    assert!(child.wait());
}

fn held_work_keeps_the_order_of_its_context() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, 4096);
    let (a, b) = (rig.fence(0), rig.fence(0));
    let job = |value, syncs: &[_]| {
        rig.start_after(rig.copy, &[write(out.va, value)], syncs)
            .expect("SUBMIT")
    };
    let jobs = [
        job(1, &[wait_value(a, 1)]),
        job(2, &[]),
        job(3, &[wait_value(b, 1)]),
        job(4, &[]),
    ];
    // Another context does not wait.
    assert_eq!(rig.run(Engine::Compute, &[write(out.va + 8, 1)]), Ok(()));
    assert_eq!(rig.fence_signal(b, 1), Ok(()));
    a_moment();
    assert!(!jobs.iter().any(ended), "out of turn");
    assert_eq!(out.cpu.read(0), 0);
    assert_eq!(rig.fence_signal(a, 1), Ok(()));
    for (job, value) in jobs.iter().zip(1..) {
        assert_eq!(job.wait(), Ok(()));
        assert!(out.cpu.read(0) >= value);
    }
    // Nothing is held any more.
    assert_eq!(rig.run(Engine::Copy, &[write(out.va, 9)]), Ok(()));
    assert_eq!(out.cpu.read(0), 9);
}

fn held_work_has_no_fence() {
    let rig = Rig::new();
    let fence = rig.fence(0);
    let (done, line) = (rig.syncobj(), rig.syncobj());
    let syncs = [wait_value(fence, 1), signal(done), signal_point(line, 3)];
    assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()));
    a_moment();
    // It cannot be waited for by what must end, and by what asks for that it can.
    assert_eq!(
        rig.submit(rig.compute, &[], &[wait(done)]),
        Err(Errno::EINVAL)
    );
    assert!(!rig.signals_within(done, 0, Duration::from_millis(20)));
    assert!(!rig.signals_within(line, 3, Duration::from_millis(20)));
    let client: &Client = &rig;
    thread::scope(|scope| {
        let waits = scope.spawn(|| (client.wait(done), client.wait_point(line, 3)));
        a_moment();
        assert_eq!(rig.fence_signal(fence, 1), Ok(()));
        assert_eq!(waits.join().expect("a thread"), (Ok(()), Ok(())));
    });
}

/// It is not kept from being moved out, and brought back when the work is let go.
fn held_work_is_brought_its_memory() {
    quiet();
    let rig = Rig::new();
    let fence = rig.fence(0);
    let handle = skua_selftests::moving::movable(&rig, 2 << 20);
    let va = rig.bound_at_will(handle, 2 << 20);
    let out = rig.buffer(Place::System, 4096);
    assert_eq!(rig.run(Engine::Copy, &[write(va, 0x77)]), Ok(()));
    let commands = [rig::copy(va, out.va, 8), write(va, 0x78)];
    let job = rig
        .start_after(rig.copy, &commands, &[wait_value(fence, 1)])
        .expect("SUBMIT");
    skua_selftests::moving::evict_all();
    assert_ne!(skua_selftests::moving::place(&rig, handle), Place::Vram);
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(out.cpu.read(0), 0x77);
}

fn held_work_has_a_limit() {
    quiet();
    let rig = Rig::new();
    let fence = rig.fence(0);
    let counted = rig.fence(0);
    let syncs = [wait_value(fence, 1)];
    assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()));
    for n in 1..4096 {
        let syncs = [signal_value(counted, n)];
        assert_eq!(rig.submit(rig.copy, &[], &syncs), Ok(()), "{n}");
    }
    for syncs in [&syncs[..], &[]] {
        assert_eq!(rig.submit(rig.copy, &[], syncs), Err(Errno::ENOSPC));
    }
    // Each context has its own.
    assert_eq!(rig.run(Engine::Compute, &[]), Ok(()));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert!(rig.fence_gets(counted, 4095));
    assert_eq!(rig.run(Engine::Copy, &[]), Ok(()));
}

/// Of which there is more in the queue then than a client may put there.
fn held_work_has_its_place_when_work_comes_back() {
    /// Held submissions, and of them those after which the work that runs goes a step on, when they
    /// come and when they are let go: it is not taken for work that hangs, however long that takes.
    const HELD: u64 = 4096;
    const STEP: u64 = 64;
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let (fence, counted) = (rig.fence(0), rig.fence(0));
    let context = rig.new_context(Engine::Copy);
    assert_eq!(rig.prioritise(context, -1), Ok(()));
    let last = 2 * HELD / STEP + 1;
    let steps: Vec<_> = (1..=last).map(|n| rig::wait_value(gate.va, n)).collect();
    let commands = rig.write(&steps);
    // As much as the ring takes.
    for _ in 0..32 {
        assert_eq!(rig.submit(context, &[commands], &[]), Ok(()));
    }
    for n in 1..=HELD {
        let syncs = [wait_value(fence, 1), signal_value(counted, n)];
        assert_eq!(rig.submit(context, &[], &syncs), Ok(()), "{n}");
        gate.cpu.write(0, n / STEP);
    }
    // More important work has it make room.
    assert_eq!(rig.run(Engine::Copy, &[write(gate.va + 8, 1)]), Ok(()));
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    becomes("nothing is held", || {
        let held = u64::from(skua_selftests::witness::held());
        gate.cpu.write(0, (2 * HELD).saturating_sub(held) / STEP);
        held == 0
    });
    let state = rig.state(context).expect("CONTEXT_STATE");
    assert_eq!(state.status, DRM_SKUA_CONTEXT_ACTIVE);
    gate.cpu.write(0, last);
    assert!(rig.fence_gets(counted, HELD));
}

fn held_work_is_cancelled_with_its_context() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let (fence, promised) = (rig.fence(0), rig.fence(0));
    let context = rig.context_having_worked(Engine::Copy);
    let commands = blocked(&rig, &gate, 1);
    let running = rig.syncobj();
    assert_eq!(rig.submit(context, &[commands], &[signal(running)]), Ok(()));
    let syncs = [wait_value(fence, 1), signal_value(promised, 1)];
    let jobs = [
        rig.start_after(context, &[], &syncs).expect("SUBMIT"),
        rig.start_after(context, &[], &[]).expect("SUBMIT"),
    ];
    assert_eq!(rig.context_destroy(context), Ok(()));
    for job in &jobs {
        assert_eq!(job.wait(), Err(Errno::ECANCELED));
    }
    assert!(!rig.has_signalled(running), "what runs is left alone");
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(running), Ok(()));
    assert!(!rig.fence_has(promised, 1));
    // It waits for nothing any more.
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(rig.fence_signal(promised, 1), Ok(()));
}

fn what_fails_without_its_context_loses_fences() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let nowhere = rig.reserve(4096);
    let fence = rig.fence(0);
    let context = rig.new_context(Engine::Copy);
    let commands = rig.write(&[
        write(gate.va + 8, 1),
        rig::wait_value(gate.va, 1),
        write(nowhere, 1),
    ]);
    let running = rig.syncobj();
    let syncs = [signal(running), signal_value(fence, 1)];
    assert_eq!(rig.submit(context, &[commands], &syncs), Ok(()));
    becomes("it runs", || gate.cpu.read(8) == 1);
    assert_eq!(rig.context_destroy(context), Ok(()));
    gate.cpu.write(0, 1);
    assert_eq!(rig.wait(running), Err(Errno::EFAULT));
    assert!(rig.fence_gets(fence, LOST));
}

fn held_work_outlives_the_handle_it_waits_by() {
    let rig = Rig::new();
    let device = rig.device_create(0).expect("DEVICE_CREATE");
    let theirs = rig.fence_create_for(device, KEPT, 0);
    let theirs = theirs.expect("FENCE_CREATE");
    let descriptor = rig.fence_export(theirs).expect("FENCE_EXPORT");
    let own = rig.fence_import(&descriptor).expect("FENCE_IMPORT");
    let job = rig
        .start_after(rig.copy, &[], &[wait_value(theirs, 1)])
        .expect("SUBMIT");
    assert_eq!(rig.device_destroy(device), Ok(()));
    a_moment();
    assert!(!ended(&job));
    assert_eq!(rig.fence_signal(own, 1), Ok(()));
    assert_eq!(job.wait(), Ok(()));
}

fn held_work_is_cancelled_with_its_file() {
    quiet();
    let watcher = Client::new();
    let rig = Rig::new();
    let fence = watcher.fence(0);
    let descriptor = watcher.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = rig.fence_import(&descriptor).expect("FENCE_IMPORT");
    let done = rig.syncobj();
    let syncs = [wait_value(theirs, 1), signal(done), signal_value(theirs, 9)];
    for context in [rig.copy, rig.compute] {
        assert_eq!(rig.submit(context, &[], &syncs), Ok(()));
    }
    let ops = [skua_selftests::client::map(
        rig.bo(Place::System, PAGE as u64),
        0,
        1 << 40,
        PAGE as u64,
    )];
    assert_eq!(rig.bind(rig.vm, &ops, &syncs), Ok(()));
    let before = watcher.region(Place::System).used;
    drop(rig);
    becomes("what it had is free", || {
        watcher.region(Place::System).used < before
    });
    // Nobody signals it now.
    assert_eq!(watcher.fence_signal(fence, 2), Ok(()));
    a_moment();
    assert!(!watcher.fence_has(fence, 3));
    expect_working();
}

fn a_killed_client_leaves_nothing_held() {
    quiet();
    let watcher = Client::new();
    let (fence, ready) = (watcher.fence(0), watcher.fence(0));
    let descriptors =
        [fence, ready].map(|fence| watcher.fence_export(fence).expect("FENCE_EXPORT"));
    let before = watcher.region(Place::System).used;
    let child = Child::start(|| {
        let rig = Rig::new();
        let [fence, ready] =
            [0, 1].map(|n| rig.fence_import(&descriptors[n]).expect("FENCE_IMPORT"));
        let syncs = [wait_value(fence, 1), signal_value(fence, 9)];
        rig.submit(rig.copy, &[], &syncs).expect("SUBMIT");
        rig.fence_signal(ready, 1).expect("FENCE_SIGNAL");
        rig.fence_wait(&[(fence, 1)], 0, PATIENCE * 100).is_ok()
    });
    assert!(watcher.fence_gets(ready, 1));
    child.kill();
    assert!(!child.wait());
    becomes("what it had is free", || {
        watcher.region(Place::System).used <= before
    });
    assert_eq!(watcher.fence_signal(fence, 1), Ok(()));
    a_moment();
    assert!(!watcher.fence_has(fence, 2));
    expect_working();
}

/// Work that waits for itself waits for ever, alone.
fn a_ring_of_holds_hurts_nobody() {
    quiet();
    let rig = Rig::new();
    let fences: Vec<_> = (0..8).map(|_| rig.fence(0)).collect();
    let jobs: Vec<_> = (0..fences.len())
        .map(|n| {
            let context = rig.new_context(Engine::Copy);
            let next = fences[(n + 1) % fences.len()];
            let syncs = [wait_value(fences[n], 1), signal_value(next, 1)];
            rig.start_after(context, &[], &syncs).expect("SUBMIT")
        })
        .collect();
    expect_working();
    skua_selftests::moving::evict_all();
    assert_eq!(rig.run(Engine::Copy, &[]), Ok(()));
    assert!(!jobs.iter().any(ended));
    drop(Unbound::first());
    drop(jobs);
    drop(rig);
    expect_working();
}

/// A rig of a device of its own, which fails as a whole.
fn fragile() -> (Rig, u32) {
    let client = Client::new();
    let device = client.device_create(0).expect("DEVICE_CREATE");
    (Rig::of_device(client, device), device)
}

fn fault(rig: &Rig) {
    let nowhere = rig.reserve(4096);
    assert_eq!(
        rig.run(Engine::Copy, &[write(nowhere, 1)]),
        Err(Errno::EFAULT)
    );
}

fn row_2_22_a_device_that_fails_loses_its_fences() {
    let (rig, device) = fragile();
    let innocent = rig.fence(0);
    let fence = rig.fence_create_for(device, 0, 4).expect("FENCE_CREATE");
    let seen = page(&rig, fence);
    let other = Client::new();
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(&descriptor).expect("FENCE_IMPORT");
    let (eventfd, several) = (eventfd(), eventfd());
    assert_eq!(rig.fence_eventfd(fence, 100, &eventfd), Ok(()));
    let both = [(innocent, 100), (fence, 100)];
    assert_eq!(rig.fence_eventfd_for(&both, 0, &several), Ok(()));
    let (client, sharer): (&Client, _) = (&rig, &other);
    thread::scope(|scope| {
        let time = PATIENCE * patience();
        let mine = scope.spawn(move || client.fence_wait(&[(fence, 5)], 0, time));
        // Also where it is one of several, and the others have not come.
        let all = scope.spawn(move || client.fence_wait(&both, 0, time));
        let shared = scope.spawn(move || sharer.fence_wait(&[(theirs, 5)], 0, time));
        a_moment();
        fault(&rig);
        // Who belongs to the device is told, and others have a value.
        assert_eq!(mine.join().expect("a thread"), Err(Errno::ECANCELED));
        assert_eq!(all.join().expect("a thread"), Err(Errno::ECANCELED));
        assert_eq!(shared.join().expect("a thread"), Ok(0));
    });
    assert_eq!(seen.read(0), LOST);
    assert_eq!([&eventfd, &several].map(count), [1, 1]);
    assert!(other.fence_has(theirs, LOST));
    assert_eq!(other.fence_signal(theirs, 7), Err(Errno::EINVAL));
    assert_eq!(rig.fence_signal(fence, 7), Err(Errno::ECANCELED));
    assert_eq!(rig.fence_eventfd(fence, 1, &eventfd), Err(Errno::ECANCELED));
    let refused = rig.fence_eventfd_for(&[(innocent, 0), (fence, 1)], ANY, &eventfd);
    assert_eq!(
        (refused, eventfd.read()),
        (Err(Errno::ECANCELED), Err(Errno::EAGAIN))
    );
    assert_eq!(rig.fence_create_for(device, 0, 0), Err(Errno::ECANCELED));
    // Another device of the same file goes on.
    assert_eq!(rig.fence_signal(innocent, 1), Ok(()));
}

fn row_2_22_a_fence_can_keep_its_value() {
    let (rig, device) = fragile();
    let fence = rig.fence_create_for(device, KEPT, 4).expect("FENCE_CREATE");
    let seen = page(&rig, fence);
    let other = Client::new();
    let descriptor = rig.fence_export(fence).expect("FENCE_EXPORT");
    let theirs = other.fence_import(&descriptor).expect("FENCE_IMPORT");
    let nowhere = rig.reserve(4096);
    let commands = rig.write(&[write(nowhere, 1)]);
    let client: &Client = &rig;
    thread::scope(|scope| {
        let time = PATIENCE * patience();
        let mine = scope.spawn(move || client.fence_wait(&[(fence, 6)], 0, time));
        a_moment();
        assert_eq!(
            rig.submit(rig.copy, &[commands], &[signal_value(fence, 5)]),
            Ok(())
        );
        assert_eq!(mine.join().expect("a thread"), Err(Errno::ECANCELED));
    });
    assert_eq!(seen.read(0), 4);
    // What was not kept is in nobody's way.
    assert_eq!(other.fence_signal(theirs, 5), Ok(()));
    assert_eq!(seen.read(0), 5);
}

/// From before it is let go until all is done; and, where its memory is locked by the CPU, while
/// the worker has the first and tries again.
fn row_2_23_held_work_ends_once_though_its_device_fails() {
    const JOBS: u64 = 16;
    const SIZE: u64 = 8 << 20;
    let mut last = Vec::new();
    for round in 0..suite::rounds(16) {
        let (rig, device) = fragile();
        let program = rig.program(COUNT);
        let counter = rig.buffer(Place::System, 4096);
        let vram = 1 << rig.region(Place::Vram).id;
        let brought = rig.bo_create(SIZE, 0, vram).expect("BO_CREATE");
        rig.bound_at_will(brought, SIZE);
        let work = [dispatch(&program, COUNT, &address(counter.va))];
        let fence = rig.fence(0);
        let jobs: Vec<_> = (0..JOBS)
            .map(|_| rig.start_after(rig.compute, &work, &[wait_value(fence, 1)]))
            .map(|job| job.expect("SUBMIT"))
            .collect();
        evict_some();
        let is_locked = round % 2 == 1;
        if is_locked {
            assert!(rig.lock(brought).is_ok(), "BO_LOCK");
        }
        assert_eq!(rig.fence_signal(fence, 1), Ok(()));
        thread::sleep(Duration::from_millis(2) * round);
        assert_eq!(rig.device_mark_error(device), Ok(()));
        let ends: Vec<_> = jobs.iter().map(Job::wait).collect();
        let done = ends.iter().filter(|end| **end == Ok(())).count();
        let cancelled = ends.iter().filter(|end| **end == Err(Errno::ECANCELED));
        assert_eq!(
            done + cancelled.count(),
            jobs.len(),
            "round {round}: {ends:?}"
        );
        assert!(!is_locked || done == 0, "round {round}: {done} done");
        assert_eq!(counter.cpu.read32(0) as usize, done, "round {round}");
        let completed = || rig.state(rig.compute).expect("CONTEXT_STATE").completed;
        becomes("all have ended", || completed() >= JOBS);
        assert_eq!(completed(), JOBS, "round {round}");
        last.push(done);
    }
    println!("# done before the device failed: {last:?}");
    expect_working();
}

fn held_work_fails_with_its_device() {
    let (rig, device) = fragile();
    let never = rig.fence(0);
    let promised = rig.fence_create_for(device, 0, 0).expect("FENCE_CREATE");
    let own = rig.fence(0);
    let syncs = [
        wait_value(never, 1),
        signal_value(promised, 1),
        signal_value(own, 1),
    ];
    let job = rig.start_after(rig.compute, &[], &syncs).expect("SUBMIT");
    fault(&rig);
    assert_eq!(job.wait(), Err(Errno::ECANCELED));
    let pages = [page(&rig, promised), page(&rig, own), page(&rig, never)];
    becomes("the fences are lost", || pages[1].read(0) == LOST);
    assert_eq!((pages[0].read(0), pages[2].read(0)), (LOST, 0));
    assert_eq!(rig.submit(rig.compute, &[], &[]), Err(Errno::ECANCELED));
}

fn row_2_22_an_unbind_ends_waits_and_holds() {
    quiet();
    let rig = Rig::new();
    let (lost, kept) = (
        rig.fence(0),
        rig.fence_create_for(0, KEPT, 2).expect("FENCE_CREATE"),
    );
    let pages = [page(&rig, lost), page(&rig, kept)];
    mapped_for_gpu(&rig, kept);
    let events = [eventfd(), eventfd(), eventfd()];
    assert_eq!(rig.fence_eventfd(kept, 9, &events[0]), Ok(()));
    for (flags, event) in [0, ANY].iter().zip(&events[1..]) {
        let both = [(kept, 9), (lost, 9)];
        assert_eq!(rig.fence_eventfd_for(&both, *flags, event), Ok(()));
    }
    let job = rig
        .start_after(rig.copy, &[], &[wait_value(kept, 9)])
        .expect("SUBMIT");
    let ops = [skua_selftests::client::unmap(1 << 40, PAGE as u64)];
    let bind = rig.bind(rig.vm, &ops, &[wait_value(kept, 9)]);
    assert_eq!(bind, Ok(()));
    let (client, held): (&Client, _) = (&rig, job.syncobj);
    let ended = thread::scope(|scope| {
        let time = PATIENCE * 100;
        let waits = [lost, kept]
            .map(|fence| scope.spawn(move || client.fence_wait(&[(fence, 9)], 0, time)));
        let waits_for = scope.spawn(move || client.try_wait(held, time));
        a_moment();
        let unbound = Unbound::first();
        for wait in waits {
            assert_eq!(wait.join().expect("a thread"), Err(Errno::ENODEV));
        }
        assert!(waits_for.join().is_ok());
        unbound
    });
    assert_eq!((pages[0].read(0), pages[1].read(0)), (LOST, 2));
    assert_eq!(events.each_ref().map(count), [1, 1, 1]);
    assert_eq!(rig.fence_signal(lost, 9), Err(Errno::ENODEV));
    drop(job);
    drop(rig);
    drop(ended);
    expect_working();
}
