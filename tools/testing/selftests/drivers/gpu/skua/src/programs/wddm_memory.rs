// SPDX-License-Identifier: MIT

//! `tools/wddm` on the driver: residency, and addresses of clients' own.
//!
//! As in `wddm.rs`, work that is under way waits for the *gate*, a word of memory that the CPU
//! writes when it pleases.

use std::iter;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::Duration;

use skua_selftests::function::Function;
use skua_selftests::moving::evict_all;
use skua_selftests::race::Caller;
use skua_selftests::rig::{copy, wait_value, write};
use skua_selftests::wddm_rig::{
    at, expect_fault, finish, gpu_read, gpu_write, locked_out, map, more_than_half, movable,
    patience, queue, read, reserve, vram_size, vram_used, Rig, MIB, PAGE, UNIT,
};
use skua_selftests::witness::quiet;
use skua_selftests::{skip, suite, tests, wddm_memory, Cases};
use wddm::{
    Access, Allocation, AllocationDesc, Context, DestroyFlags, Device, DeviceState, EngineKind,
    EvictFlags, MakeResidentFlags, MapDesc, MapFlags, MapMode, MemorySegmentGroup, MonitoredFence,
    NotResident, OfferFlags, OfferPriority, PagingQueue, Process, Protection, ReclaimResult,
    ReservationType, ReserveDesc, Status, TrimFlags, TrimNotification, TrimRegistration,
    UpdateFlags, VaOperation, WaitFor, MAX_RESIDENT,
};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_paging_fence_counts_operations at_rest,
        pending_residency_is_there_when_the_fence_says_so: 60 at_rest,
        a_paging_fence_is_the_queues_to_signal,
        residency_is_counted_all_or_none: 60,
        more_allocations_than_one_ioctl_takes: 60,
        an_eviction_that_fails_evicts_nothing: 60 at_rest,
        residency_that_must_succeed: 60,
        row_0_21_what_is_locked_is_pending_until_it_is_unlocked: 60 at_rest,
        a_map_waits_before_it_locks: 60 at_rest,
        a_map_of_what_is_locked_out_is_bounded: 60 at_rest,
        residency_that_waits_is_limited: 60 at_rest,
        a_submission_that_waits_for_room_holds_nobody_up: 60,
        the_end_of_a_device_waits_for_submissions: 60,
        work_finds_what_is_resident: 60 at_rest,
        a_budget_is_the_devices_own: 60,
        video_memory_info_tells_what_is_there: 60 at_rest,
        who_has_too_much_is_called_back: 60,
        a_trim_callback_may_end_its_device: 60,
        a_trim_callback_may_wait_for_work: 60,
        paging_queues_end: 60,
        a_paging_queue_that_ends_loses_nothing: 60,
        an_address_is_every_devices_own_to_map: 60,
        what_is_offered_is_reclaimed: 60 at_rest,
        what_is_reclaimed_is_to_be_made_resident: 60 at_rest,
        offers_by_handles,
        what_is_mapped_is_seen_in_both_places,
        addresses_are_where_they_are_wanted,
        read_only_addresses_fault_on_writes,
        freed_addresses_fault,
        a_mapped_range_goes_with_its_allocation,
        a_mapped_range_is_free_when_work_is_done,
        an_update_is_between_work: 60,
        an_update_waits_for_what_nobody_has_submitted,
        an_update_need_not_wait,
        updates_copy_what_is_mapped,
        a_freed_reservation_is_free_behind_its_updates,
        an_update_that_is_held_has_its_place: 120,
        an_update_waits_for_what_is_offered,
        an_update_copies_more_than_a_bind: 60,
        a_queued_update_keeps_its_allocation: 60 at_rest,
        row_0_05_synchronous_destruction_does_not_wait_for_updates: 120 at_rest,
        updates_of_a_context_are_limited: 60,
        bad_reservations_are_refused,
        bad_maps_are_refused,
        bad_updates_are_refused,
        handles_reach_all_of_it: 60,
        nothing_is_left_behind: 120,
    ])
}

const NONE: MakeResidentFlags = MakeResidentFlags::empty();
const NOT_TRIM: MakeResidentFlags = MakeResidentFlags::CANT_TRIM_FURTHER;

fn what_is_reclaimed_is_to_be_made_resident() {
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    // Of another device, which is resident all the while.
    let second = Rig::on(rig.device.adapter());
    let (a, other) = (rig.vram_out(2 * MIB), second.vram(MIB));
    gpu_write(&second, other.gpu_va(), 9);
    let make_resident = || {
        finish(
            &queue,
            queue.make_resident(&[&a], NONE).expect("MakeResident"),
        )
    };
    let offer = || {
        rig.device
            .offer(&[&a], OfferPriority::Low, OfferFlags::empty())
    };
    let evict = || rig.device.evict(&[&a], EvictFlags::empty());
    let usage = || {
        let adapter = rig.device.adapter();
        let info = adapter.query_video_memory_info(MemorySegmentGroup::Local);
        info.expect("figures").current_usage
    };
    // Has all leave video memory that may, until as much less is used as that takes.
    let leaves = |used: u64| {
        let left = || {
            evict_all();
            (rig.vram_used() + a.size() <= used).then_some(())
        };
        assert!(suite::eventually(left).is_some(), "it stays: {used}");
    };
    let busy = Status::GRAPHICS_ALLOCATION_BUSY;
    make_resident();
    for (throw_away, result) in [(false, ReclaimResult::Ok), (true, ReclaimResult::Discarded)] {
        gpu_write(&rig, a.gpu_va(), 7);
        assert_eq!(offer(), Err(busy), "resident");
        assert_eq!(usage(), 3 * MIB);
        let used = rig.vram_used();
        assert_eq!(evict(), Ok(0));
        assert_eq!(offer(), Ok(()));
        assert_eq!(usage(), MIB);
        assert_eq!(evict(), Err(Status::INVALID_PARAMETER), "not resident");
        let refused = queue.make_resident(&[&a], NOT_TRIM);
        assert_eq!(refused, Err(busy.into()), "offered");
        let refused = queue.map_gpu_virtual_address(&MapDesc::all_of(&a));
        assert_eq!(refused.err(), Some(busy), "offered");
        if throw_away {
            leaves(used);
        }
        let (results, paging) = queue.reclaim(&[&a]).expect("a reclaim");
        assert_eq!(results, [result]);
        finish(&queue, paging);
        assert_eq!(usage(), MIB, "it is not resident by that");
        make_resident();
        let found = gpu_read(&rig, a.gpu_va());
        assert_eq!(found, if throw_away { 0 } else { 7 });
    }
    // As without offers.
    let used = rig.vram_used();
    assert_eq!(evict(), Ok(0));
    leaves(used);
    expect_fault(&rig, a.gpu_va(), 8);
    assert_eq!(gpu_read(&second, other.gpu_va()), 9);
    assert_eq!(second.device.state(), DeviceState::Active);
}

fn offers_by_handles() {
    let p = Process::new();
    let luid = Process::enum_adapters().expect("adapters")[0];
    let adapter = p.open_adapter_from_luid(luid).expect("an adapter");
    let (device, other) = (p.create_device(adapter), p.create_device(adapter));
    let (device, other) = (device.expect("a device"), other.expect("a device"));
    let system = p.adapter(adapter).expect("the adapter").system();
    let descs = [AllocationDesc::new(PAGE, system); 2];
    let made = p.create_allocation2(device, &descs, true);
    let made = made.expect("allocations");
    let (resource, list) = (made.resource, made.allocations);
    let first = list[0];
    let queue = p.create_paging_queue(device).expect("a paging queue").queue;
    for (resource, list) in [(resource, &[][..]), (None, &list[..])] {
        assert_eq!(p.offer_allocations(device, resource, list, 2, 3), Ok(()));
        let locked = p.lock2(device, first, 0);
        assert_eq!(locked.err(), Some(Status::GRAPHICS_ALLOCATION_BUSY));
        let (results, _) = p
            .reclaim_allocations2(queue, resource, list)
            .expect("a reclaim");
        assert_eq!(results, [ReclaimResult::Ok; 2]);
    }
    let refused = Err(Status::INVALID_PARAMETER);
    let offer = |device, resource, list: &[_], priority, flags| {
        p.offer_allocations(device, resource, list, priority, flags)
    };
    assert_eq!(offer(device, resource, &list, 1, 0), refused, "both");
    assert_eq!(offer(device, None, &[], 1, 0), refused, "none");
    assert_eq!(offer(other, None, &list, 1, 0), refused, "another's");
    for priority in [0, 5, u32::MAX] {
        assert_eq!(offer(device, None, &list, priority, 0), refused);
    }
    for flags in [4, 1 << 31] {
        assert_eq!(offer(device, None, &list, 1, flags), refused);
    }
    let type_mismatch = Some(Status::OBJECT_TYPE_MISMATCH);
    assert_eq!(offer(device, None, &[device], 1, 0).err(), type_mismatch);
    assert_eq!(offer(queue, None, &list, 1, 0).err(), type_mismatch);
    assert_eq!(p.destroy_device(other), Ok(()));
    let stale = offer(other, None, &list, 1, 0);
    assert_eq!(stale, Err(Status::INVALID_HANDLE));
    let strange = p.reclaim_allocations2(device, None, &list);
    assert_eq!(strange.err(), type_mismatch);
    // None of them was.
    assert!(list
        .iter()
        .all(|handle| p.lock2(device, *handle, 0).is_ok()));
}

