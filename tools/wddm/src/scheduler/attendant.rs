// SPDX-License-Identifier: MIT

//! The attendant: a thread that does updates of addresses whose turn has come, since its value is
//! reached, and those of its context before it are done.
//!
//! A device has none before the first update that has to wait. It sleeps on an eventfd that the
//! kernel adds to when a value is reached that an update waits for, or the device fails.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use libskua::Deadline;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

use super::{Point, Scheduler, State};
use crate::{
    fence::Fence,
    lock,
    status::{Result, Status},
};

/// How long what the kernel has no memory for is left alone.
const RETRY: Duration = Duration::from_millis(20);

/// What the attendant has to do.
#[derive(Debug, Default)]
pub(super) struct Errands {
    /// The attendant, from the first errand on.
    thread: Option<JoinHandle<()>>,
    /// Whether the thread is to end.
    stopping: bool,
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

    /// What the attendant does until the device is destroyed.
    fn keep(&self) {
        let mut pause: Option<Duration> = None;
        loop {
            let mut fds = [PollFd::new(&self.kick, PollFlags::IN)];
            let limit = pause.and_then(|pause| Timespec::try_from(pause).ok());
            match rustix::event::poll(&mut fds, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => {}
                // It cannot fail otherwise.
                Err(_) => return,
            }
            // Nothing to read is no error here.
            let _ = rustix::io::read(&self.kick, &mut [0; 8]);
            let mut state = lock(&self.state);
            if state.errands.stopping {
                return;
            }
            self.poll(&mut state);
            pause = state.errands.again.then_some(RETRY);
        }
    }

    /// Looks at all updates once.
    fn poll(&self, state: &mut State) {
        state.errands.again = false;
        // First: what is reached is no reason not to watch a later value.
        state.forget_watched();
        let contexts: Vec<u64> = state.queues.keys().copied().collect();
        for context in contexts {
            self.update(state, context);
        }
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
        let state = lock(&self.state);
        let views: Vec<_> = state
            .fences
            .values()
            .filter_map(|fence| fence.take_view())
            .collect();
        drop(state);
        for view in views {
            view.retire(Vec::new());
        }
        self.tables.sweep_all();
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
