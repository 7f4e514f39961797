// SPDX-License-Identifier: MIT

//! Allocations that fail, one at a time (`fail-nth` of
//! `Documentation/fault-injection/fault-injection.rst`): of the debugging configuration alone.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::skip;

/// `fail-nth` of this thread.
#[derive(Debug)]
pub struct Failures(File);

impl Failures {
    /// Nothing fails yet.
    ///
    /// # Panics
    ///
    /// If the kernel can have allocations fail, and does not take how.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "it sets the kernel up")]
    pub fn new() -> Self {
        let path = format!("/proc/self/task/{}/fail-nth", nix::unistd::gettid());
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
            skip("the kernel has no fault injection");
        };
        // By itself it fails what may not sleep, alone. Nothing of it is told on the console.
        for (file, value) in [
            ("failslab/ignore-gfp-wait", "N"),
            ("fail_page_alloc/ignore-gfp-wait", "N"),
            ("fail_page_alloc/ignore-gfp-highmem", "N"),
            ("fail_page_alloc/min-order", "0"),
            ("failslab/verbose", "0"),
            ("fail_page_alloc/verbose", "0"),
            ("fail_usercopy/verbose", "0"),
        ] {
            fs::write(Path::new("/sys/kernel/debug").join(file), value)
                .unwrap_or_else(|error| panic!("{file}: {error}"));
        }
        Self(file)
    }

    /// Calls `call`, the `n`-th of whose allocations fails, if there are so many; and whether there
    /// were.
    ///
    /// # Panics
    ///
    /// If the kernel does not take it.
    pub fn with<R>(&self, n: u32, call: impl FnOnce() -> R) -> (R, bool) {
        let number = n.to_string();
        self.0.write_at(number.as_bytes(), 0).expect("fail-nth");
        let result = call();
        // It may come to the question, and to taking it back.
        let mut left = [0; 16];
        let met = match self.0.read_at(&mut left, 0) {
            Ok(bytes) => left[..bytes].trim_ascii() == b"0",
            Err(_) => false,
        };
        if self.0.write_at(b"0", 0).is_err() {
            self.0.write_at(b"0", 0).expect("fail-nth");
        }
        (result, met)
    }

    /// Calls `call` again and again, each time after `prepare`: the first of its allocations fails,
    /// then the second and so on, until there are no more; how many there were. `check` gets what
    /// it returned.
    ///
    /// # Panics
    ///
    /// If there is no end.
    #[track_caller]
    pub fn each<R>(&self, prepare: impl Fn(), call: impl Fn() -> R, check: impl Fn(R)) -> u32 {
        for n in 1..5000 {
            prepare();
            let (result, met) = self.with(n, &call);
            check(result);
            if !met {
                return n - 1;
            }
        }
        panic!("allocations without end");
    }
}
