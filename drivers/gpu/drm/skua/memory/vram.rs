// SPDX-License-Identifier: GPL-2.0

//! VRAM: who has which pages.
//!
//! The allocator is [`crate::policy::buddy`]; this file gives its blocks an owner. A [`VramRange`]
//! is the memory of one buffer object, one or several blocks, and returns them when dropped. Freed
//! memory holds what its client left in it, until it is cleared in the background
//! ([`clearer`](super::clearer)); what was not by the time at which it is given out again is
//! cleared then, before any client sees it, and [`VramRange::is_cleared`] tells when that is done.
//! When the device is reset all of it becomes zero ([`VramRange::is_lost`]).
//!
//! A range is charged for the control group of the process that asked for it ([`dmem`]), from
//! before it is allocated until its blocks are free.
//!
//! Lock: [`Gpu::vram`](crate::gpu::Gpu), a mutex under which the allocator may allocate. Nothing
//! that leads to a fence's signal takes it, so a range must not be dropped there.

use crate::{
    ext::{
        dmem::{
            self,
            Charge,
            Held,
            Refusal, //
        },
        trace, //
    },
    gpu::SkuaDevice,
    kernel_heap::{
        DriverHeap,
        KernelHeap, //
    },
    memory::{
        clearer::Pause,
        host_aperture, //
    },
    policy::{
        blocks::Blocks,
        buddy::{
            Buddy,
            BuddyError,
            PageCount,
            PageIndex,
            PageRange,
            Scattered,
            PAGE_BYTES, //
        },
        heap::{
            FallibleVec,
            Heap, //
        },
        page_plan::PhysPiece, //
    },
    quota::Quota,
    spec::address::VramOffset, //
};
use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    time::Jiffies, //
};

/// Blocks of one owner, in the order of its bytes.
pub(crate) type BlockList = <KernelHeap as Heap>::Vec<PageRange>;

/// The allocator of one device's VRAM.
pub(crate) type Pages = Buddy<DriverHeap>;

/// An allocator for `bytes` bytes of VRAM. `ENOMEM`, `EINVAL`.
pub(crate) fn pages(bytes: u64) -> Result<Pages> {
    Pages::new(PageCount(bytes / PAGE_BYTES)).map_err(errno)
}

/// Tells who traces it how much of VRAM is in use.
fn tell_use(dev: &SkuaDevice, vram: &Pages) {
    let bytes = |pages: PageCount| pages.0.saturating_mul(PAGE_BYTES);
    let (size, free) = (bytes(vram.total()), bytes(vram.free_pages()));
    trace::memory(dev, c"vram0", size.saturating_sub(free), size);
}

/// The errno of an allocator's refusal.
pub(crate) fn errno(error: BuddyError) -> Error {
    match error {
        BuddyError::NoSpace | BuddyError::Busy => ENOSPC,
        BuddyError::OutOfMemory => ENOMEM,
        BuddyError::Invalid | BuddyError::NotAllocated => EINVAL,
    }
}

/// What part of VRAM an object can use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it. What the CPU does not see comes first: others have to do without.
    Any,
    /// What the CPU sees.
    Visible,
    /// All of it, which the CPU reaches through an aperture where it does not see it. What it sees
    /// comes first.
    Reachable,
}

impl Part {
    /// The pages behind the last of the part. They begin with 0.
    fn end(self, dev: &SkuaDevice) -> PageIndex {
        let caps = &dev.hw.caps;
        let bytes = match self {
            Self::Any | Self::Reachable => caps.vram_size,
            Self::Visible => caps.vram_visible,
        };
        PageIndex(bytes / PAGE_BYTES)
    }

    /// What blocks are made of. A page of the aperture shows one object's memory, and what follows
    /// its end is no other's that the CPU maps.
    pub(crate) fn granule(self, dev: &SkuaDevice) -> PageCount {
        match (self, dev.hw.caps.aperture) {
            (Self::Reachable, Some(aperture)) => PageCount(aperture.page.bytes() / PAGE_BYTES),
            _ => PageCount(1),
        }
    }

