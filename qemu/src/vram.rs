// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM: where it lies in the GPU-physical space (manual section 4), and how the CPU reaches it.
//!
//! BAR2 shows VRAM from its start, and BAR4 single pages of the rest ([`crate::aperture`]). A page
//! that BAR4 shows may lie somewhere else than the others; so whoever accesses VRAM by its offset
//! takes a [`VramGuard`] for a bounded step of work, and finds every page where it is.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use skua_spec::aperture::{PageSize, MAX_PAGES};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::aperture::Shown;
use crate::options::{VISIBLE_UNIT, VRAM_ALIGN, VRAM_MAX};

/// GPU-physical address of the first byte of VRAM.
///
/// Above every bus address (`BUS_BITS`), so that neither can be taken for the other.
pub const BASE: u64 = 0x8_0000_0000_0000;

/// The pages of a CPU host aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aperture {
    /// How many; 1 to [`MAX_PAGES`].
    pub pages: u32,
    /// Size of one page of the aperture.
    pub size: PageSize,
    /// Whether the CPU may have it cached.
    pub cached: bool,
}

impl Aperture {
    /// Bytes of BAR4.
    pub const fn bytes(self) -> u64 {
        // CAST: it widens.
        self.pages as u64 * self.size.bytes()
    }
}

/// How large VRAM is, and what the CPU sees of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of VRAM, a multiple of [`VRAM_ALIGN`], at most [`VRAM_MAX`].
    pub bytes: u64,
    /// Bytes that BAR2 shows, a multiple of [`VISIBLE_UNIT`]; 0 for no BAR2.
    pub visible: u64,
    /// BAR4, at most as large as VRAM.
    pub aperture: Option<Aperture>,
    /// Whether every access of BAR2 and BAR4 comes to the device, instead of to memory that both
    /// map.
    pub trapped: bool,
}

impl Layout {
    /// All of VRAM in BAR2, as memory.
    pub const fn whole(bytes: u64) -> Self {
        Self {
            bytes,
            visible: bytes,
            aperture: None,
            trapped: false,
        }
    }

    /// Whether VRAM can be laid out like this.
    pub fn is_valid(&self) -> bool {
        let aperture = self.aperture.is_none_or(|aperture| {
            (1..=MAX_PAGES).contains(&aperture.pages)
                && aperture.bytes() <= self.bytes
                && !(aperture.cached && self.visible > 0)
        });
        self.bytes % VRAM_ALIGN == 0
            && (VRAM_ALIGN..=VRAM_MAX).contains(&self.bytes)
            && self.visible % VISIBLE_UNIT == 0
            && self.visible <= self.bytes
            && aperture
    }

    /// Whether BAR4 is memory of its own.
    pub const fn has_slots(&self) -> bool {
        self.aperture.is_some() && !self.trapped
    }
}

/// The device's own memory.
#[derive(Debug)]
pub struct Vram {
    /// What of it BAR2 and BAR4 show, and how.
    layout: Layout,
    /// All of it, mapped for the device's life; its start is what BAR2 shows.
    home: MmapRegion,
    /// What BAR4 shows, where that is memory of its own; also mapped for the device's life.
    pub(crate) slots: Option<MmapRegion>,
    /// Read-locked over every step of an engine, so that a change waits for accesses under way.
    pub(crate) shown: RwLock<Shown>,
}

impl Vram {
    /// VRAM without a file: nobody but the device can map it.
    ///
    /// # Errors
    ///
    /// The layout is not valid, or the host has no memory.
    pub fn new(layout: Layout) -> io::Result<Self> {
        let map = |bytes| MmapRegion::new(bytes as usize).map_err(io::Error::other);
        Self::with_regions(layout, map)
    }

    /// As [`Self::new`] with [`Layout::whole`].
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn anonymous(bytes: u64) -> io::Result<Self> {
        Self::new(Layout::whole(bytes))
    }

