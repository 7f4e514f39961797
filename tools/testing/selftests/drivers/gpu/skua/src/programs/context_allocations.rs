// SPDX-License-Identifier: MIT

//! What contexts have in memory while no engine holds them: it moves, ends and is made without
//! their noticing.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::client::{signal, wait};
use skua_selftests::events::{Event, Trace};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    alone, evict_all, evict_some, pattern, resident, while_all_is_evicted,
};
use skua_selftests::rig::{copy, wait_value, write, Buffer};
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::witness::{expect_areas, quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_spec::context::{IMAGE_FORMAT, REGISTERS};
use skua_uapi::*;

const PAGE: u64 = 4096;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_07_what_an_engine_holds_is_left_before_it_moves: 60 at_rest,
        row_2_07_only_who_is_held_is_left: 60 at_rest,
        row_2_07_what_is_queued_is_over_before: 60 at_rest,
        row_2_07_a_move_waits_for_its_context_alone: 60 at_rest,
        row_2_07_nobody_can_ask_for_a_switch: 60,
        row_2_08_many_contexts_have_room_for_few: 120 at_rest,
        row_2_08_registers_are_a_contexts_own: 60,
        row_2_08_what_contexts_share_is_there_for_each: 60 at_rest,
        row_2_08_what_is_one_contexts_is_left_by_that_one: 60 at_rest,
        row_2_08_each_has_its_place: 60,
        row_2_08_a_device_area_stays_for_any_context: 120 at_rest,
        row_2_08_nothing_is_queued_without_its_areas: 120 at_rest,
        row_2_08_what_an_engine_may_save_to_stays: 60 at_rest,
        row_2_09_contexts_end_right_after_they_submit: 120 at_rest,
        row_2_09_who_is_held_ends_though_nobody_comes: 60 at_rest,
        row_2_09_a_shared_area_is_freed_once: 60 at_rest,
        row_2_09_areas_end_with_what_they_are_for: 60 at_rest,
        row_2_09_an_area_whose_context_went_is_in_nobodys_way: 60,
        row_2_10_it_is_initialised_once_and_keeps_its_content: 120 at_rest,
        row_2_17_parts_find_their_state_though_others_run_between: 60,
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
/// work; the context has the registers of `seed` then, and `gate` has `value`.
#[track_caller]
fn bring_to_vram(rig: &Rig, engine: Engine, context: u32, gate: (&Buffer, u64), seed: u64) {
    let (gate, value) = gate;
    for _ in 0..10 {
        gate.cpu.write(0, value - 1);
        let before = counts();
        let job = rig.start_in(context, &[wait_value(gate.va, value)]);
        // It is preempted where it waits, unless that work comes before it.
        assert_eq!(rig.run(engine, &set(0)), Ok(()));
        gate.cpu.write(0, value);
        assert_eq!(job.wait(), Ok(()));
        run_in(rig, context, &set(seed));
        match counts()[1] - before[1] {
            0 => {}
            moves => return assert_eq!(moves, 1, "moves"),
        }
    }
    panic!("it is not preempted where it waits");
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
        let completed = || rig.state(context).expect("CONTEXT_STATE").completed;
        let ended = completed();
        let trace = Trace::of(&["skua_submit", "skua_done", "skua_paging", "skua_move"]);
        assert_eq!(evict_all(), 0, "objects of clients");
        expect_areas();
        assert_eq!(since(before), [1, 1, 0]);
        assert_eq!(completed(), ended, "the switch is no work of the client's");
        let events = trace.events();
        let fence = |name| {
            // Free memory may be cleared meanwhile, by the driver.
            let of_client = |event: &Event| event.fields.get("context").is_none_or(|id| id != "0");
            let is_it = |event: &&Event| event.name == name && of_client(event);
            let event = events.iter().find(is_it);
            let event = event.unwrap_or_else(|| panic!("no {name}: {events:?}"));
            event.get("fence")
        };
        let at = |name, fence| {
            let is_it = |event: &Event| event.name == name && event.get("fence") == fence;
            events.iter().position(is_it)
        };
        let left = at("skua_done", fence("skua_submit"));
        let copied = at("skua_paging", fence("skua_move"));
        assert!(left.is_some() && left < copied, "{events:?}");
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
    // One that moves is held, and then one that is in its place.
    let mut value = 0;
    for (held, switches) in [(contexts[0], 1), (rig.compute, 0)] {
        for (context, seed) in contexts.iter().zip(1..) {
            value += 1;
            bring_to_vram(&rig, Engine::Compute, *context, (&gate, value), seed);
        }
        run_in(&rig, held, &[Command::Nop { words: 2 }]);
        let (before, trace) = (counts(), Trace::of(&["skua_submit"]));
        assert_eq!(evict_all(), 0, "objects of clients");
        assert_eq!(since(before), [switches, 4, 0]);
        // Nor is anything queued for those that are not held.
        let mut submitted = trace.events();
        submitted.retain(|event| event.get("context") != "0");
        assert_eq!(submitted.len() as u64, switches, "{submitted:?}");
        for (context, seed) in contexts.iter().zip(1..) {
            expect(&rig, *context, &out, Some(seed));
        }
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
        becomes("the move begins", || counts()[1] > before[1]);
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
        becomes("the move begins", || counts()[1] > before[1]);
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

/// A context allocation that is to be in VRAM, of one context or, if that is 0, for all; where.
#[track_caller]
fn allocated(rig: &Rig, context: u32, size: u64) -> (u32, u64) {
    rig.context_alloc(rig.vm, context, size, rig.set(&[Place::Vram]))
        .expect("CONTEXT_ALLOC")
}

/// What is in one that nobody has used.
fn new_image(offset: usize) -> u64 {
    match offset {
        0 => IMAGE_FORMAT.into(),
        _ => 0,
    }
}

/// A context finds the words of `seed` there.
#[track_caller]
fn expect_words(rig: &Rig, context: u32, va: u64, out: &Buffer, seed: u64) {
    out.cpu.fill(|_| 0xaaaa);
    run_in(rig, context, &[copy(va, out.va, out.size)]);
    let what = format!("{va:#x} by context {context}");
    out.cpu.expect(&what, pattern(seed));
}

/// A context writes them.
#[track_caller]
fn write_words(rig: &Rig, context: u32, va: u64, from: &Buffer, seed: u64) {
    from.cpu.fill(pattern(seed));
    run_in(rig, context, &[copy(from.va, va, from.size)]);
}

fn row_2_08_what_contexts_share_is_there_for_each() {
    let rig = alone();
    let out = rig.buffer(Place::System, 4 * PAGE);
    let second = rig.context_having_worked(Engine::Compute);
    let contexts = [rig.compute, second, rig.copy];
    let (_, va) = allocated(&rig, 0, out.size);
    out.cpu.fill(|_| 0xaaaa);
    run_in(&rig, second, &[copy(va, out.va, out.size)]);
    out.cpu.expect("a new one", new_image);
    write_words(&rig, rig.compute, va, &out, 1);
    for round in 1..4 {
        // In the end an engine holds one of them, and the other engine one.
        for context in contexts {
            expect_words(&rig, context, va, &out, round);
        }
        let before = counts();
        assert_eq!(evict_all(), 0, "objects of clients");
        assert_eq!(since(before), [2, 1, 0]);
        let before = counts();
        expect_words(&rig, second, va, &out, round);
        write_words(&rig, second, va, &out, round + 1);
        assert_eq!(since(before), [0, 1, 0], "back");
    }
    // One that comes later has it, too.
    let late = rig.new_context(Engine::Copy);
    expect_words(&rig, late, va, &out, 4);
    expect_areas();
}

fn row_2_08_what_is_one_contexts_is_left_by_that_one() {
    let rig = alone();
    let others = Rig::new().having_worked();
    let out = rig.buffer(Place::System, 4 * PAGE);
    let [first, second] = Engine::ALL;
    for (seed, (engine, other)) in (1..).zip([(first, second), (second, first)]) {
        let context = rig.context(engine);
        let (handle, va) = allocated(&rig, context, out.size);
        write_words(&rig, context, va, &out, seed);
        // Held is the one that it is of, or another one that could reach it.
        for (held, switches) in [(engine, 1), (other, 0)] {
            expect_words(&rig, context, va, &out, seed);
            run_in(&rig, rig.context(held), &set(seed));
            let elsewhere = if held == first { second } else { first };
            assert_eq!(others.run(elsewhere, &set(0)), Ok(()));
            let before = counts();
            assert_eq!(evict_all(), 0, "objects of clients");
            assert_eq!(since(before), [switches, 1, 0], "{engine:?}, held {held:?}");
        }
        expect_words(&rig, context, va, &out, seed);
        assert_eq!(rig.context_free(handle), Ok(()));
    }
    expect_areas();
}

fn row_2_08_each_has_its_place() {
    let rig = Rig::new().having_worked();
    let everywhere = [Place::Vram, Place::Aperture, Place::System];
    let sets: Vec<u32> = (1..8_usize)
        .map(|bits| {
            let places = everywhere.iter().enumerate();
            let places = places.filter(|(at, _)| bits & 1 << at != 0);
            let places: Vec<Place> = places.map(|(_, place)| *place).collect();
            rig.set(&places)
        })
        .collect();
    let mut made = Vec::new();
    // One that is larger than the next is where that would be, if only beginnings counted.
    for (round, pages) in [1, 5, 2, 300, 3, 1].into_iter().enumerate() {
        for (at, placements) in sets.iter().enumerate() {
            let alignment = [0, PAGE, 4 * PAGE, 64 << 10, 2 << 20][(round + at) % 5];
            let context = [0, rig.compute, rig.copy][(round + at) % 3];
            let mut argument = drm_skua_context_alloc {
                vm: rig.vm,
                context,
                flags: u32::from(context == 0),
                size: pages * PAGE,
                alignment,
                placements: *placements,
                ..Default::default()
            };
            let result = rig.call(DRM_IOCTL_SKUA_CONTEXT_ALLOC, &mut argument);
            assert_eq!(result, Ok(()), "{argument:?}");
            assert_eq!(argument.va % alignment.max(PAGE), 0, "{argument:?}");
            made.push(argument);
        }
    }
    let ends = |it: &drm_skua_context_alloc| [it.va, it.va + it.size - PAGE];
    let out = rig.buffer(Place::System, PAGE);
    for (seed, area) in (1..).zip(&made) {
        assert!(area.va >= rig.device.va_end, "{area:?}");
        for va in ends(area) {
            write_words(&rig, rig.compute, va, &out, seed);
        }
    }
    evict_some();
    for (seed, area) in (1..).zip(&made) {
        for va in ends(area) {
            expect_words(&rig, rig.copy, va, &out, seed);
        }
    }
    for area in &made {
        assert_eq!(rig.context_free(area.handle), Ok(()));
    }
    expect_areas();
}

fn row_2_08_a_device_area_stays_for_any_context() {
    let client = alone_client();
    let device = client
        .device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY)
        .expect("DEVICE_CREATE");
    let rig = Rig::of_device(client, device).having_worked();
    let free = || {
        let vram = rig.region(Place::Vram);
        vram.size - vram.used
    };
    // A quarter of VRAM is enough to want, and moves sooner.
    let rest = (free() / 4 * 3).next_multiple_of(PAGE);
    let rest = rig.bo_create(rest, 0, rig.set(&[Place::Vram]));
    resident(&rig, &[rest.expect("BO_CREATE")]);
    let free = free();
    let part = |eighths: u64| (free / 8 * eighths).next_multiple_of(PAGE);
    let out = rig.buffer(Place::System, 4 * PAGE);
    let (_, va) = allocated(&rig, 0, part(3));
    let last = va + part(3) - out.size;
    // Nothing but that fits beside it.
    let theirs = Rig::new().having_worked();
    let large = theirs
        .bo_create(part(6), 0, theirs.set(&[Place::Vram]))
        .expect("BO_CREATE");
    let large = theirs.bound_at_will(large, part(6));
    let before = counts();
    for round in 1..6 {
        for (seed, (context, other)) in
            (2 * round..).zip([(rig.compute, rig.copy), (rig.copy, rig.compute)])
        {
            write_words(&rig, context, last, &out, seed);
            assert_eq!(theirs.run(Engine::Copy, &[write(large, round)]), Ok(()));
            expect_words(&rig, other, last, &out, seed);
        }
    }
    let [_, moves, inits] = since(before);
    assert!(moves >= 10, "{moves} moves: there was no pressure");
    assert_eq!(inits, 0);
    expect_areas();
}

fn row_2_08_nothing_is_queued_without_its_areas() {
    let rig = alone();
    let out = rig.buffer(Place::System, PAGE);
    let (_, shared) = allocated(&rig, 0, PAGE);
    let before = counts();
    while_all_is_evicted(|| {
        for seed in 1..=50 {
            let engine = Engine::ALL[seed as usize % 2];
            let context = rig.new_context(engine);
            let (handle, own) = allocated(&rig, context, 2 * PAGE);
            let jobs: Vec<_> = (0..8)
                .map(|at| {
                    let work = [
                        write(own + PAGE + 8 * at, seed + at),
                        copy(own + PAGE + 8 * at, shared + 8 * at, 8),
                    ];
                    rig.start_in(context, &work)
                })
                .collect();
            assert!(jobs.iter().all(|job| job.wait() == Ok(())));
            run_in(&rig, rig.copy, &[copy(shared, out.va, 64)]);
            for at in 0..8 {
                assert_eq!(
                    out.cpu.read(8 * at as usize),
                    seed + at,
                    "context {context}"
                );
            }
            if seed % 3 == 0 {
                assert_eq!(rig.context_free(handle), Ok(()));
            }
            if seed % 4 != 0 {
                assert_eq!(rig.context_destroy(context), Ok(()));
            }
        }
    });
    let [_, moves, _] = since(before);
    assert!(moves > 0, "nothing has moved");
    expect_areas();
}

fn row_2_08_what_an_engine_may_save_to_stays() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    for (seed, engine) in (1..).zip(Engine::ALL) {
        let context = rig.context_having_worked(engine);
        bring_to_vram(&rig, engine, context, (&gate, 2 * seed - 1), seed);
        // It is held, has something queued, and is given more while its area moves.
        let before = counts();
        let own = rig.start_in(context, &[wait_value(gate.va, 2 * seed)]);
        thread::scope(|scope| {
            let moving = scope.spawn(evict_some);
            becomes("the move begins", || counts()[1] > before[1]);
            let next = rig.start_in(context, &set(seed));
            gate.cpu.write(0, 2 * seed);
            moving.join().expect("a thread");
            assert_eq!((own.wait(), next.wait()), (Ok(()), Ok(())));
        });
        expect_areas();
    }
}

/// A client, when nothing of earlier ones is left.
fn alone_client() -> Client {
    quiet();
    Client::new()
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

fn row_2_09_a_shared_area_is_freed_once() {
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let out = rig.buffer(Place::System, 4 * PAGE);
    // With the page tables, which stay.
    let (first, va) = allocated(&rig, 0, out.size);
    write_words(&rig, rig.copy, va, &out, 1);
    assert_eq!(rig.context_free(first), Ok(()));
    let before = Witness::settled(&rig);
    for round in 1..6 {
        // Of one context, others use it all the same.
        let owner = [0, rig.copy][round as usize % 2];
        let (handle, again) = allocated(&rig, owner, out.size);
        assert_eq!(again, va, "its place is free");
        out.cpu.fill(|_| 0xaaaa);
        run_in(&rig, rig.compute, &[copy(va, out.va, out.size)]);
        out.cpu.expect("a new one", new_image);
        let work = [wait_value(gate.va, round), copy(va, out.va, out.size)];
        run_in(&rig, rig.copy, &set(round));
        let switches = counts()[0];
        let uses = rig.start(Engine::Compute, &work);
        assert_eq!(rig.context_free(handle), Ok(()));
        assert_eq!(rig.context_free(handle), Err(Errno::ENOENT));
        let vram = rig.region(Place::Vram).used;
        gate.cpu.write(0, round);
        assert_eq!(uses.wait(), Ok(()), "{vram} bytes of VRAM were in use");
        before.expect_unchanged(&rig);
        let expected = if owner == 0 { 2 } else { 1 };
        assert_eq!(counts()[0] - switches, expected, "null switches");
    }
    let context = rig.new_context(Engine::Copy);
    let late = rig.start_in(context, &[copy(va, out.va, out.size)]);
    assert_eq!(late.wait(), Err(Errno::EFAULT));
}

fn row_2_09_areas_end_with_what_they_are_for() {
    let rig = alone();
    let out = rig.buffer(Place::System, 4 * PAGE);
    // With the page tables, which stay.
    let (first, va) = allocated(&rig, 0, out.size);
    let context = rig.context_having_worked(Engine::Copy);
    write_words(&rig, context, va, &out, 1);
    assert_eq!(rig.context_free(first), Ok(()));
    assert_eq!(rig.context_destroy(context), Ok(()));
    let before = Witness::settled(&rig);
    // With its context.
    let context = rig.new_context(Engine::Copy);
    let (own, va) = allocated(&rig, context, out.size);
    write_words(&rig, context, va, &out, 2);
    assert_eq!(rig.context_destroy(context), Ok(()));
    assert_eq!(rig.context_free(own), Err(Errno::ENOENT));
    before.expect_unchanged(&rig);
    // With the address space, when the last context there is gone.
    let vm = rig.vm_create().expect("VM_CREATE");
    let engine = rig.engine(Engine::Copy.kind());
    let context = rig.context_create(vm, engine).expect("CONTEXT_CREATE");
    let made = rig.context_alloc(vm, 0, PAGE, rig.set(&[Place::Vram]));
    let (shared, _) = made.expect("CONTEXT_ALLOC");
    assert_eq!(rig.vm_destroy(vm), Ok(()));
    assert_eq!(rig.context_free(shared), Err(Errno::ENOENT));
    assert_eq!(rig.context_destroy(context), Ok(()));
    before.expect_unchanged(&rig);
    // With the device.
    let device = rig.device_create(0).expect("DEVICE_CREATE");
    let vm = rig.vm_create_for(device).expect("VM_CREATE");
    let made = rig.context_alloc(vm, 0, PAGE, rig.set(&[Place::System]));
    let (shared, _) = made.expect("CONTEXT_ALLOC");
    assert_eq!(rig.device_destroy(device), Ok(()));
    assert_eq!(rig.context_free(shared), Err(Errno::ENOENT));
    before.expect_unchanged(&rig);
    // One client has so many, by their handles.
    let system = rig.set(&[Place::System]);
    let made: Vec<u32> = (0..256)
        .map(|_| rig.context_alloc(rig.vm, 0, PAGE, system))
        .map(|made| made.expect("CONTEXT_ALLOC").0)
        .collect();
    let refused = rig.context_alloc(rig.vm, 0, PAGE, system);
    assert_eq!(refused, Err(Errno::ENOSPC));
    assert_eq!(rig.context_free(made[7]), Ok(()));
    let again = rig.context_alloc(rig.vm, 0, PAGE, system);
    assert_eq!(again.map(|(handle, _)| handle), Ok(made[7]));
    for handle in made {
        assert_eq!(rig.context_free(handle), Ok(()));
    }
    // With the file, in use.
    let last = rig.context_alloc(rig.vm, rig.copy, PAGE, system);
    let (_, va) = last.expect("CONTEXT_ALLOC");
    drop(rig.start(Engine::Copy, &[write(va, 1)]));
    drop((rig, out));
    quiet();
}

fn row_2_09_an_area_whose_context_went_is_in_nobodys_way() {
    let rig = Rig::new().having_worked();
    let owner = rig.new_context(Engine::Copy);
    let made = rig.context_alloc(rig.vm, owner, PAGE, rig.set(&[Place::Vram]));
    let (own, _) = made.expect("CONTEXT_ALLOC");
    // Its handle goes, and then who it is for; others of the address space go on.
    assert_eq!(rig.vm_destroy(rig.vm), Ok(()));
    assert_eq!(rig.context_free(own), Err(Errno::ENOENT));
    assert_eq!(rig.context_destroy(owner), Ok(()));
    for engine in Engine::ALL {
        assert_eq!(rig.run(engine, &set(1)), Ok(()));
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

/// In how many buffers work is divided.
const PARTS: u64 = 8;

/// The part with this number of the work of a context with the registers of `seed`: it sets two of
/// them, and has all written to `out`, each part to a place of its own.
fn part(seed: u64, number: u64, out: &Buffer) -> Vec<Command> {
    let (first, each) = (2 * number as usize, u64::from(REGISTERS) * 8);
    let mut commands = set(seed)[first..first + 2].to_vec();
    commands.extend(store(out.va + number * each));
    commands
}

/// Asserts that each part of that has found what those before it set, and zero in what is set
/// later.
#[track_caller]
fn expect_parts(seed: u64, out: &Buffer, whose: &str) {
    for number in 0..PARTS {
        for (index, value) in values(seed) {
            let at = (number * u64::from(REGISTERS) + u64::from(index)) as usize * 8;
            let value = if u64::from(index / 2) <= number {
                value
            } else {
                0
            };
            assert_eq!(out.cpu.read(at), value, "{whose}: {index} in part {number}");
        }
    }
}

/// Two submissions of eight buffers, of which the engine runs one of each in turn, end as if each
/// were one buffer that nobody interrupts.
fn row_2_17_parts_find_their_state_though_others_run_between() {
    let rig = alone();
    for (seed, engine) in (1..).zip(Engine::ALL) {
        let turn = rig.buffer(Place::System, PAGE);
        let ended = [-1, 1].map(|priority| {
            let context = rig.new_context(engine);
            assert_eq!(rig.prioritise(context, priority), Ok(()));
            (context, rig.buffer(Place::System, PAGE), rig.syncobj())
        });
        for (player, (context, out, done)) in (0..).zip(&ended) {
            let parts: Vec<_> = (0..PARTS)
                .map(|number| {
                    let mine = 2 * number + player;
                    let mut commands = vec![wait_value(turn.va, mine)];
                    commands.extend(part(2 * seed + player, number, out));
                    commands.push(write(turn.va, mine + 1));
                    rig.write(&commands)
                })
                .collect();
            assert_eq!(rig.submit(*context, &parts, &[signal(*done)]), Ok(()));
        }
        for (player, (_, out, done)) in (0..).zip(&ended) {
            assert_eq!(rig.wait(*done), Ok(()));
            expect_parts(2 * seed + player, out, "in turn");
        }
        assert_eq!(turn.cpu.read(0), 2 * PARTS);
        let (whole, out) = (rig.new_context(engine), &ended[0].1);
        out.cpu.fill(|_| 0xaaaa);
        let parts = (0..PARTS).flat_map(|number| part(seed, number, out));
        run_in(&rig, whole, &parts.collect::<Vec<_>>());
        expect_parts(seed, out, "as one");
    }
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
