// SPDX-License-Identifier: MIT

//! Control groups of device memory: what a group may have, and what it keeps.
//! `guests.json` gives this program a GPU with little VRAM.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use skua_selftests::cgroup::{dmem_capacity, DmemGroup, DmemTree};
use skua_selftests::function::Function;
use skua_selftests::moving::{
    alone, both, evict_all, expect_gpu, movable, movable_in_vram, pattern, place, resident, Numbers,
};
use skua_selftests::raw::Child;
use skua_selftests::rig::{fill, wait_value, Buffer};
use skua_selftests::suite::{becomes, eventually, patience};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        what_is_in_vram_is_charged: 60 at_rest,
        a_charge_goes_with_the_memory: 60 at_rest,
        max_holds: 60 at_rest,
        nobody_leaves_for_more_than_max: 60 at_rest,
        who_merely_prefers_vram_does_without: 60 at_rest,
        max_makes_the_groups_own_leave: 60 at_rest,
        the_max_of_all_together_holds: 60 at_rest,
        work_needs_no_more_than_max: 60 at_rest,
        max_lowered_makes_room_at_once: 60 at_rest,
        max_lowered_waits_for_work: 60 at_rest,
        max_lowered_waits_for_what_is_thrown_away: 60 at_rest,
        max_lowered_does_not_wait_for_others: 60 at_rest,
        min_keeps_what_is_in_vram: 60 at_rest,
        low_keeps_it_while_there_is_other: 60 at_rest,
        low_lowered_keeps_no_more at_rest,
        a_group_is_not_protected_from_itself: 60 at_rest,
        what_is_resident_is_no_safer_than_low: 60 at_rest,
        a_region_goes_with_its_device: 60 at_rest,
        groups_come_and_go_under_work: 240 at_rest,
    ])
}

/// Objects of 1 MiB in VRAM alone, of which the first is the first to leave: nothing is busy.
#[track_caller]
fn needed(client: &Client, count: u64) -> Vec<u32> {
    let handles: Vec<u32> = (0..count).map(|_| client.bo(Place::Vram, MIB)).collect();
    // They are cleared in turn.
    if let Some(last) = handles.last() {
        assert_eq!(client.map(*last).read(0), 0);
    }
    handles
}

/// Where objects are, from the first one on, in letters.
#[track_caller]
fn places(client: &Client, handles: &[u32]) -> String {
    let letter = |handle: &u32| match place(client, *handle) {
        Place::Vram => 'v',
        Place::System => 's',
        Place::Aperture => 'a',
    };
    handles.iter().map(letter).collect()
}

/// So many letters.
fn all(letter: &str, count: usize) -> String {
    letter.repeat(count)
}

/// Waits until a group has so much: what is closed is given back late.
#[track_caller]
fn expect_current(group: &DmemGroup, bytes: u64) {
    let seen = eventually(|| (group.current() == bytes).then_some(()));
    assert!(seen.is_some(), "{} bytes, not {bytes}", group.current());
}

/// So many MiB of VRAM.
#[track_caller]
fn vram(client: &Client) -> u64 {
    client.region(Place::Vram).size / MIB
}

fn what_is_in_vram_is_charged() {
    quiet();
    let tree = DmemTree::new();
    let (a, b) = (tree.group("a"), tree.group("b"));
    let client = Client::new();
    assert_eq!(dmem_capacity(), Some(client.region(Place::Vram).size));
    a.enter();
    let handle = client.bo(Place::Vram, 3 * MIB + PAGE);
    assert_eq!(a.current(), 3 * MIB + PAGE);
    let system = client.bo(Place::System, MIB);
    let _vm = client.vm_create().expect("VM_CREATE");
    assert_eq!(a.current(), 3 * MIB + PAGE, "system memory does not count");
    // Charges stay where they were made.
    b.enter();
    let other = movable_in_vram(&client, MIB);
    assert_eq!((a.current(), b.current()), (3 * MIB + PAGE, MIB));
    assert_eq!(tree.whole().current(), 4 * MIB + PAGE);
    for handle in [handle, system, other] {
        assert_eq!(client.close(handle), Ok(()));
    }
    expect_current(&a, 0);
    expect_current(&b, 0);
    let _left = movable_in_vram(&client, MIB);
    drop(client);
    expect_current(&b, 0);
}

