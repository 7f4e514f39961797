// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The guest's memory files, each mapped once.
//!
//! Behind an IOMMU every page comes as a mapping of its own, with a descriptor of its own of the
//! same file: mapping each would soon be more than a process may have. So a file is mapped whole
//! when its inode is first seen, and a range of the bus is an offset in it. What the device may
//! only read is a mapping apart: its descriptor may be open for reading only.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::{FileOffset, MmapRegion};

/// The files that are mapped.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    /// By device, inode and whether it can be written. What no range of the bus uses any more is
    /// unmapped.
    regions: HashMap<(u64, u64, bool), Weak<MmapRegion>>,
}

impl GuestMemory {
    /// The mapping of `file`, which reaches up to `end` at least, for reading or for both.
    ///
    /// # Errors
    ///
    /// The file is shorter, or its descriptor does not allow it.
    pub(crate) fn region(
        &mut self,
        file: File,
        end: u64,
        writable: bool,
    ) -> io::Result<Arc<MmapRegion>> {
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino(), writable);
        if let Some(region) = self.regions.get(&key).and_then(Weak::upgrade) {
            if region.size() as u64 >= end {
                return Ok(region);
            }
        }
        if metadata.len() < end {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let size = usize::try_from(metadata.len()).map_err(io::Error::other)?;
        let write = if writable {
            ProtFlags::WRITE
        } else {
            ProtFlags::empty()
        };
        // CAST: bits of flags.
        let protection = (ProtFlags::READ | write).bits() as i32;
        let flags = (MapFlags::NORESERVE | MapFlags::SHARED).bits() as i32;
        let file = FileOffset::new(file, 0);
        let region = MmapRegion::build(Some(file), size, protection, flags)
            .map(Arc::new)
            .map_err(io::Error::other)?;
        self.regions.retain(|_, region| region.strong_count() != 0);
        self.regions.insert(key, Arc::downgrade(&region));
        Ok(region)
    }
}
