// SPDX-License-Identifier: MIT

//! The keeper: the device's only thread.
//!
//! It sleeps on an eventfd, which the kernel adds to when points that matter are signalled, and
//! then looks at everything once:
//!
//! - **errors**: in each context the last point that was submitted when the watch began is
//!   watched. If it is signalled and its value is not there, work failed. So an error is
//!   noticed without anybody asking, for one system call and one wake-up per burst of work;
//! - **late signals**: those of the CPU that come behind the GPU's;
//! - **paging**: values of paging queues' fences, whose points the kernel signals;
//! - **events**: whom to tell by an eventfd that fences have their values;
//! - **trims**: what the kernel says of budgets, to whom it may concern;
//! - **packets** that the kernel had no memory for: they are tried again after a while;
//! - **the dead**: what was destroyed is given back when everything that was queued before is done.
//!
//! What is idle has no points to watch. That the GPU is unplugged then, the kernel tells everybody
//! who listens to its [`Uevents`].

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{atomic::Ordering, Arc, Mutex},
    time::Duration,
};

use libskua::{Deadline, ErrorKind, Syncobj};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

use super::{uevents::Uevents, Queue, Scheduler, State};
use crate::{
    device::DeviceState,
    fence::{self, satisfied, Cell, Fence, WaitFor},
    lock,
    memory::Memory,
    status::{Result, Status},
    trim::{TrimFlags, TrimNotification},
};

/// How long a packet that the kernel has no memory for is left alone.
const RETRY: Duration = Duration::from_millis(20);

/// A fence, and the value of it that something waits for.
pub(crate) type Point = (Arc<Fence>, u64);

/// What was destroyed and may still be used until points are settled.
#[derive(Debug)]
pub(super) struct Dying {
    /// What may still use it.
    pub(super) uses: Vec<Point>,
    /// To be dropped then.
    #[expect(dead_code, reason = "held to be dropped at the right time")]
    pub(super) memory: Vec<Arc<Memory>>,
    /// To be dropped then, too.
    pub(super) rest: Rest,
}

/// What is dropped when the points are settled.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped at the right time")]
pub(super) enum Rest {
    Nothing,
    /// A context, whose progress has its cell.
    Queue(Box<Queue>),
    Cell(CellGuard),
}

impl Dying {
    fn is_settled(&self) -> bool {
        self.uses
            .iter()
            .all(|(fence, point)| is_settled(&fence.syncobj, fence.limited(*point)))
    }

    /// The context, if it is one.
    pub(super) fn queue(&self) -> Option<&Queue> {
        match &self.rest {
            Rest::Queue(queue) => Some(queue),
            _ => None,
        }
    }

    /// Whether it is a context whose work did not do what it was to do, though nothing of it runs any
    /// more.
    fn has_failed(&self) -> bool {
        let progress = self.queue().map(|queue| &queue.progress);
        progress.is_some_and(|progress| progress.value() < progress.submitted())
    }
}

/// A cell that is free again when this is dropped.
#[derive(Debug)]
pub(super) struct CellGuard {
    /// Nobody else's until then.
    pub(super) cell: Cell,
    /// The device's free cells.
    pub(super) free: Arc<Mutex<Vec<Cell>>>,
}

impl Drop for CellGuard {
    fn drop(&mut self) {
        lock(&self.free).push(self.cell.clone());
    }
}

/// A wait that ends by an eventfd.
#[derive(Debug)]
pub(super) struct Event {
    /// What it waits for.
    pub(super) waits: Vec<Point>,
    /// All of `waits`, or one of them.
    pub(super) how: WaitFor,
    /// The eventfd, which the caller may have closed.
    pub(super) fd: OwnedFd,
}

impl Scheduler {
    /// What is queued now, in any context of the device.
    pub(crate) fn uses(&self) -> Vec<Point> {
        Self::uses_of(&lock(&self.state))
    }

    fn uses_of(state: &State) -> Vec<Point> {
        let queued = state
            .queues
            .values()
            .filter(|queue| !queue.progress.reached(queue.queued) || queue.raw.is_none())
            .map(|queue| (queue.progress.clone(), queue.queued));
        // Contexts that were destroyed may still run.
        let dying = state
            .dying
            .iter()
            .filter(|dying| matches!(dying.rest, Rest::Queue(_)))
            .flat_map(|dying| dying.uses.iter().cloned());
        queued.chain(dying).collect()
    }