fn a_charge_goes_with_the_memory() {
    let tree = DmemTree::new();
    let (a, b) = (tree.group("a"), tree.group("b"));
    a.enter();
    let rig = alone();
    let buffer = rig.bound(movable_in_vram(&rig, MIB), MIB);
    let needed = rig.buffer(Place::Vram, MIB);
    assert_eq!(a.current(), 2 * MIB);
    assert_eq!(evict_all(), 2);
    expect_current(&a, 0);
    // Who brings it back pays.
    b.enter();
    resident(&rig, &[buffer.handle]);
    assert_eq!((a.current(), b.current()), (0, MIB));
    a.enter();
    assert_eq!(rig.run(Engine::Copy, &[fill(1, needed.va, MIB)]), Ok(()));
    assert_eq!((a.current(), b.current()), (MIB, MIB));
    assert_eq!(rig.destroy(&[buffer.handle, needed.handle], 0), Ok(()));
    expect_current(&a, 0);
    expect_current(&b, 0);
}

fn max_holds() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let client = alone();
    group.set("max", 4 * MIB);
    let handles = needed(&client, 4);
    assert_eq!(group.current(), 4 * MIB);
    resident(&client, &handles);
    for _ in 0..8 {
        client.bo(Place::Vram, MIB);
        assert!(group.current() <= 4 * MIB, "{}", group.current());
    }
    let large = client.bo_create(4 * MIB + PAGE, 0, 1 << client.region(Place::Vram).id);
    assert_eq!(large, Err(Errno::ENOSPC));
    assert!(group.current() <= 4 * MIB, "{}", group.current());
    // Nobody else is kept from it.
    tree.group("b").enter();
    client.bo(Place::Vram, 4 * MIB + PAGE);
}

fn nobody_leaves_for_more_than_max() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let client = alone();
    group.set("max", 6 * MIB);
    let kept = needed(&client, 2);
    let own = needed(&client, 4);
    resident(&client, &kept);
    let try_for = |placements, size| client.bo_create(size, 0, placements);
    let vram_alone = 1 << client.region(Place::Vram).id;
    assert_eq!(try_for(vram_alone, 6 * MIB + PAGE), Err(Errno::ENOSPC));
    // Who merely prefers VRAM takes nothing that is resident.
    let other = try_for(both(&client), 4 * MIB + PAGE).expect("BO_CREATE");
    assert_eq!(place(&client, other), Place::System);
    assert_eq!(places(&client, &kept), all("v", 2));
    assert_eq!(places(&client, &own), all("v", 4));
    // And for what it may have no more leave than have to.
    let part = try_for(vram_alone, 2 * MIB + PAGE).expect("BO_CREATE");
    assert_eq!(place(&client, part), Place::Vram);
    assert_eq!(places(&client, &kept), all("v", 2));
    assert_eq!(places(&client, &own), "sssv");
}

fn who_merely_prefers_vram_does_without() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let client = alone();
    group.set("max", 2 * MIB);
    let own = needed(&client, 2);
    resident(&client, &own);
    let handle = movable(&client, MIB);
    assert_eq!(place(&client, handle), Place::System);
    assert_eq!(places(&client, &own), all("v", 2));
    // Neither does MAKE_RESIDENT take it from them.
    resident(&client, &[handle]);
    assert_eq!(place(&client, handle), Place::System);
    // What is larger than all it may have.
    assert_eq!(client.evict(&own), Ok(()));
    let large = movable(&client, 2 * MIB + PAGE);
    assert_eq!(place(&client, large), Place::System);
}

