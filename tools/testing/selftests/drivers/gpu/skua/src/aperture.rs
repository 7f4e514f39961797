// SPDX-License-Identifier: MIT

//! The CPU host aperture: what must hold of any, for the programs that test one kind each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use skua_guest::host::{expect_error, request, Lies};
use skua_spec::command::Command;
use skua_spec::pci::{BAR_HOST_APERTURE, BAR_VRAM};
use skua_uapi::*;

use crate::client::signal;
use crate::failures::Failures;
use crate::function::{Function, Unbound};
use crate::mapping::Mapping;
use crate::moving::{evict_all, evict_some, find, movable_in_vram, place, resident};
use crate::power::Sleep;
use crate::raw::in_child;
use crate::rig::{self, copy, fill, Buffer};
use crate::suite::eventually;
use crate::witness::quiet;
use crate::{skip, suite, Client, Engine, Errno, Place, Rig};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

/// A device of which the CPU sees nothing, or nothing that is left.
struct Hidden {
    rig: Rig,
    /// Bytes of the aperture, and of a page of it.
    size: u64,
    page: u64,
    /// All that the CPU sees of VRAM.
    visible: Option<Buffer>,
}

impl Hidden {
    #[track_caller]
    fn new() -> Self {
        quiet();
        let rig = Rig::new();
        let vram = rig.region(Place::Vram);
        let visible = vram.cpu_visible_size;
        Self {
            size: vram.aperture_size,
            page: vram.aperture_page_size.into(),
            visible: (visible > 0).then(|| rig.buffer(Place::Vram, visible)),
            rig,
        }
    }

    /// A buffer in VRAM that the CPU does not see.
    #[track_caller]
    fn buffer(&self, size: u64) -> Buffer {
        in_vram(&self.rig, size)
    }
}

/// A buffer that prefers VRAM, and is there.
#[track_caller]
fn in_vram(rig: &Rig, size: u64) -> Buffer {
    rig.bound(movable_in_vram(rig, size), size)
}

/// Pages of the aperture, how many of them show something, and how many are for what is locked.
#[track_caller]
fn pages() -> [u64; 3] {
    let text = Function::first().debugfs("regions").expect("debugfs");
    let numbers = text.lines().find_map(|line| {
        let (total, rest) = line
            .strip_prefix("host aperture: pages ")?
            .split_once(" used ")?;
        let (used, locked) = rest.split_once(" for locks ")?;
        Some([total, used, locked].map(|number| number.parse().expect("a number")))
    });
    numbers.unwrap_or_else(|| panic!("no aperture: {text}"))
}

/// Pages of the aperture, and how many of them show something.
#[track_caller]
fn usage() -> (u64, u64) {
    let [total, used, _] = pages();
    (total, used)
}

/// Accesses of pages of the aperture that showed nothing.
fn strays() -> u64 {
    let [strays] = Function::first().counters(["aperture_unmapped"]);
    strays
}

/// Where words are written: where accesses are trapped each takes its time.
fn places(len: usize) -> impl Iterator<Item = usize> {
    (0..len)
        .step_by(PAGE)
        .flat_map(|page| [0, PAGE / 2, PAGE - 8].map(|offset| page + offset))
}

