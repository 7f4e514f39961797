// SPDX-License-Identifier: GPL-2.0

//! What one client claims of objects, and how often: that they be resident ([`residency`]), that
//! they be locked ([`lock`]).
//!
//! A claim ends with the client's handle. The object counts the clients that have one.
//!
//! [`residency`]: super::residency
//! [`lock`]: super::lock

use crate::{
    kernel_heap::client_flags,
    memory::bo::{
        Bo,
        BoData,
        BoRef, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::Mutex,
    warn_on, //
};

/// What a client claims, of one kind.
#[pin_data]
pub(crate) struct Claims {
    /// By the address of an object that the client has a handle of, how often; not 0.
    #[pin]
    counts: Mutex<RBTree<usize, u32>>,
    /// Has the object count some clients more, or fewer.
    count_clients: fn(&BoData, i16) -> Result,
}

impl Claims {
    /// None yet, of the kind that `count_clients` counts: `EMFILE`, never for fewer.
    pub(crate) fn new(count_clients: fn(&BoData, i16) -> Result) -> impl PinInit<Self> {
        pin_init!(Self {
            counts <- new_mutex!(RBTree::new()),
            count_clients,
        })
    }

    fn key(bo: &Bo) -> usize {
        core::ptr::from_ref(bo).addr()
    }

    /// The client is none of those any more that claim `bo`.
    fn uncount(&self, bo: &Bo) {
        warn_on!((self.count_clients)(bo, -1).is_err());
    }

    /// Claims `bo` once more. `ENOMEM`; `EOVERFLOW`; `EMFILE`.
    pub(crate) fn add(&self, bo: &Bo) -> Result {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&Self::key(bo)) {
            *count = count.checked_add(1).ok_or(EOVERFLOW)?;
            return Ok(());
        }
        (self.count_clients)(bo, 1)?;
        let inserted = counts.try_create_and_insert(Self::key(bo), 1, client_flags());
        if inserted.is_err() {
            self.uncount(bo);
        }
        inserted.map(|_| ())
    }

    /// Takes [`Claims::add`] back once for each of `objects` that is claimed.
    pub(crate) fn undo<'a>(&self, objects: impl Iterator<Item = &'a BoRef>) {
        self.remove(&mut self.counts.lock(), objects);
    }

    fn remove<'a>(
        &self,
        counts: &mut RBTree<usize, u32>,
        objects: impl Iterator<Item = &'a BoRef>,
    ) {
        for bo in objects {
            match counts.get_mut(&Self::key(bo)) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    counts.remove(&Self::key(bo));
                    self.uncount(bo);
                }
                // Its handle was closed meanwhile.
                None => (),
            }
        }
    }

    /// Takes [`Claims::add`] back once for each of `objects`, or for none: `EINVAL` if one is not
    /// claimed.
    pub(crate) fn take_back<'a>(&self, objects: impl Iterator<Item = &'a BoRef> + Clone) -> Result {
        let mut counts = self.counts.lock();
        let mut strange = objects.clone();
        if strange.any(|bo| counts.get(&Self::key(bo)).is_none()) {
            return Err(EINVAL);
        }
        self.remove(&mut counts, objects);
        Ok(())
    }

    /// The client's handle of `bo` is gone.
    pub(crate) fn forget(&self, bo: &Bo) {
        if self.counts.lock().remove(&Self::key(bo)).is_some() {
            self.uncount(bo);
        }
    }
}
