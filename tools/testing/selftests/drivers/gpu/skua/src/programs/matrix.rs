// SPDX-License-Identifier: MIT

//! What goes wrong, against what the device does just then: whatever meets, every fence signals,
//! who is innocent ends with right results, and the machine goes on.
//!
//! A cell is a test of its own, `FAULT_while_PHASE`. It fails if the device was not in that phase
//! when the fault began, or if the fault did not happen: by what the device says of its lies, and
//! by what the driver counts. `guests.json` gives this program a driver that is soon out of
//! patience, and bears any number of adapter resets.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use skua_guest::host::{expect_error, Lies};
use skua_selftests::client::{signal_value, wait_value as until, PATIENCE};
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{pattern, while_all_is_evicted, Uncleared};
use skua_selftests::program::{address, COUNT, LOOP};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, expect_working, fill, wait_value, write, Buffer, Job};
use skua_selftests::suite::{self, eventually, within, Test};
use skua_selftests::witness::expect_areas;
use skua_selftests::{tests, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_uapi::drm_skua_sync;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Work does not end; the device is honest.
    Hang,
    /// Requests to stop are ignored.
    NoPreempt,
    /// They are heard when the driver has given up.
    SlowPreempt,
    /// They are heard late, but in time; not where an engine was deaf before.
    LatePreempt,
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
    /// Every fault that is ordered.
    const ALL: [Self; 9] = [
        Self::Hang,
        Self::NoPreempt,
        Self::SlowPreempt,
        Self::LatePreempt,
        Self::LostInterrupt,
        Self::DoubleInterrupt,
        Self::BogusId,
        Self::PagingHang,
        Self::ResetFailure,
    ];

    /// What the device is to say, or not to do.
    fn lies(self) -> &'static str {
        match self {
            Self::Hang => "",
            Self::NoPreempt => "preempt-never",
            Self::SlowPreempt => "preempt-late=5000",
            Self::LatePreempt => "preempt-late=200",
            Self::LostInterrupt => "interrupt-lost preempt-interrupt-lost",
            Self::DoubleInterrupt => "interrupt-doubled preempt-interrupt-doubled",
            Self::BogusId => "preempt-completed-ahead",
            // Of the engine alone that the driver keeps to itself, the third.
            Self::PagingHang => "fence-stays=4 preempt-never",
            Self::ResetFailure => "engine-reset-never preempt-never",
        }
    }

    /// The lies that have to be told in this phase; none where the device is honest.
    fn told(self, phase: Phase) -> &'static [&'static str] {
        let is_asked = phase == Phase::Preempting;
        match self {
            Self::Hang => &[],
            Self::NoPreempt => &["preempt-never"],
            Self::SlowPreempt | Self::LatePreempt => &["preempt-late"],
            Self::LostInterrupt if is_asked => &["interrupt-lost", "preempt-interrupt-lost"],
            Self::LostInterrupt => &["interrupt-lost"],
            Self::DoubleInterrupt if is_asked => {
                &["interrupt-doubled", "preempt-interrupt-doubled"]
            }
            Self::DoubleInterrupt => &["interrupt-doubled"],
            Self::BogusId => &["preempt-completed-ahead"],
            Self::PagingHang => &["fence-stays"],
            Self::ResetFailure => &["preempt-never", "engine-reset-never"],
        }
    }

    /// Whether an engine has to be asked to stop for it.
    fn is_of_preemption(self) -> bool {
        matches!(
            self,
            Self::NoPreempt | Self::SlowPreempt | Self::LatePreempt | Self::BogusId
        )
    }

    /// Whether requests to stop wait while it lasts.
    fn withholds_preemptions(self) -> bool {
        self.lies().contains("preempt-never") || self == Self::SlowPreempt
    }

    /// Whether work does not end.
    fn hangs(self) -> bool {
        matches!(self, Self::Hang | Self::ResetFailure)
    }
}

