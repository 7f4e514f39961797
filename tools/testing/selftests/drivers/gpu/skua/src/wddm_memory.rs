// SPDX-License-Identifier: MIT

//! Memory of `tools/wddm`: what must hold however much of VRAM the CPU sees, for the programs that
//! test one kind each.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use wddm::{
    Allocation, AllocationDesc, DestroyFlags, DeviceState, EvictFlags, Handle, MakeResidentFlags,
    MapDesc, MemorySegmentGroup, NotResident, OfferFlags, OfferPriority, Process, ReclaimResult,
    Status, MAX_ALLOCATIONS,
};

use crate::moving::evict_all;
use crate::rig::fill;
use crate::suite;
use crate::wddm_rig::{
    at, expect_fault, finish, gpu_read, gpu_write, locked_out, map, more_than_half, movable,
    patience, queue, read, reserve, vram_size, vram_used, Rig, MIB, PAGE, UNIT,
};
use crate::witness::quiet;

const NONE: MakeResidentFlags = MakeResidentFlags::empty();
const NOT_TRIM: MakeResidentFlags = MakeResidentFlags::CANT_TRIM_FURTHER;

/// What is locked or resident is not offered; what was offered is there again, or was thrown away.
pub fn what_is_offered_is_reclaimed() {
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    let adapter = rig.device.adapter();
    let desc = AllocationDesc::new(UNIT, adapter.system() | adapter.vram());
    let make = || Allocation::create(&rig.device, &desc).expect("an allocation");
    let (a, b) = (make(), make());
    for allocation in [&a, &b] {
        let map = allocation.lock2(0).expect("Lock2");
        map.write(0, 7_u64).expect("a write");
        assert_eq!(
            rig.device
                .offer(&[&a, &b], OfferPriority::Low, OfferFlags::empty()),
            Err(Status::GRAPHICS_ALLOCATION_BUSY),
            "locked"
        );
        assert_eq!(allocation.unlock2(), Ok(()));
    }
    assert!(queue.make_resident(&[&a], NONE).is_ok());
    assert_eq!(
        rig.device
            .offer(&[&a], OfferPriority::Low, OfferFlags::empty()),
        Err(Status::GRAPHICS_ALLOCATION_BUSY),
        "resident"
    );
    assert_eq!(rig.device.evict(&[&a], EvictFlags::empty()), Ok(0));
    let value = |allocation: &Allocation| {
        let map = allocation.lock2(0).expect("Lock2");
        let value: u64 = map.read(0).expect("a read");
        assert_eq!(allocation.unlock2(), Ok(()));
        value
    };
    for (throw_away, result) in [(false, ReclaimResult::Ok), (true, ReclaimResult::Discarded)] {
        let all = OfferFlags::all();
        assert_eq!(rig.device.offer(&[&a], OfferPriority::Auto, all), Ok(()));
        assert_eq!(a.lock2(0).err(), Some(Status::GRAPHICS_ALLOCATION_BUSY));
        if throw_away {
            evict_all();
        }
        let (results, paging) = queue.reclaim(&[&a, &b]).expect("a reclaim");
        assert_eq!(results, [result, ReclaimResult::Ok]);
        assert_eq!(queue.fence().wait(paging.fence_value, patience()), Ok(()));
        assert_eq!((value(&a), value(&b)), (if throw_away { 0 } else { 7 }, 7));
    }
    let refused = Err(Status::INVALID_PARAMETER);
    let offer = |list: &[&Allocation]| {
        rig.device
            .offer(list, OfferPriority::High, OfferFlags::empty())
    };
    assert_eq!(offer(&[]), refused);
    assert_eq!(offer(&[&a, &a]), refused);
    assert_eq!(offer(&vec![&a; MAX_ALLOCATIONS + 1]), refused);
    let other = Rig::new();
    assert_eq!(
        other
            .device
            .offer(&[&a], OfferPriority::High, OfferFlags::empty()),
        refused
    );
    queue.destroy();
    assert_eq!(queue.reclaim(&[&a]).err(), Some(Status::INVALID_HANDLE));
}

