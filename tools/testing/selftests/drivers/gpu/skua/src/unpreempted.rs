// SPDX-License-Identifier: MIT

//! What holds on a device whose engines are asked for nothing: by its own word, or by the driver's.

use std::thread;
use std::time::Duration;

use crate::function::Function;
use crate::program::LOOP;
use crate::rig::{dispatch, fill, wait_value, write};
use crate::suite::becomes;
use crate::witness::quiet;
use crate::{Engine, Errno, Place, Rig};

/// The driver asks no engine to stop, as long as it lives.
pub struct Unasked;

impl Unasked {
    /// From now on.
    ///
    /// # Panics
    ///
    /// If it is so already.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "a guard is asked for")]
    pub fn new() -> Self {
        let now = Function::first().debugfs("preemption").expect("debugfs");
        assert_eq!(now.trim(), "0");
        Self
    }
}

impl Drop for Unasked {
    fn drop(&mut self) {
        let now = Function::first().debugfs("preemption").expect("debugfs");
        assert_eq!(now.trim(), "1");
    }
}

/// Requests by the driver; those that the device took, and ignored; bytes that it saved; resets.
fn requests() -> [u64; 5] {
    Function::first().counters([
        "driver_preemptions",
        "preempt",
        "preempt_ignored",
        "saved_bytes",
        "driver_engine_resets",
    ])
}

/// The most important work waits until what runs has ended.
///
/// # Panics
///
/// If it does not, or an engine is asked to stop.
#[track_caller]
pub fn expect_important_work_to_wait() {
    let rig = Rig::new();
    let [low, high] = [-7, 7].map(|priority| {
        let context = rig.context_having_worked(Engine::Compute);
        assert_eq!(rig.prioritise(context, priority), Ok(()));
        context
    });
    let target = rig.buffer(Place::Vram, 4 << 20);
    let count = rig.buffer(Place::System, 4096);
    let mut work = vec![write(count.va, 1)];
    work.extend((0..50).map(|n| fill(n, target.va, 4 << 20)));
    work.push(wait_value(count.va + 8, 1));
    let long = rig.start_in(low, &work);
    becomes("it begins", || count.cpu.read(0) == 1);
    let important = rig.start_in(high, &[write(count.va + 16, 1)]);
    // Nor does a wait give way.
    thread::sleep(Duration::from_millis(100));
    assert!(!important.has_ended(), "it overtook");
    count.cpu.write(8, 1);
    assert_eq!(important.wait(), Ok(()));
    assert!(long.has_ended(), "it came first");
    assert_eq!(requests(), [0; 5]);
}

/// Work that never ends is cut by a reset at once, and others' goes on.
///
/// # Panics
///
/// If it is not so.
#[track_caller]
pub fn expect_resets_alone() {
    quiet();
    let rig = Rig::new();
    let program = rig.program(LOOP);
    let endless = rig.start(Engine::Compute, &[dispatch(&program, LOOP, &[])]);
    assert_eq!(endless.wait(), Err(Errno::ETIME));
    assert_eq!(requests(), [0, 0, 0, 0, 1]);
    let other = Rig::new();
    assert_eq!(other.run(Engine::Compute, &[]), Ok(()));
}