fn max_makes_the_groups_own_leave() {
    let tree = DmemTree::new();
    let (a, b) = (tree.group("a"), tree.group("b"));
    let rig = alone();
    b.enter();
    // Longer there than all of the other's.
    let theirs = needed(&rig, 2);
    a.enter();
    a.set("max", 4 * MIB);
    let own: Vec<Buffer> = (0..4).map(|_| rig.buffer(Place::Vram, MIB)).collect();
    for (seed, buffer) in (0..).zip(&own) {
        buffer.cpu.fill(pattern(seed));
    }
    let handles: Vec<u32> = own.iter().map(|buffer| buffer.handle).collect();
    let moved = movable(&rig, MIB);
    assert_eq!(place(&rig, moved), Place::Vram);
    assert_eq!(places(&rig, &theirs), all("v", 2), "the other's");
    // One left, no more, though how much is too much is not said.
    let left = places(&rig, &handles);
    assert_eq!(left.matches('s').count(), 1, "{left}");
    assert_eq!((a.current(), b.current()), (4 * MIB, 2 * MIB));
    for (seed, buffer) in (0..).zip(&own) {
        buffer.cpu.expect("its content", pattern(seed));
        expect_gpu(&rig, "for the GPU", buffer.va, MIB, pattern(seed));
        assert!(a.current() <= 4 * MIB, "{}", a.current());
    }
}

fn the_max_of_all_together_holds() {
    let tree = DmemTree::new();
    let (a, b) = (tree.group("a"), tree.group("b"));
    let client = alone();
    tree.whole().set("max", 4 * MIB);
    a.enter();
    let first = needed(&client, 3);
    b.enter();
    let second = needed(&client, 3);
    assert_eq!(tree.whole().current(), 4 * MIB);
    assert_eq!(places(&client, &first), "ssv");
    assert_eq!(places(&client, &second), all("v", 3));
    // What one of them keeps, it keeps from the other, too.
    a.set("min", MIB);
    let third = needed(&client, 3);
    assert_eq!(places(&client, &first), "ssv");
    assert_eq!(places(&client, &second), all("s", 3));
    assert_eq!(places(&client, &third), all("v", 3));
}

fn work_needs_no_more_than_max() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let rig = alone();
    group.set("max", 4 * MIB);
    let own: Vec<Buffer> = (0..5).map(|_| rig.buffer(Place::Vram, MIB)).collect();
    // All that is bound there is needed at once.
    let work = [fill(1, own[0].va, MIB)];
    let refused = rig.start_after(rig.copy, &work, &[]);
    assert_eq!(refused.map(drop).err(), Some(Errno::ENOMEM));
    assert!(group.current() <= 4 * MIB, "{}", group.current());
    assert_eq!(rig.destroy(&[own[4].handle], 0), Ok(()));
    assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
    assert_eq!(group.current(), 4 * MIB);
    own[0].cpu.expect("what was written", |_| 1 << 32 | 1);
}

fn max_lowered_makes_room_at_once() {
    let tree = DmemTree::new();
    let (a, b) = (tree.group("a"), tree.group("b"));
    let rig = alone();
    b.enter();
    let theirs = needed(&rig, 2);
    a.enter();
    let own: Vec<Buffer> = (0..8).map(|_| rig.buffer(Place::Vram, MIB)).collect();
    let handles: Vec<u32> = own.iter().map(|buffer| buffer.handle).collect();
    for (seed, buffer) in (0..).zip(&own) {
        buffer.cpu.fill(pattern(seed));
    }
    resident(&rig, &handles[..2]);
    for left in [8, 5, 2, 1, 0] {
        a.set("max", left * MIB);
        assert_eq!(a.current(), left * MIB);
        let there = places(&rig, &handles);
        assert_eq!(there.matches('v').count() as u64, left, "{there}");
        // What is resident goes last.
        assert_eq!(&there[..2] == "vv", left > 1, "{left}: {there}");
    }
    for (seed, buffer) in (0..).zip(&own) {
        buffer.cpu.expect("its content", pattern(seed));
    }
    assert_eq!(places(&rig, &theirs), all("v", 2));
    assert_eq!(b.current(), 2 * MIB);
    // Raised again.
    a.set("max", 8 * MIB);
    for (seed, buffer) in (0..).zip(&own) {
        expect_gpu(&rig, "for the GPU", buffer.va, MIB, pattern(seed));
    }
    assert_eq!(a.current(), 8 * MIB);
}

