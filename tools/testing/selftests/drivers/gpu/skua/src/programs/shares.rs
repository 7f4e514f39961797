// SPDX-License-Identifier: MIT

//! Who gets how much of an engine, and in which order, by importance (row 2.20). The engine is slow
//! here, so that any kernel has queued all before it is done.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::client::{signal, wait, PATIENCE};
use skua_selftests::function::Function;
use skua_selftests::moving::while_again;
use skua_selftests::program::address;
use skua_selftests::race::{context, extent, load, within, Hold, Race, TAKE_A_NUMBER};
use skua_selftests::rig::{dispatch, fill, write, Job};
use skua_selftests::suite::{self, becomes, eventually, patience};
use skua_selftests::{tests, Client, Errno, Place, Rig};
use skua_uapi::{
    DRM_SKUA_PRIORITY_CLASS_HIGH, DRM_SKUA_PRIORITY_CLASS_IDLE, DRM_SKUA_PRIORITY_CLASS_NORMAL,
};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_20_three_priorities_end_in_order: 60 at_rest,
        row_2_20_in_process_priorities_end_in_order: 60 at_rest,
        row_2_20_classes_of_processes_end_in_order: 60 at_rest,
        row_2_20_equals_get_equal_shares: 60 at_rest,
        row_2_20_clients_get_equal_shares_whatever_their_packets: 60 at_rest,
        row_2_20_two_packets_at_a_time_are_enough: 60 at_rest,
        row_2_20_turns_take_no_time: 60 at_rest,
        row_2_20_short_packets_make_room_each_time: 60 at_rest,
        row_2_20_in_process_priorities_cost_others_nothing: 60 at_rest,
        row_2_20_who_is_less_important_in_the_process_is_served: 60,
        who_has_more_work_has_waited_as_long: 60 at_rest,
        who_is_lowered_serves_nobody_there: 60 at_rest,
    ])
}

/// Bytes that a job of a race writes to VRAM first: few of them end before the driver has heard of
/// the end of another one.
const LONG: u64 = 256 << 10;

/// Ticks of a short packet, and how many of them take their turns.
const SHORT: u64 = 10_000;
const PACKETS: usize = 256;

fn row_2_20_three_priorities_end_in_order() {
    let rig = Rig::new();
    let contexts = [-7, 0, 6, 7].map(|priority| context(&rig, priority));
    end_in_order(&rig, contexts, |context| rig.prioritise(context, 7));
}

fn row_2_20_in_process_priorities_end_in_order() {
    let rig = Rig::new();
    let contexts = [-7, 0, 6, 7].map(|priority| within(&rig, priority));
    end_in_order(&rig, contexts, |context| rig.prioritise_within(context, 7));
}

/// Work of three contexts that are more and more important; the fourth is more so than they, until
/// the third is `raised`.
#[track_caller]
fn end_in_order(
    rig: &Rig,
    [contexts @ .., holder]: [u32; 4],
    raised: impl FnOnce(u32) -> Result<(), Errno>,
) {
    let since = time();
    let mut race = Race::new(rig);
    // All are ready before any begins; the least important first, with more than the ring takes.
    race.begin();
    let hold = Hold::new(rig);
    let vram = rig.buffer(Place::Vram, LONG);
    let holder = hold.begin(rig, holder);
    for context in contexts {
        for _ in 0..40 {
            race.enter_with(context, &[fill(1, vram.va, LONG)]);
        }
    }
    assert_eq!(raised(contexts[2]), Ok(()));
    // It overtakes what is in the ring when the holder's turn is over.
    becomes("it overtakes them", || race.number(81) > 0);
    hold.release();
    assert_eq!(holder.wait(), Ok(()));
    expect_in_order(&race.run(), since);
}

/// Time of the compute engine in ticks.
#[track_caller]
fn time() -> u64 {
    let rings = Function::first().debugfs("rings").expect("debugfs");
    let engine = rings.lines().find(|line| line.contains(" (compute): "));
    let ticks = engine.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    ticks.unwrap_or_else(|| panic!("no ticks: {rings}"))
}

