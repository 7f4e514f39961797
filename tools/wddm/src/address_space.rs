// SPDX-License-Identifier: MIT

//! Who has which GPU virtual addresses.
//!
//! Addresses are user mode's to choose. WDDM's process has one GPU address space on an adapter,
//! which all its devices have part in; its free ranges are here, kept by the interval map that the
//! driver uses for what is mapped (`rust/policy`). A range is given out with an alignment that lets
//! the driver use its large pages, and with an unmapped page behind it, so that running over the
//! end is a fault and not another allocation.
//!
//! Beside the library's own ranges there are those of clients, which have names: a client
//! *reserves* a range to map and unmap in, or *maps* one, and frees what it got as a whole. What is
//! mapped in these is each device's ([`crate::page_tables`]).

use std::collections::BTreeMap;

use libskua::DeviceInfo;
use skua_policy::{
    interval_map::{IntervalMap, Slice, Span, MAP_NODES, UNMAP_NODES},
    std_heap::StdHeap,
};

use crate::{
    page_tables::PastUpdate,
    status::{Result, Status},
};

/// The smallest GPU page, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// What reservations are multiples of, in bytes.
pub(crate) const RESERVATION: u64 = 65536;

/// Where a client wants a range. An address that is 0 is not given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// The first address; the others mean nothing then.
    pub(crate) base: u64,
    /// The lowest address that the range may begin at.
    pub(crate) minimum: u64,
    /// The highest address that the range may end at.
    pub(crate) maximum: u64,
    /// Bytes, not 0.
    pub(crate) size: u64,
}

/// A range that a client has by name.
#[derive(Debug)]
struct Named {
    /// Bytes of the range.
    size: u64,
    /// What the range is for.
    kind: Kind,
    /// The last updates that may map there, or look what is mapped: one of each context.
    updates: Vec<PastUpdate>,
}

