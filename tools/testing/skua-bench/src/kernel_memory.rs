// SPDX-License-Identifier: MIT

//! What the kernel uses of memory.
//!
//! Two views, since neither sees all:
//!
//! - [`Usage::kernel`]: **pages**. All that the page allocator has given away, without what
//!   userspace has and what holds the contents of files (buffer objects in system memory are such).
//!   It has everything in it, coherent DMA memory and large allocations too, rounded up as it
//!   really is.
//! - [`Usage::slabs`]: **objects** in each cache of the slab allocator. It tells what it is that
//!   costs. Objects that a CPU keeps ready for the next allocation count as used; [`shrink_slabs`]
//!   has them given back.
//!
//! The pages that each CPU keeps in its lists count as free, and the counters that each CPU keeps
//! are gathered before, so that readings are exact to the page.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{bail, Context, Result};

/// Bytes of a page on the one architecture that the kernel's text files are read on.
const PAGE: u64 = 4096;

/// What the kernel used at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of pages.
    pub kernel: u64,
    /// Bytes of objects by the names of their caches.
    pub slabs: BTreeMap<String, u64>,
}

impl Usage {
    /// As it is now, with the counts of all CPUs gathered.
    ///
    /// # Errors
    ///
    /// If the kernel does not say, or not us.
    pub fn read() -> Result<Self> {
        // Reading has the kernel gather what its CPUs counted.
        read("/proc/sys/vm/stat_refresh")?;
        let pages = kernel(&read("/proc/zoneinfo")?, &read("/proc/meminfo")?)?;
        Ok(Self {
            kernel: pages,
            slabs: slabs(&read("/proc/slabinfo")?)?,
        })
    }

    /// Bytes of objects in all caches.
    pub fn slab_bytes(&self) -> u64 {
        self.slabs.values().sum()
    }
}

/// Has the kernel give up the contents and names of files that it only keeps for later. What it
/// frees thereby is free when RCU says so.
///
/// # Errors
///
/// If it does not let us.
pub fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("/proc/sys/vm/drop_caches")
}

/// Has the slab allocator give up the free objects that its caches keep ready.
///
/// # Errors
///
/// If it does not let us.
pub fn shrink_slabs() -> Result<()> {
    for cache in fs::read_dir("/sys/kernel/slab").context("/sys/kernel/slab")? {
        let file = cache?.path().join("shrink");
        // A cache may go meanwhile.
        if file.exists() {
            fs::write(&file, "1").with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.to_owned())
}

/// Bytes of pages that are neither free nor userspace's nor files'.
fn kernel(zoneinfo: &str, meminfo: &str) -> Result<u64> {
    let (mut managed, mut free) = (0_u64, 0_u64);
    for line in zoneinfo.lines() {
        let line = line.trim();
        let number = |rest: &str| rest.trim().parse::<u64>().context("/proc/zoneinfo");
        if let Some(rest) = line.strip_prefix("managed ") {
            managed += number(rest)?;
        } else if let Some(rest) = line.strip_prefix("pages free ") {
            free += number(rest)?;
        } else if let Some(rest) = line.strip_prefix("count:") {
            free += number(rest)?;
        }
    }
    if managed == 0 {
        bail!("/proc/zoneinfo has no zones");
    }
    let mut others = 0_u64;
    for name in ["AnonPages", "Cached", "Buffers", "SwapCached", "PageTables"] {
        let field = |line: &str| {
            let (key, value) = line.split_once(':')?;
            let kib = value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
            (key == name).then_some(kib)
        };
        others += meminfo
            .lines()
            .find_map(field)
            .or((name == "SwapCached").then_some(0))
            .with_context(|| format!("/proc/meminfo has no {name}"))?
            * 1024;
    }
    let used = managed.saturating_sub(free) * PAGE;
    Ok(used.saturating_sub(others))
}

/// Bytes of objects by cache.
fn slabs(slabinfo: &str) -> Result<BTreeMap<String, u64>> {
    if !slabinfo.starts_with("slabinfo - version: 2.") {
        bail!("/proc/slabinfo has another version");
    }
    let mut slabs = BTreeMap::new();
    for line in slabinfo.lines().skip(1).filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(active), Some(size)) = (words.first(), words.get(1), words.get(3))
        else {
            bail!("/proc/slabinfo: {line}");
        };
        let bytes = active.parse::<u64>()? * size.parse::<u64>()?;
        *slabs.entry((*name).to_owned()).or_insert(0) += bytes;
    }
    Ok(slabs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others_are_taken_off() {
        let zones = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 110
  pages free     100
        boost    0
        present  200
        managed  150
  pagesets
    cpu: 0
              count:    7
              high:     50
Node 0, zone    DMA32
  pages free     300
        managed  900
  pagesets
    cpu: 0
              count:    3
";
        let memory = "MemTotal: 4200 kB\nBuffers:  0 kB\nCached:   400 kB\nSwapCached: 0 kB\n\
             AnonPages:  100 kB\nPageTables:  60 kB\n";
        let pages = 1050 - 410 - 140;
        assert_eq!(kernel(zones, memory).ok(), Some(pages * 4096));
        assert!(kernel(zones, "Cached: 4 kB\n").is_err());
        assert!(kernel("", memory).is_err());
    }

    #[test]
    fn slabs_are_objects_times_size() {
        let text = "slabinfo - version: 2.1\n\
             # name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables\n\
             dma_fence_chain 3 64 64 64 1 : tunables 0 0 0 : slabdata 1 1 0\n\
             kmalloc-512 10 16 512 8 1 : tunables 0 0 0 : slabdata 2 2 0\n";
        let slabs = slabs(text).expect("slabs");
        assert_eq!(slabs["dma_fence_chain"], 192);
        assert_eq!(slabs["kmalloc-512"], 5120);
        assert!(super::slabs("slabinfo - version: 9.9\n").is_err());
        assert!(super::slabs("slabinfo - version: 2.1\nx y\n").is_err());
    }
}
