// SPDX-License-Identifier: GPL-2.0

//! Buffer objects: GEM objects in VRAM, in system memory, or in that through the aperture segment
//! (WDDM: allocations).
//!
//! An object that is private to an address space shares the reservation of that: what uses the one
//! uses the other. Whoever moves it sees there at once who uses it.
//!
//! An imported object is another driver's memory: the GPU reaches it through the pages that the
//! exporter mapped for us; the CPU maps it through its dma-buf. An object for a fence's value is
//! that page, for the GPU to read: nobody has a handle of it.
//!
//! This file has what an object is made from, where it may be, and what others have to wait for.
//! In files of their own are:
//!
//! | part | what is in it |
//! |---|---|
//! | [`mod@create`] | how it is made, in the first place that has room |
//! | [`location`] | where its memory is, and in which pieces the device sees it |
//! | [`marks`] | marks, a bit each, and how many have it resident or locked |
//! | [`ranks`] | in which list those find it who need room |
//! | [`rest`] | pages that it gives back, and content that is offered |
//! | [`callbacks`] | what GEM asks of it |

use crate::{
    ext::{
        fence::Fence,
        gem::{
            self,
            Backing,
            Offer,
            Placement, //
        },
        lru,
        resv::{
            self,
            Reservation,
            Reserved,
            Usage, //
        },
        uapi, //
    },
    gpu::{
        SkuaDevice,
        SkuaDriver, //
    },
    memory::{
        clean_copy::VramSite,
        eviction::{
            self,
            Wish, //
        },
        host_aperture,
        installed::Sites,
        uses::{
            self,
            LastUse, //
        },
        vm::Vm,
        vram::{
            Part,
            VramRange, //
        }, //
    },
    policy::{
        eviction::Need,
        priority::Level,
        segment_sets::{
            Segment,
            SegmentSets, //
        }, //
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
    drm::gem::{
        BaseObject,
        DriverFile,
        DriverObject,
        Object, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic, //
        },
        Arc, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};

mod callbacks;
mod create;
mod location;
mod marks;
mod ranks;
mod rest;

/// Regions of the uAPI are the miniport's segments.
pub(crate) use crate::policy::miniport::{
    APERTURE_SEGMENT as REGION_APERTURE,
    SYSTEM_SEGMENT as REGION_SYSTEM,
    VRAM_SEGMENT as REGION_VRAM, //
};
pub(crate) use callbacks::FAULT_AHEAD;
pub(crate) use create::{
    create,
    for_fence,
    import, //
};
pub(crate) use location::{
    memory_of,
    replace,
    system_memory,
    Memory,
    SystemMemory,
    SystemSite, //
};
pub(crate) use ranks::{
    renew,
    set_priority,
    vram_rank,
    was_used, //
};
pub(crate) use rest::{
    offered_share,
    set_offer,
    wake, //
};

/// In [`BoData::region`]: it is destroyed, and nowhere from now on.
const NOWHERE: i8 = 1 << 6;

/// In [`BoData::made`], in place of the flags: [`ContextUse::Engine`].
const FOR_ENGINE: u16 = 1 << 3;
/// In [`BoData::made`], in place of the flags: [`ContextUse::Context`].
const OF_CONTEXT: u16 = FOR_ENGINE | 1;
/// In [`BoData::made`], in place of the flags: [`ContextUse::Device`].
const OF_DEVICE: u16 = FOR_ENGINE | 2;
/// Of the flags, in [`BoData::made`].
const FLAGS_SHIFT: u32 = SegmentSets::WORD_BITS;

/// A buffer object, as GEM knows it.
pub(crate) type Bo = Object<BoData>;
/// A reference to a buffer object that any thread may hold.
pub(crate) type BoRef = gem::ObjectRef<BoData>;

/// What is in a buffer object besides GEM.
#[pin_data]
pub(crate) struct BoData {
    /// [`SegmentSets::word`] of its creation; above that `DRM_SKUA_BO_*`, or whose context
    /// allocation it is, which has none of these.
    made: u16,
    /// Its [`Placement`], under its reservation lock; and that lock's reservation, if it is an
    /// address space's.
    backing: Backing<VramSite, SystemSite, Arc<Share>>,
    /// The number of the region that holds it, or [`NOWHERE`] with that of system memory, for those
    /// who look without the lock.
    region: Atomic<i8>,
    /// For how many devices of clients it is resident.
    residents: Atomic<i16>,
    /// How many clients have locked it; and whether it has a part of the [aperture](host_aperture)
    /// for that, [`HAS_HOST_APERTURE`](marks::HAS_HOST_APERTURE).
    lockers: Atomic<i16>,
    /// [`DYING`](marks::DYING), set with the reservation locked, and the others of [`marks`].
    marks: Atomic<i8>,
    /// When it was used, as far as was counted: work of address spaces is not, but when somebody
    /// who needs room looks ([`eviction::renew`](super::eviction::renew)).
    pub(crate) last_use: LastUse,
    /// The ranges of address spaces whose page tables lead to it now, where these lead, and which
    /// address spaces use it.
    #[pin]
    pub(crate) sites: Sites,
}

/// Who uses a [context allocation](super::save_areas).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContextUse {
    /// An engine alone, which saves its context there.
    Engine,
    /// Work of one context, by its client.
    Context,
    /// Work of all contexts of an address space.
    Device,
}