/// A range that a client has freed: taken, and nobody's, until the updates are over that may map
/// there.
#[derive(Debug)]
struct Freed {
    span: Span,
    updates: Vec<PastUpdate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To map in; by a number that no other reservation ever has.
    Reserved(u64),
    /// For memory that has this address, with which it ends.
    Mapped(u64),
}

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
    /// The ranges of clients, by their first addresses; all of them are taken.
    named: BTreeMap<u64, Named>,
    /// How many reservations there were.
    reservations: u64,
    /// Those that were freed, and are not free.
    freed: Vec<Freed>,
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
            named: BTreeMap::new(),
            reservations: 0,
            freed: Vec::new(),
        }
    }

    /// The alignment that lets the driver use its large pages for `size` bytes.
    fn alignment(&self, size: u64) -> u64 {
        self.pages
            .iter()
            .copied()
            .filter(|page| page.is_power_of_two() && *page <= size)
            .max()
            .unwrap_or(PAGE)
            .max(PAGE)
    }

    fn occupy(&mut self, span: Span) -> Result<()> {
        let nodes = self.taken.prepare(MAP_NODES);
        let mut nodes = nodes.map_err(|_| Status::NO_MEMORY)?;
        let mapped = self.taken.map(&mut nodes, span, Taken);
        self.taken.release(nodes);
        // It overlaps what is taken.
        mapped.map_err(|_| Status::INVALID_PARAMETER)
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
        let va = self
            .taken
            .find_gap(with_guard, self.alignment(size), self.range)
            .ok_or(Status::NO_MEMORY)?;
        let span = Span::with_len(va, with_guard).ok_or(Status::NO_MEMORY)?;
        self.occupy(span)?;
        Ok(va)
    }

    /// Gives back what [`AddressSpace::take`] gave out.
    ///
    /// Without memory for it the range stays taken, which wastes addresses and nothing else.
    pub(crate) fn give_back(&mut self, va: u64, size: u64) {
        if let Some(span) = Span::with_len(va, size.saturating_add(PAGE)) {
            self.vacate(span);
        }
    }

    fn vacate(&mut self, span: Span) {
        if let Ok(mut nodes) = self.taken.prepare(UNMAP_NODES) {
            let _ = self.taken.unmap(&mut nodes, span, |_| {});
            self.taken.release(nodes);
        }
    }

    /// Where a client's range can be: as it is `wanted`, in multiples of `granularity`.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it cannot be there; NO_MEMORY if there is no such gap.
    fn find(&self, wanted: Wanted, granularity: u64) -> Result<Span> {
        let Wanted {
            base,
            minimum,
            maximum,
            size,
        } = wanted;
        let bounds = [minimum, maximum].map(|bound| if base == 0 { bound } else { 0 });
        let aligned = |n: &u64| n % granularity == 0;
        if size == 0 || ![size, base].iter().chain(&bounds).all(aligned) {
            return Err(Status::INVALID_PARAMETER);
        }
        if base != 0 {
            return Span::with_len(base, size)
                .filter(|span| self.range.start <= base && span.end <= self.range.end)
                .ok_or(Status::INVALID_PARAMETER);
        }
        let end = if maximum == 0 { u64::MAX } else { maximum };
        let within = Span::new(minimum.max(self.range.start), end.min(self.range.end));
        if size > within.len() {
            return Err(Status::INVALID_PARAMETER);
        }
        let align = self.alignment(size).max(granularity);
        let va = self.taken.find_gap(size, align, within);
        va.and_then(|va| Span::with_len(va, size))
            .ok_or(Status::NO_MEMORY)
    }

    /// Reserves a range for a client.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is no multiple of [`RESERVATION`], not all there is, or not free;
    /// NO_MEMORY.
    pub(crate) fn reserve(&mut self, wanted: Wanted) -> Result<u64> {
        let span = self.find(wanted, RESERVATION)?;
        self.occupy(span)?;
        self.reservations += 1;
        let kind = Kind::Reserved(self.reservations);
        let size = span.len();
        let updates = Vec::new();
        let named = Named {
            size,
            kind,
            updates,
        };
        self.named.insert(span.start, named);
        Ok(span.start)
    }

    /// Where a client can map: in a range that it has, or in a free one, which becomes its own
    /// then, until the memory at `owner` ends. Tells whether it did.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is no multiple of [`PAGE`], or neither free nor in one range of a
    /// client's; NO_MEMORY.
    pub(crate) fn place(&mut self, wanted: Wanted, owner: u64) -> Result<(Span, bool)> {
        let span = self.find(wanted, PAGE)?;
        if wanted.base != 0 && self.named_around(span).is_some() {
            return Ok((span, false));
        }
        self.occupy(span)?;
        let named = Named {
            size: span.len(),
            kind: Kind::Mapped(owner),
            updates: Vec::new(),
        };
        self.named.insert(span.start, named);
        Ok((span, true))
    }

    /// The range of a client's that has all of `span`.
    fn named_around(&self, span: Span) -> Option<&Named> {
        let (base, named) = self.named.range(..=span.start).next_back()?;
        // No overflow: it is in the address space.
        (span.end <= base + named.size).then_some(named)
    }

    /// The number of the reservation that has all of `span`; multiples of a page.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if there is none.
    pub(crate) fn reservation(&self, va: u64, size: u64) -> Result<u64> {
        let span = Span::with_len(va, size).filter(|span| !span.is_empty());
        let span = span.filter(|_| va % PAGE == 0 && size % PAGE == 0);
        match span.and_then(|span| self.named_around(span)) {
            Some(Named {
                kind: Kind::Reserved(number),
                ..
            }) => Ok(*number),
            _ => Err(Status::INVALID_PARAMETER),
        }
    }

    /// A range that a client has by name.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it is not just one.
    pub(crate) fn named(&self, va: u64, size: u64) -> Result<Span> {
        let named = self.named.get(&va).filter(|named| named.size == size);
        named
            .and_then(|_| Span::with_len(va, size))
            .ok_or(Status::INVALID_PARAMETER)
    }

    /// The ranges that end with the memory at `owner`.
    pub(crate) fn owned(&self, owner: u64) -> Vec<Span> {
        self.named
            .iter()
            .filter(|(_, named)| named.kind == Kind::Mapped(owner))
            .filter_map(|(va, named)| Span::with_len(*va, named.size))
            .collect()
    }

    /// Notes an update that changes, or copies, what is mapped at an address in a reservation.
    pub(crate) fn note_update(&mut self, va: u64, update: &PastUpdate) {
        if let Some((_, named)) = self.named.range_mut(..=va).next_back() {
            let mut updates = named.updates.iter_mut();
            match updates.find(|past| past.is_of_the_same(update)) {
                Some(past) => *past = update.clone(),
                None => {
                    named.updates.retain(|past| !past.is_over());
                    named.updates.push(update.clone());
                }
            }
        }
    }

    /// Forgets the updates of a client's range that are over. Who unmaps it after that unmaps what
    /// they have mapped.
    pub(crate) fn forget_updates(&mut self, span: Span) {
        if let Some(named) = self.named.get_mut(&span.start) {
            named.updates.retain(|update| !update.is_over());
        }
    }

    /// Takes a range from its client, in which nothing is mapped but by updates that are not
    /// [forgotten](AddressSpace::forget_updates): behind these it is free
    /// ([`AddressSpace::sweep`]).
    pub(crate) fn free(&mut self, span: Span) {
        let named = self.named.remove(&span.start);
        let updates = named.map_or_else(Vec::new, |named| named.updates);
        match updates.is_empty() {
            true => self.vacate(span),
            false => self.freed.push(Freed { span, updates }),
        }
    }

    /// Gives back the freed ranges whose updates are over, if that `unmaps` what these have mapped.
    pub(crate) fn sweep(&mut self, unmaps: impl Fn(Span) -> bool) {
        let (over, freed) = std::mem::take(&mut self.freed)
            .into_iter()
            .partition::<Vec<_>, _>(|freed| freed.updates.iter().all(PastUpdate::is_over));
        self.freed = freed;
        for freed in over {
            match unmaps(freed.span) {
                true => self.vacate(freed.span),
                false => self.freed.push(freed),
            }
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
            graphics_preemption: 0,
            compute_preemption: 0,
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

    fn wanted(base: u64, size: u64) -> Wanted {
        Wanted {
            base,
            size,
            ..Wanted::default()
        }
    }

    fn between(minimum: u64, maximum: u64, size: u64) -> Wanted {
        Wanted {
            base: 0,
            minimum,
            maximum,
            size,
        }
    }

    const INVALID: Status = Status::INVALID_PARAMETER;

    #[test]
    fn reservations_are_where_they_are_wanted() {
        let mut s = space(0, 1 << 30);
        let large = 1 << 28;
        assert_eq!(s.reserve(wanted(large, RESERVATION)), Ok(large));
        for (what, taken) in [("the same", 0), ("the end", RESERVATION)] {
            let wanted = wanted(large + taken - RESERVATION, 2 * RESERVATION);
            assert_eq!(s.reserve(wanted), Err(INVALID), "{what}");
        }
        assert_eq!(
            s.reserve(wanted(large - RESERVATION, RESERVATION)),
            Ok(large - RESERVATION)
        );
        // Nothing between them; `maximum` is an end.
        let two = between(large - RESERVATION, large + RESERVATION, RESERVATION);
        assert_eq!(s.reserve(two), Err(Status::NO_MEMORY));
        let next = large + RESERVATION;
        assert_eq!(
            s.reserve(between(large, next + RESERVATION, RESERVATION)),
            Ok(next)
        );
        assert_eq!(s.reserve(between(large, large, RESERVATION)), Err(INVALID));
        for bad in [
            wanted(0, 0),
            wanted(0, PAGE),
            wanted(PAGE, RESERVATION),
            wanted(1 << 30, RESERVATION),
            wanted((1 << 30) - RESERVATION, 2 * RESERVATION),
            wanted(u64::MAX - RESERVATION + 1, RESERVATION),
            between(PAGE, 0, RESERVATION),
            between(0, large + PAGE, RESERVATION),
            between(0, 0, 1 << 30),
        ] {
            assert_eq!(s.reserve(bad), Err(INVALID), "{bad:?}");
        }
        // What is ignored need not be aligned.
        let odd = Wanted {
            minimum: 1,
            maximum: 1,
            ..wanted(2 * large, RESERVATION)
        };
        assert_eq!(s.reserve(odd), Ok(2 * large));
    }

    #[test]
    fn clients_map_in_what_is_theirs_or_free() {
        let mut s = space(0, 1 << 30);
        let own = s.take(PAGE).unwrap();
        let base = s.reserve(wanted(0, RESERVATION)).unwrap();
        let at = |s: &mut AddressSpace, va, size| s.place(wanted(va, size), 7).map(|(_, new)| new);
        assert_eq!(at(&mut s, base + PAGE, PAGE), Ok(false));
        assert_eq!(at(&mut s, base, RESERVATION), Ok(false));
        assert_eq!(at(&mut s, base, RESERVATION + PAGE), Err(INVALID));
        assert_eq!(at(&mut s, base - PAGE, 2 * PAGE), Err(INVALID));
        assert_eq!(at(&mut s, own, PAGE), Err(INVALID));
        let free = base + RESERVATION;
        assert_eq!(at(&mut s, free, 4 * PAGE), Ok(true));
        assert_eq!(at(&mut s, free + PAGE, PAGE), Ok(false));
        assert_eq!(s.owned(7), [Span::new(free, free + 4 * PAGE)]);
        assert_eq!(s.reservation(free, PAGE), Err(INVALID));
        assert!(s.reservation(base, RESERVATION).is_ok());
        assert_eq!(s.reservation(base, 0), Err(INVALID));
        assert_eq!(s.reservation(base + 1, PAGE), Err(INVALID));
        // It is freed as it was got, and once.
        assert_eq!(s.named(free, PAGE), Err(INVALID));
        assert_eq!(s.named(own, PAGE), Err(INVALID));
        let span = s.named(free, 4 * PAGE).unwrap();
        s.free(span);
        assert_eq!(s.named(free, 4 * PAGE), Err(INVALID));
        assert_eq!(s.owned(7), []);
        assert_eq!(at(&mut s, free, PAGE), Ok(true));
    }

    #[test]
    fn a_reservation_has_its_number_alone() {
        let mut s = space(0, 1 << 30);
        let base = s.reserve(wanted(0, RESERVATION)).unwrap();
        let number = s.reservation(base, PAGE);
        let span = s.named(base, RESERVATION).unwrap();
        s.free(span);
        assert_eq!(s.reservation(base, PAGE), Err(INVALID));
        assert_eq!(s.reserve(wanted(base, RESERVATION)), Ok(base));
        assert_ne!(s.reservation(base, PAGE), number);
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

        /// Clients' ranges and the library's do not overlap, whoever chooses, and come back.
        #[test]
        fn clients_ranges_are_apart(operations in prop::collection::vec(
            (0_u8..4, 0_u64..64, 1_u64..40, any::<prop::sample::Index>()), 1..200,
        )) {
            let (start, end) = (1 << 20, 1 << 25);
            let mut s = space(start, end);
            // With the bytes that are taken, and whether a client has them.
            let mut live: Vec<(u64, u64, bool)> = Vec::new();
            for (kind, at, units, index) in operations {
                let got = match kind {
                    0 => s.take(units * PAGE).map(|va| (va, units * PAGE + PAGE, false)),
                    1 => {
                        let size = units * RESERVATION;
                        let base = if at % 2 == 0 { 0 } else { start + at * RESERVATION };
                        s.reserve(wanted(base, size)).map(|va| (va, size, true))
                    }
                    2 => {
                        let base = if at % 2 == 0 { 0 } else { start + at * 5 * PAGE };
                        match s.place(wanted(base, units * PAGE), 1) {
                            Ok((span, true)) => Ok((span.start, span.len(), true)),
                            Ok((span, false)) => {
                                let inside = live.iter().any(|(va, size, named)| {
                                    *named && *va <= span.start && span.end <= va + size
                                });
                                prop_assert!(inside);
                                continue;
                            }
                            Err(status) => Err(status),
                        }
                    }
                    _ if live.is_empty() => continue,
                    _ => {
                        let (va, size, named) = live.swap_remove(index.index(live.len()));
                        if named {
                            let span = s.named(va, size);
                            prop_assert!(span.is_ok());
                            s.free(span.unwrap());
                        } else {
                            s.give_back(va, size - PAGE);
                        }
                        continue;
                    }
                };
                if let Ok((va, size, named)) = got {
                    prop_assert!(va >= start && va + size <= end && va % PAGE == 0);
                    for (other, length, _) in &live {
                        prop_assert!(va + size <= *other || other + length <= va);
                    }
                    live.push((va, size, named));
                }
            }
            for span in s.owned(1) {
                s.free(span);
            }
            live.retain(|(va, size, named)| !named || s.named(*va, *size).is_ok());
            for (va, size, named) in live {
                if named {
                    s.free(Span::new(va, va + size));
                } else {
                    s.give_back(va, size - PAGE);
                }
            }
            prop_assert!(s.taken.is_empty() && s.named.is_empty());
        }
    }
}
