// SPDX-License-Identifier: MIT

//! What a guest is booted for: one [`Job`], a JSON file in the guest's output share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the guest mounts the build products, read-only: `bin/`, `skua.ko`, `kselftest/`.
pub const PRODUCTS: &str = "/mnt/skua";

/// Where the guest mounts its output share, writable, with the job in it.
pub const OUTPUT: &str = "/mnt/out";

/// The job's file name in the output share.
pub const FILE: &str = "job.json";

/// A script of GDB in the output share that reads the module's symbols for its addresses.
pub const MODULE_GDB: &str = "module.gdb";

/// What the driver's tracepoints told, in the output share.
pub const TRACE: &str = "trace.txt";

/// The guest's exit status for "the job could not be done".
pub const BROKEN: i32 = 125;

/// The work of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Parameters of the driver module; `None` leaves it unloaded.
    pub module: Option<String>,
    /// What to run once the driver is there.
    pub task: Task,
    /// How many times longer than usual anything may take (a debug kernel is slow). At least 1.
    pub patience: u32,
    /// For a debugger: where its host has the module with its symbols. The guest then leaves the
    /// module's addresses in [`MODULE_GDB`].
    pub symbols: Option<PathBuf>,
    /// Leave what the driver's tracepoints tell in [`TRACE`].
    pub trace: bool,
}

/// The kinds of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Run installed kselftests, reporting KTAP.
    Tests {
        /// Entries of `kselftest-list.txt`, `collection:program`.
        programs: Vec<String>,
        /// Handed to the programs as `SKUA_TEST_FILTER`: a part of the names wanted.
        filter: Option<String>,
        /// Report the results of the KUnit suites that ran when the module was loaded.
        kunit: bool,
        /// Have everything that can move out of VRAM do so, again and again.
        evict: bool,
        /// Handed to the programs as `SKUA_POINTS`: how often work is to be preempted.
        points: Option<u64>,
        /// The guest sleeps meanwhile, which 9p does not survive: have everything in memory.
        sleeps: bool,
    },
    /// Run one program, its output on the console, its exit status the guest's.
    Command {
        /// The program, looked up in `bin/` too, and its arguments.
        argv: Vec<String>,
    },
    /// An interactive shell on the console.
    Shell {
        /// Rows and columns of the user's terminal.
        size: (u16, u16),
        /// The user's `TERM`.
        term: String,
    },
}
