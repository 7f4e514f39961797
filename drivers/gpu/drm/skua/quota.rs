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
//!  Quota::of_all     all of it        its limit
//!      ▲
//!  of_user           a user's         as much as is left for others (policy::fair_share)
//!      ▲
//!  of_client         a file's         its own limit
//!      ▲
//!    Share           an object's
//! ```
//!
//! [`Quota::of_file`] is a file's that is a part of nothing. A refusal is told by the tracepoint
//! `skua_no_quota`.
//!
//! Who may override limits of resources (`CAP_SYS_RESOURCE`) takes what is left for others, too.
//!
//! What is *charged* and not taken counts for the client and its user, who may have less to take
//! then; of what all may have it leaves the others as much as there was.

use crate::{
    ext::{
        capability,
        trace, //
    },
    policy::fair_share, //
};
use core::{
    iter::{
        once,
        successors, //
    },
    ops::Sub, //
};
use kernel::{
    drm,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
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

/// Which quota it is, of those that exist: told apart by it, and nothing else. That of its address
/// spaces names a client, and what that is a part of the client's user.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuotaId(usize);

/// A limit, in a unit that its owner says.
pub(crate) struct Quota {
    /// What there may be so much of.
    what: &'static CStr,
    /// Whose it is: `all`, `user` or `client`.
    of: &'static CStr,
    /// Units that may be in use; never changes.
    limit: u64,
    /// Units of the shares that were taken; at most `limit`.
    taken: Atomic<u64>,
    /// Units of the shares that were charged.
    charged: Atomic<u64>,
    /// What its units count in as well.
    whole: Option<Arc<Quota>>,
    /// Whether it is to have no more of `whole` than it leaves for others.
    is_fair: bool,
    /// Quotas that are parts of this one.
    parts: Atomic<u64>,
}

impl Quota {
    fn make(
        what: &'static CStr,
        of: &'static CStr,
        limit: u64,
        whole: Option<&Arc<Self>>,
        is_fair: bool,
    ) -> Result<Arc<Self>> {
        let quota = Self {
            what,
            of,
            limit,
            taken: Atomic::new(0),
            charged: Atomic::new(0),
            whole: whole.cloned(),
            is_fair,
            parts: Atomic::new(0),
        };
        // Before it is dropped, also if there is no memory for it.
        if let Some(whole) = whole {
            whole.parts.fetch_add(1, Full);
        }
        Ok(Arc::new(quota, GFP_KERNEL_ACCOUNT)?)
    }

    /// What all have of `what`: up to `limit` units, of which none is used. `ENOMEM`.
    pub(crate) fn of_all(what: &'static CStr, limit: u64) -> Result<Arc<Self>> {
        Self::make(what, c"all", limit, None, false)
    }

    /// A user's part of this one, which has no limit but what is fair. `ENOMEM`.
    pub(crate) fn of_user(self: &Arc<Self>) -> Result<Arc<Self>> {
        Self::make(self.what, c"user", u64::MAX, Some(self), true)
    }

    /// A client's part, up to `limit` units, of this one, its user's. `ENOMEM`.
    pub(crate) fn of_client(self: &Arc<Self>, limit: u64) -> Result<Arc<Self>> {
        Self::make(self.what, c"client", limit, Some(self), false)
    }

    /// What a client has with one file of `what`, which counts nowhere else. `ENOMEM`.
    pub(crate) fn of_file(what: &'static CStr, limit: u64) -> Result<Arc<Self>> {
        Self::make(what, c"client", limit, None, false)
    }

    /// A number that no other quota has as long as this one exists; never the default.
    pub(crate) fn id(self: &Arc<Self>) -> QuotaId {
        QuotaId(Arc::as_ptr(self).addr())
    }

    /// Units that may be in use.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Units in use, of shares that were taken and of those that were charged.
    pub(crate) fn used(&self) -> u64 {
        let charged = self.charged.load(Relaxed);
        self.taken.load(Relaxed).saturating_add(charged)
    }

    /// Whether nothing of it is used, nor ever will be: it has no parts.
    pub(crate) fn is_over(&self) -> bool {
        self.parts.load(Acquire) == 0 && self.used() == 0
    }

    /// The quota in which its units count as well, if it is a part of one.
    pub(crate) fn whole(&self) -> Option<&Arc<Self>> {
        self.whole.as_ref()
    }

    /// This quota, the one that it is a part of, and so on.
    pub(crate) fn and_wholes(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        successors(Some(self), |quota| quota.whole())
    }

    /// Units that count against `limit`, of which so many were `taken`.
    fn counted(&self, taken: u64) -> u64 {
        match self.whole {
            Some(_) => taken.saturating_add(self.charged.load(Relaxed)),
            None => taken,
        }
    }

    /// How many units have to be given back before there may be `more` of this one; not of what it
    /// is a part of. Process context.
    pub(crate) fn excess(&self, more: u64) -> u64 {
        let used = self.counted(self.taken.load(Relaxed)).saturating_add(more);
        let above = used.saturating_sub(self.limit);
        let unfair = self.unfair(used, more);
        match unfair > above && !capability::sys_resource() {
            true => unfair,
            false => above,
        }
    }

    /// How many of `used` units, of which the whole does not count `more` yet, are more than is
    /// left for others.
    fn unfair(&self, used: u64, more: u64) -> u64 {
        let whole = self.whole.as_ref().filter(|_| self.is_fair);
        whole.map_or(0, |whole| {
            let all = whole.taken.load(Relaxed).saturating_add(more);
            fair_share::excess(used, whole.limit.saturating_sub(all))
        })
    }

    /// Whether this client, or its user, was charged something, and more is in use of what all may
    /// have than `beyond` its limit.
    pub(crate) fn is_overcharged(self: &Arc<Self>, beyond: u64) -> bool {
        let is_charged = |quota: &Arc<Self>| quota.charged.load(Relaxed) > 0;
        let mut parts = self.and_wholes().filter(|quota| quota.whole.is_some());
        let all = self.and_wholes().last();
        parts.any(is_charged)
            && all.is_some_and(|all| all.used() > all.limit.saturating_add(beyond))
    }

    /// What gives way to it where it has too much: at first what counts in it, and what others have
    /// of the whole if that leaves it less than them.
    pub(crate) fn givers(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        let others = self.whole().filter(|_| self.is_fair);
        Iterator::chain(once(self), others)
    }

    /// Counts `units` in here, unless there would be too many.
    fn add(&self, units: u64) -> bool {
        let mut taken = self.taken.load(Relaxed);
        loop {
            let new = taken.checked_add(units);
            let Some(new) = new.filter(|new| self.counted(*new) <= self.limit) else {
                return false;
            };
            match self.taken.cmpxchg(taken, new, Full) {
                Ok(_) => return true,
                Err(now) => taken = now,
            }
        }
    }

    /// Takes `units`; [`None`] if that is more than is left of it, or of what it is a part of,
    /// which is traced for `dev`. Process context.
    pub(crate) fn take<D: drm::Driver>(
        self: &Arc<Self>,
        dev: &drm::Device<D>,
        units: u64,
    ) -> Option<Share> {
        let taken = self.try_take(units);
        let tell = |full: &&Arc<Self>| {
            let (used, excess) = (full.used(), full.excess(units));
            trace::no_quota(dev, full.what, full.of, units, used, excess);
        };
        taken.inspect_err(tell).ok()
    }

    /// Takes `units`, or says what has too few left.
    fn try_take(self: &Arc<Self>, units: u64) -> Result<Share, &Arc<Self>> {
        // First: what it may not have is not taken from others for a moment.
        if let Some(full) = self.and_wholes().find(|quota| quota.excess(units) > 0) {
            return Err(full);
        }
        for (at, quota) in self.and_wholes().enumerate() {
            if !quota.add(units) {
                let added = self.and_wholes().take(at);
                added.for_each(|quota| sub(&quota.taken, units));
                return Err(quota);
            }
        }
        let share = Share {
            quota: self.clone(),
            units,
            is_charged: false,
        };
        // Behind the count, which others see already: of two at a time both may be refused.
        let unfair = self.and_wholes().find(|quota| quota.excess(0) > 0);
        unfair.map_or(Ok(share), Err)
    }

    /// Takes `units`, whether or not they are left: what the owner did not ask for.
    pub(crate) fn charge(self: &Arc<Self>, units: u64) -> Share {
        for quota in self.and_wholes() {
            // No wrap: bytes that exist.
            quota.charged.fetch_add(units, Full);
        }
        Share {
            quota: self.clone(),
            units,
            is_charged: true,
        }
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            sub(&whole.parts, 1);
        }
    }
}

/// Counts out `units` that were counted in before.
fn sub(count: &Atomic<u64>, units: u64) {
    // No wrap: as said.
    count.fetch_sub(units, Full);
}

/// A part of a quota, given back on drop.
pub(crate) struct Share {
    /// Where `units` are counted as used, and in what it is a part of.
    quota: Arc<Quota>,
    /// How much this is; 0 when it was joined to another share.
    units: u64,
    /// Whether it was charged, and not taken.
    is_charged: bool,
}

impl Share {
    /// Adds `other`, which must be of the same quota and taken, as this was, to this share.
    pub(crate) fn join(&mut self, mut other: Self) {
        let is_alike = other.is_of(&self.quota) && other.is_charged == self.is_charged;
        if !crate::warn_on_once!(!is_alike) {
            // No wrap: bytes, or objects, that exist.
            self.units = self.units.wrapping_add(core::mem::take(&mut other.units));
        }
    }

    /// How much it is, in units of the quota.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// The quota in which it counts.
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
        for quota in self.quota.and_wholes() {
            match self.is_charged {
                true => sub(&quota.charged, self.units),
                false => sub(&quota.taken, self.units),
            }
        }
    }
}