fn max_lowered_waits_for_work() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let buffer = rig.bound(movable_in_vram(&rig, MIB), MIB);
    let job = rig.start(
        Engine::Compute,
        &[wait_value(gate.va, 1), fill(8, buffer.va, MIB)],
    );
    thread::scope(|scope| {
        let lowering = scope.spawn(|| group.set("max", 0));
        becomes("something leaves", || {
            place(&rig, buffer.handle) == Place::System
        });
        // Long enough for one that does not wait to be over.
        thread::sleep(Duration::from_millis(100));
        assert!(!lowering.is_finished(), "it did not wait");
        assert_eq!(group.current(), MIB);
        gate.cpu.write(0, 1);
        lowering.join().expect("a thread");
    });
    assert_eq!(group.current(), 0);
    assert_eq!(job.wait(), Ok(()));
    buffer.cpu.expect("what was written", |_| 8 << 32 | 8);
}

fn max_lowered_waits_for_what_is_thrown_away() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let rig = alone();
    let gate = rig.buffer(Place::System, PAGE);
    let buffer = rig.bound(movable_in_vram(&rig, MIB), MIB);
    let work = [wait_value(gate.va, 1), fill(8, buffer.va, MIB)];
    let job = rig.start(Engine::Compute, &work);
    assert_eq!(rig.offer(&[buffer.handle], 1), Ok(()));
    thread::scope(|scope| {
        let moving = scope.spawn(evict_all);
        becomes("the move begins", || {
            place(&rig, buffer.handle) == Place::System
        });
        let lowering = scope.spawn(|| group.set("max", 0));
        // Long enough for one that does not wait to be over.
        thread::sleep(Duration::from_millis(100));
        assert!(!lowering.is_finished(), "it did not wait");
        assert_eq!(group.current(), MIB);
        gate.cpu.write(0, 1);
        lowering.join().expect("a thread");
        assert_eq!(moving.join().expect("a thread"), 1);
    });
    assert_eq!(group.current(), 0);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.reclaim(&[buffer.handle]), Ok(vec![true]));
}

fn max_lowered_does_not_wait_for_others() {
    let tree = DmemTree::new();
    let group = tree.group("a");
    let busy = alone();
    let gate = busy.buffer(Place::System, PAGE);
    let theirs = movable_in_vram(&busy, MIB);
    busy.bound_at_will(theirs, MIB);
    let job = busy.start(Engine::Compute, &[wait_value(gate.va, 1)]);
    thread::scope(|scope| {
        let moving = scope.spawn(evict_all);
        becomes("the move begins", || place(&busy, theirs) == Place::System);
        group.enter();
        let client = Client::new();
        let own = needed(&client, 4);
        // What a group keeps it keeps from the one above it, too.
        group.set("min", 4 * MIB);
        tree.whole().set("min", 4 * MIB);
        // Nothing leaves, and what others move does not help: it takes until the gate opens.
        tree.whole().set("max", 2 * MIB);
        assert!(!moving.is_finished());
        assert_eq!(group.current(), 4 * MIB);
        assert_eq!(places(&client, &own), all("v", 4));
        gate.cpu.write(0, 1);
        assert_eq!(moving.join().expect("a thread"), 1);
    });
    assert_eq!(job.wait(), Ok(()));
}

/// Two groups that fill VRAM together, with what they have there: of the first, 8 MiB, which are
/// there for longest.
fn full(tree: &DmemTree, client: &Client) -> [(DmemGroup, Vec<u32>); 2] {
    let (a, b) = (tree.group("a"), tree.group("b"));
    a.enter();
    let first = needed(client, 8);
    b.enter();
    let second = needed(client, vram(client) - 8);
    assert_eq!(a.current() + b.current(), client.region(Place::Vram).size);
    [(a, first), (b, second)]
}

