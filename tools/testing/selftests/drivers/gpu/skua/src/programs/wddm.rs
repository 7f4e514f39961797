// SPDX-License-Identifier: MIT

//! `tools/wddm` on the driver: what WDDM promises its clients.
//!
//! Where a test needs work that is under way, it submits a WAIT for a value in memory, the *gate*,
//! that the CPU writes when it pleases. A call that returns before the gate is opened did not wait
//! for that work; one that does wait would be there until the watchdog ends the work, and the
//! device with it. So nothing here measures how long a call takes.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use skua_guest::host::expect_error;
use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::find;
use skua_selftests::program::{address, POLL};
use skua_selftests::race::Caller;
use skua_selftests::raw::{dies_of, in_child, with_alarm, Signal};
use skua_selftests::rig::{copy, dispatch_at, fill, wait_value, write};
use skua_selftests::wddm_rig::{patience, read, vram_size, vram_used, Rig, PAGE};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Cases, Client, Place};
use skua_spec::fault::Reason;
use skua_spec::pci::BAR_VRAM;
use wddm::{
    Access, Adapter, Allocation, AllocationDesc, Context, DestroyFlags, Device, DeviceState,
    EngineKind, Handle, MapFlags, MapMode, MonitoredFence, OfferFlags, OfferPriority,
    PreemptionCaps, PriorityClass, Process, Status, WaitFor, MAX_ALLOCATIONS, MAX_FENCES,
};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        work_is_done_and_seen,
        row_0_01_locks_do_not_wait_and_maps_do,
        row_0_02_destruction_is_deferred_and_does_not_wait: 60 at_rest,
        row_0_02_destruction_waits_for_what_is_held: 60 at_rest,
        row_0_02_a_lock_that_waits_holds_nobody_up: 60 at_rest,
        row_0_04_assume_not_in_use_frees_at_once_and_faults: 60 at_rest,
        row_0_05_synchronous_destruction_returns_when_memory_is_free: 60,
        row_0_05_row_0_06_flags_without_a_meaning_are_refused,
        row_2_25_priorities_are_of_a_resource_or_a_list,
        row_2_25_one_priority_is_for_all_of_a_resource: 60 at_rest,
        row_2_25_an_initial_priority_is_kept: 60 at_rest,
        row_2_25_0_is_no_initial_priority,
        row_2_25_priorities_are_set_for_all_or_none: 60 at_rest,
        row_0_06_a_destroy_names_a_resource_or_a_list: 60,
        row_0_07_a_map_without_overwriting_never_waits,
        row_0_09_a_map_that_must_not_wait_says_so,
        row_0_10_waits_sleep: 60,
        row_0_10_waits_end_when_the_device_is_lost: 60,
        row_0_10_events_fire_once,
        row_0_11_locks_nest_at_one_address,
        row_0_12_lock2_has_no_flags,
        row_0_16_row_0_20_what_the_cpu_does_not_reach_is_locked_in_system_memory at_rest,
        the_adapter_says_how_finely_it_preempts,
        row_2_20_important_work_goes_first: 60,
        row_2_20_a_class_is_of_the_process: 60,
        row_2_20_priorities_have_handles: 60,
        row_2_20_more_than_normal_is_for_who_may,
        row_2_20_a_process_says_what_goes_first: 60,
        row_2_22_fences_of_a_device_in_error_have_the_largest_value: 60,
        row_2_22_a_hang_wakes_all_who_wait: 120,
        row_2_22_a_reset_wakes_all_who_wait: 120,
        a_malformed_command_is_a_dma_fault,
        a_device_can_be_marked_as_in_error,
        values_are_signalled_in_order,
        a_wait_for_any_tells_which,
        a_context_waits_for_what_nobody_has_submitted,
        contexts_wait_for_each_other_in_a_chain: 60,
        a_cpu_signal_comes_after_those_of_the_gpu,
        a_gpu_signal_comes_after_those_of_the_cpu,
        cpu_signals_of_different_fences_do_not_wait_for_each_other,
        signals_of_several_fences_are_all_or_nothing: 60,
        work_waits_for_more_fences_than_a_submission_takes: 60,
        many_threads_wait_for_many_values: 60,
        many_submissions_are_queued: 60,
        packets_that_wait_are_limited: 120,
        devices_and_fences_are_limited: 60,
        bad_fences_are_refused,
        bad_submissions_are_refused,
        bad_allocations_are_refused at_rest,
        addresses_are_read_only_to_the_program,
        stale_handles_name_nothing,
        handles_of_other_types_and_devices_are_refused,
        a_destroyed_device_takes_everything_with_it: 60,
        a_destroyed_context_drops_what_waits: 60 at_rest,
        work_of_a_destroyed_context_keeps_its_allocations: 60 at_rest,
        a_fault_of_a_destroyed_context_is_its_devices,
        a_fault_of_what_was_held_is_its_devices,
        who_waits_for_cancelled_work_is_woken,
        a_destroyed_fence_lets_go_of_who_waits,
        work_finds_the_end_of_a_destroyed_fence,
        a_fence_that_others_have_goes_on,
        the_end_of_a_shared_fence_wakes_its_devices_sleepers,
        the_end_of_a_device_fires_its_events,
        row_2_22_a_fence_can_keep_its_value,
        an_unplug_ends_waits_of_a_busy_device: 120,
        an_unplug_ends_waits_of_an_idle_device: 120,
        an_unplug_is_noticed_without_contexts: 60,
        a_process_opens_an_adapter_once: 60,
        a_forked_child_takes_nothing_away: 60,
        a_forked_child_takes_no_lock_away,
        contexts_whose_work_is_over_are_no_limit: 60,
        nothing_is_left_behind: 120,
        waits_end_with_the_process,
    ])
}

/// Waits until something holds that nothing tells of.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "never: {what}");
        suite::pause();
    }
}

