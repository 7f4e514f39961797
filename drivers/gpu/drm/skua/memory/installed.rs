// SPDX-License-Identifier: GPL-2.0

//! Where a buffer object is installed: the ranges of address spaces whose page tables lead to its
//! memory.
//!
//! Who moves an object has to change all of them, and to wait for whom they serve. They are
//! recorded as binds are done, on the way to a fence's signal, where nothing is allocated: memory
//! for the records ([`Node`]) is set aside when a bind is accepted.
//!
//! A record is there before the first entry is written and until the last one is flushed. When the
//! device is lost the records are no longer kept: no table is walked any more.
//!
//! Lock: `sites`, a spin lock, innermost.

use crate::policy::interval_map::Span;
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::SpinLock, //
};

/// Where a range begins: the address space, and the address in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    /// Identifier of the address space.
    pub(crate) asid: u16,
    /// GPU virtual address of the range's first byte.
    pub(crate) start: u64,
}

/// What is at a site.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Installed {
    /// GPU virtual address behind the range's last byte.
    pub(crate) end: u64,
    /// Where in the object the range begins, in bytes.
    pub(crate) offset: u64,
    /// Whether the GPU may write.
    pub(crate) write: bool,
}

impl Installed {
    /// What is at `span`, from byte `offset` of the object on.
    pub(crate) fn new(span: Span, offset: u64, write: bool) -> Self {
        Self {
            end: span.end,
            offset,
            write,
        }
    }
}

/// Memory for one record, set aside where allocating can still fail.
pub(crate) type Node = RBTreeNodeReservation<Site, Installed>;

/// The ranges in which one object is installed.
#[pin_data]
pub(crate) struct Sites {
    /// Ranges that do not overlap within an address space.
    #[pin]
    sites: SpinLock<RBTree<Site, Installed>>,
}

impl Sites {
    /// The records of an object that is installed nowhere.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            sites <- new_spinlock!(RBTree::new()),
        })
    }

    /// Records a range, in place of one that begins where it does.
    pub(crate) fn add(&self, node: Node, site: Site, installed: Installed) {
        let old: Option<RBTreeNode<_, _>> =
            self.sites.lock().insert(node.into_node(site, installed));
        drop(old);
    }

    /// Forgets the range that begins at `site`; whether there was one.
    pub(crate) fn remove(&self, site: Site) -> bool {
        // Not under the lock: the memory is freed here.
        let old = self.sites.lock().remove_node(&site);
        old.is_some()
    }

    /// What is recorded at `site`.
    pub(crate) fn get(&self, site: Site) -> Option<Installed> {
        self.sites.lock().get(&site).copied()
    }
}
