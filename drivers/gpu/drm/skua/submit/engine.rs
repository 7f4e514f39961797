// SPDX-License-Identifier: GPL-2.0

//! An engine: its ring, what is in it, and whose turn it is.
//!
//! # Flow
//!
//! ```text
//!  submit ─▶ context's queue ─▶ run queue ─▶ ring + in flight ─▶ finished
//!            (in order)         (round robin    (at most          (by the fence id that the
//!                                of contexts)    IN_FLIGHT)        engine wrote to memory)
//! ```
//!
//! Paging jobs have a queue of their own that goes before all contexts. [`Engine::process`] does all of it
//! at any occasion: an interrupt, a submission, a gate that opened. It takes from memory what the engine
//! has completed, refills the ring, writes the doorbell at most once, and then, with no lock held,
//! signals fences.
//!
//! Decisions are [`crate::policy`]'s: where in the ring ([`RingSpace`]), which fence id is which job
//! ([`InFlight`]), whose turn ([`RunQueue`]). A context stands in the run queue with one token while its
//! first job is ready.
//!
//! # Lock order
//!
//! `Context::order` → `Engine::turn` → `Engine::state` → `Context::pending` → `Job::fence`. `state` and below are
//! spin locks: what needs memory is allocated before, at the engine's creation or with the job. Fences are
//! signalled with none of them held.

use crate::{
    ext::{
        fence::{
            FenceContext,
            FenceMemory,
            Signalling, //
        },
        trace, //
    },
    gpu::SkuaDevice,
    hardware::shared::{
        Shared,
        MAX_CONTEXTS,
        RING_SIZE, //
    },
    kernel_heap::KernelHeap,
    memory::vram::VramRange,
    policy::{
        in_flight::InFlight,
        ring_space::RingSpace,
        run_queue::{
            ContextKey,
            RunQueue, //
        }, //
    },
    spec::{
        command::{
            Command,
            EngineKind, //
        },
        regs::engine as regs,
        status::{
            self,
            EngineState, //
        }, //
    },
    submit::{
        context::Context,
        job::{
            Body,
            Job, //
        }, //
    }, //
};
use kernel::{
    list::{
        List,
        ListArc, //
    },
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLock, //
    }, //
};

/// Jobs that are in a ring at a time: enough to keep the engine busy over an interrupt, few enough that
/// whose turn it is is decided late.
pub(crate) const IN_FLIGHT: usize = 16;

/// Whether the engine takes work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It does.
    Running,
    /// It is being reset; work waits.
    Recovering,
    /// The device is lost; work is refused.
    Lost,
}

/// What is under the engine's lock.
pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) ring: RingSpace,
    pub(crate) in_flight: InFlight<KernelHeap, Arc<Job>>,
    paging: List<Job>,
    run_queue: RunQueue<KernelHeap, Arc<Context>>,
    /// The fence id that was last taken from the status page.
    completed: u64,
}

/// An engine.
#[pin_data]
pub(crate) struct Engine {
    index: u32,
    kind: EngineKind,
    paging_fences: FenceContext,
    /// Held from taking jobs out of the ring until their fences are signalled, so that fences signal in
    /// order. Nothing is allocated and no reference dropped under it.
    #[pin]
    pub(crate) turn: Mutex<()>,
    #[pin]
    pub(crate) state: SpinLock<State>,
}

/// What is to be done when no lock is held: jobs that are over, whose fences are to be signalled, and
/// references to contexts, of which one may be the last.
pub(crate) struct Finished {
    jobs: [Option<(Arc<Job>, Result)>; 2 * IN_FLIGHT],
    len: usize,
    contexts: [Option<Arc<Context>>; 2 * IN_FLIGHT],
    context_count: usize,
}

impl Finished {
    /// None.
    pub(crate) fn new() -> Self {
        Self {
            jobs: [const { None }; 2 * IN_FLIGHT],
            len: 0,
            contexts: [const { None }; 2 * IN_FLIGHT],
            context_count: 0,
        }
    }

    /// Whether it takes one more of each.
    fn has_room(&self) -> bool {
        self.len < self.jobs.len() && self.context_count < self.contexts.len()
    }

