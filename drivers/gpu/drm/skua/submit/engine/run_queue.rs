// SPDX-License-Identifier: GPL-2.0

//! What an engine works from: its ring, the contexts that have work, by level and in turn, and
//! those that wait for values; and which of them comes next.
//!
//! Lock: all of it is under [`Engine::state`], a spin lock; `pending` of a context is taken inside.
//!
//! [`Engine::state`]: super::Engine::state

use crate::{
    fences::gate::Wake,
    gpu::SkuaDevice,
    hardware::miniport::{
        Hardware,
        Ring, //
    },
    kernel_heap::KernelHeap,
    policy::{
        miniport::Task,
        node::{
            Cause,
            Node,
            Packet as _, //
        },
        parked::Looks,
        scheduler::{
            Level,
            Levels,
            Limits,
            Round,
            Running,
            Scheduler,
            LEVELS, //
        },
        watchdog::Arrival, //
    },
    spec::number::EngineIndex,
    submit::{
        busy::EngineClock,
        context::{
            pending::Due,
            Context, //
        },
        engine::{
            now_ms,
            Mode, //
        },
        packet::{
            Packet,
            IN_FLIGHT, //
        },
        recovery::Recovery, //
    }, //
};
use kernel::{
    list::{
        List,
        ListArc, //
    },
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

/// What is under the engine's lock.
pub(crate) struct RunQueue {
    /// Changed by recovery and by loss only, under `turn` as well.
    pub(crate) mode: Mode,
    /// What is done about it by itself; none also while that is done about the whole adapter.
    pub(crate) recovery: Option<Recovery>,
    /// The ring and its packets, at most [`IN_FLIGHT`].
    pub(crate) node: Node<KernelHeap, Hardware, Packet>,
    /// Which client the time of the packet at the ring's head is counted to.
    pub(super) clock: EngineClock,
    /// Decides which of the contexts that have work comes next.
    pub(super) scheduler: Scheduler,
    /// By level, contexts whose first submission can start, in turn, each once.
    pub(super) ready: [List<Context>; LEVELS],
    /// The same for those whose turn is over.
    pub(super) expired: [List<Context>; LEVELS],
    /// Contexts whose work was preempted where it waits for a value (row 2.19): tried again when
    /// nothing else is ready, or now and then.
    pub(super) parked: List<Context>,
    /// When one of `parked` was last tried; says which is next.
    looks: Looks,
    /// The context that the engine may hold though nothing of it is in the ring: it stays until
    /// another one's packet has ended.
    pub(super) held: Option<Arc<Context>>,
    /// The packet at the ring's head.
    pub(super) head: Option<Head>,
    /// Milliseconds after which the watchdog cuts what does nothing but wait.
    stuck_ms: u64,
}

/// What is known of the packet at the ring's head.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// Fence id of the packet at the head.
    pub(super) id: u64,
    /// When it got there, by [`now_ms`].
    pub(super) since: Arrival,
    /// Its context.
    context: u32,
    /// Ticks of the engine since which no other context's packet was seen there.
    stint_since: u64,
}

/// Where in its list a context is put.
#[derive(Clone, Copy)]
pub(super) enum Position {
    /// Before the others: it goes on with its turn.
    First,
    /// Behind the others: its turn is to come.
    Last,
}

/// Whether `context` is in a list: only one that has work outside of the ring is.
fn is_listed(context: &Arc<Context>) -> bool {
    ListArc::<Context>::try_from_arc(context.clone()).is_err()
}

impl RunQueue {
    /// Nothing, of engine number `index`, which is not enabled; `stuck_ms`: milliseconds that work
    /// may wait for a value. `ENOMEM`.
    pub(super) fn new(index: EngineIndex, turns: Limits, stuck_ms: u32) -> Result<Self> {
        Ok(Self {
            mode: Mode::Running,
            recovery: None,
            node: Node::new(index, Ring::new()?, IN_FLIGHT)?,
            clock: EngineClock::new(index),
            scheduler: Scheduler::new(turns),
            ready: [const { List::new() }; LEVELS],
            expired: [const { List::new() }; LEVELS],
            parked: List::new(),
            looks: Looks::default(),
            held: None,
            head: None,
            stuck_ms: stuck_ms.into(),
        })
    }

    /// Whether nothing is in the ring, no context is held, and nothing is done about it.
    pub(crate) fn rests(&self) -> bool {
        let has_work = !self.node.is_empty() || self.node.asked().is_some();
        !has_work && self.held.is_none() && self.recovery.is_none()
    }

    /// Whether it takes work and has none: nothing is in the ring, nobody waits for it.
    pub(super) fn is_idle(&self) -> bool {
        let has_work = !self.node.is_empty() || self.scheduler.is_waited_for();
        self.mode == Mode::Running && !has_work && self.parked.is_empty()
    }

