// SPDX-License-Identifier: GPL-2.0

//! What buffer objects give when memory is short ([`Shrink`]): copies that they can do without, the
//! system pages of those that are idle, which get them back, and the content of those that are
//! *offered*.

use crate::{
    ext::{
        device,
        gem::{
            self,
            Offer,
            Placement, //
        },
        lru,
        resv::{
            self,
            Reserved,
            Usage, //
        },
        shrinker::{
            Meant,
            Shrink, //
        }, //
    },
    gpu::{
        self,
        SkuaDevice, //
    },
    memory::{
        bo::{
            is_settled,
            location::{
                assign,
                system_pages, //
            },
            ranks,
            renew,
            Bo,
            BoData,
            SystemSite,
            REGION_SYSTEM, //
        },
        clean_copy, //
    },
    quota::{
        Quota,
        Share, //
    },
    spec::{
        address::PAGE_SIZE,
        number::Asid, //
    }, //
};
use core::ops::Range;
use kernel::{
    drm::gem::BaseObject,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

/// Gives back the system pages of `bo`, in whose file the content stays if it is not offered,
/// unless somebody may have their addresses: an address space that maps something of it, another
/// driver, a move, or who has locked it. How many pages; see [`Shrink::rest`].
///
/// What it counts of quotas it still counts: so it gets them back whatever others take meanwhile.
fn rest(bo: &Bo, reserved: &mut Reserved<'_>) -> Result<usize> {
    let offered = bo.is_offered();
    let pages = bo.size() / kernel::page::PAGE_SIZE;
    let memory = match gem::placement(bo, reserved)? {
        Placement::System(_, SystemSite::Direct(memory)) => memory,
        Placement::Resting(_) if offered && !bo.is_discarded() => {
            gem::discard(bo);
            BoData::set_discarded(bo);
            return Ok(pages);
        }
        // What is in the aperture the GPU reaches by that.
        _ => return Ok(0),
    };
    if offered && bo.sites.next_user(Asid::SYSTEM).is_some() {
        // Page tables are not changed here.
        if !bo.is_dying() {
            bo.dev().discard_later(pages);
        }
        return Ok(0);
    }
    // A move, even a failed one, may have them until it is freed: write-combined, nobody could get
    // them again meanwhile.
    if !memory.is_cached() && (bo.dev().moves.any() || bo.dev().check_health().is_err()) {
        return Ok(0);
    }
    if bo.sites.next_user(Asid::SYSTEM).is_some()
        || gem::is_pinned(bo)
        || bo.is_locked()
        || bo.is_dying()
        || !is_settled(bo, reserved)?
        || !reserved.is_idle(Usage::Bookkeep)
    {
        return Ok(0);
    }
    let share = memory.share.clone();
    let was = gem::replace(bo, reserved, Placement::Resting(share))?;
    drop((was, bo.sites.forget_memory()));
    if offered {
        gem::discard(bo);
        BoData::set_discarded(bo);
    }
    Ok(pages)
}

/// Has `bo`, which is not imported, be offered so from now on, or not any more; the caller has
/// locked its reservation. The CPU's mappings fault.
pub(crate) fn set_offer(bo: &Bo, reserved: &Reserved<'_>, offer: Offer) -> Result {
    let rests = matches!(gem::placement(bo, reserved)?, Placement::Resting(_));
    bo.backing.set_offer(offer);
    gem::unmap(bo);
    bo.set_level(bo.level());
    match bo.region() {
        REGION_SYSTEM if rests && offer == Offer::Not => lru::put(bo, BoData::RESTING),
        REGION_SYSTEM => lru::put(bo, bo.awake_rank()),
        _ => renew(bo),
    }
    Ok(())
}

/// Gets `bo`, which is [`Placement::Resting`], its pages back, whether or not it is offered.
/// `ENOMEM`, `EIO`.
pub(crate) fn wake(bo: &Bo, reserved: &mut Reserved<'_>) -> Result {
    let Placement::Resting(share) = gem::placement(bo, reserved)? else {
        return Ok(());
    };
    let (dev, share) = (bo.dev(), share.clone());
    let bound = device::enter(dev);
    let parent = bound.as_deref().map(gpu::parent);
    // Others would say that the device is lost, or that somebody else has them for a moment.
    let known = |error| if error == EIO { EIO } else { ENOMEM };
    let (pages, memory) = system_pages(dev, parent, bo, share).map_err(known)?;
    assign(
        bo,
        reserved,
        Placement::System(pages, SystemSite::Direct(memory)),
    )
}

/// The share of system memory of `bo`, if it is offered and has pages that the GPU
/// reaches directly. `EBUSY` else; `EINTR` if a signal arrives.
pub(crate) fn offered_share(bo: &Bo) -> Result<Arc<Share>> {
    match gem::placement(bo, &resv::lock(bo)?)? {
        Placement::System(_, SystemSite::Direct(memory)) if bo.is_offered() => {
            Ok(memory.share.clone())
        }
        _ => Err(EBUSY),
    }
}

impl BoData {
    /// Whether its content may be thrown away, or was. For good as long as its reservation is
    /// locked.
    pub(crate) fn is_offered(&self) -> bool {
        self.backing.offer() != Offer::Not
    }

    /// Whether its content was thrown away, or is about to be.
    pub(crate) fn is_discarded(&self) -> bool {
        self.backing.offer() == Offer::Gone
    }

    /// Its content, which is offered, is thrown away. The caller has locked its reservation.
    pub(crate) fn set_discarded(bo: &Bo) {
        bo.backing.set_offer(Offer::Gone);
        let counter = &bo.dev().counters.discarded_bytes;
        // CAST: `usize` has 64 bits.
        counter.fetch_add(bo.size() as u64, Relaxed);
    }
}

impl Shrink for BoData {
    const AWAKE: &'static [u8] = ranks::AWAKE;
    const RESTING: u8 = ranks::RESTING;
    const KEEPERS: Range<u8> = ranks::KEEPERS;

    type Owner = Arc<Quota>;

    fn copies(dev: &SkuaDevice) -> u64 {
        dev.counters.clean_kept.load(Relaxed) / PAGE_SIZE
    }

    fn drop_copy(obj: &Bo, reserved: &mut Reserved<'_>, meant: &Meant<'_, Self::Owner>) -> usize {
        let bytes = match clean_copy::is_meant(obj, reserved, meant) {
            true => clean_copy::drop_copy(obj, reserved).unwrap_or(0),
            false => 0,
        };
        usize::try_from(bytes / PAGE_SIZE).unwrap_or(0)
    }

    fn rest(obj: &Bo, reserved: &mut Reserved<'_>) -> usize {
        let pages = rest(obj, reserved).unwrap_or(0);
        let counter = &obj.dev().counters.pages_given_back;
        // CAST: at most 64 bits.
        counter.fetch_add(pages as u64, Relaxed);
        pages
    }
}
