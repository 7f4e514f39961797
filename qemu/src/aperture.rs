// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The CPU host aperture (manual section 10).
//!
//! QEMU maps BAR4 once, and nobody can make it map other memory later. So that the CPU reaches any
//! page of VRAM through it all the same, and at the speed of memory, it is the bytes that move: the
//! BAR is memory of its own, a *slot* for each page of it. Showing a page of VRAM copies it into
//! the slot, and from then on that is where the page is, for the engines too ([`VramGuard`]).
//! Hiding it copies it back home and fills the slot with ones. There is one copy of a page at any
//! time, and that is why a page of VRAM is in one page of the aperture at most, and in none if BAR2
//! shows it.
//!
//! The CPU cannot be kept from storing to a slot that shows nothing. What it stored there is looked
//! for, counted and dropped when the page is flushed next. Where the layout is
//! [trapped](crate::vram::Layout::trapped) there are no slots, no page moves, and every access is
//! looked at.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{PoisonError, RwLockWriteGuard};

use skua_spec::aperture::{Entry, PageSize};
use vm_memory::{VolatileMemory, VolatileSlice};

use crate::vram::{Aperture, Vram, VramGuard};

/// Bytes that are moved at most until engines may go on.
const CHUNK: u64 = 256 << 10;

/// What the aperture's pages show.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Any, where there is no aperture.
    size: PageSize,
    /// By page of the aperture: the page of VRAM.
    pages: Vec<Option<u64>>,
    /// The page of the aperture that shows a page of VRAM, by that: the inverse of `pages`.
    places: BTreeMap<u64, usize>,
}

impl Shown {
    /// A window whose pages show nothing; none if the device has none.
    pub(crate) fn new(aperture: Option<Aperture>) -> Self {
        Self {
            size: aperture.map_or(PageSize::Size4K, |aperture| aperture.size),
            pages: vec![None; aperture.map_or(0, |aperture| aperture.pages as usize)],
            places: BTreeMap::new(),
        }
    }

    /// The first page that is shown of those that end behind `offset`: where it starts in VRAM, and
    /// its slot.
    pub(crate) fn find(&self, offset: u64) -> Option<(u64, Range<u64>)> {
        let (page, place) = self.places.range(offset >> self.size.shift()..).next()?;
        let slot = *place as u64 * self.size.bytes();
        Some((page << self.size.shift(), slot..slot + self.size.bytes()))
    }

    fn set(&mut self, place: usize, page: Option<u64>) {
        if let Some(old) = std::mem::replace(&mut self.pages[place], page) {
            self.places.remove(&old);
        }
        if let Some(page) = page {
            self.places.insert(page, place);
        }
    }
}

impl VramGuard<'_> {
    /// The memory at `offset` of BAR4, at most `bytes` long; `None` where it shows nothing.
    fn shown_slice(&self, offset: u64, bytes: u64) -> Option<VolatileSlice<'_>> {
        let size = self.shown.size;
        let place = usize::try_from(offset >> size.shift()).ok()?;
        let page = (*self.shown.pages.get(place)?)?;
        let inside = offset & (size.bytes() - 1);
        self.slice(
            (page << size.shift()) + inside,
            bytes.min(size.bytes() - inside),
        )
    }

    /// Calls `f` with the memory of each page that an access of BAR4 touches, and which of its
    /// bytes they are. Returns whether a page showed nothing.
    fn for_each_page(
        &self,
        offset: u64,
        bytes: usize,
        mut f: impl FnMut(&VolatileSlice<'_>, Range<usize>),
    ) -> bool {
        let size = self.shown.size.bytes();
        let (mut done, mut nothing) = (0, false);
        while done < bytes {
            let at = offset.wrapping_add(done as u64);
            // CAST: at most 64 KiB.
            let count = (size - at % size).min((bytes - done) as u64) as usize;
            match self.shown_slice(at, count as u64) {
                Some(slice) => f(&slice, done..done + count),
                None => nothing = true,
            }
            done += count;
        }
        nothing
    }
}

/// What a flush of the aperture has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// Entries that were refused.
    pub(crate) refused: u32,
    /// Pages that the CPU had written while they showed nothing.
    pub(crate) strays: u32,
}

impl Vram {
    /// Reads from BAR4: ones, where it shows nothing. Returns whether that was so somewhere.
    pub(crate) fn read_aperture(&self, offset: u64, data: &mut [u8]) -> bool {
        data.fill(0xff);
        self.enter()
            .for_each_page(offset, data.len(), |slice, part| {
                slice.copy_to(&mut data[part]);
            })
    }

    /// Writes to BAR4: nothing, where it shows nothing. Returns whether that was so somewhere.
    pub(crate) fn write_aperture(&self, offset: u64, data: &[u8]) -> bool {
        self.enter()
            .for_each_page(offset, data.len(), |slice, part| {
                slice.copy_from(&data[part]);
            })
    }

    /// The page that an entry has shown, if it is one that the aperture may show.
    fn page_of(&self, entry: Entry, size: PageSize) -> Option<u64> {
        let offset = entry.offset().filter(|_| !entry.is_malformed(size))?.0;
        let range = self.layout().visible..self.bytes();
        range.contains(&offset).then(|| offset >> size.shift())
    }