    /// VRAM in the first bytes of `home`, which BAR2 maps as well, and what BAR4 maps in `slots`,
    /// which is used if the layout [has them](Layout::has_slots).
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn from_files(layout: Layout, home: File, slots: File) -> io::Result<Self> {
        let mut files = [home, slots].into_iter();
        Self::with_regions(layout, |bytes| {
            let file = files.next().ok_or(io::ErrorKind::InvalidInput)?;
            MmapRegion::from_file(FileOffset::new(file, 0), bytes as usize)
                .map_err(io::Error::other)
        })
    }

    fn with_regions(
        layout: Layout,
        mut map: impl FnMut(u64) -> io::Result<MmapRegion>,
    ) -> io::Result<Self> {
        if !layout.is_valid() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "VRAM cannot be laid out like this",
            ));
        }
        let home = map(layout.bytes)?;
        let slots = layout
            .aperture
            .filter(|_| layout.has_slots())
            .map(|aperture| map(aperture.bytes()))
            .transpose()?;
        let vram = Self {
            layout,
            home,
            slots,
            shown: RwLock::new(Shown::new(layout.aperture)),
        };
        vram.lose();
        Ok(vram)
    }

    /// The layout that it was made with.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of VRAM.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// The GPU-physical addresses of VRAM.
    pub fn window(&self) -> Range<u64> {
        BASE..BASE + self.bytes()
    }

    /// Takes a guard for a bounded step of work. A thread has one at a time.
    pub fn enter(&self) -> VramGuard<'_> {
        VramGuard {
            vram: self,
            shown: self.shown.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// The memory at `offset`, at most `bytes` long, of a page that BAR4 does not show; `None`
    /// where there is none.
    pub fn slice(&self, offset: u64, bytes: u64) -> Option<VolatileSlice<'_>> {
        let left = self.bytes().checked_sub(offset)?;
        let count = bytes.min(left);
        if count == 0 {
            return None;
        }
        self.home.get_slice(offset as usize, count as usize).ok()
    }

    /// What BAR2 shows at `offset`, at most `bytes` long; `None` where it shows nothing.
    pub fn visible_slice(&self, offset: u64, bytes: u64) -> Option<VolatileSlice<'_>> {
        let left = self.layout.visible.checked_sub(offset)?;
        self.slice(offset, bytes.min(left))
    }

    /// Forgets the contents: every word becomes a value that no test takes for its own, so that
    /// nothing can rely on what a reset or power-on left. The aperture shows nothing by now.
    pub fn lose(&self) {
        fill(&self.home, 0xa5);
        if let Some(slots) = &self.slots {
            fill(slots, 0xff);
        }
    }
}

fn fill(region: &MmapRegion, value: u8) {
    let pattern = [value; 64 * 1024];
    for offset in (0..region.size()).step_by(pattern.len()) {
        let count = pattern.len().min(region.size() - offset);
        if let Ok(slice) = region.get_slice(offset, count) {
            slice.copy_from(&pattern);
        }
    }
}

/// The right to access VRAM, until it is dropped.
#[derive(Debug)]
pub struct VramGuard<'a> {
    /// The memory; where in it a page is now says `shown`.
    pub(crate) vram: &'a Vram,
    /// As long as this is held, the aperture's pages show what they do.
    pub(crate) shown: RwLockReadGuard<'a, Shown>,
}

impl VramGuard<'_> {
    /// The GPU-physical addresses of VRAM.
    pub fn window(&self) -> Range<u64> {
        self.vram.window()
    }

    /// The memory at `offset`, at most `bytes` long; `None` where there is none.
    pub fn slice(&self, offset: u64, bytes: u64) -> Option<VolatileSlice<'_>> {
        let Some(slots) = &self.vram.slots else {
            return self.vram.slice(offset, bytes);
        };
        match self.shown.find(offset) {
            None => self.vram.slice(offset, bytes),
            Some((start, _)) if start > offset => {
                self.vram.slice(offset, bytes.min(start - offset))
            }
            Some((start, slot)) => {
                let inside = offset - start;
                let count = bytes.min(slot.end - slot.start - inside);
                let at = slot.start + inside;
                slots.get_slice(at as usize, count as usize).ok()
            }
        }
    }
}
