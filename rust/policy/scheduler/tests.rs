// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node with contexts in virtual time, exhaustively for few contexts and with random ones.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::mem::replace;
use std::vec::Vec;

const LIMITS: Limits = Limits {
    quantum: 100,
    patience: 1000,
    protection: 10,
};

const NONE: Levels = Levels(0);

/// A context whose work never ends, in packets of `packet` ticks.
#[derive(Clone, Debug)]
struct Client {
    level: Level,
    /// Whose it is, and how important it is to that.
    process: (usize, InProcess),
    packet: u64,
    /// Of the packet that it is in the midst of.
    rest: u64,
    turn: Turn,
    used: u64,
}

fn client(priority: i32, packet: u64) -> Client {
    Client {
        level: Level::of(priority).expect("a level"),
        process: (0, InProcess::default()),
        packet,
        rest: packet,
        turn: Turn::default(),
        used: 0,
    }
}

/// The same, of process number `process`, and with this priority there.
fn within(process: usize, in_process: i32, packet: u64) -> Client {
    Client {
        process: (process, InProcess::of(in_process).expect("a priority")),
        ..client(0, packet)
    }
}

/// Where in `lists` that is of which nothing is more important to the process of `first`.
fn superior(
    clients: &[Client],
    lists: [&VecDeque<usize>; 2],
    first: usize,
) -> Option<(usize, usize)> {
    let (process, least) = clients[first].process;
    let listed = lists.into_iter().enumerate();
    let listed = listed.flat_map(|(list, all)| all.iter().enumerate().map(move |at| (list, at)));
    let more = listed.filter(|(_, (_, n))| {
        let (other, in_process) = clients[**n].process;
        other == process && in_process > least
    });
    let place = |(list, (at, _))| (list, at);
    more.max_by_key(|(list, (at, n))| (clients[**n].process.1, Reverse((*list, *at))))
        .map(place)
}

/// Has a node that looks every `look` ticks work for `clients`, which all always have work, for
/// `time` ticks; `preempts`: whether it can be preempted within a packet. What each has used.
fn run(mut clients: Vec<Client>, time: u64, look: u64, preempts: bool) -> Vec<u64> {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut ready: Vec<VecDeque<usize>> = std::vec![VecDeque::new(); LEVELS];
    let mut over = ready.clone();
    for (n, client) in clients.iter().enumerate() {
        ready[client.level.index()].push_back(n);
        scheduler.wait(client.level);
    }
    let mut now = 0;
    while now < time {
        let (level, starving) = scheduler.next(NONE, now).expect("all have work");
        let (list, over) = (&mut ready[level.index()], &mut over[level.index()]);
        let Some(mut n) = list.pop_front() else {
            std::mem::swap(list, over);
            let rounds = list.iter().map(|n| clients[*n].turn.rounds(&LIMITS)).min();
            let rounds = rounds.expect("they wait");
            list.iter()
                .for_each(|n| clients[*n].turn.renew(rounds, &LIMITS));
            continue;
        };
        if clients[n].turn.is_over() {
            over.push_back(n);
            continue;
        }
        let superior = superior(&clients, [&*list, &*over], n);
        let passed = superior.filter(|_| clients[n].turn.is_passed());
        if let Some((which, at)) = passed {
            // A place and a turn for another.
            let first = replace(&mut [list, over][which][at], n);
            let (mut turn, mut others) = (clients[n].turn, clients[first].turn);
            turn.lend(&mut others);
            (clients[n].turn, clients[first].turn) = (turn, others);
            n = first;
        }
        scheduler.take(level);
        let spared = superior.is_some() && passed.is_none();
        let protected = starving || spared || clients[n].turn.is_protected();
        let mut ran = 0;
        let preempted = loop {
            let step = look.min(clients[n].rest);
            (now, ran, clients[n].rest) = (now + step, ran + step, clients[n].rest - step);
            if clients[n].rest == 0 {
                clients[n].rest = clients[n].packet;
                break false;
            }
            let left = clients[n].turn.left();
            let running = Running {
                level,
                own: None,
                ran,
                left,
                stint: ran,
                protected,
                waits: false,
                outranked: false,
            };
            if preempts && scheduler.preempts(running, Levels::default(), now) {
                break true;
            }
        };
        clients[n].turn.charge(ran, ran, &LIMITS);
        scheduler.served(level, now);
        clients[n].used += ran;
        let (turn, list) = (&mut clients[n].turn, &mut ready[level.index()]);
        if preempted {
            turn.preempted(ran, &LIMITS);
            list.push_front(n);
        } else {
            turn.completed();
            list.push_back(n);
        }
        scheduler.wait(level);
    }
    clients.iter().map(|client| client.used).collect()
}

