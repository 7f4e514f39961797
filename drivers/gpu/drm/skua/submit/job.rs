// SPDX-License-Identifier: GPL-2.0

//! A job: what an engine is to do, and the fence that tells when it was done.
//!
//! A job of a context runs its buffers; a paging job, which has no context, clears VRAM in the system's
//! address space. All memory that the way to the ring and back needs is allocated when the job is made:
//! from the moment at which its fence is published nothing can fail but the work itself.
//!
//! The life of a job, each step taken once and in this order:
//!
//! ```text
//! made ─▶ published ─▶ waiting (its gate is closed, or jobs are before it)
//!                        │
//!                        ▼
//!                      in flight (in the ring) ──▶ finished: fence signalled, 0 or an error
//!                        ▲        │ engine was reset, another job was guilty
//!                        └────────┘
//! ```
//!
//! [`Job::finish`] signals exactly once; a job that is dropped unfinished, which no path does, would signal
//! `ECANCELED` all the same.

use crate::{
    ext::{
        fence::{
            DriverFence,
            Fence, //
        },
        trace, //
    },
    fences::gate::Gate,
    gpu::SkuaDevice,
    hardware::shared::Shared,
    memory::vram::VramRange,
    spec::command::{
        Command,
        Encoded, //
    },
    submit::context::Context, //
};
use kernel::{
    list::{
        impl_list_arc_safe,
        impl_list_item,
        ListArc,
        ListLinks, //
    },
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// A buffer of commands in a process' address space.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    /// GPU virtual address, a multiple of 8.
    pub(crate) va: u64,
    /// Bytes, a multiple of 8.
    pub(crate) size: u32,
}

/// What a job does.
pub(crate) enum Body {
    /// Runs buffers one after the other for a context.
    Buffers {
        /// Whose.
        context: Arc<Context>,
        /// Which.
        buffers: KVVec<Buffer>,
        /// What it waits for.
        gate: Gate<Context>,
    },
    /// Writes zeroes to VRAM.
    Clear(Arc<VramRange>),
}

/// A job.
#[pin_data]
pub(crate) struct Job {
    body: Body,
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Job { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Job { using ListLinks { self.links }; }
}

/// Words of the longest command that a job puts into a ring.
const LONGEST_WORDS: u32 = 10;

impl Job {
    /// Makes a job without a fence; [`Job::publish`] gives it one. `ENOMEM`.
    pub(crate) fn new(body: Body) -> Result<ListArc<Self>> {
        ListArc::pin_init(
            try_pin_init!(Self {
                body,
                fence <- new_spinlock!(None),
                links <- ListLinks::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives the job its fence. From now on nothing may fail.
    pub(crate) fn publish(&self, fence: DriverFence) {
        *self.fence.lock() = Some(fence);
    }

    /// The job's context; `None` for a paging job.
    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        match &self.body {
            Body::Buffers { context, .. } => Some(context),
            Body::Clear(_) => None,
        }
    }

    /// The number by which traces name the job's context; 0 for a paging job.
    pub(crate) fn context_id(&self) -> u32 {
        self.context().map_or(0, |context| context.id())
    }

    /// What the job waits for; `None` for a paging job, which waits for nothing.
    pub(crate) fn gate(&self) -> Option<&Gate<Context>> {
        match &self.body {
            Body::Buffers { gate, .. } => Some(gate),
            Body::Clear(_) => None,
        }
    }

    /// Whether nothing keeps the job from starting.
    pub(crate) fn is_ready(&self) -> bool {
        self.gate().is_none_or(Gate::is_open)
    }

    /// Whether what it waited for has failed.
    pub(crate) fn is_condemned(&self) -> bool {
        self.gate().is_some_and(Gate::has_failed)
    }

    /// The number of commands that the job puts into the ring.
    fn command_count(&self) -> usize {
        match &self.body {
            Body::Buffers { buffers, .. } => buffers.len().max(1),
            Body::Clear(range) => range.blocks().len().saturating_add(1),
        }
    }

    /// Bytes of the ring that suffice for the job wherever the tail is.
    pub(crate) fn ring_bytes(&self) -> u32 {
        let commands = u32::try_from(self.command_count()).unwrap_or(u32::MAX);
        commands
            .saturating_add(1)
            .saturating_mul(LONGEST_WORDS)
            .saturating_mul(4)
    }

    /// Hands the job's ring commands to `emit`, in order; the last one writes fence id `id` and raises
    /// the interrupt.
    pub(crate) fn commands(
        &self,
        dev: &SkuaDevice,
        id: u64,
        mut emit: impl FnMut(&Encoded) -> Result,
    ) -> Result {
        match &self.body {
            Body::Buffers {
                context, buffers, ..
            } => {
                let descriptor = Shared::descriptor_address(&dev.caps, context.slot())?;
                for (index, buffer) in buffers.iter().enumerate() {
                    let last = index + 1 == buffers.len();
                    let exec = Command::Exec {
                        context: descriptor.0,
                        base: buffer.va,
                        start: 0,
                        end: buffer.size,
                        fence: last.then_some(id),
                        interrupt: last,
                    };
                    emit(&exec.encode())?;
                }
                if !buffers.is_empty() {
                    return Ok(());
                }
            }
            Body::Clear(range) => {
                for block in range.blocks() {
                    let fill = Command::Fill {
                        pattern: 0,
                        address: range.address(block)?.0,
                        bytes: VramRange::bytes(block),
                    };
                    emit(&fill.encode())?;
                }
            }
        }
        let fence = Command::Fence {
            fence: id,
            interrupt: true,
        };
        emit(&fence.encode())
    }

    /// Calls `f` with the job's fence, unless it is finished.
    pub(crate) fn with_fence(&self, f: impl FnOnce(&Fence)) {
        if let Some(fence) = self.fence.lock().as_ref() {
            f(fence.fence());
        }
    }

    /// The job is over: signals its fence with `result`. The first call counts.
    ///
    /// May be called with no spinlock of the driver's held, since callbacks run in here.
    pub(crate) fn finish(&self, dev: &SkuaDevice, engine: u32, result: Result) {
        let Some(fence) = self.fence.lock().take() else {
            return;
        };
        match &self.body {
            Body::Buffers { context, .. } => context.count_finished(),
            Body::Clear(range) => {
                if result.is_ok() {
                    range.set_cleared();
                }
            }
        }
        trace::done(dev, engine, self.context_id(), fence.fence(), result);
        fence.signal(result);
    }
}
