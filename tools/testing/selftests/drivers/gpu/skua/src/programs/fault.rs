// SPDX-License-Identifier: MIT

//! Faults: what a client's work may not do fails that work, and nothing else.

use std::process::ExitCode;

use skua_selftests::client::{errno_of, map_readonly, signal};
use skua_selftests::program::{address, op, op_imm, EXIT};
use skua_selftests::rig::{copy, dispatch, fill, wait_value, write, Buffer};
use skua_selftests::{suite, tests, Cases, Engine, Errno, Place, Rig};
use skua_spec::command::{Command, Dispatch, Opcode};
use skua_spec::fault::{Access, Reason, Record};
use skua_spec::isa::Op;
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        commands: 60,
        addresses: 60,
        programs: 60,
        the_state_tells_where,
        a_faulted_context_takes_no_more,
        queued_jobs_of_the_context_are_cancelled,
        row_2_21_others_go_on_after_a_fault: 60,
        faults_of_both_engines_at_once,
        many_faults_in_a_row: 120,
        a_fault_in_the_middle_of_a_copy,
        jobs_before_the_fault_are_done,
    ])
}

/// What a case of a table must lead to.
struct Expected {
    reason: Reason,
    access: Access,
    errno: Errno,
}

fn expected(reason: Reason, access: Access) -> Expected {
    Expected {
        reason,
        access,
        errno: errno_of(reason),
    }
}

/// Runs one bad job in a context of its own.
fn case(
    rig: &Rig,
    cases: &mut Cases,
    name: &str,
    engine: Engine,
    words: &[u32],
    expected: &Expected,
) {
    let name = format!("{name} on {engine:?}");
    let context = rig.new_context(engine);
    let done = rig.syncobj();
    let buffer = rig.write_words(words);
    rig.submit(context, &[buffer], &[signal(done)])
        .expect("SUBMIT");
    cases.expect(
        &format!("{name}: fence"),
        rig.wait(done),
        Err(expected.errno),
    );
    let state = rig.state(context).expect("CONTEXT_STATE");
    cases.expect(
        &format!("{name}: status, reason, access, completed"),
        (
            state.status,
            Reason::from_u32(state.reason),
            Access::from_u32(state.access),
            state.completed,
        ),
        (
            DRM_SKUA_CONTEXT_FAULTED,
            Some(expected.reason),
            Some(expected.access),
            1,
        ),
    );
    cases.expect(&format!("{name}: command"), state.command, buffer.va);
    cases.expect(&format!("{name}: reserved"), state.reserved, 0);
    let more = rig.submit(context, &[], &[]);
    cases.expect(&format!("{name}: more work"), more, Err(Errno::ECANCELED));
    // The engine works for others.
    let next = rig.run(engine, &[Command::Nop { words: 2 }]);
    cases.expect(&format!("{name}: the next job"), next, Ok(()));
    rig.context_destroy(context).expect("CONTEXT_DESTROY");
    rig.syncobj_destroy(done).expect("SYNCOBJ_DESTROY");
}

fn header(opcode: Opcode, flags: u32, len: u32) -> u32 {
    (opcode as u32) << 24 | flags << 16 | len
}

fn words(command: Command) -> Vec<u32> {
    command.encode().words().to_vec()
}

