// SPDX-License-Identifier: MIT

//! `tools/libskua` on the driver: what it says beyond what the kernel does.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use libskua::{
    Access, Bo, BoFlags, ClientDevice, CommandBuffer, Context, ContextAllocation, ContextStatus,
    Deadline, DestroyFlags, Device, DeviceStatus, EngineKind, Errno, Error, ErrorKind, Mapping,
    MonitoredFence, OfferPriority, OnFailure, Outcome, RegionKind, Residency, SegmentSets, Syncobj,
    Trim, Vm, WaitFor,
};
use skua_selftests::client::PATIENCE;
use skua_selftests::moving::evict_all;
use skua_selftests::raw::{in_child, with_alarm};
use skua_selftests::rig::{wait_value, write};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_failed_point_of_a_timeline_is_never_done,
        points_of_sound_contexts_are_done,
        a_binary_syncobj_keeps_how_its_work_ended,
        a_signal_ends_no_wait,
        a_forked_child_destroys_nothing: 60,
        a_destroyed_object_is_gone_for_good,
        devices_have_budgets: 60,
        what_outlives_its_device_ends_nothing_of_others,
        what_is_of_another_file_is_refused,
        resident_objects_are_in_vram at_rest,
        row_2_08_contexts_share_an_allocation: 60,
        the_segments_are_told_back at_rest,
        what_is_offered_can_be_reclaimed at_rest,
    ])
}

fn row_2_08_contexts_share_an_allocation() {
    const SIZE: u64 = 2 * 4096;
    let rig = Rig::new();
    let [first, second] = [EngineKind::Compute, EngineKind::Copy].map(|kind| rig.context(kind));
    let sets = SegmentSets::new(rig.device.vram());
    let create = |context, alignment| {
        ContextAllocation::create(&rig.vm, context, SIZE, alignment, sets).expect("CONTEXT_ALLOC")
    };
    let (shared, own) = (create(None, 64 << 10), create(Some(&second), 0));
    assert_eq!((shared.size(), shared.va() % (64 << 10)), (SIZE, 0));
    let [target, source] = [&own, &shared].map(|it| it.va() + SIZE - 8);
    let mut commands = CommandBuffer::create(&rig.vm, COMMANDS, 4096).expect("a buffer");
    commands.push(&write(source, 7)).expect("room");
    assert_eq!(first.run(&commands, patience()), Ok(()));
    evict_all();
    commands.reset().copy(source, target, 8).expect("room");
    commands.copy(target, GATE, 8).expect("room");
    assert_eq!(second.run(&commands, patience()), Ok(()));
    assert_eq!(rig.gate.read(0), Ok(7_u64));
    let other = Vm::create(&rig.device).expect("VM_CREATE");
    for (vm, size, alignment) in [(&other, SIZE, 0), (&rig.vm, 1, 0), (&rig.vm, SIZE, 3)] {
        let refused = ContextAllocation::create(vm, Some(&first), size, alignment, sets);
        assert_eq!(errno(refused), Some(Errno::INVAL), "{size} {alignment}");
    }
}

fn the_segments_are_told_back() {
    let device = Device::open_first().expect("a device");
    let (vram, aperture, system) = (device.vram(), device.aperture(), device.system());
    let all = SegmentSets::new(vram | aperture | system);
    let create = |sets| Bo::create(&device, 4096, sets, BoFlags::empty());
    for sets in [
        SegmentSets::from(system),
        all,
        all.preferring(&[system, vram]),
        all.preferring(&[aperture]).evicted_to(system),
        all.evicted_to(aperture | system),
    ] {
        let info = create(sets).and_then(|bo| bo.info()).expect("BO_INFO");
        assert_eq!(info.sets, sets);
        let first = sets
            .preferred()
            .first()
            .copied()
            .unwrap_or(match sets.supported() {
                only if only == system => system,
                _ => vram,
            });
        assert!(
            first.contains(info.region),
            "{sets:?}: region {}",
            info.region
        );
    }
    for sets in [
        all.preferring(&[vram | system]),
        all.preferring(&[vram, vram]),
        all.preferring(&[vram, system, aperture, vram]),
        SegmentSets::new(vram).preferring(&[system]),
        all.evicted_to(vram),
        SegmentSets::new(system).evicted_to(system),
    ] {
        assert_eq!(errno(create(sets)), Some(Errno::INVAL), "{sets:?}");
    }
}

