// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All that can happen to a node with a few packets, in every order, beside an engine that works on
//! what it was given and a driver that gives it again what it gets back.
//!
//! The states that a node can come to are looked for from the first one on, by the shortest ways;
//! from each of them all that is left must come to its end.

use super::*;
use std::collections::{BTreeMap, HashSet};

/// What driver and engine can do to a node.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// The driver starts the next packet of this queue.
    Start(usize),
    /// The engine ends a packet.
    End,
    /// The driver takes what has ended.
    Look,
    /// The driver asks the engine to stop.
    Ask,
    /// The engine answers.
    Stop(Stop),
    /// The driver takes the answer, and blames the packet at the head or nobody.
    TakeBack(bool),
    /// The engine is reset because of the packet at the head, or of none.
    Reset(bool),
    /// The adapter is reset.
    Restart,
}

const OPS: [Op; 14] = [
    Op::Start(0),
    Op::Start(1),
    Op::Start(2),
    Op::End,
    Op::Look,
    Op::Ask,
    Op::Stop(Stop::Between),
    Op::Stop(Stop::Within),
    Op::Stop(Stop::Waiting),
    Op::TakeBack(false),
    Op::TakeBack(true),
    Op::Reset(false),
    Op::Reset(true),
    Op::Restart,
];

/// Resets for nothing that are tried in a row.
const BLAMELESS: u32 = 1;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Ended,
    /// It was guilty, or of who was, or was lost with the adapter.
    Cut,
}

/// A packet in the engine's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Given {
    id: u64,
    packet: Work,
    interrupts: bool,
}

/// A node, its engine, and what its driver has of contexts.
struct World {
    hw: Recorder,
    node: TestNode,
    /// What the engine has not ended.
    ring: VecDeque<Given>,
    /// What it has, and the driver does not know of.
    news: VecDeque<Given>,
    /// The request to stop, until the driver has taken the answer.
    asked: Option<u64>,
    stopped: Option<Stop>,
    /// What is to be started, of the system and of each context.
    queues: Vec<VecDeque<Work>>,
    fates: BTreeMap<(usize, u32), Fate>,
    /// Who had every fence id.
    ids: BTreeMap<u64, Work>,
}

/// What tells two states apart: all but numbers that only grow, and where the ring goes on.
type Key = (
    Vec<(Work, bool)>,
    Vec<(Work, bool)>,
    (bool, Option<u32>),
    Vec<VecDeque<Work>>,
    Vec<((usize, u32), Fate)>,
    (usize, u32),
);

/// The queue that a packet is of.
fn queue_of(packet: &Work) -> usize {
    // CAST: few.
    packet.context.map_or(0, |context| context as usize)
}

fn is_own(packet: &Work) -> bool {
    packet.context.is_none()
}

impl World {
    /// With `many` packets in each queue, none of which asks for an interrupt; behind all but the
    /// last more waits.
    fn new(capacity: usize, many: u32) -> Self {
        let queue = |context: Option<u32>| {
            let number = |n| 2 * n + 1 + if n + 1 < many { FOLLOWED } else { 0 };
            let packets = (0..many).map(number);
            packets.map(|number| Work { context, number }).collect()
        };
        let hw = Recorder::default();
        // CAST: few.
        let mut node = node(capacity as u32 + 1, capacity);
        node.enable(&hw).expect("a miniport");
        let mut world = Self {
            hw,
            node,
            ring: VecDeque::new(),
            news: VecDeque::new(),
            asked: None,
            stopped: None,
            queues: [None, Some(1), Some(2)].map(queue).into(),
            fates: BTreeMap::new(),
            ids: BTreeMap::new(),
        };
        world.see();
        world
    }

    /// The one to which `way` leads.
    fn at(capacity: usize, many: u32, way: &[Op]) -> Self {
        let mut world = Self::new(capacity, many);
        for op in way {
            assert!(world.step(*op), "{op:?}");
        }
        world
    }

    fn key(&self) -> Key {
        let given = |given: &Given| (given.packet, given.interrupts);
        (
            self.ring.iter().map(given).collect(),
            self.news.iter().map(given).collect(),
            (self.asked.is_some(), self.stopped.map(|stop| stop as u32)),
            self.queues.clone(),
            self.fates
                .iter()
                .map(|(packet, fate)| (*packet, *fate))
                .collect(),
            (self.node.untold, self.node.blameless),
        )
    }

