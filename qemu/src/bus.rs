// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The bus: system memory by bus address (manual section 4).
//!
//! [`Bus`] is a table of ranges of bus addresses and the host memory behind each. Behind an IOMMU
//! the table changes at any time and holds single pages; without one it is the guest's whole RAM.
//!
//! Whoever accesses memory takes a [`BusGuard`] for a bounded step of work. [`Bus::unmap`] waits
//! until all guards are gone and then changes the table: when it returns, no access to the range is
//! under way and none will follow. Nothing may be kept from one guard to the next; the lifetimes of
//! the slices see to it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use skua_spec::address::PAGE_SIZE;
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

use crate::repeats::Repeats;

/// Bits of a bus address.
pub const BUS_BITS: u32 = 48;

/// Ranges that there may be: behind an IOMMU the guest says how many there are, and each takes
/// memory of the host. Enough for 4 GiB of single pages.
pub const MAX_RANGES: usize = 1 << 20;

/// Host memory that a range of bus addresses stands for.
#[derive(Clone, Debug)]
pub struct Backing {
    /// The memory, shared by all ranges of the same file.
    pub region: Arc<MmapRegion>,
    /// Where in `region` the range starts, a multiple of 4096.
    pub offset: u64,
    /// Whether the device may read.
    pub readable: bool,
    /// Whether the device may write.
    pub writable: bool,
}

#[derive(Clone, Debug)]
struct Mapping {
    /// Length of the range.
    bytes: u64,
    /// Where the range's first byte lies on the host.
    backing: Backing,
}

/// Why a range could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Address, size or offset is not a multiple of 4096, or the size is 0.
    Misaligned,
    /// The range is beyond [`BUS_BITS`] or beyond the end of the backing.
    OutOfRange,
    /// Part of the range is mapped.
    Overlap,
    /// There are [`MAX_RANGES`].
    TooMany,
}

impl std::fmt::Display for MapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Misaligned => "it is not made of whole pages",
            Self::OutOfRange => "it is out of range",
            Self::Overlap => "part of it is mapped",
            Self::TooMany => "there are as many as there may be",
        })
    }
}

impl std::error::Error for MapError {}

#[derive(Debug, Default)]
struct Table {
    /// By their first bus address; none overlaps another.
    mappings: BTreeMap<u64, Mapping>,
    /// Whether the device may access the bus at all.
    master: bool,
}

/// The table of the bus.
#[derive(Debug, Default)]
pub struct Bus {
    /// Read-locked over every step of an engine, so that a change waits for accesses under way.
    table: RwLock<Table>,
    /// Ranges of which a part was lost as there are [`MAX_RANGES`].
    cut: Repeats,
}

impl Bus {
    /// Maps `bytes` bytes from `address` on.
    ///
    /// # Errors
    ///
    /// See [`MapError`]; nothing was changed then.
    pub fn map(&self, address: u64, bytes: u64, backing: Backing) -> Result<(), MapError> {
        if (address | bytes | backing.offset) % PAGE_SIZE != 0 || bytes == 0 {
            return Err(MapError::Misaligned);
        }
        let fits = |start: u64, limit: u64| start.checked_add(bytes).is_some_and(|e| e <= limit);
        if !fits(address, 1 << BUS_BITS) || !fits(backing.offset, backing.region.size() as u64) {
            return Err(MapError::OutOfRange);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let before = table.mappings.range(..address + bytes).next_back();
        if before.is_some_and(|(start, m)| start + m.bytes > address) {
            return Err(MapError::Overlap);
        }
        if table.mappings.len() >= MAX_RANGES {
            return Err(MapError::TooMany);
        }
        table.mappings.insert(address, Mapping { bytes, backing });
        Ok(())
    }

    /// Removes all that is mapped in the `bytes` bytes from `address` on, and cuts what reaches
    /// over. When it returns, no engine accesses the range any more. Where that would make one
    /// range more than there may be, what is behind the gap goes, too.
    pub fn unmap(&self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        while let Some((&start, mapping)) = table.mappings.range(..end).next_back() {
            let mapping_end = start + mapping.bytes;
            if mapping_end <= address {
                break;
            }
            let mapping = mapping.clone();
            table.mappings.remove(&start);
            let is_cut_in_two = start < address && mapping_end > end;
            if is_cut_in_two && table.mappings.len() + 2 > MAX_RANGES {
                if let Some(times) = self.cut.count() {
                    tracing::warn!(times, address, end, "too many ranges: one was cut");
                }
            } else if mapping_end > end {
                let mut right = mapping.clone();
                right.backing.offset += end - start;
                right.bytes = mapping_end - end;
                table.mappings.insert(end, right);
            }
            if start < address {
                let mut left = mapping;
                left.bytes = address - start;
                table.mappings.insert(start, left);
            }
        }
    }

    /// As [`Self::unmap`] of all ranges.
    pub fn unmap_all(&self) {
        self.unmap(0, u64::MAX);
    }

    /// Lets the device access the bus, or not: the bus master bit of its command register.
    pub fn set_master(&self, master: bool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.master = master;
    }

    /// Takes a guard for a bounded step of work. A thread has one at a time.
    pub fn enter(&self) -> BusGuard<'_> {
        BusGuard {
            table: self.table.read().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The right to access system memory, until it is dropped.
#[derive(Debug)]
pub struct BusGuard<'a> {
    /// As long as this is held, the bus' mappings do not change.
    table: RwLockReadGuard<'a, Table>,
}

impl BusGuard<'_> {
    /// Whether the device may access the bus at all, by whatever address.
    pub fn is_master(&self) -> bool {
        self.table.master
    }

    /// The memory at `address`, at most `bytes` (at least 1) long; `None` where nothing answers.
    pub fn slice(&self, address: u64, bytes: u64, write: bool) -> Option<VolatileSlice<'_>> {
        if !self.table.master {
            return None;
        }
        let (start, mapping) = self.table.mappings.range(..=address).next_back()?;
        let inside = address - start;
        let left = mapping.bytes.checked_sub(inside).filter(|left| *left > 0)?;
        let backing = &mapping.backing;
        let allowed = if write {
            backing.writable
        } else {
            backing.readable
        };
        if !allowed {
            return None;
        }
        let offset = backing.offset + inside;
        let count = left.min(bytes);
        backing
            .region
            .get_slice(offset as usize, count as usize)
            .ok()
    }
}
