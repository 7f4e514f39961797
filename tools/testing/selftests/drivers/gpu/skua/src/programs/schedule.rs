// SPDX-License-Identifier: MIT

//! Whose turn it is on an engine: priorities, shares, and work that makes room for other work.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use skua_guest::host::RandomSteps;
use skua_selftests::client::signal;
use skua_selftests::drawing::BEHIND;
use skua_selftests::events::{Event, Trace};
use skua_selftests::function::Function;
use skua_selftests::moving::Numbers;
use skua_selftests::program::{address, op, op_imm, COUNT, EXIT};
use skua_selftests::race::{context, extent, load, within, Gate, Hold, Race};
use skua_selftests::rig::{copy, dispatch, fill, wait_value, write, Buffer, Job};
use skua_selftests::suite::{self, becomes, eventually};
use skua_selftests::torture::seed;
use skua_selftests::unpreempted::Unasked;
use skua_selftests::witness::quiet;
use skua_selftests::{drawing, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::{Command, Dispatch, Draw};
use skua_spec::isa::Op;
use skua_uapi::DRM_SKUA_ENGINE_COMPUTE;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_20_what_is_queued_is_raised_too: 60 at_rest,
        row_2_20_what_is_in_the_ring_is_raised_too: 60 at_rest,
        row_2_20_what_runs_is_lowered_too: 60 at_rest,
        row_2_20_a_class_is_of_all_contexts: 60,
        row_2_20_important_work_overtakes_what_is_in_the_ring: 60 at_rest,
        row_2_20_in_its_process_it_overtakes_what_is_in_the_ring: 60 at_rest,
        row_2_12_a_long_buffer_makes_room: 60 at_rest,
        drawing_makes_room: 60 at_rest,
        row_2_19_who_signals_gets_the_engine at_rest,
        row_2_19_a_long_wait_is_in_nobodys_way: 60 at_rest,
        row_2_19_a_value_that_was_passed_meanwhile_is_reached: 60 at_rest,
        row_2_19_what_waits_is_looked_at_by_importance: 60 at_rest,
        row_2_24_requests_can_be_turned_off_and_on: 60 at_rest,
        what_made_room_is_left_to_end at_rest,
        who_ran_alone_owes_nothing: 60 at_rest,
        nobody_starves: 60 at_rest,
        row_2_13_each_packet_runs_once: 120,
        row_2_13_random_schedules_end_as_if_each_were_alone: 120,
        row_2_13_each_unit_of_work_runs_once: 600,
        row_2_14_packets_that_made_room_keep_their_order: 120 at_rest,
        row_2_12_an_engine_stops_within_so_many_ticks: 60,
    ])
}

fn preemptions() -> u64 {
    let [count] = Function::first().counters(["driver_preemptions"]);
    count
}

/// Of those that there are and of new ones, as far as the priorities go; of no other file's.
fn row_2_20_a_class_is_of_all_contexts() {
    quiet();
    let (client, other) = (Client::new(), Client::new());
    let [vm, theirs] = [&client, &other].map(|client| client.vm_create().expect("VM_CREATE"));
    other.context_create(theirs, 0).expect("CONTEXT_CREATE");
    let create = |priority| {
        let context = client.context_create(vm, 0).expect("CONTEXT_CREATE");
        assert_eq!(client.prioritise(context, priority), Ok(()));
        context
    };
    let contexts = [-7, -2, 5, 7].map(create);
    let levels = || {
        let text = Function::first().debugfs("contexts").expect("debugfs");
        let levels = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(" priority ")?;
            rest.split_once('/')?.0.parse::<i32>().ok()
        });
        let mut levels: Vec<_> = levels.collect();
        levels.sort_unstable();
        levels
    };
    let expect = |own: &[i32], shift: i32| {
        let moved = own.iter().map(|priority| (priority + shift).clamp(-7, 7));
        let mut expected: Vec<_> = moved.chain([0]).collect();
        expected.sort_unstable();
        assert_eq!(levels(), expected, "{shift}");
    };
    // Up, and down again.
    let shifts = [-14, -3, 0, 3, 6, 14];
    for class in (0..6).chain((0..6).rev()) {
        let shift = shifts[class as usize];
        assert_eq!(client.set_class(class), Ok(()));
        expect(&[-7, -2, 5, 7], shift);
        // A new one, and one that says something else.
        let new = client.context_create(vm, 0).expect("CONTEXT_CREATE");
        expect(&[-7, -2, 5, 7, 0], shift);
        assert_eq!(client.prioritise(contexts[1], 1), Ok(()));
        expect(&[-7, 1, 5, 7, 0], shift);
        assert_eq!(client.prioritise(contexts[1], -2), Ok(()));
        assert_eq!(client.context_destroy(new), Ok(()));
        let gone = || (levels().len() == 5).then_some(());
        assert!(eventually(gone).is_some(), "{:?}", levels());
    }
}

fn row_2_20_what_is_queued_is_raised_too() {
    let rig = Rig::new();
    let contexts = [-7, 0].map(|priority| context(&rig, priority));
    let mut race = Race::new(&rig);
    // Ready, with more than the ring takes, while somebody else has the engine.
    race.begin();
    let hold = Hold::new(&rig);
    let holder = rig.start_in(context(&rig, 7), &[hold.command()]);
    for context in contexts {
        for _ in 0..40 {
            race.enter(context);
        }
    }
    assert_eq!(rig.prioritise(contexts[0], 1), Ok(()));
    hold.release();
    assert_eq!(holder.wait(), Ok(()));
    let numbers = race.run();
    let (first, last) = extent(&numbers[..40]);
    assert!(last - first <= 40, "the raised: {first} to {last} of 80");
}

