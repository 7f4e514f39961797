// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work that is cut into steps, kept and taken up again at every point where it can be: memory,
//! time and counters are as if nobody had disturbed it.

use skua_asm::assemble;
use skua_gpu::counters::COUNT;
use skua_gpu::engine::core::{Outcome, Progress};
use skua_gpu::{gart, vram};
use skua_spec::address::{BusAddr, GpuPhys};
use skua_spec::command::{Blend, Command, Dispatch, Draw, Rectangle, MAX_ARGUMENTS, MAX_PROGRAM};
use skua_spec::context::Descriptor;
use skua_spec::fault::{Reason, Record};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::number::EngineIndex;
use skua_spec::status::{Counter, EngineState};
use skua_spec::ticks;
use skua_testbed::{
    new_core, Stepped, ASID, BUS, COLD, COMPUTE, CONTEXT, COPY, DATA, DATA_BYTES, DATA_VA, ENGINES,
    SYSTEM_BYTES, SYSTEM_FREE, VRAM_BYTES,
};

/// 64 KiB pages of system memory, from [`SYSTEM_FREE`] on.
const MEDIUM_VA: u64 = 0x5000_0000;
/// A 2 MiB page of VRAM.
const LARGE_VA: u64 = 0x6000_0000;
/// Offset in VRAM of the page at [`LARGE_VA`].
const LARGE: u64 = 0x20_0000;
/// 4 KiB pages, each of which has the place in the TLB of one from [`DATA_VA`] on.
const RIVAL_VA: u64 = DATA_VA + (1024 << 12);
/// Offset in VRAM of the pages at [`RIVAL_VA`].
const RIVAL: u64 = 0x40_0000;
/// 64 KiB pages with the place in the TLB of those from [`MEDIUM_VA`] on.
const MEDIUM_RIVAL_VA: u64 = MEDIUM_VA + (256 << 16);
/// Offset in VRAM of the pages at [`MEDIUM_RIVAL_VA`].
const MEDIUM_RIVAL: u64 = 0x60_0000;

/// What happens to a core between two steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    /// Its progress is taken out and put back.
    Kept,
    /// Another core goes on, which keeps nothing.
    Moved,
}

/// All that may be seen of a run.
struct Seen {
    /// Ticks that the context was charged.
    charged: u64,
    /// Without these.
    vram: Vec<u8>,
    system: Vec<u8>,
    ticks: [u64; 2],
    outcomes: Vec<(usize, Outcome)>,
    states: [EngineState; 2],
    counters: [(Counter, u64); COUNT],
}

/// Counters of what a core may forget: another core has to find it once more.
const FORGETFUL: [Counter; 6] = [
    Counter::WalkHit,
    Counter::WalkMiss,
    Counter::TlbHit,
    Counter::TlbMiss,
    Counter::VramRead,
    Counter::SystemRead,
];