/// What an object is made from.
#[derive(Clone)]
pub(crate) struct BoArgs {
    /// `DRM_SKUA_BO_*`.
    pub(crate) flags: u32,
    /// Regions that may hold it.
    pub(crate) sets: SegmentSets,
    /// [`Vm::reservation`] of the only address space in which it can be mapped, if there is one.
    pub(crate) users: Option<Arc<Reservation>>,
    /// Its priority at first.
    pub(crate) level: Level,
    /// Whose [context allocation](super::save_areas) it is, which is not in VRAM at first and has
    /// no flags; none if it is something else.
    pub(crate) context_of: Option<ContextUse>,
}

impl DriverObject for BoData {
    type Driver = SkuaDriver;
    type Args = BoArgs;

    fn new(dev: &SkuaDevice, _size: usize, args: BoArgs) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            made: {
                let word = match args.context_of {
                    Some(ContextUse::Engine) => FOR_ENGINE,
                    Some(ContextUse::Context) => OF_CONTEXT,
                    Some(ContextUse::Device) => OF_DEVICE,
                    None => u16::try_from(args.flags)?,
                };
                word << FLAGS_SHIFT | args.sets.word()
            },
            backing: Backing::new(args.level as u8, args.users),
            region: Atomic::new(0),
            residents: Atomic::new(0),
            lockers: Atomic::new(0),
            marks: Atomic::new(0),
            last_use: LastUse::new(dev),
            sites <- Sites::new(),
        })
    }

    fn close(bo: &Bo, file: &DriverFile<Self>) {
        file.inner().forget(bo);
    }
}

/// Whether the CPU may see an object with these flags and segments in VRAM: cached through the CPU
/// host aperture, if that may be, and not of what has to be where the CPU reaches it without.
fn is_seen_in_vram(dev: &SkuaDevice, flags: u32, sets: SegmentSets) -> bool {
    let may_be_cached = dev.hw.caps.cached_aperture && sets.supports(Segment::System);
    let as_asked = flags & uapi::DRM_SKUA_BO_CACHED == 0 || may_be_cached;
    flags & uapi::DRM_SKUA_BO_CPU_ACCESS != 0 && as_asked
}

/// The part of VRAM for an object with these flags and segments. What may be nowhere else is
/// where the CPU reaches it whatever becomes of the aperture.
pub(crate) fn part_of(dev: &SkuaDevice, flags: u32, sets: SegmentSets) -> Part {
    let system = sets.supports(Segment::System);
    match is_seen_in_vram(dev, flags, sets) {
        false => Part::Any,
        true if system && dev.hw.caps.aperture.is_some() => Part::Reachable,
        true => Part::Visible,
    }
}

