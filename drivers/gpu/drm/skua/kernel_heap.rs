// SPDX-License-Identifier: GPL-2.0

//! The heap that [`crate::policy`] draws from: the kernel's `KVVec` and `KBox`.
//!
//! What grows here grows at a client's wish, and counts against that client's memory cgroup, but
//! for what is the driver's own. A wish that cannot be met is an error of the client's, about which
//! the log says nothing.

use crate::{
    ext::memcg,
    policy::heap::{
        FallibleVec,
        Heap,
        OutOfMemory, //
    }, //
};
use kernel::{
    alloc::Flags,
    prelude::*, //
};

/// How memory is allocated now whose amount a client decides: a worker does not sleep in that
/// because the client's control group has much.
pub(crate) fn client_flags() -> Flags {
    memcg::spare_worker();
    GFP_KERNEL_ACCOUNT | __GFP_NOWARN
}

/// How memory is allocated that is the driver's own, as [`DriverHeap`]'s.
pub(crate) fn own_flags() -> Flags {
    GFP_KERNEL | __GFP_NOWARN
}

/// `policy`'s memory in the driver, of which a client decides how much that is.
pub(crate) type KernelHeap = HeapOf<false>;

/// The same for what is the driver's own, of which there is no more than the device has of what it
/// is about. Others wait for it with a lock, and are not to wait for what a client's control group
/// has that wait.
pub(crate) type DriverHeap = HeapOf<true>;

/// Memory of the driver's `OWN`, or a client's.
pub(crate) struct HeapOf<const OWN: bool>;

impl<const OWN: bool> Heap for HeapOf<OWN> {
    type Vec<T> = Elements<T, OWN>;
    type Box<T> = KBox<T>;

    fn boxed<T>(value: T) -> Result<KBox<T>, OutOfMemory> {
        KBox::new(value, flags(OWN)).map_err(|_| OutOfMemory)
    }
}

fn flags(own: bool) -> Flags {
    match own {
        true => own_flags(),
        false => client_flags(),
    }
}

/// A `KVVec` that grows by the flags of its heap, or not at all.
pub(crate) struct Elements<T, const OWN: bool = false> {
    /// The elements.
    list: KVVec<T>,
    /// Whether it may grow.
    grows: bool,
    /// Whether it was to, and may not.
    is_too_short: bool,
}

impl<T> Elements<T> {
    /// One that takes `most` elements, and asks for no more memory: to be filled with a lock held.
    pub(crate) fn fixed(most: usize) -> Result<Self, OutOfMemory> {
        let list = Self::with_capacity(most)?;
        Ok(Self {
            grows: false,
            ..list
        })
    }

    /// Whether more was to be put into it than it takes.
    pub(crate) fn is_too_short(&self) -> bool {
        self.is_too_short
    }
}

impl<T, const OWN: bool> FallibleVec<T> for Elements<T, OWN> {
    fn new() -> Self {
        Self {
            list: KVVec::new(),
            grows: true,
            is_too_short: false,
        }
    }

    fn reserve(&mut self, additional: usize) -> Result<(), OutOfMemory> {
        if !self.grows && additional > self.list.capacity().saturating_sub(self.list.len()) {
            self.is_too_short = true;
            return Err(OutOfMemory);
        }
        self.list
            .reserve(additional, flags(OWN))
            .map_err(|_| OutOfMemory)
    }

    fn try_push(&mut self, value: T) -> Result<(), OutOfMemory> {
        self.reserve(1)?;
        self.list
            .push_within_capacity(value)
            .map_err(|_| OutOfMemory)
    }

    fn pop(&mut self) -> Option<T> {
        self.list.pop()
    }

    fn as_slice(&self) -> &[T] {
        &self.list
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.list
    }
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        ENOMEM
    }
}
