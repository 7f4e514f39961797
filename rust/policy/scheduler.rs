// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose turn it is on a node, and when who runs has to make room (rows 2.12, 2.20).
//!
//! Contexts have a *level*. Of those whose work can start the ones of the highest level go first.
//! Of one level each has its *turn*, a quantum of engine time: as long as it has something left of
//! it, its packets alternate with those of others; who has nothing left, or is new, waits until
//! nobody has, and then all get a quantum more ([`Round`]). Time that a packet takes beyond the
//! turn while others of its level have work is taken from the next ones, so that equals get equal
//! shares, however long their packets are, unless they take next to nothing: a turn is over after
//! so many packets as well.
//!
//! Somebody all of whose work is in the ring waits for no turn, and has one all the same. Until
//! that is over the others go on behind that work, so that the engine is never idle: they owe what
//! they use, and make room for him again, but not for each of his packets at once.
//!
//! Which of a process' contexts of one level goes first, it may say itself: the more important one
//! takes place and turn of one that is less so ([`Turn::lend`]) and makes it stop. To others, who
//! have the same turns in the same order, that makes no difference. Others may wait for what is
//! less important, so it is passed over so many times, and then served ([`Turn::is_passed`]).
//!
//! Who runs is preempted for a higher level at once, for its own when its turn is over, or was when
//! it came, and it has had the engine for a while, and for anybody while it does nothing but wait
//! for a value (row 2.19). More work of its own is no reason. Two things keep that from going on
//! for ever: a level that waited in vain for long is served once, whatever is above it; and what is
//! run for that reason, or was preempted again and again before it got anywhere, is left alone for
//! a while.
//!
//! All times are ticks of the engine: an idle or slow one does not age anybody.
//!
//! **Why not `drm_sched`.** A job that it has given to the ring is not taken back for another, so
//! nobody makes room, let alone within a packet. It has four priorities, and within one goes by
//! whose job is the oldest, or by jobs in turn, or, as an experiment, by time on the wall; not by
//! turns of engine time.
//!
//! # Examples
//!
//! ```
//! use skua_policy::scheduler::{Level, Levels, Limits, Running, Scheduler};
//!
//! let limits = Limits { quantum: 1000, patience: 10_000, protection: 100 };
//! let mut scheduler = Scheduler::new(limits);
//! let [low, high] = [-1, 1].map(|priority| Level::of(priority).expect("a level"));
//! scheduler.wait(low);
//! scheduler.wait(high);
//! assert_eq!(scheduler.next(Levels::default(), 0), Some((high, false)));
//! // It is served, and has no more.
//! scheduler.take(high);
//! let running = Running {
//!     level: high,
//!     own: None,
//!     ran: 0,
//!     left: 1000,
//!     stint: 0,
//!     protected: false,
//!     waits: false,
//!     outranked: false,
//! };
//! assert!(!scheduler.preempts(running, Levels::default(), 0), "only a lower level waits");
//! ```

use core::mem::swap;

#[cfg(test)]
mod tests;

/// How many levels there are.
pub const LEVELS: usize = 16;

/// How important the work of a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u8);

impl Level {
    /// That of a client's context at first: priority 0.
    pub const NORMAL: Self = Self(7);
    /// The system's own, for paging: nothing goes before it but what starves, and nobody preempts
    /// it.
    pub const SYSTEM: Self = Self(15);

    /// That of WDDM's priority of a context (`D3DKMT_SETCONTEXTSCHEDULINGPRIORITY`), -7 to 7.
    pub fn of(priority: i32) -> Option<Self> {
        let level = u8::try_from(priority.checked_add(7)?).ok()?;
        (level < Self::SYSTEM.0).then_some(Self(level))
    }

    /// The priority that it is of; of the system's, one above all others.
    pub fn priority(self) -> i32 {
        // No overflow: small.
        i32::from(self.0) - 7
    }

    /// Where work stands that its client says is of this level, if the client is of `class`.
    pub fn within(self, class: Class) -> Self {
        let most = i32::from(Self::SYSTEM.0) - 1;
        let level = i32::from(self.0).saturating_add(class.shift());
        // CAST: what clients can say, 0 to 14.
        Self(level.clamp(0, most) as u8)
    }

    /// Its place among all levels, from the lowest, 0; below [`LEVELS`].
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// How important the work of all contexts of a client is, by WDDM's class of a process
/// (`D3DKMT_SCHEDULINGPRIORITYCLASS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Whatever its contexts say, nothing stands below it.
    Idle,
    /// Below what says the same.
    BelowNormal,
    /// As its contexts say: their own levels count.
    #[default]
    Normal,
    /// Above what says the same.
    AboveNormal,
    /// Further above it.
    High,
    /// Whatever its contexts say, nothing of clients stands above it.
    Realtime,
}

