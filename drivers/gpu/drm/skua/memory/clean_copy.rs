// SPDX-License-Identifier: GPL-2.0

//! Clean copies: what comes to VRAM keeps the system pages from which it came, as long as nobody
//! can have written it since. When it leaves, nothing is copied: it has these pages again.
//!
//! ```text
//!                      arrives, nobody may write it        leaves: nothing is copied
//!  system pages ──────────────────────────▶ VRAM and copy ──────────────────────────▶ system pages
//!                                                 │
//!                                                 │ dropped: it may be written from now on;
//!                                                 ▼ memory is short, or a quota
//!                                                VRAM      leaves: copied
//! ```
//!
//! Nobody looks at what work does. Whether something may be written is known from who may write:
//!
//! | writer | when the copy goes |
//! |---|---|
//! | GPU | a bind without READONLY is accepted ([`begin_mapping`]); none is kept if there is such a user at the arrival ([`Sites::has_writer`]) |
//! | CPU | a write faults: of what has a copy all mappings are read-only ([`VmFault::is_write`]) |
//! | other drivers | never: what they have attached is in system memory |
//! | this driver | never: it clears what is new, and copies what moves |
//!
//! Each of these takes the object's reservation lock before it can write, and so does who moves it.
//! The copy is a part of the [`Placement`](crate::ext::gem::Placement), which that lock protects:
//! so as long as it is there nobody has had a way to write, and when it is used for a move all who
//! get one later wait for that. What is dropped does not come back before the object does.
//!
//! When the device is reset, what is in VRAM is lost, and so is the copy: it is dropped when the
//! object leaves.
//!
//! It counts as the client's system memory as it did before it came. Where a quota is exceeded none
//! is kept, and who gets nothing of one has those dropped that count in it ([`make_room`]).
//!
//! [`begin_mapping`]: super::vm::begin_mapping
//! [`Sites::has_writer`]: super::installed::Sites::has_writer
//! [`VmFault::is_write`]: crate::ext::fault::VmFault::is_write

use crate::{
    ext::{
        gem::{
            self,
            Placement, //
        },
        pages::Pages,
        resv::{
            self,
            Reserved, //
        },
        shrinker::{
            self,
            CopyEntry,
            Meant, //
        }, //
    },
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    memory::{
        bo::{
            Bo,
            BoData,
            SystemMemory, //
        },
        vram::VramRange, //
    },
    policy::relocation::keeps_copy,
    quota::{
        Quota,
        Share, //
    }, //
};
use kernel::{
    drm::gem::BaseObject,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc, //
    }, //
};

/// Where an object is in VRAM, and what is kept of it outside.
pub(crate) struct VramSite {
    /// The object's VRAM.
    pub(crate) range: Arc<VramRange>,
    /// The same bytes, for when it leaves.
    copy: Option<KBox<CleanCopy>>,
}

impl From<Arc<VramRange>> for VramSite {
    fn from(range: Arc<VramRange>) -> Self {
        Self { range, copy: None }
    }
}

impl VramSite {
    /// The pages that an object has when it leaves without being copied.
    pub(crate) fn copy(&self) -> Option<(&Arc<Pages>, &Arc<SystemMemory>)> {
        self.copy.as_ref().map(|copy| (&copy.pages, &copy.memory))
    }

    /// Keeps `copy`, if there is one, which the memory is about to be made from.
    pub(crate) fn keep(&mut self, copy: Option<KBox<CleanCopy>>) {
        self.copy = copy;
    }
}

/// System pages of an object that is in VRAM, with the same bytes.
pub(crate) struct CleanCopy {
    /// Whose counters say how much is kept.
    dev: ARef<SkuaDevice>,
    /// The object's size.
    bytes: u64,
    /// Has it dropped when the group that pays for it is short of memory.
    _entry: CopyEntry,
    /// The copy: what the object has when it is out of VRAM.
    pages: Arc<Pages>,
    /// The same as the memory that it is then, with its shares of the quotas.
    memory: Arc<SystemMemory>,
}

