// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Against a recording miniport and a `VecDeque`.

use super::super::{
    buddy::PageRange,
    miniport::{Flush, PagingOperation, Pass, Preemption, Stop},
    paging::MultipassOffset,
    recorder::{Call, Gone, Recorder, Ring, What},
};
use super::*;
use crate::spec::{
    fault::{Access, Reason, Space},
    number::Asid,
};
use crate::std_heap::{allocations, until_enough, StdHeap};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

mod exhaustive;

/// A packet of a context, or of the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Work {
    context: Option<u32>,
    number: u32,
}

const FILL: PagingOperation<'_> = PagingOperation::Fill {
    segment: 1,
    blocks: &[PageRange::new(0, 1)],
};

impl Packet for Work {
    fn task(&self) -> Task<'_> {
        match self.context {
            Some(context) => Task::Virtual {
                context: ContextSlot(context),
                number: self.number,
                va: GpuVa(u64::from(self.number) * 8),
                bytes: 8,
                resume: false,
            },
            None => paging(self.number % 2 == 0),
        }
    }

    fn interrupts(&self) -> bool {
        self.number % 2 == 0
    }

    fn is_followed(&self) -> bool {
        self.number & FOLLOWED != 0
    }

    fn is_resubmitted(&self) -> bool {
        self.number & RESUBMITTED != 0
    }

    fn context(&self) -> Option<ContextSlot> {
        self.context.map(ContextSlot)
    }
}

impl Work {
    /// The call that puts it into the ring, for the first time or not.
    fn submit(&self, fence: u64, resubmission: bool) -> Call {
        let what = match self.context {
            Some(context) => {
                let va = GpuVa(u64::from(self.number) * 8);
                What::Virtual(ContextSlot(context), va, 8, false)
            }
            None => What::Fill(1, MultipassOffset::default()),
        };
        let interrupt = self.interrupts();
        let completion = Completion { fence, interrupt };
        Call::Submit {
            what,
            completion,
            resubmission,
        }
    }
}

/// The only pass of [`FILL`].
fn paging(idle: bool) -> Task<'static> {
    let pass = Pass {
        operation: FILL,
        from: MultipassOffset::default(),
        idle,
    };
    Task::Paging(pass, Flush::Nothing)
}

/// Work with this bit in its number has more behind it.
const FOLLOWED: u32 = 1 << 16;
/// An engine was given work with this bit before.
const RESUBMITTED: u32 = 1 << 17;

type TestNode = Node<StdHeap, Recorder, Work>;

const RECORD: Record = Record {
    engine: EngineIndex::ALL[0],
    reason: Reason::NotPresent,
    asid: Asid(1),
    context_id: 1,
    access: Access::Read,
    detail: 0,
    space: Space::Virtual,
    address: 0,
    fence: 0,
    command: 0,
    pc: Record::NO_PC,
};

fn node(slots: u32, capacity: usize) -> TestNode {
    Node::new(EngineIndex::ALL[0], Ring::new(slots), capacity).expect("memory")
}

fn client(context: u32, number: u32) -> Work {
    Work {
        context: Some(context),
        number,
    }
}

/// Builds and starts a packet.
fn start(node: &mut TestNode, hw: &Recorder, packet: Work) -> Result<(), NodeError<Gone>> {
    assert_eq!(node.build(hw, &packet.task())?, Built::Last);
    node.start(hw, packet)
}

/// What was asked for, without what was built, which the recorder compares with what is submitted.
fn calls(hw: &Recorder) -> Vec<Call> {
    let calls = hw.calls.borrow();
    let calls = calls
        .iter()
        .filter(|call| !matches!(call, Call::Build { .. }));
    calls.cloned().collect()
}

/// Whether it is as expected. More ends interrupt than those that ask, as
/// `a_ring_does_not_end_untold` tells.
fn agree((found, expected): (&Call, &Call)) -> bool {
    let (mut found, mut expected) = (found.clone(), expected.clone());
    if let (
        Call::Submit { completion, .. },
        Call::Submit {
            completion: other, ..
        },
    ) = (&mut found, &mut expected)
    {
        other.interrupt |= completion.interrupt;
    }
    found == expected
}