/// What the device does when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    Idle,
    /// The engine works.
    Running,
    /// It works for one, and was asked to stop for another one who is more important.
    Preempting,
    /// Objects move, out and in.
    Paging,
    /// An engine is being reset: it has not stopped in time.
    EngineResetting,
    /// The adapter is being reset.
    Resetting,
}

impl Phase {
    /// Every phase that a fault can come in.
    const ALL: [Self; 6] = [
        Self::Idle,
        Self::Running,
        Self::Preempting,
        Self::Paging,
        Self::EngineResetting,
        Self::Resetting,
    ];
}

/// What becomes of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All is done, but what never ends: nothing is reset but an engine.
    Done,
    /// The same, but that what an engine was working on may be cut, too.
    Cut,
    /// The adapter is reset: each piece of work is done, or was cancelled.
    Reset,
}

/// An entry for each cell: `name: fault, phase => end`.
macro_rules! cells {
    ($($name:ident: $fault:ident, $phase:ident => $end:ident;)*) => {
        $(fn $name() {
            attempt(Fault::$fault, Phase::$phase, End::$end, None);
        })*

        const CELLS: &[Test] = &[$(Test {
            name: stringify!($name),
            run: $name,
            seconds: 120,
            // A move of others would have the fault, or be in the way of the phase.
            at_rest: true,
        }),*];
    };
}

cells! {
    hang_while_idle: Hang, Idle => Done;
    hang_while_running: Hang, Running => Done;
    hang_while_preempting: Hang, Preempting => Done;
    hang_while_paging: Hang, Paging => Done;
    hang_while_engine_resetting: Hang, EngineResetting => Cut;
    hang_while_resetting: Hang, Resetting => Reset;

    no_preempt_while_idle: NoPreempt, Idle => Cut;
    no_preempt_while_running: NoPreempt, Running => Cut;
    no_preempt_while_preempting: NoPreempt, Preempting => Cut;
    no_preempt_while_paging: NoPreempt, Paging => Cut;
    no_preempt_while_engine_resetting: NoPreempt, EngineResetting => Cut;
    no_preempt_while_resetting: NoPreempt, Resetting => Reset;

    slow_preempt_while_idle: SlowPreempt, Idle => Cut;
    slow_preempt_while_running: SlowPreempt, Running => Cut;
    slow_preempt_while_preempting: SlowPreempt, Preempting => Cut;
    slow_preempt_while_paging: SlowPreempt, Paging => Cut;
    slow_preempt_while_engine_resetting: SlowPreempt, EngineResetting => Cut;
    slow_preempt_while_resetting: SlowPreempt, Resetting => Reset;

    late_preempt_while_idle: LatePreempt, Idle => Done;
    late_preempt_while_running: LatePreempt, Running => Done;
    late_preempt_while_preempting: LatePreempt, Preempting => Done;
    late_preempt_while_paging: LatePreempt, Paging => Done;
    late_preempt_while_resetting: LatePreempt, Resetting => Reset;

    lost_interrupt_while_idle: LostInterrupt, Idle => Done;
    lost_interrupt_while_running: LostInterrupt, Running => Done;
    lost_interrupt_while_preempting: LostInterrupt, Preempting => Done;
    lost_interrupt_while_paging: LostInterrupt, Paging => Done;
    lost_interrupt_while_engine_resetting: LostInterrupt, EngineResetting => Cut;
    lost_interrupt_while_resetting: LostInterrupt, Resetting => Reset;

    double_interrupt_while_idle: DoubleInterrupt, Idle => Done;
    double_interrupt_while_running: DoubleInterrupt, Running => Done;
    double_interrupt_while_preempting: DoubleInterrupt, Preempting => Done;
    double_interrupt_while_paging: DoubleInterrupt, Paging => Done;
    double_interrupt_while_engine_resetting: DoubleInterrupt, EngineResetting => Cut;
    double_interrupt_while_resetting: DoubleInterrupt, Resetting => Reset;

    bogus_id_while_idle: BogusId, Idle => Reset;
    bogus_id_while_running: BogusId, Running => Reset;
    bogus_id_while_preempting: BogusId, Preempting => Reset;
    bogus_id_while_paging: BogusId, Paging => Reset;
    bogus_id_while_engine_resetting: BogusId, EngineResetting => Reset;
    bogus_id_while_resetting: BogusId, Resetting => Reset;

    paging_hang_while_idle: PagingHang, Idle => Reset;
    paging_hang_while_running: PagingHang, Running => Reset;
    paging_hang_while_preempting: PagingHang, Preempting => Reset;
    paging_hang_while_paging: PagingHang, Paging => Reset;
    paging_hang_while_engine_resetting: PagingHang, EngineResetting => Reset;
    paging_hang_while_resetting: PagingHang, Resetting => Reset;

    reset_failure_while_idle: ResetFailure, Idle => Reset;
    reset_failure_while_running: ResetFailure, Running => Reset;
    reset_failure_while_preempting: ResetFailure, Preempting => Reset;
    reset_failure_while_paging: ResetFailure, Paging => Reset;
    reset_failure_while_engine_resetting: ResetFailure, EngineResetting => Reset;
    reset_failure_while_resetting: ResetFailure, Resetting => Reset;
}

