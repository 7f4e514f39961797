// SPDX-License-Identifier: MIT

//! The order of a device's work, and what happens when it ends.
//!
//! Each context has a **queue** of packets: work, and waits for fences. A packet goes to the kernel
//! as soon as all before it has gone and the values that it waits for are submitted, which means
//! that the kernel has a fence for them and orders the rest by itself. Until then it stays here,
//! because the kernel takes no wait for a value that nobody has submitted (and could not: such a
//! wait has no end that can be promised). What submits the value, on whichever thread, goes on
//! with the queues that wait for it.
//!
//! ```text
//!   submit ─▶ queue ─▶ [wait F≥5] [work 1, signal G=2] [work 2] ──pump──▶ SKUA_SUBMIT ─▶ engine
//!                          │                                                                │
//!     signal F=5 ──────────┘                     progress of the context ◀── SIGNAL ────────┘
//! ```
//!
//! Each context has a fence of its own, its **progress**: packet *n* signals value *n* behind its
//! commands. By it everybody tells, without a system call, what is done ([`crate::Allocation::map`]).
//!
//! The **keeper** ([`keeper`]) is the device's only thread. It notices that work failed, and gives back
//! what was destroyed while queued work could use it.
//!
//! Locks: `state` guards everything here, and is held over the kernel's submission so that points
//! come in order. Under it, only the address space and the usage of allocations are locked. Nothing
//! waits for the GPU with a lock held.

mod keeper;
mod slots;

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, OwnedFd},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc, Mutex, MutexGuard,
    },
};

use libskua::{ContextStatus, Error, ErrorKind};
use rustix::event::EventfdFlags;

use self::{
    keeper::{fire, CellGuard, Dying, Event, Rest},
    slots::Slots,
};
use crate::{
    adapter::{crowded, Adapter},
    device::DeviceState,
    fence::{Cell, Fence, MonitoredFence, Page},
    lock,
    status::{Result, Status},
    usage::{Access, Usage},
};

/// The most waits that a kernel submission is given; below any limit of a driver.
const MAX_WAITS: usize = 60;

/// Work in a queue.
#[derive(Debug)]
struct Run {
    commands: Option<(u64, u32)>,
    signal: Option<(Arc<Fence>, u64)>,
    /// Its number in the context.
    point: u64,
}

#[derive(Debug)]
enum Packet {
    Wait(Arc<Fence>, u64),
    Run(Run),
}

/// A context's queue.
#[derive(Debug)]
struct Queue {
    /// Taken away when the device goes to error, which cancels what has not started.
    raw: Option<libskua::Context>,
    progress: Arc<Fence>,
    /// Number of the last packet.
    queued: u64,
    /// Number of the last one that the kernel has.
    sent: u64,
    packets: VecDeque<Packet>,
    /// What the next packet that goes to the kernel waits for.
    waits: Vec<(Arc<Fence>, u64)>,
    slots: Slots,
    /// The point that the keeper watches.
    watched: Option<u64>,
    /// The last change of the address space that its work waits for.
    bound: u64,
    /// Of `progress`.
    _cell: CellGuard,
}

/// What is known of a fence beyond its value.
#[derive(Debug)]
struct Line {
    fence: Arc<Fence>,
    /// The largest value that was signalled, or that the kernel has a fence for.
    submitted: u64,
    /// The context whose work signals it.
    signaller: Option<u64>,
    /// Contexts that wait for a larger value.
    parked: Vec<u64>,
    /// Of `fence`.
    cell: CellGuard,
}

#[derive(Debug)]
struct State {
    execution: DeviceState,
    queues: HashMap<u64, Queue>,
    lines: HashMap<u64, Line>,
    dying: Vec<Dying>,
    events: Vec<Event>,
    /// The context that signals for the CPU what must come after the GPU's signals.
    signaller: Option<u64>,
    /// The device is destroyed; the keeper ends when nothing runs any more.
    stopping: bool,
}

/// A device's queues and fences.
#[derive(Debug)]
pub(crate) struct Scheduler {
    adapter: Adapter,
    state: Mutex<State>,
    /// Not active, for a look without the lock.
    ended: AtomicBool,
    cells: Arc<Mutex<Vec<Cell>>>,
    next: AtomicU64,
    /// Wakes the keeper.
    kick: OwnedFd,
}

