// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The translation lookaside buffer of one engine (manual section 5).
//!
//! It keeps a translation until it is flushed or displaced by another one of the same set, however
//! often the tables change meanwhile. Absent translations are not kept; the write bit is.

use skua_spec::mmu::PageSize;
use skua_spec::number::Asid;

use crate::memory::Place;

/// Where a page starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At this byte of VRAM or of system memory: nothing is left to translate.
    Memory(Place),
    /// In the GART window, at this GPU-physical address: the GART's own translation follows.
    Gart(u64),
}

/// A translation of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the page starts.
    pub start: Start,
    /// Whether the page may be written to.
    pub writable: bool,
    /// Whether it shows the dummy page, as nothing is mapped there.
    pub dummy: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    /// Address space of the translation; 0 stands for the GART.
    asid: Asid,
    /// The address without the bits that the bank does not look at.
    number: u64,
    /// What the bank keeps for that address.
    entry: T,
}

/// What is kept for addresses of one size, each with one place that its number has.
#[derive(Debug)]
pub(crate) struct Bank<T> {
    /// log2 of the size.
    shift: u32,
    /// By a hash of number and address space.
    slots: Vec<Option<Slot<T>>>,
}

impl<T: Copy> Bank<T> {
    /// A bank with so many places for addresses of 2^`shift` bytes.
    pub(crate) fn new(shift: u32, slots: usize) -> Self {
        Self {
            shift,
            slots: vec![None; slots],
        }
    }

    fn index(&self, asid: Asid, number: u64) -> usize {
        // CAST: below the number of slots.
        ((number ^ (u64::from(asid.get()) * 0x9e37)) % self.slots.len() as u64) as usize
    }

    /// What is kept for `address`.
    pub(crate) fn find(&self, asid: Asid, address: u64) -> Option<T> {
        let number = address >> self.shift;
        self.slots[self.index(asid, number)]
            .filter(|slot| slot.asid == asid && slot.number == number)
            .map(|slot| slot.entry)
    }

    /// Keeps `entry` for `address`. Whether it took the place of another one.
    pub(crate) fn insert(&mut self, asid: Asid, address: u64, entry: T) -> bool {
        let number = address >> self.shift;
        let index = self.index(asid, number);
        let slot = Slot {
            asid,
            number,
            entry,
        };
        self.slots[index].replace(slot).is_some()
    }

    /// Drops what is kept of one address space, or all (`None`).
    pub(crate) fn flush(&mut self, asid: Option<Asid>) {
        for slot in &mut self.slots {
            if asid.is_none_or(|asid| slot.is_some_and(|slot| slot.asid == asid)) {
                *slot = None;
            }
        }
    }
}

/// Translations by address space and page, never refused for want of room.
#[derive(Debug)]
pub struct Tlb {
    /// A bank for the leaf entries of each size of page.
    banks: [Bank<Entry>; 3],
    /// How often a translation took another one's slot.
    displaced: u64,
}

impl Default for Tlb {
    fn default() -> Self {
        Self {
            banks: [
                Bank::new(PageSize::Size4K.shift(), 1024),
                Bank::new(PageSize::Size64K.shift(), 256),
                Bank::new(PageSize::Size2M.shift(), 64),
            ],
            displaced: 0,
        }
    }
}

impl Tlb {
    /// The translation that covers `address`, and log2 of its page's size.
    pub fn find(&self, asid: Asid, address: u64) -> Option<(Entry, u32)> {
        self.banks
            .iter()
            .find_map(|bank| bank.find(asid, address).map(|entry| (entry, bank.shift)))
    }

    /// Keeps the translation of the page of `size` at `address`.
    pub fn insert(&mut self, asid: Asid, address: u64, size: PageSize, entry: Entry) {
        let bank = match size {
            PageSize::Size4K => &mut self.banks[0],
            PageSize::Size64K => &mut self.banks[1],
            PageSize::Size2M => &mut self.banks[2],
        };
        self.displaced += u64::from(bank.insert(asid, address, entry));
    }

    /// How often a translation has taken another one's slot.
    pub const fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Drops the translations of one address space, or of all (`None`).
    pub fn flush(&mut self, asid: Option<Asid>) {
        self.banks.iter_mut().for_each(|bank| bank.flush(asid));
    }
}
