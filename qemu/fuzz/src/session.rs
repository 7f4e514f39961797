// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One device for all inputs, set up anew for each.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use skua_spec::command::Command;
use skua_spec::regs::{self, engine};
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
        for index in 0..2 {
            // By registers: the status page is memory that the input may have changed.
            let busy = || match gpu.get_engine(index, engine::STATUS).state() {
                Some(EngineState::Idle) => {
                    let head = gpu.get_engine(index, engine::HEAD).offset();
                    head != gpu.get_engine(index, engine::TAIL).offset()
                }
                state => state == Some(EngineState::Running),
            };
            while busy() && since.elapsed() < Duration::from_millis(2) {
                std::thread::yield_now();
            }
        }
        // The status page may lie under the input's page tables: it is written anew.
        gpu.set(regs::STATUS_CTRL::new());
        for index in 0..2 {
            gpu.set_engine(index, engine::CTRL::new().with_reset(true));
            gpu.wait_for("a reset", |gpu| {
                !gpu.get_engine(index, engine::CTRL).enable()
            });
        }
        gpu.set_system(STATUS, &[0; 4096]);
        gpu.set_up();
        for engine in 0..2 {
            gpu.run(engine, &[Command::Nop { words: 2 }]);
        }
    });
}