    /// Gives memory back when everything that is queued now is done.
    pub(crate) fn destroy_memory(&self, memory: Arc<Memory>) {
        let mut state = lock(&self.state);
        let uses = Self::uses_of(&state);
        self.retire(
            &mut state,
            Dying {
                uses,
                memory: vec![memory],
                rest: Rest::Nothing,
            },
        );
    }

    pub(super) fn retire(&self, state: &mut State, dying: Dying) {
        // Without memory for it, the keeper's next look finds it.
        for (fence, point) in dying.uses.iter().filter(|(_, point)| *point > 0) {
            let _ = fence.syncobj.notify(*point, self.kick.as_fd());
        }
        state.dying.push(dying);
        self.kick();
    }

    /// Waits until everything up to these points is done, well or not, or was cancelled.
    pub(crate) fn settle(uses: &[Point]) -> Result<()> {
        for (fence, point) in uses {
            // Until the kernel has it, or it was cancelled.
            let held = || fence.submitted() < fence.limited(*point);
            while held() {
                fence::park(&[(fence.clone(), *point)], Deadline::NEVER, held)?;
            }
            let point = fence.limited(*point);
            if point > 0 {
                fence.syncobj.wait(point, Deadline::NEVER)?;
            }
        }
        Ok(())
    }

    /// Registers an eventfd for fences.
    pub(crate) fn add_event(
        &self,
        waits: Vec<Point>,
        how: WaitFor,
        fd: BorrowedFd<'_>,
    ) -> Result<()> {
        // The kernel tells whether it is an eventfd; this point is never signalled.
        Syncobj::create(self.adapter().libskua())?.notify(1, fd)?;
        let mut state = self.alive()?;
        let live = |(f, _): &Point| state.lines.contains_key(&f.id);
        if !waits.iter().all(live) {
            return Err(Status::INVALID_HANDLE);
        }
        if satisfied(&waits, how).is_some() {
            return fire(fd);
        }
        for (fence, value) in waits.iter().filter(|(_, value)| *value > 0) {
            fence.syncobj.notify(*value, self.kick.as_fd())?;
        }
        state.events.push(Event {
            waits,
            how,
            fd: fd
                .try_clone_to_owned()
                .map_err(|e| Status::from_errno(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?,
        });
        drop(state);
        // They may have come before the kernel knew of the keeper.
        self.kick();
        Ok(())
    }

    /// What the keeper's thread does until the device is destroyed and nothing of it runs.
    pub(crate) fn keep(&self) {
        // Without it, that the GPU is unplugged shows at the next call only.
        let uevents = Uevents::new().ok();
        self.trims.set_caller();
        let mut retry: Option<Deadline> = None;
        loop {
            let skua = self.adapter().libskua();
            let mut fds = vec![PollFd::new(&self.kick, PollFlags::IN)];
            fds.extend(uevents.iter().map(|u| PollFd::new(u, PollFlags::IN)));
            if !self.ended.load(Ordering::Acquire) {
                fds.push(PollFd::new(skua, PollFlags::IN));
            }
            let limit = retry.and_then(|at| Timespec::try_from(at.left()).ok());
            match rustix::event::poll(&mut fds, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => {}
                // It cannot fail otherwise; without it nothing would be given back.
                Err(_) => return,
            }
            // Nothing to read is no error here.
            let _ = rustix::io::read(&self.kick, &mut [0; 8]);
            if uevents.as_ref().is_some_and(Uevents::drain) {
                self.look_for_gpu();
            }
            self.adapter().read_events();
            self.tell_trim();
            let due = retry.is_some_and(|at| at.left().is_zero());
            for dying in self.look(due) {
                Self::bury(dying);
            }
            let state = lock(&self.state);
            if state.stopping && state.dying.is_empty() {
                return;
            }
            if due || !state.again {
                retry = None;
            }
            if state.again {
                retry = retry.or_else(|| Some(Deadline::after(RETRY)));
            }
        }
    }

    /// Tells who wants to know that the device is to trim.
    fn tell_trim(&self) {
        if !self.trimmed.swap(false, Ordering::AcqRel) {
            return;
        }
        // To ask has the kernel say so again, when it is so again.
        let excess = self.tables.kernel().state();
        let excess = excess.map_or(0, |state| state.resident.saturating_sub(state.budget));
        if excess > 0 {
            self.trims.call(TrimNotification {
                flags: TrimFlags::TRIM_TO_BUDGET,
                bytes_to_trim: excess,
            });
        }
    }

    /// Finds out whether the GPU is still there.
    fn look_for_gpu(&self) {
        let mut state = lock(&self.state);
        if self.cause(&state).is_some() {
            self.find_error_locked(&mut state);
        }
    }

    /// Gives back what nothing uses any more; called with no lock held.
    fn bury(dying: Dying) {
        if let Rest::Queue(queue) = &dying.rest {
            // Its value is about to become another fence's: all of its packets are done.
            queue.progress.end();
        }
    }

    /// Looks at everything once: returns what can be given back. What there was no memory for is
    /// tried again if it is `due`.
    fn look(&self, due: bool) -> Vec<Dying> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let mut failed = false;
        for queue in state.queues.values_mut() {
            if let Some(point) = queue.watched {
                if is_settled(&queue.progress.syncobj, point) {
                    queue.watched = None;
                    // The value is there before the point is.
                    if queue.progress.value() < point {
                        failed = true;
                    } else if queue.progress.submitted() > point {
                        self.watch(queue);
                    }
                }
            }
        }
        let over: Vec<bool> = state.dying.iter().map(Dying::is_settled).collect();
        let mut ended = state.dying.iter().zip(&over).filter(|(_, over)| **over);
        if failed || ended.any(|(dying, _)| dying.has_failed()) {
            self.find_error_locked(state);
        }
        let mut over = over.into_iter();
        let (done, left) = std::mem::take(&mut state.dying)
            .into_iter()
            .partition(|_| over.next() == Some(true));
        state.dying = left;
        if state.execution != DeviceState::Active {
            Self::lose_fences(state);
        }
        if due {
            state.again = false;
            let refused = std::mem::take(&mut state.refused);
            self.go_on(state, refused);
        }
        self.signal_late(state);
        Self::settle_paging_of(state);
        state.events.retain(|event| {
            let over = satisfied(&event.waits, event.how).is_some()
                || event.waits.iter().any(|(fence, _)| fence.is_closed());
            if over {
                let _ = fire(event.fd.as_fd());
            }
            !over
        });
        done
    }

    /// Signals for the CPU what comes after signals of the GPU that are done.
    fn signal_late(&self, state: &mut State) {
        let late: Vec<_> = state.late.iter().map(|(id, value)| (*id, *value)).collect();
        for (id, value) in late {
            let Some(fence) = state.lines.get(&id).map(|line| line.fence.clone()) else {
                continue;
            };
            if fence.value() >= fence.submitted() {
                let signalled = self.signal_now(state, &fence, value);
                state.again |= signalled.is_err();
            }
        }
    }
}

/// Whether the kernel is done with everything up to a point, well or not.
fn is_settled(syncobj: &Syncobj, point: u64) -> bool {
    point == 0 || settles(&syncobj.is_signaled(point))
}

/// What an answer of the kernel's means: that the device is gone says that it is done with
/// everything, and no other error says anything.
fn settles(answer: &libskua::Result<bool>) -> bool {
    match answer {
        Ok(signaled) => *signaled,
        Err(error) => error.kind() == ErrorKind::Gone,
    }
}

/// Adds 1 to an eventfd; one that is at its limit is left alone.
pub(super) fn fire(fd: BorrowedFd<'_>) -> Result<()> {
    match rustix::io::write(fd, &1_u64.to_ne_bytes()) {
        // At its limit it is readable already.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(Status::from_errno(errno)),
    }
}

#[cfg(test)]
mod tests {
    use libskua::Error;

    use super::*;

    #[test]
    fn only_a_device_that_is_gone_settles_by_an_error() {
        let error = |errno| {
            Err(Error::Ioctl {
                name: "SYNCOBJ_TIMELINE_WAIT",
                errno,
            })
        };
        assert!(settles(&Ok(true)));
        assert!(!settles(&Ok(false)));
        assert!(settles(&error(Errno::NODEV)));
        for errno in [Errno::NOMEM, Errno::INVAL, Errno::NOENT, Errno::IO] {
            assert!(!settles(&error(errno)), "{errno}");
        }
    }
}
