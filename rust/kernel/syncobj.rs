// SPDX-License-Identifier: GPL-2.0

//! DRM syncobjs: fences that userspace names by handle.
//!
//! # Model
//!
//! A syncobj holds one fence, or a chain of fences with 64-bit points (a timeline). A submission
//! first finds all fences it waits for ([`find_fence`]) and all syncobjs it will signal
//! ([`Syncobj::find`]), with a [`ChainNode`] for each timeline point, all of which can fail; then
//! publishes its out-fence with [`Syncobj::add_point`] or [`Syncobj::replace_fence`], which cannot.
//!
//! Waiting by userspace is the DRM core's business: it works once the driver has the syncobj
//! features (see [`drm_driver`](super::drm_driver)).
//!
//! C header: `include/drm/drm_syncobj.h`.

use super::{
    fence::Fence,
    file,
    shim, //
};
use core::{
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    drm,
    error::to_result,
    prelude::*, //
};

/// Finds the fence of `handle` at `point` (0 for a binary syncobj).
///
/// Never waits: `ENOENT` if there is no such syncobj, `EINVAL` if it holds no fence at that point
/// yet.
pub(crate) fn find_fence<F: drm::file::DriverFile>(
    file: &drm::File<F>,
    handle: u32,
    point: u64,
) -> Result<Fence> {
    let mut fence = ptr::null_mut();
    // SAFETY: `file` is a valid open file; `fence` receives an owned reference on success.
    to_result(unsafe {
        shim::drm_syncobj_find_fence(file::as_raw(file), handle, point, 0, &mut fence)
    })?;
    // SAFETY: The function succeeded, so `fence` is null or owned by us.
    unsafe { Fence::from_raw(fence) }.ok_or(EINVAL)
}

/// A reference to a syncobj.
///
/// # Examples
///
/// ```ignore
/// // Where failing is possible:
/// let before = find_fence(file, args.wait, args.wait_point)?;
/// let timeline = Syncobj::find(file, args.signal)?;
/// let node = ChainNode::new()?;
///
/// // Where it is not:
/// timeline.add_point(node, owner.fence(), args.signal_point);
/// ```
///
/// # Invariants
///
/// The pointer is a valid syncobj of which this value owns one reference.
pub(crate) struct Syncobj(NonNull<shim::drm_syncobj>);

// SAFETY: Syncobjs are reference counted atomically and made for use from any thread.
unsafe impl Send for Syncobj {}
// SAFETY: The C functions synchronise by the syncobj's own lock and RCU.
unsafe impl Sync for Syncobj {}

impl Syncobj {
    /// Finds the syncobj that `handle` names in `file`, `ENOENT` if there is none.
    pub(crate) fn find<F: drm::file::DriverFile>(file: &drm::File<F>, handle: u32) -> Result<Self> {
        // SAFETY: `file` is a valid open file.
        let raw = unsafe { shim::drm_syncobj_find(file::as_raw(file), handle) };
        // INVARIANT: `drm_syncobj_find()` returns null or a reference of ours.
        NonNull::new(raw).map(Self).ok_or(ENOENT)
    }

    /// Creates a syncobj that no handle names, holding `fence` or nothing.
    pub(crate) fn create(fence: Option<&Fence>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        let fence = fence.map_or(ptr::null_mut(), Fence::as_raw);
        // SAFETY: `fence` is null or valid; the function takes its own reference to it.
        to_result(unsafe { shim::drm_syncobj_create(&mut raw, 0, fence) })?;
        // INVARIANT: On success `raw` is a reference of ours.
        NonNull::new(raw).map(Self).ok_or(EINVAL)
    }

    /// The fence that the syncobj holds now; for a timeline the whole chain.
    pub(crate) fn fence(&self) -> Option<Fence> {
        // SAFETY: By the type invariant. The function returns null or an owned reference.
        unsafe { Fence::from_raw(shim::skua_syncobj_fence_get(self.0.as_ptr())) }
    }

    /// Puts `fence` at `point` of the timeline. Cannot fail.
    pub(crate) fn add_point(&self, node: ChainNode, fence: &Fence, point: u64) {
        let node = ManuallyDrop::new(node);
        // SAFETY: The syncobj, the node and the fence are valid. The function consumes the node,
        // whose destructor therefore does not run, and takes its own reference to the fence.
        unsafe {
            shim::drm_syncobj_add_point(self.0.as_ptr(), node.0.as_ptr(), fence.as_raw(), point);
        }
    }

    /// Makes `fence` what the syncobj holds. Cannot fail.
    pub(crate) fn replace_fence(&self, fence: &Fence) {
        // SAFETY: Syncobj and fence are valid; the function takes its own reference to the fence.
        unsafe { shim::drm_syncobj_replace_fence(self.0.as_ptr(), fence.as_raw()) };
    }
}

impl Drop for Syncobj {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, the reference is ours to give up.
        unsafe { shim::skua_syncobj_put(self.0.as_ptr()) };
    }
}

/// Memory for one point of a timeline.
///
/// # Invariants
///
/// The pointer is an allocated `dma_fence_chain` that nobody has initialised.
pub(crate) struct ChainNode(NonNull<shim::dma_fence_chain>);

// SAFETY: It is plain memory owned by this value.
unsafe impl Send for ChainNode {}

impl ChainNode {
    /// Allocates the node (`GFP_KERNEL_ACCOUNT`).
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No requirements. INVARIANT: The memory is new.
        NonNull::new(unsafe { shim::skua_chain_alloc() })
            .map(Self)
            .ok_or(ENOMEM)
    }
}

impl Drop for ChainNode {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the node was never initialised, so it is freed as memory.
        unsafe { shim::skua_chain_free(self.0.as_ptr()) };
    }
}

#[kunit_tests(skua_syncobj)]
mod tests {
    use super::{
        super::fence::{
            FenceContext,
            FenceMemory, //
        },
        *, //
    };

    #[test]
    fn a_binary_syncobj_holds_what_it_is_given() -> Result {
        let context = FenceContext::new(c"skua-kunit", c"syncobj");
        let syncobj = Syncobj::create(None)?;
        assert!(syncobj.fence().is_none());
        let owner = context.fence(FenceMemory::new(GFP_KERNEL)?);
        syncobj.replace_fence(owner.fence());
        let held = syncobj.fence().ok_or(EINVAL)?;
        assert_eq!(held.seqno(), owner.fence().seqno());
        assert_eq!(held.context(), context.id());
        owner.signal(Err(ETIME));
        assert!(held.status() == Some(Err(ETIME)));
        Ok(())
    }

    #[test]
    fn a_timeline_signals_when_its_last_point_does() -> Result {
        let context = FenceContext::new(c"skua-kunit", c"syncobj");
        let timeline = Syncobj::create(None)?;
        let first = context.fence(FenceMemory::new(GFP_KERNEL)?);
        let second = context.fence(FenceMemory::new(GFP_KERNEL)?);
        timeline.add_point(ChainNode::new()?, first.fence(), 5);
        timeline.add_point(ChainNode::new()?, second.fence(), 9);
        let head = timeline.fence().ok_or(EINVAL)?;
        assert_eq!(head.seqno(), 9);
        first.signal(Ok(()));
        assert!(!head.is_signaled());
        second.signal(Ok(()));
        assert!(head.is_signaled());
        Ok(())
    }

    #[test]
    fn a_node_that_is_not_used_is_freed() -> Result {
        drop(ChainNode::new()?);
        Ok(())
    }
}
