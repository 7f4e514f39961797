// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The CPU host aperture, with memory of its own and trapped: both do the same.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use skua_gpu::vram::{self, Aperture, Layout};
use skua_spec::address::{BusAddr, VramOffset};
use skua_spec::aperture::{Entry, PageSize};
use skua_spec::command::Command;
use skua_spec::regs;
use skua_spec::status::{self, Counter};
use skua_testbed::{
    Gpu, BUS, COMPUTE, COPY, DATA, DATA_BYTES, DATA_VA, STATUS, SYSTEM_BYTES, SYSTEM_FREE,
    VRAM_BYTES,
};

/// Pages of the aperture of these tests.
const PAGES: u32 = 16;
/// Bytes of VRAM that BAR2 shows in them: rings, tables and buffers, but no data.
const VISIBLE: u64 = 1 << 20;
/// Offset in system memory of the table.
const TABLE: u64 = SYSTEM_FREE;

const _: () = assert!(DATA >= VISIBLE && DATA % 0x1_0000 == 0);

/// VRAM of which the CPU sees a part, and the rest through an aperture.
pub(crate) fn layout(size: PageSize, trapped: bool) -> Layout {
    Layout {
        visible: VISIBLE,
        aperture: Some(Aperture {
            pages: PAGES,
            size,
            cached: false,
        }),
        trapped,
        ..Layout::whole(VRAM_BYTES)
    }
}

/// Every kind of aperture.
fn layouts() -> impl Iterator<Item = (PageSize, Layout)> {
    [PageSize::Size4K, PageSize::Size64K]
        .into_iter()
        .flat_map(|size| [false, true].map(|trapped| (size, layout(size, trapped))))
}

/// A device whose aperture has a table of entries that are not valid.
fn start(layout: Layout) -> Gpu {
    let gpu = Gpu::with_layout(layout);
    set_table(&gpu);
    gpu
}

fn set_table(gpu: &Gpu) {
    gpu.set_system(TABLE, &[0xfe; 0x1000]);
    gpu.set(regs::APERTURE_TABLE::new().with_address(BusAddr(BUS + TABLE)));
}

fn entry(gpu: &Gpu, page: u64, entry: Entry) {
    gpu.set_system64(TABLE + page * Entry::SIZE, entry.0);
}

fn at(offset: u64) -> Entry {
    Entry::page(VramOffset(offset))
}

fn ack(gpu: &Gpu) -> u32 {
    gpu.system32(STATUS + status::APERTURE_ACK)
}

fn refused(gpu: &Gpu) -> u32 {
    gpu.system32(STATUS + status::APERTURE_REFUSED)
}

/// Flushes, and returns how many entries were refused.
fn flush(gpu: &Gpu, first: u16, count: u16) -> u32 {
    let before = (ack(gpu), refused(gpu));
    let pages = regs::APERTURE_FLUSH::new();
    gpu.set(pages.with_first(first).with_count(count));
    assert_eq!(ack(gpu), before.0.wrapping_add(1));
    refused(gpu).wrapping_sub(before.1)
}

fn read(gpu: &Gpu, offset: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0x77; bytes];
    gpu.device.read_aperture(offset, &mut data);
    data
}

/// Runs a command of the ring on the copy engine, with offsets in VRAM.
fn run(gpu: &mut Gpu, command: Command) {
    gpu.run(COPY, &[command]);
}

fn fill(offset: u64, bytes: u64, pattern: u32) -> Command {
    Command::Fill {
        pattern,
        address: vram::BASE + offset,
        bytes,
    }
}

fn copy(source: u64, destination: u64, bytes: u64) -> Command {
    Command::Copy {
        source: vram::BASE + source,
        destination: vram::BASE + destination,
        bytes,
    }
}

