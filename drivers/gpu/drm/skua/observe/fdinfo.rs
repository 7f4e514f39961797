// SPDX-License-Identifier: GPL-2.0

//! What a client uses, for `/proc/<pid>/fdinfo/<fd>`: `Documentation/gpu/drm-usage-stats.rst`.
//!
//! Engine time comes from the ticks that the engines count in the context descriptors, so it is exact, and
//! the same on a slow host as on a fast one. Memory is summed over the client's handles.

use crate::{
    ext::{
        file,
        printer::{
            MemoryStats,
            Printer, //
        },
        resv::{
            self,
            Usage, //
        }, //
    },
    gpu::SkuaDevice,
    ioctl::file::SkuaFile,
    memory::bo::REGION_VRAM, //
};
use core::fmt::Write as _;
use kernel::drm::{
    gem::BaseObject,
    Registered, //
};

const NSEC_PER_SEC: u64 = 1_000_000_000;

/// Prints the keys of `file`.
pub(crate) fn show(
    dev: &SkuaDevice<Registered>,
    file: &SkuaFile,
    out: &mut Printer<'_>,
) -> core::fmt::Result {
    let ticks = {
        let client = file.inner();
        let contexts = client.contexts.lock();
        let mut ticks = contexts.past_ticks;
        for context in contexts.handles.iter() {
            if let Some(sum) = ticks.get_mut(context.engine() as usize) {
                *sum = sum.saturating_add(context.ticks());
            }
        }
        ticks
    };
    for (index, engine) in dev.client_engines() {
        let ticks = ticks.get(index.index()).copied().unwrap_or(0);
        let name = engine.name().to_str().unwrap_or("?");
        let hz = u64::from(dev.caps.tick_hz);
        // Whole seconds and the rest: below 2^32 * 10^9, which fits.
        let ns = (ticks / hz)
            .saturating_mul(NSEC_PER_SEC)
            .saturating_add(ticks % hz * NSEC_PER_SEC / hz);
        writeln!(out, "drm-engine-{}:\t{} ns", name, ns)?;
        writeln!(out, "drm-cycles-{}:\t{}", name, ticks)?;
    }

    let mut system = MemoryStats::default();
    let mut vram = MemoryStats::default();
    file::for_each_object(file, |bo, shared| {
        let stats = if bo.region() == REGION_VRAM {
            &mut vram
        } else {
            &mut system
        };
        let size = bo.size() as u64;
        let add = |sum: &mut u64| *sum = sum.saturating_add(size);
        add(if shared {
            &mut stats.shared
        } else {
            &mut stats.private
        });
        add(&mut stats.resident);
        if !resv::is_idle(bo, Usage::Bookkeep) {
            add(&mut stats.active);
        }
    });
    out.memory_stats(c"memory", &system);
    out.memory_stats(c"vram0", &vram);
    Ok(())
}