fn row_2_20_what_is_in_the_ring_is_raised_too() {
    let rig = Rig::new();
    let (running, queued) = (context(&rig, -1), context(&rig, -1));
    preempt_by(&rig, running, queued, || rig.prioritise(queued, 0));
}

fn row_2_20_what_runs_is_lowered_too() {
    let rig = Rig::new();
    let (running, queued) = (context(&rig, 0), context(&rig, -1));
    preempt_by(&rig, running, queued, || rig.prioritise(running, -2));
}

/// One packet of each is in the ring, and the first one makes room when that is changed.
#[track_caller]
fn preempt_by(rig: &Rig, running: u32, queued: u32, change: impl Fn() -> Result<(), Errno>) {
    let count = rig.buffer(Place::System, 4096);
    let hold = Hold::new(rig);
    let begun = &[write(count.va, 1), hold.command()];
    let first = rig.start_in(running, begun);
    becomes("it begins", || count.cpu.read(0) > 0);
    let second = rig.start_in(queued, &[write(count.va + 8, 1)]);
    assert_eq!(change(), Ok(()));
    assert_eq!(second.wait(), Ok(()), "it waits behind the other");
    assert!(!first.has_ended());
    hold.release();
    assert_eq!(first.wait(), Ok(()));
}

fn row_2_20_important_work_overtakes_what_is_in_the_ring() {
    let rig = Rig::new();
    overtake(&rig, context(&rig, -1), context(&rig, 0));
}

fn row_2_20_in_its_process_it_overtakes_what_is_in_the_ring() {
    let rig = Rig::new();
    overtake(&rig, within(&rig, -1), within(&rig, 0));
}

#[track_caller]
fn overtake(rig: &Rig, low: u32, high: u32) {
    let begun = rig.buffer(Place::System, 4096);
    let before = preemptions();
    let hold = Hold::new(rig);
    let mut race = Race::new(rig);
    for _ in 0..60 {
        race.enter_with(low, &[write(begun.va, 1), hold.command()]);
    }
    race.begin();
    becomes("it begins", || begun.cpu.read(0) > 0);
    race.enter(high);
    becomes("it overtakes them", || race.taken() > 0);
    hold.release();
    let numbers = race.run();
    assert_eq!(numbers[60], 0, "{numbers:?}");
    assert!(preemptions() > before, "nothing was preempted");
}

/// A buffer that takes long makes room in the midst of it, and goes on from there (row 2.12).
fn row_2_12_a_long_buffer_makes_room() {
    let rig = Rig::new();
    let (low, high) = (context(&rig, -1), context(&rig, 0));
    let target = rig.buffer(Place::Vram, 4 << 20);
    let count = rig.buffer(Place::System, 4096);
    let program = rig.program(COUNT);
    let hold = Hold::new(&rig);
    let [preempted, saved, restored] = saves();
    let trace = Trace::of(&["skua_preempt", "skua_preempted", "skua_resume"]);
    let mut work = vec![dispatch(&program, COUNT, &address(count.va))];
    work.extend((0..75).map(|n| fill(n, target.va, 4 << 20)));
    work.push(hold.command());
    work.extend((75..150).map(|n| fill(n, target.va, 4 << 20)));
    work.push(dispatch(&program, COUNT, &address(count.va + 4)));
    let long = rig.start_in(low, &work);
    becomes("it begins", || count.cpu.read32(0) > 0);
    for _ in 0..5 {
        let important = rig.start_in(high, &[write(count.va + 64, 1)]);
        assert_eq!(important.wait(), Ok(()));
        assert!(!long.has_ended());
    }
    hold.release();
    assert_eq!(long.wait(), Ok(()));
    // It was stopped within it, which was asked for, and went on as often.
    let events = computing(&trace);
    let traced = |name: &str| events.iter().filter(|event| event.name == name).count();
    let within = stops(&events).filter(|stop| *stop != UNBEGUN).count();
    assert!(within > 0, "{events:#?}");
    assert!(traced("skua_preempt") >= within, "{events:#?}");
    assert!(traced("skua_resume") >= within, "{events:#?}");
    // Its parts were done once each, the last one last.
    assert_eq!([count.cpu.read32(0), count.cpu.read32(4)], [1, 1]);
    let copied = rig.buffer(Place::System, 4096);
    assert_eq!(
        rig.run(Engine::Copy, &[copy(target.va, copied.va, 4096)]),
        Ok(())
    );
    assert_eq!(copied.cpu.read32(0), 149);
    let after = saves();
    println!("# preemptions, bytes saved, bytes restored: {after:?}");
    assert!(
        after[0] > preempted && after[1] > saved,
        "nothing was saved"
    );
    // Each state was used once.
    assert_eq!(after[1] - saved, after[2] - restored);
}

