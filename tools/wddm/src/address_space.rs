// SPDX-License-Identifier: MIT

//! Who has which GPU virtual addresses.
//!
//! Addresses are user mode's to choose. WDDM's process has one GPU address space on an adapter; its
//! free ranges are here, kept by the interval map that the driver uses for what is mapped
//! (`rust/policy`). A range is given out with an alignment that lets the driver use its large
//! pages, and with an unmapped page behind it, so that running over the end is a fault and not
//! another allocation.

use libskua::DeviceInfo;
use skua_policy::{
    interval_map::{IntervalMap, Slice, Span, MAP_NODES, UNMAP_NODES},
    std_heap::StdHeap,
};

use crate::status::{Result, Status};

/// The smallest GPU page, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// A range that is given out: nothing is known of it.
#[derive(Clone, Debug)]
struct Taken;

impl Slice for Taken {
    fn slice(&self, _: u64, _: u64) -> Self {
        Self
    }
}

/// The ranges that are given out.
pub(crate) struct AddressSpace {
    /// What is given out, with the guards behind it.
    taken: IntervalMap<StdHeap, Taken>,
    /// Nothing is given out beyond it.
    range: Span,
    /// Sizes of pages, increasing.
    pages: Vec<u64>,
}

impl std::fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressSpace")
            .field("range", &self.range)
            .field("taken", &self.taken.len())
            .finish()
    }
}

impl AddressSpace {
    /// All addresses of a device, free.
    pub(crate) fn new(info: &DeviceInfo) -> Self {
        Self {
            taken: IntervalMap::new(),
            // Never 0, which clients take for no address.
            range: Span::new(info.va.start.max(PAGE), info.va.end),
            pages: info.page_sizes.clone(),
        }
    }

    /// Takes `size` addresses, a multiple of [`PAGE`], aligned to the largest page not above
    /// `size`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if `size` is 0, not a multiple of a page, or more than there can be;
    /// NO_MEMORY if no gap is large enough.
    pub(crate) fn take(&mut self, size: u64) -> Result<u64> {
        if size == 0 || size % PAGE != 0 || size > self.range.len() {
            return Err(Status::INVALID_PARAMETER);
        }
        let with_guard = size.checked_add(PAGE).ok_or(Status::INVALID_PARAMETER)?;
        let align = self
            .pages
            .iter()
            .copied()
            .filter(|page| page.is_power_of_two() && *page <= size)
            .max()
            .unwrap_or(PAGE)
            .max(PAGE);
        let va = self
            .taken
            .find_gap(with_guard, align, self.range)
            .ok_or(Status::NO_MEMORY)?;
        let span = Span::with_len(va, with_guard).ok_or(Status::NO_MEMORY)?;
        let mut nodes = self
            .taken
            .prepare(MAP_NODES)
            .map_err(|_| Status::NO_MEMORY)?;
        let mapped = self.taken.map(&mut nodes, span, Taken);
        self.taken.release(nodes);
        mapped.map(|()| va).map_err(|_| Status::UNSUCCESSFUL)
    }

    /// Gives back what [`AddressSpace::take`] gave out.
    ///
    /// Without memory for it the range stays taken, which wastes addresses and nothing else.
    pub(crate) fn give_back(&mut self, va: u64, size: u64) {
        let span = Span::with_len(va, size.saturating_add(PAGE));
        if let (Some(span), Ok(mut nodes)) = (span, self.taken.prepare(UNMAP_NODES)) {
            let _ = self.taken.unmap(&mut nodes, span, |_| {});
            self.taken.release(nodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn space(start: u64, end: u64) -> AddressSpace {
        AddressSpace::new(&DeviceInfo {
            version: (1, 0),
            va: start..end,
            page_sizes: vec![4096, 1 << 16, 1 << 21],
            tick_hz: 1,
            max_group_threads: 1,
            wave_threads: 1,
            max_shared_bytes: 0,
            max_bind_ops: 1,
            max_buffers: 1,
            max_syncs: 1,
        })
    }

    #[test]
    fn large_ranges_are_aligned_for_large_pages() {
        let mut s = space(0, 1 << 47);
        assert_eq!(s.take(4096).unwrap() % 4096, 0);
        assert_eq!(s.take(1 << 16).unwrap() % (1 << 16), 0);
        assert_eq!(s.take(5 << 20).unwrap() % (1 << 21), 0);
    }

    #[test]
    fn the_first_address_is_never_zero() {
        assert_ne!(space(0, 1 << 30).take(4096), Ok(0));
    }

    #[test]
    fn bad_sizes_are_refused() {
        let mut s = space(0, 1 << 30);
        for size in [0, 1, 4095, 4097, u64::MAX, u64::MAX - 4095, 1 << 31] {
            assert_eq!(s.take(size), Err(Status::INVALID_PARAMETER), "{size:#x}");
        }
        assert_eq!(s.take((1 << 30) - 4096), Err(Status::NO_MEMORY));
    }

    proptest! {
        /// Ranges do not overlap, keep a page between them, stay inside, and come back.
        #[test]
        fn ranges_are_apart(operations in prop::collection::vec(
            (any::<bool>(), 1_u64..700, any::<prop::sample::Index>()), 1..200,
        )) {
            let (start, end) = (1 << 20, 1 << 25);
            let mut s = space(start, end);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (take, pages, index) in operations {
                if take || live.is_empty() {
                    let size = pages * PAGE;
                    if let Ok(va) = s.take(size) {
                        prop_assert!(va >= start && va + size + PAGE <= end && va % PAGE == 0);
                        for (other, length) in &live {
                            prop_assert!(va + size + PAGE <= *other || other + length + PAGE <= va);
                        }
                        live.push((va, size));
                    } else {
                        prop_assert!(!live.is_empty());
                    }
                } else {
                    let (va, size) = live.swap_remove(index.index(live.len()));
                    s.give_back(va, size);
                }
            }
            for (va, size) in live {
                s.give_back(va, size);
            }
            // All of it is free again.
            prop_assert!(s.take(end - start - PAGE - (1 << 20)).is_ok() );
            prop_assert!(s.taken.len() == 1);
        }
    }
}
