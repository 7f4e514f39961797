// SPDX-License-Identifier: GPL-2.0

//! The aperture segment: system pages of objects, in one piece each, in the window of the GART
//! (rows 1.17, 1.22).
//!
//! An object whose pages are mapped there is *in the aperture*. Page tables then lead to the
//! window, and the GART's entries from there to the pages, which are those that the CPU maps:
//!
//! ```text
//! GPU  va ─▶ page tables ─▶ window ─▶ GART ─┐
//!                                           ├─▶ the object's system pages
//! CPU  va ──────────────────────────────────┘
//! ```
//!
//! A [`GartRange`] is a part of the window with what it shows. It is made when an object comes to
//! the aperture, and dropped when no page table leads to it any more: then its entries lead to the
//! dummy page, a flush of the system's translations has all engines know it, and both window and
//! pages are free. No byte is copied, neither way.
//!
//! Who may be elsewhere as well leaves the aperture for who may be nowhere else; what may not be in
//! system memory is [out](super::evicted) then. What is in the aperture alone stays there. Who
//! leaves, and in which order, is decided as for VRAM
//! ([`policy::eviction`](crate::policy::eviction)); but first it is planned: who is not where there
//! is to be room does not have to leave, and nobody leaves if there can be none in one piece.
//!
//! Lock: [`Gpu::gart`](crate::gpu::Gpu), a mutex under which the allocator may allocate. Entries
//! are written without it: each has one owner.

use crate::{
    ext::{
        fence::Fence,
        gem::{
            self,
            Placement, //
        },
        lru,
        resv,
        trace, //
    },
    gpu::SkuaDevice,
    kernel_heap::{
        DriverHeap,
        KernelHeap, //
    },
    memory::{
        bo::{
            Bo,
            BoData,
            BoRef,
            SystemMemory,
            SystemSite,
            REGION_APERTURE, //
        },
        eviction::{
            self,
            Segment, //
        },
        relocation::{
            relocate,
            Reason, //
        }, //
    },
    policy::{
        aperture_segment::{
            self,
            ApertureSegment,
            Plan, //
        },
        buddy::{
            BuddyError,
            PageCount,
            PageRange,
            PAGE_BYTES, //
        },
        eviction::{
            Facts,
            Hold,
            Need,
            NextUse,
            Place, //
        },
        miniport::Miniport,
        page_plan::PhysPiece,
        priority::{
            Level,
            Rank, //
        },
        segment_sets, //
    },
    spec::number::Asid, //
};
use core::{
    iter::Flatten,
    mem::replace,
    option, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc, //
    },
    time::Jiffies, //
};

/// Who has which pages of the window.
pub(crate) type Window = ApertureSegment<DriverHeap>;
/// What of the window there is to be room in.
type Room = aperture_segment::Room<KernelHeap>;

/// The window of a device with so many pages, of which the first `own` are its driver's. `ENOMEM`.
pub(crate) fn window(pages: u32, own: u32) -> Result<Window> {
    Window::new(PageCount(pages.into()), PageCount(own.into())).map_err(errno)
}

/// The errno of an allocator's refusal.
fn errno(error: BuddyError) -> Error {
    match error {
        BuddyError::NoSpace | BuddyError::Busy => ENOSPC,
        BuddyError::OutOfMemory => ENOMEM,
        BuddyError::Invalid | BuddyError::NotAllocated => EINVAL,
    }
}

/// Tells who traces it how much of the window is in use.
fn tell_use(dev: &SkuaDevice, window: &Window) {
    let bytes = |pages: PageCount| pages.0.saturating_mul(PAGE_BYTES);
    trace::memory(
        dev,
        c"aperture",
        bytes(window.used()),
        bytes(window.total()),
    );
}

/// A part of the window, and the system pages that it shows.
pub(crate) struct GartRange {
    /// The device whose window the range is of.
    dev: ARef<SkuaDevice>,
    /// The part, from the window's first page on.
    pages: PageRange,
    /// What it shows, kept as long as engines may reach it.
    memory: Arc<SystemMemory>,
}

