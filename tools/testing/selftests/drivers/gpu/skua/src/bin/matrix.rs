// SPDX-License-Identifier: MIT

//! What goes wrong, against what the device does just then: whatever meets, every fence signals, who
//! is innocent ends with right results, and the machine goes on.
//!
//! A cell is a test of its own, `FAULT_while_PHASE`. `guests.json` gives this program a driver that
//! is soon out of patience, and bears any number of adapter resets.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use skua_guest::host::{expect_error, Lies};
use skua_selftests::client::PATIENCE;
use skua_selftests::function::Function;
use skua_selftests::moving::{evict_some, pattern};
use skua_selftests::program::{address, COUNT, LOOP};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, expect_working, fill, write, Buffer, Job};
use skua_selftests::suite::{self, eventually, Test};
use skua_selftests::{Engine, Errno, Place, Rig};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Work does not end; the device is honest.
    Hang,
    /// Requests to stop are ignored.
    NoPreempt,
    /// They are heard when the driver has given up.
    SlowPreempt,
    /// No interrupt comes.
    LostInterrupt,
    /// Each comes twice.
    DoubleInterrupt,
    /// The answer to a request says that something was completed that was never asked for.
    BogusId,
    /// The driver's own work does not end.
    PagingHang,
    /// Work does not end, and engines are not reset.
    ResetFailure,
}

impl Fault {
    /// What the device is to say, or not to do.
    fn lies(self) -> &'static str {
        match self {
            Self::Hang => "",
            Self::NoPreempt => "preempt-never",
            Self::SlowPreempt => "preempt-late=3000",
            Self::LostInterrupt => "interrupt-lost preempt-interrupt-lost",
            Self::DoubleInterrupt => "interrupt-doubled preempt-interrupt-doubled",
            Self::BogusId => "preempt-completed-ahead",
            // Of the engine alone that the driver keeps to itself, the third.
            Self::PagingHang => "fence-lost=4 preempt-never",
            Self::ResetFailure => "engine-reset-never preempt-never",
        }
    }
}

/// What the device does when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    Idle,
    /// It works.
    Running,
    /// It works for one, and another one who is more important has work.
    Preempting,
    /// Objects move, out and in.
    Paging,
    /// The adapter is being reset.
    Resetting,
}

/// What becomes of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All is done, but what never ends: nothing is reset but an engine.
    Done,
    /// The same, but that what an engine was working on may be cut, too.
    Cut,
    /// One of both: what the driver does next may tell that what seems to hang has ended.
    Either,
    /// The adapter is reset: each piece of work is done, or was cancelled.
    Reset,
}

/// An entry for each cell: `name: fault, phase => end`.
macro_rules! cells {
    ($($name:ident: $fault:ident, $phase:ident => $end:ident;)*) => {
        $(fn $name() {
            attempt(Fault::$fault, Phase::$phase, End::$end);
        })*

        const TESTS: &[Test] = &[$(Test {
            name: stringify!($name),
            run: $name,
            seconds: 120,
            at_rest: false,
        }),*];
    };
}