fn value(seed: u64, offset: usize) -> u64 {
    (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

fn stamp(map: &Mapping, seed: u64) {
    for offset in places(map.len()) {
        map.write(offset, value(seed, offset));
    }
}

#[track_caller]
fn expect(what: &str, map: &Mapping, seed: u64) {
    for offset in places(map.len()) {
        let (seen, expected) = (map.read(offset), value(seed, offset));
        assert_eq!(seen, expected, "{what}: offset {offset:#x} ({seen:#x})");
    }
}

/// What the GPU finds in a buffer.
#[track_caller]
fn expect_gpu(rig: &Rig, what: &str, buffer: &Buffer, seed: u64) {
    let out = rig.buffer(Place::System, buffer.size);
    assert_eq!(
        rig.run(Engine::Copy, &[copy(buffer.va, out.va, buffer.size)]),
        Ok(()),
        "{what}"
    );
    expect(what, &out.cpu, seed);
}

/// Has all pages of the aperture show something else.
fn displace(by: &Buffer, step: u64) {
    for offset in (0..by.cpu.len()).step_by(usize::try_from(step).expect("a size")) {
        by.cpu.read32(offset);
    }
}

/// What clients are told is what the device has.
pub fn the_aperture_is_its_bar() {
    let vram = Client::new().region(Place::Vram);
    let function = Function::first();
    assert_eq!(function.bar_size(BAR_HOST_APERTURE), vram.aperture_size);
    assert_eq!(function.bar_size(BAR_VRAM), vram.cpu_visible_size);
    function.expect_write_combined(BAR_HOST_APERTURE);
    assert!(vram.cpu_visible_size < vram.size, "{vram:?}");
    assert!(matches!(vram.aperture_page_size, 0x1000 | 0x1_0000));
    let pages = vram.aperture_size / u64::from(vram.aperture_page_size);
    assert_eq!(usage().0, pages);
    assert_eq!(Client::new().region(Place::System).aperture_size, 0);
}

/// A device that says such things of an aperture that it has is not driven; an honest one is.
pub fn contradictions_are_refused(contradictions: &[&str]) {
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    // The driver complains of each.
    expect_error("").expect("the kernel's log");
    let unbound = Unbound::first();
    for lies in contradictions {
        let _told = Lies::tell(lies).expect("gpu-lie");
        let bound = Function::first().bind();
        if bound.is_ok() {
            Function::first().unbind().expect("unbind");
        }
        assert!(bound.is_err(), "{lies}: it is bound");
    }
    drop(unbound);
    let hidden = Hidden::new();
    let buffer = hidden.buffer(hidden.size);
    stamp(&buffer.cpu, 1);
    expect("bound again", &buffer.cpu, 1);
}

/// What is locked beyond what the CPU sees has pages of the aperture; what exceeds them moves away.
pub fn no_more_is_locked_than_there_are_pages() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    // What the CPU sees stays full, and takes no page when it is locked.
    if let Some(visible) = &hidden.visible {
        resident(rig, &[visible.handle]);
        assert!(rig.lock(visible.handle).is_ok());
        assert_eq!(place(rig, visible.handle), Place::Vram);
    }
    let buffers: Vec<_> = (0..6).map(|_| hidden.buffer(hidden.size / 4)).collect();
    let others = hidden.buffer(3 * hidden.size);
    for (seed, buffer) in (0..).zip(&buffers) {
        stamp(&buffer.cpu, seed);
    }
    let lock = |n: usize| assert!(rig.lock(buffers[n].handle).is_ok(), "lock {n}");
    let unlock = |n: usize| assert_eq!(rig.unlock(buffers[n].handle), Ok(()), "unlock {n}");
    let is_in_vram = |n: usize| place(rig, buffers[n].handle) == Place::Vram;
    let maps = || Function::first().counters(["driver_aperture_maps"]);
    // What was mapped before keeps its pages from the lock on, and no longer than that.
    for locked in [true, false] {
        expect("mapped", &buffers[0].cpu, 0);
        if locked {
            lock(0);
        }
        displace(&others, hidden.page);
        let before = maps();
        expect("mapped once more", &buffers[0].cpu, 0);
        assert_eq!(maps() == before, locked, "locked: {locked}");
        if locked {
            unlock(0);
        }
    }
    for round in 0..3 {
        for n in 0..4 {
            lock(n);
            assert!(is_in_vram(n), "round {round}: {n} has pages");
        }
        // Once for each object.
        lock(0);
        assert!(is_in_vram(0));
        // All pages are for these.
        lock(4);
        assert!(!is_in_vram(4), "round {round}");
        expect("locked elsewhere", &buffers[4].cpu, 4);
        resident(rig, &[buffers[4].handle]);
        assert!(!is_in_vram(4), "round {round}");
        // Of what is unlocked the pages are free, and are taken first: the others keep theirs.
        unlock(3);
        for (n, buffer) in (0..).zip(&buffers[..3]) {
            expect("locked", &buffer.cpu, n);
        }
        displace(&others, hidden.page);
        let before = maps();
        for (n, buffer) in (0..).zip(&buffers[..3]) {
            expect("locked", &buffer.cpu, n);
        }
        assert_eq!(maps(), before, "pages of what is locked were taken");
        resident(rig, &[buffers[4].handle]);
        assert!(is_in_vram(4), "there are pages again");
        lock(3);
        assert!(!is_in_vram(3), "round {round}");
        for n in [3, 2, 1, 0] {
            unlock(n);
        }
        unlock(0);
        unlock(4);
        let handles: Vec<_> = buffers.iter().map(|buffer| buffer.handle).collect();
        resident(rig, &handles);
        assert!((0..6).all(is_in_vram), "round {round}");
        assert!(rig.evict(&handles).is_ok());
    }
    // Where it moves is said by its eviction set.
    (0..4).for_each(lock);
    let all = rig.set(&[Place::Vram, Place::Aperture, Place::System]);
    for to in [Place::System, Place::Aperture] {
        let flags = DRM_SKUA_BO_CPU_ACCESS;
        let handle = rig.bo_create_preferring(hidden.size / 4, flags, all, &[], &[to]);
        let handle = handle.expect("BO_CREATE");
        let cpu = rig.map(handle);
        stamp(&cpu, 9);
        assert_eq!(place(rig, handle), Place::Vram);
        assert!(rig.lock(handle).is_ok());
        assert_eq!(place(rig, handle), to);
        expect("locked where its set says", &cpu, 9);
        assert_eq!(rig.close(handle), Ok(()));
    }
    (0..4).for_each(unlock);
    // A lock that ends with its handle gives its pages back, too.
    for buffer in &buffers[..4] {
        assert!(rig.lock(buffer.handle).is_ok());
        assert_eq!(rig.close(buffer.handle), Ok(()));
    }
    let large = hidden.buffer(hidden.size);
    assert!(rig.lock(large.handle).is_ok());
    assert_eq!(place(rig, large.handle), Place::Vram);
    // What could never have them all is locked in system memory.
    assert!(rig.lock(others.handle).is_ok());
    assert_eq!(place(rig, others.handle), Place::System);
    assert_eq!(rig.unlock(large.handle), Ok(()));
    resident(rig, &[others.handle]);
    assert_eq!(place(rig, others.handle), Place::System);
    assert_eq!(rig.unlock(others.handle), Ok(()));
    // It may move under the lock, and comes back to pages that are kept for it.
    for n in [4, 5] {
        lock(n);
        assert!(is_in_vram(n));
    }
    let moved = Function::first().debugfs("evict").expect("debugfs");
    assert_ne!(moved.trim(), "0");
    for n in [5, 4] {
        assert!(!is_in_vram(n));
        resident(rig, &[buffers[n].handle]);
        assert!(is_in_vram(n));
        expect("it has moved", &buffers[n].cpu, n as u64);
        unlock(n);
    }
    assert_eq!(strays(), 0);
}

/// Of objects that two clients share, more than there are pages for, which eight threads lock and
/// have come and go.
pub fn locks_of_many_threads_have_no_more_than_there_is() {
    let hidden = Hidden::new();
    let own: &Client = &hidden.rig;
    let other = Client::new();
    let buffers = [(); 6].map(|()| {
        let handle = movable_in_vram(own, hidden.size / 4);
        let shared = own.export(handle).expect("PRIME_HANDLE_TO_FD");
        (handle, other.import(&shared).expect("PRIME_FD_TO_HANDLE"))
    });
    let is_over = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                let [total, _, locked] = pages();
                assert!(locked <= total, "{locked} of {total} pages are locked");
                most = most.max(locked);
            }
            most
        });
        let threads = [(); 8].map({
            let mut number = 0;
            let (buffers, other) = (&buffers, &other);
            move |()| {
                number += 1;
                scope.spawn(move || {
                    for round in 0..suite::rounds(200) as usize {
                        let (handle, theirs) = buffers[(number + round * number) % 6];
                        let (client, handle) = match number % 2 {
                            0 => (own, handle),
                            _ => (other, theirs),
                        };
                        assert!(client.lock(handle).is_ok(), "round {round}");
                        match (number + round) % 3 {
                            0 => evict_some(),
                            1 => {
                                resident(client, &[handle]);
                                assert_eq!(client.evict(&[handle]), Ok(()));
                            }
                            _ => (),
                        }
                        assert_eq!(client.unlock(handle), Ok(()), "round {round}");
                    }
                })
            }
        });
        let ended = threads.map(thread::ScopedJoinHandle::join);
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
        watch.join().expect("a thread")
    });
    println!("# {most} pages were for locks at a time");
    let [total, _, locked] = pages();
    assert_eq!(locked, 0, "nothing is locked");
    // It is what it says to be.
    let handles = buffers.map(|(handle, _)| handle);
    resident(own, &handles);
    for (n, handle) in (1..).zip(handles) {
        assert!(own.lock(handle).is_ok(), "{n}");
        assert_eq!(pages()[2], total.min(n * hidden.size / 4 / hidden.page));
    }
    for handle in handles {
        assert_eq!(own.unlock(handle), Ok(()));
    }
    assert_eq!(pages()[2], 0);
    assert_eq!(own.evict(&handles), Ok(()));
}

