// SPDX-License-Identifier: GPL-2.0

//! Where a buffer object is installed: the ranges of address spaces whose page tables lead to its
//! memory; and where that memory is, for who writes page tables.
//!
//! Who moves an object has to change all these ranges, and to wait for whom they serve. They are
//! recorded as binds are done, on the way to a fence's signal, where nothing is allocated: memory
//! for the records ([`Node`]) is set aside when a bind is accepted.
//!
//! A record is there before the first entry is written and until the last one is cleared, if not
//! flushed. When the device is lost the records are no longer kept: no table is walked any more.
//!
//! Before anything of an object is installed in an address space, and until nothing is any more,
//! that is among its *users*, by a [`Mapping`]: from the moment at which a bind is accepted until
//! what is unmapped is given up. A mover waits for all of them, and they for it.
//!
//! The memory in [`Sites`] is what page tables lead to: the placement's, but while the object is on
//! its way; then it is the old one until the move is done.
//!
//! Lock: `inner`, a spin lock, for one object's ranges, users and memory.

use crate::{
    kernel_heap::client_flags,
    memory::{
        bo::{
            BoRef,
            Memory, //
        },
        evicted,
        vm::Vm,
        vram::Part, //
    },
    policy::{
        buddy::PageRange,
        interval_map::{
            Slice,
            Span, //
        }, //
    },
    spec::{
        address::PAGE_SIZE,
        number::Asid, //
    }, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// Where a range begins: the address space, and the address in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    /// Identifier of the address space.
    pub(crate) asid: Asid,
    /// GPU virtual address of the range's first byte.
    pub(crate) start: u64,
}

/// What of an object page tables show at a site, and how.
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

/// Ranges that who needs an object's room has lead nowhere itself, at most; of more, a worker does.
const MANY: u64 = 256;

/// Memory for one record, set aside where allocating can still fail.
pub(crate) type Node = RBTreeNodeReservation<Site, Installed>;

/// How an address space uses an object.
#[derive(Clone, Copy)]
struct Use {
    /// How many [`Mapping`]s it has; not 0.
    count: u32,
    /// How many of them are for what the GPU may write.
    writers: u32,
    /// Whether the object is in its list of what is [out, or displaced](evicted).
    listed: bool,
}

/// What is under the lock.
struct Inner {
    /// Ranges that do not overlap within an address space.
    sites: RBTree<Site, Installed>,
    /// Those who use it, by address space.
    users: RBTree<Asid, Use>,
    /// What page tables lead to; none of an import, whose memory never moves, and of what is
    /// destroyed.
    memory: Option<Memory>,
}

/// The ranges in which one object is installed.
#[pin_data]
pub(crate) struct Sites {
    /// Who uses the object, and where it is installed.
    #[pin]
    inner: SpinLock<Inner>,
}

