// SPDX-License-Identifier: GPL-2.0

//! What accepted work signals.
//!
//! A [`Signals`] is made where failing is still possible (syncobjs found, nodes of timelines
//! allocated) and used when the work's fence exists: [`Signals::publish`] cannot fail.

use crate::{
    ext::{
        fence::Fence,
        syncobj::{
            ChainNode,
            Syncobj, //
        }, //
    },
    kernel_heap::client_flags, //
};
use kernel::prelude::*;

/// One place that gets the fence.
struct Signal {
    /// Referenced, so that its handle may be closed meanwhile.
    syncobj: Syncobj,
    /// Node and point of a timeline; a binary syncobj has none.
    point: Option<(ChainNode, u64)>,
}

/// The syncobjs that an ioctl signals.
pub(crate) struct Signals(KVVec<Signal>);

impl Signals {
    /// A list without syncobjs: nothing is signalled.
    pub(crate) fn new() -> Self {
        Self(KVVec::new())
    }

    /// Adds `syncobj`, at point `point` of its timeline, or as a binary syncobj if that is 0.
    ///
    /// `ENOMEM`.
    pub(crate) fn push(&mut self, syncobj: Syncobj, point: u64) -> Result {
        let point = match point {
            0 => None,
            point => Some((ChainNode::new()?, point)),
        };
        Ok(self.0.push(Signal { syncobj, point }, client_flags())?)
    }

    /// Puts `fence` into all of them, in order.
    pub(crate) fn publish(self, fence: &Fence) {
        for signal in self.0 {
            match signal.point {
                Some((node, point)) => signal.syncobj.add_point(node, fence, point),
                None => signal.syncobj.replace_fence(fence),
            }
        }
    }
}