impl Class {
    /// The class that has `number` in WDDM (`D3DKMT_SCHEDULINGPRIORITYCLASS`); none for others.
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Idle,
            1 => Self::BelowNormal,
            2 => Self::Normal,
            3 => Self::AboveNormal,
            4 => Self::High,
            5 => Self::Realtime,
            _ => return None,
        })
    }

    /// What priorities of contexts count more.
    const fn shift(self) -> i32 {
        match self {
            Self::Idle => -14,
            Self::BelowNormal => -3,
            Self::Normal => 0,
            Self::AboveNormal => 3,
            Self::High => 6,
            Self::Realtime => 14,
        }
    }
}

/// How important the work of a context is among that of its process at the same level, by WDDM's
/// in-process priority (`D3DKMT_SETCONTEXTINPROCESSSCHEDULINGPRIORITY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct InProcess(i8);

impl InProcess {
    /// That of this priority, -7 to 7; 0 at first.
    pub fn of(priority: i32) -> Option<Self> {
        let priority = i8::try_from(priority).ok()?;
        (-7..=7).contains(&priority).then_some(Self(priority))
    }

    /// The priority that [`Self::of`] was told, -7 to 7.
    pub fn priority(self) -> i32 {
        self.0.into()
    }
}

/// A set of levels, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels(u16);

impl Levels {
    fn only(level: Level) -> Self {
        Self(1 << level.0)
    }

    fn highest(self) -> Option<Level> {
        u8::try_from(self.0.checked_ilog2()?).ok().map(Level)
    }

    /// Those that are lower than `level`.
    fn below(self, level: Level) -> Self {
        // No overflow: a power of two.
        Self(self.0 & (Self::only(level).0 - 1))
    }

    /// Its levels, from the highest.
    fn iter(mut self) -> impl Iterator<Item = Level> {
        core::iter::from_fn(move || {
            let highest = self.highest()?;
            self = self.below(highest);
            Some(highest)
        })
    }
}

impl FromIterator<Level> for Levels {
    fn from_iter<I: IntoIterator<Item = Level>>(levels: I) -> Self {
        let levels = levels.into_iter().map(Self::only);
        levels.fold(Self(0), |all, level| Self(all.0 | level.0))
    }
}

/// How long turns, waits and protection last, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A context's turn, at least 1.
    pub quantum: u64,
    /// How long a level waits until it is served though higher ones wait.
    pub patience: u64,
    /// How long who is protected runs at least.
    pub protection: u64,
}

/// How often in a row a context is preempted within [`Limits::protection`] before it is protected.
const MAX_STRIKES: u8 = 8;

/// Turns that a context can owe: what it takes beyond is forgiven.
const MAX_DEBT: u64 = 16;

/// How often in a row others of its process take a context's place.
const MAX_PASSES: u8 = 100;

/// Packets after which a turn is over, however little they use: what a packet uses at least is less
/// than a turn by this.
const MAX_PACKETS: u64 = 4096;

/// What is remembered of a context. The turn of a new one is over, and of one that is new at its
/// level: who makes contexts, or moves them, all the time does not keep others waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Ticks until its turn is over, at most a turn; it is, at 0 and below.
    left: i64,
    /// How often in a row it was preempted before it got anywhere.
    strikes: u8,
    /// How often others of its process took its place since it was last served.
    passes: u8,
    /// Ticks of its longest packet; of one before the last, half of it, and so on.
    longest: u64,
    /// Ticks of the packet that runs which are taken from `left` already.
    settled: u64,
}

impl Turn {
    /// Ticks until the turn is over; 0 or less if it is.
    pub fn left(&self) -> i64 {
        self.left
    }

    /// A packet of the context has used `ticks`, at most `crowded` of them while others had work:
    /// what nobody else wanted is not owed.
    pub fn charge(&mut self, ticks: u64, crowded: u64, limits: &Limits) {
        let least = limits.quantum.checked_div(MAX_PACKETS).unwrap_or(0).max(1);
        let ticks = ticks.max(least);
        self.longest = ticks.max(self.longest / 2);
        self.settle(ticks, crowded, limits);
        self.settled = 0;
        self.passes = 0;
    }

    /// The context is moved to another level; what runs of it has used `ticks` so far, and of
    /// these, at the level that it leaves, at most `crowded` while others had work there.
    pub fn moved(&mut self, ticks: u64, crowded: u64, limits: &Limits) {
        self.settle(ticks, crowded, limits);
        self.left = self.left.min(0);
    }

    fn settle(&mut self, ticks: u64, crowded: u64, limits: &Limits) {
        let new = ticks.saturating_sub(self.settled);
        let debt = signed(limits.quantum.saturating_mul(MAX_DEBT));
        let most = self.left.min(0).saturating_sub(signed(crowded));
        self.left = self.left.saturating_sub(signed(new)).max(most).max(-debt);
        self.settled = ticks;
    }

