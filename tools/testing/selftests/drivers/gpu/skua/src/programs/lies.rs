// SPDX-License-Identifier: MIT

//! A device that lies: whatever it says, the kernel stays whole, clients are told within seconds,
//! and the driver can be unbound and, once the device is honest, bound again.
//!
//! The host makes the GPU server tell the lies of `Documentation/gpu/skua/lies.rst`. An entry is a
//! test of its own: the kernel's complaints are charged to it, and one that hangs spoils no other.
//! Those that may hang an unbind, or the machine, come last.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{memfd_create, MFdFlags};
use skua_guest::host::{expect_error, request, Lies};
use skua_selftests::client::{errno_of, map, signal, unmap, PATIENCE};
use skua_selftests::events::Trace;
use skua_selftests::function::{watches_dma_mappings, Function};
use skua_selftests::kernel_log::KernelLog;
use skua_selftests::program::{address, op, op_imm, COUNT};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, expect_working, fill, wait_value, write, Job};
use skua_selftests::suite::Test;
use skua_selftests::uevents::Uevents;
use skua_selftests::{skip, suite, tests, Cases, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_spec::fault::Reason;
use skua_spec::isa::Op;
use skua_spec::regs::VERSION_MINOR;
use skua_uapi::{
    DRM_SKUA_BO_CPU_ACCESS, DRM_SKUA_CONTEXT_ACTIVE, DRM_SKUA_CONTEXT_FAULTED,
    DRM_SKUA_CONTEXT_LOST,
};

/// What must come of a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The driver does not bind, and one line says why.
    Refused,
    /// The driver binds, or says why not in one line, in no more memory than an honest device
    /// takes.
    Bound,
    /// The driver binds, in no more memory than an honest device takes.
    Binds,
    /// All work is done as if nothing were.
    Works,
    /// Nobody need see the lie: it works, or work ends with a documented error, or the device is
    /// lost.
    Survived,
    /// The device is declared lost: work ends with a documented error, calls fail.
    Lost,
}

/// What is done while the device lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The driver is bound.
    Bind,
    /// Ordinary jobs on both engines.
    Jobs,
    /// VRAM is made, cleared and bound.
    Paging,
    /// Memory is taken out of an address space.
    Unmap,
    /// A job waits without end.
    Hang,
    /// A job accesses what it may not.
    Fault,
    /// More jobs than the ring has room for.
    Many,
    /// The device's counters are read.
    Counters,
    /// A program writes to system memory without end while the driver goes.
    Unbind,
}

/// An entry for each lie: `name: lies, work => end`.
macro_rules! lies {
    ($($name:ident: $lies:literal, $work:ident => $end:ident;)*) => {
        $(fn $name() {
            attempt($lies, Work::$work, End::$end);
        })*

        const TESTS: &[Test] = &[$(Test {
            name: stringify!($name),
            run: $name,
            seconds: 180,
            at_rest: false,
        }),*];
    };
}

