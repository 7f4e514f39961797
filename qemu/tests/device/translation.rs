// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Page-table walks, the GART, and the TLB that keeps what it found.

use skua_gpu::bus::Bus;
use skua_gpu::counters::Tally;
use skua_gpu::memory::{Memory, Place};
use skua_gpu::mmu::{Mmu, Space};
use skua_gpu::{gart, vram};
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::Command;
use skua_spec::fault::{Access, Reason};
use skua_spec::mmu::{entry_span, Entry, PageSize, Target, ROOT_LEVEL};
use skua_spec::number::Asid;
use skua_spec::regs;
use skua_spec::status::Counter;
use skua_testbed::{
    Gpu, ASID, BUS, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA, DATA_VA, GART_PAGES, GART_TABLE,
    OTHER, SYSTEM_BYTES, SYSTEM_FREE, TABLES, VRAM_BYTES,
};

/// A page for the tests of this file.
const VA: u64 = 0x1234_5678_9000;

fn signal(address: u64, value: u64) -> Command {
    Command::Signal { address, value }
}

fn in_vram(offset: u64) -> Target {
    Target::Vram(GpuPhys(vram::BASE + offset))
}

fn in_system(offset: u64) -> Target {
    Target::System(BusAddr(BUS + offset))
}

#[test]
fn all_page_sizes_in_both_memories() {
    let mut gpu = Gpu::new();
    let va = 0x40_0000_0000;
    // Targets are aligned to the page, and the pages lie at other offsets than their addresses.
    for (i, size) in (0..).zip([PageSize::Size4K, PageSize::Size64K, PageSize::Size2M]) {
        for (j, target) in [in_vram(0x40_0000), in_system(0x20_0000)]
            .into_iter()
            .enumerate()
        {
            let va = va + (i * 2 + j as u64) * 0x4000_0000;
            gpu.map_page(va, target, size, true);
            let last = size.bytes() - 8;
            gpu.run_buffer(COMPUTE, &[signal(va, 1 + i), signal(va + last, 2 + i)]);
            let (first, last) = match target {
                Target::Vram(_) => (gpu.vram64(0x40_0000), gpu.vram64(0x40_0000 + last)),
                Target::System(_) => (gpu.system64(0x20_0000), gpu.system64(0x20_0000 + last)),
            };
            assert_eq!((first, last), (1 + i, 2 + i), "{size:?} {target:?}");
            // One translation each.
            gpu.invalidate(None);
        }
    }
}

#[test]
fn one_entry_of_a_64k_page_serves_all_of_it() {
    let mut gpu = Gpu::new();
    let va = 0x40_0000_0000;
    gpu.map_page(va, in_vram(0x40_0000), PageSize::Size64K, true);
    let (exec, fence) = gpu.exec(
        COMPUTE,
        &(0..16)
            .map(|i| signal(va + i * 4096, i))
            .collect::<Vec<_>>(),
    );
    let misses = gpu.counter(Counter::TlbMiss);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_fence(COMPUTE, fence);
    gpu.wait_idle(COMPUTE);
    // The buffer's page and the large page.
    assert_eq!(gpu.counter(Counter::TlbMiss) - misses, 2);
    assert!(gpu.counter(Counter::TlbHit) >= 15);
    for i in 0..16 {
        assert_eq!(gpu.vram64(0x40_0000 + i * 4096), i);
    }
}

#[test]
fn tables_in_system_memory() {
    let mut gpu = Gpu::new();
    // All four levels in system memory, at pages of their own.
    let tables = [0, 0x1000, 0x2000, 0x3000].map(|o| SYSTEM_FREE + o);
    gpu.set_system(SYSTEM_FREE, &[0; 0x4000]);
    for (i, level) in (1..4).rev().enumerate() {
        let slot = skua_spec::mmu::index(skua_spec::address::GpuVa(VA), level) as u64 * 8;
        let next = Entry::table(in_system(tables[i + 1]));
        gpu.set_system64(tables[i] + slot, next.0);
    }
    let slot = skua_spec::mmu::index(skua_spec::address::GpuVa(VA), 0) as u64 * 8;
    let page = Entry::page(
        in_system(SYSTEM_FREE + 0x8000),
        PageSize::Size4K,
        true,
        true,
    );
    gpu.set_system64(tables[3] + slot, page.0);
    // The buffer is in the page, too.
    let command = signal(VA + 0x800, 0xabcd);
    for (i, word) in (0..).zip(command.encode().words()) {
        gpu.set_system(SYSTEM_FREE + 0x8000 + i * 4, &word.to_le_bytes());
    }
    gpu.write_context(CONTEXT + 64, Asid(3), 4, Entry::table(in_system(tables[0])));
    gpu.run(
        COPY,
        &[Command::Exec {
            context: vram::BASE + CONTEXT + 64,
            base: VA,
            start: 0,
            end: 24,
            fence: None,
            interrupt: false,
            resume: false,
        }],
    );
    assert_eq!(gpu.system64(SYSTEM_FREE + 0x8800), 0xabcd);
}