/// What the CPU sees by itself takes no page; what may be nowhere else is there, or refused. What
/// the aperture segment may hold is not.
pub fn vram_alone_needs_no_aperture() {
    quiet();
    let rig = Rig::new();
    let visible = rig.region(Place::Vram).cpu_visible_size;
    if visible == 0 {
        assert_eq!(rig.try_bo(Place::Vram, 4096), Err(Errno::EOPNOTSUPP));
        // The aperture segment is a place where the CPU reaches it.
        let placements = rig.set(&[Place::Vram, Place::Aperture]);
        let handle = rig.bo_create(MIB, DRM_SKUA_BO_CPU_ACCESS, placements);
        let buffer = rig.bound(handle.expect("BO_CREATE"), MIB);
        assert_eq!(place(&rig, buffer.handle), Place::Aperture);
        assert!(rig.lock(buffer.handle).is_ok());
        stamp(&buffer.cpu, 1);
        expect_gpu(&rig, "locked in the aperture segment", &buffer, 1);
        assert_eq!(usage().1, 0, "pages of the host aperture");
        assert_eq!(rig.unlock(buffer.handle), Ok(()));
        return;
    }
    let prefers = in_vram(&rig, MIB);
    let only = rig.buffer(Place::Vram, visible - MIB);
    let (_, before) = usage();
    stamp(&prefers.cpu, 1);
    stamp(&only.cpu, 2);
    assert_eq!(usage().1, before, "both are where the CPU sees them");
    // One makes room for the other, which has no other place.
    let last = rig.buffer(Place::Vram, MIB);
    stamp(&last.cpu, 3);
    assert_eq!(place(&rig, prefers.handle), Place::System);
    assert_eq!(usage().1, before);
    expect("it has moved", &prefers.cpu, 1);
    // Nor is anything beyond what the CPU sees when another one of that kind comes.
    let another = rig.buffer(Place::Vram, 4096);
    stamp(&another.cpu, 4);
    assert_eq!(place(&rig, another.handle), Place::Vram);
    let left = [&only, &last].map(|buffer| place(&rig, buffer.handle));
    assert!(left.contains(&Place::System), "{left:?}");
    assert_eq!(usage().1, before);
    expect("it is where the CPU sees it", &another.cpu, 4);
    expect("wherever it is", &only.cpu, 2);
    expect("wherever it is", &last.cpu, 3);
}

