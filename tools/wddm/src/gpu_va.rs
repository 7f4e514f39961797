// SPDX-License-Identifier: MIT

//! GPU virtual addresses: what a client reserves, maps, updates and frees by itself.
//!
//! An [`Allocation`] has an address from the start ([`Allocation::gpu_va`]). Beside that, a client
//! has as many as it likes of the process' addresses on the adapter, in which each device maps for
//! its own work:
//!
//! | call | what | when |
//! |---|---|---|
//! | [`Adapter::reserve_gpu_virtual_address`] | takes a range, to map in | at once |
//! | [`PagingQueue::map_gpu_virtual_address`] | maps in a range, or takes one and maps there | when the paging fence says so |
//! | [`Context::update_gpu_virtual_address`] | changes a reservation, in order with work | behind a value of a fence |
//! | [`Adapter::free_gpu_virtual_address`] | gives a range back | at once |
//!
//! A range is freed as it was got, as a whole. One that was mapped and not reserved goes with the
//! allocation that it was mapped for; what is mapped in a reservation goes with its allocation, and
//! the reservation stays. An access to what is not mapped is a fault, which takes the device down.
//! Who frees or maps over what work uses gets such a fault, too: nobody waits for that work.
//!
//! # Updates
//!
//! ```text
//!   context            work ──▶ F = n        waits until F ≥ n + 1 ──▶ work that uses it
//!                                │                  ▲
//!   its updates                  └──▶ page tables ──┘ F = n + 1
//! ```
//!
//! An update waits for its value in this process, whoever signals that; updates of a context are
//! done in order. An update of a reservation that is freed before its turn does nothing. The kernel
//! changes an address space in the order in which it was asked.
//!
//! The GPU has no page table entries that read as zero, no execute permission, and nothing that a
//! driver could say by `DriverProtection`.
//!
//! [`Context::update_gpu_virtual_address`]: crate::Context::update_gpu_virtual_address

use libskua::{Access, MonitoredFence};
use skua_policy::interval_map::Span;

use crate::{
    adapter::Adapter,
    address_space::{Wanted, PAGE},
    allocation::Allocation,
    device::Device,
    page_tables::{Change, PageTables},
    paging_queue::{Paging, PagingQueue},
    status::{Result, Status},
};

bitflags::bitflags! {
    /// What the GPU may do with a range (`D3DDDIGPUVIRTUALADDRESS_PROTECTION_TYPE`). It may always
    /// read.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Protection: u64 {
        /// GPU work may write to the range.
        const WRITE = 1 << 0;
        /// It may execute, as it may whatever it can read.
        const EXECUTE = 1 << 1;
        /// Reads give zero, and writes do nothing: NOT_SUPPORTED.
        const ZERO = 1 << 2;
        /// An access is a fault.
        const NO_ACCESS = 1 << 3;
        /// For the system alone: INVALID_PARAMETER.
        const SYSTEM_USE_ONLY = 1 << 4;
    }

    /// Flags of [`crate::Context::update_gpu_virtual_address`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct UpdateFlags: u32 {
        /// Do not wait for the fence.
        const DO_NOT_WAIT = 1 << 0;
    }
}

impl Protection {
    /// What a mapping of memory with it allows; `None` if nothing.
    fn access(self) -> Result<Option<Access>> {
        if self.contains(Self::ZERO) {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(Some(match self - Self::EXECUTE {
            Self::NO_ACCESS if self == Self::NO_ACCESS => return Ok(None),
            Self::WRITE => Access::ReadWrite,
            rest if rest.is_empty() => Access::Read,
            _ => return Err(Status::INVALID_PARAMETER),
        }))
    }

    fn of_memory(self) -> Result<Access> {
        self.access()?.ok_or(Status::INVALID_PARAMETER)
    }
}

/// What happens on an access to what is reserved and not mapped
/// (`D3DDDIGPUVIRTUALADDRESS_RESERVATION_TYPE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReservationType {
    /// An access is a page fault.
    #[default]
    NoAccess,
    /// Reads give zero, and writes do nothing: NOT_SUPPORTED.
    Zero,
    /// As `NoAccess`: page tables are made when something is mapped in any case.
    NoCommit,
}

/// A range to reserve (`D3DDDI_RESERVEGPUVIRTUALADDRESS`); multiples of 65536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReserveDesc {
    /// First address of the range, or 0 for any.
    pub base: u64,
    /// The lowest first address, or 0; means nothing with `base`.
    pub minimum: u64,
    /// The highest end, or 0; means nothing with `base`.
    pub maximum: u64,
    /// Bytes.
    pub size: u64,
    /// What it is while nothing is mapped.
    pub reservation: ReservationType,
    /// Must be 0.
    pub driver_protection: u64,
}