fn work_is_done_and_seen() {
    let rig = Rig::new();
    let fence = rig.fence();
    let (a, b) = (rig.vram(1 << 20), rig.system(1 << 20));
    let (va, bytes) = rig.write(&[
        fill(0x5a5a_1234, a.gpu_va(), a.size()),
        copy(a.gpu_va(), b.gpu_va(), b.size()),
    ]);
    let submission = rig.copy.submission().commands(va, bytes);
    assert_eq!(submission.signal(&fence, 3).submit(), Ok(()));
    assert_eq!(fence.wait(3, patience()), Ok(()));
    assert_eq!(fence.value(), 3);
    for offset in [0, (1 << 20) - 8] {
        assert_eq!(read(&b, offset), 0x5a5a_1234_5a5a_1234);
    }
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn row_0_01_locks_do_not_wait_and_maps_do() {
    let rig = Rig::new();
    let a = rig.system(PAGE);
    let (va, bytes) = rig.write(&[rig.wait_for_gate(), write(a.gpu_va(), 7)]);
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(job.uses(&a, Access::Write).submit(), Ok(()));
    // The kernel does not know that it is in use, so that it cannot wait.
    let lock = a.lock2(0).expect("Lock2");
    assert_eq!(lock.read::<u64>(0), Ok(0));
    // The library knows.
    let opened = AtomicBool::new(false);
    thread::scope(|scope| {
        let mapped = scope.spawn(|| {
            let map = a.map(MapMode::Read, MapFlags::empty()).expect("Map");
            (opened.load(Ordering::SeqCst), map.read::<u64>(0))
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!mapped.is_finished(), "it did not wait");
        opened.store(true, Ordering::SeqCst);
        rig.open_gate();
        assert_eq!(mapped.join().expect("a map"), (true, Ok(7)));
    });
    assert_eq!(lock.read::<u64>(0), Ok(7));
}

fn row_0_02_destruction_is_deferred_and_does_not_wait() {
    quiet();
    let rig = Rig::new();
    let (a, b) = (rig.vram(8 << 20), rig.system(8 << 20));
    let size = a.size();
    let va = a.gpu_va();
    let used = rig.vram_used();
    rig.start(
        &rig.copy,
        &[
            rig.wait_for_gate(),
            fill(0xabcd_0123, va, size),
            copy(va, b.gpu_va(), size),
        ],
    );
    assert_eq!(a.destroy(DestroyFlags::empty()), Ok(()));
    // The name is gone at once, the memory and the addresses are not.
    assert_eq!(a.lock2(0).err(), Some(Status::INVALID_HANDLE));
    assert_eq!(
        a.destroy(DestroyFlags::empty()),
        Err(Status::INVALID_HANDLE)
    );
    // Time to do it too early.
    thread::sleep(Duration::from_millis(50));
    let next = rig.vram(size);
    assert!(next.gpu_va() >= va + size || next.gpu_va() + size <= va);
    assert_eq!(rig.vram_used(), used + size);
    // What comes after the call does not count.
    rig.start(&rig.compute, &[wait_value(rig.gate.gpu_va() + 8, 1)]);
    rig.open_gate();
    eventually("the memory is free", || rig.vram_used() == used);
    for offset in [0, (8 << 20) - 8] {
        assert_eq!(read(&b, offset), 0xabcd_0123_abcd_0123);
        assert_eq!(read(&next, offset), 0);
    }
    let lock = rig.gate.lock2(0).expect("Lock2");
    assert_eq!(lock.write(8, 1_u64), Ok(()));
    rig.finish(&rig.compute);
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn row_0_02_destruction_waits_for_what_is_held() {
    quiet();
    let rig = Rig::new();
    let fence = rig.fence();
    let (a, b) = (rig.vram(1 << 20), rig.system(1 << 20));
    let used = rig.vram_used();
    // Nobody has submitted this value: the kernel holds the work.
    assert_eq!(rig.compute.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    rig.start(
        &rig.compute,
        &[
            fill(0x7777_8888, a.gpu_va(), a.size()),
            copy(a.gpu_va(), b.gpu_va(), a.size()),
        ],
    );
    assert_eq!(a.destroy(DestroyFlags::empty()), Ok(()));
    rig.finish(&rig.copy);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.vram_used(), used);
    assert_eq!(fence.signal(1), Ok(()));
    eventually("the memory is free", || rig.vram_used() == used - (1 << 20));
    assert_eq!(read(&b, (1 << 20) - 8), 0x7777_8888_7777_8888);
    assert_eq!(rig.device.state(), DeviceState::Active);
}

/// Nor does it go on with what is destroyed meanwhile; who waits for the end of that waits for it.
fn row_0_02_a_lock_that_waits_holds_nobody_up() {
    let rig = Rig::new();
    let adapter = rig.device.adapter();
    let desc = AllocationDesc::new(PAGE, adapter.vram() | adapter.system()).hidden();
    let make = || Allocation::create(&rig.device, &desc).expect("an allocation");
    let [stays, goes, is_waited_for] = [make(), make(), make()];
    let callers = [const { Caller::new() }; 5];
    // A page fault would wait for the moves, and these for the gate: here are none.
    let gate = rig.gate.lock2(0).expect("Lock2");
    assert_eq!(gate.write(0, 0_u64), Ok(()));
    // They are to move, and for all that the kernel knows the work uses them.
    rig.start(&rig.compute, &[rig.wait_for_gate()]);
    thread::scope(|scope| {
        let lock = |n: usize, allocation| {
            let caller: &Caller = &callers[n];
            let allocation: &Allocation = allocation;
            scope.spawn(move || caller.call(|| allocation.lock2(0).map(drop)))
        };
        let locks = [&stays, &stays, &goes, &is_waited_for];
        let locks: Vec<_> = (0..).zip(locks).map(|(n, it)| lock(n, it)).collect();
        callers[..4].iter().for_each(Caller::wait_until_asleep);
        assert_eq!(stays.unlock2(), Err(Status::INVALID_PARAMETER));
        assert_eq!(stays.set_priority(1), Ok(()));
        assert_eq!(goes.destroy(DestroyFlags::empty()), Ok(()));
        let destroy = scope.spawn(|| {
            let flags = DestroyFlags::SYNCHRONOUS | DestroyFlags::ASSUME_NOT_IN_USE;
            callers[4].call(|| is_waited_for.destroy(flags))
        });
        callers[4].wait_until_asleep();
        assert!(is_waited_for.is_destroyed());
        assert!(locks.iter().all(|lock| !lock.is_finished()), "it waited");
        assert_eq!(gate.write(0, 1_u64), Ok(()));
        let gone = Err(Status::INVALID_HANDLE);
        for (lock, expected) in locks.into_iter().zip([Ok(()), Ok(()), gone, gone]) {
            assert_eq!(lock.join().expect("a result"), expected);
        }
        assert_eq!(destroy.join().expect("a result"), Ok(()));
    });
    assert_eq!((stays.unlock2(), stays.unlock2()), (Ok(()), Ok(())));
    assert_eq!(stays.unlock2(), Err(Status::INVALID_PARAMETER));
    // The kernel has no more locks of it than that.
    let offer = || {
        rig.device
            .offer(&[&stays], OfferPriority::Low, OfferFlags::empty())
    };
    assert_eq!(offer(), Ok(()));
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn row_0_04_assume_not_in_use_frees_at_once_and_faults() {
    quiet();
    let rig = Rig::new();
    let other = Rig::new();
    // Not in use, by clears neither: free on return.
    let used = rig.vram_used();
    let idle = rig.vram(1 << 20);
    rig.start(&rig.copy, &[fill(1, idle.gpu_va(), 1 << 20)]);
    rig.finish(&rig.copy);
    assert_eq!(idle.destroy(DestroyFlags::ASSUME_NOT_IN_USE), Ok(()));
    assert_eq!(rig.vram_used(), used);

    // In use: freed all the same, and another client gets the memory.
    let a = rig.vram(4 << 20);
    let (va, size) = (a.gpu_va(), a.size());
    rig.start(&rig.copy, &[fill(1, va, size)]);
    rig.finish(&rig.copy);
    rig.start(&rig.copy, &[rig.wait_for_gate(), fill(!0, va, size)]);
    assert_eq!(a.destroy(DestroyFlags::ASSUME_NOT_IN_USE), Ok(()));
    assert_eq!(rig.vram_used(), used);
    // All that is free, and nobody has to leave for it.
    let canaries: Vec<Allocation> = std::iter::from_fn(|| {
        let adapter = other.device.adapter();
        let desc = AllocationDesc::new(1 << 20, adapter.vram());
        let has_room = vram_size(adapter) - vram_used(adapter) >= 1 << 20;
        has_room.then(|| Allocation::create(&other.device, &desc).expect("an allocation"))
    })
    .collect();
    assert!(canaries.len() >= 4, "{}", canaries.len());

    rig.open_gate();
    let mut state = DeviceState::Active;
    eventually("the device is in error", || {
        state = rig.device.state();
        state != DeviceState::Active
    });
    match state {
        DeviceState::PageFault(fault) => assert_eq!(fault.address, va),
        state => panic!("{state:?}"),
    }
    let fence = MonitoredFence::create(&rig.device, 0);
    assert_eq!(fence.err(), Some(Status::DEVICE_REMOVED));
    for canary in &canaries {
        let lock = canary.lock2(0).expect("Lock2");
        let words = lock.to_vec(0, 1 << 20).expect("bytes");
        assert!(words.iter().all(|byte| *byte == 0), "a canary was hit");
    }
    assert_eq!(other.device.state(), DeviceState::Active);
    other.finish(&other.copy);
}

fn row_0_05_synchronous_destruction_returns_when_memory_is_free() {
    quiet();
    let rig = Rig::new();
    let used = rig.vram_used();
    let a = rig.vram(8 << 20);
    rig.start(
        &rig.copy,
        &[rig.wait_for_gate(), fill(1, a.gpu_va(), a.size())],
    );
    thread::scope(|scope| {
        let destroy = scope.spawn(|| {
            // A signal interrupts it, and does not end it.
            let result = with_alarm(Duration::from_millis(50), || {
                a.destroy(DestroyFlags::SYNCHRONOUS)
            });
            (result, rig.vram_used())
        });
        // Its handle is dead meanwhile.
        eventually("it is destroyed", || a.is_destroyed());
        assert_eq!(a.lock2(0).err(), Some(Status::INVALID_HANDLE));
        thread::sleep(Duration::from_millis(200));
        assert!(!destroy.is_finished(), "it did not wait");
        rig.open_gate();
        let (result, then) = destroy.join().expect("a result");
        assert_eq!((result, then), (Ok(()), used));
    });
    assert_eq!(rig.device.state(), DeviceState::Active);
    // Not in use: both flags, and never more than one at a time in video memory.
    let most = rig.device.adapter().segments().expect("segments");
    let vram = rig.device.adapter().vram();
    let size = most
        .iter()
        .find(|s| vram.contains(s.id))
        .expect("VRAM")
        .size
        / 10
        * 9
        / PAGE
        * PAGE;
    for flags in [
        DestroyFlags::SYNCHRONOUS,
        DestroyFlags::SYNCHRONOUS | DestroyFlags::ASSUME_NOT_IN_USE,
    ] {
        for round in 0..4 {
            let big = rig.vram(size);
            rig.start(&rig.copy, &[fill(round, big.gpu_va(), 4096)]);
            if flags.contains(DestroyFlags::ASSUME_NOT_IN_USE) {
                rig.finish(&rig.copy);
            }
            assert_eq!(big.destroy(flags), Ok(()), "{flags:?}");
            assert_eq!(rig.vram_used(), used, "{flags:?}, round {round}");
        }
    }
}

/// A process with one device.
struct Handles {
    process: Process,
    adapter: Handle,
    device: Handle,
}

impl Handles {
    fn new() -> Self {
        let process = Process::new();
        let luid = Process::enum_adapters().expect("adapters")[0];
        let adapter = process.open_adapter_from_luid(luid).expect("an adapter");
        let device = process.create_device(adapter).expect("a device");
        Self {
            process,
            adapter,
            device,
        }
    }

    fn desc(&self) -> AllocationDesc {
        let adapter = self.process.adapter(self.adapter).expect("the adapter");
        AllocationDesc::new(PAGE, adapter.system())
    }

    fn allocations(&self, count: usize, resource: bool) -> (Option<Handle>, Vec<Handle>) {
        let descs = vec![self.desc(); count];
        let created = self
            .process
            .create_allocation2(self.device, &descs, resource)
            .expect("allocations");
        (created.resource, created.allocations)
    }

    /// Whether all have a name, or none has.
    #[track_caller]
    fn expect(&self, allocations: &[Handle], live: bool) {
        for handle in allocations {
            let locked = self.process.lock2(self.device, *handle, 0);
            assert_eq!(locked.is_ok(), live, "{handle:?}");
            if live {
                assert_eq!(self.process.unlock2(self.device, *handle), Ok(()));
            }
        }
    }
}

fn row_0_05_row_0_06_flags_without_a_meaning_are_refused() {
    let h = Handles::new();
    let (_, list) = h.allocations(1, false);
    let mut cases = Cases::new();
    for bits in (2..32).map(|bit| 1 << bit).chain([u32::MAX, 4 | 1, 8 | 2]) {
        let result = h.process.destroy_allocation2(h.device, None, &list, bits);
        cases.expect(
            &format!("{bits:#x}"),
            result,
            Err(Status::INVALID_PARAMETER),
        );
    }
    cases.finish();
    h.expect(&list, true);
    for bits in 0..4 {
        let (_, list) = h.allocations(1, false);
        let result = h.process.destroy_allocation2(h.device, None, &list, bits);
        assert_eq!(result, Ok(()), "{bits}");
        h.expect(&list, false);
    }
}

fn row_2_25_priorities_are_of_a_resource_or_a_list() {
    let h = Handles::new();
    let other = h.process.create_device(h.adapter).expect("a device");
    let foreign = h
        .process
        .create_allocation2(other, &[h.desc()], true)
        .expect("an allocation");
    let (resource, members) = h.allocations(3, true);
    let (_, singles) = h.allocations(2, false);
    let parameter = Err(Status::INVALID_PARAMETER);
    let mixed = vec![members[0], singles[0]];
    let stale = h.allocations(1, false).1;
    let destroyed = h.process.destroy_allocation2(h.device, None, &stale, 0);
    assert_eq!(destroyed, Ok(()));
    type Case<'a> = (
        &'a str,
        Option<Handle>,
        Vec<Handle>,
        &'a [u32],
        Result<(), Status>,
    );
    let cases: Vec<Case<'_>> = vec![
        ("a resource", resource, vec![], &[1], Ok(())),
        ("a list", None, mixed.clone(), &[1, u32::MAX], Ok(())),
        ("neither", None, vec![], &[], parameter),
        ("both", resource, members.clone(), &[1], parameter),
        ("zero", None, mixed.clone(), &[1, 0], parameter),
        (
            "stale",
            None,
            vec![singles[0], stale[0]],
            &[1, 1],
            Err(Status::INVALID_HANDLE),
        ),
        ("too few", None, mixed.clone(), &[1], parameter),
        ("too many", None, mixed, &[1, 2, 3], parameter),
        ("none for a resource", resource, vec![], &[], parameter),
        ("two for a resource", resource, vec![], &[1, 1], parameter),
        ("twice", None, vec![singles[0]; 2], &[1, 1], parameter),
        (
            "foreign",
            None,
            foreign.allocations.clone(),
            &[1],
            parameter,
        ),
        (
            "foreign resource",
            foreign.resource,
            vec![],
            &[1],
            parameter,
        ),
        (
            "a device",
            None,
            vec![h.device],
            &[1],
            Err(Status::OBJECT_TYPE_MISMATCH),
        ),
    ];
    for (name, resource, list, priorities, expected) in cases {
        let result = h
            .process
            .set_allocation_priority(h.device, resource, &list, priorities);
        assert_eq!(result, expected, "{name}");
    }
    // A resource of which nothing is left.
    let set = |priority| {
        h.process
            .set_allocation_priority(h.device, resource, &[], &[priority])
    };
    let destroyed = h.process.destroy_allocation2(h.device, None, &members, 0);
    assert_eq!(destroyed, Ok(()));
    assert_eq!((set(1), set(0)), (Ok(()), parameter));
}

fn row_2_25_one_priority_is_for_all_of_a_resource() {
    a_resource_of_low_priority_leaves(|desc| desc, &[1]);
}

fn row_2_25_an_initial_priority_is_kept() {
    a_resource_of_low_priority_leaves(|desc| desc.priority(1), &[]);
}

/// Its allocations leave before older ones, the last as the first: as their description says, or
/// by a priority that is set.
fn a_resource_of_low_priority_leaves(
    low: impl FnOnce(AllocationDesc) -> AllocationDesc,
    set: &[u32],
) {
    quiet();
    let h = Handles::new();
    let adapter = h.process.adapter(h.adapter).expect("the adapter");
    let desc = AllocationDesc::new(LARGE, adapter.vram() | adapter.system());
    let create = |desc, resource| {
        let descs = [desc; 3];
        let created = h.process.create_allocation2(h.device, &descs, resource);
        created.expect("allocations")
    };
    let (singles, members) = (create(desc, false), create(low(desc), true));
    // Where VRAM shows it, the allocation is there: whoever has its memory next clears it.
    let value = |n: u64| 0x2025_0000_0000_0001 + n;
    let all = singles.allocations.iter().chain(&members.allocations);
    for (n, handle) in (0..).zip(all) {
        let map = h.process.lock2(h.device, *handle, 0).expect("Lock2");
        assert_eq!(map.write(0, value(n)), Ok(()));
        assert_eq!(h.process.unlock2(h.device, *handle), Ok(()));
    }
    if !set.is_empty() {
        let set = h
            .process
            .set_allocation_priority(h.device, members.resource, &[], set);
        assert_eq!(set, Ok(()));
    }
    expect_to_leave(value, 3..6);
}

/// Of an allocation of which some have to leave for others, in bytes.
const LARGE: u64 = 2 << 20;

/// Of six allocations of [`LARGE`] bytes with these values in video memory, these three leave
/// before the others do.
#[track_caller]
fn expect_to_leave(value: fn(u64) -> u64, first: Range<usize>) {
    let bar = Function::first().map_bar(BAR_VRAM);
    let gone = || -> Vec<bool> { (0..6).map(|n| find(&bar, value(n)).is_empty()).collect() };
    let other = Client::new();
    while other.try_bo_in_free(Place::Vram, LARGE).is_ok() {}
    assert_eq!(gone(), [false; 6]);
    for count in 1..=3 {
        let press = other.bo(Place::Vram, LARGE);
        let highest = other.set_priority(&[press], u32::MAX);
        assert_eq!(highest, Ok(()));
        assert_eq!(other.map(press).read(0), 0);
        let gone = gone();
        let of = |some: &[bool]| some.iter().filter(|gone| **gone).count();
        let left = (of(&gone), of(&gone[first.clone()]));
        assert_eq!(left, (count, count), "of six, of the three {first:?}");
    }
}

/// Not of some of them, before one that is refused.
fn row_2_25_priorities_are_set_for_all_or_none() {
    /// `D3DDDI_ALLOCATIONPRIORITY_LOW`.
    const LOW: u32 = 0x5000_0000;
    quiet();
    let (rig, other) = (Rig::new(), Rig::new());
    let adapter = rig.device.adapter();
    let desc = AllocationDesc::new(LARGE, adapter.vram() | adapter.system());
    let value = |n: u64| 0x2025_0000_0000_0101 + n;
    let all: Vec<Allocation> = (0..6)
        .map(|n| {
            let desc = if n < 3 { desc.priority(LOW) } else { desc };
            let allocation = Allocation::create(&rig.device, &desc).expect("an allocation");
            let map = allocation.lock2(0).expect("Lock2");
            assert_eq!(map.write(0, value(n)), Ok(()));
            assert_eq!(allocation.unlock2(), Ok(()));
            allocation
        })
        .collect();
    let dead = rig.system(PAGE);
    assert_eq!(dead.destroy(DestroyFlags::empty()), Ok(()));
    let parameter = Status::INVALID_PARAMETER;
    let mut cases = Cases::new();
    for (what, last, status) in [
        ("a dead one", (&dead, 1), Status::INVALID_HANDLE),
        ("zero", (&rig.gate, 0), parameter),
        ("twice", (&all[3], 1), parameter),
        ("another device's", (&other.gate, 1), parameter),
    ] {
        let lower = all[3..].iter().map(|allocation| (allocation, 1));
        let list: Vec<_> = lower.chain([last]).collect();
        let set = rig.device.set_allocation_priority(&list);
        cases.expect(what, set, Err(status));
    }
    let set = rig.device.set_allocation_priority(&[]);
    cases.expect("none", set, Err(parameter));
    cases.finish();
    expect_to_leave(value, 0..3);
}

fn row_2_25_0_is_no_initial_priority() {
    let h = Handles::new();
    let create = |priority| {
        let descs = [h.desc(), h.desc().priority(priority)];
        h.process.create_allocation2(h.device, &descs, false)
    };
    assert_eq!(create(0), Err(Status::INVALID_PARAMETER));
    for priority in [1, u32::MAX] {
        assert!(create(priority).is_ok(), "{priority}");
    }
}

fn row_0_06_a_destroy_names_a_resource_or_a_list() {
    let h = Handles::new();
    let other = h.process.create_device(h.adapter).expect("a device");
    let foreign = h
        .process
        .create_allocation2(other, &[h.desc()], true)
        .expect("an allocation");
    let (resource, members) = h.allocations(3, true);
    let (_, others) = h.allocations(1, true);
    let (_, singles) = h.allocations(2, false);
    let all = [&members[..], &others[..], &singles[..]].concat();
    let mut stale = h.allocations(1, false).1;
    let destroyed = h.process.destroy_allocation2(h.device, None, &stale, 0);
    assert_eq!(destroyed, Ok(()));
    let parameter = Err(Status::INVALID_PARAMETER);
    let handle = Err(Status::INVALID_HANDLE);
    let mismatch = Err(Status::OBJECT_TYPE_MISMATCH);
    let mut list = singles.clone();
    list.append(&mut stale);
    type Case<'a> = (&'a str, Option<Handle>, Vec<Handle>, Result<(), Status>);
    let cases: Vec<Case<'_>> = vec![
        ("neither", None, vec![], parameter),
        ("both", resource, members.clone(), parameter),
        ("twice", None, vec![singles[0], singles[0]], parameter),
        (
            "two resources",
            None,
            vec![members[0], others[0]],
            parameter,
        ),
        (
            "in and out of one",
            None,
            vec![members[0], singles[0]],
            parameter,
        ),
        (
            "foreign",
            None,
            vec![singles[0], foreign.allocations[0]],
            parameter,
        ),
        ("foreign resource", foreign.resource, vec![], parameter),
        ("stale", None, list, handle),
        (
            "zero",
            None,
            vec![singles[0], Handle::from_value(0)],
            handle,
        ),
        (
            "a resource in the list",
            None,
            vec![resource.expect("one")],
            mismatch,
        ),
        (
            "an allocation as a resource",
            Some(singles[0]),
            vec![],
            mismatch,
        ),
        ("a device as a resource", Some(h.device), vec![], mismatch),
        (
            "too many",
            None,
            vec![singles[0]; MAX_ALLOCATIONS + 1],
            parameter,
        ),
    ];
    for (name, resource, list, expected) in cases {
        let result = h.process.destroy_allocation2(h.device, resource, &list, 0);
        assert_eq!(result, expected, "{name}");
        h.expect(&all, true);
    }
    // What is right: a part of a resource, the rest of it by its name, and a list.
    let destroy =
        |resource, list: &[Handle]| h.process.destroy_allocation2(h.device, resource, list, 0);
    assert_eq!(destroy(None, &members[..1]), Ok(()));
    h.expect(&members[..1], false);
    h.expect(&members[1..], true);
    assert_eq!(destroy(resource, &[]), Ok(()));
    h.expect(&members, false);
    assert_eq!(destroy(resource, &[]), Err(Status::INVALID_HANDLE));
    assert_eq!(destroy(None, &singles), Ok(()));
    h.expect(&singles, false);
    h.expect(&others, true);
    // The limit itself.
    let (_, many) = h.allocations(MAX_ALLOCATIONS, false);
    assert_eq!(destroy(None, &many), Ok(()));
}

