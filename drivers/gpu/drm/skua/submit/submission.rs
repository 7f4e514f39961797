// SPDX-License-Identifier: GPL-2.0

//! A submission: what a client, or the driver, asked for, and the fence that tells when it was
//! done.
//!
//! What an engine sees of it are *portions*: one buffer of commands, or the clearing or copying of
//! some blocks of VRAM. A portion in a ring is a packet ([`crate::submit::packet`]), with a hardware
//! fence id of its own; a submission has one `dma_fence`, which stays the same however often its
//! portions are written. All memory that the way to the ring and back needs is allocated when the
//! submission is made: from the moment at which its fence is published nothing can fail but the
//! work itself.
//!
//! ```text
//! made ─▶ published ─▶ waiting (its gate is closed, or others are before it)
//!                        │
//!                        ▼                    ┌─ engine was reset, another was guilty ─┐
//!                      portion 0, 1, … in the ring ◀──────────────────────────────────┘
//!                        │ the last one ended, or one failed
//!                        ▼
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
    fences::gate::Gate,
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    memory::{
        relocation::Transfer,
        vm::{
            VA_END,
            VA_START, //
        },
        vram::VramRange, //
    },
    policy::{
        buddy::PageRange,
        miniport::{
            PagingOperation,
            Task,
            VRAM_SEGMENT, //
        }, //
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
    /// A multiple of 8.
    va: GpuVa,
    /// Bytes, a multiple of 8, not 0.
    size: u32,
}

impl Buffer {
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
    Buffers(KVVec<Buffer>),
    /// Write zeroes to this memory (`DXGK_OPERATION_FILL`), piece by piece.
    Clear(Arc<VramRange>, KVVec<PageRange>),
    /// Copy an object's memory (`DXGK_OPERATION_TRANSFER`), between VRAM and system memory.
    Transfer(Arc<Transfer>),
}

impl Work {
    /// The clearing of `range`. `ENOMEM`.
    pub(crate) fn clear(range: &Arc<VramRange>) -> Result<Self> {
        let mut pieces = KVVec::new();
        for block in range.blocks() {
            let (mut start, mut left) = (block.start.0, block.pages.0);
            while left > 0 {
                let pages = left.min(CLEAR_PAGES);
                pieces.push(PageRange::new(start, pages), client_flags())?;
                // No overflow: within the block.
                start = start.saturating_add(pages);
                left = left.saturating_sub(pages);
            }
        }
        Ok(Self::Clear(range.clone(), pieces))
    }
}

/// Pages that one FILL clears at most.
const CLEAR_PAGES: u64 = 256;
/// FILLs of one portion, at most: so that it fits the ring many times over, however scattered the
/// memory is, and ends in time, however large.
const CLEAR_FILLS: usize = 32;
/// Portions after which an engine tells of its progress, so that the ring is filled up in time.
const INTERRUPT_PERIOD: u32 = 8;

/// What was asked for with one ioctl, or by the driver. Its context's queue holds it, and each of
/// its packets.
#[pin_data]
pub(crate) struct Submission {
    /// The context in whose order it runs.
    context: Arc<Context>,
    /// What there is to do, in portions.
    work: Work,
    /// What it waits for before its first portion.
    gate: Gate<Context>,
    /// From publication until it is finished.
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
    /// Its place in its context's queue, later in the reaper's list.
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Submission { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Submission { using ListLinks { self.links }; }
}

impl Reapable for Submission {}

impl Submission {
    /// Makes a submission of `work` to `context`. `ENOMEM`.
    pub(crate) fn new(
        context: &Arc<Context>,
        work: Work,
        gate: Gate<Context>,
    ) -> Result<ListArc<Self>> {
        ListArc::pin_init(
            try_pin_init!(Self {
                context: context.clone(),
                work,
                gate,
                fence <- new_spinlock!(None),
                links <- ListLinks::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Gives the submission its fence. From now on nothing may fail.
    pub(crate) fn publish(&self, fence: DriverFence) {
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

    /// The number of portions, at least 1.
    pub(crate) fn portions(&self) -> u32 {
        let count = match &self.work {
            Work::Buffers(buffers) => buffers.len(),
            Work::Clear(_, pieces) => pieces.len().div_ceil(CLEAR_FILLS),
            Work::Transfer(transfer) => transfer.plan.portions(),
        };
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    }

    /// What an engine is to do for portion `portion`.
    pub(crate) fn task(&self, portion: u32) -> Task<'_> {
        match &self.work {
            Work::Buffers(buffers) => {
                let buffer = buffers.get(portion as usize);
                match buffer.zip(self.context.slot()) {
                    Some((buffer, context)) => Task::Virtual {
                        context,
                        va: buffer.va,
                        bytes: buffer.size,
                    },
                    None => Task::Null,
                }
            }
            Work::Clear(_, pieces) => {
                let pieces = pieces.chunks(CLEAR_FILLS).nth(portion as usize);
                Task::Paging(PagingOperation::Fill {
                    segment: VRAM_SEGMENT,
                    blocks: pieces.unwrap_or(&[]),
                })
            }
            Work::Transfer(transfer) => Task::Paging(PagingOperation::Transfer {
                segment: VRAM_SEGMENT,
                out: transfer.out,
                pieces: transfer.plan.portion(portion as usize),
            }),
        }
    }

    /// Whether the end of portion `portion` is to interrupt.
    pub(crate) fn interrupts(&self, portion: u32) -> bool {
        let next = portion.saturating_add(1);
        let period = match self.work {
            // The miniport has few windows.
            Work::Transfer(_) => 1,
            _ => INTERRUPT_PERIOD,
        };
        next == self.portions() || next % period == 0
    }

    /// Calls `f` with the fence, unless the submission is finished.
    pub(crate) fn with_fence(&self, f: impl FnOnce(&Fence)) {
        if let Some(fence) = self.fence.lock().as_ref() {
            f(fence.fence());
        }
    }

    /// The submission is over: gives it up, then signals its fence with `result`, or has it signalled
    /// when what moved is installed. The first call counts. Who waits for the fence may count on
    /// the memory.
    ///
    /// Callbacks run in here: not with a spin lock of the driver's held.
    pub(crate) fn finish(self: Arc<Self>, dev: &SkuaDevice, engine: EngineIndex, result: Result) {
        let mut fence = self.fence.lock().take();
        if let Some(fence) = &fence {
            self.context.count_finished();
            trace::done(dev, engine.get(), self.context.id(), fence.fence(), result);
        }
        match &self.work {
            Work::Clear(range, _) if fence.is_some() && result.is_ok() => range.set_cleared(),
            Work::Transfer(transfer) => {
                if let Some(fence) = fence.take() {
                    transfer.finish(fence, result);
                }
            }
            _ => (),
        }
        dev.reapers.submissions.bury(self);
        if let Some(fence) = fence {
            fence.signal(result);
        }
    }

    /// The line that its fence is of, if it is not its context's.
    pub(crate) fn line(&self) -> Option<&FenceContext> {
        match &self.work {
            Work::Transfer(transfer) => Some(transfer.line()),
            _ => None,
        }
    }
}
