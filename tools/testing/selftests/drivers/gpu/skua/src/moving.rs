// SPDX-License-Identifier: MIT

//! Objects that move between VRAM and system memory, and what is seen of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::client::{signal, unmap, Client, Place};
use crate::function::Function;
use crate::mapping::Mapping;
use crate::rig::{copy, wait_value, write, Engine, Rig};
use crate::witness::quiet;
use skua_uapi::*;

/// Has everything that may leave VRAM do so; how many objects did.
///
/// # Panics
///
/// If debugfs does not tell.
#[track_caller]
pub fn evict_all() -> usize {
    let moved = Function::first().debugfs("evict").expect("debugfs");
    moved.trim().parse().expect("a number")
}

/// The same beside clients that are busy: what is in use for long stays where it is.
pub fn evict_some() {
    let _ = Function::first().debugfs("evict");
}

/// Has the kernel ask everybody for what they can do without; how many pages of objects it got.
///
/// # Panics
///
/// If the kernel does not let it be asked.
#[track_caller]
pub fn press() -> u64 {
    let count = || {
        let [pages] = Function::first().counters(["driver_pages_given_back"]);
        pages
    };
    let before = count();
    std::fs::write("/proc/sys/vm/drop_caches", "2").expect("drop_caches");
    count() - before
}

/// The placements of an object that may be in either place.
pub fn both(client: &Client) -> u32 {
    1 << client.region(Place::Vram).id | 1 << client.region(Place::System).id
}

/// An object for the CPU that may be in either place.
///
/// # Panics
///
/// If there is no room.
#[track_caller]
pub fn movable(client: &Client, size: u64) -> u32 {
    client
        .bo_create(size, DRM_SKUA_BO_CPU_ACCESS, both(client))
        .expect("BO_CREATE")
}

/// An object for the CPU that may be in either place, and is in VRAM.
///
/// # Panics
///
/// If it is not there.
#[track_caller]
pub fn movable_in_vram(client: &Client, size: u64) -> u32 {
    let handle = movable(client, size);
    assert_eq!(place(client, handle), Place::Vram);
    handle
}

/// Where an object is.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub fn place(client: &Client, handle: u32) -> Place {
    let region = client.info(handle).expect("BO_INFO").region;
    [Place::Vram, Place::Aperture]
        .into_iter()
        .find(|place| client.region(*place).id == region)
        .unwrap_or(Place::System)
}

/// Whether an object is in VRAM.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub fn is_in_vram(client: &Client, handle: u32) -> bool {
    place(client, handle) == Place::Vram
}

/// How many of these objects are in system memory.
///
/// # Panics
///
/// If there is one that is none.
#[track_caller]
pub fn gone(client: &Client, handles: &[u32]) -> usize {
    let is_out = |handle: &&u32| place(client, **handle) == Place::System;
    handles.iter().filter(is_out).count()
}

/// MAKE_RESIDENT, and waits for the moves.
///
/// # Panics
///
/// If it fails.
#[track_caller]
pub fn resident(client: &Client, handles: &[u32]) {
    let done = client.syncobj();
    assert_eq!(client.make_resident(handles, &[signal(done)]), Ok(()));
    assert_eq!(client.wait(done), Ok(()));
    assert_eq!(client.syncobj_destroy(done), Ok(()));
}

/// Calls `during` while objects of a client and of another one are in VRAM, in this order: one that
/// is idle, one that is resident and one that work is using; with a word for each, and its bytes.
///
/// # Panics
///
/// If there is no room, or the work fails.
#[track_caller]
pub fn with_holders(during: impl FnOnce(&Client, [(&str, u64); 3])) {
    let busy = alone();
    let client = Client::new();
    let holders = [("idle", 3 << 20), ("resident", 5 << 20), ("busy", 7 << 20)];
    let [idle, kept] = [holders[0], holders[1]].map(|(_, bytes)| client.bo(Place::Vram, bytes));
    // Cleared, nobody works with them any more.
    for handle in [idle, kept] {
        assert_eq!(client.map(handle).read(0), 0);
    }
    resident(&client, &[kept]);
    let gate = busy.buffer(Place::System, 4096);
    let used = busy.buffer(Place::Vram, holders[2].1);
    let work = [wait_value(gate.va, 1), write(used.va, 1)];
    let job = busy.start(Engine::Compute, &work);
    during(&client, holders);
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
}

/// Free VRAM is as if nobody had cleared it, and is not cleared in the background, as long as it
/// lives: what is new in VRAM is cleared when it is made.
pub struct Uncleared;

