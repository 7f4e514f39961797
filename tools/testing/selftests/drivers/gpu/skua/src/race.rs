// SPDX-License-Identifier: MIT

//! In which order jobs and threads come that wait at the same time.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use skua_spec::command::Command;
use skua_spec::isa::Op;

use crate::client::wait;
use crate::program::{address, op, op_imm, EXIT, POLL};
use crate::rig::{dispatch, fill, wait_value, write, Buffer, Job};
use crate::suite::eventually;
use crate::{Engine, Place, Rig};

/// Takes a number from the counter at arguments 0 and 1, and puts it to arguments 2 and 3.
pub const TAKE_A_NUMBER: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Arg, 4, 0, 0, 2),
    op(Op::Arg, 5, 0, 0, 3),
    op_imm(Op::Mov, 6, 0, 1),
    op(Op::AtomAdd, 7, 2, 6, 0),
    op(Op::St32, 7, 4, 0, 0),
    EXIT,
];

/// Opens to several contexts at once.
pub struct Gate<'a> {
    open: Buffer,
    /// On another engine, as one that waits does not hold its own.
    blocker: Job<'a>,
}

impl<'a> Gate<'a> {
    /// A closed gate, at which nothing waits yet.
    #[track_caller]
    pub fn new(rig: &'a Rig) -> Self {
        let open = rig.buffer(Place::System, 4096);
        let blocker = rig.start(Engine::Copy, &[wait_value(open.va, 1)]);
        Self { open, blocker }
    }

    /// Submits commands to a context that go on when the gate is open.
    #[track_caller]
    pub fn start_in(&self, rig: &'a Rig, context: u32, commands: &[Command]) -> Job<'a> {
        rig.start_after(context, commands, &[wait(self.blocker.syncobj)])
            .unwrap_or_else(|errno| panic!("SUBMIT: {errno}"))
    }

    /// Lets all go on that waits at the gate, once and for all.
    #[track_caller]
    pub fn open(&self) {
        self.open.cpu.write(0, 1);
        assert_eq!(self.blocker.wait(), Ok(()));
    }
}

/// Keeps the compute engine at work for as long as a test wants. Unlike a WAIT it does not give way
/// by itself.
pub struct Hold {
    /// [`POLL`].
    program: Buffer,
    /// What it polls, and in the second word whether it has begun.
    released: Buffer,
}

impl Hold {
    /// Holds work that begins from now on, until it is released.
    #[track_caller]
    pub fn new(rig: &Rig) -> Self {
        Self {
            program: rig.program(POLL),
            released: rig.buffer(Place::System, 4096),
        }
    }

    /// A job that has begun, and ends when it is released.
    ///
    /// # Panics
    ///
    /// If it does not begin.
    #[track_caller]
    pub fn begin<'a>(&self, rig: &'a Rig, context: u32) -> Job<'a> {
        let job = rig.start_in(context, &[write(self.released.va + 8, 1), self.command()]);
        let begun = || (self.released.cpu.read(8) == 1).then_some(());
        assert!(eventually(begun).is_some(), "it does not begin");
        job
    }

    /// Ends when it is released.
    pub fn command(&self) -> Command {
        dispatch(&self.program, POLL, &address(self.released.va))
    }

    /// Lets all go on that it holds.
    pub fn release(&self) {
        self.released.cpu.write(0, 1);
    }
}

/// Jobs of the compute engine that take numbers.
pub struct Race<'a> {
    rig: &'a Rig,
    /// [`TAKE_A_NUMBER`].
    program: Buffer,
    /// The next number; behind it the one that each job took.
    line: Buffer,
    gate: Gate<'a>,
    /// Contexts that have entered.
    contexts: BTreeSet<u32>,
    jobs: Vec<Job<'a>>,
}

impl<'a> Race<'a> {
    /// A race whose threads wait for its beginning.
    #[track_caller]
    pub fn new(rig: &'a Rig) -> Self {
        Self {
            rig,
            program: rig.program(TAKE_A_NUMBER),
            line: rig.buffer(Place::System, 8192),
            gate: Gate::new(rig),
            contexts: BTreeSet::new(),
            jobs: Vec::new(),
        }
    }

    /// The next job, of a context.
    #[track_caller]
    pub fn enter(&mut self, context: u32) {
        self.enter_with(context, &[]);
    }