lies! {
    // What the registers say.
    another_device: "id", Bind => Refused;
    no_device: "id=0xffffffff", Bind => Refused;
    another_version: "version", Bind => Refused;
    no_engines: "engines=0", Bind => Refused;
    more_engines_than_vectors: "engines=8", Bind => Refused;
    more_engines_than_there_can_be: "engines=255", Bind => Refused;
    no_engine_of_any_kind: "engine-kind", Bind => Refused;
    no_copy_engine: "engine-kind=0", Bind => Refused;
    no_mmu: "mmu-caps", Bind => Refused;
    no_vram: "vram-size=0", Bind => Refused;
    half_a_page_of_vram: "vram-size=2048", Bind => Refused;
    // By itself the driver would have an address space for paging of a quarter of that.
    vram_of_1_tib: "vram-size=2^40 paging-va=16", Bind => Binds;
    vram_that_is_not_aligned: "vram-base", Bind => Refused;
    more_visible_than_there_is: "vram-visible", Bind => Refused;
    a_gart_within_vram: "gart-base", Bind => Refused;
    no_gart: "gart-pages", Bind => Refused;
    no_time: "tick-hz", Bind => Refused;
    an_aperture_of_pages_of_no_size: "aperture-caps", Bind => Refused;
    an_aperture_larger_than_its_bar: "aperture-pages", Bind => Refused;
    a_paging_address_space_of_2_pib: "paging-va", Bind => Refused;
    paging_tables_of_a_sixteenth_of_memory: "paging-va=65536", Bind => Refused;
    never_ready: "never-ready", Bind => Refused;

    // What it says of work.
    a_fence_too_high: "fence-ahead", Jobs => Lost;
    a_fence_that_goes_back: "fence-back", Jobs => Survived;
    a_fence_that_never_comes: "fence-never", Jobs => Survived;
    a_clear_that_never_ends: "fence-never", Paging => Lost;
    an_end_that_is_late: "end-late=100", Jobs => Works;
    a_head_out_of_range: "head-out", Jobs => Works;
    a_head_that_never_moves: "head-never", Many => Survived;
    time_that_creeps: "ticks-creep", Jobs => Survived;

    // What it acknowledges. An engine that stops when it is asked to is not reset.
    an_invalidation_acknowledged_late: "invalidate-ack-late=1000", Unmap => Works;
    an_invalidation_never_acknowledged: "invalidate-ack-never", Unmap => Lost;
    too_many_invalidations_acknowledged: "invalidate-ack-ahead", Unmap => Survived;
    a_reset_acknowledged_late: "reset-ack-late=1000 preempt-never", Hang => Works;
    a_reset_never_acknowledged: "reset-ack-never preempt-never", Hang => Lost;
    too_many_resets_acknowledged: "reset-ack-ahead preempt-never", Hang => Survived;
    a_snapshot_acknowledged_late: "snapshot-ack-late=1000", Counters => Works;
    a_snapshot_never_acknowledged: "snapshot-ack-never", Counters => Survived;

    // What it does of preemptions.
    a_preemption_that_is_late: "preempt-late", Hang => Survived;
    no_preemption: "preempt-never", Hang => Works;
    a_preemption_of_more_than_is_left: "preempt-completed-ahead", Hang => Lost;
    a_preemption_of_less_than_is_done: "preempt-completed-behind", Hang => Lost;
    a_preemption_that_nobody_asked_for: "preempt-fence", Hang => Lost;
    a_preemption_for_no_known_cause: "preempt-cause", Hang => Lost;
    a_preemption_without_an_interrupt: "preempt-interrupt-lost", Hang => Works;
    a_preemption_with_two_interrupts: "preempt-interrupt-doubled", Hang => Works;

    // What it reports.
    a_record_of_nobody: "fault-nobody", Jobs => Survived;
    a_record_once_more: "fault-stale", Fault => Survived;
    a_record_of_garbage: "fault-garbage", Jobs => Lost;
    a_reason_that_is_none: "fault-reason=99", Fault => Lost;
    records_that_are_not_there: "fault-ahead", Jobs => Lost;
    lost_interrupts: "interrupt-lost", Jobs => Works;
    doubled_interrupts: "interrupt-doubled", Jobs => Works;
    a_storm_of_interrupts: "interrupt-storm", Jobs => Works;

    // What it writes.
    a_status_page_of_garbage: "status-scribble", Jobs => Lost;
    a_status_page_that_stays_on: "status-stays", Unbind => Survived;
    rings_of_garbage: "ring-scribble", Jobs => Survived;

    // What it does not do.
    an_engine_that_stops_late: "engine-reset-late=1000 preempt-never", Hang => Works;
    an_engine_that_does_not_stop: "engine-reset-never preempt-never", Hang => Lost;
    an_adapter_reset_that_is_late: "adapter-reset-late", Bind => Bound;
    no_adapter_reset: "adapter-reset-never", Bind => Refused;
    a_status_page_that_is_not_written: "reset-ack-never", Bind => Refused;

    // What may take the machine with it.
    vram_of_2_pib: "vram-size=2^51 gart-base=2^50 paging-va=16", Bind => Refused;
    a_flood_of_records: "fault-flood", Jobs => Lost;
    vram_of_4_tib: "vram-size=2^42 paging-va=16", Bind => Binds;
    an_engine_that_goes_on_after_unbind: "engine-reset-never", Unbind => Survived;
    engines_that_go_on_whatever_is_reset: "engine-reset-never adapter-reset-never",
        Unbind => Survived;
    a_bus_that_is_kept: "adapter-reset-never bus-master-stays status-stays", Unbind => Survived;
}

pub(crate) fn main() -> ExitCode {
    let own: &[Test] = tests![
        each_reason_has_its_errno: 60,
        work_is_found_without_interrupts: 60,
        row_2_01_what_hangs_is_asked_to_make_room_first: 60,
        row_2_01_who_does_not_answer_is_reset_though_idle: 60,
        row_2_01_a_reset_follows_a_request: 120,
        a_loss_is_told: 60,
        a_lie_ends_with_who_tells_it: 60,
        vram_of_which_the_cpu_sees_nothing: 60 at_rest,
        row_0_15_contradictory_apertures_are_refused: 180,
        row_2_04_what_needs_others_is_refused_without_them: 180,
        row_2_05_an_older_device_is_not_preempted: 60,
        row_2_13_who_has_done_all_is_not_asked: 60,
        row_4_12_the_default_is_a_quarter_of_memory_in_whole_tables: 120,
        row_2_21_what_ends_before_the_reset_is_innocent: 300,
        row_2_21_what_a_reset_tells_has_to_be_possible: 120,
        row_2_13_what_ends_after_it_was_asked_is_done: 60,
    ];
    suite::main(&[own, TESTS].concat())
}

/// How long it may take until the driver gives the device up: the watchdog, which believes in time
/// that creeps for as long as 16 jobs may take, then time-outs.
const GIVING_UP: Duration = PATIENCE.saturating_mul(4);
/// Lines of the driver that a lie may be worth, however often it is told.
const LINES: usize = 60;
/// Placements in system memory, in VRAM and in the aperture, of a device that may not be asked any
/// more.
const SYSTEM: u32 = 1 << 0;
const VRAM: u32 = 1 << 1;
const APERTURE: u32 = 1 << 2;
/// Bytes of system memory that a device which lies is given to write to.
const TARGET: u64 = 1 << 20;
/// Bytes that binding to a device may take from the system for good.
const ROOM: u64 = 64 << 20;

/// Has the device tell these lies and no others.
#[track_caller]
fn tell(lies: &str) {
    // The driver's complaints are what is looked at here.
    expect_error("").expect("the kernel's log");
    request(&format!("gpu-lie {lies}")).unwrap_or_else(|error| panic!("gpu-lie {lies}: {error}"));
}