pub(crate) fn main() -> ExitCode {
    let own: &[Test] = tests![
        a_fault_that_does_not_happen_is_missed: 300 at_rest,
        a_phase_that_is_not_met_is_missed: 300 at_rest,
    ];
    suite::main(&[CELLS, own].concat())
}

/// What a cell leaves out, to see that it fails then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Omission {
    /// The fault: the device is honest, and all work ends.
    Fault,
    /// Whatever brings the device into its phase; for that in which it has nothing to do, that it
    /// has not.
    Phase,
}

/// What a cell says without its fault.
const NO_FAULT: &str = "the fault did not happen";
/// What it says without its phase.
const NO_PHASE: &str = "the phase was not met";

fn a_fault_that_does_not_happen_is_missed() {
    for fault in Fault::ALL {
        expect_missed(fault, Phase::Running, Omission::Fault, NO_FAULT);
    }
}

fn a_phase_that_is_not_met_is_missed() {
    for phase in Phase::ALL {
        expect_missed(Fault::DoubleInterrupt, phase, Omission::Phase, NO_PHASE);
    }
}

/// The cell fails without what is left out, and says so.
#[track_caller]
fn expect_missed(fault: Fault, phase: Phase, omission: Omission, words: &str) {
    let failed = catch_unwind(|| attempt(fault, phase, End::Done, Some(omission)));
    let why = failed.expect_err("it does not fail");
    let why = why.downcast_ref::<String>().expect("words");
    assert!(why.contains(words), "{fault:?} while {phase:?}: {why}");
}

/// Bytes of a bystander's object.
const SIZE: u64 = 256 << 10;
/// Jobs of each engine.
const JOBS: usize = 12;

/// A piece of work that ends by itself, and what it does.
struct Work<'a> {
    /// What was submitted.
    job: Job<'a>,
    /// Where it counts itself, in bytes of [`Cast::counts`].
    slot: usize,
}

/// Where work that is held counts itself.
const HELD: u64 = 2048;

/// Work that is held for a value, what signals that, and who waits for what the former signals.
struct Held<'a> {
    /// Waits for value 1 of [`Cast::fence`], and signals 2; none if it was refused.
    held: Option<Job<'a>>,
    /// Signals value 1; none if it was refused.
    gives: Option<Job<'a>>,
    /// Is told of value 2.
    event: EventFd,
}

/// Who takes part: an innocent, two contexts of another one of which one is more important, and one
/// whose work may not end.
struct Cast {
    /// Whose work is to be done whatever fails.
    innocent: Rig,
    /// Whose more important work has the other make room.
    other: Rig,
    /// Whose work may not end.
    guilty: Rig,
    /// [`COUNT`], of the innocent.
    count: Buffer,
    /// Where [`COUNT`] and copies count what was done, by [`Work::slot`].
    counts: Buffer,
    /// VRAM that the innocent's copies go through.
    moves: Buffer,
    /// [`LOOP`], of the guilty.
    endless: Buffer,
    /// Where [`LOOP`] says that it has begun.
    begun: Buffer,
    /// Keeps a context of the other at work.
    hold: Hold,
    /// What the other's more important work writes to.
    important: Buffer,
    /// The other's less important context.
    low: u32,
    /// The other's more important context.
    high: u32,
    /// A monitored fence, for whose value 1 the innocent waits before anybody has promised it.
    fence: u32,
    /// The innocent's context whose work waits for that.
    held: u32,
}

