// SPDX-License-Identifier: GPL-2.0

//! Files in the device's directory under `/sys/kernel/debug/dri`.
//!
//! | file | what it shows |
//! |---|---|
//! | `regions` | memory regions: size, use, what is clean of the free, the allocator's free blocks; host aperture: pages; holders; who leaves next, in that order |
//! | `residents` | what is resident for a device of a client's: client, process, device, where it is, bytes, how often it was made so |
//! | `gart` | pages of the aperture segment that show memory: number, bus address, whether snooped |
//! | `vms` | address spaces: mappings, bytes mapped, mappings that are installed, tables, binds that are held |
//! | `entries` | entries of pages in address spaces: of system memory, snooped and not, and others |
//! | `contexts` | contexts: engine, address space, status, submissions ended, ticks used, priority (among all contexts, and in its process), submissions queued, binds held in its order, submissions held; packets in its queue that have not ended |
//! | `rings` | engines: state, head and tail, ticks, packets in flight, and words from head to tail |
//! | `paging` | the paging process: bytes of its address space and of its tables, ticks, packets; how often memory was not idle |
//! | `idle` | has paging want idle memory from now on, or, read again, not any more |
//! | `clearing` | has no free VRAM be clean, or be cleared, from now on, or, read again, again |
//! | `preemption` | has engines not be asked to stop from now on, or, read again, again |
//! | `reuse` | has who leaves VRAM be chosen by age alone from now on, or, read again, by expected reuse, too |
//! | `reset` | resets the adapter; how often that was done since it was bound |
//! | `quarantine` | whether reapers keep what they are given, since the device may still reach it, how many objects they have and how many bytes of memory these, and how many bytes unbound devices keep for good; it does not ask the device |
//! | `zap` | removes the CPU's mappings of all objects, which fault in again; of how many handles |
//! | `evict` | moves all objects out of VRAM, and out of the aperture; how many |
//! | `counters` | what driver (`driver_…`) and device count |
//! | `parameters` | the module's parameters, which sysfs does not show of Rust modules |

use crate::{
    ext::{
        drm_driver::DebugfsFile,
        file,
        gem,
        printer::SeqPrinter, //
    },
    fences::hold::Holder,
    gpu::{
        self,
        SkuaDevice,
        SkuaDriver,
        KEPT_FOR_GOOD, //
    },
    hardware::{
        caps::GART_PAGES,
        shared::PAGING_CONTEXT, //
    },
    memory::{
        bo::{
            REGION_APERTURE,
            REGION_SYSTEM,
            REGION_VRAM, //
        },
        clearer::Clearer,
        eviction::{
            self,
            Vram, //
        },
        gart::{
            self,
            Aperture, //
        },
        vram::Part, //
    },
    policy::{
        buddy::PAGE_BYTES,
        eviction::{
            each_next,
            Holders,
            Place, //
        }, //
    },
    spec::mmu::Target,
    submit::report, //
};
use core::fmt::Write as _;
use kernel::{
    drm::{
        gem::BaseObject,
        Registered, //
    },
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed, //
    }, //
};