/// Counts the pixel in the word of its place, 64 in a row, from the address in arguments 0 and 1
/// on; waits until the word at the address in arguments 2 and 3 is not 0; and computes a colour.
const COUNTED_PIXEL: &[u64] = &[
    op(Op::Arg, 20, 0, 0, 0),
    op(Op::Arg, 21, 0, 0, 1),
    op(Op::Arg, 22, 0, 0, 2),
    op(Op::Arg, 23, 0, 0, 3),
    op_imm(Op::Mul, 24, 3, PIXELS),
    op(Op::Add, 24, 24, 2, 0),
    op(Op::Lea, 20, 20, 24, 2),
    op_imm(Op::Mov, 25, 0, 1),
    op(Op::AtomAdd, 26, 20, 25, 0),
    op(Op::Ld32, 27, 22, 0, 0),
    op(Op::Bz, 0, 27, 0, 9),
    op_imm(Op::Mul, 0, 24, MULTIPLIER),
    op(Op::Add, 0, 0, 8, 0),
    EXIT,
];

/// Rows and columns of what is drawn.
const PIXELS: u32 = 64;

/// A square of [`PIXELS`] that counts its pixels from `counts` on; the gate is in `scene`, at byte
/// 128.
fn square(program: &Buffer, scene: &Buffer, picture: &Buffer, counts: u64) -> Draw {
    let gate = scene.va + BEHIND as u64;
    let arguments = [address(counts), address(gate)].concat();
    let program = (program, COUNTED_PIXEL);
    // CAST: a small number.
    drawing::square(program, scene, picture.va, PIXELS as u16, &arguments)
}

/// What draws makes room between the instructions of a pixel, and each pixel is drawn once.
fn drawing_makes_room() {
    let rig = Rig::new();
    let (low, high) = (context(&rig, -1), context(&rig, 0));
    let [counts, picture, scene] =
        [Place::System; 3].map(|place| rig.buffer(place, 4 * u64::from(PIXELS * PIXELS)));
    let program = rig.program(COUNTED_PIXEL);
    let (draw, done) = (square(&program, &scene, &picture, counts.va), 136);
    let [_, saved, restored] = saves();
    let trace = Trace::of(&["skua_preempted"]);
    let long = rig.start_in(low, &[Command::Draw(draw)]);
    becomes("it begins", || counts.cpu.read32(0) > 0);
    for n in 1..=5 {
        let important = rig.start_in(high, &[write(scene.va + done, n)]);
        assert_eq!(important.wait(), Ok(()));
        assert_eq!(scene.cpu.read(done as usize), n);
        assert!(!long.has_ended());
    }
    scene.cpu.write(128, 1);
    assert_eq!(long.wait(), Ok(()));
    let within = stops(&computing(&trace))
        .filter(|stop| *stop != UNBEGUN)
        .count();
    assert!(within > 0, "it was stopped nowhere within");
    for pixel in 0..PIXELS * PIXELS {
        let at = 4 * pixel as usize;
        assert_eq!(counts.cpu.read32(at), 1, "pixel {pixel}");
        // Ten for each pixel, from its middle on.
        let attribute = 10 * (pixel % PIXELS) + 5;
        let colour = pixel.wrapping_mul(MULTIPLIER).wrapping_add(attribute);
        assert_eq!(picture.cpu.read32(at), colour, "pixel {pixel}");
    }
    let after = saves();
    assert!(after[1] > saved, "nothing was saved");
    assert_eq!(after[1] - saved, after[2] - restored);
}

/// `stop` of `skua_preempted` for what had not begun, and for what waits for a value.
const UNBEGUN: &str = "0";
const WAITS: &str = "2";

/// What was traced of the compute engine.
#[track_caller]
fn computing(trace: &Trace) -> Vec<Event> {
    let engine = Client::new().engine(DRM_SKUA_ENGINE_COMPUTE).to_string();
    let mut events = trace.events();
    events.retain(|event| event.get("engine") == engine);
    events
}

/// How work was that made room.
fn stops(events: &[Event]) -> impl Iterator<Item = &str> {
    let preempted = events.iter().filter(|event| event.name == "skua_preempted");
    preempted.map(|event| event.get("stop"))
}

/// Requests to make room, and bytes of states saved and restored.
fn saves() -> [u64; 3] {
    Function::first().counters(["driver_preemptions", "saved_bytes", "restored_bytes"])
}

fn resets() -> u64 {
    let [count] = Function::first().counters(["driver_engine_resets"]);
    count
}

fn row_2_19_who_signals_gets_the_engine() {
    let rig = Rig::new();
    let values = rig.buffer(Place::System, 4096);
    let before = (preemptions(), resets());
    let trace = Trace::of(&["skua_preempted"]);
    for (n, priorities) in (1..).zip([[0, 0], [7, -7], [-7, 7]]) {
        let [waits, signals] = priorities.map(|priority| context(&rig, priority));
        let waiter = [wait_value(values.va, n), write(values.va + 8, n)];
        // What is behind it in its context waits, too.
        let jobs = [&waiter[..], &[write(values.va + 16, n)]].map(|work| rig.start_in(waits, work));
        let signaller = rig.start_in(signals, &[write(values.va, n)]);
        assert_eq!(signaller.wait(), Ok(()), "{priorities:?}");
        assert_eq!(
            jobs.map(|job| job.wait()),
            [Ok(()), Ok(())],
            "{priorities:?}"
        );
        assert_eq!(
            [8, 16].map(|at| values.cpu.read(at)),
            [n, n],
            "{priorities:?}"
        );
    }
    assert!(preemptions() > before.0, "nothing was preempted");
    assert_eq!(resets(), before.1);
    let events = computing(&trace);
    assert!(stops(&events).any(|stop| stop == WAITS), "{events:#?}");
}

