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
//! | [`Adapter::free_gpu_virtual_address`] | gives a range back | at once, or behind its updates |
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
//! An update waits for its value in the kernel, whoever signals that, and in the way of no other
//! change; updates of a context are done in order. Copies look at what is mapped when their turn
//! comes. A reservation that is freed before its updates are over keeps its addresses until they
//! are, and then nothing is mapped there. What is destroyed before an update's turn is not mapped;
//! while it is offered the update waits.
//!
//! The GPU has no page table entries that read as zero, no execute permission, and nothing that a
//! driver could say by `DriverProtection`.
//!
//! [`Context::update_gpu_virtual_address`]: crate::Context::update_gpu_virtual_address

use std::sync::Arc;

use libskua::{Access, Bind};
use skua_policy::interval_map::Span;

use crate::{
    adapter::Adapter,
    address_space::{Wanted, PAGE},
    allocation::Allocation,
    device::Device,
    fence::Fence,
    memory::Memory,
    page_tables::{PageTables, Updates},
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

/// Most mappings that the copies of a bind may come to, and so most pages that they copy here.
const MOST_COPIED: u64 = 4096;

/// An operation whose arguments are checked, but for who has the addresses.
#[derive(Debug)]
enum Operation {
    Map {
        span: Span,
        memory: Arc<Memory>,
        /// The byte of the memory that is mapped first.
        offset: u64,
        access: Access,
    },
    Unmap(Span),
    Copy {
        /// Whose mappings are copied.
        from: Span,
        /// Where they are mapped then; as long as `from`.
        to: Span,
    },
}

impl Operation {
    /// What it changes.
    const fn span(&self) -> Span {
        match self {
            Self::Map { span, .. } | Self::Unmap(span) | Self::Copy { to: span, .. } => *span,
        }
    }

    /// What it copies.
    const fn source(&self) -> Option<Span> {
        match self {
            Self::Copy { from, .. } => Some(*from),
            Self::Map { .. } | Self::Unmap(_) => None,
        }
    }

    /// What does the same in this order, each no more than a bind copies.
    fn parts(&self) -> Vec<Part<'_>> {
        let Self::Copy { from, to } = self else {
            return vec![Part::Whole(self)];
        };
        let bytes = MOST_COPIED * PAGE;
        let starts = (0..from.len().div_ceil(bytes)).map(|n| n * bytes);
        let part = |offset: u64| Part::Copy {
            from: from.start + offset,
            to: to.start + offset,
            size: (from.len() - offset).min(bytes),
        };
        // No part changes what a later one copies.
        match to.start > from.start {
            true => starts.rev().map(part).collect(),
            false => starts.map(part).collect(),
        }
    }
}

/// What a bind does for an operation.
#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    /// All of one that does not copy.
    Whole(&'a Operation),
    /// Some of one that copies: addresses and bytes.
    Copy { from: u64, to: u64, size: u64 },
}

impl<'a> Part<'a> {
    /// Pages that it copies.
    const fn copied(&self) -> u64 {
        match self {
            Self::Whole(_) => 0,
            Self::Copy { size, .. } => *size / PAGE,
        }
    }

    fn add_to(&self, bind: Bind<'a>) -> Bind<'a> {
        match *self {
            Self::Copy { from, to, size } => bind.copy(from, to, size),
            Self::Whole(Operation::Map {
                span,
                memory,
                offset,
                access,
            }) => bind.map(memory.bo(), *offset, span.start, span.len(), *access),
            Self::Whole(operation) => bind.unmap(operation.span().start, operation.span().len()),
        }
    }
}

/// Parts in this order, together as far as a bind has at most `most`, and copies what it can.
fn batches<'a>(parts: impl Iterator<Item = Part<'a>>, most: usize) -> Vec<Vec<Part<'a>>> {
    let mut batches: Vec<Vec<Part<'_>>> = Vec::new();
    let mut copied = 0;
    for part in parts {
        copied += part.copied();
        match batches.last_mut() {
            Some(batch) if batch.len() < most && copied <= MOST_COPIED => batch.push(part),
            _ => {
                copied = part.copied();
                batches.push(vec![part]);
            }
        }
    }
    batches
}

/// An update in the making.
#[derive(Debug)]
pub(crate) struct Update {
    /// What is to be done, in this order; not empty.
    operations: Vec<Operation>,
}

impl Update {
    /// Checks operations for a device's context; whose the addresses are is seen to by
    /// [`Update::submit`].
    ///
    /// # Errors
    ///
    /// As [`crate::Context::update_gpu_virtual_address`].
    pub(crate) fn new(device: &Device, operations: &[VaOperation<&Allocation>]) -> Result<Self> {
        let span = |va, size| Span::with_len(va, size).ok_or(Status::INVALID_PARAMETER);
        let operation = |operation: &VaOperation<&Allocation>| {
            Ok(match *operation {
                VaOperation::Map {
                    va,
                    size,
                    allocation,
                    offset,
                    protection,
                } => {
                    let access = protection.of_memory()?;
                    let memory = allocation.memory(device)?;
                    within(allocation, offset, size)?;
                    Operation::Map {
                        span: span(va, size)?,
                        memory,
                        offset,
                        access,
                    }
                }
                VaOperation::Unmap { va, size } => Operation::Unmap(span(va, size)?),
                VaOperation::Copy { from, to, size } => Operation::Copy {
                    from: span(from, size)?,
                    to: span(to, size)?,
                },
            })
        };
        let operations: Vec<_> = operations.iter().map(operation).collect::<Result<_>>()?;
        match operations.is_empty() {
            true => Err(Status::INVALID_PARAMETER),
            false => Ok(Self { operations }),
        }
    }