/// What the DRM core makes files of, when it registers the device.
pub(crate) const FILES: &[DebugfsFile<SkuaDriver>] = &[
    DebugfsFile {
        name: c"regions",
        show: |dev, out| {
            regions(dev, out).map_err(full)?;
            let parent = gpu::parent(dev);
            let vram = Vram::new(dev, parent, Part::Any, None);
            holders("vram0", &vram, Part::Any.free_bytes(dev), out)?;
            let aperture = Aperture::whole(dev, parent);
            holders("aperture", &aperture, gart::free_bytes(dev), out)
        },
    },
    DebugfsFile {
        name: c"residents",
        show: |dev, out| residents(dev, out),
    },
    DebugfsFile {
        name: c"gart",
        show: |dev, out| gart_pages(dev, out),
    },
    DebugfsFile {
        name: c"vms",
        show: |dev, out| vms(dev, out),
    },
    DebugfsFile {
        name: c"entries",
        show: |dev, out| entries(dev, out),
    },
    DebugfsFile {
        name: c"contexts",
        show: |dev, out| report::contexts(dev, out).map_err(full),
    },
    DebugfsFile {
        name: c"rings",
        show: |dev, out| report::rings(dev, out).map_err(full),
    },
    DebugfsFile {
        name: c"paging",
        show: |dev, out| paging(dev, out),
    },
    DebugfsFile {
        name: c"idle",
        show: |dev, out| toggle(&dev.hw.wants_idle, out),
    },
    DebugfsFile {
        name: c"reset",
        show: |dev, out| {
            let resets = || dev.counters.adapter_resets.load(Acquire);
            let before = resets();
            dev.reset_later(dev.hw.generation());
            dev.wait_for(|| Ok(resets() != before))?;
            writeln!(out, "{}", resets()).map_err(full)
        },
    },
    DebugfsFile {
        name: c"quarantine",
        show: |dev, out| {
            let (kept, dying, bytes) = dev.reapers.usage();
            let kept = u32::from(kept);
            let for_good = KEPT_FOR_GOOD.load(Relaxed);
            write!(out, "kept: {kept}\ndying: {dying}\n").map_err(full)?;
            write!(out, "bytes: {bytes}\nfor good: {for_good}\n").map_err(full)
        },
    },
    DebugfsFile {
        name: c"clearing",
        show: |dev, out| writeln!(out, "{}", u32::from(Clearer::toggle(dev)?)).map_err(full),
    },
    DebugfsFile {
        name: c"preemption",
        show: |dev, out| toggle(&dev.preempts, out),
    },
    DebugfsFile {
        name: c"reuse",
        show: |dev, out| toggle(&dev.expects_reuse, out),
    },
    DebugfsFile {
        name: c"zap",
        show: |dev, out| writeln!(out, "{}", gem::unmap_all(dev)).map_err(full),
    },
    DebugfsFile {
        name: c"evict",
        show: |dev, out| {
            let parent = gpu::parent(dev);
            let moved = eviction::evict_all(dev, Vram::whole(dev, parent))?;
            let left = eviction::evict_all(dev, Aperture::whole(dev, parent))?;
            writeln!(out, "{}", moved.saturating_add(left)).map_err(full)
        },
    },
    DebugfsFile {
        name: c"counters",
        show: |dev, out| counters(dev, out),
    },
    DebugfsFile {
        name: c"parameters",
        show: |_, out| parameters(out).map_err(full),
    },
];

/// How many of the objects that leave next are shown.
const NEXT: usize = 32;

fn full(_: core::fmt::Error) -> Error {
    ENOSPC
}

/// Turns a switch to what it was not, and says what it is.
fn toggle(switch: &Atomic<bool>, out: &mut SeqPrinter<'_>) -> Result {
    let is_on = !switch.load(Relaxed);
    switch.store(is_on, Relaxed);
    writeln!(out, "{}", u32::from(is_on)).map_err(full)
}

fn name_of(region: u32) -> &'static str {
    match region {
        REGION_VRAM => "vram0",
        REGION_APERTURE => "aperture",
        _ => "system",
    }
}