    /// Whether the turn is over: others of the level go first.
    pub fn is_over(&self) -> bool {
        self.left <= 0
    }

    /// Whether one of its packets is a quarter of a turn, or more: several that run before anybody
    /// looks are more than it can owe.
    pub fn is_long(&self, limits: &Limits) -> bool {
        self.longest >= limits.quantum / 4
    }

    /// How often it has to be renewed until it is not over; at least once.
    pub fn rounds(&self, limits: &Limits) -> u64 {
        let owed = u64::try_from(self.left.saturating_neg()).unwrap_or(0);
        // No overflow: divided.
        owed.checked_div(limits.quantum)
            .unwrap_or(0)
            .saturating_add(1)
    }

    /// `rounds` begin: what is owed is a quantum less with each.
    pub fn renew(&mut self, rounds: u64, limits: &Limits) {
        let more = limits.quantum.saturating_mul(rounds);
        let left = self.left.saturating_add(signed(more));
        self.left = left.min(signed(limits.quantum));
    }

    /// Something of its process that is more important there wants its place. Whether that gets it;
    /// if not, it is served, and protected.
    pub fn is_passed(&mut self) -> bool {
        self.passes = match self.passes < MAX_PASSES {
            true => self.passes.saturating_add(1),
            false => 0,
        };
        self.passes > 0
    }

    /// Gives what is left of it to `other`, of the same process and level, and takes what `other`
    /// has: together they have what they had.
    pub fn lend(&mut self, other: &mut Self) {
        swap(&mut self.left, &mut other.left);
    }

    /// The context was preempted after it ran for `ran` ticks.
    pub fn preempted(&mut self, ran: u64, limits: &Limits) {
        self.strikes = match ran < limits.protection {
            true => self.strikes.saturating_add(1),
            false => 0,
        };
    }

    /// One of the context's packets was completed: it has got somewhere.
    pub fn completed(&mut self) {
        self.strikes = 0;
    }

    /// Whether the first of what it starts now is protected.
    pub fn is_protected(&self) -> bool {
        self.strikes >= MAX_STRIKES
    }
}

/// What begins when the turns of all contexts of a level are over that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The next turns of all that have work, after so many rounds.
    All(u64),
    /// Somebody has his turn whose work is all in the ring: one of those that wait goes on behind
    /// that. As many rounds of their debts are forgiven as all of them owe, so that nobody gets to
    /// where more is forgiven him than others.
    Behind(u64),
}

impl Round {
    /// What begins for contexts with these turns, which have all of their work `in_ring` or are
    /// `waiting`; the turns of the latter are over.
    pub fn of(
        in_ring: impl IntoIterator<Item = Turn>,
        waiting: impl IntoIterator<Item = Turn>,
        limits: &Limits,
    ) -> Self {
        let rounds = |turn: Turn| turn.rounds(limits);
        let waiting = waiting.into_iter().map(rounds).min().unwrap_or(1);
        let over = |turn: Turn| turn.is_over().then(|| rounds(turn));
        let mut in_ring = in_ring.into_iter();
        match in_ring.try_fold(waiting, |least, turn| {
            over(turn).map(|rounds| least.min(rounds))
        }) {
            Some(rounds) => Self::All(rounds),
            None => Self::Behind(waiting.saturating_sub(1)),
        }
    }
}

/// The packet that an engine works on, for whom it may have to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Level of the context whose packet runs.
    pub level: Level,
    /// The level at which the same context waits, with more of its work.
    pub own: Option<Level>,
    /// For how many ticks the packet has run, as far as it is known.
    pub ran: u64,
    /// What was left of the context's turn before that.
    pub left: i64,
    /// For how many ticks the context has had the engine, with its packets before this one.
    pub stint: u64,
    /// Whether it is left alone for a while.
    pub protected: bool,
    /// Whether it does nothing but wait for a value.
    pub waits: bool,
    /// Whether something of the same process and level waits, or is queued, that is more important
    /// there.
    pub outranked: bool,
}

/// The scheduler of one node. Contexts themselves wait in lists of the caller's, two for each
/// level: one of those whose turn is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// How long turns are, and how long others may wait.
    limits: Limits,
    /// By level: how many contexts wait.
    waiting: [u32; LEVELS],
    /// Those at which some do: most of what is asked is about all levels.
    occupied: Levels,
    /// By level: when it was last served, or began to wait, be it in the ring.
    since: [u64; LEVELS],
    /// By level: until when one context of it had work, or none.
    alone: [u64; LEVELS],
    /// Whether the last one to be taken was so for having waited long: then it is the highest's
    /// turn, however many others starve.
    aged: bool,
}

