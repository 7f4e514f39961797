// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contexts that an engine holds (manual section 6): their registers, when they are loaded and
//! left, and the null switch.

use skua_gpu::engine::core::Outcome;
use skua_gpu::vram;
use skua_spec::address::{BusAddr, GpuPhys, GpuVa, PAGE_SIZE};
use skua_spec::command::{Command, BYTES_PER_TICK};
use skua_spec::context::{Descriptor, Image, SaveArea, IMAGE_SIZE};
use skua_spec::fault::{Access, Reason, Record, Space};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::preemption::Cause;
use skua_spec::status::{self, Counter, EngineState};
use skua_spec::ticks;
use skua_testbed::{
    resumed, Gpu, Stepped, ASID, BUFFER_VA, BUS, COLD, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA,
    DATA_VA, ENGINES, SAVE, SAVE_VA, STATE, STATUS, SYSTEM_FREE,
};

use crate::preemption::{exec_of, words, Random, AREA};

/// Another context's descriptor.
const OTHER: u64 = CONTEXT + 0x1000;
const OTHER_ID: u32 = 0xbee;
const OTHER_ASID: Asid = Asid(9);
/// A third one's, which has no save area.
const PLAIN: u64 = CONTEXT + 0x2000;
/// Bytes from [`SAVE`] to the save area of [`OTHER`], of which the first pages are mapped.
const OTHER_SAVE: u64 = 0x4_a000;
/// Ticks of loading a context, or of leaving it, once its place was found.
const IMAGE: u64 = IMAGE_SIZE as u64 / BYTES_PER_TICK * ticks::LINE;
/// More steps than any work of these tests takes.
const MANY: usize = 100_000;

fn other_area() -> SaveArea {
    SaveArea {
        base: GpuVa(SAVE_VA + OTHER_SAVE),
        ..AREA
    }
}

fn set(index: u32, value: u64) -> Command {
    Command::SetRegister { index, value }
}

/// Stores a register in a place of its own.
fn store(index: u32) -> Command {
    Command::StoreRegister {
        index,
        address: DATA_VA + u64::from(index) * 8,
    }
}

const fn switch(fence: Option<u64>) -> Command {
    Command::Switch {
        fence,
        interrupt: fence.is_some(),
    }
}

/// An engine, stepped, and three contexts of which none is held.
struct Rig {
    stepped: Stepped,
    engine: EngineIndex,
    /// Where the next packet's buffer is.
    buffer: u64,
}

impl Rig {
    fn new(engine: EngineIndex) -> Self {
        let stepped = Stepped::new();
        stepped.write_context(OTHER, OTHER_ASID, OTHER_ID, skua_testbed::root());
        stepped.write_context(PLAIN, Asid(11), 11, skua_testbed::root());
        stepped.set_save_area(CONTEXT, Some(AREA));
        stepped.set_save_area(OTHER, Some(other_area()));
        stepped.clear_vram(DATA, 0x1000);
        Self {
            stepped,
            engine,
            buffer: 0,
        }
    }

    /// A packet of the context whose descriptor is at `at`, and its fence.
    fn exec(&mut self, at: u64, commands: &[Command]) -> (Command, u64) {
        let words = words(commands);
        let (exec, fence) = self.stepped.exec_at(self.buffer, &words);
        self.buffer = (self.buffer + words.len() as u64 * 4) % 0x4_0000;
        (exec_of(at, exec), fence)
    }

    /// Runs what is in the ring to its end, or to a fault.
    fn finish(&mut self) -> Outcome {
        for _ in 0..MANY {
            let outcome = self.stepped.step(self.engine, 1000);
            if matches!(outcome, Outcome::Idle | Outcome::Faulted(_)) {
                return outcome;
            }
        }
        panic!("no end");
    }

    /// Runs a command of the ring to its end.
    fn run(&mut self, command: Command) {
        self.stepped.start(self.engine, &[command]);
        assert_eq!(self.finish(), Outcome::Idle);
    }

    /// Runs a packet to its end.
    fn packet(&mut self, at: u64, commands: &[Command]) {
        let (exec, fence) = self.exec(at, commands);
        self.run(exec);
        let shown = self.stepped.cores[self.engine.index()].shown();
        assert_eq!(shown.completed_fence, fence);
    }

    /// What a register holds for a packet of the context.
    fn register(&mut self, at: u64, index: u32) -> u64 {
        self.packet(at, &[store(index)]);
        self.stored(index)
    }

    /// What [`store`] has stored.
    fn stored(&self, index: u32) -> u64 {
        self.stepped.vram64(DATA + u64::from(index) * 8)
    }

    /// Has the engine stop; `budget` ticks in a step.
    fn preempt(&mut self, budget: u64) -> Outcome {
        self.stepped.cores[self.engine.index()].preempt(1);
        for _ in 0..MANY {
            let outcome = self.stepped.step(self.engine, budget);
            if matches!(outcome, Outcome::Preempted { .. } | Outcome::Faulted(_)) {
                return outcome;
            }
        }
        panic!("no record");
    }

    fn reset(&mut self) {
        let (base, engine) = (self.stepped.ring_at(self.engine), self.engine);
        self.stepped.tails[engine.index()] = 0;
        self.stepped.with_memory(engine, |core, memory| {
            core.reset(memory);
            let ring = skua_gpu::engine::Ring {
                base: vram::BASE + base,
                size: skua_testbed::RING_BYTES,
            };
            core.enable(memory, ring);
        });
    }