/// Of three that are more and more important each has done 40 jobs since the time `since`; these
/// are the numbers of all.
#[track_caller]
fn expect_in_order(numbers: &[u32], since: u64) {
    // Who has waited for 100 turns, each a 5000th of a second, is served once.
    let hertz = Client::new().device.tick_hz;
    let starved = 1 + u32::try_from((time() - since) / (hertz / 50)).expect("soon");
    let (low, rest) = numbers.split_at(40);
    let (normal, high) = rest.split_at(40);
    let ends = [high, normal, low].map(|numbers| extent(numbers).1);
    println!("# the last of each, the most important first: {ends:?}");
    assert!(ends.is_sorted(), "{numbers:?}");
    // But for one that was under way, and those that starve: as equals they would take turns.
    let (first, last) = extent(high);
    assert!(
        last - first <= 40 + 2 * starved,
        "the most important: {first} to {last} of 120, each other {starved} times at most"
    );
    let before = low.iter().filter(|number| **number < extent(normal).1);
    let before = before.filter(|number| **number > extent(normal).0).count();
    assert!(
        before <= 1 + starved as usize,
        "{before} of the least important were among the normal ones"
    );
}

/// Whatever each says of its own contexts, by which it would be the other way round.
fn row_2_20_classes_of_processes_end_in_order() {
    let owner = Rig::new();
    let line = owner.buffer(Place::System, 4096);
    let shared = owner.export(line.handle).expect("PRIME_HANDLE_TO_FD");
    let processes = [
        (DRM_SKUA_PRIORITY_CLASS_IDLE, 6),
        (DRM_SKUA_PRIORITY_CLASS_NORMAL, 0),
        (DRM_SKUA_PRIORITY_CLASS_HIGH, -5),
    ]
    .map(|(class, priority)| {
        let rig = Rig::new();
        let contexts = [(); 2].map(|()| context(&rig, priority));
        (rig, class, contexts)
    });
    // All are ready, the least important with more than the ring takes, before any begins.
    let since = time();
    let hold = Hold::new(&owner);
    // As important as the last of them becomes.
    let holder = hold.begin(&owner, context(&owner, 1));
    let mut jobs = Vec::new();
    let number = |n: usize| line.cpu.read32(4 * (n + 1));
    for (n, (rig, class, contexts)) in (0..).zip(&processes) {
        if *class != DRM_SKUA_PRIORITY_CLASS_HIGH {
            assert_eq!(rig.set_class(*class), Ok(()));
        }
        let line = rig.bound_at_will(rig.import(&shared).expect("PRIME_FD_TO_HANDLE"), 4096);
        let program = rig.program(TAKE_A_NUMBER);
        let vram = rig.buffer(Place::Vram, LONG);
        for job in 0..40 {
            let slot = line + 4 + 4 * (40 * n + job);
            let arguments = [address(line), address(slot)].concat();
            let work = [
                fill(1, vram.va, LONG),
                dispatch(&program, TAKE_A_NUMBER, &arguments),
            ];
            jobs.push(rig.start_in(contexts[job as usize / 20], &work));
        }
    }
    // What is queued is, too, and overtakes what is in the ring when the holder's turn is over:
    // both contexts do.
    let (last, class, _) = &processes[2];
    assert_eq!(last.set_class(*class), Ok(()));
    becomes("it overtakes them", || number(81).min(number(101)) > 0);
    hold.release();
    assert_eq!(holder.wait(), Ok(()));
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    let numbers: Vec<u32> = (0..120).map(number).collect();
    expect_in_order(&numbers, since);
}

/// The share of the first of those that have `used` so much, since all have begun, from half of
/// `total` ticks on until all have used these: at any one moment one owes the others up to a turn,
/// and for what one had before another was ready nothing is owed.
#[track_caller]
fn mean_share<const N: usize>(total: u64, used: impl Fn() -> [u64; N]) -> f64 {
    let all_begun = || Some(used()).filter(|used| used.iter().all(|ticks| *ticks > 0));
    let first = eventually(all_begun).unwrap_or_else(|| panic!("{:?} ticks", used()));
    let mut shares = Vec::new();
    let end = eventually(|| {
        let used = used();
        let since = |at: usize| used[at] - first[at];
        let sum: u64 = (0..N).map(since).sum();
        if sum >= total / 2 {
            shares.push(since(0) as f64 / sum as f64);
        }
        (sum > total).then_some(())
    });
    assert!(end.is_some(), "it does not go on: {:?} ticks", used());
    println!("{first:?} ticks; {} looks: {shares:.3?}", shares.len());
    shares.iter().sum::<f64>() / shares.len() as f64
}