/// The function, honest and without its driver, whatever a test before this one left.
#[track_caller]
fn honest() -> Function {
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    let function = Function::first();
    tell("");
    if function.is_bound() {
        function.unbind().expect("unbind, at first");
    }
    function
}

/// Tells `lies` while `work` is done, and asserts that it comes to this `end`.
fn attempt(lies: &str, work: Work, end: End) {
    if lies.contains("bus-master-stays") && watches_dma_mappings() {
        skip("this kernel has a driver give all back, whatever still reaches it");
    }
    let function = honest();
    let mut log = KernelLog::from_now();
    let mut kept = None;
    if work == Work::Bind {
        bind_to(&function, lies, end, &mut log);
    } else {
        function.bind().expect("bind, at first");
        kept = Some(function.quarantined_bytes().1);
        live_with(lies, work, end);
        let lines = complaints(&mut log);
        assert!(lines.len() <= LINES, "{} lines of the driver", lines.len());
        if function.is_bound() {
            function.unbind().expect("unbind");
        }
    }
    tell("");
    function.bind().expect("bind to an honest device");
    if let Some(before) = kept {
        let more = function.quarantined_bytes().1 - before;
        // What the job wrote to is a part of it.
        let expected = lies.contains("bus-master-stays");
        assert_eq!(more >= TARGET, expected, "{more} bytes are kept for good");
        assert!(expected || more == 0, "{more} bytes are kept for good");
    }
    expect_working();
}

/// Binds the driver to a device that lies, and takes it off again if that works.
fn bind_to(function: &Function, lies: &str, end: End, log: &mut KernelLog) {
    tell(lies);
    let before = available();
    let bound = function.bind();
    let taken = before.saturating_sub(available());
    let lines = complaints(log);
    match bound {
        Err(error) => {
            assert_ne!(end, End::Binds, "{error}: {lines:#?}");
            assert_eq!(lines.len(), 1, "what is said of it: {lines:#?}");
            assert!(!function.is_bus_master(), "it may still access memory");
        }
        Ok(()) => {
            assert!(matches!(end, End::Bound | End::Binds), "it was bound");
            assert!(taken < ROOM, "{taken} bytes for it");
            function.unbind().expect("unbind");
            assert!(!function.is_bus_master(), "it may still access memory");
        }
    }
}

/// Works on a device that begins to lie, until it is lost or goes well; and then lets go of it.
fn live_with(lies: &str, work: Work, end: End) {
    let rig = Rig::new().having_worked();
    let target = rig.buffer(Place::System, TARGET);
    let source = rig.buffer(Place::Vram, 1 << 20);
    let mut jobs = Vec::new();
    let mut calls: Vec<(&str, Result<(), Errno>)> = Vec::new();
    if work == Work::Unbind {
        jobs.push(write_without_end(&rig, target.va));
    }
    let (faulted, idle) = (
        rig.new_context(Engine::Compute),
        rig.new_context(Engine::Compute),
    );
    let fault = rig.start_in(faulted, &[fill(1, 1 << 45, 4096)]).wait();
    assert_eq!(fault, Err(Errno::EFAULT));
    tell(lies);
    let mut ordinary = |count: u64, calls: &mut Vec<_>| {
        for n in 0..count {
            for engine in Engine::ALL {
                let commands = [
                    fill(5, source.va, 4096),
                    copy(source.va, target.va, 4096),
                    write(target.va + 4096, n),
                ];
                match start(&rig, engine, &commands) {
                    Ok(job) => jobs.push(job),
                    Err(errno) => calls.push(("SUBMIT", Err(errno))),
                }
            }
        }
    };
    match work {
        Work::Bind => unreachable!("there is no driver yet"),
        Work::Jobs => ordinary(8, &mut calls),
        Work::Many => ordinary(2000, &mut calls),
        Work::Hang => {
            let hang = [wait_value(target.va, u64::MAX)];
            jobs.extend(start(&rig, Engine::Copy, &hang));
        }
        Work::Fault => jobs.extend(start(&rig, Engine::Copy, &[fill(1, 1 << 45, 4096)])),
        Work::Paging => calls.push(("VM_BIND of new VRAM", bind_vram(&rig))),
        Work::Unmap => {
            // What may be out of VRAM has no translation that would be invalidated.
            let result = rig.bind_and_wait(rig.vm, &[unmap(target.va, target.size)]);
            calls.push(("VM_BIND", result));
        }
        Work::Counters => {
            // A time-out there is what it is.
            let _ = Function::first().debugfs("counters");
        }
        Work::Unbind => {
            std::thread::sleep(Duration::from_millis(100));
            Function::first().unbind().expect("unbind");
            drop(jobs);
            drop((source, target));
            drop(rig);
            expect_silence(lies.contains("bus-master-stays"));
            return;
        }
    }
    let mut ends = Vec::new();
    for (n, job) in jobs.iter().enumerate() {
        let end = job.client().wait_for(job.syncobj, GIVING_UP);
        assert!(is_documented(end), "job {n}: {end:?}");
        ends.push(end);
    }
    for (call, end) in &calls {
        let refused = *end == Err(Errno::EIO);
        assert!(is_documented(*end) || refused, "{call}: {end:?}");
    }
    // Work behind the lie: it must not wait for ever either.
    let paging = bind_vram(&rig);
    assert_ne!(paging, Err(Errno::ETIMEDOUT), "new VRAM");
    match end {
        End::Works => {
            let job_cut = work == Work::Hang;
            let good = |end: &Result<(), Errno>| match end {
                Ok(()) => !job_cut,
                Err(errno) => job_cut && *errno == Errno::ETIME,
            };
            assert!(ends.iter().all(good), "{ends:?}");
            assert!(calls.iter().all(|(_, end)| end.is_ok()), "{calls:?}");
            assert_eq!(paging, Ok(()));
            expect_working();
        }
        End::Lost => {
            expect_lost(&rig);
            let status = |context| rig.state(context).expect("CONTEXT_STATE").status;
            let lost = || (status(idle) == DRM_SKUA_CONTEXT_LOST).then_some(());
            assert!(suite::eventually(lost).is_some(), "{}", status(idle));
            // The first reason counts.
            assert_eq!(status(faulted), DRM_SKUA_CONTEXT_FAULTED);
            // What it goes on to say is worth no line.
            let silence = || {
                let mut log = KernelLog::from_now();
                std::thread::sleep(Duration::from_millis(200));
                complaints(&mut log).is_empty().then_some(())
            };
            assert!(suite::eventually(silence).is_some(), "it is told on and on");
        }
        _ => {}
    }
    if work == Work::Hang {
        // The engine may write to this rig's memory still when it is gone.
        drop(jobs);
        Function::first().unbind().expect("unbind");
        drop((source, target));
        drop(rig);
        expect_silence(false);
    }
}

