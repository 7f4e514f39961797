// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs: control flow, divergence, groups, barriers, memory, atomics.

use skua_asm::assemble;
use skua_gpu::vram;
use skua_reference::Buffers;
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::{Command, Dispatch};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::status::Counter;
use skua_testbed::{Gpu, BUS, COLD, COMPUTE, DATA, DATA_VA, SYSTEM_FREE};

/// Data of the tests of this file.
const OUT: u64 = DATA_VA + 0x1_0000;
const OUT_AT: u64 = DATA + 0x1_0000;

/// Puts a program into memory; its arguments are all [`OUT`] or the number in their name.
fn load(gpu: &Gpu, source: &str, groups: [u32; 3]) -> Dispatch {
    let program = assemble(source).unwrap_or_else(|e| panic!("{e:?}"));
    gpu.set_vram(DATA, &program.bytes());
    program
        .dispatch(DATA_VA, groups, |name| match name {
            "out" => Some(OUT),
            "in" => Some(OUT + 0x1_0000),
            _ => None,
        })
        .unwrap()
}

fn run(gpu: &mut Gpu, source: &str, groups: [u32; 3]) {
    let dispatch = load(gpu, source, groups);
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
}

/// Runs a program on the device and on the reference and compares `bytes` bytes at [`OUT`].
fn compare(gpu: &mut Gpu, source: &str, groups: [u32; 3], bytes: usize) {
    let dispatch = load(gpu, source, groups);
    let program = assemble(source).unwrap();
    let input: Vec<u8> = (0..0x1_0000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
    gpu.clear_vram(OUT_AT, 0x1_0000);
    gpu.set_vram(OUT_AT + 0x1_0000, &input);
    let mut buffers = Buffers::default();
    buffers.add(OUT, vec![0; 0x1_0000]);
    buffers.add(OUT + 0x1_0000, input);
    skua_reference::run(&program.bytes(), &dispatch, &mut buffers, u64::MAX).unwrap();
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
    assert!(
        gpu.vram_bytes(OUT_AT, bytes) == buffers.get(OUT).unwrap()[..bytes],
        "{source}"
    );
}

/// r0 = number of the thread in the dispatch, r2 and r3 = address of its word at `out`.
const PLACE: &str = "
    .arg64 out
    .arg64 in
        sr   r0, gid.z
        sr   r1, ngid.y
        mul  r0, r0, r1
        sr   r1, gid.y
        add  r0, r0, r1
        sr   r1, ngid.x
        mul  r0, r0, r1
        sr   r1, gid.x
        add  r0, r0, r1
        sr   r1, ntid.x
        mul  r0, r0, r1
        sr   r1, ntid.y
        mul  r0, r0, r1
        sr   r1, ntid.z
        mul  r0, r0, r1
        sr   r1, flat
        add  r0, r0, r1
        arg  r2, out
        arg  r3, out.hi
        lea  r2, r2, r0, 2
";

#[test]
fn special_registers() {
    let mut gpu = Gpu::new();
    for (name, _) in [
        ("tid.x", 0),
        ("tid.y", 0),
        ("tid.z", 0),
        ("gid.x", 0),
        ("gid.y", 0),
        ("gid.z", 0),
        ("ntid.x", 0),
        ("ntid.y", 0),
        ("ntid.z", 0),
        ("ngid.x", 0),
        ("ngid.y", 0),
        ("ngid.z", 0),
        ("flat", 0),
        ("lane", 0),
    ] {
        let source = format!(".threads 5, 3, 7\n {PLACE} sr r4, {name}\n st.32 [r2], r4\n exit\n");
        compare(&mut gpu, &source, [3, 2, 4], 5 * 3 * 7 * 24 * 4);
    }
    assert_eq!(gpu.counter(Counter::ThreadGroup), 14 * 24);
}

#[test]
fn threads_that_branch_apart_meet_again() {
    let mut gpu = Gpu::new();
    // Loops of different lengths, nested, with early ends.
    let source = format!(
        ".threads 77\n {PLACE}
            and   r5, r0, 15
            mov   r6, 0
            mov   r7, 0
        outer:
            bgeu  r6, r5, done
            add   r6, r6, 1
            mov   r8, 0
        inner:
            add   r7, r7, r8
            add   r8, r8, 1
            bltu  r8, r6, inner
            and   r9, r7, 1
            bz    r9, even
            mul   r7, r7, 3
            bra   outer
        even:
            add   r7, r7, 5
            popc  r9, r7
            sltu  r9, r9, 7
            bnz   r9, outer
            and   r9, r0, 3
            bnz   r9, outer
            exit
        done:
            st.32 [r2], r7
            exit
        "
    );
    compare(&mut gpu, &source, [3, 1, 1], 77 * 3 * 4);
}

#[test]
fn a_wave_that_stays_together_issues_each_instruction_once() {
    let mut gpu = Gpu::new();
    let before = gpu.counter(Counter::Instruction);
    run(
        &mut gpu,
        ".threads 64\n mov r1, 10\nagain: sub r1, r1, 1\n bnz r1, again\n exit",
        [2, 1, 1],
    );
    // Four waves, 1 + 20 + 1 instructions.
    assert_eq!(gpu.counter(Counter::Instruction) - before, 4 * 22);
    // EXEC, DISPATCH, instructions; the buffer and the program.
    assert_eq!(gpu.ticks(COMPUTE), 2 + 4 * 22 + 2 * COLD);
    // Two ways of two instructions: each is issued once.
    let before = gpu.counter(Counter::Instruction);
    run(
        &mut gpu,
        ".threads 32\n sr r0, lane\n and r1, r0, 1\n bnz r1, odd\n nop\n bra end\n\
         odd: nop\n nop\nend: exit",
        [1; 3],
    );
    assert_eq!(gpu.counter(Counter::Instruction) - before, 3 + 2 + 2 + 1);
}

#[test]
fn barriers_and_shared_memory() {
    let mut gpu = Gpu::new();
    for threads in [1, 31, 32, 33, 100, 1024] {
        // Each thread reads what its mirror wrote, twice; threads above 200 leave early.
        let source = format!(
            ".threads {threads}\n .shared {}\n {PLACE}
                sr    r4, flat
                shl   r5, r4, 2
                mul   r6, r0, 0x9e3779b1
                sts.32 [r5], r6
                bar
                sr    r7, ntid.x
                sub   r7, r7, r4
                sub   r7, r7, 1
                shl   r7, r7, 2
                lds.32 r8, [r7]
                bar
                mov   r9, 200
                bgeu  r4, r9, leave
                sts.32 [r5], r8
                bar
                lds.32 r9, [r5]
                xor   r8, r8, r9
                add   r8, r8, r6
            leave:
                st.32 [r2], r8
                exit
            ",
            threads * 4
        );
        compare(&mut gpu, &source, [4, 1, 1], threads * 16);
    }
}

#[test]
fn shared_memory_starts_as_zero() {
    let mut gpu = Gpu::new();
    let source = format!(
        ".threads 32\n .shared 32768\n {PLACE}
            sr r4, lane\n shl r4, r4, 10\n lds.32 r5, [r4]\n lds.32 r6, [r4 + 1020]
            or r5, r5, r6\n st.32 [r2], r5\n mov r5, -1\n sts.32 [r4], r5
            sts.32 [r4 + 1020], r5\n exit"
    );
    gpu.set_vram(OUT_AT, &[0xff; 0x1000]);
    run(&mut gpu, &source, [8, 1, 1]);
    assert_eq!(gpu.vram_bytes(OUT_AT, 8 * 32 * 4), vec![0; 8 * 32 * 4]);
}

#[test]
fn registers_start_as_zero() {
    let mut gpu = Gpu::new();
    let mut source = format!(".threads 32\n {PLACE} mov r1, 0\n");
    for register in 4..64 {
        source += &format!("or r1, r1, r{register}\n");
    }
    source += "st.32 [r2], r1\n";
    for register in 0..64 {
        source += &format!("mov r{register}, -1\n");
    }
    source += "exit";
    gpu.set_vram(OUT_AT, &[0xff; 0x1000]);
    for _ in 0..2 {
        run(&mut gpu, &source, [8, 1, 1]);
        assert_eq!(gpu.vram_bytes(OUT_AT, 8 * 32 * 4), vec![0; 8 * 32 * 4]);
    }
}

#[test]
fn loads_and_stores_of_all_sizes() {
    let mut gpu = Gpu::new();
    for (load, store, size) in [
        ("ld.u8", "st.8", 1),
        ("ld.s8", "st.32", 4),
        ("ld.u16", "st.16", 2),
        ("ld.s16", "st.32", 4),
        ("ld.32", "st.32", 4),
        ("ld.64", "st.64", 8),
    ] {
        let shift = [0, 0, 1, 0, 2, 0, 0, 0, 3][size];
        for stride in [1, 3] {
            for half in [false, true] {
                // All threads, or those with an even number.
                let skip = if half {
                    "and r5, r0, 1\n bnz r5, end\n"
                } else {
                    ""
                };
                let source = format!(
                    ".threads 96\n {PLACE}
                        {skip}
                        mul  r6, r0, {stride}
                        arg  r8, in\n arg r9, in.hi
                        lea  r8, r8, r6, {}
                        {load} r10, [r8 + 16]
                        arg  r8, out\n arg r9, out.hi
                        lea  r8, r8, r6, {shift}
                        {store} [r8 + 8], r10
                    end: exit",
                    if load == "ld.s8" {
                        0
                    } else if load == "ld.s16" {
                        1
                    } else {
                        shift
                    }
                );
                compare(&mut gpu, &source, [2, 1, 1], 0x2000);
            }
        }
    }
    // Shared memory.
    for (load, store) in [
        ("lds.u8", "sts.8"),
        ("lds.s8", "sts.8"),
        ("lds.u16", "sts.16"),
        ("lds.s16", "sts.16"),
        ("lds.32", "sts.32"),
        ("lds.64", "sts.64"),
    ] {
        let source = format!(
            ".threads 64\n .shared 1024\n {PLACE}
                mul  r4, r0, 0x87654321\n mul r5, r0, 0x1b873593
                sr   r6, flat\n shl r6, r6, 3
                {store} [r6 + 8], r4
                bar
                xor  r6, r6, 8
                {load} r8, [r6 + 8]
                arg  r2, out\n arg r3, out.hi\n lea r2, r2, r0, 3
                st.64 [r2], r8
                exit"
        );
        compare(&mut gpu, &source, [2, 1, 1], 128 * 8);
    }
}

#[test]
fn threads_that_access_one_behind_the_other() {
    let mut gpu = Gpu::new();
    // Within a page, into the next one, and with a gap.
    for (place, gap) in [
        (0xf80, 0),
        (0xf84, 0),
        (0xffc, 0),
        (0x100, 4),
        (0xfc0, 0x1000),
    ] {
        let source = format!(
            ".threads 64\n {PLACE}
                sr   r4, lane
                sles r5, r4, 19\n xor r5, r5, 1\n mul r5, r5, {gap}
                arg  r8, in\n arg r9, in.hi
                lea  r8, r8, r4, 2\n lea r8, r8, r5, 0
                ld.32 r10, [r8 + {place}]
                arg  r8, out\n arg r9, out.hi
                lea  r8, r8, r4, 2\n lea r8, r8, r5, 0
                st.32 [r8 + {place}], r10
                exit"
        );
        compare(&mut gpu, &source, [1, 1, 1], 0x4000);
    }
    // Wherever the host's words begin.
    for (load, store, shift) in [
        ("ld.u8", "st.8", 0),
        ("ld.u16", "st.16", 1),
        ("ld.32", "st.32", 2),
        ("ld.64", "st.64", 3),
    ] {
        for place in (0..8).step_by(1 << shift) {
            let source = format!(
                ".threads 32\n {PLACE}
                    arg  r8, in\n arg r9, in.hi\n lea r8, r8, r0, {shift}
                    {load} r10, [r8 + {place}]
                    arg  r8, out\n arg r9, out.hi\n lea r8, r8, r0, {shift}
                    {store} [r8 + {}], r10
                    exit",
                0x100 - place
            );
            compare(&mut gpu, &source, [1, 1, 1], 0x400);
        }
    }
}

#[test]
fn threads_that_access_what_lies_apart() {
    let mut gpu = Gpu::new();
    // Anywhere on fifteen pages, on two pages to and fro, on one page in disorder, and several at
    // the same place, where the highest thread's value stays.
    let anywhere = "mul r6, r0, 0x9e3779b1\n shr r6, r6, 17\n remu r6, r6, 0x1e00\n";
    for place in [
        anywhere,
        "and r6, r0, 1\n mul r6, r6, 0x200\n add r6, r6, r0\n",
        "xor r6, r0, 21\n mul r6, r6, 5\n and r6, r6, 63\n",
        "and r6, r0, 3\n",
    ] {
        for (load, store, shift) in [
            ("ld.u8", "st.8", 0),
            ("ld.s8", "st.8", 1),
            ("ld.u16", "st.16", 1),
            ("ld.s16", "st.16", 2),
            ("ld.32", "st.32", 2),
            ("ld.64", "st.64", 3),
        ] {
            // All threads, some of them, and one.
            for some in ["mov r5, 1", "and r5, r0, 6", "seq r5, r0, 19"] {
                let source = format!(
                    ".threads 64\n {PLACE} {place}
                        mov  r10, 77\n mov r11, 78\n mov r9, r0\n mov r8, r0
                        {some}\n bz r5, end
                        arg  r12, in\n arg r13, in.hi\n lea r12, r12, r6, {shift}
                        {load} r10, [r12 + 8]
                        arg  r12, out\n arg r13, out.hi\n lea r12, r12, r6, {shift}
                        {store} [r12 + 0x400], r8
                    end:
                        st.32 [r2], r10\n st.32 [r2 + 0x100], r11
                        exit"
                );
                compare(&mut gpu, &source, [1, 1, 1], 0x1_0000);
            }
        }
    }
}

#[test]
fn colliding_atomics_are_in_the_order_of_threads() {
    let mut gpu = Gpu::new();
    // Each thread finds what the one before it has left, whatever lies between.
    for (place, width) in [
        ("mov r6, 0", 4),
        ("and r6, r0, 3", 4),
        ("and r6, r0, 3\n mul r6, r6, 1024", 4),
        ("and r6, r0, 1\n mul r6, r6, 1024", 8),
        ("mov r6, r0", 8),
    ] {
        let (op, shift) = if width == 4 {
            ("atom.xchg", 2)
        } else {
            ("atom.xchg.64", 3)
        };
        for some in ["mov r5, 1", "and r5, r0, 9"] {
            let source = format!(
                ".threads 32\n {PLACE}
                    {place}
                    arg  r12, out\n arg r13, out.hi\n lea r12, r12, r6, {shift}
                    add  r8, r0, 100\n add r9, r0, 200
                    {some}\n bz r5, end
                    {op} r10, [r12], r8
                end:
                    lea  r2, r2, r0, 2
                    st.32 [r2 + 0x8000], r10\n st.32 [r2 + 0x8004], r11
                    exit"
            );
            compare(&mut gpu, &source, [1, 1, 1], 0x1_0000);
        }
    }
}

#[test]
fn addresses_whose_low_halves_wrap() {
    let mut gpu = Gpu::new();
    // The offset brings what is below 4 GiB to `OUT`, and what has wrapped 4 GiB before it.
    let below = OUT - (4 << 30);
    let target = Target::Vram(GpuPhys(vram::BASE + OUT_AT + 0x1000));
    gpu.map_page(below, target, PageSize::Size4K, true);
    let words: Vec<u8> = (0..1024_u32).flat_map(u32::to_le_bytes).collect();
    gpu.set_vram(OUT_AT, &words);
    let words: Vec<u8> = (1000..2024_u32).flat_map(u32::to_le_bytes).collect();
    gpu.set_vram(OUT_AT + 0x1000, &words);
    let source = format!(
        ".threads 32\n {PLACE}
            shl  r5, r0, 2
            add  r8, r5, 0xffffffc0
            mov  r9, {:#x}
            ld.32 r10, [r8 + {:#x}]
            st.32 [r2 + 0x2000], r10
            exit",
        (OUT >> 32) - 1,
        (OUT & 0xffff_ffff) + 0x40,
    );
    run(&mut gpu, &source, [1, 1, 1]);
    for lane in 0..32 {
        let expected = if lane < 16 { lane } else { 1000 + lane };
        let found = gpu.vram32(OUT_AT + 0x2000 + u64::from(lane) * 4);
        assert_eq!(found, expected, "{lane}");
    }
}

#[test]
fn registers_that_are_the_same_for_all_threads() {
    let mut gpu = Gpu::new();
    // Waves of 32 threads and of fewer. What all have the same, some change, and all use again.
    for threads in [32, 20, 52] {
        let source = format!(
            ".threads {threads}\n .shared 8\n {PLACE}
                arg  r8, in\n arg r9, in.hi
                ld.32 r4, [r8 + 4]\n ld.64 r6, [r8 + 8]\n ld.s8 r5, [r8 + 3]
                mov  r14, 4\n sts.32 [r14], r4\n lds.s8 r15, [r14 + 1]
                mul  r10, r4, 77\n add64 r6, r6, r4\n fma r11, r4, r5, r6
                and  r12, r0, 1
                bz   r12, meet
                mov  r10, 5\n mov r11, 6\n add r5, r5, 1
            meet:
                add  r10, r10, r11\n add r10, r10, r5\n add r10, r10, r6\n add r10, r10, r7
                add  r10, r10, r15
                mov  r13, 3
            again:
                add  r10, r10, r13
                sub  r13, r13, 1
                bnz  r13, again
                st.32 [r2], r10
                exit"
        );
        compare(&mut gpu, &source, [2, 1, 1], 0x400);
    }
}

#[test]
fn every_atomic() {
    let mut gpu = Gpu::new();
    for suffix in ["add", "minu", "maxu", "and", "or", "xor", "xchg"] {
        // The result does not depend on the order, but for the exchange: there all store alike.
        let value = if suffix == "xchg" {
            "mov r4, 0x1234567\n mov r5, 0x89abcdef\n"
        } else {
            "mul r4, r0, 0x9e3779b1\n mul r5, r0, 0x85ebca6b\n"
        };
        for (op, setup) in [
            (format!("atom.{suffix}"), ""),
            (format!("atom.{suffix}.64"), ""),
        ] {
            let source = format!(
                ".threads 50\n {PLACE} {setup} {value}
                    arg r2, out\n arg r3, out.hi
                    {op} r8, [r2], r4
                    exit"
            );
            compare(&mut gpu, &source, [4, 1, 1], 16);
        }
        let source = format!(
            ".threads 50\n .shared 8\n {PLACE} {value}
                sts.32 [r6], r5
                bar
                mov r7, 4\n
                atoms.{suffix} r8, [r7], r4
                bar
                lds.32 r8, [r6 + 4]
                st.32 [r2], r8
                exit"
        );
        compare(&mut gpu, &source, [4, 1, 1], 800);
    }
}

#[test]
fn compare_and_swap() {
    let mut gpu = Gpu::new();
    // A counter made of compare and swap: every thread adds one, none is lost; the old values are
    // all different.
    for (cas, width) in [("atom.cas", 32), ("atom.cas.64", 64)] {
        let source = format!(
            ".threads 40\n {PLACE}
                arg r10, in\n arg r11, in.hi
            again:
                ld.64 r12, [r10]
                add64 r14, r12, 1
                {cas} r16, [r10], r14, r12
                bne   r16, r12, again
                st.32 [r2], r16
                exit"
        );
        gpu.clear_vram(OUT_AT, 0x2_0000);
        run(&mut gpu, &source, [5, 1, 1]);
        let mut old: Vec<u32> = (0..200).map(|i| gpu.vram32(OUT_AT + i * 4)).collect();
        old.sort_unstable();
        assert_eq!(old, (0..200).collect::<Vec<_>>(), "{width}");
        assert_eq!(gpu.vram64(OUT_AT + 0x1_0000), 200);
    }
    let source = format!(
        ".threads 64\n .shared 4\n {PLACE}
        again:
            lds.32 r4, [r10]
            add   r5, r4, 1
            atoms.cas r6, [r10], r5, r4
            bne   r6, r4, again
            st.32 [r2], r6
            exit"
    );
    gpu.clear_vram(OUT_AT, 0x1000);
    run(&mut gpu, &source, [1; 3]);
    let mut old: Vec<u32> = (0..64).map(|i| gpu.vram32(OUT_AT + i * 4)).collect();
    old.sort_unstable();
    assert_eq!(old, (0..64).collect::<Vec<_>>());
}

#[test]
fn atomics_against_the_cpu_in_both_memories() {
    let mut gpu = Gpu::new();
    gpu.map_page(
        0x9000_0000,
        Target::System(BusAddr(BUS + SYSTEM_FREE)),
        PageSize::Size4K,
        true,
    );
    for (va, in_system) in [(OUT, false), (0x9000_0000, true)] {
        let program = assemble(
            ".threads 32
             .arg64 out
                arg r2, out\n arg r3, out.hi
                mov r4, 1
                mov r6, 20000
            again:
                atom.add.64 r8, [r2], r4
                sub r6, r6, 1
                bnz r6, again
                exit",
        )
        .unwrap();
        gpu.set_vram(DATA, &program.bytes());
        gpu.set_vram64(OUT_AT, 0);
        gpu.set_system64(SYSTEM_FREE, 0);
        let dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(va)).unwrap();
        let (exec, fence) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
        gpu.start(COMPUTE, &[exec]);
        let mut ours = 0_u64;
        while gpu.engine64(COMPUTE, skua_spec::status::engine::COMPLETED_FENCE) < fence {
            let add = |slice: vm_memory::VolatileSlice<'_>| {
                use vm_memory::VolatileMemory;
                let slot = slice.get_atomic_ref::<std::sync::atomic::AtomicU64>(0);
                slot.unwrap()
                    .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            };
            if in_system {
                use vm_memory::VolatileMemory;
                add(gpu.system.get_slice(SYSTEM_FREE as usize, 8).unwrap());
            } else {
                add(gpu.device.vram().slice(OUT_AT, 8).unwrap());
            }
            ours += 1;
        }
        let total = if in_system {
            gpu.system64(SYSTEM_FREE)
        } else {
            gpu.vram64(OUT_AT)
        };
        assert_eq!(total, ours + 32 * 20000);
    }
}

#[test]
fn waves_wait_for_each_other_without_a_barrier() {
    let mut gpu = Gpu::new();
    // The first wave spins until the last one has written.
    let source = format!(
        ".threads 96\n .shared 4\n {PLACE}
            sr    r4, flat
            mov   r5, 64
            bgeu  r4, r5, write
            bz    r4, spin
            exit
        spin:
            lds.32 r6, [r8]
            bz    r6, spin
            st.32 [r2], r6
            exit
        write:
            mov   r6, 7
            sts.32 [r8], r6
            exit"
    );
    gpu.clear_vram(OUT_AT, 4);
    run(&mut gpu, &source, [1; 3]);
    assert_eq!(gpu.vram32(OUT_AT), 7);
}

#[test]
fn the_longest_program() {
    let mut gpu = Gpu::new();
    let mut bytes = vec![0_u8; 64 * 1024];
    // NOPs, and an exit at the end.
    let end = bytes.len() - 8;
    bytes[end] = 4;
    gpu.set_vram(DATA, &bytes);
    let mut dispatch = load(&gpu, "exit", [1; 3]);
    gpu.set_vram(DATA, &bytes);
    dispatch.program_bytes = bytes.len() as u32;
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
    assert_eq!(gpu.counter(Counter::Instruction), 8192);
}

#[test]
fn a_program_is_kept_until_the_cache_is_flushed() {
    let mut gpu = Gpu::new();
    let store = |value: u32| {
        assemble(&format!(
            ".arg64 out\n arg r2, out\n arg r3, out.hi\n mov r4, {value}\n\
             atom.add r5, [r2], r4\n exit"
        ))
        .unwrap()
        .bytes()
    };
    let program = assemble(".arg64 out\n exit").unwrap();
    let mut dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(OUT)).unwrap();
    let (one, ten) = (store(1), store(10));
    dispatch.program_bytes = one.len() as u32;
    gpu.set_vram(DATA, &one);
    gpu.set_vram(DATA + 0x1000, &ten);
    gpu.clear_vram(OUT_AT, 8);
    let replace = Command::Copy {
        source: DATA_VA + 0x1000,
        destination: DATA_VA,
        bytes: one.len() as u64,
    };
    let run = Command::Dispatch(dispatch);
    gpu.run_buffer(COMPUTE, &[run, replace, run]);
    assert_eq!(gpu.vram32(OUT_AT), 2);
    gpu.run_buffer(COMPUTE, &[run]);
    assert_eq!(gpu.vram32(OUT_AT), 12);
    gpu.set_vram(DATA, &one);
    gpu.run_buffer(COMPUTE, &[run, replace, Command::FlushCache, run]);
    assert_eq!(gpu.vram32(OUT_AT), 23);
}

#[test]
fn a_dispatch_in_the_ring_has_physical_addresses() {
    let mut gpu = Gpu::new();
    let page = gpu.set_gart(2, Entry::gart(BusAddr(BUS + SYSTEM_FREE), true, true));
    let program =
        assemble(".arg64 out\n arg r2, out\n arg r3, out.hi\n mov r4, 99\n st.32 [r2], r4\n exit")
            .unwrap();
    gpu.set_vram(DATA, &program.bytes());
    let dispatch = program
        .dispatch(vram::BASE + DATA, [1; 3], |_| Some(page + 4))
        .unwrap();
    gpu.run(COMPUTE, &[Command::Dispatch(dispatch)]);
    assert_eq!(gpu.system32(SYSTEM_FREE + 4), 99);
}

#[test]
fn the_tlb_serves_programs_too() {
    let mut gpu = Gpu::new();
    let va = 0x9000_0000;
    let target = |at| Target::Vram(GpuPhys(vram::BASE + at));
    let program = assemble(
        ".arg64 out\n arg r2, out\n arg r3, out.hi\n mov r4, 1\n atom.add r5, [r2], r4\n exit",
    )
    .unwrap();
    gpu.set_vram(DATA, &program.bytes());
    gpu.clear_vram(DATA + 0x1_0000, 0x2_0000);
    let dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(va)).unwrap();
    gpu.map_page(va, target(DATA + 0x1_0000), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
    gpu.map_page(va, target(DATA + 0x2_0000), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
    assert_eq!(gpu.vram32(DATA + 0x1_0000), 2);
    gpu.invalidate(Some(skua_testbed::ASID));
    gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
    assert_eq!(gpu.vram32(DATA + 0x2_0000), 1);
}

#[test]
fn an_invalidation_reaches_a_program_that_runs() {
    let mut gpu = Gpu::new();
    let va = 0x9000_0000;
    let target = |at| Target::Vram(GpuPhys(vram::BASE + at));
    let program = assemble(
        ".arg64 out\n arg r2, out\n arg r3, out.hi\n\
         again: add r4, r4, 1\n st.32 [r2], r4\n bra again",
    )
    .unwrap();
    gpu.set_vram(DATA, &program.bytes());
    gpu.clear_vram(DATA + 0x1_0000, 0x2_0000);
    gpu.map_page(va, target(DATA + 0x1_0000), PageSize::Size4K, true);
    let dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(va)).unwrap();
    let (exec, _) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_for("a store", |gpu| gpu.vram32(DATA + 0x1_0000) != 0);
    gpu.map_page(va, target(DATA + 0x2_0000), PageSize::Size4K, true);
    gpu.invalidate(Some(skua_testbed::ASID));
    // From the acknowledgement on nothing is stored to the old page.
    let last = gpu.vram32(DATA + 0x1_0000);
    gpu.wait_for("a store", |gpu| gpu.vram32(DATA + 0x2_0000) != 0);
    assert_eq!(gpu.vram32(DATA + 0x1_0000), last);
    // The page goes away altogether.
    let at = gpu.entry_at(va, 0);
    gpu.set_vram64(at, 0);
    gpu.invalidate(Some(skua_testbed::ASID));
    let fault = gpu.wait_fault();
    assert_eq!(fault.address, va);
    gpu.reset_engine(COMPUTE);
}
