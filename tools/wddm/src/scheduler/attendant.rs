// SPDX-License-Identifier: MIT

//! The attendant: a thread for what the kernel has no call for yet, and that nobody waits for.
//!
//! | errand | when |
//! |---|---|
//! | an update of addresses | its value is reached, and those of its context before it are done |
//! | memory that was destroyed is given back | what was queued before is done, held work included |
//! | where the GPU sees a value it is written | it has changed |
//! | callbacks are told to trim | the kernel says so |
//!
//! A device has none before its first errand. It sleeps on an eventfd that the kernel adds to when
//! a value is reached that an errand waits for, or the device fails.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, MutexGuard, TryLockError},
    thread::JoinHandle,
    time::Duration,
};

use libskua::{Deadline, Mapping};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

use super::{Point, Scheduler, State};
use crate::{
    fence::Fence,
    lock,
    memory::Memory,
    status::{Result, Status},
};

/// How long what the kernel has no memory for is left alone.
const RETRY: Duration = Duration::from_millis(20);

/// How long it waits for the scheduler's lock where it writes what the GPU may wait for.
const BUSY: Duration = Duration::from_millis(1);

/// Memory that was destroyed and may still be used.
#[derive(Debug)]
struct Dying {
    /// Values that fences have when its last uses have ended.
    uses: Vec<Point>,
    /// What is given back when they are done.
    memory: Arc<Memory>,
}

/// Where the GPU sees a fence's value.
#[derive(Debug)]
pub(super) struct Mirror {
    /// The fence whose value is shown.
    fence: Arc<Fence>,
    /// A word at an address of the device.
    memory: Arc<Memory>,
    /// Where the attendant writes it.
    cpu: Mapping,
    /// The value that the kernel was asked to tell of last.
    watched: u64,
}

impl Mirror {
    fn write(&self, value: u64) {
        // Its first word is there.
        let _ = self.cpu.write(0, value);
    }
}

/// What the attendant has to do.
#[derive(Debug, Default)]
pub(super) struct Errands {
    /// The attendant, from the first errand on.
    thread: Option<JoinHandle<()>>,
    /// Whether the thread is to end, after one look more.
    stopping: bool,
    /// Memory that goes when its users are done.
    dying: Vec<Dying>,
    /// Values that the kernel will tell of, by the fence's number.
    watched: BTreeMap<(u64, u64), Arc<Fence>>,
    /// There was no memory for something: it is tried again after a while.
    pub(super) again: bool,
}

impl Errands {
    /// Has the attendant look when a value is reached, or a smaller one: then it watches this one.
    /// So the kernel is asked for few values, however many there are to wait for.
    pub(super) fn watch(&mut self, kick: BorrowedFd<'_>, fence: &Arc<Fence>, value: u64) {
        let mut earlier = self.watched.range((fence.id, 0)..=(fence.id, value));
        if earlier.next().is_some() {
            return;
        }
        match fence.raw.notify(value, kick) {
            Ok(()) => _ = self.watched.insert((fence.id, value), fence.clone()),
            Err(_) => self.again = true,
        }
    }
}

impl State {
    /// Forgets values that are reached, and those of destroyed fences for which nothing waits.
    fn forget_watched(&mut self) {
        let Self {
            errands, queues, ..
        } = self;
        let is_waited_for = |fence: &Fence| {
            let firsts = queues.values().filter_map(|queue| queue.updates.front());
            let mut waits = firsts.filter_map(|update| update.wait.as_ref());
            waits.any(|(waited, _)| waited.id == fence.id)
        };
        errands.watched.retain(|(_, value), fence| {
            !fence.reached(*value) && (!fence.is_closed() || is_waited_for(fence))
        });
    }
}

