// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The status page and the fault ring in it (manual section 3).
//!
//! Every field is written whole with release ordering: who reads a fence's value with acquire
//! ordering sees all that came before it. An engine's block is written by the engine's thread
//! alone; the device block by whoever has the fault ring's lock, and the counters by the thread of
//! the registers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use skua_spec::status::{self, Counter, FAULTS_DROPPED, FAULT_PUT, FAULT_RECORDS, SIZE};
use vm_memory::{VolatileMemory, VolatileSlice};

use crate::bus::Bus;
use crate::counters::Counters;
use crate::lie::Lies;

/// The status page: where it is, if the driver has enabled it.
#[derive(Debug)]
pub struct StatusPage {
    /// Bus address; `None` while it is switched off.
    address: RwLock<Option<u64>>,
    /// What is published may be bent by them.
    lies: Arc<Lies>,
}

/// The page's memory, for a few writes.
#[derive(Debug)]
pub struct Page<'a> {
    /// Its [`SIZE`] bytes in the guest's memory, which stays mapped as long.
    slice: VolatileSlice<'a>,
    /// What is said instead of what is written, if something is to be.
    lies: &'a Lies,
}

impl Page<'_> {
    /// Writes four bytes at `offset`, a multiple of 4.
    pub fn write_u32(&self, offset: u64, value: u32) {
        if let Some(value) = self.lies.field(offset, value.into()) {
            // CAST: a lie about four bytes has as many.
            self.tell_u32(offset, value as u32);
        }
    }

    /// Writes eight bytes at `offset`, a multiple of 8.
    pub fn write_u64(&self, offset: u64, value: u64) {
        if let Some(value) = self.lies.field(offset, value) {
            self.tell_u64(offset, value);
        }
    }

    /// As [`Self::write_u32`], whatever is lied about.
    pub(crate) fn tell_u32(&self, offset: u64, value: u32) {
        if let Ok(slot) = self.slice.get_atomic_ref::<AtomicU32>(offset as usize) {
            slot.store(value.to_le(), Ordering::Release);
        }
    }

    /// As [`Self::write_u64`], whatever is lied about.
    pub(crate) fn tell_u64(&self, offset: u64, value: u64) {
        if let Ok(slot) = self.slice.get_atomic_ref::<AtomicU64>(offset as usize) {
            slot.store(value.to_le(), Ordering::Release);
        }
    }
}

impl StatusPage {
    /// A page that is disabled, in which `lies` are told.
    pub fn new(lies: Arc<Lies>) -> Self {
        Self {
            address: RwLock::default(),
            lies,
        }
    }

    /// Enables the page at a bus address, a multiple of 4096, or disables it. When it returns,
    /// nothing is written to the old page any more.
    pub fn set(&self, address: Option<u64>) {
        *self.address.write().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// Runs `f` on the page. `None` if it is disabled or nothing answers there, which is counted.
    ///
    /// The caller holds no [`crate::bus::BusGuard`].
    pub fn with<T>(
        &self,
        bus: &Bus,
        counters: &Counters,
        f: impl FnOnce(Page<'_>) -> T,
    ) -> Option<T> {
        let address = self.address.read().unwrap_or_else(PoisonError::into_inner);
        let address = (*address)?;
        let bus = bus.enter();
        let slice = bus
            .slice(address, SIZE, true)
            .filter(|slice| slice.len() as u64 == SIZE);
        let Some(slice) = slice else {
            counters.add(Counter::BusError, 1);
            tracing::debug!(address, "nothing answers at the status page");
            return None;
        };
        let lies = &self.lies;
        Some(f(Page { slice, lies }))
    }
}

#[derive(Debug, Default)]
struct Ring {
    /// Fault records ever written, modulo 2^32.
    put: u32,
    /// Records that found no place.
    dropped: u32,
    /// FAULT_GET: records that the driver has consumed.
    get: u32,
}

/// The ring of fault records.
#[derive(Debug, Default)]
pub struct FaultRing {
    /// Locked over the write of a record, so that they come in order.
    ring: Mutex<Ring>,
}

impl FaultRing {
    /// Notes how many records the driver has consumed.
    pub fn consumed(&self, get: u32) {
        self.lock().get = get;
    }

    /// Forgets everything: an adapter reset.
    pub fn reset(&self) {
        *self.lock() = Ring::default();
    }

    /// Writes the record with the `words` of its number, after which `count` more are said to be
    /// there: one, if that is true. Counts it as dropped where there is no room or no page.
    pub(crate) fn push(
        &self,
        status: &StatusPage,
        bus: &Bus,
        counters: &Counters,
        count: u32,
        words: impl Fn(u32) -> [u64; 8],
    ) {
        let mut ring = self.lock();
        let number = ring.put;
        // A `get` beyond `put` is the driver's mistake and means a full ring.
        let room = number.wrapping_sub(ring.get) < FAULT_RECORDS;
        let written = room
            && status
                .with(bus, counters, |page| {
                    for (at, word) in (status::fault(number)..).step_by(8).zip(words(number)) {
                        page.write_u64(at, word);
                    }
                    page.write_u32(FAULT_PUT, number.wrapping_add(count));
                })
                .is_some();
        if written {
            ring.put = number.wrapping_add(count);
        } else {
            ring.dropped = ring.dropped.wrapping_add(1);
            let dropped = ring.dropped;
            status.with(bus, counters, |page| {
                page.write_u32(FAULTS_DROPPED, dropped)
            });
        }
    }

    /// Writes the counts, for a page that was just enabled.
    pub fn publish(&self, status: &StatusPage, bus: &Bus, counters: &Counters) {
        let ring = self.lock();
        status.with(bus, counters, |page| {
            page.write_u32(FAULT_PUT, ring.put);
            page.write_u32(FAULTS_DROPPED, ring.dropped);
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
