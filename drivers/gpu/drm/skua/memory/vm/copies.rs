// SPDX-License-Identifier: GPL-2.0

//! Operations of a bind that copy what is mapped elsewhere: they are looked up when the bind is
//! accepted, with the map locked, and are then as any others.
//!
//! ```text
//! steps:  map A,  copy B to C,  unmap D,  copy C to E ──▶ operations: map, unmap
//!           │          ▲ │                     ▲
//!           ▼          │ ▼                     │
//!         what is mapped, after each step, in the ranges that are copied
//! ```

use crate::{
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo,
        installed::Mapping,
        vm::bind::Operation, //
    },
    policy::interval_map::{
        IntervalMap,
        Slice,
        Span,
        MAP_NODES,
        UNMAP_NODES, //
    }, //
};
use kernel::prelude::*;

/// Most mappings that the copies of a bind look at, and most that they make.
const MAX_COPIED: u32 = 4096;

/// What a bind does to a range of addresses, before its copies are looked up.
pub(super) enum Step {
    /// What it does is known.
    Do(Operation),
    /// Maps in the second range what is mapped in the first, which is as long.
    Copy(Span, Span),
}

/// What `steps` do in order, on an address space whose map is `map`. `E2BIG` if copies come to
/// more than [`MAX_COPIED`] mappings; `ENOMEM`.
pub(super) fn look_up(
    map: &IntervalMap<KernelHeap, Mapping>,
    steps: KVVec<Step>,
) -> Result<KVVec<Operation>> {
    let mut ranges = Ranges::of(map, &steps)?;
    let mut operations = KVVec::with_capacity(steps.len(), client_flags())?;
    for step in steps {
        match step {
            Step::Do(operation) => {
                ranges.change(&operation)?;
                operations.push(operation, client_flags())?;
            }
            Step::Copy(from, to) => {
                for operation in ranges.copies(from, to)? {
                    ranges.change(&operation)?;
                    operations.push(operation, client_flags())?;
                }
            }
        }
    }
    Ok(operations)
}

/// What is mapped in the ranges that copies are from.
struct Ranges {
    /// Also what operations so far have mapped elsewhere. Each mapping is one of the map's as well,
    /// or of an operation's: none is let go of with this.
    mapped: IntervalMap<KernelHeap, Mapping>,
    /// Whether anything is copied.
    are_any: bool,
    /// How many mappings may still be looked at.
    left: u32,
}

impl Ranges {
    /// As `map` has them before the first of `steps`. Errors as of [`look_up`].
    fn of(map: &IntervalMap<KernelHeap, Mapping>, steps: &[Step]) -> Result<Self> {
        let mut ranges = Self {
            mapped: IntervalMap::new(),
            are_any: false,
            left: MAX_COPIED,
        };
        for step in steps {
            if let Step::Copy(from, _) = step {
                ranges.are_any = true;
                for (span, mapping) in parts(map, *from) {
                    count(&mut ranges.left)?;
                    ranges.change(&Operation::Map(span, mapping))?;
                }
            }
        }
        ranges.left = MAX_COPIED;
        Ok(ranges)
    }

    /// An operation is done: what is copied later sees that. `ENOMEM`.
    fn change(&mut self, operation: &Operation) -> Result {
        if !self.are_any {
            return Ok(());
        }
        let mut nodes = self.mapped.prepare(MAP_NODES + UNMAP_NODES)?;
        let unmapped = self.mapped.unmap(&mut nodes, operation.span(), |_| ());
        let mapped = match operation {
            Operation::Map(span, mapping) => self.mapped.map(&mut nodes, *span, mapping.clone()),
            Operation::Unmap(_) => Ok(()),
        };
        self.mapped.release(nodes);
        // The ranges were checked.
        crate::warn_on_once!(unmapped.is_err() || mapped.is_err());
        Ok(())
    }

    /// What maps in `to` what is mapped in `from` now, but for objects that are destroyed.
    fn copies(&mut self, from: Span, to: Span) -> Result<KVVec<Operation>> {
        let mut operations = KVVec::new();
        operations.push(Operation::Unmap(to), client_flags())?;
        for (part, mapping) in parts(&self.mapped, from) {
            count(&mut self.left)?;
            // No overflow: it is in the range, which is as long as the other.
            let start = to.start.saturating_add(part.start - from.start);
            let span = Span::new(start, start.saturating_add(part.len()));
            if !bo::is_destroyed(mapping.bo()) {
                operations.push(Operation::Map(span, mapping), client_flags())?;
            }
        }
        Ok(operations)
    }
}

/// One mapping more, of those that are `left`. `E2BIG` if none is.
fn count(left: &mut u32) -> Result {
    *left = left.checked_sub(1).ok_or(E2BIG)?;
    Ok(())
}

/// What of the mappings of `map` lies in `within`, cut to that.
fn parts(
    map: &IntervalMap<KernelHeap, Mapping>,
    within: Span,
) -> impl Iterator<Item = (Span, Mapping)> + '_ {
    map.iter(within).map(move |(whole, mapping)| {
        let part = Span::new(whole.start.max(within.start), whole.end.min(within.end));
        (part, mapping.slice(part.start - whole.start, part.len()))
    })
}