/// Resets and blames; the packets that were taken out.
fn recover(node: &mut TestNode, hw: &Recorder, cause: &Cause) -> (Verdict, Vec<(Work, bool)>) {
    let mut taken = Vec::new();
    let verdict = node.blame(cause, |packet, is_it| taken.push((packet, is_it)));
    if verdict == Verdict::GoOn {
        node.replay(hw).expect("a miniport");
    }
    (verdict, taken)
}

#[derive(Clone, Debug)]
enum Op {
    Start(Option<u32>),
    Notify,
    /// The packet at this place of the queue, counted from the oldest, is reported.
    Complete(usize),
    /// An id that is not in flight.
    Bogus(u64),
    /// The packet at this place is reported to be guilty, by its id.
    Fault(usize),
    /// The adapter is reset.
    Reset,
    /// The engine is asked to stop, and does so behind so many packets more, in the midst of the
    /// next one or not.
    Preempt(usize, bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => prop::option::weighted(0.8, 0u32..3).prop_map(Op::Start),
        2 => Just(Op::Notify),
        4 => (0usize..6).prop_map(Op::Complete),
        1 => (0u64..100).prop_map(Op::Bogus),
        1 => (0usize..2).prop_map(Op::Fault),
        1 => Just(Op::Reset),
        2 => (0usize..4, any::<bool>()).prop_map(|(more, within)| Op::Preempt(more, within)),
    ]
}