impl Cast {
    fn new() -> Self {
        let [innocent, other, guilty] = [(); 3].map(|()| Rig::new().having_worked());
        let [low, high] = [-7, 7].map(|priority| {
            let context = other.context_having_worked(Engine::Compute);
            assert_eq!(other.prioritise(context, priority), Ok(()));
            context
        });
        Self {
            count: innocent.program(COUNT),
            counts: innocent.buffer(Place::System, 4096),
            moves: innocent.buffer(Place::Vram, 4096),
            endless: guilty.program(LOOP),
            begun: guilty.buffer(Place::System, 4096),
            hold: Hold::new(&other),
            fence: innocent.fence_create(0).expect("FENCE_CREATE"),
            held: innocent.context_having_worked(Engine::Copy),
            important: other.buffer(Place::System, 4096),
            innocent,
            other,
            guilty,
            low,
            high,
        }
    }

    /// Work of the innocent on both engines; a reset may have been faster.
    fn start(&self) -> Vec<Work<'_>> {
        let mut all = Vec::new();
        for n in 0..JOBS {
            let (computes, copies) = (8 * n, 8 * (JOBS + n));
            let target = address(self.counts.va + computes as u64);
            let moved = self.moves.va + 64 * n as u64;
            let copied = [
                fill(1, moved, 8),
                copy(moved, self.counts.va + copies as u64, 4),
            ];
            for (engine, slot, commands) in [
                (
                    Engine::Compute,
                    computes,
                    &[dispatch(&self.count, COUNT, &target)][..],
                ),
                (Engine::Copy, copies, &copied),
            ] {
                let context = self.innocent.context(engine);
                if let Ok(job) = self.innocent.start_after(context, commands, &[]) {
                    all.push(Work { job, slot });
                }
            }
        }
        all
    }

    /// Work of the innocent that is held for a value, who waits for what that signals, and work
    /// that signals the value; a reset may have been faster.
    fn hold_back(&self) -> Held<'_> {
        let start = |context, commands: &[Command], syncs: &[drm_skua_sync]| {
            self.innocent.start_after(context, commands, syncs).ok()
        };
        let syncs = [until(self.fence, 1), signal_value(self.fence, 2)];
        let held = start(self.held, &[write(self.counts.va + HELD, 1)], &syncs);
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).expect("eventfd");
        let told = self.innocent.fence_eventfd(self.fence, 2, &event);
        assert_eq!(told, Ok(()), "FENCE_EVENTFD");
        let gives = start(self.innocent.compute, &[], &[signal_value(self.fence, 1)]);
        Held { held, gives, event }
    }

    /// New contexts of the innocent do what they are told, with what they have mapped, whatever
    /// became of the old ones.
    #[track_caller]
    fn expect_new_contexts(&self) {
        let program = self.innocent.program(COUNT);
        let moved = self.moves.va + 1024;
        let [counted, copied] = [1024, 1032];
        let works = [
            vec![dispatch(
                &program,
                COUNT,
                &address(self.counts.va + counted),
            )],
            vec![fill(3, moved, 8), copy(moved, self.counts.va + copied, 8)],
        ];
        for (engine, work) in Engine::ALL.into_iter().zip(works) {
            let context = self.innocent.new_context(engine);
            let job = self.innocent.start_in(context, &work);
            assert_eq!(job.wait(), Ok(()), "a new context, {engine:?}");
        }
        let found = [counted, copied].map(|at| self.counts.cpu.read(at as usize));
        assert_eq!(found, [1, 3 << 32 | 3], "new contexts");
        let context = self.other.new_context(Engine::Compute);
        assert_eq!(self.other.prioritise(context, 7), Ok(()));
        let job = (self.other).start_in(context, &[write(self.important.va + 8, 7)]);
        assert_eq!((job.wait(), self.important.cpu.read(8)), (Ok(()), 7));
    }

    /// Work that does not end, unless it is refused.
    fn hang(&self) -> Option<Job<'_>> {
        let endless = dispatch(&self.endless, LOOP, &[]);
        let commands = [write(self.begun.va, 1), endless];
        let context = self.guilty.compute;
        self.guilty.start_after(context, &commands, &[]).ok()
    }

    /// Work that waits on the copy engine for what does not come, unless it is refused.
    fn wait(&self) -> Option<Job<'_>> {
        let commands = [wait_value(self.begun.va + 8, 1)];
        let context = self.guilty.copy;
        self.guilty.start_after(context, &commands, &[]).ok()
    }

    /// Work that ends when it is released, and has begun.
    #[track_caller]
    fn engage(&self) -> Job<'_> {
        self.hold.begin(&self.other, self.low)
    }

    /// Work for which that has to make room.
    fn press(&self) -> Job<'_> {
        self.other
            .start_in(self.high, &[write(self.important.va, 1)])
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        // A cell that fails would leave it to the next one.
        self.hold.release();
    }
}