    fn end(&mut self, packet: Work, fate: Fate) {
        let number = (queue_of(&packet), packet.number);
        assert_eq!(
            self.fates.insert(number, fate),
            None,
            "{packet:?} ended twice"
        );
    }

    /// The engine sees what was written since.
    fn see(&mut self) {
        for call in self.hw.calls.take() {
            match call {
                Call::Start => {
                    self.ring.clear();
                    (self.asked, self.stopped) = (None, None);
                }
                Call::Withdraw => {
                    assert!(self.stopped.is_some(), "it works");
                    self.ring.clear();
                }
                Call::Submit {
                    what,
                    completion,
                    resubmission,
                } => {
                    let Completion {
                        fence: id,
                        interrupt,
                    } = completion;
                    let found = self.node.iter().find(|(other, _)| *other == id);
                    let packet = *found.expect("a packet").1;
                    if let What::Virtual(_, va, ..) = what {
                        assert_eq!(va.0, u64::from(packet.number) * 8);
                    }
                    // The system's own keeps its id, others get new ones.
                    let before = self.ids.insert(id, packet);
                    assert!(!is_own(&packet) || resubmission == before.is_some(), "{id}");
                    assert!(before.is_none_or(|it| it == packet && is_own(&it)), "{id}");
                    let last = self.ring.back().or(self.news.back());
                    assert!(last.is_none_or(|last| last.id < id), "{last:?} {id}");
                    self.ring.push_back(Given {
                        id,
                        packet,
                        interrupts: interrupt,
                    });
                }
                Call::Preempt(number) => {
                    assert_eq!(self.asked, None, "two requests");
                    assert!(!self.ring.is_empty(), "it has nothing to do");
                    self.asked = Some(number);
                }
                Call::Build { .. }
                | Call::Cancel(..)
                | Call::Doorbell
                | Call::Retire { .. }
                | Call::Reset => (),
            }
        }
    }

    /// The driver has taken these, oldest first: all that the engine has ended.
    fn finish(&mut self, finished: &[Work]) {
        let news: Vec<_> = self.news.drain(..).map(|given| given.packet).collect();
        assert_eq!(finished, news);
        news.into_iter()
            .for_each(|packet| self.end(packet, Fate::Ended));
    }

    /// These were taken out as guilty: all of the context whose packet was at the head, that first.
    fn convict(&mut self, guilty: Vec<(Work, bool)>) {
        let head = self.ring.front().expect("a head").packet;
        let of_it = self.ring.iter().map(|given| given.packet);
        let expected = of_it.filter(|packet| packet.context == head.context);
        let expected: Vec<_> = expected.map(|packet| (packet, packet == head)).collect();
        assert_eq!(guilty, expected);
        self.close(queue_of(&head));
        for (packet, _) in guilty {
            self.end(packet, Fate::Cut);
        }
    }

    /// Nothing more of this queue is started.
    fn close(&mut self, queue: usize) {
        for packet in core::mem::take(&mut self.queues[queue]) {
            self.end(packet, Fate::Cut);
        }
    }

    /// Does this; whether it can be done now: if not, nothing has changed.
    fn step(&mut self, op: Op) -> bool {
        match op {
            Op::Start(queue) => {
                let Some(packet) = self.queues[queue].front().copied() else {
                    return false;
                };
                let fits = self.node.fits(&self.hw, &packet.task());
                assert_eq!(fits, !self.node.is_full());
                if !fits || self.node.asked().is_some() {
                    return false;
                }
                self.queues[queue].pop_front();
                start(&mut self.node, &self.hw, packet).expect("room");
                assert_eq!(self.node.notify(&self.hw), Ok(true));
            }
            Op::End => {
                if self.stopped.is_some() {
                    return false;
                }
                let Some(given) = self.ring.pop_front() else {
                    return false;
                };
                self.hw.reported.set(given.id);
                self.news.push_back(given);
            }
            Op::Look => {
                let mut finished = Vec::new();
                let complete = self.node.complete(&self.hw, |packet| finished.push(packet));
                assert_eq!(complete, Ok(()));
                self.finish(&finished);
            }
            Op::Ask => {
                let due = self.asked.is_none() && !self.ring.is_empty();
                assert_eq!(self.node.preempt(&self.hw), Ok(due));
                assert_eq!(self.node.answer(&self.hw), Ok(self.hw.preempted.get()));
            }
            Op::Stop(stop) => {
                let head = self.ring.front().map(|given| given.packet);
                let can_be = stop == Stop::Between || head.is_some_and(|head| !is_own(&head));
                let Some(fence) = self.asked.filter(|_| self.stopped.is_none() && can_be) else {
                    return false;
                };
                self.stopped = Some(stop);
                self.hw.preempted.set(Some(Preemption {
                    fence,
                    completed: self.hw.reported.get(),
                    stop,
                }));
            }
            Op::TakeBack(blames) => return self.take_back(blames),
            Op::Reset(blames) => return self.reset(blames),
            Op::Restart => {
                self.step(Op::Look);
                self.restart();
            }
        }
        self.see();
        true
    }

