// SPDX-License-Identifier: MIT

//! The GPU server is killed while the driver waits for an engine's reset.
//!
//! This guest's driver lets that take half a minute.

use std::process::ExitCode;

use skua_guest::host::Lies;
use skua_selftests::events::Trace;
use skua_selftests::loss::{ask, GIVING_UP};
use skua_selftests::program::LOOP;
use skua_selftests::rig::dispatch;
use skua_selftests::suite::eventually;
use skua_selftests::{suite, tests, Engine, Errno, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![a_server_killed_in_a_reset_is_gone: 240 at_rest])
}

fn a_server_killed_in_a_reset_is_gone() {
    let rig = Rig::new().having_worked();
    let program = rig.program(LOOP);
    let lies = Lies::tell("preempt-never engine-reset-never").expect("gpu-lie");
    let trace = Trace::of(&["skua_reset", "skua_adapter_reset", "skua_lost"]);
    let endless = rig.start(Engine::Compute, &[dispatch(&program, LOOP, &[])]);
    let is_reset = eventually(|| (trace.names() == ["skua_reset"]).then_some(()));
    assert!(is_reset.is_some(), "{:?}", trace.names());
    ask("gpu-kill");
    let end = rig.wait_for(endless.syncobj, GIVING_UP);
    assert_eq!(end, Err(Errno::ENODEV));
    assert_eq!(trace.names(), ["skua_reset", "skua_lost"]);
    // It was seen to be gone; one that lets its time run out is wedged.
    assert_eq!(rig.vm_create(), Err(Errno::ENODEV));
    drop(lies);
}
