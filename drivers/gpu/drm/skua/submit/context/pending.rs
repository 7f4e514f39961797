// SPDX-License-Identifier: GPL-2.0

//! What is in a context's queue: submissions that have not started, or not all. The engine puts
//! them in, takes the portions of the first one out, and gives back what made room; it asks what is
//! [`Due`].
//!
//! Lock: `pending` of the [`Context`], a spin lock, also for its status, priorities and turn.

use crate::{
    fences::monitored::End,
    policy::{
        miniport::{
            Built,
            Stop,
            Task, //
        },
        paging::MultipassOffset,
        parked::Parked,
        scheduler::{
            InProcess,
            Level,
            Limits,
            Turn, //
        },
        watchdog::Spent, //
    },
    quota::count_out,
    submit::{
        context::{
            Context,
            Status, //
        },
        packet::{
            Packet,
            IN_FLIGHT, //
        },
        submission::{
            Attempt,
            Submission, //
        }, //
    }, //
};
use core::mem::take;
use kernel::{
    list::{
        List,
        ListArc, //
    },
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

/// What is to be done about a context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing, or not before something happens that leads here again.
    Nothing,
    /// Its first submission can start: it wants its turn.
    Turn,
    /// Its first submission can start when it has been prepared, or its gate is to be armed.
    Preparation,
    /// Its first submission is to be cancelled, and nothing of the context is in the ring.
    Drain,
}

/// Submissions that have not started, or not all.
pub(super) struct Pending {
    /// In order of submission; the first one may have portions in the ring.
    pub(super) queue: List<Submission>,
    /// How many are in `queue`; of a client's context at most
    /// [`MAX_REQUESTS`](crate::fences::hold::MAX_REQUESTS).
    pub(super) len: u32,
    /// Where the next portion of the first one begins: what is before it left for the ring.
    started: MultipassOffset,
    /// Buffers that left for the ring before that, modulo 2^32.
    number: u32,
    /// Packets of the context that are in the ring.
    pub(super) running: u32,
    /// Whether more submissions are accepted; changes once at most.
    pub(super) status: Status,
    /// Whether the context is a client's, whose work is cancelled if what it waits for failed.
    is_client: bool,
    /// How important its work is.
    pub(super) level: Level,
    /// What its client says of that, whose class moves it.
    pub(super) own_level: Level,
    /// How important it is to its client.
    pub(super) in_process: InProcess,
    /// What is left of its turn on the engine.
    pub(super) turn: Turn,
    /// Ticks of the context that `turn` knows of.
    pub(super) charged: u64,
    /// Whether the next portion is in the save area, as far as it got.
    pub(super) saved: bool,
    /// Whether the first submission was, until the adapter was reset.
    lost: bool,
    /// What the next portion has used of the engine so far.
    spent: Spent,
    /// Since when the next portion waits for a value.
    parked: Option<Parked>,
}

/// What became of a packet that an engine has withdrawn.
pub(crate) struct Withdrawn {
    /// Whether the engine was within the packet when it stopped.
    pub(crate) stop: Stop,
    /// What the packet has used of the engine, if it was at the ring's head; more than ticks if
    /// time was measured.
    pub(crate) used: Option<Spent>,
    /// The time in milliseconds of any clock.
    pub(crate) now_ms: u64,
}

impl Context {
    /// Puts a published submission at the end of the queue. Called by the engine, under its lock.
    pub(crate) fn push(&self, submission: ListArc<Submission>) -> Due {
        let mut pending = self.pending.lock();
        pending.queue.push_back(submission);
        // No wrap: see `MAX_REQUESTS`.
        pending.len = pending.len.wrapping_add(1);
        pending.due()
    }

