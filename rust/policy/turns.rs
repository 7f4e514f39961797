// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose turn it is, of threads that wait for something that one has at a time.
//!
//! Users have turns in rounds, and of a user its clients, likewise: who has more threads that wait
//! has one of them served in each round, and who comes again comes behind those who wait. So nobody
//! waits longer because another user has opened many files, or a client made many threads.
//!
//! # Examples
//!
//! ```
//! use skua_policy::turns::{next, Seat};
//!
//! // Two threads of one user's client, and one of another user's.
//! let mut waiting = Vec::new();
//! for (number, (user, client)) in [(1, 10), (1, 10), (2, 20)].into_iter().enumerate() {
//!     waiting.push(Seat::new(user, client, number as u64, waiting.iter()));
//! }
//! let first = next(|| waiting.iter()).unwrap();
//! assert_eq!(first.number(), 0);
//! waiting.remove(0);
//! first.is_served(waiting.iter_mut());
//! assert_eq!(next(|| waiting.iter()).unwrap().number(), 2);
//! ```

#[cfg(test)]
mod tests;

/// A thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat<Id> {
    /// The user whose thread it is.
    user: Id,
    /// The client of that user.
    client: Id,
    /// In the order in which threads came.
    number: u64,
    /// In which round of all users it has that user's turn, if it is the next of these.
    user_round: u64,
    /// In which round of the user's clients it has the client's.
    client_round: u64,
    /// The first of all users' rounds, and of its user's clients', for who comes now.
    open: (u64, u64),
}

impl<Id: Copy + Eq> Seat<Id> {
    /// That of one more thread beside those that are `waiting`, all of which have lower numbers.
    pub fn new<'a>(
        user: Id,
        client: Id,
        number: u64,
        waiting: impl Iterator<Item = &'a Self>,
    ) -> Self
    where
        Id: 'a,
    {
        let mut open = (0_u64, 0_u64);
        let (mut of_user, mut of_client) = (0_u64, 0_u64);
        for seat in waiting {
            open.0 = open.0.max(seat.open.0);
            if seat.user == user {
                open.1 = open.1.max(seat.open.1);
                of_user = of_user.saturating_add(1);
                of_client = of_client.saturating_add((seat.client == client).into());
            }
        }
        Self {
            user,
            client,
            number,
            user_round: open.0.saturating_add(of_user),
            client_round: open.1.saturating_add(of_client),
            open,
        }
    }

    /// The client that it was given.
    pub const fn client(&self) -> Id {
        self.client
    }

    /// It waits no more, and had no turn: the next of its user has its round. It is not among those
    /// that are `waiting` still.
    pub fn is_gone<'a>(&self, waiting: impl Iterator<Item = &'a mut Self>)
    where
        Id: 'a,
    {
        let others = waiting.filter(|seat| seat.user == self.user);
        if let Some(first) = others.min_by_key(|seat| (seat.user_round, seat.number)) {
            first.user_round = first.user_round.min(self.user_round);
        }
    }
}

/// Who has the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<Id> {
    /// Of the thread whose turn it is, as it was when it waited.
    seat: Seat<Id>,
    /// The first of its user's rounds, which this turn is.
    round: u64,
    /// The number of the seat that was to have that round.
    instead_of: u64,
}

impl<Id: Copy + Eq> Turn<Id> {
    /// The number of the seat.
    pub const fn number(&self) -> u64 {
        self.seat.number
    }

    /// It begins: whose it is is not among those that are `waiting` still. Who comes from now on
    /// comes in a later round.
    pub fn is_served<'a>(&self, waiting: impl Iterator<Item = &'a mut Seat<Id>>)
    where
        Id: 'a,
    {
        for seat in waiting {
            seat.open.0 = seat.open.0.max(self.round.saturating_add(1));
            if seat.user == self.seat.user {
                seat.open.1 = seat.open.1.max(self.seat.client_round.saturating_add(1));
            }
            if seat.number == self.instead_of {
                seat.user_round = self.seat.user_round;
            }
        }
    }
}

/// Who of those that are `waiting` has the next turn; none if nobody waits.
pub fn next<'a, Id, Seats>(waiting: impl Fn() -> Seats) -> Option<Turn<Id>>
where
    Id: Copy + Eq + 'a,
    Seats: Iterator<Item = &'a Seat<Id>>,
{
    let first = waiting().min_by_key(|seat| (seat.user_round, seat.number))?;
    let own = waiting().filter(|seat| seat.user == first.user);
    let seat = own.min_by_key(|seat| (seat.client_round, seat.number))?;
    Some(Turn {
        seat: *seat,
        round: first.user_round,
        instead_of: first.number,
    })
}