/// The CPU and the GPU see the same bytes, whichever page of the aperture shows them.
pub fn any_page_of_vram_through_any_page() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    // Of many small ones, too: their pages are not neighbours.
    let large = hidden.buffer(4 * hidden.size);
    let small: Vec<_> = (0..24).map(|_| hidden.buffer(12 << 10)).collect();
    expect_zero(&large.cpu);
    // In an order that has nothing to do with that of the pages.
    let pages = large.cpu.len() / PAGE;
    for n in 0..pages {
        let page = (n * 37) % pages * PAGE;
        for offset in places(PAGE) {
            large.cpu.write(page + offset, value(7, page + offset));
        }
        if let Some(buffer) = small.get(n) {
            stamp(&buffer.cpu, n as u64);
        }
    }
    expect_gpu(rig, "the GPU sees what the CPU wrote", &large, 7);
    for (n, buffer) in (0..).zip(&small) {
        expect_gpu(rig, &format!("small one {n}"), buffer, n);
        expect("small", &buffer.cpu, n);
    }
    expect("the CPU itself", &large.cpu, 7);
    let (total, used) = usage();
    assert_eq!(used, total, "all pages are in use");
    // And while a page is mapped the CPU sees what the GPU writes.
    let last = large.size - 4096;
    let at = usize::try_from(last).expect("an offset");
    large.cpu.read(at);
    let word = fill(9, large.va + last, 4096);
    assert_eq!(rig.run(Engine::Compute, &[word]), Ok(()));
    assert_eq!(large.cpu.read(at), 9 << 32 | 9);
    assert_eq!(place(rig, large.handle), Place::Vram, "nothing was moved");
    assert_eq!(strays(), 0);
}

#[track_caller]
fn expect_zero(map: &Mapping) {
    for offset in places(map.len()) {
        assert_eq!(map.read(offset), 0, "new memory at {offset:#x}");
    }
}

