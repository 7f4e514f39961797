// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What work takes in ticks: the table of manual section 3.

use skua_asm::assemble;
use skua_gpu::{gart, vram};
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::Command;
use skua_spec::mmu::{entry_span, index, Entry, PageSize, Target};
use skua_spec::number::EngineIndex;
use skua_spec::regs::engine;
use skua_spec::status::Counter;
use skua_spec::ticks::{COMMAND, CONTENDED, LINE, SYSTEM, TLB_MISS, WALK};
use skua_testbed::{
    Gpu, ASID, BUS, COLD, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA, GART_PAGES, RING_BYTES,
    SYSTEM_FREE,
};

/// A page of the GART that the TLB has not: its entry is in system memory.
const GART_MISS: u64 = TLB_MISS + SYSTEM;

/// VRAM and system memory, GPU-physical.
const VRAM: u64 = vram::BASE + DATA;
const SYSTEM_MEMORY: u64 = gart::BASE;

/// A device with the GART's pages in system memory.
fn gpu() -> Gpu {
    let gpu = Gpu::new();
    for i in 0..u64::from(GART_PAGES) {
        let target = BusAddr(BUS + SYSTEM_FREE + i * 0x1000);
        gpu.set_gart(i, Entry::gart(target, true, true));
    }
    gpu
}

/// What commands in the ring take.
fn time(gpu: &mut Gpu, engine: EngineIndex, commands: &[Command]) -> u64 {
    let before = gpu.ticks(engine);
    gpu.run(engine, commands);
    gpu.ticks(engine) - before
}

/// What an empty buffer takes, or one with commands.
fn time_in_buffer(gpu: &mut Gpu, engine: EngineIndex, commands: &[Command]) -> u64 {
    let (exec, _) = gpu.exec(engine, commands);
    time(gpu, engine, &[exec])
}

fn fill(address: u64, bytes: u64) -> Command {
    Command::Fill {
        pattern: 1,
        address,
        bytes,
    }
}

#[test]
fn transfers() {
    let mut gpu = gpu();
    let pages = |bytes: u64| bytes.div_ceil(0x1000);
    for bytes in [4_u64, 64, 68, 0x1000, 0x1_1004] {
        let lines = bytes.div_ceil(64);
        gpu.run(COPY, &[Command::Invalidate { asid: None }]);
        let found = time(&mut gpu, COPY, &[fill(VRAM, bytes)]);
        assert_eq!(found, COMMAND + lines * LINE, "{bytes}");
        // The pages that the TLB has not, and then has.
        for misses in [pages(bytes), 0] {
            let found = time(&mut gpu, COPY, &[fill(SYSTEM_MEMORY, bytes)]);
            let expected = COMMAND + lines * (LINE + SYSTEM) + misses * GART_MISS;
            assert_eq!(found, expected, "{bytes}");
        }
        gpu.run(COPY, &[fill(SYSTEM_MEMORY + 0x4_0000, bytes)]);
        for (source, destination, systems) in [
            (VRAM, VRAM + 0x4_0000, 0),
            (VRAM, SYSTEM_MEMORY, 1),
            (SYSTEM_MEMORY, VRAM, 1),
            (SYSTEM_MEMORY, SYSTEM_MEMORY + 0x4_0000, 2),
        ] {
            let copy = Command::Copy {
                source,
                destination,
                bytes,
            };
            let expected = COMMAND + lines * (LINE + systems * SYSTEM);
            assert_eq!(
                time(&mut gpu, COPY, &[copy]),
                expected,
                "{bytes}, {systems}"
            );
            let rows = Command::Copy2d {
                source,
                destination,
                bytes: 65,
                source_pitch: 100,
                destination_pitch: 65,
                rows: 7,
            };
            let expected = COMMAND + 7 * 2 * (LINE + systems * SYSTEM);
            assert_eq!(time(&mut gpu, COPY, &[rows]), expected, "{systems}");
        }
    }
}

#[test]
fn values() {
    let mut gpu = gpu();
    for (address, system) in [(VRAM, 0), (SYSTEM_MEMORY, SYSTEM)] {
        let signal = Command::Signal { address, value: 1 };
        let wait = Command::Wait { address, value: 1 };
        gpu.run(COMPUTE, &[signal]);
        assert_eq!(time(&mut gpu, COMPUTE, &[signal]), COMMAND + system);
        assert_eq!(time(&mut gpu, COMPUTE, &[wait]), COMMAND + system);
        // Whatever it has to look.
        let before = gpu.ticks(COMPUTE);
        gpu.start(COMPUTE, &[Command::Wait { address, value: 2 }]);
        gpu.wait_state(COMPUTE, skua_spec::status::EngineState::Waiting);
        gpu.run(COPY, &[Command::Signal { address, value: 2 }]);
        gpu.wait_idle(COMPUTE);
        assert_eq!(gpu.ticks(COMPUTE) - before, COMMAND + system);
    }
}

