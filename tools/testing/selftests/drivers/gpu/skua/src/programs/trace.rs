// SPDX-License-Identifier: MIT

//! Tracepoints: the life of each submission, and faults.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use skua_selftests::client::{self, signal_value, wait};
use skua_selftests::events::{Event, Trace};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    alone, both, evict_all, movable_in_vram, place, resident, with_holders, Uncleared,
};
use skua_selftests::rig::{wait_value, write};
use skua_selftests::suite::eventually;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::command::Command;
use skua_spec::fault::Reason;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_events_are_there,
        a_submission_is_submitted_started_and_done,
        contexts_are_traced_in_order,
        threads_have_memory_cleared_in_the_order_of_their_fences: 120 at_rest,
        a_fault_is_traced,
        errors_are_traced,
        row_2_23_cancelled_work_ends_once_and_never_starts,
        row_2_21_a_replayed_job_is_done_once,
        work_whose_memory_never_fits_tells_what_holds_it at_rest,
        room_that_cannot_be_made_tells_what_holds_it: 60 at_rest,
        packets_are_traced_with_the_engines_names_for_them,
        what_a_submission_waits_for_is_traced,
        values_of_monitored_fences_are_traced,
        moves_and_the_use_of_segments_are_traced: 60 at_rest,
    ])
}

const EVENTS: [&str; 5] = [
    "skua_submit",
    "skua_start",
    "skua_done",
    "skua_fault",
    "skua_no_room",
];

/// A trace of all of them, when earlier clients are gone.
#[track_caller]
fn traced() -> Trace {
    quiet();
    Trace::of(&EVENTS)
}

/// The events of each fence, in order of their first: their names, and the last one's error.
fn lives(events: &[Event]) -> Vec<(String, Vec<&str>, Option<i32>)> {
    let mut lives: Vec<(String, Vec<&str>, Option<i32>)> = Vec::new();
    for event in events.iter().filter(|event| event.name != "skua_fault") {
        let fence = event.get("fence");
        let error =
            (event.name == "skua_done").then(|| event.get("error").parse().expect("a number"));
        match lives.iter_mut().find(|life| life.0 == fence) {
            Some(life) => {
                life.1.push(&event.name);
                life.2 = error.or(life.2);
            }
            None => lives.push((fence.to_owned(), vec![&event.name], error)),
        }
    }
    lives
}

/// Every event, and what it tells beside the device.
const FORMATS: [(&str, &[&str]); 19] = [
    ("skua_adapter_reset", &[]),
    (
        "skua_await",
        &["fence_context", "fence_seqno", "monitored", "value", "held"],
    ),
    (
        "skua_depend",
        &["fence_context", "fence_seqno", "on_context", "on_seqno"],
    ),
    (
        "skua_done",
        &["engine", "context", "fence_context", "fence_seqno", "error"],
    ),
    ("skua_fault", &["engine", "context", "reason", "address"]),
    ("skua_lost", &[]),
    ("skua_memory", &["region", "used", "size"]),
    (
        "skua_move",
        &[
            "fence_context",
            "fence_seqno",
            "from",
            "to",
            "bytes",
            "clean",
        ],
    ),
    (
        "skua_no_quota",
        &["quota", "of", "pid", "units", "used", "excess"],
    ),
    ("skua_no_room", &["region", "bytes", "needed", "held"]),
    (
        "skua_packet",
        &[
            "engine",
            "context",
            "fence_context",
            "fence_seqno",
            "packet",
        ],
    ),
    (
        "skua_paging",
        &["engine", "fence_seqno", "piece", "page", "idle", "last"],
    ),
    ("skua_preempt", &["engine"]),
    (
        "skua_preempted",
        &["engine", "context", "fence_context", "fence_seqno", "stop"],
    ),
    ("skua_reset", &["engine"]),
    (
        "skua_resume",
        &["engine", "context", "fence_context", "fence_seqno"],
    ),
    (
        "skua_signal",
        &["fence_context", "fence_seqno", "monitored", "value"],
    ),
    (
        "skua_start",
        &["engine", "context", "fence_context", "fence_seqno"],
    ),
    (
        "skua_submit",
        &["engine", "context", "fence_context", "fence_seqno"],
    ),
];