/// What became of work.
#[derive(Debug)]
struct Ends {
    /// What the innocent's did, by where it counts itself.
    work: Vec<(usize, Result<(), Errno>)>,
    /// Who is more important.
    urgent: Option<Result<(), Errno>>,
    /// Who may not have made room.
    engaged: Option<Result<(), Errno>>,
    /// Who does not end.
    hung: Option<Result<(), Errno>>,
    /// Who is held, and who lets him go.
    held: Option<Result<(), Errno>>,
    gives: Option<Result<(), Errno>>,
    /// Whether who waits for a value of the former is told.
    told: bool,
}

impl Ends {
    /// Of all that is under way, other `work`, and what is `held`. What was engaged is released
    /// when what has to overtake it has, or does not soon.
    fn of(scene: &Scene<'_>, work: &[Work<'_>], held: &Held<'_>) -> Self {
        let begin = Instant::now();
        let is_over = || scene.urgent.as_ref().is_none_or(Job::has_ended);
        while !is_over() && begin.elapsed() < Duration::from_secs(2) * suite::patience() {
            thread::sleep(Duration::from_millis(5));
        }
        scene.cast.hold.release();
        let wait = |job: &Job<'_>| job.client().wait_for(job.syncobj, 4 * PATIENCE);
        let ends = work.iter().map(|work| (work.slot, wait(&work.job)));
        let ends = Self {
            work: ends.collect(),
            urgent: scene.urgent.as_ref().map(wait),
            engaged: scene.engaged.as_ref().map(wait),
            hung: scene.hung.as_ref().map(wait),
            held: held.held.as_ref().map(wait),
            gives: held.gives.as_ref().map(wait),
            // Nobody has promised the value if that was refused.
            told: held.held.is_some()
                && within(80, || (held.event.read() == Ok(1)).then_some(())).is_some(),
        };
        if let Some(paged) = &scene.paged {
            paged.expect("new memory", |_| 0);
        }
        ends
    }

    /// All of it is as it may be, when the adapter was reset so often.
    #[track_caller]
    fn expect(&self, cast: &Cast, end: End, resets: u64) {
        let done = self.work.iter().filter(|(_, end)| end.is_ok()).count();
        println!(
            "# {done} of {} done, {resets} adapter resets",
            self.work.len()
        );
        let is_good = |end: &Result<(), Errno>| match end {
            Ok(()) => true,
            Err(errno) => resets > 0 && *errno == Errno::ECANCELED,
        };
        // Who is innocent.
        let ends = self.work.iter().map(|(_, end)| end);
        let ends = ends.chain(&self.urgent);
        let fences = [&self.held, &self.gives];
        assert!(
            ends.chain(fences.into_iter().flatten()).all(is_good),
            "{self:?}"
        );
        let all = self.work.len() == 2 * JOBS && fences.iter().all(|end| end.is_some());
        assert!(resets > 0 || all, "work was refused");
        assert_eq!(self.told, self.held.is_some(), "an eventfd is not told");
        let written = cast.counts.cpu.read(HELD as usize);
        assert_eq!(written, u64::from(self.held == Some(Ok(()))), "{self:?}");
        for (slot, end) in &self.work {
            let count = cast.counts.cpu.read32(*slot);
            assert!(count <= 1, "slot {slot} was done {count} times");
            assert!(end.is_err() || count == 1, "slot {slot}: {count}");
        }
        // Who may be guilty, since he did not stop.
        let is_known = |job: Result<(), Errno>| match job {
            Err(Errno::ETIME) => end != End::Done,
            job => is_good(&job),
        };
        assert!(self.engaged.is_none_or(is_known), "{self:?}");
        // Who is.
        let is_cut = |end| end == Err(Errno::ETIME) || (resets > 0 && end == Err(Errno::ECANCELED));
        assert!(self.hung.is_none_or(is_cut), "{self:?}");
    }
}

