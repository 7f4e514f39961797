// SPDX-License-Identifier: GPL-2.0

//! Another driver's memory, attached to a device of ours.
//!
//! An imported object holds an [`Attachment`] for as long as it lives, and by it the exporter's
//! buffer. Where the device finds the memory is an [`ImportMap`], which ends earlier: at the latest
//! when the device is unbound, since a DMA mapping is of a bound device. Upstream's importers keep
//! it until the object is freed, which may be long after, and the DMA API's debugging complains.
//!
//! # Examples
//!
//! ```ignore
//! // Set when the object was imported; revoked when the device is unbound.
//! let map = obj.backing().import().ok_or(EIO)?;
//! for segment in map.access(parent)?.segments() {
//!     table.map(segment.address, segment.len)?;
//! }
//! ```
//!
//! C header: `include/linux/dma-buf.h`.

use super::{
    devres::{
        DevresItem,
        DevresSet, //
    },
    pages::{
        segments,
        Segment, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    }, //
};

/// An attachment of a device to a dma-buf; detached, and the buffer let go, when dropped.
///
/// # Invariants
///
/// `raw` is a static attachment of the importer's device. If `owned` it is ours to detach, with the
/// reference to its buffer.
pub(super) struct Attachment {
    /// Valid until it is detached.
    raw: NonNull<bindings::dma_buf_attachment>,
    /// Whether nobody has detached it yet.
    owned: Atomic<bool>,
}

// SAFETY: An attachment may be detached from any thread.
unsafe impl Send for Attachment {}
// SAFETY: Nothing of it is written through a shared reference but the flag, which is atomic.
unsafe impl Sync for Attachment {}

impl Attachment {
    /// The attachment `raw`, which stays the caller's until [`Attachment::own`].
    ///
    /// # Safety
    ///
    /// `raw` must be a valid static attachment; it must stay so until the result is dropped, or
    /// until `own()` and the drop.
    pub(super) unsafe fn new(raw: NonNull<bindings::dma_buf_attachment>) -> Result<Arc<Self>> {
        // INVARIANT: By the safety requirements; not owned.
        let attachment = Self {
            raw,
            owned: Atomic::new(false),
        };
        Ok(Arc::new(attachment, GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes over the attachment, its mapping, and the reference to its buffer.
    ///
    /// # Safety
    ///
    /// They must be the caller's to give.
    pub(super) unsafe fn own(&self) {
        // INVARIANT: By the safety requirements.
        self.owned.store(true, Release);
    }

    fn is_owned(&self) -> bool {
        self.owned.load(Acquire)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.is_owned() {
            // SAFETY: By the type invariant attachment and buffer are valid and ours. What was
            // mapped is unmapped: an `ImportMap` holds a reference to `self`.
            unsafe {
                let buffer = (*self.raw.as_ptr()).dmabuf;
                bindings::dma_buf_detach(buffer, self.raw.as_ptr());
                bindings::dma_buf_put(buffer);
            }
        }
    }
}

/// Where a device finds imported memory; unmapped when dropped.
///
/// # Invariants
///
/// `table` is mapped for `attachment`, by `dma_buf_map_attachment()`, and nobody else unmaps it
/// once the attachment is owned.
pub(crate) struct ImportMap {
    /// Where the device finds the memory, by bus address, in order.
    table: NonNull<bindings::sg_table>,
    /// What the mapping is of, held until it is undone.
    attachment: Arc<Attachment>,
}

// SAFETY: The mapping may be undone from any thread.
unsafe impl Send for ImportMap {}
// SAFETY: The table is not written while it is mapped.
unsafe impl Sync for ImportMap {}

impl ImportMap {
    /// The mapping `table` of `attachment`, until the result is dropped or `parent`, the attached
    /// device, is unbound.
    ///
    /// # Safety
    ///
    /// `table` must be the mapped table of the attachment, and `parent`, the device of `set`, that
    /// of the attachment. The caller keeps `parent` bound until it has owned the attachment or
    /// dropped the result.
    pub(super) unsafe fn new(
        set: &DevresSet,
        parent: &Device<Bound>,
        table: NonNull<bindings::sg_table>,
        attachment: &Arc<Attachment>,
    ) -> Result<DevresItem<Self>> {
        // INVARIANT: By the safety requirements.
        let map = Self {
            table,
            attachment: attachment.clone(),
        };
        set.insert(parent, Ok::<_, Error>(map))
    }

    /// Where the device finds the memory, in order. Together at least as long as the object.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        // SAFETY: By the type invariant the table is mapped as long as `self`.
        unsafe { segments(self.table.as_ptr()) }
    }
}

impl Drop for ImportMap {
    fn drop(&mut self) {
        if self.attachment.is_owned() {
            // SAFETY: By the type invariant the table is mapped for the attachment, and ours to
            // unmap.
            unsafe {
                bindings::dma_buf_unmap_attachment_unlocked(
                    self.attachment.raw.as_ptr(),
                    self.table.as_ptr(),
                    bindings::dma_data_direction::DMA_BIDIRECTIONAL,
                );
            }
        }
    }
}