fn regions(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> core::fmt::Result {
    for region in [REGION_SYSTEM, REGION_VRAM, REGION_APERTURE] {
        let (size, used) = dev.region_usage(region);
        writeln!(out, "{}: size {} used {}", name_of(region), size, used)?;
    }
    {
        let aperture = dev.host_aperture.lock();
        writeln!(
            out,
            "host aperture: pages {} used {} for locks {}",
            aperture.total(),
            aperture.used(),
            dev.host_aperture_claimed.load(Relaxed)
        )?;
    }
    let is_clearing = Clearer::has_work(dev);
    let vram = dev.vram.lock();
    writeln!(
        out,
        "vram0: clean {}{}",
        vram.clean_pages().0.saturating_mul(PAGE_BYTES),
        if is_clearing { ", being cleared" } else { "" }
    )?;
    writeln!(
        out,
        "vram0: largest free block {} pages",
        vram.largest_free_block().0
    )?;
    for order in 0..=vram.total().0.checked_ilog2().unwrap_or(0) {
        writeln!(
            out,
            "vram0: order {} free {}",
            order,
            vram.free_blocks(order)
        )?;
    }
    Ok(())
}

/// Prints what holds the memory of a region, and who leaves it next, in that order.
fn holders(
    name: &str,
    place: &impl Place<Error = Error>,
    free: u64,
    out: &mut SeqPrinter<'_>,
) -> Result {
    let sums = Holders::of(place)?.sums();
    write!(out, "{}: free {}", name, free).map_err(full)?;
    for (word, sum) in Holders::WORDS.iter().zip(sums) {
        write!(out, " {} {}", word, sum).map_err(full)?;
    }
    writeln!(out).map_err(full)?;
    each_next(place, NEXT, |rank, object| {
        let facts = place.facts(object)?;
        let what = Holders::word(&facts, place.is_idle(object));
        writeln!(out, "{}: {}: {} {}", name, rank.name(), facts.bytes, what).map_err(full)
    })
}

fn residents(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> Result {
    let mut result = Ok(());
    file::for_each_client(dev, |client| {
        client.file.inner().for_each_device(|number, device| {
            device.residents().for_each(|bo, times| {
                let line = writeln!(
                    out,
                    "client {} pid {} device {}: {} {} times {} ({})",
                    client.id,
                    client.pid,
                    number,
                    name_of(bo.region()),
                    bo.size(),
                    times,
                    client.name.to_str().unwrap_or("?")
                );
                result = result.and(line.map_err(full));
            });
        });
    });
    result
}

fn gart_pages(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> Result {
    for page in GART_PAGES..dev.hw.caps.gart_pages {
        let entry = {
            let shared = dev.hw.shared()?;
            shared.gart_entry(page)?
        };
        // What is read only is the dummy page.
        if let (Target::System(bus), true) = (entry.target(), entry.is_writable()) {
            let snoop = u32::from(entry.is_snooped());
            writeln!(out, "page {}: bus {:#x} snoop {}", page, bus.0, snoop).map_err(full)?;
        }
    }
    Ok(())
}

fn vms(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> Result {
    let parent = gpu::parent(dev);
    let mut result = Ok(());
    dev.vms.for_each(|vm| {
        let (mappings, bytes, installed, tables) = vm.usage(parent);
        let line = writeln!(
            out,
            "vm {}: mappings {} bytes {} installed {} tables {} held {} out {} displaced {}",
            vm.asid(),
            mappings,
            bytes,
            installed,
            tables,
            vm.holds().len(),
            vm.evicted.wanted(),
            vm.displaced.wanted()
        );
        result = result.and(line.map_err(full));
    });
    result
}

fn entries(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> Result {
    let parent = gpu::parent(dev);
    let mut result = Ok(());
    dev.vms.for_each(|vm| {
        let (mut snooped, mut unsnooped, mut physical) = (0_u64, 0_u64, 0_u64);
        let seen = vm.each_page(parent, u32::MAX, &mut |_, _, entry| {
            *match (entry.target(), entry.is_snooped()) {
                (Target::Vram(_), _) => &mut physical,
                (Target::System(_), true) => &mut snooped,
                (Target::System(_), false) => &mut unsnooped,
            } += 1;
        });
        let line = writeln!(
            out,
            "vm {}: snooped {} unsnooped {} physical {}",
            vm.asid(),
            snooped,
            unsnooped,
            physical
        );
        result = result.and(seen).and(line.map_err(full));
    });
    result
}

fn paging(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> Result {
    let (bytes, tables, (ticks, packets)) = {
        let shared = dev.hw.shared()?;
        let paging = &shared.paging;
        (
            paging.space.bytes(),
            paging.table_bytes(),
            shared.descriptor_usage(PAGING_CONTEXT)?,
        )
    };
    let written = writeln!(
        out,
        "va: {}\ntable_bytes: {}\nticks: {}\npackets: {}\nbusy: {}",
        bytes,
        tables,
        ticks,
        packets,
        dev.hw.busy.load(Relaxed)
    );
    written.map_err(full)
}

fn counters(dev: &SkuaDevice<Registered>, out: &mut SeqPrinter<'_>) -> Result {
    // Before the snapshot, which itself writes a register.
    let (register_reads, register_writes) = dev.hw.register_accesses();
    let own = [
        ("submissions", dev.counters.submissions.load(Relaxed)),
        ("binds", dev.counters.binds.load(Relaxed)),
        ("interrupts", dev.counters.interrupts.load(Relaxed)),
        ("engine_resets", dev.counters.engine_resets.load(Relaxed)),
        ("adapter_resets", dev.counters.adapter_resets.load(Relaxed)),
        ("preemptions", dev.counters.preemptions.load(Relaxed)),
        ("cancelled_commands", dev.hw.cancelled.load(Relaxed)),
        ("evictions", dev.counters.evictions.load(Relaxed)),
        ("promotions", dev.counters.promotions.load(Relaxed)),
        ("context_moves", dev.counters.context_moves.load(Relaxed)),
        ("context_inits", dev.counters.context_inits.load(Relaxed)),
        (
            "context_not_resident",
            dev.counters.context_not_resident.load(Relaxed),
        ),
        (
            "pages_given_back",
            dev.counters.pages_given_back.load(Relaxed),
        ),
        (
            "discarded_bytes",
            dev.counters.discarded_bytes.load(Relaxed),
        ),
        ("clean_bytes", dev.counters.clean_bytes.load(Relaxed)),
        ("clean_kept", dev.counters.clean_kept.load(Relaxed)),
        ("clean_dropped", dev.counters.clean_dropped.load(Relaxed)),
        (
            "background_clears",
            dev.counters.background_clears.load(Relaxed),
        ),
        (
            "background_clear_bytes",
            dev.counters.background_clear_bytes.load(Relaxed),
        ),
        (
            "clean_creations",
            dev.counters.clean_creations.load(Relaxed),
        ),
        ("aperture_maps", dev.counters.aperture_maps.load(Relaxed)),
        (
            "aperture_reclaims",
            dev.counters.aperture_reclaims.load(Relaxed),
        ),
        ("segment_maps", dev.counters.segment_maps.load(Relaxed)),
        ("segment_unmaps", dev.counters.segment_unmaps.load(Relaxed)),
        ("tlb_flushes", dev.counters.tlb_flushes.load(Relaxed)),
        ("reaper_cuts", crate::reaper::cuts()),
        ("entries", dev.hw.entries.load(Relaxed)),
        ("register_reads", register_reads),
        ("register_writes", register_writes),
    ];
    dev.snapshot()?;
    for (name, value) in own {
        writeln!(out, "driver_{}: {}", name, value).map_err(full)?;
    }
    let mut result = Ok(());
    dev.counters(|name, value| {
        let line = writeln!(out, "{}: {}", name, value);
        result = result.and(line.map_err(full));
    })?;
    result
}

fn parameters(out: &mut SeqPrinter<'_>) -> core::fmt::Result {
    use crate::module_parameters as all;

    let values = [
        ("evict", all::evict.value().into()),
        ("job_timeout_ms", all::job_timeout_ms.value()),
        ("preemption", all::preemption.value().into()),
        ("preempt_timeout_ms", all::preempt_timeout_ms.value()),
        ("system_limit_mb", all::system_limit_mb.value()),
        ("tdr_ddi_delay_ms", all::tdr_ddi_delay_ms.value()),
        ("tdr_level", all::tdr_level.value().into()),
        ("tdr_limit_count", all::tdr_limit_count.value()),
        ("tdr_limit_time", all::tdr_limit_time.value()),
    ];
    for (name, value) in values {
        writeln!(out, "{}: {}", name, value)?;
    }
    Ok(())
}
