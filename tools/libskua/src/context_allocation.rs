// SPDX-License-Identifier: MIT

//! Context allocations: memory that a context has as long as an engine has the context.

use std::sync::Arc;

use skua_uapi as uapi;

use crate::{
    context::Context,
    device::File,
    error::{Error, Result},
    segment_sets::SegmentSets,
    vm::Vm,
};

/// A context allocation, of one context or for all contexts of an address space; destroyed when
/// dropped, behind the work that was submitted before.
#[derive(Debug)]
pub struct ContextAllocation<'a> {
    /// Where it is: with the address space its handle would go.
    vm: &'a Vm,
    /// The driver's number for it, not 0.
    handle: u32,
    /// GPU virtual address of its first byte, of the driver's choice.
    va: u64,
    /// In bytes, a multiple of 4096.
    size: u64,
}

impl<'a> ContextAllocation<'a> {
    /// Creates one of `size` bytes, for a context of `vm` or for all of these. Its address is a
    /// multiple of `alignment`, which is a power of two, or of 4096 if that is 0.
    ///
    /// # Errors
    ///
    /// EINVAL if `size` is 0, not a multiple of 4096 or above 2^31, `alignment` is above 2^21, the
    /// context is of another address space, or for what [`Bo::create`](crate::Bo::create) refuses;
    /// ENOSPC if there are too many, VRAM alone is allowed and smaller, or there is no room; ENOMEM
    /// if system memory has none; ECANCELED if the context or its device is not active.
    pub fn create(
        vm: &'a Vm,
        context: Option<&'a Context>,
        size: u64,
        alignment: u64,
        sets: impl Into<SegmentSets>,
    ) -> Result<Self> {
        if context.is_some_and(|context| !Arc::ptr_eq(context.device().file(), vm.file())) {
            return Err(Error::Argument("a context of another file"));
        }
        let sets = sets.into();
        let mut argument = uapi::drm_skua_context_alloc {
            vm: vm.handle(),
            context: context.map_or(0, Context::handle),
            flags: match context {
                Some(_) => 0,
                None => uapi::DRM_SKUA_CONTEXT_ALLOC_SHARED_ACROSS_CONTEXTS,
            },
            size,
            alignment,
            placements: sets.supported.bits(),
            preferred: sets.preferred,
            eviction_set: sets.eviction.bits(),
            ..Default::default()
        };
        vm.file().call(&mut argument)?;
        Ok(Self {
            vm,
            handle: argument.handle,
            va: argument.va,
            size,
        })
    }

    const fn file(&self) -> &Arc<File> {
        self.vm.file()
    }

    /// The handle, for [`crate::raw`].
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// GPU virtual address of its first byte.
    pub const fn va(&self) -> u64 {
        self.va
    }

    /// In bytes, a multiple of 4096.
    pub const fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for ContextAllocation<'_> {
    fn drop(&mut self) {
        self.file().destroy(uapi::drm_skua_context_free {
            handle: self.handle,
            pad: 0,
        });
    }
}
