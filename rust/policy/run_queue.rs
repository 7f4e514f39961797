// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose turn it is on an engine.
//!
//! Each context of an engine has its jobs in the order of submission. The contexts that have a job and
//! are not blocked are *runnable* and stand in a [`Rotation`]; the one in front has its turn until it
//! has used up the *quantum* or has nothing more to run, then it goes to the back. Who becomes
//! runnable joins at the back. So nobody waits longer than one turn of each of the others: with a
//! quantum of one submission, a runnable context waits for at most n - 1 picks.
//!
//! The quantum has no unit of its own: it is compared with the sum of what the driver passes to
//! [`RunQueue::take`] (1 for each submission, or an estimate) and to [`RunQueue::charge`] (ticks, when it
//! knows them).
//!
//! **Prepare, then commit.** [`RunQueue::enqueue`] runs after a job's fence was published and cannot
//! fail for want of memory: its place comes from [`Tickets`] that [`RunQueue::prepare`] allocated.
//!
//! Priorities will be several rotations of which the first that is not empty counts; nothing else here
//! depends on there being one.
//!
//! Everything but allocation is O(1), removal of a context O(its jobs).
//!
//! Invariants: a context stands in the rotation (once) if and only if it is runnable; the spare job
//! slots are at least as many as all tickets promise.

use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

/// A context in a [`RunQueue`]. One that was removed is never mistaken for a later one, short of 2^32
/// contexts in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextKey {
    index: u32,
    generation: u32,
}

/// There is no such context (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Why a job was not queued. It comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueError<J> {
    /// There is no such context (any more).
    Gone(J),
    /// The tickets are used up: a mistake of the driver's.
    NoTicket(J),
}

/// Places for jobs. Give them back to [`RunQueue::release`] of the same queue.
///
/// Those that are dropped instead stay set aside until the queue goes.
#[must_use = "places stay set aside until `release`"]
#[derive(Debug, PartialEq, Eq)]
pub struct Tickets {
    count: u32,
}

impl Tickets {
    /// How many are left.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// No slot.
const NIL: u32 = u32::MAX;

struct JobSlot<J> {
    /// `None`: spare; `next` is then the next spare one.
    job: Option<J>,
    /// The next job of the same context.
    next: u32,
}

struct Context {
    generation: u32,
    /// Not live: spare; `next` is then the next spare one.
    live: bool,
    blocked: bool,
    in_rotation: bool,
    /// Neighbours in the rotation.
    prev: u32,
    next: u32,
    /// Its jobs.
    first: u32,
    last: u32,
    jobs: u32,
}

/// The runnable contexts, the one whose turn it is in front.
#[derive(Clone, Copy, Debug)]
struct Rotation {
    front: u32,
    back: u32,
    /// What the one in front has used of its quantum.
    used: u64,
}

/// The contexts of one engine and their jobs.
pub struct RunQueue<H: Heap, J> {
    contexts: H::Vec<Context>,
    spare_context: u32,
    jobs: H::Vec<JobSlot<J>>,
    spare_job: u32,
    spares: u32,
    /// How many of the spare job slots are promised to tickets.
    promised: u32,
    rotation: Rotation,
    quantum: u64,
    queued: u32,
}

impl<H: Heap, J> RunQueue<H, J> {
    /// A queue without contexts; allocates nothing. A `quantum` of 0 counts as 1.
    pub fn new(quantum: u64) -> Self {
        RunQueue {
            contexts: FallibleVec::new(),
            spare_context: NIL,
            jobs: FallibleVec::new(),
            spare_job: NIL,
            spares: 0,
            promised: 0,
            rotation: Rotation {
                front: NIL,
                back: NIL,
                used: 0,
            },
            quantum: quantum.max(1),
            queued: 0,
        }
    }

    /// Adds a context without jobs.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn add_context(&mut self) -> Result<ContextKey, OutOfMemory> {
        if self.spare_context == NIL {
            let index = number_of_next(&self.contexts)?;
            self.contexts.try_push(Context {
                generation: 0,
                live: false,
                blocked: false,
                in_rotation: false,
                prev: NIL,
                next: NIL,
                first: NIL,
                last: NIL,
                jobs: 0,
            })?;
            self.spare_context = index;
        }
        let index = self.spare_context;
        let context = self.slot_mut(index).ok_or(OutOfMemory)?;
        let next_spare = context.next;
        context.live = true;
        context.blocked = false;
        context.next = NIL;
        let generation = context.generation;
        self.spare_context = next_spare;
        Ok(ContextKey { index, generation })
    }