fn commands() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let mut cases = Cases::new();
    let ring_only = [
        words(Command::FlushTlb { asid: None }),
        words(Command::Invalidate { asid: None }),
        words(Command::Fence {
            fence: 1,
            interrupt: true,
        }),
        words(Command::Exec {
            context: 0,
            base: target.va,
            start: 0,
            end: 8,
            fence: None,
            interrupt: false,
            resume: false,
        }),
        words(Command::Run {
            context: 0,
            number: 0,
            fence: None,
            interrupt: false,
            resume: false,
        }),
    ];
    for engine in Engine::ALL {
        let mut case = |name: &str, words: &[u32], reason| {
            case(
                &rig,
                &mut cases,
                name,
                engine,
                words,
                &expected(reason, Access::None),
            );
        };
        for opcode in [0x04, 0x0f, 0x12, 0x24, 0x33, 0x43, 0x7f, 0x80, 0xff] {
            case(
                &format!("opcode {opcode:#x}"),
                &[opcode << 24 | 2, 0],
                Reason::BadOpcode,
            );
        }
        case(
            "no length",
            &[header(Opcode::Nop, 0, 0), 0],
            Reason::BadLength,
        );
        case(
            "an odd length",
            &[header(Opcode::Nop, 0, 3), 0, 0, 0],
            Reason::BadLength,
        );
        case(
            "over the end",
            &[header(Opcode::Nop, 0, 4), 0],
            Reason::BadLength,
        );
        case(
            "a short fill",
            &[header(Opcode::Fill, 0, 4), 0, 0, 0],
            Reason::BadLength,
        );
        for flag in 0..8 {
            let words = [header(Opcode::Nop, 1 << flag, 2), 0];
            case(&format!("flag {flag} of NOP"), &words, Reason::BadFlags);
        }
        let mut reserved = words(write(target.va, 1));
        reserved[1] = 1;
        case("a reserved word of SIGNAL", &reserved, Reason::BadFlags);
        for (n, words) in ring_only.iter().enumerate() {
            case(&format!("ring-only command {n}"), words, Reason::Privileged);
        }
        case(
            "a fill around the end",
            &words(fill(1, u64::MAX - 3, 8)),
            Reason::BadOperand,
        );
        case(
            "a copy around the end",
            &words(copy(target.va, u64::MAX - 3, 8)),
            Reason::BadOperand,
        );
        let rows = Command::Copy2d {
            source: target.va,
            destination: target.va + 2048,
            bytes: 64,
            source_pitch: 63,
            destination_pitch: 64,
            rows: 2,
        };
        case("rows that overlap", &words(rows), Reason::BadOperand);
        case(
            "a fill of 6 bytes",
            &words(fill(1, target.va, 6)),
            Reason::Misaligned,
        );
        case(
            "a fill at 2",
            &words(fill(1, target.va + 2, 8)),
            Reason::Misaligned,
        );
        case(
            "a signal at 4",
            &words(write(target.va + 4, 1)),
            Reason::Misaligned,
        );
        case(
            "a wait at 4",
            &words(wait_value(target.va + 4, 1)),
            Reason::Misaligned,
        );
    }
    let program = rig.program(&[EXIT]);
    let dispatch_words = words(dispatch(&program, &[EXIT], &[]));
    case(
        &rig,
        &mut cases,
        "a dispatch",
        Engine::Copy,
        &dispatch_words,
        &expected(Reason::BadOpcode, Access::None),
    );
    let Command::Dispatch(good) = dispatch(&program, &[EXIT], &[]) else {
        panic!("not a dispatch");
    };
    let bad: [(&str, Reason, Dispatch); 9] = [
        (
            "no groups",
            Reason::BadOperand,
            Dispatch {
                groups: [1, 0, 1],
                ..good
            },
        ),
        (
            "65536 groups",
            Reason::BadOperand,
            Dispatch {
                groups: [0x1_0000, 1, 1],
                ..good
            },
        ),
        (
            "no threads",
            Reason::BadOperand,
            Dispatch {
                threads: [0, 1, 1],
                ..good
            },
        ),
        (
            "1025 threads",
            Reason::BadOperand,
            Dispatch {
                threads: [1025, 1, 1],
                ..good
            },
        ),
        (
            "1056 threads",
            Reason::BadOperand,
            Dispatch {
                threads: [33, 32, 1],
                ..good
            },
        ),
        (
            "shared memory",
            Reason::BadOperand,
            Dispatch {
                shared_bytes: u32::MAX,
                ..good
            },
        ),
        (
            "an empty program",
            Reason::BadOperand,
            Dispatch {
                program_bytes: 0,
                ..good
            },
        ),
        (
            "a long program",
            Reason::BadOperand,
            Dispatch {
                program_bytes: 65536 + 8,
                ..good
            },
        ),
        (
            "a program at 4",
            Reason::Misaligned,
            Dispatch {
                program: program.va + 4,
                ..good
            },
        ),
    ];
    for (name, reason, command) in bad {
        let words = words(Command::Dispatch(command));
        case(
            &rig,
            &mut cases,
            name,
            Engine::Compute,
            &words,
            &expected(reason, Access::None),
        );
    }
    cases.finish();
}