impl GartRange {
    /// Has a part of the window show `memory`, of `bytes` bytes, where there is room.
    ///
    /// Process context; waits for the engines. `ENOSPC`, `ENOMEM`, `EIO`, `ENODEV`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        memory: &Arc<SystemMemory>,
        bytes: u64,
    ) -> Result<Arc<Self>> {
        let cached = memory.is_cached();
        let segments = dev.hw.query_segments();
        let mut apertures = segments.iter().filter(|it| it.id == REGION_APERTURE);
        if !apertures.all(|aperture| aperture.may_show(cached)) {
            // Nor will there be: it has to be elsewhere.
            return Err(ENOSPC);
        }
        let pages = {
            let mut window = dev.gart.lock();
            let pages = window.alloc(PageCount(bytes / PAGE_BYTES));
            tell_use(dev, &window);
            pages
        };
        // From here on it takes itself back.
        let range = Self {
            dev: dev.into(),
            pages: pages.map_err(errno)?,
            memory: memory.clone(),
        };
        memory.with_pieces(parent, 0, |pieces| {
            dev.hw
                .map_aperture_segment(REGION_APERTURE, range.pages, pieces, cached)
        })?;
        // A stray access may have had the dummy page kept.
        dev.invalidate(Some(Asid::SYSTEM))?;
        dev.counters.segment_maps.fetch_add(1, Relaxed);
        Ok(Arc::new(range, GFP_KERNEL_ACCOUNT)?)
    }

    /// The part of the window, from its first page on.
    pub(crate) fn pages(&self) -> PageRange {
        self.pages
    }

    /// The system memory that its pages show.
    pub(crate) fn memory(&self) -> &Arc<SystemMemory> {
        &self.memory
    }

    /// Where the GPU finds it: in one piece.
    pub(crate) fn piece(&self) -> PhysPiece {
        let base = self.dev.hw.caps.gart_base.0;
        PhysPiece {
            // No overflow: the window was checked at probe to lie within the address bits.
            start: base.saturating_add(self.pages.start.0.saturating_mul(PAGE_BYTES)),
            len: self.pages.pages.0.saturating_mul(PAGE_BYTES),
        }
    }
}

impl Drop for GartRange {
    fn drop(&mut self) {
        let dev = &self.dev;
        let unmapped = dev
            .hw
            .unmap_aperture_segment(REGION_APERTURE, self.pages)
            .and_then(|()| dev.invalidate(Some(Asid::SYSTEM)));
        if unmapped.is_err() && !dev.reapers.is_quiet() {
            // Nobody knows whether it is reached any more: neither is used again.
            core::mem::forget(self.memory.clone());
            return;
        }
        dev.counters.segment_unmaps.fetch_add(1, Relaxed);
        // Ours since `new()`.
        let mut window = dev.gart.lock();
        crate::warn_on_once!(window.free(self.pages).is_err());
        tell_use(dev, &window);
    }
}

/// The list of objects in the aperture that may leave it, for a priority.
pub(crate) const fn rank(level: Level) -> u8 {
    // CAST: few.
    level as u8 + Level::ALL.len() as u8
}

/// Has `memory` of an object, of `bytes` bytes, be in the aperture: where there is room, or, if it
/// `need`s that, where others make some.
///
/// `ENOSPC` if there is none, or what is there has to stay, or is in use for long; `ENOMEM`, `EIO`,
/// `ENODEV`; `EINTR` if a signal arrives.
pub(crate) fn map(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    memory: &Arc<SystemMemory>,
    bytes: u64,
    need: Need,
    patience: &mut Jiffies,
) -> Result<Arc<GartRange>> {
    match need {
        Need::Needs => map_alone(dev, parent, memory, bytes, patience),
        _ => GartRange::new(dev, parent, memory, bytes),
    }
}