fn update_map(va: u64, allocation: &Allocation, offset: u64) -> VaOperation<&Allocation> {
    VaOperation::Map {
        va,
        size: PAGE,
        allocation,
        offset,
        protection: Protection::WRITE,
    }
}

fn update(
    context: &Context,
    operations: &[VaOperation<&Allocation>],
    fence: Option<(&MonitoredFence, u64)>,
) -> Result<(), Status> {
    context.update_gpu_virtual_address(operations, fence, UpdateFlags::empty())
}

fn a_paging_fence_counts_operations() {
    let rig = Rig::new();
    let queue = queue(&rig);
    assert_eq!(queue.fence().value(), 0);
    let (a, b) = (movable(&rig, PAGE), rig.system(PAGE));
    for value in 1..=20 {
        let paging = match value % 3 {
            0 => queue
                .map_gpu_virtual_address(&MapDesc::all_of(&b))
                .map(|(_, paging)| paging)
                .map_err(NotResident::from),
            1 => queue.make_resident(&[&a, &b], NONE),
            _ => queue.make_resident(&[&b], NONE),
        };
        let paging = paging.expect("an operation");
        assert_eq!(paging.fence_value, value);
        finish(&queue, paging);
        assert_eq!(queue.fence().value(), value);
    }
    // All that it was asked for is done: nobody has to wait.
    let paging = queue.make_resident(&[&a], NONE).expect("MakeResident");
    assert_eq!((paging.status, paging.fence_value), (Status::SUCCESS, 21));
    // Queues count by themselves.
    let other = PagingQueue::create(&rig.device).expect("a paging queue");
    let paging = other.make_resident(&[&a], NONE).expect("MakeResident");
    assert_eq!(paging.fence_value, 1);
}

fn a_paging_fence_is_the_queues_to_signal() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let other = rig.fence();
    let parameter = Err(Status::INVALID_PARAMETER);
    assert_eq!(queue.fence().signal(1), parameter);
    let signals = [(&**queue.fence(), 1)];
    assert_eq!(rig.copy.signal_from_gpu(&signals), parameter);
    assert_eq!(
        rig.copy.signal_from_gpu(&[(&other, 1), signals[0]]),
        parameter
    );
    let (va, bytes) = rig.write(&[rig.wait_for_gate()]);
    let job = rig.copy.submission().commands(va, bytes);
    assert_eq!(job.signal(queue.fence(), 1).submit(), parameter);
    let range = reserve(&rig, UNIT);
    let unmap = VaOperation::Unmap {
        va: range,
        size: UNIT,
    };
    assert_eq!(
        update(&rig.copy, &[unmap], Some((queue.fence(), 0))),
        parameter
    );
    assert_eq!((queue.fence().value(), other.value()), (0, 0));
    let paging = queue
        .make_resident(&[&rig.gate], NONE)
        .expect("MakeResident");
    assert_eq!(paging.fence_value, 1);
    finish(&queue, paging);
}

fn residency_is_counted_all_or_none() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let (a, b) = (movable(&rig, PAGE), movable(&rig, PAGE));
    let foreign = Rig::on(rig.device.adapter());
    let dead = movable(&rig, PAGE);
    assert_eq!(dead.destroy(DestroyFlags::empty()), Ok(()));
    let evict = |list: &[&Allocation]| rig.device.evict(list, EvictFlags::empty());
    let parameter = Err(Status::INVALID_PARAMETER);
    assert_eq!(evict(&[&a]), parameter, "it is not resident");
    let resident = |list: &[&Allocation]| queue.make_resident(list, NONE);
    finish(&queue, resident(&[&a]).expect("MakeResident"));
    finish(&queue, resident(&[&a, &b]).expect("MakeResident"));
    let mut cases = Cases::new();
    for (what, list, status) in [
        ("none", vec![], Status::INVALID_PARAMETER),
        ("one twice", vec![&b, &a, &b], Status::INVALID_PARAMETER),
        ("a dead one", vec![&a, &dead], Status::INVALID_HANDLE),
        (
            "another device's",
            vec![&a, &foreign.gate],
            Status::INVALID_PARAMETER,
        ),
        (
            "too many",
            vec![&a; MAX_RESIDENT + 1],
            Status::INVALID_PARAMETER,
        ),
    ] {
        cases.expect(what, resident(&list), Err(status.into()));
        cases.expect(what, evict(&list), Err(status));
    }
    cases.finish();
    // Of `b` there is one: of both, none is taken back after that.
    let all = EvictFlags::EVICT_ONLY_IF_NECESSARY | EvictFlags::NOT_WRITTEN_TO;
    assert_eq!(rig.device.evict(&[&b], all), Ok(0));
    assert_eq!(evict(&[&a, &b]), parameter);
    assert_eq!(evict(&[&a]), Ok(0));
    assert_eq!(evict(&[&a]), Ok(0));
    assert_eq!(evict(&[&a]), parameter);
    // What is refused is no operation.
    let paging = resident(&[&a]).expect("MakeResident");
    assert_eq!(paging.fence_value, 3);
}

fn more_allocations_than_one_ioctl_takes() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let many: Vec<_> = (0..2100).map(|_| rig.system(PAGE)).collect();
    let list: Vec<&Allocation> = many.iter().collect();
    finish(
        &queue,
        queue.make_resident(&list, NONE).expect("MakeResident"),
    );
    // The last one is not resident twice, so that none is evicted twice.
    finish(
        &queue,
        queue
            .make_resident(&list[..2099], NONE)
            .expect("MakeResident"),
    );
    let evict = |list: &[&Allocation]| rig.device.evict(list, EvictFlags::empty());
    assert_eq!(evict(&list), Ok(0));
    assert_eq!(evict(&list), Err(Status::INVALID_PARAMETER));
    assert_eq!(evict(&list[..2099]), Ok(0));
    assert_eq!(evict(&list[..1]), Err(Status::INVALID_PARAMETER));
    assert_eq!(evict(&list[2000..2001]), Err(Status::INVALID_PARAMETER));
}

/// Nor what is locked outside of video memory.
fn an_eviction_that_fails_evicts_nothing() {
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    let (hidden, _cpu) = locked_out(&rig);
    let many: Vec<_> = (0..1024).map(|_| rig.system(PAGE)).collect();
    let list: Vec<&Allocation> = iter::once(&hidden).chain(&many).collect();
    let made = queue.make_resident(&list[..1024], NONE);
    assert_eq!(made.map(|paging| paging.status), Ok(Status::PENDING));
    let evict = |list: &[&Allocation]| rig.device.evict(list, EvictFlags::empty());
    // The last one is not resident, and is in another ioctl.
    assert_eq!(evict(&list), Err(Status::INVALID_PARAMETER));
    for one in [&list[..1], &list[1..1024]] {
        assert_eq!(evict(one), Ok(0));
        assert_eq!(evict(one), Err(Status::INVALID_PARAMETER));
    }
    assert_eq!(hidden.unlock2(), Ok(()));
}

fn residency_that_must_succeed() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let must = MakeResidentFlags::MUST_SUCCEED;
    let refused = queue.make_resident(&[&rig.gate], must);
    assert_eq!(refused, Err(Status::INVALID_PARAMETER.into()));
    let both = must | MakeResidentFlags::CANT_TRIM_FURTHER;
    finish(
        &queue,
        queue
            .make_resident(&[&rig.gate], both)
            .expect("MakeResident"),
    );
    assert_eq!(rig.device.state(), DeviceState::Active);
}

/// In the kernel, and that is no lack of memory. What is refused is not counted.
fn residency_that_waits_is_limited() {
    const MOST: u64 = 64;
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    let (hidden, _cpu) = locked_out(&rig);
    let resident = || queue.make_resident(&[&hidden], NONE);
    for value in 1..=MOST {
        let paging = resident().expect("MakeResident");
        assert_eq!(
            (paging.status, paging.fence_value),
            (Status::PENDING, value)
        );
    }
    let refused = Err(Status::INSUFFICIENT_RESOURCES.into());
    assert_eq!(resident(), refused);
    assert_eq!(hidden.unlock2(), Ok(()));
    assert_eq!(queue.fence().wait(MOST, patience()), Ok(()));
    let evict = || rig.device.evict(&[&hidden], EvictFlags::empty());
    for count in 0..MOST {
        assert_eq!(evict(), Ok(0), "{count}");
    }
    assert_eq!(evict(), Err(Status::INVALID_PARAMETER));
}

