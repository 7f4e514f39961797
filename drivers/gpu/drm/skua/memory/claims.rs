// SPDX-License-Identifier: GPL-2.0

//! What is claimed of objects, and how often: by a client's [device](super::device) that they be
//! resident ([`residency`]), by a client that they be locked ([`lock`]).
//!
//! A claim ends with the client's handle. The object counts who has one.
//!
//! [`residency`]: super::residency
//! [`lock`]: super::lock

use crate::{
    kernel_heap::client_flags,
    memory::bo::{
        Bo,
        BoRef, //
    }, //
};
use kernel::{
    drm::gem::BaseObject,
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        SpinLock, //
    }, //
};

/// The claim of one object.
struct Claim {
    /// Held, so that nothing else has its address.
    bo: BoRef,
    /// How often, with `kept`; not 0.
    count: u32,
    /// How often without regard to the handle.
    kept: u32,
    /// How often only from an unlock on.
    postponed: u32,
}

/// What one claims, of one kind.
#[pin_data]
pub(crate) struct Claims {
    /// By the address of an object that the client has a handle of.
    #[pin]
    counts: SpinLock<RBTree<usize, Claim>>,
    /// Whether nothing is to be claimed any more; changes once, under the lock of `counts`.
    closed: Atomic<bool>,
    /// Bytes of those of them that may be in VRAM alone.
    bytes: Atomic<u64>,
    /// Has the object count some claimants more, or fewer.
    count_clients: fn(&Bo, i16) -> Result,
}

impl Claims {
    /// None yet, of the kind that `count_clients` counts: `EMFILE`, never for fewer.
    pub(crate) fn new(count_clients: fn(&Bo, i16) -> Result) -> impl PinInit<Self> {
        pin_init!(Self {
            counts <- new_spinlock!(RBTree::new()),
            closed: Atomic::new(false),
            bytes: Atomic::new(0),
            count_clients,
        })
    }

    fn key(bo: &Bo) -> usize {
        core::ptr::from_ref(bo).addr()
    }

    /// Bytes of `bo` that count.
    fn size(bo: &Bo) -> u64 {
        match bo.needs_vram() {
            // CAST: `usize` has 64 bits.
            true => bo.size() as u64,
            false => 0,
        }
    }

    /// Counts `bo`, of which the last claim here has gone, out of the objects and bytes.
    fn uncount(&self, bo: &Bo) {
        crate::warn_on_once!((self.count_clients)(bo, -1).is_err());
        self.bytes.fetch_sub(Self::size(bo), Relaxed);
    }

    /// Whether `bo` is claimed. Also under spin locks.
    pub(crate) fn has(&self, bo: &Bo) -> bool {
        self.counts.lock().get(&Self::key(bo)).is_some()
    }

    /// Whether `bo` is claimed, and not only [later](Self::postpone). Also under spin locks.
    pub(crate) fn has_now(&self, bo: &Bo) -> bool {
        let counts = self.counts.lock();
        let claim = counts.get(&Self::key(bo));
        claim.is_some_and(|claim| claim.count > claim.postponed)
    }

