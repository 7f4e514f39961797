// SPDX-License-Identifier: MIT

//! Paging in an address space that is smaller than what is moved: `guests.json` says how small.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use skua_selftests::events::{Event, Trace};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    evict_all, is_in_vram, movable_in_vram, pattern, resident, Uncleared,
};
use skua_selftests::rig::{copy, fill};
use skua_selftests::suite::eventually;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// More than the address space has room for, by far, and no multiple of what one pass does.
const SIZE: u64 = 10 * MIB + PAGE;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_4_10_the_address_space_is_as_large_as_the_device_asks,
        row_4_13_its_tables_are_those_of_its_size at_rest,
        row_4_14_what_is_new_is_cleared_to_the_last_page: 60,
        row_1_13_a_move_takes_many_paging_buffers: 60 at_rest,
        row_1_13_row_4_14_passes_follow_each_other: 60 at_rest,
        row_1_13_memory_that_is_busy_is_waited_for: 60 at_rest,
        row_4_14_scattered_objects_move_too: 60,
        row_4_14_many_move_at_once: 120 at_rest,
    ])
}

/// The numbers in a file of debugfs.
#[track_caller]
fn numbers(file: &str) -> BTreeMap<String, u64> {
    let text = Function::first().debugfs(file).expect("debugfs");
    text.lines()
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

/// What the device and the paging process have counted.
struct Counted([BTreeMap<String, u64>; 2]);

impl Counted {
    #[track_caller]
    fn now() -> Self {
        Self(["counters", "paging"].map(numbers))
    }

    /// How much more there is now.
    #[track_caller]
    fn more(&self, name: &str) -> u64 {
        let Self(now) = Self::now();
        let both = self.0.iter().zip(&now);
        let mut values = both.filter_map(|(old, new)| Some(new.get(name)? - old.get(name)?));
        values.next().unwrap_or_else(|| panic!("no {name}"))
    }
}

fn row_4_10_the_address_space_is_as_large_as_the_device_asks() {
    assert_eq!(numbers("paging")["va"], MIB);
}

fn row_4_13_its_tables_are_those_of_its_size() {
    // One of each level, whatever moves.
    assert_eq!(numbers("paging")["table_bytes"], 4 * PAGE);
    let client = Client::new();
    movable_in_vram(&client, SIZE);
    evict_all();
    assert_eq!(numbers("paging")["table_bytes"], 4 * PAGE);
}

fn row_4_14_what_is_new_is_cleared_to_the_last_page() {
    quiet();
    // Nobody else clears what is dirty meanwhile.
    let _uncleared = Uncleared::new();
    let rig = Rig::new();
    let size = rig.region(Place::Vram).size - 2 * MIB;
    let dirty = rig.try_bo(Place::Vram, size).expect("BO_CREATE");
    let va = rig.bound_at_will(dirty, size);
    assert_eq!(rig.run(Engine::Compute, &[fill(!0, va, size)]), Ok(()));
    drop(rig);
    quiet();
    let rig = Rig::new();
    for size in [PAGE, MIB, SIZE, 40 * MIB] {
        let before = Counted::now();
        let new = rig.bo(Place::Vram, size);
        let map = rig.map(new);
        map.expect("new memory", |_| 0);
        assert_eq!(before.more("fill_bytes"), size);
        let passes = before.more("packets");
        // No pass has a larger window than a quarter of the address space.
        assert!(passes * MIB / 4 >= size, "{passes} passes for {size:#x}");
        assert_eq!(rig.close(new), Ok(()));
    }
}

fn row_1_13_a_move_takes_many_paging_buffers() {
    quiet();
    let rig = Rig::new();
    let buffer = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    for round in 0..u64::from(suite::rounds(3)) {
        buffer.cpu.fill(pattern(round));
        let before = Counted::now();
        evict_all();
        assert!(!is_in_vram(&rig, buffer.handle));
        buffer.cpu.expect("the bytes", pattern(round));
        let passes = before.more("packets");
        assert_eq!(before.more("copy_vram_to_system"), SIZE);
        // Both sides of a copy share the window.
        assert!(passes * MIB / 8 >= SIZE, "{passes} passes out");

        let before = Counted::now();
        assert_eq!(rig.make_resident(&[buffer.handle], &[]), Ok(()));
        assert!(is_in_vram(&rig, buffer.handle));
        buffer.cpu.expect("the bytes, back", pattern(round));
        let passes = before.more("packets");
        assert_eq!(before.more("copy_system_to_vram"), SIZE);
        assert!(passes * MIB / 8 >= SIZE, "{passes} passes in");
        assert_eq!(rig.evict(&[buffer.handle]), Ok(()));

        // And as the GPU sees it.
        let out = rig.buffer(Place::System, SIZE);
        let work = [copy(buffer.va, out.va, SIZE)];
        assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
        out.cpu.expect("for the GPU", pattern(round));
    }
}

/// Pages that one pass of a move has room for: both sides of a copy share a window of 192 KiB, in
/// whole large pages.
const PASS_PAGES: u64 = 16;

/// The passes of a move of `size` bytes that were traced, in order: where each begins, and whether
/// what it is about was idle.
#[track_caller]
fn expect_passes(events: &[Event], size: u64) -> Vec<(u64, u64, bool)> {
    let number = |field: &str| field.parse::<u64>().expect("a number");
    let passes: Vec<_> = events
        .iter()
        .map(|event| {
            assert_eq!(event.get("fence"), events[0].get("fence"), "one operation");
            let place = (number(event.get("piece")), number(event.get("page")));
            (place.0, place.1, event.get("idle") == "1")
        })
        .collect();
    println!(
        "# {} passes: {:?} …",
        passes.len(),
        &passes[..passes.len().min(4)]
    );
    assert_eq!(passes.len() as u64, size.div_ceil(PASS_PAGES * PAGE));
    // All zeroes at first, and each behind the one before.
    assert_eq!((passes[0].0, passes[0].1), (0, 0));
    assert!(passes.windows(2).all(|two| two[0] < two[1]), "{passes:?}");
    // A pass that goes on in the same piece has done all that it has room for.
    for two in passes.windows(2).filter(|two| two[0].0 == two[1].0) {
        assert!(two[1].1 - two[0].1 <= PASS_PAGES, "{two:?}");
    }
    let (last, others) = events.split_last().expect("a pass");
    assert!(others.iter().all(|event| event.get("last") == "0"));
    assert_eq!(last.get("last"), "1");
    passes
}

fn row_1_13_row_4_14_passes_follow_each_other() {
    quiet();
    // To clear what is left behind has passes, too.
    let _uncleared = Uncleared::new();
    let trace = Trace::of(&["skua_paging"]);
    let rig = Rig::new();
    let size = u64::from(suite::rounds(64)) * MIB;
    let handle = movable_in_vram(&rig, size);
    let cpu = rig.map(handle);
    cpu.fill(pattern(1));
    for (counter, move_it) in [
        ("copy_vram_to_system", (&|| _ = evict_all()) as &dyn Fn()),
        ("copy_system_to_vram", &|| resident(&rig, &[handle])),
    ] {
        let (seen, before) = (trace.events().len(), Counted::now());
        move_it();
        Function::first().at_rest();
        // No byte went another way.
        assert_eq!(
            (before.more(counter), before.more("copy_bytes")),
            (size, size)
        );
        let passes = expect_passes(&trace.events()[seen..], size);
        assert_eq!(before.more("packets"), passes.len() as u64);
        assert!(passes[0].2, "nothing was before the first");
        cpu.expect("the bytes", pattern(1));
    }
}

/// Has paging wait for idle memory as long as it lives.
struct WantsIdle;

impl WantsIdle {
    #[track_caller]
    fn new() -> Self {
        let wanted = Function::first().debugfs("idle").expect("debugfs");
        assert_eq!(wanted.trim(), "1");
        Self
    }
}

impl Drop for WantsIdle {
    fn drop(&mut self) {
        let _ = Function::first().debugfs("idle");
    }
}

fn row_1_13_memory_that_is_busy_is_waited_for() {
    quiet();
    let _uncleared = Uncleared::new();
    let trace = Trace::of(&["skua_paging"]);
    let rig = Rig::new();
    let buffer = rig.bound(movable_in_vram(&rig, SIZE), SIZE);
    buffer.cpu.fill(pattern(3));
    let _wants_idle = WantsIdle::new();
    let (seen, before) = (trace.events().len(), Counted::now());
    evict_all();
    Function::first().at_rest();
    assert!(!is_in_vram(&rig, buffer.handle));
    let passes = expect_passes(&trace.events()[seen..], SIZE);
    assert!(passes.iter().all(|(_, _, idle)| *idle), "{passes:?}");
    let busy = before.more("busy");
    println!("# busy {busy} times");
    assert!(busy > 0, "nothing was ever busy");
    assert_eq!(before.more("copy_vram_to_system"), SIZE);
    buffer.cpu.expect("the bytes", pattern(3));
    assert_eq!(rig.make_resident(&[buffer.handle], &[]), Ok(()));
    buffer.cpu.expect("the bytes, back", pattern(3));
    // Clears wait, too.
    let new = rig.bo(Place::Vram, SIZE);
    rig.map(new).expect("new memory", |_| 0);
}

fn row_4_14_scattered_objects_move_too() {
    quiet();
    let rig = Rig::new();
    // What is free afterwards are single pages, and half of them.
    let pages = 2 * MIB / PAGE;
    let large = rig.bo(Place::Vram, rig.region(Place::Vram).size - 2 * MIB);
    let small: Vec<u32> = (0..pages).map(|_| rig.bo(Place::Vram, PAGE)).collect();
    let (stay, go): (Vec<_>, Vec<_>) = small.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
    assert_eq!(rig.destroy(&go, 0), Ok(()));
    quiet_but(&rig, pages / 2);
    let buffer = rig.bound(movable_in_vram(&rig, MIB), MIB);
    buffer.cpu.expect("new memory", |_| 0);
    buffer.cpu.fill(pattern(9));
    evict_all();
    assert!(!is_in_vram(&rig, buffer.handle));
    buffer.cpu.expect("the bytes", pattern(9));
    assert_eq!(rig.make_resident(&[buffer.handle], &[]), Ok(()));
    assert!(is_in_vram(&rig, buffer.handle));
    buffer.cpu.expect("the bytes, back", pattern(9));
    drop(buffer);
    for handle in stay.into_iter().chain([large]) {
        assert_eq!(rig.close(handle), Ok(()));
    }
}

/// Waits until so many pages of VRAM are free.
#[track_caller]
fn quiet_but(client: &Client, pages: u64) {
    let free = eventually(|| {
        let region = client.region(Place::Vram);
        (region.size - region.used >= pages * PAGE).then_some(())
    });
    assert!(free.is_some(), "memory is not given back");
}

fn row_4_14_many_move_at_once() {
    /// What each moves.
    const LARGE: u64 = 3 * MIB + PAGE;
    quiet();
    let before = Counted::now();
    thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || {
                let rig = Rig::new();
                let buffer = rig.bound(movable_in_vram(&rig, LARGE), LARGE);
                for round in 0..8 {
                    let seed = client << 32 | round;
                    buffer.cpu.fill(pattern(seed));
                    evict_all();
                    let new = rig.buffer(Place::Vram, MIB);
                    new.cpu.expect("new memory", |_| 0);
                    assert_eq!(rig.make_resident(&[buffer.handle], &[]), Ok(()));
                    buffer.cpu.expect("the bytes", pattern(seed));
                    assert_eq!(rig.evict(&[buffer.handle]), Ok(()));
                }
            });
        }
    });
    let (moved, passes) = (before.more("copy_system_to_vram"), before.more("packets"));
    assert!(moved >= 4 * LARGE, "{moved:#x} bytes moved back");
    assert!(passes * MIB / 4 >= moved, "{passes} passes");
}
