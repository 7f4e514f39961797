// SPDX-License-Identifier: GPL-2.0 OR MIT

//! System memory that comes and goes under load.

use std::sync::Arc;

use skua_gpu::bus::{Backing, Bus, MapError, MAX_RANGES};
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::Command;
use skua_spec::fault::{Access, Reason};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::regs;
use skua_spec::status::{Counter, EngineState};
use skua_testbed::{Gpu, BUS, COMPUTE, COPY, DATA, DATA_VA, ENGINES, SYSTEM_BYTES, SYSTEM_FREE};
use vm_memory::MmapRegion;

/// A second range of the bus.
const OTHER: u64 = 0x40_0000_0000;

#[test]
fn mappings_that_break_the_rules() {
    let gpu = Gpu::bare();
    let map = |address, bytes, offset| gpu.device.dma_map(address, bytes, gpu.backing(offset));
    assert_eq!(map(OTHER + 1, 0x1000, 0), Err(MapError::Misaligned));
    assert_eq!(map(OTHER, 0x1001, 0), Err(MapError::Misaligned));
    assert_eq!(map(OTHER, 0x1000, 8), Err(MapError::Misaligned));
    assert_eq!(map(OTHER, 0, 0), Err(MapError::Misaligned));
    assert_eq!(map(1 << 48, 0x1000, 0), Err(MapError::OutOfRange));
    assert_eq!(
        map((1 << 48) - 0x1000, 0x2000, 0),
        Err(MapError::OutOfRange)
    );
    assert_eq!(map(u64::MAX - 0xfff, 0x1000, 0), Err(MapError::OutOfRange));
    assert_eq!(map(OTHER, SYSTEM_BYTES, 0x1000), Err(MapError::OutOfRange));
    for (address, bytes) in [
        (BUS, 0x1000),
        (BUS - 0x1000, 0x2000),
        (BUS + SYSTEM_BYTES - 0x1000, 0x2000),
    ] {
        assert_eq!(map(address, bytes, 0), Err(MapError::Overlap));
    }
    assert_eq!(map(OTHER, 0x1000, 0), Ok(()));
    assert_eq!(map(BUS - 0x1000, 0x1000, 0), Ok(()));
}

/// A guest with an IOMMU maps as many as it likes, and cuts what it has mapped.
#[test]
fn ranges_are_limited() {
    let gpu = Gpu::bare();
    let bus = Bus::default();
    bus.set_master(true);
    let at = |number: usize| OTHER + number as u64 * 0x1000;
    let map = |number| bus.map(at(number), 0x1000, gpu.backing(0));
    let answers = |address| bus.enter().slice(address, 8, false).is_some();
    assert_eq!(bus.map(0, 0x8000, gpu.backing(0)), Ok(()));
    let more = 1..MAX_RANGES + 2;
    let mapped = more.take_while(|number| map(*number) == Ok(())).count();
    assert_eq!(mapped + 1, MAX_RANGES);
    assert_eq!(map(mapped + 1), Err(MapError::TooMany));
    assert!(!answers(at(mapped + 1)) && answers(at(mapped)));
    // What is cut in two is one more.
    bus.unmap(0x3000, 0x1000);
    assert_eq!(
        [0x2000, 0x3000, 0x4000, 0x7000].map(answers),
        [true, false, false, false]
    );
    assert_eq!(map(mapped + 1), Err(MapError::TooMany));
    // What goes makes room for another.
    bus.unmap(at(1), 0x1000);
    assert_eq!(map(mapped + 1), Ok(()));
    bus.unmap(at(2), 0x1000);
    bus.unmap(0x1000, 0x1000);
    assert_eq!([0, 0x1000, 0x2000].map(answers), [true, false, true]);
}

