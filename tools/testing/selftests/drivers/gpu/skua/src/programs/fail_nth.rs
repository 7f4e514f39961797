// SPDX-License-Identifier: MIT

//! Calls in which one allocation fails, or one access to the caller's memory: the first, the second
//! and so on, until there are no more. Each time the call says so and changes nothing, or does what
//! it is for all the same; and at the end nothing is left of all that.
//!
//! The kernel does that for the debugging configuration alone (`fail-nth` of
//! `Documentation/fault-injection/fault-injection.rst`). `guests.json` gives this program a GPU
//! with little VRAM, and no checks of DMA mappings, which end where an allocation of their own
//! fails.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use skua_selftests::cgroup::{DmemGroup, DmemTree};
use skua_selftests::client::{
    map, map_fence, map_readonly, own, signal, signal_point, signal_value, unmap, wait, wait_point,
    wait_value,
};
use skua_selftests::failures::Failures;
use skua_selftests::function::Function;
use skua_selftests::mapping::Mapping;
use skua_selftests::moving::{both, evict_all, movable, pattern, place, press};
use skua_selftests::others::{heap, import_by_vgem, vgem};
use skua_selftests::rig::{write, Buffer};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::{becomes, eventually};
use skua_selftests::witness::{quiet, Witness};
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
/// Of an object, in bytes.
const SIZE: u64 = 8 * PAGE;
/// Where steps bind.
const VA: u64 = 1 << 40;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        queries: 300,
        objects: 600,
        destruction_behind_held_work: 600,
        mappings_of_the_cpu: 600,
        residency: 600,
        room_in_vram: 600,
        residency_that_must_succeed: 600,
        less_than_a_group_has: 600,
        locks: 300,
        residency_behind_locks: 600,
        offers: 600,
        devices: 300,
        address_spaces: 600,
        contexts: 300,
        submissions: 600,
        monitored_fences: 300,
        sharing: 600,
    ])
}

/// A client with objects of each kind.
struct Subject {
    /// The client whose calls fail.
    rig: Rig,
    /// Another one, that shares.
    other: Client,
    /// A device with explicit residency.
    explicit: u32,
    /// In system memory, in VRAM alone, in either of them, and in the aperture alone: each with the
    /// pattern of its place in this list.
    buffers: [Buffer; 4],
    /// In VRAM or system memory; the CPU does not map it in VRAM.
    hidden: u32,
    /// In VRAM or system memory, of no content.
    offered: u32,
    /// What work writes to.
    scratch: Buffer,
    /// A binary syncobj, empty again when what signals it is over.
    done: u32,
    /// A timeline syncobj.
    line: u32,
    /// A monitored fence, from 0.
    fence: u32,
    /// The point of `line` and the value of `fence` that were promised last.
    promised: Cell<u64>,
    /// Handle of what a step is about to destroy, or 0.
    made: Cell<u32>,
    /// Handle of what else a step needs for that, such as what holds `made` up, or 0.
    within: Cell<u32>,
    /// What a step has exported, or is about to import.
    file: RefCell<Option<OwnedFd>>,
    /// Another driver, while a step imports there.
    vgem: RefCell<Option<File>>,
    /// What FENCE_EVENTFD is to write to.
    event: EventFd,
    /// Another driver's fences, which signal when a step lets them.
    blocker: SoftwareTimeline,
    /// The syncobj of what is blocked, or 0.
    blocked: Cell<u32>,
    /// For which its VRAM is charged, unless that is nobody's, and where that is.
    group: Option<(DmemGroup, DmemTree)>,
}

impl Subject {
    fn new() -> Self {
        let rig = Rig::new().having_worked();
        let buffers = [
            rig.buffer(Place::System, SIZE),
            rig.buffer(Place::Vram, SIZE),
            rig.bound(movable(&rig, SIZE), SIZE),
            rig.buffer(Place::Aperture, SIZE),
        ];
        for (n, buffer) in (0..).zip(&buffers) {
            buffer.cpu.fill(pattern(n));
        }
        let hidden = rig.bo_create(SIZE, 0, both(&rig)).expect("BO_CREATE");
        let explicit = rig.device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY);
        Self {
            other: Client::new(),
            explicit: explicit.expect("DEVICE_CREATE"),
            buffers,
            hidden,
            offered: movable(&rig, SIZE),
            scratch: rig.buffer(Place::System, PAGE),
            done: rig.syncobj(),
            line: rig.syncobj(),
            fence: rig.fence(0),
            promised: Cell::new(0),
            made: Cell::new(0),
            within: Cell::new(0),
            file: RefCell::new(None),
            vgem: RefCell::new(None),
            event: EventFd::new().expect("eventfd"),
            blocker: SoftwareTimeline::new(),
            blocked: Cell::new(0),
            group: None,
            rig,
        }
    }

    /// One with which VRAM is full: of what has to stay, but for the list.
    fn crowded() -> Self {
        let subject = Self::new();
        subject.enter();
        let region = subject.rig.region(Place::Vram);
        let rest = region.size - region.used;
        let vram = 1 << region.id;
        let hog = subject.rig.bo_create(rest, 0, vram).expect("BO_CREATE");
        assert_eq!(subject.rig.make_resident(&[hog], &[]), Ok(()));
        assert_eq!(subject.rig.region(Place::Vram).used, region.size);
        subject
    }

    /// One that is in a group of its own.
    fn grouped() -> Self {
        let tree = DmemTree::new();
        let group = tree.group("a");
        group.enter();
        Self {
            group: Some((group, tree)),
            ..Self::new()
        }
    }

    /// The group.
    fn group(&self) -> &DmemGroup {
        &self.group.as_ref().expect("a group").0
    }

    /// What may move.
    fn movable(&self) -> [u32; 2] {
        [self.buffers[1].handle, self.buffers[2].handle]
    }

    /// All that may move is out. What is just coming cannot leave before it is there.
    #[track_caller]
    fn leave(&self) {
        let [vram, either] = self.movable();
        let handles = [vram, either, self.hidden, self.offered];
        let is_out = |handle: &u32| place(&self.rig, *handle) != Place::Vram;
        let left = eventually(|| {
            evict_all();
            handles.iter().all(is_out).then_some(())
        });
        assert!(left.is_some(), "something stays in VRAM");
    }

    /// All that may be in VRAM is there, and nobody keeps it there.
    fn enter(&self) {
        evict_all();
        let [vram, either] = self.movable();
        let handles = [vram, either, self.hidden, self.offered];
        skua_selftests::moving::resident(&self.rig, &handles);
        assert_eq!(self.rig.evict(&handles), Ok(()));
    }

    /// The contents are what they were.
    fn intact(&self) {
        for (n, buffer) in (0..).zip(&self.buffers) {
            buffer.cpu.expect(&format!("object {n}"), pattern(n));
        }
    }

    /// What is signalled when something is done: a syncobj, a point and a value.
    fn signals(&self) -> [drm_skua_sync; 3] {
        let next = self.promised.get() + 1;
        [
            signal(self.done),
            signal_point(self.line, next),
            signal_value(self.fence, next),
        ]
    }

    /// Asserts that what was promised last was signalled, for good.
    #[track_caller]
    fn signalled(&self) {
        let next = self.promised.get() + 1;
        self.promised.set(next);
        assert_eq!(self.outcome(), Ok(()));
        assert_eq!(self.rig.wait_point(self.line, next), Ok(()));
        assert!(self.rig.fence_gets(self.fence, next));
    }

    /// What became of the work that signals `done`, which is empty again then: work that is held
    /// puts its fence there no sooner than it is let go, and what was there before says nothing of
    /// it.
    #[track_caller]
    fn outcome(&self) -> Result<(), Errno> {
        let outcome = self.rig.wait(self.done);
        self.rig.syncobj_reset(self.done);
        outcome
    }

    /// Makes what a step destroys, if there is none.
    fn make(&self, make: impl FnOnce() -> Result<u32, Errno>) {
        if self.made.get() == 0 {
            self.made.set(make().expect("what is destroyed"));
        }
    }

    /// What was made, if `result` says that it was destroyed; it is forgotten.
    fn gone(&self, result: Result<(), Errno>) -> Result<u64, Errno> {
        result.map(|()| u64::from(self.made.replace(0)))
    }

    /// A syncobj whose fence does not signal by itself.
    fn block(&self) {
        if self.blocked.get() == 0 {
            let file = self.blocker.fence(1);
            self.blocked.set(self.rig.syncobj_of(file));
        }
    }

    /// Now it does.
    fn unblock(&self) {
        self.blocker.advance(1);
        let blocked = self.blocked.replace(0);
        assert_eq!(self.rig.syncobj_destroy(blocked), Ok(()));
    }

    /// Commands that write `value` to the scratch.
    fn commands(&self, value: u64) -> [drm_skua_buffer; 1] {
        [self.rig.write(&[write(self.scratch.va, value)])]
    }
}