    /// Removes a context and hands its jobs to `dropped`, in order.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn remove_context(&mut self, key: ContextKey, dropped: impl FnMut(J)) -> Result<(), Gone> {
        self.drain(key, dropped)?;
        let next_spare = self.spare_context;
        let context = self.context_mut(key)?;
        context.live = false;
        context.generation = context.generation.wrapping_add(1);
        context.next = next_spare;
        self.spare_context = key.index;
        Ok(())
    }

    /// Hands all jobs of a context to `dropped`, in order. The context stays.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn drain(&mut self, key: ContextKey, mut dropped: impl FnMut(J)) -> Result<(), Gone> {
        self.context(key)?;
        self.leave(key.index);
        while let Some(job) = self.pop_job(key.index) {
            dropped(job);
        }
        Ok(())
    }

    /// Sets places for `count` jobs aside, allocating what is missing.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn prepare(&mut self, count: u32) -> Result<Tickets, OutOfMemory> {
        let promised = self.promised.checked_add(count).ok_or(OutOfMemory)?;
        let missing = promised.saturating_sub(self.spares);
        let first = number_of_next(&self.jobs)?;
        // NIL is no slot's number.
        let end = first.checked_add(missing).ok_or(OutOfMemory)?;
        self.jobs
            .reserve(usize::try_from(missing).map_err(|_| OutOfMemory)?)?;
        for number in first..end {
            self.jobs.try_push(JobSlot {
                job: None,
                next: self.spare_job,
            })?;
            self.spare_job = number;
            self.spares += 1;
        }
        self.promised = promised;
        Ok(Tickets { count })
    }

    /// Gives tickets back. Their memory stays, for the next ones.
    pub fn release(&mut self, tickets: Tickets) {
        self.promised = self.promised.saturating_sub(tickets.count);
    }

    /// Appends a job to those of its context, using up one ticket.
    ///
    /// # Errors
    ///
    /// [`EnqueueError::Gone`], [`EnqueueError::NoTicket`].
    pub fn enqueue(
        &mut self,
        key: ContextKey,
        tickets: &mut Tickets,
        job: J,
    ) -> Result<(), EnqueueError<J>> {
        let Ok(context) = self.context(key) else {
            return Err(EnqueueError::Gone(job));
        };
        let last = context.last;
        let place = tickets
            .count
            .checked_sub(1)
            .zip(self.promised.checked_sub(1));
        let number = self.spare_job;
        let slot = number_to_index(number).and_then(|at| self.jobs.as_mut_slice().get_mut(at));
        let (Some((left, promised)), Some(slot)) = (place, slot) else {
            return Err(EnqueueError::NoTicket(job));
        };
        self.spare_job = slot.next;
        self.spares = self.spares.saturating_sub(1);
        slot.next = NIL;
        slot.job = Some(job);
        tickets.count = left;
        self.promised = promised;

        if let Some(last) =
            number_to_index(last).and_then(|at| self.jobs.as_mut_slice().get_mut(at))
        {
            last.next = number;
        }
        if let Some(context) = self.slot_mut(key.index) {
            if context.first == NIL {
                context.first = number;
            }
            context.last = number;
            context.jobs = context.jobs.saturating_add(1);
        }
        self.queued = self.queued.saturating_add(1);
        self.join(key.index);
        Ok(())
    }

    /// Takes a context out of the rotation until [`Self::unblock`]: its first job has to wait for
    /// something. Its jobs stay. When it was its turn, the turn ends.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn block(&mut self, key: ContextKey) -> Result<(), Gone> {
        self.context_mut(key)?.blocked = true;
        self.leave(key.index);
        Ok(())
    }

    /// Lets a context stand in the rotation again, at the back.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn unblock(&mut self, key: ContextKey) -> Result<(), Gone> {
        self.context_mut(key)?.blocked = false;
        self.join(key.index);
        Ok(())
    }

    /// The job that [`Self::take`] would take.
    pub fn front(&self) -> Option<(ContextKey, &J)> {
        let index = self.rotation.front;
        let context = self.slot(index)?;
        let job = self.jobs.as_slice().get(number_to_index(context.first)?)?;
        let key = ContextKey {
            index,
            generation: context.generation,
        };
        Some((key, job.job.as_ref()?))
    }

    /// Takes the next job, the first one of the context whose turn it is, and charges `cost` for it.
    pub fn take(&mut self, cost: u64) -> Option<(ContextKey, J)> {
        let (key, _) = self.front()?;
        let job = self.pop_job(key.index)?;
        if self
            .slot(key.index)
            .is_some_and(|context| context.jobs == 0)
        {
            self.leave(key.index);
        } else {
            self.charge(key, cost);
        }
        Some((key, job))
    }

    /// Charges `cost` to the present turn of a context. If it is not its turn, it has paid already by
    /// losing it, and nothing happens.
    pub fn charge(&mut self, key: ContextKey, cost: u64) {
        if self.rotation.front != key.index || self.context(key).is_err() {
            return;
        }
        self.rotation.used = self.rotation.used.saturating_add(cost);
        if self.rotation.used >= self.quantum {
            self.leave(key.index);
            self.join(key.index);
        }
    }

    /// How many jobs are queued, also those of blocked contexts.
    pub fn queued(&self) -> u32 {
        self.queued
    }

    /// How many jobs of a context are queued.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn queued_by(&self, key: ContextKey) -> Result<u32, Gone> {
        self.context(key).map(|context| context.jobs)
    }

    /// Whether there is no runnable context.
    pub fn is_idle(&self) -> bool {
        self.rotation.front == NIL
    }

    fn slot(&self, index: u32) -> Option<&Context> {
        self.contexts.as_slice().get(number_to_index(index)?)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Context> {
        self.contexts
            .as_mut_slice()
            .get_mut(number_to_index(index)?)
    }

    fn context(&self, key: ContextKey) -> Result<&Context, Gone> {
        self.slot(key.index)
            .filter(|context| context.live && context.generation == key.generation)
            .ok_or(Gone)
    }

    fn context_mut(&mut self, key: ContextKey) -> Result<&mut Context, Gone> {
        self.context(key)?;
        self.slot_mut(key.index).ok_or(Gone)
    }

    /// Takes the first job of a context; its slot becomes spare.
    fn pop_job(&mut self, index: u32) -> Option<J> {
        let number = self.slot(index)?.first;
        let next_spare = self.spare_job;
        let slot = self.jobs.as_mut_slice().get_mut(number_to_index(number)?)?;
        let job = slot.job.take();
        let next = core::mem::replace(&mut slot.next, next_spare);
        self.spare_job = number;
        self.spares = self.spares.saturating_add(1);
        self.queued = self.queued.saturating_sub(1);
        let context = self.slot_mut(index)?;
        context.first = next;
        if next == NIL {
            context.last = NIL;
        }
        context.jobs = context.jobs.saturating_sub(1);
        job
    }

    /// Puts a context at the back of the rotation, if it is runnable and not yet there.
    fn join(&mut self, index: u32) {
        let back = self.rotation.back;
        let Some(context) = self.slot_mut(index) else {
            return;
        };
        if context.in_rotation || context.blocked || context.jobs == 0 {
            return;
        }
        context.in_rotation = true;
        context.prev = back;
        context.next = NIL;
        match self.slot_mut(back) {
            Some(before) => before.next = index,
            None => {
                self.rotation.front = index;
                self.rotation.used = 0;
            }
        }
        self.rotation.back = index;
    }

    /// Takes a context out of the rotation, if it is there.
    fn leave(&mut self, index: u32) {
        let Some(context) = self.slot_mut(index).filter(|context| context.in_rotation) else {
            return;
        };
        context.in_rotation = false;
        let prev = core::mem::replace(&mut context.prev, NIL);
        let next = core::mem::replace(&mut context.next, NIL);
        match self.slot_mut(prev) {
            Some(before) => before.next = next,
            None => {
                self.rotation.front = next;
                self.rotation.used = 0;
            }
        }
        match self.slot_mut(next) {
            Some(behind) => behind.prev = prev,
            None => self.rotation.back = prev,
        }
    }
}

fn number_to_index(number: u32) -> Option<usize> {
    if number == NIL {
        return None;
    }
    usize::try_from(number).ok()
}

/// The number that the next element of `list` gets; never [`NIL`].
fn number_of_next<T>(list: &impl FallibleVec<T>) -> Result<u32, OutOfMemory> {
    u32::try_from(list.len())
        .ok()
        .filter(|number| *number != NIL)
        .ok_or(OutOfMemory)
}
