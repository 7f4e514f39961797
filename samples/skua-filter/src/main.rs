// SPDX-License-Identifier: MIT

//! `skua-filter`: filters an image on the GPU, and checks the result against the CPU.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use skua_filter::compare::difference;
use skua_filter::counters::Counters;
use skua_filter::filter::Filter;
use skua_filter::gpu;
use skua_filter::picture::Picture;
use skua_filter::plan::Plan;
use skua_filter::report::Report;
use skua_filter::urgent::Urgent;
use skua_filter::weights::MAX_RADIUS;
use skua_filter::{reference, sample};
use wddm::Adapter;

/// Filters an image on the Skua GPU, and compares the result with the CPU's.
///
/// The exit code is 0 only if the GPU's result is, to the bit, what the CPU computes.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// A PNG or JPEG file.
    #[arg(short, long)]
    input: Option<PathBuf>,
    /// Draw a sample picture; so without --input.
    #[arg(long, conflicts_with = "input")]
    sample: bool,
    /// The filter; see --list.
    #[arg(short, long, value_parser = filter, default_value = "edge")]
    filter: Filter,
    /// The radius of the blur in pixels.
    #[arg(
        short,
        long,
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_RADIUS))
    )]
    radius: u32,
    /// Where to write the result as PNG.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Where to write the report.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Bytes of VRAM for bands of the image; three quarters of what is free if not given.
    #[arg(long)]
    budget: Option<u64>,
    /// Bytes of memory to work on, in several copies of the image; four times the VRAM if not
    /// given.
    #[arg(long)]
    working_set: Option<u64>,
    /// List the filters.
    #[arg(long)]
    list: bool,
}

fn filter(name: &str) -> Result<Filter, String> {
    Filter::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Filter::ALL.iter().map(|f| f.name()).collect();
        format!("the filters are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for filter in Filter::ALL {
            println!("{:<10} {}", filter.name(), filter.description());
        }
        return ExitCode::SUCCESS;
    }
    let mut report = Report::default();
    let outcome = run(&options, &mut report);
    let mut passed = outcome.is_ok();
    report.add("result", if passed { "passed" } else { "failed" });
    if let Err(error) = outcome {
        report.add("error", &error);
        eprintln!("skua-filter: {error}");
    }
    print!("{report}");
    if let Some(path) = &options.report {
        if let Err(error) = fs::write(path, report.to_string()) {
            eprintln!("skua-filter: cannot write {}: {error}", path.display());
            passed = false;
        }
    }
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(options: &Options, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let Options { filter, radius, .. } = *options;
    report.add("filter", filter.name());
    if filter == Filter::Blur {
        report.add("radius", radius);
    }
    let picture = match &options.input {
        Some(path) => Picture::load(path)?,
        None => sample::picture(),
    };
    let (width, height) = (picture.width(), picture.height());
    report.add("image", format_args!("{width}x{height}"));

    let adapter = Adapter::open_first()?;
    let bus_id = &adapter.info().bus_id;
    report.add("device", bus_id);
    let budget = match options.budget {
        Some(budget) => budget,
        None => gpu::budget(&adapter)?,
    };
    let working_set = match options.working_set {
        Some(bytes) => bytes,
        None => gpu::working_set(&adapter)?,
    };
    let plan = Plan::new(filter, radius, width, height, budget)?;
    report.add("bands", plan.bands().len());
    let vram = adapter.vram();
    let segments = adapter.segments()?.into_iter();
    let vram: u64 = segments
        .filter(|segment| vram.contains(segment.id))
        .map(|segment| segment.size)
        .sum();
    report.add("vram_bytes", vram);

    let before = Counters::read(adapter.libskua(), bus_id);
    let urgent = Urgent::start(bus_id)?;
    let start = Instant::now();
    let (results, work) = gpu::run(&adapter, &plan, &picture, working_set)?;
    let gpu_time = start.elapsed();
    let latencies = urgent.map(Urgent::finish).transpose()?.unwrap_or_default();
    let after = Counters::read(adapter.libskua(), bus_id);

    report.add("copies", work.copies);
    report.add("working_set_bytes", work.working_set);
    report.add("submissions", work.submissions);
    report.add("dispatches", work.dispatches);
    report.add("bytes_uploaded", work.uploaded);
    report.add("bytes_downloaded", work.downloaded);
    for (key, name) in COUNTERS {
        match after.since(&before, name) {
            Some(value) => report.add(key, value),
            None => report.add(key, "unknown"),
        }
    }
    // What is copied beside that is moved from VRAM and to it.
    match after.since(&before, "copy_bytes") {
        Some(all) => report.add(
            "bytes_paged",
            all.saturating_sub(work.uploaded + work.downloaded),
        ),
        None => report.add("bytes_paged", "unknown"),
    }
    report.add("gpu_ms", gpu_time.as_millis());
    let [preempting, waiting] = &latencies;
    report.add("urgent_submissions", preempting.count() + waiting.count());
    for (key, latencies, percent) in [
        ("urgent_ticks_median", preempting, 50),
        ("urgent_ticks_p99", preempting, 99),
        ("urgent_unpreempted_ticks_median", waiting, 50),
        ("urgent_unpreempted_ticks_p99", waiting, 99),
    ] {
        match latencies.percentile(percent) {
            Some(ticks) => report.add(key, ticks),
            None => report.add(key, "unknown"),
        }
    }

    // The picture is written before it is judged: a wrong one should be seen.
    if let Some(path) = &options.output {
        results[0].save(path)?;
        report.add("output", path.display());
    }
    let start = Instant::now();
    let expected = reference::apply(filter, radius, &picture);
    report.add("cpu_ms", start.elapsed().as_millis());
    let mut compared = 0;
    for result in &results {
        if let Some(difference) = difference(&expected, result) {
            report.add("check_pixels", "failed");
            return Err(difference.into());
        }
        compared += result.pixels().len();
    }
    report.add("check_pixels", "passed");
    report.add("pixels_compared", compared);
    Ok(())
}

/// Keys of the report, and the counters that they show.
const COUNTERS: [(&str, &str); 16] = [
    ("ticks_compute", "drm-cycles-compute"),
    ("ticks_copy", "drm-cycles-copy"),
    ("interrupts_engines", "engine_interrupt"),
    ("interrupts_handled", "driver_interrupts"),
    ("driver_submissions", "driver_submissions"),
    ("doorbells", "doorbell"),
    ("packets", "packet"),
    ("thread_groups", "thread_group"),
    ("wave_instructions", "instruction"),
    ("evictions", "driver_evictions"),
    ("promotions", "driver_promotions"),
    ("bytes_copied", "copy_bytes"),
    ("vram_read_bytes", "vram_read_bytes"),
    ("vram_write_bytes", "vram_write_bytes"),
    ("faults", "fault"),
    ("engine_resets", "engine_reset"),
];