/// Written by the engine that the waiter is out of; less than it waits for is not enough.
fn row_2_19_a_value_that_was_passed_meanwhile_is_reached() {
    let rig = Rig::new();
    let values = rig.buffer(Place::System, 4096);
    let trace = Trace::of(&["skua_preempted"]);
    let made_room = || {
        let events = computing(&trace);
        stops(&events).filter(|stop| *stop == WAITS).count()
    };
    let work = [wait_value(values.va, 5), write(values.va + 8, 1)];
    let waiter = rig.start_in(context(&rig, 0), &work);
    for value in [0, 4] {
        let before = made_room();
        let again = eventually(|| {
            let other = [write(values.va, value)];
            assert_eq!(rig.run(Engine::Compute, &other), Ok(()));
            (made_room() > before).then_some(())
        });
        assert!(again.is_some(), "it does not make room at {value}");
        assert!(!waiter.has_ended(), "{value} is enough");
    }
    assert_eq!(rig.run(Engine::Compute, &[write(values.va, 9)]), Ok(()));
    assert_eq!(waiter.wait(), Ok(()));
    assert_eq!([0, 8].map(|at| values.cpu.read(at)), [9, 1]);
}

/// However long a value has not come, work that is more important than what runs is looked at as
/// often as at first, and found at the next look. What is as important as that is looked at less
/// and less, but is not forgotten.
fn row_2_19_what_waits_is_looked_at_by_importance() {
    let rig = Rig::new();
    let values = rig.buffer(Place::System, 4096);
    let contexts = [-7, -7, 7].map(|priority| context(&rig, priority));
    let hold = Hold::new(&rig);
    let trace = Trace::of(&["skua_submit", "skua_resume"]);
    let hog = hold.begin(&rig, contexts[0]);
    let wait = |n: usize, value| {
        let at = 16 * n as u64;
        let work = [
            wait_value(values.va + at, value),
            write(values.va + at + 8, value),
        ];
        rig.start_in(contexts[n], &work)
    };
    let mut value = 1;
    let (mut low, mut high, mut before) = (wait(1, value), wait(2, value), [0; 2]);
    let submits = computing(&trace);
    let submits = submits.iter().filter(|event| event.name == "skua_submit");
    let ids: Vec<String> = submits
        .map(|event| event.get("context").to_owned())
        .collect();
    let looks = || {
        let events = computing(&trace);
        [1, 2].map(|n: usize| {
            let of_it =
                |event: &&Event| event.name == "skua_resume" && event.get("context") == ids[n];
            events.iter().filter(of_it).count()
        })
    };
    loop {
        let since = || [0, 1].map(|n| looks()[n] - before[n]);
        // An eighth less often each would be half of that in the time that it may wait.
        let often = eventually(|| Some(since()).filter(|[_, high]| *high >= 36));
        let Some(often) = often else {
            panic!("{:?} looks", since());
        };
        println!("# {often:?} looks");
        assert!(!high.has_ended() && !low.has_ended() && !hog.has_ended());
        if often[0] <= 12 {
            break;
        }
        // On a host that has much else to do the higher one is late for its look, now and then.
        assert!(value < 8, "{often:?} looks");
        for (work, at) in [(high, 32), (low, 16)] {
            values.cpu.write(at, value);
            assert_eq!(work.wait(), Ok(()));
        }
        (before, value) = (looks(), value + 1);
        (low, high) = (wait(1, value), wait(2, value));
    }
    values.cpu.write(32, value);
    let before = looks();
    assert_eq!(high.wait(), Ok(()));
    assert!(
        looks()[1] <= before[1] + 1,
        "{before:?}, then {:?}",
        looks()
    );
    let high = wait(2, value + 1);
    values.cpu.write(16, value);
    assert_eq!(low.wait(), Ok(()));
    assert!(!high.has_ended() && !hog.has_ended());
    values.cpu.write(32, value + 1);
    assert_eq!(high.wait(), Ok(()));
    hold.release();
    assert_eq!(hog.wait(), Ok(()));
    assert_eq!([24, 40].map(|at| values.cpu.read(at)), [value, value + 1]);
}

/// While work runs, too. What waits in vain for its turn gets it when they are on again.
fn row_2_24_requests_can_be_turned_off_and_on() {
    let rig = Rig::new();
    let values = rig.buffer(Place::System, 4096);
    let (low, high) = (context(&rig, -7), context(&rig, 7));
    for round in 1..=2 {
        let off = Unasked::new();
        let before = preemptions();
        let begins = write(values.va + 16, round);
        let waits = rig.start_in(low, &[begins, wait_value(values.va, round)]);
        let begun = || (values.cpu.read(16) == round).then_some(());
        assert!(eventually(begun).is_some(), "it does not begin");
        let important = rig.start_in(high, &[write(values.va + 8, round)]);
        thread::sleep(Duration::from_millis(100));
        assert!(!important.has_ended(), "it overtook");
        assert_eq!(preemptions(), before);
        drop(off);
        assert_eq!(important.wait(), Ok(()));
        assert!(!waits.has_ended());
        assert!(preemptions() > before);
        values.cpu.write(0, round);
        assert_eq!(waits.wait(), Ok(()));
    }
}

/// How long an engine may take to stop.
#[track_caller]
fn preempt_timeout() -> Duration {
    let parameters = Function::first().debugfs("parameters").expect("debugfs");
    let mut lines = parameters.lines();
    let limit = lines.find_map(|line| line.strip_prefix("preempt_timeout_ms: "));
    Duration::from_millis(limit.and_then(|ms| ms.parse().ok()).expect("a time"))
}

