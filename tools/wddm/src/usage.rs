// SPDX-License-Identifier: MIT

//! Who uses an allocation, and until when.
//!
//! The kernel does not know which allocations a submission uses (row 0.01): the user-mode driver
//! says so with each ([`crate::Submission::uses`]), and asks here before the CPU touches one. What
//! is kept is, for each context, the number of its last packet that reads and of its last one that
//! writes. Whether it is done is a load from memory: the progress of the context. The scheduler
//! keeps that while anything of the context is not done; here it is not kept, since an allocation
//! that nobody asks for may outlive many contexts, and fences are few.

use std::sync::{Arc, Weak};

use crate::fence::Fence;

/// What the GPU does with an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads: the CPU may read, too.
    Read,
    /// It writes, or reads and writes.
    Write,
}

/// The last uses of an allocation in each context.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Progress of a context, and its last packet that reads; those that are done are dropped.
    reads: Vec<(Weak<Fence>, u64)>,
    /// The same for packets that write.
    writes: Vec<(Weak<Fence>, u64)>,
}

impl Usage {
    /// A packet of a context uses it.
    pub(crate) fn record(&mut self, progress: &Arc<Fence>, point: u64, access: Access) {
        let list = match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        };
        list.retain(|(fence, last)| {
            let fence = fence.upgrade();
            fence.is_some_and(|fence| fence.id != progress.id && !fence.is_done(*last))
        });
        list.push((Arc::downgrade(progress), point));
    }

    /// What must be done before the CPU may access it: writes before it reads, everything before it
    /// writes.
    pub(crate) fn pending(&mut self, cpu: Access) -> Vec<(Arc<Fence>, u64)> {
        let mut pending = Self::left(&mut self.writes);
        let reads = Self::left(&mut self.reads);
        if cpu == Access::Write {
            pending.extend(reads);
        }
        pending
    }

    /// What is not done of a list, in which the rest is dropped.
    fn left(list: &mut Vec<(Weak<Fence>, u64)>) -> Vec<(Arc<Fence>, u64)> {
        let mut left = Vec::new();
        list.retain(|(fence, last)| match fence.upgrade() {
            Some(fence) if !fence.is_done(*last) => {
                left.push((fence, *last));
                true
            }
            _ => false,
        });
        left
    }
}
