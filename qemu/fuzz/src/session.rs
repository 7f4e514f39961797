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
            // By the register: the status page is memory that the input may have changed.
            let state = || gpu.read(regs::engine_reg(engine, regs::engine::STATUS));
            let busy = || state() == EngineState::Running as u32 || gpu.tail_is_ahead(engine);
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