/// Longer than an engine may take to stop: it has stopped, and nobody is cut.
fn row_2_19_a_long_wait_is_in_nobodys_way() {
    let rig = Rig::new();
    let values = rig.buffer(Place::System, 4096);
    let before = resets();
    let important = context(&rig, 7);
    let waiter = rig.start_in(
        important,
        &[wait_value(values.va, 1), write(values.va + 8, 1)],
    );
    let long = preempt_timeout() + Duration::from_millis(500);
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < long || rounds <= 10 {
        rounds += 1;
        let job = rig.start(Engine::Compute, &[write(values.va + 16, rounds)]);
        assert_eq!(job.wait(), Ok(()), "round {rounds}");
    }
    println!("# {rounds} jobs while it waited");
    assert!(!waiter.has_ended());
    values.cpu.write(0, 1);
    assert_eq!(waiter.wait(), Ok(()));
    assert_eq!(values.cpu.read(8), 1);
    assert_eq!(resets(), before);
}

/// As what runs is, when its context is destroyed.
fn what_made_room_is_left_to_end() {
    let rig = Rig::new();
    let values = rig.buffer(Place::System, 4096);
    let trace = Trace::of(&["skua_preempted"]);
    let destroyed = context(&rig, 0);
    let work = [wait_value(values.va, 1), write(values.va + 8, 1)];
    let job = rig.start_in(destroyed, &work);
    let run = |n| {
        let other = [write(values.va + 16, n)];
        assert_eq!(rig.run(Engine::Compute, &other), Ok(()));
    };
    let made_room = eventually(|| {
        run(1);
        let mut events = computing(&trace);
        events.retain(|event| event.get("stop") == WAITS);
        (!events.is_empty()).then_some(())
    });
    assert!(made_room.is_some(), "it makes room");
    assert_eq!(rig.context_destroy(destroyed), Ok(()));
    (2..5).for_each(run);
    assert!(!job.has_ended(), "it was cancelled in its midst");
    values.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(values.cpu.read(8), 1);
}

/// Who ran while nobody else had work waits for no more than its equals' turn.
fn who_ran_alone_owes_nothing() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::Vram, 4 << 20);
    let [loner, rival] = [context(&rig, 0), context(&rig, 0)];
    // Many turns, in one packet.
    let alone = rig.start_in(loner, &[fill(1, buffer.va, 4 << 20); 100]);
    assert_eq!(alone.wait(), Ok(()));
    let mut race = Race::new(&rig);
    // Open before they enter, so that each is ready at once; nobody has a turn meanwhile.
    race.begin();
    let hold = Hold::new(&rig);
    let holder = rig.start_in(context(&rig, 7), &[hold.command()]);
    race.enter(rival);
    // Packets of next to no length: far more than the ring takes, and together some turns long.
    let nothing = rig.write(&[fill(1, buffer.va, 0)]);
    for _ in 0..200 {
        assert_eq!(rig.submit(rival, &[nothing; 32], &[]), Ok(()));
    }
    race.enter(rival);
    race.enter(loner);
    hold.release();
    assert_eq!(holder.wait(), Ok(()));
    let numbers = race.run();
    println!("# the rival's first, its last, the loner's: {numbers:?}");
    assert!(numbers[2] < numbers[1]);
}

fn nobody_starves() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::Vram, 4 << 20);
    let values = rig.buffer(Place::System, 4096);
    let (low, high) = (context(&rig, -7), context(&rig, 7));
    let gate = Gate::new(&rig);
    // Of the high one there are 100 million ticks, and then it says so.
    drop(load(
        &rig,
        Some(&gate),
        high,
        buffer.va,
        (200_000, 100_000_000),
    ));
    drop(rig.start_in(high, &[write(values.va, 1)]));
    let waits = gate.start_in(&rig, low, &[copy(values.va, values.va + 8, 8)]);
    gate.open();
    assert_eq!(waits.wait(), Ok(()));
    assert_eq!(values.cpu.read(8), 0, "it came last");
    assert_eq!(rig.context_destroy(high), Ok(()));
}

fn row_2_13_each_packet_runs_once() {
    let rig = Rig::new();
    let program = rig.program(COUNT);
    let counts = rig.buffer(Place::System, 16 << 10);
    let before = preemptions();
    let contexts: Vec<u32> = [-3, -1, 0, 0, 2, 5].map(|p| context(&rig, p)).to_vec();
    let rounds = suite::rounds(400);
    // However quick the engine is, all others find it at work.
    let hold = Hold::new(&rig);
    let mut jobs = vec![hold.begin(&rig, context(&rig, -4))];
    for n in 0..u64::from(rounds) {
        // Whose turn it is changes all the time.
        let context = contexts[(n * n % 11) as usize % contexts.len()];
        let count = dispatch(&program, COUNT, &address(counts.va + 4 * n));
        jobs.push(rig.start_in(context, &[fill(7, counts.va + 8192, 4096), count]));
    }
    hold.release();
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(job.wait(), Ok(()), "job {n}");
    }
    for n in 0..rounds as usize {
        assert_eq!(counts.cpu.read32(4 * n), 1, "job {n} ran so often");
    }
    assert!(preemptions() > before, "nothing was preempted");
}

