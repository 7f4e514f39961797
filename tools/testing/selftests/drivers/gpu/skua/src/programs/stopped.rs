// SPDX-License-Identifier: MIT

//! Work that is stopped again and again, at any instruction, ends as if it had been alone.
//!
//! Sixteen contexts do random work, which is then done once more: one job after the other, on
//! engines that nobody asks to stop. No byte of memory may tell the two apart.

use std::process::ExitCode;

use skua_guest::host::RandomSteps;
use skua_selftests::client::{signal, wait};
use skua_selftests::drawing::square;
use skua_selftests::function::Function;
use skua_selftests::moving::{movable, while_again, while_all_is_evicted, Numbers};
use skua_selftests::program::{address, op, op_imm, COUNT, EXIT};
use skua_selftests::rig::{copy, dispatch, fill, wait_value, write, Buffer};
use skua_selftests::suite::{self, rounds};
use skua_selftests::torture::seed;
use skua_selftests::unpreempted::Unasked;
use skua_selftests::witness::{expect_areas, quiet};
use skua_selftests::{tests, Engine, Place, Rig};
use skua_spec::command::{Command, Dispatch};
use skua_spec::context::REGISTERS;
use skua_spec::isa::Op;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        row_2_13_what_is_stopped_anywhere_ends_as_in_a_serial_run: 120,
        row_2_13_what_is_stopped_and_moved_ends_as_in_a_serial_run: 120,
    ])
}

const MULTIPLIER: u32 = 1_664_525;
const INCREMENT: u32 = 1_013_904_223;

/// Thread `n` of all counts itself in the `n`-th word from the address in arguments 3 and 4 on, and
/// mixes the count into the `n`-th word from that in arguments 0 and 1 on; then, as often as
/// argument 2 says, itself and what the next thread of its group has. The sum of what came of it is
/// added to word 1024 of the counts.
const STIR: &[u64] = &[
    op(Op::Arg, 2, 0, 0, 0),
    op(Op::Arg, 3, 0, 0, 1),
    op(Op::Arg, 8, 0, 0, 2),
    op(Op::Arg, 12, 0, 0, 3),
    op(Op::Arg, 13, 0, 0, 4),
    // r4 = group * threads + thread; r5 = thread; r19 = threads
    op(Op::Sr, 4, 0, 0, 3),
    op(Op::Sr, 19, 0, 0, 6),
    op(Op::Mul, 4, 4, 19, 0),
    op(Op::Sr, 5, 0, 0, 0),
    op(Op::Add, 4, 4, 5, 0),
    op(Op::Lea, 6, 2, 4, 2),
    op(Op::Lea, 14, 12, 4, 2),
    op_imm(Op::Mov, 16, 0, 1),
    op(Op::AtomAdd, 17, 14, 16, 0),
    op(Op::Ld32, 9, 6, 0, 0),
    op(Op::Add, 9, 9, 17, 0),
    // Its place in shared memory, and its neighbour's.
    op_imm(Op::Shl, 10, 5, 2),
    op_imm(Op::Add, 18, 5, 1),
    op(Op::RemU, 18, 18, 19, 0),
    op_imm(Op::Shl, 18, 18, 2),
    op_imm(Op::Mul, 9, 9, MULTIPLIER),
    op_imm(Op::Add, 9, 9, INCREMENT),
    op(Op::Sts32, 9, 10, 0, 0),
    op(Op::Bar, 0, 0, 0, 0),
    op(Op::Lds32, 11, 18, 0, 0),
    op(Op::Bar, 0, 0, 0, 0),
    op(Op::Xor, 9, 9, 11, 0),
    op_imm(Op::Sub, 8, 8, 1),
    op(Op::Bnz, 0, 8, 0, 20),
    op(Op::St32, 9, 6, 0, 0),
    op_imm(Op::Add64, 12, 12, 4 * THREADS),
    op(Op::AtomAdd, 17, 12, 9, 0),
    EXIT,
];

