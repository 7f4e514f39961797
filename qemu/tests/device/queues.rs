// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues of contexts, and RUN (manual sections 6 and 7).

use skua_gpu::engine::core::Outcome;
use skua_gpu::vram;
use skua_spec::address::{GpuPhys, GpuVa};
use skua_spec::command::Command;
use skua_spec::context::{Buffer, Descriptor, Queue};
use skua_spec::fault::{Access, Reason, Record};
use skua_spec::number::Asid;
use skua_spec::preemption::Cause;
use skua_spec::status::Counter;
use skua_testbed::{Stepped, BUFFER, BUFFER_VA, COMPUTE, CONTEXT, DATA, DATA_VA};

use crate::preemption::{words, AREA};

/// Another context's descriptor, without a save area.
const OTHER: u64 = CONTEXT + 0x1000;
/// Where queues are, behind the descriptor that each is of.
const QUEUE: u64 = 0x100;
const PLACES: u32 = 4;

/// Engine 0, stepped, and two contexts with queues.
struct Rig {
    stepped: Stepped,
    /// Where the next packet's buffer is.
    buffer: u64,
    fence: u64,
}

impl Rig {
    fn new() -> Self {
        let stepped = Stepped::new();
        stepped.set_save_area(CONTEXT, Some(AREA));
        stepped.write_context(OTHER, Asid(9), 9, skua_testbed::root());
        stepped.clear_vram(DATA, 0x1000);
        let rig = Self {
            stepped,
            buffer: 0,
            fence: 0,
        };
        for at in [CONTEXT, OTHER] {
            rig.set_queue(at, Some(PLACES));
        }
        rig
    }

    fn queue(at: u64, packets: u32) -> Queue {
        let base = GpuPhys(vram::BASE + at + QUEUE);
        Queue { base, packets }
    }

    fn set_queue(&self, at: u64, packets: Option<u32>) {
        let word = packets.map_or(0, |packets| Self::queue(at, packets).to_word());
        self.stepped.set_vram64(at + Descriptor::QUEUE, word);
    }

    fn set_tail(&self, at: u64, tail: u32) {
        let word = at + Descriptor::SAVE_SIZE;
        let size = self.stepped.vram32(word);
        let value = u64::from(size) | u64::from(tail) << 32;
        self.stepped.set_vram64(word, value);
    }

    /// Puts a packet with the commands into a queue; its number.
    fn enqueue(&mut self, at: u64, commands: &[Command]) -> u32 {
        let words = words(commands);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.stepped.set_vram(BUFFER + self.buffer, &bytes);
        let packet = Buffer {
            base: GpuVa(BUFFER_VA),
            start: self.buffer as u32,
            end: self.buffer as u32 + bytes.len() as u32,
        };
        self.buffer += bytes.len() as u64;
        let number = self.stepped.vram32(at + Descriptor::TAIL);
        self.set_packet(at, number, packet.to_words());
        self.set_tail(at, number.wrapping_add(1));
        number
    }

    fn set_packet(&self, at: u64, number: u32, packet: [u64; 2]) {
        let place = Self::queue(at, PLACES).place(number).unwrap().0 - vram::BASE;
        for (word, value) in (0..).zip(packet) {
            self.stepped.set_vram64(place + word * 8, value);
        }
    }

    /// RUN, with the next fence.
    fn run(&mut self, at: u64, number: u32, resume: bool) -> Command {
        self.fence += 1;
        Command::Run {
            context: vram::BASE + at,
            number,
            fence: Some(self.fence),
            interrupt: false,
            resume,
        }
    }

    fn start(&mut self, commands: &[Command]) {
        self.stepped.start(COMPUTE, commands);
    }

    /// Works on to the end of the ring, a fault, or a stop.
    fn finish(&mut self) -> Outcome {
        for _ in 0..100_000 {
            let outcome = self.stepped.step(COMPUTE, 1000);
            let is_end = matches!(
                outcome,
                Outcome::Idle | Outcome::Faulted(_) | Outcome::Preempted { .. }
            );
            if is_end {
                return outcome;
            }
        }
        panic!("no end");
    }