#[test]
fn levels_are_wddms_priorities() {
    assert_eq!(Level::of(0), Some(Level::NORMAL));
    let levels: Vec<_> = (-9..=9).map(Level::of).collect();
    assert_eq!(levels.iter().flatten().count(), 15);
    assert!(levels.iter().flatten().is_sorted());
    assert!(levels.iter().flatten().all(|level| *level < Level::SYSTEM));
    assert_eq!([Level::of(-8), Level::of(8)], [None, None]);
    for priority in -7..=7 {
        assert_eq!(Level::of(priority).map(Level::priority), Some(priority));
    }
    assert_eq!([Level::of(i32::MIN), Level::of(i32::MAX)], [None, None]);
}

#[test]
fn equals_have_equal_shares_whatever_their_packets() {
    for (preempts, packets) in [(true, 1..=2000), (false, 1..=1500)] {
        for packet in packets.step_by(37) {
            let used = run(
                std::vec![client(0, 3), client(0, packet)],
                200_000,
                7,
                preempts,
            );
            let (less, more) = (used[0].min(used[1]), used[0].max(used[1]));
            assert!(
                less * 103 >= more * 100,
                "packets of 3 and {packet}: {used:?}"
            );
        }
    }
}

/// Hundreds of short ones fit into a turn, and are as much as one that fills it.
#[test]
fn short_packets_are_no_disadvantage() {
    let limits = Limits {
        quantum: 200_000,
        patience: 20_000_000,
        protection: 12_500,
    };
    let mut turns = [Turn::default(); 2];
    let mut used = [0_u64; 2];
    for _ in 0..100 {
        turns.iter_mut().for_each(|turn| turn.renew(1, &limits));
        for ((turn, used), packet) in turns.iter_mut().zip(&mut used).zip([60, 200_000]) {
            while !turn.is_over() {
                turn.charge(packet, packet, &limits);
                *used += packet;
            }
        }
    }
    let [short, long] = used;
    assert!(
        short * 103 >= long * 100 && long * 103 >= short * 100,
        "{used:?}"
    );
}

#[test]
fn jains_index_of_many_is_near_1() {
    let clients = [1, 10, 99, 100, 101, 500, 1000, 5000].map(|packet| client(2, packet));
    let used = run(clients.to_vec(), 1_000_000, 7, true);
    let (sum, squares) = used.iter().fold((0.0, 0.0), |(sum, squares), used| {
        (sum + *used as f64, squares + (*used as f64).powi(2))
    });
    let index = sum * sum / (used.len() as f64 * squares);
    assert!(index >= 0.99, "{index}: {used:?}");
}

#[test]
fn a_higher_level_has_all_but_what_keeps_the_lower_alive() {
    for low in [1, 50, 100_000] {
        let used = run(std::vec![client(-7, low), client(7, 20)], 100_000, 7, true);
        assert!(used[0] > 0, "it starves: {used:?}");
        assert!(used[1] > 95_000, "{used:?}");
    }
}

#[test]
fn three_levels_get_served_in_order() {
    let used = run(
        std::vec![client(-3, 30), client(0, 30), client(3, 30)],
        100_000,
        7,
        true,
    );
    assert!(used[2] > 9 * (used[0] + used[1]), "{used:?}");
    assert!(used[0] > 0 && used[1] > 0, "{used:?}");
}