proptest! {
    #![proptest_config(crate::cases(4))]
    #[test]
    fn like_a_queue(
        slots in 2u32..9,
        capacity in 1usize..9,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let hw = Recorder::default();
        let mut node = node(slots, capacity);
        node.enable(&hw).unwrap();
        let mut model: VecDeque<(u64, Work)> = VecDeque::new();
        let (mut next, mut number, mut untold, mut reported, mut blameless) = (1, 0, false, 0, 0);
        let mut preemptions = 0;
        let mut expected = std::vec![Call::Start];
        let client = |(_, packet): &(u64, Work)| packet.context.is_some();
        for op in ops {
            match op {
                Op::Start(context) => {
                    let packet = Work { context, number };
                    let fits = model.len() < capacity.min(slots as usize - 1);
                    prop_assert_eq!(node.fits(&hw, &packet.task()), fits);
                    if fits {
                        start(&mut node, &hw, packet).unwrap();
                        expected.push(packet.submit(next, false));
                        model.push_back((next, packet));
                        next += 1;
                        number += 1;
                        untold = true;
                    }
                }
                Op::Notify => {
                    prop_assert_eq!(node.notify(&hw), Ok(untold));
                    if untold {
                        expected.push(Call::Doorbell);
                    }
                    untold = false;
                }
                Op::Complete(place) => {
                    let Some((id, _)) = model.get(place).copied() else {
                        continue;
                    };
                    // The engine ends nothing that it was not told of.
                    node.notify(&hw).unwrap();
                    expected.extend(untold.then_some(Call::Doorbell));
                    untold = false;
                    hw.reported.set(id);
                    reported = id;
                    let ended: Vec<_> = model.drain(..=place).map(|(_, packet)| packet).collect();
                    let mut seen = Vec::new();
                    node.complete(&hw, |packet| seen.push(packet)).unwrap();
                    prop_assert_eq!(seen, ended);
                    // Up to the end of the last one, whichever it is.
                    let end = hw.calls.borrow().last().cloned();
                    prop_assert!(matches!(end, Some(Call::Retire { .. })), "{:?}", end);
                    expected.extend(end);
                    blameless = 0;
                }
                Op::Bogus(id) => {
                    if id == reported || model.iter().any(|(known, _)| *known == id) {
                        continue;
                    }
                    hw.reported.set(id);
                    let complete = node.complete(&hw, |_| panic!("a packet ended"));
                    prop_assert_eq!(complete, Err(NodeError::Bogus));
                    hw.reported.set(reported);
                }
                Op::Preempt(more, within) => {
                    node.notify(&hw).unwrap();
                    expected.extend(untold.then_some(Call::Doorbell));
                    untold = false;
                    let ask = !model.is_empty();
                    prop_assert_eq!(node.preempt(&hw), Ok(ask));
                    if !ask {
                        continue;
                    }
                    prop_assert_eq!(node.preempt(&hw), Ok(false), "it was asked");
                    preemptions += 1;
                    expected.push(Call::Preempt(preemptions));
                    prop_assert_eq!(node.answer(&hw), Ok(None), "it has not answered");
                    let more = more.min(model.len());
                    let ended: Vec<_> = model.drain(..more).collect();
                    reported = ended.last().map_or(reported, |(id, _)| *id);
                    hw.reported.set(reported);
                    let stop = match within && model.front().is_some_and(client) {
                        true => Stop::Within,
                        false => Stop::Between,
                    };
                    let answer = Preemption {
                        fence: preemptions,
                        completed: reported,
                        stop,
                    };
                    hw.preempted.set(Some(answer));
                    prop_assert_eq!(node.answer(&hw), Ok(Some(answer)));
                    let (mut done, mut back) = (Vec::new(), Vec::new());
                    let withdrawn = node.withdraw(
                        &hw,
                        answer,
                        |packet| done.push(packet),
                        None,
                        |_, packet, resume| back.push((packet, resume)),
                    );
                    prop_assert_eq!(withdrawn, Ok(()));
                    prop_assert!(done.iter().eq(ended.iter().map(|(_, packet)| packet)));
                    if !ended.is_empty() {
                        blameless = 0;
                        let calls = hw.calls.borrow();
                        let retired = calls.iter().rev();
                        let retired = retired.filter(|call| matches!(call, Call::Retire { .. }));
                        expected.extend(retired.take(1).cloned());
                    }
                    let first = model.front().map(|(id, _)| *id);
                    let left = model.iter().filter(|entry| client(entry));
                    let withdrawn: Vec<_> = left
                        .map(|(id, packet)| match Some(*id) == first {
                            true => (*packet, stop),
                            false => (*packet, Stop::Between),
                        })
                        .collect();
                    prop_assert_eq!(back, withdrawn);
                    model.retain(|entry| !client(entry));
                    expected.push(Call::Withdraw);
                    // What is the system's own comes again, with the ids that it had.
                    expected.extend(model.iter().map(|(id, packet)| packet.submit(*id, true)));
                    untold = !model.is_empty();
                }
                Op::Reset => {
                    hw.reported.set(0);
                    node.restart(&hw).unwrap();
                    expected.extend([Call::Start, Call::Retire { end: 0 }]);
                    // All of a segment becomes zero before anything else.
                    let from = MultipassOffset::default();
                    let purge = node.purge(&hw, 1, &[PageRange::new(0, 8)], from).unwrap();
                    prop_assert_eq!(purge.next, None);
                    let completion = Completion {
                        fence: next,
                        interrupt: false,
                    };
                    let submit = Call::Submit {
                        what: What::Fill(1, from),
                        completion,
                        resubmission: false,
                    };
                    expected.extend([submit, Call::Doorbell]);
                    prop_assert_eq!(node.is_purged(&hw, &purge), Ok(false));
                    hw.reported.set(next);
                    prop_assert_eq!(node.is_purged(&hw, &purge), Ok(true));
                    expected.extend(hw.calls.borrow().last().cloned());
                    (reported, next, blameless) = (next, next + 1, 0);
                    let mut left = Vec::new();
                    node.abandon(|_, packet| left.push(packet));
                    prop_assert!(left.iter().eq(model.iter().map(|(_, packet)| packet)));
                    model.clear();
                    untold = false;
                }
                Op::Fault(place) => {
                    // Otherwise the ring has packets that the engine was not told of.
                    node.notify(&hw).unwrap();
                    expected.extend(untold.then_some(Call::Doorbell));
                    untold = false;
                    let fence = model.get(place).map_or(next, |(id, _)| *id);
                    let cause = Cause::Fault(Record { fence, ..RECORD });
                    let named = place == 0 && !model.is_empty();
                    prop_assert_eq!(node.is_named(&cause), named);
                    let guilty = model.front().filter(|_| named).map(|(_, packet)| packet.context);
                    let mut removed = Vec::new();
                    model.retain(|(id, packet)| {
                        // The system's own is kept for an adapter reset.
                        let goes = packet.context.is_some() && guilty == Some(packet.context);
                        if goes {
                            removed.push((*packet, *id == fence));
                        }
                        !goes
                    });
                    blameless += u32::from(!named);
                    let broken = guilty == Some(None) || blameless > MAX_BLAMELESS;
                    let (verdict, taken) = recover(&mut node, &hw, &cause);
                    prop_assert_eq!(taken, removed);
                    prop_assert_eq!(verdict == Verdict::Broken, broken);
                    if broken {
                        // The device is given up.
                        let mut left = Vec::new();
                        node.abandon(|_, packet| left.push(packet));
                        let all: Vec<_> = model.iter().map(|(_, packet)| *packet).collect();
                        prop_assert_eq!(left, all);
                        prop_assert!(node.is_empty());
                        break;
                    }
                    expected.push(Call::Start);
                    // The system's own comes first, with the ids that it had.
                    let (own, others): (VecDeque<_>, VecDeque<_>) =
                        model.into_iter().partition(|entry| !client(entry));
                    model = own;
                    for (_, packet) in others {
                        model.push_back((next, packet));
                        next += 1;
                    }
                    expected.extend(model.iter().map(|(id, packet)| packet.submit(*id, true)));
                    expected.extend((!model.is_empty()).then_some(Call::Doorbell));
                }
            }
            prop_assert!(node.iter().map(|(id, packet)| (id, *packet)).eq(model.iter().copied()));
            prop_assert_eq!(node.len(), model.len());
            let told = node.in_flight.iter().any(|(_, entry)| entry.interrupts);
            prop_assert!(told || !node.is_full(), "a ring that ends untold");
            let calls = calls(&hw);
            let agree = calls.len() == expected.len() && calls.iter().zip(&expected).all(agree);
            prop_assert!(agree, "{:?} {:?}", calls, expected);
        }
    }
}