fn each_reason_has_its_errno() {
    honest().bind().expect("bind");
    let rig = Rig::new();
    let mut cases = Cases::new();
    for reason in Reason::ALL {
        tell(&format!("fault-reason={}", reason as u32));
        let context = rig.new_context(Engine::Copy);
        let job = rig.start_in(context, &[fill(1, 1 << 45, 4096)]);
        let state = || rig.state(context).expect("CONTEXT_STATE");
        cases.expect(
            &format!("{reason:?}: fence, reason"),
            (job.wait(), Reason::from_u32(state().reason)),
            (Err(errno_of(reason)), Some(reason)),
        );
    }
    tell("");
    cases.finish();
    expect_working();
}

/// By the watchdog, which looks at engines before it counts their time: each piece of work is done
/// long before its time is up.
fn work_is_found_without_interrupts() {
    honest().bind().expect("bind");
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let parameters = Function::first().debugfs("parameters").expect("parameters");
    let lines = &mut parameters.lines();
    let limit = lines.find_map(|line| line.strip_prefix("job_timeout_ms: "));
    let limit = Duration::from_millis(limit.and_then(|ms| ms.parse().ok()).expect("a time"));
    tell("interrupt-lost");
    for engine in Engine::ALL {
        let rounds = (1..=5).map(|n| {
            let begin = Instant::now();
            let job = rig.start(engine, &[write(target.va, n)]);
            assert_eq!((job.wait(), target.cpu.read(0)), (Ok(()), n), "{engine:?}");
            begin.elapsed()
        });
        // A host may hold one up, not all.
        let best = rounds.min().expect("rounds");
        assert!(best < limit, "{engine:?}: {best:?}");
    }
    tell("");
    expect_working();
}

/// The engine is reset only if it does not stop, and the contexts of others do not notice either.
fn row_2_01_what_hangs_is_asked_to_make_room_first() {
    honest().bind().expect("bind");
    let counts = || Function::first().counters(["driver_preemptions", "driver_engine_resets"]);
    let resets = |lie| {
        let rig = Rig::new();
        let line = rig.buffer(Place::System, 4096);
        tell(lie);
        let before = counts();
        let hang = rig.start(Engine::Compute, &[wait_value(line.va, 1)]);
        assert_eq!(hang.wait(), Err(Errno::ETIME), "{lie}");
        let after = counts();
        println!("# {lie:?}: requests and resets {before:?}, then {after:?}");
        assert!(after[0] > before[0], "{lie}: it was not asked");
        tell("");
        expect_working();
        after[1] - before[1]
    };
    // A host may not run the device for so long that it is too late, but not always.
    assert!((0..3).any(|_| resets("") == 0), "it was reset");
    assert_eq!(resets("preempt-never"), 1);
}

/// Nobody is to blame: what ran has ended.
fn row_2_01_who_does_not_answer_is_reset_though_idle() {
    honest().bind().expect("bind");
    let resets = || Function::first().counters(["driver_engine_resets"]);
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    tell("preempt-never");
    let is_reset = |round: u64| {
        let before = resets();
        let contexts = [0; 2].map(|_| rig.new_context(Engine::Compute));
        let waits = rig.start_in(contexts[0], &[wait_value(line.va, round)]);
        let queued = rig.start_in(contexts[1], &[write(line.va + 8, round)]);
        // By now it was asked to stop, unless the host is slow; on a very slow one it is cut.
        thread::sleep(Duration::from_millis(20));
        line.cpu.write(0, round);
        let ends = [waits.wait(), queued.wait()];
        println!("# {ends:?}, resets {before:?}, then {:?}", resets());
        ends == [Ok(()), Ok(())] && resets() > before
    };
    assert!((1..=20).any(is_reset), "never while it was idle");
    tell("");
    expect_working();
}