fn what_is_offered_can_be_reclaimed() {
    quiet();
    let device = Device::open_first().expect("a device");
    let both = device.system() | device.vram();
    let bos = [(); 70].map(|()| Bo::create(&device, 4096, both, BoFlags::CPU_ACCESS));
    let bos = bos.map(|bo| bo.expect("BO_CREATE"));
    let all: Vec<&Bo> = bos.iter().collect();
    let maps = bos.each_ref().map(|bo| bo.map().expect("mmap"));
    maps.iter()
        .for_each(|map| map.write(0, 7_u64).expect("a write"));
    let is_lost = |n: usize| n % 3 == 2;
    for priority in [
        OfferPriority::Low,
        OfferPriority::Normal,
        OfferPriority::High,
        OfferPriority::Auto,
    ] {
        assert_eq!(bos[0].offer(priority), Ok(()));
        assert_eq!(bos[0].reclaim(), Ok(false));
    }
    let some: Vec<&Bo> = (0..)
        .zip(&all)
        .filter(|(n, _)| is_lost(*n))
        .map(|(_, bo)| *bo)
        .collect();
    assert_eq!(device.offer(&some, OfferPriority::Normal), Ok(()));
    assert_eq!(errno(bos[2].lock()), Some(Errno::BUSY));
    evict_all();
    let lost = device.reclaim(&all).expect("BO_RECLAIM");
    for (n, (map, lost)) in maps.iter().zip(lost).enumerate() {
        assert_eq!(lost, is_lost(n), "number {n}");
        assert_eq!(map.read(0), Ok(if lost { 0 } else { 7_u64 }), "number {n}");
    }
    assert_eq!(
        errno(device.offer(&[], OfferPriority::Low)),
        Some(Errno::INVAL)
    );
    let other = Device::open_first().expect("a device");
    let strange = other.reclaim(&all[..1]);
    assert!(matches!(strange, Err(Error::Argument(_))), "{strange:?}");
}

const GATE: u64 = 1 << 32;
const COMMANDS: u64 = 2 << 32;
/// Nothing is bound there.
const NOTHING: u64 = 3 << 32;

fn patience() -> Duration {
    PATIENCE * suite::patience()
}

struct Rig {
    device: Device,
    vm: Vm,
    _memory: Bo,
    gate: Mapping,
}

impl Rig {
    fn new() -> Self {
        let device = Device::open_first().expect("a device");
        let vm = Vm::create(&device).expect("VM_CREATE");
        let memory = Bo::create(&device, 4096, device.system(), BoFlags::CPU_ACCESS);
        let memory = memory.expect("BO_CREATE");
        vm.map(&memory, GATE, Access::ReadWrite).expect("VM_BIND");
        Self {
            gate: memory.map().expect("mmap"),
            device,
            vm,
            _memory: memory,
        }
    }

    fn context(&self, kind: EngineKind) -> Context {
        let engine = self.device.engine(kind).expect("an engine");
        Context::create(&self.vm, engine).expect("CONTEXT_CREATE")
    }

    /// Two programs: one that faults when the gate opens, and one that is done then.
    fn commands(&self) -> (CommandBuffer, CommandBuffer) {
        let buffer = |va| CommandBuffer::create(&self.vm, va, 4096).expect("a buffer");
        let (mut bad, mut good) = (buffer(COMMANDS), buffer(COMMANDS + 4096));
        for commands in [&mut bad, &mut good] {
            commands.push(&wait_value(GATE, 1)).expect("room");
        }
        bad.push(&write(NOTHING, 1)).expect("room");
        (bad, good)
    }

    fn open_gate(&self) {
        self.gate.write(0, 1_u64).expect("a value");
    }
}

fn unknown() -> Error {
    Error::Work(Outcome::Unknown)
}