#[test]
fn only_what_is_at_the_head_can_be_guilty() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    for (context, number) in [(1, 0), (2, 1), (1, 2), (2, 3)] {
        start(&mut node, &hw, client(context, number)).unwrap();
    }
    // Of the second: it is not its turn.
    let named = Record { fence: 2, ..RECORD };
    assert!(!node.is_named(&Cause::Fault(named)));
    assert!(!node.is_named(&Cause::Endless(2)));
    assert!(node.is_named(&Cause::Endless(1)));
    // A command of the ring, by its offset: the first packet has slot 0, the second slot 1.
    let at = |command| Cause::Fault(Record { command, ..RECORD });
    assert!(node.is_named(&at(0)));
    assert!(!node.is_named(&at(1)));

    let (verdict, taken) = recover(&mut node, &hw, &Cause::Endless(1));
    assert_eq!(verdict, Verdict::GoOn);
    assert_eq!(taken, [(client(1, 0), true), (client(1, 2), false)]);
    // The others have new ids.
    assert!(node
        .iter()
        .map(|(id, p)| (id, *p))
        .eq([(5, client(2, 1)), (6, client(2, 3))]));
    // Late news of before.
    hw.reported.set(4);
    assert_eq!(node.complete(&hw, |_| ()), Err(NodeError::Bogus));
}

#[test]
fn the_systems_own_is_first_after_a_reset_with_the_ids_that_it_had() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    let system = |number| Work {
        context: None,
        number,
    };
    let packets = [
        client(1, 0),
        system(1),
        client(2, 2),
        client(1, 3),
        system(4),
    ];
    for packet in packets {
        start(&mut node, &hw, packet).unwrap();
    }
    // One that was done stays done.
    hw.reported.set(2);
    node.complete(&hw, |_| ()).unwrap();
    let (_, guilty) = recover(&mut node, &hw, &Cause::Endless(3));
    assert_eq!(guilty, [(client(2, 2), true)]);
    start(&mut node, &hw, system(5)).unwrap();
    let expected = [
        (5, system(4)),
        (6, client(1, 3)),
        (7, system(5)), //
    ];
    let written: Vec<_> = node.iter().map(|(id, packet)| (id, *packet)).collect();
    assert_eq!(written, expected);
    // Once more: it has the lower id though it was last.
    recover(&mut node, &hw, &Cause::Endless(1000));
    let written: Vec<_> = node.iter().map(|(id, packet)| (id, *packet)).collect();
    assert_eq!(written, [(5, system(4)), (7, system(5)), (8, client(1, 3))]);
    let submits = calls(&hw).into_iter().rev();
    let submits = submits.filter(|call| matches!(call, Call::Submit { .. }));
    let submits: Vec<_> = submits.take(3).collect();
    let expected: Vec<_> = written
        .iter()
        .rev()
        .map(|(id, it)| it.submit(*id, true))
        .collect();
    assert_eq!(submits, expected);
    hw.reported.set(8);
    let mut done = Vec::new();
    node.complete(&hw, |packet| done.push(packet)).unwrap();
    assert_eq!(done, [system(4), system(5), client(1, 3)]);
}

