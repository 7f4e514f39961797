// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Translated pages for one step.
//!
//! Programs touch few pages again and again. `Windows` keeps the host memory behind the last ones
//! as long as the step's [`Memory`] lasts, in front of the TLB. What it keeps is in the TLB as
//! well, so that it makes no difference to what is counted where a step ends.

use skua_spec::address::{PAGE_SHIFT, PAGE_SIZE};
use skua_spec::fault::{Access, Reason};
use skua_spec::status::Counter;
use skua_spec::ticks;
use vm_memory::VolatileSlice;

use crate::fault::Fault;
use crate::memory::{Memory, Place};
use crate::mmu::{writes, Mmu, Space};
use crate::program::cache::Decoded;

/// Pages that a step keeps translated, each in the place that its number has.
const SLOTS: usize = 64;

/// Pages that a step opens at most, but for those of its last instruction: each may be a walk
/// through four tables, and who takes memory away waits for the step's end.
const MOST: u32 = 512;

/// Number of no page.
const NONE: u64 = u64::MAX;

/// A page that was translated in this step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'m> {
    /// Number of the page, its address divided by the page size, if loads may use it.
    loads: u64,
    /// The same, if stores may use it.
    stores: u64,
    /// Lookups of the TLB that finding it here stands for: none for the system's window of VRAM,
    /// two for a process' page in the GART window.
    hits: u64,
    /// The bytes of the page.
    slice: VolatileSlice<'m>,
    /// Where the page lies, in VRAM or on the bus, for the counters.
    place: Place,
}

impl<'m> Window<'m> {
    /// A slot in which no page is.
    fn closed() -> Self {
        Self {
            loads: NONE,
            stores: NONE,
            hits: 0,
            slice: VolatileSlice::from(<&mut [u8]>::default()),
            place: Place::Vram(0),
        }
    }

    /// All of the page.
    pub(crate) fn slice(&self) -> &VolatileSlice<'m> {
        &self.slice
    }

    /// Counts what an access moved in the page, and its time.
    #[inline]
    pub(crate) fn count(&self, memory: &Memory<'_>, access: Access, bytes: u64) {
        match access {
            Access::Write => memory.charge_write(self.place, bytes),
            Access::Atomic => {
                memory.charge_read(self.place, bytes);
                memory.count_write(self.place, bytes);
            }
            _ => memory.charge_read(self.place, bytes),
        }
    }
}

/// The pages of one step, and what is needed to find more.
pub(crate) struct Windows<'m> {
    /// By the low bits of the page's number.
    slots: [Window<'m>; SLOTS],
    /// Pages opened in this step.
    opened: u32,
    /// For pages that are not open.
    memory: Memory<'m>,
    /// Translates the addresses of pages that are not open.
    mmu: &'m mut Mmu,
    /// The packet's, or the system's.
    space: Space,
}

impl<'m> Windows<'m> {
    pub(crate) fn new(memory: &'m Memory<'m>, mmu: &'m mut Mmu, space: Space) -> Self {
        Self {
            slots: [Window::closed(); SLOTS],
            opened: 0,
            memory: *memory,
            mmu,
            space,
        }
    }

    /// The same where the step has opened so many pages before.
    pub(crate) const fn after(mut self, opened: u32) -> Self {
        self.opened = opened;
        self
    }

    /// Pages that the step has opened.
    pub(crate) const fn opened(&self) -> u32 {
        self.opened
    }

    /// Memory, to count in.
    pub(crate) fn memory(&self) -> &Memory<'m> {
        &self.memory
    }

    /// Whether the step is to end.
    pub(crate) const fn is_exhausted(&self) -> bool {
        self.opened >= MOST
    }

    /// The page of `address`, for an access.
    ///
    /// # Errors
    ///
    /// As [`Mmu::slice`].
    #[inline]
    pub(crate) fn find(&mut self, address: u64, access: Access) -> Result<&Window<'m>, Fault> {
        let page = address >> PAGE_SHIFT;
        // CAST: below SLOTS.
        let slot = (page % SLOTS as u64) as usize;
        let window = &self.slots[slot];
        let open = if writes(access) {
            window.stores
        } else {
            window.loads
        };
        if open == page {
            self.memory.tally().add(Counter::TlbHit, window.hits);
        } else {
            self.slots[slot] = self.open(address, access)?;
        }
        Ok(&self.slots[slot])
    }

    /// Lookups of the TLB that were counted, and reads through dummies.
    fn looked_up(&self) -> (u64, u64) {
        let count = |counter| self.memory.tally().get(counter);
        let lookups = count(Counter::TlbHit).wrapping_add(count(Counter::TlbMiss));
        (lookups, count(Counter::GartDummy))
    }

    #[cold]
    fn open(&mut self, address: u64, access: Access) -> Result<Window<'m>, Fault> {
        let page = address >> PAGE_SHIFT;
        let displaced = self.mmu.tlb.displaced();
        let (hits, dummies) = self.looked_up();
        let found = self
            .mmu
            .translate(&self.memory, self.space, address, access)?;
        let (hits, dummies) = (self.looked_up().0 - hits, self.looked_up().1 - dummies);
        self.opened += 1;
        // Each read that leads through a dummy is counted.
        let mut kept = dummies == 0;
        if self.mmu.tlb.displaced() != displaced {
            // What the TLB has lost may be here. Of two translations it may be the first.
            self.slots = [Window::closed(); SLOTS];
            kept &= hits < 2;
        }
        let inside = address & (PAGE_SIZE - 1);
        // A page is mapped whole: its start is there if a byte of it is.
        let place = found.place.sub(inside);
        let fault = Fault::access(Reason::BusError, access, address);
        let slice = self
            .memory
            .slice(place, PAGE_SIZE, writes(access))
            .map_err(|_| fault)?;
        // CAST: below SLOTS.
        let old = &self.slots[(page % SLOTS as u64) as usize];
        let (written, read) = (writes(access), !writes(access));
        let open = if kept { page } else { NONE };
        Ok(Window {
            loads: if read || old.loads == page {
                open
            } else {
                NONE
            },
            stores: if written || old.stores == page {
                open
            } else {
                NONE
            },
            hits,
            slice,
            place,
        })
    }
}

/// What a wave needs from its surroundings to run for a while.
pub(crate) struct Surroundings<'a, 'm> {
    /// The instructions of the program, by program counter.
    pub(crate) program: &'a [Decoded],
    /// The way to memory that has GPU addresses.
    pub(crate) windows: Windows<'m>,
    /// Shared memory of the wave's group, from its address 0 on.
    pub(crate) shared: &'a mut [u8],
    /// Arguments that the dispatch gave.
    pub(crate) arguments: &'a [u32],
    /// Groups of the dispatch.
    pub(crate) groups: [u32; 3],
    /// Threads of a group.
    pub(crate) threads: [u32; 3],
    /// Ticks of the step.
    pub(crate) budget: u64,
}

impl Surroundings<'_, '_> {
    /// How many instructions may be issued in this step when `issued` were: 0 ends it.
    #[inline]
    pub(crate) fn left(&self, issued: u64) -> u64 {
        if self.windows.is_exhausted() {
            return 0;
        }
        let accesses = self.windows.memory().tally().time();
        self.budget
            .saturating_sub(issued * ticks::INSTRUCTION + accesses)
    }
}