fn row_2_20_equals_get_equal_shares() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::Vram, 4 << 20);
    let important = context(&rig, 7);
    for (a, b) in [(20_000, 20_000), (10_000, 80_000), (60_000, 10_000)] {
        let contexts = [context(&rig, 0), context(&rig, 0)];
        let total = 40_000_000;
        // A gate would open to one before the other: that one's time alone is not owed.
        let hold = Hold::new(&rig);
        let holder = rig.start_in(important, &[hold.command()]);
        let jobs = [(contexts[0], a), (contexts[1], b)]
            .map(|(context, ticks)| load(&rig, None, context, buffer.va, (ticks, total)));
        hold.release();
        let used = || contexts.map(|context| rig.state(context).expect("CONTEXT_STATE").ticks);
        let share = mean_share(total, used);
        println!("# jobs of {a} and {b} ticks: {share:.4} of the engine");
        assert!((0.485..=0.515).contains(&share), "{share} of the engine");
        for context in contexts {
            assert_eq!(rig.context_destroy(context), Ok(()));
        }
        assert_eq!(holder.wait(), Ok(()));
        jobs.iter().for_each(|job| _ = job.wait());
    }
}

/// Also if packets of the one take ten turns each.
fn row_2_20_clients_get_equal_shares_whatever_their_packets() {
    let rigs = [(); 2].map(|()| Rig::new());
    let [a, b] = rigs.each_ref().map(|rig| rig.buffer(Place::Vram, 4 << 20));
    for [heavy, light] in [[10_000, 10_000], [2_000_000, 10_000]] {
        let contexts = rigs.each_ref().map(|rig| context(rig, 0));
        let total = 40_000_000;
        let hold = Hold::new(&rigs[0]);
        let holder = rigs[0].start_in(context(&rigs[0], 7), &[hold.command()]);
        let jobs = [
            load(&rigs[0], None, contexts[0], a.va, (heavy, total)),
            load(&rigs[1], None, contexts[1], b.va, (light, total)),
        ];
        hold.release();
        let state = |n: usize| rigs[n].state(contexts[n]).expect("CONTEXT_STATE");
        let share = mean_share(total, || [0, 1].map(|n| state(n).ticks));
        println!("# packets of {heavy} and {light} ticks: {share:.4} of the engine");
        assert!((0.475..=0.525).contains(&share), "{share} of the engine");
        for (rig, context) in rigs.iter().zip(contexts) {
            assert_eq!(rig.context_destroy(context), Ok(()));
        }
        assert_eq!(holder.wait(), Ok(()));
        jobs.iter().for_each(|job| _ = job.wait());
    }
}

/// Who has no more than two waits for nothing outside of the ring, and has turns all the same.
fn row_2_20_two_packets_at_a_time_are_enough() {
    const LENGTH: u64 = 500_000;
    let (rig, other) = (Rig::new(), Rig::new());
    let theirs = other.buffer(Place::Vram, 4 << 20);
    let important = context(&other, 7);
    let [context, rival] = [&rig, &other].map(|rig| context(rig, 0));
    let total = 40_000_000;
    let hold = Hold::new(&other);
    let holder = hold.begin(&other, important);
    let last = load(&other, None, rival, theirs.va, (LENGTH, total));
    let used = |rig: &Rig, context| rig.state(context).expect("CONTEXT_STATE").ticks;
    let share = while_two_are_queued(&rig, context, LENGTH, || {
        hold.release();
        // What comes of the order in which they began is not what is measured.
        becomes("it works", || used(&rig, context) > 8 * LENGTH);
        mean_share(total, || [used(&rig, context), used(&other, rival)])
    });
    println!("# {share:.4} of the engine");
    // A slow kernel may not bring the next packet in time.
    let least = if patience() > 1 { 0.45 } else { 0.475 };
    assert!((least..=0.525).contains(&share), "{share} of the engine");
    assert_eq!(holder.wait(), Ok(()));
    assert_eq!(other.context_destroy(rival), Ok(()));
    let _ = last.wait();
}

/// Calls `during` while a context has two packets of so many ticks, or has just had; as many more
/// as the kernel is slower, but never as many as the ring takes.
fn while_two_are_queued<R>(rig: &Rig, context: u32, ticks: u64, during: impl FnOnce() -> R) -> R {
    let buffer = rig.buffer(Place::Vram, 4 << 20);
    let commands = rig.write(&vec![fill(1, buffer.va, 8 * ticks); 8]);
    let client: &Client = rig;
    let syncobjs: Vec<u32> = (0..2 * patience()).map(|_| client.syncobj()).collect();
    let start = |syncobj| client.submit(context, &[commands], &[signal(syncobj)]);
    for syncobj in syncobjs.iter().copied() {
        assert_eq!(start(syncobj).map(|_| ()), Ok(()));
    }
    let mut next = syncobjs.into_iter().cycle();
    let start_next = || {
        let syncobj = next.next().expect("for ever");
        assert_eq!(client.wait_for(syncobj, 8 * PATIENCE), Ok(()));
        assert_eq!(start(syncobj).map(|_| ()), Ok(()));
    };
    while_again(start_next, during)
}