fn addresses() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let read_only = rig.bo(Place::Vram, 4096);
    let read_only_va = rig.reserve(4096);
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[map_readonly(read_only, 0, read_only_va, 4096)]),
        Ok(())
    );
    let nothing = rig.reserve(1 << 20);
    let mut cases = Cases::new();
    for engine in Engine::ALL {
        let mut case = |name: &str, command: Command, reason, access, at: u64| {
            let name = format!("{name}, {at:#x}");
            case(
                &rig,
                &mut cases,
                &name,
                engine,
                &words(command),
                &expected(reason, access),
            );
        };
        for va in [0, 4096, nothing, nothing + 8, 1 << 39, (1 << 48) - 4096] {
            case(
                "read",
                copy(va, target.va, 8),
                Reason::NotPresent,
                Access::Read,
                va,
            );
            case(
                "written",
                copy(target.va, va, 8),
                Reason::NotPresent,
                Access::Write,
                va,
            );
            case(
                "filled",
                fill(1, va, 8),
                Reason::NotPresent,
                Access::Write,
                va,
            );
            case(
                "signalled",
                write(va, 1),
                Reason::NotPresent,
                Access::Write,
                va,
            );
            case(
                "waited for",
                wait_value(va, 1),
                Reason::NotPresent,
                Access::Read,
                va,
            );
        }
        for va in [1 << 48, 1 << 52, 1 << 63] {
            case(
                "read",
                copy(va, target.va, 8),
                Reason::AddressRange,
                Access::Read,
                va,
            );
            case(
                "written",
                write(va, 1),
                Reason::AddressRange,
                Access::Write,
                va,
            );
        }
        case(
            "signalled",
            write(read_only_va, 1),
            Reason::ReadOnly,
            Access::Write,
            read_only_va,
        );
        case(
            "filled",
            fill(1, read_only_va, 8),
            Reason::ReadOnly,
            Access::Write,
            read_only_va,
        );
    }
    // Commands that are not there.
    for engine in Engine::ALL {
        let context = rig.new_context(engine);
        let done = rig.syncobj();
        let buffer = drm_skua_buffer {
            va: nothing,
            size: 64,
            flags: 0,
        };
        assert_eq!(rig.submit(context, &[buffer], &[signal(done)]), Ok(()));
        cases.expect("absent commands", rig.wait(done), Err(Errno::EFAULT));
        let state = rig.state(context).expect("CONTEXT_STATE");
        cases.expect(
            "absent commands: reason, access, address",
            (
                Reason::from_u32(state.reason),
                Access::from_u32(state.access),
                state.address,
            ),
            (Some(Reason::NotPresent), Some(Access::Fetch), nothing),
        );
    }
    cases.finish();
}

fn programs() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let nothing = rig.reserve(4096);
    let mut cases = Cases::new();
    let set = |va: u64| {
        let [lo, hi] = address(va);
        [op_imm(Op::Mov, 2, 0, lo), op_imm(Op::Mov, 3, 0, hi)]
    };
    let with = |va: u64, more: &[u64]| [&set(va)[..], more, &[EXIT]].concat();
    let load = op(Op::Ld32, 4, 2, 0, 0);
    let store = op(Op::St32, 4, 2, 0, 0);
    let add = op(Op::AtomAdd, 4, 2, 5, 0);
    let bad: [(&str, Vec<u64>, Reason, Access, u32); 12] = [
        (
            "an unknown instruction",
            vec![0xfe],
            Reason::BadInstruction,
            Access::None,
            0,
        ),
        (
            "a register too many",
            vec![op(Op::Nop, 0, 0, 0, 0), op_imm(Op::Mov, 64, 0, 0)],
            Reason::BadInstruction,
            Access::None,
            1,
        ),
        (
            "no end",
            vec![op(Op::Nop, 0, 0, 0, 0)],
            Reason::PcRange,
            Access::None,
            1,
        ),
        (
            "a far jump",
            vec![op(Op::Bra, 0, 0, 0, 1000)],
            Reason::PcRange,
            Access::None,
            1000,
        ),
        (
            "a trap",
            vec![op(Op::Trap, 0, 0, 0, 42)],
            Reason::Trap,
            Access::None,
            0,
        ),
        (
            "an argument that is not there",
            vec![op(Op::Arg, 0, 0, 0, 6)],
            Reason::ArgumentRange,
            Access::None,
            0,
        ),
        (
            "shared memory that is not there",
            vec![op(Op::Lds32, 0, 1, 0, 0)],
            Reason::SharedRange,
            Access::None,
            0,
        ),
        (
            "a load from nowhere",
            with(nothing, &[load]),
            Reason::NotPresent,
            Access::Read,
            2,
        ),
        (
            "a store to nowhere",
            with(nothing, &[store]),
            Reason::NotPresent,
            Access::Write,
            2,
        ),
        (
            "an atomic at nothing",
            with(nothing, &[add]),
            Reason::NotPresent,
            Access::Atomic,
            2,
        ),
        (
            "a load at 2",
            with(target.va + 2, &[load]),
            Reason::Misaligned,
            Access::Read,
            2,
        ),
        (
            "a load beyond 48 bits",
            with(1 << 48, &[load]),
            Reason::AddressRange,
            Access::Read,
            2,
        ),
    ];
    for (name, program, reason, access, pc) in bad {
        let buffer = rig.program(&program);
        let words = words(dispatch(&buffer, &program, &[0; 4]));
        case(
            &rig,
            &mut cases,
            name,
            Engine::Compute,
            &words,
            &expected(reason, access),
        );
        // Once more, for the instruction.
        let context = rig.new_context(Engine::Compute);
        let job = rig.start_in(context, &[dispatch(&buffer, &program, &[0; 4])]);
        job.wait().expect_err("a fault");
        let state = rig.state(context).expect("CONTEXT_STATE");
        cases.expect(&format!("{name}: pc"), state.pc, pc);
        let detail = match reason {
            Reason::Trap => Some(42),
            Reason::ArgumentRange => Some(6),
            _ => None,
        };
        if let Some(detail) = detail {
            cases.expect(&format!("{name}: detail"), state.detail, detail);
        }
    }
    cases.finish();
}