    fn take_back(&mut self, blames: bool) -> bool {
        let Some(stop) = self.stopped else {
            return false;
        };
        let head = self.ring.front().copied();
        if blames && (head.is_none() || self.node.blameless >= BLAMELESS) {
            return false;
        }
        let answer = self
            .node
            .answer(&self.hw)
            .expect("a miniport")
            .expect("one");
        let cause = Cause::Endless(head.map_or(0, |head| head.id));
        let (mut done, mut guilty, mut back) = (Vec::new(), Vec::new(), Vec::new());
        let mut taken = |packet, is_it| guilty.push((packet, is_it));
        let blame: Option<Blame<'_, Work>> = blames.then_some((&cause, &mut taken));
        let withdrawn = |id, packet, stop| back.push((id, packet, stop));
        let finished = |packet| done.push(packet);
        let result = self
            .node
            .withdraw(&self.hw, answer, finished, blame, withdrawn);
        assert_eq!(result, Ok(()));
        self.finish(&done);
        let before = self.ring.clone();
        let is_guilty = blames && stop != Stop::Between;
        if is_guilty {
            self.convict(guilty);
        } else {
            assert_eq!(guilty, []);
        }
        let cut = head.filter(|_| is_guilty).map(|head| head.packet.context);
        let rest = before.iter().filter(|given| !is_own(&given.packet));
        let rest = rest.filter(|given| Some(given.packet.context) != cut);
        let rest = rest.map(|given| match Some(given) == head.as_ref() {
            true => (given.id, given.packet, stop),
            false => (given.id, given.packet, Stop::Between),
        });
        assert_eq!(back, rest.collect::<Vec<_>>());
        for (_, packet, _) in back.into_iter().rev() {
            self.queues[queue_of(&packet)].push_front(packet);
        }
        self.see();
        let own = before.iter().filter(|given| is_own(&given.packet));
        let own = own.map(|given| (given.id, given.packet));
        assert!(own.eq(self.ring.iter().map(|given| (given.id, given.packet))));
        self.hw.preempted.set(None);
        (self.asked, self.stopped) = (None, None);
        _ = self.node.notify(&self.hw);
        self.see();
        true
    }

    fn reset(&mut self, blames: bool) -> bool {
        let head = self.ring.front().copied();
        let cause = match (blames, head) {
            (true, None) => return false,
            (true, Some(head)) => Cause::Endless(head.id),
            (false, _) if self.node.blameless >= BLAMELESS => return false,
            (false, _) => Cause::Endless(u64::MAX),
        };
        self.step(Op::Look);
        let mut guilty = Vec::new();
        let verdict = self
            .node
            .blame(&cause, |packet, is_it| guilty.push((packet, is_it)));
        let own = head.is_some_and(|head| is_own(&head.packet));
        assert_eq!(verdict == Verdict::Broken, blames && own);
        if verdict == Verdict::Broken {
            assert_eq!(guilty, []);
            self.restart();
            return true;
        }
        let before = self.ring.clone();
        match blames {
            true => self.convict(guilty),
            false => assert_eq!(guilty, []),
        }
        self.hw.preempted.set(None);
        let left = before.iter().map(|given| given.packet);
        let left =
            left.filter(|packet| !self.fates.contains_key(&(queue_of(packet), packet.number)));
        let (own, others): (Vec<_>, Vec<_>) = left.partition(is_own);
        let replayed = self.node.replay(&self.hw);
        assert_eq!(replayed, Ok(!own.is_empty() || !others.is_empty()));
        self.see();
        let ring = self.ring.iter().map(|given| given.packet);
        assert!(ring.eq(own.into_iter().chain(others)));
        true
    }

