// SPDX-License-Identifier: MIT

//! How late engines of different levels stop: `guests.json` gives this program a GPU with a compute
//! engine of each level but NONE, the coarsest first.

use std::process::ExitCode;

use skua_selftests::function::Function;
use skua_selftests::program::{address, op, op_imm, EXIT};
use skua_selftests::race::Hold;
use skua_selftests::rig::{copy, dispatch, write, Buffer};
use skua_selftests::suite::{self, eventually};
use skua_selftests::{tests, Client, Place, Rig};
use skua_spec::command::{Command, Dispatch, Draw, Rectangle};
use skua_spec::isa::Op;
use skua_spec::preemption::Level;
use skua_uapi::DRM_SKUA_ENGINE_COMPUTE;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_06_all_engines_count,
        row_2_06_what_computes_stops_within_a_unit: 120 at_rest,
        row_2_06_what_draws_stops_within_a_unit: 120 at_rest,
    ])
}

/// Rounds of the smallest unit, a wave up to its barrier or a pixel: more than there are between
/// two looks at requests.
const ROUNDS: u32 = 2000;
/// Of each unit, so many are the next larger one: of a group or a triangle, and of a command.
const PARTS: u32 = 4;
/// Commands of a buffer.
const COMMANDS: u32 = 8;
/// Instructions of a round, at least: a tick each, at least.
const ROUND: u32 = 7;
/// Instructions within which an engine looks whether it is to stop.
const LOOKS_WITHIN: u32 = 4096;

/// In bytes behind the late rounds: the number that was asked for, and the one that was done; what
/// is behind it in the ring, and what that was then; how many units of each part were done.
const ASKED: usize = 8;
const DONE: usize = 16;
const BEHIND: usize = 24;
const BEHIND_THEN: usize = 32;
const UNITS: usize = 64;

/// Goes round, with the words at the address in arguments 0 and 1: argument 2 is the rounds of a
/// unit, argument 3 the units, each of which ends at a barrier and is counted at [`UNITS`], in the
/// word whose number the instruction `number` puts into r12. Word 0 counts the rounds in which the
/// word at [`ASKED`] is one more than that at [`DONE`].
const fn rounds(number: u64) -> [u64; 22] {
    [
        op(Op::Arg, 20, 0, 0, 0),
        op(Op::Arg, 21, 0, 0, 1),
        op(Op::Arg, 10, 0, 0, 2),
        op(Op::Arg, 11, 0, 0, 3),
        number,
        op_imm(Op::Add, 12, 12, UNITS as u32 / 4),
        op(Op::Lea, 14, 20, 12, 2),
        op_imm(Op::Mov, 9, 0, 1),
        // A unit.
        op_imm(Op::Add, 13, 10, 0),
        // A round.
        op(Op::Ld32, 4, 20, 0, ASKED as u32),
        op(Op::Ld32, 5, 20, 0, DONE as u32),
        op(Op::Sub, 7, 4, 5, 0),
        op_imm(Op::Sub, 7, 7, 1),
        op(Op::Bnz, 0, 7, 0, 15),
        op(Op::AtomAdd, 16, 20, 9, 0),
        op_imm(Op::Sub, 13, 13, 1),
        op(Op::Bnz, 0, 13, 0, 9),
        op(Op::AtomAdd, 16, 14, 9, 0),
        op_imm(Op::Sub, 11, 11, 1),
        op(Op::Bar, 0, 0, 0, 0),
        op(Op::Bnz, 0, 11, 0, 8),
        EXIT,
    ]
}

/// The part is the group.
const BY_GROUP: &[u64] = &rounds(op(Op::Sr, 12, 0, 0, 3));
/// The part is the row.
const BY_ROW: &[u64] = &rounds(op_imm(Op::Add, 12, 3, 0));

/// The only thread of [`PARTS`] groups, of as many units each.
fn computes(rig: &Rig, words: &Buffer) -> (Buffer, Command) {
    let program = rig.program(BY_GROUP);
    let [low, high] = address(words.va);
    let Command::Dispatch(one) = dispatch(&program, BY_GROUP, &[low, high, ROUNDS, PARTS]) else {
        unreachable!("a dispatch");
    };
    let groups = [PARTS, 1, 1];
    (program, Command::Dispatch(Dispatch { groups, ..one }))
}

