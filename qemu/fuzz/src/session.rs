// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two cores and their memory for all inputs, set up anew for each.

use std::cell::RefCell;

use skua_gpu::engine::core::Outcome;
use skua_spec::command::Command;
use skua_testbed::{Stepped, DATA, DATA_BYTES, ENGINES};

/// Steps that an input is given on each engine: some work never ends.
const STEPS: usize = 200;

thread_local! {
    static STEPPED: RefCell<Option<Stepped>> = const { RefCell::new(None) };
}

/// Has `start` start something, lets the engines work for a while in turn, in steps of odd lengths
/// between which their progress is taken out and put back, and then checks that both can be reset
/// and used: whatever stood in memory, an engine is still an engine.
pub(crate) fn with(start: impl FnOnce(&mut Stepped)) {
    STEPPED.with_borrow_mut(|slot| {
        let stepped = slot.get_or_insert_with(Stepped::new);
        stepped.clear_vram(DATA, DATA_BYTES);
        start(stepped);
        for (_, budget) in (0..STEPS).zip([1000, 1, 63, 2, 300].into_iter().cycle()) {
            let outcomes = ENGINES.map(|engine| {
                let outcome = stepped.step(engine, budget);
                let core = &mut stepped.cores[engine.index()];
                let progress = core.take_progress();
                core.set_progress(progress);
                outcome
            });
            if outcomes == [Outcome::Idle; 2] {
                break;
            }
        }
        stepped.set_up();
        for engine in ENGINES {
            stepped.start(engine, &[Command::Nop { words: 2 }]);
            while stepped.step(engine, 1) != Outcome::Idle {}
            assert_eq!(stepped.cores[engine.index()].shown().head, 8);
        }
    });
}
