// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which entries of the CPU host aperture's table are written for a list of pages: all of them, or
//! none (row 0.22).
//!
//! A miniport whose GPU reads such a table from memory ([`spec::aperture`](crate::spec::aperture))
//! implements [`map_cpu_host_aperture`](super::miniport::Miniport::map_cpu_host_aperture) and its
//! counterpart by these; that the GPU looks at the entries afterwards is its own.
//!
//! # Examples
//!
//! ```
//! use skua_policy::aperture_table::{Layout, Refusal, Table};
//! use skua_policy::miniport::AperturePage;
//! use skua_spec::aperture::{Entry, PageSize};
//! use std::cell::RefCell;
//!
//! struct Memory(RefCell<[Entry; 8]>);
//!
//! impl Table for Memory {
//!     type Error = ();
//!     fn entry(&self, page: u32) -> Result<Entry, ()> {
//!         Ok(self.0.borrow()[page as usize])
//!     }
//!     fn set_entry(&self, page: u32, entry: Entry) -> Result<(), ()> {
//!         self.0.borrow_mut()[page as usize] = entry;
//!         Ok(())
//!     }
//! }
//!
//! let memory = Memory(RefCell::new([Entry::NONE; 8]));
//! let layout = Layout { pages: 8, page: PageSize::Size4K, hidden: 0x10000..0x20000 };
//! let page = |aperture, segment| AperturePage { aperture, segment };
//! assert_eq!(layout.map(&memory, &[page(7, 0x10), page(3, 0x1f)]), Ok(()));
//! // The second one shows something: the first one shows nothing again.
//! let refused = layout.map(&memory, &[page(0, 0x11), page(3, 0x12)]);
//! assert_eq!(refused, Err(Refusal::Page));
//! assert_eq!(memory.entry(0), Ok(Entry::NONE));
//! ```

use super::miniport::AperturePage;
use crate::spec::{
    address::VramOffset,
    aperture::{
        Entry,
        PageSize, //
    },
};
use core::ops::Range;

#[cfg(test)]
mod tests;

/// The table in memory. Who calls [`Layout::map`] has it for itself meanwhile.
pub trait Table {
    /// Why an entry cannot be accessed.
    type Error;

    /// The entry of a page of the aperture, as last written.
    fn entry(&self, page: u32) -> Result<Entry, Self::Error>;

    /// Writes the entry of a page of the aperture.
    fn set_entry(&self, page: u32, entry: Entry) -> Result<(), Self::Error>;
}

/// Why nothing was written, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<E> {
    /// There is no such page of the aperture, or it shows something; or there is no such page of
    /// VRAM, or BAR2 shows it.
    Page,
    /// The table cannot be accessed. What was written before stays.
    Table(E),
}

/// How many pages an aperture has, how large they are, and what they can show.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Pages of the aperture.
    pub pages: u32,
    /// Their size, which is that of what they show.
    pub page: PageSize,
    /// Bytes of VRAM, from its start, that the aperture can show: those that BAR2 does not.
    pub hidden: Range<u64>,
}

impl Layout {
    /// The entry that shows page `page` of VRAM, if the aperture can.
    pub fn entry(&self, page: u64) -> Option<Entry> {
        let offset = page.checked_mul(self.page.bytes())?;
        let found = Entry::page(VramOffset(offset));
        self.hidden.contains(&offset).then_some(found)
    }

    /// Has pages of the aperture, which show nothing, show pages of VRAM.
    ///
    /// # Errors
    ///
    /// [`Refusal::Page`], and all entries are as they were; [`Refusal::Table`].
    pub fn map<T: Table>(
        &self,
        table: &T,
        pages: &[AperturePage],
    ) -> Result<(), Refusal<T::Error>> {
        let place = |page: &AperturePage| {
            let entry = self.entry(page.segment).ok_or(Refusal::Page)?;
            if page.aperture >= self.pages {
                return Err(Refusal::Page);
            }
            let old = table.entry(page.aperture).map_err(Refusal::Table)?;
            if old.offset().is_some() {
                return Err(Refusal::Page);
            }
            table
                .set_entry(page.aperture, entry)
                .map_err(Refusal::Table)
        };
        for (done, page) in pages.iter().enumerate() {
            if let Err(refusal) = place(page) {
                let written = pages.iter().take(done).map(|page| page.aperture);
                clear(table, written).map_err(Refusal::Table)?;
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Has pages of the aperture show nothing, whatever they do.
    ///
    /// # Errors
    ///
    /// As of [`Self::map`].
    pub fn unmap<T: Table>(&self, table: &T, pages: &[u32]) -> Result<(), Refusal<T::Error>> {
        if pages.iter().any(|page| *page >= self.pages) {
            return Err(Refusal::Page);
        }
        clear(table, pages.iter().copied()).map_err(Refusal::Table)
    }
}

fn clear<T: Table>(table: &T, mut pages: impl Iterator<Item = u32>) -> Result<(), T::Error> {
    pages.try_for_each(|page| table.set_entry(page, Entry::NONE))
}
