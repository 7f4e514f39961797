// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page-walk cache of one engine (manual section 5): entries that name tables, so that a walk
//! begins as far down as it can.
//!
//! As the TLB it keeps an entry until it is flushed or displaced by another one of the same place,
//! however often the tables change meanwhile, and none that is not valid.

use skua_spec::mmu::{entry_span, Entry};
use skua_spec::number::Asid;

use crate::tlb::Bank;

/// Entries that are kept of levels 1, 2 and 3.
const SLOTS: [usize; 3] = [64, 16, 4];

/// Entries that name tables, by address space and the addresses that they are for.
#[derive(Debug)]
pub struct WalkCache {
    /// For level 1 and those above.
    banks: [Bank<Entry>; 3],
}

impl Default for WalkCache {
    fn default() -> Self {
        Self {
            banks: [1, 2, 3].map(|level: u32| {
                let slots = SLOTS[level as usize - 1];
                Bank::new(entry_span(level).trailing_zeros(), slots)
            }),
        }
    }
}

impl WalkCache {
    /// The entry of the lowest level on the way to `address` that is kept, and its level.
    pub fn find(&self, asid: Asid, address: u64) -> Option<(Entry, u32)> {
        (1..)
            .zip(&self.banks)
            .find_map(|(level, bank)| bank.find(asid, address).map(|entry| (entry, level)))
    }

    /// Keeps the entry of `level`, 1 to 3, on the way to `address`.
    pub fn insert(&mut self, asid: Asid, address: u64, level: u32, entry: Entry) {
        self.banks[level as usize - 1].insert(asid, address, entry);
    }

    /// Drops the entries of one address space, or of all (`None`).
    pub fn flush(&mut self, asid: Option<Asid>) {
        self.banks.iter_mut().for_each(|bank| bank.flush(asid));
    }
}