fn the_events_are_there() {
    let all = Path::new("/sys/kernel/tracing/events/skua");
    let mut names: Vec<String> = fs::read_dir(all)
        .expect("tracefs")
        .map(|entry| entry.expect("tracefs").file_name().into_string())
        .filter_map(|name| name.ok().filter(|name| name.starts_with("skua_")))
        .collect();
    names.sort();
    assert_eq!(names, FORMATS.map(|(name, _)| name));
    for (event, fields) in FORMATS {
        let format = fs::read_to_string(all.join(event).join("format")).expect(event);
        for field in [&["dev"][..], fields].concat() {
            let told = [";", "["].map(|end| format.contains(&format!(" {field}{end}")));
            assert!(told.contains(&true), "no {field}: {format}");
        }
    }
}

fn a_submission_is_submitted_started_and_done() {
    let trace = traced();
    let rig = Rig::new().having_worked();
    let target = rig.buffer(Place::System, 4096);
    for (n, engine) in (0..).zip(Engine::ALL) {
        let before = trace.events().len();
        assert_eq!(rig.run(engine, &[write(target.va, n)]), Ok(()));
        let events = trace.events().split_off(before);
        let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
        assert_eq!(
            names,
            ["skua_submit", "skua_start", "skua_done"],
            "{engine:?}"
        );
        for event in &events {
            assert_eq!(event.get("dev"), Function::first().address);
            assert_eq!(event.get("engine"), rig.engine(engine.kind()).to_string());
            assert_eq!(event.get("fence"), events[0].get("fence"));
            assert_eq!(event.get("context"), events[0].get("context"));
        }
        assert_eq!(events[2].get("error"), "0");
    }
}

fn contexts_are_traced_in_order() {
    let trace = traced();
    let rig = Rig::new();
    let jobs: Vec<_> = (0..40).map(|_| rig.start(Engine::Copy, &[])).collect();
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    let events = trace.events();
    for name in ["skua_submit", "skua_start", "skua_done"] {
        let numbers: Vec<u64> = events
            .iter()
            .filter(|event| event.name == name)
            .map(|event| {
                let (_, number) = event.get("fence").split_once(':').expect("a fence");
                number.parse().expect("a number")
            })
            .collect();
        assert_eq!(numbers.len(), 40, "{name}");
        assert!(
            numbers.windows(2).all(|pair| pair[0] < pair[1]),
            "{name}: {numbers:?}"
        );
    }
}

/// Memory is cleared for all clients by one context of the driver's: who has the lower number is in
/// front there, whoever was faster.
fn threads_have_memory_cleared_in_the_order_of_their_fences() {
    const OBJECTS: usize = 300;
    const THREADS: usize = 4;
    quiet();
    let _uncleared = Uncleared::new();
    let client = Client::new();
    let trace = Trace::of(&["skua_submit"]);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..OBJECTS {
                    let bo = client.bo(Place::Vram, 4096);
                    assert_eq!(client.close(bo), Ok(()));
                }
            });
        }
    });
    let mut lines: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in trace.events() {
        let (line, number) = event.get("fence").split_once(':').expect("a fence");
        let number = number.parse().expect("a number");
        lines.entry(line.to_owned()).or_default().push(number);
    }
    let most = lines.values().map(Vec::len).max().unwrap_or(0);
    println!("# {most} of one line");
    assert!(most > OBJECTS, "objects were not cleared one by one");
    for (line, numbers) in lines {
        let wrong = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
        assert_eq!(wrong, None, "line {line}, of {}", numbers.len());
    }
}