/// [`PARTS`] times the same triangle, of as many pixels below each other.
fn draws(rig: &Rig, words: &Buffer, picture: &Buffer) -> (Buffer, Command) {
    let program = rig.program(BY_ROW);
    let end = 64 << 8;
    let corners = [[0, 0], [end, 0], [0, end]];
    let triangles = [corners; PARTS as usize];
    picture
        .cpu
        .write_words(2048, triangles.as_flattened().as_flattened());
    let mut draw = Draw {
        program: program.va,
        program_bytes: size_of_val(BY_ROW) as u32,
        vertices: picture.va + 2048,
        vertex_count: 3 * PARTS,
        triangles: PARTS,
        target: picture.va,
        pitch: 4,
        scissor: Rectangle {
            left: 0,
            top: 0,
            right: 1,
            bottom: PARTS as u16,
        },
        argument_count: 4,
        ..Draw::default()
    };
    let [low, high] = address(words.va);
    draw.arguments[..4].copy_from_slice(&[low, high, ROUNDS, 1]);
    (program, Command::Draw(draw))
}

fn row_2_06_all_engines_count() {
    let device = Client::new().device;
    let preemption = [device.graphics_preemption, device.compute_preemption];
    assert_eq!(preemption, [100, 100]);
}

fn row_2_06_what_computes_stops_within_a_unit() {
    let rig = Rig::new();
    let words = rig.buffer(Place::System, 4096);
    let (_program, command) = computes(&rig, &words);
    stop_within_units(&rig, &words, command);
}

fn row_2_06_what_draws_stops_within_a_unit() {
    let rig = Rig::new();
    let [words, picture] = [Place::System; 2].map(|place| rig.buffer(place, 4096));
    let (_program, command) = draws(&rig, &words, &picture);
    stop_within_units(&rig, &words, command);
}

/// The request has reached the engine when a later register write is known to have reached the
/// device: how many rounds come then before who is important has the engine. The work does not end
/// before it is asked for. Each unit is done once all the same, and what is behind it in the ring
/// waits.
#[track_caller]
fn stop_within_units(rig: &Rig, words: &Buffer, command: Command) {
    let counters = ["driver_preemptions", "preempt_ignored"];
    let counts = || Function::first().counters(counters);
    let late = || words.cpu.read32(0);
    let units = || (0..PARTS as usize).map(|n| words.cpu.read32(UNITS + 4 * n));
    let mut round = 0;
    let engines = rig.engines.iter();
    let engines = engines.filter(|engine| engine.kind == DRM_SKUA_ENGINE_COMPUTE);
    let levels = &Level::ALL[1..];
    assert_eq!(engines.clone().count(), levels.len());
    for (engine, &(level, name, _)) in engines.zip(levels) {
        // A unit of the level, in the smallest ones.
        let unit = match level {
            Level::None | Level::DmaBuffer => COMMANDS * PARTS * PARTS,
            Level::Dispatch => PARTS * PARTS,
            Level::ThreadGroup => PARTS,
            Level::Thread => 1,
            Level::Instruction => 0,
        };
        let [low, high] = [-1, 1].map(|priority| {
            let context = rig.context_create(rig.vm, engine.index).expect("a context");
            assert_eq!(rig.prioritise(context, priority), Ok(()));
            // With its save area.
            assert_eq!(
                rig.start_in(context, &[Command::Nop { words: 2 }]).wait(),
                Ok(())
            );
            context
        });
        let mut latest = 0;
        for n in 0..10 {
            round += 1;
            let done: u32 = units().sum();
            let hold = Hold::new(rig);
            let mut work = vec![command; COMMANDS as usize];
            work.push(hold.command());
            let long = rig.start_in(low, &work);
            let behind = rig.start_in(low, &[write(words.va + BEHIND as u64, round)]);
            let some = done + 1 + 7 * n;
            let began = eventually(|| (units().sum::<u32>() >= some).then_some(()));
            assert!(began.is_some(), "{name}: it does not begin");
            let ([before, _], earlier) = (counts(), late());
            let important = [
                copy(words.va + BEHIND as u64, words.va + BEHIND_THEN as u64, 8),
                write(words.va + DONE as u64, round),
            ];
            let important = rig.start_in(high, &important);
            // Asking for them writes a register, and waits for the answer.
            let asked = eventually(|| (counts()[0] > before).then_some(()));
            assert!(asked.is_some(), "{name}: it is not asked");
            words.cpu.write(ASKED, round);
            hold.release();
            assert_eq!(important.wait(), Ok(()), "{name}, round {n}");
            let late = late() - earlier;
            latest = latest.max(late);
            assert!(
                late <= unit * ROUNDS + LOOKS_WITHIN / ROUND + 1,
                "{name}: {late} rounds late"
            );
            assert_eq!(
                words.cpu.read(BEHIND_THEN),
                round - 1,
                "{name}: what is behind it came first"
            );
            assert_eq!([long.wait(), behind.wait()], [Ok(()), Ok(())], "{name}");
            assert_eq!(words.cpu.read(BEHIND), round);
        }
        println!("# {name}: {latest} rounds late at most");
    }
    for (part, times) in units().enumerate() {
        let expected = round as u32 * COMMANDS * PARTS;
        assert_eq!(times, expected, "part {part}");
    }
    let [_, ignored] = counts();
    assert_eq!(ignored, 0);
}