fn row_0_07_a_map_without_overwriting_never_waits() {
    let rig = Rig::new();
    let a = rig.system(1 << 16);
    let b = rig.system(1 << 15);
    let before = a.lock2(0).expect("Lock2").as_ptr();
    // The GPU reads the first half while the CPU appends to the second.
    let half = 1 << 15;
    let (va, bytes) = rig.write(&[
        rig.wait_for_gate(),
        copy(a.gpu_va(), b.gpu_va(), half as u64),
    ]);
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(
        job.uses(&a, Access::Read).uses(&b, Access::Write).submit(),
        Ok(())
    );
    // Nothing here can wait: nobody opens the gate before it is over.
    for n in 0..10_000 {
        let map = a.map(MapMode::NoOverwrite, MapFlags::empty()).expect("Map");
        assert_eq!(map.as_ptr(), before);
        assert_eq!(map.write(half + n % half / 8 * 8, n as u64), Ok(()));
    }
    // To be told not to wait makes no difference.
    let map = a.map(MapMode::NoOverwrite, MapFlags::DO_NOT_WAIT);
    assert_eq!(map.expect("Map").as_ptr(), before);
    rig.open_gate();
    rig.finish(&rig.copy);
    assert_eq!(read(&a, half), 9999 / (half as u64) * (half as u64) + 7);
}

fn row_0_09_a_map_that_must_not_wait_says_so() {
    let rig = Rig::new();
    let fence = rig.fence();
    let (a, b) = (rig.system(PAGE), rig.system(PAGE));
    let map =
        |allocation: &Allocation, mode| allocation.map(mode, MapFlags::DO_NOT_WAIT).map(|_| ());
    let modes = [MapMode::Read, MapMode::Write, MapMode::ReadWrite];
    for mode in modes {
        assert_eq!(map(&a, mode), Ok(()), "idle, {mode:?}");
    }
    let (va, bytes) = rig.write(&[rig.wait_for_gate(), copy(a.gpu_va(), b.gpu_va(), PAGE)]);
    // Queued behind a value that nobody has submitted counts, too.
    assert_eq!(rig.copy.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    let job = rig.copy.submission().commands(va, bytes);
    let job = job.uses(&a, Access::Read).uses(&b, Access::Write);
    assert_eq!(job.submit(), Ok(()));
    for state in ["queued", "running"] {
        // What the GPU reads may be read.
        assert_eq!(map(&a, MapMode::Read), Ok(()), "{state}");
        for (allocation, mode) in [
            (&a, MapMode::Write),
            (&a, MapMode::ReadWrite),
            (&b, MapMode::Read),
            (&b, MapMode::Write),
        ] {
            let result = map(allocation, mode);
            assert_eq!(result, Err(Status::WAS_STILL_DRAWING), "{state}, {mode:?}");
        }
        if state == "queued" {
            assert_eq!(fence.signal(1), Ok(()));
        }
    }
    // A map that failed is no lock.
    assert_eq!(b.unlock2(), Err(Status::INVALID_PARAMETER));
    rig.open_gate();
    rig.finish(&rig.copy);
    for mode in modes {
        assert_eq!(map(&a, mode), Ok(()), "done, {mode:?}");
        assert_eq!(map(&b, mode), Ok(()), "done, {mode:?}");
    }
}

/// Whether none of the threads runs for a second. One that polls does, however long it sleeps in
/// between and whatever else the machine does.
fn all_asleep(callers: &[Caller]) -> bool {
    let asleep = || -> Option<Vec<u64>> { callers.iter().map(Caller::asleep).collect() };
    let before = asleep();
    before.is_some()
        && (0..5).all(|_| {
            thread::sleep(Duration::from_millis(200));
            asleep() == before
        })
}

fn row_0_10_waits_sleep() {
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.system(PAGE);
    let (va, bytes) = rig.write(&[rig.wait_for_gate(), write(a.gpu_va(), 1)]);
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(
        job.uses(&a, Access::Write).signal(&fence, 1).submit(),
        Ok(())
    );
    let callers = [const { Caller::new() }; 4];
    let waits = [(&fence, 1), (&fence, 3)];
    thread::scope(|scope| {
        let map = scope.spawn(|| {
            callers[0].call(|| {
                // A signal interrupts it, and does not end it.
                with_alarm(Duration::from_millis(100), || {
                    a.map(MapMode::Read, MapFlags::empty()).map(|_| ())
                })
            })
        });
        let wait = scope.spawn(|| callers[1].call(|| fence.wait(1, patience())));
        // Whose value nobody has submitted.
        let later = scope.spawn(|| callers[2].call(|| fence.wait(2, patience())));
        let all = scope.spawn(|| {
            callers[3].call(|| rig.device.wait_from_cpu(&waits, WaitFor::All, patience()))
        });
        // The first one wakes up at each signal.
        eventually("it sleeps", || callers[0].asleep().is_some());
        eventually("they sleep", || all_asleep(&callers[1..]));
        rig.open_gate();
        assert_eq!(map.join().expect("a result"), Ok(()));
        assert_eq!(wait.join().expect("a result"), Ok(()));
        // Nor does it run while the others go on.
        eventually("it sleeps", || all_asleep(&callers[2..]));
        assert_eq!(fence.signal(2), Ok(()));
        assert_eq!(later.join().expect("a result"), Ok(()));
        assert_eq!(fence.signal(3), Ok(()));
        assert_eq!(all.join().expect("a result"), Ok(0));
    });
    let begin = Instant::now();
    let limit = Duration::from_millis(50);
    assert_eq!(fence.wait(4, limit), Err(Status::TIMEOUT));
    assert!(begin.elapsed() >= limit);
}

/// Work that faults when the gate opens.
fn fail_at_gate(rig: &Rig, context: &Context) {
    // Next to the gate's page nothing is bound.
    let nothing = rig.gate.gpu_va() + PAGE;
    rig.start(context, &[rig.wait_for_gate(), write(nothing, 1)]);
}

fn row_0_10_waits_end_when_the_device_is_lost() {
    let rig = Rig::new();
    let (fence, never) = (rig.fence(), rig.fence());
    let a = rig.system(PAGE);
    fail_at_gate(&rig, &rig.copy);
    let (va, bytes) = rig.write(&[write(a.gpu_va(), 1)]);
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(
        job.uses(&a, Access::Write).signal(&fence, 1).submit(),
        Ok(())
    );
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    assert_eq!(never.notify(9, event.as_fd()), Ok(()));
    thread::scope(|scope| {
        let removed = Err(Status::DEVICE_REMOVED);
        let map = scope.spawn(|| a.map(MapMode::Read, MapFlags::empty()).map(|_| ()));
        let wait = scope.spawn(|| fence.wait(1, patience()));
        // Whose value nobody has submitted, and nobody will.
        let hopeless = scope.spawn(|| never.wait(5, Duration::MAX));
        thread::sleep(Duration::from_millis(50));
        assert!(!map.is_finished() && !wait.is_finished() && !hopeless.is_finished());
        rig.open_gate();
        assert_eq!(map.join().expect("a result"), removed);
        assert_eq!(wait.join().expect("a result"), removed);
        assert_eq!(hopeless.join().expect("a result"), removed);
    });
    let mut ready = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(patience()).expect("a time");
    assert_eq!(poll(&mut ready, timeout), Ok(1), "the event never fired");
    assert!(matches!(rig.device.state(), DeviceState::PageFault(_)));
    // From now on at once, for what was asked before as for what is new.
    assert_eq!(fence.wait(0, patience()), Err(Status::DEVICE_REMOVED));
    let map = a.map(MapMode::Read, MapFlags::DO_NOT_WAIT);
    assert_eq!(map.err(), Some(Status::DEVICE_REMOVED));
    let (va, bytes) = rig.write_dead();
    assert_eq!(rig.copy.submit(va, bytes), Err(Status::DEVICE_REMOVED));
    assert_eq!(rig.compute.submit(va, bytes), Err(Status::DEVICE_REMOVED));
    assert_eq!(fence.signal(2), Err(Status::DEVICE_REMOVED));
}

/// What an eventfd, of which so much is expected, counted until it was quiet for a while.
fn count(event: &EventFd, expected: u64) -> u64 {
    let mut sum = 0;
    let mut ready = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
    loop {
        let time = match sum < expected {
            true => PollTimeout::try_from(patience()).expect("a time"),
            false => PollTimeout::from(200_u8),
        };
        if poll(&mut ready, time) != Ok(1) {
            return sum;
        }
        sum += event.read().expect("a count");
    }
}

fn row_0_10_events_fire_once() {
    let rig = Rig::new();
    let (a, b) = (rig.fence(), rig.fence());
    let events: Vec<EventFd> = (0..5)
        .map(|_| EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd"))
        .collect();
    let both = [(&a, 2), (&b, 1)];
    assert_eq!(a.notify(2, events[0].as_fd()), Ok(()));
    for (event, how) in [(&events[1], WaitFor::All), (&events[2], WaitFor::Any)] {
        let registered = rig.device.wait_from_cpu_async(&both, how, event.as_fd());
        assert_eq!(registered, Ok(()));
    }
    // There already.
    assert_eq!(a.notify(0, events[3].as_fd()), Ok(()));
    let expect = |expected: [u64; 5]| {
        let counts = events.iter().zip(expected);
        let counts: Vec<u64> = counts.map(|(event, one)| count(event, one)).collect();
        assert_eq!(counts, expected);
    };
    expect([0, 0, 0, 1, 0]);
    assert_eq!(a.signal(1), Ok(()));
    expect([0, 0, 0, 0, 0]);
    // Signalled by the GPU.
    assert_eq!(rig.copy.signal_from_gpu(&[(&a, 2)]), Ok(()));
    expect([1, 0, 1, 0, 0]);
    assert_eq!(rig.compute.signal_from_gpu(&[(&b, 1)]), Ok(()));
    expect([0, 1, 0, 0, 0]);
    let all = rig
        .device
        .wait_from_cpu_async(&both, WaitFor::All, events[4].as_fd());
    assert_eq!(all, Ok(()));
    assert_eq!(a.signal(3), Ok(()));
    assert_eq!(b.signal(3), Ok(()));
    expect([0, 0, 0, 0, 1]);
    // One that is destroyed has its value; the device is the end of all.
    let never = [(&rig.fence(), 1), (&b, 9)];
    let waits = [(&rig.fence(), 1), (&b, 5)];
    for (waits, event) in [(&waits, &events[0]), (&never, &events[1])] {
        let all = rig
            .device
            .wait_from_cpu_async(waits, WaitFor::All, event.as_fd());
        assert_eq!(all, Ok(()));
    }
    waits[0].0.destroy();
    expect([0, 0, 0, 0, 0]);
    assert_eq!(b.signal(5), Ok(()));
    expect([1, 0, 0, 0, 0]);
    let null = fs::File::options().write(true).open("/dev/null");
    let null = null.expect("a file");
    for value in [0, 9] {
        let one = a.notify(value, null.as_fd());
        assert_eq!(one, Err(Status::INVALID_PARAMETER), "{value}");
        for how in [WaitFor::All, WaitFor::Any] {
            let waits = [(&a, value), (&b, value)];
            let many = rig.device.wait_from_cpu_async(&waits, how, null.as_fd());
            assert_eq!(many, Err(Status::INVALID_PARAMETER), "{value}, {how:?}");
        }
    }
    rig.device.destroy();
    expect([0, 1, 0, 0, 0]);
}

fn row_0_11_locks_nest_at_one_address() {
    let rig = Rig::new();
    for a in [rig.system(PAGE), rig.vram(PAGE)] {
        assert_eq!(a.unlock2(), Err(Status::INVALID_PARAMETER));
        let locks: Vec<_> = (0..3).map(|_| a.lock2(0).expect("Lock2")).collect();
        let address = locks[0].as_ptr();
        assert!(locks.iter().all(|lock| lock.as_ptr() == address));
        assert_eq!(locks[0].write(8, 0x1111_2222_u64), Ok(()));
        assert_eq!((a.unlock2(), a.unlock2()), (Ok(()), Ok(())));
        assert_eq!(locks[2].read(8), Ok(0x1111_2222_u64));
        assert_eq!(a.unlock2(), Ok(()));
        assert_eq!(a.unlock2(), Err(Status::INVALID_PARAMETER));
        // Again, after all were undone.
        assert_eq!(a.lock2(0).expect("Lock2").as_ptr(), address);
        // Destroyed while it is locked: nobody else's memory ever appears there.
        let size = a.size();
        assert_eq!(a.destroy(DestroyFlags::SYNCHRONOUS), Ok(()));
        assert_eq!(a.unlock2(), Err(Status::INVALID_HANDLE));
        assert_eq!(a.lock2(0).err(), Some(Status::INVALID_HANDLE));
        let next = [rig.system(size), rig.vram(size)];
        for other in &next {
            rig.start(&rig.copy, &[fill(0x9999_9999, other.gpu_va(), size)]);
        }
        rig.finish(&rig.copy);
        assert!(dies_of(Signal::SIGBUS, || locks[0].read::<u64>(8)));
    }
}

fn row_0_12_lock2_has_no_flags() {
    let h = Handles::new();
    let (_, list) = h.allocations(1, false);
    for flags in (0..32).map(|bit| 1 << bit).chain([u32::MAX]) {
        let lock = h.process.lock2(h.device, list[0], flags);
        assert_eq!(lock.err(), Some(Status::INVALID_PARAMETER), "{flags:#x}");
    }
    // None of them was a lock.
    let unlock = h.process.unlock2(h.device, list[0]);
    assert_eq!(unlock, Err(Status::INVALID_PARAMETER));
    assert!(h.process.lock2(h.device, list[0], 0).is_ok());
}

fn row_0_16_row_0_20_what_the_cpu_does_not_reach_is_locked_in_system_memory() {
    let rig = Rig::new();
    let adapter = rig.device.adapter();
    let (vram, aperture, system) = (adapter.vram(), adapter.aperture(), adapter.system());
    let plain = |segments| AllocationDesc::new(PAGE, segments);
    for desc in [
        plain(aperture).hidden(),
        plain(aperture).cached(),
        plain(vram | aperture).hidden(),
        plain(vram | aperture).cached(),
        plain(system).hidden(),
        plain(system).cached(),
        plain(vram | system).hidden(),
        plain(vram | system).cached(),
    ] {
        let allocation = Allocation::create(&rig.device, &desc).expect("an allocation");
        let lock = allocation.lock2(0).expect("Lock2");
        assert_eq!(lock.write(0, 5_u64), Ok(()));
        let again = allocation.lock2(0).expect("Lock2");
        assert_eq!(again.read::<u64>(0), Ok(5), "{desc:?}");
        assert_eq!(allocation.unlock2(), Ok(()));
        assert_eq!(allocation.unlock2(), Ok(()));
        assert_eq!(allocation.unlock2(), Err(Status::INVALID_PARAMETER));
        assert_eq!(allocation.recorder().err(), Some(Status::INVALID_PARAMETER));
    }
    let hidden = Allocation::create(&rig.device, &plain(vram).hidden()).expect("an allocation");
    assert_eq!(hidden.lock2(0).err(), Some(Status::INVALID_PARAMETER));
    assert_eq!(hidden.unlock2(), Err(Status::INVALID_PARAMETER));
    // It could never be locked.
    let cached = Allocation::create(&rig.device, &plain(vram).cached());
    assert_eq!(cached.err(), Some(Status::INVALID_PARAMETER));
    let both = Allocation::create(&rig.device, &plain(system).hidden().cached());
    assert_eq!(both.err(), Some(Status::INVALID_PARAMETER));
}

/// Who may make its work more important than others'.
fn row_2_20_more_than_normal_is_for_who_may() {
    let h = Handles::new();
    let p = &h.process;
    let context = p.create_context_virtual(h.device, 0).expect("a context");
    nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).expect("setuid");
    let expected = |is_more| match is_more {
        true => Err(Status::ACCESS_DENIED),
        false => Ok(()),
    };
    for priority in -7..=7 {
        let set = p.set_context_scheduling_priority(context, priority);
        assert_eq!(set, expected(priority > 0), "{priority}");
        let get = p.get_context_scheduling_priority(context);
        assert_eq!(get, Ok(priority.min(0)));
        // Among its own anybody says what he likes.
        let set = p.set_context_in_process_scheduling_priority(context, priority);
        assert_eq!(set, Ok(()), "{priority}");
    }
    for class in [
        PriorityClass::Idle,
        PriorityClass::BelowNormal,
        PriorityClass::Normal,
        PriorityClass::AboveNormal,
        PriorityClass::High,
        PriorityClass::Realtime,
    ] {
        let set = p.set_process_scheduling_priority_class(h.adapter, class);
        assert_eq!(set, expected(class > PriorityClass::Normal), "{class:?}");
    }
}

fn the_adapter_says_how_finely_it_preempts() {
    let adapter = Adapter::open_first().expect("an adapter");
    let instruction = PreemptionCaps {
        graphics: 500,
        compute: 500,
    };
    assert_eq!(adapter.preemption_caps(), instruction);
}

fn row_2_20_important_work_goes_first() {
    let rig = Rig::new();
    let (low, high) = (&rig.compute, rig.fresh(EngineKind::Compute));
    for priority in [i32::MIN, -8, 8, i32::MAX] {
        let refused = low.set_scheduling_priority(priority);
        assert_eq!(refused, Err(Status::INVALID_PARAMETER), "{priority}");
    }
    assert_eq!(low.set_scheduling_priority(-7), Ok(()));
    assert_eq!(high.set_scheduling_priority(7), Ok(()));
    goes_first(&rig, low, || rig.finish(&high));
    high.destroy();
    let refused = high.set_scheduling_priority(0);
    assert_eq!(refused, Err(Status::INVALID_HANDLE));
}

fn row_2_20_a_process_says_what_goes_first() {
    let rig = Rig::new();
    let (low, high) = (&rig.compute, rig.fresh(EngineKind::Compute));
    for priority in [i32::MIN, -8, 8, i32::MAX] {
        let refused = low.set_in_process_scheduling_priority(priority);
        assert_eq!(refused, Err(Status::INVALID_PARAMETER), "{priority}");
    }
    assert_eq!(low.set_in_process_scheduling_priority(-7), Ok(()));
    assert_eq!(high.set_in_process_scheduling_priority(7), Ok(()));
    goes_first(&rig, low, || rig.finish(&high));
    high.destroy();
    let refused = high.set_in_process_scheduling_priority(0);
    assert_eq!(refused, Err(Status::INVALID_HANDLE));
}

fn row_2_20_priorities_have_handles() {
    let h = Handles::new();
    let p = &h.process;
    let [one, other] = [(); 2].map(|()| p.create_context_virtual(h.device, 0).expect("a context"));
    let get = |context| {
        let all = p.get_context_scheduling_priority(context);
        (all, p.get_context_in_process_scheduling_priority(context))
    };
    let set = |context, all, process| {
        let all = p.set_context_scheduling_priority(context, all);
        (
            all,
            p.set_context_in_process_scheduling_priority(context, process),
        )
    };
    assert_eq!(get(one), (Ok(0), Ok(0)));
    assert_eq!(set(one, -7, 7), (Ok(()), Ok(())));
    assert_eq!((get(one), get(other)), ((Ok(-7), Ok(7)), (Ok(0), Ok(0))));
    // What is refused changes nothing.
    let refused = Err(Status::INVALID_PARAMETER);
    assert_eq!(set(one, 8, -8), (refused, refused));
    assert_eq!(get(one), (Ok(-7), Ok(7)));
    assert_eq!(p.destroy_context(other), Ok(()));
    for (handle, error) in [
        (other, Status::INVALID_HANDLE),
        (h.device, Status::OBJECT_TYPE_MISMATCH),
    ] {
        assert_eq!(set(handle, 1, 1), (Err(error), Err(error)));
        assert_eq!(get(handle), (Err(error), Err(error)));
        let class = p.set_process_scheduling_priority_class(handle, PriorityClass::Idle);
        assert_eq!(class, Err(error));
        assert_eq!(p.query_adapter_info_preemption_caps(handle), Err(error));
    }
    let class = p.set_process_scheduling_priority_class(h.adapter, PriorityClass::Idle);
    assert_eq!(class, Ok(()));
    let caps = p
        .adapter(h.adapter)
        .map(|adapter| adapter.preemption_caps());
    assert_eq!(p.query_adapter_info_preemption_caps(h.adapter), caps);
    let rig = Rig::new();
    let context = Context::create_with_priority(&rig.device, 0, 3).expect("a context");
    let both = (
        context.scheduling_priority(),
        context.in_process_scheduling_priority(),
    );
    assert_eq!(both, (Ok(3), Ok(0)));
    let refused = Context::create_with_priority(&rig.device, 0, 8);
    assert_eq!(refused.err(), Some(Status::INVALID_PARAMETER));
}

/// Whatever it says of its contexts.
fn row_2_20_a_class_is_of_the_process() {
    let (rig, other) = (Rig::new(), Rig::new());
    let low = &rig.compute;
    assert_eq!(low.set_scheduling_priority(7), Ok(()));
    let adapter = rig.device.adapter();
    let set = |class| adapter.set_process_scheduling_priority_class(class);
    for class in [
        PriorityClass::Realtime,
        PriorityClass::High,
        PriorityClass::AboveNormal,
        PriorityClass::Normal,
        PriorityClass::BelowNormal,
        PriorityClass::Idle,
    ] {
        assert_eq!(set(class), Ok(()), "{class:?}");
    }
    goes_first(&rig, low, || other.finish(&other.compute));
    assert_eq!(set(PriorityClass::default()), Ok(()));
}

/// What `high` does overtakes all that `low` has begun.
#[track_caller]
fn goes_first(rig: &Rig, low: &Context, high: impl FnOnce()) {
    let program = rig.system(PAGE);
    let lock = program.lock2(0).expect("Lock2");
    assert_eq!(lock.copy_from_slice(0, POLL), Ok(()));
    let poll_gate = dispatch_at(program.gpu_va(), POLL, &address(rig.gate.gpu_va()));
    let (done, packets) = (rig.fence(), 20);
    for n in 1..=packets {
        rig.start(low, &[write(rig.gate.gpu_va() + 8, 1), poll_gate]);
        assert_eq!(low.signal_from_gpu(&[(&done, n)]), Ok(()));
    }
    eventually("they begin", || read(&rig.gate, 8) == 1);
    high();
    assert_eq!(done.value(), 0, "they were done before it");
    rig.open_gate();
    assert_eq!(done.wait(packets, patience()), Ok(()));
}

fn row_2_22_fences_of_a_device_in_error_have_the_largest_value() {
    let adapter = Adapter::open_first().expect("an adapter");
    let (rig, bystander) = (Rig::on(&adapter).having_worked(), Rig::on(&adapter));
    let (signalled, pending, idle) = (rig.fence(), rig.fence(), rig.fence());
    let untouched = bystander.fence();
    assert_eq!(signalled.signal(5), Ok(()));
    let gate = rig.gate.lock2(0).expect("Lock2");
    fail_at_gate(&rig, &rig.copy);
    assert_eq!(rig.copy.signal_from_gpu(&[(&pending, 1)]), Ok(()));
    // Runs when the device fails, and ends after it: its signal must not show.
    let (va, bytes) = rig.write(&[wait_value(rig.gate.gpu_va() + 8, 1)]);
    let late = rig.compute.submission().commands(va, bytes);
    assert_eq!(late.signal(&idle, 3).submit(), Ok(()));
    rig.open_gate();
    eventually("the device is in error", || {
        rig.device.state() != DeviceState::Active
    });
    let all_lost = || {
        let fences = [&signalled, &pending, &idle];
        fences.iter().all(|f| f.value() == MonitoredFence::LOST)
    };
    eventually("its fences are lost", all_lost);
    // The late one ends; that its signal is overwritten is seen when the device is gone.
    assert_eq!(gate.write(8, 1_u64), Ok(()));
    rig.device.destroy();
    assert!(all_lost());
    assert_eq!(untouched.value(), 0);
    assert_eq!(bystander.device.state(), DeviceState::Active);
    bystander.finish(&bystander.copy);
    // The same program goes on with a new device.
    let anew = Rig::on(&adapter);
    anew.finish(&anew.copy);
    anew.finish(&anew.compute);
}

fn a_device_can_be_marked_as_in_error() {
    let adapter = Adapter::open_first().expect("an adapter");
    let (rig, bystander) = (Rig::on(&adapter).having_worked(), Rig::on(&adapter));
    let fence = rig.fence();
    let gate = rig.gate.lock2(0).expect("Lock2");
    rig.start(&rig.copy, &[rig.wait_for_gate()]);
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 1)]), Ok(()));
    // The second time it is in error already.
    for _ in 0..2 {
        rig.device.mark_as_error();
        assert_eq!(rig.device.state(), DeviceState::Stopped);
        assert_eq!(fence.value(), MonitoredFence::LOST);
        let refused = rig.copy.signal_from_gpu(&[(&fence, 2)]);
        assert_eq!(refused, Err(Status::DEVICE_REMOVED));
    }
    assert_eq!(gate.write(0, 1_u64), Ok(()));
    assert_eq!(bystander.device.state(), DeviceState::Active);
    bystander.finish(&bystander.copy);
    rig.device.destroy();
    rig.device.mark_as_error();
    assert_eq!(rig.device.state(), DeviceState::Destroyed);
}