/// What to map where (`D3DDDI_MAPGPUVIRTUALADDRESS`); allocations by reference, or by
/// [`crate::Handle`].
#[derive(Clone, Copy, Debug)]
pub struct MapDesc<A> {
    /// The first address, or 0; a multiple of 4096.
    pub base: u64,
    /// The lowest first address, or 0; a multiple of 4096. Means nothing with `base`.
    pub minimum: u64,
    /// The highest end, or 0; a multiple of 4096. Means nothing with `base`.
    pub maximum: u64,
    /// What is mapped; none, with [`Protection::NO_ACCESS`], to unmap in a reservation.
    pub allocation: Option<A>,
    /// Its first page, of 4096 bytes.
    pub offset_pages: u64,
    /// Pages that are mapped, of 4096 bytes.
    pub size_pages: u64,
    /// What the GPU may do with the mapping.
    pub protection: Protection,
    /// Must be 0.
    pub driver_protection: u64,
}

impl<'a> MapDesc<&'a Allocation> {
    /// All of an allocation, to read and to write, wherever there is room.
    pub fn all_of(allocation: &'a Allocation) -> Self {
        Self {
            base: 0,
            minimum: 0,
            maximum: 0,
            allocation: Some(allocation),
            offset_pages: 0,
            size_pages: allocation.size() / PAGE,
            protection: Protection::WRITE,
            driver_protection: 0,
        }
    }
}

/// One change of an update (`D3DDDI_UPDATEGPUVIRTUALADDRESS_OPERATION`); addresses and bytes are
/// multiples of 4096, and allocations by reference, or by [`crate::Handle`].
#[derive(Clone, Copy, Debug)]
pub enum VaOperation<A> {
    /// Maps a range of an allocation.
    Map {
        /// The first address.
        va: u64,
        /// Bytes.
        size: u64,
        /// The allocation of which a range is mapped.
        allocation: A,
        /// Offset into the allocation of the first byte that is mapped.
        offset: u64,
        /// What the GPU may do there: [`Protection::WRITE`] but for `MAP_PROTECT`.
        protection: Protection,
    },
    /// Unmaps what is mapped in a range, if anything.
    Unmap {
        /// The first address.
        va: u64,
        /// Bytes.
        size: u64,
    },
    /// Maps in a range what is mapped in another one, also where the two intersect.
    Copy {
        /// The first address of the other one.
        from: u64,
        /// The first address.
        to: u64,
        /// Bytes of both.
        size: u64,
    },
}

impl<A> MapDesc<A> {
    /// The same of another allocation.
    pub(crate) fn with<B>(&self, allocation: Option<B>) -> MapDesc<B> {
        MapDesc {
            base: self.base,
            minimum: self.minimum,
            maximum: self.maximum,
            allocation,
            offset_pages: self.offset_pages,
            size_pages: self.size_pages,
            protection: self.protection,
            driver_protection: self.driver_protection,
        }
    }
}

impl<A> VaOperation<A> {
    /// The allocation that it maps.
    pub(crate) const fn allocation(&self) -> Option<&A> {
        match self {
            Self::Map { allocation, .. } => Some(allocation),
            Self::Unmap { .. } | Self::Copy { .. } => None,
        }
    }

    /// The same of another allocation; `None` if it needs one and has none.
    pub(crate) fn with<B>(&self, allocation: Option<B>) -> Option<VaOperation<B>> {
        Some(match *self {
            Self::Map {
                va,
                size,
                offset,
                protection,
                ..
            } => VaOperation::Map {
                va,
                size,
                allocation: allocation?,
                offset,
                protection,
            },
            Self::Unmap { va, size } => VaOperation::Unmap { va, size },
            Self::Copy { from, to, size } => VaOperation::Copy { from, to, size },
        })
    }
}

/// An operation whose ranges are checked.
#[derive(Debug)]
enum Operation {
    Change(Change),
    Copy {
        /// Whose mappings are copied: those that are there when the update is performed.
        from: Span,
        /// Where they are mapped then; as long as `from`.
        to: Span,
    },
}

/// An update that is queued.
#[derive(Debug)]
pub(crate) struct Update {
    /// The reservation that all of it changes.
    target: u64,
    /// The one that all copies are from.
    source: Option<u64>,
    /// What is to be done, in this order.
    operations: Vec<Operation>,
}

