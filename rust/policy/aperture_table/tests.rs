// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Entries that are not `Entry::NONE`, by their page; and a page that cannot be accessed.
#[derive(Default)]
struct Memory {
    entries: RefCell<BTreeMap<u32, u64>>,
    broken: Option<u32>,
}

impl Table for Memory {
    type Error = u32;

    fn entry(&self, page: u32) -> Result<Entry, u32> {
        match self.broken {
            Some(broken) if broken == page => Err(page),
            _ => Ok(Entry(*self.entries.borrow().get(&page).unwrap_or(&0))),
        }
    }

    fn set_entry(&self, page: u32, entry: Entry) -> Result<(), u32> {
        let mut entries = self.entries.borrow_mut();
        match entry {
            Entry::NONE => entries.remove(&page),
            entry => entries.insert(page, entry.0),
        };
        Ok(())
    }
}

impl Memory {
    fn shows(&self) -> Vec<(u32, u64)> {
        let entries = self.entries.borrow();
        entries
            .iter()
            .map(|(page, entry)| (*page, *entry))
            .collect()
    }
}

const LAYOUT: Layout = Layout {
    pages: 16,
    page: PageSize::Size4K,
    hidden: 0x4000..0x8_0000,
};

fn pages(list: &[(u32, u64)]) -> Vec<AperturePage> {
    let page = |&(aperture, segment): &(u32, u64)| AperturePage { aperture, segment };
    list.iter().map(page).collect()
}

#[test]
fn pages_show_what_they_are_told_to_in_any_order() {
    let memory = Memory::default();
    let list = pages(&[(7, 100), (3, 5), (9, 42)]);
    assert_eq!(LAYOUT.map(&memory, &list), Ok(()));
    assert_eq!(memory.shows(), [(3, 0x5001), (7, 0x6_4001), (9, 0x2_a001)]);
    // Others stay.
    assert_eq!(LAYOUT.unmap(&memory, &[9, 3]), Ok(()));
    assert_eq!(memory.shows(), [(7, 0x6_4001)]);
}

#[test]
fn large_pages_are_counted_in_their_size() {
    let layout = Layout {
        page: PageSize::Size64K,
        ..LAYOUT
    };
    let memory = Memory::default();
    assert_eq!(layout.map(&memory, &pages(&[(0, 7)])), Ok(()));
    assert_eq!(memory.shows(), [(0, 0x7_0001)]);
    for page in [0, 8] {
        assert_eq!(
            layout.map(&memory, &pages(&[(1, page)])),
            Err(Refusal::Page)
        );
    }
}

#[test]
fn a_list_with_one_bad_page_changes_nothing() {
    let memory = Memory::default();
    assert_eq!(LAYOUT.map(&memory, &pages(&[(5, 0x10)])), Ok(()));
    let before = memory.shows();
    let good = [(7, 100), (3, 5), (9, 42)];
    let bad = [
        ("behind the aperture", (16, 6)),
        ("far behind it", (u32::MAX, 6)),
        ("below what BAR2 shows", (6, 3)),
        ("behind VRAM", (6, 0x80)),
        ("no address", (6, u64::MAX)),
        ("it shows something", (5, 6)),
        ("twice in the list", (7, 6)),
    ];
    for (what, page) in bad {
        for at in 0..=good.len() {
            if what.starts_with("twice") && at == 0 {
                // Then the other one is what comes too late; it is the same.
                continue;
            }
            let mut list = good.to_vec();
            list.insert(at, page);
            let refused = LAYOUT.map(&memory, &pages(&list));
            assert_eq!(refused, Err(Refusal::Page), "{what}, at {at}");
            assert_eq!(memory.shows(), before, "{what}, at {at}");
        }
    }
    assert_eq!(LAYOUT.unmap(&memory, &[5, 16]), Err(Refusal::Page));
    assert_eq!(memory.shows(), before);
}

#[test]
fn a_table_that_is_gone_is_told() {
    let memory = Memory {
        broken: Some(3),
        ..Memory::default()
    };
    let refused = LAYOUT.map(&memory, &pages(&[(7, 100), (3, 5)]));
    assert_eq!(refused, Err(Refusal::Table(3)));
    assert_eq!(memory.shows(), []);
}
