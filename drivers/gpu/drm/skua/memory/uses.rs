// SPDX-License-Identifier: GPL-2.0

//! When something was used, by the GPU's clock of uses
//! ([`policy::eviction`](crate::policy::eviction)): an object when it is bound, made resident,
//! brought back or accessed by the CPU; an address space, with all that its work needs, when work
//! is submitted to it.

use crate::{
    gpu::SkuaDevice,
    policy::eviction::Uses, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// The last use of one object or address space. Of two that are counted at the same time one may be
/// lost: it says who leaves first, and nothing else.
pub(crate) struct LastUse(Atomic<u64>);

impl LastUse {
    /// Of what is made now.
    pub(crate) fn new(dev: &SkuaDevice) -> Self {
        Self(Atomic::new(Uses::new(now(dev)).word()))
    }

    /// It is used now.
    pub(crate) fn count(&self, dev: &SkuaDevice) {
        let now = dev.uses.fetch_add(1, Relaxed).wrapping_add(1);
        self.set(self.get().again(now));
    }

    /// It is used by work now: until something else is used all of that is one use.
    pub(crate) fn count_work(&self, dev: &SkuaDevice) {
        if !self.get().is_now(now(dev)) {
            self.count(dev);
        }
    }

    /// When it was used last, and before that.
    pub(crate) fn get(&self) -> Uses {
        Uses::from_word(self.0.load(Relaxed))
    }

    /// It was used at other times than were counted.
    pub(crate) fn set(&self, uses: Uses) {
        self.0.store(uses.word(), Relaxed);
    }
}

/// The clock, at this moment.
pub(crate) fn now(dev: &SkuaDevice) -> u64 {
    dev.uses.load(Relaxed)
}