    /// Size of the part in bytes, whether or not they are free.
    pub(crate) fn bytes(self, dev: &SkuaDevice) -> u64 {
        self.end(dev).0.saturating_mul(PAGE_BYTES)
    }

    /// How much of it is free, in bytes, in pieces that are large enough.
    pub(crate) fn free_bytes(self, dev: &SkuaDevice) -> u64 {
        let granule = self.granule(dev).0;
        let vram = dev.vram.lock();
        let pages = match granule {
            1 => vram.free_below(self.end(dev)).0,
            // A part with such pieces is all of VRAM.
            _ => vram.free_in(granule.ilog2()).0,
        };
        pages.saturating_mul(PAGE_BYTES)
    }
}

/// The next [`VramRange::number`].
static NEXT: Atomic<u32> = Atomic::new(0);

/// In [`VramRange::state`]: some of it was shown by the CPU host aperture.
const SHOWN: u32 = 1 << 31;
/// In [`VramRange::state`]: it was given to be cleared, not to be moved to.
const CLEARED_ALONE: u32 = 1 << 30;
/// In [`VramRange::state`]: 0 as long as something of an earlier owner may be left in a block; then
/// one more than the [generation](crate::gpu::Gpu::vram_generation) in which its content was
/// written, which is too small for another digit.
const WRITTEN: u32 = CLEARED_ALONE - 1;

// One word more takes half as much again.
const _: () = assert!(size_of::<VramRange>() <= 56);

/// The VRAM of one buffer object.
pub(crate) struct VramRange {
    /// Which of all that there ever were, modulo 2^32.
    number: u32,
    /// [`SHOWN`], [`CLEARED_ALONE`], [`WRITTEN`].
    state: Atomic<u32>,
    /// Whose allocator gets the blocks back.
    dev: ARef<SkuaDevice>,
    /// Whole pages, which nobody else has; fixed after creation.
    blocks: Blocks<KernelHeap>,
    /// The quota of system memory of the owner's client: for when it has to move there.
    quota: Arc<Quota>,
    /// For whose control group all its blocks are charged.
    held: Held,
}

/// What keeps a range from being allocated.
pub(crate) enum Lack {
    /// There are not so many free pages, or not in pieces that are large enough.
    Room,
    /// The right of the process' control group to have more.
    Limit(dmem::Pool),
    /// Something else: `ENOMEM`, `ENODEV`, `EINTR`.
    Error(Error),
}

impl From<Error> for Lack {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl VramRange {
    /// Allocates `bytes` bytes of `part`, a multiple of the page size, for the control group of the
    /// running process; something is to be moved there, and it is not cleared for that.
    ///
    /// What leaves it counts against `quota`. Waits for what is being cleared, as long as there is
    /// `patience`, from which it takes. `ENOSPC` if there is no room, or the group may have no
    /// more; `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
    pub(crate) fn new(
        dev: &SkuaDevice,
        quota: &Arc<Quota>,
        part: Part,
        bytes: u64,
        patience: &mut Jiffies,
    ) -> Result<Arc<Self>> {
        match Self::try_new(dev, quota, part, bytes, &mut None, patience) {
            Ok((range, _)) => Ok(range),
            Err(Lack::Room | Lack::Limit(_)) => Err(ENOSPC),
            Err(Lack::Error(error)) => Err(error),
        }
    }