    /// The next portion for the ring, which is not in the ring yet, if there is one and `build`
    /// takes it; and what the context is due for then. Called by the engine, under its lock. An
    /// error of `build`, and nothing has changed.
    pub(crate) fn next(
        &self,
        build: impl FnOnce(Task<'_>) -> Option<Result<Built>>,
    ) -> Result<(Option<Packet>, Due)> {
        let mut pending = self.pending.lock();
        let due = pending.due();
        if due != Due::Turn {
            return Ok((None, due));
        }
        let from = pending.started;
        let Some(submission) = pending.first() else {
            return Ok((None, due));
        };
        // What else uses the memory, it has waited for.
        let mut attempt = Attempt {
            idle: pending.running == 0,
            number: pending.number,
            resume: pending.saved,
            again: false,
        };
        let task = submission.task(from, attempt);
        let is_buffer = matches!(task, Task::Virtual { .. });
        let Some(built) = build(task) else {
            return Ok((None, due));
        };
        let built = built?;
        if built == Built::Busy {
            // When what is in the ring is over, it leads here again.
            return Ok((None, Due::Nothing));
        }
        // Row 2.08.
        if is_buffer {
            self.expect_areas();
        }
        let next = submission.after(from, built);
        match next {
            Some(next) => pending.started = next,
            None => _ = pending.pop(),
        }
        if is_buffer {
            pending.number = pending.number.wrapping_add(1);
        }
        // The driver's own comes from here again when the adapter was reset, and begins anew.
        attempt.again = submission.give(from.piece) && pending.is_client;
        pending.running = pending.running.saturating_add(1);
        pending.saved = false;
        let spent = take(&mut pending.spent);
        let others = pending.len > u32::from(next.is_some());
        let followed = others || submission.buffers_after(from) > IN_FLIGHT / 2;
        let packet = Packet {
            submission,
            from,
            attempt,
            is_last: next.is_none(),
            followed,
            is_long: false,
            level: pending.level,
            turn_of: pending.level,
            // Behind the first of its packets in the ring it has got somewhere.
            protected: attempt.idle && pending.turn.is_protected(),
            spent,
        };
        Ok((Some(packet), pending.due()))
    }

    /// Takes back a packet that is out of the ring and is not done: its portion is the next one.
    /// Of several the last one first. What is to be done about the context then. Called by the
    /// engine, under its lock and in its `turn`.
    pub(crate) fn withdraw(&self, packet: Packet, how: Withdrawn, limits: &Limits) -> Due {
        let saved = how.stop != Stop::Between || (packet.attempt.resume && self.is_saved());
        if let (Some(area), true) = (self.area.as_ref(), how.stop != Stop::Between) {
            area.was_saved.store(true, Relaxed);
        }
        let mut pending = self.pending.lock();
        pending.saved = saved;
        pending.spent = packet.spent;
        if let Some(used) = how.used {
            pending.turn.preempted(used.ticks, limits);
            let spent = &mut pending.spent;
            spent.ms = spent.ms.saturating_add(used.ms);
            spent.ticks = spent.ticks.saturating_add(used.ticks);
        }
        match how.stop {
            // What waits does so out of the ring as well.
            Stop::Waiting => {
                // What has worked since waits for another value.
                let has_worked =
                    packet.attempt.resume && how.used.is_some_and(|used| used.ticks > 0);
                let parked = pending.parked.filter(|_| !has_worked);
                let parked = Parked {
                    since_ms: parked.map_or(how.now_ms, |parked| parked.since_ms),
                    seen_ms: how.now_ms,
                };
                pending.spent.waited_ms = parked.waited_ms();
                pending.parked = Some(parked);
            }
            Stop::Within => {
                pending.spent.waited_ms = 0;
                pending.parked = None;
            }
            // It was not tried.
            Stop::Between => (),
        }
        count_out(&mut pending.running, 1);
        // If it is in the queue, it is the first: it has portions that were not started.
        if let Ok(submission) = ListArc::try_from_arc(packet.submission) {
            pending.queue.push_front(submission);
            pending.len = pending.len.saturating_add(1);
        }
        pending.started = packet.from;
        pending.number = packet.attempt.number;
        pending.due()
    }

    /// The adapter was reset: what its save area has is nothing any more. Called by the engine,
    /// under its lock.
    pub(crate) fn forget_saved(&self) {
        let mut pending = self.pending.lock();
        pending.lost |= take(&mut pending.saved);
    }

    /// The adapter was reset, and nothing of it is in the ring: its first submission, a part of
    /// which may be done, begins anew.
    pub(crate) fn begin_anew(&self) {
        self.pending.lock().started = MultipassOffset::default();
    }

    /// How important its next portion is, and since when that waits for a value.
    pub(crate) fn parked(&self) -> (Level, Parked) {
        let pending = self.pending.lock();
        (pending.level, pending.parked.unwrap_or_default())
    }

    /// Counts a packet out of the ring; what is to be done about the context then. Called by the
    /// engine, under its lock.
    pub(crate) fn retire(&self) -> Due {
        let mut pending = self.pending.lock();
        pending.parked = None;
        pending.turn.completed();
        count_out(&mut pending.running, 1);
        pending.due()
    }

    /// What is to be done about the context at this moment.
    pub(crate) fn due(&self) -> Due {
        self.pending.lock().due()
    }

    /// Whether its first submission waits for what others do.
    pub(crate) fn waits(&self) -> bool {
        let mut pending = self.pending.lock();
        let is_active = pending.status == Status::Active;
        is_active && pending.first().is_some_and(|first| !first.gate().is_open())
    }

    /// Prepares the first submission as long as it is due for that. Process context, no locks held;
    /// allocates nothing.
    pub(crate) fn prepare(&self) {
        loop {
            let first = {
                let mut pending = self.pending.lock();
                match pending.due() {
                    Due::Preparation => pending.first(),
                    _ => None,
                }
            };
            let Some(submission) = first else {
                return;
            };
            match submission.gate().is_open() {
                true => submission.prepare(),
                false => submission.gate().arm(),
            }
            self.dev.reapers.submissions.bury(submission);
        }
    }

    /// Takes the first submission out of the queue if it is to be cancelled now, with `error`, and
    /// what becomes of what it was to signal; `lost`: because the device is lost.
    pub(crate) fn pop_cancelled(&self, lost: bool, error: Error) -> Option<(Arc<Submission>, End)> {
        let mut pending = self.pending.lock();
        if pending.due() != Due::Drain && !(lost && pending.running == 0) {
            return None;
        }
        let submission = pending.pop()?;
        // Before anybody looks at the next one, which may wait for it.
        submission.refuse(error);
        // Nobody is told of what the client has cancelled itself: what had not begun.
        let has_begun = take(&mut pending.lost);
        let end = match pending.status {
            Status::Destroyed if !has_begun && !lost => End::Withdrawn,
            _ => End::Failed,
        };
        Some((submission, end))
    }
}

impl Pending {
    /// Nothing, of a context that takes work.
    pub(super) fn new(is_client: bool, level: Level) -> Self {
        Self {
            queue: List::new(),
            len: 0,
            started: MultipassOffset::default(),
            number: 0,
            running: 0,
            status: Status::Active,
            is_client,
            level,
            own_level: Level::NORMAL,
            in_process: InProcess::default(),
            turn: Turn::default(),
            charged: 0,
            saved: false,
            lost: false,
            spent: Spent::default(),
            parked: None,
        }
    }