/// What is seen of a subject, and of the device beside it.
#[derive(Debug, PartialEq)]
struct Sight {
    /// [`Witness::used`].
    used: Vec<u64>,
    /// [`Witness::memory`].
    memory: Vec<(String, String)>,
    /// What debugfs says of address spaces, without numbers of things that were made anew.
    vms: Vec<String>,
    /// The same of contexts.
    contexts: Vec<String>,
    /// Flags, status, bytes resident and bytes of system memory of the file's device and the other.
    devices: [(u32, u32, u64, u64); 2],
    /// Where the objects are.
    regions: Vec<u32>,
    /// Open files of this process.
    files: usize,
}

impl Sight {
    fn of(subject: &Subject) -> Self {
        let rig = &subject.rig;
        let witness = Witness::of(rig);
        let (vms, contexts) = skua_selftests::witness::objects();
        let nameless = |line: &str| match line.split_once(": ") {
            Some((_, facts)) => facts.to_owned(),
            None => line.to_owned(),
        };
        let mut vms: Vec<String> = vms.lines().map(nameless).collect();
        vms.sort();
        let mut contexts: Vec<String> = contexts
            .lines()
            .map(|line| {
                let (engine, facts) = line.split_once(" vm ").expect("a context");
                let (status, queue) = facts.split_once(" ended ").expect("a context");
                let (_, status) = status.split_once(' ').expect("a context");
                let (_, queue) = queue.split_once(" priority ").expect("a context");
                format!("{}, {status}, {queue}", nameless(engine))
            })
            .collect();
        contexts.sort();
        let devices = [0, subject.explicit].map(|device| {
            let state = rig.device_state(device).expect("DEVICE_STATE");
            (state.flags, state.status, state.resident, state.system_used)
        });
        let handles = subject.buffers.iter().map(|buffer| buffer.handle);
        let regions = handles
            .chain([subject.hidden, subject.offered])
            .map(|handle| rig.info(handle).expect("BO_INFO").region)
            .collect();
        let files = fs::read_dir("/proc/self/fd").expect("procfs").count();
        Self {
            used: witness.used,
            memory: witness.memory,
            vms,
            contexts,
            devices,
            regions,
            files,
        }
    }

    /// What differs after a while in which it may become the same.
    fn differs(&self, subject: &Subject) -> Option<String> {
        eventually(|| (Self::of(subject) == *self).then_some(())).map_or_else(
            || Some(format!("was {self:#?}, is {:#?}", Self::of(subject))),
            |()| None,
        )
    }
}

/// A call under test.
struct Step {
    /// What a failure is told of.
    name: &'static str,
    /// What it may fail with besides ENOMEM and EFAULT.
    errnos: &'static [Errno],
    /// Brings about what it needs, or what it had before it failed.
    prepare: fn(&Subject),
    /// The call itself, whose allocations fail one after the other.
    call: fn(&Subject) -> Result<u64, Errno>,
    /// Sees that it did what it is for, and takes that back.
    undo: fn(&Subject, u64),
}

/// A step that needs nothing.
const STEP: Step = Step {
    name: "",
    errnos: &[],
    prepare: |_| (),
    call: |_| Ok(0),
    undo: |_, _| (),
};

impl Step {
    /// Once without failure, so that what is kept for the next time is there; what is seen then.
    fn begin(&self, subject: &Subject) -> Sight {
        for _ in 0..2 {
            (self.prepare)(subject);
            match (self.call)(subject) {
                Ok(value) => (self.undo)(subject, value),
                Err(errno) => panic!("{}: {errno}", self.name),
            }
        }
        (self.prepare)(subject);
        let mut sight = Sight::of(subject);
        // Until what goes late has gone.
        loop {
            thread::sleep(Duration::from_millis(50));
            let now = Sight::of(subject);
            if now == sight {
                return sight;
            }
            sight = now;
        }
    }
}