    /// Counts a packet out of the ring, at the engine time `now`.
    pub(crate) fn retire(&mut self, dev: &SkuaDevice, packet: &Packet, now: u64) {
        let context = packet.submission.context();
        match packet.task() {
            Task::Virtual { .. } => self.hold(dev, Some(context.clone())),
            Task::Paging(pass, _) if pass.operation.has_steps() => self.hold(dev, None),
            // Perhaps the engine did nothing.
            Task::Paging(..) | Task::Switch | Task::Null(_) => {
                if dev.hw.held(context.engine()) == Ok(None) {
                    self.hold(dev, None);
                }
            }
        }
        self.charge(packet, now);
        self.look_at_head(now);
        self.put_back(context, context.retire(), Position::Last);
    }

    /// The engine holds `context` from now on: it has left what it held before.
    pub(crate) fn hold(&mut self, dev: &SkuaDevice, context: Option<Arc<Context>>) {
        if let Some(left) = core::mem::replace(&mut self.held, context) {
            dev.reapers.contexts.bury(left);
        }
    }

    /// Counts what a packet that is out of the ring, and had begun, has used of the engine; ticks.
    pub(super) fn charge(&mut self, packet: &Packet, now: u64) -> u64 {
        self.scheduler.served(packet.turn_of, now);
        let crowded = self.scheduler.crowded(packet.level, now);
        let context = packet.submission.context();
        context.charge(crowded, self.scheduler.limits())
    }

    /// Moves `context` to `level`. What its packet at the head has used counts where it was.
    pub(super) fn set_level(&mut self, context: &Arc<Context>, level: Level, now: u64) {
        let head = self.node.head().map(|(_, packet)| packet);
        let runs = head.is_some_and(|head| Arc::ptr_eq(head.submission.context(), context));
        let since = self.head.filter(|_| runs).map(|head| head.since.ticks);
        let used = since.map_or(0, |since| now.saturating_sub(since));
        let crowded = self.scheduler.crowded(context.level(), now);
        context.set_level(level, used, crowded, self.scheduler.limits());
        self.node.for_each_mut(|packet| {
            if Arc::ptr_eq(packet.submission.context(), context) {
                packet.level = level;
            }
        });
    }

    /// Tells the scheduler if no context of `level` has work, or at most one; called before that
    /// changes, and before what it has used is charged.
    pub(super) fn look_for_others(&mut self, level: Level, now: u64) {
        let (is_idle, crowded) = {
            let lists = [&self.ready, &self.expired].map(|lists| lists.get(level.index()));
            let listed = lists.into_iter().flatten().flat_map(List::iter);
            let listed = listed.map(|context| core::ptr::from_ref(&*context));
            let packets = self.node.iter().map(|(_, packet)| packet);
            let running = packets.filter(|packet| packet.level == level);
            let running = running.map(|packet| Arc::as_ptr(packet.submission.context()));
            let mut all = Iterator::chain(running, listed);
            let first = all.next();
            (first.is_none(), all.any(|other| Some(other) != first))
        };
        if is_idle {
            self.scheduler.was_idle(level, now);
        }
        if !crowded {
            self.scheduler.was_alone(level, now);
        }
    }

    /// [`Self::look_for_others`] of the levels of all that is in the ring.
    pub(super) fn look_for_rivals(&mut self, now: u64) {
        let mut levels = [None; LEVELS];
        for (_, packet) in self.node.iter() {
            if let Some(level) = levels.get_mut(packet.level.index()) {
                *level = Some(packet.level);
            }
        }
        for level in levels.into_iter().flatten() {
            self.look_for_others(level, now);
        }
    }

    /// When the packet got to the head that is there now.
    pub(crate) fn head_since(&self) -> Option<Arrival> {
        self.head.map(|head| head.since)
    }

    /// Tells the clocks what is at the head of the ring.
    pub(crate) fn look_at_head(&mut self, now: u64) {
        let head = self.node.head();
        let id = head.map(|(id, _)| id);
        if self.head.map(|head| head.id) != id {
            let before = self.head;
            self.head = head.map(|(id, packet)| {
                let context = packet.submission.context().id();
                let before = before.filter(|before| before.context == context);
                Head {
                    id,
                    since: Arrival {
                        ms: now_ms(),
                        ticks: now,
                    },
                    context,
                    stint_since: before.map_or(now, |before| before.stint_since),
                }
            });
        }
        self.clock.head_changed(id, || {
            let submission = &head?.1.submission;
            submission
                .context()
                .usage()
                .filter(|_| !submission.is_switch())
        });
    }