/// Each, however often one after the other, on both engines.
fn row_2_01_a_reset_follows_a_request() {
    honest().bind().expect("bind");
    let trace = Trace::of(&["skua_preempt", "skua_reset"]);
    tell("preempt-never");
    for engine in Engine::ALL.repeat(3) {
        let rig = Rig::new();
        let line = rig.buffer(Place::System, 4096);
        let hang = rig.start(engine, &[wait_value(line.va, 1)]);
        assert_eq!(hang.wait(), Err(Errno::ETIME));
    }
    let events = trace.events();
    let mut resets = 0;
    // Engines that were asked since they were reset.
    let mut asked = BTreeSet::new();
    for event in &events {
        let engine = event.get("engine");
        if event.name == "skua_preempt" {
            asked.insert(engine);
        } else {
            resets += 1;
            assert!(asked.remove(engine), "reset number {resets}: {events:#?}");
        }
    }
    assert_eq!(resets, 6, "{events:#?}");
    tell("");
    expect_working();
}

/// And what is to be done; of nobody, as nobody is to blame.
fn a_loss_is_told() {
    honest().bind().expect("bind");
    let rig = Rig::new();
    let uevents = Uevents::new();
    tell("fence-ahead");
    // It may have ended before that was seen.
    let end = rig.run(Engine::Copy, &[]);
    let event = uevents.next("WEDGED").expect("an event");
    println!("# {end:?}: {event:?}");
    assert_eq!(event["WEDGED"], "rebind");
    assert!(!event.contains_key("PID"), "{event:?}");
    drop(rig);
    honest().bind().expect("bind");
    expect_working();
}

fn a_lie_ends_with_who_tells_it() {
    let function = honest();
    // As a test that fails does.
    let failed = catch_unwind(|| {
        let _lies = Lies::tell("id").expect("the host's answer");
        assert!(function.bind().is_err(), "another device was bound");
        panic!("on purpose");
    });
    let why = failed.expect_err("it panics");
    assert_eq!(why.downcast_ref(), Some(&"on purpose"));
    function.bind().expect("bind to an honest device");
    expect_working();
}

/// No lie, but another device: what the CPU is to map is not put into VRAM.
fn vram_of_which_the_cpu_sees_nothing() {
    let function = honest();
    tell("vram-visible=0");
    function.bind().expect("bind");
    let client = Client::new();
    assert_eq!(client.region(Place::Vram).cpu_visible_size, 0);
    let create = |flags, placements| {
        let handle = client.bo_create(4096, flags, placements)?;
        Ok(client.info(handle)?.region)
    };
    let cpu = DRM_SKUA_BO_CPU_ACCESS;
    assert_eq!(create(cpu, VRAM), Err(Errno::EOPNOTSUPP));
    assert_eq!(create(cpu, VRAM | APERTURE), Ok(2));
    assert_eq!(create(cpu, VRAM | SYSTEM), Ok(0));
    assert_eq!(create(0, VRAM | SYSTEM), Ok(1));
    assert_eq!(create(0, VRAM), Ok(1));
    drop(client);
    function.unbind().expect("unbind");
    tell("");
    function.bind().expect("bind to an honest device");
    expect_working();
}

/// MultiEngineAware, PreemptionAware, NoDmaPatching, CancelCommandAware: all combinations.
fn row_2_04_what_needs_others_is_refused_without_them() {
    let function = honest();
    let mut log = KernelLog::from_now();
    let accepted = [0x0, 0x1, 0x1 | 0x4, 0x1 | 0x4 | 0x8, 0x11, 0x15, 0x1d];
    let all = (0..16u32).map(|n| n & 1 | n >> 1 << 2);
    // VSyncPowerSaveAware has no part in it, and what has no meaning is refused.
    let reserved = [0x20, 1 << 16, 1 << 31].map(|bit| 0x1d | bit);
    for caps in all.chain([0x1d | 0x2, 0x8 | 0x2]).chain(reserved) {
        tell(&format!("scheduling={caps:#x}"));
        let bound = function.bind();
        let lines = complaints(&mut log);
        println!("# {caps:#x}: {bound:?}, {lines:?}");
        if accepted.contains(&(caps & !0x2)) {
            bound.unwrap_or_else(|error| panic!("{caps:#x}: {error}"));
            assert!(lines.is_empty(), "{caps:#x}: {lines:?}");
            let level = if caps & 0x4 == 0 { 0 } else { 500 };
            expect_preemption(level, VERSION_MINOR);
            function.unbind().expect("unbind");
        } else {
            assert!(bound.is_err(), "{caps:#x} was bound");
            let [line] = &lines[..] else {
                panic!("{caps:#x}: {lines:?}");
            };
            let why = format!("capabilities, {caps:#x}, contradict each other");
            assert!(line.ends_with(&why), "{line}");
        }
    }
    tell("");
    function.bind().expect("bind to an honest device");
    expect_working();
}

/// A device of before there was preemption, whatever its fields say: it is asked for none.
fn row_2_05_an_older_device_is_not_preempted() {
    let function = honest();
    for (lie, level, version) in [
        ("version=0x10002", 0, 2),
        ("version=0x10003 scheduling=0", 500, 3),
        ("", 500, VERSION_MINOR),
    ] {
        tell(lie);
        function.bind().expect("bind");
        expect_preemption(level, version);
        function.unbind().expect("unbind");
    }
    function.bind().expect("bind");
    expect_working();
}