impl Scheduler {
    /// Sees to it that there is an attendant. NO_MEMORY.
    pub(super) fn attend(&self, state: &mut State) -> Result<()> {
        if state.errands.thread.is_none() && !state.errands.stopping {
            let scheduler = self.me.upgrade().ok_or(Status::INVALID_HANDLE)?;
            let thread = std::thread::Builder::new()
                .name("wddm-attendant".into())
                .spawn(move || scheduler.keep())
                .map_err(|_| Status::NO_MEMORY)?;
            state.errands.thread = Some(thread);
            // Without memory for it the device's end is seen at the next errand.
            let _ = self.tables.watch_life(self.kick.as_fd());
        }
        self.kick();
        Ok(())
    }

    /// Gives memory back when everything that is queued now is done.
    pub(crate) fn destroy_memory(&self, memory: Arc<Memory>) {
        let mut state = lock(&self.state);
        if state.errands.stopping {
            // Nobody sees to it any more, and nothing is queued.
            drop(state);
            drop(memory);
            return;
        }
        self.destroy_memory_locked(&mut state, memory);
    }

    pub(super) fn destroy_memory_locked(&self, state: &mut State, memory: Arc<Memory>) {
        let uses = Self::uses_of(state);
        // Without a thread for it the next errand's sees to it.
        state.errands.dying.push(Dying { uses, memory });
        let _ = self.attend(state);
    }

    /// Where the GPU sees a fence's value, from now on.
    pub(crate) fn mirror(&self, fence: &Arc<Fence>) -> Result<u64> {
        let of = |mirrors: &[Mirror]| {
            let mirror = mirrors.iter().find(|mirror| mirror.fence.id == fence.id);
            mirror.map(|mirror| mirror.memory.va())
        };
        self.check_alive()?;
        if let Some(va) = of(&lock(&self.mirrors)) {
            return Ok(va);
        }
        // Binds memory, which nobody else shall wait for.
        let (memory, cpu) = Memory::word(&self.tables)?;
        let mut state = self.alive()?;
        if fence.is_closed() {
            return Err(Status::INVALID_HANDLE);
        }
        let mut mirrors = lock(&self.mirrors);
        if let Some(va) = of(&mirrors) {
            return Ok(va);
        }
        self.attend(&mut state)?;
        let mirror = Mirror {
            fence: fence.clone(),
            memory: Arc::new(memory),
            cpu,
            watched: 0,
        };
        mirror.write(fence.value());
        let va = mirror.memory.va();
        mirrors.push(mirror);
        drop(mirrors);
        drop(state);
        self.kick();
        Ok(va)
    }

    /// A fence is about to be destroyed: where the GPU sees its value, that stays as it is, as long
    /// as there is work that may look.
    pub(super) fn forget_fence(&self, state: &mut State, fence: &Arc<Fence>) {
        let mut mirrors = lock(&self.mirrors);
        let gone = mirrors.iter().position(|m| m.fence.id == fence.id);
        let gone = gone.map(|index| mirrors.swap_remove(index));
        drop(mirrors);
        if let Some(Mirror { memory, .. }) = gone {
            self.destroy_memory_locked(state, memory);
        }
    }

    /// What the attendant does until the device is destroyed.
    fn keep(&self) {
        let mut pause: Option<Duration> = None;
        loop {
            let skua = self.adapter().libskua();
            let mut fds = vec![PollFd::new(&self.kick, PollFlags::IN)];
            // Of a GPU that is gone there is nothing to read.
            if !self.tables.is_lost() {
                fds.push(PollFd::new(skua, PollFlags::IN));
            }
            let limit = pause.and_then(|pause| Timespec::try_from(pause).ok());
            match rustix::event::poll(&mut fds, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => {}
                // It cannot fail otherwise.
                Err(_) => return,
            }
            // Nothing to read is no error here.
            let _ = rustix::io::read(&self.kick, &mut [0; 8]);
            self.adapter().read_events();
            let again = self.reflect();
            let Some(mut state) = self.state_to_poll() else {
                pause = Some(BUSY);
                continue;
            };
            let done = self.poll(&mut state);
            pause = (again || state.errands.again).then_some(RETRY);
            let stopping = state.errands.stopping;
            drop(state);
            // With no lock held.
            drop(done);
            if stopping {
                return;
            }
        }
    }