    fn fault(&mut self, commands: &[Command]) -> Record {
        self.start(commands);
        match self.finish() {
            Outcome::Faulted(record) => record,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn head(&self, at: u64) -> u64 {
        self.stepped.vram64(at + Descriptor::PACKETS)
    }

    fn completed(&self) -> u64 {
        self.stepped.cores[0].shown().completed_fence
    }
}

/// Stores that a packet was run, in a place of its own.
fn mark(place: u64) -> Command {
    Command::Signal {
        address: DATA_VA + place * 8,
        value: place + 1,
    }
}

fn marks(rig: &Rig, count: u64) -> Vec<u64> {
    (0..count)
        .map(|i| rig.stepped.vram64(DATA + i * 8))
        .collect()
}

#[test]
fn packets_run_in_order_and_the_places_again_and_again() {
    let mut rig = Rig::new();
    for place in 0..3 * u64::from(PLACES) {
        let number = rig.enqueue(CONTEXT, &[mark(place)]);
        assert_eq!(u64::from(number), place);
        let run = rig.run(CONTEXT, number, false);
        rig.start(&[run]);
        assert_eq!(rig.finish(), Outcome::Idle);
        assert_eq!((rig.completed(), rig.head(CONTEXT)), (place + 1, place + 1));
    }
    let all: Vec<u64> = (1..=3 * u64::from(PLACES)).collect();
    assert_eq!(marks(&rig, all.len() as u64), all);
}

/// The ring says whose turn it is; what each has to do is in its queue.
#[test]
fn contexts_take_turns() {
    let mut rig = Rig::new();
    let mut list = Vec::new();
    for place in 0..2 {
        for (at, place) in [(CONTEXT, place), (OTHER, place + 2)] {
            let number = rig.enqueue(at, &[mark(place)]);
            list.push(rig.run(at, number, false));
        }
    }
    rig.start(&list);
    assert_eq!(rig.finish(), Outcome::Idle);
    assert_eq!(marks(&rig, 4), [1, 2, 3, 4]);
    assert_eq!((rig.head(CONTEXT), rig.head(OTHER)), (2, 2));
    assert_eq!(rig.completed(), 4);
}

/// Numbers go on behind 2^32 - 1.
#[test]
fn numbers_wrap_around() {
    let mut rig = Rig::new();
    let before = u64::from(u32::MAX) + (7 << 32);
    rig.stepped
        .set_vram64(CONTEXT + Descriptor::PACKETS, before);
    rig.set_tail(CONTEXT, u32::MAX);
    let numbers = [0, 1].map(|place| rig.enqueue(CONTEXT, &[mark(place)]));
    assert_eq!(numbers, [u32::MAX, 0]);
    let list = numbers.map(|number| rig.run(CONTEXT, number, false));
    rig.start(&list);
    assert_eq!(rig.finish(), Outcome::Idle);
    assert_eq!(
        (marks(&rig, 2), rig.head(CONTEXT)),
        (vec![1, 2], before + 2)
    );
}

/// A packet that is preempted stays where it is, with those behind it: only the ring is written
/// again. Others run meanwhile.
#[test]
fn what_is_preempted_stays_in_its_queue() {
    let mut rig = Rig::new();
    let fill = Command::Fill {
        pattern: 7,
        address: DATA_VA + 0x1000,
        bytes: 0x1_0000,
    };
    let first = rig.enqueue(CONTEXT, &[fill, mark(0)]);
    let second = rig.enqueue(CONTEXT, &[mark(1)]);
    let queue = rig.stepped.vram_bytes(CONTEXT + QUEUE, 64);
    let list = [first, second].map(|number| rig.run(CONTEXT, number, false));
    rig.start(&list);
    assert_eq!(rig.stepped.step(COMPUTE, 500), Outcome::Busy);
    assert_eq!(rig.stepped.step(COMPUTE, 500), Outcome::Busy);
    rig.stepped.cores[0].preempt(1);
    let (fence, cause) = (1, Cause::Within);
    assert_eq!(rig.finish(), Outcome::Preempted { fence, cause });
    assert_eq!((rig.head(CONTEXT), rig.completed()), (0, 0));

    let other = rig.enqueue(OTHER, &[mark(2)]);
    let list = [
        rig.run(OTHER, other, false),
        rig.run(CONTEXT, first, true),
        rig.run(CONTEXT, second, false),
    ];
    rig.start(&list);
    assert_eq!(rig.finish(), Outcome::Idle);
    assert_eq!(marks(&rig, 3), [1, 2, 3]);
    assert_eq!(rig.stepped.vram32(DATA + 0x1_0ffc), 7);
    assert_eq!((rig.head(CONTEXT), rig.head(OTHER)), (2, 1));
    assert_eq!(rig.stepped.tally.get(Counter::Packet), 3);
    assert_eq!(rig.stepped.vram_bytes(CONTEXT + QUEUE, 64), queue);
}

/// RUN names the packet that is next; nothing is run twice, and nothing left out.
#[test]
fn what_is_not_at_the_head_is_not_run() {
    type Change = fn(&Rig);
    let none: Change = |_| ();
    let cases: [(&str, u32, Change); 8] = [
        ("an earlier one", 0, none),
        ("a later one", 2, none),
        ("none in the queue", 1, |rig| rig.set_tail(CONTEXT, 1)),
        ("a tail behind the head", 1, |rig| rig.set_tail(CONTEXT, 0)),
        ("more than there are places", 1, |rig| {
            rig.set_tail(CONTEXT, 1 + PLACES + 1)
        }),
        ("no queue", 1, |rig| rig.set_queue(CONTEXT, None)),
        ("one place", 1, |rig| rig.set_queue(CONTEXT, Some(1))),
        ("2^16 places", 1, |rig| {
            rig.set_queue(CONTEXT, Some(1 << 16))
        }),
    ];
    for (name, number, change) in cases {
        let mut rig = Rig::new();
        for place in 0..3 {
            rig.enqueue(CONTEXT, &[mark(place)]);
        }
        let run = rig.run(CONTEXT, 0, false);
        rig.start(&[run]);
        assert_eq!(rig.finish(), Outcome::Idle);
        change(&rig);
        let run = rig.run(CONTEXT, number, false);
        let record = rig.fault(&[run]);
        assert_eq!(
            (record.reason, record.access, record.address, record.fence),
            (Reason::BadContext, Access::Fetch, vram::BASE + CONTEXT, 2),
            "{name}"
        );
        assert_eq!(
            (marks(&rig, 3), rig.head(CONTEXT)),
            (vec![1, 0, 0], 1),
            "{name}"
        );
    }
}

#[test]
fn a_packet_of_a_queue_is_checked() {
    let buffer = |base, start, end| Buffer {
        base: GpuVa(base),
        start,
        end,
    };
    for (packet, reason) in [
        (buffer(BUFFER_VA, 16, 8), Reason::BadOperand),
        (buffer(BUFFER_VA, 4, 8), Reason::Misaligned),
        (buffer(BUFFER_VA, 0, 12), Reason::Misaligned),
        (buffer(BUFFER_VA + 4, 0, 8), Reason::Misaligned),
        (buffer(u64::MAX - 7, 0, 8), Reason::BadOperand),
    ] {
        let mut rig = Rig::new();
        let number = rig.enqueue(CONTEXT, &[mark(0)]);
        rig.set_packet(CONTEXT, number, packet.to_words());
        let run = rig.run(CONTEXT, number, false);
        let record = rig.fault(&[run]);
        assert_eq!(record.reason, reason, "{packet:?}");
        assert_eq!((marks(&rig, 1), rig.head(CONTEXT)), (vec![0], 0));
    }
    // Where nothing is.
    let mut rig = Rig::new();
    let number = rig.enqueue(CONTEXT, &[mark(0)]);
    let base = GpuPhys(0x40);
    let queue = Queue { base, packets: 2 };
    rig.stepped
        .set_vram64(CONTEXT + Descriptor::QUEUE, queue.to_word());
    let run = rig.run(CONTEXT, number, false);
    let record = rig.fault(&[run]);
    let found = (record.reason, record.access, record.address);
    assert_eq!(found, (Reason::AddressRange, Access::Fetch, base.0));
}

/// What faults has not ended: it stays at the head.
#[test]
fn a_packet_that_faults_stays_at_the_head() {
    let mut rig = Rig::new();
    let bad = Command::Signal {
        address: 0x1234_5678,
        value: 1,
    };
    let number = rig.enqueue(CONTEXT, &[mark(0), bad]);
    let run = rig.run(CONTEXT, number, false);
    assert_eq!(rig.fault(&[run]).reason, Reason::NotPresent);
    assert_eq!((marks(&rig, 1), rig.head(CONTEXT)), (vec![1], 0));
}

/// A buffer beside the queue would count as one of its packets.
#[test]
fn exec_is_for_contexts_without_a_queue() {
    let mut rig = Rig::new();
    rig.enqueue(CONTEXT, &[mark(0)]);
    let (exec, _) = rig.stepped.exec(COMPUTE, &[mark(1)]);
    let record = rig.fault(&[exec]);
    assert_eq!(record.reason, Reason::BadContext);
    assert_eq!((marks(&rig, 2), rig.head(CONTEXT)), (vec![0, 0], 0));
}