fn a_fault_is_traced() {
    let trace = traced();
    let rig = Rig::new();
    let nothing = rig.reserve(4096);
    let context = rig.new_context(Engine::Compute);
    let job = rig.start_in(context, &[write(nothing + 64, 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let events = trace.events();
    let faults: Vec<&Event> = events
        .iter()
        .filter(|event| event.name == "skua_fault")
        .collect();
    assert_eq!(faults.len(), 1, "{events:?}");
    assert_eq!(
        faults[0].get("reason"),
        (Reason::NotPresent as u32).to_string()
    );
    assert_eq!(faults[0].get("address"), format!("{:#x}", nothing + 64));
    assert_eq!(
        faults[0].get("engine"),
        rig.engine(Engine::Compute.kind()).to_string()
    );
    // The context is the one that submitted.
    let submit = events
        .iter()
        .rfind(|event| event.name == "skua_submit")
        .expect("a submission");
    assert_eq!(faults[0].get("context"), submit.get("context"));
}

fn errors_are_traced() {
    let trace = traced();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let context = rig.context_having_worked(Engine::Compute);
    let before = trace.events().len();
    let bad = rig.start_in(
        context,
        &[wait_value(gate.va, 1), write(rig.reserve(4096), 1)],
    );
    let dependant = rig
        .start_after(rig.copy, &[], &[wait(bad.syncobj)])
        .expect("SUBMIT");
    gate.cpu.write(0, 1);
    assert_eq!(bad.wait(), Err(Errno::EFAULT));
    assert_eq!(dependant.wait(), Err(Errno::ECANCELED));
    let events = trace.events().split_off(before);
    let lives = lives(&events);
    let ends: Vec<_> = lives.iter().map(|life| (life.1.clone(), life.2)).collect();
    assert_eq!(
        ends,
        [
            (
                vec!["skua_submit", "skua_start", "skua_done"],
                Some(-(Errno::EFAULT as i32))
            ),
            (
                vec!["skua_submit", "skua_done"],
                Some(-(Errno::ECANCELED as i32))
            ),
        ]
    );
}

fn row_2_23_cancelled_work_ends_once_and_never_starts() {
    let trace = traced();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let context = rig.context_having_worked(Engine::Compute);
    let before = trace.events().len();
    let bad = rig.start_in(
        context,
        &[wait_value(gate.va, 1), write(rig.reserve(4096), 1)],
    );
    let cancelled = || Function::first().counters(["driver_cancelled_commands"])[0];
    let told = cancelled();
    let nop = [Command::Nop { words: 2 }];
    let queued: Vec<_> = (0..80).map(|_| rig.start_in(context, &nop)).collect();
    gate.cpu.write(0, 1);
    assert_eq!(bad.wait(), Err(Errno::EFAULT));
    for job in &queued {
        assert_eq!(job.wait(), Err(Errno::ECANCELED));
    }
    let told = cancelled() - told;
    let events = trace.events().split_off(before);
    let lives = lives(&events);
    assert_eq!(lives.len(), 81);
    let mut waiting = 0;
    for (fence, names, error) in &lives[1..] {
        let dones = names.iter().filter(|name| **name == "skua_done").count();
        assert_eq!(
            (dones, *error),
            (1, Some(-(Errno::ECANCELED as i32))),
            "{fence}: {names:?}"
        );
        waiting += u64::from(!names.contains(&"skua_start"));
    }
    // All but those that the ring had taken.
    assert!(waiting >= 40, "{waiting} of 80 had not started");
    assert_eq!(told, waiting, "the miniport is told of others");
    assert_eq!(rig.state(context).expect("CONTEXT_STATE").completed, 82);
}

fn row_2_21_a_replayed_job_is_done_once() {
    let trace = traced();
    let rig = Rig::new();
    let (gate, target) = (
        rig.buffer(Place::System, 4096),
        rig.buffer(Place::System, 4096),
    );
    let [guilty, innocent] = [(); 2].map(|()| rig.context_having_worked(Engine::Copy));
    let before = trace.events().len();
    let bad = rig.start_in(
        guilty,
        &[wait_value(gate.va, 1), write(rig.reserve(4096), 1)],
    );
    let jobs: Vec<_> = (0..10)
        .map(|n| rig.start_in(innocent, &[write(target.va + 8 * n, n + 1)]))
        .collect();
    gate.cpu.write(0, 1);
    assert_eq!(bad.wait(), Err(Errno::EFAULT));
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!((job.wait(), target.cpu.read(8 * n)), (Ok(()), n as u64 + 1));
    }
    let events = trace.events().split_off(before);
    let lives = lives(&events);
    assert_eq!(lives.len(), 11);
    for (fence, names, error) in &lives[1..] {
        let dones = names.iter().filter(|name| **name == "skua_done").count();
        assert_eq!((dones, *error), (1, Some(0)), "{fence}: {names:?}");
        assert!(names.contains(&"skua_start"), "{fence}: {names:?}");
    }
}

fn room_that_cannot_be_made_tells_what_holds_it() {
    let trace = traced();
    with_holders(|client, holders| {
        let vram = client.region(Place::Vram);
        let expect = |bytes: u64, needed: &str| {
            let events = trace.events();
            let event = events.iter().rfind(|event| event.name == "skua_no_room");
            let event = event.unwrap_or_else(|| panic!("{events:?}"));
            println!("# {event:?}");
            assert_eq!(event.get("dev"), Function::first().address);
            assert_eq!(event.get("region"), "vram0");
            assert_eq!(event.get("bytes"), bytes.to_string());
            assert_eq!(event.get("needed"), needed);
            let free = vram.size - holders.iter().map(|(_, bytes)| bytes).sum::<u64>();
            assert_eq!(event.get("free"), free.to_string());
            for (what, bytes) in holders {
                assert_eq!(event.get(what), bytes.to_string(), "{what}");
            }
            for what in ["pinned", "turn", "group"] {
                assert_eq!(event.get(what), "0", "{what}");
            }
        };
        let too_much = vram.size + 4096;
        let refused = client.bo_create(too_much, 0, 1 << vram.id);
        assert_eq!(refused, Err(Errno::ENOSPC));
        expect(too_much, "1");
        // Of who can do without nobody hears but by this.
        let handle = client.bo_create(vram.size, 0, both(client));
        let handle = handle.expect("BO_CREATE");
        assert_eq!(place(client, handle), Place::System);
        expect(vram.size, "0");
    });
}

/// What keeps it from fitting is its own.
fn work_whose_memory_never_fits_tells_what_holds_it() {
    let trace = traced();
    let rig = alone();
    let size = rig.region(Place::Vram).size;
    let set: Vec<_> = (0..size / (4 << 20) + 1)
        .map(|_| rig.buffer(Place::Vram, 4 << 20))
        .collect();
    let before = trace.events().len();
    let refused = rig.start_after(rig.compute, &[write(set[0].va, 1)], &[]);
    assert_eq!(refused.err(), Some(Errno::ENOMEM));
    let events = trace.events().split_off(before);
    let mut told = events.iter().filter(|event| event.name == "skua_no_room");
    let event = told.next().unwrap_or_else(|| panic!("{events:?}"));
    let number = |name: &str| event.get(name).parse::<u64>().expect("a number");
    assert!(number("bytes") >= size + (4 << 20), "{event:?}");
    assert_eq!(number("needed"), 1);
    assert!(number("turn") > size / 2, "{event:?}");
    assert!(told.next().is_none(), "{events:?}");
}

fn packets_are_traced_with_the_engines_names_for_them() {
    quiet();
    let trace = Trace::of(&["skua_submit", "skua_packet"]);
    let rig = Rig::new();
    let before = trace.events().len();
    for _ in 0..3 {
        assert_eq!(rig.run(Engine::Copy, &[]), Ok(()));
    }
    let events = trace.events().split_off(before);
    let engine = rig.engine(Engine::Copy.kind()).to_string();
    let mut last = 0;
    for pair in events.chunks(2) {
        let [submit, packet] = pair else {
            panic!("{events:?}");
        };
        assert_eq!(
            (&*submit.name, &*packet.name),
            ("skua_submit", "skua_packet")
        );
        assert_eq!(packet.get("engine"), engine);
        for field in ["dev", "engine", "context", "fence"] {
            assert_eq!(packet.get(field), submit.get(field), "{field}");
        }
        let number: u64 = packet.get("packet").parse().expect("a number");
        assert!(number > last, "{events:?}");
        last = number;
    }
    assert_eq!(events.len(), 6);
}

fn what_a_submission_waits_for_is_traced() {
    quiet();
    let trace = Trace::of(&["skua_submit", "skua_depend"]);
    let rig = Rig::new().having_worked();
    let gate = rig.buffer(Place::System, 4096);
    let before = trace.events().len();
    let first = rig.start_in(rig.compute, &[wait_value(gate.va, 1)]);
    let second = rig.start_after(rig.copy, &[], &[wait(first.syncobj)]);
    let second = second.expect("SUBMIT");
    gate.cpu.write(0, 1);
    assert_eq!((first.wait(), second.wait()), (Ok(()), Ok(())));
    let events = trace.events().split_off(before);
    let submits: Vec<&str> = events
        .iter()
        .filter(|event| event.name == "skua_submit")
        .map(|event| event.get("fence"))
        .collect();
    let depends = events.iter().filter(|event| event.name == "skua_depend");
    let depends: Vec<_> = depends
        .map(|event| (event.get("fence"), event.get("on")))
        .collect();
    assert_eq!(submits.len(), 2, "{events:?}");
    assert!(depends.contains(&(submits[1], submits[0])), "{events:?}");
}

fn values_of_monitored_fences_are_traced() {
    quiet();
    let trace = Trace::of(&["skua_submit", "skua_signal", "skua_await"]);
    let rig = Rig::new().having_worked();
    let before = trace.events().len();
    let fence = rig.fence(0);
    let first = rig.start_after(
        rig.compute,
        &[],
        &[client::wait_value(fence, 2), signal_value(fence, 5)],
    );
    let first = first.expect("SUBMIT");
    rig.fence_signal(fence, 3).expect("FENCE_SIGNAL");
    assert_eq!(first.wait(), Ok(()));
    let second = rig.start_after(rig.copy, &[], &[client::wait_value(fence, 4)]);
    assert_eq!(second.expect("SUBMIT").wait(), Ok(()));
    let events = trace.events().split_off(before);
    let of = |name: &str| -> Vec<&Event> {
        let named = events.iter().filter(|event| event.name == name);
        named.collect()
    };
    let submits: Vec<&str> = of("skua_submit").iter().map(|it| it.get("fence")).collect();
    assert_eq!(submits.len(), 2, "{events:?}");
    let values = |name: &str| -> Vec<(&str, &str)> {
        let each = of(name).into_iter();
        each.map(|event| (event.get("fence"), event.get("value")))
            .collect()
    };
    // What the CPU signals is let go after that, and promises its own then.
    assert_eq!(
        values("skua_signal"),
        [("0:0", "3"), (submits[0], "5")],
        "{events:?}"
    );
    assert_eq!(
        values("skua_await"),
        [(submits[0], "2"), (submits[1], "4")],
        "{events:?}"
    );
    let mut fences = Vec::new();
    for event in [of("skua_signal"), of("skua_await")].concat() {
        fences.push(event.get("monitored"));
    }
    fences.dedup();
    assert_eq!(fences.len(), 1, "{events:?}");
    let held: Vec<bool> = of("skua_await")
        .iter()
        .map(|event| event.get("held") != "0")
        .collect();
    assert_eq!(held, [true, false], "{events:?}");
}

fn moves_and_the_use_of_segments_are_traced() {
    const BYTES: u64 = 1 << 20;
    let rig = alone();
    let trace = Trace::of(&["skua_move", "skua_memory", "skua_done"]);
    let handle = movable_in_vram(&rig, BYTES);
    evict_all();
    assert_eq!(place(&rig, handle), Place::System);
    resident(&rig, &[handle]);
    assert_eq!(place(&rig, handle), Place::Vram);
    let events = trace.events();
    let moves: Vec<&Event> = events
        .iter()
        .filter(|event| event.name == "skua_move" && event.get("bytes") == BYTES.to_string())
        .collect();
    let ways: Vec<_> = moves
        .iter()
        .map(|event| (event.get("from"), event.get("to")))
        .collect();
    assert_eq!(
        ways,
        [("vram0", "system"), ("system", "vram0")],
        "{events:?}"
    );
    for one in moves {
        let done =
            |event: &&Event| event.name == "skua_done" && event.get("fence") == one.get("fence");
        assert_eq!(
            events.iter().find(done).map(|event| event.get("error")),
            Some("0")
        );
    }
    let vram = rig.region(Place::Vram);
    let uses = || -> Vec<u64> {
        let events = trace.events();
        let uses = events
            .iter()
            .filter(|event| event.name == "skua_memory" && event.get("region") == "vram0");
        uses.map(|event| {
            assert_eq!(event.get("size"), vram.size.to_string());
            event.get("used").parse().expect("a number")
        })
        .collect()
    };
    // It came, and its room is free at some time after the move out: nobody waits for that.
    let changed = eventually(|| {
        let uses = uses();
        let any = |change: fn(&[u64]) -> bool| uses.windows(2).any(change);
        (any(|u| u[1] == u[0] + BYTES) && any(|u| u[0] == u[1] + BYTES)).then_some(())
    });
    assert!(changed.is_some(), "{:?}", uses());
}