fn a_failed_point_of_a_timeline_is_never_done() {
    let rig = Rig::new();
    let (bad, good) = rig.commands();
    let (guilty, innocent) = (
        rig.context(EngineKind::Copy),
        rig.context(EngineKind::Compute),
    );
    let [timeline, copied] = [(); 2].map(|()| Syncobj::create(&rig.device).expect("a syncobj"));
    let first = guilty.submission().commands(&bad).signal(&timeline, 1);
    first.submit().expect("SUBMIT");
    let second = innocent.submission().commands(&good).signal(&timeline, 2);
    second.submit().expect("SUBMIT");
    rig.open_gate();
    timeline.wait(2, patience()).expect("a wait");
    // What the kernel has dropped, it takes for done.
    assert_ne!(timeline.outcome(1), Ok(Outcome::Done));
    assert!(timeline.wait_done(1, patience()).is_err());
    assert!(matches!(
        guilty.state().expect("CONTEXT_STATE").status,
        ContextStatus::Faulted(_)
    ));
    // Nor does the next point, or a copy, make it done; nor the end of the context.
    let third = innocent.submission().signal(&timeline, 3);
    third.submit().expect("SUBMIT");
    timeline.wait(3, patience()).expect("a wait");
    assert_eq!(timeline.outcome(1), Ok(Outcome::Unknown));
    assert_eq!(timeline.wait_done(1, patience()), Err(unknown()));
    assert_eq!(timeline.outcome(3), Ok(Outcome::Done));
    timeline.transfer(1, &copied, 1).expect("TRANSFER");
    timeline.transfer(3, &copied, 2).expect("TRANSFER");
    assert_eq!(copied.outcome(1), Ok(Outcome::Unknown));
    drop(guilty);
    assert_eq!(timeline.outcome(1), Ok(Outcome::Unknown));
    let fourth = innocent.submission().signal(&timeline, 4);
    fourth.submit().expect("SUBMIT");
    timeline.wait(4, patience()).expect("a wait");
    assert_eq!(timeline.outcome(1), Ok(Outcome::Unknown));
}

fn points_of_sound_contexts_are_done() {
    let rig = Rig::new();
    let (_, good) = rig.commands();
    let [timeline, shared] = [(); 2].map(|()| Syncobj::create(&rig.device).expect("a syncobj"));
    rig.open_gate();
    for (point, kind) in [
        (1, EngineKind::Copy),
        (2, EngineKind::Compute),
        (3, EngineKind::Copy),
    ] {
        let context = rig.context(kind);
        for syncobj in [&timeline, &shared] {
            let job = context.submission().commands(&good).signal(syncobj, point);
            job.submit().expect("SUBMIT");
            syncobj.wait_done(point, patience()).expect("it is done");
        }
    }
    timeline.signal(4).expect("TIMELINE_SIGNAL");
    for point in 1..=4 {
        assert_eq!(timeline.outcome(point), Ok(Outcome::Done), "{point}");
    }
    // Whoever has it may have signalled it, too.
    let exported = shared.export().expect("HANDLE_TO_FD");
    let imported = Syncobj::import(&rig.device, exported.as_fd()).expect("FD_TO_HANDLE");
    for syncobj in [&shared, &imported] {
        assert_eq!(syncobj.outcome(1), Ok(Outcome::Unknown));
        assert_eq!(syncobj.outcome(3), Ok(Outcome::Done));
    }
    let pending = timeline.outcome(5).expect_err("it has no fence");
    assert_eq!(pending.kind(), ErrorKind::Invalid);
}

fn a_binary_syncobj_keeps_how_its_work_ended() {
    let rig = Rig::new();
    let (bad, good) = rig.commands();
    let (guilty, innocent) = (
        rig.context(EngineKind::Copy),
        rig.context(EngineKind::Compute),
    );
    let [failed, done] = [(); 2].map(|()| Syncobj::create(&rig.device).expect("a syncobj"));
    let job = guilty.submission().commands(&bad).signal(&failed, 0);
    job.submit().expect("SUBMIT");
    rig.open_gate();
    let error = failed.wait_done(0, patience()).expect_err("it faults");
    assert_eq!(error, Error::Work(Outcome::Fault));
    let job = innocent.submission().commands(&good).wait(&failed, 0);
    job.signal(&done, 0).submit().expect("SUBMIT");
    let error = done.wait_done(0, patience()).expect_err("it is cancelled");
    assert_eq!(error, Error::Work(Outcome::Cancelled));
    assert_eq!(failed.outcome(0), Ok(Outcome::Fault));
}

fn a_signal_ends_no_wait() {
    let rig = Rig::new();
    let (_, good) = rig.commands();
    let context = rig.context(EngineKind::Copy);
    let done = Syncobj::create(&rig.device).expect("a syncobj");
    let job = context.submission().commands(&good).signal(&done, 0);
    job.submit().expect("SUBMIT");
    let event = done.eventfd(0).expect("an eventfd");
    let file = done.export_sync_file(0).expect("a sync file");
    let waits: [(&str, &(dyn Fn() -> libskua::Result<()> + Sync)); 3] = [
        ("syncobj", &|| done.wait(0, patience())),
        ("eventfd", &|| event.wait(patience())),
        ("sync file", &|| file.wait(patience().into())),
    ];
    thread::scope(|scope| {
        let waiting = waits.map(|(name, wait)| {
            (
                name,
                scope.spawn(move || with_alarm(Duration::from_millis(50), wait)),
            )
        });
        thread::sleep(Duration::from_millis(500));
        for (name, thread) in &waiting {
            assert!(!thread.is_finished(), "{name}");
        }
        rig.open_gate();
        for (name, thread) in waiting {
            assert_eq!(thread.join().expect("a result"), Ok(()), "{name}");
        }
    });
}

