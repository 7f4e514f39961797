// SPDX-License-Identifier: GPL-2.0

//! Making a buffer object, which gets its memory at once: in the first of the allowed places that
//! has room, or in which room can be made ([`eviction`]).
//!
//! Nobody sees what was in the memory before. System pages come zeroed from shmem. VRAM is clean,
//! or what of it is dirty is cleared by the copy engine: the fence of that submission is a kernel
//! fence of the object, for which page faults and binds wait; and should it fail, which happens
//! only when the device is lost, the memory stays invisible.

use crate::{
    ext::{
        gem::{
            self,
            Placement, //
        },
        pages::Pages,
        resv::{
            self,
            Reservation,
            Usage, //
        },
        uapi,
        value_page::ValueMap, //
    },
    fences::monitored::FenceValue,
    gpu::SkuaDevice,
    memory::{
        bo::{
            location::{
                assign,
                system_pages,
                FencePage, //
            },
            part_of,
            renew,
            Bo,
            BoArgs,
            BoData,
            Memory,
            SystemMemory,
            SystemSite, //
        },
        clean_copy,
        eviction::{
            self,
            Wish, //
        },
        gart,
        vram::{
            BlockList,
            VramRange, //
        }, //
    },
    policy::{
        eviction::Need,
        heap::FallibleVec,
        priority::Level,
        segment_sets::{
            Attempt,
            Segment,
            SegmentSets, //
        }, //
    },
    quota::{
        Quota,
        Share, //
    },
    spec::address::PAGE_SIZE, //
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

/// Largest object that is tried, in bytes; memory ends before it.
const MAX_SIZE: u64 = 1 << 40;

/// Creates an object of `size` bytes in the first place of its order that has room, cleared or on
/// its way to be.
///
/// `EINVAL` for a size or flag that the uAPI forbids; `EOPNOTSUPP` if the CPU is to map it and VRAM
/// alone is allowed, of which it sees nothing, or not cached; `ENOSPC` if system memory is not
/// allowed, and the rest is full of what has to stay there; `ENOMEM`, also beyond the client's
/// `quota` of system memory, its user's, or that of all; `EINTR` if a signal arrives while room is
/// made.
pub(crate) fn create(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    size: u64,
    args: BoArgs,
) -> Result<ARef<Bo>> {
    if size == 0 || size % PAGE_SIZE != 0 || size > MAX_SIZE {
        return Err(EINVAL);
    }
    let access = args.flags & uapi::DRM_SKUA_BO_CPU_ACCESS != 0;
    let cached = args.flags & uapi::DRM_SKUA_BO_CACHED != 0;
    let combined = args.flags & uapi::DRM_SKUA_BO_WRITE_COMBINED != 0;
    let known =
        uapi::DRM_SKUA_BO_CPU_ACCESS | uapi::DRM_SKUA_BO_CACHED | uapi::DRM_SKUA_BO_WRITE_COMBINED;
    if args.flags & !known != 0 || ((cached || combined) && !access) || (cached && combined) {
        return Err(EINVAL);
    }
    let is_alone = args.sets.supported() == Segment::Vram.bit();
    let part = part_of(dev, args.flags, args.sets);
    // It could never be locked.
    if is_alone && (part.bytes(dev) == 0 || cached) {
        return Err(EOPNOTSUPP);
    }
    // What others make room for is charged whether or not it fits: no more of that.
    // Nor by who is among those who have, together, more of it than VRAM has, which what comes
    // back counts in for a moment, too.
    let beyond = dev.hw.caps.vram_size.saturating_mul(2);
    let has_too_much = || !clean_copy::make_room(dev, quota, 0) || quota.is_overcharged(beyond);
    if has_too_much() {
        return Err(ENOMEM);
    }
    let patience = &mut eviction::patience();
    let mut paged = None;
    let mut lack = ENOSPC;
    for Attempt { segment, need } in args.sets.attempts() {
        // A context allocation comes to VRAM when it is used.
        let segment = match (segment, need, args.context_of) {
            (Segment::Vram, Need::Prefers, Some(_)) => continue,
            (Segment::Vram, Need::Needs, Some(_)) => Segment::System,
            _ => segment,
        };
        let made = match segment {
            Segment::Vram => {
                let wish = Wish {
                    level: args.level,
                    ..Wish::new(part, size, need)
                };
                let found = eviction::allocate(dev, parent, quota, wish, patience);
                // What made room may have been this client's.
                let found = match found {
                    Ok(_) if has_too_much() => Err(ENOMEM),
                    found => found,
                };
                found.and_then(|found| create_in_vram(dev, size, args.clone(), found))
            }
            Segment::Aperture | Segment::System => {
                let paged = paged
                    .get_or_insert_with(|| Paged::create(dev, parent, quota, size, args.clone()));
                let paged = paged.as_ref().map_err(|error| *error);
                paged.and_then(|paged| paged.place_in(segment, dev, parent, need, patience))
            }
        };
        match made {
            Err(error) if error == ENOSPC => (),
            // There may be VRAM.
            Err(error) if error == ENOMEM && segment != Segment::Vram => lack = ENOMEM,
            made => return made,
        }
    }
    Err(lack)
}

fn create_in_vram(
    dev: &SkuaDevice,
    size: u64,
    args: BoArgs,
    (range, dirty): (Arc<VramRange>, BlockList),
) -> Result<ARef<Bo>> {
    let bo = gem::create::<BoData>(dev, usize::try_from(size)?, args)?;
    let mut reserved = resv::lock(&*bo)?;
    if dirty.as_slice().is_empty() {
        range.set_cleared(dev.vram_generation.load(Relaxed));
        dev.counters.clean_creations.fetch_add(1, Relaxed);
        assign(&bo, &mut reserved, Placement::Device(range.into()))?;
    } else {
        assign(&bo, &mut reserved, Placement::Device(range.clone().into()))?;
        let mut room = reserved.reserve(1)?;
        dev.paging()?.clear(&range, dirty, |fence| {
            crate::warn_on_once!(room.add(fence, Usage::Kernel).is_err());
            dev.set_last_clear(fence);
            range.set_cleared_alone();
        })?;
    }
    renew(&bo);
    drop(reserved);
    Ok(bo)
}

/// So many bytes of a quota, perhaps of what is about to be freed, or in copies. `ENOMEM`; `EINTR`
/// if a signal arrives.
fn share_of(dev: &SkuaDevice, quota: &Arc<Quota>, bytes: u64) -> Result<Share> {
    let take = || quota.take(dev, bytes).ok_or(ENOMEM);
    let mut patience = eviction::patience();
    let mut again = |_| {
        dev.destroyer.settle(dev, &mut patience)?;
        take()
    };
    let copies = |_| clean_copy::take(dev, quota, bytes).ok_or(ENOMEM);
    // A move may have had what was copied.
    take().or_else(&mut again).or_else(copies).or_else(again)
}

/// A new object that has system pages and is nowhere yet.
struct Paged {
    /// Dropped with the others if it gets no place.
    bo: ARef<Bo>,
    /// The object's system pages, pinned.
    pages: Arc<Pages>,
    /// The same as the device reaches them, with their part of the client's quota.
    memory: Arc<SystemMemory>,
}

impl Paged {
    fn create(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        quota: &Arc<Quota>,
        size: u64,
        args: BoArgs,
    ) -> Result<Self> {
        let share = share_of(dev, quota, size)?;
        let bo = gem::create::<BoData>(dev, usize::try_from(size)?, args)?;
        let share = Arc::new(share, GFP_KERNEL_ACCOUNT)?;
        // Nobody else has pages of it.
        let busy = |error| if error == EBUSY { ENOMEM } else { error };
        let (pages, memory) = system_pages(dev, Some(parent), &bo, share).map_err(busy)?;
        Ok(Self { bo, pages, memory })
    }

    /// Has it be in `segment`, which is not VRAM. As [`gart::map`].
    fn place_in(
        &self,
        segment: Segment,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        need: Need,
        patience: &mut Jiffies,
    ) -> Result<ARef<Bo>> {
        let (bo, memory) = (&self.bo, &self.memory);
        let site = match segment {
            Segment::Aperture => {
                let bytes = u64::try_from(bo.size())?;
                let range = gart::map(dev, parent, memory, bytes, need, patience)?;
                SystemSite::Aperture(range)
            }
            _ => SystemSite::Direct(memory.clone()),
        };
        let mut reserved = resv::lock(&**bo)?;
        assign(
            bo,
            &mut reserved,
            Placement::System(self.pages.clone(), site),
        )?;
        bo.set_displaced(bo.may_be_displaced() && bo.is_better_in(Segment::Vram));
        renew(bo);
        drop(reserved);
        Ok(bo.clone())
    }
}

/// Makes an object for another driver's memory.
pub(crate) fn import(dev: &SkuaDevice, size: usize) -> Result<ARef<Bo>> {
    foreign(dev, size, None)
}

/// Makes an object of one page, which has no handle, for the value of a monitored fence: for the
/// GPU to read in the address space whose [`Vm::reservation`] is `users`.
///
/// `ENOMEM`, also beyond the client's `quota` of system memory; `EOPNOTSUPP` if the device does not
/// reach all memory; `EINTR` if a signal arrives.
///
/// [`Vm::reservation`]: crate::memory::vm::Vm::reservation
pub(crate) fn for_fence(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    value: &Arc<FenceValue>,
    users: &Arc<Reservation>,
) -> Result<ARef<Bo>> {
    let share = share_of(dev, quota, PAGE_SIZE)?;
    let page = FencePage {
        map: ValueMap::new(&dev.resources, parent, value)?,
        _share: share,
    };
    let bo = foreign(dev, usize::try_from(PAGE_SIZE)?, Some(users.clone()))?;
    let memory = Memory::Fence(Arc::new(page, GFP_KERNEL_ACCOUNT)?);
    // There was none.
    drop(bo.sites.set_memory(memory));
    Ok(bo)
}

/// An object that has no memory of its own.
fn foreign(dev: &SkuaDevice, size: usize, users: Option<Arc<Reservation>>) -> Result<ARef<Bo>> {
    let args = BoArgs {
        flags: 0,
        sets: SegmentSets::new(Segment::System.bit(), 0, 0).ok_or(EINVAL)?,
        users,
        level: Level::Normal,
        context_of: None,
    };
    gem::create::<BoData>(dev, size, args)
}
