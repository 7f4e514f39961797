// SPDX-License-Identifier: GPL-2.0

//! Where the memory of a buffer object is, and in which pieces the device sees it.
//!
//! That is said by its [`Placement`], under its reservation lock. Who may not take that lock,
//! because a fence depends on it, finds in [`Sites`](crate::memory::installed::Sites) where page
//! tables are to lead ([`Memory`]), which keeps the memory from being given to others.

use crate::{
    ext::{
        devres::DevresItem,
        gem::{
            self,
            Placement, //
        },
        lru,
        pages::{
            self,
            Caching,
            DmaMap,
            Pages, //
        },
        resv::Reserved,
        uapi,
        value_page::ValueMap, //
    },
    fences::monitored::FenceValue,
    gpu::SkuaDevice,
    memory::{
        bo::{
            ranks,
            Bo,
            BoData,
            BoRef,
            NOWHERE,
            REGION_APERTURE,
            REGION_SYSTEM,
            REGION_VRAM, //
        },
        gart::{
            self,
            GartRange, //
        },
        vram::VramRange, //
    },
    policy::{
        page_plan::PhysPiece,
        page_table::Reach, //
    },
    quota::{
        Quota,
        Share, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};

/// Where the GPU finds an object's memory, as of the moment when it was asked for.
#[derive(Clone)]
pub(crate) enum Memory {
    /// In VRAM, which stays allocated as long as this is held.
    Vram(Arc<VramRange>),
    /// In system pages of the object's own, which likewise stay.
    System(Arc<SystemMemory>),
    /// In such pages, by the window of the aperture segment, which shows them as long.
    Aperture(Arc<GartRange>),
    /// With another driver, for good.
    Imported(BoRef),
    /// The page of a monitored fence, for good.
    Fence(Arc<FencePage>),
}

/// The page with a monitored fence's value, for the device to read.
pub(crate) struct FencePage {
    /// Its DMA mapping, which ends at the latest when the device is unbound.
    pub(super) map: DevresItem<ValueMap<FenceValue>>,
    /// Its part of the client's quota of system memory.
    pub(super) _share: Share,
}

/// An object's system pages, for the device.
pub(crate) struct SystemMemory {
    /// Their DMA mapping, which ends at the latest when the device is unbound.
    /// None for pages that were got back when the device was gone.
    map: Option<DevresItem<DmaMap>>,
    /// How the CPU caches them.
    caching: Caching,
    /// Their part of the client's quota of system memory.
    pub(super) share: Arc<Share>,
    /// Whether they are the object's no more: see [`clean_copy`](crate::memory::clean_copy).
    stale: Atomic<bool>,
}

/// An object's system pages, and how the GPU reaches them.
pub(crate) enum SystemSite {
    /// By their bus addresses.
    Direct(Arc<SystemMemory>),
    /// By the window of the aperture segment.
    Aperture(Arc<GartRange>),
}

impl SystemSite {
    /// The system pages that the object has, wherever the GPU reaches them.
    pub(crate) fn memory(&self) -> &Arc<SystemMemory> {
        match self {
            Self::Direct(memory) => memory,
            Self::Aperture(range) => range.memory(),
        }
    }
}

impl SystemMemory {
    /// Whether the CPU has it cached, so that the GPU has to snoop (row 0.28).
    pub(crate) fn is_cached(&self) -> bool {
        self.caching == Caching::WriteBack
    }

    /// Whether it counts in `quota`.
    pub(crate) fn counts_in(&self, quota: &Arc<Quota>) -> bool {
        let mut quotas = self.share.quota().and_wholes();
        quotas.any(|counts| Arc::ptr_eq(counts, quota))
    }

    /// Whether somebody has more of a quota by it than they may.
    pub(crate) fn is_too_much(&self) -> bool {
        let mut quotas = self.share.quota().and_wholes();
        quotas.any(|quota| quota.used() > quota.limit())
    }

    /// The object has other pages from now on. Its reservation is locked.
    pub(crate) fn set_stale(&self) {
        self.stale.store(true, Relaxed);
    }

    /// Whether the object has other pages. Not before its reservation is unlocked, if not.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Relaxed)
    }

    /// Calls `f` with the pieces from byte `offset` on, by their bus addresses. `ENODEV` if the
    /// device is another one than at creation.
    pub(crate) fn with_pieces<R>(
        &self,
        parent: &Device<Bound>,
        offset: u64,
        f: impl FnOnce(&mut dyn Iterator<Item = PhysPiece>) -> Result<R>,
    ) -> Result<R> {
        let map = self.map.as_ref().ok_or(ENODEV)?;
        let map = map.access(parent).map_err(|_| ENODEV)?;
        f(&mut behind(map.segments().map(piece), offset))
    }
}

