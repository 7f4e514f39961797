// SPDX-License-Identifier: MIT

//! Eight processes that do everything with their objects at once, in any order, where VRAM has not
//! room for half of them. Each has a model of every byte that it owns, and compares. Every second
//! one says itself what is to be resident.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::client::{map, signal_point, signal_value, unmap, wait_point, Place};
use crate::mapping::Mapping;
use crate::moving::{both, evict_some, press, Numbers};
use crate::raw::{in_child, Child, Errno};
use crate::rig::{copy, fill, Buffer, Engine, Rig};
use crate::suite::rounds;
use crate::witness::{expect_areas, quiet, Witness};
use crate::Client;
use skua_spec::command::Command;
use skua_uapi::*;

const PAGE: usize = 4096;
/// Of an object, at most.
const LARGEST: usize = 128 * PAGE;
/// Where objects are bound: each in a slot, as large as the largest page of a page table.
const SLOTS: u64 = 1 << 41;
const SLOT: u64 = 2 << 20;

/// How the CPU comes to what is in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// By a mapping, at any time.
    Mapped,
    /// By a mapping while it is locked.
    Locked,
    /// Not at all: by a copy of the GPU's.
    Gpu,
}

/// An object, and what is known of it.
struct Object {
    /// Its handle in the player's rig.
    handle: u32,
    /// Number of the [`SLOT`] bytes of GPU virtual addresses in which it is mapped.
    slot: u64,
    /// How the CPU comes to its content.
    reach: Reach,
    /// The GPU reaches it in VRAM alone.
    alone: bool,
    /// While the CPU may access it.
    cpu: Option<Mapping>,
    /// Locks of the player's that are not unlocked.
    locks: u32,
    /// [`Player::device`] has made it resident, and not evicted.
    resident: bool,
    /// Nobody may use it until it is reclaimed.
    offered: bool,
    /// What every byte of it is, when all that was begun is over.
    content: Vec<u8>,
}

impl Object {
    fn va(&self) -> u64 {
        SLOTS + self.slot * SLOT
    }

    /// What the model has there.
    fn word(content: &[u8], offset: usize) -> u64 {
        let bytes = content[offset..offset + 8].try_into();
        u64::from_le_bytes(bytes.expect("8 bytes"))
    }
}

/// Compares all of a mapping with what should be there.
#[track_caller]
fn compare(what: &str, seen: &Mapping, content: &[u8]) {
    let differs = (0..content.len())
        .step_by(8)
        .find(|&offset| seen.read(offset) != Object::word(content, offset));
    if let Some(offset) = differs {
        let (is, was) = (seen.read(offset), Object::word(content, offset));
        panic!(
            "{what}: {offset:#x} of {:#x} is {is:#018x}, not {was:#018x}",
            content.len()
        );
    }
}

/// A process that plays, with what it has made.
struct Player {
    /// Begins each message, as several play at once.
    name: String,
    /// The client that plays, with a context of each engine.
    rig: Rig,
    /// A device with explicit residency; 0 if the driver brings in what work needs.
    device: u32,
    /// A monitored fence that each MAKE_RESIDENT signals.
    paging: u32,
    /// The value that the last MAKE_RESIDENT was to signal.
    paged: u64,
    /// What decides what is done next: of one seed always the same.
    numbers: Numbers,
    /// Objects that exist.
    objects: Vec<Object>,
    /// Slots that were ever taken.
    slots: u64,
    /// Slots of objects that are gone.
    free_slots: Vec<u64>,
    /// Signals point after point, as work and binds are done, each behind the one before.
    line: u32,
    /// The last point that something was begun for.
    point: u64,
    /// The GPU copies here what is to be compared.
    out: Buffer,
    /// Bytes of VRAM.
    vram: usize,
    /// Those of them that the CPU sees.
    visible: usize,
}

/// Something that a process can do.
type Deed = fn(&mut Player);