impl Update {
    /// Checks operations for a device's context.
    ///
    /// # Errors
    ///
    /// As [`crate::Context::update_gpu_virtual_address`].
    pub(crate) fn new(device: &Device, operations: &[VaOperation<&Allocation>]) -> Result<Self> {
        // Not to be asked for, nor dropped, with the space locked: this may have the last one.
        let memories: Vec<_> = operations
            .iter()
            .map(|operation| match operation {
                VaOperation::Map { allocation, .. } => allocation.memory(device).map(Some),
                VaOperation::Unmap { .. } | VaOperation::Copy { .. } => Ok(None),
            })
            .collect();
        let space = device.adapter().space();
        let (mut targets, mut sources) = (Vec::new(), Vec::new());
        let operations: Vec<_> = operations
            .iter()
            .zip(&memories)
            .map(|(operation, memory)| {
                let (va, size) = match *operation {
                    VaOperation::Map { va, size, .. } | VaOperation::Unmap { va, size } => {
                        (va, size)
                    }
                    VaOperation::Copy { to, size, .. } => (to, size),
                };
                targets.push(space.reservation(va, size)?);
                // No overflow: it is in a reservation.
                let span = Span::new(va, va + size);
                Ok(match *operation {
                    VaOperation::Map {
                        allocation,
                        offset,
                        protection,
                        ..
                    } => {
                        let access = protection.of_memory()?;
                        let memory = memory.clone()?;
                        within(allocation, offset, size)?;
                        Operation::Change(Change {
                            span,
                            to: memory.map(|memory| (memory, offset, access)),
                        })
                    }
                    VaOperation::Unmap { .. } => Operation::Change(Change { span, to: None }),
                    VaOperation::Copy { from, .. } => {
                        sources.push(space.reservation(from, size)?);
                        let from = Span::new(from, from + size);
                        Operation::Copy { from, to: span }
                    }
                })
            })
            .collect::<Result<_>>()?;
        targets.dedup();
        sources.dedup();
        match (&targets[..], &sources[..]) {
            ([target], [] | [_]) => Ok(Self {
                target: *target,
                source: sources.first().copied(),
                operations,
            }),
            _ => Err(Status::INVALID_PARAMETER),
        }
    }

    /// Hands it to the kernel, which signals a value of a fence then; whether there is anything to
    /// do.
    ///
    /// # Errors
    ///
    /// As that of a bind. It can be tried again then, and is another one, if addresses have
    /// changed.
    pub(crate) fn perform(
        &self,
        tables: &PageTables,
        signal: Option<(&MonitoredFence, u64)>,
    ) -> Result<bool> {
        // Dropped with nothing locked.
        let (mut changes, mut before) = (Vec::new(), Vec::new());
        let space = tables.adapter().space();
        let is = |span: &Span, number| space.reservation(span.start, span.len()) == Ok(number);
        let alive = self.operations.first().is_none_or(|operation| {
            let (Operation::Change(Change { span, .. }) | Operation::Copy { to: span, .. }) =
                operation;
            is(span, self.target)
        });
        if !alive {
            return Ok(false);
        }
        let mut mapped = tables.mapped();
        for operation in &self.operations {
            let next = match operation {
                Operation::Change(change) => vec![change.clone()],
                Operation::Copy { from, to } => {
                    if self.source.is_none_or(|number| !is(from, number)) {
                        continue;
                    }
                    mapped.copies(*from, *to)
                }
            };
            for change in next {
                before.push(mapped.copies(change.span, change.span));
                mapped.note(&change);
                changes.push(change);
            }
        }
        let changed = tables.change(&changes, signal);
        if changed.is_err() {
            // As if it had not been tried.
            let undone = before.iter().rev().flatten();
            undone.for_each(|change| mapped.note(change));
        }
        changed.map(|()| !changes.is_empty())
    }
}

/// Checks that a range lies in an allocation, in whole pages.
fn within(allocation: &Allocation, offset: u64, size: u64) -> Result<()> {
    let end = offset.checked_add(size).filter(|_| offset % PAGE == 0);
    match end {
        Some(end) if end <= allocation.size() => Ok(()),
        _ => Err(Status::INVALID_PARAMETER),
    }
}