/// In all ways in which one can wait for it.
pub fn pending_residency_is_there_when_the_fence_says_so() {
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    let a = movable(&rig, 1 << 20);
    rig.start(&rig.copy, &[fill(7, a.gpu_va(), a.size())]);
    rig.finish(&rig.copy);
    let vram = vram_used(rig.device.adapter());
    assert!(evict_all() > 0);
    assert!(vram_used(rig.device.adapter()) < vram);
    // A page fault would wait for the move, and that for the gate: here are none.
    rig.finish(&rig.compute);
    let gate = rig.gate.lock2(0).expect("Lock2");
    gate.write(0, 0_u64).expect("a value");
    // The kernel does not know what it uses, so that what moves waits for it.
    rig.start(&rig.copy, &[rig.wait_for_gate()]);
    let paging = queue.make_resident(&[&a], NONE).expect("MakeResident");
    assert_eq!((paging.status, paging.fence_value), (Status::PENDING, 1));
    let fence = queue.fence();
    // In all ways in which one can wait: on the GPU, by an eventfd, in a thread.
    let done = rig.fence();
    assert_eq!(rig.compute.wait_from_gpu(&[(fence, 1)]), Ok(()));
    assert_eq!(rig.compute.signal_from_gpu(&[(&done, 1)]), Ok(()));
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("an eventfd");
    assert_eq!(fence.notify(1, event.as_fd()), Ok(()));
    let wakes = |timeout| {
        let mut fds = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, timeout).expect("poll")
    };
    let asleep = Duration::from_millis(50);
    assert_eq!(rig.device.state(), DeviceState::Active);
    let waited = fence.wait(1, asleep);
    assert_eq!(
        (waited, rig.device.state()),
        (Err(Status::TIMEOUT), DeviceState::Active)
    );
    assert_eq!(done.wait(1, asleep), Err(Status::TIMEOUT));
    assert_eq!((fence.value(), wakes(PollTimeout::ZERO)), (0, 0));
    // What comes behind it in the queue waits, too.
    let behind = queue
        .make_resident(&[&rig.gate], NONE)
        .expect("MakeResident");
    assert_eq!((behind.status, behind.fence_value), (Status::PENDING, 2));
    rig.open_gate();
    assert_eq!(fence.wait(2, patience()), Ok(()));
    assert_eq!(fence.value(), 2);
    assert_eq!(done.wait(1, patience()), Ok(()));
    let limit = u16::try_from(patience().as_millis()).unwrap_or(u16::MAX);
    assert_eq!(wakes(PollTimeout::from(limit)), 1);
    // It is where it was.
    assert!(vram_used(rig.device.adapter()) >= vram);
    assert_eq!(gpu_read(&rig, a.gpu_va()), 7 << 32 | 7);
}

/// And nothing else; the CPU sees the same throughout.
pub fn work_finds_what_is_resident() {
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    let a = rig.vram_out(MIB);
    finish(
        &queue,
        queue.make_resident(&[&a], NONE).expect("MakeResident"),
    );
    gpu_write(&rig, a.gpu_va(), 7);
    // Whatever others do.
    assert!(evict_all() > 0);
    assert_eq!(gpu_read(&rig, a.gpu_va()), 7);
    assert_eq!(rig.device.evict(&[&a], EvictFlags::empty()), Ok(0));
    suite::becomes("it leaves video memory", || evict_all() > 0);
    let cpu = a.lock2(0).expect("Lock2");
    assert_eq!(cpu.read::<u64>(0), Ok(7));
    expect_fault(&rig, a.gpu_va(), 8);
    assert_eq!(cpu.read::<u64>(0), Ok(7));
}