impl Sites {
    /// The records of an object that is installed nowhere and has no memory.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_spinlock!(Inner {
                sites: RBTree::new(),
                users: RBTree::new(),
                memory: None,
            }),
        })
    }

    /// Records a range, in place of one that begins where it does.
    pub(crate) fn add(&self, node: Node, site: Site, installed: Installed) {
        let old: Option<RBTreeNode<_, _>> = {
            let mut inner = self.inner.lock();
            inner.sites.insert(node.into_node(site, installed))
        };
        drop(old);
    }

    /// Forgets the range that begins at `site`; whether there was one.
    pub(crate) fn remove(&self, site: Site) -> bool {
        // Not under the lock: the memory is freed here.
        let old = self.inner.lock().sites.remove_node(&site);
        old.is_some()
    }

    /// What is recorded at `site`.
    pub(crate) fn get(&self, site: Site) -> Option<Installed> {
        self.inner.lock().sites.get(&site).copied()
    }

    /// The first range that begins at `from` or behind it in the same address space.
    pub(crate) fn next(&self, from: Site) -> Option<(Site, Installed)> {
        let inner = self.inner.lock();
        let cursor = inner.sites.cursor_lower_bound(&from)?;
        let (site, installed) = cursor.current();
        (site.asid == from.asid).then_some((*site, *installed))
    }

    /// The first user from `from` on.
    pub(crate) fn next_user(&self, from: Asid) -> Option<Asid> {
        let inner = self.inner.lock();
        let cursor = inner.users.cursor_lower_bound(&from)?;
        Some(*cursor.current().0)
    }

    /// What page tables lead to. What is returned may become the last reference.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.inner.lock().memory.clone()
    }

    /// Whether page tables lead to `memory`, or, if that is none, nowhere or to what never moves.
    pub(crate) fn leads_to(&self, memory: Option<&Memory>) -> bool {
        match (memory, &self.inner.lock().memory) {
            (Some(Memory::Vram(a)), Some(Memory::Vram(b))) => Arc::ptr_eq(a, b),
            (Some(Memory::System(a)), Some(Memory::System(b))) => Arc::ptr_eq(a, b),
            (Some(Memory::Aperture(a)), Some(Memory::Aperture(b))) => Arc::ptr_eq(a, b),
            (None, None | Some(Memory::Fence(_))) => true,
            _ => false,
        }
    }

    /// How much of the memory is in `part` of VRAM, in bytes.
    pub(crate) fn bytes_in(&self, part: Part) -> u64 {
        match &self.inner.lock().memory {
            Some(Memory::Vram(range)) => range.bytes_in(part),
            _ => 0,
        }
    }

    /// Which pages of the aperture segment's window show the memory, if any do.
    pub(crate) fn window(&self) -> Option<PageRange> {
        match &self.inner.lock().memory {
            Some(Memory::Aperture(range)) => Some(range.pages()),
            _ => None,
        }
    }

    /// Has page tables lead to `memory` from now on; what they led to, and may still.
    #[must_use = "it may be the last reference"]
    pub(crate) fn set_memory(&self, memory: Memory) -> Option<Memory> {
        self.inner.lock().memory.replace(memory)
    }

    /// The memory is about to be given up: page tables are to lead nowhere from now on. Where they
    /// led, and may still.
    #[must_use = "it may be the last reference"]
    pub(crate) fn forget_memory(&self) -> Option<Memory> {
        self.inner.lock().memory.take()
    }

    /// Counts one user more, which may `write`, if the address space is one already.
    fn count(&self, asid: Asid, write: bool) -> bool {
        match self.inner.lock().users.get_mut(&asid) {
            Some(user) => {
                // No wrap: each is in memory.
                user.count = user.count.wrapping_add(1);
                user.writers = user.writers.wrapping_add(write.into());
                true
            }
            None => false,
        }
    }

    /// Whether it is mapped so often that nobody else is to do something about each range.
    pub(crate) fn are_many(&self) -> bool {
        let inner = self.inner.lock();
        let counts = inner.users.values().map(|user| u64::from(user.count));
        counts.sum::<u64>() > MANY
    }

    /// Whether the address space is among the users.
    pub(crate) fn is_user(&self, asid: Asid) -> bool {
        self.inner.lock().users.get(&asid).is_some()
    }

    /// Whether the GPU may write it, by what is mapped or by a bind that was accepted. If not, not
    /// before the next [`Mapping`] is made, as long as the object's reservation is locked.
    pub(crate) fn has_writer(&self) -> bool {
        let inner = self.inner.lock();
        let has_writer = inner.users.values().any(|user| user.writers > 0);
        has_writer
    }

    /// Says whether a user has the object in [its list](Vm::list_for), and returns whether it had;
    /// none if it is no user.
    pub(crate) fn set_listed(&self, asid: Asid, listed: bool) -> Option<bool> {
        let mut inner = self.inner.lock();
        let user = inner.users.get_mut(&asid)?;
        Some(core::mem::replace(&mut user.listed, listed))
    }

    /// Whether a user has the object in its list.
    fn is_listed(&self, asid: Asid) -> bool {
        let inner = self.inner.lock();
        let listed = inner.users.get(&asid).is_some_and(|user| user.listed);
        listed
    }
}