/// A device of this version says that it is preempted so finely, and is if that is not 0.
#[track_caller]
fn expect_preemption(level: u32, version: u16) {
    let rig = Rig::new();
    assert_eq!(rig.device.hw_version, 0x10000 | u32::from(version));
    let levels = [
        rig.device.graphics_preemption,
        rig.device.compute_preemption,
    ];
    assert_eq!(levels, [level; 2]);
    // As the device itself counts: the driver's counters begin anew with each bind.
    let requests = || Function::first().counters(["preempt"]);
    let line = rig.buffer(Place::System, 4096);
    let before = requests();
    let [low, high] = [-7, 7].map(|priority| {
        let context = rig.context_having_worked(Engine::Compute);
        assert_eq!(rig.prioritise(context, priority), Ok(()));
        context
    });
    let waits = rig.start_in(low, &[wait_value(line.va, 1)]);
    let important = rig.start_in(high, &[write(line.va + 8, 1)]);
    if level == 0 {
        thread::sleep(Duration::from_millis(100));
        assert!(!important.has_ended(), "it overtook");
        line.cpu.write(0, 1);
    }
    assert_eq!(important.wait(), Ok(()));
    line.cpu.write(0, 1);
    assert_eq!(waits.wait(), Ok(()));
    let after = requests();
    println!("# version 1.{version}: requests {before:?}, then {after:?}");
    assert_eq!(after > before, level != 0);
}

/// Pages of no size, or none of any size; too many; beside VRAM that is all visible; in no BAR.
/// Cached, where there is none, or where the CPU sees VRAM without.
fn row_0_15_contradictory_apertures_are_refused() {
    for lies in [
        "aperture-caps=0x100",
        "aperture-caps=0x100 vram-visible=0",
        "aperture-caps=12",
        "aperture-caps=12 vram-visible=0",
        "aperture-caps=13 aperture-pages=64 vram-visible=0",
        "aperture-pages=64 vram-visible=0",
        "aperture-caps=12 aperture-pages=2^17 vram-visible=0",
        "aperture-caps=12 aperture-pages=64",
        "aperture-caps=16 aperture-pages=64 vram-visible=0",
    ] {
        println!("{lies}");
        attempt(lies, Work::Bind, End::Refused);
    }
}

/// How much of it the CPU sees has no part in it, and what the device asks for comes first. Without
/// memory there is neither an address space nor a GPU.
fn row_4_12_the_default_is_a_quarter_of_memory_in_whole_tables() {
    let function = honest();
    for (lies, megabytes) in [
        ("vram-visible=0", 16),
        ("vram-visible=0 vram-size=0x200000", 2),
        ("vram-visible=0 vram-size=0x1000000", 4),
        ("vram-visible=0 vram-size=0x1200000", 6),
        ("vram-visible=0 vram-size=0x1200000 paging-va=3", 3),
    ] {
        tell(lies);
        function.bind().expect("bind");
        let paging = function.debugfs("paging").expect("debugfs");
        let line = format!("va: {}", megabytes << 20);
        assert!(paging.lines().any(|it| it == line), "{lies}: {paging}");
        function.unbind().expect("unbind");
    }
    attempt("vram-visible=0 vram-size=0", Work::Bind, End::Refused);
}

/// Overdue for a wait without end it ends before the engine is reset, which by then is at
/// something else: nobody is guilty. What the engine says until it is reset is not listened to, and
/// what is submitted meanwhile comes later.
fn row_2_21_what_ends_before_the_reset_is_innocent() {
    honest().bind().expect("bind");
    let trace = Trace::of(&["skua_preempt", "skua_reset"]);
    // While it is asked to stop; while the reset is awaited.
    for (lies, moment) in [
        ("preempt-never", "skua_preempt"),
        ("preempt-never engine-reset-never", "skua_reset"),
    ] {
        for engine in Engine::ALL {
            // A slow host may miss the moment.
            let met = (0..5).any(|_| ends_before_the_reset(&trace, lies, moment, engine));
            assert!(met, "{lies}, {engine:?}: never before the reset");
        }
    }
    expect_working();
}

/// The overdue work of one engine ends at the first such event; whether that was before the
/// reset.
#[track_caller]
fn ends_before_the_reset(trace: &Trace, lies: &str, moment: &str, engine: Engine) -> bool {
    let rig = Rig::new();
    let line = rig.buffer(Place::System, 4096);
    for (at, value) in [(40, 1), (48, 2), (56, 3)] {
        line.cpu.write(at, value);
    }
    let other = rig.new_context(engine);
    let seen = trace.events().len();
    let events = |name| {
        let events = trace.events();
        events[seen..].iter().filter(|it| it.name == name).count()
    };
    tell(lies);
    let overdue = rig.start(engine, &[wait_value(line.va, 1), write(line.va + 8, 1)]);
    let behind = rig.start(
        engine,
        &[
            // Done twice it would leave another value.
            copy(line.va + 48, line.va + 56, 8),
            copy(line.va + 40, line.va + 48, 8),
            wait_value(line.va + 16, 1),
            write(line.va + 24, 1),
        ],
    );
    let has_come = || (events(moment) > 0).then_some(());
    assert!(suite::eventually(has_come).is_some(), "no {moment}");
    let late = rig.start_in(other, &[write(line.va + 32, 1)]);
    line.cpu.write(0, 1);
    let has_ended = || (line.cpu.read(8) == 1).then_some(());
    assert!(suite::eventually(has_ended).is_some(), "it goes on waiting");
    thread::sleep(Duration::from_millis(100));
    let noticed = overdue.has_ended() || late.has_ended() || line.cpu.read(32) == 1;
    let withheld = lies.contains("engine-reset-never");
    let adapter = || Function::first().counters(["driver_adapter_resets"]);
    let resets = adapter();
    let in_time = withheld || events("skua_reset") == 0;
    if !withheld {
        let is_reset = || (events("skua_reset") > 0).then_some(());
        assert!(suite::eventually(is_reset).is_some(), "it is not reset");
        // Until it is done.
        suite::becomes("it ends", || overdue.has_ended());
    }
    tell("");
    line.cpu.write(16, 1);
    let ends = [&overdue, &behind, &late].map(Job::wait);
    println!("# {lies}, {engine:?}: in time {in_time}, {ends:?}");
    // Nor was it given up for the adapter's reset.
    if !in_time || adapter() != resets {
        return false;
    }
    assert!(!noticed, "it was listened to");
    assert_eq!(ends, [Ok(()); 3]);
    assert_eq!([8, 24, 32, 48].map(|at| line.cpu.read(at)), [1; 4]);
    assert_eq!(line.cpu.read(56), 2, "it was begun anew");
    for (context, completed) in [(rig.context(engine), 2), (other, 1)] {
        let state = rig.state(context).expect("CONTEXT_STATE");
        let expected = (DRM_SKUA_CONTEXT_ACTIVE, completed);
        assert_eq!((state.status, state.completed), expected);
    }
    // It was not reset while it worked; that it was deaf is seen again when it has nothing to do.
    assert_eq!(events("skua_reset"), 2);
    true
}