#[test]
fn the_edge_of_the_space() {
    let mut gpu = Gpu::new();
    let last = (1 << 48) - 4096;
    gpu.map_page(last, in_vram(DATA), PageSize::Size4K, true);
    gpu.map_page(0, in_vram(DATA + 0x1000), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[signal(last + 4088, 5), signal(0, 6)]);
    assert_eq!((gpu.vram64(DATA + 4088), gpu.vram64(DATA + 0x1000)), (5, 6));
    // A transfer goes up to the edge and not over it.
    for (address, expected) in [
        (1 << 48, 1 << 48),
        (last + 0xffc, 1 << 48),
        (1 << 63, 1 << 63),
    ] {
        let fill = Command::Fill {
            pattern: 0,
            address,
            bytes: 8,
        };
        let fault = gpu.run_buffer_to_fault(COMPUTE, &[fill]);
        let record = gpu.expect(COMPUTE, Reason::AddressRange, Access::Write, expected);
        assert_eq!(fault, record);
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
}

#[test]
fn absent_at_each_level() {
    let mut gpu = Gpu::new();
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
    for level in 0..4 {
        let at = gpu.entry_at(VA, level);
        let entry = gpu.vram64(at);
        for absent in [0, !Entry::VALID] {
            gpu.set_vram64(at, absent);
            let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA + 8, 1)]);
            let mut expected = gpu.expect(COMPUTE, Reason::NotPresent, Access::Write, VA + 8);
            expected.detail = level;
            assert_eq!(fault, expected);
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        }
        gpu.set_vram64(at, entry);
    }
    gpu.run_buffer(COMPUTE, &[signal(VA + 8, 1)]);
}

#[test]
fn each_malformed_bit_at_each_level() {
    let mut gpu = Gpu::new();
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
    for level in 0..4 {
        let at = gpu.entry_at(VA, level);
        let entry = gpu.vram64(at);
        for bit in 0..64 {
            let bit = 1_u64 << bit;
            let reserved = Entry::RESERVED & bit != 0;
            let wrong = match bit {
                Entry::WRITE => level > 0,
                // The entries point at VRAM.
                Entry::SNOOP => true,
                // Level 0: the page's address is no multiple of 64 KiB.
                Entry::LARGE => level != 1 && (level > 1 || entry & 0xf000 != 0),
                _ => reserved,
            };
            if !wrong {
                continue;
            }
            gpu.set_vram64(at, entry | bit);
            let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA, 1)]);
            let mut expected = gpu.expect(COMPUTE, Reason::BadEntry, Access::Write, VA);
            expected.detail = level;
            assert_eq!(fault, expected, "level {level}, bit {bit:#x}");
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        }
        gpu.set_vram64(at, entry);
    }
    // Large pages that are not aligned.
    for (level, size, target) in [
        (0, PageSize::Size64K, 0x40_1000),
        (1, PageSize::Size2M, 0x50_0000),
    ] {
        let at = gpu.entry_at(VA, level);
        let entry = gpu.vram64(at);
        gpu.set_vram64(at, Entry::page(in_vram(target), size, true, false).0);
        let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA, 1)]);
        assert_eq!((fault.reason, fault.detail), (Reason::BadEntry, level));
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
        gpu.set_vram64(at, entry);
    }
    gpu.run_buffer(COMPUTE, &[signal(VA, 1)]);
}