/// The turns of all of a process are the most important one's, and nobody else's.
#[test]
fn a_process_shares_its_turns_as_it_likes() {
    for (preempts, packet) in [(true, 3), (true, 1000), (false, 3), (false, 70)] {
        let clients = [
            within(0, -7, packet),
            within(1, 0, 20),
            within(0, 7, packet),
            within(0, 7, packet),
            within(1, 0, 20),
        ];
        let used = run(clients.to_vec(), 500_000, 7, preempts);
        assert!((1..=15_000).contains(&used[0]), "{used:?}");
        // Its own are equals, and have three shares of five.
        let (less, more) = (used[2].min(used[3]), used[2].max(used[3]));
        assert!(less * 103 >= more * 100, "{used:?}");
        for other in [used[1], used[4]] {
            assert!(other.abs_diff(100_000) <= 3_000, "{used:?}");
        }
    }
}

/// Others may wait for it.
#[test]
fn who_is_passed_over_is_served_in_the_end() {
    let mut turn = Turn::default();
    for _ in 0..2 {
        assert!((0..MAX_PASSES).all(|_| turn.is_passed()));
        assert!(!turn.is_passed());
    }
    turn.is_passed();
    turn.charge(1, 1, &LIMITS);
    assert!((0..MAX_PASSES).all(|_| turn.is_passed()));
}

/// What is lent is what was there.
#[test]
fn turns_are_lent_whole() {
    let (mut one, mut other) = (Turn::default(), Turn::default());
    one.renew(1, &LIMITS);
    other.charge(30, 30, &LIMITS);
    (0..8).for_each(|_| one.preempted(0, &LIMITS));
    let (left, others) = (one.left(), other.left());
    one.lend(&mut other);
    assert_eq!((one.left(), other.left()), (others, left));
    // Who was preempted is so still.
    assert!(one.is_protected() && !other.is_protected());
}

#[test]
fn who_is_outranked_makes_room() {
    let [low, level, high] = [-1, 0, 1].map(|priority| Level::of(priority).expect("a level"));
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.wait(level);
    let running = Running {
        level,
        own: None,
        ran: 1,
        left: 50,
        stint: 1,
        protected: false,
        waits: false,
        outranked: true,
    };
    assert!(scheduler.preempts(running, Levels::default(), 0));
    let others = [
        Running {
            outranked: false,
            ..running
        },
        Running {
            protected: true,
            ..running
        },
        // Nobody of that level waits any more.
        Running {
            level: high,
            ..running
        },
    ];
    for other in others {
        assert!(
            !scheduler.preempts(other, Levels::default(), 0),
            "{other:?}"
        );
    }
    scheduler.leave(level);
    assert!(!scheduler.preempts(running, Levels::default(), 0));
    assert!(!scheduler.preempts(running, [low].into_iter().collect(), 0));
    assert!(scheduler.preempts(running, [level].into_iter().collect(), 0));
}

#[test]
fn priorities_within_a_process_are_wddms() {
    let all: Vec<_> = (-9..=9).filter_map(InProcess::of).collect();
    assert_eq!(all.len(), 15);
    assert!(all.is_sorted());
    assert_eq!(InProcess::of(0), Some(InProcess::default()));
    assert!((-7..=7).all(|n| InProcess::of(n).map(InProcess::priority) == Some(n)));
    assert_eq!(
        [
            InProcess::of(i32::MIN),
            InProcess::of(i32::MAX),
            InProcess::of(256)
        ],
        [None; 3]
    );
}

