// SPDX-License-Identifier: MIT

//! debugfs: files under `/sys/kernel/debug/dri/ADDRESS`. For people and for these tests, not an
//! interface; but what they say is true.

use std::collections::BTreeMap;
use std::process::ExitCode;

use skua_selftests::client::{map, signal};
use skua_selftests::function::Function;
use skua_selftests::moving::{resident, with_holders};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, fill, wait_value, write};
use skua_selftests::suite::eventually;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_spec::status::Counter;
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_files_are_there_with_and_without_clients,
        regions_agree_with_the_query at_rest,
        regions_tell_what_holds_vram_and_who_is_next: 60 at_rest,
        residents_show_who_has_what_where at_rest,
        vms_show_what_is_bound,
        contexts_show_their_status,
        row_4_11_without_an_answer_of_the_device_there_is_an_address_space_for_paging,
        row_4_12_it_is_a_quarter_of_memory,
        rings_show_what_is_under_way,
        what_made_room_stays_in_its_queue: 60,
        counters_count_exactly at_rest,
        a_submission_costs_one_register_write at_rest,
        so_does_one_of_32_buffers at_rest,
        ends_under_load_share_interrupts,
        reading_all_files_under_load: 120,
    ])
}

const FILES: [&str; 7] = [
    "regions",
    "residents",
    "vms",
    "contexts",
    "rings",
    "zap",
    "counters",
];

#[track_caller]
fn read(file: &str) -> String {
    Function::first()
        .debugfs(file)
        .unwrap_or_else(|error| panic!("debugfs {file}: {error}"))
}

/// The counters of driver and device.
#[track_caller]
fn counters() -> BTreeMap<String, u64> {
    read("counters")
        .lines()
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

/// The counters before and after some work. It is done once more if the driver has read a register:
/// of a device that is slow it asks whether it is there.
#[track_caller]
fn counted(work: impl Fn()) -> [BTreeMap<String, u64>; 2] {
    let count = || {
        let before = counters();
        work();
        [before, counters()]
    };
    let [before, after] = count();
    match before["register_read"] == after["register_read"] {
        true => [before, after],
        false => count(),
    }
}

fn the_files_are_there_with_and_without_clients() {
    quiet();
    let empty = FILES.map(read);
    let rig = Rig::new();
    let buffers = Place::ALL.map(|place| rig.buffer(place, 1 << 20));
    resident(&rig, &buffers.map(|buffer| buffer.handle));
    let full = FILES.map(read);
    for ((file, empty), full) in FILES.iter().zip(&empty).zip(&full) {
        if *file != "rings" {
            assert_ne!(empty, full, "{file}");
        }
    }
}

fn regions_agree_with_the_query() {
    quiet();
    let client = Client::new();
    for _ in 0..2 {
        let text = read("regions");
        for (place, name) in [(Place::System, "system"), (Place::Vram, "vram0")] {
            let region = client.region(place);
            let line = format!("{name}: size {} used {}\n", region.size, region.used);
            assert!(text.contains(&line), "{line}{text}");
        }
        client.bo(Place::Vram, 5 << 20);
        client.bo(Place::System, 5 << 20);
    }
}

fn regions_tell_what_holds_vram_and_who_is_next() {
    with_holders(|client, holders| {
        let used: u64 = holders.iter().map(|(_, bytes)| bytes).sum();
        let free = client.region(Place::Vram).size - used;
        let [(_, idle), (_, resident), (_, busy)] = holders;
        let held = format!(
            "vram0: free {free} pinned 0 turn 0 group 0 resident {resident} busy {busy} idle {idle}"
        );
        let text = read("regions");
        assert!(text.lines().any(|line| line == held), "{held} {text}");
        let next: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("vram0: Normal: "))
            .collect();
        // In the order in which they leave.
        let [idle, resident, busy] = holders;
        let order = [idle, busy, resident];
        let expected = order.map(|(what, bytes)| format!("{bytes} {what}"));
        assert_eq!(next, expected, "{text}");
        // A lower priority comes first; and who is looked at is not used by that.
        let handle = client.bo(Place::Vram, 4096);
        let lowest = client.set_priority(&[handle], DRM_SKUA_PRIORITY_MINIMUM);
        assert_eq!(lowest, Ok(()));
        assert_eq!(client.map(handle).read(0), 0);
        let text = read("regions");
        let next: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("vram0: M") || line.starts_with("vram0: N"))
            .collect();
        let expected: Vec<String> = [("Minimum", 4096, "idle")]
            .into_iter()
            .chain(order.map(|(what, bytes)| ("Normal", bytes, what)))
            .map(|(level, bytes, what)| format!("vram0: {level}: {bytes} {what}"))
            .collect();
        assert_eq!(next, expected, "{text}");
    });
}

