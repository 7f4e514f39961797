// SPDX-License-Identifier: MIT

//! Measure 15: what a change of page tables costs.
//!
//! An object is mapped and unmapped again, with one ioctl each.

use anyhow::Result;
use libskua::{Access, Bo, BoFlags};

use crate::report::Report;
use crate::rig::Rig;

/// Pages of the object.
const PAGES: u64 = 1024;
/// Repetitions.
const ROUNDS: u64 = 16;
/// Where it is mapped.
const BASE: u64 = 1 << 41;

/// Fills the rows of measure 15.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &Rig, report: &mut Report) -> Result<()> {
    for (name, pages, placements, off) in [
        ("page", 1, rig.device.system(), ""),
        ("pages", PAGES, rig.device.system(), ""),
        ("vram", PAGES, rig.device.vram(), ""),
        ("vram", PAGES, rig.device.vram(), ".off"),
    ] {
        // A page of the table is as large as address and memory are aligned alike.
        let base = BASE + if off.is_empty() { 0 } else { 4096 };
        let bo = Bo::create(&rig.device, pages * 4096, placements, BoFlags::empty())?;
        // The tables that it takes stay.
        rig.vm.map(&bo, base, Access::ReadWrite)?;
        rig.vm.unmap(base, bo.size())?;
        let cost = rig.counters.cost()?;
        let (mut mapped, mut unmapped) = ([0, 0], [0, 0]);
        for _ in 0..ROUNDS {
            let counters = || rig.counters.read();
            let before = counters()?;
            rig.vm.map(&bo, base, Access::ReadWrite)?;
            let between = counters()?;
            rig.vm.unmap(base, bo.size())?;
            let after = counters()?;
            for (sums, grown) in [
                (&mut mapped, between.since(&before).since(&cost)),
                (&mut unmapped, after.since(&between).since(&cost)),
            ] {
                sums[0] += grown.get("invalidate")?;
                sums[1] += grown.get("driver_entries")?;
            }
        }
        for (way, [flushes, entries]) in [("map", mapped), ("unmap", unmapped)] {
            let row = |what: &str| format!("tables.{name}.{way}.{what}{off}");
            if off.is_empty() {
                report.ratio(&row("flushes"), flushes, ROUNDS)?;
            }
            report.ratio(&row("entries"), entries, ROUNDS * pages)?;
        }
    }
    Ok(())
}