#[test]
fn capabilities() {
    for (size, layout) in layouts() {
        let gpu = Gpu::bare_with_layout(layout);
        let caps = gpu.get(regs::APERTURE_CAPS);
        assert_eq!((caps.page_shift(), caps.cached()), (size.shift(), false));
        assert_eq!(gpu.get(regs::APERTURE_PAGES).pages(), PAGES);
        assert_eq!(gpu.get(regs::VRAM_VISIBLE).bytes(), VISIBLE);
        assert_eq!(gpu.get(regs::VRAM_SIZE).bytes(), VRAM_BYTES);
        // BAR2 shows what it says, and ones behind.
        let mut data = [0; 8];
        gpu.set_vram(VISIBLE - 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
        gpu.device.read_vram(VISIBLE - 4, &mut data);
        assert_eq!(data, [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff]);
        gpu.device.write_vram(VISIBLE - 4, &[9; 8]);
        gpu.device.write_vram(VISIBLE, &[9; 8]);
        gpu.device.write_vram(u64::MAX - 2, &[9; 8]);
        assert_eq!(gpu.vram_bytes(VISIBLE - 4, 8), [9, 9, 9, 9, 5, 6, 7, 8]);
        assert_eq!(gpu.counter(Counter::VramBarRead), 1);
        assert_eq!(gpu.counter(Counter::VramBarWrite), 3);
    }
}

/// A layout whose aperture the CPU may have cached.
fn cached(visible: u64) -> Layout {
    let good = layout(PageSize::Size4K, false);
    let cached = true;
    Layout {
        visible,
        aperture: good.aperture.map(|it| Aperture { cached, ..it }),
        ..good
    }
}

#[test]
fn a_cached_aperture_says_so() {
    let gpu = Gpu::bare_with_layout(cached(0));
    let caps = gpu.get(regs::APERTURE_CAPS);
    assert_eq!((caps.page_shift(), caps.cached()), (12, true));
    assert_eq!(caps.word(), 0x10c);
}

#[test]
fn layouts_that_there_cannot_be() {
    let good = layout(PageSize::Size4K, false);
    assert!(good.is_valid());
    let aperture = |pages, size| Layout {
        aperture: Some(Aperture {
            pages,
            size,
            cached: false,
        }),
        ..good
    };
    for bad in [
        cached(VISIBLE),
        aperture(0, PageSize::Size4K),
        aperture(129, PageSize::Size64K),
        Layout {
            bytes: 1 << 30,
            ..aperture(65537, PageSize::Size4K)
        },
        Layout {
            visible: VRAM_BYTES + VISIBLE,
            ..good
        },
        Layout {
            visible: 0x8_0000,
            ..good
        },
        Layout {
            bytes: 0x10_0000,
            visible: 0,
            ..good
        },
    ] {
        assert!(!bad.is_valid(), "{bad:?}");
        assert!(vram::Vram::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_page_is_the_one_that_its_entry_names() {
    for (size, layout) in layouts() {
        let mut gpu = start(layout);
        let bytes = size.bytes();
        let page = DATA + bytes;
        run(&mut gpu, fill(DATA, 3 * bytes, 0x1111_1111));
        entry(&gpu, 2, at(page));
        assert_eq!(flush(&gpu, 2, 1), 0);
        // What was there before it was shown.
        assert_eq!(read(&gpu, 2 * bytes, 8), [0x11; 8]);
        // What an engine writes while it is, also across its borders.
        run(&mut gpu, fill(page - 8, bytes + 16, 0x2222_2222));
        assert_eq!(
            read(&gpu, 2 * bytes, bytes as usize),
            vec![0x22; bytes as usize]
        );
        // What the CPU writes, as an engine reads it.
        gpu.device.write_aperture(3 * bytes - 4, &[3; 4]);
        run(&mut gpu, copy(page + bytes - 8, DATA, 16));
        let expected = [[0x22; 4], [3; 4], [0x22; 4], [0x22; 4]].concat();
        assert_eq!(gpu.vram_bytes(DATA, 16), expected);
        // What both wrote when it is hidden again; its neighbours are as they were.
        entry(&gpu, 2, Entry::NONE);
        assert_eq!(flush(&gpu, 2, 1), 0);
        let expected = [
            &[0x11; 8][..],
            &[0x22; 8],
            &vec![0x22; bytes as usize - 4],
            &[3; 4],
            &[0x22; 8],
            &[0x11; 8],
        ]
        .concat();
        assert_eq!(gpu.vram_bytes(page - 16, expected.len()), expected);
        assert_eq!(read(&gpu, 2 * bytes, 4), [0xff; 4]);
    }
}

#[test]
fn an_entry_counts_when_it_is_flushed() {
    for (size, layout) in layouts() {
        let gpu = start(layout);
        gpu.set_vram(DATA, &[5; 4]);
        entry(&gpu, 0, at(DATA));
        assert_eq!(read(&gpu, 0, 4), [0xff; 4]);
        // Other pages, no pages, and pages that there are not.
        for (first, count) in [(1, 15), (0, 0), (16, 1), (0xffff, 0xffff)] {
            assert_eq!(flush(&gpu, first, count), 0);
            assert_eq!(read(&gpu, 0, 4), [0xff; 4]);
        }
        assert_eq!(flush(&gpu, 0, 0xffff), 0);
        assert_eq!(read(&gpu, 0, 4), [5; 4]);
        entry(&gpu, 0, at(DATA + size.bytes()));
        assert_eq!(read(&gpu, 0, 4), [5; 4]);
        assert_eq!(gpu.counter(Counter::ApertureFlush), 5);
    }
}

#[test]
fn a_page_that_shows_nothing() {
    for (size, layout) in layouts() {
        let gpu = start(layout);
        let bytes = size.bytes();
        gpu.set_vram(DATA, &vec![7; bytes as usize]);
        entry(&gpu, 1, at(DATA));
        assert_eq!(flush(&gpu, 0, 16), 0);
        let unmapped = || gpu.counter(Counter::ApertureUnmapped);
        assert_eq!(read(&gpu, bytes, 8), [7; 8]);
        assert_eq!(unmapped(), 0);
        // An access over a border has the part that there is.
        assert_eq!(read(&gpu, bytes - 2, 4), [0xff, 0xff, 7, 7]);
        gpu.device.write_aperture(2 * bytes - 2, &[8; 4]);
        assert_eq!(
            read(&gpu, 2 * bytes - 4, 8),
            [7, 7, 8, 8, 0xff, 0xff, 0xff, 0xff]
        );
        assert_eq!(unmapped(), 3);
        gpu.device.write_aperture(0, &[9; 8]);
        assert_eq!(read(&gpu, 0, 8), [0xff; 8]);
        // Beyond the end of the BAR.
        for offset in [bytes * u64::from(PAGES), u64::MAX - 3] {
            gpu.device.write_aperture(offset, &[9; 8]);
            assert_eq!(read(&gpu, offset, 3), [0xff; 3]);
        }
        assert_eq!(unmapped(), 9);
        assert_eq!(gpu.counter(Counter::ApertureRead), 6);
        assert_eq!(gpu.counter(Counter::ApertureWrite), 4);
        // Nothing of it is seen when the page shows something.
        entry(&gpu, 0, at(DATA + bytes));
        gpu.set_vram(DATA + bytes, &[6; 8]);
        assert_eq!(flush(&gpu, 0, 1), 0);
        assert_eq!(read(&gpu, 0, 8), [6; 8]);
    }
}

#[test]
fn entries_that_are_refused() {
    for (size, layout) in layouts() {
        let gpu = start(layout);
        let bytes = size.bytes();
        gpu.set_vram(DATA, &[5; 4]);
        entry(&gpu, 1, at(DATA + bytes));
        assert_eq!(flush(&gpu, 1, 1), 0);
        for bad in [
            at(0),
            at(VISIBLE - bytes),
            at(VRAM_BYTES),
            at((1 << 40) - bytes),
            at(1 << 40),
            at(DATA + bytes / 2),
            at(DATA | 2),
            at(DATA | 1 << 63),
            // What page 1 shows.
            at(DATA + bytes),
        ] {
            entry(&gpu, 0, at(DATA));
            assert_eq!(flush(&gpu, 0, 1), 0);
            assert_eq!(read(&gpu, 0, 4), [5; 4]);
            entry(&gpu, 0, bad);
            assert_eq!(flush(&gpu, 0, 1), 1, "{bad:?}");
            assert_eq!(read(&gpu, 0, 4), [0xff; 4], "{bad:?}");
            // And each time that it is looked at.
            assert_eq!(flush(&gpu, 0, 2), 1, "{bad:?}");
        }
        // The last page of VRAM is none of them.
        entry(&gpu, 0, at(VRAM_BYTES - bytes));
        assert_eq!(flush(&gpu, 0, 1), 0);
        // Nothing answers.
        gpu.set(regs::APERTURE_TABLE::new().with_address(BusAddr(0x5000)));
        let errors = gpu.counter(Counter::BusError);
        assert_eq!(flush(&gpu, 0, 3), 3);
        assert_eq!(gpu.counter(Counter::BusError), errors + 3);
        assert_eq!(read(&gpu, 0, 4), [0xff; 4]);
        gpu.set(regs::APERTURE_TABLE::new().with_address(BusAddr(!0xfff)));
        assert_eq!(flush(&gpu, 0, 0xffff), PAGES);
    }
}

#[test]
fn pages_change_places_in_one_flush() {
    for (size, layout) in layouts() {
        let gpu = start(layout);
        let bytes = size.bytes();
        let pages = [0, 1].map(|i| DATA + i * bytes);
        for (page, value) in pages.into_iter().zip([1, 2]) {
            gpu.set_vram(page, &[value; 4]);
        }
        let set = |order: [u64; 2]| {
            for (i, page) in (0..).zip(order) {
                entry(&gpu, i, at(page));
            }
        };
        let shown = || [0, 1].map(|i| read(&gpu, i * bytes, 1)[0]);
        set(pages);
        assert_eq!(flush(&gpu, 0, 2), 0);
        assert_eq!(shown(), [1, 2]);
        set([pages[1], pages[0]]);
        assert_eq!(flush(&gpu, 0, 2), 0);
        assert_eq!(shown(), [2, 1]);
        // One at a time, the other one still shows it.
        set(pages);
        assert_eq!(flush(&gpu, 0, 1), 1);
        assert_eq!(shown(), [0xff, 1]);
        assert_eq!(flush(&gpu, 1, 1), 0);
        assert_eq!(flush(&gpu, 0, 1), 0);
        assert_eq!(shown(), [1, 2]);
        // Twice in one flush: the first is taken.
        set([pages[1], pages[1]]);
        assert_eq!(flush(&gpu, 0, 2), 1);
        assert_eq!(shown(), [0xff, 2]);
        entry(&gpu, 1, Entry::NONE);
        assert_eq!(flush(&gpu, 0, 2), 0);
        assert_eq!(shown(), [2, 0xff]);
    }
}

#[test]
fn what_bar2_shows_is_not_shown_twice() {
    let all = Layout {
        visible: VRAM_BYTES,
        ..layout(PageSize::Size4K, false)
    };
    let gpu = start(all);
    for (i, offset) in (0..).zip([0, DATA, VRAM_BYTES - 0x1000]) {
        entry(&gpu, i, at(offset));
    }
    assert_eq!(flush(&gpu, 0, 3), 3);
    let nothing = Layout { visible: 0, ..all };
    let gpu = start(nothing);
    entry(&gpu, 0, at(DATA));
    assert_eq!(flush(&gpu, 0, 1), 0);
}

#[test]
fn golden_vectors() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../Documentation/gpu/skua/golden/aperture.txt"
    );
    let text = std::fs::read_to_string(path).expect(path);
    let mut gpus: Vec<_> = layouts()
        .map(|(size, layout)| {
            let gpu = start(Layout {
                visible: 0,
                ..layout
            });
            (size, gpu)
        })
        .collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<_> = line.split('|').map(str::trim).collect();
        let digits: String = parts[0].split_whitespace().collect();
        let bits = u64::from_str_radix(&digits, 16).unwrap().swap_bytes();
        for (size, gpu) in &mut gpus {
            let meaning = parts[if *size == PageSize::Size4K { 1 } else { 2 }];
            let offset = meaning
                .strip_prefix("vram 0x")
                .map(|offset| u64::from_str_radix(offset, 16).unwrap());
            entry(gpu, 0, Entry(bits));
            let expected = match (meaning, offset) {
                ("nothing", _) => 0,
                (_, Some(offset)) if offset < VRAM_BYTES => 0,
                _ => 1,
            };
            assert_eq!(flush(gpu, 0, 1), expected, "{line}");
            let value = match offset {
                Some(offset) if offset < VRAM_BYTES => {
                    // The rings are there too.
                    run(gpu, fill(offset + 0x800, 4, 0x0101_0101));
                    0x01
                }
                _ => 0xff,
            };
            assert_eq!(read(gpu, 0x800, 4), [value; 4], "{line}");
        }
    }
}

#[test]
fn an_adapter_reset_hides_all_pages() {
    for (size, layout) in layouts() {
        let mut gpu = start(layout);
        entry(&gpu, 0, at(DATA));
        entry(&gpu, 1, at(0));
        assert_eq!(flush(&gpu, 0, 2), 1);
        gpu.device.write_aperture(0, &[1; 8]);
        gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
        assert_eq!(read(&gpu, 0, 4), [0xff; 4]);
        gpu.wait_for("READY", |gpu| gpu.device.is_ready());
        assert_eq!(read(&gpu, 0, 4), [0xff; 4]);
        assert_eq!(gpu.read(regs::APERTURE_TABLE), 0);
        // VRAM is lost, and is where it was.
        assert_eq!(gpu.vram_bytes(DATA, 8), [0xa5; 8]);
        gpu.set_up();
        assert_eq!((ack(&gpu), refused(&gpu)), (0, 0));
        set_table(&gpu);
        entry(&gpu, 0, at(DATA));
        assert_eq!(flush(&gpu, 0, 2), 0);
        run(&mut gpu, fill(DATA, size.bytes(), 3));
        assert_eq!(read(&gpu, 0, 4), [3, 0, 0, 0]);
    }
}

#[test]
fn what_a_status_page_missed_is_there_when_it_is_enabled() {
    let gpu = start(layout(PageSize::Size4K, false));
    entry(&gpu, 0, at(0));
    gpu.set(regs::STATUS_CTRL::new());
    for _ in 0..3 {
        gpu.set(regs::APERTURE_FLUSH::new().with_count(1));
    }
    assert_eq!((ack(&gpu), refused(&gpu)), (0, 0));
    gpu.set(regs::STATUS_CTRL::new().with_enable(true));
    assert_eq!((ack(&gpu), refused(&gpu)), (3, 3));
}

#[test]
fn without_an_aperture_a_flush_is_acknowledged() {
    let gpu = start(Layout::whole(VRAM_BYTES));
    entry(&gpu, 0, at(DATA));
    assert_eq!(flush(&gpu, 0, 0xffff), 0);
    assert_eq!(read(&gpu, 0, 4), [0xff; 4]);
    gpu.device.write_aperture(0, &[0; 4]);
    assert_eq!(gpu.counter(Counter::ApertureUnmapped), 2);
}

#[test]
fn an_acknowledgement_that_comes_late_or_never() {
    let late = Duration::from_millis(30);
    for (comes, name) in [
        (true, "aperture-ack-late=30"),
        (false, "aperture-ack-never"),
    ] {
        let gpu = start(layout(PageSize::Size4K, false));
        gpu.device.lie(&[name.parse().unwrap()]).unwrap();
        gpu.set_vram(DATA, &[5]);
        entry(&gpu, 0, at(DATA));
        let since = Instant::now();
        gpu.set(regs::APERTURE_FLUSH::new().with_count(1));
        assert_eq!(read(&gpu, 0, 1), [5]);
        if !comes {
            std::thread::sleep(late);
            assert_eq!(ack(&gpu), 0);
            gpu.device.lie(&[]).unwrap();
        }
        gpu.wait_for("the acknowledgement", |gpu| ack(gpu) == 1);
        assert!(since.elapsed() >= late);
    }
}

/// Programs count in a page that comes and goes all the time: no addition is lost, wherever the
/// page was when it was made.
#[test]
fn a_page_moves_under_the_engines() {
    const GROUPS: u32 = 20_000;
    const ROUNDS: u32 = 200;
    let program = skua_asm::assemble(
        ".arg64 target
           arg r2, target
           arg r3, target.hi
           mov r4, 1
           mov r6, 0
         again: atom.add r5, [r2], r4
           add r6, r6, 1
           sltu r7, r6, 200
           bnz r7, again
           exit",
    );
    let program = program.unwrap();
    for (size, layout) in layouts() {
        let mut gpu = start(layout);
        let page = DATA + size.bytes();
        gpu.set_vram(DATA, &program.bytes());
        gpu.set_vram(page, &[0; 8]);
        let dispatch = program
            .dispatch(DATA_VA, [GROUPS, 1, 1], |_| Some(DATA_VA + size.bytes()))
            .unwrap();
        let (mut moves, mut counts) = (0_u64, 0);
        // Again if this thread did not run meanwhile.
        while moves <= 3 {
            let (exec, fence) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
            gpu.start(COMPUTE, &[exec]);
            counts += GROUPS * ROUNDS;
            let done = |gpu: &Gpu| gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE) >= fence;
            while !done(&gpu) {
                let place = moves % 3;
                entry(&gpu, place, at(page));
                assert_eq!(flush(&gpu, 0, 3), 0);
                let shown = read(&gpu, place * size.bytes(), 4);
                let count = u32::from_le_bytes(shown.try_into().unwrap());
                assert!(count <= counts);
                entry(&gpu, place, Entry::NONE);
                if moves % 2 == 0 {
                    assert_eq!(flush(&gpu, 0, 3), 0);
                }
                moves += 1;
            }
        }
        assert_eq!(flush(&gpu, 0, 3), 0);
        assert_eq!(gpu.vram32(page), counts);
    }
}