/// No more than what was submitted, and no less than what had been completed before; if not,
/// nothing of the engine is believed any more.
fn row_2_21_what_a_reset_tells_has_to_be_possible() {
    for ahead in ["1000", "0xffffffffffffffff"] {
        honest().bind().expect("bind");
        let trace = Trace::of(&["skua_reset"]);
        let (rig, other) = (Rig::new(), Rig::new());
        let line = rig.buffer(Place::System, 4096);
        for n in 0..3 {
            assert_eq!(rig.run(Engine::Copy, &[write(line.va, n)]), Ok(()));
        }
        let hang = rig.start(Engine::Copy, &[wait_value(line.va, 9)]);
        thread::sleep(Duration::from_millis(100));
        tell(&format!("fence-ahead={ahead} preempt-never"));
        // Nothing that it says before the reset is wrong.
        thread::sleep(Duration::from_millis(500));
        assert!(other.bo_create(4096, 0, SYSTEM).is_ok(), "{ahead}");
        assert!(trace.events().is_empty());
        assert_eq!(hang.wait(), Err(Errno::ENODEV), "{ahead}");
        expect_lost(&rig);
        expect_lost(&other);
        assert_eq!(trace.events().len(), 1, "{ahead}: {:?}", trace.events());
    }
    honest().bind().expect("bind");
    expect_working();
}

/// Whether the uAPI lists the end of a piece of work.
fn is_documented(end: Result<(), Errno>) -> bool {
    matches!(
        end,
        Ok(())
            | Err(Errno::EFAULT | Errno::EINVAL | Errno::ETIME | Errno::ECANCELED | Errno::ENODEV)
    )
}

/// Submits commands to a device that may be lost.
fn start<'a>(rig: &'a Rig, engine: Engine, commands: &[Command]) -> Result<Job<'a>, Errno> {
    rig.start_after(rig.context(engine), commands, &[])
}

/// Makes a buffer of VRAM, which is cleared first, and binds it.
fn bind_vram(rig: &Rig) -> Result<(), Errno> {
    let handle = rig.bo_create(1 << 20, 0, VRAM)?;
    let va = rig.reserve(1 << 20);
    let done = rig.syncobj();
    rig.bind(rig.vm, &[map(handle, 0, va, 1 << 20)], &[signal(done)])?;
    rig.wait_for(done, GIVING_UP)
}

/// A program that writes to all of a buffer of 1 MiB, again and again.
fn write_without_end(rig: &Rig, va: u64) -> Job<'_> {
    let instructions = [
        op(Op::Arg, 2, 0, 0, 0),
        op(Op::Arg, 3, 0, 0, 1),
        // r6:r7 = r2:r3 + r4 % 2^18 * 4
        op_imm(Op::And, 5, 4, (1 << 18) - 1),
        op(Op::Lea, 6, 2, 5, 2),
        op(Op::St32, 4, 6, 0, 0),
        // Not each word: the whole buffer soon.
        op_imm(Op::Add, 4, 4, 61),
        op(Op::Bra, 0, 0, 0, 2),
    ];
    let program = rig.program(&instructions);
    let job = rig.start(
        Engine::Compute,
        &[dispatch(&program, &instructions, &address(va))],
    );
    // Bound until the address space goes, with its pages.
    job
}

/// A device without a driver is no bus master, if it can be kept from that, and does not write to
/// memory that was given back:
/// much of what is free, most of it where that is quick, takes a pattern, page by page, and keeps
/// it.
#[track_caller]
fn expect_silence(is_master: bool) {
    let config = std::fs::read(Function::first().sysfs().join("config")).expect("config");
    let says = config[4] & 1 << 2 != 0;
    assert_eq!(says, is_master, "is the device bus master?");
    let file = memfd_create("canaries", MFdFlags::MFD_CLOEXEC).expect("memfd_create");
    let mut file = File::from(file);
    let canaries = vec![0x5a_u8; 1 << 20];
    let most = u32::try_from((available() / 4 * 3) >> 20).expect("a number of MiB");
    for _ in 0..suite::rounds(most) {
        file.write_all(&canaries).expect("canaries");
    }
    std::thread::sleep(Duration::from_millis(500));
    file.rewind().expect("canaries");
    let mut found = vec![0; canaries.len()];
    let mut changed = 0;
    loop {
        let bytes = file.read(&mut found).expect("canaries");
        if bytes == 0 {
            break;
        }
        let found = &found[..bytes];
        if *found != canaries[..bytes] {
            changed += found.iter().filter(|byte| **byte != 0x5a).count();
        }
    }
    assert_eq!(changed, 0, "bytes of other people's memory were written");
}