impl Scheduler {
    /// The scheduler of a node for which no context waits.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            waiting: [0; LEVELS],
            occupied: Levels(0),
            since: [0; LEVELS],
            alone: [0; LEVELS],
            aged: false,
        }
    }

    /// How long turns, waits and protection last, as given to [`Self::new`].
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A context of `level` waits.
    pub fn wait(&mut self, level: Level) {
        if let Some(waiting) = self.waiting.get_mut(level.index()) {
            *waiting = waiting.saturating_add(1);
            self.occupied.0 |= Levels::only(level).0;
        }
    }

    /// No context of `level` had work until `now`, in the ring or not: who comes waits from now on.
    pub fn was_idle(&mut self, level: Level, now: u64) {
        self.served(level, now);
    }

    /// No more than one context of `level` had work until `now`.
    pub fn was_alone(&mut self, level: Level, now: u64) {
        if let Some(alone) = self.alone.get_mut(level.index()) {
            *alone = now;
        }
    }

    /// How long, until `now`, several contexts of `level` have had work.
    pub fn crowded(&self, level: Level, now: u64) -> u64 {
        let alone = self.alone.get(level.index()).copied().unwrap_or(now);
        now.saturating_sub(alone)
    }

    /// A context of `level` is served, and waits no more.
    pub fn take(&mut self, level: Level) {
        self.aged = self.highest(None, Levels::default()) > Some(level);
        self.leave(level);
    }

    /// A context of `level` waits no more.
    pub fn leave(&mut self, level: Level) {
        if let Some(waiting) = self.waiting.get_mut(level.index()) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.occupied.0 &= !Levels::only(level).0;
            }
        }
    }

    /// Whether any context waits.
    pub fn is_waited_for(&self) -> bool {
        self.occupied.highest().is_some()
    }

    /// The engine has worked for `level` until now.
    pub fn served(&mut self, level: Level, now: u64) {
        if let Some(since) = self.since.get_mut(level.index()) {
            *since = now;
        }
    }

    /// The level whose turn it is: the highest, or a lower one that starves, and whether it is for
    /// that. Who is served for that is protected, and goes behind its equals. What is in the ring,
    /// of the levels `queued`, comes before more of these is served for that.
    pub fn next(&self, queued: Levels, now: u64) -> Option<(Level, bool)> {
        let highest = self.highest(None, Levels::default())?;
        let others = Levels(self.occupied.0 & !queued.0);
        let starving = match self.aged {
            true => None,
            false => self.starving(highest, others, now),
        };
        Some((starving.unwrap_or(highest), starving.is_some()))
    }

    /// Whether `running` has to make room at the time `now`: for who waits here, or for others'
    /// work that is queued behind it, of the levels `queued`.
    pub fn preempts(&self, running: Running, queued: Levels, now: u64) -> bool {
        let protected = running.protected && running.ran < self.limits.protection && !running.waits;
        if running.level == Level::SYSTEM || protected {
            return false;
        }
        // Whose turn was over before goes on behind who has one, and makes room for him again, but
        // not for each of his packets at once.
        let begun = running.left > 0 || running.stint >= self.limits.protection;
        let over = begun && running.left <= signed(running.ran);
        match self.highest(running.own, queued) {
            Some(_) if running.waits => true,
            Some(waiting) if waiting > running.level => true,
            Some(waiting) if waiting == running.level && (over || running.outranked) => true,
            _ => {
                let waiting = self.levels(running.own, queued);
                over && self.starving(running.level, waiting, now).is_some()
            }
        }
    }

    /// Whether that may come to be: somebody waits here, or is queued behind it.
    pub fn is_contended(&self, running: Running, queued: Levels) -> bool {
        running.level != Level::SYSTEM && self.highest(running.own, queued).is_some()
    }

    fn highest(&self, but: Option<Level>, queued: Levels) -> Option<Level> {
        self.levels(but, queued).highest()
    }

    /// Of those of `waiting` below `level` that have waited for long the one that has for the
    /// longest.
    fn starving(&self, level: Level, waiting: Levels, now: u64) -> Option<Level> {
        let since = |level: &Level| self.since.get(level.index()).copied().unwrap_or(now);
        // Of equals the lowest.
        waiting
            .below(level)
            .iter()
            .filter(|other| now.saturating_sub(since(other)) > self.limits.patience)
            .min_by_key(|other| (since(other), *other))
    }

    /// Those of `queued`, and at which somebody waits but for one context at the level `but`.
    fn levels(&self, but: Option<Level>, queued: Levels) -> Levels {
        let alone = but.filter(|level| self.waiting.get(level.index()) <= Some(&1));
        let others = alone.map_or(Levels(0), Levels::only);
        Levels(self.occupied.0 & !others.0 | queued.0)
    }
}

fn signed(ticks: u64) -> i64 {
    i64::try_from(ticks).unwrap_or(i64::MAX)
}