#[test]
fn read_only_pages() {
    let mut gpu = Gpu::new();
    for (i, size) in (0..).zip([PageSize::Size4K, PageSize::Size64K, PageSize::Size2M]) {
        let va = 0x40_0000_0000 + i * 0x4000_0000;
        gpu.map_page(va, in_vram(0x40_0000), size, false);
        let read = Command::Wait {
            address: va,
            value: 0,
        };
        // A look does not make it writable.
        gpu.run_buffer(COMPUTE, &[read]);
        for command in [
            signal(va, 1),
            Command::Fill {
                pattern: 0,
                address: va,
                bytes: 4,
            },
            Command::Copy {
                source: DATA_VA,
                destination: va,
                bytes: 4,
            },
        ] {
            let fault = gpu.run_buffer_to_fault(COMPUTE, &[command]);
            assert_eq!(
                fault,
                gpu.expect(COMPUTE, Reason::ReadOnly, Access::Write, va)
            );
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        }
    }
}

#[test]
fn nothing_behind_an_entry() {
    let mut gpu = Gpu::new();
    let outside = [
        Target::Vram(GpuPhys(vram::BASE + VRAM_BYTES)),
        Target::Vram(GpuPhys(vram::BASE - 4096)),
        Target::Vram(GpuPhys(gart::BASE)),
        Target::Vram(GpuPhys(0)),
        Target::System(BusAddr(0)),
        Target::System(BusAddr(BUS - 4096)),
        Target::System(BusAddr(BUS + skua_testbed::SYSTEM_BYTES)),
        Target::System(BusAddr((1 << 52) - 4096)),
    ];
    for target in outside {
        // As a page, and as each of the tables. Pages alone can be in the GART.
        let in_gart = target == Target::Vram(GpuPhys(gart::BASE));
        for level in u32::from(in_gart)..4 {
            gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
            let at = gpu.entry_at(VA, level);
            let entry = gpu.vram64(at);
            let bad = if level == 0 {
                Entry::page(target, PageSize::Size4K, true, false)
            } else {
                Entry::table(target)
            };
            gpu.set_vram64(at, bad.0);
            let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA, 1)]);
            let expected = gpu.expect(COMPUTE, Reason::BusError, Access::Write, VA);
            assert_eq!(fault, expected, "{target:?} {level}");
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
            gpu.set_vram64(at, entry);
        }
    }
    assert!(gpu.counter(Counter::BusError) > 0);
}

#[test]
fn the_gart_and_its_faults() {
    let mut gpu = Gpu::new();
    let good = Entry::gart(BusAddr(BUS + SYSTEM_FREE), true, true);
    let vram = Entry::page(in_vram(DATA), PageSize::Size4K, true, false);
    let end = gart::BASE + u64::from(gart::MAX_PAGES) * 4096;
    let page = gart::BASE + 0x5000;
    for (entry, reason) in [
        (Entry(0), Reason::NotPresent),
        (Entry(!Entry::VALID), Reason::NotPresent),
        (vram, Reason::BadEntry),
        (Entry(good.0 | Entry::LARGE), Reason::BadEntry),
        (Entry(good.0 | Entry::DUMMY), Reason::BadEntry),
        (Entry(vram.0 | Entry::DUMMY), Reason::BadEntry),
        (Entry(good.0 | (1 << 6)), Reason::BadEntry),
        (Entry(good.0 | (1 << 63)), Reason::BadEntry),
        (Entry(good.0 & !Entry::WRITE), Reason::ReadOnly),
        (Entry::gart(BusAddr(0x1000), true, true), Reason::BusError),
    ] {
        gpu.set_gart(5, entry);
        let fault = gpu.run_to_fault(COPY, &[signal(page + 8, 1)]);
        assert_eq!(
            (fault.reason, fault.access, fault.address, fault.detail),
            (reason, Access::Write, page + 8, 0)
        );
        assert_eq!(
            (fault.asid, fault.context_id, fault.fence),
            (Asid::SYSTEM, 0, 0)
        );
        gpu.reset_engine(COPY);
        gpu.start_engine(COPY);
    }
    for (address, reason) in [
        // Behind the pages that are switched on.
        (gart::BASE + 256 * 4096, Reason::NotPresent),
        (end - 8, Reason::NotPresent),
        (end, Reason::AddressRange),
        (gart::BASE - 8, Reason::AddressRange),
        (vram::BASE - 8, Reason::AddressRange),
        (vram::BASE + VRAM_BYTES, Reason::AddressRange),
        (0, Reason::AddressRange),
        (BUS, Reason::AddressRange),
        (u64::MAX - 7, Reason::AddressRange),
    ] {
        let fault = gpu.run_to_fault(COPY, &[signal(address, 1)]);
        assert_eq!((fault.reason, fault.address), (reason, address));
        gpu.reset_engine(COPY);
        gpu.start_engine(COPY);
    }
    gpu.set_gart(5, good);
    gpu.run(COPY, &[signal(page + 8, 1)]);
    assert_eq!(gpu.system64(SYSTEM_FREE + 8), 1);
    // A table that nothing answers at.
    gpu.set(regs::GART_TABLE::new().with_address(BusAddr(0x7000)));
    gpu.write(regs::GART_PAGES, 16);
    gpu.invalidate(Some(Asid::SYSTEM));
    let fault = gpu.run_to_fault(COPY, &[signal(page, 1)]);
    assert_eq!((fault.reason, fault.address), (Reason::BusError, page));
}

