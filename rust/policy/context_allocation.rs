// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose a context allocation is to be, and whether there may be such a one
//! (`DXGKARGCB_CREATECONTEXTALLOCATION`, row 2.08).
//!
//! ```text
//! SharedAcrossContexts   context named      owner
//! no                     one of the space   that context
//! yes                    none               all contexts of the space
//! else                                      refused
//! ```
//!
//! An address space belongs to one device: who shares it are the contexts of that device which can
//! reach what is mapped there. The system's address space and contexts have no such allocations.
//!
//! # Examples
//!
//! ```
//! use skua_policy::context_allocation::{Owner, Refusal, Request, SHARED_ACROSS_CONTEXTS};
//! use skua_policy::segment_sets::Segment;
//! use skua_spec::number::Asid;
//!
//! let space = Asid(3);
//! let of_all = Request {
//!     space,
//!     context: None,
//!     flags: SHARED_ACROSS_CONTEXTS,
//!     size: 8192,
//!     alignment: 0,
//!     supported: Segment::Vram.bit(),
//!     preferred: 0,
//!     eviction: 0,
//! };
//! let found = of_all.check(1 << 20).map(|(owner, alignment, _)| (owner, alignment));
//! assert_eq!(found, Ok((Owner::Device, 4096)));
//!
//! // Without the flag somebody is to have it: a context of the same address space.
//! let of_nobody = Request { flags: 0, ..of_all };
//! assert_eq!(of_nobody.check(1 << 20), Err(Refusal::Context));
//! let of_one = Request { context: Some(space), ..of_nobody };
//! assert!(matches!(of_one.check(1 << 20), Ok((Owner::Context, ..))));
//! assert_eq!(of_one.check(4096), Err(Refusal::Size));
//! ```

use super::segment_sets::SegmentSets;
use crate::spec::{
    address::PAGE_SIZE,
    number::Asid, //
};

#[cfg(test)]
mod tests;

/// The flag of what all contexts of an address space share.
pub const SHARED_ACROSS_CONTEXTS: u32 = 1 << 0;
/// The largest alignment, in bytes: that of the largest page.
pub const MAX_ALIGNMENT: u64 = 2 << 20;

/// Whose work a context allocation is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One context's: it is there while an engine has that context.
    Context,
    /// All contexts' of an address space, and so of a device: it is there while an engine has one
    /// of them.
    Device,
}

/// What a client asks of a context allocation, unchecked.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The address space in which it is to be.
    pub space: Asid,
    /// The address space of the context that is named, if one is.
    pub context: Option<Asid>,
    /// [`SHARED_ACROSS_CONTEXTS`], or 0.
    pub flags: u32,
    /// Bytes: a multiple of the page size, not 0.
    pub size: u64,
    /// Of its address, in bytes: a power of two up to [`MAX_ALIGNMENT`]; 0 is that of a page.
    pub alignment: u64,
    /// Which segments may hold it, as for [`SegmentSets::new`].
    pub supported: u32,
    /// Which of them are tried first, in their order, as for [`SegmentSets::new`].
    pub preferred: u32,
    /// Where it goes when it leaves VRAM, as for [`SegmentSets::new`].
    pub eviction: u32,
}

/// Why a [`Request`] is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The address space, or the context, is the system's.
    System,
    /// A flag without a meaning is set.
    Flags,
    /// The context is of another address space, or is missing, or is there though it is nobody's
    /// alone.
    Context,
    /// The size is 0, or not a multiple of a page, or more than the `most` there may be.
    Size,
    /// The alignment is no power of two from a page to [`MAX_ALIGNMENT`].
    Alignment,
    /// There are no such [`SegmentSets`].
    Segments,
}

impl Request {
    /// Whose it is to be, its alignment in bytes, and where it may be. It has `most` bytes at most.
    ///
    /// # Errors
    ///
    /// The first of all [`Refusal`]s, in their order.
    pub fn check(&self, most: u64) -> Result<(Owner, u64, SegmentSets), Refusal> {
        if self.space.is_system() || self.context.is_some_and(Asid::is_system) {
            return Err(Refusal::System);
        }
        if self.flags & !SHARED_ACROSS_CONTEXTS != 0 {
            return Err(Refusal::Flags);
        }
        let is_shared = self.flags & SHARED_ACROSS_CONTEXTS != 0;
        let owner = match self.context {
            None if is_shared => Owner::Device,
            Some(space) if !is_shared && space == self.space => Owner::Context,
            _ => return Err(Refusal::Context),
        };
        if self.size == 0 || self.size % PAGE_SIZE != 0 || self.size > most {
            return Err(Refusal::Size);
        }
        let alignment = match self.alignment {
            0 => PAGE_SIZE,
            alignment => alignment,
        };
        if !alignment.is_power_of_two() || !(PAGE_SIZE..=MAX_ALIGNMENT).contains(&alignment) {
            return Err(Refusal::Alignment);
        }
        let sets = SegmentSets::new(self.supported, self.preferred, self.eviction);
        Ok((owner, alignment, sets.ok_or(Refusal::Segments)?))
    }
}
