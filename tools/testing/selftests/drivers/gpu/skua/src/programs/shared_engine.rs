// SPDX-License-Identifier: MIT

//! One engine that does the clients' copies and the driver's paging: `guests.json` gives this
//! program a GPU without another one for that.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use skua_selftests::events::{Event, Trace};
use skua_selftests::function::Function;
use skua_selftests::moving::{evict_all, movable, resident, Uncleared};
use skua_selftests::raw::Errno;
use skua_selftests::rig::{copy, wait_value, write};
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::unpreempted::Unasked;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};
use skua_spec::command::Command;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_14_paging_is_first_with_its_ids_and_others_get_new_ones: 60 at_rest,
        row_2_14_so_it_is_after_a_reset: 60 at_rest,
        row_2_14_paging_without_end_starves_nobody: 120 at_rest,
        row_2_10_no_call_waits_for_an_initialisation: 60,
        free_memory_is_cleared_when_nobody_works: 60 at_rest,
    ])
}

/// Of a packet that was traced: its submission's fence, and the fence id that the engine has for
/// it.
fn names(event: &Event) -> (String, u64) {
    let packet = event.get("packet").parse().expect("a number");
    (event.get("fence").to_owned(), packet)
}

/// What makes the driver write the ring again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The engine is asked to stop, for more important work.
    Preemption,
    /// What it works on faults, and the engine is reset.
    Reset,
}

fn row_2_14_paging_is_first_with_its_ids_and_others_get_new_ones() {
    write_again(Stop::Preemption);
}

fn row_2_14_so_it_is_after_a_reset() {
    write_again(Stop::Reset);
}

/// Paging is more important than all work of clients (P-12), whose engine it is here: the least
/// important of them goes on beside objects that leave VRAM and come back all the time.
fn row_2_14_paging_without_end_starves_nobody() {
    const SIZE: u64 = 1 << 20;
    const JOBS: u64 = 100;
    let rig = Rig::new().having_worked();
    let target = rig.buffer(Place::System, 4096);
    let low = rig.context_having_worked(Engine::Copy);
    assert_eq!(rig.prioritise(low, -7), Ok(()));
    let moves = || Function::first().counters(["driver_evictions", "driver_promotions"]);
    let (before, is_over) = (moves(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let other = Client::new();
            let moving = [(); 4].map(|()| movable(&other, SIZE));
            while !is_over.load(Ordering::Relaxed) {
                evict_all();
                resident(&other, &moving);
            }
        });
        for n in 1..=JOBS {
            let work = [copy(target.va, target.va + 2048, 8), write(target.va, n)];
            let ended = rig.start_in(low, &work).wait();
            is_over.store(ended.is_err() || n == JOBS, Ordering::Relaxed);
            assert_eq!(ended, Ok(()), "job {n}");
        }
    });
    assert_eq!(target.cpu.read(0), JOBS);
    let after = moves();
    let moved = [0, 1].map(|at| after[at] - before[at]);
    println!("{moved:?} evictions and promotions beside {JOBS} jobs");
    assert!(moved.iter().all(|moved| *moved > 0), "nothing moved");
}