    /// Does what [`VramRange::new`] does with `charge`, of as many bytes, which it makes if there
    /// is none, and leaves there if there is no room; and tells what of the range is dirty.
    pub(crate) fn try_new(
        dev: &SkuaDevice,
        quota: &Arc<Quota>,
        part: Part,
        bytes: u64,
        charge: &mut Option<Charge>,
        patience: &mut Jiffies,
    ) -> Result<(Arc<Self>, BlockList), Lack> {
        if charge.is_none() {
            let charged = dev.vram_region()?.charge(bytes);
            *charge = Some(charged.map_err(|refusal| match refusal {
                Refusal::Limit(pool) => Lack::Limit(pool),
                Refusal::Error(error) => Lack::Error(error),
            })?);
        }
        let (end, visible) = (part.end(dev).0, Part::Visible.end(dev).0);
        let request = Scattered {
            pages: PageCount(bytes / PAGE_BYTES),
            granule: part.granule(dev),
            within: PageRange::new(0, end),
        };
        let preferred = Scattered {
            granule: PageCount(1),
            within: match part {
                Part::Reachable => PageRange::new(0, visible),
                // No overflow: what is visible is a part of all.
                _ => PageRange::new(visible, end.saturating_sub(visible)),
            },
            ..request
        };
        let allocated = match allocate(dev, &preferred, &request) {
            Err(BuddyError::NoSpace) => {
                // What is missing may be being cleared, or was just now.
                let _pause = Pause::new(dev, patience)?;
                allocate(dev, &preferred, &request)
            }
            allocated => allocated,
        };
        let (blocks, dirty) = match allocated {
            Err(BuddyError::NoSpace) => return Err(Lack::Room),
            allocated => allocated.map_err(errno)?,
        };
        let range = Self {
            number: NEXT.fetch_add(1, Relaxed),
            state: Atomic::new(0),
            dev: dev.into(),
            blocks,
            quota: quota.clone(),
            // As many as were asked for.
            held: charge.take().ok_or(EIO)?.hold(),
        };
        let range = Arc::new(range, GFP_KERNEL_ACCOUNT).map_err(Error::from)?;
        Ok((range, dirty))
    }

    /// A number that no other has, nor had within hours.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The quota of system memory of its owner's client.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// For whose control group it is charged.
    pub(crate) fn charge(&self) -> &Held {
        &self.held
    }

    /// How much of it is in `part`, in bytes.
    pub(crate) fn bytes_in(&self, part: Part) -> u64 {
        let end = part.end(&self.dev).0;
        let pages = |block: &PageRange| end.saturating_sub(block.start.0).min(block.pages.0);
        let pages = self.blocks().iter().map(pages);
        pages
            .fold(0, u64::saturating_add)
            .saturating_mul(PAGE_BYTES)
    }

    /// Whether the CPU sees all of it.
    pub(crate) fn is_visible(&self) -> bool {
        let end = Part::Visible.end(&self.dev).0;
        let mut blocks = self.blocks().iter();
        // No overflow: pages that exist.
        blocks.all(|block| block.start.0.saturating_add(block.pages.0) <= end)
    }

    /// Its blocks, in the order of the bytes that they hold.
    pub(crate) fn blocks(&self) -> &[PageRange] {
        self.blocks.as_slice()
    }

    /// Length of a block in bytes.
    fn bytes(block: &PageRange) -> u64 {
        block.pages.0.saturating_mul(PAGE_BYTES)
    }

    /// Where a block is in VRAM.
    fn offset(block: &PageRange) -> VramOffset {
        VramOffset(block.start.0.saturating_mul(PAGE_BYTES))
    }

    /// The memory as the GPU sees it, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = PhysPiece> + '_ {
        self.blocks().iter().map(|block| PhysPiece {
            // No overflow: the window was checked at probe to lie within the address bits.
            start: self
                .dev
                .hw
                .caps
                .vram_base
                .0
                .saturating_add(Self::offset(block).0),
            len: Self::bytes(block),
        })
    }

    /// Offset in VRAM, and so in its BAR, of page `page` of the range.
    pub(crate) fn page_offset(&self, page: usize) -> Option<usize> {
        let at = self.blocks.find(u64::try_from(page).ok()?)?;
        usize::try_from(at.0.checked_mul(PAGE_BYTES)?).ok()
    }

    /// The device whose VRAM the range is of.
    pub(crate) fn dev(&self) -> &SkuaDevice {
        &self.dev
    }

    /// Whether some of it may be shown by the CPU host aperture.
    pub(crate) fn is_shown(&self) -> bool {
        self.state.load(Relaxed) & SHOWN != 0
    }

    /// Some of it is about to be shown by the CPU host aperture.
    pub(crate) fn set_shown(&self) {
        self.change_state(SHOWN, SHOWN);
    }