    /// The next job, of a context, which does something else first.
    #[track_caller]
    pub fn enter_with(&mut self, context: u32, first: &[Command]) {
        let slot = self.line.va + 4 + 4 * self.jobs.len() as u64;
        let arguments = [address(self.line.va), address(slot)].concat();
        let mut work = first.to_vec();
        work.push(dispatch(&self.program, TAKE_A_NUMBER, &arguments));
        // The others of a context are behind its first one anyway, so that few are to be woken.
        self.jobs.push(match self.contexts.insert(context) {
            true => self.gate.start_in(self.rig, context, &work),
            false => self.rig.start_in(context, &work),
        });
    }

    /// Lets it begin.
    #[track_caller]
    pub fn begin(&self) {
        self.gate.open();
    }

    /// How many numbers are taken.
    #[track_caller]
    pub fn taken(&self) -> u32 {
        self.line.cpu.read32(0)
    }

    /// Which of all the job number `job` was, in the order in which they entered; 0 also if it was
    /// not yet.
    pub fn number(&self, job: usize) -> u32 {
        self.line.cpu.read32(4 * (job + 1))
    }

    /// Lets it begin, if it has not; which of all each job was, in the order in which they entered.
    #[track_caller]
    pub fn run(&self) -> Vec<u32> {
        self.begin();
        for job in &self.jobs {
            assert_eq!(job.wait(), Ok(()));
        }
        (0..self.jobs.len()).map(|job| self.number(job)).collect()
    }
}

/// A thread that is in a call, watched from outside.
#[derive(Debug, Default)]
pub struct Caller(AtomicU64);

impl Caller {
    /// Nobody calls yet.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Calls in this thread.
    pub fn call<R>(&self, function: impl FnOnce() -> R) -> R {
        let tid = u64::try_from(nix::unistd::gettid().as_raw()).expect("an id");
        self.0.store(tid, Ordering::SeqCst);
        function()
    }

    /// How often the thread has run, if it sleeps now.
    pub fn asleep(&self) -> Option<u64> {
        let path = format!("/proc/self/task/{}/status", self.0.load(Ordering::SeqCst));
        let status = fs::read_to_string(path).ok()?;
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let switches = |name| line(name)?.trim().parse::<u64>().ok();
        line("State:")?.trim().starts_with('S').then_some(())?;
        Some(switches("voluntary_ctxt_switches:")? + switches("nonvoluntary_ctxt_switches:")?)
    }

    /// Returns when the thread has slept for a while: it waits for something.
    ///
    /// # Panics
    ///
    /// If it does not.
    #[track_caller]
    pub fn wait_until_asleep(&self) {
        let sleeps = || {
            let before = self.asleep()?;
            thread::sleep(Duration::from_millis(100));
            (self.asleep()? == before).then_some(())
        };
        assert!(eventually(sleeps).is_some(), "it does not wait");
    }
}

/// A context for computing with this priority.
#[track_caller]
pub fn context(rig: &Rig, priority: i32) -> u32 {
    let context = rig.context_having_worked(Engine::Compute);
    assert_eq!(rig.prioritise(context, priority), Ok(()), "{priority}");
    context
}

/// The same, which is as important among those of its process.
#[track_caller]
pub fn within(rig: &Rig, priority: i32) -> u32 {
    let context = rig.context_having_worked(Engine::Compute);
    assert_eq!(
        rig.prioritise_within(context, priority),
        Ok(()),
        "{priority}"
    );
    context
}

/// Where jobs with these numbers begin and end among all.
pub fn extent(numbers: &[u32]) -> (u32, u32) {
    let most = numbers.iter().max().expect("jobs");
    (*numbers.iter().min().expect("jobs"), *most)
}

/// Jobs of so many ticks, about, until there are `total`, all from one buffer; the last one. They
/// wait for the gate, if there is one.
pub fn load<'a>(
    rig: &'a Rig,
    gate: Option<&Gate<'a>>,
    context: u32,
    va: u64,
    (ticks, total): (u64, u64),
) -> Job<'a> {
    let work: Vec<Command> = (0..ticks.div_ceil(65_536))
        .map(|n| fill(1, va, 64 * (ticks - n * 65_536).min(65_536)))
        .collect();
    let commands = rig.write(&work);
    let first = match gate {
        Some(gate) => gate.start_in(rig, context, &work),
        None => rig.start_in(context, &work),
    };
    for _ in 2..total / ticks {
        assert_eq!(rig.submit(context, &[commands], &[]).map(|_| ()), Ok(()));
    }
    drop(first);
    rig.start_in(context, &work)
}