    /// Hands it to the kernel, to be done in the order of a context when a value is reached, if it
    /// `waits` for one, and to signal one.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if what it changes is not all in one reservation, or what it copies; as
    /// that of a bind.
    pub(crate) fn submit<'a>(
        &'a self,
        tables: &'a PageTables,
        (context, updates): (&'a libskua::Context, &mut Updates),
        waits: Option<(&'a Fence, u64)>,
        signals: Option<(&'a Fence, u64)>,
    ) -> Result<()> {
        // Locked until the kernel has it: a reservation that is freed then is free behind it.
        let mut space = tables.adapter().space();
        let reservation = |spans: &mut dyn Iterator<Item = Span>| {
            let numbers = spans.map(|span| space.reservation(span.start, span.len()));
            let mut numbers = numbers.collect::<Result<Vec<_>>>()?;
            numbers.dedup();
            match numbers.len() {
                0 | 1 => Ok(()),
                _ => Err(Status::INVALID_PARAMETER),
            }
        };
        reservation(&mut self.operations.iter().map(Operation::span))?;
        reservation(&mut self.operations.iter().filter_map(Operation::source))?;
        let most = usize::try_from(tables.adapter().libskua().info().max_bind_ops).unwrap_or(1);
        let batches = batches(
            self.operations.iter().flat_map(Operation::parts),
            most.max(1),
        );
        let last = batches.len().saturating_sub(1);
        let target = self.operations.first().map(Operation::span);
        let source = self.operations.iter().find_map(Operation::source);
        for (n, batch) in batches.iter().enumerate() {
            let waits = waits.filter(|_| n == 0);
            let signals = signals.filter(|_| n == last);
            let may_wait = waits.is_some_and(|(fence, value)| !fence.reached(value));
            updates.bind(tables, context, may_wait, |mut bind| {
                if let Some((fence, value)) = waits {
                    bind = bind.wait_value(&fence.raw, value);
                }
                if let Some((fence, value)) = signals {
                    bind = bind.signal_value(&fence.raw, value);
                }
                batch.iter().fold(bind, |bind, part| part.add_to(bind))
            })?;
            for span in [target, source].into_iter().flatten() {
                space.note_update(span.start, &updates.last());
            }
        }
        Ok(())
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
    /// addresses can be another's at once, or when the updates of them are over that are queued.
    ///
    /// If the kernel cannot unmap it, the range stays the client's; but some devices may have it
    /// unmapped by then.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is not just such a range; INSUFFICIENT_RESOURCES if too many binds
    /// wait; NO_MEMORY; DEVICE_REMOVED.
    pub fn free_gpu_virtual_address(&self, va: u64, size: u64) -> Result<()> {
        let mut space = self.space();
        let span = space.named(va, size)?;
        // First: one that is over later may have mapped there since.
        space.forget_updates(span);
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
                .as_ref()
                .zip(access)
                .map(|(memory, access)| (&**memory, offset, access));
            let result = tables.change(span, to, Some((fence, value)));
            if result.is_err() && is_new {
                space.free(span);
            }
            result
        })?;
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

    #[test]
    fn copies_are_cut_to_what_a_bind_copies() {
        let bytes = MOST_COPIED * PAGE;
        let copy = |from, to, len| Operation::Copy {
            from: Span::new(from, from + len),
            to: Span::new(to, to + len),
        };
        let parts = |operation: &Operation| -> Vec<_> {
            let part = |part: Part<'_>| match part {
                Part::Copy { from, to, size } => (from, to, size),
                Part::Whole(_) => unreachable!("a copy"),
            };
            operation.parts().into_iter().map(part).collect()
        };
        let down = copy(bytes, 0, 2 * bytes + PAGE);
        let all = [
            (bytes, 0, bytes),
            (2 * bytes, bytes, bytes),
            (3 * bytes, 2 * bytes, PAGE),
        ];
        assert_eq!(parts(&down), all);
        // Upwards from the end.
        let up = copy(0, bytes, 2 * bytes + PAGE);
        let all = [
            (2 * bytes, 3 * bytes, PAGE),
            (bytes, 2 * bytes, bytes),
            (0, bytes, bytes),
        ];
        assert_eq!(parts(&up), all);
        let unmap = Operation::Unmap(Span::new(0, PAGE));
        let half = copy(0, 4 * bytes, bytes / 2);
        let operations = [&half, &half, &unmap, &half, &down, &unmap, &unmap];
        let batches = batches(operations.into_iter().flat_map(Operation::parts), 3);
        let lens: Vec<_> = batches.iter().map(Vec::len).collect();
        assert_eq!(lens, [3, 1, 1, 1, 3]);
    }
}
