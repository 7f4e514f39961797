// SPDX-License-Identifier: GPL-2.0

//! Moves of objects that were [published](super::relocation): their copies, in their turn, and what
//! is to be done before and after.
//!
//! When the copy begins no engine can reach the old memory but the one that copies, whatever works
//! in these address spaces; and none keeps anything of where entries are not valid. So nothing is
//! left to be flushed when page tables lead to the new memory, and nobody waits for the TLBs; but
//! where a bind has led to the old memory meanwhile ([`Vm::reinstall`]).

use crate::{
    ext::{
        device,
        fence::{
            DriverFence,
            FenceContext,
            Signalling, //
        },
        gem, //
    },
    gpu::{
        self,
        SkuaDevice,
        WEDGED, //
    },
    kernel_heap::KernelHeap,
    memory::{
        bo::{
            BoRef,
            ContextUse,
            Memory, //
        },
        move_contexts::MoveContext,
        save_areas,
        vm::{
            for_each_user,
            Vm,
            QUEUE, //
        },
        vram::VramRange, //
    },
    policy::{
        miniport::{
            Flush,
            PagingOperation,
            VRAM_SEGMENT, //
        },
        transfer_plan::{
            TransferError,
            TransferPlan, //
        }, //
    },
    reaper::Reapable,
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        ListLinks, //
    },
    new_condvar,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        SpinLock, //
    },
    time::Jiffies,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// A move that was published: what is to be done when the copy is over.
#[pin_data(PinnedDrop)]
pub(crate) struct Move {
    /// The device that copies.
    dev: ARef<SkuaDevice>,
    /// The object that moves.
    bo: BoRef,
    /// Where its content goes; none if it is thrown away.
    new: Option<Memory>,
    /// Where it came from: given back when nobody can reach it any more.
    old: Memory,
    /// Whether the old memory is kept as a [`CleanCopy`](super::clean_copy::CleanCopy), if that is
    /// not dropped.
    keeps: bool,
    /// Whether it was copied.
    is_copied: bool,
    /// The address space for which the context is that it waits in: that is there as long as this.
    _user: Option<Arc<Vm>>,
    /// The context in which nothing else waits, if that is where it does.
    _alone: Option<MoveContext>,
    /// Whether it counts as [withdrawn](Counts::withdrawn).
    is_counted: Atomic<bool>,
    /// Nothing leads to the old memory any more.
    is_done: Atomic<bool>,
    /// The [generation](Gpu::vram_generation) in which the copy was over.
    generation: Atomic<u32>,
    /// From the end of the copy until all is installed.
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
    /// Installs, in a worker: page tables may be many.
    #[pin]
    work: Work<Self>,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
    /// Last: when it says that the move is over, the old memory is free.
    _under_way: UnderWay,
}

impl_has_work! {
    impl HasWork<Self> for Move { self.work }
}

/// Moves that are under way, for who waits for the room that they leave, or for what cannot move
/// again before.
#[pin_data]
pub(crate) struct Moves {
    /// How many are under way.
    #[pin]
    counts: SpinLock<Counts>,
    /// Notified when one is over.
    #[pin]
    changed: CondVar,
}

/// How many moves are under way, and which of them others have to wait for.
struct Counts {
    /// Moves that have begun and are not over.
    under_way: u32,
    /// Moves that have withdrawn what page tables led to, and are not over: TLBs may know of it.
    withdrawn: u32,
    /// What is to leave VRAM without a move, when the work with it is over.
    leaving: u32,
    /// How many of both have ended since probe, modulo 2^32.
    ended: u32,
    /// The device is lost: nobody is to wait for what does not end.
    is_lost: bool,
}