/// What waits for the work that needs it in video memory does not keep it out.
fn a_map_waits_before_it_locks() {
    quiet();
    let rig = Rig::new();
    let (queue, fence) = (queue(&rig), rig.fence());
    let desc = AllocationDesc::new(MIB, rig.device.adapter().vram()).hidden();
    let hidden = Allocation::create(&rig.device, &desc).expect("an allocation");
    finish(
        &queue,
        queue.make_resident(&[&hidden], NONE).expect("MakeResident"),
    );
    let (va, bytes) = rig.write(&[write(hidden.gpu_va(), 7)]);
    assert_eq!(rig.compute.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    let job = rig.compute.submission().commands(va, bytes);
    assert_eq!(job.uses(&hidden, Access::Write).submit(), Ok(()));
    suite::becomes("it leaves video memory", || evict_all() > 0);
    let caller = Caller::new();
    let map = || hidden.map(MapMode::Read, MapFlags::empty()).map(drop);
    thread::scope(|scope| {
        let mapped = scope.spawn(|| caller.call(map));
        caller.wait_until_asleep();
        assert_eq!(fence.signal(1), Ok(()));
        let ends = suite::eventually(|| mapped.is_finished().then_some(()));
        if ends.is_none() {
            rig.device.mark_as_error();
        }
        // It is there, where the CPU has no way to it.
        let result = mapped.join().expect("a result");
        assert_eq!((ends, result), (Some(()), Err(Status::INVALID_PARAMETER)));
    });
    assert_eq!(gpu_read(&rig, hidden.gpu_va()), 7);
}

/// Who has it locked would wait for itself.
fn a_map_of_what_is_locked_out_is_bounded() {
    quiet();
    let rig = Rig::new();
    let fence = rig.fence();
    let (hidden, _cpu) = locked_out(&rig);
    assert_eq!(rig.compute.wait_from_gpu(&[(&fence, 1)]), Ok(()));
    let job = rig.compute.submission();
    assert_eq!(job.uses(&hidden, Access::Write).submit(), Ok(()));
    let map = || hidden.map(MapMode::Read, MapFlags::empty()).map(drop);
    thread::scope(|scope| {
        let mapped = scope.spawn(map);
        let ends = suite::eventually(|| mapped.is_finished().then_some(()));
        assert_eq!(fence.signal(1), Ok(()));
        let result = mapped.join().expect("a result");
        let busy = Err(Status::GRAPHICS_ALLOCATION_BUSY);
        assert_eq!((ends, result), (Some(()), busy));
    });
    rig.finish(&rig.compute);
    assert_eq!(map(), Ok(()));
}

/// A device whose work needs room that another one's has until its gate is open; with what both
/// have resident.
fn without_room() -> ([Rig; 2], [Allocation; 2]) {
    quiet();
    let rigs = [(); 2].map(|()| Rig::new().having_worked());
    let most = rigs.each_ref().map(|rig| {
        let vram = rig.device.adapter().vram();
        let size = vram_size(rig.device.adapter()) / 4 * 3;
        let most = Allocation::create(&rig.device, &AllocationDesc::new(size, vram).hidden());
        let (queue, most) = (queue(rig), most.expect("an allocation"));
        let paging = queue.make_resident(&[&most], NOT_TRIM);
        finish(&queue, paging.expect("MakeResident"));
        most
    });
    // It uses what is resident for its device, for all that the kernel knows.
    let [_, other] = &rigs;
    other.start(&other.copy, &[other.wait_for_gate()]);
    other.finish(&other.compute);
    (rigs, most)
}

fn a_submission_that_waits_for_room_holds_nobody_up() {
    let ([rig, other], _most) = without_room();
    let (fence, destroyed) = (rig.fence(), rig.fence());
    let [out, idle] = [(); 2].map(|()| rig.system(PAGE));
    let (va, bytes) = rig.write(&[write(out.gpu_va(), 7)]);
    thread::scope(|scope| {
        let submit = scope.spawn(|| rig.copy.submit(va, bytes));
        thread::sleep(Duration::from_millis(200));
        assert_eq!(rig.device.state(), DeviceState::Active);
        assert_eq!(fence.signal(0), Err(Status::INVALID_PARAMETER));
        assert_eq!(rig.compute.wait_from_gpu(&[(&fence, 1)]), Ok(()));
        assert_eq!(rig.copy.set_scheduling_priority(-1), Ok(()));
        assert_eq!(idle.destroy(DestroyFlags::empty()), Ok(()));
        destroyed.destroy();
        rig.compute.destroy();
        // Its own context as well: what that is to have by then is left to end.
        rig.copy.destroy();
        let again = rig.copy.wait_from_gpu(&[(&fence, 1)]);
        assert_eq!(again, Err(Status::INVALID_HANDLE));
        assert!(!submit.is_finished(), "they waited");
        other.open_gate();
        assert_eq!(submit.join().expect("a result"), Ok(()));
    });
    suite::becomes("it is done", || read(&out, 0) == 7);
    assert_eq!(rig.device.state(), DeviceState::Active);
}

fn the_end_of_a_device_waits_for_submissions() {
    let ([rig, other], [most, _]) = without_room();
    // What faults would take a fence of others along.
    let shared = rig.fence();
    let descriptor = shared.share().expect("a descriptor");
    let theirs = MonitoredFence::open(&other.device, descriptor.as_fd()).expect("a fence");
    let (va, bytes) = rig.write(&[write(most.gpu_va(), 7)]);
    thread::scope(|scope| {
        let submit = scope.spawn(|| rig.copy.submit(va, bytes));
        thread::sleep(Duration::from_millis(200));
        let destroy = scope.spawn(|| rig.device.destroy());
        suite::becomes("it is said", || {
            rig.device.state() == DeviceState::Destroyed
        });
        assert!(!submit.is_finished() && !destroy.is_finished());
        other.open_gate();
        // It came before the end, or is refused.
        let submitted = submit.join().expect("a result");
        assert!([Ok(()), Err(Status::INVALID_HANDLE)].contains(&submitted));
        destroy.join().expect("an end");
    });
    other.finish(&other.copy);
    assert_eq!(theirs.value(), 0);
}

/// What is sent when a device is to trim.
fn told(device: &Device) -> (TrimRegistration, mpsc::Receiver<TrimNotification>) {
    let (tell, told) = mpsc::channel();
    let registered = device.register_trim_notification(move |what| {
        let _ = tell.send(what);
    });
    (registered.expect("a registration"), told)
}

const TOO_MUCH: TrimNotification = TrimNotification {
    flags: TrimFlags::TRIM_TO_BUDGET,
    bytes_to_trim: 4 * MIB,
};

fn who_has_too_much_is_called_back() {
    quiet();
    let (first, queue, [small, large]) = more_than_half(Rig::new());
    // Of the same process, and it has too little to be told.
    let idle = Rig::on(first.device.adapter());
    let (_idle, idle_told) = told(&idle.device);
    let (registered, once) = told(&first.device);
    let (_registered, always) = told(&first.device);
    let both = [&small, &large];
    finish(
        &queue,
        queue.make_resident(&both, NONE).expect("MakeResident"),
    );
    let (second, others, [other_small, other_large]) = more_than_half(Rig::new());
    let (_second, second_told) = told(&second.device);
    let all = [&other_small, &other_large];
    let exceed = || {
        let paging = others.make_resident(&all, NOT_TRIM).expect("MakeResident");
        assert_eq!(paging.bytes_to_trim, 4 * MIB);
        finish(&others, paging);
    };
    exceed();
    assert_eq!(always.recv_timeout(patience()), Ok(TOO_MUCH));
    assert_eq!(once.recv_timeout(patience()), Ok(TOO_MUCH));
    // Each time, without a call in between.
    registered.unregister();
    for _ in 0..3 {
        assert_eq!(second.device.evict(&all, EvictFlags::empty()), Ok(0));
        exceed();
        assert_eq!(always.recv_timeout(patience()), Ok(TOO_MUCH));
    }
    assert_eq!(once.recv(), Err(mpsc::RecvError), "it is gone");
    // Who has trimmed is told no more.
    assert_eq!(first.device.evict(&[&small], EvictFlags::empty()), Ok(0));
    assert_eq!(second.device.evict(&all, EvictFlags::empty()), Ok(0));
    exceed();
    // Nor is who knows from the call, or has nothing.
    first.device.destroy();
    idle.device.destroy();
    second.device.destroy();
    for told in [always, idle_told, second_told] {
        assert_eq!(told.try_iter().collect::<Vec<_>>(), []);
    }
    let refused = first.device.register_trim_notification(|_| ()).map(drop);
    assert_eq!(refused.err(), Some(Status::INVALID_HANDLE));
}

fn a_trim_callback_may_end_its_device() {
    quiet();
    let p = Arc::new(Process::new());
    let luid = Process::enum_adapters().expect("adapters")[0];
    let adapter = p.open_adapter_from_luid(luid).expect("an adapter");
    let device = p.create_device(adapter).expect("a device");
    let paging = p.create_paging_queue(device).expect("a paging queue");
    let opened = p.adapter(adapter).expect("the adapter");
    let size = vram_size(&opened) / 2 + 4 * MIB;
    let desc = AllocationDesc::new(size, opened.vram()).hidden();
    let a = p.create_allocation2(device, &[desc], false);
    let a = a.expect("an allocation").allocations;
    let resident = p.make_resident(paging.queue, &a, 0).expect("MakeResident");
    let wait = [(paging.fence, resident.fence_value)];
    let waited = p.wait_for_synchronization_object_from_cpu(device, &wait, WaitFor::All, None);
    assert_eq!(waited, Ok(()));
    let (tell, told) = mpsc::channel();
    let of_callback = p.clone();
    let trim = p.register_trim_notification(device, move |what| {
        let destroyed = of_callback.destroy_device(device);
        let _ = tell.send((what, destroyed));
    });
    let trim = trim.expect("a registration");
    assert_eq!(p.evict(trim, &a, 0), Err(Status::OBJECT_TYPE_MISMATCH));
    let wrong = p.unregister_trim_notification(device);
    assert_eq!(wrong, Err(Status::OBJECT_TYPE_MISMATCH));
    let (_second, others, [small, large]) = more_than_half(Rig::new());
    let paging = others.make_resident(&[&small, &large], NOT_TRIM);
    finish(&others, paging.expect("MakeResident"));
    assert_eq!(told.recv_timeout(patience()), Ok((TOO_MUCH, Ok(()))));
    let stale = Err(Status::INVALID_HANDLE);
    assert_eq!(p.destroy_device(device), stale);
    assert_eq!(p.unregister_trim_notification(trim), stale);
    // Nothing of it is left, the callback neither.
    assert_eq!(told.recv(), Err(mpsc::RecvError));
    let device = p.create_device(adapter).expect("a device");
    let trim = p.register_trim_notification(device, |_| ());
    let trim = trim.expect("a registration");
    assert_eq!(p.unregister_trim_notification(trim), Ok(()));
    assert_eq!(p.unregister_trim_notification(trim), stale);
}

/// That waits for where the GPU sees a value, which somebody else writes.
fn a_trim_callback_may_wait_for_work() {
    quiet();
    let (rig, queue, [small, large]) = more_than_half(Rig::new());
    let paging = queue.make_resident(&[&small, &large], NONE);
    finish(&queue, paging.expect("MakeResident"));
    let (fence, done) = (rig.fence(), Arc::new(rig.fence()));
    let seen = fence.gpu_va().expect("an address");
    let (tell, told) = mpsc::channel();
    let awaited = done.clone();
    let registered = rig.device.register_trim_notification(move |what| {
        let _ = tell.send((what, Ok(())));
        let _ = tell.send((what, awaited.wait(1, patience())));
    });
    let (_second, others, [other_small, other_large]) = more_than_half(Rig::new());
    let paging = others.make_resident(&[&other_small, &other_large], NOT_TRIM);
    finish(&others, paging.expect("MakeResident"));
    assert_eq!(told.recv_timeout(patience()), Ok((TOO_MUCH, Ok(()))));
    let (va, bytes) = rig.write(&[wait_value(seen, 1)]);
    let work = rig.compute.submission().commands(va, bytes);
    assert_eq!(work.signal(&done, 1).submit(), Ok(()));
    assert_eq!(rig.copy.signal_from_gpu(&[(&fence, 1)]), Ok(()));
    assert_eq!(told.recv_timeout(patience() * 2), Ok((TOO_MUCH, Ok(()))));
    drop(registered);
}

fn a_paging_queue_that_ends_loses_nothing() {
    let rig = Rig::new();
    let many: Vec<_> = (0..2048).map(|_| rig.system(PAGE)).collect();
    let list: Vec<&Allocation> = many.iter().collect();
    let mut ends = [0; 2];
    for round in 0..u64::from(suite::rounds(40)) {
        let queue = queue(&rig);
        let made = thread::scope(|scope| {
            let made = scope.spawn(|| queue.make_resident(&list, NONE));
            thread::sleep(Duration::from_micros(50 * round));
            queue.destroy();
            made.join().expect("MakeResident")
        });
        let evicted = rig.device.evict(&list, EvictFlags::empty());
        match made {
            Ok(_) => assert_eq!(evicted, Ok(0), "round {round}"),
            Err(refused) => {
                assert_eq!(refused.status, Status::INVALID_HANDLE);
                assert_eq!(evicted, Err(Status::INVALID_PARAMETER));
            }
        }
        ends[usize::from(made.is_ok())] += 1;
        // None at all, one by one.
        for one in [&list[..1], &list[1023..1024], &list[2047..]] {
            let refused = rig.device.evict(one, EvictFlags::empty());
            assert_eq!(
                refused,
                Err(Status::INVALID_PARAMETER),
                "round {round}: {made:?}"
            );
        }
    }
    println!("# refused, made: {ends:?}");
}

fn an_address_is_every_devices_own_to_map() {
    let first = Rig::new();
    let second = Rig::on(first.device.adapter());
    let (a, b) = (first.system(UNIT), second.system(UNIT));
    let apart = a.gpu_va() + UNIT <= b.gpu_va() || b.gpu_va() + UNIT <= a.gpu_va();
    assert!(apart, "{:#x} {:#x}", a.gpu_va(), b.gpu_va());
    // One reservation, in which each maps its own.
    let va = reserve(&first, UNIT);
    map(&queue(&first), &at(va, &a));
    let queue = queue(&second);
    map(&queue, &at(va, &b));
    gpu_write(&first, va, 1);
    gpu_write(&second, va, 2);
    assert_eq!((read(&a, 0), read(&b, 0)), (1, 2));
    // What the other has mapped is not copied.
    let other = reserve(&first, UNIT);
    map(&queue, &at(other, &b));
    let fence = first.fence();
    let from_other = VaOperation::Copy {
        from: other,
        to: va,
        size: PAGE,
    };
    assert_eq!(
        update(&first.copy, &[from_other], Some((&fence, 0))),
        Ok(())
    );
    assert_eq!(fence.wait(1, patience()), Ok(()));
    // It is freed for both.
    let [a, b] = [&a, &b].map(|allocation| allocation.lock2(0).expect("Lock2"));
    gpu_write(&first, va + PAGE, 3);
    expect_fault(&first, va, 4);
    let adapter = first.device.adapter();
    assert_eq!(adapter.free_gpu_virtual_address(va, UNIT), Ok(()));
    gpu_write(&second, other, 5);
    expect_fault(&second, va, 6);
    assert_eq!((a.read(0), a.read(4096)), (Ok(1_u64), Ok(3_u64)));
    assert_eq!(b.read(0), Ok(5_u64));
}

fn paging_queues_end() {
    let rig = Rig::new();
    let a = rig.system(PAGE);
    // By itself: its waits end, and it takes nothing more.
    let destroyed = queue(&rig);
    let fence = destroyed.fence().clone();
    thread::scope(|scope| {
        let waits = scope.spawn(|| fence.wait(1, patience()));
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        destroyed.destroy();
        assert_eq!(waits.join().expect("a wait"), Err(Status::INVALID_HANDLE));
    });
    let refused = destroyed.make_resident(&[&a], NONE);
    assert_eq!(refused, Err(Status::INVALID_HANDLE.into()));
    let refused = destroyed.map_gpu_virtual_address(&MapDesc::all_of(&a));
    assert_eq!(refused.err(), Some(Status::INVALID_HANDLE));
    destroyed.destroy();
    // With a device in error.
    let lost = queue(&rig);
    let fence = lost.fence().clone();
    expect_fault(&rig, reserve(&rig, UNIT), 1);
    let removed = Err(Status::DEVICE_REMOVED);
    assert_eq!(fence.wait(1, patience()), removed);
    expect_lost(&fence);
    let refused = lost.make_resident(&[&a], NONE);
    assert_eq!(refused, Err(Status::DEVICE_REMOVED.into()));
    let refused = rig.device.evict(&[&a], EvictFlags::empty());
    assert_eq!(refused, Err(Status::DEVICE_REMOVED));
    assert!(PagingQueue::create(&rig.device).is_err());
    // With a device that is destroyed.
    let rig = Rig::new();
    let a = rig.system(PAGE);
    let last = queue(&rig);
    rig.device.destroy();
    let handle = Status::INVALID_HANDLE;
    assert_eq!(last.make_resident(&[&a], NONE), Err(handle.into()));
    assert_eq!(update(&rig.copy, &[], None), Err(handle));
}

fn addresses_are_where_they_are_wanted() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let adapter = rig.device.adapter();
    let a = rig.system(4 * PAGE);
    let (low, high) = (1 << 40, (1 << 40) + 8 * UNIT);
    let desc = ReserveDesc {
        minimum: low,
        maximum: high,
        size: 4 * UNIT,
        ..ReserveDesc::default()
    };
    let first = adapter.reserve_gpu_virtual_address(&desc).expect("a range");
    let second = adapter.reserve_gpu_virtual_address(&desc).expect("a range");
    assert_eq!((first, second), (low, low + 4 * UNIT));
    let full = adapter.reserve_gpu_virtual_address(&desc);
    assert_eq!(full, Err(Status::NO_MEMORY));
    let desc = MapDesc {
        minimum: low,
        maximum: high + 4 * PAGE,
        ..MapDesc::all_of(&a)
    };
    assert_eq!(map(&queue, &desc), high);
    let full = queue.map_gpu_virtual_address(&desc);
    assert_eq!(full.err(), Some(Status::NO_MEMORY));
    // One that is freed can be had again at once, also by what it is.
    assert_eq!(adapter.free_gpu_virtual_address(high, 4 * PAGE), Ok(()));
    assert_eq!(map(&queue, &at(high, &a)), high);
    assert_eq!(adapter.free_gpu_virtual_address(first, 4 * UNIT), Ok(()));
    let desc = ReserveDesc {
        base: low + UNIT,
        size: 2 * UNIT,
        ..ReserveDesc::default()
    };
    assert_eq!(adapter.reserve_gpu_virtual_address(&desc), Ok(low + UNIT));
    gpu_write(&rig, high, 5);
    assert_eq!(read(&a, 0), 5);
}