/// All states of two levels and a running context of a third.
#[test]
fn who_has_to_make_room() {
    let levels = [-1, 0, 1].map(|priority| Level::of(priority).expect("a level"));
    for (running, waiting, queued) in (0..27).map(|n| (n % 3, n / 3 % 3, n / 9)) {
        for (ran, left, stint, protected) in [
            (0, 1, 0, false),
            (5, 1, 5, false),
            (5, 5, 5, true),
            (20, 5, 20, true),
            // It was over before.
            (0, 0, 9, false),
            (5, -3, 9, false),
            (0, 0, 10, false),
            (5, -3, 10, false),
        ] {
            let mut scheduler = Scheduler::new(LIMITS);
            scheduler.wait(levels[waiting]);
            let work = Running {
                level: levels[running],
                own: None,
                ran,
                left,
                stint,
                protected,
                waits: false,
                outranked: false,
            };
            let others = waiting.max(queued);
            let behind = [levels[queued]].into_iter().collect();
            let over = ran as i64 >= left && (left > 0 || stint >= LIMITS.protection);
            let alone = protected && ran < LIMITS.protection;
            let expected = !alone && (others > running || (others == running && over));
            let preempts = scheduler.preempts(work, behind, LIMITS.patience);
            assert_eq!(preempts, expected, "{work:?} {waiting} {queued}");
            // Who waits for long has its turn, when that of who runs is over.
            let preempts = scheduler.preempts(work, behind, LIMITS.patience + 1);
            let starving = waiting.min(queued) < running && over && !alone;
            assert_eq!(
                preempts,
                expected || starving,
                "{work:?} {waiting} {queued}"
            );
            let waits = Running {
                waits: true,
                ..work
            };
            assert!(
                scheduler.preempts(waits, Levels::default(), 0),
                "{work:?} {waiting}"
            );
            assert!(
                !Scheduler::new(LIMITS).preempts(waits, Levels::default(), 0),
                "{work:?}"
            );
            let system = Running {
                level: Level::SYSTEM,
                ..work
            };
            assert!(!scheduler.preempts(system, behind, 10_000));
        }
    }
}

/// More work of the context that runs is not somebody else's.
#[test]
fn nobody_makes_room_for_himself() {
    let levels = [-1, 0, 1].map(|priority| Level::of(priority).expect("a level"));
    for (level, own) in (0..9).map(|n| (levels[n % 3], levels[n / 3])) {
        for waits in [false, true] {
            let mut scheduler = Scheduler::new(LIMITS);
            let work = Running {
                level,
                own: Some(own),
                ran: 1000,
                left: 1,
                stint: 1000,
                protected: false,
                waits,
                outranked: false,
            };
            scheduler.wait(own);
            let late = LIMITS.patience + 1;
            assert!(
                !scheduler.preempts(work, Levels::default(), late),
                "{work:?}"
            );
            assert!(!scheduler.is_contended(work, Levels::default()), "{work:?}");
            scheduler.wait(own);
            assert!(scheduler.is_contended(work, Levels::default()), "{work:?}");
            assert!(
                scheduler.preempts(work, Levels::default(), late),
                "{work:?}"
            );
        }
    }
}

/// Also what is in the ring already, behind what runs, and is taken out with it.
#[test]
fn what_is_queued_behind_is_served_when_it_has_waited() {
    let [low, high] = [-1, 1].map(|priority| Level::of(priority).expect("a level"));
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.wait(low);
    scheduler.take(low);
    let running = Running {
        level: high,
        own: None,
        ran: LIMITS.patience,
        left: 100,
        stint: LIMITS.patience,
        protected: false,
        waits: false,
        outranked: false,
    };
    let queued = [low].into_iter().collect();
    assert!(!scheduler.preempts(running, queued, LIMITS.patience));
    let now = LIMITS.patience + 1;
    assert!(scheduler.preempts(running, queued, now));
    // More of it is no reason to serve it again, nor to have it wait for longer.
    scheduler.wait(low);
    scheduler.wait(high);
    assert_eq!(scheduler.next(queued, now), Some((high, false)));
    assert!(scheduler.preempts(running, queued, now));
    scheduler.leave(low);
    scheduler.leave(high);
    // Both are withdrawn, and only who ran was served.
    scheduler.served(high, now);
    scheduler.wait(low);
    scheduler.wait(high);
    assert_eq!(scheduler.next(NONE, now), Some((low, true)));
    scheduler.take(low);
    assert_eq!(scheduler.next(NONE, now), Some((high, false)));
}