    /// Offset in VRAM of the descriptor of the context that is held.
    fn held(&self) -> Option<u64> {
        let context = self.stepped.cores[self.engine.index()].shown().context;
        context.checked_sub(vram::BASE)
    }

    /// Images loaded, contexts left, null switches that found one.
    fn counts(&self) -> [u64; 3] {
        [
            Counter::ContextLoad,
            Counter::ContextLeave,
            Counter::NullSwitch,
        ]
        .map(|counter| self.stepped.tally.get(counter))
    }

    fn ticks(&self) -> u64 {
        self.stepped.cores[self.engine.index()].shown().ticks
    }

    /// The image of [`CONTEXT`] or [`OTHER`].
    fn image(&self, at: u64) -> Image {
        let other = if at == OTHER { OTHER_SAVE } else { 0 };
        self.stepped.image(SAVE + other)
    }

    /// Has page tables lead nowhere where the image of [`CONTEXT`] is, or back to it.
    fn map_save_area(&mut self, there: bool) {
        let at = self.stepped.entry_at(SAVE_VA, 0);
        let entry = self.stepped.vram64(at);
        self.stepped.set_vram64(at, entry & !1 | u64::from(there));
        for core in &mut self.stepped.cores {
            core.invalidate(None);
        }
    }
}

/// What leaving [`CONTEXT`] faults with when there is nothing at its save area.
fn not_left(engine: EngineIndex) -> Record {
    Record {
        engine,
        reason: Reason::NotPresent,
        asid: ASID,
        context_id: CONTEXT_ID,
        access: Access::Write,
        detail: 0,
        space: Space::Virtual,
        address: SAVE_VA,
        fence: 0,
        command: Record::NO_COMMAND,
        pc: Record::NO_PC,
    }
}

#[test]
fn registers_keep_their_values() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        let mut image = Image::default();
        image.registers[15] = 0x1515;
        rig.stepped.set_image(SAVE, image);
        // As the image has them, within the packet, in the next one, and in all others.
        rig.packet(CONTEXT, &[store(15), store(3), set(3, u64::MAX), store(3)]);
        assert_eq!((rig.stored(15), rig.stored(3)), (0x1515, u64::MAX));
        rig.packet(CONTEXT, &[store(0), set(0, 1 << 40), set(0, 1 << 41)]);
        assert_eq!(rig.stored(0), 0);
        for index in [0, 3, 15] {
            assert_eq!(rig.register(OTHER, index), 0, "{index}");
        }
        rig.packet(OTHER, &[set(3, 33)]);
        assert_eq!(rig.register(CONTEXT, 3), u64::MAX);
        assert_eq!(rig.register(OTHER, 3), 33);
        assert_eq!(rig.register(CONTEXT, 0), 1 << 41);
        assert_eq!(rig.register(CONTEXT, 15), 0x1515);
    }
}

#[test]
fn a_context_is_held_until_another_ones_turn() {
    let mut rig = Rig::new(COMPUTE);
    for _ in 0..3 {
        rig.packet(CONTEXT, &[set(1, 7), store(1)]);
        assert_eq!((rig.counts(), rig.held()), ([1, 0, 0], Some(CONTEXT)));
    }
    // Nor is it the system's turn.
    let (at, address) = (vram::BASE + DATA + 0x100, vram::BASE + DATA + 0x200);
    let before = rig.stepped.cores[0].shown().context;
    for command in [
        Command::Fill {
            pattern: 1,
            address: at,
            bytes: 64,
        },
        Command::Copy {
            source: at,
            destination: at + 0x40,
            bytes: 64,
        },
        Command::Signal { address, value: 5 },
        Command::Wait { address, value: 5 },
        Command::FlushTlb { asid: None },
        Command::FlushCache,
        Command::Invalidate { asid: Some(ASID) },
        Command::Fence {
            fence: 900,
            interrupt: false,
        },
    ] {
        rig.run(command);
        assert_eq!(rig.stepped.cores[0].shown().context, before, "{command:?}");
    }
    assert_eq!(rig.counts(), [1, 0, 0]);
    assert_eq!(rig.image(CONTEXT).left, 0);

    let time = rig.ticks();
    rig.packet(OTHER, &[]);
    assert_eq!((rig.counts(), rig.held()), ([2, 1, 0], Some(OTHER)));
    let image = rig.image(CONTEXT);
    // Behind EXEC's tick.
    assert_eq!((image.left, image.ticks), (1, time + ticks::COMMAND));
    assert_eq!(image.registers[..2], [0, 7]);
    assert_eq!(rig.image(OTHER), Image::default());
    for left in 2..5 {
        rig.packet(CONTEXT, &[]);
        rig.packet(OTHER, &[]);
        assert_eq!(rig.image(CONTEXT).left, left);
        assert_eq!(rig.image(OTHER).left, left - 1);
    }
    // All else in an image means nothing, and is zero when it was written.
    let mut bytes = rig.stepped.vram_bytes(SAVE, IMAGE_SIZE as usize);
    for range in [4..8, 0x18..0x40, 0xc0..0x100] {
        assert!(bytes[range.clone()].iter().all(|byte| *byte == 0));
        bytes[range].fill(0x5a);
    }
    rig.stepped.set_vram(SAVE, &bytes);
    assert_eq!(rig.register(CONTEXT, 1), 7);
}