fn read_only_addresses_fault_on_writes() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let a = rig.system(PAGE);
    gpu_write(&rig, a.gpu_va(), 3);
    let desc = MapDesc {
        protection: Protection::EXECUTE,
        ..MapDesc::all_of(&a)
    };
    let va = map(&queue, &desc);
    assert_eq!(gpu_read(&rig, va), 3);
    let cpu = a.lock2(0).expect("Lock2");
    expect_fault(&rig, va, 4);
    assert_eq!(cpu.read::<u64>(0), Ok(3));
}

fn freed_addresses_fault() {
    for reserved in [false, true] {
        let rig = Rig::new();
        let queue = queue(&rig);
        let a = rig.vram(UNIT);
        let va = if reserved {
            map(&queue, &at(reserve(&rig, UNIT), &a))
        } else {
            map(&queue, &MapDesc::all_of(&a))
        };
        gpu_write(&rig, va, 1);
        let free = |va, size| rig.device.adapter().free_gpu_virtual_address(va, size);
        assert_eq!(free(va, PAGE), Err(Status::INVALID_PARAMETER));
        assert_eq!(free(va + PAGE, UNIT - PAGE), Err(Status::INVALID_PARAMETER));
        assert_eq!(free(a.gpu_va(), UNIT), Err(Status::INVALID_PARAMETER));
        assert_eq!(free(va, UNIT), Ok(()));
        assert_eq!(free(va, UNIT), Err(Status::INVALID_PARAMETER));
        let cpu = a.lock2(0).expect("Lock2");
        expect_fault(&rig, va, 2);
        assert_eq!(cpu.read::<u64>(0), Ok(1));
    }
    // Or with the mapping alone.
    let rig = Rig::new();
    let queue = queue(&rig);
    let a = rig.system(UNIT);
    let va = map(&queue, &at(reserve(&rig, UNIT), &a));
    let nothing = MapDesc {
        allocation: None,
        base: va + PAGE,
        size_pages: 1,
        protection: Protection::NO_ACCESS,
        ..at(va, &a)
    };
    assert_eq!(map(&queue, &nothing), va + PAGE);
    gpu_write(&rig, va, 1);
    gpu_write(&rig, va + 2 * PAGE, 1);
    expect_fault(&rig, va + PAGE, 1);
}

