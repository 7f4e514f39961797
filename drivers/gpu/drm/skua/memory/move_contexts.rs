// SPDX-License-Identifier: GPL-2.0

//! Contexts of the driver's own for one move each, of what no address space has: what that waits
//! for, another driver's work for one, delays no other move.
//!
//! Lock: `contexts`, a spin lock, for which there are.

use crate::{
    gpu::{
        Gpu,
        SkuaDevice, //
    },
    kernel_heap::client_flags,
    submit::context::Context, //
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

/// The contexts that are for one move each; a device has one such list.
#[pin_data]
pub(crate) struct MoveContexts {
    /// Each by its address, by which [`Self::for_each`] finds the next one.
    #[pin]
    contexts: SpinLock<RBTree<usize, Arc<Context>>>,
}

impl MoveContexts {
    /// Of a device that has moved nothing yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            contexts <- new_spinlock!(RBTree::new()),
        })
    }

    /// Calls `f` with a reference to each, which may become the last one; with no lock held.
    pub(crate) fn for_each(&self, mut f: impl FnMut(Arc<Context>)) {
        let mut from = 0;
        loop {
            let context = {
                let contexts = self.contexts.lock();
                let Some(cursor) = contexts.cursor_lower_bound(&from) else {
                    return;
                };
                let (address, context) = cursor.current();
                from = address.saturating_add(1);
                context.clone()
            };
            f(context);
        }
    }
}

/// A context for one move, which keeps it until it is over.
pub(crate) struct MoveContext(Arc<Context>);

impl MoveContext {
    /// One that nothing waits in, in the device's list until it is dropped. `ENOMEM`; `ENODEV` if
    /// there is no engine for paging.
    pub(crate) fn new(dev: &SkuaDevice) -> Result<Self> {
        let node = RBTreeNodeReservation::new(client_flags())?;
        let context = Context::new_system(dev, dev.paging_engine()?)?;
        let own = Self(context.clone());
        let node = node.into_node(own.key(), context.clone());
        let old = dev.move_contexts.contexts.lock().insert(node);
        // There is none: the address is this one's.
        drop(old);
        Gpu::end_if_lost(dev, &context);
        Ok(own)
    }

    /// The context that the move is submitted to.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Drop for MoveContext {
    fn drop(&mut self) {
        let all = &self.0.device().move_contexts;
        let node = all.contexts.lock().remove_node(&self.key());
        drop(node);
    }
}
