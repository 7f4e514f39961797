// SPDX-License-Identifier: GPL-2.0

//! What an address space uses and its GPU work does not reach: objects that may be in VRAM alone
//! and are *out*, in system memory. Before work runs those that its [device](super::device) wants
//! are brought back ([`paging_in`](super::paging_in)).
//!
//! A second list has what is *displaced*: it would rather be in VRAM, where there was no room for
//! it, and work does without. What of that the device wants comes back when there is room
//! ([`residency::bring_back`](super::residency::bring_back)).
//!
//! An object that is out, or displaced, is in the list of each address space that is among its
//! [users](super::installed). Who changes one of the two, by a move or a bind, holds the object's
//! reservation lock; a move also those of the users, with which submissions look at the list. A
//! user that goes takes its entry along, without these locks: so entries are counted, and whether a
//! user has one is said by the object.
//!
//! Whether an entry is wanted is looked up when it is added, and again when that may have changed
//! ([`Evicted::look_again`]): a submission looks at a number.
//!
//! Lock: `list`, a spin lock, for the entries and how many are wanted, which is asked under it.

use crate::memory::{
    bo::{
        Bo,
        BoData,
        BoRef, //
    },
    device::ClientDevice, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// An object in the list.
pub(crate) struct Entry {
    /// The object that is in the list.
    bo: BoRef,
    /// Whether it is to come back.
    wanted: bool,
    /// How often it was added and not removed; not 0.
    times: u32,
}

/// Memory for one entry, set aside where allocating can still fail.
pub(crate) type Node = RBTreeNodeReservation<usize, Entry>;

/// What is under the lock.
struct List {
    /// Objects that are not where they are to be, by their address.
    objects: RBTree<usize, Entry>,
    /// How many of them are wanted.
    wanted: usize,
    /// Where [`Evicted::look`] goes on.
    from: usize,
    /// What it was called with when it began anew; [`ANY`] if more is wanted since.
    begun: u64,
    /// The same, of the last time that it came to the end.
    done: u64,
}

/// What [`Evicted::look`] is never called with.
const ANY: u64 = u64::MAX;

impl List {
    /// The first object from address `from` on, and whether it is wanted.
    fn next_from(&self, from: usize) -> Option<(BoRef, bool)> {
        let cursor = self.objects.cursor_lower_bound(&from)?;
        let (_, next) = cursor.current();
        Some((next.bo.clone(), next.wanted))
    }

    /// More is wanted, perhaps behind the one that was looked at last.
    fn is_more(&mut self) {
        (self.begun, self.done) = (ANY, ANY);
    }
}

/// A list of one address space.
#[pin_data]
pub(crate) struct Evicted {
    /// The client's device, which says what of them is to be resident.
    device: Arc<ClientDevice>,
    /// What is in the list, and how much of it is to come back.
    #[pin]
    list: SpinLock<List>,
}

fn key(bo: &Bo) -> usize {
    core::ptr::from_ref(bo).addr()
}

impl Evicted {
    /// An empty list for an address space of `device`.
    pub(crate) fn new(device: &Arc<ClientDevice>) -> impl PinInit<Self> {
        let device = device.clone();
        pin_init!(Self {
            device,
            list <- new_spinlock!(List {
                objects: RBTree::new(),
                wanted: 0,
                from: 0,
                begun: ANY,
                done: ANY,
            }),
        })
    }

    /// The device that says what is wanted.
    pub(crate) fn device(&self) -> &Arc<ClientDevice> {
        &self.device
    }

    /// Nobody waits for what is to be destroyed.
    fn wants(&self, bo: &Bo) -> bool {
        !bo.is_dying() && self.device.wants(bo)
    }

    /// How many objects are to be brought back.
    pub(crate) fn wanted(&self) -> usize {
        self.list.lock().wanted
    }

    /// Whether `bo` is in the list.
    pub(crate) fn has(&self, bo: &Bo) -> bool {
        self.list.lock().objects.get(&key(bo)).is_some()
    }

    /// The first object behind `last` in some order, the very first if there is none; whether it is
    /// wanted.
    pub(crate) fn next(&self, last: Option<&BoRef>) -> Option<(BoRef, bool)> {
        let list = self.list.lock();
        // No overflow: objects have a size.
        list.next_from(last.map_or(0, |last| key(last).saturating_add(1)))
    }

    /// Whether it is worth to look for what might come back, when so many ranges of VRAM were ever
    /// freed: something is wanted, and was not looked at since the last one was, or since it is.
    pub(crate) fn may_find(&self, frees: u64) -> bool {
        let list = self.list.lock();
        list.wanted > 0 && list.done != frees
    }

    /// The object behind the one that was looked at last, and whether it is wanted; none at the
    /// end, behind which it begins anew. `frees` as for [`Self::may_find`].
    pub(crate) fn look(&self, frees: u64) -> Option<(BoRef, bool)> {
        let mut list = self.list.lock();
        if list.from == 0 {
            list.begun = frees;
        }
        let next = list.next_from(list.from);
        match &next {
            Some((bo, _)) => list.from = key(bo).saturating_add(1),
            None => (list.from, list.done) = (0, list.begun),
        }
        next
    }

    /// `EBUSY` if the CPU has locked what is wanted, and may be in VRAM alone (row 0.21).
    pub(crate) fn check_locks(&self) -> Result {
        let mut next = self.next(None);
        while let Some((bo, wanted)) = next {
            if wanted && bo.is_for_vram_alone() && BoData::is_held_out(&bo) {
                return Err(EBUSY);
            }
            next = self.next(Some(&bo));
        }
        Ok(())
    }

    /// Whether `bo` is wanted may have changed since it was added, or whether it can come.
    pub(crate) fn look_again(&self, bo: &Bo) {
        let mut list = self.list.lock();
        let List {
            objects, wanted, ..
        } = &mut *list;
        if let Some(entry) = objects.get_mut(&key(bo)) {
            // No wrap: entries.
            *wanted -= usize::from(entry.wanted);
            // Under the lock: whoever looks later sees what has changed later.
            entry.wanted = self.wants(bo);
            *wanted += usize::from(entry.wanted);
        }
        list.is_more();
    }

    /// Adds `bo` once more.
    pub(crate) fn add(&self, bo: &BoRef, node: Node) {
        let unused = {
            let mut list = self.list.lock();
            let List {
                objects, wanted, ..
            } = &mut *list;
            match objects.get_mut(&key(bo)) {
                Some(entry) => {
                    // No wrap: a user adds it once.
                    entry.times = entry.times.wrapping_add(1);
                    Some(node)
                }
                None => {
                    let entry = Entry {
                        wanted: self.wants(bo),
                        bo: bo.clone(),
                        times: 1,
                    };
                    *wanted += usize::from(entry.wanted);
                    objects.insert(node.into_node(key(bo), entry));
                    list.is_more();
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
            let mut list = self.list.lock();
            let List {
                objects, wanted, ..
            } = &mut *list;
            match objects.get_mut(&key(bo)) {
                Some(entry) if entry.times > 1 => {
                    entry.times -= 1;
                    None
                }
                Some(entry) => {
                    *wanted -= usize::from(entry.wanted);
                    objects.remove_node(&key(bo))
                }
                None => None,
            }
        };
        drop(gone);
    }

    /// Empties the list, and calls `f` with each object that was in it.
    pub(crate) fn clear(&self, f: impl Fn(&BoRef)) {
        let all = {
            let mut list = self.list.lock();
            list.wanted = 0;
            core::mem::take(&mut list.objects)
        };
        all.values().for_each(|entry| f(&entry.bo));
    }
}