/// Has each allocation of each step fail.
fn run(make: fn() -> Subject, steps: &[Step]) {
    let failures = Failures::new();
    quiet();
    let observer = Client::new();
    let nothing = Witness::of(&observer);
    let mut subject = make();
    for step in steps {
        let name = step.name;
        let mut before = step.begin(&subject);
        let (mut refused, mut borne) = (0, 0);
        let mut n = 0;
        loop {
            n += 1;
            assert!(n < 5000, "{name}: allocations without end");
            let (result, met) = failures.with(n, || (step.call)(&subject));
            match result {
                Ok(value) => {
                    (step.undo)(&subject, value);
                    borne += u32::from(met);
                }
                Err(errno) => {
                    let known = [Errno::ENOMEM, Errno::EFAULT].contains(&errno)
                        || step.errnos.contains(&errno);
                    assert!(met && known, "{name}: {errno} when number {n} failed");
                    refused += 1;
                }
            }
            subject.intact();
            if result == Err(Errno::EFAULT) {
                // The kernel may not have been able to tell what it did. The file's end undoes it.
                drop(subject);
                nothing.expect_unchanged(&observer);
                subject = make();
                before = step.begin(&subject);
                continue;
            }
            (step.prepare)(&subject);
            if let Some(changes) = before.differs(&subject) {
                panic!("{name}: number {n} failed, {result:?}: {changes}");
            }
            if !met {
                break;
            }
        }
        println!("# {name}: {refused} failures told, {borne} borne");
        // At the end it works.
        step.begin(&subject);
    }
    drop(subject);
    nothing.expect_unchanged(&observer);
}

fn queries() {
    run(
        Subject::new,
        &[
            Step {
                name: "QUERY_DEVICE",
                call: |s| Ok(s.rig.query(DRM_SKUA_QUERY_DEVICE, &mut [0; 32])? as u64),
                ..STEP
            },
            Step {
                name: "QUERY_ENGINES",
                call: |s| Ok(s.rig.query(DRM_SKUA_QUERY_ENGINES, &mut [0; 32])? as u64),
                ..STEP
            },
            Step {
                name: "QUERY_REGIONS",
                call: |s| Ok(s.rig.query(DRM_SKUA_QUERY_REGIONS, &mut [0; 64])? as u64),
                ..STEP
            },
            Step {
                name: "BO_INFO",
                call: |s| Ok(s.rig.info(s.hidden)?.size),
                undo: |_, size| assert_eq!(size, SIZE),
                ..STEP
            },
            Step {
                name: "CONTEXT_STATE",
                call: |s| Ok(s.rig.state(s.rig.copy)?.status.into()),
                undo: |_, status| assert_eq!(status, DRM_SKUA_CONTEXT_ACTIVE.into()),
                ..STEP
            },
            Step {
                name: "DEVICE_STATE",
                call: |s| Ok(s.rig.device_state(s.explicit)?.flags.into()),
                undo: |_, flags| assert_eq!(flags, DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY.into()),
                ..STEP
            },
        ],
    );
}

/// Takes an object back, which is all zero where the CPU can see it.
fn close(subject: &Subject, handle: u64) {
    let handle = u32::try_from(handle).expect("a handle");
    if subject.rig.info(handle).expect("BO_INFO").flags & DRM_SKUA_BO_CPU_ACCESS != 0 {
        subject.rig.map(handle).expect("a new object", |_| 0);
    }
    assert_eq!(subject.rig.close(handle), Ok(()));
}

fn create(subject: &Subject, placements: u32) -> Result<u64, Errno> {
    let handle = subject
        .rig
        .bo_create(SIZE, DRM_SKUA_BO_CPU_ACCESS, placements);
    handle.map(u64::from)
}

/// An object in VRAM that is bound.
fn dying(subject: &Subject) {
    subject.make(|| {
        let handle = subject.rig.bo(Place::Vram, SIZE);
        let bind = [map(handle, 0, VA, SIZE)];
        assert_eq!(subject.rig.bind_and_wait(subject.rig.vm, &bind), Ok(()));
        Ok(handle)
    });
}

fn objects() {
    const SYSTEM: u32 = 1 << 0;
    const VRAM: u32 = 1 << 1;
    const APERTURE: u32 = 1 << 2;
    run(
        Subject::new,
        &[
            Step {
                name: "BO_CREATE in system memory",
                call: |s| create(s, SYSTEM),
                undo: close,
                ..STEP
            },
            Step {
                name: "BO_CREATE in VRAM",
                call: |s| create(s, VRAM),
                undo: close,
                ..STEP
            },
            Step {
                name: "BO_CREATE in either",
                call: |s| create(s, VRAM | SYSTEM),
                undo: close,
                ..STEP
            },
            Step {
                name: "BO_CREATE in the aperture",
                call: |s| create(s, APERTURE),
                undo: close,
                ..STEP
            },
            Step {
                name: "BO_CREATE of a private object",
                call: |s| {
                    let handle = s.rig.bo_create_in(s.rig.vm, SIZE, 0, VRAM);
                    handle.map(u64::from)
                },
                undo: close,
                ..STEP
            },
            Step {
                name: "BO_MMAP_OFFSET",
                prepare: |s| s.make(|| Ok(s.rig.bo(Place::System, SIZE))),
                call: |s| s.rig.mmap_offset(s.made.get()),
                undo: |s, _| assert_eq!(s.rig.close(s.made.replace(0)), Ok(())),
                ..STEP
            },
            Step {
                name: "GEM_CLOSE",
                prepare: dying,
                call: |s| s.gone(s.rig.close(s.made.get())),
                undo: |s, _| {
                    let unbind = [unmap(VA, SIZE)];
                    assert_eq!(s.rig.bind_and_wait(s.rig.vm, &unbind), Ok(()));
                },
                ..STEP
            },
            Step {
                name: "BO_DESTROY",
                prepare: dying,
                call: |s| s.gone(s.rig.destroy(&[s.made.get()], 0)),
                ..STEP
            },
            Step {
                name: "BO_DESTROY of two",
                prepare: |s| {
                    dying(s);
                    if s.within.get() == 0 {
                        s.within.set(s.rig.bo(Place::System, SIZE));
                    }
                },
                call: |s| {
                    s.gone(s.rig.destroy(&[s.made.get(), s.within.get()], 0))
                        .inspect(|_| s.within.set(0))
                },
                ..STEP
            },
            Step {
                name: "BO_DESTROY, not in use",
                prepare: dying,
                call: |s| {
                    let flags = DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE;
                    s.gone(s.rig.destroy(&[s.made.get()], flags))
                },
                ..STEP
            },
            Step {
                name: "BO_DESTROY, synchronously",
                errnos: &[Errno::EAGAIN],
                prepare: dying,
                call: |s| s.gone(s.rig.destroy_synchronously(&[s.made.get()], 0)),
                ..STEP
            },
            Step {
                name: "BO_SET_PRIORITY",
                call: |s| {
                    let priority = DRM_SKUA_PRIORITY_HIGH;
                    s.rig.set_priority(&s.movable(), priority).map(|()| 0)
                },
                ..STEP
            },
        ],
    );
}