/// Who waits at four levels, the system's the last.
#[derive(Clone, Copy)]
struct Waiting {
    scheduler: Scheduler,
    now: u64,
    /// How many contexts wait at each level.
    many: [u32; 4],
    /// Levels of what is in the ring, the oldest last.
    ring: [Option<usize>; EVENTS],
    /// Since when nobody of the level was served.
    since: [u64; 4],
    /// How often others were since it has waited for too long.
    overtaken: [u32; 4],
    /// Whether who was served last was so for that.
    aged: bool,
}

/// What changes who waits.
#[derive(Clone, Copy, Debug)]
enum Event {
    Wait(usize),
    /// Whose turn it is goes into the ring, and does not run yet.
    Take,
    /// All of the ring is withdrawn, and has not run.
    Withdraw,
    /// The engine works for longer than anybody is patient on what is there already.
    Work,
    /// What is in the ring, or whose turn it is, runs for so long, and waits again or not.
    Serve(u64, bool),
}

/// How many there are in a sequence.
const EVENTS: usize = 7;

impl Waiting {
    const EVENTS: [Event; 11] = [
        Event::Wait(0),
        Event::Wait(1),
        Event::Wait(2),
        Event::Wait(3),
        Event::Take,
        Event::Withdraw,
        Event::Work,
        Event::Serve(1, false),
        Event::Serve(1, true),
        Event::Serve(LIMITS.patience + 1, false),
        Event::Serve(LIMITS.patience + 1, true),
    ];

    fn wait(&mut self, level: usize) {
        if self.many[level] == 0 && !self.is_queued(level) {
            (self.since[level], self.overtaken[level]) = (self.now, 0);
            self.scheduler.was_idle(Self::levels()[level], self.now);
        }
        self.many[level] += 1;
        self.scheduler.wait(Self::levels()[level]);
    }

    fn levels() -> [Level; 4] {
        let level = |priority| Level::of(priority).expect("a level");
        [level(-7), level(0), level(7), Level::SYSTEM]
    }

    fn is_queued(&self, level: usize) -> bool {
        self.ring.contains(&Some(level))
    }

    fn queued(&self) -> Levels {
        let queued = self.ring.iter().flatten();
        queued.map(|level| Self::levels()[*level]).collect()
    }

    fn has_waited(&self, level: usize) -> bool {
        self.now - self.since[level] > LIMITS.patience
    }

    /// What is in the ring comes first.
    fn starves(&self, level: usize) -> bool {
        self.many[level] > 0 && !self.is_queued(level) && self.has_waited(level)
    }

    fn take(&mut self) {
        let next = self.scheduler.next(self.queued(), self.now);
        let Some(highest) = (0..4).rev().find(|level| self.many[*level] > 0) else {
            assert_eq!(next, None);
            return;
        };
        let (level, aged) = next.expect("somebody waits");
        let is_it = |it: &Level| *it == level;
        let level = Self::levels().iter().position(is_it).expect("one of them");
        let starving = (0..highest).filter(|level| self.starves(*level));
        let longest = starving.min_by_key(|level| self.since[*level]);
        let expected = longest.filter(|_| !self.aged);
        assert_eq!(
            (level, aged),
            (expected.unwrap_or(highest), expected.is_some())
        );
        self.scheduler.take(Self::levels()[level]);
        self.many[level] -= 1;
        self.aged = level < highest;
        self.ring.rotate_right(1);
        self.ring[0] = Some(level);
    }