#[test]
fn a_null_switch_leaves_the_context() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        let core = |rig: &Rig| rig.stepped.cores[engine.index()].shown();
        // There is none.
        let before = rig.ticks();
        rig.run(switch(Some(500)));
        assert_eq!(core(&rig).completed_fence, 500);
        assert_eq!(rig.ticks(), before + ticks::COMMAND);
        assert_eq!(rig.counts(), [0; 3]);

        rig.packet(CONTEXT, &[set(2, 22)]);
        let packets = rig.stepped.tally.get(Counter::Packet);
        let (before, charged) = (rig.ticks(), rig.stepped.vram64(CONTEXT + Descriptor::TICKS));
        rig.stepped.start(engine, &[switch(Some(501))]);
        let mut outcome = rig.stepped.step(engine, 3);
        while outcome == Outcome::Busy {
            // Who sees the fence sees the image.
            assert_eq!(core(&rig).completed_fence, 1);
            outcome = rig.stepped.step(engine, 3);
        }
        assert_eq!(outcome, Outcome::Completed { interrupt: true });
        assert_eq!((core(&rig).completed_fence, rig.held()), (501, None));
        assert_eq!(rig.finish(), Outcome::Idle);
        assert_eq!(rig.image(CONTEXT).left, 1);
        assert_eq!(rig.image(CONTEXT).registers[2], 22);
        assert_eq!(rig.counts(), [1, 1, 1]);
        // Nobody's time, and no packet.
        assert_eq!(rig.ticks(), before + ticks::COMMAND + IMAGE);
        assert_eq!(rig.stepped.vram64(CONTEXT + Descriptor::TICKS), charged);
        assert_eq!(rig.stepped.vram64(CONTEXT + Descriptor::PACKETS), 1);
        assert_eq!(rig.stepped.tally.get(Counter::Packet), packets);

        // Once, and with no fence.
        rig.run(switch(None));
        assert_eq!((core(&rig).completed_fence, rig.counts()), (501, [1, 1, 1]));
        rig.packet(CONTEXT, &[]);
        rig.run(switch(None));
        assert_eq!((core(&rig).completed_fence, rig.counts()), (2, [2, 2, 2]));
        assert_eq!(rig.register(CONTEXT, 2), 22);
    }
}

#[test]
fn a_null_switch_names_nothing() {
    let good = switch(Some(5)).encode().words().to_vec();
    let header = |flags: u32| good[0] & !0x00ff_0000 | flags << 16;
    let mut forms: Vec<Vec<u32>> = (1..8)
        .map(|word| {
            let mut words = good.clone();
            words[word] = 0x4_0000;
            words
        })
        .collect();
    // RESUME, INTERRUPT without FENCE, a fence id without FENCE, a flag that there is not.
    forms.extend([0xd, 0xa, 0x8, 0x19].map(|flags| {
        let mut words = good.clone();
        words[0] = header(flags);
        words
    }));
    for words in forms {
        let mut rig = Rig::new(COMPUTE);
        rig.packet(CONTEXT, &[]);
        rig.stepped.push_words(COMPUTE, &words);
        rig.stepped.start(COMPUTE, &[]);
        let Outcome::Faulted(record) = rig.finish() else {
            panic!("{words:x?}");
        };
        assert_eq!(record.reason, Reason::BadFlags, "{words:x?}");
        assert_eq!(rig.counts(), [1, 0, 0], "{words:x?}");
        assert_eq!(rig.image(CONTEXT).left, 0);
    }
    // It is the system's.
    let mut rig = Rig::new(COMPUTE);
    let (exec, _) = rig.exec(CONTEXT, &[switch(None)]);
    rig.stepped.start(COMPUTE, &[exec]);
    let Outcome::Faulted(record) = rig.finish() else {
        panic!("in a buffer");
    };
    assert_eq!(record.reason, Reason::Privileged);
}

/// A descriptor that is given to another context, and a save area that moves.
#[test]
fn what_was_left_can_be_changed() {
    let mut rig = Rig::new(COMPUTE);
    rig.packet(CONTEXT, &[set(4, 0x5ec7e7)]);
    rig.run(switch(None));
    rig.stepped
        .write_context(CONTEXT, Asid(12), 12, skua_testbed::root());
    rig.stepped.set_save_area(CONTEXT, Some(other_area()));
    assert_eq!(rig.register(CONTEXT, 4), 0);
    // The same without a save area.
    rig.run(switch(None));
    rig.stepped.set_save_area(CONTEXT, None);
    assert_eq!(rig.register(CONTEXT, 4), 0);

    // Moved, and the old place wiped, while nobody holds it.
    let mut rig = Rig::new(COMPUTE);
    rig.packet(CONTEXT, &[set(4, 44)]);
    rig.run(switch(None));
    let bytes = rig.stepped.vram_bytes(SAVE, IMAGE_SIZE as usize);
    rig.stepped.clear_vram(SAVE, IMAGE_SIZE.into());
    rig.stepped.set_save_area(CONTEXT, Some(other_area()));
    rig.stepped.set_vram(SAVE + OTHER_SAVE, &bytes);
    assert_eq!(rig.register(CONTEXT, 4), 44);
    rig.run(switch(None));
    assert_eq!(rig.stepped.image(SAVE + OTHER_SAVE).left, 2);
    assert!(rig
        .stepped
        .vram_bytes(SAVE, 0x100)
        .iter()
        .all(|byte| *byte == 0));
}