cells! {
    hang_while_idle: Hang, Idle => Done;
    hang_while_running: Hang, Running => Done;
    hang_while_preempting: Hang, Preempting => Done;
    hang_while_paging: Hang, Paging => Done;
    hang_while_resetting: Hang, Resetting => Reset;

    no_preempt_while_idle: NoPreempt, Idle => Done;
    no_preempt_while_running: NoPreempt, Running => Cut;
    no_preempt_while_preempting: NoPreempt, Preempting => Cut;
    no_preempt_while_paging: NoPreempt, Paging => Cut;
    no_preempt_while_resetting: NoPreempt, Resetting => Reset;

    slow_preempt_while_idle: SlowPreempt, Idle => Done;
    slow_preempt_while_running: SlowPreempt, Running => Cut;
    slow_preempt_while_preempting: SlowPreempt, Preempting => Cut;
    slow_preempt_while_paging: SlowPreempt, Paging => Cut;
    slow_preempt_while_resetting: SlowPreempt, Resetting => Reset;

    lost_interrupt_while_idle: LostInterrupt, Idle => Done;
    lost_interrupt_while_running: LostInterrupt, Running => Done;
    lost_interrupt_while_preempting: LostInterrupt, Preempting => Done;
    lost_interrupt_while_paging: LostInterrupt, Paging => Done;
    lost_interrupt_while_resetting: LostInterrupt, Resetting => Reset;

    double_interrupt_while_idle: DoubleInterrupt, Idle => Done;
    double_interrupt_while_running: DoubleInterrupt, Running => Done;
    double_interrupt_while_preempting: DoubleInterrupt, Preempting => Done;
    double_interrupt_while_paging: DoubleInterrupt, Paging => Done;
    double_interrupt_while_resetting: DoubleInterrupt, Resetting => Reset;

    bogus_id_while_idle: BogusId, Idle => Done;
    bogus_id_while_running: BogusId, Running => Reset;
    bogus_id_while_preempting: BogusId, Preempting => Reset;
    bogus_id_while_paging: BogusId, Paging => Done;
    bogus_id_while_resetting: BogusId, Resetting => Reset;

    paging_hang_while_idle: PagingHang, Idle => Reset;
    paging_hang_while_running: PagingHang, Running => Reset;
    paging_hang_while_preempting: PagingHang, Preempting => Reset;
    paging_hang_while_paging: PagingHang, Paging => Either;
    paging_hang_while_resetting: PagingHang, Resetting => Reset;

    reset_failure_while_idle: ResetFailure, Idle => Reset;
    reset_failure_while_running: ResetFailure, Running => Reset;
    reset_failure_while_preempting: ResetFailure, Preempting => Reset;
    reset_failure_while_paging: ResetFailure, Paging => Reset;
    reset_failure_while_resetting: ResetFailure, Resetting => Reset;
}

fn main() -> ExitCode {
    suite::main(TESTS)
}

/// Bytes of a bystander's object.
const SIZE: u64 = 256 << 10;
/// Jobs of each engine.
const JOBS: usize = 12;

/// A piece of work that ends by itself, and what it does.
struct Work<'a> {
    job: Job<'a>,
    /// Where it counts itself.
    slot: usize,
}

/// Work on both engines, of an innocent.
fn start<'a>(rig: &'a Rig, program: &Buffer, counts: &Buffer, moves: &Buffer) -> Vec<Work<'a>> {
    let mut all = Vec::new();
    for n in 0..JOBS {
        let (computes, copies) = (8 * n, 8 * (JOBS + n));
        let count = dispatch(program, COUNT, &address(counts.va + computes as u64));
        let copied = [
            fill(1, moves.va + 64 * n as u64, 8),
            copy(moves.va + 64 * n as u64, counts.va + copies as u64, 4),
        ];
        for (engine, slot, commands) in [
            (Engine::Compute, computes, &[count][..]),
            (Engine::Copy, copies, &copied),
        ] {
            // A reset may have been faster.
            if let Ok(job) = rig.start_after(rig.context(engine), commands, &[]) {
                all.push(Work { job, slot });
            }
        }
    }
    all
}

