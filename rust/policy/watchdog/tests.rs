// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases by hand, and a judge that looks at the whole history each time.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const LIMITS: Limits = Limits {
    ticks: 1000,
    time_ms: 2000,
    stuck_ms: 5000,
    step_ms: 300,
    hard_ms: 800_000,
    stalled_ms: 1500,
};

/// Asks every `period` ms for `for_ms`, with `rate` ticks per second; the first verdict that cuts
/// the packet, and when.
fn run(
    dog: &mut Watchdog,
    start: (u64, u64),
    rate: u64,
    period: u64,
    for_ms: u64,
) -> Option<(u64, Verdict)> {
    (0..=for_ms / period).find_map(|i| {
        let passed = i * period;
        let verdict = dog.check(Sample {
            now_ms: start.0 + passed,
            head: Some(7),
            ticks: start.1 + passed * rate / 1000,
            waits: false,
            before: Spent::default(),
            since: None,
        });
        (!matches!(verdict, Verdict::Healthy | Verdict::Stalled)).then_some((passed, verdict))
    })
}

#[test]
fn an_endless_job_is_overdue() {
    let mut dog = Watchdog::new(LIMITS);
    // Fast: the time decides. Slow: the ticks do.
    let fast = run(&mut dog, (100, 0), 1_000_000, 100, 60_000);
    assert_eq!(fast, Some((2100, Verdict::Overdue { id: 7 })));
    dog.restart(Arrival { ms: 0, ticks: 0 });
    let slow = run(&mut dog, (100, 0), 100, 100, 60_000);
    assert_eq!(slow, Some((10_100, Verdict::Overdue { id: 7 })));
}

#[test]
fn a_dead_engine_is_stuck() {
    let mut dog = Watchdog::new(LIMITS);
    let dead = run(&mut dog, (0, 50), 0, 100, 60_000);
    assert_eq!(dead, Some((5000, Verdict::Stuck { id: 7 })));
}

#[test]
fn a_slow_host_is_no_hang() {
    let mut dog = Watchdog::new(LIMITS);
    // One tick per second for longer than ten minutes.
    assert_eq!(run(&mut dog, (0, 0), 1, 100, 799_000), None);
}

#[test]
fn ticks_that_creep_end_all_the_same() {
    let mut dog = Watchdog::new(LIMITS);
    let creeping = run(&mut dog, (0, 0), 1, 100, 900_000);
    assert_eq!(creeping, Some((800_100, Verdict::Overdue { id: 7 })));
}

/// Asked when it says, and no sooner, it says the same as when it is asked all the time.
#[test]
fn what_is_wrong_is_found_when_its_time_is_up() {
    for rate in [0, 1_000_000] {
        let at = |now_ms: u64| Sample {
            now_ms,
            head: Some(7),
            ticks: now_ms * rate / 1000,
            waits: false,
            before: Spent::default(),
            since: None,
        };
        let (mut often, mut seldom) = (Watchdog::new(LIMITS), Watchdog::new(LIMITS));
        assert_eq!(seldom.due_in_ms(), None);
        let (mut next, mut questions, mut last) = (0, 0, Verdict::Healthy);
        for now in 0..20_000 {
            let verdict = often.check(at(now));
            if now == next {
                last = seldom.check(at(now));
                questions += 1;
                let due = seldom.due_in_ms().expect("it has a packet");
                next = now + due.min(LIMITS.step_ms);
            }
            assert_eq!(last, verdict, "{rate} ticks a second, after {now} ms");
        }
        // A period, but for the moments at which something is up.
        assert!(questions <= 20_000 / LIMITS.step_ms + 4, "{questions}");
    }
    let idle = Sample {
        now_ms: 0,
        head: None,
        ticks: 0,
        waits: false,
        before: Spent::default(),
        since: None,
    };
    let mut dog = Watchdog::new(LIMITS);
    assert_eq!(dog.check(idle), Verdict::Healthy);
    assert_eq!(dog.due_in_ms(), None);
}