impl Memory {
    pub(crate) fn is_vram(&self) -> bool {
        matches!(self, Self::Vram(_))
    }

    /// The name of the region that it is in, in traces.
    pub(crate) fn name(&self) -> &'static CStr {
        match self {
            Self::Vram(_) => c"vram0",
            Self::System(_) => c"system",
            Self::Aperture(_) => c"aperture",
            Self::Imported(_) => c"imported",
            Self::Fence(_) => c"fence",
        }
    }

    /// By which addresses page table entries name it.
    pub(crate) fn reach(&self) -> Reach {
        match self {
            Self::Vram(_) | Self::Aperture(_) => Reach::GpuPhysical,
            Self::System(memory) => Reach::Bus {
                cached: memory.is_cached(),
            },
            // Whoever exported it.
            Self::Imported(_) | Self::Fence(_) => Reach::Bus { cached: true },
        }
    }

    /// The system pages that it is in, if it is in such of the object's own.
    pub(crate) fn system(&self) -> Option<&Arc<SystemMemory>> {
        match self {
            Self::System(memory) => Some(memory),
            Self::Aperture(range) => Some(range.memory()),
            Self::Vram(_) | Self::Imported(_) | Self::Fence(_) => None,
        }
    }

    /// Whether nothing of an earlier owner is left in it. Not before the clearing is over, and for
    /// good not if the device was lost in it.
    pub(crate) fn is_cleared(&self) -> bool {
        match self {
            Self::Vram(range) => range.is_cleared(),
            _ => true,
        }
    }

    /// Calls `f` with the memory of `[offset, …)`, piece by piece as the device sees it.
    ///
    /// `ENODEV` if the device is another one than at creation.
    pub(crate) fn with_pieces<R>(
        &self,
        parent: &Device<Bound>,
        offset: u64,
        f: impl FnOnce(&mut dyn Iterator<Item = PhysPiece>) -> Result<R>,
    ) -> Result<R> {
        match self {
            Self::Vram(range) => f(&mut behind(range.pieces(), offset)),
            Self::System(memory) => memory.with_pieces(parent, offset, f),
            Self::Aperture(range) => f(&mut behind(core::iter::once(range.piece()), offset)),
            Self::Imported(bo) => {
                let map = bo.backing.import().ok_or(EIO)?;
                let map = map.access(parent).map_err(|_| ENODEV)?;
                f(&mut behind(map.segments().map(piece), offset))
            }
            Self::Fence(page) => {
                let map = page.map.access(parent).map_err(|_| ENODEV)?;
                f(&mut behind(core::iter::once(piece(map.segment())), offset))
            }
        }
    }
}

/// Where the GPU finds what is placed so; nothing is nowhere.
pub(crate) fn memory_of(placement: &gem::PlacementOf<BoData>) -> Option<Memory> {
    match placement {
        Placement::Device(site) => Some(Memory::Vram(site.range.clone())),
        Placement::System(_, SystemSite::Direct(memory)) => Some(Memory::System(memory.clone())),
        Placement::System(_, SystemSite::Aperture(range)) => Some(Memory::Aperture(range.clone())),
        Placement::Resting(_) | Placement::Nowhere => None,
    }
}