/// Thread `n` of all adds one to the `n`-th word from the address in arguments 0 and 1 on, when it
/// has counted down from argument 2.
const COUNT_EACH: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Arg, 8, 0, 0, 2),
    // r4 = group * threads + thread
    op(Op::Sr, 4, 0, 0, 3),
    op(Op::Sr, 5, 0, 0, 6),
    op(Op::Mul, 4, 4, 5, 0),
    op(Op::Sr, 5, 0, 0, 0),
    op(Op::Add, 4, 4, 5, 0),
    op(Op::Lea, 6, 2, 4, 2),
    op_imm(Op::Mov, 9, 0, 1),
    op_imm(Op::Sub, 8, 8, 1),
    op(Op::Bnz, 0, 8, 0, 10),
    op(Op::AtomAdd, 10, 6, 9, 0),
    EXIT,
];

/// Of a buffer that draws, and of one with dispatches of one thread; and how many of the latter a
/// job has, each a packet.
const DRAWS: u32 = 16;
const DISPATCHES: u32 = 60;
const PACKETS: u32 = 16;

/// Asks without a pause at first, and then for a while.
fn soon(mut ask: impl FnMut() -> Option<()>) -> Option<()> {
    (0..10_000).find_map(|_| ask()).or_else(|| eventually(ask))
}

/// Threads, pixels and packets, while somebody more important has a little to do at every moment,
/// for which the engine stops behind any instruction.
fn row_2_13_each_unit_of_work_runs_once() {
    let seed = seed();
    let mut numbers = Numbers(seed);
    let rig = Rig::new();
    let (low, high) = ([(); 3].map(|()| context(&rig, -1)), context(&rig, 1));
    let trace = Trace::of(&["skua_submit"]);
    for context in low {
        assert_eq!(rig.start_in(context, &[]).wait(), Ok(()));
    }
    let id = |event: &Event| event.get("context").to_owned();
    let mut ids: Vec<String> = trace.events().iter().map(id).collect();
    drop(trace);
    ids.retain(|id| id != "0");
    assert_eq!(ids.len(), low.len(), "{ids:?}");
    let [counts, picture, scene] =
        [Place::System; 3].map(|place| rig.buffer(place, 4 * u64::from(PIXELS * PIXELS)));
    let [pixel, each, one] = [COUNTED_PIXEL, COUNT_EACH, COUNT].map(|code| rig.program(code));
    let [threads, packets] = [0, 1].map(|_| rig.buffer(Place::System, 16 << 10));
    let draw = square(&pixel, &scene, &picture, counts.va);
    scene.cpu.write(128, 1);
    let Command::Dispatch(dispatched) = dispatch(&each, COUNT_EACH, &[]) else {
        unreachable!("a dispatch");
    };
    let mut dispatched = Dispatch {
        groups: [64, 1, 1],
        threads: [64, 1, 1],
        argument_count: 4,
        ..dispatched
    };
    dispatched.arguments[..2].copy_from_slice(&address(threads.va));
    // Of different lengths, but for longer than it takes to submit something. Written once: what is
    // preempted lasts for longer than a rig has room for other jobs.
    let dispatches = [1, 2, 3, 4].map(|n| {
        dispatched.arguments[2] = 200 * n;
        rig.write(&[Command::Dispatch(dispatched)])
    });
    let draws = rig.write(&[Command::Draw(draw); DRAWS as usize]);
    let packet = |n: u64| {
        let [low, high] = address(packets.va + 4 * n);
        dispatch(&each, COUNT_EACH, &[low, high, 50])
    };
    let counted = rig.write(&(0..DISPATCHES.into()).map(packet).collect::<Vec<_>>());
    let kinds = [
        dispatches.map(|work| vec![work]).to_vec(),
        vec![vec![draws]],
        vec![vec![counted; PACKETS as usize]],
    ];
    let important = rig.write(&[dispatch(&one, COUNT, &address(scene.va + 136))]);
    let end = |done| {
        assert_eq!(rig.wait(done), Ok(()), "seed {seed}");
        assert_eq!(rig.syncobj_destroy(done), Ok(()));
    };
    let _steps = RandomSteps::of(seed.max(1)).expect("gpu-steps");
    let wanted = suite::points(1000);
    let (mut met, mut asked, mut rounds) = ([0; 3], 0, [0; 3]);
    let mut jobs = [const { VecDeque::new() }; 3];
    while met.iter().sum::<u64>() < wanted || met.iter().any(|met| *met < wanted / 16) {
        let trace = Trace::of(&["skua_preempted"]);
        for _ in 0..64 {
            // There is always something of each kind to be preempted.
            for (kind, jobs) in jobs.iter_mut().enumerate() {
                while jobs.front().is_some_and(|job| rig.has_signalled(*job)) {
                    end(jobs.pop_front().expect("the first"));
                }
                while jobs.len() < 2 {
                    let (done, works) = (rig.syncobj(), &kinds[kind]);
                    let work = &works[numbers.below(works.len())];
                    let submitted = rig.submit(low[kind], work, &[signal(done)]);
                    assert_eq!(submitted, Ok(()), "seed {seed}");
                    rounds[kind] += 1;
                    jobs.push_back(done);
                }
            }
            for _ in 0..4 {
                assert_eq!(rig.submit(high, &[important], &[]), Ok(()));
                asked += 1;
                let done = || (scene.cpu.read32(136) == asked).then_some(());
                assert!(
                    soon(done).is_some(),
                    "seed {seed}: the important is not done"
                );
                for _ in 0..numbers.below(2000) {
                    std::hint::spin_loop();
                }
            }
        }
        for event in trace.events() {
            let kind = ids.iter().position(|own| *own == id(&event));
            if let (Some(kind), true) = (kind, event.get("stop") != UNBEGUN) {
                met[kind] += 1;
            }
        }
    }
    jobs.into_iter().flatten().for_each(end);
    println!("# seed {seed}: preempted {met:?} times for {asked} jobs, in {rounds:?} of others");
    let units = [
        ("thread", &threads, 64 * 64, rounds[0]),
        ("pixel", &counts, PIXELS * PIXELS, DRAWS * rounds[1]),
        ("packet", &packets, DISPATCHES, PACKETS * rounds[2]),
    ];
    for (unit, counts, count, rounds) in units {
        for n in 0..count {
            let times = counts.cpu.read32(4 * n as usize);
            assert_eq!(times, rounds, "seed {seed}: {unit} {n}");
        }
    }
}