/// A driver that moves what is held finds that the engine has written to where it was.
#[test]
fn what_is_held_is_written_where_it_was() {
    let mut rig = Rig::new(COMPUTE);
    rig.packet(CONTEXT, &[]);
    rig.stepped.set_save_area(CONTEXT, None);
    rig.stepped.clear_vram(SAVE, IMAGE_SIZE.into());
    rig.packet(OTHER, &[]);
    assert_eq!(rig.image(CONTEXT).left, 1);
}

#[test]
fn a_context_without_an_image_is_not_loaded() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        rig.packet(OTHER, &[]);
        rig.stepped.set_vram64(SAVE, 0x534b_5540);
        rig.stepped.set_vram64(CONTEXT + Descriptor::SAVED, 64);
        let (exec, fence) = rig.exec(CONTEXT, &[set(0, 1)]);
        let head = rig.stepped.tail(engine);
        rig.stepped.start(engine, &[exec]);
        let expected = Record {
            command: head.into(),
            space: Space::GpuPhysical,
            fence,
            ..rig
                .stepped
                .expect(engine, Reason::BadSave, Access::Fetch, vram::BASE + CONTEXT)
        };
        assert_eq!(rig.finish(), Outcome::Faulted(expected));
        // The one before was left, and none is held.
        assert_eq!((rig.counts(), rig.held()), ([1, 1, 0], None));
        assert_eq!(rig.image(OTHER).left, 1);
        assert_eq!(rig.stepped.vram64(SAVE), 0x534b_5540);
        // Nor is a state given up.
        assert_eq!(rig.stepped.saved(CONTEXT), 64);
    }
}

/// Leaving is nobody's packet: the record is of the context that was left.
#[test]
fn a_context_that_cannot_be_left() {
    type Start = fn(&mut Rig);
    let starts: [(&str, Start); 3] = [
        ("another's packet", |rig| {
            let (exec, _) = rig.exec(OTHER, &[store(0)]);
            rig.stepped.start(rig.engine, &[exec]);
        }),
        ("a null switch", |rig| {
            rig.stepped.start(rig.engine, &[switch(Some(77))]);
        }),
        ("a preemption", |rig| {
            rig.stepped.cores[rig.engine.index()].preempt(77)
        }),
    ];
    for (engine, (name, start)) in ENGINES.into_iter().flat_map(|e| starts.map(|s| (e, s))) {
        let mut rig = Rig::new(engine);
        rig.packet(CONTEXT, &[set(5, 55)]);
        rig.map_save_area(false);
        let head = rig.stepped.tail(engine);
        start(&mut rig);
        let outcome = loop {
            let outcome = rig.stepped.step(engine, 1000);
            if outcome != Outcome::Busy {
                break outcome;
            }
        };
        assert_eq!(outcome, Outcome::Faulted(not_left(engine)), "{name}");
        let shown = rig.stepped.cores[engine.index()].shown();
        assert_eq!(shown.state, EngineState::Faulted, "{name}");
        assert_eq!((shown.head, shown.context), (head, 0), "{name}");
        assert_eq!(
            (shown.current_fence, shown.completed_fence),
            (0, 1),
            "{name}"
        );
        assert_eq!(rig.stepped.vram64(OTHER + Descriptor::TICKS), 0, "{name}");
        assert_eq!(rig.counts()[1], 0, "{name}");
        // What had ended is there once the area is.
        rig.map_save_area(true);
        rig.reset();
        assert_eq!(rig.register(CONTEXT, 5), 55, "{name}");
        assert_eq!(rig.image(CONTEXT).left, 0, "{name}");
    }
}

/// A reset, or a fault, loses no register of a packet that had ended, and all of one that had not.
#[test]
fn a_reset_forgets_what_had_not_ended() {
    for faults in [false, true] {
        let mut rig = Rig::new(COMPUTE);
        rig.packet(CONTEXT, &[set(6, 66), set(7, 77)]);
        let image = rig.image(CONTEXT);
        assert_eq!((image.left, image.ticks), (0, 0));
        assert_eq!(image.registers[6..8], [66, 77]);
        let last = if faults {
            Command::StoreRegister {
                index: 0,
                address: 0x1000,
            }
        } else {
            Command::Wait {
                address: DATA_VA + 0x800,
                value: 1,
            }
        };
        let (exec, _) = rig.exec(CONTEXT, &[set(6, 1), set(8, 88), store(6), last]);
        rig.stepped.start(COMPUTE, &[exec]);
        let end = loop {
            let outcome = rig.stepped.step(COMPUTE, 1000);
            if matches!(outcome, Outcome::Waiting | Outcome::Faulted(_)) {
                break outcome;
            }
        };
        assert_eq!(rig.stored(6), 1);
        assert_eq!(matches!(end, Outcome::Faulted(_)), faults);
        assert_eq!(rig.held(), (!faults).then_some(CONTEXT));
        rig.reset();
        assert_eq!(rig.held(), None);
        assert_eq!(rig.image(CONTEXT), image);
        rig.packet(CONTEXT, &[store(6), store(7), store(8)]);
        assert_eq!([6, 7, 8].map(|i| rig.stored(i)), [66, 77, 0]);
        assert_eq!(rig.counts(), [2, 0, 0]);
    }
}

