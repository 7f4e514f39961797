// SPDX-License-Identifier: MIT

//! Measure 16: the CPU host aperture, through which the CPU reaches VRAM that it does not see.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{ensure, Context, Result};
use libskua::{Bo, BoFlags, Mapping, RegionKind};
use serde_json::json;

use crate::report::Report;
use crate::rig::Rig;

/// How many times larger than the aperture what is seen through it is.
const TIMES: u64 = 8;
/// How long copies to one kind of memory take by the host's clock, at least, and how often each
/// kind has its turn.
const TURN: Duration = Duration::from_millis(200);
const TURNS: usize = 7;
/// A file that the host stamps.
const STAMP: &str = "stamp";

/// Fills the rows of measure 16. `share` is a directory of the host's.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(rig: &Rig, share: Option<&Path>, report: &mut Report) -> Result<()> {
    let regions = rig.device.regions()?;
    let vram = regions
        .iter()
        .find(|region| region.kind == RegionKind::Vram);
    let vram = vram.context("there is no VRAM")?;
    ensure!(vram.aperture_size > 0, "there is no host aperture");
    let (size, page) = (vram.aperture_size, vram.aperture_page_size);
    stream(rig, size, page, true, report)?;
    stream(rig, size, page, false, report)?;
    match share {
        Some(share) => copies(rig, vram.aperture_size, share, report),
        None => report.unmeasured("aperture.copy", "(the host's clock cannot be seen)"),
    }
}

/// An object that the CPU maps.
fn object(rig: &Rig, size: u64, is_near: bool) -> Result<(Bo, Mapping)> {
    let (vram, system) = (rig.device.vram(), rig.device.system());
    let placements = if is_near { system } else { vram | system };
    let bo = Bo::create(&rig.device, size, placements, BoFlags::CPU_ACCESS)?;
    if !is_near {
        rig.device.make_resident(&[&bo]).submit_and_wait()?;
    }
    let mapping = bo.map()?;
    Ok((bo, mapping))
}

/// The CPU looks at more than the aperture has pages for, page after page; or from the last page to
/// the first, so that nothing is to be had ahead.
fn stream(rig: &Rig, aperture: u64, page: u32, ahead: bool, report: &mut Report) -> Result<()> {
    let (bo, mapping) = object(rig, TIMES * aperture, false)?;
    let cost = rig.counters.cost()?;
    let before = rig.counters.read()?;
    let faults_before = faults()?;
    let pages = bo.size() / u64::from(page);
    for at in 0..pages {
        let at = if ahead { at } else { pages - 1 - at };
        mapping.read::<u64>(usize::try_from(at * u64::from(page))?)?;
    }
    let faults = faults()?.saturating_sub(faults_before);
    let grown = rig.counters.read()?.since(&before).since(&cost);
    let maps = grown.get("driver_aperture_maps")?;
    if !ahead {
        let flushes = grown.get("aperture_flush")?;
        return report.ratio("aperture.stream.flushes.off", flushes, maps);
    }
    report.ratio("aperture.stream.maps", maps, pages)?;
    report.ratio("aperture.stream.faults", faults, maps)?;
    for (row, counter) in [
        ("aperture.stream.flushes", "aperture_flush"),
        ("aperture.stream.register_writes", "register_write"),
        ("aperture.stream.register_reads", "register_read"),
    ] {
        report.ratio(row, grown.get(counter)?, maps)?;
    }
    Ok(())
}

/// Page faults of this thread that read nothing from a disk.
fn faults() -> Result<u64> {
    let stat = fs::read_to_string("/proc/thread-self/stat")?;
    // proc(5): `minflt` is the tenth field, and the second alone may have spaces in it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let count = fields.split_whitespace().nth(7);
    count
        .context("/proc/thread-self/stat")?
        .parse()
        .map_err(Into::into)
}

/// What the host's clock says: here a nanosecond is an instruction, whatever it waits for.
fn host_now(share: &Path) -> Result<SystemTime> {
    let file = share.join(STAMP);
    fs::write(&file, "now")?;
    let time = fs::metadata(&file)?.modified()?;
    fs::remove_file(&file)?;
    Ok(time)
}

/// Copies to pages of the aperture, in comparison with copies to pages of the guest's memory.
fn copies(rig: &Rig, aperture: u64, share: &Path, report: &mut Report) -> Result<()> {
    let size = aperture / 2;
    let (near, far) = (object(rig, size, true)?, object(rig, size, false)?);
    let source = vec![1; usize::try_from(size)?];
    // All pages are mapped from here on.
    near.1.write_bytes(0, &source)?;
    far.1.write_bytes(0, &source)?;
    let maps = || -> Result<u64> { rig.counters.read()?.get("driver_aperture_maps") };
    let before = maps()?;
    let copy = |to: &Mapping| -> Result<f64> {
        let start = host_now(share)?;
        for copies in 1.. {
            to.write_bytes(0, &source)?;
            let passed = match copies % 64 {
                0 => host_now(share)?.duration_since(start)?,
                _ => continue,
            };
            if passed >= TURN {
                return Ok(passed.as_secs_f64() / f64::from(copies));
            }
        }
        unreachable!("an end of the numbers");
    };
    let mut best = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        for (best, (_, to)) in best.iter_mut().zip([&near, &far]) {
            *best = best.min(copy(to)?);
        }
    }
    ensure!(maps()? == before, "pages were taken back");
    let detail = json!({ "bytes": size, "near_seconds": best[0], "far_seconds": best[1] });
    report.detailed("aperture.copy", best[0] / best[1], detail)
}