impl Moves {
    /// Of a device that has moved nothing yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            counts <- new_spinlock!(Counts {
                under_way: 0,
                withdrawn: 0,
                leaving: 0,
                ended: 0,
                is_lost: false,
            }),
            changed <- new_condvar!("Moves::changed"),
        })
    }

    /// Whether there is one that is not over.
    pub(crate) fn any(&self) -> bool {
        self.counts.lock().under_way > 0
    }

    /// Whether TLBs may know of something that no page table says any more, since the move that has
    /// taken it out has not had them flushed yet.
    pub(crate) fn have_withdrawn(&self) -> bool {
        self.counts.lock().withdrawn > 0
    }

    /// How many have ended, for [`Moves::wait`].
    pub(crate) fn ended(&self) -> u32 {
        self.counts.lock().ended
    }

    /// Waits until more have ended than had once, as long as there is `patience`, from which it
    /// takes; whether they are: not if none is under way. `EINTR` if a signal arrives.
    pub(crate) fn wait(&self, ended: u32, patience: &mut Jiffies) -> Result<bool> {
        let mut counts = self.counts.lock();
        let any = counts.under_way > 0 || counts.leaving > 0;
        if counts.ended == ended && any && !counts.is_lost && *patience > 0 {
            match self
                .changed
                .wait_interruptible_timeout(&mut counts, *patience)
            {
                CondVarTimeoutResult::Signal { .. } => return Err(EINTR),
                CondVarTimeoutResult::Timeout => *patience = 0,
                CondVarTimeoutResult::Woken { jiffies } => *patience = jiffies,
            }
        }
        Ok(counts.ended != ended)
    }

    /// Has nobody wait any more, as the device is lost.
    pub(crate) fn lose(&self) {
        self.counts.lock().is_lost = true;
        self.changed.notify_all();
    }
}

/// A move that is not over, or not begun: who needs room waits for it before giving up.
pub(crate) struct UnderWay {
    /// The device that counts it.
    dev: ARef<SkuaDevice>,
    /// Which count it is in.
    count: fn(&mut Counts) -> &mut u32,
}

impl UnderWay {
    /// Counts a move as under way, until this is dropped.
    pub(crate) fn new(dev: &SkuaDevice) -> Self {
        Self::counted(dev, |counts| &mut counts.under_way)
    }

    /// Counts something as leaving VRAM, without a move, until this is dropped.
    pub(crate) fn leaving(dev: &SkuaDevice) -> Self {
        Self::counted(dev, |counts| &mut counts.leaving)
    }

    fn counted(dev: &SkuaDevice, count: fn(&mut Counts) -> &mut u32) -> Self {
        {
            let counts = &mut dev.moves.counts.lock();
            // No wrap: each is in memory.
            *count(counts) = count(counts).wrapping_add(1);
        }
        let dev = dev.into();
        Self { dev, count }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let moves = &self.dev.moves;
        {
            let counts = &mut moves.counts.lock();
            *(self.count)(counts) = (self.count)(counts).wrapping_sub(1);
            counts.ended = counts.ended.wrapping_add(1);
        }
        moves.changed.notify_all();
    }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Move { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Move { using ListLinks { self.links }; }
}

impl Reapable for Move {
    fn bytes(&self) -> u64 {
        // CAST: of 64 bits.
        self.bo.size() as u64
    }
}

/// What becomes of the content of an object that moves.
pub(crate) enum Content {
    /// An engine copies it between VRAM and system memory.
    Copied {
        /// The bytes of both, in pieces that are contiguous in either.
        plan: TransferPlan<KernelHeap>,
        /// Whether it is from VRAM, or else to it.
        out: bool,
        /// Whether the CPU has the system memory cached.
        cached: bool,
    },
    /// Nobody wants it any more; where it was in VRAM.
    Discarded(Arc<VramRange>),
    /// Stays where it is, or is elsewhere already.
    Stays,
}

impl Content {
    /// Copied between `range` of VRAM and `other` memory, to that if it goes `out`. `EIO` if that
    /// is not in the system's pages, or they are not equally large; `ENOMEM`, `ENODEV`.
    pub(crate) fn copied(
        parent: &Device<Bound>,
        range: &VramRange,
        other: &Memory,
        out: bool,
    ) -> Result<Self> {
        let system = other.system().ok_or(EIO)?;
        let plan = system.with_pieces(parent, 0, |pieces| {
            Ok::<_, Error>(TransferPlan::new(range.blocks(), pieces)?)
        })?;
        Ok(Self::Copied {
            plan,
            out,
            cached: system.is_cached(),
        })
    }
}

/// What a move has an engine do.
#[pin_data]
pub(crate) struct Transfer {
    /// What becomes of the content.
    content: Content,
    /// Which address spaces may lead to the old memory.
    pub(crate) flush: Flush,
    /// Whether no page table does any more.
    is_withdrawn: Atomic<bool>,
    /// Whether [`Self::withdraw`] is for a worker: the object is mapped very often.
    takes_long: bool,
    /// Of its fence alone: moves end in any order.
    line: FenceContext,
    /// Until the copy is over.
    #[pin]
    moved: SpinLock<Option<Arc<Move>>>,
}

impl From<TransferError> for Error {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Unequal => EIO,
            TransferError::OutOfMemory => ENOMEM,
        }
    }
}