/// Room in VRAM for `bo`, if it is elsewhere and is rather to be there; none if that would take
/// room from what is resident, or more than `patience`. `ENOMEM`, `ENODEV`; `EINTR` if a signal
/// arrives.
pub(crate) fn room_in_vram(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &Bo,
    patience: &mut Jiffies,
) -> Result<Option<Arc<VramRange>>> {
    // What another driver has attached does not move: nobody is to leave for it.
    let is_attached = gem::is_pinned(bo) || gem::is_attached_now(bo);
    if !bo.is_better_in(Segment::Vram) || BoData::is_held_out(bo) || is_attached {
        return Ok(None);
    }
    let Some(quota) = quota_of(bo)? else {
        return Ok(None);
    };
    let mut part = part_of(dev, bo.flags(), bo.sets());
    // Elsewhere it may not be as long as it is locked: nobody is to leave for that.
    if part == Part::Reachable && bo.is_locked() && !host_aperture::claim(dev, bo) {
        part = Part::Visible;
    }
    let bytes = u64::try_from(bo.size())?;
    let wish = Wish {
        reuse_distance: bo.reuse_distance(dev),
        level: bo.priority(),
        ..Wish::new(part, bytes, Need::Prefers)
    };
    match eviction::allocate(dev, parent, &quota, wish, patience) {
        Err(error) if error == ENOSPC => Ok(None),
        found => found.map(|(range, _)| Some(range)),
    }
}

/// The quota of system memory that `bo` counts against, if it is there or on its way. `EINTR` if a
/// signal arrives.
pub(crate) fn quota_of(bo: &Bo) -> Result<Option<Arc<Quota>>> {
    Ok(match gem::placement(bo, &resv::lock(bo)?)? {
        Placement::System(_, site) => Some(site.memory().share.quota().clone()),
        Placement::Resting(share) => Some(share.quota().clone()),
        _ => None,
    })
}

/// Where page tables are to lead for `bo`, at this moment: nowhere if it is destroyed.
pub(crate) fn installable(bo: &BoRef) -> Option<Memory> {
    if gem::is_imported(&**bo) {
        return Some(Memory::Imported(bo.clone()));
    }
    bo.sites.memory()
}

/// Whether `bo` is destroyed; what is about to be may not be after all.
pub(crate) fn is_destroyed(bo: &BoRef) -> bool {
    bo.region.load(Acquire) & NOWHERE != 0
}

/// Whether `bo` is where it is said to be, and cleared: no work of the driver's own is under way
/// with it. `EINVAL` unless `reserved` is its lock.
pub(crate) fn is_settled(bo: &Bo, reserved: &Reserved<'_>) -> Result<bool> {
    let there = memory_of(gem::placement(bo, reserved)?);
    Ok(bo.sites.leads_to(there.as_ref()) && there.is_none_or(|it| it.is_cleared()))
}

/// What the driver itself still does with `bo`, if anything. `ENOMEM`; `EINVAL` unless `reserved`
/// is its lock.
pub(crate) fn own_work(bo: &Bo, reserved: &Reserved<'_>) -> Result<Option<Fence>> {
    // A private object shares its reservation: the fences there are also those of other objects'
    // moves, which may wait for work.
    if bo.is_private() && is_settled(bo, reserved)? {
        return Ok(None);
    }
    if bo.context_of() == Some(ContextUse::Engine) {
        // Its moves are filed as work, for which others of the address space do not wait.
        return reserved.singleton(Usage::Bookkeep);
    }
    match gem::placement(bo, reserved)? {
        // VRAM is cleared in order: when the range that came last is clear, this one is.
        Placement::Device(site) if bo.is_private() && site.range.is_cleared_alone() => {
            Ok(bo.dev().last_clear())
        }
        _ => reserved.singleton(Usage::Kernel),
    }
}

