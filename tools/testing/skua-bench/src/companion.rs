// SPDX-License-Identifier: MIT

//! A thread that has the CPU when nobody else wants it.
//!
//! It is there for two things:
//!
//! - **The CPU is never idle.** While it is idle, guest time jumps from timer to timer
//!   (`sleep=off`), so that it would count nothing; and the driver's watchdog would see seconds
//!   pass in which the GPU, which runs in the host's time, had none.
//! - **It opens the gate.** Work of the [`crate::rig`] waits in the engine until a word of memory
//!   is large enough. The measuring thread says which value it wants there, and goes on; the
//!   companion writes it once that thread sleeps. So a submission is measured while the engine has
//!   not ended anything of it, and a wait always sleeps.
//!
//! With one CPU and the least weight that the scheduler has, it runs only when the others sleep,
//! but for a time slice now and then, which a median does not see.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use libskua::Mapping;

/// The weakest niceness.
const NICE: i32 = 19;

/// What the measuring thread wants of the companion.
#[derive(Debug, Default)]
struct Wishes {
    /// What the gate's word is to hold.
    gate: AtomicU64,
    /// Leave the CPU until unparked.
    idle: AtomicBool,
    /// End the thread.
    stop: AtomicBool,
}

/// The thread; it ends when dropped.
#[derive(Debug)]
pub struct Companion {
    /// Shared with the thread.
    wishes: Arc<Wishes>,
    /// `None` while it is dropped.
    thread: Option<JoinHandle<()>>,
}

impl Companion {
    /// Starts it; the gate is the first word of `gate`.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(gate: Mapping) -> Result<Self> {
        let wishes = Arc::new(Wishes::default());
        let its = wishes.clone();
        let thread = std::thread::Builder::new()
            .name("skua-idle".to_owned())
            .spawn(move || run(&its, &gate))
            .context("a thread")?;
        Ok(Self {
            wishes,
            thread: Some(thread),
        })
    }

    /// Opens the gate to work that waits for `value` or less, when the caller sleeps.
    pub fn open(&self, value: u64) {
        self.wishes.gate.store(value, Ordering::Release);
    }

    /// Lets the CPU idle while `f` runs.
    pub fn away<T>(&self, f: impl FnOnce() -> T) -> T {
        self.wishes.idle.store(true, Ordering::Release);
        let result = f();
        self.wishes.idle.store(false, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        result
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.wishes.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic, and if it did: nothing is left to do.
            let _ = thread.join();
        }
    }
}

fn run(wishes: &Wishes, gate: &Mapping) {
    // Without it the medians are worse, and the numbers the same.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut open = 0;
    while !wishes.stop.load(Ordering::Acquire) {
        let wish = wishes.gate.load(Ordering::Acquire);
        if wish != open && gate.write(0, wish).is_ok() {
            open = wish;
        }
        if wishes.idle.load(Ordering::Acquire) {
            std::thread::park();
        }
    }
}
