// SPDX-License-Identifier: GPL-2.0

//! The lists in which those who need room find buffer objects: which number, the *rank*, is which
//! list, and when an object is the last of its own.
//!
//! | ranks | list | of what |
//! |---|---|---|
//! | 0 to 4 | [`Gpu::evictable`], first half | is in VRAM and not offered: one for each [`Level`] |
//! | 5 to 9 | [`Gpu::evictable`], second half | may leave the aperture, likewise ([`gart::rank`]) |
//! | 10 to 24 | [`Gpu::offered`] | is in VRAM and offered: five for each list, by the level that it has besides |
//! | 100 to 102 | [`Gpu::awake`], all but the last | has system pages that the GPU reaches directly, and is offered, or gone (100) |
//! | 103 | [`Gpu::awake`], the last | has such pages, and is not offered |
//! | 104 | [`Gpu::resting`] | has given them back |
//!
//! An object has one of those below 100 all the time ([`Backing::rank`]), which tells its level: it
//! is 0 to 4 for what is neither in VRAM nor in the aperture.
//!
//! [`Gpu::evictable`]: crate::gpu::Gpu::evictable
//! [`Gpu::offered`]: crate::gpu::Gpu::offered
//! [`Gpu::awake`]: crate::gpu::Gpu::awake
//! [`Gpu::resting`]: crate::gpu::Gpu::resting
//! [`Backing::rank`]: crate::ext::gem::Backing::rank

use crate::{
    ext::{
        gem::Offer,
        lru::{
            self,
            Listed,
            Lru, //
        },
        resv, //
    },
    gpu::SkuaDevice,
    memory::{
        bo::{
            Bo,
            BoData,
            REGION_APERTURE,
            REGION_VRAM, //
        },
        gart, //
    },
    policy::priority::{
        self,
        Level, //
    }, //
};
use core::ops::Range;
use kernel::prelude::*;

// CAST: few.
const LEVELS: u8 = Level::ALL.len() as u8;
/// Behind the ranks of what is in VRAM and in the aperture.
const FIRST_OFFERED: u8 = 2 * LEVELS;
/// The rank of what has system pages and is offered first.
const FIRST_AWAKE: u8 = 100;
/// The rank of what has system pages and is not offered.
const LAST_AWAKE: u8 = FIRST_AWAKE + priority::Offer::ALL.len() as u8;
/// [`Shrink::AWAKE`](crate::ext::shrinker::Shrink::AWAKE).
pub(super) const AWAKE: &[u8] = &[FIRST_AWAKE, FIRST_AWAKE + 1, FIRST_AWAKE + 2, LAST_AWAKE];
/// [`Shrink::RESTING`](crate::ext::shrinker::Shrink::RESTING).
pub(super) const RESTING: u8 = LAST_AWAKE + 1;
/// [`Shrink::KEEPERS`](crate::ext::shrinker::Shrink::KEEPERS), of what is in VRAM.
pub(super) const KEEPERS: Range<u8> = 0..gart::rank(Level::Minimum);

/// The list of objects in VRAM of `rank`.
pub(crate) const fn vram_rank(rank: priority::Rank) -> u8 {
    // CAST: few.
    match rank {
        priority::Rank::Offered(offer) => FIRST_OFFERED + offer as u8 * LEVELS,
        priority::Rank::Kept(level) => level as u8,
    }
}

/// Says that `bo`, whose reservation the caller has locked, was used just now: it is not the next
/// to make room for others.
pub(crate) fn was_used(bo: &Bo) {
    bo.last_use.count(bo.dev());
    renew(bo);
}

/// Has `bo`, whose reservation the caller has locked, be the last of its list, though nobody has
/// used it.
pub(crate) fn renew(bo: &Bo) {
    if bo.region() == REGION_VRAM || (bo.region() == REGION_APERTURE && bo.may_move()) {
        lru::use_now(bo);
    }
}

/// Has `bo` be of `level` when room is made: those of lower ones go before it. `EINTR` if a signal
/// arrives.
pub(crate) fn set_priority(bo: &Bo, level: Level) -> Result {
    let _reserved = resv::lock(bo)?;
    bo.set_level(level as u8);
    renew(bo);
    Ok(())
}

impl BoData {
    /// The [`Level`] of its priority.
    pub(crate) fn level(&self) -> u8 {
        self.backing.rank() % gart::rank(Level::Minimum)
    }

    /// The priority that its client gave it last (row 2.25).
    pub(crate) fn priority(&self) -> Level {
        let level = Level::ALL.get(usize::from(self.level()));
        // There is none without.
        level.copied().unwrap_or(Level::Minimum)
    }

    /// Has it be of `level`, in the list of the region that it is in.
    pub(super) fn set_level(&self, level: u8) {
        let first = match (self.region(), self.backing.offer()) {
            (REGION_APERTURE, _) => gart::rank(Level::Minimum),
            (REGION_VRAM, Offer::At(offer)) => {
                FIRST_OFFERED.saturating_add(offer.saturating_mul(LEVELS))
            }
            _ => 0,
        };
        self.backing.set_rank(first.saturating_add(level));
    }

    /// In which list it is, when it has system pages.
    pub(super) fn awake_rank(&self) -> u8 {
        match self.backing.offer() {
            Offer::At(offer) => FIRST_AWAKE.saturating_add(offer),
            Offer::Gone => FIRST_AWAKE,
            Offer::Not => LAST_AWAKE,
        }
    }
}

impl Listed for BoData {
    fn lru(dev: &SkuaDevice, rank: u8) -> &Lru<Self> {
        // There is no other rank.
        fn at(lists: &[Lru<BoData>], at: u8) -> Option<&Lru<BoData>> {
            lists.get(usize::from(at))
        }
        let list = match rank {
            FIRST_AWAKE..=LAST_AWAKE => at(&dev.awake, rank - FIRST_AWAKE),
            RESTING => None,
            FIRST_OFFERED.. => at(&dev.offered, (rank - FIRST_OFFERED) / LEVELS),
            _ => at(&dev.evictable, rank),
        };
        list.unwrap_or(&dev.resting)
    }
}