/// How long one waits for fences, some of which may be others', before looking again, in
/// milliseconds.
const MOMENT_MS: u32 = 10;

/// Waits for the kernel fences of `bo`, or, since it may share them with others that move, for a
/// moment; takes that from `patience`. Whether none is left. `ENOSPC` if there is no patience;
/// `EINTR` if a signal arrives.
pub(crate) fn wait_a_moment(bo: &Bo, patience: &mut Jiffies) -> Result<bool> {
    if *patience == 0 {
        return Err(ENOSPC);
    }
    let moment = msecs_to_jiffies(MOMENT_MS).min(*patience);
    let (left, is_over) = match resv::wait(bo, Usage::Kernel, moment) {
        Err(error) if error == ETIME => (0, false),
        left => (left?, true),
    };
    *patience = patience.saturating_sub(moment.saturating_sub(left));
    Ok(is_over)
}

/// Takes the memory of `bo`, which is [dying](BoData::mark_dying), unless others may have it: the
/// CPU's mappings fault from now on, and nothing of it is installed any more. What may still lead
/// to what is returned, the caller removes before it drops it.
///
/// [`None`] if others may have it; of what rests there is no memory. `reserved` is its lock.
pub(crate) fn give_up(bo: &Bo, mut reserved: Reserved<'_>) -> Option<Option<Memory>> {
    // Who is to map or pin it as another takes the lock, too.
    if gem::is_foreign(bo) {
        bo.unmark_dying();
        return None;
    }
    lru::forget(bo);
    // What is mapped of it stays nowhere.
    bo.backing.set_offer(Offer::Not);
    // Not the last reference: see what follows.
    let replaced = replace(bo, &mut reserved, Placement::Nowhere);
    crate::warn_on_once!(replaced.is_err());
    Some(bo.sites.forget_memory())
}

// One byte more takes a kilobyte.
#[cfg(not(CONFIG_LOCKDEP))]
const _: () = assert!(size_of::<Bo>() <= 512);

impl BoData {
    /// The flags of its creation.
    pub(crate) fn flags(&self) -> u32 {
        match self.context_of() {
            None => (self.made >> FLAGS_SHIFT).into(),
            Some(_) => 0,
        }
    }

    /// Whose [context allocation](super::save_areas) it is, if it is one.
    pub(crate) fn context_of(&self) -> Option<ContextUse> {
        match self.made >> FLAGS_SHIFT {
            FOR_ENGINE => Some(ContextUse::Engine),
            OF_CONTEXT => Some(ContextUse::Context),
            OF_DEVICE => Some(ContextUse::Device),
            _ => None,
        }
    }

    /// Whether it is a context allocation.
    pub(crate) fn saves_context(&self) -> bool {
        self.context_of().is_some()
    }

    /// Regions that may hold it, as its creator named them.
    pub(crate) fn sets(&self) -> SegmentSets {
        SegmentSets::from_word(self.made & ((1 << FLAGS_SHIFT) - 1))
    }

    /// Whether it may be in `segment`, and is rather to be there than where it is: its creator
    /// prefers that, or the GPU does not reach it where it is.
    pub(crate) fn is_better_in(&self, segment: Segment) -> bool {
        let now = match self.region() {
            REGION_VRAM => Segment::Vram,
            REGION_APERTURE => Segment::Aperture,
            _ => Segment::System,
        };
        self.sets().prefers(segment, now)
    }

    /// The address space to which it is private, if that exists and can be worked in.
    pub(crate) fn home(&self, dev: &SkuaDevice) -> Option<Arc<Vm>> {
        if !self.backing.is_shared() {
            return None;
        }
        dev.vms.find_by(|vm| self.backing.shares(vm.reservation()))
    }

    /// Whether it is one address space's alone, whose fences are then its own.
    pub(crate) fn is_private(&self) -> bool {
        self.backing.is_shared()
    }

