// SPDX-License-Identifier: MIT

//! What contexts have in memory while no engine holds them: it moves, ends and is made without
//! their noticing.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::client::{signal, wait};
use skua_selftests::function::Function;
use skua_selftests::moving::{alone, evict_all, evict_some, resident};
use skua_selftests::rig::{wait_value, write, Buffer};
use skua_selftests::suite::eventually;
use skua_selftests::witness::Witness;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_spec::context::REGISTERS;
use skua_uapi::drm_skua_buffer;

const PAGE: u64 = 4096;

fn main() -> ExitCode {
    suite::main(tests![
        row_2_07_what_an_engine_holds_is_left_before_it_moves: 60 at_rest,
        row_2_07_only_who_is_held_is_left: 60 at_rest,
        row_2_07_what_is_queued_is_over_before: 60 at_rest,
        row_2_07_a_move_waits_for_its_context_alone: 60 at_rest,
        row_2_07_nobody_can_ask_for_a_switch: 60,
        row_2_08_many_contexts_have_room_for_few: 120 at_rest,
        row_2_08_registers_are_a_contexts_own: 60,
        row_2_09_contexts_end_right_after_they_submit: 120 at_rest,
        row_2_09_who_is_held_ends_though_nobody_comes: 60 at_rest,
        row_2_10_it_is_initialised_once_and_keeps_its_content: 120 at_rest,
        what_was_a_contexts_is_not_seen_by_the_next: 60,
    ])
}

/// A value for each register, by the context that has it.
fn values(seed: u64) -> impl Iterator<Item = (u32, u64)> {
    (0..REGISTERS).map(move |index| {
        let value = (seed << 8 | u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (index, value)
    })
}

fn set(seed: u64) -> Vec<Command> {
    let set = |(index, value)| Command::SetRegister { index, value };
    values(seed).map(set).collect()
}

fn store(va: u64) -> Vec<Command> {
    let store = |index: u32| Command::StoreRegister {
        index,
        address: va + u64::from(index) * 8,
    };
    (0..REGISTERS).map(store).collect()
}

#[track_caller]
fn run_in(rig: &Rig, context: u32, commands: &[Command]) {
    assert_eq!(rig.start_in(context, commands).wait(), Ok(()));
}

/// The context has the registers of `seed`, or as they are at first.
#[track_caller]
fn expect(rig: &Rig, context: u32, out: &Buffer, seed: Option<u64>) {
    out.cpu.fill(|_| 0xaaaa);
    run_in(rig, context, &store(out.va));
    for (index, value) in values(seed.unwrap_or(0)) {
        let value = if seed.is_some() { value } else { 0 };
        let found = out.cpu.read(index as usize * 8);
        assert_eq!(found, value, "register {index} of context {context}");
    }
}

/// Has the allocation of a context that has worked be in VRAM, to which it comes with the next
/// work; the context has the registers of `seed` then. `gate` had less than `value`.
#[track_caller]
fn bring_to_vram(rig: &Rig, engine: Engine, context: u32, gate: (&Buffer, u64), seed: u64) {
    let (gate, value) = gate;
    let before = counts();
    let job = rig.start_in(context, &[wait_value(gate.va, value)]);
    // It is preempted where it waits.
    assert_eq!(rig.run(engine, &set(0)), Ok(()));
    gate.cpu.write(0, value);
    assert_eq!(job.wait(), Ok(()));
    run_in(rig, context, &set(seed));
    assert_eq!(counts()[1], before[1] + 1, "moves");
}

/// Null switches that found a context, moves of context allocations, and how many were initialised.
#[track_caller]
fn counts() -> [u64; 3] {
    let names = [
        "null_switch",
        "driver_context_moves",
        "driver_context_inits",
    ];
    Function::first().counters(names)
}

#[track_caller]
fn since(before: [u64; 3]) -> [u64; 3] {
    let now = counts();
    let more = std::array::from_fn(|at| now[at] - before[at]);
    println!("# null switches, moves, initialisations: {more:?}");
    more
}

fn row_2_07_what_an_engine_holds_is_left_before_it_moves() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let out = rig.buffer(Place::System, PAGE);
    for (seed, engine) in (1..).zip(Engine::ALL) {
        let context = rig.context_having_worked(engine);
        bring_to_vram(&rig, engine, context, (&gate, seed), seed);
        let before = counts();
        assert_eq!(evict_all(), 0, "objects of clients");
        assert_eq!(since(before), [1, 1, 0]);
        // An engine that had held it would have written where it was, and faulted.
        expect(&rig, context, &out, Some(seed));
        // Where it is now it may be held.
        let before = counts();
        assert_eq!((evict_all(), since(before)), (0, [0, 0, 0]));
    }
}

fn row_2_07_only_who_is_held_is_left() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let out = rig.buffer(Place::System, PAGE);
    let contexts: Vec<u32> = (0..4)
        .map(|_| rig.context_having_worked(Engine::Compute))
        .collect();
    for (context, seed) in contexts.iter().zip(1..) {
        bring_to_vram(&rig, Engine::Compute, *context, (&gate, seed), seed);
    }
    let before = counts();
    assert_eq!(evict_all(), 0, "objects of clients");
    assert_eq!(since(before), [1, 4, 0]);
    for (context, seed) in contexts.iter().zip(1..) {
        expect(&rig, *context, &out, Some(seed));
    }
}