impl Scheduler {
    pub(crate) fn new(adapter: &Adapter) -> Result<Self> {
        Ok(Self {
            adapter: adapter.clone(),
            state: Mutex::new(State {
                execution: DeviceState::Active,
                queues: HashMap::new(),
                lines: HashMap::new(),
                dying: Vec::new(),
                events: Vec::new(),
                signaller: None,
                stopping: false,
            }),
            ended: AtomicBool::new(false),
            cells: Arc::default(),
            next: AtomicU64::new(1),
            kick: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(Status::from_errno)?,
        })
    }

    pub(crate) const fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Fails unless the device takes work.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(match lock(&self.state).execution {
            DeviceState::Destroyed => Status::INVALID_HANDLE,
            _ => Status::DEVICE_REMOVED,
        })
    }

    fn alive(&self) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        match state.execution {
            DeviceState::Active => Ok(state),
            DeviceState::Destroyed => Err(Status::INVALID_HANDLE),
            _ => Err(Status::DEVICE_REMOVED),
        }
    }

    pub(crate) fn execution(&self) -> DeviceState {
        lock(&self.state).execution
    }

    // Fences

    fn cell(&self) -> Result<CellGuard> {
        let mut cells = lock(&self.cells);
        if cells.is_empty() {
            let page = Arc::new(Page::create(&self.adapter)?);
            cells.extend((0..Page::VALUES).rev().map(|index| Cell {
                page: page.clone(),
                index,
            }));
        }
        let cell = cells.pop().ok_or(Status::NO_MEMORY)?;
        Ok(CellGuard {
            cell,
            free: self.cells.clone(),
        })
    }

    pub(crate) fn create_fence(&self, initial: u64) -> Result<Arc<Fence>> {
        let guard = self.cell()?;
        let fence = Arc::new(Fence::new(
            self.number(),
            &self.adapter,
            guard.cell.clone(),
            initial,
        )?);
        let mut state = self.alive()?;
        state.lines.insert(
            fence.id,
            Line {
                fence: fence.clone(),
                submitted: initial,
                signaller: None,
                parked: Vec::new(),
                cell: guard,
            },
        );
        Ok(fence)
    }

    pub(crate) fn destroy_fence(&self, fence: &Arc<Fence>) {
        let mut state = lock(&self.state);
        let Some(line) = state.lines.remove(&fence.id) else {
            return;
        };
        fence.closed.store(true, Ordering::Release);
        // Wakes who sleeps; the kernel keeps it after what is submitted. Without memory for it
        // they sleep until their time is up.
        let _ = fence.syncobj.signal(MonitoredFence::LOST);
        self.retire(
            &mut state,
            Dying {
                uses: vec![(fence.syncobj.clone(), line.submitted)],
                memory: Vec::new(),
                rest: Rest::Cell(line.cell),
            },
        );
        for context in line.parked {
            self.pump_or_fail(&mut state, context);
        }
    }

    pub(crate) fn signal_from_cpu(&self, fence: &Arc<Fence>, value: u64) -> Result<()> {
        let mut state = self.alive()?;
        Self::check_signal(&state, fence, value)?;
        let line = state
            .lines
            .get_mut(&fence.id)
            .ok_or(Status::INVALID_HANDLE)?;
        if fence.value() >= line.submitted {
            fence.set(value);
            fence.syncobj.signal(value)?;
            line.submitted = value;
            line.signaller = None;
            for context in std::mem::take(&mut line.parked) {
                self.pump_or_fail(&mut state, context);
            }
            return Ok(());
        }
        // The GPU has yet to write a smaller value, and must not do so after this.
        let context = self.signaller(&mut state)?;
        self.enqueue(&mut state, context, None, Some((fence.clone(), value)), &[])
    }

    fn signaller(&self, state: &mut State) -> Result<u64> {
        if let Some(id) = state.signaller {
            return Ok(id);
        }
        let engines = self.adapter.libskua().engines();
        let engine = engines.last().copied().ok_or(Status::NOT_SUPPORTED)?;
        let id = self.insert_context(state, engine)?;
        state.signaller = Some(id);
        Ok(id)
    }

    // Contexts

    pub(crate) fn create_context(&self, node: u32) -> Result<u64> {
        let ordinal = usize::try_from(node).map_err(|_| Status::INVALID_PARAMETER)?;
        let engines = self.adapter.libskua().engines();
        let engine = *engines.get(ordinal).ok_or(Status::INVALID_PARAMETER)?;
        let mut state = self.alive()?;
        self.insert_context(&mut state, engine)
    }

    fn insert_context(&self, state: &mut State, engine: libskua::Engine) -> Result<u64> {
        let raw = libskua::Context::create(self.adapter.vm(), engine).map_err(crowded)?;
        let guard = self.cell()?;
        let progress = Fence::new(self.number(), &self.adapter, guard.cell.clone(), 0)?;
        let mut slots = Slots::default();
        let slot = slots.take(&self.adapter, 0)?;
        slots.give_back(slot);
        let id = self.number();
        state.queues.insert(
            id,
            Queue {
                raw: Some(raw),
                progress: Arc::new(progress),
                queued: 0,
                sent: 0,
                packets: VecDeque::new(),
                waits: Vec::new(),
                slots,
                watched: None,
                bound: 0,
                _cell: guard,
            },
        );
        Ok(id)
    }

    /// Destroys a context: what the kernel has is left to end, what it does not have is dropped.
    pub(crate) fn destroy_context(&self, id: u64) {
        let mut state = lock(&self.state);
        self.retire_context(&mut state, id);
    }

    fn retire_context(&self, state: &mut State, id: u64) {
        let Some(mut queue) = state.queues.remove(&id) else {
            return;
        };
        Self::cancel(&mut queue);
        let memory = queue.slots.take_memory();
        self.retire(
            state,
            Dying {
                uses: vec![(queue.progress.syncobj.clone(), queue.sent)],
                memory,
                rest: Rest::Queue(Box::new(queue)),
            },
        );
    }

    /// Drops what the kernel does not have yet.
    fn cancel(queue: &mut Queue) {
        queue.packets.clear();
        queue.waits.clear();
        if queue.queued > queue.sent {
            queue.progress.limit.store(queue.sent, Ordering::Release);
            // Who sleeps until later packets are done: behind what the kernel has.
            let _ = queue.progress.syncobj.signal(queue.queued);
            queue.queued = queue.sent;
        }
    }

    /// Queues work, and hands to the kernel what can go there.
    pub(crate) fn submit(
        &self,
        context: u64,
        commands: Option<(u64, u32)>,
        signal: Option<(&Arc<Fence>, u64)>,
        uses: &[(Arc<Mutex<Usage>>, Access)],
    ) -> Result<()> {
        let mut state = self.alive()?;
        if let Some((fence, value)) = signal {
            Self::check_signal(&state, fence, value)?;
        }
        let signal = signal.map(|(fence, value)| (fence.clone(), value));
        self.enqueue(&mut state, context, commands, signal, uses)
    }

    /// Whether these values can be signalled.
    pub(crate) fn check_signals(&self, signals: &[(&Fence, u64)]) -> Result<()> {
        let state = self.alive()?;
        signals
            .iter()
            .try_for_each(|(fence, value)| Self::check_signal(&state, fence, *value))
    }

    fn check_signal(state: &State, fence: &Fence, value: u64) -> Result<()> {
        let line = state.lines.get(&fence.id).ok_or(Status::INVALID_HANDLE)?;
        if value <= line.submitted || value == MonitoredFence::LOST {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(())
    }

    fn enqueue(
        &self,
        state: &mut State,
        context: u64,
        commands: Option<(u64, u32)>,
        signal: Option<(Arc<Fence>, u64)>,
        uses: &[(Arc<Mutex<Usage>>, Access)],
    ) -> Result<()> {
        let queue = state
            .queues
            .get_mut(&context)
            .ok_or(Status::INVALID_HANDLE)?;
        let point = queue.queued + 1;
        queue.packets.push_back(Packet::Run(Run {
            commands,
            signal,
            point,
        }));
        queue.queued = point;
        let progress = queue.progress.clone();
        self.pump(state, context)?;
        for (usage, access) in uses {
            lock(usage).record(&progress, point, *access);
        }
        Ok(())
    }

    /// Lets what is queued in a context from now on wait for values.
    pub(crate) fn wait_from_gpu(&self, context: u64, waits: &[(Arc<Fence>, u64)]) -> Result<()> {
        let mut state = self.alive()?;
        if !waits.iter().all(|(f, _)| state.lines.contains_key(&f.id)) {
            return Err(Status::INVALID_HANDLE);
        }
        let queue = state
            .queues
            .get_mut(&context)
            .ok_or(Status::INVALID_HANDLE)?;
        let packets = waits
            .iter()
            .map(|(f, value)| Packet::Wait(f.clone(), *value));
        queue.packets.extend(packets);
        self.pump(&mut state, context)
    }

    /// Hands to the kernel what can go there: of one context, then of those that waited for what
    /// was thereby submitted, and so on.
    ///
    /// # Errors
    ///
    /// Why the last packet of `first` was refused, which is then not in the queue any more. If
    /// another packet is refused, the device goes to error.
    fn pump(&self, state: &mut State, first: u64) -> Result<()> {
        let mut ready = vec![first];
        while let Some(id) = ready.pop() {
            while let Some(queue) = state.queues.get_mut(&id) {
                let Some(packet) = queue.packets.pop_front() else {
                    break;
                };
                match packet {
                    Packet::Wait(fence, value) => {
                        if fence.reached(value) || fence.closed.load(Ordering::Acquire) {
                            continue;
                        }
                        match state.lines.get_mut(&fence.id) {
                            Some(line) if line.submitted < value => {
                                if !line.parked.contains(&id) {
                                    line.parked.push(id);
                                }
                                queue.packets.push_front(Packet::Wait(fence, value));
                                break;
                            }
                            _ => {}
                        }
                        match queue.waits.iter_mut().find(|(f, _)| f.id == fence.id) {
                            Some((_, largest)) => *largest = value.max(*largest),
                            None => queue.waits.push((fence, value)),
                        }
                    }
                    Packet::Run(run) => {
                        let point = run.point;
                        match self.send(state, id, &run) {
                            Ok(woken) => ready.extend(woken),
                            Err(error) => return self.refused(state, (first, id), point, error),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn pump_or_fail(&self, state: &mut State, context: u64) {
        if let Err(error) = self.pump(state, context) {
            // Whose call this is has nothing to do with it.
            if state.execution == DeviceState::Active {
                self.fail(state, DeviceState::of_status(error));
            }
        }
    }

    /// The kernel, or the library, could not take a packet.
    fn refused(
        &self,
        state: &mut State,
        (first, id): (u64, u64),
        point: u64,
        status: Status,
    ) -> Result<()> {
        if status == Status::DEVICE_REMOVED {
            self.find_error_locked(state);
            return Err(status);
        }
        match state.queues.get_mut(&id) {
            // The caller's own: as if it had not been called.
            Some(queue) if id == first && queue.queued == point && queue.packets.is_empty() => {
                queue.queued = point - 1;
                Err(status)
            }
            _ => {
                self.fail(state, DeviceState::of_status(status));
                Err(Status::DEVICE_REMOVED)
            }
        }
    }

    /// Hands one packet to the kernel; tells which contexts waited for what it signals.
    fn send(&self, state: &mut State, id: u64, run: &Run) -> Result<Vec<u64>> {
        let queue = state.queues.get_mut(&id).ok_or(Status::INVALID_HANDLE)?;
        let raw = queue.raw.as_ref().ok_or(Status::DEVICE_REMOVED)?;

        // A signal that others have overtaken is reached by them; a destroyed fence has none.
        let signal = run.signal.as_ref().filter(|(fence, value)| {
            state
                .lines
                .get(&fence.id)
                .is_some_and(|line| *value > line.submitted)
        });
        let mut signals = Vec::with_capacity(2);
        if let Some((fence, value)) = signal {
            signals.push((fence.va(), *value));
        }
        signals.push((queue.progress.va(), run.point));

        let slot = queue.slots.take(&self.adapter, queue.progress.value())?;
        // What is mapped by now, the slot too. Later packets of the context come behind it anyway.
        let bound = self.adapter.last_map();
        let (va, bytes) = queue.slots.write(slot, &signals)?;
        // From here on what fails puts them back.
        let mut waits = std::mem::take(&mut queue.waits);
        if let Some((fence, _)) = signal {
            // Behind the smaller values that others signal.
            if let Some(line) = state.lines.get(&fence.id) {
                if line.signaller.is_some_and(|other| other != id) && !fence.reached(line.submitted)
                {
                    waits.push((fence.clone(), line.submitted));
                }
            }
        }
        let sent = (|| -> Result<(), Error> {
            // More than one submission can take: some that wait and do nothing before.
            while waits.len() > MAX_WAITS {
                let some = waits.split_off(waits.len() - MAX_WAITS);
                let submission = some
                    .iter()
                    .fold(raw.submission(), |s, (f, point)| s.wait(&f.syncobj, *point));
                submission.submit()?;
            }
            let mut submission = waits
                .iter()
                .fold(raw.submission(), |s, (f, point)| s.wait(&f.syncobj, *point));
            if bound > queue.bound {
                submission = submission.wait(self.adapter.bound(), bound);
            }
            if let Some((commands, bytes)) = run.commands {
                submission = submission.buffer(commands, bytes);
            }
            submission = submission
                .buffer(va, bytes)
                .signal(&queue.progress.syncobj, run.point);
            if let Some((fence, value)) = signal {
                submission = submission.signal(&fence.syncobj, *value);
            }
            submission.submit()
        })();
        if let Err(error) = sent {
            queue.slots.give_back(slot);
            queue.waits = waits;
            return Err(match error.kind() {
                ErrorKind::Cancelled | ErrorKind::Gone | ErrorKind::Dead => Status::DEVICE_REMOVED,
                _ => error.into(),
            });
        }
        queue.slots.use_until(run.point, slot);
        queue.sent = run.point;
        queue.bound = bound;
        self.watch(queue);

        let mut woken = Vec::new();
        if let Some((fence, value)) = signal {
            if let Some(line) = state.lines.get_mut(&fence.id) {
                line.submitted = *value;
                line.signaller = Some(id);
                woken = std::mem::take(&mut line.parked);
            }
        }
        Ok(woken)
    }

    /// Lets the keeper look at a context when what the kernel has now is done.
    fn watch(&self, queue: &mut Queue) {
        if queue.watched.is_none() && queue.sent > 0 {
            let point = queue.sent;
            // Without memory for it, the next submission tries again.
            if queue
                .progress
                .syncobj
                .notify(point, self.kick.as_fd())
                .is_ok()
            {
                queue.watched = Some(point);
            }
        }
    }

    // Errors, and the end

    /// Work has failed: finds out how.
    pub(crate) fn find_error(&self) {
        self.find_error_locked(&mut lock(&self.state));
    }

    fn find_error_locked(&self, state: &mut State) {
        if state.execution != DeviceState::Active {
            return;
        }
        // The cause first: a context that was cancelled because of another one is still active.
        let mut found = DeviceState::Active;
        for queue in state.queues.values() {
            let Some(raw) = &queue.raw else { continue };
            match raw.state().map(|s| s.status) {
                Ok(ContextStatus::Active) => {}
                Ok(ContextStatus::Faulted(fault)) => found = DeviceState::of_fault(fault),
                Ok(ContextStatus::TimedOut) => found = DeviceState::Hung,
                Ok(ContextStatus::Lost) => found = DeviceState::Stopped,
                Err(error) if is_gone(&error) => found = DeviceState::Stopped,
                Err(_) => {}
            }
            if found != DeviceState::Active {
                self.fail(state, found);
                return;
            }
        }
        // A point was signalled without its value; whatever the contexts say, it will not come.
        self.fail(state, DeviceState::Stopped);
    }

    /// Takes the device out of service: nothing is accepted any more, what has not started is
    /// cancelled, and who waits is woken.
    fn fail(&self, state: &mut State, execution: DeviceState) {
        if state.execution != DeviceState::Active {
            return;
        }
        state.execution = execution;
        self.ended.store(true, Ordering::Release);
        for queue in state.queues.values_mut() {
            Self::cancel(queue);
            queue.raw = None;
        }
        Self::lose_fences(state);
        for line in state.lines.values() {
            let _ = line.fence.syncobj.signal(MonitoredFence::LOST);
        }
        for event in state.events.drain(..) {
            let _ = fire(event.fd.as_fd());
        }
        self.kick();
    }

    /// Gives all fences the value of a device in error. Work that ran when the device failed may
    /// still write its own, so the keeper does this again when it is done.
    fn lose_fences(state: &State) {
        for line in state.lines.values() {
            line.fence.set(MonitoredFence::LOST);
        }
    }

    /// Begins to destroy the device: nothing is accepted any more, what has not started is
    /// cancelled.
    pub(crate) fn shut_down(&self) {
        let mut state = lock(&self.state);
        self.fail(&mut state, DeviceState::Destroyed);
        state.execution = DeviceState::Destroyed;
    }

    /// Destroys the contexts; the keeper ends when nothing of the device runs any more.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopping = true;
        let ids: Vec<u64> = state.queues.keys().copied().collect();
        for id in ids {
            self.retire_context(&mut state, id);
        }
        self.kick();
    }

    fn kick(&self) {
        let _ = fire(self.kick.as_fd());
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Gone | ErrorKind::Dead)
}
