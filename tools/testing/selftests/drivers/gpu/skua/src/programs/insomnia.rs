// SPDX-License-Identifier: MIT

//! The system is to sleep while a client's work does not end: it stays awake, and nothing is lost.
//! `guests.json` gives this program a driver that lets work take its time.

use std::process::ExitCode;

use skua_guest::host::expect_error;
use skua_selftests::moving::{expect_gpu, movable_in_vram, pattern};
use skua_selftests::power::Sleep;
use skua_selftests::race::Hold;
use skua_selftests::{suite, tests, Engine, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![it_stays_awake_while_work_does_not_end: 120 at_rest])
}

const SIZE: u64 = 1 << 20;

fn it_stays_awake_while_work_does_not_end() {
    expect_error("").expect("the kernel's log");
    let [rig, other] = [(); 2].map(|()| Rig::new().having_worked());
    let hold = Hold::new(&rig);
    let kept = other.bound(movable_in_vram(&other, SIZE), SIZE);
    kept.cpu.fill(pattern(3));
    let job = hold.begin(&rig, rig.context_having_worked(Engine::Compute));
    let slept = Sleep::Devices.fall().map_err(|error| error.raw_os_error());
    assert_eq!(slept, Err(Some(nix::libc::EBUSY)));
    assert!(!job.has_ended());
    expect_gpu(&other, "beside it", kept.va, SIZE, pattern(3));
    hold.release();
    assert_eq!(job.wait(), Ok(()));
    Sleep::Devices.fall().expect("sleep");
    expect_gpu(&other, "afterwards", kept.va, SIZE, pattern(3));
}