/// Bytes that the system could give away.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .expect("MemAvailable");
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>();
    kib.expect("a number") * 1024
}

/// The device is declared lost: new work is refused.
#[track_caller]
fn expect_lost(rig: &Rig) {
    let begin = Instant::now();
    let refused = || {
        let result = rig.bo_create(4096, 0, SYSTEM);
        matches!(result, Err(Errno::EIO | Errno::ENODEV))
    };
    while !refused() {
        let late = begin.elapsed() > GIVING_UP * suite::patience();
        assert!(!late, "the device is not declared lost");
        // What makes it look.
        let _ = start(rig, Engine::Copy, &[]);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The driver's complaints since the last call, without what the driver core says of a probe.
#[track_caller]
fn complaints(log: &mut KernelLog) -> Vec<String> {
    let records = log.records().into_iter();
    records
        .filter(|record| {
            let message = &record.message;
            let ours = message.starts_with("skua") && !message.starts_with("skua-mark");
            // Warnings and worse.
            record.level <= 4 && ours && !message.contains("probe with driver")
        })
        .map(|record| record.message)
        .collect()
}

/// The driver is told of nothing, and finds what has ended when it looks by itself; who submits
/// sees that the engine has done all.
fn row_2_13_who_has_done_all_is_not_asked() {
    honest().bind().expect("bind");
    let rig = Rig::new();
    let done = rig.buffer(Place::System, 4096);
    let [low, high] = [-1, 1].map(|priority| {
        let context = rig.context_having_worked(Engine::Compute);
        assert_eq!(rig.prioritise(context, priority), Ok(()));
        context
    });
    let requests = || Function::first().counters(["driver_preemptions", "preempt"]);
    let rings = || {
        let text = Function::first().debugfs("rings").expect("debugfs");
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains("(compute)"));
        line.map(str::to_owned).expect("an engine")
    };
    let expect = |state: &str| {
        let is = || rings().contains(state).then_some(());
        assert!(suite::eventually(is).is_some(), "not {state}: {}", rings());
    };
    tell("interrupt-lost");
    let before = requests();
    let (mut untold, mut n) = (0, 0);
    // The driver may be faster, which looks without an interrupt four times in a second.
    while untold < 3 && n < 100 {
        n += 1;
        let hold = Hold::new(&rig);
        let least = rig.start_in(low, &[hold.command(), write(done.va, n)]);
        expect("device Some(Running)");
        hold.release();
        // Which it says behind the fence.
        expect("device Some(Idle)");
        untold += u32::from(rings().contains("in flight 1"));
        let most = rig.start_in(high, &[write(done.va + 8, n)]);
        assert_eq!([least.wait(), most.wait()], [Ok(()), Ok(())], "round {n}");
        assert_eq!(done.cpu.read(8), n);
    }
    println!("# {untold} of {n} times the driver did not know that all was done");
    assert!(untold > 0, "it always knew");
    assert_eq!(requests(), before, "it was asked");
    tell("");
    expect_working();
}

/// Between the driver's look at what was done and the time at which the engine sees the request.
fn row_2_13_what_ends_after_it_was_asked_is_done() {
    honest().bind().expect("bind");
    let rig = Rig::new();
    let counts = rig.buffer(Place::System, 4096);
    let program = rig.program(COUNT);
    let count = |at| dispatch(&program, COUNT, &address(counts.va + at));
    let counted = || [0, 4, 8, 12].map(|at| counts.cpu.read32(at));
    let [low, high] = [-1, 1].map(|priority| {
        let context = rig.context_having_worked(Engine::Compute);
        assert_eq!(rig.prioritise(context, priority), Ok(()));
        context
    });
    let numbers = || {
        Function::first().counters([
            "driver_preemptions",
            "preempt_idle",
            "driver_engine_resets",
            "driver_adapter_resets",
        ])
    };
    tell("preempt-late=1000");
    let before = numbers();
    for n in 1..=3 {
        let hold = Hold::new(&rig);
        let first = rig.start_in(low, &[count(0), hold.command(), count(4)]);
        let behind = rig.start_in(low, &[count(8)]);
        suite::becomes("it begins", || counted()[0] == n);
        let important = rig.start_in(high, &[count(12)]);
        let [asked, ..] = numbers();
        assert_eq!(asked, before[0] + u64::from(n), "it was not asked");
        hold.release();
        let ends = [first, behind, important].map(|job| job.wait());
        assert_eq!(ends, [Ok(()); 3], "round {n}");
        assert_eq!(counted(), [n; 4]);
    }
    let after = numbers();
    let idle = after[1] - before[1];
    println!("# {idle} of 3 times the engine had done all by then");
    assert!(idle > 0);
    assert_eq!(after[2..], before[2..], "it was reset");
    tell("");
    expect_working();
}