/// Thread `n` of all mixes the `n`-th word from the address in arguments 0 and 1, as often as
/// argument 2 says.
const MIX: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Arg, 8, 0, 0, 2),
    // r4 = group * threads + thread
    op(Op::Sr, 4, 0, 0, 3),
    op(Op::Sr, 5, 0, 0, 6),
    op(Op::Mul, 4, 4, 5, 0),
    op(Op::Sr, 5, 0, 0, 0),
    op(Op::Add, 4, 4, 5, 0),
    op(Op::Lea, 6, 2, 4, 2),
    op(Op::Ld32, 9, 6, 0, 0),
    op_imm(Op::Mul, 9, 9, MULTIPLIER),
    op_imm(Op::Add, 9, 9, INCREMENT),
    op_imm(Op::Sub, 8, 8, 1),
    op(Op::Bnz, 0, 8, 0, 10),
    op(Op::St32, 9, 6, 0, 0),
    EXIT,
];
const MULTIPLIER: u32 = 1_664_525;
const INCREMENT: u32 = 1_013_904_223;

/// A context that does random work on words of its own.
struct Player {
    context: u32,
    engine: Engine,
    buffer: Buffer,
    /// What its words are when all is done that was submitted.
    words: Vec<u32>,
    /// Jobs submitted.
    jobs: u64,
}

impl Player {
    /// The next command, not to be done twice, nor half.
    fn work(&mut self, program: &Buffer, numbers: &mut Numbers) -> Command {
        let half = self.words.len() / 2;
        let (from, to, count) = (
            numbers.below(half),
            numbers.below(half),
            1 + numbers.below(half),
        );
        let va = |word: usize| self.buffer.va + 4 * word as u64;
        match numbers.below(if self.engine == Engine::Compute { 3 } else { 2 }) {
            0 => {
                let pattern = numbers.below(1 << 30) as u32;
                self.words[to..to + count].fill(pattern);
                fill(pattern, va(to), 4 * count as u64)
            }
            1 => {
                self.words.copy_within(from..from + count, to);
                copy(va(from), va(to), 4 * count as u64)
            }
            _ => {
                let (groups, threads) = (1 + numbers.below(16), 1 + numbers.below(256));
                let times = 1 + numbers.below(100) as u32;
                for word in &mut self.words[to..to + groups * threads] {
                    for _ in 0..times {
                        *word = word.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
                    }
                }
                let [low, high] = address(va(to));
                let Command::Dispatch(one) = dispatch(program, MIX, &[low, high, times]) else {
                    unreachable!("a dispatch");
                };
                Command::Dispatch(Dispatch {
                    groups: [groups as u32, 1, 1],
                    threads: [threads as u32, 1, 1],
                    ..one
                })
            }
        }
    }
}

/// Sixteen contexts of all priorities, which change, do random work on both engines; some of it
/// waits on the GPU for others' work.
fn row_2_13_random_schedules_end_as_if_each_were_alone() {
    let seed = seed();
    let mut numbers = Numbers(seed);
    let rig = Rig::new();
    let program = rig.program(MIX);
    let values = rig.buffer(Place::System, 4096);
    let value = |player: usize| values.va + 8 * player as u64;
    let before = saves();
    let mut players: Vec<Player> = (0..16)
        .map(|n| {
            let engine = Engine::ALL[usize::from(n % 4 == 3)];
            let buffer = rig.buffer(Place::ALL[n % 2], 64 << 10);
            Player {
                context: rig.context_having_worked(engine),
                engine,
                words: vec![0; 16 << 10],
                buffer,
                jobs: 0,
            }
        })
        .collect();
    let least = context(&rig, -7);
    for _ in 0..suite::rounds(4) {
        // However quick the engine is, it is at work when others come.
        let hold = Hold::new(&rig);
        let mut jobs = vec![hold.begin(&rig, least)];
        // As many as the rig has commands for.
        for _ in 0..400 {
            let (n, other) = (numbers.below(16), numbers.below(16));
            if numbers.below(8) == 0 {
                let priority = numbers.below(15) as i32 - 7;
                assert_eq!(rig.prioritise(players[n].context, priority), Ok(()));
            }
            let mut work = Vec::new();
            if numbers.below(4) == 0 {
                work.push(wait_value(value(other), players[other].jobs));
            }
            let player = &mut players[n];
            for _ in 0..1 + numbers.below(4) {
                work.push(player.work(&program, &mut numbers));
            }
            player.jobs += 1;
            work.push(write(value(n), player.jobs));
            jobs.push(rig.start_in(player.context, &work));
        }
        hold.release();
        for (n, job) in jobs.iter().enumerate() {
            assert_eq!(job.wait(), Ok(()), "seed {seed}, job {n}");
        }
    }
    for (n, player) in players.iter().enumerate() {
        let seen = |word: usize| player.buffer.cpu.read32(4 * word);
        let differs = (0..player.words.len()).find(|&word| seen(word) != player.words[word]);
        if let Some(word) = differs {
            let (is, was) = (seen(word), player.words[word]);
            panic!("seed {seed}, context {n}: word {word} is {is:#x}, not {was:#x}");
        }
    }
    let after = saves();
    println!("# preemptions, bytes saved, bytes restored: {before:?}, then {after:?}");
    assert!(after[1] > before[1], "nothing was preempted");
}