/// It is deferred until that is over, or will never be.
fn destruction_behind_held_work() {
    run(
        Subject::new,
        &[Step {
            name: "BO_DESTROY behind work that is held",
            prepare: |s| {
                if s.within.get() == 0 {
                    s.within.set(holder(s).expect("held work"));
                }
                dying(s);
            },
            call: |s| s.gone(s.rig.destroy(&[s.made.get()], 0)),
            undo: |s, object| {
                let object = u32::try_from(object).expect("a handle");
                assert_eq!(s.rig.info(object).err(), Some(Errno::ENOENT));
                assert_eq!(s.rig.context_destroy(s.within.replace(0)), Ok(()));
            },
            ..STEP
        }],
    );
}

/// All pages that an object has are read; a sum of that.
fn read_all(cpu: &Mapping) -> u64 {
    (0..cpu.len())
        .step_by(PAGE as usize)
        .fold(0, |sum, at| sum ^ cpu.read(at))
}

/// Removes the CPU's mappings.
fn zap() {
    Function::first().debugfs("zap").expect("debugfs");
}

fn expect_read(number: usize, sum: u64) {
    let content = pattern(number as u64);
    let pages = (0..SIZE as usize).step_by(PAGE as usize);
    assert_eq!(sum, pages.fold(0, |sum, at| sum ^ content(at)));
}

fn mappings_of_the_cpu() {
    run(
        Subject::new,
        &[
            Step {
                name: "mmap",
                call: |s| {
                    let offset = s.rig.mmap_offset(s.buffers[0].handle)?;
                    let cpu = Mapping::new(&*s.rig, offset, SIZE as usize)?;
                    Ok(read_all(&cpu))
                },
                undo: |_, sum| expect_read(0, sum),
                ..STEP
            },
            Step {
                name: "a fault in system memory",
                prepare: |_| zap(),
                call: |s| Ok(read_all(&s.buffers[0].cpu)),
                undo: |_, sum| expect_read(0, sum),
                ..STEP
            },
            Step {
                name: "a fault in VRAM",
                prepare: |s| {
                    s.enter();
                    zap();
                },
                call: |s| Ok(read_all(&s.buffers[1].cpu)),
                undo: |_, sum| expect_read(1, sum),
                ..STEP
            },
            Step {
                name: "a fault in what is out",
                prepare: |s| {
                    s.leave();
                    zap();
                },
                call: |s| Ok(read_all(&s.buffers[1].cpu)),
                undo: |_, sum| expect_read(1, sum),
                ..STEP
            },
            Step {
                name: "a fault in what rests",
                prepare: |s| {
                    s.leave();
                    // Asked twice, idle objects have given their pages back.
                    press();
                    press();
                    zap();
                },
                call: |s| Ok(read_all(&s.buffers[2].cpu)),
                undo: |_, sum| expect_read(2, sum),
                ..STEP
            },
            Step {
                name: "a fault in the aperture's memory",
                prepare: |_| zap(),
                call: |s| Ok(read_all(&s.buffers[3].cpu)),
                undo: |_, sum| expect_read(3, sum),
                ..STEP
            },
        ],
    );
}

/// Objects that were made resident are in VRAM, and are evicted.
fn arrived(subject: &Subject, device: u32) {
    for handle in subject.movable() {
        assert_eq!(place(&subject.rig, handle), Place::Vram);
    }
    assert_eq!(subject.rig.evict_for(device, &subject.movable()), Ok(()));
}

/// MAKE_RESIDENT for a device, in VRAM before it was called.
fn resident_for(subject: &Subject, device: u32) {
    let state = subject.rig.device_state(device).expect("DEVICE_STATE");
    if state.resident == 0 {
        subject.enter();
        let bytes = subject.rig.make_resident_for(device, 0, &subject.movable());
        assert_eq!(bytes, Ok(0));
    }
}

fn residency() {
    run(
        Subject::new,
        &[
            Step {
                name: "MAKE_RESIDENT of what is out, with signals",
                prepare: Subject::leave,
                call: |s| {
                    let moves = s.rig.make_resident(&s.movable(), &s.signals());
                    moves.map(|()| 0)
                },
                undo: |s, _| {
                    s.signalled();
                    arrived(s, 0);
                },
                ..STEP
            },
            Step {
                name: "MAKE_RESIDENT of what is in VRAM, with signals",
                prepare: Subject::enter,
                call: |s| {
                    let moves = s.rig.make_resident(&s.movable(), &s.signals());
                    moves.map(|()| 0)
                },
                undo: |s, _| {
                    s.signalled();
                    arrived(s, 0);
                },
                ..STEP
            },
            Step {
                name: "MAKE_RESIDENT for a device with explicit residency",
                prepare: Subject::leave,
                call: |s| {
                    let (movable, signals) = (s.movable(), s.signals());
                    let bytes = s.rig.begin_resident_for(s.explicit, 0, &movable, &signals);
                    bytes.map_err(|(errno, _)| errno)
                },
                undo: |s, bytes| {
                    assert_eq!(bytes, 0);
                    s.signalled();
                    arrived(s, s.explicit);
                },
                ..STEP
            },
            Step {
                name: "EVICT",
                prepare: |s| resident_for(s, 0),
                call: |s| s.rig.evict(&s.movable()).map(|()| 0),
                ..STEP
            },
            Step {
                name: "EVICT for a device with explicit residency",
                prepare: |s| resident_for(s, s.explicit),
                call: |s| s.rig.evict_for(s.explicit, &s.movable()).map(|()| 0),
                ..STEP
            },
        ],
    );
}

/// Where room has to be made: those leave that can.
fn room_in_vram() {
    run(
        Subject::crowded,
        &[
            Step {
                name: "BO_CREATE where VRAM is full",
                prepare: Subject::enter,
                call: |s| create(s, 1 << 1),
                undo: close,
                ..STEP
            },
            Step {
                name: "MAKE_RESIDENT where VRAM is full",
                prepare: |s| {
                    s.enter();
                    // One is out, and another one in its place.
                    s.make(|| Ok(s.rig.bo(Place::Vram, SIZE)));
                },
                call: |s| s.rig.make_resident(&s.movable(), &s.signals()).map(|()| 0),
                undo: |s, _| {
                    s.signalled();
                    arrived(s, 0);
                },
                ..STEP
            },
        ],
    );
}

/// A device with explicit residency that has not failed, while all is out.
fn demanding(subject: &Subject) {
    let device = subject.made.get();
    if device != 0 && status(subject, device) != DRM_SKUA_CONTEXT_ACTIVE {
        assert_eq!(subject.rig.device_destroy(device), Ok(()));
        subject.made.set(0);
    }
    let flags = DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY;
    subject.make(|| subject.rig.device_create(flags));
    subject.leave();
}

fn status(subject: &Subject, device: u32) -> u32 {
    let state = subject.rig.device_state(device);
    state.expect("DEVICE_STATE").status
}

