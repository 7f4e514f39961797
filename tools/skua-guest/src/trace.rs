// SPDX-License-Identifier: MIT

//! Records the driver's tracepoints for the host.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use skua_guest::job::{OUTPUT, TRACE};

/// An instance of its own: programs may trace, too.
const INSTANCE: &str = "/sys/kernel/tracing/instances/skua-trace";
/// KiB for each CPU: some 300,000 events.
const BUFFER: &str = "32768";

fn write(file: &str, value: &str) -> Result<()> {
    let path = Path::new(INSTANCE).join(file);
    fs::write(&path, value).with_context(|| path.display().to_string())
}

/// Records all events of the driver, which is loaded.
///
/// # Errors
///
/// If the kernel has no such events.
pub(crate) fn start() -> Result<()> {
    fs::create_dir(INSTANCE).context(INSTANCE)?;
    write("buffer_size_kb", BUFFER)?;
    // The same on all CPUs.
    write("trace_clock", "mono")?;
    write("events/skua/enable", "1")?;
    write("tracing_on", "1")
}

/// Leaves what was recorded in the output share.
///
/// # Errors
///
/// If it cannot be read or written.
pub(crate) fn finish() -> Result<()> {
    write("tracing_on", "0")?;
    let path = Path::new(OUTPUT).join(TRACE);
    fs::copy(Path::new(INSTANCE).join("trace"), &path)
        .with_context(|| path.display().to_string())?;
    Ok(())
}