/// Whoever loses a page of the aperture faults, and does not see or change what it shows then.
pub fn mappings_go_before_a_page_is_anothers() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    let steady = hidden.buffer(8 * 4096);
    let other = hidden.buffer(3 * hidden.size);
    stamp(&steady.cpu, 11);
    stamp(&other.cpu, 12);
    let [before] = Function::first().counters(["driver_aperture_reclaims"]);
    // Its mapping by a second way, and one of a child's.
    let file = rig.export(steady.handle).expect("PRIME_HANDLE_TO_FD");
    let by_file = Mapping::new(&file, 0, steady.cpu.len()).expect("mmap of a dma-buf");
    let often = crate::suite::points(4000);
    let rounds = often / (other.cpu.len() as u64 / hidden.page) + 1;
    let stop = AtomicBool::new(false);
    let forked = in_child(|| {
        for _ in 0..5 {
            expect("in a child", &steady.cpu, 11);
            displace(&other, hidden.page);
        }
        true
    });
    assert!(forked);
    thread::scope(|scope| {
        for map in [&steady.cpu, &by_file] {
            let stop = &stop;
            scope.spawn(move || {
                let mut n: u64 = 0;
                while !stop.load(Ordering::Relaxed) {
                    let page = (n as usize % 8) * PAGE;
                    // The same as it was: others write it, too.
                    map.write(page, value(11, page));
                    let seen = map.read(page);
                    if seen != value(11, page) {
                        println!("hammered {n} times: offset {page:#x} is {seen:#x}");
                        std::process::exit(1);
                    }
                    n += 1;
                }
            });
        }
        for _ in 0..rounds {
            displace(&other, hidden.page);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [after] = Function::first().counters(["driver_aperture_reclaims"]);
    assert!(after - before > often, "{} times", after - before);
    expect("hammered", &steady.cpu, 11);
    expect("by file", &by_file, 11);
    expect("the other", &other.cpu, 12);
    expect_gpu(rig, "hammered, by the GPU", &steady, 11);
    expect_gpu(rig, "the other, by the GPU", &other, 12);
    assert_eq!(strays(), 0, "accesses of pages that show nothing");
}

/// Objects that move, or go, give their pages back; nobody finds anything of theirs.
pub fn what_is_freed_is_given_back() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    let (_, before) = usage();
    for round in 0..8 {
        let buffer = hidden.buffer(hidden.size / 2);
        expect_zero(&buffer.cpu);
        stamp(&buffer.cpu, round);
        assert!(usage().1 > before);
        if round % 2 == 0 {
            // Under the CPU's mapping, there and back.
            let moved = Function::first().debugfs("evict").expect("debugfs");
            assert_ne!(moved.trim(), "0");
            assert_eq!(place(rig, buffer.handle), Place::System);
            expect("moved out", &buffer.cpu, round);
            assert_eq!(usage().1, before, "of what has moved out");
            let done = rig.syncobj();
            let result = rig.make_resident(&[buffer.handle], &[signal(done)]);
            assert_eq!((result, rig.wait(done)), (Ok(()), Ok(())));
            assert_eq!(place(rig, buffer.handle), Place::Vram);
            expect("moved in", &buffer.cpu, round);
            expect_gpu(rig, "moved in", &buffer, round);
        }
        let Buffer { handle, cpu, .. } = buffer;
        match round % 4 {
            0 | 1 => {
                assert_eq!(
                    rig.destroy(&[handle], DRM_SKUA_BO_DESTROY_SYNCHRONOUS),
                    Ok(())
                );
                drop(cpu);
            }
            _ => {
                drop(cpu);
                assert_eq!(
                    rig.destroy(&[handle], DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE),
                    Ok(())
                );
            }
        }
        let given = eventually(|| (usage().1 == before).then_some(()));
        assert!(given.is_some(), "{:?}, at first {before}", usage());
    }
    assert_eq!(strays(), 0);
}

/// Several times as much as the aperture, for several clients at once: nobody fails, and no more is
/// shown than there are pages.
pub fn more_than_the_aperture_is_seen_in_turn() {
    let hidden = Hidden::new();
    let sizes = [hidden.size / 4, hidden.size, 2 * hidden.size];
    thread::scope(|scope| {
        for seed in 0..3_u64 {
            scope.spawn(move || {
                let rig = Rig::new();
                let buffers = sizes.map(|size| in_vram(&rig, size));
                for round in 0..3 {
                    for (n, buffer) in (0..).zip(&buffers) {
                        stamp(&buffer.cpu, seed << 16 | round << 8 | n);
                    }
                    for (n, buffer) in (0..).zip(&buffers) {
                        expect("all at once", &buffer.cpu, seed << 16 | round << 8 | n);
                    }
                    let (total, used) = usage();
                    assert!(used <= total, "{used} of {total}");
                }
                for (n, buffer) in (0..).zip(&buffers) {
                    expect_gpu(&rig, "by the GPU", buffer, seed << 16 | 2 << 8 | n);
                    assert_eq!(place(&rig, buffer.handle), Place::Vram);
                }
            });
        }
    });
    // Who has no page waits for none: the oldest goes.
    let (total, used) = usage();
    assert!(used <= total, "{used} of {total}");
    assert_eq!(strays(), 0);
}

/// What is read from begin to end is mapped by and by with few flushes, in whichever order the
/// pages of the aperture are taken; what is not read on takes nothing from others but the page
/// itself.
pub fn who_reads_on_gets_what_follows() {
    let hidden = Hidden::new();
    let buffer = hidden.buffer(4 * hidden.size);
    let counters = || Function::first().counters(["driver_aperture_maps", "aperture_flush"]);
    let pages = (buffer.size / hidden.page) as usize;
    let read = |page: usize| buffer.cpu.read(page * hidden.page as usize);
    // So that pages next to each other are not taken one after the other.
    for page in (0..pages).map(|n| n * 37 % pages) {
        read(page);
    }
    let before = counters();
    for page in 0..pages {
        read(page);
    }
    let after = counters();
    let [maps, flushes] = [0, 1].map(|n| after[n] - before[n]);
    assert!(maps >= pages as u64 * 3 / 4, "{maps} of {pages} pages");
    assert!(flushes * 4 <= maps, "{flushes} flushes for {maps} pages");
    // Each behind one that was mapped before others.
    let [before, _] = counters();
    for n in 0..8 {
        read(n * 23 % (pages / 2));
    }
    let [after, _] = counters();
    assert_eq!(after - before, 8);
    assert_eq!(strays(), 0);
}

/// Objects of one page, of two clients, and memory between them that the CPU never maps: each sees
/// its own, whatever a page of the aperture has room for.
pub fn no_byte_of_a_neighbour_is_seen() {
    let hidden = Hidden::new();
    let others = Rig::new();
    let rigs = [&hidden.rig, &others];
    // More pages than the aperture has.
    let count = (3 * hidden.size / hidden.page).min(80);
    let (mut all, mut between) = ([vec![], vec![]], [vec![], vec![]]);
    for n in 0..count {
        for (rig, (all, between)) in rigs.iter().zip(all.iter_mut().zip(&mut between)) {
            // Some of them end within a page of the aperture.
            all.push(in_vram(rig, if n % 5 == 0 { 5 * 4096 } else { 4096 }));
            let only = 1 << rig.region(Place::Vram).id;
            let handle = rig.bo_create(4096, 0, only).expect("BO_CREATE");
            between.push(rig.bound_at_will(handle, 4096));
            // Its mapping is no neighbour's of the next one's.
            let system = 1 << rig.region(Place::System).id;
            rig.bo_create(64 << 10, 0, system).expect("BO_CREATE");
        }
    }
    let run = |rig: &Rig, commands: &[Command]| {
        for commands in commands.chunks(64) {
            assert_eq!(rig.run(Engine::Copy, commands), Ok(()));
        }
    };
    for (rig, between) in rigs.iter().zip(&between) {
        let fills: Vec<_> = between.iter().map(|va| fill(7, *va, 4096)).collect();
        run(rig, &fills);
    }
    let objects = || (0..).zip(all.iter().flatten());
    for (n, buffer) in objects() {
        expect_zero(&buffer.cpu);
        stamp(&buffer.cpu, n);
    }
    for (n, buffer) in objects() {
        expect("its own", &buffer.cpu, n);
    }
    // And as the GPU finds them, with what the CPU never maps.
    let mut n = 0;
    for (rig, (all, between)) in rigs.iter().zip(all.iter().zip(&between)) {
        let slots = 5 * count * 4096;
        let out = rig.buffer(Place::System, slots + count * 4096);
        let starts = (out.va..).step_by(5 * 4096);
        let seen = all.iter().zip(starts).map(|(b, to)| copy(b.va, to, b.size));
        let rest = (out.va + slots..).step_by(4096);
        let unseen = between.iter().zip(rest).map(|(va, to)| copy(*va, to, 4096));
        run(rig, &seen.chain(unseen).collect::<Vec<_>>());
        for (slot, buffer) in (0..).step_by(5 * PAGE).zip(all) {
            for offset in places(buffer.cpu.len()) {
                assert_eq!(out.cpu.read(slot + offset), value(n, offset), "object {n}");
            }
            n += 1;
        }
        for offset in (0..out.cpu.len()).skip(5 * all.len() * PAGE).step_by(8) {
            assert_eq!(
                out.cpu.read(offset),
                7 << 32 | 7,
                "never mapped: {offset:#x}"
            );
        }
    }
    assert_eq!(strays(), 0);
}

/// Where the aperture shows a byte, and where the GPU has it mapped, the offset in a page of the
/// aperture is the same: memory that is seen through it begins where a page of it does.
pub fn offsets_in_a_page_are_the_same() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    let bar = Function::first().map_bar(BAR_HOST_APERTURE);
    // What is 4 KiB has others' next ones in between.
    for (n, pages) in (0..).zip([1, 5, 1, 16, 1, 19, 33]) {
        let buffer = in_vram(rig, pages * 4096);
        stamp(&buffer.cpu, n);
        for at in (0..buffer.cpu.len()).step_by(PAGE) {
            let seen = buffer.cpu.read(at);
            let places = find(&bar, seen);
            let va = buffer.va + at as u64;
            let offsets: Vec<_> = places.iter().map(|at| *at as u64 % hidden.page).collect();
            assert_eq!(offsets, [va % hidden.page], "VA {va:#x} is at {places:x?}");
        }
    }
}