#[test]
fn unmapping_cuts_what_reaches_over() {
    let mut gpu = Gpu::new();
    let page = |i: u64| BUS + SYSTEM_FREE + i * 0x1000;
    for i in 0..8 {
        gpu.set_gart(i, Entry::gart(BusAddr(page(i)), true, true));
    }
    gpu.device.dma_unmap(page(2), 0x3000);
    let mut answers = Vec::new();
    for i in 0..8 {
        let signal = Command::Signal {
            address: skua_gpu::gart::BASE + i * 0x1000,
            value: 40 + i,
        };
        gpu.start(COPY, &[signal]);
        gpu.wait_for("an end", |gpu| {
            gpu.head(COPY) == gpu.tail(COPY) && gpu.system64(SYSTEM_FREE + i * 0x1000) == 40 + i
                || gpu.state(COPY) == 4
        });
        answers.push(gpu.state(COPY) != 4);
        if gpu.state(COPY) == 4 {
            assert_eq!(gpu.wait_fault().reason, Reason::BusError);
            gpu.reset_engine(COPY);
            gpu.start_engine(COPY);
        }
    }
    assert_eq!(answers, [true, true, false, false, false, true, true, true]);
}

#[test]
fn permissions_of_the_bus() {
    let mut gpu = Gpu::new();
    let region = Arc::new(MmapRegion::new(0x1000).unwrap());
    let signal = |address| Command::Signal { address, value: 1 };
    let wait = |address| Command::Wait { address, value: 0 };
    let page = gpu.set_gart(1, Entry::gart(BusAddr(OTHER), true, true));
    for (readable, writable) in [(true, false), (false, true)] {
        let backing = Backing {
            region: Arc::clone(&region),
            offset: 0,
            readable,
            writable,
        };
        gpu.device.dma_map(OTHER, 0x1000, backing).unwrap();
        let (good, bad, access) = if writable {
            (signal(page), wait(page), Access::Read)
        } else {
            (wait(page), signal(page), Access::Write)
        };
        gpu.run(COPY, &[good]);
        let fault = gpu.run_to_fault(COPY, &[bad]);
        assert_eq!((fault.reason, fault.access), (Reason::BusError, access));
        gpu.reset_engine(COPY);
        gpu.start_engine(COPY);
        gpu.device.dma_unmap(OTHER, 0x1000);
    }
}

#[test]
fn without_bus_mastering_nothing_answers() {
    let mut gpu = Gpu::new();
    let page = gpu.set_gart(1, Entry::gart(BusAddr(BUS + SYSTEM_FREE), true, true));
    gpu.device.set_bus_master(false);
    let errors = gpu.counter(Counter::BusError);
    gpu.push(
        COPY,
        &[Command::Signal {
            address: page,
            value: 1,
        }],
    );
    gpu.doorbell(COPY);
    gpu.wait_for("bus errors", |gpu| gpu.counter(Counter::BusError) > errors);
    gpu.wait_for("the fault", |gpu| {
        gpu.get_engine(COPY, regs::engine::STATUS).state() == Some(EngineState::Faulted)
    });
    assert_eq!(gpu.system64(SYSTEM_FREE), 0);
    gpu.device.set_bus_master(true);
    gpu.reset_engine(COPY);
    gpu.start_engine(COPY);
    gpu.run(
        COPY,
        &[Command::Signal {
            address: page,
            value: 1,
        }],
    );
}

/// An interrupt is a write to memory: neither a packet's end, nor a preemption, nor a fault raises
/// one, nor does the device count it, or make up for it.
#[test]
fn without_bus_mastering_no_interrupt_comes() {
    let mut gpu = Gpu::new();
    gpu.device.set_bus_master(false);
    let (exec, _) = gpu.exec(COPY, &[Command::Nop { words: 2 }]);
    gpu.start(COPY, &[exec]);
    gpu.wait_for("the packet's end", |gpu| {
        gpu.get_engine(COPY, regs::engine::HEAD).offset() == gpu.tail(COPY)
    });
    gpu.ask_to_preempt(COPY, 1);
    gpu.start(
        COMPUTE,
        &[Command::Wait {
            address: 0,
            value: 0,
        }],
    );
    gpu.wait_for("the fault", |gpu| {
        gpu.get_engine(COMPUTE, regs::engine::STATUS).state() == Some(EngineState::Faulted)
    });
    gpu.wait_for("the record", |gpu| gpu.counter(Counter::PreemptIdle) == 1);
    // What was to be raised has been, then.
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.device.is_ready());
    gpu.device.set_bus_master(true);
    assert_eq!([0, 1, 2].map(|vector| gpu.lines.count(vector)), [0; 3]);
    let counters = [Counter::EngineInterrupt, Counter::FaultInterrupt];
    assert_eq!(counters.map(|counter| gpu.counter(counter)), [0; 2]);
    gpu.set_up();
    gpu.run_buffer(COPY, &[]);
    gpu.wait_for("an interrupt", |gpu| gpu.lines.count(1) == 1);
}