fn row_2_22_a_hang_wakes_all_who_wait() {
    let rig = Rig::new();
    let fences: Vec<MonitoredFence> = (0..8).map(|_| rig.fence()).collect();
    // Nobody opens the gate: the watchdog ends it.
    rig.start(&rig.copy, &[rig.wait_for_gate()]);
    assert_eq!(rig.copy.signal_from_gpu(&[(&fences[0], 1)]), Ok(()));
    assert_eq!(rig.compute.wait_from_gpu(&[(&fences[0], 1)]), Ok(()));
    assert_eq!(rig.compute.signal_from_gpu(&[(&fences[1], 1)]), Ok(()));
    thread::scope(|scope| {
        for fence in &fences {
            scope.spawn(|| {
                assert_eq!(fence.wait(1, Duration::MAX), Err(Status::DEVICE_REMOVED));
            });
        }
    });
    assert_eq!(rig.device.state(), DeviceState::Hung);
    assert_eq!(rig.device.state().number(), 3);
}

/// Of work, and of nothing; the program goes on with a new device.
fn row_2_22_a_reset_wakes_all_who_wait() {
    expect_error("the adapter was reset").expect("the kernel's log");
    // It bears only so many.
    drop(Unbound::first());
    let rig = Rig::new().having_worked();
    let (fence, idle) = (rig.fence(), rig.fence());
    let kept = MonitoredFence::create_keeping(&rig.device, 3).expect("a fence");
    let a = rig.system(PAGE);
    let (va, bytes) = rig.write(&[rig.wait_for_gate(), write(a.gpu_va(), 1)]);
    let job = rig.copy.submission().commands(va, bytes);
    let job = job.uses(&a, Access::Write).signal(&fence, 1);
    assert_eq!(job.submit(), Ok(()));
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    assert_eq!(idle.notify(1, event.as_fd()), Ok(()));
    let removed = Err(Status::DEVICE_REMOVED);
    let callers = [const { Caller::new() }; 4];
    thread::scope(|scope| {
        let wait = |n: usize, fence| {
            let caller: &Caller = &callers[n];
            let fence: &MonitoredFence = fence;
            scope.spawn(move || caller.call(|| fence.wait(9, Duration::MAX)))
        };
        let threads = [
            wait(0, &fence),
            wait(1, &idle),
            wait(2, &kept),
            scope.spawn(|| callers[3].call(|| a.map(MapMode::Read, MapFlags::empty()).map(drop))),
        ];
        callers.iter().for_each(Caller::wait_until_asleep);
        let resets = Function::first().debugfs("reset").expect("debugfs");
        assert_eq!(resets.trim(), "1");
        for (n, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().expect("a result"), removed, "thread {n}");
        }
    });
    assert_eq!(rig.device.state(), DeviceState::Reset);
    assert_eq!(rig.device.state().number(), 2);
    let values = [&fence, &idle, &kept].map(MonitoredFence::value);
    assert_eq!(values, [MonitoredFence::LOST, MonitoredFence::LOST, 3]);
    assert_eq!(count(&event, 1), 1);
    assert_eq!(rig.copy.submit(va, bytes), removed);
    for anew in [Rig::on(rig.device.adapter()), Rig::new()] {
        anew.finish(&anew.copy);
        anew.finish(&anew.compute);
        assert_eq!(anew.device.state(), DeviceState::Active);
    }
}