#[test]
fn a_silent_engine_is_stalled_before_it_is_stuck() {
    let mut dog = Watchdog::new(LIMITS);
    let verdicts: Vec<_> = (0..=50)
        .map(|i| {
            dog.check(Sample {
                now_ms: i * 100,
                head: Some(7),
                ticks: 0,
                waits: false,
                before: Spent::default(),
                since: None,
            })
        })
        .collect();
    assert_eq!(verdicts[14], Verdict::Healthy);
    assert_eq!(verdicts[15], Verdict::Stalled);
    assert_eq!(verdicts[49], Verdict::Stalled);
    assert_eq!(verdicts[50], Verdict::Stuck { id: 7 });
}

#[test]
fn a_clock_that_jumps_kills_nobody() {
    let mut dog = Watchdog::new(LIMITS);
    let at = |now_ms, ticks| Sample {
        now_ms,
        head: Some(7),
        ticks,
        waits: false,
        before: Spent::default(),
        since: None,
    };
    for now in [0, 3_600_000, 0, u64::MAX, 5] {
        assert_eq!(dog.check(at(now, 0)), Verdict::Healthy);
    }
    // Worked like mad, but for how long?
    assert_eq!(dog.check(at(u64::MAX, u64::MAX)), Verdict::Healthy);
}

#[test]
fn a_counter_that_goes_back_is_no_progress() {
    let mut dog = Watchdog::new(LIMITS);
    let stuck = (0..100u64).any(|i| {
        dog.check(Sample {
            now_ms: i * 100,
            head: Some(1),
            ticks: 1_000_000 - i,
            waits: false,
            before: Spent::default(),
            since: None,
        }) == Verdict::Stuck { id: 1 }
    });
    assert!(stuck);
}

/// An engine that was asked to stop goes on for ever with packets that each last a while; who lasts
/// is guilty, and so is the engine that has none.
#[test]
fn each_packet_has_its_own_time_to_stop() {
    let ask = |heads: &dyn Fn(u64) -> Option<u64>| {
        let mut dog = Watchdog::new(LIMITS);
        (0..600).find(|&n| {
            let sample = Sample {
                now_ms: n * 100,
                head: heads(n),
                ticks: n * 1000,
                waits: false,
                before: Spent::default(),
                since: None,
            };
            dog.check(sample.of_request(Some(1))) != Verdict::Healthy
        })
    };
    assert_eq!(ask(&|n| Some(2 + n / 15)), None);
    assert_eq!(ask(&|_| Some(2)), Some(21));
    assert_eq!(ask(&|_| None), Some(21));
    assert_eq!(ask(&|n| (n < 15).then_some(2)), Some(36));
    let mut dog = Watchdog::new(LIMITS);
    let sample = Sample {
        now_ms: 0,
        head: Some(2),
        ticks: 0,
        waits: false,
        before: Spent::default(),
        since: None,
    };
    assert_eq!(sample.of_request(None).head, None);
    assert_eq!(dog.check(sample.of_request(None)), Verdict::Healthy);
}

#[test]
fn a_new_packet_starts_anew() {
    let mut dog = Watchdog::new(LIMITS);
    for i in 0..1000 {
        let verdict = dog.check(Sample {
            now_ms: i * 300,
            head: (i % 5 != 4).then_some(i / 5),
            ticks: i * 400,
            waits: false,
            before: Spent::default(),
            since: None,
        });
        assert_eq!(verdict, Verdict::Healthy);
    }
}