/// Who looks from outside is told nothing, wherever the guest has put the table.
#[test]
fn looks_at_a_table_that_is_nowhere() {
    let gpu = Gpu::new();
    for address in [0, 0x7000, BUS + 1, 1 << 52, u64::MAX - 0xfff, u64::MAX] {
        gpu.set(regs::GART_TABLE::new().with_address(BusAddr(address)));
        gpu.write(regs::GART_PAGES, u32::MAX);
        for page in [0, 1, 511, 512, GART_PAGES, 65535, u32::MAX] {
            let _ = gpu.device.look_at_gart(page);
        }
    }
    gpu.set(regs::GART_TABLE::new().with_address(BusAddr(u64::MAX - 0xfff)));
    gpu.write(regs::GART_PAGES, u32::MAX);
    assert_eq!(gpu.device.look_at_gart(512), None);
}

/// What must make a stale translation go, and what must not.
#[derive(Clone, Copy, Debug)]
enum Flush {
    Command(Option<Asid>),
    Register(Option<Asid>),
    EngineReset,
    AnotherAsid,
    AnotherAsidByRegister,
    Nothing,
    NewPacket,
}

#[test]
fn the_tlb_keeps_what_it_found_until_it_is_flushed() {
    let (old, new) = (DATA + 0x1_0000, DATA + 0x2_0000);
    for (flush, goes) in [
        (Flush::Nothing, false),
        (Flush::NewPacket, false),
        (Flush::AnotherAsid, false),
        (Flush::AnotherAsidByRegister, false),
        (Flush::Command(Some(ASID)), true),
        (Flush::Command(None), true),
        (Flush::Register(Some(ASID)), true),
        (Flush::Register(None), true),
        (Flush::EngineReset, true),
    ] {
        let mut gpu = Gpu::new();
        gpu.map_page(VA, in_vram(old), PageSize::Size4K, true);
        gpu.set_vram64(old, 0);
        gpu.set_vram64(new, 0);
        gpu.run_buffer(COMPUTE, &[signal(VA, 1)]);
        gpu.map_page(VA, in_vram(new), PageSize::Size4K, true);
        match flush {
            Flush::Nothing => {}
            Flush::NewPacket => gpu.run_buffer(COMPUTE, &[Command::FlushCache]),
            Flush::Command(asid) => gpu.run(COMPUTE, &[Command::FlushTlb { asid }]),
            Flush::AnotherAsid => gpu.run(
                COMPUTE,
                &[
                    Command::FlushTlb { asid: Some(OTHER) },
                    Command::FlushTlb {
                        asid: Some(Asid::SYSTEM),
                    },
                ],
            ),
            Flush::Register(asid) => gpu.invalidate(asid),
            Flush::AnotherAsidByRegister => {
                gpu.invalidate(Some(OTHER));
                gpu.invalidate(Some(Asid::SYSTEM));
            }
            Flush::EngineReset => {
                gpu.reset_engine(COMPUTE);
                gpu.start_engine(COMPUTE);
            }
        }
        gpu.run_buffer(COMPUTE, &[signal(VA, 2)]);
        let expected = if goes { (1, 2) } else { (2, 0) };
        assert_eq!((gpu.vram64(old), gpu.vram64(new)), expected, "{flush:?}");
        // The other engine has a TLB of its own.
        gpu.run_buffer(COPY, &[signal(VA, 3)]);
        assert_eq!(gpu.vram64(new), 3, "{flush:?}");
    }
}