/// The paging fence says when it is there; who has locked it and would wait is told so.
pub fn what_is_locked_is_pending_until_it_is_unlocked() {
    quiet();
    let rig = Rig::new();
    let queue = queue(&rig);
    let (hidden, cpu) = locked_out(&rig);
    let paging = queue.make_resident(&[&hidden], NONE).expect("MakeResident");
    assert_eq!(paging.status, Status::PENDING);
    let wait = || {
        let long = Duration::from_secs(20);
        queue.fence().wait(paging.fence_value, long)
    };
    assert_eq!(wait(), Err(Status::GRAPHICS_ALLOCATION_BUSY));
    assert_eq!(cpu.write(0, 7_u64), Ok(()));
    assert_eq!(hidden.unlock2(), Ok(()));
    assert_eq!(wait(), Ok(()));
    assert_eq!(gpu_read(&rig, hidden.gpu_va()), 7);
}

/// Who has more than their share is told how much, and has nothing made resident.
pub fn a_budget_is_the_devices_own() {
    quiet();
    let (first, queue, [small, large]) = more_than_half(Rig::new());
    let all = queue.make_resident(&[&small, &large], NONE);
    assert_eq!(all.expect("MakeResident").bytes_to_trim, 0);
    // Of the same process, or another.
    for on in [
        first.device.adapter().clone(),
        Rig::new().device.adapter().clone(),
    ] {
        let (second, queue, [small, large]) = more_than_half(Rig::on(&on));
        let both = [&small, &large];
        let refused = Err(NotResident {
            status: Status::NO_MEMORY,
            bytes_to_trim: 4 * MIB,
        });
        assert_eq!(queue.make_resident(&both, NONE), refused);
        assert_eq!(
            second.device.evict(&[&small], EvictFlags::empty()),
            Err(Status::INVALID_PARAMETER),
            "none is resident"
        );
        // As told.
        finish(
            &queue,
            queue.make_resident(&[&large], NONE).expect("MakeResident"),
        );
        assert_eq!(queue.make_resident(&[&small], NONE), refused);
        let paging = queue.make_resident(&[&small], NOT_TRIM);
        let paging = paging.expect("MakeResident");
        assert_eq!(paging.bytes_to_trim, 4 * MIB);
        finish(&queue, paging);
        // Twice, so that one evict is too few.
        let paging = queue.make_resident(&[&small], NOT_TRIM);
        finish(&queue, paging.expect("MakeResident"));
        let evict = |list: &[&Allocation]| second.device.evict(list, EvictFlags::empty());
        assert_eq!(evict(&[&small]), Ok(4 * MIB));
        assert_eq!(evict(&both), Ok(0));
        // What there cannot be there is not, whatever is at stake.
        let desc = AllocationDesc::new(vram_size(&on), on.vram()).hidden();
        let most = Allocation::create(&second.device, &desc).expect("an allocation");
        let both = [&small, &most];
        let refused = queue.make_resident(&both, NOT_TRIM).map_err(Status::from);
        assert_eq!(refused, Err(Status::NO_MEMORY));
        let must = NOT_TRIM | MakeResidentFlags::MUST_SUCCEED;
        let refused = queue.make_resident(&both, must).map_err(Status::from);
        assert_eq!(refused, Err(Status::DEVICE_REMOVED));
        assert_eq!(second.device.state(), DeviceState::OutOfMemory);
    }
    assert_eq!(first.device.state(), DeviceState::Active);
}

