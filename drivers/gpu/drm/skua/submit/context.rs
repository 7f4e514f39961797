// SPDX-License-Identifier: GPL-2.0

//! A context: one process' line of work on one engine.
//!
//! Jobs of a context run in the order of their submission, in one address space. The context's queue holds
//! those that are not in the ring yet; only its first job can start, once its gate is open. The engine
//! ([`crate::submit::engine`]) takes contexts whose first job is ready in turn.
//!
//! A context is active until its work faults, is cut by the watchdog, or the device is lost; then its queue
//! is cancelled and it takes no more. Other contexts do not notice. Fences of a context signal in order all
//! the same: what is cancelled waits until nothing of the context is in the ring.
//!
//! # Locks
//!
//! [`Context::submit`] orders submissions by `order` (a mutex; nothing that leads to a fence's signal takes
//! it). The queue is under `pending`, a spin lock inside the engine's.

use crate::{
    ext::{
        fence::{
            Fence,
            FenceContext,
            FenceMemory, //
        },
        trace, //
    },
    fences::gate::{
        Gate,
        Wake, //
    },
    fences::signals::Signals,
    gpu::SkuaDevice,
    memory::vm::Vm,
    policy::run_queue::ContextKey,
    spec::{
        context::Descriptor,
        fault::Record, //
    },
    submit::{
        engine::Engine,
        job::{
            Body,
            Buffer,
            Job, //
        }, //
    }, //
};
use kernel::{
    impl_has_work,
    list::{
        List,
        ListArc, //
    },
    new_mutex,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// Whether a context takes work.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Status {
    /// It does.
    Active,
    /// Its work faulted.
    Faulted(Record),
    /// Its work was cut by the watchdog.
    TimedOut,
    /// The device is lost.
    Lost,
    /// Userspace destroyed it.
    Destroyed,
}

/// Jobs that have not started.
pub(crate) struct Pending {
    /// In order of submission.
    pub(crate) jobs: List<Job>,
    /// How many jobs left the queue for the ring and are not taken out of it.
    pub(crate) running: u32,
    /// The context stands in its engine's run queue.
    pub(crate) queued: bool,
    /// Whether more are taken.
    pub(crate) status: Status,
}

/// A context.
#[pin_data(PinnedDrop)]
pub(crate) struct Context {
    dev: ARef<SkuaDevice>,
    vm: Arc<Vm>,
    engine: u32,
    slot: u32,
    key: ContextKey,
    fences: FenceContext,
    finished: Atomic<u64>,
    #[pin]
    order: Mutex<()>,
    #[pin]
    pub(crate) pending: SpinLock<Pending>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Context { self.work }
}