/// Or the device has failed, and says so; nothing else has.
fn residency_that_must_succeed() {
    const MUST: u32 =
        DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER | DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED;
    run(
        Subject::new,
        &[Step {
            name: "MAKE_RESIDENT that must succeed",
            errnos: &[Errno::ECANCELED],
            prepare: demanding,
            call: |s| {
                let (device, movable, signals) = (s.made.get(), s.movable(), s.signals());
                let bytes = s.rig.begin_resident_for(device, MUST, &movable, &signals);
                bytes.map_err(|(errno, _)| {
                    let has_failed = status(s, device) == DRM_SKUA_CONTEXT_OUT_OF_MEMORY;
                    assert_eq!(has_failed, errno == Errno::ECANCELED, "{errno}");
                    errno
                })
            },
            undo: |s, bytes| {
                assert_eq!(bytes, 0);
                s.signalled();
                arrived(s, s.made.get());
            },
        }],
    );
}

/// A single failure is no reason for a group to have more than it may.
fn less_than_a_group_has() {
    run(
        Subject::grouped,
        &[Step {
            name: "dmem.max",
            prepare: |s| {
                s.group().set("max", s.rig.region(Place::Vram).size);
                s.enter();
            },
            call: |s| s.group().try_set("max", 0).map(|()| 0),
            undo: |s, _| {
                assert_eq!(s.group().current(), 0);
                for handle in s.movable() {
                    assert_ne!(place(&s.rig, handle), Place::Vram);
                }
            },
            ..STEP
        }],
    );
}

fn locks() {
    run(
        Subject::new,
        &[
            Step {
                name: "BO_LOCK of what stays",
                call: |s| s.rig.lock(s.buffers[0].handle),
                undo: |s, _| assert_eq!(s.rig.unlock(s.buffers[0].handle), Ok(())),
                ..STEP
            },
            Step {
                name: "BO_LOCK of what has to move",
                prepare: Subject::enter,
                call: |s| s.rig.lock(s.hidden),
                undo: |s, _| {
                    assert_eq!(place(&s.rig, s.hidden), Place::System);
                    assert_eq!(s.rig.unlock(s.hidden), Ok(()));
                },
                ..STEP
            },
            Step {
                name: "BO_UNLOCK",
                prepare: |s| {
                    s.make(|| s.rig.lock(s.hidden).map(|_| s.hidden));
                },
                call: |s| s.gone(s.rig.unlock(s.made.get())),
                ..STEP
            },
        ],
    );
}

/// An object for VRAM alone that is locked while it is out.
fn locked_out(subject: &Subject) -> u32 {
    let vram = 1 << subject.rig.region(Place::Vram).id;
    let handle = subject.rig.bo_create(SIZE, 0, vram).expect("BO_CREATE");
    let locked = eventually(|| {
        evict_all();
        subject.rig.lock(handle).ok()
    });
    assert!(locked.is_some(), "it stays in VRAM");
    handle
}

/// MAKE_RESIDENT that waits for the unlock, and is to reach the next value.
fn begin_resident(subject: &Subject, handle: u32) -> Result<u64, Errno> {
    let next = [signal_value(subject.fence, subject.promised.get() + 1)];
    let device = subject.explicit;
    let bytes = subject.rig.begin_resident_for(device, 0, &[handle], &next);
    bytes.map_err(|(errno, _)| errno)
}

/// What was locked out is unlocked, and there; it goes.
fn there(subject: &Subject, handle: u32) {
    let next = subject.promised.get() + 1;
    subject.promised.set(next);
    assert!(subject.rig.fence_gets(subject.fence, next));
    assert_eq!(place(&subject.rig, handle), Place::Vram);
    let evicted = subject.rig.evict_for(subject.explicit, &[handle]);
    assert_eq!((evicted, subject.rig.close(handle)), (Ok(()), Ok(())));
}

fn residency_behind_locks() {
    run(
        Subject::new,
        &[
            Step {
                name: "MAKE_RESIDENT of what is locked out",
                prepare: |s| {
                    if s.within.get() == 0 {
                        s.within.set(locked_out(s));
                    }
                },
                call: |s| begin_resident(s, s.within.get()),
                undo: |s, bytes| {
                    assert_eq!(bytes, 0);
                    let handle = s.within.replace(0);
                    let next = s.promised.get() + 1;
                    assert!(!s.rig.fence_has(s.fence, next), "it is locked");
                    assert_eq!(s.rig.unlock(handle), Ok(()));
                    there(s, handle);
                },
                ..STEP
            },
            Step {
                name: "BO_UNLOCK of what residency waits for",
                prepare: |s| {
                    s.make(|| {
                        let handle = locked_out(s);
                        begin_resident(s, handle).map(|_| handle)
                    });
                },
                call: |s| s.gone(s.rig.unlock(s.made.get())),
                undo: |s, handle| there(s, u32::try_from(handle).expect("a handle")),
                ..STEP
            },
        ],
    );
}

/// Offered, if it is not.
fn offer(subject: &Subject) {
    subject.make(|| {
        let offered = [subject.offered];
        let done = subject.rig.offer(&offered, DRM_SKUA_OFFER_NORMAL);
        done.map(|()| subject.offered)
    });
}

/// BO_RECLAIM; whether it was thrown away.
fn reclaim(subject: &Subject) -> Result<u64, Errno> {
    let gone = subject.rig.reclaim(&[subject.offered])?;
    subject.made.set(0);
    Ok(gone[0].into())
}

fn offers() {
    run(
        Subject::new,
        &[
            Step {
                name: "BO_OFFER",
                prepare: Subject::enter,
                call: |s| {
                    let handles = [s.offered];
                    s.rig.offer(&handles, DRM_SKUA_OFFER_LOW).map(|()| 0)
                },
                undo: |s, _| assert_eq!(s.rig.reclaim(&[s.offered]), Ok(vec![false])),
                ..STEP
            },
            Step {
                name: "BO_RECLAIM of what is kept",
                prepare: |s| {
                    if s.made.get() == 0 {
                        s.enter();
                    }
                    offer(s);
                },
                call: reclaim,
                undo: |_, gone| assert_eq!(gone, 0),
                ..STEP
            },
            Step {
                name: "BO_RECLAIM of what was thrown away",
                prepare: |s| {
                    if s.made.get() == 0 {
                        s.enter();
                    }
                    offer(s);
                    s.leave();
                },
                call: reclaim,
                undo: |s, gone| {
                    assert_eq!(gone, 1);
                    s.rig.map(s.offered).expect("thrown away", |_| 0);
                },
                ..STEP
            },
        ],
    );
}

/// A device with an address space and a context, if there is none.
fn device(subject: &Subject) {
    subject.make(|| {
        let device = subject.rig.device_create(0)?;
        let vm = subject.rig.vm_create_for(device)?;
        subject.rig.context_create(vm, 0)?;
        Ok(device)
    });
}