/// Changes the entry of `level` on the way to [`VA`], which an engine has used, has the address
/// `probe` behind it lead to another page, and tells whether the engine goes there after `flush`.
fn goes_another_way(level: u32, flush: impl FnOnce(&mut Gpu)) -> bool {
    let (old, new) = (DATA + 0x1_0000, DATA + 0x2_0000);
    let mut gpu = Gpu::new();
    // The same entry of `level`, and another one below.
    let probe = VA + entry_span(level - 1);
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
    gpu.map_page(probe, in_vram(old), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[signal(VA, 1)]);
    let (at, table) = (gpu.entry_at(VA, level), gpu.new_table());
    gpu.set_vram64(at, Entry::table(in_vram(table)).0);
    gpu.map_page(probe, in_vram(new), PageSize::Size4K, true);
    flush(&mut gpu);
    gpu.set_vram64(old, 0);
    gpu.set_vram64(new, 0);
    gpu.run_buffer(COMPUTE, &[signal(probe, 1)]);
    let found = (gpu.vram64(old), gpu.vram64(new));
    assert!(matches!(found, (0, 1) | (1, 0)), "{found:?}");
    found == (0, 1)
}

#[test]
fn tables_are_kept_until_they_are_flushed() {
    for level in 1..=ROOT_LEVEL {
        assert!(!goes_another_way(level, |_| {}), "level {level}");
        for (asid, goes) in [(Some(ASID), true), (None, true), (Some(OTHER), false)] {
            let found = [
                goes_another_way(level, |gpu| gpu.run(COMPUTE, &[Command::FlushTlb { asid }])),
                goes_another_way(level, |gpu| {
                    gpu.run(COMPUTE, &[Command::Invalidate { asid }])
                }),
                goes_another_way(level, |gpu| gpu.run(COPY, &[Command::Invalidate { asid }])),
                goes_another_way(level, |gpu| gpu.invalidate(asid)),
            ];
            assert_eq!(found, [goes; 4], "level {level}, {asid:?}");
        }
        let reset = |gpu: &mut Gpu| {
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        };
        assert!(goes_another_way(level, reset), "level {level}");
    }
}

#[test]
fn a_table_that_is_not_there_is_not_kept() {
    let mut gpu = Gpu::new();
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
    let (bus, tally) = (Bus::default(), Tally::default());
    let guard = bus.enter();
    for level in 1..=ROOT_LEVEL {
        let mut mmu = Mmu::default();
        let at = gpu.entry_at(VA, level);
        let entry = gpu.vram64(at);
        let vram = gpu.device.vram().enter();
        let memory = Memory::new(&vram, gart::Table::default(), &guard, &tally);
        let root = skua_testbed::root();
        let space = Space::Process { asid: ASID, root };
        let mut translate = || mmu.translate(&memory, space, VA, Access::Read);
        gpu.set_vram64(at, 0);
        let fault = translate().unwrap_err();
        assert_eq!((fault.reason, fault.detail), (Reason::NotPresent, level));
        gpu.set_vram64(at, entry);
        assert_eq!(translate().map(|found| found.place), Ok(Place::Vram(DATA)));
    }
}

/// All addresses from here on, for 4 TiB, are the page at [`DATA`].
const EVERYWHERE: u64 = 0x4000_0000_0000;

/// A device, and an MMU of its own for the same process, in which [`EVERYWHERE`] is mapped.
fn with_mmu(f: impl FnOnce(&mut dyn FnMut(u64) -> [u64; 5])) {
    let mut gpu = Gpu::new();
    let page = Entry::page(in_vram(DATA), PageSize::Size4K, true, false).0;
    let mut entry = page;
    for _ in 0..3 {
        let table = gpu.new_table();
        for i in 0..512 {
            gpu.set_vram64(table + i * 8, entry);
        }
        entry = Entry::table(in_vram(table)).0;
    }
    for i in 0..8 {
        let at = gpu.entry_at(EVERYWHERE + i * entry_span(ROOT_LEVEL), ROOT_LEVEL);
        gpu.set_vram64(at, entry);
    }
    let (bus, mut mmu) = (Bus::default(), Mmu::default());
    let guard = bus.enter();
    let root = skua_testbed::root();
    f(&mut |va| {
        let tally = Tally::default();
        let vram = gpu.device.vram().enter();
        let memory = Memory::new(&vram, gart::Table::default(), &guard, &tally);
        let space = Space::Process { asid: ASID, root };
        mmu.translate(&memory, space, va, Access::Read).unwrap();
        [
            Counter::TlbHit,
            Counter::TlbMiss,
            Counter::WalkHit,
            Counter::WalkMiss,
            Counter::VramRead,
        ]
        .map(|counter| tally.get(counter))
    });
}