fn a_malformed_command_is_a_dma_fault() {
    let rig = Rig::new();
    let (fence, commands) = (rig.fence(), rig.system(PAGE));
    let lock = commands.lock2(0).expect("Lock2");
    // No opcode of any engine's.
    assert_eq!(lock.copy_from_slice(0, &[0xff00_0002_u32, 0]), Ok(()));
    let job = rig.copy.submission().commands(commands.gpu_va(), 8);
    assert_eq!(job.signal(&fence, 1).submit(), Ok(()));
    let ended = fence.wait(1, patience());
    assert_eq!(ended, Err(Status::DEVICE_REMOVED));
    assert_eq!(rig.device.state().number(), 6);
    match rig.device.state() {
        DeviceState::DmaFault(fault) => assert_eq!(
            (fault.reason, fault.command),
            (Ok(Reason::BadOpcode), commands.gpu_va())
        ),
        state => panic!("{state:?}"),
    }
    eventually("it is lost", || fence.value() == MonitoredFence::LOST);
    let anew = Rig::on(rig.device.adapter());
    anew.finish(&anew.copy);
}

fn values_are_signalled_in_order() {
    let rig = Rig::new();
    let fence = rig.fence();
    let (va, bytes) = rig.write(&[rig.wait_for_gate()]);
    // The copy engine will signal 1 late; the compute engine could signal 2 at once.
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(job.signal(&fence, 1).submit(), Ok(()));
    assert_eq!(rig.compute.signal_from_gpu(&[(&fence, 2)]), Ok(()));
    assert_eq!(
        fence.wait(2, Duration::from_millis(50)),
        Err(Status::TIMEOUT)
    );
    assert_eq!(fence.value(), 0);
    rig.open_gate();
    assert_eq!(fence.wait(2, patience()), Ok(()));
    rig.finish(&rig.copy);
    assert_eq!(fence.value(), 2, "it went back");
    // Each value once.
    let again = [0, 1, 2, MonitoredFence::LOST];
    for value in again {
        let parameter = Err(Status::INVALID_PARAMETER);
        assert_eq!(fence.signal(value), parameter, "{value}");
        let gpu = rig.copy.signal_from_gpu(&[(&fence, value)]);
        assert_eq!(gpu, parameter, "{value}");
    }
    assert_eq!(fence.signal(MonitoredFence::LOST - 1), Ok(()));
    assert_eq!(fence.wait(MonitoredFence::LOST - 1, patience()), Ok(()));
}

fn a_wait_for_any_tells_which() {
    let rig = Rig::new();
    let fences: Vec<MonitoredFence> = (0..MAX_FENCES).map(|_| rig.fence()).collect();
    let waits: Vec<(&MonitoredFence, u64)> = fences.iter().map(|f| (f, 1)).collect();
    let any = |limit: Duration| rig.device.wait_from_cpu(&waits, WaitFor::Any, limit);
    let all = |limit: Duration| rig.device.wait_from_cpu(&waits, WaitFor::All, limit);
    assert_eq!(any(Duration::from_millis(20)), Err(Status::TIMEOUT));
    thread::scope(|scope| {
        let wait = scope.spawn(|| any(patience()));
        thread::sleep(Duration::from_millis(20));
        let signal = rig.compute.signal_from_gpu(&[(&fences[17], 1)]);
        assert_eq!(signal, Ok(()));
        assert_eq!(wait.join().expect("a result"), Ok(17));
    });
    assert_eq!(any(Duration::ZERO), Ok(17));
    assert_eq!(all(Duration::from_millis(20)), Err(Status::TIMEOUT));
    thread::scope(|scope| {
        let wait = scope.spawn(|| all(patience()));
        for (n, fence) in fences.iter().enumerate().filter(|(n, _)| *n != 17) {
            assert!(!wait.is_finished(), "before {n}");
            let signal = match n % 2 {
                0 => fence.signal(1 + n as u64),
                _ => rig.copy.signal_from_gpu(&[(fence, 1)]),
            };
            assert_eq!(signal, Ok(()));
        }
        assert_eq!(wait.join().expect("a result"), Ok(0));
    });
    assert_eq!(any(Duration::ZERO), Ok(0));
}

fn a_context_waits_for_what_nobody_has_submitted() {
    let rig = Rig::new();
    let (fence, done) = (rig.fence(), rig.fence());
    let a = rig.system(PAGE);
    assert_eq!(rig.compute.wait_from_gpu(&[(&fence, 2)]), Ok(()));
    rig.start(&rig.compute, &[write(a.gpu_va(), 1)]);
    assert_eq!(rig.compute.signal_from_gpu(&[(&done, 1)]), Ok(()));
    // The engine is free for others meanwhile.
    rig.finish(&rig.fresh(EngineKind::Compute));
    assert_eq!(fence.signal(1), Ok(()));
    assert_eq!(
        done.wait(1, Duration::from_millis(50)),
        Err(Status::TIMEOUT)
    );
    assert_eq!(read(&a, 0), 0);
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 2)]), Ok(()));
    assert_eq!(done.wait(1, patience()), Ok(()));
    assert_eq!(read(&a, 0), 1);
    // What is there already is no wait.
    assert_eq!(
        rig.compute.wait_from_gpu(&[(&fence, 1), (&done, 1)]),
        Ok(())
    );
    rig.finish(&rig.compute);
}

fn contexts_wait_for_each_other_in_a_chain() {
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.system(PAGE);
    let length = 40;
    // Backwards: each waits for what the one queued after it will signal.
    let contexts: Vec<Context> = (1..=length)
        .rev()
        .map(|n| {
            let context = rig.fresh(EngineKind::Copy);
            assert_eq!(context.wait_from_gpu(&[(&fence, n)]), Ok(()));
            let (va, bytes) = rig.write(&[copy(a.gpu_va() + 8 * (n - 1), a.gpu_va() + 8 * n, 8)]);
            let job = context.submission().commands(va, bytes);
            assert_eq!(job.signal(&fence, n + 1).submit(), Ok(()));
            context
        })
        .collect();
    let lock = a.lock2(0).expect("Lock2");
    assert_eq!(lock.write(0, 0x1234_u64), Ok(()));
    assert_eq!(fence.signal(1), Ok(()));
    assert_eq!(fence.wait(length + 1, patience()), Ok(()));
    assert_eq!(
        lock.read::<u64>(usize::try_from(8 * length).expect("an offset")),
        Ok(0x1234)
    );
    drop(contexts);
}

fn a_cpu_signal_comes_after_those_of_the_gpu() {
    let rig = Rig::new();
    let fence = rig.fence();
    let (va, bytes) = rig.write(&[rig.wait_for_gate()]);
    let job = rig.compute.submission().commands(va, bytes);
    assert_eq!(job.signal(&fence, 5).submit(), Ok(()));
    assert_eq!(fence.signal(5), Err(Status::INVALID_PARAMETER));
    assert_eq!(fence.signal(10), Ok(()));
    assert_eq!(fence.signal(10), Err(Status::INVALID_PARAMETER));
    let gpu = rig.copy.signal_from_gpu(&[(&fence, 10)]);
    assert_eq!(gpu, Err(Status::INVALID_PARAMETER));
    assert_eq!(fence.value(), 0);
    rig.open_gate();
    assert_eq!(fence.wait(10, patience()), Ok(()));
    rig.finish(&rig.compute);
    assert_eq!(fence.value(), 10);
    assert_eq!(fence.signal(11), Ok(()));
    assert_eq!(fence.value(), 11);
}

fn a_gpu_signal_comes_after_those_of_the_cpu() {
    let rig = Rig::new();
    let (fence, done, plain) = (rig.fence(), rig.fence(), rig.fence());
    let (va, bytes) = rig.write(&[rig.wait_for_gate()]);
    let job = rig.compute.submission().commands(va, bytes);
    assert_eq!(job.signal(&fence, 1).submit(), Ok(()));
    assert_eq!(fence.signal(2), Ok(()));
    // Nobody waits for that who has nothing to do with the fence.
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 3)]), Ok(()));
    assert_eq!(rig.copy.signal_from_gpu(&[(&done, 1)]), Ok(()));
    assert_eq!(done.wait(1, patience()), Ok(()));
    assert_eq!(fence.value(), 0);
    // The same where nothing overtakes.
    assert_eq!(rig.compute.signal_from_gpu(&[(&plain, 1)]), Ok(()));
    assert_eq!(plain.signal(2), Ok(()));
    assert_eq!(rig.copy.signal_from_gpu(&[(&plain, 3)]), Ok(()));
    assert_eq!(fence.signal(4), Ok(()));
    assert_eq!(fence.signal(3), Err(Status::INVALID_PARAMETER));
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 5)]), Ok(()));
    rig.open_gate();
    assert_eq!(fence.wait(4, patience()), Ok(()));
    assert_eq!(fence.wait(5, patience()), Ok(()));
    assert_eq!(plain.wait(3, patience()), Ok(()));
    rig.finish(&rig.copy);
    assert_eq!(fence.value(), 5);
    // A value that comes too late would take it back.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(plain.value(), 3);
}