/// What the driver has counted.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// Requests to an engine to stop.
    asked: u64,
    /// Moves, out and in.
    moves: u64,
    /// Engine resets, also those that are not over.
    engine_resets: u64,
    /// Adapter resets.
    resets: u64,
}

impl Counts {
    #[track_caller]
    fn now() -> Self {
        let [asked, out, back, engine_resets, resets] = Function::first().counters([
            "driver_preemptions",
            "driver_evictions",
            "driver_promotions",
            "driver_engine_resets",
            "driver_adapter_resets",
        ]);
        Self {
            asked,
            moves: out + back,
            engine_resets,
            resets,
        }
    }
}

/// Whether all engines have done what they had to do.
#[track_caller]
fn is_idle() -> bool {
    let rings = Function::first().debugfs("rings").expect("debugfs");
    let mut engines = rings.lines().filter(|line| line.starts_with("engine "));
    engines.all(|engine| engine.contains("device Some(Idle)") && engine.contains("in flight 0 "))
}

/// What is under way in a cell.
struct Scene<'a> {
    /// Whose work it is.
    cast: &'a Cast,
    /// The device's lies.
    lies: &'a Lies,
    /// Before what the phase is about began.
    before: Counts,
    /// The other's less important work, if it was begun: it does not end before it is released.
    engaged: Option<Job<'a>>,
    /// The other's more important work, if it was begun, for which that makes room.
    urgent: Option<Job<'a>>,
    /// The guilty's work, if it was begun.
    hung: Option<Job<'a>>,
    /// New memory, which is cleared before anybody sees it.
    paged: Option<Mapping>,
}

impl<'a> Scene<'a> {
    /// Has the fault find what it needs, but for work that is still to come.
    #[track_caller]
    fn provoke(&mut self, fault: Fault) {
        if fault.is_of_preemption() && self.engaged.is_none() {
            self.engaged = Some(self.cast.engage());
        }
        if fault.hangs() {
            self.hung = self.cast.hang();
        }
        if fault == Fault::PagingHang {
            let new = self.cast.innocent.bo(Place::Vram, SIZE);
            self.paged = Some(self.cast.innocent.map(new));
        }
    }

    /// The same, and all the work that is needed: until the fault has happened.
    #[track_caller]
    fn bring_about(&mut self, fault: Fault) {
        self.provoke(fault);
        if fault.hangs() {
            let begun = || (self.cast.begun.cpu.read(0) == 1).then_some(());
            assert!(eventually(begun).is_some(), "{NO_FAULT}: it does not begin");
        } else if fault != Fault::PagingHang {
            if self.engaged.is_none() {
                self.engaged = Some(self.cast.engage());
            }
            self.urgent = Some(self.cast.press());
        }
        let happened = || self.has_told(fault, Phase::Resetting).then_some(());
        assert!(eventually(happened).is_some(), "{NO_FAULT}: {fault:?}");
    }