    fn serve(&mut self, ticks: u64, again: bool) {
        if self.ring.iter().flatten().next().is_none() {
            self.take();
        }
        let Some(level) = self.ring.iter_mut().rev().find_map(Option::take) else {
            return;
        };
        self.now += ticks;
        self.scheduler.served(Self::levels()[level], self.now);
        (self.since[level], self.overtaken[level]) = (self.now, 0);
        for other in (0..4).filter(|other| *other != level) {
            self.overtaken[other] += u32::from(self.starves(other));
            // Each lower level once, and the highest after each.
            assert!(self.overtaken[other] <= 6, "{other} starves");
        }
        if again {
            self.wait(level);
        }
    }

    /// Somebody of the third level makes room for who has waited, in the ring or not.
    fn expect_room(&self) {
        let running = Running {
            level: Self::levels()[2],
            own: None,
            ran: LIMITS.protection,
            left: 0,
            stint: LIMITS.protection,
            protected: false,
            waits: false,
            outranked: false,
        };
        let mut waiting = (0..4).filter(|level| self.many[*level] > 0 || self.is_queued(*level));
        let expected = waiting.any(|level| level >= 2 || self.has_waited(level));
        let preempts = self.scheduler.preempts(running, self.queued(), self.now);
        assert_eq!(preempts, expected);
    }

    /// All that can come, so many events long.
    fn go_on(self, events: usize) {
        for event in Self::EVENTS {
            let mut then = self;
            match event {
                Event::Wait(level) => then.wait(level),
                Event::Take => then.take(),
                Event::Withdraw => {
                    for level in then.ring.iter_mut().filter_map(Option::take) {
                        then.many[level] += 1;
                        then.scheduler.wait(Self::levels()[level]);
                    }
                }
                Event::Work => then.now += LIMITS.patience + 1,
                Event::Serve(ticks, again) => then.serve(ticks, again),
            }
            let waits = then.many.iter().any(|many| *many > 0);
            assert_eq!(then.scheduler.is_waited_for(), waits);
            then.expect_room();
            if events > 1 {
                then.go_on(events - 1);
            }
        }
    }
}

/// All sequences of seven events.
#[test]
fn whoever_comes_the_highest_is_next_and_nobody_waits_for_ever() {
    let none = Waiting {
        scheduler: Scheduler::new(LIMITS),
        now: 0,
        many: [0; 4],
        ring: [None; EVENTS],
        since: [0; 4],
        overtaken: [0; 4],
        aged: false,
    };
    none.go_on(EVENTS);
}

/// However many rounds its packets of no ticks take, a turn ends; and however much it owes, it has
/// one.
#[test]
fn turns_end_and_begin() {
    let limits = Limits {
        quantum: 2 * MAX_PACKETS,
        ..LIMITS
    };
    for owed in [0, 1, 8191, 8192, 8193, 640_000, u64::MAX] {
        let mut turn = Turn::default();
        turn.charge(owed, owed, &limits);
        let mut last = turn;
        last.renew(turn.rounds(&limits) - 1, &limits);
        assert!(last.is_over(), "{owed}: {last:?}");
        turn.renew(turn.rounds(&limits), &limits);
        assert!(!turn.is_over(), "{owed}: {turn:?}");
    }
    let mut turn = Turn::default();
    assert!(turn.is_over());
    // Nor is what it did not use added up.
    for _ in 0..3 {
        turn.renew(1, &limits);
        assert_eq!(turn.left(), 8192);
        let packets = (0..).take_while(|_| {
            turn.charge(0, 0, &limits);
            !turn.is_over()
        });
        assert_eq!(packets.count(), 4095);
    }
}