#[test]
fn commands_in_system_memory() {
    let mut gpu = gpu();
    gpu.reset_engine(COPY);
    // The ring is the GART's first page.
    gpu.set_engine(
        COPY,
        engine::RING_BASE::new().with_address(GpuPhys(gart::BASE)),
    );
    gpu.set_engine(COPY, engine::RING_SIZE::new().with_bytes(RING_BYTES));
    gpu.set_engine(COPY, engine::CTRL::new().with_enable(true));
    let (exec, fence) = gpu.exec(COPY, &[]);
    let commands = [
        Command::Nop { words: 2 },
        fill(VRAM, 64),
        exec,
        Command::Nop { words: 2 },
    ];
    let words: Vec<u8> = commands
        .iter()
        .flat_map(|command| command.encode().words().to_vec())
        .flat_map(u32::to_le_bytes)
        .collect();
    gpu.set_system(SYSTEM_FREE, &words);
    let tail = engine::DOORBELL::new().with_tail(words.len() as u32);
    gpu.set_engine(COPY, tail);
    gpu.wait_fence(COPY, fence);
    gpu.wait_for("the end of the ring", |gpu| {
        gpu.head(COPY) == words.len() as u32 && gpu.state(COPY) == 1
    });
    // A NOP is its header alone; the others have two parts.
    let (nop, two) = (COMMAND + SYSTEM, COMMAND + 2 * SYSTEM);
    assert_eq!(gpu.ticks(COPY), GART_MISS + nop + two + LINE + two + nop);
    // What it took to fetch EXEC is the packet's.
    assert_eq!(gpu.vram64(CONTEXT + 0x20), two);
}

#[test]
fn translations() {
    let mut gpu = gpu();
    let target = Target::Vram(GpuPhys(VRAM));
    // The buffer's page is known.
    gpu.run_buffer(COPY, &[]);
    gpu.run_buffer(COPY, &[Command::FlushCache]);
    let signal = |address| Command::Signal { address, value: 1 };
    let takes = |gpu: &mut Gpu, va: u64| time_in_buffer(gpu, COPY, &[signal(va)]) - 2 * COMMAND;
    let va = 0x1000_0000_0000;
    let near = [0, 0x1000, entry_span(1), entry_span(2), entry_span(3)];
    for offset in near {
        gpu.map_page(va + offset, target, PageSize::Size4K, true);
    }
    let tables = [3, 0, 1, 2, 3];
    for (offset, tables) in near.into_iter().zip(tables) {
        let expected = TLB_MISS + tables * WALK;
        assert_eq!(takes(&mut gpu, va + offset), expected, "{offset:#x}");
        assert_eq!(takes(&mut gpu, va + offset), 0, "{offset:#x}");
    }
    gpu.run(COMPUTE, &[Command::Invalidate { asid: Some(ASID) }]);
    // The buffer has to be found as well, whose tables are others.
    assert_eq!(takes(&mut gpu, va), 2 * COLD);
}

#[test]
fn tables_in_system_memory() {
    let mut gpu = gpu();
    // The three upper tables are in VRAM, the last one and the page are not.
    let va = 0x1000_0000_0000;
    let at = gpu.entry_at(va, 1);
    let system = |offset| Target::System(BusAddr(BUS + SYSTEM_FREE + offset));
    gpu.set_vram64(at, Entry::table(system(0)).0);
    let slot = SYSTEM_FREE + index(skua_spec::address::GpuVa(va), 0) as u64 * 8;
    let page = Entry::page(system(0x1000), PageSize::Size4K, true, true);
    gpu.set_system64(slot, page.0);
    gpu.run_buffer(COPY, &[Command::FlushCache]);
    let signal = Command::Signal {
        address: va,
        value: 1,
    };
    let found = time_in_buffer(&mut gpu, COPY, &[signal]);
    assert_eq!(found, 2 * COMMAND + COLD + SYSTEM + SYSTEM);
}

#[test]
fn a_descriptor_in_system_memory() {
    let mut gpu = gpu();
    gpu.write_context(CONTEXT, ASID, CONTEXT_ID, skua_testbed::root());
    let descriptor = gpu.vram_bytes(CONTEXT, 64);
    gpu.set_system(SYSTEM_FREE, &descriptor);
    for misses in [1, 0] {
        let (mut exec, _) = gpu.exec(COPY, &[]);
        if let Command::Exec { context, .. } = &mut exec {
            *context = gart::BASE;
        }
        let before = gpu.system64(SYSTEM_FREE + 0x20);
        let expected = COMMAND + misses * GART_MISS + SYSTEM;
        assert_eq!(time(&mut gpu, COPY, &[exec]), expected);
        assert_eq!(gpu.system64(SYSTEM_FREE + 0x20) - before, expected);
    }
}