/// What ends writes its registers before its fence, and nobody is charged for it.
#[test]
fn a_packet_that_ends_writes_its_registers() {
    let mut rig = Rig::new(COMPUTE);
    let charged = |rig: &Rig| rig.stepped.vram64(CONTEXT + Descriptor::TICKS);
    rig.packet(CONTEXT, &[set(1, 0)]);
    let (ticks, time) = (charged(&rig), rig.ticks());
    // There was nothing to write but EXEC's image to read.
    assert_eq!(time, ticks + COLD + IMAGE);
    for (value, written) in [(9, true), (9, false), (10, true)] {
        let (ticks, time) = (charged(&rig), rig.ticks());
        let (exec, fence) = rig.exec(CONTEXT, &[set(1, value)]);
        rig.stepped.start(COMPUTE, &[exec]);
        while !matches!(rig.stepped.step(COMPUTE, 1), Outcome::Completed { .. }) {
            // Nor is it seen before the time for it has passed.
            assert_eq!(rig.stepped.cores[0].shown().completed_fence, fence - 1);
        }
        assert_eq!(rig.image(CONTEXT).registers[1], value);
        let registers = 2 * ticks::LINE;
        let overhead = if written { registers } else { 0 };
        assert_eq!(rig.ticks() - time, charged(&rig) - ticks + overhead);
        assert_eq!(rig.finish(), Outcome::Idle);
    }
}

/// Wherever a packet is cut, the image has its registers where it is complete, and else those from
/// before it: run again, it does not see what it wrote itself.
#[test]
fn an_end_is_whole() {
    type Cut = fn(&mut Rig);
    let cuts: [(&str, Cut); 3] = [
        ("a reset", Rig::reset),
        ("a preemption", |rig| {
            rig.preempt(1);
        }),
        ("a fault", |rig| {
            rig.map_save_area(false);
            rig.finish();
            rig.map_save_area(true);
            rig.reset();
        }),
    ];
    for (name, cut) in cuts {
        let mut ended = 0;
        for steps in 0.. {
            let mut rig = Rig::new(COMPUTE);
            rig.packet(CONTEXT, &[set(1, 1)]);
            rig.run(Command::FlushTlb { asid: None });
            let charged = rig.stepped.vram64(CONTEXT + Descriptor::TICKS);
            let (mut exec, fence) = rig.exec(CONTEXT, &[store(1), set(1, 2)]);
            rig.stepped.start(COMPUTE, &[exec]);
            for _ in 0..steps {
                rig.stepped.step(COMPUTE, 1);
            }
            let shown = rig.stepped.cores[0].shown();
            ended += u64::from(rig.stored(1) == 1 && shown.completed_fence != fence);
            cut(&mut rig);
            let what = format!("{name} behind {steps} steps");
            let complete = rig.stepped.cores[0].shown().completed_fence == fence;
            let packets = rig.stepped.vram64(CONTEXT + Descriptor::PACKETS);
            assert_eq!(packets, 1 + u64::from(complete), "{what}");
            let is_saved = rig.stepped.saved(CONTEXT) != 0;
            assert!(name == "a preemption" || !is_saved, "{what}");
            let value = 1 + u64::from(complete);
            assert!(
                is_saved || rig.image(CONTEXT).registers[1] == value,
                "{what}"
            );
            if complete {
                let own = 3 * ticks::COMMAND + 2 * COLD;
                let now = rig.stepped.vram64(CONTEXT + Descriptor::TICKS);
                assert_eq!(now - charged, own, "{what}");
                break;
            }
            if is_saved {
                exec = resumed(exec);
            }
            rig.run(exec);
            assert_eq!(
                (rig.stored(1), rig.image(CONTEXT).registers[1]),
                (1, 2),
                "{what}"
            );
        }
        // There were places to cut it behind its last command.
        assert!(name == "a preemption" || ended > COLD, "{name}: {ended}");
    }
}

/// Nor has the image what belongs to an end that the descriptor cannot be told of.
#[test]
fn an_end_that_cannot_be_told_is_none() {
    let mut rig = Rig::new(COMPUTE);
    let descriptor = rig.stepped.vram_bytes(CONTEXT, Descriptor::SIZE as usize);
    rig.stepped.set_system(SYSTEM_FREE, &descriptor);
    let target = BusAddr(BUS + SYSTEM_FREE);
    let at = rig.stepped.set_gart(0, Entry::gart(target, false, true));
    let (mut exec, fence) = rig.exec(CONTEXT, &[set(1, 2)]);
    if let Command::Exec { context, .. } = &mut exec {
        *context = at;
    }
    rig.stepped.start(COMPUTE, &[exec]);
    let Outcome::Faulted(record) = rig.finish() else {
        panic!("no fault");
    };
    assert_eq!((record.reason, record.fence), (Reason::ReadOnly, fence));
    assert_eq!(rig.image(CONTEXT).registers[1], 0);
}