/// As many as the one needs that owes the least; and not before each has used its own up.
#[test]
fn rounds_are_of_all_that_have_work() {
    let owing = |ticks| {
        let mut turn = Turn::default();
        turn.charge(ticks, ticks, &LIMITS);
        turn
    };
    let of = |in_ring: &[Turn], waiting: &[Turn]| {
        let [in_ring, waiting] = [in_ring, waiting].map(|turns| turns.iter().copied());
        Round::of(in_ring, waiting, &LIMITS)
    };
    assert_eq!(of(&[], &[owing(250)]), Round::All(3));
    assert_eq!(of(&[], &[owing(250), owing(470)]), Round::All(3));
    assert_eq!(of(&[owing(199)], &[owing(250)]), Round::All(2));
    let mut begun = owing(1);
    begun.renew(1, &LIMITS);
    assert!(!begun.is_over());
    assert_eq!(
        of(&[owing(1), begun], &[owing(99), owing(250)]),
        Round::Behind(0)
    );
    // They owe less, as much as each other, and their turns are over still.
    let mut waiting = [owing(250), owing(470)];
    assert_eq!(of(&[begun], &waiting), Round::Behind(2));
    waiting.iter_mut().for_each(|turn| turn.renew(2, &LIMITS));
    assert_eq!(waiting.map(|turn| turn.left()), [-50, -270]);
}

/// Also a while after a long one, and if what has ended is seen at once.
#[test]
fn long_packets_are_remembered() {
    let is_long = |used: &[u64]| {
        let mut turn = Turn::default();
        used.iter()
            .for_each(|ticks| turn.charge(*ticks, *ticks, &LIMITS));
        turn.is_long(&LIMITS)
    };
    let quarter = LIMITS.quantum / 4;
    assert!(!is_long(&[]) && !is_long(&[quarter - 1; 9]));
    assert!(is_long(&[quarter]) && is_long(&[0, quarter]));
    assert!(is_long(&[8 * quarter, 0, 0, 0]));
    assert!(!is_long(&[8 * quarter, 0, 0, 0, 0]));
}

/// What others wanted is owed, at whichever level it was, and what nobody else wanted is not; what
/// is left of a turn stays behind.
#[test]
fn who_is_moved_owes_what_others_wanted() {
    let charged = |before, after| {
        let mut turn = Turn::default();
        turn.renew(1, &LIMITS);
        turn.moved(150, before, &LIMITS);
        turn.moved(150, 1000, &LIMITS);
        turn.charge(190, after, &LIMITS);
        (turn.left(), turn)
    };
    assert_eq!(charged(1000, 0).0, -50);
    assert_eq!(charged(0, 1000).0, -40);
    assert_eq!(charged(1000, 1000).0, -90);
    assert_eq!(charged(0, 0).0, 0);
    let (_, mut turn) = charged(0, 0);
    turn.renew(1, &LIMITS);
    turn.charge(30, 30, &LIMITS);
    assert_eq!(turn.left(), 70, "the next packet is another one");
    turn.moved(0, 1000, &LIMITS);
    assert!(turn.is_over());
    assert_eq!(turn.left(), 0);
}

/// What nobody else wanted takes from a turn, and is not owed.
#[test]
fn who_is_alone_owes_nothing() {
    let mut turn = Turn::default();
    turn.renew(1, &LIMITS);
    turn.charge(LIMITS.quantum * 9, 0, &LIMITS);
    assert_eq!(turn.left(), 0);
    turn.charge(LIMITS.quantum * 9, 2, &LIMITS);
    assert_eq!(turn.left(), -2);
    turn.charge(3, LIMITS.quantum, &LIMITS);
    assert_eq!(turn.left(), -5, "no more than what it used");
    let level = Level::of(0).expect("a level");
    let mut scheduler = Scheduler::new(LIMITS);
    assert_eq!(scheduler.crowded(level, 7), 7);
    scheduler.was_alone(level, 5);
    assert_eq!(scheduler.crowded(level, 7), 2);
}