/// While both engines write to system memory without end, its pages are taken away: when that
/// returns, no byte of them changes any more.
#[test]
fn no_access_after_an_unmap() {
    let mut gpu = Gpu::new();
    let program = skua_asm::assemble(
        ".arg64 target
           arg r2, target
           arg r3, target.hi
         again: add r0, r0, 1
           st.32 [r2], r0
           bra again",
    )
    .unwrap();
    gpu.set_vram(DATA, &program.bytes());
    let va = 0x6000_0000;
    let mut seen = 0;
    for round in 0..10_u64 {
        let region = Arc::new(MmapRegion::new(0x20_0000).unwrap());
        let backing = Backing {
            region: Arc::clone(&region),
            offset: 0,
            readable: true,
            writable: true,
        };
        gpu.device.dma_map(OTHER, 0x20_0000, backing).unwrap();
        gpu.map_page(va, Target::System(BusAddr(OTHER)), PageSize::Size2M, true);
        let dispatch = program
            .dispatch(DATA_VA, [1; 3], |_| Some(va + 0x1000 * round))
            .unwrap();
        let (compute, _) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
        let fills: Vec<_> = (0..2000)
            .map(|i| Command::Fill {
                pattern: i,
                address: va + 0x10_0000,
                bytes: 0x10_0000,
            })
            .collect();
        let (copy, _) = gpu.exec(COPY, &fills);
        gpu.start(COMPUTE, &[compute]);
        gpu.start(COPY, &[copy]);
        let contents = || {
            let mut bytes = vec![0_u8; 0x20_0000];
            vm_memory::VolatileMemory::as_volatile_slice(&*region).copy_to(&mut bytes);
            bytes
        };
        gpu.wait_for("writes", |_| {
            let bytes = contents();
            bytes[0x1000 * round as usize] != 0 && bytes[0x1f_fffc] > 1
        });
        gpu.device.dma_unmap(OTHER, 0x20_0000);
        let before = contents();
        // Both engines find out by themselves, but the copies may all have been done.
        gpu.wait_state(COMPUTE, EngineState::Faulted);
        gpu.wait_for("the copy engine", |gpu| {
            gpu.state(COPY) != EngineState::Running as u32
        });
        gpu.wait_for("the fault", |gpu| gpu.fault_put() != seen);
        while gpu.fault_put() != seen {
            assert_eq!(gpu.wait_fault().reason, Reason::BusError);
            seen += 1;
        }
        assert!(contents() == before);
        for engine in ENGINES {
            gpu.reset_engine(engine);
            gpu.start_engine(engine);
        }
    }
}

#[test]
fn a_ring_whose_memory_goes_away() {
    let mut gpu = Gpu::new();
    let page = gpu.set_gart(1, Entry::gart(BusAddr(BUS + SYSTEM_FREE), true, true));
    gpu.reset_engine(COPY);
    gpu.set_engine(
        COPY,
        regs::engine::RING_BASE::new().with_address(GpuPhys(page)),
    );
    gpu.set_engine(COPY, regs::engine::CTRL::new().with_enable(true));
    gpu.device.dma_unmap(BUS + SYSTEM_FREE, 0x1000);
    gpu.set_engine(COPY, regs::engine::DOORBELL::new().with_tail(8));
    let fault = gpu.wait_fault();
    assert_eq!(
        (fault.reason, fault.access, fault.address, fault.command),
        (Reason::BusError, Access::Fetch, page, 0)
    );
}