/// Behind what waits the ring has packets of clients and of paging by turns, which it has not
/// when requests are on: paging would have had the engine stop before.
fn write_again(stop: Stop) {
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let nowhere = rig.reserve(4096);
    let contexts = [(); 3].map(|()| rig.context_having_worked(Engine::Copy));
    let high = rig.context_having_worked(Engine::Copy);
    assert_eq!(rig.prioritise(high, 1), Ok(()));
    Function::first().at_rest();
    let _uncleared = Uncleared::new();
    let trace = Trace::of(&[
        "skua_preempt",
        "skua_preempted",
        "skua_reset",
        "skua_packet",
        "skua_done",
    ]);
    let engine = rig.engine(Engine::Copy.kind()).to_string();
    let events = || {
        let mut events = trace.events();
        events.retain(|event| event.get("engine") == engine);
        events
    };
    let is_paging = |event: &&Event| event.name == "skua_packet" && event.get("context") == "0";
    // What is done before is not done again.
    let before = rig.start_in(contexts[1], &[write(gate.va + 32, 1)]);
    assert_eq!(before.wait(), Ok(()));
    let done = events().len();
    let off = Unasked::new();
    let behind = match stop {
        Stop::Preemption => gate.va + 40,
        Stop::Reset => nowhere,
    };
    let waits = rig.start_in(contexts[0], &[wait_value(gate.va, 1), write(behind, 1)]);
    let (mut jobs, mut new) = (Vec::new(), Vec::new());
    for n in 0..3 {
        for (context, at) in [(contexts[1], 8), (contexts[2], 16)] {
            jobs.push(rig.start_in(context, &[write(gate.va + at, n + 1)]));
            if at == 8 {
                // It is cleared.
                new.push(rig.bo(Place::Vram, 256 << 10));
            }
        }
    }
    let paged = || (events().iter().filter(is_paging).count() == new.len()).then_some(());
    assert!(eventually(paged).is_some(), "{:#?}", events());
    let written = events();
    match stop {
        Stop::Preemption => {
            drop(off);
            let important = rig.start_in(high, &[write(gate.va + 24, 1)]);
            assert_eq!(important.wait(), Ok(()));
            assert!(!waits.has_ended());
            gate.cpu.write(0, 1);
            assert_eq!(waits.wait(), Ok(()));
        }
        Stop::Reset => {
            gate.cpu.write(0, 1);
            assert_eq!(waits.wait(), Err(Errno::EFAULT));
            let important = rig.start_in(high, &[write(gate.va + 24, 1)]);
            assert_eq!(important.wait(), Ok(()));
        }
    }
    for handle in &new {
        rig.map(*handle).expect("new memory", |_| 0);
    }
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    assert_eq!([8, 16, 24].map(|at| gate.cpu.read(at)), [3, 3, 1]);

    let events = events();
    let (paging, others): (Vec<_>, Vec<_>) = written[done..].iter().partition(is_paging);
    let [paging, others] = [paging, others].map(|list| -> Vec<_> {
        let packets = list.into_iter().filter(|event| event.name == "skua_packet");
        packets.map(names).collect()
    });
    assert_eq!(others.len(), 1 + jobs.len(), "{events:#?}");
    let comes_again = |event: &Event| event.fields.get("again").is_some_and(|again| again == "1");
    assert!(!written.iter().any(comes_again), "{written:#?}");
    // They were mixed: some of paging have ids below others'.
    let last = others.iter().map(|(_, id)| *id).max();
    assert!(
        paging.iter().any(|(_, id)| Some(*id) < last),
        "{written:#?}"
    );
    let (why, ordered) = match stop {
        Stop::Preemption => ("skua_preempted", &others[..]),
        // Who is guilty does not come back.
        Stop::Reset => ("skua_reset", &others[1..]),
    };
    let mut again = events[written.len()..].iter();
    assert!(again.any(|event| event.name == why), "{events:#?}");
    let again: Vec<&Event> = again.filter(|event| event.name == "skua_packet").collect();
    let (first, rest) = again.split_at(paging.len());
    assert!(first.iter().all(is_paging), "{events:#?}");
    let first: Vec<_> = first.iter().copied().map(names).collect();
    assert_eq!(first, paging, "{events:#?}");
    let mut newest = paging.iter().map(|(_, id)| *id).max().max(last);
    let mut fences = Vec::new();
    for event in &again {
        let (fence, id) = names(event);
        let came = [&paging, &others].map(|list| list.iter().any(|(other, _)| *other == fence));
        assert_eq!(comes_again(event), came != [false; 2], "{id}: {events:#?}");
    }
    for event in rest {
        let (fence, id) = names(event);
        if is_paging(event) {
            // Who waits was tried meanwhile, and made room once more.
            assert!(paging.contains(&(fence, id)), "{id}: {events:#?}");
            continue;
        }
        assert!(Some(id) > newest, "{id}: {events:#?}");
        newest = Some(id);
        fences.push(fence);
    }
    if stop == Stop::Reset {
        // All were in the ring.
        let order: Vec<_> = ordered.iter().map(|(fence, _)| fence).collect();
        let came: Vec<_> = fences.iter().take(order.len()).collect();
        assert_eq!(came, order, "{events:#?}");
    }
    // Each was done once, those that came again as well, and after the last time.
    for (fence, _) in paging.iter().chain(&others) {
        let is_it = |event: &&Event| event.get("fence") == fence;
        let has_fence = |event: &&Event| event.fields.contains_key("fence");
        let life: Vec<_> = events.iter().filter(has_fence).filter(is_it).collect();
        let ends = life
            .iter()
            .filter(|event| event.name == "skua_done")
            .count();
        assert_eq!(
            (ends, life.last().map(|event| &*event.name)),
            (1, Some("skua_done")),
            "{fence}: {events:#?}"
        );
        let comes = ordered.iter().any(|(other, _)| other == fence);
        assert_eq!(fences.contains(fence), comes, "{fence}: {events:#?}");
    }
    let old = written[..done]
        .iter()
        .find(|event| event.name == "skua_packet");
    let (old, _) = names(old.expect("it was done"));
    assert!(!fences.contains(&old), "{events:#?}");
}