fn devices() {
    run(
        Subject::new,
        &[
            Step {
                name: "DEVICE_CREATE",
                call: |s| s.rig.device_create(0).map(u64::from),
                undo: |s, device| assert_eq!(s.rig.device_destroy(device as u32), Ok(())),
                ..STEP
            },
            Step {
                name: "DEVICE_DESTROY",
                prepare: device,
                call: |s| s.gone(s.rig.device_destroy(s.made.get())),
                ..STEP
            },
            Step {
                name: "DEVICE_MARK_ERROR",
                prepare: device,
                call: |s| {
                    let marked = s.rig.device_mark_error(s.made.get());
                    s.gone(marked)
                },
                undo: |s, device| {
                    let device = u32::try_from(device).expect("a handle");
                    let state = s.rig.device_state(device).expect("DEVICE_STATE");
                    assert_eq!(state.status, DRM_SKUA_CONTEXT_LOST);
                    assert_eq!(s.rig.device_destroy(device), Ok(()));
                },
                ..STEP
            },
        ],
    );
}

/// Unmaps where steps bind.
fn unbind(subject: &Subject) {
    let unbind = [unmap(VA, 4 * SIZE)];
    assert_eq!(subject.rig.bind_and_wait(subject.rig.vm, &unbind), Ok(()));
}

/// An address space in which something is mapped.
fn space(subject: &Subject) {
    subject.make(|| {
        let vm = subject.rig.vm_create()?;
        let bind = [map(subject.buffers[0].handle, 0, VA, SIZE)];
        subject.rig.bind_and_wait(vm, &bind).map(|()| vm)
    });
}

fn address_spaces() {
    run(
        Subject::new,
        &[
            Step {
                name: "VM_CREATE",
                call: |s| s.rig.vm_create().map(u64::from),
                undo: |s, vm| assert_eq!(s.rig.vm_destroy(vm as u32), Ok(())),
                ..STEP
            },
            Step {
                name: "VM_DESTROY",
                prepare: space,
                call: |s| s.gone(s.rig.vm_destroy(s.made.get())),
                ..STEP
            },
            Step {
                name: "VM_BIND: two maps, with signals",
                call: |s| {
                    let ops = [
                        map(s.buffers[0].handle, 0, VA, SIZE),
                        map_readonly(s.buffers[1].handle, 0, VA + SIZE, SIZE),
                    ];
                    s.rig.bind(s.rig.vm, &ops, &s.signals()).map(|()| 0)
                },
                undo: |s, _| {
                    s.signalled();
                    unbind(s);
                },
                ..STEP
            },
            Step {
                name: "VM_BIND: the value of a fence",
                prepare: |s| s.make(|| s.rig.fence_create_for(0, 0, 0)),
                call: |s| {
                    let ops = [map_fence(s.made.get(), VA)];
                    s.rig.bind(s.rig.vm, &ops, &s.signals()).map(|()| 0)
                },
                undo: |s, _| {
                    s.signalled();
                    assert_eq!(s.rig.fence_destroy(s.made.replace(0)), Ok(()));
                    unbind(s);
                },
                ..STEP
            },
            Step {
                name: "VM_BIND: a map is split",
                prepare: |s| {
                    s.make(|| {
                        let ops = [map(s.buffers[0].handle, 0, VA, SIZE)];
                        s.rig.bind_and_wait(s.rig.vm, &ops).map(|()| 1)
                    });
                },
                call: |s| {
                    let ops = [
                        unmap(VA + PAGE, PAGE),
                        map(s.buffers[3].handle, 0, VA + 4 * PAGE, PAGE),
                    ];
                    s.gone(s.rig.bind(s.rig.vm, &ops, &s.signals()))
                },
                undo: |s, _| {
                    s.signalled();
                    unbind(s);
                },
                ..STEP
            },
            Step {
                name: "VM_BIND: all is unmapped",
                prepare: |s| {
                    s.make(|| {
                        let ops = [map(s.buffers[0].handle, 0, VA, SIZE)];
                        s.rig.bind_and_wait(s.rig.vm, &ops).map(|()| 1)
                    });
                },
                call: |s| {
                    let ops = [unmap(VA, SIZE)];
                    s.gone(s.rig.bind(s.rig.vm, &ops, &s.signals()))
                },
                undo: |s, _| s.signalled(),
                ..STEP
            },
            Step {
                name: "VM_BIND of what is out",
                prepare: Subject::leave,
                call: |s| {
                    let ops = [map(s.buffers[1].handle, 0, VA, SIZE)];
                    s.rig.bind(s.rig.vm, &ops, &s.signals()).map(|()| 0)
                },
                undo: |s, _| {
                    s.signalled();
                    unbind(s);
                },
                ..STEP
            },
            Step {
                name: "VM_BIND that waits",
                prepare: Subject::block,
                call: |s| {
                    let ops = [map(s.buffers[0].handle, 0, VA, SIZE)];
                    let mut syncs = vec![wait(s.blocked.get())];
                    syncs.extend(s.signals());
                    s.rig.bind(s.rig.vm, &ops, &syncs).map(|()| 0)
                },
                undo: |s, _| {
                    s.unblock();
                    s.signalled();
                    unbind(s);
                },
                ..STEP
            },
        ],
    );
}

/// A context with work that is held.
fn holder(subject: &Subject) -> Result<u32, Errno> {
    let context = subject.rig.new_context(Engine::Compute);
    let never = [wait_value(subject.fence, u64::MAX - 1)];
    let commands = subject.commands(9);
    subject.rig.submit(context, &commands, &never)?;
    Ok(context)
}

/// Such a context is what is destroyed.
fn holding(subject: &Subject) {
    subject.make(|| holder(subject));
}