/// The first thing that is done with a device that was bound, and bound again.
pub fn it_works_at_once_and_after_a_bind() {
    let hidden = Hidden::new();
    let old = hidden.buffer(hidden.size);
    stamp(&old.cpu, 5);
    drop(Unbound::first());
    // Nothing of the old device is seen, and nobody dies of it.
    expect_zero(&old.cpu);
    old.cpu.write(0, 1);
    assert_eq!(usage().1, 0, "a new device shows nothing");
    let rig = Rig::new();
    let new = in_vram(&rig, 2 * hidden.size);
    expect_zero(&new.cpu);
    stamp(&new.cpu, 6);
    expect("after a bind", &new.cpu, 6);
    expect_gpu(&rig, "after a bind", &new, 6);
    assert_eq!(usage().0, hidden.size / hidden.page);
    assert_eq!(old.cpu.read(0), 1);
}

/// Who accesses VRAM through the aperture waits for a flush that is acknowledged late.
pub fn a_flush_that_is_acknowledged_late_is_waited_for() {
    const LIE: &str = "aperture-ack-late";
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    let hidden = Hidden::new();
    let buffers = [1, 3].map(|times| hidden.buffer(times * hidden.size));
    stamp(&buffers[0].cpu, 3);
    displace(&buffers[1], hidden.page);
    let lies = Lies::tell(&format!("{LIE}=300")).expect("gpu-lie");
    for offset in places(buffers[0].cpu.len()).take(4) {
        let seen = buffers[0].cpu.read(offset);
        assert_eq!(seen, value(3, offset), "offset {offset:#x} is {seen:#x}");
    }
    let told = lies.told(LIE).expect("gpu-told");
    println!("# {told} acknowledgements were late");
    assert!(told > 0);
    drop(lies);
    expect("in time again", &buffers[0].cpu, 3);
}

/// A device that does not acknowledge is lost: who accesses VRAM then finds zeroes, and lives.
pub fn it_works_again_after_a_loss() {
    let hidden = Hidden::new();
    let buffer = hidden.buffer(2 * hidden.size);
    stamp(&buffer.cpu, 3);
    if let Err(error) = request("ping") {
        skip(&format!("no host to ask: {error}"));
    }
    // The driver complains as it sees fit.
    expect_error("").expect("the kernel's log");
    let lies = Lies::tell("aperture-ack-never").expect("gpu-lie");
    for offset in places(buffer.cpu.len()) {
        let seen = buffer.cpu.read(offset);
        let any = [0, u64::MAX, value(3, offset)];
        assert!(any.contains(&seen), "offset {offset:#x} is {seen:#x}");
    }
    let lost = eventually(|| hidden.rig.bo_create(4096, 0, 1).err());
    assert!(matches!(lost, Some(Errno::EIO | Errno::ENODEV)), "{lost:?}");
    drop(lies);
    drop(Unbound::first());
    drop((buffer, hidden));
    let new = Hidden::new();
    let buffer = new.buffer(2 * new.size);
    expect_zero(&buffer.cpu);
    stamp(&buffer.cpu, 4);
    expect("bound again", &buffer.cpu, 4);
    expect_gpu(&new.rig, "bound again", &buffer, 4);
}

