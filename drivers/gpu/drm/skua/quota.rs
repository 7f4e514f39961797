// SPDX-License-Identifier: GPL-2.0

//! How much of something there may be.
//!
//! A [`Quota`] is a limit with a count; a [`Share`] is a part of it that its owner has, given back
//! on drop. An object keeps the share that it takes of its client's quota, so it counts as long as
//! it lives, whether or not its client still has a handle of it.
//!
//! What a client has its user has, and what a user has there is in all:
//!
//! ```text
//!  Quota::new        all of it        its limit
//!      ▲
//!  of_user           a user's         as much as is left for others (policy::fair_share)
//!      ▲
//!  of_client         a file's         its own limit
//!      ▲
//!    Share           an object's
//! ```
//!
//! Who may override limits of resources (`CAP_SYS_RESOURCE`) takes what is left for others, too.

use crate::{
    ext::capability,
    policy::fair_share, //
};
use core::{
    iter::successors,
    ops::Sub, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Counts out `gone` of what was counted in; a warning if there were not as many.
pub(crate) fn count_out<T>(count: &mut T, gone: T)
where
    T: Copy + Default + Ord + Sub<Output = T>,
{
    let is_wrong = crate::warn_on_once!(gone > *count);
    *count = match is_wrong {
        true => T::default(),
        false => *count - gone,
    };
}

/// A limit, in a unit that its owner says.
pub(crate) struct Quota {
    /// Units that may be in use; never changes.
    limit: u64,
    /// Units of all shares that exist; at most `limit`, but for what was charged.
    used: Atomic<u64>,
    /// What its units count in as well.
    whole: Option<Arc<Quota>>,
    /// Whether it is to have no more of `whole` than it leaves for others.
    is_fair: bool,
}

impl Quota {
    fn make(limit: u64, whole: Option<&Arc<Self>>, is_fair: bool) -> Result<Arc<Self>> {
        let quota = Self {
            limit,
            used: Atomic::new(0),
            whole: whole.cloned(),
            is_fair,
        };
        Ok(Arc::new(quota, GFP_KERNEL_ACCOUNT)?)
    }

    /// A quota of `limit` units, of which none is used. `ENOMEM`.
    pub(crate) fn new(limit: u64) -> Result<Arc<Self>> {
        Self::make(limit, None, false)
    }

    /// A user's part of this one. `ENOMEM`.
    pub(crate) fn of_user(self: &Arc<Self>) -> Result<Arc<Self>> {
        Self::make(self.limit, Some(self), true)
    }

    /// A client's part, up to `limit` units, of this one, its user's. `ENOMEM`.
    pub(crate) fn of_client(self: &Arc<Self>, limit: u64) -> Result<Arc<Self>> {
        Self::make(limit, Some(self), false)
    }

    /// Units that may be in use.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Units in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Of what it is a part.
    pub(crate) fn whole(&self) -> Option<&Arc<Self>> {
        self.whole.as_ref()
    }

    /// This one, what it is a part of, and so on.
    pub(crate) fn and_wholes(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        successors(Some(self), |quota| quota.whole())
    }

    /// How many units have to be given back before there may be `more` of this one; not of what it
    /// is a part of. Process context.
    pub(crate) fn excess(&self, more: u64) -> u64 {
        let used = self.used().saturating_add(more);
        let above = used.saturating_sub(self.limit);
        match &self.whole {
            Some(whole) if self.is_fair => {
                let all = whole.used().saturating_add(more);
                match fair_share::excess(used, whole.limit.saturating_sub(all)) {
                    unfair if unfair > above && !capability::sys_resource() => unfair,
                    _ => above,
                }
            }
            _ => above,
        }
    }

    /// Counts `units` in here, unless there would be too many.
    fn add(&self, units: u64) -> bool {
        let mut used = self.used.load(Relaxed);
        loop {
            let Some(new) = used.checked_add(units).filter(|new| *new <= self.limit) else {
                return false;
            };
            match self.used.cmpxchg(used, new, Full) {
                Ok(_) => return true,
                Err(now) => used = now,
            }
        }
    }

    /// Takes `units`; [`None`] if that is more than is left of it, or of what it is a part of.
    /// Process context.
    pub(crate) fn take(self: &Arc<Self>, units: u64) -> Option<Share> {
        // The client's own first: what it may not have is not taken from others for a moment.
        for (at, quota) in self.and_wholes().enumerate() {
            if !quota.add(units) {
                self.and_wholes()
                    .take(at)
                    .for_each(|quota| quota.sub(units));
                return None;
            }
        }
        let share = Share {
            quota: self.clone(),
            units,
        };
        // Behind the count, which others see already: of two at a time both may be refused.
        let is_fair = self.and_wholes().all(|quota| quota.excess(0) == 0);
        is_fair.then_some(share)
    }

    /// Takes `units`, whether or not they are left: what the owner did not ask for.
    pub(crate) fn charge(self: &Arc<Self>, units: u64) -> Share {
        for quota in self.and_wholes() {
            // No wrap: bytes that exist.
            quota.used.fetch_add(units, Full);
        }
        Share {
            quota: self.clone(),
            units,
        }
    }

    /// Counts out `units` that were counted in here.
    fn sub(&self, units: u64) {
        // No wrap: what was taken before.
        self.used.fetch_sub(units, Full);
    }
}

/// A part of a quota, given back on drop.
pub(crate) struct Share {
    /// Where `units` are counted as used, and in what it is a part of.
    quota: Arc<Quota>,
    /// How much this is; 0 when it was joined to another share.
    units: u64,
}

impl Share {
    /// Adds `other`, which must be of the same quota, to this share.
    pub(crate) fn join(&mut self, mut other: Self) {
        if !crate::warn_on_once!(!other.is_of(&self.quota)) {
            // No wrap: bytes, or objects, that exist.
            self.units = self.units.wrapping_add(core::mem::take(&mut other.units));
        }
    }

    /// What it is a part of.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Whether it is a part of `quota`, and of no smaller one in between.
    pub(crate) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        Arc::ptr_eq(&self.quota, quota)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.quota
            .and_wholes()
            .for_each(|quota| quota.sub(self.units));
    }
}
