// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An engine: it fetches commands from a ring and executes them (manual sections 2, 7).
//!
//! | module | what |
//! |---|---|
//! | [`core`] | what an engine does, as a value that is stepped |
//! | [`packet`] | the part of it that runs a buffer for a context |
//! | [`save`] | the part of it that stops one and goes on later |
//! | `held` | the part of it that keeps a context from packet to packet |
//! | [`worker`] | the thread around a core |
//! | `lockstep` | one thread around all of them |
//! | [`alarm`] | what wakes these threads |
//! | `pace` | how long the steps are |
//! | `watch` | what the thread tells a record of it |
//!
//! This file is the side that the registers see. [`Engine`] holds what the registers' thread tells
//! the worker, in a mailbox under a short lock, and what the engine shows. Raising
//! `Engine::attention` makes a busy worker look at its mailbox behind the step; an alarm wakes an
//! idle or waiting one.

pub mod alarm;
pub mod core;
mod held;
pub(crate) mod lockstep;
pub(crate) mod pace;
pub mod packet;
pub mod save;
mod watch;
pub mod worker;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skua_spec::command::EngineKind;
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::status::EngineState;

use crate::engine::alarm::Alarm;

/// Invalidation requests that a mailbox keeps one by one; more of them drop everything.
const MAX_INVALIDATIONS: usize = 64;

/// A ring as it was latched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// GPU-physical address of the ring's first byte.
    pub base: u64,
    /// Length of the ring in bytes.
    pub size: u32,
}

/// How long interrupts of packets' ends may wait for others, as it was latched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Ticks from the first end that waits.
    pub ticks: u64,
    /// Ends that wait at most; 0 is any number.
    pub ends: u32,
}

/// Requests to an engine that its thread has not taken.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// The engine was enabled, with this ring.
    pub(crate) enable: Option<(Ring, Moderation)>,
    /// Engine resets to acknowledge.
    pub(crate) resets: u32,
    /// The engine is to be reset if it has completed no fence id of at least this; 0: not at all.
    pub(crate) reset_below: u64,
    /// An adapter reset to do.
    pub(crate) adapter_reset: bool,
    /// Address spaces whose translations are to be dropped; `None` is all of them.
    pub(crate) invalidations: Vec<Option<Asid>>,
    /// The number of the last of them that a register asked for.
    pub(crate) invalidate_count: Option<u32>,
    /// The number of the last of them that an engine asked for, see [`Engine::has_dropped`].
    pub(crate) asked: u64,
    /// A preemption to do, by its fence id.
    pub(crate) preempt: Option<u64>,
    /// The status page was enabled: write the whole block.
    pub(crate) publish: bool,
    /// Whether the device ends: the engine's thread is to end, too.
    pub(crate) shutdown: bool,
}

impl Mail {
    /// Whether the engine must leave what it executes.
    pub(crate) const fn stops(&self) -> bool {
        self.reset_below != 0 || self.adapter_reset || self.shutdown
    }

    fn add_invalidation(&mut self, asid: Option<Asid>) {
        let list = &mut self.invalidations;
        if list.len() < MAX_INVALIDATIONS {
            list.push(asid);
        } else {
            list.clear();
            list.push(None);
        }
    }
}

/// What the registers' thread tells an engine.
#[derive(Debug, Default)]
struct Mailbox {
    /// Whether the engine is enabled, as the control register shows it.
    enabled: bool,
    /// Invalidations that other engines have asked for.
    asked: u64,
    /// A preemption was asked for that has no record yet.
    preempting: bool,
    /// Resets were taken that are not acknowledged yet.
    resetting: bool,
    /// Collected until the worker takes it.
    mail: Mail,
}

impl Mailbox {
    /// Whether what the driver asks of the engine is ignored.
    const fn is_deaf(&self) -> bool {
        self.resetting || self.mail.stops()
    }
}

/// The side of an engine that the registers see.
#[derive(Debug)]
pub struct Engine {
    /// The engine's number, below the number of engines.
    pub index: EngineIndex,
    /// Whether it computes or copies.
    pub kind: EngineKind,
    /// Written by the registers' thread, emptied by the worker.
    mailbox: Mutex<Mailbox>,
    /// Rung for the worker behind every change that it may wait for.
    alarm: Arc<Alarm>,
    /// There is mail: looked at behind each step, without the lock.
    attention: AtomicBool,
    /// What DOORBELL was last given: the offset in the ring behind the last command, in bytes.
    tail: AtomicU32,
    /// Published by the worker, for HEAD.
    head: AtomicU32,
    /// Published by the worker, for STATUS; an [`EngineState`].
    state: AtomicU32,
    /// How many of the invalidations that other engines have asked for are done.
    dropped: AtomicU64,
}

