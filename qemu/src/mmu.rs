// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Translation: from an address that a command or program names to a place in memory (manual
//! section 5).
//!
//! In the system's space an address is GPU-physical: the VRAM window is VRAM, the GART window goes
//! through the GART's table. In a process' space it is virtual and goes through four levels of page
//! tables, and, where these lead to the GART window, through the GART's table as well. What was
//! found is kept in the engine's [`Tlb`], each of the two for itself, and the entries on the way to
//! it in its [`WalkCache`].

use skua_spec::address::{BusAddr, GpuPhys, GpuVa, PAGE_SHIFT, VA_BITS};
use skua_spec::fault::{Access, Reason};
use skua_spec::mmu::{index, Entry, PageSize, Target, ROOT_LEVEL};
use skua_spec::number::Asid;
use skua_spec::status::Counter;
use skua_spec::ticks;
use vm_memory::VolatileSlice;

use crate::fault::Fault;
use crate::gart;
use crate::memory::{Memory, Place};
use crate::tlb::{self, Start, Tlb};
use crate::vram;
use crate::walk_cache::WalkCache;

/// What addresses of a command mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// GPU-physical addresses: commands in the ring.
    System,
    /// Virtual addresses: commands in a buffer, programs.
    Process {
        /// Tag of the translations.
        asid: Asid,
        /// The context's entry for level 3.
        root: Entry,
    },
}

impl Space {
    /// The tag of the space's translations.
    pub const fn asid(self) -> Asid {
        match self {
            Self::System => Asid::SYSTEM,
            Self::Process { asid, .. } => asid,
        }
    }
}

/// Whether an access needs the write bit.
pub const fn writes(access: Access) -> bool {
    matches!(access, Access::Write | Access::Atomic)
}

/// What an address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Where the byte lies.
    pub place: Place,
    /// Bytes from there on that the same translation covers, at least 1.
    pub bytes: u64,
    /// Bytes before it that the same translation covers.
    pub before: u64,
}

/// A page that an address is in.
struct Page {
    start: Start,
    /// Bytes from there to the address.
    inside: u64,
    /// log2 of its size.
    shift: u32,
}

impl Page {
    /// Bytes from the address to the page's end.
    fn bytes(&self) -> u64 {
        (1 << self.shift) - self.inside
    }
}

/// An engine's translation hardware.
#[derive(Debug, Default)]
pub struct Mmu {
    /// Translations of both spaces.
    pub tlb: Tlb,
    /// Tables on the way to those of processes.
    walks: WalkCache,
}

impl Mmu {
    /// Drops what is kept of one address space, or of all (`None`).
    pub fn flush(&mut self, asid: Option<Asid>) {
        self.tlb.flush(asid);
        self.walks.flush(asid);
    }

    /// Translates `address` for an access of the kind `access`.
    ///
    /// # Errors
    ///
    /// The fault, in the order of manual section 5: range, walk, write bit, target.
    pub fn translate(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        access: Access,
    ) -> Result<Translation, Fault> {
        if space == Space::System {
            let window = memory.vram().window();
            if window.contains(&address) {
                return Ok(Translation {
                    place: Place::Vram(address - window.start),
                    bytes: window.end - address,
                    before: address - window.start,
                });
            }
        }
        let page = self.look_up(memory, space, address, access)?;
        let place = match page.start {
            Start::Memory(place) => place,
            Start::Gart(start) => {
                // What it faults at is the virtual address.
                let of_process = |fault: Fault| Fault { address, ..fault };
                let here = start + page.inside;
                let behind = self
                    .look_up(memory, Space::System, here, access)
                    .map_err(of_process)?;
                return match behind.start {
                    Start::Memory(place) => Ok(Translation {
                        place: place.add(behind.inside),
                        bytes: behind.bytes(),
                        before: behind.inside,
                    }),
                    // The GART's entries name system memory.
                    Start::Gart(_) => Err(Fault::access(Reason::BadEntry, access, address)),
                };
            }
        };
        Ok(Translation {
            place: place.add(page.inside),
            bytes: page.bytes(),
            before: page.inside,
        })
    }

    /// The page that an address of `space` outside VRAM is in, as its own tables, or the GART's,
    /// say.
    fn look_up(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        access: Access,
    ) -> Result<Page, Fault> {
        let asid = space.asid();
        let (entry, shift) = match self.tlb.find(asid, address) {
            Some(found) => {
                memory.tally().add(Counter::TlbHit, 1);
                found
            }
            None => {
                memory.tally().add(Counter::TlbMiss, 1);
                memory.tally().spend(ticks::TLB_MISS);
                let (page, size) = match space {
                    Space::System => look_up_gart(memory, address, access)?,
                    Space::Process { root, .. } => {
                        self.walk(memory, asid, root, address, access)?
                    }
                };
                let entry = target(memory, page, address, access)?;
                if memory.is_kept() {
                    self.tlb.insert(asid, address, size, entry);
                }
                (entry, size.shift())
            }
        };
        if writes(access) && !entry.writable {
            return Err(Fault::access(Reason::ReadOnly, access, address));
        }
        if entry.dummy {
            memory.tally().add(Counter::GartDummy, 1);
        }
        Ok(Page {
            start: entry.start,
            inside: address & ((1 << shift) - 1),
            shift,
        })
    }