/// The budget and the usage of a process, in VRAM and in system memory.
pub fn video_memory_info_tells_what_is_there() {
    use MemorySegmentGroup::{Local, NonLocal};
    quiet();
    let p = Process::new();
    let luid = Process::enum_adapters().expect("adapters")[0];
    let handle = p.open_adapter_from_luid(luid).expect("an adapter");
    let adapter = p.adapter(handle).expect("the adapter");
    let info = |group| {
        let info = p.query_video_memory_info(handle, group).expect("figures");
        let reserved = (info.current_reservation, info.available_for_reservation);
        assert_eq!(reserved, (0, 0));
        (info.budget, info.current_usage)
    };
    let all = vram_size(&adapter);
    // Without a device, too.
    assert_eq!(info(Local), (all, 0));
    let rig = Rig::on(&adapter);
    assert_eq!(info(Local), (all, 0));
    let queue = queue(&rig);
    let a = rig.vram_out(4 * MIB);
    assert_eq!(info(Local), (all, 0), "it is not resident");
    finish(
        &queue,
        queue.make_resident(&[&a], NONE).expect("MakeResident"),
    );
    assert_eq!(info(Local), (all, 4 * MIB));
    // Others' is not this process', and not in its budget.
    let (other, others, [small, large]) = more_than_half(Rig::new());
    finish(
        &others,
        others.make_resident(&[&small], NONE).expect("MakeResident"),
    );
    assert_eq!(info(Local), (all - 4 * MIB, 4 * MIB));
    finish(
        &others,
        others.make_resident(&[&large], NONE).expect("MakeResident"),
    );
    assert_eq!(info(Local), (all / 2, 4 * MIB));
    drop((small, large, others, other));
    // What is freed is free when work is done.
    let free = suite::eventually(|| (info(Local) == (all, 4 * MIB)).then_some(()));
    assert!(free.is_some(), "{:?}", info(Local));
    // A second device of the process has its part in it.
    let (_, alone) = info(NonLocal);
    let second = Rig::on(&adapter);
    let b = second.vram(MIB);
    assert_eq!(info(Local), (all, 5 * MIB));
    assert_eq!(rig.device.evict(&[&a], EvictFlags::empty()), Ok(0));
    assert_eq!(info(Local), (all, MIB));
    drop((b, second));
    // And what its address space took, and its contexts.
    let is_gone = suite::eventually(|| (info(NonLocal).1 <= alone).then_some(()));
    assert!(is_gone.is_some(), "{alone} {:?}", info(NonLocal));

    let system = adapter.system();
    let segments = adapter.segments().expect("segments").into_iter();
    let size: u64 = segments
        .filter(|segment| system.contains(segment.id))
        .map(|segment| segment.size)
        .sum();
    let (budget, before) = info(NonLocal);
    assert_eq!(budget, size / 2);
    let b = rig.system(8 * MIB);
    let (budget, used) = info(NonLocal);
    // And page tables.
    assert!(
        (8 * MIB..9 * MIB).contains(&(used - before)),
        "{before} {used}"
    );
    assert_eq!(budget, size / 2);
    assert_eq!(b.destroy(DestroyFlags::SYNCHRONOUS), Ok(()));
    let (_, after) = info(NonLocal);
    assert!(after - before < MIB, "{before} {after}");
    for wrong in [Handle::from_value(0), Handle::from_value(!0)] {
        let refused = p.query_video_memory_info(wrong, Local);
        assert_eq!(refused, Err(Status::INVALID_HANDLE));
    }
}

/// By the GPU at each address, and by the CPU.
pub fn what_is_mapped_is_seen_in_both_places() {
    let rig = Rig::new();
    let queue = queue(&rig);
    for a in [
        rig.vram(4 * PAGE),
        rig.system(4 * PAGE),
        movable(&rig, 4 * PAGE),
    ] {
        let all = map(&queue, &MapDesc::all_of(&a));
        assert_ne!(all, a.gpu_va());
        let base = reserve(&rig, UNIT);
        let some = MapDesc {
            offset_pages: 2,
            size_pages: 1,
            ..at(base + PAGE, &a)
        };
        assert_eq!(map(&queue, &some), base + PAGE);
        for (n, va) in [
            (1, all + 2 * PAGE),
            (2, base + PAGE),
            (3, a.gpu_va() + 2 * PAGE),
        ] {
            gpu_write(&rig, va, n);
            for other in [all + 2 * PAGE, base + PAGE, a.gpu_va() + 2 * PAGE] {
                assert_eq!(gpu_read(&rig, other), n, "{va:#x} {other:#x}");
            }
            assert_eq!(read(&a, 2 * 4096), n);
        }
        // What was there is mapped over.
        let b = rig.system(PAGE);
        assert_eq!(map(&queue, &at(base + PAGE, &b)), base + PAGE);
        gpu_write(&rig, base + PAGE, 9);
        assert_eq!((read(&a, 2 * 4096), read(&b, 0)), (3, 9));
    }
}