impl Engine {
    /// An engine that is disabled, whose worker is woken by `alarm`.
    pub fn new(index: EngineIndex, kind: EngineKind, alarm: Arc<Alarm>) -> Self {
        Self {
            index,
            kind,
            mailbox: Mutex::default(),
            alarm,
            attention: AtomicBool::new(false),
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
            state: AtomicU32::new(EngineState::Disabled as u32),
            dropped: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something into the mailbox and makes the engine look.
    fn post<T>(&self, f: impl FnOnce(&mut Mailbox) -> T) -> T {
        let result = {
            let mut mailbox = self.lock();
            let result = f(&mut mailbox);
            self.attention.store(true, Ordering::Release);
            result
        };
        self.alarm.ring();
        result
    }

    /// Whether the control register shows the engine as enabled.
    pub fn is_enabled(&self) -> bool {
        self.lock().enabled
    }

    /// Starts fetching from `ring`. Ignored while the engine is enabled or a reset is under way.
    pub fn enable(&self, ring: Ring, moderation: Moderation) {
        self.post(|m| {
            if !m.enabled && !m.is_deaf() {
                m.enabled = true;
                m.mail.enable = Some((ring, moderation));
                self.tail.store(0, Ordering::Release);
            }
        });
    }

    /// The doorbell: a new tail. Ignored while the engine is disabled or faulted, or a reset is
    /// under way.
    pub fn ring_doorbell(&self, tail: u32) {
        let heeded = {
            let mailbox = self.lock();
            let faulted = self.state() == EngineState::Faulted as u32;
            let heeded = mailbox.enabled && !faulted && !mailbox.is_deaf();
            if heeded {
                self.tail.store(tail, Ordering::Release);
            }
            heeded
        };
        if heeded {
            self.alarm.ring();
        }
    }

    /// Asks for a preemption. Whether that is heeded: not while one is outstanding, or the engine
    /// is disabled or faulted, or a reset is under way.
    pub fn preempt(&self, fence: u64) -> bool {
        self.post(|m| {
            let faulted = self.state() == EngineState::Faulted as u32;
            let heeded = m.enabled && !faulted && !m.preempting && !m.is_deaf();
            if heeded {
                (m.preempting, m.mail.preempt) = (true, Some(fence));
            }
            heeded
        })
    }

    /// Has `tell` write a preemption's record. Who sees it may ask for another one, and nobody
    /// before: who asks meanwhile waits.
    fn preempted(&self, tell: impl FnOnce()) {
        let mut mailbox = self.lock();
        tell();
        mailbox.preempting = false;
    }

    /// Has `tell` acknowledge the resets that were taken, as [`Self::preempted`] does a preemption.
    fn was_reset(&self, tell: impl FnOnce()) {
        let mut mailbox = self.lock();
        tell();
        mailbox.resetting = false;
    }

    /// Asks for one more reset: unless the packet with this fence id has ended, or in any case if
    /// that is 0.
    pub fn reset(&self, fence: u64) {
        self.post(|m| {
            m.mail.resets = m.mail.resets.saturating_add(1);
            let below = if fence == 0 { u64::MAX } else { fence };
            m.mail.reset_below = m.mail.reset_below.max(below);
        });
    }

    /// Asks for the engine's part of an adapter reset.
    pub fn reset_adapter(&self) {
        self.post(|m| m.mail.adapter_reset = true);
    }

    /// Asks for the whole block in the status page to be written.
    pub fn publish(&self) {
        self.post(|m| m.mail.publish = true);
    }

    /// Ends the thread.
    pub fn shut_down(&self) {
        self.post(|m| m.mail.shutdown = true);
    }

    /// Asks for translations to be dropped; `count` is the number of the request.
    pub fn invalidate(&self, asid: Option<Asid>, count: u32) {
        self.post(|m| {
            m.mail.add_invalidation(asid);
            m.mail.invalidate_count = Some(count);
        });
    }

    /// Asks for translations to be dropped because another engine executes INVALIDATE. Returns the
    /// number of the request, for [`Self::has_dropped`].
    pub(crate) fn invalidate_for_another(&self, asid: Option<Asid>) -> u64 {
        self.post(|m| {
            m.mail.add_invalidation(asid);
            m.asked += 1;
            m.asked
        })
    }

    /// Whether the request `number` of another engine is done.
    pub(crate) fn has_dropped(&self, number: u64) -> bool {
        self.dropped.load(Ordering::Acquire) >= number
    }

    /// The requests of other engines up to `number` are done. Whether any was new.
    fn dropped(&self, number: u64) -> bool {
        self.dropped.swap(number, Ordering::AcqRel) != number
    }

    /// Makes an engine in WAIT look again.
    pub fn poke(&self) {
        if self.state.load(Ordering::Acquire) == EngineState::Waiting as u32 {
            self.wake_up();
        }
    }

    /// Makes an engine look again that may wait for a value or for other engines.
    pub(crate) fn wake_up(&self) {
        self.alarm.ring();
    }

    /// What the doorbell was last given.
    pub fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Offset of the next command.
    pub fn head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// State, as [`EngineState`]'s number.
    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Shows state and head in the registers.
    fn show(&self, state: EngineState, head: u32) {
        self.state.store(state as u32, Ordering::Release);
        self.head.store(head, Ordering::Release);
    }

    /// Whether there is something in the mailbox: cheap, for the engine at work.
    fn has_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// Takes all requests, between two steps, of which the engine has completed the packets up to
    /// the fence id `completed`. A reset disables the engine in the same moment; what the driver
    /// writes counts again from [`Self::was_reset`] on.
    fn take(&self, completed: u64) -> Mail {
        let mut mailbox = self.lock();
        self.attention.store(false, Ordering::Release);
        let mut mail = std::mem::take(&mut mailbox.mail);
        mail.asked = mailbox.asked;
        mailbox.resetting = mail.resets != 0 && !mail.adapter_reset;
        if completed >= mail.reset_below && mail.reset_below != u64::MAX {
            mail.reset_below = 0;
        }
        if mail.stops() {
            mailbox.enabled = false;
            (mail.enable, mail.preempt, mailbox.preempting) = (None, None, false);
            self.tail.store(0, Ordering::Release);
        }
        mail
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    const RING: Ring = Ring {
        base: 0,
        size: 0x1000,
    };

    fn enabled() -> Engine {
        let engine = Engine::new(EngineIndex::default(), EngineKind::Copy, Arc::default());
        engine.enable(RING, Moderation::default());
        assert!(engine.take(0).enable.is_some());
        engine
    }

    /// What is asked while `answer` is being given waits for it, and is heeded.
    fn expect_heeded_behind(engine: &Engine, answer: impl FnOnce(&dyn Fn()), ask: fn(&Engine)) {
        let (told, asked) = (&AtomicBool::new(false), &AtomicBool::new(false));
        thread::scope(|scope| {
            answer(&|| {
                scope.spawn(move || {
                    ask(engine);
                    assert!(told.load(Ordering::Acquire));
                    asked.store(true, Ordering::Release);
                });
                thread::sleep(Duration::from_millis(50));
                told.store(true, Ordering::Release);
            });
        });
        assert!(asked.load(Ordering::Acquire));
    }

    #[test]
    fn a_preemption_is_heeded_once_the_record_is_there() {
        let engine = enabled();
        assert!(engine.preempt(1));
        assert_eq!(engine.take(0).preempt, Some(1));
        assert!(!engine.preempt(2));
        let ask = |engine: &Engine| assert!(engine.preempt(3));
        expect_heeded_behind(&engine, |tell| engine.preempted(tell), ask);
        assert_eq!(engine.take(0).preempt, Some(3));
    }

    /// Whether it is void or not.
    #[test]
    fn an_engine_is_deaf_until_its_reset_is_acknowledged() {
        for fence in [0, 5] {
            let engine = enabled();
            engine.ring_doorbell(8);
            engine.reset(fence);
            let mail = engine.take(5);
            assert_eq!((mail.resets, mail.stops()), (1, fence == 0));
            engine.enable(RING, Moderation::default());
            engine.ring_doorbell(16);
            assert!(!engine.preempt(1));
            let mail = engine.take(5);
            assert!(mail.enable.is_none() && mail.preempt.is_none());
            assert_eq!(engine.tail(), if fence == 0 { 0 } else { 8 });
        }
        let engine = enabled();
        engine.reset(0);
        engine.take(0);
        let ask = |engine: &Engine| {
            engine.enable(RING, Moderation::default());
            engine.ring_doorbell(8);
        };
        expect_heeded_behind(&engine, |tell| engine.was_reset(tell), ask);
        assert!(engine.is_enabled());
        assert_eq!(engine.tail(), 8);
    }
}