/// Who has the engine for paging holds up no SUBMIT, but the work: what it saves to is not written
/// yet.
fn row_2_10_no_call_waits_for_an_initialisation() {
    let (owner, rig) = (Rig::new().having_worked(), Rig::new());
    let [gate, begun] = [Place::System; 2].map(|place| owner.buffer(place, 4096));
    let done = rig.buffer(Place::System, 4096);
    let off = Unasked::new();
    let begins = [write(begun.va, 1), wait_value(gate.va, 1)];
    let holder = owner.start(Engine::Copy, &begins);
    let has_begun = || (begun.cpu.read(0) == 1).then_some(());
    assert!(eventually(has_begun).is_some(), "it does not begin");
    let job = rig.start(Engine::Compute, &[write(done.va, 1)]);
    // Who needs nothing of that engine is served, for as long as it would take.
    for _ in 0..20 {
        assert_eq!(
            owner.run(Engine::Compute, &[Command::Nop { words: 2 }]),
            Ok(())
        );
    }
    assert!(!job.has_ended(), "it did not wait");
    assert_eq!(done.cpu.read(0), 0);
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(done.cpu.read(0), 1);
    assert_eq!(holder.wait(), Ok(()));
    drop(off);
}

fn free_memory_is_cleared_when_nobody_works() {
    quiet();
    let rig = Rig::new();
    let context = rig.context_having_worked(Engine::Copy);
    let gate = rig.buffer(Place::System, 4096);
    let size = 16 << 20;
    let handle = rig.bo(Place::Vram, size);
    rig.map(handle).expect("new memory", |_| 0);
    Function::first().at_rest();
    let ([before], (clean, _)) = (cleared(), Function::first().clean());
    let trace = Trace::of(&["skua_start", "skua_preempt", "skua_paging"]);
    let begun = [write(gate.va + 8, 1), wait_value(gate.va, 1)];
    let works = rig.start_in(context, &begun);
    becomes("it begins", || gate.cpu.read(8) == 1);
    let used = rig.region(Place::Vram).used;
    assert_eq!(rig.close(handle), Ok(()));
    let is_free = || (rig.region(Place::Vram).used + size == used).then_some(());
    assert!(eventually(is_free).is_some(), "it is not given back");
    // It would be within this time if nobody worked.
    std::thread::sleep(Duration::from_millis(200));
    let events = trace.events();
    let own = |event: &&Event| event.name == "skua_preempt" || event.get("context") == "0";
    let starts = events.iter().filter(|event| event.name != "skua_paging");
    let others: Vec<_> = starts.filter(own).collect();
    assert!(!works.has_ended());
    assert_eq!(cleared(), [before], "{others:#?}");
    assert!(others.is_empty(), "{others:#?}");
    gate.cpu.write(0, 1);
    assert_eq!(works.wait(), Ok(()));
    let is_clean = || (Function::first().clean() == (clean + size, false)).then_some(());
    assert!(
        eventually(is_clean).is_some(),
        "{:?}",
        Function::first().clean()
    );
    // In parts, one after the other, each of which is a pass; at the end the rest.
    let events = trace.events();
    let passes: Vec<_> = events.iter().filter(|e| e.name == "skua_paging").collect();
    println!("# {} passes for {size:#x} bytes", passes.len());
    assert!(
        passes.iter().all(|pass| pass.get("last") == "1"),
        "{passes:#?}"
    );
}

/// Bytes of free memory that were cleared.
fn cleared() -> [u64; 1] {
    Function::first().counters(["driver_background_clear_bytes"])
}