fn a_mapped_range_goes_with_its_allocation() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let flags = DestroyFlags::SYNCHRONOUS;
    let (a, b) = (rig.system(UNIT), rig.system(UNIT));
    let mapped = map(&queue, &MapDesc::all_of(&a));
    let reserved = map(&queue, &at(reserve(&rig, 2 * UNIT), &a));
    assert_eq!(a.destroy(flags), Ok(()));
    let desc = |base, size| ReserveDesc {
        base,
        size,
        ..ReserveDesc::default()
    };
    let adapter = rig.device.adapter();
    // The reservation stays, and can be mapped in.
    let taken = adapter.reserve_gpu_virtual_address(&desc(reserved, UNIT));
    assert_eq!(taken, Err(Status::INVALID_PARAMETER));
    let base = mapped.next_multiple_of(UNIT);
    assert_eq!(
        adapter.reserve_gpu_virtual_address(&desc(base, UNIT)),
        Ok(base)
    );
    assert_eq!(map(&queue, &at(reserved + PAGE, &b)), reserved + PAGE);
    gpu_write(&rig, reserved + PAGE, 1);
    assert_eq!(read(&b, 0), 1);
    expect_fault(&rig, reserved, 1);
}

fn a_mapped_range_is_free_when_work_is_done() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let (a, b) = (rig.system(UNIT), rig.system(UNIT));
    let mapped = map(&queue, &MapDesc::all_of(&a));
    rig.start(&rig.copy, &[rig.wait_for_gate(), write(mapped, 1)]);
    assert_eq!(a.destroy(DestroyFlags::empty()), Ok(()));
    rig.open_gate();
    rig.finish(&rig.copy);
    assert_eq!(map(&queue, &at(mapped, &b)), mapped);
    // It stays, whoever asks for addresses.
    let others = [(); 4].map(|()| rig.system(UNIT));
    assert!(others.iter().all(|other| other.gpu_va() != mapped));
    drop(others);
    gpu_write(&rig, mapped, 2);
    assert_eq!(read(&b, 0), 2);
}

fn an_update_is_between_work() {
    let rig = Rig::new();
    let fence = rig.fence();
    let (a, b) = (rig.system(PAGE), rig.vram(PAGE));
    let va = reserve(&rig, UNIT);
    assert_eq!(
        update(&rig.copy, &[update_map(va, &a, 0)], Some((&fence, 0))),
        Ok(())
    );
    let job = |value, signal| {
        let (va, bytes) = rig.write(&[rig.wait_for_gate(), write(va, value)]);
        let job = rig.copy.submission().commands(va, bytes);
        assert_eq!(job.signal(&fence, signal).submit(), Ok(()));
    };
    // Many times over: work, update, work, without anybody waiting on the CPU.
    for round in 0..50 {
        let signalled = 4 * round;
        assert_eq!(rig.copy.wait_from_gpu(&[(&fence, signalled + 1)]), Ok(()));
        job(round + 1, signalled + 2);
        let other = [update_map(va, &b, 0)];
        assert_eq!(
            update(&rig.copy, &other, Some((&fence, signalled + 2))),
            Ok(())
        );
        assert_eq!(rig.copy.wait_from_gpu(&[(&fence, signalled + 3)]), Ok(()));
        job(round + 1001, signalled + 4);
        let back = [update_map(va, &a, 0)];
        assert_eq!(
            update(&rig.copy, &back, Some((&fence, signalled + 4))),
            Ok(())
        );
    }
    assert_eq!(fence.wait(1, patience()), Ok(()));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(
        (fence.value(), rig.device.state()),
        (1, DeviceState::Active)
    );
    rig.open_gate();
    assert_eq!(fence.wait(201, patience()), Ok(()));
    assert_eq!((read(&a, 0), read(&b, 0)), (50, 1050));
}

fn an_update_waits_for_what_nobody_has_submitted() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let fence = rig.fence();
    let (a, b) = (rig.system(PAGE), rig.system(PAGE));
    let va = reserve(&rig, UNIT);
    map(&queue, &at(va, &a));
    assert_eq!(
        update(&rig.copy, &[update_map(va, &b, 0)], Some((&fence, 1))),
        Ok(())
    );
    // The context itself goes on.
    gpu_write(&rig, va, 1);
    assert_eq!((read(&a, 0), read(&b, 0), fence.value()), (1, 0, 0));
    assert_eq!(fence.signal(1), Ok(()));
    assert_eq!(fence.wait(2, patience()), Ok(()));
    gpu_write(&rig, va, 2);
    assert_eq!((read(&a, 0), read(&b, 0), fence.value()), (1, 2, 2));
    // A context that is destroyed drops what waits.
    let other = rig.fresh(EngineKind::Copy);
    assert_eq!(
        update(&other, &[update_map(va, &a, 0)], Some((&fence, 3))),
        Ok(())
    );
    other.destroy();
    assert_eq!(
        update(&other, &[update_map(va, &a, 0)], None),
        Err(Status::INVALID_HANDLE)
    );
    assert_eq!(fence.signal(3), Ok(()));
    assert_eq!(
        fence.wait(4, Duration::from_millis(50)),
        Err(Status::TIMEOUT)
    );
    gpu_write(&rig, va, 3);
    assert_eq!((read(&a, 0), read(&b, 0), fence.value()), (1, 3, 3));
}

fn an_update_need_not_wait() {
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.system(PAGE);
    let va = reserve(&rig, UNIT);
    let operations = [update_map(va, &a, 0)];
    let flags = UpdateFlags::DO_NOT_WAIT;
    let done = rig
        .copy
        .update_gpu_virtual_address(&operations, Some((&fence, 7)), flags);
    assert_eq!(done, Ok(()));
    assert_eq!(fence.wait(8, patience()), Ok(()));
    gpu_write(&rig, va, 1);
    assert_eq!(read(&a, 0), 1);
    // Without a fence there is nothing to wait for; and nothing tells, but another update.
    let unmap = VaOperation::Unmap { va, size: PAGE };
    assert_eq!(update(&rig.copy, &[unmap], None), Ok(()));
    assert_eq!(update(&rig.copy, &operations, Some((&fence, 8))), Ok(()));
    assert_eq!(fence.wait(9, patience()), Ok(()));
    gpu_write(&rig, va, 2);
    assert_eq!(read(&a, 0), 2);
}

fn updates_copy_what_is_mapped() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let fence = rig.fence();
    let a = rig.system(8 * PAGE);
    for page in 0..8 {
        gpu_write(&rig, a.gpu_va() + page * PAGE, 100 + page);
    }
    let (from, to) = (reserve(&rig, UNIT), reserve(&rig, UNIT));
    let middle = MapDesc {
        offset_pages: 2,
        size_pages: 4,
        ..at(from + PAGE, &a)
    };
    map(&queue, &middle);
    let copy = |from, to, pages| VaOperation::Copy {
        from,
        to,
        size: pages * PAGE,
    };
    let hole = VaOperation::Unmap {
        va: from + 2 * PAGE,
        size: PAGE,
    };
    assert_eq!(update(&rig.copy, &[hole], None), Ok(()));
    let operations = [
        update_map(to + 4 * PAGE, &a, 7 * PAGE),
        copy(from + PAGE, to, 4),
    ];
    assert_eq!(update(&rig.copy, &operations, Some((&fence, 0))), Ok(()));
    assert_eq!(fence.wait(1, patience()), Ok(()));
    for (page, value) in [(0, 102), (2, 104), (3, 105), (4, 107)] {
        assert_eq!(gpu_read(&rig, to + page * PAGE), value, "page {page}");
    }
    // In order: what the first has done the second copies, and the third that. Ranges that
    // intersect, up and down.
    let operations = [
        update_map(from + 2 * PAGE, &a, 0),
        copy(from + PAGE, from + 2 * PAGE, 4),
        copy(from + 3 * PAGE, from + PAGE, 3),
    ];
    assert_eq!(update(&rig.copy, &operations, Some((&fence, 1))), Ok(()));
    assert_eq!(fence.wait(2, patience()), Ok(()));
    for (page, value) in [(1, 100), (2, 104), (3, 105), (4, 104), (5, 105)] {
        assert_eq!(gpu_read(&rig, from + page * PAGE), value, "page {page}");
    }
    // What is not mapped is not mapped there either.
    expect_fault(&rig, to + PAGE, 1);
}

