// SPDX-License-Identifier: MIT

//! Engines that can be preempted more and less finely: `guests.json` gives this program a GPU whose
//! first compute engine draws at level 400 and computes at 200, its second the other way round, and
//! whose copy engine copies at 100.

use std::process::ExitCode;

use skua_selftests::rig::expect_working;
use skua_selftests::{suite, tests, Client};
use skua_uapi::DRM_SKUA_ENGINE_COMPUTE;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![row_2_06_the_coarsest_engine_counts])
}

/// Of those that can run it: no copy engine draws or computes.
fn row_2_06_the_coarsest_engine_counts() {
    let client = Client::new();
    let compute = client.engines.iter();
    let compute = compute.filter(|engine| engine.kind == DRM_SKUA_ENGINE_COMPUTE);
    assert_eq!(compute.count(), 2);
    let preemption = [
        client.device.graphics_preemption,
        client.device.compute_preemption,
    ];
    assert_eq!(preemption, [200, 200]);
    expect_working();
}