#[test]
fn the_system_goes_first_and_starves_nobody() {
    let mut scheduler = Scheduler::new(LIMITS);
    let low = Level::of(-7).expect("a level");
    scheduler.wait(low);
    scheduler.wait(Level::SYSTEM);
    let soon = LIMITS.patience;
    assert_eq!(scheduler.next(NONE, soon), Some((Level::SYSTEM, false)));
    assert_eq!(scheduler.next(NONE, soon + 1), Some((low, true)));
    let working = Running {
        level: low,
        own: None,
        ran: 0,
        left: 100,
        stint: 0,
        protected: false,
        waits: false,
        outranked: false,
    };
    assert!(scheduler.preempts(working, Levels::default(), 0));
    let protected = Running {
        protected: true,
        ..working
    };
    assert!(!scheduler.preempts(protected, Levels::default(), 0));
    scheduler.take(Level::SYSTEM);
    assert_eq!(scheduler.next(NONE, 0), Some((low, false)));
    scheduler.take(low);
    assert_eq!(scheduler.next(NONE, 0), None);
}

#[test]
fn who_never_gets_anywhere_is_protected() {
    let mut turn = Turn::default();
    for _ in 0..MAX_STRIKES {
        assert!(!turn.is_protected());
        turn.preempted(LIMITS.protection - 1, &LIMITS);
    }
    assert!(turn.is_protected());
    turn.preempted(LIMITS.protection, &LIMITS);
    assert!(!turn.is_protected());
    // Nor is who completes packets, however short they are.
    for _ in 0..2 * MAX_STRIKES {
        turn.preempted(0, &LIMITS);
        turn.completed();
        assert!(!turn.is_protected());
    }
}

proptest! {
    #[test]
    fn nobody_starves(
        clients in prop::collection::vec((-7..=7, 1u64..3000), 1..8),
        look in 1u64..50,
        preempts: bool,
    ) {
        let made = clients.iter().map(|(priority, packet)| client(*priority, *packet));
        let used = run(made.collect(), 300_000, look, preempts);
        prop_assert!(used.iter().all(|used| *used > 0), "{:?} {:?}", clients, used);
    }

    #[test]
    fn whatever_is_told_nothing_breaks(
        calls in prop::collection::vec((0u8..4, -7..=7, any::<u64>(), any::<u64>()), 0..40),
        limits in any::<[u64; 3]>(),
    ) {
        let [quantum, patience, protection] = limits;
        let limits = Limits { quantum, patience, protection };
        let mut scheduler = Scheduler::new(limits);
        let mut turn = Turn::default();
        for (call, priority, now, ran) in calls {
            let level = Level::of(priority).expect("a level");
            match call {
                0 if ran % 2 == 0 => scheduler.was_idle(level, now),
                0 => scheduler.wait(level),
                1 if ran % 2 == 0 => scheduler.served(level, now),
                1 if ran % 3 == 0 => scheduler.leave(level),
                1 => scheduler.take(level),
                2 if ran % 2 == 0 => turn.moved(ran, now, &limits),
                2 => turn.charge(ran, now, &limits),
                _ => turn.preempted(ran, &limits),
            }
            let protected = turn.is_protected();
            let left = turn.left();
            turn.renew(turn.rounds(&limits), &limits);
            _ = (turn.is_over(), scheduler.next([level].into_iter().collect(), now));
            let waits = ran % 5 == 0;
            let own = (ran % 7 == 0).then_some(level);
            let (outranked, stint) = (ran % 11 == 0, now);
            let running = Running { level, own, ran, left, stint, protected, waits, outranked };
            _ = scheduler.preempts(running, [level].into_iter().collect(), now);
        }
    }
}

#[test]
fn a_class_moves_all_levels_of_a_client() {
    let all: Vec<_> = (0..6).filter_map(Class::of).collect();
    assert_eq!(all.len(), 6);
    assert!(all.windows(2).all(|two| two[0] < two[1]));
    assert_eq!((Class::of(6), Class::of(u32::MAX)), (None, None));
    assert_eq!(Class::of(2), Some(Class::default()));
    let within = |priority, class| Level::of(priority).unwrap().within(class).priority();
    for priority in -7..=7 {
        let is = all.iter().map(|class| within(priority, *class));
        let shifts = [-14, -3, 0, 3, 6, 14].map(|shift: i32| (priority + shift).clamp(-7, 7));
        assert!(is.eq(shifts), "{priority}");
    }
}