impl Transfer {
    /// For `moved`, behind a `flush`, of an object that is mapped `often` or not. `ENOMEM`.
    pub(crate) fn new(
        content: Content,
        flush: Flush,
        often: bool,
        moved: Arc<Move>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                is_withdrawn: Atomic::new(flush == Flush::Nothing),
                takes_long: often,
                content,
                flush,
                line: FenceContext::new(c"skua", c"move"),
                moved <- new_spinlock!(Some(moved)),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The paging operation, if it takes one.
    pub(crate) fn operation(&self) -> Option<PagingOperation<'_>> {
        let segment = VRAM_SEGMENT;
        match &self.content {
            Content::Copied { plan, out, cached } => Some(PagingOperation::Transfer {
                segment,
                out: *out,
                cached: *cached,
                pieces: plan.pieces(),
            }),
            Content::Discarded(range) => Some(PagingOperation::Discard {
                segment,
                blocks: range.blocks(),
            }),
            Content::Stays => None,
        }
    }

    /// The fence context of the move's fence, and of no other.
    pub(crate) fn line(&self) -> &FenceContext {
        &self.line
    }

    /// Whether no page table leads to the old memory any more.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Acquire)
    }

    /// Whether whoever makes it may withdraw the old memory, and that is still to be done.
    pub(crate) fn is_quick(&self) -> bool {
        !self.is_withdrawn() && !self.takes_long
    }

    /// Has no page table lead to the old memory, which nobody uses any more. Process context;
    /// allocates nothing.
    pub(crate) fn withdraw(&self) {
        // None if it was cancelled meanwhile.
        let moved = self.moved.lock().clone();
        if let Some(moved) = moved {
            // An error is the device's loss: then it cannot be installed either.
            let _ = moved.withdraw();
            let dev = moved.dev.clone();
            dev.reapers.moves.bury(moved);
        }
        self.is_withdrawn.store(true, Release);
    }

    /// The copy is over, or will not be made: `fence` is signalled when that can be seen. Called
    /// once; allocates nothing.
    pub(crate) fn finish(&self, fence: DriverFence, result: Result) {
        let moved = self.moved.lock().take();
        match (moved, result) {
            (Some(moved), Ok(())) => {
                // Before a reset, or after it: this is not called meanwhile.
                let generation = moved.dev.vram_generation.load(Relaxed);
                moved.generation.store(generation, Relaxed);
                *moved.fence.lock() = Some(fence);
                let queued = QUEUE.enqueue(moved);
                crate::warn_on_once!(queued.is_err());
            }
            (moved, result) => {
                if let Some(moved) = moved {
                    let dev = moved.dev.clone();
                    dev.reapers.moves.bury(moved);
                }
                fence.signal(result);
            }
        }
    }
}