/// Counts the pixel in the word of its place, from the address in arguments 0 and 1 on, and mixes
/// the count and its attribute into a colour, as often as argument 2 says.
const PAINT: &[u64] = &[
    op(Op::Arg, 20, 0, 0, 0),
    op(Op::Arg, 21, 0, 0, 1),
    op(Op::Arg, 22, 0, 0, 2),
    op_imm(Op::Mul, 24, 3, SIDE as u32),
    op(Op::Add, 24, 24, 2, 0),
    op(Op::Lea, 20, 20, 24, 2),
    op_imm(Op::Mov, 25, 0, 1),
    op(Op::AtomAdd, 26, 20, 25, 0),
    op(Op::Add, 0, 8, 26, 0),
    op_imm(Op::Mul, 0, 0, MULTIPLIER),
    op_imm(Op::Add, 0, 0, INCREMENT),
    op_imm(Op::Sub, 22, 22, 1),
    op(Op::Bnz, 0, 22, 0, 9),
    EXIT,
];

const CONTEXTS: usize = 16;
/// All jobs, with buffers for which a rig has room at once.
const JOBS: usize = 160;
/// Buffers of a job at most.
const BUFFERS: usize = 3;
/// Words that a context stirs; threads of a dispatch at most.
const WORDS: usize = 4096;
const THREADS: u32 = 1024;
/// Rows and columns of its picture.
const SIDE: u16 = 32;
/// Bytes of what a job leaves to others, and jobs of a context at most.
const GIFT: u64 = 256;
const MOST_JOBS: u64 = 64;

/// What is where in a context's memory: by its name, its first byte, and bytes of a unit of it.
const PARTS: [(&str, u64, u64); 8] = [
    ("word", 0, 4),
    ("gift", GIFTS, GIFT),
    ("thread", COUNTS, 4),
    ("sum", SUM, 4),
    ("packet", PACKETS, 4),
    ("register", STORED, 8),
    ("pixel", PICTURE, 4),
    ("pixel's count", PIXELS, 4),
];
const GIFTS: u64 = 16 << 10;
const COUNTS: u64 = 32 << 10;
const SUM: u64 = COUNTS + 4 * THREADS as u64;
const PACKETS: u64 = SUM + 8;
const STORED: u64 = 38 << 10;
const PICTURE: u64 = 40 << 10;
const PIXELS: u64 = 44 << 10;
const BYTES: u64 = 48 << 10;

/// A context that does random work in memory of its own.
struct Player {
    context: u32,
    engine: Engine,
    memory: Buffer,
    /// Jobs submitted, and what the last one signals.
    jobs: u64,
    last: Option<u32>,
    /// How often each thread is to run, and the picture is drawn; packets that are counted.
    threads: Vec<u32>,
    drawings: u32,
    packets: u32,
}

/// All of them, and what they share.
struct Stage<'a> {
    rig: &'a Rig,
    programs: [Buffer; 3],
    scene: Buffer,
    /// A value for each: how many of its jobs are done.
    values: Buffer,
    players: Vec<Player>,
}

impl<'a> Stage<'a> {
    fn new(rig: &'a Rig) -> Self {
        let player = |n: usize| {
            let engine = Engine::ALL[usize::from(n % 4 == 3)];
            let handle = match n % 3 {
                0 => rig.bo(Place::System, BYTES),
                _ => movable(rig, BYTES),
            };
            Player {
                context: rig.context_having_worked(engine),
                engine,
                memory: rig.bound(handle, BYTES),
                jobs: 0,
                last: None,
                threads: vec![0; THREADS as usize],
                drawings: 0,
                packets: 0,
            }
        };
        Self {
            programs: [STIR, PAINT, COUNT].map(|code| rig.program(code)),
            scene: rig.buffer(Place::System, 4096),
            values: rig.buffer(Place::System, 4096),
            players: (0..CONTEXTS).map(player).collect(),
            rig,
        }
    }