fn attempt(fault: Fault, phase: Phase, end: End) {
    expect_error("the adapter was reset").expect("the kernel's log");
    let resets = || {
        let [adapter] = Function::first().counters(["driver_adapter_resets"]);
        adapter
    };
    let [rig, other, guilty] = [(); 3].map(|()| Rig::new().having_worked());
    let (program, endless) = (rig.program(COUNT), guilty.program(LOOP));
    let counts = rig.buffer(Place::System, 4096);
    let moves = rig.buffer(Place::Vram, 4096);
    // What nobody works on; in VRAM, and in system memory.
    let rests = Place::ALL.map(|place| other.buffer(place, SIZE));
    for rest in &rests {
        rest.cpu.fill(pattern(5));
    }
    let hold = Hold::new(&other);
    let important = other.buffer(Place::System, 4096);
    let [low, high] = [-7, 7].map(|priority| {
        let context = other.context_having_worked(Engine::Compute);
        assert_eq!(other.prioritise(context, priority), Ok(()));
        context
    });
    let before = resets();
    let mut engaged = None;
    if phase == Phase::Running || phase == Phase::Preempting {
        engaged = Some(hold.begin(&other, low));
    }
    let moving = AtomicBool::new(phase == Phase::Paging);
    thread::scope(|scope| {
        let pages = scope.spawn(|| {
            while moving.load(Relaxed) {
                evict_some();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let lies = Lies::tell(fault.lies()).expect("gpu-lie");
        let reset = (phase == Phase::Resetting).then(|| {
            let asked = scope.spawn(|| Function::first().debugfs("reset"));
            thread::sleep(Duration::from_millis(2));
            asked
        });
        let urgent =
            (phase == Phase::Preempting).then(|| other.start_in(high, &[write(important.va, 1)]));
        let paged = (fault == Fault::PagingHang).then(|| {
            // Cleared before anybody sees it.
            let new = rig.bo(Place::Vram, SIZE);
            rig.map(new)
        });
        let hangs = matches!(fault, Fault::Hang | Fault::ResetFailure);
        let hung = hangs.then(|| {
            let command = dispatch(&endless, LOOP, &[]);
            guilty.start_after(guilty.compute, &[command], &[]).ok()
        });
        let work = start(&rig, &program, &counts, &moves);
        // What was begun may end, but for what is asked to make room: not soon.
        let begin = Instant::now();
        let is_over = || urgent.as_ref().is_none_or(Job::has_ended);
        while !is_over() && begin.elapsed() < Duration::from_secs(2) * suite::patience() {
            thread::sleep(Duration::from_millis(5));
        }
        hold.release();

        let wait = |job: &Job<'_>| job.client().wait_for(job.syncobj, 4 * PATIENCE);
        let ends: Vec<_> = work.iter().map(|work| wait(&work.job)).collect();
        let urgent = urgent.as_ref().map(wait);
        let engaged = engaged.as_ref().map(wait);
        let hung = hung.flatten().as_ref().map(wait);
        if let Some(paged) = paged {
            paged.expect("new memory", |_| 0);
        }
        if let Some(reset) = reset {
            let done = reset.join().expect("a thread");
            println!("# by debugfs: {done:?}");
        }
        moving.store(false, Relaxed);
        pages.join().expect("a thread");
        drop(lies);
        if end == End::Reset {
            // It is counted when it is over, behind the fences.
            let counted = eventually(|| (resets() > before).then_some(()));
            assert!(counted.is_some(), "the adapter was not reset: {ends:?}");
        }
        let resets = resets() - before;
        let done = ends.iter().filter(|end| end.is_ok()).count();
        println!("# {done} of {} done, urgent {urgent:?}", ends.len());
        println!("# engaged {engaged:?}, hung {hung:?}, {resets} adapter resets");

        if end != End::Either {
            assert_eq!(resets > 0, end == End::Reset, "{resets} adapter resets");
        }
        // Who is innocent.
        let is_good = |end: &Result<(), Errno>| match end {
            Ok(()) => true,
            Err(errno) => resets > 0 && *errno == Errno::ECANCELED,
        };
        assert!(
            ends.iter().chain(&urgent).all(is_good),
            "{ends:?}, {urgent:?}"
        );
        assert!(resets > 0 || ends.len() == 2 * JOBS, "work was refused");
        for (work, end) in work.iter().zip(&ends) {
            let count = counts.cpu.read32(work.slot);
            assert!(count <= 1, "slot {} was done {count} times", work.slot);
            assert!(end.is_err() || count == 1, "slot {}: {count}", work.slot);
        }
        // Who may be guilty, since he did not stop.
        let is_known = |job: Result<(), Errno>| match job {
            Err(Errno::ETIME) => end != End::Done,
            job => is_good(&job),
        };
        assert!(engaged.is_none_or(is_known), "{engaged:?}");
        // Who is.
        let is_cut = |job| job == Err(Errno::ETIME) || (resets > 0 && job == Err(Errno::ECANCELED));
        assert!(hung.is_none_or(is_cut), "{hung:?}");
        for rest in &rests {
            let lost = other.info(rest.handle).expect("BO_INFO").content_lost == 1;
            assert!(!lost || resets > 0, "lost without a reset");
            let content = pattern(5);
            let what = format!("lost {lost}");
            rest.cpu
                .expect(&what, |at| if lost { 0 } else { content(at) });
        }
    });
    expect_working();
}
