// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every fault reason with its exact record, the order of the checks, and the ring of records.

use skua_asm::assemble;
use skua_gpu::engine::save::SAVE_SIZE;
use skua_gpu::vram;
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::{
    Command, Dispatch, Draw, Rectangle, FLAG_FENCE, FLAG_INTERRUPT, MAX_ARGUMENTS,
};
use skua_spec::context::{Descriptor, Image};
use skua_spec::fault::{Access, Reason, Record, Space};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::number::Asid;
use skua_spec::regs::{self, engine};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{
    Gpu, ASID, BUFFER_VA, BUS, COLD, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA, DATA_BYTES, DATA_VA,
    SAVE, SAVE_VA, STATUS, SYSTEM_FREE,
};

fn dispatch_of(gpu: &Gpu, source: &str) -> Dispatch {
    let program = assemble(source).unwrap();
    gpu.set_vram(DATA, &program.bytes());
    program.dispatch(DATA_VA, [1; 3], |_| None).unwrap()
}

/// Words of a command in a buffer, and the fault that they must be.
fn malformed() -> Vec<(&'static str, Vec<u32>, Reason)> {
    let words = |c: Command| c.encode().words().to_vec();
    let edit = |c: Command, at: usize, value: u32| {
        let mut words = c.encode().words().to_vec();
        words[at] = value;
        words
    };
    let fill = Command::Fill {
        pattern: 0,
        address: DATA_VA,
        bytes: 4,
    };
    let copy = Command::Copy {
        source: DATA_VA,
        destination: DATA_VA,
        bytes: 4,
    };
    let copy2d = Command::Copy2d {
        source: DATA_VA,
        destination: DATA_VA,
        bytes: 4,
        source_pitch: 4,
        destination_pitch: 4,
        rows: 2,
    };
    let wait = Command::Wait {
        address: DATA_VA,
        value: 0,
    };
    let signal = Command::Signal {
        address: DATA_VA,
        value: 0,
    };
    let dispatch = Command::Dispatch(Dispatch {
        program: DATA_VA,
        program_bytes: 8,
        shared_bytes: 0,
        groups: [1; 3],
        threads: [1; 3],
        arguments: [0; MAX_ARGUMENTS],
        argument_count: 0,
    });
    let exec = Command::Exec {
        context: vram::BASE + CONTEXT,
        base: BUFFER_VA,
        start: 0,
        end: 8,
        fence: Some(1),
        interrupt: true,
        resume: false,
    };
    let fence = Command::Fence {
        fence: 1,
        interrupt: false,
    };
    let flush = Command::FlushTlb { asid: None };
    let invalidate = Command::Invalidate { asid: None };
    let mut list = vec![
        ("opcode 0x04", vec![0x0400_0002, 0], Reason::BadOpcode),
        ("opcode 0xff", vec![0xff00_0002, 0], Reason::BadOpcode),
        (
            "opcode before length",
            vec![0xff00_0000, 0],
            Reason::BadOpcode,
        ),
        ("nop of none", vec![0, 0], Reason::BadLength),
        ("nop of one", vec![1, 0], Reason::BadLength),
        ("nop odd", vec![3, 0, 0, 0], Reason::BadLength),
        ("nop over the end", vec![4, 0], Reason::BadLength),
        ("nop flags", vec![0x0001_0002, 0], Reason::BadFlags),
        ("fill short", vec![0x0100_0004, 0, 0, 0], Reason::BadLength),
        (
            "fill long",
            vec![0x0100_0008, 0, 0, 0, 0, 0, 0, 0],
            Reason::BadLength,
        ),
        ("fill over the end", vec![0x0100_0006, 0], Reason::BadLength),
        ("fill flags", edit(fill, 0, 0x0180_0006), Reason::BadFlags),
        ("fill address", edit(fill, 2, 2), Reason::Misaligned),
        ("fill bytes", edit(fill, 4, 3), Reason::Misaligned),
        (
            "fill wraps",
            words(Command::Fill {
                pattern: 0,
                address: !3,
                bytes: 8,
            }),
            Reason::BadOperand,
        ),
        (
            "length before flags",
            vec![0x01ff_0004, 0, 0, 0],
            Reason::BadLength,
        ),
        ("copy flags", edit(copy, 0, 0x0201_0008), Reason::BadFlags),
        ("copy reserved", edit(copy, 1, 1), Reason::BadFlags),
        (
            "copy source wraps",
            words(Command::Copy {
                source: u64::MAX,
                destination: 0,
                bytes: 2,
            }),
            Reason::BadOperand,
        ),
        (
            "copy destination wraps",
            words(Command::Copy {
                source: 0,
                destination: u64::MAX,
                bytes: 2,
            }),
            Reason::BadOperand,
        ),
        (
            "copy2d flags",
            edit(copy2d, 0, 0x0340_000a),
            Reason::BadFlags,
        ),
        ("copy2d reserved", edit(copy2d, 9, 7), Reason::BadFlags),
        (
            "copy2d source pitch",
            edit(copy2d, 6, 3),
            Reason::BadOperand,
        ),
        (
            "copy2d destination pitch",
            edit(copy2d, 7, 3),
            Reason::BadOperand,
        ),
        (
            "copy2d wraps",
            words(Command::Copy2d {
                source: u64::MAX - 7,
                destination: 0,
                bytes: 4,
                source_pitch: 4,
                destination_pitch: 4,
                rows: 3,
            }),
            Reason::BadOperand,
        ),
        ("wait flags", edit(wait, 0, 0x2001_0006), Reason::BadFlags),
        ("wait reserved", edit(wait, 1, 1), Reason::BadFlags),
        ("wait address", edit(wait, 2, 4), Reason::Misaligned),
        (
            "signal reserved",
            edit(signal, 1, 1 << 31),
            Reason::BadFlags,
        ),
        ("signal address", edit(signal, 2, 1), Reason::Misaligned),
        (
            "flush cache long",
            vec![0x3100_0004, 0, 0, 0],
            Reason::BadLength,
        ),
        (
            "flush cache reserved",
            vec![0x3100_0002, 1],
            Reason::BadFlags,
        ),
        ("flush tlb", words(flush), Reason::Privileged),
        (
            "flush tlb operand before place",
            vec![0x3000_0002, 0x1_0000],
            Reason::BadOperand,
        ),
        ("invalidate", words(invalidate), Reason::Privileged),
        (
            "invalidate operand before place",
            vec![0x3200_0002, 0x8000_0007],
            Reason::BadOperand,
        ),
        ("exec", words(exec), Reason::Privileged),
        (
            "exec start behind end",
            edit(exec, 6, 16),
            Reason::BadOperand,
        ),
        ("exec offset", edit(exec, 7, 12), Reason::Misaligned),
        ("exec base", edit(exec, 4, 4), Reason::Misaligned),
        ("exec context", edit(exec, 2, 32), Reason::Misaligned),
        (
            "exec interrupt alone",
            edit(exec, 0, 0x4000_000a | (u32::from(FLAG_INTERRUPT) << 16)),
            Reason::BadFlags,
        ),
        (
            "exec fence without flag",
            edit(exec, 0, 0x4000_000a),
            Reason::BadFlags,
        ),
        ("exec reserved", edit(exec, 1, 1), Reason::BadFlags),
        ("fence", words(fence), Reason::Privileged),
        (
            "fence flags",
            edit(fence, 0, 0x4100_0004 | (u32::from(FLAG_FENCE) << 16)),
            Reason::BadFlags,
        ),
        ("fence reserved", edit(fence, 1, 1), Reason::BadFlags),
        (
            "dispatch short",
            vec![0x1000_000a, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Reason::BadLength,
        ),
        (
            "dispatch flags",
            edit(dispatch, 0, 0x1001_000c),
            Reason::BadFlags,
        ),
        ("dispatch reserved", edit(dispatch, 11, 1), Reason::BadFlags),
        ("dispatch program", edit(dispatch, 2, 4), Reason::Misaligned),
        ("dispatch size", edit(dispatch, 4, 12), Reason::Misaligned),
        (
            "dispatch no program",
            edit(dispatch, 4, 0),
            Reason::BadOperand,
        ),
        (
            "dispatch long program",
            edit(dispatch, 4, 0x1_0008),
            Reason::BadOperand,
        ),
        (
            "dispatch shared",
            edit(dispatch, 1, 0x8001),
            Reason::BadOperand,
        ),
    ];
    for at in 5..8 {
        list.push(("no group", edit(dispatch, at, 0), Reason::BadOperand));
        list.push((
            "many groups",
            edit(dispatch, at, 0x1_0000),
            Reason::BadOperand,
        ));
    }
    for at in 8..11 {
        list.push(("no thread", edit(dispatch, at, 0), Reason::BadOperand));
        list.push(("many threads", edit(dispatch, at, 1025), Reason::BadOperand));
        list.push(("huge", edit(dispatch, at, u32::MAX), Reason::BadOperand));
    }
    let mut square = words(dispatch);
    (square[8], square[9]) = (33, 32);
    list.push(("many threads together", square, Reason::BadOperand));
    // The last byte of the program is below 2^64, its end is not.
    let mut wraps = words(dispatch);
    (wraps[2], wraps[3], wraps[4]) = (0u32.wrapping_sub(8), u32::MAX, 8);
    list.push(("dispatch program wraps", wraps, Reason::BadOperand));
    let mut long = words(dispatch);
    long[0] = 0x1000_0000 | 46;
    long.resize(46, 0);
    list.push(("many arguments", long, Reason::BadLength));
    list
}

#[test]
fn malformed_commands() {
    let mut gpu = Gpu::new();
    gpu.set_vram(DATA, &[0; 64]);
    for (name, words, reason) in malformed() {
        // A good command stands before it.
        let mut all = vec![0x0000_0002, 0];
        all.extend(&words);
        let fault = gpu.run_words_to_fault(COMPUTE, &all);
        let mut expected = gpu.expect(COMPUTE, reason, Access::None, 0);
        expected.command += 8;
        assert_eq!(fault, expected, "{name}");
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
    // In the ring the same are faults but for those that may stand there.
    for (name, words, reason) in malformed() {
        if reason == Reason::Privileged || words.len() < 2 {
            continue;
        }
        gpu.push(COPY, &[Command::Nop { words: 4 }]);
        gpu.push_words(COPY, &words);
        gpu.doorbell(COPY);
        let fault = gpu.wait_fault();
        let reason = if words[0] >> 24 == 0x10 {
            // The copy engine has no DISPATCH: that comes before everything else.
            Reason::BadOpcode
        } else {
            reason
        };
        let expected = Record {
            engine: COPY,
            reason,
            asid: Asid::SYSTEM,
            context_id: 0,
            access: Access::None,
            detail: 0,
            space: Space::None,
            address: 0,
            fence: 0,
            command: 16,
            pc: Record::NO_PC,
        };
        assert_eq!(fault, expected, "{name}");
        assert_eq!(gpu.head(COPY), 16);
        gpu.reset_engine(COPY);
        gpu.start_engine(COPY);
    }
}

/// Each kind of fault as often as its number says.
#[test]
fn each_reason_is_counted_by_itself() {
    for (number, reason) in (1..).zip(Reason::ALL) {
        let mut gpu = Gpu::new();
        let words = match malformed().into_iter().find(|case| case.2 == reason) {
            Some((_, words, _)) => words,
            None => words_at_fault(&mut gpu, reason),
        };
        for _ in 0..number {
            if reason == Reason::BadRing {
                gpu.set_engine(COMPUTE, engine::DOORBELL::new().with_tail(4));
            } else {
                let (mut exec, _) = gpu.exec_words(COMPUTE, &words);
                if let Command::Exec {
                    context, resume, ..
                } = &mut exec
                {
                    *resume = reason == Reason::BadSave;
                    if reason == Reason::BadContext {
                        *context = vram::BASE + DATA + 0x8000;
                    }
                }
                gpu.start(COMPUTE, &[exec]);
            }
            assert_eq!(gpu.wait_fault().reason, reason);
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        }
        assert_eq!(gpu.counter(Counter::Fault), number);
        for other in Reason::ALL {
            let expected = if other == reason { number } else { 0 };
            assert_eq!(gpu.counter(Counter::of_fault(other)), expected, "{other:?}");
        }
    }
}

/// The words of a command that faults with `reason`, though it is well formed.
fn words_at_fault(gpu: &mut Gpu, reason: Reason) -> Vec<u32> {
    let words = |command: Command| command.encode().words().to_vec();
    let signal = |address| words(Command::Signal { address, value: 1 });
    let program = |gpu: &Gpu, source| words(Command::Dispatch(dispatch_of(gpu, source)));
    let va = 0x1234_5678_9000;
    match reason {
        Reason::AddressRange => signal(1 << 48),
        Reason::NotPresent => signal(va),
        Reason::ReadOnly => signal(BUFFER_VA),
        Reason::BadEntry => {
            gpu.map_page(
                va,
                Target::Vram(GpuPhys(vram::BASE)),
                PageSize::Size4K,
                true,
            );
            let at = gpu.entry_at(va, 0);
            gpu.set_vram64(at, gpu.vram64(at) | Entry::SNOOP);
            signal(va)
        }
        Reason::BusError => {
            gpu.map_page(va, Target::System(BusAddr(0)), PageSize::Size4K, true);
            signal(va)
        }
        Reason::BadContext | Reason::BadRing | Reason::BadSave => {
            gpu.clear_vram(DATA + 0x8000, 64);
            vec![0x0000_0002, 0]
        }
        Reason::BadInstruction => {
            let dispatch = program(gpu, "nop");
            gpu.set_vram64(DATA, u64::MAX);
            dispatch
        }
        Reason::PcRange => program(gpu, "nop"),
        Reason::SharedRange => program(gpu, "lds.32 r1, [r0]"),
        Reason::ArgumentRange => program(gpu, "arg r0, 0"),
        Reason::Trap => program(gpu, "trap 1"),
        Reason::BadIndex => {
            gpu.set_vram(DATA + 0x100, &[9; 12]);
            let program = dispatch_of(gpu, "exit");
            words(Command::Draw(Draw {
                program: program.program,
                program_bytes: program.program_bytes,
                vertices: DATA_VA,
                triangles: 1,
                indices: Some(DATA_VA + 0x100),
                pitch: 4,
                scissor: Rectangle {
                    right: 1,
                    bottom: 1,
                    ..Rectangle::default()
                },
                ..Draw::default()
            }))
        }
        _ => panic!("{reason:?} is of the form of a command"),
    }
}

#[test]
fn bad_contexts() {
    let mut gpu = Gpu::new();
    let exec = |context: u64, fence| Command::Exec {
        context,
        base: BUFFER_VA,
        start: 0,
        end: 0,
        fence: Some(fence),
        interrupt: false,
        resume: false,
    };
    let root = skua_testbed::root();
    let cases: [(&str, [u64; 4]); 8] = [
        ("root absent", [root.0 & !1, 7, 0, 0]),
        ("root writable", [root.0 | Entry::WRITE, 7, 0, 0]),
        ("root large", [root.0 | Entry::LARGE, 7, 0, 0]),
        ("root reserved", [root.0 | (1 << 60), 7, 0, 0]),
        ("the system's", [root.0, 0, 0, 0]),
        ("wide identifier", [root.0, 0x1_0000, 0, 0]),
        ("reserved word 2", [root.0, 7, 1, 0]),
        ("reserved word 3", [root.0, 7, 0, 1 << 63]),
    ];
    for (name, words) in cases {
        gpu.clear_vram(CONTEXT + 64, 64);
        for (i, word) in (0..).zip(words) {
            gpu.set_vram64(CONTEXT + 64 + i * 8, word);
        }
        let address = vram::BASE + CONTEXT + 64;
        let fault = gpu.run_to_fault(COMPUTE, &[Command::Nop { words: 2 }, exec(address, 55)]);
        let expected = Record {
            engine: COMPUTE,
            reason: Reason::BadContext,
            asid: Asid::SYSTEM,
            context_id: 0,
            access: Access::Fetch,
            detail: 0,
            space: Space::GpuPhysical,
            address,
            fence: 55,
            command: 8,
            pc: Record::NO_PC,
        };
        assert_eq!(fault, expected, "{name}");
        // What was refused is not written to.
        for i in 4..8 {
            assert_eq!(gpu.vram64(CONTEXT + 64 + i * 8), 0, "{name}");
        }
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
    // Where there is none.
    let fault = gpu.run_to_fault(COMPUTE, &[exec(64, 56)]);
    assert_eq!(
        (fault.reason, fault.access, fault.address, fault.fence),
        (Reason::AddressRange, Access::Fetch, 64, 56)
    );
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    // A descriptor that cannot be written is a fault at the packet's end.
    let page = gpu.set_gart(
        0,
        Entry::gart(skua_spec::address::BusAddr(BUS + SYSTEM_FREE), false, true),
    );
    gpu.set_system64(SYSTEM_FREE, root.0);
    gpu.set_system64(SYSTEM_FREE + 8, 7 | (9 << 32));
    let fault = gpu.run_to_fault(COMPUTE, &[exec(page, 57)]);
    assert_eq!(
        (fault.reason, fault.access, fault.space, fault.address),
        (
            Reason::ReadOnly,
            Access::Write,
            Space::GpuPhysical,
            page + 0x20
        )
    );
    assert_eq!((fault.asid, fault.context_id, fault.command), (ASID, 9, 0));
    assert_eq!(gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE), 0);
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    // Or at its beginning, where a state is given up.
    gpu.set_image(SAVE, Image::default());
    let area = [
        (Descriptor::SAVE_BASE, SAVE_VA),
        (Descriptor::SAVE_SIZE, SAVE_SIZE.into()),
        (Descriptor::SAVED, 64),
    ];
    for (at, value) in area {
        gpu.set_system64(SYSTEM_FREE + at, value);
    }
    let record = gpu.run_to_fault(COMPUTE, &[exec(page, 58)]);
    let address = page + Descriptor::SAVED;
    let expected = Record {
        address,
        fence: 58,
        ..fault
    };
    assert_eq!(record, expected);
}

#[test]
fn fetching_where_nothing_is() {
    let mut gpu = Gpu::new();
    let exec = Command::Exec {
        context: vram::BASE + CONTEXT,
        base: 0x7777_0000,
        start: 8,
        end: 16,
        fence: Some(3),
        interrupt: false,
        resume: false,
    };
    let fault = gpu.run_to_fault(COMPUTE, &[exec]);
    let expected = Record {
        engine: COMPUTE,
        reason: Reason::NotPresent,
        asid: ASID,
        context_id: CONTEXT_ID,
        access: Access::Fetch,
        // The root has an entry for the first 512 GiB, the table behind it for the first of them.
        detail: 2,
        space: Space::Virtual,
        address: 0x7777_0008,
        fence: 3,
        command: 0x7777_0008,
        pc: Record::NO_PC,
    };
    assert_eq!(fault, expected);
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    // The operands lie on a page that is not there: the address of the first byte missing.
    let end = DATA_VA + DATA_BYTES;
    gpu.set_vram(DATA + DATA_BYTES - 8, &0x0100_0006_u64.to_le_bytes());
    let exec = Command::Exec {
        context: vram::BASE + CONTEXT,
        base: end - 8,
        start: 0,
        end: 64,
        fence: None,
        interrupt: false,
        resume: false,
    };
    let fault = gpu.run_to_fault(COMPUTE, &[exec]);
    assert_eq!(
        (
            fault.reason,
            fault.access,
            fault.address,
            fault.command,
            fault.fence
        ),
        (Reason::NotPresent, Access::Fetch, end, end - 8, 0)
    );
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    // A program that is not there.
    let mut dispatch = dispatch_of(&gpu, "exit");
    dispatch.program = end - 8;
    dispatch.program_bytes = 16;
    let fault = gpu.run_buffer_to_fault(COMPUTE, &[Command::Dispatch(dispatch)]);
    let expected = gpu.expect(COMPUTE, Reason::NotPresent, Access::Fetch, end);
    assert_eq!(fault, expected);
}

#[test]
fn faults_of_programs() {
    let mut gpu = Gpu::new();
    let hole = 0x3333_0000_0000_u64;
    let load = format!("mov r2, {}\n mov r3, {}\n", hole as u32, hole >> 32);
    let read_only = format!(
        "mov r2, {}\n mov r3, {}\n",
        BUFFER_VA as u32,
        BUFFER_VA >> 32
    );
    let good = format!("mov r2, {}\n mov r3, {}\n", DATA_VA as u32, DATA_VA >> 32);
    let cases: Vec<(String, Reason, Access, u64, u32, u32)> = vec![
        (
            "trap 0xabcd".into(),
            Reason::Trap,
            Access::None,
            0,
            0xabcd,
            0,
        ),
        ("nop\n nop\n".into(), Reason::PcRange, Access::None, 0, 0, 2),
        ("bra @77".into(), Reason::PcRange, Access::None, 0, 0, 77),
        (
            "bra @0xffffffff".into(),
            Reason::PcRange,
            Access::None,
            0,
            0,
            u32::MAX,
        ),
        (
            "nop\n arg r0, 2".into(),
            Reason::ArgumentRange,
            Access::None,
            0,
            2,
            1,
        ),
        (
            "arg r0, 31".into(),
            Reason::ArgumentRange,
            Access::None,
            0,
            31,
            0,
        ),
        (
            "lds.32 r0, [r1]".into(),
            Reason::SharedRange,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 8\n lds.64 r0, [r2 + 8]".into(),
            Reason::SharedRange,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 8\n sts.32 [r1 - 4], r0".into(),
            Reason::SharedRange,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 7\n sts.32 [r1 + 4], r0".into(),
            Reason::SharedRange,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 64\n sts.32 [r1 + 2], r0".into(),
            Reason::Misaligned,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 64\n lds.u16 r0, [r1 + 1]".into(),
            Reason::Misaligned,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 64\n lds.64 r0, [r2 + 4]".into(),
            Reason::Misaligned,
            Access::None,
            0,
            0,
            0,
        ),
        (
            ".shared 64\n mov r1, 1\n atoms.add r0, [r1], r3".into(),
            Reason::Misaligned,
            Access::None,
            0,
            0,
            1,
        ),
        (
            format!("{load} ld.u8 r0, [r2 + 3]"),
            Reason::NotPresent,
            Access::Read,
            hole + 3,
            3,
            2,
        ),
        (
            format!("{load} ld.32 r0, [r2 - 4]"),
            Reason::NotPresent,
            Access::Read,
            hole - 4,
            3,
            2,
        ),
        (
            format!("{load} st.64 [r2], r0"),
            Reason::NotPresent,
            Access::Write,
            hole,
            3,
            2,
        ),
        (
            format!("{load} atom.add r0, [r2], r1"),
            Reason::NotPresent,
            Access::Atomic,
            hole,
            3,
            2,
        ),
        (
            format!("{load} atom.cas.64 r0, [r2], r4, r6"),
            Reason::NotPresent,
            Access::Atomic,
            hole,
            3,
            2,
        ),
        (
            format!("{load} ld.32 r0, [r2 + 2]"),
            Reason::Misaligned,
            Access::Read,
            hole + 2,
            0,
            2,
        ),
        (
            format!("{load} st.16 [r2 + 1], r0"),
            Reason::Misaligned,
            Access::Write,
            hole + 1,
            0,
            2,
        ),
        (
            format!("{load} ld.64 r0, [r2 + 4]"),
            Reason::Misaligned,
            Access::Read,
            hole + 4,
            0,
            2,
        ),
        (
            format!("{read_only} st.8 [r2], r0"),
            Reason::ReadOnly,
            Access::Write,
            BUFFER_VA,
            0,
            2,
        ),
        (
            format!("{read_only} ld.32 r0, [r2]\n st.32 [r2], r0"),
            Reason::ReadOnly,
            Access::Write,
            BUFFER_VA,
            0,
            3,
        ),
        (
            format!("{read_only} atom.or r0, [r2], r1"),
            Reason::ReadOnly,
            Access::Atomic,
            BUFFER_VA,
            0,
            2,
        ),
        (
            format!("{good} add r2, r2, 1\n atom.xchg r0, [r2], r1"),
            Reason::Misaligned,
            Access::Atomic,
            DATA_VA + 1,
            0,
            3,
        ),
        (
            "mov r3, 0x10000\n ld.32 r0, [r2]".into(),
            Reason::AddressRange,
            Access::Read,
            1 << 48,
            0,
            1,
        ),
        (
            "ld.32 r0, [r2 - 4]".into(),
            Reason::AddressRange,
            Access::Read,
            u64::MAX - 3,
            0,
            0,
        ),
    ];
    for (source, reason, access, address, detail, pc) in cases {
        let mut dispatch = dispatch_of(&gpu, &source);
        dispatch.argument_count = 2;
        let fault = gpu.run_buffer_to_fault(COMPUTE, &[Command::Dispatch(dispatch)]);
        let mut expected = gpu.expect(COMPUTE, reason, access, address);
        (expected.detail, expected.pc) = (detail, pc);
        assert_eq!(fault, expected, "{source}");
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
    // An instruction that is none, though it is never reached.
    for bad in [0x04 | (1 << 8), 0xff, 0x10 | (64 << 8), 0x28 | (1 << 8)] {
        let dispatch = dispatch_of(&gpu, "exit\n exit");
        gpu.set_vram64(DATA + 8, bad);
        let fault = gpu.run_buffer_to_fault(COMPUTE, &[Command::Dispatch(dispatch)]);
        let mut expected = gpu.expect(COMPUTE, Reason::BadInstruction, Access::None, 0);
        expected.pc = 1;
        assert_eq!(fault, expected, "{bad:#x}");
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
}

#[test]
fn lower_threads_have_stored_what_they_do_where_one_is_at_fault() {
    let mut gpu = Gpu::new();
    let (data, hole) = (DATA_VA + 0x1_0000, DATA_VA + DATA_BYTES);
    let address = |at: u64| format!("mov r2, {}\n mov r3, {}\n", at as u32, at >> 32);
    let misaligned = "lea r2, r2, r0, 2\n seq r4, r0, 20\n lea r2, r2, r4, 1\n";
    let behind = "lea r2, r2, r0, 2\n";
    // That a page is open for loads does not open it for stores.
    let read_only = format!(
        "lea r2, r2, r0, 2\n sltu r4, r0, 11\n bnz r4, good\n {} good: ld.32 r7, [r2]\n",
        address(BUFFER_VA)
    );
    for (setup, start, reason, thread, fault) in [
        (misaligned, data, Reason::Misaligned, 20, data + 80 + 2),
        (behind, hole - 52, Reason::NotPresent, 13, hole),
        (&read_only, data, Reason::ReadOnly, 11, BUFFER_VA),
    ] {
        for (store, access) in [
            ("st.32 [r2], r1", Access::Write),
            ("atom.add r6, [r2], r1", Access::Atomic),
        ] {
            let at = start - DATA_VA + DATA;
            gpu.clear_vram(at, 128.min(hole - start));
            let source = format!(
                ".threads 32\n sr r0, lane\n add r1, r0, 1000\n {} {setup} {store}\n exit",
                address(start)
            );
            let dispatch = dispatch_of(&gpu, &source);
            let found = gpu.run_buffer_to_fault(COMPUTE, &[Command::Dispatch(dispatch)]);
            assert_eq!(
                (found.reason, found.access, found.address),
                (reason, access, fault),
                "{source}"
            );
            for l in 0..thread {
                assert_eq!(gpu.vram32(at + l * 4) as u64, 1000 + l, "{source}");
            }
            if reason == Reason::Misaligned {
                assert_eq!(gpu.vram_bytes(at + 80, 48), vec![0; 48], "{source}");
            }
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        }
    }
}

#[test]
fn a_fault_stops_its_engine_alone() {
    let mut gpu = Gpu::new();
    gpu.run_words_to_fault(COMPUTE, &[0xff00_0002, 0]);
    assert_eq!(gpu.state(COMPUTE), EngineState::Faulted as u32);
    for _ in 0..3 {
        gpu.run_buffer(
            COPY,
            &[Command::Signal {
                address: DATA_VA,
                value: 1,
            }],
        );
    }
    // What stands behind the fault never runs.
    gpu.start(
        COMPUTE,
        &[Command::Signal {
            address: vram::BASE + DATA,
            value: 5,
        }],
    );
    gpu.invalidate(None);
    assert_eq!(gpu.state(COMPUTE), EngineState::Faulted as u32);
    assert_eq!(gpu.vram64(DATA), 1);
    gpu.reset_engine(COMPUTE);
    gpu.start_engine(COMPUTE);
    gpu.run(COMPUTE, &[Command::Nop { words: 2 }]);
    assert_eq!(gpu.counter(Counter::Fault), 1);
    assert_eq!(gpu.counter(Counter::FaultInterrupt), 1);
}

#[test]
fn everything_is_written_before_the_interrupt() {
    let mut gpu = Gpu::new();
    let signal = Command::Signal {
        address: DATA_VA,
        value: 1,
    };
    gpu.run_buffer(COMPUTE, &[signal]);
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(0) == 1);
    let (exec, fence) = gpu.exec_words(COMPUTE, &[0x0000_0002, 0, 0xff00_0002, 0]);
    gpu.run_to_fault(COMPUTE, &[exec]);
    // The engine's block as it stood when its interrupts were raised: at the end of the packet, and
    // at the fault in the next one.
    let block = |vector| {
        let page = gpu.lines.page(vector);
        let at = |field: u64| u64::from_le_bytes(page[field as usize..][..8].try_into().unwrap());
        let state = at(status::engine::HEAD) >> 32;
        let head = at(status::engine::HEAD) & 0xffff_ffff;
        let fences = [
            at(status::engine::COMPLETED_FENCE),
            at(status::engine::CURRENT_FENCE),
        ];
        (
            state,
            head,
            at(status::engine::TICKS),
            fences,
            at(status::FAULT_PUT),
        )
    };
    let (running, faulted) = (EngineState::Running as u64, EngineState::Faulted as u64);
    // EXEC and SIGNAL; the buffer and the value.
    let time = 2 + 2 * COLD;
    assert_eq!(block(0), (running, 40, time, [fence - 1, 0], 0));
    let fault = skua_spec::pci::fault_vector(2);
    // EXEC and NOP.
    assert_eq!(block(fault), (faulted, 40, time + 2, [fence - 1, 0], 1));
    let record = &gpu.lines.page(fault)[status::FAULTS as usize..][..64];
    assert_eq!(record, gpu.system_bytes(STATUS + status::FAULTS, 64));
}

#[test]
fn the_ring_of_records_fills_and_goes_round() {
    let mut gpu = Gpu::new();
    let one = |gpu: &mut Gpu| {
        gpu.push_words(COPY, &[0xff00_0002, 0]);
        gpu.doorbell(COPY);
        gpu.wait_state(COPY, EngineState::Faulted);
        let count = gpu.counter(Counter::FaultInterrupt);
        gpu.reset_engine(COPY);
        gpu.start_engine(COPY);
        count
    };
    let dropped = |gpu: &Gpu| gpu.system32(STATUS + status::FAULTS_DROPPED);
    for i in 0..32 {
        one(&mut gpu);
        gpu.wait_for("a record", |gpu| gpu.fault_put() == i + 1);
    }
    assert_eq!(dropped(&gpu), 0);
    for i in 0..3 {
        one(&mut gpu);
        gpu.wait_for("a drop", |gpu| dropped(gpu) == i + 1);
    }
    assert_eq!(gpu.fault_put(), 32);
    for number in 0..32 {
        assert_eq!(gpu.fault(number).map(|(_, n)| n), Some(number));
    }
    // Room for one.
    gpu.write(regs::FAULT_GET, 1);
    one(&mut gpu);
    gpu.wait_for("a record", |gpu| gpu.fault_put() == 33);
    assert_eq!(gpu.fault(0).map(|(_, n)| n), Some(32));
    // A count from the future is a full ring.
    gpu.write(regs::FAULT_GET, 34);
    one(&mut gpu);
    gpu.wait_for("a drop", |gpu| dropped(gpu) == 4);
    assert_eq!(gpu.counter(Counter::FaultInterrupt), 37);
}