#[test]
fn a_walk_begins_at_the_lowest_table_that_is_kept() {
    with_mmu(|translate| {
        let va = EVERYWHERE;
        assert_eq!(translate(va), [0, 1, 0, 3, 4 * 8]);
        assert_eq!(translate(va), [1, 0, 0, 0, 0]);
        assert_eq!(translate(va + 0x1000), [0, 1, 1, 0, 8]);
        assert_eq!(translate(va + entry_span(1)), [0, 1, 1, 1, 2 * 8]);
        assert_eq!(translate(va + entry_span(2)), [0, 1, 1, 2, 3 * 8]);
        assert_eq!(translate(va + entry_span(3)), [0, 1, 0, 3, 4 * 8]);
        // All of these are kept now.
        assert_eq!(translate(va + entry_span(1) + 0x1000), [0, 1, 1, 0, 8]);
        assert_eq!(translate(va + entry_span(3) + 0x1000), [0, 1, 1, 0, 8]);
    });
}

#[test]
fn as_much_is_kept_as_the_manual_says() {
    // Translations of 4 KiB pages.
    with_mmu(|translate| {
        let mut misses = |numbers: std::ops::Range<u64>| -> u64 {
            numbers.map(|i| translate(EVERYWHERE + i * 0x1000)[1]).sum()
        };
        assert_eq!(misses(0..1024), 1024);
        assert_eq!(misses(0..1024), 0);
        assert_eq!(misses(1024..1025), 1);
        assert_eq!(misses(0..1024), 1);
    });
    // Entries for tables, by the entries that a walk to pages behind each has to read.
    for (level, places) in [(1, 64), (2, 16), (3, 4)] {
        with_mmu(|translate| {
            let mut page = 0;
            let mut misses = |numbers: std::ops::Range<u64>| -> u64 {
                // No page that the TLB knows, and no table below.
                page += entry_span(level - 1);
                numbers
                    .map(|i| translate(EVERYWHERE + i * entry_span(level) + page)[3])
                    .sum()
            };
            let below = u64::from(level) - 1;
            misses(0..places);
            assert_eq!(misses(0..places), places * below, "level {level}");
            misses(places..places + 1);
            assert!(misses(0..places) > places * below, "level {level}");
        });
    }
}

#[test]
fn a_stale_entry_keeps_its_write_bit_and_an_absent_one_is_not_kept() {
    let mut gpu = Gpu::new();
    // Absent: a fault, then present: no flush is needed.
    let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA, 1)]);
    assert_eq!(fault.reason, Reason::NotPresent);
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, false);
    let read = Command::Wait {
        address: VA,
        value: 0,
    };
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    gpu.run_buffer(COMPUTE, &[read]);
    // Now writable, but the TLB does not know.
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
    let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA, 1)]);
    assert_eq!(fault.reason, Reason::ReadOnly);
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    gpu.run_buffer(COMPUTE, &[signal(VA, 1)]);
    // Taken away, but the TLB still knows it.
    let at = gpu.entry_at(VA, 0);
    gpu.set_vram64(at, 0);
    gpu.run_buffer(COMPUTE, &[signal(VA, 2)]);
    assert_eq!(gpu.vram64(DATA), 2);
    gpu.invalidate(Some(ASID));
    let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA, 3)]);
    assert_eq!((fault.reason, fault.detail), (Reason::NotPresent, 0));
}