    /// The next command of a context, and how often: one that shows in memory if it is done twice,
    /// or half. What is asked for takes the engine longer than asking for it takes the guest.
    fn command(&mut self, n: usize, numbers: &mut Numbers) -> (Command, usize) {
        let half = WORDS / 2;
        let [from, to] = [(); 2].map(|()| numbers.below(half));
        let count = 1 + numbers.below(half);
        let player = &mut self.players[n];
        let va = player.memory.va;
        let word = |word: usize| va + 4 * word as u64;
        let [stir, paint, _] = &self.programs;
        let times = 1 + numbers.below(800) as u32;
        let kinds = if player.engine == Engine::Compute {
            8
        } else {
            4
        };
        let command = match numbers.below(kinds) {
            0 => fill(times, word(to), 4 * count as u64),
            // Most overlap.
            1 => return (copy(word(from), word(to), 4 * count as u64), 30),
            2 => Command::SetRegister {
                index: times % REGISTERS,
                value: (from as u64) << 32 | to as u64,
            },
            3 => Command::StoreRegister {
                index: times % REGISTERS,
                address: va + STORED + 8 * u64::from(times % REGISTERS),
            },
            4 => {
                player.drawings += 1;
                let arguments = [&address(va + PIXELS)[..], &[times, 0]].concat();
                let picture = va + PICTURE;
                let draw = square((paint, PAINT), &self.scene, picture, SIDE, &arguments);
                Command::Draw(draw)
            }
            _ => {
                let (groups, threads) = (1 + numbers.below(16), 1 + numbers.below(64));
                let all = &mut player.threads[..groups * threads];
                all.iter_mut().for_each(|times| *times += 1);
                let [low, high] = address(word(to));
                let [counts, counts_high] = address(va + COUNTS);
                let arguments = [low, high, times, counts, counts_high];
                let Command::Dispatch(one) = dispatch(stir, STIR, &arguments) else {
                    unreachable!("a dispatch");
                };
                Command::Dispatch(Dispatch {
                    groups: [groups as u32, 1, 1],
                    threads: [threads as u32, 1, 1],
                    shared_bytes: 4 * threads as u32,
                    ..one
                })
            }
        };
        (command, 1)
    }

    /// Submits the next job of one of them; what it signals.
    fn submit(&mut self, numbers: &mut Numbers) -> u32 {
        let rig = self.rig;
        let (n, other) = (numbers.below(CONTEXTS), numbers.below(CONTEXTS));
        if numbers.below(8) == 0 {
            // Beneath those for whom they are stopped; many are equals.
            let priority = [-7, -1, 0, 0, 0, 6][numbers.below(6)];
            assert_eq!(rig.prioritise(self.players[n].context, priority), Ok(()));
        }
        let va = self.players[n].memory.va;
        let mut buffers = vec![Vec::new(); 1 + numbers.below(BUFFERS)];
        let mut syncs = Vec::new();
        // What the last job of another one has left, when it is done: by its value, or its fence.
        let (there, theirs) = (self.players[other].memory.va, self.players[other].jobs);
        if let (0, Some(last)) = (numbers.below(3), self.players[other].last) {
            match numbers.below(2) {
                0 => buffers[0].push(wait_value(self.values.va + 8 * other as u64, theirs)),
                _ => syncs.push(wait(last)),
            }
            let gift = there + GIFTS + GIFT * (theirs - 1);
            buffers[0].push(copy(gift, va + GIFT * numbers.below(16) as u64, GIFT));
        }
        for buffer in &mut buffers {
            for _ in 0..1 + numbers.below(3) {
                let (command, times) = self.command(n, numbers);
                buffer.extend([command].repeat(times));
            }
            let player = &mut self.players[n];
            if player.engine == Engine::Compute {
                let count = va + PACKETS + 4 * u64::from(player.packets);
                buffer.push(dispatch(&self.programs[2], COUNT, &address(count)));
                player.packets += 1;
            }
        }
        let player = &mut self.players[n];
        assert!(player.jobs < MOST_JOBS, "context {n} has no room for more");
        let last = buffers.last_mut().expect("a buffer");
        let own = va + 64 * numbers.below(16) as u64;
        last.push(copy(own, va + GIFTS + GIFT * player.jobs, GIFT));
        player.jobs += 1;
        last.push(write(self.values.va + 8 * n as u64, player.jobs));
        let buffers: Vec<_> = buffers.iter().map(|work| rig.write(work)).collect();
        let done = rig.syncobj();
        syncs.push(signal(done));
        assert_eq!(rig.submit(player.context, &buffers, &syncs), Ok(()));
        player.last = Some(done);
        done
    }

    /// Has all of them work, as the seed says; each job is waited for before the next, or all of
    /// them at the end.
    fn play(&mut self, seed: u64, serial: bool) {
        let mut numbers = Numbers(seed);
        let mut jobs = Vec::new();
        for job in 0..JOBS {
            let done = self.submit(&mut numbers);
            if serial {
                assert_eq!(
                    self.rig.wait(done),
                    Ok(()),
                    "seed {seed}, job {job}, serial"
                );
            }
            jobs.push(done);
        }
        for (job, done) in jobs.into_iter().enumerate() {
            assert_eq!(self.rig.wait(done), Ok(()), "seed {seed}, job {job}");
            assert_eq!(self.rig.syncobj_destroy(done), Ok(()));
        }
    }

