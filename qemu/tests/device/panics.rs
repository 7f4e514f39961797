// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An engine that has panicked answers nobody: its process ends with it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use skua_gpu::device::Device;
use skua_gpu::interrupt::Interrupts;
use skua_gpu::options::Options;
use skua_gpu::vram::Vram;
use skua_spec::regs::engine;
use skua_testbed::{COMPUTE, VRAM_BYTES};

/// Set in the process that is to end.
const CHILD: &str = "SKUA_GPU_PANICS";

/// Interrupts that panic on the engine's thread.
struct Panics;

impl Interrupts for Panics {
    fn raise(&self, _vector: u32) {
        panic!("to be seen by the test");
    }
}

#[test]
fn a_panic_of_an_engine_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let vram = Arc::new(Vram::anonymous(VRAM_BYTES).unwrap());
        let device = Device::new(&Options::default(), vram, Arc::new(Panics)).unwrap();
        device.set_bus_master(true);
        // No ring is there: a fault, which is reported with an interrupt.
        let ctrl = engine::CTRL.of(COMPUTE);
        device.write(ctrl.into(), &1_u32.to_le_bytes());
        // Longer than anything takes that does not hang; the process is to end meanwhile.
        std::thread::sleep(Duration::from_secs(20));
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "panics::a_panic_of_an_engine_ends_the_process"])
        .env(CHILD, "1")
        .status()
        .unwrap();
    // SIGABRT
    assert_eq!(status.signal(), Some(6), "{status}");
}