    /// Keeps a reference until no lock is held; the caller has seen that there is room.
    fn keep(&mut self, context: Arc<Context>) {
        if let Some(place) = self.contexts.get_mut(self.context_count) {
            *place = Some(context);
            self.context_count += 1;
        }
    }

    /// The number of jobs.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a job; the caller has seen that there is room.
    pub(crate) fn push(&mut self, job: Arc<Job>, result: Result) {
        if let Some(place) = self.jobs.get_mut(self.len) {
            *place = Some((job, result));
            self.len += 1;
        }
    }

    /// Signals the fences, in order, under the engine's `turn`. Dropping `self` drops jobs and contexts, which
    /// may sleep: with nothing held.
    pub(crate) fn signal(&self, dev: &SkuaDevice, engine: u32) {
        let signalling = Signalling::begin();
        for (job, result) in self.jobs.iter().flatten() {
            job.finish(dev, engine, *result);
        }
        drop(signalling);
    }
}

/// What comes next for a context whose turn it is.
enum Next {
    /// This job goes into the ring.
    Start(Arc<Job>),
    /// This job is cancelled.
    Cancel(Arc<Job>),
    /// Its job has to wait until there is room in the ring.
    Full,
    /// It has no job.
    Nothing,
}

impl State {
    /// Writes a job's commands to the ring and counts it as in flight. The caller has seen that there is
    /// room for both.
    fn emit(
        &mut self,
        dev: &SkuaDevice,
        shared: &Shared,
        engine: u32,
        job: &Job,
        id: u64,
    ) -> Result {
        let ring = &mut self.ring;
        job.commands(dev, id, |encoded| {
            let words = encoded.words();
            let bytes = u32::try_from(words.len() * 4)?;
            let slot = ring.place(bytes).map_err(|_| EIO)?;
            if slot.pad > 0 {
                let nop = Command::Nop {
                    words: u16::try_from(slot.pad / 4)?,
                };
                let nop = nop.encode();
                let header = nop.words().get(..2).ok_or(EIO)?;
                shared.write_ring(engine, slot.pad_at, header)?;
            }
            shared.write_ring(engine, slot.at, words)?;
            ring.commit(slot).map_err(|_| EIO)?;
            Ok(())
        })
    }

    /// Whether the ring takes `job` now.
    fn fits(&self, job: &Job) -> bool {
        !self.in_flight.is_full() && self.ring.space() >= job.ring_bytes()
    }

    /// Counts jobs that were put into `finished`, from number `from` on, out of the ring.
    pub(crate) fn retire(&mut self, finished: &Finished, from: usize) {
        let jobs = finished.jobs.get(from..finished.len).unwrap_or(&[]);
        for (job, _) in jobs.iter().flatten() {
            if let Some(context) = job.context() {
                if context.retire() {
                    let _ = self.enqueue(context);
                }
            }
        }
    }

    /// Puts a context into the run queue.
    fn enqueue(&mut self, context: &Arc<Context>) -> Result {
        // Allocates nothing: all contexts that there can be have had their place at creation.
        let mut ticket = self.run_queue.prepare(1)?;
        let refused = self
            .run_queue
            .enqueue(context.key(), &mut ticket, context.clone())
            .is_err();
        self.run_queue.release(ticket);
        if refused {
            context.pending.lock().queued = false;
            return Err(EIO);
        }
        Ok(())
    }
}