/// Page faults and locks in which one allocation fails, the first, the second and so on: a fault is
/// done again, a lock says so, and no page of the aperture is lost, or shows something else.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn one_allocation_fails() {
    let failures = Failures::new();
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    let [own, others] = [1, 2].map(|times| hidden.buffer(times * hidden.size));
    stamp(&own.cpu, 1);
    stamp(&others.cpu, 2);
    let handles = [own.handle, others.handle];
    let show_nothing = || {
        evict_all();
        resident(rig, &handles);
        assert_eq!(rig.evict(&handles), Ok(()));
        // What was left is given back late.
        let shown = eventually(|| (usage().1 == 0).then_some(()));
        assert!(shown.is_some(), "{:?}", usage());
    };
    let show_others = || displace(&others, hidden.page);
    let read = || places(own.cpu.len()).for_each(|at| _ = own.cpu.read(at));
    let write = || places(own.cpu.len()).for_each(|at| own.cpu.write(at, value(1, at)));
    for (what, shows_others, writes) in [
        ("a read, and nothing is shown", false, false),
        ("a write, and nothing is shown", false, true),
        ("a read of what is not shown", true, false),
        ("a write of what is not shown", true, true),
    ] {
        let prepare = || match shows_others {
            true => show_others(),
            false => show_nothing(),
        };
        let access = || match writes {
            true => write(),
            false => read(),
        };
        let failed = failures.each(prepare, access, |()| {
            expect(what, &own.cpu, 1);
            expect(what, &others.cpu, 2);
            let (total, used) = usage();
            assert_eq!(used, total, "{what}");
        });
        println!("# {what}: {failed} allocations have failed");
        assert!(failed > 0, "{what}: nothing has failed");
        expect_gpu(rig, what, &own, 1);
        expect_gpu(rig, what, &others, 2);
    }
    let lock = || rig.lock(own.handle);
    let failed = failures.each(show_others, lock, |locked| {
        match locked {
            Ok(_) => {
                assert_eq!(place(rig, own.handle), Place::Vram);
                assert_eq!(rig.unlock(own.handle), Ok(()));
            }
            // If the copy of the answer is what fails, it is locked; not if that of the question
            // is.
            Err(Errno::EFAULT) => _ = rig.unlock(own.handle),
            Err(errno) => assert_eq!(errno, Errno::ENOMEM),
        }
        assert_eq!(pages()[2], 0, "claimed by nobody");
        expect("a lock", &own.cpu, 1);
    });
    println!("# a lock: {failed} allocations have failed");
    assert!(failed > 0, "nothing has failed");
    assert_eq!(strays(), 0);
    drop((own, others));
    drop(hidden);
    quiet();
    assert_eq!(usage().1, 0, "pages show what is nobody's");
}

/// When the adapter was reset, the CPU has what it had mapped: zero, and what is written from then
/// on.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn it_shows_again_after_a_reset(reset: impl FnOnce(&Function)) {
    expect_error("the adapter was reset").expect("the kernel's log");
    let hidden = Hidden::new();
    let buffers = [(); 2].map(|()| hidden.buffer(hidden.size));
    for buffer in &buffers {
        stamp(&buffer.cpu, 3);
    }
    // A lock of what is shown: it, its address and its pages of the aperture are there afterwards.
    let lock = || hidden.rig.lock(buffers[1].handle).expect("BO_LOCK");
    let offset = lock();
    let locked = pages()[2];
    assert!(locked > 0, "no page is for what is locked");
    reset(&Function::first());
    assert_eq!(pages()[2], locked, "pages for what is locked");
    assert_eq!(place(&hidden.rig, buffers[1].handle), Place::Vram);
    // First what has all pages of the aperture: it is shown by what was written before the reset.
    for buffer in buffers.iter().rev() {
        expect_zero(&buffer.cpu);
        stamp(&buffer.cpu, 4);
    }
    // Pages that are shown now are others' soon: of the same memory, by other ways.
    for buffer in &buffers {
        expect("after a reset", &buffer.cpu, 4);
    }
    // It counts as before, and ends.
    assert_eq!(lock(), offset);
    for left in [Ok(()), Ok(()), Err(Errno::EINVAL)] {
        assert_eq!(hidden.rig.unlock(buffers[1].handle), left);
    }
    assert_eq!(pages()[2], 0, "pages for what is not locked any more");
    let rig = Rig::new();
    let new = in_vram(&rig, 2 * hidden.size);
    expect_zero(&new.cpu);
    stamp(&new.cpu, 5);
    expect_gpu(&rig, "of a new client", &new, 5);
    for buffer in &buffers {
        expect("beside a new client", &buffer.cpu, 4);
    }
}

