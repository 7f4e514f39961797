// SPDX-License-Identifier: GPL-2.0

//! What an address space uses and its GPU work does not reach: objects that may be in VRAM alone
//! and are *out*, in system memory. Before work runs they are brought back
//! ([`paging_in`](super::paging_in)).
//!
//! An object that is out is in the list of each address space that is among its
//! [users](super::installed). Who changes one of the two, by a move or a bind, holds the object's
//! reservation lock; a move also those of the users, with which submissions look at the list. A
//! user that goes takes its entry along, without these locks: so entries are counted, and whether a
//! user has one is said by the object.
//!
//! Lock: `objects`, a spin lock, innermost.

use crate::memory::bo::{
    Bo,
    BoRef, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::SpinLock, //
};

/// An object in the list.
pub(crate) struct Entry {
    bo: BoRef,
    /// How often it was added and not removed; not 0.
    times: u32,
}

/// Memory for one entry, set aside where allocating can still fail.
pub(crate) type Node = RBTreeNodeReservation<usize, Entry>;

/// The list of one address space.
#[pin_data]
pub(crate) struct Evicted {
    /// By address.
    #[pin]
    objects: SpinLock<RBTree<usize, Entry>>,
}

fn key(bo: &Bo) -> usize {
    core::ptr::from_ref(bo).addr()
}

impl Evicted {
    /// An empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            objects <- new_spinlock!(RBTree::new()),
        })
    }

    /// Whether something has to be brought back before work can run. Nobody waits for what is to be
    /// destroyed.
    pub(crate) fn is_wanted(&self) -> bool {
        let objects = self.objects.lock();
        let wanted = objects.values().any(|entry| !entry.bo.is_doomed());
        wanted
    }

    /// Whether `bo` is in the list.
    pub(crate) fn has(&self, bo: &Bo) -> bool {
        self.objects.lock().get(&key(bo)).is_some()
    }

    /// The first object behind `last` in some order; the very first, if there is none.
    pub(crate) fn next(&self, last: Option<&BoRef>) -> Option<BoRef> {
        // No overflow: objects have a size.
        let from = last.map_or(0, |last| key(last).saturating_add(1));
        let objects = self.objects.lock();
        let cursor = objects.cursor_lower_bound(&from)?;
        let next = cursor.current().1.bo.clone();
        Some(next)
    }

    /// Adds `bo` once more.
    pub(crate) fn add(&self, bo: &BoRef, node: Node) {
        let unused = {
            let mut objects = self.objects.lock();
            match objects.get_mut(&key(bo)) {
                Some(entry) => {
                    // No wrap: a user adds it once.
                    entry.times = entry.times.wrapping_add(1);
                    Some(node)
                }
                None => {
                    let bo = bo.clone();
                    objects.insert(node.into_node(key(&bo), Entry { bo, times: 1 }));
                    None
                }
            }
        };
        // Not under the lock: the memory is freed here.
        drop(unused);
    }

    /// Takes [`Evicted::add`] back once. The caller keeps the object.
    pub(crate) fn remove(&self, bo: &BoRef) {
        let gone = {
            let mut objects = self.objects.lock();
            match objects.get_mut(&key(bo)) {
                Some(entry) if entry.times > 1 => {
                    entry.times -= 1;
                    None
                }
                _ => objects.remove_node(&key(bo)),
            }
        };
        drop(gone);
    }

    /// Empties the list, and calls `f` with each object that was in it.
    pub(crate) fn clear(&self, f: impl Fn(&BoRef)) {
        let all = core::mem::take(&mut *self.objects.lock());
        all.values().for_each(|entry| f(&entry.bo));
    }
}