impl Context {
    /// Makes a context on engine number `engine` and adds it to the device's table of contexts.
    ///
    /// `EINVAL` for an engine that does not exist; `ENOSPC` if there are too many contexts; `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, vm: &Arc<Vm>, engine: u32) -> Result<Arc<Self>> {
        let place = dev.engine(engine)?;
        let slot = dev.contexts.reserve()?;
        let made = Self::make(dev, vm, engine, place, slot);
        match &made {
            Ok(context) => dev.contexts.fill(slot, context.clone()),
            Err(_) => dev.contexts.release(slot),
        }
        made
    }

    fn make(
        dev: &SkuaDevice,
        vm: &Arc<Vm>,
        engine: u32,
        place: &Engine,
        slot: u32,
    ) -> Result<Arc<Self>> {
        let descriptor = Descriptor {
            root: vm.root(),
            asid: vm.asid(),
            context_id: slot.checked_add(1).ok_or(EOVERFLOW)?,
        };
        dev.shared
            .try_access()
            .ok_or(ENODEV)?
            .write_descriptor(slot, descriptor)?;
        let key = place.add_context()?;
        let context = Arc::pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                vm: vm.clone(),
                engine,
                slot,
                key,
                fences: FenceContext::new(c"skua", place.name()),
                finished: Atomic::new(0),
                order <- new_mutex!(()),
                pending <- new_spinlock!(Pending {
                    jobs: List::new(),
                    running: 0,
                    queued: false,
                    status: Status::Active,
                }),
                work <- new_work!("Context::work"),
            }),
            GFP_KERNEL,
        );
        if context.is_err() {
            place.remove_context(key);
        }
        context
    }

    /// Its place in the table of context descriptors.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The number that the device and traces name it by, from 1.
    pub(crate) fn id(&self) -> u32 {
        self.slot.saturating_add(1)
    }

    /// Its engine's number.
    pub(crate) fn engine(&self) -> u32 {
        self.engine
    }

    /// Its place in the engine's run queue.
    pub(crate) fn key(&self) -> ContextKey {
        self.key
    }

    /// Its address space.
    pub(crate) fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// Whether it takes work.
    pub(crate) fn status(&self) -> Status {
        self.pending.lock().status
    }

    /// Jobs that ended, with or without error.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Relaxed)
    }

    /// Counts a job that ended.
    pub(crate) fn count_finished(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    /// Engine time that it used so far, in ticks; 0 when the device is unbound.
    pub(crate) fn ticks(&self) -> u64 {
        let shared = self.dev.shared.try_access();
        shared
            .and_then(|shared| shared.descriptor_usage(self.slot).ok())
            .map_or(0, |(ticks, _)| ticks)
    }

    /// Queues a job that runs `buffers` after `waits`, and gives its fence to `signals`.
    ///
    /// `ECANCELED` if the context is not active; `ENOMEM`. Nothing has changed then.
    pub(crate) fn submit(
        self: &Arc<Self>,
        buffers: KVVec<Buffer>,
        mut waits: KVVec<Fence>,
        signals: Signals,
    ) -> Result {
        // What this context did before is done before by its order.
        waits.retain(|fence| fence.context() != self.fences.id());
        let job = Job::new(Body::Buffers {
            context: self.clone(),
            buffers,
            gate: Gate::new(self, waits)?,
        })?;
        let memory = FenceMemory::new(GFP_KERNEL)?;
        let engine = self.dev.engine(self.engine)?;

        let order = self.order.lock();
        if self.status() != Status::Active {
            return Err(ECANCELED);
        }
        let fence = self.fences.fence(memory);
        trace::submit(&self.dev, self.engine, self.id(), fence.fence());
        signals.publish(fence.fence());
        job.publish(fence);
        engine.submit(&self.dev, self, job);
        drop(order);
        Ok(())
    }

    /// Puts a published job at the end of the queue. Whether the context now has to be put into the run
    /// queue. Called by the engine, under its lock.
    pub(crate) fn push(&self, job: ListArc<Job>) -> bool {
        let mut pending = self.pending.lock();
        if let Some(gate) = job.gate() {
            gate.arm();
        }
        pending.jobs.push_back(job);
        pending.is_due()
    }

    /// Counts a job out of the ring. Whether the context now has to be put into the run queue. Called by
    /// the engine, under its lock.
    pub(crate) fn retire(&self) -> bool {
        let mut pending = self.pending.lock();
        // No wrap: the engine counted it in.
        pending.running = pending.running.saturating_sub(1);
        pending.is_due()
    }

    /// Takes no more work, for the reason `status`; the first reason counts. The engine cancels what has not
    /// started, when it comes to it.
    pub(crate) fn mark(&self, status: Status) {
        let mut pending = self.pending.lock();
        if pending.status == Status::Active {
            pending.status = status;
        }
    }

    /// Takes no more work, as [`Context::mark`], and cancels what has not started: at once, or when what
    /// is in the ring is over.
    pub(crate) fn close(&self, status: Status) {
        self.mark(status);
        if let Ok(engine) = self.dev.engine(self.engine) {
            engine.drain(&self.dev, self);
        }
    }

    /// Userspace has no use for it any more.
    pub(crate) fn destroy(&self) {
        self.close(Status::Destroyed);
        self.dev.contexts.empty(self.slot);
    }
}

impl Pending {
    /// Whether `job` of this queue is to be cancelled instead of started.
    pub(crate) fn dooms(&self, job: &Job) -> bool {
        self.status != Status::Active || job.is_condemned()
    }

    /// Whether the context has to be put into the run queue, because something can be done about its first
    /// job: start it, or cancel it when nothing of the context is in the ring any more.
    pub(crate) fn is_due(&mut self) -> bool {
        let (active, idle) = (self.status == Status::Active, self.running == 0);
        let due = self
            .jobs
            .cursor_front()
            .peek_next()
            .is_some_and(|job| match active {
                true => job.is_ready() && (idle || !job.is_condemned()),
                false => idle,
            });
        due && !core::mem::replace(&mut self.queued, true)
    }
}

impl Wake for Context {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = this.dev.queue.enqueue(this.clone());
    }
}

impl WorkItem for Context {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Ok(engine) = this.dev.engine(this.engine) {
            engine.wake(&this.dev, &this);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Context {
    fn drop(self: Pin<&mut Self>) {
        if let Ok(engine) = self.dev.engine(self.engine) {
            engine.remove_context(self.key);
        }
        self.dev.contexts.release(self.slot);
    }
}