    /// Has `context`, whose next packet waits for a value, wait for that out of the ring, and for
    /// nothing else.
    pub(super) fn park(&mut self, context: &Arc<Context>, due: Due, now: u64) {
        if due != Due::Turn || self.mode == Mode::Lost {
            return self.attend(context, due, now);
        }
        let listed = self.take(context, context.level());
        let context = match listed.ok_or(()) {
            Ok(context) => Ok(context),
            Err(()) => ListArc::try_from_arc(context.clone()),
        };
        if let Ok(context) = context {
            self.parked.push_back(context);
        }
    }

    /// Takes `context` out of the lists of `level`, if it is in one.
    pub(super) fn take(
        &mut self,
        context: &Arc<Context>,
        level: Level,
    ) -> Option<ListArc<Context>> {
        let lists = [&mut self.ready, &mut self.expired].map(|lists| lists.get_mut(level.index()));
        let taken = lists.into_iter().flatten().find_map(|list| {
            let mut cursor = list.cursor_front();
            while !core::ptr::eq(&*cursor.peek_next()?.arc(), &**context) {
                cursor.move_next();
            }
            cursor.remove_next()
        })?;
        self.scheduler.leave(level);
        Some(taken)
    }

    /// Does what a context has become due for.
    pub(super) fn attend(&mut self, context: &Arc<Context>, due: Due, now: u64) {
        if due == Due::Turn {
            self.look_for_others(context.level(), now);
        }
        self.put_back(context, due, Position::Last);
    }

    /// The same for one that had work until now, in a list or in the ring.
    pub(super) fn put_back(&mut self, context: &Arc<Context>, due: Due, place: Position) {
        match due {
            Due::Nothing => (),
            Due::Turn if self.mode != Mode::Lost => {
                let level = context.level();
                let Some(list) = self.ready.get_mut(level.index()) else {
                    return;
                };
                // Refused if it is in a list already.
                if let Ok(context) = ListArc::try_from_arc(context.clone()) {
                    match place {
                        Position::First => list.push_front(context),
                        Position::Last => list.push_back(context),
                    }
                    self.scheduler.wait(level);
                }
            }
            Due::Turn | Due::Preparation | Due::Drain => Wake::wake(context),
        }
    }

    /// The context whose turn it is, out of its list, and whether that is so for having waited, or
    /// been passed over, for long.
    pub(super) fn next(&mut self, now: u64) -> Option<(Arc<Context>, bool)> {
        let queued = self.node.iter().map(|(_, packet)| packet.turn_of);
        let queued = queued.collect();
        loop {
            let Some((level, aged)) = self.scheduler.next(queued, now) else {
                // There is nothing better to do than to wait for one of them.
                return match self.node.is_empty() {
                    true => Some((self.take_parked(None)?, false)),
                    false => None,
                };
            };
            let context = match self.ready.get_mut(level.index())?.pop_front() {
                Some(context) if !context.is_system() && context.turn().is_over() => {
                    self.expired.get_mut(level.index())?.push_back(context);
                    continue;
                }
                Some(context) => context,
                // It goes on behind who has its turn, and owes what it uses.
                None => match self.begin_round(level) {
                    Some(context) => context,
                    None => continue,
                },
            };
            let (context, spared) = self.lend(context, level);
            self.scheduler.take(level);
            return Some((context.into_arc(), aged || spared));
        }
    }

    /// The turns of all contexts of `level` that wait are over: the next ones begin, or it is
    /// [`Round::Behind`] for the one that is returned.
    fn begin_round(&mut self, level: Level) -> Option<ListArc<Context>> {
        let limits = self.scheduler.limits();
        let list = self.ready.get_mut(level.index())?;
        let expired = self.expired.get_mut(level.index())?;
        if expired.is_empty() {
            // The scheduler has counted a context that is in no list.
            crate::warn_on_once!(true);
            self.scheduler.leave(level);
            return None;
        }
        let packets = || self.node.iter().map(|(_, packet)| packet);
        let in_ring = || {
            let all = packets().enumerate().filter(|(n, packet)| {
                let context = packet.submission.context();
                let is_same = |other: &Packet| Arc::ptr_eq(other.submission.context(), context);
                // Each once.
                let is_first = !packets().take(*n).any(is_same);
                packet.level == level && !is_listed(context) && is_first
            });
            all.map(|(_, packet)| packet.submission.context())
        };
        let turns = in_ring().map(|context| context.turn());
        let waiting = expired.iter().map(|context| context.turn());
        let round = Round::of(turns, waiting, limits);
        let (Round::All(rounds) | Round::Behind(rounds)) = round;
        if rounds > 0 {
            let waiting = expired.iter();
            waiting.for_each(|context| context.renew_turn(rounds, limits));
        }
        if let Round::Behind(_) = round {
            return expired.pop_front();
        }
        in_ring().for_each(|context| context.renew_turn(rounds, limits));
        core::mem::swap(list, expired);
        None
    }