fn a_freed_reservation_is_free_behind_its_updates() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let adapter = rig.device.adapter();
    let fence = rig.fence();
    let (a, b) = (rig.system(PAGE), rig.system(PAGE));
    let va = reserve(&rig, UNIT);
    assert_eq!(
        update(&rig.copy, &[update_map(va, &a, 0)], Some((&fence, 1))),
        Ok(())
    );
    assert_eq!(adapter.free_gpu_virtual_address(va, UNIT), Ok(()));
    // They are nobody's until then, also for who does not wait for the update.
    let again = ReserveDesc {
        base: va,
        size: UNIT,
        ..ReserveDesc::default()
    };
    let reserve_again = || adapter.reserve_gpu_virtual_address(&again);
    assert_eq!(reserve_again(), Err(Status::INVALID_PARAMETER));
    let freed = adapter.free_gpu_virtual_address(va, UNIT);
    assert_eq!(freed, Err(Status::INVALID_PARAMETER));
    assert_eq!(fence.signal(1), Ok(()));
    assert_eq!(fence.wait(2, patience()), Ok(()));
    suite::becomes("free", || reserve_again().is_ok());
    map(&queue, &at(va, &b));
    gpu_write(&rig, va, 1);
    assert_eq!((read(&a, 0), read(&b, 0)), (0, 1));
    // So they are when the updates are dropped with their contexts; what another context has done
    // since says nothing.
    let held = [EngineKind::Copy, EngineKind::Compute].map(|kind| rig.fresh(kind));
    for context in &held {
        let queued = update(context, &[update_map(va, &a, 0)], Some((&fence, 3)));
        assert_eq!(queued, Ok(()));
    }
    let other = rig.fresh(EngineKind::Copy);
    let done = rig.fence();
    let unmap = VaOperation::Unmap { va, size: PAGE };
    assert_eq!(update(&other, &[unmap], Some((&done, 0))), Ok(()));
    assert_eq!(done.wait(1, patience()), Ok(()));
    // A range that they do not change is free at once.
    let range = reserve(&rig, UNIT);
    assert_eq!(adapter.free_gpu_virtual_address(range, UNIT), Ok(()));
    let desc = ReserveDesc {
        base: range,
        ..again
    };
    assert_eq!(adapter.reserve_gpu_virtual_address(&desc), Ok(range));
    assert_eq!(adapter.free_gpu_virtual_address(va, UNIT), Ok(()));
    other.destroy();
    for context in held {
        suite::a_moment();
        assert_eq!(reserve_again(), Err(Status::INVALID_PARAMETER));
        context.destroy();
    }
    suite::becomes("free", || reserve_again().is_ok());
    expect_fault(&rig, va, 1);
}

fn an_update_that_is_held_has_its_place() {
    // To fill the kernel's queue of binds takes longer than a packet may make no progress.
    const GATES: u64 = 100;
    if suite::patience() > 1 {
        skip("to fill the kernel's queue of binds takes minutes");
    }
    let rig = Rig::new();
    let queue = queue(&rig);
    let (a, b) = (rig.system(PAGE), rig.system(PAGE));
    let moves_late = movable(&rig, PAGE);
    let held = reserve(&rig, UNIT);
    let gate = rig.gate.lock2(0).expect("Lock2");
    let fence = rig.fence();
    let (va, from) = (reserve(&rig, UNIT), reserve(&rig, UNIT));
    map(&queue, &at(from, &b));
    let (late, later) = (rig.fresh(EngineKind::Copy), rig.fresh(EngineKind::Copy));
    let moved = rig.fence();
    let map_late = [update_map(va, &a, 0)];
    // Not the same when it is done twice.
    let to = from + PAGE;
    let move_late = [
        VaOperation::Copy {
            from,
            to,
            size: PAGE,
        },
        VaOperation::Unmap {
            va: from,
            size: PAGE,
        },
    ];
    assert_eq!(update(&late, &map_late, Some((&fence, 1))), Ok(()));
    assert_eq!(update(&later, &move_late, Some((&moved, 1))), Ok(()));
    skua_selftests::moving::evict_all();
    gate.write(0, 0_u64).expect("a value");
    // A bind that waits for a move, which waits for work; behind it as many as the kernel takes.
    for value in 1..=GATES {
        rig.start(&rig.copy, &[wait_value(rig.gate.gpu_va(), value)]);
    }
    let resident = queue.make_resident(&[&moves_late], NONE);
    assert_eq!(resident.map(|paging| paging.status), Ok(Status::PENDING));
    let first = queue.map_gpu_virtual_address(&at(held, &moves_late));
    assert!(first.is_ok());
    let mut taken = 0_u64;
    let refused = loop {
        if let Err(refused) = queue.map_gpu_virtual_address(&at(held + PAGE, &a)) {
            break refused;
        }
        taken += 1;
        gate.write(0, (taken / 64).min(GATES - 1)).expect("a value");
    };
    println!("# {taken} binds");
    assert_eq!(refused, Status::INSUFFICIENT_RESOURCES);
    // What would be done now is refused, and what was queued before has its place.
    let refused = update(&rig.copy, &map_late, None);
    assert_eq!(refused, Err(Status::INSUFFICIENT_RESOURCES));
    assert_eq!((fence.signal(1), moved.signal(1)), (Ok(()), Ok(())));
    let held = || {
        let contexts = Function::first().debugfs("contexts").expect("contexts");
        let mut lines = contexts.lines().filter(|line| line.contains(" updates "));
        lines.any(|line| !line.contains(" updates 0 "))
    };
    suite::becomes("they are let go", || !held());
    assert_eq!((fence.value(), moved.value()), (1, 1));
    gate.write(0, GATES).expect("a value");
    assert_eq!(fence.wait(2, patience()), Ok(()));
    assert_eq!(moved.wait(2, patience()), Ok(()));
    gpu_write(&rig, va, 1);
    gpu_write(&rig, to, 2);
    assert_eq!((read(&a, 0), read(&b, 0)), (1, 2));
    expect_fault(&rig, from, 1);
}

/// Asserts that a fence of a device in error is lost: waits for it may end before.
#[track_caller]
fn expect_lost(fence: &MonitoredFence) {
    let is_lost = || (fence.value() == MonitoredFence::LOST).then_some(());
    assert!(suite::eventually(is_lost).is_some(), "{}", fence.value());
}

/// What was offered meanwhile is not mapped until it is reclaimed; nor can it be asked for.
fn an_update_waits_for_what_is_offered() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let (fence, a) = (rig.fence(), rig.system(PAGE));
    let va = reserve(&rig, UNIT);
    let operations = [update_map(va, &a, 0)];
    assert_eq!(update(&rig.copy, &operations, Some((&fence, 1))), Ok(()));
    let flags = OfferFlags::empty();
    assert_eq!(rig.device.offer(&[&a], OfferPriority::Low, flags), Ok(()));
    let refused = update(&rig.copy, &operations, Some((&fence, 2)));
    assert_eq!(refused, Err(Status::GRAPHICS_ALLOCATION_BUSY));
    assert_eq!(fence.signal(1), Ok(()));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(fence.value(), 1);
    let (_, paging) = queue.reclaim(&[&a]).expect("ReclaimAllocations2");
    finish(&queue, paging);
    assert_eq!(fence.wait(2, patience()), Ok(()));
    gpu_write(&rig, va, 1);
    assert_eq!(read(&a, 0), 1);
}

/// Each page is a mapping of its own; ranges that overlap, up and down.
fn an_update_copies_more_than_a_bind() {
    const MANY: u64 = 5 * 1024;
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.system(2 * PAGE);
    for page in 0..2 {
        gpu_write(&rig, a.gpu_va() + page * PAGE, 100 + page);
    }
    let b = rig.system(PAGE);
    gpu_write(&rig, b.gpu_va(), 102);
    let from = reserve(&rig, 2 * MANY * PAGE);
    // Of each page its own, but at the ends.
    let maps: Vec<_> = (0..MANY)
        .map(|n| match n == 0 || n == MANY - 1 {
            true => update_map(from + n * PAGE, &b, 0),
            false => update_map(from + n * PAGE, &a, n % 2 * PAGE),
        })
        .collect();
    let copy = |from, to| VaOperation::Copy {
        from,
        to,
        size: MANY * PAGE,
    };
    assert_eq!(update(&rig.copy, &maps, Some((&fence, 1))), Ok(()));
    // Held behind that, and so done when it is.
    let up = [copy(from, from + PAGE)];
    assert_eq!(update(&rig.copy, &up, Some((&fence, 2))), Ok(()));
    assert_eq!(fence.signal(1), Ok(()));
    assert_eq!(fence.wait(3, patience()), Ok(()));
    let seen = |pages: [u64; 5]| pages.map(|page| gpu_read(&rig, from + page * PAGE));
    let ends = [1, 2, 3, MANY - 1, MANY];
    assert_eq!(seen(ends), [102, 101, 100, 100, 102]);
    let down = [copy(from + PAGE, from)];
    assert_eq!(update(&rig.copy, &down, Some((&fence, 3))), Ok(()));
    assert_eq!(fence.wait(4, patience()), Ok(()));
    let ends = [0, 1, 2, MANY - 2, MANY - 1];
    assert_eq!(seen(ends), [102, 101, 100, 100, 102]);
}