/// What a driver, or whoever broke into it, does.
#[derive(Clone, Debug)]
enum Deed {
    Entry(u64, u64),
    Flush(u16, u16),
    Write(u64, Vec<u8>),
    Read(u64, usize),
    Fill(u64, u64, u32),
    Copy(u64, u64, u64),
    Table(u32, bool),
}

/// Bytes of VRAM that the test uses, from [`DATA`] on.
const USED: u64 = 0x8_0000;
const _: () = assert!(USED <= DATA_BYTES);

fn deed() -> impl Strategy<Value = Deed> {
    let offset = || prop_oneof![9 => 0..0x11_0000_u64, 1 => any::<u64>()];
    let good = (0..USED >> 12).prop_map(|page| DATA + (page << 12) + 1);
    let large = (0..USED >> 16).prop_map(|page| DATA + (page << 16) + 1);
    let entries = prop_oneof![
        3 => good,
        6 => large,
        2 => Just(0),
        1 => any::<u64>(),
        1 => any::<u64>().prop_map(|bits| bits & 0xff_ffff_f001),
        1 => (0..VRAM_BYTES >> 12).prop_map(|page| (page << 12) + 1),
    ];
    // Pages that are in use otherwise are not shown: what engines and tests do there is not known.
    let entries = entries.prop_map(|bits| {
        let offset = bits & !1;
        let elsewhere = (DATA + USED..VRAM_BYTES).contains(&offset);
        if elsewhere {
            DATA + offset % USED + 1
        } else {
            bits
        }
    });
    prop_oneof![
        6 => (0..18_u64, entries).prop_map(|(page, entry)| Deed::Entry(page, entry)),
        3 => (0..18_u16, 0..18_u16).prop_map(|(first, count)| Deed::Flush(first, count)),
        1 => any::<(u16, u16)>().prop_map(|(first, count)| Deed::Flush(first, count)),
        3 => (offset(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(offset, data)| Deed::Write(offset, data)),
        3 => (offset(), 0..0x2_0000_usize).prop_map(|(offset, bytes)| Deed::Read(offset, bytes)),
        2 => (0..USED / 4, 0..0x8000_u64, any::<u32>())
            .prop_map(|(at, words, pattern)| Deed::Fill(at * 4, words * 4, pattern)),
        3 => (0..USED, 0..USED, 0..0x2_4000_u64)
            .prop_map(|(from, to, bytes)| Deed::Copy(from, to, bytes)),
        1 => any::<(u32, bool)>().prop_map(|(word, high)| Deed::Table(word, high)),
    ]
}

/// What the manual says of an aperture, in the plainest way.
struct Model {
    size: u64,
    vram: Vec<u8>,
    table: Vec<u64>,
    readable: bool,
    shown: [Option<u64>; PAGES as usize],
    refused: u32,
}

impl Model {
    fn flush(&mut self, first: u16, count: u16) {
        let pages: Vec<usize> = (usize::from(first)..).take(count.into()).collect();
        let wanted = |page: usize| {
            let bits = if self.readable { self.table[page] } else { 3 };
            let offset = bits & !1;
            let good = offset % self.size == 0 && (VISIBLE..VRAM_BYTES).contains(&offset);
            (bits & 1 != 0).then_some(good.then_some(offset))
        };
        let pages = pages.iter().filter(|page| **page < PAGES as usize);
        let wanted: Vec<_> = pages.map(|page| (*page, wanted(*page))).collect();
        for (page, want) in &wanted {
            if self.shown[*page] != want.flatten() {
                self.shown[*page] = None;
            }
        }
        for (page, want) in wanted {
            match want {
                None => {}
                Some(Some(offset)) if self.shown[page] == Some(offset) => {}
                Some(Some(offset)) if !self.shown.contains(&Some(offset)) => {
                    self.shown[page] = Some(offset);
                }
                Some(_) => self.refused += 1,
            }
        }
    }

    /// Where a byte of the aperture is in what is used of VRAM.
    fn byte(&mut self, offset: u64) -> Option<&mut u8> {
        let page = *self.shown.get(usize::try_from(offset / self.size).ok()?)?;
        let at = page? + offset % self.size;
        self.vram.get_mut((at - DATA) as usize)
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whatever is done to it, every aperture does what the manual says, and so both kinds do the
    /// same: to the CPU, to engines, and to no memory that is not theirs.
    #[test]
    fn anything(deeds in prop::collection::vec(deed(), 1..60), large in any::<bool>()) {
        let size = if large { PageSize::Size64K } else { PageSize::Size4K };
        for trapped in [false, true] {
            let mut gpu = start(layout(size, trapped));
            gpu.set_vram(DATA, &vec![0x5a; USED as usize]);
            let behind = gpu.vram_bytes(DATA + USED, 0x1_0000);
            let mut model = Model {
                size: size.bytes(),
                vram: vec![0x5a; USED as usize],
                table: vec![0; 18],
                readable: true,
                shown: [None; PAGES as usize],
                refused: 0,
            };
            for deed in &deeds {
                match *deed {
                    Deed::Entry(page, bits) => {
                        entry(&gpu, page, Entry(bits));
                        model.table[page as usize] = bits;
                    }
                    Deed::Flush(first, count) => {
                        flush(&gpu, first, count);
                        model.flush(first, count);
                        prop_assert_eq!(refused(&gpu), model.refused);
                    }
                    Deed::Write(offset, ref data) => {
                        gpu.device.write_aperture(offset, data);
                        for (i, value) in (0..).zip(data) {
                            if let Some(byte) = model.byte(offset.wrapping_add(i)) {
                                *byte = *value;
                            }
                        }
                    }
                    Deed::Read(offset, bytes) => {
                        let found = read(&gpu, offset, bytes);
                        for (i, value) in (0..).zip(found) {
                            let at = offset.wrapping_add(i);
                            let expected = model.byte(at).map_or(0xff, |byte| *byte);
                            prop_assert_eq!(value, expected, "{:#x}", at);
                        }
                    }
                    Deed::Fill(at, bytes, pattern) => {
                        let bytes = bytes.min(USED - at);
                        run(&mut gpu, fill(DATA + at, bytes, pattern));
                        let range = at as usize..(at + bytes) as usize;
                        for word in model.vram[range].chunks_mut(4) {
                            word.copy_from_slice(&pattern.to_le_bytes());
                        }
                    }
                    Deed::Copy(from, to, bytes) => {
                        let bytes = bytes.min(USED - from).min(USED - to);
                        run(&mut gpu, copy(DATA + from, DATA + to, bytes));
                        let range = from as usize..(from + bytes) as usize;
                        model.vram.copy_within(range, to as usize);
                    }
                    Deed::Table(word, high) => {
                        let table = u32::from(regs::APERTURE_TABLE) + if high { 4 } else { 0 };
                        gpu.write(table, word);
                        let found = gpu.get(regs::APERTURE_TABLE).address().0;
                        model.readable = found == BUS + TABLE;
                        // Elsewhere in system memory there are other entries; and now and then it
                        // is set right again.
                        if word % 4 == 0 || (BUS..BUS + SYSTEM_BYTES).contains(&found) {
                            set_address(&gpu);
                            model.readable = true;
                        }
                    }
                }
            }
            set_address(&gpu);
            for page in 0..18 {
                entry(&gpu, page, Entry::NONE);
            }
            prop_assert_eq!(flush(&gpu, 0, 0xffff), 0);
            prop_assert!(gpu.vram_bytes(DATA, USED as usize) == model.vram);
            prop_assert!(gpu.vram_bytes(DATA + USED, 0x1_0000) == behind);
            prop_assert_eq!(gpu.counter(Counter::Fault), 0);
        }
    }
}

fn set_address(gpu: &Gpu) {
    gpu.set(regs::APERTURE_TABLE::new().with_address(BusAddr(BUS + TABLE)));
}
