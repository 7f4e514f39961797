// SPDX-License-Identifier: MIT

//! `skua-vm run`: processes an image on the GPU, compares it with the CPU's result, and leaves
//! the picture and a report.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::Args;
use skua_guest::job::{Job, Task};

use crate::gdb;
use crate::guest::{boot, Words};
use crate::machine::{claim, Config};
use crate::{trace, Parts};

/// Options of `skua-vm run`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    parts: Parts,
    /// A PNG or JPEG; without it the built-in sample is drawn.
    #[arg(long)]
    image: Option<PathBuf>,
    /// The file name that the results are named after; the image's own without it.
    #[arg(long)]
    name: Option<PathBuf>,
    /// The filter, one of those that `skua-filter --list` shows; edge without it.
    #[arg(long)]
    filter: Option<String>,
    /// The radius of a blur, in pixels.
    #[arg(long)]
    radius: Option<u32>,
    /// VRAM of the GPU: bytes, or with K, M or G; a power of two, at least 2M. The work needs four
    /// times as much, or a quarter of the guest's memory for the GPU if that is less.
    #[arg(long, default_value = "16M")]
    vram: String,
    /// Record what driver and device do: trace.pftrace and trace.html.
    #[arg(long)]
    trace: bool,
    /// Where the picture, report.txt and the logs go.
    #[arg(long, default_value = "out/run")]
    output: PathBuf,
}

/// Processes the image; returns whether the GPU's result is the CPU's.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let _claim = claim(&options.output)?;
    let parts = options.parts.pin()?;
    let filter = options.filter.as_deref().unwrap_or("edge");
    let name = match options.name.as_ref().or(options.image.as_ref()) {
        Some(image) => stem(image)?,
        None => "sample".to_owned(),
    };
    let logs = options.output.join("log");
    fs::create_dir_all(&logs)?;
    let picture = format!("{name}-{filter}.png");
    let mut argv = vec!["skua-filter".to_owned()];
    let mut add = |option: &str, value: &str| argv.extend([option.to_owned(), value.to_owned()]);
    if let Some(image) = &options.image {
        // The guest sees the output share only.
        fs::copy(image, logs.join("input")).with_context(|| image.display().to_string())?;
        add("--input", "input");
    }
    add("--filter", filter);
    if let Some(radius) = options.radius {
        add("--radius", &radius.to_string());
    }
    // The program runs in the output share.
    add("--output", &picture);
    add("--report", "report.txt");
    for dir in [&logs, &options.output] {
        trace::remove(dir, &[&picture, "report.txt"])?;
    }
    let job = Job {
        module: Some(String::new()),
        task: Task::Command { argv },
        patience: parts.patience,
        symbols: parts.symbols(),
        trace: options.trace,
    };
    let mut gpu = vec!["--vram-size".to_owned(), options.vram.clone()];
    if options.trace {
        gpu.extend(trace::prepare(&logs, &options.output)?);
    }
    let config = Config {
        gpu,
        output: logs.clone(),
        ..Config::default()
    };
    if parts.gdb.is_some() {
        gdb::announce(&parts, &logs)?;
    }
    let end = boot(&parts, &config, &job, &mut Words)?;
    for result in [picture.as_str(), "report.txt"] {
        if logs.join(result).exists() {
            fs::rename(logs.join(result), options.output.join(result))?;
        }
    }
    let traced = options.trace.then_some(options.output.as_path());
    if !trace::conclude(&end, &logs, traced)? {
        return Ok(false);
    }
    if !options.output.join(&picture).exists() {
        bail!("skua-filter left no picture");
    }
    println!("picture: {}", options.output.join(&picture).display());
    println!("report:  {}", options.output.join("report.txt").display());
    Ok(true)
}

/// A file's name without its extension, with nothing in it that a shell or a path minds.
fn stem(path: &Path) -> Result<String> {
    let stem = path.file_stem().context("the image has no name")?;
    Ok(stem
        .to_string_lossy()
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_results_are_plain() {
        assert_eq!(
            stem(Path::new("/a/my photo;1.jpg")).expect("a name"),
            "my_photo_1"
        );
        assert_eq!(stem(Path::new("x.y.png")).expect("a name"), "x.y");
        assert!(stem(Path::new("..")).is_err());
    }
}