/// Says where the memory of `bo` is from now on, which has none yet.
pub(super) fn assign(
    bo: &Bo,
    reserved: &mut Reserved<'_>,
    new: gem::PlacementOf<BoData>,
) -> Result {
    if let Some(memory) = memory_of(&new) {
        // There was none.
        drop(bo.sites.set_memory(memory));
    }
    replace(bo, reserved, new)
}

/// Says where the memory of `bo` is from now on, for all but page tables.
pub(crate) fn replace(
    bo: &Bo,
    reserved: &mut Reserved<'_>,
    new: gem::PlacementOf<BoData>,
) -> Result {
    let region = match &new {
        Placement::Device(_) => REGION_VRAM,
        Placement::System(_, SystemSite::Aperture(_)) => REGION_APERTURE,
        Placement::System(_, SystemSite::Direct(_))
        | Placement::Resting(_)
        | Placement::Nowhere => REGION_SYSTEM,
    };
    let mark = match &new {
        Placement::Nowhere => NOWHERE,
        _ => 0,
    };
    let rank = match &new {
        Placement::System(_, SystemSite::Direct(_)) => Some(bo.awake_rank()),
        Placement::Resting(_) => Some(ranks::RESTING),
        // What may be evicted is to be in a list when it is used.
        _ => None,
    };
    gem::replace(bo, reserved, new)?;
    let level = bo.level();
    // CAST: few. Who sees it there sees whether it is arriving.
    bo.region.store(region as i8 | mark, Release);
    bo.set_level(level);
    match rank {
        Some(rank) => lru::put(bo, rank),
        None => lru::forget(bo),
    }
    Ok(())
}

/// The system pages of `bo`, for the CPU and for the device, if that is bound (`parent`); they
/// count as `share`. `ENOMEM`; `EBUSY` if somebody else has them, write-combined; `EIO`.
pub(super) fn system_pages(
    dev: &SkuaDevice,
    parent: Option<&Device<Bound>>,
    bo: &Bo,
    share: Arc<Share>,
) -> Result<(Arc<Pages>, Arc<SystemMemory>)> {
    let caching = match bo.flags() & uapi::DRM_SKUA_BO_WRITE_COMBINED {
        0 => Caching::WriteBack,
        _ => Caching::WriteCombined,
    };
    let pages = Pages::get(bo, caching)?;
    let map = parent.map(|parent| DmaMap::new(&dev.resources, parent, &pages));
    let memory = SystemMemory {
        map: map.transpose()?,
        caching,
        share,
        stale: Atomic::new(false),
    };
    Ok((pages, Arc::new(memory, GFP_KERNEL_ACCOUNT)?))
}

/// The system pages of `bo`, which leaves VRAM and counts as `share`; where it is to be then.
/// `ENOMEM`, `ENODEV`; `EBUSY` if somebody else has them, write-combined; `EIO`.
pub(crate) fn system_memory(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &Bo,
    share: Share,
) -> Result<(Arc<Pages>, SystemSite)> {
    let share = Arc::new(share, GFP_KERNEL_ACCOUNT)?;
    let (pages, memory) = system_pages(dev, Some(parent), bo, share)?;
    Ok((pages, gart::site(dev, parent, bo, memory)?))
}

/// A segment in the policy's terms.
fn piece(segment: pages::Segment) -> PhysPiece {
    PhysPiece {
        start: segment.address,
        len: segment.len,
    }
}

/// What of `pieces` lies behind the first `skip` bytes.
fn behind(
    pieces: impl Iterator<Item = PhysPiece>,
    mut skip: u64,
) -> impl Iterator<Item = PhysPiece> {
    pieces.filter_map(move |piece| {
        let cut = skip.min(piece.len);
        skip -= cut;
        let len = piece.len - cut;
        (len > 0).then(|| PhysPiece {
            // No overflow: within the piece.
            start: piece.start.saturating_add(cut),
            len,
        })
    })
}
