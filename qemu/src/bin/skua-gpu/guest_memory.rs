// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The guest's memory files, each mapped once.
//!
//! Behind an IOMMU every page comes as a mapping of its own, with a descriptor of its own of the
//! same file: mapping each would soon be more than a process may have. So a file is mapped whole
//! when its inode is first seen, and a range of the bus is an offset in it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use vm_memory::{FileOffset, MmapRegion};

/// The files that are mapped.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    /// By device and inode. What no range of the bus uses any more is unmapped.
    regions: HashMap<(u64, u64), Weak<MmapRegion>>,
}

impl GuestMemory {
    /// The mapping of `file`, which reaches up to `end` at least.
    pub(crate) fn region(&mut self, file: File, end: u64) -> io::Result<Arc<MmapRegion>> {
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino());
        if let Some(region) = self.regions.get(&key).and_then(Weak::upgrade) {
            if region.size() as u64 >= end {
                return Ok(region);
            }
        }
        if metadata.len() < end {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let size = usize::try_from(metadata.len()).map_err(io::Error::other)?;
        let region = MmapRegion::from_file(FileOffset::new(file, 0), size)
            .map(Arc::new)
            .map_err(io::Error::other)?;
        self.regions.retain(|_, region| region.strong_count() != 0);
        self.regions.insert(key, Arc::downgrade(&region));
        Ok(region)
    }
}