    /// A reference to the first submission, which stays in the queue.
    fn first(&mut self) -> Option<Arc<Submission>> {
        let mut cursor = self.queue.cursor_front();
        let first = cursor.peek_next()?;
        Some(first.arc().into())
    }

    /// Takes the first submission out.
    fn pop(&mut self) -> Option<Arc<Submission>> {
        let first = self.queue.pop_front()?;
        count_out(&mut self.len, 1);
        self.started = MultipassOffset::default();
        Some(first.into_arc())
    }

    /// What is to be done about the context, by its status, its first submission and the ring.
    fn due(&mut self) -> Due {
        let (status, running, started) = (self.status, self.running, self.started);
        let mut cursor = self.queue.cursor_front();
        let Some(first) = cursor.peek_next() else {
            return Due::Nothing;
        };
        let cancelled = match status {
            Status::Active if !first.gate().is_open() => {
                return match first.gate().is_armed() {
                    true => Due::Nothing,
                    false => Due::Preparation,
                }
            }
            // The driver's own goes on all the same: what it waits for is over, however it ended.
            Status::Active => {
                started == MultipassOffset::default() && self.is_client && first.is_in_vain()
            }
            // Others wait for it.
            _ if first.is_switch() => false,
            // What made room in its midst is left to end, as what runs is.
            Status::Destroyed => !self.saved,
            _ => true,
        };
        match (cancelled, running) {
            (false, _) if !first.is_prepared() => Due::Preparation,
            (false, _) => Due::Turn,
            (true, 0) => Due::Drain,
            // Not before what is in the ring.
            (true, _) => Due::Nothing,
        }
    }
}