fn cpu_signals_of_different_fences_do_not_wait_for_each_other() {
    let rig = Rig::new();
    let (a, b) = (rig.fence(), rig.fence());
    for (context, fence, gate) in [(&rig.copy, &a, 0), (&rig.compute, &b, 8)] {
        let (va, bytes) = rig.write(&[wait_value(rig.gate.gpu_va() + gate, 1)]);
        let job = context.submission().commands(va, bytes);
        assert_eq!(job.signal(fence, 1).submit(), Ok(()));
        assert_eq!(fence.signal(2), Ok(()));
    }
    let gate = rig.gate.lock2(0).expect("Lock2");
    assert_eq!(gate.write(8, 1_u64), Ok(()));
    assert_eq!(b.wait(2, patience()), Ok(()));
    assert_eq!((a.value(), b.value()), (0, 2));
    assert_eq!(gate.write(0, 1_u64), Ok(()));
    assert_eq!(a.wait(2, patience()), Ok(()));
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn signals_of_several_fences_are_all_or_nothing() {
    let rig = Rig::new();
    let (a, b) = (rig.fence(), rig.fence());
    let rounds = 300;
    let start = Barrier::new(2);
    // Two ask for the same values at the same time, in different order.
    let ask = |context: &Context, first: &MonitoredFence, second: &MonitoredFence| -> Vec<bool> {
        (1..=rounds)
            .map(|value| {
                start.wait();
                let signals = [(first, value), (second, value)];
                context.signal_from_gpu(&signals).is_ok()
            })
            .collect()
    };
    let (one, other) = thread::scope(|scope| {
        let one = scope.spawn(|| ask(&rig.copy, &a, &b));
        let other = scope.spawn(|| ask(&rig.compute, &b, &a));
        (one.join().expect("results"), other.join().expect("results"))
    });
    for (n, (one, other)) in one.into_iter().zip(other).enumerate() {
        assert!(one != other, "round {n}: {one} and {other}");
    }
    for fence in [&a, &b] {
        assert_eq!(fence.wait(rounds, patience()), Ok(()));
    }
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn work_waits_for_more_fences_than_a_submission_takes() {
    let rig = Rig::new();
    let gate = rig.gate.lock2(0).expect("Lock2");
    let count = 70;
    for (round, late) in [0, count - 1].into_iter().enumerate() {
        let begins = rig.fence();
        let gates = [0, 8].map(|n| 16 * round + n);
        for (n, offset) in gates.iter().enumerate() {
            let (va, bytes) = rig.write(&[wait_value(rig.gate.gpu_va() + *offset as u64, 1)]);
            let job = rig.copy.submission().commands(va, bytes);
            assert_eq!(job.signal(&begins, 1 + n as u64).submit(), Ok(()));
        }
        // The kernel knows of all; one of them comes late.
        let fences: Vec<MonitoredFence> = (0..count).map(|_| rig.fence()).collect();
        let [early, last, waiting] = [(); 3].map(|()| rig.fresh(EngineKind::Compute));
        assert_eq!(early.wait_from_gpu(&[(&begins, 1)]), Ok(()));
        assert_eq!(last.wait_from_gpu(&[(&begins, 2)]), Ok(()));
        for (n, fence) in fences.iter().enumerate() {
            let context = if n == late { &last } else { &early };
            assert_eq!(context.signal_from_gpu(&[(fence, 1)]), Ok(()));
        }
        let waits: Vec<(&MonitoredFence, u64)> = fences.iter().map(|f| (f, 1)).collect();
        for waits in waits.chunks(MAX_FENCES) {
            assert_eq!(waiting.wait_from_gpu(waits), Ok(()));
        }
        let done = rig.fence();
        assert_eq!(waiting.signal_from_gpu(&[(&done, 1)]), Ok(()));
        assert_eq!(gate.write(gates[0], 1_u64), Ok(()));
        rig.finish(&early);
        let limit = Duration::from_millis(50);
        assert_eq!(done.wait(1, limit), Err(Status::TIMEOUT), "fence {late}");
        assert_eq!(gate.write(gates[1], 1_u64), Ok(()));
        assert_eq!(done.wait(1, patience()), Ok(()));
    }
}

fn many_threads_wait_for_many_values() {
    let rig = Rig::new();
    let fence = rig.fence();
    let last = 64;
    thread::scope(|scope| {
        let threads: Vec<_> = (1..=last)
            .map(|value| {
                let (fence, device) = (&fence, &rig.device);
                scope.spawn(move || {
                    let result = match value % 3 {
                        0 => fence.wait(value, patience()),
                        1 => device
                            .wait_from_cpu(&[(fence, value)], WaitFor::Any, patience())
                            .map(|_| ()),
                        _ => {
                            let event = EventFd::new().expect("eventfd");
                            fence
                                .notify(value, event.as_fd())
                                .map(|()| assert_eq!(event.read(), Ok(1)))
                        }
                    };
                    assert_eq!(result, Ok(()));
                    assert!(fence.value() >= value, "{} < {value}", fence.value());
                })
            })
            .collect();
        for value in 1..=last {
            let signal = match value % 3 {
                0 => fence.signal(value),
                1 => rig.copy.signal_from_gpu(&[(&fence, value)]),
                _ => rig.compute.signal_from_gpu(&[(&fence, value)]),
            };
            assert_eq!(signal, Ok(()));
        }
        for thread in threads {
            thread.join().expect("a wait");
        }
    });
    assert_eq!(fence.value(), last);
}

fn many_submissions_are_queued() {
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.system(PAGE);
    rig.start(&rig.copy, &[rig.wait_for_gate()]);
    // Few enough for a slow kernel to take before the watchdog loses patience with the gate.
    let count = 300;
    for n in 1..=count {
        let (va, bytes) = rig.write(&[write(a.gpu_va(), n)]);
        let job = rig.copy.submission().commands(va, bytes);
        assert_eq!(job.signal(&fence, n).submit(), Ok(()), "{n}");
    }
    assert_eq!(fence.value(), 0);
    rig.open_gate();
    assert_eq!(fence.wait(count, patience()), Ok(()));
    assert_eq!(read(&a, 0), count);
}

/// In the kernel, behind a value that nobody has signalled.
fn packets_that_wait_are_limited() {
    const MOST: u64 = 4096;
    let rig = Rig::new();
    let (held, done) = (rig.fence(), rig.fence());
    assert_eq!(rig.copy.wait_from_gpu(&[(&held, 1)]), Ok(()));
    let signal = |value| rig.copy.signal_from_gpu(&[(&done, value)]);
    let refused = (1..).find_map(|value| Some((value, signal(value).err()?)));
    let status = Status::INSUFFICIENT_RESOURCES;
    assert_eq!(refused, Some((MOST + 1, status)));
    // Others have their own limit, and the device goes on.
    rig.finish(&rig.compute);
    assert_eq!(held.signal(1), Ok(()));
    let room = suite::eventually(|| signal(MOST + 1).ok());
    assert!(room.is_some(), "no room");
    assert_eq!(done.wait(MOST + 1, patience()), Ok(()));
}

/// Makes as many as it can; these, and why no more.
fn until_refused<T>(mut make: impl FnMut() -> Result<T, Status>) -> (Vec<T>, Status) {
    let mut made = Vec::new();
    loop {
        match make() {
            Ok(one) => made.push(one),
            Err(status) => return (made, status),
        }
        assert!(made.len() < 10_000, "there is no limit");
    }
}

fn devices_and_fences_are_limited() {
    let open = || Adapter::open_first().expect("an adapter");
    let status = Status::INSUFFICIENT_RESOURCES;
    let adapter = open();
    let device = || Device::create(&adapter);
    let (mut devices, refused) = until_refused(device);
    assert_eq!((devices.len(), refused), (16, status));
    devices.pop();
    assert!(suite::eventually(|| device().ok()).is_some(), "none again");
    // One of the 1024 is the library's.
    let device = Device::create(&open()).expect("a device");
    let fence = || MonitoredFence::create(&device, 0);
    let (mut fences, refused) = until_refused(fence);
    assert_eq!((fences.len(), refused), (1023, status));
    // Contexts have one each.
    let context = Context::create(&device, 0);
    assert_eq!(context.err(), Some(status));
    fences.pop();
    assert!(suite::eventually(|| fence().ok()).is_some(), "none again");
}

fn bad_fences_are_refused() {
    let (rig, other) = (Rig::new(), Rig::new());
    let (fence, foreign) = (rig.fence(), other.fence());
    let parameter = Status::INVALID_PARAMETER;
    let lost = MonitoredFence::create(&rig.device, MonitoredFence::LOST);
    assert_eq!(lost.err(), Some(parameter));
    let event = EventFd::new().expect("eventfd");
    let too_many = vec![(&fence, 1); MAX_FENCES + 1];
    for list in [
        &[][..],
        &[(&foreign, 1)],
        &[(&fence, 1), (&foreign, 1)],
        &too_many,
    ] {
        for how in [WaitFor::All, WaitFor::Any] {
            let wait = rig.device.wait_from_cpu(list, how, Duration::ZERO);
            assert_eq!(wait, Err(parameter));
            let wait = rig.device.wait_from_cpu_async(list, how, event.as_fd());
            assert_eq!(wait, Err(parameter));
        }
        assert_eq!(rig.copy.wait_from_gpu(list), Err(parameter));
        assert_eq!(rig.copy.signal_from_gpu(list), Err(parameter));
    }
    // All or nothing.
    let second = rig.fence();
    let signals = rig.copy.signal_from_gpu(&[(&second, 1), (&fence, 0)]);
    assert_eq!(signals, Err(parameter));
    let signals = rig.copy.signal_from_gpu(&[(&second, 2), (&second, 1)]);
    assert_eq!(signals, Err(parameter));
    rig.finish(&rig.copy);
    assert_eq!((fence.value(), second.value()), (0, 0));
}

fn bad_submissions_are_refused() {
    let (rig, other) = (Rig::new(), Rig::new());
    let (va, bytes) = rig.write(&[write(rig.gate.gpu_va(), 9)]);
    let parameter = Err(Status::INVALID_PARAMETER);
    for (name, va, bytes) in [
        ("no address", 0, bytes),
        ("address not aligned", va + 4, bytes),
        ("no size", va, 0),
        ("size not aligned", va, bytes - 4),
        ("beyond the address space", 1 << 48, bytes),
        ("over the end of it", (1 << 48) - 8, 16),
        ("wrapping", u64::MAX - 7, 16),
    ] {
        assert_eq!(rig.copy.submit(va, bytes), parameter, "{name}");
    }
    let foreign = other.fence();
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(job.signal(&foreign, 1).submit(), parameter);
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(job.uses(&other.gate, Access::Read).submit(), parameter);
    let dead = rig.system(PAGE);
    assert_eq!(dead.destroy(DestroyFlags::empty()), Ok(()));
    let job = rig.copy.submission().commands(va, bytes);
    let result = job.uses(&dead, Access::Read).submit();
    assert_eq!(result, Err(Status::INVALID_HANDLE));
    rig.finish(&rig.copy);
    assert_eq!(read(&rig.gate, 0), 0, "one of them ran");
    let nodes = u32::try_from(rig.device.adapter().nodes().len()).expect("a count");
    for node in [nodes, u32::MAX] {
        let context = Context::create(&rig.device, node);
        assert_eq!(context.err(), Some(Status::INVALID_PARAMETER));
    }
}

fn bad_allocations_are_refused() {
    let rig = Rig::new();
    let adapter = rig.device.adapter();
    let used = rig.vram_used();
    for (name, size, segments, expected) in [
        ("no size", 0, adapter.system(), Status::INVALID_PARAMETER),
        (
            "above 2^40",
            (1 << 40) + 1,
            adapter.system(),
            Status::INVALID_PARAMETER,
        ),
        (
            "overflowing",
            u64::MAX,
            adapter.system(),
            Status::INVALID_PARAMETER,
        ),
        (
            "no segment",
            PAGE,
            wddm::SegmentSet::NONE,
            Status::INVALID_PARAMETER,
        ),
        (
            "no such segment",
            PAGE,
            wddm::SegmentSet::from_bits(1 << 31),
            Status::INVALID_PARAMETER,
        ),
        (
            "more than all VRAM",
            1 << 39,
            adapter.vram(),
            Status::GRAPHICS_NO_VIDEO_MEMORY,
        ),
    ] {
        let desc = AllocationDesc::new(size, segments);
        let result = Allocation::create(&rig.device, &desc);
        assert_eq!(result.err(), Some(expected), "{name}");
    }
    // Masks have WDDM's bits: that of segment 1 is bit 0, and that of segment 0 is none.
    let bits = [adapter.vram(), adapter.aperture(), adapter.system()].map(wddm::SegmentSet::bits);
    assert_eq!(bits, [1, 2, 0]);
    for (bits, grows) in [(1, 1), (2, 0)] {
        let set = wddm::SegmentSet::from_bits(bits);
        let made = Allocation::create(&rig.device, &AllocationDesc::new(64 * PAGE, set));
        assert!(made.is_ok(), "{set:?}: {made:?}");
        assert_eq!(rig.vram_used() - used, grows * 64 * PAGE, "{set:?}");
        drop(made);
        let gone = suite::eventually(|| (rig.vram_used() == used).then_some(()));
        assert!(gone.is_some(), "{set:?}: it stays");
    }
    let both = AllocationDesc::new(PAGE, adapter.vram() | adapter.system());
    for (name, desc) in [
        (
            "preferred twice",
            both.preferred_segments(&[adapter.vram(); 2]),
        ),
        (
            "preferred, not supported",
            both.preferred_segments(&[adapter.aperture()]),
        ),
        ("evicted to VRAM", both.eviction_segment_set(adapter.vram())),
        (
            "evicted to no support",
            both.eviction_segment_set(adapter.aperture()),
        ),
    ] {
        let result = Allocation::create(&rig.device, &desc);
        assert_eq!(result.err(), Some(Status::INVALID_PARAMETER), "{name}");
    }
    assert_eq!(rig.vram_used(), used);
    // What prefers system memory takes none of VRAM.
    let preferring = both
        .preferred_segments(&[adapter.system()])
        .eviction_segment_set(adapter.system());
    let preferring = Allocation::create(&rig.device, &preferring);
    assert!(preferring.is_ok(), "{preferring:?}");
    assert_eq!(rig.vram_used(), used);
    let odd = rig.system(PAGE + 1);
    assert_eq!(odd.size(), 2 * PAGE);
    let h = Handles::new();
    for count in [0, MAX_ALLOCATIONS + 1] {
        let descs = vec![h.desc(); count];
        let created = h.process.create_allocation2(h.device, &descs, false);
        assert_eq!(created, Err(Status::INVALID_PARAMETER), "{count}");
    }
    // All or nothing.
    let mut bad = h.desc();
    bad.size = 0;
    let created = h
        .process
        .create_allocation2(h.device, &[h.desc(), bad], true);
    assert_eq!(created, Err(Status::INVALID_PARAMETER));
}

fn addresses_are_read_only_to_the_program() {
    let rig = Rig::new();
    let fence = rig.fence();
    assert_eq!(fence.signal(77), Ok(()));
    let address = fence.value_pointer().addr() as u64;
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps
        .lines()
        .find(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("a range");
            let hex = |text| u64::from_str_radix(text, 16).expect("an address");
            (hex(start)..hex(end)).contains(&address)
        })
        .expect("a mapping");
    assert!(line.contains(" r--s "), "{line}");
    // The GPU sees the same value, and those that come.
    let a = rig.system(PAGE);
    let seen = fence.gpu_va().expect("an address");
    rig.start(&rig.copy, &[copy(seen, a.gpu_va(), 8)]);
    rig.finish(&rig.copy);
    assert_eq!(read(&a, 0), 77);
    rig.start(
        &rig.copy,
        &[wait_value(seen, 78), copy(seen, a.gpu_va(), 8)],
    );
    assert_eq!(fence.signal(78), Ok(()));
    rig.finish(&rig.copy);
    assert_eq!((read(&a, 0), fence.gpu_va()), (78, Ok(seen)));
}

fn stale_handles_name_nothing() {
    let h = Handles::new();
    let p = &h.process;
    let context = p.create_context_virtual(h.device, 0).expect("a context");
    let fence = p
        .create_synchronization_object2(h.device, 0)
        .expect("a fence");
    let (_, list) = h.allocations(1, false);
    let allocation = list[0];
    assert_eq!(p.destroy_context(context), Ok(()));
    assert_eq!(p.destroy_synchronization_object(fence), Ok(()));
    assert_eq!(p.destroy_allocation2(h.device, None, &list, 0), Ok(()));
    // Others take their place.
    let _others = (
        p.create_context_virtual(h.device, 0).expect("a context"),
        p.create_synchronization_object2(h.device, 0)
            .expect("a fence"),
        h.allocations(600, false),
    );
    for context in [context, Handle::from_value(0), Handle::from_value(u32::MAX)] {
        let handle = Err(Status::INVALID_HANDLE);
        assert_eq!(p.submit_command(context, 1 << 20, 8), handle);
        assert_eq!(p.destroy_context(context), handle);
        assert_eq!(
            p.signal_synchronization_object_from_gpu(context, &[(fence, 1)]),
            handle
        );
    }
    let handle = Err(Status::INVALID_HANDLE);
    assert_eq!(
        p.signal_synchronization_object_from_cpu(h.device, fence, 1),
        handle
    );
    assert_eq!(p.destroy_synchronization_object(fence), handle);
    let wait = |fence| {
        p.wait_for_synchronization_object_from_cpu(h.device, &[(fence, 0)], WaitFor::All, None)
    };
    assert_eq!(wait(fence), handle);
    assert_eq!(
        p.lock2(h.device, allocation, 0).err(),
        Some(Status::INVALID_HANDLE)
    );
    assert_eq!(p.unlock2(h.device, allocation), handle);
    assert_eq!(
        p.gpu_va(h.device, allocation).err(),
        Some(Status::INVALID_HANDLE)
    );
    assert_eq!(p.destroy_device(h.device), Ok(()));
    assert_eq!(p.destroy_device(h.device), handle);
    assert_eq!(p.close_adapter(h.adapter), Ok(()));
    assert_eq!(
        p.create_device(h.adapter).err(),
        Some(Status::INVALID_HANDLE)
    );
}

fn handles_of_other_types_and_devices_are_refused() {
    let h = Handles::new();
    let p = &h.process;
    let other = p.create_device(h.adapter).expect("a device");
    let fence = p
        .create_synchronization_object2(h.device, 0)
        .expect("a fence");
    let context = p.create_context_virtual(other, 0).expect("a context");
    let (resource, list) = h.allocations(1, true);
    let resource = resource.expect("a resource");
    let mismatch = Err(Status::OBJECT_TYPE_MISMATCH);
    for device in [h.adapter, fence, context, list[0], resource] {
        assert_eq!(p.destroy_device(device), mismatch);
        assert_eq!(
            p.get_device_state(device).err(),
            Some(Status::OBJECT_TYPE_MISMATCH)
        );
        assert_eq!(p.mark_device_as_error(device), mismatch);
        assert_eq!(p.unlock2(device, list[0]), mismatch);
    }
    for context in [h.adapter, h.device, fence, list[0], resource] {
        assert_eq!(p.submit_command(context, 1 << 20, 8), mismatch);
        assert_eq!(p.destroy_context(context), mismatch);
    }
    for allocation in [h.adapter, h.device, fence, context, resource] {
        assert_eq!(p.unlock2(h.device, allocation), mismatch);
    }
    for fence in [h.adapter, h.device, context, list[0], resource] {
        assert_eq!(p.destroy_synchronization_object(fence), mismatch);
        assert_eq!(
            p.signal_synchronization_object_from_cpu(h.device, fence, 1),
            mismatch
        );
    }
    assert_eq!(p.close_adapter(h.device), mismatch);
    // Right types, wrong device.
    let parameter = Err(Status::INVALID_PARAMETER);
    assert_eq!(p.unlock2(other, list[0]), parameter);
    assert_eq!(
        p.lock2(other, list[0], 0).err(),
        Some(Status::INVALID_PARAMETER)
    );
    assert_eq!(
        p.signal_synchronization_object_from_cpu(other, fence, 1),
        parameter
    );
    assert_eq!(
        p.signal_synchronization_object_from_gpu(context, &[(fence, 1)]),
        parameter
    );
    assert_eq!(
        p.wait_for_synchronization_object_from_gpu(context, &[(fence, 1)]),
        parameter
    );
    let wait = p.wait_for_synchronization_object_from_cpu(other, &[(fence, 0)], WaitFor::Any, None);
    assert_eq!(wait, parameter);
    // Nothing has changed.
    h.expect(&list, true);
    assert_eq!(p.fence(fence).expect("the fence").value(), 0);
    assert_eq!(
        p.signal_synchronization_object_from_cpu(h.device, fence, 1),
        Ok(())
    );
    let wait =
        p.wait_for_synchronization_object_from_cpu(h.device, &[(fence, 1)], WaitFor::All, None);
    assert_eq!(wait, Ok(()));
    // Of what has the time for that, an eventfd is told.
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    let tell = |device, fence| {
        let (waits, event) = ([(fence, 2)], Some(event.as_fd()));
        p.wait_for_synchronization_object_from_cpu(device, &waits, WaitFor::All, event)
    };
    assert_eq!(tell(h.device, context), mismatch);
    assert_eq!(tell(other, fence), parameter);
    assert_eq!((tell(h.device, fence), count(&event, 0)), (Ok(()), 0));
    let signal = p.signal_synchronization_object_from_cpu(h.device, fence, 2);
    assert_eq!((signal, count(&event, 1)), (Ok(()), 1));
}

fn a_destroyed_device_takes_everything_with_it() {
    quiet();
    let h = Handles::new();
    let p = &h.process;
    let adapter = p.adapter(h.adapter).expect("the adapter");
    let used = vram_used(&adapter);
    let survivor = p.create_device(h.adapter).expect("a device");
    let context = p.create_context_virtual(h.device, 0).expect("a context");
    let fence = p
        .create_synchronization_object2(h.device, 0)
        .expect("a fence");
    let desc = AllocationDesc::new(1 << 20, adapter.vram());
    let list = p
        .create_allocation2(h.device, &[desc; 4], true)
        .expect("allocations");
    // Work that nobody will ever let go.
    let waits = [(fence, 1)];
    assert_eq!(
        p.wait_for_synchronization_object_from_gpu(context, &waits),
        Ok(())
    );
    assert_eq!(
        p.signal_synchronization_object_from_gpu(context, &[(fence, 9)]),
        Ok(())
    );
    thread::scope(|scope| {
        let wait = scope.spawn(|| {
            p.wait_for_synchronization_object_from_cpu(h.device, &waits, WaitFor::All, None)
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!wait.is_finished());
        assert_eq!(p.destroy_device(h.device), Ok(()));
        assert_eq!(wait.join().expect("a result"), Err(Status::INVALID_HANDLE));
    });
    // What of it was being cleared goes behind that.
    eventually("the memory is free", || vram_used(&adapter) == used);
    let handle = Status::INVALID_HANDLE;
    assert_eq!(p.submit_command(context, 1 << 20, 8), Err(handle));
    assert_eq!(p.fence(fence).err(), Some(handle));
    for allocation in &list.allocations {
        assert_eq!(p.gpu_va(survivor, *allocation).err(), Some(handle));
    }
    assert_eq!(p.get_device_state(survivor), Ok(DeviceState::Active));
    // The same for who holds the objects themselves.
    let rig = Rig::on(&adapter);
    rig.device.destroy();
    rig.device.destroy();
    assert_eq!(rig.device.state(), DeviceState::Destroyed);
    assert_eq!(rig.gate.lock2(0).err(), Some(handle));
    assert_eq!(rig.copy.submit(1 << 20, 8), Err(handle));
    assert_eq!(MonitoredFence::create(&rig.device, 0).err(), Some(handle));
    // The running job is waited for, and its memory is its own until then.
    let rig = Rig::on(&adapter);
    let b = rig.vram(1 << 20);
    let gate = rig.gate.lock2(0).expect("Lock2");
    rig.start(
        &rig.copy,
        &[
            write(rig.gate.gpu_va() + 8, 1),
            rig.wait_for_gate(),
            fill(3, b.gpu_va(), b.size()),
        ],
    );
    // So that it is not cancelled.
    eventually("it has started", || gate.read(8) == Ok(1_u64));
    thread::scope(|scope| {
        let destroy = scope.spawn(|| rig.device.destroy());
        thread::sleep(Duration::from_millis(50));
        assert!(!destroy.is_finished(), "it did not wait");
        assert!(vram_used(&adapter) >= used + (1 << 20));
        assert_eq!(gate.write(0, 1_u64), Ok(()));
        destroy.join().expect("an end");
    });
    assert_eq!(vram_used(&adapter), used);
}

fn a_destroyed_context_drops_what_waits() {
    let rig = Rig::new();
    let (fence, gone, done) = (rig.fence(), rig.fence(), rig.fence());
    let a = rig.vram(1 << 20);
    let used = rig.vram_used();
    // Goes on to its end, since the kernel has it.
    let (va, bytes) = rig.write(&[rig.wait_for_gate()]);
    let job = rig.compute.submission().commands(va, bytes);
    assert_eq!(job.signal(&done, 1).submit(), Ok(()));
    // Does not.
    assert_eq!(rig.compute.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    let (va, bytes) = rig.write(&[fill(1, a.gpu_va(), a.size())]);
    let job = rig.compute.submission().commands(va, bytes);
    let job = job.uses(&a, Access::Write).signal(&gone, 1);
    assert_eq!(job.submit(), Ok(()));
    thread::scope(|scope| {
        let map = scope.spawn(|| a.map(MapMode::Read, MapFlags::empty()).map(|m| m.read(0)));
        thread::sleep(Duration::from_millis(30));
        rig.compute.destroy();
        let result = rig.compute.submit(va, bytes);
        assert_eq!(result, Err(Status::INVALID_HANDLE));
        rig.open_gate();
        assert_eq!(map.join().expect("a result"), Ok(Ok(0_u64)));
    });
    assert_eq!(done.wait(1, patience()), Ok(()));
    assert_eq!(fence.signal(1), Ok(()));
    assert_eq!(
        gone.wait(1, Duration::from_millis(50)),
        Err(Status::TIMEOUT)
    );
    assert_eq!(rig.device.state(), DeviceState::Active);
    assert!(a.map(MapMode::Write, MapFlags::DO_NOT_WAIT).is_ok());
    drop(a);
    eventually("the memory is free", || rig.vram_used() == used - (1 << 20));
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn a_fault_of_a_destroyed_context_is_its_devices() {
    let rig = Rig::new();
    fail_at_gate(&rig, &rig.copy);
    rig.copy.destroy();
    expect_fault_at_gate(&rig);
}

/// Nothing of it is held any more.
fn a_fault_of_what_was_held_is_its_devices() {
    let rig = Rig::new();
    let (fence, begun) = (rig.fence(), rig.system(PAGE));
    assert_eq!(rig.copy.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    rig.start(&rig.copy, &[write(begun.gpu_va(), 1)]);
    fail_at_gate(&rig, &rig.copy);
    assert_eq!(fence.signal(1), Ok(()));
    eventually("it begins", || read(&begun, 0) == 1);
    rig.copy.destroy();
    expect_fault_at_gate(&rig);
}

/// What [`fail_at_gate`] has begun fails, as the device tells.
#[track_caller]
fn expect_fault_at_gate(rig: &Rig) {
    let fence = rig.fence();
    thread::scope(|scope| {
        let wait = scope.spawn(|| fence.wait(1, patience()));
        rig.open_gate();
        assert_eq!(wait.join().expect("a result"), Err(Status::DEVICE_REMOVED));
    });
    match rig.device.state() {
        DeviceState::PageFault(fault) => assert_eq!(fault.address, rig.gate.gpu_va() + PAGE),
        state => panic!("{state:?}"),
    }
}

fn who_waits_for_cancelled_work_is_woken() {
    let rig = Rig::new();
    let never = rig.fence();
    let (a, b) = (rig.system(PAGE), rig.system(PAGE));
    // Held, so that it cannot end.
    assert_eq!(rig.compute.wait_from_gpu(&[(&never, 1)]), Ok(()));
    let (va, bytes) = rig.write(&[write(a.gpu_va(), 1)]);
    let job = rig.compute.submission().commands(va, bytes);
    assert_eq!(job.uses(&a, Access::Write).submit(), Ok(()));
    fail_at_gate(&rig, &rig.copy);
    thread::scope(|scope| {
        let map = scope.spawn(|| a.map(MapMode::Read, MapFlags::empty()).map(|_| ()));
        let destroy = scope.spawn(|| b.destroy(DestroyFlags::SYNCHRONOUS));
        thread::sleep(Duration::from_millis(50));
        assert!(!map.is_finished() && !destroy.is_finished());
        rig.open_gate();
        assert_eq!(map.join().expect("a result"), Err(Status::DEVICE_REMOVED));
        assert_eq!(destroy.join().expect("a result"), Ok(()));
    });
}

fn a_fence_that_others_have_goes_on() {
    let (rig, other) = (Rig::new(), Rig::new());
    let fence = rig.fence();
    let descriptor = fence.share().expect("a descriptor");
    let open = || MonitoredFence::open(&other.device, descriptor.as_fd()).expect("a fence");
    let (theirs, again) = (open(), open());
    // Work of one process waits for the other's, and the CPU for both.
    let a = other.system(PAGE);
    assert_eq!(other.copy.wait_from_gpu(&[(&theirs, 1)]), Ok(()));
    let (va, bytes) = other.write(&[write(a.gpu_va(), 5)]);
    let job = other.copy.submission().commands(va, bytes);
    assert_eq!(job.signal(&theirs, 2).submit(), Ok(()));
    assert_eq!(rig.compute.signal_from_gpu(&[(&fence, 1)]), Ok(()));
    assert_eq!(fence.wait(2, patience()), Ok(()));
    assert_eq!((read(&a, 0), theirs.value(), again.value()), (5, 2, 2));
    // The end of one is not the others'.
    again.destroy();
    assert_eq!(fence.value(), 2);
    fence.destroy();
    assert_eq!(fence.share().err(), Some(Status::INVALID_HANDLE));
    assert_eq!(theirs.value(), 2);
    assert_eq!(theirs.signal(3), Ok(()));
    assert_eq!(theirs.wait(3, patience()), Ok(()));
    // That of a device that has it is.
    let last = MonitoredFence::open(&rig.device, descriptor.as_fd()).expect("a fence");
    rig.device.mark_as_error();
    assert_eq!(theirs.value(), MonitoredFence::LOST);
    assert_eq!(last.wait(4, patience()), Err(Status::DEVICE_REMOVED));
    assert_eq!(other.device.state(), DeviceState::Active);
    // By handles, and what is no fence.
    let h = Handles::new();
    let p = &h.process;
    let made = p.create_synchronization_object2(h.device, 3);
    let made = made.expect("a fence");
    let descriptor = p.share_objects(made).expect("a descriptor");
    let opened = p.open_sync_object_from_nt_handle2(h.device, descriptor.as_fd());
    let opened = opened.expect("a fence");
    assert_ne!(made, opened);
    assert_eq!(p.fence(opened).expect("the fence").value(), 3);
    let null = fs::File::open("/dev/null").expect("a file");
    let refused = p.open_sync_object_from_nt_handle2(h.device, null.as_fd());
    assert_eq!(refused, Err(Status::INVALID_PARAMETER));
    let refused = p.share_objects(h.device).err();
    assert_eq!(refused, Some(Status::OBJECT_TYPE_MISMATCH));
}

fn the_end_of_a_shared_fence_wakes_its_devices_sleepers() {
    let (rig, other) = (Rig::new(), Rig::new());
    let (fence, more) = (rig.fence(), rig.fence());
    // Somebody asks before it is shared, somebody behind that.
    let first = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    assert_eq!(fence.notify(1, first.as_fd()), Ok(()));
    let descriptor = fence.share().expect("a descriptor");
    let theirs = MonitoredFence::open(&other.device, descriptor.as_fd()).expect("a fence");
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    assert_eq!(fence.notify(1, event.as_fd()), Ok(()));
    let gone = Err(Status::INVALID_HANDLE);
    // It is said at the end of the time at the latest: they are to end long before.
    let long = patience() * 3;
    thread::scope(|scope| {
        let wait = scope.spawn(|| fence.wait(1, long));
        let both = [(&more, 1), (&fence, 1)];
        let device = &rig.device;
        let all = scope.spawn(move || device.wait_from_cpu(&both, WaitFor::All, long));
        thread::sleep(Duration::from_millis(30));
        fence.destroy();
        eventually("they are woken", || wait.is_finished() && all.is_finished());
        assert_eq!(wait.join().expect("a result"), gone);
        assert_eq!(all.join().expect("a result").map(drop), gone);
    });
    // Eventfds wait for who still has it.
    assert_eq!([count(&first, 0), count(&event, 0)], [0, 0]);
    assert_eq!(theirs.signal(1), Ok(()));
    assert_eq!([count(&first, 1), count(&event, 1)], [1, 1]);
    // That of a device is one, too.
    thread::scope(|scope| {
        let wait = scope.spawn(|| theirs.wait(2, long));
        thread::sleep(Duration::from_millis(30));
        other.device.destroy();
        eventually("it is woken", || wait.is_finished());
        assert_eq!(wait.join().expect("a result"), gone);
    });
}

fn the_end_of_a_device_fires_its_events() {
    let (rig, other) = (Rig::new(), Rig::new());
    let (fence, early, own) = (rig.fence(), rig.fence(), rig.fence());
    let events = [(); 4].map(|()| EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd"));
    // Before it is shared.
    assert_eq!(early.notify(1, events[0].as_fd()), Ok(()));
    let theirs = [&fence, &early].map(|fence| {
        let descriptor = fence.share().expect("a descriptor");
        MonitoredFence::open(&other.device, descriptor.as_fd()).expect("a fence")
    });
    assert_eq!(fence.notify(1, events[1].as_fd()), Ok(()));
    let all = [(&fence, 1), (&own, 1), (&early, 1)];
    for (waits, how, event) in [
        (&all[..], WaitFor::All, &events[2]),
        (&all[..1], WaitFor::Any, &events[3]),
    ] {
        let device = &rig.device;
        let registered = device.wait_from_cpu_async(waits, how, event.as_fd());
        assert_eq!(registered, Ok(()));
    }
    assert_eq!(events.each_ref().map(|event| count(event, 0)), [0; 4]);
    rig.device.destroy();
    assert_eq!(events.each_ref().map(|event| count(event, 1)), [1; 4]);
    // Others go on with the fences, and nobody is told once more.
    for fence in &theirs {
        assert_eq!((fence.value(), fence.signal(1)), (0, Ok(())));
    }
    assert_eq!(events.each_ref().map(|event| count(event, 0)), [0; 4]);
    assert_eq!(other.device.state(), DeviceState::Active);
}

fn row_2_22_a_fence_can_keep_its_value() {
    let rig = Rig::new();
    let kept = MonitoredFence::create_keeping(&rig.device, 4).expect("a fence");
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    assert_eq!(kept.notify(9, event.as_fd()), Ok(()));
    thread::scope(|scope| {
        let wait = scope.spawn(|| kept.wait(5, patience()));
        fail_at_gate(&rig, &rig.copy);
        rig.open_gate();
        let ended = wait.join().expect("a result");
        assert_eq!(ended, Err(Status::DEVICE_REMOVED));
    });
    assert_eq!(count(&event, 1), 1);
    assert_eq!(kept.value(), 4);
    assert_eq!(kept.wait(4, patience()), Err(Status::DEVICE_REMOVED));
    let h = Handles::new();
    let made = h
        .process
        .create_keeping_synchronization_object2(h.device, 6);
    let fence = h.process.fence(made.expect("a fence"));
    let fence = fence.expect("the fence");
    assert_eq!(h.process.mark_device_as_error(h.device), Ok(()));
    assert_eq!(fence.value(), 6);
}

fn everybody_learns_that_the_gpu_is_unplugged(busy: bool) {
    let rig = Rig::new();
    let (never, running) = (rig.fence(), rig.fence());
    let (a, b, c) = (rig.system(PAGE), rig.system(PAGE), rig.vram(PAGE));
    if busy {
        let (va, bytes) = rig.write(&[rig.wait_for_gate()]);
        let job = rig.copy.submission().commands(va, bytes);
        assert_eq!(job.signal(&running, 1).submit(), Ok(()));
        // Behind it, by the CPU.
        assert_eq!(running.signal(2), Ok(()));
    }
    // Held back.
    assert_eq!(rig.compute.wait_from_gpu(&[(&never, 1)]), Ok(()));
    let (va, bytes) = rig.write(&[write(a.gpu_va(), 1)]);
    let job = rig.compute.submission().commands(va, bytes);
    assert_eq!(job.uses(&a, Access::Write).submit(), Ok(()));
    let events = [(); 2].map(|()| EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd"));
    assert_eq!(never.notify(9, events[0].as_fd()), Ok(()));
    let both = [(&never, 9), (&running, 9)];
    let many = rig
        .device
        .wait_from_cpu_async(&both, WaitFor::All, events[1].as_fd());
    assert_eq!(many, Ok(()));
    let removed = Err(Status::DEVICE_REMOVED);
    let callers = [const { Caller::new() }; 6];
    let multi = |how| {
        rig.device
            .wait_from_cpu(&both, how, Duration::MAX)
            .map(|_| ())
    };
    let unbound = thread::scope(|scope| {
        let threads = [
            scope.spawn(|| callers[0].call(|| never.wait(5, Duration::MAX))),
            scope.spawn(|| callers[1].call(|| running.wait(1, Duration::MAX))),
            scope.spawn(|| callers[2].call(|| multi(WaitFor::Any))),
            scope.spawn(|| callers[3].call(|| multi(WaitFor::All))),
            scope.spawn(|| callers[4].call(|| a.map(MapMode::Read, MapFlags::empty()).map(|_| ()))),
        ];
        let destroy = scope.spawn(|| callers[5].call(|| b.destroy(DestroyFlags::SYNCHRONOUS)));
        eventually("they sleep", || all_asleep(&callers));
        let unbound = Unbound::first();
        for (n, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().expect("a result"), removed, "thread {n}");
        }
        // Whether it could wait for the end or not, it ends.
        let _ = destroy.join().expect("a result");
        unbound
    });
    for (n, event) in events.iter().enumerate() {
        eventually("the event fires", || event.read().is_ok());
        assert_eq!(count(event, 0), 0, "event {n} fired again");
    }
    assert_eq!(rig.device.state(), DeviceState::Stopped);
    eventually("it is lost", || never.value() == MonitoredFence::LOST);
    // From now on at once.
    assert_eq!(never.wait(0, patience()), removed);
    assert_eq!(never.signal(1), removed);
    assert_eq!(rig.copy.submit(va, bytes), removed);
    let new = Context::create(&rig.device, 0);
    assert_eq!(new.err(), Some(Status::DEVICE_REMOVED));
    let new = Allocation::create(
        &rig.device,
        &AllocationDesc::new(PAGE, rig.device.adapter().system()),
    );
    assert_eq!(new.err(), Some(Status::DEVICE_REMOVED));
    assert_eq!(c.destroy(DestroyFlags::empty()), Ok(()));
    // The device's end does not hang, whether the GPU is back or not.
    if busy {
        drop((rig, a, b, c));
        drop(unbound);
    } else {
        drop(unbound);
        drop((rig, a, b, c));
    }
    let anew = Rig::new();
    anew.finish(&anew.copy);
    anew.finish(&anew.compute);
}

fn an_unplug_ends_waits_of_a_busy_device() {
    everybody_learns_that_the_gpu_is_unplugged(true);
}

fn an_unplug_ends_waits_of_an_idle_device() {
    everybody_learns_that_the_gpu_is_unplugged(false);
}

fn an_unplug_is_noticed_without_contexts() {
    let device = Device::create(&Adapter::open_first().expect("an adapter")).expect("a device");
    let fence = MonitoredFence::create(&device, 0).expect("a fence");
    thread::scope(|scope| {
        let wait = scope.spawn(|| fence.wait(1, Duration::MAX));
        let unbound = Unbound::first();
        assert_eq!(wait.join().expect("a result"), Err(Status::DEVICE_REMOVED));
        drop(unbound);
    });
    assert_eq!(device.state(), DeviceState::Stopped);
}

/// As often as it likes: it has one space of addresses there.
fn a_process_opens_an_adapter_once() {
    let h = Handles::new();
    let luid = Process::enum_adapters().expect("adapters")[0];
    let open = || h.process.open_adapter_from_luid(luid).expect("an adapter");
    let (again, adapter) = (open(), |handle| h.process.adapter(handle));
    assert_ne!(again, h.adapter);
    assert!(adapter(again) == adapter(h.adapter));
    // Each has devices of its own.
    let device = h.process.create_device(again).expect("a device");
    assert_eq!(h.process.close_adapter(again), Ok(()));
    let state = |device| h.process.get_device_state(device);
    assert_eq!(state(device), Err(Status::INVALID_HANDLE));
    assert_eq!(state(h.device), Ok(DeviceState::Active));
    let before = adapter(h.adapter).expect("the adapter");
    drop(Unbound::first());
    // The one before is of no use any more.
    let anew = open();
    assert!(adapter(anew).expect("the adapter") != before);
    assert!(h.process.create_device(anew).is_ok());
}

fn a_forked_child_takes_nothing_away() {
    let mut rig = Some(Rig::new());
    let mut fence = Some(rig.as_ref().expect("a rig").fence());
    let mut a = Some(rig.as_ref().expect("a rig").vram(PAGE));
    let dropped = in_child(|| {
        drop((fence.take(), a.take()));
        drop(rig.take());
        true
    });
    assert!(dropped);
    let (rig, fence, a) = (
        rig.expect("a rig"),
        fence.expect("a fence"),
        a.expect("an allocation"),
    );
    assert_eq!(a.lock2(0).expect("Lock2").write(0, 5_u64), Ok(()));
    rig.start(&rig.copy, &[copy(a.gpu_va(), rig.gate.gpu_va(), 8)]);
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 1)]), Ok(()));
    assert_eq!(fence.wait(1, patience()), Ok(()));
    assert_eq!(read(&rig.gate, 0), 5);
    rig.finish(&rig.compute);
}

fn a_forked_child_takes_no_lock_away() {
    let rig = Rig::new();
    let a = rig.system(PAGE);
    let offer = || {
        rig.device
            .offer(&[&a], OfferPriority::Low, OfferFlags::empty())
    };
    let map = a.map(MapMode::NoOverwrite, MapFlags::empty());
    let mut map = Some(map.expect("a map"));
    assert!(in_child(|| {
        drop(map.take());
        true
    }));
    // The kernel knows that it is locked.
    assert_eq!(offer(), Err(Status::GRAPHICS_ALLOCATION_BUSY));
    drop(map);
    assert_eq!(offer(), Ok(()));
}

fn contexts_whose_work_is_over_are_no_limit() {
    quiet();
    let rig = Rig::new();
    let create = || Context::create(&rig.device, 0);
    let made = (0..1024).map_while(|_| {
        let context = create().ok()?;
        rig.start(&context, &[rig.wait_for_gate()]);
        context.destroy();
        Some(())
    });
    let made = made.count();
    assert!(made > 200, "{made}");
    let refused = create().map(drop);
    assert_eq!(refused, Err(Status::INSUFFICIENT_RESOURCES));
    rig.open_gate();
    eventually("there may be one more", || create().is_ok());
}

fn work_of_a_destroyed_context_keeps_its_allocations() {
    let rig = Rig::new();
    let (a, b) = (rig.vram(1 << 20), rig.system(1 << 20));
    let used = rig.vram_used();
    rig.start(
        &rig.compute,
        &[
            rig.wait_for_gate(),
            fill(0x4321_8765, a.gpu_va(), a.size()),
            copy(a.gpu_va(), b.gpu_va(), a.size()),
        ],
    );
    rig.compute.destroy();
    assert_eq!(a.destroy(DestroyFlags::empty()), Ok(()));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.vram_used(), used);
    rig.open_gate();
    eventually("the memory is free", || rig.vram_used() == used - (1 << 20));
    assert_eq!(read(&b, (1 << 20) - 8), 0x4321_8765_4321_8765);
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn a_destroyed_fence_lets_go_of_who_waits() {
    let rig = Rig::new();
    let (fence, other) = (rig.fence(), rig.fence());
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
    let both = [(&fence, 1), (&other, 1)];
    let registered = rig
        .device
        .wait_from_cpu_async(&both, WaitFor::All, event.as_fd());
    assert_eq!(registered, Ok(()));
    assert_eq!(rig.copy.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    assert_eq!(rig.copy.signal_from_gpu(&[(&other, 1)]), Ok(()));
    thread::scope(|scope| {
        let wait = scope.spawn(|| fence.wait(1, patience()));
        thread::sleep(Duration::from_millis(30));
        fence.destroy();
        assert_eq!(wait.join().expect("a result"), Err(Status::INVALID_HANDLE));
    });
    assert_eq!(other.wait(1, patience()), Ok(()), "the context goes on");
    assert_eq!(count(&event, 1), 1);
    let handle = Err(Status::INVALID_HANDLE);
    assert_eq!(fence.value(), MonitoredFence::LOST);
    assert_eq!(fence.signal(1), handle);
    assert_eq!(fence.wait(0, patience()), handle);
    assert_eq!(rig.copy.wait_from_gpu(&[(&fence, 1)]), handle);
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 1)]), handle);
    // At once, and not when work is done that is to signal it.
    let promised = rig.fence();
    rig.start(&rig.copy, &[rig.wait_for_gate()]);
    assert_eq!(rig.copy.signal_from_gpu(&[(&promised, 1)]), Ok(()));
    thread::scope(|scope| {
        let wait = scope.spawn(|| promised.wait(1, patience() * 3));
        thread::sleep(Duration::from_millis(30));
        promised.destroy();
        eventually("it is woken", || wait.is_finished());
        assert_eq!(wait.join().expect("a result"), handle);
    });
    rig.open_gate();
    rig.finish(&rig.copy);
}