    /// The entry of the page tables for a virtual `address`.
    fn walk(
        &mut self,
        memory: &Memory<'_>,
        asid: Asid,
        root: Entry,
        address: u64,
        access: Access,
    ) -> Result<(Entry, PageSize), Fault> {
        if address >= 1 << VA_BITS {
            return Err(Fault::access(Reason::AddressRange, access, address));
        }
        let (mut table, mut level) = match self.walks.find(asid, address) {
            Some((entry, level)) => {
                memory.tally().add(Counter::WalkHit, 1);
                (entry, level - 1)
            }
            None => (root, ROOT_LEVEL),
        };
        loop {
            let slot = index(GpuVa(address), level) as u64 * 8;
            let entry = place_of(memory, table, true)
                .and_then(|place| memory.read_u64(place.add(slot)).ok())
                .map(Entry)
                .ok_or(Fault::access(Reason::BusError, access, address))?;
            let fault = |reason| Fault::access(reason, access, address).with_detail(level);
            if !entry.is_valid() {
                return Err(fault(Reason::NotPresent));
            }
            if entry.is_malformed(level) {
                return Err(fault(Reason::BadEntry));
            }
            match (level, entry.is_large()) {
                (0, false) => return Ok((entry, PageSize::Size4K)),
                (0, true) => return Ok((entry, PageSize::Size64K)),
                (1, true) => return Ok((entry, PageSize::Size2M)),
                _ => {}
            }
            memory.tally().add(Counter::WalkMiss, 1);
            memory.tally().spend(ticks::WALK);
            if memory.is_kept() {
                self.walks.insert(asid, address, level, entry);
            }
            (table, level) = (entry, level - 1);
        }
    }

    /// The memory at `address`, 1 to `bytes` long, and where it lies. It does not count the access.
    ///
    /// # Errors
    ///
    /// As [`Self::translate`], and [`Reason::BusError`].
    pub fn slice<'m>(
        &mut self,
        memory: &Memory<'m>,
        space: Space,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<(VolatileSlice<'m>, Place), Fault> {
        let found = self.translate(memory, space, address, access)?;
        let slice = memory
            .slice(found.place, bytes.min(found.bytes), writes(access))
            .map_err(|_| Fault::access(Reason::BusError, access, address))?;
        Ok((slice, found.place))
    }

    /// Reads `buffer.len()` bytes from `address` on.
    ///
    /// # Errors
    ///
    /// As [`Self::slice`], with the first address that could not be read.
    pub fn read(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        buffer: &mut [u8],
        access: Access,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            // The address is checked by translation: where the sum wraps, it is in no window and
            // beyond 48 bits.
            let here = address.wrapping_add(done as u64);
            let (slice, place) = self.slice(memory, space, here, rest.len() as u64, access)?;
            let count = slice.copy_to(rest);
            memory.charge_read(place, count as u64);
            done += count;
        }
        Ok(())
    }

    /// Writes `bytes` from `address` on.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn write(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let done = (bytes.len() - rest.len()) as u64;
            let (here, most) = (address.wrapping_add(done), rest.len() as u64);
            let (slice, place) = self.slice(memory, space, here, most, Access::Write)?;
            slice.copy_from(rest);
            memory.charge_write(place, slice.len() as u64);
            rest = &rest[slice.len()..];
        }
        Ok(())
    }
}

/// The entry of the GART for a GPU-physical `address` outside VRAM.
fn look_up_gart(
    memory: &Memory<'_>,
    address: u64,
    access: Access,
) -> Result<(Entry, PageSize), Fault> {
    let inside =
        gart::inside(address).ok_or(Fault::access(Reason::AddressRange, access, address))?;
    let table = memory.gart();
    let page = inside >> PAGE_SHIFT;
    if page >= u64::from(table.pages) {
        return Err(Fault::access(Reason::NotPresent, access, address));
    }
    let entry = memory
        .read_u64(Place::System {
            address: table.address.wrapping_add(page * 8),
            snoop: true,
        })
        .map(Entry)
        .map_err(|_| Fault::access(Reason::BusError, access, address))?;
    if !entry.is_valid() {
        return Err(Fault::access(Reason::NotPresent, access, address));
    }
    if entry.is_malformed_for_gart() {
        return Err(Fault::access(Reason::BadEntry, access, address));
    }
    Ok((entry, PageSize::Size4K))
}

/// What the TLB keeps of a page's entry.
fn target(
    memory: &Memory<'_>,
    page: Entry,
    address: u64,
    access: Access,
) -> Result<tlb::Entry, Fault> {
    if writes(access) && !page.is_writable() {
        return Err(Fault::access(Reason::ReadOnly, access, address));
    }
    let start = match page.target() {
        Target::Vram(GpuPhys(start)) if gart::inside(start).is_some() => Some(Start::Gart(start)),
        _ => place_of(memory, page, page.is_snooped()).map(Start::Memory),
    };
    Ok(tlb::Entry {
        start: start.ok_or(Fault::access(Reason::BusError, access, address))?,
        writable: page.is_writable(),
        // No other entry has the bit.
        dummy: page.is_dummy(),
    })
}

/// Where an entry points; `None` if that is not in VRAM and not in system memory. `snoop` says how
/// system memory is accessed: a page's entry tells, tables are always coherent.
///
/// Windows and pages are aligned alike, so that a page which starts in VRAM ends there.
fn place_of(memory: &Memory<'_>, entry: Entry, snoop: bool) -> Option<Place> {
    match entry.target() {
        Target::System(BusAddr(address)) => Some(Place::System { address, snoop }),
        Target::Vram(GpuPhys(address)) => memory
            .vram()
            .window()
            .contains(&address)
            .then(|| Place::Vram(address - vram::BASE)),
    }
}
