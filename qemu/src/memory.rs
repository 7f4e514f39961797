// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory as an engine sees it behind translation: VRAM and the bus, for one step.

use std::sync::atomic::{AtomicU64, Ordering};

use skua_spec::status::Counter;
use skua_spec::ticks;
use vm_memory::{VolatileMemory, VolatileSlice};

use crate::bus::BusGuard;
use crate::counters::Tally;
use crate::fault::Fault;
use crate::gart;
use crate::vram::VramGuard;

/// Where a byte lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In VRAM, at this offset.
    Vram(u64),
    /// A byte of system memory, which is reached over the bus.
    System {
        /// Bus address.
        address: u64,
        /// Whether an access snoops the CPU's caches, as the entry that was found says.
        snoop: bool,
    },
}

impl Place {
    /// The place `bytes` before.
    pub const fn sub(self, bytes: u64) -> Self {
        self.add(bytes.wrapping_neg())
    }

    /// The place `bytes` further on.
    pub const fn add(self, bytes: u64) -> Self {
        match self {
            Self::Vram(a) => Self::Vram(a.wrapping_add(bytes)),
            Self::System { address, snoop } => Self::System {
                address: address.wrapping_add(bytes),
                snoop,
            },
        }
    }
}

/// Nothing answers at the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

/// VRAM, the bus and the GART's table for one step; see [`crate::bus::Bus`].
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// All of it; the window at [`crate::vram::BASE`] is this. Pages stay where they are while it
    /// is held.
    vram: &'a VramGuard<'a>,
    /// A copy: what is latched meanwhile counts from the next step.
    gart: gart::Table,
    /// Mappings stay as they are while it is held.
    bus: &'a BusGuard<'a>,
    /// Counts of the step's accesses.
    tally: &'a Tally,
    /// Whether what is found of translations is kept.
    kept: bool,
}

impl<'a> Memory<'a> {
    /// Memory whose accesses are counted in `tally`.
    pub const fn new(
        vram: &'a VramGuard<'a>,
        gart: gart::Table,
        bus: &'a BusGuard<'a>,
        tally: &'a Tally,
    ) -> Self {
        Self {
            vram,
            gart,
            bus,
            tally,
            kept: true,
        }
    }

    /// Does `f`. If it does `again` what was done before, and because of how work was cut into
    /// steps, no cache keeps what it finds, and it counts only where it fails now.
    #[inline(always)]
    pub fn look<T>(
        &self,
        again: bool,
        f: impl FnOnce(&Memory<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if !again {
            return f(self);
        }
        let tally = Tally::default();
        let result = f(&Memory {
            tally: &tally,
            kept: false,
            ..*self
        });
        if result.is_err() {
            tally.move_to(self.tally);
        }
        result
    }

    /// The same memory, but no cache keeps what is found by it.
    pub fn in_passing(&self) -> Self {
        Self {
            kept: false,
            ..*self
        }
    }

    /// Whether caches are to keep the translations that are found.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Where accesses are counted.
    pub fn tally(&self) -> &'a Tally {
        self.tally
    }

    /// Where the GART's table is.
    pub fn gart(&self) -> gart::Table {
        self.gart
    }

    /// The guard of VRAM, which is accessed by offsets into it.
    pub fn vram(&self) -> &'a VramGuard<'a> {
        self.vram
    }

    /// The memory at `place`, 1 to `bytes` long. Counts a bus error, but not the access.
    pub fn slice(
        &self,
        place: Place,
        bytes: u64,
        write: bool,
    ) -> Result<VolatileSlice<'a>, NoAnswer> {
        match place {
            Place::Vram(offset) => self.vram.slice(offset, bytes).ok_or(NoAnswer),
            Place::System { address, .. } => {
                self.bus.slice(address, bytes, write).ok_or_else(|| {
                    self.tally.add(Counter::BusError, 1);
                    NoAnswer
                })
            }
        }
    }

    /// Counts `bytes` bytes read from `place` in one access, and the time that it takes.
    pub fn charge_read(&self, place: Place, bytes: u64) {
        self.count_read(place, bytes);
        self.charge(place, bytes);
    }

    /// As [`Self::charge_read`], for a write.
    pub fn charge_write(&self, place: Place, bytes: u64) {
        self.count_write(place, bytes);
        self.charge(place, bytes);
    }

    /// The time that an access takes more than one to VRAM, which is in what asks for it.
    pub fn charge(&self, place: Place, bytes: u64) {
        if matches!(place, Place::System { .. }) {
            self.tally
                .spend(bytes.div_ceil(ticks::SYSTEM_BYTES) * ticks::SYSTEM);
        }
    }

    /// Counts `bytes` bytes read from `place`.
    pub fn count_read(&self, place: Place, bytes: u64) {
        let counter = match place {
            Place::Vram(_) => Counter::VramRead,
            Place::System { .. } => Counter::SystemRead,
        };
        self.tally.add(counter, bytes);
    }

    /// Counts `bytes` bytes written to `place`.
    pub fn count_write(&self, place: Place, bytes: u64) {
        let counter = match place {
            Place::Vram(_) => Counter::VramWrite,
            Place::System { .. } => Counter::SystemWrite,
        };
        self.tally.add(counter, bytes);
    }

    /// The eight bytes at `place`, a multiple of 8, as an atomic.
    pub fn atomic_u64(&self, place: Place, write: bool) -> Result<AtomicU64Ref<'_>, NoAnswer> {
        let slice = self.slice(place, 8, write)?;
        // Everything is mapped in whole pages: a part of eight aligned bytes is not possible.
        if slice.len() < 8 {
            return Err(NoAnswer);
        }
        Ok(AtomicU64Ref(slice))
    }

    /// Reads the little-endian 64-bit value at `place`, a multiple of 8, whole.
    pub fn read_u64(&self, place: Place) -> Result<u64, NoAnswer> {
        let value = self
            .atomic_u64(place, false)?
            .with(|a| a.load(Ordering::Acquire))?;
        self.charge_read(place, 8);
        Ok(u64::from_le(value))
    }

    /// Writes the little-endian 64-bit value at `place`, a multiple of 8, whole, after all that was
    /// written before.
    pub fn write_u64(&self, place: Place, value: u64) -> Result<(), NoAnswer> {
        let slot = self.atomic_u64(place, true)?;
        slot.with(|a| a.store(value.to_le(), Ordering::Release))?;
        self.charge_write(place, 8);
        Ok(())
    }

    /// Adds to the little-endian 64-bit value at `place`, a multiple of 8. It takes no time.
    pub fn add_u64(&self, place: Place, amount: u64) -> Result<(), NoAnswer> {
        let slot = self.atomic_u64(place, true)?;
        slot.with(|a| {
            // The error type is the closure's own: the update cannot fail.
            let _ = a.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
                Some(u64::from_le(old).wrapping_add(amount).to_le())
            });
        })?;
        self.count_read(place, 8);
        self.count_write(place, 8);
        Ok(())
    }
}

/// Eight aligned bytes of shared memory.
#[derive(Debug)]
pub struct AtomicU64Ref<'a>(VolatileSlice<'a>);

impl AtomicU64Ref<'_> {
    /// Runs `f` on the value.
    pub fn with<T>(&self, f: impl FnOnce(&AtomicU64) -> T) -> Result<T, NoAnswer> {
        self.0
            .get_atomic_ref::<AtomicU64>(0)
            .map(f)
            .map_err(|_| NoAnswer)
    }
}