    fn restart(&mut self) {
        self.hw.reported.set(0);
        self.hw.preempted.set(None);
        self.node.restart(&self.hw).expect("a miniport");
        self.see();
        let (all, from) = ([PageRange::new(0, 8)], MultipassOffset::default());
        let purge = self.node.purge(&self.hw, 1, &all, from).expect("room");
        self.hw.reported.set(purge.fence);
        assert_eq!(self.node.is_purged(&self.hw, &purge), Ok(true));
        // That is no packet.
        self.hw.calls.take();
        let mut left = Vec::new();
        self.node.abandon(|_, packet| left.push(packet));
        let (own, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_own);
        others
            .into_iter()
            .for_each(|packet| self.end(packet, Fate::Cut));
        (1..self.queues.len()).for_each(|queue| self.close(queue));
        for packet in own.into_iter().rev() {
            self.queues[0].push_front(packet);
        }
    }

    /// What is so at any time.
    fn check(&self) {
        let given = self.news.iter().chain(&self.ring);
        let there = given.clone().map(|given| (given.id, given.packet));
        assert!(there.eq(self.node.iter().map(|(id, packet)| (id, *packet))));
        assert_eq!(self.node.asked(), self.asked);
        let told = given.clone().any(|given| given.interrupts);
        assert!(told || !self.node.is_full(), "a ring that ends untold");
        // What a queue has in the ring and what is left of it are in the order in which they came.
        for (queue, rest) in self.queues.iter().enumerate() {
            let started = given.clone().map(|given| given.packet);
            let started = started.filter(|packet| queue_of(packet) == queue);
            let numbers = started.chain(rest.iter().copied());
            let order: Vec<u32> = numbers.map(|packet| packet.number % FOLLOWED).collect();
            assert!(order.is_sorted(), "{queue}: {order:?}");
            let ended = self.fates.keys().filter(|(other, _)| *other == queue);
            let ended = ended.map(|(_, number)| number % FOLLOWED).max();
            assert!(
                order.iter().all(|left| Some(*left) > ended),
                "{queue}: {order:?}"
            );
        }
    }

    /// Has all that is left come to its end.
    fn drain(&mut self, all: usize) {
        while !self.node.is_empty() || self.fates.len() < all {
            let mut goes_on = !self.news.is_empty();
            self.step(Op::Look);
            for op in [
                Op::Stop(Stop::Between),
                Op::TakeBack(false),
                Op::Start(0),
                Op::Start(1),
                Op::Start(2),
                Op::End,
            ] {
                goes_on |= self.step(op);
            }
            self.check();
            assert!(goes_on, "it is stuck: {:?}", self.fates);
        }
    }
}

/// Says by which way a state was come to that is not as it should be.
struct Way<'a>(usize, &'a [Op]);

impl Drop for Way<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("a ring of {}: {:?}", self.0, self.1);
        }
    }
}

/// Goes to all states of a node of `capacity` with `many` packets in each queue; how many.
fn explore(capacity: usize, many: u32) -> usize {
    let mut found = HashSet::new();
    let mut open = VecDeque::from([Vec::new()]);
    while let Some(way) = open.pop_front() {
        let mut there = None;
        for op in OPS {
            let mut on: Vec<Op> = way.clone();
            on.push(op);
            let told = Way(capacity, &on);
            let mut world = there
                .take()
                .unwrap_or_else(|| World::at(capacity, many, &way));
            if !world.step(op) {
                there = Some(world);
                continue;
            }
            if found.insert(world.key()) {
                world.check();
                world.drain(3 * many as usize);
                drop(told);
                open.push_back(on);
            }
        }
    }
    found.len()
}

#[test]
fn whatever_happens_each_packet_ends_once_and_in_order() {
    for capacity in 1..=3 {
        // It goes further than what was written here by hand.
        assert!(explore(capacity, 2) > 1000);
    }
}
