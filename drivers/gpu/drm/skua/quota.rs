// SPDX-License-Identifier: GPL-2.0

//! How much of something there may be.
//!
//! A [`Quota`] is a limit with a count; a [`Share`] is a part of it that its owner has, given back
//! on drop. An object keeps the shares that it takes of its device's and its client's quotas, so it
//! counts as long as it lives, whether or not its client still has a handle of it.

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
    T: Copy + Default + Ord + core::ops::Sub<Output = T>,
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
}

impl Quota {
    /// A quota of `limit` units, of which none is used. `ENOMEM`.
    pub(crate) fn new(limit: u64) -> Result<Arc<Self>> {
        let quota = Self {
            limit,
            used: Atomic::new(0),
        };
        Ok(Arc::new(quota, GFP_KERNEL_ACCOUNT)?)
    }

    /// Units that may be in use.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Units in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Takes `units`; [`None`] if that is more than is left.
    pub(crate) fn take(self: &Arc<Self>, units: u64) -> Option<Share> {
        let mut used = self.used.load(Relaxed);
        loop {
            let new = used.checked_add(units).filter(|new| *new <= self.limit)?;
            match self.used.cmpxchg(used, new, Full) {
                Ok(_) => {
                    return Some(Share {
                        quota: self.clone(),
                        units,
                    })
                }
                Err(now) => used = now,
            }
        }
    }

    /// Takes `units`, whether or not they are left: what the owner did not ask for.
    pub(crate) fn charge(self: &Arc<Self>, units: u64) -> Share {
        // No wrap: bytes that exist.
        self.used.fetch_add(units, Full);
        Share {
            quota: self.clone(),
            units,
        }
    }
}

/// Takes `units` of a client's `own` quota, and of that of `all` clients together; [`None`] if that
/// is more than is left of either.
pub(crate) fn take_both(own: &Arc<Quota>, all: &Arc<Quota>, units: u64) -> Option<[Share; 2]> {
    // The client's own first: what it may not have is not taken from others for a moment.
    Some([own.take(units)?, all.take(units)?])
}

/// A part of a quota, given back on drop.
pub(crate) struct Share {
    /// Where `units` are counted as used.
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

    /// Whether it is a part of `quota`.
    pub(crate) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        Arc::ptr_eq(&self.quota, quota)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // No wrap: what was taken before.
        self.quota.used.fetch_sub(self.units, Full);
    }
}
