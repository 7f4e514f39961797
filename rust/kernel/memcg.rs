// SPDX-License-Identifier: GPL-2.0

//! Control groups of memory: whom it is charged to that something is allocated for a client where
//! the client is not at work (`include/linux/memcontrol.h`).

use super::shim;

/// Has a worker not sleep in the next allocation because the group for which it is
/// [charged](MemoryGroup::charge) is beyond `memory.high`: it is not to for one client when it
/// works for the next. A process does, until it is killed.
pub(crate) fn spare_worker() {
    // SAFETY: It changes the calling thread, and may be called in any.
    unsafe { shim::skua_memcg_spare_worker() }
}

/// The control group of a process at one moment; of a kernel without them, nobody's.
///
/// # Examples
///
/// ```ignore
/// // In an ioctl:
/// let group = MemoryGroup::of_current();
/// // In a worker, for that client:
/// let table = group.charge(|| KBox::new(Table::new(), GFP_KERNEL_ACCOUNT))?;
/// ```
///
/// # Invariants
///
/// The pointer is null, or a group of which this owns a reference.
pub(crate) struct MemoryGroup(*mut shim::mem_cgroup);

// SAFETY: Groups may be used from, and references dropped in, any thread.
unsafe impl Send for MemoryGroup {}
// SAFETY: What is done by a shared reference changes the thread that does it, and not the group.
unsafe impl Sync for MemoryGroup {}

impl MemoryGroup {
    /// That of the calling process. Process context.
    pub(crate) fn of_current() -> Self {
        // INVARIANT: The function returns a reference, or null.
        // SAFETY: It may be called in any process context.
        Self(unsafe { shim::skua_memcg_get() })
    }

    /// Charges to it what `f` allocates that is to be charged to who is at work. Process context.
    pub(crate) fn charge<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: By the type's invariant the group is valid, and it is until `self` is dropped,
        // which is after the second call.
        let before = unsafe { shim::skua_memcg_set_active(self.0) };
        let result = f();
        // SAFETY: It was active before, and so its owner keeps it until it is not any more.
        unsafe { shim::skua_memcg_set_active(before) };
        result
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant it is null, or the reference is ours.
        unsafe { shim::skua_memcg_put(self.0) };
    }
}
