// SPDX-License-Identifier: MIT

//! Content that nobody needs for now: allocations are offered, and reclaimed.
//!
//! What becomes of an offered allocation, and when, is said by `DRM_IOCTL_SKUA_BO_OFFER`
//! (`include/uapi/drm/skua_drm.h`). The kernel waits for work that was submitted before; work that
//! it holds for a fence may find nothing.
//!
//! WDDM lets what is resident be offered, too; here it is to be evicted first.

use std::sync::Arc;

use libskua::{Bo, OfferPriority};

use crate::{
    allocation::Allocation,
    device::Device,
    memory::Memory,
    paging_queue::{memories, Paging, PagingQueue},
    process::MAX_ALLOCATIONS,
    status::{Result, Status},
};

bitflags::bitflags! {
    /// `D3DKMT_OFFER_FLAGS`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OfferFlags: u32 {
        /// Not when work is done that was submitted before, but now; here it is waited for in any
        /// case.
        const OFFER_IMMEDIATELY = 1 << 0;
        /// System memory may be given back as well, which it may be in any case.
        const ALLOW_DECOMMIT = 1 << 1;
    }
}

/// `D3DDDI_RECLAIM_RESULT`. There is always memory: it is never NOT_COMMITTED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum ReclaimResult {
    /// The content is as it was.
    Ok = 0,
    /// It was thrown away, and is zero.
    Discarded = 1,
}

/// What `D3DDDI_OFFER_PRIORITY` of this number is. INVALID_PARAMETER.
pub(crate) const fn priority(number: u32) -> Result<OfferPriority> {
    Ok(match number {
        1 => OfferPriority::Low,
        2 => OfferPriority::Normal,
        3 => OfferPriority::High,
        4 => OfferPriority::Auto,
        _ => return Err(Status::INVALID_PARAMETER),
    })
}

/// Allocations of a device, [`MAX_ALLOCATIONS`] at most, checked.
fn checked(device: &Device, allocations: &[&Allocation]) -> Result<Vec<Arc<Memory>>> {
    if allocations.len() > MAX_ALLOCATIONS {
        return Err(Status::INVALID_PARAMETER);
    }
    memories(device, allocations)
}

impl Device {
    /// Offers allocations, all of them or none (`D3DKMTOfferAllocations`): where memory is short
    /// their content is thrown away, before anything else leaves. They are not to be used before
    /// they are reclaimed; an access by the CPU is a bus error.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there are none or more than [`MAX_ALLOCATIONS`], or one is there twice
    /// or is of another device; GRAPHICS_ALLOCATION_BUSY if one is locked or resident;
    /// INVALID_HANDLE if one is destroyed; DEVICE_REMOVED.
    pub fn offer(
        &self,
        allocations: &[&Allocation],
        priority: OfferPriority,
        _flags: OfferFlags,
    ) -> Result<()> {
        let memories = checked(self, allocations)?;
        self.scheduler().check_alive()?;
        let bos: Vec<&Bo> = memories.iter().map(|memory| memory.bo()).collect();
        Ok(self.adapter().libskua().offer(&bos, priority)?)
    }
}

impl PagingQueue {
    /// Takes [`Device::offer`] back, for all allocations or for none, also of those that are not
    /// offered (`D3DKMTReclaimAllocations2`): what became of the content of each. They are as those
    /// that were just evicted when the call returns, and those for video memory without system
    /// memory have to be made resident for work to find them; the paging fence counts it all the
    /// same.
    ///
    /// # Errors
    ///
    /// As [`Device::offer`] for the list; INVALID_HANDLE also if the queue is destroyed; NO_MEMORY.
    pub fn reclaim(&self, allocations: &[&Allocation]) -> Result<(Vec<ReclaimResult>, Paging)> {
        let memories = checked(self.device(), allocations)?;
        let bos: Vec<&Bo> = memories.iter().map(|memory| memory.bo()).collect();
        let mut lost = Vec::new();
        let paging = self.enqueue(|fence, value| {
            lost = self.device().adapter().libskua().reclaim(&bos)?;
            // It is done, and the kernel tells of a loss once: so nothing fails any more.
            self.device().scheduler().tables().reach(fence, value);
            Ok(())
        })?;
        let result = |lost| match lost {
            true => ReclaimResult::Discarded,
            false => ReclaimResult::Ok,
        };
        Ok((lost.into_iter().map(result).collect(), paging))
    }
}