fn residents_show_who_has_what_where() {
    quiet();
    let [client, other] = [(); 2].map(|()| Client::new());
    let device = client.device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY);
    let device = device.expect("DEVICE_CREATE");
    let system = client.bo(Place::System, 8192);
    let [vram, others] = [&client, &other].map(|client| client.bo(Place::Vram, 1 << 20));
    for _ in 0..2 {
        assert_eq!(client.make_resident_for(device, 0, &[vram]), Ok(0));
    }
    resident(&client, &[system]);
    resident(&other, &[others]);
    let name = std::fs::read_to_string("/proc/self/comm").expect("comm");
    let line = |client: &Client, rest: &str| {
        let id = client.fdinfo().number("drm-client-id");
        let (id, pid) = (id.expect("drm-client-id"), std::process::id());
        format!("client {id} pid {pid} device {rest} ({})", name.trim())
    };
    let mut expected = [
        line(&client, "0: system 8192 times 1"),
        line(&client, &format!("{device}: vram0 1048576 times 2")),
        line(&other, "0: vram0 1048576 times 1"),
    ];
    let lines = || {
        let text = read("residents");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    expected.sort();
    assert_eq!(lines(), expected);
    assert_eq!(client.evict(&[system]), Ok(()));
    drop(other);
    let left = [line(&client, &format!("{device}: vram0 1048576 times 2"))];
    assert_eq!(lines(), left);
}

fn vms_show_what_is_bound() {
    quiet();
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let handle = client.bo(Place::Vram, 1 << 20);
    assert!(
        read("vms").contains("mappings 0 bytes 0"),
        "{}",
        read("vms")
    );
    let ops = [
        map(handle, 0, 1 << 40, 1 << 20),
        map(handle, 0, 1 << 41, 4096),
    ];
    assert_eq!(client.bind_and_wait(vm, &ops), Ok(()));
    let text = read("vms");
    assert!(
        text.contains(&format!("mappings 2 bytes {}", (1 << 20) + 4096)),
        "{text}"
    );
    assert_eq!(client.vm_destroy(vm), Ok(()));
}

