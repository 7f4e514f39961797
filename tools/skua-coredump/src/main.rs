// SPDX-License-Identifier: MIT

//! `skua-coredump`: shows what a Skua GPU looked like when it failed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Shows what a Skua GPU looked like when it failed.
///
/// Without a file, all that the kernel has of Skua GPUs is shown.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// A dump that was copied from /sys/class/devcoredump.
    file: Option<PathBuf>,
    /// Have the kernel drop what was shown, so that it keeps the next one.
    #[arg(long, conflicts_with = "file")]
    clear: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("skua-coredump: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    if let Some(file) = &options.file {
        let name = file.display();
        let dump = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
        if !skua_coredump::is_dump(&dump) {
            return Err(format!("{name}: no core dump of a Skua GPU"));
        }
        print!("{}", skua_coredump::show(&dump));
        return Ok(());
    }
    let dumps = skua_coredump::dumps().map_err(|error| error.to_string())?;
    if dumps.is_empty() {
        return Err("the kernel has no core dump of a Skua GPU".into());
    }
    for (file, dump) in dumps {
        print!("{}", skua_coredump::show(&dump));
        if options.clear {
            let name = file.display();
            skua_coredump::clear(&file).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}