fn row_2_07_what_is_queued_is_over_before() {
    let rig = alone();
    let (gate, out) = (
        rig.buffer(Place::System, PAGE),
        rig.buffer(Place::System, PAGE),
    );
    let context = rig.context_having_worked(Engine::Compute);
    bring_to_vram(&rig, Engine::Compute, context, (&gate, 1), 3);
    // The engine holds another one, and will hold this one when its work is over.
    run_in(&rig, rig.compute, &set(4));
    let opens = rig.start(Engine::Copy, &[wait_value(gate.va, 2)]);
    let first = rig.start_after(context, &set(1), &[wait(opens.syncobj)]);
    let first = first.expect("SUBMIT");
    let more = rig.start_in(context, &set(2));
    let before = counts();
    thread::scope(|scope| {
        let moving = scope.spawn(evict_some);
        let begun = eventually(|| (counts()[1] > before[1]).then_some(()));
        assert!(begun.is_some(), "the move does not begin");
        thread::sleep(Duration::from_millis(100));
        assert!(!first.has_ended() && !more.has_ended());
        gate.cpu.write(0, 2);
        moving.join().expect("a thread");
    });
    assert_eq!((first.wait(), more.wait()), (Ok(()), Ok(())));
    assert_eq!(since(before), [1, 1, 0]);
    expect(&rig, context, &out, Some(2));
}

fn row_2_07_a_move_waits_for_its_context_alone() {
    let rig = alone();
    let (gate, out) = (
        rig.buffer(Place::System, PAGE),
        rig.buffer(Place::System, PAGE),
    );
    let context = rig.context_having_worked(Engine::Compute);
    bring_to_vram(&rig, Engine::Compute, context, (&gate, 1), 3);
    // Others of the address space work on.
    let others = rig.start(Engine::Copy, &[wait_value(gate.va, 2)]);
    let before = counts();
    assert_eq!(evict_all(), 0, "objects of clients");
    assert_eq!(since(before), [1, 1, 0]);
    expect(&rig, context, &out, Some(3));
    assert!(!others.has_ended());
    gate.cpu.write(0, 2);
    assert_eq!(others.wait(), Ok(()));
    // And do not wait for a move that waits for its context.
    bring_to_vram(&rig, Engine::Compute, context, (&gate, 3), 4);
    let own = rig.start_in(context, &[wait_value(gate.va, 4)]);
    thread::scope(|scope| {
        let before = counts();
        let moving = scope.spawn(evict_some);
        let begun = eventually(|| (counts()[1] > before[1]).then_some(()));
        assert!(begun.is_some(), "the move does not begin");
        for engine in Engine::ALL {
            assert_eq!(rig.run(engine, &set(9)), Ok(()));
        }
        // Its own work does.
        let next = rig.start_in(context, &set(5));
        assert!(!own.has_ended() && !next.has_ended());
        gate.cpu.write(0, 4);
        moving.join().expect("a thread");
        assert_eq!((own.wait(), next.wait()), (Ok(()), Ok(())));
    });
    expect(&rig, context, &out, Some(5));
}

fn row_2_07_nobody_can_ask_for_a_switch() {
    let rig = Rig::new().having_worked();
    let buffer = rig.write(&set(1));
    let empty = drm_skua_buffer { size: 0, ..buffer };
    let done = rig.syncobj();
    for buffers in [&[empty][..], &[buffer, empty]] {
        let refused = rig.submit(rig.compute, buffers, &[signal(done)]);
        assert_eq!(refused, Err(Errno::EINVAL));
    }
    let before = counts();
    // EXEC, with or without the flag, is the ring's alone.
    let switch = Command::Switch {
        fence: None,
        interrupt: false,
    };
    assert_eq!(rig.run(Engine::Compute, &[switch]), Err(Errno::EINVAL));
    assert_eq!(since(before)[0], 0);
}