fn min_keeps_what_is_in_vram() {
    let tree = DmemTree::new();
    let client = alone();
    let [(a, first), (b, second)] = full(&tree, &client);
    a.set("min", 8 * MIB);
    // The group must have what its children keep.
    tree.whole().set("min", 8 * MIB);
    let third = tree.group("c");
    third.enter();
    let others = needed(&client, 4);
    assert_eq!(places(&client, &first), all("v", 8));
    assert_eq!(places(&client, &second)[..5], *"ssssv");
    assert_eq!(third.current(), 4 * MIB);
    // All but what is protected; not for more.
    let all_others = client.region(Place::Vram).size - 8 * MIB;
    let vram_alone = 1 << client.region(Place::Vram).id;
    let refused = client.bo_create(all_others + PAGE, 0, vram_alone);
    assert_eq!(refused, Err(Errno::ENOSPC));
    assert_eq!(places(&client, &first), all("v", 8));
    // And nobody has left for what cannot be.
    assert_eq!(places(&client, &second)[..5], *"ssssv");
    assert_eq!(places(&client, &others), all("v", 4));
    for handle in others.iter().chain(&second) {
        assert_eq!(client.close(*handle), Ok(()));
    }
    expect_current(&b, 0);
    let large = client
        .bo_create(all_others, 0, vram_alone)
        .expect("BO_CREATE");
    assert_eq!(places(&client, &first), all("v", 8));
    // What is more than that is not protected.
    resident(&client, &[large]);
    a.set("min", 6 * MIB);
    needed(&client, 2);
    assert_eq!(places(&client, &first).matches('v').count(), 6);
    assert_eq!(a.current(), 6 * MIB);
}

fn low_keeps_it_while_there_is_other() {
    let tree = DmemTree::new();
    let client = alone();
    let [(a, first), (_, second)] = full(&tree, &client);
    a.set("low", 8 * MIB);
    tree.whole().set("low", 8 * MIB);
    tree.group("c").enter();
    let others = needed(&client, second.len() as u64);
    assert_eq!(places(&client, &first), all("v", 8));
    assert_eq!(places(&client, &second), all("s", second.len()));
    resident(&client, &others);
    // Who merely prefers VRAM leaves it alone.
    tree.group("d").enter();
    let handle = movable(&client, MIB);
    assert_eq!(place(&client, handle), Place::System);
    resident(&client, &[handle]);
    assert_eq!(place(&client, handle), Place::System);
    assert_eq!(places(&client, &first), all("v", 8));
    // Who needs it does not.
    client.bo(Place::Vram, client.region(Place::Vram).size);
    assert_eq!(places(&client, &first), all("s", 8));
    assert_eq!(places(&client, &others), all("s", others.len()));
}

fn low_lowered_keeps_no_more() {
    let tree = DmemTree::new();
    let client = alone();
    let [(a, first), (_, second)] = full(&tree, &client);
    a.set("low", 8 * MIB);
    tree.whole().set("low", 8 * MIB);
    tree.group("c").enter();
    let mut others = needed(&client, 4);
    assert_eq!(places(&client, &first), all("v", 8));
    // What is more than that is as any other, and was used before it.
    for left in [5, 2, 0] {
        a.set("low", left * MIB);
        let before = a.current() / MIB;
        others.extend(needed(&client, before - left));
        assert_eq!(a.current(), left * MIB);
        assert_eq!(places(&client, &second)[..5], *"ssssv", "{left}");
    }
    assert_eq!(places(&client, &others), all("v", others.len()));
}

fn a_group_is_not_protected_from_itself() {
    let tree = DmemTree::new();
    let client = alone();
    let group = tree.group("a");
    group.enter();
    let all_of_it = client.region(Place::Vram).size;
    group.set("min", all_of_it);
    tree.whole().set("min", all_of_it);
    let first = needed(&client, vram(&client));
    let second = needed(&client, 4);
    assert_eq!(places(&client, &first)[..5], *"ssssv");
    assert_eq!(places(&client, &second), all("v", 4));
    // A sibling gets nothing.
    tree.group("b").enter();
    let refused = client.bo_create(MIB, 0, 1 << client.region(Place::Vram).id);
    assert_eq!(refused, Err(Errno::ENOSPC));
    let handle = client.bo_create(MIB, 0, both(&client)).expect("BO_CREATE");
    assert_eq!(place(&client, handle), Place::System);
}