#[test]
fn a_place_may_go_on_at_the_beginning() {
    let span = RingSpan { start: 48, end: 16 };
    for (offset, inside) in [(0, true), (8, true), (16, false), (40, false), (48, true)] {
        assert_eq!(span.contains(offset), inside, "{offset}");
    }
}

#[test]
fn an_engine_that_is_reset_for_nothing_is_broken_at_last() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    start(&mut node, &hw, client(1, 0)).unwrap();
    let nobody = Cause::Endless(1000);
    for _ in 0..MAX_BLAMELESS {
        assert_eq!(
            recover(&mut node, &hw, &nobody),
            (Verdict::GoOn, Vec::new())
        );
    }
    // A packet that ends shows that it works.
    let (id, _) = node.head().unwrap();
    start(&mut node, &hw, client(2, 1)).unwrap();
    hw.reported.set(id);
    node.complete(&hw, |_| ()).unwrap();
    for _ in 0..MAX_BLAMELESS {
        assert_eq!(
            recover(&mut node, &hw, &nobody),
            (Verdict::GoOn, Vec::new())
        );
    }
    assert_eq!(
        recover(&mut node, &hw, &nobody),
        (Verdict::Broken, Vec::new())
    );
}

#[test]
fn the_systems_own_guilt_breaks_the_engine() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    let system = Work {
        context: None,
        number: 0,
    };
    start(&mut node, &hw, system).unwrap();
    start(&mut node, &hw, client(1, 1)).unwrap();
    let (verdict, taken) = recover(&mut node, &hw, &Cause::Endless(1));
    assert_eq!((verdict, taken), (Verdict::Broken, Vec::new()));
    // It is written again when the adapter was reset.
    assert!(node.iter().eq([(1, &system), (2, &client(1, 1))]));
}

#[test]
fn a_miniport_may_want_memory_to_be_idle() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    let system = |number| Work {
        context: None,
        number,
    };
    hw.wants_idle.set(Some(false));
    start(&mut node, &hw, system(0)).unwrap();
    // What is not idle: nothing has happened, and others go on.
    assert_eq!(node.build(&hw, &paging(false)), Ok(Built::Busy));
    start(&mut node, &hw, client(1, 1)).unwrap();
    assert_eq!(node.len(), 2);
    // It is now.
    start(&mut node, &hw, system(2)).unwrap();
    let calls = hw.calls.borrow();
    let built = calls.iter().filter_map(|call| match call {
        Call::Build { idle, built, .. } => Some((*idle, *built)),
        _ => None,
    });
    assert!(built.eq([(true, Built::Last); 2]));
    drop(calls);
    // There is nothing else to be waited for.
    hw.wants_idle.set(Some(true));
    assert_eq!(node.build(&hw, &paging(true)), Err(NodeError::Busy));
}

#[test]
fn what_could_not_be_written_is_given_up_with_the_rest() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    start(&mut node, &hw, client(1, 0)).unwrap();
    hw.gone.set(true);
    assert_eq!(
        start(&mut node, &hw, client(1, 1)),
        Err(NodeError::Miniport(Gone))
    );
    assert_eq!(node.notify(&hw), Err(NodeError::Miniport(Gone)));
    assert_eq!(node.complete(&hw, |_| ()), Err(NodeError::Miniport(Gone)));
    assert_eq!(node.replay(&hw), Err(NodeError::Miniport(Gone)));
    let mut left = Vec::new();
    node.abandon(|_, packet| left.push(packet.number));
    assert_eq!(left, [0, 1]);
}