fn contexts() {
    const SYSTEM: u32 = 1 << 0;
    const VRAM: u32 = 1 << 1;
    run(
        Subject::new,
        &[
            Step {
                name: "CONTEXT_CREATE",
                call: |s| s.rig.context_create(s.rig.vm, 0).map(u64::from),
                undo: |s, context| assert_eq!(s.rig.context_destroy(context as u32), Ok(())),
                ..STEP
            },
            Step {
                name: "CONTEXT_SET_PRIORITY",
                call: |s| s.rig.prioritise(s.rig.copy, 3).map(|()| 0),
                undo: |s, _| assert_eq!(s.rig.prioritise(s.rig.copy, 0), Ok(())),
                ..STEP
            },
            Step {
                name: "SET_PRIORITY_CLASS",
                call: |s| s.rig.set_class(DRM_SKUA_PRIORITY_CLASS_HIGH).map(|()| 0),
                undo: |s, _| assert_eq!(s.rig.set_class(DRM_SKUA_PRIORITY_CLASS_NORMAL), Ok(())),
                ..STEP
            },
            Step {
                name: "CONTEXT_ALLOC",
                call: |s| {
                    let made = s.rig.context_alloc(s.rig.vm, 0, SIZE, VRAM | SYSTEM)?;
                    Ok(made.0.into())
                },
                undo: |s, handle| assert_eq!(s.rig.context_free(handle as u32), Ok(())),
                ..STEP
            },
            Step {
                name: "CONTEXT_FREE",
                prepare: |s| {
                    s.make(|| {
                        let places = VRAM | SYSTEM;
                        let made = s.rig.context_alloc(s.rig.vm, s.rig.copy, SIZE, places)?;
                        Ok(made.0)
                    });
                },
                call: |s| s.gone(s.rig.context_free(s.made.get())),
                ..STEP
            },
            Step {
                name: "CONTEXT_DESTROY",
                prepare: |s| s.make(|| Ok(s.rig.new_context(Engine::Copy))),
                call: |s| s.gone(s.rig.context_destroy(s.made.get())),
                ..STEP
            },
            Step {
                name: "CONTEXT_DESTROY with work that is held",
                prepare: holding,
                call: |s| s.gone(s.rig.context_destroy(s.made.get())),
                ..STEP
            },
        ],
    );
}

/// Work that signals was done.
fn worked(subject: &Subject) {
    subject.signalled();
    assert_eq!(subject.scratch.cpu.read(0), 7);
    subject.scratch.cpu.write(0, 0);
}

fn submissions() {
    run(
        Subject::new,
        &[
            Step {
                name: "SUBMIT without buffers",
                call: |s| s.rig.submit(s.rig.copy, &[], &s.signals()).map(|()| 0),
                undo: |s, _| s.signalled(),
                ..STEP
            },
            Step {
                name: "SUBMIT of buffers",
                call: |s| {
                    let buffers = [s.commands(6), s.commands(7)].concat();
                    s.rig
                        .submit(s.rig.compute, &buffers, &s.signals())
                        .map(|()| 0)
                },
                undo: |s, _| worked(s),
                ..STEP
            },
            Step {
                name: "SUBMIT of what needs what is out",
                prepare: Subject::leave,
                call: |s| {
                    let submitted = s.rig.submit(s.rig.copy, &s.commands(7), &s.signals());
                    submitted.map(|()| 0)
                },
                undo: |s, _| {
                    worked(s);
                    assert_eq!(place(&s.rig, s.buffers[1].handle), Place::Vram);
                },
                ..STEP
            },
            Step {
                name: "SUBMIT of what needs what rests",
                prepare: |s| {
                    s.leave();
                    press();
                    press();
                },
                call: |s| {
                    let submitted = s.rig.submit(s.rig.copy, &s.commands(7), &s.signals());
                    submitted.map(|()| 0)
                },
                undo: |s, _| worked(s),
                ..STEP
            },
            Step {
                name: "SUBMIT, the first of an address space",
                prepare: |s| {
                    // A new one each time: what page tables it got it keeps for the next.
                    let old = s.within.replace(0);
                    if old != 0 {
                        assert_eq!(s.rig.context_destroy(s.made.replace(0)), Ok(()));
                        assert_eq!(s.rig.vm_destroy(old), Ok(()));
                    }
                    s.make(|| {
                        let vm = s.rig.vm_create()?;
                        s.within.set(vm);
                        s.rig.context_create(vm, s.rig.engine(Engine::Copy.kind()))
                    });
                },
                call: |s| {
                    let nowhere = drm_skua_buffer {
                        va: VA,
                        size: 8,
                        flags: 0,
                    };
                    s.gone(s.rig.submit(s.made.get(), &[nowhere], &[signal(s.done)]))
                },
                undo: |s, context| {
                    assert_eq!(s.outcome(), Err(Errno::EFAULT));
                    assert_eq!(s.rig.context_destroy(context as u32), Ok(()));
                    assert_eq!(s.rig.vm_destroy(s.within.replace(0)), Ok(()));
                },
                ..STEP
            },
            Step {
                name: "SUBMIT that waits for a syncobj and a point",
                prepare: |s| {
                    s.block();
                    if s.promised.get() == 0 {
                        let submitted = s.rig.submit(s.rig.copy, &[], &s.signals());
                        assert_eq!(submitted, Ok(()));
                        s.signalled();
                    }
                },
                call: |s| {
                    let mut syncs =
                        vec![wait(s.blocked.get()), wait_point(s.line, s.promised.get())];
                    syncs.extend(s.signals());
                    s.rig.submit(s.rig.copy, &s.commands(7), &syncs).map(|()| 0)
                },
                undo: |s, _| {
                    s.unblock();
                    worked(s);
                },
                ..STEP
            },
            Step {
                name: "SUBMIT that waits for a value that is there",
                call: |s| {
                    let mut syncs = vec![wait_value(s.fence, s.promised.get())];
                    syncs.extend(s.signals());
                    s.rig.submit(s.rig.copy, &s.commands(7), &syncs).map(|()| 0)
                },
                undo: |s, _| worked(s),
                ..STEP
            },
            Step {
                name: "SUBMIT that is held",
                call: |s| {
                    let next = s.promised.get() + 1;
                    let syncs = [
                        wait_value(s.fence, next),
                        signal(s.done),
                        signal_point(s.line, next),
                    ];
                    s.rig.submit(s.rig.copy, &s.commands(7), &syncs).map(|()| 0)
                },
                undo: |s, _| {
                    let next = s.promised.get() + 1;
                    assert_eq!(s.rig.fence_signal(s.fence, next), Ok(()));
                    worked(s);
                    // The worker counts it out behind that.
                    becomes("nothing is held", || skua_selftests::witness::held() == 0);
                },
                ..STEP
            },
            Step {
                name: "SUBMIT behind what is held",
                prepare: holding,
                call: |s| {
                    let submitted = s
                        .rig
                        .submit(s.made.get(), &s.commands(9), &[signal(s.done)]);
                    s.gone(submitted)
                },
                undo: |s, context| {
                    assert_eq!(s.rig.context_destroy(context as u32), Ok(()));
                    assert_eq!(s.outcome(), Err(Errno::ECANCELED));
                    assert_eq!(s.scratch.cpu.read(0), 0);
                },
                ..STEP
            },
        ],
    );
}