fn a_queued_update_keeps_its_allocation() {
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.vram(1 << 20);
    gpu_write(&rig, a.gpu_va(), 77);
    let va = reserve(&rig, UNIT);
    let used = rig.vram_used();
    assert_eq!(
        update(&rig.copy, &[update_map(va, &a, 0)], Some((&fence, 1))),
        Ok(())
    );
    // Work that uses it is queued behind.
    let out = rig.system(PAGE);
    assert_eq!(rig.copy.wait_from_gpu(&[(&fence, 2)]), Ok(()));
    rig.start(&rig.copy, &[copy(va, out.gpu_va(), PAGE)]);
    drop(a);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.vram_used(), used, "it is gone");
    assert_eq!(fence.signal(1), Ok(()));
    rig.finish(&rig.copy);
    assert_eq!(read(&out, 0), 77);
    suite::becomes("it is gone", || rig.vram_used() < used);
}

/// What is destroyed is not mapped any more; whatever the client says of work.
fn row_0_05_synchronous_destruction_does_not_wait_for_updates() {
    quiet();
    let both = DestroyFlags::SYNCHRONOUS | DestroyFlags::ASSUME_NOT_IN_USE;
    for flags in [DestroyFlags::SYNCHRONOUS, both] {
        let rig = Rig::new();
        let fence = rig.fence();
        let va = reserve(&rig, UNIT);
        let used = rig.vram_used();
        let a = rig.vram(MIB);
        let updated = update(&rig.copy, &[update_map(va, &a, 0)], Some((&fence, 1)));
        assert_eq!(updated, Ok(()));
        assert_eq!(
            (a.destroy(flags), rig.vram_used()),
            (Ok(()), used),
            "{flags:?}"
        );
        assert_eq!(fence.signal(1), Ok(()));
        assert_eq!(fence.wait(2, patience()), Ok(()));
        expect_fault(&rig, va, 1);
    }
}

fn updates_of_a_context_are_limited() {
    let rig = Rig::new();
    let fence = rig.fence();
    let a = rig.system(PAGE);
    let va = reserve(&rig, UNIT);
    let queue = |value| update(&rig.copy, &[update_map(va, &a, 0)], Some((&fence, value)));
    for n in 0..4096 {
        assert_eq!(queue(1), Ok(()), "{n}");
    }
    assert_eq!(queue(1), Err(Status::INSUFFICIENT_RESOURCES));
    assert_eq!(fence.signal(1), Ok(()));
    // By the first of them; the others are on their way.
    assert_eq!(fence.wait(2, patience()), Ok(()));
    suite::becomes("room for one more", || queue(2).is_ok());
    assert_eq!(fence.wait(3, patience()), Ok(()));
    gpu_write(&rig, va, 1);
    assert_eq!(read(&a, 0), 1);
}

fn bad_reservations_are_refused() {
    let rig = Rig::new();
    let adapter = rig.device.adapter();
    let taken = reserve(&rig, 2 * UNIT);
    let end = adapter.libskua().info().va.end;
    let own = rig.system(UNIT);
    let good = ReserveDesc {
        size: UNIT,
        ..ReserveDesc::default()
    };
    let parameter = Status::INVALID_PARAMETER;
    let mut cases = Cases::new();
    for (what, desc, status) in [
        ("no bytes", ReserveDesc { size: 0, ..good }, parameter),
        ("a page", ReserveDesc { size: PAGE, ..good }, parameter),
        ("all and more", ReserveDesc { size: end, ..good }, parameter),
        ("an odd base", ReserveDesc { base: PAGE, ..good }, parameter),
        ("the end", ReserveDesc { base: end, ..good }, parameter),
        (
            "taken",
            ReserveDesc {
                base: taken + UNIT,
                ..good
            },
            parameter,
        ),
        (
            "an allocation's",
            ReserveDesc {
                base: own.gpu_va(),
                ..good
            },
            parameter,
        ),
        (
            "an odd minimum",
            ReserveDesc {
                minimum: PAGE,
                ..good
            },
            parameter,
        ),
        (
            "an odd maximum",
            ReserveDesc {
                maximum: taken + PAGE,
                ..good
            },
            parameter,
        ),
        (
            "no room",
            ReserveDesc {
                minimum: taken,
                maximum: taken + UNIT,
                ..good
            },
            Status::NO_MEMORY,
        ),
        (
            "reversed",
            ReserveDesc {
                minimum: 2 * UNIT,
                maximum: UNIT,
                ..good
            },
            parameter,
        ),
        (
            "zeroes",
            ReserveDesc {
                reservation: ReservationType::Zero,
                ..good
            },
            Status::NOT_SUPPORTED,
        ),
        (
            "a driver's",
            ReserveDesc {
                driver_protection: 1,
                ..good
            },
            parameter,
        ),
    ] {
        cases.expect(
            what,
            adapter.reserve_gpu_virtual_address(&desc),
            Err(status),
        );
    }
    cases.finish();
    let desc = ReserveDesc {
        reservation: ReservationType::NoCommit,
        ..good
    };
    assert!(adapter.reserve_gpu_virtual_address(&desc).is_ok());
}

fn bad_maps_are_refused() {
    let rig = Rig::new();
    let queue = queue(&rig);
    let a = rig.system(2 * PAGE);
    let foreign = Rig::on(rig.device.adapter());
    let dead = rig.system(2 * PAGE);
    assert_eq!(dead.destroy(DestroyFlags::empty()), Ok(()));
    let va = reserve(&rig, UNIT);
    let good = at(va, &a);
    let none = MapDesc {
        allocation: None,
        protection: Protection::NO_ACCESS,
        ..good
    };
    let protected = |bits| MapDesc {
        protection: Protection::from_bits_retain(bits),
        ..good
    };
    let parameter = Status::INVALID_PARAMETER;
    let mut cases = Cases::new();
    for (what, desc, status) in [
        (
            "no pages",
            MapDesc {
                size_pages: 0,
                ..good
            },
            parameter,
        ),
        (
            "too many pages",
            MapDesc {
                size_pages: 3,
                ..good
            },
            parameter,
        ),
        (
            "beyond",
            MapDesc {
                offset_pages: 1,
                ..good
            },
            parameter,
        ),
        (
            "far beyond",
            MapDesc {
                offset_pages: u64::MAX,
                ..good
            },
            parameter,
        ),
        (
            "all pages",
            MapDesc {
                size_pages: u64::MAX / PAGE,
                ..good
            },
            parameter,
        ),
        (
            "an odd base",
            MapDesc {
                base: va + 8,
                ..good
            },
            parameter,
        ),
        (
            "half in it",
            MapDesc {
                base: va + UNIT - PAGE,
                ..good
            },
            parameter,
        ),
        (
            "an allocation's",
            MapDesc {
                base: rig.gate.gpu_va(),
                ..good
            },
            parameter,
        ),
        (
            "an odd minimum",
            MapDesc {
                base: 0,
                minimum: 8,
                ..good
            },
            parameter,
        ),
        ("another device's", at(va, &foreign.gate), parameter),
        ("a dead one", at(va, &dead), Status::INVALID_HANDLE),
        (
            "nothing",
            MapDesc {
                protection: Protection::WRITE,
                ..none
            },
            parameter,
        ),
        ("no access", protected(8), parameter),
        ("zeroes", protected(4), Status::NOT_SUPPORTED),
        ("the system's", protected(17), parameter),
        ("bit 5", protected(32), parameter),
        (
            "a driver's",
            MapDesc {
                driver_protection: 1,
                ..good
            },
            parameter,
        ),
        ("nothing somewhere", MapDesc { base: 0, ..none }, parameter),
        (
            "nothing behind it",
            MapDesc {
                base: va + UNIT,
                ..none
            },
            parameter,
        ),
    ] {
        let refused = queue.map_gpu_virtual_address(&desc).err();
        cases.expect(what, refused, Some(status));
    }
    cases.finish();
    // None was an operation, and no address was lost.
    let (mapped, paging) = queue.map_gpu_virtual_address(&good).expect("a mapping");
    assert_eq!((mapped, paging.fence_value), (va, 1));
    let free = |va, size| rig.device.adapter().free_gpu_virtual_address(va, size);
    assert_eq!(free(va, UNIT), Ok(()));
    assert_eq!(map(&queue, &at(va, &a)), va);
}