fn memory() -> Stepped {
    let mut stepped = Stepped::new();
    let vram = |at| Target::Vram(GpuPhys(vram::BASE + at));
    for i in 0..8 {
        let (at, size) = (i * 0x1_0000, PageSize::Size64K);
        let system = Target::System(BusAddr(BUS + SYSTEM_FREE + at));
        stepped.map_page(MEDIUM_VA + at, system, size, true);
        stepped.map_page(MEDIUM_RIVAL_VA + at, vram(MEDIUM_RIVAL + at), size, true);
    }
    stepped.map_page(LARGE_VA, vram(LARGE), PageSize::Size2M, true);
    stepped.map_range(RIVAL_VA, vram(RIVAL), DATA_BYTES, true);
    for i in 0..8 {
        let at = BUS + SYSTEM_FREE + 0x10_0000 + (7 - i) * 0x1000;
        stepped.set_gart(i, Entry::gart(BusAddr(at), true, i % 2 == 0));
    }
    // Everywhere other bytes.
    for at in (DATA..VRAM_BYTES).step_by(8) {
        stepped.set_vram64(at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    for at in (SYSTEM_FREE..SYSTEM_BYTES).step_by(8) {
        stepped.set_system64(at, at.wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
    }
    stepped
}

/// Runs what `start` starts: an engine until it has nothing to do or waits, then the other one.
fn run(start: impl Fn(&mut Stepped), budgets: &[u64], between: Between) -> Seen {
    let mut stepped = memory();
    start(&mut stepped);
    let (mut ticks, mut outcomes) = ([0; 2], Vec::new());
    let mut others = [new_core(COMPUTE), new_core(COPY)];
    let mut budgets = budgets.iter().cycle();
    let mut rounds = 0;
    loop {
        let mut last = [Outcome::Idle; 2];
        for engine in ENGINES {
            let index = engine.index();
            last[index] = loop {
                let before = stepped.cores[index].shown().ticks;
                let budget = *budgets.next().unwrap();
                let outcome = stepped.step(engine, budget);
                let used = stepped.cores[index].shown().ticks - before;
                assert!(used <= budget, "{used} ticks of {budget}");
                ticks[index] += used;
                let progress = match between {
                    Between::Nothing => None,
                    _ => Some(stepped.cores[index].take_progress()),
                };
                if between == Between::Moved {
                    std::mem::swap(&mut stepped.cores[index], &mut others[index]);
                    stepped.with_memory(engine, |core, memory| core.reset(memory));
                }
                if let Some(progress) = progress {
                    let shown = stepped.cores[index].shown();
                    assert_eq!(shown.state, EngineState::Disabled);
                    let kept = Progress::clone(&progress);
                    drop(progress);
                    stepped.cores[index].set_progress(kept);
                }
                match outcome {
                    Outcome::Busy => {}
                    Outcome::Waiting | Outcome::Idle | Outcome::Faulted(_) => break outcome,
                    Outcome::Signalled
                    | Outcome::Invalidate(_)
                    | Outcome::Completed { .. }
                    | Outcome::Preempted { .. } => {
                        outcomes.push((index, outcome));
                    }
                }
            };
            if last[index] != Outcome::Idle {
                outcomes.push((index, last[index]));
            }
        }
        rounds += 1;
        assert!(rounds < 1000, "{last:?}");
        if !last.contains(&Outcome::Waiting) {
            break;
        }
    }
    let charged = stepped.vram64(CONTEXT + Descriptor::TICKS);
    stepped.set_vram64(CONTEXT + Descriptor::TICKS, 0);
    Seen {
        charged,
        vram: stepped.vram_bytes(0, VRAM_BYTES as usize),
        system: stepped.system_bytes(0, SYSTEM_BYTES as usize),
        ticks,
        outcomes,
        states: [0, 1].map(|index| stepped.cores[index].shown().state),
        counters: Counter::ALL.map(|(counter, _)| (counter, stepped.tally.get(counter))),
    }
}

/// Compares a run that nobody disturbs, which is returned, with those that are cut everywhere, or
/// at odd places.
fn check(start: impl Fn(&mut Stepped)) -> Seen {
    let whole = run(&start, &[u64::MAX], Between::Nothing);
    for between in [Between::Nothing, Between::Kept, Between::Moved] {
        for budgets in [&[1][..], &[7, 1, 300, 2, 64]] {
            let cut = run(&start, budgets, between);
            let what = format!("{between:?} {budgets:?}");
            assert_eq!(cut.outcomes, whole.outcomes, "{what}");
            // What another core has to find once more takes its time, and nothing else does.
            let counted = |seen: &Seen, counter| seen.counters[counter as usize].1;
            let more = |counter| counted(&cut, counter) - counted(&whole, counter);
            let found = more(Counter::TlbMiss) * ticks::TLB_MISS
                + more(Counter::WalkMiss) * ticks::WALK
                // Entries of the GART.
                + more(Counter::SystemRead) / 8 * ticks::SYSTEM;
            assert_eq!(
                cut.ticks.iter().sum::<u64>(),
                whole.ticks.iter().sum::<u64>() + found,
                "{what}"
            );
            if between != Between::Moved {
                let time = (whole.ticks, whole.charged);
                assert_eq!((cut.ticks, cut.charged), time, "{what}");
            }
            assert_eq!(cut.states, whole.states, "{what}");
            for (a, b) in cut.counters.iter().zip(&whole.counters) {
                let forgotten = between == Between::Moved && FORGETFUL.contains(&a.0);
                assert!(a == b || forgotten, "{what}: {a:?}, not {b:?}");
            }
            assert!(cut.vram == whole.vram, "{what}");
            assert!(cut.system == whole.system, "{what}");
        }
    }
    whole
}

fn packet(stepped: &mut Stepped, engine: EngineIndex, commands: &[Command]) {
    let (exec, _) = stepped.exec(engine, commands);
    stepped.start(engine, &[exec]);
}

fn fill(address: u64, bytes: u64) -> Command {
    Command::Fill {
        pattern: 0x0403_0201,
        address,
        bytes,
    }
}

fn copy(source: u64, destination: u64, bytes: u64) -> Command {
    Command::Copy {
        source,
        destination,
        bytes,
    }
}

#[test]
fn fills() {
    let seen = check(|stepped| {
        let commands = [
            fill(DATA_VA + 4, 4),
            fill(DATA_VA + 0x0ffc, 64),
            fill(DATA_VA + 0x1ff4, 0x2010),
            fill(MEDIUM_VA + 0xfff8, 0x1_0010),
            fill(LARGE_VA + 0x14, 0x1_8004),
        ];
        packet(stepped, COPY, &commands);
        let system = vram::BASE + RIVAL + 4;
        stepped.start(
            COPY,
            &[fill(system, 0x1_0000), fill(gart::BASE + 8, 0x3004)],
        );
    });
    assert_eq!(seen.states[1], EngineState::Idle);
    assert_eq!(seen.system[SYSTEM_FREE as usize + 0xfff8], 1);
}

#[test]
fn copies() {
    let seen = check(|stepped| {
        let commands = [
            copy(DATA_VA + 1, MEDIUM_VA + 0xfff0, 0x1_1111),
            copy(MEDIUM_VA + 3, LARGE_VA + 0x1000, 0x1_0801),
            copy(LARGE_VA + 7, DATA_VA + 0x4_0005, 65),
            // Upwards and downwards.
            copy(DATA_VA + 0x1_0000, DATA_VA + 0x1_0003, 0x2345),
            copy(MEDIUM_VA + 0x1234, MEDIUM_VA + 0x5, 0x1_0203),
            copy(LARGE_VA + 0x100, LARGE_VA + 0x2101, 0x4567),
            copy(MEDIUM_VA + 1, MEDIUM_VA + 0x800, 0x1_2345),
            // Pages that take each other's place in the TLB.
            copy(DATA_VA + 0x123, RIVAL_VA + 0x40, 0x3210),
            copy(MEDIUM_VA + 5, MEDIUM_RIVAL_VA + 0x40, 0x1_1111),
        ];
        packet(stepped, COPY, &commands);
        let system = vram::BASE + RIVAL;
        stepped.start(COPY, &[copy(gart::BASE + 100, system, 0x5000)]);
    });
    assert_eq!(seen.states[1], EngineState::Idle);
}

/// What a step may still move is no multiple of FILL's word behind such a COPY.
#[test]
fn fills_behind_odd_copies() {
    let seen = check(|stepped| {
        let mut commands = Vec::new();
        for bytes in [1, 0xfffe, 0x1_0003] {
            commands.push(copy(DATA_VA, RIVAL_VA, bytes));
            commands.push(fill(LARGE_VA + 4, 0x2_0000));
        }
        packet(stepped, COPY, &commands);
    });
    let filled = &seen.vram[LARGE as usize + 4..][..0x2_0000];
    assert!(filled.chunks(4).all(|word| word == [1, 2, 3, 4]));
}

#[test]
fn rectangles() {
    check(|stepped| {
        let rows = |source, destination, bytes, pitches: (u32, u32), rows| Command::Copy2d {
            source,
            destination,
            bytes,
            source_pitch: pitches.0,
            destination_pitch: pitches.1,
            rows,
        };
        let commands = [
            rows(DATA_VA + 3, MEDIUM_VA + 0xfff0, 129, (333, 1000), 40),
            rows(DATA_VA, DATA_VA + 0x5_0000, 1, (64, 3), 100),
            rows(DATA_VA + 500, DATA_VA, 700, (1000, 1000), 20),
            rows(DATA_VA, DATA_VA + 1500, 700, (1000, 1000), 20),
        ];
        packet(stepped, COMPUTE, &commands);
    });
}

/// A program whose result depends on the order in which waves and groups run: in turns, through
/// barriers, apart and together again.
pub(crate) const RACE: &str = "
    .threads 80
    .shared 512
    .arg64 target
        arg r2, target
        arg r3, target.hi
        sr r0, flat
        sr r1, gid.x
        mov r4, 1
        mov r20, 90
        and r5, r0, 3
        shl r6, r0, 2
        and r7, r0, 127
    again:
        atom.add r10, [r2], r4
        add r11, r11, r10
        bz r5, even
        mul r11, r11, 77
        add r11, r11, r0
    even:
        xor r12, r11, r1
        sub r20, r20, 1
        bnz r20, again
        sts.32 [r6], r12
        bar
        lds.32 r13, [r6]
        and r14, r0, 31
        atoms.add r15, [r14], r4
        bar
        add r13, r13, r15
        mul r16, r1, 80
        add r16, r16, r0
        lea r8, r2, r16, 2
        st.32 [r8 + 64], r13
        st.32 [r8 + 4096], r12
        exit";

#[test]
fn dispatches() {
    let seen = check(|stepped| {
        // Shared counters are words.
        let program = assemble(&RACE.replace("and r14, r0, 31", "and r14, r0, 28")).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        for (program_at, target) in [
            (DATA_VA, RIVAL_VA),
            (DATA_VA, MEDIUM_VA + 0xf000),
            (vram::BASE + DATA, vram::BASE + LARGE),
        ] {
            let dispatch = program
                .dispatch(program_at, [3, 2, 1], |_| Some(target))
                .unwrap();
            let command = Command::Dispatch(dispatch);
            if program_at == DATA_VA {
                packet(stepped, COMPUTE, &[command]);
            } else {
                stepped.start(COMPUTE, &[command]);
            }
        }
    });
    assert_eq!(seen.states[0], EngineState::Idle);
    assert_eq!(seen.counters[Counter::ThreadGroup as usize].1, 18);
}

#[test]
fn drawings() {
    let seen = check(|stepped| {
        let program = assemble(
            "and r10, r2, 3\n add r0, r8, r3\n again: bz r10, out\n mul r0, r0, 77
             sub r10, r10, 1\n bra again\n out: shr r1, r0, 31\n exit",
        );
        let program = program.unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let vertices = [
            [0x80, 0x100, 5],
            [0x2a00, 0x280, -9],
            [0x333, 0x1000, 777],
            [0x2a00, 0x280, 5],
            [0x80, 0x100, 5],
            [i32::MIN, i32::MIN, i32::MAX],
        ];
        let words = vertices
            .iter()
            .flatten()
            .flat_map(|word: &i32| word.to_le_bytes());
        stepped.set_vram(DATA + 0xff0, &words.collect::<Vec<_>>());
        let draw = |vertices, target, pitch, blend| Draw {
            blend,
            attributes: 1,
            vertices,
            vertex_count: 6,
            triangles: 2,
            target,
            pitch,
            scissor: Rectangle {
                left: 0,
                top: 0,
                right: 50,
                bottom: 12,
            },
            ..Draw::default()
        };
        let base = vram::BASE + DATA;
        let one = draw(base + 0xff0, vram::BASE + LARGE, 200, Blend::Replace);
        let one = program.draw(base, one, |_| None).unwrap();
        stepped.start(COMPUTE, &[Command::Draw(one)]);
        let [one, other] = [(DATA_VA + 0xff0, RIVAL_VA), (RIVAL_VA + 0xff0, MEDIUM_VA)].map(
            |(vertices, target)| {
                let draw = draw(vertices, target, 0x1000, Blend::Over);
                program.draw(DATA_VA, draw, |_| None).unwrap()
            },
        );
        // An index that is none.
        let indices = Some(LARGE_VA + 0x10_0000);
        let bad = Draw { indices, ..other };
        packet(stepped, COMPUTE, &[one, other, bad].map(Command::Draw));
    });
    assert_eq!(seen.states[0], EngineState::Faulted);
    assert_eq!(seen.counters[Counter::Triangle as usize].1, 6);
}

#[test]
fn programs_whose_pages_displace_each_other() {
    let seen = check(|stepped| {
        let source = ".threads 64
            .arg64 one
            .arg64 other
                sr r0, flat
                arg r2, one\n arg r3, one.hi\n arg r4, other\n arg r5, other.hi
                lea r2, r2, r0, 2\n lea r4, r4, r0, 2
                mov r20, 40
            again:
                ld.32 r10, [r2]\n ld.32 r11, [r4]\n ld.32 r12, [r4 + 4096]
                add r10, r10, r11\n add r10, r10, r12
                st.32 [r4 + 512], r10\n st.32 [r2 + 4096], r10
                sub r20, r20, 1
                bnz r20, again
                exit";
        let program = assemble(source).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        for (one, other) in [
            (DATA_VA + 0x1000, RIVAL_VA + 0x1000),
            (MEDIUM_VA + 0x1000, MEDIUM_RIVAL_VA + 0x5000),
        ] {
            let dispatch = program
                .dispatch(DATA_VA, [2, 1, 1], |name| match name {
                    "one" => Some(one),
                    _ => Some(other),
                })
                .unwrap();
            packet(stepped, COMPUTE, &[Command::Dispatch(dispatch)]);
        }
    });
    assert_eq!(seen.states[0], EngineState::Idle);
}

/// Pages that are translated twice, some of them through entries whose place in the TLB is that of
/// the page's own.
#[test]
fn programs_whose_pages_lead_through_the_gart() {
    // Of each wave.
    const DUMMIES: u64 = 2 * 40;
    // The place of the GART's first page, and another one.
    let number = u64::from(ASID.get()) * 0x9e37 % 1024;
    let [near, far] = [number, number ^ 0x200].map(|number| 0x5400_0000 + number * 0x1000);
    let seen = check(|stepped| {
        let window = |page: u64| Target::Vram(GpuPhys(gart::BASE + page * 0x1000));
        for (va, page) in [(near, 0), (far, 2)] {
            stepped.map_page(va, window(page), PageSize::Size4K, true);
        }
        let dummy = DATA_VA + DATA_BYTES;
        stepped.map_page(dummy, window(8), PageSize::Size4K, true);
        stepped.set_gart(8, Entry::dummy(BusAddr(BUS + SYSTEM_FREE + 0x20_0000)));
        let source = ".threads 64
            .arg64 one
            .arg64 other
            .arg64 dummy
                sr r0, flat
                arg r2, one\n arg r3, one.hi\n arg r4, other\n arg r5, other.hi
                arg r6, dummy\n arg r7, dummy.hi
                lea r2, r2, r0, 2\n lea r4, r4, r0, 2
                mov r20, 40
            again:
                ld.32 r10, [r2]\n ld.32 r13, [r2 + 4]
                ld.32 r11, [r4]\n ld.32 r14, [r4 + 4]
                ld.32 r12, [r6]\n ld.32 r15, [r6 + 4]
                add r10, r10, r11\n add r10, r10, r12
                st.32 [r2 + 512], r10\n st.32 [r4 + 1024], r10
                sub r20, r20, 1
                bnz r20, again
                exit";
        let program = assemble(source).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let dispatch = program
            .dispatch(DATA_VA, [2, 1, 1], |name| match name {
                "one" => Some(near),
                "other" => Some(far),
                _ => Some(dummy),
            })
            .unwrap();
        packet(stepped, COMPUTE, &[Command::Dispatch(dispatch)]);
    });
    assert_eq!(seen.states[0], EngineState::Idle);
    // Two groups of two waves.
    let dummies = seen.counters[Counter::GartDummy as usize].1;
    assert_eq!(dummies, 4 * DUMMIES);
}

#[test]
fn waits_and_signals() {
    let seen = check(|stepped| {
        stepped.set_vram(RIVAL, &[0; 16]);
        let signal = |at, value| Command::Signal {
            address: RIVAL_VA + at,
            value,
        };
        let wait = |at, value| Command::Wait {
            address: RIVAL_VA + at,
            value,
        };
        let (mut ping, mut pong) = (Vec::new(), Vec::new());
        for i in 1..10 {
            ping.extend([signal(0, i), wait(8, i), fill(DATA_VA + i * 64, 64)]);
            pong.extend([
                wait(0, i),
                copy(DATA_VA, DATA_VA + 0x1_0000, 99),
                signal(8, i),
            ]);
        }
        packet(stepped, COMPUTE, &ping);
        packet(stepped, COPY, &pong);
    });
    // Each engine in each round, but for the last look.
    let waits = seen.outcomes.iter().filter(|o| o.1 == Outcome::Waiting);
    assert_eq!(waits.count(), 2 * 9 - 1);
    assert_eq!(seen.states, [EngineState::Idle; 2]);
}

#[test]
fn rings_and_packets() {
    let seen = check(|stepped| {
        for i in 0..40 {
            let fence = |fence, interrupt| Command::Fence { fence, interrupt };
            let nop = Command::Nop { words: 4 };
            let (exec, _) = stepped.exec(COMPUTE, &[nop, Command::FlushCache, nop]);
            let mut silent = exec;
            if let Command::Exec {
                fence, interrupt, ..
            } = &mut silent
            {
                (*fence, *interrupt) = (None, false);
            }
            let asid = (i % 2 == 0).then_some(ASID);
            let flush = Command::FlushTlb { asid };
            let invalidate = Command::Invalidate { asid };
            let last = fence(1000 + i, i % 2 != 0);
            stepped.start(COMPUTE, &[exec, flush, silent, invalidate, last]);
            // What is cut goes over the end of the ring.
            while i < 30 && stepped.step(COMPUTE, u64::MAX) != Outcome::Idle {}
        }
    });
    assert_eq!(seen.states[0], EngineState::Idle);
}

#[test]
fn faults() {
    let end = DATA_VA + DATA_BYTES;
    let cases: Vec<(Vec<Command>, Reason)> = vec![
        (vec![fill(end - 0x1204, 0x2000)], Reason::NotPresent),
        (
            vec![copy(DATA_VA, end - 0x1203, 0x2000)],
            Reason::NotPresent,
        ),
        // From the end to the start.
        (
            vec![copy(end - 0x2001, end - 0x1001, 0x2000)],
            Reason::NotPresent,
        ),
        (vec![copy(gart::BASE, DATA_VA, 8)], Reason::AddressRange),
        (
            vec![Command::FlushCache, Command::FlushTlb { asid: None }],
            Reason::Privileged,
        ),
    ];
    for (commands, reason) in cases {
        let seen = check(|stepped| packet(stepped, COPY, &commands));
        let [(1, Outcome::Faulted(Record { reason: found, .. }))] = seen.outcomes[..] else {
            panic!("{:?}", seen.outcomes);
        };
        assert_eq!(found, reason);
        assert_eq!(seen.states[1], EngineState::Faulted);
    }
    // Some threads of the second group.
    let seen = check(|stepped| {
        let source = ".threads 50
            .arg64 target
                arg r2, target\n arg r3, target.hi
                sr r0, flat\n sr r1, gid.x
                bz r1, good
                lea r2, r2, r0, 3
            good: st.32 [r2], r0
                atom.add r4, [r2], r0
                exit";
        let program = assemble(source).unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let dispatch = program
            .dispatch(DATA_VA, [2, 1, 1], |_| Some(end - 16 * 8))
            .unwrap();
        packet(stepped, COMPUTE, &[Command::Dispatch(dispatch)]);
    });
    let [(0, Outcome::Faulted(record))] = seen.outcomes[..] else {
        panic!("{:?}", seen.outcomes);
    };
    assert_eq!((record.reason, record.address), (Reason::NotPresent, end));
    assert_eq!(seen.counters[Counter::ThreadGroup as usize].1, 1);
}

#[test]
fn a_reset_between_any_two_steps_charges_the_time() {
    let work = [fill(DATA_VA, 0x400), copy(DATA_VA, DATA_VA + 0x1001, 0x200)];
    let mut steps: u64 = 0;
    loop {
        let mut stepped = memory();
        packet(&mut stepped, COPY, &work);
        for _ in 0..steps {
            stepped.step(COPY, 1);
        }
        let shown = stepped.cores[1].shown();
        stepped.with_memory(COPY, |core, memory| core.reset(memory));
        let after = stepped.cores[1].shown();
        assert_eq!(after.ticks, shown.ticks);
        assert_eq!(after.state, EngineState::Disabled);
        assert_eq!((after.head, after.current_fence), (0, 0));
        assert_eq!(stepped.step(COPY, 1), Outcome::Idle);
        let charged = stepped.vram64(CONTEXT + Descriptor::TICKS);
        if shown.state == EngineState::Idle && shown.ticks > 0 {
            assert_eq!(charged, shown.ticks);
            break;
        }
        // EXEC's own time is charged once the context is known.
        assert!(charged == shown.ticks || (shown.ticks <= 1 && charged == 0));
        steps += 1;
        assert!(steps < 200);
    }
    // EXEC, two commands, and 64 bytes each; the buffer, a page, and another one near it.
    let time = 3 + 16 + 8 + 2 * COLD + ticks::TLB_MISS;
    assert!(steps >= time, "{steps}");
}

#[test]
fn a_tail_that_goes_back_leaves_nothing_to_do() {
    let mut stepped = memory();
    stepped.start(COMPUTE, &[fill(vram::BASE + DATA, 0x40)]);
    assert_eq!(stepped.step(COMPUTE, 1), Outcome::Busy);
    assert_eq!(stepped.cores[0].shown().state, EngineState::Running);
    // The tail that was found to be another than the head is not the one that counts.
    stepped.cores[0].ring_doorbell(0);
    assert_eq!(stepped.step(COMPUTE, 100), Outcome::Idle);
    assert_eq!(stepped.tally.get(Counter::RingCommand), 0);
}

/// What takes no time of the engine's takes the host's.
#[test]
fn a_step_is_bounded_by_the_programs_that_it_reads() {
    for (bytes, most) in [(MAX_PROGRAM as usize, 1), (0x6000, 2)] {
        let work = |stepped: &mut Stepped| {
            let program = assemble("exit").unwrap().bytes().repeat(bytes / 8);
            stepped.set_vram(DATA, &program);
            let dispatch = Dispatch {
                program: DATA_VA,
                program_bytes: program.len() as u32,
                shared_bytes: 0,
                groups: [1; 3],
                threads: [1; 3],
                arguments: [0; MAX_ARGUMENTS],
                argument_count: 0,
            };
            let draw = Draw {
                program: DATA_VA,
                program_bytes: program.len() as u32,
                vertices: LARGE_VA,
                vertex_count: 3,
                triangles: 1,
                target: RIVAL_VA,
                pitch: 4,
                scissor: Rectangle {
                    left: 0,
                    top: 0,
                    right: 1,
                    bottom: 1,
                },
                ..Draw::default()
            };
            let (dispatch, draw) = (Command::Dispatch(dispatch), Command::Draw(draw));
            let commands = [dispatch, Command::FlushCache, draw, Command::FlushCache];
            packet(stepped, COMPUTE, &commands.repeat(5));
        };
        check(work);
        let mut stepped = memory();
        work(&mut stepped);
        let (mut before, mut outcome) = (0, Outcome::Busy);
        while outcome != Outcome::Idle {
            outcome = stepped.step(COMPUTE, u64::MAX);
            let read = stepped.tally.get(Counter::VramRead);
            // Commands, vertices and tables are far smaller.
            assert!((read - before) / bytes as u64 <= most, "{before} {read}");
            before = read;
        }
        assert!(before > 10 * bytes as u64, "{before}");
    }
}

#[test]
fn a_step_is_bounded_by_the_shared_memory_that_it_clears() {
    let work = |stepped: &mut Stepped| {
        let program = assemble(".shared 32768\nexit").unwrap();
        stepped.set_vram(DATA, &program.bytes());
        let dispatch = program.dispatch(DATA_VA, [5, 1, 1], |_| None).unwrap();
        packet(stepped, COMPUTE, &[Command::Dispatch(dispatch); 3]);
    };
    check(work);
    let mut stepped = memory();
    work(&mut stepped);
    let (mut before, mut idle) = (0, false);
    while !idle {
        idle = stepped.step(COMPUTE, u64::MAX) == Outcome::Idle;
        let groups = stepped.tally.get(Counter::ThreadGroup);
        assert!(groups - before <= 2, "{before} {groups}");
        before = groups;
    }
    assert_eq!(before, 15);
}

#[test]
fn a_step_is_bounded_by_the_pages_that_it_opens() {
    let mut stepped = memory();
    // More pages than any TLB has room for: every access walks the tables.
    let va = 0x7000_0000;
    for i in 0..4096 {
        let target = Target::Vram(GpuPhys(vram::BASE + DATA + i % 8 * 0x1000));
        stepped.map_page(va + i * 0x1000, target, PageSize::Size4K, true);
    }
    let source = ".threads 32
        .arg64 target
            arg r2, target\n arg r3, target.hi
            sr r0, flat\n shl r0, r0, 12
            mov r20, 1000
        again:
            add r0, r0, 0x20000
            and r0, r0, 0xffffff
            lea r4, r2, r0, 0
            ld.32 r6, [r4]
            sub r20, r20, 1
            bnz r20, again
            exit";
    let program = assemble(source).unwrap();
    stepped.set_vram(DATA, &program.bytes());
    let dispatch = program.dispatch(DATA_VA, [1; 3], |_| Some(va)).unwrap();
    packet(&mut stepped, COMPUTE, &[Command::Dispatch(dispatch)]);
    let mut before = 0;
    while stepped.step(COMPUTE, u64::MAX) != Outcome::Idle {
        let opened = stepped.tally.get(Counter::TlbMiss) - before;
        before += opened;
        assert!(opened < 512 + 64, "{opened}");
    }
    assert!(before > 30_000, "{before}");
}
