// SPDX-License-Identifier: GPL-2.0

//! A submission: what a client, or the driver, asked for, and the fence that tells when it was
//! done.
//!
//! What an engine sees of it are *portions*: one buffer of commands, or the clearing of some blocks
//! of VRAM. A portion in a ring is a packet ([`crate::submit::packet`]), with a hardware fence id
//! of its own; a submission has one `dma_fence`, which stays the same however often its portions
//! are written. All memory that the way to the ring and back needs is allocated when the submission
//! is made: from the moment at which its fence is published nothing can fail but the work itself.
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
            Fence, //
        },
        trace, //
    },
    fences::gate::Gate,
    gpu::SkuaDevice,
    memory::{
        vm::{
            VA_END,
            VA_START, //
        },
        vram::VramRange, //
    },
    policy::miniport::{
        PagingOperation,
        Task,
        VRAM_SEGMENT, //
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
    /// Write zeroes to this memory (`DXGK_OPERATION_FILL`).
    Clear(Arc<VramRange>),
}

/// Blocks of VRAM that one portion clears: at most this many FILLs, so that every portion fits the
/// ring many times over, however scattered the memory is.
const CLEAR_BLOCKS: usize = 32;
/// Portions after which an engine tells of its progress, so that the ring is filled up in time.
const INTERRUPT_PERIOD: u32 = 8;

/// A submission.
#[pin_data]
pub(crate) struct Submission {
    /// Whose work it is.
    context: Arc<Context>,
    work: Work,
    /// What it waits for before its first portion.
    gate: Gate<Context>,
    /// From publication until it is finished.
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
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

    /// Whose work it is.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What it waits for.
    pub(crate) fn gate(&self) -> &Gate<Context> {
        &self.gate
    }

    /// The number of portions, at least 1.
    pub(crate) fn portions(&self) -> u32 {
        let count = match &self.work {
            Work::Buffers(buffers) => buffers.len(),
            Work::Clear(range) => range.blocks().len().div_ceil(CLEAR_BLOCKS),
        };
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    }

    /// The blocks that clearing portion `portion` is about.
    fn blocks(range: &VramRange, portion: u32) -> &[crate::policy::buddy::PageRange] {
        let blocks = range.blocks();
        let first = (portion as usize).saturating_mul(CLEAR_BLOCKS);
        let end = first.saturating_add(CLEAR_BLOCKS).min(blocks.len());
        blocks.get(first..end).unwrap_or(&[])
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
            Work::Clear(range) => Task::Paging(PagingOperation::Fill {
                segment: VRAM_SEGMENT,
                blocks: Self::blocks(range, portion),
            }),
        }
    }

    /// Whether the end of portion `portion` is to interrupt.
    pub(crate) fn interrupts(&self, portion: u32) -> bool {
        let next = portion.saturating_add(1);
        next == self.portions() || next % INTERRUPT_PERIOD == 0
    }

    /// Calls `f` with the fence, unless the submission is finished.
    pub(crate) fn with_fence(&self, f: impl FnOnce(&Fence)) {
        if let Some(fence) = self.fence.lock().as_ref() {
            f(fence.fence());
        }
    }

    /// The submission is over: signals its fence with `result`. The first call counts.
    ///
    /// Callbacks run in here: not with a spin lock of the driver's held.
    pub(crate) fn finish(&self, dev: &SkuaDevice, engine: EngineIndex, result: Result) {
        let Some(fence) = self.fence.lock().take() else {
            return;
        };
        self.context.count_finished();
        if let (Work::Clear(range), Ok(())) = (&self.work, result) {
            range.set_cleared();
        }
        trace::done(dev, engine.get(), self.context.id(), fence.fence(), result);
        fence.signal(result);
    }
}