#[test]
fn without_a_save_area_registers_begin_as_zero() {
    let mut rig = Rig::new(COMPUTE);
    for _ in 0..2 {
        rig.packet(PLAIN, &[store(1), set(1, 5), store(2)]);
        assert_eq!(rig.stored(1), 0);
        assert_eq!(rig.register(PLAIN, 1), 0);
        assert_eq!((rig.held(), rig.counts()[0]), (Some(PLAIN), 0));
    }
    let written = rig.stepped.tally.get(Counter::VramWrite);
    let time = rig.ticks();
    rig.run(switch(None));
    assert_eq!((rig.held(), rig.counts()), (None, [0, 0, 1]));
    assert_eq!(rig.ticks(), time + ticks::COMMAND);
    assert_eq!(rig.stepped.tally.get(Counter::VramWrite), written);
    rig.packet(CONTEXT, &[set(1, 5)]);
    assert_eq!(rig.register(PLAIN, 1), 0);
    assert_eq!(rig.register(CONTEXT, 1), 5);
}

/// The ring has no context, and no register but the first sixteen is one.
#[test]
fn registers_are_a_buffers() {
    for command in [set(0, 1), store(0)] {
        let mut rig = Rig::new(COMPUTE);
        rig.packet(CONTEXT, &[]);
        rig.stepped.start(COMPUTE, &[command]);
        let Outcome::Faulted(record) = rig.finish() else {
            panic!("{command:?}");
        };
        assert_eq!(record.reason, Reason::BadOpcode, "{command:?}");
        assert_eq!(rig.image(CONTEXT), Image::default());
    }
    let misaligned = Command::StoreRegister {
        index: 0,
        address: DATA_VA + 4,
    };
    let nowhere = Command::StoreRegister {
        index: 0,
        address: 0x1000,
    };
    for (command, reason) in [
        (set(16, 1), Reason::BadOperand),
        (store(16), Reason::BadOperand),
        (misaligned, Reason::Misaligned),
        (nowhere, Reason::NotPresent),
    ] {
        let mut rig = Rig::new(COMPUTE);
        let (exec, fence) = rig.exec(CONTEXT, &[command]);
        rig.stepped.start(COMPUTE, &[exec]);
        let Outcome::Faulted(record) = rig.finish() else {
            panic!("{command:?}");
        };
        assert_eq!((record.reason, record.fence), (reason, fence));
        assert_eq!((record.asid, record.command), (ASID, BUFFER_VA));
    }
}

/// A packet is seen to run when its context is held, and a context is gone when it was left.
#[test]
fn what_is_shown_is_so() {
    for budget in [1, 2, 3, 7, 100] {
        let mut rig = Rig::new(COMPUTE);
        let turns = [CONTEXT, OTHER, CONTEXT, CONTEXT, PLAIN, OTHER, CONTEXT];
        let packets: Vec<_> = turns
            .iter()
            .map(|at| rig.exec(*at, &[set(0, 1), store(0), store(1)]))
            .collect();
        let commands: Vec<Command> = packets.iter().map(|(exec, _)| *exec).collect();
        rig.stepped.start(COMPUTE, &commands);
        let mut seen = 0;
        let mut before = rig.stepped.cores[0].shown();
        let mut left = [0; 2];
        for _ in 0..MANY {
            let outcome = rig.stepped.step(COMPUTE, budget);
            let shown = rig.stepped.cores[0].shown();
            let now = [CONTEXT, OTHER].map(|at| rig.image(at).left);
            if shown.context != before.context {
                for (at, (now, left)) in [CONTEXT, OTHER].into_iter().zip(now.into_iter().zip(left))
                {
                    let gone = u64::from(before.context == vram::BASE + at);
                    assert_eq!(now, left + gone, "{budget}");
                }
            }
            if let Some(place) = packets.iter().position(|(_, f)| *f == shown.current_fence) {
                assert_eq!(shown.context, vram::BASE + turns[place], "{budget}");
                seen += u64::from(before.current_fence != shown.current_fence);
            }
            (before, left) = (shown, now);
            if outcome == Outcome::Idle {
                break;
            }
        }
        assert_eq!(seen, turns.len() as u64, "{budget}");
        assert_eq!((left, rig.counts()), ([2, 2], [5, 4, 0]), "{budget}");
    }
}