    /// Has some digits of the state be others.
    fn change_state(&self, digits: u32, value: u32) {
        let mut state = self.state.load(Relaxed);
        while let Err(now) = self.state.cmpxchg(state, state & !digits | value, Release) {
            state = now;
        }
    }

    /// The copy engine is to write zeroes where it is dirty.
    pub(crate) fn set_cleared_alone(&self) {
        self.change_state(CLEARED_ALONE, CLEARED_ALONE);
    }

    /// Whether [`Self::set_cleared_alone`] was called; if not, a move writes it.
    pub(crate) fn is_cleared_alone(&self) -> bool {
        self.state.load(Relaxed) & CLEARED_ALONE != 0
    }

    /// Zeroes, or an object's content, are written to all of it, in this
    /// [generation](crate::gpu::Gpu::vram_generation).
    pub(crate) fn set_cleared(&self, generation: u32) {
        self.change_state(WRITTEN, generation.wrapping_add(1) & WRITTEN);
    }

    /// Whether nothing of an earlier owner is left in it.
    pub(crate) fn is_cleared(&self) -> bool {
        self.state.load(Acquire) & WRITTEN != 0
    }

    /// Whether the content that it had was lost before this generation.
    pub(crate) fn is_lost_in(&self, generation: u32) -> bool {
        let now = generation.wrapping_add(1) & WRITTEN;
        self.is_cleared() && self.state.load(Relaxed) & WRITTEN != now
    }

    /// Whether the content that it had was lost when the device was reset: it is zero, but for what
    /// was written since.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost_in(self.dev.vram_generation.load(Acquire))
    }
}

impl Drop for VramRange {
    fn drop(&mut self) {
        if self.is_shown() {
            host_aperture::give_back(self);
        }
        let bytes = self.bytes_in(Part::Any);
        free(&self.dev, self.blocks());
        self.dev.clearer.kick();
        self.held.give_back(bytes);
    }
}

/// Allocates `preferred`, or else `request`, and tells what of it is not clean.
fn allocate(
    dev: &SkuaDevice,
    preferred: &Scattered,
    request: &Scattered,
) -> Result<(Blocks<KernelHeap>, BlockList), BuddyError> {
    // There are no more pieces than pages.
    let most = usize::try_from(request.pages.0).unwrap_or(usize::MAX);
    let mut room = 4;
    loop {
        let (mut blocks, mut dirty) = (BlockList::fixed(room)?, BlockList::fixed(room)?);
        match list(dev, preferred, request, &mut blocks, &mut dirty) {
            Err(BuddyError::OutOfMemory) if blocks.is_too_short() || dirty.is_too_short() => {
                room = room.saturating_mul(4).min(most);
                continue;
            }
            listed => listed?,
        }
        return match Blocks::take(&mut blocks) {
            Ok(blocks) => Ok((blocks, dirty)),
            Err(error) => {
                free(dev, blocks.as_slice());
                Err(error.into())
            }
        };
    }
}

/// Does that, as far as there is room in the lists for what it is made of, and what is not clean.
fn list(
    dev: &SkuaDevice,
    preferred: &Scattered,
    request: &Scattered,
    blocks: &mut BlockList,
    dirty: &mut BlockList,
) -> Result<(), BuddyError> {
    let mut vram = dev.vram.lock();
    let mut allocated = Err(BuddyError::NoSpace);
    if preferred.within.pages.0 > 0 {
        allocated = vram.alloc_scattered(*preferred, blocks, dirty);
    }
    if allocated == Err(BuddyError::NoSpace) {
        allocated = vram.alloc_scattered(*request, blocks, dirty);
    }
    allocated?;
    // Before the engine is given anything to do with it.
    dev.vram_ranges.fetch_add(1, Full);
    tell_use(dev, &vram);
    Ok(())
}

/// Frees what [`list`] has allocated.
fn free(dev: &SkuaDevice, blocks: &[PageRange]) {
    let mut vram = dev.vram.lock();
    for block in blocks {
        crate::warn_on_once!(vram.free(*block).is_err());
    }
    tell_use(dev, &vram);
    dev.vram_frees.fetch_add(1, Relaxed);
    dev.vram_ranges.fetch_sub(1, Full);
}