    /// Has the pages from `first` on show what `entries` say; `None` is one that could not be read.
    ///
    /// All pages that are to show something else are hidden before any is shown, so that pages of
    /// VRAM may change places. Engines may go on now and then meanwhile.
    pub(crate) fn flush_aperture(&self, first: u32, entries: &[Option<Entry>]) -> Flushed {
        let mut flushed = Flushed::default();
        let Some(aperture) = self.layout().aperture else {
            return flushed;
        };
        let places = first as usize..aperture.pages as usize;
        let wanted: Vec<(usize, Option<u64>)> = places
            .zip(entries)
            .map(|(place, entry)| match entry {
                Some(entry) if entry.offset().is_none() => (place, None),
                entry => {
                    let page = entry.and_then(|entry| self.page_of(entry, aperture.size));
                    flushed.refused += u32::from(page.is_none());
                    (place, page)
                }
            })
            .collect();
        // CAST: at most 64.
        let chunk = (CHUNK / aperture.size.bytes()) as usize;
        for chunk in wanted.chunks(chunk) {
            let mut shown = self.change();
            for (place, page) in chunk {
                match shown.pages[*place] {
                    None => flushed.strays += u32::from(self.drop_strays(*place)),
                    old if old != *page => self.hide(&mut shown, *place),
                    Some(_) => {}
                }
            }
        }
        for chunk in wanted.chunks(chunk) {
            let mut shown = self.change();
            for (place, page) in chunk {
                let Some(page) = *page else { continue };
                match shown.places.get(&page) {
                    Some(where_it_is) if where_it_is == place => {}
                    Some(_) => flushed.refused += 1,
                    None => self.show(&mut shown, *place, page),
                }
            }
        }
        flushed
    }

    /// The aperture shows nothing any more; what the pages held is lost.
    pub(crate) fn forget_aperture(&self) {
        let nothing = Shown::new(self.layout().aperture);
        let shown = std::mem::replace(&mut *self.change(), nothing);
        let ones = vec![0xff_u8; shown.size.bytes() as usize];
        // Engines may go on: to them no page of VRAM is here any more.
        for slot in shown.places.values().filter_map(|place| self.slot(*place)) {
            slot.copy_from(&ones);
        }
    }

    fn change(&self) -> RwLockWriteGuard<'_, Shown> {
        self.shown.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a page of the aperture, where there are slots.
    fn slot(&self, place: usize) -> Option<VolatileSlice<'_>> {
        let size = self.layout().aperture?.size.bytes() as usize;
        self.slots.as_ref()?.get_slice(place * size, size).ok()
    }

    fn show(&self, shown: &mut Shown, place: usize, page: u64) {
        let home = self.slice(page << shown.size.shift(), shown.size.bytes());
        if let (Some(slot), Some(home)) = (self.slot(place), home) {
            home.copy_to_volatile_slice(slot);
        }
        shown.set(place, Some(page));
    }

    fn hide(&self, shown: &mut Shown, place: usize) {
        let page = shown.pages[place];
        let home = page.and_then(|page| {
            let size = shown.size;
            self.slice(page << size.shift(), size.bytes())
        });
        if let (Some(slot), Some(home)) = (self.slot(place), home) {
            slot.copy_to_volatile_slice(home);
            slot.copy_from(&vec![0xff_u8; slot.len()]);
        }
        shown.set(place, None);
    }

    /// Makes a page that shows nothing read as ones again. Returns whether it did not.
    fn drop_strays(&self, place: usize) -> bool {
        let Some(slot) = self.slot(place) else {
            return false;
        };
        let mut bytes = vec![0_u8; slot.len()];
        slot.copy_to(&mut bytes);
        let stray = bytes.iter().any(|byte| *byte != 0xff);
        if stray {
            bytes.fill(0xff);
            slot.copy_from(&bytes);
        }
        stray
    }
}

#[cfg(test)]
mod tests {
    use skua_spec::address::VramOffset;

    use super::*;
    use crate::vram::Layout;

    /// The CPU reads the slots by itself: what it finds there is not looked up.
    #[test]
    fn what_was_shown_is_not_there_any_more() {
        let aperture = Aperture {
            pages: 4,
            size: PageSize::Size4K,
            cached: false,
        };
        let layout = Layout {
            visible: 0,
            aperture: Some(aperture),
            ..Layout::whole(2 << 20)
        };
        let vram = Vram::new(layout).unwrap();
        let shown = [None, Some(Entry::page(VramOffset(0x3000)))];
        assert_eq!(vram.flush_aperture(0, &shown).refused, 1);
        assert!(!vram.write_aperture(0x1000, &[7; 8]));
        vram.forget_aperture();
        for place in 0..4 {
            let mut bytes = [0_u8; 4096];
            vram.slot(place).unwrap().copy_to(&mut bytes[..]);
            assert!(bytes.iter().all(|byte| *byte == 0xff), "{place}");
        }
    }
}