fn the_state_tells_where() {
    let rig = Rig::new();
    let nothing = rig.reserve(8 << 20);
    let context = rig.new_context(Engine::Copy);
    let work = [Command::Nop { words: 2 }, fill(1, nothing + 0x1_2340, 8)];
    let buffer = rig.write(&work);
    let done = rig.syncobj();
    assert_eq!(rig.submit(context, &[buffer], &[signal(done)]), Ok(()));
    assert_eq!(rig.wait(done), Err(Errno::EFAULT));
    let state = rig.state(context).expect("CONTEXT_STATE");
    assert_eq!(state.command, buffer.va + 8, "the second command");
    assert_eq!(state.address, nothing + 0x1_2340);
    assert_eq!(state.pc, Record::NO_PC);
    assert_eq!(
        rig.state(rig.copy)
            .map(|state| (state.status, state.reason)),
        Ok((DRM_SKUA_CONTEXT_ACTIVE, 0))
    );
}

fn a_faulted_context_takes_no_more() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[write(rig.reserve(4096), 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let before = rig.state(context).expect("CONTEXT_STATE");
    let buffer = rig.write(&[write(target.va, 1)]);
    let done = rig.syncobj();
    for _ in 0..3 {
        assert_eq!(
            rig.submit(context, &[buffer], &[signal(done)]),
            Err(Errno::ECANCELED)
        );
    }
    assert_eq!(rig.state(context), Ok(before));
    assert_eq!(target.cpu.read(0), 0);
    assert_eq!(rig.context_destroy(context), Ok(()));
    let fresh = rig.new_context(Engine::Copy);
    assert_eq!(rig.start_in(fresh, &[write(target.va, 2)]).wait(), Ok(()));
    assert_eq!(target.cpu.read(0), 2);
}

fn queued_jobs_of_the_context_are_cancelled() {
    let rig = Rig::new();
    let (target, gate) = (
        rig.buffer(Place::System, 4096),
        rig.buffer(Place::System, 4096),
    );
    let context = rig.new_context(Engine::Compute);
    let bad = rig.start_in(
        context,
        &[wait_value(gate.va, 1), write(rig.reserve(4096), 1)],
    );
    let queued: Vec<_> = (0..100)
        .map(|n| rig.start_in(context, &[write(target.va + 8 * n, 1)]))
        .collect();
    gate.cpu.write(0, 1);
    assert_eq!(bad.wait(), Err(Errno::EFAULT));
    for (n, job) in queued.iter().enumerate() {
        assert_eq!(job.wait(), Err(Errno::ECANCELED), "job {n}");
        assert_eq!(target.cpu.read(8 * n), 0, "job {n} ran");
    }
    assert_eq!(rig.state(context).expect("CONTEXT_STATE").completed, 101);
}

/// Jobs of a bystander on an engine, and what they write.
fn bystanders<'a>(
    rig: &'a Rig,
    context: u32,
    target: &Buffer,
) -> Vec<skua_selftests::rig::Job<'a>> {
    (0..50)
        .map(|n| rig.start_in(context, &[write(target.va + 8 * n, n + 1)]))
        .collect()
}