fn contexts_show_their_status() {
    quiet();
    let rig = Rig::new();
    assert_eq!(read("contexts").matches("status active ended 0").count(), 2);
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[write(rig.reserve(4096), 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let text = read("contexts");
    assert_eq!(text.matches("status faulted ended 1").count(), 1, "{text}");
}

/// The bytes of the paging process' address space, and of its tables.
#[track_caller]
fn paging() -> (u64, u64) {
    let text = read("paging");
    let number = |name| {
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        let line = lines.find(|(found, _)| *found == name);
        line.unwrap_or_else(|| panic!("{text}"))
            .1
            .parse()
            .expect("a number")
    };
    (number("va"), number("table_bytes"))
}

fn row_4_11_without_an_answer_of_the_device_there_is_an_address_space_for_paging() {
    let (bytes, _) = paging();
    assert!(bytes > 0);
}

fn row_4_12_it_is_a_quarter_of_memory() {
    let (bytes, tables) = paging();
    assert_eq!(bytes, Client::new().region(Place::Vram).size / 4);
    // A table for each 2 MiB, and one of each other level.
    assert_eq!(tables, (bytes.div_ceil(2 << 20) + 3) * 4096);
}

fn rings_show_what_is_under_way() {
    quiet();
    let rig = Rig::new().having_worked();
    let gate = rig.buffer(Place::System, 4096);
    let idle = read("rings");
    // The driver's own engine, too.
    let engines = idle.matches("engine ").count();
    assert!(engines >= rig.engines.len(), "{idle}");
    assert_eq!(idle.matches("in flight 0").count(), engines, "{idle}");
    assert_eq!(rig.prioritise(rig.copy, 5), Ok(()));
    let jobs = [
        rig.start(Engine::Copy, &[wait_value(gate.va, 1)]),
        rig.start(Engine::Copy, &[]),
    ];
    let (busy, contexts) = (read("rings"), read("contexts"));
    assert!(
        busy.contains("(copy): device") && busy.contains("in flight 2"),
        "{busy}"
    );
    // Whose they are, the one at the head first, by the number that `contexts` has for it.
    let mut own = contexts.lines().filter(|line| line.contains("priority 5/"));
    let number = own.next().and_then(|line| line.split([' ', ':']).nth(1));
    let number = number.expect("a context");
    let packets: Vec<&str> = busy
        .lines()
        .filter(|line| line.contains("packet"))
        .collect();
    let is_own = |line: &&str| line.contains(&format!(": context {number} priority 5 "));
    assert_eq!(packets.len(), 2, "{busy}");
    assert!(
        packets.iter().all(is_own),
        "not of context {number}: {busy}"
    );
    gate.cpu.write(0, 1);
    for job in &jobs {
        assert_eq!(job.wait(), Ok(()));
    }
    let idle = read("rings");
    assert_eq!(idle.matches("in flight 0").count(), engines, "{idle}");
}

/// The packets in contexts' queues.
#[track_caller]
fn queued() -> Vec<String> {
    let contexts = read("contexts");
    let lines = contexts.lines().filter(|line| line.starts_with(" queue "));
    lines.map(str::to_owned).collect()
}

fn what_made_room_stays_in_its_queue() {
    quiet();
    let rig = Rig::new();
    let context = |priority| {
        let context = rig.context_having_worked(Engine::Compute);
        assert_eq!(rig.prioritise(context, priority), Ok(()));
        context
    };
    let (low, normal) = (context(-1), context(0));
    let (holds, takes) = (Hold::new(&rig), Hold::new(&rig));
    let target = rig.buffer(Place::System, 4096);
    let withdrawn = [
        holds.begin(&rig, low),
        rig.start_in(low, &[write(target.va, 1)]),
        rig.start_in(low, &[write(target.va + 8, 2)]),
    ];
    let before = queued();
    assert_eq!(before.len(), withdrawn.len(), "{before:#?}");
    let important = takes.begin(&rig, normal);
    let after = queued();
    let stays = before.iter().all(|packet| after.contains(packet));
    assert!(
        stays && after.len() == before.len() + 1,
        "{before:#?} {after:#?}"
    );
    takes.release();
    assert_eq!(important.wait(), Ok(()));
    holds.release();
    for job in &withdrawn {
        assert_eq!(job.wait(), Ok(()));
    }
    assert_eq!([target.cpu.read(0), target.cpu.read(8)], [1, 2]);
    let is_over = || queued().is_empty().then_some(());
    assert!(eventually(is_over).is_some(), "{:#?}", queued());
}

fn counters_count_exactly() {
    quiet();
    let rig = Rig::new().having_worked();
    let (one, two) = (
        rig.buffer(Place::Vram, 1 << 20),
        rig.buffer(Place::System, 1 << 20),
    );
    let work = [fill(1, one.va, 12 << 10), copy(one.va, two.va, 12 << 10)];
    Function::first().at_rest();
    let [before, after] = counted(|| assert_eq!(rig.run(Engine::Copy, &work), Ok(())));
    for (counter, name) in Counter::ALL {
        assert!(
            before.contains_key(name),
            "{counter:?} is not shown: {before:?}"
        );
    }
    for (name, more) in [
        ("driver_submissions", 1),
        ("packet", 1),
        ("buffer_command", 2),
        ("fill_bytes", 12 << 10),
        ("copy_bytes", 12 << 10),
        ("fault", 0),
        ("engine_reset", 0),
        ("bus_error", 0),
        ("bad_register_access", 0),
        ("register_read", 0),
    ] {
        assert_eq!(after[name] - before[name], more, "{name}");
    }
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[write(rig.reserve(4096), 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let faulted = counters();
    for (name, more) in [
        ("fault", 1),
        ("engine_reset", 1),
        ("driver_engine_resets", 1),
        ("bus_error", 0),
    ] {
        assert_eq!(faulted[name] - after[name], more, "{name}");
    }
}

fn a_submission_costs_one_register_write() {
    quiet();
    let rig = Rig::new().having_worked();
    let count = 50;
    let [before, after] = counted(|| {
        for _ in 0..count {
            assert_eq!(rig.run(Engine::Copy, &[fill(1, 1 << 30, 0)]), Ok(()));
        }
    });
    let more = |name: &str| after[name] - before[name];
    // Besides, each look at the counters writes one.
    assert_eq!(more("doorbell"), count);
    assert_eq!(more("register_write"), count + 1);
    assert_eq!(more("register_read"), 0);
    // That of the work before may be counted after that was seen to end.
    assert!(
        more("engine_interrupt") <= count + 1,
        "{} interrupts",
        more("engine_interrupt")
    );
}

/// And one interrupt.
fn so_does_one_of_32_buffers() {
    quiet();
    let rig = Rig::new().having_worked();
    let target = rig.buffer(Place::System, 4096);
    let vram = rig.buffer(Place::Vram, 64 << 10);
    // Longer than an end may wait for others.
    let long = fill(1, vram.va, 64 << 10);
    let buffers: Vec<_> = (0..32)
        .map(|n| rig.write(&[long, write(target.va + 8 * n, n + 1)]))
        .collect();
    // The interrupt of the work before may be counted after that was seen to end.
    Function::first().at_rest();
    let [before, after] = counted(|| {
        let done = rig.syncobj();
        assert_eq!(rig.submit(rig.copy, &buffers, &[signal(done)]), Ok(()));
        assert_eq!(rig.wait(done), Ok(()));
    });
    let written: Vec<u64> = (0..32).map(|n| target.cpu.read(8 * n)).collect();
    assert_eq!(written, (1..=32).collect::<Vec<u64>>());
    let more = |name: &str| after[name] - before[name];
    assert_eq!((more("doorbell"), more("packet")), (1, 32));
    assert_eq!((more("register_write"), more("register_read")), (2, 0));
    assert!(
        more("engine_interrupt") <= 1,
        "{} interrupts",
        more("engine_interrupt")
    );
}

/// Not one for each: the engine goes on at once, and nobody waits for long.
fn ends_under_load_share_interrupts() {
    quiet();
    let rig = Rig::new().having_worked();
    let gate = rig.buffer(Place::System, 4096);
    let [before, after] = counted(|| {
        gate.cpu.write(0, 0);
        let mut jobs = vec![rig.start(Engine::Copy, &[wait_value(gate.va, 1)])];
        jobs.extend((1..32).map(|n| rig.start(Engine::Copy, &[write(gate.va + 8 * n, n)])));
        gate.cpu.write(0, 1);
        for job in &jobs {
            assert_eq!(job.wait(), Ok(()));
        }
    });
    let raised = after["engine_interrupt"] - before["engine_interrupt"];
    assert!(raised < 16, "{raised} interrupts for 32 ends");
}

fn reading_all_files_under_load() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let rig = Rig::new();
                    let buffer = rig.buffer(Place::Vram, 1 << 20);
                    for engine in Engine::ALL {
                        assert_eq!(rig.run(engine, &[fill(1, buffer.va, 1 << 20)]), Ok(()));
                    }
                    let context = rig.new_context(Engine::Copy);
                    let job = rig.start_in(context, &[write(rig.reserve(4096), 1)]);
                    assert_eq!(job.wait(), Err(Errno::EFAULT));
                }
            });
        }
        for _ in 0..suite::rounds(100) {
            for file in FILES {
                assert!(
                    !read(file).is_empty() || ["residents", "vms", "contexts"].contains(&file),
                    "{file}"
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