fn row_2_14_packets_that_made_room_keep_their_order() {
    let rig = Rig::new();
    let (low, high) = (context(&rig, -1), context(&rig, 1));
    let line = rig.buffer(Place::System, 4096);
    let other = rig.buffer(Place::Vram, 1 << 20);
    let before = preemptions();
    for round in 0..u64::from(suite::rounds(40)) {
        let hold = Hold::new(&rig);
        let holder = hold.begin(&rig, low);
        let jobs: Vec<Job<'_>> = (0..24)
            .map(|n| {
                // Only in this order does each find what it waits for: nobody else writes it.
                let (now, next) = (24 * round + n, 24 * round + n + 1);
                rig.start_in(low, &[wait_value(line.va, now), write(line.va, next)])
            })
            .collect();
        let important = rig.start_in(high, &[fill(1, other.va, 1 << 20)]);
        assert_eq!(important.wait(), Ok(()), "round {round}");
        hold.release();
        assert_eq!(holder.wait(), Ok(()), "round {round}");
        for (n, job) in jobs.iter().enumerate() {
            assert_eq!(job.wait(), Ok(()), "round {round}, job {n}");
        }
        assert_eq!(line.cpu.read(0), 24 * (round + 1));
    }
    assert!(preemptions() > before, "nothing was preempted");
}

/// Goes round, from the address in arguments 0 and 1 on: counts in word 0 the rounds in which
/// word 2 is one more than word 4, and in word 8 all; until word 6 is not 0. Then it writes to
/// word 10 what it has computed on the way.
const LATE: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op_imm(Op::Mov, 8, 0, 0),
    op_imm(Op::Mov, 9, 0, 1),
    op_imm(Op::Mov, 11, 0, 1),
    op(Op::Ld32, 4, 2, 0, 8),
    op(Op::Ld32, 5, 2, 0, 16),
    op(Op::Sub, 7, 4, 5, 0),
    op_imm(Op::Sub, 7, 7, 1),
    op(Op::Bnz, 0, 7, 0, 11),
    op(Op::AtomAdd, 12, 2, 11, 0),
    op_imm(Op::Mul, 9, 9, MULTIPLIER),
    op_imm(Op::Add, 9, 9, INCREMENT),
    op_imm(Op::Add, 8, 8, 1),
    op(Op::St32, 8, 2, 0, 32),
    op(Op::Ld32, 6, 2, 0, 24),
    op(Op::Bz, 0, 6, 0, 5),
    op(Op::St32, 9, 2, 0, 40),
    EXIT,
];
/// Instructions of a round that is counted, at least.
const ROUND: u32 = 12;
/// Instructions within which an engine looks whether it is to stop: a tick each, at least.
const LOOKS_WITHIN: u32 = 4096;

/// However long its buffer is: the engine has the request when a later register write is known to
/// have reached the device, and works on for no more than this before who is important has it.
fn row_2_12_an_engine_stops_within_so_many_ticks() {
    let rig = Rig::new();
    let (low, high) = (context(&rig, -1), context(&rig, 1));
    let words = rig.buffer(Place::System, 4096);
    let program = rig.program(LATE);
    let counts =
        || Function::first().counters(["driver_preemptions", "preempt", "preempt_ignored"]);
    let [asked, taken, ignored] = counts();
    let long = rig.start_in(low, &[dispatch(&program, LATE, &address(words.va))]);
    let rounds = || words.cpu.read32(32);
    let mut measured = 0;
    for n in 1..=10 {
        let seen = rounds();
        assert!(
            eventually(|| (rounds() != seen).then_some(())).is_some(),
            "it goes on"
        );
        let [before, ..] = counts();
        let late = words.cpu.read32(0);
        let important = rig.start_in(high, &[write(words.va + 16, n)]);
        // Asking for them writes a register, and waits for the answer.
        let [after, ..] = counts();
        // One who got nowhere is left alone for a while.
        if after > before {
            words.cpu.write(8, n);
        }
        assert_eq!(important.wait(), Ok(()), "round {n}");
        assert!(!long.has_ended());
        if after > before {
            measured += 1;
            let late = words.cpu.read32(0) - late;
            println!("# round {n}: {late} rounds late");
            assert!(
                late <= LOOKS_WITHIN / ROUND + 1,
                "round {n}: {late} rounds late"
            );
        }
        words.cpu.write(8, n);
    }
    assert!(measured > 0, "it was never asked");
    words.cpu.write(24, 1);
    assert_eq!(long.wait(), Ok(()));
    let mix = |word: u32, _| word.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
    assert_eq!(
        words.cpu.read32(40),
        (0..rounds()).fold(1, mix),
        "after {} rounds",
        rounds()
    );
    // No request while one was outstanding.
    let after = counts();
    assert_eq!(
        [after[0] - asked, after[2] - ignored],
        [after[1] - taken, 0]
    );
}