    /// Writes the values that the GPU sees; whether it is to be tried again after a while.
    fn reflect(&self) -> bool {
        let mut again = false;
        for mirror in lock(&self.mirrors).iter_mut() {
            let value = mirror.fence.value();
            mirror.write(value);
            let next = value.saturating_add(1);
            if next <= mirror.watched || next == u64::MAX || self.tables.is_lost() {
                continue;
            }
            match mirror.fence.raw.notify(next, self.kick.as_fd()) {
                Ok(()) => mirror.watched = next,
                Err(_) => again = true,
            }
        }
        again
    }

    /// The state, or `None` if it is to be tried again. While a submission waits for room with it
    /// locked, what makes that room may be a value that is written where the GPU sees it.
    fn state_to_poll(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Looks at everything else once: returns what can be given back.
    fn poll(&self, state: &mut State) -> Vec<Arc<Memory>> {
        state.errands.again = false;
        let kick = self.kick.as_fd();
        let is_over = state.errands.stopping || self.tables.is_lost();
        // First: what is reached is no reason not to watch a later value.
        state.forget_watched();
        let contexts: Vec<u64> = state.queues.keys().copied().collect();
        for context in contexts {
            self.update(state, context);
        }
        let errands = &mut state.errands;
        let mut done = Vec::new();
        for dying in std::mem::take(&mut errands.dying) {
            let missing = dying.uses.iter().find(|(f, value)| !f.is_done(*value));
            match missing.filter(|_| !is_over) {
                Some((fence, value)) => {
                    errands.watch(kick, fence, *value);
                    errands.dying.push(dying);
                }
                None => done.push(dying.memory),
            }
        }
        if is_over {
            // What the kernel refuses now it refuses for good.
            errands.again = false;
        }
        done
    }

    /// Has the attendant end; nothing of the device runs any more.
    pub(crate) fn stop(&self) {
        // First: what a callback waits for may be the attendant's to do.
        self.trims.stop();
        let thread = {
            let mut state = lock(&self.state);
            state.errands.stopping = true;
            state.errands.thread.take()
        };
        self.kick();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        let mut state = lock(&self.state);
        let done = self.poll(&mut state);
        drop(state);
        let mirrors = std::mem::take(&mut *lock(&self.mirrors));
        drop((done, mirrors));
    }

    pub(super) fn kick(&self) {
        // At its limit it is readable already.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Waits until everything that is queued now is done, well or not, or was cancelled.
    pub(crate) fn settle(&self) {
        let uses = Self::uses_of(&lock(&self.state));
        self.wait_for_all(&uses);
    }

    /// The end of the device ends this, too.
    pub(super) fn wait_for_all(&self, uses: &[Point]) {
        for uses in uses.chunks(crate::fence::MAX_AT_ONCE) {
            let waits: Vec<_> = uses.iter().map(|(f, value)| (&f.raw, *value)).collect();
            let how = libskua::WaitFor::All;
            persist(|| libskua::MonitoredFence::wait_many(&waits, how, Deadline::NEVER));
        }
    }
}

/// Waits, and again as long as the kernel has no memory for that: what is waited for is not over
/// then. Any other error says that it is, with its device.
fn persist<T>(mut wait: impl FnMut() -> libskua::Result<T>) {
    while wait().is_err_and(|error| error.errno() == Some(Errno::NOMEM)) {
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use libskua::Error;

    use super::*;

    #[test]
    fn a_wait_that_the_kernel_has_no_memory_for_is_not_over() {
        let refused = |errno| {
            Err(Error::Ioctl {
                name: "SKUA_FENCE_WAIT",
                errno,
            })
        };
        for end in [Ok(0), refused(Errno::NODEV), refused(Errno::IO)] {
            let mut answers = vec![end, refused(Errno::NOMEM), refused(Errno::NOMEM)];
            persist(|| answers.pop().expect("nobody waits for what is over"));
            assert!(answers.is_empty(), "{answers:?}");
        }
    }
}
