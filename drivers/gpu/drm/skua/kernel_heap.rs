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

/// A `KVVec` that grows by [`client_flags`].
pub(crate) struct Elements<T>(KVVec<T>);

impl<T> FallibleVec<T> for Elements<T> {
    fn new() -> Self {
        Self(KVVec::new())
    }

    fn reserve(&mut self, additional: usize) -> Result<(), OutOfMemory> {
        self.0
            .reserve(additional, client_flags())
            .map_err(|_| OutOfMemory)
    }

    fn try_push(&mut self, value: T) -> Result<(), OutOfMemory> {
        self.0.push(value, client_flags()).map_err(|_| OutOfMemory)
    }

    fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    fn as_slice(&self) -> &[T] {
        &self.0
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        ENOMEM
    }
}