#[test]
fn the_gart_is_kept_as_well() {
    let mut gpu = Gpu::new();
    let page = gpu.set_gart(7, Entry::gart(BusAddr(BUS + SYSTEM_FREE), true, true));
    gpu.run(COPY, &[signal(page, 1)]);
    gpu.set_gart(
        7,
        Entry::gart(BusAddr(BUS + SYSTEM_FREE + 0x1000), true, true),
    );
    gpu.run(
        COPY,
        &[signal(page, 2), Command::FlushTlb { asid: Some(ASID) }],
    );
    gpu.run(COPY, &[signal(page, 3)]);
    assert_eq!(gpu.system64(SYSTEM_FREE), 3);
    gpu.run(
        COPY,
        &[
            Command::FlushTlb {
                asid: Some(Asid::SYSTEM),
            },
            signal(page, 4),
        ],
    );
    assert_eq!(gpu.system64(SYSTEM_FREE), 3);
    assert_eq!(gpu.system64(SYSTEM_FREE + 0x1000), 4);
    // Switched off: what is kept still works, the rest does not.
    gpu.write(regs::GART_PAGES, 0);
    gpu.run(COPY, &[signal(page, 5)]);
    assert_eq!(gpu.system64(SYSTEM_FREE + 0x1000), 5);
    gpu.invalidate(Some(Asid::SYSTEM));
    let fault = gpu.run_to_fault(COPY, &[signal(page, 6)]);
    assert_eq!(fault.reason, Reason::NotPresent);
}

/// An entry of a page of a process that leads to page `page` of the GART window.
const fn in_gart(page: u64) -> Target {
    Target::Vram(GpuPhys(gart::BASE + page * 4096))
}

#[test]
fn pages_of_a_process_in_the_gart_are_translated_twice() {
    let mut gpu = Gpu::new();
    let system = |page: u64| Entry::gart(BusAddr(BUS + SYSTEM_FREE + page * 0x1000), true, true);
    gpu.set_gart(7, system(0));
    gpu.map_page(VA, in_gart(7), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[signal(VA + 8, 1)]);
    assert_eq!(gpu.system64(SYSTEM_FREE + 8), 1);
    // Each of the two translations is kept for itself: a flush of the GART alone is enough.
    gpu.set_gart(7, system(1));
    gpu.invalidate(Some(ASID));
    gpu.run_buffer(COMPUTE, &[signal(VA + 8, 2)]);
    assert_eq!(gpu.system64(SYSTEM_FREE + 8), 2);
    gpu.invalidate(Some(Asid::SYSTEM));
    gpu.run_buffer(COMPUTE, &[signal(VA + 8, 3)]);
    assert_eq!(gpu.system64(SYSTEM_FREE + 8), 2);
    assert_eq!(gpu.system64(SYSTEM_FREE + 0x1008), 3);
    // A large page, of which each part goes its own way.
    for page in 0..16 {
        gpu.set_gart(16 + page, system(15 - page));
    }
    let large = VA & !0xffff;
    gpu.map_page(large, in_gart(16), PageSize::Size64K, true);
    gpu.invalidate(Some(ASID));
    gpu.run_buffer(
        COMPUTE,
        &[Command::Fill {
            pattern: 0x5a5a_5a5a,
            address: large + 0xff8,
            bytes: 16,
        }],
    );
    assert_eq!(gpu.system64(SYSTEM_FREE + 0xfff8), 0x5a5a_5a5a_5a5a_5a5a);
    assert_eq!(gpu.system64(SYSTEM_FREE + 0xe000), 0x5a5a_5a5a_5a5a_5a5a);
    // A write needs both write bits, and a fault names the virtual address.
    for (entry, write, reason) in [
        (system(0), false, Reason::ReadOnly),
        (Entry(system(0).0 & !Entry::WRITE), true, Reason::ReadOnly),
        (Entry::INVALID, true, Reason::NotPresent),
        (Entry(system(0).0 & !Entry::SYSTEM), true, Reason::BadEntry),
        (
            Entry::gart(BusAddr(0x1000), true, true),
            true,
            Reason::BusError,
        ),
    ] {
        gpu.set_gart(7, entry);
        gpu.map_page(VA, in_gart(7), PageSize::Size4K, write);
        gpu.invalidate(None);
        let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA + 8, 4)]);
        assert_eq!(
            fault,
            gpu.expect(COMPUTE, reason, Access::Write, VA + 8),
            "{entry:?}"
        );
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
}