/// The same in the status page, at the interrupt for it.
#[test]
fn the_status_page_tells_what_is_held() {
    let mut gpu = Gpu::new();
    gpu.set_save_area(CONTEXT, Some(AREA));
    let shown = |page: &[u8], engine: EngineIndex, field: u64| {
        let at = match field {
            status::CONTEXTS => status::context_of(engine),
            field => status::of_engine(engine, field),
        };
        let at = at as usize;
        u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
    };
    for engine in ENGINES {
        let vector = engine.get();
        for round in 0..50 {
            let (exec, fence) = gpu.exec(engine, &[set(1, round + 1), store(1)]);
            let interrupts = gpu.lines.count(vector);
            gpu.start(engine, &[exec]);
            gpu.wait_for("an interrupt", |gpu| gpu.lines.count(vector) > interrupts);
            let page = gpu.lines.page(vector);
            let completed = status::engine::COMPLETED_FENCE;
            assert_eq!(shown(&page, engine, completed), fence);
            assert_eq!(shown(&page, engine, status::CONTEXTS), vram::BASE + CONTEXT);
            assert_eq!(gpu.vram64(DATA + 8), round + 1);
            let left = gpu.image(SAVE).left;
            if round % 2 == 0 {
                gpu.start(engine, &[switch(Some(1000 + round))]);
                gpu.wait_for("a switch", |gpu| gpu.lines.count(vector) > interrupts + 1);
            } else {
                let record = gpu.preempt(engine, 5);
                assert_eq!(record.cause, Cause::Idle);
                gpu.wait_for("a record", |gpu| gpu.lines.count(vector) > interrupts + 1);
            }
            let page = gpu.lines.page(vector);
            assert_eq!(shown(&page, engine, status::CONTEXTS), 0);
            assert_eq!(gpu.image(SAVE).left, left + 1);
        }
    }
    for (reset, name) in [(true, "a reset"), (false, "a fault")] {
        gpu.run_buffer(COMPUTE, &[set(1, 99)]);
        assert_eq!(
            gpu.system64(STATUS + status::CONTEXTS),
            vram::BASE + CONTEXT
        );
        if !reset {
            gpu.run_to_fault(COMPUTE, &[set(0, 0)]);
        }
        gpu.reset_engine(COMPUTE);
        assert_eq!(gpu.system64(STATUS + status::CONTEXTS), 0, "{name}");
        gpu.start_engine(COMPUTE);
    }
    // All of the page is written when it is switched on.
    gpu.run_buffer(COPY, &[]);
    gpu.write(skua_spec::regs::STATUS_CTRL, 0);
    gpu.read(skua_spec::regs::ID);
    gpu.set_system64(STATUS + status::CONTEXTS + 8, 0);
    gpu.set(skua_spec::regs::STATUS_CTRL::new().with_enable(true));
    gpu.wait_for("the context", |gpu| {
        gpu.system64(STATUS + status::CONTEXTS + 8) == vram::BASE + CONTEXT
    });
}

/// Loading, leaving and an engine's stop cost no packet anything.
#[test]
fn no_packet_pays_for_a_switch() {
    let work = [set(2, 3), store(2)];
    let charged = |rig: &Rig, at: u64| rig.stepped.vram64(at + Descriptor::TICKS);
    let mut alone = Rig::new(COMPUTE);
    for at in [CONTEXT, OTHER] {
        for _ in 0..4 {
            alone.packet(at, &work);
        }
    }
    let mut turns = Rig::new(COMPUTE);
    for _ in 0..4 {
        turns.packet(CONTEXT, &work);
        turns.packet(OTHER, &work);
    }
    assert_eq!((alone.counts(), turns.counts()), ([2, 1, 0], [8, 7, 0]));
    for at in [CONTEXT, OTHER] {
        assert_eq!(charged(&alone, at), charged(&turns, at));
    }
    assert_eq!(turns.ticks(), alone.ticks() + 12 * IMAGE);
}

/// Save areas have a TLB of their own, which is flushed as the other is: neither displaces what the
/// other one keeps.
#[test]
fn save_areas_are_translated_apart() {
    let mut rig = Rig::new(COMPUTE);
    // It has the place in a TLB that the image's page has.
    let address = SAVE_VA + 1024 * PAGE_SIZE;
    let target = Target::Vram(GpuPhys(vram::BASE + DATA));
    rig.stepped
        .map_page(address, target, PageSize::Size4K, true);
    let signal = Command::Signal { address, value: 1 };
    for (flush, misses) in [
        (None, 0),
        (Some(OTHER_ASID), 0),
        (Some(ASID), 1),
        (Some(Asid::SYSTEM), 1),
    ] {
        let asid = flush.filter(|asid| *asid != Asid::SYSTEM);
        for command in [Command::FlushTlb { asid }, Command::Invalidate { asid }] {
            rig.packet(CONTEXT, &[signal]);
            if flush.is_some() {
                rig.run(command);
            }
            let before = rig.ticks();
            rig.run(switch(None));
            let expected = ticks::COMMAND + IMAGE + misses * COLD;
            assert_eq!(rig.ticks() - before, expected, "{flush:?}");
        }
    }
    for round in 0..3 {
        let before = rig.stepped.tally.get(Counter::TlbMiss);
        rig.packet(CONTEXT, &[signal]);
        rig.packet(OTHER, &[]);
        let misses = rig.stepped.tally.get(Counter::TlbMiss) - before;
        assert_eq!(misses == 0, round > 0, "{misses}");
    }
}