/// What a program takes, beyond a tick for each instruction, with `r2` for the address of the
/// thread's own 4 bytes behind `base`, `r4` for `base`, and the thread's number in `r0`.
fn accesses(gpu: &mut Gpu, base: u64, body: &str) -> u64 {
    let source = format!(
        ".threads 32
            sr r0, lane
            mov r4, {}\n mov r5, {}
            lea r2, r4, r0, 2
            {body}
            exit",
        base as u32,
        base >> 32
    );
    let program = assemble(&source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
    gpu.set_vram(DATA + 0x8_0000, &program.bytes());
    let at = VRAM + 0x8_0000;
    let dispatch = program.dispatch(at, [1; 3], |_| None).unwrap();
    let before = gpu.counter(Counter::Instruction);
    let found = time(
        gpu,
        COMPUTE,
        &[Command::FlushCache, Command::Dispatch(dispatch)],
    );
    found - 2 * COMMAND - (gpu.counter(Counter::Instruction) - before)
}

#[test]
fn accesses_of_programs() {
    let mut gpu = gpu();
    for i in 0..16 {
        gpu.run(COMPUTE, &[fill(SYSTEM_MEMORY + i * 0x1000, 4)]);
    }
    // The body, and the accesses of 64 bytes or less that it takes.
    for (body, count) in [
        ("nop", 0),
        ("ld.u8 r6, [r2]", 1),
        ("ld.u16 r6, [r2]", 1),
        ("ld.32 r6, [r2]", 2),
        ("lea r2, r4, r0, 3\n ld.64 r6, [r2]", 4),
        ("st.32 [r2], r0", 2),
        ("st.32 [r2], r0\n ld.32 r6, [r2 + 64]", 4),
        // Half of the threads in another page.
        (
            "and r7, r0, 16\n mul r7, r7, 256\n lea r2, r2, r7, 0\n ld.32 r6, [r2]",
            2,
        ),
        // To and fro.
        (
            "and r7, r0, 1\n mul r7, r7, 4096\n lea r2, r2, r7, 0\n ld.32 r6, [r2]",
            32,
        ),
        // A page each for two threads.
        (
            "shr r7, r0, 1\n mul r7, r7, 4096\n lea r2, r4, r7, 0\n ld.32 r6, [r2]",
            16,
        ),
        ("atom.add r6, [r2], r0", 2),
    ] {
        assert_eq!(accesses(&mut gpu, VRAM, body), 0, "{body}");
        let found = accesses(&mut gpu, SYSTEM_MEMORY, body);
        assert_eq!(found, count * SYSTEM, "{body}");
    }
    // Of a page that the TLB has not.
    gpu.run(COPY, &[Command::Invalidate { asid: None }]);
    let found = accesses(&mut gpu, SYSTEM_MEMORY, "ld.u8 r6, [r2]");
    assert_eq!(found, GART_MISS + SYSTEM);
}

#[test]
fn contended_atomic_operations() {
    let mut gpu = gpu();
    for (body, repeated) in [
        ("atom.add r6, [r2], r0", 0),
        // From the highest address down.
        (
            "xor r7, r0, 31\n lea r2, r4, r7, 2\n atom.add r6, [r2], r0",
            0,
        ),
        ("atom.add r6, [r4], r0", 31),
        ("atom.cas.64 r6, [r4], r8, r8", 31),
        // Two, and eight, to an address: next to each other, and far apart.
        (
            "shr r7, r0, 1\n lea r2, r4, r7, 2\n atom.maxu r6, [r2], r0",
            16,
        ),
        (
            "and r7, r0, 3\n lea r2, r4, r7, 2\n atom.xchg r6, [r2], r0",
            28,
        ),
        // Half of the threads alone.
        (
            "and r7, r0, 1\n bnz r7, end\n atom.or r6, [r4], r0\n end: nop",
            15,
        ),
        // A load is none.
        ("ld.32 r6, [r4]\n st.32 [r4], r6", 0),
    ] {
        let found = accesses(&mut gpu, VRAM, body);
        assert_eq!(found, repeated * CONTENDED, "{body}");
    }
}

#[test]
fn a_program_that_is_read() {
    let mut gpu = gpu();
    let nops = "nop\n".repeat(99) + "exit";
    let program = assemble(&nops).unwrap();
    gpu.set_system(SYSTEM_FREE, &program.bytes());
    gpu.run(COMPUTE, &[fill(SYSTEM_MEMORY + 0x1000, 4)]);
    let at = SYSTEM_MEMORY;
    let dispatch = Command::Dispatch(program.dispatch(at, [1; 3], |_| None).unwrap());
    let lines = (100_u64 * 8).div_ceil(64);
    let found = time(&mut gpu, COMPUTE, &[dispatch]);
    assert_eq!(found, COMMAND + GART_MISS + lines * SYSTEM + 100);
    // It is kept now.
    assert_eq!(time(&mut gpu, COMPUTE, &[dispatch]), COMMAND + 100);
}