impl Engine {
    /// Makes an engine that is not enabled. `ENOMEM`.
    pub(crate) fn new(index: u32, kind: EngineKind) -> Result<Pin<KBox<Self>>> {
        let mut run_queue = RunQueue::<KernelHeap, Arc<Context>>::new(1);
        // Have the queue allocate now what it would under the lock.
        let tickets = run_queue.prepare(MAX_CONTEXTS)?;
        run_queue.release(tickets);
        let mut keys = KVVec::with_capacity(usize::try_from(MAX_CONTEXTS)?, GFP_KERNEL)?;
        for _ in 0..MAX_CONTEXTS {
            keys.push(run_queue.add_context()?, GFP_KERNEL)?;
        }
        for key in keys {
            run_queue.remove_context(key, drop).map_err(|_| EINVAL)?;
        }
        let ring = RingSpace::new(RING_SIZE, 8).map_err(|_| EINVAL)?;
        let in_flight = InFlight::new(IN_FLIGHT, 1)?;
        KBox::try_pin_init(
            try_pin_init!(Self {
                index,
                kind,
                paging_fences: FenceContext::new(c"skua", c"paging"),
                turn <- new_mutex!(()),
                state <- new_spinlock!(State {
                    mode: Mode::Running,
                    ring,
                    in_flight,
                    paging: List::new(),
                    run_queue,
                    completed: 0,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// What it can do.
    pub(crate) fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Its name in fdinfo, traces and fences.
    pub(crate) fn name(&self) -> &'static CStr {
        match self.kind {
            EngineKind::Compute => c"compute",
            EngineKind::Copy => c"copy",
        }
    }

    /// Programs the ring and starts fetching, from an empty ring.
    pub(crate) fn enable(&self, dev: &SkuaDevice) -> Result {
        let ring = Shared::ring_address(&dev.caps, self.index)?;
        // CAST: the two halves.
        let write = |register, value| dev.regs.write_engine(self.index, register, value);
        write(regs::RING_BASE_LO, ring.0 as u32)?;
        write(regs::RING_BASE_HI, (ring.0 >> 32) as u32)?;
        write(regs::RING_SIZE, RING_SIZE)?;
        write(regs::CTRL, regs::CTRL_ENABLE)
    }

    /// The state that the device last reported of the engine.
    pub(crate) fn reported_state(&self, dev: &SkuaDevice) -> Option<EngineState> {
        let shared = dev.shared.try_access()?;
        let state = shared.engine32(self.index, status::engine::STATE).ok()?;
        EngineState::from_u32(state)
    }

    /// Engine time since the device was started, in ticks; 0 when the device is unbound.
    pub(crate) fn ticks(&self, dev: &SkuaDevice) -> u64 {
        let shared = dev.shared.try_access();
        shared
            .and_then(|shared| shared.engine64(self.index, status::engine::TICKS).ok())
            .unwrap_or(0)
    }

    /// Gives a new context its place in the run queue.
    pub(crate) fn add_context(&self) -> Result<ContextKey> {
        // Allocates nothing, see `new()`.
        Ok(self.state.lock().run_queue.add_context()?)
    }

    /// Takes a context's place back.
    pub(crate) fn remove_context(&self, key: ContextKey) {
        // Its token, if there is one, holds a reference to the context, so there is none.
        let _ = self.state.lock().run_queue.remove_context(key, drop);
    }

    /// Queues a published job of `context` and starts what can be started.
    pub(crate) fn submit(&self, dev: &SkuaDevice, context: &Arc<Context>, job: ListArc<Job>) {
        self.look(dev, context, || context.push(job));
    }

    /// A gate of a job of `context` has opened.
    pub(crate) fn wake(&self, dev: &SkuaDevice, context: &Arc<Context>) {
        self.look(dev, context, || context.pending.lock().is_due());
    }

    /// Puts `context` into the run queue if `is_due`, asked under the lock, says so, and does what can be
    /// done.
    fn look(&self, dev: &SkuaDevice, context: &Arc<Context>, is_due: impl FnOnce() -> bool) {
        let lost = {
            let mut state = self.state.lock();
            let due = is_due();
            let lost = state.mode == Mode::Lost;
            if due && lost {
                context.pending.lock().queued = false;
            } else if due {
                let _ = state.enqueue(context);
            }
            lost
        };
        if lost {
            self.drain(dev, context);
        } else {
            self.process(dev);
        }
    }

    /// Signals the fences of jobs that never started, in order, under `turn`.
    fn cancel(&self, dev: &SkuaDevice, jobs: &List<Job>, error: Error) {
        let signalling = Signalling::begin();
        for job in jobs {
            job.finish(dev, self.index, Err(error));
        }
        drop(signalling);
    }

    /// Cancels all that is in the queue of `context` unless something of the context is in the ring; then
    /// that, when it is over, leads to the same. Process context, no locks held.
    ///
    /// For a context that is closed, or an engine that is lost.
    pub(crate) fn drain(&self, dev: &SkuaDevice, context: &Context) {
        let mut jobs = List::new();
        let turn = self.turn.lock();
        let lost = self.state.lock().mode == Mode::Lost;
        {
            let mut pending = context.pending.lock();
            if pending.running == 0 {
                core::mem::swap(&mut pending.jobs, &mut jobs);
            }
        }
        self.cancel(dev, &jobs, if lost { ENODEV } else { ECANCELED });
        drop(turn);
        // The jobs' references, which may be the last ones: with nothing held.
        drop(jobs);
    }

    /// Queues a job that clears `range`, and returns its fence's reference for who waits. `ENOMEM`,
    /// `ENODEV`.
    pub(crate) fn clear(
        &self,
        dev: &SkuaDevice,
        range: &Arc<VramRange>,
        mut publish: impl FnMut(&crate::ext::fence::Fence) -> Result,
    ) -> Result {
        let job = Job::new(Body::Clear(range.clone()))?;
        let memory = FenceMemory::new(GFP_KERNEL)?;
        // Paging jobs of several threads may be published in another order than they are queued: their
        // fences are waited for one by one, never "up to".
        let fence = self.paging_fences.fence(memory);
        publish(fence.fence())?;
        trace::submit(dev, self.index, 0, fence.fence());
        job.publish(fence);
        let refused = {
            let mut state = self.state.lock();
            if state.mode == Mode::Lost {
                Some(job)
            } else {
                state.paging.push_back(job);
                None
            }
        };
        if let Some(job) = refused {
            job.finish(dev, self.index, Err(ENODEV));
            return Err(ENODEV);
        }
        self.process(dev);
        Ok(())
    }

    /// Takes what is complete, starts what can be started, signals what is over.
    ///
    /// Process context, no locks held but `Context::order`.
    pub(crate) fn process(&self, dev: &SkuaDevice) {
        loop {
            let mut finished = Finished::new();
            let turn = self.turn.lock();
            let outcome = {
                let mut state = self.state.lock();
                self.collect(dev, &mut state, &mut finished)
                    .and_then(|()| self.refill(dev, &mut state, &mut finished))
            };
            finished.signal(dev, self.index);
            drop(turn);
            let more = !finished.has_room();
            drop(finished);
            if outcome.is_err() {
                // What the device wrote cannot be, or it is unbound: in either case it is lost.
                dev.lose_later();
                return;
            }
            if !more {
                return;
            }
        }
    }

    /// Takes what the engine reports: moves jobs that it has completed to `finished`, which is new, and
    /// frees their part of the ring.
    ///
    /// `EIO` if the device reports what cannot be; `ENODEV` if it is unbound.
    pub(crate) fn collect(
        &self,
        dev: &SkuaDevice,
        state: &mut State,
        finished: &mut Finished,
    ) -> Result {
        if state.mode != Mode::Running {
            return Ok(());
        }
        self.complete(dev, state, finished)?;
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        let head = shared.engine32(self.index, status::engine::HEAD)?;
        state.ring.advance(head).map_err(|_| EIO)?;
        Ok(())
    }

    /// The part of [`Engine::collect`] that holds for an engine that was just reset, too.
    pub(crate) fn complete(
        &self,
        dev: &SkuaDevice,
        state: &mut State,
        finished: &mut Finished,
    ) -> Result {
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        let completed = shared.engine64(self.index, status::engine::COMPLETED_FENCE)?;
        if completed != state.completed {
            let from = finished.len();
            let jobs = state.in_flight.complete_up_to(completed).map_err(|_| EIO)?;
            for (_, job) in jobs {
                finished.push(job, Ok(()));
            }
            state.completed = completed;
            state.retire(finished, from);
        }
        Ok(())
    }

    /// Moves jobs that can start into the ring, as far as there is room, and tells the engine.
    pub(crate) fn refill(
        &self,
        dev: &SkuaDevice,
        state: &mut State,
        finished: &mut Finished,
    ) -> Result {
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        let tail = state.ring.tail();
        while state.mode == Mode::Running && !state.in_flight.is_full() && finished.has_room() {
            if let Some(job) = state.paging.pop_front() {
                if !state.fits(&job) {
                    state.paging.push_front(job);
                    break;
                }
                self.start(dev, &shared, state, job.into_arc())?;
                continue;
            }
            let Some((_, context)) = state.run_queue.take(1) else {
                break;
            };
            let (next, again) = self.next(state, &context);
            if again {
                let _ = state.enqueue(&context);
            }
            // Perhaps the last reference, whose drop takes this engine's lock.
            finished.keep(context);
            match next {
                Next::Start(job) => self.start(dev, &shared, state, job)?,
                Next::Cancel(job) => finished.push(job, Err(ECANCELED)),
                Next::Full => break,
                Next::Nothing => (),
            }
        }
        if state.ring.tail() != tail {
            dev.regs
                .write_engine(self.index, regs::DOORBELL, state.ring.tail())?;
            dev.watch();
        }
        Ok(())
    }

    /// What to do for a context whose turn it is; and whether it has to be put into the run queue again.
    fn next(&self, state: &State, context: &Arc<Context>) -> (Next, bool) {
        let mut pending = context.pending.lock();
        pending.queued = false;
        let Some(job) = pending.jobs.pop_front() else {
            return (Next::Nothing, false);
        };
        let next = if pending.dooms(&job) {
            if pending.running > 0 {
                // Not before what is in the ring.
                pending.jobs.push_front(job);
                return (Next::Nothing, false);
            }
            Next::Cancel(job.into_arc())
        } else if !state.fits(&job) {
            pending.jobs.push_front(job);
            Next::Full
        } else {
            pending.running = pending.running.saturating_add(1);
            Next::Start(job.into_arc())
        };
        (next, pending.is_due())
    }

    /// Writes one job into the ring.
    fn start(&self, dev: &SkuaDevice, shared: &Shared, state: &mut State, job: Arc<Job>) -> Result {
        let id = state.in_flight.next_id();
        state.emit(dev, shared, self.index, &job, id)?;
        job.with_fence(|fence| trace::start(dev, self.index, job.context_id(), fence));
        state.in_flight.push(job).map_err(|_| EIO)?;
        Ok(())
    }

    /// Writes all jobs in flight into the empty ring again, with new fence ids, and starts the engine.
    pub(crate) fn replay(&self, dev: &SkuaDevice, state: &mut State) -> Result {
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        state.ring.reset();
        state.in_flight.reissue(|_, _| true).map_err(|_| EIO)?;
        let mut jobs: [Option<(u64, Arc<Job>)>; IN_FLIGHT] = [const { None }; IN_FLIGHT];
        for (place, (id, job)) in jobs.iter_mut().zip(state.in_flight.iter()) {
            *place = Some((id, job.clone()));
        }
        for (id, job) in jobs.iter().flatten() {
            state.emit(dev, &shared, self.index, job, *id)?;
        }
        self.enable(dev)?;
        if state.ring.tail() != 0 {
            dev.regs
                .write_engine(self.index, regs::DOORBELL, state.ring.tail())?;
        }
        Ok(())
    }

    /// Takes no more work, and finishes with `ENODEV` what is in the ring, what waits for paging, and what
    /// waits in contexts' queues for its turn. Of what else is there the caller takes care: it closes all
    /// contexts.
    pub(crate) fn lose(&self, dev: &SkuaDevice) {
        let mut finished = Finished::new();
        let mut paging = List::new();
        let turn = self.turn.lock();
        {
            let mut state = self.state.lock();
            state
                .in_flight
                .remove_if(|_, _| true, |_, job| finished.push(job, Err(ENODEV)));
            state.retire(&finished, 0);
            state.mode = Mode::Lost;
            core::mem::swap(&mut state.paging, &mut paging);
        }
        finished.signal(dev, self.index);
        self.cancel(dev, &paging, ENODEV);
        drop(turn);
        drop(finished);
        drop(paging);
        // Tokens hold references to contexts: drop them with no lock held.
        loop {
            let token = self.state.lock().run_queue.take(1);
            match token {
                Some((_, context)) => {
                    context.pending.lock().queued = false;
                    self.drain(dev, &context);
                }
                None => break,
            }
        }
    }
}