fn bad_updates_are_refused() {
    let rig = Rig::new();
    let fence = rig.fence();
    let foreign = Rig::on(rig.device.adapter());
    let foreign_fence = foreign.fence();
    let a = rig.system(2 * PAGE);
    let dead = rig.system(PAGE);
    assert_eq!(dead.destroy(DestroyFlags::empty()), Ok(()));
    let (first, second, third) = (
        reserve(&rig, UNIT),
        reserve(&rig, UNIT),
        reserve(&rig, UNIT),
    );
    let unmap = |va, size| VaOperation::Unmap { va, size };
    let copy = |from, to, size| VaOperation::Copy { from, to, size };
    let of = |allocation, offset, size, bits| VaOperation::Map {
        va: first,
        size,
        allocation,
        offset,
        protection: Protection::from_bits_retain(bits),
    };
    let parameter = Status::INVALID_PARAMETER;
    let mut cases = Cases::new();
    for (what, list, status) in [
        ("none", vec![], parameter),
        ("no bytes", vec![unmap(first, 0)], parameter),
        ("odd bytes", vec![unmap(first, 8)], parameter),
        ("an odd address", vec![unmap(first + 8, PAGE)], parameter),
        ("beyond", vec![unmap(first, UNIT + PAGE)], parameter),
        (
            "far beyond",
            vec![unmap(first, u64::MAX - PAGE + 1)],
            parameter,
        ),
        (
            "an allocation's",
            vec![unmap(rig.gate.gpu_va(), PAGE)],
            parameter,
        ),
        (
            "two targets",
            vec![unmap(first, PAGE), unmap(second, PAGE)],
            parameter,
        ),
        (
            "a target and back",
            vec![unmap(first, PAGE), unmap(second, PAGE), unmap(first, PAGE)],
            parameter,
        ),
        (
            "two sources",
            vec![copy(second, first, PAGE), copy(third, first, PAGE)],
            parameter,
        ),
        ("no source", vec![copy(a.gpu_va(), first, PAGE)], parameter),
        (
            "half a source",
            vec![copy(second + PAGE, first, UNIT)],
            parameter,
        ),
        ("beyond it", vec![of(&a, PAGE, 2 * PAGE, 1)], parameter),
        ("an odd offset", vec![of(&a, 8, PAGE, 1)], parameter),
        ("no access", vec![of(&a, 0, PAGE, 8)], parameter),
        ("zeroes", vec![of(&a, 0, PAGE, 4)], Status::NOT_SUPPORTED),
        (
            "a dead one",
            vec![unmap(first, PAGE), of(&dead, 0, PAGE, 1)],
            Status::INVALID_HANDLE,
        ),
        (
            "another device's",
            vec![of(&foreign.gate, 0, PAGE, 1)],
            parameter,
        ),
    ] {
        let refused = update(&rig.copy, &list, Some((&fence, 0)));
        cases.expect(what, refused, Err(status));
    }
    let good = [of(&a, 0, PAGE, 1)];
    for (what, fence) in [
        ("another device's fence", (&foreign_fence, 0)),
        ("the last value", (&fence, u64::MAX)),
        ("a lost value", (&fence, u64::MAX - 1)),
    ] {
        cases.expect(what, update(&rig.copy, &good, Some(fence)), Err(parameter));
    }
    cases.finish();
    assert_eq!(fence.value(), 0);
    assert_eq!(update(&rig.copy, &good, Some((&fence, 0))), Ok(()));
    assert_eq!(fence.wait(1, patience()), Ok(()));
    gpu_write(&rig, first, 1);
    assert_eq!(read(&a, 0), 1);
    // That is signalled already.
    assert_eq!(update(&rig.copy, &good, Some((&fence, 0))), Err(parameter));
}

fn handles_reach_all_of_it() {
    let p = Process::new();
    let luid = Process::enum_adapters().expect("adapters")[0];
    let adapter = p.open_adapter_from_luid(luid).expect("an adapter");
    let device = p.create_device(adapter).expect("a device");
    let other = p.create_device(adapter).expect("a device");
    let context = p.create_context_virtual(device, 0).expect("a context");
    let system = p.adapter(adapter).expect("the adapter").system();
    let desc = AllocationDesc::new(2 * PAGE, system);
    let a = p
        .create_allocation2(device, &[desc], false)
        .expect("an allocation");
    let a = a.allocations[0];
    let paging = p.create_paging_queue(device).expect("a paging queue");
    let fence = p
        .create_synchronization_object2(device, 0)
        .expect("a fence");
    let wait = |fence, value| {
        let waits = [(fence, value)];
        p.wait_for_synchronization_object_from_cpu(device, &waits, WaitFor::All, None)
    };
    let resident = p
        .make_resident(paging.queue, &[a], 0)
        .expect("MakeResident");
    assert_eq!(wait(paging.fence, resident.fence_value), Ok(()));
    assert_eq!(p.evict(device, &[a], 0), Ok(0));
    assert_eq!(p.evict(device, &[a], 0), Err(Status::INVALID_PARAMETER));
    let range = ReserveDesc {
        size: UNIT,
        ..ReserveDesc::default()
    };
    let va = p
        .reserve_gpu_virtual_address(adapter, &range)
        .expect("a range");
    let second = p
        .reserve_gpu_virtual_address(paging.queue, &range)
        .expect("a range");
    let map = MapDesc {
        base: va,
        minimum: 0,
        maximum: 0,
        allocation: Some(a),
        offset_pages: 1,
        size_pages: 1,
        protection: Protection::WRITE,
        driver_protection: 0,
    };
    let (mapped, done) = p
        .map_gpu_virtual_address(paging.queue, &map)
        .expect("a mapping");
    assert_eq!((mapped, wait(paging.fence, done.fence_value)), (va, Ok(())));
    let operations = [
        VaOperation::Copy {
            from: va,
            to: second,
            size: PAGE,
        },
        VaOperation::Map {
            va: second + PAGE,
            size: PAGE,
            allocation: a,
            offset: 0,
            protection: Protection::WRITE,
        },
    ];
    let updated = p.update_gpu_virtual_address(device, context, &operations, Some((fence, 0)), 0);
    assert_eq!((updated, wait(fence, 1)), (Ok(()), Ok(())));
    let commands = p.gpu_va(device, a).expect("an address");
    let words = write(second, 5).encode().words().to_vec();
    let lock = p.lock2(device, a, 0).expect("Lock2");
    lock.copy_from_slice(0, &words).expect("commands");
    let bytes = u32::try_from(4 * words.len()).expect("a size");
    assert_eq!(p.submit_command(context, commands, bytes), Ok(()));
    assert_eq!(
        p.signal_synchronization_object_from_gpu(context, &[(fence, 2)]),
        Ok(())
    );
    assert_eq!(wait(fence, 2), Ok(()));
    assert_eq!(lock.read::<u64>(4096), Ok(5));

    let mismatch = Status::OBJECT_TYPE_MISMATCH;
    let parameter = Status::INVALID_PARAMETER;
    for wrong in [adapter, device, context, a, fence, paging.fence] {
        assert_eq!(p.destroy_paging_queue(wrong), Err(mismatch));
        assert_eq!(p.make_resident(wrong, &[a], 0), Err(mismatch.into()));
        assert_eq!(p.map_gpu_virtual_address(wrong, &map).err(), Some(mismatch));
    }
    for wrong in [adapter, device, context, fence, paging.queue] {
        let refused = p.make_resident(paging.queue, &[wrong], 0);
        assert_eq!(refused, Err(mismatch.into()));
        assert_eq!(p.evict(device, &[wrong], 0), Err(mismatch));
    }
    for bit in 2..32 {
        assert_eq!(
            p.make_resident(paging.queue, &[a], 1 << bit),
            Err(parameter.into())
        );
        assert_eq!(p.evict(device, &[a], 1 << bit), Err(parameter));
        let refused = p.update_gpu_virtual_address(device, context, &operations, None, 1 << bit);
        assert_eq!(refused, Err(parameter));
    }
    assert_eq!(p.evict(other, &[a], 0), Err(parameter));
    let refused = p.update_gpu_virtual_address(other, context, &operations, None, 0);
    assert_eq!(refused, Err(parameter));
    assert_eq!(
        p.destroy_synchronization_object(paging.fence),
        Err(parameter)
    );
    assert_eq!(p.free_gpu_virtual_address(adapter, second, UNIT), Ok(()));
    assert_eq!(p.destroy_paging_queue(paging.queue), Ok(()));
    let stale = Some(Status::INVALID_HANDLE);
    assert_eq!(p.destroy_paging_queue(paging.queue).err(), stale);
    assert_eq!(p.fence(paging.fence).err(), stale);
    // The device takes the others along.
    let last = p.create_paging_queue(device).expect("a paging queue");
    assert_eq!(p.destroy_device(device), Ok(()));
    let refused = p.make_resident(last.queue, &[a], 0).err();
    assert_eq!(refused.map(Status::from), stale);
    assert_eq!(p.fence(last.fence).err(), stale);
}

fn nothing_is_left_behind() {
    let rig = Rig::new();
    let adapter = rig.device.adapter();
    let round = |device: &Device| {
        let queue = PagingQueue::create(device).expect("a paging queue");
        let a = rig.vram(UNIT);
        let va = map(&queue, &MapDesc::all_of(&a));
        let range = reserve(&rig, 16 * UNIT);
        map(&queue, &at(range + UNIT, &a));
        assert_eq!(adapter.free_gpu_virtual_address(range, 16 * UNIT), Ok(()));
        assert_eq!(a.destroy(DestroyFlags::SYNCHRONOUS), Ok(()));
        (va, range)
    };
    let first = round(&rig.device);
    let used = vram_used(adapter);
    for n in 0..suite::rounds(300) {
        assert_eq!(round(&rig.device), first, "round {n}");
    }
    assert_eq!(vram_used(adapter), used);
}

fn what_is_offered_is_reclaimed() {
    wddm_memory::what_is_offered_is_reclaimed();
}

fn pending_residency_is_there_when_the_fence_says_so() {
    wddm_memory::pending_residency_is_there_when_the_fence_says_so();
}

fn work_finds_what_is_resident() {
    wddm_memory::work_finds_what_is_resident();
}

fn row_0_21_what_is_locked_is_pending_until_it_is_unlocked() {
    wddm_memory::what_is_locked_is_pending_until_it_is_unlocked();
}

fn a_budget_is_the_devices_own() {
    wddm_memory::a_budget_is_the_devices_own();
}

fn video_memory_info_tells_what_is_there() {
    wddm_memory::video_memory_info_tells_what_is_there();
}

fn what_is_mapped_is_seen_in_both_places() {
    wddm_memory::what_is_mapped_is_seen_in_both_places();
}
