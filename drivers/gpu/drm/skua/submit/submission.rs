// SPDX-License-Identifier: GPL-2.0

//! A submission: what a client, or the driver, asked for, and the fence that tells when it was
//! done.
//!
//! What an engine sees of it are *portions*: one buffer of commands, or one pass of the clearing or
//! copying of VRAM. A portion in a ring is a packet ([`crate::submit::packet`]), with a hardware
//! fence id of its own; a submission has one `dma_fence`, which stays the same however often its
//! portions are written. All memory that the way to the ring and back needs is allocated when the
//! submission is made: from the moment at which its fence is published nothing can fail but the
//! work itself.
//!
//! ```text
//! made ─▶ published ─▶ waiting: its gate is closed, or others are before it ◀─┐
//!                         │                                                  │ preempted
//!                         ▼                                                  │
//!                      in the ring, portion by portion ──────────────────────┤
//!                         │                     ▲                            │
//!                         │                     └─ engine was reset, ◀───────┘
//!                         │                        another was guilty
//!                         │ the last one ended, or one failed
//!                         ▼
//!                      finished: fence signalled, 0 or an error
//! ```

use crate::{
    ext::{
        fence::{
            DriverFence,
            Fence,
            FenceContext, //
        },
        trace, //
    },
    fences::{
        gate::Gate,
        monitored::{
            End,
            Promise, //
        }, //
    },
    few::Few,
    gpu::SkuaDevice,
    memory::{
        bo::Memory,
        clearer::FreeBlocks,
        moves::Transfer,
        vm::{
            VA_END,
            VA_START, //
        },
        vram::{
            BlockList,
            VramRange, //
        }, //
    },
    policy::{
        heap::FallibleVec,
        miniport::{
            Built,
            ContextPage,
            Flush,
            PagingOperation,
            Pass,
            Task,
            VRAM_SEGMENT, //
        },
        paging::MultipassOffset, //
    },
    reaper::Reapable,
    spec::{
        address::GpuVa,
        number::EngineIndex, //
    },
    submit::context::Context, //
};
use kernel::{
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        ListArc,
        ListLinks,
        TryNewListArc, //
    },
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SpinLock, //
    }, //
};

/// A buffer of commands in a process' address space.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    /// GPU virtual address of its first command, a multiple of 8.
    va: GpuVa,
    /// Bytes, a multiple of 8, not 0.
    size: u32,
}

impl Buffer {
    /// Where it is, and its size in bytes.
    pub(crate) fn range(&self) -> (GpuVa, u32) {
        (self.va, self.size)
    }

    /// The `size` bytes at `va`. `EINVAL` if they are none, not aligned, or not all in what a
    /// client can map.
    pub(crate) fn new(va: u64, size: u32) -> Result<Self> {
        let end = va.checked_add(u64::from(size)).ok_or(EINVAL)?;
        let aligned = va % 8 == 0 && size % 8 == 0;
        if !aligned || size == 0 || va < VA_START || end > VA_END {
            return Err(EINVAL);
        }
        Ok(Self {
            va: GpuVa(va),
            size,
        })
    }
}

/// Most buffers of one submission.
pub(crate) const MAX_BUFFERS: u32 = 64;

/// What an engine is to do.
pub(crate) enum Work {
    /// Run these buffers, one after the other, in the context's address space; nothing, if there is
    /// none.
    Buffers(Few<Buffer>),
    /// Write zeroes to these blocks of this memory (`DXGK_OPERATION_VIRTUAL_FILL`).
    Clear(Arc<VramRange>, BlockList),
    /// Write zeroes to free memory.
    ClearFree(FreeBlocks, FenceContext),
    /// Copy an object's memory (`DXGK_OPERATION_VIRTUAL_TRANSFER`), between VRAM and system memory.
    Transfer(Arc<Transfer>),
    /// Write what a context allocation begins with (`DXGK_OPERATION_INIT_CONTEXT_RESOURCE`).
    InitContextResource {
        /// The page of the context's that is to be written.
        page: ContextPage,
        /// What that is of, which stays until this is over.
        _memory: Memory,
    },
    /// Have the engine leave the context, if it holds it.
    Switch,
}

impl Work {
    /// Whether it uses what is mapped in a client's address space.
    pub(crate) fn uses_memory(&self) -> bool {
        matches!(self, Self::Buffers(buffers) if !buffers.is_empty())
    }
}

