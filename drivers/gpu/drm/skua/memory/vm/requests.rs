// SPDX-License-Identifier: GPL-2.0

//! What clients ask of an address space, on its way to the queue, [held](crate::fences::hold) until
//! its values are reached; and the worker that looks again at what is held.
//!
//! Lock: `holds` of the [`Vm`], a mutex, for what is held.

use crate::{
    ext::fence::Fence,
    fences::{
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
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            BoRef, //
        },
        vm::{
            begin_mapping,
            bind::Operation,
            copies::Step,
            Vm, //
        }, //
    },
    policy::interval_map::Span,
    quota::Quota, //
};
use core::{
    convert::Infallible,
    mem::take, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::WorkItem, //
};

/// What a client wants one operation of a bind to do, checked.
pub(crate) enum Wanted {
    /// Maps, after unmapping what was there.
    Map {
        /// GPU virtual addresses, whole pages.
        span: Span,
        /// The object, which has no user by that.
        bo: BoRef,
        /// Where in the object the range begins: bytes, a multiple of the page size.
        offset: u64,
        /// Whether the GPU may write.
        write: bool,
    },
    /// Unmaps what is mapped there, if anything.
    Unmap(Span),
    /// Maps in the second range what is mapped in the first, which is as long.
    Copy(Span, Span),
}

impl Wanted {
    /// Has `vm` use the object. What was destroyed while the operation was held is not mapped any
    /// more, as if that had been since the bind was accepted. Errors as of
    /// [`begin_mapping`].
    fn begin(&self, vm: &Vm) -> Result<Step> {
        Ok(Step::Do(match self {
            Self::Map { span, bo, .. } if bo::is_destroyed(bo) => Operation::Unmap(*span),
            Self::Map {
                span,
                bo,
                offset,
                write,
            } => Operation::Map(*span, begin_mapping(vm, bo.clone(), *offset, *write)?),
            Self::Unmap(span) => Operation::Unmap(*span),
            Self::Copy(from, to) => return Ok(Step::Copy(*from, *to)),
        }))
    }
}

/// What a client wants to be bound.
pub(crate) struct BindRequest {
    /// In order; not empty. While the bind is held nothing of it is mapped in any respect.
    pub(crate) operations: KVVec<Wanted>,
    /// Fences that the operations wait for.
    pub(crate) waits: Few<Fence>,
    /// What is signalled when they are done.
    pub(crate) signals: Signals,
}

impl Vm {
    /// Does what a client wants when all binds before are done; what was `held` has had its place
    /// among them, and is tried again if that fails. As [`Vm::bind`], and [`begin_mapping`].
    pub(crate) fn submit_bind(
        self: &Arc<Self>,
        request: &mut BindRequest,
        held: bool,
        check: impl FnOnce() -> Result,
    ) -> Result {
        let BindRequest {
            operations,
            waits,
            signals,
        } = request;
        let mut steps = KVVec::with_capacity(operations.len(), client_flags())?;
        for operation in &*operations {
            steps.push(operation.begin(self)?, client_flags())?;
        }
        let (waits, most) = match held {
            true => (waits.try_clone()?, u32::MAX),
            false => (take(waits), MAX_REQUESTS),
        };
        self.bind(steps, waits, most, signals, check)
    }
}

impl Holder for Vm {
    type Request = BindRequest;
    type Deferred = Infallible;

    fn device(&self) -> &SkuaDevice {
        &self.dev
    }

    fn client(&self) -> Option<&Arc<Quota>> {
        Some(self.client())
    }

    fn holds(&self) -> &Holds<Self> {
        &self.holds
    }

    fn queued(&self) -> u32 {
        self.binds.lock().len
    }

    fn is_active(&self) -> bool {
        let binds = self.binds.lock();
        binds.end.is_none() && !binds.destroyed
    }

    fn submit(
        this: &Arc<Self>,
        request: &mut BindRequest,
        _values: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result {
        this.submit_bind(request, held.is_some(), || Ok(()))
    }

    fn fail(_this: &Arc<Self>, error: Error) -> Error {
        error
    }

    fn perform(deferred: Infallible) -> Option<Infallible> {
        match deferred {}
    }

    fn signals(request: &mut BindRequest) -> &mut Signals {
        &mut request.signals
    }

    fn ended(&self, result: Result) -> End {
        match result {
            Ok(()) => End::Done,
            // The client is gone, or has destroyed its device.
            Err(ECANCELED) => End::Withdrawn,
            Err(_) => End::Failed,
        }
    }

    fn look_again(this: Arc<Self>) {
        let dev = this.dev.clone();
        if let Err(vm) = Workers::enqueue::<_, 1>(&dev, this) {
            Self::bury(vm);
        }
    }

    fn bury(this: Arc<Self>) {
        let dev = this.dev.clone();
        dev.reapers.vms.bury(this);
    }
}

impl Target for Vm {
    fn wake(self: Arc<Self>, _index: u32, _over: Over) {
        Self::look_again(self);
    }
}

impl WorkItem<1> for Vm {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        hold::run(this);
    }
}
