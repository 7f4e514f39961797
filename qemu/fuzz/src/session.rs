// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One device for all inputs, set up anew for each.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use skua_spec::command::Command;
use skua_spec::regs;
use skua_spec::status::EngineState;

use crate::harness::{Gpu, DATA, DATA_BYTES, STATUS};

thread_local! {
    static GPU: RefCell<Option<Gpu>> = const { RefCell::new(None) };
}

/// Gives `start` a device that is set up, lets the engines work for a moment, and then checks that
/// both can be reset and used: whatever stood in memory, the device is still a device.
pub(crate) fn with(start: impl FnOnce(&mut Gpu)) {
    GPU.with_borrow_mut(|slot| {
        let gpu = slot.get_or_insert_with(Gpu::new);
        gpu.clear_vram(DATA, DATA_BYTES);
        start(gpu);
        let since = Instant::now();
        for engine in 0..2 {
            // By registers: the status page is memory that the input may have changed.
            let read = |register| gpu.read(regs::engine_reg(engine, register));
            let busy = || match read(regs::engine::STATUS) {
                state if state == EngineState::Idle as u32 => {
                    read(regs::engine::HEAD) != read(regs::engine::TAIL)
                }
                state => state == EngineState::Running as u32,
            };
            while busy() && since.elapsed() < Duration::from_millis(2) {
                std::thread::yield_now();
            }
        }
        // The status page may lie under the input's page tables: it is written anew.
        gpu.write(regs::STATUS_CTRL, 0);
        for engine in 0..2 {
            gpu.write(
                regs::engine_reg(engine, regs::engine::CTRL),
                regs::engine::CTRL_RESET,
            );
            gpu.wait_for("a reset", |gpu| {
                gpu.read(regs::engine_reg(engine, regs::engine::CTRL)) == 0
            });
        }
        gpu.set_system(STATUS, &[0; 4096]);
        gpu.set_up();
        for engine in 0..2 {
            gpu.run(engine, &[Command::Nop { words: 2 }]);
        }
    });
}