/// What was asked for with one ioctl, or by the driver. Its context's queue holds it, and each of
/// its packets.
#[pin_data]
pub(crate) struct Submission {
    /// The context in whose order it runs.
    context: Arc<Context>,
    /// What there is to do, in portions.
    work: Work,
    /// What it waits for before its first portion.
    #[pin]
    gate: Gate<Context>,
    /// What it waits for of its own context, before it by their order.
    before: Few<Fence>,
    /// How many of its portions the engine was given, whatever became of them; of the driver's own
    /// it tells nothing.
    given: Atomic<usize>,
    /// From publication until it is finished.
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
    /// Values of monitored fences, given when it was published; kept when it is finished. They go
    /// with the submission: one may have the last reference to its fence.
    #[pin]
    promises: SpinLock<Few<Promise>>,
    /// Whether it is in its context's queue, or with the reaper.
    #[pin]
    listed: AtomicTracker,
    /// Its place in the queue of its context.
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Submission { tracked_by listed: AtomicTracker; }
}

impl_list_item! {
    impl ListItem<0> for Submission { using ListLinks { self.links }; }
}

impl Reapable for Submission {}

/// What one packet is to its portion.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    /// Whether what a pass is about is idle: nothing else of its context was in the ring.
    pub(crate) idle: bool,
    /// How many buffers of the context were given to the engine before this portion, modulo 2^32.
    pub(crate) number: u32,
    /// Whether it goes on where it was preempted: its context's save area had its state.
    pub(crate) resume: bool,
    /// Whether the engine was given the portion before.
    pub(crate) again: bool,
}

impl Submission {
    /// Makes a submission of `work` to `context`, which waits for `waits` and, of the context
    /// itself, `before`. `ENOMEM`.
    pub(crate) fn new(
        context: &Arc<Context>,
        work: Work,
        waits: Few<Fence>,
        before: Few<Fence>,
    ) -> Result<ListArc<Self>> {
        ListArc::pin_init(
            try_pin_init!(Self {
                context: context.clone(),
                work,
                gate <- Gate::new(context, waits)?,
                before,
                given: Atomic::new(0),
                fence <- new_spinlock!(None),
                promises <- new_spinlock!(Few::Empty),
                listed <- AtomicTracker::new(),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Gives the submission its fence, and the `promises` that it is to keep. From now on nothing
    /// may fail.
    pub(crate) fn publish(&self, fence: DriverFence, promises: Few<Promise>) {
        // There were none: nothing is dropped under the locks.
        *self.promises.lock() = promises;
        *self.fence.lock() = Some(fence);
    }

    /// The context in whose order it runs.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What it waits for before its first portion.
    pub(crate) fn gate(&self) -> &Gate<Context> {
        &self.gate
    }

    /// Whether something that it waits for has failed, or is about to tell that.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.gate.has_failed() || self.before.iter().any(Fence::has_error)
    }

    /// Says with which error it will be finished; nothing of it was started.
    pub(crate) fn refuse(&self, error: Error) {
        if let Some(fence) = &mut *self.fence.lock() {
            fence.fail(error);
        }
    }

    /// Whether it is [`Work::Switch`].
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.work, Work::Switch)
    }

    /// Whether its portions are passes of a paging operation.
    pub(crate) fn is_paging(&self) -> bool {
        match &self.work {
            Work::Buffers(_) | Work::Switch => false,
            Work::Clear(..) | Work::ClearFree(..) | Work::InitContextResource { .. } => true,
            Work::Transfer(transfer) => transfer.operation().is_some(),
        }
    }

    /// Whether nothing is to be done before it can start but to wait for its gate.
    pub(crate) fn is_prepared(&self) -> bool {
        match &self.work {
            Work::Transfer(transfer) => transfer.is_withdrawn(),
            _ => true,
        }
    }

    /// Whether something is to be done before it can start, and whoever makes it may do that.
    pub(crate) fn is_quickly_prepared(&self) -> bool {
        match &self.work {
            Work::Transfer(transfer) => transfer.is_quick(),
            _ => false,
        }
    }

    /// Does what is to be done before it starts, when all that it waits for is over. Process
    /// context; allocates nothing.
    pub(crate) fn prepare(&self) {
        if let Work::Transfer(transfer) = &self.work {
            transfer.withdraw();
        }
    }

    /// What an engine is to do for the portion at `from`: number of the buffer, or where a pass
    /// begins.
    pub(crate) fn task(&self, from: MultipassOffset, attempt: Attempt) -> Task<'_> {
        let Attempt {
            idle,
            number,
            resume,
            ..
        } = attempt;
        let segment = VRAM_SEGMENT;
        let flush = match &self.work {
            Work::Transfer(transfer) => transfer.flush.before(from),
            _ => Flush::Nothing,
        };
        let operation = match &self.work {
            Work::Buffers(buffers) => {
                let buffer = buffers.get(from.piece);
                return match buffer.zip(self.context.slot()) {
                    Some((buffer, context)) => Task::Virtual {
                        context,
                        number,
                        va: buffer.va,
                        bytes: buffer.size,
                        resume,
                    },
                    None => Task::Null(flush),
                };
            }
            Work::Clear(_, blocks) => PagingOperation::Fill {
                segment,
                blocks: blocks.as_slice(),
            },
            Work::ClearFree(free, _) => PagingOperation::Fill {
                segment,
                blocks: free.blocks(),
            },
            Work::Transfer(transfer) => match transfer.operation() {
                Some(operation) => operation,
                None => return Task::Null(flush),
            },
            Work::InitContextResource { page, .. } => PagingOperation::InitContextResource(*page),
            // What it holds may be another's by then, unless this one's is still to come.
            Work::Switch if idle && !self.context.is_held() => return Task::Null(flush),
            Work::Switch => return Task::Switch,
        };
        let pass = Pass {
            operation,
            from,
            idle,
        };
        Task::Paging(pass, flush)
    }

