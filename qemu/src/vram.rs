// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VRAM and where it lies in the GPU-physical space (manual section 4).

use std::fs::File;
use std::io;
use std::ops::Range;

use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::options::{VRAM_ALIGN, VRAM_MAX};

/// GPU-physical address of the first byte of VRAM.
///
/// Above every bus address (`BUS_BITS`), so that neither can be taken for the other.
pub const BASE: u64 = 0x8_0000_0000_0000;

/// The device's own memory.
#[derive(Debug)]
pub struct Vram {
    /// All of it, mapped for the device's life.
    region: MmapRegion,
}

impl Vram {
    /// VRAM without a file: nobody but the device can map it.
    ///
    /// # Errors
    ///
    /// `bytes` is not a multiple of [`VRAM_ALIGN`] in `VRAM_ALIGN..=VRAM_MAX`, or the host has no
    /// memory.
    pub fn anonymous(bytes: u64) -> io::Result<Self> {
        Self::check(bytes)?;
        let region = MmapRegion::new(bytes as usize).map_err(io::Error::other)?;
        Ok(Self::from_region(region))
    }

    /// VRAM in the first `bytes` bytes of `file`, which BAR2 maps as well.
    ///
    /// # Errors
    ///
    /// As [`Self::anonymous`].
    pub fn from_file(file: File, bytes: u64) -> io::Result<Self> {
        Self::check(bytes)?;
        let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes as usize)
            .map_err(io::Error::other)?;
        Ok(Self::from_region(region))
    }

    fn check(bytes: u64) -> io::Result<()> {
        if bytes % VRAM_ALIGN != 0 || !(VRAM_ALIGN..=VRAM_MAX).contains(&bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the size of VRAM is a multiple of 2 MiB, at most 1 TiB",
            ));
        }
        Ok(())
    }

    fn from_region(region: MmapRegion) -> Self {
        let vram = Self { region };
        vram.lose();
        vram
    }

    /// Bytes of VRAM.
    pub fn bytes(&self) -> u64 {
        self.region.size() as u64
    }

    /// The GPU-physical addresses of VRAM.
    pub fn window(&self) -> Range<u64> {
        BASE..BASE + self.bytes()
    }

    /// The memory at `offset`, at most `bytes` long; `None` where there is none.
    pub fn slice(&self, offset: u64, bytes: u64) -> Option<VolatileSlice<'_>> {
        let left = self.bytes().checked_sub(offset)?;
        let count = bytes.min(left);
        if count == 0 {
            return None;
        }
        self.region.get_slice(offset as usize, count as usize).ok()
    }

    /// Forgets the contents: every word becomes a value that no test takes for its own, so that
    /// nothing can rely on what a reset or power-on left.
    pub fn lose(&self) {
        let pattern = [0xa5; 64 * 1024];
        let mut offset = 0;
        while let Some(slice) = self.slice(offset, pattern.len() as u64) {
            slice.copy_from(&pattern);
            offset += slice.len() as u64;
        }
    }
}
