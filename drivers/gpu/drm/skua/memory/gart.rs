// SPDX-License-Identifier: GPL-2.0

//! The aperture segment: system pages of objects, in one piece each, in the window of the GART (rows
//! 1.17, 1.22).
//!
//! An object whose pages are mapped there is *in the aperture*. Page tables then lead to the window,
//! and the GART's entries from there to the pages, which are those that the CPU maps:
//!
//! ```text
//! GPU  va ─▶ page tables ─▶ window ─▶ GART ─┐
//!                                           ├─▶ the object's system pages
//! CPU  va ──────────────────────────────────┘
//! ```
//!
//! A [`GartRange`] is a part of the window with what it shows. It is made when an object comes to the
//! aperture, and dropped when no page table leads to it any more: then its entries lead to the dummy
//! page, a flush of the system's translations has all engines know it, and both window and pages are
//! free. No byte is copied, neither way.
//!
//! Who may be in system memory as well leaves the aperture for who may be nowhere else; nobody else
//! does. What is in the aperture alone stays there.
//!
//! Lock: [`Gpu::gart`](crate::gpu::Gpu), a mutex under which the allocator may allocate. Entries are
//! written without it: each has one owner.

use crate::{
    ext::{
        fence::Fence,
        gem::{
            self,
            Placement, //
        },
        lru,
        resv, //
    },
    gpu::SkuaDevice,
    kernel_heap::KernelHeap,
    memory::{
        bo::{
            Bo,
            BoData,
            BoRef,
            SystemMemory,
            SystemSite,
            REGION_APERTURE, //
        },
        eviction,
        relocation::relocate, //
    },
    policy::{
        aperture_segment::ApertureSegment,
        buddy::{
            BuddyError,
            PageCount,
            PageRange,
            PAGE_BYTES, //
        },
        miniport::Miniport,
        page_plan::PhysPiece,
        priority::Level, //
    },
    reaper,
    spec::number::Asid, //
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
    time::Jiffies,
    warn_on, //
};

/// Who has which pages of the window.
pub(crate) type Window = ApertureSegment<KernelHeap>;

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

/// A part of the window, and the system pages that it shows.
pub(crate) struct GartRange {
    /// Whose window it is.
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
        let pages = dev.gart.lock().alloc(PageCount(bytes / PAGE_BYTES));
        // From here on it takes itself back.
        let range = Self {
            dev: dev.into(),
            pages: pages.map_err(errno)?,
            memory: memory.clone(),
        };
        memory.with_pieces(parent, 0, |pieces| {
            let cached = memory.is_cached();
            dev.hw
                .map_aperture_segment(REGION_APERTURE, range.pages, pieces, cached)
        })?;
        // A stray access may have had the dummy page kept.
        dev.invalidate(Some(Asid::SYSTEM))?;
        dev.counters.segment_maps.fetch_add(1, Relaxed);
        Ok(Arc::new(range, GFP_KERNEL)?)
    }

    /// What it shows.
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
        warn_on!(dev.gart.lock().free(self.pages).is_err());
    }
}

/// The list of objects in the aperture that may leave it, for a priority.
pub(crate) const fn rank(level: Level) -> u8 {
    // CAST: few.
    level as u8 + Level::ALL.len() as u8
}

/// Has `memory` of `bo`, which has no other place, be in the aperture: others leave it if they have
/// to and can.
///
/// `ENOSPC` if what is there has to stay, or is in use for long; `ENOMEM`, `ENODEV`; `EINTR` if a
/// signal arrives.
pub(crate) fn map_alone(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    memory: &Arc<SystemMemory>,
    bytes: u64,
    patience: &mut Jiffies,
) -> Result<Arc<GartRange>> {
    loop {
        match GartRange::new(dev, parent, memory, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        // Perhaps there is room in what is about to be freed.
        reaper::flush();
        match GartRange::new(dev, parent, memory, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        if dev.gart.lock().total().0 < bytes / PAGE_BYTES {
            return Err(ENOSPC);
        }
        // One by one: how many it takes to leave one piece, nobody knows.
        let Some(fence) = evict_next(dev, parent)?.filter(|_| *patience > 0) else {
            return Err(ENOSPC);
        };
        eviction::finish(&[fence], patience)?;
        // Others may never end to come.
        *patience = patience.saturating_sub(1);
    }
}

/// Has the next object leave the aperture that may, of the lowest priority; the fence of that, if
/// there is one. `ENODEV`; `EINTR` if a signal arrives.
fn evict_next(dev: &SkuaDevice, parent: &Device<Bound>) -> Result<Option<Fence>> {
    for level in Level::ALL {
        // Others change the list, too.
        for _ in 0..lru::pages::<BoData>(dev, rank(level)) {
            let Some(bo) = lru::next::<BoData>(dev, rank(level)) else {
                break;
            };
            match evict(dev, parent, &bo) {
                Ok(fence) => return Ok(Some(fence)),
                Err(error) if error == EINTR || error == ENODEV => return Err(error),
                Err(_) => (),
            }
        }
    }
    Ok(None)
}

/// Has `bo` leave the aperture, where it may: its pages stay what they are. The fence of that.
///
/// `EBUSY` if it is not there, or on its way; as [`relocate`].
fn evict(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result<Fence> {
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
    relocate(dev, parent, bo, new, true)
}

/// Has everything leave the aperture that may just now, and waits until it has; how many objects
/// did. For debugfs.
pub(crate) fn evict_all(dev: &SkuaDevice, parent: &Device<Bound>) -> Result<usize> {
    let mut moves = KVVec::new();
    while let Some(fence) = evict_next(dev, parent)? {
        moves.push(fence, GFP_KERNEL)?;
    }
    eviction::finish(&moves, &mut eviction::patience())?;
    Ok(moves.len())
}

/// Where `bo` is to be in system memory: in the aperture, if it may be there and there is room, or
/// else the GPU reaches its pages directly. `ENOMEM`, `EIO`, `ENODEV`.
pub(crate) fn site(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &Bo,
    memory: Arc<SystemMemory>,
) -> Result<SystemSite> {
    if bo.placements() & (1 << REGION_APERTURE) != 0 {
        match GartRange::new(dev, parent, &memory, u64::try_from(bo.size())?) {
            Err(error) if error == ENOSPC => (),
            range => return range.map(SystemSite::Aperture),
        }
    }
    Ok(SystemSite::Direct(memory))
}