    /// All of their memory is as that of another stage, and each unit was done once.
    #[track_caller]
    fn expect_like(&self, other: &Self, seed: u64) {
        for (n, (player, serial)) in self.players.iter().zip(&other.players).enumerate() {
            let kind = player.engine;
            let seen = |memory: &Buffer, at: u64| memory.cpu.read32(at as usize);
            let differs = |at: &u64| seen(&player.memory, *at) != seen(&serial.memory, *at);
            if let Some(at) = (0..BYTES).step_by(4).find(differs) {
                let begins = |part: &&(&str, u64, u64)| part.1 <= at;
                let (name, begin, unit) = PARTS.iter().rfind(begins).expect("a part");
                let [is, was] = [player, serial].map(|player| seen(&player.memory, at));
                panic!(
                    "seed {seed}, context {n} ({kind:?}): {name} {} is {is:#x}, serially {was:#x}",
                    (at - begin) / unit
                );
            }
            let pixels = vec![player.drawings; usize::from(SIDE).pow(2)];
            let packets = vec![1; player.packets as usize];
            for (name, begin, counts) in [
                ("thread", COUNTS, &player.threads),
                ("pixel", PIXELS, &pixels),
                ("packet", PACKETS, &packets),
            ] {
                for (unit, times) in (0..).zip(counts) {
                    let was = seen(&player.memory, begin + 4 * unit);
                    assert_eq!(was, *times, "seed {seed}, context {n}: {name} {unit}");
                }
            }
        }
    }
}

/// Calls `during` while work of all engines is stopped, behind any instruction, for more important
/// work of other clients that leaves nothing of it in the engine and comes again at once.
fn while_stopped<R>(seed: u64, during: impl FnOnce() -> R) -> R {
    let _steps = RandomSteps::of(seed.max(1)).expect("gpu-steps");
    let important = |engine: Engine| {
        let rig = Rig::new();
        let context = rig.context_having_worked(engine);
        assert_eq!(rig.prioritise(context, 7), Ok(()));
        let (program, memory) = (rig.program(STIR), rig.buffer(Place::System, BYTES));
        move || {
            let [low, high] = address(memory.va);
            let arguments = [low, high, 1, low, high];
            let work = match (engine, dispatch(&program, STIR, &arguments)) {
                (Engine::Compute, Command::Dispatch(one)) => Command::Dispatch(Dispatch {
                    threads: [THREADS, 1, 1],
                    shared_bytes: 4 * THREADS,
                    ..one
                }),
                _ => copy(memory.va, memory.va + COUNTS, 4096),
            };
            assert_eq!(rig.start_in(context, &[work]).wait(), Ok(()));
        }
    };
    let [compute, copies] = Engine::ALL.map(important);
    while_again(compute, || while_again(copies, during))
}

/// How often an engine that had work has stopped for a request; bytes of states saved and restored.
fn stops() -> [u64; 3] {
    let [all, idle, ignored, saved, restored] = Function::first().counters([
        "preempt",
        "preempt_idle",
        "preempt_ignored",
        "saved_bytes",
        "restored_bytes",
    ]);
    [all - idle - ignored, saved, restored]
}

fn end_as_in_a_serial_run(moved: bool) {
    quiet();
    let first = seed();
    for seed in (first..).take(rounds(2) as usize) {
        let rig = Rig::new();
        let [mut stopped, mut serial] = [(); 2].map(|()| Stage::new(&rig));
        let before = stops();
        while_stopped(seed, || match moved {
            true => while_all_is_evicted(|| stopped.play(seed, false)),
            false => stopped.play(seed, false),
        });
        let after = stops();
        let [times, saved, restored] = [0, 1, 2].map(|n| after[n] - before[n]);
        println!("# seed {seed}: stopped {times} times; saved {saved} bytes, restored {restored}");
        assert!(saved > 0, "seed {seed}: nothing was stopped within");
        let unasked = Unasked::new();
        let before = stops();
        serial.play(seed, true);
        assert_eq!(stops(), before, "seed {seed}: the serial run was stopped");
        drop(unasked);
        stopped.expect_like(&serial, seed);
    }
    expect_areas();
}

fn row_2_13_what_is_stopped_anywhere_ends_as_in_a_serial_run() {
    end_as_in_a_serial_run(false);
}

fn row_2_13_what_is_stopped_and_moved_ends_as_in_a_serial_run() {
    end_as_in_a_serial_run(true);
}