fn a_forked_child_destroys_nothing() {
    let rig = Rig::new();
    let (_, good) = rig.commands();
    let mut context = Some(rig.context(EngineKind::Copy));
    let mut done = Some(Syncobj::create(&rig.device).expect("a syncobj"));
    let mut rig = Some(rig);
    let mut good = Some(good);
    let dropped = in_child(|| {
        drop((context.take(), done.take(), good.take()));
        drop(rig.take());
        true
    });
    assert!(dropped);
    let (rig, good) = (rig.expect("a rig"), good.expect("commands"));
    let (context, done) = (context.expect("a context"), done.expect("a syncobj"));
    rig.open_gate();
    let job = context.submission().commands(&good).signal(&done, 0);
    job.submit().expect("SUBMIT");
    done.wait_done(0, patience()).expect("it is done");
}

fn errno<T: std::fmt::Debug>(result: libskua::Result<T>) -> Option<Errno> {
    match result.expect_err("it succeeded") {
        Error::Ioctl { errno, .. } => Some(errno),
        _ => None,
    }
}

fn a_destroyed_object_is_gone_for_good() {
    let rig = Rig::new();
    let create = || Bo::create(&rig.device, 4096, rig.device.system(), BoFlags::CPU_ACCESS);
    let mut bo = create().expect("BO_CREATE");
    let shared = bo.export().expect("a dma-buf");
    // Another has the same handle.
    let twin = Bo::import(&rig.device, shared.as_fd()).expect("an import");
    let refused = bo.destroy(DestroyFlags::empty());
    assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
    drop(twin);
    assert_eq!(bo.destroy(DestroyFlags::SYNCHRONOUS), Ok(()));
    assert_eq!(errno(bo.destroy(DestroyFlags::empty())), Some(Errno::NOENT));
    assert_eq!(errno(bo.info()), Some(Errno::NOENT));
    // Its handle is another's by now, and is not closed with it.
    let next = create().expect("BO_CREATE");
    drop(bo);
    assert!(next.info().is_ok());
}

/// Two clients who each want three quarters of VRAM.
fn devices_have_budgets() {
    skua_selftests::witness::quiet();
    let clients = [(); 2].map(|()| Device::open_first().expect("a device"));
    let vram = clients[0].vram();
    let regions = clients[0].regions().expect("QUERY");
    let region = regions
        .iter()
        .find(|region| region.kind == RegionKind::Vram);
    let size = region.expect("VRAM").size;
    let [first, second] = [0, 1].map(|n| {
        let device = ClientDevice::create(&clients[n], Residency::Explicit);
        device.expect("DEVICE_CREATE")
    });
    let quarters: Vec<Vec<Bo>> = clients
        .iter()
        .map(|device| {
            let bo = || Bo::create(device, size / 4, vram, BoFlags::empty());
            (0..3).map(|_| bo().expect("BO_CREATE")).collect()
        })
        .collect();
    let wanted: Vec<Vec<&Bo>> = quarters.iter().map(|bos| bos.iter().collect()).collect();
    assert_eq!(first.make_resident(&wanted[0]).submit_and_wait(), Ok(0));
    let refused = second.make_resident(&wanted[1]).submit();
    assert_eq!(refused, Err(Error::OverBudget { bytes: size / 4 }));
    let forced = second.make_resident(&wanted[1]).cannot_trim_further();
    assert_eq!(forced.submit(), Ok(size / 4));
    let trim = Trim {
        device: first.handle(),
        bytes: size / 4,
    };
    assert_eq!(clients[0].next_trim(Deadline::NEVER), Ok(Some(trim)));
    assert_eq!(clients[0].next_trim(Deadline::NOW), Ok(None));
    assert_eq!(first.evict(&wanted[0][..1]), Ok(()));
    let state = first.state().expect("DEVICE_STATE");
    assert_eq!(state.residency, Residency::Explicit);
    assert_eq!(state.status, DeviceStatus::Active);
    assert_eq!((state.resident, state.budget), (size / 2, size / 2));
    assert!(first.create_vm().is_ok());
}