    /// Whether the device has told each of the lies.
    #[track_caller]
    fn has_told(&self, fault: Fault, phase: Phase) -> bool {
        let told = |lie: &&str| self.lies.told(lie).expect("gpu-told");
        fault.told(phase).iter().all(|lie| told(lie) > 0)
    }

    /// Whether what is engaged goes on.
    fn is_engaged(&self) -> bool {
        let mut engaged = self.engaged.iter().chain(&self.urgent);
        self.engaged.is_some() && engaged.all(|job| !job.has_ended())
    }

    /// Asserts that the device is in this phase now, or soon if that is `likely`.
    #[track_caller]
    fn expect(&self, phase: Phase, likely: bool) {
        let seconds = if likely { 20 } else { 1 };
        let met = match phase {
            Phase::Idle => is_idle(),
            Phase::Running => self.is_engaged(),
            Phase::Preempting => {
                // What is late may have been heard since.
                let was_late = self.has_told(Fault::LatePreempt, phase);
                let is_asked = Counts::now().asked > self.before.asked;
                is_asked && (self.is_engaged() || was_late)
            }
            Phase::Paging => {
                let moves = || {
                    // Work brings in what has left.
                    let used = [fill(1, self.cast.moves.va + 2048, 8)];
                    assert_eq!(self.cast.innocent.run(Engine::Copy, &used), Ok(()));
                    (Counts::now().moves > self.before.moves + 2).then_some(())
                };
                within(seconds, moves).is_some()
            }
            Phase::EngineResetting => {
                let begun = || {
                    let begun = Counts::now().engine_resets > self.before.engine_resets;
                    (begun && self.is_engaged()).then_some(())
                };
                within(seconds, begun).is_some() && !Function::first().quarantine().0
            }
            Phase::Resetting => {
                let begun = || Function::first().quarantine().0.then_some(());
                within(seconds, begun).is_some()
            }
        };
        assert!(met, "{NO_PHASE}: {phase:?}");
    }
}

/// One cell, or one that leaves something out.
fn attempt(fault: Fault, phase: Phase, end: End, omission: Option<Omission>) {
    let moves = phase == Phase::Paging && omission != Some(Omission::Phase);
    let cell = || {
        expect_error("the adapter was reset").expect("the kernel's log");
        let cast = Cast::new();
        // What nobody works on; in VRAM, and in system memory.
        let rests = Place::ALL.map(|place| cast.other.buffer(place, SIZE));
        for rest in &rests {
            rest.cpu.fill(pattern(5));
        }
        let before = Counts::now();
        let ends = meet(&cast, before, fault, phase, omission);
        if end == End::Reset {
            // It is counted when it is over, behind the fences.
            let counted = eventually(|| (Counts::now().resets > before.resets).then_some(()));
            assert!(counted.is_some(), "the adapter was not reset: {ends:?}");
        }
        let resets = Counts::now().resets - before.resets;
        assert_eq!(resets > 0, end == End::Reset, "{resets} adapter resets");
        ends.expect(&cast, end, resets);
        cast.expect_new_contexts();
        for rest in &rests {
            let info = cast.other.info(rest.handle).expect("BO_INFO");
            let lost = info.content_lost == 1;
            assert!(!lost || resets > 0, "lost without a reset");
            let content = pattern(5);
            let what = format!("lost {lost}");
            rest.cpu
                .expect(&what, |at| if lost { 0 } else { content(at) });
        }
    };
    match moves {
        true => while_all_is_evicted(cell),
        false => cell(),
    }
    expect_working();
    expect_areas();
}

