// SPDX-License-Identifier: MIT

//! The GPU server is killed while the device copies.

use std::process::ExitCode;

use skua_selftests::loss::{ask, GIVING_UP};
use skua_selftests::rig::copy;
use skua_selftests::{suite, tests, Engine, Errno, Place, Rig};

/// Bytes of one copy.
const BYTES: u64 = 16 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![a_server_killed_in_a_copy_ends_all_work: 240 at_rest])
}

fn a_server_killed_in_a_copy_ends_all_work() {
    let rig = Rig::new();
    let (source, target) = (
        rig.buffer(Place::Vram, BYTES),
        rig.buffer(Place::System, BYTES),
    );
    // 64 GiB, so that the copies outlast the way to the host, also on the slow debug kernel; 256
    // MiB each, which the watchdog lets pass however slow they are.
    let copies = [copy(source.va, target.va, BYTES); 16];
    let jobs: Vec<_> = (0..256).map(|_| rig.start(Engine::Copy, &copies)).collect();
    assert_eq!(jobs[0].wait(), Ok(()));
    ask("gpu-kill");
    let cut = jobs.iter().filter(|job| !job.has_ended()).count();
    println!("{cut} jobs were under way");
    assert!(cut > 0, "the device was done before the server was killed");
    for job in &jobs {
        let end = job.client().wait_for(job.syncobj, GIVING_UP);
        let fair = matches!(
            end,
            Ok(()) | Err(Errno::ENODEV | Errno::ETIME | Errno::ECANCELED)
        );
        assert!(fair, "{end:?}");
    }
}
