// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::{vec, vec::Vec};

/// Threads that come again as soon as they were served, by user and client.
struct Hall {
    waiting: Vec<Seat<usize>>,
    next: u64,
}

impl Hall {
    fn new() -> Self {
        Self {
            waiting: Vec::new(),
            next: 0,
        }
    }

    fn enter(&mut self, user: usize, client: usize) {
        let seat = Seat::new(user, client, self.next, self.waiting.iter());
        self.next += 1;
        self.waiting.push(seat);
    }

    fn cancel(&mut self, at: usize) -> Seat<usize> {
        let gone = self.waiting.remove(at);
        gone.is_gone(self.waiting.iter_mut());
        gone
    }

    fn serve(&mut self) -> Option<(usize, usize)> {
        let first = next(|| self.waiting.iter())?;
        self.waiting.retain(|seat| seat.number != first.number());
        first.is_served(self.waiting.iter_mut());
        Some((first.seat.user, first.seat.client))
    }

    /// Who is served in so many turns, if each comes again at once.
    fn turns(&mut self, count: usize) -> Vec<(usize, usize)> {
        (0..count)
            .map(|_| {
                let (user, client) = self.serve().expect("somebody waits");
                self.enter(user, client);
                (user, client)
            })
            .collect()
    }
}

#[test]
fn a_user_with_many_files_waits_as_long_as_one_with_one() {
    let mut hall = Hall::new();
    (0..500).for_each(|client| hall.enter(1, client));
    hall.enter(2, 1000);
    let turns = hall.turns(100);
    let twos = turns.iter().filter(|(user, _)| *user == 2).count();
    assert_eq!(twos, 50, "{turns:?}");
    assert_eq!(turns[1].0, 2, "who comes new waits for one turn");
}

#[test]
fn a_client_with_many_threads_has_one_in_each_round() {
    let mut hall = Hall::new();
    (0..10).for_each(|_| hall.enter(1, 1));
    hall.turns(3);
    hall.enter(1, 2);
    let turns = hall.turns(20);
    let seconds = turns.iter().filter(|(_, client)| *client == 2).count();
    assert_eq!(seconds, 10, "{turns:?}");
}

#[test]
fn clients_of_a_user_share_its_turns() {
    let mut hall = Hall::new();
    for client in 0..3 {
        (0..=client).for_each(|_| hall.enter(1, client));
    }
    hall.enter(2, 9);
    let turns = hall.turns(60);
    for (user, client, expected) in [(1, 0, 10), (1, 1, 10), (1, 2, 10), (2, 9, 30)] {
        let count = turns.iter().filter(|it| **it == (user, client)).count();
        assert_eq!(count, expected, "user {user}, client {client}: {turns:?}");
    }
}

/// Two threads that come again and again do not keep a third from its turn.
#[test]
fn who_comes_again_comes_behind() {
    let mut hall = Hall::new();
    hall.enter(1, 0);
    hall.enter(1, 0);
    hall.enter(1, 1);
    hall.enter(1, 2);
    assert_eq!(hall.serve(), Some((1, 0)));
    let turns = hall.turns(3);
    assert!(turns.contains(&(1, 0)), "{turns:?}");
}

#[test]
fn who_leaves_early_leaves_its_user_the_later_rounds() {
    let mut hall = Hall::new();
    (0..3).for_each(|client| hall.enter(1, client));
    hall.enter(2, 9);
    assert_eq!(hall.serve(), Some((1, 0)));
    // Of client 1, whose user has had this round.
    hall.cancel(0);
    assert_eq!(hall.serve(), Some((2, 9)));
    assert_eq!(hall.serve(), Some((1, 2)));
    assert_eq!(hall.serve(), None);
}

proptest! {
    /// Each thread has one turn, unless it leaves before.
    #[test]
    fn all_are_served(steps in prop::collection::vec((0..4_usize, 0..3_usize, 0..3_u8), 1..200)) {
        let mut hall = Hall::new();
        let mut expected = vec![];
        for (user, client, what) in steps {
            match what {
                0 if !hall.waiting.is_empty() => {
                    let gone = hall.cancel(client % hall.waiting.len());
                    expected.retain(|number| *number != gone.number);
                }
                1 => {
                    if let Some(first) = next(|| hall.waiting.iter()) {
                        expected.retain(|number| *number != first.number());
                    }
                    let _ = hall.serve();
                }
                _ => {
                    expected.push(hall.next);
                    hall.enter(user, 10 * user + client);
                }
            }
        }
        let mut served = vec![];
        while let Some(first) = next(|| hall.waiting.iter()) {
            served.push(first.number());
            prop_assert!(hall.serve().is_some());
        }
        served.sort_unstable();
        prop_assert_eq!(served, expected);
    }

    /// Each user has one turn in each round, whoever comes again at once.
    #[test]
    fn users_have_one_turn_in_each_round(
        threads in prop::collection::vec((0..5_usize, 0..3_usize), 2..40),
    ) {
        let mut hall = Hall::new();
        for (user, client) in threads {
            hall.enter(user, 10 * user + client);
        }
        let mut users: Vec<usize> = hall.waiting.iter().map(|seat| seat.user).collect();
        users.sort_unstable();
        users.dedup();
        let turns = hall.turns(10 * users.len());
        for round in turns.chunks(users.len()) {
            let mut round: Vec<usize> = round.iter().map(|(user, _)| *user).collect();
            round.sort_unstable();
            prop_assert_eq!(&round, &users);
        }
    }
}