/// The engine takes as long for the work of several contexts as for that of one, within a 20th;
/// also if each piece waits for the one before.
fn row_2_20_turns_take_no_time() {
    let rig = Rig::new();
    for (contexts, in_turn) in [(4, false), (2, true)] {
        let [ideal, taken] = [1, contexts].map(|contexts| makespan(&rig, contexts, in_turn));
        println!("# {contexts} contexts, in turn: {in_turn}: {taken} ticks, of one {ideal}");
        assert!(taken * 20 <= ideal * 21, "{taken} ticks instead of {ideal}");
    }
}

/// Ticks of the engine for [`PACKETS`] packets, which are submitted to so many contexts in turn;
/// whether each waits for the one before.
#[track_caller]
fn makespan(rig: &Rig, contexts: usize, in_turn: bool) -> u64 {
    let buffer = rig.buffer(Place::Vram, 1 << 20);
    let work = [fill(1, buffer.va, 64 * SHORT)];
    let contexts: Vec<u32> = (0..contexts).map(|_| context(rig, 0)).collect();
    let important = context(rig, 7);
    let used = || rig.state(important).expect("CONTEXT_STATE").ticks;
    let (before, unheld) = (time(), used());
    // Nothing begins before all is submitted.
    let hold = Hold::new(rig);
    let holder = hold.begin(rig, important);
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for context in contexts.iter().cycle().take(PACKETS) {
        let first = jobs.last().filter(|_| in_turn);
        let first: Vec<_> = first.map(|job| wait(job.syncobj)).into_iter().collect();
        let job = rig.start_after(*context, &work, &first).expect("SUBMIT");
        jobs.push(job);
    }
    hold.release();
    for job in jobs.iter().chain([&holder]) {
        assert_eq!(job.wait(), Ok(()));
    }
    time() - before - (used() - unheld)
}

/// However often they did before.
fn row_2_20_short_packets_make_room_each_time() {
    const ROUNDS: usize = 24;
    let rig = Rig::new();
    let buffer = rig.buffer(Place::Vram, 1 << 20);
    let target = rig.buffer(Place::System, 4096);
    let [low, high, highest] = [-7, 7, 7].map(|priority| context(&rig, priority));
    let preemptions = || Function::first().counters(["driver_preemptions"])[0];
    let used = || rig.state(low).expect("CONTEXT_STATE").ticks;
    // The ring may just be empty, and on a slow kernel mostly is.
    let most = if patience() > 1 { 25 * ROUNDS } else { ROUNDS };
    let (mut rounds, mut made_room) = (0, 0);
    while rounds < most && made_room < ROUNDS {
        // All of it is queued before any of it begins.
        let hold = Hold::new(&rig);
        let holder = rig.start_in(highest, &[hold.command()]);
        let last = load(&rig, None, low, buffer.va, (SHORT, 40_000_000));
        let unused = used();
        hold.release();
        assert_eq!(holder.wait(), Ok(()));
        becomes("it works", || used() > unused);
        while rounds < most && made_room < ROUNDS {
            let before = preemptions();
            let urgent = rig.start_in(high, &[write(target.va, 1)]);
            assert_eq!(urgent.wait(), Ok(()));
            // A slow kernel has the engine do all of the rest meanwhile.
            if last.has_ended() {
                break;
            }
            rounds += 1;
            made_room += usize::from(preemptions() > before);
        }
    }
    println!("# {made_room} times in {rounds} rounds");
    assert!(made_room * 6 >= ROUNDS * 5, "{made_room} times in {rounds}");
    assert_eq!(rig.context_destroy(low), Ok(()));
}

