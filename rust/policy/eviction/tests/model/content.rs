// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What memory holds, a word for each page; an engine copies as it is planned.

use super::super::super::super::{
    buddy::{PageRange, PAGE_BYTES},
    page_plan::PhysPiece,
    transfer_plan::TransferPlan,
};
use crate::std_heap::StdHeap;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// System pages of an object, none of which is beside the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    number: u64,
    pub(super) count: u64,
}

impl Pages {
    /// The bus address of a page.
    pub(super) fn address(self, page: u64) -> u64 {
        (self.number << 32) + (self.count - page) * 2 * PAGE_BYTES
    }

    fn addresses(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |page| self.address(page))
    }

    pub(super) fn pieces(self) -> impl Iterator<Item = PhysPiece> {
        let len = PAGE_BYTES;
        self.addresses().map(move |start| PhysPiece { start, len })
    }
}

/// Where a page is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Address {
    Vram(u64),
    Bus(u64),
}

/// The words of all pages.
pub(super) struct Content {
    vram: Vec<u64>,
    /// Of those that objects have, by bus address.
    system: BTreeMap<u64, u64>,
    /// Those that nobody may move to any more, though a move from them is under way.
    stale: BTreeSet<u64>,
    /// Of the pages that somebody gets next.
    number: u64,
}

impl Content {
    pub(super) fn new(vram: u64) -> Self {
        Self {
            // What was there before anybody had it.
            vram: (0..vram).map(|page| u64::MAX - page).collect(),
            system: BTreeMap::new(),
            stale: BTreeSet::new(),
            number: 0,
        }
    }

    /// So many system pages, zeroed.
    pub(super) fn pages(&mut self, count: u64) -> Pages {
        self.number += 1;
        let pages = Pages {
            number: self.number,
            count,
        };
        self.system.extend(pages.addresses().map(|at| (at, 0)));
        pages
    }

    /// Whether these are somebody's still.
    pub(super) fn has(&self, pages: Pages) -> bool {
        pages.addresses().all(|at| self.system.contains_key(&at))
            && !self.stale.contains(&pages.number)
    }

    /// These are given back when the move from them is over.
    pub(super) fn set_stale(&mut self, pages: Pages) {
        self.stale.insert(pages.number);
    }

    /// Takes pages back, which may have been given back before.
    pub(super) fn give_back(&mut self, pages: Pages) {
        self.stale.remove(&pages.number);
        for at in pages.addresses() {
            self.system.remove(&at);
        }
    }

    pub(super) fn system_pages(&self) -> u64 {
        self.system.len() as u64
    }

    pub(super) fn get(&self, at: Address) -> Option<u64> {
        match at {
            Address::Vram(page) => self.vram.get(page as usize).copied(),
            Address::Bus(at) => self.system.get(&at).copied(),
        }
    }

    pub(super) fn set(&mut self, at: Address, word: u64) {
        let old = match at {
            Address::Vram(page) => self.vram.get_mut(page as usize),
            Address::Bus(at) => self.system.get_mut(&at),
        };
        *old.expect("somebody has it") = word;
    }

    /// The device is reset.
    pub(super) fn lose_vram(&mut self) {
        self.vram.fill(0);
    }

    pub(super) fn clear(&mut self, blocks: &[PageRange]) {
        for block in blocks {
            self.vram[block.start.0 as usize..][..block.pages.0 as usize].fill(0);
        }
    }

    /// Copies between blocks of VRAM and system pages, to those if it goes `out`.
    pub(super) fn copy(&mut self, blocks: &[PageRange], pages: Pages, out: bool) {
        let plan = TransferPlan::<StdHeap>::new(blocks, pages.pieces()).expect("equally long");
        for piece in plan.pieces() {
            for page in 0..piece.block.pages.0 {
                let vram = Address::Vram(piece.block.start.0 + page);
                let system = Address::Bus(piece.bus.0 + page * PAGE_BYTES);
                let (from, to) = if out { (vram, system) } else { (system, vram) };
                self.set(to, self.get(from).expect("somebody has it"));
            }
        }
    }
}
