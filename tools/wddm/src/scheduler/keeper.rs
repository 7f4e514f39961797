// SPDX-License-Identifier: MIT

//! The keeper: the device's only thread.
//!
//! It sleeps on one eventfd, which the kernel adds to when points that matter are signalled, and then
//! looks at everything once:
//!
//! - **errors**: in each context the last point that was submitted when the watch began is
//!   watched. If it is signalled and its value is not there, work failed. So an error is
//!   noticed without anybody asking, for one system call and one wake-up per burst of work;
//! - **events** for several fences, which the kernel knows nothing of;
//! - **the dead**: what was destroyed is given back when everything that was queued before is done.
//!   Memory is then unbound, and given back when that is done, too.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{atomic::Ordering, Arc, Mutex},
};

use libskua::{Deadline, Syncobj};
use rustix::io::Errno;

use super::{Queue, Scheduler, State};
use crate::{
    device::DeviceState,
    fence::{satisfied, Cell, Fence, WaitFor},
    lock,
    memory::Memory,
    status::{Result, Status},
};

/// A point of a timeline of the kernel's.
pub(crate) type Point = (Arc<Syncobj>, u64);

/// What was destroyed and may still be used until points are settled.
#[derive(Debug)]
pub(super) struct Dying {
    pub(super) uses: Vec<Point>,
    /// To be unbound then, and dropped when it is.
    pub(super) memory: Vec<Memory>,
    pub(super) rest: Rest,
}

/// What is dropped when the points are settled.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped at the right time")]
pub(super) enum Rest {
    Nothing,
    /// With its cell.
    Queue(Box<Queue>),
    Cell(CellGuard),
    Unbound(Vec<Memory>),
}

/// A cell that is free again when this is dropped.
#[derive(Debug)]
pub(super) struct CellGuard {
    pub(super) cell: Cell,
    pub(super) free: Arc<Mutex<Vec<Cell>>>,
}

impl Drop for CellGuard {
    fn drop(&mut self) {
        lock(&self.free).push(self.cell.clone());
    }
}

/// A wait that ends by an eventfd and that the kernel cannot do alone.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) waits: Vec<(Arc<Fence>, u64)>,
    pub(super) how: WaitFor,
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
            .map(|queue| (queue.progress.syncobj.clone(), queue.queued));
        // Contexts that were destroyed may still run.
        let dying = state
            .dying
            .iter()
            .filter(|dying| matches!(dying.rest, Rest::Queue(_)))
            .flat_map(|dying| dying.uses.iter().cloned());
        queued.chain(dying).collect()
    }

    /// Gives memory back when everything that is queued now is done.
    pub(crate) fn destroy_memory(&self, memory: Memory) {
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
        for (syncobj, point) in &dying.uses {
            if *point > 0 {
                // Without memory for it, the keeper's next look finds it.
                let _ = syncobj.notify(*point, self.kick.as_fd());
            }
        }
        state.dying.push(dying);
        self.kick();
    }

    /// Waits until everything that the kernel has up to these points is done, well or not.
    pub(crate) fn settle(uses: &[Point]) -> Result<()> {
        for (syncobj, point) in uses {
            if *point > 0 {
                syncobj.wait(*point, Deadline::NEVER)?;
            }
        }
        Ok(())
    }

    /// Registers an eventfd for several fences.
    pub(crate) fn add_event(
        &self,
        waits: Vec<(Arc<Fence>, u64)>,
        how: WaitFor,
        fd: BorrowedFd<'_>,
    ) -> Result<()> {
        let mut state = self.alive()?;
        let live = |(f, _): &(Arc<Fence>, u64)| state.lines.contains_key(&f.id);
        if !waits.iter().all(live) {
            return Err(Status::INVALID_HANDLE);
        }
        if satisfied(&waits, how).is_some() {
            return fire(fd);
        }
        if let [(fence, value)] = &waits[..] {
            // The kernel does it alone.
            return Ok(fence.syncobj.notify(*value, fd)?);
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

    /// The keeper's life.
    pub(crate) fn keep(&self) {
        loop {
            let mut count = [0; 8];
            match rustix::io::read(&self.kick, &mut count) {
                Ok(_) | Err(Errno::INTR) => {}
                // It cannot fail otherwise; without it nothing would be given back.
                Err(_) => return,
            }
            for dying in self.look() {
                self.bury(dying);
            }
            let state = lock(&self.state);
            if state.stopping && state.dying.is_empty() {
                return;
            }
        }
    }

    /// Gives back what nothing uses any more; called with no lock held.
    fn bury(&self, dying: Dying) {
        let Dying {
            mut memory, rest, ..
        } = dying;
        if let Rest::Queue(queue) = &rest {
            // Its value is about to become another fence's: all of its packets are done.
            queue.progress.limit.store(0, Ordering::Release);
        }
        drop(rest);
        let points = memory.iter_mut().filter_map(Memory::unbind);
        if let Some(last) = points.max() {
            let dying = Dying {
                uses: vec![(self.adapter.bound().clone(), last)],
                memory: Vec::new(),
                rest: Rest::Unbound(memory),
            };
            self.retire(&mut lock(&self.state), dying);
        }
    }

    /// Looks at everything once: returns what can be given back.
    fn look(&self) -> Vec<Dying> {
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
                    } else if queue.sent > point {
                        self.watch(queue);
                    }
                }
            }
        }
        if failed {
            self.find_error_locked(state);
        }
        if state.execution != DeviceState::Active {
            Self::lose_fences(state);
        }
        state.events.retain(|event| {
            let closed = |(f, _): &(Arc<Fence>, u64)| f.closed.load(Ordering::Acquire);
            let over =
                satisfied(&event.waits, event.how).is_some() || event.waits.iter().any(closed);
            if over {
                let _ = fire(event.fd.as_fd());
            }
            !over
        });
        let (done, left) = std::mem::take(&mut state.dying)
            .into_iter()
            .partition(|dying| dying.uses.iter().all(|(s, point)| is_settled(s, *point)));
        state.dying = left;
        done
    }
}

/// Whether the kernel is done with everything up to a point, well or not. If the device is gone, it
/// is.
fn is_settled(syncobj: &Syncobj, point: u64) -> bool {
    point == 0 || syncobj.is_signaled(point).unwrap_or(true)
}

/// Adds 1 to an eventfd.
pub(super) fn fire(fd: BorrowedFd<'_>) -> Result<()> {
    match rustix::io::write(fd, &1_u64.to_ne_bytes()) {
        // At its limit it is readable already.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(Status::from_errno(errno)),
    }
}