/// What a process does, and how often.
const DEEDS: &[(Deed, u32)] = &[
    (Player::copy, 10),
    (Player::fill, 4),
    (Player::write, 8),
    (Player::look, 4),
    (Player::replace, 4),
    (Player::rebind, 3),
    (Player::lock, 4),
    (Player::unlock, 4),
    (Player::make_resident_or_evict, 4),
    (Player::offer, 3),
    (Player::reclaim, 3),
    (Player::set_priority, 2),
    (Player::fork, 1),
    (Player::evict_all, 1),
    (Player::press, 1),
];

impl Player {
    fn new(name: String, seed: u64, is_explicit: bool) -> Self {
        let client = Client::new();
        let device = match is_explicit {
            true => client.device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY),
            false => Ok(0),
        };
        let device = device.expect("DEVICE_CREATE");
        let rig = Rig::of_device(client, device);
        let region = rig.region(Place::Vram);
        let size = |bytes: u64| usize::try_from(bytes).expect("a size");
        Self {
            name,
            numbers: Numbers(seed),
            objects: Vec::new(),
            slots: 0,
            free_slots: Vec::new(),
            line: rig.syncobj(),
            point: 0,
            out: rig.buffer(Place::System, LARGEST as u64),
            vram: size(region.size),
            visible: size(region.cpu_visible_size),
            device,
            paging: rig.fence(0),
            paged: 0,
            rig,
        }
    }

    /// Does so many things, and looks at everything at the end.
    fn play(mut self, steps: u32) {
        let owned = |player: &Self| {
            player
                .objects
                .iter()
                .map(|one| one.content.len())
                .sum::<usize>()
        };
        while owned(&self) < self.vram / 4 {
            self.create();
        }
        let total: u32 = DEEDS.iter().map(|(_, weight)| weight).sum();
        for _ in 0..steps {
            let mut left = self.below(total as usize) as u32;
            let deed = DEEDS.iter().find(|(_, weight)| {
                let taken = left < *weight;
                left = left.saturating_sub(*weight);
                taken
            });
            (deed.expect("a deed").0)(&mut self);
        }
        for at in 0..self.objects.len() {
            self.reclaim_one(at);
            self.see(at);
            self.see_by_gpu(at);
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.numbers.below(end)
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    /// An object that may be used.
    fn any(&mut self) -> Option<usize> {
        let at = self.below(self.objects.len());
        (!self.objects[at].offered).then_some(at)
    }

    /// A range of an object, its ends multiples of `step`.
    fn range(&mut self, at: usize, step: usize) -> Range<usize> {
        let steps = self.objects[at].content.len() / step;
        let start = self.below(steps);
        let len = 1 + self.below(steps - start);
        step * start..step * (start + len)
    }

    /// Syncs behind all that was begun, and for what comes behind.
    fn syncs(&mut self) -> Vec<drm_skua_sync> {
        let before = (self.point > 0).then(|| wait_point(self.line, self.point));
        self.point += 1;
        before
            .into_iter()
            .chain([signal_point(self.line, self.point)])
            .collect()
    }

    /// Waits for all that was begun.
    fn settle(&mut self) {
        if self.point > 0 {
            let ended = self.rig.wait_point(self.line, self.point);
            assert_eq!(ended, Ok(()), "{}", self.name);
        }
        for engine in Engine::ALL {
            let state = self
                .rig
                .state(self.rig.context(engine))
                .expect("CONTEXT_STATE");
            assert_eq!(
                state.status, DRM_SKUA_CONTEXT_ACTIVE,
                "{}: {state:?}",
                self.name
            );
        }
    }

    fn submit(&mut self, work: &[Command]) {
        let engine = Engine::ALL[self.below(2)];
        let (context, buffer) = (self.rig.context(engine), self.rig.write(work));
        let syncs = self.syncs();
        let result = self.rig.submit(context, &[buffer], &syncs);
        assert_eq!(result, Ok(()), "{}: SUBMIT", self.name);
        // Room for commands is used in turn.
        if self.point % 64 == 0 {
            self.settle();
        }
    }

    /// Makes an object resident for the device that says so itself.
    fn begin_resident(&mut self, at: usize) {
        let object = &mut self.objects[at];
        self.paged += 1;
        let flags = DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER;
        let syncs = [signal_value(self.paging, self.paged)];
        let begun = self
            .rig
            .begin_resident_for(self.device, flags, &[object.handle], &syncs);
        assert!(begun.is_ok(), "{}: MAKE_RESIDENT: {begun:?}", self.name);
        object.resident = true;
    }

    /// Work that comes now reaches the object.
    fn reach(&mut self, at: usize) {
        let object = &self.objects[at];
        if self.device != 0 && object.alone && !object.resident {
            self.begin_resident(at);
        }
        let (paging, paged) = (self.paging, self.paged);
        assert!(self.rig.fence_gets(paging, paged), "{}: {paged}", self.name);
    }

    fn bind(&mut self, ops: &[drm_skua_bind_op]) {
        let syncs = self.syncs();
        let result = self.rig.bind(self.rig.vm, ops, &syncs);
        assert_eq!(result, Ok(()), "{}: VM_BIND", self.name);
    }

    fn slot(&mut self) -> u64 {
        self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots
        })
    }

    fn create(&mut self) {
        let size = PAGE * (1 + self.below(LARGEST / PAGE));
        let (rig, seen) = (&self.rig, DRM_SKUA_BO_CPU_ACCESS);
        let [vram, aperture] =
            [Place::Vram, Place::Aperture].map(|place| 1 << rig.region(place).id);
        let both = both(rig);
        let held = |visible: bool| -> usize {
            let alone = self.objects.iter().filter(|one| one.alone);
            alone
                .filter(|one| !visible || one.reach == Reach::Mapped)
                .map(|one| one.content.len())
                .sum()
        };
        // All that is to be in VRAM alone has to fit there at once.
        let may_be_alone = held(false) + size <= self.vram / 4;
        let is_visible = held(true) + size <= self.visible / 4;
        let (flags, placements, reach) = match self.numbers.below(8) {
            0 if is_visible && may_be_alone => (seen, vram, Reach::Mapped),
            1 if may_be_alone => (0, vram, Reach::Gpu),
            2 => (seen, both & !vram, Reach::Mapped),
            3 => (seen | DRM_SKUA_BO_CACHED, both, Reach::Locked),
            4 => (0, both | aperture, Reach::Locked),
            5 => (seen, both | aperture, Reach::Mapped),
            6 => (seen | DRM_SKUA_BO_WRITE_COMBINED, both, Reach::Mapped),
            _ => (seen, both, Reach::Mapped),
        };
        let vm = [0, self.rig.vm][self.numbers.below(2)];
        let handle = self.rig.bo_create_in(vm, size as u64, flags, placements);
        let handle = handle.unwrap_or_else(|errno| panic!("{}: BO_CREATE: {errno}", self.name));
        // Work from before may still go where it will be.
        self.settle();
        let object = Object {
            handle,
            slot: self.slot(),
            reach,
            alone: placements == vram,
            cpu: (reach == Reach::Mapped).then(|| self.rig.map(handle)),
            locks: 0,
            resident: false,
            offered: false,
            content: vec![0; size],
        };
        self.bind(&[map(handle, 0, object.va(), size as u64)]);
        self.objects.push(object);
    }

    fn replace(&mut self) {
        let at = self.below(self.objects.len());
        let object = self.objects.swap_remove(at);
        self.free_slots.push(object.slot);
        drop(object.cpu);
        let mut flags = [0, DRM_SKUA_BO_DESTROY_SYNCHRONOUS][self.below(2)];
        if self.flip() {
            self.settle();
            flags |= DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE;
        }
        while let Err(errno) = self.rig.destroy(&[object.handle], flags) {
            assert_eq!(errno, Errno::EAGAIN, "{}: BO_DESTROY", self.name);
        }
        self.create();
    }

    fn rebind(&mut self) {
        let Some(at) = self.any() else { return };
        let slot = self.slot();
        let object = &mut self.objects[at];
        let (from, size) = (object.va(), object.content.len() as u64);
        let was = std::mem::replace(&mut object.slot, slot);
        let (handle, to) = (object.handle, object.va());
        // In parts: large pages are cut.
        let half = size / 2 / PAGE as u64 * PAGE as u64;
        let mut ops = vec![map(handle, 0, to, size), unmap(from, size)];
        if half > 0 {
            ops.insert(1, map(handle, half, to + half, size - half));
        }
        self.bind(&ops);
        self.free_slots.push(was);
    }

    fn copy(&mut self) {
        let mut work = Vec::new();
        for _ in 0..1 + self.below(3) {
            let (Some(from), Some(to)) = (self.any(), self.any()) else {
                continue;
            };
            if from == to {
                continue;
            }
            self.reach(from);
            self.reach(to);
            let (source, target) = (self.range(from, 1), self.range(to, 1));
            let len = source.len().min(target.len());
            work.push(copy(
                self.objects[from].va() + source.start as u64,
                self.objects[to].va() + target.start as u64,
                len as u64,
            ));
            let bytes = self.objects[from].content[source][..len].to_vec();
            self.objects[to].content[target][..len].copy_from_slice(&bytes);
        }
        if !work.is_empty() {
            self.submit(&work);
        }
    }

    fn fill(&mut self) {
        let Some(at) = self.any() else { return };
        self.reach(at);
        let range = self.range(at, 4);
        let pattern = self.numbers.below(1 << 30) as u32;
        let object = &mut self.objects[at];
        let work = [fill(
            pattern,
            object.va() + range.start as u64,
            range.len() as u64,
        )];
        let words = object.content[range].chunks_exact_mut(4);
        words.for_each(|word| word.copy_from_slice(&pattern.to_le_bytes()));
        self.submit(&work);
    }

    /// The CPU writes where it can.
    fn write(&mut self) {
        let Some(at) = self.any() else { return };
        self.settle();
        let (range, seed) = (self.range(at, 8), self.below(1 << 30) as u64);
        let object = &mut self.objects[at];
        let Some(cpu) = &object.cpu else { return };
        for offset in range.step_by(8) {
            let word = seed << 32 | offset as u64;
            cpu.write(offset, word);
            object.content[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn look(&mut self) {
        let Some(at) = self.any() else { return };
        match self.flip() {
            true => self.see(at),
            false => self.see_by_gpu(at),
        }
    }

    /// The CPU looks at all of it, if it can.
    fn see(&mut self, at: usize) {
        self.settle();
        let object = &self.objects[at];
        if let Some(cpu) = &object.cpu {
            let what = format!("{}: object {at}, {:?}", self.name, object.reach);
            compare(&what, cpu, &object.content);
        }
    }

    fn see_by_gpu(&mut self, at: usize) {
        self.reach(at);
        let object = &self.objects[at];
        let (what, size) = (
            format!("{}: object {at}, {:?}, by the GPU", self.name, object.reach),
            object.content.len(),
        );
        self.submit(&[copy(object.va(), self.out.va, size as u64)]);
        self.settle();
        compare(&what, &self.out.cpu, &self.objects[at].content);
    }

    fn lock(&mut self) {
        let Some(at) = self.any() else { return };
        let object = &mut self.objects[at];
        if object.reach == Reach::Gpu {
            return;
        }
        let offset = self.rig.lock(object.handle);
        let offset = offset.unwrap_or_else(|errno| panic!("{}: BO_LOCK: {errno}", self.name));
        object.locks += 1;
        if object.cpu.is_none() {
            let cpu = Mapping::new(&*self.rig, offset, object.content.len());
            object.cpu = Some(cpu.expect("mmap"));
        }
        self.see(at);
    }

    fn unlock(&mut self) {
        let locked = self.objects.iter().position(|one| one.locks > 0);
        let Some(object) = locked.map(|at| &mut self.objects[at]) else {
            return;
        };
        object.locks -= 1;
        if object.locks == 0 && object.reach == Reach::Locked {
            object.cpu = None;
        }
        assert_eq!(self.rig.unlock(object.handle), Ok(()), "{}", self.name);
    }

    fn make_resident_or_evict(&mut self) {
        let Some(at) = self.any() else { return };
        if self.device != 0 {
            // What was submitted so far may use it.
            match self.objects[at].resident {
                true => {
                    let evicted = self.rig.evict_for(self.device, &[self.objects[at].handle]);
                    assert_eq!(evicted, Ok(()), "{}: EVICT", self.name);
                    self.objects[at].resident = false;
                }
                false => self.begin_resident(at),
            }
            return;
        }
        let resident = |one: &Object| one.resident;
        // So that all that is resident has room, whoever it belongs to.
        let few = self
            .objects
            .iter()
            .filter(|one| resident(one) && one.alone)
            .count()
            == 0;
        let object = &mut self.objects[at];
        let handles = [object.handle];
        let result = match object.resident {
            true => self.rig.evict(&handles),
            false if object.alone && !few => return,
            false => self.rig.make_resident(&handles, &[]),
        };
        assert_eq!(result, Ok(()), "{}: {}", self.name, object.resident);
        object.resident = !object.resident;
    }

    fn set_priority(&mut self) {
        let at = self.below(self.objects.len());
        let priority = 1 + self.below(1 << 31) as u32;
        let result = self.rig.set_priority(&[self.objects[at].handle], priority);
        assert_eq!(result, Ok(()), "{}", self.name);
    }

    fn offer(&mut self) {
        let Some(at) = self.any() else { return };
        let priority = 1 + self.below(4) as u32;
        // Work that uses it is done.
        self.settle();
        let object = &mut self.objects[at];
        if object.locks > 0 || object.resident {
            return;
        }
        let result = self.rig.offer(&[object.handle], priority);
        assert_eq!(result, Ok(()), "{}: BO_OFFER", self.name);
        object.offered = true;
    }

    fn reclaim(&mut self) {
        if let Some(at) = self.objects.iter().position(|one| one.offered) {
            self.reclaim_one(at);
            self.see(at);
        }
    }

    fn reclaim_one(&mut self, at: usize) {
        let object = &mut self.objects[at];
        let gone = loop {
            match self.rig.reclaim(&[object.handle]) {
                Err(Errno::EAGAIN) => {}
                result => break result,
            }
        };
        let gone = gone.unwrap_or_else(|errno| panic!("{}: BO_RECLAIM: {errno}", self.name));
        assert!(
            object.offered || !gone[0],
            "{}: it was not offered",
            self.name
        );
        if gone[0] {
            object.content.fill(0);
        }
        object.offered = false;
    }

    /// A child has all that its parent has mapped, and writes there.
    fn fork(&mut self) {
        let Some(at) = self.any() else { return };
        self.settle();
        let seed = self.below(1 << 30) as u64;
        let object = &mut self.objects[at];
        let Some(cpu) = &object.cpu else { return };
        let right = in_child(|| {
            compare("in a child", cpu, &object.content);
            cpu.fill(|offset| seed ^ offset as u64);
            true
        });
        assert!(right, "{}: the child", self.name);
        for (n, word) in object.content.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(seed ^ (8 * n as u64)).to_le_bytes());
        }
    }

    fn evict_all(&mut self) {
        evict_some();
    }

    fn press(&mut self) {
        press();
    }
}

/// Where the random numbers of a test begin: `SKUA_SEED`, or the time; it is printed.
pub fn seed() -> u64 {
    let wanted = std::env::var("SKUA_SEED").ok();
    let seed = wanted.and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |time| time.as_secs())
    });
    println!("seed {seed}: SKUA_SEED={seed} has the same numbers again");
    seed
}

/// Has eight processes do so many deeds each, and nothing of them stays.
///
/// # Panics
///
/// If one has found a wrong byte, or a call that failed.
pub fn eight_processes(deeds: u32) {
    quiet();
    let observer = Client::new();
    let before = Witness::settled(&observer);
    let seed = seed();
    let children: Vec<_> = (1..=8)
        .map(|number| {
            Child::start(move || {
                let name = format!("process {number}");
                let player = Player::new(name, seed << 8 | number, number % 2 == 0);
                player.play(rounds(deeds));
                true
            })
        })
        .collect();
    let ends: Vec<bool> = children.into_iter().map(Child::wait).collect();
    assert_eq!(ends, [true; 8], "seed {seed}");
    before.expect_unchanged(&observer);
    expect_areas();
}