/// Whatever order its ids have by now.
#[test]
fn who_has_done_all_is_not_asked() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    let system = Work {
        context: None,
        number: 0,
    };
    for packet in [client(1, 0), system, client(1, 1)] {
        start(&mut node, &hw, packet).unwrap();
    }
    node.notify(&hw).unwrap();
    assert_eq!(node.preempt(&hw), Ok(true));
    let answer = Preemption {
        fence: 1,
        completed: 0,
        stop: Stop::Between,
    };
    let mut back = Vec::new();
    let withdrawn = |_, packet: Work, _| back.push(packet);
    let result = node.withdraw(&hw, answer, |_| (), None, withdrawn);
    assert_eq!(
        (result, back),
        (Ok(()), std::vec![client(1, 0), client(1, 1)])
    );
    start(&mut node, &hw, client(1, 0)).unwrap();
    node.notify(&hw).unwrap();
    // The system's own is done.
    hw.reported.set(2);
    assert_eq!((node.len(), node.preempt(&hw)), (2, Ok(true)));
    let answer = Preemption {
        fence: 2,
        completed: 2,
        ..answer
    };
    let result = node.withdraw(&hw, answer, |_| (), None, |_, _, _| ());
    assert_eq!((result, node.len()), (Ok(()), 0));
    start(&mut node, &hw, client(1, 0)).unwrap();
    node.notify(&hw).unwrap();
    hw.reported.set(5);
    let before = hw.calls.borrow().len();
    assert_eq!((node.len(), node.preempt(&hw)), (1, Ok(false)));
    assert_eq!((node.asked(), hw.calls.borrow().len()), (None, before));
    let mut done = Vec::new();
    node.complete(&hw, |packet| done.push(packet)).unwrap();
    assert_eq!(done, [client(1, 0)]);
}

#[test]
fn an_answer_that_cannot_be_is_refused() {
    let system = Work {
        context: None,
        number: 0,
    };
    for (fence, completed, stop, packet) in [
        (2, 0, Stop::Between, client(1, 0)),
        (1, 7, Stop::Between, client(1, 0)),
        (1, 1, Stop::Within, client(1, 0)),
        (1, 0, Stop::Waiting, system),
    ] {
        let hw = Recorder::default();
        let mut node = node(8, 8);
        start(&mut node, &hw, packet).unwrap();
        node.notify(&hw).unwrap();
        assert_eq!(node.preempt(&hw), Ok(true));
        hw.preempted.set(Some(Preemption {
            fence,
            completed,
            stop,
        }));
        let answer = node.answer(&hw).and_then(|answer| {
            let answer = answer.expect("an answer");
            node.withdraw(
                &hw,
                answer,
                |_| (),
                None,
                |_, _, _| panic!("it is withdrawn"),
            )
        });
        assert_eq!(
            answer,
            Err(NodeError::Bogus),
            "{fence} {completed} {stop:?}"
        );
    }
}

#[test]
fn who_is_guilty_does_not_come_back() {
    let hw = Recorder::default();
    let within = [Stop::Within, Stop::Between, Stop::Waiting];
    for (stop, named) in within
        .into_iter()
        .flat_map(|stop| [1, 2, 3].map(|named| (stop, named)))
    {
        let mut node = node(8, 8);
        hw.reported.set(0);
        for (context, number) in [(3, 0), (1, 1), (2, 2), (1, 3)] {
            start(&mut node, &hw, client(context, number)).unwrap();
        }
        node.notify(&hw).unwrap();
        assert_eq!(node.preempt(&hw), Ok(true));
        let (cause, mut guilty, mut back) = (Cause::Endless(named), Vec::new(), Vec::new());
        let answer = Preemption {
            fence: 1,
            completed: 1,
            stop,
        };
        let mut taken = |packet: Work, is_it| guilty.push((packet.number, is_it));
        let blame: Option<Blame<'_, Work>> = Some((&cause, &mut taken));
        let back_to = |_, packet: Work, resume| back.push((packet.number, resume));
        node.withdraw(&hw, answer, |_| (), blame, back_to).unwrap();
        // Nobody else has its state.
        let (taken, rest) = match named {
            2 if stop != Stop::Between => (
                std::vec![(1, true), (3, false)],
                std::vec![(2, Stop::Between)],
            ),
            _ => (
                Vec::new(),
                std::vec![(1, stop), (2, Stop::Between), (3, Stop::Between)],
            ),
        };
        assert_eq!((guilty, back), (taken, rest), "{stop:?} {named}");
    }
}

#[test]
fn a_reset_forgets_that_it_was_to_stop() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    start(&mut node, &hw, client(1, 0)).unwrap();
    node.notify(&hw).unwrap();
    assert_eq!(node.preempt(&hw), Ok(true));
    assert_eq!(node.asked(), Some(1));
    node.replay(&hw).unwrap();
    assert_eq!(node.asked(), None);
    assert_eq!(node.preempt(&hw), Ok(true));
}

