// SPDX-License-Identifier: GPL-2.0

//! What clients ask of a context, on its way to the queue, [held](crate::fences::hold) until its
//! values are reached; and the workers that look again at what a context holds, and at its queue.
//!
//! Lock: `holds` of the [`Context`], a mutex, for what is held.

use crate::{
    ext::{
        device,
        fence::Fence, //
    },
    fences::{
        gate::Wake,
        hold::{
            self,
            Holder,
            Holds,
            Workers,
            MAX_REQUESTS, //
        },
        monitored::{
            End,
            Over,
            Target,
            Wait, //
        },
        signals::Signals, //
    },
    few::Few,
    gpu::{
        self,
        SkuaDevice, //
    },
    memory::residency,
    quota::Quota,
    submit::{
        context::{
            Context,
            Status,
            UNLIMITED, //
        },
        deferral::Deferral,
        recovery,
        submission::Buffer, //
    }, //
};
use core::mem::take;
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::WorkItem, //
};

/// What a client wants to be done.
pub(crate) struct Request {
    /// Commands in memory, which run one after the other.
    pub(crate) buffers: Few<Buffer>,
    /// Fences that the buffers wait for.
    pub(crate) waits: Few<Fence>,
    /// What is signalled when the last buffer is done.
    pub(crate) signals: Signals,
}

impl Holder for Context {
    type Request = Request;
    type Deferred = Deferral;

    fn device(&self) -> &SkuaDevice {
        &self.dev
    }

    fn client(&self) -> Option<&Arc<Quota>> {
        self.vm().map(|vm| vm.client())
    }

    fn holds(&self) -> &Holds<Self> {
        &self.holds
    }

    fn queued(&self) -> u32 {
        self.pending.lock().len
    }

    fn is_active(&self) -> bool {
        self.status() == Status::Active
    }

    fn submit(
        this: &Arc<Self>,
        request: &mut Request,
        values: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result {
        let Request {
            buffers,
            waits,
            signals,
        } = request;
        let (buffers, waits, most) = match held {
            Some(_) => (buffers.try_clone()?, waits.try_clone()?, UNLIMITED),
            None => (take(buffers), take(waits), MAX_REQUESTS),
        };
        // A worker would have it charged to nobody.
        let vm = this.vm().filter(|_| held.is_none() && !buffers.is_empty());
        if let (Some(vm), Some(bound)) = (vm, device::enter(&this.dev)) {
            residency::bring_back(&this.dev, gpu::parent(&bound), vm);
        }
        this.submit(buffers, waits, most, signals, values, held)
    }

    fn fail(this: &Arc<Self>, _error: Error) -> Error {
        recovery::fail(this, Status::Lost);
        ECANCELED
    }

    fn perform(deferred: Deferral) -> Option<Deferral> {
        deferred.perform()
    }

    fn cancelled(&self, request: &Request) {
        if let Ok(engine) = self.dev.engine(self.engine) {
            engine.cancel(&self.dev, self, request.buffers.iter());
        }
    }

    fn signals(request: &mut Request) -> &mut Signals {
        &mut request.signals
    }

    /// One that was held; nobody is told of what the client has cancelled itself.
    fn ended(&self, result: Result) -> End {
        self.count_finished();
        match result {
            Ok(()) => End::Done,
            Err(ECANCELED) if self.status() == Status::Destroyed => End::Withdrawn,
            Err(_) => End::Failed,
        }
    }

    fn look_again(this: Arc<Self>) {
        let dev = this.dev.clone();
        if let Err(context) = Workers::enqueue::<_, 1>(&dev, this) {
            Self::bury(context);
        }
    }

    fn bury(this: Arc<Self>) {
        let dev = this.dev.clone();
        dev.reapers.contexts.bury(this);
    }
}

impl Target for Context {
    fn wake(self: Arc<Self>, _index: u32, _over: Over) {
        Self::look_again(self);
    }
}

impl Wake for Context {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = crate::gpu::QUEUE.enqueue::<_, 0>(this.clone());
    }
}

impl WorkItem<1> for Context {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        hold::run(this);
    }
}

impl WorkItem for Context {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let dev = this.dev.clone();
        if let Ok(engine) = dev.engine(this.engine) {
            engine.look_at(&dev, &this);
        }
        dev.reapers.contexts.bury(this);
    }
}