/// Wherever packets are stopped, and on whichever core they go on, they find their registers.
#[test]
fn registers_last_over_preemption() {
    let fill = |at: u64| Command::Fill {
        pattern: 1,
        address: DATA_VA + 0x8000 + at,
        bytes: 0x1000,
    };
    let place = |index, at| Command::StoreRegister {
        index,
        address: DATA_VA + 0x400 + at,
    };
    let packets = |rig: &mut Rig| {
        let mut commands = vec![set(0, 1), set(1, 1)];
        for i in 0..8 {
            commands.extend([place(0, i * 16), set(0, i + 2), fill(i * 0x1000)]);
            commands.extend([place(0, i * 16 + 8), set(9, i)]);
        }
        let first = rig.exec(CONTEXT, &commands).0;
        let other = rig.exec(OTHER, &[place(0, 0x200), set(0, 1000), place(0, 0x208)]);
        let last = rig.exec(CONTEXT, &[place(0, 0x210), place(9, 0x218), set(1, 5)]);
        vec![first, other.0, last.0]
    };
    let whole = {
        let mut rig = Rig::new(COMPUTE);
        let packets = packets(&mut rig);
        rig.stepped.start(COMPUTE, &packets);
        assert_eq!(rig.finish(), Outcome::Idle);
        rig
    };
    let memory = |rig: &Rig| rig.stepped.vram_bytes(DATA, 0x1_0000);
    let mut stops = 0;
    for seed in 1..40 {
        let (mut rig, mut random) = (Rig::new(COMPUTE), Random(seed * 0x9e37_79b9));
        let mut left = std::collections::VecDeque::from(packets(&mut rig));
        let moves = seed % 2 == 0;
        while !left.is_empty() {
            let commands: Vec<Command> = left.iter().copied().collect();
            rig.stepped.start(COMPUTE, &commands);
            for _ in 0..random.below(40) {
                if let Outcome::Completed { .. } = rig.stepped.step(COMPUTE, 1 + random.below(40)) {
                    left.pop_front();
                }
            }
            rig.stepped.cores[0].preempt(1);
            loop {
                match rig.stepped.step(COMPUTE, 1 + random.below(40)) {
                    Outcome::Completed { .. } => drop(left.pop_front()),
                    Outcome::Preempted { cause, .. } => {
                        if cause.is_saved() {
                            left[0] = resumed(left[0]);
                            stops += 1;
                        }
                        break;
                    }
                    Outcome::Faulted(record) => panic!("{record:?}"),
                    _ => {}
                }
            }
            assert_eq!(rig.held(), None);
            let progress = rig.stepped.cores[0].take_progress();
            if moves {
                rig.stepped.cores[0] = skua_testbed::new_core(COMPUTE);
            }
            rig.stepped.cores[0].set_progress(progress);
        }
        assert!(memory(&rig) == memory(&whole), "{seed}");
        assert_eq!(rig.image(CONTEXT).registers, whole.image(CONTEXT).registers);
        let charged = |rig: &Rig| rig.stepped.vram64(CONTEXT + Descriptor::TICKS);
        // Another core has to translate anew.
        assert!(moves || charged(&rig) == charged(&whole), "{seed}");
    }
    assert!(stops > 100, "{stops}");
}

/// The state of a packet is behind the image: neither writes to the other's place.
#[test]
fn the_state_is_behind_the_image() {
    let mut rig = Rig::new(COMPUTE);
    let wait = Command::Wait {
        address: DATA_VA + 0x800,
        value: 1,
    };
    let (exec, _) = rig.exec(CONTEXT, &[set(0, 11), wait, store(0)]);
    rig.stepped.start(COMPUTE, &[exec]);
    while rig.stepped.step(COMPUTE, 100) != Outcome::Waiting {}
    let waits = Outcome::Preempted {
        fence: 1,
        cause: Cause::Waiting,
    };
    assert_eq!(rig.preempt(10), waits);
    assert_eq!(rig.image(CONTEXT).registers[0], 11);
    assert_eq!(&rig.stepped.vram_bytes(STATE, 4), b"SAVE");
    // The registers are not the state's, and a state that is not resumed is given up.
    let mut image = rig.image(CONTEXT);
    image.registers[0] = 12;
    rig.stepped.set_image(SAVE, image);
    rig.stepped.set_vram64(DATA + 0x800, 1);
    rig.run(resumed(exec));
    assert_eq!(rig.stored(0), 12);
    assert_eq!(rig.stepped.saved(CONTEXT), 0);
}

/// Whatever turns there are, stops, switches and resets, each context has what its own packets have
/// left, as far as they have ended.
#[test]
fn any_order_of_packets() {
    let contexts = [CONTEXT, OTHER, PLAIN];
    let mut switches = 0;
    for seed in 1..60 {
        let (mut rig, mut random) = (
            Rig::new(ENGINES[seed as usize % 2]),
            Random(seed * 0x1234_5677),
        );
        let mut model = [[0_u64; 16]; 3];
        for _ in 0..60 {
            match random.below(10) {
                0 => rig.run(switch(None)),
                1 => rig.reset(),
                2 => drop(rig.preempt(1 + random.below(100))),
                _ => {
                    let which = random.below(3) as usize;
                    let index = random.below(16) as u32;
                    if contexts[which] == PLAIN {
                        model[which] = [0; 16];
                    }
                    let mut commands = vec![store(index)];
                    let before = model[which][index as usize];
                    for _ in 0..random.below(4) {
                        let (index, value) = (random.below(16), random.below(u64::MAX));
                        commands.push(set(index as u32, value));
                        model[which][index as usize] = value;
                    }
                    rig.packet(contexts[which], &commands);
                    assert_eq!(rig.stored(index), before, "{seed}");
                    assert_eq!(rig.held(), Some(contexts[which]));
                }
            }
            for (at, model) in contexts.into_iter().zip(&model).take(2) {
                assert_eq!(rig.image(at).registers, *model, "{seed}");
            }
        }
        switches += rig.counts()[1];
    }
    assert!(switches > 500, "{switches}");
}