    /// Where the portion behind the one at `from` begins, if there is one; of a paging operation
    /// that is `built`.
    pub(crate) fn after(&self, from: MultipassOffset, built: Built) -> Option<MultipassOffset> {
        match &self.work {
            Work::Buffers(buffers) => {
                let piece = from.piece.saturating_add(1);
                (piece < buffers.len()).then_some(MultipassOffset { piece, ..from })
            }
            _ => match built {
                Built::Full(next) => Some(next),
                Built::Last | Built::Busy => None,
            },
        }
    }

    /// How many buffers follow the portion at `from`; none in other work, of which there is little.
    pub(crate) fn buffers_after(&self, from: MultipassOffset) -> usize {
        match &self.work {
            Work::Buffers(buffers) => buffers.len().saturating_sub(from.piece.saturating_add(1)),
            _ => 0,
        }
    }

    /// The engine is given its portion with the number `piece`; by one thread at a time. Whether it
    /// was before.
    pub(crate) fn give(&self, piece: usize) -> bool {
        let again = piece < self.given.load(Relaxed);
        if !again {
            self.given.store(piece.saturating_add(1), Relaxed);
        }
        again
    }

    /// The buffers of the submission that its engine was not given.
    pub(crate) fn never_given(&self) -> impl Iterator<Item = &Buffer> + '_ {
        let buffers = match &self.work {
            Work::Buffers(buffers) => buffers.iter(),
            _ => [].iter(),
        };
        buffers.skip(self.given.load(Relaxed))
    }

    /// Calls `f` with the fence, unless the submission is finished.
    pub(crate) fn with_fence(&self, f: impl FnOnce(&Fence)) {
        if let Some(fence) = self.fence.lock().as_ref() {
            f(fence.fence());
        }
    }

    /// The submission is over: gives it up, then signals its fence with `result`, or has it
    /// signalled when what moved is installed. What it was to signal ends as `end` says. The first
    /// call counts. Who waits for the fence may count on the memory.
    ///
    /// Callbacks run in here: not with a spin lock of the driver's held.
    pub(crate) fn finish(
        self: Arc<Self>,
        dev: &SkuaDevice,
        engine: EngineIndex,
        result: Result,
        end: End,
    ) {
        let mut fence = self.fence.lock().take();
        if let Some(fence) = &fence {
            trace::done(dev, engine.get(), self.context.id(), fence.fence(), result);
        }
        // To leave a context is no work of its client's.
        if fence.is_some() && !self.is_switch() {
            self.context.count_finished();
            let mut promises = core::mem::take(&mut *self.promises.lock());
            promises.iter_mut().for_each(|promise| promise.keep(end));
            // Back to where they are freed with the submission.
            *self.promises.lock() = promises;
        }
        match &self.work {
            Work::Clear(range, _) if fence.is_some() && result.is_ok() => {
                range.set_cleared(dev.vram_generation.load(Relaxed));
            }
            Work::ClearFree(free, _) if fence.is_some() => free.finish(result),
            Work::Transfer(transfer) => {
                if let Some(fence) = fence.take() {
                    transfer.finish(fence, result);
                }
            }
            _ => (),
        }
        self.gate.close();
        dev.reapers.submissions.bury(self);
        if let Some(fence) = fence {
            fence.signal(result);
        }
    }

    /// The line that its fence is of, if it is not its context's.
    pub(crate) fn line(&self) -> Option<&FenceContext> {
        match &self.work {
            Work::Transfer(transfer) => Some(transfer.line()),
            Work::ClearFree(_, line) => Some(line),
            _ => None,
        }
    }

    /// Whether it is for an idle engine alone.
    pub(crate) fn is_background(&self) -> bool {
        matches!(self.work, Work::ClearFree(..))
    }
}