proptest! {
    #![proptest_config(crate::cases(8))]
    #[test]
    fn like_a_judge_of_the_history(
        steps in prop::collection::vec(
            (
                0i64..400, prop::option::weighted(0.98, 0u64..2),
                prop_oneof![1 => Just(0i64), 1 => -5i64..200],
            ),
            1..150,
        ),
        hold: bool,
    ) {
        let limits = Limits {
            ticks: 1500,
            time_ms: 2500,
            stuck_ms: 1500,
            step_ms: 300,
            hard_ms: 9000,
            stalled_ms: 700,
        };
        let mut dog = Watchdog::new(limits);
        let mut history: Vec<Sample> = Vec::new();
        let (mut now_ms, mut ticks) = (10_000, 10_000);
        for (time, head, work) in steps {
            now_ms += time - 20;
            ticks += work;
            let head = if hold { Some(3) } else { head.map(|h| h + now_ms as u64 / 4000) };
            let (now_ms, ticks, before) = (now_ms as u64, ticks as u64, Spent::default());
            let waits = false;
            let sample = Sample { now_ms, head, ticks, waits, before, since: None };
            history.push(sample);
            // The samples since this packet came to the head, in pairs.
            let since: Vec<_> = history.iter().rev().take_while(|s| s.head == head).collect();
            let pairs: Vec<(u64, u64)> = since
                .windows(2)
                .map(|w| (
                    w[0].now_ms.saturating_sub(w[1].now_ms).min(limits.step_ms),
                    w[0].ticks.saturating_sub(w[1].ticks),
                ))
                .collect();
            let stalled: u64 = pairs.iter().take_while(|p| p.1 == 0).map(|p| p.0).sum();
            let elapsed: u64 = pairs.iter().map(|p| p.0).sum();
            let used: u64 = pairs.iter().map(|p| p.1).sum();
            let expected = match head {
                Some(id) if stalled >= limits.stuck_ms => Verdict::Stuck { id },
                Some(id) if used > limits.ticks && elapsed > limits.time_ms => {
                    Verdict::Overdue { id }
                }
                Some(id) if elapsed > limits.hard_ms => Verdict::Overdue { id },
                Some(_) if stalled >= limits.stalled_ms => Verdict::Stalled,
                _ => Verdict::Healthy,
            };
            prop_assert_eq!(dog.check(sample), expected);
        }
    }
}

#[test]
fn what_was_used_before_a_preemption_counts() {
    let at = |i: u64, before| Sample {
        now_ms: i * 100,
        head: Some(i),
        ticks: i * 10,
        waits: true,
        before,
        since: None,
    };
    // Each time with another id, as it is preempted in between.
    let used = |i: u64| Spent {
        ms: i * 100,
        ticks: i * 100_000,
        waited_ms: 0,
    };
    let mut dog = Watchdog::new(LIMITS);
    let first = (0..10_000).find(|i| dog.check(at(*i, used(*i))) != Verdict::Healthy);
    let over = LIMITS.time_ms / 100 + 1;
    assert_eq!(first, Some(over.max(LIMITS.ticks / 100_000 + 1)));
    let waits = |i: u64| Spent {
        ms: 0,
        ticks: 0,
        waited_ms: i * 100,
    };
    let mut dog = Watchdog::new(LIMITS);
    let stuck = |i: &u64| dog.check(at(*i, waits(*i))) == Verdict::Stuck { id: *i };
    assert_eq!((0..10_000).find(stuck), Some(LIMITS.stuck_ms.div_ceil(100)));
    // Its value has come meanwhile.
    let sample = Sample {
        waits: false,
        ..at(10_000, waits(10_000))
    };
    assert_eq!(dog.check(sample), Verdict::Healthy);
}

#[test]
fn it_is_counted_from_when_it_got_there() {
    let at = |now_ms: u64| Sample {
        now_ms,
        head: Some(7),
        ticks: now_ms * 10,
        waits: false,
        before: Spent::default(),
        since: Some(Arrival { ms: 90, ticks: 900 }),
    };
    let overdue = |dog: &mut Watchdog, first: u64| {
        let mut looks = (0..).map(|look| first + look * 250);
        looks.find(|now| dog.check(at(*now)) == Verdict::Overdue { id: 7 })
    };
    let mut dog = Watchdog::new(LIMITS);
    // By the first look behind its time, which is up at 2090.
    assert_eq!(overdue(&mut dog, 300), Some(2300));
    // It begins once more.
    let restart = |dog: &mut Watchdog, ms| dog.restart(Arrival { ms, ticks: ms * 10 });
    restart(&mut dog, 2300);
    assert_eq!(overdue(&mut dog, 2300), Some(4550));
    // Or did before the first look, its time is up at 4000.
    restart(&mut dog, 2000);
    assert_eq!(overdue(&mut dog, 2200), Some(4200));
    // What comes later is counted from when it came, though nobody has looked meanwhile.
    restart(&mut dog, 80);
    assert_eq!(overdue(&mut dog, 300), Some(2300));
    let idle = Sample {
        head: None,
        ..at(250)
    };
    assert_eq!(dog.check(idle), Verdict::Healthy);
    assert_eq!(overdue(&mut dog, 300), Some(2300));
    // However long ago it got there, a look counts for no more than a step.
    let mut dog = Watchdog::new(LIMITS);
    assert_eq!(overdue(&mut dog, 100_000), Some(101_750));
}