fn row_2_08_many_contexts_have_room_for_few() {
    let rig = alone();
    let vram = rig.region(Place::Vram);
    let gate = rig.buffer(Place::System, PAGE);
    let context = rig.context_having_worked(Engine::Compute);
    bring_to_vram(&rig, Engine::Compute, context, (&gate, 1), 1);
    let one = rig.region(Place::Vram).used - vram.used;
    assert!(one > 0 && one % PAGE == 0, "{one} bytes");
    let owner = Client::new();
    let rest = vram.size - vram.used - 3 * one;
    let large = owner.bo(Place::Vram, rest);
    resident(&owner, &[large]);
    let out = rig.buffer(Place::System, PAGE);
    let mut contexts = vec![context];
    let before = counts();
    for seed in 1..50 {
        let engine = Engine::ALL[seed as usize % 2];
        let context = rig.context_having_worked(engine);
        contexts.push(context);
        if seed < 3 {
            bring_to_vram(&rig, engine, context, (&gate, seed + 1), seed);
            continue;
        }
        // There is no room for more.
        let job = rig.start_in(context, &[wait_value(gate.va, seed + 1)]);
        assert_eq!(rig.run(engine, &set(0)), Ok(()));
        gate.cpu.write(0, seed + 1);
        assert_eq!(job.wait(), Ok(()));
        run_in(&rig, context, &set(seed));
    }
    assert_eq!(since(before)[1..], [2, 49]);
    // All at once, each behind what others have queued.
    for round in 0..3 {
        let seeds = || (0..50).map(|seed| seed + 50 * round);
        let jobs: Vec<_> = contexts
            .iter()
            .zip(seeds())
            .map(|(context, seed)| rig.start_in(*context, &set(seed)))
            .collect();
        evict_some();
        assert!(jobs.iter().all(|job| job.wait() == Ok(())));
        for (context, seed) in contexts.iter().zip(seeds()) {
            expect(&rig, *context, &out, Some(seed));
        }
    }
}

fn row_2_08_registers_are_a_contexts_own() {
    let (one, two) = (Rig::new(), Rig::new());
    let outs = [&one, &two].map(|rig| rig.buffer(Place::System, PAGE));
    for engine in Engine::ALL {
        let (a, b) = (one.context(engine), two.context(engine));
        expect(&one, a, &outs[0], None);
        run_in(&one, a, &set(1));
        expect(&two, b, &outs[1], None);
        run_in(&two, b, &set(2));
        expect(&one, a, &outs[0], Some(1));
        expect(&two, b, &outs[1], Some(2));
    }
}

/// A rig whose address space has the page tables for many contexts, which stay.
fn roomy() -> Rig {
    let rig = alone();
    let contexts: Vec<u32> = (0..32).map(|_| rig.new_context(Engine::Compute)).collect();
    for context in &contexts {
        run_in(&rig, *context, &set(0));
    }
    for context in contexts {
        assert_eq!(rig.context_destroy(context), Ok(()));
    }
    rig
}

fn row_2_09_contexts_end_right_after_they_submit() {
    let rig = roomy();
    let before = Witness::settled(&rig);
    for seed in 0..100 {
        let engine = Engine::ALL[seed as usize % 2];
        // Where what they have submitted is in the ring, and where it waits for the initialisation.
        let context = match seed % 4 < 2 {
            true => rig.context_having_worked(engine),
            false => rig.new_context(engine),
        };
        let job = rig.start_in(context, &set(seed));
        assert_eq!(rig.context_destroy(context), Ok(()));
        let outcome = job.wait();
        assert!(
            matches!(outcome, Ok(()) | Err(Errno::ECANCELED)),
            "{outcome:?}"
        );
    }
    before.expect_unchanged(&rig);
}

fn row_2_09_who_is_held_ends_though_nobody_comes() {
    let rig = roomy();
    let before = Witness::settled(&rig);
    for engine in Engine::ALL {
        let context = rig.new_context(engine);
        run_in(&rig, context, &set(1));
        let switches = counts();
        assert_eq!(rig.context_destroy(context), Ok(()));
        before.expect_unchanged(&rig);
        assert_eq!(since(switches), [1, 0, 0]);
    }
}

fn row_2_10_it_is_initialised_once_and_keeps_its_content() {
    let rig = alone();
    let (gate, out) = (
        rig.buffer(Place::System, PAGE),
        rig.buffer(Place::System, PAGE),
    );
    let context = rig.context_having_worked(Engine::Compute);
    bring_to_vram(&rig, Engine::Compute, context, (&gate, 1), 7);
    let before = counts();
    for round in 2..=101 {
        let mut work = vec![write(gate.va + 8, round), wait_value(gate.va, round)];
        work.extend(store(out.va));
        let job = rig.start_in(context, &work);
        let waits = || (gate.cpu.read(8) == round).then_some(());
        assert!(eventually(waits).is_some(), "it does not begin");
        // It is preempted where it waits, and so saved.
        assert_eq!(rig.run(Engine::Compute, &set(round)), Ok(()));
        gate.cpu.write(0, round);
        assert_eq!(job.wait(), Ok(()));
        for (index, value) in values(7) {
            assert_eq!(out.cpu.read(index as usize * 8), value, "register {index}");
        }
        // What was used comes back to VRAM with the next work.
        assert_eq!(evict_all(), 0, "objects of clients");
    }
    let [_, moves, inits] = since(before);
    assert_eq!(inits, 0);
    // Seldom somebody else is at work in the address space when it would come.
    assert!(moves >= 150, "{moves} moves there and back");
}

fn what_was_a_contexts_is_not_seen_by_the_next() {
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PAGE);
    for seed in 1..20 {
        for engine in Engine::ALL {
            let context = rig.new_context(engine);
            expect(&rig, context, &out, None);
            run_in(&rig, context, &set(seed));
            assert_eq!(rig.context_destroy(context), Ok(()));
        }
    }
}