impl CleanCopy {
    /// What is to be kept of `bo`, which is about to move to VRAM, if that is worth it: nobody may
    /// write it, no quota is exceeded, and there is some memory left. `EINVAL` unless `reserved` is
    /// its lock.
    pub(crate) fn of(
        dev: &SkuaDevice,
        bo: &Bo,
        reserved: &Reserved<'_>,
    ) -> Result<Option<KBox<Self>>> {
        let Placement::System(pages, site) = gem::placement(bo, reserved)? else {
            return Ok(None);
        };
        let memory = site.memory();
        if !keeps_copy(bo.sites.has_writer(), memory.is_too_much()) {
            return Ok(None);
        }
        let entry = dev
            .copies()
            .and_then(|copies| CopyEntry::new(&copies, pages));
        let Some(entry) = entry else {
            return Ok(None);
        };
        let bytes = u64::try_from(bo.size())?;
        dev.counters.clean_kept.fetch_add(bytes, Relaxed);
        let copy = Self {
            dev: dev.into(),
            bytes,
            _entry: entry,
            pages: pages.clone(),
            memory: memory.clone(),
        };
        Ok(KBox::new(copy, client_flags()).ok())
    }
}

impl Drop for CleanCopy {
    fn drop(&mut self) {
        // No wrap: added before.
        self.dev.counters.clean_kept.fetch_sub(self.bytes, Relaxed);
    }
}

/// The pages that `bo` would have if it left now, if it has a clean copy. `EBUSY` if somebody has
/// it locked, unless it `may_wait`; `EINTR` if a signal arrives.
pub(crate) fn find(bo: &Bo, may_wait: bool) -> Result<Option<(Arc<Pages>, Arc<SystemMemory>)>> {
    let mut reserved = match may_wait {
        true => resv::lock(bo)?,
        false => resv::trylock(bo).ok_or(EBUSY)?,
    };
    if matches!(gem::placement(bo, &reserved)?, Placement::Device(site) if site.range.is_lost()) {
        // They are not the same bytes any more.
        drop_copy(bo, &mut reserved)?;
    }
    Ok(match gem::placement(bo, &reserved)? {
        Placement::Device(site) => site
            .copy()
            .map(|(pages, memory)| (pages.clone(), memory.clone())),
        _ => None,
    })
}

/// Drops the copy of `bo`, if there is one: it may be written from now on, or the memory is needed.
/// How many bytes that was. `EINVAL` unless `reserved` is its lock.
pub(crate) fn drop_copy(bo: &Bo, reserved: &mut Reserved<'_>) -> Result<u64> {
    let Some(copy) = gem::device_mut(bo, reserved)?.and_then(|site| site.copy.take()) else {
        return Ok(0);
    };
    // First: who has looked at it before does not use it.
    copy.memory.set_stale();
    bo.set_clean(false);
    gem::discard(bo);
    bo.dev()
        .counters
        .clean_dropped
        .fetch_add(copy.bytes, Relaxed);
    Ok(copy.bytes)
}

/// Whether `bo` has a copy that is `meant`. Not unless `reserved` is its lock.
pub(crate) fn is_meant(bo: &Bo, reserved: &Reserved<'_>, meant: &Meant<'_, Arc<Quota>>) -> bool {
    let Ok(Placement::Device(site)) = gem::placement(bo, reserved) else {
        return false;
    };
    site.copy().is_some_and(|(pages, memory)| match meant {
        Meant::All => true,
        Meant::Of(group) => group.pays_for(pages),
        Meant::Owned(quota) => memory.counts_in(quota),
    })
}

/// Drops copies, of objects that nobody is using just now, that count in `quota`, one of system
/// memory of `dev`, or in what it is a part of, until `bytes` more may be had of these; whether
/// they may. None for a quota of which that much may not be had at all. Takes the lists' lock.
pub(crate) fn make_room(dev: &SkuaDevice, quota: &Arc<Quota>, bytes: u64) -> bool {
    let has_room = |quota: &Arc<Quota>| quota.excess(bytes) == 0;
    let make = |quota: &Arc<Quota>| {
        bytes <= quota.limit()
            && quota.givers().any(|giver| {
                let missing = quota.excess(bytes).div_ceil(PAGE_SIZE as u64);
                let pages = usize::try_from(missing).unwrap_or(usize::MAX);
                shrinker::drop_copies::<BoData>(dev, pages, giver) > 0 && has_room(quota)
            })
    };
    let mut quotas = quota.and_wholes();
    quotas.all(|quota| has_room(quota) || make(quota))
}

/// Does what [`Quota::take`] does with a quota of system memory of `dev`; copies make room.
pub(crate) fn take(dev: &SkuaDevice, quota: &Arc<Quota>, bytes: u64) -> Option<Share> {
    let take = || quota.take(dev, bytes);
    take().or_else(|| make_room(dev, quota, bytes).then(take).flatten())
}