/// Where the GPU sees a fence's value stays as long as there is work that may look.
fn work_finds_the_end_of_a_destroyed_fence() {
    for _ in 0..suite::rounds(20) {
        let rig = Rig::new();
        let (fence, out) = (rig.fence(), rig.system(PAGE));
        assert_eq!(fence.signal(7), Ok(()));
        let seen = fence.gpu_va().expect("an address");
        rig.start(&rig.compute, &[wait_value(seen, 8)]);
        rig.start(
            &rig.copy,
            &[rig.wait_for_gate(), copy(seen, out.gpu_va(), 8)],
        );
        fence.destroy();
        // Who waits goes on.
        rig.finish(&rig.compute);
        // What comes does not get its address.
        let others = [(); 4].map(|()| rig.system(PAGE));
        for other in &others {
            assert_ne!(other.gpu_va(), seen);
        }
        rig.open_gate();
        rig.finish(&rig.copy);
        assert_eq!(read(&out, 0), MonitoredFence::LOST - 1);
    }
}

fn nothing_is_left_behind() {
    quiet();
    let adapter = Adapter::open_first().expect("an adapter");
    let files = || fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let mappings = || {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines().filter(|line| line.contains("/dri/")).count()
    };
    // A thread that was joined may be listed for a moment.
    let alone = || {
        eventually("one thread", || {
            fs::read_dir("/proc/self/task").expect("threads").count() == 1
        });
    };
    let round = || {
        let rig = Rig::on(&adapter).having_worked();
        let fence = rig.fence();
        let a = rig.vram(1 << 20);
        let (va, bytes) = rig.write(&[fill(2, a.gpu_va(), a.size())]);
        let job = rig.copy.submission().commands(va, bytes);
        let job = job.uses(&a, Access::Write).signal(&fence, 1);
        assert_eq!(job.submit(), Ok(()));
        drop(fence);
        drop(a);
    };
    round();
    alone();
    let before = (files(), mappings(), vram_used(&adapter));
    // A range of addresses for each would be gone long before the end.
    for _ in 0..suite::rounds(300) {
        round();
    }
    alone();
    assert_eq!((files(), mappings(), vram_used(&adapter)), before);
    let first = Rig::on(&adapter).gate.gpu_va();
    round();
    assert_eq!(Rig::on(&adapter).gate.gpu_va(), first, "addresses are lost");
}

fn waits_end_with_the_process() {
    let rig: &'static Rig = Box::leak(Box::new(Rig::new()));
    let fence: &'static MonitoredFence = Box::leak(Box::new(rig.fence()));
    let a: &'static Allocation = Box::leak(Box::new(rig.vram(PAGE)));
    rig.start(&rig.copy, &[rig.wait_for_gate()]);
    let waiting = [
        thread::spawn(|| fence.wait(1, Duration::MAX)),
        thread::spawn(|| a.destroy(DestroyFlags::SYNCHRONOUS)),
    ];
    thread::sleep(Duration::from_millis(50));
    assert!(waiting.iter().all(|thread| !thread.is_finished()));
    // The end of the process kills the threads; one that cannot be killed would keep it.
    let _ = io::Write::flush(&mut io::stdout());
}
