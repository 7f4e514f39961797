// SPDX-License-Identifier: MIT

//! How often this thread has the kernel call some of its functions: by the function tracer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A count under way, in an instance of tracing of its own.
#[derive(Debug)]
pub struct Calls {
    /// The instance's, removed by drop.
    dir: PathBuf,
}

impl Calls {
    /// Counts calls of `functions` by this thread from now on.
    ///
    /// # Panics
    ///
    /// If the kernel has no such function, or no function tracer.
    #[track_caller]
    pub fn of(functions: &[&str]) -> Self {
        let thread = nix::unistd::gettid();
        let dir = Path::new("/sys/kernel/tracing/instances").join(format!("skua-calls-{thread}"));
        fs::create_dir(&dir).expect("an instance of tracing");
        let calls = Self { dir };
        calls.write("set_ftrace_pid", &thread.to_string());
        calls.write("set_ftrace_filter", &functions.join("\n"));
        calls.write("current_tracer", "function");
        calls.write("tracing_on", "1");
        calls
    }

    #[track_caller]
    fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// The calls of each function so far; those that were never called are missing.
    ///
    /// # Panics
    ///
    /// If the trace cannot be read.
    #[track_caller]
    pub fn count(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for function in self.order() {
            *counts.entry(function).or_insert(0) += 1;
        }
        counts
    }

    /// The functions that were called so far, in that order.
    ///
    /// # Panics
    ///
    /// If the trace cannot be read, or is not whole.
    #[track_caller]
    pub fn order(&self) -> Vec<String> {
        self.write("tracing_on", "0");
        let trace = fs::read_to_string(self.dir.join("trace")).expect("trace");
        assert!(!trace.contains("LOST"), "something is missing");
        let lines = trace.lines().filter(|line| !line.starts_with('#'));
        let calls = lines.filter_map(|line| line.split_once(" <-"));
        let names = calls.filter_map(|(before, _)| before.split_whitespace().last());
        names.map(str::to_owned).collect()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("current_tracer"), "nop");
        let _ = fs::remove_dir(&self.dir);
    }
}