/// [`map`] for what has no other place.
fn map_alone(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    memory: &Arc<SystemMemory>,
    bytes: u64,
    patience: &mut Jiffies,
) -> Result<Arc<GartRange>> {
    let mut nobody_leaves = false;
    loop {
        let ended = dev.moves.ended();
        match GartRange::new(dev, parent, memory, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        // Perhaps there is room in what is about to be freed; that may be others', and much.
        let limit = match nobody_leaves {
            true => *patience,
            false => eviction::first(),
        };
        eviction::within(limit, patience, |left| dev.destroyer.settle(dev, left))?;
        match GartRange::new(dev, parent, memory, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        let is_possible = *patience > 0 && dev.gart.lock().total().0 >= bytes / PAGE_BYTES;
        let made = is_possible && make_room(dev, parent, bytes, patience)?;
        // Or in what leaves just now, or comes and can leave after that.
        if !is_possible || (!made && !dev.moves.wait(ended, patience)?) {
            if is_possible && !replace(&mut nobody_leaves, true) {
                continue;
            }
            let place = Aperture::whole(dev, parent);
            eviction::tell_no_room(
                dev,
                &place,
                c"aperture",
                free_bytes(dev),
                bytes,
                Need::Needs,
            );
            return Err(ENOSPC);
        }
        dev.check_health()?;
        // Others may never end to come.
        *patience = patience.saturating_sub(1);
    }
}

/// Has objects leave the aperture for one of `bytes` bytes, and waits until they have. Whether
/// there may be more room now.
fn make_room(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bytes: u64,
    patience: &mut Jiffies,
) -> Result<bool> {
    // It is always as large; the memory before the lock, for which all others wait.
    let window = dev.gart.lock().window();
    let plan = Plan::new(window, PageCount(bytes / PAGE_BYTES)).map_err(errno)?;
    let plan = dev.gart.lock().plan(plan);
    if plan.piece().is_some() {
        // Somebody was faster.
        return Ok(true);
    }
    let mut place = Aperture::new(dev, parent, Room::new(Some(plan)));
    if !aperture_segment::make_room(&mut place, bytes)? {
        return Ok(false);
    }
    eviction::wait_for_all(dev, &place.moves, Need::Needs, patience)
}

/// How much of the window nobody has, in bytes.
pub(crate) fn free_bytes(dev: &SkuaDevice) -> u64 {
    let window = dev.gart.lock();
    let free = window.total().0.saturating_sub(window.used().0);
    free.saturating_mul(PAGE_BYTES)
}

/// The aperture, for who needs room there.
pub(crate) struct Aperture<'a> {
    /// The GPU whose window it is.
    dev: &'a SkuaDevice,
    /// The PCI device of `dev`, which stays bound meanwhile.
    parent: &'a Device<Bound>,
    /// What of it there is to be room in.
    room: Room,
    /// Fences of the moves of those that leave, in the order begun.
    moves: KVVec<Fence>,
}

impl<'a> Aperture<'a> {
    /// For room that is planned or else made.
    fn new(dev: &'a SkuaDevice, parent: &'a Device<Bound>, room: Room) -> Self {
        Self {
            dev,
            parent,
            room,
            moves: KVVec::new(),
        }
    }

    /// The aperture as a whole, for those who only look at it.
    pub(crate) fn whole(dev: &'a SkuaDevice, parent: &'a Device<Bound>) -> Self {
        Self::new(dev, parent, Room::new(None))
    }

    /// What keeps `bo` there.
    fn hold(&self, bo: &BoRef) -> Hold {
        // Locked outside of VRAM, what is to be in VRAM or here could not come back for work.
        let is_locked = bo.needs_vram() && BoData::is_held_out(bo);
        if is_locked || bo.is_dying() || gem::is_pinned(&**bo) || bo.sites.window().is_none() {
            return Hold::Pinned;
        }
        match self.dev.pager.protects(bo) {
            true => Hold::Turn { elsewhere: false },
            false => Hold::Nothing,
        }
    }
}

impl<'a> Place for Aperture<'a> {
    type Object = BoRef;
    type Error = Error;
    type Heap = KernelHeap;
    type Walk = Flatten<option::IntoIter<lru::Walk<'a, BoData>>>;

    fn walk(&self, of: Rank) -> Self::Walk {
        let walk = match of {
            // Its pages stay where they are.
            Rank::Offered(_) => None,
            Rank::Kept(level) => Some(lru::walk(self.dev, rank(level))),
        };
        walk.into_iter().flatten()
    }

    fn walk_back(&self, _of: Rank, _many: usize) -> Self::Walk {
        None.into_iter().flatten()
    }

    /// What may be nowhere else is in no list.
    fn used(&self) -> u64 {
        self.dev.gart.lock().used().0.saturating_mul(PAGE_BYTES)
    }

    fn used_since(&self, bo: &BoRef) -> Option<u64> {
        eviction::used_since(self.dev, bo)
    }

    fn renew(&self, bo: &BoRef) {
        eviction::renew(self.dev, bo);
    }

    /// Nothing is copied when somebody leaves or comes back.
    fn next_use(&self, bo: &BoRef) -> NextUse {
        eviction::next_use(self.dev, bo, None)
    }

    fn facts(&self, bo: &BoRef) -> Result<Facts> {
        if current!().signal_pending() {
            return Err(EINTR);
        }
        let range = bo.sites.window();
        let pages = range.map_or(0, |range| self.room.pages_of(range));
        Ok(Facts {
            bytes: pages.saturating_mul(PAGE_BYTES),
            copied: 0,
            hold: self.hold(bo),
            is_resident: bo.is_resident(),
            can_be_elsewhere: !bo.needs_vram(),
        })
    }

    fn is_idle(&self, bo: &BoRef) -> bool {
        eviction::is_idle(self.dev, bo)
    }

    fn leave(&mut self, bo: &BoRef, bytes: u64, may_wait: bool) -> Result<Option<u64>> {
        if let Some(less) = self.room.would_leave(bo.sites.window()) {
            return Ok(Some(less));
        }
        let moves = evict(self.dev, self.parent, bo, may_wait);
        Ok(eviction::left(moves, &mut self.moves)?.then_some(bytes))
    }
}

impl aperture_segment::Contiguous for Aperture<'_> {
    fn room(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Segment for Aperture<'_> {
    fn moves(&self) -> &[Fence] {
        &self.moves
    }
}

/// Has `bo` leave the aperture, where it may: its pages stay what they are. The fence of that.
///
/// `EBUSY` if it is not there, or on its way; as [`relocate`].
fn evict(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef, may_wait: bool) -> Result<Fence> {
    let new = {
        let reserved = resv::lock(&**bo)?;
        match gem::placement(bo, &reserved)? {
            Placement::System(pages, SystemSite::Aperture(range)) => {
                let memory = range.memory().clone();
                Placement::System(pages.clone(), SystemSite::Direct(memory))
            }
            _ => return Err(EBUSY),
        }
    };
    relocate(dev, parent, bo, new, None, may_wait, Reason::Other)
}

/// Has what nobody works with begin to leave the aperture. As [`eviction::evict_idle`].
pub(crate) fn evict_idle(dev: &SkuaDevice, parent: &Device<Bound>) {
    let place = Aperture::whole(dev, parent);
    for bo in Rank::ALL.into_iter().flat_map(|rank| place.walk(rank)) {
        let facts = place.facts(&bo);
        if facts.is_ok_and(|facts| facts.hold == Hold::Nothing) && place.is_idle(&bo) {
            drop(evict(dev, parent, &bo, false));
        }
    }
}

/// Where `bo`, which leaves VRAM, is to be: in the first of its
/// [exits](segment_sets::SegmentSets::exits) that has room. `ENOMEM`, `EIO`, `ENODEV`.
pub(crate) fn site(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &Bo,
    memory: Arc<SystemMemory>,
) -> Result<SystemSite> {
    for segment in bo.sets().exits() {
        if segment != segment_sets::Segment::Aperture {
            break;
        }
        match GartRange::new(dev, parent, &memory, u64::try_from(bo.size())?) {
            Err(error) if error == ENOSPC => (),
            range => return range.map(SystemSite::Aperture),
        }
    }
    Ok(SystemSite::Direct(memory))
}
