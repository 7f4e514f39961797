// SPDX-License-Identifier: MIT

//! Measure 20: how much memory of the kernel an object takes.
//!
//! Objects are made in steps and kept; after each step the kernel's memory is read
//! ([`crate::kernel_memory`]), and a line fitted through the readings. Before each, the kernel
//! gives back what it can. The first step is not at zero: pages in which others left holes fill up
//! first.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use libskua::{Access, Bo, BoFlags, Context, Device, EngineKind, Placements, Vm};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::io::pwrite;
use rustix::process::{setrlimit, Resource, Rlimit};
use serde_json::json;

use crate::fit::Line;
use crate::kernel_memory::{drop_caches, shrink_slabs, Usage};
use crate::report::Report;
use crate::rig::{Rig, Shape};

/// Objects at which memory is read, of which there may be thousands.
const STEPS: [usize; 9] = [1024, 1280, 1536, 1792, 2048, 2304, 2560, 2816, 3072];
/// Objects at which memory is read, of which a device has no more than 1024.
const FEW: [usize; 8] = [448, 512, 576, 640, 704, 768, 832, 896];
/// Of these, so many for each client, which may have 256 with those of the rig.
const OF_A_CLIENT: usize = 224;
/// Bytes of a buffer object, and where the first is mapped: each next to the one before, or where
/// a page table is its own.
const PAGE: u64 = 4096;
const BASE: u64 = 1 << 40;
const TABLE: u64 = 2 << 20;
/// Guest time after which nothing is on its way to be freed any more: kernels batch what RCU frees
/// for up to five seconds. The CPU idles meanwhile, so that this is no time at all.
const SETTLE: Duration = Duration::from_secs(12);

/// Fills the rows of measure 20.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &mut Rig, report: &mut Report) -> Result<()> {
    let bo = |rig: &Rig, place: Placements| {
        Bo::create(&rig.device, PAGE, place, BoFlags::empty()).context("BO_CREATE")
    };
    // Each so many bytes behind the one before.
    let mapped = |place: Placements, apart: u64| {
        let vm = Vm::create(&rig.device)?;
        readings(rig, &STEPS, |n| {
            let bo = bo(rig, place)?;
            vm.map(&bo, BASE + n as u64 * apart, Access::ReadWrite)?;
            Ok(bo)
        })
    };
    settle(rig)?;
    // Each is open, and the usual limit is 1024.
    let (current, maximum) = (Some(4096), Some(4096));
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    let file = readings(rig, &STEPS, |_| file())?;
    fill(report, "memory.file", &file)?;
    for (name, place) in [
        ("memory.bo.system", rig.device.system()),
        ("memory.bo.vram", rig.device.vram()),
    ] {
        let alone = readings(rig, &STEPS, |_| bo(rig, place))?;
        fill(report, name, &alone)?;
        fill(report, &format!("{name}.mapped"), &mapped(place, PAGE)?)?;
    }
    let alone = mapped(rig.device.system(), TABLE)?;
    pages(report, "memory.bo.system.mapped.off", &alone)?;
    let most = FEW.last().copied().unwrap_or(0);
    let clients = (0..most.div_ceil(OF_A_CLIENT))
        .map(|_| Device::open_first().context("another client"))
        .collect::<Result<Vec<_>>>()?;
    let vm_of = |client: usize| {
        let client = clients.get(client).context("too few clients")?;
        Vm::create(client).context("VM_CREATE")
    };
    let vm = readings(rig, &FEW, |n| vm_of(n / OF_A_CLIENT))?;
    fill(report, "memory.vm", &vm)?;
    let vms = (0..clients.len()).map(vm_of).collect::<Result<Vec<_>>>()?;
    let context = readings(rig, &FEW, |n| {
        let engine = rig.device.engine(EngineKind::Copy);
        let engine = engine.context("there is no copy engine")?;
        let vm = vms.get(n / OF_A_CLIENT).context("too few clients")?;
        Context::create(vm, engine).context("CONTEXT_CREATE")
    })?;
    fill(report, "memory.context", &context)?;
    let jobs = jobs(rig)?;
    fill(report, "memory.job", &jobs)
}

/// A file of shmem with a page of content, as each buffer object has one where it is in system
/// memory.
fn file() -> Result<OwnedFd> {
    let file = memfd_create("skua-bench", MemfdFlags::empty())?;
    pwrite(&file, &[0], 0)?;
    Ok(file)
}

/// Has all that is to be freed be freed.
fn settle(rig: &Rig) -> Result<()> {
    drop_caches()?;
    rig.companion.away(|| std::thread::sleep(SETTLE));
    shrink_slabs()
}

/// Readings with so many objects, each made by its number, which are dropped after.
fn readings<T>(
    rig: &Rig,
    steps: &[usize],
    create: impl Fn(usize) -> Result<T>,
) -> Result<Vec<(usize, Usage)>> {
    let mut objects = Vec::with_capacity(steps.last().copied().unwrap_or(0));
    let mut readings = Vec::new();
    for step in steps {
        while objects.len() < *step {
            objects.push(create(objects.len())?);
        }
        settle(rig)?;
        readings.push((*step, Usage::read()?));
    }
    drop(objects);
    settle(rig)?;
    Ok(readings)
}

/// Readings with so many jobs in the queue of a context behind one that waits for the gate.
///
/// They have a buffer and signal nothing. Without settling: it would be the watchdog's time that
/// passes, and jobs on their way in leave nothing behind to be freed.
fn jobs(rig: &mut Rig) -> Result<Vec<(usize, Usage)>> {
    let most = STEPS.last().copied().unwrap_or(0);
    let mut batch = rig.batch_of(most, 1, false)?;
    let mut readings = Vec::new();
    let mut submitted = 0;
    for step in STEPS {
        rig.submit_range(&mut batch, submitted..step)?;
        submitted = step;
        shrink_slabs()?;
        readings.push((step, Usage::read()?));
    }
    // Something to wait for, behind them all; it waits for the gate too, which opens for both.
    rig.open();
    let mut last = rig.batch(Shape::One)?;
    rig.submit(&mut last)?;
    rig.finish()?;
    rig.check()?;
    Ok(readings)
}

fn line(readings: &[(usize, Usage)], bytes: impl Fn(&Usage) -> u64) -> Result<Line> {
    // CAST: far below 2^53.
    let point = |(count, usage): &(usize, Usage)| (*count as f64, bytes(usage) as f64);
    let points: Vec<_> = readings.iter().map(point).collect();
    Line::through(&points).context("too few readings")
}

/// Fills a row of pages.
fn pages(report: &mut Report, name: &str, readings: &[(usize, Usage)]) -> Result<()> {
    let pages = line(readings, |usage| usage.kernel)?;
    report.detailed(name, pages.slope, json!({ "deviation": pages.deviation }))
}

/// Fits lines, and fills the row of the pages and the one of the slabs.
fn fill(report: &mut Report, name: &str, readings: &[(usize, Usage)]) -> Result<()> {
    pages(report, name, readings)?;
    let slabs = line(readings, Usage::slab_bytes)?;
    let (_, first) = readings.first().context("too few readings")?;
    let mut caches = BTreeMap::new();
    for cache in first.slabs.keys() {
        let of = line(readings, |usage| {
            usage.slabs.get(cache).copied().unwrap_or(0)
        })?;
        // Less than a word is what the machine did meanwhile.
        if of.slope.abs() >= 8.0 {
            caches.insert(cache, of.slope);
        }
    }
    let detail = json!({ "deviation": slabs.deviation, "caches": caches });
    report.detailed(&format!("{name}.slab"), slabs.slope, detail)
}