/// An engine is reset for what another client did: no page of the aperture is another one's then.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn it_shows_on_after_a_reset_of_an_engine() {
    let hidden = Hidden::new();
    let buffers = [(); 2].map(|()| hidden.buffer(hidden.size));
    for buffer in &buffers {
        stamp(&buffer.cpu, 3);
    }
    let offset = hidden.rig.lock(buffers[1].handle).expect("BO_LOCK");
    let locked = pages()[2];
    assert!(locked > 0, "no page is for what is locked");
    let resets = || Function::first().counters(["driver_engine_resets"]);
    let before = resets();
    let other = Rig::new();
    let nowhere = other.reserve(4096);
    assert_eq!(
        other.run(Engine::Copy, &[rig::write(nowhere, 1)]),
        Err(Errno::EFAULT)
    );
    assert_ne!(resets(), before);
    assert_eq!(pages()[2], locked, "pages for what is locked");
    for buffer in buffers.iter().rev() {
        expect("after a reset of an engine", &buffer.cpu, 3);
        stamp(&buffer.cpu, 4);
    }
    for buffer in &buffers {
        expect("written then", &buffer.cpu, 4);
        expect_gpu(&hidden.rig, "written then", buffer, 4);
    }
    assert_eq!(hidden.rig.lock(buffers[1].handle), Ok(offset));
    for left in [Ok(()), Ok(()), Err(Errno::EINVAL)] {
        assert_eq!(hidden.rig.unlock(buffers[1].handle), left);
    }
}

/// When the system has slept, and the device had no power, the CPU has what it had mapped and
/// locked, also through the aperture again.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn it_shows_again_after_a_sleep() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    let buffers = [(); 2].map(|()| hidden.buffer(hidden.size));
    for (seed, buffer) in (5..).zip(&buffers) {
        stamp(&buffer.cpu, seed);
    }
    assert!(rig.lock(buffers[0].handle).is_ok());
    Sleep::Devices.fall().expect("sleep");
    for (seed, buffer) in (5..).zip(&buffers) {
        expect("after a sleep", &buffer.cpu, seed);
    }
    resident(rig, &buffers.each_ref().map(|buffer| buffer.handle));
    for (seed, buffer) in (5..).zip(&buffers) {
        assert_eq!(place(rig, buffer.handle), Place::Vram);
        expect("in VRAM again", &buffer.cpu, seed);
        stamp(&buffer.cpu, seed + 2);
    }
    for (seed, buffer) in (7..).zip(&buffers) {
        expect("written since", &buffer.cpu, seed);
        expect_gpu(rig, "written since, by the GPU", buffer, seed);
    }
    let (total, used) = usage();
    assert_eq!(used, total, "pages of the aperture are free");
    assert_eq!(strays(), 0);
}

/// Nothing is visible, and all of the aperture is in use: what is in system memory is locked, and
/// its address leads to the pages there. No access goes through a BAR, nor does a lock concern the
/// device.
///
/// # Panics
///
/// If it does not hold.
#[track_caller]
pub fn system_memory_is_locked_without_any_bar() {
    let hidden = Hidden::new();
    let rig = &hidden.rig;
    let shown = hidden.buffer(2 * hidden.size);
    stamp(&shown.cpu, 1);
    let (total, used) = usage();
    assert_eq!(used, total, "pages of the aperture are free");
    let cached = DRM_SKUA_BO_CPU_ACCESS | DRM_SKUA_BO_CACHED;
    for flags in [0, DRM_SKUA_BO_CPU_ACCESS, cached] {
        // Asking for the counters reads a register if it takes long.
        let both = [(); 2].map(|()| around_a_lock(rig, flags));
        assert!(
            both.iter().any(|[before, after]| before == after),
            "flags {flags:#x}: a BAR or the device was involved: {both:?}"
        );
    }
}

/// What accesses and moves there were before an object in system memory was locked, and what when
/// the CPU had used it. The GPU finds what it wrote.
#[track_caller]
fn around_a_lock(rig: &Rig, flags: u32) -> [[u64; 9]; 2] {
    let seen = || {
        Function::first().counters([
            "vram_bar_read",
            "vram_bar_write",
            "aperture_read",
            "aperture_write",
            "driver_aperture_maps",
            "driver_aperture_reclaims",
            "driver_evictions",
            "driver_tlb_flushes",
            "driver_register_reads",
        ])
    };
    let system = 1 << rig.region(Place::System).id;
    let handle = rig.bo_create(MIB, flags, system).expect("BO_CREATE");
    let va = rig.bound_at_will(handle, MIB);
    Function::first().at_rest();
    let before = seen();
    let offset = rig.lock(handle).expect("BO_LOCK");
    let cpu = Mapping::new(rig.duplicate(), offset, MIB as usize).expect("mmap");
    stamp(&cpu, 2);
    expect("by the CPU", &cpu, 2);
    let after = seen();
    let buffer = Buffer {
        handle,
        va,
        size: MIB,
        cpu,
    };
    expect_gpu(rig, "by the GPU", &buffer, 2);
    assert_eq!(rig.unlock(handle), Ok(()));
    [before, after]
}
