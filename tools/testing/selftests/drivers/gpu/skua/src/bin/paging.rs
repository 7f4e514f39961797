// SPDX-License-Identifier: MIT

//! Paging in an address space that is smaller than what is moved: `guests.json` says how small.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use skua_selftests::function::Function;
use skua_selftests::moving::{evict_all, movable_in_vram, pattern};
use skua_selftests::rig::{copy, fill};
use skua_selftests::suite::eventually;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Place, Rig};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// More than the address space has room for, by far, and no multiple of what one pass does.
const SIZE: u64 = 10 * MIB + PAGE;

fn main() -> ExitCode {
    suite::main(tests![
        row_4_10_the_address_space_is_as_large_as_the_device_asks,
        row_4_13_its_tables_are_those_of_its_size,
        row_4_14_what_is_new_is_cleared_to_the_last_page: 60,
        row_1_13_a_move_takes_many_paging_buffers: 60,
        row_4_14_scattered_objects_move_too: 60,
        row_4_14_many_move_at_once: 120,
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

#[track_caller]
fn is_in_vram(client: &Client, handle: u32) -> bool {
    client.info(handle).expect("BO_INFO").region == client.region(Place::Vram).id
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
    quiet();
    thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || {
                let rig = Rig::new();
                let buffer = rig.bound(movable_in_vram(&rig, 3 * MIB + PAGE), 3 * MIB + PAGE);
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
}