impl Adapter {
    /// Reserves a range of addresses (`D3DKMTReserveGpuVirtualAddress`); tells the first. Nothing
    /// is mapped there.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if something is out of its range, or the range at `base` is not free;
    /// NOT_SUPPORTED for [`ReservationType::Zero`]; NO_MEMORY if there is no such range.
    pub fn reserve_gpu_virtual_address(&self, desc: &ReserveDesc) -> Result<u64> {
        if desc.driver_protection != 0 {
            return Err(Status::INVALID_PARAMETER);
        }
        if desc.reservation == ReservationType::Zero {
            return Err(Status::NOT_SUPPORTED);
        }
        self.space().reserve(Wanted {
            base: desc.base,
            minimum: desc.minimum,
            maximum: desc.maximum,
            size: desc.size,
        })
    }

    /// Gives a range of addresses back that was reserved or mapped
    /// (`D3DKMTFreeGpuVirtualAddress`), all of it. What is mapped there is unmapped, and the
    /// addresses can be another's at once.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is not just such a range; INSUFFICIENT_RESOURCES if too many binds
    /// wait; NO_MEMORY; DEVICE_REMOVED.
    pub fn free_gpu_virtual_address(&self, va: u64, size: u64) -> Result<()> {
        let mut space = self.space();
        let span = space.named(va, size)?;
        self.unmap(span)?;
        space.free(span);
        Ok(())
    }
}

impl PagingQueue {
    /// Maps a range of an allocation (`D3DKMTMapGpuVirtualAddress`), in a range of addresses that
    /// the client has, over what is mapped there, or in a free one, which it has from then on;
    /// tells the first address. Work may use it when the paging fence has the value.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if something is out of its range, the addresses are neither free nor in
    /// one range of a client's, or the allocation is of another device; INVALID_HANDLE if it, the
    /// queue or the device is destroyed; GRAPHICS_ALLOCATION_BUSY if the allocation is offered;
    /// NOT_SUPPORTED for [`Protection::ZERO`]; INSUFFICIENT_RESOURCES if 4096 binds of the device
    /// wait; NO_MEMORY, also if there is no such range; DEVICE_REMOVED.
    pub fn map_gpu_virtual_address(&self, desc: &MapDesc<&Allocation>) -> Result<(u64, Paging)> {
        let pages = |count: u64| count.checked_mul(PAGE).ok_or(Status::INVALID_PARAMETER);
        let (offset, size) = (pages(desc.offset_pages)?, pages(desc.size_pages)?);
        let access = desc.protection.access()?;
        if desc.driver_protection != 0 || access.is_some() != desc.allocation.is_some() {
            return Err(Status::INVALID_PARAMETER);
        }
        let memory = desc.allocation.map(|allocation| {
            within(allocation, offset, size)?;
            allocation.memory(self.device())
        });
        let memory = memory.transpose()?;
        let wanted = Wanted {
            base: desc.base,
            minimum: desc.minimum,
            maximum: desc.maximum,
            size,
        };
        let tables = self.device().scheduler().tables();
        let mut va = 0;
        // Its last user may be gone before this: not to be dropped with the space locked.
        let kept = memory.clone();
        let paging = self.enqueue(|fence, value| {
            let mut space = tables.adapter().space();
            let (span, is_new) = match &memory {
                Some(memory) => space.place(wanted, memory.va())?,
                None => {
                    space.reservation(desc.base, size)?;
                    (Span::new(desc.base, desc.base + size), false)
                }
            };
            va = span.start;
            let to = memory
                .zip(access)
                .map(|(memory, access)| (memory, offset, access));
            let mut mapped = tables.mapped();
            let change = [Change { span, to }];
            let result = tables.change(&change, Some((fence, value)));
            match &result {
                Ok(_) => mapped.note(&change[0]),
                Err(_) if is_new => space.free(span),
                Err(_) => (),
            }
            result
        })?;
        drop(kept);
        Ok((va, paging))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protections_that_mean_nothing_together_are_refused() {
        let access = |bits| Protection::from_bits_retain(bits).access();
        assert_eq!(access(0), Ok(Some(Access::Read)));
        assert_eq!(access(1), Ok(Some(Access::ReadWrite)));
        assert_eq!(access(2), Ok(Some(Access::Read)));
        assert_eq!(access(3), Ok(Some(Access::ReadWrite)));
        assert_eq!(access(8), Ok(None));
        assert_eq!(access(4), Err(Status::NOT_SUPPORTED));
        for bits in [8 | 1, 8 | 2, 16, 16 | 1, 32, 1 << 63] {
            assert_eq!(access(bits), Err(Status::INVALID_PARAMETER), "{bits:#x}");
        }
    }
}