fn row_2_21_others_go_on_after_a_fault() {
    for engine in Engine::ALL {
        let (guilty, other) = (Rig::new(), Rig::new());
        let gate = guilty.buffer(Place::System, 4096);
        let bad = guilty.start(
            engine,
            &[wait_value(gate.va, 1), write(guilty.reserve(4096), 1)],
        );
        // Another context of the same client, another client on the same and on the other engine:
        // some of their jobs are in the ring behind the guilty one when it is reset.
        let sibling = guilty.new_context(engine);
        let targets = [
            guilty.buffer(Place::System, 4096),
            other.buffer(Place::System, 4096),
            other.buffer(Place::System, 4096),
        ];
        let mut jobs = bystanders(&guilty, sibling, &targets[0]);
        jobs.extend(bystanders(&other, other.compute, &targets[1]));
        jobs.extend(bystanders(&other, other.copy, &targets[2]));
        gate.cpu.write(0, 1);
        assert_eq!(bad.wait(), Err(Errno::EFAULT), "{engine:?}");
        for (n, job) in jobs.iter().enumerate() {
            assert_eq!(job.wait(), Ok(()), "{engine:?}: bystander {n}");
        }
        for target in &targets {
            for n in 0..50 {
                assert_eq!(target.cpu.read(8 * n), n as u64 + 1, "{engine:?}");
            }
        }
        for (rig, context) in [
            (&guilty, sibling),
            (&other, other.compute),
            (&other, other.copy),
        ] {
            let state = rig.state(context).expect("CONTEXT_STATE");
            assert_eq!(state.status, DRM_SKUA_CONTEXT_ACTIVE, "{engine:?}");
            assert_eq!(state.completed, 50, "{engine:?}: each ran once");
        }
    }
}

fn faults_of_both_engines_at_once() {
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    for round in 1..=10 {
        let nothing = rig.reserve(4096);
        let jobs: Vec<_> = Engine::ALL
            .into_iter()
            .map(|engine| {
                let context = rig.context_having_worked(engine);
                rig.start_in(context, &[wait_value(gate.va, round), write(nothing, 1)])
            })
            .collect();
        gate.cpu.write(0, round);
        for job in &jobs {
            assert_eq!(job.wait(), Err(Errno::EFAULT), "round {round}");
        }
        for engine in Engine::ALL {
            assert_eq!(
                rig.run(engine, &[Command::Nop { words: 2 }]),
                Ok(()),
                "round {round}"
            );
        }
    }
}

fn many_faults_in_a_row() {
    // More than there is room for in the device's list of records.
    let rig = Rig::new();
    let nothing = rig.reserve(4096);
    let jobs: Vec<_> = (0..100)
        .map(|n| {
            let engine = if n % 2 == 0 {
                Engine::Copy
            } else {
                Engine::Compute
            };
            rig.start_in(rig.new_context(engine), &[write(nothing + 8 * n, 1)])
        })
        .collect();
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(job.wait(), Err(Errno::EFAULT), "fault {n}");
    }
    for engine in Engine::ALL {
        assert_eq!(
            rig.run(engine, &[Command::Nop { words: 2 }]),
            Ok(()),
            "{engine:?}"
        );
    }
}

fn a_fault_in_the_middle_of_a_copy() {
    let rig = Rig::new();
    let (source, target) = (
        rig.buffer(Place::System, 1 << 20),
        rig.buffer(Place::Vram, 1 << 20),
    );
    let hole = target.va + (512 << 10);
    assert_eq!(
        rig.bind_and_wait(rig.vm, &[skua_selftests::client::unmap(hole, 4096)]),
        Ok(())
    );
    source.cpu.fill(|_| u64::MAX);
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[copy(source.va, target.va, 1 << 20)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let state = rig.state(context).expect("CONTEXT_STATE");
    assert_eq!(state.address, hole, "{:#x}", state.address);
    // Nothing behind the hole was written.
    assert_eq!(target.cpu.read((512 << 10) + 4096), 0);
}

fn jobs_before_the_fault_are_done() {
    let rig = Rig::new();
    let target = rig.buffer(Place::System, 4096);
    let context = rig.new_context(Engine::Copy);
    let before: Vec<_> = (0..10)
        .map(|n| rig.start_in(context, &[write(target.va + 8 * n, 1)]))
        .collect();
    let bad = rig.start_in(
        context,
        &[write(target.va + 800, 1), write(rig.reserve(4096), 1)],
    );
    assert_eq!(bad.wait(), Err(Errno::EFAULT));
    for (n, job) in before.iter().enumerate() {
        assert_eq!((job.wait(), target.cpu.read(8 * n)), (Ok(()), 1), "job {n}");
    }
    assert_eq!(target.cpu.read(800), 1, "the command before the bad one");
}
