// SPDX-License-Identifier: MIT

//! Moves everything that can move out of VRAM again and again, at any point of what programs do:
//! whoever says that moves are not noticed has to pass its tests beside this.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Where devices have their directories.
const DEVICES: &str = "/sys/kernel/debug/dri";
/// So that programs get something done in between.
const PAUSE: Duration = Duration::from_millis(2);

/// Has all devices' memory evicted while `work` is done.
pub(crate) fn beside<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                evict_all();
                thread::sleep(PAUSE);
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Asks each device once; one may be gone, or lost.
fn evict_all() {
    let devices = fs::read_dir(Path::new(DEVICES)).into_iter().flatten();
    for device in devices.flatten() {
        // By its name on the bus: the minors' directories are links to that.
        if device.file_name().to_string_lossy().contains(':') {
            let _ = fs::read(device.path().join("evict"));
        }
    }
}