    /// Of those of `level` that wait, and outrank `context`, the one that no other outranks.
    fn superior(&self, context: &Context, level: Level) -> Option<*const Context> {
        if !context.usage().is_some_and(|usage| usage.ranks()) {
            return None;
        }
        let lists = [&self.ready, &self.expired].map(|lists| lists.get(level.index()));
        let listed = lists.into_iter().flatten().flat_map(List::iter);
        let mut superior: Option<ArcBorrow<'_, Context>> = None;
        for other in listed {
            if other.outranks(superior.as_deref().unwrap_or(context)) {
                superior = Some(other);
            }
        }
        superior.map(|superior| core::ptr::from_ref(&*superior))
    }

    /// Has its superior take the place and the turn of `first`, of the ready list of `level`; or
    /// `first`, if it has none, or was passed over for long (`true`).
    fn lend(&mut self, first: ListArc<Context>, level: Level) -> (ListArc<Context>, bool) {
        let Some(superior) = self.superior(&first, level) else {
            return (first, false);
        };
        if !first.is_passed() {
            return (first, true);
        }
        let lists = [&mut self.ready, &mut self.expired].map(|lists| lists.get_mut(level.index()));
        for list in lists.into_iter().flatten() {
            let mut cursor = list.cursor_front();
            while let Some(next) = cursor.peek_next() {
                if core::ptr::eq(&*next.arc(), superior) {
                    let superior = next.remove();
                    first.lend_turn(&superior);
                    cursor.insert_next(first);
                    return (superior, false);
                }
                cursor.move_next();
            }
        }
        (first, false)
    }

    /// Takes the one that is to be tried now out of those that wait for values.
    fn take_parked(&mut self, running: Option<Level>) -> Option<Arc<Context>> {
        let parked = self.parked.iter().map(|context| context.parked());
        let place = self.looks.next(parked, running, now_ms())?;
        let mut cursor = self.parked.cursor_front();
        for _ in 0..place {
            cursor.move_next();
        }
        cursor.remove_next().map(ListArc::into_arc)
    }

    /// Has one of those that wait for values wait for its turn; seldom, as nobody else works while
    /// it is tried. `waits`: whether nobody does anyway.
    pub(super) fn unpark(&mut self, dev: &SkuaDevice, waits: bool, now: u64) {
        if self.parked.is_empty() || !self.looks.is_time(now_ms()) {
            return;
        }
        let head = self.node.head().filter(|_| !waits);
        let running = head.map(|(_, packet)| packet.level);
        if let Some(context) = self.take_parked(running) {
            self.attend(&context, Due::Turn, now);
            dev.reapers.contexts.bury(context);
        }
    }

    /// What the engine works on, or `waits` in, and the levels of other contexts' packets behind
    /// that.
    fn running(&self, now: u64, waits: impl FnOnce() -> bool) -> Option<(Running, Levels)> {
        let (_, packet) = self.node.head()?;
        let context = packet.submission.context();
        let own = is_listed(context);
        let others = || {
            let behind = self.node.iter().skip(1).map(|(_, packet)| packet);
            behind.filter(|packet| !Arc::ptr_eq(packet.submission.context(), context))
        };
        let outranks = |other: &Packet| {
            other.level == packet.level && other.submission.context().outranks(context)
        };
        let running = Running {
            level: packet.level,
            own: own.then(|| context.level()),
            ran: now.saturating_sub(self.head.map_or(now, |head| head.since.ticks)),
            left: context.turn().left(),
            stint: now.saturating_sub(self.head.map_or(now, |head| head.stint_since)),
            protected: packet.protected,
            waits: waits(),
            outranked: self.superior(context, packet.level).is_some() || others().any(outranks),
        };
        Some((running, others().map(|packet| packet.level).collect()))
    }

    /// The packet at the head, where the engine has stopped as it waits for a value, as what works
    /// without end if it has waited for too long: it was tried once more since.
    pub(super) fn overdue_wait(&self) -> Option<Cause> {
        let (id, packet) = self.node.head()?;
        let context = packet.submission.context();
        let has_waited = packet.spent.waited_ms >= self.stuck_ms && !context.has_worked();
        has_waited.then_some(Cause::Endless(id))
    }

    /// Whether the engine, which can be, is to be asked to stop, and whether that has to be looked
    /// at again; `waits`: whether it does nothing but wait.
    pub(super) fn contention(&self, now: u64, waits: impl FnOnce() -> bool) -> (bool, bool) {
        if self.mode != Mode::Running || self.node.asked().is_some() {
            return (false, false);
        }
        let Some((running, queued)) = self.running(now, waits) else {
            return (false, false);
        };
        (
            self.scheduler.preempts(running, queued, now),
            self.scheduler.is_contended(running, queued) || !self.parked.is_empty(),
        )
    }
}