    /// Whether it may be in VRAM.
    pub(crate) fn may_be_in_vram(&self) -> bool {
        self.sets().supports(Segment::Vram)
    }

    /// Whether it may leave where it is, if others need the room: VRAM, or the aperture for direct
    /// access.
    pub(crate) fn may_move(&self) -> bool {
        self.may_be_in_vram() || (self.may_be_in_aperture() && !self.needs_segment())
    }

    /// Whether VRAM is the only region in which there is always room for it: the GPU is not to
    /// reach its system pages directly.
    pub(crate) fn needs_vram(&self) -> bool {
        self.may_be_in_vram() && self.needs_segment()
    }

    /// Whether work of a device with explicit residency reaches it only if it is resident for that,
    /// and it has a reservation of its own, in which to see who uses it (row 3.23).
    pub(crate) fn is_reached_if_resident(&self) -> bool {
        self.needs_vram() && !self.is_private()
    }

    /// Whether the GPU is to reach it in VRAM alone.
    pub(crate) fn is_for_vram_alone(&self) -> bool {
        self.needs_vram() && !self.may_be_in_aperture()
    }

    /// Whether it may be in the aperture.
    pub(crate) fn may_be_in_aperture(&self) -> bool {
        self.sets().supports(Segment::Aperture)
    }

    /// Whether the GPU is to reach it in VRAM or the aperture alone.
    fn needs_segment(&self) -> bool {
        !self.sets().supports(Segment::System)
    }

    /// Whether it is not where the GPU is to reach it, or on its way out. For good as long as its
    /// reservation is locked.
    pub(crate) fn is_out(&self) -> bool {
        self.needs_vram() && self.region() == REGION_SYSTEM
    }

    /// Whether work does without it in VRAM, where it would rather be: what it may be in with that
    /// is no better.
    pub(crate) fn may_be_displaced(&self) -> bool {
        self.may_be_in_vram()
            && !self.needs_segment()
            && !self.saves_context()
            && self.sets().prefers(Segment::Vram, Segment::System)
    }

    /// Whether it may have other pages one day than it has now, and so other sizes of pages.
    pub(crate) fn may_change(bo: &Bo) -> bool {
        // What the GPU reaches in system memory may be thrown away.
        !gem::is_imported(bo) && (bo.may_move() || !bo.needs_segment())
    }

    /// Whether it may be mapped in the address space whose users are `users`.
    pub(crate) fn may_be_mapped_in(&self, users: &Arc<Reservation>) -> bool {
        !self.backing.is_shared() || self.backing.shares(users)
    }

    /// Whether the CPU may see `bo` in VRAM.
    pub(crate) fn is_seen_in_vram(bo: &Bo) -> bool {
        is_seen_in_vram(bo.dev(), bo.flags(), bo.sets())
    }

    /// Whether `bo` is locked where the CPU reaches it in system memory alone. With its reservation
    /// locked: what is not is not before the next move out of VRAM.
    pub(crate) fn is_held_out(bo: &Bo) -> bool {
        !Self::is_seen_in_vram(bo) && bo.is_locked()
    }

    /// Whether the CPU may reach `bo` in `range` if it is there: what it has locked is beyond what
    /// it sees only with a part of the aperture.
    pub(crate) fn may_be_locked_in(bo: &Bo, range: &VramRange) -> bool {
        !bo.is_locked() || range.is_visible() || host_aperture::claim(range.dev(), bo)
    }

    /// For how many uses it was away that comes back now, if it was used before.
    pub(crate) fn reuse_distance(&self, dev: &SkuaDevice) -> Option<u64> {
        self.last_use.get().reuse_distance(uses::now(dev))
    }

    /// The region that holds it at the moment.
    pub(crate) fn region(&self) -> u32 {
        // CAST: stored so.
        (self.region.load(Acquire) & !NOWHERE) as u32
    }
}
