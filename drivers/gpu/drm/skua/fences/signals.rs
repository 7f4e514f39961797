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
        },
        trace, //
    },
    fences::monitored::Promise,
    few::Few,
    gpu::SkuaDevice, //
};
use kernel::prelude::*;

/// One place that gets the fence.
struct Signal {
    /// Referenced, so that its handle may be closed meanwhile.
    syncobj: Syncobj,
    /// Node and point of a timeline; a binary syncobj has none.
    point: Option<(ChainNode, u64)>,
}

/// The syncobjs that an ioctl signals, and the values of monitored fences.
pub(crate) struct Signals {
    /// Each gets the fence, alone or as a point.
    syncobjs: Few<Signal>,
    /// Kept when the fence signals.
    values: Few<Promise>,
}

impl Signals {
    /// A list without anything: nothing is signalled.
    pub(crate) fn new() -> Self {
        Self {
            syncobjs: Few::Empty,
            values: Few::Empty,
        }
    }

    /// Adds `syncobj`, at point `point` of its timeline, or as a binary syncobj if that is 0.
    ///
    /// `ENOMEM`.
    pub(crate) fn push(&mut self, syncobj: Syncobj, point: u64) -> Result {
        let point = match point {
            0 => None,
            point => Some((ChainNode::new()?, point)),
        };
        self.syncobjs.push(Signal { syncobj, point })
    }

    /// Adds a value. `EINVAL` if it is not above those of its fence that were added; `ENOMEM`.
    pub(crate) fn push_value(&mut self, promise: Promise) -> Result {
        if !self.values.iter().all(|before| promise.may_follow(before)) {
            return Err(EINVAL);
        }
        self.values.push(promise)
    }

    /// Whether there is a value among them.
    pub(crate) fn has_values(&self) -> bool {
        !self.values.is_empty()
    }

    /// Whether there is anything else among them.
    pub(crate) fn has_syncobjs(&self) -> bool {
        !self.syncobjs.is_empty()
    }

    /// The values of monitored fences among them, those of one fence in rising order.
    pub(crate) fn values(&self) -> &[Promise] {
        &self.values
    }

    /// The same, for who gives and keeps them.
    pub(crate) fn values_mut(&mut self) -> &mut [Promise] {
        &mut self.values
    }

    /// Gives the promises, which are the work's to keep, and puts `fence` into all syncobjs, in
    /// order; once.
    pub(crate) fn publish(&mut self, dev: &SkuaDevice, fence: &Fence) -> Few<Promise> {
        for promise in &mut *self.values {
            if promise.give() {
                let (monitored, value) = promise.what();
                trace::signal(dev, Some(fence), monitored, value);
            }
        }
        for signal in core::mem::take(&mut self.syncobjs) {
            match signal.point {
                Some((node, point)) => signal.syncobj.add_point(node, fence, point),
                None => signal.syncobj.replace_fence(fence),
            }
        }
        core::mem::take(&mut self.values)
    }
}