#[test]
fn only_creation_allocates() {
    until_enough(|| TestNode::new(EngineIndex::ALL[0], Ring::new(8), 4));
    let hw = Recorder::default();
    let mut node = node(8, 4);
    let before = allocations();
    for number in 0..4 {
        start(&mut node, &hw, client(1, number)).unwrap();
    }
    assert!(!node.fits(&hw, &client(1, 4).task()));
    assert_eq!(node.start(&hw, client(1, 4)), Err(NodeError::Full));
    node.replay(&hw).unwrap();
    assert_eq!(allocations(), before);
}

/// Where there is one interrupt for many ends, it comes while there is still work for half as long.
#[test]
fn a_ring_does_not_end_untold() {
    let told = |numbers: &[u32]| {
        let hw = Recorder::default();
        let mut node = node(64, 8);
        for number in numbers {
            start(&mut node, &hw, client(1, *number)).expect("room");
        }
        let told = |call: &Call| match call {
            Call::Submit { completion, .. } => Some(completion.interrupt),
            _ => None,
        };
        calls(&hw).iter().filter_map(told).collect::<Vec<_>>()
    };
    let only = |at: &[usize], count: usize| (0..count).map(|n| at.contains(&n)).collect::<Vec<_>>();
    // Odd ones do not ask.
    assert_eq!(told(&[1; 7]), only(&[], 7));
    assert_eq!(told(&[1; 8]), only(&[7], 8));
    assert_eq!(told(&[FOLLOWED + 1; 8]), only(&[3, 7], 8));
    // From one that does on.
    let mut numbers = [FOLLOWED + 1; 8];
    numbers[1] = 2;
    assert_eq!(told(&numbers), only(&[1, 5], 8));
    numbers[5] = 1;
    assert_eq!(told(&numbers), only(&[1, 6], 8));
}

/// Row 2.14: of what comes again the miniport is told that it does, and has its buffer still.
#[test]
fn what_comes_again_is_said_to() {
    let hw = Recorder::default();
    let mut node = node(8, 8);
    let system = Work {
        context: None,
        number: 1,
    };
    let told = || {
        let calls = core::mem::take(&mut *hw.calls.borrow_mut());
        let told = |call: &Call| match call {
            Call::Submit {
                completion,
                resubmission,
                ..
            } => Some((completion.fence, *resubmission)),
            Call::Build { .. } => Some((0, false)),
            _ => None,
        };
        calls.iter().filter_map(told).collect::<Vec<_>>()
    };
    start(&mut node, &hw, client(1, 0)).unwrap();
    start(&mut node, &hw, system).unwrap();
    node.notify(&hw).unwrap();
    assert_eq!(told(), [(1, false), (0, false), (2, false)]);
    // When it has made room: the client's by who has it then.
    assert_eq!(node.preempt(&hw), Ok(true));
    let answer = Preemption {
        fence: 1,
        completed: 0,
        stop: Stop::Within,
    };
    let result = node.withdraw(&hw, answer, |_| (), None, |_, _, _| ());
    assert_eq!((result, told()), (Ok(()), std::vec![(2, true)]));
    start(&mut node, &hw, client(1, RESUBMITTED)).unwrap();
    start(&mut node, &hw, client(1, 1)).unwrap();
    assert_eq!(told(), [(3, true), (4, false)]);
    // When it was reset.
    assert_eq!(node.replay(&hw), Ok(true));
    assert_eq!(told(), [(2, true), (5, true), (6, true)]);
    // When the adapter was, nothing comes again: it begins anew.
    node.restart(&hw).unwrap();
    node.abandon(|_, _| ());
    start(&mut node, &hw, system).unwrap();
    assert_eq!(told(), [(0, false), (7, false)]);
}

/// Row 2.23: once for each buffer, of a miniport that says so.
#[test]
fn who_wants_to_know_is_told_of_what_is_cancelled() {
    let hw = Recorder::default();
    let context = ContextSlot(3);
    let buffers = [(GpuVa(0x1000), 8), (GpuVa(0x4000), 64)];
    let mut caps = SchedulingCaps::MULTI_ENGINE_AWARE;
    for told in [0, 2] {
        let caps_then = SchedulingCaps::new(caps).unwrap();
        cancel(
            &hw,
            caps_then,
            EngineIndex::ALL[0],
            context,
            buffers.into_iter(),
        );
        assert_eq!(hw.calls.borrow().len(), told);
        caps |= SchedulingCaps::CANCEL_COMMAND_AWARE;
    }
    let expected = buffers.map(|(va, bytes)| Call::Cancel(context, va, bytes));
    assert_eq!(*hw.calls.borrow(), expected);
}