fn monitored_fences() {
    run(
        Subject::new,
        &[
            Step {
                name: "FENCE_CREATE",
                call: |s| s.rig.fence_create(4).map(u64::from),
                undo: |s, fence| {
                    let fence = u32::try_from(fence).expect("a handle");
                    assert!(s.rig.fence_has(fence, 4) && !s.rig.fence_has(fence, 5));
                    assert_eq!(s.rig.fence_destroy(fence), Ok(()));
                },
                ..STEP
            },
            Step {
                name: "FENCE_DESTROY",
                prepare: |s| s.make(|| s.rig.fence_create(0)),
                call: |s| s.gone(s.rig.fence_destroy(s.made.get())),
                ..STEP
            },
            Step {
                name: "FENCE_EXPORT",
                call: |s| {
                    let file = s.rig.fence_export(s.fence)?;
                    *s.file.borrow_mut() = Some(file);
                    Ok(0)
                },
                undo: |s, _| assert!(s.file.take().is_some()),
                ..STEP
            },
            Step {
                name: "FENCE_IMPORT",
                prepare: |s| {
                    let is_there = s.file.borrow().is_some();
                    if !is_there {
                        *s.file.borrow_mut() = s.rig.fence_export(s.fence).ok();
                    }
                },
                call: |s| {
                    let file = s.file.borrow();
                    let file = file.as_ref().expect("a descriptor");
                    s.other.fence_import(file).map(u64::from)
                },
                undo: |s, fence| assert_eq!(s.other.fence_destroy(fence as u32), Ok(())),
                ..STEP
            },
            Step {
                name: "FENCE_SIGNAL",
                prepare: |s| s.make(|| s.rig.fence_create(0)),
                call: |s| {
                    let next = s.promised.get() + 1;
                    let values = [(s.fence, next), (s.made.get(), 1)];
                    s.gone(s.rig.fence_signal_all(&values))
                },
                undo: |s, other| {
                    let next = s.promised.get() + 1;
                    s.promised.set(next);
                    assert!(s.rig.fence_has(s.fence, next));
                    assert!(s.rig.fence_has(other as u32, 1));
                    assert_eq!(s.rig.fence_destroy(other as u32), Ok(()));
                },
                ..STEP
            },
            Step {
                name: "FENCE_WAIT for what is there",
                call: |s| {
                    let values = [(s.fence, s.promised.get())];
                    s.rig.fence_wait(&values, 0, Duration::ZERO).map(u64::from)
                },
                ..STEP
            },
            Step {
                name: "FENCE_WAIT for what does not come",
                call: |s| {
                    let values = [(s.fence, u64::MAX - 1), (s.fence, u64::MAX - 2)];
                    match s.rig.fence_wait(&values, 0, Duration::from_millis(1)) {
                        Err(Errno::ETIME) => Ok(0),
                        Err(errno) => Err(errno),
                        Ok(_) => panic!("it came"),
                    }
                },
                ..STEP
            },
            Step {
                name: "FENCE_EVENTFD",
                prepare: |s| s.make(|| s.rig.fence_create(0)),
                call: |s| {
                    let values = [(s.made.get(), 1), (s.fence, s.promised.get())];
                    s.gone(s.rig.fence_eventfd_for(&values, 0, &s.event))
                },
                undo: |s, fence| {
                    let fence = u32::try_from(fence).expect("a handle");
                    assert_eq!(s.rig.fence_signal(fence, 1), Ok(()));
                    // Those of calls that failed would have come, too.
                    assert_eq!(s.event.read(), Ok(1));
                    assert_eq!(s.rig.fence_destroy(fence), Ok(()));
                },
                ..STEP
            },
        ],
    );
}

/// PRIME_HANDLE_TO_FD.
fn export(subject: &Subject, handle: u32) -> Result<u64, Errno> {
    let file = subject.rig.export(handle).inspect_err(|errno| {
        // The core has installed a descriptor whose number it could not tell.
        for entry in fs::read_dir("/proc/self/fd").expect("procfs").flatten() {
            let is_lost = fs::read_link(entry.path())
                .is_ok_and(|to| to.to_string_lossy().starts_with("/dmabuf:"));
            let name = entry.file_name().into_string().expect("a number");
            if *errno == Errno::EFAULT && is_lost {
                drop(own(name.parse().expect("a number")));
            }
        }
    })?;
    subject.file.replace(Some(file));
    Ok(0)
}

/// Has a dma-buf of an object.
fn shared(subject: &Subject, object: usize) {
    let exported = export(subject, subject.buffers[object].handle);
    assert_eq!(exported, Ok(0));
}

/// PRIME_FD_TO_HANDLE of it, by another client.
fn import(subject: &Subject) -> Result<u64, Errno> {
    let file = subject.file.borrow();
    let handle = subject.other.import(file.as_ref().expect("a dma-buf"))?;
    Ok(handle.into())
}

/// PRIME_FD_TO_HANDLE of it, by vgem.
fn import_elsewhere(subject: &Subject) -> Result<u64, Errno> {
    let (file, vgem) = (subject.file.borrow(), subject.vgem.borrow());
    let (file, vgem) = (file.as_ref(), vgem.as_ref());
    let handle = import_by_vgem(vgem.expect("vgem"), file.expect("a dma-buf"))?;
    Ok(handle.into())
}

/// What was imported goes.
fn close_import(subject: &Subject, handle: u64) {
    let handle = u32::try_from(handle).expect("a handle");
    assert_eq!(subject.other.close(handle), Ok(()));
}

fn sharing() {
    run(
        Subject::new,
        &[
            Step {
                name: "PRIME_HANDLE_TO_FD",
                call: |s| export(s, s.buffers[0].handle),
                undo: |s, _| drop(s.file.take()),
                ..STEP
            },
            Step {
                name: "PRIME_HANDLE_TO_FD of what may move",
                call: |s| export(s, s.buffers[2].handle),
                undo: |s, _| drop(s.file.take()),
                ..STEP
            },
            Step {
                name: "PRIME_FD_TO_HANDLE",
                prepare: |s| shared(s, 0),
                call: import,
                undo: close_import,
                ..STEP
            },
            Step {
                name: "PRIME_FD_TO_HANDLE of another driver's memory",
                prepare: |s| drop(s.file.replace(Some(heap(SIZE)))),
                call: import,
                undo: close_import,
                ..STEP
            },
            Step {
                name: "PRIME_FD_TO_HANDLE by another driver of what is in VRAM",
                prepare: |s| {
                    shared(s, 2);
                    s.vgem.borrow_mut().get_or_insert_with(vgem);
                    // What others may have does not wait for its own way out to be over.
                    let comes = || {
                        s.enter();
                        let place = place(&s.rig, s.buffers[2].handle);
                        (place == Place::Vram).then_some(())
                    };
                    assert!(eventually(comes).is_some(), "it stays in system memory");
                },
                call: import_elsewhere,
                undo: |s, _| {
                    assert_eq!(place(&s.rig, s.buffers[2].handle), Place::System);
                    s.vgem.take();
                },
                ..STEP
            },
        ],
    );
}
