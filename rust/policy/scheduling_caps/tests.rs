// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;

#[test]
fn capabilities_need_others() {
    // MultiEngineAware, PreemptionAware, NoDmaPatching, CancelCommandAware.
    let accepted = [
        [false, false, false, false],
        [true, false, false, false],
        [true, true, false, false],
        [true, true, true, false],
        [true, false, false, true],
        [true, true, false, true],
        [true, true, true, true],
    ];
    for number in 0..16 {
        let caps = [0, 1, 2, 3].map(|bit| number >> bit & 1 == 1);
        let bits = [0x1, 0x4, 0x8, 0x10].into_iter().zip(caps);
        let value = bits.filter(|(_, is_set)| *is_set).map(|(bit, _)| bit).sum();
        let made = SchedulingCaps::new(value);
        assert_eq!(made.is_ok(), accepted.contains(&caps), "{value:#x}");
        assert_eq!(
            made.is_ok_and(|made| made.is_preemption_aware()),
            made.is_ok() && caps[1]
        );
        // VSyncPowerSaveAware has no part in it.
        assert_eq!(SchedulingCaps::new(value | 0x2).is_ok(), made.is_ok());
        for reserved in 5..32 {
            assert_eq!(SchedulingCaps::new(value | 1 << reserved), Err(Refused));
        }
    }
}

#[test]
fn the_coarsest_engine_counts() {
    use Level::{Dispatch, Instruction, None, Thread};
    let of = |engines: &[Level]| granularity(engines.iter().copied());
    assert_eq!(of(&[Dispatch, Thread]), Dispatch);
    assert_eq!(of(&[Instruction, Thread, Instruction]), Thread);
    assert_eq!(of(&[Instruction, None]), None);
    assert_eq!(of(&[]), None);
    let numbers = Level::ALL.map(|(level, ..)| level.wddm());
    assert_eq!(numbers, [0, 100, 200, 300, 400, 500]);
}

#[test]
fn who_does_not_stop_in_all_that_he_does_is_not_asked() {
    use Level::{DmaBuffer, Instruction, None};
    let of = |types: &[Level]| can_be_stopped(types.iter().copied());
    assert!(of(&[Instruction, DmaBuffer]) && of(&[DmaBuffer]));
    assert!(!of(&[None, Instruction]) && !of(&[Instruction, None]) && !of(&[]));
}