/// The driver gives the lowest number that is free.
fn what_outlives_its_device_ends_nothing_of_others() {
    let device = Device::open_first().expect("a device");
    let engine = device.engine(EngineKind::Copy).expect("an engine");
    let make = |owner: &ClientDevice| {
        let vm = owner.create_vm().expect("VM_CREATE");
        let context = Context::create(&vm, engine).expect("CONTEXT_CREATE");
        let fence = MonitoredFence::create_for(owner, 0, OnFailure::Lost);
        (vm, context, fence.expect("FENCE_CREATE"))
    };
    let create = || ClientDevice::create(&device, Residency::Explicit);
    let owner = create().expect("DEVICE_CREATE");
    let old = make(&owner);
    drop(owner);
    let (vm, context, fence) = make(&create().expect("DEVICE_CREATE"));
    drop(old);
    assert_eq!(fence.signal(1), Ok(()));
    let status = context.state().map(|state| state.status);
    assert_eq!(status, Ok(ContextStatus::Active));
    assert_eq!(vm.unmap(GATE, 4096), Ok(()));
    drop((vm, context, fence));
    // Nothing is left of the devices, once workers have seen to that: there may be 16.
    let mut all = Vec::new();
    let made = suite::eventually(|| {
        all.extend(create());
        (all.len() == 16).then_some(())
    });
    assert!(made.is_some(), "{} of them", all.len());
}

fn what_is_of_another_file_is_refused() {
    let (rig, other) = (Rig::new(), Rig::new());
    let fences = [&rig, &other].map(|rig| MonitoredFence::create(&rig.device, 0));
    let [own, foreign] = fences.map(|fence| fence.expect("FENCE_CREATE"));
    let [syncobj, done] = [&other, &rig].map(|rig| Syncobj::create(&rig.device));
    let (syncobj, done) = (syncobj.expect("a syncobj"), done.expect("a syncobj"));
    let bo = Bo::create(&other.device, 4096, other.device.system(), BoFlags::empty());
    let bo = bo.expect("BO_CREATE");
    let context = rig.context(EngineKind::Copy);
    let theirs = other.context(EngineKind::Copy);
    let sets = SegmentSets::new(rig.device.vram());
    let refused = [
        (
            "a signal",
            context.submission().signal(&syncobj, 0).submit(),
        ),
        ("a wait", context.submission().wait(&syncobj, 0).submit()),
        (
            "a value",
            context.submission().signal_value(&foreign, 1).submit(),
        ),
        (
            "a value to wait for",
            context.submission().wait_value(&foreign, 1).submit(),
        ),
        (
            "an object",
            rig.vm
                .bind()
                .map(&bo, 0, NOTHING, 4096, Access::Read)
                .submit(),
        ),
        (
            "a bind's signal",
            rig.vm
                .bind()
                .unmap(NOTHING, 4096)
                .signal(&syncobj, 0)
                .submit(),
        ),
        (
            "fences",
            MonitoredFence::wait_many(&[(&own, 0), (&foreign, 0)], WaitFor::All, Deadline::NOW)
                .map(drop),
        ),
        (
            "a context",
            ContextAllocation::create(&rig.vm, Some(&theirs), 4096, 0, sets).map(drop),
        ),
    ];
    for (what, result) in refused {
        assert!(
            matches!(result, Err(Error::Argument(_))),
            "{what}: {result:?}"
        );
    }
    // What has their numbers here is as it was.
    assert_eq!(own.value(), 0);
    assert_eq!(
        context
            .submission()
            .signal(&done, 0)
            .signal_value(&own, 1)
            .submit(),
        Ok(())
    );
    assert_eq!(own.wait(1, patience()), Ok(()));
}

fn resident_objects_are_in_vram() {
    let rig = Rig::new();
    let both = rig.device.system() | rig.device.vram();
    let bo = Bo::create(&rig.device, 4096, both, BoFlags::CPU_ACCESS).expect("BO_CREATE");
    let device = &rig.device;
    assert_eq!(device.make_resident(&[&bo]).submit_and_wait(), Ok(0));
    let region = bo.info().expect("BO_INFO").region;
    assert!(device.vram().contains(region));
    let other = Device::open_first().expect("a device");
    for result in [
        other.make_resident(&[&bo]).submit().map(drop),
        other.evict(&[&bo]),
    ] {
        assert!(matches!(result, Err(Error::Argument(_))), "{result:?}");
    }
    assert_eq!(device.evict(&[&bo]), Ok(()));
    assert_eq!(errno(device.evict(&[&bo])), Some(Errno::INVAL));
}