#[test]
fn what_reads_a_dummy_page_is_counted() {
    let mut gpu = Gpu::new();
    let dummy = BusAddr(BUS + SYSTEM_FREE + 0x3000);
    gpu.set_system64(SYSTEM_FREE + 0x3008, 0x1234);
    gpu.set_gart(7, Entry::dummy(dummy));
    gpu.map_page(VA, in_gart(7), PageSize::Size4K, true);
    let read = Command::Copy {
        source: VA + 8,
        destination: DATA_VA,
        bytes: 8,
    };
    assert_eq!(gpu.counter(Counter::GartDummy), 0);
    for count in 1..4 {
        // Of the tables, and of the TLB.
        gpu.run_buffer(COMPUTE, &[read]);
        assert_eq!(gpu.counter(Counter::GartDummy), count);
    }
    assert_eq!(gpu.vram64(DATA), 0x1234);
    // What is written goes nowhere.
    let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal(VA + 8, 4)]);
    assert_eq!(
        fault,
        gpu.expect(COMPUTE, Reason::ReadOnly, Access::Write, VA + 8)
    );
    assert_eq!(gpu.system64(SYSTEM_FREE + 0x3008), 0x1234);
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    // The same page, mapped.
    gpu.set_gart(7, Entry::gart(dummy, true, true));
    gpu.invalidate(Some(Asid::SYSTEM));
    gpu.run_buffer(COMPUTE, &[read]);
    assert_eq!(gpu.counter(Counter::GartDummy), 3);
}

#[test]
fn address_spaces_do_not_mix() {
    let mut gpu = Gpu::new();
    // A second process with the same addresses and another page.
    gpu.map_page(VA, in_vram(DATA), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[signal(VA, 1)]);
    let tables = gpu.vram_bytes(TABLES, 0x1_0000);
    let other = 0x50_0000;
    gpu.set_vram(other, &tables);
    // The copy's tables still point at the original ones but for the root; give it an own way.
    gpu.write_context(
        CONTEXT + 64,
        OTHER,
        CONTEXT_ID + 1,
        Entry::table(in_vram(other)),
    );
    let (mut exec, _) = gpu.exec(COMPUTE, &[signal(VA, 2)]);
    if let Command::Exec { context, .. } = &mut exec {
        *context = vram::BASE + CONTEXT + 64;
    }
    let index = skua_spec::mmu::index(skua_spec::address::GpuVa(VA), 3) as u64 * 8;
    gpu.set_vram64(other + index, 0);
    let fault = gpu.run_to_fault(COMPUTE, &[exec]);
    assert_eq!(
        (fault.reason, fault.detail, fault.asid, fault.context_id),
        (Reason::NotPresent, 3, OTHER, CONTEXT_ID + 1)
    );
    assert_eq!(gpu.vram64(DATA), 1);
}

#[test]
fn snooping_travels_with_a_translation() {
    let mut gpu = Gpu::new();
    let mut pages = Vec::new();
    for (i, size) in (0..).zip([PageSize::Size4K, PageSize::Size64K, PageSize::Size2M]) {
        for (j, snoop) in (0..).zip([true, false]) {
            let va = 0x5000_0000 + (2 * i + j) * 0x20_0000;
            let target = Target::System(BusAddr(BUS));
            gpu.map_page(va, target, size, true);
            let level = u32::from(size == PageSize::Size2M);
            let (at, entry) = (
                gpu.entry_at(va, level),
                Entry::page(target, size, true, snoop),
            );
            for k in 0..if size == PageSize::Size64K { 16 } else { 1 } {
                gpu.set_vram64(at + k * 8, entry.0);
            }
            let root = skua_testbed::root();
            pages.push((Space::Process { asid: ASID, root }, va, snoop));
        }
    }
    for (i, snoop) in [(0, true), (1, false)] {
        let va = gpu.set_gart(i, Entry::gart(BusAddr(BUS), true, snoop));
        pages.push((Space::System, va, snoop));
    }
    let (bus, tally) = (Bus::default(), Tally::default());
    bus.set_master(true);
    bus.map(BUS, SYSTEM_BYTES, gpu.backing(0)).unwrap();
    let gart = gart::Table {
        address: BUS + GART_TABLE,
        pages: GART_PAGES,
    };
    let guard = bus.enter();
    let vram = gpu.device.vram().enter();
    let memory = Memory::new(&vram, gart, &guard, &tally);
    let mut mmu = Mmu::default();
    for (space, va, snoop) in pages {
        // Of the tables, and of the TLB.
        for _ in 0..2 {
            let found = mmu.translate(&memory, space, va + 0x10, Access::Read);
            let address = BUS + 0x10;
            let place = found.map(|found| found.place);
            assert_eq!(place, Ok(Place::System { address, snoop }), "{va:#x}");
        }
    }
}
