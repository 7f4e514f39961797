// SPDX-License-Identifier: GPL-2.0

//! The heap that [`crate::policy`] draws from: the kernel's `KVVec` and `KBox`.
//!
//! What grows here grows at a client's wish, and counts against that client's memory cgroup. A wish
//! that cannot be met is an error of the client's, about which the log says nothing.

use crate::policy::heap::{
    FallibleVec,
    Heap,
    OutOfMemory, //
};
use kernel::{
    alloc::Flags,
    prelude::*, //
};

/// How memory is allocated whose amount a client decides.
pub(crate) fn client_flags() -> Flags {
    GFP_KERNEL_ACCOUNT | __GFP_NOWARN
}

/// `policy`'s memory in the driver.
pub(crate) struct KernelHeap;

impl Heap for KernelHeap {
    type Vec<T> = Elements<T>;
    type Box<T> = KBox<T>;

    fn boxed<T>(value: T) -> Result<KBox<T>, OutOfMemory> {
        KBox::new(value, client_flags()).map_err(|_| OutOfMemory)
    }
}

/// A `KVVec` that grows by [`client_flags`], or not at all.
pub(crate) struct Elements<T> {
    /// The elements.
    list: KVVec<T>,
    /// Whether it may grow.
    grows: bool,
}

impl<T> Elements<T> {
    /// One that takes `most` elements, and asks for no more memory: for where others wait, who are
    /// not to wait for what a client's control group has that wait.
    pub(crate) fn fixed(most: usize) -> Result<Self, OutOfMemory> {
        let list = Self::with_capacity(most)?;
        Ok(Self {
            grows: false,
            ..list
        })
    }
}

impl<T> FallibleVec<T> for Elements<T> {
    fn new() -> Self {
        Self {
            list: KVVec::new(),
            grows: true,
        }
    }

    fn reserve(&mut self, additional: usize) -> Result<(), OutOfMemory> {
        if !self.grows && additional > self.list.capacity().saturating_sub(self.list.len()) {
            return Err(OutOfMemory);
        }
        self.list
            .reserve(additional, client_flags())
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