    /// Has one claim of each of `objects`, of those that are claimed, hold only from
    /// [`Self::confirm`] on.
    pub(crate) fn postpone<'a>(&self, objects: impl Iterator<Item = &'a BoRef>) {
        self.each(objects, |claim| {
            claim.postponed = claim.postponed.saturating_add(1);
        });
    }

    /// Takes [`Self::postpone`] back, for the same objects.
    pub(crate) fn confirm<'a>(&self, objects: impl Iterator<Item = &'a BoRef>) {
        self.each(objects, |claim| {
            // It may have been given up meanwhile, and claimed again.
            claim.postponed = claim.postponed.saturating_sub(1);
        });
    }

    fn each<'a>(&self, objects: impl Iterator<Item = &'a BoRef>, f: impl Fn(&mut Claim)) {
        let mut counts = self.counts.lock();
        for bo in objects {
            counts.get_mut(&Self::key(bo)).into_iter().for_each(&f);
        }
    }

    /// Whether `bo` is claimed, and once only.
    pub(crate) fn has_once(&self, bo: &Bo) -> bool {
        let counts = self.counts.lock();
        let claim = counts.get(&Self::key(bo));
        claim.is_some_and(|claim| claim.count == 1)
    }

    /// Bytes of what is claimed and may be in VRAM alone.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Calls `f` with each object that is claimed, and how often. `f` runs under a spin lock, and
    /// must not drop what could be the last reference to an object.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Bo, u32)) {
        let counts = self.counts.lock();
        counts.values().for_each(|claim| f(&claim.bo, claim.count));
    }

    /// Has nothing be claimed any more.
    pub(crate) fn close(&self) {
        let all = {
            let mut counts = self.counts.lock();
            self.closed.store(true, Relaxed);
            core::mem::take(&mut *counts)
        };
        // Perhaps the last references: not under the lock.
        all.values().for_each(|claim| self.uncount(&claim.bo));
    }

    /// Claims `bo` once more. `ENOMEM`; `EOVERFLOW`; `EMFILE`; `ENOENT` when it is closed.
    pub(crate) fn add(&self, bo: &BoRef) -> Result {
        let claim = Claim {
            bo: bo.clone(),
            count: 1,
            kept: 0,
            postponed: 0,
        };
        // For the first time, perhaps; dropped when the lock is free.
        let node = RBTreeNode::new(Self::key(bo), claim, client_flags())?;
        let mut counts = self.counts.lock();
        if self.closed.load(Relaxed) {
            return Err(ENOENT);
        }
        if let Some(claim) = counts.get_mut(&Self::key(bo)) {
            claim.count = claim.count.checked_add(1).ok_or(EOVERFLOW)?;
            return Ok(());
        }
        (self.count_clients)(bo, 1)?;
        // No wrap: memory that exists.
        self.bytes.fetch_add(Self::size(bo), Relaxed);
        counts.insert(node);
        Ok(())
    }

    /// Takes [`Claims::add`] back once for each of `objects` that is claimed.
    pub(crate) fn undo<'a>(&self, objects: impl Iterator<Item = &'a BoRef>) {
        // What was added holds now.
        self.remove(&mut self.counts.lock(), objects, |_| ());
    }

    /// `given_up` is called with each that is claimed all the same.
    fn remove<'a>(
        &self,
        counts: &mut RBTree<usize, Claim>,
        objects: impl Iterator<Item = &'a BoRef>,
        given_up: impl Fn(&mut Claim),
    ) {
        for bo in objects {
            match counts.get_mut(&Self::key(bo)) {
                Some(claim) if claim.count > 1 => {
                    claim.count -= 1;
                    given_up(claim);
                }
                Some(_) => {
                    // The caller has another reference.
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
        // Those that hold now stay, as long as there are others.
        self.remove(&mut counts, objects, |claim| {
            claim.postponed = claim.postponed.saturating_sub(1);
        });
        Ok(())
    }

    /// The client's handle of `bo` is gone; whether it is not claimed any more, and was.
    pub(crate) fn forget(&self, bo: &Bo) -> bool {
        self.reduce(bo, |claim| claim.count = claim.kept)
    }

    /// Has a claim of `bo`, if there is one, outlive the handle; whether there is.
    pub(crate) fn keep(&self, bo: &Bo) -> bool {
        let mut counts = self.counts.lock();
        let claim = counts.get_mut(&Self::key(bo));
        claim.is_some_and(|claim| match claim.count.checked_add(1) {
            Some(count) => {
                (claim.count, claim.kept) = (count, claim.kept.saturating_add(1));
                true
            }
            None => false,
        })
    }

    /// Takes [`Claims::keep`] back; as [`Claims::forget`].
    pub(crate) fn let_go(&self, bo: &Bo) -> bool {
        self.reduce(bo, |claim| {
            // It may have been closed meanwhile, and claimed again.
            if let Some(kept) = claim.kept.checked_sub(1) {
                (claim.count, claim.kept) = (claim.count.saturating_sub(1), kept);
            }
        })
    }

    /// Has `bo` be claimed less often; whether it is not any more, and was.
    fn reduce(&self, bo: &Bo, reduced: impl FnOnce(&mut Claim)) -> bool {
        // Not under the lock: the memory is freed here.
        let gone = {
            let mut counts = self.counts.lock();
            let Some(claim) = counts.get_mut(&Self::key(bo)) else {
                return false;
            };
            reduced(claim);
            match claim.count {
                0 => counts.remove_node(&Self::key(bo)),
                _ => None,
            }
        };
        if gone.is_some() {
            self.uncount(bo);
        }
        gone.is_some()
    }
}