impl Move {
    /// Of `bo`, from `old` memory to `new`, or to nowhere; `is_copied` as [`Content::Copied`],
    /// `keeps` the old as a [`CleanCopy`](super::clean_copy::CleanCopy). It waits in the context
    /// `alone`, which it keeps, or in one that `user` keeps. `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        bo: &BoRef,
        (old, new): (Memory, Option<Memory>),
        is_copied: bool,
        keeps: bool,
        user: Option<Arc<Vm>>,
        alone: Option<MoveContext>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                bo: bo.clone(),
                new,
                old,
                keeps,
                is_copied,
                _user: user,
                _alone: alone,
                is_counted: Atomic::new(false),
                is_done: Atomic::new(false),
                generation: Atomic::new(0),
                fence <- new_spinlock!(None),
                work <- new_work!("Move::work"),
                links <- ListLinks::new(),
                _under_way: UnderWay::new(dev),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Has no page table lead to the old memory. `ENODEV`, `EIO`.
    fn withdraw(&self) -> Result {
        let dev = &*self.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        if self.bo.context_of() == Some(ContextUse::Engine) {
            save_areas::expect_left(dev, &self.bo);
        }
        if !self.is_counted.xchg(true, Relaxed) {
            let counts = &mut dev.moves.counts.lock();
            // No wrap: each is in memory.
            counts.withdrawn = counts.withdrawn.wrapping_add(1);
        }
        let mut result = Ok(());
        for_each_user(dev, &self.bo, |vm| {
            result = result.and(vm.withdraw(gpu::parent(&bound), &self.bo));
            Ok(())
        })?;
        result
    }

    /// Has all page tables lead to the new memory. `ENODEV`, `EIO`.
    fn install(&self) -> Result {
        let dev = &*self.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&bound);
        let generation = self.generation.load(Relaxed);
        match (&self.old, &self.new) {
            // The copy has written all of it.
            (_, Some(Memory::Vram(range))) => range.set_cleared(generation),
            (Memory::Vram(range), _) if self.is_copied && range.is_lost_in(generation) => {
                self.bo.set_content_lost();
            }
            _ => (),
        }
        // `self` holds it.
        drop(match &self.new {
            Some(new) => self.bo.sites.set_memory(new.clone()),
            None => self.bo.sites.forget_memory(),
        });
        let mut result = Ok(());
        for_each_user(dev, &self.bo, |vm| {
            result = result.and(vm.reinstall(parent, &self.bo, self.new.as_ref()));
            Ok(())
        })?;
        result
    }
}

impl WorkItem for Move {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let signalling = Signalling::begin();
        let fence = this.fence.lock().take();
        let dev = this.dev.clone();
        let result = this.install();
        this.is_done.store(result.is_ok(), Relaxed);
        if result.is_err() {
            // It does not answer, or is unbound: what the old memory was for may still reach it.
            dev.doubt(WEDGED);
        }
        // Before the signal: who waits for it may count on the memory.
        dev.reapers.moves.bury(this);
        if let Some(fence) = fence {
            fence.signal(result.map_err(|_| ENODEV));
        }
        // `dev` may be the last reference.
        drop(signalling);
    }
}

#[pinned_drop]
impl PinnedDrop for Move {
    fn drop(self: Pin<&mut Self>) {
        if self.is_counted.load(Relaxed) {
            let counts = &mut self.dev.moves.counts.lock();
            counts.withdrawn = counts.withdrawn.wrapping_sub(1);
        }
        if self.new.as_ref().is_none_or(Memory::is_vram) {
            if self.is_done.load(Relaxed) && !self.keeps {
                // What was in them is in VRAM, or nobody's. Before this it does not come back to
                // them.
                gem::discard(&*self.bo);
            }
            self.bo.end_arrival();
        }
    }
}