/// Has the device be in a phase, and then the fault happen; until all work has ended.
#[track_caller]
fn meet(
    cast: &Cast,
    before: Counts,
    fault: Fault,
    phase: Phase,
    omission: Option<Omission>,
) -> Ends {
    let is_met = omission != Some(Omission::Phase);
    let happens = omission != Some(Omission::Fault);
    let untrue = if happens { fault.lies() } else { "" };
    // It is there already when the request is made that it leaves unanswered.
    let is_there = phase == Phase::Preempting
        && (fault.withholds_preemptions() || fault == Fault::LatePreempt);
    thread::scope(|scope| {
        // Nothing but what is said here is under way when the device lies.
        let _uncleared = Uncleared::new();
        let lies = Lies::tell("").expect("gpu-lie");
        let change = |to: &str| lies.change(to).expect("gpu-lie");
        let mut scene = Scene {
            cast,
            lies: &lies,
            before,
            engaged: None,
            urgent: None,
            hung: None,
            paged: None,
        };
        let mut reset = None;
        match phase {
            Phase::Idle if is_met => {
                let rest = eventually(|| is_idle().then_some(()));
                assert!(rest.is_some(), "{NO_PHASE}: no rest");
            }
            Phase::Idle => scene.engaged = Some(cast.engage()),
            Phase::Running => scene.engaged = is_met.then(|| cast.engage()),
            Phase::Preempting => {
                scene.engaged = Some(cast.engage());
                scene.before = Counts::now();
                change(if is_there { untrue } else { "preempt-never" });
                scene.urgent = is_met.then(|| cast.press());
            }
            Phase::Paging => (),
            Phase::EngineResetting => {
                // For itself it would be reset, too, some time.
                scene.engaged = is_met.then(|| cast.engage());
                scene.before = Counts::now();
                // Under way until the lies change.
                let deaf = match fault.withholds_preemptions() {
                    true => "",
                    false => "preempt-never=1",
                };
                change(&format!("{untrue} {deaf} engine-reset-never"));
                scene.urgent = is_met.then(|| cast.press());
            }
            Phase::Resetting => {
                // Under way until the lies change.
                change(&format!("{untrue} adapter-reset-never"));
                scene.bring_about(fault);
                reset = is_met.then(|| scope.spawn(|| Function::first().debugfs("reset")));
            }
        }
        scene.expect(phase, is_met);
        let moves = match phase {
            Phase::Paging => Some(Counts::now().moves),
            _ => None,
        };
        let mut work = Vec::new();
        if phase == Phase::EngineResetting {
            scene.provoke(fault);
            if fault == Fault::BogusId {
                // The other engine is asked, and answers.
                scene.hung = cast.wait();
            }
            work = cast.start();
            if fault == Fault::BogusId {
                let told = eventually(|| scene.has_told(fault, phase).then_some(()));
                assert!(told.is_some(), "{NO_FAULT}: nobody was asked");
            } else {
                // That has the adapter reset at once.
                scene.expect(phase, false);
            }
        }
        let held = cast.hold_back();
        let is_resetting = matches!(phase, Phase::EngineResetting | Phase::Resetting);
        let was_told = is_resetting && scene.has_told(fault, phase);
        if !is_there {
            change(untrue);
        }
        if happens && !is_resetting {
            scene.provoke(fault);
        }
        if work.is_empty() {
            work = cast.start();
        }
        if happens && fault.is_of_preemption() {
            // What work needs may have to come back first, and an engine that works for who is
            // released too early hears nothing any more.
            let heard = || (was_told || scene.has_told(fault, phase)).then_some(());
            assert!(eventually(heard).is_some(), "{NO_FAULT}: nobody was asked");
        }
        let ends = Ends::of(&scene, &work, &held);
        if let Some(reset) = reset {
            let done = reset.join().expect("a thread");
            println!("# by debugfs: {done:?}");
        }
        if let Some(moves) = moves {
            let moved = || (Counts::now().moves > moves).then_some(());
            assert!(eventually(moved).is_some(), "{NO_PHASE}: nothing moved");
        }
        let happened = match fault {
            Fault::Hang => ends.hung.is_some(),
            _ => was_told || scene.has_told(fault, phase),
        };
        assert!(happened, "{NO_FAULT}: {fault:?}, {ends:?}");
        ends
    })
}
