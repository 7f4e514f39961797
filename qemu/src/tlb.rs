// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The translation lookaside buffer of one engine (manual section 5).
//!
//! It keeps a translation until it is flushed or displaced by another one of the same set, however
//! often the tables change meanwhile. Absent translations are not kept; the write bit is.

use skua_spec::mmu::PageSize;
use skua_spec::number::Asid;

use crate::memory::Place;

/// A translation of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the page starts.
    pub place: Place,
    /// Whether it may be written.
    pub writable: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Whose translation it is; 0 is the GART's.
    asid: Asid,
    /// Number of the page: the address without its offset.
    page: u64,
    /// What the walk found.
    entry: Entry,
}

/// The slots for one size of page, each of which a page finds by its number.
#[derive(Debug)]
struct Bank {
    /// log2 of the page's size.
    shift: u32,
    /// By a hash of page and address space.
    slots: Vec<Option<Slot>>,
}

impl Bank {
    fn new(size: PageSize, slots: usize) -> Self {
        Self {
            shift: size.shift(),
            slots: vec![None; slots],
        }
    }

    fn index(&self, asid: Asid, page: u64) -> usize {
        // CAST: below the number of slots.
        ((page ^ (u64::from(asid.get()) * 0x9e37)) % self.slots.len() as u64) as usize
    }
}

/// Translations by address space and page, never refused for want of room.
#[derive(Debug)]
pub struct Tlb {
    /// One for each size of page.
    banks: [Bank; 3],
    /// How often a translation took another one's slot.
    displaced: u64,
}

impl Default for Tlb {
    fn default() -> Self {
        Self {
            banks: [
                Bank::new(PageSize::Size4K, 1024),
                Bank::new(PageSize::Size64K, 256),
                Bank::new(PageSize::Size2M, 64),
            ],
            displaced: 0,
        }
    }
}

impl Tlb {
    /// The translation that covers `address`, and log2 of its page's size.
    pub fn find(&self, asid: Asid, address: u64) -> Option<(Entry, u32)> {
        self.banks.iter().find_map(|bank| {
            let page = address >> bank.shift;
            bank.slots[bank.index(asid, page)]
                .filter(|slot| slot.asid == asid && slot.page == page)
                .map(|slot| (slot.entry, bank.shift))
        })
    }

    /// Keeps the translation of the page of `size` at `address`.
    pub fn insert(&mut self, asid: Asid, address: u64, size: PageSize, entry: Entry) {
        let bank = match size {
            PageSize::Size4K => &mut self.banks[0],
            PageSize::Size64K => &mut self.banks[1],
            PageSize::Size2M => &mut self.banks[2],
        };
        let page = address >> bank.shift;
        let index = bank.index(asid, page);
        let old = bank.slots[index].replace(Slot { asid, page, entry });
        self.displaced += u64::from(old.is_some());
    }

    /// How often a translation has taken another one's slot.
    pub const fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Drops the translations of one address space, or of all (`None`).
    pub fn flush(&mut self, asid: Option<Asid>) {
        for slot in self.banks.iter_mut().flat_map(|bank| &mut bank.slots) {
            if asid.is_none_or(|asid| slot.is_some_and(|slot| slot.asid == asid)) {
                *slot = None;
            }
        }
    }
}