impl Uncleared {
    /// From now on.
    ///
    /// # Panics
    ///
    /// If it is so already.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "a guard is asked for")]
    pub fn new() -> Self {
        let now = Function::first().debugfs("clearing").expect("debugfs");
        assert_eq!(now.trim(), "0");
        Self
    }
}

impl Drop for Uncleared {
    fn drop(&mut self) {
        // None of a device that is gone.
        let _ = Function::first().debugfs("clearing");
    }
}

/// Words that differ from place to place and from seed to seed.
pub fn pattern(seed: u64) -> impl Fn(usize) -> u64 {
    move |offset| (offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

/// What the GPU finds there, by a copy.
///
/// # Panics
///
/// If it is something else.
#[track_caller]
pub fn expect_gpu(rig: &Rig, what: &str, va: u64, size: u64, value: impl Fn(usize) -> u64) {
    let out = rig.buffer(Place::System, size);
    assert_eq!(
        rig.run(Engine::Copy, &[copy(va, out.va, size)]),
        Ok(()),
        "{what}"
    );
    out.cpu.expect(what, value);
    assert_eq!(rig.bind_and_wait(rig.vm, &[unmap(out.va, size)]), Ok(()));
    assert_eq!(rig.close(out.handle), Ok(()));
}

/// A rig, when nothing of earlier clients is left that could move.
pub fn alone() -> Rig {
    quiet();
    Rig::new().having_worked()
}

/// A rig of a device that says what is resident, and that, when nothing of earlier clients is left.
///
/// # Panics
///
/// If there is no such device.
#[track_caller]
pub fn explicit() -> (Rig, u32) {
    quiet();
    let client = Client::new();
    let device = client
        .device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY)
        .expect("DEVICE_CREATE");
    (Rig::of_device(client, device).having_worked(), device)
}

/// An object for VRAM alone that is out, and where the GPU is to find it.
///
/// # Panics
///
/// If it is not out.
#[track_caller]
pub fn out(rig: &Rig, size: u64) -> (u32, u64) {
    let vram = 1 << rig.region(Place::Vram).id;
    let handle = rig.bo_create(size, 0, vram).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, size);
    evict_all();
    assert_eq!(place(rig, handle), Place::System);
    (handle, va)
}

/// The mapping that a lock is for.
///
/// # Panics
///
/// If it cannot be locked, or mapped then.
#[track_caller]
pub fn locked(client: &Client, handle: u32, size: u64) -> Mapping {
    let offset = client.lock(handle).expect("BO_LOCK");
    let len = usize::try_from(size).expect("a length");
    Mapping::new(client.duplicate(), offset, len).expect("mmap")
}

/// The pages of a BAR that begin with a value, by their offsets.
pub fn find(bar: &Mapping, value: u64) -> Vec<usize> {
    (0..bar.len())
        .step_by(4096)
        .filter(|offset| bar.read(*offset) == value)
        .collect()
}

/// Ends what is told so, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `during` while two threads write all over an object, which is all zero, each its own
/// words, and see each time what they have written before.
///
/// # Panics
///
/// If a store was lost, or done twice.
#[track_caller]
pub fn while_the_cpu_writes(cpu: &Mapping, during: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let words = |writer: usize| (writer..cpu.len() / 8).step_by(2 * 61);
    thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            let stop = &stop;
            scope.spawn(move || {
                let mut rounds = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for word in words(writer) {
                        assert_eq!(cpu.read(8 * word), rounds, "word {word}");
                        cpu.write(8 * word, rounds + 1);
                    }
                    rounds += 1;
                }
                rounds
            })
        });
        let end = End(&stop);
        during();
        drop(end);
        for (writer, rounds) in writers.into_iter().enumerate() {
            let rounds = rounds.join().expect("a writer");
            for word in words(writer) {
                assert_eq!(cpu.read(8 * word), rounds, "word {word}");
            }
        }
    });
}

/// Calls `during` while a thread has everything leave VRAM that may, again and again.
pub fn while_all_is_evicted<R>(during: impl FnOnce() -> R) -> R {
    while_again(evict_some, during)
}

/// Calls `during` while a thread does a deed again and again.
pub fn while_again<R>(mut deed: impl FnMut() + Send, during: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                deed();
            }
        });
        let _end = End(&stop);
        during()
    })
}

/// Numbers that look random, the same each time.
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The next one, below `end`.
    ///
    /// # Panics
    ///
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        // Knuth's; the upper bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}