fn what_is_resident_is_no_safer_than_low() {
    let tree = DmemTree::new();
    let client = alone();
    let [(a, first), (_, second)] = full(&tree, &client);
    resident(&client, &second);
    a.set("low", 8 * MIB);
    tree.whole().set("low", 8 * MIB);
    tree.group("c").enter();
    // What somebody has made resident goes before what the administrator keeps.
    client.bo(Place::Vram, 4 * MIB);
    assert_eq!(places(&client, &first), all("v", 8));
    assert_eq!(places(&client, &second).matches('s').count(), 4);
    // There is nothing else: half of it goes, for who needs it.
    let begun = Instant::now();
    client.bo(Place::Vram, client.region(Place::Vram).size - 4 * MIB);
    // Who waits for a second takes others as well.
    let in_time = begun.elapsed() < Duration::from_millis(900);
    let kept = places(&client, &first).matches('v').count();
    assert!(kept == 4 || kept < 4 && !in_time, "{kept} are kept");
}

fn a_region_goes_with_its_device() {
    quiet();
    let tree = DmemTree::new();
    let group = tree.group("a");
    group.enter();
    let function = Function::first();
    let size = {
        let client = Client::new();
        let _kept = needed(&client, 4);
        assert_eq!(group.current(), 4 * MIB);
        function.unbind().expect("unbind");
        assert_eq!(dmem_capacity(), None);
        assert_eq!(group.current(), 0);
        function.bind().expect("bind");
        // The old one's objects count no more, and are given back to nobody.
        let new = Client::new();
        let _new = needed(&new, 2);
        assert_eq!(group.current(), 2 * MIB);
        drop(client);
        assert_eq!(group.current(), 2 * MIB);
        new.region(Place::Vram).size
    };
    assert_eq!(dmem_capacity(), Some(size));
    expect_current(&group, 0);
}

/// Works in a group until it is killed, on more than it may have; whether all was as it had to be.
fn work_in(group: &DmemGroup, number: u64, steps: usize) -> bool {
    group.enter();
    let rig = Rig::new();
    let handles: Vec<u32> = (0..12).map(|_| movable(&rig, MIB)).collect();
    let buffers: Vec<Buffer> = handles
        .iter()
        .map(|handle| rig.bound(*handle, MIB))
        .collect();
    let mut seeds = vec![0_u32; buffers.len()];
    let mut numbers = Numbers(number);
    for step in 0..steps {
        let at = numbers.below(buffers.len());
        match numbers.below(4) {
            0 => resident(&rig, &[handles[at]]),
            1 => assert!(matches!(
                rig.evict(&[handles[at]]),
                Ok(()) | Err(Errno::EINVAL)
            )),
            2 => {
                seeds[at] = u32::try_from(step).expect("a number") << 4
                    | u32::try_from(number).expect("a number");
                let work = [fill(seeds[at], buffers[at].va, MIB)];
                assert_eq!(rig.run(Engine::Compute, &work), Ok(()));
            }
            _ => {
                let word = u64::from(seeds[at]) << 32 | u64::from(seeds[at]);
                if let Some(wrong) = buffers[at].cpu.differs(|_| word) {
                    println!("client {number}, step {step}: {wrong:?}");
                    return false;
                }
            }
        }
    }
    true
}

fn groups_come_and_go_under_work() {
    quiet();
    let client = Client::new();
    let before = Witness::settled(&client);
    let tree = DmemTree::new();
    let groups = ["a", "b", "c"].map(|name| tree.group(name));
    groups[0].set("max", 8 * MIB);
    groups[1].set("min", 8 * MIB);
    tree.whole().set("min", 8 * MIB);
    let children: Vec<_> = (1..)
        .zip(&groups)
        .map(|(number, group)| {
            let group = group.clone();
            Child::start(move || {
                work_in(
                    &group,
                    number,
                    300 / usize::try_from(patience()).expect("a number"),
                )
            })
        })
        .collect();
    let mut numbers = Numbers(7);
    for _ in 0..40 {
        let group = &groups[numbers.below(3)];
        group.set(
            ["max", "low", "min"][numbers.below(3)],
            (4 + numbers.below(9) as u64) * MIB,
        );
        thread::sleep(Duration::from_millis(20) * patience());
    }
    for child in children {
        assert!(child.wait());
    }
    quiet();
    before.expect_unchanged(&client);
    for group in &groups {
        expect_current(group, 0);
    }
}