/// A range of an object that an address space maps: its claim on the object, which holds that, and
/// has whoever moves it wait.
pub(crate) struct Mapping {
    /// The object that is mapped.
    bo: BoRef,
    /// The page of the object with which the range begins.
    page: u32,
    /// Identifier of the address space.
    asid: Asid,
    /// Whether the GPU may write by it.
    write: bool,
}

impl Mapping {
    /// Makes `vm` a user of `bo`, whose reservation lock the caller holds: it is either seen by a
    /// move, or sees its fence, and what is out already. The range begins with byte `offset`, a
    /// multiple of the page size; whether the GPU may `write` by it. `ENOMEM`; `EOVERFLOW` for what
    /// no object has.
    pub(crate) fn new(bo: BoRef, vm: &Vm, offset: u64, write: bool) -> Result<Self> {
        let page = u32::try_from(offset / PAGE_SIZE)?;
        let asid = vm.asid();
        if !bo.sites.count(asid, write) {
            let user = Use {
                count: 1,
                writers: write.into(),
                listed: false,
            };
            let node = RBTreeNode::new(asid, user, client_flags())?;
            // Others of this address space come with the same lock.
            let old = bo.sites.inner.lock().users.insert(node);
            crate::warn_on_once!(old.is_some());
        }
        // From here on it takes itself back.
        let mapping = Self {
            bo,
            page,
            asid,
            write,
        };
        let bo = &mapping.bo;
        if (bo.is_out() || bo.is_displaced()) && !bo.sites.is_listed(asid) {
            vm.list_for(bo).add(bo, evicted::Node::new(client_flags())?);
            bo.sites.set_listed(asid, true);
        }
        Ok(mapping)
    }

    /// The object that is mapped.
    pub(crate) fn bo(&self) -> &BoRef {
        &self.bo
    }

    /// Where in the object the range begins, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        // No overflow: 44 bits.
        u64::from(self.page).saturating_mul(PAGE_SIZE)
    }

    /// Whether the GPU may write by it.
    pub(crate) fn may_write(&self) -> bool {
        self.write
    }

    /// Page tables and TLBs do not let the GPU write by it any more.
    pub(crate) fn stop_writing(&mut self) {
        if !core::mem::take(&mut self.write) {
            return;
        }
        if let Some(user) = self.bo.sites.inner.lock().users.get_mut(&self.asid) {
            // No wrap: counted before.
            user.writers = user.writers.wrapping_sub(1);
        }
    }
}

impl Slice for Mapping {
    fn slice(&self, offset: u64, _len: u64) -> Self {
        let mut slice = self.clone();
        // CAST, no overflow: within the object.
        slice.page = slice.page.saturating_add((offset / PAGE_SIZE) as u32);
        slice
    }
}

impl Clone for Mapping {
    fn clone(&self) -> Self {
        crate::warn_on_once!(!self.bo.sites.count(self.asid, self.write));
        Self {
            bo: self.bo.clone(),
            page: self.page,
            asid: self.asid,
            write: self.write,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let last = {
            let users = &mut self.bo.sites.inner.lock().users;
            match users.get_mut(&self.asid) {
                Some(user) if user.count > 1 => {
                    user.count -= 1;
                    // No wrap: counted before.
                    user.writers = user.writers.wrapping_sub(self.write.into());
                    None
                }
                _ => users.remove_node(&self.asid),
            }
        };
        // Not under the lock: the memory is freed here.
        let last = last.map(RBTreeNode::to_key_value);
        if !last.is_some_and(|(_, user)| user.listed) {
            return;
        }
        let dev = self.bo.dev();
        // One that is not in the table runs nothing any more.
        if let Some(vm) = dev.vms.find(self.asid) {
            vm.list_for(&self.bo).remove(&self.bo);
            dev.reapers.vms.bury(vm);
        }
    }
}