/// A client that says which of its contexts is more important gets no more of the engine for it.
fn row_2_20_in_process_priorities_cost_others_nothing() {
    let (rig, other) = (Rig::new(), Rig::new());
    let [mine, others] = [&rig, &other].map(|rig| rig.buffer(Place::Vram, 4 << 20).va);
    let (low, high) = (within(&rig, -7), within(&rig, 7));
    let rival = context(&other, 0);
    let total = 40_000_000;
    let hold = Hold::new(&rig);
    let holder = rig.start_in(context(&rig, 7), &[hold.command()]);
    let jobs = [low, high].map(|context| load(&rig, None, context, mine, (20_000, total)));
    let rivals = load(&other, None, rival, others, (20_000, total));
    hold.release();
    let used = || {
        let used = |rig: &Rig, context| rig.state(context).expect("CONTEXT_STATE").ticks;
        [used(&other, rival), used(&rig, high), used(&rig, low)]
    };
    // Two shares of three are the client's, nearly all of them the more important one's.
    let share = mean_share(total, used);
    let [rivals_ticks, more, less] = used();
    println!("# {share:.4} of the engine; {rivals_ticks}, and {more} and {less} ticks");
    assert!((0.323..=0.343).contains(&share), "{share} of the engine");
    assert!(less * 10 <= more, "{less} and {more} ticks");
    for (rig, context) in [(&rig, low), (&rig, high), (&other, rival)] {
        assert_eq!(rig.context_destroy(context), Ok(()));
    }
    assert_eq!(holder.wait(), Ok(()));
    jobs.iter().chain([&rivals]).for_each(|job| _ = job.wait());
}

/// Others may wait for its fence, however much there is that is more important to its client.
fn row_2_20_who_is_less_important_in_the_process_is_served() {
    let rig = Rig::new();
    let (low, high) = (within(&rig, -7), within(&rig, 7));
    let mut race = Race::new(&rig);
    for context in [high, low, high] {
        for _ in 0..if context == low { 1 } else { 200 } {
            race.enter(context);
        }
    }
    // One of them comes through the gate before the other.
    let hold = Hold::new(&rig);
    let holder = hold.begin(&rig, context(&rig, 7));
    race.begin();
    thread::sleep(Duration::from_millis(50) * patience());
    hold.release();
    let numbers = race.run();
    assert_eq!(holder.wait(), Ok(()));
    println!("# it was {} of {}", numbers[200], numbers.len());
    assert!(numbers[200] < 399, "it was the last");
}

/// What comes behind work that waits in the ring makes that no younger.
fn who_has_more_work_has_waited_as_long() {
    let rig = Rig::new();
    let (low, high) = (context(&rig, -1), context(&rig, 0));
    let buffer = rig.buffer(Place::System, 4096);
    let hold = Hold::new(&rig);
    let holder = hold.begin(&rig, high);
    let half = Client::new().device.tick_hz / 100;
    let mut jobs: Vec<Job<'_>> = Vec::new();
    let is_served = |jobs: &[Job<'_>]| jobs.first().is_some_and(Job::has_ended);
    while !is_served(&jobs) {
        // Of more there would be some outside of the ring.
        assert!(jobs.len() < 16, "it waits still");
        jobs.push(rig.start_in(low, &[write(buffer.va, 1)]));
        let since = time();
        becomes("time passes", || is_served(&jobs) || time() > since + half);
    }
    println!("# it was served with {} jobs", jobs.len());
    assert!(!holder.has_ended());
    hold.release();
    for job in jobs.iter().chain([&holder]) {
        assert_eq!(job.wait(), Ok(()));
    }
}

/// Two that are more important than who waits are in turn as unimportant while they run: that is
/// not what it waits for.
fn who_is_lowered_serves_nobody_there() {
    let rig = Rig::new();
    let contexts = [(); 2].map(|()| context(&rig, 0));
    let buffer = rig.buffer(Place::System, 4096);
    let hold = Hold::new(&rig);
    let holders = [
        hold.begin(&rig, contexts[0]),
        rig.start_in(contexts[1], &[hold.command()]),
    ];
    let waits = rig.start_in(context(&rig, -1), &[write(buffer.va, 1)]);
    let (mut runs, mut other) = (contexts[0], contexts[1]);
    let served = eventually(|| {
        for (context, priority) in [(other, 0), (runs, -1)] {
            assert_eq!(rig.prioritise(context, priority), Ok(()));
        }
        (runs, other) = (other, runs);
        waits.has_ended().then_some(())
    });
    assert!(served.is_some(), "it starves");
    assert!(holders.iter().all(|holder| !holder.has_ended()));
    hold.release();
    for job in holders.iter().chain([&waits]) {
        assert_eq!(job.wait(), Ok(()));
    }
}
