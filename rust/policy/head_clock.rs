// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose an engine's time is.
//!
//! An engine works on its ring in order, so that its time belongs to the packet at the head, from
//! when that got there until another takes its place. A packet that waits on the engine has its
//! time, too: it keeps the engine from others. Packets whose end is seen at once ended shortly
//! after one another; what passed until then is the time of the first.
//!
//! Times are nanoseconds of any clock that does not go back.
//!
//! # Examples
//!
//! ```
//! use skua_policy::head_clock::HeadClock;
//!
//! let mut clock = HeadClock::new();
//! assert_eq!(clock.head_changed(100, Some(1), || "anna"), None);
//! assert_eq!(clock.running(130, |who| *who == "anna"), 30);
//! // Anna's packet is complete, and Ben's at the head.
//! assert_eq!(clock.head_changed(150, Some(2), || "ben"), Some(("anna", 50)));
//! assert_eq!(clock.running(180, |who| *who == "anna"), 0);
//! // The ring is empty.
//! assert_eq!(clock.head_changed(190, None, || "nobody"), Some(("ben", 40)));
//! ```

#[cfg(test)]
mod tests;

/// What is at the head, and since when.
#[derive(Clone, Debug)]
struct Head<T> {
    /// The number by which the caller tells packets apart: its fence id.
    id: u64,
    /// When it became the head, in the caller's time.
    since: u64,
    /// To whom its time is counted.
    owner: T,
}

/// The clock of one engine; `T` names the owner of a packet.
#[derive(Clone, Debug)]
pub struct HeadClock<T> {
    /// The packet whose time runs; none while the ring is empty.
    head: Option<Head<T>>,
}

impl<T> Default for HeadClock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> HeadClock<T> {
    /// The clock of an engine with an empty ring.
    pub const fn new() -> Self {
        HeadClock { head: None }
    }

    /// Looks at the head of the ring: the packet with number `id`, or none. If that is another than
    /// before, returns whose the one before was, and its time, which is to be added to what the
    /// owner has.
    ///
    /// `owner` is asked for the owner of a packet that is new at the head.
    pub fn head_changed(
        &mut self,
        now: u64,
        id: Option<u64>,
        owner: impl FnOnce() -> T,
    ) -> Option<(T, u64)> {
        if self.head.as_ref().map(|head| head.id) == id {
            return None;
        }
        let new = id.map(|id| Head {
            id,
            since: now,
            owner: owner(),
        });
        let old = core::mem::replace(&mut self.head, new)?;
        Some((old.owner, now.saturating_sub(old.since)))
    }

    /// The time that the packet at the head has had so far, if it is an owner's for whom `is` says
    /// so; 0 otherwise.
    pub fn running(&self, now: u64, is: impl FnOnce(&T) -> bool) -> u64 {
        match &self.head {
            Some(head) if is(&head.owner) => now.saturating_sub(head.since),
            _ => 0,
        }
    }
}
